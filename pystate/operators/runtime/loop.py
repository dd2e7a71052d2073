"""The rows in flight on a loop: fed by one epoch, read by the next, part of every checkpoint.

A loop is an ordinary keyed operator. Its key is a number of a bucket, and a bucket has a list of
rows. Which bucket a row is put into does not matter, as long as equal evaluations choose the same
one: the key groups spread the buckets, and so the rows, over the ranges.

Thread safety: a `LoopSpec` is immutable; a `LoopTable` belongs to one task and thread.

Invariants
----------
1. After an epoch the table holds exactly the rows that this epoch has fed.
2. The number of keys does not grow with the number of rows, so that an epoch removes the rows of
   the one before it at the cost of a few lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from pystate.checkpoint.refs import BUCKET, COUNT, INPUT, LOOP_KEY
from pystate.errors import DeclarationError
from pystate.operators.runtime.event_time import event_times
from pystate.operators.runtime.task import Operator, TaskContext
from pystate.state.declaration import State
from pystate.state.list import ListState
from pystate.state.operator_spec import OperatorSpec
from pystate.state.value import ValueState
from pystate.tables.backend import KeyedStateBackend
from pystate.types.arrays import as_array
from pystate.types.key_codes import longs
from pystate.types.keys import KeyColumns, parse_key
from pystate.types.state_type import parse_type

#: The metric that counts the rows which a range keeps for the next epoch.
IN_FLIGHT = "in_flight"
#: The state with the rows; another one counts them.
ROWS = "rows"
_LEAST_BUCKETS, _PER_RANGE = 4096, 32
#: About as many rows are read at once, and at most so many are in a batch.
_READ_ROWS = 1 << 16


def buckets(parallelism: int) -> int:
    """The number of buckets that rows are put into, so that all ranges get about as many."""
    return max(_LEAST_BUCKETS, _PER_RANGE * parallelism)


@dataclass(frozen=True)
class LoopSpec:
    """What a loop's rows are; pickled for the workers."""

    columns: KeyColumns
    owner: str = "the loop"
    """What errors begin with."""

    @classmethod
    def of(cls, columns: Iterable[tuple[str, Any]], owner: str) -> LoopSpec:
        """Make it of columns by name, with types as `parse_type` takes them."""
        parsed = [(name, parse_type(type_, f"{owner}: column {name!r}")) for name, type_ in columns]
        names = [name for name, _ in parsed]
        if not names or len(set(names)) < len(names):
            raise DeclarationError(
                f"{owner}: its rows have the columns {', '.join(names) or 'none'}: name at least "
                "one, and each once"
            )
        return cls(tuple(parsed), owner)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(name for name, _ in self.columns)

    def states(self) -> Mapping[str, State[Any]]:
        """The operator's states."""
        row = pa.struct([(name, type_.arrow) for name, type_ in self.columns])
        return {ROWS: ListState(row), COUNT: ValueState("long")}

    def operator(self, uid: str, max_parallelism: int = 128) -> OperatorSpec:
        """The operator that keeps the rows."""
        return OperatorSpec(
            uid, parse_key(dict(LOOP_KEY)), self.states(), max_parallelism=max_parallelism
        )


class LoopOperator(Operator):
    """Replaces the rows of a loop in one range.

    Its metric `IN_FLIGHT` counts those that it keeps for the next epoch. Rows that come have the
    column `BUCKET`, too. For the oldest `event_time` watermarks wait, if it is given.
    """

    idle_metrics = MappingProxyType({IN_FLIGHT: 0})

    def __init__(self, spec: LoopSpec, event_time: str | None = None) -> None:
        self._spec = spec
        self._event_time = event_time

    def open(self, task: TaskContext) -> None:
        """Remove the rows that the epoch before has fed."""
        self._task = task
        self._oldest: int | None = None
        self._fed = 0
        self._table = LoopTable(self._spec, task.backend)
        self._table.clear()

    def process(self, rows: pa.RecordBatch, input: str = INPUT) -> Iterator[pa.RecordBatch]:
        """Keep rows for the next epoch."""
        self._fed += rows.num_rows
        self._table.feed(rows.column(BUCKET), rows)
        if self._event_time is not None:
            times = event_times(rows.column(self._event_time), "a row that is fed back")
            times = times.drop_null()
            if len(times):
                oldest = int(times.to_numpy().min())
                self._oldest = oldest if self._oldest is None else min(self._oldest, oldest)
        return iter(())

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Count them, and say how old they are."""
        if self._event_time is not None:
            self._task.kept = (self._oldest,)
        self._task.metrics[IN_FLIGHT] = self._fed
        return iter(())


class LoopTable:
    """The rows of a loop that are in one table, which is made for `LoopSpec.operator`."""

    def __init__(self, spec: LoopSpec, backend: KeyedStateBackend) -> None:
        self._spec = spec
        self._backend = backend
        states = spec.states()
        self._rows: Any = backend.register(ROWS, states[ROWS])
        self._count: Any = backend.register(COUNT, states[COUNT])
        self._row = states[ROWS].type.arrow

    def clear(self) -> None:
        """Remove all rows."""
        # A walk does not have to bear that what it has yet to see is removed.
        for keys in list(self._backend.existing()):
            self._backend.delete(keys)

    def feed(self, numbers: pa.Array[Any], batch: pa.RecordBatch) -> None:
        """Add rows, each to the bucket of its number; columns are found by name."""
        if not batch.num_rows:
            return
        owner = self._spec.owner
        values = [
            as_array(batch.column(name), type_, f"{owner}: column {name!r}")
            for name, type_ in self._spec.columns
        ]
        fields = [self._row.field(i) for i in range(self._row.num_fields)]
        rows = pa.StructArray.from_arrays(values, fields=fields)
        bucket = numbers.to_numpy()
        order = np.argsort(bucket, kind="stable")
        ordered = bucket[order]
        starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
        ends = np.append(starts, len(ordered))
        keys = self._backend.keys([longs(ordered[starts])])
        offsets: Any = pa.array(ends.astype(np.int32))
        self._rows.extend(keys, pa.ListArray.from_arrays(offsets, rows.take(longs(order))))
        self._count.add(keys, longs(np.diff(ends)))

    def rows(self) -> Iterator[pa.RecordBatch]:
        """All rows, in batches of bounded size; the table must not change meanwhile."""
        for keys in self._backend.existing():
            [numbers] = keys.key_arrays()
            counts = self._count.values(keys).fill_null(0).to_numpy()
            parts = np.cumsum(counts) // _READ_ROWS
            begin = 0
            while begin < len(parts):
                end = int(np.searchsorted(parts, parts[begin], side="right"))
                some = self._backend.keys([numbers.slice(begin, end - begin)])
                lists: pa.ListArray[Any] = self._rows.lists(some)
                yield from self._batches(lists.flatten())
                begin = end

    def _batches(self, rows: Any) -> Iterator[pa.RecordBatch]:
        for begin in range(0, len(rows), _READ_ROWS):
            columns = rows.slice(begin, _READ_ROWS).flatten()
            yield pa.RecordBatch.from_arrays(columns, names=list(self._spec.names))
