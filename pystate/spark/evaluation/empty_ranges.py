"""Which ranges had no rows, by counts: for operators without marker rows.

A task without rows does not know its range, and reports nothing. What it would report is known: the
range is as it was. But a range may also be silent because its rows were never read. So the driver
compares two numbers: how many rows Spark's tasks have written into the operator's shuffle, and how
many those tasks have seen that reported, each at the end of its input. If they are equal, no row is
missing, and each range without a report had none.

Spark counts a task's rows when the task has succeeded, and those of a repeated stage again. So the
first number may be too large, and never too small. If it is, or if it is not known, because
something else than the sink's write has computed the operator, the evaluation does not count, and
is repeated with marker rows.

Thread safety: `CountedOperators` belongs to the thread that runs the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pystate.epochs.epoch import Epoch, RepeatableError
from pystate.epochs.range_report import RangeReport
from pystate.operators.runtime.partial_rows import COMBINED_ROWS
from pystate.spark.base.jvm import analysed_plan, below, is_wrapper, items

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pystate.checkpoint.begin_marks import BeginMarks
    from pystate.spark.tasks.range_task import OperatorPlan


_PROJECT = "Project"
_OPERATORS = ("MapInArrow", "PythonMapInArrow")
#: Nodes between an operator and its shuffle, which keep the number of rows.
_KEEPING = (_PROJECT, "Sort", "AQEShuffleRead", "ColumnarToRow", "InputAdapter")
_SHUFFLE = "Exchange"
#: What Spark puts in the place of a shuffle that has no rows: a table without rows.
_EMPTY, _TABLE = "EmptyRelation", "LocalTableScan"
_ROWS_SENT = "shuffleRecordsWritten"


class CountedOperators:
    """The operators of an evaluation that have no marker rows.

    `announced` are those whose rows an earlier evaluation of the job could not count.
    """

    def __init__(self, announced: set[str]) -> None:
        self._announced = announced
        self._plans: dict[str, OperatorPlan] = {}
        self._outputs: list[tuple[str, DataFrame]] = []

    def __bool__(self) -> bool:
        return bool(self._plans)

    def add(self, plan: OperatorPlan) -> OperatorPlan:
        """Return the plan without marker rows; or the same plan if they are needed."""
        if plan.operator.uid in self._announced:
            return plan
        self._plans[plan.operator.uid] = plan = replace(plan, markers=False)
        return plan

    def note(self, uid: str, output: DataFrame) -> None:
        """Note an operator's output, of which there may be several, if it is one of these."""
        if uid in self._plans:
            self._outputs.append((uid, output))

    def report_empty(
        self,
        epoch: Epoch,
        marks: BeginMarks,
        executed: Callable[[], Sequence[Any]],
        is_in_result: Callable[[str], bool],
        hint: str,
    ) -> RepeatableError | None:
        """Report the ranges that had no rows; return the error to raise if they are not known.

        Ranges whose rows were begun and not read to the end stay missing, and so do those of an
        operator that Spark has left out of the plan.
        """
        missing = [key for key in epoch.missing() if key[0] in self._plans]
        begun = {uid for uid, _ in marks.begun().keys() & set(missing)}
        silent = {uid for uid, _ in missing} - begun
        if not silent:
            return None
        # Each number takes calls to the JVM, and mostly all ranges have reported.
        numbers = {_number_of(output): uid for uid, output in self._outputs}
        sent: dict[int, int] = {}
        for plan in executed():
            sent |= _rows_sent(plan, numbers)
        known = {uid: sent[number] for number, uid in numbers.items() if number in sent}
        for uid in known.keys() & silent:
            if known[uid] == sum(_rows_in(r) for r in epoch.reports if r.uid == uid):
                silent.remove(uid)
                for index in (i for other, i in missing if other == uid):
                    epoch.report(self._plans[uid].unchanged_report(index))
        computed = known.keys() | {report.uid for report in epoch.reports}
        silent = {uid for uid in silent if uid in computed or not is_in_result(uid)}
        if not silent:
            return None
        self._announced.update(silent)
        return RepeatableError(
            f"epoch {epoch.number}: it is not certain that the operators "
            f"{', '.join(map(repr, sorted(silent)))} have seen all of their rows; from now on "
            "marker rows announce their ranges",
            hint,
            is_progress=True,
        )


def _rows_in(report: RangeReport) -> int:
    """The rows that a task has seen, of which each may stand for several."""
    return int(report.metrics.get(COMBINED_ROWS, report.metrics["rows_in"]))


def _number_of(output: DataFrame) -> int:
    """Spark's number of the node of the operator that has this output."""
    node = analysed_plan(output)
    while node.nodeName() == _PROJECT:
        node = node.child()
    return int(node.functionExpr().resultId().id())


def _rows_sent(plan: Any, numbers: Container[int]) -> dict[int, int]:
    """The rows in the shuffles of operators, by their numbers; without those that are not found."""
    rows: dict[int, int] = {}
    todo = [] if plan is None else [plan]
    while todo:
        node = todo.pop()
        name = node.nodeName()
        if name.startswith(_OPERATORS):
            number = int(node.func().resultId().id())
            if number in numbers:
                sent = _into(node)
                if sent is not None:
                    rows[number] = sent
        todo += below(node, name)
    return rows


def _into(operator: Any) -> int | None:
    """The rows in the shuffle that feeds an operator."""
    [node] = items(operator.children())
    while True:
        name = node.nodeName()
        if name == _SHUFFLE:
            return int(node.metrics().apply(_ROWS_SENT).value())
        if name.startswith(_EMPTY) or (name.startswith(_TABLE) and node.rows().isEmpty()):
            return 0
        if not (name in _KEEPING or name.startswith("WholeStageCodegen") or is_wrapper(name)):
            return None
        [node] = below(node, name)
