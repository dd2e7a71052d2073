"""Windows that slide, kept summed up: those of many keys and times put together at once.

From what is kept of each key after its last window, and the slices that enter and leave after it,
all windows up to a time are running sums. So a key's row is read and written once, and each slice
once when it enters and once when it leaves.

Thread safety: as the backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pystate.operators.runtime.grouping import keys_at, take_rows
from pystate.operators.windows.columns import Columns, Some
from pystate.operators.windows.grid import Grid, Mask, Times
from pystate.state.key_batch import ADD, MAX, KeyBatch, Step
from pystate.state.value import ValueHandle
from pystate.tables.backend import KeyedStateBackend

#: Slices that are looked up at once.
SLICES_AT_ONCE = 262_144
#: No sum of numbers below it overflows.
_SAFE = 1 << 62

_Sums = dict[str, Times]


@dataclass
class Ahead:
    """Windows of some keys up to a time, in the order of their ends."""

    rows: Times
    """Of each window that is not empty its key, by place."""
    ends: Times
    kept: dict[str, pa.Array[Any]]
    """What their columns are to the core, by name."""
    keys: KeyBatch
    stored: _Sums
    after: _Sums
    leaving: KeyBatch
    last: int


class RunningSums:
    """The running sums of one operator whose windows slide, in the default namespace of their keys.

    The columns are aggregates that all subtract. `next_` has the end of the last window that fired,
    see `slices`, and `filled`, by column, how many slices have a value.
    """

    def __init__(
        self,
        backend: KeyedStateBackend,
        columns: Columns,
        grid: Grid,
        next_: ValueHandle,
        filled: Mapping[int, ValueHandle],
    ) -> None:
        self._backend = backend
        self._columns = columns
        self._grid = grid
        self._next = next_
        self._filled = filled
        #: Slices that enter, or leave, from one window to the next.
        self._moving = grid.slide // grid.slice
        #: What no sum of the numbers that were read lies beyond.
        self._reach = 0

    def ahead(
        self, columns: Sequence[pa.Array[Any]], firsts: Times, ends: Times, fresh: Mask
    ) -> Ahead | None:
        """Put windows together, and change nothing; None where sums might overflow.

        Keys are distinct. `firsts` has the end of each key's first window; `ends` those of all
        windows up to the last, the earliest of `firsts` being the first of them. `fresh` are keys
        that have no slice before those that enter their first window, if nothing is kept of them.
        """
        grid, n = self._grid, len(firsts)
        self._reach = 0
        keys = self._backend.keys(columns)
        stored, sums = self._kept(columns, keys, firsts, fresh)
        rows, when = np.tile(np.arange(n), len(ends)), np.repeat(ends, n)
        later = None
        if int(firsts.max()) > int(ends[0]):
            later = when >= firsts[rows]
            rows, when = rows[later], when[later]
        looked_up = take_rows(columns, rows)
        _, entering = self._slices(looked_up, when - grid.slide, self._moving, len(ends))
        leaving, left = self._slices(looked_up, grid.start_of(when), self._moving, len(ends))
        if self._reach >= _SAFE:
            return None
        windows, after = {}, {}
        for name, base in sums.items():
            changes = _spread(entering[name], later, n)
            lost = _spread(left[name], later, n)
            changes[0] += base
            changes[1:] -= lost[:-1]
            each = np.cumsum(changes, axis=0, out=changes)
            after[name] = each[-1] - lost[-1]
            windows[name] = each.ravel() if later is None else each.ravel()[later]
        there = np.flatnonzero(windows[self._columns.rows.name] > 0)
        if len(there) < len(rows):
            rows, when = rows[there], when[there]
            windows = {name: values[there] for name, values in windows.items()}
        arrays: dict[str, pa.Array[Any]] = {
            name: pa.array(values) for name, values in windows.items()
        }
        return Ahead(rows, when, arrays, keys, stored, after, leaving, int(ends[-1]))

    def move(self, ahead: Ahead, sweeps: bool) -> Times:
        """Keep what belongs to the next windows, and remove slices that no window needs.

        Return the keys, by place, whose next windows are not empty.
        """
        keys, more = ahead.keys, ahead.after[self._columns.rows.name] > 0
        on = np.flatnonzero(more)
        changes = {name: ahead.after[name] - ahead.stored[name] for name in ahead.after}
        if len(on) < len(keys):
            self._backend.delete(keys_at(self._backend, keys, np.flatnonzero(~more)))
            changes = {name: change[on] for name, change in changes.items()}
            keys = keys_at(self._backend, keys, on)
        if len(on):
            sums = [pa.array(changes[name]) for name in self._columns.names]

            def steps(own: KeyBatch, _: Some) -> list[Step]:
                each = [h.step(own, ADD, pa.array(changes[h.name])) for h in self._filled.values()]
                return [*each, self._next.step(own, MAX, ahead.last)]

            self._columns.merge(keys, sums, steps)
        if sweeps:
            self._backend.delete(ahead.leaving)
        return on

    def _kept(
        self, columns: Sequence[pa.Array[Any]], keys: KeyBatch, firsts: Times, fresh: Mask
    ) -> tuple[_Sums, _Sums]:
        """What is stored of each key, and what its first window has before slices enter it."""
        grid = self._grid
        numbers = self._columns.numbers(keys, [self._next, *self._filled.values()])
        last, fired = numbers.pop(self._next.name)
        stored = {name: values for name, (values, _) in numbers.items()}
        self._note(stored, 1)
        goes_on = fired & (last == firsts - grid.slide)
        sums = stored
        if not goes_on.all():
            sums = {name: np.where(goes_on, values, 0) for name, values in stored.items()}
            anew = np.flatnonzero(~goes_on & ~(fresh & ~fired))
            count = (grid.size - grid.slide) // grid.slice
            step = max(1, self._backend.below.most_keys(SLICES_AT_ONCE) // max(count, 1))
            for begin in range(0, len(anew) if count else 0, step):
                some = anew[begin : begin + step]
                chosen = take_rows(columns, some)
                _, slices = self._slices(chosen, firsts[some] - grid.size, count, 1)
                for name, values in slices.items():
                    sums[name][some] = values
        return stored, sums

    def _slices(
        self, columns: Sequence[pa.Array[Any]], starts: Times, count: int, times: int
    ) -> tuple[KeyBatch, _Sums]:
        """So many slices of each key from a start on, and their sums.

        Up to `times` of these sums are added up.
        """
        if count > 1:
            of = np.repeat(np.arange(len(starts)), count)
            columns = take_rows(columns, of)
            starts = (starts[:, None] + np.arange(count) * self._grid.slice).ravel()
        slices = self._backend.keys(columns, pa.array(starts))
        numbers = self._columns.numbers(slices)
        sums = {name: values for name, (values, _) in numbers.items()}
        for i, handle in self._filled.items():
            sums[handle.name] = numbers[self._columns.names[i]][1].astype(np.int64)
        self._note(sums, count * times)
        if count > 1:
            sums = {name: each.reshape(-1, count).sum(axis=1) for name, each in sums.items()}
        return slices, sums

    def _note(self, sums: _Sums, times: int) -> None:
        """Note numbers of which so many are added up."""
        every = [values for values in sums.values() if len(values)]
        largest = [max(int(values.max()), -int(values.min())) for values in every]
        self._reach += max(largest, default=0) * times


def _spread(values: Times, later: Mask | None, n: int) -> Times:
    """Values by time and key, with 0 for windows before a key's first one."""
    if later is None:
        return values.reshape(-1, n)
    spread = np.zeros(len(later), np.int64)
    spread[later] = values
    return spread.reshape(-1, n)
