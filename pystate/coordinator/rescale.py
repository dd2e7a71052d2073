"""Changes the number of ranges over the same key groups, without rewriting a file.

Thread safety: a function without state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace

from pystate._core.core import range_bounds
from pystate.checkpoint.manifest import EMPTY_ID, FileRef, OperatorState, RangeState

__all__ = ["rescaled"]


def rescaled(
    operator: OperatorState, parallelism: int, max_parallelism: int
) -> tuple[RangeState, ...]:
    """Plan the ranges of a new parallelism from the files of the old one.

    Parameters
    ----------
    operator : OperatorState
        The operator in the base manifest.
    parallelism : int
        The new number of ranges.
    max_parallelism : int
        Number of key groups, which does not change.

    Returns
    -------
    tuple of RangeState
        The same objects if nothing changes. A range with new bounds names all files of the old
        ranges that it overlaps, and has its own id, which is computed from theirs, so that every
        replay gets the same one.

    Notes
    -----
    A file may hold more key groups than its range still has, and two old ranges may name the same
    file. Each entry is therefore restricted to the key groups for which it counts: the content of
    one old range's file for keys of another range is out of date.
    """
    if parallelism == operator.parallelism:
        return operator.ranges
    ranges = []
    for index in range(parallelism):
        first, last = range_bounds(index, max_parallelism, parallelism)
        sources = [
            old
            for old in operator.ranges
            if old.first_key_group <= last and old.last_key_group >= first
        ]
        same = [o for o in sources if (o.first_key_group, o.last_key_group) == (first, last)]
        if same:
            ranges.append(replace(same[0], index=index))
            continue
        files = tuple(part for old in sources for part in _parts(old, first, last))
        text = ",".join([f"{first}-{last}", *(old.id for old in sources)])
        derived = hashlib.sha256(text.encode()).hexdigest()[:32]
        state_id = derived if files else EMPTY_ID
        ranges.append(
            RangeState(
                index,
                first,
                last,
                state_id,
                None,
                files,
                # Only the range's next task will see whose timer it is; a time that is too early
                # does no harm.
                _earliest(old.next_event_timer_ms for old in sources),
                _earliest(old.next_processing_timer_ms for old in sources),
                operator.ranges[0].since,
            )
        )
    return tuple(ranges)


def _earliest(times: Iterable[int | None]) -> int | None:
    return min((time for time in times if time is not None), default=None)


def _parts(old: RangeState, first: int, last: int) -> Iterator[FileRef]:
    """Restrict the files of an old range to the key groups that both ranges have."""
    for ref in old.files:
        low = max(ref.first_key_group, old.first_key_group, first)
        high = min(ref.last_key_group, old.last_key_group, last)
        if low <= high:
            yield replace(ref, first_key_group=low, last_key_group=high)
