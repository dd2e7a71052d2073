"""Columns of yielded structs, arrays and maps, under the same rules as states.

Arrow itself would take a named tuple by position, truncate floats inside to integers, and accept a
datetime without a time zone as UTC and a number as an instant.

Thread safety: all objects are immutable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at

from pystate.errors import DeclarationError, PystateError, WrongTypeError
from pystate.types.nested import NestedCodec


class NestedColumn:
    """Makes arrays of one nested type.

    Parameters
    ----------
    name : str
        The column.
    arrow_type : pyarrow.DataType
        Its declared type; a field inside it that is not nullable refuses nulls.
    codec : NestedCodec
        The codec of that type.

    Notes
    -----
    Each value is converted to the bytes that a state would keep, and back: a map's entries come out
    in the order of its keys. That takes 1.2 to 2 times as long as `pyarrow.array` for dicts and
    lists, and up to 8 times for structs as tuples.
    """

    def __init__(self, name: str, arrow_type: pa.DataType, codec: NestedCodec) -> None:
        self._arrow_type = arrow_type
        self._codec = codec
        self._label = f"state {name!r}"

    @classmethod
    def of(cls, name: str, arrow_type: pa.DataType) -> NestedColumn | None:
        """Make it for a column; None if the type is not nested, or unknown to states."""
        if not at.is_nested(arrow_type):
            return None
        try:
            return cls(name, arrow_type, NestedCodec(arrow_type, name))
        except DeclarationError:
            return None

    def array(self, values: Sequence[Any]) -> pa.Array[Any]:
        """An array of the values.

        Raises
        ------
        WrongTypeError
            A value is not of the type; the message begins with the field's path.
        """
        try:
            encoded = self._codec.encode_array(values)
        except PystateError as error:
            raise WrongTypeError(self._reason(str(error))) from None
        return _as_declared(self._codec.decode_array(encoded), self._arrow_type, "")

    def _reason(self, message: str) -> str:
        """The part of a state's error after the state's name and type."""
        message = message.removeprefix(self._label).removeprefix(f" is {self._codec.type.ddl}")
        return message.removeprefix(": ").removesuffix("; nothing was written")


def _as_declared(array: Any, wanted: Any, path: str) -> pa.Array[Any]:
    """The array with the declared names and nullability of its fields."""
    kind = array.type
    if kind.equals(wanted):
        return array  # type: ignore[no-any-return]
    if at.is_struct(kind) and at.is_struct(wanted):
        fields = [wanted.field(i) for i in range(wanted.num_fields)]
        children = [
            _child(array.field(i), field, f"{path}.{field.name}", array.is_valid())
            for i, field in enumerate(fields)
        ]
    elif at.is_map(kind) and at.is_map(wanted):
        pairs = [
            _child(array.keys, wanted.key_field, f"{path}.key"),
            _child(array.items, wanted.item_field, f"{path}.value"),
        ]
        entries = pa.struct([wanted.key_field, wanted.item_field])
        children = [pa.Array.from_buffers(entries, len(pairs[0]), [None], 0, children=pairs)]
    elif at.is_list(kind) and at.is_list(wanted):
        children = [_child(array.values, wanted.value_field, f"{path}[]")]
    else:
        # Large strings and large lists, and lists of a fixed size.
        cast: pa.Array[Any] = pc.cast(array, wanted)
        return cast
    own = array.buffers()[: 1 if at.is_struct(kind) else 2]
    return pa.Array.from_buffers(wanted, len(array), own, array.null_count, children=children)


def _child(
    array: pa.Array[Any], field: Any, path: str, parents: pa.Array[Any] | None = None
) -> pa.Array[Any]:
    if not field.nullable and array.null_count:
        nulls: Any = array.is_null()
        # The fields of a null struct are null, too.
        if parents is None or pc.any(pc.call_function("and", [nulls, parents])).as_py():
            raise WrongTypeError(
                f"field {path.removeprefix('.')} is declared not null and got a null"
            )
    return _as_declared(array, field.type, path)
