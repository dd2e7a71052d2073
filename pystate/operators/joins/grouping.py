"""Rows of a batch by key and bucket of time, in numpy.

Pure functions and immutable values, safe from any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pystate.types.key_codes import MOST_CODES, Ints, longs, numbered


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


def taken(columns: Sequence[pa.Array[Any]], rows: Ints) -> list[pa.Array[Any]]:
    """Some rows of some columns."""
    index = longs(rows)
    return [column.take(index) for column in columns]


def group(codes: Ints, buckets: Ints) -> Groups:
    """Group rows by `key_codes` and bucket."""
    if not len(codes):
        return Groups(codes, codes)
    low, high = int(buckets.min()), int(buckets.max())
    if (high - low + 1) * (int(codes.max()) + 1) >= MOST_CODES:
        places, size = numbered(buckets)
    else:
        places, size = buckets - low, high - low + 1
    of_row, count = numbered(codes * size + places)
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
