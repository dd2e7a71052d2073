"""An operator's stored state under the declarations of another epoch.

Thread safety: functions without state.

Why a dropped state stays dropped
---------------------------------
1. A file is never rewritten: those of older epochs go on holding a state after it was dropped.
2. What the newest manifest's operator does not have counts in no file, so that nothing has to be
   remembered of a state that is gone.
3. A state that is declared where the manifest does not have it counts from that epoch on. Older
   files may hold one that had its name.
"""

from __future__ import annotations

from dataclasses import replace

from pystate.checkpoint.manifest import TIMERS, OperatorState, RangeState, Schema, has_timers
from pystate.errors import UnclaimedStateError

__all__ = ["evolved_ranges"]


def evolved_ranges(
    stored: OperatorState,
    ranges: tuple[RangeState, ...],
    declared: Schema,
    timers: bool,
    epoch: int,
    *,
    allow_unclaimed_state: bool,
) -> tuple[RangeState, ...]:
    """Say of an operator's ranges which states count since when.

    Parameters
    ----------
    stored : OperatorState
        As the base manifest has it.
    ranges : tuple of RangeState
        Its ranges in the parallelism of the epoch.
    declared : Schema
        The states of the epoch.
    timers : bool
        Whether it has timers.
    epoch : int
        Its number.
    allow_unclaimed_state : bool
        Whether timers that nobody handles any more are dropped.

    Raises
    ------
    UnclaimedStateError
        Timers are waiting that the epoch's function does not handle.
    """
    names = {name for name, _ in declared} | ({TIMERS} if timers else set())
    if not timers and has_timers(ranges):
        if not allow_unclaimed_state:
            raise UnclaimedStateError(
                f"operator {stored.uid!r}: the checkpoint holds timers, and the function has no "
                "on_timer to claim them; give it one, or pass allow_unclaimed_state=True to drop "
                "them"
            )
        ranges = tuple(
            replace(state, next_event_timer_ms=None, next_processing_timer_ms=None)
            for state in ranges
        )
    before = dict(stored.ranges[0].since)
    since = {name: before[name] for name in names & before.keys() & stored.states}
    since.update(dict.fromkeys(names - stored.states, epoch))
    if since == before:
        return ranges
    return tuple(replace(state, since=tuple(sorted(since.items()))) for state in ranges)
