"""Windows that overlap, made of slices that they share: sliding and cumulating ones.

A slice is a row whose namespace is its start, so that a row of the input updates one row, however
many windows it is in. A window is put together when it fires. For each key with a slice in a window
that has yet to fire there is one timer in the default namespace, at the window's end.

Invariants
----------
1. A slice that is new registers a timer at the first end of a window after the late bound. A window
   that fires and is not empty registers the next one. So each window with a row has a timer when it
   is due, and a key without rows has none. Where the operator `runs` and windows slide, timers of
   new slices are kept back until the epoch finishes. Then those that are due stay back, but for
   each key's earliest, as long as windows are put together ahead; what that leaves is registered.
2. Due times are handled in order, all keys of one time before any later time. So each key is met
   once per time, and a slice is removed after the last window that it belongs to. Where each time
   has few keys, the windows of many times are put together at once, and emitted in that order. So
   they are where the operator `runs` and windows slide, of any keys that are not too many.
3. Where the operator `runs`, the default namespace of a key holds the aggregates of the slices that
   belong both to the last window fired, whose end is `NEXT`, and to the next one. Late rows remove
   `NEXT`, and the next window is put together anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pystate.operators.runtime.grouping import expand, take_rows
from pystate.operators.runtime.task import TaskContext
from pystate.operators.windows.assigners import Aligned
from pystate.operators.windows.columns import Refused, Some, pick
from pystate.operators.windows.grid import Mask, Times, grid_of
from pystate.operators.windows.operator import FIRED_ROWS, WindowOperator
from pystate.operators.windows.running_sums import SLICES_AT_ONCE, Ahead, RunningSums
from pystate.operators.windows.specification import NEXT
from pystate.state.key_batch import ADD, KeyBatch, Step
from pystate.tables.backend import KeyedStateBackend
from pystate.tables.timers import DueTimers
from pystate.types.key_codes import key_codes

#: Slices of one time's windows up to which windows of many times are put together at once: looking
#: these up takes about as long as what each time costs however few keys it has.
_FEW = 16_384
#: Times whose windows are put together at once, at most.
_MOST_TIMES = 4_096
#: Windows that are put together at once from what is kept summed up, at most.
_AHEAD = 131_072
#: Times up to which that is tried however few windows a slice has.
_LEAST_TIMES = 4
#: Timers that are kept back, at most.
_MOST_HELD = 262_144
#: Fewer are registered one and all: of few keys, windows are put together in another way.
_LEAST_HELD = 1_024


class SlicedOperator(WindowOperator):
    """See `WindowOperator`."""

    def open(self, task: TaskContext) -> None:
        """Register the states."""
        super().open(task)
        windows = self.spec.options.windows
        assert isinstance(windows, Aligned)
        self._windows = windows
        # A slice is not removed at the very time of the last window that needs it: of timers with
        # one time, any may come first.
        self._kept = max(self.lateness, 1)
        self._grid = grid_of(windows, self._kept)
        #: Whether the last window that needs a slice also removes it.
        self._sweeps = self.final and not self.lateness
        timed = self.final and self.domain == "event"
        self._unfired = self.task.late_bound if timed else None
        states = self.spec.states()
        self._next = self.backend.register(NEXT, states[NEXT]) if self.spec.runs else None
        counters = [i for i, c in enumerate(self.spec.columns) if c.counts_rows]
        #: Of what is kept of a key, the count of rows; none if rows are kept themselves.
        self._rows_at = counters[0] if counters else None
        self._filled = {
            i: self.backend.register(name, states[name])
            for i, column in enumerate(self.spec.columns)
            if (name := self.spec.filled(column)) is not None
        }
        self._running: RunningSums | None = None
        if self._next is not None and not self._grid.grows:
            self._running = RunningSums(
                self.backend, self.columns, self._grid, self._next, self._filled
            )
        self._held = DeferredTimers(self.backend, self.domain)
        #: Up to where windows fired of which nothing was kept.
        self._unkept = self.task.late_bound

    @property
    def _folds(self) -> int:
        """Windows that are put together from their slices at once."""
        slices = self.backend.below.most_keys(SLICES_AT_ONCE)
        return max(1, min(FIRED_ROWS, slices // self._windows.slices))

    @property
    def _slices_moving(self) -> int:
        """Slices that enter, or leave, from one window to the next."""
        return max(self._grid.slide // self._grid.slice, 1)

    # -- rows

    def take(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Add rows to their slices; yield windows that were over before them."""
        yield from self._catch_up()
        rows, times = self.timed(rows)
        slices = self._grid.slices(times)
        rows, kept = self.in_time(rows, self._grid.last_end(slices))
        if kept is not None:
            times, slices = times[kept], slices[kept]
        if not rows.num_rows:
            return
        columns = self.key_columns(rows)
        keys = self.backend.keys(columns, pa.array(slices))
        columns = keys.key_arrays()
        fresh, entered = self.add(keys, rows, times)
        new = np.flatnonzero(fresh)
        if len(new):
            self._note_new(take_rows(columns, new), slices[new])
        bound = self.task.late_bound
        if self.final and bound is not None and self.domain == "event":
            late = np.flatnonzero(entered & (self._grid.first_end(slices) <= bound))
            if len(late):
                self._note_late(take_rows(columns, late), slices[late], bound)

    def _catch_up(self) -> Iterator[pa.RecordBatch]:
        """Emit the windows up to the late bound that have not fired.

        A window up to there then fires again if a row changes it, and never for the first time.
        There is none if the last epoch's watermark was as high.
        """
        bound, self._unfired = self._unfired, None
        if bound is not None:
            yield from self._fire_all(bound, first=True)

    def _note_new(self, columns: Sequence[pa.Array[Any]], slices: Times) -> None:
        if not self._sweeps:
            keys = self.backend.keys(columns, pa.array(slices))
            ends = self._grid.last_end(slices) + self._kept
            self.backend.register_timers(keys, self.domain, ends)
        if self.final:
            ends, bound = self._grid.first_end(slices), self.task.late_bound
            if bound is not None and self.domain == "event":
                ends = np.maximum(ends, self._grid.end_after(bound))
                there = ends <= self._grid.last_end(slices)
                if not there.all():
                    ends = ends[there]
                    columns = [column.filter(pa.array(there)) for column in columns]
            if len(ends) and self._running is not None:
                self._held.add(columns, ends)
            elif len(ends):
                self.backend.register_timers(self.backend.keys(columns), self.domain, ends)

    def _note_late(self, columns: Sequence[pa.Array[Any]], slices: Times, bound: int) -> None:
        """Have windows that were over, and that late rows have changed, emitted again."""
        if self._next is not None:
            self._next.clear_all(self.backend.keys(columns))
        end = self._grid.first_end(slices)
        last = np.minimum(self._grid.last_end(slices), bound)
        while True:
            again = np.flatnonzero((end <= last) & (end > bound - self.lateness))
            if len(again):
                keys = self.backend.keys(take_rows(columns, again))
                self.backend.register_timers(keys, self.domain, end[again])
            end = end + self._grid.slide
            if not (end <= last).any():
                return

    # -- firing

    def fire(self, watermark: int | None) -> Iterator[pa.RecordBatch]:
        """Emit the windows that are over, and remove the slices that no window needs."""
        yield from self._catch_up()
        if not self.final:
            bound = self.task.late_bound if self.domain == "event" else None
            done = None if bound is None else bound - self.lateness
            for slices in self.changed():
                yield from self._windows_of(slices, done)
        self.note_early()
        until = self.time_reached(watermark)
        if until is None:
            self._held.register()
        else:
            self._held.settle(until)
            yield from self._fire_all(until)
        for slices in self.due_early():
            yield from self._windows_of(slices, until)

    def _fire_all(self, until: int, *, first: bool = False) -> Iterator[pa.RecordBatch]:
        """Emit the windows that end up to a time; `first`: none of them has fired."""
        times = 1
        while (time := self.backend.next_timer(self.domain)) is not None and time <= until:
            again = self._fires_again(time, first)
            if self._held and not again:
                ahead = self._fire_ahead(time, until)
                if ahead is not None:
                    yield from ahead
                    continue
                self._held.register()
            last = min(until, time + (times - 1) * self._grid.slide)
            due = None
            if self._sweeps and not again:
                folds = self._folds
                due = self.backend.due_timers(self.domain, last, folds)
            if due is not None and self._are_few(due, times):
                few = 2 * len(due.keys) < folds
                yield from self._fire_together(due, last)
                times = min(2 * times, _MOST_TIMES) if few else times
            elif times > 1:
                times //= 2
            else:
                ahead = None if again else self._fire_ahead(time, until)
                yield from ahead or self._fire_until(time, again=again)

    def _fires_again(self, time: int, first: bool) -> bool:
        bound = self.task.late_bound
        return self.domain == "event" and bound is not None and time <= bound and not first

    def _are_few(self, due: DueTimers, times: int) -> bool:
        """Whether these are all timers that are due, of so few windows of each of some times."""
        n = len(due.keys)
        slices = n * self._windows.slices // times
        return due.are_all and slices <= _FEW and due.keys.namespaces().null_count == n

    def _fire_together(self, due: DueTimers, last: int) -> Iterator[pa.RecordBatch]:
        """Emit the windows of some keys that end up to `last`, from their slices.

        A window that is not empty has a slice whose first window is due, or is one of those that
        follow a window that is due and that share a slice with it. REQUIRES: these are all timers
        up to `last`.
        """
        grid = self._grid
        due.fire_all()
        columns, first = due.keys.key_arrays(), due.timestamps
        self._unkept = last if self._unkept is None else max(self._unkept, last)
        if self._next is not None:
            self.backend.delete(due.keys)
        furthest = grid.last_end_of(first)
        steps = (np.minimum(furthest, last) - first) // grid.slide + 1
        rows, ends = expand(first, steps, grid.slide)
        order = _each_once(key_codes(columns)[rows], ends)
        rows, ends = rows[order], ends[order]
        folds = self._folds
        for begin in range(0, len(rows), folds):
            part = slice(begin, begin + folds)
            chosen, at = take_rows(columns, rows[part]), ends[part]
            there, results = self._folded(chosen, at)
            if len(there):
                fired, when = take_rows(chosen, there), at[there]
                yield self.result(fired, grid.start_of(when), when, results)
                on = np.flatnonzero((when + grid.slide > last) & ~grid.ends_period(when))
                if len(on):
                    keys = self.backend.keys(take_rows(fired, on))
                    self.backend.register_timers(keys, self.domain, when[on] + grid.slide)
            windows, slices = grid.leaving(at)
            if len(windows):
                gone = take_rows(chosen, windows)
                self.backend.delete(self.backend.keys(gone, pa.array(slices)))

    def _fire_ahead(self, time: int, until: int) -> Iterator[pa.RecordBatch] | None:
        """Emit the windows of many times from what is kept summed up; None if that cannot be."""
        if self._running is None:
            return None
        slide = self._grid.slide
        most = self.backend.below.most_keys(_AHEAD, self._slices_moving)
        due = self.backend.due_timers(self.domain, time, most)
        if due is None:
            return iter(())  # the time is that of a timer which was taken away
        # Of more times than a slice has windows, many would be those of other keys alone.
        times = min((until - time) // slide + 1, max(self._grid.size // slide, _LEAST_TIMES))
        times = min(times, most // len(due.keys))
        while times > 1:
            last = time + (times - 1) * slide
            due = self.backend.due_timers(self.domain, last, most)
            assert due is not None, "the same timers"
            if due.are_all:
                columns, firsts = first_timers(self.backend, due)
                if 0 < len(firsts) <= 2 * most // times:
                    fresh = self._have_nothing_before(firsts)
                    ends = np.arange(int(firsts.min()), last + 1, slide)
                    ahead = self._running.ahead(columns, firsts, ends, fresh)
                    return None if ahead is None else self._fire_before(due, columns, ahead)
            times //= 2
        return None

    def _have_nothing_before(self, firsts: Times) -> Mask:
        """Whether keys of which nothing is kept have no slice but those that enter from there on.

        A window before it would have a timer of its own, unless it was over when its slice began,
        or fired without being kept. Then the timer is that of the first window after this.
        """
        if self.domain != "event":
            return np.zeros(len(firsts), np.bool_)
        if self._unkept is None:
            return np.ones(len(firsts), np.bool_)
        nothing: Mask = firsts > self._grid.end_after(self._unkept)
        return nothing

    def _fire_before(
        self, due: DueTimers, columns: Sequence[pa.Array[Any]], ahead: Ahead
    ) -> Iterator[pa.RecordBatch]:
        due.fire_all()
        self._held.register(after=ahead.last)
        yield from self._emit_ahead(columns, ahead)
        if not self._sweeps:
            done = np.asarray(due.keys.namespaces().is_valid())
            if done.any():
                self.backend.delete(self.chosen(due.keys, done))

    def _emit_ahead(
        self, columns: Sequence[pa.Array[Any]], ahead: Ahead
    ) -> Iterator[pa.RecordBatch]:
        assert self._running is not None
        on = self._running.move(ahead, self._sweeps)
        if len(on):
            keys = self.backend.keys(take_rows(columns, on))
            self.backend.register_timers(keys, self.domain, ahead.last + self._grid.slide)
        for begin in range(0, len(ahead.rows), FIRED_ROWS):
            part = slice(begin, begin + FIRED_ROWS)
            fired = take_rows(columns, ahead.rows[part])
            kept = {name: array[part] for name, array in ahead.kept.items()}
            results = self._unfilled(kept, self.columns.results_of(None, kept))
            ends = ahead.ends[part]
            yield self.result(fired, self._grid.start_of(ends), ends, results)

    def _fire_until(self, time: int, *, again: bool) -> Iterator[pa.RecordBatch]:
        runs = self._next is not None and not again
        below = self.backend.below
        while True:
            most = below.most_keys(FIRED_ROWS, self._slices_moving) if runs else self._folds
            due = self.backend.due_timers(self.domain, time, most)
            if due is None:
                return
            due.fire_all()
            spaces = due.keys.namespaces()
            if spaces.null_count < len(due.keys):
                done = np.asarray(spaces.is_valid())
                gone = self.chosen(due.keys, done)
                if done.all():
                    self.backend.delete(gone)
                    continue
                columns = [a.filter(pa.array(~done)) for a in due.keys.key_arrays()]
                self.backend.delete(gone)
                yield from self._fire(self.backend.keys(columns), columns, time, runs, again)
            else:
                yield from self._fire(due.keys, due.keys.key_arrays(), time, runs, again)

    def _fire(
        self,
        keys: KeyBatch,
        columns: Sequence[pa.Array[Any]],
        end: int,
        runs: bool,
        again: bool,
    ) -> Iterator[pa.RecordBatch]:
        """Emit the window of some keys that ends at `end`."""
        ends = np.full(len(keys), end, np.int64)
        if runs and self._running is not None:
            one = self._running.ahead(columns, ends, ends[:1], self._have_nothing_before(ends))
            if one is not None:
                yield from self._emit_ahead(columns, one)
                return
        if runs and self._running is not None:
            # Its sums may leave their range, and slices that are left out could not be taken away.
            self.backend.delete(keys)
            self._unkept = end if self._unkept is None else max(self._unkept, end)
            runs = False
        if runs:
            there, results = self._run(keys, columns, end)
        else:
            there, results = self._folded(columns, ends)
        if len(there):
            now = keys
            if len(there) < len(keys):
                columns_there = take_rows(columns, there)
                now, ends = self.backend.keys(columns_there), ends[: len(there)]
            else:
                columns_there = list(columns)
            yield self.result(columns_there, self._grid.start_of(ends), ends, results)
            if not again and not self._ends_period(end):
                self.backend.register_timers(now, self.domain, end + self._grid.slide)
        if self._sweeps:
            for start in self._leaving(end):
                self.backend.delete(self._slice(columns, start))

    def _leaving(self, end: int) -> list[int]:
        """The slices whose last window ends at `end`."""
        starts: list[int] = self._grid.leaving(np.array([end]))[1].tolist()
        return starts

    def _ends_period(self, end: int) -> bool:
        """Whether the next window has no slice of this one."""
        return bool(self._grid.ends_period(np.array([end]))[0])

    def _slice(self, columns: Sequence[pa.Array[Any]], start: int) -> KeyBatch:
        return self.backend.keys(columns, pa.array(np.full(len(columns[0]), start, np.int64)))

    # -- windows put together from all their slices

    def _folded(
        self, columns: Sequence[pa.Array[Any]], ends: Times
    ) -> tuple[Times, list[pa.Array[Any]]]:
        """Which of some windows, of a key and an end each, are not empty, and their results."""
        _, there, results = self._fold(columns, ends)
        return there, results

    def _fold(
        self, columns: Sequence[pa.Array[Any]], ends: Times
    ) -> tuple[list[Any], Times, list[pa.Array[Any]]]:
        starts = self._grid.start_of(ends)
        windows, spaces = expand(starts, (ends - starts) // self._grid.slice, self._grid.slice)
        keys = self.backend.keys(take_rows(columns, windows), pa.array(spaces))
        there = np.flatnonzero(self.columns.exist(keys))
        groups = windows[there]
        windows_there, dense = np.unique(groups, return_inverse=True)
        accumulators = [pick(each, there) for each in self.columns.accumulators(keys)]
        refused = np.zeros(len(there), np.uint8)
        folded, results = self.columns.folded(dense.astype(np.int64), accumulators, refused)
        self._leave_out(refused, accumulators, columns, groups)
        return folded, windows_there, results

    def _leave_out(
        self,
        refused: Refused,
        slices: Sequence[Any],
        columns: Sequence[pa.Array[Any]],
        keys: Times,
    ) -> None:
        """Count the rows of slices with which a window's sums would leave their range.

        `slices` are their accumulators; `keys` says, by slice, which of the keys is its own.
        """
        if not refused.any():
            return
        counts = slices[self.columns.counter].fill_null(0).to_numpy()
        for i in np.flatnonzero(refused).tolist():
            why = f"has a window that {self.columns.why(int(refused[i]))} with all of its slices"
            self.invalid.left_out(columns, int(keys[i]), int(counts[i]), why)

    def _windows_of(self, slices: KeyBatch, after: int | None) -> Iterator[pa.RecordBatch]:
        """Emit the windows that some slices belong to, those that end after a time."""
        starts = slices.namespaces().to_numpy()
        first, last = self._grid.first_end(starts), self._grid.last_end(starts)
        if after is not None:
            first = np.maximum(first, self._grid.end_after(after))
        counts = np.maximum((last - first) // self._grid.slide + 1, 0)
        rows, ends = expand(first, counts, self._grid.slide)
        columns = slices.key_arrays()
        # Slices of one key share windows.
        order = _each_once(key_codes(columns)[rows], ends)
        folds = self._folds
        for begin in range(0, len(order), folds):
            part = order[begin : begin + folds]
            chosen = take_rows(columns, rows[part])
            there, results = self._folded(chosen, ends[part])
            if len(there):
                at = ends[part][there]
                fired = take_rows(chosen, there)
                yield self.result(fired, self._grid.start_of(at), at, results)

    # -- windows kept summed up

    def _run(
        self, keys: KeyBatch, columns: Sequence[pa.Array[Any]], end: int
    ) -> tuple[Times, list[pa.Array[Any]]]:
        """As `_folded` for windows that grow, from what was kept of the one before."""
        assert self._next is not None
        grid, kept = self._grid, self.columns
        start = int(grid.start_of(np.array([end]))[0])
        goes_on = self._next.values(keys).fill_null(end).to_numpy() == end - grid.slide
        if end == start + grid.slide:
            goes_on[:] = True  # nothing is kept of another period
        anew = np.flatnonzero(~goes_on)
        if len(anew):
            again = self.backend.keys(take_rows(columns, anew))
            self.backend.delete(again)
            # Of a window that starts anew all slices enter, of others the last ones.
            for at in range(start, end - grid.slide, grid.slice):
                self._enter(take_rows(columns, anew), again, at)
        for at in range(end - grid.slide, end, grid.slice):
            self._enter(columns, keys, at)
        filled = list(self._filled.values())
        sums = kept.kept(keys, filled)
        rows = sums[kept.rows.name].fill_null(0).to_numpy()
        there = np.flatnonzero(rows > 0)
        fired = keys
        if len(there) < len(keys):
            fired = self.backend.keys(take_rows(columns, there))
            sums = kept.kept(fired, filled)
        results = self._unfilled(sums, kept.results_of(fired, sums))
        if self._ends_period(end):
            self.backend.delete(keys)
            return there, results
        self._next.update_all(keys, end)
        self._forget(columns, np.flatnonzero(rows <= 0))
        return there, results

    def _forget(self, columns: Sequence[pa.Array[Any]], rows: Times) -> None:
        if len(rows):
            self.backend.delete(self.backend.keys(take_rows(columns, rows)))

    def _enter(self, columns: Sequence[pa.Array[Any]], keys: KeyBatch, start: int) -> None:
        """Add the slices that begin at `start` to what is kept of their keys."""
        accumulators = self.columns.accumulators(self._slice(columns, start))

        def more(own: KeyBatch, some: Some) -> list[Step]:
            return [
                handle.step(own, ADD, pick(accumulators[i].is_valid().cast(pa.int64()), some))
                for i, handle in self._filled.items()
            ]

        refused = np.zeros(len(keys), np.uint8)
        self.columns.merge(keys, accumulators, more, refused)
        self._leave_out(refused, accumulators, columns, np.arange(len(keys)))

    def _unfilled(
        self, sums: Mapping[str, pa.Array[Any]], results: list[pa.Array[Any]]
    ) -> list[pa.Array[Any]]:
        """The results, with null for sums of no values."""
        for i, handle in self._filled.items():
            if i < len(results):
                some = pc.greater(sums[handle.name].fill_null(0), pa.scalar(0, pa.int64()))
                results[i] = pc.if_else(some, results[i], pa.scalar(None, results[i].type))
        return results


def _each_once(codes: Times, ends: Times) -> Times:
    """The places of distinct windows, by key and end, in the order of their ends."""
    order = np.lexsort((codes, ends))
    fresh = np.ones(len(order), np.bool_)
    fresh[1:] = (np.diff(ends[order]) != 0) | (np.diff(codes[order]) != 0)
    places: Times = order[fresh]
    return places


class DeferredTimers:
    """Timers in the default namespace, some of which may never be registered.

    Where all windows of a key up to the watermark are put together at once, the key needs one
    timer, at the end of the first of them. Which these are is known when the epoch finishes. Of a
    table on disk none is kept back, as the rows of so many keys may not fit in memory together.
    """

    def __init__(self, backend: KeyedStateBackend, domain: Any) -> None:
        self._backend = backend
        self._domain = domain
        self._columns: list[Sequence[pa.Array[Any]]] = []
        self._times: list[Times] = []
        self._rows = 0

    def __bool__(self) -> bool:
        return self._rows > 0

    def add(self, columns: Sequence[pa.Array[Any]], times: Times) -> None:
        """Keep timers of some keys back."""
        if self._backend.below.on_disk:
            self._register(columns, times)
            return
        self._columns.append(columns)
        self._times.append(times)
        self._rows += len(times)
        if self._rows > _MOST_HELD:
            self.register()

    def register(self, after: int | None = None) -> None:
        """Register what is kept back; `after`: only later timers, and forget the others."""
        if self._rows:
            columns, times = self._take()
            if after is not None:
                columns, times = _filtered(columns, times, times > after)
            self._register(columns, times)

    def settle(self, until: int) -> None:
        """Register timers that are not due, and the earliest one of each key; keep the rest back.

        As long as there is a rest, all windows of a key must be looked for once its timer is due.
        """
        if self._rows < max(_LEAST_HELD, 1):
            self.register()
            return
        columns, times = self._take()
        due = times <= until
        self._register(*_filtered(columns, times, ~due))
        columns, times = _filtered(columns, times, due)
        if not len(times):
            return
        if (np.diff(times) < 0).any():
            order = np.argsort(times, kind="stable")
            columns, times = take_rows(columns, order), times[order]
        first = self._backend.keys(columns).first_rows()
        once = first == np.arange(len(first))
        self._register(*_filtered(columns, times, once))
        rest = times > times[first]
        if rest.any():
            self.add(*_filtered(columns, times, rest))

    def _take(self) -> tuple[Sequence[pa.Array[Any]], Times]:
        parts = zip(*self._columns, strict=True)
        columns = [pa.concat_arrays(list(column)) for column in parts]
        times = np.concatenate(self._times)
        self._columns, self._times, self._rows = [], [], 0
        return columns, times

    def _register(self, columns: Sequence[pa.Array[Any]], times: Times) -> None:
        if len(times):
            self._backend.register_timers(self._backend.keys(columns), self._domain, times)


def first_timers(
    backend: KeyedStateBackend, due: DueTimers
) -> tuple[Sequence[pa.Array[Any]], Times]:
    """The keys with timers in the default namespace, each once, and their earliest ones."""
    keys, spaces = due.keys, due.keys.namespaces()
    columns: Sequence[pa.Array[Any]] = keys.key_arrays()
    times = due.timestamps
    if spaces.null_count < len(keys):
        columns, times = _filtered(columns, times, np.asarray(spaces.is_null()))
        keys = backend.keys(columns)
    first = keys.first_rows()
    once = first == np.arange(len(first))
    if once.all():
        return columns, times
    earliest = times.copy()
    np.minimum.at(earliest, first, times)
    return _filtered(columns, earliest, once)


def _filtered(
    columns: Sequence[pa.Array[Any]], times: Times, which: Mask
) -> tuple[Sequence[pa.Array[Any]], Times]:
    if which.all():
        return columns, times
    mask = pa.array(which)
    return [column.filter(mask) for column in columns], times[which]
