"""Derives an epoch's processing time from the driver's clock.

A clock may be wrong for a while: a machine has an empty battery, a virtual machine was resumed. If
processing time followed such a clock, every timer would fire and every time to live would end.
Processing time would then stand still until the true time has caught up, since it does not go back.

Thread safety: functions without state.

Invariants
----------
1. The processing time depends only on the base and on the clock reading for the epoch's position,
   so that an epoch that is computed again has the same one.
2. It goes back only if the job allows it, and then only to a clock that is far behind.
3. One reading moves it ahead by at most one step: the job's bound, or twice the longest recent
   pause between epochs. A reading beyond that is doubted.
4. While the clock is doubted, processing time advances at its pace. If the clock falls back behind
   the doubted reading, it was wrong; once it has run for as long as the bound, it is trusted.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from pystate.checkpoint.manifest import ClockReading, Manifest
from pystate.redaction import logger

_LOG = logger("pystate.epochs.clock")
MAX_STEP_MS = 3_600_000
#: The difference of drivers' clocks up to which there is no warning.
_TOLERANCE_MS = 60_000
#: How fast a long pause is forgotten: it shrinks by this part of the time that passes without one.
_FORGOTTEN_PART = 8
_UNIX = datetime(1970, 1, 1, tzinfo=timezone.utc)


def advance(
    base: Manifest | None, read_ms: int, max_step_ms: int, *, allow_back: bool
) -> tuple[int, ClockReading]:
    """Compute an epoch's processing time, and what its manifest must remember of the clock.

    `max_step_ms` is also how long a doubted clock must run until it is trusted.
    """
    if base is None:
        return read_ms, ClockReading(read_ms)
    time_ms, last = base.processing_time_ms, base.clock
    step_ms = read_ms - time_ms
    if allow_back and step_ms < -max_step_ms:
        return read_ms, ClockReading(read_ms)
    if step_ms <= 0:
        return time_ms, ClockReading(read_ms, last.pause_ms)
    most_ms = max(max_step_ms, 2 * last.pause_ms)
    since_ms = last.doubted_since_ms
    if since_ms is not None and read_ms - since_ms >= max_step_ms:
        # The clock is trusted, and so is the pause with which the doubt began: the lag of
        # processing time since then, plus the bound that it was allowed.
        step_ms = max(read_ms - last.read_ms, last.read_ms - time_ms + most_ms)
    elif step_ms > most_ms:
        if since_ms is None or read_ms < since_ms:
            return time_ms + most_ms, ClockReading(read_ms, last.pause_ms, read_ms)
        paced_ms = time_ms + max(0, read_ms - last.read_ms)
        return paced_ms, ClockReading(read_ms, last.pause_ms, since_ms)
    pause_ms = max(step_ms, last.pause_ms - step_ms // _FORGOTTEN_PART)
    return read_ms, ClockReading(read_ms, pause_ms)


def warn(base: Manifest | None, time_ms: int, now: ClockReading, *, always: bool) -> None:
    """Warn if processing time and the clock diverge: once, or with `always` every time."""
    if base is None:
        return
    last = base.clock
    if time_ms < base.processing_time_ms:
        _LOG.warning(
            "processing time goes back from %s to the clock's %s, because of allow_time_back: "
            "leave that option out at the next start",
            _instant_text(base.processing_time_ms),
            _instant_text(time_ms),
        )
    elif now.doubted_since_ms is not None:
        if always or now.doubted_since_ms != last.doubted_since_ms:
            _LOG.warning(
                "the clock says %s, %s after the last epoch's processing time: the epoch has %s. "
                "The clock is trusted once it has run for as long as max_clock_step; make that "
                "longer than the pauses of the job",
                _instant_text(now.read_ms),
                timedelta(milliseconds=now.read_ms - base.processing_time_ms),
                _instant_text(time_ms),
            )
    elif now.read_ms < time_ms - _TOLERANCE_MS and (
        always or last.read_ms >= base.processing_time_ms - _TOLERANCE_MS
    ):
        _LOG.warning(
            "processing time stands still at %s until the clock, which says %s, gets there: the "
            "clock was wrong before, or is wrong now. To set processing time back to the clock at "
            "once, start the job once with allow_time_back=True",
            _instant_text(time_ms),
            _instant_text(now.read_ms),
        )


def _instant_text(time_ms: int) -> str:
    try:
        return f"{_UNIX + timedelta(milliseconds=time_ms):%Y-%m-%d %H:%M:%S} UTC"
    except OverflowError:
        return f"{time_ms} ms"
