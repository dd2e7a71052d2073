"""What a state's values mean: its kind, and the function that made them.

A value, a reducing state and some aggregates keep one value of the same type, so that only a
checkpoint's metadata says which of them a column is. There each is spelled as `State.stored_as`
says; what is read from there, without the function itself, is a `StoredFold`.

A function is known by its name, and a class by its name and its parameters. They may move to
another module. A lambda has no name, so that nobody notices if it becomes another one.

Thread safety: pure functions and immutable values.
"""

from __future__ import annotations

import builtins
import dataclasses
import inspect
import operator
import re
from typing import TYPE_CHECKING, Any

from pystate.redaction import redacted
from pystate.state import aggregators
from pystate.state.aggregators import Aggregator
from pystate.state.declaration import arguments_of, stored_kind, stored_parts, type_literal
from pystate.state.value import ValueState
from pystate.types.state_type import StateType

if TYPE_CHECKING:
    from typing_extensions import Self

#: What a function is called that has no name.
_CUSTOM = "custom"
_FUNCTION_NAMES = {
    builtins.max: "max",
    builtins.min: "min",
    builtins.sum: "sum",
    operator.add: "sum",
}
_BUILT_IN = frozenset(_FUNCTION_NAMES.values())
#: A state of a checkpoint that does not say whether it is a value or a fold.
_UNKNOWN = re.compile(r"State\(.*\)", re.DOTALL)
_AGGREGATE = re.compile(r"#(\w+)(\(.*?\)) of (.*)", re.DOTALL)
_COLLECTIONS = ("ListState(", "UnionListState(", "MapState(")
_PLAIN = (type(None), bool, int, float, str, bytes)


def function_name(function: Any) -> str:
    """The name of a reduce function: that of a builtin, or with its module; ``custom`` if none."""
    try:
        if function in _FUNCTION_NAMES:
            return _FUNCTION_NAMES[function]
    except TypeError:  # it cannot be hashed
        pass
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None)
    if isinstance(name, str):
        return _qualified_name(function, name)
    return class_name(function) if type(function).__module__ != "functools" else _CUSTOM


def class_name(object: Any) -> str:
    """The name of an object's class with its module, and the object's parameters."""
    kind = type(object)
    # Others read manifests, where this stands.
    listed = ", ".join(redacted(f"{name}={value!r}") for name, value in _parameters(object))
    return f"{_qualified_name(kind, kind.__qualname__)}({listed})"


def _qualified_name(named: Any, name: str) -> str:
    if "<lambda>" in name:
        return _CUSTOM
    name = name.rpartition("<locals>.")[2]
    module = getattr(named, "__module__", None)
    return f"{module}.{name}" if isinstance(module, str) else name


def _parameters(object: Any) -> list[tuple[str, Any]]:
    """What an object was made with, as far as it still has it and it is a plain value."""
    if dataclasses.is_dataclass(object):
        names = [field.name for field in dataclasses.fields(object) if field.init and field.compare]
    elif type(object).__init__ is builtins.object.__init__:
        names = []
    else:
        try:
            names = list(inspect.signature(type(object)).parameters)
        except (TypeError, ValueError):
            names = []
    parameters = []
    for name in names:
        value = getattr(object, name, getattr(object, f"_{name}", ...))
        items = value if isinstance(value, tuple) else (value,)
        if all(isinstance(item, _PLAIN) for item in items):
            parameters.append((name, value))
    return parameters


def stored_fold(kind: str, type: StateType, name: str) -> str:
    """How a checkpoint's metadata spells a state into which values are folded by a function."""
    of = "object" if type.is_object else repr(type.ddl)
    return f"{kind}({of}, {name!r})"


def stored_aggregate(aggregator: Any, ddl: str) -> str:
    """How a checkpoint's metadata spells an aggregate of the core over values of that type."""
    return f"#{aggregator!r} of {ddl}"


def of_unknown_kind(stored: str) -> str:
    """How a state is spelled that an older version stored by its type alone."""
    if stored.startswith(("#", *_COLLECTIONS)):
        return stored
    return f"State({'object' if stored == 'object' else repr(stored)})"


def without_kind(stored: str) -> str:
    """How an older version spells a state: a value and some folds by their type alone."""
    _, spelling = stored_parts(stored)
    kept = _kept_type(spelling)
    return spelling if kept is None else "object" if kept is object else str(kept)


def shown_as(stored: str) -> str:
    """A stored state for people."""
    _, spelling = stored_parts(stored)
    return without_kind(spelling) if _UNKNOWN.fullmatch(spelling) else spelling.removeprefix("#")


class StoredFold(ValueState):
    """A value that others are folded into, as a checkpoint knows it: without the function.

    A state whose kind an old checkpoint does not say is one, too. An operator that folds values by
    itself declares one.
    """

    __slots__ = ("_spelling",)

    _spelling: str

    def __init__(
        self, spelling: str, default: Any = None, *, ttl: Any = None, previously: Any = ()
    ) -> None:
        super().__init__(_kept_type(spelling), default, ttl=ttl, previously=previously)
        object.__setattr__(self, "_spelling", spelling)

    @property
    def kind(self) -> str:
        """The kind, as `state_metadata` gives it."""
        if self._spelling.startswith("#"):
            return "aggregating"
        return self._spelling.partition("State(")[0].lower() or "value"

    @classmethod
    def from_stored(cls, stored: str) -> Self | None:
        """Return the state of that spelling; None if it is another kind, or has an accumulator."""
        return None if _kept_type(stored) is None else cls(stored)

    def _spelled(self) -> str:
        return self._spelling

    def _arguments(self) -> tuple[Any, ...]:
        return self._spelling, self._default

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StoredFold):
            return NotImplemented
        mine = self._spelling, self._default, self._ttl
        return mine == (other._spelling, other._default, other._ttl)

    __hash__ = ValueState.__hash__

    def __repr__(self) -> str:
        return shown_as(self._spelling)


def _kept_type(spelling: str) -> Any:
    """The type of the value that is kept, as declarations take it; None if there is no such."""
    for kind in ("ReducingState", "AggregatingState", "State"):
        if spelling.startswith(f"{kind}("):
            arguments = arguments_of(spelling, kind)
            return None if not arguments else arguments[0]
    aggregate = _AGGREGATE.fullmatch(spelling)
    if aggregate is None or aggregate[2] != "()":
        return None
    kind_ = getattr(aggregators, aggregate[1], None)
    if not (isinstance(kind_, type) and issubclass(kind_, Aggregator) and kind_.operation):
        return None
    column = kind_().bind(aggregate[3]).column
    return None if column is None else type_literal(column)


def other_meaning(old: str, new: str) -> str | None:
    """Why what was stored means something else where it is declared so; None if it does not.

    Lists, maps and accumulators are left to the comparison of their columns.
    """
    before, after = _meaning(stored_parts(old)[1]), _meaning(stored_parts(new)[1])
    if before is None or after is None or _same(before, after):
        return None
    if before[0] != after[0]:
        return f"{_meaning_text(before)} does not become {_meaning_text(after)}"
    return f"{_meaning_text(before)} does not become that of another one, {after[1]}"


def _meaning(spelling: str) -> tuple[str, str] | None:
    if _UNKNOWN.fullmatch(spelling) or spelling.startswith(_COLLECTIONS):
        return None
    aggregate = _AGGREGATE.fullmatch(spelling)
    if aggregate is not None:
        return "aggregating", f"{aggregate[1]}{aggregate[2]}"
    for kind in ("ReducingState", "AggregatingState"):
        if spelling.startswith(f"{kind}("):
            arguments = arguments_of(spelling, kind)
            name = arguments[1] if arguments and len(arguments) > 1 else _CUSTOM
            return kind.removesuffix("State").lower(), name
    kind_ = stored_kind(spelling)
    return ("value" if kind_ is None else kind_.removesuffix("State").lower()), ""


def _same(before: tuple[str, str], after: tuple[str, str]) -> bool:
    (kind, mine), (other, theirs) = before, after
    if kind != other:
        return False
    if _BUILT_IN & {mine, theirs} or not mine:
        return mine == theirs
    if kind == "reducing" and _CUSTOM in (mine, theirs):
        return True  # a lambda that got a name, or lost it
    return _without_module(mine) == _without_module(theirs)


def _without_module(name: str) -> str:
    head, bracket, rest = name.partition("(")
    return head.rpartition(".")[2] + bracket + rest


def _meaning_text(meaning: tuple[str, str]) -> str:
    kind, name = meaning
    if not name:
        return f"a {kind}"
    return f"what {name} has {'reduced' if kind == 'reducing' else 'aggregated'}"
