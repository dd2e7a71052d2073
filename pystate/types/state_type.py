"""The types that keys and states may have.

A type is written as a Spark DDL string (``"long"``, ``"decimal(12,2)"``), as a `pyarrow.DataType`,
as a type of PySpark (``LongType()``), or as ``object`` for pickled Python objects. All types are
immutable; everything here is safe from any thread.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from pystate._core import core
from pystate.base.arguments import nearest
from pystate.errors import DeclarationError
from pystate.types import ddl

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

TypeLike: TypeAlias = "str | pa.DataType | DataType | type[object] | StateType"

SUPPORTED = (
    "boolean, byte (tinyint), short (smallint), int, long (bigint), float, double, date, "
    "timestamp, timestamp_ntz, decimal(p,s), string, binary; of these struct<name:type,...>, "
    "array<type> and map<key,value>; and object for states"
)

_FIXED_CODE, _NESTED_CODE = 14, 15

_UTC_MICROSECONDS = pa.timestamp("us", tz="UTC")

_ARROW: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": _UTC_MICROSECONDS,
    "timestamp_ntz": pa.timestamp("us"),
    "string": pa.string(),
    "binary": pa.binary(),
    "object": pa.binary(),
}

_NUMBERS = ("byte", "short", "int", "long", "float", "double", "decimal")

_SYNONYMS = {
    "tinyint": "byte",
    "smallint": "short",
    "integer": "int",
    "bigint": "long",
    "real": "float",
    "timestamp_ltz": "timestamp",
    "dec": "decimal",
    "numeric": "decimal",
}

_PYTHON_TYPES = {
    "bool": "boolean",
    "int": "long",
    "float": "double",
    "str": "string",
    "bytes": "binary",
    "bytearray": "binary",
    "date": "date",
    "datetime": "timestamp",
    "Decimal": "decimal(p,s)",
}


_SPARK_TYPES = "pyspark.sql.types"
_DECIMAL = re.compile(r"(?:decimal|dec|numeric)\s*(?:\(\s*(\d+)\s*(?:,\s*(-?\d+)\s*)?\))?")


@dataclass(frozen=True, slots=True)
class StateType:
    """The type of a key column or a state.

    >>> parse_type("bigint")
    StateType('long')
    >>> point = parse_type("STRUCT<x: double, y: double>")
    >>> point.ddl, point.is_inline, point.inline_bytes
    ('struct<x:double,y:double>', True, 24)
    """

    name: str
    precision: int = 0
    scale: int = 0
    #: The fields of a struct; ``element`` of an array; ``key`` and ``value`` of a map.
    children: tuple[tuple[str, StateType], ...] = ()

    @property
    def ddl(self) -> str:
        """The type as Spark DDL, ``"object"`` for pickled objects."""
        if self.name == "decimal":
            return f"decimal({self.precision},{self.scale})"
        if self.name == "struct":
            fields = (f"{ddl.quoted(name)}:{child.ddl}" for name, child in self.children)
            return f"struct<{','.join(fields)}>"
        if self.children:
            return f"{self.name}<{','.join(child.ddl for _, child in self.children)}>"
        return self.name

    @property
    def code(self) -> int:
        """The core's number for the type, part of the file format."""
        if self.is_nested:
            return _FIXED_CODE if self.is_inline else _NESTED_CODE
        return core.TYPE_CODES["timestamp" if self.name == "timestamp_ntz" else self.name]

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of its columns."""
        if self.name == "decimal":
            return pa.decimal128(self.precision, self.scale)
        children = [child.arrow for _, child in self.children]
        if self.name == "struct":
            names = (name for name, _ in self.children)
            return pa.struct([pa.field(n, t) for n, t in zip(names, children, strict=True)])
        if self.name == "array":
            return pa.list_(pa.field("element", children[0]))
        if self.name == "map":
            return pa.map_(*children)
        return _ARROW[self.name]

    @property
    def stored_arrow(self) -> pa.DataType:
        """The Arrow type of the core's columns: bytes for nested values, else `arrow`."""
        if self.is_nested:
            return pa.binary(self.inline_bytes or -1)
        return self.arrow

    @property
    def is_object(self) -> bool:
        """Whether values are pickled."""
        return self.name == "object"

    @property
    def is_number(self) -> bool:
        """Whether values can be added."""
        return self.name in _NUMBERS

    @property
    def is_time(self) -> bool:
        """Whether values are dates or times, which can be compared but not added."""
        return self.name in ("date", "timestamp", "timestamp_ntz")

    @property
    def is_bytes(self) -> bool:
        """Whether values have a variable width."""
        return self.name in ("string", "binary", "object") or (
            self.is_nested and not self.is_inline
        )

    @property
    def is_nested(self) -> bool:
        """Whether values are structs, arrays or maps."""
        return self.name in ddl.NESTED

    @property
    def is_inline(self) -> bool:
        """Whether values are structs of fixed-width fields, stored in the row itself."""
        return inline_layout(self) is not None

    @property
    def inline_bytes(self) -> int:
        """The width of an inline struct, a multiple of 8 up to 256; 0 for any other type."""
        if self.name != "struct":
            return 0
        layout = inline_layout(self)
        return 0 if layout is None else layout[0]

    def __repr__(self) -> str:
        return f"StateType({self.ddl!r})"

    def __str__(self) -> str:
        return self.ddl


@lru_cache(maxsize=1024)
def inline_layout(type: StateType) -> tuple[int, tuple[tuple[int, int], ...]] | None:
    """The layout of an inline struct, None for others: its width, per field a bit and an offset.

    The bit says that the field is not null. The offset is that of its value, -1 for an inner
    struct, which comes before its own fields.
    """
    if type.name != "struct":
        return None
    types = list(_preorder(type))
    if any(name == "object" for name, *_ in types):
        return None
    size, places = core.nested_places(types)
    return (size, places) if size else None


def _preorder(type: StateType) -> Iterator[tuple[str, int, int, int]]:
    yield type.name, 0 if type.is_nested else type.code, type.precision, len(type.children)
    for _, child in type.children:
        yield from _preorder(child)


def parse_type(type: TypeLike, what: str = "type") -> StateType:
    """Read a type in any of its spellings; `what` it belongs to is named in errors.

    Any field of a struct, any element and any map value may be null. ``NOT NULL`` and ``COMMENT``
    in DDL and ``nullable=False`` of an Arrow field are accepted, but have no effect. A map's key is
    never null, and is a scalar. Names of fields keep their case; a name that is not an identifier
    is written in backticks.

    >>> parse_type("array< struct<`a b`:INT NOT NULL> >")
    StateType('array<struct<`a b`:int>>')
    >>> parse_type("LONG") == parse_type(pa.int64())
    True
    """
    if isinstance(type, StateType):
        return type
    if type is object:
        return StateType("object")
    if isinstance(type, str):
        return _parse_ddl(type, what)
    if isinstance(type, pa.DataType):
        return _parse_arrow(type, what)
    if is_spark_type(type):
        return _parse_spark(type, what)
    name = getattr(type, "__name__", None)
    hint = f"; for {name} write {_PYTHON_TYPES[name]!r}" if name in _PYTHON_TYPES else ""
    if name is not None and builtins.type(type).__module__ == _SPARK_TYPES:
        hint = f"; pass an object of it, {name}()"
    raise DeclarationError(
        f"{what}: {type!r:.80} is no type{hint}; write a Spark DDL string, a type of pyarrow or "
        f"pyspark, or object. Supported: {SUPPORTED}"
    )


def _parse_ddl(text: str, what: str) -> StateType:
    if ddl.is_nested(text):
        # Written once: each of the fields would take as long as the whole text.
        return _of_word(ddl.read_nested(text, what), f"{what}: {text!r:.200}")
    name = text.strip().lower()
    name = _SYNONYMS.get(name, name)
    match = _DECIMAL.fullmatch(name)
    if match:
        return _decimal(int(match[1] or 10), int(match[2] or 0), text, what)
    if name in _ARROW:
        return StateType(name)
    if re.match(r"string\s+collate\b", name):
        raise DeclarationError(
            f"{what}: {text!r}: strings with a collation are refused, because equal keys would "
            "have unequal bytes; use a plain string"
        )
    raise _unsupported_error(text, what)


def _of_word(word: ddl.Word, what: str) -> StateType:
    if word.text in ddl.NESTED:
        children = [(name, _of_word(child, what)) for name, child in word.children]
        return _nested(word.text, children, what)
    type_ = _parse_ddl(word.text, what)
    if type_.is_object:
        raise DeclarationError(
            f"{what}: there are no objects inside a nested type; declare the state as object"
        )
    return type_


def _nested(kind: str, children: list[tuple[str, StateType]], what: str) -> StateType:
    if not children:
        raise DeclarationError(f"{what}: a struct has at least one field")
    if len(dict(children)) != len(children):
        raise DeclarationError(f"{what}: a struct has two fields of the same name")
    if kind == "map" and children[0][1].is_nested:
        raise DeclarationError(
            f"{what}: a map's keys are scalars, not {children[0][1].ddl}: Python's dict cannot "
            "hold such keys; use an array of structs"
        )
    return StateType(kind, children=tuple(children))


def _decimal(precision: int, scale: int, text: object, what: str) -> StateType:
    if not (1 <= precision <= 38 and 0 <= scale <= precision):
        raise DeclarationError(
            f"{what}: {text}: a decimal has a precision of 1 to 38, and a scale of 0 to that"
        )
    return StateType("decimal", precision, scale)


def _parse_arrow(type: pa.DataType, what: str, depth: int = 0) -> StateType:
    if _is_list(type) or pa.types.is_map(type) or pa.types.is_struct(type):
        return _parse_nested_arrow(type, what, depth)
    if isinstance(type, pa.Decimal128Type):
        return _decimal(type.precision, type.scale, type, what)
    if isinstance(type, pa.TimestampType):
        if type.unit != "us":
            raise DeclarationError(
                f"{what}: {type}: timestamps have microseconds: pa.timestamp('us', tz='UTC'), or "
                "without tz for timestamp_ntz"
            )
        return StateType("timestamp_ntz" if type.tz is None else "timestamp")
    if pa.types.is_large_string(type):
        return StateType("string")
    if pa.types.is_large_binary(type):
        return StateType("binary")
    for name, arrow in _ARROW.items():
        if arrow.equals(type):
            return StateType(name)
    raise _unsupported_error(type, what)


def _is_list(type: pa.DataType) -> bool:
    return (
        pa.types.is_list(type) or pa.types.is_large_list(type) or pa.types.is_fixed_size_list(type)
    )


def _parse_nested_arrow(type: Any, what: str, depth: int) -> StateType:
    if depth >= ddl.MAX_DEPTH:
        raise DeclarationError(f"{what}: more than {ddl.MAX_DEPTH} levels of nesting")
    kind, fields = (
        "struct",
        [(type.field(i).name, type.field(i).type) for i in range(type.num_fields)],
    )
    if pa.types.is_map(type):
        kind, fields = "map", [("key", type.key_type), ("value", type.item_type)]
    elif _is_list(type):
        kind, fields = "array", [("element", type.value_type)]
    children = [(name, _parse_arrow(child, what, depth + 1)) for name, child in fields]
    return _nested(kind, children, f"{what}: {str(type)!r:.200}")


def is_spark_type(type: object) -> bool:
    """Whether something is one of PySpark's types, which need not be installed."""
    kinds = builtins.type(type).__mro__
    return any(k.__module__ == _SPARK_TYPES and k.__name__ == "DataType" for k in kinds)


def _parse_spark(type: Any, what: str, depth: int = 0) -> StateType:
    if depth >= ddl.MAX_DEPTH:
        raise DeclarationError(f"{what}: more than {ddl.MAX_DEPTH} levels of nesting")
    kind = type.typeName()
    if kind == "struct":
        fields = [(field.name, field.dataType) for field in type.fields]
    elif kind == "array":
        fields = [("element", type.elementType)]
    elif kind == "map":
        fields = [("key", type.keyType), ("value", type.valueType)]
    else:
        return _parse_ddl(type.simpleString(), what)
    children = [(name, _parse_spark(child, what, depth + 1)) for name, child in fields]
    return _nested(kind, children, f"{what}: {type.simpleString()!r:.200}")


def _unsupported_error(type: object, what: str) -> DeclarationError:
    text = str(type)
    later = re.match(r"\s*(variant|interval|void|null)\b", text)
    known = "is not supported yet" if later else "is not supported"
    near = nearest(text, [*_ARROW, *_SYNONYMS, "decimal"])
    return DeclarationError(f"{what}: type {text!r} {known}; supported: {SUPPORTED}{near}")


def refuse_nested_key(type: StateType, what: str) -> StateType:
    """A key column's type, which is not nested: keys are hashed as Spark SQL hashes scalars."""
    if type.is_nested:
        instead = (
            "make each field that counts a key column of its own"
            if type.ddl.startswith("struct")
            else "make a string, or binary, of it"
        )
        raise DeclarationError(f"{what}: {type.ddl} is no type of a key; {instead}")
    return type


def from_code(code: int, precision: int, scale: int) -> StateType:
    """The type of a column in a file.

    Files do not distinguish ``timestamp`` and ``timestamp_ntz``: both are 64 bits of microseconds.
    """
    for name, number in core.TYPE_CODES.items():
        if number == code:
            return StateType(name, precision, scale)
    raise DeclarationError(f"type code {code} is not known")
