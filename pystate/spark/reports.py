"""Reports from tasks to the driver, over a Spark accumulator.

Spark sends a task's accumulator updates only with its successful end, and counts none of an attempt
that failed. It may still deliver a range twice (a stage that runs again) or never (an output that
nobody reads to its end): telling those apart is `Epoch.collect`'s work, not this module's.

Thread safety: updates arrive on Spark's accumulator thread; `ReportBox` may be read from another.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pyspark.accumulators import AccumulatorParam

from pystate.coordinator.epoch import RangeReport

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.accumulators import Accumulator

__all__ = ["ReportBox"]


class _ReportsParam(AccumulatorParam[list[RangeReport]]):
    def zero(self, value: list[RangeReport]) -> list[RangeReport]:
        return []

    def addInPlace(  # noqa: N802 (Spark's name)
        self, value1: list[RangeReport], value2: list[RangeReport]
    ) -> list[RangeReport]:
        value1.extend(value2)
        return value1


class ReportBox:
    """The driver's end: one accumulator for all epochs of a job.

    An accumulator stays registered as long as its session, hence one, not one per epoch. A report
    of an older evaluation may arrive at any time; its evaluation id tells.
    """

    def __init__(self, context: SparkContext) -> None:
        self.context = context
        self.accumulator: Accumulator[list[RangeReport]] = context.accumulator([], _ReportsParam())
        self._lock = threading.Lock()

    def take(self) -> list[RangeReport]:
        """Remove and return what has arrived. Complete once the Spark action has returned."""
        with self._lock:
            arrived = self.accumulator.value
            self.accumulator.value = arrived[len(arrived) :]
            return arrived
