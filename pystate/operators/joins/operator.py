"""What the joins of two inputs share as operators.

Thread safety: as `pystate.operators.runtime.task`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from pystate.checkpoint.refs import INPUT
from pystate.operators.joins.inputs import JoinInput, Rows
from pystate.operators.joins.result import JoinResult
from pystate.operators.runtime.late_rows import DROP_LATE, SIDES, LateInputs, LateRows, SideName
from pystate.operators.runtime.output import OutputColumns
from pystate.operators.runtime.task import Operator, TaskContext

#: Rows of a batch that meet the table at once.
_ROWS = 1 << 16
#: Rows of event times further from 1970 are invalid: sums with an interval must not overflow.
_MOST_TIME = 1 << 60


class JoinSpec(Protocol):
    """What a join is made from."""

    @property
    def left(self) -> JoinInput:
        """The left input."""

    @property
    def right(self) -> JoinInput:
        """The right input."""

    @property
    def output(self) -> OutputColumns:
        """The columns of the result."""

    def outer(self, side: SideName) -> bool:
        """Whether rows of an input are emitted even if they match none."""


class JoinOperator(Operator):
    """One task's run of a join.

    Parameters
    ----------
    spec : IntervalJoinSpec, AsofJoinSpec or WindowJoinSpec
        The join.
    late : LateInputs, optional
        Where late rows go, which are otherwise dropped.
    """

    _spec: JoinSpec

    def __init__(self, late: LateInputs | None = None) -> None:
        self._late_inputs = late

    def open(self, task: TaskContext) -> None:
        """Begin; the joins register their states."""
        spec, late_inputs = self._spec, self._late_inputs
        self._task = task
        self._backend = task.backend
        self._inputs: dict[SideName, JoinInput] = {"left": spec.left, "right": spec.right}
        self._invalid = {
            side: task.invalid([name for name, _ in given.key], side)
            for side, given in self._inputs.items()
        }
        self._result = JoinResult(spec.output, spec.left, spec.right)
        self._late: dict[SideName, LateRows] = {}
        for side in SIDES:
            task.saw(None, input=side)
            write = late_inputs.writer(side, task.side) if late_inputs else None
            self._late[side] = task.late(DROP_LATE, write, side)

    def process(self, rows: pa.RecordBatch, input: str = INPUT) -> Iterator[pa.RecordBatch]:
        """Handle rows of an input; yield what they complete."""
        side: SideName = "left" if input == "left" else "right"
        given, late = self._inputs[side], self._late[side]
        rows, times = self._invalid[side].timed(rows, given.times(rows), -_MOST_TIME, _MOST_TIME)
        ready = given.ready(*late.without(rows, times))
        if ready.unusable is not None:
            if self._spec.outer(side):
                alone = np.flatnonzero(ready.unusable)
                yield from self._result.alone(side, ready.keys, ready.values, alone)
            ready = ready.take(np.flatnonzero(~ready.unusable))
        for begin in range(0, len(ready), _ROWS):
            yield from self.meet(side, ready.slice(begin, _ROWS))

    def meet(self, side: SideName, rows: Rows) -> Iterator[pa.RecordBatch]:
        """Handle rows of an input that others may match; yield what they complete."""
        raise NotImplementedError

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Handle the watermark, below which rows are late from the next epoch on."""
        watermark = self._task.watermark
        if watermark is not None:
            yield from self.advance(watermark)

    def advance(self, watermark: int) -> Iterator[Any]:
        """Emit what can match nothing any more, and remove what is not needed."""
        raise NotImplementedError
