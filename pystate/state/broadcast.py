"""Broadcast state: a map of which all instances of an operator have equal copies.

Thread safety: a declaration is immutable; a handle belongs to its table, and a table to one thread
at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pystate.errors import DeclarationError, ReadOnlyStateError
from pystate.state.declaration import type_literal
from pystate.state.handle import MAP_NAMES
from pystate.state.key_batch import KeyBatch
from pystate.state.map import MapHandle, MapState
from pystate.state.operator_state import (
    Instance,
    InstanceHandle,
    InstanceRow,
    KeylessState,
    OldRows,
)
from pystate.types.state_type import StateType, TypeLike


class BroadcastState(KeylessState["BroadcastHandle"]):
    """Declares a map of which all instances of an operator have equal copies.

    It is written only where every instance sees the same rows, and read everywhere.

    Parameters
    ----------
    key : str or pyarrow.DataType
        The type of the map's keys.
    type : str, pyarrow.DataType or object
        The type of the map's values.

    See Also
    --------
    pystate.BroadcastHandle : what the declaration becomes while a function runs.

    Examples
    --------
    >>> import pystate as ps
    >>> ps.BroadcastState("string", "double")
    BroadcastState('string', 'double')
    """

    __slots__ = ("_key",)

    _key: StateType
    _function = "KeyedBroadcastProcessFunction"

    def __init__(
        self, key: TypeLike, type: TypeLike, *, previously: str | Sequence[str] = ()
    ) -> None:
        try:
            stored = MapState(key, type)
        except DeclarationError as error:
            raise DeclarationError(str(error).replace("MapState", "BroadcastState")) from None
        self._declare(type, None, previously)
        object.__setattr__(self, "_key", stored.key_type)

    @property
    def key_type(self) -> StateType:
        """The type of the map's keys."""
        return self._key

    def stored(self) -> MapState:
        """A map per key."""
        return MapState(type_literal(self._key), type_literal(self._type))

    def opened(self, handle: Any, own: InstanceRow) -> BroadcastHandle:
        """Make the state's handle."""
        return BroadcastHandle(handle, own)

    def share(
        self, handle: Any, old: OldRows, instance: Instance, start: int
    ) -> tuple[list[tuple[Any, Any]], int]:
        """Read the entries of the first old instance; the others have the same."""
        old.select(0)
        return handle.items(), start

    def put(self, handle: Any, own: KeyBatch, share: Any) -> None:
        """Write the entries."""
        handle.put_all(share)

    def _arguments(self) -> tuple[Any, ...]:
        return type_literal(self._key), type_literal(self._type)


class BroadcastHandle(InstanceHandle[MapHandle]):
    """An instance's copy of a broadcast map. `BroadcastState` declares it.

    ``len(handle)``, ``handle[key]``, ``key in handle`` and iteration do what they do with a dict,
    and so do ``handle[key] = value`` and ``del handle[key]`` where it can be written.

    Attributes
    ----------
    name : str
        The state's name.
    key_type : StateType
        The type of the map's keys.
    type : StateType
        The type of its values.

    Notes
    -----
    `keys`, `values` and `items` give copies. Entries with string keys come in the order of the
    keys' bytes. The order of other keys is not specified, and may differ between instances.
    """

    _others = MAP_NAMES

    def __init__(self, handle: MapHandle, own: InstanceRow) -> None:
        super().__init__(handle, own)
        self.key_type = handle.key_type
        self.type: StateType = handle.type

    @property
    def read_only(self) -> bool:
        """Whether it cannot be changed here, because other instances do not see the same row."""
        return self._own.read_only

    # -- reading

    def get(self, key: Any, default: Any = None, /) -> Any:
        """The value under `key`, or the default."""
        return self._handle.get(key, default)

    def contains(self, key: Any, /) -> bool:
        """Whether there is an entry with this key."""
        contained: bool = self._handle.contains(key)
        return contained

    def keys(self) -> list[Any]:
        """All keys of the map."""
        return self._handle.keys()

    def values(self) -> list[Any]:
        """All values of the map."""
        return self._handle.values()

    def items(self) -> list[tuple[Any, Any]]:
        """All entries of the map."""
        return self._handle.items()

    def is_empty(self) -> bool:
        """Whether there is no entry."""
        return not len(self)

    def __bool__(self) -> bool:
        return len(self) > 0

    def __contains__(self, key: object) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def __getitem__(self, key: Any) -> Any:
        return self._handle[key]

    # -- writing

    def put(self, key: Any, value: Any, /) -> None:
        """Store a value under `key`.

        Raises
        ------
        ReadOnlyStateError
            Other instances do not see the row that is handled.
        WrongTypeError
            The key is None, or key or value are of another type; nothing was written.
        """
        self._writable("put")
        self._handle.put(key, value)

    def put_all(self, entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]], /) -> None:
        """Store several entries: a mapping, or pairs of a key and a value.

        Raises
        ------
        ReadOnlyStateError, WrongTypeError
            As for `put`; entries before one of another type were stored.
        """
        self._writable("put_all")
        self._handle.put_all(entries)

    def remove(self, key: Any, /) -> None:
        """Remove an entry; nothing happens if there is none; `ReadOnlyStateError` as for `put`."""
        self._writable("remove")
        self._handle.remove(key)

    def clear(self) -> None:
        """Remove all entries; `ReadOnlyStateError` as for `put`."""
        self._writable("clear")
        self._handle.clear()

    def __setitem__(self, key: Any, value: Any) -> None:
        self.put(key, value)

    def __delitem__(self, key: Any) -> None:
        self._writable("del")
        del self._handle[key]

    def _writable(self, method: str) -> None:
        if self._own.read_only:
            raise ReadOnlyStateError(
                f"state {self.name!r}: {method} is not allowed here: broadcast state is the same "
                "on all instances, so that it is changed only where each of them sees the same "
                "rows, in process_broadcast; here it can be read"
            )

    def __repr__(self) -> str:
        return f"<BroadcastHandle {self.name!r}{' (read only)' if self.read_only else ''}>"
