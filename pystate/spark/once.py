"""An operator's output is computed once per evaluation, however often and far it is read.

Spark computes a frame again for each action and each branch that reads it, and only as far as the
reader reads. If the frame has an operator, each computation gives another state. The tasks' begin
marks (`pystate.checkpoint.begin_marks`) show this: an evaluation in which a range is begun twice,
or begun and not read to its end, does not count. It is repeated with the operator's output
materialised: `localCheckpoint` computes all of it, once, before anything reads it. So a limit,
`isEmpty`, `show`, a sort (which samples its input first), a self-join or a second action work, and
see one evaluation.

Why not always materialise: it writes every row to Spark's block storage and reads it back, which is
wasted if the output is read once to its end, as is usual. The plan cannot decide it either: the
driver sees only the result's plan, and not the actions within the pipeline. So the begin marks
decide; a job remembers the decision for its later epochs, so that only the first one is repeated.

Why `localCheckpoint` and not `persist`: it cuts the lineage. A cached block that was evicted, or
lost with its executor, would be computed again, and with other rows than the state knows.

Thread safety: an `OperatorOutputs` belongs to the thread that runs the epoch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame

__all__ = ["OperatorOutputs", "executors"]

#: In a plan's text: a node's function, and Spark's number of the expression, which is unique.
_OPERATOR = re.compile(r"MapInArrow [^\n]*?\)(#\d+)")


class OperatorOutputs:
    """The outputs of the operators of one evaluation.

    Parameters
    ----------
    materialised : set of str
        The uids of the operators whose output is to be materialised; shared by a job's
        evaluations.
    """

    def __init__(self, materialised: set[str]) -> None:
        self._materialised = materialised
        self._frames: dict[str, DataFrame] = {}
        self._operators: dict[str, str | None] = {}
        self._held: list[Any] = []

    def add(self, uid: str, frame: DataFrame) -> DataFrame:
        """Register an operator's output, and return the frame for the pipeline."""
        if uid in self._materialised:
            frame = frame.localCheckpoint()
            self._held.append(_plan(frame).rdd())
        self._frames[uid] = frame
        return frame

    def can_be_materialised(self, uids: Iterable[str]) -> bool:
        """Whether all of these are operators over DataFrames that are not materialised yet."""
        return all(uid in self._frames and uid not in self._materialised for uid in uids)

    def materialise_from(self, uids: Iterable[str]) -> list[str]:
        """Materialise these operators, and those declared after them, in later evaluations.

        Later operators may depend on them, and be read in the same way.
        """
        order = list(self._frames)
        wanted = order[min(order.index(uid) for uid in uids) :]
        self._materialised.update(wanted)
        return wanted

    def is_in(self, uid: str, result: DataFrame) -> bool:
        """Whether a result is computed from an operator's output."""
        frame = self._frames.get(uid)
        if frame is None:
            return False
        operator = _OPERATOR.search(_plan(frame).toString())
        return (
            operator is not None
            and re.search(rf"MapInArrow [^\n]*?\){operator[1]}\b", _plan(result).toString())
            is not None
        )

    def release(self) -> None:
        """Free the materialised outputs, and the frames over them that the pipeline has cached.

        Spark keeps a cached frame until it is unpersisted, but nothing can use it again: the next
        epoch has other frames.
        """
        for rdd in self._held:
            rdd.unpersist(False)
        self._held.clear()
        for frame in self._frames.values():
            cache = frame.sparkSession._jsparkSession.sharedState().cacheManager()
            if cache.isEmpty():
                break
            cache.uncacheQuery(frame._jdf, True)
        self._frames.clear()


def executors(context: SparkContext) -> frozenset[str]:
    """The current executors."""
    return frozenset(context._jsc.sc().getExecutorMemoryStatus().keySet().mkString(" ").split())


def _plan(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()
