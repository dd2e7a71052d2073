"""Nested values: structs, arrays and maps as bytes, one by one and as columns; codecs of any type.

The core keeps a nested value as bytes. A struct of fixed-width fields has a constant width and is
stored in the row itself; any other value has a variable width. ``csrc/FORMAT.md`` describes both
byte by byte. Nothing is pickled, and bytes are checked before they are used.

Thread safety: a codec is immutable and safe from any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pystate._core import core
from pystate.base.arguments import duplicates
from pystate.errors import CorruptFileError, DeclarationError, InvalidArgumentError, WrongTypeError
from pystate.types.arrays import as_array, bitmap, is_column, validated
from pystate.types.state_type import StateType, TypeLike, parse_type

_BINARY = StateType("binary")


class NestedCodec(core.NestedCodec):
    """Turns the values of one nested type into bytes and back.

    Equal values have equal bytes: a map's entries are sorted by their keys, every NaN is the quiet
    positive one, and -0.0 as a map's key is 0.0. Elsewhere -0.0 keeps its sign, as it does in a
    ``double`` state.

    A struct may be given as a mapping, a named tuple or a Spark ``Row``, by the names of its
    fields, or as a plain tuple of all its fields; a missing field is null, an unknown one is
    refused. An array may be given as a list, a tuple, another sequence, a numpy or Arrow array; a
    map as a mapping or a list of (key, value). Decoding returns a dict for a struct, a list for an
    array, and a dict in the keys' order for a map.

    >>> codec = NestedCodec("struct<x:int,tags:array<string>>", "point")
    >>> codec.decode(codec.encode({"x": 1, "tags": ["a", None]}))
    {'x': 1, 'tags': ['a', None]}
    >>> codec.encode({"tags": ["a", 7]})
    Traceback (most recent call last):
    pystate.errors.WrongTypeError: state 'point': field tags[1] is string: it does not take 7 (int)
    """

    type: StateType

    def __new__(cls, type: TypeLike, name: str = "value") -> NestedCodec:
        """Read the type, and compute its layout."""
        parsed = parse_type(type, f"state {name!r}")
        if not parsed.is_nested:
            raise DeclarationError(f"state {name!r}: {parsed.ddl} is no struct, array or map")
        codec = super().__new__(cls, name, parsed.code, parsed.ddl, _node(parsed))
        codec.type = parsed
        return codec

    def __init__(self, type: TypeLike, name: str = "value") -> None:
        super().__init__(name, self.type.code, self.type.ddl, self.root)

    def __reduce__(self) -> tuple[Any, tuple[str, str]]:
        return NestedCodec, (self.type.ddl, self.name)

    def encode(self, value: Any) -> bytes:
        """The value's bytes.

        `WrongTypeError` names the state, the path and both types; `StateOverflowError`: a number is
        out of its type's range; `InvalidArgumentError`: the bytes are more than 256 MiB.
        """
        return self.pack(value)

    def decode(self, data: bytes | bytearray | memoryview) -> Any:
        """The value that was encoded.

        `CorruptFileError`: `encode` cannot have written these bytes; `StateOverflowError`: a date
        or timestamp is outside Python's years 1 to 9999.
        """
        return self.unpack(data)

    def encode_array(self, values: Any) -> pa.Array[Any]:
        """Encode a column: ``binary``, or ``fixed_size_binary`` for an inline struct; nulls stay.

        An Arrow column may differ from the declared type if a cast loses nothing, at any depth: see
        `pystate.types.arrays.as_array`. Fields of structs are matched by name.
        """
        what = f"state {self.name!r}"
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if isinstance(values, pa.ChunkedArray):
            raise InvalidArgumentError(
                f"{what}: a column of more than 2 GiB does not fit one array: pass it in parts"
            )
        if not isinstance(values, pa.Array):
            return self._encode_python(values, what)
        validated(values, what)
        columns = core.NestedColumns(self)
        _bind(columns, 0, _of_kind(values, self.type, what), self.type, what)
        offsets, data = columns.encode(len(values))
        nulls = values.null_count
        buffers = [None if offsets is None else pa.py_buffer(offsets), pa.py_buffer(data)]
        validity = bitmap(np.asarray(values.is_valid(), np.uint8)) if nulls else None
        return pa.Array.from_buffers(
            self.type.stored_arrow,
            len(values),
            [validity, *(b for b in buffers if b is not None)],
            nulls,
        )

    def _encode_python(self, values: Any, what: str) -> pa.Array[Any]:
        if is_column(values):
            values = values.tolist()
        elif not isinstance(values, Sequence) or isinstance(values, (str, bytes)):
            raise WrongTypeError(f"{what}: a column is a sequence of values, got {values!r:.80}")
        encoded = [None if value is None else self.pack(value) for value in values]
        return pa.array(encoded, self.type.stored_arrow)

    def decode_array(self, array: pa.Array[Any]) -> pa.Array[Any]:
        """Decode a column of bytes into one of the declared type; null where a row is null.

        `CorruptFileError` names a row whose bytes `encode` cannot have written.
        """
        array = self._stored(validated(array, f"state {self.name!r}: the stored column"))
        buffers = array.buffers()
        offsets = 0 if self.inline_bytes else _address(buffers[1])
        columns = core.nested_columns(
            self,
            len(array),
            array.offset,
            _validity(array),
            offsets,
            _address(buffers[-1]),
            _size(buffers[-1]),
        )
        return _build(self.type, iter(columns))

    def _stored(self, array: pa.Array[Any]) -> pa.Array[Any]:
        if array.type.equals(self.type.stored_arrow):
            return array
        array = as_array(array, _BINARY, f"state {self.name!r}: the stored column")
        if not self.inline_bytes:
            return array
        try:
            return array.cast(self.type.stored_arrow)
        except pa.ArrowInvalid as error:
            raise CorruptFileError(
                f"state {self.name!r}: stored bytes are no {self.type.ddl}, which takes "
                f"{self.inline_bytes}: {error}"
            ) from error


def _node(type: StateType) -> core.NestedNode:
    return core.NestedNode(
        type.name,
        0 if type.is_nested else type.code,
        type.precision,
        type.scale,
        type.ddl,
        tuple(name for name, _ in type.children),
        tuple(_node(child) for _, child in type.children),
    )


# -- Arrow in


def _bind(columns: core.NestedColumns, i: int, array: Any, type: StateType, what: str) -> int:
    """Bind the arrays of type `i` in preorder and its children; return the next type's number."""
    if not type.is_nested:
        array = as_array(array, type, what)
        buffers = array.buffers()
        offsets = _address(buffers[1]) if len(buffers) > 2 else 0
        values, size = _address(buffers[-1]), _size(buffers[-1])
        columns.set(i, array.offset, _validity(array), values, offsets, 0, len(array), size, array)
        return i + 1
    array = _of_kind(array, type, what)
    if type.name == "struct":
        columns.set(i, array.offset, _validity(array), 0, 0, 0, len(array), 0, array)
        i += 1
        for (name, child), field in zip(type.children, _fields(array, type, what), strict=True):
            i = _bind(columns, i, field, child, _path(what, f".{name}"))
        return i
    first = last = 0
    if len(array):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    offsets = _address(array.buffers()[1])
    columns.set(i, array.offset, _validity(array), 0, offsets, first, len(array), 0, array)
    i += 1
    below = [array.values] if type.name == "array" else [array.keys, array.items]
    steps = ["[]"] if type.name == "array" else [".key", ".value"]
    for (_, child), values, step in zip(type.children, below, steps, strict=True):
        i = _bind(columns, i, values.slice(first, last - first), child, _path(what, step))
    return i


def _path(what: str, step: str) -> str:
    return what + step if ": field " in what else f"{what}: field {step.removeprefix('.')}"


def _validity(array: pa.Array[Any]) -> int:
    return _address(array.buffers()[0]) if array.null_count else 0


def _address(buffer: pa.Buffer | None) -> int:
    return 0 if buffer is None else buffer.address


def _size(buffer: pa.Buffer | None) -> int:
    return 0 if buffer is None else buffer.size


def _of_kind(array: pa.Array[Any], type: StateType, what: str) -> Any:
    """The array as a struct, a list with 32-bit offsets, or a map."""
    source = array.type
    if pa.types.is_null(source):
        return _nulls(len(array), type)
    if type.name == "struct" and pa.types.is_struct(source):
        return array
    if type.name == "map" and pa.types.is_map(source):
        return array
    if type.name == "array":
        if pa.types.is_list(source):
            return array
        if _is_other_list(source):
            return array.cast(pa.list_(source.value_field))
    raise WrongTypeError(f"{what} is {type.ddl}: a column of {source} is not cast to it")


def _nulls(length: int, type: StateType) -> pa.Array[Any]:
    wanted: Any = type.arrow
    nulls: pa.Array[Any] = pa.nulls(length, wanted)
    return nulls


def _is_other_list(source: pa.DataType) -> bool:
    return (
        pa.types.is_large_list(source)
        or pa.types.is_fixed_size_list(source)
        or pa.types.is_list_view(source)
        or pa.types.is_large_list_view(source)
    )


def _fields(array: Any, type: StateType, what: str) -> list[pa.Array[Any]]:
    """The struct's fields in the declared order, sliced as the array is."""
    names = [array.type.field(i).name for i in range(array.type.num_fields)]
    known, twice = dict(type.children), set(duplicates(names))
    for name in names:
        if name not in known or name in twice:
            why = "has no such field" if name not in known else "has it once"
            raise WrongTypeError(f"{what} is {type.ddl}: a column's field {name!r}: it {why}")
    # Values under a null struct are not cast: they may be anything.
    hide = array.null_count and not array.type.equals(type.arrow)
    fields = array.flatten() if hide else [array.field(i) for i in range(len(names))]
    by_name = dict(zip(names, fields, strict=True))
    return [
        by_name[name] if name in by_name else _nulls(len(array), child)
        for name, child in type.children
    ]


# -- Arrow out


def _build(type: StateType, parts: Iterator[Any]) -> pa.Array[Any]:
    length, nulls, validity, values, offsets = next(parts)
    children = [_build(child, parts) for _, child in type.children]
    wanted: Any = type.arrow
    buffers = [None if validity is None else pa.py_buffer(validity)]
    buffers += [pa.py_buffer(part) for part in (offsets, values) if part is not None]
    if type.name == "map":
        fields = pa.struct([wanted.key_field, wanted.item_field])
        children = [pa.Array.from_buffers(fields, len(children[0]), [None], 0, children=children)]
    return pa.Array.from_buffers(wanted, length, buffers, nulls, children=children)


def codec_of(type: StateType, name: str, label: str = "") -> core.Codec:
    """A state's or column's codec; `label` is what errors begin with, if not the state's name."""
    if type.is_nested:
        return NestedCodec(type, name)
    return core.Codec(name, type.code, type.precision, type.scale, type.ddl, label)
