"""Savepoints: one epoch of a job in a folder of its own, which nobody changes.

A savepoint has the layout of a checkpoint that has one manifest: the state files that it names, the
keys of all runs, and the position of the streaming query, if there is one. All names in it are
relative to its root, so that it may be copied anywhere.

``savepoint.json`` is written last: without it there is no savepoint, only what an attempt left.

Thread safety: functions without state; a `Savepoint` is immutable.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace

from pystate.base.arguments import check_callback, flag, folder_path
from pystate.checkpoint.copies import for_all, keep, place
from pystate.checkpoint.job_file import (
    JOB_FILE,
    SAVEPOINT_FILE,
    SPARKS,
    JobFile,
    OperatorEntry,
    is_sparks,
    library,
    read_job,
    refuse_spark,
)
from pystate.checkpoint.locations import open_storage
from pystate.checkpoint.manifest import Manifest, manifest_path, read_manifest
from pystate.checkpoint.manifest_log import History, check_runs
from pystate.checkpoint.metadata import Fields, decode_document, encode_document
from pystate.checkpoint.parts import MANIFESTS
from pystate.checkpoint.refs import FileRef, OperatorState
from pystate.checkpoint.run_keys import RUNS, RunKeys
from pystate.checkpoint.source_position import (
    METADATA,
    SPARK_FOLDER,
    position_files,
    query_of,
)
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import (
    CheckpointError,
    CorruptFileError,
    FencedError,
    InvalidArgumentError,
    PystateError,
)

_FORMAT_VERSION = 1
#: Everything in a savepoint but its first and last file.
FOLDERS = ("state", MANIFESTS, RUNS, SPARK_FOLDER)
_TRIES = 10
_COMMIT_WAIT_S = 10.0


@dataclass(frozen=True)
class Savepoint:
    """An epoch of a job, in a folder of its own.

    Attributes
    ----------
    location : str
        Its folder.
    savepoint_id : str
        Made with it; copies of the folder share it.
    job : str
        The name of the job that it was taken of.
    epoch : int
        The epoch that it holds.
    created_ms : int
        When it was taken, in milliseconds since 1970.
    library : str
        ``pystate <version>`` that wrote it.
    files, size_bytes : int
        Number of its state files, and their size together.
    """

    location: str
    savepoint_id: str
    job: str
    epoch: int
    created_ms: int
    library: str
    files: int
    size_bytes: int
    digests: Mapping[str, str]
    """SHA-256, hexadecimal, of the files that have the run keys and the stream's position."""

    def _encode(self) -> bytes:
        content = asdict(self)
        del content["location"]
        return encode_document("savepoint", _FORMAT_VERSION, content)


def read_savepoint(storage: CheckpointStorage) -> Savepoint:
    """Read what a savepoint says of itself.

    `InvalidArgumentError` if the folder holds none, or none that is complete.
    """
    try:
        data = storage.read_bytes(SAVEPOINT_FILE)
    except FileNotFoundError:
        content = "holds nothing"
        if storage.exists(JOB_FILE):
            content = (
                f"has no {SAVEPOINT_FILE}: it is a checkpoint, of which a savepoint can be taken, "
                "or a savepoint whose making or copying was interrupted"
            )
        elif is_sparks(storage):
            content = SPARKS
        raise InvalidArgumentError(f"{storage.uri} is not a savepoint: it {content}") from None
    fields = decode_document("savepoint", _FORMAT_VERSION, data, SAVEPOINT_FILE)
    digests = fields.mapping("digests")
    inner = Fields(digests, SAVEPOINT_FILE)
    savepoint = Savepoint(
        location=storage.uri,
        savepoint_id=fields.text("savepoint_id"),
        job=fields.text("job"),
        epoch=fields.integer("epoch", least=1),
        created_ms=fields.integer("created_ms"),
        library=fields.text("library"),
        files=fields.integer("files"),
        size_bytes=fields.integer("size_bytes"),
        digests={path: inner.hexadecimal(path, 64) for path in digests},
    )
    fields.finish()
    return savepoint


def savepoint(
    checkpoint: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    previous: str | os.PathLike[str] | None = None,
    copy: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Savepoint:
    """Take a savepoint of a checkpoint's newest epoch.

    The job may be stopped, or be running in another process; `pystate.spark.Job.savepoint` is for
    the process that runs it.

    Parameters
    ----------
    checkpoint : str or path
        The checkpoint of a job, or of a store that is closed.
    destination : str or path
        A folder that is empty, or is not there yet.
    previous : str or path, optional
        An earlier savepoint of the job. Files that it has already are taken from it where the
        checkpoint is on another file system, so that only what is new is copied.
    copy : bool
        Copy all files. By default files are shared by hard links where the file system can do it.
        State files never change, and each of their names keeps them: a savepoint does not need the
        checkpoint, nor the checkpoint the savepoint. Both are then the same bytes on one disk.
    progress : callable, optional
        Called with the bytes of state files that are done, and those of all.

    Returns
    -------
    Savepoint

    Raises
    ------
    InvalidArgumentError
        The destination is not empty, or `previous` is not a savepoint.
    CheckpointError
        The checkpoint has no epoch; the output of its newest epoch is not committed; or a file
        cannot be written.
    CorruptFileError
        A file of the epoch is damaged; it is named. All files are read once, and compared with the
        checksums in the manifest.
    """
    source = open_storage(folder_path(checkpoint, "savepoint: checkpoint"))
    target = open_storage(folder_path(destination, "savepoint: destination"))
    flag(copy, "savepoint: copy")
    earlier = (
        None if previous is None else open_storage(folder_path(previous, "savepoint: previous"))
    )
    check_callback(progress, "savepoint: progress")
    return take_savepoint(source, target, previous=earlier, copy=copy, progress=progress)


# ---- taking one ----------------------------------------------------------------------------------


def take_savepoint(
    source: CheckpointStorage,
    destination: CheckpointStorage,
    *,
    previous: CheckpointStorage | None = None,
    copy: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Savepoint:
    """Take a savepoint of a checkpoint's newest epoch, whose job may be running anywhere.

    Where the job goes on and removes the epoch's files meanwhile, its next epoch is taken.
    """

    def write(manifest: Manifest) -> Savepoint:
        return write_savepoint(
            source, manifest, destination, previous=previous, copy=copy, progress=progress
        )

    return of_newest_epoch(source, write)


def of_newest_epoch(source: CheckpointStorage, write: Callable[[Manifest], Savepoint]) -> Savepoint:
    """Call `write` with the newest epoch of a checkpoint or savepoint, whose job may be running.

    If it raises `RetiredError`, the next epoch is tried; it must have left nothing.
    """
    for _ in range(_TRIES):
        manifest = _settled_head(source)
        try:
            return write(manifest)
        except RetiredError:
            continue
    raise CheckpointError(
        f"checkpoint {source.uri}: each of {_TRIES} epochs was retired while it was copied: take "
        "the savepoint by the job that runs (Job.savepoint), or retain more epochs"
    )


def _settled_head(source: CheckpointStorage) -> Manifest:
    """Return the newest epoch, whose output is committed."""
    history = History(source)
    until_s = time.monotonic() + _COMMIT_WAIT_S
    while True:
        history.refresh()
        head = history.head
        if head is None:
            if not source.exists(JOB_FILE):
                refuse_spark(source)
            raise CheckpointError(f"checkpoint {source.uri} has no epoch to take a savepoint of")
        if not head.sinks or history.is_committed(head):
            return head
        if time.monotonic() >= until_s:
            raise CheckpointError(
                f"checkpoint {source.uri}: the output of its newest epoch, {head.epoch}, is not "
                "committed, and would be missing after a start from the savepoint: start the job "
                "once, which commits it, or give it up by Job.abandon_output"
            )
        time.sleep(0.1)  # a running job commits right after it publishes


class RetiredError(CheckpointError):
    """A file of the epoch was removed while it was read."""


def write_savepoint(
    source: CheckpointStorage,
    manifest: Manifest,
    destination: CheckpointStorage,
    *,
    previous: CheckpointStorage | None = None,
    copy: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Savepoint:
    """Write an epoch, whose output is committed, into an empty folder.

    The options, and what it raises, are those of `savepoint`.
    """
    with new_folder(source, destination):
        earlier = frozenset() if previous is None else _known_files(previous)

        def save(ref: FileRef) -> None:
            origins = [source]
            if previous is not None and (ref.path, ref.checksum, ref.file_bytes) in earlier:
                origins.append(previous)
            try:
                place(ref, origins, destination, copy=copy)
            except FileNotFoundError as error:
                raise RetiredError(
                    f"checkpoint {source.uri}: {ref.path} of epoch {manifest.epoch} is gone"
                ) from error

        files = files_of(manifest.operators).values()
        for_all(save, files, size=lambda ref: ref.file_bytes, progress=progress)
        return finish_savepoint(source, manifest, destination)


@contextmanager
def new_folder(source: CheckpointStorage | None, destination: CheckpointStorage) -> Iterator[None]:
    """Check a folder as `check_destination` does, and empty it again if the block fails."""
    check_destination(source, destination)
    try:
        yield
    except BaseException:
        with suppress(PystateError, OSError):
            destination.delete(SAVEPOINT_FILE)  # without it, what is left is no savepoint
            for entry in destination.list("") + destination.list("", temporary=True):
                destination.delete(entry.path)
        raise


def finish_savepoint(
    source: CheckpointStorage | None,
    manifest: Manifest,
    destination: CheckpointStorage,
    *,
    job: JobFile | None = None,
) -> Savepoint:
    """Write what a savepoint has beside its state files, which are there.

    `source` is the checkpoint or savepoint that has the job, the run keys and the stream's
    position; for state that no job has had there is none, but a `job`.
    """
    if source is not None:
        job = read_job(source)
        _copy_runs(source, manifest, destination)
        position = query_of(source, manifest)
        if position is not None:
            _copy_position(source, position.batch_id, destination)
    if job is None:
        raise CheckpointError(f"checkpoint {source and source.uri}: {JOB_FILE} is lost")
    files = files_of(manifest.operators)
    small = [entry.path for folder in (RUNS, SPARK_FOLDER) for entry in destination.list(folder)]
    alone = replace(manifest, sinks=(), part=None)
    destination.publish(alone.path, alone.encode())
    own = replace(
        job,
        checkpoint_id=str(uuid.uuid4()),
        max_parallelism=manifest.max_parallelism,
        operators=entries_of(manifest.operators),
    )
    own.create(destination)
    savepoint = Savepoint(
        location=destination.uri,
        savepoint_id=str(uuid.uuid4()),
        job=job.name,
        epoch=manifest.epoch,
        created_ms=time.time_ns() // 1_000_000,
        library=library(),
        files=len(files),
        size_bytes=sum(ref.file_bytes for ref in files.values()),
        digests={path: sha256(destination.read_bytes(path)) for path in small},
    )
    destination.publish(SAVEPOINT_FILE, savepoint._encode())
    return savepoint


def check_destination(source: CheckpointStorage | None, destination: CheckpointStorage) -> None:
    """Make sure that a folder is empty, and a place for a savepoint of a checkpoint."""
    inside = "" if source is None else f"{source.uri}/"
    if (
        inside
        and destination.uri.startswith(inside)
        and not destination.uri.startswith(f"{inside}savepoints/")
    ):
        raise InvalidArgumentError(
            f"{destination.uri} is within the checkpoint, where the job removes what it does not "
            f"know: choose another folder, or one in {inside}savepoints/"
        )
    entries = destination.list("")
    if not entries:
        return
    if any(entry.path == SAVEPOINT_FILE for entry in entries):
        raise InvalidArgumentError(
            f"{destination.uri} holds a savepoint already, which nothing changes: choose another "
            "folder"
        )
    raise InvalidArgumentError(
        f"{destination.uri} is not empty (it holds {entries[0].path}): a savepoint is written into "
        "a folder of its own. If an attempt that was interrupted left these files, remove the "
        "folder"
    )


def files_of(operators: Iterable[OperatorState]) -> dict[str, FileRef]:
    """The state files of operators, by path: ranges may share them."""
    return {ref.path: ref for operator in operators for ref in operator.files}


def _known_files(previous: CheckpointStorage) -> frozenset[tuple[str, int, int]]:
    files = files_of(manifest_of(previous, read_savepoint(previous)).operators)
    return frozenset((ref.path, ref.checksum, ref.file_bytes) for ref in files.values())


def manifest_of(storage: CheckpointStorage, savepoint: Savepoint) -> Manifest:
    """Read the epoch of a savepoint."""
    path = manifest_path(savepoint.epoch)
    try:
        return read_manifest(storage, path)
    except FileNotFoundError:
        raise lost_file_error(storage, path) from None


def lost_file_error(storage: CheckpointStorage, path: str) -> CorruptFileError:
    """Say that a file of a savepoint is not there."""
    return CorruptFileError(
        f"savepoint {storage.uri}: its file {path} is lost: copy the whole folder once more"
    )


def entries_of(operators: Iterable[OperatorState]) -> tuple[OperatorEntry, ...]:
    """Return what ``job.json`` says of operators."""
    entries = map(OperatorEntry.of, operators)
    return tuple(sorted(entries, key=lambda entry: entry.uid))


def _copy_runs(
    source: CheckpointStorage, manifest: Manifest, destination: CheckpointStorage
) -> None:
    """Keep the keys of all runs before an epoch."""
    history = History(source)
    history.refresh()
    retained = []
    for epoch in history.epochs:
        with suppress(FencedError):  # retired meanwhile: its key is among the others then
            retained.append(history.manifest(epoch))
    check_runs(source)
    RunKeys(source).copy_to(destination, manifest.epoch)
    for entry in source.list(RUNS):
        if not entry.path.endswith((".keys", ".run")):
            keep(destination, entry.path, source.read_bytes(entry.path))
    kept = RunKeys(destination)
    for other in retained:
        if other.epoch < manifest.epoch and other.run_key is not None:
            kept.add(other.run_key, other.epoch)


def _copy_position(
    source: CheckpointStorage, batch_id: int, destination: CheckpointStorage
) -> None:
    """Copy where a query stood after a batch."""
    for path in (METADATA, *position_files(source, batch_id)):
        with suppress(FileNotFoundError):  # Spark removes what is older than its newest batches
            keep(destination, path, source.read_bytes(path))


def sha256(data: bytes) -> str:
    """Return the digest of a small file."""
    return hashlib.sha256(data).hexdigest()
