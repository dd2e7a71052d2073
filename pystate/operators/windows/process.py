"""A function over the rows of windows, run in one task.

Thread safety: as `pystate.operators.runtime.task`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at

from pystate.base.notes import add_note
from pystate.checkpoint.refs import INPUT
from pystate.errors import WrongTypeError
from pystate.operators.functions.windows import (
    TimeWindow,
    WindowContext,
    WindowFunction,
    WindowFunctionLike,
    window_shape,
)
from pystate.operators.runtime.call_shapes import (
    are_batches,
    are_rows,
    is_arrow_batch,
    is_batch,
)
from pystate.operators.runtime.output import (
    OUTPUT_ROWS,
    Output,
    SideOutputs,
    emitted_by,
    shown,
    written_at,
)
from pystate.operators.runtime.rows import python_values
from pystate.operators.runtime.task import Operator, TaskContext
from pystate.operators.windows.kinds import make_operator
from pystate.operators.windows.row_windows import Loaded, RowColumns, WindowRowsSpec
from pystate.types.key_codes import longs

#: The key and the window that a function was called for; None for many of them.
_Owner: TypeAlias = "tuple[Any, TimeWindow] | None"


@dataclass(frozen=True)
class WindowProcessSpec:
    """A function over windows and how it is called; pickled for the workers."""

    function: WindowFunctionLike
    rows: WindowRowsSpec
    schema: pa.Schema
    """The input's columns."""
    output: Output
    side_outputs: Mapping[str, Output] = field(default_factory=dict)
    """By tag, the rows that `WindowContext.output` takes."""
    owner: str = "windows"

    def __post_init__(self) -> None:
        window_shape(self.function, self.owner)


class WindowProcess(Operator):
    """One task's run of a function over windows."""

    looks_up_keys = False

    def __init__(self, spec: WindowProcessSpec, late_tag: str | None = None) -> None:
        self._spec = spec
        self._shape = window_shape(spec.function, spec.owner)
        self._rows: list[Any] = []
        #: The key and the window of each row, and of the call.
        self._owners: list[_Owner] = []
        self._owner: _Owner = None
        self.operator = make_operator(spec.rows, late_tag)
        self.asks_for_changed = self.operator.asks_for_changed

    def open(self, task: TaskContext) -> None:
        """Register the states, and call the function's `open`."""
        self._task = task
        self._sides = SideOutputs(
            self._spec.side_outputs, task.side, self._spec.owner, is_arrow_batch, self._emitter
        )
        self.operator.open(task)
        columns = self.operator.columns
        assert isinstance(columns, RowColumns)
        self._columns = columns
        self._context = WindowContext(task.uid, task.processing_time, task.late_bound)
        self._context._output = self._emit_aside
        if isinstance(self._spec.function, WindowFunction):
            self._spec.function.open(self._context)

    def process(self, rows: pa.RecordBatch, input: str = INPUT) -> Iterator[Any]:
        """Add rows to their windows; yield the output for windows that this completes."""
        for windows in self.operator.process(rows):
            yield from self._called(windows)
        yield from self._flushed(0)

    def finish(self) -> Iterator[Any]:
        """Call the function for windows that are over or are to be emitted; yield its output."""
        watermark = self._task.watermark
        if watermark is not None:
            self._context.watermark = watermark
        for windows in self.operator.finish():
            yield from self._called(windows)
        yield from self._flushed(0)
        self._sides.flush()

    def close(self) -> None:
        """Call the function's `close`."""
        self.operator.close()
        if isinstance(self._spec.function, WindowFunction):
            self._spec.function.close()

    # -- calls

    def _emit_aside(self, tag: str, row: Any) -> None:
        self._sides.output(tag, row, self._owner)

    def _called(self, windows: pa.RecordBatch) -> Iterator[Any]:
        call = self._many if self._shape == "windows" else self._one_by_one
        for loaded in self._columns.load():
            part = windows.slice(loaded.begin, loaded.end - loaded.begin)
            yield from call(part, loaded.offsets[0], self._batch(part, loaded))

    def _batch(self, windows: pa.RecordBatch, loaded: Loaded) -> pa.RecordBatch:
        """The rows as they came: the key's columns among the others."""
        spec = self._spec
        [offsets], [values] = loaded.offsets, loaded.values
        owners = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        columns = dict(zip((name for name, _ in spec.rows.inputs[0].columns), values, strict=True))
        for name in spec.rows.key:
            columns[name] = windows.column(name).take(longs(owners))
        arrays = []
        for each in spec.schema:
            array = columns[each.name]
            arrays.append(array if array.type == each.type else array.cast(each.type))
        return pa.RecordBatch.from_arrays(arrays, schema=spec.schema)

    def _one_by_one(
        self, windows: pa.RecordBatch, offsets: Any, batch: pa.RecordBatch
    ) -> Iterator[Any]:
        function: Any = self._spec.function
        call = function.process if isinstance(function, WindowFunction) else function
        more = () if self._shape == "plain" else (self._context,)
        keys = [python_values(windows.column(name), name) for name in self._spec.rows.key]
        key_of: Iterable[Any] = keys[0] if len(keys) == 1 else zip(*keys, strict=True)
        start, end = (_ms(windows.column(name)) for name in self.operator.names)
        begins, ends = offsets[:-1].tolist(), offsets[1:].tolist()
        for i, (key, at_, to) in enumerate(zip(key_of, begins, ends, strict=True)):
            window = TimeWindow(start[i], end[i])
            rows = batch.slice(at_, to - at_)
            self._owner = key, window
            try:
                returned = call(key, window, rows, *more)
                if returned is not None:
                    self._collect(returned)
            except Exception as error:
                self._note(error, f"key {key!r:.80}, window {window.start} to {window.end}")
                raise
            yield from self._flushed(OUTPUT_ROWS)

    def _collect(self, returned: Any) -> None:
        if is_arrow_batch(returned):
            returned = [returned]
        elif not are_rows(returned):
            shown = " ".join(repr(returned).split())
            raise WrongTypeError(
                f"{self._spec.owner}: the function over windows returned {shown:.80} of type "
                f"{type(returned).__qualname__}: yield rows, each of them a tuple, Row or dict, or "
                "return a list of them, or a batch of Arrow"
            )
        self._rows.extend(returned)
        self._owners.extend([self._owner] * (len(self._rows) - len(self._owners)))

    def _flushed(self, least: int) -> Iterator[Any]:
        """Output what the function has emitted, if it is enough: rows and batches in order."""
        if len(self._rows) < max(least, 1):
            return
        emitted, self._rows = self._rows, []
        owners, self._owners = self._owners, []
        output, begin = self._spec.output, 0
        for i, each in enumerate(emitted):
            if is_arrow_batch(each):
                if begin < i:
                    with emitted_by(owners[begin:i], self._emitter):
                        piece = output.from_rows(emitted[begin:i])
                    yield piece
                with emitted_by(owners[i : i + 1], self._emitter):
                    pieces = output.from_value(each)
                yield from pieces
                begin = i + 1
        if begin < len(emitted):
            with emitted_by(owners[begin:], self._emitter):
                piece = output.from_rows(emitted[begin:])
            yield piece

    def _emitter(self, owner: _Owner, one: bool) -> str:
        """Who has emitted a row: the function, and the key and window, if they are `one`."""
        whose = ""
        if one and owner is not None:
            key, window = owner
            whose = f" for key {shown(key)}, window {window.start} to {window.end}"
        return f"{whose} by {self._place()}"

    def _place(self) -> str:
        """The function, and where it is written."""
        called: Any = self._spec.function
        if isinstance(called, WindowFunction):
            kind = type(called)
            method = "process_windows" if self._shape == "windows" else "process"
            name, called = f"{kind.__name__}.{method}", getattr(kind, method)
        else:
            name = getattr(called, "__name__", type(called).__name__)
        return f"{name}{written_at(called)}"

    def _many(self, windows: pa.RecordBatch, offsets: Any, batch: pa.RecordBatch) -> Iterator[Any]:
        function: Any = self._spec.function
        self._owner = None
        try:
            returned = function.process_windows(windows, offsets, batch, self._context)
            if returned is None:
                return
            if not are_batches(returned):
                raise WrongTypeError(
                    f"{self._spec.owner}: process_windows returned a "
                    f"{type(returned).__qualname__}: return or yield batches of Arrow, or dicts of "
                    "arrays by column"
                )
            for each in [returned] if is_batch(returned) else returned:
                with emitted_by([None], self._emitter):
                    pieces = self._spec.output.from_value(each)
                yield from pieces
        except Exception as error:
            self._note(error, f"{windows.num_rows} windows with {batch.num_rows} rows")
            raise

    def _note(self, error: Exception, what: str) -> None:
        function = self._spec.function
        name = getattr(function, "__name__", type(function).__name__)
        add_note(error, f"in {name} of {self._spec.owner}: {what}")


def _ms(times: pa.Array[Any]) -> list[int | None]:
    """Times of results in milliseconds."""
    if at.is_timestamp(times.type):
        micros = times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())
        times = pc.divide(micros, pa.scalar(1000, pa.int64()))
    values: list[int | None] = times.to_pylist()
    return values
