"""Runs a stateful function over one task's rows; Spark's bodies and the test harness drive it.

Thread safety: a `FunctionSpec` is immutable; a `FunctionRuntime` belongs to one task and thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from pystate.backend import KeyedStateBackend
from pystate.functions import RuntimeContext, StatefulFunction, bind, shape, unbind
from pystate.rows import RowFactory, python_values

__all__ = ["FunctionRuntime", "FunctionSpec", "Output"]

#: Rows that a row-wise function may emit before they leave as a batch.
_OUTPUT_ROWS = 16_384


class Output(Protocol):
    """What becomes of the yielded rows: `OutputColumns` or `RowsAsYielded`."""

    def from_rows(self, rows: list[Any]) -> Any:
        """One piece of output from rows."""

    def from_value(self, value: object) -> list[Any]:
        """Pieces of output from what a vectorised function yielded."""


@dataclass(frozen=True)
class FunctionSpec:
    """A function and how an operator's rows become its calls. Pickled to the workers.

    Attributes
    ----------
    function : KeyedProcessFunction or VectorizedFunction
        An instance.
    key : tuple of str
        The key columns.
    columns : tuple of str
        All columns of the input, in order.
    output : Output
        What it yields.

    Raises
    ------
    DeclarationError
        The function has none or too many of the methods.
    InvalidArgumentError
        Two columns have one name.
    """

    function: StatefulFunction
    key: tuple[str, ...]
    columns: tuple[str, ...]
    output: Output

    def __post_init__(self) -> None:
        if shape(self.function) == "process":
            RowFactory(self.columns)


class FunctionRuntime:
    """One task's run of a function.

    Parameters
    ----------
    spec : FunctionSpec
        The function.
    backend : KeyedStateBackend
        The task's state.
    context : RuntimeContext
        What the function is told.
    """

    def __init__(
        self, spec: FunctionSpec, backend: KeyedStateBackend, context: RuntimeContext
    ) -> None:
        self.spec = spec
        self.backend = backend
        self.context = context
        self._calls: _Calls = _SHAPES[shape(spec.function)](self)

    def open(self) -> None:
        """Give the function its handles and call its `open`."""
        bind(self.spec.function, self.backend)
        self.spec.function.open(self.context)

    def close(self) -> None:
        """Take the handles away and call the function's `close`."""
        unbind(self.spec.function)
        self.spec.function.close()

    def process(self, rows: pa.RecordBatch) -> Iterator[Any]:
        """Call the function for some rows; yields what it emits."""
        return self._calls.process(rows)

    def process_elements(
        self, columns: Sequence[pa.Array[Any]], keys: Iterable[Any], rows: Iterable[Any]
    ) -> Iterator[Any]:
        """Call `KeyedProcessFunction.process` for rows of any class.

        Parameters
        ----------
        columns : sequence of pyarrow.Array
            The key columns.
        keys, rows : iterable
            What each call is given.
        """
        assert isinstance(self._calls, _RowCalls), "only for the shape process"
        return self._calls.process_elements(columns, keys, rows)

    def finish(self) -> Iterator[Any]:
        """End the input: call the function for what was held back."""
        return self._calls.finish()


class _Calls:
    """How a function of one shape is called."""

    def __init__(self, run: FunctionRuntime) -> None:
        self.run = run
        self.function: Any = run.spec.function
        self.context = run.context
        self.backend = run.backend
        self.output = run.spec.output

    def process(self, rows: pa.RecordBatch) -> Iterator[Any]:
        raise NotImplementedError

    def finish(self) -> Iterator[Any]:
        return iter(())

    def key_columns(self, rows: pa.RecordBatch) -> list[pa.Array[Any]]:
        return [rows.column(name) for name in self.run.spec.key]


class _RowCalls(_Calls):
    """`KeyedProcessFunction.process`: one call per row, keys looked up a batch at a time."""

    def __init__(self, run: FunctionRuntime) -> None:
        super().__init__(run)
        self._factory = RowFactory(run.spec.columns)

    def process(self, rows: pa.RecordBatch) -> Iterator[Any]:
        columns = self.key_columns(rows)
        return self.process_elements(columns, _key_values(columns), self._factory.rows(rows))

    def process_elements(
        self, columns: Sequence[pa.Array[Any]], keys: Iterable[Any], rows: Iterable[Any]
    ) -> Iterator[Any]:
        batch = self.backend.keys(columns)
        select, context, process = batch.select, self.context, self.function.process
        emitted: list[Any] = []
        for i, (key, row) in enumerate(zip(keys, rows, strict=True)):
            select(i)
            result = process(key, row, context)
            if result is not None:
                emitted.extend(result)
                if len(emitted) >= _OUTPUT_ROWS:
                    yield self.output.from_rows(emitted)
                    emitted = []
        if emitted:
            yield self.output.from_rows(emitted)


class _KeyRowsCalls(_Calls):
    """`KeyedProcessFunction.process_rows`: one call per key with all of its rows.

    The task's rows of the epoch are held until the input ends.
    """

    def __init__(self, run: FunctionRuntime) -> None:
        super().__init__(run)
        self._batches: list[pa.RecordBatch] = []

    def process(self, rows: pa.RecordBatch) -> Iterator[Any]:
        self._batches.append(rows)
        return iter(())

    def finish(self) -> Iterator[Any]:
        """Call the function for each key, in order of its first row."""
        if not self._batches:
            return
        rows = pa.Table.from_batches(self._batches).combine_chunks().to_batches()[0]
        self._batches = []
        columns = self.key_columns(rows)
        order, starts = _group(columns)
        rows = rows.take(pa.array(order))
        firsts = [column.take(pa.array(order[starts])) for column in columns]
        keys = self.backend.keys(firsts)
        ends = [*starts[1:].tolist(), len(order)]
        emitted: list[Any] = []
        for i, key in enumerate(_key_values(firsts)):
            keys.select(i)
            first = int(starts[i])
            batch = rows.slice(first, ends[i] - first)
            result = self.function.process_rows(key, batch, self.context)
            if result is not None:
                emitted.extend(result)
                if len(emitted) >= _OUTPUT_ROWS:
                    yield self.output.from_rows(emitted)
                    emitted = []
        if emitted:
            yield self.output.from_rows(emitted)


class _VectorCalls(_Calls):
    """`VectorizedFunction.process`: one call per batch."""

    def process(self, rows: pa.RecordBatch) -> Iterator[Any]:
        keys = self.backend.keys(self.key_columns(rows))
        result = self.function.process(keys, rows, self.context)
        if result is None:
            return
        for value in [result] if _is_batch(result) else result:
            yield from self.output.from_value(value)


_SHAPES: dict[str, type[_Calls]] = {
    "process": _RowCalls,
    "process_rows": _KeyRowsCalls,
    "vectorized": _VectorCalls,
}


def _key_values(columns: Sequence[pa.Array[Any]]) -> Iterable[Any]:
    """The keys as a function sees them: values, or tuples where there are several columns."""
    if len(columns) == 1:
        return python_values(columns[0])
    return zip(*map(python_values, columns), strict=True)


def _is_batch(value: object) -> bool:
    return isinstance(value, (pa.RecordBatch, pa.Table, dict))


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
