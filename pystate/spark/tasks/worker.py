"""The work of an operator's Spark task: attach its range's table, process, seal, write, report.

Runs in Spark's Python workers, inside `mapInArrow` or `mapPartitions`.

Thread safety: everything belongs to its task's thread.

Invariants
----------
1. A task whose input had no marker of a range fails; unless its operator has none in this epoch,
   and then a task without rows does nothing at all.
2. A table is sealed, and a range reported, only after the input has ended: not when the reader
   stops early, not on an error.
3. The report is the task's last act: the file that it names is durable, and no work is left.
4. Whatever happens, the table's lock is released, unsealed changes are rolled back, and files of
   side outputs that no report names are removed.
5. A task that was refused emits nothing. It fails, unless its only purpose is to stage rows that
   the driver discards. In that case it ends without rows, since Spark would retry a failed task,
   each time in a new process.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from pystate.checkpoint.begin_marks import RefusedError
from pystate.errors import NoSpaceError
from pystate.notes import with_notes
from pystate.spark.base.connection import at_once
from pystate.spark.base.described import plan_name
from pystate.spark.base.routing import split_markers
from pystate.spark.tasks.delta import DeltaWriter, Written
from pystate.spark.tasks.garbage import set_modules_aside
from pystate.spark.tasks.range_task import OperatorPlan, RangeTask
from pystate.types.keys import leaf

__all__ = ["Arrived", "ArrowOperator", "Body", "run_task"]

#: Output batches that may wait while the delta file is being written beside them.
_HELD_BATCHES = 32


class Body(Protocol):
    """What an operator does with its table; one object per task."""

    def open(self) -> None:
        """Begin; the task's table is attached."""

    def process(self, rows: Any) -> Iterator[Any]:
        """Handle some of the range's rows."""

    def finish(self) -> Iterator[Any]:
        """Handle the end of the input, before the table is sealed."""

    def close(self) -> None:
        """Clean up, however the task ends."""


#: A piece of input: rows or None, how many, and the markers among them.
Arrived = tuple[Any, int, list[int]]


class ArrowOperator:
    """The function that `mapInArrow` runs for a keyed operator.

    Parameters
    ----------
    plan : OperatorPlan
        The operator and its epoch.
    body : callable from RangeTask to Body
        Makes the task's own body; pickled with the user's function inside.
    names : sequence of str
        The names of the arriving columns, except the last one, which holds the ranges.
    """

    def __init__(
        self, plan: OperatorPlan, body: Callable[[RangeTask], Body], names: Sequence[str]
    ) -> None:
        self._plan = plan
        self._body = body
        self._names = list(names)
        # Spark's name for the function in plans.
        self.__name__ = plan_name(plan.operator.uid)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the task."""
        marked = self._plan.markers

        def arrived() -> Iterator[Arrived]:
            for batch in at_once(batches):
                rows, markers = split_markers(batch) if marked else (batch, [])
                rows = rows.rename_columns(self._names)
                yield rows if rows.num_rows else None, rows.num_rows, markers

        task, owner = self.task(), self.owner()
        return run_task(task, self._body(task), arrived(), owner, lambda out: out.num_rows)

    def task(self) -> RangeTask:
        """Make the task's ranges."""
        return RangeTask(self._plan)

    def owner(self) -> Callable[[pa.RecordBatch], int]:
        """Return a function that gives the range of the first of some rows."""
        router = self._plan.router
        names = [name for name, _ in router.schema]

        def owner(rows: pa.RecordBatch) -> int:
            first = rows.slice(0, 1)
            return router.owners([leaf(first, name) for name in names])[0]

        return owner


def run_task(
    task: RangeTask,
    body: Body,
    arrived: Iterator[Arrived],
    owner: Callable[[Any], int],
    size: Callable[[Any], int],
) -> Iterator[Any]:
    """Drive one task from its first input to its report.

    Parameters
    ----------
    arrived : iterator of (rows or None, number of rows, markers)
        The partition's input.
    owner : callable
        Returns the range of the first of some rows, for rows that arrive before the marker.
    size : callable
        Returns the number of rows in an output.
    """
    set_modules_aside()
    began = time.perf_counter_ns()
    writer: DeltaWriter | None = None
    held: deque[Any] = deque()
    metrics = task.metrics
    opened = False
    try:
        for rows, n_rows, markers in arrived:
            task.announce(markers)
            task.go_on()
            if rows is None:
                continue
            if not task.attached:
                task.attach(owner(rows))
                opened = True
                body.open()
            task.rows_in += n_rows
            for out in body.process(rows):
                task.rows_out += size(out)
                if not task.takes(out):
                    yield out
                task.go_on()
        if not task.plan.markers and not task.attached:
            return
        task.check_marker()
        if not task.attached and task.due:
            task.attach(task.state.index)
            opened = True
            body.open()
        if task.attached:
            for out in body.finish():
                task.rows_out += size(out)
                held.append(out)
                if len(held) > _HELD_BATCHES and not task.takes(out := held.popleft()):
                    yield out
            opened = False
            body.close()
        metrics["process_ms"] = _ms_since(began)
        writer = task.seal()
        while held:
            if not task.takes(out := held.popleft()):
                yield out
        task.finish_files()
        written = Written()
        if writer is not None:
            written = writer.result()
            metrics["write_ms"] = writer.took_ms
        task.report(written)
    except NoSpaceError as error:
        if opened:
            opened = False
            body.close()
        moved = None if writer is not None else task.move_table(error)
        if moved is None:
            raise
        raise moved from error
    except RefusedError:
        if not task.only_stages:
            raise
        # If the input were not read to its end, Spark would end the worker.
        for _ in arrived:
            pass
    except Exception as error:
        reported = with_notes(error)
        if reported is error:
            raise
        raise reported from reported.__cause__
    finally:
        try:
            if writer is not None:
                writer.join()
            if opened:
                body.close()
        finally:
            task.discard_files()
            task.release()


def _ms_since(began_ns: int) -> float:
    return (time.perf_counter_ns() - began_ns) / 1e6
