"""Lists of an operator's instances. The declaration and its handle.

Thread safety: a declaration is immutable; a handle belongs to its table, and a table to one thread
at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from pystate.base.arguments import choice
from pystate.errors import InvalidArgumentError
from pystate.state.declaration import spelled
from pystate.state.key_batch import KeyBatch
from pystate.state.list import ListHandle, ListState, UnionListState
from pystate.state.method_hints import LIST_NAMES, Named
from pystate.state.operator_state import Instance, KeylessState, OldRows, Own
from pystate.types.arrays import is_column
from pystate.types.state_type import StateType, TypeLike

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
        found = choice(redistribute, "OperatorListState: redistribute", ("even", "union"))
        object.__setattr__(self, "_redistribute", found)

    @property
    def redistribute(self) -> Literal["even", "union"]:
        """What happens to the items when the number of instances changes."""
        return self._redistribute

    def stored(self) -> ListState:
        """A list per key."""
        kind = UnionListState if self._redistribute == "union" else ListState
        return kind(spelled(self._type))

    def opened(self, handle: Any, own: Own) -> OperatorListHandle:
        """Make the state's handle."""
        return OperatorListHandle(handle, own)

    def share(
        self, handle: Any, old: OldRows, instance: Instance, start: int
    ) -> tuple[list[Any], int]:
        """Read an instance's items."""
        if self._redistribute == "union" and not old.kept:
            return [_items(handle, old, row) for row in range(len(old))], start
        return divided(handle, old, instance, start)

    def put(self, handle: Any, own: KeyBatch, share: Any) -> None:
        """Write an instance's items."""
        for items in share:
            put_items(handle, own, items)

    def _arguments(self) -> tuple[Any, ...]:
        return spelled(self._type), self._redistribute


def divided(
    handle: ListHandle, old: OldRows, instance: Instance, start: int
) -> tuple[list[Any], int]:
    """Read the items of an instance if all items are divided evenly.

    They are dealt in order, beginning with the instance `start`; the first ones get one more if
    there is a remainder. The next state begins with the instance after those, so that over all
    states, too, the numbers of items differ by at most one.

    Returns
    -------
    items : list
        The items, in pieces.
    start : int
        Where the next state begins.
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


class OperatorListHandle(Named, Sequence[Any]):
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

    def __init__(self, handle: ListHandle, own: Own) -> None:
        self._handle = handle
        self._own = own
        self.name = handle.name
        self.type: StateType = handle.type
        self.table = handle.table

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

    def __len__(self) -> int:
        return len(self._handle)

    def __bool__(self) -> bool:
        return len(self) > 0

    def __getitem__(self, index: Any) -> Any:
        return self._handle[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def __repr__(self) -> str:
        return f"<OperatorListHandle {self.name!r}>"


def _column(items: Any) -> pa.Array[Any] | None:
    """The items as an Arrow array if they are a column."""
    if not is_column(items):
        return None
    found: Any = items if isinstance(items, (pa.Array, pa.ChunkedArray)) else pa.array(items)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
