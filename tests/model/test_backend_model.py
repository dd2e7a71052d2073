"""The backend against a plain dict: every step of random histories must leave both equal.

One machine per key type, on the heap and on shared tables. The short profile runs always.
``PYSTATE_MODEL_SECONDS=1800 pytest -m slow tests/model`` runs fresh seeds for that long and prints
each; ``PYSTATE_MODEL_SEED`` begins with a chosen one. Examples that failed are kept in
``tests/model/failures`` and replayed by every run until the machine itself changes; for ever are
those that were turned into functions at the end of this file.
"""

from __future__ import annotations

import io
import os
import pickle
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import pystate as ps
from pystate.checkpoint.state_files import EMPTY_LINEAGE
from pystate.errors import (
    LineageError,
    NoCurrentKeyError,
    PoisonedError,
    SnapshotTooOldError,
    StaleKeyBatchError,
    StateOverflowError,
)
from pystate.types.arrays import key_groups
from tests.drawn import count

STATES = {
    "n": ps.ValueState("long"),
    "text": ps.ValueState("string"),
    "small": ps.ValueState("short", default=7),
    "any": ps.ValueState(object),
}
MAX_PARALLELISM = 16
UNDO = 2
MOST = 2**63 - 1

Model = dict[Any, dict[str, Any]]

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "n": st.integers(-(2**40), 2**40),
    "text": st.one_of(
        st.text(max_size=4), st.integers(0, 90).map(lambda n: "długi " * n), st.just("x" * 12)
    ),
    "small": st.integers(-50, 50),
    "any": st.one_of(st.integers(), st.lists(st.integers(0, 9), max_size=3), st.just({"a": (1,)})),
}
NUMBERS = ("n", "small")


def settings_for(examples: int, steps: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        print_blob=True,
        database=DirectoryBasedExampleDatabase(Path(__file__).parent / "failures"),
        suppress_health_check=list(HealthCheck),
    )


class BackendMachine(RuleBasedStateMachine):
    """Subclasses say what keys look like."""

    key: ClassVar[Any]
    keys: ClassVar[st.SearchStrategy[Any]]
    steps: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.folder: str | None = None
        self.now: Model = {}
        self.sealed: list[tuple[ps.Lineage, Model]] = [(EMPTY_LINEAGE, {})]
        self.deltas: list[bytes] = []
        self.ever: dict[Any, Any] = {}
        self.current: Any = None
        self.has_current = False
        self.batches: list[tuple[ps.KeyBatch, list[Any]]] = []
        self.stale: list[ps.KeyBatch] = []
        # A reader, the epoch it is of and what it must see.
        self.readers: list[tuple[ps.SealedReader, ps.Lineage, Model]] = []
        # Readers older than the last roll back of a sealed epoch.
        self.cut_off: list[ps.SealedReader] = []

    # -- the model's keys

    @staticmethod
    def normal(key: Any) -> Any:
        """Equal keys, as pystate sees them, are equal and hash alike."""
        if isinstance(key, float):
            return "nan" if key != key else key + 0.0
        return key

    def columns(self, keys: list[Any]) -> Any:
        if isinstance(self.key, str):
            return keys
        return [list(column) for column in zip(*keys, strict=True)] or [[], []]

    def known(self, keys: list[Any]) -> list[Any]:
        for key in keys:
            self.ever.setdefault(self.normal(key), key)
        return [self.normal(key) for key in keys]

    # -- life

    @initialize(shared=st.booleans(), limit=st.just(0))
    def start(self, shared: bool, limit: int) -> None:
        self.options: dict[str, Any] = {"max_parallelism": MAX_PARALLELISM}
        if shared:
            self.folder = tempfile.mkdtemp(prefix="pystate-model-")
            path = os.path.join(self.folder, "t.table")
            self.options |= {"home": "shared", "path": path}
        self.backend = ps.KeyedStateBackend(self.key, states=STATES, **self.options)
        self.backend.open()

    def teardown(self) -> None:
        if hasattr(self, "backend"):
            self.backend.close()
        if self.folder is not None:
            shutil.rmtree(self.folder)

    @precondition(lambda self: self.folder is not None)
    @rule(reopen=st.booleans())
    def detach(self, reopen: bool) -> None:
        """The open epoch is lost, all that was sealed is there."""
        if reopen:
            self.backend.close()
            self.backend = ps.KeyedStateBackend(self.key, states=STATES, **self.options)
            assert not self.backend.is_open
            self.backend.open()
            assert not self.backend.created
        else:
            self.backend.detach()
            self.backend.attach()
        self.readers.clear()
        self.cut_off.clear()
        self.ended(self.sealed[-1][1], unusable=reopen)

    def ended(self, state: Model, unusable: bool = False) -> None:
        self.now = {key: dict(row) for key, row in state.items()}
        self.has_current = False
        if not unusable:
            self.stale = [batch for batch, _ in self.batches] + self.stale[:3]
        else:
            self.stale = []
        self.batches = []

    # -- writing

    def put(self, key: Any, state: str, value: Any) -> None:
        row = self.now.setdefault(key, {})
        if value is None:
            row.pop(state, None)
            if not row:
                del self.now[key]
        else:
            row[state] = pickle.loads(pickle.dumps(value))

    @rule(data=st.data())
    def select(self, data: st.DataObject) -> None:
        key = data.draw(self.some_key(), label="key")
        self.backend.set_current_key(key)
        [self.current] = self.known([key])
        self.has_current = True

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def select_in_batch(self, data: st.DataObject) -> None:
        batch, keys = data.draw(st.sampled_from(self.batches), label="batch")
        if keys:
            i = data.draw(st.integers(0, len(keys) - 1), label="row")
            batch.select(i)
            self.current, self.has_current = keys[i], True

    @precondition(lambda self: self.has_current)
    @rule(data=st.data(), state=st.sampled_from(list(STATES)), clear=st.booleans())
    def update(self, data: st.DataObject, state: str, clear: bool) -> None:
        handle = self.backend[state]
        value = None if clear else data.draw(VALUES[state], label="value")
        if clear and data.draw(st.booleans(), label="by clear()"):
            handle.clear()
        else:
            handle.update(value)
        self.put(self.current, state, value)

    @precondition(lambda self: self.has_current)
    @rule(state=st.sampled_from(list(STATES)))
    def read(self, state: str) -> None:
        wanted = self.now.get(self.current, {}).get(state, STATES[state].default)
        assert self.backend[state].value() == wanted

    @precondition(lambda self: not self.has_current)
    @rule(state=st.sampled_from(list(STATES)))
    def read_without_a_key(self, state: str) -> None:
        with pytest.raises(NoCurrentKeyError):
            self.backend[state].value()

    def some_key(self) -> st.SearchStrategy[Any]:
        if not self.ever:
            return self.keys
        return st.one_of(st.sampled_from(list(self.ever.values())), self.keys)

    def draw_batch(self, data: st.DataObject) -> tuple[ps.KeyBatch, list[Any]]:
        if self.batches and data.draw(st.booleans(), label="an older batch"):
            return data.draw(st.sampled_from(self.batches), label="batch")
        size = 0 if data.draw(st.integers(0, 15), label="empty") == 15 else 1
        keys = data.draw(st.lists(self.some_key(), min_size=size, max_size=12), label="keys")
        batch = self.backend.keys(self.columns(keys))
        self.batches.append((batch, self.known(keys)))
        return self.batches[-1]

    def draw_values(self, data: st.DataObject, state: str, keys: list[Any]) -> list[Any]:
        one = st.one_of(st.none(), VALUES[state])
        if state != "any" and data.draw(st.booleans(), label="a scalar"):
            return [data.draw(one, label="value")] * len(keys)
        return data.draw(st.lists(one, min_size=len(keys), max_size=len(keys)), label="values")

    def given(self, state: str, values: list[Any]) -> Any:
        """The values as a list or, where they are equal, sometimes as the scalar they are."""
        if state != "any" and values and all(v is values[0] for v in values) and len(values) != 1:
            return values[0]
        return values

    @rule(data=st.data(), state=st.sampled_from(list(STATES)))
    def update_all(self, data: st.DataObject, state: str) -> None:
        batch, keys = self.draw_batch(data)
        values = self.draw_values(data, state, keys)
        self.backend[state].update_all(batch, self.given(state, values))
        for key, value in zip(keys, values, strict=True):
            self.put(key, state, value)

    @rule(
        data=st.data(),
        state=st.sampled_from(NUMBERS),
        name=st.sampled_from(["add", "min", "max"]),
    )
    def apply(self, data: st.DataObject, state: str, name: str) -> None:
        batch, keys = self.draw_batch(data)
        values = self.draw_values(data, state, keys)
        wanted = self.applied(state, name, keys, values)
        operation = getattr(self.backend[state], name)
        if wanted is None:
            self.poison(lambda: operation(batch, self.given(state, values)))
            return
        operation(batch, self.given(state, values))
        for key, value in wanted.items():
            self.put(key, state, value)

    def applied(
        self, state: str, name: str, keys: list[Any], values: list[Any]
    ) -> dict[Any, int] | None:
        """The keys' new values; None where one overflows."""
        most = MOST if state == "n" else 2**15 - 1
        found: dict[Any, int] = {}
        for key, value in zip(keys, values, strict=True):
            if value is None:
                continue
            old = found.get(key, self.now.get(key, {}).get(state))
            if name == "add":
                new = (STATES[state].default or 0 if old is None else old) + value
            elif old is None:
                new = value
            else:
                new = min(old, value) if name == "min" else max(old, value)
            if not -most - 1 <= new <= most:
                return None
            found[key] = new
        return found

    @rule(data=st.data())
    def overflow(self, data: st.DataObject) -> None:
        batch, keys = self.draw_batch(data)
        if keys:
            self.backend["n"].update_all(batch, MOST)
            self.poison(lambda: self.backend["n"].add(batch, 1))

    def poison(self, use: Callable[[], None]) -> None:
        with pytest.raises(StateOverflowError):
            use()
        with pytest.raises(PoisonedError):
            self.backend.seal()
        self.backend.rollback()
        self.ended(self.sealed[-1][1])

    @rule(data=st.data(), state=st.sampled_from(list(STATES)))
    def clear_all(self, data: st.DataObject, state: str) -> None:
        batch, keys = self.draw_batch(data)
        self.backend[state].clear_all(batch)
        for key in keys:
            self.put(key, state, None)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        batch, keys = self.draw_batch(data)
        self.backend.delete(batch)
        for key in keys:
            self.now.pop(key, None)

    @rule(start=st.integers(0, 20), count=st.sampled_from([300, 3000]), drop=st.booleans())
    def grow(self, start: int, count: int, drop: bool) -> None:
        """Many keys at once: the index and the rows grow, or empty out again."""
        keys = [self.numbered(i) for i in range(start * 100, start * 100 + count)]
        batch = self.backend.keys(self.columns(keys))
        if drop:
            self.backend.delete(batch)
        else:
            self.backend["n"].update_all(batch, np.arange(count))
        for i, key in enumerate(self.known(keys)):
            if drop:
                self.now.pop(key, None)
            else:
                self.put(key, "n", i)

    def numbered(self, i: int) -> Any:
        raise NotImplementedError

    # -- epochs

    @rule(wanted=st.booleans())
    def seal(self, wanted: bool) -> None:
        before = self.backend.lineage()
        assert before == self.sealed[-1][0]
        lineage = ps.Lineage(uuid.uuid4().bytes, before.id, before.epoch + 1, 5)
        snapshot = self.backend.seal(lineage)
        assert snapshot.lineage == lineage
        out = io.BytesIO()
        snapshot.write(out)
        if not wanted:
            snapshot.close()
        self.deltas.append(out.getvalue())
        self.sealed.append((lineage, {key: dict(row) for key, row in self.now.items()}))
        self.ended(self.now)
        assert not self.backend.dirty

    @rule(back=st.integers(0, UNDO + 1))
    def rollback(self, back: int) -> None:
        window = self.window()
        if back > window:
            with pytest.raises(LineageError):
                self.backend.rollback(back)
            return
        self.backend.rollback(back)
        for _ in range(back):
            self.sealed.pop()
            self.deltas.pop()
        if back:
            self.cut_off += [reader for reader, _, _ in self.readers]
            self.readers.clear()
        self.ended(self.sealed[-1][1])
        assert self.backend.lineage() == self.sealed[-1][0]
        assert not self.backend.dirty

    def window(self) -> int:
        """How many sealed epochs the table says it can undo."""
        found = 0
        while found < UNDO and self.backend.lineage(found + 1) is not None:
            found += 1
        assert self.backend.lineage(UNDO + 1) is None
        for back in range(found + 1):
            assert self.backend.lineage(back) == self.sealed[-1 - back][0]
        return found

    # -- snapshots and restores

    def fresh(self, first: int, last: int) -> ps.KeyedStateBackend:
        return ps.KeyedStateBackend(
            self.key, states=STATES, max_parallelism=MAX_PARALLELISM, key_group_range=(first, last)
        )

    @rule(bounds=st.lists(st.integers(0, MAX_PARALLELISM - 1), min_size=2, max_size=2))
    def restore(self, bounds: list[int]) -> None:
        """The deltas give back the last sealed epoch, or a range of it."""
        first, last = min(bounds), max(bounds)
        with self.fresh(first, last) as other:
            other.restore([io.BytesIO(data) for data in self.deltas])
            lineage, state = self.sealed[-1]
            if self.deltas:
                assert other.lineage() == lineage
            self.compare(other, self.part(state, first, last))

    @rule(split=st.integers(0, 9))
    def merge(self, split: int) -> None:
        """A base of the older deltas with the newer ones on top is the same."""
        split = min(split, len(self.deltas))
        if split:
            base = io.BytesIO()
            info = ps.merge_files([io.BytesIO(data) for data in self.deltas[:split]], base)
            assert info.tombstones == 0
            assert ps.verify_file(base, info) == info
            with self.fresh(0, MAX_PARALLELISM - 1) as other:
                other.restore([base, *map(io.BytesIO, self.deltas[split:])])
                assert other.lineage() == self.sealed[-1][0]
                self.compare(other, self.sealed[-1][1])

    def part(self, state: Model, first: int, last: int) -> Model:
        keys = [self.ever[key] for key in state]
        columns = self.columns(keys)
        types = [t.arrow for _, t in self.backend.key]
        lists = [columns] if isinstance(self.key, str) else columns
        arrays = [pa.array(c, t) for c, t in zip(lists, types, strict=True)]
        groups = key_groups(ps.hash_keys(arrays), MAX_PARALLELISM)
        return {
            key: row for (key, row), g in zip(state.items(), groups, strict=True)
            if first <= g <= last
        }  # fmt: skip

    # -- readers

    @rule()
    def open_reader(self) -> None:
        lineage, state = self.sealed[-1]
        reader = self.backend.reader()
        assert reader.lineage == lineage
        self.readers.append((reader, lineage, state))
        for old, _, _ in self.readers[:-4]:
            old.close()
        self.readers = self.readers[-4:]

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def use_reader(self, data: st.DataObject) -> None:
        reader, lineage, state = data.draw(st.sampled_from(self.readers), label="reader")
        kept = [found.id for found, _ in self.sealed[-1 - UNDO :]]
        if lineage.id not in kept:
            with pytest.raises(SnapshotTooOldError):
                reader.get(next(iter(self.ever.values()), None))
            return
        found = self.as_model(reader.to_arrow())
        assert found == state
        key = data.draw(self.some_key(), label="key")
        row = state.get(self.normal(key))
        wanted = None if row is None else {n: row.get(n, d.default) for n, d in STATES.items()}
        assert reader.get(key) == wanted

    @precondition(lambda self: self.cut_off)
    @rule()
    def use_reader_that_is_cut_off(self) -> None:
        for reader in self.cut_off:
            with pytest.raises(SnapshotTooOldError):
                reader.get(next(iter(self.ever.values()), None))
            reader.close()
        self.cut_off.clear()

    # -- equality

    def as_model(self, table: pa.Table) -> Model:
        keys = len(table.schema) - len(STATES)
        columns = [column.to_pylist() for column in table.columns]
        found: Model = {}
        for values in zip(*columns, strict=True):
            key = self.normal(values[0] if keys == 1 else values[:keys])
            assert key not in found, f"{key!r} is there twice"
            row = dict(zip(STATES, values[keys:], strict=True))
            found[key] = {
                name: pickle.loads(value) if STATES[name].type.is_object else value
                for name, value in row.items()
                if value is not None
            }
        return found

    def compare(self, backend: ps.KeyedStateBackend, state: Model) -> None:
        assert self.as_model(backend.to_arrow()) == state
        assert len(backend) == len(state)

    @rule()
    def scan(self) -> None:
        self.compare(self.backend, self.now)
        assert {self.normal(key) for key in self.backend} == self.now.keys()

    @rule()
    def changed(self) -> None:
        """The touched keys are a part of the keys, and cover what differs from the sealed epoch."""
        found: set[Any] = set()
        for batch in self.backend.changed(max_rows=100):
            keys = [self.normal(key) for key in batch.to_pylist()]
            assert not found & set(keys) and len(keys) == len(set(keys))
            found |= set(keys)
            values = self.backend["n"].values(batch).to_pylist()
            assert values == [self.now[key].get("n") for key in keys]
        before = self.sealed[-1][1]
        assert found <= self.now.keys()
        assert found >= {key for key, row in self.now.items() if before.get(key) != row}

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def use_stale(self, data: st.DataObject) -> None:
        batch = data.draw(st.sampled_from(self.stale), label="batch")
        state = data.draw(st.sampled_from(list(STATES)), label="state")
        with pytest.raises(StaleKeyBatchError):
            self.backend[state].values(batch)
        with pytest.raises(StaleKeyBatchError):
            self.backend.delete(batch)

    @invariant()
    def equal(self) -> None:
        """All keys that were ever used, through a batch: reading must change nothing."""
        type(self).steps += 1
        if not self.ever:
            return
        keys = self.backend.keys(self.columns(list(self.ever.values())))
        for state, declaration in STATES.items():
            found = self.backend[state].values(keys)
            found = found if isinstance(found, list) else found.to_pylist()
            wanted = [self.now.get(k, {}).get(state, declaration.default) for k in self.ever]
            assert found == wanted, state
        keys.close()


class LongMachine(BackendMachine):
    key = "long"
    keys = st.one_of(
        st.none(), st.integers(0, 9), st.sampled_from([-(2**63), 2**63 - 1, -1, 2**32])
    )

    def numbered(self, i: int) -> Any:
        return i


class StringMachine(BackendMachine):
    key = "string"
    keys = st.one_of(
        st.none(), st.text(max_size=3), st.sampled_from(["", "a" * 12, "a" * 13, "ż" * 200, "\0"])
    )

    def numbered(self, i: int) -> Any:
        return f"{i:04d}" * (1 + i % 5)


class PairMachine(BackendMachine):
    key: ClassVar[Any] = {"a": "int", "b": "string"}
    keys = st.tuples(
        st.one_of(st.none(), st.integers(-3, 3)),
        st.one_of(st.none(), st.sampled_from(["", "x", "y" * 30])),
    )

    def numbered(self, i: int) -> Any:
        return (i if i % 7 else None, f"{i}")


class DoubleMachine(BackendMachine):
    key = "double"
    keys = st.one_of(
        st.none(), st.sampled_from([0.0, -0.0, 1.5, float("inf"), float("-inf"), 5e-324]),
        st.floats(allow_nan=False), st.just(float("nan")),
    )  # fmt: skip

    def numbered(self, i: int) -> Any:
        return i / 8


MACHINES = [LongMachine, StringMachine, PairMachine, DoubleMachine]


@pytest.mark.drawn
@pytest.mark.parametrize("machine", MACHINES)
def test_short(machine: type[BackendMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings_for(count(40), 50))


def run_long(machines: Sequence[Any]) -> None:
    """Every machine in turn with fresh seeds, until the time is over."""
    seconds = float(os.environ.get("PYSTATE_MODEL_SECONDS", "300"))
    number = int(os.environ.get("PYSTATE_MODEL_SEED") or time.time_ns() % 2**32)
    deadline = time.monotonic() + seconds
    runs = 0
    while time.monotonic() < deadline:
        machine = machines[runs % len(machines)]
        print(f"{machine.__name__} seed {number}", flush=True)
        run_state_machine_as_test(seed(number)(machine), settings=settings_for(50, 80))
        runs += 1
        number += 1
    print(f"{runs} runs, {sum(m.steps for m in machines)} steps compared", flush=True)


@pytest.mark.slow
def test_long() -> None:
    run_long(MACHINES)
