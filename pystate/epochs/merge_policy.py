"""Which files of a range are merged with which, and when: said from their sizes alone.

An epoch adds a delta to each range that changes. A range is restored from its base and all deltas,
so these must not outgrow the base; and it names all of them in manifests, so they must not be many.
Yet a merge into a base writes the whole state of the range. So there are two kinds of merges:

- Into a base, when the deltas have grown to a part of it, by bytes or by deletions: each byte that
  epochs wrote is then paid for by a constant number of bytes of the base.
- Into a larger delta, when there are too many of them: those of similar size that follow each
  other, so that a byte is written again only as part of a file several times as large. Their number
  stays bounded, and a byte is merged as often as the logarithm of the number of epochs.

Tables in memory read files where they are restored; then only the bytes count, and how long
manifests are. A table on disk asks the files of its range for each row that is not in memory:
there each file costs reads, and each row of a delta memory for a filter. So its policy allows fewer
and smaller deltas. And its ranges are large, so that a merge into one base would need the room of
a second one, and take as long as many epochs: there the base is made anew in slices of key groups,
one after the other, and the deltas count for fewer key groups with each slice.

Thread safety: functions without state; all types are immutable.

Invariants
----------
1. The files of a run follow each other in the range, of all files that count for its key groups. So
   a key group's files stay in their order, oldest first.
2. Into a base goes the oldest file that counts for these key groups; so a base is below all else.
3. What a run does not take counts as before, for the same key groups.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pystate.checkpoint.refs import FileRef, RangeState, restrict
from pystate.checkpoint.size_tiers import similar_run

#: Deltas are of similar size if one is at most so many times as large as the other; and so many of
#: them are worth a merge.
_FAN_IN = 8


@dataclass(frozen=True)
class Run:
    """Files of a range that follow each other, to be merged into one."""

    sources: tuple[FileRef, ...]
    """Oldest first; of a slice each counts here for the slice's key groups only."""
    kind: str
    """What they become: ``"base"`` or ``"delta"``."""
    id: str
    """The lineage id that a table has after them."""
    slice: tuple[int, int] | None = None
    """The first and the last key group that are merged, inclusive; None for all of the range."""

    def position(self, state: RangeState) -> int | None:
        """Where a range has these files, one after the other; None if it does not.

        It is counted in the files that count for the run's key groups.
        """
        files, count = _counting(state.files, self.slice), len(self.sources)
        for first, ref in enumerate(files):
            if ref.path == self.sources[0].path and files[first : first + count] == self.sources:
                return first
        return None

    def replaced(self, state: RangeState, merged: FileRef) -> RangeState | None:
        """Put one file in place of those that it was made from; None if they are not there."""
        first = self.position(state)
        if first is None or (self.kind == "base" and first > 0):
            return None
        after = first + len(self.sources)
        if self.slice is not None:
            return _replaced_slice(state, self.slice, (first, after), merged)
        files = (*state.files[:first], merged, *state.files[after:])
        if self.kind == "base":
            return replace(state, base=merged, deltas=files[1:])
        return replace(state, deltas=files if state.base is None else files[1:])


@dataclass(frozen=True)
class MergePolicy:
    """When the files of a range are merged, and which: of tables in memory."""

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

    block_bytes: int = 0
    """How large the blocks of merged files are, before compression; with 0 they are as in all files
    that are read as a whole. Otherwise each file has a guide, by which rows are found in it one by
    one, and the range's other files must have one, too."""

    @property
    def with_guides(self) -> bool:
        """Whether all files must have a guide."""
        return self.block_bytes > 0

    def chain(self, state: RangeState) -> int:
        """How many deltas a range has, as the fields above count them."""
        return len(state.deltas)

    def is_full(self, state: RangeState, *, first: bool = False) -> bool:
        """Whether an epoch waits for the range's merge rather than add a delta.

        For the `first` manifest of a driver, and so maybe its last, the bound is the length at
        which the policy merges whatever the size: each driver before may have left its merge
        undone.
        """
        return self.chain(state) >= (self.max_deltas if first else self.most_deltas)

    def choose(self, state: RangeState, plain: Collection[str] = ()) -> Run | None:
        """Choose files of a range to merge; None if it is not time yet.

        `plain` are the paths of those that have no guide; only a policy `with_guides` asks.
        """
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
        # Files of former ranges are replaced by a base alone.
        return _similar(state, 1, 1 + len(old)) or _run(state, 0, 1 + len(old))


@dataclass(frozen=True)
class DiskMergePolicy(MergePolicy):
    """The same of tables on disk, which look for rows in the files.

    A range's deltas are those that count for one key group, in the key group that has the most.
    Bytes are reckoned as if a file had the same of each of its key groups.
    """

    max_deltas: int = 19
    """As few as leave room, below 24 files, for those that come while a merge runs."""
    most_deltas: int = 47
    base_part: float = 0.25
    """By this, filters in memory take at most 0.4 bytes for each row on disk."""
    block_bytes: int = 4096
    slice_above_bytes: int = 4 << 30
    """Of a larger range the base is made in slices."""
    slice_bytes: int = 256 << 20
    """The size of a slice. They grow where new deltas come faster than slices are merged."""

    def chain(self, state: RangeState) -> int:
        """See `MergePolicy`."""
        return max(state.depth - 1, 0)

    def choose(self, state: RangeState, plain: Collection[str] = ()) -> Run | None:
        """See `MergePolicy`; files without guides come first, and become a base that has one."""
        files = state.files
        unguided = [at for at, ref in enumerate(files) if ref.path in plain]
        if unguided:
            return self._into_base(state, unguided[-1] + 1, [files[at] for at in unguided])
        deltas = [ref for ref in files if ref.kind == "delta"]
        if len(deltas) < max(self.min_deltas, self.keep_deltas + 1):
            return None
        end = len(files) - self.keep_deltas
        cut = [at for at in range(end) if _is_cut(files[at], state)]
        large = self._is_large(files[:end])
        if large and cut:
            # Slices are being made, of these files; or a rescale has cut the ranges that had them.
            run = self._shorter(state, cut[-1] + 1, end, self.max_deltas)
            return run or self._into_base(state, cut[-1] + 1, [files[at] for at in cut])
        if self._is_due(files[:end]):
            # While slices are made there is to be room for the deltas that come meanwhile.
            run = self._shorter(state, 1, end, self.max_deltas // 2) if large else None
            return run or self._into_base(state, end, files[:end])
        if self.chain(state) < self.max_deltas:
            return None
        # Files of former ranges are replaced by a base alone.
        return _similar(state, 1, end) or self._into_base(state, end, files[:end])

    def meanwhile(self, state: RangeState, running: Run) -> Run | None:
        """Choose files behind those of a running merge: many deltas that become one."""
        first = len(state.files) - len(_behind(state, running))
        run = _similar(state, first, len(state.files))
        return run if run is not None and len(run.sources) >= _FAN_IN else None

    def waits(self, state: RangeState, running: Run) -> bool:
        """Whether an epoch waits for a running merge: the next one would be due before its end."""
        behind = _size(_behind(state, running))
        return self.is_full(state) or behind >= self.base_part * (_size(state.files) - behind)

    def _shorter(self, state: RangeState, first: int, end: int, enough: int) -> Run | None:
        """Many deltas that become one, if the range has so many that it is time."""
        run = _similar(state, first, end) if self.chain(state) >= enough else None
        return run if run is not None and len(run.sources) >= _FAN_IN else None

    def _is_due(self, files: Sequence[FileRef]) -> bool:
        bases = [ref for ref in files if ref.kind == "base"]
        deltas = [ref for ref in files if ref.kind == "delta"]
        rows = sum(ref.rows * ref.share for ref in bases)
        deleted = sum(ref.tombstones * ref.share for ref in deltas)
        return _size(deltas) >= self.base_part * _size(bases) or deleted >= self.base_part * max(
            rows, 1
        )

    def _is_large(self, files: Sequence[FileRef]) -> bool:
        return _size(files) > self.slice_above_bytes

    def _into_base(self, state: RangeState, end: int, wanted: Sequence[FileRef]) -> Run:
        """Merge the first files of a range into a base, or of a large one the next slice of it.

        A slice begins with the first key group for which one of the `wanted` counts.
        """
        files = state.files[:end]
        if not self._is_large(files):
            return _run(state, 0, end)
        first = min(ref.first_key_group for ref in wanted)
        last = max(ref.last_key_group for ref in wanted)
        target = max(self.slice_bytes, self._lag(state, end, first))
        part = first, _slice_end(files, (first, last), target)
        if part == state.bounds:
            return _run(state, 0, end)
        sources, rest = _counting(files, part), _counting(state.files[end:], part)
        return Run(sources, "base", rest[0].parent if rest else state.id, part)

    def _lag(self, state: RangeState, end: int, first: int) -> float:
        """How many bytes the slices are behind, if the next deltas are due when all are merged."""
        whole = _size(state.files[:end])
        merged = [restrict(ref, part) for ref in state.files[:end] if (part := _below(ref, first))]
        new = _size(state.files[end:]) / max(self.base_part * whole, 1)
        return new * whole - _size(merged)


def _behind(state: RangeState, run: Run) -> Sequence[FileRef]:
    """The files after the last one of a run."""
    sources = {ref.path for ref in run.sources}
    last = max((at for at, ref in enumerate(state.files) if ref.path in sources), default=-1)
    return state.files[last + 1 :]


def _run(state: RangeState, first: int, last: int) -> Run:
    rest = state.files[last:]
    merged_id = rest[0].parent if rest else state.id
    return Run(state.files[first:last], "delta" if first else "base", merged_id)


def _similar(state: RangeState, first: int, last: int) -> Run | None:
    """Deltas of similar size that become one; None if there are no two that are the range's own."""
    deltas = state.files[first:last]
    own = first + _own(state, deltas)
    begin, end = similar_run([ref.file_bytes for ref in state.files[own:last]], _FAN_IN)
    return _run(state, own + begin, own + end) if end - begin >= 2 else None


def _own(state: RangeState, deltas: Sequence[FileRef]) -> int:
    """From where on deltas are of the range itself, and each is built on the one before."""
    for position in range(len(deltas) - 1, -1, -1):
        ref = deltas[position]
        after = deltas[position + 1 : position + 2]
        if (
            ref.kind != "delta"
            or ref.bounds != state.bounds
            or (after and after[0].parent != ref.id)
        ):
            return position + 1
    return 0


# ---- key groups ---------------------------------------------------------------------------------


def _counting(files: Sequence[FileRef], bounds: tuple[int, int] | None) -> tuple[FileRef, ...]:
    """The files that count for key groups within bounds, each restricted to these."""
    if bounds is None:
        return tuple(files)
    return tuple(restrict(ref, part) for ref in files if (part := ref.overlap(bounds)))


def _replaced_slice(
    state: RangeState, bounds: tuple[int, int], taken: tuple[int, int], merged: FileRef
) -> RangeState:
    """Put a file in place of some of the files that count for a slice, from the first to the last.

    What they hold of other key groups goes on to count.
    """
    files: list[FileRef] = []
    at = 0
    for ref in state.files:
        if ref.overlap(bounds) is None:
            files.append(ref)
            continue
        if at == taken[0]:
            files.append(merged)
        if taken[0] <= at < taken[1]:
            rest = _below(ref, bounds[0]), _above(ref, bounds[1])
            files += [restrict(ref, part) for part in rest if part is not None]
        else:
            files.append(ref)
        at += 1
    if files[0] == state.base:
        return replace(state, deltas=tuple(files[1:]))
    return replace(state, base=None, deltas=tuple(files))


def _below(ref: FileRef, first: int) -> tuple[int, int] | None:
    return ref.overlap((0, first - 1)) if first > 0 else None


def _above(ref: FileRef, last: int) -> tuple[int, int] | None:
    return ref.overlap((last + 1, ref.last_key_group)) if last < ref.last_key_group else None


def _is_cut(ref: FileRef, state: RangeState) -> bool:
    """Whether a delta counts for only a part of the range."""
    return ref.kind == "delta" and ref.bounds != state.bounds


def _size(files: Iterable[FileRef]) -> float:
    return sum(ref.file_bytes * ref.share for ref in files)


def _slice_end(files: Sequence[FileRef], bounds: tuple[int, int], target: float) -> int:
    """The last key group of the slice that begins where the bounds do.

    It ends where a file does, if it is then about as large as it should be.
    """
    inner = (c for ref in files for c in (ref.first_key_group, ref.last_key_group + 1))
    cuts = sorted({bounds[0], bounds[1] + 1, *(c for c in inner if bounds[0] < c <= bounds[1])})
    total, end = 0.0, bounds[0]
    for low, high in pairwise(cuts):
        size = _size(_counting(files, (low, high - 1)))
        if total + size > 1.5 * target:
            if total < target / 2:
                groups = int((target - total) / size * (high - low))
                end = low + max(groups, 1) - 1
            return end
        total += size
        end = high - 1
    return end
