"""Which rows of two columns hold the same, for every type that a state may have.

Pure functions, safe from any thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Flags = npt.NDArray[np.bool_]

_BITS = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}


def lengths_of(lists: Any) -> npt.NDArray[np.int64]:
    """The lengths of lists or maps that have no nulls."""
    ends: npt.NDArray[np.int64] = np.asarray(lists.offsets, np.int64)
    return ends[1:] - ends[:-1]


def present(array: pa.Array[Any]) -> Flags:
    """Whether each row of a state's column holds something: no null, and no empty list or map."""
    if isinstance(array, (pa.ListArray, pa.LargeListArray, pa.MapArray)):
        return lengths_of(array) > 0
    return np.asarray(array.is_valid())


def same_rows(one: Any, other: Any) -> Flags:
    """Compare two arrays of the same type and length, row by row.

    Nulls are the same as nulls. Floats are compared by their bits, so that NaN is the same as
    itself, and 0.0 is not the same as -0.0. The order of a map's entries does not matter.
    """
    valid = np.asarray(one.is_valid())
    same: Flags = valid == np.asarray(other.is_valid())
    both = np.flatnonzero(same & valid)
    if len(both) < len(one):
        same[both] = same_rows(one.take(both), other.take(both)) if len(both) else True
        return same
    if isinstance(one, pa.StructArray):
        for i in range(one.type.num_fields):
            same &= same_rows(one.field(i), other.field(i))
        return same
    if isinstance(one, (pa.ListArray, pa.LargeListArray, pa.MapArray)):
        return _same_lists(one, other)
    bits = _BITS.get(one.type)
    if bits is not None:
        one, other = one.view(bits), other.view(bits)
    return np.asarray(pc.call_function("equal", [one, other]))


def _same_lists(one: Any, other: Any) -> Flags:
    same: Flags = lengths_of(one) == lengths_of(other)
    rows = np.flatnonzero(same)
    if len(rows) < len(one) or one.offset or other.offset:
        if len(rows):
            # Taking rows also makes offsets begin at 0, with nothing but these rows' elements.
            same[rows] = _same_lists(one.take(rows), other.take(rows))
        return same
    is_map = isinstance(one, pa.MapArray)
    parts = (
        [(one.keys, other.keys), (one.items, other.items)]
        if is_map
        else [(one.values, other.values)]
    )
    ends = np.asarray(one.offsets, np.int64)
    for ours, theirs in parts:
        if not len(ours):
            continue
        ours, theirs = _between(ours, one), _between(theirs, other)
        unlike = np.concatenate([[0], np.cumsum(~same_rows(ours, theirs))])
        same &= unlike[ends[1:] - ends[0]] == unlike[ends[:-1] - ends[0]]
    if is_map:
        for row in np.flatnonzero(~same):
            same[row] = _entries(one[row]) == _entries(other[row])
    return same


def _between(elements: Any, lists: Any) -> Any:
    """The elements of all lists: an array of lists may be a part of a larger one."""
    first, last = lists.offsets[0].as_py(), lists.offsets[len(lists)].as_py()
    return elements.slice(first, last - first)


def _entries(row: Any) -> list[str]:
    return sorted(map(repr, row.as_py()))
