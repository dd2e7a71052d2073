"""The work of operators that pass rows on or rank them, inside a task.

Thread safety: a body belongs to its task.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import pyarrow as pa

from pystate.operator.deduplicate import DeduplicateSpec
from pystate.operator.output import OutputColumns
from pystate.operator.top import TopSpec
from pystate.spark.tasks.range_task import RangeTask

__all__ = ["RowSpec", "RowsBody"]

#: An operator on rows that calls no function.
RowSpec: TypeAlias = DeduplicateSpec | TopSpec


class RowsBody:
    """`deduplicate(...)` or `top(...)` over the range's rows.

    Parameters
    ----------
    spec : DeduplicateSpec or TopSpec
        The operator.
    output : OutputColumns
        Its result columns.
    task : RangeTask
        The range.
    """

    def __init__(self, spec: RowSpec, output: OutputColumns, task: RangeTask) -> None:
        self._spec = spec
        self._output = output
        self._task = task

    def open(self) -> None:
        """Register the states."""
        plan = self._task.plan
        self._operator = self._spec.start(
            self._task.backend,
            processing_time=plan.processing_time_ms,
            # Rows are judged by what the last epoch has left, and nothing fires after them.
            watermark=None if plan.time is None else plan.time.late_bound_ms,
            side=self._task.write_side,
            uid=plan.operator.uid,
            invalid=self._task.invalid(),
        )
        self._operator.open()

    def process(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Handle some rows."""
        return self._declared(self._operator.process(rows))

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Emit what waits for the end of the epoch."""
        yield from self._declared(self._operator.finish())
        events = self._operator.events
        self._task.note_event_time(events.max_event_time, events.late_rows)

    def close(self) -> None:
        """Nothing is held."""

    def _declared(self, pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for piece in pieces:
            yield from self._output.from_value(piece)
