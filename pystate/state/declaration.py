"""State declarations: what a stateful function or a store keeps per key.

A declaration is an immutable value, safe to share between classes and threads. As a class
attribute of a stateful function it is a descriptor: the attribute's name is the state's name, and
on an instance it gives that instance's handle while the function runs.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, TypeVar, overload

import pyarrow as pa

from pystate._core import core
from pystate.errors import DeclarationError, NoCurrentKeyError
from pystate.state.columns import Column, time_column
from pystate.state.ttl import StateTtl
from pystate.types.fills import Fills
from pystate.types.state_type import StateType, TypeLike, parse_type

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["State", "arguments_of", "spelled", "written"]

H = TypeVar("H", covariant=True)


class State(Generic[H]):
    """Base of the declarations; the state's handles are `H`.

    A kind of state is a subclass in a file of its own, beside its handle, and is named in
    `pystate.state.kinds`.
    """

    __slots__ = ("_ttl", "_type")

    #: Whether a reader of sealed epochs sees states of this kind.
    in_readers: ClassVar[bool] = False

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

    def handle(self, table: core.Table, column: int, name: str) -> H:
        """Make the state's handle in a table that is not open yet."""
        raise NotImplementedError

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of the state's column in exported rows."""
        return self._type.arrow

    def loaded(self, name: str, stored: Any) -> Any:
        """Return what a reader gives for a stored value of state `name`, which may be None."""
        raise NotImplementedError

    def fills(self) -> Fills:
        """Return what fields have, once they are added, where nothing was stored of them."""
        return {}

    def stored_as(self) -> str:
        """The state in a checkpoint's metadata: only what determines the content of its files.

        See Also
        --------
        from_stored : the inverse.
        """
        return self._column("state").ddl

    @classmethod
    def from_stored(cls, stored: str) -> Self | None:
        """Return a declaration of this kind for which `stored_as` gives `stored`.

        None if `stored` is of another kind.

        Raises
        ------
        DeclarationError
            A later version wrote it.
        """
        return None

    def _as_call(self) -> str:
        """The declaration as it is written, without its time to live."""
        listed = ", ".join("object" if a is object else repr(a) for a in self._arguments())
        return f"{builtins.type(self).__name__}({listed})"

    def _arguments(self) -> tuple[Any, ...]:
        """The arguments that make an equal declaration, without its `ttl`."""
        raise NotImplementedError

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise DeclarationError(f"a declaration cannot be changed ({name})")

    def __delattr__(self, name: str) -> NoReturn:
        raise DeclarationError(f"a declaration cannot be changed ({name})")

    @overload
    def __get__(self, instance: None, owner: builtins.type[object]) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: builtins.type[object] | None = None) -> H: ...

    def __get__(self, instance: object | None, owner: Any = None) -> Any:
        # Only reached if the instance has no handle: handles are in its __dict__, which Python
        # looks at before a descriptor without __set__.
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
        shown = [written(argument) for argument in self._arguments() if argument is not None]
        if self._ttl is not None:
            shown.append(f"ttl={self._ttl!r}")
        return f"{builtins.type(self).__name__}({', '.join(shown)})"

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _declared, (builtins.type(self), self._arguments(), self._ttl)


def _declared(kind: Callable[..., State[Any]], arguments: tuple[Any, ...], ttl: Any) -> State[Any]:
    return kind(*arguments, ttl=ttl)


def written(argument: Any) -> str:
    """An argument as a user would write it."""
    if argument is object:
        return "object"
    if callable(argument) and hasattr(argument, "__name__"):
        return str(argument.__name__)
    return repr(argument)


def spelled(type: StateType) -> Any:
    """A type as a user would write it."""
    return object if type.is_object else type.ddl


def arguments_of(stored: str, kind: type[State[Any]]) -> list[Any] | None:
    """The types in a declaration of `kind` as it was stored; None if it is no such declaration."""
    called = re.fullmatch(rf"{kind.__name__}\((.*)\)", stored)
    if called is None:
        return None
    return [object if text == "object" else _unquoted(text) for text in _LITERAL.findall(called[1])]


#: What `State._as_call` writes for an argument: no type, or one between the quotes of a `repr`.
_LITERAL = re.compile(r"""object|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")


def _unquoted(literal: str) -> str:
    """The string of which this is the `repr`.

    `ast.literal_eval` would do, but states are declared in several threads at once, and before
    Python 3.11.8 two that parse Python at a time can fail with a SystemError
    (https://github.com/python/cpython/issues/106905).
    """
    return literal[1:-1].encode("latin-1", "backslashreplace").decode("unicode_escape")
