"""Side outputs: rows that an operator emits beside its result, under a tag.

The tasks write them, since a DataFrame has one result; the driver stages the files that the reports
name (`pystate.spark.sinks.outputs`).

Thread safety: `SideFiles` belongs to its task.

Invariants
----------
1. A file is complete and durable before the report that names it; no other file is ever adopted.
2. Tasks write beside the staging folder, and the driver moves the files that count into it: a file
   that a losing attempt leaves, however late, is never published.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pystate.coordinator.epoch import SideFile

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetWriter

__all__ = ["SideFiles"]


class SideFiles:
    """One task's rows for side outputs: a file per tag, made at the tag's first row.

    Parameters
    ----------
    folders : mapping from tag to folder
        The folders of `Outputs.side_folder`.
    index : int
        The range, which file names contain.
    """

    def __init__(self, folders: Mapping[str, str], index: int) -> None:
        self._folders = folders
        self._index = index
        self._open: dict[str, _SideWriter] = {}

    def write(self, tag: str, rows: pa.RecordBatch) -> None:
        """Append rows; all rows of a tag have the same schema."""
        if rows.num_rows == 0:
            return
        file = self._open.get(tag)
        if file is None:
            name = f"part-{self._index:05d}-{uuid.uuid4().hex}.parquet"
            file = self._open[tag] = _SideWriter(self._folders[tag], name, rows.schema)
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


class _SideWriter:
    def __init__(self, folder: str, name: str, schema: pa.Schema) -> None:
        from pyarrow.parquet import ParquetWriter

        self.name = name
        self.rows = 0
        self._path = os.path.join(folder, name)
        os.makedirs(folder, exist_ok=True)
        self._file: Any = open(self._path, "xb")  # noqa: SIM115 (closed by finish or discard)
        self._writer: ParquetWriter | None = ParquetWriter(self._file, schema)

    def write(self, rows: pa.RecordBatch) -> None:
        assert self._writer is not None
        self._writer.write_batch(rows)
        self.rows += rows.num_rows

    def finish(self) -> int:
        assert self._writer is not None
        self._writer.close()
        self._writer = None
        self._file.flush()
        size: int = self._file.tell()
        os.fsync(self._file.fileno())
        self._file.close()
        return size

    def discard(self) -> None:
        writer, self._writer = self._writer, None
        with suppress(Exception):  # an error about a file that is to be removed does not matter
            if writer is not None:
                writer.close()
        self._file.close()
        with suppress(FileNotFoundError):
            os.unlink(self._path)
