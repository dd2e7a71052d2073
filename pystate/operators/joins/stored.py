"""Rows of a join's input in the table: a list for each key and bucket of time.

Thread safety: an object belongs to its task.

Invariants
----------
1. A list keeps the order in which rows came; a row's place in it never changes until the whole list
   is cleared. So a mark names a row by its place.
2. A row is marked as matched in one way only: by the flag in it, if it was matched when it came, or
   else by one entry of the list of marks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pystate.errors import MemoryLimitError
from pystate.operators.joins.inputs import JoinInput, Rows
from pystate.operators.runtime.event_time import event_times
from pystate.operators.runtime.grouping import expand, group, keys_at, take_rows
from pystate.operators.runtime.stored_lists import extend
from pystate.state.declaration import State
from pystate.state.key_batch import KeyBatch
from pystate.state.list import ListHandle, ListState
from pystate.tables.backend import KeyedStateBackend
from pystate.types.key_codes import Ints, key_codes, longs

#: Fields of a stored row that are not the input's.
_TIME, _MATCHED = "__pystate_time", "__pystate_matched"
#: About as many stored rows are loaded at once, but at least the rows of one key and bucket.
_LOADED_ROWS = 1 << 18
_FIRST_LISTS, _MOST_LISTS = 4096, 1 << 17
_TIMERS = 1 << 13

Flags = np.ndarray[Any, np.dtype[np.bool_]]


def declared_rows(spec: JoinInput, name: str, *, marked: bool) -> dict[str, State[Any]]:
    """The states of an input's rows; `marked`: it is kept which rows were matched."""
    fields = [(column, type_.arrow) for column, type_ in spec.columns]
    if not _keeps_time(spec):
        fields.append((_TIME, pa.int64()))
    if not marked:
        return {name: ListState(pa.struct(fields))}
    fields.append((_MATCHED, pa.bool_()))
    return {name: ListState(pa.struct(fields)), f"{name}_matched": ListState("int")}


def _keeps_time(spec: JoinInput) -> bool:
    """Whether the event time is one of the stored columns; otherwise it is in the key."""
    return spec.event_time in spec.names


@dataclass
class Loaded:
    """The lists of some keys and buckets."""

    keys: KeyBatch
    offsets: Ints
    """Where each list begins among the rows; then the end."""
    values: list[pa.Array[Any]]
    """The rows' columns, without those of the key."""
    times: Ints
    matched: Flags | None
    """Which of them are marked, if that is kept."""

    def lists(self) -> Ints:
        """The list of each row, by number."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


class Put(NamedTuple):
    """Where rows were appended: to the lists of these keys and buckets, in this order."""

    keys: KeyBatch
    buckets: Ints
    order: Ints
    starts: Ints
    """Where the rows of each list begin in that order; then the end."""


class StoredRows:
    """An input's rows in the table, whose namespaces are buckets; see `declared_rows`."""

    def __init__(
        self, spec: JoinInput, name: str, backend: KeyedStateBackend, *, marked: bool
    ) -> None:
        self._spec = spec
        self._backend = backend
        declared = declared_rows(spec, name, marked=marked)
        self._rows: ListHandle = backend.register(name, declared[name])
        self._fields: pa.DataType = declared[name].type.arrow
        self._marks: ListHandle | None = None
        if marked:
            matched = f"{name}_matched"
            self._marks = backend.register(matched, declared[matched])
        self._lists = _FIRST_LISTS

    def put(self, rows: Rows, codes: Ints, buckets: Ints, matched: Flags | None = None) -> Put:
        """Append rows, of which `codes` are the `key_codes`, to the lists of their buckets."""
        groups = group(codes, buckets)
        order, starts = groups.order()
        buckets = buckets[groups.first]
        keys = self._backend.keys(take_rows(rows.keys, groups.first), longs(buckets))
        noted = None if matched is None else matched[order]
        self.append(keys, starts, rows.take(order), noted)
        return Put(keys, buckets, order, starts)

    def append(
        self, keys: KeyBatch, starts: Ints, rows: Rows, matched: Flags | None = None
    ) -> None:
        """Append rows, in the order of the keys, to the lists of these, each key and bucket once.

        `starts` says where the rows of each begin, and then the end; `matched`, which have been.
        """
        columns = list(rows.values)
        if not _keeps_time(self._spec):
            columns.append(longs(rows.known))
        if self._marks is not None:
            assert matched is not None
            columns.append(pa.array(matched))
        fields = [self._fields.field(i) for i in range(self._fields.num_fields)]
        items = pa.StructArray.from_arrays(columns, fields=fields)
        extend(self._backend, self._rows, keys, _lists(starts, items))

    def load(
        self, columns: Sequence[pa.Array[Any]], buckets: Ints
    ) -> Iterator[tuple[int, int, Loaded]]:
        """Load the lists of some keys and buckets, those of some keys at a time."""
        begin = 0
        while begin < len(buckets):
            some = self._backend.below.most_keys(self._lists)
            end = min(begin + some, len(buckets))
            part = [column.slice(begin, end - begin) for column in columns]
            try:
                loaded = self._load(self._backend.keys(part, longs(buckets[begin:end])))
            except MemoryLimitError as error:
                if error.keys is None or end == begin + 1:
                    raise
                self._lists = max(1, min((end - begin) // 2, error.keys * 3 // 4))
                continue
            per_list = len(loaded.times) / (end - begin)
            self._lists = int(min(max(_LOADED_ROWS / max(per_list, 1e-9), 1), _MOST_LISTS))
            yield begin, end, loaded
            begin = end

    def _load(self, keys: KeyBatch) -> Loaded:
        lists = self._rows.lists(keys)
        offsets = lists.offsets.to_numpy().astype(np.int64)
        fields = lists.values.flatten()
        width = len(self._spec.columns)
        place = self._spec.names.index(self._spec.event_time) if _keeps_time(self._spec) else width
        times = event_times(fields[place], "stored event time").to_numpy(zero_copy_only=False)
        matched: Flags | None = None
        if self._marks is not None:
            matched = fields[-1].to_numpy(zero_copy_only=False).astype(bool)
            marks = self._marks.lists(keys)
            if len(marks.values):
                begins = np.repeat(offsets[:-1], np.diff(marks.offsets.to_numpy()))
                matched[begins + marks.values.to_numpy()] = True
        return Loaded(keys, offsets, list(fields[:width]), times, matched)

    def mark(self, loaded: Loaded, places: Ints) -> None:
        """Mark rows as matched that were not, each of them once.

        Places are those among all rows of the lists, in order.
        """
        if self._marks is None or not len(places):
            return
        lists = np.searchsorted(loaded.offsets, places, side="right") - 1
        starts = np.searchsorted(places, loaded.offsets)
        items = pa.array((places - loaded.offsets[lists]).astype(np.int32))
        self._marks.extend(loaded.keys, _lists(starts, items))

    def replace(self, loaded: Loaded, kept: Ints, which: Ints | None = None) -> None:
        """Keep only the rows at some places of the lists; without marks, which name places.

        Places are those among all rows of the lists, in order. `which` are the numbers of the lists
        that are written anew; the others stay as they are.
        """
        assert self._marks is None, "marks name places"
        keys, starts = loaded.keys, np.searchsorted(kept, loaded.offsets)
        if which is not None and len(which) < len(keys):
            keys = keys_at(self._backend, keys, which)
            counts = np.diff(starts)[which]
            _, places = expand(starts[which], counts)
            kept, starts = kept[places], np.concatenate([[0], np.cumsum(counts)])
        self._rows.clear_all(keys)
        if not len(kept):
            return
        values = take_rows(loaded.values, kept)
        rows = Rows([], values, longs(kept), loaded.times[kept], None)
        self.append(keys, starts, rows)

    def clear(self, keys: KeyBatch) -> None:
        """Remove the lists of some keys."""
        self._rows.clear_all(keys)
        if self._marks is not None:
            self._marks.clear_all(keys)


def _lists(starts: Ints, items: pa.Array[Any]) -> pa.Array[Any]:
    offsets: Any = pa.array(starts.astype(np.int32))
    lists: pa.Array[Any] = pa.ListArray.from_arrays(offsets, items)
    return lists


def due_lists(
    backend: KeyedStateBackend, watermark: int
) -> Iterator[tuple[list[pa.Array[Any]], Ints, Ints]]:
    """The keys, buckets and times of timers that are due, some at a time, each bucket once.

    A bucket may have several: one for each input, or those of runs with another interval.
    """
    while True:
        due = backend.due_timers("event", watermark, backend.below.most_keys(_TIMERS))
        if due is None:
            return
        columns, buckets = due.keys.key_arrays(), due.keys.namespaces().to_numpy()
        times = due.timestamps
        due.fire_all()
        once = group(key_codes(columns), buckets).first
        yield take_rows(columns, once), buckets[once], times[once]
