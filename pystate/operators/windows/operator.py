"""What all windowed operators share: times of rows, late rows, and result batches.

Thread safety: as `pystate.operators.runtime.task`.

Invariants
----------
1. A window is over when the watermark has reached its end, which is exclusive: a row that is not
   late by the rule of functions never comes too late for its window.
2. A row is too late if for all of its windows ``end + allowed lateness <= late bound``. At that
   watermark the window's state is removed, so what is too late can never make a window anew.
   REQUIRES: the late bound of an epoch is not below the watermark of the one before.
3. A window that is over and is changed by a late row is emitted again at the end of that epoch.
4. Windows fire in batches of bounded size, whatever their number.
5. A window is removed only after the result batch with it was yielded and used: of windows whose
   rows are kept these are read then.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pystate.checkpoint.refs import INPUT
from pystate.operators.runtime.event_time import event_times
from pystate.operators.runtime.grouping import keys_at
from pystate.operators.runtime.partial_rows import LATE, TIME, total_weight
from pystate.operators.runtime.task import Operator, TaskContext
from pystate.operators.windows.columns import Refused
from pystate.operators.windows.grid import Mask, Times, instants
from pystate.operators.windows.partial_slices import accumulators
from pystate.operators.windows.specification import END, MOST_US_MS, START, WindowSpec
from pystate.state.key_batch import KeyBatch
from pystate.tables.timers import DueTimers
from pystate.types.keys import leaf

#: Windows that fire at once.
FIRED_ROWS = 32_768


class WindowOperator(Operator):
    """Base of the operators for the kinds of windows.

    Rows that are too late for all of their windows go to the side output `late_tag`, and are
    counted by the metric ``dropped_rows``. Rows may have been `combined` before they come
    (`partial_slices`).
    """

    looks_up_keys = False

    def __init__(
        self, spec: WindowSpec, late_tag: str | None = None, *, combined: bool = False
    ) -> None:
        self.spec = spec
        self._latest_before: int | None = None
        self.domain: Any = "processing" if spec.options.event_time is None else "event"
        self.lateness = spec.options.lateness_ms
        self.final = spec.options.emit == "final"
        self.asks_for_changed = not self.final or spec.options.early_ms is not None
        self._late_tag = late_tag
        self._combined = combined

    def open(self, task: TaskContext) -> None:
        """Register the states."""
        self.task = task
        self.backend = task.backend
        self.owner = task.owner
        self.invalid = task.invalid(self.spec.key, event_time=TIME if self._combined else None)
        self.late = task.late(write=task.writer(self._late_tag))
        if self._combined:
            self.invalid.weight = total_weight
        self.columns = self.spec.kept(task.backend, task.owner)
        self._schema = self.spec.schema(task.backend.key)

    def process(self, rows: pa.RecordBatch, input: str = INPUT) -> Iterator[pa.RecordBatch]:
        """Add rows to their windows, of a table on disk as many at a time as fit in memory."""
        begin, end = 0, rows.num_rows
        while True:
            fits = self.backend.below.most_keys(max(end - begin, 1))
            yield from self.take(rows if fits >= end else rows.slice(begin, fits))
            begin += fits
            if begin >= end:
                return

    @abstractmethod
    def take(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Add rows to their windows; return what this emits."""

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Emit the windows that are over, and others that are to be emitted."""
        task = self.task
        yield from self.fire(task.watermark)
        task.metrics["dropped_rows"] = self.late.past_rows
        if task.tells_kept:
            task.kept = (self.oldest(),)

    def fire(self, watermark: int | None) -> Iterator[pa.RecordBatch]:
        """See `finish`; of windows in processing time the watermark does not matter."""
        if not self.final:
            for keys in self.changed():
                yield self.emitted(keys)
        self.note_early()
        yield from self.fire_until(self.time_reached(watermark))
        for keys in self.due_early():
            yield self.emitted(keys)

    def fire_until(self, until: int | None) -> Iterator[pa.RecordBatch]:
        """Emit the windows that are over at a time, and remove those that are done, if any are."""
        return iter(())

    def emitted(self, keys: KeyBatch) -> pa.RecordBatch:
        """The results of some windows; those of this base have neither a start nor an end."""
        return self.result(keys.key_arrays(), None, None, self.columns.results(keys))

    def time_reached(self, watermark: int | None) -> int | None:
        """Up to where time has come by the windows' clock."""
        return watermark if self.domain == "event" else self.task.processing_time

    def due(self, until: int | None) -> Iterator[DueTimers]:
        """The timers of the windows' clock that are due, some at a time; they have fired."""
        while until is not None:
            due = self.backend.due_timers(self.domain, until, self.most_fired)
            if due is None:
                return
            due.fire_all()
            yield due

    @property
    def most_fired(self) -> int:
        """How many windows fire at once."""
        return self.backend.below.most_keys(FIRED_ROWS)

    def oldest(self) -> int | None:
        """The start of the earliest window that is kept, if `WindowOptions.keeps`."""
        return None

    def close(self) -> None:
        """Free what is held besides the state."""
        columns = getattr(self, "columns", None)
        if columns is not None:
            columns.close()

    # -- rows

    def timed(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, Times]:
        """The rows that have a time, and their times."""
        column = self.spec.options.event_time
        if self._combined:
            self.task.combined(rows.num_rows, total_weight(rows))
            column = None if column is None else TIME
        if column is None:
            return rows, np.full(rows.num_rows, self.task.processing_time, np.int64)
        array = event_times(rows.column(column), f"{self.owner}: event-time column {column!r}")
        first, last = self.spec.reach()
        rows, array = self.invalid.timed(rows, array, first, last, known=True)
        times: Times = array.to_numpy()
        self._latest_before = self.task.latest.get(INPUT)
        if len(times) and self._combined:
            # Of the rows that one stands for, some may be late.
            self.task.saw(int(times.max()), total_weight(rows, LATE))
        elif len(times):
            self.late.among(array)
        return rows, times

    def _weight(self, rows: pa.RecordBatch) -> int:
        """How many rows of the input some rows stand for."""
        return total_weight(rows) if self._combined else rows.num_rows

    def add(self, keys: KeyBatch, rows: pa.RecordBatch, times: Times) -> tuple[Mask, Mask]:
        """Add rows to the aggregates of their keys.

        Return where a row began a window or slice, see `Columns.add`, and which rows were taken.
        """
        if not self._combined:
            refused = np.zeros(len(keys), np.uint8)
            fresh = self.columns.add(keys, rows, refused)
        else:
            given, beyond = accumulators(self.spec, rows)
            refused = self.columns.codes_of(beyond, len(keys))
            fresh = self.columns.add_combined(keys, given, refused)
        if refused.any():
            self.refuse(rows, times, refused)
        return fresh, refused == 0

    def refuse(self, rows: pa.RecordBatch, times: Times, refused: Refused) -> None:
        """Take rows out whose sums would leave their range.

        REQUIRES: these are all rows of a batch whose times count, the last that were `timed`.
        """
        self.invalid.without(rows, refused != 0, lambda i: self.columns.why(int(refused[i])))
        if self.spec.options.event_time is not None:
            self.untime(rows, times, refused != 0)

    def untime(self, rows: pa.RecordBatch, times: Times, bad: Mask) -> None:
        """Have bad rows of the last that were `timed` not count, for event time nor as late.

        What was too late may be missing: it is below the watermark, and does not matter to it.
        """
        task, rest = self.task, times[~bad]
        if self._latest_before is None:
            task.latest.pop(INPUT, None)
        else:
            task.latest[INPUT] = self._latest_before
        if len(rest):
            task.saw(int(rest.max()))
        if self._combined:
            task.late_rows -= total_weight(rows.filter(pa.array(bad)), LATE)
        else:
            task.late_rows -= self.late.count(pa.array(times[bad]))

    def in_time(self, rows: pa.RecordBatch, last_ends: Times) -> tuple[pa.RecordBatch, Mask | None]:
        """The rows that are not too late for the last of their windows; see `LateRows`."""
        if self.domain != "event":
            return rows, None
        return self.late.without_past(rows, last_ends, self.lateness, self._weight)

    def key_columns(self, rows: pa.RecordBatch) -> list[pa.Array[Any]]:
        """The key columns of some rows."""
        return [leaf(rows, name) for name in self.spec.key]

    # -- results

    def result(
        self,
        keys: Sequence[pa.Array[Any]],
        starts: Times | None,
        ends: Times | None,
        results: Sequence[pa.Array[Any]],
    ) -> pa.RecordBatch:
        """A batch of results; without starts and ends these are null."""
        rows = len(keys[0])
        arrays = [*keys, self._times(starts, rows), self._times(ends, rows), *results]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _times(self, times: Times | None, rows: int) -> pa.Array[Any]:
        type_ = self.spec.time_type
        if times is None:
            nothing: pa.Array[Any] = pa.array([None] * rows, type_)
            return nothing
        if not pa.types.is_timestamp(type_):
            return pa.array(times, pa.int64())
        if self.spec.options.dates_zone is not None:
            times = instants(self.spec.options.dates_zone, times)
        # A window of processing time may end after the last microsecond of 64 bits.
        micros = np.clip(times, -MOST_US_MS, MOST_US_MS) * 1000
        column: pa.Array[Any] = pa.array(micros, pa.int64()).cast(type_)
        return column

    @property
    def names(self) -> tuple[str, str]:
        """The names of the columns that say which window it is."""
        return START, END

    # -- early firings

    def changed(self) -> Iterator[KeyBatch]:
        """The windows or slices that this epoch's rows have changed."""
        for keys in self.backend.changed(self.most_fired):
            # Rows of the default namespace are no windows, and a timer may outlive its window.
            there = np.asarray(keys.namespaces().is_valid()) & self.columns.exist(keys)
            if there.any():
                yield self.chosen(keys, there)

    def chosen(self, keys: KeyBatch, which: Mask) -> KeyBatch:
        """Some keys of a batch."""
        return keys if which.all() else keys_at(self.backend, keys, np.flatnonzero(which))

    def next_early(self) -> int:
        """When windows that change now are emitted early."""
        interval = self.spec.options.early_ms
        assert interval is not None
        return (self.task.processing_time // interval + 1) * interval

    def note_early(self) -> None:
        """Have the windows that this epoch changed emitted early, at the next interval."""
        if self.spec.options.early_ms is not None:
            for keys in self.changed():
                self.backend.register_timers(keys, "processing", self.next_early())

    def due_early(self) -> Iterator[KeyBatch]:
        """The changed windows or slices whose interval is over; each once."""
        if self.spec.options.early_ms is None:
            return
        while True:
            due = self.backend.due_timers("processing", self.task.processing_time, self.most_fired)
            if due is None:
                return
            due.fire_all()
            # What this epoch changed is emitted now, and need not be emitted again.
            self.backend.delete_timers(due.keys, "processing", self.next_early())
            there = self.columns.exist(due.keys)
            if there.any():
                yield self.chosen(due.keys, there)
