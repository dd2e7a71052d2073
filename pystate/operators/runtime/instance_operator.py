"""A function of an operator's instances as an operator.

Thread safety: as `pystate.operators.runtime.task`.

Invariants
----------
1. The state is the instance's before `open` is called: redistributed, if the number of instances
   has changed.
2. A task handles all of its rows first. Then `on_epoch_end` is called, with the watermark that the
   epoch ends with, and the last output is emitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import pyarrow as pa

from pystate.errors import DeclarationError
from pystate.operators.functions.base import ProcessFunction
from pystate.operators.functions.binding import Registry, shape
from pystate.operators.functions.context import InstanceContext, RuntimeContext, Timers
from pystate.operators.runtime.call_shapes import (
    Calls,
    RowsOut,
    Run,
)
from pystate.operators.runtime.function_operator import FunctionOperator
from pystate.operators.runtime.function_spec import FunctionSpec
from pystate.operators.runtime.instance_state import InstanceState
from pystate.operators.runtime.output import OUTPUT_ROWS
from pystate.operators.runtime.rows import RowFactory
from pystate.state.operator_state import KeylessState


def works_in_every_epoch(function: ProcessFunction) -> bool:
    """Whether the function is called in epochs that bring it no rows, too."""
    return type(function).on_epoch_end is not ProcessFunction.on_epoch_end


class InstanceOperator(FunctionOperator):
    """A `ProcessFunction` over the rows of an instance."""

    def __init__(self, spec: FunctionSpec, states: Mapping[str, KeylessState[Any]]) -> None:
        super().__init__(spec)
        self._own_states = states

    def _make_context(self, kind: type[RuntimeContext] = InstanceContext) -> RuntimeContext:
        context = super()._make_context(kind)
        assert isinstance(context, InstanceContext)
        context.instance = self.task.index
        return context

    def _open_states(self) -> Registry:
        """The instance's state: redistributed, if the number of instances has changed."""
        state = InstanceState.of_task(self.task, self._own_states)
        assert isinstance(self.context, InstanceContext)
        self.context.redistributed = state.redistributed
        return state

    def _make_calls(self) -> Calls:
        by_row = shape(self.spec.function) == "instance"
        return _InstanceCalls(self) if by_row else _InstanceBatchCalls(self)

    def _no_timers(self) -> Timers:
        return _NoKeys(type(self.spec.function).__name__)

    def finish(self) -> Iterator[Any]:
        """End the input: call `on_epoch_end`, and emit side outputs."""
        self._advance_watermark()
        yield from self._calls.finish()
        self._sides.flush()

    def set_namespace(self, value: Any) -> None:
        """Refuse namespaces, which belong to keys."""
        raise _NoKeys.error(type(self.spec.function).__name__)


class _InstanceCalls(RowsOut):
    """`ProcessFunction.process`: one call per row."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._factory = RowFactory(run.spec.columns)

    def process(self, rows: pa.RecordBatch, times: pa.Array[Any] | None) -> Iterator[Any]:
        moments = [None] * rows.num_rows if times is None else times.to_pylist()
        # Values are read now, so that the caller learns of those that Python cannot hold.
        return self._call_each(self._factory.rows(rows), moments)

    def _call_each(self, rows: Iterator[Any], moments: Sequence[int | None]) -> Iterator[Any]:
        context, process = self.context, self.function.process
        emitted, returns, iterables = self.emitted, self.returns("process"), self.iterables
        self.remember_call("process")
        for row, moment in zip(rows, moments, strict=True):
            context.timestamp = moment
            try:
                result = process(row, context)
                if result is not None:
                    if returns and type(result) not in iterables:
                        self.check("process", result)
                    emitted.extend(result)
            except Exception as error:
                self.note(error, "process", f"row {row!r:.80}")
                raise
            if result is not None and len(emitted) >= OUTPUT_ROWS:
                yield from self.drain()
        context.timestamp = None
        yield from self.drain()

    def finish(self) -> Iterator[Any]:
        self.remember_call("on_epoch_end")
        with self.noting_errors("on_epoch_end", "the end of an epoch"):
            result = self.function.on_epoch_end(self.context)
            if result is not None:
                self.check("on_epoch_end", result)
                for row in result:
                    self.emitted.append(row)
                    if len(self.emitted) >= OUTPUT_ROWS:
                        yield from self.drain()
        yield from self.drain()


class _InstanceBatchCalls(Calls):
    """`ProcessFunction.process_rows`: one call per batch."""

    def process(self, rows: pa.RecordBatch, times: pa.Array[Any] | None) -> Iterator[Any]:
        yield from self._emit("process_rows", f"a batch of {rows.num_rows} rows", rows)

    def finish(self) -> Iterator[Any]:
        yield from self._emit("on_epoch_end", "the end of an epoch")

    def _emit(self, method: str, what: str, *rows: pa.RecordBatch) -> Iterator[Any]:
        self.remember_call(method)
        with self.noting_errors(method, what):
            result = getattr(self.function, method)(*rows, self.context)
            for value in self.batches(method, result):
                yield from self.output.from_value(value)


class _NoKeys:
    """Refuses timers, which belong to keys."""

    def __init__(self, name: str) -> None:
        self._name = name

    @staticmethod
    def error(name: str) -> DeclarationError:
        return DeclarationError(
            f"{name} is a ProcessFunction, whose rows have no keys; timers and namespaces belong "
            "to keys: take key_by and a ps.KeyedProcessFunction"
        )

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self.error(self._name)
