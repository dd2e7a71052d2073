"""Handles: one state of the current key, or of a batch of keys.

Thread safety: a handle belongs to its table, and a table to one thread at a time.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pystate._core import core
from pystate.arguments import integer
from pystate.errors import (
    InUseError,
    InvalidArgumentError,
    PystateError,
    SchemaError,
    WrongTypeError,
)
from pystate.state.declarations import ValueState
from pystate.state.habits import VALUE_NAMES, NoValue
from pystate.types.arrays import (
    array_of,
    as_array,
    check_rows,
    decoded,
    encoded,
    from_parts,
    is_many,
    reference,
)
from pystate.types.state_type import StateType

__all__ = [
    "MISSING",
    "KeyBatch",
    "NestedHandle",
    "ObjectHandle",
    "ValueHandle",
    "checked_batch",
    "copied",
    "for_batches",
    "pickled",
    "unpickled",
]

_ADD, _MIN, _MAX = 1, 2, 3
_WIDTHS = {"boolean": 1, "byte": 1, "short": 2, "int": 4, "float": 4, "date": 4, "decimal": 16}
#: Objects are written to the core in pieces of so many rows and bytes.
_FLUSH_ROWS, _FLUSH_BYTES = 8192, 16 << 20

#: Stands for an argument that was left out.
MISSING: Any = type("Missing", (), {"__slots__": (), "__repr__": lambda _: "<missing>"})()

_ABSENT: Any = type("_Absent", (), {"__slots__": ()})()


class KeyBatch(core.Batch):
    """The rows of many keys, each hashed and looked up once. ``keys()`` of a backend makes it.

    Valid until the next seal or roll back, then every use raises `StaleKeyBatchError`; growth of
    the table in between is fine. A key may repeat. Reading never makes a row: an absent key yields
    the default and is made by its first write. The keys are copied: what they were made of may be
    changed.

    ``select(i)`` makes key `i` current for the scalar form of the handles. Where keys are known
    before, going through them in order so is several times as fast as one `set_current_key` after
    the other: rows come into the cache ahead of their turn.
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
            # Keys are looked at again for as long as the batch lives, and an array may be a view of
            # a numpy array that the caller fills anew.
            self._copies = [reference(a, t) for a, t in zip(arrays, types, strict=True)]
            for copy in self._copies:
                copy.own()
            super().__init__(table, self._copies)
        self._types = types
        self._spaces = int(table.has_namespaces)
        self._normal: list[Any] | None = None
        self._normal_spaces: list[Any] | None = None

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
        """The namespace of row `i`, None for the default one."""
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
            What is read and written with it is that of these namespaces, timers too.

        Raises
        ------
        DeclarationError
            There are no namespaces.
        WrongTypeError
            They are of another type.
        """
        self.check()
        if not self._spaces:
            # Says how a table gets them.
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
                copied(type_, len(self), partial(self.get_key, i), partial(self.get_key_bytes, i))
                for i, type_ in enumerate(self._types)
            ]
        return self._arrays

    def key_at(self, i: int) -> Any:
        """Key `i` as a Python value, a tuple where it has several columns."""
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

    def _normal_keys(self) -> list[Any]:
        """The keys, with their namespaces, so that equal ones are equal and hash alike."""
        if self._normal is None:
            normal = [self.table.normal_key(key) for key in self.to_pylist()]
            if self._spaces:
                normal = list(zip(normal, self._namespace_names(), strict=True))
            self._normal = normal
        return self._normal

    def __repr__(self) -> str:
        try:
            self.check()
            return f"<KeyBatch of {len(self)} keys>"
        except PystateError as error:
            return f"<KeyBatch, {type(error).__name__}>"


def for_batches(what: str, method: str, instead: str) -> InvalidArgumentError:
    """What to raise where a method for batches is called as if it were for the current key."""
    return InvalidArgumentError(
        f"{what}: {method} is for a batch of keys; of the current key write {instead}"
    )


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


def pickled(name: str, value: Any, key: str = "") -> bytes:
    """The bytes of an object that state `name` keeps."""
    try:
        return pickle.dumps(value, protocol=5)
    except PystateError:
        raise
    except Exception as error:
        raise WrongTypeError(
            f"state {name!r}{key}: {type(value).__name__} cannot be pickled: {error}; "
            "nothing was written"
        ) from error


def unpickled(name: str, data: bytes) -> Any:
    """The object whose bytes these are."""
    try:
        return pickle.loads(data)
    except Exception as error:
        raise SchemaError(
            f"state {name!r}: a stored object cannot be unpickled: {error}; is its class "
            "still importable under the same name?"
        ) from error


def copied(
    type_: StateType,
    rows: int,
    get: Callable[[int, int], None],
    get_bytes: Callable[[int, int], core.Memory],
) -> pa.Array[Any]:
    """An array of what the core copies, in its form, null where it says so."""
    valid = np.empty(rows, np.uint8)
    if not type_.is_bytes:
        values = np.empty(rows * (type_.inline_bytes or _WIDTHS.get(type_.name, 8)), np.uint8)
        get(values.ctypes.data, valid.ctypes.data)
        return from_parts(type_, rows, valid, values)
    offsets = np.zeros(rows + 1, np.int32)
    data = get_bytes(offsets.ctypes.data, valid.ctypes.data)
    return from_parts(type_, rows, valid, data, offsets)


class ValueHandle(NoValue, core.ScalarHandle):
    """One value per key. `ValueState` declares it, a backend's `register` or a store gives it.

    ``value()``, ``update(v)`` and ``clear()`` work on the current key and raise `NoCurrentKeyError`
    without one; ``update(None)`` clears. The other methods work on a `KeyBatch`.

    Attributes
    ----------
    name : str
        The state's name.
    type : StateType
        The values' type.
    """

    _others = VALUE_NAMES

    def __init__(self, table: core.Table, column: int, name: str, declaration: ValueState) -> None:
        self.name = name
        self.type = declaration.type
        self._declaration = declaration
        super().__init__(table, column, declaration.type.codec(name), declaration.default)

    def values(self, keys: KeyBatch) -> Any:
        """Copy the keys' values.

        Returns
        -------
        pyarrow.Array
            In the keys' order; the default (null without one) for an absent value. Of an
            ``object`` state a list.
        """
        array = decoded(self._stored(keys), self.type, self.codec)
        if self.default is None or not array.null_count:
            return array
        if self.type.is_nested:
            filled = [self.default if v is None else v for v in array.to_pylist()]
            return pa.array(filled, self.type.arrow)
        return pc.call_function("coalesce", [array, pa.scalar(self.default, self.type.arrow)])

    def update_all(self, keys: KeyBatch, values: Any) -> None:
        """Store a value per key; of a repeated key the last one wins, a null clears.

        Parameters
        ----------
        keys : KeyBatch
            Where to.
        values : array-like or scalar
            As many as there are keys, or one value for all. Of an ``object`` state always a
            sequence.

        Raises
        ------
        WrongTypeError
            The values are not of the state's type; nothing was written.
        """
        array = self._as_values(self._checked(keys), values)
        keys.put(self.column, array)

    def add(self, keys: KeyBatch, values: Any = MISSING) -> None:
        """Add to each key's value; an absent one counts as the default, without one as zero.

        Rows are taken in order, also where a key repeats; nulls are skipped.

        Raises
        ------
        StateOverflowError
            An integer or decimal left its type's range. The epoch can then only be rolled back.
        WrongTypeError
            The state is no number, or the values have another type.
        """
        if values is MISSING:
            now = "update(value() + number)"
            raise for_batches(f"state {self.name!r}", "add(keys, values)", now)
        self._apply(keys, _ADD, "add", values)

    def min(self, keys: KeyBatch, values: Any) -> None:
        """Keep the smaller of each key's value and the given one; an absent one is replaced."""
        self._apply(keys, _MIN, "min", values)

    def max(self, keys: KeyBatch, values: Any) -> None:
        """Keep the larger of each key's value and the given one; NaN is larger than any number."""
        self._apply(keys, _MAX, "max", values)

    def clear_all(self, keys: KeyBatch) -> None:
        """Clear the keys' values. A key whose last state is cleared ceases to exist."""
        self._checked(keys).clear(self.column)

    def _apply(self, keys: KeyBatch, op: int, name: str, values: Any) -> None:
        if not (self.type.is_number or (self.type.is_time and op != _ADD)):
            raise WrongTypeError(f"state {self.name!r}: there is no {name} for {self.type.ddl}")
        array = self._as_values(self._checked(keys), values)
        keys.apply(self.column, op, array)

    def _stored(self, keys: KeyBatch) -> pa.Array[Any]:
        """The keys' values as they are stored, null where there are none."""
        get, get_bytes = self._checked(keys).get, keys.get_bytes
        return copied(
            self.type, len(keys), partial(get, self.column), partial(get_bytes, self.column)
        )

    def _exported(self, keys: KeyBatch) -> pa.Array[Any]:
        """The keys' values without defaults; objects as they are pickled."""
        return decoded(self._stored(keys), self.type, self.codec)

    def _checked(self, keys: KeyBatch) -> KeyBatch:
        return checked_batch(keys, self.table, self.name)

    def _as_values(self, keys: KeyBatch, values: Any) -> core.ArrayRef:
        what = f"state {self.name!r}"
        alone = not is_many(values)
        if self.type.is_nested:
            # A dict is one value; a list or tuple of a struct's fields would be ambiguous.
            alone = isinstance(values, dict)
        if alone:
            return reference(encoded([values], self.type, self.codec, what), self.type)
        array = encoded(values, self.type, self.codec, what)
        check_rows(array, len(keys), what)
        return reference(array, self.type)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self.type.ddl}>"


class NestedHandle(ValueHandle):
    """A struct, array or map per key. Each key has a copy of its own of the default."""

    def value(self) -> Any:
        """The current key's value, or a copy of the default."""
        value = super().value()
        return self._declaration.default if value is self.default else value


class ObjectHandle(ValueHandle):
    """A value of any class that can be pickled.

    A value is unpickled at its first use in an epoch, and pickled by its end if it was updated. A
    change in place needs an `update` after it: without one it is gone with the epoch, or earlier.
    The batch methods take and return lists. What an object's class does while it is pickled
    (``__reduce__``, ``__getstate__``) must not update the state, nor end the epoch: `InUseError`.
    """

    #: The clock by which its values expire, if they do.
    domain = "processing"

    def __init__(self, table: core.Table, column: int, name: str, declaration: ValueState) -> None:
        super().__init__(table, column, name, declaration)
        self._cache: dict[Any, Any] = {}
        self._dirty: dict[Any, None] = {}
        self._drops = 0  # how often what was kept was dropped
        self._flushing = False

    @property
    def dirty(self) -> bool:
        """Whether values wait to be pickled."""
        return bool(self._dirty)

    def value(self) -> Any:
        """The current key's value, or a copy of the default."""
        key = self.table.current_name()
        try:
            value = self._cache[key]
        except KeyError:
            data = self.table.get_bytes(self.column)
            if data is None:
                return self._declaration.default
            drops = self._drops
            value = unpickled(self.name, data)
            # The object's class may have ended the epoch meanwhile.
            if drops == self._drops:
                self._cache[key] = value
        return self._declaration.default if value is _ABSENT else value

    def update(self, value: Any, /) -> None:
        """Store a value under the current key; None clears."""
        self._set(self.table.current_name(), value)

    def clear(self) -> None:
        """Clear the current key's value."""
        self._set(self.table.current_name(), None)

    def values(self, keys: KeyBatch) -> list[Any]:
        """The keys' values, the default for an absent one."""
        names = self._checked(keys)._normal_keys()
        keys.check()
        cache, drops = self._cache, self._drops
        if any(name not in cache for name in names):
            stored = self._stored(keys)
            for i, name in enumerate(names):
                if name not in cache and stored[i].is_valid:
                    value = unpickled(self.name, stored[i].as_py())
                    if drops != self._drops:
                        keys.check()
                        raise self._disturbed("unpickled")
                    cache[name] = value
        found = (cache.get(name, _ABSENT) for name in names)
        return [self._declaration.default if v is _ABSENT else v for v in found]

    def update_all(self, keys: KeyBatch, values: Any) -> None:
        """Store an object per key; of a repeated key the last one wins, None clears."""
        names = self._checked(keys)._normal_keys()
        if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
            raise WrongTypeError(
                f"state {self.name!r}: update_all of objects takes a sequence, got {values!r:.80}"
            )
        values = list(values)
        check_rows(values, len(names), f"state {self.name!r}")
        keys.check()
        for name, value in zip(names, values, strict=True):
            self._set(name, value)

    def clear_all(self, keys: KeyBatch) -> None:
        """Clear the keys' values."""
        super().clear_all(keys)
        self.forget(keys)

    def forget(self, keys: KeyBatch) -> None:
        """Drop what is kept of keys that were deleted."""
        for name in keys._normal_keys():
            self._cache.pop(name, None)
            self._dirty.pop(name, None)

    def discard(self) -> None:
        """Drop everything that is kept; what was not flushed is lost."""
        self._drops += 1
        # What goes may run anyone's finalizers: not before it is out of here.
        gone = self._cache, self._dirty
        self._cache, self._dirty = {}, {}
        del gone

    def flush(self, make_batch: Callable[[list[Any]], KeyBatch]) -> None:
        """Pickle what was updated and write it to the core.

        Raises
        ------
        InUseError
            An object's class updated the state, or ended the epoch, while it was pickled.
        """
        if not self._dirty:
            return
        if self._flushing:
            raise self._disturbed("pickled")
        drops, self._flushing = self._drops, True
        try:
            for names, data in self._pickled():
                if drops != self._drops:
                    raise self._disturbed("pickled")
                with closing(make_batch(names)) as keys:
                    values = pa.array(data, pa.binary())
                    keys.put(self.column, reference(values, self.type))
            self._dirty.clear()
        finally:
            self._flushing = False

    def _disturbed(self, how: str) -> InUseError:
        return InUseError(
            f"state {self.name!r}: while an object was {how}, its class updated the state or ended "
            "the epoch"
        )

    def _pickled(self) -> Iterator[tuple[list[Any], list[bytes | None]]]:
        names: list[Any] = []
        data: list[bytes | None] = []
        size = 0
        for name, value in [(name, self._cache[name]) for name in self._dirty]:
            packed = None
            if value is not _ABSENT:
                packed = pickled(self.name, value, f", key {name!r:.60}")
            names.append(name)
            data.append(packed)
            size += len(packed or b"")
            if len(names) >= _FLUSH_ROWS or size >= _FLUSH_BYTES:
                yield names, data
                names, data, size = [], [], 0
        if names:
            yield names, data

    def _set(self, key: Any, value: Any) -> None:
        if self._flushing:
            raise self._disturbed("pickled")
        self._cache[key] = _ABSENT if value is None else value
        self._dirty[key] = None
