"""What a runtime needs of a stateful function, and how the function gets its handles.

Thread safety: as `pystate.functions.base`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from pystate.arguments import nearest
from pystate.errors import DeclarationError
from pystate.functions.base import (
    CALLED,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    StatefulFunction,
    VectorizedFunction,
)
from pystate.state.declaration import State
from pystate.state.operator_spec import OperatorSpec
from pystate.types.keys import KeyColumns
from pystate.types.state_type import StateType, parse_type

#: The shapes of a function; "co" is that of two inputs.
Shape: TypeAlias = Literal["process", "process_rows", "vectorized", "co"]

__all__ = [
    "Registry",
    "Shape",
    "bind",
    "copied",
    "declarations",
    "has_timers",
    "namespace_type",
    "operator_spec",
    "require_state",
    "sent",
    "shape",
    "unbind",
]


class Registry(Protocol):
    """A backend, with which states are registered."""

    def register(self, name: str, declaration: State[Any]) -> Any:
        """Return the state's handle."""


def declarations(function: StatefulFunction | type[StatefulFunction]) -> dict[str, State[Any]]:
    """The states of a function or its class by name; those of base classes come first.

    Examples
    --------
    >>> import pystate as ps
    >>> class Legs(ps.VectorizedFunction):
    ...     legs = ps.ValueState("long")
    >>> declarations(Legs)
    {'legs': ValueState('long')}
    """
    cls = function if isinstance(function, type) else type(function)
    return {
        name: value
        for base in reversed(cls.__mro__)
        for name, value in base.__dict__.items()
        if isinstance(value, State)
    }


def bind(function: StatefulFunction, registry: Registry) -> None:
    """Give an instance its handles, so that ``self.legs`` works until `unbind`."""
    for name, declaration in declarations(function).items():
        function.__dict__[name] = registry.register(name, declaration)


def unbind(function: StatefulFunction) -> None:
    """Take an instance's handles away."""
    for name in declarations(function):
        function.__dict__.pop(name, None)


def copied(function: StatefulFunction) -> StatefulFunction:
    """A copy of the function, for a task.

    Raises
    ------
    DeclarationError
        An attribute cannot be copied; the message names it.
    """
    made: StatefulFunction = sent(function, copy.deepcopy)
    return made


Sent = TypeVar("Sent")


def sent(function: Any, send: Callable[[Any], Sent]) -> Sent:
    """The function in the form that goes to the tasks, made by `send`.

    Parameters
    ----------
    function : StatefulFunction, WindowFunction or callable
        The function.
    send : callable
        Copies or pickles an object.

    Raises
    ------
    DeclarationError
        The function cannot be sent; the message names the attribute that prevents it.
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
                    f"copies of the function: make it in open(self, ctx) ({reason})"
                ) from error
        raise DeclarationError(
            f"{name} cannot go to the tasks, which work on copies of the function: something that "
            f"its code refers to cannot be pickled; make it in open(self, ctx) ({reason})"
        ) from error


def has_timers(function: StatefulFunction) -> bool:
    """Whether a function handles timers."""
    base: type[StatefulFunction] = KeyedProcessFunction
    name = "on_timer"
    if isinstance(function, VectorizedFunction):
        base, name = VectorizedFunction, "on_timers"
    elif isinstance(function, KeyedCoProcessFunction):
        base = KeyedCoProcessFunction
    return getattr(type(function), name, None) is not getattr(base, name)


def operator_spec(
    function: StatefulFunction, uid: str, key: KeyColumns, max_parallelism: int = 128
) -> OperatorSpec:
    """Return what determines the tables of a function's operator."""
    return OperatorSpec(
        uid=uid,
        key=key,
        states=declarations(function),
        namespace=namespace_type(function),
        timers=has_timers(function),
        max_parallelism=max_parallelism,
    )


def require_state(function: StatefulFunction, owner: str) -> None:
    """Refuse a function that keeps neither state nor timers.

    Parameters
    ----------
    function : StatefulFunction
        The function.
    owner : str
        What the error names, e.g. ``"operator 'aircraft'"``.

    Raises
    ------
    DeclarationError
        It has neither a state nor timers.
    """
    if not declarations(function) and not has_timers(function):
        raise DeclarationError(
            f"{owner}: {type(function).__name__} declares no state and has no on_timer: a "
            "function that keeps nothing needs no keys; use mapInArrow, or declare a ps.ValueState"
        )


def namespace_type(function: StatefulFunction) -> StateType | None:
    """The type of a function's namespaces; None if its states are kept by key alone.

    Raises
    ------
    DeclarationError
        The declared namespace is not a type, or one that cannot be part of a key.
    """
    declared = type(function).namespace
    if declared is None:
        return None
    what = f"{type(function).__name__}.namespace"
    found = parse_type(declared, what)
    if found.is_object:
        raise DeclarationError(f"{what}: objects are no namespaces")
    return found


def shape(function: StatefulFunction) -> Shape:
    """The shape of a function, by the methods that it has.

    Raises
    ------
    DeclarationError
        The object is not a stateful function, or has none or several of the methods.
    """
    if isinstance(function, VectorizedFunction):
        own = [n for n in _overridden(function, VectorizedFunction) if n == "process"]
        if own:
            return "vectorized"
        raise DeclarationError(f"{type(function).__name__} has no process(self, keys, batch, ctx)")
    if isinstance(function, KeyedCoProcessFunction):
        for name in ("process_left", "process_right"):
            if getattr(type(function), name) is getattr(KeyedCoProcessFunction, name):
                raise DeclarationError(f"{type(function).__name__} has no {name}: write it")
        return "co"
    if not isinstance(function, KeyedProcessFunction):
        hint = "; pass an instance" if isinstance(function, type) else ""
        raise DeclarationError(
            f"{function!r:.80} is no KeyedProcessFunction or VectorizedFunction{hint}"
        )
    own = list(_overridden(function, KeyedProcessFunction))
    if len(own) != 1:
        name = type(function).__name__
        if own:
            raise DeclarationError(f"{name} has both process and process_rows: write one of them")
        found = next((n for n in dir(function) if nearest(n, CALLED) and n not in CALLED), None)
        raise DeclarationError(
            f"{name} has neither process(self, key, row, ctx) nor process_rows(self, key, batch, "
            "ctx): write one of them" + (f"; did you mean {found} to be it?" if found else "")
        )
    return "process" if own == ["process"] else "process_rows"


def _overridden(function: StatefulFunction, base: type) -> Iterator[str]:
    for name in ("process", "process_rows"):
        if getattr(type(function), name, None) is not getattr(base, name, None):
            yield name
