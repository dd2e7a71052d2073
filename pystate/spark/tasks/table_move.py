"""Moves a table that has outgrown its file system.

The rows that the task has read are gone, so that it cannot continue in another table. It moves the
table to the next folder and fails. A retry of the task, or the epoch's next evaluation, finds the
table there, restored from files.

Thread safety: functions without state.
"""

from __future__ import annotations

import errno
import os
import tempfile
from functools import lru_cache
from typing import TYPE_CHECKING

from pystate.errors import NoSpaceError, TableMovedError
from pystate.tables.host import TableHome, ancestor_named, base_folder, choose_home
from pystate.tables.options import DISK
from pystate.tables.upkeep import engage_janitor

if TYPE_CHECKING:
    from pystate.checkpoint.refs import RangeState
    from pystate.tables.attach import Attachment
    from pystate.tables.recovery import TableSpec


def executor_home(application: bytes, wanted: str) -> TableHome:
    """Return the folder for tables that all workers of this executor share.

    They belong to the executor's JVM: its workers come and go. Each task looks whether somebody
    frees them in the end: a janitor may have been killed. `wanted` is ``"shm"``, ``"local"``,
    ``"heap"``, ``"disk"``, whose tables are in shared memory as far as they are in memory, or a
    folder, which is created; `application` identifies the checkpoint.
    """
    home = _executor_home(application, wanted)
    engage_janitor(home)
    return home


@lru_cache(maxsize=1)
def _executor() -> int | None:
    """The JVM of this worker's executor: an ancestor when this is asked for the first time.

    A worker outlives a daemon that is killed, and Spark goes on with it. It has other ancestors
    then, and the executor's tables all the same.
    """
    return ancestor_named("java")


os.register_at_fork(after_in_child=_executor.cache_clear)


@lru_cache(maxsize=64)
def _executor_home(application: bytes, wanted: str) -> TableHome:
    if wanted == "heap":
        return TableHome(None, None)
    local, owner = _local_folder(), _executor()
    if wanted in ("shm", DISK):
        return choose_home(application, owner_pid=owner, fallback=local)
    folder = local if wanted == "local" else wanted
    os.makedirs(folder, exist_ok=True)
    return choose_home(application, owner_pid=owner, shm=folder, least_bytes=0, fallback=local)


def _local_folder() -> str:
    folders = os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()
    return folders.split(",")[0]


def tables_folder(wanted: str) -> str:
    """The folder of all executors' tables on this host, by the same choice."""
    if wanted in ("shm", "heap", DISK):
        return base_folder()
    return base_folder(_local_folder() if wanted == "local" else wanted)


def move_table(
    attachment: Attachment, spec: TableSpec, base: RangeState, where: str, error: NoSpaceError
) -> TableMovedError | None:
    """Give up a table that has no room to grow, and have it put into the next folder.

    Returns the error to raise, which names the range by `where`; None if the table is not a file,
    so that `error` is about another file.
    """
    path = attachment.path
    if path is None:
        return None
    table, system = os.stat(path), os.statvfs(path)
    has = _megabytes(table.st_blocks * 512)
    total = _megabytes(system.f_blocks * system.f_frsize)
    free = _megabytes(system.f_bavail * system.f_frsize)
    try:
        attachment.move(spec.home)
        fingerprint = spec.operator.fingerprint(base.since)
        to = spec.home.table_path(spec.operator.uid, *base.bounds, fingerprint)
    except OSError:
        return None
    return TableMovedError(
        errno.ENOSPC,
        f"{where}: its table has taken {has} and needs more, but {path} is on a file system of "
        f"{total} with {free} left ({error.strerror}); from now on it is "
        f"{to or 'in the memory of each worker'}. Job(table_home=...) says where tables are",
    )


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.1f} MB"
