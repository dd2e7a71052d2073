"""The types that keys and states may have.

A type is written as a Spark DDL string (``"long"``, ``"decimal(12,2)"``), as a `pyarrow.DataType`,
or as ``object`` for pickled Python objects. All types are immutable; everything here is safe from
any thread.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from pystate import _core
from pystate.errors import DeclarationError

__all__ = ["SUPPORTED", "StateType", "TypeLike", "from_code", "parse_type"]

TypeLike: TypeAlias = "str | pa.DataType | type[object] | StateType"

SUPPORTED = (
    "boolean, byte (tinyint), short (smallint), int, long (bigint), float, double, date, "
    "timestamp, timestamp_ntz, decimal(p,s), string, binary, and object for states"
)

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

_DECIMAL = re.compile(r"(?:decimal|dec|numeric)\s*(?:\(\s*(\d+)\s*(?:,\s*(-?\d+)\s*)?\))?")


@dataclass(frozen=True, slots=True)
class StateType:
    """The type of a key column or a state.

    Attributes
    ----------
    name : str
        Without parameters: ``"long"``, ``"decimal"``.
    precision, scale : int
        Of a decimal, else 0.

    Examples
    --------
    >>> parse_type("bigint")
    StateType('long')
    >>> parse_type("decimal(12, 2)").arrow
    Decimal128Type(decimal128(12, 2))
    """

    name: str
    precision: int = 0
    scale: int = 0

    @property
    def ddl(self) -> str:
        """The type as Spark DDL, ``"object"`` for pickled objects."""
        if self.name == "decimal":
            return f"decimal({self.precision},{self.scale})"
        return self.name

    @property
    def code(self) -> int:
        """The core's number for the type, part of the file format."""
        return _core.TYPE_CODES["timestamp" if self.name == "timestamp_ntz" else self.name]

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type that columns of it have."""
        if self.name == "decimal":
            return pa.decimal128(self.precision, self.scale)
        return _ARROW[self.name]

    @property
    def is_object(self) -> bool:
        """Whether values are pickled."""
        return self.name == "object"

    @property
    def is_bytes(self) -> bool:
        """Whether values have a variable width."""
        return self.name in ("string", "binary", "object")

    def column(self, name: str, default: Any = None) -> _core._ColumnSpec:
        """The column as `_core.Schema` takes it."""
        return name, self.code, self.precision, self.scale, self.ddl, default

    def codec(self, name: str) -> _core.Codec:
        """What turns this type's Python values into the core's and back."""
        return _core.Codec(name, self.code, self.precision, self.scale, self.ddl)

    def __repr__(self) -> str:
        return f"StateType({self.ddl!r})"

    def __str__(self) -> str:
        return self.ddl


def parse_type(type: TypeLike, what: str = "type") -> StateType:
    """Read a type in any of its spellings.

    Parameters
    ----------
    type : str, pyarrow.DataType or object
        A Spark DDL string, in any case; an Arrow type; or the class ``object``.
    what : str
        What the type is of, for errors: ``"state 'legs'"``.

    Raises
    ------
    DeclarationError
        Unknown, or not supported yet. The message names the type and those that are supported.

    Examples
    --------
    >>> import pyarrow as pa
    >>> parse_type("LONG") == parse_type(pa.int64())
    True
    >>> parse_type(object).is_object
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
    name = getattr(type, "__name__", None)
    hint = f"; for {name} write {_PYTHON_TYPES[name]!r}" if name in _PYTHON_TYPES else ""
    raise DeclarationError(
        f"{what}: {type!r:.80} is no type{hint}; write a Spark DDL string, a pyarrow type or "
        f"object. Supported: {SUPPORTED}"
    )


def _parse_ddl(text: str, what: str) -> StateType:
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
    raise _unsupported(text, what)


def _decimal(precision: int, scale: int, text: object, what: str) -> StateType:
    if not (1 <= precision <= 38 and 0 <= scale <= precision):
        raise DeclarationError(
            f"{what}: {text}: a decimal has a precision of 1 to 38, and a scale of 0 to that"
        )
    return StateType("decimal", precision, scale)


def _parse_arrow(type: pa.DataType, what: str) -> StateType:
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
    raise _unsupported(type, what)


def _unsupported(type: object, what: str) -> DeclarationError:
    text = str(type)
    nested = re.match(r"\s*(array|map|struct|list|large_list|variant|interval|void|null)\b", text)
    known = "is not supported yet" if nested else "is not supported"
    return DeclarationError(
        f"{what}: type {text!r} {known}. Supported: {SUPPORTED}"
        + ("; a state of nested values can be declared as object" if nested else "")
    )


def from_code(code: int, precision: int, scale: int) -> StateType:
    """The type that a file's column has.

    Notes
    -----
    Files do not tell ``timestamp`` and ``timestamp_ntz`` apart: both are 64 bits of microseconds.
    """
    for name, number in _core.TYPE_CODES.items():
        if number == code:
            return StateType(name, precision, scale)
    raise DeclarationError(f"type code {code} is not known")
