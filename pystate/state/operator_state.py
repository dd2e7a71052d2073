"""Operator state: what an instance of an operator keeps for itself, and not for a key.

An instance's state is a row of the table of its key-group range, so that it is sealed, merged,
restored and read like any state. The row's key says whose it is. Its last part, the slot, has no
meaning: it is chosen so that the key is in one of the range's key groups.

Each kind is a declaration in a file of its own, beside its handle, and is stored as a keyed state.
When the number of instances changes, `share` takes an instance's part of the old state, and `put`
writes it.

Thread safety: declarations and instances are immutable; `OldRows` belongs to one thread.

Invariants
----------
1. A slot depends on nothing but the instance and the number of instances and key groups, and never
   changes between versions, because it is stored.
2. What `share` returns depends only on the old rows and the instance, so that every instance, and
   every replay, computes the same division.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa

from pystate._core.core import range_bounds
from pystate.errors import DeclarationError
from pystate.state.columns import Column
from pystate.state.declaration import State
from pystate.state.key_batch import KeyBatch
from pystate.types.arrays import hash_keys, key_groups
from pystate.types.fills import Fills
from pystate.types.keys import KeyColumns, parse_key

H = TypeVar("H", covariant=True)

#: The key in checkpoints: the number of the instance, how many there are, and the slot.
INSTANCE_SCHEMA = (("instance", "int"), ("instances", "int"), ("slot", "int"))
#: The same as the key of a table.
INSTANCE_KEY: KeyColumns = parse_key(dict(INSTANCE_SCHEMA))


@dataclass(frozen=True)
class Instance:
    """One of the instances of an operator.

    Attributes
    ----------
    index : int
        Its number, from 0.
    parallelism : int
        How many instances there are.
    max_parallelism : int
        Number of key groups.
    """

    index: int
    parallelism: int
    max_parallelism: int

    @property
    def key_groups(self) -> tuple[int, int]:
        """Its first and last key group, both inclusive."""
        first, last = range_bounds(self.index, self.max_parallelism, self.parallelism)
        return first, last

    @property
    def key(self) -> tuple[int, int, int]:
        """The key of its row."""
        return self.index, self.parallelism, _slot(self, self.parallelism)

    @property
    def beginning(self) -> tuple[int, int, int]:
        """The key of what its range begins with: a row of none, so that all such are divided."""
        return self.index, 0, _slot(self, 0)


@lru_cache(maxsize=1024)
def _slot(instance: Instance, instances: int) -> int:
    """The smallest number with which a key of the instance is in one of its own key groups.

    One number in `parallelism` is, on average. `instances` is the second part of the key.
    """
    first, last = instance.key_groups
    count, begin = 4 * instance.parallelism + 64, 0
    while True:
        slots = np.arange(begin, begin + count, dtype=np.int32)
        whose = (np.full(count, part, np.int32) for part in (instance.index, instances))
        hashes = hash_keys([pa.array(column) for column in (*whose, slots)])
        groups = key_groups(hashes, instance.max_parallelism)
        found = np.flatnonzero((groups >= first) & (groups <= last))
        if len(found):
            return begin + int(found[0])
        begin += count


class OldRows:
    """The rows of all old instances, in order.

    Parameters
    ----------
    keys : KeyBatch
        Their keys, by number of the instance.
    kept : bool
        Whether the number of instances stays as it was, so that each keeps its own state.
    """

    def __init__(self, keys: KeyBatch, kept: bool) -> None:
        self.keys = keys
        self.kept = kept
        columns = keys.key_arrays()
        self._columns = columns
        self.instances: list[Any] = columns[0].to_pylist()

    def __len__(self) -> int:
        return len(self.instances)

    def select(self, row: int) -> None:
        """Make a row's key current in the old table."""
        self.keys.select(row)

    def only(self, row: int) -> KeyBatch:
        """The key of one row."""
        columns = [column.slice(row, 1) for column in self._columns]
        return KeyBatch(self.keys.table, columns, self.keys._types)


class Own:
    """An instance's row in the open epoch of its table, for handles.

    Parameters
    ----------
    instance : Instance
        The instance.
    keys : callable
        Makes its key batch.
    """

    def __init__(self, instance: Instance, keys: Callable[[], KeyBatch]) -> None:
        self.instance = instance
        self._make = keys
        self._keys: KeyBatch | None = None
        #: Whether broadcast state must not be changed now.
        self.read_only = False

    @property
    def keys(self) -> KeyBatch:
        """The instance's key."""
        if self._keys is None:
            self._keys = self._make()
        return self._keys


class KeylessState(State[H]):
    """Base of the declarations of operator state; the state's handles are `H`."""

    __slots__ = ()

    #: The class of functions that may declare it.
    _function: ClassVar[str] = "ProcessFunction"
    #: The state of keys that is like it, if that is not what it is stored as.
    _of_keys: ClassVar[str | None] = None

    def stored(self) -> State[Any]:
        """The keyed state as which it is stored."""
        raise NotImplementedError

    def kept(self) -> State[Any]:
        """The keyed state as which it is stored, with its former names and its name in files."""
        made = self.stored().in_files(self._file_name)
        object.__setattr__(made, "_previously", self._previously)
        return made

    def opened(self, handle: Any, own: Own) -> H:
        """Make the handle for functions, over that of the stored state."""
        raise NotImplementedError

    def share(self, handle: Any, old: OldRows, instance: Instance, start: int) -> tuple[Any, int]:
        """Read an instance's part of the old state.

        Parameters
        ----------
        handle : StateHandle
            The stored state, in a table with all rows.
        old : OldRows
            These rows; at least one.
        instance : Instance
            The new instance.
        start : int
            The instance that gets the first items, if they are divided.

        Returns
        -------
        share : object
            What `put` takes.
        start : int
            The same for the next state.
        """
        raise NotImplementedError

    def put(self, handle: Any, own: KeyBatch, share: Any) -> None:
        """Write a share into the instance's row, which is empty and has the current key."""
        raise NotImplementedError

    def _spelled(self) -> str:
        return self.stored().stored_as()

    def fills(self) -> Fills:
        """Return what fields have, once they are added."""
        return self.stored().fills()

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of the stored state's column."""
        return self.stored().arrow_type

    def _column(self, name: str) -> Column:
        raise DeclarationError(
            f"state {name!r}: {self!r} belongs to an instance of an operator, and not to a key: "
            f"declare it in a ps.{self._function}; here, take a "
            f"ps.{self._of_keys or builtins.type(self.stored()).__name__}"
        )
