"""Rows of keys as of one epoch, straight out of its files: one call of the core, and its columns.

It is for files of one schema on a local disk, and for states whose columns are
what a reader gets: values, lists, maps, and what is reduced or counted. Whoever looks keys up of
anything else, or for timers, reads a table of what `pystate.processor.key_files` finds.

Thread safety: any threads look keys up at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pystate._core import core
from pystate.checkpoint.state_files import FileSchema
from pystate.errors import InvalidArgumentError
from pystate.processor.scan import StateScan
from pystate.processor.selection import array_of_namespaces, arrays_of_keys
from pystate.state.aggregating import AggregatingState
from pystate.state.columns import ELEMENT, NAMESPACE, Column
from pystate.state.declaration import State
from pystate.state.defaults import fill_defaults
from pystate.state.evolution import column_change
from pystate.state.expiring import Expiring
from pystate.state.identity import StoredFold
from pystate.state.list import ListState
from pystate.state.map import MapState
from pystate.state.reducing import ReducingState
from pystate.state.value import ValueState
from pystate.tables.below import PARTS, Part, plain_array, state_array
from pystate.types.arrays import reference
from pystate.types.key_codes import key_codes
from pystate.types.keys import KeyColumns, parse_key
from pystate.types.nested import codec_of
from pystate.types.state_type import StateType

Ints = np.ndarray[Any, np.dtype[np.int64]]
#: What finds keys in the files of an epoch, and the columns that all of these have.
OpenFiles = tuple[core.Finder, FileSchema]


class AskedKeys(NamedTuple):
    """Keys that are looked up, as arrays of their types."""

    arrays: list[pa.Array[Any]]
    """The columns of the key, and that of the namespace if one is named for each key."""
    types: list[StateType]
    every: bool
    """Whether rows of all namespaces are wanted."""

    @classmethod
    def of(
        cls, key: KeyColumns, namespace: StateType | None, keys: Any, namespaces: Any
    ) -> AskedKeys:
        """Take what a caller gives; `WrongTypeError`, `InvalidArgumentError` if it is none."""
        types = [type_ for _, type_ in key]
        arrays = arrays_of_keys(key, keys)
        rows = len(arrays[0])
        for (name, _), array in zip(key, arrays, strict=True):
            if len(array) != rows:
                raise InvalidArgumentError(
                    f"key column {name!r} has {len(array)} values, and {key[0][0]!r} {rows}: each "
                    "key has one of each"
                )
        if namespaces is not None:
            assert namespace is not None
            arrays.append(array_of_namespaces(namespace, namespaces, rows))
            types.append(namespace)
        return cls(arrays, types, namespace is not None and namespaces is None)

    def in_order(self, found: pa.Table) -> pa.Table:
        """Rows in the order of the keys: one for each, or of each those of all namespaces."""
        rows = len(self.arrays[0])
        columns = []
        for i, column in enumerate(self.arrays):
            chunks = [chunk.cast(column.type) for chunk in found.column(i).chunks]
            columns.append(pa.concat_arrays([column, *chunks]))
        codes = key_codes(columns, dense=True)
        order = np.argsort(codes[rows:], kind="stable")
        ordered = codes[rows:][order]
        first = np.searchsorted(ordered, codes[:rows], "left")
        counts = np.searchsorted(ordered, codes[:rows], "right") - first
        if self.every:
            return found.take(pa.array(order[_runs(first, counts)], pa.int64()))
        places = order[np.minimum(first, max(len(order) - 1, 0))] if len(order) else first
        return self.with_nulls(found, np.where(counts > 0, places, -1))

    def with_nulls(self, found: pa.Table, places: Ints) -> pa.Table:
        """The row at each key's place, and null states at -1."""
        rest = found.select(range(len(self.arrays), found.num_columns))
        rest = rest.take(pa.array(places, pa.int64(), mask=places < 0))
        columns: list[Any] = [*self.arrays, *rest.columns]
        return pa.Table.from_arrays(columns, schema=found.schema)


def _runs(first: Ints, counts: Ints) -> Ints:
    """The numbers of runs that begin there and are so long, one after the other."""
    starts = np.repeat(first - (np.cumsum(counts) - counts), counts)
    return starts + np.arange(len(starts))


class _ReadColumn(NamedTuple):
    """A state that is read."""

    state: State[Any]
    column: Column
    at: int
    """Its first part of those that the core gives."""

    def array(self, parts: Sequence[Part]) -> pa.Array[Any]:
        if isinstance(self.state, (ListState, MapState)):
            return state_array(iter(parts[self.at :]), self.state, self.column)
        type_: StateType = self.state.type
        if isinstance(self.state, AggregatingState):
            assert self.state.bound is not None and self.state.bound.column is not None
            type_ = self.state.bound.column
        return plain_array(parts[self.at], type_, self.column.codec)


class KeyRows:
    """Looks keys up in the files of an epoch, which stay open as long as this lives."""

    def __init__(
        self, scan: StateScan, files: OpenFiles, mask: int, columns: list[_ReadColumn]
    ) -> None:
        self._finder, schema = files
        self._mask, self._columns = mask, columns
        self.schema = scan.schema
        self._defaults = scan.defaults
        keys = [(name, type_) for name, type_ in parse_key(list(scan.operator.key_schema))]
        if scan.namespace is not None:
            keys.append((NAMESPACE, scan.namespace))
        self._keys = [(type_, codec_of(type_, "the key")) for _, type_ in keys]
        self._expiry = None
        if any(state.ttl is not None for state in scan.read.values()):
            self._expiry = Expiring.of(scan.read, *scan.clock).among(schema.states)
        # What a key has that is not there.
        nothing = list(self.schema)[len(keys) :]
        self._nothing = [pa.nulls(1, field.type) for field in nothing]

    @classmethod
    def of(cls, scan: StateScan, files: OpenFiles) -> KeyRows | None:
        """How rows are read of an epoch's files; None if they are not to be had so."""
        selection = scan.selection
        if selection.timers or selection.explode or selection.accumulators or not scan.read:
            return None
        places = _places(files[1])
        mask, columns = 0, []
        for name, state in scan.read.items():
            wanted = state.columns(name)
            if any(column.name not in places for column in wanted):
                return None
            number, first = places[wanted[0].name]
            mask |= 1 << number
            if not selection.gives(name):
                continue  # it tells which keys exist
            change = column_change(files[1].states[number], wanted[0])
            if not _is_plain(state) or change.types.refused or not change.is_none:
                return None
            columns.append(_ReadColumn(state, wanted[0], first))
        return cls(scan, files, mask, columns)

    def rows(self, asked: AskedKeys) -> pa.Table:
        """The rows of those keys that exist, in no particular order."""
        blocks, _ = self._found(asked)
        return pa.Table.from_batches(self._batches(blocks), self.schema)

    def get(self, asked: AskedKeys) -> pa.Table:
        """Rows in the order of the keys: one for each, or of each those of all namespaces."""
        return self._in_order(asked, *self._found(asked))

    def at_hand(self, asked: AskedKeys) -> pa.Table | None:
        """What `get` gives; None if a disk would have to be waited for, or much be read."""
        found = self._finder.find(*self._wanted(asked), at_hand=True)
        return None if found is None else self._in_order(asked, *found)

    def _in_order(
        self, asked: AskedKeys, blocks: list[tuple[int, list[Part]]], places: bytes
    ) -> pa.Table:
        if len(asked.arrays[0]) == 1:
            # They are in order, whatever their number.
            if blocks or asked.every:
                return pa.Table.from_batches(self._batches(blocks), self.schema)
            return pa.Table.from_arrays([*asked.arrays, *self._nothing], schema=self.schema)
        found = pa.Table.from_batches(self._batches(blocks), self.schema)
        numbers = np.frombuffer(places, np.int64).reshape(-1, 2)
        if asked.every:
            return found.take(pa.array(_runs(numbers[:, 0], numbers[:, 1]), pa.int64()))
        return asked.with_nulls(found, numbers[:, 0])

    def _found(self, asked: AskedKeys) -> tuple[list[tuple[int, list[Part]]], bytes]:
        found = self._finder.find(*self._wanted(asked))
        assert found is not None
        return found

    def _wanted(self, asked: AskedKeys) -> tuple[list[core.ArrayRef], int, core.Expiry | None]:
        references = [
            reference(array, type_) for array, type_ in zip(asked.arrays, asked.types, strict=True)
        ]
        return references, self._mask, self._expiry

    def _batches(self, blocks: list[tuple[int, list[Part]]]) -> Iterator[pa.RecordBatch]:
        for _, parts in blocks:
            arrays = [
                plain_array(part, type_, codec)
                for part, (type_, codec) in zip(parts, self._keys, strict=False)
            ]
            arrays += [column.array(parts) for column in self._columns]
            rows = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
            yield fill_defaults(rows, self._defaults) if self._defaults else rows


def _is_plain(state: State[Any]) -> bool:
    """Whether the state's column is what a reader gets, or its lists or maps."""
    if isinstance(state, AggregatingState):
        return state.bound is not None and state.bound.column is not None
    return type(state) in (ValueState, StoredFold, ListState, MapState, ReducingState)


def _places(schema: FileSchema) -> dict[str, tuple[int, int]]:
    """Of each column of files its number, and the first of its parts that the core gives."""
    at = sum(column.name != ELEMENT for column in schema.keys)
    places: dict[str, tuple[int, int]] = {}
    for number, column in enumerate(schema.states):
        places[column.name] = number, at
        at += PARTS.get(column.kind, 0)
    return places
