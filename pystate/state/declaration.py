"""State declarations: what a stateful function or a store keeps per key.

A declaration is an immutable value, safe to share between classes and threads. As a class
attribute of a stateful function it is a descriptor: the attribute's name is the state's name, and
on an instance it gives that instance's handle while the function runs.
"""

from __future__ import annotations

import builtins
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, TypeAlias, TypeVar, overload

import pyarrow as pa

from pystate._core import core
from pystate.errors import DeclarationError, NoCurrentKeyError
from pystate.state.columns import Column, time_column
from pystate.state.ttl import StateTtl
from pystate.types.fills import Fills
from pystate.types.state_type import StateType, TypeLike, parse_type

if TYPE_CHECKING:
    from typing_extensions import Self

H = TypeVar("H", covariant=True)

#: What keys without a value have, by the names of states: as `State.stored_default` gives it.
Defaults: TypeAlias = tuple[tuple[str, str], ...]
#: How long what is in states lives, by the names of those that have a time to live.
Ttls: TypeAlias = tuple[tuple[str, StateTtl], ...]

#: The longest name, and the longest type as it is written, in a state file; see csrc/FORMAT.md.
MOST_TEXT_BYTES = 65535


class State(ABC, Generic[H]):
    """Base of the declarations; the state's handles are `H`.

    A kind of state is a subclass in a file of its own, beside its handle, and is named in
    `pystate.state.kinds`.
    """

    __slots__ = ("_file_name", "_previously", "_reference_ms", "_ttl", "_type")

    #: Whether a reader of sealed epochs sees states of this kind.
    in_readers: ClassVar[bool] = False

    _type: StateType
    _ttl: StateTtl | None
    _previously: tuple[str, ...]
    _file_name: str | None
    _reference_ms: int | None

    def _declare(
        self, type: TypeLike, ttl: StateTtl | None, previously: str | Iterable[str] = ()
    ) -> None:
        if ttl is not None and not isinstance(ttl, StateTtl):
            raise DeclarationError(
                f"{builtins.type(self).__name__}: ttl is a StateTtl, e.g. "
                f"StateTtl(hours=48), got {ttl!r:.60}"
            )
        parsed = parse_type(type, builtins.type(self).__name__)
        size = len(parsed.ddl.encode()) if parsed.is_nested else 0
        if size > MOST_TEXT_BYTES:
            raise DeclarationError(
                f"{builtins.type(self).__name__}: written out, its type has {size} bytes, and a "
                f"state file keeps at most {MOST_TEXT_BYTES} of a type: give its fields shorter "
                "names, or keep some of them in a state of their own"
            )
        object.__setattr__(self, "_type", parsed)
        object.__setattr__(self, "_ttl", ttl)
        former = _former_names(previously, builtins.type(self).__name__)
        object.__setattr__(self, "_previously", former)
        object.__setattr__(self, "_file_name", None)
        object.__setattr__(self, "_reference_ms", None)

    @property
    def type(self) -> StateType:
        """The type of the values or elements."""
        return self._type

    @property
    def ttl(self) -> StateTtl | None:
        """When values or elements expire."""
        return self._ttl

    @property
    def previously(self) -> tuple[str, ...]:
        """The names that the state had before."""
        return self._previously

    def file_name(self, name: str) -> str:
        """What state files call the state of that name: its first name, if it was renamed."""
        return self._file_name or name

    def in_files(self, file_name: str | None) -> Self:
        """The same state, which files call by another name than the program; None: by the same."""
        return self._with("_file_name", file_name)

    @property
    def reference_ms(self) -> int | None:
        """The duration to which the times in files refer, for ever; None: that of the `ttl`.

        A value whose time is `t` expires at ``t + reference_ms``. So it keeps its expiry when the
        `ttl` has another duration, which counts for what is written from then on.
        """
        return self._reference_ms

    def referring_to(self, reference_ms: int | None) -> Self:
        """The same state with that `reference_ms`."""
        return self._with("_reference_ms", reference_ms)

    def expiring_by(self, ttl: StateTtl | None) -> Self:
        """The same state with that `ttl`."""
        return self._with("_ttl", ttl)

    def _with(self, name: str, value: object) -> Self:
        copy: Self = object.__new__(builtins.type(self))
        for cls in builtins.type(self).__mro__:
            for slot in getattr(cls, "__slots__", ()):
                if hasattr(self, slot):
                    object.__setattr__(copy, slot, getattr(self, slot))
        object.__setattr__(copy, name, value)
        return copy

    def columns(self, name: str) -> list[Column]:
        """The core's columns of the state under that name; the first one is the state itself."""
        file_name = self.file_name(name)
        # Errors about values name the state as the program does.
        first = self._column(name)._replace(name=file_name)
        return [first] if self._ttl is None else [first, time_column(file_name)]

    @abstractmethod
    def _column(self, name: str) -> Column:
        """The state's own column, under that name."""

    @abstractmethod
    def handle(self, table: core.Table, column: int, name: str) -> H:
        """Make the state's handle in a table that is not open yet."""

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

    def stored_default(self) -> str | None:
        """What a key without a value has, as JSON for a checkpoint's metadata; None if nothing."""
        return None

    def default_column(self, text: str, name: str) -> pa.Array[Any]:
        """What `stored_default` has given, as one row of the state's column in exported rows."""
        return pa.array([json.loads(text)], self.arrow_type)

    def stored_as(self) -> str:
        """The state in a checkpoint's metadata: what its files hold, and what that means.

        `pystate.state.kinds.declared_as` is the inverse.
        """
        spelling = self._spelled()
        if self._reference_ms is not None:
            spelling = f"{self._reference_ms} ms: {spelling}"
        return spelling if self._file_name is None else with_file_name(spelling, self._file_name)

    def _spelled(self) -> str:
        """What `from_stored` takes: `stored_as` without names in files and durations.

        A kind is spelled as it is declared, or else says here and in `identity` how it is.
        """
        listed = ", ".join("object" if a is object else repr(a) for a in self._arguments())
        return f"{builtins.type(self).__name__}({listed})"

    @classmethod
    def from_stored(cls, stored: str) -> Self | None:
        """The declaration that a checkpoint's metadata spells so; None if it is of another kind.

        `DeclarationError`: a later version wrote it.
        """
        arguments = arguments_of(stored, cls.__name__)
        return None if arguments is None else cls(*arguments)

    @abstractmethod
    def _arguments(self) -> tuple[Any, ...]:
        """The arguments that make an equal declaration, without its `ttl`."""

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
        shown = [as_literal(argument) for argument in self._arguments() if argument is not None]
        return f"{builtins.type(self).__name__}({', '.join([*shown, *self._options()])})"

    def _options(self) -> list[str]:
        """What all kinds of states may have, as it is written."""
        options = [] if self._ttl is None else [f"ttl={self._ttl!r}"]
        if self._previously:
            [*others] = self._previously
            options.append(f"previously={(others[0] if len(others) == 1 else others)!r}")
        return options

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        rest = self._previously, self._file_name, self._reference_ms
        return _declared, (builtins.type(self), self._arguments(), self._ttl, *rest)


def _declared(
    kind: Callable[..., State[Any]],
    arguments: tuple[Any, ...],
    ttl: Any,
    previously: tuple[str, ...] = (),
    file_name: str | None = None,
    reference_ms: int | None = None,
) -> State[Any]:
    given = {} if ttl is None else {"ttl": ttl}
    if previously:
        given["previously"] = previously
    declaration = kind(*arguments, **given)
    if reference_ms is not None:
        declaration = declaration.referring_to(reference_ms)
    return declaration if file_name is None else declaration.in_files(file_name)


def _former_names(previously: Any, kind: str) -> tuple[str, ...]:
    names = (previously,) if isinstance(previously, str) else previously
    if not isinstance(names, (tuple, list)) or not all(
        isinstance(name, str) and name and "#" not in name and "\0" not in name for name in names
    ):
        raise DeclarationError(
            f"{kind}: previously is the name that the state had before, or a list of names, not "
            f"{previously!r:.60}"
        )
    return tuple(dict.fromkeys(names))


def with_file_name(spelling: str, file_name: str) -> str:
    """How a checkpoint's metadata spells a state that its files call by another name."""
    return f"{json.dumps(file_name)}: {spelling}"


def stored_parts(stored: str) -> tuple[str | None, str]:
    """What a checkpoint's metadata says of a state: its name in files, and its spelling.

    The name is None where it is the state's own, else what `with_file_name` took. The spelling is
    without what `stored_reference_ms` gives.
    """
    file_name, spelling = _split_file_name(stored)
    reference = _REFERENCE.match(spelling)
    return file_name, spelling if reference is None else spelling[reference.end() :]


def stored_reference_ms(stored: str) -> int | None:
    """The `State.reference_ms` that a checkpoint's metadata says of a state."""
    reference = _REFERENCE.match(_split_file_name(stored)[1])
    return None if reference is None else int(reference[1])


def file_name(name: str, stored: str) -> str:
    """What files call a state, by its name and its spelling in a checkpoint's metadata."""
    return stored_parts(stored)[0] or name


#: No type and no declaration begins with a digit.
_REFERENCE = re.compile(r"(\d+) ms: ")


def _split_file_name(stored: str) -> tuple[str | None, str]:
    if not stored.startswith('"'):  # which no type and no declaration begins with
        return None, stored
    file_name, end = json.JSONDecoder().raw_decode(stored)
    return file_name, stored[end:].removeprefix(": ")


def as_literal(argument: Any) -> str:
    """An argument as a user would write it."""
    if argument is object:
        return "object"
    if callable(argument) and hasattr(argument, "__name__"):
        return str(argument.__name__)
    return repr(argument)


def type_literal(type: StateType) -> Any:
    """A type as a user would write it."""
    return object if type.is_object else type.ddl


def stored_kind(spelling: str) -> str | None:
    """The class of a declaration by its spelling; None of one that is spelled by a type alone."""
    kind, bracket, _ = spelling.partition("(")
    return kind if bracket and kind.endswith("State") and kind.isidentifier() else None


def arguments_of(stored: str, kind: str) -> list[Any] | None:
    """The arguments of a declaration of `kind` as it was stored; None if it is no such one."""
    called = re.fullmatch(rf"{kind}\((.*)\)", stored, re.DOTALL)
    if called is None:
        return None
    return [object if text == "object" else _unquote(text) for text in _LITERAL.findall(called[1])]


#: What is written for an argument: no type, or a text between the quotes of a `repr`.
_LITERAL = re.compile(r"""object|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")


def _unquote(literal: str) -> str:
    """The string of which this is the `repr`.

    `ast.literal_eval` would do, but states are declared in several threads at once, and before
    Python 3.11.8 two that parse Python at a time can fail with a SystemError
    (https://github.com/python/cpython/issues/106905).
    """
    return literal[1:-1].encode("latin-1", "backslashreplace").decode("unicode_escape")
