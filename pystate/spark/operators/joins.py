"""Joins of two inputs of a pipeline: any `Join`.

Thread safety: functions without state.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import types as st

from pystate.operators.joins.inputs import JoinInput
from pystate.operators.joins.kinds import Join
from pystate.operators.runtime.late_rows import LateLike
from pystate.spark.base.schemas import output_columns, parse_schema, refuse_reserved
from pystate.spark.operators.apply import apply
from pystate.spark.operators.inputs import KeyedInput
from pystate.spark.operators.two_inputs import TwoInputs
from pystate.state.operator_spec import OperatorSpec
from pystate.types.state_type import parse_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def joined(left: KeyedInput, right: KeyedInput, join: Join, late: LateLike) -> DataFrame:
    """Join the rows of two inputs."""
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
    names = join.names(one, two, owner)
    refuse_reserved(names, owner)
    types = [
        *(left.frame.schema[name].dataType for name in left.names),
        *(_data_type(each, owner) for each in join.added(one)),
        *(left.frame.schema[name].dataType for name in one.names),
        *(right.frame.schema[name].dataType for name in two.names),
    ]
    declared = st.StructType(
        [st.StructField(name, type_) for name, type_ in zip(names, types, strict=True)]
    )
    spec = join.spec(one, two, output_columns(declared, owner), owner)
    lates = inputs.late(late)
    operator = OperatorSpec(inputs.uid, one.key, spec.states(), parse_type("long"), timers=True)
    make = partial(spec.make, lates)
    applied = inputs.application(operator, make, declared, lates.schemas)
    return apply(inputs.evaluation, replace(applied, holds=spec.holds()))


def _data_type(given: pa.DataType, owner: str) -> st.DataType:
    """The type of a column that a join adds, as Spark has it."""
    ddl = parse_type(given, f"{owner}: its windows").ddl
    return parse_schema(f"x {ddl}", owner).fields[0].dataType
