"""Reports from tasks to the driver, over a Spark accumulator.

Spark sends a task's accumulator updates only if it succeeds, and counts none of a failed attempt. A
range's report may still arrive twice (if a stage runs again) or never (if an output is not read to
its end): `Epoch.collect` detects that, not this module.

Thread safety: updates arrive on Spark's accumulator thread; `ReportBox` may be read from another.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pyspark.accumulators import AccumulatorParam

from pystate.epochs.range_report import RangeReport

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.accumulators import Accumulator


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

    An accumulator stays registered as long as its session, so there is only one, not one per epoch.
    A report of an older evaluation may arrive at any time; its evaluation id distinguishes it.
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
