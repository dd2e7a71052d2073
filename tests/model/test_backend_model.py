"""Every kind of state against plain Python containers, with time, timers and namespaces.

``PYSTATE_MODEL_SECONDS=1800 pytest -m slow tests/model`` runs fresh seeds for that long and prints
each; ``PYSTATE_MODEL_SEED`` begins with a chosen one.
"""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
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
from tests import drawn
from tests.model.containers import Clock, Items, Kind, Row, Timers
from tests.model.kinds import Driver, Spec, plain
from tests.model.specs import FOLDS, KEYS, LISTS, MAPS, NAN, SPACES, TTLS, VALUES

MAX_PARALLELISM = 16
UNDO = 2
FOREVER = 2**63 - 1
MOST = 2**63 - 1
#: What a sealed epoch held.
World = tuple[dict[str, Any], Timers]


def settings_for(examples: int, steps: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        print_blob=True,
        database=DirectoryBasedExampleDatabase(Path(__file__).parent / "failures"),
        suppress_health_check=list(HealthCheck),
    )


class KindsMachine(RuleBasedStateMachine):
    """Subclasses say which states."""

    specs: ClassVar[dict[str, Spec]]
    ttls: ClassVar[st.SearchStrategy[Any]] = TTLS
    spaces_drawn: ClassVar[tuple[str, ...]] = tuple(SPACES)
    timed_drawn: ClassVar[tuple[bool, ...]] = (False, True)
    #: Whether all timers that are due are handed out at once, if so many are allowed.
    all_due: ClassVar[bool] = True
    #: Whether scans have the keys that have timers alone.
    scans_timers: ClassVar[bool] = True
    steps: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="pystate-model-"))
        self.clock = Clock()
        self.timers = Timers()
        self.drivers: dict[str, Driver] = {}
        self.current: Row | None = None
        self.swept = False
        self.batches: list[tuple[ps.KeyBatch, list[Row]]] = []
        self.stale: list[ps.KeyBatch] = []
        # A reader, the epoch it is of and what it must see; and those older than the last roll back
        # of a sealed epoch.
        self.readers: list[tuple[ps.SealedReader, ps.Lineage, dict[str, Any]]] = []
        self.cut_off: list[ps.SealedReader] = []

    # -- life

    @initialize(shared=st.booleans(), data=st.data())
    def start(self, shared: bool, data: st.DataObject) -> None:
        self.key, keys, self.numbered = KEYS[data.draw(st.sampled_from(list(KEYS)), label="key")]
        unique = st.lists(keys, min_size=3, max_size=8, unique_by=lambda k: NAN if k != k else k)
        self.keys = data.draw(unique, label="keys")
        space = data.draw(st.sampled_from(self.spaces_drawn), label="namespace")
        self.namespace, self.spaces = SPACES[space]
        self.timed = data.draw(st.sampled_from(self.timed_drawn), label="timers")
        self.rows: list[Row] = [(k, s) for k in self.keys for s in self.spaces]
        for name, spec in self.specs.items():
            self.drivers[name] = spec.driver(
                name, spec, data.draw(self.ttls, label=f"ttl of {name}"), self.clock
            )
        self.shared = shared
        self.backend = self.made(shared)
        self.sealed: list[tuple[ps.Lineage, World]] = [(EMPTY_LINEAGE, self.world())]
        self.files: list[Path] = []
        self.clock.processing = 1_000_000
        self.clock.tell(self.backend)

    def made(self, shared: bool, **options: Any) -> ps.KeyedStateBackend:
        if shared:
            options |= {"home": "shared", "path": self.folder / "t.table"}
        options.setdefault(
            "states", {name: driver.declaration for name, driver in self.drivers.items()}
        )
        return ps.KeyedStateBackend(
            self.key,
            max_parallelism=MAX_PARALLELISM,
            namespace=self.namespace,
            timers=self.timed,
            **options,
        )

    def teardown(self) -> None:
        if hasattr(self, "backend"):
            self.backend.close()
        shutil.rmtree(self.folder)

    @property
    def kinds(self) -> list[Kind]:
        return [driver.kind for driver in self.drivers.values()]

    def world(self) -> World:
        cells = {name: copy.deepcopy(d.kind.cells) for name, d in self.drivers.items()}
        return cells, self.timers.copy()

    def ended(self, world: World | None = None) -> None:
        """An epoch is over; with a world it was undone."""
        self.current = None
        self.swept = False
        self.stale = [batch for batch, _ in self.batches] + self.stale[:3]
        self.batches = []
        for name, driver in self.drivers.items():
            driver.kind.discard()
            if world is not None:
                driver.kind.cells = copy.deepcopy(world[0][name])
        if world is not None:
            self.timers = world[1].copy()

    @precondition(lambda self: self.shared)
    @rule(reopen=st.booleans())
    def detach(self, reopen: bool) -> None:
        """The open epoch is lost, all that was sealed is there."""
        if reopen:
            self.backend.close()
            self.backend = self.made(True)
            assert not self.backend.is_open
            self.backend.open()
            assert not self.backend.created
            self.clock.tell(self.backend)
        else:
            self.backend.detach()
            self.backend.attach()
        self.readers.clear()
        self.cut_off.clear()
        self.ended(self.sealed[-1][1])
        if reopen:
            self.stale.clear()

    # -- time

    @rule(
        processing=st.sampled_from([0, 1, 30, 40, 101, 700, 7000]),
        watermark=st.sampled_from([None, 0, 1, 30, 40, 101, 700, 7000]),
        event=st.sampled_from([None, -50, 0, 39, 200, 5000]),
    )
    def move(self, processing: int, watermark: int | None, event: int | None) -> None:
        """Time goes on; each row has an event time of its own, before or after the watermark."""
        for kind in self.kinds:
            kind.flush()
        clock = self.clock
        assert clock.processing is not None
        clock.processing += processing
        if watermark is not None:
            clock.watermark = (clock.watermark or 1_000_000) + watermark
        base = clock.watermark or 1_000_000
        clock.event = None if event is None else base + event
        clock.tell(self.backend)

    @rule()
    def expire(self) -> None:
        self.backend.expire()
        self.sweep()
        # Once for each epoch that has something to seal.
        self.swept = self.backend.dirty

    def sweep(self) -> None:
        if any(kind.ttl for kind in self.kinds) and not self.swept:
            self.swept = True
            for kind in self.kinds:
                kind.flush()
            for kind in self.kinds:
                kind.sweep()

    # -- writing

    @rule(data=st.data())
    def select(self, data: st.DataObject) -> None:
        self.current = data.draw(st.sampled_from(self.rows), label="row")
        self.backend.set_current_key(self.current[0])
        if self.namespace is not None:
            self.backend.set_current_namespace(self.current[1])

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def select_in_batch(self, data: st.DataObject) -> None:
        batch, rows = data.draw(st.sampled_from(self.batches), label="batch")
        if rows:
            i = data.draw(st.integers(0, len(rows) - 1), label="row")
            batch.select(i)
            self.current = rows[i]

    @precondition(lambda self: self.current is None)
    @rule(data=st.data())
    def use_no_key(self, data: st.DataObject) -> None:
        handle: Any = self.backend[self.some(data).name]
        with pytest.raises(NoCurrentKeyError):
            (handle.value if isinstance(handle, ps.ValueHandle) else handle.clear)()

    def some(self, data: st.DataObject) -> Driver:
        return self.drivers[data.draw(st.sampled_from(list(self.drivers)), label="state")]

    def need_row(self, data: st.DataObject) -> Row:
        if self.current is None:
            self.select(data)
        assert self.current is not None
        return self.current

    @rule(data=st.data())
    def scalar(self, data: st.DataObject) -> None:
        row = self.need_row(data)
        for _ in range(data.draw(st.integers(1, 4), label="times")):
            driver = self.some(data)
            driver.scalar(data, self.backend[driver.name], row)

    @rule(data=st.data())
    def vector(self, data: st.DataObject) -> None:
        batch, rows = self.draw_batch(data)
        for _ in range(data.draw(st.integers(1, 3), label="times")):
            driver = self.some(data)
            driver.vector(data, self.backend[driver.name], batch, rows)

    def draw_batch(self, data: st.DataObject) -> tuple[ps.KeyBatch, list[Row]]:
        if self.batches and data.draw(st.booleans(), label="an older batch"):
            return data.draw(st.sampled_from(self.batches), label="batch")
        rows = data.draw(st.lists(st.sampled_from(self.rows), max_size=8), label="rows")
        self.batches.append((self.batch(self.backend, rows), rows))
        return self.batches[-1]

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def use_stale(self, data: st.DataObject) -> None:
        batch = data.draw(st.sampled_from(self.stale), label="batch")
        with pytest.raises(StaleKeyBatchError):
            self.backend[self.some(data).name].clear_all(batch)
        with pytest.raises(StaleKeyBatchError):
            self.backend.delete(batch)

    def batch(self, backend: ps.KeyedStateBackend, rows: list[Row]) -> ps.KeyBatch:
        # Either zero is the same key.
        zeros = (0.0, -0.0)
        keys: Any = [
            zeros[i % 2] if isinstance(key, float) and key == 0 else key
            for i, (key, _) in enumerate(rows)
        ]
        if not isinstance(self.key, str):
            keys = [list(column) for column in zip(*keys, strict=True)] or [[], []]
        spaces = None if self.namespace is None else [space for _, space in rows]
        return backend.keys(keys, spaces)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        rows = data.draw(st.lists(st.sampled_from(self.rows), max_size=3), label="rows")
        self.backend.delete(self.batch(self.backend, rows))
        for kind in self.kinds:
            for row in rows:
                kind.clear(row)

    @precondition(lambda self: self.namespace is not None)
    @rule(data=st.data())
    def merge_namespaces(self, data: st.DataObject) -> None:
        merging = [d for d in self.drivers.values() if d.merges]
        if not merging:
            return
        key, _ = self.need_row(data)
        driver = data.draw(st.sampled_from(merging), label="state")
        sources = data.draw(st.lists(st.sampled_from(self.spaces), max_size=3), label="sources")
        target = data.draw(st.sampled_from(self.spaces), label="target")
        driver.merge(self.backend[driver.name], (key, target), [(key, s) for s in sources])
        assert self.current is not None
        assert self.backend.current_namespace == self.current[1]

    # -- timers

    @precondition(lambda self: self.timed)
    @rule(
        data=st.data(),
        domain=st.sampled_from(Timers.domains),
        at=st.integers(-2, 8),
        do=st.sampled_from(["register", "register", "delete"]),
    )
    def timer(self, data: st.DataObject, domain: Any, at: int, do: str) -> None:
        row = self.need_row(data)
        getattr(self.backend, f"{do}_timer")(domain, at)
        waiting = self.timers.waiting[domain]
        (waiting.add if do == "register" else waiting.discard)((at, row))

    @precondition(lambda self: self.timed)
    @rule(
        data=st.data(),
        domain=st.sampled_from(Timers.domains),
        do=st.sampled_from(["register", "delete"]),
    )
    def timers_of_many(self, data: st.DataObject, domain: Any, do: str) -> None:
        rows = data.draw(st.lists(st.sampled_from(self.rows), max_size=8), label="rows")
        times = st.one_of(st.none(), st.integers(-2, 8), st.sampled_from([-(2**63), FOREVER]))
        at = data.draw(st.lists(times, min_size=len(rows), max_size=len(rows)), label="times")
        getattr(self.backend, f"{do}_timers")(self.batch(self.backend, rows), domain, at)
        waiting = self.timers.waiting[domain]
        for row, moment in zip(rows, at, strict=True):
            if moment is not None:
                (waiting.add if do == "register" else waiting.discard)((moment, row))

    @precondition(lambda self: self.timed)
    @rule(
        domain=st.sampled_from(Timers.domains),
        until=st.one_of(st.integers(-2, 8), st.just(FOREVER)),
        most=st.sampled_from([1, 3, 100]),
        whole=st.booleans(),
    )
    def fire(self, domain: Any, until: int, most: int, whole: bool) -> None:
        waiting = self.timers.waiting[domain]
        due = self.backend.due_timers(domain, until, most)
        wanted = {timer for timer in waiting if timer[0] <= until}
        if due is None:
            assert not wanted
            return
        found = self.timers_of(due)
        least = min(most, len(wanted)) if self.all_due else 1
        assert least <= len(found) == len(set(found)) <= most and set(found) <= wanted
        for row in {row for _, row in found}:
            times = [at for at, other in found if other == row]
            rest = [at for at, other in wanted if other == row and at not in times]
            assert times == sorted(times) and all(times[-1] < at for at in rest)
        if whole:
            due.fire_all()
        else:
            for i, (_, row) in enumerate(found):
                assert due.fire(i) and not due.fire(i)
                self.current = row
        waiting -= set(found)

    def timers_of(self, due: Any) -> list[tuple[int, Row]]:
        keys = map(normal, due.keys.to_pylist())
        spaces = [due.keys.namespace_at(i) for i in range(len(due.keys))]
        return list(zip(due.timestamps.tolist(), zip(keys, spaces, strict=True), strict=True))

    # -- epochs

    @rule()
    def seal(self) -> None:
        for kind in self.kinds:
            kind.flush()
        self.sweep()
        before = self.backend.lineage()
        assert before is not None
        lineage = ps.Lineage(uuid.uuid4().bytes, before.id, before.epoch + 1, 7)
        path = self.folder / f"{lineage.epoch}-{lineage.id.hex()}.delta"
        with self.backend.seal(lineage) as snapshot, open(path, "wb") as out:
            snapshot.write(out)
        self.files.append(path)
        self.sealed.append((lineage, self.world()))
        self.ended()
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

    @rule(back=st.integers(0, UNDO + 1))
    def rollback(self, back: int) -> None:
        if back > self.window():
            with pytest.raises(LineageError):
                self.backend.rollback(back)
            return
        self.backend.rollback(back)
        for _ in range(back):
            self.sealed.pop()
            self.files.pop()
        if back:
            self.cut_off += [reader for reader, _, _ in self.readers]
            self.readers.clear()
        self.ended(self.sealed[-1][1])
        assert self.backend.lineage() == self.sealed[-1][0]
        assert not self.backend.dirty

    # -- files

    @precondition(lambda self: self.files)
    @rule(bounds=st.lists(st.integers(0, MAX_PARALLELISM - 1), min_size=2, max_size=2))
    def restore(self, bounds: list[int]) -> None:
        """The deltas give back the last sealed epoch, or a range of it."""
        self.restored(self.files, (min(bounds), max(bounds)))

    @precondition(lambda self: self.files)
    @rule(first=st.integers(0, 5), count=st.integers(1, 5), kind=st.sampled_from(["base", "delta"]))
    def merge(self, first: int, count: int, kind: str) -> None:
        """Neighbouring files as one give the same; the oldest ones also as a base."""
        first = 0 if kind == "base" else first % len(self.files)
        some, rest = self.files[first : first + count], self.files[first + count :]
        path = self.folder / f"{uuid.uuid4().hex}.{kind}"
        with open(path, "wb") as out:
            info = ps.merge_files(some, out, kind=kind)
        assert ps.verify_file(path, info) == info and info.kind == kind
        self.restored([*self.files[:first], path, *rest])

    def restored(
        self, files: list[Path], bounds: tuple[int, int] = (0, MAX_PARALLELISM - 1)
    ) -> None:
        lineage, (cells, timers) = self.sealed[-1]
        rows = self.within(bounds, cells)
        with self.made(False, key_group_range=bounds) as other:
            other.restore(files)
            assert other.lineage() == lineage
            self.clock.tell(other)
            kinds = []
            for name, driver in self.drivers.items():
                here = {row: cell for row, cell in cells[name].items() if row in rows}
                kinds.append(driver.kind.clone(here, driver.kind.ttl))
            self.compare(other, kinds, self.timers_within(timers, rows), rows)

    @contextmanager
    def later(self, milliseconds: int) -> Iterator[None]:
        """The clock has moved within the block."""
        processing, watermark = self.clock.processing, self.clock.watermark
        assert processing is not None
        self.clock.processing = processing + milliseconds
        self.clock.watermark = None if watermark is None else watermark + milliseconds
        try:
            yield
        finally:
            self.clock.processing, self.clock.watermark = processing, watermark

    @precondition(lambda self: self.files)
    @rule(data=st.data(), later=st.sampled_from([39, 40, 640]))
    def restore_with_other_times(self, data: st.DataObject, later: int) -> None:
        """Times to live are switched on, off and changed."""
        declarations: dict[str, ps.State] = {}
        kinds: list[Kind] = []
        cells, timers = self.stored()
        for name, driver in self.drivers.items():
            ttl = data.draw(TTLS, label=f"ttl of {name}")
            declarations[name] = driver.spec.make(ttl)
            kinds.append(driver.kind.clone(cells[name], ttl))
        with self.made(False, states=declarations) as other:
            self.clock.tell(other)
            other.restore(self.files)
            for kind, driver in zip(kinds, self.drivers.values(), strict=True):
                if driver.kind.ttl is None:
                    kind.retimed()
            self.compare(other, kinds, timers, self.rows)
            other.expire()
            for kind in kinds:
                kind.flush()
                kind.sweep()
            self.compare(other, kinds, timers, self.rows)
            for kind in kinds:
                kind.flush()
            with self.later(later):
                self.clock.tell(other)
                self.compare(other, kinds, timers, self.rows)

    def stored(self) -> World:
        """The last sealed epoch as it is in the files, which nobody hides without a clock."""
        cells, timers = copy.deepcopy(self.sealed[-1][1])
        with self.made(False) as other:
            other.restore(self.files)
            keys = self.batch(other, self.rows)
            for name, driver in self.drivers.items():
                if isinstance(driver.kind, Items):
                    kind = driver.kind.clone(cells[name], driver.kind.ttl)
                    assert isinstance(kind, Items)
                    for row, found in zip(self.rows, plain(other[name].lists(keys)), strict=True):
                        kind.trim(row, len(found))
                    cells[name] = kind.cells
        return cells, timers

    def within(self, bounds: tuple[int, int], cells: dict[str, Any]) -> list[Row]:
        """The rows of some key groups: those that are drawn from, and what else there is."""
        rows = list(dict.fromkeys([*self.rows, *(row for some in cells.values() for row in some)]))
        keys = [key for key, _ in rows]
        columns = [keys] if isinstance(self.key, str) else list(zip(*keys, strict=True))
        arrays = [pa.array(c, t.arrow) for c, (_, t) in zip(columns, self.backend.key, strict=True)]
        groups = key_groups(ps.hash_keys(arrays), MAX_PARALLELISM)
        return [row for row, g in zip(rows, groups, strict=True) if bounds[0] <= g <= bounds[1]]

    def timers_within(self, timers: Timers, rows: list[Row]) -> Timers:
        part = timers.copy()
        for found in part.waiting.values():
            found -= {timer for timer in found if timer[1] not in rows}
        return part

    # -- equality

    def compare(
        self, backend: ps.KeyedStateBackend, kinds: list[Kind], timers: Timers, rows: list[Row]
    ) -> None:
        with closing(self.batch(backend, rows)) as keys:
            for kind, driver in zip(kinds, self.drivers.values(), strict=True):
                driver.check(kind, backend[kind.name], keys, rows)
        if self.timed:
            self.compare_timers(backend, timers)

    def compare_timers(self, backend: ps.KeyedStateBackend, timers: Timers) -> None:
        for domain in Timers.domains:
            due = backend.due_timers(domain, FOREVER, 1000)
            found = [] if due is None else self.timers_of(due)
            assert len(found) == len(set(found)) and set(found) == timers.waiting[domain]
            assert backend.next_timer(domain) == timers.earliest(domain)

    @rule()
    def scan(self) -> None:
        """All rows as a table; those that hold nothing visible may be there or not."""
        for kind in self.kinds:
            kind.flush()
        found = self.columns_agree(self.backend.to_arrow(), self.kinds)
        seen = {row for row in self.rows if any(kind.is_visible(row) for kind in self.kinds)}
        there = {row for kind in self.kinds for row in kind.cells} | self.timers.rows()
        assert seen | (self.timers.rows() if self.scans_timers else set()) <= found <= there
        assert len(self.backend) == len(found)
        assert {normal(key) for key in self.backend} >= {key for key, _ in found}

    def columns_agree(self, table: pa.Table, kinds: Iterable[Kind]) -> set[Row]:
        """Compare a table's columns; returns its rows."""
        n_keys = len(self.backend.key)
        found: set[Row] = set()
        for values in zip(*(column.to_pylist() for column in table.columns), strict=True):
            key = normal(values[0]) if n_keys == 1 else values[:n_keys]
            row = (key, None if self.namespace is None else values[n_keys])
            assert row not in found
            found.add(row)
            stored = values[len(values) - len(self.drivers) :]
            for driver, kind, value in zip(self.drivers.values(), kinds, stored, strict=True):
                driver.column(kind, row, value)
        return found

    @invariant()
    def equal(self) -> None:
        type(self).steps += 1
        if hasattr(self, "sealed"):
            self.compare(self.backend, self.kinds, self.timers, self.rows)


def normal(key: Any) -> Any:
    """A key that is no number is equal to itself where it is the same object."""
    return NAN if key != key else key


class ValuesMachine(KindsMachine):
    specs = VALUES


class ListsMachine(KindsMachine):
    specs = LISTS


class MapsMachine(KindsMachine):
    specs = MAPS


class FoldsMachine(KindsMachine):
    specs = FOLDS


class MixedMachine(KindsMachine):
    """Kinds side by side in one row."""

    specs: ClassVar[dict[str, Spec]] = {
        name: {**VALUES, **LISTS, **MAPS, **FOLDS}[name]
        for name in ("n", "any", "longs", "texts", "counts", "bag", "total", "mean", "own")
    }


class TableMachine(KindsMachine):
    """What a table has whatever its states are: readers, many keys, and poison."""

    specs: ClassVar[dict[str, Spec]] = {name: VALUES[name] for name in ("n", "five", "text", "any")}
    ttls = st.none()
    spaces_drawn = ("none",)
    timed_drawn = (False,)

    @rule(start=st.integers(0, 20), count=st.sampled_from([300, 3000]), drop=st.booleans())
    def grow(self, start: int, count: int, drop: bool) -> None:
        """Many keys at once: the index and the rows grow, or empty out again."""
        rows = [(self.numbered(i), None) for i in range(start * 100, start * 100 + count)]
        with closing(self.batch(self.backend, rows)) as batch:
            if drop:
                self.backend.delete(batch)
            else:
                self.backend["n"].update_all(batch, np.arange(count))
        n: Any = self.drivers["n"].kind
        for i, row in enumerate(rows):
            for kind in self.kinds if drop else ():
                kind.clear(row)
            if not drop:
                n.write(row, i)

    @rule(data=st.data())
    def overflow(self, data: st.DataObject) -> None:
        batch, rows = self.draw_batch(data)
        if not rows:
            return
        self.backend["n"].update_all(batch, MOST)
        with pytest.raises(StateOverflowError):
            self.backend["n"].add(batch, 1)
        with pytest.raises(PoisonedError):
            self.backend.seal()
        self.backend.rollback()
        self.ended(self.sealed[-1][1])

    @rule()
    def changed(self) -> None:
        """The touched keys are a part of the keys, and cover what differs from the sealed epoch."""
        for kind in self.kinds:
            kind.flush()
        found: set[Any] = set()
        n: Any = self.drivers["n"].kind
        for batch in self.backend.changed(max_rows=100):
            keys = [normal(key) for key in batch.to_pylist()]
            assert not found & set(keys) and len(keys) == len(set(keys))
            found |= set(keys)
            values = self.backend["n"].values(batch).to_pylist()
            assert values == n.read_all([(key, None) for key in keys])
        now, before = self.values(self.world()[0]), self.values(self.sealed[-1][1][0])
        assert found <= {key for key, _ in now}
        assert found >= {row[0] for row, values in now.items() if before.get(row) != values}

    def values(self, cells: dict[str, Any]) -> dict[Row, dict[str, Any]]:
        """What there is, by row."""
        found: dict[Row, dict[str, Any]] = {}
        for name, some in cells.items():
            for row, (value, _) in some.items():
                found.setdefault(row, {})[name] = value
        return found

    def new_reader(self) -> Any:
        return self.backend.reader()

    @rule()
    def open_reader(self) -> None:
        lineage, (cells, _) = self.sealed[-1]
        reader = self.new_reader()
        assert reader.lineage == lineage
        self.readers.append((reader, lineage, cells))
        for old, _, _ in self.readers[:-4]:
            old.close()
        self.readers = self.readers[-4:]

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def use_reader(self, data: st.DataObject) -> None:
        reader, lineage, cells = data.draw(st.sampled_from(self.readers), label="reader")
        row = data.draw(st.sampled_from(self.rows), label="row")
        if lineage.id not in [found.id for found, _ in self.sealed[-1 - UNDO :]]:
            with pytest.raises(SnapshotTooOldError):
                reader.get(row[0])
            return
        kinds = [d.kind.clone(cells[name], None) for name, d in self.drivers.items()]
        there = self.values(cells)
        assert self.columns_agree(reader.to_arrow(), kinds) == there.keys()
        wanted = None if row not in there else {kind.name: kind.read(row) for kind in kinds}
        assert reader.get(row[0]) == wanted

    @precondition(lambda self: self.cut_off)
    @rule()
    def use_reader_that_is_cut_off(self) -> None:
        for reader in self.cut_off:
            with pytest.raises(SnapshotTooOldError):
                reader.get(self.keys[0])
            reader.close()
        self.cut_off.clear()


MACHINES = [ValuesMachine, ListsMachine, MapsMachine, FoldsMachine, MixedMachine, TableMachine]


@pytest.mark.drawn
@pytest.mark.parametrize("machine", MACHINES)
def test_short(machine: type[KindsMachine]) -> None:
    most, steps = (75, 50) if machine is TableMachine else (45, 30)
    run_state_machine_as_test(machine, settings=settings_for(drawn.count(most), steps))


@pytest.mark.slow
def test_long() -> None:
    """Every machine in turn with fresh seeds, until the time is over."""
    seconds = float(os.environ.get("PYSTATE_MODEL_SECONDS", "300"))
    number = int(os.environ.get("PYSTATE_MODEL_SEED") or time.time_ns() % 2**32)
    deadline = time.monotonic() + seconds
    runs = 0
    while time.monotonic() < deadline:
        machine = MACHINES[runs % len(MACHINES)]
        print(f"{machine.__name__} seed {number}", flush=True)
        run_state_machine_as_test(seed(number)(machine), settings=settings_for(50, 80))
        runs += 1
        number += 1
    print(f"{runs} runs, {sum(m.steps for m in MACHINES)} steps compared", flush=True)
