"""From what a driver's clock says to an epoch's processing time.

A clock may be wrong for a while: a machine whose battery is empty, a virtual one that was resumed.
Processing time that followed it would fire every timer and end every time to live, and would then
stand still until the true time gets there, since it does not go back.

Thread safety: functions without state.

Invariants
----------
1. The processing time follows from the base and from what the clock said for the epoch's position,
   so that an epoch that is computed again has the same one.
2. It goes back only where the job asks for it, and then only a clock that is far behind.
3. One reading moves it ahead by one step at most: by the job's bound, or twice the longest pause
   between epochs that the job has had lately. A reading beyond that is doubted.
4. While the clock is doubted processing time goes on at its pace. A clock that falls back behind
   the reading was wrong; one that has gone on for as long as the bound is believed.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone

from pystate.checkpoint.manifest import ClockReading, Manifest

__all__ = ["MAX_STEP_MS", "advance", "warn"]

_LOG = logging.getLogger("pystate.coordinator.clock")
MAX_STEP_MS = 3_600_000
#: What drivers' clocks may differ by without a word.
_TOLERANCE_MS = 60_000
#: How fast a long pause is forgotten: by this part of the time that passes without one.
_FORGOTTEN_PART = 8
_UNIX = datetime(1970, 1, 1, tzinfo=timezone.utc)


def advance(
    base: Manifest | None, read_ms: int, max_step_ms: int, *, allow_back: bool
) -> tuple[int, ClockReading]:
    """Decide an epoch's processing time.

    Parameters
    ----------
    base : Manifest or None
        What the epoch is built on.
    read_ms : int
        What the clock said for the epoch's position.
    max_step_ms : int
        The bound of a step, and how long a doubted clock must go on to be believed.
    allow_back : bool
        Whether processing time goes back to a clock that is behind it by more than the bound.

    Returns
    -------
    tuple of (int, ClockReading)
        The processing time, and what the epoch's manifest must remember.
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
        # Believed, and so is the pause that the doubt began with: what processing time is late by
        # since then, and the bound that it was allowed.
        step_ms = max(read_ms - last.read_ms, last.read_ms - time_ms + most_ms)
    elif step_ms > most_ms:
        if since_ms is None or read_ms < since_ms:
            return time_ms + most_ms, ClockReading(read_ms, last.pause_ms, read_ms)
        paced_ms = time_ms + max(0, read_ms - last.read_ms)
        return paced_ms, ClockReading(read_ms, last.pause_ms, since_ms)
    pause_ms = max(step_ms, last.pause_ms - step_ms // _FORGOTTEN_PART)
    return read_ms, ClockReading(read_ms, pause_ms)


def warn(base: Manifest | None, time_ms: int, now: ClockReading, *, always: bool) -> None:
    """Say it where processing time and the clock part, once, or with `always` again."""
    if base is None:
        return
    last = base.clock
    if time_ms < base.processing_time_ms:
        _LOG.warning(
            "processing time goes back from %s to the clock's %s, as allow_time_back asks: leave "
            "that out from the next start on",
            _shown(base.processing_time_ms),
            _shown(time_ms),
        )
    elif now.doubted_since_ms is not None:
        if always or now.doubted_since_ms != last.doubted_since_ms:
            _LOG.warning(
                "the clock says %s, %s after the last epoch's processing time: the epoch has %s. "
                "The clock is believed when it has gone on for as long as max_clock_step; make "
                "that longer than the pauses that the job makes",
                _shown(now.read_ms),
                timedelta(milliseconds=now.read_ms - base.processing_time_ms),
                _shown(time_ms),
            )
    elif now.read_ms < time_ms - _TOLERANCE_MS and (
        always or last.read_ms >= base.processing_time_ms - _TOLERANCE_MS
    ):
        _LOG.warning(
            "processing time stands still at %s until the clock gets there, which says %s: it was "
            "wrong before, or is now. To take processing time back to the clock at once, start "
            "the job once with allow_time_back=True",
            _shown(time_ms),
            _shown(now.read_ms),
        )


def _shown(time_ms: int) -> str:
    try:
        return f"{_UNIX + timedelta(milliseconds=time_ms):%Y-%m-%d %H:%M:%S} UTC"
    except OverflowError:
        return f"{time_ms} ms"
