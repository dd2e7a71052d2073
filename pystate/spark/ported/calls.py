"""How an operator calls a processor: once for each key with its rows, then for timers.

Thread safety: an object belongs to its task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at

from pystate._core import calls
from pystate.operators.runtime.call_shapes import Firing, KeyedCalls, one_batch
from pystate.operators.runtime.event_time import event_times
from pystate.operators.runtime.grouping import grouped_rows
from pystate.operators.runtime.output import written_at
from pystate.operators.runtime.rows import part_maker, python_values, readable
from pystate.spark.base.errors import StatefulProcessorError
from pystate.spark.ported.rows import row_class
from pystate.tables.timers import DueTimers, TimeDomain
from pystate.types.keys import has_null_marks
from pystate.types.state_type import StateType

#: Timers that are read from the table at once.
_TIMERS = 8_192
#: Once a processor was given so many rows, what it has yielded is output: frames may be large.
_GIVEN_ROWS = 262_144


class PortedCalls(KeyedCalls):
    """Calls a `PortedFunction`. The task's rows of the epoch are held until the input ends."""

    method = "process_rows"

    def __init__(self, run: Any, *of: Any) -> None:
        super().__init__(run, *of)
        self.most = self.function.options.form.collected
        self._batches: list[pa.RecordBatch] = []
        self.function._backend = self.backend
        timed = run.spec.event_time is not None or run.watermark_ms is not None
        self.function.note_input(run.spec.columns, timed=timed)
        self._timer_key = _KeyRows(run.spec.key, run.spec.key_types, self.function.options.key)

    def process(self, rows: pa.RecordBatch, times: pa.Array[Any] | None) -> Iterator[Any]:
        """Hold rows."""
        self._batches.append(rows)
        return iter(())

    def finish(self) -> Iterator[Any]:
        """Call the processor for each key, in order of its first row."""
        run, function, context = self.run, self.function, self.context
        function.set_times(context.processing_time, run.watermark_ms)
        if not self._batches:
            return
        rows = one_batch(self._batches)
        self._batches = []
        keys = self.backend.keys(self.key_columns(rows))
        order, firsts, ends = grouped_rows(keys)
        form, emitted, iterables = function.options.form, self.emitted, self.iterables
        process_rows, select, most = function.process_rows, keys.select, form.collected
        groups = form.groups(rows, order, ends)
        group_keys = form.keys(rows.select(list(function.options.key)).take(pa.array(firsts)))
        until = _GIVEN_ROWS
        for key, first, end, own in zip(group_keys, firsts, ends, groups, strict=True):
            select(first)
            try:
                result = process_rows(key, own, context)
                if result is not None:
                    if type(result) not in iterables:
                        self.check("process_rows", result)
                    emitted.extend(result)
            except Exception as error:
                self.note(error, "handleInputRows", f"key {key!r:.80}")
                raise
            if len(emitted) >= most or end >= until:
                yield from self.drain()
                until = end + _GIVEN_ROWS
        yield from self.drain()

    def check(self, method: str, returned: object) -> None:
        """Refuse a value that cannot be what the processor yields."""
        one = isinstance(returned, (tuple, str, bytes)) or hasattr(returned, "columns")
        if one or not isinstance(returned, Iterable):
            name = "handleExpiredTimer" if method == "on_timer" else "handleInputRows"
            self.refuse(name, returned, self.function.options.form.wanted)
        self.iterables.add(type(returned))

    def _place(self, method: str) -> str:
        """Where the processor is written."""
        kind = type(self.function._processor)
        name = "handleExpiredTimer" if method == "on_timer" else "handleInputRows"
        return f"{kind.__name__}.{name}{written_at(getattr(kind, name, None))}"

    def drain(self, method: str = "") -> Iterator[Any]:
        """Output the collected rows."""
        for piece in super().drain():
            yield self._timely(piece)

    def _timely(self, piece: Any) -> Any:
        """Refuse rows that would come too late for the operator behind this one."""
        name, watermark = self.function.options.event_time, self.run.watermark_ms
        if name is None or watermark is None or not isinstance(piece, pa.RecordBatch):
            return piece
        earliest = pc.min(event_times(piece.column(name), f"column {name!r}")).as_py()
        if earliest is not None and earliest < watermark:
            raise StatefulProcessorError(
                f"operator {self.context.uid!r}: a row was yielded whose event time {name!r} is "
                f"{earliest}, below the watermark {watermark} (milliseconds since 1970): the "
                "operators behind would drop it as late"
            )
        return piece

    def fire(self, domain: TimeDomain, until: int) -> Firing:
        """Call the processor for every timer that is due, in one pass."""
        function, firing = self.function, self.run.firing
        if domain != function.domain or function.options.initial:
            return 0
        timers, context = function._timers, self.context
        watermark = until if domain == "event" else self.run.watermark_ms
        function.set_times(context.processing_time, watermark)
        while True:
            last: DueTimers | None = None
            timers.begin(until)
            while True:
                due = self.backend.due_timers(domain, until, _TIMERS)
                if due is None:
                    break
                last = due
                yield from self.on_due(due, domain)
            timers.end()
            # A drain ends only once no timer is left.
            if not self.run.drain or domain != "event" or last is None:
                break
            # Those of the next pass have been registered only now.
            firing.check(last, len(last), domain)
        yield from self.drain()
        return 0

    def on_due(self, due: DueTimers, domain: TimeDomain) -> Firing:
        """Call the processor for some timers."""
        timers = self.function._timers
        loop = calls.TimerLoop(
            due,
            self._timer_key(due.keys.key_arrays()),
            False,
            self.function.on_timer,
            self.context,
            self.emitted,
            self.checked("on_timer", returns=True),
            firing=timers.firing,
            before=timers.before_call,
            after=timers.after_call,
        )
        while self.fired(loop, "handleExpiredTimer", to_end=True):
            yield from self.drain()
        return len(due)


class _KeyRows:
    """Makes the keys of timers, which Spark gives as rows."""

    def __init__(
        self, leaves: Sequence[str], types: Sequence[StateType], names: Sequence[str]
    ) -> None:
        self._leaves = leaves
        self._types = types
        self._row = row_class(tuple(names))

    def __call__(self, columns: Sequence[pa.Array[Any]]) -> list[Any]:
        row = self._row
        if not self._types:
            source = calls.RowSource(row, len(columns))
            named = zip(columns, self._leaves, strict=True)
            source.fill(0, [readable(column, name, _local) for column, name in named])
            return list(source.rows(0, len(columns[0])))
        values = map(_local, columns, self._leaves)
        marked = has_null_marks(self._leaves, self._types)
        makers = [part_maker(each, row_class, marked=marked) for each in self._types]
        return [
            tuple.__new__(row, [maker(rest) for maker in makers])
            for rest in map(iter, zip(*values, strict=True))
        ]


def _local(column: pa.Array[Any], name: str) -> list[Any]:
    values = python_values(column, name)
    if at.is_timestamp(column.type) and column.type.tz is not None:
        return [v if v is None else v.astimezone().replace(tzinfo=None) for v in values]
    return values
