"""What the harnesses of operators share: epochs over their tables, times, failures, snapshots.

Thread safety: all objects belong to one thread.

Invariants
----------
1. An epoch that raises changes nothing: tables, times and outputs are as they were before it.
2. The watermark of an epoch is the one that earlier epochs have left, as in a job: an input's is
   its own, and the operator's is the smallest of them. It never goes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pyarrow as pa

from pystate.arguments import choice, integer, shown
from pystate.coordinator.watermarks import OperatorTime
from pystate.errors import InvalidArgumentError, NoEventTimeError
from pystate.functions.context import TimeDomain
from pystate.operator.drain import MAX_WATERMARK
from pystate.operator.event_time import milliseconds
from pystate.operator.invalid import InvalidRows, InvalidRule
from pystate.state.operator_spec import OperatorSpec
from pystate.testing.base import HarnessBase
from pystate.testing.beginning import begin_with_state
from pystate.testing.faults import (
    Fault,
    InjectedFailureError,
    aside_rows,
    check_replay,
    rows_of,
)
from pystate.testing.input_rows import InputRows
from pystate.testing.range_tables import RangeTable, RangeTables
from pystate.types.durations import milliseconds as length_ms
from pystate.types.keys import leaf

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Attempt", "HarnessInput", "OperatorHarness", "OperatorSnapshot", "Running", "Times"]


@dataclass(frozen=True)
class HarnessInput:
    """An input of an operator.

    Attributes
    ----------
    name : str
        The input.
    key : tuple of str
        Its key columns.
    rows : InputRows
        Its columns.
    event_time : str or None
        The column of the rows' event time.
    allowed_delay_ms : int or None
        The watermark follows its rows with this delay; None if only the test moves it.
    """

    name: str
    key: tuple[str, ...]
    rows: InputRows
    event_time: str | None
    allowed_delay_ms: int | None
    invalid: InvalidRule = InvalidRule()  # noqa: RUF009
    """What becomes of rows that cannot be processed."""


@dataclass
class Times:
    """The times that carry over from epoch to epoch, in milliseconds since 1970."""

    processing_time: int
    epoch: int = 0
    watermark: int | None = None
    late_rows: int = 0
    invalid_rows: int = 0
    latest: dict[str, int | None] = field(default_factory=dict)
    """The largest event time of each input."""
    inputs: dict[str, int | None] = field(default_factory=dict)
    """The watermark of each input."""

    def copy(self) -> Times:
        """A copy, which may be changed."""
        return replace(self, latest=dict(self.latest), inputs=dict(self.inputs))

    def move(self, name: str, to: int) -> None:
        """Move an input's watermark, unless it is there already."""
        before = self.inputs[name]
        self.inputs[name] = to if before is None else max(before, to)
        known = [mark for mark in self.inputs.values() if mark is not None]
        if len(known) == len(self.inputs):
            smallest = min(known)
            self.watermark = smallest if self.watermark is None else max(self.watermark, smallest)


class Running(Protocol):
    """An operator's run over one range in one epoch."""

    @property
    def late_rows(self) -> int:
        """How many rows were late."""

    @property
    def max_event_times(self) -> Mapping[str, int | None]:
        """The largest event time seen of each input."""

    def process(self, name: str, rows: pa.RecordBatch) -> Iterator[Any]:
        """Handle rows of an input."""

    def finish(self) -> Iterator[Any]:
        """Handle the end of the epoch's rows."""

    def close(self) -> None:
        """Clean up."""


@dataclass
class Attempt:
    """One computation of an epoch; it counts once the epoch is published."""

    times: Times
    time: OperatorTime | None
    """The operator's event time."""
    drain: bool = False
    fault: Fault | None = None
    observe: bool = False
    """Whether it is compared with an attempt that failed."""
    rows: list[Any] = field(default_factory=list)
    sides: list[tuple[str, Any]] = field(default_factory=list)
    late: list[Any] = field(default_factory=list)
    """Rows that were too late for all of their windows."""
    observed: list[list[Any]] = field(default_factory=list)
    invalid: list[InvalidRows] = field(default_factory=list)

    def invalid_of(self, given: HarnessInput, owner: str) -> InvalidRows:
        """What takes the invalid rows of an input out."""
        found = InvalidRows(
            owner,
            given.key,
            given.invalid,
            self.times.processing_time,
            lambda tag, piece: self.sides.append((tag, piece)),
        )
        self.invalid.append(found)
        return found


@dataclass(frozen=True)
class OperatorSnapshot:
    """All state of a harness after an epoch, as files in memory; its `restore` takes it.

    Attributes
    ----------
    epoch : int
        The last epoch in it.
    """

    epoch: int
    _files: tuple[bytes, ...]
    _times: Times
    _arguments: Mapping[str, Any]

    def __repr__(self) -> str:
        size = sum(map(len, self._files))
        return f"<OperatorSnapshot of epoch {self.epoch}, {size} bytes>"


class OperatorHarness(HarnessBase):
    """Base of the harnesses of operators that have their own inputs.

    Parameters
    ----------
    operator : OperatorSpec
        The operator's tables.
    inputs : sequence of HarnessInput
        Its inputs.
    parallelism : int
        Number of ranges.
    batch_rows : int
        The most rows that the operator gets at once.
    processing_time : int or datetime
        The first epoch's processing time.
    arguments : mapping
        The arguments of the harness besides the operator, for `restore`.
    tags : sequence of str
        The side outputs.

    Attributes
    ----------
    output : list
        The rows that all epochs so far have emitted.
    failures : int
        Injected failures that have happened.
    """

    _counts_timers = False

    def __init__(
        self,
        operator: OperatorSpec,
        inputs: Sequence[HarnessInput],
        *,
        parallelism: int,
        batch_rows: int,
        processing_time: int | datetime,
        arguments: Mapping[str, Any],
        tags: Sequence[str] = (),
    ) -> None:
        self._owner = f"operator {operator.uid!r}"
        integer(parallelism, f"{self._owner}: parallelism", least=1, most=operator.max_parallelism)
        self._batch_rows = integer(batch_rows, f"{self._owner}: batch_rows", least=1)
        self._inputs = {given.name: given for given in inputs}
        self._operator = operator
        self._arguments = dict(arguments)
        self._times = Times(milliseconds(processing_time, f"{self._owner}: processing_time"))
        self._times.inputs = dict.fromkeys(self._inputs)
        self._times.latest = dict.fromkeys(self._inputs)
        self._begin_output(tags)
        self._ranges = RangeTables(operator, parallelism)

    @property
    def _moment(self) -> Times:
        return self._times

    def _start(self, share: RangeTable, attempt: Attempt) -> Running:
        """Begin an operator's run over a range."""
        raise NotImplementedError

    # -- epochs

    def advance_processing_time(self, to: int | datetime | timedelta) -> list[Any]:
        """Move the processing time, and run an epoch without rows.

        Parameters
        ----------
        to : int, datetime or timedelta
            Milliseconds since 1970, or a datetime with a time zone; a timedelta is added to the
            current processing time.

        Returns
        -------
        list
            What the operator has emitted.

        Raises
        ------
        InvalidArgumentError
            It would go back.
        """
        before = self._times.processing_time
        if isinstance(to, timedelta):
            wanted = before + length_ms(to, "the processing time's step")
        else:
            wanted = milliseconds(to, "the processing time")
        if wanted < before:
            raise InvalidArgumentError(
                f"the processing time is {before} and never goes back, to {wanted}"
            )
        return self._epoch({}, replace(self._times.copy(), processing_time=wanted))

    def _advance_watermark(self, to: int | datetime, names: Sequence[str]) -> list[Any]:
        wanted, times = milliseconds(to, "the watermark"), self._times.copy()
        for name in names:
            before = times.inputs[name]
            if before is not None and wanted < before:
                raise InvalidArgumentError(
                    f"the watermark is {before} and never goes back, to {wanted}"
                )
            times.move(name, wanted)
        return self._epoch({}, times)

    def _batches(self, given: Mapping[str, Any]) -> dict[str, pa.RecordBatch]:
        found = {name: self._inputs[name].rows.batch(rows) for name, rows in given.items()}
        return {name: rows for name, rows in found.items() if rows is not None}

    def _drain(self, given: Mapping[str, Any]) -> list[Any]:
        timed = all(each.event_time is not None for each in self._inputs.values())
        if not timed and self.watermark is None:
            raise NoEventTimeError(
                f"{self._owner}: drain takes the watermark to its end, and there is none: name the "
                "columns of the event time, event_time='column'"
            )
        return self._epoch(self._batches(given), self._times.copy(), drain=True)

    def _epoch(
        self, batches: Mapping[str, pa.RecordBatch], times: Times, *, drain: bool = False
    ) -> list[Any]:
        times.epoch += 1
        fault = self._fault
        time = OperatorTime(times.watermark, MAX_WATERMARK if drain else times.watermark)
        timed = any(each.event_time is not None for each in self._inputs.values())
        attempt = Attempt(
            times.copy(), time if timed or times.watermark is not None else None, drain, fault
        )
        try:
            try:
                self._run(batches, attempt)
            except InjectedFailureError:
                failed = attempt
                attempt = replace(
                    failed,
                    times=times,
                    fault=None,
                    observe=True,
                    rows=[],
                    sides=[],
                    late=[],
                    observed=[],
                    invalid=[],
                )
                self._run(batches, attempt, failed)
        finally:
            if fault is not None and fault.happened:
                self._fault = None
                self.failures += 1
        self._times = attempt.times
        self._times.invalid_rows += sum(each.rows for each in attempt.invalid)
        for name, given in self._inputs.items():
            latest = self._times.latest[name]
            if given.allowed_delay_ms is not None and latest is not None:
                self._times.move(name, latest - given.allowed_delay_ms)
        self._keep(attempt)
        return attempt.rows

    def _keep(self, attempt: Attempt) -> None:
        """Keep what the attempt that counts has emitted."""
        self.output += attempt.rows
        for tag, piece in attempt.sides:
            self._sides[tag] += aside_rows(piece)

    def _run(
        self,
        batches: Mapping[str, pa.RecordBatch],
        attempt: Attempt,
        failed: Attempt | None = None,
    ) -> None:
        def reach(point: Literal["seal", "publish"]) -> None:
            if attempt.fault is not None:
                attempt.fault.reach(point)

        parts = {
            name: list(self._ranges.parts(rows, [leaf(rows, n) for n in self._inputs[name].key]))
            for name, rows in batches.items()
        }
        with self._ranges.epoch(lambda: reach("publish")):
            for index, share in enumerate(self._ranges):
                own = {name: each[index] for name, each in parts.items()}
                self._task(share, own, attempt)
            if failed is not None:
                for before, after in zip(failed.observed, attempt.observed, strict=False):
                    check_replay(attempt.times.epoch, before, after)
            reach("seal")

    def _task(
        self, share: RangeTable, own: Mapping[str, pa.RecordBatch | None], attempt: Attempt
    ) -> None:
        running = self._start(share, attempt)
        try:
            for name in self._inputs:
                rows = own.get(name)
                for begin in range(0, 0 if rows is None else rows.num_rows, self._batch_rows):
                    assert rows is not None
                    for piece in running.process(name, rows.slice(begin, self._batch_rows)):
                        attempt.rows += rows_of(piece)
            for piece in running.finish():
                attempt.rows += rows_of(piece)
        finally:
            running.close()
        times = attempt.times
        times.late_rows += running.late_rows
        for name, latest in running.max_event_times.items():
            before = times.latest[name]
            if latest is not None and (before is None or latest > before):
                times.latest[name] = latest

    # -- the beginning

    def _begin_with_rows(self, given: Mapping[str, Any]) -> None:
        """Run the operator over rows of the time before the first epoch; drop what it emits."""
        start = self._times.processing_time
        self._epoch(self._batches(given), self._times.copy())
        # What is due by the watermark that they give.
        self._epoch({}, self._times.copy())
        self._times = replace(
            self._times, epoch=0, late_rows=0, invalid_rows=0, processing_time=start
        )
        self.output = []
        self._sides = {tag: [] for tag in self._sides}

    def _begin_with_state(self, state: Any, timers: Any) -> None:
        """Put states and timers into the tables."""
        begin_with_state(self._ranges, self._operator, state, timers)

    # -- what came of it

    @property
    def kept(self) -> int:
        """How many rows the tables have: keys, or keys and namespaces, such as buckets of time."""
        return sum(share.backend.stats().keys for share in self._ranges)

    def keys(self) -> list[Any]:
        """All keys that have state, in no particular order."""
        return list(dict.fromkeys(key for share in self._ranges for key in share.backend))

    def next_timer(self, domain: TimeDomain) -> int | None:
        """When the earliest timer is due, in milliseconds since 1970; None if there is none."""
        choice(domain, "next_timer: domain", ("event", "processing"))
        return self._ranges.next_timer(domain)

    # -- snapshots

    def snapshot(self) -> OperatorSnapshot:
        """All state as of the last epoch. It stays valid whatever the harness does next."""
        return OperatorSnapshot(
            self._times.epoch, self._ranges.files(), self._times.copy(), self._arguments
        )

    @classmethod
    def restore(
        cls,
        snapshot: OperatorSnapshot,
        operator: Any,
        *,
        parallelism: int = 1,
        allow_unclaimed_state: bool = False,
    ) -> Self:
        """Make a harness that continues from a snapshot, with its times and options.

        Parameters
        ----------
        snapshot : OperatorSnapshot
            A snapshot of a harness of the same kind.
        operator : object
            As the first argument of the harness; it may be another one than before.
        parallelism : int
            Number of key-group ranges; it may differ from before.
        allow_unclaimed_state : bool
            Drop states that the operator does not have.

        Returns
        -------
        OperatorHarness
            Its outputs are empty.
        """
        return cls._restored(snapshot, operator, parallelism, allow_unclaimed_state)

    @classmethod
    def _restored(
        cls,
        snapshot: OperatorSnapshot,
        operator: Any,
        parallelism: int,
        allow_unclaimed_state: bool,
        **other: Any,
    ) -> Self:
        """See `restore`; some arguments of the harness may be others than before."""
        if not isinstance(snapshot, OperatorSnapshot):
            raise InvalidArgumentError(
                f"restore takes what snapshot() of a harness gives, not {shown(snapshot)}"
            )
        make: Callable[..., Self] = cls
        harness = make(operator, **{**snapshot._arguments, **other, "parallelism": parallelism})
        try:
            harness._ranges.restore(snapshot._files, allow_unclaimed_state)
        except BaseException:
            harness.close()
            raise
        harness._times = snapshot._times.copy()
        return harness

    # -- life

    def close(self) -> None:
        """Free the tables. Does nothing the second time."""
        self._ranges.close()
