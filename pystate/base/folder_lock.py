"""A folder that only one process at a time may have open.

Thread safety: a `FolderLock` belongs to one thread.
"""

from __future__ import annotations

import fcntl
import os
import time
import weakref

from pystate.errors import TableBusyError

_LOCK = "lock"
_locks: weakref.WeakSet[FolderLock]


class FolderLock:
    """An exclusive lock on a folder; it is never released by accident or kept by a forked child."""

    def __init__(self, folder: str, timeout_ms: int) -> None:
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, _LOCK)
        self._pid = os.getpid()
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if not isinstance(error, BlockingIOError) or time.monotonic() >= deadline:
                    owner = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip()
                    self.release()
                    if not isinstance(error, BlockingIOError):
                        raise
                    raise TableBusyError(
                        f"{folder} is open in process {owner or 'unknown'}: a store has one "
                        "owner at a time; close it there"
                    ) from None
                time.sleep(0.01)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{self._pid}\n".encode(), 0)
        _locks.add(self)

    def release(self) -> None:
        """Give the lock up; in a forked child only close the descriptor's copy."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            if os.getpid() == self._pid:
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _release_in_child() -> None:
    # The lock belongs to the open file, which the child would keep open after its parent's death.
    for lock in list(_locks):
        lock.release()


_locks = weakref.WeakSet()
os.register_at_fork(after_in_child=_release_in_child)
