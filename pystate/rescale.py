"""Another number of ranges over the same key groups, without rewriting a file.

Thread safety: a function without state.
"""

from __future__ import annotations

import hashlib

from pystate.manifest import OperatorState, RangeState, range_bounds

__all__ = ["rescaled"]


def rescaled(
    operator: OperatorState, parallelism: int, max_parallelism: int
) -> tuple[RangeState, ...]:
    """Plan the ranges of a new parallelism from the files of the old one.

    Parameters
    ----------
    operator : OperatorState
        As the base manifest has it.
    parallelism : int
        The new number of ranges.
    max_parallelism : int
        Number of key groups, which stays.

    Returns
    -------
    tuple of RangeState
        The same objects where nothing changes. A range with new bounds names all files of the old
        ranges that it meets, and has an id of its own that follows from theirs, so that every
        replay computes the same one.
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
            ranges.append(RangeState(index, first, last, same[0].id, same[0].base, same[0].deltas))
            continue
        files = tuple(ref for old in sources for ref in old.files)
        text = ",".join([f"{first}-{last}", *(old.id for old in sources)])
        derived = hashlib.sha256(text.encode()).hexdigest()[:32]
        state_id = derived if files else "0" * 32
        ranges.append(RangeState(index, first, last, state_id, None, files))
    return tuple(ranges)
