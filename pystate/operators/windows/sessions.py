"""Session windows: rows of a key that are near each other in time.

A session is a row whose namespace is its start. The key's default namespace has a list of the
sessions that are open, in order, each with its start and end. Rows of a batch and the sessions that
their keys have are put in order, and those that overlap become one; no Python code runs per row.

Invariants
----------
1. The sessions of a key neither overlap nor touch.
2. A row at the end of a session belongs to it. So a session is over once the watermark is past its
   end: no row that is not late can prolong it any more, however rows are cut into epochs.
3. A session that is not over has a timer at or before the time after its end. A timer before that
   moves there when it fires, so that a row which prolongs a session costs no timer. A timer whose
   session is gone does nothing.
4. A row decides alone whether it is too late: its own time and gap count, not those of a session
   that it would join. So the order in which rows of an epoch arrive does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from pystate.operators.runtime.grouping import first_of_each, take_rows
from pystate.operators.runtime.partial_rows import FIRST
from pystate.operators.runtime.task import TaskContext
from pystate.operators.windows.assigners import LONGEST_MS, Session
from pystate.operators.windows.grid import Mask, Times
from pystate.operators.windows.operator import WindowOperator
from pystate.operators.windows.partial_slices import accumulators
from pystate.operators.windows.specification import OPEN
from pystate.state.key_batch import KeyBatch
from pystate.tables.backend import KeyedStateBackend
from pystate.types.key_codes import key_codes

_INT64 = np.iinfo(np.int64)
#: Sessions are over at this time after their end, which is the last time at which rows join them.
_PAST = 1
_STRUCT = pa.struct([("start", pa.int64()), ("end", pa.int64())])


@dataclass
class _Stretches:
    """Stretches of time of some keys: the key's number, start, and end."""

    codes: Times
    starts: Times
    ends: Times

    def __len__(self) -> int:
        return len(self.codes)

    def at(self, rows: Any) -> _Stretches:
        """Some of them."""
        return _Stretches(self.codes[rows], self.starts[rows], self.ends[rows])


@dataclass
class _Lookup:
    """Sessions that were looked up, in the order that was asked for.

    `keys` has each of their keys once, and `stored` all sessions of these. `codes` says whose each
    session is; and of those that are `there`, `places` says which of the stored ones they are.
    """

    keys: list[pa.Array[Any]]
    stored: _Stretches
    codes: Times
    places: Times
    there: Mask
    ends: Times


class SessionOperator(WindowOperator):
    """See `WindowOperator`."""

    def open(self, task: TaskContext) -> None:
        """Register the states."""
        super().open(task)
        self._open = self.backend.register(OPEN, self.spec.states()[OPEN])

    # -- rows

    def take(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Add rows to their sessions, which this may begin, prolong and join."""
        rows, times = self.timed(rows)
        rows, times, gaps = self._gaps(rows, times)
        starts = self._starts(rows, times)
        rows, kept = self.in_time(rows, times + gaps + _PAST)
        if kept is not None:
            times, starts, gaps = times[kept], starts[kept], gaps[kept]
        stretches = _Stretches(np.zeros(len(times), np.int64), starts, times + gaps)
        apart = self._apart(rows) if rows.num_rows and self.columns.may_overflow else None
        if apart is None:
            self._put(rows, stretches, times)
            return iter(())
        # Of these it is known only one by one whether they make a session, or join two.
        refused = np.zeros(rows.num_rows, np.uint8)
        self._put(rows.filter(pa.array(~apart)), stretches.at(~apart), times[~apart])
        for i in np.flatnonzero(apart).tolist():
            row, stretch = rows.slice(i, 1), stretches.at(slice(i, i + 1))
            refused[i] = self._excess(row, stretch)
            if not refused[i]:
                self._put(row, stretch, times[i : i + 1])
        if refused.any():
            self.refuse(rows, times, refused)
        return iter(())

    def _put(self, rows: pa.RecordBatch, stretches: _Stretches, times: Times) -> None:
        """Add rows to the sessions that their stretches make, prolong and join."""
        if rows.num_rows:
            columns = self.key_columns(rows)
            codes = key_codes(columns, dense=True)
            begins = self._place(columns, replace(stretches, codes=codes))
            self.add(self.backend.keys(columns, pa.array(begins)), rows, times)

    def _apart(self, rows: pa.RecordBatch) -> Mask | None:
        """The rows of keys of which some sum may leave its range; None if there are none."""
        columns = self.key_columns(rows)
        codes = key_codes(columns, dense=True)
        keys = take_rows(columns, first_of_each(codes))
        stored = self._sessions(self.backend.keys(keys))
        given, beyond = self._adds(rows)
        near = self.columns.near_end(codes, given, stored.codes, self._sums_of(keys, stored))
        for bad in beyond.values():
            near = bad if near is None else near | bad
        return near

    def _adds(self, rows: pa.RecordBatch) -> tuple[list[Any], dict[int, Mask]]:
        """What rows add to sums, and by aggregate which are beyond their range themselves."""
        return accumulators(self.spec, rows) if self._combined else (self.columns.given(rows), {})

    def _sums_of(self, keys: Sequence[pa.Array[Any]], sessions: _Stretches) -> list[Any]:
        columns = take_rows(keys, sessions.codes)
        return self.columns.accumulators(self.backend.keys(columns, pa.array(sessions.starts)))

    def _excess(self, row: pa.RecordBatch, stretch: _Stretches) -> int:
        """The code of the first sum that a row, and the sessions it joins, would make too large."""
        given, beyond = self._adds(row)
        if beyond:
            return int(self.columns.codes_of(beyond, 1)[0])
        keys = self.key_columns(row)
        stored = self._sessions(self.backend.keys(keys))
        start, end = int(stretch.starts[0]), int(stretch.ends[0])
        joined = stored.at((stored.starts <= end) & (stored.ends >= start))
        return self.columns.excess(given, self._sums_of(keys, joined))

    def _starts(self, rows: pa.RecordBatch, times: Times) -> Times:
        """The first time of what each row stands for."""
        if not self._combined or self.domain != "event":
            return times
        return rows.column(FIRST).to_numpy()

    def _gaps(self, rows: pa.RecordBatch, times: Times) -> tuple[pa.RecordBatch, Times, Times]:
        """The rows with a gap, their times and gaps."""
        windows = self.spec.options.windows
        assert isinstance(windows, Session)
        if windows.gap_column is None:
            return rows, times, np.full(len(times), windows.gap_ms, np.int64)
        column = rows.column(windows.gap_column).cast(pa.int64())
        gaps = column.fill_null(0).to_numpy()
        # A session's end, and the time until which it is kept, are numbers of 64 bits.
        long = np.clip(gaps, 1, LONGEST_MS)
        first, last = self.spec.reach()
        far = (times > last - 4 * long) | (times < first + 4 * long)
        bad = (gaps < 1) | (gaps > LONGEST_MS) | far

        def why(i: int) -> str:
            gap: Any = column[i].as_py()
            if gap is not None and 1 <= gap <= LONGEST_MS:
                return f"is of {times[i]} ms since 1970, too far away for a session of {gap} ms"
            return (
                f"has a gap of {'null' if gap is None else gap} in column "
                f"{windows.gap_column!r}: a session's gap is 1 to {LONGEST_MS} ms"
            )

        if bad.any():
            rest = self.invalid.without(rows, bad, why)
            self.untime(rows, times, bad)
            rows, times, gaps = rest, times[~bad], gaps[~bad]
        return rows, times, gaps

    def _place(self, columns: Sequence[pa.Array[Any]], given: _Stretches) -> Times:
        """Make room in the sessions; return the start of each row's session."""
        keys = take_rows(columns, first_of_each(given.codes))
        default = self.backend.keys(keys)
        stored = self._sessions(default)
        rows = len(given)
        both = _Stretches(
            np.concatenate([given.codes, stored.codes]),
            np.concatenate([given.starts, stored.starts]),
            np.concatenate([given.ends, stored.ends]),
        )
        groups, joined = _join(both)
        starts = joined.starts[groups]
        # Each stored session is in one of the joined ones, which may begin earlier.
        mine = groups[rows:]
        begins = stored.starts == joined.starts[mine]
        moved = np.flatnonzero(~begins)
        if len(moved):
            self._move(keys, stored.at(moved), joined.starts[mine[moved]])
        lasts = begins
        bound = self.task.late_bound
        if bound is not None and self.domain == "event":
            # The timer of a session that was over has fired.
            lasts = begins & (stored.ends + _PAST > bound)
        same = begins & (stored.ends == joined.ends[mine])
        changed = ~_marked(len(joined), mine[same])
        # A stored session that no row has touched keeps its timer, too.
        timed = ~_marked(len(joined), mine[lasts]) & _marked(len(joined), groups[:rows])
        if timed.any():
            new = joined.at(timed)
            spaces = take_rows(keys, new.codes)
            self.backend.register_timers(
                self.backend.keys(spaces, pa.array(new.starts)), self.domain, new.ends + _PAST
            )
        if changed.any():
            self._store(keys, joined, _marked(len(keys[0]), joined.codes[changed]))
        return starts[:rows]

    def _move(self, keys: Sequence[pa.Array[Any]], stored: _Stretches, to: Times) -> None:
        """Merge sessions into those that begin earlier; they vanish."""
        columns = take_rows(keys, stored.codes)
        source = self.backend.keys(columns, pa.array(stored.starts))
        target = self.backend.keys(columns, pa.array(to))
        self.columns.merge(target, self.columns.accumulators(source))
        self.backend.delete(source)

    # -- the sessions of keys

    def _sessions(self, keys: KeyBatch) -> _Stretches:
        """All sessions of some keys; a key's number is its place in the batch."""
        lists: Any = self._open.values(keys)
        lengths = lists.value_lengths().fill_null(0).to_numpy()
        flat = lists.flatten()
        return _Stretches(
            np.repeat(np.arange(len(keys)), lengths),
            flat.field(0).to_numpy(),
            flat.field(1).to_numpy(),
        )

    def _find(self, sessions: KeyBatch) -> _Lookup:
        """Look sessions up among those of their keys."""
        columns = sessions.key_arrays()
        codes = key_codes(columns, dense=True)
        keys = take_rows(columns, first_of_each(codes))
        stored = self._sessions(self.backend.keys(keys))
        if not len(stored):
            none = np.zeros(len(codes), np.int64)
            return _Lookup(keys, stored, codes, none, none.astype(np.bool_), none)
        starts = sessions.namespaces().to_numpy()
        own, wanted = _pairs((stored.codes, stored.starts), (codes, starts))
        places = np.minimum(np.searchsorted(own, wanted), len(own) - 1)
        there = own[places] == wanted
        return _Lookup(keys, stored, codes, places, there, stored.ends[places])

    def _store(self, keys: Sequence[pa.Array[Any]], sessions: _Stretches, chosen: Mask) -> None:
        """Store the sessions of the chosen keys; `sessions` are in order, and all of theirs."""
        which = np.flatnonzero(chosen)
        counts = np.bincount(sessions.codes, minlength=len(chosen))[which]
        part = sessions.at(chosen[sessions.codes])
        offsets: Any = np.zeros(len(which) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        values = pa.StructArray.from_arrays(
            [pa.array(part.starts), pa.array(part.ends)], fields=list(_STRUCT)
        )
        empty = counts == 0
        given: Any = pa.array(offsets)
        lists = pa.ListArray.from_arrays(
            given, values, mask=pa.array(empty) if empty.any() else None
        )
        self._open.update_all(self.backend.keys(take_rows(keys, which)), lists)

    # -- firing

    def oldest(self) -> int | None:
        """The start of the earliest session that is kept."""
        return earliest_start(self.backend)

    def fire_until(self, until: int | None) -> Iterator[pa.RecordBatch]:
        """Emit the sessions that are over, and remove those that are done."""
        for due in self.due(until):
            assert until is not None
            yield from self._fire(due.keys, due.timestamps, until)

    def emitted(self, keys: KeyBatch) -> pa.RecordBatch:
        """The results of some sessions."""
        return self._results(keys, self._find(keys).ends)

    def _fire(self, keys: KeyBatch, times: Times, until: int) -> Iterator[pa.RecordBatch]:
        sessions = self._find(keys)
        there, past = sessions.there, sessions.ends + _PAST
        longer = there & (past > until)
        if longer.any():
            self.backend.register_timers(keys, self.domain, pa.array(past, mask=~longer))
        over = there & (times <= past) & ~longer
        if (times[over] < past[over]).any():
            # A session may have a timer when it is over and an earlier one; it is emitted once.
            rows = np.flatnonzero(over)
            over[:] = False
            over[rows[np.unique(sessions.places[rows], return_index=True)[1]]] = True
            self.backend.delete_timers(keys, self.domain, pa.array(past, mask=~over))
        if over.any():
            fired = self.chosen(keys, over)
            if self.final:
                yield self._results(fired, sessions.ends[over])
            if not self.lateness:
                self._remove(fired, sessions, over)
        if self.lateness:
            # The timer may be from before a row that prolonged the session.
            kept = there & ~longer & (times < past + self.lateness)
            if kept.any():
                removal = pa.array(past + self.lateness, mask=~kept)
                self.backend.register_timers(keys, self.domain, removal)
            done = there & (times >= past + self.lateness)
            if done.any():
                self._remove(self.chosen(keys, done), sessions, done)

    def _remove(self, sessions: KeyBatch, among: _Lookup, which: Mask) -> None:
        """Remove some of the sessions that were found; `sessions` are these."""
        self.backend.delete(sessions)
        kept = ~_marked(len(among.stored), among.places[which])
        touched = _marked(len(among.keys[0]), among.codes[which])
        self._store(among.keys, among.stored.at(kept), touched)

    def _results(self, keys: KeyBatch, ends: Times) -> pa.RecordBatch:
        starts = keys.namespaces().to_numpy()
        return self.result(keys.key_arrays(), starts, ends, self.columns.results(keys))


def earliest_start(backend: KeyedStateBackend) -> int | None:
    """The start of the earliest session that is kept; None if there is none.

    O(rows of the table). The rows of the default namespace are no sessions.
    """
    earliest: list[int] = []
    for keys in backend.existing():
        starts = keys.namespaces().drop_null().to_numpy()
        if len(starts):
            earliest.append(int(starts.min()))
    return min(earliest, default=None)


def _marked(length: int, places: Times) -> Mask:
    """A mask that is true in some places."""
    mask = np.zeros(length, np.bool_)
    mask[places] = True
    return mask


def _pairs(*given: tuple[Times, Times]) -> list[Times]:
    """Numbers that compare as pairs of a code and a time do; all arrays have some."""
    low = min(int(times.min()) for _, times in given)
    span = max(int(times.max()) for _, times in given) - low + 2
    if span * (max(int(codes.max()) for codes, _ in given) + 1) < _INT64.max:
        return [codes * span + (times - low) for codes, times in given]
    # Times so far apart are replaced by their ranks.
    ordered = np.unique(np.concatenate([times for _, times in given]))
    span = len(ordered) + 1
    return [codes * span + np.searchsorted(ordered, times) for codes, times in given]


def _join(given: _Stretches) -> tuple[Times, _Stretches]:
    """Join stretches of one key that overlap or touch, in the order of keys and starts.

    Also say which of these each given one is part of.
    """
    starts, ends = _pairs((given.codes, given.starts), (given.codes, given.ends))
    order = np.argsort(starts)
    reached = np.maximum.accumulate(ends[order])
    begins = np.ones(len(order), np.bool_)
    begins[1:] = starts[order][1:] > reached[:-1]
    number = np.cumsum(begins) - 1
    groups = np.empty(len(order), np.int64)
    groups[order] = number
    firsts = np.flatnonzero(begins)
    last = np.maximum.reduceat(given.ends[order], firsts)
    return groups, _Stretches(given.codes[order[firsts]], given.starts[order[firsts]], last)
