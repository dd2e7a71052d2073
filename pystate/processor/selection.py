"""What is asked of an operator's state: which keys, which states, and in which form.

Thread safety: the objects are immutable; the functions have no state.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pystate._core import core
from pystate.base.arguments import flag, integer, shown, text
from pystate.errors import InvalidArgumentError
from pystate.state.columns import core_schema
from pystate.state.declaration import State
from pystate.state.list import ListState
from pystate.state.map import MapState
from pystate.tables.registry import unknown_state_error
from pystate.types.arrays import as_array, hash_keys, key_groups, reference
from pystate.types.equality import lengths_of
from pystate.types.keys import KeyColumns, key_columns
from pystate.types.state_type import StateType


@dataclass(frozen=True)
class Selection:
    """What `read_state` was asked for, beside keys."""

    state: str | None = None
    explode: bool = False
    timers: bool = False
    accumulators: bool = False
    """What aggregates keep in place of their results."""
    defaults: bool = True
    """Whether a state that holds nothing has its declared default."""
    only: frozenset[str] | None = None
    """Of which states there are columns; None for all. The others only tell which keys exist."""
    alone: bool = False
    """Whether they are all that is read: keys without any of them may be left out."""
    expired: bool = False
    """Whether what has expired, and is still in files, is read as if nothing expired."""

    def gives(self, state: str) -> bool:
        """Whether there is a column of a state that is read."""
        return self.only is None or state in self.only

    def check(self, states: dict[str, State[Any]], has_timers: bool, uid: str) -> None:
        """Refuse what the operator does not have, and combinations that make no sense."""
        flag(self.explode, "explode")
        flag(self.accumulators, "accumulators")
        flag(self.defaults, "defaults")
        flag(self.expired, "expired")
        if flag(self.timers, "timers") and (self.state is not None or self.explode):
            raise InvalidArgumentError(
                "timers=True reads timers alone: read states by another call, without it"
            )
        if self.timers and not has_timers:
            raise InvalidArgumentError(f"operator {uid!r} has no timers in this epoch")
        if self.state is not None and text(self.state, "state") not in states:
            raise unknown_state_error(self.state, states)
        if self.explode and self.state is None:
            raise InvalidArgumentError(
                "explode=True gives a row per element of one list or map: name it, state=..."
            )
        if self.explode and not isinstance(states[str(self.state)], (ListState, MapState)):
            raise InvalidArgumentError(
                f"explode=True: state {self.state!r} is neither a list nor a map, it is "
                f"{states[str(self.state)]!r}"
            )


EVERYTHING = Selection()


def arrays_of_keys(key: KeyColumns, keys: Any) -> list[pa.Array[Any]]:
    """The columns of keys as a caller gives them; `WrongTypeError` if they are of another type."""
    return [
        as_array(column, type_, f"key column {name!r}")
        for (name, type_), column in zip(key, key_columns(key, keys), strict=True)
    ]


def array_of_namespaces(type_: StateType, namespaces: Any, keys: int) -> pa.Array[Any]:
    """The namespaces of so many keys; `InvalidArgumentError` if they are not as many."""
    array = as_array(namespaces, type_, "the namespaces")
    if len(array) != keys:
        raise InvalidArgumentError(
            f"there are {keys} keys, and {len(array)} namespaces: each key has one, which may be "
            "null"
        )
    return array


class WantedKeys:
    """The keys that are asked for; pickled and sent to the workers of Spark.

    With `namespaces`, one for each key, the rows of these alone are wanted, else those of all.
    """

    def __init__(
        self,
        key: KeyColumns,
        columns: Any,
        max_parallelism: int,
        namespaces: tuple[StateType, Any] | None = None,
    ) -> None:
        self._key, self._namespace = key, None if namespaces is None else namespaces[0]
        self._arrays = arrays_of_keys(key, columns)
        self.max_parallelism = max_parallelism
        self._groups = key_groups(hash_keys(self._arrays), max_parallelism)
        self.key_groups = frozenset(self._groups.tolist())
        if namespaces is not None:
            self._arrays.append(array_of_namespaces(*namespaces, len(self._groups)))

    def __len__(self) -> int:
        return len(self._groups)

    def between(self, first: int, last: int) -> list[pa.Array[Any]]:
        """The key columns of those in a range of key groups."""
        return self.among(first, last)._arrays

    def among(self, first: int, last: int) -> WantedKeys:
        """Those in a range of key groups."""
        if len(self) and first <= self._groups.min() and self._groups.max() <= last:
            return self
        return self._taken(np.flatnonzero((self._groups >= first) & (self._groups <= last)))

    def slice(self, at: int, most: int) -> WantedKeys:
        """Some of them, one after the other."""
        return self if not at and len(self) <= most else self._taken(np.arange(at, at + most))

    def _taken(self, rows: np.ndarray[Any, np.dtype[np.intp]]) -> WantedKeys:
        taken = copy(self)
        rows = rows[rows < len(self)]
        taken._arrays = [array.take(rows) for array in self._arrays]
        taken._groups = self._groups[rows]
        taken.key_groups = frozenset(taken._groups.tolist())
        return taken

    def ordered(self) -> WantedKeys:
        """Each of them once, in the order of files: neighbours there are neighbours here."""
        order = np.empty(len(self), np.uint32)
        n = core.wanted_order(
            core_schema(self._key, self._namespace, ()),
            self.max_parallelism,
            self.references,
            order.ctypes.data,
        )
        return self._taken(order[:n].astype(np.intp))

    @property
    def references(self) -> list[core.ArrayRef]:
        """The columns for the core."""
        types = [type_ for _, type_ in self._key]
        if self._namespace is not None:
            types.append(self._namespace)
        return [reference(a, t) for a, t in zip(self._arrays, types, strict=True)]


def wanted_groups(asked: Any, max_parallelism: int) -> frozenset[int] | None:
    """Return the key groups that were asked for, once they are checked; None for all."""
    if asked is None:
        return None
    if isinstance(asked, (str, bytes)) or not isinstance(asked, Iterable):
        raise InvalidArgumentError(
            f"key_groups takes key groups, such as [0, 1] or range(0, 64), not {shown(asked)}"
        )
    most = max_parallelism - 1
    return frozenset(integer(group, "a key group", least=0, most=most) for group in asked)


def exploded_fields(state: str, declaration: State[Any]) -> list[pa.Field[Any]]:
    """The columns of elements: the position or the map's key, and the item or value."""
    value = pa.field(state, declaration.type.arrow)
    if isinstance(declaration, MapState):
        return [pa.field(f"{state}_key", declaration.key_type.arrow), value]
    return [pa.field(f"{state}_index", pa.int64()), value]


def explode_rows(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A row per element of the last column, which is a list or map that is not a slice.

    The columns before it are repeated: the key, and the namespace if there are any.
    """
    elements: Any = rows.column(rows.num_columns - 1)
    lengths = lengths_of(elements)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    if isinstance(elements, pa.MapArray):
        parts = [elements.keys, elements.items]
    else:
        starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
        parts = [pa.array(np.arange(len(owner)) - starts), elements.values]
    keys = [rows.column(i).take(owner) for i in range(rows.num_columns - 1)]
    return pa.RecordBatch.from_arrays([*keys, *parts], schema=schema)
