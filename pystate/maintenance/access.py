"""How tools get at a checkpoint: it is there, and nobody uses one that is to be changed.

Thread safety: functions without state.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from pystate.base.arguments import folder_path
from pystate.base.folder_lock import FolderLock
from pystate.checkpoint.job_file import JOB_FILE, SAVEPOINT_FILE, has_epochs, refuse_spark
from pystate.checkpoint.locations import open_storage
from pystate.checkpoint.storage import CheckpointStorage
from pystate.epochs.ownership import current_owner, is_running
from pystate.errors import CorruptFileError, InUseError, InvalidArgumentError


def open_existing(location: str | os.PathLike[str], caller: str) -> CheckpointStorage:
    """Open a checkpoint or savepoint; `InvalidArgumentError` if nothing there is one."""
    storage = open_storage(folder_path(location, f"{caller}: location"))
    if not storage.exists(JOB_FILE) and not storage.exists(SAVEPOINT_FILE):
        if has_epochs(storage):
            return storage  # a checkpoint, of which that file is lost
        if not _is_part(storage):
            refuse_spark(storage)
        raise InvalidArgumentError(
            f"{storage.uri} {_instead(storage)}: give the folder that a Job, or pystate.open, has "
            "as its checkpoint"
        )
    return storage


def _is_part(storage: CheckpointStorage) -> bool:
    path = storage.local_path(JOB_FILE)
    return path is not None and _whole(os.path.dirname(path)) is not None


def _whole(folder: str) -> str | None:
    """The checkpoint or savepoint that a folder is in."""
    above = os.path.dirname(folder)
    while above != os.path.dirname(above):
        if any(os.path.isfile(os.path.join(above, n)) for n in (JOB_FILE, SAVEPOINT_FILE)):
            return above
        above = os.path.dirname(above)
    return None


def _instead(storage: CheckpointStorage) -> str:
    """What is where no checkpoint is."""
    path = storage.local_path(JOB_FILE)
    folder = storage.uri if path is None else os.path.dirname(path)
    if path is not None and not os.path.lexists(folder):
        return "does not exist, and so is no checkpoint"
    if path is not None and not os.path.isdir(folder):
        return "is no folder, and so no checkpoint"
    above = _whole(folder)
    if above is not None:
        return f"is only a part of the checkpoint or savepoint {above}, and no checkpoint"
    return f"holds no checkpoint and no savepoint (there is no {JOB_FILE})"


def require_unused(storage: CheckpointStorage, owner_is_gone: bool) -> None:
    """Raise `InUseError` if a driver may be at work."""
    if owner_is_gone:
        return
    advice = "if you know that it has ended, pass owner_is_gone=True (--owner-is-gone)"
    try:
        owner = current_owner(storage)
    except CorruptFileError as error:
        raise InUseError(
            f"checkpoint {storage.uri}: it is not known which driver has opened it last ({error}); "
            + advice
        ) from error
    if owner is None:
        return
    who = f"process {owner.pid} on {owner.host}"
    running = is_running(storage, owner)
    if running:
        raise InUseError(
            f"checkpoint {storage.uri} belongs to a job that runs ({who}): stop it first"
        )
    if running is None:
        raise InUseError(
            f"checkpoint {storage.uri} was opened by {who}, which has not closed it: whether the "
            f"job still runs cannot be seen from this host; {advice}"
        )


@contextmanager
def exclusive(storage: CheckpointStorage, owner_is_gone: bool) -> Iterator[None]:
    """Make sure that no driver is at work, and keep a store's owner out; jobs have no lock."""
    require_unused(storage, owner_is_gone)
    path, lock = storage.local_path("lock"), None
    if path is not None and os.path.exists(path):
        lock = FolderLock(os.path.dirname(path), 0)
    try:
        yield
    finally:
        if lock is not None:
            lock.release()
