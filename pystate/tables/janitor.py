"""Frees the shared memory of tables that nobody needs any more; a small process beside an executor.

No user of a table can be trusted to free it: workers and executors are killed, and a job that is
closed on one host has tables on others. So the first worker of an executor starts this file as a
program of its own. It waits, and removes

* an executor's tables when its Java process has ended; then it ends itself,
* an executor's tables when all of its Python daemons have ended, as after ``spark.stop()``; it
  keeps running, since others may follow: a new session's, or one that Spark starts to replace a
  killed one,
* a job's tables when its driver has closed it, or its checkpoint is gone.

It runs without site packages and imports only the standard library, so that it starts in an instant
and takes little memory.

Thread safety: functions without state.

Invariants
----------
1. One janitor looks after an owner's folder: it holds a lock there, for as long as the owner's
   process runs. It may be killed, too: each task that finds the lock free starts another, and so
   does a driver that closes its job. The lock's file says which folders are looked after.
2. Tables are a cache of files: removing one only costs its next user a restore.
3. The memory of a table that is removed goes back at once, unless somebody holds its lock: other
   processes may still map it, and find zeros.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import sys
import time
from contextlib import suppress

#: Files in an owner's folder: who looks after it, and a prefix of who works for the owner.
LOCK = "janitor"
DAEMON = "daemon-"
#: The use of an application's tables: the checkpoint, and the path in it whose file says "closed".
USE = "use-"
_TABLE = ".table"
_POLL_S = 2.0
_PATIENCE_S = 2.0
_PUNCH_HOLE = 0x01 | 0x02


def closing_mark(term: int) -> str:
    """Name the file of a checkpoint that says that the driver of a term has closed the job."""
    return f"owners/{term:08d}.closed"


def remove_table(path: str) -> None:
    """Remove a table's file, and give its memory back if nobody uses it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        with suppress(OSError):
            os.unlink(path)
        return
    try:
        with suppress(OSError):
            os.unlink(path)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        size = ctypes.c_int64(os.fstat(descriptor).st_size)
        ctypes.CDLL(None).fallocate64(descriptor, _PUNCH_HOLE, ctypes.c_int64(0), size)
    except (OSError, AttributeError):
        pass  # whoever holds its lock is the last to map it
    finally:
        os.close(descriptor)


def remove_folder(folder: str) -> None:
    """Remove a folder of tables with everything in it."""
    for parent, _, names in os.walk(folder):
        for name in names:
            if name.endswith(_TABLE):
                remove_table(os.path.join(parent, name))
    shutil.rmtree(folder, ignore_errors=True)


def is_alive(pid: int, start: int) -> bool:
    """Whether a process that started then, in clock ticks since boot, still runs."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX" and int(fields[19]) == start


def read_use(folder: str, application: str) -> tuple[str, str] | None:
    """Read which checkpoint an application's tables are for; None if it was not written down."""
    try:
        with open(os.path.join(folder, USE + application), encoding="utf-8") as file:
            checkpoint, closed = file.read().split("\0")
    except (OSError, ValueError):
        return None
    return checkpoint, closed


def looked_after(folder: str) -> list[str]:
    """Read which folders an owner's janitor looks after; none if it never had one."""
    try:
        with open(os.path.join(folder, LOCK), encoding="utf-8") as file:
            return [name for name in file.read().split("\0") if name]
    except (OSError, ValueError):
        return []


def is_over(checkpoint: str, closed: str) -> bool:
    """Whether a job is closed, or its checkpoint gone."""
    try:
        os.stat(os.path.join(checkpoint, "job.json"))
    except FileNotFoundError:
        return True
    except OSError:
        return False  # an unreachable file system says nothing about it
    return os.path.exists(os.path.join(checkpoint, closed))


def is_at_work(folder: str) -> bool:
    """Whether a Python daemon works for the executor."""
    names = [name for name in os.listdir(folder) if name.startswith(DAEMON)]
    return any(is_alive(*map(int, name[len(DAEMON) :].split("-"))) for name in names)


def remove_tables(folders: list[str]) -> None:
    """Remove all tables, and leave the notes beside them."""
    for folder in folders:
        with suppress(FileNotFoundError):
            for entry in os.scandir(folder):
                if entry.is_dir(follow_symlinks=False):
                    remove_folder(entry.path)


def look_after(folders: list[str], pid: int, start: int) -> None:
    """Remove what nobody needs, until the executor, process `pid`, has ended.

    The first of the owner's folders is the one with the notes.
    """
    while is_alive(pid, start):
        if not is_at_work(folders[0]):
            remove_tables(folders)
        for name in os.listdir(folders[0]):
            if name.startswith(USE):
                application = name[len(USE) :]
                use = read_use(folders[0], application)
                if use is not None and is_over(*use):
                    for folder in folders:
                        remove_folder(os.path.join(folder, application))
        time.sleep(_POLL_S)
    for folder in folders:
        remove_folder(folder)


def main(arguments: list[str]) -> int:
    """Run as a program: the owner's process, its start, and its folders."""
    pid, start, folders = int(arguments[0]), int(arguments[1]), arguments[2:]
    lock = os.open(os.path.join(folders[0], LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            # Another worker is checking whether there is a janitor, or there is one.
            if time.monotonic() > deadline:
                return 0
            time.sleep(0.05)
    os.truncate(lock, 0)
    os.pwrite(lock, "\0".join(folders).encode(), 0)
    with suppress(FileNotFoundError):  # somebody else has swept the folder
        look_after(folders, pid, start)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
