"""State declarations: what a stateful function or a store keeps per key.

A declaration is an immutable value, safe to share between classes and threads. As a class
attribute of a stateful function it is a descriptor: the attribute's name is the state's name, and
on an instance it gives that instance's handle while the function runs.
"""

from __future__ import annotations

import builtins
import copy
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, overload

from pystate.errors import DeclarationError, NoCurrentKeyError, PystateError
from pystate.state.aggregators import AggregateFunction, Aggregator, BoundAggregator
from pystate.state.columns import (
    VALUE,
    Column,
    accumulator_column,
    list_column,
    map_column,
    time_column,
    value_column,
)
from pystate.state.ttl import StateTtl
from pystate.types.state_type import StateType, TypeLike, parse_type, refuse_nested_key

if TYPE_CHECKING:
    from typing_extensions import Self

    from pystate.state.elements import ListHandle, MapHandle
    from pystate.state.folds import AggregatingHandle, ReducingHandle
    from pystate.state.handles import ValueHandle

__all__ = [
    "AggregatingState",
    "ListState",
    "MapState",
    "ReducingState",
    "State",
    "ValueState",
]

_IMMUTABLE = (type(None), bool, int, float, complex, str, bytes)
_OBJECT = StateType("object")


class State:
    """Base of the declarations."""

    __slots__ = ("_ttl", "_type")

    _type: StateType
    _ttl: StateTtl | None

    def _declare(self, type: TypeLike, ttl: StateTtl | None) -> None:
        if ttl is not None and not isinstance(ttl, StateTtl):
            raise DeclarationError(
                f"{builtins.type(self).__name__}: ttl is a StateTtl, e.g. "
                f"StateTtl(hours=48), got {ttl!r:.60}"
            )
        object.__setattr__(self, "_type", parse_type(type, builtins.type(self).__name__))
        object.__setattr__(self, "_ttl", ttl)

    @property
    def type(self) -> StateType:
        """The type of the values or elements."""
        return self._type

    @property
    def ttl(self) -> StateTtl | None:
        """When values or elements expire."""
        return self._ttl

    def columns(self, name: str) -> list[Column]:
        """The core's columns of the state under that name; the first one is the state itself."""
        first = self._column(name)
        return [first] if self._ttl is None else [first, time_column(name)]

    def _column(self, name: str) -> Column:
        raise NotImplementedError

    def stored_as(self) -> str:
        """What a checkpoint's metadata says of the state: what its files hold, and no more.

        See Also
        --------
        pystate.state.stored.declared_as : the inverse.
        """
        column = self._column("state")
        if column.is_accumulator:
            return column.ddl
        if column.kind == VALUE:
            return "object" if column.ddl == "object" else column.ddl
        shown = ", ".join("object" if a is object else repr(a) for a in self._arguments())
        return f"{builtins.type(self).__name__}({shown})"

    def _arguments(self) -> tuple[Any, ...]:
        """What makes an equal declaration; its `ttl` comes after."""
        raise NotImplementedError

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise DeclarationError(f"a declaration cannot be changed ({name})")

    def __delattr__(self, name: str) -> NoReturn:
        raise DeclarationError(f"a declaration cannot be changed ({name})")

    def __get__(self, instance: object | None, owner: Any = None) -> Any:
        # Only reached on an instance that has no handle: handles are in its __dict__, which comes
        # before a descriptor without __set__.
        if instance is None:
            return self
        owner = builtins.type(instance)
        name = next((n for n in dir(owner) if getattr(owner, n, None) is self), "?")
        raise NoCurrentKeyError(
            f"state {name!r} of {owner.__name__} exists only while the function runs, between "
            "open and close"
        )

    def __eq__(self, other: object) -> bool:
        if builtins.type(self) is not builtins.type(other) or not isinstance(other, State):
            return NotImplemented
        return self._ttl == other._ttl and self._arguments() == other._arguments()

    def __hash__(self) -> int:
        return hash((builtins.type(self), self._type))

    def __repr__(self) -> str:
        shown = [_written(argument) for argument in self._arguments() if argument is not None]
        if self._ttl is not None:
            shown.append(f"ttl={self._ttl!r}")
        return f"{builtins.type(self).__name__}({', '.join(shown)})"

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _declared, (builtins.type(self), self._arguments(), self._ttl)


def _declared(kind: Callable[..., State], arguments: tuple[Any, ...], ttl: Any) -> State:
    return kind(*arguments, ttl=ttl)


def _written(argument: Any) -> str:
    if argument is object:
        return "object"
    if callable(argument) and hasattr(argument, "__name__"):
        return str(argument.__name__)
    return repr(argument)


def _spelled(type: StateType) -> Any:
    return object if type.is_object else type.ddl


class ValueState(State):
    """Declares one value per key.

    Parameters
    ----------
    type : str, pyarrow.DataType or object
        A Spark DDL string (``"long"``), an Arrow type, or ``object`` for any object that can be
        pickled.
    default : optional
        What `value()` returns where nothing is stored, and what `add` starts from. Each key gets
        its own copy of a mutable default.
    ttl : StateTtl, optional
        When values expire; never by default.

    Raises
    ------
    DeclarationError
        The type is unknown or not supported, or the default is not of the type.

    See Also
    --------
    pystate.ValueHandle : what the declaration becomes while a function or a store runs.

    Notes
    -----
    ``timestamp`` holds instants: it takes datetimes with a time zone and gives them back in UTC. A
    datetime without one is refused, because its meaning would depend on the host; use
    ``timestamp_ntz`` for wall-clock times. Integers are range-checked, bools are no integers, and
    an int is taken for a float or double where it fits without loss. An object is unpickled once
    per epoch, and pickled once if it was updated: a change in place needs an `update` after it, or
    it is gone with the epoch.

    Examples
    --------
    >>> import pystate as ps
    >>> class Legs(ps.KeyedProcessFunction):
    ...     legs = ps.ValueState("long", default=0)
    ...
    ...     def process(self, key, row, ctx):
    ...         self.legs.update(self.legs.value() + 1)
    >>> Legs.legs
    ValueState('long', default=0)
    """

    __slots__ = ("_default", "_shared")

    _default: Any
    _shared: bool

    def __init__(self, type: TypeLike, default: Any = None, *, ttl: StateTtl | None = None) -> None:
        self._declare(type, ttl)
        parsed = self._type
        if default is not None and not parsed.is_object:
            try:
                default = parsed.codec("default", "the default").normalize(default)
            except PystateError as error:
                raise DeclarationError(f"ValueState({parsed.ddl!r}): {error}") from error
        shared = not (parsed.is_object or parsed.is_nested) or isinstance(default, _IMMUTABLE)
        object.__setattr__(self, "_default", copy.deepcopy(default))
        object.__setattr__(self, "_shared", shared)

    @property
    def default(self) -> Any:
        """The default; a fresh copy where it could be changed."""
        return self._default if self._shared else copy.deepcopy(self._default)

    @property
    def has_shared_default(self) -> bool:
        """Whether the default is immutable, so that all keys may see one object."""
        return self._shared

    def _column(self, name: str) -> Column:
        return value_column(name, self._type, self._default)

    def _arguments(self) -> tuple[Any, ...]:
        return _spelled(self._type), self._default

    @overload
    def __get__(self, instance: None, owner: builtins.type[object]) -> Self: ...

    @overload
    def __get__(
        self, instance: object, owner: builtins.type[object] | None = None
    ) -> ValueHandle: ...

    def __get__(self, instance: object | None, owner: Any = None) -> Any:
        return super().__get__(instance, owner)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ValueState):
            return NotImplemented
        mine, theirs = self._default, other._default
        same = mine == theirs or (mine != mine and theirs != theirs)
        return self._type == other._type and self._ttl == other._ttl and same

    __hash__ = State.__hash__

    def __repr__(self) -> str:
        shown = [_written(_spelled(self._type))]
        if self._default is not None:
            shown.append(f"default={self._default!r}")
        if self._ttl is not None:
            shown.append(f"ttl={self._ttl!r}")
        return f"ValueState({', '.join(shown)})"


class ListState(State):
    """Declares a list per key.

    Parameters
    ----------
    type : str, pyarrow.DataType or object
        Of the items.
    ttl : StateTtl, optional
        When items expire, each for itself.

    See Also
    --------
    pystate.ListHandle : what the declaration becomes while a function or a store runs.

    Notes
    -----
    Appending costs the item, in memory and in the snapshot, however long the list is.

    Examples
    --------
    >>> import pystate as ps
    >>> ps.ListState("double", ttl=ps.StateTtl(hours=1))
    ListState('double', ttl=StateTtl(hours=1))
    """

    __slots__ = ()

    def __init__(self, type: TypeLike, *, ttl: StateTtl | None = None) -> None:
        self._declare(type, ttl)

    def _column(self, name: str) -> Column:
        return list_column(name, self._type)

    def _arguments(self) -> tuple[Any, ...]:
        return (_spelled(self._type),)

    @overload
    def __get__(self, instance: None, owner: builtins.type[object]) -> Self: ...

    @overload
    def __get__(
        self, instance: object, owner: builtins.type[object] | None = None
    ) -> ListHandle: ...

    def __get__(self, instance: object | None, owner: Any = None) -> Any:
        return super().__get__(instance, owner)


class MapState(State):
    """Declares a map per key.

    Parameters
    ----------
    key : str or pyarrow.DataType
        Of the map's keys: anything that a key column may be.
    type : str, pyarrow.DataType or object
        Of its values.
    ttl : StateTtl, optional
        When entries expire, each for itself.

    See Also
    --------
    pystate.MapHandle : what the declaration becomes while a function or a store runs.

    Notes
    -----
    A put costs the entry, in memory and in the snapshot, however large the map is. Entries come in
    the order of their keys as the core keeps them, which for strings is that of their bytes; for
    numbers do not rely on it.

    Examples
    --------
    >>> import pystate as ps
    >>> ps.MapState("string", "long")
    MapState('string', 'long')
    """

    __slots__ = ("_key",)

    _key: StateType

    def __init__(self, key: TypeLike, type: TypeLike, *, ttl: StateTtl | None = None) -> None:
        self._declare(type, ttl)
        parsed = refuse_nested_key(parse_type(key, "MapState's key"), "MapState's key")
        if parsed.is_object:
            raise DeclarationError("MapState: its keys cannot be objects; their bytes decide")
        object.__setattr__(self, "_key", parsed)

    @property
    def key_type(self) -> StateType:
        """The type of the map's keys."""
        return self._key

    def _column(self, name: str) -> Column:
        return map_column(name, self._key, self._type)

    def _arguments(self) -> tuple[Any, ...]:
        return _spelled(self._key), _spelled(self._type)

    @overload
    def __get__(self, instance: None, owner: builtins.type[object]) -> Self: ...

    @overload
    def __get__(
        self, instance: object, owner: builtins.type[object] | None = None
    ) -> MapHandle: ...

    def __get__(self, instance: object | None, owner: Any = None) -> Any:
        return super().__get__(instance, owner)


class ReducingState(State):
    """Declares one value per key, into which others are reduced.

    Parameters
    ----------
    type : str, pyarrow.DataType or object
        Of the values and the result.
    function : callable
        ``function(a, b)`` of two values gives one; associative. The builtins ``max`` and ``min``,
        ``operator.add`` and the builtin ``sum`` run in the core, for numbers, and of dates and
        timestamps ``max`` and ``min``.
    ttl : StateTtl, optional
        When the value expires.

    Notes
    -----
    A function of yours may read other states of the current key. One that makes another key
    current, or ends the epoch, is refused: `NoCurrentKeyError`, and nothing is written.

    Examples
    --------
    >>> import pystate as ps
    >>> ps.ReducingState("double", max)
    ReducingState('double', max)
    """

    __slots__ = ("_function",)

    _function: Callable[[Any, Any], Any]

    def __init__(
        self,
        type: TypeLike,
        function: Callable[[Any, Any], Any],
        *,
        ttl: StateTtl | None = None,
    ) -> None:
        self._declare(type, ttl)
        if not callable(function):
            raise DeclarationError(f"ReducingState: {function!r:.60} is no function of two values")
        if function in (builtins.sum, operator.add) and self._type.is_time:
            raise DeclarationError(
                f"ReducingState: there is no sum of values of type {self._type.ddl}; max and min "
                "there are, or a function of your own"
            )
        object.__setattr__(self, "_function", function)

    @property
    def function(self) -> Callable[[Any, Any], Any]:
        """What makes one value of two."""
        return self._function

    def _column(self, name: str) -> Column:
        return value_column(name, self._type)

    def _arguments(self) -> tuple[Any, ...]:
        return _spelled(self._type), self._function

    @overload
    def __get__(self, instance: None, owner: builtins.type[object]) -> Self: ...

    @overload
    def __get__(
        self, instance: object, owner: builtins.type[object] | None = None
    ) -> ReducingHandle: ...

    def __get__(self, instance: object | None, owner: Any = None) -> Any:
        return super().__get__(instance, owner)


class AggregatingState(State):
    """Declares an aggregate per key.

    Parameters
    ----------
    aggregate : Aggregator or AggregateFunction
        `Count()`, `Sum()`, `Min()`, `Max()`, `Mean()`, `Variance()`, `First()`, `Last()`,
        `TopK(k)`, `ApproxDistinct()`, which run in the core; or an object of a class of your own
        with ``create``, ``add``, ``merge`` and ``result``.
    type : str or pyarrow.DataType
        Of the values that are added; without a meaning for an `AggregateFunction`.
    ttl : StateTtl, optional
        When the aggregate expires.

    Examples
    --------
    >>> import pystate as ps
    >>> ps.AggregatingState(ps.Mean())
    AggregatingState(Mean(), 'double')
    >>> ps.AggregatingState(ps.TopK(3), "long")
    AggregatingState(TopK(k=3), 'long')
    """

    __slots__ = ("_aggregate", "_bound")

    _aggregate: Aggregator | AggregateFunction[Any, Any, Any]
    _bound: BoundAggregator | None

    def __init__(
        self,
        aggregate: Aggregator | AggregateFunction[Any, Any, Any],
        type: TypeLike = "double",
        *,
        ttl: StateTtl | None = None,
    ) -> None:
        own = isinstance(aggregate, AggregateFunction)
        if not own and not isinstance(aggregate, Aggregator):
            hint = "; pass an object of it" if isinstance(aggregate, builtins.type) else ""
            raise DeclarationError(
                f"AggregatingState: {aggregate!r:.60} is no Aggregator or AggregateFunction{hint}"
            )
        self._declare(_OBJECT if own else type, ttl)
        bound = aggregate.bind(self._type) if isinstance(aggregate, Aggregator) else None
        object.__setattr__(self, "_aggregate", aggregate)
        object.__setattr__(self, "_bound", bound)

    @property
    def aggregate(self) -> Aggregator | AggregateFunction[Any, Any, Any]:
        """What is computed."""
        return self._aggregate

    @property
    def bound(self) -> BoundAggregator | None:
        """What the core keeps; None for an `AggregateFunction`."""
        return self._bound

    def _column(self, name: str) -> Column:
        bound = self._bound
        if bound is None:
            return value_column(name, _OBJECT)
        if bound.column is not None:
            return value_column(name, bound.column)
        return accumulator_column(name, bound)

    def _arguments(self) -> tuple[Any, ...]:
        if self._bound is None:
            return (self._aggregate,)
        return self._aggregate, _spelled(self._type)

    @overload
    def __get__(self, instance: None, owner: builtins.type[object]) -> Self: ...

    @overload
    def __get__(
        self, instance: object, owner: builtins.type[object] | None = None
    ) -> AggregatingHandle: ...

    def __get__(self, instance: object | None, owner: Any = None) -> Any:
        return super().__get__(instance, owner)
