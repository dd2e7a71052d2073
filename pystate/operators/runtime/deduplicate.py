"""Deduplication: of rows with an equal key one is passed on. No Python runs per row.

Thread safety: a `DeduplicateSpec` is immutable; a `Deduplicator` belongs to one task and thread.

Invariants
----------
1. With ``keep="first"`` and a duration in event time: no two rows that are passed on have an equal
   key and event times less than the duration apart, and a row is dropped only if such a row was
   passed on. The first holds for rows that are not late, the second for all, in whatever order they
   come. Rows that are behind the watermark by the duration or more are compared with nothing.
2. A row that was passed on is remembered until the watermark has reached its event time plus the
   duration; without event time, until the processing time has reached its epoch's plus the
   duration. This is decided by the remembered times alone. A state's time to live only frees its
   memory, and never earlier.
3. What comes out depends only on the rows and their order, the state, and the epoch's times.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pystate.base.arguments import choice
from pystate.checkpoint.refs import INPUT
from pystate.operators.runtime.grouping import keys_at
from pystate.operators.runtime.late_rows import PROCESS_LATE
from pystate.operators.runtime.row_operator import (
    Flags,
    HeldRows,
    Longs,
    RowInput,
    RowOperation,
    RowOperator,
    RowSpec,
    Times,
    columns_of,
    first_rows,
    whole,
)
from pystate.operators.runtime.task import TaskContext
from pystate.state.declaration import State
from pystate.state.key_batch import KeyBatch
from pystate.state.list import ListState
from pystate.state.ttl import StateTtl
from pystate.state.value import ValueState
from pystate.types.durations import Duration, milliseconds

#: The newest time at which a row was passed on, and in event time the other ones that still count.
KEPT, EARLIER = "kept", "earlier"

#: So many rows of each key are found for all keys at once; what is left belongs to few keys.
_ROUNDS = 16


@dataclass(frozen=True)
class Deduplicate(RowOperation):
    """``keyed.deduplicate(within, keep=...)``, for a harness."""

    within: Duration | None = None
    keep: Literal["first", "last"] = "first"

    method = "deduplicate"
    instead = "keep='last' passes on the newest one of each key"

    def spec(self, rows: RowInput) -> DeduplicateSpec:
        """See `RowOperation.spec`."""
        what, within = f"{rows.owner}: {self.method}", None
        if self.within is not None:
            within = milliseconds(self.within, f"{what}: within", least=1)
        choice(self.keep, f"{what}: keep", ("first", "last"))
        return DeduplicateSpec(
            rows.key, within, self.keep, rows.event_time, rows.ordered, rows.late
        )

    @property
    def updates_problem(self) -> str | None:
        """The first row of a key stays."""
        if self.keep == "last" and self.within is None:
            return None
        return "what was passed on first is replaced later"


@dataclass(frozen=True)
class DeduplicateSpec(RowSpec):
    """What counts as a duplicate; pickled for the workers."""

    key: tuple[str, ...]
    within_ms: int | None = None
    """How far apart rows of a key must be to be no duplicates; None if they always are."""
    keep: Literal["first", "last"] = "first"
    """Which row of a key is passed on. ``"last"``: that of each epoch, at its end."""
    event_time: str | None = None
    ordered: bool = False
    """Whether a key's rows come in the order that counts. Otherwise that of their event times
    counts, and among equal ones that in which they come; with ``keep="first"`` the batches of an
    epoch must then come in that order.
    """
    late: str = PROCESS_LATE

    def states(self) -> Mapping[str, State[Any]]:
        """The operator's states."""
        ttl = None
        if self.within_ms is not None:
            domain: Any = "processing" if self.event_time is None else "event"
            ttl = StateTtl(self.within_ms, time=domain)
        states: dict[str, State[Any]] = {KEPT: ValueState("long", ttl=ttl)}
        if self.spaced:
            states[EARLIER] = ListState("long", ttl=ttl)
        return states

    def make(self) -> Deduplicator:
        """The operator of one task."""
        return Deduplicator(self)

    @property
    def replaced_by(self) -> tuple[str, ...] | None:
        """The last row of a key is another one in a later epoch."""
        return () if self.keep == "last" else None

    @property
    def sorted_by(self) -> str | None:
        """The first rows are those of the smallest event times."""
        return self.event_time if self.keep == "first" else None

    @property
    def spaced(self) -> bool:
        """Whether the distance of event times decides."""
        return self.within_ms is not None and self.event_time is not None and self.keep == "first"


class Deduplicator(RowOperator):
    """Passes on one row of each key."""

    _spec: DeduplicateSpec

    def __init__(self, spec: DeduplicateSpec) -> None:
        super().__init__(spec)
        self._held = HeldRows(self._last_of_each)

    def open(self, task: TaskContext) -> None:
        """Register the states and set the clock of their times to live."""
        super().open(task)
        spec, states = self._spec, self._spec.states()
        # Times up to here are forgotten.
        now = task.processing_time if spec.event_time is None else task.late_bound
        self._horizon: int | None = None
        if spec.within_ms is not None and now is not None:
            self._horizon = max(now - spec.within_ms, -(1 << 63))
        self._kept = self._backend.register(KEPT, states[KEPT])
        if spec.spaced:
            self._earlier = self._backend.register(EARLIER, states[EARLIER])
        self._set_clock(None)

    def process(self, rows: pa.RecordBatch, input: str = INPUT) -> Iterator[pa.RecordBatch]:
        """Handle some rows; yield those that are passed on at once."""
        rows = self.on_time(rows)
        if not rows.num_rows:
            return
        if self._spec.keep == "last":
            self._held.add(self._last_of_each(pa.Table.from_batches([rows])))
            return
        keys = self._keys(rows)
        times = self.times(rows)
        new = self._spaced(keys, times) if self._spec.spaced else self._unseen(keys, times)
        if new.all():
            yield rows
        elif new.any():
            yield rows.filter(pa.array(new))

    def finish(self) -> Iterator[pa.RecordBatch]:
        """End the epoch's rows; with ``keep="last"`` yield each key's last one."""
        held = self._held.take(reduced=True)
        begin, count = 0, 0 if held is None else len(held)
        while held is not None and begin < count:
            some = self._backend.below.most_keys(count - begin)
            yield from self._passed(held if some == count else held.slice(begin, some))
            begin += some

    def _passed(self, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        """Those of the last rows of some keys that are passed on."""
        if self._spec.event_time is not None:
            keys = self._keys(rows)
            at, known = self.times(rows)
            stored, seen = self._stored(keys)
            newest = ~seen | (known & (at >= stored))
            if self._horizon is not None:
                known = known & (at > self._horizon)
            self._remember(keys, newest & known, at)
            rows = rows.filter(pa.array(newest))
        yield from rows.to_batches()

    # -- once in all, or once in a while of processing time

    def _unseen(self, keys: KeyBatch, times: Times) -> Flags:
        _, seen = self._stored(keys)
        first = keys.first_rows()
        new: Flags
        order = self._order(times, unknown_last=True)
        if order is None:
            new = first == np.arange(len(first), dtype=np.int32)
        else:
            heads = np.empty(len(first), np.int64)
            heads[first[order[::-1]]] = order[::-1]
            new = heads[first] == np.arange(len(first))
        new = new & ~seen
        self._remember(keys, new, np.where(times.known, times.at, self._task.processing_time))
        return new

    # -- with a distance in event time

    def _spaced(self, keys: KeyBatch, times: Times) -> Flags:
        at, open_ = times
        within = self._spec.within_ms
        assert within is not None
        if self._horizon is not None:
            open_ = open_ & (at > self._horizon)
        stored, seen = self._stored(keys)
        distance = np.abs(at - stored)
        repeated = seen & (distance < within)
        # Other rows that were passed on lie further back than that.
        behind = open_ & seen & ~repeated & (at < stored)
        if behind.any():
            repeated[self._near_earlier(keys, np.flatnonzero(behind), at)] = True
        order = self._order(times, unknown_last=True)
        left = open_ & ~repeated
        todo = np.flatnonzero(left) if order is None else order[left[order]]
        first = keys.first_rows()
        kept = _far_apart(todo, first, at, within)
        remembered = np.zeros(len(at), np.bool_)
        remembered[kept] = True
        if len(kept):
            # A late row does not shorten the time for which its key's newest one is remembered.
            self._remember(keys, remembered, np.where(seen, np.maximum(at, stored), at))
            self._remember_earlier(
                keys, first[kept].astype(np.int64), at[kept], seen[kept], stored[kept]
            )
        # Nothing is known to be near to a row without a time, or to one that is so late.
        new: Flags = remembered | ~open_
        return new

    def _near_earlier(self, keys: KeyBatch, rows: Longs, at: Longs) -> Longs:
        """Those of the rows that are near to one that came before their key's newest."""
        lists = self._earlier.lists(keys_at(self._backend, keys, rows))
        sizes = lists.value_lengths().to_numpy()
        earlier = lists.flatten().to_numpy()
        owners = np.repeat(rows, sizes)
        near: Flags = np.abs(at[owners] - earlier) < self._spec.within_ms
        if self._horizon is not None:
            near &= earlier > self._horizon
        rows_near: Longs = owners[near]
        return rows_near

    def _remember_earlier(
        self,
        keys: KeyBatch,
        groups: Longs,
        at: Longs,
        seen: Flags,
        stored: Longs,
    ) -> None:
        """Keep all times of a key that are not its newest one, which `_remember` keeps."""
        _, places = np.unique(groups[seen], return_index=True)
        groups = np.concatenate([groups, groups[seen][places]])
        at = np.concatenate([at, stored[seen][places]])
        order = np.lexsort((at, groups))
        groups, at = groups[order], at[order]
        older = np.flatnonzero(groups[:-1] == groups[1:])
        if len(older):
            self._earlier.append(keys_at(self._backend, keys, groups[older]), pa.array(at[older]))

    # -- the last of an epoch

    def _last_of_each(self, rows: pa.Table) -> pa.Table:
        first = first_rows(
            self._backend, [whole(column) for column in columns_of(rows, self._spec.key)]
        )
        order = self._order(self.times(rows), unknown_last=False)
        if order is None:
            order = np.arange(len(first))
        last = np.empty(len(first), np.int64)
        last[first[order]] = order
        return rows.take(pa.array(np.sort(last[first == np.arange(len(first))])))

    # -- state and order

    def _keys(self, rows: Any) -> KeyBatch:
        return self._backend.keys(columns_of(rows, self._spec.key))

    def _stored(self, keys: KeyBatch) -> tuple[Longs, Flags]:
        """The time of each key's newest row that was passed on, and whether it still counts."""
        values = self._kept.values(keys)
        seen = values.is_valid().to_numpy(zero_copy_only=False)
        stored = values.fill_null(0).to_numpy() if values.null_count else values.to_numpy()
        return stored, seen if self._horizon is None else seen & (stored > self._horizon)

    def _remember(self, keys: KeyBatch, rows: Flags, at: Longs) -> None:
        if not rows.any():
            return
        if self._spec.event_time is not None:
            self._set_clock(int(at[rows].max()))
        self._kept.max(keys, pa.array(at, mask=~rows))

    def _set_clock(self, event_time: int | None) -> None:
        self._backend.set_clock(
            processing_time=self._task.processing_time,
            watermark=self._task.late_bound,
            event_time=event_time,
        )

    def _order(self, times: Times, *, unknown_last: bool) -> Longs | None:
        """The rows in the order that counts; None if it is that in which they are."""
        if self._spec.ordered or self._spec.event_time is None:
            return None
        at = times.at
        if not times.known.all():
            limits = np.iinfo(np.int64)
            at = np.where(times.known, at, limits.max if unknown_last else limits.min)
        if (at[:-1] <= at[1:]).all():
            return None
        return np.argsort(at, kind="stable")


def _far_apart(
    rows: Longs, groups: npt.NDArray[np.int32], at: Longs, within: int
) -> npt.NDArray[np.int64]:
    """Of each group the rows that are no less than `within` from all that were chosen before."""
    chosen = []
    heads = np.empty(len(groups), np.int64)
    for _ in range(_ROUNDS):
        if not len(rows):
            break
        own = groups[rows]
        heads[own[::-1]] = rows[::-1]
        first = heads[own]
        chosen.append(first[first == rows])
        rows = rows[np.abs(at[rows] - at[first]) >= within]
    if len(rows):
        chosen.append(_far_apart_in_turn(rows, groups, at, within))
    return np.concatenate(chosen) if chosen else rows


def _far_apart_in_turn(
    rows: Longs, groups: npt.NDArray[np.int32], at: Longs, within: int
) -> npt.NDArray[np.int64]:
    """The same, row by row: for keys of which one batch passes on very many rows."""
    times: dict[int, list[int]] = {}
    chosen = []
    for row, group, time in zip(
        rows.tolist(), groups[rows].tolist(), at[rows].tolist(), strict=True
    ):
        near = times.setdefault(group, [])
        # Chosen times are at least `within` apart: only the next ones on both sides can be near.
        place = bisect_left(near, time)
        if place < len(near) and near[place] - time < within:
            continue
        if place and time - near[place - 1] < within:
            continue
        insort(near, time)
        chosen.append(row)
    return np.array(chosen, np.int64)
