"""Which keys a filter leaves: read out of the Arrow expression that an engine hands to a table.

An engine, having optimised a statement, hands a table the filter that its rows must pass, as an
expression of Arrow. pyarrow lets nobody look into one, but it can be written down, as it is when it
is sent to another process: a list of pairs, `call`, `field_ref`, `literal` and `end` among them, in
the metadata of a record batch whose columns have the literals. What is not understood of it does
not restrict the keys, so that more is read than needed, and nothing is missed.

Thread safety: functions without state.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pystate.types.key_codes import key_codes

#: More keys than these are not looked up one by one, and more ways to pass a filter are not told
#: apart.
MOST_KEYS, _MOST_WAYS = 1 << 18, 1 << 12

#: The values that columns may have in rows that pass, one dict for each way to pass; None if
#: nothing is known, and an empty list if no row passes.
_Ways: TypeAlias = "list[dict[str, pa.Array[Any]]] | None"
_ANY: _Ways = None


@dataclass(frozen=True)
class _Field:
    name: str


@dataclass(frozen=True)
class _Literal:
    value: pa.Scalar[Any]


class _Schema(ctypes.Structure):
    """The beginning of the struct of Arrow's C data interface that has a schema."""

    _fields_ = (
        ("format", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("metadata", ctypes.c_void_p),
    )


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def wanted_keys(expression: Any, key: pa.Schema) -> list[pa.Array[Any]] | None:
    """The columns of all keys that rows can have which pass a filter; None if too many can.

    Each key is there once.
    """
    if any(pa.types.is_floating(field.type) or pa.types.is_nested(field.type) for field in key):
        return None  # -0.0 is 0.0, and NaN is itself, for some engines only
    ways = _ways_of(expression)
    if ways is None or any(field.name not in way for way in ways for field in key):
        return None
    found: list[list[pa.Array[Any]]] = [[pa.array([], field.type)] for field in key]
    count = 0
    for way in ways:
        try:
            columns = [way[field.name].cast(field.type) for field in key]
        except pa.ArrowException:
            return None
        lengths = [len(column) for column in columns]
        count += prod(lengths)
        if count > MOST_KEYS:
            return None
        for column, place, several in zip(columns, np.indices(lengths), found, strict=True):
            several.append(column.take(pa.array(place.ravel())))
    arrays = [pa.concat_arrays(several) for several in found]
    if not count:
        return arrays
    once: Any = np.unique(key_codes(arrays, dense=True), return_index=True)[1]
    return [array.take(once) for array in arrays]


def compared_columns(expression: Any, names: Iterable[str]) -> frozenset[str]:
    """The columns that a filter compares; all, if that is not understood."""
    written = _written(expression)
    if written is None:
        return frozenset(names)
    return frozenset(text for what, text in written[0] if what == "field_ref")


def _ways_of(expression: Any) -> _Ways:
    written = _written(expression)
    if written is None:
        return _ANY
    steps, literals = written
    calls: list[list[Any]] = [[]]
    steps_left = iter(steps)
    for what, text in steps_left:
        if what == "call":
            calls.append([])
        elif what == "end":
            arguments = calls.pop()
            calls[-1].append(_called(text, arguments))
        elif what == "field_ref":
            calls[-1].append(_Field(text))
        elif what == "nested_field_ref":
            for _ in range(int(text)):
                next(steps_left)
            calls[-1].append(_ANY)
        elif what in ("literal", "options"):
            calls[-1].append(_Literal(literals.column(int(text))[0]))
        else:
            return _ANY
    [[whole]] = calls
    return _ways(whole)


def _written(expression: Any) -> tuple[list[tuple[str, str]], pa.RecordBatch] | None:
    """The steps by which an expression is made, and its literals; None if that is not known."""
    try:
        _, (buffer,) = expression.__reduce__()
        with pa.ipc.open_file(buffer) as file:
            literals = file.get_batch(0)
    except (TypeError, ValueError, pa.ArrowException):
        return None  # of a pyarrow that writes it otherwise
    # A key may be there several times, which pyarrow's own metadata does not show.
    capsule = literals.schema.__arrow_c_schema__()
    address = _capsule_pointer(capsule, b"arrow_schema")
    schema = ctypes.cast(address, ctypes.POINTER(_Schema)).contents
    texts = list(_texts(schema.metadata)) if schema.metadata else []
    return list(zip(texts[::2], texts[1::2], strict=True)), literals


def _texts(address: int) -> Iterator[str]:
    """The keys and values of metadata, by turns, as Arrow's C data interface has them."""

    def number(at: int) -> int:
        return int(ctypes.c_int32.from_address(at).value)

    at = address + 4
    for _ in range(2 * number(address)):
        length = number(at)
        yield ctypes.string_at(at + 4, length).decode()
        at += 4 + length


def _ways(argument: Any) -> _Ways:
    if isinstance(argument, _Literal) and pa.types.is_boolean(argument.value.type):
        return _ANY if argument.value.as_py() else []
    return argument if isinstance(argument, list) else _ANY


def _called(function: str, arguments: list[Any]) -> _Ways:
    """In which ways rows can pass for which a function says true of its arguments."""
    if function in ("and", "and_kleene"):
        return _both(*map(_ways, arguments))
    if function in ("or", "or_kleene"):
        return _either(*map(_ways, arguments))
    match function, arguments:
        case "if_else", [_, then, _Literal() as otherwise] if not otherwise.value.as_py():
            return _ways(then)
        case "equal", [_Field(name), _Literal(value)] | [_Literal(value), _Field(name)]:
            return [{name: pa.array([value.as_py()], value.type)}] if value.is_valid else []
        case "is_in", [_Field(name), _Literal(options)] if isinstance(options, pa.StructScalar):
            members: Any = options["value_set"]
            return [{name: members.values}]
        case "is_null", [_Field(name), *_]:
            return [{name: pa.nulls(1)}]
    return _ANY


def _both(left: _Ways, right: _Ways) -> _Ways:
    if left is None or right is None:
        return right if left is None else left
    if len(left) * len(right) > _MOST_WAYS:
        return left if len(left) < len(right) else right
    ways = []
    for one in left:
        for other in right:
            way = {**one, **other}
            for name in one.keys() & other.keys():
                way[name] = _common(one[name], other[name])
            if all(map(len, way.values())):
                ways.append(way)
    return ways


def _common(one: pa.Array[Any], other: pa.Array[Any]) -> pa.Array[Any]:
    """The values that both have; or those of one, if they cannot be compared."""
    if pa.types.is_null(one.type):
        one, other = other, one
    try:
        among = pc.SetLookupOptions(other.cast(one.type))
    except pa.ArrowException:
        return one
    return one.filter(pc.call_function("is_in", [one], among))


def _either(left: _Ways, right: _Ways) -> _Ways:
    if left is None or right is None:
        return None
    if len(left) == len(right) == 1 and len(left[0]) == 1 and left[0].keys() == right[0].keys():
        [(name, one)], [other] = left[0].items(), right[0].values()
        if one.type == other.type:
            return [{name: pa.concat_arrays([one, other])}]
    return [*left, *right]
