"""Checks the small files of a checkpoint: everything but manifests and state.

Thread safety: functions without state. A job may run meanwhile: a file that is gone by the time it
is read was retired.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress

from pystate.checkpoint.epoch_log import read_records
from pystate.checkpoint.first_start import begun_epoch
from pystate.checkpoint.job_file import JOB_FILE, REPAIR_FILE, RESTORED_FILE, JobFile
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.manifest_log import check_runs, read_head
from pystate.checkpoint.metadata import decode_document, is_torn
from pystate.checkpoint.run_keys import RUNS, RunKeys
from pystate.checkpoint.savepoint import read_savepoint, sha256
from pystate.checkpoint.source_position import (
    METADATA,
    SPARK_FOLDER,
    batches_of,
    query_of,
    read_query_id,
)
from pystate.checkpoint.storage import CheckpointStorage
from pystate.checkpoint.traces import COMMITTED, LATEST
from pystate.epochs.ownership import OWNERS, read_owner
from pystate.errors import (
    CheckpointError,
    CorruptFileError,
    NewerFormatError,
    PystateError,
    SwappedFileError,
)
from pystate.maintenance.findings import Finding

__all__ = ["check_checkpoint", "check_savepoint", "failure"]


def failure(path: str, error: PystateError, message: str = "") -> Finding:
    """Return what an error says of a file."""
    kind = "swapped" if isinstance(error, SwappedFileError) else "damaged"
    if isinstance(error, NewerFormatError):
        kind = "newer"
    said = str(error)
    return Finding(path, kind, f"{said}; {message}" if message else said)


def _try(path: str, act: Callable[[], object], message: str) -> Iterator[Finding]:
    try:
        act()
    except FileNotFoundError:
        return
    except (CorruptFileError, NewerFormatError) as error:
        yield failure(path, error, message)


def check_checkpoint(
    storage: CheckpointStorage, head: Manifest | None, *, has_runs: bool
) -> Iterator[Finding]:
    """Check a checkpoint's small files.

    Parameters
    ----------
    storage : CheckpointStorage
        The checkpoint.
    head : Manifest or None
        Its newest epoch; None if that cannot be read.
    has_runs : bool
        Whether a retained epoch is a run with a key.
    """
    if storage.exists(REPAIR_FILE):
        message = "a repair was interrupted, and no job can start: run `pystate repair` once more"
        yield Finding(REPAIR_FILE, "interrupted", message)
        yield from _try(
            REPAIR_FILE,
            lambda: decode_document("repairing", 1, storage.read_bytes(REPAIR_FILE), REPAIR_FILE),
            "it says where a repair keeps what it sets aside",
        )
    yield from _check_job(storage, head)
    marks = {
        LATEST: ("latest", "the loss of the newest manifest would not be noticed"),
        COMMITTED: ("committed", "the next driver commits the newest output once more"),
    }
    for path, (kind, message) in marks.items():
        yield from _check_mark(storage, path, kind, message)
    for entry in storage.list(OWNERS):
        if entry.path.endswith(".owner"):
            yield from _try(
                entry.path,
                lambda path=entry.path: read_owner(storage, path),  # type: ignore[misc]
                "it would say which driver has opened the checkpoint",
            )
    yield from _try(RESTORED_FILE, lambda: begun_epoch(storage), "it says with what the job began")
    yield from _check_runs(storage, has_runs=has_runs)
    for path, error in read_records(storage).problems:
        with suppress(FileNotFoundError):
            data = storage.read_bytes(path)
            if data.endswith(b"\n"):
                yield failure(path, error, "the epochs' state is not touched by that")
            else:
                # As for marks: it is not synced.
                said = f"{path}: the machine stopped before it was written; its records are lost"
                yield Finding(path, "leftover", said, size_bytes=len(data))
    yield from _check_position(storage, head)


def _check_mark(
    storage: CheckpointStorage, path: str, kind: str, message: str
) -> Iterator[Finding]:
    """Check a mark, which is not synced, and without which a job goes on."""
    try:
        data = storage.read_bytes(path)
    except FileNotFoundError:
        return
    if is_torn(data):
        said = f"{path}: the machine stopped before it was written; the next epoch writes it anew"
        yield Finding(path, "leftover", said, size_bytes=len(data))
        return
    yield from _try(path, lambda: decode_document(kind, 1, data, path).integer("epoch"), message)


def _check_job(storage: CheckpointStorage, head: Manifest | None) -> Iterator[Finding]:
    message = "no job can start with the checkpoint"
    try:
        job = JobFile.decode(storage.read_bytes(JOB_FILE))
    except FileNotFoundError:
        yield Finding(JOB_FILE, "missing", f"{JOB_FILE} is lost; {message}")
        return
    except (CorruptFileError, NewerFormatError) as error:
        yield failure(JOB_FILE, error, message)
        return
    if head is not None and job.max_parallelism != head.max_parallelism:
        yield Finding(
            JOB_FILE,
            "swapped",
            f"{JOB_FILE} says {job.max_parallelism} key groups, and {head.path} "
            f"{head.max_parallelism}: they are not of one checkpoint",
        )


def _check_runs(storage: CheckpointStorage, *, has_runs: bool) -> Iterator[Finding]:
    try:
        for path, error in RunKeys(storage).damage():
            yield failure(path, error, "a run that was applied could not be recognised")
        check_runs(storage, must_be_told=has_runs)
    except NewerFormatError as error:  # of the mark of a retired epoch, which the message names
        yield failure(str(error).partition(":")[0], error)
    except CheckpointError as error:
        yield Finding(f"{RUNS}/", "missing", str(error))
    path = f"{RUNS}/unknown"
    yield from _try(
        path,
        lambda: decode_document("unknown runs", 1, storage.read_bytes(path), path),
        "it names epochs whose runs are not known",
    )


def _check_position(storage: CheckpointStorage, head: Manifest | None) -> Iterator[Finding]:
    lost = "the stream cannot go on: bring the file back from a copy, or begin the stream anew"
    try:
        query_id = read_query_id(storage)
    except CorruptFileError as error:
        yield failure(METADATA, error, lost)
        return
    offsets, commits = batches_of(storage, "offsets"), batches_of(storage, "commits")
    if query_id is None:
        if offsets:
            yield Finding(METADATA, "missing", f"{METADATA} is lost; {lost}")
        return
    for folder, batches in (("offsets", offsets), ("commits", commits)):
        for batch in sorted(batches)[-2:]:  # Spark reads no others
            path = f"{SPARK_FOLDER}/{folder}/{batch}"
            try:
                ok = _is_log(storage.read_bytes(path))
            except FileNotFoundError:
                continue  # a running query removes old ones
            if not ok:
                yield Finding(path, "damaged", f"{path}: not what Spark writes; {lost}")
    if head is None:
        return
    last = _last_batch(storage, head)
    if _ahead(commits, offsets, last):
        # A job that runs has gone on since its newest epoch was read.
        with suppress(CheckpointError):
            head = read_head(storage) or head
        last = _last_batch(storage, head)
    ahead = _ahead(commits, offsets, last)
    if ahead:
        yield Finding(
            f"{SPARK_FOLDER}/",
            "position",
            f"the stream stands at batch {max(ahead)}, and the state after batch {last} (epoch "
            f"{head.epoch}): the batches between would be missing in the state",
        )
    path = f"{SPARK_FOLDER}/offsets/{last}"
    if last >= 0 and not storage.exists(path):
        yield Finding(
            path, "missing", f"the position of batch {last}, the last in the state, is lost; {lost}"
        )


def _last_batch(storage: CheckpointStorage, head: Manifest) -> int:
    progress = query_of(storage, head)
    return -1 if progress is None else progress.batch_id


def _ahead(commits: frozenset[int], offsets: frozenset[int], last: int) -> list[int]:
    """The batches that Spark takes for done, or does next, although the state lacks earlier ones.

    Spark plans one batch more than the state has.
    """
    return [n for n in commits if n > last] + [n for n in offsets if n > last + 1]


def _is_log(data: bytes) -> bool:
    """Whether a file may be one of Spark's logs: they begin with a version, without a checksum."""
    try:
        return re.match(r"v\d+\n", data.decode("utf-8")) is not None
    except UnicodeDecodeError:
        return False


def check_savepoint(storage: CheckpointStorage) -> Iterator[Finding]:
    """Check the small files of a savepoint."""
    savepoint = read_savepoint(storage)
    yield from _check_job(storage, None)
    wrong = False
    for path, digest in sorted(savepoint.digests.items()):
        try:
            data = storage.read_bytes(path)
        except FileNotFoundError:
            wrong = True
            yield Finding(path, "missing", f"{path} is lost; no job can begin with the savepoint")
            continue
        if sha256(data) != digest:
            wrong = True
            yield Finding(
                path, "damaged", f"{path} is not what it was when the savepoint was taken"
            )
    if not wrong:
        yield from _check_runs(storage, has_runs=False)
