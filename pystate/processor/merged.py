"""Rows of value states straight out of their files, merged in memory, without a table.

A table costs several times what reading its files does: its memory has to be touched first, and
each row has to find its place. The rows of files are in one order, so that a merge gives the newest
values of each key in one pass. It knows nothing of lists, maps, timers, times to live and
namespaces, which tables do.

Thread safety: functions without state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pystate._core import core
from pystate.checkpoint.state_files import EMPTY_LINEAGE, OpenFile, claim, file_schema
from pystate.memory import process_budget
from pystate.state.columns import ELEMENT, VALUE, core_schema
from pystate.state.declaration import State
from pystate.state.value import ValueState
from pystate.types.arrays import decoded
from pystate.types.keys import KeyColumns
from pystate.types.state_type import StateType

__all__ = ["can_merge", "merged_rows"]


def can_merge(key: KeyColumns, states: dict[str, State[Any]]) -> bool:
    """Whether states, and keys of such types, are columns in files, one each.

    Parameters
    ----------
    key : tuple of (name, StateType)
        The key's columns.
    states : dict of str to State
        The declarations of the states to read.
    """
    return (
        bool(states)
        and not any(type_.is_nested for _, type_ in key)
        and all(type(d) is ValueState and d.ttl is None for d in states.values())
    )


def merged_rows(
    files: Sequence[OpenFile],
    key: KeyColumns,
    states: dict[str, State[Any]],
    key_groups: tuple[int, int],
    max_parallelism: int,
    since: Mapping[str, int],
) -> Iterator[list[pa.Array[Any]]] | None:
    """Merge files into the rows of some key groups.

    Parameters
    ----------
    files : sequence of OpenFile
        Oldest first; their readers are used up.
    key : tuple of (name, StateType)
        The key's columns.
    states : dict of str to State
        What to read; `can_merge` says that it can be read here.
    key_groups : tuple of (int, int)
        The first and the last of them.
    max_parallelism : int
        Number of key groups.
    since : mapping of str to int
        For some states the epoch from which on files count: an older state of that name was
        dropped.

    Returns
    -------
    iterator of list of pyarrow.Array, or None
        The columns of some rows each, keys first. None if a file has elements of lists, maps or
        timers.

    Raises
    ------
    CorruptFileError, NewerFormatError, CheckpointError
        A file cannot be read.
    SchemaError
        A file's key or states are not as declared.
    """
    columns = [d.columns(name)[0] for name, d in states.items()]
    assert all(column.kind == VALUE for column in columns)
    if any(file_schema(file.reader).keys[-1].name == ELEMENT for file in files):
        return None
    readers, mappings = [], []
    for file in files:
        readers.append(file.reader)
        mappings.append(claim(file.reader, key, None, columns, max_parallelism, True, since))
    blocks = core.merge(
        readers,
        mappings,
        core_schema(key, None, columns),
        "base",
        *EMPTY_LINEAGE,
        max_parallelism,
        *key_groups,
        None,
        "the rows of several files",
        process_budget(),
    )
    # Keys are not nested, so that nothing decodes them.
    codecs: list[tuple[StateType, Any]] = [(type_, None) for _, type_ in key]
    codecs += [(d.type, c.codec) for d, c in zip(states.values(), columns, strict=True)]
    return (
        [_array(rows, part, *codec) for part, codec in zip(parts, codecs, strict=True)]
        for rows, parts in blocks
    )


def _array(rows: int, part: Any, type: StateType, codec: Any) -> pa.Array[Any]:
    nulls, validity, offsets, values = part
    buffers = [None if validity is None else pa.py_buffer(validity), pa.py_buffer(values)]
    stored = layout = type.stored_arrow
    if offsets is not None:
        buffers.insert(1, pa.py_buffer(offsets))
        # A file keeps bytes of one width as it does others.
        layout = pa.binary() if pa.types.is_fixed_size_binary(stored) else stored
    array = pa.Array.from_buffers(layout, rows, buffers, nulls)
    if layout != stored:
        array = pc.cast(array, stored)
    return decoded(array, type, codec)
