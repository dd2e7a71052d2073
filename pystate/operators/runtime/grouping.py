"""Rows grouped by their keys, picked by their numbers, and taken piece by piece.

Keys come in the order of their first rows, and a key's rows in their own. Keys that are equal in
SQL are one: -0.0 and 0.0, and all NaNs.

Thread safety: pure functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pystate._core import calls
from pystate.state.key_batch import KeyBatch
from pystate.tables.backend import KeyedStateBackend
from pystate.types.key_codes import MOST_CODES, Ints, dense_codes, key_codes, longs


def grouped_rows(keys: KeyBatch) -> tuple[np.ndarray[Any, Any], list[int], list[int]]:
    """The rows in the order of their keys, each key's first row, and where in the order it ends."""
    first, order = keys.first_rows(), np.empty(len(keys), np.int64)
    firsts, ends = calls.grouped(first.ctypes.data, len(keys), order.ctypes.data)
    return order, firsts, ends


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


def group(codes: Ints, buckets: Ints) -> Groups:
    """Group rows by `key_codes` and bucket."""
    if not len(codes):
        return Groups(codes, codes)
    low, high = int(buckets.min()), int(buckets.max())
    if (high - low + 1) * (int(codes.max()) + 1) >= MOST_CODES:
        places, size = dense_codes(buckets)
    else:
        places, size = buckets - low, high - low + 1
    of_row, count = dense_codes(codes * size + places)
    return Groups(of_row, first_of_each(of_row, count))


def grouped_columns(columns: Sequence[pa.Array[Any]]) -> tuple[Ints, list[int]]:
    """The rows in the order of their keys, and where in it each key starts, by values alone."""
    codes = key_codes(columns)
    order, starts = group(codes, np.zeros(len(codes), np.int64)).order()
    return order, starts[:-1].tolist()


def first_of_each(codes: Ints, count: int | None = None) -> Ints:
    """The first row of each of some dense codes, of which there are `count`."""
    first = np.empty(int(codes.max(initial=-1)) + 1 if count is None else count, np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return first


def take_rows(columns: Sequence[pa.Array[Any]], rows: Ints) -> list[pa.Array[Any]]:
    """Some rows of some columns."""
    index = longs(rows)
    return [column.take(index) for column in columns]


def keys_at(backend: KeyedStateBackend, keys: KeyBatch, rows: Ints) -> KeyBatch:
    """The keys of some rows of a batch, in their namespaces."""
    columns = take_rows(keys.key_arrays(), rows)
    if not keys.table.has_namespaces:
        return backend.keys(columns)
    return backend.keys(columns, keys.namespaces().take(longs(rows)))


def expand(starts: Ints, counts: Ints, step: int = 1) -> tuple[Ints, Ints]:
    """So many numbers from each start on, a step apart: of which start they are, and they.

    >>> expand(np.array([5, 9]), np.array([2, 3]))
    (array([0, 0, 1, 1, 1]), array([ 5,  6,  9, 10, 11]))
    """
    of = np.repeat(np.arange(len(starts)), counts)
    nth = np.arange(len(of)) - (np.cumsum(counts) - counts)[of]
    return of, starts[of] + nth * step


def pieces(sizes: Ints, most: int) -> Iterator[tuple[int, int]]:
    """Split what has sizes into pieces of at most so many in all, but of one thing at least."""
    ends = np.cumsum(sizes)
    begin, before = 0, 0
    while begin < len(sizes):
        end = max(int(np.searchsorted(ends, before + most, "right")), begin + 1)
        yield begin, end
        begin, before = end, int(ends[end - 1])
