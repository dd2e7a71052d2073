"""Finds other files for an epoch's state, where some of its own are damaged.

Epochs share files, and a merge leaves the same state in two forms: a base, and the files that it
was made from. While epochs of both forms are retained, one form replaces the other.

Thread safety: functions without state.

Invariants
----------
1. A lineage id names one state of a range, whichever files it is read from. A replacement has the
   same ids from the replaced files' newest on.
2. Files of a former parallelism have the ids of other ranges, so that only their range's own files
   are compared.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.refs import FileRef, OperatorState, RangeState

__all__ = ["salvaged"]


def salvaged(
    manifest: Manifest, others: Mapping[int, Manifest], bad: Collection[str]
) -> Manifest | None:
    """Return an epoch's manifest over intact files only; None if there are none for some range.

    Parameters
    ----------
    manifest : Manifest
        The epoch.
    others : mapping from epoch to Manifest
        All retained epochs.
    bad : collection of str
        The damaged files.
    """
    operators = []
    for operator in manifest.operators:
        ranges = []
        for state in operator.ranges:
            found: RangeState | None = state
            if any(ref.path in bad for ref in state.files):
                found = _replaced(manifest, operator, state, others, bad)
            if found is None:
                return None
            ranges.append(found)
        operators.append(replace(operator, ranges=tuple(ranges)))
    return replace(manifest, operators=tuple(operators), part=None)


def _replaced(
    manifest: Manifest,
    operator: OperatorState,
    state: RangeState,
    others: Mapping[int, Manifest],
    bad: Collection[str],
) -> RangeState | None:
    for epoch in sorted(others, key=lambda other: abs(other - manifest.epoch)):
        theirs = others[epoch].operator(operator.uid)
        if theirs is None or epoch == manifest.epoch:
            continue
        # Merges drop the states that the operator did not have at the time.
        if (theirs.state_schema, theirs.timers) != (operator.state_schema, operator.timers):
            continue
        for other in theirs.ranges:
            if _bounds(other) != _bounds(state):
                continue
            if epoch > manifest.epoch and other.since != state.since:
                continue
            found = _combined(state, other, bad)
            if found is not None:
                return found
    return None


def _combined(state: RangeState, other: RangeState, bad: Collection[str]) -> RangeState | None:
    """The first files of the other chain, and the last ones of this, which are all intact."""
    mine, theirs = state.files, other.files
    last_bad = max(i for i, ref in enumerate(mine) if ref.path in bad)
    intact = next((i for i, ref in enumerate(theirs) if ref.path in bad), len(theirs))
    if other.id == state.id and intact == len(theirs):
        return replace(state, base=other.base, deltas=other.deltas)
    mine_by_id = {ref.id: i for i, ref in enumerate(mine) if i >= last_bad and _is_own(ref, state)}
    for j in range(intact - 1, -1, -1):
        q = mine_by_id.get(theirs[j].id) if _is_own(theirs[j], state) else None
        if q is not None:
            files = (*theirs[: j + 1], *mine[q + 1 :])
            deltas = files if other.base is None else files[1:]
            return replace(state, base=other.base, deltas=deltas)
    return None


def _bounds(state: RangeState) -> tuple[int, int]:
    return state.first_key_group, state.last_key_group


def _is_own(ref: FileRef, state: RangeState) -> bool:
    """Whether a file was written for this very range, whole."""
    first, last = _bounds(state)
    folder = ref.path.split("/")[-2]
    return (ref.first_key_group, ref.last_key_group) == (first, last) and (
        folder == f"{first:05d}-{last:05d}"
    )
