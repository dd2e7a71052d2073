"""One operator computed in this process, an epoch at a time, as a job's tasks compute it.

Thread safety: all objects belong to one thread.

Invariants
----------
1. An attempt that fails leaves the tables as they were before it.
2. Each task of each attempt works on its own copy of the function.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pyarrow as pa
import pyarrow.types as at

from pystate.arguments import integer
from pystate.coordinator.listeners import News
from pystate.coordinator.watermarks import OperatorTime
from pystate.errors import InvalidArgumentError
from pystate.functions.base import StatefulFunction
from pystate.functions.binding import copied, declarations, require_state
from pystate.functions.context import RuntimeContext
from pystate.operator.broadcast import BroadcastStates
from pystate.operator.event_time import event_times
from pystate.operator.function_spec import (
    PROCESS_LATE,
    BroadcastInput,
    FunctionSpec,
    late_tag,
)
from pystate.operator.invalid import InvalidRows, InvalidRule
from pystate.operator.output import Output
from pystate.operator.runtime import FunctionRuntime
from pystate.state.registry import refuse_pickled
from pystate.testing.clock import Clock
from pystate.testing.faults import (
    Fault,
    InjectedFailureError,
    Observer,
    check_replay,
    rows_of,
)
from pystate.testing.range_tables import RangeTable, RangeTables
from pystate.types.keys import parse_key
from pystate.types.state_type import StateType, parse_type

__all__ = ["Attempt", "LocalOperator", "OperatorOptions"]


@dataclass(frozen=True)
class OperatorOptions:
    """The operator's options; a restored harness keeps them."""

    key: Any
    output: Output
    sides: Mapping[str, Output]
    event_time: str | None
    late: str
    allowed_delay_ms: int | None
    max_parallelism: int
    batch_rows: int
    uid: str
    allow_pickle: bool = True
    invalid: InvalidRule = InvalidRule()  # noqa: RUF009
    """What becomes of rows that cannot be processed."""

    @property
    def names_only(self) -> bool:
        """Whether the first rows determine the key's types."""
        names = self.key if isinstance(self.key, (list, tuple)) else ()
        return bool(names) and all(isinstance(name, str) for name in names)

    @property
    def key_names(self) -> tuple[str, ...]:
        """The key columns."""
        if self.names_only:
            return tuple(self.key)
        return tuple(name for name, _ in parse_key(self.key))

    @property
    def tags(self) -> list[str]:
        """The tags of all side outputs that may get rows."""
        more = late_tag(self.late), self.invalid.tag
        return list(dict.fromkeys([*self.sides, *(tag for tag in more if tag is not None)]))

    @property
    def broadcast(self) -> BroadcastInput | None:
        """The broadcast input, if there is one."""
        return None

    def check(
        self, function: StatefulFunction, columns: pa.Schema | None, parallelism: int
    ) -> None:
        """Refuse options that contradict each other, as far as the input's columns are known.

        Raises
        ------
        DeclarationError, InvalidArgumentError, WrongTypeError
            As for an operator on Spark.
        """
        self.spec(function, self.key_names, None)
        owner = f"operator {self.uid!r}"
        if not self.allow_pickle:
            refuse_pickled(declarations(function), owner)
        if self.event_time is None:
            for name, given in (
                ("allowed_delay", self.allowed_delay_ms is not None),
                ("late", self.late != PROCESS_LATE),
            ):
                if given:
                    raise InvalidArgumentError(
                        f"{owner}: {name} is about how late rows are by their event time: also "
                        "name the column of the event time, event_time='column'"
                    )
        if columns is not None:
            self._check_columns(function, columns, owner)
        self.require_state(function, owner)
        integer(parallelism, f"{owner}: parallelism")
        if not 1 <= parallelism <= self.max_parallelism:
            raise InvalidArgumentError(
                f"parallelism is 1 to max_parallelism ({self.max_parallelism}), not {parallelism}"
            )

    def require_state(self, function: StatefulFunction, owner: str) -> None:
        """Refuse a function that keeps nothing."""
        require_state(function, owner)

    def _check_columns(self, function: StatefulFunction, columns: pa.Schema, owner: str) -> None:
        self.spec(function, self.key_names, columns)
        for name in self.key_names:
            if name not in columns.names:
                raise InvalidArgumentError(
                    f"{owner}: key column {name!r} is not among {', '.join(columns.names)}"
                )
        if self.event_time is not None:
            what = f"{owner}: event-time column {self.event_time!r}"
            event_times(pa.array([], columns.field(self.event_time).type), what)

    def spec(
        self, function: StatefulFunction, key: tuple[str, ...], columns: pa.Schema | None
    ) -> FunctionSpec:
        """The spec that a task gets; without columns there are no rows."""
        known = columns is not None
        return FunctionSpec(
            function,
            key=key,
            columns=tuple(columns.names) if columns is not None else (),
            output=self.output,
            event_time=self.event_time if known else None,
            side_outputs=self.sides,
            late=self.late if known else PROCESS_LATE,
            key_types=self.key_types(columns),
            broadcast=self.broadcast,
        )

    def key_types(self, columns: pa.Schema | None) -> tuple[StateType, ...]:
        """The types of the key's columns, if one of them is a struct."""
        if columns is None or not self.names_only:
            return ()
        types = [columns.field(name).type for name in self.key_names if name in columns.names]
        if not any(map(at.is_struct, types)):
            return ()
        return tuple(parse_type(type_, "the key") for type_ in types)


@dataclass
class Attempt:
    """The result of one computation of an epoch; it counts once the epoch is published."""

    clock: Clock
    rows: list[Any] = field(default_factory=list)
    sides: list[tuple[str, Any]] = field(default_factory=list)
    observed: list[list[Any]] = field(default_factory=list)
    drain: bool = False
    """Whether event time ends after the rows."""


class LocalOperator:
    """An operator and its tables.

    Parameters
    ----------
    function : StatefulFunction
        Copied for each task.
    options : OperatorOptions
        The operator's options.
    ranges : RangeTables
        Its tables.
    """

    def __init__(
        self, function: StatefulFunction, options: OperatorOptions, ranges: RangeTables
    ) -> None:
        self.function = function
        self.options = options
        self.ranges = ranges

    def run_epoch(
        self,
        rows: pa.RecordBatch | None,
        columns: pa.Schema | None,
        clock: Clock,
        fault: Fault | None,
        *,
        drain: bool,
    ) -> Attempt:
        """Compute an epoch and seal it; after an injected failure compute it again.

        Parameters
        ----------
        rows : RecordBatch, optional
            The epoch's input.
        columns : pyarrow.Schema, optional
            The input's columns, as far as they are known.
        clock : Clock
            The epoch's times, which are not changed.
        fault : Fault, optional
            Where the epoch is to fail.
        drain : bool
            Whether event time ends after the rows.

        Returns
        -------
        Attempt
            The attempt that counts.

        Raises
        ------
        ReplayError
            The fault has happened, and the replay yields something else.
        """
        attempt = Attempt(replace(clock), drain=drain)
        try:
            self._run(rows, columns, attempt, fault)
            return attempt
        except InjectedFailureError:
            replay = Attempt(replace(clock), drain=drain)
            self._run(rows, columns, replay, None, attempt)
            return replay

    def _run(
        self,
        rows: pa.RecordBatch | None,
        columns: pa.Schema | None,
        attempt: Attempt,
        fault: Fault | None,
        failed: Attempt | None = None,
    ) -> None:
        """Compute an epoch once, into `attempt`; compare it with an earlier attempt that failed."""

        def reach(point: Literal["seal", "publish"]) -> None:
            if fault is not None:
                fault.reach(point)

        with self.ranges.epoch(lambda: reach("publish")):
            for share, part in self.ranges.shares(rows):
                self._task(share, part, columns, attempt, fault, failed is not None)
            if failed is not None:
                for before, after in zip(failed.observed, attempt.observed, strict=False):
                    check_replay(attempt.clock.epoch, before, after)
            reach("seal")

    def _task(
        self,
        share: RangeTable,
        rows: pa.RecordBatch | None,
        columns: pa.Schema | None,
        attempt: Attempt,
        fault: Fault | None,
        observe: bool,
    ) -> None:
        function = copied(self.function)
        if fault is not None or observe:
            observer = Observer(function, fault)
            attempt.observed.append(observer.seen)
        clock = attempt.clock
        runtime = self._runtime(function, share, columns, attempt)
        try:
            runtime.open()
            if clock.epoch > 1:
                runtime.notify(News(complete=clock.epoch - 1))
            for piece in self._pieces(runtime, rows):
                attempt.rows += rows_of(piece)
            for piece in runtime.finish():
                attempt.rows += rows_of(piece)
        finally:
            runtime.close()
        self._seen(runtime, clock)

    def _runtime(
        self,
        function: StatefulFunction,
        share: RangeTable,
        columns: pa.Schema | None,
        attempt: Attempt,
    ) -> FunctionRuntime:
        """Make what runs the function over one range's rows."""
        key = tuple(name for name, _ in self.ranges.key)
        clock = attempt.clock
        context = RuntimeContext(
            uid=self.options.uid,
            epoch=clock.epoch,
            key_group_range=(share.first, share.last),
            parallelism=len(self.ranges),
            max_parallelism=self.options.max_parallelism,
            processing_time=clock.processing_time,
        )
        return FunctionRuntime(
            self._spec(function, key, columns),
            share.backend,
            context,
            lambda tag, piece: attempt.sides.append((tag, piece)),
            time=self._time(clock),
            drain=attempt.drain,
            broadcast=self._broadcast(share),
            invalid={"left": self._invalid(attempt, key)},
        )

    def _invalid(self, attempt: Attempt, key: Sequence[str] = ()) -> InvalidRows:
        """What takes the invalid rows out."""
        return InvalidRows(
            f"operator {self.options.uid!r}",
            key,
            self.options.invalid,
            attempt.clock.processing_time,
            lambda tag, piece: attempt.sides.append((tag, piece)),
        )

    def _spec(
        self, function: StatefulFunction, key: tuple[str, ...], columns: pa.Schema | None
    ) -> FunctionSpec:
        return self.options.spec(function, key, columns)

    def _broadcast(self, share: RangeTable) -> BroadcastStates | None:
        """The broadcast states of a range's instance, if the function has any."""
        return None

    def _pieces(self, runtime: FunctionRuntime, rows: pa.RecordBatch | None) -> Iterator[Any]:
        """What the function yields for a task's rows."""
        if rows is not None:
            size = self.options.batch_rows
            for begin in range(0, rows.num_rows, size):
                yield from runtime.process(rows.slice(begin, size))

    def _seen(self, runtime: FunctionRuntime, clock: Clock) -> None:
        """Record what a task has seen."""
        invalid = sum(each.rows for each in runtime.invalid.values())
        clock.see(runtime.max_event_time, runtime.late_rows, invalid)

    def _time(self, clock: Clock) -> OperatorTime | None:
        """The operator's event time: as of an operator whose rows come from a source."""
        if self.options.event_time is None and clock.watermark is None:
            return None
        return OperatorTime(clock.watermark, clock.watermark)
