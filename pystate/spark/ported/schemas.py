"""Schemas of a processor's states: Spark's structs as types of pystate, and values on their way.

Spark takes and gives a state's value as a tuple of the schema's fields, by position. Inside it a
struct is taken as a tuple, by position too, or as a dict, and given back as a `Row`. A timestamp is
given and taken without a time zone, as local time; one that has a time zone is taken as well.

Thread safety: immutable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias

from pyspark.sql.types import StructType

from pystate.errors import PystateError
from pystate.operators.runtime.output import parse_columns
from pystate.spark.base.errors import StatefulProcessorError
from pystate.spark.ported.rows import row_class
from pystate.types.state_type import StateType, parse_type

_Convert: TypeAlias = "Callable[[Any], Any]"
_ForStruct: TypeAlias = "Callable[[list[str], list[_Convert | None]], _Convert]"


class Struct:
    """The schema of a state's values, or of a map's keys.

    It is `plain` if a tuple and what the state takes and gives are the same.
    """

    def __init__(self, type: StateType, what: str) -> None:
        self.type = type
        self.what = what
        self.names = tuple(name for name, _ in type.children)
        self._size = len(self.names)
        self._ins = [_conversion(child, _as_instant, _to_dict) for _, child in type.children]
        self._outs = [_conversion(child, _as_local, _to_row) for _, child in type.children]
        self.plain = not any(self._ins) and not any(self._outs)

    def pack(self, value: Any) -> tuple[Any, ...]:
        """Turn what Spark takes into the tuple that a state of this type takes."""
        fields: tuple[Any, ...]
        if type(value) is tuple and self.plain and len(value) == self._size:
            return value
        if isinstance(value, Mapping):
            fields = tuple(map(value.get, self.names))
        elif isinstance(value, Iterable):
            # As Spark takes it: of a string each character is a value.
            fields = tuple(value)
        else:
            raise self.misfit(value)
        if len(fields) != self._size:
            raise self.misfit(value)
        return fields if self.plain else tuple(map(_convert, self._ins, fields))

    def unpack(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        """Turn the tuple that a state of this type gives into what Spark gives."""
        return value if self.plain else tuple(map(_convert, self._outs, value))

    def misfit(self, value: Any) -> StatefulProcessorError:
        """The error for a value that is no tuple of these fields."""
        fields = ", ".join(self.names)
        return StatefulProcessorError(
            f"{self.what}: it takes a tuple of {len(self.names)} values, ({fields}), got "
            f"{value!r:.80}"
        )


def _convert(convert: _Convert | None, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)


def read_struct(schema: Any, what: str, *, nullable: bool = False) -> Struct:
    """Read a schema: a `StructType`, or DDL such as ``"n long, at timestamp"``.

    With `nullable` no field of it may be NOT NULL, which says nothing of what is inside a field.
    """
    if not isinstance(schema, (str, StructType)):
        raise StatefulProcessorError(
            f"{what}: its schema is a StructType or DDL such as 'n long', not {schema!r:.80}"
        )
    try:
        if isinstance(schema, StructType):
            parsed = parse_type(schema, what)
            required = [field.name for field in schema.fields if not field.nullable]
        else:
            columns = parse_columns(schema, what)
            required = [
                n for n, not_null in zip(columns.names, columns.required, strict=True) if not_null
            ]
            fields = zip(columns.names, columns.ddl, strict=True)
            parsed = StateType("struct", children=tuple((n, parse_type(d)) for n, d in fields))
    except PystateError as error:
        raise StatefulProcessorError(str(error)) from error
    if nullable and required:
        raise StatefulProcessorError(
            f"[TRANSFORM_WITH_STATE_SCHEMA_MUST_BE_NULLABLE] {what}: {', '.join(required)} cannot "
            "be NOT NULL: the fields of a state may be null, so that later versions of it can add "
            "and drop fields; make the schema nullable"
        )
    return Struct(parsed, what)


# -- inside a value


def _conversion(type: StateType, timestamp: _Convert, struct: _ForStruct) -> _Convert | None:
    """Converts values that are not None between Spark and a state; None: they stay as they are.

    The directions differ in timestamps and structs: `struct` takes the names of the fields and
    their conversions.
    """
    if type.name == "timestamp":
        return timestamp
    children = [_conversion(child, timestamp, struct) for _, child in type.children]
    if type.name == "struct":
        return struct([name for name, _ in type.children], children)
    if type.name == "array":
        [each] = children
        return None if each is None else partial(_each, each)
    if type.name == "map":
        key, item = children
        return None if key is None and item is None else partial(_entries, key, item)
    return None


def _to_dict(names: list[str], children: list[_Convert | None]) -> _Convert:
    return partial(_as_dict, list(zip(names, children, strict=True)))


def _to_row(names: list[str], children: list[_Convert | None]) -> _Convert:
    return partial(_as_row, row_class(tuple(names)), children)


def _as_instant(value: Any) -> Any:
    # A Timestamp of pandas is a datetime, but `astimezone` is another method of it.
    if hasattr(value, "to_pydatetime"):
        value = value.to_pydatetime()
    # A datetime without a time zone is local time, as everywhere in PySpark.
    return value.astimezone() if getattr(value, "tzinfo", value) is None else value


def _as_local(value: Any) -> Any:
    return value.astimezone().replace(tzinfo=None)


def _as_dict(inner: list[tuple[str, _Convert | None]], value: Any) -> Any:
    if isinstance(value, Mapping):
        fields = {name: value.get(name) for name, _ in inner}
    elif isinstance(value, (tuple, list)) and len(value) == len(inner):
        fields = {name: each for (name, _), each in zip(inner, tuple(value), strict=True)}
    else:
        return value
    for name, convert in inner:
        if convert is not None and fields[name] is not None:
            fields[name] = convert(fields[name])
    return fields


def _as_row(row: type[Any], inner: list[_Convert | None], value: dict[str, Any]) -> Any:
    return tuple.__new__(
        row,
        [
            each if convert is None or each is None else convert(each)
            for each, convert in zip(value.values(), inner, strict=True)
        ],
    )


def _each(convert: _Convert, values: Any) -> list[Any]:
    return [None if value is None else convert(value) for value in values]


def _entries(key: _Convert | None, item: _Convert | None, entries: Any) -> dict[Any, Any]:
    return {
        k if key is None else key(k): v if item is None or v is None else item(v)
        for k, v in entries.items()
    }
