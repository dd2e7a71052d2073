"""Exactly-once Parquet output: an epoch's files, published by one rename.

Thread safety: a sink is immutable; the driver calls it from one thread at a time.

Invariants
----------
1. A commit needs only the transaction, not the sink.
2. The staged rows, files and bytes are those that the tasks have counted, and not those that a
   listing of the folder happens to show.
3. A glob pattern that is as deep as the published files never matches a staged file.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from pystate.base.arguments import folder_path, integer, shown
from pystate.checkpoint.object_storage import refuse_credentials
from pystate.checkpoint.storage import sync_path
from pystate.epochs.epoch import RepeatableError
from pystate.epochs.range_report import SideFile
from pystate.errors import CheckpointError, InvalidArgumentError
from pystate.spark.base.environment import local_uri
from pystate.spark.base.parquet_format import ParquetFormat, WriteCounts, write_parquet
from pystate.spark.sinks.columns import (
    as_columns,
    columns_of_file,
    columns_of_files,
    fit_columns,
    read_columns,
    save_columns,
)
from pystate.spark.sinks.compaction import Compaction, compact_folder, read_compacted
from pystate.spark.sinks.folders import data_files, shared_locks, sync_all
from pystate.spark.sinks.partitioning import Partitioning, read_layout, save_layout, with_types
from pystate.spark.sinks.sink import Sink, Transaction
from pystate.spark.tasks.parquet_file import ParquetFile, part_name
from pystate.types.durations import Duration, milliseconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


KIND = "parquet"

_STAGING = "_staging"
_ROWS = "_rows"
_TASKS = "_tasks"
_SCHEMA = "_schema.json"
#: In a receipt of this process, the executed plan that wrote the rows.
EXECUTED = "executed"


class ParquetSink(Sink):
    """Parquet files, a folder per epoch: ``<path>/epoch=<n>/``.

    Parameters
    ----------
    path : str
        A folder of a local or mounted file system that the driver and all executors see. Its
        epochs belong to one checkpoint: give each job its own folder.
    partition_by : str or sequence of str, optional
        Columns by whose values an epoch's rows are put into folders, as Hive does:
        ``<path>/epoch=<n>/day=2026-01-01/country=DE/``. They may be strings, whole numbers,
        booleans, dates or decimals. Null has a folder of its own. An empty string is an error,
        because Hive has no folder for it. All epochs of an output must have the same layout.

    Notes
    -----
    ``spark.read.parquet(path)`` reads all published epochs, with a column ``epoch`` and those of
    `partition_by` from the folders' names. Spark guesses the types of these columns; `read` knows
    them. A column has one type in all epochs; an epoch that would give it another one is refused. A
    later epoch may have more columns, or lack some. `read` has all of them, with null where an
    epoch has none; so has ``spark.read.option("mergeSchema", True).parquet(path)``. Tasks write
    below ``_staging/.<epoch>-<evaluation>/_rows/``, which patterns such as
    ``<path>/*/*`` do not find. A commit is one rename.

    Examples
    --------
    >>> ParquetSink("/data/out").path
    '/data/out'
    """

    def __init__(
        self, path: str | os.PathLike[str], *, partition_by: str | Sequence[str] = ()
    ) -> None:
        self.path = _local_folder(folder_path(path, "ParquetSink: path"))
        self._partitioning = Partitioning(partition_by, f"ParquetSink({self.path!r})")

    def __repr__(self) -> str:
        by = f", partition_by={list(self.partition_by)}" if self.partition_by else ""
        return f"ParquetSink({self.path!r}{by})"

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The columns that determine the rows' folders."""
        return self._partitioning.columns

    def begin(self, epoch: int, evaluation_id: str) -> None:
        """Refuse a folder that already holds this epoch, or epochs with another layout.

        A folder that holds the epoch is another checkpoint's output, unless another driver of this
        checkpoint has published the epoch. The caller checks that only after this has failed,
        because a check before would not cover what was found here.
        """
        final = self._final(epoch)
        if os.path.exists(final) or self.is_compacted(epoch):
            raise CheckpointError(
                f"{final} exists, but the checkpoint has no epoch {epoch}: the folder holds the "
                "output of another checkpoint, or of this one before it was set back; use another "
                "folder"
            )
        layout = read_layout(self.path)
        if layout is not None or self.partition_by:
            names = [name for name, _ in layout or ()]
            if [name.lower() for name in names] != [name.lower() for name in self.partition_by]:
                self._refuse_layout(f"partition_by={names}")

    def _refuse_layout(self, layout: str) -> None:
        if self.epochs():
            raise InvalidArgumentError(
                f"{self!r}: the folder holds epochs with {layout}, and nobody could read both "
                "layouts together: keep to that one, or use another folder"
            )

    def check_columns(self, names: Sequence[str]) -> None:
        """Refuse a column that a column from the folders' names would hide from readers."""
        for name in names:
            if name.lower() == "epoch":
                raise InvalidArgumentError(
                    f"{self!r}: a column {name!r} would be lost: who reads the folder gets the "
                    "number of the epoch, from the folders' names, as the column of that name; "
                    "rename yours"
                )

    def check_schema(self, schema: StructType) -> StructType:
        """Refuse columns that do not fit those of the earlier epochs; return all of them.

        Raises
        ------
        InvalidArgumentError
            A column has another type or spelling than before.
        """
        given = as_columns(schema, self.partition_by)
        try:
            return fit_columns(self._columns(), given, repr(self))
        except InvalidArgumentError:
            if self.epochs():
                raise
            return given

    def _columns(self) -> StructType | None:
        """The columns of all epochs, without those from the names of folders."""
        stored = read_columns(self.path)
        if stored is not None:
            return stored
        folders = [self._final(epoch) for epoch in self._folders()]
        return columns_of_files(folders, len(read_layout(self.path) or ()))

    def stage_frame(self, frame: DataFrame, epoch: int, evaluation_id: str) -> Sequence[Any]:
        """Write the frame, sync the files, and describe them."""
        layout = self._partitioning.layout(frame)
        stored = read_layout(self.path)
        if stored is not None and stored != layout:
            self._refuse_layout(", ".join(f"{name} {ddl}" for name, ddl in stored))
        staging = self.staged_folder(epoch, evaluation_id)
        try:
            checked = self._partitioning.with_checked_values(frame, layout)
            names = [name for name, _ in layout]
            written = write_parquet(checked, local_uri(staging), names)
        except Exception as error:
            refused = self._partitioning.refusal(error, layout)
            if refused is None:
                raise
            raise refused from error
        files = data_files(staging, len(layout)) or []
        _check_complete(staging, files, written)
        sync_all([os.path.join(staging, name) for name, _ in files])
        if not files:
            _save_schema(staging, frame)
        staged: dict[str, Any] = {
            "files": files,
            "rows": written.rows,
            "partition_by": layout,
            "columns": frame.schema,
        }
        return [{**staged, EXECUTED: written.plan}]

    def prepare(self, epoch: int, evaluation_id: str, receipts: list[Any]) -> Transaction:
        """Make what was staged durable, and describe it."""
        [staged] = receipts
        staging = self.staged_folder(epoch, evaluation_id)
        folders = [folder for folder, _, _ in os.walk(staging)]
        above = staging
        while above != self.path:
            folders.append(above := os.path.dirname(above))
        sync_all(folders)
        transaction: Transaction = {
            "kind": KIND,
            "path": self.path,
            "staging": os.path.relpath(staging, self.path),
            "final": os.path.basename(self._final(epoch)),
            "files": [list(file) for file in staged["files"]],
        }
        if "rows" in staged:
            transaction["rows"] = staged["rows"]
        if staged.get("partition_by"):
            transaction["partition_by"] = [list(column) for column in staged["partition_by"]]
        schema = staged.get("columns")
        if schema is None and staged["files"]:
            schema = columns_of_file(os.path.join(staging, staged["files"][0][0]))
        if schema is not None:
            columns = self.check_schema(schema)
            if columns != read_columns(self.path):
                # Only where they are new, because there may be thousands.
                transaction["columns"] = columns.jsonValue()
        return transaction

    def commit(self, epoch: int, transaction: Transaction) -> None:
        """Rename the staged folder to its place."""
        commit_parquet(transaction, self.path)

    def task_folder(self, epoch: int, evaluation_id: str) -> str:
        """The folder for the files of tasks, until `stage_files` takes those that count."""
        return os.path.join(self._evaluation(epoch, evaluation_id), _TASKS)

    def stage_files(
        self, files: Sequence[tuple[str, int]], epoch: int, evaluation_id: str
    ) -> Sequence[Any]:
        """Take over files, by name and size, that tasks wrote durably into `task_folder`.

        Raises
        ------
        CheckpointError
            A file is missing, or is not what its task wrote.
        """
        staging = self.staged_folder(epoch, evaluation_id)
        written = self.task_folder(epoch, evaluation_id)
        os.makedirs(staging)
        for name, size in files:
            path = os.path.join(written, name)
            actual = os.path.getsize(path) if os.path.exists(path) else None
            if actual != size:
                what = "is not there" if actual is None else f"has {actual} bytes"
                raise CheckpointError(
                    f"a worker wrote {path} with {size} bytes, but for the driver it {what}: an "
                    "output's folder must be on a file system that all hosts share"
                )
            os.rename(path, os.path.join(staging, name))
        shutil.rmtree(written, ignore_errors=True)
        return [{"files": sorted(files)}]

    def stage_result(
        self, files: Sequence[SideFile], form: ParquetFormat, epoch: int, evaluation_id: str
    ) -> list[Any]:
        """Take over the files that tasks wrote for the result.

        An epoch without rows has a file, too, so that readers find the columns.
        """
        if not files:
            file = ParquetFile(
                self.task_folder(epoch, evaluation_id), part_name(0), form.schema, form.options
            )
            files = [SideFile("", file.name, file.finish(), 0)]
        named = [(file.name, file.file_bytes) for file in files]
        [staged] = self.stage_files(named, epoch, evaluation_id)
        return [{**staged, "rows": sum(file.rows for file in files)}]

    def staged_folder(self, epoch: int, evaluation_id: str) -> str:
        """The folder of the staged files, until they are committed."""
        # Spark hides a folder of this name only from a reader of the folder above it. So below the
        # evaluation's folder there is one more for each level that published files are deeper.
        deep = [_ROWS] * (1 + len(self.partition_by))
        return os.path.join(self._evaluation(epoch, evaluation_id), *deep)

    def abort(self, epoch: int, evaluation_id: str) -> None:
        """Remove the staging folders of one evaluation."""
        shutil.rmtree(self._evaluation(epoch, evaluation_id), ignore_errors=True)

    def epochs(self) -> list[int]:
        """The published epochs, ascending, including compacted ones."""
        compacted = read_compacted(self.path)
        return sorted(member for epoch in self._folders() for member in compacted.members(epoch))

    def _folders(self) -> list[int]:
        if not os.path.isdir(self.path):
            return []
        matches = (re.fullmatch(r"epoch=(\d+)", name) for name in os.listdir(self.path))
        return sorted(int(match[1]) for match in matches if match)

    def is_compacted(self, epoch: int) -> bool:
        """Whether an epoch's rows lie in one folder with those of others."""
        return read_compacted(self.path).into(epoch) is not None

    def compact(
        self,
        session: SparkSession,
        *,
        before: int | None = None,
        target_bytes: int = 128 << 20,
        wait: Duration = "1 minute",
    ) -> Compaction:
        """Merge the small files of older epochs; safe while jobs and readers run.

        Consecutive epochs are merged, up to a size, into the folder of the last of them. The column
        ``epoch`` of all their rows then has the number of that last epoch.

        Parameters
        ----------
        session : SparkSession
            Reads and writes the files.
        before : int, optional
            Do not merge this epoch and later ones, for readers that select by ``epoch`` and have
            not read these yet. The newest epoch is never merged.
        target_bytes : int
            The size from which a file is not merged.
        wait : str, timedelta or int
            How long to wait until no job has an open epoch that writes here.

        Returns
        -------
        Compaction
            The number of epochs and files.

        Raises
        ------
        InUseError
            The folder is being compacted already, or a job had an open epoch for the whole wait.
        CheckpointError
            The file system cannot exchange two folders in one step, or the files have changed.

        Notes
        -----
        At every moment, even after a kill at any step, ``spark.read.parquet(path)`` finds each
        published row once. A query that lists the files before the folders are exchanged, and opens
        them after that, does not find them and fails: repeat it. With
        ``spark.sql.files.ignoreMissingFiles`` it would miss rows instead. A stream that has the
        folder as its source takes merged files as new ones. The folder itself is replaced, so a
        container must mount the folder above it. During the compaction the merged files take twice
        the space.
        """
        owner = f"{self!r}: compact"
        if before is not None:
            before = integer(before, f"{owner}: before", least=0)
        size = integer(target_bytes, f"{owner}: target_bytes", least=1)
        wait_s = milliseconds(wait, f"{owner}: wait") / 1000
        if not isinstance(session, SparkSession):
            raise InvalidArgumentError(f"{owner}: session is a SparkSession, not {shown(session)}")
        epochs = [each for each in self._folders()[:-1] if before is None or each < before]
        if not epochs:
            return Compaction(0, 0, 0)
        return compact_folder(self.path, epochs, session, target_bytes=size, wait_s=wait_s)

    def require(self, transaction: Transaction, what: str) -> None:
        """Make sure that a transaction was published here, and not by another sink.

        Raises
        ------
        InvalidArgumentError
            Its files are not in this folder; the message begins with `what`.
        """
        folder = os.path.join(self.path, str(transaction["final"]))
        if self.is_compacted(int(folder.rpartition("=")[2])):
            return
        names = {str(name) for name, _ in transaction["files"]}
        files = data_files(folder, len(transaction.get("partition_by", ()))) or []
        if not os.path.isdir(folder) or (names and names.isdisjoint(name for name, _ in files)):
            raise InvalidArgumentError(
                f"{what} has its rows in {transaction['path']}, and {folder} does not hold them: "
                f"pass sink=ParquetSink({transaction['path']!r}), as when it was computed"
            )

    def read(self, session: SparkSession, epoch: int | None = None) -> DataFrame:
        """Read the published rows.

        The columns of `partition_by` have the types with which they were written.

        Parameters
        ----------
        session : SparkSession
            Reads the files.
        epoch : int, optional
            Read only this epoch, without the column ``epoch``.

        Returns
        -------
        DataFrame
            The rows.

        Raises
        ------
        InvalidArgumentError
            The folder does not hold that epoch.
        """
        if epoch is None:
            return self._read(session, self.path)
        final = self._final(epoch)
        if self.is_compacted(epoch):
            raise InvalidArgumentError(
                f"{self.path}: the rows of epoch {epoch} cannot be told from those that they were "
                "compacted with; read all"
            )
        if not os.path.isdir(final):
            raise InvalidArgumentError(
                f"{final} does not exist: pass the sink that epoch {epoch} was written to"
            )
        schema = _saved_schema(final)
        return self._read(session, final) if schema is None else session.createDataFrame([], schema)

    def _read(self, session: SparkSession, folder: str) -> DataFrame:
        uri = local_uri(folder, to_read=True)
        guessed = session.read.parquet(uri)
        schema = guessed.schema
        layout = read_layout(self.path)
        if layout is not None:
            schema = with_types(schema, layout)
        columns = self._columns() if folder == self.path else None
        if columns is not None:
            # Those of one file, and after them those from the folders' names.
            own = {field.name.lower() for field in columns}
            others = [field for field in schema.fields if field.name.lower() not in own]
            schema = StructType([*columns.fields, *others])
        return guessed if schema == guessed.schema else session.read.schema(schema).parquet(uri)

    def _final(self, epoch: int) -> str:
        return os.path.join(self.path, f"epoch={epoch}")

    def _evaluation(self, epoch: int, evaluation_id: str) -> str:
        return os.path.join(self.path, _STAGING, f".{epoch}-{evaluation_id}")


def with_numbered_columns(frame: DataFrame) -> DataFrame:
    """A frame under generated names: a file cannot have columns of every name, nor two of one."""
    return frame.toDF(*_generated_names(len(frame.columns)))


def read_numbered(session: SparkSession, folder: str, schema: StructType) -> DataFrame:
    """Read what was written of a frame of this schema, after `with_numbered_columns`."""
    fields = zip(_generated_names(len(schema)), schema.fields, strict=True)
    numbered = StructType([StructField(name, field.dataType) for name, field in fields])
    reader = session.read.schema(numbered)
    return reader.parquet(local_uri(folder, to_read=True)).toDF(*schema.names)


def _generated_names(count: int) -> list[str]:
    return [f"c{i}" for i in range(count)]


def commit_parquet(transaction: Mapping[str, Any], root: str) -> None:
    """Make the rows of a transaction visible; committing again changes nothing.

    It is a `CheckpointError` if the rows are neither staged nor published, or differ from what the
    manifest names.
    """
    with shared_locks([root]):
        _commit(transaction, root)


def save_form(transaction: Mapping[str, Any], root: str) -> None:
    """Note the layout and the columns of rows in the output's folder, before they are visible."""
    layout = tuple((str(name), str(ddl)) for name, ddl in transaction.get("partition_by", ()))
    if layout:
        save_layout(root, layout)
    if transaction.get("columns"):
        save_columns(root, transaction["columns"])


def _commit(transaction: Mapping[str, Any], root: str) -> None:
    staging = os.path.join(root, str(transaction["staging"]))
    final = os.path.join(root, str(transaction["final"]))
    wanted = sorted((str(name), int(size)) for name, size in transaction["files"])
    levels = len(transaction.get("partition_by", ()))
    # Another driver may commit the same at the same time: a folder that is not found in one place
    # may have been moved to the other, so the final one is checked again before an error is raised.
    if data_files(final, levels) is None:
        staged = data_files(staging, levels)
        if staged is not None:
            _check_files(staging, staged, wanted)
            save_form(transaction, root)
            with contextlib.suppress(OSError):
                os.rename(staging, final)
    published = data_files(final, levels)
    if published is None:
        if os.path.isdir(staging):
            os.rename(staging, final)  # fails again, with the reason
        raise CheckpointError(
            f"output is lost: neither {staging} nor {final} exists, but the checkpoint says that "
            f"the epoch's {len(wanted)} files were written; put them back from a backup"
        )
    if published != wanted and os.path.isdir(staging):
        raise CheckpointError(
            f"cannot publish {staging}: {final} exists already and holds other files than the "
            "checkpoint names: another checkpoint wrote them; give each its own folder, move "
            "those files to where they belong and start the job again"
        )
    _check_files(final, published, wanted)
    sync_path(root)
    with contextlib.suppress(FileNotFoundError):
        sync_path(os.path.dirname(staging))
    sweep_staging(root, int(final.rpartition("=")[2]))


def _check_files(where: str, actual: list[tuple[str, int]], wanted: list[tuple[str, int]]) -> None:
    if actual == wanted:
        return
    missing = [name for name, size in wanted if (name, size) not in actual]
    raise CheckpointError(
        f"{where} does not hold the {len(wanted)} files that the checkpoint names"
        + (f": {missing[0]} is missing or has another size" if missing else ": it holds more")
    )


def sweep_staging(root: str, epoch: int) -> None:
    """Remove losing evaluations, which are never published once the epoch is."""
    parent = os.path.join(root, _STAGING)
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(parent):
            number = name.removeprefix(".").partition("-")[0]
            if number.isdigit() and int(number) <= epoch:
                shutil.rmtree(os.path.join(parent, name), ignore_errors=True)


def _check_complete(folder: str, files: Sequence[tuple[str, int]], written: WriteCounts) -> None:
    """Compare a folder with what the tasks reported."""
    if written.files is None:
        from pyarrow.parquet import read_metadata

        metadata = (read_metadata(os.path.join(folder, name)) for name, _ in files)
        actual, wanted = f"{sum(file.num_rows for file in metadata)} rows", f"{written.rows} rows"
    else:
        actual = f"{len(files)} files with {sum(size for _, size in files)} bytes"
        wanted = f"{written.files} files with {written.size_bytes} bytes"
    if actual != wanted:
        raise RepeatableError(
            f"the tasks wrote {wanted} to {os.path.dirname(folder)}, and the driver finds {actual}",
            "the output's folder must be on a file system that all hosts share, and nothing else "
            "may write to it",
        )


def _save_schema(staging: str, frame: DataFrame) -> None:
    """Keep the schema of an epoch without rows, for which a partitioned write leaves no file."""
    os.makedirs(staging, exist_ok=True)
    path = os.path.join(staging, _SCHEMA)
    with open(path, "w", encoding="utf-8") as file:
        file.write(frame.schema.json())
    sync_path(path)


def forget_schema(staging: str) -> None:
    """Remove the schema of an epoch without rows, which now has rows."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(staging, _SCHEMA))


def _saved_schema(folder: str) -> StructType | None:
    try:
        with open(os.path.join(folder, _SCHEMA), encoding="utf-8") as file:
            return StructType.fromJson(json.load(file))
    except FileNotFoundError:
        return None


def _local_folder(path: str) -> str:
    refuse_credentials(path, "ParquetSink")
    parts = urlsplit(path)
    if parts.scheme and parts.scheme != "file":
        raise InvalidArgumentError(
            f"{path}: ParquetSink writes to local and mounted file systems, not to "
            f"{parts.scheme}:// addresses, where a rename is not one step"
        )
    if parts.scheme and parts.netloc not in ("", "localhost"):
        raise InvalidArgumentError(
            f"{path}: a file: address has an absolute path and no host, for example file:///data/out"
        )
    if parts.scheme and (parts.query or parts.fragment):
        raise InvalidArgumentError(f"{path}: in a file: address write # as %23 and ? as %3F")
    return os.path.abspath(unquote(parts.path) if parts.scheme else path)
