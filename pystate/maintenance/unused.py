"""Makes sure that nobody uses a checkpoint that is to be changed.

Thread safety: functions without state.
"""

from __future__ import annotations

import os

from pystate.base.folder_lock import FolderLock
from pystate.checkpoint.storage import CheckpointStorage
from pystate.epochs.ownership import current_owner, is_running
from pystate.errors import CorruptFileError, InUseError


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


def lock_store(storage: CheckpointStorage) -> FolderLock | None:
    """Keep a store's owner out; jobs have no lock."""
    path = storage.local_path("lock")
    if path is None or not os.path.exists(path):
        return None
    return FolderLock(os.path.dirname(path), 0)
