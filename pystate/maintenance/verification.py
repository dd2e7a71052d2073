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
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pystate.base.arguments import integer, shown
from pystate.checkpoint.copies import for_all
from pystate.checkpoint.epoch_log import HISTORY
from pystate.checkpoint.job_file import SAVEPOINT_FILE
from pystate.checkpoint.manifest import Manifest, manifest_path, read_manifest
from pystate.checkpoint.manifest_log import survey
from pystate.checkpoint.parts import MANIFESTS, Parts, part_epoch
from pystate.checkpoint.savepoint import manifest_of, read_savepoint
from pystate.checkpoint.state_files import FileInfo, open_file
from pystate.checkpoint.storage import CheckpointStorage, FileEntry, final_name
from pystate.epochs.retention import may_be_named
from pystate.errors import (
    CheckpointError,
    CorruptFileError,
    InvalidArgumentError,
    NewerFormatError,
    SwappedFileError,
)
from pystate.maintenance.description import open_existing
from pystate.maintenance.findings import Finding, Use, Verification, uses_of
from pystate.maintenance.small_files import check_checkpoint, check_savepoint, failure

__all__ = ["Examination", "examine", "verify"]

#: Files of an age up to this may belong to an evaluation that runs.
_YOUNG_MS = 600_000


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
    if progress is not None and not callable(progress):
        raise InvalidArgumentError(f"verify: progress is a function, not {shown(progress)}")
    threads = os.cpu_count() or 1
    if jobs is not None:
        threads = integer(jobs, "verify: jobs", least=1, most=256)
    return examine(storage, threads, progress).result()


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
        findings.sort(key=lambda found: (not found.is_error, found.path))
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
        found = Examination(storage, "savepoint")
        listed = _listed(storage)
        _read_savepoint(found)
    else:
        found = Examination(storage, "checkpoint")
        listed = _listed(storage)
        _read_manifests(found)
    found.uses = uses_of(found.manifests.values())
    by_id = {use.ref.id: use.ref.path for use in found.uses.values()}

    def check(use: Use) -> None:
        finding = _check_file(storage, use, by_id)
        if finding is not None:
            found.bad_files[use.ref.path] = finding

    uses = sorted(found.uses.values(), key=lambda use: use.ref.path)
    for_all(check, uses, threads=threads, size=lambda use: use.ref.file_bytes, progress=progress)
    if found.kind == "checkpoint":
        # The stream's position is compared with the newest epoch, or with nothing.
        newest = found.manifests.get(max(found.epochs, default=0))
        has_runs = any(manifest.run_key is not None for manifest in found.manifests.values())
        found.findings += check_checkpoint(storage, newest, has_runs=has_runs)
        _forget_retired(found)
    _find_unnamed(found, listed)
    return found


def _listed(storage: CheckpointStorage) -> list[FileEntry]:
    files = storage.list("state") + storage.list("state", temporary=True)
    parts = [e for e in storage.list(MANIFESTS) if part_epoch(e.path) is not None]
    folders = (MANIFESTS, "owners", "runs", HISTORY)
    return [*files, *parts, *(e for f in folders for e in storage.list(f, temporary=True))]


def _read_savepoint(found: Examination) -> None:
    storage = found.storage
    try:
        savepoint = read_savepoint(storage)
        found.findings += check_savepoint(storage)
    except CheckpointError as error:
        found.findings.append(failure(SAVEPOINT_FILE, error, "no job can begin with it"))
        _read_manifests(found)
        return
    path = manifest_path(savepoint.epoch)
    try:
        found.manifests[savepoint.epoch] = manifest_of(storage, savepoint)
    except CheckpointError as error:
        found.lost.add(savepoint.epoch)
        kind = failure(path, error).kind if storage.exists(path) else "missing"
        found.findings.append(Finding(path, kind, str(error), (savepoint.epoch,)))


def _read_manifests(found: Examination) -> None:
    storage, parts = found.storage, Parts(found.storage)
    surveyed = survey(storage)
    for epoch in surveyed.lost:
        path = manifest_path(epoch)
        found.lost.add(epoch)
        message = f"the manifest of epoch {epoch} is lost: the state of that epoch is not known"
        found.findings.append(Finding(path, "missing", message, (epoch,)))
    for epoch in surveyed.epochs:
        path = manifest_path(epoch)
        try:
            found.manifests[epoch] = read_manifest(storage, path, parts)
        except FileNotFoundError:
            continue  # retired just now
        except CheckpointError as error:
            found.lost.add(epoch)
            message = f"the state of epoch {epoch} is not known"
            finding = failure(path, error, message)
            found.findings.append(Finding(finding.path, finding.kind, finding.message, (epoch,)))


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


def _forget_retired(found: Examination) -> None:
    """Drop what only epochs need that a running job has retired since."""
    if not found.bad_files and not found.lost:
        return
    retained = set(survey(found.storage).epochs) | set(survey(found.storage).lost)
    for epoch in [*found.manifests, *found.lost]:
        if epoch not in retained:
            found.manifests.pop(epoch, None)
            found.lost.discard(epoch)
    found.findings = [f for f in found.findings if not f.epochs or set(f.epochs) & retained]
    found.bad_files = {
        path: finding for path, finding in found.bad_files.items() if set(finding.epochs) & retained
    }


def _find_unnamed(found: Examination, listed: list[FileEntry]) -> None:
    """Report files that no retained epoch names, unless one may still come to name them."""
    named = {path for manifest in found.manifests.values() for path in manifest.paths}
    named.update(found.bad_files)
    newest = found.manifests.get(max(found.manifests, default=0))
    now_ms = time.time_ns() // 1_000_000
    for entry in listed:
        final = final_name(entry.path)
        if entry.path in named or found.storage.size_bytes(entry.path) is None:
            continue
        if final != entry.path:
            kind, message = "leftover", f"{entry.path}: an interrupted write has left it"
        else:
            kind, message = "orphan", f"{entry.path}: no retained epoch names it"
        if found.kind == "checkpoint":
            if found.lost:
                message += ", but a manifest that is lost may do so"
            elif newest is None or may_be_named(final, newest, -1):
                message += "; an epoch that a job computes now may name it"
            elif entry.modified_ms > now_ms - _YOUNG_MS:
                message += "; it is young, and a task may still be writing it"
            else:
                message += "; `pystate gc` removes it"
        found.findings.append(Finding(entry.path, kind, message, size_bytes=entry.size_bytes))
