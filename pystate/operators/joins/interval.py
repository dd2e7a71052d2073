"""The interval join: rows of two inputs with equal keys whose times are close to each other.

A row of one input meets the rows of the other one that are in the table, and is then stored for
those to come. Stored rows lie in buckets of time: a row of the table is a key and a bucket. So a
row looks at two buckets at most, and a bucket leaves as a whole.

Thread safety: as `pystate.operators.runtime.task`.

Invariants
----------
1. Each pair is emitted exactly once: by whichever of its rows comes second.
2. A row is stored as long as a row of the other input that is not late could still match it, and
   leaves with its bucket, at a timer that every bucket with rows has.
3. With an outer join, a row without a partner is emitted exactly once: at a timer that comes within
   an eighth of a bucket after the last row that it could match, and it is then marked as if it were
   matched; at once if it can have no partner: without a time, with a null in its key, or if all
   rows that it could match would be late.
4. Rows of a late input are dropped before they meet anything, so that what is emitted does not
   depend on the moment at which a bucket leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pystate.epochs.watermarks import Holds, Lag
from pystate.errors import InvalidArgumentError
from pystate.operators.joins.inputs import (
    JoinInput,
    Rows,
    other_side,
)
from pystate.operators.joins.operator import ContinuousJoin, How, JoinSpec
from pystate.operators.joins.stored import Loaded, StoredRows, declared_rows, due_lists
from pystate.operators.runtime.grouping import expand, group, pieces, take_rows
from pystate.operators.runtime.late_rows import SIDES, LateInputs, SideName
from pystate.operators.runtime.output import OutputColumns
from pystate.operators.runtime.task import TaskContext
from pystate.state.declaration import State
from pystate.state.key_batch import KeyBatch
from pystate.types.key_codes import Ints, key_codes, longs

#: Pairs of rows with equal keys whose times are compared at once.
_CANDIDATES = 1 << 18
#: Buckets have 2 to this power milliseconds at least, and at most.
_LEAST_SHIFT, _MOST_SHIFT = 10, 45
#: Rows without a partner are looked for this often, as a power of two, while their bucket passes:
#: each time all rows of the bucket are read.
_LOOKS = 3
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class IntervalJoinSpec(JoinSpec):
    """An interval join.

    Rows match if right's time minus left's is between the two bounds, both included.
    """

    left: JoinInput
    right: JoinInput
    lower_ms: int
    upper_ms: int
    how: How
    output: OutputColumns

    def __post_init__(self) -> None:
        if self.lower_ms > self.upper_ms:
            raise InvalidArgumentError(
                f"interval_join: the lower bound, {self.lower_ms} ms, is above the upper one, "
                f"{self.upper_ms} ms"
            )
        if max(self.upper_ms - self.lower_ms, abs(self.lower_ms), abs(self.upper_ms)) >= (
            1 << _MOST_SHIFT
        ):
            raise InvalidArgumentError(
                "interval_join: bounds are at most a thousand years; join by key alone with "
                "connect(...).process(...)"
            )

    def reach(self, side: SideName) -> tuple[int, int]:
        """From where to where the times of matching rows are, after the time of a row."""
        if side == "left":
            return self.lower_ms, self.upper_ms
        return -self.upper_ms, -self.lower_ms

    @property
    def shift(self) -> int:
        """A bucket has 2 to this power milliseconds, at least the interval's width."""
        return max((self.upper_ms - self.lower_ms).bit_length(), _LEAST_SHIFT)

    def make(self, late: LateInputs | None = None) -> IntervalJoin:
        """See `JoinSpec.make`."""
        return IntervalJoin(self, late)

    def holds(self) -> Holds:
        """How the result's watermark is behind that of the join.

        A stored row is emitted when its partner comes, which is not below the watermark. A row
        without a partner waits for a look at its bucket, too.
        """
        late = {
            side: self.reach(side)[1] + (self._look_ms if self.outer(side) else 0) for side in SIDES
        }
        both = {side: Lag(ms) if ms > 0 else None for side, ms in late.items()}
        furthest = max(late.values())
        return Holds(
            {self.time_column(side): both[side] for side in SIDES},
            Lag(furthest) if furthest > 0 else None,
        )

    @property
    def _look_ms(self) -> int:
        """How long a row without a partner waits at most, after the last that it could match."""
        return 1 << (self.shift - _LOOKS)

    def state(self, side: SideName) -> str:
        """The name of an input's state. It has the size of buckets in it.

        What was stored in buckets of another size is never read by mistake: a state of another name
        is one that no operator claims.
        """
        return f"{side}_{1 << self.shift}_ms"

    def states(self) -> dict[str, State[Any]]:
        """The states of the join."""
        states: dict[str, State[Any]] = {}
        for side in SIDES:
            states |= declared_rows(self.input(side), self.state(side), marked=self.outer(side))
        return states


class IntervalJoin(ContinuousJoin):
    """One task's run of an interval join; see `ContinuousJoin`.

    Its table has namespaces of the type long, and timers.
    """

    _spec: IntervalJoinSpec

    def open(self, task: TaskContext) -> None:
        """Register the states."""
        super().open(task)
        spec, backend = self._spec, task.backend
        self._stored: dict[SideName, StoredRows] = {
            side: StoredRows(spec.input(side), spec.state(side), backend, marked=spec.outer(side))
            for side in SIDES
        }

    # -- rows

    def meet(self, side: SideName, rows: Rows) -> Iterator[pa.RecordBatch]:
        """Handle rows of an input; yield the pairs that they complete."""
        codes = key_codes(rows.keys)
        matched = np.zeros(len(rows), bool)
        yield from self._probe(side, rows, codes, matched)
        bound, (_, upper) = self._task.late_bound, self._spec.reach(side)
        if bound is not None:
            over = rows.known + upper < bound
            if over.any():
                if self._spec.outer(side):
                    alone = np.flatnonzero(over & ~matched)
                    yield from self._result.alone(side, rows.keys, rows.values, alone)
                left = np.flatnonzero(~over)
                rows, codes, matched = rows.take(left), codes[left], matched[left]
        if len(rows):
            self._store(side, rows, codes, matched)

    def _probe(
        self, side: SideName, rows: Rows, codes: Ints, matched: np.ndarray[Any, Any]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the pairs of rows with stored ones, and note in `matched` which rows have any."""
        lower, upper = self._spec.reach(side)
        stored = self._stored[other_side(side)]
        first, last = ((rows.known + d) >> self._spec.shift for d in (lower, upper))
        # A bucket is no shorter than the interval, so that there are two at most.
        more = np.flatnonzero(last > first)
        who = np.concatenate([np.arange(len(rows)), more])
        buckets = np.concatenate([first, last[more]])
        groups = group(codes[who], buckets)
        order, starts = groups.order()
        keys = take_rows(rows.keys, who[groups.first])
        who, of_row = who[order], groups.of_row[order]
        for begin, end, loaded in stored.load(keys, buckets[groups.first]):
            if not len(loaded.times):
                continue
            part = slice(int(starts[begin]), int(starts[end]))
            lists = of_row[part] - begin
            counts = np.diff(loaded.offsets)[lists]
            some = np.flatnonzero(counts)
            lists, counts, mine = lists[some], counts[some], who[part][some]
            new = [] if loaded.matched is None else [np.empty(0, np.int64)]
            for a, b in pieces(counts, _CANDIDATES):
                ranges, at = expand(loaded.offsets[lists[a:b]], counts[a:b])
                at_rows = mine[a:b][ranges]
                ahead = loaded.times[at] - rows.known[at_rows]
                near = np.flatnonzero((ahead >= lower) & (ahead <= upper))
                at, at_rows = at[near], at_rows[near]
                if not len(at):
                    continue
                matched[at_rows] = True
                if loaded.matched is not None:
                    new.append(_newly(loaded, at))
                yield from self._result.pairs(
                    side, rows.keys, rows.values, at_rows, loaded.values, at
                )
            if new:
                stored.mark(loaded, np.sort(np.concatenate(new)))

    def _store(
        self, side: SideName, rows: Rows, codes: Ints, matched: np.ndarray[Any, Any]
    ) -> None:
        put = self._stored[side].put(rows, codes, rows.known >> self._spec.shift, matched)
        leaves = self._leaves(side, put.buckets)
        self._backend.register_timers(put.keys, "event", longs(leaves))
        if self._spec.outer(side):
            due = np.where(matched, _NEVER, self._alone_from(side, rows.known))[put.order]
            self._register_look(put.keys, np.minimum.reduceat(due, put.starts[:-1]), leaves)

    def _alone_from(self, side: SideName, times: Ints) -> Ints:
        """The watermark at which rows without a partner are emitted."""
        _, upper = self._spec.reach(side)
        step = self._spec.shift - _LOOKS
        watermarks: Ints = ((times + upper) >> step) + 1 << step
        return watermarks

    def _register_look(self, keys: KeyBatch, due: Ints, leaves: Ints) -> None:
        """Have rows without a partner emitted before their buckets leave."""
        if (due < leaves).any():
            self._backend.register_timers(keys, "event", pa.array(due, mask=due >= leaves))

    def _leaves(self, side: SideName, buckets: Ints) -> Ints:
        """The watermark at which no row that is not late can match one of a bucket."""
        _, upper = self._spec.reach(side)
        ends: Ints = ((buckets + 1) << self._spec.shift) + upper
        return ends

    # -- time

    def advance(self, watermark: int) -> Iterator[pa.RecordBatch]:
        """Remove what can match nothing any more; yield rows without a partner."""
        for columns, buckets, times in due_lists(self._backend, watermark):
            known = [self._leaves(side, buckets) for side in SIDES]
            old = (times != known[0]) & (times != known[1])
            for side, leaves in zip(SIDES, known, strict=True):
                yield from self._remove(side, columns, buckets, leaves <= watermark)
                if self._spec.outer(side):
                    stays = np.flatnonzero(leaves > watermark)
                    part = take_rows(columns, stays), buckets[stays], leaves[stays]
                    yield from self._emit_alone(side, *part, watermark)
                later = np.flatnonzero(old & (leaves > watermark))
                if len(later):
                    # The timer is of a run with another interval; this one's is still to come.
                    keys = self._backend.keys(take_rows(columns, later), longs(buckets[later]))
                    self._backend.register_timers(keys, "event", longs(leaves[later]))

    def _remove(
        self,
        side: SideName,
        columns: list[pa.Array[Any]],
        buckets: Ints,
        gone: np.ndarray[Any, Any],
    ) -> Iterator[pa.RecordBatch]:
        if not gone.any():
            return
        if not gone.all():
            columns, buckets = take_rows(columns, np.flatnonzero(gone)), buckets[gone]
        stored = self._stored[side]
        if not self._spec.outer(side):
            stored.clear(self._backend.keys(columns, longs(buckets)))
            return
        for begin, _, loaded in stored.load(columns, buckets):
            assert loaded.matched is not None
            alone = np.flatnonzero(~loaded.matched)
            stored.clear(loaded.keys)
            owners = loaded.lists()[alone] + begin
            yield from self._result.alone(side, columns, loaded.values, alone, owners)

    def _emit_alone(
        self,
        side: SideName,
        columns: list[pa.Array[Any]],
        buckets: Ints,
        leaves: Ints,
        watermark: int,
    ) -> Iterator[pa.RecordBatch]:
        """Emit rows that can have no partner any more, of buckets that stay."""
        stored = self._stored[side]
        for begin, end, loaded in stored.load(columns, buckets):
            assert loaded.matched is not None
            due = np.where(loaded.matched, _NEVER, self._alone_from(side, loaded.times))
            alone, later = np.flatnonzero(due <= watermark), np.flatnonzero(due != _NEVER)
            lists = loaded.lists()
            stored.mark(loaded, alone)
            later = later[due[later] > watermark]
            first = np.full(end - begin, _NEVER)
            np.minimum.at(first, lists[later], due[later])
            self._register_look(loaded.keys, first, leaves[begin:end])
            owners = lists[alone] + begin
            yield from self._result.alone(side, columns, loaded.values, alone, owners)


def _newly(loaded: Loaded, places: Ints) -> Ints:
    """Those of some places that were not matched before, once; from now on they are."""
    assert loaded.matched is not None
    new = np.unique(places[~loaded.matched[places]])
    loaded.matched[new] = True
    return new
