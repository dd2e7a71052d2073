"""Operators that pass rows on or rank them, without a function: `deduplicate` and `top`.

Thread safety: functions without state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pyspark.sql import types as st

from pystate.base.arguments import checked_uid, choice, flag, integer, shown, text
from pystate.errors import DeclarationError, InvalidArgumentError, WrongTypeError
from pystate.operators.runtime.deduplicate import DeduplicateSpec
from pystate.operators.runtime.late_rows import PROCESS_LATE, checked_late
from pystate.operators.runtime.top import By, TopSpec, has_order
from pystate.spark.base.frame_columns import column_named, whole_key
from pystate.spark.base.schemas import key_leaves, names_twice, output_columns, refuse_reserved
from pystate.spark.operators.apply import apply
from pystate.spark.operators.inputs import KeyedInput
from pystate.state.operator_spec import OperatorSpec
from pystate.types.durations import Duration, milliseconds
from pystate.types.keys import parse_key
from pystate.types.state_type import StateType, parse_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def deduplicate(
    rows: KeyedInput, within: Duration | None, keep: Literal["first", "last"], late: str
) -> DataFrame:
    """See `KeyedFrame.deduplicate`."""
    what = f"{rows.owner}: deduplicate"
    if within is not None:
        within = milliseconds(within, f"{what}: within", least=1)
    choice(keep, f"{what}: keep", ("first", "last"))
    updates = rows.updates("deduplicate")
    if updates is not None and (keep == "first" or within is not None):
        rows.refuse_updates(
            "deduplicate", updates.uid, "what was passed on first is replaced later"
        )
    spec = DeduplicateSpec(
        key=rows.key_names,
        within_ms=within,
        keep=keep,
        event_time=rows.event_time,
        ordered=bool(rows.order_by),
        late=checked_late(late, (), rows.owner),
    )
    order = rows.order_by
    if not order and rows.event_time is not None and keep == "first":
        order = (column_named(rows.event_time).asc_nulls_last(),)
    out = _applied(rows, spec, order, rows.frame.schema, rows.frame.columns)
    if keep == "first":
        return out
    return rows.evaluation.emits_updates(str(rows.uid), out, rows.names)


def top(
    rows: KeyedInput,
    k: int,
    by: str | Sequence[str],
    descending: bool | Sequence[bool],
    rank: str,
    late: str,
    by_key: str | Sequence[str] | None,
) -> DataFrame:
    """See `KeyedFrame.top`."""
    what = f"{rows.owner}: top"
    schema, columns = rows.frame.schema, rows.frame.columns
    integer(k, f"{what}: k", least=1, most=(1 << 31) - 1)
    refuse_reserved([text(rank, f"{what}: rank")], rows.owner)
    if rank.lower() in (name.lower() for name in columns):
        raise InvalidArgumentError(
            f"{what}: the input has a column {rank!r}: give the one with the ranks another "
            "name, rank='place'"
        )
    twice = names_twice(columns)
    if twice:
        raise InvalidArgumentError(f"{what}: two columns are called {', '.join(twice)}")
    order = _order(rows, by, descending, what)
    identity = _identity(rows, by_key, what)
    stored = [name for name in columns if name not in rows.names]
    spec = TopSpec(
        key=rows.key_names,
        k=k,
        by=order,
        columns=tuple((name, _stored_type(schema, name, what)) for name in stored),
        rank=rank,
        event_time=rows.event_time,
        late=checked_late(late, (), rows.owner),
        by_key=identity,
    )
    for name, _ in order:
        if not has_order(dict(spec.columns)[name]):
            raise WrongTypeError(
                f"{what}: by={name!r} is {schema[name].dataType.simpleString()}, which has no "
                "order here: numbers, strings, binaries, booleans, dates and timestamps have"
            )
    key = key_leaves(schema, rows.names, marked=rows.marked)
    declared = st.StructType(
        [
            *(st.StructField(name, type_) for name, type_ in key),
            *(st.StructField(name, schema[name].dataType) for name in stored),
            st.StructField(rank, st.IntegerType(), False),
        ]
    )
    out = _applied(rows, spec, rows.order_by, declared, [*columns, rank])
    return rows.evaluation.emits_updates(str(rows.uid), out, [*rows.names, rank])


def _applied(
    rows: KeyedInput,
    spec: DeduplicateSpec | TopSpec,
    order_by: Sequence[Column],
    declared: st.StructType,
    result: Sequence[str],
) -> DataFrame:
    """Run an operator; `declared` are the columns that it emits, `result` those wanted."""
    uid, schema = checked_uid(rows.uid), rows.frame.schema
    rows.schema()
    if spec.late != PROCESS_LATE:
        rows.require_event_time(spec.late)
    sides = rows.side_schemas(spec.late, {})

    def selected(out: DataFrame) -> DataFrame:
        if declared.names == list(result):
            return out
        keys = {name: whole_key(schema[name], marked=rows.marked) for name in rows.names}
        return out.select(*(keys.get(name, column_named(name)) for name in result))

    operator = OperatorSpec(uid, parse_key(rows.keys), spec.states())
    return apply(
        rows.evaluation,
        replace(
            rows.application(operator, spec.make, declared),
            route=rows.in_order(order_by),
            sides=sides,
            output=output_columns(declared, rows.owner),
            finish=selected,
        ),
    )


def _identity(
    rows: KeyedInput, by_key: str | Sequence[str] | None, what: str
) -> tuple[str, ...] | None:
    """The columns that, with the key, say which row replaces which; None if none does."""
    if by_key is None:
        updates = rows.updates("top")
        if updates is None:
            return None
        if updates.frame is not rows.frame:
            rows.refuse_updates("top", updates.uid, "the columns that they are of were dropped")
        return tuple(name for name in updates.identity if name not in rows.names)
    given = [by_key] if isinstance(by_key, str) else by_key
    if not isinstance(given, (list, tuple)) or not given:
        raise InvalidArgumentError(
            f"{what}: by_key is the name of a column, or a list of names, not {shown(by_key)}"
        )
    schema = rows.frame.schema
    names: list[str] = []
    for each in given:
        name, *below = rows.columns.find(each, "top: by_key").parts
        if below or not has_order(_stored_type(schema, name, what)):
            kind = "a field of a struct" if below else schema[name].dataType.simpleString()
            raise InvalidArgumentError(
                f"{what}: by_key={each!r} is {kind}: numbers, strings, binaries, "
                "booleans, dates and timestamps can say which row replaces which; make such a "
                "column of it first"
            )
        if name not in rows.names and name not in names:
            names.append(name)
    return tuple(names)


def _order(
    rows: KeyedInput, by: str | Sequence[str], descending: bool | Sequence[bool], what: str
) -> tuple[By, ...]:
    given = [by] if isinstance(by, str) else by
    if not isinstance(given, (list, tuple)) or not given:
        raise InvalidArgumentError(
            f"{what}: by is the name of a column, or a list of names, not {shown(by)}"
        )
    if isinstance(descending, (list, tuple)):
        downs = [flag(each, f"{what}: descending") for each in descending]
    else:
        downs = [flag(descending, f"{what}: descending")] * len(given)
    if len(downs) != len(given):
        raise InvalidArgumentError(
            f"{what}: descending has {len(downs)} values for {len(given)} columns of by"
        )
    order: list[By] = []
    for each, down in zip(given, downs, strict=True):
        name, *below = rows.columns.find(each, "top: by").parts
        if below:
            raise InvalidArgumentError(
                f"{what}: by={each!r} is a field of a struct: make it a column first, "
                f"df.withColumn({below[-1]!r}, df[{each!r}])"
            )
        if name in rows.names:
            raise InvalidArgumentError(
                f"{what}: by={each!r} is a column of the key, which all of its rows share"
            )
        if name in (column for column, _ in order):
            raise InvalidArgumentError(f"{what}: by names {name!r} twice")
        order.append(By(name, down))
    return tuple(order)


def _stored_type(schema: st.StructType, name: str, what: str) -> StateType:
    data_type = schema[name].dataType
    try:
        return parse_type(data_type, f"column {name!r}")
    except DeclarationError as error:
        raise WrongTypeError(
            f"{what}: column {name!r} is {data_type.simpleString()}, which state cannot hold: "
            f"cast it, or leave it out with df.drop({name!r}) ({error})"
        ) from None
