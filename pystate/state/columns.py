"""The core's columns: what declarations are turned into, and what files say about their content.

Pure functions and immutable values, safe from any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from pystate._core import core
from pystate.types.nested import codec_of
from pystate.types.state_type import StateType, from_code, parse_type

#: The core's numbers for kinds of columns, part of the file format.
VALUE, LIST, MAP, TIME, TIMERS, TIMER = range(6)

#: The column of namespaces, after the key's.
NAMESPACE = "namespace"

#: The key column that distinguishes a row from its elements in files.
ELEMENT = "#element"

_TIMERS_NAME, _TIMER_NAME = "#timers", "#timer"
_TIME_SUFFIX = "#time"
_LONG, _INT = StateType("long"), StateType("int")
_FIXED_CODE, _NESTED_CODE = core.FIXED, core.NESTED


class Column(NamedTuple):
    """A key or state column as `core.Schema` takes it, and as `core.FileReader.schema` gives it."""

    name: str
    """A name with a ``#`` in it is not a user's."""
    code: int
    precision: int = 0
    scale: int = 0
    ddl: str = ""
    default: Any = None
    """What `add` starts from."""
    kind: int = VALUE
    """Of these numbers; a `TIME` is that of the column before."""
    map_key: int = 0
    """The type of a map's keys; in files, of a list's items."""
    map_precision: int = 0
    map_scale: int = 0
    width: int = 0
    """Bytes of an inline struct."""
    codec: core.Codec | None = None
    """Turns values into the core's, as `map_codec` does keys; None if only files are handled."""
    map_codec: core.Codec | None = None

    @property
    def is_hidden(self) -> bool:
        """Whether no user declared it."""
        return "#" in self.name

    @property
    def owner(self) -> str:
        """The state that the column belongs to; those of timers belong to ``#timers``."""
        if self.kind in (TIMERS, TIMER):
            return _TIMERS_NAME
        return self.name.partition("#")[0] or self.name

    @property
    def is_accumulator(self) -> bool:
        """Whether an aggregator keeps it."""
        return self.ddl.startswith("#")

    def describe(self) -> str:
        """The column as a user would declare it."""
        if self.is_accumulator:
            return self.ddl[1:]
        if self.kind == LIST:
            return f"a list of {self.value_type.ddl}"
        if self.kind == MAP:
            return f"a map from {self.key_type.ddl} to {self.value_type.ddl}"
        return self.value_type.ddl

    @property
    def value_type(self) -> StateType:
        """The type of the value, the items, or the map's values, as files keep it."""
        if self.kind == LIST and self.map_key:
            return _type_of(self.map_key, self.map_precision, self.map_scale, self.ddl)
        return _type_of(self.code, self.precision, self.scale, self.ddl)

    @property
    def key_type(self) -> StateType:
        """The type of a map's keys, as files keep it."""
        return _type_of(self.map_key, self.map_precision, self.map_scale, "")

    @property
    def file_types(self) -> tuple[StateType, ...]:
        """The types of values and keys by which columns of one kind are told apart in files."""
        types = (self.value_type, self.key_type) if self.kind == MAP else (self.value_type,)
        # Files do not distinguish the two kinds of timestamps.
        return tuple(StateType("timestamp") if t.name == "timestamp_ntz" else t for t in types)

    def same_as(self, other: Column) -> bool:
        """Whether both columns keep the same, in a file or a table."""
        if self.is_accumulator or other.is_accumulator:
            return self.ddl == other.ddl
        if self.kind in (TIME, TIMERS, TIMER):
            return self.kind == other.kind
        return self.kind == other.kind and self.file_types == other.file_types


def _type_of(code: int, precision: int, scale: int, ddl: str) -> StateType:
    if code in (_FIXED_CODE, _NESTED_CODE):
        return _parse(ddl)
    return from_code(code, precision, scale)


@lru_cache(maxsize=256)
def _parse(ddl: str) -> StateType:
    # A column is asked for its type again and again while it is compared.
    return parse_type(ddl)


def column_of(name: str, type: StateType, label: str = "", **more: Any) -> Column:
    """A column of values of a type."""
    return Column(
        name,
        type.code,
        type.precision,
        type.scale,
        type.ddl,
        width=type.inline_bytes,
        codec=codec_of(type, name, label),
        **more,
    )


def key_column(name: str, type: StateType) -> Column:
    """A column of the key, or the namespace's."""
    return column_of(name, type, f"key column {name!r}" if name != NAMESPACE else "the namespace")


def value_column(name: str, type: StateType, default: Any = None) -> Column:
    """One value per key."""
    return column_of(name, type, default=None if type.is_nested else default)


def time_column(name: str) -> Column:
    """When state `name`, whose column comes before, was last written."""
    return column_of(name + _TIME_SUFFIX, _LONG, kind=TIME)


def timers_columns() -> list[Column]:
    """How many timers a key has, and which it is if there is only one."""
    return [
        column_of(_TIMERS_NAME, _INT, kind=TIMERS),
        column_of(_TIMER_NAME, _LONG, kind=TIMER),
    ]


def core_schema(
    key: Sequence[tuple[str, StateType]], namespace: StateType | None, columns: Sequence[Column]
) -> core.Schema:
    """A table's schema: the key's columns, the type of its namespaces, the states' columns."""
    keys = [key_column(name, type_) for name, type_ in key]
    if namespace is not None:
        keys.append(key_column(NAMESPACE, namespace))
    return core.Schema(keys, columns, len(key))
