"""Reads a checkpoint or savepoint as a whole, and reports what is wrong with it.

Thread safety: functions without state. The job may run meanwhile, and keeps its checkpoint.

Invariants
----------
1. Nothing is written, and nobody's ownership is touched.
2. What a running job does is no finding: files are listed before manifests are read, and what is
   missing or damaged is looked at again after it. It counts only if a manifest that names it is
   still retained then.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from pystate.base.arguments import check_callback, integer
from pystate.checkpoint.copies import for_all
from pystate.checkpoint.epoch_log import HISTORY, read_records
from pystate.checkpoint.first_start import begun_epoch
from pystate.checkpoint.job_file import (
    JOB_FILE,
    REPAIR_FILE,
    RESTORED_FILE,
    SAVEPOINT_FILE,
    JobFile,
)
from pystate.checkpoint.manifest import Manifest, manifest_path, read_manifest
from pystate.checkpoint.manifest_log import check_runs, read_head, survey
from pystate.checkpoint.metadata import decode_document, is_torn
from pystate.checkpoint.parts import MANIFESTS, Parts, part_epoch
from pystate.checkpoint.refs import FileRef
from pystate.checkpoint.run_keys import RUNS, RunKeys
from pystate.checkpoint.savepoint import manifest_of, read_savepoint, sha256
from pystate.checkpoint.source_position import (
    METADATA,
    SPARK_FOLDER,
    batches_of,
    query_of,
    read_query_id,
)
from pystate.checkpoint.state_files import FileInfo, open_file
from pystate.checkpoint.storage import CheckpointStorage, FileEntry, final_name
from pystate.checkpoint.traces import COMMITTED, LATEST
from pystate.epochs.ownership import OWNERS, read_owner
from pystate.epochs.retention import may_be_named
from pystate.errors import (
    CheckpointError,
    CorruptFileError,
    NewerFormatError,
    PystateError,
    SwappedFileError,
)
from pystate.maintenance.access import open_existing

#: What a finding's kind means.
KINDS = {
    "missing": "the file is lost",
    "truncated": "the file is shorter than it was when it was written",
    "damaged": "bytes of the file are not those that were written",
    "swapped": "the file holds the content of another file",
    "newer": "a later pystate wrote the file",
    "position": "the stream's position does not belong to the state",
    "interrupted": "a repair was interrupted: it is to be run again",
    "orphan": "no retained epoch names the file",
    "leftover": "an interrupted write, or an interrupted command, has left the file",
}
_HARMLESS = frozenset(("orphan", "leftover"))
#: Files of an age up to this may belong to an evaluation that runs.
_YOUNG_MS = 600_000


@dataclass(frozen=True)
class Finding:
    """Something that a check has found.

    Attributes
    ----------
    path : str
        The file, relative to the checkpoint's folder.
    kind : str
        ``"missing"``, ``"truncated"``, ``"damaged"``, ``"swapped"``, ``"newer"``, ``"position"``,
        ``"interrupted"``; or ``"orphan"``, ``"leftover"``, which do no harm.
    message : str
        What is wrong, and what it means.
    epochs : tuple of int
        The retained epochs that cannot be read because of it.
    uid : str or None
        The operator whose state the file holds.
    ranges : tuple of int
        The operator's ranges that need it.
    key_groups : tuple of (int, int) or None
        The first and the last key group for which it counts.
    size_bytes : int
        The size of a file that does no harm.
    """

    path: str
    kind: str
    message: str
    epochs: tuple[int, ...] = ()
    uid: str | None = None
    ranges: tuple[int, ...] = ()
    key_groups: tuple[int, int] | None = None
    size_bytes: int = 0

    @property
    def is_error(self) -> bool:
        """Whether something is wrong, and not only superfluous."""
        return self.kind not in _HARMLESS


@dataclass(frozen=True)
class Verification:
    """The result of a check.

    Attributes
    ----------
    location : str
        The folder.
    kind : {"checkpoint", "savepoint"}
        What it is.
    epochs : tuple of int
        The epochs that were checked, ascending: all that are retained.
    good_epochs : tuple of int
        Those of them that can be restored.
    files, size_bytes : int
        The state files that were read from end to end.
    findings : tuple of Finding
        What was found, errors first.
    """

    location: str
    kind: str
    epochs: tuple[int, ...]
    good_epochs: tuple[int, ...]
    files: int
    size_bytes: int
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """What is wrong."""
        return tuple(finding for finding in self.findings if finding.is_error)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.errors


@dataclass
class Use:
    """Where the retained epochs use a state file."""

    ref: FileRef
    """How the newest of them names it."""
    uid: str
    max_parallelism: int
    epochs: set[int]
    ranges: set[int]
    first_key_group: int
    last_key_group: int

    def finding(self, kind: str, message: str) -> Finding:
        """Something that is wrong with the file."""
        return Finding(
            path=self.ref.path,
            kind=kind,
            message=message,
            epochs=tuple(sorted(self.epochs)),
            uid=self.uid,
            ranges=tuple(sorted(self.ranges)),
            key_groups=(self.first_key_group, self.last_key_group),
        )


def uses_of(manifests: Collection[Manifest]) -> dict[str, Use]:
    """Return the state files of some epochs, by path."""
    uses: dict[str, Use] = {}
    for manifest in sorted(manifests, key=lambda m: m.epoch):
        for operator in manifest.operators:
            for state in operator.ranges:
                for ref in state.files:
                    use = uses.get(ref.path)
                    if use is None:
                        use = uses[ref.path] = Use(
                            ref, operator.uid, manifest.max_parallelism, set(), set(), *ref.bounds
                        )
                    use.ref = ref
                    use.epochs.add(manifest.epoch)
                    use.ranges.add(state.index)
                    use.first_key_group = min(use.first_key_group, ref.first_key_group)
                    use.last_key_group = max(use.last_key_group, ref.last_key_group)
    return uses


def verify(
    location: str | os.PathLike[str],
    *,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Verification:
    """Read all files of a checkpoint or savepoint, and compare them with what is known of them.

    All retained epochs are checked: each state file is read once, from end to end, and compared
    with the checksum, id, epoch and key groups in the manifests. Files that no epoch names are
    reported, too. Nothing is changed, and a job may run meanwhile.

    Parameters
    ----------
    location : str or path
        The folder.
    jobs : int, optional
        How many files are read at a time; by default as many as there are processors.
    progress : callable, optional
        Called with the bytes that are read, and those of all files.

    Returns
    -------
    Verification

    Raises
    ------
    InvalidArgumentError
        Nothing there is a checkpoint or savepoint.
    CheckpointError
        The storage cannot be read.
    """
    storage = open_existing(location, "verify")
    check_callback(progress, "verify: progress")
    return examine(storage, threads_of(jobs, "verify"), progress).result()


def threads_of(jobs: int | None, caller: str) -> int:
    """How many files are read at a time; by default as many as there are processors."""
    return (
        os.cpu_count() or 1 if jobs is None else integer(jobs, f"{caller}: jobs", least=1, most=256)
    )


@dataclass
class Examination:
    """What was read of a checkpoint, and what is wrong with it."""

    storage: CheckpointStorage
    kind: str
    manifests: dict[int, Manifest] = field(default_factory=dict)
    """The retained epochs whose manifests can be read."""
    lost: set[int] = field(default_factory=set)
    """The retained epochs whose manifests cannot be read."""
    findings: list[Finding] = field(default_factory=list)
    bad_files: dict[str, Finding] = field(default_factory=dict)
    """The state files that are not as the manifests say."""
    uses: dict[str, Use] = field(default_factory=dict)

    @property
    def epochs(self) -> tuple[int, ...]:
        """All retained epochs."""
        return tuple(sorted({*self.manifests, *self.lost}))

    def is_good(self, epoch: int) -> bool:
        """Whether an epoch can be restored."""
        manifest = self.manifests.get(epoch)
        return manifest is not None and self.bad_files.keys().isdisjoint(manifest.paths)

    def result(self) -> Verification:
        """Return what users see."""
        findings = [*self.findings, *self.bad_files.values()]
        findings.sort(key=lambda finding: (not finding.is_error, finding.path))
        return Verification(
            location=self.storage.uri,
            kind=self.kind,
            epochs=self.epochs,
            good_epochs=tuple(filter(self.is_good, self.epochs)),
            files=len(self.uses),
            size_bytes=sum(use.ref.file_bytes for use in self.uses.values()),
            findings=tuple(findings),
        )


def examine(
    storage: CheckpointStorage, threads: int, progress: Callable[[int, int], None] | None = None
) -> Examination:
    """Read everything; parameters and exceptions are those of `verify`."""
    if storage.exists(SAVEPOINT_FILE):
        examination = Examination(storage, "savepoint")
        listed = _list_files(storage)
        _read_savepoint(examination)
    else:
        examination = Examination(storage, "checkpoint")
        listed = _list_files(storage)
        _read_manifests(examination)
    examination.uses = uses_of(examination.manifests.values())
    by_id = {use.ref.id: use.ref.path for use in examination.uses.values()}

    def check(use: Use) -> None:
        finding = _check_file(storage, use, by_id)
        if finding is not None:
            examination.bad_files[use.ref.path] = finding

    uses = sorted(examination.uses.values(), key=lambda use: use.ref.path)
    for_all(check, uses, threads=threads, size=lambda use: use.ref.file_bytes, progress=progress)
    if examination.kind == "checkpoint":
        # The stream's position is compared with the newest epoch, or with nothing.
        newest = examination.manifests.get(max(examination.epochs, default=0))
        has_runs = any(manifest.run_key is not None for manifest in examination.manifests.values())
        examination.findings += check_checkpoint(storage, newest, has_runs=has_runs)
        _forget_retired(examination)
    _find_unnamed(examination, listed)
    return examination


def _list_files(storage: CheckpointStorage) -> list[FileEntry]:
    files = storage.list("state") + storage.list("state", temporary=True)
    parts = [e for e in storage.list(MANIFESTS) if part_epoch(e.path) is not None]
    folders = (MANIFESTS, "owners", "runs", HISTORY)
    return [*files, *parts, *(e for f in folders for e in storage.list(f, temporary=True))]


def _read_savepoint(examination: Examination) -> None:
    storage = examination.storage
    try:
        savepoint = read_savepoint(storage)
        examination.findings += check_savepoint(storage)
    except CheckpointError as error:
        examination.findings.append(failure(SAVEPOINT_FILE, error, "no job can begin with it"))
        _read_manifests(examination)
        return
    path = manifest_path(savepoint.epoch)
    try:
        examination.manifests[savepoint.epoch] = manifest_of(storage, savepoint)
    except CheckpointError as error:
        examination.lost.add(savepoint.epoch)
        kind = failure(path, error).kind if storage.exists(path) else "missing"
        examination.findings.append(Finding(path, kind, str(error), (savepoint.epoch,)))


def _read_manifests(examination: Examination) -> None:
    storage, parts = examination.storage, Parts(examination.storage)
    surveyed = survey(storage)
    for epoch in surveyed.lost:
        path = manifest_path(epoch)
        examination.lost.add(epoch)
        message = f"the manifest of epoch {epoch} is lost: the state of that epoch is not known"
        examination.findings.append(Finding(path, "missing", message, (epoch,)))
    for epoch in surveyed.epochs:
        path = manifest_path(epoch)
        try:
            examination.manifests[epoch] = read_manifest(storage, path, parts)
        except FileNotFoundError:
            continue  # retired just now
        except CheckpointError as error:
            examination.lost.add(epoch)
            message = f"the state of epoch {epoch} is not known"
            finding = failure(path, error, message)
            examination.findings.append(
                Finding(finding.path, finding.kind, finding.message, (epoch,))
            )


def _check_file(storage: CheckpointStorage, use: Use, by_id: dict[str, str]) -> Finding | None:
    ref = use.ref
    path = storage.local_path(ref.path)

    def said(error: Exception) -> str:
        return str(error) if path is None else str(error).replace(path, ref.path)

    try:
        with storage.open_read(ref.path) as data, open_file(path or data) as opened:
            info = FileInfo(*opened.reader.info())
            if info.id != ref.id or info.kind != ref.kind:
                other = by_id.get(info.id)
                whose = "a file that no retained epoch names" if other is None else other
                return use.finding(
                    "swapped",
                    f"{ref.path}: it holds the content of {whose} (id {info.id}, not {ref.id})",
                )
            with open_file(path or data, expected=ref) as expected:
                expected.check(ref)
            wrong = _contradiction(info, use)
            if wrong:
                return use.finding("swapped", f"{ref.path}: {wrong}")
    except FileNotFoundError:
        return use.finding("missing", f"{ref.path} is lost")
    except NewerFormatError as error:
        return use.finding("newer", said(error))
    except SwappedFileError as error:
        return use.finding("swapped", said(error))
    except CorruptFileError as error:
        size = storage.size_bytes(ref.path)
        if size is None:
            return use.finding("missing", f"{ref.path} is lost")
        if size < ref.file_bytes:
            return use.finding(
                "truncated",
                f"{ref.path}: it has {size} bytes, and was written with {ref.file_bytes}",
            )
        return use.finding("damaged", said(error))
    except CheckpointError as error:
        if not storage.exists(ref.path):
            return use.finding("missing", f"{ref.path} is lost")
        return use.finding("damaged", said(error))
    return None


def _contradiction(info: FileInfo, use: Use) -> str:
    """How an intact file contradicts the manifests that name it; empty if it does not."""
    ref = use.ref
    if info.max_parallelism != use.max_parallelism:
        return f"it has {info.max_parallelism} key groups, the checkpoint {use.max_parallelism}"
    if not info.first_key_group <= use.first_key_group <= use.last_key_group <= info.last_key_group:
        return (
            f"it holds key groups {info.first_key_group} to {info.last_key_group}, and counts for "
            f"{use.first_key_group} to {use.last_key_group}"
        )
    for name in ("parent", "rows", "tombstones", "raw_bytes"):
        if getattr(info, name) != getattr(ref, name):
            return f"its {name} is {getattr(info, name)}, and {getattr(ref, name)} in the manifest"
    return ""


def _forget_retired(examination: Examination) -> None:
    """Drop what only epochs need that a running job has retired since."""
    if not examination.bad_files and not examination.lost:
        return
    retained = set(survey(examination.storage).epochs) | set(survey(examination.storage).lost)
    for epoch in [*examination.manifests, *examination.lost]:
        if epoch not in retained:
            examination.manifests.pop(epoch, None)
            examination.lost.discard(epoch)
    examination.findings = [
        f for f in examination.findings if not f.epochs or set(f.epochs) & retained
    ]
    examination.bad_files = {
        path: finding
        for path, finding in examination.bad_files.items()
        if set(finding.epochs) & retained
    }


def _find_unnamed(examination: Examination, listed: list[FileEntry]) -> None:
    """Report files that no retained epoch names, unless one may still come to name them."""
    named = {path for manifest in examination.manifests.values() for path in manifest.paths}
    named.update(examination.bad_files)
    newest = examination.manifests.get(max(examination.manifests, default=0))
    now_ms = time.time_ns() // 1_000_000
    for entry in listed:
        final = final_name(entry.path)
        if entry.path in named or examination.storage.size_bytes(entry.path) is None:
            continue
        if final != entry.path:
            kind, message = "leftover", f"{entry.path}: an interrupted write has left it"
        else:
            kind, message = "orphan", f"{entry.path}: no retained epoch names it"
        if examination.kind == "checkpoint":
            if examination.lost:
                message += ", but a manifest that is lost may do so"
            elif newest is None or may_be_named(final, newest, -1):
                message += "; an epoch that a job computes now may name it"
            elif entry.modified_ms > now_ms - _YOUNG_MS:
                message += "; it is young, and a task may still be writing it"
            else:
                message += "; `pystate gc` removes it"
        examination.findings.append(Finding(entry.path, kind, message, size_bytes=entry.size_bytes))


# ---- small files: everything but manifests and state ---------------------------------------------


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
    """Check a checkpoint's small files; `head` is None if it cannot be read.

    `has_runs` says whether a retained epoch is a run with a key.
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
        check_runs(storage, must_be_known=has_runs)
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
