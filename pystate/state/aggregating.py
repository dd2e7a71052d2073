"""Aggregating states: an aggregate per key. The declaration, its columns and handles.

Thread safety: a declaration is immutable; a handle belongs to its table, and a table to one thread
at a time.
"""

from __future__ import annotations

import builtins
import copy
import json
import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pystate._core import core
from pystate.errors import DeclarationError, WrongTypeError
from pystate.state import aggregators
from pystate.state.aggregators import AggregateFunction, Aggregator, BoundAggregator
from pystate.state.columns import Column, column_of, value_column
from pystate.state.declaration import State, type_literal
from pystate.state.fold import (
    Fold,
    as_list,
    larger,
    less,
    smaller,
    sum_of,
)
from pystate.state.identity import class_name, stored_aggregate, stored_fold
from pystate.state.key_batch import KeyBatch, Step, read_array_of, read_in_parts
from pystate.state.ttl import StateTtl
from pystate.state.value import ObjectHandle, ValueHandle, ValueState
from pystate.types.arrays import bitmap, check_rows, encoded, is_column, is_many, reference
from pystate.types.nested import codec_of
from pystate.types.state_type import StateType, TypeLike

if TYPE_CHECKING:
    from typing_extensions import Self

#: The core's numbers of steps.
_OPERATIONS = {"add": 1, "min": 2, "max": 3}
_BINARY, _OBJECT = StateType("binary"), StateType("object")
#: How a checkpoint's metadata spells an accumulator, and the aggregators that may own it.
_SPELLING = re.compile(r"#(\w+)\((?:\w+=(True|False|0|[1-9][0-9]*))?\) of (.*)")
_AGGREGATORS: dict[str, Any] = {
    name: kind
    for name, kind in vars(aggregators).items()
    # Of an alias such as dict[str, int], Python 3.10 says that it is a type.
    if type(kind) is type and issubclass(kind, Aggregator) and kind is not Aggregator
}


class AggregatingState(State["AggregatingHandle"]):
    """Declares an aggregate per key.

    Parameters
    ----------
    aggregate : Aggregator or AggregateFunction
        `Count()`, `Sum()`, `Min()`, `Max()`, `Mean()`, `Variance()`, `First()`, `Last()`,
        `TopK(k)`, `ApproxDistinct()`, which run in the core; or an object of a class of your own
        with ``create``, ``add``, ``merge`` and ``result``.
    type : str or pyarrow.DataType
        The type of the values that are added. An `AggregateFunction` takes values of any type, and
        ignores it.
    ttl : StateTtl, optional
        When the aggregate expires.

    Examples
    --------
    >>> import pystate as ps
    >>> ps.AggregatingState(ps.Mean())
    AggregatingState(Mean(), 'double')
    >>> ps.AggregatingState(ps.TopK(3), "long")
    AggregatingState(TopK(k=3), 'long')
    """

    __slots__ = ("_aggregate", "_bound")

    _aggregate: Aggregator | AggregateFunction[Any, Any, Any]
    _bound: BoundAggregator | None

    def __init__(
        self,
        aggregate: Aggregator | AggregateFunction[Any, Any, Any],
        type: TypeLike = "double",
        *,
        ttl: StateTtl | None = None,
        previously: str | Sequence[str] = (),
    ) -> None:
        own = isinstance(aggregate, AggregateFunction)
        if not own and not isinstance(aggregate, Aggregator):
            hint = "; pass an object of it" if isinstance(aggregate, builtins.type) else ""
            raise DeclarationError(
                f"AggregatingState: {aggregate!r:.60} is no Aggregator or AggregateFunction{hint}"
            )
        self._declare(_OBJECT if own else type, ttl, previously)
        bound = aggregate.bind(self._type) if isinstance(aggregate, Aggregator) else None
        object.__setattr__(self, "_aggregate", aggregate)
        object.__setattr__(self, "_bound", bound)

    @property
    def aggregate(self) -> Aggregator | AggregateFunction[Any, Any, Any]:
        """The declared aggregate."""
        return self._aggregate

    @property
    def bound(self) -> BoundAggregator | None:
        """The aggregate bound to its type, for the core; None for an `AggregateFunction`."""
        return self._bound

    def stored_default(self) -> str | None:
        """Return the result where nothing was added, as JSON: a count has one."""
        return "0" if isinstance(self._aggregate, aggregators.Count) else None

    def _column(self, name: str) -> Column:
        bound = self._bound
        if bound is None:
            return value_column(name, _OBJECT)
        if bound.column is not None:
            return value_column(name, bound.column)
        return _accumulator_column(name, bound)

    def handle(self, table: core.Table, column: int, name: str) -> AggregatingHandle:
        """Make the state's handle: what runs the aggregate."""
        kind: type[AggregatingHandle]
        if self._bound is None:
            kind = _PythonAggregate
        elif self._bound.column is not None:
            kind = ColumnAggregate
        else:
            kind = _CoreAggregate
        return kind(table, column, name, self)

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of the results; bytes (pickled accumulators) for an `AggregateFunction`."""
        return self._type.arrow if self._bound is None else self._bound.result_type

    @property
    def accumulator_type(self) -> pa.DataType:
        """The type of what is kept: of `AggregatingHandle.accumulators` in the core."""
        bound = self._bound
        if bound is None or bound.column is not None:
            return self.arrow_type
        return pa.binary() if bound.width is None else pa.binary(bound.width)

    def _spelled(self) -> str:
        if self._bound is None:
            return stored_fold("AggregatingState", _OBJECT, class_name(self._aggregate))
        return _shown(self._bound)

    @classmethod
    def from_stored(cls, stored: str) -> Self | None:
        """Return the aggregate that was stored under this spelling, unless it is of the user's."""
        parts = _SPELLING.fullmatch(stored)
        if parts is None:
            return None
        aggregator = _AGGREGATORS.get(parts[1])
        if aggregator is None:
            raise DeclarationError(f"{stored!r}: this version knows no aggregate {parts[1]}")
        arguments = () if parts[2] is None else (json.loads(parts[2].lower()),)
        return cls(aggregator(*arguments), parts[3])

    def _arguments(self) -> tuple[Any, ...]:
        if self._bound is None:
            return (self._aggregate,)
        return self._aggregate, type_literal(self._type)


def _accumulator_column(name: str, bound: BoundAggregator) -> Column:
    """The column of an aggregator's accumulators: structs of fixed width, or bytes."""
    shown = _shown(bound)
    if bound.width is None:
        return column_of(name, _BINARY)._replace(ddl=shown)
    codec = core.Codec(name, core.FIXED, 0, 0, shown)
    return Column(name, core.FIXED, ddl=shown, width=bound.width, codec=codec)


def _shown(bound: BoundAggregator) -> str:
    return stored_aggregate(bound.aggregator, bound.input.ddl)


class AggregatingHandle(Fold):
    """An aggregate per key. `AggregatingState` declares it.

    ``add``, ``get`` and ``clear`` work on the current key; the other methods on a `KeyBatch`.
    Nulls in columns are skipped; adding a single None is an error.

    Attributes
    ----------
    name : str
        The state's name.
    """

    def __init__(
        self, table: core.Table, column: int, name: str, declaration: AggregatingState
    ) -> None:
        super().__init__(table, column, name)
        self.declaration = declaration

    @abstractmethod
    def add_all(self, keys: KeyBatch, values: Any) -> None:
        """Add a value to each key's aggregate, in order, also where a key repeats.

        Parameters
        ----------
        keys : KeyBatch
            The keys to write to.
        values : array-like or scalar
            As many as there are keys, or one for all.
        """

    @abstractmethod
    def results(self, keys: KeyBatch) -> Any:
        """Compute the keys' results: an Arrow array of the aggregate's result type.

        For an `AggregateFunction` a list, with None where nothing was added.
        """

    @abstractmethod
    def accumulators(self, keys: KeyBatch) -> Any:
        """The keys' accumulators in the form that `merge_all` takes; null where nothing was added.

        An Arrow array; for an `AggregateFunction` a list of the objects themselves, which must not
        be changed.
        """

    @abstractmethod
    def merge_all(self, keys: KeyBatch, accumulators: Any) -> None:
        """Merge an accumulator into each key's, in order, also where a key repeats.

        Parameters
        ----------
        keys : KeyBatch
            The keys to write to.
        accumulators : pyarrow.Array or list
            As `accumulators` gives them, of this or another handle of the same declaration; nulls
            are skipped.

        Raises
        ------
        StateOverflowError
            A sum left its type's range. The epoch can then only be rolled back.
        """


class ColumnAggregate(AggregatingHandle):
    """Count, sum, minimum or maximum: a value that the core updates."""

    def __init__(
        self, table: core.Table, column: int, name: str, declaration: AggregatingState
    ) -> None:
        super().__init__(table, column, name, declaration)
        bound = declaration.bound
        assert bound is not None and bound.column is not None
        self._kept: ValueHandle = ValueState(bound.column).handle(table, column, name)
        self._operation = bound.aggregator.operation
        self._counts = (
            self._operation == "add"
            and bound.column.name == "long"
            and (type(bound.aggregator).__name__ == "Count")
        )
        self._codec = codec_of(declaration.type, name) if not declaration.type.is_object else None
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
            kept.update(sum_of(old, value))
        else:
            better = less(value, old) if self._operation == "min" else less(old, value)
            if better or self.declaration.ttl is not None:
                kept.update(value if better else old)

    def get(self) -> Any:
        """The current key's result."""
        value = self._kept.value()
        return 0 if value is None and self._counts else value

    def add_all(self, keys: KeyBatch, values: Any) -> None:
        """Add a value to each key's aggregate."""
        step = self.step(self._checked(keys), values)
        keys.apply(*step)

    def step(self, keys: KeyBatch, values: Any) -> Step:
        """What `apply_steps` does for `add_all`."""
        # First checked against the declared type, then widened to the sum's type.
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
        return self.merge_step(keys, values)

    def merge_step(self, keys: KeyBatch, accumulators: Any) -> Step:
        """What `apply_steps` does for `merge_all`."""
        return self._kept.step(keys, _OPERATIONS[self._operation or "add"], accumulators)

    @property
    def kept(self) -> ValueHandle:
        """The handle of the values."""
        return self._kept

    def finished(self, values: pa.Array[Any]) -> pa.Array[Any]:
        """The results that these values are."""
        return values.fill_null(0) if self._counts else values

    def results(self, keys: KeyBatch) -> Any:
        """Compute the keys' results."""
        return self.finished(self._kept.values(keys))

    def accumulators(self, keys: KeyBatch) -> Any:
        """The columns' values."""
        return self._kept.values(keys)

    def merge_all(self, keys: KeyBatch, accumulators: Any) -> None:
        """Merge an accumulator into each key's."""
        step = self.merge_step(keys, accumulators)  # this also checks that it is a batch
        keys.apply(*step)

    def _merge(self, kept: Any) -> None:
        mine = self._kept.value()
        if mine is not None and self._operation == "add":
            # The stored type is wider than the type of the added values.
            kept = sum_of(mine, kept)
        elif mine is not None:
            better = smaller if self._operation == "min" else larger
            kept = better(mine, kept)
        self._kept.update(kept)


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
        self._codec = codec_of(declaration.type, name)
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
        if value is None:
            self._refuse_none(value)
        self._accumulator.add(value)

    def get(self) -> Any:
        return self._bound.result_of(self._raw.value())

    def add_all(self, keys: KeyBatch, values: Any) -> None:
        what, type_ = f"state {self.name!r}", self.declaration.type
        self._checked(keys)
        alone = not is_many(values)
        array = encoded([values] if alone else values, type_, self._codec, what)
        if not alone:
            check_rows(array, len(keys), what)
        self._accumulator.add_all(keys, reference(array, type_))

    def results(self, keys: KeyBatch) -> Any:
        self._checked(keys)
        if self._bound.width is not None:
            return self._bound.results(self._fixed(keys)[0])
        return self._bound.results(self._variable(keys))

    def accumulators(self, keys: KeyBatch) -> Any:
        self._checked(keys)
        width = self._bound.width
        if width is None:
            return self._variable(keys)
        states, valid = self._fixed(keys)
        nulls = len(keys) - int(np.count_nonzero(valid))
        buffers = [bitmap(valid) if nulls else None, pa.py_buffer(states)]
        return pa.Array.from_buffers(pa.binary(width), len(keys), buffers, nulls)

    def merge_all(self, keys: KeyBatch, accumulators: Any) -> None:
        self._checked(keys)
        check_rows(accumulators, len(keys), f"state {self.name!r}")
        width = self._bound.width
        if width is None:
            self._accumulator.merge_all(keys, reference(accumulators, _BINARY))
            return
        validity, values = accumulators.buffers()
        self._accumulator.merge_all(
            keys,
            core.ArrayRef(
                core.FIXED,
                0,
                len(accumulators),
                accumulators.offset,
                validity.address if accumulators.null_count else 0,
                values.address if len(accumulators) else 0,
                0,
                accumulators,
                width,
            ),
        )

    def _fixed(self, keys: KeyBatch) -> tuple[Any, Any]:
        """Accumulators of fixed width, zeros where there is none, and which there are."""
        states = np.zeros((len(keys), self._bound.width or 0), np.uint8)
        valid = np.empty(len(keys), np.uint8)
        width = states.shape[1]

        def read(part: KeyBatch, rows: slice) -> None:
            at = rows.start
            part.get(self.column, states.ctypes.data + at * width, valid.ctypes.data + at)

        read_in_parts(keys, read)
        return states, valid

    def _variable(self, keys: KeyBatch) -> pa.Array[Any]:
        return read_array_of(
            keys,
            _BINARY,
            lambda *_: None,
            lambda part, _, offsets, valid: part.get_bytes(self.column, offsets, valid),
        )

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
        return self._checked_accumulator("add", self._aggregate.add(accumulator, value))

    def _checked_accumulator(self, method: str, accumulator: Any) -> Any:
        if accumulator is None:
            raise WrongTypeError(
                f"state {self.name!r}: {method} of {type(self._aggregate).__name__} returned None: "
                "it returns the accumulator"
            )
        return accumulator

    def add(self, value: Any, /) -> None:
        if value is None:
            self._refuse_none(value)
        turn = self.table.turn
        accumulator = self._plus(self._kept.value(), value)
        self.table.check_turn(turn, self.name)
        self._kept.update(accumulator)

    def get(self) -> Any:
        accumulator = self._kept.value()
        return None if accumulator is None else self._aggregate.result(accumulator)

    def add_all(self, keys: KeyBatch, values: Any) -> None:
        given = as_list(values) if is_many(values) else [values] * len(self._checked(keys))
        self._fold_all(keys, given, self._plus)

    def results(self, keys: KeyBatch) -> list[Any]:
        return [
            None if accumulator is None else self._aggregate.result(accumulator)
            for accumulator in self._kept.values(keys)
        ]

    def accumulators(self, keys: KeyBatch) -> Any:
        return self._kept.values(keys)

    def merge_all(self, keys: KeyBatch, accumulators: Any) -> None:
        self._fold_all(keys, list(accumulators), self._merged_copy)

    def _merged_copy(self, mine: Any, other: Any) -> Any:
        # An accumulator may be changed by what merges it, and the source's may still be in use.
        other = copy.deepcopy(other)
        return (
            other
            if mine is None
            else self._checked_accumulator("merge", self._aggregate.merge(mine, other))
        )

    def _merge(self, kept: Any) -> None:
        turn = self.table.turn
        mine = self._kept.value()
        if mine is not None:
            kept = self._checked_accumulator("merge", self._aggregate.merge(mine, kept))
            self.table.check_turn(turn, self.name)
        self._kept.update(kept)
