"""The clocks of a harness, which carry over from epoch to epoch.

Thread safety: a `Clock` belongs to one thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pystate.errors import InvalidArgumentError
from pystate.operator.event_time import milliseconds
from pystate.types.durations import milliseconds as length_ms

__all__ = ["Clock"]


@dataclass
class Clock:
    """The times that carry over from epoch to epoch."""

    processing_time: int
    epoch: int = 0
    watermark: int | None = None
    max_event_time: int | None = None
    late_rows: int = 0
    invalid_rows: int = 0

    def with_watermark(self, to: int | datetime) -> Clock:
        """A copy with another watermark, which is not before this one's."""
        wanted = milliseconds(to, "the watermark")
        _not_backwards("watermark", self.watermark, wanted)
        return replace(self, watermark=wanted)

    def with_processing_time(self, to: int | datetime | timedelta) -> Clock:
        """A copy with another processing time, which is not before this one's."""
        before = self.processing_time
        if isinstance(to, timedelta):
            wanted = before + length_ms(to, "the processing time's step")
        else:
            wanted = milliseconds(to, "the processing time")
        _not_backwards("processing time", before, wanted)
        return replace(self, processing_time=wanted)

    def see(self, event_time: int | None, late_rows: int, invalid_rows: int = 0) -> None:
        """Record what a task has seen: its largest event time, and how many rows were not used."""
        self.max_event_time = _larger(self.max_event_time, event_time)
        self.late_rows += late_rows
        self.invalid_rows += invalid_rows

    def end_epoch(self, allowed_delay_ms: int | None) -> None:
        """Advance the watermark by the event times that were seen, as a job does."""
        if allowed_delay_ms is not None and self.max_event_time is not None:
            self.watermark = _larger(self.watermark, self.max_event_time - allowed_delay_ms)


def _not_backwards(what: str, before: int | None, wanted: int) -> None:
    if before is not None and wanted < before:
        raise InvalidArgumentError(f"the {what} is {before} and never goes back, to {wanted}")


def _larger(one: int | None, two: int | None) -> int | None:
    if one is None or two is None:
        return two if one is None else one
    return max(one, two)
