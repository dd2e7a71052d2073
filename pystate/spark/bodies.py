"""What the keyed operators do inside a task: rows, batches, or aggregates.

Thread safety: a body belongs to its task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pystate.functions import (
    KeyedProcessFunction,
    RuntimeContext,
    StatefulFunction,
    VectorizedFunction,
    bind,
    unbind,
)
from pystate.handles import KeyBatch
from pystate.spark.columns import OutputColumns
from pystate.spark.rows import RowFactory, python_values
from pystate.spark.worker import RangeTask

__all__ = [
    "AggregateBody",
    "FunctionBody",
    "KeyRowsBody",
    "RoutedBody",
    "RowBody",
    "StateUpdate",
    "VectorBody",
]

#: Rows that a row-wise function may emit before they leave as a batch.
_OUTPUT_ROWS = 16_384
#: Keys of an aggregate's output batch.
_OUTPUT_KEYS = 65_536


_Function = TypeVar("_Function", bound=StatefulFunction)


class FunctionBody(Generic[_Function]):
    """What the shapes of a user's function share: handles, context, `open` and `close`."""

    def __init__(self, task: RangeTask, function: _Function) -> None:
        self._task = task
        self._function = function
        self._keys = [name for name, _ in task.plan.key_schema]

    def open(self) -> None:
        """Give the function its handles and call its `open`."""
        plan, state = self._task.plan, self._task.state
        self._context = RuntimeContext(
            uid=plan.uid,
            epoch=plan.epoch,
            key_group_range=(state.first_key_group, state.last_key_group),
            parallelism=plan.parallelism,
            max_parallelism=plan.max_parallelism,
            processing_time=plan.processing_time_ms,
            watermark=plan.watermark_ms,
        )
        bind(self._function, self._task.backend)
        self._function.open(self._context)

    def close(self) -> None:
        """Take the handles away and call the function's `close`."""
        unbind(self._function)
        self._function.close()

    def finish(self) -> Iterator[Any]:
        """Nothing is held back."""
        return iter(())

    def _key_columns(self, rows: pa.RecordBatch) -> list[pa.Array[Any]]:
        return [rows.column(name) for name in self._keys]


def _key_values(columns: Sequence[pa.Array[Any]]) -> Iterable[Any]:
    """The keys as a function sees them: values, or tuples where there are several columns."""
    if len(columns) == 1:
        return python_values(columns[0])
    return zip(*map(python_values, columns), strict=True)


class RowBody(FunctionBody[KeyedProcessFunction]):
    """`KeyedProcessFunction.process`: one call per row, keys looked up a batch at a time."""

    def __init__(
        self,
        task: RangeTask,
        function: KeyedProcessFunction,
        factory: RowFactory,
        output: OutputColumns,
    ) -> None:
        super().__init__(task, function)
        self._factory = factory
        self._output = output

    def process(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Call the function for each row."""
        columns = self._key_columns(rows)
        keys = self._task.backend.keys(columns)
        select, context, process = keys.select, self._context, self._function.process
        emitted: list[Any] = []
        values = zip(_key_values(columns), self._factory.rows(rows), strict=True)
        for i, (key, row) in enumerate(values):
            select(i)
            result = process(key, row, context)
            if result is not None:
                emitted.extend(result)
                if len(emitted) >= _OUTPUT_ROWS:
                    yield self._output.from_rows(emitted)
                    emitted = []
        if emitted:
            yield self._output.from_rows(emitted)


class KeyRowsBody(FunctionBody[KeyedProcessFunction]):
    """`KeyedProcessFunction.process_rows`: one call per key with all of its rows.

    The range's rows of the epoch are held until the input ends.
    """

    def __init__(
        self, task: RangeTask, function: KeyedProcessFunction, output: OutputColumns
    ) -> None:
        super().__init__(task, function)
        self._output = output
        self._batches: list[pa.RecordBatch] = []

    def process(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Keep the rows."""
        self._batches.append(rows)
        return iter(())

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Call the function for each key, in order of its first row."""
        rows = pa.Table.from_batches(self._batches).combine_chunks().to_batches()[0]
        self._batches = []
        columns = self._key_columns(rows)
        order, starts = _group(columns)
        rows = rows.take(pa.array(order))
        firsts = [column.take(pa.array(order[starts])) for column in columns]
        keys = self._task.backend.keys(firsts)
        ends = [*starts[1:].tolist(), len(order)]
        emitted: list[Any] = []
        for i, key in enumerate(_key_values(firsts)):
            keys.select(i)
            first = int(starts[i])
            batch = rows.slice(first, ends[i] - first)
            result = self._function.process_rows(key, batch, self._context)
            if result is not None:
                emitted.extend(result)
                if len(emitted) >= _OUTPUT_ROWS:
                    yield self._output.from_rows(emitted)
                    emitted = []
        if emitted:
            yield self._output.from_rows(emitted)


def _group(columns: Sequence[pa.Array[Any]]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Order rows by key, stably: the order, and where in it each key starts.

    Equal keys get equal codes; -0.0 and 0.0, and all NaNs, are one key as they are in SQL.
    """
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        if pa.types.is_floating(column.type):
            column = _canonical(column)
        encoded = column.dictionary_encode(null_encoding="encode")
        _, codes = np.unique(
            codes * len(encoded.dictionary) + encoded.indices.to_numpy(), return_inverse=True
        )
    _, first_rows = np.unique(codes, return_index=True)
    rank = np.empty(len(first_rows), np.int64)
    rank[np.argsort(first_rows)] = np.arange(len(first_rows))
    ranked = rank[codes]
    order = np.argsort(ranked, kind="stable")
    starts = np.flatnonzero(np.diff(ranked[order], prepend=-1))
    return order, starts


def _canonical(column: pa.Array[Any]) -> pa.Array[Any]:
    values = column.to_numpy(zero_copy_only=False) + 0.0  # -0.0 becomes 0.0
    values[np.isnan(values)] = np.nan
    nulls = column.is_null().to_numpy(zero_copy_only=False)
    canonical: pa.Array[Any] = pa.array(values, column.type, mask=nulls)
    return canonical


class VectorBody(FunctionBody[VectorizedFunction]):
    """`VectorizedFunction.process`: one call per batch."""

    def __init__(
        self, task: RangeTask, function: VectorizedFunction, output: OutputColumns
    ) -> None:
        super().__init__(task, function)
        self._output = output

    def process(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Call the function with the batch and the keys of its rows."""
        keys = self._task.backend.keys(self._key_columns(rows))
        result = self._function.process(keys, rows, self._context)
        if result is None:
            return
        for value in [result] if _is_batch(result) else result:
            yield from self._output.from_value(value)


def _is_batch(value: object) -> bool:
    return isinstance(value, (pa.RecordBatch, pa.Table, dict))


#: One state of an aggregate: its name, what happens to it ("add", "min", "max"), and the input
#: column, or None to add one per row.
StateUpdate = tuple[str, str, str | None]


class AggregateBody:
    """`aggregate(...)`: the core updates the states; each touched key is emitted once, at the end.

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
    """

    def __init__(
        self,
        task: RangeTask,
        updates: Sequence[StateUpdate],
        results: Sequence[tuple[str, str | None]],
        output: OutputColumns,
    ) -> None:
        self._task = task
        self._updates = updates
        self._results = results
        self._output = output
        self._keys = [name for name, _ in task.plan.key_schema]

    def open(self) -> None:
        """Register the states."""
        backend = self._task.backend
        self._handles = {
            name: backend.register(name, declaration)
            for name, declaration in self._task.plan.states.items()
        }
        self._calls: list[tuple[Callable[[KeyBatch, Any], None], str | None]] = [
            (getattr(self._handles[state], operation), column)
            for state, operation, column in self._updates
        ]

    def process(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Update the states; nothing is emitted yet."""
        keys = self._task.backend.keys([rows.column(name) for name in self._keys])
        for update, column in self._calls:
            update(keys, 1 if column is None else rows.column(column))
        return iter(())

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Emit every key whose states were written, with its results as they stand now."""
        for keys in self._task.backend.changed(_OUTPUT_KEYS):
            arrays = [*keys.key_arrays(), *(self._result(keys, *names) for names in self._results)]
            yield from self._output.from_value(
                pa.RecordBatch.from_arrays(arrays, names=list(self._output.names))
            )

    def close(self) -> None:
        """Nothing is held."""

    def _result(self, keys: KeyBatch, state: str, divisor: str | None) -> pa.Array[Any]:
        values: pa.Array[Any] = self._handles[state].values(keys)
        if divisor is not None:
            # Where there was no value the sum is null, and with it the quotient.
            counts = self._handles[divisor].values(keys).cast(values.type)
            values = pc.divide(values, counts)
        return values


class RoutedBody(FunctionBody[KeyedProcessFunction]):
    """A `KeyedProcessFunction` over an RDD's elements: one call per row, results as they are."""

    def __init__(
        self,
        task: RangeTask,
        function: KeyedProcessFunction,
        arrays: Callable[[Sequence[Any]], list[pa.Array[Any]]],
        output: OutputColumns | None,
    ) -> None:
        super().__init__(task, function)
        self._arrays = arrays
        self._output = output

    def process(self, rows: Sequence[Any]) -> Iterator[list[Any]]:
        """Call the function for each `Routed` element."""
        keys = self._task.backend.keys(self._arrays([routed.key for routed in rows]))
        emitted: list[Any] = []
        for i, routed in enumerate(rows):
            keys.select(i)
            result = self._function.process(routed.key, routed.row, self._context)
            if result is not None:
                emitted.extend(result)
        if self._output is not None and emitted:
            self._output.from_rows(emitted)  # refuses what the schema does not allow
        yield emitted
