"""Rows that an operator cannot process: the one place that decides what becomes of them.

Such a row has a value for which the operator has no place: an event time or a session's gap that is
beyond what it computes with, or missing where it must be known; a time further ahead than the input
allows; a date that Python cannot hold. If it failed its epoch, a stream would stop at it for ever.
So it goes to the input's side output of invalid rows if there is one; otherwise the job says
whether it is dropped. It is counted in any case, and means nothing for the watermark.

The row with which a sum would leave its range is one, too. Rows that are parts of sums already, as
those of the slices of a window, may together be too much: then they are left out of that window, or
the job fails. No side output can take them any more.

Thread safety: an `InvalidRows` belongs to its task; a rule is immutable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pystate.base.arguments import choice, text
from pystate.errors import InvalidArgumentError, InvalidRowError
from pystate.operators.runtime.event_time import event_times
from pystate.operators.runtime.late_rows import DROP_LATE, PROCESS_LATE
from pystate.types.durations import Duration, milliseconds
from pystate.types.keys import leaf, marked_struct

#: What a job does with rows that cannot be processed, where no side output takes them.
OnInvalid: TypeAlias = Literal["drop", "fail"]

_Mask: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True)
class InvalidRule:
    """What becomes of an input's invalid rows; pickled for the workers."""

    event_time: str | None = None
    """The column of the rows' event time."""
    max_ahead_ms: int | None = None
    """How far a row's event time may be ahead of the epoch's processing time."""
    tag: str | None = None
    """The side output that takes the rows, with these columns."""
    columns: tuple[str, ...] = ()
    on_invalid: OnInvalid = "drop"
    """What the job does without a side output."""

    @property
    def of_each(self) -> bool:
        """Whether rows have to come one by one, and not combined."""
        return self.tag is not None or self.max_ahead_ms is not None


_NO_RULE = InvalidRule()


class InvalidRows:
    """Takes the invalid rows out of an input, in one task, and counts them in `rows`.

    `weight`, if it is set, says how many rows of the input some rows stand for that were combined
    before they came.
    """

    def __init__(
        self,
        owner: str,
        key: Sequence[str] = (),
        rule: InvalidRule = _NO_RULE,
        now_ms: int = 0,
        side: Callable[[str, pa.RecordBatch], None] | None = None,
    ) -> None:
        self.rows = 0
        self.rule = rule
        self.weight: Callable[[pa.RecordBatch], int] | None = None
        self._owner = owner
        self._key = key
        self._side = side
        ahead = rule.max_ahead_ms
        self._newest = _MOST if ahead is None else min(now_ms + ahead, _MOST)

    def timely(
        self, rows: pa.RecordBatch, column: str | None, first: int = _LEAST, last: int = _MOST
    ) -> pa.RecordBatch:
        """The rows whose event times are within bounds, both included, or are not known."""
        if column is None or (first == _LEAST and min(last, self._newest) == _MOST):
            return rows
        times = event_times(rows.column(column), f"{self._owner}: event-time column {column!r}")
        return self.timed(rows, times, first, last)[0]

    def timed(
        self,
        rows: pa.RecordBatch,
        times: pa.Array[Any],
        first: int = _LEAST,
        last: int = _MOST,
        *,
        known: bool = False,
    ) -> tuple[pa.RecordBatch, pa.Array[Any]]:
        """The same with their times; where a time must be `known`, without those that have none."""
        until = min(last, self._newest)
        unknown = known and times.null_count > 0
        if first != _LEAST or until != _MOST:
            ends: Any = pc.min_max(times)
            low, high = ends["min"].as_py(), ends["max"].as_py()
            if low is None or (low >= first and high <= until):
                first, until = _LEAST, _MOST
        if not unknown and first == _LEAST and until == _MOST:
            return rows, times
        values = times.fill_null(min(max(0, first), until)).to_numpy()
        bad = (values < first) | (values > until)
        if unknown:
            bad |= np.asarray(times.is_null())

        def why(i: int) -> str:
            time = times[i].as_py()
            if time is None:
                return "has no event time"
            if first <= time <= last:
                return (
                    f"is of {time} ms since 1970, which is further ahead of the processing time "
                    f"than max_ahead={self.rule.max_ahead_ms} ms"
                )
            return (
                f"is of {time} ms since 1970, which is beyond what the operator computes with "
                f"({first} to {last})"
            )

        return self.without(rows, bad, why), times.filter(pa.array(~bad))

    def without(self, rows: pa.RecordBatch, bad: _Mask, why: Callable[[int], str]) -> Any:
        """The rows that are not bad.

        `why` says what the row of a number "is" or "has", for the InvalidRowError of a job that
        fails where no side output takes it.
        """
        if not bad.any():
            return rows
        rule, taken = self.rule, rows.filter(pa.array(bad))
        if rule.tag is not None and self._side is not None:
            self._side(rule.tag, taken.select(list(rule.columns) or taken.schema.names))
        elif rule.on_invalid == "fail":
            raise self.error(rows, int(np.flatnonzero(bad)[0]), why)
        self.rows += taken.num_rows if self.weight is None else self.weight(taken)
        return rows.filter(pa.array(~bad))

    def left_out(self, key: Sequence[pa.Array[Any]], i: int, rows: int, why: str) -> None:
        """Count rows of key `i` that were taken before, and that a result has to do without.

        The key columns are as `InvalidRows` knows them. `why` says what a row of that key "has" or
        "would" do, for the InvalidRowError of a job that fails.
        """
        if self.rule.on_invalid == "fail":
            alone = pa.RecordBatch.from_arrays(
                [column.slice(i, 1) for column in key], names=[f"k{n}" for n in range(len(key))]
            )
            names = [f"k{n}" for n, of in enumerate(self._key) if marked_struct(of) is None]
            raise self._error(alone, 0, names, why)
        self.rows += rows

    def error(self, rows: pa.RecordBatch, i: int, why: Callable[[int], str]) -> InvalidRowError:
        """The error for a row that cannot be processed."""
        names = [name for name in self._key if marked_struct(name) is None] or self._key
        return self._error(rows, i, names, why(i))

    def _error(
        self, rows: pa.RecordBatch, i: int, names: Sequence[str], why: str
    ) -> InvalidRowError:
        values = [_shown(leaf(rows.slice(i, 1), name)[0]) for name in names]
        key = values[0] if len(values) == 1 else tuple(values)
        of, way = (f"a row of key {key!r:.80}", "key_by") if values else ("a row", "operator")
        return InvalidRowError(
            f"{self._owner}: {of} {why}: have such rows dropped and counted by "
            f"Job(..., on_invalid='drop'), or written to a side output by {way}(..., invalid='tag')"
        )


def _shown(value: pa.Scalar[Any]) -> Any:
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        # A date or timestamp that Python cannot hold.
        return getattr(value, "value", "?")


def checked_on_invalid(word: Any, owner: str) -> OnInvalid:
    """Check a job's option."""
    choice(word, f"{owner}: on_invalid", ("drop", "fail"))
    checked: OnInvalid = word
    return checked


def invalid_rule(
    owner: str,
    event_time: str | None,
    max_ahead: Duration | None,
    tag: str | None,
    columns: Iterable[str] = (),
    on_invalid: OnInvalid = "drop",
) -> InvalidRule:
    """Check what is said of an input's invalid rows."""
    ahead = None if max_ahead is None else milliseconds(max_ahead, f"{owner}: max_ahead")
    if ahead is not None and event_time is None:
        raise InvalidArgumentError(
            f"{owner}: max_ahead is about rows whose event time is far ahead: name its column, "
            "event_time='column'"
        )
    if tag is not None:
        text(tag, f"{owner}: invalid, the tag of a side output,")
        if tag in (PROCESS_LATE, DROP_LATE):
            raise InvalidArgumentError(
                f"{owner}: invalid={tag!r} is the tag of a side output; whether such rows are "
                "dropped where there is none, Job(on_invalid=...) says"
            )
    return InvalidRule(event_time, ahead, tag, tuple(columns), on_invalid)


def harness_rule(
    owner: str,
    event_time: str | None,
    max_ahead: Duration | None,
    tag: str | None,
    on_invalid: Any,
    columns: Iterable[str] = (),
) -> InvalidRule:
    """The same of a harness, which has the job's option as well."""
    word = checked_on_invalid(on_invalid, owner)
    return invalid_rule(owner, event_time, max_ahead, tag, columns, word)
