"""The shapes of a function of two inputs: each input is called for as one of the other shapes is.

Thread safety: an object belongs to its task.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from pystate.operators.functions.binding import takes_rows
from pystate.operators.runtime.call_shapes import (
    Calls,
    Firing,
    KeyedCalls,
    KeyRowsCalls,
    RowCalls,
    Run,
    VectorCalls,
)
from pystate.operators.runtime.late_rows import SIDES, SideName
from pystate.tables.timers import DueTimers, TimeDomain


class TwoInputs(Calls):
    """Base of the shapes of two inputs."""

    _inputs: dict[SideName, Calls]

    def input(self, name: SideName) -> Calls:
        """How the function is called for rows of an input."""
        return self._inputs[name]

    def process(self, rows: pa.RecordBatch, times: pa.Array[Any] | None) -> Iterator[Any]:
        """Not of this shape: rows are those of an input."""
        raise NotImplementedError

    def finish(self) -> Iterator[Any]:
        """Handle the end of both inputs: rows that were held back, first those of the left one."""
        for name in SIDES:
            yield from self._inputs[name].finish()

    def _of(self, run: Run, name: SideName) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The key columns and all columns of an input."""
        right = run.spec.right
        assert right is not None, "a function of two inputs"
        if name == "left":
            return run.spec.key, run.spec.columns
        return right.key, right.columns


class CoCalls(TwoInputs, KeyedCalls):
    """`KeyedCoProcessFunction`: a call per row, or one per key and input with all of its rows."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._inputs = {}
        for name in SIDES:
            kind: type[Calls] = RowCalls
            method = f"process_{name}"
            if takes_rows(run.spec.function, name):
                kind, method = KeyRowsCalls, f"process_{name}_rows"
            self._inputs[name] = kind(run, method, *self._of(run, name))


class CoVectorCalls(TwoInputs):
    """`VectorizedCoFunction`: one call per batch of an input."""

    one_key = False

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._inputs = {
            name: VectorCalls(run, f"process_{name}", *self._of(run, name)) for name in SIDES
        }

    def on_due(self, due: DueTimers, domain: TimeDomain) -> Firing:
        """Call the function for some timers."""
        return self._inputs["left"].on_due(due, domain)
