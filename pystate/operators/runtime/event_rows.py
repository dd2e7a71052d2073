"""What operators share that pass rows on or rank them: event times, and which rows are late.

Thread safety: as `pystate.operators.runtime.task`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pystate.operators.runtime.event_time import event_times
from pystate.operators.runtime.late_rows import late_tag
from pystate.operators.runtime.task import Operator, TaskContext
from pystate.types.keys import leaf

#: Times are within these bounds, so that the difference of two of them does not overflow.
_MOST = (1 << 61) - 1


class Times(NamedTuple):
    """The event times of some rows."""

    at: npt.NDArray[np.int64]
    """Milliseconds since 1970; without meaning where the time is not known."""
    known: npt.NDArray[np.bool_]


class RowSpec(Protocol):
    """What such an operator is made from."""

    @property
    def key(self) -> tuple[str, ...]:
        """The key columns."""

    @property
    def event_time(self) -> str | None:
        """The column with the time at which a row happened."""

    @property
    def late(self) -> str:
        """What happens to rows below the late bound: a word, or the tag of a side output."""


class RowOperator(Operator):
    """Base of the operators that pass rows on or rank them.

    Parameters
    ----------
    spec : DeduplicateSpec or TopSpec
        The operator.
    """

    _spec: RowSpec

    def open(self, task: TaskContext) -> None:
        """Begin; the operators register their states."""
        spec = self._spec
        self._task = task
        self._backend = task.backend
        self._invalid = task.invalid(spec.key)
        tag = late_tag(spec.late)
        write = None if tag is None or task.side is None else partial(task.side, tag)
        self._late = task.late(spec.late, write)
        self._what = f"{task.owner}: event-time column {spec.event_time!r}"

    def on_time(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that the operator is to handle."""
        column = self._spec.event_time
        if column is None or not rows.num_rows:
            return rows
        times = event_times(rows.column(column), self._what)
        rows, times = self._invalid.timed(rows, times, -_MOST, _MOST)
        return self._late.without(rows, times)[0]

    def times(self, rows: pa.RecordBatch | pa.Table) -> Times:
        """The event times of rows; none is known without a column."""
        column = self._spec.event_time
        if column is None:
            return Times(np.zeros(rows.num_rows, np.int64), np.zeros(rows.num_rows, np.bool_))
        times = event_times(_one_array(rows.column(column)), self._what)
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
