"""An operator's ranges in a task's closure: the id that each must be at, without files.

Most tables are at the id of their range already and need no file. A task whose table is not reads
the base's manifest, which names the files of its range. So the size of a closure depends on the
number of ranges, and not on the length of their chains.

Thread safety: immutable; `RangeSource.load` may be called from any thread.

Invariants
----------
1. The manifest is that of the epoch's base, which is kept as long as the epoch can be published.
2. A task reads what the driver planned, which the range's id proves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import overload

from pystate._core.core import range_bounds
from pystate.checkpoint.manifest import EMPTY_ID, FileRef, Manifest, RangeState, read_manifest
from pystate.checkpoint.storage import CheckpointStorage
from pystate.coordinator.rescale import rescaled
from pystate.errors import CheckpointError, LineageError

__all__ = ["PlannedRange", "PlannedRanges", "RangeSource"]

_Times = tuple["int | None", "int | None"]


@dataclass(frozen=True)
class RangeSource:
    """The manifest that names the files of an operator's ranges."""

    storage: CheckpointStorage
    manifest: str
    """The file of the base's manifest."""
    uid: str
    parallelism: int
    """The parallelism of the epoch; the base may have another one."""

    def load(self, index: int) -> RangeState:
        """Read a range from the manifest.

        Raises
        ------
        CorruptFileError, NewerFormatError
            The manifest cannot be understood.
        CheckpointError
            The manifest was removed: the epoch of this task is over.
        """
        try:
            return _ranges(self)[index]
        except FileNotFoundError as error:
            raise CheckpointError(
                f"operator {self.uid!r}, range {index}: {self.manifest} is not there any more in "
                f"{self.storage.uri}: the epoch that this task belongs to is over"
            ) from error


@lru_cache(maxsize=4)
def _ranges(source: RangeSource) -> tuple[RangeState, ...]:
    manifest = read_manifest(source.storage, source.manifest)
    operator = manifest.operator(source.uid)
    if operator is None:
        raise LineageError(f"{source.manifest} has no operator {source.uid!r}")
    return rescaled(operator, source.parallelism, manifest.max_parallelism)


@dataclass(frozen=True)
class PlannedRange(RangeState):
    """A range that reads the names of its files only when they are needed."""

    source: RangeSource | None = None

    @cached_property
    def _loaded(self) -> RangeState:
        if self.source is None:
            return self
        found = self.source.load(self.index)
        planned = (self.id, self.first_key_group, self.last_key_group)
        if (found.id, found.first_key_group, found.last_key_group) != planned:
            raise LineageError(
                f"operator {self.source.uid!r}, range {self.index}: {self.source.manifest} has it "
                f"at {found.id}, and not at {self.id}, where its task was told to begin"
            )
        return found

    @property
    def files(self) -> tuple[FileRef, ...]:
        """All files to restore from, oldest first."""
        return () if self.id == EMPTY_ID or self._loaded is self else self._loaded.files

    def deltas_after(self, table_id: str) -> tuple[FileRef, ...] | None:
        """See `RangeState.deltas_after`; reads nothing if the table is already at the id."""
        if table_id == self.id:
            return ()
        return None if self._loaded is self else self._loaded.deltas_after(table_id)


class PlannedRanges(Sequence[RangeState]):
    """The ranges of an operator, by index; small when pickled.

    Parameters
    ----------
    ranges : sequence of RangeState
        The ranges of the epoch.
    uid : str
        The operator.
    base : Manifest or None
        The manifest that the epoch is built on.
    storage : CheckpointStorage
        The checkpoint, as tasks can reach it.
    max_parallelism : int
        Number of key groups.
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
        stored = base is not None and base.operator(uid) is not None
        self._source = None
        if base is not None and stored:
            self._source = RangeSource(storage, base.path, uid, len(ranges))

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
            next_event_timer_ms=event_ms,
            next_processing_timer_ms=processing_ms,
            since=self._since[index],
            source=self._source,
        )

    def __iter__(self) -> Iterator[RangeState]:
        return (self[index] for index in range(len(self)))
