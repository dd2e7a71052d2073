"""Windows of a number of rows of a key.

A key's open window is the row whose namespace is 0. Where a batch completes windows, the later ones
are under 1, 2, … until its end, when the complete ones are emitted and the open one moves to 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pystate.checkpoint.refs import INPUT
from pystate.operators.windows.assigners import CountWindow
from pystate.operators.windows.grid import Mask, Times
from pystate.operators.windows.operator import FIRED_ROWS, WindowOperator, take
from pystate.state.key_batch import KeyBatch
from pystate.types.key_codes import key_codes, ranks


class CountOperator(WindowOperator):
    """See `WindowOperator`."""

    def process(self, rows: pa.RecordBatch, input: str = INPUT) -> Iterator[pa.RecordBatch]:
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
        firsts = np.unique(codes, return_index=True)[1]
        keys = [take(column, firsts) for column in columns]
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
        _, taken = self.add(keys, rows, times)
        if not len(full) or not taken.all():
            return
        chosen = [take(column, full) for column in columns]
        done = self.backend.keys(chosen, pa.array(numbers[full]))
        yield self.result(chosen, None, None, self.columns.results(done))
        self.backend.delete(done)
        self._move(columns, numbers)

    def _move(self, columns: Sequence[pa.Array[Any]], numbers: Times) -> None:
        """Make the windows that are open now those under 0."""
        later = np.flatnonzero(numbers > 0)
        if not len(later):
            return
        chosen = [take(column, later) for column in columns]
        source = self.backend.keys(chosen, pa.array(numbers[later]))
        there = np.flatnonzero(self.columns.exist(source))
        if not len(there):
            return
        chosen = [take(column, there) for column in chosen]
        spaces = numbers[later][there]
        source = self.backend.keys(chosen, pa.array(spaces))
        # A key's open window is met once per row: it moves once.
        first = np.unique(key_codes(chosen), return_index=True)[1]
        chosen = [take(column, first) for column in chosen]
        source = self.backend.keys(chosen, pa.array(spaces[first]))
        target = self.backend.keys(chosen, pa.array(np.zeros(len(first), np.int64)))
        self.columns.merge(target, self.columns.accumulators(source))
        self.backend.delete(source)

    def fire(self, watermark: int | None) -> Iterator[pa.RecordBatch]:
        """Emit changed windows that are not complete, where that is asked for."""
        if self.spec.options.emit == "update":
            for keys in self.changed():
                yield self._results(keys)
        self.note_early()
        for keys in self.due_early():
            yield self._results(keys)

    def _results(self, keys: KeyBatch) -> pa.RecordBatch:
        return self.result(keys.key_arrays(), None, None, self.columns.results(keys))
