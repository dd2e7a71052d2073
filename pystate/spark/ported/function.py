"""A processor of Spark's kind as a stateful function of pystate.

`ported` runs the processor's `init` once on the driver, with a handle that notes its states, and
makes a function that declares them. In a task `init` runs again, over the task's states.

Thread safety: as any stateful function.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    TimerValues,
)

from pystate.errors import DeclarationError
from pystate.operators.functions.base import RESERVED, KeyedProcessFunction
from pystate.operators.functions.binding import for_tasks
from pystate.operators.functions.context import RuntimeContext
from pystate.spark.ported.calls import PortedCalls
from pystate.spark.ported.handle import RecordingHandle, RequestedStates, TaskHandle, TimeMode
from pystate.spark.ported.rows import Form, use_quick_rows
from pystate.spark.ported.states import StateRequest
from pystate.spark.ported.timers import KeyTimers
from pystate.state.declaration import State
from pystate.state.value import ValueState
from pystate.tables.backend import KeyedStateBackend
from pystate.tables.timers import TimeDomain

_DOMAINS: dict[TimeMode, TimeDomain] = {"ProcessingTime": "processing", "EventTime": "event"}
#: The state of a processor that has neither states nor timers; nothing is ever stored in it.
_UNUSED = "unused"


@dataclass(frozen=True)
class Options:
    """How a processor is run."""

    uid: str
    time_mode: TimeMode
    key: tuple[str, ...]
    """The grouping columns."""
    form: Form
    event_time: str | None = None
    """The column of its output that has the event time."""
    initial: bool = False
    """Whether the rows are the processor's initial state."""

    @property
    def owner(self) -> str:
        """What errors name."""
        return f"operator {self.uid!r}"


class PortedFunction(KeyedProcessFunction):
    """Calls a processor; a subclass that `ported` makes declares its states."""

    _calls = PortedCalls
    _late_at_watermark = True
    # As in Spark's streams the watermark is 0 before there is one, and never below.
    _least_watermark_ms = 0
    #: The task's state; the calls set it.
    _backend: KeyedStateBackend

    def __init__(
        self,
        processor: StatefulProcessor,
        requested: RequestedStates,
        options: Options,
        stored: Mapping[str, str],
    ) -> None:
        self._processor = processor
        self._requested = requested
        self._options = options
        #: The names under which the states are kept.
        self._stored = stored

    def __reduce__(self) -> tuple[Any, ...]:
        return _function_of, (self._processor, self._requested, self._options)

    def open(self, ctx: RuntimeContext) -> None:
        """Run `init`."""
        use_quick_rows()
        options = self._options
        domain = _DOMAINS.get(options.time_mode)
        self._timers = None if domain is None else KeyTimers(domain, self._backend, ctx)
        self._handle = TaskHandle(
            options.owner, options.time_mode, self._requested, self._state, self._timers, ctx.epoch
        )
        self._processor.init(self._handle)
        self._handle.begin()

    def _state(self, request: StateRequest) -> Any:
        return request.state(self.__dict__[self._stored[request.name]])

    def process_rows(self, key: Any, batch: Any, ctx: RuntimeContext) -> Any:
        """Call the processor for the rows of a key, in the form that it gets them in."""
        if not self._options.initial:
            return self._processor.handleInputRows(key, batch, self._values)
        for row in batch:
            self._processor.handleInitialState(key, row, self._values)
        return None

    def close(self) -> None:
        """Run `close`, if `init` was called."""
        handle = self.__dict__.get("_handle")
        if handle is not None:
            handle.end()
            self._processor.close()

    def beginning_with(self, rows: Any) -> PortedFunction:
        """The same, which a harness begins with these rows of the initial state."""
        self._initial_rows = rows
        return self

    @property
    def _beginning(self) -> tuple[Any, PortedFunction] | None:
        rows = self.__dict__.get("_initial_rows")
        return None if rows is None else (rows, self.for_initial())

    def note_input(self, columns: Sequence[str], *, timed: bool) -> None:
        """Tell a processor that asks for it what its input is."""
        note = getattr(self._processor, "takes_input", None)
        if note is not None:
            note(columns, timed=timed)

    def for_initial(self) -> PortedFunction:
        """The same for the rows of the initial state."""
        options = replace(self._options, initial=True)
        return _function_of(self._processor, self._requested, options)

    # -- for the calls

    @property
    def dropped(self) -> frozenset[str]:
        """The states that the checkpoint may have, and that `init` has deleted."""
        return frozenset(self._stored[name] for name in self._requested.deleted)

    @property
    def options(self) -> Options:
        """How the processor is run."""
        return self._options

    @property
    def domain(self) -> TimeDomain | None:
        """The clock of the processor's timers."""
        return _DOMAINS.get(self._options.time_mode)

    def set_times(self, processing_time: int, watermark: int | None) -> None:
        """Set what the processor is told of the time, in milliseconds since 1970."""
        if self._options.time_mode == "None":
            self._values = TimerValues()
        else:
            least = self._least_watermark_ms
            watermark = least if watermark is None else max(watermark, least)
            self._values = TimerValues(processing_time, watermark)


class TimedFunction(PortedFunction):
    """The same with timers."""

    def on_timer(self, key: Any, timestamp: int, ctx: RuntimeContext) -> Any:
        """Call the processor for a timer."""
        return self._processor.handleExpiredTimer(
            key=key, timerValues=self._values, expiredTimerInfo=ExpiredTimerInfo(timestamp)
        )


def _copy_for_tasks(processor: Any) -> Any:
    return for_tasks(processor, copy.deepcopy, "init(self, handle)")


def ported_function(
    processor: Any, options: Options, copied: Callable[[Any], Any] = _copy_for_tasks
) -> PortedFunction:
    """Return a function that runs a processor."""
    if not isinstance(processor, StatefulProcessor):
        hint = "; pass an instance" if isinstance(processor, type) else ""
        raise DeclarationError(
            f"{options.owner}: {processor!r:.80} is no StatefulProcessor of "
            f"pyspark.sql.streaming{hint}"
        )
    handle = RecordingHandle(options.owner, options.time_mode)
    trial = copied(processor)
    trial.init(handle)
    handle.in_init = False
    trial.close()
    return _function_of(processor, handle.requested, options)


def _function_of(
    processor: StatefulProcessor, requested: RequestedStates, options: Options
) -> PortedFunction:
    base = PortedFunction if options.time_mode == "None" else TimedFunction
    taken = {*RESERVED, *dir(base), *options.key, _UNUSED}
    stored: dict[str, str] = {}
    for name in (*requested.states, *requested.deleted):
        own = name
        while own in taken or own.startswith("__"):
            own = f"{own.lstrip('_')}_"
        stored[name] = own
        taken.add(own)
    states: dict[str, State[Any]] = {
        stored[name]: request.declaration() for name, request in requested.states.items()
    }
    if not states and options.time_mode == "None":
        states[_UNUSED] = ValueState("boolean")
    kind: Any = type(base)
    members = {"__module__": __name__, **states}
    function: type[PortedFunction] = kind(type(processor).__name__, (base,), members)
    return function(processor, requested, options, stored)
