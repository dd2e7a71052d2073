"""Rows of values, lists and maps straight out of their files, merged in memory, without a table.

A table costs several times what reading its files does: its memory has to be touched first, and
each row and element has to find its place. The rows of files are in one order, and each is followed
by its elements, so that a merge gives the newest state of each key in one pass. It knows nothing of
timers and namespaces, which tables do, and of no state but values, lists and maps.
Nested values and pickled objects are decoded, or left as they are, column by column.

Thread safety: functions without state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from pystate._core import core
from pystate.base.memory import process_budget
from pystate.checkpoint.state_files import OpenFile, claim
from pystate.state.columns import Column, core_schema
from pystate.state.declaration import State
from pystate.state.list import ListState
from pystate.state.map import MapState
from pystate.state.value import ValueState
from pystate.types.arrays import decoded
from pystate.types.keys import KeyColumns
from pystate.types.state_type import StateType

_MERGEABLE = (ValueState, ListState, MapState)

#: Rows, nulls, validity, offsets, values.
_Part: TypeAlias = tuple[int, int, bytes | None, bytes | None, bytes | None]


def can_merge(key: KeyColumns, states: dict[str, State[Any]]) -> bool:
    """Whether `merged_rows` gives the rows of such states and keys."""
    return (
        bool(states)
        and not any(type_.is_nested for _, type_ in key)
        and all(type(d) in _MERGEABLE for d in states.values())
    )


def merged_rows(
    files: Sequence[OpenFile],
    key: KeyColumns,
    states: dict[str, State[Any]],
    key_groups: tuple[int, int],
    max_parallelism: int,
    since: Mapping[str, int],
    clock: tuple[int | None, int | None] = (None, None),
) -> Iterator[list[pa.Array[Any]]]:
    """Merge files, oldest first, into the rows of some key groups; yields columns, keys first.

    The files' readers are used up. `can_merge` has said that these states can be read here. Of a
    state in `since` files count only from that epoch on: an older one of that name was dropped.
    What has expired by `clock`, a processing time and a watermark in milliseconds, is not there.
    """
    columns: list[Column] = []
    places: list[int] = []
    settings = []
    for name, d in states.items():
        places.append(len(columns))
        columns += d.columns(name)
        if d.ttl is not None:
            kept_ms = d.ttl.duration_ms if d.reference_ms is None else d.reference_ms
            lenient = d.ttl.visibility == "return_if_not_cleaned_up"
            settings.append((places[-1], kept_ms, d.ttl.time == "event", lenient))
    readers, mappings = [], []
    for file in files:
        readers.append(file.reader)
        mappings.append(claim(file.reader, key, None, columns, max_parallelism, True, since))
    batches = core.gather(
        readers,
        mappings,
        core_schema(key, None, columns),
        max_parallelism,
        *key_groups,
        "the rows of several files",
        process_budget(),
        core.Expiry(settings, *clock),
    )
    kept = [columns[place] for place in places]
    return (_columns(parts, key, states, kept) for _, parts in batches)


def _columns(
    parts: Sequence[_Part], key: KeyColumns, states: dict[str, State[Any]], columns: list[Column]
) -> list[pa.Array[Any]]:
    given = iter(parts)
    # Keys are not nested, so that nothing decodes them.
    arrays = [_array(next(given), type_, None) for _, type_ in key]
    for state, column in zip(states.values(), columns, strict=True):
        if isinstance(state, ValueState):
            arrays.append(_array(next(given), state.type, column.codec))
            continue
        rows, _, _, ends, _ = next(given)
        assert ends is not None
        offsets: Any = pa.Array.from_buffers(pa.int32(), rows + 1, [None, pa.py_buffer(ends)])
        keys = _array(next(given), state.key_type, None) if isinstance(state, MapState) else None
        values = _array(next(given), state.type, column.codec)
        if keys is None:
            arrays.append(pa.ListArray.from_arrays(offsets, values))
        else:
            arrays.append(pa.MapArray.from_arrays(offsets, keys, values))
    return arrays


def _array(part: _Part, type: StateType, codec: Any) -> pa.Array[Any]:
    rows, nulls, validity, offsets, values = part
    stored = layout = type.stored_arrow
    if not rows:
        return decoded(pa.array([], stored), type, codec)
    buffers = [None if validity is None else pa.py_buffer(validity), pa.py_buffer(values or b"")]
    if offsets is not None:
        buffers.insert(1, pa.py_buffer(offsets))
        # A file keeps bytes of one width as it does others.
        layout = pa.binary() if pa.types.is_fixed_size_binary(stored) else stored
    array = pa.Array.from_buffers(layout, rows, buffers, nulls)
    if layout != stored:
        array = pc.cast(array, stored)
    return decoded(array, type, codec)
