"""What a task does so that tables are freed when they are no longer needed.

Thread safety: what is remembered of folders may be lost to another thread, which then reads one
more time.
"""

from __future__ import annotations

import fcntl
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from pystate._core.core import range_bounds
from pystate.checkpoint.refs import RangeState, uid_folder
from pystate.redaction import logger
from pystate.tables import janitor
from pystate.tables.host import BELOW, GUIDE_NAME, TableHome, living_owners, process_start
from pystate.tables.range_files import MERGED_NAME
from pystate.tables.recovery import TableSpec

_LOG = logger("pystate.tables.upkeep")
_NAME = re.compile(r"(\d{5,})-(\d{5,})-([0-9a-f]+)\.table(?:\.outgrown)?")

#: How coarse the times of folders may be: ticks of the kernel's clock, or whole seconds.
_RESOLUTION_NS = 2_000_000_000
_MOST_FOLDERS = 256
#: By folder: when it last changed, and for whom it was gone through since.
_seen: dict[str, tuple[int, set[tuple[int, int, str, int]]]] = {}


def engage_janitor(home: TableHome) -> None:
    """Start the executor's janitor, and register this worker's daemon with it.

    Spark goes on with the workers of a daemon that was killed: such a one registers itself.
    """
    if home.folder is None or home.identity is None:
        return
    pid, start = _parent()
    if start is None or process_start(pid) != start:
        pid = os.getpid()
        start = process_start(pid)
    if start is None:
        return
    try:
        os.close(os.open(f"{home.folder}/{janitor.DAEMON}{pid}-{start}", os.O_CREAT, 0o600))
        if not _is_looked_after(home.folder):
            _start_janitor(home)
    except OSError as error:
        _LOG.warning("nobody frees the tables in %s once they are done with: %s", home, error)


@lru_cache(maxsize=1)
def _parent() -> tuple[int, int | None]:
    """The process that was this one's parent when this was asked for the first time."""
    parent = os.getppid()
    return parent, process_start(parent)


os.register_at_fork(after_in_child=_parent.cache_clear)


def replace_janitors(base: str) -> int:
    """Start janitors anew that were killed, of the executors of this host; returns how many.

    Each task does that for its own executor. This is for a driver, after the last task. `base` has
    one folder per executor.
    """
    count = 0
    try:
        for folder, (pid, start) in living_owners(base).items():
            # Only executors have janitors, which say in their lock what they look after.
            folders = janitor.looked_after(folder)
            if folders and not _is_looked_after(folder):
                _start(pid, start, folders)
                count += 1
    except OSError as error:
        _LOG.warning("nobody frees the tables in %s once they are done with: %s", base, error)
    return count


def _is_looked_after(folder: str) -> bool:
    path = os.path.join(folder, janitor.LOCK)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _start_janitor(home: TableHome) -> None:
    assert home.identity is not None
    _start(home.identity.owner_pid, home.identity.owner_start, home.folders)


def _start(pid: int, start: int, folders: Sequence[str]) -> None:
    program = [sys.executable, "-I", "-S", janitor.__file__, str(pid), str(start), *folders]
    streams = [(os.POSIX_SPAWN_OPEN, i, os.devnull, os.O_RDWR, 0) for i in range(3)]
    # In a session of its own, so that it outlives the group that its executor is killed with.
    os.posix_spawn(sys.executable, program, os.environ, file_actions=streams, setsid=True)


@lru_cache(maxsize=64)
def note_use(home: TableHome, job_file: str | None, term: int) -> None:
    """Say which checkpoint the tables belong to, and under which driver.

    `job_file` is the path of its ``job.json``, None if it is not in a file system. A note by a
    driver of a later `term` is kept.
    """
    if home.folder is None or job_file is None:
        return
    checkpoint = os.path.dirname(job_file)
    closed = janitor.closing_mark(term)
    known = janitor.read_use(home.folder, home.application)
    if known is not None and known[0] == checkpoint and known[1] >= closed:
        return
    path = os.path.join(home.folder, janitor.USE + home.application)
    with suppress(OSError):
        temporary = f"{path}.{os.getpid()}"
        Path(temporary).write_text(f"{checkpoint}\0{closed}", encoding="utf-8")
        os.replace(temporary, path)


@lru_cache(maxsize=64)
def _all_bounds(max_parallelism: int, parallelism: int) -> frozenset[tuple[int, int]]:
    return frozenset(range_bounds(i, max_parallelism, parallelism) for i in range(parallelism))


def remove_outdated(spec: TableSpec, base: RangeState, parallelism: int) -> None:
    """Remove an operator's tables of another parallelism, and of this range in another schema.

    With the tables goes what was merged for them, and copies of guides. A folder is read again only
    once it has changed: tasks of a thousand ranges do not each go through a thousand names in every
    epoch.
    """
    home, groups = spec.home, spec.operator.max_parallelism
    fingerprint = spec.operator.fingerprint(base.since)
    mine = base.bounds
    ranges = _all_bounds(groups, parallelism)
    looked_for = (*mine, fingerprint, parallelism)
    uid = uid_folder(spec.operator.uid)
    for owner in home.folders:
        folder = os.path.join(owner, home.application, uid)
        for name in _names(folder, looked_for):
            guide = GUIDE_NAME.fullmatch(name)
            if guide is not None and (int(guide[1]), int(guide[2])) not in ranges:
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(folder, name))
            match = _NAME.fullmatch(name)
            if match is None:
                continue
            bounds = int(match[1]), int(match[2])
            if bounds not in ranges or (bounds == mine and not fingerprint.startswith(match[3])):
                janitor.remove_table(os.path.join(folder, name))
    merged = {os.path.join(owner, home.application, BELOW, uid) for owner in home.folders}
    if spec.options.on_disk:
        merged.add(home.local_folder(BELOW, spec.operator.uid))
    for folder in merged:
        for name in _names(folder, looked_for):
            match = MERGED_NAME.fullmatch(name)
            if match is not None and (int(match[1]), int(match[2])) not in ranges:
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(folder, name))


def _names(folder: str, looked_for: tuple[int, int, str, int]) -> Iterator[str]:
    """The names in a folder, unless it was gone through for that since it changed."""
    try:
        changed_ns = os.stat(folder).st_mtime_ns
    except FileNotFoundError:
        return
    seen = _seen.get(folder)
    if seen is None or seen[0] != changed_ns:
        seen = changed_ns, set()
    if looked_for in seen[1]:
        return
    names: list[str] = []
    with suppress(FileNotFoundError):
        names = os.listdir(folder)
    yield from names
    # A folder that changes within the clock's resolution of this does not show it.
    if time.time_ns() - changed_ns > _RESOLUTION_NS:
        if len(_seen) >= _MOST_FOLDERS:
            _seen.clear()
        seen[1].add(looked_for)
        _seen[folder] = seen
