"""Sums that may leave their range: what is needed to find the rows that would make them do so.

Only those of integers and decimals can; floats become infinite. The core finds such rows itself
while it adds to columns. What it cannot try is tried here: means of long decimals, and rows whose
place depends on whether they are taken, as those of sessions.

Thread safety: functions without state.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pystate.state.aggregating import AggregatingState
from pystate.state.aggregators import Mean, Sum

#: Means of decimals of more digits may leave 128 bits.
_MOST_DIGITS = 28


class Range(NamedTuple):
    """What a sum may be."""

    least: int
    most: int
    name: str


def range_of(state: AggregatingState) -> Range | None:
    """The range of an aggregate's sum; None where no sum can leave it."""
    aggregate, bound = state.aggregate, state.bound
    if bound is None:
        return None
    if isinstance(aggregate, Sum) and bound.column is not None:
        kept = bound.column
        if kept.name == "decimal":
            most = 10**kept.precision - 1
            return Range(-most, most, kept.ddl)
        return Range(-(1 << 63), (1 << 63) - 1, "long") if kept.name == "long" else None
    wide = bound.input.name == "decimal" and bound.input.precision > _MOST_DIGITS
    if isinstance(aggregate, Mean) and wide:
        return Range(-(1 << 127), (1 << 127) - 1, "a sum of 128 bits")
    return None


def wholes(values: pa.Array[Any]) -> list[int]:
    """Longs, unscaled decimals or the sums of a mean's accumulators; 0 for null."""
    if pa.types.is_integer(values.type):
        numbers: Any = values.fill_null(0)
        return list(numbers.to_pylist())
    low, high = _words(values)
    return [(h << 64) | w for h, w in zip(high.tolist(), low.tolist(), strict=True)]


def sizes(values: pa.Array[Any]) -> npt.NDArray[np.float64]:
    """How large they are, about."""
    if pa.types.is_integer(values.type):
        return np.abs(values.fill_null(0).to_numpy().astype(np.float64))
    low, high = _words(values)
    return np.abs(high.astype(np.float64) * 2.0**64 + low.astype(np.float64))


def _words(values: pa.Array[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The lower and the upper, signed, words of 128 bits; 0 for null."""
    width = 2 if pa.types.is_decimal(values.type) else 3
    buffer: Any = values.buffers()[1]
    data = np.frombuffer(buffer, np.uint64)
    words = data[: len(data) // width * width].reshape(-1, width)
    words = words[values.offset : values.offset + len(values)][:, width - 2 :]
    none = np.asarray(values.is_null())
    low, high = (np.where(none, np.uint64(0), words[:, i]) for i in (0, 1))
    return low, high.view(np.int64)


def too_large(
    codes: npt.NDArray[np.int64], stored: pa.Array[Any], given: pa.Array[Any], within: Range
) -> npt.NDArray[np.bool_] | None:
    """The rows that make their keys' sums leave a range, in order; None if none does.

    Parameters
    ----------
    codes : numpy.ndarray of int64
        The key of each row.
    stored : pyarrow.Array
        Its key's sum before.
    given : pyarrow.Array
        What the row adds.
    """
    if not len(codes) or sizes(stored).max() + sizes(given).sum() < within.most / 2:
        return None
    bad = np.zeros(len(codes), np.bool_)
    sums: dict[int, int] = {}
    for i, (code, before, more) in enumerate(
        zip(codes.tolist(), wholes(stored), wholes(given), strict=True)
    ):
        total = sums.get(code, before) + more
        if within.least <= total <= within.most:
            sums[code] = total
        else:
            bad[i] = True
    return bad if bad.any() else None
