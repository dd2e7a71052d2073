"""Removes what nobody needs from the checkpoint of a job that does not run.

A job that runs does that by itself. Which files a manifest may still come to name is said in
`pystate.epochs.retention`; the rules hold for a driver that was delayed and resumes, too.

Thread safety: functions without state.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from pystate.base.arguments import flag
from pystate.checkpoint.job_file import (
    JOB_FILE,
    REPAIR_FILE,
    RESTORED_FILE,
    SAVEPOINT_FILE,
    read_job,
)
from pystate.checkpoint.leases import LEASES, ended_leases
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.storage import CheckpointStorage
from pystate.epochs.ownership import current_owner, have_ended
from pystate.epochs.retention import delete_orphans, find_orphans
from pystate.errors import CheckpointError, InvalidArgumentError
from pystate.maintenance.access import exclusive, open_existing, require_unused
from pystate.types.durations import Duration, milliseconds


@dataclass(frozen=True)
class Collection:
    """What was removed, or would be.

    Attributes
    ----------
    location : str
        The checkpoint.
    files : tuple of str
        Files that no retained epoch names, and that none can come to name; and leases of readers
        that have ended.
    evaluations : tuple of str
        Folders with marks of evaluations that have ended.
    size_bytes : int
        Size of these files together.
    removed : int
        How many of the files were removed; 0 for a dry run.
    """

    location: str
    files: tuple[str, ...]
    evaluations: tuple[str, ...]
    size_bytes: int
    removed: int


def _is_readable(storage: CheckpointStorage, head: Manifest | None) -> bool:
    """Whether a checkpoint without an epoch never had any, as far as its other files tell."""
    if head is not None:
        return True
    job = read_job(storage)
    return job is not None and not job.operators and not storage.exists(RESTORED_FILE)


def collect(
    location: str | os.PathLike[str],
    *,
    dry_run: bool = False,
    older_than: Duration = "10 minutes",
    owner_is_gone: bool = False,
) -> Collection:
    """Remove the files that no epoch names any more from a checkpoint whose job does not run.

    A job that runs does that by itself, at its start and from time to time.

    Parameters
    ----------
    location : str or path
        The checkpoint of a job that does not run, or of a store that is closed.
    dry_run : bool
        Only say what would be removed.
    older_than : str, timedelta or int
        Keep younger files: tasks may outlive their driver for a while.
    owner_is_gone : bool
        As for `repair`.

    Returns
    -------
    Collection

    Raises
    ------
    InUseError, TableBusyError
        A job, or a store, uses the checkpoint, or may do so.
    InvalidArgumentError
        It is a savepoint, or nothing.
    CheckpointError
        A retained manifest is damaged or lost, so that what it names is not known.
    """
    storage = open_existing(location, "collect")
    flag(dry_run, "collect: dry_run")
    flag(owner_is_gone, "collect: owner_is_gone")
    grace_ms = milliseconds(older_than, "collect: older_than")
    if storage.exists(SAVEPOINT_FILE):
        raise InvalidArgumentError(f"{storage.uri} is a savepoint: nothing changes one")
    if storage.exists(REPAIR_FILE):
        raise CheckpointError(
            f"checkpoint {storage.uri}: a repair was interrupted: run `pystate repair` once more"
        )
    if not storage.exists(JOB_FILE):
        raise CheckpointError(
            f"checkpoint {storage.uri}: {JOB_FILE} is lost: nothing is removed before it is back; "
            "`pystate verify` says what else is"
        )
    with exclusive(storage, owner_is_gone):
        head, owner = read_head(storage), current_owner(storage)
        # If the driver of the newest epoch has ended, what it has not named stays unnamed. Of an
        # earlier driver than the last one that is not known.
        ended = head is not None and (owner is None or owner.term == head.term)
        # If all drivers since then have ended, nothing comes to be named.
        last = 0 if head is None else head.term
        newest = last if owner is None else owner.term
        at_rest = _is_readable(storage, head) and (
            owner_is_gone or have_ended(storage, last, newest + 1)
        )
        orphans = find_orphans(
            storage,
            at_rest=at_rest,
            term=head.term if head is not None and ended else -1,
            grace_ms=grace_ms,
            live=frozenset,
            check_owner=lambda: require_unused(storage, owner_is_gone),
        )
        over = ended_leases(storage.list(LEASES), time.time_ns() // 1_000_000)
        orphans = orphans._replace(files=(*orphans.files, *over))
        removed = 0 if dry_run else delete_orphans(storage, orphans)
    return Collection(
        location=storage.uri,
        files=tuple(entry.path for entry in orphans.files),
        evaluations=orphans.evaluations,
        size_bytes=sum(entry.size_bytes for entry in orphans.files),
        removed=removed,
    )
