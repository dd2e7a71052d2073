"""Rows of values, lists and maps straight out of their files, merged in memory, without a table.

A table costs several times what reading its files does: its memory has to be touched first, and
each row and element has to find its place. The rows of files are in one order, and each is followed
by its elements, so that a merge gives the newest state of each key in one pass. It knows nothing of
timers and namespaces, which tables do, and of no state but values, lists and maps.
Nested values and pickled objects are decoded, or left as they are, column by column.

Thread safety: functions without state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from pystate._core import core
from pystate.base.memory import process_budget
from pystate.checkpoint.state_files import OpenFile, claim
from pystate.state.columns import Column, core_schema
from pystate.state.declaration import State
from pystate.state.expiring import Expiring
from pystate.tables.below import PARTS, PLAIN, Part, key_arrays, state_array
from pystate.types.keys import KeyColumns


def can_merge(key: KeyColumns, states: dict[str, State[Any]]) -> bool:
    """Whether `merged_rows` gives the rows of such states and keys."""
    return (
        bool(states)
        and not any(type_.is_nested for _, type_ in key)
        and all(type(d) in PLAIN for d in states.values())
    )


def merged_rows(
    files: Sequence[OpenFile],
    key: KeyColumns,
    states: dict[str, State[Any]],
    key_groups: tuple[int, int],
    max_parallelism: int,
    since: Mapping[str, int],
    clock: tuple[int | None, int | None] = (None, None),
    given: Collection[str] | None = None,
) -> Iterator[list[pa.Array[Any]]]:
    """Merge files, oldest first, into the rows of some key groups; yields columns, keys first.

    The files' readers are used up. `can_merge` has said that these states can be read here. Of a
    state in `since` files count only from that epoch on: an older one of that name was dropped.
    What has expired by `clock`, a processing time and a watermark in milliseconds, is not there.
    Where only some states are `given` the others only tell which keys exist.
    """
    columns: list[Column] = []
    places: list[int] = []
    for name, d in states.items():
        places.append(len(columns))
        columns += d.columns(name)
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
        Expiring.of(states, *clock).among(columns),
    )
    kept = [columns[place] for place in places]
    names = states.keys() if given is None else given
    return (_columns(parts, key, states, kept, names) for _, parts in batches)


def _columns(
    parts: Sequence[Part],
    key: KeyColumns,
    states: dict[str, State[Any]],
    columns: list[Column],
    names: Collection[str],
) -> list[pa.Array[Any]]:
    given = iter(parts)
    # Keys are not nested, so that nothing decodes them.
    arrays = key_arrays(given, [type_ for _, type_ in key])
    for (name, state), column in zip(states.items(), columns, strict=True):
        if name in names:
            arrays.append(state_array(given, state, column))
        else:
            deque(islice(given, PARTS[column.kind]), maxlen=0)
    return arrays
