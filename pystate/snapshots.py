"""Sealed epochs: as a delta to be written, and as something to read beside the writer.

Thread safety: each object may be used by one thread at a time, any thread, beside the table's own.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa

from pystate import _core
from pystate.arrays import from_parts
from pystate.declarations import ValueState
from pystate.files import FileInfo, Lineage
from pystate.types import StateType

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["SealedReader", "Snapshot"]

_SCAN_ROWS = 1 << 16
Scan = Callable[[int, int], "tuple[int | None, int, list[_core._Parts]]"]


class Snapshot:
    """What one epoch changed, after-images and deletions, in memory of its own.

    `KeyedStateBackend.seal` makes it. It stays valid while the backend goes on, rolls back or is
    closed, until `close`.

    Attributes
    ----------
    lineage : Lineage
        The sealed epoch's name, and the file's.
    rows : int
        Keys that were changed or deleted.
    raw_bytes : int
        Bytes of keys and changed states.
    """

    def __init__(self, sealed: _core.Sealed) -> None:
        self._sealed = sealed
        self.lineage = Lineage(*sealed.lineage)
        self.rows: int = sealed.rows
        self.raw_bytes: int = sealed.raw_bytes

    def write(self, out: BinaryIO) -> FileInfo:
        """Write the delta file; may be called from any thread, and again after a failure.

        Parameters
        ----------
        out : binary file object
            Takes the bytes. Syncing and naming it is the caller's task.

        Returns
        -------
        FileInfo

        Raises
        ------
        NoSpaceError
            The file system is full.
        ClosedError
            After `close`, or in a forked child.

        Notes
        -----
        Sorts, compresses and writes without the GIL, O(rows log rows), and never touches the
        table.
        """
        return FileInfo(*self._sealed.write(out, str(getattr(out, "name", out))))

    def close(self) -> None:
        """Free the memory. Does nothing the second time."""
        self._sealed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Snapshot of epoch {self.lineage.epoch}, {self.rows} rows>"


def scan_batches(
    scan: Scan, names: Sequence[str], types: Sequence[StateType], rows: int = _SCAN_ROWS
) -> Iterator[pa.RecordBatch]:
    """Record batches of all rows, in slot order."""
    cursor: int | None = 0
    while cursor is not None:
        cursor, n, parts = scan(cursor, rows)
        if n:
            arrays = [from_parts(t, n, *p) for t, p in zip(types, parts, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(names, types))


def arrow_schema(names: Sequence[str], types: Sequence[StateType]) -> pa.Schema:
    """The schema of key and state columns."""
    return pa.schema([pa.field(n, t.arrow) for n, t in zip(names, types, strict=True)])


def python_keys(batch: pa.RecordBatch, columns: int) -> Iterator[Any]:
    """The keys of a batch that begins with `columns` key columns, as Python values."""
    lists = [batch.column(i).to_pylist() for i in range(columns)]
    return iter(lists[0]) if columns == 1 else iter(zip(*lists, strict=True))


class SealedReader:
    """The last sealed epoch, read while the writer goes on.

    Made by `KeyedStateBackend.reader`. What it sees never changes; once a third further epoch was
    sealed, or a sealed one undone, reading raises `SnapshotTooOldError`. It never makes the writer
    wait.
    """

    def __init__(
        self,
        table: _core.Table | None,
        key: Sequence[tuple[str, StateType]],
        states: Mapping[str, ValueState],
        path: str | os.PathLike[str] | None = None,
        where: str = "reader",
    ) -> None:
        self._keys = tuple(key)
        self._states = dict(states)
        schema = _core.Schema(
            [type.column(name) for name, type in self._keys],
            [d.type.column(name, d.default) for name, d in self._states.items()],
        )
        self._reader = _core.Reader(table, schema, path, where)
        self._names = [name for name, _ in self._keys] + list(self._states)
        self._types = [t for _, t in self._keys] + [d.type for d in self._states.values()]

    @property
    def lineage(self) -> Lineage:
        """The epoch that is read."""
        return Lineage(*self._reader.lineage())

    def get(self, key: Any) -> dict[str, Any] | None:
        """One key's states by name, with defaults; None where there is no such key.

        Raises
        ------
        SnapshotTooOldError
            The epoch has left the undo window.
        """
        found = self._reader.get(key)
        if found is None:
            return None
        result = {}
        for (name, declaration), value in zip(self._states.items(), found, strict=True):
            if value is None:
                result[name] = declaration.default
            else:
                result[name] = pickle.loads(value) if declaration.type.is_object else value
        return result

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """All rows: key columns, then state columns, null where absent; objects are pickled."""
        return scan_batches(self._reader.scan, self._names, self._types)

    def to_arrow(self) -> pa.Table:
        """All rows as one table; see `to_batches`."""
        return pa.Table.from_batches(self.to_batches(), arrow_schema(self._names, self._types))

    def __iter__(self) -> Iterator[Any]:
        for batch in self.to_batches():
            yield from python_keys(batch, len(self._keys))

    def close(self) -> None:
        """Release the epoch. Does nothing the second time."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
