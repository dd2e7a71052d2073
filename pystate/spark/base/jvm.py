"""What pystate asks Spark's JVM for: plans, the numbers of columns, stages, executors.

Thread safety: functions without state. Most of them take calls to the JVM, of about 0.1 ms each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame

_NUMBER = re.compile(r"#(\d+)")


def analysed_plan(frame: DataFrame) -> Any:
    """The analysed plan of a frame."""
    return frame._jdf.queryExecution().analyzed()


def plan_text(frame: DataFrame) -> str:
    """The text of a frame's analysed plan."""
    return str(analysed_plan(frame).toString())


def items(sequence: Any) -> list[Any]:
    """The items of a Scala sequence."""
    return [sequence.apply(i) for i in range(sequence.size())]


def is_wrapper(name: str) -> bool:
    """Whether adaptive execution puts a node of this name around another one."""
    return name in ("AdaptiveSparkPlan", "ReusedExchange") or name.endswith("QueryStage")


def below(node: Any, name: str) -> list[Any]:
    """What an executed node of that name reads, or is around."""
    if name == "AdaptiveSparkPlan":
        return [node.executedPlan()]
    if name.endswith("QueryStage"):
        return [node.plan()]
    return [node.child()] if name == "ReusedExchange" else items(node.children())


def numbers_in(text: str) -> list[str]:
    """Spark's numbers of the columns in a text, by which it tells columns of one name apart."""
    return _NUMBER.findall(text)


def stages(context: SparkContext, jobs: Iterable[int]) -> Iterator[tuple[int, Any]]:
    """The stages of some jobs, as far as Spark still knows them, by number."""
    tracker = context._jsc.sc().statusTracker()
    for job in jobs:
        info = tracker.getJobInfo(job)
        for number in info.get().stageIds() if info.isDefined() else ():
            stage = tracker.getStageInfo(number)
            if stage.isDefined():
                yield number, stage.get()


def executors(context: SparkContext) -> frozenset[str]:
    """The current executors, with the driver as one of them."""
    return frozenset(context._jsc.sc().getExecutorMemoryStatus().keySet().mkString(" ").split())
