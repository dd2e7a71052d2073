"""Sealed epochs: the delta to write to a file, and a reader to use beside the writer.

Thread safety: each object may be used by any one thread at a time, beside the table's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa

from pystate._core import core
from pystate.checkpoint.state_files import FileInfo, Lineage
from pystate.errors import ClosedError, InvalidArgumentError
from pystate.state.columns import NAMESPACE, Column, core_schema, timers_columns
from pystate.state.declaration import State
from pystate.tables.below import (
    SCAN_ROWS,
    FilesBelow,
    gathered,
    key_arrays,
    parts_before,
    plain_array,
)
from pystate.types.arrays import decoded, from_parts
from pystate.types.nested import codec_of
from pystate.types.state_type import StateType

if TYPE_CHECKING:
    from typing_extensions import Self


class Snapshot:
    """The changes of one epoch, as after-images and deletions, in their own memory.

    `KeyedStateBackend.seal` makes it. It stays valid until `close`, even if the backend seals,
    rolls back or is closed.

    Attributes
    ----------
    lineage : Lineage
        The sealed epoch's name, and the file's.
    rows : int
        Keys that were changed or deleted.
    raw_bytes : int
        Bytes of keys and changed states.
    """

    def __init__(self, sealed: core.Sealed, block_bytes: int = 0) -> None:
        self._sealed = sealed
        self._block_bytes = block_bytes
        self.lineage = Lineage(*sealed.lineage)
        self.rows: int = sealed.rows
        self.raw_bytes: int = sealed.raw_bytes

    def write(self, out: BinaryIO) -> FileInfo:
        """Write the delta file; may be called from any thread, and again after a failure.

        Parameters
        ----------
        out : binary file object
            Where the bytes are written. The caller must sync and name the file.

        Returns
        -------
        FileInfo

        Raises
        ------
        NoSpaceError
            The file system is full.
        ClosedError
            The snapshot was closed, or this is a forked child.

        Notes
        -----
        Sorts, compresses and writes without the GIL, O(rows log rows), and never touches the
        table.
        """
        name = str(getattr(out, "name", out))
        return FileInfo(*self._sealed.write(out, name, self._block_bytes))

    def close(self) -> None:
        """Free the memory. Does nothing the second time."""
        self._sealed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Snapshot of epoch {self.lineage.epoch}, {self.rows} rows>"


def python_keys(batch: pa.RecordBatch, columns: int) -> Iterator[Any]:
    """The keys of a batch that begins with `columns` key columns, as Python values."""
    lists = [batch.column(i).to_pylist() for i in range(columns)]
    return iter(lists[0]) if columns == 1 else iter(zip(*lists, strict=True))


class SealedReader:
    """Reads the last sealed epoch while the writer continues.

    Made by `KeyedStateBackend.reader`. Its content never changes; once three more epochs are
    sealed, or a sealed one is undone, reading raises `SnapshotTooOldError`. It never blocks the
    writer. It returns only value states; other kinds are left out.
    """

    def __init__(
        self,
        table: core.Table | None,
        key: Sequence[tuple[str, StateType]],
        states: Mapping[str, State[Any]],
        path: str | os.PathLike[str] | None = None,
        where: str = "reader",
        *,
        namespace: StateType | None = None,
        timers: bool = False,
    ) -> None:
        columns = self._take(key, states, namespace)
        if timers:
            columns += timers_columns()
        schema = core_schema(self._keys, namespace, columns)
        self._reader = core.Reader(table, schema, path, where)

    def _take(
        self,
        key: Sequence[tuple[str, StateType]],
        states: Mapping[str, State[Any]],
        namespace: StateType | None,
    ) -> list[Column]:
        """Keep which states are read; return the columns of all."""
        self._keys = tuple(key)
        self._namespace = namespace
        self._states: dict[str, tuple[int, State[Any]]] = {}
        column = 0
        for name, declaration in states.items():
            if declaration.in_readers:
                self._states[name] = column, declaration
            column += len(declaration.columns(name))
        return [column for name, d in states.items() for column in d.columns(name)]

    @property
    def lineage(self) -> Lineage:
        """The lineage of the epoch that is read."""
        return Lineage(*self._reader.lineage())

    def get(self, key: Any, namespace: Any = None) -> dict[str, Any] | None:
        """One key's states by name, with defaults; None if there is no such key.

        Parameters
        ----------
        key : object
            The key; a tuple if it has several columns.
        namespace : optional
            The namespace of the states; the default one if omitted.

        Raises
        ------
        SnapshotTooOldError
            The epoch has left the undo window.
        TableBusyError
            A rollback of the table does not end: its writer was killed during it, or has been at it
            for seconds. Reading works again once a process has opened the table for writing.
        """
        if self._namespace is not None:
            key = (*(key if len(self._keys) > 1 else (key,)), namespace)
        elif namespace is not None:
            raise InvalidArgumentError("the table has no namespaces")
        values = self._row(key)
        if values is None:
            return None
        return {
            name: declaration.loaded(name, values[column])
            for name, (column, declaration) in self._states.items()
        }

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """All rows: key columns, then value states; null if absent; objects in pickled form."""
        schema = self._arrow_schema()
        for keys, values in self._scanned():
            yield pa.RecordBatch.from_arrays([*keys, *values], schema=schema)

    def _row(self, key: Any) -> list[Any] | None:
        return self._reader.get(key)

    def _scanned(self) -> Iterator[tuple[list[pa.Array[Any]], list[pa.Array[Any]]]]:
        """Rows: the columns of the key, and those of value states."""
        cursor: int | None = 0
        n_keys = self._reader.key_columns
        key_types = [type_ for _, type_ in self._key_columns()]
        while cursor is not None:
            cursor, n, parts = self._reader.scan(cursor, SCAN_ROWS)
            if not n:
                continue
            keys = [
                from_parts(type_, n, *part) for type_, part in zip(key_types, parts, strict=False)
            ]
            values = []
            for name, (column, declaration) in self._states.items():
                stored = from_parts(declaration.type, n, *parts[n_keys + column])
                values.append(decoded(stored, declaration.type, codec_of(declaration.type, name)))
            yield keys, values

    def _arrow_schema(self) -> pa.Schema:
        values = [(name, declaration.type) for name, (_, declaration) in self._states.items()]
        return pa.schema([pa.field(name, t.arrow) for name, t in [*self._key_columns(), *values]])

    def _key_columns(self) -> list[tuple[str, StateType]]:
        if self._namespace is None:
            return list(self._keys)
        return [*self._keys, (NAMESPACE, self._namespace)]

    def to_arrow(self) -> pa.Table:
        """All rows as one table; see `to_batches`."""
        return pa.Table.from_batches(self.to_batches(), self._arrow_schema())

    def __iter__(self) -> Iterator[Any]:
        for batch in self.to_batches():
            yield from python_keys(batch, len(self._keys))

    def close(self) -> None:
        """Release the epoch. Does nothing the second time."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FilesReader(SealedReader):
    """Reads what state files have, like a `SealedReader`; the files may go meanwhile.

    It never becomes too old.
    """

    def __init__(
        self,
        files: FilesBelow,
        lineage: Lineage,
        max_parallelism: int,
        key_group_range: tuple[int, int],
        key: Sequence[tuple[str, StateType]],
        states: Mapping[str, State[Any]],
        *,
        namespace: StateType | None = None,
        timers: bool = False,
    ) -> None:
        self._columns = self._take(key, states, namespace)
        if timers:
            self._columns += timers_columns()
        self._schema = core_schema(self._keys, namespace, self._columns)
        self._lineage = lineage
        self._max_parallelism = max_parallelism
        self._bounds = key_group_range
        self._stack = files.stack(self._schema, max_parallelism)
        self._files: FilesBelow | None = files

    @property
    def lineage(self) -> Lineage:
        """See `SealedReader`."""
        return self._lineage

    def _row(self, key: Any) -> list[Any] | None:
        self._open_files()
        return None if self._stack is None else self._stack.get(key)

    def _scanned(self) -> Iterator[tuple[list[pa.Array[Any]], list[pa.Array[Any]]]]:
        types = [type_ for _, type_ in self._key_columns()]
        at = parts_before(self._columns)
        with self._open_files().scanned() as opened:
            for _, parts in gathered(
                opened,
                self._schema,
                self._columns,
                self._max_parallelism,
                self._bounds,
                None,
            ):
                keys = key_arrays(iter(parts), types)
                rest = parts[len(types) :]
                values = []
                for _, (column, declaration) in self._states.items():
                    codec = self._columns[column].codec
                    values.append(plain_array(rest[at[column]], declaration.type, codec))
                yield keys, values

    def _open_files(self) -> FilesBelow:
        if self._files is None:
            raise ClosedError("the reader is closed")
        return self._files

    def close(self) -> None:
        """Let go of the files. Does nothing the second time."""
        self._files = None
        if self._stack is not None:
            self._stack.close()
