"""What all harnesses of operators share: their output, injected failures, and the times to look at.

Thread safety: a harness belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pystate.arguments import choice, integer, nearest
from pystate.errors import InvalidArgumentError
from pystate.testing.faults import Fault

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["HarnessBase"]


class _Moment(Protocol):
    """The times that carry over from epoch to epoch."""

    epoch: int
    watermark: int | None
    processing_time: int
    late_rows: int
    invalid_rows: int


class HarnessBase:
    """Base of the harnesses.

    Attributes
    ----------
    output : list
        The rows that all epochs so far have emitted.
    failures : int
        Injected failures that have happened.
    """

    #: Whether `fail_after` can count timers.
    _counts_timers = True

    def _begin_output(self, tags: Iterable[str]) -> None:
        """Begin without output, with these side outputs."""
        self._sides: dict[str, list[Any]] = {tag: [] for tag in tags}
        self._fault: Fault | None = None
        self.failures = 0
        self.output: list[Any] = []

    @property
    def _moment(self) -> _Moment:
        """The times as of the last epoch."""
        raise NotImplementedError

    def close(self) -> None:
        """Free the tables. Does nothing the second time."""
        raise NotImplementedError

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

    # -- what came of it

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
        return self._moment.epoch

    @property
    def watermark(self) -> int | None:
        """The next epoch's watermark, in milliseconds since 1970."""
        return self._moment.watermark

    @property
    def processing_time(self) -> int:
        """The next epoch's processing time, in milliseconds since 1970."""
        return self._moment.processing_time

    @property
    def late_rows(self) -> int:
        """Rows with an event time before the watermark, over all epochs."""
        return self._moment.late_rows

    @property
    def invalid_rows(self) -> int:
        """Rows that could not be processed, over all epochs."""
        return self._moment.invalid_rows

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
