"""Matches an operator's stored state with the declarations of a later epoch.

Thread safety: functions without state.

Why a dropped state stays dropped
---------------------------------
1. A file is never rewritten: files of older epochs still hold a state after it was dropped.
2. A state that the operator does not have in the newest manifest is ignored in all files, so that
   nothing has to be remembered about a dropped state.
3. A state that is declared but not in the manifest counts from the declaring epoch on. Older files
   may hold another state of the same name.
4. The same holds for fields of structs, under ``state#path``: once an epoch without a field is
   published, what older files hold of it is gone for every key, whether the key was written since
   or not. A field that comes back begins with nulls, whatever type it had before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pystate.checkpoint.manifest import TIMERS, OperatorState, RangeState, Schema, has_timers
from pystate.errors import UnclaimedStateError
from pystate.state.evolution import stored_change
from pystate.state.kinds import declared_as
from pystate.types.evolution import field_paths

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
    """Set from which epoch on each state counts, for an operator's ranges.

    Parameters
    ----------
    stored : OperatorState
        The operator in the base manifest.
    ranges : tuple of RangeState
        Its ranges, in the parallelism of the epoch.
    declared : Schema
        The states of the epoch.
    timers : bool
        Whether it has timers.
    epoch : int
        The epoch's number.
    allow_unclaimed_state : bool
        Whether timers that the function no longer handles are dropped.

    Raises
    ------
    UnclaimedStateError
        There are timers that the epoch's function does not handle.
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
    since.update(_fields(stored, before, dict(declared), epoch))
    if since == before:
        return ranges
    return tuple(replace(state, since=tuple(sorted(since.items()))) for state in ranges)


def _fields(
    stored: OperatorState, before: Mapping[str, int], declared: Mapping[str, str], epoch: int
) -> dict[str, int]:
    """From which epoch on fields count that were added, in this epoch or earlier."""
    kept: dict[str, int] = {}
    earlier = dict(stored.state_schema)
    for key, first in before.items():
        name, _, path = key.partition("#")
        if not name or not path or name not in declared or name not in earlier:
            continue
        if path in field_paths(declared_as(declared[name]).type):
            kept[key] = first
    for name in earlier.keys() & declared.keys():
        if earlier[name] != declared[name]:
            added = stored_change(earlier[name], declared[name]).types.added
            kept.update({f"{name}#{path}": epoch for path in added})
    return kept
