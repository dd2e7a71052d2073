"""A piece of one key's map or list, which may be much larger than what is asked of it.

Where all files of the key's range lie on a local disk, have guides and the columns that the epoch
declares, a table is put above them that has nothing in memory, as tables on disk are: it reads the
blocks of those elements that are asked for. Elsewhere the key's row is read as a whole.

Pieces come in the order of the map's keys, or of the list. Files have keys in that order, but for
numbers: negative ones come behind the others. Keys whose order is another one are sorted here.

Thread safety: functions without state; what they yield belongs to one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from pystate._core import core
from pystate.base.arguments import integer
from pystate.checkpoint.refs import RangeState
from pystate.errors import CheckpointError, InvalidArgumentError, SchemaError
from pystate.processor.epochs import missing_file
from pystate.processor.scan import StateScan, unused
from pystate.processor.selection import Selection, exploded_fields
from pystate.query.connection import View
from pystate.state.declaration import State
from pystate.state.list import ListState
from pystate.state.map import MapHandle, MapState
from pystate.state.operator_spec import OperatorSpec
from pystate.tables.backend import KeyedStateBackend
from pystate.tables.below import FileBelow
from pystate.tables.options import DISK, TableOptions
from pystate.types.arrays import as_array, decoded, encoded, hash_keys, key_groups
from pystate.types.keys import parse_key
from pystate.types.state_type import StateType

#: So many elements are in the first batches of a map, and in all others at most.
_FIRST_ELEMENTS, ELEMENTS = 64, 4096
#: Memory of the table that reads them.
_TABLE_BYTES = 16 << 20
_BITS = {"byte": 8, "short": 16, "int": 32, "long": 64}
#: What a map does not have.
_MISSING: Any = object()
_Piece = Iterator[tuple[list[Any], list[Any]]]


class Wanted:
    """Which elements of which key are asked for, once that is checked."""

    def __init__(
        self, scan: StateScan, state: str, key: list[pa.Array[Any]], namespace: Any
    ) -> None:
        self.scan, self.state, self.key, self.namespace = scan, state, key, namespace
        declaration = scan.states[state]
        if not isinstance(declaration, (ListState, MapState)):
            raise InvalidArgumentError(
                f"entries: state {state!r} of operator {scan.operator.uid!r} is neither a list nor "
                f"a map, it is {declaration!r}: get(...) reads it"
            )
        self.declaration: ListState | MapState = declaration
        self.first: Any = None
        self.end: Any = None

    def between(self, first: Any, end: Any) -> None:
        """Only elements from `first` on, and before `end`; None for no bound."""
        if isinstance(self.declaration, ListState):
            self.first = 0 if first is None else integer(first, "entries: from_", least=0)
            self.end = None if end is None else integer(end, "entries: to", least=0)
            return
        self.first = None if first is None else _bound(self.declaration, first, "entries: from_")
        self.end = None if end is None else _bound(self.declaration, end, "entries: to")

    @property
    def schema(self) -> pa.Schema:
        """The columns of the elements."""
        return pa.schema(exploded_fields(self.state, self.declaration))

    @property
    def names(self) -> StateType:
        """The type of the map's keys, or of positions."""
        if isinstance(self.declaration, MapState):
            return self.declaration.key_type
        return StateType("long")

    def batch(self, names: Any, values: pa.Array[Any]) -> pa.RecordBatch:
        """A batch of elements."""
        return pa.RecordBatch.from_arrays([names, values], schema=self.schema)


def _bound(declaration: MapState, value: Any, what: str) -> Any:
    if declaration.key_type.name in _BITS:
        return integer(value, what)  # numbers out of the type's range are bounds as well
    return as_array([value], declaration.key_type, what)[0].as_py()


def entries(view: View, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """Yield what is asked for, some elements at a time."""
    group = int(key_groups(hash_keys(wanted.key), wanted.scan.max_parallelism)[0])
    for state in wanted.scan.operator.ranges:
        if state.overlap((group, group)) is not None:
            break
    else:
        return
    if wanted.first is not None and wanted.end is not None and not wanted.first < wanted.end:
        return
    table = _table(view, wanted, state)
    if table is None:
        yield from _of_whole(view, wanted)
        return
    with table:
        yield from _pieces(table, wanted)


# ---- piece by piece -------------------------------------------------------------------------


def _table(view: View, wanted: Wanted, state: RangeState) -> KeyedStateBackend | None:
    """A table above the files of a range; None if one of them cannot be below a table."""
    scan, storage = wanted.scan, view.connection.storage
    if state.since or any(_is_changed(state) for state in scan.states.values()):
        return None
    if isinstance(wanted.declaration, ListState) and wanted.declaration.ttl is not None:
        return None  # the positions of items are those of all that are there
    files = []
    for ref in state.files:
        bounds, path = ref.overlap(state.bounds), storage.local_path(ref.path)
        if path is None:
            return None
        if bounds is not None:
            files.append(FileBelow(path, *bounds))
    operator = OperatorSpec(
        uid=scan.operator.uid,
        key=parse_key(list(scan.operator.key_schema)),
        states=unused(scan.states),
        namespace=scan.namespace,
        timers=scan.operator.timers,
        max_parallelism=scan.max_parallelism,
    )
    table = KeyedStateBackend.of(operator, state.bounds, TableOptions(DISK, _TABLE_BYTES))
    try:
        processing_time, watermark = scan.clock
        table.set_clock(processing_time=processing_time, watermark=watermark)
        table.below.set_files(files)
        return table
    except SchemaError:
        table.close()
        return None
    except CheckpointError as error:
        table.close()
        for ref in state.files:
            if not storage.exists(ref.path):
                raise missing_file(storage, view.epoch, ref.path) from error
        raise
    except BaseException:
        table.close()
        raise


def _is_changed(state: State[Any]) -> bool:
    """Whether a table that shows a list or map changes its times, and so needs all of it."""
    ttl = state.ttl
    if ttl is None or not isinstance(state, (ListState, MapState)):
        return False
    return ttl.time == "event" or ttl.visibility == "return_if_not_cleaned_up"


def _pieces(table: KeyedStateBackend, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    key = [column[0].as_py() for column in wanted.key]
    table.set_current_key(key[0] if len(key) == 1 else tuple(key))
    if wanted.scan.namespace is not None:
        table.set_current_namespace(wanted.namespace)
    handle: Any = table[wanted.state]
    of_map = isinstance(wanted.declaration, MapState)
    parts = _entries_of(handle, wanted) if of_map else _items_of(handle, wanted)
    for names, values in parts:
        if wanted.declaration.type.is_nested:
            stored = encoded(values, handle.type, handle.codec, wanted.state)
            array = decoded(stored, handle.type, handle.codec)
        else:
            array = pa.array(values, wanted.declaration.type.arrow)
        yield wanted.batch(pa.array(names, wanted.names.arrow), array)


def _items_of(handle: core.ListElements, wanted: Wanted) -> _Piece:
    first, end = wanted.first, handle.count()
    end = end if wanted.end is None else min(end, wanted.end)
    for at in range(first, end, ELEMENTS):
        items = handle.items_from(at, min(ELEMENTS, end - at))
        yield list(range(at, at + len(items))), items


def _entries_of(handle: MapHandle, wanted: Wanted) -> _Piece:
    name = wanted.names.name
    if name in _BITS:
        yield from _numbered(handle, wanted.first, wanted.end, _BITS[name] - 1)
    elif name in ("string", "binary"):
        yield from _named(handle, wanted.first, wanted.end)
    else:
        pairs = chain.from_iterable(_behind(handle, None, True))
        found = sorted((pair for pair in pairs if _is_within(pair[0], wanted)), key=_first)
        for at in range(0, len(found), ELEMENTS):
            yield _columns(found[at : at + ELEMENTS])


def _numbered(handle: MapHandle, first: int | None, end: int | None, bits: int) -> _Piece:
    """The entries of a map of integers: those below zero come last in files."""
    least, most = -(1 << bits), (1 << bits) - 1
    low = least if first is None else max(first, least)
    high = most + 1 if end is None else min(end, most + 1)
    if low < min(high, 0):
        parts = _behind(handle, most if low == least else low - 1, False)
        yield from _until(parts, lambda key: key < 0 and key < high)
    low = max(low, 0)
    if low < high:
        parts = _behind(handle, None, True) if low == 0 else _behind(handle, low - 1, False)
        yield from _until(parts, lambda key: 0 <= key < high)


def _named(handle: MapHandle, first: Any, end: Any) -> _Piece:
    """The entries of a map whose keys files have in their order."""
    if first is None:
        parts = _behind(handle, None, True)
    else:
        # An object is not unpickled by the core's own method.
        value = core.MapElements.get(handle, first, _MISSING)
        if value is not _MISSING:
            yield [first], [value]
        parts = _behind(handle, first, False)
    yield from _until(parts, lambda key: end is None or key < end)


def _behind(handle: MapHandle, last: Any, begins: bool) -> Iterator[list[tuple[Any, Any]]]:
    most = min(_FIRST_ELEMENTS, ELEMENTS)  # a small piece is not to be read with many others
    part = handle.entries_behind(last, begins, most)
    while part:
        yield part
        most = min(2 * most, ELEMENTS)
        part = handle.entries_behind(part[-1][0], False, most)


def _until(
    parts: Iterator[list[tuple[Any, Any]]], holds: Callable[[Any], bool]
) -> Iterator[tuple[list[Any], list[Any]]]:
    """Parts up to the first key for which it does not hold."""
    for part in parts:
        kept = part
        if not holds(part[-1][0]):
            kept = part[: next(at for at, (key, _) in enumerate(part) if not holds(key))]
        if kept:
            yield _columns(kept)
        if len(kept) < len(part):
            return


def _columns(pairs: list[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
    return [key for key, _ in pairs], [value for _, value in pairs]


def _first(pair: tuple[Any, Any]) -> Any:
    return pair[0]


def _is_within(key: Any, wanted: Wanted) -> bool:
    after = wanted.first is None or key >= wanted.first
    return bool(after and (wanted.end is None or key < wanted.end))


# ---- as a whole -----------------------------------------------------------------------------


def _of_whole(view: View, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """What is asked for of a row that is read as a whole."""
    uid = wanted.scan.operator.uid
    spaces = None if wanted.scan.namespace is None else [wanted.namespace]
    rows = view.lookup(uid).rows(wanted.key, spaces, selection=Selection(state=wanted.state))
    if not rows.num_rows:
        return
    column: Any = rows.column(rows.num_columns - 1).combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0)
    if isinstance(wanted.declaration, ListState):
        values = column.flatten()
        end = len(values) if wanted.end is None else min(wanted.end, len(values))
        taken = np.arange(min(wanted.first, end), end)
        names = pa.array(taken, pa.int64())
    else:
        given = column.slice(0, 1)
        first, last = given.offsets[0].as_py(), given.offsets[1].as_py()
        keys, values = given.keys.slice(first, last - first), given.items.slice(first, last - first)
        listed = keys.to_pylist()
        kept = [at for at, key in enumerate(listed) if _is_within(key, wanted)]
        taken = np.array(sorted(kept, key=listed.__getitem__), np.int64)
        names = keys.take(pa.array(taken))
    values = values.take(pa.array(taken, pa.int64()))
    for at in range(0, len(taken), ELEMENTS):
        yield wanted.batch(names.slice(at, ELEMENTS), values.slice(at, ELEMENTS))
