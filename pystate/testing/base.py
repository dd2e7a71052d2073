"""What all harnesses of operators share: epochs, output, injected failures, times to look at.

Thread safety: a harness belongs to one thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from pystate.base.arguments import choice, integer, nearest
from pystate.epochs.listeners import CheckpointNotice
from pystate.epochs.watermarks import OperatorTime
from pystate.errors import InvalidArgumentError
from pystate.operators.runtime.task import Operator, TaskContext
from pystate.testing.clock import Clock, HarnessInput
from pystate.testing.epochs import Attempt, Pieces, compute
from pystate.testing.faults import Fault, aside_rows
from pystate.testing.range_tables import RangeTable, RangeTables
from pystate.types.keys import leaf

if TYPE_CHECKING:
    from typing_extensions import Self


class HarnessBase(ABC):
    """Base of the harnesses.

    `output` has the rows that all epochs so far have emitted, and `failures` is the number of
    injected failures that have happened.
    """

    #: Whether `fail_after` can count timers.
    _counts_timers = True

    def _begin_epochs(
        self, clock: Clock, inputs: Iterable[HarnessInput], batch_rows: int, tags: Iterable[str]
    ) -> None:
        """Begin at some times, without tables and output; `tags` are those of side outputs."""
        #: The times as of the last epoch.
        self._clock = clock
        self._inputs = {each.name: each for each in inputs}
        if not clock.inputs:
            clock.begin(self._inputs)
        #: The most rows that the operator gets at once.
        self._batch_rows = batch_rows
        #: None as long as the key's type is not known.
        self._tables: RangeTables | None = None
        self._sides: dict[str, list[Any]] = {tag: [] for tag in tags}
        self._fault: Fault | None = None
        self.failures = 0
        self.output: list[Any] = []

    @property
    def _ranges(self) -> RangeTables:
        """The tables, which there are."""
        assert self._tables is not None
        return self._tables

    @abstractmethod
    def _operator(self, table: RangeTable, attempt: Attempt) -> Operator:
        """Make the operator of a range."""

    @abstractmethod
    def close(self) -> None:
        """Free the tables. Does nothing the second time."""

    # -- epochs

    def _epoch(
        self, batches: Mapping[str, pa.RecordBatch], clock: Clock, *, drain: bool = False
    ) -> list[Any]:
        """Run an epoch over rows of the inputs; `clock` is a copy."""
        clock.epoch += 1
        fault, mark = self._fault, clock.watermark
        timed = any(each.event_time is not None for each in self._inputs.values())
        time = OperatorTime(mark, mark) if timed or mark is not None else None
        attempt = Attempt(clock, time, drain, fault)
        if self._tables is not None:
            try:
                attempt = compute(self._tables, self._pieces(batches), self._start, attempt)
            finally:
                if fault is not None and fault.happened:
                    self._fault = None
                    self.failures += 1
        self._clock = attempt.clock
        self._clock.end_epoch(self._inputs.values())
        self._keep(attempt)
        return attempt.rows

    def _keep(self, attempt: Attempt) -> None:
        """Keep what the attempt that counts has emitted."""
        self.output += attempt.rows
        for tag, piece in attempt.sides:
            self._sides[tag] += aside_rows(piece)

    def _pieces(self, batches: Mapping[str, pa.RecordBatch]) -> Pieces:
        """The rows that each range's task gets."""
        ranges = self._ranges
        pieces: list[list[tuple[str, pa.RecordBatch]]] = [[] for _ in ranges]
        for name in self._inputs:
            rows = batches.get(name)
            if rows is not None:
                for own, part in zip(pieces, self._dealt(name, rows, ranges), strict=True):
                    own += [(name, piece) for piece in self._cut(part)]
        return pieces

    def _dealt(
        self, name: str, rows: pa.RecordBatch, ranges: RangeTables
    ) -> Iterator[pa.RecordBatch | None]:
        """The rows of an input that each range gets."""
        return ranges.parts(rows, [leaf(rows, each) for each in self._inputs[name].key])

    def _cut(self, rows: pa.RecordBatch | None) -> Iterator[pa.RecordBatch]:
        """Rows as an operator gets them."""
        for begin in range(0, 0 if rows is None else rows.num_rows, self._batch_rows):
            assert rows is not None
            yield rows.slice(begin, self._batch_rows)

    def _start(self, table: RangeTable, attempt: Attempt) -> tuple[Operator, TaskContext]:
        return self._operator(table, attempt), self._context(table, attempt)

    def _context(self, table: RangeTable, attempt: Attempt) -> TaskContext:
        """What the operator of a range gets."""
        ranges, clock = self._ranges, attempt.clock
        return TaskContext(
            table.backend,
            clock.epoch,
            ranges.index(table),
            len(ranges),
            clock.processing_time,
            attempt.time,
            attempt.drain,
            attempt.aside,
            {name: given.invalid for name, given in self._inputs.items()},
            CheckpointNotice(complete=clock.epoch - 1) if clock.epoch > 1 else CheckpointNotice(),
        )

    # -- the beginning

    @abstractmethod
    def _process(self, rows: Any, *, drain: bool = False) -> list[Any]:
        """Run an epoch over rows as a user gives them."""

    def _begin_with_rows(self, rows: Any) -> None:
        """Run the operator over rows of the time before the first epoch; drop what it emits."""
        start = self._clock.processing_time
        try:
            self._process(rows)
            # What is due by the watermark that they give.
            self._epoch({}, self._clock.copy())
        except BaseException:
            self.close()
            raise
        self._clock = self._clock.at_beginning(start)
        self.output = []
        self._sides = {tag: [] for tag in self._sides}

    # -- failures

    def fail_after(self, rows: int | None = None, *, timers: int | None = None) -> None:
        """Make an epoch fail after a number of rows or timers; it is then computed again.

        The failed attempt leaves neither state nor output. What it had yielded is compared with
        what the replay yields. If they differ, the function keeps something outside of its states,
        and `ReplayError` is raised.

        Parameters
        ----------
        rows : int, optional
            Rows that are handled before the failure, which comes before the next row or at the
            epoch's end. A function that handles several rows in a call fails between two calls.
        timers : int, optional
            Timers that fire before the failure; only of a function.
        """
        if (rows is None) == (timers is None):
            raise InvalidArgumentError("fail_after takes a number of rows or of timers")
        if timers is not None and not self._counts_timers:
            raise InvalidArgumentError(
                "fail_after: timers of an operator without a function cannot be counted"
            )
        integer(timers if rows is None else rows, "fail_after: the number", least=0)
        self._fault = Fault(rows=rows, timers=timers)

    def fail_at(self, point: Literal["seal", "publish"]) -> None:
        """Make the next epoch fail at a point of its commit; it is then computed again.

        Parameters
        ----------
        point : {"seal", "publish"}
            ``"seal"``: everything is handled and no table is sealed yet. ``"publish"``: all tables
            are sealed and the epoch is not published, so that sealed tables are rolled back.
        """
        choice(point, "fail_at: point", ("seal", "publish"))
        self._fault = Fault(at=point)

    # -- results

    def take_output(self) -> list[Any]:
        """Return `output` and empty it."""
        taken, self.output = self.output, []
        return taken

    def side_output(self, tag: str) -> list[Any]:
        """The rows that went to a side output in all epochs so far.

        Raises
        ------
        InvalidArgumentError
            No such tag was declared.
        """
        if tag not in self._sides:
            known = ", ".join(map(repr, self._sides)) or "none"
            raise InvalidArgumentError(
                f"no side output {tag!r:.80}; declared: {known}{nearest(tag, self._sides)}"
            )
        return self._sides[tag]

    @property
    def epoch(self) -> int:
        """How many epochs there were."""
        return self._clock.epoch

    @property
    def watermark(self) -> int | None:
        """The next epoch's watermark, in milliseconds since 1970."""
        return self._clock.watermark

    @property
    def processing_time(self) -> int:
        """The next epoch's processing time, in milliseconds since 1970."""
        return self._clock.processing_time

    @property
    def late_rows(self) -> int:
        """Rows with an event time before the watermark, over all epochs."""
        return self._clock.late_rows

    @property
    def invalid_rows(self) -> int:
        """Rows that could not be processed, over all epochs."""
        return self._clock.invalid_rows

    # -- life

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        if error is None and self._fault is not None:
            raise InvalidArgumentError(
                f"{self._fault}: the failure never happened; were there too few rows, or no epoch?"
            )
