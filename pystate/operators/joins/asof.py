"""The as-of join: each left row gets the newest row of the right input that is not after it.

The right input is a slowly changing table: each of its rows is the version of a key from its time
on. Left rows wait, in buckets of time, until the watermark has passed them, since only then can no
earlier version come any more.

Thread safety: as `pystate.operators.runtime.task`.

Invariants
----------
1. A left row is emitted at most once, after the watermark has passed its time: it then meets all
   versions that are not late.
2. A bucket with waiting rows has a timer no later than right after its earliest row, so that rows
   are emitted as soon as the watermark allows it.
3. Of the versions of a key up to the watermark the newest stays, and all others leave; of those of
   the same time the last that came counts. With a tolerance the newest leaves, too, once it is
   older than that. While versions are ahead of the watermark, as many as these may wait to leave.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from pystate.epochs.watermarks import Holds, Lag
from pystate.errors import InvalidArgumentError
from pystate.operators.joins.inputs import JoinInput, Rows
from pystate.operators.joins.operator import ContinuousJoin, JoinSpec
from pystate.operators.joins.stored import Loaded, StoredRows, declared_rows, due_lists
from pystate.operators.runtime.grouping import group, take_rows
from pystate.operators.runtime.late_rows import LateInputs, SideName
from pystate.operators.runtime.output import OutputColumns
from pystate.operators.runtime.task import TaskContext
from pystate.state.declaration import State
from pystate.types.key_codes import Ints, key_codes, longs

#: Rows wait in buckets of 2 to this power milliseconds, about a minute. It is part of the state.
_SHIFT = 16
#: The namespace of versions. No row is so early.
_VERSIONS = -(1 << 62)
#: No event time and no timer is so late; a difference to any of them fits 64 bits.
_MOST_TIME = 1 << 61
_MOST_TOLERANCE_MS = 1 << 45


@dataclass(frozen=True)
class AsofJoinSpec(JoinSpec):
    """An as-of join; the rows of the right input are versions."""

    left: JoinInput
    right: JoinInput
    how: Literal["inner", "left"]
    tolerance_ms: int | None
    """How much older than the left row a version may be; None for any age."""
    output: OutputColumns

    def __post_init__(self) -> None:
        if self.tolerance_ms is not None and self.tolerance_ms > _MOST_TOLERANCE_MS:
            raise InvalidArgumentError("asof_join: tolerance is at most a thousand years")

    def make(self, late: LateInputs | None = None) -> AsofJoin:
        """See `JoinSpec.make`."""
        return AsofJoin(self, late)

    def holds(self) -> Holds:
        """How the result's watermark is behind that of the join.

        A left row is emitted by the watermark that passes it. A version is as old as the tolerance
        allows; without one there is no bound, and nothing could be waited for.
        """
        versions = None if not self.tolerance_ms else Lag(self.tolerance_ms)
        times = {self.time_column("left"): None, self.time_column("right"): versions}
        return Holds(times, versions)

    def states(self) -> dict[str, State[Any]]:
        """The states of the join."""
        return {
            **declared_rows(self.left, "waiting", marked=False),
            **declared_rows(self.right, "versions", marked=False),
        }


class AsofJoin(ContinuousJoin):
    """One task's run of an as-of join; see `ContinuousJoin`.

    Its table has namespaces of the type long, and timers.
    """

    _spec: AsofJoinSpec

    def open(self, task: TaskContext) -> None:
        """Register the states."""
        super().open(task)
        spec, backend = self._spec, task.backend
        self._waiting = StoredRows(spec.left, "waiting", backend, marked=False)
        self._versions = StoredRows(spec.right, "versions", backend, marked=False)

    def meet(self, side: SideName, rows: Rows) -> Iterator[pa.RecordBatch]:
        """Keep rows of an input, which are emitted later."""
        self._store(side, rows)
        return iter(())

    def _store(self, side: SideName, rows: Rows) -> None:
        codes = key_codes(rows.keys)
        if side == "left":
            put = self._waiting.put(rows, codes, rows.known >> _SHIFT)
            due = np.minimum.reduceat(rows.known[put.order], put.starts[:-1]) + 1
        else:
            put = self._versions.put(rows, codes, np.full(len(rows), _VERSIONS))
            # When the newest of them is reached, all older ones can leave.
            due = np.maximum.reduceat(rows.known[put.order], put.starts[:-1])
        self._backend.register_timers(put.keys, "event", longs(due))

    def advance(self, watermark: int) -> Iterator[pa.RecordBatch]:
        """Emit left rows below the watermark, and remove versions that no row needs any more."""
        watermark = min(watermark, _MOST_TIME)
        # Versions leave after all left rows were emitted: a timer of either may come first.
        outdated: list[tuple[list[pa.Array[Any]], Ints]] = []
        for columns, buckets, _ in due_lists(self._backend, watermark):
            versions = np.flatnonzero(buckets == _VERSIONS)
            if len(versions):
                outdated.append((take_rows(columns, versions), buckets[versions]))
            rows = np.flatnonzero(buckets != _VERSIONS)
            yield from self._emit(take_rows(columns, rows), buckets[rows], watermark)
        for columns, buckets in outdated:
            self._prune(columns, buckets, watermark)

    def _emit(
        self, columns: list[pa.Array[Any]], buckets: Ints, watermark: int
    ) -> Iterator[pa.RecordBatch]:
        """Emit the waiting rows of some buckets that are below the watermark."""
        for begin, end, loaded in self._waiting.load(columns, buckets):
            lists = loaded.lists()
            due = loaded.times < watermark
            at, later = np.flatnonzero(due), np.flatnonzero(~due)
            self._waiting.replace(loaded, later)
            if len(later):
                first = np.full(end - begin, np.iinfo(np.int64).max)
                np.minimum.at(first, lists[later], loaded.times[later])
                some = np.flatnonzero(np.diff(np.searchsorted(later, loaded.offsets)))
                part = [column.slice(begin, end - begin) for column in columns]
                keys = self._backend.keys(take_rows(part, some), longs(buckets[begin + some]))
                self._backend.register_timers(keys, "event", longs(first[some] + 1))
            yield from self._matched(columns, lists[at] + begin, loaded, at)

    def _matched(
        self, columns: list[pa.Array[Any]], owners: Ints, loaded: Loaded, at: Ints
    ) -> Iterator[pa.RecordBatch]:
        """Emit rows with their versions; `owners` are the rows of `columns` with their keys."""
        if not len(at):
            return
        groups = group(key_codes(take_rows(columns, owners)), np.zeros(len(at), np.int64))
        order, starts = groups.order()
        keys = take_rows(columns, owners[groups.first])
        spaces = np.full(len(groups.first), _VERSIONS)
        for begin, end, versions in self._versions.load(keys, spaces):
            mine = order[int(starts[begin]) : int(starts[end])]
            lists, times = groups.of_row[mine] - begin, loaded.times[at[mine]]
            newest = _newest(versions, lists, times, self._spec.tolerance_ms)
            if self._spec.how == "inner":
                some = np.flatnonzero(newest >= 0)
                mine, lists, newest = mine[some], lists[some], newest[some]
            yield from self._result.pairs(
                "left", keys, loaded.values, at[mine], versions.values, newest, lists + begin
            )

    def _prune(self, columns: list[pa.Array[Any]], buckets: Ints, watermark: int) -> None:
        tolerance = self._spec.tolerance_ms
        for begin, end, loaded in self._versions.load(columns, buckets):
            count = end - begin
            lists = loaded.lists()
            # A left row that comes from now on is at the watermark or after it.
            newest = _newest(loaded, np.arange(count), np.full(count, watermark), tolerance)
            kept = loaded.times > watermark
            kept[newest[newest >= 0]] = True
            stay = np.flatnonzero(kept)
            # A list is written anew once half of it can leave: each version then moves about once
            # in all, however many are ahead. Of a list with none ahead all but one can leave.
            counts = np.bincount(lists, minlength=count)
            half = np.flatnonzero(2 * np.bincount(lists[stay], minlength=count) <= counts)
            some = half[counts[half] > 0]
            if len(some):
                self._versions.replace(loaded, stay, some)
            self._register_next(loaded, lists, stay, newest, watermark)

    def _register_next(
        self, loaded: Loaded, lists: Ints, stay: Ints, newest: Ints, watermark: int
    ) -> None:
        """Register when versions leave next: at the next one, or when the newest is too old."""
        due = np.full(len(newest), np.iinfo(np.int64).max)
        ahead = stay[loaded.times[stay] > watermark]
        np.minimum.at(due, lists[ahead], loaded.times[ahead])
        if self._spec.tolerance_ms is not None:
            current = newest[newest >= 0]
            ends = loaded.times[current] + self._spec.tolerance_ms + 1
            np.minimum.at(due, lists[current], ends)
        some = np.flatnonzero(due != np.iinfo(np.int64).max)
        if len(some):
            columns = take_rows(loaded.keys.key_arrays(), some)
            keys = self._backend.keys(columns, longs(np.full(len(some), _VERSIONS)))
            self._backend.register_timers(keys, "event", longs(due[some]))


def _newest(versions: Loaded, lists: Ints, times: Ints, tolerance: int | None) -> Ints:
    """The place of the newest version up to a time, in a list, for each of some; or -1."""
    if not len(versions.times):
        return np.full(len(times), -1)
    owner = versions.lists()
    # Sorted by list and time; where both are equal, in the order in which they came.
    order = np.lexsort((versions.times, owner))
    owner, sorted_times = owner[order], versions.times[order]
    # Versions and asked times are put in order together, each time after equal versions.
    both = np.lexsort(
        (
            np.concatenate([np.zeros(len(order), np.int8), np.ones(len(times), np.int8)]),
            np.concatenate([sorted_times, times]),
            np.concatenate([owner, lists]),
        )
    )
    is_version = both < len(order)
    before = np.cumsum(is_version) - 1
    asked = ~is_version
    places = np.empty(len(times), np.int64)
    places[both[asked] - len(order)] = before[asked]
    known = places >= 0
    known[known] = owner[places[known]] == lists[known]
    if tolerance is not None:
        known[known] = times[known] - sorted_times[places[known]] <= tolerance
    return np.where(known, order[places], -1)
