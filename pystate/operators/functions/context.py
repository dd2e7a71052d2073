"""What a stateful function learns about its task and can ask it to do.

Thread safety: a context belongs to its task's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from pystate.errors import InvalidArgumentError
from pystate.state.handle import Elsewhere
from pystate.state.key_batch import KeyBatch
from pystate.tables.timers import TimeDomain


class Timers(Protocol):
    """Registers timers; a backend does."""

    def register_timer(self, domain: TimeDomain, timestamp: int) -> None: ...  # noqa: D102
    def delete_timer(self, domain: TimeDomain, timestamp: int) -> None: ...  # noqa: D102
    def register_timers(  # noqa: D102
        self, keys: KeyBatch, domain: TimeDomain, timestamps: Any
    ) -> None: ...
    def delete_timers(  # noqa: D102
        self, keys: KeyBatch, domain: TimeDomain, timestamps: Any
    ) -> None: ...


class Task(Protocol):
    """What else a context uses of a running task."""

    def output(self, tag: str, row: Any) -> None: ...  # noqa: D102
    def set_namespace(self, value: Any) -> None: ...  # noqa: D102
    def apply_to_keyed_state(self, state: Any, function: Any) -> None: ...  # noqa: D102


class _NoTask:
    """Stands for both if no task runs."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise InvalidArgumentError(f"{name}: the context belongs to no running task")

    def __repr__(self) -> str:
        return "<no task>"


@dataclass(slots=True)
class RuntimeContext:
    """The context of the task and of the row that a function works on.

    Attributes
    ----------
    uid : str
        The operator's name in checkpoints.
    epoch : int
        The epoch being computed.
    key_group_range : tuple of int
        First and last key group of the task, both inclusive.
    parallelism : int
        Number of ranges.
    max_parallelism : int
        Number of key groups.
    processing_time : int
        Milliseconds since 1970; the same for all rows of an epoch and for its replays.
    watermark : int or None
        The operator's watermark, in milliseconds since 1970: the event time up to which all its
        rows are assumed to have arrived. While timers fire it may be larger than while rows are
        handled, if the rows come from other operators. None before the first row with event time,
        and without event time; `MAX_WATERMARK` while a drain fires timers.
    timestamp : int or None
        Event time in milliseconds since 1970 of the current row, or of the event-time timer that
        fires. None if the operator has no event time, if the row's is null, or if a call handles
        several rows.
    time_domain : {"event", "processing"} or None
        The clock of the timer that fires; None while rows are handled.

    Notes
    -----
    A timer belongs to the current key and namespace. Registered several times for the same time, it
    is one timer and fires once. Timers fire at the end of an epoch: event-time timers once the
    watermark has reached their timestamp, processing-time timers once the epoch's processing time
    has.
    """

    uid: str
    epoch: int
    key_group_range: tuple[int, int]
    parallelism: int
    max_parallelism: int
    processing_time: int
    watermark: int | None = None
    timestamp: int | None = None
    time_domain: TimeDomain | None = None
    _timers: Timers = field(default=_NoTask(), repr=False, compare=False)
    _task: Task = field(default=_NoTask(), repr=False, compare=False)

    def register_event_time_timer(self, timestamp: int) -> None:
        """Have `on_timer` called once the watermark has reached `timestamp`.

        Parameters
        ----------
        timestamp : int
            Milliseconds since 1970. A timer for a time that is reached already fires at the end of
            this epoch.

        Raises
        ------
        NoCurrentKeyError
            No key is current.
        DeclarationError
            The function has no ``on_timer``.
        NoEventTimeError
            The operator has no event time: there is no watermark, and the timer would never fire.
        """
        self._timers.register_timer("event", timestamp)

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Have `on_timer` called once the processing time has reached `timestamp`.

        The parameter and errors are those of `register_event_time_timer`; it needs no event time.
        """
        self._timers.register_timer("processing", timestamp)

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Delete a timer of the current key and namespace; nothing happens if there is none.

        Parameters
        ----------
        timestamp : int
            The timer's time, in milliseconds since 1970.
        """
        self._timers.delete_timer("event", timestamp)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Delete a timer of the current key and namespace; see `delete_event_time_timer`."""
        self._timers.delete_timer("processing", timestamp)

    def register_event_time_timers(self, keys: KeyBatch, timestamps: Any) -> None:
        """Register a timer per key.

        Parameters
        ----------
        keys : KeyBatch
            The keys of the timers.
        timestamps : array-like or int
            Milliseconds since 1970, as many as there are keys, or one for all; a null registers
            none.
        """
        self._timers.register_timers(keys, "event", timestamps)

    def register_processing_time_timers(self, keys: KeyBatch, timestamps: Any) -> None:
        """Register a timer per key; see `register_event_time_timers`."""
        self._timers.register_timers(keys, "processing", timestamps)

    def delete_event_time_timers(self, keys: KeyBatch, timestamps: Any) -> None:
        """Delete a timer per key; absent timers are ignored.

        The parameters are those of `register_event_time_timers`.
        """
        self._timers.delete_timers(keys, "event", timestamps)

    def delete_processing_time_timers(self, keys: KeyBatch, timestamps: Any) -> None:
        """Delete a timer per key; see `delete_event_time_timers`."""
        self._timers.delete_timers(keys, "processing", timestamps)

    def output(self, tag: str, row: Any) -> None:
        """Emit a row to a side output.

        Parameters
        ----------
        tag : str
            One of the operator's declared side outputs.
        row : tuple, Row, dict, RecordBatch or Table
            A row, as `KeyedProcessFunction.process` yields them; or a batch, whose columns are
            matched by name. In a `VectorizedFunction` a dict is a batch, with an array for each
            column.

        Raises
        ------
        InvalidArgumentError
            No such side output is declared; the message lists those that are.
        WrongTypeError
            The row does not match the side output's schema. The error may come later, when the row
            is written, at the latest at the end of the epoch.
        """
        self._task.output(tag, row)

    def set_namespace(self, value: Any) -> None:
        """Make a namespace of the current key current, for states and timers.

        It lasts until the call returns; None is the default namespace.

        Parameters
        ----------
        value : object
            A value of the type that the function's class declares: ``namespace = "long"``.

        Raises
        ------
        DeclarationError
            The class declares no namespace.
        InvalidArgumentError
            The function is a `VectorizedFunction`, which uses the namespaces of the `KeyBatch`.
        """
        self._task.set_namespace(value)

    def apply_to_keyed_state(self, state: Any, function: Callable[[Any, Any], None]) -> None:
        """Visit every key of the task that has a state, while a broadcast row is handled.

        Parameters
        ----------
        state : handle
            One of the function's keyed states, ``self.limit``.
        function : callable
            ``function(key, state)`` is called for each key that has something in the state, with
            that key, and its namespace, as the current one: it may read, write and clear any keyed
            state, and register timers. It returns nothing. In a `VectorizedBroadcastFunction` it is
            called with many keys at once, as a `KeyBatch`.

        Raises
        ------
        InvalidArgumentError
            No row of a broadcast input is being handled, or `state` is no keyed state.

        Notes
        -----
        Keys come in no particular order. Each is visited once; a namespace that is first written
        meanwhile may or may not be visited.
        """
        self._task.apply_to_keyed_state(state, function)


@dataclass(slots=True)
class InstanceContext(RuntimeContext):
    """The context of an instance and of the row that its function works on.

    It has what `RuntimeContext` has, except for timers and namespaces, which belong to keys.

    Attributes
    ----------
    instance : int
        The number of the instance, from 0; there are `parallelism` of them.
    redistributed : bool
        Whether the number of instances has changed since the last epoch: the states were divided
        anew, right before `open`.
    """

    instance: int = 0
    redistributed: bool = False


_REGISTER = (
    "register_event_time_timer(timestamp) or register_processing_time_timer(timestamp), in "
    "milliseconds since 1970"
)
_DELETE = "delete_event_time_timer(timestamp) or delete_processing_time_timer(timestamp)"
_LIST = (
    "the timestamps that you register into a ListState or ValueState of your own: timers are not "
    "listed"
)
#: Names that other libraries use, and what to write here.
_OTHERS = {
    "registerTimer": _REGISTER,
    "register_timer": _REGISTER,
    "registerEventTimeTimer": "register_event_time_timer(timestamp)",
    "registerProcessingTimeTimer": "register_processing_time_timer(timestamp)",
    "deleteTimer": _DELETE,
    "delete_timer": _DELETE,
    "deleteEventTimeTimer": "delete_event_time_timer(timestamp)",
    "deleteProcessingTimeTimer": "delete_processing_time_timer(timestamp)",
    "listTimers": _LIST,
    "list_timers": _LIST,
    "timerService": "ctx.register_event_time_timer(timestamp) and the like",
    "timer_service": "ctx.register_event_time_timer(timestamp) and the like",
    "current_watermark": "watermark",
    "currentWatermark": "watermark",
    "getCurrentWatermarkInMs": "watermark",
    "current_processing_time": "processing_time",
    "currentProcessingTime": "processing_time",
    "getCurrentProcessingTimeInMs": "processing_time",
    "event_time": "timestamp",
    "key": "key, the argument of the method: the current key is handed to it",
    "current_key": "key, the argument of the method: the current key is handed to it",
    "get_current_key": "key, the argument of the method: the current key is handed to it",
    "getCurrentKey": "key, the argument of the method: the current key is handed to it",
    "collect": "yield row",
    "emit": "yield row",
    "side_output": "output(tag, row)",
    "applyToKeyedState": "apply_to_keyed_state(self.state, function)",
}
for _name, _instead in _OTHERS.items():
    setattr(RuntimeContext, _name, Elsewhere(_name, _instead))
for _name in ("subtask", "index", "subtask_index", "getIndexOfThisSubtask", "partition_id"):
    setattr(InstanceContext, _name, Elsewhere(_name, "instance"))
