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

from collections.abc import Mapping

import pyarrow as pa

from pystate.epochs.range_report import SideFile
from pystate.spark.tasks.parquet_file import ParquetFile, part_name

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
