"""The work of an operator's instances inside tasks: a function over rows without keys.

Thread safety: a body belongs to its task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from pystate.backend.keyed import KeyedStateBackend
from pystate.functions.process import InstanceContext
from pystate.operator.function_spec import FunctionSpec
from pystate.operator.instance_runtime import InstanceRuntime
from pystate.operator.instance_state import InstanceState
from pystate.spark.tasks.bodies import FunctionBody
from pystate.spark.tasks.range_task import RangeTask
from pystate.spark.tasks.worker import ArrowOperator
from pystate.state.operator_state import Instance, KeylessState

__all__ = ["InstanceBody", "InstanceOperator", "instance_of"]


def instance_of(task: RangeTask) -> Instance:
    """The instance that a task's range belongs to."""
    plan = task.plan
    return Instance(task.state.index, plan.parallelism, plan.operator.max_parallelism)


class InstanceOperator(ArrowOperator):
    """The function that `mapInArrow` runs for rows that `spread` has routed."""

    def owner(self) -> Callable[[pa.RecordBatch], int]:
        """Return a function that gives the instance of the first of some rows."""

        def owner(rows: pa.RecordBatch) -> int:
            index: int = rows.column(rows.num_columns - 1)[0].as_py()
            return index

        return owner


class InstanceBody(FunctionBody):
    """A user's function over an instance's rows.

    Parameters
    ----------
    spec : FunctionSpec
        The function.
    states : mapping of str to KeylessState
        Its states.
    task : RangeTask
        The range.
    """

    def __init__(
        self, spec: FunctionSpec, states: Mapping[str, KeylessState[Any]], task: RangeTask
    ) -> None:
        super().__init__(spec, task)
        self._states = states
        self._old: KeyedStateBackend | None = None

    def open(self) -> None:
        """Redistribute the state if the number of instances has changed; open the function."""
        task = self._task
        plan, state, instance = task.plan, task.state, instance_of(task)
        if task.redistributes:
            self._old = task.whole_state()
        context = InstanceContext(
            uid=plan.operator.uid,
            epoch=plan.epoch,
            key_group_range=(state.first_key_group, state.last_key_group),
            parallelism=plan.parallelism,
            max_parallelism=plan.operator.max_parallelism,
            processing_time=plan.processing_time_ms,
            instance=instance.index,
        )
        self._runtime = InstanceRuntime(
            self._spec,
            task.backend,
            InstanceState(task.backend, instance, self._states),
            context,
            task.write_side,
            old=self._old,
            time=plan.time,
            drain=plan.drain,
            invalid={"left": task.invalid(key=())},
        )
        self._runtime.open()
        self._drop_old()
        self._runtime.notify(plan.news)

    def process(self, rows: pa.RecordBatch) -> Iterator[Any]:
        """Call the function for some rows."""
        return super().process(rows.remove_column(rows.num_columns - 1))

    def close(self) -> None:
        """Take the handles away and call the function's `close`."""
        self._drop_old()
        super().close()

    def _drop_old(self) -> None:
        old, self._old = self._old, None
        if old is not None:
            old.close()
