"""Handles of reducing and aggregating states.

Thread safety: a handle belongs to its table, and a table to one thread at a time.
"""

from __future__ import annotations

import builtins
import decimal
import operator
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from pystate._core import core
from pystate.errors import WrongTypeError
from pystate.state.aggregators import AggregateFunction, Operation
from pystate.state.declarations import AggregatingState, ReducingState, ValueState
from pystate.state.habits import FOLD_NAMES, NoValue
from pystate.state.handles import KeyBatch, ObjectHandle, ValueHandle, checked_batch, copied
from pystate.types.arrays import check_rows, decoded, encoded, is_column, is_many, reference
from pystate.types.state_type import StateType

__all__ = ["AggregatingHandle", "ReducingHandle"]

#: Reduce functions that the core runs over columns.
_CORE: dict[Any, Operation] = {
    builtins.max: "max",
    builtins.min: "min",
    builtins.sum: "add",
    operator.add: "add",
}
#: More digits than two decimals of 38 can give: their sum is exact, and a column refuses it itself.
_EXACT = decimal.Context(prec=100)


def _value_handle(table: core.Table, column: int, name: str, type: StateType) -> ValueHandle:
    kind = ObjectHandle if type.is_object else ValueHandle
    return kind(table, column, name, ValueState(type))


class _Fold(NoValue):
    """What reducing and aggregating handles share: a value that others go into.

    `_kept` is that value's own handle; None where the core keeps an accumulator.
    """

    _kept: ValueHandle | None = None
    _reads = "get()"
    _changes = "add(value)"
    _others = FOLD_NAMES

    @property
    def _holder(self) -> Any:
        """The handle of the value that is kept."""
        return self._kept

    def __init__(self, table: core.Table, column: int, name: str) -> None:
        self.table = table
        self.column = column
        self.name = name

    def add(self, value: Any, /) -> None:
        """Add a value to the current key's."""
        raise NotImplementedError

    def get(self) -> Any:
        """The current key's result; None where nothing was added."""
        raise NotImplementedError

    def _merge(self, kept: Any) -> None:
        """Merge what a namespace kept into what the current one keeps."""
        raise NotImplementedError

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        """Merge the current key's state of the source namespaces into the target's, in order.

        The sources vanish. The current namespace stays.
        """
        current, turn = self.table.current_namespace(), self.table.turn
        target, sources = self.table.merged_namespaces(target, sources)
        self.table.check_turn(turn, self.name)
        try:
            for source in sources:
                self.table.set_namespace(source)
                kept = self._holder.value()
                if kept is None:
                    continue
                self.table.set_namespace(target)
                self._merge(kept)
                self.table.set_namespace(source)
                self._holder.clear()
        finally:
            self.table.set_namespace(current)

    def _exported(self, keys: KeyBatch) -> pa.Array[Any]:
        """The keys' values, or their results where they have none; objects as they are pickled."""
        assert self._kept is not None
        return self._kept._exported(keys)

    def _checked(self, keys: KeyBatch) -> KeyBatch:
        return checked_batch(keys, self.table, self.name)

    def _refuse_none(self, value: Any) -> None:
        if value is None:
            raise WrongTypeError(f"state {self.name!r}: None cannot be added")

    def __reduce__(self) -> Any:
        raise WrongTypeError(f"state {self.name!r}: a handle cannot be pickled or copied")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


def _fold_in_order(
    keys: KeyBatch, values: list[Any], kept: list[Any], step: Callable[[Any, Any], Any]
) -> list[Any]:
    """What each row's key holds after all rows; a repeated key sees its earlier rows."""
    latest: dict[Any, Any] = {}
    names = keys._normal_keys()
    for name, old in zip(names, kept, strict=True):
        latest.setdefault(name, old)
    for name, value in zip(names, values, strict=True):
        latest[name] = step(latest[name], value)
    return [latest[name] for name in names]


def _without_nulls(keys: KeyBatch, values: list[Any]) -> tuple[KeyBatch, list[Any]]:
    """The rows that have a value: of the others nothing is written, and no time moves."""
    rows = [i for i, value in enumerate(values) if value is not None]
    if len(rows) == len(values):
        return keys, values
    at = pa.array(rows, pa.int64())
    taken = KeyBatch(keys.table, [column.take(at) for column in keys._columns()], keys._types)
    return taken, [values[i] for i in rows]


class ReducingHandle(_Fold):
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
        self._kept: ValueHandle = _value_handle(table, column, name, declaration.type)
        self._function = declaration.function
        core = _CORE.get(declaration.function)
        self._operation = core if self.type.is_number or self.type.is_time else None
        self._step: Callable[[Any, Any], Any] = declaration.function
        if self._operation == "add" or declaration.function is builtins.sum:
            self._step = _sum
        if self._operation in ("min", "max"):
            # As the core does, in which NaN is larger than any number.
            self._step = _smaller if self._operation == "min" else _larger
        self._codec = None if self.type.is_object else self.type.codec(name)
        self._normalize = None if self._codec is None else self._codec.normalize
        self.get = self._kept.value  # type: ignore[method-assign]
        self.clear = self._kept.clear

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
                self._refuse_made(kept.value(), value)
            return
        turn = self.table.turn
        old = kept.value()
        if old is not None:
            value = self._reduced(old, value)
            self.table.check_turn(turn, self.name)
        kept.update(value)

    def add_all(self, keys: KeyBatch, values: Any) -> None:
        """Reduce a value into each key's, in order, also where a key repeats; nulls are skipped."""
        if self._operation is not None:
            getattr(self._kept, self._operation)(keys, values)
            return
        self._checked(keys)
        given = self._given(values, len(keys))
        check_rows(given, len(keys), f"state {self.name!r}")
        keys, given = _without_nulls(keys, given)
        kept = self._kept.values(keys)
        listed = kept if isinstance(kept, list) else kept.to_pylist()

        def step(old: Any, value: Any) -> Any:
            return value if old is None else self._reduced(old, value)

        self._kept.update_all(keys, _fold_in_order(keys, given, listed, step))

    def _reduced(self, old: Any, value: Any) -> Any:
        made = self._step(old, value)
        if made is None:
            self._refuse_made(old, value)
        return made

    def _refuse_made(self, old: Any, value: Any) -> NoReturn:
        raise WrongTypeError(
            f"state {self.name!r}: the function made None of {old!r:.40} and {value!r:.40}: it "
            "returns the reduced value"
        )

    def _given(self, values: Any, rows: int) -> list[Any]:
        """The values as the scalar form has them: of the declared type, one for each row."""
        if not (isinstance(values, dict) if self.type.is_nested else not is_many(values)):
            if self._codec is None:
                return _listed(values)
            array = encoded(values, self.type, self._codec, f"state {self.name!r}")
            given: list[Any] = decoded(array, self.type, self._codec).to_pylist()
            return given
        if values is not None and self._normalize is not None:
            values = self._normalize(values)
        return [values] * rows

    def values(self, keys: KeyBatch) -> Any:
        """Copy the keys' values, null where nothing was added; objects as a list."""
        return self._kept.values(keys)

    def clear_all(self, keys: KeyBatch) -> None:
        """Clear the keys' values."""
        self._kept.clear_all(keys)

    def _merge(self, kept: Any) -> None:
        self.add(kept)


class AggregatingHandle(_Fold):
    """An aggregate per key. `AggregatingState` declares it.

    ``add``, ``get`` and ``clear`` work on the current key; the other methods on a `KeyBatch`.
    Nulls are skipped in columns; adding None alone is an error.

    Attributes
    ----------
    name : str
        The state's name.
    """

    def __new__(
        cls, table: core.Table, column: int, name: str, declaration: AggregatingState
    ) -> AggregatingHandle:
        """Choose what runs the aggregate."""
        kind: type[AggregatingHandle]
        if declaration.bound is None:
            kind = _PythonAggregate
        elif declaration.bound.column is not None:
            kind = _ColumnAggregate
        else:
            kind = _CoreAggregate
        return super().__new__(kind)

    def __init__(
        self, table: core.Table, column: int, name: str, declaration: AggregatingState
    ) -> None:
        super().__init__(table, column, name)
        self.declaration = declaration

    def add_all(self, keys: KeyBatch, values: Any) -> None:
        """Add a value to each key's aggregate, in order, also where a key repeats.

        Parameters
        ----------
        keys : KeyBatch
            Where to.
        values : array-like or scalar
            As many as there are keys, or one for all.
        """
        raise NotImplementedError

    def results(self, keys: KeyBatch) -> Any:
        """Compute the keys' results: an Arrow array of the aggregate's result type.

        Of an `AggregateFunction` a list, None where nothing was added.
        """
        raise NotImplementedError

    def clear_all(self, keys: KeyBatch) -> None:
        """Clear the keys' aggregates."""
        self._checked(keys).clear(self.column)


class _ColumnAggregate(AggregatingHandle):
    """Count, sum, minimum or maximum: a value that the core updates."""

    def __init__(
        self, table: core.Table, column: int, name: str, declaration: AggregatingState
    ) -> None:
        super().__init__(table, column, name, declaration)
        bound = declaration.bound
        assert bound is not None and bound.column is not None
        self._kept: ValueHandle = _value_handle(table, column, name, bound.column)
        self._operation = bound.aggregator.operation
        self._counts = (
            self._operation == "add"
            and bound.column.name == "long"
            and (type(bound.aggregator).__name__ == "Count")
        )
        self._codec = declaration.type.codec(name) if not declaration.type.is_object else None
        self.clear = self._kept.clear

    def add(self, value: Any, /) -> None:
        """Add a value to the current key's."""
        if value is None:
            self._refuse_none(value)
        kept, turn = self._kept, self.table.turn
        if self._codec is not None:
            value = self._codec.normalize(value)
            self.table.check_turn(turn, self.name)
        old = kept.value()
        if self._counts:
            kept.update(1 if old is None else old + 1)
        elif old is None:
            kept.update(value)
        elif self._operation == "add":
            kept.update(_sum(old, value))
        else:
            better = _less(value, old) if self._operation == "min" else _less(old, value)
            if better or self.declaration.ttl is not None:
                kept.update(value if better else old)

    def get(self) -> Any:
        """The current key's result."""
        value = self._kept.value()
        return 0 if value is None and self._counts else value

    def add_all(self, keys: KeyBatch, values: Any) -> None:
        """Add a value to each key's aggregate."""
        self._checked(keys)
        # Refused where it is not of the declared type, then widened to the sum's.
        what = f"state {self.name!r}"
        if is_many(values):
            if self._codec is not None:
                values = encoded(values, self.declaration.type, self._codec, what)
            if self._counts:
                check_rows(values, len(keys), what)
                values = _ones(values)
        elif values is not None:
            if self._codec is not None:
                values = self._codec.normalize(values)
            if self._counts:
                values = 1
        getattr(self._kept, self._operation or "add")(keys, values)

    def results(self, keys: KeyBatch) -> Any:
        """Compute the keys' results."""
        array = self._kept.values(keys)
        return array.fill_null(0) if self._counts else array

    def _merge(self, kept: Any) -> None:
        mine = self._kept.value()
        if mine is not None and self._operation == "add":
            # What is kept is wider than what is added.
            kept = _sum(mine, kept)
        elif mine is not None:
            better = _smaller if self._operation == "min" else _larger
            kept = better(mine, kept)
        self._kept.update(kept)


def _sum(a: Any, b: Any) -> Any:
    # Python rounds decimals to 28 digits.
    if isinstance(a, decimal.Decimal) and isinstance(b, decimal.Decimal):
        return _EXACT.add(a, b)
    return a + b


def _listed(values: Any) -> list[Any]:
    """A column or sequence as Python values."""
    if is_column(values) and not isinstance(values, (pa.Array, pa.ChunkedArray)):
        values = pa.array(values)
    return values.to_pylist() if hasattr(values, "to_pylist") else list(values)


def _less(a: Any, b: Any) -> bool:
    # NaN is larger than any number, as in Spark.
    if a != a:
        return False
    return bool(b != b or a < b)


def _smaller(a: Any, b: Any) -> Any:
    return b if _less(b, a) else a


def _larger(a: Any, b: Any) -> Any:
    return b if _less(a, b) else a


def _ones(values: Any) -> pa.Array[Any]:
    """A one for each value that is not null."""
    if not is_column(values):
        valid = np.array([value is not None for value in values], np.bool_)
    else:
        array = values if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values)
        valid = np.asarray(array.is_valid())
    return pa.array(np.ones(len(valid), np.int64), mask=~valid)


class _CoreAggregate(AggregatingHandle):
    """An accumulator that the core changes."""

    def __init__(
        self, table: core.Table, column: int, name: str, declaration: AggregatingState
    ) -> None:
        super().__init__(table, column, name, declaration)
        bound = declaration.bound
        assert bound is not None
        self._bound = bound
        self._codec = declaration.type.codec(name)
        self._accumulator = core.Accumulator(
            table, column, self._codec, bound.aggregator.kind, bound.aggregator.parameter
        )
        raw = declaration.columns(name)[0]
        codec = raw.codec
        assert codec is not None
        self._raw = core.ScalarHandle(table, column, codec, None)
        self.clear = self._raw.clear

    @property
    def _holder(self) -> Any:
        """The handle of the accumulator."""
        return self._raw

    def add(self, value: Any, /) -> None:
        """Add a value to the current key's."""
        if value is None:
            self._refuse_none(value)
        self._accumulator.add(value)

    def get(self) -> Any:
        """The current key's result."""
        return self._bound.result_of(self._raw.value())

    def add_all(self, keys: KeyBatch, values: Any) -> None:
        """Add a value to each key's aggregate."""
        what, type_ = f"state {self.name!r}", self.declaration.type
        self._checked(keys)
        alone = not is_many(values)
        array = encoded([values] if alone else values, type_, self._codec, what)
        if not alone:
            check_rows(array, len(keys), what)
        self._accumulator.add_all(keys, reference(array, type_))

    def results(self, keys: KeyBatch) -> Any:
        """Compute the keys' results."""
        self._checked(keys)
        width = self._bound.width
        if width is not None:
            states = np.zeros((len(keys), width), np.uint8)
            valid = np.empty(len(keys), np.uint8)
            keys.get(self.column, states.ctypes.data, valid.ctypes.data)
            return self._bound.results(states)
        array = copied(
            StateType("binary"),
            len(keys),
            lambda values, valid: None,
            lambda offsets, valid: keys.get_bytes(self.column, offsets, valid),
        )
        return self._bound.results(array)

    def _exported(self, keys: KeyBatch) -> pa.Array[Any]:
        results: pa.Array[Any] = self.results(keys)
        return results

    def _merge(self, kept: Any) -> None:
        self._accumulator.merge(kept)


class _PythonAggregate(AggregatingHandle):
    """An `AggregateFunction`: its accumulators are objects."""

    def __init__(
        self, table: core.Table, column: int, name: str, declaration: AggregatingState
    ) -> None:
        super().__init__(table, column, name, declaration)
        aggregate = declaration.aggregate
        assert isinstance(aggregate, AggregateFunction)
        self._aggregate: AggregateFunction[Any, Any, Any] = aggregate
        self._kept: ObjectHandle = ObjectHandle(table, column, name, ValueState(object))
        self.clear = self._kept.clear

    def _plus(self, accumulator: Any, value: Any) -> Any:
        if accumulator is None:
            accumulator = self._aggregate.create()
        return self._made("add", self._aggregate.add(accumulator, value))

    def _made(self, method: str, accumulator: Any) -> Any:
        if accumulator is None:
            raise WrongTypeError(
                f"state {self.name!r}: {method} of {type(self._aggregate).__name__} returned None: "
                "it returns the accumulator"
            )
        return accumulator

    def add(self, value: Any, /) -> None:
        """Add a value to the current key's."""
        if value is None:
            self._refuse_none(value)
        turn = self.table.turn
        made = self._plus(self._kept.value(), value)
        self.table.check_turn(turn, self.name)
        self._kept.update(made)

    def get(self) -> Any:
        """The current key's result."""
        accumulator = self._kept.value()
        return None if accumulator is None else self._aggregate.result(accumulator)

    def add_all(self, keys: KeyBatch, values: Any) -> None:
        """Add a value to each key's aggregate."""
        rows = len(self._checked(keys))
        given = _listed(values) if is_many(values) else [values] * rows
        check_rows(given, rows, f"state {self.name!r}")
        keys, given = _without_nulls(keys, given)
        kept = self._kept.values(keys)
        self._kept.update_all(keys, _fold_in_order(keys, given, kept, self._plus))

    def results(self, keys: KeyBatch) -> list[Any]:
        """Compute the keys' results."""
        return [
            None if accumulator is None else self._aggregate.result(accumulator)
            for accumulator in self._kept.values(keys)
        ]

    def clear_all(self, keys: KeyBatch) -> None:
        """Clear the keys' aggregates."""
        self._kept.clear_all(keys)

    def _merge(self, kept: Any) -> None:
        turn = self.table.turn
        mine = self._kept.value()
        if mine is not None:
            kept = self._made("merge", self._aggregate.merge(mine, kept))
            self.table.check_turn(turn, self.name)
        self._kept.update(kept)
