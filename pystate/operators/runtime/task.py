"""What an operator is to whoever runs it, and what it gets from him.

An operator is what one task does with the rows of one range in one epoch: a user's function, a
window, a join. Spark's tasks and the test harness run all of them in the same way, and so may any
program that has a `KeyedStateBackend`.

Thread safety: an operator and its context belong to one task and thread.

Invariants
----------
1. `Operator.open` is called once, then `process` any number of times, then `finish` once.
   `close` comes last, whatever happened, if `open` was called.
2. What `process` and `finish` return is used up before the next call.
3. An operator reads no clock and knows nothing of who runs it: its output and its state depend
   only on its rows, the table, and what the context was given.
4. The late bound of an epoch is fixed when `open` is called. The watermark counts when `finish` is
   called: who runs the operator may learn it, and set `TaskContext.time`, until then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

from pystate.checkpoint.refs import INPUT
from pystate.epochs.listeners import CheckpointNotice
from pystate.epochs.watermarks import OperatorTime
from pystate.operators.runtime.event_time import MAX_WATERMARK
from pystate.operators.runtime.invalid_rows import InvalidRows, InvalidRule
from pystate.operators.runtime.late_rows import PROCESS_LATE, LateRows, Writer
from pystate.operators.runtime.output import Side
from pystate.operators.runtime.partial_rows import COMBINED_ROWS
from pystate.state.operator_state import Instance
from pystate.tables.backend import KeyedStateBackend


class Operator(ABC):
    """What a task does with its rows; every kind of operator is a class of its own.

    It is made from what is pickled for the workers; all else comes with `open`.
    """

    #: Whether it asks its backend at the end which keys the epoch has changed. Of a table on disk
    #: which was sealed in steps that is known of keys alone that it did not delete.
    asks_for_changed: bool = False
    #: Whether it first looks up the keys of its rows in the default namespace, so that whoever
    #: runs it may fetch them together, and give it rows whose keys fit in memory. Others see to
    #: that themselves.
    looks_up_keys: ClassVar[bool] = True
    #: What a task reports that had neither rows nor anything else to do.
    idle_metrics: ClassVar[Mapping[str, int]] = MappingProxyType({})

    @abstractmethod
    def open(self, task: TaskContext) -> None:
        """Begin; the task's table is attached."""

    @abstractmethod
    def process(self, rows: Any, input: str = INPUT) -> Iterator[Any]:
        """Handle some rows of an input; return what this emits."""

    def finish(self) -> Iterator[Any]:
        """Handle the end of the epoch's rows and its times; return what this emits."""
        return iter(())

    def close(self) -> None:  # noqa: B027
        """Clean up, however the task ends; `open` may have failed."""


@dataclass
class TaskContext:
    """A task: what it gives to its operator, and what the operator says of its rows."""

    backend: KeyedStateBackend
    """The table of the range, at the state with which the epoch begins."""
    epoch: int = 1
    index: int = 0
    """The number of the range, of `parallelism`."""
    parallelism: int = 1
    processing_time: int = 0
    """The epoch's, in milliseconds since 1970."""
    time: OperatorTime | None = None
    """The epoch's event time; None if the operator has none."""
    drain: bool = False
    """Whether event time ends after the rows; see `MAX_WATERMARK`."""
    side: Side | None = None
    """Without it there are no side outputs."""
    rules: Mapping[str, InvalidRule] = field(default_factory=dict)
    """What becomes of the invalid rows of each input."""
    notice: CheckpointNotice = CheckpointNotice()  # noqa: RUF009
    """Which checkpoints a function is to learn of."""
    tells_kept: bool = False
    """Whether the operator is to say how old what it keeps is."""
    beside: TaskContext | None = None
    """The task of the operator that has the broadcast states."""
    old: Callable[[], AbstractContextManager[KeyedStateBackend]] | None = None
    """Opens a table of the rows of all instances, if their states are to be divided anew."""
    late_rows: int = 0
    latest: dict[str, int | None] = field(default_factory=dict)
    """By input the largest event time that was seen."""
    kept: tuple[int | None, ...] = ()
    """The time of the oldest that is kept and may still be emitted, None without any; empty if the
    operator does not say it.
    """
    rows_combined: int = 0
    """How many more rows those that came stand for, if they were combined before."""
    metrics: dict[str, float | int | str] = field(default_factory=dict)
    _invalid: list[InvalidRows] = field(default_factory=list)

    @property
    def uid(self) -> str:
        """The operator's name in checkpoints."""
        return self.backend.uid

    @property
    def owner(self) -> str:
        """The operator's name in errors."""
        return f"operator {self.uid!r}"

    @property
    def instance(self) -> Instance:
        """The operator's instance that the range belongs to."""
        return Instance(self.index, self.parallelism, self.backend.max_parallelism)

    @property
    def late_bound(self) -> int | None:
        """Rows below are late; None if there is no such bound."""
        return None if self.time is None else self.time.late_bound_ms

    @property
    def watermark(self) -> int | None:
        """Up to where event time is over when the epoch's rows are; None if there is none."""
        if self.drain:
            return MAX_WATERMARK
        return None if self.time is None else self.time.watermark_ms

    def invalid(
        self, key: Sequence[str] = (), input: str = INPUT, event_time: str | None = None
    ) -> InvalidRows:
        """What takes the invalid rows of an input out.

        `event_time` is the column of their times, if it is called otherwise than in the input.
        """
        rule = self.rules.get(input, InvalidRule())
        if event_time is not None:
            rule = replace(rule, event_time=event_time)
        invalid = InvalidRows(self.owner, key, rule, self.processing_time, self.side)
        self._invalid.append(invalid)
        return invalid

    def writer(self, tag: str | None) -> Writer | None:
        """What takes rows for a side output; None if there is none of that tag."""
        return None if tag is None or self.side is None else partial(self.side, tag)

    def late(
        self,
        word: str = PROCESS_LATE,
        write: Writer | None = None,
        input: str = INPUT,
        bound: int | None = None,
    ) -> LateRows:
        """What tells the late rows of an input; see there.

        `bound` is the late bound, if it is not that of the epoch.
        """
        note = partial(self.saw, input=input)
        return LateRows(self.late_bound if bound is None else bound, note, word, write)

    @property
    def invalid_rows(self) -> int:
        """Rows that could not be processed."""
        return sum(each.rows for each in self._invalid)

    def combined(self, came: int, rows: int) -> None:
        """Note that rows which came stand for others, and for how many."""
        self.rows_combined += rows - came
        self.metrics[COMBINED_ROWS] = int(self.metrics.get(COMBINED_ROWS, 0)) + came

    def saw(self, latest_ms: int | None, late_rows: int = 0, input: str = INPUT) -> None:
        """Note the largest event time of some rows, and how many of them are late."""
        self.late_rows += late_rows
        before = self.latest.get(input)
        if before is None or (latest_ms is not None and latest_ms > before):
            self.latest[input] = latest_ms
