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
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from pystate.base.notes import with_notes
from pystate.checkpoint.begin_marks import RefusedError
from pystate.errors import NoSpaceError
from pystate.operators.runtime.output import OutputColumns
from pystate.operators.runtime.task import Operator
from pystate.spark.base.connection import at_once
from pystate.spark.base.job_description import plan_name
from pystate.spark.base.routing import split_markers
from pystate.spark.tasks.arrivals import Arrivals
from pystate.spark.tasks.delta import DeltaWriter, Written
from pystate.spark.tasks.garbage import set_modules_aside
from pystate.spark.tasks.paired_task import PairedTask
from pystate.spark.tasks.range_task import OperatorPlan, RangeTask, ms_since

#: Output batches that may wait while the delta file is being written beside them.
_HELD_BATCHES = 32

#: A piece of input: rows or None, and the markers that were among them.
Arrived = tuple[Any, list[int]]
_BY_KEY = Arrivals()


class ArrowOperator:
    """The function that `mapInArrow` runs for an operator, of what its `Application` says.

    `make` is pickled with the user's function inside. `names` are those of the arriving columns,
    but for the last one, which holds the ranges. `beside` runs in the same tasks.
    """

    def __init__(
        self,
        plan: OperatorPlan,
        make: Callable[[], Operator],
        names: Sequence[str],
        arrivals: Arrivals = _BY_KEY,
        output: OutputColumns | None = None,
        beside: OperatorPlan | None = None,
    ) -> None:
        self._plan = plan
        self._make = make
        self._names = list(names)
        self._arrivals = arrivals
        self._output = output
        self._beside = beside
        # Spark's name for the function in plans.
        self.__name__ = plan_name(plan.operator.uid)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the task."""
        marked = self._plan.markers

        def arrived() -> Iterator[Arrived]:
            for batch in at_once(batches):
                rows, markers = split_markers(batch) if marked else (batch, [])
                rows = rows.rename_columns(self._names)
                yield rows if rows.num_rows else None, markers

        operator, arrivals = self._make(), self._arrivals
        return run_task(self.task(), operator, arrived(), arrivals, _rows, self._output)

    def task(self) -> RangeTask:
        """Make the task's ranges."""
        if self._beside is None:
            return RangeTask(self._plan)
        return PairedTask(self._plan, self._beside)


def _rows(out: Any) -> int:
    """The number of rows in a batch."""
    return int(out.num_rows)


class _Run:
    """An operator in its task: open while the task has a table, and closed once."""

    def __init__(
        self,
        task: RangeTask,
        operator: Operator,
        arrivals: Arrivals,
        size: Callable[[Any], int],
        output: OutputColumns | None,
    ) -> None:
        self._task = task
        self._operator = operator
        self._arrivals = arrivals
        self._size = size
        self._output = output
        self._is_open = False
        self._began_ns = time.perf_counter_ns()
        self._held: deque[Any] = deque()
        self.writer: DeltaWriter | None = None
        task.notes_changed, task.looks_up_keys = operator.asks_for_changed, operator.looks_up_keys
        task.metrics.update(operator.idle_metrics)

    def process(self, arrived: Iterable[Arrived]) -> Iterator[Any]:
        """The output of the partition's rows; the first one says which table is attached."""
        task, arrivals = self._task, self._arrivals
        for rows, markers in arrived:
            task.announce(markers)
            task.go_on()
            if rows is None:
                continue
            if not task.attached:
                self._open(arrivals.owner(task.plan, rows))
            for input, part in arrivals.parts(rows, task.plan, task.state.index):
                task.count(input, part)
                names = arrivals.key_names(task.plan, input)
                for piece in (part,) if names is None else task.fitting(part, names):
                    for out in self._pieces(self._operator.process(piece, input)):
                        if not task.takes(out):
                            yield out
                        task.go_on()

    def finish(self) -> Iterator[Any]:
        """The output of the operator's end; the last of it is held until the delta is begun."""
        task = self._task
        task.check_marker()
        if not task.attached and task.due:
            self._open(task.state.index)
        if task.attached:
            for out in self._pieces(self._operator.finish()):
                self._held.append(out)
                if len(self._held) > _HELD_BATCHES and not task.takes(out := self._held.popleft()):
                    yield out
            self.close()
        task.metrics["process_ms"] = ms_since(self._began_ns)

    def publish(self) -> Iterator[Any]:
        """The output that was held, while the files are written; then the report."""
        task = self._task
        self.writer = task.seal()
        while self._held:
            if not task.takes(out := self._held.popleft()):
                yield out
        task.finish_files()
        written = Written()
        if self.writer is not None:
            written = self.writer.result()
            task.metrics["write_ms"] = self.writer.took_ms
        task.report(written)

    def close(self) -> None:
        """Close the operator, if it was opened. Does nothing the second time."""
        if self._is_open:
            self._is_open = False
            self._operator.close()

    def _open(self, index: int) -> None:
        self._task.attach(index, self._arrivals.inputs)
        self._is_open = True
        self._operator.open(self._task.context)

    def _pieces(self, outputs: Iterator[Any]) -> Iterator[Any]:
        """What the operator emits, in the result's columns."""
        for emitted in outputs:
            for out in (emitted,) if self._output is None else self._output.from_value(emitted):
                self._task.rows_out += self._size(out)
                yield out


def run_task(
    task: RangeTask,
    operator: Operator,
    arrived: Iterator[Arrived],
    arrivals: Arrivals,
    size: Callable[[Any], int],
    output: OutputColumns | None = None,
) -> Iterator[Any]:
    """Drive one task from its first input to its report.

    `arrived` is the partition's input, and `size` the number of rows in a piece of output.
    `output` are the result's columns, if the operator does not bring its output into them itself.
    """
    set_modules_aside()
    run = _Run(task, operator, arrivals, size, output)
    try:
        yield from run.process(arrived)
        if task.plan.markers or task.attached:
            yield from run.finish()
            yield from run.publish()
    except NoSpaceError as error:
        run.close()
        moved = None if run.writer is not None else task.move_table(error)
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
            if run.writer is not None:
                run.writer.join()
            run.close()
        finally:
            task.discard_files()
            task.release()
