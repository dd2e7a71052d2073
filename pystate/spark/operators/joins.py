"""Joins of two inputs of a pipeline.

Thread safety: immutable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pyspark.sql import types as st

from pystate.base.arguments import choice
from pystate.operators.joins.asof import AsofJoin, AsofJoinSpec
from pystate.operators.joins.inputs import JoinInput, check_keys, result_names
from pystate.operators.joins.interval import IntervalJoin, IntervalJoinSpec
from pystate.operators.joins.operator import How
from pystate.operators.joins.windowed import (
    WindowJoin,
    WindowJoinSpec,
    join_window,
    window_names,
    window_time_type,
)
from pystate.operators.runtime.late_rows import LateLike
from pystate.operators.runtime.output import OutputColumns
from pystate.operators.runtime.task import Operator
from pystate.operators.windows.assigners import Assigner
from pystate.spark.base.schemas import output_columns, parse_schema, refuse_reserved
from pystate.spark.operators.apply import apply
from pystate.spark.operators.inputs import KeyedInput
from pystate.spark.operators.two_inputs import TwoInputs
from pystate.state.operator_spec import OperatorSpec
from pystate.types.durations import Duration, milliseconds, signed_milliseconds
from pystate.types.state_type import parse_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class JoinPair(NamedTuple):
    """The two inputs of a join, and the columns of its result."""

    inputs: TwoInputs
    left: JoinInput
    right: JoinInput
    declared: st.StructType
    output: OutputColumns

    @property
    def owner(self) -> str:
        """Names the operator in errors."""
        return self.inputs.owner

    @classmethod
    def of(cls, left: KeyedInput, right: KeyedInput, suffixes: Any) -> JoinPair:
        """Check that both can be joined, with these added to names that both have."""
        inputs = TwoInputs.of(left, right, "a join goes by event time")
        owner = inputs.owner
        one, two = (
            JoinInput.of(
                side,
                each.names,
                [(field.name, field.type) for field in each.schema(owner)],
                each.event_time,
                owner,
            )
            for side, each in inputs.sides.items()
        )
        check_keys(one, two, owner)
        names = result_names(one, two, suffixes, owner)
        refuse_reserved(names, owner)
        fields = [
            *(left.frame.schema[name] for name in left.names),
            *(left.frame.schema[name] for name in one.names),
            *(right.frame.schema[name] for name in two.names),
        ]
        declared = st.StructType(
            [st.StructField(n, field.dataType) for n, field in zip(names, fields, strict=True)]
        )
        return cls(inputs, one, two, declared, output_columns(declared, owner))

    def interval_join(
        self, lower: Duration, upper: Duration, how: How, late: LateLike
    ) -> DataFrame:
        """See `KeyedFrame.interval_join`."""
        choice(how, f"{self.owner}: how", ("inner", "left", "right", "full"))
        spec = IntervalJoinSpec(
            self.left,
            self.right,
            signed_milliseconds(lower, f"{self.owner}: lower"),
            signed_milliseconds(upper, f"{self.owner}: upper"),
            how,
            self.output,
        )
        return self._joined(spec, IntervalJoin, late)

    def asof_join(
        self, how: Literal["inner", "left"], tolerance: Duration | None, late: LateLike
    ) -> DataFrame:
        """See `KeyedFrame.asof_join`."""
        choice(how, f"{self.owner}: how", ("inner", "left"))
        oldest = None if tolerance is None else milliseconds(tolerance, f"{self.owner}: tolerance")
        spec = AsofJoinSpec(self.left, self.right, how, oldest, self.output)
        return self._joined(spec, AsofJoin, late)

    def window_join(self, windows: Assigner, how: How, late: LateLike) -> DataFrame:
        """See `KeyedFrame.join`."""
        owner = self.owner
        choice(how, f"{owner}: how", ("inner", "left", "right", "full"))
        options = join_window(windows, owner)
        count = len(self.left.key)
        names = window_names(tuple(self.declared.names), count, owner)
        time = parse_type(window_time_type(self.left), f"{owner}: its windows").ddl
        types = [field.dataType for field in self.declared]
        types[count:count] = [parse_schema(f"x {time}", owner).fields[0].dataType] * 2
        declared = st.StructType([st.StructField(n, t) for n, t in zip(names, types, strict=True)])
        pair = self._replace(declared=declared, output=output_columns(declared, owner))
        spec = WindowJoinSpec(pair.left, pair.right, options, how, pair.output)
        return pair._joined(spec, WindowJoin, late)

    def _joined(
        self,
        spec: IntervalJoinSpec | AsofJoinSpec | WindowJoinSpec,
        make: Callable[..., Operator],
        late: LateLike,
    ) -> DataFrame:
        inputs, lates = self.inputs, self.inputs.late(late)
        operator = OperatorSpec(
            inputs.uid, self.left.key, spec.states(), parse_type("long"), timers=True
        )
        made = partial(make, spec, lates)
        applied = inputs.application(operator, made, self.declared, lates.schemas)
        return apply(inputs.evaluation, replace(applied, holds=spec.holds()))
