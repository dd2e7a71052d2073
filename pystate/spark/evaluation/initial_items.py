"""What an operator of instances begins with, in its first epoch: the items of its lists.

Each task writes some of the items into the file of its range, under a key that is no instance's.
The tasks of the epoch then redistribute them, as after a change of the number of instances.

Thread safety: an object belongs to the thread that builds the pipeline, or to its task.

Invariants
----------
1. Nothing is read unless the operator is not in the epoch's base; and the others of
   `pystate.spark.evaluation.initial`.
2. An item is in one file, whichever task reads it a second time: `spread` goes by a row's content.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from pystate.checkpoint.refs import InputState, RangeState
from pystate.operators.runtime.instance_state import begin_with_items, checked_items
from pystate.spark.base.resolve import column_named
from pystate.spark.base.routing import INSTANCE_COLUMN, spread
from pystate.spark.evaluation.initial import Filler, Given, frame_of, sealed, written_ranges
from pystate.spark.tasks.range_task import OperatorPlan
from pystate.state.operator_state import Instance, KeylessState
from pystate.tables.backend import KeyedStateBackend

__all__ = ["InitialItems"]


class InitialItems:
    """Items of an operator's lists.

    Parameters
    ----------
    given : DataFrame or callable
        A column of items for each of some lists.
    states : mapping of str to KeylessState
        All states of the operator.
    """

    def __init__(self, given: Given, states: Mapping[str, KeylessState[Any]]) -> None:
        self._given = given
        self._states = states

    def seen(self) -> tuple[InputState, ...]:
        """Nothing."""
        return ()

    def begin(self, plan: OperatorPlan) -> tuple[RangeState, ...]:
        """Put the items into tables."""
        what = f"operator {plan.operator.uid!r}: initial_state"
        frame = frame_of(self._given, what)
        names = checked_items(frame.columns, self._states, what)
        routed = spread(frame.select(*map(column_named, names)), plan.parallelism)
        task = Filler(
            plan, [*names, INSTANCE_COLUMN], partial(_ItemsTable, plan, what), _instance_of
        )
        return written_ranges(routed, task)


def _instance_of(rows: pa.RecordBatch) -> int:
    index: int = rows.column(INSTANCE_COLUMN)[0].as_py()
    return index


class _ItemsTable:
    """A table that items are put into."""

    def __init__(self, plan: OperatorPlan, what: str, index: int) -> None:
        self._plan = plan
        self._what = what
        self._state = plan.ranges[index]
        bounds = self._state.first_key_group, self._state.last_key_group
        self._instance = Instance(index, plan.parallelism, plan.operator.max_parallelism)
        self._backend = KeyedStateBackend.of(plan.operator, bounds, plan.options)

    def add(self, rows: pa.RecordBatch) -> None:
        """Handle rows."""
        items = rows.drop_columns([INSTANCE_COLUMN])
        begin_with_items(self._backend, self._instance, items, self._what)

    def finish(self) -> RangeState:
        """Write the file."""
        return sealed(self._plan, self._backend, self._state)

    def close(self) -> None:
        """Free the table."""
        self._backend.close()
