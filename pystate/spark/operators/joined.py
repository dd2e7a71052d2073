"""Joins of two inputs of a pipeline: their rows in one shuffle, and the operator over both.

Thread safety: immutable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql import types as st

from pystate.base.arguments import checked_uid, choice
from pystate.epochs.watermarks import Input
from pystate.errors import InvalidArgumentError
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
from pystate.operators.runtime.invalid_rows import InvalidRule
from pystate.operators.runtime.late_rows import SIDES, LateInputs, LateLike
from pystate.operators.runtime.output import OutputColumns
from pystate.operators.runtime.task import Operator
from pystate.spark.base.resolve import column_named
from pystate.spark.base.routing import route
from pystate.spark.base.schemas import key_schema, output_columns, parse_schema, refuse_reserved
from pystate.spark.evaluation.initial import RowsOf
from pystate.spark.operators.apply import Application, apply
from pystate.spark.operators.inputs import invalid_schema
from pystate.spark.tasks.arrivals import UnitedRows
from pystate.spark.tasks.range_task import OperatorPlan
from pystate.state.operator_spec import OperatorSpec
from pystate.types.durations import Duration, milliseconds, signed_milliseconds
from pystate.types.state_type import parse_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pystate.spark.evaluation.evaluation import Evaluation

__all__ = [
    "JoinedFrame",
    "asof_join",
    "earlier_rows",
    "interval_join",
    "invalid_rows",
    "late_inputs",
    "one_uid",
    "united",
    "window_join",
]

#: The column that says which input a row is of: 0 or 1.
_SIDE = "__pystate_side"
_COLUMN = "__pystate_column_"

JoinSpec: TypeAlias = "IntervalJoinSpec | AsofJoinSpec | WindowJoinSpec"


class JoinedFrame(NamedTuple):
    """An input of a join, as `KeyedFrame` gives it."""

    evaluation: Evaluation
    frame: DataFrame
    keys: tuple[str, ...]
    uid: str | None
    event_time: str | None
    input: Input
    ordered: bool
    invalid: InvalidRule
    """What becomes of rows that the operator cannot process."""
    earlier: Callable[[], DataFrame] | None = None
    """Makes the rows of before the first epoch, with the frame's columns."""


def interval_join(
    left: JoinedFrame,
    right: JoinedFrame,
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
    left: JoinedFrame,
    right: JoinedFrame,
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
    left: JoinedFrame,
    right: JoinedFrame,
    windows: Any,
    how: Any,
    suffixes: Any,
    late: LateLike,
) -> DataFrame:
    """See `KeyedFrame.join`."""
    pair = _Pair.of(left, right, suffixes)
    choice(how, f"{pair.owner}: how", ("inner", "left", "right", "full"))
    options = join_window(windows, pair.owner)
    count = len(left.keys)
    names = window_names(tuple(pair.declared.names), count, pair.owner)
    time = parse_type(window_time_type(pair.left), f"{pair.owner}: its windows").ddl
    fields = list(pair.declared.fields)
    both = [parse_schema(f"x {time}", pair.owner).fields[0].dataType] * 2
    types = [*(f.dataType for f in fields[:count]), *both, *(f.dataType for f in fields[count:])]
    declared = st.StructType([st.StructField(n, t) for n, t in zip(names, types, strict=True)])
    pair = pair._replace(declared=declared, output=output_columns(declared, pair.owner))
    spec = WindowJoinSpec(pair.left, pair.right, options, how, pair.output)
    return pair.joined(spec, WindowJoin, late)


def late_inputs(
    late: LateLike,
    frames: Sequence[JoinedFrame],
    owner: str,
    *,
    processes: bool = False,
    sides: Sequence[str] = (),
) -> LateInputs:
    """What happens to late rows of two inputs; see `LateInputs.of`."""
    schemas = {
        side: output_columns(each.frame.schema, f"{owner}: its input").schema
        for side, each in zip(SIDES, frames, strict=True)
    }
    return LateInputs.of(late, schemas, owner, processes=processes, sides=sides)


class _Pair(NamedTuple):
    """The two inputs of a join."""

    uid: str
    frames: tuple[JoinedFrame, JoinedFrame]
    left: JoinInput
    right: JoinInput
    declared: st.StructType
    output: OutputColumns

    @property
    def owner(self) -> str:
        return f"operator {self.uid!r}"

    @classmethod
    def of(cls, left: JoinedFrame, right: JoinedFrame, suffixes: Any) -> _Pair:
        uid = one_uid(left, right)
        owner = f"operator {uid!r}"
        if left.ordered or right.ordered:
            raise InvalidArgumentError(
                f"{owner}: a join goes by event time; leave order_by out of key_by"
            )
        one, two = (
            JoinInput.of(side, each.keys, _columns(each.frame, owner), each.event_time, owner)
            for side, each in zip(SIDES, (left, right), strict=True)
        )
        check_keys(one, two, owner)
        names = result_names(one, two, suffixes, owner)
        refuse_reserved(names, owner)
        fields = [
            *(left.frame.schema[name] for name in left.keys),
            *(left.frame.schema[name] for name in one.names),
            *(right.frame.schema[name] for name in two.names),
        ]
        declared = st.StructType(
            [st.StructField(n, field.dataType) for n, field in zip(names, fields, strict=True)]
        )
        return cls(uid, (left, right), one, two, declared, output_columns(declared, owner))

    def joined(self, spec: JoinSpec, make: Callable[..., Operator], late: LateLike) -> DataFrame:
        lates = late_inputs(late, self.frames, self.owner)
        evaluation = self.frames[0].evaluation
        keys = key_schema(self.frames[0].frame.schema, self.frames[0].keys, self.owner)
        key, others = [name for name, _ in keys], (self.left.names, self.right.names)
        return apply(
            evaluation,
            Application(
                OperatorSpec(
                    self.uid, self.left.key, spec.states(), parse_type("long"), timers=True
                ),
                keys,
                partial(make, spec, lates),
                [each.frame for each in self.frames],
                partial(united, self.frames, key, others),
                self.declared,
                inputs=[
                    replace(each.input, name=side)
                    for side, each in zip(SIDES, self.frames, strict=True)
                ],
                sides=lates.schemas,
                invalid=invalid_rows(self.frames, self.owner),
                earlier=earlier_rows(self.frames),
                arrivals=UnitedRows(
                    {
                        each.side: ([name for name, _ in each.key], each.names)
                        for each in (self.left, self.right)
                    }
                ),
                holds=spec.holds(),
            ),
        )


def invalid_rows(
    frames: Sequence[JoinedFrame], owner: str
) -> dict[str, tuple[InvalidRule, pa.Schema | None]]:
    """What becomes of the invalid rows of two inputs."""
    return {
        side: invalid_schema(each.invalid, each.frame, owner)
        for side, each in zip(SIDES, frames, strict=True)
    }


def earlier_rows(frames: Sequence[JoinedFrame]) -> list[RowsOf] | None:
    """The earlier rows of both inputs; None if neither has any."""
    if all(each.earlier is None for each in frames):
        return None

    def rows_of(each: JoinedFrame) -> Callable[[], DataFrame]:
        return each.earlier or (lambda: each.frame.where(F.lit(False)))

    return [
        RowsOf(side, rows_of(each), each.event_time if each.earlier else None)
        for side, each in zip(SIDES, frames, strict=True)
    ]


def united(
    inputs: Sequence[JoinedFrame],
    key: Sequence[str],
    others: tuple[Sequence[str], Sequence[str]],
    frames: Sequence[DataFrame],
    plan: OperatorPlan,
) -> tuple[DataFrame, list[str]]:
    """The rows of both inputs, routed.

    Parameters
    ----------
    inputs : sequence of JoinedFrame
        The inputs.
    key : sequence of str
        The key columns' names in the tasks.
    others : tuple of sequence of str
        The other columns of each.
    frames : sequence of DataFrame
        Their rows.
    plan : OperatorPlan
        The operator.

    Returns
    -------
    DataFrame
        The key's columns, the side, left's other columns, right's other columns; null where they
        are not of a row's input.
    list of str
        Their names in the tasks.
    """
    # Both inputs have their keys under the same numbers, and other columns under their own.
    count, cut = len(key), len(key) + len(others[0])
    numbers = [f"{_COLUMN}{i}" for i in range(cut + len(others[1]))]
    own = numbers[count:cut], numbers[cut:]
    selected = []
    for i, (each, frame) in enumerate(zip(inputs, frames, strict=True)):
        pairs = [*zip(each.keys, numbers[:count], strict=True)]
        rest = [*zip(others[i], own[i], strict=True)]
        selected.append(
            frame.select(
                *(column_named(name).alias(number) for name, number in pairs),
                F.lit(i).cast("byte").alias(_SIDE),
                *(column_named(name).alias(number) for name, number in rest),
            )
        )
    both = selected[0].unionByName(selected[1], allowMissingColumns=True)
    groups, parallelism = plan.operator.max_parallelism, plan.parallelism
    routed = route(both, numbers[:count], groups, parallelism, markers=plan.markers)
    return routed, [*key, _SIDE, *own[0], *own[1]]


def one_uid(left: JoinedFrame, right: JoinedFrame) -> str:
    """The uid of an operator over two inputs."""
    if left.uid is not None and right.uid is not None and left.uid != right.uid:
        raise InvalidArgumentError(
            f"two inputs make one operator, and they have the uids {left.uid!r} and "
            f"{right.uid!r}: give the right one none"
        )
    return checked_uid(left.uid if left.uid is not None else right.uid)


def _columns(frame: DataFrame, owner: str) -> list[tuple[str, pa.DataType]]:
    schema = output_columns(frame.schema, f"{owner}: its input").schema
    return [(field.name, field.type) for field in schema]
