"""The work of keyed operators inside a task: calling a function, or keeping aggregates.

Thread safety: a body belongs to its task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pystate.backend.keyed import KeyedStateBackend
from pystate.errors import StateOverflowError
from pystate.functions.base import RuntimeContext
from pystate.operator.co_shapes import InputName
from pystate.operator.combined import LATE, LOW, WEIGHT, total_weight, whole_sums
from pystate.operator.event_time import event_times
from pystate.operator.function_spec import FunctionSpec
from pystate.operator.invalid import InvalidRows
from pystate.operator.latest import LatestRows
from pystate.operator.output import OutputColumns
from pystate.operator.runtime import FunctionRuntime
from pystate.spark.tasks.range_task import OperatorPlan, RangeTask
from pystate.state.declaration import State
from pystate.state.key_batch import KeyBatch, overflowed
from pystate.state.value import ValueState
from pystate.types.state_type import StateType

__all__ = ["AggregateBody", "FunctionBody", "Operation", "RoutedBody", "StateUpdate", "UpdatesBody"]

#: Keys of an aggregate's output batch.
_OUTPUT_KEYS = 65_536


class FunctionBody:
    """A user's function over the range's rows.

    Parameters
    ----------
    spec : FunctionSpec
        The function.
    task : RangeTask
        The range.
    """

    def __init__(self, spec: FunctionSpec, task: RangeTask) -> None:
        self._spec = spec
        self._task = task

    def open(self) -> None:
        """Give the function its handles and call its `open`."""
        plan, state = self._task.plan, self._task.state
        context = RuntimeContext(
            uid=plan.operator.uid,
            epoch=plan.epoch,
            key_group_range=(state.first_key_group, state.last_key_group),
            parallelism=plan.parallelism,
            max_parallelism=plan.operator.max_parallelism,
            processing_time=plan.processing_time_ms,
        )
        self._runtime = self._made(context)
        self._runtime.open()
        self._runtime.notify(plan.news)

    def _made(self, context: RuntimeContext, **options: Any) -> FunctionRuntime:
        task = self._task
        return FunctionRuntime(
            self._spec,
            task.backend,
            context,
            task.write_side,
            time=task.plan.time,
            drain=task.plan.drain,
            invalid=self._invalid(),
            **options,
        )

    def _invalid(self) -> dict[InputName, InvalidRows]:
        """What takes the input's invalid rows out."""
        return {"left": self._task.invalid()}

    def process(self, rows: Any) -> Iterator[Any]:
        """Call the function for some rows."""
        return self._runtime.process(rows)

    def finish(self) -> Iterator[Any]:
        """Call the function for rows that were held back and for timers that are due."""
        yield from self._runtime.finish()
        self._task.note_event_time(self._runtime.max_event_time, self._runtime.late_rows)

    def close(self) -> None:
        """Take the handles away and call the function's `close`."""
        self._runtime.close()


class RoutedBody(FunctionBody):
    """A `KeyedProcessFunction` over an RDD's elements: one call per row; results are not converted.

    Parameters
    ----------
    spec : FunctionSpec
        The function.
    arrays : callable
        Turns a list of keys into key columns.
    task : RangeTask
        The range.
    """

    def __init__(
        self,
        spec: FunctionSpec,
        arrays: Callable[[Sequence[Any]], list[pa.Array[Any]]],
        task: RangeTask,
    ) -> None:
        super().__init__(spec, task)
        self._arrays = arrays

    def process(self, rows: Sequence[Any]) -> Iterator[list[Any]]:
        """Call the function for each `Routed` element."""
        keys = [routed.key for routed in rows]
        elements = [routed.row for routed in rows]
        return self._runtime.process_elements(self._arrays(keys), keys, elements)


Operation = Literal["add", "min", "max"]


class StateUpdate(NamedTuple):
    """How a batch updates one state of an aggregate."""

    state: str
    operation: Operation
    source: str | None
    """The input column; None to add one per row."""
    shown: str
    """The aggregate, as the user wrote it."""


class AggregateBody:
    """`aggregate(...)`: the core updates the states; each key with rows is emitted once.

    Parameters
    ----------
    task : RangeTask
        The range.
    updates : sequence of StateUpdate
        What each batch does to the states.
    results : sequence of (state, divisor state or None)
        The result columns: a state, or the quotient of two.
    output : OutputColumns
        The key columns, then the results.
    event_time : str, optional
        The column of the rows' event time.
    combined : bool
        Whether rows were combined before the shuffle (`pystate.operator.combined`).
    """

    def __init__(
        self,
        task: RangeTask | Recomputed,
        updates: Sequence[StateUpdate],
        results: Sequence[tuple[str, str | None]],
        output: OutputColumns,
        event_time: str | None = None,
        *,
        combined: bool = False,
    ) -> None:
        self._task = task
        self._updates = updates
        self._results = results
        self._output = output
        self._event_time = event_time
        self._combined = combined
        self._keys = [name for name, _ in task.plan.key_schema]
        #: The keys of which only nulls came, so that no state was written; None if there are none.
        self._nulls: KeyedStateBackend | None = None

    def open(self) -> None:
        """Register the states."""
        backend = self._task.backend
        self.open_times()
        self._handles = {
            name: backend.register(name, declaration)
            for name, declaration in self._task.plan.operator.states.items()
        }

    def process(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Update the states; nothing is emitted yet."""
        rows = self.timely(rows)
        columns = [rows.column(name) for name in self._keys]
        keys = self._task.backend.keys(columns)
        nulls: Any = True
        for update in self._updates:
            try:
                values = self._values(update.source, rows)
                getattr(self._handles[update.state], update.operation)(keys, values)
            except StateOverflowError as error:
                found = overflowed(error, keys)
                raise StateOverflowError(self._beyond(update, found)) from None
            if nulls is not None:
                some = isinstance(values, pa.Array) and values.null_count
                nulls = pc.and_(values.is_null(), nulls) if some else None
        if nulls is not None and nulls.true_count:
            self._note_nulls([column.filter(nulls) for column in columns])
        return iter(())

    def open_times(self) -> None:
        """Begin to take event times."""
        self._invalid = self._task.invalid(event_time=self._event_time)

    def without_times(self) -> None:
        """Take no event times: the rows have come before."""
        self._event_time = None

    def timely(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Take the event times of some rows; return those that can be processed."""
        rows = self._invalid.timely(rows, self._event_time)
        if self._combined:
            self._task.note_combined(rows.num_rows, total_weight(rows))
        self.note_event_time(rows)
        return rows

    def _note_nulls(self, columns: Sequence[pa.Array[Any]]) -> None:
        """Remember keys of rows whose values are all null."""
        if self._nulls is None:
            key = self._task.plan.operator.key
            self._nulls = KeyedStateBackend(
                [(name, type_.ddl) for name, type_ in key], uid="keys of nulls", max_parallelism=1
            )
            self._only_nulls = self._nulls.register("only", ValueState("boolean"))
        self._only_nulls.update_all(self._nulls.keys(columns), True)

    def _values(self, source: str | None, rows: pa.RecordBatch) -> Any:
        if source is None:
            return rows.column(WEIGHT) if self._combined else 1
        values = rows.column(source)
        if source + LOW in rows.schema.names:
            return whole_sums(values, rows.column(source + LOW))
        return values

    def _beyond(self, update: StateUpdate, key: str) -> str:
        plan = self._task.plan
        kind = plan.operator.states[update.state].columns(update.state)[0].value_type.ddl
        wider = "decimal(38,0)" if kind == "long" else "double, which rounds"
        return (
            f"{plan.describe()}: {update.shown} of {key} is beyond the range of {kind}; the epoch "
            f"is not published. Cast the column to {wider}, and keep the aggregate under another "
            f"uid: what {plan.operator.uid!r} has stored stays {kind}"
        )

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Emit every key that had rows, with its current results."""
        for keys in self._task.backend.changed(_OUTPUT_KEYS):
            if self._nulls is not None:
                self._note_written(self._nulls.keys(keys.key_arrays()))
            yield from self._emitted(keys)
        if self._nulls is None:
            return
        for noted in self._nulls.changed(_OUTPUT_KEYS):
            only = self._only_nulls.values(noted)
            columns = [column.filter(only.fill_null(False)) for column in noted.key_arrays()]
            if len(columns[0]):
                yield from self._emitted(self._task.backend.keys(columns))

    def _note_written(self, keys: KeyBatch) -> None:
        """Forget keys of which other values have come, too."""
        there = self._only_nulls.values(keys).is_valid()
        if there.true_count:
            assert self._nulls is not None
            columns = [column.filter(there) for column in keys.key_arrays()]
            self._only_nulls.update_all(self._nulls.keys(columns), False)

    def _emitted(self, keys: KeyBatch) -> Iterator[pa.RecordBatch]:
        arrays = [*keys.key_arrays(), *(self._result(keys, *names) for names in self._results)]
        yield from self._output.from_value(
            pa.RecordBatch.from_arrays(arrays, names=list(self._output.names))
        )

    def close(self) -> None:
        """Free what keys without values were kept in."""
        if self._nulls is not None:
            self._nulls.close()
            self._nulls = None

    def note_event_time(self, rows: pa.RecordBatch) -> None:
        """Take the event times of some rows, if they have any."""
        if self._event_time is None or self._event_time not in rows.schema.names:
            return
        column = rows.column(self._event_time)
        times = event_times(column, f"event-time column {self._event_time!r}")
        time, late = self._task.plan.time, 0
        if self._combined:
            late = total_weight(rows, LATE)
        elif time is not None and time.late_bound_ms is not None:
            bound = pa.scalar(time.late_bound_ms, pa.int64())
            late = pc.sum(pc.call_function("less", [times, bound])).as_py() or 0
        self._task.note_event_time(pc.max(times).as_py(), late)

    def _result(self, keys: KeyBatch, state: str, divisor: str | None) -> pa.Array[Any]:
        values: pa.Array[Any] = self._handles[state].values(keys)
        if divisor is not None:
            # Without a value the sum is null, and so is the quotient.
            counts = self._handles[divisor].values(keys).cast(values.type)
            values = pc.divide(values, counts)
        return values


class UpdatesBody:
    """`aggregate(...)` over updates, of which a later one replaces the earlier one of its identity.

    What an update replaces has to leave the aggregates again. So the newest row of each identity is
    kept, and the aggregates of a key that changes are computed from its rows anew, by the same
    `AggregateBody`, over a table of its own.

    Parameters
    ----------
    make : callable
        Makes the body that aggregates rows, of a task.
    states : mapping
        Its states.
    identity : sequence of str
        The columns that say which row replaces which, beside the key.
    columns : sequence of (name, StateType)
        All columns that arrive, but those of the key and the event time.
    task : RangeTask
        The range.
    """

    def __init__(
        self,
        make: Callable[[Any], AggregateBody],
        states: Mapping[str, State[Any]],
        identity: Sequence[str],
        columns: Sequence[tuple[str, StateType]],
        task: RangeTask,
    ) -> None:
        self._make = make
        self._states = states
        self._identity = identity
        self._columns = columns
        self._task = task
        self._keys = [name for name, _ in task.plan.key_schema]

    def open(self) -> None:
        """Register the state."""
        self._arrival = self._make(self._task)
        self._arrival.open_times()
        owner = f"operator {self._task.plan.operator.uid!r}"
        self._latest = LatestRows(
            self._task.backend, self._keys, self._identity, self._columns, owner
        )

    def process(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take some updates; nothing is emitted yet."""
        self._latest.hold(self._arrival.timely(rows))
        return iter(())

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Emit every key of which an update came, with its current results."""
        merged = self._latest.merge()
        if merged is None:
            return
        plan = self._task.plan
        count = np.flatnonzero(merged.counts)
        owners: Any = pa.array(merged.owners[count])
        place: Any = pa.array(count)
        keys = [column.take(owners) for column in merged.keys.key_arrays()]
        own = [merged.rows[name].take(place) for name, _ in self._columns]
        names = [*self._keys, *(name for name, _ in self._columns)]
        operator = replace(plan.operator, states=self._states)
        with closing(KeyedStateBackend.of(operator)) as backend:
            body = self._make(Recomputed(replace(plan, operator=operator), backend))
            body.without_times()
            body.open()
            try:
                yield from body.process(pa.RecordBatch.from_arrays([*keys, *own], names=names))
                yield from body.finish()
            finally:
                body.close()

    def close(self) -> None:
        """Nothing is held."""


class Recomputed(NamedTuple):
    """The task of a body that aggregates the rows of some keys anew."""

    plan: OperatorPlan
    backend: KeyedStateBackend

    def note_event_time(self, latest_ms: int | None, late_rows: int) -> None:
        """Nothing: the rows have come before."""

    def note_combined(self, came: int, rows: int) -> None:
        """Nothing: no row was combined."""

    def invalid(self, *, event_time: str | None) -> InvalidRows:
        """No row is invalid: they have come before."""
        return InvalidRows(f"operator {self.plan.operator.uid!r}")
