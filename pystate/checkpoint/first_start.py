"""A checkpoint that begins with a savepoint.

The savepoint's files get names in the empty checkpoint, and its manifest becomes the first one
there. ``job.json`` is written last: a start that was killed is repeated, and keeps what the attempt
before has written, which is the same. Only the id of the new streaming query is drawn, and the file
that says it first counts.

A job has begun once it has published an epoch of its own. Until then a start with other options
begins anew, and a savepoint that is claimed stays where it is.

Thread safety: functions without state. Of two drivers that begin at once, both write the same; one
that begins otherwise fences the other first.

Invariants
----------
1. What an earlier start has left is forgotten only while no epoch is published, and after the other
   driver was fenced. ``job.json`` goes first and ``restored.json`` last, so that a removal that is
   killed is repeated.
"""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from dataclasses import replace

from pystate.checkpoint.copies import for_all, keep, place
from pystate.checkpoint.epoch_log import HISTORY
from pystate.checkpoint.held_deltas import HELD
from pystate.checkpoint.job_file import (
    JOB_FILE,
    RESTORED_FILE,
    SAVEPOINT_FILE,
    JobFile,
    read_job,
)
from pystate.checkpoint.manifest import (
    Manifest,
    QueryProgress,
    manifest_path,
    read_manifest,
)
from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.metadata import decode_document, encode_document
from pystate.checkpoint.parts import MANIFESTS
from pystate.checkpoint.refs import FileRef, OperatorState
from pystate.checkpoint.run_keys import RUNS, check_version
from pystate.checkpoint.savepoint import (
    FOLDERS,
    Savepoint,
    entries_of,
    files_of,
    lost_file_error,
    manifest_of,
    read_savepoint,
    sha256,
)
from pystate.checkpoint.source_position import (
    METADATA,
    SPARK_FOLDER,
    encode_query_id,
    query_of,
    read_query_id,
)
from pystate.checkpoint.storage import CheckpointStorage, find_bytes
from pystate.checkpoint.traces import LATEST
from pystate.errors import (
    AlreadyPublishedError,
    CheckpointError,
    CorruptFileError,
    InvalidArgumentError,
)
from pystate.redaction import logger

_LOG = logger("pystate.checkpoint.first_start")


def begin_with(
    origin: CheckpointStorage,
    checkpoint: CheckpointStorage,
    *,
    job: str,
    max_parallelism: int | None = None,
    claim: bool = False,
    copy: bool = False,
    uid_map: Mapping[str, str] | None = None,
    fence: Callable[[], None] = lambda: None,
) -> bool:
    """Fill a checkpoint that has not begun from a savepoint; whether that was done now.

    `claim` removes the savepoint where the job has begun already (see `claim_savepoint`); without
    it nothing of it is ever changed. `uid_map` has new names of operators, by their uid in the
    savepoint. `fence` makes sure that no other driver publishes any more, and is called before what
    another start has left is forgotten.

    `InvalidArgumentError` if the checkpoint is another job's, or has begun otherwise.
    """
    begun = read_job(checkpoint)
    if begun is not None:
        # An earlier version has removed a claimed savepoint before the first epoch.
        gone = checkpoint.exists(RESTORED_FILE) and not origin.exists(SAVEPOINT_FILE)
        if gone or has_begun(checkpoint):
            _check_begun(origin, checkpoint, claim=claim)
            _check_names(checkpoint, begun, uid_map or {})
            if claim:
                claim_savepoint(origin, checkpoint)
            return False
    savepoint = read_savepoint(origin)
    manifest = manifest_of(origin, savepoint)
    stored = read_job(origin)
    if stored is None:
        raise lost_file_error(origin, JOB_FILE)
    if max_parallelism not in (None, stored.max_parallelism):
        raise InvalidArgumentError(
            f"savepoint {origin.uri} has max_parallelism={stored.max_parallelism}, not "
            f"{max_parallelism}: keys are placed by it; leave the argument out to take that"
        )
    operators = _rename_operators(origin, manifest.operators, uid_map or {})
    # A driver that begins at the same time writes restored.json first: what is there without that
    # was left by a start that is forgotten, and looked for before.
    left = begun is not None or any(checkpoint.list(folder) for folder in (RUNS, SPARK_FOLDER))
    restored = find_bytes(checkpoint, RESTORED_FILE)
    same = restored == _begun_with(savepoint) and _has_operators(checkpoint, manifest, operators)
    if begun is not None:
        same = same and (begun.name, begun.max_parallelism) == (job, stored.max_parallelism)
        if same and checkpoint.exists(manifest_path(manifest.epoch)):
            return False
    if not same:
        if begun is not None or restored is not None:
            fence()
        if not _has_only(checkpoint, files_of(operators)):
            _refuse_epochs(checkpoint)
        if left or restored is not None:
            _forget(checkpoint, files_of(operators))
    keep(checkpoint, RESTORED_FILE, _begun_with(savepoint))

    def begin(ref: FileRef) -> None:
        try:
            place(ref, [origin], checkpoint, copy=copy)
        except FileNotFoundError:
            raise lost_file_error(origin, ref.path) from None

    for_all(begin, files_of(operators).values())
    query_id = _begin_runs_and_position(origin, savepoint, checkpoint)
    first = _with_query(origin, replace(manifest, operators=operators, term=0), query_id)
    keep(checkpoint, first.path, first.encode())
    # Each later epoch replaces it: see `pystate.checkpoint.traces`.
    checkpoint.replace(LATEST, encode_document("latest", 1, {"epoch": first.epoch}))
    own = JobFile.new(job, stored.max_parallelism, entries_of(operators))
    if not own.create(checkpoint):
        _check_begun(origin, checkpoint)  # another driver was faster, with the same
    return True


def has_begun(checkpoint: CheckpointStorage) -> bool:
    """Whether a job has published an epoch in a checkpoint, beside the one that it began with."""
    head = read_head(checkpoint)
    return head is not None and head.epoch > begun_epoch(checkpoint)


def require_restore(checkpoint: CheckpointStorage) -> None:
    """Refuse a start without a savepoint after one that began with it and published nothing."""
    if checkpoint.exists(RESTORED_FILE) and not has_begun(checkpoint):
        raise InvalidArgumentError(
            f"checkpoint {checkpoint.uri}: a start before this one began with a savepoint of epoch "
            f"{begun_epoch(checkpoint)} and published nothing, and this one has no restore: pass "
            "restore again to begin with it, or remove the folder to begin without state"
        )


def claim_savepoint(origin: CheckpointStorage, checkpoint: CheckpointStorage) -> None:
    """Remove the savepoint with which a checkpoint began, once the job has begun.

    It does nothing before that, and nothing the second time. ``savepoint.json`` goes last but for
    the folder, so that a removal that was killed is repeated.
    """
    if not origin.exists(SAVEPOINT_FILE) or not has_begun(checkpoint):
        return
    # The attempt that made the checkpoint's job.json may have ended before it was durable.
    checkpoint.sync_folder("")
    for folder in FOLDERS:
        origin.remove_folder(folder)
    origin.delete(JOB_FILE)
    origin.delete(SAVEPOINT_FILE)
    root = origin.local_path(SAVEPOINT_FILE)
    if root is not None:
        with suppress(OSError):  # there is something else in it
            os.rmdir(os.path.dirname(root))


def begun_epoch(checkpoint: CheckpointStorage) -> int:
    """Return the epoch of the savepoint that a checkpoint began with; 0 for none."""
    data = find_bytes(checkpoint, RESTORED_FILE)
    return (
        0 if data is None else decode_document("restored", 1, data, RESTORED_FILE).integer("epoch")
    )


def _begun_with(savepoint: Savepoint) -> bytes:
    content = {"savepoint_id": savepoint.savepoint_id, "epoch": savepoint.epoch}
    return encode_document("restored", 1, content)


def _has_operators(
    checkpoint: CheckpointStorage, savepoint: Manifest, operators: tuple[OperatorState, ...]
) -> bool:
    """Whether a checkpoint begins with these operators, as far as it was filled."""
    try:
        return read_manifest(checkpoint, savepoint.path).operators == operators
    except FileNotFoundError:
        return True


def _refuse_epochs(checkpoint: CheckpointStorage) -> None:
    """Refuse to begin where a job has begun."""
    if has_begun(checkpoint):
        raise CheckpointError(
            f"checkpoint {checkpoint.uri} has epochs, but {JOB_FILE}, which says whose they are, "
            "is lost, or another driver has written it only now: start the job again; if that "
            "does not help, bring the file back from a copy, or use another folder"
        )


def _forget(checkpoint: CheckpointStorage, wanted: Container[str]) -> None:
    """Remove what a start has left that published nothing, but for the state files in `wanted`."""
    if checkpoint.delete(JOB_FILE):
        checkpoint.sync_folder("")
    checkpoint.delete(LATEST)
    if checkpoint.delete(manifest_path(begun_epoch(checkpoint))):
        checkpoint.sync_folder(MANIFESTS)
    for folder in (RUNS, SPARK_FOLDER, HELD):
        checkpoint.remove_folder(folder)
    for entry in checkpoint.list("state"):
        if entry.path not in wanted:
            checkpoint.delete(entry.path)
    checkpoint.sync_folder("")
    checkpoint.delete(RESTORED_FILE)


def _has_only(checkpoint: CheckpointStorage, wanted: Container[str]) -> bool:
    """Whether there is nothing in a checkpoint but some of those state files."""
    if any(checkpoint.exists(path) for path in (JOB_FILE, RESTORED_FILE)):
        return False
    if any(checkpoint.list(folder) for folder in (MANIFESTS, HISTORY, RUNS)):
        return False
    return all(entry.path in wanted for entry in checkpoint.list("state"))


def _check_names(checkpoint: CheckpointStorage, job: JobFile, uid_map: Mapping[str, str]) -> None:
    """Make sure that the new names of operators are those with which the job has begun."""
    known = {entry.uid for entry in job.operators}
    for old, new in uid_map.items():
        if new not in known:
            raise InvalidArgumentError(
                f"uid_map: the job has begun in {checkpoint.uri}, and {old!r} was not renamed to "
                f"{new!r}: its operators are {', '.join(map(repr, sorted(known))) or 'none'}. "
                "Operators are renamed once, at the beginning: take a savepoint, and begin with it "
                "in another folder, by restore and uid_map; or leave uid_map out"
            )
        if old != new and old in known and old not in uid_map.values():
            _LOG.warning(
                "uid_map has no effect any more on checkpoint %s: the job has operators %r and %r, "
                "each with a state of its own",
                checkpoint.uri,
                old,
                new,
            )


def _check_begun(
    origin: CheckpointStorage, checkpoint: CheckpointStorage, *, claim: bool = True
) -> None:
    """Make sure that a checkpoint that holds a job began with that savepoint."""
    begun = find_bytes(checkpoint, RESTORED_FILE)
    begun_epoch(checkpoint)  # a file of a later version says so
    if begun and not origin.exists(SAVEPOINT_FILE):
        if not claim:  # else this job, or one before it, has removed it
            _LOG.warning(
                "restore has no effect: %s is no savepoint, or not any more, and the job goes on "
                "from its own checkpoint %s, which began with a savepoint of epoch %d",
                origin.uri,
                checkpoint.uri,
                begun_epoch(checkpoint),
            )
        return
    if begun != _begun_with(read_savepoint(origin)):
        head = read_head(checkpoint)
        epochs = "no epoch yet" if head is None else f"epochs up to {head.epoch}"
        raise InvalidArgumentError(
            f"checkpoint {checkpoint.uri} did not begin with the savepoint {origin.uri}, and has "
            f"{epochs} of its own: a job begins with a savepoint in an empty folder; to go on from "
            "the checkpoint leave restore out"
        )


def _rename_operators(
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
            raise lost_file_error(origin, path) from None
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

    def with_new_uids(progress: QueryProgress) -> QueryProgress:
        return replace(progress, query_id=query_id) if progress == before else progress

    queries = sorted(map(with_new_uids, manifest.queries), key=lambda progress: progress.query_id)
    own = query_id if manifest.query_id == before.query_id else manifest.query_id
    return replace(manifest, queries=tuple(queries), query_id=own)
