"""The kinds of windows, and which operator runs which: those that need but a row each are here.

Of tumbling windows and the global one, a window's namespace is its start. Its timer at the window's
end emits it; where rows may come late, another timer at the end of the allowed lateness removes it.

Of windows of a number of rows, a key's open window is the row whose namespace is 0. Where a batch
completes windows, the later ones are under 1, 2, … until its end, when the complete ones are
emitted and the open one moves to 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pystate.operators.runtime.grouping import first_of_each, take_rows
from pystate.operators.runtime.task import TaskContext
from pystate.operators.windows.assigners import Aligned, CountWindow, Global, Session, Tumbling
from pystate.operators.windows.grid import Grid, Mask, Times, grid_of
from pystate.operators.windows.operator import FIRED_ROWS, WindowOperator
from pystate.operators.windows.sessions import SessionOperator
from pystate.operators.windows.slices import SlicedOperator
from pystate.operators.windows.specification import WindowSpec
from pystate.state.key_batch import KeyBatch
from pystate.types.key_codes import key_codes, ranks


class TumblingOperator(WindowOperator):
    """See `WindowOperator`."""

    def open(self, task: TaskContext) -> None:
        """Register the states."""
        super().open(task)
        windows = self.spec.options.windows
        assert isinstance(windows, Aligned) and isinstance(windows, Tumbling)
        self._grid: Grid = grid_of(windows, self.lateness)

    def take(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Add rows to their windows."""
        rows, times = self.timed(rows)
        starts = self._grid.slices(times)
        ends = self._grid.first_end(starts)
        rows, kept = self.in_time(rows, ends)
        if kept is not None:
            times, starts, ends = times[kept], starts[kept], ends[kept]
        if rows.num_rows:
            keys = self.backend.keys(self.key_columns(rows), pa.array(starts))
            self._register(keys, ends, *self.add(keys, rows, times))
        return iter(())

    def _register(self, keys: KeyBatch, ends: Times, new: Mask, entered: Mask) -> None:
        """Register timers of new windows, and of those that were over and have changed."""
        bound = self.task.late_bound
        if self.final:
            if bound is not None and self.domain == "event":
                new = new | (entered & (ends <= bound))
        else:
            ends = ends + self.lateness
        if new.any():
            self.backend.register_timers(keys, self.domain, pa.array(ends, mask=~new))

    def fire_until(self, until: int | None) -> Iterator[pa.RecordBatch]:
        """Emit the windows that are over, and remove those that are done."""
        for due in self.due(until):
            yield from self._fire(due.keys, due.timestamps)

    def _fire(self, keys: KeyBatch, times: Times) -> Iterator[pa.RecordBatch]:
        if not self.final:
            self.backend.delete(keys)
            return
        if not self.lateness:
            yield self.emitted(keys)
            self.backend.delete(keys)
            return
        over = times == self._grid.first_end(_spaces(keys))
        if over.any():
            fired = self.chosen(keys, over)
            yield self.emitted(fired)
            self.backend.register_timers(fired, self.domain, times[over] + self.lateness)
        if not over.all():
            self.backend.delete(self.chosen(keys, ~over))

    def emitted(self, keys: KeyBatch) -> pa.RecordBatch:
        """The results of some windows."""
        starts = _spaces(keys)
        ends = self._grid.first_end(starts)
        return self.result(keys.key_arrays(), starts, ends, self.columns.results(keys))


class GlobalOperator(WindowOperator):
    """One window per key, which never ends; it has neither a start nor an end."""

    def take(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Add rows to their key's window."""
        rows, times = self.timed(rows)
        if rows.num_rows:
            # The default namespace is that of timers and rows which are no windows.
            spaces = pa.array(np.zeros(rows.num_rows, np.int64))
            self.add(self.backend.keys(self.key_columns(rows), spaces), rows, times)
        return iter(())


def _spaces(keys: KeyBatch) -> Times:
    """The namespaces of windows."""
    spaces: Times = keys.namespaces().to_numpy()
    return spaces


class CountOperator(WindowOperator):
    """See `WindowOperator`."""

    def take(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Add rows to their windows; yield those that are complete."""
        if self.spec.options.event_time is not None:
            self.timed(rows)
        for begin in range(0, rows.num_rows, FIRED_ROWS):
            some = rows.slice(begin, FIRED_ROWS)
            apart = self._apart(some) if self.columns.may_overflow else None
            if apart is None:
                yield from self._process(some)
                continue
            # Whether these count is known only one by one.
            yield from self._process(some.filter(pa.array(~apart)))
            for i in np.flatnonzero(apart).tolist():
                yield from self._process(some.slice(i, 1))

    def _apart(self, rows: pa.RecordBatch) -> Mask | None:
        """The rows of keys of which some sum may leave its range; None if there are none."""
        columns = self.key_columns(rows)
        codes = key_codes(columns, dense=True)
        firsts = first_of_each(codes)
        keys = take_rows(columns, firsts)
        open_ = self.backend.keys(keys, pa.array(np.zeros(len(firsts), np.int64)))
        stored = self.columns.accumulators(open_)
        return self.columns.near_end(
            codes, self.columns.given(rows), np.arange(len(firsts)), stored
        )

    def _process(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        windows = self.spec.options.windows
        assert isinstance(windows, CountWindow)
        if not rows.num_rows:
            return
        columns = self.key_columns(rows)
        nothing = np.zeros(rows.num_rows, np.int64)
        open_ = self.backend.keys(columns, pa.array(nothing))
        before = self.columns.rows.accumulators(open_).fill_null(0).to_numpy()
        places = before + ranks(key_codes(columns))
        numbers = places // windows.n
        full = np.flatnonzero(places % windows.n == windows.n - 1)
        keys = open_ if not numbers.any() else self.backend.keys(columns, pa.array(numbers))
        times = np.full(rows.num_rows, self.task.processing_time, np.int64)
        _, entered = self.add(keys, rows, times)
        if not len(full) or not entered.all():
            return
        chosen = take_rows(columns, full)
        done = self.backend.keys(chosen, pa.array(numbers[full]))
        yield self.result(chosen, None, None, self.columns.results(done))
        self.backend.delete(done)
        self._move(columns, numbers)

    def _move(self, columns: Sequence[pa.Array[Any]], numbers: Times) -> None:
        """Make the windows that are open now those under 0."""
        later = np.flatnonzero(numbers > 0)
        if not len(later):
            return
        chosen = take_rows(columns, later)
        source = self.backend.keys(chosen, pa.array(numbers[later]))
        there = np.flatnonzero(self.columns.exist(source))
        if not len(there):
            return
        chosen = take_rows(chosen, there)
        spaces = numbers[later][there]
        source = self.backend.keys(chosen, pa.array(spaces))
        # A key's open window is met once per row: it moves once.
        first = np.unique(key_codes(chosen), return_index=True)[1]
        chosen = take_rows(chosen, first)
        source = self.backend.keys(chosen, pa.array(spaces[first]))
        target = self.backend.keys(chosen, pa.array(np.zeros(len(first), np.int64)))
        self.columns.merge(target, self.columns.accumulators(source))
        self.backend.delete(source)


def make_operator(
    spec: WindowSpec, late_tag: str | None = None, *, combined: bool = False
) -> WindowOperator:
    """Make the operator of a specification; the parameters are those of `WindowOperator`."""
    kind: Any = TumblingOperator
    if spec.shares:
        kind = SlicedOperator
    elif isinstance(spec.options.windows, Session):
        kind = SessionOperator
    elif isinstance(spec.options.windows, CountWindow):
        kind = CountOperator
    elif isinstance(spec.options.windows, Global):
        kind = GlobalOperator
    operator: WindowOperator = kind(spec, late_tag, combined=combined)
    return operator
