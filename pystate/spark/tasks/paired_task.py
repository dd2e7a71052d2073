"""A task that works on a range of two operators at once: they run, and count, together.

Thread safety: as `pystate.spark.tasks.range_task`.

Invariants
----------
1. Both ranges are begun before a row leaves, and both reports are sent as the task's last acts,
   after the files of both are durable.
2. Both tables are attached, always in the same order, and both are released whatever happens.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from pystate.checkpoint.refs import INPUT
from pystate.epochs.range_report import InputSeen
from pystate.errors import NoSpaceError, TableMovedError
from pystate.spark.tasks.delta import DeltaWriter, Written
from pystate.spark.tasks.range_task import OperatorPlan, RangeTask


class PairedTask(RangeTask):
    """A range of an operator, whose rows the task emits, and the same range of another one.

    The other operator, `beside`, has the same parallelism.
    """

    def __init__(self, plan: OperatorPlan, beside: OperatorPlan) -> None:
        super().__init__(plan)
        self.beside = RangeTask(beside)
        self._beside_writer: DeltaWriter | None = None
        self._others: list[str] = []

    def announce(self, markers: Iterable[int]) -> None:
        """Handle the marker rows of a batch."""
        markers = list(markers)
        super().announce(markers)
        self.beside.announce(markers)

    def attach(self, index: int, inputs: Iterable[str] = (INPUT,)) -> None:
        """Attach both tables; rows of the second input are those of the other operator."""
        first, *others = inputs
        super().attach(index, [first])
        self.beside.attach(index)
        self._others = others
        self.context.beside = self.beside.context

    def count(self, input: str, rows: Any) -> None:
        """Count rows of an input that are about to be processed."""
        if input in self._others:
            self.beside.count(INPUT, rows)
        else:
            super().count(input, rows)

    def _inputs_seen(self) -> tuple[InputSeen, ...]:
        rows, latest = self.beside.rows[INPUT], self.context.latest if self._others else {}
        more = (InputSeen(name, rows, latest.get(name)) for name in self._others)
        return (*super()._inputs_seen(), *more)

    @property
    def due(self) -> bool:
        """Whether one of them has work without rows."""
        return super().due or self.beside.due

    def seal(self) -> DeltaWriter | None:
        """Seal both tables; return the thread that writes the first one's changes."""
        # The caller knows of no thread if this fails: whatever is kept here, `release` waits for.
        self._beside_writer = self.beside.seal()
        return super().seal()

    def report(self, written: Written) -> None:
        """Send both reports, once the other one's file is durable, too."""
        beside = Written()
        if self._beside_writer is not None:
            beside = self._beside_writer.result()
            self.beside.metrics["write_ms"] = self._beside_writer.took_ms
        self.beside.report(beside)
        super().report(written)

    def release(self) -> None:
        """Release both tables."""
        writer, self._beside_writer = self._beside_writer, None
        try:
            if writer is not None:
                writer.join()
            super().release()
        finally:
            self.beside.release()

    def move_table(self, error: NoSpaceError) -> TableMovedError | None:
        """Give up the larger table, to make room; the other one if that cannot be moved."""
        if self._beside_writer is not None:
            return None
        if _size(self) >= _size(self.beside):
            return super().move_table(error) or self.beside.move_table(error)
        return self.beside.move_table(error) or super().move_table(error)


def _size(task: RangeTask) -> int:
    """How much room a task's table takes in its file system; -1 if it is no file."""
    path = task.table_path
    if path is not None:
        with suppress(OSError):
            return os.stat(path).st_blocks
    return -1
