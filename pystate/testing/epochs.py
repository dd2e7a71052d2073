"""Epochs of an operator in this process: computed as a job's tasks compute them, sealed, published.

Every harness runs its operator so: an `Operator` for each range, over the tables of `RangeTables`.

Thread safety: all objects belong to one thread.

Invariants
----------
1. An epoch that raises changes nothing: its tables are as they were before it.
2. Each task of each attempt has an operator of its own, and a copy of a user's function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from pystate.checkpoint.refs import INPUT
from pystate.epochs.watermarks import OperatorTime
from pystate.operators.functions.base import StatefulFunction
from pystate.operators.functions.binding import task_copy
from pystate.operators.runtime.task import Operator, TaskContext
from pystate.testing.clock import Clock
from pystate.testing.faults import (
    Fault,
    InjectedFailureError,
    Observer,
    check_replay,
    rows_of,
)
from pystate.testing.range_tables import RangeTable, RangeTables

#: For each range the rows that its task gets, piece by piece, with their inputs.
Pieces: TypeAlias = "Sequence[Sequence[tuple[str, pa.RecordBatch]]]"


@dataclass
class Attempt:
    """One computation of an epoch; it counts once the epoch is published."""

    clock: Clock
    """The epoch's times."""
    time: OperatorTime | None = None
    """The operator's event time."""
    drain: bool = False
    """Whether event time ends after the rows."""
    fault: Fault | None = None
    """Where it is to fail."""
    failed: Attempt | None = None
    """The attempt before it, which has failed: what both emit is compared."""
    rows: list[Any] = field(default_factory=list)
    """What it has emitted."""
    sides: list[tuple[str, Any]] = field(default_factory=list)
    """What it has emitted aside: tags and pieces."""
    observed: list[list[Any]] = field(default_factory=list)
    """What the operator of each task has emitted, if it is compared."""

    @property
    def compares(self) -> bool:
        """Whether what it emits is compared with what another attempt does."""
        return self.fault is not None or self.failed is not None

    def aside(self, tag: str, piece: Any) -> None:
        """Take a piece of a side output."""
        self.sides.append((tag, piece))

    def copied(self, function: StatefulFunction) -> Any:
        """A function's copy for one task, which is watched if that is wanted."""
        function = task_copy(function)
        if self.compares:
            self.observed.append(Observer(function, self.fault).seen)
        return function

    def reach(self, point: Literal["seal", "publish"]) -> None:
        """Reach a point of the epoch, where it may be to fail."""
        if self.fault is not None:
            self.fault.reach(point)


#: Makes the operator of a range and what it gets.
Start: TypeAlias = "Callable[[RangeTable, Attempt], tuple[Operator, TaskContext]]"


class Watched(Operator):
    """An operator that calls no function, or one whose calls cannot be counted, in an attempt.

    Its rows are counted against the attempt's fault; with `observes` what it emits is compared.
    """

    def __init__(self, operator: Operator, attempt: Attempt, *, observes: bool = False) -> None:
        self._operator, self._fault = operator, attempt.fault
        self._seen: list[Any] | None = None
        if observes and attempt.compares:
            self._seen = []
            attempt.observed.append(self._seen)

    def open(self, task: TaskContext) -> None:
        """See `Operator.open`."""
        self._operator.open(task)

    def process(self, rows: Any, input: str = INPUT) -> Iterator[Any]:
        """See `Operator.process`."""
        if self._fault is not None:
            self._fault.count("rows", rows.num_rows)
        return self._noted(self._operator.process(rows, input))

    def finish(self) -> Iterator[Any]:
        """See `Operator.finish`."""
        return self._noted(self._operator.finish())

    def close(self) -> None:
        """See `Operator.close`."""
        self._operator.close()

    def _noted(self, pieces: Iterator[Any]) -> Iterator[Any]:
        for piece in pieces:
            if self._seen is not None:
                self._seen += rows_of(piece)
            yield piece


def compute(tables: RangeTables, pieces: Pieces, start: Start, attempt: Attempt) -> Attempt:
    """Compute an epoch and seal it; return the attempt that counts.

    After an injected failure it is computed again, and `ReplayError` says if it emits something
    else.
    """
    clock = attempt.clock
    attempt.clock = clock.copy()
    try:
        _run(tables, pieces, start, attempt)
        return attempt
    except InjectedFailureError:
        again = Attempt(clock, attempt.time, attempt.drain, failed=attempt)
        _run(tables, pieces, start, again)
        return again


def _run(tables: RangeTables, pieces: Pieces, start: Start, attempt: Attempt) -> None:
    with tables.epoch(lambda: attempt.reach("publish")):
        for table, own in zip(tables, pieces, strict=True):
            operator, task = start(table, attempt)
            _task(operator, task, own, attempt)
        if attempt.failed is not None:
            for before, after in zip(attempt.failed.observed, attempt.observed, strict=False):
                check_replay(attempt.clock.epoch, before, after, in_order=not tables.on_disk)
        attempt.reach("seal")


def _task(
    operator: Operator,
    task: TaskContext,
    pieces: Sequence[tuple[str, pa.RecordBatch]],
    attempt: Attempt,
) -> None:
    try:
        operator.open(task)
        for input, rows in pieces:
            for piece in operator.process(rows, input):
                attempt.rows += rows_of(piece)
        for piece in operator.finish():
            attempt.rows += rows_of(piece)
    finally:
        operator.close()
    attempt.clock.see(task)
