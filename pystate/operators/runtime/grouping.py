"""Rows grouped by their keys.

Keys come in the order of their first rows, and a key's rows in their own. Keys that are equal in
SQL are one: -0.0 and 0.0, and all NaNs.

Thread safety: pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pystate._core import core
from pystate.state.key_batch import KeyBatch


def grouped_rows(keys: KeyBatch) -> tuple[np.ndarray[Any, Any], list[int], list[int]]:
    """The rows in the order of their keys, each key's first row, and where in the order it ends."""
    first, order = keys.first_rows(), np.empty(len(keys), np.int64)
    firsts, ends = core.grouped(first.ctypes.data, len(keys), order.ctypes.data)
    return order, firsts, ends


def grouped_columns(columns: Sequence[pa.Array[Any]]) -> tuple[np.ndarray[Any, Any], list[int]]:
    """Sort rows by key, stably; return the order, and where in it each key starts.

    Equal keys get equal codes; as in SQL, -0.0 and 0.0 are one key, and so are all NaNs.
    """
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        if pa.types.is_floating(column.type):
            column = _canonical(column)
        encoded = column.dictionary_encode(null_encoding="encode")
        _, codes = np.unique(
            codes * len(encoded.dictionary) + encoded.indices.to_numpy(), return_inverse=True
        )
    _, first_rows = np.unique(codes, return_index=True)
    rank = np.empty(len(first_rows), np.int64)
    rank[np.argsort(first_rows)] = np.arange(len(first_rows))
    ranked = rank[codes]
    order = np.argsort(ranked, kind="stable")
    starts = np.flatnonzero(np.diff(ranked[order], prepend=-1))
    return order, starts.tolist()


def _canonical(column: pa.Array[Any]) -> pa.Array[Any]:
    values = column.to_numpy(zero_copy_only=False) + 0.0  # -0.0 becomes 0.0
    values[np.isnan(values)] = np.nan
    nulls = column.is_null().to_numpy(zero_copy_only=False)
    canonical: pa.Array[Any] = pa.array(values, column.type, mask=nulls)
    return canonical
