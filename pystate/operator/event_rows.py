"""Rows of an operator that calls no function: their event times, and which of them are late.

Thread safety: an `EventRows` belongs to one task and thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pystate.operator.event_time import event_times
from pystate.operator.function_spec import PROCESS_LATE, late_tag
from pystate.operator.invalid import InvalidRows
from pystate.types.keys import leaf

__all__ = ["EventRows", "Times", "columns_of"]

#: Times are within these bounds, so that the difference of two of them does not overflow.
_MOST = (1 << 61) - 1


class Times(NamedTuple):
    """The event times of some rows."""

    at: npt.NDArray[np.int64]
    """Milliseconds since 1970; without meaning where the time is not known."""
    known: npt.NDArray[np.bool_]


class EventRows:
    """Notes the event times of rows, and takes out those that are late.

    Parameters
    ----------
    column : str or None
        The column with the time at which a row happened.
    watermark : int or None
        The epoch's watermark; rows below it are late.
    late : str
        What happens to them: ``"process"``, ``"drop"``, or the tag of a side output.
    side : callable, optional
        Takes a tag and rows.
    uid : str
        The operator's name in errors.
    invalid : InvalidRows, optional
        Takes rows whose event time is too far away.

    Attributes
    ----------
    late_rows : int
        Rows with an event time before the watermark.
    max_event_time : int or None
        The largest event time seen, in milliseconds since 1970.
    """

    def __init__(
        self,
        column: str | None,
        watermark: int | None,
        late: str = PROCESS_LATE,
        side: Callable[[str, pa.RecordBatch], None] | None = None,
        uid: str = "",
        invalid: InvalidRows | None = None,
    ) -> None:
        self.invalid = InvalidRows(f"operator {uid!r}") if invalid is None else invalid
        self.late_rows = 0
        self.max_event_time: int | None = None
        self._column = column
        self._watermark = watermark
        self._late = late
        self._tag = late_tag(late)
        self._side = side
        self._what = f"operator {uid!r}: event-time column {column!r}"

    def on_time(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that the operator is to handle."""
        if self._column is None or not rows.num_rows:
            return rows
        times = event_times(rows.column(self._column), self._what)
        rows, times = self.invalid.timed(rows, times, -_MOST, _MOST)
        latest = pc.max(times).as_py()
        if latest is not None and (self.max_event_time is None or latest > self.max_event_time):
            self.max_event_time = latest
        if self._watermark is None:
            return rows
        bound = pa.scalar(self._watermark, pa.int64())
        late: Any = pc.call_function("less", [times, bound]).fill_null(False)
        self.late_rows += late.true_count
        if not late.true_count or self._late == PROCESS_LATE:
            return rows
        if self._tag is not None and self._side is not None:
            self._side(self._tag, rows.filter(late))
        return rows.filter(pc.call_function("invert", [late]))

    def times(self, rows: pa.RecordBatch | pa.Table) -> Times:
        """The event times of rows; none is known without a column."""
        if self._column is None:
            return Times(np.zeros(rows.num_rows, np.int64), np.zeros(rows.num_rows, np.bool_))
        times = event_times(_one_array(rows.column(self._column)), self._what)
        known = np.ones(len(times), np.bool_)
        if times.null_count:
            known = times.is_valid().to_numpy(zero_copy_only=False)
            times = times.fill_null(0)
        return Times(times.to_numpy(), known)


def columns_of(rows: pa.RecordBatch | pa.Table, names: Iterable[str]) -> list[Any]:
    """Key columns of rows, of which some may be fields of structs."""
    return [leaf(rows, name) for name in names]


def _one_array(column: Any) -> pa.Array[Any]:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    array: pa.Array[Any] = column
    return array
