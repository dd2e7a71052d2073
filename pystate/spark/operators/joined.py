"""Joins of two inputs of a pipeline.

Thread safety: functions without state; a `_Pair` is immutable.
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
from pystate.operators.joins.interval import How, IntervalJoin, IntervalJoinSpec
from pystate.operators.joins.late import LateLike
from pystate.operators.joins.windowed import (
    WindowJoin,
    WindowJoinSpec,
    join_window,
    window_names,
    window_time_type,
)
from pystate.operators.runtime.output import OutputColumns
from pystate.operators.runtime.task import Operator
from pystate.spark.base.schemas import output_columns, parse_schema, refuse_reserved
from pystate.spark.operators.apply import apply
from pystate.spark.operators.inputs import KeyedInput
from pystate.spark.operators.two_inputs import TwoInputs
from pystate.state.operator_spec import OperatorSpec
from pystate.types.durations import Duration, milliseconds, signed_milliseconds
from pystate.types.state_type import parse_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def interval_join(
    left: KeyedInput,
    right: KeyedInput,
    lower: Duration,
    upper: Duration,
    how: Any,
    suffixes: Any,
    late: LateLike,
) -> DataFrame:
    """See `KeyedFrame.interval_join`."""
    pair = _Pair.of(left, right, suffixes)
    choice(how, f"{pair.owner}: how", ("inner", "left", "right", "full"))
    wanted: How = how
    spec = IntervalJoinSpec(
        pair.left,
        pair.right,
        signed_milliseconds(lower, f"{pair.owner}: lower"),
        signed_milliseconds(upper, f"{pair.owner}: upper"),
        wanted,
        pair.output,
    )
    return pair.joined(spec, IntervalJoin, late)


def asof_join(
    left: KeyedInput,
    right: KeyedInput,
    how: Any,
    tolerance: Duration | None,
    suffixes: Any,
    late: LateLike,
) -> DataFrame:
    """See `KeyedFrame.asof_join`."""
    pair = _Pair.of(left, right, suffixes)
    choice(how, f"{pair.owner}: how", ("inner", "left"))
    wanted: Literal["inner", "left"] = how
    oldest = None if tolerance is None else milliseconds(tolerance, f"{pair.owner}: tolerance")
    spec = AsofJoinSpec(pair.left, pair.right, wanted, oldest, pair.output)
    return pair.joined(spec, AsofJoin, late)


def window_join(
    left: KeyedInput,
    right: KeyedInput,
    windows: Any,
    how: Any,
    suffixes: Any,
    late: LateLike,
) -> DataFrame:
    """See `KeyedFrame.join`."""
    pair = _Pair.of(left, right, suffixes)
    choice(how, f"{pair.owner}: how", ("inner", "left", "right", "full"))
    options = join_window(windows, pair.owner)
    count = len(left.names)
    names = window_names(tuple(pair.declared.names), count, pair.owner)
    time = parse_type(window_time_type(pair.left), f"{pair.owner}: its windows").ddl
    fields = list(pair.declared.fields)
    both = [parse_schema(f"x {time}", pair.owner).fields[0].dataType] * 2
    types = [*(f.dataType for f in fields[:count]), *both, *(f.dataType for f in fields[count:])]
    declared = st.StructType([st.StructField(n, t) for n, t in zip(names, types, strict=True)])
    pair = pair._replace(declared=declared, output=output_columns(declared, pair.owner))
    spec = WindowJoinSpec(pair.left, pair.right, options, how, pair.output)
    return pair.joined(spec, WindowJoin, late)


class _Pair(NamedTuple):
    """The two inputs of a join, and its result."""

    inputs: TwoInputs
    left: JoinInput
    right: JoinInput
    declared: st.StructType
    output: OutputColumns

    @property
    def owner(self) -> str:
        return self.inputs.owner

    @classmethod
    def of(cls, left: KeyedInput, right: KeyedInput, suffixes: Any) -> _Pair:
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

    def joined(
        self,
        spec: IntervalJoinSpec | AsofJoinSpec | WindowJoinSpec,
        make: Callable[..., Operator],
        late: LateLike,
    ) -> DataFrame:
        """The result of a join."""
        inputs, lates = self.inputs, self.inputs.late(late)
        operator = OperatorSpec(
            inputs.uid, self.left.key, spec.states(), parse_type("long"), timers=True
        )
        made = partial(make, spec, lates)
        applied = inputs.application(operator, made, self.declared, lates.schemas)
        return apply(inputs.evaluation, replace(applied, holds=spec.holds()))
