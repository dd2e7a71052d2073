"""A harness that runs windows in a unit test: no Spark, no Java.

Thread safety: a `WindowHarness` belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from pystate.arguments import integer, text
from pystate.backend.keyed import KeyedStateBackend
from pystate.errors import InvalidArgumentError
from pystate.functions.windows import WindowContext, WindowFunctionLike
from pystate.operator.event_time import milliseconds
from pystate.operator.output import SchemaLike, parse_columns, parse_sides
from pystate.testing.clock import Clock
from pystate.testing.faults import rows_of
from pystate.testing.input_rows import InputRows, key_of
from pystate.types.durations import Duration
from pystate.types.durations import milliseconds as length_ms
from pystate.windows.assigners import Assigner
from pystate.windows.columns import AggregateLike
from pystate.windows.making import make_operator
from pystate.windows.operator import EpochTimes
from pystate.windows.process import WindowProcess, WindowProcessSpec
from pystate.windows.row_windows import WindowRowsSpec
from pystate.windows.specification import WindowSpec, window_options

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["WindowHarness"]


class WindowHarness:
    """Runs ``keyed.window(windows)`` over rows that a test feeds it.

    What follows ``window`` is ``.aggregate(...)``, or with ``process=`` ``.process(...)``.

    Parameters
    ----------
    windows : Tumbling, Sliding, Cumulating, Session, CountWindow or Global
        The windows.
    aggregates : mapping of str to aggregate, optional
        The result columns, as in `WindowedFrame.aggregate`.
    key : str or sequence of str
        The key columns.
    columns : str, mapping or pyarrow.Schema
        The input's columns: ``"user string, at timestamp, n long"``.
    event_time : str, optional
        The column of the rows' times.
    allowed_delay : str, timedelta or int in milliseconds, optional
        Move the watermark after each epoch to the largest event time seen minus this, as a job
        does. Otherwise only `advance_watermark` moves it.
    process, schema, side_outputs : optional
        As in `WindowedFrame.process`; in place of `aggregates`. A list of tags for `side_outputs`
        takes rows of any columns.
    time, emit, early, allowed_lateness
        As in `KeyedFrame.window`.
    initial_rows : rows, optional
        Rows of the time before the first epoch, as for ``key_by(initial_rows=...)``.
    processing_time : int or datetime
        The first epoch's processing time.
    batch_rows : int
        The most rows that the operator gets at once.
    uid : str
        The operator's name in errors.

    Attributes
    ----------
    late : list
        The rows that were too late for all of their windows.
    side_outputs : dict of str to list
        By tag, what the function has emitted aside.

    Notes
    -----
    Every call of `process`, `advance_watermark` and `advance_processing_time` is one epoch. An
    epoch that raises changes nothing.

    Examples
    --------
    >>> import pystate as ps
    >>> with ps.testing.WindowHarness(
    ...     ps.Tumbling("1 min"),
    ...     {"n": ps.count(), "most": ps.max("v")},
    ...     key="user",
    ...     columns="user string, at long, v long",
    ...     event_time="at",
    ... ) as harness:
    ...     harness.process([("ann", 5_000, 3), ("ann", 59_999, 7), ("bob", 60_000, 1)])
    ...     [tuple(row) for row in harness.advance_watermark(60_000)]
    []
    [('ann', 0, 60000, 2, 7)]
    """

    def __init__(
        self,
        windows: Assigner,
        aggregates: Mapping[str, AggregateLike] | None = None,
        key: str | Sequence[str] = (),
        *,
        columns: SchemaLike,
        process: WindowFunctionLike | None = None,
        schema: SchemaLike | None = None,
        side_outputs: Sequence[str] | Mapping[str, SchemaLike] = (),
        event_time: str | None = None,
        allowed_delay: Duration | None = None,
        time: Literal["event", "processing"] = "event",
        emit: Literal["final", "update"] = "final",
        early: Duration | None = None,
        allowed_lateness: Duration = 0,
        initial_rows: Any = None,
        processing_time: int | datetime = 0,
        batch_rows: int = 10_000,
        uid: str = "harness",
    ) -> None:
        self._owner = f"operator {text(uid, 'WindowHarness: uid')!r}"
        names = (key,) if isinstance(key, str) else tuple(key)
        if not names:
            raise InvalidArgumentError(f"{self._owner}: name the key, key='user'")
        self._batch_rows = integer(batch_rows, f"{self._owner}: batch_rows", least=1)
        self._delay = None if allowed_delay is None else length_ms(allowed_delay, "allowed_delay")
        self._rows = InputRows(names, columns)
        given = self._rows.schema
        assert given is not None
        options = window_options(
            windows,
            self._owner,
            event_time=event_time,
            processing_time=time == "processing",
            emit=emit,
            early=early,
            allowed_lateness=allowed_lateness,
        )
        found = key_of(given, names)
        if [name for name, _ in found] != list(names):
            raise InvalidArgumentError(f"{self._owner}: a key that is a struct has no windows yet")
        if (process is None) == (aggregates is None):
            raise InvalidArgumentError(
                f"{self._owner}: WindowHarness takes aggregates or process=, one of them"
            )
        self._process: WindowProcessSpec | None = None
        self._spec: WindowSpec
        sides = parse_sides(side_outputs, self._owner)
        self.side_outputs: dict[str, list[Any]] = {tag: [] for tag in sides}
        if process is None:
            assert aggregates is not None
            self._spec = WindowSpec.of(options, names, aggregates, given, self._owner)
        else:
            if schema is None:
                raise InvalidArgumentError(f"{self._owner}: process= needs schema=, its columns")
            rows = self._spec = WindowRowsSpec.of_rows(options, names, given, self._owner)
            output = parse_columns(schema, self._owner)
            self._process = WindowProcessSpec(process, rows, given, output, sides, self._owner)
        self._uid = uid
        self._backend = KeyedStateBackend.of(self._spec.operator(uid, found))
        self._clock = Clock(milliseconds(processing_time, "processing_time"))
        self._bound: int | None = None
        self.late: list[Any] = []
        if initial_rows is not None:
            self._begin_with_rows(initial_rows)

    def _begin_with_rows(self, rows: Any) -> None:
        """Run the operator over rows of the time before the first epoch; drop what it emits."""
        try:
            self.process(rows)
        except BaseException:
            self.close()
            raise
        self._clock = replace(self._clock, epoch=0, late_rows=0)
        self.late = []
        self.side_outputs = {tag: [] for tag in self.side_outputs}

    def process(self, rows: Any = ()) -> list[Any]:
        """Run one epoch over some rows; return the windows that it emits, as named tuples.

        Parameters
        ----------
        rows : iterable of mapping or tuple, mapping, RecordBatch, Table or DataFrame of pandas
            The rows. An epoch without rows is one, too.
        """
        return self._epoch(self._rows.batch(rows), self._clock)

    def advance_watermark(self, to: int | datetime) -> list[Any]:
        """Move the watermark, and run an epoch without rows; return what it emits."""
        return self._epoch(None, self._clock.with_watermark(to))

    def advance_processing_time(self, to: int | datetime | timedelta) -> list[Any]:
        """Move the processing time, and run an epoch without rows; return what it emits."""
        return self._epoch(None, self._clock.with_processing_time(to))

    def _epoch(self, rows: pa.RecordBatch | None, clock: Clock) -> list[Any]:
        clock = replace(clock, epoch=clock.epoch + 1)
        late: list[Any] = []
        emitted: list[Any] = []
        times = EpochTimes(clock.processing_time, self._bound)
        aside: dict[str, list[Any]] = {tag: [] for tag in self.side_outputs}

        def keep(piece: pa.RecordBatch) -> None:
            late.extend(rows_of(piece))

        run: Any
        if self._process is None:
            run = operator = make_operator(self._spec, self._backend, times, keep, self._owner)
        else:
            run = WindowProcess(
                self._process,
                self._backend,
                times,
                WindowContext(self._uid, clock.processing_time),
                keep,
                lambda tag, piece: aside[tag].extend(rows_of(piece)),
            )
            operator = run.operator
        try:
            if self._process is not None:
                run.open()
            for begin in range(0, 0 if rows is None else rows.num_rows, self._batch_rows):
                assert rows is not None
                for piece in run.process(rows.slice(begin, self._batch_rows)):
                    emitted += rows_of(piece)
            clock.see(operator.max_event_time, operator.late_rows)
            clock.end_epoch(self._delay)
            for piece in run.finish(clock.watermark):
                emitted += rows_of(piece)
        except BaseException:
            self._backend.rollback()
            raise
        finally:
            run.close()
        if self._backend.dirty:
            self._backend.seal(snapshot=False)
        else:
            self._backend.end_idle_epoch()
        self._clock, self._bound = clock, clock.watermark
        self.late += late
        for tag, found in aside.items():
            self.side_outputs[tag] += found
        return emitted

    @property
    def watermark(self) -> int | None:
        """The watermark up to which windows have fired, in milliseconds since 1970."""
        return self._clock.watermark

    @property
    def kept(self) -> int:
        """How many rows the operator keeps: windows, slices, and what keys keep beside them."""
        return self._backend.stats().keys

    def close(self) -> None:
        """Free the table. Does nothing the second time."""
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
