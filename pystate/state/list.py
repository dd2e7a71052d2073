"""List states: a list per key. The declaration and its handles.

Thread safety: a declaration is immutable; a handle belongs to its table, and a table to one thread
at a time.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pystate._core import core
from pystate.errors import InvalidArgumentError, WrongTypeError
from pystate.state.columns import LIST, Column, column_of
from pystate.state.declaration import State, type_literal
from pystate.state.handle import LIST_NAMES, MISSING, Elements, batch_method_error
from pystate.state.key_batch import KeyBatch, read_in_parts
from pystate.state.ttl import StateTtl
from pystate.types.arrays import decoded, from_parts, reference
from pystate.types.nested import codec_of
from pystate.types.state_type import TypeLike

if TYPE_CHECKING:
    import numpy.typing as npt

#: How items lie in the core.
_DTYPES = {
    "boolean": np.dtype("?"),
    "byte": np.dtype("i1"),
    "short": np.dtype("i2"),
    "int": np.dtype("i4"),
    "long": np.dtype("i8"),
    "float": np.dtype("f4"),
    "double": np.dtype("f8"),
    "date": np.dtype("i4"),
    "timestamp": np.dtype("M8[us]"),
    "timestamp_ntz": np.dtype("M8[us]"),
}


#: Items of a long list that iteration has in memory at a time.
_PART_ITEMS = 1 << 16


class ListState(State["ListHandle"]):
    """Declares a list per key.

    Parameters
    ----------
    type : str, pyarrow.DataType or object
        The type of the items.
    ttl : StateTtl, optional
        When items expire; each item expires on its own.

    See Also
    --------
    pystate.ListHandle : what the declaration becomes while a function or a store runs.

    Notes
    -----
    Appending costs only the new item, in memory and in the snapshot, however long the list is. With
    ``home="disk"`` a list may be longer than memory. Of a long one no items come into memory where
    items are appended, counted or cleared. If reading counts as use (`StateTtl`), the items that
    have not expired must fit in memory when they are read.

    Examples
    --------
    >>> import pystate as ps
    >>> ps.ListState("double", ttl=ps.StateTtl(hours=1))
    ListState('double', ttl=StateTtl(hours=1))
    """

    __slots__ = ()

    def __init__(
        self,
        type: TypeLike,
        *,
        ttl: StateTtl | None = None,
        previously: str | Sequence[str] = (),
    ) -> None:
        self._declare(type, ttl, previously)

    def _column(self, name: str) -> Column:
        return column_of(name, self._type, kind=LIST)

    def handle(self, table: core.Table, column: int, name: str) -> ListHandle:
        """Make the state's handle."""
        kind = ObjectListHandle if self._type.is_object else ListHandle
        return kind(table, column, name, self)

    @property
    def arrow_type(self) -> pa.DataType:
        """A list."""
        return pa.list_(self._type.arrow)

    def _arguments(self) -> tuple[Any, ...]:
        return (type_literal(self._type),)


class UnionListState(ListState):
    """A list of an instance, as which `OperatorListState` stores a union.

    It is a kind of its own only so that a checkpoint says in which lists several instances may have
    the same items.
    """

    __slots__ = ()


class ListHandle(Elements, core.ListElements):
    """A list per key. `ListState` declares it, a backend's `register` or a store gives it.

    ``add``, ``add_all``, ``get``, ``to_numpy``, ``update`` and ``clear`` work on the current key;
    they raise `NoCurrentKeyError` without one. ``len(handle)`` counts its items. ``add`` of None
    or of another type raises `WrongTypeError` and writes nothing. ``handle[0]``, slices,
    ``item in handle`` and iteration do what they do with a list. An index or a slice makes only the
    items that it gives; near either end of the list it finds them at once, and with a time to live
    it passes all items before them. The others cost as much as `get`; but of a long list on disk
    whose items do not expire, iteration holds some items at a time, and raises `NoCurrentKeyError`
    where another key has become current meanwhile. The methods that take a `KeyBatch` work on many
    lists.

    Attributes
    ----------
    name : str
        The state's name.
    type : StateType
        The items' type.
    """

    def __init__(self, table: core.Table, column: int, name: str, declaration: ListState) -> None:
        type_ = declaration.type
        super().__init__(table, column, name, type_, codec_of(type_, name), None)
        self._dtype = _DTYPES.get(type_.name)
        self._expires = declaration.ttl is not None

    _others = LIST_NAMES

    def get(self) -> list[Any]:
        """The current key's items, in order; empty if there are none."""
        return self._unpacked(self.items_list())

    def to_numpy(self) -> npt.NDArray[Any]:
        """The current key's items as an array, which does not change with the state.

        It takes a copy of the items, where `get` makes an object of each: much less for long lists
        of numbers.

        Returns
        -------
        numpy.ndarray
            Of the items' type: dates are ``datetime64[D]``, timestamps ``datetime64[us]`` in UTC.

        Raises
        ------
        WrongTypeError
            The items are not numbers, booleans, dates or timestamps.
        NoCurrentKeyError
            No key is current.
        """
        if self._dtype is None:
            raise WrongTypeError(
                f"state {self.name!r}: items of type {self.type.ddl} are no NumPy array; get() "
                "returns them as a list"
            )
        items = np.frombuffer(self.items_bytes(), self._dtype)
        return items.astype("datetime64[D]") if self.type.name == "date" else items

    def __getitem__(self, index: Any) -> Any:
        count = self.count()
        if isinstance(index, slice):
            places = range(*index.indices(count))
            if not places:
                return []
            first, last = sorted((places[0], places[-1]))
            items = self._unpacked(self.items_from(first, last - first + 1))
            return items[:: places.step] if places.step > 0 else items[::-1][:: -places.step]
        try:
            place = operator.index(index)
        except TypeError:
            raise TypeError(
                f"state {self.name!r}: a list's index is an int or a slice, not {index!r:.80}"
            ) from None
        place += count if place < 0 else 0
        if not 0 <= place < count:
            raise IndexError(f"state {self.name!r}: index {index} in a list of {count} items")
        [item] = self._unpacked(self.items_from(place, 1))
        return item

    def __iter__(self) -> Iterator[Any]:
        # Of a list that files have more of than memory need have, some items at a time.
        if self._expires or self.below() <= _PART_ITEMS:
            return iter(self.get())
        return self._parts(self.count(), self.table.turn)

    def _parts(self, count: int, turn: int) -> Iterator[Any]:
        for first in range(0, count, _PART_ITEMS):
            self.table.check_turn(turn, self.name)
            yield from self._unpacked(self.items_from(first, _PART_ITEMS))

    def add_all(self, values: Iterable[Any], /) -> None:
        """Append items; if one of them is refused, none is appended.

        Raises
        ------
        WrongTypeError
            An item is None or of another type, or `values` is not an iterable of items.
        NoCurrentKeyError
            No key is current, or another one became current while the items were read.
        """
        turn = self.table.turn
        items = self._items("add_all", values)
        self.table.check_turn(turn, self.name)
        add = super().add
        for item in items:
            add(item)

    def _items(self, method: str, values: Iterable[Any]) -> list[Any]:
        """The items in a form that the core is sure to accept."""
        if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
            raise WrongTypeError(f"state {self.name!r}: {method} takes items, got {values!r:.80}")
        items = list(values)
        for i, item in enumerate(items):
            if item is None:
                raise WrongTypeError(f"state {self.name!r}: None is no item")
            # In normal form, so that storing them runs none of the caller's code.
            items[i] = self._packed(item) if self._pickles else self.codec.normalize(item)
        return items

    def update(self, values: Iterable[Any] | None, /) -> None:
        """Replace the list's items; None or no items clear it.

        Raises
        ------
        WrongTypeError, NoCurrentKeyError
            As for `add_all`; nothing was written.
        """
        turn = self.table.turn
        items = [] if values is None else self._items("update", values)
        self.table.check_turn(turn, self.name)
        self.clear()
        add = super().add
        for item in items:
            add(item)

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        """Append the current key's items of the source namespaces to the target's, in order.

        The current namespace does not change. Items keep the times at which they were added.

        Parameters
        ----------
        target : object
            A namespace; None for the default one.
        sources : iterable of object
            Other namespaces; their items are removed.
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
            The keys to write to.
        items : array-like
            As many as there are keys.

        Raises
        ------
        WrongTypeError
            An item is null or of another type; nothing was written.
        """
        what = f"state {self.name!r}"
        if items is MISSING:
            raise batch_method_error(what, "append(keys, items)", "add(item)")
        array = self._reference(self._checked(keys), items, self.type, self.codec, what)
        self.append_all(keys, array)

    def extend(self, keys: KeyBatch, lists: Any = MISSING) -> None:
        """Append a list of items to the list of each key.

        Parameters
        ----------
        keys : KeyBatch
            The keys to write to.
        lists : pyarrow.ListArray, or sequence of sequences
            As many as there are keys; a null appends nothing.
        """
        what = f"state {self.name!r}"
        if lists is MISSING:
            raise batch_method_error(what, "extend(keys, lists)", "add_all(items)")
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
            The keys to read.
        raw : bool
            Return objects in pickled form.

        Returns
        -------
        pyarrow.ListArray
            In the keys' order; empty for a key without items. For objects a list of lists.
        """
        parts = read_in_parts(self._checked(keys), lambda part, _: self._lists_of(part, raw))
        if self._pickles and not raw:
            return list(chain.from_iterable(parts))
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

    def _lists_of(self, keys: KeyBatch, raw: bool) -> Any:
        if self.type.is_bytes or self.type.name == "boolean":
            return self._collect(keys, raw)
        offsets = np.empty(len(keys) + 1, np.int64)
        width = self.type.inline_bytes or self.type.arrow.bit_width // 8
        values = self.copy_items(keys, offsets.ctypes.data, width)
        rows = int(offsets[-1])
        items = from_parts(self.type, rows, None, values)
        return _list_array(offsets, decoded(items, self.type, self.codec))

    def _exported(self, keys: KeyBatch) -> pa.Array[Any]:
        lists: pa.Array[Any] = self.lists(keys, raw=True)
        return lists

    def _collect(self, keys: KeyBatch, raw: bool) -> Any:
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
