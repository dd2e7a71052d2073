"""Reducing states: one value per key, into which others are reduced. Declaration and handle.

Thread safety: a declaration is immutable; a handle belongs to its table, and a table to one thread
at a time.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from pystate._core import core
from pystate.errors import DeclarationError, WrongTypeError
from pystate.state.aggregators import Operation
from pystate.state.columns import Column, value_column
from pystate.state.declaration import State, type_literal
from pystate.state.fold import (
    Fold,
    as_list,
    larger,
    smaller,
    sum_of,
)
from pystate.state.identity import function_name, stored_fold
from pystate.state.key_batch import KeyBatch
from pystate.state.ttl import StateTtl
from pystate.state.value import ValueHandle, ValueState
from pystate.types.arrays import decoded, encoded, is_many
from pystate.types.nested import codec_of
from pystate.types.state_type import TypeLike

#: Reduce functions that the core runs over columns.
_CORE: dict[Any, Operation] = {
    builtins.max: "max",
    builtins.min: "min",
    builtins.sum: "add",
    operator.add: "add",
}


class ReducingState(State["ReducingHandle"]):
    """Declares one value per key, into which others are reduced.

    Parameters
    ----------
    type : str, pyarrow.DataType or object
        The type of the values and of the result.
    function : callable
        ``function(a, b)`` makes one value of two; it must be associative. The builtins ``max``,
        ``min`` and ``sum`` and ``operator.add`` run in the core for numbers, ``max`` and ``min``
        also for dates and timestamps.
    ttl : StateTtl, optional
        When the value expires.

    Notes
    -----
    The function may read other states of the current key. If it makes another key current, or ends
    the epoch, `NoCurrentKeyError` is raised and nothing is written.

    Examples
    --------
    >>> import pystate as ps
    >>> ps.ReducingState("double", max)
    ReducingState('double', max)
    """

    __slots__ = ("_function",)

    _function: Callable[[Any, Any], Any]

    def __init__(
        self,
        type: TypeLike,
        function: Callable[[Any, Any], Any],
        *,
        ttl: StateTtl | None = None,
        previously: str | Sequence[str] = (),
    ) -> None:
        self._declare(type, ttl, previously)
        if not callable(function):
            raise DeclarationError(f"ReducingState: {function!r:.60} is no function of two values")
        if function in (builtins.sum, operator.add) and self._type.is_time:
            raise DeclarationError(
                f"ReducingState: there is no sum of values of type {self._type.ddl}; max and min "
                "there are, or a function of your own"
            )
        object.__setattr__(self, "_function", function)

    @property
    def function(self) -> Callable[[Any, Any], Any]:
        """The function that makes one value of two."""
        return self._function

    def _column(self, name: str) -> Column:
        return value_column(name, self._type)

    def handle(self, table: core.Table, column: int, name: str) -> ReducingHandle:
        """Make the state's handle."""
        return ReducingHandle(table, column, name, self)

    def _spelled(self) -> str:
        return stored_fold("ReducingState", self._type, function_name(self._function))

    @classmethod
    def from_stored(cls, stored: str) -> None:
        """None: files know only the name of the function, so that it is read as a `StoredFold`."""
        return None

    def _arguments(self) -> tuple[Any, ...]:
        return type_literal(self._type), self._function


class ReducingHandle(Fold):
    """A reduced value per key. `ReducingState` declares it.

    ``add``, ``get`` and ``clear`` work on the current key; the other methods on a `KeyBatch`.

    Attributes
    ----------
    name : str
        The state's name.
    type : StateType
        The values' type.
    """

    def __init__(
        self, table: core.Table, column: int, name: str, declaration: ReducingState
    ) -> None:
        super().__init__(table, column, name)
        self.type = declaration.type
        self._kept: ValueHandle = ValueState(declaration.type).handle(table, column, name)
        self._function = declaration.function
        operation = _CORE.get(declaration.function)
        self._operation = operation if self.type.is_number or self.type.is_time else None
        self._step: Callable[[Any, Any], Any] = declaration.function
        if self._operation == "add" or declaration.function is builtins.sum:
            self._step = sum_of
        if self._operation in ("min", "max"):
            # Like the core, where NaN is larger than any number.
            self._step = smaller if self._operation == "min" else larger
        self._codec = None if self.type.is_object else codec_of(self.type, name)
        self._normalize = None if self._codec is None else self._codec.normalize
        self.get = self._kept.value  # type: ignore[method-assign]
        self.clear = self._kept.clear

    def get(self) -> Any:
        """The current key's value; None if nothing was added."""
        return self._kept.value()

    def add(self, value: Any, /) -> None:
        """Reduce a value into the current key's.

        Raises
        ------
        WrongTypeError
            The value is None or of another type; nothing was written.
        NoCurrentKeyError
            The function made another key current, or ended the epoch; nothing was written.
        """
        if value is None:
            self._refuse_none(value)
        kept = self._kept
        if self._codec is not None:
            if not kept.reduce(value, self._step):
                self._refuse_none_result(kept.value(), value)
            return
        turn = self.table.turn
        old = kept.value()
        if old is not None:
            value = self._reduce(old, value)
            self.table.check_turn(turn, self.name)
        kept.update(value)

    def add_all(self, keys: KeyBatch, values: Any) -> None:
        """Reduce a value into each key's, in order, also where a key repeats.

        Parameters
        ----------
        keys : KeyBatch
            The keys to write to.
        values : array-like or scalar
            As many as there are keys, or one for all; nulls are skipped.
        """
        if self._operation is not None:
            getattr(self._kept, self._operation)(keys, values)
            return
        self._fold_all(keys, self._as_objects(values, len(self._checked(keys))), self._reduce)

    def _reduce(self, old: Any, value: Any) -> Any:
        if old is None:
            return value
        reduced = self._step(old, value)
        if reduced is None:
            self._refuse_none_result(old, value)
        return reduced

    def _refuse_none_result(self, old: Any, value: Any) -> NoReturn:
        raise WrongTypeError(
            f"state {self.name!r}: the function made None of {old!r:.40} and {value!r:.40}: it "
            "returns the reduced value"
        )

    def _as_objects(self, values: Any, rows: int) -> list[Any]:
        """The values as Python objects of the declared type, one for each row."""
        if not (isinstance(values, dict) if self.type.is_nested else not is_many(values)):
            if self._codec is None:
                return as_list(values)
            array = encoded(values, self.type, self._codec, f"state {self.name!r}")
            given: list[Any] = decoded(array, self.type, self._codec).to_pylist()
            return given
        if values is not None and self._normalize is not None:
            values = self._normalize(values)
        return [values] * rows

    def values(self, keys: KeyBatch) -> Any:
        """Copy the keys' values, null where nothing was added; objects as a list."""
        return self._kept.values(keys)

    def _merge(self, kept: Any) -> None:
        self.add(kept)
