"""Numbers that stand for the keys of one batch's rows, in numpy.

Pure functions, safe from any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as at

Ints = np.ndarray[Any, np.dtype[np.int64]]

#: Products of codes stay below this, so that they fit 64 bits.
MOST_CODES = 1 << 62


def key_codes(columns: Sequence[pa.Array[Any]], *, dense: bool = False) -> Ints:
    """A number for each row of some key columns: the same for equal keys, and for them only.

    Zeros of both signs are equal, and so are all NaNs, as in the tables. With `dense` the numbers
    are those from 0 to the number of keys, so that they may be places in a list of the keys.
    """
    codes, size = _column_codes(columns[0])
    for column in columns[1:]:
        more, more_size = _column_codes(column)
        if size * more_size >= MOST_CODES:
            codes, size = dense_codes(codes)
        codes, size = codes * more_size + more, size * more_size
    if len(columns) == 1 or (not dense and size <= 4 * len(codes) + 1):
        return codes
    return dense_codes(codes)[0]


def ranks(codes: Ints) -> Ints:
    """How many rows of the same code come before each row."""
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    lengths = np.diff(np.append(starts, len(order)))
    counts = np.empty(len(order), np.int64)
    counts[order] = np.arange(len(order)) - np.repeat(starts, lengths)
    return counts


def dense_codes(codes: Ints) -> tuple[Ints, int]:
    """The same with numbers from 0, in the order in which they occur, and how many there are."""
    encoded = longs(codes).dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), max(len(encoded.dictionary), 1)


def longs(values: Ints) -> pa.Array[Any]:
    """The values as an Arrow array."""
    array: pa.Array[Any] = pa.array(values, pa.int64())
    return array


def _column_codes(column: pa.Array[Any]) -> tuple[Ints, int]:
    if at.is_floating(column.type):
        values = column.to_numpy(zero_copy_only=False) + 0.0  # -0.0 becomes 0.0
        values[np.isnan(values)] = np.nan
        nulls = column.is_null().to_numpy(zero_copy_only=False)
        column = pa.array(values, column.type, mask=nulls)
    encoded = column.dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.int64), max(len(encoded.dictionary), 1)
