"""Event time: instants of all kinds as milliseconds since 1970, in UTC, and its end.

When a bounded input ends, some timers would wait for the watermark for ever: those of the last
windows, and all others for which no later row comes. An epoch that drains first handles its rows
like any other. Then, operator by operator, it advances the watermark to the end of event time, so
that all event-time timers fire. Their output reaches later operators as rows of the same epoch, and
event time ends there after these rows. All of it is one epoch: it is published as a whole, or not
at all.

The next epoch's watermark is computed from the rows, as if there had been no drain, so that the
checkpoint can continue with more input. A drain expires no time to live, and fires no
processing-time timers.

Pure functions, safe from any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime, time, timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at

from pystate.base.arguments import NO_INSTANT
from pystate.errors import WrongTypeError

#: The end of event time, which is the watermark for a function while a drain fires its timers.
MAX_WATERMARK = (1 << 63) - 1

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_DAY_MS = 86_400_000


def event_times(column: pa.Array[Any], what: str) -> pa.Array[Any]:
    """The instants of a column as 64-bit integers, null where it is null.

    A column has timestamps, dates (their midnight), or integers that are milliseconds since 1970;
    one of another type, which `what` names, is a WrongTypeError. Timestamps without a time zone are
    in UTC, as Spark takes them. Fractions of a millisecond are rounded down.
    """
    kind = column.type
    if at.is_null(kind) or (at.is_integer(kind) and not at.is_uint64(kind)):
        return column.cast(pa.int64())
    if at.is_date32(kind):
        return _multiplied(column.cast(pa.int32()).cast(pa.int64()), _DAY_MS)
    if at.is_date64(kind):
        return column.cast(pa.int64())
    if not at.is_timestamp(kind):
        raise WrongTypeError(
            f"{what}: event time is a timestamp, a date, or a long of milliseconds since 1970, "
            f"not {kind}"
        )
    ticks = column.cast(pa.int64())
    per_second = _PER_SECOND[kind.unit]
    if per_second <= 1_000:
        return _multiplied(ticks, 1_000 // per_second)
    # Arrow's division rounds towards zero, which before 1970 is towards the future.
    values = ticks.fill_null(0).to_numpy() // (per_second // 1_000)
    nulls = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    times: pa.Array[Any] = pa.array(values, pa.int64(), mask=nulls)
    return times


def _multiplied(values: pa.Array[Any], factor: int) -> pa.Array[Any]:
    product: pa.Array[Any] = pc.call_function("multiply", [values, pa.scalar(factor, pa.int64())])
    return product


def instants(values: Iterable[object], what: str) -> pa.Array[Any]:
    """Python objects as instants in the form of `event_times`; None is null."""
    times = [None if value is None else milliseconds(value, what) for value in values]
    try:
        return pa.array(times, pa.int64())
    except (pa.ArrowException, OverflowError) as error:
        raise WrongTypeError(f"{what} does not fit 64 bits of milliseconds: {error}") from error


def milliseconds(instant: object, what: str) -> int:
    """An instant, which `what` names, as milliseconds since 1970; a date is its midnight in UTC."""
    if isinstance(instant, date) and not isinstance(instant, datetime):
        instant = datetime.combine(instant, time(), timezone.utc)
    if isinstance(instant, datetime):
        if instant.tzinfo is None:
            raise WrongTypeError(f"{what} is {instant!r:.80}: {NO_INSTANT}")
        return (instant - _EPOCH) // timedelta(milliseconds=1)
    if isinstance(instant, (int, np.integer)) and not isinstance(instant, bool):
        return int(instant)
    raise WrongTypeError(
        f"{what} is an int, in milliseconds since 1970, a datetime or a date, not {instant!r:.80}"
    )
