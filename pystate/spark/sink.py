"""Exactly-once output: a sink stages an epoch's rows, and publishes them once the epoch exists.

Thread safety: a sink is immutable; the driver calls it from one thread at a time.

Invariants
----------
1. Nothing is visible under the output's name before the manifest that names it.
2. A commit may be repeated: after a crash, by another process, from the manifest alone.
3. Rows of an evaluation that lost are never visible, whenever its tasks end.
4. A transaction that cannot be committed stops the job: rows would be missing.
5. What is staged is what the tasks have counted, rows, files and bytes, and not what a listing of
   the folder happens to show.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit

from pystate.arguments import folder_path
from pystate.epoch import RepeatableError
from pystate.errors import CheckpointError, InvalidArgumentError
from pystate.spark.environment import local_uri

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark.written import Written

__all__ = ["ParquetSink", "Sink", "Transaction", "commit", "relocatable", "sync_folder"]

#: What a manifest keeps of a sink's part in an epoch: plain JSON, with ``"kind"``.
Transaction = dict[str, Any]

_STAGING = "_staging"
_ROWS = "_rows"
_TASKS = "_tasks"


class Sink(Protocol):
    """What the job needs of an output. To add one, also register its commit in `commit`."""

    def prepare(self, epoch: int) -> None:
        """Fail now if the epoch could not be committed later; nothing is computed before."""

    def check_columns(self, names: Sequence[str]) -> None:
        """Refuse columns that could not be read back; nothing is written before."""

    def stage(self, frame: DataFrame, epoch: int, evaluation_id: str) -> Transaction:
        """Write the rows where no reader looks, durably. Runs the job's one Spark action."""

    def discard(self, epoch: int, evaluation_id: str) -> None:
        """Remove what an evaluation staged that was not published."""

    def require(self, transaction: Transaction, what: str) -> None:
        """Make sure that a transaction was published here; errors begin with `what`."""

    def read(self, session: SparkSession, epoch: int | None = None) -> DataFrame:
        """Read what is published, or one epoch of it."""


class ParquetSink:
    """Parquet files, a folder per epoch: ``<path>/epoch=<n>/``.

    Parameters
    ----------
    path : str
        A folder of a local or mounted file system that the driver and all executors see. Its
        epochs belong to one checkpoint: give each job its own folder.

    Notes
    -----
    ``spark.read.parquet(path)`` reads all published epochs, with the column ``epoch`` from the
    folders' names. Tasks write ``_staging/.<epoch>-<evaluation>/_rows/``, which is hidden also from
    who reads ``<path>/*/*``; a commit is one rename.

    Examples
    --------
    >>> ParquetSink("/data/out").path
    '/data/out'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = _local_folder(folder_path(path, "ParquetSink: path"))

    def __repr__(self) -> str:
        return f"ParquetSink({self.path!r})"

    def prepare(self, epoch: int) -> None:
        """Refuse a folder that already holds this epoch: another checkpoint's output.

        Unless another driver of this checkpoint has published the epoch, which the caller checks
        when this fails, and not before: only then is it known of what was found.
        """
        final = self._final(epoch)
        if os.path.exists(final):
            raise CheckpointError(
                f"{final} exists, but the checkpoint has no epoch {epoch}: the folder holds the "
                "output of another checkpoint, or of this one before it was set back; use another "
                "folder"
            )

    def check_columns(self, names: Sequence[str]) -> None:
        """Refuse a column that readers of the folder would find another one in the place of."""
        for name in names:
            if name.lower() == "epoch":
                raise InvalidArgumentError(
                    f"{self!r}: a column {name!r} would be lost: who reads the folder gets the "
                    "number of the epoch, from the folders' names, as the column of that name; "
                    "rename yours"
                )

    def stage(self, frame: DataFrame, epoch: int, evaluation_id: str) -> Transaction:
        """Write the frame, sync the files, and describe them."""
        from pystate.spark.written import write_parquet

        staging = self._staging(epoch, evaluation_id)
        written = write_parquet(frame, local_uri(staging))
        files = _data_files(staging) or []
        _check_complete(staging, files, written)
        for name, _ in files:
            _sync_file(os.path.join(staging, name))
        return {**self._staged(staging, epoch, files), "rows": written.rows}

    def task_folder(self, epoch: int, evaluation_id: str) -> str:
        """Where the tasks write a side output, until `stage_files` says which files count."""
        return os.path.join(self._evaluation(epoch, evaluation_id), _TASKS)

    def stage_files(
        self, files: Sequence[tuple[str, int]], epoch: int, evaluation_id: str
    ) -> Transaction:
        """Take over files, by name and size, that tasks wrote durably into `task_folder`.

        Raises
        ------
        CheckpointError
            A file is not there, or is not what its task wrote.
        """
        staging = self._staging(epoch, evaluation_id)
        written = self.task_folder(epoch, evaluation_id)
        os.makedirs(staging)
        for name, size in files:
            path = os.path.join(written, name)
            found = os.path.getsize(path) if os.path.exists(path) else None
            if found != size:
                what = "is not there" if found is None else f"has {found} bytes"
                raise CheckpointError(
                    f"a worker wrote {path} with {size} bytes, but for the driver it {what}: a "
                    "side output's folder must be on a file system that all hosts share"
                )
            os.rename(path, os.path.join(staging, name))
        shutil.rmtree(written, ignore_errors=True)
        return self._staged(staging, epoch, sorted(files))

    def _staged(self, staging: str, epoch: int, files: Sequence[tuple[str, int]]) -> Transaction:
        folder = staging
        while folder != os.path.dirname(self.path):
            sync_folder(folder)
            folder = os.path.dirname(folder)
        return {
            "kind": "parquet",
            "path": self.path,
            "staging": os.path.relpath(staging, self.path),
            "final": os.path.basename(self._final(epoch)),
            "files": [list(file) for file in files],
        }

    def discard(self, epoch: int, evaluation_id: str) -> None:
        """Remove the staging folders of one evaluation."""
        shutil.rmtree(self._evaluation(epoch, evaluation_id), ignore_errors=True)

    def epochs(self) -> list[int]:
        """The published epochs, ascending."""
        if not os.path.isdir(self.path):
            return []
        found = (re.fullmatch(r"epoch=(\d+)", name) for name in os.listdir(self.path))
        return sorted(int(match[1]) for match in found if match)

    def require(self, transaction: Transaction, what: str) -> None:
        """Make sure that a transaction was published here, and not by another sink.

        Raises
        ------
        InvalidArgumentError
            Its files are not in this folder; the message begins with `what`.
        """
        folder = os.path.join(self.path, str(transaction["final"]))
        names = {str(name) for name, _ in transaction["files"]}
        if not os.path.isdir(folder) or (names and names.isdisjoint(os.listdir(folder))):
            raise InvalidArgumentError(
                f"{what} has its rows in {transaction['path']}, and {folder} does not hold them: "
                f"pass sink=ParquetSink({transaction['path']!r}), as when it was computed"
            )

    def read(self, session: SparkSession, epoch: int | None = None) -> DataFrame:
        """What is published, or one epoch of it (then without the column ``epoch``).

        Raises
        ------
        InvalidArgumentError
            The folder does not hold that epoch.
        """
        if epoch is None:
            return session.read.parquet(local_uri(self.path, to_read=True))
        final = self._final(epoch)
        if not os.path.isdir(final):
            raise InvalidArgumentError(
                f"{final} does not exist: pass the sink that epoch {epoch} was written to"
            )
        return session.read.parquet(local_uri(final, to_read=True))

    def _final(self, epoch: int) -> str:
        return os.path.join(self.path, f"epoch={epoch}")

    def _evaluation(self, epoch: int, evaluation_id: str) -> str:
        return os.path.join(self.path, _STAGING, f".{epoch}-{evaluation_id}")

    def _staging(self, epoch: int, evaluation_id: str) -> str:
        # Spark hides a folder of such a name from who reads the one above, and that only.
        return os.path.join(self._evaluation(epoch, evaluation_id), _ROWS)


def relocatable(transaction: Transaction, checkpoint: str | None) -> Transaction:
    """Name a folder inside the checkpoint by its place there, so that both can be moved.

    Parameters
    ----------
    checkpoint : str or None
        The checkpoint's folder, if it is one.
    """
    path = transaction.get("path")
    if checkpoint is None or path is None:
        return transaction
    inside = os.path.relpath(path, checkpoint)
    if inside.split(os.sep)[0] == os.pardir:
        return transaction
    return {**transaction, "path": inside}


def commit(transaction: Mapping[str, Any], checkpoint: str | None = None) -> None:
    """Make a transaction's rows visible; committing again changes nothing.

    Parameters
    ----------
    transaction : mapping
        As a manifest has it.
    checkpoint : str, optional
        The checkpoint's folder, for a path that `relocatable` made.

    Raises
    ------
    CheckpointError
        The staged rows are neither where they were written nor where they belong, or differ from
        what the manifest names.
    """
    kind = transaction.get("kind")
    if kind != "parquet":
        raise CheckpointError(
            f"the manifest names a sink transaction of kind {kind!r}, which this version of "
            "pystate does not know"
        )
    _commit_parquet(transaction, os.path.join(checkpoint or "", str(transaction["path"])))


def _commit_parquet(transaction: Mapping[str, Any], root: str) -> None:
    staging = os.path.join(root, str(transaction["staging"]))
    final = os.path.join(root, str(transaction["final"]))
    wanted = sorted((str(name), int(size)) for name, size in transaction["files"])
    # Another driver may commit the same at the same time: what is not found in one place may have
    # gone to the other since, so that the final one is looked at again before anything is said.
    if _data_files(final) is None:
        staged = _data_files(staging)
        if staged is not None:
            _check_files(staging, staged, wanted)
            with contextlib.suppress(OSError):
                os.rename(staging, final)
    published = _data_files(final)
    if published is None:
        if os.path.isdir(staging):
            os.rename(staging, final)  # fails once more, and says why
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
    sync_folder(root)
    with contextlib.suppress(FileNotFoundError):
        sync_folder(os.path.dirname(staging))
    _sweep_staging(root, int(final.rpartition("=")[2]))


def _check_files(where: str, found: list[tuple[str, int]], wanted: list[tuple[str, int]]) -> None:
    if found == wanted:
        return
    missing = [name for name, size in wanted if (name, size) not in found]
    raise CheckpointError(
        f"{where} does not hold the {len(wanted)} files that the checkpoint names"
        + (f": {missing[0]} is missing or has another size" if missing else ": it holds more")
    )


def _sweep_staging(root: str, epoch: int) -> None:
    """Remove what lost: of an epoch that is published, no other evaluation ever will be."""
    parent = os.path.join(root, _STAGING)
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(parent):
            number = name.removeprefix(".").partition("-")[0]
            if number.isdigit() and int(number) <= epoch:
                shutil.rmtree(os.path.join(parent, name), ignore_errors=True)


def _check_complete(folder: str, files: Sequence[tuple[str, int]], written: Written) -> None:
    """Compare a folder with what the tasks say that they wrote."""
    if written.files is None:
        from pyarrow.parquet import read_metadata

        metadata = (read_metadata(os.path.join(folder, name)) for name, _ in files)
        found, wanted = f"{sum(file.num_rows for file in metadata)} rows", f"{written.rows} rows"
    else:
        found = f"{len(files)} files with {sum(size for _, size in files)} bytes"
        wanted = f"{written.files} files with {written.size_bytes} bytes"
    if found != wanted:
        raise RepeatableError(
            f"the tasks wrote {wanted} to {os.path.dirname(folder)}, and the driver finds {found}",
            "the output's folder must be on a file system that all hosts share, and nothing else "
            "may write to it",
        )


def _data_files(folder: str) -> list[tuple[str, int]] | None:
    """The names and sizes of a folder's files; None where there is no such folder."""
    try:
        names = (name for name in os.listdir(folder) if not name.startswith(("_", ".")))
        return sorted((name, os.path.getsize(os.path.join(folder, name))) for name in names)
    except FileNotFoundError:
        return None


def _sync_file(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: str) -> None:
    """Make the names in a folder survive a power failure."""
    _sync_file(path)


def _local_folder(path: str) -> str:
    parts = urlsplit(path)
    if parts.scheme and parts.scheme != "file":
        raise InvalidArgumentError(
            f"{path}: ParquetSink writes to local and mounted file systems, not to "
            f"{parts.scheme}:// addresses, where a rename is not one step"
        )
    if parts.scheme and (parts.query or parts.fragment):
        raise InvalidArgumentError(f"{path}: in a file: address write # as %23 and ? as %3F")
    return os.path.abspath(unquote(parts.path) if parts.scheme else path)
