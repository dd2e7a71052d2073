"""What a runtime needs of a stateful function, and how the function gets its handles.

Thread safety: as `pystate.operators.functions.base`.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from pystate.base.arguments import nearest
from pystate.errors import DeclarationError
from pystate.operators.functions.base import (
    CALLED,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ProcessFunction,
    StatefulFunction,
    VectorizedBroadcastFunction,
    VectorizedCoFunction,
    VectorizedFunction,
)
from pystate.state.broadcast import BroadcastState
from pystate.state.declaration import State
from pystate.state.operator_spec import OperatorSpec
from pystate.state.operator_state import KeylessState
from pystate.types.keys import KeyColumns
from pystate.types.state_type import StateType, parse_type

#: The shapes of a function; those with "co" have two inputs, the last two are those of instances.
Shape: TypeAlias = Literal[
    "process",
    "process_rows",
    "vectorized",
    "co",
    "co_vectorized",
    "instance",
    "instance_rows",
]


class Registry(Protocol):
    """A backend, with which states are registered."""

    def register(self, name: str, declaration: State[Any]) -> Any:
        """Return the state's handle."""


def declarations(function: StatefulFunction | type[StatefulFunction]) -> dict[str, State[Any]]:
    """The states of a function or its class by name; those of base classes come first."""
    cls = function if isinstance(function, type) else type(function)
    return {
        name: value
        for base in reversed(cls.__mro__)
        for name, value in base.__dict__.items()
        if isinstance(value, State)
    }


def instead_of_missing(error: Exception, function: StatefulFunction) -> str:
    """The states of a function, if the error is that it has no such attribute; else nothing.

    It is for the end of a note. A `__getattr__` of the function would make each use of a state
    slower.
    """
    if not isinstance(error, AttributeError) or error.obj is not function:
        return ""
    states = declarations(function)
    listed = ", ".join(map(repr, states)) or "none"
    return f"; states of {type(function).__name__}: {listed}{nearest(error.name, states)}"


def keyed_states(function: StatefulFunction) -> dict[str, State[Any]]:
    """The states that a function keeps for each key."""
    states = declarations(function)
    if not has_broadcast(function):
        return states
    return {name: state for name, state in states.items() if not isinstance(state, KeylessState)}


def broadcast_states(function: StatefulFunction) -> dict[str, KeylessState[Any]]:
    """The broadcast states of a function that has a broadcast input.

    `DeclarationError`: it has none, or another kind of operator state.
    """
    name = type(function).__name__
    states = {n: d for n, d in declarations(function).items() if isinstance(d, KeylessState)}
    for attribute, declaration in states.items():
        if not isinstance(declaration, BroadcastState):
            raise DeclarationError(
                f"{name}.{attribute} is {declaration!r}: of operator state, a function with a "
                "broadcast input has ps.BroadcastState alone"
            )
    if not states:
        raise DeclarationError(
            f"{name} declares no ps.BroadcastState: what the broadcast rows say would be forgotten"
        )
    return states


def bind(function: StatefulFunction, registry: Registry, broadcast: Registry | None = None) -> None:
    """Give an instance its handles, so that ``self.legs`` works until `unbind`.

    Its broadcast states are in a registry of their own, if there is one.
    """
    for name, declaration in declarations(function).items():
        own = registry
        if broadcast is not None and isinstance(declaration, KeylessState):
            own = broadcast
        function.__dict__[name] = own.register(name, declaration)


def unbind(function: StatefulFunction) -> None:
    """Take an instance's handles away."""
    for name in declarations(function):
        function.__dict__.pop(name, None)


def task_copy(function: StatefulFunction) -> StatefulFunction:
    """A copy of the function, for a task; errors are those of `for_tasks`."""
    copied: StatefulFunction = for_tasks(function, copy.deepcopy)
    return copied


Sent = TypeVar("Sent")


def for_tasks(function: Any, send: Callable[[Any], Sent], where: str = "open(self, ctx)") -> Sent:
    """The function in the form that goes to the tasks: copied or pickled by `send`.

    `where` is the method in which the function can make what cannot be sent. `DeclarationError`
    names the attribute that prevents it.
    """
    try:
        return send(function)
    except Exception as error:
        reason = " ".join(str(error).split())
        name = getattr(function, "__name__", type(function).__name__)
        stateful = isinstance(function, StatefulFunction)
        kept = function.__getstate__() if stateful else getattr(function, "__dict__", {})
        for attribute, value in kept.items():
            try:
                send(value)
            except Exception:
                raise DeclarationError(
                    f"{name}.{attribute} = {value!r:.80} cannot go to the tasks, which work on "
                    f"copies of the function: make it in {where} ({reason})"
                ) from error
        culprit = unsendable_reference(function, send)
        if culprit is not None:
            place, used, value = culprit
            raise DeclarationError(
                f"{name} cannot go to the tasks, which work on copies of the function: its code "
                f"refers to {used} = {value!r:.80} (in {place}), which cannot be pickled: make one "
                f"for each task in {where}, self.{used} = ..., and use that ({reason})"
            ) from error
        raise DeclarationError(
            f"{name} cannot go to the tasks, which work on copies of the function: something that "
            f"its code refers to cannot be pickled; make it in {where} ({reason})"
        ) from error


def unsendable_reference(
    function: Any, send: Callable[[Any], object]
) -> tuple[str, str, object] | None:
    """What the code of a function or of its class refers to that cannot be sent.

    The function whose code it is, the name in that code, and the object.
    """
    codes = {getattr(function, "__qualname__", ""): function} if callable(function) else {}
    for cls in type(function).__mro__:
        for name, member in vars(cls).items():
            codes.setdefault(f"{cls.__name__}.{name}", member)
            if isinstance(member, State):  # whose function folds two values
                codes[f"{cls.__name__}.{name}"] = getattr(member, "function", None)
    for place, member in codes.items():
        code = inspect.unwrap(getattr(member, "__func__", getattr(member, "fget", member)))
        if not inspect.isfunction(code) or code.__module__.partition(".")[0] == "pystate":
            continue
        names = inspect.getclosurevars(code)
        for name, value in {**names.nonlocals, **names.globals}.items():
            if inspect.ismodule(value):
                continue
            try:
                send(value)
            except Exception:
                return place, name, value
    return None


#: What stands for a method of timers in a class that has none.
_NO_TIMERS = (
    KeyedProcessFunction.on_timer,
    KeyedCoProcessFunction.on_timer,
    VectorizedFunction.on_timers,
    VectorizedCoFunction.on_timers,
)


def has_timers(function: StatefulFunction) -> bool:
    """Whether a function handles timers."""
    if isinstance(function, ProcessFunction):
        return False
    name = "on_timers" if in_batches(function) else "on_timer"
    return getattr(type(function), name, None) not in _NO_TIMERS


def operator_spec(
    function: StatefulFunction, uid: str, key: KeyColumns, max_parallelism: int = 128
) -> OperatorSpec:
    """Return what determines the tables of a keyed function's operator."""
    _refuse_keyless(function, f"operator {uid!r}")
    return OperatorSpec(
        uid=uid,
        key=key,
        states=keyed_states(function),
        namespace=namespace_type(function),
        timers=has_timers(function),
        max_parallelism=max_parallelism,
    )


def has_broadcast(function: StatefulFunction) -> bool:
    """Whether a function has a broadcast input, whose rows it must then have a method for."""
    for base in (KeyedBroadcastProcessFunction, VectorizedBroadcastFunction):
        if isinstance(function, base):
            if getattr(type(function), "process_broadcast", None) is base.process_broadcast:
                raise DeclarationError(
                    f"{type(function).__name__} has no process_broadcast(self, row, ctx): write it"
                )
            return True
    return False


def instance_states(function: StatefulFunction, owner: str) -> dict[str, KeylessState[Any]]:
    """The states of a `ProcessFunction` by name; there is one, and all are those of instances."""
    name, states = type(function).__name__, {}
    for state, declaration in declarations(function).items():
        if isinstance(declaration, BroadcastState):
            raise DeclarationError(
                f"{owner}: {name}.{state} = {declaration!r}: each instance of a ProcessFunction "
                "sees other rows, so that its copies would not stay the same: take "
                "ps.OperatorListState(..., redistribute='union') for what all instances are to "
                "know after a change of their number"
            )
        if not isinstance(declaration, KeylessState):
            raise DeclarationError(
                f"{owner}: {name}.{state} = {declaration!r} is the state of a key, and a "
                "ProcessFunction has no keys: take a ps.OperatorListState, or key_by and a "
                "ps.KeyedProcessFunction"
            )
        states[state] = declaration
    if not states:
        raise DeclarationError(
            f"{owner}: {name} declares no state: a function that keeps nothing needs no operator; "
            "use mapInArrow, or declare a ps.OperatorListState"
        )
    return states


def require_state(function: StatefulFunction, owner: str) -> None:
    """Refuse a function that keeps neither state nor timers, or is for rows without keys.

    `owner` is named in errors, such as ``"operator 'aircraft'"``.
    """
    _refuse_keyless(function, owner)
    if not declarations(function) and not has_timers(function):
        raise DeclarationError(
            f"{owner}: {type(function).__name__} declares no state and has no on_timer: a "
            "function that keeps nothing needs no keys; use mapInArrow, or declare a ps.ValueState"
        )


def _refuse_keyless(function: StatefulFunction, owner: str) -> None:
    if isinstance(function, ProcessFunction):
        raise DeclarationError(
            f"{owner}: {type(function).__name__} is a ps.ProcessFunction, for rows without keys: "
            "write job.operator(df, uid=...).process(function, schema), in a test "
            "ps.testing.ProcessHarness(function); or make it a ps.KeyedProcessFunction"
        )


def namespace_type(function: StatefulFunction) -> StateType | None:
    """The type of a function's namespaces; None if its states are kept by key alone."""
    declared = type(function).namespace
    if declared is None:
        return None
    what = f"{type(function).__name__}.namespace"
    type_ = parse_type(declared, what)
    if type_.is_object:
        raise DeclarationError(f"{what}: objects are no namespaces")
    return type_


def shape(function: StatefulFunction) -> Shape:
    """The shape of a function, by the methods that it has; it must be a stateful function."""
    if isinstance(function, VectorizedFunction):
        if _has(function, VectorizedFunction, "process"):
            return "vectorized"
        raise DeclarationError(f"{type(function).__name__} has no process(self, keys, batch, ctx)")
    if isinstance(function, ProcessFunction):
        return _instance_shape(function)
    if isinstance(function, VectorizedCoFunction):
        for name in ("process_left", "process_right"):
            if not _has(function, VectorizedCoFunction, name):
                raise DeclarationError(
                    f"{type(function).__name__} has no {name}(self, keys, batch, ctx): write it"
                )
        return "co_vectorized"
    if isinstance(function, KeyedCoProcessFunction):
        for name in ("process_left", "process_right"):
            of_row = _has(function, KeyedCoProcessFunction, name)
            if of_row == _has(function, KeyedCoProcessFunction, f"{name}_rows"):
                raise DeclarationError(
                    f"{type(function).__name__} has {'both' if of_row else 'neither'} "
                    f"{name}(self, key, row, ctx) {'and' if of_row else 'nor'} "
                    f"{name}_rows(self, key, batch, ctx): write one of them"
                )
        return "co"
    if not isinstance(function, KeyedProcessFunction):
        raise DeclarationError(
            f"{function!r:.80} is no KeyedProcessFunction or VectorizedFunction"
            f"{way_to_function(function, 'KeyedProcessFunction', 'key, row, ctx')}"
        )
    by_row = _one_of_both(function, KeyedProcessFunction, "key, ") == "process"
    return "process" if by_row else "process_rows"


def way_to_function(given: object, base: str, parameters: str) -> str:
    """What to write instead of something that is no stateful function, as the end of a message."""
    if isinstance(given, type):
        return f"; pass an instance: {given.__name__}()"
    if not callable(given):
        return f"; pass an instance of a class that derives from ps.{base}"
    words = getattr(given, "__name__", "").strip("<>").split("_")
    name = "".join(word.capitalize() for word in words) or "Function"
    kind = "Instance" if base == "ProcessFunction" else "Runtime"
    parameters = parameters.replace("ctx", f"ctx: ps.{kind}Context")
    return (
        ": state belongs to a class, so write the function as its method, "
        f"class {name}(ps.{base}): def process(self, {parameters}): ..., and pass {name}()"
    )


def _instance_shape(function: ProcessFunction) -> Shape:
    name = type(function).__name__
    for attribute in ("on_timer", "on_timers"):
        if hasattr(function, attribute):
            raise DeclarationError(
                f"{name}.{attribute} would never be called: timers belong to keys, and a "
                "ProcessFunction has none; take key_by and a ps.KeyedProcessFunction"
            )
    if type(function).namespace is not None:
        raise DeclarationError(
            f"{name}.namespace: namespaces belong to keys, and a ProcessFunction has none"
        )
    own = _one_of_both(function, ProcessFunction, "")
    return "instance" if own == "process" else "instance_rows"


def _one_of_both(function: StatefulFunction, base: type, key: str) -> str:
    """Which of `process` and `process_rows` a function has; `key` is their first argument."""
    own = [n for n in ("process", "process_rows") if _has(function, base, n)]
    if len(own) == 1:
        return own[0]
    name = type(function).__name__
    if own:
        raise DeclarationError(f"{name} has both process and process_rows: write one of them")
    similar = next((n for n in dir(function) if nearest(n, CALLED) and n not in CALLED), None)
    raise DeclarationError(
        f"{name} has neither process(self, {key}row, ctx) nor process_rows(self, {key}batch, "
        "ctx): write one of them" + (f"; did you mean {similar} to be it?" if similar else "")
    )


def in_batches(function: StatefulFunction) -> bool:
    """Whether a function handles whole batches, with the keys of their rows."""
    return isinstance(function, (VectorizedFunction, VectorizedCoFunction))


def takes_rows(function: StatefulFunction, side: Literal["left", "right"]) -> bool:
    """Whether a `KeyedCoProcessFunction` gets all rows of a key of an input at once."""
    return _has(function, KeyedCoProcessFunction, f"process_{side}_rows")


def _has(function: StatefulFunction, base: type, name: str) -> bool:
    """Whether a function's class has a method of its own."""
    return getattr(type(function), name) is not getattr(base, name)
