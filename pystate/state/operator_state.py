"""Operator state: what an instance of an operator keeps for itself, and not for a key.

An instance's state is a row of the table of its key-group range, so that it is sealed, merged,
restored and read like any state. The row's key says whose it is. Its last part, the slot, has no
meaning: it is chosen so that the key is in one of the range's key groups.

Each kind is a declaration that is stored as a keyed state: lists and raw streams, which are divided
when the number of instances changes, are here, and broadcast state, which is not, is in
`pystate.state.broadcast`. `share` takes an instance's part of the old state, and `put` writes it.

Thread safety: declarations and instances are immutable; `OldRows` belongs to one thread; a handle
belongs to its table, and a table to one thread at a time.

Invariants
----------
1. A slot depends on nothing but the instance and the number of instances and key groups, and never
   changes between versions, because it is stored.
2. What `share` returns depends only on the old rows and the instance, so that every instance, and
   every replay, computes the same division.
"""

from __future__ import annotations

import builtins
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
import pyarrow as pa

from pystate._core import core
from pystate.base.arguments import choice, integer, shown
from pystate.errors import CheckpointError, DeclarationError, InvalidArgumentError, WrongTypeError
from pystate.state.columns import Column
from pystate.state.declaration import State, type_literal
from pystate.state.handle import LIST_NAMES, Elements, Named
from pystate.state.key_batch import KeyBatch
from pystate.state.list import ListHandle, ListState, UnionListState
from pystate.state.map import MapHandle, MapState
from pystate.types.arrays import hash_keys, is_column, key_groups
from pystate.types.fills import Fills
from pystate.types.keys import KeyColumns, parse_key
from pystate.types.state_type import StateType, TypeLike

H = TypeVar("H", covariant=True)

#: The key in checkpoints: the number of the instance, how many there are, and the slot.
INSTANCE_SCHEMA = (("instance", "int"), ("instances", "int"), ("slot", "int"))
#: The same as the key of a table.
INSTANCE_KEY: KeyColumns = parse_key(dict(INSTANCE_SCHEMA))


@dataclass(frozen=True)
class Instance:
    """One of the instances of an operator, which are numbered from 0."""

    index: int
    parallelism: int
    max_parallelism: int

    @property
    def key_groups(self) -> tuple[int, int]:
        """Its first and last key group, both inclusive."""
        first, last = core.range_bounds(self.index, self.max_parallelism, self.parallelism)
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
        fitting = np.flatnonzero((groups >= first) & (groups <= last))
        if len(fitting):
            return begin + int(fitting[0])
        begin += count


class OldRows:
    """The rows of all old instances, in order of their numbers.

    `kept` says that the number of instances stays as it was, so that each keeps its own state.
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


class InstanceRow:
    """An instance's row in the open epoch of its table, for handles; `keys` makes its key batch."""

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


S = TypeVar("S", bound=Elements)


class InstanceHandle(Named, Generic[S]):
    """Base of the handles of operator state: over the stored state's, in the instance's row."""

    def __init__(self, handle: S, own: InstanceRow) -> None:
        self._handle: S = handle
        self._own = own
        self.name = handle.name
        self.table = handle.table

    def __len__(self) -> int:
        return len(self._handle)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


class KeylessState(State[H]):
    """Base of the declarations of operator state; the state's handles are `H`."""

    __slots__ = ()

    #: The class of functions that may declare it.
    _function: ClassVar[str] = "ProcessFunction"
    #: The state of keys that is like it, if that is not what it is stored as.
    _of_keys: ClassVar[str | None] = None

    @abstractmethod
    def stored(self) -> State[Any]:
        """The keyed state as which it is stored."""

    def kept(self) -> State[Any]:
        """The keyed state as which it is stored, with its former names and its name in files."""
        keyed = self.stored().in_files(self._file_name)
        object.__setattr__(keyed, "_previously", self._previously)
        return keyed

    @abstractmethod
    def opened(self, handle: Any, own: InstanceRow) -> H:
        """Make the handle for functions, over that of the stored state."""

    @abstractmethod
    def share(self, handle: Any, old: OldRows, instance: Instance, start: int) -> tuple[Any, int]:
        """Read an instance's part of the old state, for `put`, and where the next state begins.

        `handle` is the stored state in a table with all `old` rows, of which there is at least one.
        `start` is the instance that gets the first items, if they are divided.
        """

    @abstractmethod
    def put(self, handle: Any, own: KeyBatch, share: Any) -> None:
        """Write a share into the instance's row, which is empty and has the current key."""

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
        raise self._of_instance(name)

    def handle(self, table: core.Table, column: int, name: str) -> H:
        """Refuse to be a state of keys."""
        raise self._of_instance(name)

    def _of_instance(self, name: str) -> DeclarationError:
        return DeclarationError(
            f"state {name!r}: {self!r} belongs to an instance of an operator, and not to a key: "
            f"declare it in a ps.{self._function}; here, take a "
            f"ps.{self._of_keys or builtins.type(self.stored()).__name__}"
        )


#: The names of other libraries for methods of lists, without those that the handle has.
_NAMES = {name: instead for name, instead in LIST_NAMES.items() if name != "is_empty"}


class OperatorListState(KeylessState["OperatorListHandle"]):
    """Declares a list per instance of an operator.

    Parameters
    ----------
    type : str, pyarrow.DataType or object
        The type of the items.
    redistribute : {"even", "union"}
        What happens to the items when the number of instances changes. ``"even"``: they are divided
        among the instances, in order, so that the numbers of items differ by at most one.
        ``"union"``: each instance gets all of them, and keeps what it needs. A later run may
        declare a list that was divided as a union, but not the other way round.

    See Also
    --------
    pystate.OperatorListHandle : what the declaration becomes while a function runs.

    Examples
    --------
    >>> import pystate as ps
    >>> ps.OperatorListState("long", redistribute="union")
    OperatorListState('long', 'union')
    """

    __slots__ = ("_redistribute",)

    _of_keys = "ListState"
    _redistribute: Literal["even", "union"]

    def __init__(
        self,
        type: TypeLike,
        redistribute: Literal["even", "union"] = "even",
        *,
        previously: str | Sequence[str] = (),
    ) -> None:
        self._declare(type, None, previously)
        way = choice(redistribute, "OperatorListState: redistribute", ("even", "union"))
        object.__setattr__(self, "_redistribute", way)

    @property
    def redistribute(self) -> Literal["even", "union"]:
        """What happens to the items when the number of instances changes."""
        return self._redistribute

    def stored(self) -> ListState:
        """A list per key."""
        kind = UnionListState if self._redistribute == "union" else ListState
        return kind(type_literal(self._type))

    def opened(self, handle: Any, own: InstanceRow) -> OperatorListHandle:
        """Make the state's handle."""
        return OperatorListHandle(handle, own)

    def share(
        self, handle: Any, old: OldRows, instance: Instance, start: int
    ) -> tuple[list[Any], int]:
        """Read an instance's items."""
        if self._redistribute == "union" and not old.kept:
            return [_items(handle, old, row) for row in range(len(old))], start
        return even_share(handle, old, instance, start)

    def put(self, handle: Any, own: KeyBatch, share: Any) -> None:
        """Write an instance's items."""
        for items in share:
            put_items(handle, own, items)

    def _arguments(self) -> tuple[Any, ...]:
        return type_literal(self._type), self._redistribute


def even_share(
    handle: ListHandle, old: OldRows, instance: Instance, start: int
) -> tuple[list[Any], int]:
    """Read the items of an instance, in pieces, if all items are divided evenly.

    They are dealt in order, beginning with the instance `start`; the first ones get one more if
    there is a remainder. The next state begins with the instance after those, which is returned, so
    that over all states, too, the numbers of items differ by at most one.
    """
    if old.kept:
        rows = [row for row, index in enumerate(old.instances) if index == instance.index]
        return [_items(handle, old, row) for row in rows], start
    counts = []
    for row in range(len(old)):
        old.select(row)
        counts.append(len(handle))
    ends = np.cumsum(counts).tolist()
    each, rest = divmod(ends[-1], instance.parallelism)
    place = (instance.index - start) % instance.parallelism
    first = place * each + min(place, rest)
    last = first + each + (place < rest)
    pieces = []
    for row, (count, end) in enumerate(zip(counts, ends, strict=True)):
        low, high = max(first, end - count), min(last, end)
        if low < high:
            pieces.append(_items(handle, old, row)[low - end + count : high - end + count])
    return pieces, (start + rest) % instance.parallelism


def put_items(handle: ListHandle, own: KeyBatch, items: Any) -> None:
    """Append items to an instance's list: a column, or a sequence of Python values."""
    if not isinstance(items, pa.Array):
        handle.extend(own, [items])
    elif len(items):
        ends: Any = pa.array([0, len(items)], pa.int64())
        handle.extend(own, pa.LargeListArray.from_arrays(ends, items))


def _items(handle: ListHandle, old: OldRows, row: int) -> Any:
    """The items of one old instance: an Arrow array, or a list of objects."""
    lists = handle.lists(old.only(row))
    return lists[0] if isinstance(lists, list) else lists.flatten()


class OperatorListHandle(InstanceHandle[ListHandle], Sequence[Any]):
    """The list of one instance. `OperatorListState` declares it.

    ``len(handle)``, ``handle[0]``, ``item in handle`` and iteration do what they do with a list,
    and each of them but ``len`` costs as much as `get`.

    Attributes
    ----------
    name : str
        The state's name.
    type : StateType
        The items' type.

    Examples
    --------
    >>> import pystate as ps
    >>> class Batches(ps.ProcessFunction):
    ...     rows = ps.OperatorListState("string")
    ...
    ...     def process(self, row, ctx: ps.InstanceContext):
    ...         self.rows.add(row["name"])
    ...         if len(self.rows) == 2:
    ...             yield (",".join(self.rows.get()),)
    ...             self.rows.clear()
    >>> with ps.testing.ProcessHarness(Batches()) as harness:
    ...     harness.process([{"name": "a"}])
    ...     harness.process([{"name": "b"}])
    []
    [('a,b',)]
    """

    _others = _NAMES

    def __init__(self, handle: ListHandle, own: InstanceRow) -> None:
        super().__init__(handle, own)
        self.type: StateType = handle.type

    def get(self) -> list[Any]:
        """The items, in order; empty if there are none."""
        return self._handle.get()

    def to_arrow(self) -> pa.Array[Any]:
        """The items as an Arrow array.

        Raises
        ------
        InvalidArgumentError
            They are pickled objects.
        """
        lists = self._handle.lists(self._own.keys)
        if isinstance(lists, list):
            raise InvalidArgumentError(
                f"state {self.name!r}: objects are no Arrow array; take get()"
            )
        items: pa.Array[Any] = lists.flatten()
        return items

    def add(self, item: Any, /) -> None:
        """Append an item.

        Raises
        ------
        WrongTypeError
            It is None or of another type; nothing was written.
        """
        self._handle.add(item)

    def add_all(self, items: Iterable[Any], /) -> None:
        """Append items; if one of them is refused, none is appended.

        Parameters
        ----------
        items : iterable, pyarrow.Array, numpy.ndarray or pandas.Series
            A column is appended without Python per item.

        Raises
        ------
        WrongTypeError
            An item is None or of another type, or `items` is not an iterable of items.
        """
        column = None if self.type.is_object else _column(items)
        if column is None or column.null_count:
            # A null is refused by the handle, in its own words.
            self._handle.add_all(items if column is None else column.to_pylist())
        else:
            put_items(self._handle, self._own.keys, column)

    def update(self, items: Iterable[Any] | None, /) -> None:
        """Replace the items; None or no items clear the list.

        Raises
        ------
        WrongTypeError
            As for `add_all`; nothing was written.
        """
        column = _column(items)
        self._handle.update(items if column is None else column.to_pylist())

    def clear(self) -> None:
        """Remove all items."""
        self._handle.clear()

    def is_empty(self) -> bool:
        """Whether there is no item."""
        return not len(self)

    def __bool__(self) -> bool:
        return len(self) > 0

    def __getitem__(self, index: Any) -> Any:
        return self._handle[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())


def _column(items: Any) -> pa.Array[Any] | None:
    """The items as an Arrow array if they are a column."""
    if not is_column(items):
        return None
    column: Any = items if isinstance(items, (pa.Array, pa.ChunkedArray)) else pa.array(items)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


Scope = Literal["operator", "key_group"]


class RawState(KeylessState["RawHandle | RawKeyGroupHandle"]):
    """Declares byte streams of an instance, in a format of your own.

    Parameters
    ----------
    scope : {"operator", "key_group"}
        ``"operator"``: a list of streams, which are divided evenly when the number of instances
        changes. ``"key_group"``: a stream per key group, which goes to the instance that gets the
        key group.

    See Also
    --------
    pystate.RawHandle, pystate.RawKeyGroupHandle : what it becomes while a function runs.

    Notes
    -----
    A stream is stored as a whole: a small change of a large stream costs the whole stream, in
    memory and in the snapshot. If `pystate.rescale` has split key groups, each part of a key group
    gets the stream of the whole.

    Examples
    --------
    >>> import pystate as ps
    >>> ps.RawState("key_group")
    RawState('key_group')
    """

    __slots__ = ("_scope",)

    _scope: Scope

    def __init__(self, scope: Scope = "operator", *, previously: str | Sequence[str] = ()) -> None:
        self._declare("binary", None, previously)
        checked = choice(scope, "RawState: scope", ("operator", "key_group"))
        object.__setattr__(self, "_scope", checked)

    @property
    def scope(self) -> Scope:
        """What a stream belongs to."""
        return self._scope

    def stored(self) -> State[Any]:
        """A list of streams, or a map from key group to stream.

        A stream says of how many key groups its own was one, because they may be split.
        """
        if self._scope == "operator":
            return ListState("binary")
        return MapState("int", "struct<key_groups:int,stream:binary>")

    def opened(self, handle: Any, own: InstanceRow) -> RawHandle | RawKeyGroupHandle:
        """Make the state's handle."""
        if self._scope == "operator":
            return RawHandle(handle, own)
        return RawKeyGroupHandle(handle, own)

    def share(
        self, handle: Any, old: OldRows, instance: Instance, start: int
    ) -> tuple[list[Any], int]:
        """Read an instance's streams."""
        if self._scope == "operator":
            return even_share(handle, old, instance, start)
        streams = []
        first, last = instance.key_groups
        groups = instance.max_parallelism
        for row in range(len(old)):
            old.select(row)
            for group, kept in handle.items():
                before = kept["key_groups"]
                if groups % before:
                    raise CheckpointError(
                        f"state {handle.name!r}: a stream is of key group {group} of {before}, of "
                        f"which {groups} are no multiple"
                    )
                streams += [
                    (each, {"key_groups": groups, "stream": kept["stream"]})
                    for each in range(group, groups, before)
                    if first <= each <= last
                ]
        return streams, start

    def put(self, handle: Any, own: KeyBatch, share: Any) -> None:
        """Write an instance's streams."""
        if self._scope == "key_group":
            handle.put_all(share)
            return
        for streams in share:
            put_items(handle, own, streams)

    def _arguments(self) -> tuple[Any, ...]:
        return (self._scope,)


class RawHandle(InstanceHandle[ListHandle]):
    """The byte streams of one instance. ``RawState("operator")`` declares it.

    Attributes
    ----------
    name : str
        The state's name.
    """

    def streams(self) -> list[bytes]:
        """All streams, in order; after a change of the number of instances none, or several."""
        return self._handle.get()

    def add(self, stream: bytes | bytearray | memoryview, /) -> None:
        """Append a stream.

        Raises
        ------
        WrongTypeError
            It is not bytes.
        """
        self._handle.add(_bytes(stream, self.name))

    def update(self, streams: Iterable[bytes | bytearray | memoryview] | None, /) -> None:
        """Replace all streams; None or no streams remove them.

        Raises
        ------
        WrongTypeError
            One of them is not bytes; nothing was written.
        """
        if isinstance(streams, (str, bytes, bytearray, memoryview)):
            raise WrongTypeError(
                f"state {self.name!r}: update takes a list of streams, not {shown(streams)}: "
                "write update([stream])"
            )
        self._handle.update([_bytes(stream, self.name) for stream in streams or ()])

    def clear(self) -> None:
        """Remove all streams."""
        self._handle.clear()


class RawKeyGroupHandle(InstanceHandle[MapHandle]):
    """A byte stream per key group of one instance. ``RawState("key_group")`` declares it.

    Attributes
    ----------
    name : str
        The state's name.
    """

    def key_groups(self) -> list[int]:
        """The key groups that have a stream, in order."""
        return sorted(self._handle.keys())

    def read(self, key_group: int, /) -> bytes | None:
        """The stream of a key group; None if it has none.

        Raises
        ------
        InvalidArgumentError
            The key group belongs to another instance.
        """
        kept = self._handle.get(self._checked(key_group))
        return None if kept is None else kept["stream"]

    def write(self, key_group: int, stream: bytes | bytearray | memoryview, /) -> None:
        """Replace the stream of a key group.

        Raises
        ------
        InvalidArgumentError
            The key group belongs to another instance.
        WrongTypeError
            The stream is not bytes.
        """
        group = self._checked(key_group)
        groups = self._own.instance.max_parallelism
        content = {"key_groups": groups, "stream": _bytes(stream, self.name)}
        self._handle.put(group, content)

    def remove(self, key_group: int, /) -> None:
        """Remove the stream of a key group, if it has one."""
        self._handle.remove(self._checked(key_group))

    def clear(self) -> None:
        """Remove all streams."""
        self._handle.clear()

    def _checked(self, key_group: int) -> int:
        first, last = self._own.instance.key_groups
        group = integer(key_group, f"state {self.name!r}: the key group")
        if not first <= group <= last:
            raise InvalidArgumentError(
                f"state {self.name!r}: key group {group} belongs to another instance; this one has "
                f"{first} to {last}, ctx.key_group_range"
            )
        return group


def _bytes(stream: Any, name: str) -> bytes:
    if not isinstance(stream, (bytes, bytearray, memoryview)):
        raise WrongTypeError(f"state {name!r}: a stream is bytes, not {shown(stream)}")
    return bytes(stream)
