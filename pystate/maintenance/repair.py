"""Sets a damaged checkpoint back to its newest epoch that can be restored.

Thread safety: one repair of a checkpoint at a time; no job may run meanwhile.

Invariants
----------
1. Nothing is deleted: what the checkpoint loses lies in ``repaired-<time>/`` afterwards, under the
   same name.
2. A repair that is killed at any step can be run again, and then has the same result. Each step
   leaves every later epoch damaged until its manifest is gone, which comes after everything that
   is found out from it.
3. While ``repair.json`` exists, which is the first file written and the last one removed, no job
   starts. A repair takes the checkpoint over, so that a driver that was delayed is fenced off.
4. The stream's position goes back with the state: commits before offsets, newest first. After each
   removal Spark finds a position that it can go on from.
5. All that was moved is durable before ``repair.json`` is removed.
6. If no manifest is left, one is made anew (`maintenance.manifest_recovery`), after the history has
   gone back to its epoch and the keys of runs that it knows are kept.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace

from pystate.base.arguments import check_callback, flag, text
from pystate.checkpoint.copies import keep
from pystate.checkpoint.epoch_log import HISTORY, without_epochs_after
from pystate.checkpoint.job_file import JOB_FILE, REPAIR_FILE, JobFile
from pystate.checkpoint.manifest import manifest_path
from pystate.checkpoint.manifest_log import mark_retired, note_unknown_runs, set_back
from pystate.checkpoint.metadata import decode_document, encode_document
from pystate.checkpoint.parts import MANIFESTS, part_epoch
from pystate.checkpoint.run_keys import RunKeys
from pystate.checkpoint.savepoint import entries_of
from pystate.checkpoint.source_position import SPARK_FOLDER
from pystate.checkpoint.storage import CheckpointStorage, sync_path
from pystate.epochs.ownership import Ownership
from pystate.errors import (
    AlreadyPublishedError,
    CheckpointError,
    CorruptFileError,
)
from pystate.maintenance.access import exclusive, open_existing, require_unused
from pystate.maintenance.repair_plan import RepairPlan, Work, plan
from pystate.maintenance.verification import examine, threads_of


def repair(
    location: str | os.PathLike[str],
    *,
    dry_run: bool = False,
    confirm: Callable[[RepairPlan], bool] | None = None,
    job: str | None = None,
    owner_is_gone: bool = False,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> RepairPlan:
    """Set a damaged checkpoint back to its newest epoch that can be restored.

    Everything is read first, as by `verify`. Only what must be lost is lost: damage in files that
    only older epochs need, or that other intact files make superfluous, costs no newer epoch. What
    the checkpoint loses is kept in it, in ``repaired-<time>/``.

    Parameters
    ----------
    location : str or path
        The checkpoint of a job that does not run, or of a store that is closed.
    dry_run : bool
        Only say what would be done.
    confirm : callable, optional
        Called with the plan before anything is changed; nothing is if it returns False.
    job : str, optional
        The name of the job, to make a lost ``job.json`` anew.
    owner_is_gone : bool
        The driver that opened the checkpoint last has ended. It is needed only if that cannot be
        found out, because it ran on another host and did not close its job.
    jobs, progress
        As for `verify`.

    Returns
    -------
    RepairPlan
        What was lost. Its `folder` is None if nothing was changed.

    Raises
    ------
    InUseError
        A job, or a store, uses the checkpoint, or may do so.
    InvalidArgumentError
        It is a savepoint, or nothing.
    CheckpointError
        No retained epoch can be restored. Nothing was changed.

    Notes
    -----
    If all manifests are lost, that of the newest epoch is made anew of which the state files and
    the history say the same. The plan says what is not known any more.
    """
    storage = open_existing(location, "repair")
    flag(dry_run, "repair: dry_run")
    flag(owner_is_gone, "repair: owner_is_gone")
    check_callback(confirm, "repair: confirm")
    check_callback(progress, "repair: progress")
    if job is not None:
        text(job, "repair: job")
    threads = threads_of(jobs, "repair")
    if dry_run:
        return plan(examine(storage, threads, progress), job).plan
    return repair_storage(
        storage,
        confirm=confirm,
        job=job,
        owner_is_gone=owner_is_gone,
        threads=threads,
        progress=progress,
    )


def repair_storage(
    storage: CheckpointStorage,
    *,
    confirm: Callable[[RepairPlan], bool] | None = None,
    job: str | None = None,
    owner_is_gone: bool = False,
    threads: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> RepairPlan:
    """`repair` of an open checkpoint."""
    with exclusive(storage, owner_is_gone):
        work = plan(examine(storage, threads, progress), job)
        if not work.plan.is_needed or (confirm is not None and not confirm(work.plan)):
            return work.plan
        require_unused(storage, owner_is_gone)  # a question takes its time
        return _Repair(storage, work).carry_out(job)


class _Repair:
    """A repair that is carried out."""

    def __init__(self, storage: CheckpointStorage, work: Work) -> None:
        self._storage = storage
        self._work = work
        self._ownership = Ownership(storage, uuid.uuid4().hex)
        self._folder = ""

    def carry_out(self, job: str | None) -> RepairPlan:
        self._folder = self._begin()
        self._ownership.acquire()
        try:
            return self._carry_out(job)
        finally:
            self._ownership.close()

    def _carry_out(self, job: str | None) -> RepairPlan:
        storage, plan = self._storage, self._work.plan
        done = replace(plan, folder=self._folder)
        self._set_aside_marks(job)
        self._set_history_back()
        self._note_runs()
        self._rewrite()
        self._retire()
        self._set_stream_back()
        for output in plan.outputs:
            if output.set_aside:
                self._ownership.check()
                self._move_folder(output.where)
        self._set_state_back()
        if any(finding.epochs or finding.kind == "interrupted" for finding in plan.findings):
            self._set_unnamed_aside()
        storage.replace(f"{self._folder}/plan.json", encode_document("repair", 1, asdict(done)))
        self._make_durable()
        storage.delete(REPAIR_FILE)
        storage.sync_folder("")
        return done

    def _make_durable(self) -> None:
        """Sync the folders from which this attempt, or one that was interrupted, took a file."""
        moved = [e.path.removeprefix(f"{self._folder}/") for e in self._storage.list(self._folder)]
        for folder in sorted({os.path.dirname(path) for path in moved}):
            self._storage.sync_folder(folder)

    def _begin(self) -> str:
        """Keep jobs from starting; returns the folder of a repair that was interrupted, or new."""
        name = time.strftime("repaired-%Y%m%d-%H%M%S", time.gmtime())
        data = encode_document("repairing", 1, {"folder": f"{name}-{uuid.uuid4().hex[:6]}"})
        with suppress(AlreadyPublishedError):
            self._storage.publish(REPAIR_FILE, data)
        fields = decode_document("repairing", 1, self._storage.read_bytes(REPAIR_FILE), REPAIR_FILE)
        return fields.text("folder")

    def _aside(self, path: str) -> None:
        """Move a file into the repair's folder; nothing if it is there."""
        self._ownership.check()
        target = f"{self._folder}/{path}"
        try:
            if not self._storage.share(target, self._storage, path):
                with (
                    self._storage.open_read(path) as data,
                    self._storage.create(target) as out,
                ):
                    shutil.copyfileobj(data, out, 1 << 20)
        except AlreadyPublishedError:
            pass  # by an attempt that was interrupted before it removed the file
        except FileNotFoundError:
            return
        self._storage.delete(path)

    def _set_aside_marks(self, job: str | None) -> None:
        for path in self._work.plan.marks:
            if not path.startswith(f"{HISTORY}/"):
                self._aside(path)
        if job is None or self._storage.exists(JOB_FILE):
            return
        good = self._work.good
        job_file = JobFile.new(job, good.max_parallelism, entries_of(good.operators))
        job_file.create(self._storage)

    def _set_history_back(self) -> None:
        """Keep the intact records of the epochs that stay."""
        if self._work.plan.lost or self._work.plan.marks:
            self._ownership.check()
            for path in without_epochs_after(self._storage, self._work.plan.good_epoch):
                self._aside(path)

    def _note_runs(self) -> None:
        """Keep what only the history knows of runs before an epoch whose manifest is made anew."""
        recovered = self._work.remade
        if recovered is None:
            return
        runs = RunKeys(self._storage)
        for epoch, key in recovered.runs:
            self._ownership.check()
            runs.add(key, epoch)
        self._ownership.check()
        note_unknown_runs(self._storage, recovered.unknown_runs)

    def _rewrite(self) -> None:
        """Let manifests name intact files of the same state."""
        for manifest in self._work.rewritten:
            self._ownership.check()
            old = self._storage.read_bytes(manifest.path)
            keep(self._storage, f"{self._folder}/{manifest.path}", old)
            self._storage.replace(manifest.path, manifest.encode())

    def _retire(self) -> None:
        """Give up older epochs: that damaged, and those before it, as retained ones have no gap."""
        runs = RunKeys(self._storage)
        for epoch in self._work.plan.unreadable:
            self._ownership.check()
            manifest = self._work.manifests.get(epoch)
            try:
                mark_retired(self._storage, runs, epoch, manifest)
            except CorruptFileError:
                # The keys of earlier runs are damaged, which remains.
                mark_retired(self._storage, runs, epoch, None)
            self._aside(manifest_path(epoch))

    def _set_stream_back(self) -> None:
        for folder in ("commits", "offsets"):
            for batch in reversed(self._work.plan.stream_batches):
                self._aside(f"{SPARK_FOLDER}/{folder}/{batch}")
                self._aside(f"{SPARK_FOLDER}/{folder}/.{batch}.crc")

    def _move_folder(self, folder: str) -> None:
        root, name = os.path.split(folder)
        unique = hashlib.sha256(root.encode()).hexdigest()[:8]
        inside = self._storage.local_path(f"{self._folder}/output/{unique}/{name}")
        beside = f"{os.path.dirname(root)}/.{os.path.basename(root)}.{self._folder}/{name}"
        for target in (inside, beside):
            if target is None:
                continue
            os.makedirs(os.path.dirname(target), exist_ok=True)
            try:
                os.rename(folder, target)
            except FileNotFoundError:
                return  # an attempt that was interrupted has moved it
            except OSError as error:
                if error.errno != errno.EXDEV or target is beside:
                    raise CheckpointError(
                        f"could not move {folder} to {target}: {error.strerror}; put that right "
                        "and repair again"
                    ) from error
            else:
                sync_path(os.path.dirname(target))
                sync_path(root)
                return

    def _set_state_back(self) -> None:
        """Make the good epoch the newest one."""
        plan, recovered = self._work.plan, self._work.remade
        if recovered is not None:
            self._aside(recovered.manifest.path)  # what is there cannot be read
            self._storage.publish(recovered.manifest.path, recovered.manifest.encode())
        if plan.lost or recovered is not None:
            set_back(self._storage, self._work.good)
        for lost in reversed(plan.lost):
            self._aside(manifest_path(lost.epoch))

    def _set_unnamed_aside(self) -> None:
        """Move all state files that no retained epoch names, with the damaged ones."""
        named = {path for manifest in self._work.kept for path in manifest.paths}
        parts = [e.path for e in self._storage.list(MANIFESTS) if part_epoch(e.path) is not None]
        for path in (*parts, *(entry.path for entry in self._storage.list("state"))):
            if path not in named:
                self._aside(path)
