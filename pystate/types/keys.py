"""Keys: their declaration, and the columns that hold them.

A struct is a key by the columns of its fields, and by one more that tells a null struct from one
whose fields are null, as SQL does. That column is true for a null struct, and null for all others,
since a null leaves the hash of a key as it is: the key group of a struct is that of its fields. The
keys of operators that an earlier version has begun have no such columns; in them both are one.

Pure functions, safe from any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from pystate._core import core
from pystate.errors import DeclarationError, InvalidArgumentError, WrongTypeError
from pystate.types.arrays import is_column, is_many
from pystate.types.ddl import path_parts, quoted
from pystate.types.state_type import StateType, TypeLike, parse_type, refuse_nested_key

KeyLike: TypeAlias = "TypeLike | Mapping[str, TypeLike] | Sequence[tuple[str, TypeLike]]"
KeyColumns: TypeAlias = tuple[tuple[str, StateType], ...]

#: The most key groups that an operator may have, as in Flink and in the core.
MAX_PARALLELISM = 32768

_MARK = " is null"
_MARK_TYPE = StateType("boolean")


def parse_key(key: KeyLike) -> KeyColumns:
    """Key columns by name; a single type makes one column named ``key``.

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
        raise DeclarationError(
            f"a key has 1 to {core.MAX_KEYS} columns, got {len(columns)}; a struct stands for its "
            "fields, and one column more that says whether it is null"
        )
    if len(dict(columns)) != len(columns):
        raise DeclarationError(f"key: a column's name is used twice: {describe(columns)}")
    return tuple(columns)


def leaves(name: str, type: StateType) -> list[tuple[str, StateType]]:
    """The key columns that a column stands for: itself, or the fields of a struct and its mark.

    >>> leaves("k", parse_type("struct<a:long,b:int>"))
    [('k.a', StateType('long')), ('k.b', StateType('int')), ('k is null', StateType('boolean'))]
    """
    return [(name, type)] if type.name != "struct" else _below(quoted(name), type)


def _below(path: str, struct: StateType) -> list[tuple[str, StateType]]:
    columns: list[tuple[str, StateType]] = []
    for name, child in struct.children:
        below = f"{path}.{quoted(name)}"
        columns += [(below, child)] if child.name != "struct" else _below(below, child)
    return [*columns, (null_mark(path), _MARK_TYPE)]


def null_mark(path: str) -> str:
    """The key column that is true where the struct of a path is null, and null elsewhere."""
    return path + _MARK


def marked_struct(name: str) -> str | None:
    """The path of the struct that a key column marks; None if it is a column of another kind."""
    # The name of a field that ends like that is in backticks, which are behind it.
    return name.removesuffix(_MARK) if name.endswith(_MARK) else None


def null_marks(key: KeyColumns) -> dict[int, str]:
    """The structs that some of the key's columns mark, by the place of the column.

    Where someone names keys these columns may be left out: then no struct is null.
    """
    structs = {i: marked_struct(name) for i, (name, type_) in enumerate(key) if type_ == _MARK_TYPE}
    return {i: struct for i, struct in structs.items() if struct is not None}


def has_null_marks(names: Sequence[str], types: Sequence[StateType]) -> bool:
    """Whether the key columns that stand for columns of these types have marks of null structs."""
    return len(names) == sum(len(leaves("k", type_)) for type_ in types)


def leaf(rows: pa.RecordBatch | pa.Table, name: str) -> Any:
    """A key's column, which may be a field of a struct; a field of a null struct is null."""
    if name in rows.schema.names:
        return rows.column(name)
    struct = marked_struct(name)
    if struct is not None and path_parts(struct)[0] in rows.schema.names:
        null = pc.call_function("is_null", [_inside(rows, struct, name)])
        none = pa.scalar(None, pa.bool_())
        return pc.call_function("if_else", [null, pa.scalar(True), none])
    return _inside(rows, name, name)


def _inside(rows: pa.RecordBatch | pa.Table, path_text: str, name: str) -> Any:
    """A column of rows, or a field inside of one."""
    first, *path = path_parts(path_text)
    if not path and first in rows.schema.names and path_text != name:
        return rows.column(first)
    if not path or first not in rows.schema.names:
        raise InvalidArgumentError(
            f"key column {name!r} is not among {', '.join(rows.schema.names)}"
        )
    return pc.call_function("struct_field", [rows.column(first)], pc.StructFieldOptions(path))


def whole(rows: pa.RecordBatch, name: str, type: StateType) -> pa.Array[Any]:
    """A key's column, rebuilt from the columns of its fields, and from marks of null structs."""
    if type.name != "struct":
        return rows.column(name)
    return _rebuilt(rows, quoted(name), type)


def _rebuilt(rows: pa.RecordBatch, path: str, struct: StateType) -> pa.Array[Any]:
    parts = []
    for name, child in struct.children:
        below = f"{path}.{quoted(name)}"
        nested = child.name == "struct"
        parts.append(_rebuilt(rows, below, child) if nested else rows.column(below))
    fields = [pa.field(n, part.type) for (n, _), part in zip(struct.children, parts, strict=True)]
    nulls = rows.column(null_mark(path)).is_valid()
    rebuilt: pa.Array[Any] = pa.StructArray.from_arrays(parts, fields=fields, mask=nulls)
    return rebuilt


def key_columns(key: KeyColumns, columns: Any) -> Sequence[Any]:
    """Return one column-like per key column from what `KeyedStateBackend.keys` was given."""
    marks = null_marks(key)
    if isinstance(columns, (pa.RecordBatch, pa.Table)):
        names = columns.schema.names
        left_out = {i for i in marks if not {key[i][0], path_parts(marks[i])[0]} & {*names}}
        none = pa.nulls(columns.num_rows, pa.bool_())
        return [none if i in left_out else leaf(columns, name) for i, (name, _) in enumerate(key)]
    if marks:
        columns = _with_null_marks(columns, marks, len(key))
    several = isinstance(columns, (list, tuple)) and len(columns) == len(key)
    if len(key) == 1:
        return columns if several and is_column(columns[0]) else [columns]
    if not several:
        raise WrongTypeError(
            f"the key has {len(key)} columns ({describe(key)}): pass a list of as many columns"
        )
    given: Sequence[Any] = columns
    return given


def _with_null_marks(columns: Any, marks: Mapping[int, str], most: int) -> Any:
    """The columns with those of the marks, if they were left out."""
    several = isinstance(columns, (list, tuple)) and all(map(is_many, columns))
    if not several and most - len(marks) == 1:
        columns, several = [columns], True
    if not several or len(columns) != most - len(marks):
        return columns
    rest, none = iter(columns), pa.nulls(len(columns[0]), pa.bool_())
    return [none if i in marks else next(rest) for i in range(most)]


def describe(columns: Iterable[tuple[str, StateType]]) -> str:
    """Columns as DDL, for messages."""
    return ", ".join(f"{name} {type_.ddl}" for name, type_ in columns)
