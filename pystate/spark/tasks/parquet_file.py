"""The Parquet files that a task writes: for a sink, and for side outputs.

Thread safety: the objects belong to their task.

Invariants
----------
1. Rows are taken as they are when `write` is called, as if they were sent: the function that has
   made them may change their memory afterwards.
2. A file counts only if it was finished, and is durable then, before the report that names it. No
   other file is ever adopted.
3. Tasks write beside the staging folder, and the driver moves the files that count, which the
   reports name, into it (`pystate.spark.sinks.outputs`): a file that a losing attempt leaves,
   however late, is never published.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pystate.epochs.range_report import SideFile

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetWriter

#: Rows in memory that make a row group. Spark's writer takes 128 MB; the tasks have no such memory.
_GROUP_BYTES = 16 << 20


def part_name(index: int) -> str:
    """A name that no other attempt has, for a file of a range."""
    return f"part-{index:05d}-{uuid.uuid4().hex}.parquet"


class ParquetFile:
    """One task's rows in a file of a folder, which is made.

    `options` are arguments for `pyarrow.parquet.ParquetWriter`. If there is no writer for them or
    for the schema, pyarrow's error says so, and no file is left. An `OSError` has the file's path.
    """

    def __init__(
        self, folder: str, name: str, schema: pa.Schema, options: Mapping[str, Any] | None = None
    ) -> None:
        from pyarrow.parquet import ParquetWriter

        self.name = name
        self.rows = 0
        self._path = os.path.join(folder, name)
        self._schema = schema
        with self._named_errors():
            os.makedirs(folder, exist_ok=True)
            self._file: Any = open(self._path, "xb")  # noqa: SIM115 (closed by finish or discard)
        self._writer: ParquetWriter | None = None
        try:
            self._writer = ParquetWriter(self._file, schema, **(options or {}))
        except BaseException:
            self.discard()
            raise
        if schema.metadata and not (options or {}).get("store_schema", True):
            notes = {key.decode(): value.decode() for key, value in schema.metadata.items()}
            self._writer.add_key_value_metadata(notes)
        self._memory: pa.BufferOutputStream | None = None
        self._stream: Any = None

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows of the file's schema."""
        assert self._writer is not None
        self.rows += rows.num_rows
        if self._stream is None and rows.nbytes >= _GROUP_BYTES:
            with self._named_errors():
                self._writer.write_batch(rows)
            return
        if self._memory is None:
            self._memory = pa.BufferOutputStream()
            self._stream = pa.ipc.new_stream(self._memory, self._schema)
        self._stream.write_batch(rows)
        if self._memory.tell() >= _GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        assert self._writer is not None
        if self._memory is None:
            return
        self._stream.close()
        rows = pa.ipc.open_stream(self._memory.getvalue()).read_all()
        self._memory = self._stream = None
        with self._named_errors():
            self._writer.write_table(rows, max(rows.num_rows, 1))

    def finish(self) -> int:
        """Make the file durable; return its size."""
        self._write_group()
        assert self._writer is not None
        with self._named_errors():
            self._writer.close()
            self._writer = None
            self._file.flush()
            size: int = self._file.tell()
            os.fsync(self._file.fileno())
            self._file.close()
        return size

    def discard(self) -> None:
        """Remove the file."""
        writer, self._writer = self._writer, None
        with suppress(Exception):  # an error about a file that is to be removed does not matter
            if writer is not None:
                writer.close()
        with suppress(OSError):
            self._file.close()
        with suppress(FileNotFoundError):
            os.unlink(self._path)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.filename is not None or error.errno is None:
                raise
            raise OSError(error.errno, os.strerror(error.errno), self._path) from error


class SideFiles:
    """One task's rows for side outputs: a file per tag, made at the tag's first row.

    `folders` are those of `Outputs.side_folder` by tag. The tasks write these rows, since a
    DataFrame has one result.
    """

    def __init__(self, folders: Mapping[str, str], index: int) -> None:
        self._folders = folders
        self._index = index
        self._open: dict[str, ParquetFile] = {}

    def write(self, tag: str, rows: pa.RecordBatch) -> None:
        """Append rows; all rows of a tag have the same schema."""
        if rows.num_rows == 0:
            return
        file = self._open.get(tag)
        if file is None:
            name = part_name(self._index)
            file = self._open[tag] = ParquetFile(self._folders[tag], name, rows.schema)
        file.write(rows)

    def finish(self) -> tuple[SideFile, ...]:
        """Make the files durable and describe them."""
        return tuple(
            SideFile(tag, file.name, file.finish(), file.rows) for tag, file in self._open.items()
        )

    def discard(self) -> None:
        """Remove what was written; the task failed."""
        for file in self._open.values():
            file.discard()
