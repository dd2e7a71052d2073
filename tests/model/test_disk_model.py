"""The machines of `test_backend_model` with rows on disk: at any time all of them may leave memory.

So nearly every access brings rows back out of files, of epochs and of steps within them.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

import pystate as ps
from pystate.errors import LineageError, PoisonedError, StateOverflowError
from pystate.tables.below import FileBelow
from tests import drawn
from tests.model.test_backend_model import (
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


class OnDisk(KindsMachine):
    """A backend on disk, whose deltas are below it as soon as they are written."""

    timed_drawn: ClassVar[tuple[bool, ...]] = (False,)
    left: ClassVar[int] = 0

    @initialize(shared=st.just(False), data=st.data())
    def start(self, shared: bool, data: st.DataObject) -> None:
        self.step_files: list[Any] = []
        super().start(shared, data)
        self.backend.below.step_by(self.write_step)

    def made(self, shared: bool, **options: Any) -> ps.KeyedStateBackend:
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
        self.backend.below.set_files(self.files_below(), all_known=lineage.id[0] % 2 > 0)

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

    @rule()
    def seal(self) -> None:
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


class DiskTable(OnDisk, TableMachine):
    timed_drawn = (False,)

    @rule()
    def open_reader(self) -> None:
        lineage, (cells, _) = self.sealed[-1]
        files = [file for file in self.files_below() if "step-" not in file.path or self.files]
        del files[len(self.files) :]
        reader = self.backend.below.reader(files, lineage)
        assert reader.lineage == lineage
        self.readers.append((reader, lineage, cells))
        for old, _, _ in self.readers[:-4]:
            old.close()
        self.readers = self.readers[-4:]

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
        """What the open epoch touched is what it touched since the last step."""
        with suppress(StopIteration):
            next(self.backend.changed(max_rows=100))

    def teardown(self) -> None:
        for reader, _, _ in self.readers:
            reader.close()
        super().teardown()


MACHINES = [DiskValues, DiskLists, DiskMaps, DiskFolds, DiskMixed, DiskTable]


@pytest.mark.drawn
@pytest.mark.parametrize("machine", MACHINES)
def test_short(machine: type[OnDisk]) -> None:
    most, steps = (120, 40) if machine is DiskTable else (90, 30)
    run_state_machine_as_test(machine, settings=settings_for(drawn.count(most), steps))
    assert machine.left > 0 or not drawn.THOROUGH
