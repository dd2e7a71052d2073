"""The aggregates of windows: declared by users, kept as states, given as result columns.

Declarations are immutable; `Columns` belongs to its operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from pystate.base.arguments import nearest, shown
from pystate.errors import (
    DeclarationError,
    InvalidArgumentError,
    StateOverflowError,
    WrongTypeError,
)
from pystate.operators.functions.aggregates import Aggregate
from pystate.operators.windows.grid import Mask, Times
from pystate.state.aggregating import AggregatingHandle, AggregatingState, ColumnAggregate
from pystate.state.aggregators import AggregateFunction, Aggregator, Count, Max, Mean, Min, Sum
from pystate.state.key_batch import (
    KeyBatch,
    Step,
    apply_steps,
    overflowing_key,
    read_arrays,
    read_longs,
)
from pystate.state.value import ValueHandle
from pystate.tables.backend import KeyedStateBackend
from pystate.types.state_type import parse_type

__all__ = ["ROWS", "AggregateLike", "Columns", "WindowColumn", "aggregated"]

#: ``ps.sum("x")``; ``(ps.TopK(3), "x")``; ``(Own(), "x", "long")``, with the result's type.
AggregateLike: TypeAlias = "Aggregate | tuple[Any, ...]"

#: The state that counts a window's rows, if no aggregate does.
ROWS = "window.rows"

_SHORT: dict[str, type[Aggregator]] = {
    "count": Count,
    "sum": Sum,
    "min": Min,
    "max": Max,
    "mean": Mean,
}
_HOW = (
    "write ps.count(), ps.sum('x'), or a pair of an aggregator and a column, (ps.TopK(3), 'x'); "
    "of an AggregateFunction also the result's type, (Own(), 'x', 'long')"
)


@dataclass(frozen=True)
class WindowColumn:
    """One result column of windows.

    Attributes
    ----------
    name : str
        The result's and the state's name.
    state : AggregatingState
        What is kept.
    source : str or None
        The input column; None to count rows.
    result : pyarrow.DataType
        The result's type.
    """

    name: str
    state: AggregatingState
    source: str | None
    result: pa.DataType

    @property
    def counts_rows(self) -> bool:
        """Whether it is the number of rows."""
        return self.source is None

    @property
    def subtracts(self) -> bool:
        """Whether what was added can be taken away again, exactly: counts, and sums of integers."""
        bound = self.state.bound
        return (
            bound is not None
            and bound.column is not None
            and bound.column.name == "long"
            and bound.aggregator.operation == "add"
        )


def aggregated(
    aggregates: Mapping[str, AggregateLike], schema: pa.Schema, owner: str
) -> tuple[WindowColumn, ...]:
    """Turn what a user asked for into columns.

    Parameters
    ----------
    aggregates : mapping of str to aggregate
        By result column.
    schema : pyarrow.Schema
        The input's columns.
    owner : str
        What errors name.

    Raises
    ------
    InvalidArgumentError
        An aggregate is none, or its column does not exist.
    WrongTypeError
        A column's type has no such aggregate.
    """
    if not aggregates:
        raise InvalidArgumentError(f"{owner}: name at least one aggregate, e.g. n=ps.count()")
    return tuple(_column(n, given, schema, owner) for n, given in aggregates.items())


def _column(name: str, given: Any, schema: pa.Schema, owner: str) -> WindowColumn:
    what = f"{owner}: {name}={shown(given)}"
    result = None
    aggregate: Any
    if isinstance(given, Aggregate):
        aggregate, source = _SHORT[given.kind](), given.column
    elif isinstance(given, tuple) and len(given) in (2, 3) and isinstance(given[1], str):
        aggregate, source = given[0], given[1]
        if len(given) == 3:
            result = parse_type(given[2], f"{what}: the result").arrow
    else:
        raise InvalidArgumentError(f"{what} is no aggregate of a window: {_HOW}")
    own = isinstance(aggregate, AggregateFunction)
    if not own and not isinstance(aggregate, Aggregator):
        raise InvalidArgumentError(f"{what} is no aggregate of a window: {_HOW}")
    if own and result is None:
        raise InvalidArgumentError(f"{what}: of an AggregateFunction say the result's type: {_HOW}")
    if source is None:
        return WindowColumn(name, AggregatingState(Count(), "long"), None, pa.int64())
    if source not in schema.names:
        raise InvalidArgumentError(
            f"{what}: there is no column {source!r}; columns: {', '.join(schema.names)}"
            f"{nearest(source, schema.names)}"
        )
    if own:
        assert result is not None
        return WindowColumn(name, AggregatingState(aggregate), source, result)
    type_ = parse_type(schema.field(source).type, f"{what}: column {source!r}")
    try:
        state = AggregatingState(aggregate, type_.arrow if isinstance(aggregate, Count) else type_)
    except DeclarationError as error:
        raise WrongTypeError(f"{what}: {error}") from None
    return WindowColumn(name, state, source, result or state.arrow_type)


class Columns:
    """The aggregates of one operator in one backend.

    Parameters
    ----------
    columns : sequence of WindowColumn
        The result columns; one of them counts rows.
    results : int
        How many of them, from the first, are results.
    backend : KeyedStateBackend
        Where they are kept.
    owner : str
        What errors name.
    """

    #: Whether the keys are numbers of windows that are folded.
    _folding = False

    def __init__(
        self,
        columns: Sequence[WindowColumn],
        results: int,
        backend: KeyedStateBackend,
        owner: str,
    ) -> None:
        self._columns = columns
        self._results = results
        self._owner = owner
        self._handles: list[AggregatingHandle] = [
            backend.register(column.name, column.state) for column in columns
        ]
        pairs = list(zip(columns, self._handles, strict=True))
        counter: Any = next(handle for column, handle in pairs if column.counts_rows)
        self.rows: ColumnAggregate = counter
        self._others = [pair for pair in pairs if pair[1] is not counter]
        self._scratch: KeyedStateBackend | None = None

    def add(self, keys: KeyBatch, rows: pa.RecordBatch) -> Mask:
        """Add rows to the aggregates of their keys.

        Returns
        -------
        numpy.ndarray of bool
            Where a row began a window or slice: the first one of its key.
        """
        steps = [self.rows.step(keys, 1)]  # the first: it says what is new
        for column, handle in self._others:
            values = 1 if column.source is None else rows.column(column.source)
            if isinstance(handle, ColumnAggregate):
                steps.append(handle.step(keys, values))
                continue
            try:
                handle.add_all(keys, values)
            except StateOverflowError as error:
                raise self._overflowed(error, keys, column.name) from None
        try:
            return apply_steps(keys, steps)
        except StateOverflowError as error:
            # The error names the state, which has the column's name.
            raise self._overflowed(error, keys) from None

    def _overflowed(
        self, error: StateOverflowError, keys: KeyBatch, column: str | None = None
    ) -> StateOverflowError:
        """The error with the operator, and the key unless keys are those of windows that fire."""
        where = self._owner if self._folding else f"{self._owner}: {overflowing_key(error, keys)}"
        return StateOverflowError(f"{where}: {'' if column is None else column + ': '}{error}")

    @property
    def names(self) -> list[str]:
        """The names of the states, one per column."""
        return [handle.name for handle in self._handles]

    def exist(self, keys: KeyBatch) -> Mask:
        """Which keys have a window or slice."""
        found: Mask = np.asarray(self.rows.accumulators(keys).is_valid())
        return found

    def accumulators(self, keys: KeyBatch) -> list[Any]:
        """The accumulators of some keys, one entry per column."""
        found = self.kept(keys)
        return [
            found[handle.name] if handle.name in found else handle.accumulators(keys)
            for handle in self._handles
        ]

    def kept(self, keys: KeyBatch, more: Sequence[ValueHandle] = ()) -> dict[str, pa.Array[Any]]:
        """What columns are to the core, and some other states, by name; read together."""
        handles = [h.kept for h in self._handles if isinstance(h, ColumnAggregate)]
        handles = [h for h in handles if not h.type.is_bytes] + list(more)
        arrays = read_arrays(keys, [(h.column, h.type) for h in handles])
        return dict(zip((h.name for h in handles), arrays, strict=True))

    def numbers(
        self, keys: KeyBatch, more: Sequence[ValueHandle] = ()
    ) -> dict[str, tuple[Times, Mask]]:
        """As `kept`, where all are longs: the values, 0 for none, and where there are values."""
        handles = [h.kept for h in self._handles if isinstance(h, ColumnAggregate)] + list(more)
        found = read_longs(keys, [(h.column, h.type) for h in handles])
        return dict(zip((h.name for h in handles), found, strict=True))

    def merge(self, keys: KeyBatch, accumulators: Sequence[Any], more: Sequence[Step] = ()) -> None:
        """Merge accumulators into those of some keys, and take more steps."""
        steps = [*more, *self._merged(keys, accumulators, range(len(self._columns)))]
        try:
            keys.apply_all(steps)
        except StateOverflowError as error:
            raise self._overflowed(error, keys) from None

    def add_combined(self, keys: KeyBatch, accumulators: Sequence[Any]) -> Mask:
        """As `add`, for rows that stand for several each, of which these are the accumulators."""
        counter = self._handles.index(self.rows)
        steps = [self.rows.merge_step(keys, accumulators[counter])]
        others = [i for i in range(len(self._columns)) if i != counter]
        steps += self._merged(keys, accumulators, others)
        try:
            return apply_steps(keys, steps)
        except StateOverflowError as error:
            raise self._overflowed(error, keys) from None

    def _merged(
        self, keys: KeyBatch, accumulators: Sequence[Any], which: Iterable[int]
    ) -> list[Step]:
        """Merge what the core's steps cannot; return the steps for the rest."""
        steps = []
        for i in which:
            handle = self._handles[i]
            if isinstance(handle, ColumnAggregate):
                steps.append(handle.merge_step(keys, accumulators[i]))
                continue
            try:
                handle.merge_all(keys, accumulators[i])
            except StateOverflowError as error:
                raise self._overflowed(error, keys, self._columns[i].name) from None
        return steps

    def results(self, keys: KeyBatch) -> list[pa.Array[Any]]:
        """The results of some keys, one array per result column."""
        return self.results_of(keys, self.kept(keys))

    def results_of(
        self, keys: KeyBatch | None, kept: Mapping[str, pa.Array[Any]]
    ) -> list[pa.Array[Any]]:
        """The results of some keys, of which `kept` was read; without them, that is all."""
        found = []
        pairs = list(zip(self._columns, self._handles, strict=True))[: self._results]
        for column, handle in pairs:
            values: Any
            if isinstance(handle, ColumnAggregate) and handle.name in kept:
                values = handle.finished(kept[handle.name])
            else:
                assert keys is not None
                values = handle.results(keys)
            if isinstance(values, list):
                try:
                    values = pa.array(values, column.result)
                except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                    raise WrongTypeError(
                        f"{self._owner}: {column.name}: result() of "
                        f"{type(column.state.aggregate).__name__} is no {column.result}: {error}"
                    ) from None
            found.append(values if values.type == column.result else values.cast(column.result))
        return found

    def folded(
        self, groups: np.ndarray[Any, np.dtype[np.int64]], accumulators: Sequence[Any]
    ) -> tuple[list[Any], list[pa.Array[Any]]]:
        """Merge accumulators by group, in order.

        Parameters
        ----------
        groups : numpy.ndarray of int64
            The group of each accumulator, from 0 on.
        accumulators : sequence
            As `accumulators` gives them.

        Returns
        -------
        tuple of list
            The accumulators and the results of the groups 0 to the last one.
        """
        if self._scratch is None:
            self._scratch = KeyedStateBackend("long", uid="windows that fire", max_parallelism=1)
            self._folds = Columns(self._columns, self._results, self._scratch, self._owner)
            self._folds._folding = True
        try:
            self._folds.merge(self._scratch.keys(pa.array(groups)), accumulators)
            count = int(groups.max()) + 1 if len(groups) else 0
            keys = self._scratch.keys(pa.array(np.arange(count)))
            return self._folds.accumulators(keys), self._folds.results(keys)
        finally:
            self._scratch.rollback()

    def close(self) -> None:
        """Free what windows are folded in."""
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None
