"""The machines of `test_backend_model` with rows on disk: at any time all of them may leave memory.

So nearly every access brings rows back out of files, of epochs and of steps within them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from contextlib import closing
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

import pystate as ps
from pystate.errors import (
    InvalidArgumentError,
    LineageError,
    PoisonedError,
    StateOverflowError,
)
from pystate.tables.below import FileBelow
from tests import drawn
from tests.model.containers import Row, Timers
from tests.model.kinds import Spec
from tests.model.specs import LISTS, MAPS, VALUES
from tests.model.test_backend_model import (
    FOREVER,
    MAX_PARALLELISM,
    MOST,
    FoldsMachine,
    KindsMachine,
    ListsMachine,
    MapsMachine,
    MixedMachine,
    TableMachine,
    ValuesMachine,
    settings_for,
)

DOMAINS = Timers.domains


class OnDisk(KindsMachine):
    """A backend on disk, whose deltas are below it as soon as they are written."""

    all_due = False
    scans_timers = False
    #: With a limit steps come in the middle of operations, where a model knows no sweep.
    limits: ClassVar[tuple[int, ...]] = (0,)
    left: ClassVar[int] = 0
    fetched: ClassVar[int] = 0
    steps_made: ClassVar[int] = 0

    @initialize(shared=st.just(False), data=st.data())
    def start(self, shared: bool, data: st.DataObject) -> None:
        self.step_files: list[Any] = []
        self.limit_bytes = data.draw(st.sampled_from(self.limits), label="limit")
        super().start(shared, data)
        self.backend.below.step_by(self.write_step)

    def made(self, shared: bool, **options: Any) -> ps.KeyedStateBackend:
        if not hasattr(self, "backend"):  # others are asked for all rows at once
            options.setdefault("limit_bytes", self.limit_bytes)
        return super().made(False, home="disk", path=self.folder, **options)

    def files_below(self) -> list[FileBelow]:
        files = [*self.files, *self.step_files]
        return [FileBelow(str(path), 0, MAX_PARALLELISM - 1) for path in files]

    def write_step(self) -> None:
        before = self.backend.lineage()
        assert before is not None
        lineage = ps.Lineage(uuid.uuid4().bytes, before.id, before.epoch + 1, 7)
        path = self.folder / f"step-{lineage.id.hex()}.delta"
        with self.backend.below.seal_step(lineage) as snapshot, open(path, "wb") as out:
            snapshot.write(out)
        self.step_files.append(path)
        type(self).steps_made += 1
        self.backend.below.set_files(self.files_below(), all_known=lineage.id[0] % 2 > 0)

    def compare_timers(self, backend: ps.KeyedStateBackend, timers: Timers) -> None:
        """Who is due is only known when the ones before were fired, and their rows were fetched."""
        for domain in Timers.domains:
            earliest, named = timers.earliest(domain), backend.next_timer(domain)
            assert earliest is None or (named is not None and named <= earliest)
            if backend is not self.backend:
                self.fire_all(backend, domain, FOREVER, timers.waiting[domain], 3)
                self.register(backend, domain, timers.waiting[domain])

    def fire_all(
        self,
        backend: ps.KeyedStateBackend,
        domain: Any,
        until: int,
        waiting: set[tuple[int, Row]],
        most: int,
    ) -> None:
        """Fire all that are due; each comes once, those of a row in order."""
        last: dict[Row, int] = {}
        found: list[tuple[int, Row]] = []
        if self.limit_bytes:  # few at a time are a step, and so a file, each time
            most = max(most, 40)
        while (due := backend.due_timers(domain, until, most)) is not None:
            some = self.timers_of(due)
            assert 0 < len(some) <= most
            for at, row in some:
                assert row not in last or last[row] < at
                last[row] = at
            found += some
            due.fire_all()
        assert len(found) == len(set(found))
        assert set(found) == {timer for timer in waiting if timer[0] <= until}

    def register(
        self, backend: ps.KeyedStateBackend, domain: Any, timers: Iterable[tuple[int, Row]]
    ) -> None:
        given = list(timers)
        for at in range(0, len(given), 20):  # in batches that fit in memory
            some = given[at : at + 20]
            with closing(self.batch(backend, [row for _, row in some])) as batch:
                backend.register_timers(batch, domain, [time for time, _ in some])

    @precondition(lambda self: self.timed)
    @rule(
        domain=st.sampled_from(Timers.domains),
        until=st.one_of(st.integers(-2, 8), st.sampled_from([FOREVER - 1, FOREVER])),
        most=st.sampled_from([1, 3, 100]),
        again=st.booleans(),
    )
    def drain(self, domain: Any, until: int, most: int, again: bool) -> None:
        waiting = self.timers.waiting[domain]
        due = {timer for timer in waiting if timer[0] <= until}
        self.fire_all(self.backend, domain, until, waiting, most)
        if again:
            self.register(self.backend, domain, due)
        else:
            waiting -= due

    @precondition(lambda self: self.timed)
    @rule(
        domain=st.sampled_from(Timers.domains),
        until=st.integers(-2, 8),
        fully=st.booleans(),
        whole=st.booleans(),
    )
    def fire_when_rows_left(self, domain: Any, until: int, fully: bool, whole: bool) -> None:
        """What was found due stays so, but whether the order holds is no more known."""
        due = self.backend.due_timers(domain, until, 100)
        if due is None:
            return
        found = self.timers_of(due)
        epochs = self.backend._table.epochs
        self.leave(10_000, fully)
        assert due.stale or self.backend._table.epochs == epochs
        waiting = self.timers.waiting[domain]
        with closing(self.batch(self.backend, [found[0][1]])) as batch:
            self.backend.delete_timers(batch, domain, found[0][0])
        if whole:
            due.fire_all()
        else:
            assert not due.fire(0)
            for i in range(1, len(found)):
                assert due.fire(i) and not due.fire(i)
                self.current = found[i][1]
        waiting -= set(found)

    def rows_here(self) -> int:
        return self.backend.stats().keys

    @rule(rows=st.sampled_from([1, 3, 10_000]), fully=st.booleans())
    def leave(self, rows: int, fully: bool) -> None:
        """What changed becomes a step, and rows leave; the epoch goes on, and its batches do."""
        for kind in self.kinds:
            kind.flush()
        if self.backend.dirty:
            self.sweep()
        dirty, before = self.backend.dirty, self.rows_here()
        if self.backend.below._make_room(rows, fully) and dirty:
            self.swept = False
        self.backend.clear_current_key()
        self.current = None
        for kind in self.kinds:
            kind.discard()
        assert not self.backend.dirty
        type(self).left += before - self.rows_here()
        self.count_fetched()

    def count_fetched(self) -> None:
        """Note how many keys were looked for in the files since they were set last."""
        stats = self.backend._table.stack_stats()
        type(self).fetched += 0 if stats is None else stats[0]

    def teardown(self) -> None:
        """In the end all rows leave, and come back."""
        if hasattr(self, "sealed") and self.backend.is_open:
            self.count_fetched()
            self.leave(10_000, True)
            self.equal()
            for domain in Timers.domains if self.timed else ():
                self.drain(domain, FOREVER, 3, True)
            self.count_fetched()
        super().teardown()

    @rule()
    def seal(self) -> None:
        self.backend.stats()  # objects are written, in steps if there is no room
        self.count_fetched()
        super().seal()
        self.files[-1:-1] = self.step_files
        self.step_files.clear()
        # The deltas have only rows that the table has had: whether it is told so changes nothing.
        self.backend.below.set_files(self.files_below(), all_known=len(self.files) % 3 > 0)
        before = self.rows_here()
        if len(self.files) % 4 > 1:
            self.backend.below._make_room(10_000, len(self.files) % 2 > 0)
        type(self).left += before - self.rows_here()

    @rule(back=st.integers(0, 3))
    def rollback(self, back: int) -> None:
        if back:
            with pytest.raises(LineageError):
                self.backend.rollback(3)
            return
        if self.step_files:
            self.step_files.clear()
            lineage, files = self.sealed[-1][0], self.files_below()
            self.backend.below.reset(lineage if files else None, files)
        else:
            self.backend.rollback()
        self.ended(self.sealed[-1][1])
        assert not self.backend.dirty


class DiskValues(OnDisk, ValuesMachine): ...


class DiskLists(OnDisk, ListsMachine): ...


class DiskMaps(OnDisk, MapsMachine): ...


class DiskFolds(OnDisk, FoldsMachine): ...


class DiskMixed(OnDisk, MixedMachine): ...


class DiskTimers(OnDisk, ValuesMachine):
    """More rows with timers than fit in memory, where that has a limit."""

    specs: ClassVar[dict[str, Spec]] = {name: VALUES[name] for name in ("n", "text")}
    ttls = st.none()
    spaces_drawn = ("none",)
    timed_drawn = (True,)
    limits = (0, 2 << 20)

    @rule(start=st.integers(0, 20), text=st.sampled_from("xyz"), domain=st.sampled_from(DOMAINS))
    def grow(self, start: int, text: str, domain: Any) -> None:
        kind: Any = self.drivers["text"].kind
        for at in range(start * 100, start * 100 + 300, 20):
            rows = [(self.numbered(i), None) for i in range(at, at + 20)]
            timers = {(i % 7, row) for i, row in enumerate(rows)}
            with closing(self.batch(self.backend, rows)) as batch:
                self.backend["text"].update_all(batch, text * 4000)
            self.register(self.backend, domain, timers)
            self.timers.waiting[domain] |= timers
            for row in rows:
                kind.write(row, text * 4000)


class DiskLarge(OnDisk, MixedMachine):
    """Values of all sizes in little memory, in batches of which some do not fit together."""

    specs: ClassVar[dict[str, Spec]] = {
        name: {**VALUES, **LISTS, **MAPS}[name] for name in ("n", "text", "texts", "counts", "bag")
    }
    ttls = st.none()
    spaces_drawn = ("none",)
    timed_drawn = (False,)
    limits = (1 << 20, 2 << 20)
    largest: ClassVar[int] = 100_000

    @rule(
        start=st.integers(0, 20),
        sizes=st.lists(st.sampled_from([0, 1, 300, 5000, 30_000, 100_000]), min_size=1, max_size=8),
        count=st.sampled_from([1, 8, 40]),
        letter=st.sampled_from("xyz"),
    )
    def grow(self, start: int, sizes: list[int], count: int, letter: str) -> None:
        kind: Any = self.drivers["text"].kind
        rows = [(self.numbered(start * 20 + i), None) for i in range(count)]
        texts = [letter * min(sizes[i % len(sizes)], self.largest) for i in range(count)]
        with closing(self.batch(self.backend, rows)) as batch:
            self.backend["text"].update_all(batch, texts)
        for row, text in zip(rows, texts, strict=True):
            kind.write(row, text)


class DiskTable(OnDisk, TableMachine):
    timed_drawn = (False,)
    limits = (0, 1 << 20)

    @rule(start=st.integers(0, 20), count=st.sampled_from([300, 3000]), drop=st.booleans())
    def grow(self, start: int, count: int, drop: bool) -> None:
        """With a limit fewer keys, in batches that fit in memory."""
        if not self.limit_bytes:
            super().grow(start, count, drop)
            return
        n: Any = self.drivers["n"].kind
        for at in range(start * 100, start * 100 + 300, 20):
            rows = [(self.numbered(i), None) for i in range(at, at + 20)]
            with closing(self.batch(self.backend, rows)) as batch:
                if drop:
                    self.backend.delete(batch)
                else:
                    self.backend["n"].update_all(batch, at)
            for row in rows:
                for kind in self.kinds if drop else ():
                    kind.clear(row)
                if not drop:
                    n.write(row, at)

    @rule(start=st.integers(0, 20), text=st.sampled_from("xyz"))
    def grow_texts(self, start: int, text: str) -> None:
        """More than fits in memory, where that has a limit."""
        kind: Any = self.drivers["text"].kind
        for at in range(start * 100, start * 100 + 400, 20):
            rows = [(self.numbered(i), None) for i in range(at, at + 20)]
            with closing(self.batch(self.backend, rows)) as batch:
                self.backend["text"].update_all(batch, text * 4000)
            for row in rows:
                kind.write(row, text * 4000)

    def new_reader(self) -> Any:
        files = [file for file in self.files_below() if "step-" not in file.path or self.files]
        del files[len(self.files) :]
        return self.backend.below.reader(files, self.sealed[-1][0])

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def use_reader(self, data: st.DataObject) -> None:
        """It never becomes too old."""
        reader, _, cells = data.draw(st.sampled_from(self.readers), label="reader")
        row = data.draw(st.sampled_from(self.rows), label="row")
        kinds = [d.kind.clone(cells[name], None) for name, d in self.drivers.items()]
        there = self.values(cells)
        assert self.columns_agree(reader.to_arrow(), kinds) == there.keys()
        wanted = None if row not in there else {kind.name: kind.read(row) for kind in kinds}
        assert reader.get(row[0]) == wanted

    @rule(data=st.data())
    def overflow(self, data: st.DataObject) -> None:
        batch, rows = self.draw_batch(data)
        if rows:
            self.backend["n"].update_all(batch, MOST)
            with pytest.raises(StateOverflowError):
                self.backend["n"].add(batch, 1)
            with pytest.raises(PoisonedError):
                self.backend.seal()
            self.rollback(0)

    @rule()
    def changed(self) -> None:
        """It is refused where some of it is in files already."""
        for kind in self.kinds:
            kind.flush()
        self.backend.stats()
        if not self.step_files:
            super().changed()
            return
        with pytest.raises(InvalidArgumentError):
            self.backend.changed()

    def teardown(self) -> None:
        for reader, _, _ in self.readers:
            reader.close()
        super().teardown()


MACHINES = [
    DiskValues,
    DiskLists,
    DiskMaps,
    DiskFolds,
    DiskMixed,
    DiskTimers,
    DiskLarge,
    DiskTable,
]


@pytest.mark.drawn
@pytest.mark.parametrize("machine", MACHINES)
def test_short(machine: type[OnDisk]) -> None:
    few = {DiskTable: (120, 40), DiskTimers: (30, 30), DiskLarge: (90, 50)}
    most, steps = few.get(machine, (90, 30))
    run_state_machine_as_test(machine, settings=settings_for(drawn.count(most), steps))
    assert machine.left > 0 and machine.fetched > 0
    assert machine.steps_made > 0
