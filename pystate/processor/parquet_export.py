"""An operator's state as Parquet files, written without Spark.

Everything is written into a folder beside the destination, which gets its name when it is whole. So
there is nothing half-written under that name, whatever happens.

Thread safety: functions without state.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass

from pystate.base.arguments import check_callback, flag, folder_path
from pystate.checkpoint.copies import for_all
from pystate.checkpoint.locations import local_only
from pystate.checkpoint.storage import CheckpointStorage, sync_path
from pystate.errors import CheckpointError, InvalidArgumentError, NoSpaceError
from pystate.processor.epochs import storage_at, while_retained
from pystate.processor.scan import StateScan
from pystate.processor.selection import Selection

#: Tells an export from other folders; readers of Parquet ignore files with such names.
_MARK = "_export.json"


@dataclass(frozen=True)
class Export:
    """State in Parquet files.

    Attributes
    ----------
    location : str
        The folder with the files.
    checkpoint : str
        The checkpoint or savepoint that the state is from.
    uid : str
        The operator.
    epoch : int
        The epoch.
    rows : int
        Rows of all files together.
    files, size_bytes : int
        How many files there are, and their size together.
    """

    location: str
    checkpoint: str
    uid: str
    epoch: int
    rows: int
    files: int
    size_bytes: int


def export_state(
    location: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    uid: str | None = None,
    *,
    state: str | None = None,
    epoch: int | None = None,
    explode: bool = False,
    timers: bool = False,
    expired: bool = False,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Export:
    """Write an operator's state to Parquet files, one per part of the state.

    Parameters
    ----------
    location, uid, state, epoch, explode, timers, expired
        As for `read_state`.
    destination : str or path
        The folder of the files, which is not there yet. It gets its name when they are whole.
    overwrite : bool
        Replace an earlier export. Anything else that is there is refused in any case.
    progress : callable, optional
        Called with the bytes of state that are done, and those of all.

    Returns
    -------
    Export

    Raises
    ------
    InvalidArgumentError
        The destination exists.
    NoSpaceError, CheckpointError
        A file cannot be written: nothing is left. Or the state cannot be read, as for `read_state`.

    Notes
    -----
    Some parts are in memory at a time, one per processor; a part is a key group, or 64 MB of
    several. The job may run meanwhile: if it retires the epoch, the next one is exported.
    """
    source = storage_at(location, "export_state")
    target = _destination(source, destination)
    flag(overwrite, "export_state: overwrite")
    check_callback(progress, "export_state: progress")
    _check_free(target, overwrite)
    selection = Selection(state, explode, timers, expired=expired)

    def write() -> Export:
        scan = StateScan.of(source, uid, epoch=epoch, selection=selection)
        return _ExportWriter(scan, target).carry_out(overwrite, progress)

    return while_retained(source, write, "export", again=epoch is None)


def _destination(source: CheckpointStorage, destination: str | os.PathLike[str]) -> str:
    path = folder_path(destination, "export_state: destination")
    target = local_only(path, "export_state: destination")
    if f"{target}/".startswith(f"{source.uri}/"):
        raise InvalidArgumentError(
            f"{target} is within the checkpoint, where the job removes what it does not know: "
            "choose another folder"
        )
    return target


def _check_free(target: str, overwrite: bool) -> None:
    """Raise `InvalidArgumentError` unless a folder can be made, or is an export to replace."""
    if not os.path.lexists(target):
        return
    if os.path.islink(target) or not os.path.isfile(os.path.join(target, _MARK)):
        raise InvalidArgumentError(
            f"{target} exists, and is no export: choose a folder that is not there yet"
        )
    if not overwrite:
        raise InvalidArgumentError(
            f"{target} holds an export already: choose another folder, or replace it by "
            "overwrite=True (--overwrite)"
        )


class _ExportWriter:
    """An export in the making."""

    def __init__(self, scan: StateScan, target: str) -> None:
        self._scan = scan
        self._target = target
        folder, name = os.path.split(target)
        self._folder = os.path.join(folder, f".{name}.{uuid.uuid4().hex}.tmp")
        self._rows: dict[int, int] = {}

    def carry_out(self, overwrite: bool, progress: Callable[[int, int], None] | None) -> Export:
        """Write everything, and give it its name."""
        try:
            os.makedirs(self._folder)
            parts = list(enumerate(self._scan.split()))
            threads = min(len(parts), os.cpu_count() or 1) or 1
            for_all(self._write, parts, threads=threads, size=_size, progress=progress)
            if not parts:
                self._write((0, self._scan))
            export = self._finish()
            sync_path(self._folder)
            self._publish(overwrite)
            return export
        except OSError as error:
            if isinstance(error, CheckpointError):
                raise
            kind = NoSpaceError if error.errno in (errno.ENOSPC, errno.EDQUOT) else CheckpointError
            raise kind(
                f"could not write {self._target}: {error.strerror or error}; nothing was left "
                "behind"
            ) from error
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self, numbered: tuple[int, StateScan]) -> None:
        import pyarrow.parquet as pq  # takes a third of a second

        number, part = numbered
        path = os.path.join(self._folder, f"part-{number:05d}.parquet")
        schema, rows = self._scan.schema, 0
        with open(path, "wb") as out:
            with pq.ParquetWriter(out, schema, compression="zstd") as writer:
                for batch in part.batches():
                    writer.write_batch(batch)
                    rows += batch.num_rows
            out.flush()
            os.fsync(out.fileno())
        self._rows[number] = rows

    def _finish(self) -> Export:
        sizes = [entry.stat().st_size for entry in os.scandir(self._folder)]
        export = Export(
            location=self._target,
            checkpoint=self._scan.storage.uri,
            uid=self._scan.operator.uid,
            epoch=self._scan.epoch,
            rows=sum(self._rows.values()),
            files=len(sizes),
            size_bytes=sum(sizes),
        )
        with open(os.path.join(self._folder, _MARK), "w", encoding="utf-8") as out:
            json.dump(asdict(export), out)
            out.flush()
            os.fsync(out.fileno())
        return export

    def _publish(self, overwrite: bool) -> None:
        _check_free(self._target, overwrite)
        old = f"{self._folder[: -len('.tmp')]}.old"
        with suppress(FileNotFoundError):
            # Between the two steps nothing has the name; a folder cannot replace another in one.
            os.rename(self._target, old)
        try:
            os.rename(self._folder, self._target)
        except OSError:
            with suppress(OSError):
                os.rename(old, self._target)
            raise
        sync_path(os.path.dirname(self._target))
        shutil.rmtree(old, ignore_errors=True)


def _size(numbered: tuple[int, StateScan]) -> int:
    return numbered[1].raw_bytes
