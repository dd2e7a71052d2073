"""Side outputs: rows that leave an operator beside its result, under a tag.

The tasks write them, since a DataFrame has one result; the driver stages what their reports name.

Thread safety: `Outputs` is immutable; `SideFiles` belongs to its task.

Invariants
----------
1. A file is complete and durable before the report that names it; no other file is ever adopted.
2. Tasks write beside the staging folder, and the driver moves in what counts: a file that a losing
   attempt leaves, whenever that ends, is never among the published ones.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import pyarrow as pa

from pystate.epoch import RangeReport, SideFile
from pystate.errors import InvalidArgumentError
from pystate.spark.sink import Sink, Transaction

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetWriter

__all__ = ["Outputs", "SideFiles", "SideSink"]


@runtime_checkable
class SideSink(Protocol):
    """What a side output needs of a sink, beside what `Sink` says of the same methods."""

    def prepare(self, epoch: int) -> None:
        """Fail now if the epoch could not be committed later."""

    def check_columns(self, names: Sequence[str]) -> None:
        """Refuse columns that could not be read back."""

    def task_folder(self, epoch: int, evaluation_id: str) -> str:
        """The folder in which an evaluation's tasks write Parquet files, one name each."""

    def stage_files(
        self, files: Sequence[tuple[str, int]], epoch: int, evaluation_id: str
    ) -> Transaction:
        """Take over files of that folder, by name and size, as what `Sink.stage` writes."""

    def discard(self, epoch: int, evaluation_id: str) -> None:
        """Remove what an evaluation staged that was not published."""


@dataclass(frozen=True)
class Outputs:
    """Where the rows of an epoch go: one sink for the pipeline's result, one for each tag."""

    main: Sink
    sides: Mapping[str, SideSink] = field(default_factory=dict)

    def __post_init__(self) -> None:
        folders: dict[object, str] = {getattr(self.main, "path", None): "the job's sink"}
        for tag, sink in self.sides.items():
            if not isinstance(sink, SideSink):
                raise InvalidArgumentError(
                    f"side_outputs[{tag!r}] is {sink!r:.80}: give each tag a sink, for example "
                    f"side_outputs={{{tag!r}: ParquetSink(path)}}"
                )
            path = getattr(sink, "path", id(sink))
            if path in folders:
                raise InvalidArgumentError(
                    f"side_outputs[{tag!r}] and {folders[path]} both write to {path}: each "
                    "output needs a folder of its own"
                )
            folders[path] = f"side_outputs[{tag!r}]"

    def prepare(self, epoch: int) -> None:
        """Fail now if the epoch could not be committed later."""
        self.main.prepare(epoch)
        for sink in self.sides.values():
            sink.prepare(epoch)

    def discard(self, epoch: int, evaluation_id: str) -> None:
        """Remove what an evaluation staged."""
        self.main.discard(epoch, evaluation_id)
        for sink in self.sides.values():
            sink.discard(epoch, evaluation_id)

    def stage_sides(
        self, reports: Sequence[RangeReport], epoch: int, evaluation_id: str
    ) -> list[Transaction]:
        """Stage the files that the reports name; a tag without rows has no transaction."""
        files: dict[str, dict[tuple[str, int], None]] = {}
        for report in reports:
            for file in report.side_files:
                files.setdefault(file.tag, {})[file.name, file.file_bytes] = None
        return [
            self.sides[tag].stage_files(tuple(files[tag]), epoch, evaluation_id)
            for tag in sorted(files)
        ]


class SideFiles:
    """One task's rows for side outputs: a file per tag, made at the tag's first row.

    Parameters
    ----------
    folders : mapping from tag to folder
        Of `SideSink.task_folder`.
    index : int
        The range, for the names.
    """

    def __init__(self, folders: Mapping[str, str], index: int) -> None:
        self._folders = folders
        self._index = index
        self._open: dict[str, _SideFile] = {}

    def write(self, tag: str, rows: pa.RecordBatch) -> None:
        """Append rows; all of a tag's have one schema."""
        if rows.num_rows == 0:
            return
        file = self._open.get(tag)
        if file is None:
            name = f"part-{self._index:05d}-{uuid.uuid4().hex}.parquet"
            file = self._open[tag] = _SideFile(self._folders[tag], name, rows.schema)
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


class _SideFile:
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
        with suppress(Exception):  # what it says of a file that goes anyway does not matter
            if writer is not None:
                writer.close()
        self._file.close()
        with suppress(FileNotFoundError):
            os.unlink(self._path)
