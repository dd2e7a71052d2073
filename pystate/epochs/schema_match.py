"""Matches an operator's stored state with the declarations of a later epoch.

Thread safety: functions without state.

Why a dropped state stays dropped
---------------------------------
1. A file is never rewritten: files of older epochs still hold a state after it was dropped.
2. A state that the operator does not have in the newest manifest is ignored in all files, so that
   nothing has to be remembered about a dropped state.
3. A state that is declared but not in the manifest counts from the declaring epoch on. Older files
   may hold another state of the same name.
4. All of this goes by the names that files have, which a rename does not change.
5. The same holds for fields of structs, under ``state#path``: once an epoch without a field is
   published, what older files hold of it is gone for every key, whether the key was written since
   or not. A field that comes back begins with nulls, or its default, whatever type it had before.
6. The default of a field that is added stands beside that epoch, since merges need it, and since a
   program may declare another one later: values that were filled by then do not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from pystate.checkpoint.refs import (
    TIMERS,
    OperatorState,
    RangeState,
    Schema,
    has_timers,
)
from pystate.errors import UnclaimedStateError
from pystate.state.declaration import file_name
from pystate.state.evolution import stored_change
from pystate.state.kinds import declared_as
from pystate.types.conversion import field_paths
from pystate.types.fills import Fills, pin, unpin


def evolved_ranges(
    stored: OperatorState,
    ranges: tuple[RangeState, ...],
    declared: Schema,
    timers: bool,
    epoch: int,
    *,
    allow_unclaimed_state: bool,
    fills: Mapping[str, Fills] = MappingProxyType({}),
) -> tuple[RangeState, ...]:
    """Set from which epoch on each state counts, for an operator's ranges as `epoch` has them.

    `fills` has the defaults of added fields, by the states' names in files. With
    `allow_unclaimed_state` timers that the function no longer handles are dropped; else it raises.
    """
    names = {file_name(*pair) for pair in declared} | ({TIMERS} if timers else set())
    if not timers and has_timers(ranges):
        if not allow_unclaimed_state:
            raise lost_timers(stored.uid)
        ranges = tuple(
            replace(state, next_event_timer_ms=None, next_processing_timer_ms=None)
            for state in ranges
        )
    before = dict(stored.ranges[0].since)
    since = {name: before[name] for name in names & before.keys() & stored.states}
    since.update(dict.fromkeys(names - stored.states, epoch))
    since.update(_fields(stored, before, _by_file(declared), epoch, fills))
    if since == before:
        return ranges
    return tuple(replace(state, since=tuple(sorted(since.items()))) for state in ranges)


def lost_timers(uid: str) -> UnclaimedStateError:
    """The error to raise for stored timers of an operator whose function does not handle any."""
    return UnclaimedStateError(
        f"operator {uid!r}: the checkpoint holds timers, and the function has no on_timer to claim "
        "them; give it one, or pass allow_unclaimed_state=True to drop them"
    )


def _by_file(states: Schema) -> dict[str, str]:
    """How states are spelled, by the names that files have for them."""
    return {file_name(*pair): pair[1] for pair in states}


def _fields(
    stored: OperatorState,
    before: Mapping[str, int],
    declared: Mapping[str, str],
    epoch: int,
    fills: Mapping[str, Fills],
) -> dict[str, int]:
    """From which epoch on fields count that were added, in this epoch or earlier."""
    kept: dict[str, int] = {}
    earlier = _by_file(stored.state_schema)
    for key, first in before.items():
        name, _, text = key.partition("#")
        if not name or not text or name not in declared or name not in earlier:
            continue
        path, _ = unpin(text) or (text, None)
        if path in field_paths(declared_as(declared[name]).type):
            kept[key] = first
    for name in earlier.keys() & declared.keys():
        if earlier[name] != declared[name]:
            mine = fills.get(name, {})
            for path in stored_change(earlier[name], declared[name]).types.added:
                kept[f"{name}#{path}"] = epoch
                if path in mine:
                    kept[f"{name}#{pin(path, mine[path])}"] = epoch
    return kept
