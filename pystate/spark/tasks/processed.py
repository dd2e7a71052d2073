"""The work of a function over windows inside a task.

Thread safety: a body belongs to its task.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from pystate.functions.windows import WindowContext
from pystate.operator.drain import MAX_WATERMARK
from pystate.spark.tasks.range_task import RangeTask
from pystate.windows.operator import EpochTimes
from pystate.windows.process import WindowProcess, WindowProcessSpec
from pystate.windows.sessions import earliest_start

__all__ = ["WindowProcessBody"]


class WindowProcessBody:
    """A function over windows over the range's rows.

    Parameters
    ----------
    spec : WindowProcessSpec
        The function.
    late_tag : str or None
        The side output of rows that are too late.
    task : RangeTask
        The range.
    """

    def __init__(self, spec: WindowProcessSpec, late_tag: str | None, task: RangeTask) -> None:
        self._spec = spec
        self._tag = late_tag
        self._task = task

    def open(self) -> None:
        """Register the states, and call the function's `open`."""
        task = self._task
        plan = task.plan
        late_bound = None if plan.time is None else plan.time.late_bound_ms
        self._run = WindowProcess(
            self._spec,
            task.backend,
            EpochTimes(plan.processing_time_ms, late_bound),
            WindowContext(plan.operator.uid, plan.processing_time_ms),
            None if self._tag is None else partial(task.write_side, self._tag),
            task.write_side,
            task.invalid(),
        )
        self._run.open()

    def process(self, rows: pa.RecordBatch) -> Iterator[Any]:
        """Add rows to their windows."""
        return self._run.process(rows)

    def finish(self) -> Iterator[Any]:
        """Call the function for the windows that are due."""
        plan, operator = self._task.plan, self._run.operator
        watermark = None if plan.time is None else plan.time.watermark_ms
        yield from self._run.finish(MAX_WATERMARK if plan.drain else watermark)
        self._task.note_event_time(operator.max_event_time, operator.late_rows)
        self._task.metrics["dropped_rows"] = operator.dropped_rows
        if plan.tells_kept:
            self._task.note_kept(earliest_start(self._task.backend))

    def close(self) -> None:
        """Call the function's `close`."""
        self._run.close()
