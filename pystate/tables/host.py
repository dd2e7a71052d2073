"""The host as shared tables see it: who owns them and where they live.

Thread safety: functions without state, but for the folder of a process, which it makes once.

Invariants
----------
1. The folder of an owner's tables carries the owner's identity in its name, so that no table is
   opened to decide whether it may go.
2. `sweep` removes tables only of an earlier boot, or of this boot and this pid namespace whose
   owner is gone. Whether another container's tables in a shared folder are in use cannot be known
   from here.
3. Tables are only put below a folder that is this user's and nobody else may enter.
   The same holds for what is beside them on a disk: `TableHome.local_folder`.
4. A table that has outgrown its file system is not made there again while its owner lives: all
   processes of the owner continue with it in the same next folder.
"""

from __future__ import annotations

import atexit
import errno
import os
import re
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from pystate.checkpoint.refs import uid_folder
from pystate.errors import CheckpointError, PystateError
from pystate.redaction import logger

_LOG = logger("pystate.tables.host")
_SHM = "/dev/shm"
#: Containers often give 64 MB, which a single table would fill.
_LEAST_BYTES = 256 * 1024 * 1024
_BASE = re.compile(r"pystate-\d+")
#: An owner's folder, an application's, an operator's.
_LEVELS = 3
_OUTGROWN = ".outgrown"
#: Names of copies of guides, by the range's bounds and the file's id (`csrc/stack/member.h`).
GUIDE_NAME = re.compile(r"(\d{5,})-(\d{5,})-([0-9a-f]{32})\.guide")
#: Kinds of files beside the tables: what tasks write aside, what was merged for tables, and copies
#: of objects.
STEPS, BELOW, OBJECTS = "steps", "below", "objects"
_OWNER = re.compile(r"([0-9a-f]{32})-(\d+)-(\d+)-(\d+)")


class TableIdentity(NamedTuple):
    """Who may use a shared table; stored in its header."""

    boot_id: bytes
    """16 bytes."""
    pid_namespace: int
    owner_pid: int
    owner_start: int
    """In clock ticks since boot."""
    application: bytes
    """32 bytes that identify the checkpoint."""


@dataclass(frozen=True)
class TableHome:
    """The folders of one owner's tables on this host."""

    folder: str | None
    """None if there is no place for shared tables: use the heap."""
    identity: TableIdentity | None
    fallback: str | None = None
    """The folder for tables that have outgrown this one; after it comes the heap."""

    def table_path(
        self, uid: str, first_key_group: int, last_key_group: int, fingerprint: str
    ) -> str | None:
        """The path of a table's file, whose folder is made; None for the heap.

        Tables of another schema, which the fingerprint is of, are in other files. `OSError`: the
        folder cannot be made, or is not safe.
        """
        if self.folder is None or self.identity is None:
            return None
        name = f"{first_key_group:05d}-{last_key_group:05d}-{fingerprint[:16]}.table"
        for owner in (self.folder, self.fallback):
            if owner is None:
                break
            if owner is self.fallback:
                owner = _owner_folder(owner, self.identity)
            folder = os.path.join(owner, self.application, uid_folder(uid))
            os.makedirs(folder, mode=0o700, exist_ok=True)
            path = os.path.join(folder, name)
            if not os.path.exists(path + _OUTGROWN):
                return path
        return None

    @property
    def folders(self) -> tuple[str, ...]:
        """The owner's folders, including the one for tables that have outgrown the first."""
        if self.folder is None or self.fallback is None:
            return () if self.folder is None else (self.folder,)
        return self.folder, os.path.join(
            self.fallback, f"pystate-{os.geteuid()}", os.path.basename(self.folder)
        )

    def local_folder(self, kind: str, uid: str) -> str:
        """Where an operator's files of a kind are: on a disk, and freed with the owner's tables.

        It may have to be made yet. What it lies in is made here, so that nobody else may enter.
        """
        parent = None
        if self.folder is not None and self.identity is not None:
            parent = self.folder
            if self.fallback is not None:
                try:
                    parent = _owner_folder(self.fallback, self.identity)
                except OSError as error:
                    _LOG.warning("no files beside tables in %s: %s", self.fallback, error)
                    parent = None
        if parent is None:
            return os.path.join(_process_folder(), kind, uid_folder(uid))
        return os.path.join(parent, self.application, kind, uid_folder(uid))

    @property
    def application(self) -> str:
        """The name of the checkpoint's folder within them."""
        assert self.identity is not None
        return self.identity.application.hex()[:16]

    def leave(self, path: str) -> None:
        """From now on keep a table in the next folder; `path` is what `table_path` returned."""
        with suppress(FileNotFoundError):
            os.unlink(path)
        os.close(os.open(path + _OUTGROWN, os.O_CREAT | os.O_CLOEXEC, 0o600))

    def has_room_beside(self, path: str) -> bool:
        """Whether there is another folder for a table that is too large for its own."""
        return self.fallback is not None and os.path.commonpath([path, self.fallback]) != (
            self.fallback
        )


def choose_home(
    application: bytes,
    *,
    owner_pid: int | None = None,
    fallback: str | None = None,
    shm: str = _SHM,
    least_bytes: int = _LEAST_BYTES,
) -> TableHome:
    """Find the folder for an owner's tables, and sweep what earlier owners left there.

    The owner is the process whose end makes the tables worthless: for a Spark worker its executor's
    JVM, by default this process. `fallback` is a local folder to use if `shm`, of a memory file
    system, is missing, smaller than `least_bytes` or not safe to use, and for tables that have
    outgrown it. The home has ``folder=None`` if none is suitable, or the host does not show its
    processes.
    """
    try:
        identity = table_identity(application, owner_pid)
    except CheckpointError as error:
        _LOG.warning("tables stay in the process: %s", error)
        return TableHome(None, None)
    for parent in (shm if _has_room(shm, least_bytes) else None, fallback):
        if parent is None:
            continue
        try:
            folder = _owner_folder(parent, identity)
        except OSError as error:
            _LOG.warning("no tables in %s: %s", parent, error)
            continue
        return TableHome(folder, identity, None if parent == fallback else fallback)
    return TableHome(None, None)


@lru_cache(maxsize=1)
def _process_folder() -> str:
    folder = tempfile.mkdtemp(prefix="pystate-")
    atexit.register(_remove_of, os.getpid(), folder)
    return folder


def _remove_of(pid: int, folder: str) -> None:
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)


os.register_at_fork(after_in_child=_process_folder.cache_clear)


def own_folder(kind: str) -> str:
    """Where files of this process are, of a kind, on the disk of temporary files.

    It may have to be made yet. It goes when the process ends, or, if that was killed, when another
    one of this user asks for its own.
    """
    return os.path.join(_own_folder(), kind)


@lru_cache(maxsize=1)
def _own_folder() -> str:
    try:
        folder = _owner_folder(tempfile.gettempdir(), table_identity(b""))
    except (OSError, CheckpointError) as error:
        _LOG.warning("files of this process are in a folder that it alone removes: %s", error)
        return _process_folder()
    atexit.register(_remove_of, os.getpid(), folder)
    return folder


os.register_at_fork(after_in_child=_own_folder.cache_clear)


def guide_prefix(bounds: tuple[int, int]) -> str:
    """How the names of copies of guides to a range's files begin, which lie beside its table."""
    return f"{bounds[0]:05d}-{bounds[1]:05d}-"


def task_folder(parent: str) -> str:
    """Make a folder for what a task of this process writes aside; the task removes it."""
    os.makedirs(parent, mode=0o700, exist_ok=True)
    pid = os.getpid()
    folder = os.path.join(parent, f"{pid}-{process_start(pid)}-{uuid.uuid4().hex}")
    os.mkdir(folder, 0o700)
    return folder


def remove_left(parent: str) -> None:
    """Remove folders by `task_folder` whose processes were killed."""
    names: list[str] = []
    with suppress(FileNotFoundError):
        names = os.listdir(parent)
    for name in names:
        with suppress(ValueError):
            pid, start, _ = name.split("-")
            if str(process_start(int(pid))) != start:
                shutil.rmtree(os.path.join(parent, name), ignore_errors=True)


def is_full(error: OSError) -> bool:
    """Whether a file could not be written as there is no room for it."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def on_local_disk(folder: str, what: str) -> Iterator[None]:
    """Around what writes beside the tables: raise `CheckpointError` if `folder` does not take it.

    The error of a full file system would be taken for one of the table's, which then moved.
    """
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise CheckpointError(
                f"{what}: there is no room on the executor's disk, in {folder}"
            ) from error
        if isinstance(error, PystateError):
            raise  # about a file that is read, and says so
        raise CheckpointError(f"{what}: cannot write into {folder}: {error}") from error


def counted_home(path: str) -> tuple[str, int]:
    """The folder whose tables share one memory limit with the one at `path`, and its depth.

    It is the folder of all owners of this user, or the table's own folder. A table whose name does
    not end in ``.table`` counts alone: the folder's other files may be anything.
    """
    folder = os.path.realpath(os.path.dirname(path) or ".")
    base = folder
    for _ in range(_LEVELS + 1):
        if _BASE.fullmatch(os.path.basename(base)):
            return base, _LEVELS
        base = os.path.dirname(base)
    if path.endswith(".table"):
        return folder, 0
    return os.path.join(folder, os.path.basename(path)), 0


def _owner_folder(parent: str, identity: TableIdentity) -> str:
    """Make the folder of an owner's tables in `parent`, which is swept the first time."""
    base = base_folder(parent)
    owner = "-".join(map(str, (identity.boot_id.hex(), *identity[1:4])))
    folder = os.path.join(base, owner)
    _make_private(base)
    if not os.path.isdir(folder):
        sweep(base)
    _make_private(folder)
    return folder


def table_identity(application: bytes, owner_pid: int | None = None) -> TableIdentity:
    """Identify the host, the pid namespace and the owner.

    `CheckpointError`: there is no ``/proc`` (not Linux), or no such process.
    """
    pid = os.getpid() if owner_pid is None else owner_pid
    start = process_start(pid)
    if start is None:
        raise CheckpointError(f"shared tables need Linux's /proc; process {pid} is not in it")
    try:
        return TableIdentity(_boot_id(), _pid_namespace(), pid, start, application)
    except OSError as error:
        raise CheckpointError(f"shared tables need Linux's /proc: {error}") from error


def process_start(pid: int) -> int | None:
    """Return a process's start time in clock ticks since boot, or None if there is no such process.

    Pids are reused; the pid and the start time together identify a process for good.
    """
    fields = _stat_fields(pid)
    return None if fields is None else int(fields[19])


def ancestor_named(name: str, pid: int | None = None) -> int | None:
    """Find the nearest ancestor whose command is `name`, such as a Python worker's ``java``."""
    current = os.getppid() if pid is None else pid
    while current > 1:
        with suppress(OSError), open(f"/proc/{current}/comm", encoding="utf-8") as comm:
            if comm.read().strip() == name:
                return current
        fields = _stat_fields(current)
        if fields is None:
            return None
        current = int(fields[1])
    return None


def base_folder(parent: str = _SHM) -> str:
    """The folder in `parent` that holds one folder per owner of this user."""
    return os.path.join(parent, f"pystate-{os.geteuid()}")


def living_owners(base: str) -> dict[str, tuple[int, int]]:
    """Find the folders of owners that run here, with their process and its start."""
    boot_id, namespace = _boot_id().hex(), _pid_namespace()
    owners = {}
    with suppress(FileNotFoundError):
        for name in os.listdir(base):
            match = _OWNER.fullmatch(name)
            if match is None or match[1] != boot_id or int(match[2]) != namespace:
                continue
            pid, start = int(match[3]), int(match[4])
            if not _is_gone(pid, start):
                owners[os.path.join(base, name)] = pid, start
    return owners


def sweep(base: str) -> int:
    """Remove the folders of owners that are gone, which lie in `base`; return how many."""
    boot_id, namespace = _boot_id().hex(), _pid_namespace()
    count = 0
    for name in os.listdir(base):
        match = _OWNER.fullmatch(name)
        if match is None:
            continue
        other_boot = match[1] != boot_id
        ours = int(match[2]) == namespace
        if other_boot or (ours and _is_gone(int(match[3]), int(match[4]))):
            shutil.rmtree(os.path.join(base, name), ignore_errors=True)
            count += 1
    return count


def _has_room(folder: str, least_bytes: int) -> bool:
    try:
        status = os.statvfs(folder)
    except OSError:
        return False
    return status.f_blocks * status.f_frsize >= least_bytes and os.access(folder, os.W_OK)


def _make_private(folder: str) -> None:
    """Make a folder that is this user's alone, or raise `OSError`."""
    with suppress(FileExistsError):
        os.makedirs(folder, mode=0o700)
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(f"{folder} is not a folder")
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(
            f"{folder} belongs to user {status.st_uid} with mode {stat.S_IMODE(status.st_mode):o}; "
            "it must be yours with mode 700"
        )


def _is_gone(pid: int, start: int) -> bool:
    current = process_start(pid)
    if current is not None:
        return current != start
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _stat_fields(pid: int) -> list[str] | None:
    """Return the fields after the command of ``/proc/<pid>/stat``: state, parent, and so on."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def _boot_id() -> bytes:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return bytes.fromhex(file.read().strip().replace("-", ""))


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino
