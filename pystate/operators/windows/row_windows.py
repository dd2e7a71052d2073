"""Windows of which the rows are kept, not aggregates: as typed columns, once per row.

The operators are the same, over `RowColumns` in place of `Columns`: a window's or slice's rows are
a list under its key and namespace, and a number of them beside it. Windows are put together by
naming the lists that they are made of; these are read when the rows are used, some windows at a
time.

Thread safety: `RowColumns` belongs to its operator; what is pickled is immutable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import pyarrow as pa

from pystate.operators.runtime.grouping import keys_at, pieces
from pystate.operators.runtime.stored_lists import extend, part_of, read_lists
from pystate.operators.windows.assigners import Session
from pystate.operators.windows.columns import ROWS, Columns, MoreSteps, Refused
from pystate.operators.windows.grid import Mask, Times
from pystate.operators.windows.specification import (
    OPEN,
    OPEN_TYPE,
    WindowOptions,
    WindowSpec,
    in_local_times,
    time_type_of,
)
from pystate.state.aggregating import AggregatingState, ColumnAggregate
from pystate.state.aggregators import Count
from pystate.state.declaration import State
from pystate.state.key_batch import KeyBatch, apply_steps
from pystate.state.list import ListHandle, ListState
from pystate.state.value import ValueState
from pystate.tables.backend import KeyedStateBackend
from pystate.types.arrays import as_array
from pystate.types.key_codes import longs
from pystate.types.keys import KeyColumns
from pystate.types.state_type import parse_type

#: About as many rows are read at once, but at least those of one window.
LOADED_ROWS = 1 << 17
#: The state of the rows of an operator with one input.
_INPUT_ROWS = "window.input"


@dataclass(frozen=True)
class KeptRows:
    """The rows of one input, as they are kept in the state of a name; pickled for the workers."""

    name: str
    columns: KeyColumns

    @classmethod
    def of(cls, name: str, columns: Iterable[tuple[str, Any]], owner: str) -> KeptRows:
        """Keep columns with types as `parse_type` takes them."""
        return cls(name, tuple((n, parse_type(t, f"{owner}: column {n!r}")) for n, t in columns))

    @cached_property
    def fields(self) -> list[pa.Field[Any]]:
        """The fields of a kept row."""
        return [pa.field(name, type_.arrow) for name, type_ in self.columns]

    def states(self) -> dict[str, State[Any]]:
        """The state of the rows; rows of no columns need none."""
        return {self.name: ListState(pa.struct(self.fields))} if self.columns else {}


@dataclass
class Loaded:
    """The rows of some windows that follow each other."""

    begin: int
    end: int
    """Which windows these are of those that were emitted together."""
    offsets: list[Times]
    """For each input, where the rows of each window begin; then the end."""
    values: list[list[pa.Array[Any]]]
    """For each input its columns."""


class RowColumns(Columns):
    """The rows of an operator's windows in one backend; in place of `Columns`.

    `input` is the number of the input whose rows are added. What `accumulators` returns are numbers
    of the keys that it was given last.
    """

    def __init__(self, inputs: Sequence[KeptRows], backend: KeyedStateBackend, owner: str) -> None:
        self.input = 0
        self._ranges = []  # there are no sums
        self._inputs = inputs
        self._backend = backend
        self._owner = owner
        self._lists: list[ListHandle | None] = [
            cast(ListHandle, backend.register(each.name, each.states()[each.name]))
            if each.columns
            else None
            for each in inputs
        ]
        counter: Any = backend.register(ROWS, AggregatingState(Count(), "long"))
        self.rows: ColumnAggregate = counter
        self._asked: KeyBatch | None = None
        self._parts: tuple[KeyBatch, Times] | None = None

    def add(self, keys: KeyBatch, rows: pa.RecordBatch, refused: Refused | None = None) -> Mask:
        """Keep rows in the windows or slices of their keys; see `Columns.add`."""
        began = apply_steps(keys, [self.rows.step(keys, 1)])
        handle = self._lists[self.input]
        if handle is not None:
            handle.append(keys, self.items(rows))
        return began

    def items(self, rows: pa.RecordBatch) -> pa.Array[Any]:
        """The rows as they are kept."""
        kept = self._inputs[self.input]
        arrays = [
            as_array(rows.column(name), type_, f"{self._owner}: column {name!r}")
            for name, type_ in kept.columns
        ]
        items: pa.Array[Any] = pa.StructArray.from_arrays(arrays, fields=kept.fields)
        return items

    def accumulators(self, keys: KeyBatch) -> list[Any]:
        """Numbers that stand for the rows of the keys, until this is called again."""
        self._asked = keys
        return [longs(np.arange(len(keys)))]

    def merge(
        self,
        keys: KeyBatch,
        accumulators: Sequence[Any],
        more: MoreSteps | None = None,
        refused: Refused | None = None,
    ) -> None:
        """Append the rows that numbers stand for to those of some keys."""
        assert self._asked is not None and more is None, "steps are for sums that slide"
        numbers = accumulators[0].to_numpy()
        source = _chosen(self._backend, self._asked, numbers)
        sizes = self._sizes(source)
        for begin, end in pieces(sizes, LOADED_ROWS):
            part = part_of(self._backend, source, begin, end)
            to = part_of(self._backend, keys, begin, end)
            self.rows.merge_all(to, self.rows.accumulators(part))
            for handle in self._lists:
                if handle is not None:
                    extend(self._backend, handle, to, read_lists(self._backend, handle, part))

    def results(self, keys: KeyBatch) -> list[pa.Array[Any]]:
        """Have the rows of some windows be the next to `load`; there are no result columns."""
        self._parts = keys, np.arange(len(keys) + 1)
        return []

    def folded(
        self,
        groups: np.ndarray[Any, np.dtype[np.int64]],
        accumulators: Sequence[Any],
        refused: Refused | None = None,
    ) -> tuple[list[Any], list[pa.Array[Any]]]:
        """Have windows, made of slices in the order of `groups`, be the next to `load`."""
        assert self._asked is not None
        keys = _chosen(self._backend, self._asked, accumulators[0].to_numpy())
        count = int(groups[-1]) + 1 if len(groups) else 0
        self._parts = keys, np.searchsorted(groups, np.arange(count + 1))
        return [], []

    def close(self) -> None:
        """Nothing is held."""

    def _sizes(self, keys: KeyBatch) -> Times:
        sizes: Times = self.rows.accumulators(keys).fill_null(0).to_numpy()
        return sizes

    def load(self) -> Iterator[Loaded]:
        """Read the rows of the windows that were emitted last, a bounded number at a time.

        It must be used up before the operator goes on, which may remove them.
        """
        assert self._parts is not None
        (keys, parts), self._parts = self._parts, None
        sizes = self._sizes(keys)
        ends = np.concatenate([[0], np.cumsum(sizes)])
        for begin, end in pieces(np.diff(ends[parts]), LOADED_ROWS):
            mine = parts[begin : end + 1]
            read = part_of(self._backend, keys, int(mine[0]), int(mine[-1]))
            offsets: list[Times] = []
            values: list[list[pa.Array[Any]]] = []
            for kept, handle in zip(self._inputs, self._lists, strict=True):
                if handle is None:
                    offsets.append(ends[mine] - ends[mine[0]])
                    values.append([])
                    continue
                lists = read_lists(self._backend, handle, read)
                places = lists.offsets.to_numpy().astype(np.int64)
                offsets.append(places[mine - mine[0]])
                values.append(list(lists.values.flatten()[: len(kept.columns)]))
            yield Loaded(begin, end, offsets, values)


def _chosen(backend: KeyedStateBackend, keys: KeyBatch, numbers: Times) -> KeyBatch:
    if len(numbers) == len(keys) and (numbers == np.arange(len(keys))).all():
        return keys
    return keys_at(backend, keys, numbers)


@dataclass(frozen=True)
class WindowRowsSpec(WindowSpec):
    """Windows with their rows, those of each input; it is pickled and sent to the workers."""

    inputs: tuple[KeptRows, ...] = ()

    @classmethod
    def of_rows(
        cls, options: WindowOptions, key: Sequence[str], schema: pa.Schema, owner: str
    ) -> WindowRowsSpec:
        """Windows over rows of one input."""
        time_type = time_type_of(options, schema, owner)
        if options.event_time is not None:
            options = in_local_times(options, schema.field(options.event_time).type)
        kept = [(field.name, field.type) for field in schema if field.name not in key]
        return cls(options, tuple(key), (), 0, time_type, (KeptRows.of(_INPUT_ROWS, kept, owner),))

    @property
    def runs(self) -> bool:
        """Rows are never summed up."""
        return False

    def states(self) -> dict[str, State[Any]]:
        """The states, in the order of the table's columns."""
        states: dict[str, State[Any]] = {ROWS: AggregatingState(Count(), "long")}
        for each in self.inputs:
            states |= each.states()
        if isinstance(self.options.windows, Session):
            states[OPEN] = ValueState(OPEN_TYPE)
        return states

    def kept(self, backend: KeyedStateBackend, owner: str) -> Columns:
        """The rows in a backend."""
        return RowColumns(self.inputs, backend, owner)
