"""Aggregates of keys as an operator: the core updates states, and keys with rows are emitted.

Thread safety: as `pystate.operators.runtime.task`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pystate.checkpoint.refs import INPUT
from pystate.operators.runtime.event_time import event_times
from pystate.operators.runtime.output import OutputColumns
from pystate.operators.runtime.partial_rows import LATE, LOW, WEIGHT, total_weight, whole_sums
from pystate.operators.runtime.row_operator import LatestRows, Merged
from pystate.operators.runtime.task import Operator, TaskContext
from pystate.state.declaration import State
from pystate.state.key_batch import ADD, MAX, MIN, KeyBatch
from pystate.state.operator_spec import OperatorSpec
from pystate.state.value import ValueState
from pystate.tables.backend import KeyedStateBackend
from pystate.types.state_type import StateType

_STEPS = {"add": ADD, "min": MIN, "max": MAX}
#: Keys of an aggregate's output batch.
_OUTPUT_KEYS = 65_536


Operation = Literal["add", "min", "max"]


class StateUpdate(NamedTuple):
    """How a batch updates one state of an aggregate."""

    state: str
    operation: Operation
    source: str | None
    """The input column; None to add one per row."""
    shown: str
    """The aggregate, as the user wrote it."""


@dataclass(frozen=True)
class Aggregates:
    """What is aggregated; pickled for the workers."""

    key: tuple[str, ...]
    states: Mapping[str, State[Any]]
    updates: tuple[StateUpdate, ...]
    """What each batch does to the states."""
    results: tuple[tuple[str, str | None], ...]
    """The result columns: a state, or the quotient of two."""
    output: OutputColumns
    """The key columns, then the results."""
    event_time: str | None = None


class AggregateOperator(Operator):
    """`aggregate(...)`: each key with rows is emitted once, with its current results.

    Rows may have been `combined` before the shuffle (`partial_rows`).
    """

    asks_for_changed = True

    def __init__(self, spec: Aggregates, *, combined: bool = False) -> None:
        self._spec = spec
        self._combined = combined
        #: The keys of which only nulls came, so that no state was written; None if there are none.
        self._nulls: KeyedStateBackend | None = None

    def open(self, task: TaskContext) -> None:
        """Register the states."""
        backend = self.begin(task)
        self._handles = {
            name: backend.register(name, declaration)
            for name, declaration in backend.declarations.items()
        }

    def begin(self, task: TaskContext) -> KeyedStateBackend:
        """Begin to take event times."""
        self._task = task
        self._backend = task.backend
        self._late = task.late()
        self._invalid = task.invalid(self._spec.key, event_time=self._spec.event_time)
        if self._combined:
            self._invalid.weight = total_weight
        return task.backend

    def process(self, rows: pa.RecordBatch, input: str = INPUT) -> Iterator[pa.RecordBatch]:
        """Update the states; nothing is emitted yet."""
        rows = self._timely(rows)
        given, codes = self._updates(rows)
        if codes.any():
            rows = self._without(rows, codes)
            given, codes = self._updates(rows)
        columns = [rows.column(name) for name in self._spec.key]
        keys = self._backend.keys(columns)
        steps = [
            self._handles[update.state].step(keys, _STEPS[update.operation], values)
            for update, values in zip(self._spec.updates, given, strict=True)
        ]
        keys.apply_all(steps, 0, codes.ctypes.data)
        if codes.any():
            taken: Any = pa.array(codes == 0)
            rows = self._without(rows, codes)
            given = [v.filter(taken) if isinstance(v, pa.Array) else v for v in given]
            columns = [column.filter(taken) for column in columns]
        self._note_event_time(rows)
        nulls: Any = True
        for values in given:
            some = isinstance(values, pa.Array) and values.null_count
            nulls = pc.and_(values.is_null(), nulls) if some else None
            if nulls is None:
                return iter(())
        if nulls.true_count:
            self._note_nulls([column.filter(nulls) for column in columns])
        return iter(())

    def _updates(self, rows: pa.RecordBatch) -> tuple[list[Any], Any]:
        """What rows give to each state, and 1 + a state's column where that is too much already."""
        given, codes = [], np.zeros(rows.num_rows, np.uint8)
        for update in self._spec.updates:
            values, beyond = self._values(update.source, rows)
            given.append(values)
            if beyond is not None:
                codes[beyond & (codes == 0)] = 1 + self._handles[update.state].column
        return given, codes

    def _without(self, rows: pa.RecordBatch, codes: Any) -> pa.RecordBatch:
        """The rows that do not take a sum beyond its range."""
        updates = self._spec.updates
        of = {1 + self._handles[u.state].column: u for u in updates if u.operation == "add"}

        def why(i: int) -> str:
            return self._beyond(of[int(codes[i])])

        rest: pa.RecordBatch = self._invalid.without(rows, codes != 0, why)
        return rest

    def timely(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Take the event times of some rows; return those that can be processed."""
        rows = self._timely(rows)
        self._note_event_time(rows)
        return rows

    def _timely(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        rows = self._invalid.timely(rows, self._spec.event_time)
        if self._combined:
            self._task.combined(rows.num_rows, total_weight(rows))
        return rows

    def _note_nulls(self, columns: Sequence[pa.Array[Any]]) -> None:
        """Remember keys of rows whose values are all null."""
        if self._nulls is None:
            self._nulls = KeyedStateBackend(
                [(name, type_.ddl) for name, type_ in self._backend.key],
                uid="keys of nulls",
                max_parallelism=1,
            )
            self._only_nulls = self._nulls.register("only", ValueState("boolean"))
        self._only_nulls.update_all(self._nulls.keys(columns), True)

    def _values(self, source: str | None, rows: pa.RecordBatch) -> tuple[Any, Any]:
        if source is None:
            return (rows.column(WEIGHT) if self._combined else 1), None
        values = rows.column(source)
        if source + LOW in rows.schema.names:
            return whole_sums(values, rows.column(source + LOW))
        return values, None

    def _beyond(self, update: StateUpdate) -> str:
        declared = self._backend.declarations[update.state]
        kind = declared.columns(update.state)[0].value_type.ddl
        wider = "decimal(38,0)" if kind == "long" else "double, which rounds"
        return (
            f"would take {update.shown} beyond the range of {kind} (to keep such sums, cast the "
            f"column to {wider}, and keep the aggregate under another uid: what "
            f"{self._task.uid!r} has stored stays {kind})"
        )

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Emit every key that had rows, with its current results."""
        for keys in self._backend.changed(_OUTPUT_KEYS):
            if self._nulls is not None:
                self._note_written(self._nulls.keys(keys.key_arrays()))
            yield from self._emitted(keys)
        if self._nulls is None:
            return
        for noted in self._nulls.changed(_OUTPUT_KEYS):
            only = self._only_nulls.values(noted)
            columns = [column.filter(only.fill_null(False)) for column in noted.key_arrays()]
            if len(columns[0]):
                yield from self._emitted(self._backend.keys(columns))

    def _note_written(self, keys: KeyBatch) -> None:
        """Forget keys of which other values have come, too."""
        there = self._only_nulls.values(keys).is_valid()
        if there.true_count:
            assert self._nulls is not None
            columns = [column.filter(there) for column in keys.key_arrays()]
            self._only_nulls.update_all(self._nulls.keys(columns), False)

    def _emitted(self, keys: KeyBatch) -> Iterator[pa.RecordBatch]:
        arrays = [*keys.key_arrays(), *(self._result(keys, *names) for names in self._spec.results)]
        yield from self._spec.output.from_value(
            pa.RecordBatch.from_arrays(arrays, names=list(self._spec.output.names))
        )

    def close(self) -> None:
        """Free what keys without values were kept in."""
        if self._nulls is not None:
            self._nulls.close()
            self._nulls = None

    def _note_event_time(self, rows: pa.RecordBatch) -> None:
        """Take the event times of some rows, if they have any."""
        name = self._spec.event_time
        if name is None or name not in rows.schema.names:
            return
        times = event_times(rows.column(name), f"event-time column {name!r}")
        if self._combined:
            self._task.saw(pc.max(times).as_py(), total_weight(rows, LATE))
        else:
            self._late.among(times)

    def _result(self, keys: KeyBatch, state: str, divisor: str | None) -> pa.Array[Any]:
        values: pa.Array[Any] = self._handles[state].values(keys)
        if divisor is not None:
            # Without a value the sum is null, and so is the quotient.
            counts = self._handles[divisor].values(keys).cast(values.type)
            values = pc.divide(values, counts)
        return values


class UpdatesOperator(Operator):
    """`aggregate(...)` over updates, of which a later one replaces the earlier one of its identity.

    What an update replaces has to leave the aggregates again. So the newest row of each identity is
    kept, and the aggregates of a key that changes are computed from its rows anew, by an
    `AggregateOperator` over a table of its own.

    `identity` are the columns that say which row replaces which, beside the key; `columns` are all
    that arrive, but those of the key and the event time.
    """

    def __init__(
        self, spec: Aggregates, identity: Sequence[str], columns: Sequence[tuple[str, StateType]]
    ) -> None:
        self._spec = spec
        self._identity = identity
        self._columns = columns

    def open(self, task: TaskContext) -> None:
        """Register the state."""
        self._task = task
        self._arrival = AggregateOperator(self._spec)
        backend = self._arrival.begin(task)
        self._latest = LatestRows(
            backend, self._spec.key, self._identity, self._columns, task.owner
        )

    def process(self, rows: pa.RecordBatch, input: str = INPUT) -> Iterator[pa.RecordBatch]:
        """Take some updates; nothing is emitted yet."""
        self._latest.hold(self._arrival.timely(rows))
        return iter(())

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Emit every key of which an update came, with its current results."""
        for merged in self._latest.merge():
            yield from self._emitted(merged)

    def _emitted(self, merged: Merged) -> Iterator[pa.RecordBatch]:
        task, spec = self._task, self._spec
        count = np.flatnonzero(merged.counts)
        owners: Any = pa.array(merged.owners[count])
        place: Any = pa.array(count)
        keys = [column.take(owners) for column in merged.keys.key_arrays()]
        own = [merged.rows[name].take(place) for name, _ in self._columns]
        names = [*spec.key, *(name for name, _ in self._columns)]
        most = task.backend.max_parallelism
        of_rows = OperatorSpec(task.uid, task.backend.key, spec.states, max_parallelism=most)
        with closing(KeyedStateBackend.of(of_rows)) as backend:
            # The rows have come before: their times have been noted. A sum can be too large only
            # now, which counts with the task's own invalid rows; no side output takes these rows.
            operator = AggregateOperator(replace(spec, event_time=None))
            operator.open(replace(task, backend=backend, time=None, side=None))
            try:
                yield from operator.process(pa.RecordBatch.from_arrays([*keys, *own], names=names))
                yield from operator.finish()
            finally:
                operator.close()
