"""A harness that runs windows in a unit test: no Spark, no Java.

Thread safety: a `WindowHarness` belongs to one thread.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from pystate.base.arguments import text
from pystate.checkpoint.refs import INPUT
from pystate.errors import InvalidArgumentError
from pystate.operators.functions.binding import for_tasks
from pystate.operators.functions.windows import WindowFunctionLike
from pystate.operators.runtime.invalid_rows import harness_rule
from pystate.operators.runtime.late_rows import DROP_LATE, late_tag_of_windows
from pystate.operators.runtime.output import SchemaLike, parse_columns, parse_sides
from pystate.operators.runtime.task import Operator
from pystate.operators.windows.assigners import Assigner
from pystate.operators.windows.columns import AggregateLike
from pystate.operators.windows.kinds import make_operator
from pystate.operators.windows.process import WindowProcess, WindowProcessSpec
from pystate.operators.windows.row_windows import WindowRowsSpec
from pystate.operators.windows.specification import WindowSpec, window_options
from pystate.tables.options import checked_parallelism
from pystate.testing.clock import HarnessInput
from pystate.testing.epochs import Attempt, Watched
from pystate.testing.faults import aside_rows
from pystate.testing.input_rows import InputRows, key_of
from pystate.testing.operator_harness import OperatorHarness, kept_arguments
from pystate.testing.range_tables import RangeTable
from pystate.testing.snapshot import OperatorSnapshot
from pystate.types.durations import Duration, delay_milliseconds

if TYPE_CHECKING:
    from typing_extensions import Self

#: The tag of rows that were too late; no user can give it.
_LATE = "too late\0"


class WindowHarness(OperatorHarness):
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
    time, emit, early, allowed_lateness, late
        As in `KeyedFrame.window`: with a tag for `late`, `side_output` gives the rows that were too
        late for all of their windows.
    initial_rows : rows, optional
        Rows of the time before the first epoch, as for ``key_by(initial_rows=...)``.
    processing_time : int or datetime
        The first epoch's processing time.
    parallelism, max_parallelism : int
        Number of key-group ranges, and of key groups.
    batch_rows : int
        The most rows that the operator gets at once.
    uid : str
        The operator's name in errors.
    max_ahead, invalid : optional
        As in `Job.key_by`.
    on_invalid : {"drop", "fail"}
        What becomes of rows that have no window, as in `Job`.

    Attributes
    ----------
    output : list
        The rows that all epochs so far have emitted.
    failures : int
        Injected failures that have happened.
    late : list
        The rows that were too late for all of their windows, whatever becomes of them.
    side_outputs : dict of str to list
        By tag, what went aside: what the function has emitted, rows that were too late, and those
        that could not be processed.

    Notes
    -----
    Every call of `process`, `advance_watermark` and `advance_processing_time` is one epoch. An
    epoch that raises changes nothing. As in a job, windows fire up to the watermark that earlier
    epochs have left: those that an epoch's rows have ended are emitted by the next one.

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
        late: str = DROP_LATE,
        initial_rows: Any = None,
        processing_time: int | datetime = 0,
        parallelism: int = 1,
        max_parallelism: int = 128,
        batch_rows: int = 10_000,
        uid: str = "harness",
        max_ahead: Duration | None = None,
        invalid: str | None = None,
        on_invalid: Literal["drop", "fail"] = "drop",
    ) -> None:
        arguments = kept_arguments(locals())
        owner = self._owner = f"operator {text(uid, 'WindowHarness: uid')!r}"
        checked_parallelism(max_parallelism)
        names = (key,) if isinstance(key, str) else tuple(key)
        if not names:
            raise InvalidArgumentError(f"{owner}: name the key, key='user'")
        delay = (
            None if allowed_delay is None else delay_milliseconds(allowed_delay, "allowed_delay")
        )
        rows = InputRows(names, columns)
        given = rows.declared
        options = window_options(
            windows,
            owner,
            event_time=event_time,
            processing_time=time == "processing",
            emit=emit,
            early=early,
            allowed_lateness=allowed_lateness,
        )
        stored_key = key_of(given, names)
        if [name for name, _ in stored_key] != list(names):
            raise InvalidArgumentError(f"{owner}: a key that is a struct has no windows yet")
        if (process is None) == (aggregates is None):
            raise InvalidArgumentError(
                f"{owner}: WindowHarness takes aggregates or process=, one of them"
            )
        self._function: WindowProcessSpec | None = None
        self._spec: WindowSpec
        sides = parse_sides(side_outputs, owner)
        self._late_tag = late_tag_of_windows(late, sides, owner)
        if process is None:
            assert aggregates is not None
            self._spec = WindowSpec.of(options, names, aggregates, given, owner)
        else:
            if schema is None:
                raise InvalidArgumentError(f"{owner}: process= needs schema=, its columns")
            kept = self._spec = WindowRowsSpec.of_rows(options, names, given, owner)
            output = parse_columns(schema, owner)
            self._function = WindowProcessSpec(process, kept, given, output, sides, owner)
        self.late: list[Any] = []
        rule = harness_rule(owner, event_time, max_ahead, invalid, on_invalid)
        super().__init__(
            replace(self._spec.operator(uid, stored_key), max_parallelism=max_parallelism),
            [HarnessInput(INPUT, names, rows, event_time, delay, rule)],
            parallelism=parallelism,
            batch_rows=batch_rows,
            processing_time=processing_time,
            arguments=arguments,
            tags=[tag for tag in (*sides, self._late_tag, invalid) if tag is not None],
        )
        if initial_rows is not None:
            self._begin_with_rows({INPUT: initial_rows})
            self.late = []

    @property
    def side_outputs(self) -> dict[str, list[Any]]:
        """By tag, what went aside."""
        return self._sides

    def _operator(self, table: RangeTable, attempt: Attempt) -> Operator:
        operator: Operator
        if self._function is None:
            operator = make_operator(self._spec, _LATE)
        else:
            # As on Spark, each task works on its own copy.
            function = for_tasks(self._function.function, copy.deepcopy)
            operator = WindowProcess(replace(self._function, function=function), _LATE)
        return Watched(operator, attempt, observes=True)

    def _keep(self, attempt: Attempt) -> None:
        sides = []
        for tag, piece in attempt.sides:
            to = self._late_tag if tag is _LATE else tag
            if tag is _LATE:
                self.late += aside_rows(piece)
            if to is not None:
                sides.append((to, piece))
        attempt.sides = sides
        super()._keep(attempt)

    # -- epochs

    def process(self, rows: Any = ()) -> list[Any]:
        """Run one epoch over some rows; return the windows that it emits, as named tuples.

        Parameters
        ----------
        rows : iterable of mapping or tuple, mapping, RecordBatch, Table or DataFrame of pandas
            The rows. An epoch without rows is one, too.
        """
        return self._process({INPUT: rows})

    def advance_watermark(self, to: int | datetime) -> list[Any]:
        """Move the watermark, and run an epoch without rows; return what it emits."""
        return self._epoch({}, self._clock.with_watermark(to))

    def drain(self, rows: Any = ()) -> list[Any]:
        """Run an epoch and end event time after its rows, as a job with ``drain=True`` does.

        Parameters
        ----------
        rows : iterable of mapping or tuple, mapping, RecordBatch, Table or DataFrame of pandas
            As for `process`; none by default.

        Returns
        -------
        list
            The windows that it emits: all that there are.

        Raises
        ------
        NoEventTimeError
            The windows have no event time.
        """
        return self._drain({INPUT: rows})

    # -- snapshots

    @classmethod
    def restore(
        cls,
        snapshot: OperatorSnapshot,
        operator: Assigner,
        aggregates: Mapping[str, AggregateLike] | None = None,
        *,
        process: WindowFunctionLike | None = None,
        parallelism: int = 1,
        allow_unclaimed_state: bool = False,
    ) -> Self:
        """Make a harness that continues from a snapshot, with its times and options.

        Parameters
        ----------
        snapshot : OperatorSnapshot
            A snapshot of a `WindowHarness`.
        operator : Tumbling, Sliding, Cumulating, Session, CountWindow or Global
            The windows; they may be others than before, as after a change of the code.
        aggregates, process : optional
            As for the harness; by default those of the snapshot.
        parallelism : int
            Number of key-group ranges; it may differ from before.
        allow_unclaimed_state : bool
            Drop states that the operator does not have.

        Returns
        -------
        WindowHarness
            Its outputs are empty.
        """
        more: dict[str, Any] = {}
        if aggregates is not None or process is not None:
            more = {"aggregates": aggregates, "process": process}
        return cls._restored(snapshot, operator, parallelism, allow_unclaimed_state, **more)

    def __repr__(self) -> str:
        windows = type(self._spec.options.windows).__name__
        return f"<WindowHarness of {windows} after {self.epoch} epochs>"
