"""Stateful functions: the classes that users write.

A class declares its states as attributes. An instance gets its own handles when it is bound to a
backend, and loses them when it is unbound, copied or pickled.

Thread safety: an instance runs in one task, on one thread, at a time.
"""

from __future__ import annotations

from abc import ABCMeta
from inspect import isasyncgenfunction, iscoroutinefunction, isfunction, signature
from typing import Any, ClassVar, NoReturn, TypeAlias

import numpy as np
import pyarrow as pa

from pystate.errors import DeclarationError
from pystate.operators.functions.context import InstanceContext, RuntimeContext
from pystate.state.declaration import State
from pystate.state.key_batch import KeyBatch
from pystate.types.state_type import TypeLike

#: The methods of a function that pystate calls.
CALLED = frozenset(
    [
        "process",
        "process_rows",
        "process_left",
        "process_right",
        "process_broadcast",
        "process_left_rows",
        "process_right_rows",
        "on_timer",
        "on_timers",
        "on_epoch_end",
        "open",
        "close",
        "on_checkpoint_complete",
        "on_checkpoint_aborted",
    ]
)
#: Names that mean something else on a stateful function.
RESERVED = CALLED | {"ctx", "key", "namespace", "mro"}
_ON_TIMER = "on_timer(self, key, timestamp, ctx)"
_PROCESS = "process(self, key, row, ctx)"
_BROADCAST = "process_broadcast(self, row, ctx)"
#: Methods that Spark or Flink calls, but pystate does not.
_NEVER_CALLED = {
    "onTimer": _ON_TIMER,
    "handleExpiredTimer": _ON_TIMER,
    "on_expired_timer": _ON_TIMER,
    "notifyCheckpointComplete": "on_checkpoint_complete(self, epoch)",
    "notifyCheckpointAborted": "on_checkpoint_aborted(self, epoch)",
    "processElement": _PROCESS,
    "process_element": _PROCESS,
    "handleInputRows": f"{_PROCESS}, or process_rows(self, key, batch, ctx) for all rows of a key",
    "processRows": "process_rows(self, key, batch, ctx)",
    "processBroadcastElement": _BROADCAST,
    "process_broadcast_element": _BROADCAST,
    "processElement1": "process_left(self, key, row, ctx), of a KeyedCoProcessFunction",
    "processElement2": "process_right(self, key, row, ctx), of a KeyedCoProcessFunction",
}


class _Namespace(dict[str, Any]):
    """A class body that notices when a state's name is used twice."""

    def __init__(self, class_name: str) -> None:
        super().__init__()
        self.class_name = class_name

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self and (_is_state(self[name]) or _is_state(value)):
            raise DeclarationError(
                f"{self.class_name}.{name} is defined twice: {_kind(self[name])} and "
                f"{_kind(value)}; a state's name belongs to it alone"
            )
        super().__setitem__(name, value)


class _FunctionType(ABCMeta):
    """Checks the declarations when a class is made."""

    @classmethod
    def __prepare__(cls, name: str, bases: tuple[type, ...], /, **options: Any) -> _Namespace:
        return _Namespace(name)

    def __new__(
        cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], /, **options: Any
    ) -> _FunctionType:
        for attribute, value in namespace.items():
            if _is_state(value):
                _check_name(name, attribute)
            if attribute in _NEVER_CALLED and callable(value):
                raise DeclarationError(
                    f"{name}.{attribute} would never be called: write {_NEVER_CALLED[attribute]}"
                )
            if attribute in CALLED and (iscoroutinefunction(value) or isasyncgenfunction(value)):
                raise DeclarationError(
                    f"{name}.{attribute} is async: a function is called row by row and awaits "
                    "nothing; write def"
                )
            for base in bases:
                inherited = _lookup(base, attribute)
                if inherited is not None and attribute in CALLED:
                    _check_call(f"{name}.{attribute}", value, inherited[1])
                if inherited is not None and (_is_state(value) or _is_state(inherited[1])):
                    raise DeclarationError(
                        f"{name}.{attribute} is {_kind(value)}, and {inherited[0]}.{attribute}, "
                        f"which it inherits, is {_kind(inherited[1])}: "
                        f"{_instead(value, *inherited)}"
                    )
        for attribute, owners in _inherited_states(bases).items():
            if len(owners) > 1 and attribute not in namespace:
                raise DeclarationError(
                    f"{name} inherits the state {attribute!r} from {' and from '.join(owners)}: "
                    "the name would be used twice; give one of them another name"
                )
        return super().__new__(cls, name, bases, dict(namespace), **options)


def _check_call(what: str, function: Any, declared: Any) -> None:
    """Refuse a method that cannot be called with the arguments of the inherited one."""
    if not (isfunction(function) and isfunction(declared)):
        return
    names = list(signature(declared).parameters)
    try:
        signature(function).bind(*names)
    except TypeError:
        raise DeclarationError(
            f"{what}{signature(function)} is called with ({', '.join(names)}): write "
            f"def {function.__name__}({', '.join(names)})"
        ) from None


def _is_state(value: object) -> bool:
    return isinstance(value, State)


def _kind(value: object) -> str:
    if _is_state(value):
        return f"the state {value!r}"
    if value is None:
        return "None"
    return "a method" if callable(value) else f"{type(value).__name__} {value!r:.40}"


def _instead(value: object, owner: str, inherited: object) -> str:
    """What to do in place of a definition that would hide an inherited one."""
    if not _is_state(inherited):
        return "give the state another name"
    if _is_state(value):
        return (
            "a subclass cannot declare a state again; change the declaration in "
            f"{owner} itself, or copy the class"
        )
    rest = (
        f"; to do without the state, take it out of {owner}, or copy the class"
        if value is None
        else "; give what is not a state another name"
    )
    return f"a subclass cannot hide a state{rest}"


def _check_name(class_name: str, name: str) -> None:
    if name in RESERVED:
        raise DeclarationError(
            f"{class_name}.{name}: {name!r} is reserved for a method of the function; "
            "give the state another name"
        )
    if name.startswith("__"):
        raise DeclarationError(
            f"{class_name}.{name}: a state's name does not begin with two underscores"
        )


def _lookup(base: type, name: str) -> tuple[str, Any] | None:
    for cls in base.__mro__:
        if name in cls.__dict__ and not name.startswith("__"):
            return cls.__name__, cls.__dict__[name]
    return None


def _inherited_states(bases: tuple[type, ...]) -> dict[str, list[str]]:
    owners: dict[str, list[str]] = {}
    classes = dict.fromkeys(cls for base in bases for cls in base.__mro__)
    for cls in classes:
        for name, value in cls.__dict__.items():
            if _is_state(value):
                owners.setdefault(name, []).append(cls.__name__)
    return owners


class StatefulFunction(metaclass=_FunctionType):
    """What `KeyedProcessFunction` and `VectorizedFunction` share: states, `open` and `close`.

    Attributes
    ----------
    namespace : type, optional
        The type of the namespaces, as DDL (``"long"``) or an Arrow type, if the class keeps states
        and timers by (key, namespace).
    """

    namespace: ClassVar[TypeLike | None] = None

    #: How an operator calls the function (`runtime.call_shapes.Calls`), if not as its
    #: methods say.
    _calls: ClassVar[Any] = None
    #: Whether a row at the watermark itself is late, too.
    _late_at_watermark: ClassVar[bool] = False
    #: What the watermark of its rows and event-time timers never is below, nor is there none.
    _least_watermark_ms: ClassVar[int | None] = None

    @property
    def _beginning(self) -> tuple[Any, StatefulFunction] | None:
        """Rows before the first epoch, and the function for them, where a harness is to run it."""
        return None

    def open(self, ctx: RuntimeContext) -> None:
        """Prepare for a task, before its first row. There is no current key."""

    def close(self) -> None:
        """Clean up after a task, even if it failed. States are no longer available."""

    def on_checkpoint_complete(self, epoch: int) -> None:
        """Learn that a checkpoint is complete: state, source position and output of an epoch.

        It is called on the workers, after `open`, in the next task of each range that has work. It
        is best effort: a call may be missing, and one for a later epoch includes all earlier ones.
        An error that it raises is only logged. There is no current key.

        Parameters
        ----------
        epoch : int
            The number of the complete epoch.
        """

    def on_checkpoint_aborted(self, epoch: int) -> None:
        """Learn that a checkpoint was given up; what it held is in the next one.

        It is called as `on_checkpoint_complete` is.

        Parameters
        ----------
        epoch : int
            The number of the epoch whose checkpoint failed.
        """

    def __setattr__(self, name: str, value: object) -> None:
        if _is_state(getattr(type(self), name, None)):
            _refuse_assignment(self, name)
        if _is_state(value):
            raise DeclarationError(
                f"{type(self).__name__}.{name} = {value!r}: a state is declared in the class's "
                "body; one that is assigned to an instance would never be kept"
            )
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        if _is_state(getattr(type(self), name, None)):
            _refuse_assignment(self, name)
        object.__delattr__(self, name)

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in self.__dict__.items()
            if not _is_state(getattr(type(self), name, None))
        }


def _refuse_assignment(function: StatefulFunction, name: str) -> NoReturn:
    raise DeclarationError(
        f"{type(function).__name__}.{name} is a state: it cannot be assigned or deleted; "
        f"use self.{name}.update(value) or self.{name}.clear()"
    )


class KeyedProcessFunction(StatefulFunction):
    """A function that sees one row, or one key's rows, at a time.

    Write either `process` or `process_rows`, which is faster if a key has many rows.

    Examples
    --------
    >>> import pystate as ps
    >>> class Counter(ps.KeyedProcessFunction):
    ...     n = ps.ValueState("long", default=0)
    ...
    ...     def process(self, key, row, ctx: ps.RuntimeContext):
    ...         self.n.update(self.n.value() + 1)
    ...         yield key, self.n.value()
    """

    def process(self, key: Any, row: Any, ctx: RuntimeContext) -> Any:
        """Handle one row.

        Parameters
        ----------
        key : object
            The row's key; a tuple if it has several columns.
        row : Row
            ``row["x"]`` is the column ``x``, and so is ``row.x`` unless `Row` has a method of that
            name. ``"x" in row`` and ``row.asDict()`` work as with Spark's `Row`.
        ctx : RuntimeContext
            The context of the task and the row.

        Returns
        -------
        iterable of tuple, Row or dict, or None
            The rows that the operator emits: yield each of them, or return a list. A row with names
            (a `Row` of Spark or of pystate, a dict, a named tuple) must have exactly the names of
            the schema; the values of a plain tuple or list are taken by position. A single tuple
            returned instead of a list of rows is refused.
        """
        raise DeclarationError(f"{type(self).__name__} has no process(self, key, row, ctx)")

    def process_rows(self, key: Any, batch: pa.RecordBatch, ctx: RuntimeContext) -> Any:
        """Handle all rows of a key in the epoch; written instead of `process`.

        Parameters
        ----------
        key : object
            The rows' key; a tuple if it has several columns.
        batch : pyarrow.RecordBatch
            The rows, with all columns of the input, in the order that `key_by` asks for.
        ctx : RuntimeContext
            The context of the task; `timestamp` is None.

        Returns
        -------
        iterable of tuple, Row or dict, or None
            Rows as `process` yields them.
        """
        raise DeclarationError(f"{type(self).__name__} has no process_rows(self, key, batch, ctx)")

    def on_timer(self, key: Any, timestamp: int, ctx: RuntimeContext) -> Any:
        """Handle a timer that was registered with `ctx`, when it fires.

        Parameters
        ----------
        key : object
            The timer's key. It is the current key, and the timer's namespace is the current one.
        timestamp : int
            The time that the timer was registered for, in milliseconds since 1970.
        ctx : RuntimeContext
            `time_domain` says which clock the timer waited for. If a timer registered here is
            already due, it fires in the same epoch.

        Returns
        -------
        iterable of tuple or None
            Rows as `process` yields them. The timers of one key fire in the order of their
            timestamps.
        """
        raise DeclarationError(f"{type(self).__name__} has no on_timer(self, key, timestamp, ctx)")


class KeyedCoProcessFunction(StatefulFunction):
    """A function of two inputs, over one key's state: `KeyedFrame.connect` gives it both.

    Write a method for each input: the one with a row, or the one with all rows of a key in the
    epoch, which is faster if a key has many. Rows of the second kind wait until both inputs end;
    then the left one's are handled, then the right one's.

    Examples
    --------
    >>> import pystate as ps
    >>> class Priced(ps.KeyedCoProcessFunction):
    ...     price = ps.ValueState("double")
    ...
    ...     def process_left(self, key, row, ctx: ps.RuntimeContext):
    ...         yield key, row["amount"], self.price.value()
    ...
    ...     def process_right(self, key, row, ctx: ps.RuntimeContext):
    ...         self.price.update(row["price"])
    """

    def process_left(self, key: Any, row: Any, ctx: RuntimeContext) -> Any:
        """Handle one row of the left input; see `KeyedProcessFunction.process`."""
        raise DeclarationError(f"{type(self).__name__} has no process_left(self, key, row, ctx)")

    def process_right(self, key: Any, row: Any, ctx: RuntimeContext) -> Any:
        """Handle one row of the right input; see `KeyedProcessFunction.process`."""
        raise DeclarationError(f"{type(self).__name__} has no process_right(self, key, row, ctx)")

    def process_left_rows(self, key: Any, batch: pa.RecordBatch, ctx: RuntimeContext) -> Any:
        """Handle all rows of a key of the left input in the epoch.

        It is written instead of `process_left`; see `KeyedProcessFunction.process_rows`.
        """
        raise DeclarationError(f"{type(self).__name__} has no process_left_rows")

    def process_right_rows(self, key: Any, batch: pa.RecordBatch, ctx: RuntimeContext) -> Any:
        """Handle all rows of a key of the right input in the epoch.

        It is written instead of `process_right`; see `KeyedProcessFunction.process_rows`.
        """
        raise DeclarationError(f"{type(self).__name__} has no process_right_rows")

    def on_timer(self, key: Any, timestamp: int, ctx: RuntimeContext) -> Any:
        """Handle a timer that fires; see `KeyedProcessFunction.on_timer`."""
        raise DeclarationError(f"{type(self).__name__} has no on_timer(self, key, timestamp, ctx)")


class VectorizedFunction(StatefulFunction):
    """A function that handles a whole batch, with the keys of its rows.

    Examples
    --------
    >>> import pystate as ps
    >>> class Counter(ps.VectorizedFunction):
    ...     n = ps.ValueState("long", default=0)
    ...
    ...     def process(self, keys, batch, ctx: ps.RuntimeContext):
    ...         self.n.add(keys, 1)
    """

    def process(self, keys: KeyBatch, batch: pa.RecordBatch, ctx: RuntimeContext) -> Any:
        """Handle a batch.

        Parameters
        ----------
        keys : KeyBatch
            The key of each row.
        batch : pyarrow.RecordBatch
            The rows.
        ctx : RuntimeContext
            The context of the task; `timestamp` is None.

        Returns
        -------
        RecordBatch, iterable of RecordBatch or None
            What the operator emits.
        """
        raise DeclarationError(f"{type(self).__name__} has no process")

    def on_timers(
        self, keys: KeyBatch, timestamps: np.ndarray[Any, Any], ctx: RuntimeContext
    ) -> Any:
        """Handle timers that fire, some thousands at a time.

        Parameters
        ----------
        keys : KeyBatch
            The key of each timer; a key may repeat.
        timestamps : numpy.ndarray of int64
            The times that the timers were registered for, in milliseconds since 1970; those of one
            key are in order.
        ctx : RuntimeContext
            `time_domain` says which clock the timers waited for. If a timer registered here is
            already due, it fires in the same epoch, in a later call. The timers of this call were
            deleted before it: one that is registered again fires again.

        Returns
        -------
        RecordBatch, iterable of RecordBatch or None
            What the operator emits.
        """
        raise DeclarationError(
            f"{type(self).__name__} has no on_timers(self, keys, timestamps, ctx)"
        )


class VectorizedCoFunction(StatefulFunction):
    """A function of two inputs that handles whole batches, with the keys of their rows.

    Examples
    --------
    >>> import pystate as ps
    >>> class Stock(ps.VectorizedCoFunction):
    ...     n = ps.ValueState("long", default=0)
    ...
    ...     def process_left(self, keys, batch, ctx: ps.RuntimeContext):
    ...         self.n.add(keys, batch.column("bought"))
    ...
    ...     def process_right(self, keys, batch, ctx: ps.RuntimeContext):
    ...         yield {"key": keys.key_arrays()[0], "n": self.n.values(keys)}
    """

    def process_left(self, keys: KeyBatch, batch: pa.RecordBatch, ctx: RuntimeContext) -> Any:
        """Handle a batch of the left input; see `VectorizedFunction.process`."""
        raise DeclarationError(f"{type(self).__name__} has no process_left(self, keys, batch, ctx)")

    def process_right(self, keys: KeyBatch, batch: pa.RecordBatch, ctx: RuntimeContext) -> Any:
        """Handle a batch of the right input; see `VectorizedFunction.process`."""
        raise DeclarationError(
            f"{type(self).__name__} has no process_right(self, keys, batch, ctx)"
        )

    def on_timers(
        self, keys: KeyBatch, timestamps: np.ndarray[Any, Any], ctx: RuntimeContext
    ) -> Any:
        """Handle timers that fire; see `VectorizedFunction.on_timers`."""
        raise DeclarationError(
            f"{type(self).__name__} has no on_timers(self, keys, timestamps, ctx)"
        )


class KeyedBroadcastProcessFunction(KeyedProcessFunction):
    """A function of a keyed input and of rules that each of its instances sees.

    `KeyedFrame.connect` gives it both. Write `process_broadcast` for the rules, and `process` or
    `process_rows` for the keyed rows.

    Examples
    --------
    >>> import pystate as ps
    >>> class Alerts(ps.KeyedBroadcastProcessFunction):
    ...     limits = ps.BroadcastState("string", "double")
    ...     above = ps.ValueState("long", default=0)
    ...
    ...     def process_broadcast(self, row, ctx: ps.RuntimeContext):
    ...         self.limits.put(row["kind"], row["limit"])
    ...
    ...     def process(self, key, row, ctx: ps.RuntimeContext):
    ...         limit = self.limits.get(row["kind"])
    ...         if limit is not None and row["value"] > limit:
    ...             self.above.update(self.above.value() + 1)
    ...             yield key, self.above.value()
    """

    def process_broadcast(self, row: Any, ctx: RuntimeContext) -> Any:
        """Handle one row of the broadcast input; every instance of the operator is called.

        Only here broadcast states can be written. There is no current key, so that keyed states and
        timers are not available, except within `RuntimeContext.apply_to_keyed_state`. What it
        writes to a broadcast state may depend on the row, `ctx.epoch`, the times of `ctx` and
        broadcast states alone: otherwise the instances' copies would differ.

        Parameters
        ----------
        row : Row
            The row, as `KeyedProcessFunction.process` gets it.
        ctx : RuntimeContext
            The context of the task and the row.

        Returns
        -------
        iterable of tuple, Row or dict, or None
            Rows as `process` yields them: each instance emits its own.
        """
        raise DeclarationError(f"{type(self).__name__} has no process_broadcast(self, row, ctx)")


class VectorizedBroadcastFunction(VectorizedFunction):
    """The same with whole batches of keyed rows, as a `VectorizedFunction` handles them.

    Rows of the broadcast input still come one by one; what `process_broadcast` emits are batches.

    Examples
    --------
    >>> import pyarrow as pa, pystate as ps
    >>> class Alerts(ps.VectorizedBroadcastFunction):
    ...     limits = ps.BroadcastState("string", "double")
    ...     above = ps.ValueState("long", default=0)
    ...
    ...     def process_broadcast(self, row, ctx: ps.RuntimeContext):
    ...         self.limits.put(row["kind"], row["limit"])
    ...
    ...     def process(self, keys, batch, ctx: ps.RuntimeContext):
    ...         limits = dict(self.limits.items())
    ...         above = [
    ...             value > limits.get(kind, float("inf"))
    ...             for kind, value in zip(
    ...                 batch["kind"].to_pylist(), batch["value"].to_pylist(), strict=True
    ...             )
    ...         ]
    ...         self.above.add(keys, pa.array(map(int, above)))
    """

    def process_broadcast(self, row: Any, ctx: RuntimeContext) -> Any:
        """Handle one row of the broadcast input.

        See `KeyedBroadcastProcessFunction.process_broadcast`; it emits batches, as `process` does.
        """
        raise DeclarationError(f"{type(self).__name__} has no process_broadcast(self, row, ctx)")


#: A function of either shape.
BroadcastFunction: TypeAlias = "KeyedBroadcastProcessFunction | VectorizedBroadcastFunction"


class ProcessFunction(StatefulFunction):
    """A function over rows without keys: each of its instances has state of its own.

    Write either `process`, for one row at a time, or `process_rows`, for whole batches. There are
    as many instances as the job has ranges. Which of them gets a row is not specified.

    Its states are `pystate.OperatorListState` and `pystate.RawState`. They can also be used in
    `open`.

    Examples
    --------
    >>> import pystate as ps
    >>> class Numbered(ps.ProcessFunction):
    ...     last = ps.OperatorListState("long", redistribute="union")
    ...
    ...     def open(self, ctx: ps.RuntimeContext):
    ...         # After a change of the number of instances each has the last numbers of all.
    ...         self.n = max(self.last, default=0) // ctx.parallelism
    ...
    ...     def process(self, row, ctx: ps.InstanceContext):
    ...         self.n += 1
    ...         number = self.n * ctx.parallelism + ctx.instance
    ...         self.last.update([number])
    ...         yield row["name"], number
    >>> with ps.testing.ProcessHarness(Numbered()) as harness:
    ...     harness.process([{"name": "a"}, {"name": "b"}])
    ...     harness.rescale(2)
    ...     harness.process([{"name": "c"}, {"name": "d"}])
    [('a', 1), ('b', 2)]
    [('c', 4), ('d', 5)]
    """

    def process(self, row: Any, ctx: InstanceContext) -> Any:
        """Handle one row.

        Parameters
        ----------
        row : Row
            As in `KeyedProcessFunction.process`.
        ctx : InstanceContext
            The context of the instance and the row.

        Returns
        -------
        iterable of tuple, Row or dict, or None
            The rows that the operator emits, as in `KeyedProcessFunction.process`.
        """
        raise DeclarationError(f"{type(self).__name__} has no process(self, row, ctx)")

    def process_rows(self, batch: pa.RecordBatch, ctx: InstanceContext) -> Any:
        """Handle some rows at once; written instead of `process`.

        Parameters
        ----------
        batch : pyarrow.RecordBatch
            Some of the instance's rows in the epoch, with all columns of the input.
        ctx : InstanceContext
            The context of the instance; `timestamp` is None.

        Returns
        -------
        RecordBatch, iterable of RecordBatch or None
            What the operator emits; a Table, or a dict with an array for each column, is a batch,
            too.
        """
        raise DeclarationError(f"{type(self).__name__} has no process_rows(self, batch, ctx)")

    def on_epoch_end(self, ctx: InstanceContext) -> Any:
        """Handle the end of an epoch, after its last row.

        An instance whose class has this method is called in every epoch. Without it, an instance
        does nothing in an epoch that brings it no rows.

        Parameters
        ----------
        ctx : InstanceContext
            `watermark` is the one that the epoch ends with.

        Returns
        -------
        object
            As from `process` or `process_rows`, whichever the class has.
        """
