"""What handles have in common: one state of the current key, or of a batch of keys.

Thread safety: a handle belongs to its table, and a table to one thread at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NoReturn, Protocol

import pyarrow as pa

from pystate._core import core
from pystate.base.arguments import shortened
from pystate.base.markup import panel
from pystate.errors import InvalidArgumentError, PystateError, WrongTypeError
from pystate.state.key_batch import KeyBatch, checked_batch
from pystate.state.objects import pickled, unpickled
from pystate.state.ttl import StateTtl
from pystate.types.arrays import check_rows, encoded, reference
from pystate.types.state_type import StateType

#: Per kind of handle: the name of a method elsewhere, and what to write here.
VALUE_NAMES: Mapping[str, str] = {
    "get": "value()",
    "exists": "value() is not None",
    "is_empty": "value() is None",
    "getOption": "value(), which is None where there is none",
    "put": "update(value)",
    "set": "update(value)",
    "remove": "clear()",
    "delete": "clear()",
    "reset": "clear()",
    "get_all": "values(keys)",
    "put_all": "update_all(keys, values)",
    "add_all": "add(keys, values)",
}
LIST_NAMES: Mapping[str, str] = {
    "exists": "len(self.state) > 0",
    "is_empty": "len(self.state) == 0",
    "value": "get()",
    "values": "get(), or of a batch lists(keys)",
    "items": "get()",
    "put": "update(items)",
    "set": "update(items)",
    "appendValue": "add(item)",
    "appendList": "add_all(items)",
    "addAll": "add_all(items)",
    "insert": "update(items)",
    "pop": "get(), and update(items) with what is to stay",
    "remove": "get(), and update(items) with what is to stay",
    "sort": "update(sorted(get()))",
}
MAP_NAMES: Mapping[str, str] = {
    "exists": "len(self.state) > 0, or of a key contains(key)",
    "value": "get(key)",
    "getValue": "get(key)",
    "update": "put_all(entries)",
    "updateValue": "put(key, value)",
    "set": "put(key, value)",
    "add": "put(key, value)",
    "containsKey": "contains(key)",
    "has_key": "contains(key)",
    "removeKey": "remove(key)",
    "delete": "remove(key)",
    "pop": "get(key), and remove(key)",
    "setdefault": "get(key, default), and put(key, value)",
    "iterator": "items()",
    "entries": "items()",
    "putAll": "put_all(entries)",
    "isEmpty": "is_empty()",
}
FOLD_NAMES: Mapping[str, str] = {
    "value": "get()",
    "result": "get()",
    "exists": "get() is not None",
    "is_empty": "get() is None",
    "update": "clear() and add(value)",
    "set": "clear() and add(value)",
    "put": "add(value)",
    "append": "add(value)",
    "reset": "clear()",
    "remove": "clear()",
}


class Elsewhere:
    """Stands for a method of other libraries; accessing it raises an error with the method to use.

    A ``__getattr__`` for all missing names would cost every method call 40 ns, because CPython then
    makes a bound method each time.
    """

    def __init__(self, name: str, instead: str) -> None:
        self._name = name
        self._instead = instead
        self.__doc__ = f"Not here: write {instead}."

    def __get__(self, handle: Any, kind: type) -> NoReturn:
        which = f"state {handle.name!r}: " if isinstance(handle, Named) else ""
        raise AttributeError(
            f"{which}a {kind.__name__} has no {self._name!r}: write {self._instead}",
            name=self._name,
            obj=handle,
        )


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


class Named:
    """What handles have in common: hints for other names, and a form for notebooks."""

    name: str
    _others: ClassVar[Mapping[str, str]] = {}

    def _repr_html_(self) -> str:
        """The state and its value for the current key; for a list or map the number of elements."""
        kind = next(c.__name__ for c in type(self).__mro__ if not c.__name__.startswith("_"))
        types = [getattr(self, name, None) for name in ("key_type", "type")]
        of: Any = self
        facts: dict[str, object] = {"kind": kind}
        facts["type"] = ", ".join(type_.ddl for type_ in types if type_ is not None) or None
        try:
            facts["key"] = shortened(repr(of.table.current_key()))
            if hasattr(type(self), "__len__"):
                facts["length"] = len(of)
            else:
                facts["value"] = shortened(repr(of.value() if hasattr(of, "value") else of.get()))
        except PystateError:
            # No key is current, or the state is closed.
            pass
        return panel(f"State {self.name}", facts)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        ours = [name for name in type.__dir__(cls) if not name.startswith("_") and "_" in name]
        others = {_camel(name): name for name in ours if hasattr(cls, name)}
        for name, instead in {**others, **cls._others}.items():
            if not hasattr(cls, name):
                setattr(cls, name, Elsewhere(name, instead))

    def __dir__(self) -> list[str]:
        members = [item for kind in type(self).__mro__ for item in vars(kind).items()]
        elsewhere = {name for name, each in members if isinstance(each, Elsewhere)}
        return sorted(set(super().__dir__()) - elsewhere)


class NoValue(Named):
    """Raises an error if it is used as if it were the value that it holds."""

    #: What reads the value, and what changes it.
    _reads: ClassVar[str] = "value()"
    _changes: ClassVar[str] = "update(value)"

    def __bool__(self) -> bool:
        """Refuse a condition, which would always be true."""
        self._refuse("a condition")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Named):
            return self is other
        self._refuse("a comparison")

    __hash__ = object.__hash__

    def _compare(self, other: Any) -> Any:
        self._refuse("a comparison")

    __lt__ = __le__ = __gt__ = __ge__ = _compare

    def _compute(self, *others: Any) -> Any:
        self._refuse("an expression")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _compute
    __truediv__ = __rtruediv__ = __floordiv__ = __mod__ = __neg__ = __int__ = __float__ = _compute

    def _change(self, other: Any) -> Any:
        raise WrongTypeError(
            f"state {self.name!r} is no variable that +=, or the like, could change: write "
            f".{self._changes}"
        )

    __iadd__ = __isub__ = __imul__ = __itruediv__ = __ifloordiv__ = __ior__ = _change

    def _refuse(self, where: str) -> NoReturn:
        raise WrongTypeError(
            f"state {self.name!r} stands in {where} itself, in place of its value: write "
            f".{self._reads}"
        )


#: Stands for an argument that was left out.
MISSING: Any = type("Missing", (), {"__slots__": (), "__repr__": lambda _: "<missing>"})()


class Objects(Protocol):
    """Python objects that a handle keeps until they are pickled, by the end of the epoch."""

    ttl: StateTtl | None
    """How they expire. The registry says it: an aggregate keeps its objects in another's handle."""

    @property
    def dirty(self) -> bool:
        """Whether any wait to be pickled."""

    def flush(
        self,
        make_batch: Callable[[list[Any]], KeyBatch],
        make_way: Callable[[int, int], None] | None = None,
    ) -> None:
        """Pickle what was updated and write it to the core.

        Before each piece `make_way` is told how many rows come, and how many bytes they have.
        """

    def write_early(self, write: Callable[[], None], most_bytes: int) -> None:
        """Have `write` flush, in the middle of the epoch, whenever about so many bytes wait."""

    def drop_read(self) -> None:
        """Drop what is kept but does not wait: it is read anew. Operations under way go on."""

    def forget(self, keys: KeyBatch) -> None:
        """Drop the objects of keys that were deleted."""

    def discard(self) -> None:
        """Drop everything that is kept; what was not flushed is lost."""


class StateHandle(ABC):
    """What a backend needs of every handle."""

    name: str
    table: core.Table
    column: int

    @property
    @abstractmethod
    def objects(self) -> Objects | None:
        """The Python objects that it keeps until the epoch ends, which are lost if it forgets them.

        None if it writes what it is given at once.
        """

    @abstractmethod
    def _exported(self, keys: KeyBatch) -> pa.Array[Any]:
        """The keys' states as a column of the declaration's `arrow_type`, without defaults.

        Objects are in pickled form.
        """

    def clear_all(self, keys: KeyBatch) -> None:
        """Clear the keys' states. A key whose last state is cleared ceases to exist."""
        self._checked(keys).clear(self.column)

    def _checked(self, keys: KeyBatch) -> KeyBatch:
        """The batch, if it is one of the table's."""
        return checked_batch(keys, self.table, self.name)


def batch_method_error(what: str, method: str, instead: str) -> InvalidArgumentError:
    """The error to raise if a method for batches is called as if it were for the current key."""
    return InvalidArgumentError(
        f"{what}: {method} is for a batch of keys; of the current key write {instead}"
    )


class Elements(Named, StateHandle, core.CollectionHandle):
    """Base of the handles of lists and maps."""

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

    @property
    def objects(self) -> None:
        """None: elements are pickled when they come."""
        return None

    def __len__(self) -> int:
        return self.count()

    def __bool__(self) -> bool:
        """Whether there is any element, as with Python's lists and dicts."""
        return self.count() > 0

    def _packed(self, value: Any) -> Any:
        return pickled(self.name, value) if self._pickles else value

    def _unpacked(self, values: list[Any]) -> list[Any]:
        if not self._pickles:
            return values
        return [None if v is None else unpickled(self.name, v) for v in values]

    def _column_of(
        self, values: Any, type: StateType, codec: core.Codec, what: str
    ) -> pa.Array[Any]:
        if type.is_object:
            if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
                raise WrongTypeError(f"{what}: objects come as a sequence, got {values!r:.80}")
            # None stays a null, which a map takes as a value; elsewhere the core names its row.
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
