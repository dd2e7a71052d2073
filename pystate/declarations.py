"""State declarations: what a stateful function or a store keeps per key.

A declaration is an immutable value, safe to share between classes and threads. As a class
attribute of a stateful function it is a descriptor: the attribute's name is the state's name, and
on an instance it gives that instance's handle while the function runs.
"""

from __future__ import annotations

import builtins
import copy
from typing import TYPE_CHECKING, Any, NoReturn, overload

from pystate.errors import DeclarationError, NoCurrentKeyError, PystateError
from pystate.types import StateType, TypeLike, parse_type, storable

if TYPE_CHECKING:
    from typing_extensions import Self

    from pystate.handles import ValueHandle

__all__ = ["ValueState"]

_IMMUTABLE = (type(None), bool, int, float, complex, str, bytes)


class ValueState:
    """Declares one value per key.

    Parameters
    ----------
    type : str, pyarrow.DataType or object
        A Spark DDL string (``"long"``), an Arrow type, or ``object`` for any object that can be
        pickled.
    default : optional
        What `value()` returns where nothing is stored, and what `add` starts from. Each key gets
        its own copy of a mutable default.

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
    an int is taken for a float or double where it fits without loss. Objects are unpickled once
    and pickled once per epoch, so that a change in place counts only after `update`.

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

    __slots__ = ("_default", "_shared", "_type")

    _type: StateType
    _default: Any
    _shared: bool

    def __init__(self, type: TypeLike, default: Any = None) -> None:
        parsed = storable(parse_type(type, "ValueState"), "ValueState")
        if default is not None and not parsed.is_object:
            try:
                default = parsed.codec("default").normalize(default)
            except PystateError as error:
                raise DeclarationError(f"ValueState({parsed.ddl!r}): {error}") from error
        object.__setattr__(self, "_type", parsed)
        object.__setattr__(self, "_default", copy.deepcopy(default))
        changes = parsed.is_object or parsed.is_nested
        object.__setattr__(self, "_shared", not changes or isinstance(default, _IMMUTABLE))

    @property
    def type(self) -> StateType:
        """The values' type."""
        return self._type

    @property
    def default(self) -> Any:
        """The default; a fresh copy where it could be changed."""
        return self._default if self._shared else copy.deepcopy(self._default)

    @property
    def has_shared_default(self) -> bool:
        """Whether the default is immutable, so that all keys may see one object."""
        return self._shared

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise DeclarationError(f"a declaration cannot be changed ({name})")

    def __delattr__(self, name: str) -> NoReturn:
        raise DeclarationError(f"a declaration cannot be changed ({name})")

    @overload
    def __get__(self, instance: None, owner: builtins.type[object]) -> Self: ...

    @overload
    def __get__(
        self, instance: object, owner: builtins.type[object] | None = None
    ) -> ValueHandle: ...

    def __get__(self, instance: object | None, owner: Any = None) -> Any:
        # Only reached on an instance that has no handle: handles are in its __dict__, which comes
        # before a descriptor without __set__.
        if instance is None:
            return self
        owner = type(instance)
        name = next((n for n in dir(owner) if getattr(owner, n, None) is self), "?")
        raise NoCurrentKeyError(
            f"state {name!r} of {owner.__name__} exists only while the function runs, between "
            "open and close"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ValueState):
            return NotImplemented
        mine, theirs = self._default, other._default
        return self._type == other._type and (mine == theirs or (mine != mine and theirs != theirs))

    def __hash__(self) -> int:
        return hash((ValueState, self._type))

    def __repr__(self) -> str:
        default = "" if self._default is None else f", default={self._default!r}"
        written = "object" if self._type.is_object else repr(self._type.ddl)
        return f"ValueState({written}{default})"

    def __copy__(self) -> ValueState:
        return self

    def __deepcopy__(self, memo: object) -> ValueState:
        return self

    def __reduce__(self) -> tuple[builtins.type[ValueState], tuple[object, Any]]:
        return ValueState, (object if self._type.is_object else self._type.ddl, self._default)
