"""Windows without overlap, of which each is a row of its own: tumbling, and the global one.

The row's namespace is the window's start. Its timer at the window's end emits it; where rows may
come late, another timer at the end of the allowed lateness removes it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from pystate.checkpoint.refs import INPUT
from pystate.operators.runtime.task import TaskContext
from pystate.operators.windows.assigners import Aligned, Tumbling
from pystate.operators.windows.grid import Grid, Mask, Times, grid_of
from pystate.operators.windows.operator import FIRED_ROWS, WindowOperator
from pystate.state.key_batch import KeyBatch


class TumblingOperator(WindowOperator):
    """See `WindowOperator`."""

    def open(self, task: TaskContext) -> None:
        """Register the states."""
        super().open(task)
        windows = self.spec.options.windows
        assert isinstance(windows, Aligned) and isinstance(windows, Tumbling)
        self._grid: Grid = grid_of(windows, self.lateness)
        self._final = self.spec.options.emit == "final"

    def process(self, rows: pa.RecordBatch, input: str = INPUT) -> Iterator[pa.RecordBatch]:
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

    def _register(self, keys: KeyBatch, ends: Times, new: Mask, taken: Mask) -> None:
        """Register timers of new windows, and of those that were over and have changed."""
        bound = self.task.late_bound
        if self._final:
            if bound is not None and self.domain == "event":
                new = new | (taken & (ends <= bound))
        else:
            ends = ends + self.lateness
        if new.any():
            self.backend.register_timers(keys, self.domain, pa.array(ends, mask=~new))

    def fire(self, watermark: int | None) -> Iterator[pa.RecordBatch]:
        """Emit the windows that are over, and remove those that are done."""
        if not self._final:
            for keys in self.changed():
                yield self._results(keys)
        self.note_early()
        until = watermark if self.domain == "event" else self.task.processing_time
        while until is not None:
            due = self.backend.due_timers(self.domain, until, FIRED_ROWS)
            if due is None:
                break
            due.fire_all()
            yield from self._fire(due.keys, due.timestamps)
        for keys in self.due_early():
            yield self._results(keys)

    def _fire(self, keys: KeyBatch, times: Times) -> Iterator[pa.RecordBatch]:
        if not self._final:
            self.backend.delete(keys)
            return
        if not self.lateness:
            yield self._results(keys)
            self.backend.delete(keys)
            return
        over = times == self._grid.first_end(_spaces(keys))
        if over.any():
            fired = self.chosen(keys, over)
            yield self._results(fired)
            self.backend.register_timers(fired, self.domain, times[over] + self.lateness)
        if not over.all():
            self.backend.delete(self.chosen(keys, ~over))

    def _results(self, keys: KeyBatch) -> pa.RecordBatch:
        starts = _spaces(keys)
        ends = self._grid.first_end(starts)
        return self.result(keys.key_arrays(), starts, ends, self.columns.results(keys))


class GlobalOperator(WindowOperator):
    """One window per key, which never ends; it has neither a start nor an end."""

    def process(self, rows: pa.RecordBatch, input: str = INPUT) -> Iterator[pa.RecordBatch]:
        """Add rows to their key's window."""
        rows, times = self.timed(rows)
        if rows.num_rows:
            # The default namespace is that of timers and rows which are no windows.
            spaces = pa.array(np.zeros(rows.num_rows, np.int64))
            self.add(self.backend.keys(self.key_columns(rows), spaces), rows, times)
        return iter(())

    def fire(self, watermark: int | None) -> Iterator[pa.RecordBatch]:
        """Emit the windows that have changed, in this epoch or since their interval began."""
        if self.spec.options.emit == "update":
            for keys in self.changed():
                yield self._results(keys)
        self.note_early()
        for keys in self.due_early():
            yield self._results(keys)

    def _results(self, keys: KeyBatch) -> pa.RecordBatch:
        return self.result(keys.key_arrays(), None, None, self.columns.results(keys))


def _spaces(keys: KeyBatch) -> Times:
    """The namespaces of windows."""
    found: Times = keys.namespaces().to_numpy()
    return found
