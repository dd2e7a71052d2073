"""A user's function over rows by key.

Thread safety: functions without state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pyspark import cloudpickle
from pyspark.sql import types as st

from pystate.base.arguments import checked_uid
from pystate.operators.functions.base import StatefulFunction
from pystate.operators.functions.binding import for_tasks, operator_spec, require_state
from pystate.operators.runtime.function_spec import (
    PROCESS_LATE,
    BroadcastInput,
    FunctionSpec,
    checked_late,
)
from pystate.operators.runtime.runtime import FunctionOperator
from pystate.spark.base.arguments import side_columns
from pystate.spark.base.schemas import output_columns, parse_schema
from pystate.spark.evaluation.initial import Given
from pystate.spark.operators.apply import Application, apply
from pystate.spark.operators.inputs import KeyedInput
from pystate.types.keys import parse_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def process(
    rows: KeyedInput,
    function: StatefulFunction,
    schema: str | st.StructType,
    side_outputs: Mapping[str, str | st.StructType] | None,
    late: str,
    initial_state: Given | None,
    initial_timers: Given | None,
) -> DataFrame:
    """See `KeyedFrame.process`."""
    _, applied = keyed_function(rows, function, schema, side_outputs, late)
    applied = replace(applied, state=initial_state, timers=initial_timers)
    return apply(rows.evaluation, applied)


def keyed_function(
    rows: KeyedInput,
    function: StatefulFunction,
    schema: str | st.StructType,
    side_outputs: Mapping[str, str | st.StructType] | None,
    late: str,
    broadcast: BroadcastInput | None = None,
) -> tuple[FunctionSpec, Application]:
    """Check a function and what it emits; `broadcast` is its other input, if it has one."""
    uid, owner = checked_uid(rows.uid), rows.owner
    declared = parse_schema(schema, owner)
    rows.schema()
    sides = side_columns(side_outputs, owner)
    checked_late(late, sides, owner)
    if late != PROCESS_LATE:
        rows.require_event_time(late)
    written = rows.side_schemas(late, sides)
    spec = FunctionSpec(
        function,
        key=rows.key_names,
        columns=tuple(rows.frame.columns),
        output=output_columns(declared, owner),
        event_time=rows.event_time,
        side_outputs=sides,
        late=late,
        key_types=rows.key_types(),
        broadcast=broadcast,
    )
    require_state(function, owner)
    for_tasks(function, cloudpickle.dumps)
    operator = operator_spec(function, uid, parse_key(rows.keys))
    applied = rows.application(operator, partial(FunctionOperator, spec), declared)
    return spec, replace(applied, sides=written)
