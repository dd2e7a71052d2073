"""Control groups of this machine, for tests that need less memory than it has."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class Group:
    """A group for memory, of either version of control groups."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._is_old = (folder / "memory.limit_in_bytes").exists()

    def limit(self, limit_bytes: int) -> None:
        """Allow so much memory, with pages of files, which go when they have to."""
        name = "memory.limit_in_bytes" if self._is_old else "memory.max"
        (self.folder / name).write_text(str(limit_bytes))

    def enter(self) -> None:
        """Move this process there."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def kept_bytes(self) -> int:
        """Memory that would have to be swapped out: that of processes, and files in memory."""
        names = ("total_rss", "total_shmem") if self._is_old else ("anon", "shmem")
        found = self._numbers("memory.stat")
        return sum(found[name] for name in names)

    def most_bytes(self) -> int:
        """The most memory that there was, with pages of files."""
        name = "memory.max_usage_in_bytes" if self._is_old else "memory.peak"
        return int((self.folder / name).read_text())

    def kills(self) -> int:
        """How many processes were killed, as there was not enough."""
        return self._numbers("memory.oom_control" if self._is_old else "memory.events")["oom_kill"]

    def _numbers(self, name: str) -> dict[str, int]:
        lines = (self.folder / name).read_text().splitlines()
        return {key: int(number) for key, number in (line.split() for line in lines)}


@contextmanager
def memory_group() -> Iterator[Group]:
    """A group below this process's own, without a limit; it goes in the end, when it is empty."""
    parent = _parent()
    made = parent / f"pystate-test-{os.getpid()}"
    try:
        made.mkdir()
    except OSError as error:
        pytest.skip(f"cannot make a control group for memory in {parent}: {error.strerror}")
    try:
        if not any((made / name).exists() for name in ("memory.limit_in_bytes", "memory.max")):
            pytest.skip(f"control groups in {parent} have no files for memory")
        yield Group(made)
    finally:
        made.rmdir()


@contextmanager
def memory_limited(limit_bytes: int) -> Iterator[Callable[[], None]]:
    """A group of that much memory below this process's own; the value moves who calls it there.

    Notes
    -----
    For `subprocess`, as ``preexec_fn``.
    """
    with memory_group() as group:
        try:
            group.limit(limit_bytes)
        except OSError as error:
            pytest.skip(f"cannot limit the memory of {group.folder}: {error.strerror}")
        yield group.enter


def _parent() -> Path:
    """The memory group of this process."""
    root = Path("/sys/fs/cgroup")
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return root / "memory" / path.strip("/")
        if not controllers and (root / "cgroup.controllers").exists():
            return root / path.strip("/")
    pytest.skip("this process is in no control group for memory")
