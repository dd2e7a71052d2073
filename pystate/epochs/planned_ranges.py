"""An operator's ranges in a task's closure: the id that each must be at, without files.

Most tables are at the id of their range already and need no file. A task whose table is not reads
the base's manifest, which names the files of its range. So the size of a closure depends on the
number of ranges, and not on the length of their chains.

Thread safety: immutable; `RangeOrigin.load` may be called from any thread.

Invariants
----------
1. The manifest is that of the epoch's base, which is kept as long as the epoch can be published.
2. A task reads what the driver planned, which the range's id proves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import overload

from pystate._core.core import range_bounds
from pystate.checkpoint.manifest import Manifest, read_manifest
from pystate.checkpoint.refs import EMPTY_ID, FileRef, OperatorState, RangeSource, RangeState
from pystate.checkpoint.storage import CheckpointStorage
from pystate.epochs.rescale import plan_rescale, sources_of
from pystate.errors import CheckpointError, LineageError

_Times = tuple["int | None", "int | None"]


@dataclass(frozen=True)
class RangeOrigin:
    """The manifest that names the files of an operator's ranges."""

    storage: CheckpointStorage
    manifest: str
    """The file of the base's manifest."""
    uid: str
    parallelism: int
    """The parallelism of the epoch."""
    stored_parallelism: int
    """The parallelism of the base."""

    def load(self, index: int) -> RangeState:
        """Read a range from the manifest; `CheckpointError` if the epoch of this task is over."""
        try:
            return _ranges(self)[index]
        except FileNotFoundError as error:
            raise self._over(index) from error

    def whole(self) -> RangeState:
        """Read all key groups of the operator, as one range.

        Errors are those of `load`.
        """
        try:
            operator, groups = _stored_operator(self)
        except FileNotFoundError as error:
            raise self._over(0) from error
        return plan_rescale(operator, 1, groups)[0]

    def sources(self, state: RangeState) -> tuple[RangeSource, ...]:
        """Return whose key groups a range takes over; see `RangeState.sources`.

        Errors are those of `load`.
        """
        if self.parallelism == self.stored_parallelism:
            return ()
        try:
            sources = sources_of(_stored_operator(self)[0], state.bounds)
        except FileNotFoundError as error:
            raise self._over(state.index) from error
        return () if any(s.range.bounds == state.bounds for s in sources) else sources

    def _over(self, index: int) -> CheckpointError:
        return CheckpointError(
            f"operator {self.uid!r}, range {index}: {self.manifest} is not there any more in "
            f"{self.storage.uri}: the epoch that this task belongs to is over"
        )


@lru_cache(maxsize=4)
def _stored_operator(origin: RangeOrigin) -> tuple[OperatorState, int]:
    """Read the operator from the manifest, and the number of key groups."""
    manifest = read_manifest(origin.storage, origin.manifest)
    operator = manifest.operator(origin.uid)
    if operator is None:
        raise LineageError(f"{origin.manifest} has no operator {origin.uid!r}")
    return operator, manifest.max_parallelism


@lru_cache(maxsize=4)
def _ranges(origin: RangeOrigin) -> tuple[RangeState, ...]:
    operator, groups = _stored_operator(origin)
    return plan_rescale(operator, origin.parallelism, groups)


@dataclass(frozen=True)
class PlannedRange(RangeState):
    """A range that reads the names of its files only when they are needed."""

    origin: RangeOrigin | None = None
    beginning: RangeState | None = None
    """What all ranges begin with, as one, if no manifest has the operator yet."""

    @cached_property
    def _base(self) -> RangeState:
        if self.origin is None:
            # No manifest has the operator yet, and what it begins with came with the closure.
            return RangeState(
                self.index, *self.bounds, self._stored_id, deltas=self.deltas, since=self.since
            )
        stored = self.origin.load(self.index)
        if (stored.id, stored.bounds) != (self._stored_id, self.bounds):
            raise LineageError(
                f"operator {self.origin.uid!r}, range {self.index}: {self.origin.manifest} has it "
                f"at {stored.id}, and not at {self._stored_id}, where its task was told to begin"
            )
        return stored

    @property
    def _stored_id(self) -> str:
        """The id of the range in the manifest."""
        return self.held[0].parent if self.held else self.id

    @property
    def files(self) -> tuple[FileRef, ...]:
        """All files to restore from, oldest first, held deltas among them."""
        if self._stored_id == EMPTY_ID:
            return self.held
        return (*self._base.files, *self.held)

    @property
    def changes_parallelism(self) -> bool:
        """See `RangeState.changes_parallelism`; reads nothing."""
        return self.origin is not None and (
            self.origin.parallelism != self.origin.stored_parallelism
        )

    @property
    def sources(self) -> tuple[RangeSource, ...]:
        """See `RangeState.sources`; reads nothing unless the parallelism changes."""
        return () if self.origin is None else self.origin.sources(self)

    def whole(self) -> RangeState:
        """See `RangeState.whole`."""
        if self.origin is None:
            return super().whole() if self.beginning is None else self.beginning
        return replace(self.origin.whole(), since=self.since)

    def deltas_after(self, table_id: str) -> tuple[FileRef, ...] | None:
        """See `RangeState.deltas_after`; reads nothing if the table is already at the id."""
        if table_id == self.id:
            return ()
        for position in range(len(self.held) - 1, -1, -1):
            if self.held[position].parent == table_id:
                return self.held[position:]
        deltas = self._base.deltas_after(table_id)
        return None if deltas is None else (*deltas, *self.held)


class PlannedRanges(Sequence[RangeState]):
    """The ranges of an operator, by index; small when pickled.

    They and their held deltas are built on `base`, the newest published manifest.
    Of an operator that begins with the epoch no manifest names the files. There is one for each
    range at most, which is pickled with it.
    """

    def __init__(
        self,
        ranges: Sequence[RangeState],
        uid: str,
        base: Manifest | None,
        storage: CheckpointStorage,
        max_parallelism: int,
    ) -> None:
        self._groups = max_parallelism
        self._ids = b"".join(bytes.fromhex(state.id) for state in ranges)
        times = [(s.next_event_timer_ms, s.next_processing_timer_ms) for s in ranges]
        self._times: list[_Times] | None = times if any(t != (None, None) for t in times) else None
        # Usually all ranges share one, which is pickled once.
        shared: dict[tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]] = {}
        self._since = [shared.setdefault(state.since, state.since) for state in ranges]
        self._held = {state.index: state.held for state in ranges if state.held}
        stored = None if base is None else base.operator(uid)
        self._begun: dict[int, tuple[FileRef, ...]] = {}
        if stored is None:
            self._begun = {state.index: state.deltas for state in ranges if state.deltas}
        self._beginning = _whole_range(ranges, max_parallelism) if self._begun else None
        self._origin = None
        if base is not None and stored is not None:
            self._origin = RangeOrigin(storage, base.path, uid, len(ranges), stored.parallelism)

    def __len__(self) -> int:
        return len(self._since)

    @overload
    def __getitem__(self, index: int) -> RangeState: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[RangeState]: ...
    def __getitem__(self, index: int | slice) -> RangeState | Sequence[RangeState]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        event_ms, processing_ms = (None, None) if self._times is None else self._times[index]
        return PlannedRange(
            index,
            *range_bounds(index, self._groups, len(self)),
            id=self._ids[16 * index : 16 * index + 16].hex(),
            deltas=self._begun.get(index, ()),
            next_event_timer_ms=event_ms,
            next_processing_timer_ms=processing_ms,
            since=self._since[index],
            held=self._held.get(index, ()),
            origin=self._origin,
            beginning=self._beginning,
        )

    def __iter__(self) -> Iterator[RangeState]:
        return (self[index] for index in range(len(self)))


def _whole_range(ranges: Sequence[RangeState], max_parallelism: int) -> RangeState:
    """What ranges begin with, as one range of all key groups."""
    files = tuple(ref for state in ranges for ref in state.deltas)
    return RangeState(0, 0, max_parallelism - 1, files[0].id, deltas=files, since=ranges[0].since)
