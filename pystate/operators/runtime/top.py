"""The first rows of each key by the order of some columns. No Python runs per row.

Thread safety: a `TopSpec` is immutable; a `TopRows` belongs to one task and thread.

Invariants
----------
1. The state of a key holds its best rows of all epochs, at most `k`, the best one first. Of rows
   that are equal in the order's columns, the one that came first is better.
2. A key whose best rows are `k` has a bar, the first column of the last of them as a number. A row
   that is below the bar cannot enter. So what most rows cost is one look-up.
3. The bar's name says what it belongs to: under another order or another `k` there is none yet.
4. Only keys whose rows change are written, and these are the ones that are emitted.
5. Where a later row replaces an earlier one (`TopSpec.by_key`), a row that is among the best may
   become worse, and the next one takes its place. So all rows of a key are kept (`LatestRows`), and
   there is no bar.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pystate.base.arguments import flag, integer, shown, text
from pystate.checkpoint.refs import INPUT
from pystate.errors import InvalidArgumentError, WrongTypeError
from pystate.operators.runtime.grouping import expand, take_rows
from pystate.operators.runtime.late_rows import PROCESS_LATE
from pystate.operators.runtime.row_operator import (
    LATEST,
    Added,
    Flags,
    LatestRows,
    Longs,
    Merged,
    RowInput,
    RowLists,
    RowOperation,
    RowOperator,
    RowSpec,
    columns_of,
    distinct,
)
from pystate.operators.runtime.task import TaskContext
from pystate.state.declaration import State
from pystate.state.key_batch import KeyBatch
from pystate.state.value import ValueState
from pystate.types.state_type import StateType, parse_type

TOP = "top"
#: Rows of an output batch, about.
_OUTPUT_ROWS = 65_536

#: Types that a 64-bit integer represents in their order.
_NUMBERS = (
    *("boolean", "byte", "short", "int", "long", "float", "double"),
    *("date", "timestamp", "timestamp_ntz"),
)
_RANKED = ("decimal", "string", "binary")


def has_order(type: StateType) -> bool:
    """Whether rows can be ordered by a column of the type."""
    return type.name in _NUMBERS or type.name in _RANKED


class By(NamedTuple):
    """A column of the order."""

    column: str
    descending: bool


@dataclass(frozen=True)
class Top(RowOperation):
    """``keyed.top(k, by, descending=..., rank=..., by_key=...)``, for a harness.

    Over updates, such as the counts of ``aggregate``, `by_key` names the columns of the aggregate's
    key that are not columns of this one.
    """

    k: int
    by: str | Sequence[str]
    descending: bool | Sequence[bool] = True
    rank: str = "rank"
    by_key: str | Sequence[str] | None = None

    method = "top"
    instead = "Name the columns that say which row replaces which, top(..., by_key='column')"

    def spec(self, rows: RowInput) -> TopSpec:
        """See `RowOperation.spec`."""
        what = f"{rows.owner}: {self.method}"
        integer(self.k, f"{what}: k", least=1, most=(1 << 31) - 1)
        rank = text(self.rank, f"{what}: rank")
        if rank.lower() in (name.lower() for name, _ in rows.columns):
            raise InvalidArgumentError(
                f"{what}: the input has a column {rank!r}: give the one with the ranks another "
                "name, rank='place'"
            )
        columns = tuple(rows.stored_columns(what))
        order = self._order(rows, what)
        identity = self._identity(rows, what)
        for name, _ in order:
            if not has_order(dict(columns)[name]):
                raise WrongTypeError(
                    f"{what}: by={name!r} is {rows.type_text(name)}, which has no order here: "
                    "numbers, strings, binaries, booleans, dates and timestamps have"
                )
        return TopSpec(rows.key, self.k, order, columns, rank, rows.event_time, rows.late, identity)

    @property
    def updates_problem(self) -> None:
        """Updates replace one another by their identity."""
        return None

    @property
    def names_identity(self) -> bool:
        """Whether `by_key` does."""
        return self.by_key is not None

    def _order(self, rows: RowInput, what: str) -> tuple[By, ...]:
        given = [self.by] if isinstance(self.by, str) else self.by
        if not isinstance(given, (list, tuple)) or not given:
            raise InvalidArgumentError(
                f"{what}: by is the name of a column, or a list of names, not {shown(self.by)}"
            )
        if isinstance(self.descending, (list, tuple)):
            downs = [flag(each, f"{what}: descending") for each in self.descending]
        else:
            downs = [flag(self.descending, f"{what}: descending")] * len(given)
        if len(downs) != len(given):
            raise InvalidArgumentError(
                f"{what}: descending has {len(downs)} values for {len(given)} columns of by"
            )
        order: list[By] = []
        for each, down in zip(given, downs, strict=True):
            name, *below = rows.find(each, "top: by")
            if below:
                raise InvalidArgumentError(
                    f"{what}: by={each!r} is a field of a struct: make it a column first, "
                    f"df.withColumn({below[-1]!r}, df[{each!r}])"
                )
            if name in rows.names:
                raise InvalidArgumentError(
                    f"{what}: by={each!r} is a column of the key, which all of its rows share"
                )
            if name in (column for column, _ in order):
                raise InvalidArgumentError(f"{what}: by names {name!r} twice")
            order.append(By(name, down))
        return tuple(order)

    def _identity(self, rows: RowInput, what: str) -> tuple[str, ...] | None:
        """The columns that, with the key, say which row replaces which; None if none does."""
        if self.by_key is None:
            known = rows.identity()
            return None if known is None else tuple(n for n in known if n not in rows.names)
        given = [self.by_key] if isinstance(self.by_key, str) else self.by_key
        if not isinstance(given, (list, tuple)) or not given:
            raise InvalidArgumentError(
                f"{what}: by_key is the name of a column, or a list of names, not "
                f"{shown(self.by_key)}"
            )
        names: list[str] = []
        for each in given:
            name, *below = rows.find(each, "top: by_key")
            if below or not has_order(rows.stored_type(name, what)):
                kind = "a field of a struct" if below else rows.type_text(name)
                raise InvalidArgumentError(
                    f"{what}: by_key={each!r} is {kind}: numbers, strings, binaries, booleans, "
                    "dates and timestamps can say which row replaces which; make such a column of "
                    "it first"
                )
            if name not in rows.names and name not in names:
                names.append(name)
        return tuple(names)


@dataclass(frozen=True)
class TopSpec(RowSpec):
    """Which rows are the best; pickled for the workers."""

    key: tuple[str, ...]
    k: int
    """The most rows of a key."""
    by: tuple[By, ...]
    """The order; a null comes after all values."""
    columns: tuple[tuple[str, StateType], ...]
    """The other columns of a row, among them those of the order."""
    rank: str = "rank"
    """The column of the output that numbers a key's rows from 1."""
    event_time: str | None = None
    late: str = PROCESS_LATE
    by_key: tuple[str, ...] | None = None
    """The columns, beside the key, that say which thing a row tells of: a later row of the same
    thing replaces the earlier one. None if each row is a thing of its own.
    """

    def states(self) -> Mapping[str, State[Any]]:
        """The operator's states."""
        if self.by_key is not None:
            return {LATEST: RowLists.declared(self.columns)}
        states: dict[str, State[Any]] = {TOP: RowLists.declared(self.columns)}
        if self.bar is not None:
            states[self.bar] = ValueState("long")
        return states

    def make(self) -> RowOperator:
        """The operator of one task."""
        return TopRows(self) if self.by_key is None else TopLatest(self)

    @property
    def added(self) -> tuple[Added]:
        """The ranks."""
        return (Added(self.rank, parse_type("int"), nullable=False),)

    @property
    def replaced_by(self) -> tuple[str, ...]:
        """A later epoch has another row of that rank."""
        return (self.rank,)

    @property
    def bar(self) -> str | None:
        """The state of the bars; None if the order's first column is not a number."""
        if dict(self.columns)[self.by[0].column].name not in _NUMBERS:
            return None
        order = ",".join(f"{name} {'desc' if down else 'asc'}" for name, down in self.by)
        return f"bar of {self.k} by {order}".replace("#", "%23").replace("\0", "%00")


class TopRows(RowOperator):
    """Keeps the best rows of each key, and emits those of keys where they changed."""

    asks_for_changed = True
    _spec: TopSpec

    def open(self, task: TaskContext) -> None:
        """Register the states."""
        super().open(task)
        states, bar = self._spec.states(), self._spec.bar
        self._top = RowLists(self._backend, TOP, self._spec.columns, task.owner)
        self._bar = None if bar is None else self._backend.register(bar, states[bar])

    def process(self, rows: pa.RecordBatch, input: str = INPUT) -> Iterator[pa.RecordBatch]:
        """Handle some rows; nothing is emitted yet."""
        rows = self.on_time(rows)
        if rows.num_rows:
            self._enter(rows)
        return iter(())

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Emit the rows of each key where they changed, in order, with their ranks."""
        names = [*self._spec.key, *(name for name, _ in self._spec.columns), self._spec.rank]
        for keys in self._backend.changed(max(1, _OUTPUT_ROWS // self._spec.k)):
            rows, sizes = self._top.read(keys)
            owners, ranks = expand(np.ones(len(sizes), np.int64), sizes)
            arrays = [
                *take_rows(keys.key_arrays(), owners),
                *rows.values(),
                pa.array(ranks, pa.int32()),
            ]
            yield pa.RecordBatch.from_arrays(arrays, names=names)

    # -- one batch

    def _enter(self, rows: pa.RecordBatch) -> None:
        spec = self._spec
        own = self._top.cast(rows)
        keys = self._backend.keys(columns_of(rows, spec.key))
        entering = self._above_bar(keys, own[spec.by[0].column])
        if not len(entering):
            return
        # The keys that they have, numbered from 0.
        heads, numbers = distinct(keys.first_rows()[entering], len(keys))
        columns = keys.key_arrays()
        touched = self._backend.keys(take_rows(columns, heads))
        stored, sizes = self._top.read(touched)
        # Stored rows come before those of the batch, which is their order where they are equal.
        owners = np.concatenate([np.repeat(np.arange(len(heads)), sizes), numbers])
        at: Any = pa.array(entering)
        rows_of = {
            name: pa.concat_arrays([array, own[name].take(at)]) for name, array in stored.items()
        }
        first_by, *more_by = spec.by
        score = _score(rows_of[first_by.column], first_by.descending)
        more = [(rows_of[name], down) for name, down in more_by]
        best = _best(owners, len(heads), score, more, spec.k)
        changed = _changed(best, sizes)
        if not changed.any():
            return
        written = changed[owners[best.rows]]
        place = best.rows[written]
        sizes = best.sizes[changed]
        to = touched
        if not changed.all():
            to = self._backend.keys(take_rows(columns, heads[changed]))
        now = zip(rows_of, take_rows(list(rows_of.values()), place), strict=True)
        self._top.write(to, dict(now), sizes)
        if self._bar is not None:
            lowest = place[np.cumsum(sizes) - 1]
            none = sizes < spec.k
            if score.unknown is not None:
                none = none | score.unknown[lowest]
            self._bar.update_all(to, pa.array(score.values[lowest], mask=none))

    def _above_bar(self, keys: KeyBatch, column: pa.Array[Any]) -> Longs:
        """The rows that may enter."""
        if self._bar is None:
            return np.arange(len(keys))
        bars = self._bar.values(keys)
        if bars.null_count == len(bars):
            return np.arange(len(keys))
        score = _score(column, self._spec.by[0].descending)
        bar = bars.fill_null(0).to_numpy()
        # Where the first column decides alone, a row that is only as good comes too late.
        above = score.values > bar if len(self._spec.by) == 1 else score.values >= bar
        if score.unknown is not None:
            above &= ~score.unknown
        if bars.null_count:
            above |= bars.is_null().to_numpy(zero_copy_only=False)
        return np.flatnonzero(above)


class TopLatest(RowOperator):
    """The same where a later row of a thing replaces the earlier one."""

    _spec: TopSpec

    def open(self, task: TaskContext) -> None:
        """Register the state."""
        super().open(task)
        spec = self._spec
        assert spec.by_key is not None
        self._latest = LatestRows(self._backend, spec.key, spec.by_key, spec.columns, task.owner)

    def process(self, rows: pa.RecordBatch, input: str = INPUT) -> Iterator[pa.RecordBatch]:
        """Handle some rows; nothing is emitted yet."""
        rows = self.on_time(rows)
        if rows.num_rows:
            self._latest.hold(rows)
        return iter(())

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Emit the best rows of each key where they changed, in order, with their ranks."""
        for merged in self._latest.merge():
            yield from self._emitted(merged)

    def _emitted(self, merged: Merged) -> Iterator[pa.RecordBatch]:
        before = self._best(merged, np.arange(merged.stored))
        now = self._best(merged, np.flatnonzero(merged.counts))
        changed = _differ(before, now)
        written = changed[now.owners]
        rows, owners = now.rows[written], now.owners[written]
        ranks = now.ranks[written] + 1
        names = [*self._spec.key, *(name for name, _ in self._spec.columns), self._spec.rank]
        keys = merged.keys.key_arrays()
        for begin in range(0, len(rows), _OUTPUT_ROWS):
            piece = slice(begin, begin + _OUTPUT_ROWS)
            owned: Any = pa.array(owners[piece])
            place: Any = pa.array(rows[piece])
            arrays = [
                *(column.take(owned) for column in keys),
                *(merged.rows[name].take(place) for name, _ in self._spec.columns),
                pa.array(ranks[piece], pa.int32()),
            ]
            yield pa.RecordBatch.from_arrays(arrays, names=names)

    def _best(self, merged: Merged, among: Longs) -> _Best:
        """The best of some rows, by their places among all."""
        at: Any = pa.array(among)
        first, *more_by = self._spec.by
        score = _score(merged.rows[first.column].take(at), first.descending)
        more = [(merged.rows[name].take(at), down) for name, down in more_by]
        owners = merged.owners[among]
        best = _best(owners, len(merged.keys), score, more, self._spec.k)
        return best._replace(rows=among[best.rows])


def _differ(one: _Best, other: _Best) -> Flags:
    """The keys whose best rows are others."""
    changed: Flags = one.sizes != other.sizes
    mine = ~changed[one.owners], ~changed[other.owners]
    left, right = one.rows[mine[0]], other.rows[mine[1]]
    changed[one.owners[mine[0]][left != right]] = True
    return changed


class _Score(NamedTuple):
    """How good rows are by one column: the larger the better."""

    values: Longs
    unknown: Flags | None
    """The rows where it is null, if there are any."""


def _score(column: pa.Array[Any], descending: bool) -> _Score:
    unknown = None
    if column.null_count:
        unknown = column.is_null().to_numpy(zero_copy_only=False)
    kind = column.type
    if pa.types.is_floating(kind):
        values = _of_floats(column.cast(pa.float64()))
    elif pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_decimal(kind):
        # Bytes in their own order, which for UTF-8 is that of the characters.
        options = pc.RankOptions("ascending", tiebreaker="dense")
        ranks = pc.call_function("rank", [column], options)
        values = ranks.to_numpy().astype(np.int64)
    else:
        if pa.types.is_date32(kind):
            column = column.cast(pa.int32())
        values = column.cast(pa.int64()).fill_null(0).to_numpy()
    return _Score(values if descending else ~values, unknown)


def _of_floats(column: pa.Array[Any]) -> Longs:
    """Integers in the order of floats; NaN is larger than any number, as in Spark."""
    floats = column.fill_null(0.0).to_numpy() + 0.0  # -0.0 becomes 0.0
    floats[np.isnan(floats)] = np.nan
    signed = np.ascontiguousarray(floats).view(np.int64)
    values: Longs = signed ^ ((signed >> 63) & np.int64((1 << 63) - 1))
    return values


class _Best(NamedTuple):
    """The best rows of some keys, key by key, best first."""

    rows: Longs
    ranks: Longs
    sizes: Longs
    owners: Longs


def _best(
    owners: Longs,
    keys: int,
    first: _Score,
    more: Sequence[tuple[pa.Array[Any], bool]],
    k: int,
) -> _Best:
    """The `k` best rows of each key; equal ones in their order."""
    order = np.argsort(~first.values, kind="stable")
    if first.unknown is not None:
        order = order[np.argsort(first.unknown[order], kind="stable")]
    order = _grouped(order, owners, keys)
    if more and len(order):
        owned = owners[order]
        tied = np.zeros(len(order), np.bool_)
        tied[1:] = (owned[1:] == owned[:-1]) & _equal(first, order[1:], order[:-1])
        _break_ties(order, tied, more)
    sizes = np.bincount(owners, minlength=keys)
    ranks = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    if sizes.max() > k:
        among = ranks < k
        order, ranks, sizes = order[among], ranks[among], np.minimum(sizes, k)
    return _Best(order, ranks, sizes, owners[order])


def _break_ties(order: Longs, tied: Flags, more: Sequence[tuple[pa.Array[Any], bool]]) -> None:
    """Order the rows that are tied with the one before by further columns, in place.

    Most rows differ in the first column; the others, which may be long texts, are not looked at.
    """
    for column, down in more:
        within = tied.copy()
        within[:-1] |= tied[1:]
        places = np.flatnonzero(within)
        if not len(places):
            return
        rows = order[places]
        at: Any = pa.array(rows)
        score = _score(column.take(at), down)
        run = np.cumsum(~tied[places])
        by = (~score.values, run) if score.unknown is None else (~score.values, score.unknown, run)
        sorted_ = np.lexsort(by)
        order[places] = rows[sorted_]
        # Runs keep their places.
        still = np.zeros(len(places), np.bool_)
        still[1:] = (run[1:] == run[:-1]) & _equal(score, sorted_[1:], sorted_[:-1])
        tied[places] = still


def _equal(score: _Score, one: Longs, other: Longs) -> Flags:
    """Whether rows are as good as others."""
    same: Flags = score.values[one] == score.values[other]
    if score.unknown is not None:
        a, b = score.unknown[one], score.unknown[other]
        same = (same & ~a & ~b) | (a & b)
    return same


def _grouped(order: Longs, owners: Longs, keys: int) -> Longs:
    """The rows by their keys, in their order within a key."""
    # numpy sorts 16 bits in linear time.
    for shift in range(0, max(1, (keys - 1).bit_length()), 16):
        digits = (owners[order] >> shift).astype(np.uint16)
        order = order[np.argsort(digits, kind="stable")]
    return order


def _changed(best: _Best, stored: Longs) -> Flags:
    """For each key, whether its best rows are others than those at the beginning of the stored."""
    begins = np.cumsum(stored) - stored
    same = best.rows == begins[best.owners] + best.ranks
    same &= best.ranks < stored[best.owners]
    changed = np.zeros(len(stored), np.bool_)
    changed[best.owners[~same]] = True
    return changed
