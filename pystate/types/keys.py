"""Keys: their declaration, and the columns that hold them.

Pure functions, safe from any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from pystate._core import core
from pystate.errors import DeclarationError, InvalidArgumentError, WrongTypeError
from pystate.types.arrays import is_column
from pystate.types.ddl import path_parts, quoted
from pystate.types.state_type import StateType, TypeLike, parse_type, refuse_nested_key

__all__ = [
    "MAX_PARALLELISM",
    "KeyColumns",
    "KeyLike",
    "describe",
    "key_columns",
    "leaf",
    "leaves",
    "parse_key",
]

KeyLike: TypeAlias = "TypeLike | Mapping[str, TypeLike] | Sequence[tuple[str, TypeLike]]"
KeyColumns: TypeAlias = tuple[tuple[str, StateType], ...]

#: The most key groups that an operator may have, as in Flink and in the core.
MAX_PARALLELISM = 32768


def parse_key(key: KeyLike) -> KeyColumns:
    """Key columns by name; a single type makes one column named ``key``.

    Examples
    --------
    >>> parse_key({"carrier": "string", "flight": "int"})
    (('carrier', StateType('string')), ('flight', StateType('int')))
    """
    pairs: Iterable[Any]
    if isinstance(key, Mapping):
        pairs = key.items()
    elif isinstance(key, (list, tuple)):
        pairs = key
    else:
        pairs = [("key", key)]
    columns = []
    for pair in pairs:
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2 and isinstance(pair[0], str)):
            raise DeclarationError(
                f"key: {pair!r:.80} is no column; write a type, a mapping of names to types, or a "
                "list of (name, type)"
            )
        name, what = pair[0], f"key column {pair[0]!r}"
        type_ = refuse_nested_key(parse_type(pair[1], what), what)
        if type_.is_object:
            raise DeclarationError(
                f"key column {name!r}: objects are no keys; pickle them to "
                "binary yourself if equal ones have equal bytes"
            )
        columns.append((name, type_))
    if not 0 < len(columns) <= core.MAX_KEYS:
        raise DeclarationError(f"a key has 1 to {core.MAX_KEYS} columns, got {len(columns)}")
    if len(dict(columns)) != len(columns):
        raise DeclarationError(f"key: a column's name is used twice: {describe(columns)}")
    return tuple(columns)


def leaves(name: str, type: StateType) -> list[tuple[str, StateType]]:
    """The key columns that a column stands for: itself, or the fields of a struct.

    Examples
    --------
    >>> leaves("k", parse_type("struct<a:long,b:struct<`c d`:int>>"))
    [('k.a', StateType('long')), ('k.b.`c d`', StateType('int'))]
    """
    if type.name != "struct":
        return [(name, type)]
    return [pair for part, child in type.children for pair in _below(quoted(name), part, child)]


def _below(path: str, name: str, type: StateType) -> list[tuple[str, StateType]]:
    path = f"{path}.{quoted(name)}"
    if type.name != "struct":
        return [(path, type)]
    return [pair for part, child in type.children for pair in _below(path, part, child)]


def leaf(rows: pa.RecordBatch | pa.Table, name: str) -> Any:
    """A key's column, which may be a field of a struct; a field of a null struct is null."""
    if name in rows.schema.names:
        return rows.column(name)
    first, *path = path_parts(name)
    if not path or first not in rows.schema.names:
        raise InvalidArgumentError(
            f"key column {name!r} is not among {', '.join(rows.schema.names)}"
        )
    return pc.call_function("struct_field", [rows.column(first)], pc.StructFieldOptions(path))


def key_columns(key: KeyColumns, columns: Any) -> Sequence[Any]:
    """Return one column-like per key column from what `KeyedStateBackend.keys` was given."""
    if isinstance(columns, (pa.RecordBatch, pa.Table)):
        return [leaf(columns, name) for name, _ in key]
    several = isinstance(columns, (list, tuple)) and len(columns) == len(key)
    if len(key) == 1:
        return columns if several and is_column(columns[0]) else [columns]
    if not several:
        raise WrongTypeError(
            f"the key has {len(key)} columns ({describe(key)}): pass a list of as many columns"
        )
    found: Sequence[Any] = columns
    return found


def describe(columns: Iterable[tuple[str, StateType]]) -> str:
    """Columns as DDL, for messages."""
    return ", ".join(f"{name} {type_.ddl}" for name, type_ in columns)
