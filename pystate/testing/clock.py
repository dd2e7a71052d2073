"""The clocks of a harness, which carry over from epoch to epoch.

Thread safety: a `Clock` belongs to one thread.

Invariants
----------
1. The watermark of an epoch is the one that earlier epochs have left, as in a job: an input's is
   its own, and the operator's is the smallest of them. It never goes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from pystate.errors import InvalidArgumentError
from pystate.operators.runtime.event_time import milliseconds
from pystate.operators.runtime.invalid_rows import InvalidRule
from pystate.operators.runtime.task import TaskContext
from pystate.testing.input_rows import InputRows
from pystate.types.durations import milliseconds as length_ms


@dataclass(frozen=True)
class HarnessInput:
    """An input of an operator."""

    name: str
    key: tuple[str, ...]
    """Its key columns."""
    rows: InputRows
    """Its columns."""
    event_time: str | None
    """The column of the rows' event time."""
    allowed_delay_ms: int | None
    """The watermark follows its rows with this delay; None if only the test moves it."""
    invalid: InvalidRule = InvalidRule()  # noqa: RUF009
    """What becomes of rows that cannot be processed."""


@dataclass
class Clock:
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

    def begin(self, inputs: Iterable[str]) -> None:
        """Begin without rows of some inputs."""
        self.latest, self.inputs = dict.fromkeys(inputs), dict.fromkeys(inputs)

    def copy(self) -> Clock:
        """A copy, which may be changed."""
        return replace(self, latest=dict(self.latest), inputs=dict(self.inputs))

    def at_beginning(self, processing_time: int) -> Clock:
        """A copy that has counted nothing yet."""
        return replace(
            self.copy(), epoch=0, late_rows=0, invalid_rows=0, processing_time=processing_time
        )

    def with_watermark(self, to: int | datetime, inputs: Sequence[str] | None = None) -> Clock:
        """A copy with another watermark of some inputs, or of all, which does not go back."""
        wanted, clock = milliseconds(to, "the watermark"), self.copy()
        befores = [self.watermark] if inputs is None else [self.inputs[name] for name in inputs]
        for before in befores:
            _not_backwards("watermark", before, wanted)
        for name in clock.inputs if inputs is None else inputs:
            clock.move(name, wanted)
        return clock

    def with_processing_time(self, to: int | datetime | timedelta) -> Clock:
        """A copy with another processing time, which is not before this one's."""
        before = self.processing_time
        if isinstance(to, timedelta):
            wanted = before + length_ms(to, "the processing time's step")
        else:
            wanted = milliseconds(to, "the processing time")
        _not_backwards("processing time", before, wanted)
        return replace(self.copy(), processing_time=wanted)

    def move(self, name: str, to: int) -> None:
        """Move an input's watermark, unless it is there already."""
        self.inputs[name] = _larger(self.inputs[name], to)
        known = [mark for mark in self.inputs.values() if mark is not None]
        if len(known) == len(self.inputs):
            self.watermark = _larger(self.watermark, min(known))

    def see(self, task: TaskContext) -> None:
        """Record what a task has seen."""
        self.late_rows += task.late_rows
        self.invalid_rows += task.invalid_rows
        for name, latest in task.latest.items():
            self.latest[name] = _larger(self.latest.get(name), latest)

    def end_epoch(self, inputs: Iterable[HarnessInput]) -> None:
        """Advance the watermark by the event times that were seen, as a job does."""
        for given in inputs:
            latest = self.latest[given.name]
            if given.allowed_delay_ms is not None and latest is not None:
                self.move(given.name, latest - given.allowed_delay_ms)


def _not_backwards(what: str, before: int | None, wanted: int) -> None:
    if before is not None and wanted < before:
        raise InvalidArgumentError(f"the {what} is {before} and never goes back, to {wanted}")


def _larger(one: int | None, two: int | None) -> int | None:
    if one is None or two is None:
        return two if one is None else one
    return max(one, two)
