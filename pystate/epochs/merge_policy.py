"""Which files of a range are merged, so that chains stay short and merging stays cheap.

An epoch adds a delta to each range that changes. A range is restored from its base and all deltas,
so these must not outgrow the base; and it names all of them in manifests, so they must not be many.
Yet a merge into a base writes the whole state of the range. So there are two kinds of merges:

- Into a base, when the deltas have grown to a part of it, by bytes or by deletions: each byte that
  epochs wrote is then paid for by a constant number of bytes of the base.
- Into a larger delta, when there are too many of them: those of similar size that follow each
  other, so that a byte is written again only as part of a file several times as large. Their number
  stays bounded, and a byte is merged as often as the logarithm of the number of epochs.

Thread safety: all types are immutable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pystate.checkpoint.refs import FileRef, RangeState

__all__ = ["MergePolicy", "Run", "position", "replaced"]

#: Deltas are of similar size if one is at most so many times as large as the other; and so many of
#: them are worth a merge.
_FAN_IN = 8


@dataclass(frozen=True)
class Run:
    """Files of a range that follow each other, to be merged into one."""

    sources: tuple[FileRef, ...]
    kind: str
    """What they become: ``"base"`` or ``"delta"``."""
    id: str
    """The lineage id that a table has after them."""


@dataclass(frozen=True)
class MergePolicy:
    """When the files of a range are merged, and which."""

    min_deltas: int = 4
    """Fewer deltas are never merged."""
    max_deltas: int = 64
    """From so many deltas on, some are merged whatever their size."""
    keep_deltas: int = 2
    """So many of the newest deltas are not merged, so that a table slightly behind can catch up."""
    most_deltas: int = 256
    """If there are more deltas, an epoch waits for the running merge."""
    base_part: float = 0.5
    """How large deltas grow together, as a part of the base, before a new base is made."""

    def choose(self, state: RangeState) -> Run | None:
        """Choose files of a range to merge; None if it is not time yet."""
        count = len(state.deltas)
        if count < max(self.min_deltas, self.keep_deltas + 1):
            return None
        old = state.deltas[: count - self.keep_deltas]
        base = state.base
        if base is None:
            return _run(state, 0, len(old))
        least = self.base_part
        if sum(delta.file_bytes for delta in old) >= least * base.file_bytes or sum(
            delta.tombstones for delta in old
        ) >= least * max(base.rows, 1):
            return _run(state, 0, 1 + len(old))
        if count < self.max_deltas:
            return None
        first, last = _similar([delta.file_bytes for delta in old[_own(state, old) :]])
        first, last = first + _own(state, old), last + _own(state, old)
        if last - first < 2:  # files of former ranges, which only a base replaces
            return _run(state, 0, 1 + len(old))
        return _run(state, 1 + first, 1 + last)


def position(state: RangeState, sources: tuple[FileRef, ...]) -> int | None:
    """Where a range's files have these files, one after the other; None if they do not."""
    for first, ref in enumerate(state.files):
        if ref.path == sources[0].path:
            return first if state.files[first : first + len(sources)] == sources else None
    return None


def replaced(state: RangeState, sources: tuple[FileRef, ...], merged: FileRef) -> RangeState | None:
    """Put one file in place of those that it was made from; None if they are not there."""
    first = position(state, sources)
    if first is None or (merged.kind == "base" and first > 0):
        return None
    files = (*state.files[:first], merged, *state.files[first + len(sources) :])
    if merged.kind == "base":
        return replace(state, base=merged, deltas=files[1:])
    return replace(state, deltas=files if state.base is None else files[1:])


def _run(state: RangeState, first: int, last: int) -> Run:
    rest = state.files[last:]
    merged_id = rest[0].parent if rest else state.id
    return Run(state.files[first:last], "delta" if first else "base", merged_id)


def _own(state: RangeState, deltas: Sequence[FileRef]) -> int:
    """From where on deltas are of the range itself, and each is built on the one before."""
    bounds = (state.first_key_group, state.last_key_group)
    for position in range(len(deltas) - 1, -1, -1):
        ref = deltas[position]
        after = deltas[position + 1 : position + 2]
        if (
            ref.kind != "delta"
            or (ref.first_key_group, ref.last_key_group) != bounds
            or (after and after[0].parent != ref.id)
        ):
            return position + 1
    return 0


def _similar(sizes: Sequence[int]) -> tuple[int, int]:
    """Find the longest run of files of similar size, among the smallest such sizes."""
    most = min(sizes, default=0)
    while True:
        most = max(most * _FAN_IN, 1)
        first, last = _longest([size <= most for size in sizes])
        if last - first >= min(_FAN_IN, len(sizes)):
            return first, last


def _longest(small: Sequence[bool]) -> tuple[int, int]:
    """The longest run of true values; of equally long ones the last."""
    best, start = (0, 0), 0
    for end, value in enumerate([*small, False]):
        if not value:
            if end - start >= best[1] - best[0]:
                best = (start, end)
            start = end + 1
    return best
