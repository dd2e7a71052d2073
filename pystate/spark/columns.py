"""Between Spark's types and Arrow's: key columns in, result columns out.

Spark says neither which column nor which type was wrong where an Arrow batch differs from the
declared schema; here every column is cast, or refused with its name and both types.

Thread safety: all objects are immutable.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at
from pyspark.sql import types as st
from pyspark.sql.pandas.types import to_arrow_schema

from pystate.errors import InvalidArgumentError, WrongTypeError

__all__ = ["KeySchema", "OutputColumns", "ddl_of", "key_schema", "parse_schema", "require_columns"]

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
    """Return `schema` as a struct; a DDL string such as ``"tailnum string, legs long"`` is parsed.

    Raises
    ------
    InvalidArgumentError
        Neither, or it does not parse; `owner` names what the schema was given to.
    """
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
            f"{owner}: schema must be DDL such as 'key string, n long' or a StructType, "
            f"got {type(schema).__qualname__}"
        )
    names = [name.lower() for name in parsed.names]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidArgumentError(f"{owner}: schema names {', '.join(twice)} more than once")
    return parsed


def require_columns(schema: st.StructType, names: Iterable[str], owner: str) -> None:
    """Raise `InvalidArgumentError` unless every name is exactly one column of `schema`."""
    for name in names:
        found = schema.names.count(name)
        if found != 1:
            problem = "is not a column" if not found else f"is the name of {found} columns"
            raise InvalidArgumentError(
                f"{owner}: {name!r} {problem}; columns: {', '.join(schema.names)}"
            )


def key_schema(schema: st.StructType, names: Sequence[str], owner: str) -> KeySchema:
    """The key columns' types.

    Raises
    ------
    InvalidArgumentError
        A column that is not there, or is named twice.
    WrongTypeError
        A type that cannot be a key: nested, an interval, or a string with a collation.
    """
    if not names:
        raise InvalidArgumentError(f"{owner}: key_by needs at least one column")
    require_columns(schema, names, owner)
    if len(set(names)) != len(names):
        raise InvalidArgumentError(f"{owner}: a key column is named twice: {', '.join(names)}")
    columns = []
    for name in names:
        data_type = schema[name].dataType
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


class OutputColumns:
    """The declared result of an operator, and how values get its types.

    Parameters
    ----------
    schema : StructType
        The declared columns.
    owner : str
        What the errors name, e.g. ``"operator 'aircraft'"``.
    """

    def __init__(self, schema: st.StructType, owner: str) -> None:
        self.owner = owner
        self.declared = schema
        declared = to_arrow_schema(schema, timezone="UTC")
        self.required = tuple(not field.nullable for field in declared)
        self.names = tuple(schema.names)
        self.ddl = tuple(ddl_of(f.dataType) or f.dataType.simpleString() for f in schema)
        self.schema = pa.schema([pa.field(field.name, field.type) for field in declared])

    def from_rows(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """Turn what a function yielded, one tuple per row, into a batch.

        Raises
        ------
        WrongTypeError
            A row that is no tuple, has another number of values, or holds a value that its column
            cannot; the message names the column, the value and both types.
        """
        for kind in set(map(type, rows)):
            if not issubclass(kind, (tuple, list)):
                raise WrongTypeError(
                    f"{self.owner} yielded {_shown(next(r for r in rows if type(r) is kind))}: "
                    f"yield a tuple with a value for each of {', '.join(self.names)}"
                )
        try:
            columns = list(zip(*rows, strict=True))
        except ValueError:
            columns = []
        if rows and len(columns) != len(self.names):
            wrong = next(row for row in rows if len(row) != len(self.names))
            raise WrongTypeError(
                f"{self.owner} yielded {len(wrong)} values, {_shown(wrong)}; its schema has "
                f"{len(self.names)} columns: {', '.join(self.names)}"
            )
        if not rows:
            return self.empty()
        arrays = [self._array(i, column) for i, column in enumerate(columns)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def empty(self) -> pa.RecordBatch:
        """A batch without rows."""
        return pa.RecordBatch.from_arrays(
            [pa.array([], field.type) for field in self.schema], schema=self.schema
        )

    def from_value(self, value: object) -> list[pa.RecordBatch]:
        """Turn what a vectorised function yielded into batches of the declared types.

        Parameters
        ----------
        value : RecordBatch, Table, or mapping from column name to array
            Columns are matched by name.
        """
        if isinstance(value, Mapping):
            value = pa.table({str(name): column for name, column in value.items()})
        if isinstance(value, pa.Table):
            return [self._cast_batch(batch) for batch in value.combine_chunks().to_batches()]
        if isinstance(value, pa.RecordBatch):
            return [self._cast_batch(value)]
        raise WrongTypeError(
            f"{self.owner} yielded {_shown(value)}: yield a pyarrow RecordBatch, a Table, or a "
            "dict of arrays"
        )

    def _array(self, index: int, values: Sequence[Any]) -> pa.Array[Any]:
        arrow_type = self.schema.field(index).type
        try:
            array = _exact_array(values, arrow_type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            bad = next((v for v in values if not _fits(v, arrow_type)), None)
            raise WrongTypeError(
                f"{self.owner}: column {self.names[index]!r} is declared {self.ddl[index]} and "
                f"got {_shown(bad)} of type {type(bad).__qualname__}: {error}"
            ) from None
        return self._checked(index, array)

    def _cast_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.schema.equals(self.schema) and not any(self.required):
            return batch
        if sorted(batch.schema.names) != sorted(self.names):
            raise WrongTypeError(
                f"{self.owner} yielded columns {', '.join(batch.schema.names)}; its schema has "
                f"{', '.join(self.names)}"
            )
        arrays = [
            self._checked(i, self._cast(i, batch.column(name))) for i, name in enumerate(self.names)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _cast(self, index: int, array: pa.Array[Any]) -> pa.Array[Any]:
        wanted = self.schema.field(index).type
        if array.type == wanted:
            return array
        if isinstance(array, pa.DictionaryArray):
            array = array.dictionary_decode()
        reason: object = "it would lose or change values"
        if castable(array.type, wanted):
            try:
                return pc.cast(array, wanted, safe=True)
            except pa.ArrowException as error:
                reason = error
        raise WrongTypeError(
            f"{self.owner}: column {self.names[index]!r} is declared {self.ddl[index]} and got "
            f"Arrow type {array.type}, which is not cast: {reason}"
        )

    def _checked(self, index: int, array: pa.Array[Any]) -> pa.Array[Any]:
        if self.required[index] and array.null_count:
            raise WrongTypeError(
                f"{self.owner}: column {self.names[index]!r} is declared not null and got a null"
            )
        return array


def castable(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a cast keeps the meaning; whether it keeps each value, a safe cast finds out.

    Numbers become numbers and text stays text; a number never becomes text or the reverse.
    """
    if source == target or at.is_null(source):
        return True
    if at.is_nested(source):
        return type(source) is type(target)
    families = (_is_number, _is_text, _is_bytes, _is_day_or_instant)
    return any(member(source) and member(target) for member in families)


def _is_number(arrow_type: pa.DataType) -> bool:
    return bool(
        at.is_integer(arrow_type) or at.is_floating(arrow_type) or at.is_decimal(arrow_type)
    )


def _is_text(arrow_type: pa.DataType) -> bool:
    return bool(
        at.is_string(arrow_type) or at.is_large_string(arrow_type) or at.is_string_view(arrow_type)
    )


def _is_bytes(arrow_type: pa.DataType) -> bool:
    return bool(
        at.is_binary(arrow_type)
        or at.is_large_binary(arrow_type)
        or at.is_fixed_size_binary(arrow_type)
        or at.is_binary_view(arrow_type)
    )


def _is_day_or_instant(arrow_type: pa.DataType) -> bool:
    return bool(at.is_date(arrow_type) or at.is_timestamp(arrow_type))


def _exact_array(values: Sequence[Any], arrow_type: pa.DataType) -> pa.Array[Any]:
    """An array of the values where `pyarrow.array` alone would round, cut or guess.

    It makes integers of floats and dates of datetimes by cutting them, and takes a datetime
    without a time zone for one in UTC. Inside nested types its own rules hold.
    """
    kinds = set(map(type, values)) - {type(None)}
    if at.is_integer(arrow_type) and kinds - {int}:
        inferred = pa.array(values)
        if not castable(inferred.type, arrow_type):
            raise TypeError(f"{inferred.type} is not cast to {arrow_type}")
        exact: pa.Array[Any] = pc.cast(inferred, arrow_type, safe=True)
        return exact
    if at.is_date(arrow_type) and any(issubclass(kind, datetime.datetime) for kind in kinds):
        raise TypeError("a datetime is no date: take its date()")
    if at.is_timestamp(arrow_type):
        for value in values:
            if isinstance(value, datetime.datetime) and (value.tzinfo is None) != (
                arrow_type.tz is None
            ):
                raise TypeError(
                    "a timestamp needs a datetime with a time zone, timestamp_ntz one without"
                )
    return pa.array(values, type=arrow_type)


def _fits(value: Any, arrow_type: pa.DataType) -> bool:
    try:
        _exact_array([value], arrow_type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return True


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
