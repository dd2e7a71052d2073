"""Conversion between Spark's types and Arrow's: key columns in, result columns out.

Pure functions, safe from any thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import cast

from pyspark.errors import PySparkTypeError
from pyspark.sql import types as st
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type

from pystate.base.arguments import shown
from pystate.errors import InvalidArgumentError, WrongTypeError
from pystate.operators.runtime.output import OutputColumns
from pystate.types.ddl import quoted
from pystate.types.keys import null_mark

#: Columns that are added to the user's.
_RESERVED = "__pystate_"

#: Key columns in order: (name, type in DDL).
KeySchema = tuple[tuple[str, str], ...]

_DDL: dict[type[st.DataType], str] = {
    st.BooleanType: "boolean",
    st.ByteType: "byte",
    st.ShortType: "short",
    st.IntegerType: "int",
    st.LongType: "long",
    st.FloatType: "float",
    st.DoubleType: "double",
    st.DateType: "date",
    st.TimestampType: "timestamp",
    st.TimestampNTZType: "timestamp_ntz",
    st.StringType: "string",
    st.BinaryType: "binary",
}


def ddl_of(data_type: st.DataType) -> str | None:
    """The DDL name of a type that a key or a fixed-width state may have, else None."""
    if isinstance(data_type, st.DecimalType):
        return f"decimal({data_type.precision},{data_type.scale})"
    return _DDL.get(type(data_type))


def parse_schema(schema: str | st.StructType, owner: str) -> st.StructType:
    """Return `schema`, which may be DDL such as ``"tailnum string, legs long"``, as a struct."""
    if isinstance(schema, st.StructType):
        parsed = schema
    elif isinstance(schema, str):
        try:
            parsed = cast(st.StructType, st.StructType.fromDDL(schema))
        except Exception as error:
            reason = str(error).strip().splitlines()[0]
            raise InvalidArgumentError(
                f"{owner}: schema {schema!r} does not parse: {reason}"
            ) from None
    else:
        raise InvalidArgumentError(
            f"{owner}: schema is DDL such as 'key string, n long' or a StructType, not "
            f"{shown(schema)}"
        )
    twice = names_twice(parsed.names)
    if twice:
        raise InvalidArgumentError(f"{owner}: schema names {', '.join(twice)} more than once")
    return parsed


def names_twice(names: Sequence[str]) -> list[str]:
    """The names that several columns have in Spark, which ignores case; in lower case."""
    counts = Counter(name.lower() for name in names)
    return sorted(name for name, count in counts.items() if count > 1)


def refuse_reserved(names: Iterable[str], owner: str) -> None:
    """Raise `InvalidArgumentError` for a column whose name is reserved for pystate."""
    for name in names:
        if name.lower().startswith(_RESERVED):
            raise InvalidArgumentError(
                f"{owner}: column {name!r}: names that begin with {_RESERVED} are pystate's own"
            )


def key_schema(
    schema: st.StructType, names: Sequence[str], owner: str, *, marked: bool = True
) -> KeySchema:
    """The types of the key columns, under the schema's names, with marks of null structs.

    What they are, `pystate.types.keys` says; without `marked` there are none.
    """
    if not names:
        raise InvalidArgumentError(f"{owner}: key_by needs at least one column")
    if len(set(names)) != len(names):
        raise InvalidArgumentError(f"{owner}: a key column is named twice: {', '.join(names)}")
    columns = []
    for name, data_type in key_leaves(schema, names, marked=marked):
        if isinstance(data_type, st.StringType) and data_type != st.StringType():
            raise WrongTypeError(
                f"{owner}: key column {name!r} is {data_type.simpleString()}: under a collation "
                "different bytes can be one key, but key groups come from the bytes; normalise "
                f"it first, e.g. lower({name}), with the UTF8_BINARY collation"
            )
        ddl = ddl_of(data_type)
        if ddl is None:
            raise WrongTypeError(
                f"{owner}: key column {name!r} is {data_type.simpleString()}, which cannot be a "
                f"key: cast it to one of {', '.join(sorted(_DDL.values()))} or decimal"
            )
        columns.append((name, ddl))
    return tuple(columns)


def key_leaves(
    schema: st.StructType, names: Sequence[str], *, marked: bool = True
) -> list[tuple[str, st.DataType]]:
    """The key columns that some columns stand for: themselves, or the fields of a struct."""
    leaves: list[tuple[str, st.DataType]] = []
    for name in names:
        data_type = schema[name].dataType
        if isinstance(data_type, st.StructType) and data_type.fields:
            leaves += _leaves(quoted(name), data_type, marked=marked)
        else:
            leaves.append((name, data_type))
    return leaves


def _leaves(path: str, struct: st.StructType, *, marked: bool) -> list[tuple[str, st.DataType]]:
    leaves: list[tuple[str, st.DataType]] = []
    for field in struct.fields:
        below = f"{path}.{quoted(field.name)}"
        if isinstance(field.dataType, st.StructType) and field.dataType.fields:
            leaves += _leaves(below, field.dataType, marked=marked)
        else:
            leaves.append((below, field.dataType))
    if marked:
        leaves.append((null_mark(path), st.BooleanType()))
    return leaves


def _require_arrow(field: st.StructField, owner: str) -> None:
    try:
        to_arrow_type(field.dataType, timezone="UTC")
    except PySparkTypeError:
        instead = "string" if isinstance(field.dataType, (st.CharType, st.VarcharType)) else "long"
        raise WrongTypeError(
            f"{owner}: column {field.name!r} is {field.dataType.simpleString()}, which Spark does "
            f"not hand to Python or take from it: cast it to another type, e.g. {instead}"
        ) from None


def output_columns(schema: st.StructType, owner: str) -> OutputColumns:
    """Columns passed between Spark and a worker, in Arrow's types."""
    for field in schema:
        _require_arrow(field, owner)
    ddl = [ddl_of(field.dataType) or field.dataType.simpleString() for field in schema]
    return OutputColumns(to_arrow_schema(schema, timezone="UTC"), owner, ddl)
