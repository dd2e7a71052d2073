"""Applying a part of a state file to a table.

A table with rows in files below it takes what its own rows need; the others stay there.

Thread safety: a function without state; the table belongs to one thread at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from pystate._core import core
from pystate.checkpoint.state_files import FileIdentity, FileInfo, Source, claim, open_file
from pystate.errors import StateOverflowError
from pystate.state.columns import Column
from pystate.types.keys import KeyColumns
from pystate.types.state_type import StateType

#: The key, the namespaces, the columns of states, and how many key groups there are.
Layout: TypeAlias = "tuple[KeyColumns, StateType | None, Sequence[Column], int]"


def apply_file(
    table: core.Table,
    source: Source,
    bounds: tuple[int, int],
    expected: FileIdentity | None,
    layout: Layout,
    allow_unclaimed_state: bool,
    since: Mapping[str, int],
) -> int:
    """See `KeyedStateBackend.load`."""
    first, last = bounds
    if expected is not None:
        # A manifest's entry may count for a part of its file alone.
        first = max(first, expected.first_key_group)
        last = min(last, expected.last_key_group)
        if first > last:
            return 0
    with open_file(source, expected) as opened:
        reader = opened.reader
        key, namespace, states, max_parallelism = layout
        columns = claim(
            reader, key, namespace, states, max_parallelism, allow_unclaimed_state, since
        )
        info = FileInfo(*reader.info())
        # For a part of a file only its blocks are read, each of which has its own checksum.
        if expected and first <= info.first_key_group and info.last_key_group <= last:
            opened.check(expected)
        try:
            if not table.is_whole:
                return table.refresh(reader, first, last)
            return table.load(reader, first, last, columns)
        except StateOverflowError:
            raise StateOverflowError(
                f"{opened.name}: it has a value that does not fit the type of which its state "
                "is declared now; the former declaration reads it"
            ) from None
