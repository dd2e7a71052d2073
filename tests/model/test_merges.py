"""Epochs over all kinds of state while parallelism changes and bases merge, against a dict."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.attach import TableCache, TableSpec
from pystate.coordinator import Coordinator
from pystate.declarations import State
from pystate.epoch import Epoch, RangeReport
from pystate.host import TableHome
from pystate.maintenance import MergePolicy
from pystate.manifest import FileRef, Manifest, RangeState, state_path
from pystate.storage import LocalStorage

KEY = (("k", "bigint"),)
KEYS = 24
GROUPS = [ps.backend.key_group(int(h), 128) for h in ps.hash_keys([pa.array(range(KEYS))])]
ALL: dict[str, State] = {
    "v": ps.ValueState("long"),
    "l": ps.ListState("long"),
    "m": ps.MapState("string", "long"),
}
#: What one row does: the key, what to do, and a number to do it with.
Row = tuple[int, str, int]
#: A key's states by name, absent ones left out, and its timers.
Model = dict[int, dict[str, Any]]


class Operator:
    """An operator's tasks, each on a table restored from files, as a job would run them."""

    def __init__(self, storage: LocalStorage, states: Mapping[str, State] = ALL) -> None:
        self.storage = storage
        self.states = states

    def coordinator(self, parallelism: int, **options: Any) -> Coordinator:
        policy = MergePolicy(min_deltas=3, max_deltas=5, keep_deltas=1)
        options = {"retained": 1, "orphan_grace_ms": 0, "merge_policy": policy, **options}
        return Coordinator(self.storage, job="model", parallelism=parallelism, **options)

    def evaluate(self, epoch: Epoch, rows: Sequence[Row]) -> tuple[()]:
        stored = tuple((name, state.stored_as()) for name, state in self.states.items())
        for state in epoch.declare("op", key_schema=KEY, state_schema=stored):
            epoch.report(self.report(epoch, state, [r for r in rows if holds(state, r[0])]))
        return ()

    def report(self, epoch: Epoch, state: RangeState, rows: Sequence[Row]) -> RangeReport:
        ref, evaluation = None, epoch.evaluation_id
        if rows:
            with self.attached(state) as backend:
                for row in rows:
                    self.apply(backend, row)
                ref = self.sealed(backend, state, epoch.number) if backend.dirty else None
        return RangeReport(
            "op", state.index, evaluation, state.id if ref is None else ref.id, state.id, ref
        )

    def sealed(self, backend: ps.KeyedStateBackend, state: RangeState, epoch: int) -> FileRef:
        lineage = ps.Lineage(uuid.uuid4().bytes, bytes.fromhex(state.id), epoch)
        bounds = state.first_key_group, state.last_key_group
        path = state_path("op", *bounds, epoch, lineage.id.hex(), "delta")
        with backend.seal(lineage) as snapshot, self.storage.create(path) as out:
            info = snapshot.write(out)
        return FileRef.from_info(path, info)

    @contextmanager
    def attached(self, state: RangeState) -> Iterator[ps.KeyedStateBackend]:
        spec = TableSpec(
            self.storage, TableHome(None, None), "op", KEY, self.states, 128, timers=True
        )
        cache = TableCache()
        with cache.attach(spec, state) as attachment:
            yield attachment.backend
        cache.close()

    def apply(self, backend: ps.KeyedStateBackend, row: Row) -> None:
        key, what, number = row
        backend.set_current_key(key)
        if what == "put":
            for name in self.states:
                put(backend[name], number)
            backend.register_timer("event", number)
        elif what == "delete":
            for name in self.states:
                backend[name].clear()
        else:
            if "m" in self.states:
                backend["m"].remove(str(number % 3))
            backend.delete_timer("event", number)

    def read(self, manifest: Manifest) -> Model:
        """The state by the manifest's files alone."""
        found: Model = {}
        [operator] = manifest.operators
        for state in operator.ranges:
            with self.attached(state) as backend:
                for key in [k for k in range(KEYS) if holds(state, k)]:
                    backend.set_current_key(key)
                    row = {name: plain(backend[name]) for name in self.states}
                    found[key] = {name: value for name, value in row.items() if value}
                due = backend.due_timers("event", 1 << 40)
                for i, key in enumerate(due.keys.to_pylist() if due else ()):
                    found[key].setdefault("timers", set()).add(int(due.timestamps[i]))
        return {key: row for key, row in found.items() if row}


def put(handle: Any, number: int) -> None:
    if hasattr(handle, "put"):
        handle.put(str(number % 3), number)
    elif hasattr(handle, "value"):
        handle.update(number)
    else:
        handle.add(number)


def plain(handle: Any) -> Any:
    if hasattr(handle, "value"):
        return handle.value()
    return dict(handle.items()) if hasattr(handle, "items") else list(handle.get())


def holds(state: RangeState, key: int) -> bool:
    return state.first_key_group <= GROUPS[key] <= state.last_key_group


def follow(model: Model, rows: Sequence[Row], states: Mapping[str, State] = ALL) -> None:
    """Do to the model what `Operator.apply` does to a table."""
    for key, what, number in rows:
        row = model.setdefault(key, {})
        if what == "put":
            if "v" in states:
                row["v"] = number
            if "l" in states:
                row.setdefault("l", []).append(number)
            if "m" in states:
                row.setdefault("m", {})[str(number % 3)] = number
            row.setdefault("timers", set()).add(number)
        elif what == "delete":
            for name in states:
                row.pop(name, None)
        else:
            if "m" in states:
                row.get("m", {}).pop(str(number % 3), None)
            row.get("timers", set()).discard(number)
        for name in [name for name, value in row.items() if not value]:
            del row[name]
        if not row:
            del model[key]


def some_rows(rng: random.Random, epoch: int) -> list[Row]:
    """Keys of one corner at a time, so that ranges are idle now and then."""
    keys = rng.sample(range(KEYS), rng.choice((0, 1, 4, 12)))
    return [
        (key, rng.choice(("put", "put", "put", "delete", "take")), rng.randrange(1, 6 + epoch))
        for key in keys
        for _ in range(rng.choice((1, 1, 3)))
    ]


def run(coordinator: Coordinator, operator: Operator, rows: Sequence[Row]) -> Manifest:
    """One epoch, and the merges that it asks for."""
    coordinator.run(lambda epoch: operator.evaluate(epoch, rows))
    coordinator.maintain()
    assert coordinator.head is not None
    return coordinator.head


def test_deletions_of_a_former_range_outlive_merges(tmp_path: Path) -> None:
    operator = Operator(LocalStorage(tmp_path))
    with operator.coordinator(2) as coordinator:
        run(coordinator, operator, [(key, "put", key) for key in range(20)])
        run(coordinator, operator, [(key, "put", key + 1) for key in range(20)])
        run(coordinator, operator, [(key, "delete", 0) for key in range(20)])
    timers = {key: {"timers": {key, key + 1}} for key in range(20)}
    policy = MergePolicy(min_deltas=3, max_deltas=5, keep_deltas=2)
    with operator.coordinator(1, merge_policy=policy) as coordinator:
        bases = set()
        for number in range(6):
            head = run(coordinator, operator, [(23, "put", number)])
            assert {key: row for key, row in operator.read(head).items() if key < 20} == timers
            bases.add(head.operators[0].ranges[0].base)
    # The first ended among the files of a former range.
    assert len(bases - {None}) > 1


@pytest.mark.parametrize("seed", range(4))
def test_merges_under_changing_parallelism(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    operator = Operator(LocalStorage(tmp_path))
    model: Model = {}
    coordinator = operator.coordinator(2)
    merged = mixed = 0
    for epoch in range(30):
        if epoch and rng.random() < 0.3:
            coordinator.close()
            coordinator = operator.coordinator(rng.choice((1, 2, 3, 5, 7)))
        rows = some_rows(rng, epoch)
        head = run(coordinator, operator, rows)
        follow(model, rows)
        assert operator.read(head) == model, f"epoch {epoch + 1}"
        for state in head.operators[0].ranges:
            merged += state.base is not None
            mixed += len({(f.first_key_group, f.last_key_group) for f in state.files}) > 1
    coordinator.close()
    assert merged and mixed
