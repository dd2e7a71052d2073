"""What belongs to a driver: Python, JVM, daemon and workers, found in ``/proc``, and its tables."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from pystate.tables.host import process_start

from .conftest import python_path

__all__ = [
    "Process",
    "newest_epoch",
    "of_session",
    "running_driver",
    "send",
    "tables_in",
    "workers_of",
]


class Process(NamedTuple):
    """A process, named for ever by its start."""

    pid: int
    start: int
    kind: str
    """``driver``, ``jvm``, ``daemon``, ``worker``, or ``other``."""


class _Entry(NamedTuple):
    pid: int
    parent: int
    session: int
    start: int
    command: bytes

    @property
    def is_daemon(self) -> bool:
        # Only as a word of its own: the JVM's command has the name in an option of Spark's.
        words = self.command.split(b"\0")
        return any(name in words for name in (b"pyspark.daemon", b"tests.spark.daemon"))


@contextmanager
def running_driver(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A driver that runs Python with these arguments; if it is left at the end, it is killed."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": python_path()},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def newest_epoch(folder: Path) -> int:
    """The newest epoch that is published in a folder's checkpoint; 0 if none is."""
    manifests = (folder / "checkpoint" / "manifests").glob("*.manifest")
    return max((int(path.stem) for path in manifests), default=0)


def workers_of(root: int) -> list[int]:
    """The Python workers below a process: children of a pyspark daemon."""
    entries = {entry.pid: entry for entry in all_processes()}

    def is_below(pid: int) -> bool:
        while pid > 1:
            if pid == root:
                return True
            pid = entries[pid].parent if pid in entries else 0
        return False

    return [pid for pid in entries if _kind(entries, pid) == "worker" and is_below(pid)]


def of_session(session: int) -> list[Process]:
    """All processes of a session, in which a JVM stays when its driver is gone."""
    entries = {entry.pid: entry for entry in all_processes() if entry.session == session}
    return [Process(pid, entry.start, _kind(entries, pid)) for pid, entry in entries.items()]


def send(process: Process, number: signal.Signals) -> bool:
    """Send a signal to a process, unless it has ended; whether it was sent."""
    if process_start(process.pid) != process.start:
        return False
    with suppress(ProcessLookupError):
        os.kill(process.pid, number)
        return True
    return False


def tables_in(folder: Path) -> set[str]:
    """The tables of a folder, which may be removed meanwhile, by their key groups."""
    names = (name for _, _, files in os.walk(folder) for name in files)
    return {name[:11] for name in names if name.endswith(".table")}


def all_processes() -> Iterator[_Entry]:
    """All processes of the machine that have not ended."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if fields[0] not in "ZX":
            parent, session, start = int(fields[1]), int(fields[3]), int(fields[19])
            yield _Entry(int(folder.name), parent, session, start, command)


def _kind(entries: dict[int, _Entry], pid: int) -> str:
    entry = entries[pid]
    if entry.is_daemon:
        parent = entries.get(entry.parent)
        return "worker" if parent is not None and parent.is_daemon else "daemon"
    if pid == entry.session:
        return "driver"
    return "jvm" if entry.command.partition(b"\0")[0].endswith(b"java") else "other"
