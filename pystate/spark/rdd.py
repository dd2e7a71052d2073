"""The stateful operator of the RDD API: a function for `mapPartitions`.

Thread safety: immutable; each call makes a task of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from pystate.runtime import FunctionSpec
from pystate.spark.bodies import RoutedBody
from pystate.spark.routing import Routed
from pystate.spark.worker import Arrived, OperatorPlan, RangeTask, run_task

__all__ = ["RoutedOperator"]

_CHUNK = 4096


class RoutedOperator:
    """What ``Job.partitions`` returns.

    Parameters
    ----------
    plan : OperatorPlan
        The operator and its epoch.
    spec : FunctionSpec
        The function, which is called per element.
    """

    def __init__(self, plan: OperatorPlan, spec: FunctionSpec) -> None:
        self._plan = plan
        self._spec = spec

    def __call__(self, elements: Iterator[Routed]) -> Iterator[Any]:
        """Run the task."""
        router = self._plan.router

        def owner(rows: list[Routed]) -> int:
            return router.owners(router.arrays([rows[0].key]))[0]

        task = RangeTask(self._plan)
        body = RoutedBody(self._spec, router.arrays, task)
        for emitted in run_task(task, body, _chunks(elements), owner, len):
            yield from emitted


def _chunks(elements: Iterator[Routed]) -> Iterator[Arrived]:
    while chunk := list(islice(elements, _CHUNK)):
        markers = [routed.marker for routed in chunk if routed.marker is not None]
        rows = [routed for routed in chunk if routed.marker is None]
        yield rows or None, len(rows), markers
