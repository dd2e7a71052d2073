"""A stateful function as an operator: called for one task's rows, and for its timers.

Thread safety: as `pystate.operators.runtime.task`.

Invariants
----------
1. A task handles all of its rows first. Then all event-time timers fire that the watermark has
   reached, then all processing-time timers that the epoch's processing time has reached. Only then
   is the last output emitted. `RuntimeContext.watermark` is the late bound while rows are handled,
   and the watermark while timers fire: its end, in an epoch that drains.
2. Rows, times and timers depend only on the input, the state, the operator's event time and the
   processing time of the context, so that a replay of the epoch does the same again. No clock is
   read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import Any, NamedTuple, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from pystate.base.notes import add_note
from pystate.checkpoint.refs import INPUT
from pystate.epochs.listeners import CheckpointNotice
from pystate.errors import (
    DeclarationError,
    InvalidArgumentError,
    NoCurrentKeyError,
    NoEventTimeError,
)
from pystate.operators.functions.base import StatefulFunction
from pystate.operators.functions.binding import (
    Registry,
    Shape,
    bind,
    declarations,
    has_timers,
    in_batches,
    instead_of_missing,
    namespace_type,
    shape,
    unbind,
)
from pystate.operators.functions.context import RuntimeContext, Timers
from pystate.operators.runtime.broadcast import BroadcastCalls
from pystate.operators.runtime.call_shapes import (
    Call,
    Calls,
    CoCalls,
    CoVectorCalls,
    FiringLimit,
    KeyRowsCalls,
    RowCalls,
    TwoInputs,
    VectorCalls,
    is_arrow_batch,
    is_batch,
)
from pystate.operators.runtime.event_time import MAX_WATERMARK, event_times, instants
from pystate.operators.runtime.function_spec import FunctionSpec
from pystate.operators.runtime.instance_state import InstanceState
from pystate.operators.runtime.invalid_rows import InvalidRows
from pystate.operators.runtime.late_rows import SIDES, LateInputs, LateRows
from pystate.operators.runtime.output import SideOutputs, shown
from pystate.operators.runtime.rows import unreadable
from pystate.operators.runtime.task import Operator, TaskContext
from pystate.redaction import logger
from pystate.state.key_batch import KeyBatch
from pystate.state.operator_state import KeylessState
from pystate.tables.backend import KeyedStateBackend
from pystate.tables.timers import TimeDomain

_LOG = logger("pystate.operators.runtime.function_operator")

_SHAPES: dict[Shape, type[Calls]] = {
    "process": RowCalls,
    "process_rows": KeyRowsCalls,
    "vectorized": VectorCalls,
    "co": CoCalls,
    "co_vectorized": CoVectorCalls,
}

_NO_KEY_YET = (
    "none is in open, which comes before the task's first row; use states and timers in process "
    "and on_timer, where the key of the row or timer is"
)

_NO_EVENT_TIME = (
    "the operator has no event time, so there is no watermark; name the column that has it, "
    "event_time='column', in key_by or the harness (over an RDD a function, in partition_by), or "
    "give it rows of operators that have event time, and no others"
)

#: The input of broadcast rows.
BROADCAST = "broadcast"


class Elements(NamedTuple):
    """Rows of any class, as `KeyedProcessFunction.process` gets them one by one."""

    columns: Sequence[pa.Array[Any]]
    """The key columns."""
    keys: Sequence[Any]
    rows: Sequence[Any]


@dataclass(frozen=True)
class _Input:
    """How a function is called for the rows of one input."""

    calls: Calls
    invalid: InvalidRows
    late: LateRows
    event_time: str | None
    """The column with the time at which a row happened."""


class FunctionOperator(Operator):
    """A user's function over rows by key.

    `late` is given for a function of two inputs. `broadcast` are the states of one that has a
    broadcast input; `TaskContext.beside` has them.
    """

    def __init__(
        self,
        spec: FunctionSpec,
        late: LateInputs | None = None,
        broadcast: Mapping[str, KeylessState[Any]] | None = None,
    ) -> None:
        self.spec = spec
        self.call: Call | None = None
        self.named = namespace_type(spec.function) is not None
        self._late_inputs = late
        self._broadcast_states = broadcast
        self._has_timers = has_timers(spec.function)
        self._in_namespace = False
        self._domains = {
            d.ttl.time for d in declarations(spec.function).values() if d.ttl is not None
        }
        self._states: InstanceState | None = None
        self._broadcast: BroadcastCalls | None = None
        self._is_bound = False

    def open(self, task: TaskContext) -> None:
        """Give the function its handles, call its `open`, and tell it of checkpoints."""
        function = self.spec.function
        self.task, self.backend, self.drain = task, task.backend, task.drain
        #: Makes sure that timers come to an end.
        self.firing = FiringLimit(task.uid)
        batches = in_batches(function) or shape(function) == "instance_rows"
        self._sides = SideOutputs(
            self.spec.side_outputs,
            task.side,
            task.owner,
            is_batch if batches else is_arrow_batch,
            _emitter,
            self.spec.late_tag,
        )
        self.context = context = self._make_context()
        context.watermark = self._late_bound = task.late_bound
        #: Sets the backend's event time before each row or timer, if a state needs it.
        self.row_clock: Callable[[int | None], None] | None = (
            self._set_clock if "event" in self._domains else None
        )
        registry = self._open_states()
        self._calls = self._make_calls()
        self._inputs = self._make_inputs()
        if self._states is not None:
            self._broadcast = BroadcastCalls(self, self._calls, self._states)
        if task.time is None and self.row_clock is not None:
            self._refuse_event_time_ttl()
        self._is_bound = True
        bind(function, registry, self._states)
        if self._states is not None:
            self._states.read_only = True
        context._task = self
        if not self._has_timers:
            context._timers = self._no_timers()
        elif task.time is not None:
            context._timers = self.backend
        else:
            context._timers = _ProcessingTimers(self.backend, context.uid)
        if self._domains:
            self._set_clock(None)
        try:
            function.open(context)
        except NoCurrentKeyError as error:
            self._calls.keyless(error, _NO_KEY_YET)
            raise
        except Exception as error:
            self._note(error, "open")
            raise
        self._notify(task.notice)

    def _make_context(self, kind: type[RuntimeContext] = RuntimeContext) -> RuntimeContext:
        task, backend = self.task, self.backend
        return kind(
            uid=task.uid,
            epoch=task.epoch,
            key_group_range=backend.key_group_range,
            parallelism=task.parallelism,
            max_parallelism=backend.max_parallelism,
            processing_time=task.processing_time,
        )

    def _open_states(self) -> Registry:
        """Make what the function's handles come from."""
        if self._broadcast_states is not None:
            beside = self.task.beside
            assert beside is not None, "the task of the broadcast states"
            self._states = InstanceState.of_task(beside, self._broadcast_states)
        return self.backend

    def _make_calls(self) -> Calls:
        function = self.spec.function
        own: type[Calls] | None = type(function)._calls
        return (own or _SHAPES[shape(function)])(self)

    def _make_inputs(self) -> dict[str, _Input]:
        spec, calls, task = self.spec, self._calls, self.task
        column = spec.event_time if isinstance(spec.event_time, str) else None
        if spec.right is None:
            tag = spec.late_tag
            write = None if tag is None else partial(self._sides.late, tag)
            late = task.late(spec.late, write, bound=self._late_from())
            return {INPUT: _Input(calls, task.invalid(spec.key), late, column)}
        assert isinstance(calls, TwoInputs), "a function of two inputs"
        right, late_inputs = spec.right, self._late_inputs
        inputs: dict[str, _Input] = {}
        for side, key, time, word in (
            (SIDES[0], spec.key, column, spec.late),
            (SIDES[1], right.key, right.event_time, right.late),
        ):
            task.saw(None, input=side)
            to = late_inputs.writer(side, task.side) if late_inputs else None
            late = task.late(word, to, side, self._late_from())
            inputs[side] = _Input(calls.input(side), task.invalid(key, side), late, time)
        return inputs

    def _late_from(self) -> int | None:
        """The bound below which a row is late, if it is not simply the epoch's."""
        bound = self._at_least(self._late_bound)
        if bound is not None and self.spec.function._late_at_watermark:
            bound = min(bound, MAX_WATERMARK - 1) + 1
        return bound

    def _no_timers(self) -> Timers:
        return _NoTimers(self.spec.function)

    def _note(self, error: Exception, method: str) -> None:
        function = self.spec.function
        where = f"{type(function).__name__}.{method} of operator {self.context.uid!r}"
        add_note(error, f"in {where}{instead_of_missing(error, function)}")

    @property
    def watermark_ms(self) -> int | None:
        """The watermark with which the epoch ends, as far as it is known before its rows are."""
        return None if self.task.time is None else self.task.time.watermark_ms

    def _notify(self, notice: CheckpointNotice) -> None:
        """Tell the function of checkpoints; what it raises is only logged."""
        function = self.spec.function
        for call, epoch in (
            (function.on_checkpoint_complete, notice.complete),
            (function.on_checkpoint_aborted, notice.aborted),
        ):
            if epoch is None:
                continue
            try:
                call(epoch)
            except Exception:
                _LOG.exception("operator %r: %s(%d) failed", self.context.uid, call.__name__, epoch)

    def _refuse_event_time_ttl(self) -> NoReturn:
        states = declarations(self.spec.function).items()
        names = [repr(n) for n, d in states if d.ttl is not None and d.ttl.time == "event"]
        raise NoEventTimeError(
            f"operator {self.context.uid!r}: {', '.join(names)} would never expire: by event time, "
            f"and {_NO_EVENT_TIME}, or declare StateTtl(..., time='processing')"
        )

    def close(self) -> None:
        """Take the handles away and call the function's `close`."""
        if self._is_bound:
            self._is_bound = False
            unbind(self.spec.function)
            try:
                self.spec.function.close()
            except Exception as error:
                self._note(error, "close")
                raise

    def process(self, rows: Any, input: str = INPUT) -> Iterator[Any]:
        """Call the function for some rows of an input; yield its output.

        Broadcast rows are never late: they are handled whatever their event time is.
        """
        if input == BROADCAST:
            yield from self._process_broadcast(rows)
            return
        if isinstance(rows, Elements):
            yield from self._process_elements(rows)
            return
        given, times = self._inputs[input], None
        if given.event_time is not None:
            rows, times = self._on_time(rows, given.event_time, given)
        if rows.num_rows:
            yield from self._called(given.calls, rows, times, given.invalid)
            self.leave_namespace()

    def _called(
        self,
        calls: Calls,
        rows: pa.RecordBatch,
        times: pa.Array[Any] | None,
        invalid: InvalidRows,
    ) -> Iterator[Any]:
        """Call the function for some rows, without those of which a value cannot be in Python."""
        try:
            return calls.process(rows, times)
        except (InvalidArgumentError, ValueError, OverflowError):
            # Values are read before the first call.
            bad = unreadable(calls.read(rows))
            if not bad.any():
                raise
        rows = invalid.without(
            rows, bad, lambda i: "has a date or timestamp that is not in Python's years 1 to 9999"
        )
        if times is not None:
            times = times.filter(pa.array(~bad))
        return calls.process(rows, times)

    def _process_broadcast(self, rows: pa.RecordBatch) -> Iterator[Any]:
        calls, given = self._broadcast, self.spec.broadcast
        assert calls is not None and given is not None, "a function with a broadcast input"
        times = None
        if given.event_time is not None:
            what = f"operator {self.context.uid!r}: event-time column {given.event_time!r}"
            times = event_times(rows.column(given.event_time), what)
            self.task.saw(pc.max(times).as_py(), input=BROADCAST)
        yield from calls.process(rows, times)

    def _process_elements(self, given: Elements) -> Iterator[Any]:
        calls = self._calls
        assert isinstance(calls, RowCalls), "only for the shape process"
        if not callable(self.spec.event_time):
            return calls.process_elements(*given)
        what = f"operator {self.context.uid!r}: the event time of an element"
        columns, keys, rows = given
        times = instants(map(self.spec.event_time, rows), what)
        late = self._inputs[INPUT].late.among(times)
        if late is not None:
            tag = self.spec.late_tag
            if tag is not None:
                for row in compress(rows, late.to_pylist()):
                    self._sides.output(tag, row, (None, None))
            on_time = pc.call_function("invert", [late])
            columns, times = [c.filter(on_time) for c in columns], times.filter(on_time)
            kept = on_time.to_pylist()
            keys, rows = list(compress(keys, kept)), list(compress(rows, kept))
        return calls.process_elements(columns, keys, rows, times.to_pylist())

    def finish(self) -> Iterator[Any]:
        """End the input: handle rows that were held back, fire timers, and emit side outputs.

        It must be called, and its result consumed, even if there were no rows.
        """
        yield from self._calls.finish()
        self._advance_watermark()
        if self._has_timers:
            yield from self._fire_timers()
        self._sides.flush()

    def _advance_watermark(self) -> None:
        """Go on to the watermark with which the epoch ends."""
        if self.task.time is not None or self.drain:
            self.context.watermark = self.task.watermark

    # -- calls of the function's context

    def output(self, tag: str, row: Any) -> None:
        """See `RuntimeContext.output`."""
        call = self.call
        keyed = None if call is None else call.keyed
        self._sides.output(tag, row, (call, None if keyed is None else keyed.key))

    def set_namespace(self, value: Any) -> None:
        """See `RuntimeContext.set_namespace`."""
        if not self.named:
            name = type(self.spec.function).__name__
            raise DeclarationError(
                f"{name} declares no namespace: give the class their type, for example "
                "namespace = 'long'"
            )
        if not self._calls.one_key:
            raise InvalidArgumentError(
                f"operator {self.context.uid!r}: set_namespace is for functions that see one key "
                "at a time; in a VectorizedFunction the namespaces of the key batch count: take "
                "keys.in_namespaces(namespaces) and use that"
            )
        self.backend.set_current_namespace(value)
        self._in_namespace = value is not None

    def apply_to_keyed_state(self, state: Any, function: Callable[[Any, Any], None]) -> None:
        """See `RuntimeContext.apply_to_keyed_state`."""
        if self._broadcast is None:
            raise InvalidArgumentError(
                f"operator {self.context.uid!r}: apply_to_keyed_state is for process_broadcast of "
                "a KeyedBroadcastProcessFunction"
            )
        self._broadcast.apply(state, function)

    def leave_namespace(self) -> None:
        """Go back to the default namespace, after a call that may have left it."""
        if self._in_namespace:
            self.backend.set_current_namespace(None)
            self._in_namespace = False

    # -- time

    def _fire_timers(self) -> Iterator[Any]:
        context = self.context
        while True:
            until = self._at_least(context.watermark)
            if until is not None:
                yield from self._calls.fire("event", until)
            if not (yield from self._calls.fire("processing", context.processing_time)):
                return

    def _at_least(self, watermark: int | None) -> int | None:
        """A watermark, or the function's least one if it is below."""
        least = self.spec.function._least_watermark_ms
        if least is None or self.task.time is None:
            return watermark
        return least if watermark is None else max(watermark, least)

    def _set_clock(self, event_time: int | None) -> None:
        self.backend.set_clock(
            processing_time=self.context.processing_time,
            watermark=self._late_bound,
            event_time=event_time,
        )

    def _on_time(
        self, rows: pa.RecordBatch, column: str, given: _Input
    ) -> tuple[pa.RecordBatch, pa.Array[Any]]:
        """The rows for the function, and their event times."""
        what = f"operator {self.context.uid!r}: event-time column {column!r}"
        times = event_times(rows.column(column), what)
        rows, times = given.invalid.timed(rows, times)
        return given.late.without(rows, times)


def _emitter(given: tuple[Call | None, Any], one: bool) -> str | None:
    """Who has emitted a row: the method, and the key that was current, if it was `one`."""
    call, key = given
    if call is None:
        return None
    whose = f" for key {shown(key)}" if one and call.keyed is not None else ""
    return f"{whose} by {call.place()}"


class _ProcessingTimers:
    """Refuses event-time timers, which would never fire without a watermark."""

    def __init__(self, timers: KeyedStateBackend, uid: str) -> None:
        self._timers = timers
        self._uid = uid

    def register_timer(self, domain: TimeDomain, timestamp: int) -> None:
        self._refuse_event(domain)
        self._timers.register_timer(domain, timestamp)

    def register_timers(self, keys: KeyBatch, domain: TimeDomain, timestamps: Any) -> None:
        self._refuse_event(domain)
        self._timers.register_timers(keys, domain, timestamps)

    def delete_timer(self, domain: TimeDomain, timestamp: int) -> None:
        self._timers.delete_timer(domain, timestamp)

    def delete_timers(self, keys: KeyBatch, domain: TimeDomain, timestamps: Any) -> None:
        self._timers.delete_timers(keys, domain, timestamps)

    def _refuse_event(self, domain: TimeDomain) -> None:
        if domain == "event":
            raise NoEventTimeError(
                f"operator {self._uid!r}: an event-time timer would never fire: "
                f"{_NO_EVENT_TIME}, or register a processing-time timer"
            )


class _NoTimers:
    """Refuses timers if the function has no method to handle them."""

    def __init__(self, function: StatefulFunction) -> None:
        self._name = type(function).__name__
        vectorized = in_batches(function)
        self._wanted = (
            "on_timers(self, keys, timestamps, ctx)"
            if vectorized
            else "on_timer(self, key, timestamp, ctx)"
        )

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise DeclarationError(f"{self._name} uses timers and has no {self._wanted}: write it")
