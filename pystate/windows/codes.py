"""Numbers that stand for keys within one batch.

Pure functions, safe from any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["key_codes", "ranks"]


def key_codes(columns: Sequence[pa.Array[Any]]) -> npt.NDArray[np.int64]:
    """A number per row from 0 on without gaps, equal where the keys are.

    As in the table, -0.0 and 0.0 are one key, and so are all NaNs.
    """
    codes: npt.NDArray[np.int64] | None = None
    for column in columns:
        if pa.types.is_floating(column.type):
            column = _canonical(column)
        encoded = column.dictionary_encode(null_encoding="encode")
        indices = encoded.indices.to_numpy().astype(np.int64)
        if codes is None:
            codes = indices
        else:
            both = codes * len(encoded.dictionary) + indices
            codes = np.unique(both, return_inverse=True)[1].astype(np.int64)
    assert codes is not None
    return codes


def ranks(codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many rows of the same code come before each row."""
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    lengths = np.diff(np.append(starts, len(order)))
    found = np.empty(len(order), np.int64)
    found[order] = np.arange(len(order)) - np.repeat(starts, lengths)
    return found


def _canonical(column: pa.Array[Any]) -> pa.Array[Any]:
    values = column.to_numpy(zero_copy_only=False) + 0.0  # -0.0 becomes 0.0
    values[np.isnan(values)] = np.nan
    nulls = column.is_null().to_numpy(zero_copy_only=False)
    canonical: pa.Array[Any] = pa.array(values, column.type, mask=nulls)
    return canonical
