"""A checkpoint that begins with a savepoint.

The savepoint's files get names in the empty checkpoint, and its manifest becomes the first one
there. ``job.json`` is written last: a start that was killed is repeated, and keeps what the attempt
before has written, which is the same. Only the id of the new streaming query is drawn, and the file
that says it first counts.

Thread safety: functions without state. Of two drivers that begin at once, both write the same.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from pystate.checkpoint.copying import for_all, keep, place
from pystate.checkpoint.job_file import (
    JOB_FILE,
    RESTORED_FILE,
    SAVEPOINT_FILE,
    JobFile,
    library,
    read_job,
)
from pystate.checkpoint.manifest import FileRef, Manifest, OperatorState, QueryProgress
from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.metadata import decode_document, encode_document
from pystate.checkpoint.run_keys import check_version
from pystate.checkpoint.savepoint import (
    FOLDERS,
    Savepoint,
    entries_of,
    files_of,
    lost,
    manifest_of,
    read_savepoint,
    sha256,
)
from pystate.checkpoint.source_position import METADATA, encode_query_id, query_of, read_query_id
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import AlreadyPublishedError, CorruptFileError, InvalidArgumentError

__all__ = ["begin_with", "begun_epoch"]


def begin_with(
    origin: CheckpointStorage,
    checkpoint: CheckpointStorage,
    *,
    job: str,
    max_parallelism: int | None = None,
    claim: bool = False,
    copy: bool = False,
    uid_map: Mapping[str, str] | None = None,
) -> bool:
    """Fill an empty checkpoint from a savepoint; nothing where that has been done.

    Parameters
    ----------
    origin : CheckpointStorage
        The savepoint.
    checkpoint : CheckpointStorage
        The checkpoint of the job that begins.
    job : str
        Its name.
    max_parallelism : int, optional
        The number of key groups that the job asks for.
    claim : bool
        Remove the savepoint afterwards: its files are the checkpoint's then. Without it nothing of
        it is ever changed.
    copy : bool
        Copy the files, rather than share them where the file system can.
    uid_map : mapping from str to str, optional
        New names of operators, by their uid in the savepoint.

    Returns
    -------
    bool
        Whether the checkpoint was empty.

    Raises
    ------
    InvalidArgumentError
        The checkpoint is another job's, or has begun otherwise; there is no savepoint; or it has
        no such operator.
    CorruptFileError, NewerFormatError
        A file of the savepoint is lost or damaged; it is named.
    """
    if read_job(checkpoint) is not None:
        _check_begun(origin, checkpoint)
        if claim:
            _remove(origin, checkpoint)
        return False
    savepoint = read_savepoint(origin)
    manifest = manifest_of(origin, savepoint)
    stored = read_job(origin)
    if stored is None:
        raise lost(origin, JOB_FILE)
    if max_parallelism not in (None, stored.max_parallelism):
        raise InvalidArgumentError(
            f"savepoint {origin.uri} has max_parallelism={stored.max_parallelism}, not "
            f"{max_parallelism}: keys are placed by it; leave the argument out to take that"
        )
    operators = _renamed(origin, manifest.operators, uid_map or {})
    keep(checkpoint, RESTORED_FILE, _begun_with(savepoint))

    def begin(ref: FileRef) -> None:
        try:
            place(ref, [origin], checkpoint, copy=copy)
        except FileNotFoundError:
            raise lost(origin, ref.path) from None

    for_all(begin, files_of(operators).values())
    query_id = _begin_runs_and_position(origin, savepoint, checkpoint)
    begun = _with_query(origin, replace(manifest, operators=operators, term=0), query_id)
    keep(checkpoint, begun.path, begun.encode())
    own = JobFile(
        name=job,
        checkpoint_id=str(uuid.uuid4()),
        max_parallelism=stored.max_parallelism,
        created_ms=time.time_ns() // 1_000_000,
        library=library(),
        operators=entries_of(operators),
    )
    if not own.create(checkpoint):
        _check_begun(origin, checkpoint)  # another driver was faster, with the same
    if claim:
        _remove(origin, checkpoint)
    return True


def begun_epoch(checkpoint: CheckpointStorage) -> int:
    """Return the epoch of the savepoint that a checkpoint began with; 0 for none."""
    try:
        data = checkpoint.read_bytes(RESTORED_FILE)
    except FileNotFoundError:
        return 0
    fields = decode_document("restored", 1, data, RESTORED_FILE)
    return fields.integer("epoch")


def _begun_with(savepoint: Savepoint) -> bytes:
    content = {"savepoint_id": savepoint.savepoint_id, "epoch": savepoint.epoch}
    return encode_document("restored", 1, content)


def _check_begun(origin: CheckpointStorage, checkpoint: CheckpointStorage) -> None:
    """Make sure that a checkpoint that holds a job began with that savepoint."""
    try:
        begun = checkpoint.read_bytes(RESTORED_FILE)
    except FileNotFoundError:
        begun = b""
    begun_epoch(checkpoint)  # a file of a later version says so
    if begun and not origin.exists(SAVEPOINT_FILE):
        return  # claimed, or removed since: it is not needed any more
    if begun != _begun_with(read_savepoint(origin)):
        head = read_head(checkpoint)
        epochs = "no epoch yet" if head is None else f"{head.epoch} epochs"
        raise InvalidArgumentError(
            f"checkpoint {checkpoint.uri} did not begin with the savepoint {origin.uri}, and has "
            f"{epochs} of its own: a job begins with a savepoint in an empty folder; to go on from "
            "the checkpoint leave restore out"
        )


def _renamed(
    origin: CheckpointStorage, operators: tuple[OperatorState, ...], uid_map: Mapping[str, str]
) -> tuple[OperatorState, ...]:
    uids = {operator.uid for operator in operators}
    unknown = sorted(set(uid_map) - uids)
    if unknown:
        raise InvalidArgumentError(
            f"uid_map: savepoint {origin.uri} has no operator {unknown[0]!r}; it has "
            + (", ".join(repr(uid) for uid in sorted(uids)) or "none")
        )
    renamed = tuple(replace(o, uid=uid_map.get(o.uid, o.uid)) for o in operators)
    names = sorted(operator.uid for operator in renamed)
    for uid, following in itertools.pairwise(names):
        if uid == following:
            raise InvalidArgumentError(f"uid_map: two operators would have the uid {uid!r}")
    return tuple(sorted(renamed, key=lambda operator: operator.uid))


def _begin_runs_and_position(
    origin: CheckpointStorage, savepoint: Savepoint, checkpoint: CheckpointStorage
) -> str | None:
    """Place the run keys, and the stream's position as a new query's; returns that one's id."""
    for path, digest in sorted(savepoint.digests.items()):
        try:
            data = origin.read_bytes(path)
        except FileNotFoundError:
            raise lost(origin, path) from None
        if sha256(data) != digest:
            raise CorruptFileError(
                f"savepoint {origin.uri}: {path} is not what it was when the savepoint was taken"
            )
        check_version(path, data)
        if path != METADATA:
            keep(checkpoint, path, data)
    if METADATA not in savepoint.digests:
        return None
    with suppress(AlreadyPublishedError):  # an attempt that was killed has drawn it
        checkpoint.publish(METADATA, encode_query_id(str(uuid.uuid4())))
    return read_query_id(checkpoint)


def _with_query(origin: CheckpointStorage, manifest: Manifest, query_id: str | None) -> Manifest:
    """Give the stream's query another id in what an epoch says."""
    before = query_of(origin, manifest)
    if before is None or query_id is None:
        return manifest

    def renamed(progress: QueryProgress) -> QueryProgress:
        return replace(progress, query_id=query_id) if progress == before else progress

    queries = sorted(map(renamed, manifest.queries), key=lambda progress: progress.query_id)
    own = query_id if manifest.query_id == before.query_id else manifest.query_id
    return replace(manifest, queries=tuple(queries), query_id=own)


def _remove(origin: CheckpointStorage, checkpoint: CheckpointStorage) -> None:
    """Remove a savepoint. ``savepoint.json`` goes last, so that a killed removal is repeated."""
    if origin.exists(SAVEPOINT_FILE):
        # The attempt that made the checkpoint's job.json may have ended before it was durable.
        checkpoint.sync_folder("")
        for folder in FOLDERS:
            origin.remove_folder(folder)
        origin.delete(JOB_FILE)
        origin.delete(SAVEPOINT_FILE)
