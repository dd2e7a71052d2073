"""What operators share that pass rows on or rank them.

Event times and late rows; rows that are held back until the epoch ends; and states with rows of a
key: a list of them, or the newest row of each thing that they tell of.

A kind of them is one file: what users ask for (`RowOperation`), what that comes to for the workers
(`RowSpec`), and the operator (`RowOperator`). Spark and the harness run whatever is given as these.

Thread safety: as `pystate.operators.runtime.task`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pystate.base.arguments import duplicates
from pystate.errors import DeclarationError, InvalidArgumentError, WrongTypeError
from pystate.operators.runtime.event_time import event_times
from pystate.operators.runtime.grouping import first_of_each, take_rows
from pystate.operators.runtime.late_rows import checked_late, late_tag
from pystate.operators.runtime.output import OutputColumns
from pystate.operators.runtime.task import Operator, TaskContext
from pystate.state.declaration import State
from pystate.state.key_batch import KeyBatch
from pystate.state.value import ValueState
from pystate.tables.backend import KeyedStateBackend
from pystate.types.ddl import quoted
from pystate.types.key_codes import key_codes, longs
from pystate.types.keys import leaf
from pystate.types.state_type import StateType, parse_type

#: Times are within these bounds, so that the difference of two of them does not overflow.
_MOST = (1 << 61) - 1
#: The state with the rows of a key.
LATEST = "latest"
#: Held rows are reduced once there are so many.
_HELD_ROWS = 65_536

Longs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Columns = Sequence[tuple[str, StateType]]


class Times(NamedTuple):
    """The event times of some rows."""

    at: Longs
    """Milliseconds since 1970; without meaning where the time is not known."""
    known: Flags


@dataclass(frozen=True)
class RowInput:
    """The rows that an operator is asked for, as whoever runs it knows them."""

    owner: str
    """Names the operator in errors."""
    names: tuple[str, ...]
    """The key columns."""
    key: tuple[str, ...]
    """The key columns in the tasks: of structs, their fields."""
    columns: Sequence[tuple[str, Any]]
    """All columns, with types as `parse_type` takes them."""
    event_time: str | None
    ordered: bool
    """Whether a user has said in which order they come."""
    late: str
    find: Callable[[Any, str], Sequence[str]]
    """Finds what a user calls a column: the path to it, which is longer to a field of a struct."""
    identity: Callable[[], Sequence[str] | None] = lambda: None
    """The columns that say which row replaces which, if the rows are updates."""

    def __post_init__(self) -> None:
        checked_late(self.late, (), self.owner)

    def type_text(self, name: str) -> str:
        """The type of a column as a user knows it."""
        given = dict(self.columns)[name]
        return str(given.simpleString() if hasattr(given, "simpleString") else given)

    def stored_type(self, name: str, what: str) -> StateType:
        """The type of a column that is kept in state."""
        try:
            return parse_type(dict(self.columns)[name], f"column {name!r}")
        except DeclarationError as error:
            raise WrongTypeError(
                f"{what}: column {name!r} is {self.type_text(name)}, which state cannot hold: "
                f"cast it, or leave it out with df.drop({name!r}) ({error})"
            ) from None

    def stored_columns(self, what: str) -> Columns:
        """All columns but those of the key, if whole rows are kept in state."""
        twice = sorted(duplicates(name.lower() for name, _ in self.columns))
        if twice:
            raise InvalidArgumentError(f"{what}: two columns are called {', '.join(twice)}")
        kept = [name for name, _ in self.columns if name not in self.names]
        return tuple((name, self.stored_type(name, what)) for name in kept)


class Added(NamedTuple):
    """A column of the result that the operator adds."""

    name: str
    type: StateType
    nullable: bool = True


class RowOperation(ABC):
    """What a user asks for: a method of `KeyedFrame`, and what stands for it in a harness."""

    #: The method.
    method: ClassVar[str]
    #: What to do with updates in place of giving them to it, if they cannot be taken.
    instead: ClassVar[str] = "Compute it from the rows themselves, not from the updates"

    @abstractmethod
    def spec(self, rows: RowInput) -> RowSpec:
        """Check what is asked for, and return what determines the operator."""

    @property
    def updates_problem(self) -> str | None:
        """Why rows of which each replaces an earlier one cannot be taken; None if they can."""
        return "it takes each of them for a row of its own"

    @property
    def names_identity(self) -> bool:
        """Whether the user says which row replaces which, whatever is known of the rows."""
        return False


class RowSpec(ABC):
    """What such an operator is made from: the base of what is pickled for the workers."""

    key: tuple[str, ...]
    """The key columns."""
    event_time: str | None
    """The column with the time at which a row happened."""
    late: str
    """What happens to rows below the late bound: a word, or the tag of a side output."""

    @abstractmethod
    def states(self) -> Mapping[str, State[Any]]:
        """The operator's states."""

    @abstractmethod
    def make(self) -> RowOperator:
        """The operator of one task."""

    @property
    def added(self) -> Sequence[Added] | None:
        """The columns that follow on the key's and all others; None if rows are passed on."""
        return None

    @property
    def replaced_by(self) -> tuple[str, ...] | None:
        """The columns that say, with the key, which row a later epoch replaces.

        None if what is emitted stays.
        """
        return None

    @property
    def sorted_by(self) -> str | None:
        """The column by which rows are to come, where a user has not said another order."""
        return None


class RowOperator(Operator):
    """Base of the operators that pass rows on or rank them."""

    def __init__(self, spec: RowSpec) -> None:
        self._spec = spec

    def open(self, task: TaskContext) -> None:
        """Begin; the operators register their states."""
        spec = self._spec
        self._task = task
        self._backend = task.backend
        self._invalid = task.invalid(spec.key)
        self._late = task.late(spec.late, task.writer(late_tag(spec.late)))
        self._what = f"{task.owner}: event-time column {spec.event_time!r}"

    def on_time(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that the operator is to handle."""
        column = self._spec.event_time
        if column is None or not rows.num_rows:
            return rows
        times = event_times(rows.column(column), self._what)
        rows, times = self._invalid.timed(rows, times, -_MOST, _MOST)
        return self._late.without(rows, times)[0]

    def times(self, rows: pa.RecordBatch | pa.Table) -> Times:
        """The event times of rows; none is known without a column."""
        column = self._spec.event_time
        if column is None:
            return Times(np.zeros(rows.num_rows, np.int64), np.zeros(rows.num_rows, np.bool_))
        times = event_times(whole(rows.column(column)), self._what)
        known = np.ones(len(times), np.bool_)
        if times.null_count:
            known = times.is_valid().to_numpy(zero_copy_only=False)
            times = times.fill_null(0)
        return Times(times.to_numpy(), known)


def columns_of(rows: pa.RecordBatch | pa.Table, names: Iterable[str]) -> list[Any]:
    """Key columns of rows, of which some may be fields of structs."""
    return [leaf(rows, name) for name in names]


def first_rows(backend: KeyedStateBackend, columns: Sequence[pa.Array[Any]]) -> Longs:
    """For each row the first one with the same key; its own number where there is none before.

    Of a table on disk no key is looked up for it: their rows may not fit in memory together.
    """
    if backend.below.on_disk:
        codes = key_codes(columns, dense=True)
        return first_of_each(codes)[codes]
    keys = backend.keys(columns)
    first: Longs = keys.first_rows().astype(np.int64)
    keys.close()
    return first


def distinct(first: npt.NDArray[np.integer[Any]], rows: int) -> tuple[Longs, Longs]:
    """The first rows of keys, each once, and for each that is given its number among them.

    There are so many rows in all.
    """
    numbers = np.zeros(rows, np.int64)
    numbers[first] = 1
    heads = np.flatnonzero(numbers)
    numbers[heads] = np.arange(len(heads))
    return heads, numbers[first]


class HeldRows:
    """Rows of an epoch of which `reduce` keeps those that count; it is used once they are many.

    So at most twice as many are held as count, and some more.
    """

    def __init__(self, reduce: Callable[[pa.Table], pa.Table]) -> None:
        self._reduce = reduce
        self._tables: list[pa.Table] = []
        self._rows = 0
        self._most = _HELD_ROWS

    def add(self, rows: pa.Table) -> None:
        """Hold some rows."""
        self._tables.append(rows)
        self._rows += rows.num_rows
        if self._rows > self._most:
            rest = self._reduced()
            self._tables, self._rows = [rest], rest.num_rows
            self._most = _HELD_ROWS + 2 * rest.num_rows

    def take(self, *, reduced: bool = False) -> pa.Table | None:
        """All rows that count; None without any. `reduced`: of what was added all did, alone."""
        if not self._tables:
            return None
        rows = self._tables[0] if reduced and len(self._tables) == 1 else self._reduced()
        self._tables, self._rows = [], 0
        return rows

    def _reduced(self) -> pa.Table:
        return self._reduce(pa.concat_tables(self._tables).combine_chunks())


class RowLists:
    """A state with a list of rows for each key."""

    @staticmethod
    def declared(columns: Columns) -> ValueState:
        """The declaration of a state with rows of some columns."""
        fields = ",".join(f"{quoted(name)}:{type_.ddl}" for name, type_ in columns)
        return ValueState(f"array<struct<{fields}>>")

    def __init__(self, backend: KeyedStateBackend, name: str, columns: Columns, owner: str) -> None:
        self.names = [name for name, _ in columns]
        self._fields = [pa.field(name, type_.arrow) for name, type_ in columns]
        ddl = [type_.ddl for _, type_ in columns]
        self._columns = OutputColumns(pa.schema(self._fields), owner, ddl)
        self._state = backend.register(name, self.declared(columns))

    def cast(self, rows: pa.RecordBatch) -> dict[str, pa.Array[Any]]:
        """The columns of some rows, in the types of the state."""
        # Spark's arrays may be without nulls, for example, where the state's may have them.
        [cast] = self._columns.from_value(rows.select(self.names))
        return dict(zip(self.names, cast.columns, strict=True))

    def read(self, keys: KeyBatch) -> tuple[dict[str, pa.Array[Any]], Longs]:
        """The rows of all keys, one after the other, by column; and how many each key has."""
        lists = self._state.values(keys)
        sizes = lists.value_lengths().fill_null(0).to_numpy().astype(np.int64)
        rows: Any = lists.flatten()
        return {name: rows.field(i) for i, name in enumerate(self.names)}, sizes

    def write(self, keys: KeyBatch, rows: Mapping[str, pa.Array[Any]], sizes: Longs) -> None:
        """Replace the rows of some keys."""
        arrays = [rows[name] for name in self.names]
        items = pa.StructArray.from_arrays(arrays, fields=self._fields)
        offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
        self._state.update_all(keys, pa.ListArray.from_arrays(offsets, items))


@dataclass(frozen=True)
class Merged:
    """The rows of the keys that an epoch has touched, those of the state first."""

    keys: KeyBatch
    """The keys, without repetition."""
    rows: Mapping[str, pa.Array[Any]]
    """All rows, by column: those that were stored, then those that came."""
    owners: Longs
    """The key of each row, by its position in `keys`."""
    stored: int
    """How many rows were stored."""
    counts: Flags
    """Which rows count now; the others were replaced."""


class LatestRows:
    """The newest row of each identity within a key: what updates come to.

    `identity` are the columns that say which thing a row tells of; none if a key is one thing. A
    later row of the same thing replaces the earlier one, also within an epoch. The rows of a key
    are kept in the order in which they came. `columns` are all but those of the key.
    """

    def __init__(
        self,
        backend: KeyedStateBackend,
        key: Sequence[str],
        identity: Sequence[str],
        columns: Columns,
        owner: str,
    ) -> None:
        self._backend = backend
        self._key = [f"key {i}" for i in range(len(key))]
        self._given_key = tuple(key)
        self._identity = tuple(identity)
        self._lists = RowLists(backend, LATEST, columns, owner)
        self._held = HeldRows(self._last_ones)

    def hold(self, rows: pa.RecordBatch) -> None:
        """Take some rows of the epoch, in their order."""
        own = self._lists.cast(rows)
        arrays = [*columns_of(rows, self._given_key), *own.values()]
        self._held.add(pa.table(arrays, names=[*self._key, *own]))

    def merge(self) -> Iterator[Merged]:
        """Put what is held into the state; return the rows of the keys that it touches.

        Of a table on disk those come together of as many keys as fit in memory.
        """
        rows = self._held.take()
        if rows is None:
            return
        columns = [whole(rows.column(name)) for name in self._key]
        heads, numbers = distinct(first_rows(self._backend, columns), len(rows))
        most = self._backend.below.most_keys(len(heads))
        if most == len(heads):
            yield self._merged(rows, take_rows(columns, heads), numbers)
            return
        order = np.argsort(numbers, kind="stable")
        for begin in range(0, len(heads), most):
            low, high = np.searchsorted(numbers[order], [begin, begin + most])
            mine = np.sort(order[low:high])
            own = take_rows(columns, heads[begin : begin + most])
            yield self._merged(rows.take(longs(mine)), own, numbers[mine] - begin)

    def _merged(self, rows: pa.Table, keys: Sequence[pa.Array[Any]], numbers: Longs) -> Merged:
        """The same for rows of some keys; `numbers` says of which each one is."""
        heads = keys[0]
        touched = self._backend.keys(keys)
        before, sizes = self._lists.read(touched)
        owners = np.concatenate([np.repeat(np.arange(len(heads)), sizes), numbers])
        every = {
            name: pa.concat_arrays([stored, whole(rows.column(name))])
            for name, stored in before.items()
        }
        counts = _last(owners, [every[name] for name in self._identity])
        kept = np.flatnonzero(counts)
        kept = kept[np.argsort(owners[kept], kind="stable")]
        now = dict(zip(every, take_rows(list(every.values()), kept), strict=True))
        self._lists.write(touched, now, np.bincount(owners[kept], minlength=len(heads)))
        return Merged(touched, every, owners, int(sizes.sum()), counts)

    def _last_ones(self, rows: pa.Table) -> pa.Table:
        """The last row of each key and identity."""
        first = first_rows(self._backend, [whole(rows.column(name)) for name in self._key])
        last = _last(first, [whole(rows.column(name)) for name in self._identity])
        return rows if last.all() else rows.filter(pa.array(last))


def _last(owners: Longs, identity: Sequence[pa.Array[Any]]) -> Flags:
    """Which rows are the last ones of their owner and identity."""
    codes = key_codes([longs(owners), *identity], dense=True)
    rows, last = np.arange(len(codes)), np.empty(int(codes.max(initial=-1)) + 1, np.int64)
    last[codes] = rows
    is_last: Flags = last[codes] == rows
    return is_last


def whole(column: Any) -> pa.Array[Any]:
    """A column of a batch or a table as one array."""
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    array: pa.Array[Any] = column
    return array
