"""Value states: one value per key. The declaration and its handles.

Thread safety: a declaration is immutable; a handle belongs to its table, and a table to one thread
at a time.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from pystate._core import core
from pystate.errors import (
    DeclarationError,
    InUseError,
    PystateError,
    WrongTypeError,
)
from pystate.state.columns import Column, value_column
from pystate.state.declaration import (
    MOST_TEXT_BYTES,
    State,
    as_literal,
    stored_kind,
    type_literal,
)
from pystate.state.handle import (
    MISSING,
    VALUE_NAMES,
    NoValue,
    Objects,
    StateHandle,
    batch_method_error,
)
from pystate.state.key_batch import ADD, MAX, MIN, KeyBatch, Step, read_array_of
from pystate.state.objects import pickled, unpickled
from pystate.state.ttl import StateTtl
from pystate.types.arrays import check_rows, decoded, encoded, is_many, reference
from pystate.types.fills import Fills, fills_of, from_json, to_json
from pystate.types.nested import codec_of
from pystate.types.state_type import TypeLike

if TYPE_CHECKING:
    from typing_extensions import Self

_IMMUTABLE = (type(None), bool, int, float, complex, str, bytes)
_OPERATIONS = {ADD: "add", MIN: "min", MAX: "max"}
#: Objects are written to the core in pieces of at most this many rows and bytes.
_FLUSH_ROWS, _FLUSH_BYTES = 8192, 16 << 20
#: So many objects of unknown size may wait where their bytes are limited.
_FEW = 16

_ABSENT: Any = type("_Absent", (), {"__slots__": ()})()


class ValueState(State["ValueHandle"]):
    """Declares one value per key.

    Parameters
    ----------
    type : str, pyarrow.DataType or object
        A Spark DDL string (``"long"``), an Arrow type, or ``object`` for any object that can be
        pickled.
    default : optional
        What `value()` returns if nothing is stored, and what `add` starts from. Each key gets its
        own copy of a mutable default. Of a struct it is also what a field has, once it is added, in
        the values that were stored without it.
    ttl : StateTtl, optional
        When values expire; never by default.

    Raises
    ------
    DeclarationError
        The type is unknown or not supported, or the default is not of the type.

    See Also
    --------
    pystate.ValueHandle : what the declaration becomes while a function or a store runs.

    Notes
    -----
    ``timestamp`` holds instants: it takes datetimes with a time zone and gives them back in UTC. A
    datetime without a time zone is refused, because its meaning would depend on the host; use
    ``timestamp_ntz`` for wall-clock times. The range of integers is checked, a bool is not accepted
    as an integer, and an int is accepted as a float or double if nothing is lost.

    An object is unpickled once per epoch, and pickled once if it was updated. After a change in
    place, call `update`; otherwise the change is lost at the end of the epoch.

    Examples
    --------
    >>> import pystate as ps
    >>> class Legs(ps.KeyedProcessFunction):
    ...     legs = ps.ValueState("long", default=0)
    ...
    ...     def process(self, key, row, ctx: ps.RuntimeContext):
    ...         self.legs.update(self.legs.value() + 1)
    >>> Legs.legs
    ValueState('long', default=0)
    """

    __slots__ = ("_default", "_shared")

    in_readers = True

    _default: Any
    _shared: bool

    def __init__(
        self,
        type: TypeLike,
        default: Any = None,
        *,
        ttl: StateTtl | None = None,
        previously: str | Sequence[str] = (),
    ) -> None:
        self._declare(type, ttl, previously)
        parsed = self._type
        if default is not None and not parsed.is_object:
            try:
                default = codec_of(parsed, "default", "the default").normalize(default)
            except PystateError as error:
                raise DeclarationError(f"ValueState({parsed.ddl!r}): {error}") from error
        shared = not (parsed.is_object or parsed.is_nested) or isinstance(default, _IMMUTABLE)
        object.__setattr__(self, "_default", copy.deepcopy(default))
        object.__setattr__(self, "_shared", shared)

    @property
    def default(self) -> Any:
        """The default; a fresh copy if it is mutable."""
        return self._default if self._shared else copy.deepcopy(self._default)

    @property
    def has_shared_default(self) -> bool:
        """Whether the default is immutable, so that all keys may see one object."""
        return self._shared

    def fills(self) -> Fills:
        """Return the fields of the default."""
        return {} if self._type.is_object else fills_of(self._type, self._default)

    def stored_default(self) -> str | None:
        """Return the default as JSON, and of an object the digits of its pickle.

        None if there is no default, and for one that metadata does not keep: it cannot be pickled,
        or is longer than a type may be.
        """
        if self._default is None:
            return None
        if self._type.is_object:
            try:
                value: Any = pickled("default", self._default).hex()
            except PystateError:
                return None
        else:
            value = to_json(self._type, self._default)
        text = json.dumps(value, separators=(",", ":"))
        return text if len(text) <= MOST_TEXT_BYTES else None

    def with_default(self, text: str) -> Self:
        """The same state with a default as `stored_default` gives it; objects are left as bytes."""
        if self._type.is_object:
            return self
        value = from_json(self._type, json.loads(text))
        shared = not self._type.is_nested or isinstance(value, _IMMUTABLE)
        return self._with("_default", value)._with("_shared", shared)

    def default_column(self, text: str, name: str) -> pa.Array[Any]:
        """Return a default as `stored_default` gives it, as one row of the state's column."""
        value = json.loads(text)
        if self._type.is_object:
            return pa.array([bytes.fromhex(value)], self.arrow_type)
        codec = codec_of(self._type, name)
        values = [codec.normalize(from_json(self._type, value))]
        return decoded(encoded(values, self._type, codec, f"state {name!r}"), self._type, codec)

    def _column(self, name: str) -> Column:
        return value_column(name, self._type, self._default)

    def handle(self, table: core.Table, column: int, name: str) -> ValueHandle:
        """Make the state's handle."""
        if self._type.is_object:
            return ObjectHandle(table, column, name, self)
        kind = NestedHandle if self._type.is_nested else ValueHandle
        return kind(table, column, name, self)

    def loaded(self, name: str, stored: Any) -> Any:
        """Return what a reader gives for a stored value; the default for an absent one."""
        if stored is None:
            return self.default
        return unpickled(name, stored) if self._type.is_object else stored

    def _spelled(self) -> str:
        """A value is spelled by its type alone."""
        return self._column("state").ddl

    @classmethod
    def from_stored(cls, stored: str) -> Self | None:
        """Return a value state of the type that is spelled so; None if it is a declaration."""
        if stored_kind(stored) is not None:
            return None
        return cls(object if stored == "object" else stored)

    def _arguments(self) -> tuple[Any, ...]:
        return type_literal(self._type), self._default

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ValueState):
            return NotImplemented
        mine, theirs = self._default, other._default
        same = mine == theirs or (mine != mine and theirs != theirs)
        return self._type == other._type and self._ttl == other._ttl and same

    __hash__ = State.__hash__

    def __repr__(self) -> str:
        shown = [as_literal(type_literal(self._type))]
        if self._default is not None:
            shown.append(f"default={self._default!r}")
        return f"ValueState({', '.join([*shown, *self._options()])})"


class ValueHandle(NoValue, StateHandle, core.ScalarHandle):
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
        super().__init__(table, column, codec_of(declaration.type, name), declaration.default)

    @property
    def objects(self) -> Objects | None:
        """None but of an `ObjectHandle`."""
        return None

    def values(self, keys: KeyBatch) -> Any:
        """Copy the keys' values.

        Parameters
        ----------
        keys : KeyBatch
            The keys to read.

        Returns
        -------
        pyarrow.Array or list
            A value per key, in the keys' order; for a key without a value the default, or null if
            there is no default. A list for a state of type ``object``.
        """
        array = decoded(self._stored(keys), self.type, self.codec)
        if self.default is None or not array.null_count:
            return array
        if self.type.is_nested:
            filled = [self.default if v is None else v for v in array.to_pylist()]
            return pa.array(filled, self.type.arrow)
        return pc.call_function("coalesce", [array, pa.scalar(self.default, self.type.arrow)])

    def update_all(self, keys: KeyBatch, values: Any) -> None:
        """Store a value per key; for a repeated key the last one wins; a null clears.

        Parameters
        ----------
        keys : KeyBatch
            The keys to write to.
        values : array-like or scalar
            As many as there are keys, or one value for all. For an ``object`` state always a
            sequence.

        Raises
        ------
        WrongTypeError
            The values are not of the state's type; nothing was written.
        """
        array = self._as_values(self._checked(keys), values)
        keys.put(self.column, array)

    def add(self, keys: KeyBatch, values: Any = MISSING) -> None:
        """Add to each key's value; an absent value counts as the default, or else as zero.

        Parameters
        ----------
        keys : KeyBatch
            The keys to add to, in order, also where a key repeats.
        values : array-like or scalar
            As many as there are keys, or one value for all; nulls are skipped.

        Raises
        ------
        StateOverflowError
            An integer or decimal left its type's range. The epoch can then only be rolled back.
        WrongTypeError
            The state is not a number, or the values have another type.
        """
        if values is MISSING:
            now = "update(value() + number)"
            raise batch_method_error(f"state {self.name!r}", "add(keys, values)", now)
        self._apply(keys, ADD, values)

    def min(self, keys: KeyBatch, values: Any) -> None:
        """Keep the smaller of each key's value and the given one; an absent value is replaced.

        Parameters
        ----------
        keys : KeyBatch
            The keys to write to.
        values : array-like or scalar
            As many as there are keys, or one value for all; nulls are skipped.
        """
        self._apply(keys, MIN, values)

    def max(self, keys: KeyBatch, values: Any) -> None:
        """Keep the larger of each key's value and the given one; see `min`.

        NaN is larger than any number.
        """
        self._apply(keys, MAX, values)

    def _apply(self, keys: KeyBatch, op: int, values: Any) -> None:
        step = self.step(keys, op, values)  # this also checks that it is a batch
        keys.apply(*step)

    def step(self, keys: KeyBatch, op: int, values: Any) -> Step:
        """What `apply_steps` does for `add` (1), `min` (2) and `max` (3) of this state."""
        if not (self.type.is_number or (self.type.is_time and op != ADD)):
            name = _OPERATIONS[op]
            raise WrongTypeError(f"state {self.name!r}: there is no {name} for {self.type.ddl}")
        return self.column, op, self._as_values(self._checked(keys), values)

    def _stored(self, keys: KeyBatch) -> pa.Array[Any]:
        """The keys' values as they are stored; null for a key without a value."""
        return read_array_of(
            self._checked(keys),
            self.type,
            lambda part, _, values, valid: part.get(self.column, values, valid),
            lambda part, _, offsets, valid: part.get_bytes(self.column, offsets, valid),
        )

    def _exported(self, keys: KeyBatch) -> pa.Array[Any]:
        """The keys' values without defaults; objects in pickled form."""
        return decoded(self._stored(keys), self.type, self.codec)

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
    """A struct, array or map per key. Each key has its own copy of the default."""

    def value(self) -> Any:
        """The current key's value, or a copy of the default."""
        value = super().value()
        return self._declaration.default if value is self.default else value


class ObjectHandle(ValueHandle):
    """A value of any class that can be pickled.

    A value is unpickled at its first use in an epoch, and pickled by its end if it was updated.
    After a change in place, call `update`; otherwise the change is lost with the epoch, or earlier.
    The batch methods take and return lists. An object's pickling methods (``__reduce__``,
    ``__getstate__``) must not update the state or end the epoch: that raises `InUseError`.
    """

    ttl: StateTtl | None = None

    def __init__(self, table: core.Table, column: int, name: str, declaration: ValueState) -> None:
        super().__init__(table, column, name, declaration)
        self._cache: dict[Any, Any] = {}
        self._dirty: dict[Any, None] = {}
        self._drops = 0  # how often the kept objects were dropped
        self._flushing = False
        self._write: Callable[[], None] | None = None
        self._most_bytes = _FLUSH_BYTES
        self._most = _FEW  # objects that wait before `_write` is called

    @property
    def objects(self) -> Objects:
        """Itself."""
        return self

    @property
    def dirty(self) -> bool:
        """Whether values wait to be pickled."""
        return bool(self._dirty)

    @property
    def _keeps(self) -> bool:
        """Whether what was read is kept; not where that might be seen once after it has expired."""
        return self.ttl is None or self.ttl.visibility == "never_return_expired"

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
            if drops == self._drops and self._keeps:
                self._cache[key] = value
        return self._declaration.default if value is _ABSENT else value

    def update(self, value: Any, /) -> None:
        """Store a value under the current key; None clears."""
        self._set(self.table.current_name(), value)
        self._write_many()

    def clear(self) -> None:
        """Clear the current key's value."""
        self.update(None)

    def values(self, keys: KeyBatch) -> list[Any]:
        """The keys' values; the default for an absent one."""
        names = self._checked(keys)._normal_keys()
        keys.check_valid()
        cache, drops = self._cache, self._drops
        if not self._keeps:
            cache = dict(cache)
        if any(name not in cache for name in names):
            stored = self._stored(keys)
            for i, name in enumerate(names):
                if name not in cache and stored[i].is_valid:
                    value = unpickled(self.name, stored[i].as_py())
                    if drops != self._drops:
                        keys.check_valid()
                        raise self._disturbed_error("unpickled")
                    cache[name] = value
        kept = (cache.get(name, _ABSENT) for name in names)
        return [self._declaration.default if v is _ABSENT else v for v in kept]

    def update_all(self, keys: KeyBatch, values: Any) -> None:
        """Store an object per key; for a repeated key the last one wins; None clears."""
        names = self._checked(keys)._normal_keys()
        if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
            raise WrongTypeError(
                f"state {self.name!r}: update_all of objects takes a sequence, got {values!r:.80}"
            )
        values = list(values)
        check_rows(values, len(names), f"state {self.name!r}")
        keys.check_valid()
        early = self._write is not None
        for name, value in zip(names, values, strict=True):
            self._set(name, value)
            if early:
                self._write_many()

    def clear_all(self, keys: KeyBatch) -> None:
        """Clear the keys' values."""
        super().clear_all(keys)
        self.forget(keys)

    def forget(self, keys: KeyBatch) -> None:
        """Drop the objects of keys that were deleted."""
        for name in keys._normal_keys():
            self._cache.pop(name, None)
            self._dirty.pop(name, None)

    def discard(self) -> None:
        """Drop everything that is kept; what was not flushed is lost."""
        self._drops += 1
        # Dropped objects may run any finalizer, so they are removed from here first.
        gone = self._cache, self._dirty
        self._cache, self._dirty = {}, {}
        del gone

    def drop_read(self) -> None:
        """Drop what is kept but does not wait: it is read anew. Operations under way go on."""
        gone = self._cache
        self._cache = {name: gone[name] for name in self._dirty}
        del gone

    def write_early(self, write: Callable[[], None], most_bytes: int) -> None:
        """Have `write` flush, in the middle of the epoch, whenever about so many bytes wait."""
        self._write, self._most_bytes = write, min(most_bytes, _FLUSH_BYTES)

    def _write_many(self) -> None:
        if self._write is not None and len(self._dirty) >= self._most:
            self._write()

    def flush(
        self,
        make_batch: Callable[[list[Any]], KeyBatch],
        make_way: Callable[[int, int], None] | None = None,
    ) -> None:
        """Pickle what was updated and write it to the core.

        `InUseError`: an object's class updated the state, or ended the epoch, while it was pickled.
        """
        if not self._dirty:
            return
        if self._flushing:
            raise self._disturbed_error("pickled")
        drops, self._flushing = self._drops, True
        try:
            for names, data in self._pickled():
                if drops != self._drops:
                    raise self._disturbed_error("pickled")
                values = pa.array(data, pa.binary())
                self._put(names, values, make_batch, make_way)
                # The next ones are likely to be as large as these.
                fit = self._most_bytes * len(names) // values.nbytes
                self._most = min(max(fit, _FEW), _FLUSH_ROWS)
        finally:
            self._flushing = False

    def _put(
        self,
        names: list[Any],
        values: pa.Array[Any],
        make_batch: Callable[[list[Any]], KeyBatch],
        make_way: Callable[[int, int], None] | None,
    ) -> None:
        if make_way is not None:
            make_way(len(names), values.nbytes)
        with closing(make_batch(names)) as keys:
            keys.put(self.column, reference(values, self.type))
        for name in names:
            self._dirty.pop(name, None)  # its class may have deleted it

    def _disturbed_error(self, how: str) -> InUseError:
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
            if len(names) >= _FLUSH_ROWS or size >= self._most_bytes:
                yield names, data
                names, data, size = [], [], 0
        if names:
            yield names, data

    def _set(self, key: Any, value: Any) -> None:
        if self._flushing:
            raise self._disturbed_error("pickled")
        self._cache[key] = _ABSENT if value is None else value
        self._dirty[key] = None
