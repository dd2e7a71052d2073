"""A windowed operator as its tasks see it: the windows, the aggregates, and when they are emitted.

Immutable and picklable; safe from any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.types as at

from pystate.base.arguments import choice, nearest
from pystate.epochs.watermarks import Hold, Holds, Lag
from pystate.errors import InvalidArgumentError, WrongTypeError
from pystate.operators.runtime.event_time import event_times
from pystate.operators.windows.assigners import (
    LONGEST_MS,
    Aligned,
    Assigner,
    Global,
    Session,
    Tumbling,
    checked_assigner,
)
from pystate.operators.windows.columns import (
    ROWS,
    AggregateLike,
    Columns,
    WindowColumn,
    parse_aggregates,
)
from pystate.operators.windows.grid import CALENDAR_MS, grid_of, instants, reach
from pystate.state.aggregating import AggregatingState
from pystate.state.aggregators import Count
from pystate.state.declaration import State
from pystate.state.operator_spec import OperatorSpec
from pystate.state.value import ValueState
from pystate.tables.backend import KeyedStateBackend
from pystate.types.durations import Duration, milliseconds
from pystate.types.keys import KeyColumns
from pystate.types.state_type import StateType

Emit = Literal["final", "update"]

#: The result columns that say which window it is.
START, END = "window_start", "window_end"
#: States beside the aggregates. Up to where the shared slices of a key are summed up:
NEXT = "window.next"
#: The sessions of a key that are open.
OPEN = "window.open"
OPEN_TYPE = "array<struct<start:long,end:long>>"

#: The last millisecond that a timestamp, which counts microseconds, holds.
MOST_US_MS = ((1 << 63) - 1) // 1000


@dataclass(frozen=True)
class WindowOptions:
    """The windows and when they are emitted, without what is computed over them."""

    windows: Assigner
    event_time: str | None
    """The column of the rows' times; None for windows in processing time."""
    emit: Emit
    """Once, when a window is over; or after each epoch that changed it."""
    early_ms: int | None
    """The interval of processing time at which changed windows are also emitted before they end."""
    lateness_ms: int
    """For how long after its end a window is kept, and emitted again if a late row changes it."""
    dates_zone: str | None = None
    """The zone in which dates are days: the results' times are instants of it."""

    def holds(self) -> Holds:
        """How the result's watermark is behind that of the windows.

        A window that is still to come ends after the watermark, and begins before it. A session
        has no earliest start: what the tasks keep says it. Windows that do not go by event time
        wait for nothing that the watermark could tell.
        """
        if self.event_time is None:
            return Holds()
        start: Hold
        end: Hold | None = Lag(self.lateness_ms) if self.lateness_ms else None
        if isinstance(self.windows, Session):
            # A row that is late may still begin a session which is not over.
            start = Lag(self.lateness_ms + (self.windows.gap_ms or 0), kept=True)
        else:
            assert isinstance(self.windows, Aligned)
            start = WindowStart(self.windows, self.lateness_ms)
        if self.dates_zone is not None:
            start = _InZone(start, self.dates_zone)
            end = _InZone(Lag(self.lateness_ms), self.dates_zone)
        return Holds({START: start, END: end}, start)

    @property
    def keeps(self) -> bool:
        """Whether `holds` depends on what is kept."""
        return self.event_time is not None and isinstance(self.windows, Session)


@dataclass(frozen=True)
class WindowStart:
    """The start of the first window that is not done with; the hold of rows that are as old."""

    windows: Aligned
    lateness_ms: int
    kept: bool = False

    def after(self, watermark_ms: int) -> int:
        """See `Hold`."""
        grid = grid_of(self.windows, self.lateness_ms)
        time = min(max(watermark_ms - self.lateness_ms, grid.first), grid.last)
        if self.windows.zone is not None:
            return int(grid.slices(np.array([time], np.int64))[0])
        return int(grid.start_of(np.array([grid.end_after(time)], np.int64))[0])


@dataclass(frozen=True)
class _InZone:
    """The hold of instants of a zone, behind a watermark in its local times."""

    local: Hold
    zone: str
    kept: bool = False

    def after(self, watermark_ms: int) -> int:
        """See `Hold`."""
        local = self.local.after(watermark_ms)
        return min(local, int(instants(self.zone, np.array([local], np.int64))[0]))


def in_local_times(options: WindowOptions, time_type: pa.DataType) -> WindowOptions:
    """Windows of a zone over times that are local ones already, dates or ``timestamp_ntz``.

    Their days begin at midnight as these have it, so that no zone is needed to find them.
    """
    if not (
        options.event_time is not None
        and isinstance(options.windows, Tumbling)
        and options.windows.zone is not None
        and is_local(time_type)
    ):
        return options
    zone, size, offset = (
        options.windows.zone,
        options.windows.size_ms,
        options.windows.offset_ms,
    )
    dates_zone = None if at.is_timestamp(time_type) else zone
    return replace(options, windows=Tumbling(size, offset), dates_zone=dates_zone)


def is_local(type_: pa.DataType) -> bool:
    """Whether a type of event times is one of local times: without a zone, and no instants."""
    local: bool = at.is_date(type_) or (at.is_timestamp(type_) and type_.tz is None)
    return local


def window_options(
    windows: Any,
    owner: str,
    *,
    event_time: str | None,
    processing_time: bool = False,
    emit: str = "final",
    early: Duration | None = None,
    allowed_lateness: Duration = 0,
) -> WindowOptions:
    """Check the arguments of ``window(...)``."""
    assigner = checked_assigner(windows, owner)
    choice(emit, f"{owner}: emit", ("final", "update"))
    early_ms = None if early is None else milliseconds(early, f"{owner}: early", least=1)
    lateness = milliseconds(allowed_lateness, f"{owner}: allowed_lateness")
    if lateness > LONGEST_MS:
        raise InvalidArgumentError(f"{owner}: allowed_lateness of {lateness} ms is too long")
    if not processing_time and assigner.timed and event_time is None:
        raise InvalidArgumentError(
            f"{owner}: {type(assigner).__name__} windows are windows in event time: name its "
            "column, key_by(..., event_time='column'), or ask for time='processing'"
        )
    if early_ms is not None and emit == "update":
        raise InvalidArgumentError(
            f"{owner}: emit='update' emits a window in each epoch that changes it; early= is for "
            "emit='final': leave one of them out"
        )
    timed = assigner.timed and not processing_time
    if early_ms is not None and processing_time and assigner.timed:
        raise InvalidArgumentError(
            f"{owner}: early= is for windows in event time; of windows in processing time write "
            "emit='update'"
        )
    if lateness and not timed:
        raise InvalidArgumentError(
            f"{owner}: allowed_lateness is about rows that come late by their event time, and "
            "these windows do not depend on it"
        )
    if isinstance(assigner, Global) and emit == "final" and early_ms is None:
        raise InvalidArgumentError(
            f"{owner}: a Global window never ends, so that emit='final' would never emit it: "
            "write emit='update', or early='10 s'"
        )
    return WindowOptions(
        assigner,
        event_time if timed else None,
        "update" if emit == "update" else "final",
        early_ms,
        lateness,
    )


def time_type_of(options: WindowOptions, schema: pa.Schema, owner: str) -> pa.DataType:
    """The type of ``window_start`` and ``window_end``, of windows over rows with some columns."""
    time_type: pa.DataType = pa.timestamp("us", "UTC")
    if options.event_time is not None:
        if options.event_time not in schema.names:
            raise InvalidArgumentError(
                f"{owner}: event_time={options.event_time!r} is not a column; columns: "
                f"{', '.join(schema.names)}{nearest(options.event_time, schema.names)}"
            )
        given = schema.field(options.event_time).type
        event_times(pa.array([], given), f"{owner}: event-time column {options.event_time!r}")
        if at.is_timestamp(given):
            time_type = pa.timestamp("us", given.tz)
        elif at.is_integer(given):
            time_type = pa.int64()
    gap = options.windows.gap_column if isinstance(options.windows, Session) else None
    if gap is not None:
        if gap not in schema.names:
            raise InvalidArgumentError(
                f"{owner}: Session: there is no column {gap!r}; columns: "
                f"{', '.join(schema.names)}{nearest(gap, schema.names)}"
            )
        if not at.is_integer(schema.field(gap).type):
            raise WrongTypeError(
                f"{owner}: Session: column {gap!r} is {schema.field(gap).type}; a gap is a "
                "whole number of milliseconds"
            )
    return time_type


@dataclass(frozen=True)
class WindowSpec:
    """A windowed aggregation; it is pickled and sent to the workers."""

    options: WindowOptions
    key: tuple[str, ...]
    columns: tuple[WindowColumn, ...]
    """The aggregates; after the result columns possibly one that counts rows."""
    results: int
    """How many of `columns` are results."""
    time_type: pa.DataType
    """The type of ``window_start`` and ``window_end``: that of the event time, or UTC timestamps if
    it is a date, or in processing time.
    """

    @classmethod
    def of(
        cls,
        options: WindowOptions,
        key: Sequence[str],
        aggregates: Mapping[str, AggregateLike],
        schema: pa.Schema,
        owner: str,
    ) -> WindowSpec:
        """Check the aggregates, by result column, and make the specification."""
        columns = parse_aggregates(aggregates, schema, owner)
        reserved = {*key, START, END}
        for column in columns:
            if column.name in reserved or column.name.startswith("window."):
                raise InvalidArgumentError(
                    f"{owner}: a result cannot be called {column.name!r}: the key's columns, "
                    f"{START} and {END} are in the result already, and names with 'window.' are "
                    "those of states"
                )
        results = len(columns)
        if not any(column.counts_rows for column in columns):
            rows = AggregatingState(Count(), "long")
            columns = (*columns, WindowColumn(ROWS, rows, None, pa.int64()))
        time_type = time_type_of(options, schema, owner)
        if options.event_time is not None:
            options = in_local_times(options, schema.field(options.event_time).type)
        return cls(options, tuple(key), columns, results, time_type)

    @property
    def shares(self) -> bool:
        """Whether windows are made of slices that they share."""
        windows = self.options.windows
        return isinstance(windows, Aligned) and not isinstance(windows, Tumbling)

    @property
    def runs(self) -> bool:
        """Whether a key's window is kept summed up from one window to the next.

        Windows that grow only add slices. Those that slide also take some away, which only sums of
        integers can do without a rest.
        """
        windows = self.options.windows
        if not self.shares or self.options.emit == "update":
            return False
        grows = isinstance(windows, Aligned) and windows.grows
        return grows or all(column.subtracts for column in self.columns)

    def reach(self) -> tuple[int, int]:
        """The first and the last event time that have windows: others are too far away.

        Both ends of each window, and the time until which it is kept, are then numbers of 64 bits,
        timestamps if the result has these, and in a zone's calendar. Of a session whose rows have
        gaps of their own this is what holds for any gap.
        """
        options, windows = self.options, self.options.windows
        length, room = 0, options.lateness_ms
        if isinstance(windows, Aligned):
            length, room = windows.size_ms, max(room, int(self.shares))
        elif isinstance(windows, Session):
            length = windows.gap_ms or 0
        first, last = reach(length, room)
        if at.is_timestamp(self.time_type):
            first, last = max(first, length - MOST_US_MS), min(last, MOST_US_MS - length)
        zoned = isinstance(windows, Aligned) and windows.zone is not None
        if zoned or options.dates_zone is not None:
            begin, end = CALENDAR_MS
            first, last = max(first, begin + 2 * length), min(last, end - 2 * length)
        return first, last

    def filled(self, column: WindowColumn) -> str | None:
        """The state that counts how many slices have a value of a sum that slides."""
        windows = self.options.windows
        if not self.runs or column.state.bound is None or column.source is None:
            return None
        if isinstance(windows, Aligned) and windows.grows:
            return None
        counts = isinstance(column.state.aggregate, Count)
        return None if counts else f"window.filled.{column.name}"

    def states(self) -> dict[str, State[Any]]:
        """The states, in the order of the table's columns."""
        states: dict[str, State[Any]] = {column.name: column.state for column in self.columns}
        if self.runs:
            states[NEXT] = ValueState("long")
            for column in self.columns:
                name = self.filled(column)
                if name is not None:
                    states[name] = ValueState("long", default=0)
        if isinstance(self.options.windows, Session):
            states[OPEN] = ValueState(OPEN_TYPE)
        return states

    def kept(self, backend: KeyedStateBackend, owner: str) -> Columns:
        """What is kept of each window, in a backend."""
        return Columns(self.columns, self.results, backend, owner)

    def operator(self, uid: str, key: KeyColumns, max_parallelism: int = 128) -> OperatorSpec:
        """Return what determines the tables of the operator."""
        return OperatorSpec(
            uid=uid,
            key=key,
            states=self.states(),
            namespace=StateType("long"),
            timers=True,
            max_parallelism=max_parallelism,
        )

    def schema(self, key: KeyColumns) -> pa.Schema:
        """The columns of the result."""
        fields = [pa.field(name, type_.arrow) for name, type_ in key]
        fields += [pa.field(START, self.time_type), pa.field(END, self.time_type)]
        fields += [pa.field(c.name, c.result) for c in self.columns[: self.results]]
        return pa.schema(fields)
