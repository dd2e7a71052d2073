"""Rows that were found, in the order of the keys that were asked for.

Thread safety: functions without state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pystate.types.key_codes import key_codes


def one_each(asked: Sequence[pa.Array[Any]], found: pa.Table) -> pa.Table:
    """A row for each key that was asked for, in their order; null where none was found.

    The first columns of `found` are those of the key, and it has each key once at most.
    """
    rows = len(asked[0])
    codes = _codes(asked, found)
    places = np.full(int(codes.max(initial=-1)) + 1, -1)
    places[codes[rows:]] = np.arange(found.num_rows)
    taken = places[codes[:rows]]
    rest = found.select(range(len(asked), found.num_columns))
    rest = rest.take(pa.array(taken, pa.int64(), mask=taken < 0))
    return pa.Table.from_arrays([*asked, *rest.columns], schema=found.schema)


def all_each(asked: Sequence[pa.Array[Any]], found: pa.Table) -> pa.Table:
    """All rows of each key that was asked for, in their order; none where none was found."""
    rows = len(asked[0])
    codes = _codes(asked, found)
    order = np.argsort(codes[rows:], kind="stable")
    ordered = codes[rows:][order]
    first = np.searchsorted(ordered, codes[:rows], "left")
    counts = np.searchsorted(ordered, codes[:rows], "right") - first
    starts = np.repeat(first - (np.cumsum(counts) - counts), counts)
    return found.take(pa.array(order[starts + np.arange(len(starts))], pa.int64()))


def _codes(asked: Sequence[pa.Array[Any]], found: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Numbers for the keys that were asked for, then for those that were found."""
    columns = []
    for i, column in enumerate(asked):
        chunks = [chunk.cast(column.type) for chunk in found.column(i).chunks]
        columns.append(pa.concat_arrays([column, *chunks]))
    return key_codes(columns, dense=True)
