"""Rows that were combined before they came: one stands for several of a key, with their aggregates.

A combined row has the key's columns, `WEIGHT`, `LATE`, `TIME` and `FIRST` where they are needed,
and for each aggregate what its values have come to. Integers of 64 bits are summed in two halves,
which no number of rows makes overflow, so that a sum beyond its range is found and never a wrong
number. Then it cannot be told which of the rows is too much: the combined row is.

Thread safety: functions without state.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

#: How many rows a combined row stands for.
WEIGHT = "__pystate_value_rows"
#: How many of them are below the late bound.
LATE = "__pystate_value_late"
#: The largest of their event times, in milliseconds.
TIME = "__pystate_value_time"
#: The smallest of them.
FIRST = "__pystate_value_first"
#: The metric that counts the rows which came, if these were combined before the shuffle.
COMBINED_ROWS = "rows_came"
#: What is added to a column's name: of a sum in two halves, the sum of the lower ones.
LOW = "_low"
#: Of a mean, the number of values.
COUNT = "_count"

_HALF = 32
_LOWER = (1 << _HALF) - 1


def total_weight(rows: pa.RecordBatch, name: str = WEIGHT) -> int:
    """The sum of a column of counts."""
    return int(pc.sum(rows.column(name)).as_py() or 0)


def whole_sums(
    high: pa.Array[Any], low: pa.Array[Any]
) -> tuple[pa.Array[Any], npt.NDArray[np.bool_] | None]:
    """Sums of longs from those of their halves; and which are beyond the range of a long, if any.

    The upper 32 bits have the sign. A sum is null where there was no value.
    """
    upper, lower = _numbers(high), _numbers(low)
    top = upper + (lower >> _HALF)
    beyond = (top >= 1 << 31) | (top < -(1 << 31))
    whole: pa.Array[Any] = pa.array((top << _HALF) | (lower & _LOWER), mask=_nulls(high))
    return whole, beyond if beyond.any() else None


def mean_accumulators(
    counts: pa.Array[Any], sums: pa.Array[Any], low: pa.Array[Any] | None = None
) -> pa.Array[Any]:
    """Accumulators of means in the layout of csrc/FORMAT.md; null where there was no value.

    The sums are doubles, decimals, or longs; with `low`, the sums of the lower 32 bits, they are
    those of the upper ones.
    """
    number = _numbers(counts).view(np.uint64)
    if pa.types.is_floating(sums.type):
        words = [_numbers(sums).view(np.uint64)]
    elif pa.types.is_decimal(sums.type):
        filled: Any = pc.fill_null(sums, pa.scalar(0, sums.type))
        data = np.frombuffer(filled.buffers()[1], np.uint64)
        pairs = data.reshape(-1, 2)[filled.offset : filled.offset + len(filled)]
        words = [pairs[:, 0], pairs[:, 1]]
    elif low is None:
        whole = _numbers(sums)
        words = [whole.view(np.uint64), (whole >> 63).view(np.uint64)]
    else:
        upper = _numbers(sums)
        shifted = upper.view(np.uint64) << np.uint64(_HALF)
        least = shifted + _numbers(low).view(np.uint64)
        words = [least, (upper >> _HALF).view(np.uint64) + (least < shifted)]
    each = np.column_stack([number, *words]).astype(np.uint64)
    none = number == 0
    valid = pa.py_buffer(np.packbits(~none, bitorder="little").data)
    width = pa.binary(8 * each.shape[1])
    return pa.Array.from_buffers(width, len(number), [valid, pa.py_buffer(each.data)])


def _numbers(values: pa.Array[Any]) -> npt.NDArray[Any]:
    """The values as a contiguous numpy array, with 0 for null."""
    return np.ascontiguousarray(values.fill_null(0).to_numpy(zero_copy_only=False))


def _nulls(values: pa.Array[Any]) -> npt.NDArray[np.bool_] | None:
    return np.asarray(values.is_null()) if values.null_count else None
