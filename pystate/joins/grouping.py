"""Rows of a batch by key and bucket of time, in numpy.

Pure functions and immutable values, safe from any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as at

__all__ = ["Groups", "Ints", "expanded", "group", "key_codes", "longs", "taken"]

Ints = np.ndarray[Any, np.dtype[np.int64]]

#: Products of codes stay below this, so that they fit 64 bits.
_MOST = 1 << 62


class Groups(NamedTuple):
    """The groups of some rows, numbered in the order of their first rows."""

    of_row: Ints
    """The group of each row."""
    first: Ints
    """The first row of each group."""

    def order(self) -> tuple[Ints, Ints]:
        """The rows sorted by group, stably, and where each group begins; then the end."""
        order = np.argsort(self.of_row, kind="stable")
        starts = np.zeros(len(self.first) + 1, np.int64)
        np.cumsum(np.bincount(self.of_row, minlength=len(self.first)), out=starts[1:])
        return order, starts


def key_codes(columns: Sequence[pa.Array[Any]]) -> Ints:
    """A number for each row of some key columns: the same for equal keys, and for them only.

    Zeros of both signs are equal, and so are all NaNs, as in the tables.
    """
    codes, size = _column_codes(columns[0])
    for column in columns[1:]:
        more, more_size = _column_codes(column)
        if size * more_size >= _MOST:
            codes, size = _encoded(codes)
        codes, size = codes * more_size + more, size * more_size
    return codes if size <= 4 * len(codes) + 1 else _encoded(codes)[0]


def _column_codes(column: pa.Array[Any]) -> tuple[Ints, int]:
    if at.is_floating(column.type):
        values = column.to_numpy(zero_copy_only=False) + 0.0  # -0.0 becomes 0.0
        values[np.isnan(values)] = np.nan
        nulls = column.is_null().to_numpy(zero_copy_only=False)
        column = pa.array(values, column.type, mask=nulls)
    encoded = column.dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.int64), max(len(encoded.dictionary), 1)


def _encoded(codes: Ints) -> tuple[Ints, int]:
    """The same with numbers from 0, in the order in which they occur."""
    encoded = longs(codes).dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), max(len(encoded.dictionary), 1)


def longs(values: Ints) -> pa.Array[Any]:
    """The values as an Arrow array."""
    array: pa.Array[Any] = pa.array(values, pa.int64())
    return array


def taken(columns: Sequence[pa.Array[Any]], rows: Ints) -> list[pa.Array[Any]]:
    """Some rows of some columns."""
    index = longs(rows)
    return [column.take(index) for column in columns]


def group(codes: Ints, buckets: Ints) -> Groups:
    """Group rows by `key_codes` and bucket."""
    if not len(codes):
        return Groups(codes, codes)
    low, high = int(buckets.min()), int(buckets.max())
    if (high - low + 1) * (int(codes.max()) + 1) >= _MOST:
        places, size = _encoded(buckets)
    else:
        places, size = buckets - low, high - low + 1
    of_row, count = _encoded(codes * size + places)
    first = np.empty(count, np.int64)
    first[of_row[::-1]] = np.arange(len(of_row) - 1, -1, -1)
    return Groups(of_row, first)


def expanded(starts: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Return each range's number, once for each of its places, and the places.

    Examples
    --------
    >>> expanded(np.array([5, 9]), np.array([2, 3]))
    (array([0, 0, 1, 1, 1]), array([ 5,  6,  9, 10, 11]))
    """
    ends = np.cumsum(counts)
    numbers = np.repeat(np.arange(len(counts)), counts)
    total = int(ends[-1]) if len(ends) else 0
    return numbers, np.arange(total) + (starts - ends + counts)[numbers]
