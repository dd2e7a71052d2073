"""What the joins share: specification, the way of a batch into the join, and result batches.

Thread safety: as `pystate.operators.runtime.task`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from pystate.checkpoint.refs import INPUT
from pystate.epochs.watermarks import Holds
from pystate.operators.joins.inputs import JoinInput, Rows, other_side
from pystate.operators.runtime.grouping import take_rows
from pystate.operators.runtime.late_rows import DROP_LATE, SIDES, LateInputs, LateRows, SideName
from pystate.operators.runtime.output import OutputColumns
from pystate.operators.runtime.task import Operator, TaskContext
from pystate.state.declaration import State
from pystate.types.key_codes import Ints, longs

How: TypeAlias = Literal["inner", "left", "right", "full"]
Columns: TypeAlias = "Sequence[pa.Array[Any]]"

#: The most rows of an output batch.
OUTPUT_ROWS = 1 << 16
#: Rows of a batch that meet the table at once.
_ROWS = 1 << 16
#: How many lists a row is looked for in, and put into.
_LISTS_OF_ROW = 3
#: Rows of event times further from 1970 are invalid: sums with an interval must not overflow.
_MOST_TIME = 1 << 60


class JoinSpec(ABC):
    """What a join is made from: the base of what is pickled for the workers."""

    left: JoinInput
    right: JoinInput
    how: How
    """The inputs whose rows are emitted even if they match none."""
    output: OutputColumns
    """The key columns, then the other columns of the left input, then those of the right one."""

    @abstractmethod
    def states(self) -> Mapping[str, State[Any]]:
        """The states of the join."""

    @abstractmethod
    def holds(self) -> Holds:
        """How the result's watermark is behind that of the join."""

    @abstractmethod
    def make(self, late: LateInputs | None = None) -> JoinOperator:
        """The operator of one task; `late` says where late rows go, which else are dropped."""

    def input(self, side: SideName) -> JoinInput:
        """One of the inputs."""
        return self.left if side == "left" else self.right

    def outer(self, side: SideName) -> bool:
        """Whether rows of an input are emitted even if they match none."""
        return self.how in (side, "full")

    def time_column(self, side: SideName) -> str:
        """The result's column with the event time of an input; the result ends with theirs."""
        output, left, right = self.output, self.left, self.right
        names = output.names[len(output.names) - len(left.names) - len(right.names) :]
        if side == "right":
            names, given = names[len(left.names) :], right
        else:
            given = left
        if given.event_time in given.names:
            return names[given.names.index(given.event_time)]
        return output.names[[name for name, _ in given.key].index(given.event_time)]


class JoinResult:
    """Makes a join's output, in batches of bounded size.

    Its methods take columns of an input: of its keys, and of the rest. `rows` are numbers of rows
    in these; `owners` the places of their keys, if keys are columns of their own.
    """

    def __init__(self, spec: JoinSpec) -> None:
        self._output = spec.output
        self._nulls: dict[SideName, list[Any]] = {
            side: [pa.scalar(None, type_.arrow) for _, type_ in spec.input(side).columns]
            for side in SIDES
        }

    def pairs(
        self,
        side: SideName,
        keys: Columns,
        values: Columns,
        rows: Ints,
        others: Columns,
        at: Ints,
        owners: Ints | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Rows of an input with rows `at` places in the other one's columns, none if negative."""
        missing = bool(len(at)) and int(at.min()) < 0
        for begin in range(0, len(rows), OUTPUT_ROWS):
            part = slice(begin, begin + OUTPUT_ROWS)
            there = at[part]
            index = pa.array(there, pa.int64(), mask=there < 0) if missing else longs(there)
            head = take_rows(keys, (rows if owners is None else owners)[part])
            theirs = [column.take(index) for column in others]
            yield from self._batch(side, head, take_rows(values, rows[part]), theirs)

    def alone(
        self,
        side: SideName,
        keys: Columns,
        values: Columns,
        rows: Ints,
        owners: Ints | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Rows without a partner; the other input's columns are null."""
        nulls = self._nulls[other_side(side)]
        for begin in range(0, len(rows), OUTPUT_ROWS):
            part = slice(begin, begin + OUTPUT_ROWS)
            head = take_rows(keys, (rows if owners is None else owners)[part])
            mine = take_rows(values, rows[part])
            theirs: list[Any] = [pa.repeat(each, len(rows[part])) for each in nulls]
            yield from self._batch(side, head, mine, theirs)

    def _batch(
        self, side: SideName, keys: Columns, mine: Columns, others: Columns
    ) -> list[pa.RecordBatch]:
        both = [*mine, *others] if side == "left" else [*others, *mine]
        batch = pa.RecordBatch.from_arrays([*keys, *both], names=list(self._output.names))
        return self._output.from_value(batch)


class JoinOperator(Operator):
    """One task's run of a join; `late` says where late rows go, which are otherwise dropped."""

    looks_up_keys = False
    _spec: JoinSpec

    def __init__(self, spec: JoinSpec, late: LateInputs | None = None) -> None:
        self._spec = spec
        self._late_inputs = late

    def open(self, task: TaskContext) -> None:
        """Begin; the joins register their states."""
        spec, late_inputs = self._spec, self._late_inputs
        self._task = task
        self._backend = task.backend
        self._invalid = {
            side: task.invalid([name for name, _ in spec.input(side).key], side) for side in SIDES
        }
        self._result = JoinResult(spec)
        self._late: dict[SideName, LateRows] = {}
        for side in SIDES:
            task.saw(None, input=side)
            write = late_inputs.writer(side, task.side) if late_inputs else None
            self._late[side] = task.late(DROP_LATE, write, side)


class ContinuousJoin(JoinOperator):
    """Base of the joins whose rows meet those of the other input as they come."""

    def process(self, rows: pa.RecordBatch, input: str = INPUT) -> Iterator[pa.RecordBatch]:
        """Handle rows of an input; yield what they complete."""
        side: SideName = "left" if input == "left" else "right"
        given, late = self._spec.input(side), self._late[side]
        rows, times = self._invalid[side].timed(rows, given.times(rows), -_MOST_TIME, _MOST_TIME)
        ready = given.ready(*late.without(rows, times))
        if ready.unusable is not None:
            if self._spec.outer(side):
                alone = np.flatnonzero(ready.unusable)
                yield from self._result.alone(side, ready.keys, ready.values, alone)
            ready = ready.take(np.flatnonzero(~ready.unusable))
        begin = 0
        while begin < len(ready):
            some = self._backend.below.most_keys(_ROWS, _LISTS_OF_ROW)
            yield from self.meet(side, ready.slice(begin, some))
            begin += some

    @abstractmethod
    def meet(self, side: SideName, rows: Rows) -> Iterator[pa.RecordBatch]:
        """Handle rows of an input that others may match; yield what they complete."""

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Handle the watermark, below which rows are late from the next epoch on."""
        watermark = self._task.watermark
        if watermark is not None:
            yield from self.advance(watermark)

    @abstractmethod
    def advance(self, watermark: int) -> Iterator[Any]:
        """Emit what can match nothing any more, and remove what is not needed."""
