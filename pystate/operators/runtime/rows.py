"""Rows as a function sees them: Arrow batches turned into light tuples with names.

Thread safety: a `RowFactory` is immutable; the rows are too.
"""

from __future__ import annotations

import keyword
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as at

from pystate._core import calls, core
from pystate.base.arguments import duplicates, nearest
from pystate.errors import InvalidArgumentError
from pystate.types.arrays import datetimes, reference
from pystate.types.keys import has_null_marks
from pystate.types.state_type import StateType

#: Columns whose values the core makes one at a time, when they are asked for.
READABLE: dict[pa.DataType, StateType] = {
    StateType(name).arrow: StateType(name)
    for name in ("boolean", "byte", "short", "int", "long", "double", "string")
}

if TYPE_CHECKING:
    _Named: TypeAlias = tuple[Any, ...]
else:
    _Named = calls.named_tuple()


class Row(_Named):
    """One input row: ``row["name"]``, ``row[0]``, and ``row.name`` if that is an identifier.

    It is a tuple: it compares, unpacks and hashes like one, and may be kept. Like Spark's `Row` it
    supports ``"name" in row`` and `asDict`. A column takes precedence over a method: if there are
    columns of these names, ``row.count`` and ``row.asDict`` are the columns; ``row["count"]``
    always is the column.

    There is no ``get``, ``keys``, ``values`` or ``items``, since columns may have these names:
    ``row.asDict()`` has them. `_fields` of the class holds the column names.
    """

    __slots__ = ()
    _fields: ClassVar[tuple[str, ...]] = ()
    #: The core finds a name's value by it.
    __positions__: ClassVar[dict[str, int]] = {}

    def __other_item__(self, item: Any) -> Any:
        """The item if it is neither an int nor a column's name."""
        if type(item) is str:
            raise KeyError(_no_column(item, self._fields))
        return tuple.__getitem__(self, item)

    def __contains__(self, item: object) -> bool:
        # As in row[item]: a string is a column's name; anything else is looked up in the tuple.
        return item in self.__positions__ if type(item) is str else tuple.__contains__(self, item)

    def asDict(self, recursive: bool = False) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The columns by name; `recursive`: structs inside the row become dicts, too."""
        values = map(_as_dicts, self) if recursive else self
        return dict(zip(self._fields, values, strict=True))

    def __getattr__(self, name: str) -> Any:
        # Reached only if no column and no tuple attribute has that name.
        raise AttributeError(_no_column(name, self._fields, attribute=True))

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{n}={v!r}' for n, v in zip(self._fields, self, strict=True))})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_row, (self._fields, tuple(self))


@lru_cache(maxsize=256)
def _no_column(name: str, known: tuple[str, ...], *, attribute: bool = False) -> str:
    """The message about a name that is asked for; kept, because `hasattr` asks for each row."""
    if attribute and name in known:
        hint = f"; write row[{name!r}]"
    elif attribute and hasattr(dict, name) and not name.startswith("_"):
        hint = "; row.asDict() is a dict"
    else:
        hint = nearest(name, known)
    return f"no column {name!r}; columns: {', '.join(known)}{hint}"


def _as_dicts(value: Any) -> Any:
    if isinstance(value, Row):
        return value.asDict(recursive=True)
    if type(value) is list:
        return list(map(_as_dicts, value))
    if type(value) is dict:
        return {key: _as_dicts(each) for key, each in value.items()}
    return value


def _restore_row(names: tuple[str, ...], values: tuple[Any, ...]) -> Row:
    return tuple.__new__(_row_class(names), values)


@lru_cache(maxsize=256)
def _row_class(names: tuple[str, ...]) -> type[Row]:
    members: dict[str, Any] = {
        "__slots__": (),
        "_fields": names,
        "__positions__": {name: i for i, name in enumerate(names)},
    }
    # namedtuple's own field descriptors read a slot in C; a property would cost a Python call.
    getters = namedtuple("getters", [f"field{i}" for i in range(len(names))])  # type: ignore[misc]
    for i, name in enumerate(names):
        if name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("_"):
            members[name] = getters.__dict__[f"field{i}"]
    return type("Row", (Row,), members)


def key_maker(types: Sequence[StateType], names: Sequence[str]) -> Callable[[Iterable[Any]], Any]:
    """Return a function that makes a key of its parts: rows of structs, a tuple of several.

    The names are those of `pystate.types.keys.leaves`, or these without the marks of null structs.
    """
    marked = has_null_marks(names, types)
    makers = [part_maker(type_, _row_class, marked=marked) for type_ in types]

    def make(parts: Iterable[Any]) -> Any:
        rest = iter(parts)
        key = tuple(maker(rest) for maker in makers)
        return key[0] if len(key) == 1 else key

    return make


def part_maker(
    type: StateType, row_class: Callable[[tuple[str, ...]], Any], *, marked: bool
) -> Callable[[Iterator[Any]], Any]:
    """Return a function that makes the value of one column of a key from its parts.

    `row_class` gives the class of rows of some names; parts that are `marked` have the marks of
    null structs.
    """
    if type.name != "struct":
        return next
    row = row_class(tuple(name for name, _ in type.children))
    makers = [part_maker(child, row_class, marked=marked) for _, child in type.children]

    def make(rest: Iterator[Any]) -> Any:
        value = tuple.__new__(row, [maker(rest) for maker in makers])
        return None if marked and next(rest) else value

    return make


def key_parts(key: Any, types: Sequence[StateType], names: Sequence[str]) -> tuple[Any, ...]:
    """The parts of a key that is given as a function sees it; structs may be tuples or mappings."""
    marked = has_null_marks(names, types)
    parts: list[Any] = []

    def refuse() -> NoReturn:
        wanted = ", ".join(type_.ddl for type_ in types)
        raise InvalidArgumentError(f"the key {key!r:.80} is not as a function sees it: {wanted}")

    def add(value: Any, type: StateType) -> None:
        if type.name != "struct":
            parts.append(value)
            return
        fields = type.children
        if value is None:
            values: Iterable[Any] = [None] * len(fields)
        elif isinstance(value, Mapping) and {*value} == {name for name, _ in fields}:
            values = [value[name] for name, _ in fields]
        elif isinstance(value, tuple) and len(value) == len(fields):
            values = value
        else:
            refuse()
        for each, (_, child) in zip(values, fields, strict=True):
            add(each, child)
        if marked:
            parts.append(True if value is None else None)

    columns = (key,) if len(types) == 1 else key
    if not isinstance(columns, tuple) or len(columns) != len(types):
        refuse()
    for value, type_ in zip(columns, types, strict=True):
        add(value, type_)
    return tuple(parts)


class RowFactory:
    """Makes the rows of batches with the given columns.

    Two columns of one name are refused: ``row["x"]`` could mean either.
    """

    def __init__(self, names: Sequence[str]) -> None:
        twice = sorted(duplicates(names))
        if twice:
            raise InvalidArgumentError(
                f"two input columns are called {', '.join(twice)}: rename or drop one"
            )
        self._row = _row_class(tuple(names))
        self._make: Callable[[tuple[Any, ...]], Row] = partial(tuple.__new__, self._row)

    def source(self, batch: pa.RecordBatch) -> calls.RowSource:
        """The rows of a batch, which are made when they are asked for."""
        source = calls.RowSource(self._row, batch.num_columns)
        source.fill(0, list(map(readable, batch.columns, batch.schema.names)))
        return source

    def rows(self, batch: pa.RecordBatch) -> Iterator[Row]:
        """The rows of a batch, in order."""
        return self.source(batch).rows(0, batch.num_rows if batch.num_columns else 0)


def python_values(array: pa.Array[Any], name: str) -> list[Any]:
    """The values of an array, a column of that name, as Python objects, None for null.

    A timestamp becomes an aware `datetime` in UTC, whatever the session's time zone, and is an
    InvalidArgumentError outside Python's years 1 to 9999. A struct becomes a `Row` and a map a
    dict, also inside other values. If a map has a key twice, the last value is kept, as in PySpark.
    Only a map whose keys are structs, arrays or maps becomes a list of pairs.
    """
    plain = READABLE.get(array.type)
    if plain is not None:
        return calls.ColumnReader(reference(array, plain)).to_list()
    if not (at.is_timestamp(array.type) and array.type.unit == "us"):
        values: list[Any] = array.to_pylist()
        convert = _converter(array.type)
        return values if convert is None else list(map(convert, values))
    try:
        return datetimes(array)
    except OverflowError as error:
        raise InvalidArgumentError(
            f"column {name!r}: {error} microseconds since 1970 is no timestamp that Python can "
            "hold (years 1 to 9999); filter such rows out, or use a VectorizedFunction"
        ) from None


def unreadable(rows: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which rows have a value that Python cannot hold, such as a date after the year 9999."""
    bad = np.zeros(rows.num_rows, np.bool_)
    for column, name in zip(rows.columns, rows.schema.names, strict=True):
        parts = [(0, len(column))]
        while parts:
            begin, end = parts.pop()
            if _is_held(column.slice(begin, end - begin), name):
                continue
            if end - begin == 1:
                bad[begin] = True
            else:
                middle = (begin + end) // 2
                parts += [(begin, middle), (middle, end)]
    return bad


def _is_held(column: pa.Array[Any], name: str) -> bool:
    try:
        calls.ColumnReader(readable(column, name)).to_list()
    except (InvalidArgumentError, ValueError, OverflowError):
        return False
    return True


def readable(
    array: pa.Array[Any],
    name: str,
    values: Callable[[pa.Array[Any], str], list[Any]] = python_values,
) -> core.ArrayRef | list[Any]:
    """The values of an array for a reader of the core; they are those of `values`."""
    plain = READABLE.get(array.type)
    return values(array, name) if plain is None else reference(array, plain)


#: Converts structs to rows and maps to dicts in a value, in place.
_Convert: TypeAlias = "Callable[[Any], Any]"


@lru_cache(maxsize=1024)
def _converter(arrow_type: Any) -> _Convert | None:
    """Return a converter of structs to rows, and of maps to dicts, for the values of `to_pylist`.

    It is None if the type has neither. Arrow makes dicts of structs; of maps only newer versions do
    than the oldest supported one.
    """
    if at.is_map(arrow_type):
        return _map_converter(arrow_type)
    if at.is_struct(arrow_type):
        fields = [arrow_type.field(i) for i in range(arrow_type.num_fields)]
        parts = [(f.name, c) for f in fields if (c := _converter(f.type)) is not None]
        return _row_converter(tuple(f.name for f in fields), parts)
    if at.is_dictionary(arrow_type) or _is_list(arrow_type):
        inner = _converter(arrow_type.value_type)
        if inner is None or at.is_dictionary(arrow_type):
            return inner
        return lambda value: None if value is None else list(map(inner, value))
    return None


def _map_converter(arrow_type: Any) -> _Convert | None:
    inner = _converter(arrow_type.item_type)
    if at.is_nested(arrow_type.key_type):
        if inner is None:
            return None
        return lambda value: None if value is None else [(k, inner(v)) for k, v in value]
    if inner is None:
        return lambda value: None if value is None else dict(value)
    return lambda value: None if value is None else {k: inner(v) for k, v in value}


def _row_converter(names: tuple[str, ...], parts: list[tuple[str, _Convert]]) -> _Convert:
    make = partial(tuple.__new__, _row_class(names))

    def convert(value: Any) -> Any:
        if value is None:
            return None
        for name, part in parts:
            value[name] = part(value[name])
        return make([value[name] for name in names])

    return convert


def _is_list(arrow_type: pa.DataType) -> bool:
    return bool(
        at.is_list(arrow_type)
        or at.is_large_list(arrow_type)
        or at.is_fixed_size_list(arrow_type)
        or at.is_list_view(arrow_type)
        or at.is_large_list_view(arrow_type)
    )
