"""Lists of rows of many keys, read and written at once, or in parts that fit in memory.

Rows that are kept in lists differ in size, so whether those of some keys fit into the memory of a
table on disk together is known only when they have come.

Thread safety: as the backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pyarrow as pa

from pystate.errors import MemoryLimitError
from pystate.state.key_batch import KeyBatch
from pystate.state.list import ListHandle
from pystate.tables.backend import KeyedStateBackend

T = TypeVar("T")


def part_of(backend: KeyedStateBackend, keys: KeyBatch, begin: int, end: int) -> KeyBatch:
    """Some of the keys of a batch, in their namespaces."""
    if begin == 0 and end == len(keys):
        return keys
    columns = [array.slice(begin, end - begin) for array in keys.key_arrays()]
    if not keys.table.has_namespaces:
        return backend.keys(columns)
    return backend.keys(columns, keys.namespaces().slice(begin, end - begin))


def in_parts(
    backend: KeyedStateBackend, keys: KeyBatch, use: Callable[[KeyBatch, int], T]
) -> Iterator[T]:
    """Use the rows of keys, of fewer at a time where those of all do not fit in memory together.

    ``use(part, begin)`` gets some of the keys, from one on. Before it changes anything it needs the
    rows of all of these.
    """
    rest = [(0, len(keys))]
    while rest:
        begin, end = rest.pop()
        try:
            used = use(part_of(backend, keys, begin, end), begin)
        except MemoryLimitError as error:
            rows = end - begin
            if error.keys is None or rows <= 1:
                raise
            at = begin + max(1, min(rows // 2, error.keys * 3 // 4))
            rest += [(at, end), (begin, at)]
        else:
            yield used


def read_lists(backend: KeyedStateBackend, handle: ListHandle, keys: KeyBatch) -> Any:
    """The lists of some keys, as one array; see `ListHandle.lists`."""
    parts = list(in_parts(backend, keys, lambda part, _: handle.lists(part)))
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def extend(backend: KeyedStateBackend, handle: ListHandle, keys: KeyBatch, lists: Any) -> None:
    """Append lists to those of some keys."""

    def put(part: KeyBatch, begin: int) -> None:
        handle.extend(part, lists.slice(begin, len(part)) if len(part) < len(lists) else lists)

    for _ in in_parts(backend, keys, put):
        pass
