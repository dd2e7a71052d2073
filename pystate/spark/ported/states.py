"""The states of a processor: Spark's classes over handles of pystate.

Thread safety: as a handle, one task's thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pyspark.sql.streaming.stateful_processor import ListState, MapState, ValueState

import pystate.state.list as lists
import pystate.state.map as maps
import pystate.state.value as values
from pystate._core import ported
from pystate.spark.base.errors import StatefulProcessorError
from pystate.spark.ported.rows import row_class
from pystate.spark.ported.schemas import Struct, read_struct
from pystate.state.declaration import State
from pystate.state.ttl import StateTtl
from pystate.types.nested import NestedCodec
from pystate.types.state_type import StateType

#: The kinds of state that a handle gives.
Kind: TypeAlias = Literal["value", "list", "map"]


@dataclass(frozen=True)
class StateRequest:
    """A state as a processor's `init` asks for it."""

    name: str
    kind: Kind
    schema: Any
    """As it was given: a `StructType` or DDL."""
    key_schema: Any = None
    """The same for a map's keys."""
    ttl_ms: int = 0
    """0 for none."""

    @property
    def what(self) -> str:
        """How errors name it."""
        return f"state {self.name!r}"

    def declaration(self) -> State[Any]:
        """The state as pystate declares it."""
        ttl = None if not self.ttl_ms else StateTtl(self.ttl_ms)
        struct = read_struct(self.schema, self.what, nullable=True)
        state: State[Any]
        if self.kind == "value":
            state = values.ValueState(struct.type, ttl=ttl)
        elif self.kind == "list":
            state = lists.ListState(struct.type, ttl=ttl)
        else:
            state = maps.MapState(self.keys().type, struct.type, ttl=ttl)
        # As in Spark, what is stored keeps its expiry if the next program asks for another time.
        return state if ttl is None else state.referring_to(ttl.duration_ms)

    def keys(self) -> MapKeys:
        """The keys of a map."""
        return MapKeys(read_struct(self.key_schema, f"{self.what}, a map's key"))

    def state(self, handle: Any) -> Any:
        """The state that the processor gets, over its handle."""
        struct = read_struct(self.schema, self.what)
        if self.kind == "value":
            return (PlainValue if struct.plain else PortedValue)(self.name, handle, struct)
        if self.kind == "list":
            return PortedList(self.name, handle, struct)
        keys = self.keys()
        kind = PlainMap if keys.plain and struct.plain else PortedMap
        return kind(self.name, handle, struct, keys)


def checked_request(
    kind: Kind, name: Any, schema: Any, key_schema: Any = None, ttl_ms: Any = None
) -> StateRequest:
    """Check what a processor asks its handle for."""
    if not isinstance(name, str) or not name or name != name.strip() or name == "default":
        raise StatefulProcessorError(
            f"a state's name is a string, not empty, without spaces at its ends and not 'default'; "
            f"got {name!r:.80}"
        )
    if name.startswith("$"):
        raise StatefulProcessorError(f"state {name!r}: names that begin with $ are reserved")
    ttl = 0 if ttl_ms is None else ttl_ms
    if isinstance(ttl, bool) or not isinstance(ttl, int) or ttl < 0:
        raise StatefulProcessorError(
            f"state {name!r}: ttlDurationMs is a positive number of milliseconds, got {ttl_ms!r}"
        )
    request = StateRequest(name, kind, schema, key_schema, ttl)
    request.declaration()
    return request


class MapKeys:
    """The keys of a map: of one field that field itself, of several their bytes.

    They are `plain` if the only field of a key and what the state takes and gives are the same.
    """

    def __init__(self, struct: Struct) -> None:
        fields = struct.type.children
        self._struct = struct
        self._codec: NestedCodec | None = None
        if len(fields) == 1 and not fields[0][1].is_nested:
            [(_, self.type)] = fields
        else:
            self.type = StateType("binary")
            self._codec = NestedCodec(struct.type, "a map's key")
            self._codec.tuples = True
        self._floats = self._codec is not None and _has_floats(struct.type)
        self.plain = self._codec is None and struct.plain

    def pack(self, key: Any) -> Any:
        """Turn the tuple that Spark takes into the state's key."""
        fields = self._struct.pack(key)
        if self._codec is not None:
            packed = self._codec.pack(fields)
            if self._floats:
                # Zeros are equal, as in a key of one field; NaNs have one form in any case.
                packed = self._codec.pack(_one_zero(self._codec.unpack(packed)))
            return packed
        if fields[0] is None:
            raise StatefulProcessorError(
                f"{self._struct.what}: {self._struct.names[0]!r} is None: the key of a map with "
                "one field is never null; take a value of its own for it, or a key of two fields"
            )
        return fields[0]

    def unpack(self, key: Any) -> tuple[Any, ...]:
        """Turn the state's key into the tuple that Spark gives."""
        return self._struct.unpack((key,) if self._codec is None else self._codec.unpack(key))


def _has_floats(type: StateType) -> bool:
    return type.name in ("float", "double") or any(_has_floats(each) for _, each in type.children)


def _one_zero(value: Any) -> Any:
    """A value that a codec has given, without negative zeros."""
    if isinstance(value, float):
        return value + 0.0
    if isinstance(value, (tuple, list)):
        return type(value)(map(_one_zero, value))
    if isinstance(value, dict):
        return {_one_zero(key): _one_zero(each) for key, each in value.items()}
    return value


class PortedValue(ValueState):
    """A value state."""

    def __init__(self, name: str, handle: values.ValueHandle, struct: Struct) -> None:
        self._stateName = name
        _as_tuples(handle)
        # The method of the core: there is no default that a key would need a copy of.
        self._read = super(values.ValueHandle, handle).value
        self._write = handle.update
        self._pack, self._unpack = struct.pack, struct.unpack
        self.clear = handle.clear  # type: ignore[method-assign]

    def exists(self) -> bool:
        """Whether there is a value."""
        return self._read() is not None

    def get(self) -> tuple[Any, ...] | None:
        """The value, or None."""
        value = self._read()
        return None if value is None else self._unpack(value)

    def update(self, newValue: Any) -> None:
        """Store a value."""
        self._write(self._pack(newValue))


class PlainValue(ported.TupleValue, PortedValue):
    """The same of plain fields: what is called for every row is a method of the core."""

    def __init__(self, name: str, handle: values.ValueHandle, struct: Struct) -> None:
        ported.TupleValue.__init__(self, handle, len(struct.names), struct.pack)
        PortedValue.__init__(self, name, handle, struct)


class PortedList(ListState):
    """A list state."""

    def __init__(self, name: str, handle: lists.ListHandle, struct: Struct) -> None:
        self._stateName = name
        _as_tuples(handle)
        self._handle = handle
        self._pack, self._unpack = struct.pack, struct.unpack
        self.clear = handle.clear  # type: ignore[method-assign]

    def exists(self) -> bool:
        """Whether there is an item."""
        return self._handle.count() > 0

    def get(self) -> Iterator[tuple[Any, ...]]:
        """The items, as they are now."""
        return map(self._unpack, self._handle.items_list())

    def put(self, newState: Iterable[Any]) -> None:
        """Replace the items."""
        self._handle.update(self._pack_items(newState))

    def appendValue(self, newState: Any) -> None:
        """Append an item."""
        self._handle.add(self._pack(newState))

    def appendList(self, newState: Iterable[Any]) -> None:
        """Append items."""
        self._handle.add_all(self._pack_items(newState))

    def _pack_items(self, items: Iterable[Any]) -> list[Any]:
        packed = list(map(self._pack, items))
        if not packed:
            raise StatefulProcessorError(
                f"state {self._stateName!r}: a list that is put or appended is not empty; "
                "clear() empties the state"
            )
        return packed


class PortedMap(MapState):
    """A map state."""

    def __init__(self, name: str, handle: maps.MapHandle, struct: Struct, keys: MapKeys) -> None:
        self._stateName = name
        _as_tuples(handle)
        self._handle = handle
        self._get, self._put = handle.get, handle.put
        self._pack, self._unpack = struct.pack, struct.unpack
        self._row = row_class(struct.names)
        self._key, self._key_back = keys.pack, keys.unpack
        self.clear = handle.clear  # type: ignore[method-assign]

    def exists(self) -> bool:
        """Whether there is an entry."""
        return self._handle.count() > 0

    def getValue(self, key: Any) -> tuple[Any, ...] | None:
        """The value of a key, as a `Row`, which no other method gives; or None."""
        value = self._get(self._key(key))
        return None if value is None else tuple.__new__(self._row, self._unpack(value))

    def containsKey(self, key: Any) -> bool:
        """Whether there is the key."""
        return self._handle.contains(self._key(key))

    def updateValue(self, key: Any, value: Any) -> None:
        """Store the value of a key."""
        self._put(self._key(key), self._pack(value))

    def iterator(self) -> Iterator[tuple[Any, Any]]:
        """The entries, as they are now."""
        back, unpack = self._key_back, self._unpack
        return iter([(back(key), unpack(value)) for key, value in self._handle.entries_list()])

    def keys(self) -> Iterator[tuple[Any, ...]]:
        """The keys, as they are now."""
        return iter([self._key_back(key) for key, _ in self._handle.entries_list()])

    def values(self) -> Iterator[tuple[Any, ...]]:
        """The values, as they are now."""
        return iter([self._unpack(value) for _, value in self._handle.entries_list()])

    def removeKey(self, key: Any) -> None:
        """Remove a key."""
        self._handle.remove(self._key(key))


class PlainMap(ported.TupleMap, PortedMap):
    """The same of plain fields, and with keys of one plain field."""

    def __init__(self, name: str, handle: maps.MapHandle, struct: Struct, keys: MapKeys) -> None:
        row = row_class(struct.names)
        ported.TupleMap.__init__(self, handle, len(struct.names), struct.pack, keys.pack, row)
        PortedMap.__init__(self, name, handle, struct, keys)


def _as_tuples(handle: Any) -> None:
    """Have a handle of structs give tuples."""
    codec: NestedCodec = handle.codec
    codec.tuples = True
