"""What the joins of two inputs share as operators.

Thread safety: as `pystate.operators.runtime.task`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import pyarrow as pa

from pystate.checkpoint.refs import INPUT
from pystate.operators.joins.inputs import JoinInput, Rows, SideName, arrived
from pystate.operators.joins.late import LateInputs
from pystate.operators.joins.result import JoinResult
from pystate.operators.runtime.output import OutputColumns
from pystate.operators.runtime.task import Operator, TaskContext

__all__ = ["SIDES", "JoinOperator", "JoinSpec"]

SIDES: tuple[SideName, SideName] = ("left", "right")
#: Rows of a batch that meet the table at once.
_ROWS = 1 << 16


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
        self._late = late

    def open(self, task: TaskContext) -> None:
        """Begin; the joins register their states."""
        spec = self._spec
        self._task = task
        self._backend = task.backend
        self._inputs: dict[SideName, JoinInput] = {"left": spec.left, "right": spec.right}
        self._invalid = {
            side: task.invalid([name for name, _ in given.key], side)
            for side, given in self._inputs.items()
        }
        self._result = JoinResult(spec.output, spec.left, spec.right)
        for side in SIDES:
            task.saw(None, input=side)

    def process(self, rows: pa.RecordBatch, input: str = INPUT) -> Iterator[pa.RecordBatch]:
        """Handle rows of an input; yield what they complete."""
        side: SideName = "left" if input == "left" else "right"
        given = self._inputs[side]
        batch = given.usable(rows, self._invalid[side])
        found = arrived(given, batch, self._task.late_bound)
        self._task.saw(found.latest, found.late_rows, side)
        if found.late is not None:
            self.write_late(side, batch.filter(pa.array(found.late)))
        if self._spec.outer(side) and len(found.alone):
            every = found.every
            yield from self._result.alone(side, every.keys, every.values, found.alone)
        for begin in range(0, len(found.rows), _ROWS):
            yield from self.meet(side, found.rows.slice(begin, _ROWS))

    def meet(self, side: SideName, rows: Rows) -> Iterator[pa.RecordBatch]:
        """Handle rows of an input that others may match; yield what they complete."""
        raise NotImplementedError

    def write_late(self, side: SideName, rows: pa.RecordBatch) -> None:
        """Write late rows of an input, if they are to be."""
        if self._late is not None and self._late.takes(side) and self._task.side is not None:
            self._task.side(*self._late.piece(side, rows))

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Handle the watermark, below which rows are late from the next epoch on."""
        watermark = self._task.watermark
        if watermark is not None:
            yield from self.advance(watermark)

    def advance(self, watermark: int) -> Iterator[Any]:
        """Emit what can match nothing any more, and remove what is not needed."""
        raise NotImplementedError
