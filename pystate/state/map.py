"""Map states: a map per key. The declaration and its handles.

Thread safety: a declaration is immutable; a handle belongs to its table, and a table to one thread
at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from pystate._core import core
from pystate.errors import DeclarationError, WrongTypeError
from pystate.state.columns import MAP, Column, column_of
from pystate.state.declaration import State, type_literal
from pystate.state.handle import MAP_NAMES, MISSING, Elements
from pystate.state.key_batch import KeyBatch, read_array_of, read_in_parts
from pystate.state.objects import unpickled
from pystate.state.ttl import StateTtl
from pystate.types.arrays import decoded, from_parts, is_many, reference
from pystate.types.nested import codec_of
from pystate.types.state_type import StateType, TypeLike, parse_type, refuse_nested_key

_PART_ENTRIES = 4096  # of a map that lies in files, read at a time


class MapState(State["MapHandle"]):
    """Declares a map per key.

    Parameters
    ----------
    key : str or pyarrow.DataType
        The type of the map's keys, which may be that of any key column.
    type : str, pyarrow.DataType or object
        The type of the map's values.
    ttl : StateTtl, optional
        When entries expire; each entry expires on its own.

    See Also
    --------
    pystate.MapHandle : what the declaration becomes while a function or a store runs.

    Notes
    -----
    A put costs only the entry, in memory and in the snapshot, however large the map is. Entries
    with string keys come in the order of the keys' bytes. The order of other keys is not specified.

    Examples
    --------
    >>> import pystate as ps
    >>> ps.MapState("string", "long")
    MapState('string', 'long')
    """

    __slots__ = ("_key",)

    _key: StateType

    def __init__(
        self,
        key: TypeLike,
        type: TypeLike,
        *,
        ttl: StateTtl | None = None,
        previously: str | Sequence[str] = (),
    ) -> None:
        self._declare(type, ttl, previously)
        parsed = refuse_nested_key(parse_type(key, "MapState's key"), "MapState's key")
        if parsed.is_object:
            raise DeclarationError("MapState: its keys cannot be objects; their bytes decide")
        object.__setattr__(self, "_key", parsed)

    @property
    def key_type(self) -> StateType:
        """The type of the map's keys."""
        return self._key

    def _column(self, name: str) -> Column:
        return column_of(
            name,
            self._type,
            kind=MAP,
            map_key=self._key.code,
            map_precision=self._key.precision,
            map_scale=self._key.scale,
            map_codec=codec_of(self._key, name),
        )

    def handle(self, table: core.Table, column: int, name: str) -> MapHandle:
        """Make the state's handle."""
        kind = ObjectMapHandle if self._type.is_object else MapHandle
        return kind(table, column, name, self)

    @property
    def arrow_type(self) -> pa.DataType:
        """A map."""
        return pa.map_(self._key.arrow, self._type.arrow)

    def _arguments(self) -> tuple[Any, ...]:
        return type_literal(self._key), type_literal(self._type)


class MapHandle(Elements, core.MapElements):
    """A map per key. `MapState` declares it, a backend's `register` or a store gives it.

    ``get``, ``put``, ``remove``, ``contains`` and the other methods of a map work on the current
    key's map and raise `NoCurrentKeyError` without a current key; ``len(handle)`` counts its
    entries. The methods that take a `KeyBatch` work on many maps.

    Attributes
    ----------
    name : str
        The state's name.
    key_type : StateType
        The type of the maps' keys.
    type : StateType
        The type of their values.

    Notes
    -----
    `keys`, `values` and `items` give copies, so that the map may be changed while they are
    iterated; `iter_items` does not have all entries in memory, where the map lies in files.
    ``handle[key]``, ``handle[key] = value``, ``del handle[key]``, ``key in handle`` and iteration
    do what they do with a dict.
    """

    map_codec: core.Codec

    _others = MAP_NAMES

    def __init__(self, table: core.Table, column: int, name: str, declaration: MapState) -> None:
        type_ = declaration.type
        self.key_type = declaration.key_type
        super().__init__(
            table,
            column,
            name,
            type_,
            codec_of(type_, name),
            codec_of(self.key_type, name, f"state {name!r}, map key"),
        )

    def put_all(self, entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]], /) -> None:
        """Store several entries: a mapping, or pairs of a key and a value.

        Raises
        ------
        WrongTypeError
            `entries` is neither, or a key or value is of another type. In the latter case the
            entries before it were stored.
        """
        turn = self.table.turn
        pairs = entries.items() if isinstance(entries, Mapping) else entries
        if isinstance(pairs, (str, bytes)) or not isinstance(pairs, Iterable):
            raise self._no_pairs(entries)
        listed = []
        for pair in pairs:
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise self._no_pairs(pair)
            listed.append((pair[0], pair[1]))
        self.table.check_turn(turn, self.name)
        for key, value in listed:
            self.put(key, value)

    def _no_pairs(self, given: object) -> WrongTypeError:
        return WrongTypeError(
            f"state {self.name!r}: put_all takes a dict, or pairs of a key and a value, got "
            f"{given!r:.80}"
        )

    def is_empty(self) -> bool:
        """Whether there is no entry."""
        return not (self.has_any() if self.below() else self.count())

    def keys(self) -> list[Any]:
        """All keys of the map."""
        return [key for key, _ in self.entries_list()]

    def values(self) -> list[Any]:
        """All values of the map."""
        return self._unpacked([value for _, value in self.entries_list()])

    def items(self) -> list[tuple[Any, Any]]:
        """All entries of the map."""
        entries = self.entries_list()
        if not self._pickles:
            return entries
        keys = [key for key, _ in entries]
        return list(zip(keys, self._unpacked([value for _, value in entries]), strict=True))

    def __iter__(self) -> Iterator[Any]:
        if not self.below():
            return iter(self.keys())
        return (key for part in self._parts(self.table.turn) for key, _ in part)

    def iter_items(self) -> Iterator[tuple[Any, Any]]:
        """Iterate over the entries of the map, in the order of `items`, with some in memory.

        Returns
        -------
        iterator of tuple
            Keys and values. Where the map lies in files its entries are read some at a time: what
            is put or removed meanwhile is seen if it is behind the place where the iterator is.

        Raises
        ------
        NoCurrentKeyError
            No key is current, or another one became current while the entries were read.
        """
        if not self.below():
            return iter(self.items())
        return self._items(self.table.turn)

    def _items(self, turn: int) -> Iterator[tuple[Any, Any]]:
        for part in self._parts(turn):
            if self._pickles:
                values = self._unpacked([value for _, value in part])
                yield from zip([key for key, _ in part], values, strict=True)
            else:
                yield from part

    def _parts(self, turn: int) -> Iterator[list[tuple[Any, Any]]]:
        # Of a map that lies in files, some entries at a time.
        part = self.entries_behind(None, True, _PART_ENTRIES)
        while part:
            yield part
            self.table.check_turn(turn, self.name)
            part = self.entries_behind(part[-1][0], False, _PART_ENTRIES)

    def __getitem__(self, key: Any) -> Any:
        value = self.get(key, MISSING)
        if value is MISSING:
            raise KeyError(key)
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        self.put(key, value)

    def __delitem__(self, key: Any) -> None:
        if not self.contains(key):
            raise KeyError(key)
        self.remove(key)

    # -- many keys

    def put_entries(self, keys: KeyBatch, map_keys: Any, values: Any) -> None:
        """Put an entry into the map of each key; for a repeated key and map key the last wins.

        Parameters
        ----------
        keys : KeyBatch
            The keys of the maps.
        map_keys, values : array-like
            As many as there are keys; `values` may be one value for all. Values may be null.

        Raises
        ------
        WrongTypeError
            A map key is null, or a key or value is of another type; nothing was written.
        """
        what = f"state {self.name!r}"
        at = self._map_keys(keys, map_keys)
        if not self.type.is_object and not is_many(values):
            array = reference(self._column_of([values], self.type, self.codec, what), self.type)
        else:
            array = self._reference(keys, values, self.type, self.codec, what)
        self.put_all_entries(keys, at, array)

    def get_entries(self, keys: KeyBatch, map_keys: Any) -> Any:
        """Copy one entry of each key's map.

        Parameters
        ----------
        keys : KeyBatch
            The keys of the maps.
        map_keys : array-like
            The map key of the entry for each key, as many as there are keys.

        Returns
        -------
        pyarrow.Array
            In the keys' order; null where there is no such entry, or it has no value. For objects
            a list.
        """
        at = self._map_keys(keys, map_keys)
        array = read_array_of(
            keys,
            self.type,
            lambda part, rows, values, valid: self.get_all(
                part, at.part(rows.start, len(part)), values, valid
            ),
            lambda part, rows, offsets, valid: self.get_all_bytes(
                part, at.part(rows.start, len(part)), offsets, valid
            ),
        )
        if self._pickles:
            return self._unpacked(array.to_pylist())
        return decoded(array, self.type, self.codec)

    def remove_entries(self, keys: KeyBatch, map_keys: Any) -> None:
        """Remove one entry of each key's map; absent entries are ignored.

        The parameters are those of `get_entries`.
        """
        self.remove_all(keys, self._map_keys(keys, map_keys))

    def maps(self, keys: KeyBatch, *, raw: bool = False) -> Any:
        """Copy the keys' maps.

        Parameters
        ----------
        keys : KeyBatch
            The keys of the maps.
        raw : bool
            Return objects in pickled form.

        Returns
        -------
        pyarrow.MapArray
            In the keys' order; empty for a key without entries. For objects a list of dicts.
        """
        parts = read_in_parts(self._checked(keys), lambda part, _: self._maps_of(part, raw))
        if self._pickles and not raw:
            return list(chain.from_iterable(parts))
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

    def _maps_of(self, keys: KeyBatch, raw: bool) -> Any:
        offsets = np.empty(len(keys) + 1, np.int64)
        rows, key_parts, parts = self.collect(keys, offsets.ctypes.data)
        assert key_parts is not None
        names = from_parts(self.key_type, rows, *key_parts)
        items = from_parts(self.type, rows, *parts)
        if self._pickles and not raw:
            pairs = list(zip(names.to_pylist(), self._unpacked(items.to_pylist()), strict=True))
            return [dict(pairs[a:b]) for a, b in pairwise(offsets)]
        values = decoded(items, self.type, self.codec)
        ends: Any = pa.array(offsets.astype(np.int32))
        return pa.MapArray.from_arrays(ends, names, values)

    def _exported(self, keys: KeyBatch) -> pa.Array[Any]:
        maps: pa.Array[Any] = self.maps(keys, raw=True)
        return maps

    def _map_keys(self, keys: KeyBatch, map_keys: Any) -> core.ArrayRef:
        what = f"state {self.name!r}, map keys"
        return self._reference(self._checked(keys), map_keys, self.key_type, self.map_codec, what)


class ObjectMapHandle(MapHandle):
    """Values that are pickled."""

    def get(self, key: Any, default: Any = None, /) -> Any:
        """The value under `key`, or the default."""
        stored = super().get(key, MISSING)
        if stored is MISSING:
            return default
        return None if stored is None else unpickled(self.name, stored)

    def put(self, key: Any, value: Any, /) -> None:
        """Store a value under `key`."""
        turn = self.table.turn
        packed = value if value is None else self._packed(value)
        self.table.check_turn(turn, self.name)
        super().put(key, packed)
