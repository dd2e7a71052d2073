"""Operators that pass rows on or rank them, without a function: any `RowOperation`.

Thread safety: functions without state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import types as st

from pystate.base.arguments import checked_uid
from pystate.operators.runtime.late_rows import PROCESS_LATE
from pystate.operators.runtime.row_operator import RowInput, RowOperation, RowSpec
from pystate.spark.base.frame_columns import column_named, whole_key
from pystate.spark.base.schemas import (
    key_leaves,
    output_columns,
    parse_schema,
    refuse_reserved,
)
from pystate.spark.operators.apply import apply
from pystate.spark.operators.inputs import KeyedInput
from pystate.state.operator_spec import OperatorSpec
from pystate.types.keys import parse_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def operate(rows: KeyedInput, operation: RowOperation, late: str) -> DataFrame:
    """Apply an operation to rows by key."""
    spec = _checked(rows, operation, late)
    uid, schema = checked_uid(rows.uid), rows.frame.schema
    declared, result = _result(rows, spec)
    rows.schema()
    if spec.late != PROCESS_LATE:
        rows.require_event_time(spec.late)
    order = rows.order_by
    if not order and spec.sorted_by is not None:
        order = (column_named(spec.sorted_by).asc_nulls_last(),)

    def selected(out: DataFrame) -> DataFrame:
        if declared.names == list(result):
            return out
        keys = {name: whole_key(schema[name], marked=rows.marked) for name in rows.names}
        return out.select(*(keys.get(name, column_named(name)) for name in result))

    operator = OperatorSpec(uid, parse_key(rows.keys), spec.states())
    out = apply(
        rows.evaluation,
        replace(
            rows.application(operator, spec.make, declared),
            route=rows.in_order(order),
            sides=rows.side_schemas(spec.late, {}),
            output=output_columns(declared, rows.owner),
            finish=selected,
        ),
    )
    if spec.replaced_by is None:
        return out
    return rows.evaluation.emits_updates(uid, out, [*rows.names, *spec.replaced_by])


def _checked(rows: KeyedInput, operation: RowOperation, late: str) -> RowSpec:
    """Check what is asked for, and that updates can be taken if the rows are such."""
    method, instead = operation.method, operation.instead
    updates = None if operation.names_identity else rows.updates(method, instead)
    if updates is not None and operation.updates_problem is not None:
        rows.refuse_updates(method, updates.uid, operation.updates_problem, instead)

    def identity() -> Sequence[str] | None:
        if updates is not None and updates.frame is not rows.frame:
            problem = "the columns that they are of were dropped"
            rows.refuse_updates(method, updates.uid, problem, instead)
        return None if updates is None else updates.identity

    return operation.spec(
        RowInput(
            rows.owner,
            tuple(rows.names),
            rows.key_names,
            [(field.name, field.dataType) for field in rows.frame.schema],
            rows.event_time,
            bool(rows.order_by),
            late,
            lambda name, what: rows.columns.find(name, what).parts,
            identity,
        )
    )


def _result(rows: KeyedInput, spec: RowSpec) -> tuple[st.StructType, Sequence[str]]:
    """The columns that the operator emits, and the names of those that are wanted, in order."""
    schema, columns = rows.frame.schema, rows.frame.columns
    if spec.added is None:
        return schema, columns
    names = [each.name for each in spec.added]
    refuse_reserved(names, rows.owner)
    fields = [
        *(st.StructField(*each) for each in key_leaves(schema, rows.names, marked=rows.marked)),
        *(st.StructField(n, schema[n].dataType) for n in columns if n not in rows.names),
    ]
    for name, type_, nullable in spec.added:
        data_type = parse_schema(f"x {type_.ddl}", rows.owner).fields[0].dataType
        fields.append(st.StructField(name, data_type, nullable))
    return st.StructType(fields), [*columns, *names]
