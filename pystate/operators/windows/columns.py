"""The aggregates of windows: declared by users, kept as states, given as result columns.

Sums of integers and decimals may leave their range; floats become infinite. The core finds the rows
that would make them do so while it adds to columns. What it cannot try is tried here: means of long
decimals, and rows whose place depends on whether they are taken, as those of sessions.

Declarations are immutable; `Columns` belongs to its operator.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pystate.base.arguments import nearest, shown
from pystate.errors import (
    DeclarationError,
    InvalidArgumentError,
    StateOverflowError,
    WrongTypeError,
)
from pystate.operators.functions.aggregates import Aggregate
from pystate.operators.runtime.grouping import keys_at
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
from pystate.types.key_codes import key_codes
from pystate.types.state_type import parse_type

#: By row 0, or 1 + the column of the state that the row would make overflow.
Refused: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"
#: The numbers of some rows; None for all of them.
Some: TypeAlias = "Times | None"
#: Further steps of some keys, which are those of some rows.
MoreSteps: TypeAlias = Callable[[KeyBatch, Some], "list[Step]"]

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
#: Sums of decimals of more digits may overflow, those of means leave 128 bits.
MOST_DIGITS = 28


@dataclass(frozen=True)
class WindowColumn:
    """One result column of windows."""

    name: str
    """The result's and the state's name."""
    state: AggregatingState
    source: str | None
    """The input column; None to count rows."""
    result: pa.DataType
    """The result's type."""

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


def parse_aggregates(
    aggregates: Mapping[str, AggregateLike], schema: pa.Schema, owner: str
) -> tuple[WindowColumn, ...]:
    """Turn what a user asked for, by result column, into columns; `schema` is the input's."""
    if not aggregates:
        raise InvalidArgumentError(f"{owner}: name at least one aggregate, e.g. n=ps.count()")
    return tuple(_column(n, given, schema, owner) for n, given in aggregates.items())


def _column(name: str, given: Any, schema: pa.Schema, owner: str) -> WindowColumn:
    said = str(given) if isinstance(given, Aggregate) else shown(given)
    what = f"{owner}: {name}={said}"
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
        raise WrongTypeError(
            f"{what}: {error}: cast column {source!r} before key_by, or name another one"
        ) from None
    return WindowColumn(name, state, source, result or state.arrow_type)


class Columns:
    """The aggregates of one operator in one backend.

    One of the columns counts rows; so many, from the first, are `results`.
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
        self._backend = backend
        self._ranges = [range_of(column.state) for column in columns]
        #: Sums that the core does not try.
        self._wide = [
            i
            for i, (handle, within) in enumerate(zip(self._handles, self._ranges, strict=True))
            if within is not None and not isinstance(handle, ColumnAggregate)
        ]
        self._scratch: KeyedStateBackend | None = None

    def add(self, keys: KeyBatch, rows: pa.RecordBatch, refused: Refused | None = None) -> Mask:
        """Add rows to the aggregates of their keys; return where a row began a window or slice.

        That is the first one of its key. `refused` is not 0 where a row is to be left out. It
        becomes 1 + the column of a sum's state where a row would make it overflow: such a row is
        left out as a whole.
        """
        given = [1 if c.source is None else rows.column(c.source) for c in self._columns]
        return self._take(keys, given, refused, adds=True)

    def add_combined(
        self, keys: KeyBatch, accumulators: Sequence[Any], refused: Refused | None = None
    ) -> Mask:
        """As `add`, for rows that stand for several each, of which these are the accumulators."""
        return self._take(keys, accumulators, refused)

    def merge(
        self,
        keys: KeyBatch,
        accumulators: Sequence[Any],
        more: MoreSteps | None = None,
        refused: Refused | None = None,
    ) -> None:
        """Merge accumulators into those of some keys, and take more steps."""
        self._take(keys, accumulators, refused, more)

    def _take(
        self,
        keys: KeyBatch,
        given: Sequence[Any],
        refused: Refused | None,
        more: MoreSteps | None = None,
        *,
        adds: bool = False,
    ) -> Mask:
        """Add values, or merge accumulators, row by row; see `add`."""
        codes = np.zeros(len(keys), np.uint8) if refused is None else refused
        fails = refused is None and self._wide
        for i in self._wide:
            self._note_too_large(keys, i, given[i], codes, adds=adds)
        if fails and codes.any():
            raise self._overflowed(self._beyond(codes), keys)
        some, own = self._accepted(keys, codes)
        steps, others = [], []
        counter = self.counter
        for i in [counter, *(i for i in range(len(given)) if i != counter)]:
            handle, values = self._handles[i], pick(given[i], some)
            if not isinstance(handle, ColumnAggregate):
                others.append((i, handle, values))
            elif adds:
                steps.append(handle.step(own, values))  # the counter's says what is new
            else:
                steps.append(handle.merge_step(own, values))
        steps += more(own, some) if more is not None else []
        now = None if refused is None else np.zeros(len(own), np.uint8)
        try:
            fresh = self._stepped(own, steps, now, noted=adds or given[counter].null_count == 0)
        except StateOverflowError as error:
            # The error names the state, which has the column's name.
            raise self._overflowed(error, own) from None
        left, last = None, own
        if now is not None and now.any():
            left, last = self._accepted(own, now)
        for i, handle, values in others:
            try:
                take = handle.add_all if adds else handle.merge_all
                take(last, pick(values, left))
            except StateOverflowError as error:
                raise self._overflowed(error, last, self._columns[i].name) from None
        if some is None:
            if now is not None:
                codes[:] = now
            return fresh
        if now is not None:
            codes[some] = now
        whole = np.zeros(len(keys), np.bool_)
        whole[some] = fresh
        return whole

    def _stepped(
        self, keys: KeyBatch, steps: Sequence[Step], refused: Refused | None, *, noted: bool
    ) -> Mask:
        if noted:
            return apply_steps(keys, steps, refused)
        # What is new can only be said of rows that all count.
        keys.apply_all(list(steps), 0, 0 if refused is None else refused.ctypes.data)
        return np.zeros(len(keys), np.bool_)

    def _accepted(self, keys: KeyBatch, refused: Refused) -> tuple[Some, KeyBatch]:
        """The rows that are not refused, and their keys; None for all of them."""
        if not refused.any():
            return None, keys
        some = np.flatnonzero(refused == 0)
        return some, keys_at(self._backend, keys, some)

    def _note_too_large(
        self, keys: KeyBatch, i: int, given: Any, refused: Refused, *, adds: bool
    ) -> None:
        """Note rows that would make a mean's sum overflow."""
        handle, within = self._handles[i], self._ranges[i]
        assert within is not None
        if adds:
            bound = self._columns[i].state.bound
            assert bound is not None
            given = given.cast(bound.input.arrow)
        columns = keys.key_arrays()
        if keys.table.has_namespaces:
            columns = [*columns, keys.namespaces()]
        bad = too_large(key_codes(columns), handle.accumulators(keys), given, within)
        if bad is not None:
            refused[bad & (refused == 0)] = 1 + handle.column

    def why(self, code: int) -> str:
        """What a row would do that was refused with a code."""
        for column, handle, within in zip(self._columns, self._handles, self._ranges, strict=True):
            if within is not None and handle.column == code - 1:
                return f"would take {column.name!r} beyond the range of {within.name}"
        raise AssertionError(f"no sum is in column {code - 1}")

    def _beyond(self, refused: Refused) -> StateOverflowError:
        row = int(np.flatnonzero(refused)[0])
        error = StateOverflowError(f"a row {self.why(int(refused[row]))}")
        error.row = row
        return error

    def _overflowed(
        self, error: StateOverflowError, keys: KeyBatch, column: str | None = None
    ) -> StateOverflowError:
        """The error with the operator, and the key unless keys are those of windows that fire."""
        where = self._owner if self._folding else f"{self._owner}: {overflowing_key(error, keys)}"
        return StateOverflowError(f"{where}: {'' if column is None else column + ': '}{error}")

    @property
    def counter(self) -> int:
        """Which aggregate counts rows."""
        return self._handles.index(self.rows)

    def codes_of(self, beyond: Mapping[int, Mask], rows: int) -> Refused:
        """What refuses rows of which a sum of some aggregate is beyond its range already."""
        refused = np.zeros(rows, np.uint8)
        for i, bad in beyond.items():
            refused[bad & (refused == 0)] = 1 + self._handles[i].column
        return refused

    def given(self, rows: pa.RecordBatch) -> list[Any]:
        """What rows add to each sum that may overflow, and None for other aggregates."""
        given: list[Any] = []
        for column, within in zip(self._columns, self._ranges, strict=True):
            values = None
            if within is not None and column.source is not None:
                bound = column.state.bound
                assert bound is not None
                values = rows.column(column.source).cast(bound.input.arrow)
                if pa.types.is_integer(values.type):
                    values = values.cast(pa.int64())
            given.append(values)
        return given

    @property
    def may_overflow(self) -> bool:
        """Whether there is a sum that can."""
        return any(within is not None for within in self._ranges)

    def near_end(
        self, codes: Times, given: Sequence[Any], stored_codes: Times, stored: Sequence[Any]
    ) -> Mask | None:
        """The rows whose keys have sums of which some may overflow; None if there is none.

        The codes are dense numbers of the keys: of the rows, and of what is stored of these. By
        aggregate, `given` is what the rows add, and `stored` what is kept.
        """
        many = int(codes.max(initial=-1)) + 1
        near = np.zeros(many, np.bool_)
        for within, more, kept in zip(self._ranges, given, stored, strict=True):
            if within is not None:
                size = np.bincount(codes, sizes(more), many)
                size += np.bincount(stored_codes, sizes(kept), many)
                near |= size >= within.most / 2
        return near[codes] if near.any() else None

    def excess(self, given: Sequence[Any], stored: Sequence[Any]) -> int:
        """The code of the first sum that overflows while all of this is added; 0 if none.

        What is stored comes first, in its order: so it is merged.
        """
        for handle, within, more, kept in zip(
            self._handles, self._ranges, given, stored, strict=True
        ):
            if within is None:
                continue
            sums = itertools.accumulate([*wholes(kept), *wholes(more)])
            if any(not within.least <= each <= within.most for each in sums):
                return int(1 + handle.column)
        return 0

    @property
    def names(self) -> list[str]:
        """The names of the states, one per column."""
        return [handle.name for handle in self._handles]

    def exist(self, keys: KeyBatch) -> Mask:
        """Which keys have a window or slice."""
        exist: Mask = np.asarray(self.rows.accumulators(keys).is_valid())
        return exist

    def accumulators(self, keys: KeyBatch) -> list[Any]:
        """The accumulators of some keys, one entry per column."""
        kept = self.kept(keys)
        return [
            kept[handle.name] if handle.name in kept else handle.accumulators(keys)
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
        pairs = read_longs(keys, [(h.column, h.type) for h in handles])
        return dict(zip((h.name for h in handles), pairs, strict=True))

    def results(self, keys: KeyBatch) -> list[pa.Array[Any]]:
        """The results of some keys, one array per result column."""
        return self.results_of(keys, self.kept(keys))

    def results_of(
        self, keys: KeyBatch | None, kept: Mapping[str, pa.Array[Any]]
    ) -> list[pa.Array[Any]]:
        """The results of some keys, of which `kept` was read; without them, that is all."""
        results = []
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
            results.append(values if values.type == column.result else values.cast(column.result))
        return results

    def folded(
        self,
        groups: np.ndarray[Any, np.dtype[np.int64]],
        accumulators: Sequence[Any],
        refused: Refused | None = None,
    ) -> tuple[list[Any], list[pa.Array[Any]]]:
        """Merge accumulators by group, in order; return those of all groups, and their results.

        `refused` is, as for `add`, of accumulators that would make a sum overflow.
        """
        if self._scratch is None:
            self._scratch = KeyedStateBackend("long", uid="windows that fire", max_parallelism=1)
            self._folds = Columns(self._columns, self._results, self._scratch, self._owner)
            self._folds._folding = True
        try:
            self._folds.merge(self._scratch.keys(pa.array(groups)), accumulators, None, refused)
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


def pick(values: Any, some: Some) -> Any:
    """Some of an Arrow array's or a list's values; a value for all rows stays one."""
    if some is None or not isinstance(values, (list, pa.Array)):
        return values
    if isinstance(values, list):
        return [values[i] for i in some.tolist()]
    numbers: Any = pa.array(some)
    return values.take(numbers)


class Range(NamedTuple):
    """What a sum may be."""

    least: int
    most: int
    name: str


def range_of(state: AggregatingState) -> Range | None:
    """The range of an aggregate's sum; None where no sum can leave it."""
    aggregate, bound = state.aggregate, state.bound
    if bound is None:
        return None
    if isinstance(aggregate, Sum) and bound.column is not None:
        kept = bound.column
        if kept.name == "decimal":
            most = 10**kept.precision - 1
            return Range(-most, most, kept.ddl)
        return Range(-(1 << 63), (1 << 63) - 1, "long") if kept.name == "long" else None
    wide = bound.input.name == "decimal" and bound.input.precision > MOST_DIGITS
    if isinstance(aggregate, Mean) and wide:
        return Range(-(1 << 127), (1 << 127) - 1, "a sum of 128 bits")
    return None


def wholes(values: pa.Array[Any]) -> list[int]:
    """Longs, unscaled decimals or the sums of a mean's accumulators; 0 for null."""
    if pa.types.is_integer(values.type):
        numbers: Any = values.fill_null(0)
        return list(numbers.to_pylist())
    low, high = _words(values)
    return [(h << 64) | w for h, w in zip(high.tolist(), low.tolist(), strict=True)]


def sizes(values: pa.Array[Any]) -> npt.NDArray[np.float64]:
    """How large they are, about."""
    if pa.types.is_integer(values.type):
        return np.abs(values.fill_null(0).to_numpy().astype(np.float64))
    low, high = _words(values)
    return np.abs(high.astype(np.float64) * 2.0**64 + low.astype(np.float64))


def _words(values: pa.Array[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The lower and the upper, signed, words of 128 bits; 0 for null."""
    width = 2 if pa.types.is_decimal(values.type) else 3
    buffer: Any = values.buffers()[1]
    data = np.frombuffer(buffer, np.uint64)
    words = data[: len(data) // width * width].reshape(-1, width)
    words = words[values.offset : values.offset + len(values)][:, width - 2 :]
    none = np.asarray(values.is_null())
    low, high = (np.where(none, np.uint64(0), words[:, i]) for i in (0, 1))
    return low, high.view(np.int64)


def too_large(
    codes: npt.NDArray[np.int64], stored: pa.Array[Any], given: pa.Array[Any], within: Range
) -> npt.NDArray[np.bool_] | None:
    """The rows that make their keys' sums leave a range, in order; None if none does.

    `stored` is the sum of each row's key before, `given` what the row adds.
    """
    if not len(codes) or sizes(stored).max() + sizes(given).sum() < within.most / 2:
        return None
    bad = np.zeros(len(codes), np.bool_)
    sums: dict[int, int] = {}
    for i, (code, before, more) in enumerate(
        zip(codes.tolist(), wholes(stored), wholes(given), strict=True)
    ):
        total = sums.get(code, before) + more
        if within.least <= total <= within.most:
            sums[code] = total
        else:
            bad[i] = True
    return bad if bad.any() else None
