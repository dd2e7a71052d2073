"""Key batches: the rows of many keys, looked up once.

Thread safety: a key batch belongs to its table, and a table to one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from pystate._core import core
from pystate.base.arguments import integer
from pystate.errors import (
    InvalidArgumentError,
    MemoryLimitError,
    PystateError,
    StateOverflowError,
)
from pystate.types.arrays import (
    array_of,
    as_array,
    check_rows,
    from_parts,
    is_many,
    reference,
)
from pystate.types.state_type import StateType

#: What a step does to a column: add, or keep the smaller or the larger value.
ADD, MIN, MAX = 1, 2, 3
#: A column, what is done to it, and a value per key or one for all.
Step: TypeAlias = tuple[int, int, core.ArrayRef]

Part = TypeVar("Part")

_WIDTHS = {"boolean": 1, "byte": 1, "short": 2, "int": 4, "float": 4, "date": 4, "decimal": 16}


class KeyBatch(core.Batch):
    """The rows of many keys, each hashed and looked up once. ``keys()`` of a backend makes it.

    It is valid until the end of the epoch, or a rollback; after that every use raises
    `StaleKeyBatchError`. The table may grow meanwhile. A key may repeat. Reading does not create a
    row: an absent key yields the default, and its first write creates the row. The keys are copied,
    so that the arrays they came from may be changed.

    ``select(i)`` makes key `i` current, for the methods of handles that work on one key. For a loop
    over keys it is several times as fast as `set_current_key`, because the rows of the next keys
    are prefetched into the processor's cache.
    """

    def __init__(
        self,
        table: core.Table,
        arrays: Sequence[pa.Array[Any]] | None,
        types: Sequence[StateType],
    ) -> None:
        self._arrays: list[pa.Array[Any]] | None = None
        self._copies: list[core.ArrayRef] = []
        if arrays is None:
            super().__init__(table, None)
        else:
            # Keys are read again during the life of the batch, and an array may be a view of a
            # numpy array that the caller overwrites.
            self._copies = [reference(a, t) for a, t in zip(arrays, types, strict=True)]
            for copy in self._copies:
                copy.own()
            super().__init__(table, self._copies)
        self._types = types
        self._spaces = int(table.has_namespaces)
        self._normal: list[Any] | None = None
        self._normal_spaces: list[Any] | None = None

    def keep(self) -> None:
        """Keep the keys of a batch of rows, which then survives that these leave."""
        arrays = self._columns()
        self._copies = [reference(a, t) for a, t in zip(arrays, self._types, strict=True)]
        self.keep_keys(self._copies)

    def key_arrays(self) -> list[pa.Array[Any]]:
        """The key columns, cast to the key's types."""
        arrays = self._columns()
        return arrays[:-1] if self._spaces else arrays

    def namespaces(self) -> pa.Array[Any]:
        """The namespace of each row, null for the default one."""
        if not self._spaces:
            raise InvalidArgumentError("the table has no namespaces")
        return self._columns()[-1]

    def namespace_at(self, i: int) -> Any:
        """The namespace of row `i`; None for the default one."""
        return self._namespace_names()[i] if self._spaces else None

    def in_namespaces(self, namespaces: Any) -> KeyBatch:
        """The same keys, in other namespaces.

        Parameters
        ----------
        namespaces : array-like or scalar
            A namespace per key, null for the default one; or one for all, None for the default one.

        Returns
        -------
        KeyBatch
            States and timers that are used with it are those of these namespaces.

        Raises
        ------
        DeclarationError
            There are no namespaces.
        WrongTypeError
            The namespaces are of another type.
        """
        self.check_valid()
        if not self._spaces:
            # The error says how a table gets namespaces.
            self.table.normal_namespace(None)
        keys, type_ = self.key_arrays(), self._types[-1]
        if is_many(namespaces):
            spaces = as_array(namespaces, type_, "the namespaces")
            check_rows(spaces, len(self), "the namespaces")
        else:
            one = as_array([namespaces], type_, "the namespaces")
            spaces = pa.repeat(one[0], len(self))
        return KeyBatch(self.table, [*keys, spaces], self._types)

    def _namespace_names(self) -> list[Any]:
        """The namespaces in normal form."""
        if self._normal_spaces is None:
            normal = self.table.normal_namespace
            self._normal_spaces = [
                name if name is None else normal(name) for name in self.namespaces().to_pylist()
            ]
        return self._normal_spaces

    def _columns(self) -> list[pa.Array[Any]]:
        if self._arrays is None and self._copies:
            self._arrays = [
                array_of(copy, type_) for copy, type_ in zip(self._copies, self._types, strict=True)
            ]
        elif self._arrays is None:
            self._arrays = [
                read_array(
                    type_, len(self), partial(self.get_key, i), partial(self.get_key_bytes, i)
                )
                for i, type_ in enumerate(self._types)
            ]
        return self._arrays

    def key_at(self, i: int) -> Any:
        """Key `i` as a Python value; a tuple if it has several columns.

        Raises
        ------
        InvalidArgumentError
            The batch has no row `i`.
        """
        if not 0 <= integer(i, "key_at: the row") < len(self):
            raise InvalidArgumentError(f"there is no row {i} in a key batch of {len(self)}")
        values = [array[i].as_py() for array in self.key_arrays()]
        return values[0] if len(values) == 1 else tuple(values)

    def to_pylist(self) -> list[Any]:
        """All keys as Python values."""
        arrays = self.key_arrays()
        if len(arrays) == 1:
            return arrays[0].to_pylist()
        return list(zip(*(array.to_pylist() for array in arrays), strict=True))

    def first_rows(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """For each row the first row with the same key; its own number where there is none before.

        Raises
        ------
        StaleKeyBatchError
            The epoch has ended.

        Notes
        -----
        O(rows). Keys that are equal as keys of a state are equal here: 0.0 and -0.0, and any NaNs.

        Examples
        --------
        >>> import pyarrow as pa, pystate as ps
        >>> with ps.KeyedStateBackend("long", states={"n": ps.ValueState("long")}) as backend:
        ...     backend.keys(pa.array([7, 8, 7, None, None])).first_rows().tolist()
        [0, 1, 0, 3, 3]
        """
        first = np.empty(len(self), np.int32)
        self.first(first.ctypes.data)
        return first

    def _part(self, rows: slice) -> KeyBatch:
        """A batch of some of the keys."""
        return KeyBatch(self.table, [array[rows] for array in self._columns()], self._types)

    def _normal_keys(self) -> list[Any]:
        """The keys with their namespaces, in a form where equal keys compare and hash as equal."""
        if self._normal is None:
            normal = [self.table.normal_key(key) for key in self.to_pylist()]
            if self._spaces:
                normal = list(zip(normal, self._namespace_names(), strict=True))
            self._normal = normal
        return self._normal

    def __repr__(self) -> str:
        try:
            self.check_valid()
            return f"<KeyBatch of {len(self)} keys>"
        except PystateError as error:
            return f"<KeyBatch, {type(error).__name__}>"


def read_in_parts(keys: KeyBatch, read: Callable[[KeyBatch, slice], Part]) -> list[Part]:
    """What `read` gives of all keys, or of some after the other if not all fit in memory together.

    Each part comes with the rows of the batch that it has.
    """
    rows = len(keys)
    try:
        return [read(keys, slice(0, rows))]
    except MemoryLimitError as error:
        if error.keys is None or rows <= 1 or not keys.is_cut:
            raise
        most, found, at = error.keys, [], 0
    while at < rows:
        most = max(1, min(most, (rows + 1) // 2))
        some = slice(at, min(at + most, rows))
        try:
            with closing(keys._part(some)) as part:
                found.append(read(part, some))
        except MemoryLimitError as refusal:
            if refusal.keys is None or most == 1:
                raise
            most = min(most // 2, refusal.keys)
            continue
        at, most = some.stop, 2 * most
    return found


def read_array_of(
    keys: KeyBatch,
    type_: StateType,
    get: Callable[[KeyBatch, slice, int, int], None],
    get_bytes: Callable[[KeyBatch, slice, int, int], core.Memory],
) -> pa.Array[Any]:
    """As `read_array`, for keys whose rows may not fit in memory together."""
    parts = read_in_parts(
        keys,
        lambda part, rows: read_array(
            type_, len(part), partial(get, part, rows), partial(get_bytes, part, rows)
        ),
    )
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def overflowing_key(error: StateOverflowError, keys: KeyBatch | None) -> str:
    """Whose state it was that has overflowed, for messages: a key, and its namespace."""
    if error.row is None or keys is None:
        return "a key"
    shown = f"key {keys.key_at(error.row)!r:.80}"
    if keys.table.has_namespaces and keys.namespace_at(error.row) is not None:
        shown += f", namespace {keys.namespace_at(error.row)!r:.80}"
    return shown


def checked_batch(keys: KeyBatch, table: core.Table, name: str) -> KeyBatch:
    """The batch, if it is one of the table's."""
    if not isinstance(keys, KeyBatch):
        raise InvalidArgumentError(
            f"state {name!r}: expected a KeyBatch, got {type(keys).__name__}; "
            "make one with keys(...)"
        )
    if keys.table is not table:
        raise InvalidArgumentError(
            f"state {name!r}: the key batch belongs to another backend or store"
        )
    return keys


def read_array(
    type_: StateType,
    rows: int,
    get: Callable[[int, int], None],
    get_bytes: Callable[[int, int], core.Memory],
) -> pa.Array[Any]:
    """Make an array of what the core copies, in the core's form, with its nulls."""
    valid = np.empty(rows, np.uint8)
    if not type_.is_bytes:
        values = _room(type_, rows)
        get(values.ctypes.data, valid.ctypes.data)
        return from_parts(type_, rows, valid, values)
    offsets = np.zeros(rows + 1, np.int32)
    data = get_bytes(offsets.ctypes.data, valid.ctypes.data)
    return from_parts(type_, rows, valid, data, offsets)


def read_arrays(keys: KeyBatch, columns: Sequence[tuple[int, StateType]]) -> list[pa.Array[Any]]:
    """Copy columns of fixed width in the core's form, with one visit to each row."""
    rooms = _read_together(keys, columns)
    return [
        from_parts(type_, len(keys), valid, values)
        for (_, type_), (values, valid) in zip(columns, rooms, strict=True)
    ]


def read_longs(
    keys: KeyBatch, columns: Sequence[tuple[int, StateType]]
) -> list[tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.bool_]]]]:
    """Copy columns of longs, with one visit to each row: values, 0 for none, and where they are."""
    rooms = _read_together(keys, columns)
    return [(values.view(np.int64), valid.view(np.bool_)) for values, valid in rooms]


def _read_together(
    keys: KeyBatch, columns: Sequence[tuple[int, StateType]]
) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    n = len(keys)
    rooms = [(_room(type_, n), np.empty(n, np.uint8)) for _, type_ in columns]

    def read(part: KeyBatch, rows: slice) -> None:
        at = rows.start
        part.get_all(
            [
                (column, values.ctypes.data + at * (len(values) // n), valid.ctypes.data + at)
                for (column, _), (values, valid) in zip(columns, rooms, strict=True)
            ]
            if n
            else []
        )

    read_in_parts(keys, read)
    return rooms


def apply_steps(
    keys: KeyBatch,
    steps: Sequence[Step],
    refused: np.ndarray[Any, np.dtype[np.uint8]] | None = None,
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Take the steps with one visit to each row; return where the first one gave a first value.

    The values of the first step have no nulls. Of a key that repeats, only its first row counts.
    With `refused` (zeros) a row whose sum would overflow takes no step and is no error: it becomes
    1 + the sum's column.
    """
    fresh = np.empty(len(keys), np.uint8)
    keys.apply_all(list(steps), fresh.ctypes.data, 0 if refused is None else refused.ctypes.data)
    return fresh.view(np.bool_)


def _room(type_: StateType, rows: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.empty(rows * (type_.inline_bytes or _WIDTHS.get(type_.name, 8)), np.uint8)


def named_batch(table: core.Table, names: list[Any], types: Sequence[StateType]) -> KeyBatch:
    """A batch of keys, with their namespaces where a table has them, as `Table.current_name`."""
    spaces: list[Any] = []
    if table.has_namespaces:
        names, spaces = [name for name, _ in names], [space for _, space in names]
    columns: list[Any] = [names]
    if len(types) - table.has_namespaces > 1:
        columns = list(zip(*names, strict=True))
    if table.has_namespaces:
        columns.append(spaces)
    arrays = [pa.array(c, type_.arrow) for c, type_ in zip(columns, types, strict=True)]
    return KeyBatch(table, arrays, types)


def walked(
    table: core.Table, max_rows: int, types: Sequence[StateType], *, changed: bool
) -> Iterator[KeyBatch]:
    """All keys that have a row in a table's memory, or those that the open epoch has touched."""
    walk = core.Walk(table, changed)
    while True:
        batch = KeyBatch(table, None, types)
        if not batch.take_rows(walk, max_rows):
            return
        yield batch
