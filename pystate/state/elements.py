"""Handles of lists and maps: of the current key, or of a batch of keys.

Thread safety: a handle belongs to its table, and a table to one thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from pystate._core import core
from pystate.errors import InvalidArgumentError, WrongTypeError
from pystate.state.declarations import ListState, MapState
from pystate.state.habits import LIST_NAMES, MAP_NAMES, Named
from pystate.state.handles import (
    MISSING,
    KeyBatch,
    checked_batch,
    copied,
    for_batches,
    pickled,
    unpickled,
)
from pystate.types.arrays import check_rows, decoded, encoded, from_parts, is_many, reference
from pystate.types.state_type import StateType

__all__ = ["ListHandle", "MapHandle", "ObjectListHandle", "ObjectMapHandle"]

_LENGTHS = "they have different lengths"


class _Elements(Named, core.CollectionHandle):
    """What lists and maps share."""

    def __init__(
        self,
        table: core.Table,
        column: int,
        name: str,
        type: StateType,
        codec: core.Codec,
        map_codec: core.Codec | None,
    ) -> None:
        self.name = name
        self.type = type
        self._pickles = type.is_object
        super().__init__(table, column, codec, map_codec)

    def __len__(self) -> int:
        return self.count()

    def __bool__(self) -> bool:
        """Whether there is any element, as of Python's own lists and dicts."""
        return self.count() > 0

    def clear_all(self, keys: KeyBatch) -> None:
        """Remove all elements of the keys. A key whose last state is cleared ceases to exist."""
        self._checked(keys).clear(self.column)

    def _checked(self, keys: KeyBatch) -> KeyBatch:
        return checked_batch(keys, self.table, self.name)

    def _exported(self, keys: KeyBatch) -> pa.Array[Any]:
        """The keys' elements as a column; objects as they are pickled."""
        raise NotImplementedError

    def _packed(self, value: Any) -> Any:
        return pickled(self.name, value) if self._pickles else value

    def _unpacked(self, values: list[Any]) -> list[Any]:
        return [unpickled(self.name, v) for v in values] if self._pickles else values

    def _column_of(
        self, values: Any, type: StateType, codec: core.Codec, what: str
    ) -> pa.Array[Any]:
        if type.is_object:
            if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
                raise WrongTypeError(f"{what}: objects come as a sequence, got {values!r:.80}")
            # No object is None: the core refuses a null, and names its row.
            values = [None if value is None else pickled(self.name, value) for value in values]
            values = pa.array(values, pa.binary())
        return encoded(values, type, codec, what)

    def _reference(
        self, keys: KeyBatch, values: Any, type: StateType, codec: core.Codec, what: str
    ) -> core.ArrayRef:
        array = self._column_of(values, type, codec, what)
        check_rows(array, len(keys), what)
        return reference(array, type)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


class ListHandle(_Elements, core.ListElements):
    """A list per key. `ListState` declares it, a backend's `register` or a store gives it.

    ``add``, ``add_all``, ``get``, ``update`` and ``clear`` work on the current key and raise
    `NoCurrentKeyError` without one; ``len(handle)`` counts its items. ``add`` of None or of another
    type raises `WrongTypeError` and writes nothing. ``handle[0]``, ``item in handle`` and iteration
    do what they do with a list, each of them for what `get` costs. The other methods work on a
    `KeyBatch`.

    Attributes
    ----------
    name : str
        The state's name.
    type : StateType
        The items' type.
    """

    def __init__(self, table: core.Table, column: int, name: str, declaration: ListState) -> None:
        type_ = declaration.type
        super().__init__(table, column, name, type_, type_.codec(name), None)

    _others = LIST_NAMES

    def get(self) -> list[Any]:
        """The current key's items, in order; empty where there are none."""
        return self._unpacked(self.items_list())

    def __getitem__(self, index: Any) -> Any:
        return self.get()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def add_all(self, values: Iterable[Any], /) -> None:
        """Append items; all or, if one of them is refused, none."""
        turn = self.table.turn
        items = self._items("add_all", values)
        self.table.check_turn(turn, self.name)
        add = super().add
        for item in items:
            add(item)

    def _items(self, method: str, values: Iterable[Any]) -> list[Any]:
        """Items as the core takes them, of which it will refuse none."""
        if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
            raise WrongTypeError(f"state {self.name!r}: {method} takes items, got {values!r:.80}")
        items = list(values)
        for i, item in enumerate(items):
            if item is None:
                raise WrongTypeError(f"state {self.name!r}: None is no item")
            # In normal form: storing them then runs none of the caller's code.
            items[i] = self._packed(item) if self._pickles else self.codec.normalize(item)
        return items

    def update(self, values: Iterable[Any] | None, /) -> None:
        """Put items in place of those there are; None or no items clear."""
        turn = self.table.turn
        items = [] if values is None else self._items("update", values)
        self.table.check_turn(turn, self.name)
        self.clear()
        add = super().add
        for item in items:
            add(item)

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        """Append the current key's items of the source namespaces to the target's, in order.

        The sources vanish. The current namespace stays. Items keep the times at which they were
        added.
        """
        table, current, turn = self.table, self.table.current_namespace(), self.table.turn
        target, sources = table.merged_namespaces(target, sources)
        table.check_turn(turn, self.name)
        table.set_namespace(target)
        try:
            for source in sources:
                self.take(source)
        finally:
            table.set_namespace(current)

    # -- many keys

    def append(self, keys: KeyBatch, items: Any = MISSING) -> None:
        """Append an item to the list of each key, in order, also where a key repeats.

        Parameters
        ----------
        keys : KeyBatch
            Where to.
        items : array-like
            As many as there are keys.

        Raises
        ------
        WrongTypeError
            An item is null or of another type; nothing was written.
        """
        what = f"state {self.name!r}"
        if items is MISSING:
            raise for_batches(what, "append(keys, items)", "add(item)")
        array = self._reference(self._checked(keys), items, self.type, self.codec, what)
        self.append_all(keys, array)

    def extend(self, keys: KeyBatch, lists: Any = MISSING) -> None:
        """Append a list of items to the list of each key.

        Parameters
        ----------
        keys : KeyBatch
            Where to.
        lists : pyarrow.ListArray, or sequence of sequences
            As many as there are keys; a null appends nothing.
        """
        what = f"state {self.name!r}"
        if lists is MISSING:
            raise for_batches(what, "extend(keys, lists)", "add_all(items)")
        self._checked(keys)
        offsets, items = _lists(lists, what)
        if len(offsets) != len(keys) + 1:
            raise InvalidArgumentError(f"{what}: {len(offsets) - 1} lists for {len(keys)} keys")
        array = self._column_of(items, self.type, self.codec, what)
        self.append_lists(keys, offsets.ctypes.data, reference(array, self.type))

    def lists(self, keys: KeyBatch, *, raw: bool = False) -> Any:
        """Copy the keys' lists.

        Parameters
        ----------
        keys : KeyBatch
            Whose lists.
        raw : bool
            Objects in their pickled form.

        Returns
        -------
        pyarrow.ListArray
            In the keys' order, empty for a key without items. Of objects a list of lists.
        """
        self._checked(keys)
        if self.type.is_bytes or self.type.name == "boolean":
            return self._collected(keys, raw)
        offsets = np.empty(len(keys) + 1, np.int64)
        width = self.type.inline_bytes or self.type.arrow.bit_width // 8
        values = self.copy_items(keys, offsets.ctypes.data, width)
        rows = int(offsets[-1])
        items = from_parts(self.type, rows, None, values)
        return _list_array(offsets, decoded(items, self.type, self.codec))

    def _exported(self, keys: KeyBatch) -> pa.Array[Any]:
        lists: pa.Array[Any] = self.lists(keys, raw=True)
        return lists

    def _collected(self, keys: KeyBatch, raw: bool) -> Any:
        offsets = np.empty(len(keys) + 1, np.int64)
        rows, _, parts = self.collect(keys, offsets.ctypes.data)
        items = from_parts(self.type, rows, *parts)
        if self._pickles and not raw:
            flat = self._unpacked(items.to_pylist())
            return [flat[a:b] for a, b in pairwise(offsets)]
        return _list_array(offsets, decoded(items, self.type, self.codec))


class ObjectListHandle(ListHandle):
    """Items that are pickled."""

    def add(self, value: Any, /) -> None:
        """Append an item."""
        turn = self.table.turn
        packed = value if value is None else self._packed(value)
        self.table.check_turn(turn, self.name)
        super().add(packed)


class MapHandle(_Elements, core.MapElements):
    """A map per key. `MapState` declares it, a backend's `register` or a store gives it.

    ``get``, ``put``, ``remove``, ``contains`` and the other methods that a map has work on the
    current key's and raise `NoCurrentKeyError` without one; ``len(handle)`` counts its entries.
    Those that take a `KeyBatch` work on many.

    Attributes
    ----------
    name : str
        The state's name.
    key_type, type : StateType
        The types of the maps' keys and values.

    Notes
    -----
    `keys`, `values` and `items` give copies: the map may be changed while one goes through them.
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
            type_.codec(name),
            self.key_type.codec(name, f"state {name!r}, map key"),
        )

    def put_all(self, entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]], /) -> None:
        """Store several entries."""
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
        return not self.count()

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
        return [(key, unpickled(self.name, value)) for key, value in entries]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def __getitem__(self, key: Any) -> Any:
        found = self.get(key, MISSING)
        if found is MISSING:
            raise KeyError(key)
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        self.put(key, value)

    def __delitem__(self, key: Any) -> None:
        if not self.contains(key):
            raise KeyError(key)
        self.remove(key)

    # -- many keys

    def put_entries(self, keys: KeyBatch, map_keys: Any, values: Any) -> None:
        """Put an entry into the map of each key; of a repeated one the last wins.

        Parameters
        ----------
        keys : KeyBatch
            Whose maps.
        map_keys, values : array-like
            As many as there are keys; `values` may be one value for all.

        Raises
        ------
        WrongTypeError
            A map key or value is null or of another type; nothing was written.
        """
        what = f"state {self.name!r}"
        at = self._map_keys(keys, map_keys)
        if not self.type.is_object and not is_many(values):
            array = reference(self._column_of([values], self.type, self.codec, what), self.type)
        else:
            array = self._reference(keys, values, self.type, self.codec, what)
        self.put_all_entries(keys, at, array)

    def get_entries(self, keys: KeyBatch, map_keys: Any) -> Any:
        """Copy an entry of the map of each key.

        Returns
        -------
        pyarrow.Array
            In the keys' order, null where there is no such entry. Of objects a list.
        """
        at = self._map_keys(keys, map_keys)
        array = copied(
            self.type,
            len(keys),
            lambda values, valid: self.get_all(keys, at, values, valid),
            lambda offsets, valid: self.get_all_bytes(keys, at, offsets, valid),
        )
        if self._pickles:
            found = array.to_pylist()
            return [None if value is None else unpickled(self.name, value) for value in found]
        return decoded(array, self.type, self.codec)

    def remove_entries(self, keys: KeyBatch, map_keys: Any) -> None:
        """Remove an entry of the map of each key; those that are not there are ignored."""
        self.remove_all(keys, self._map_keys(keys, map_keys))

    def maps(self, keys: KeyBatch, *, raw: bool = False) -> Any:
        """Copy the keys' maps.

        Parameters
        ----------
        keys : KeyBatch
            Whose maps.
        raw : bool
            Objects in their pickled form.

        Returns
        -------
        pyarrow.MapArray
            In the keys' order, empty for a key without entries. Of objects a list of dicts.
        """
        self._checked(keys)
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
        found = super().get(key)
        return default if found is None else unpickled(self.name, found)

    def put(self, key: Any, value: Any, /) -> None:
        """Store a value under `key`."""
        turn = self.table.turn
        packed = value if value is None else self._packed(value)
        self.table.check_turn(turn, self.name)
        super().put(key, packed)


def _lists(lists: Any, what: str) -> tuple[np.ndarray[Any, np.dtype[np.int32]], Any]:
    """Offsets from 0, and the items of all lists."""
    items: Any
    if isinstance(lists, pa.ChunkedArray):
        lists = lists.combine_chunks()
    if isinstance(lists, pa.FixedSizeListArray):
        lists = lists.cast(pa.list_(lists.type.value_type))
    if isinstance(lists, (pa.ListArray, pa.LargeListArray)):
        sizes = np.asarray(lists.value_lengths().fill_null(0), np.int64)
        items = lists.flatten()
    else:
        if isinstance(lists, (str, bytes)) or not isinstance(lists, Iterable):
            raise WrongTypeError(f"{what}: expected lists of items, got {lists!r:.80}")
        rows = []
        for i, row in enumerate(lists):
            if isinstance(row, (str, bytes)) or not isinstance(row, Iterable | None):
                raise WrongTypeError(f"{what}, row {i}: expected a list of items, got {row!r:.80}")
            rows.append([] if row is None else list(row))
        sizes = np.array([len(row) for row in rows], np.int64)
        items = [item for row in rows for item in row]
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise InvalidArgumentError(f"{what}: more than 2**31 items at once: pass them in parts")
    return offsets.astype(np.int32), items


def _list_array(offsets: Any, items: pa.Array[Any]) -> pa.Array[Any]:
    if offsets[-1] > np.iinfo(np.int32).max:
        return pa.LargeListArray.from_arrays(pa.array(offsets), items)
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), items)
