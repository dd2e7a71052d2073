"""Control groups of this machine, for tests that need less memory than it has."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def memory_limited(limit_bytes: int) -> Iterator[Callable[[], None]]:
    """A group of that much memory below this process's own; the value moves who calls it there.

    Notes
    -----
    For `subprocess`, as ``preexec_fn``. The group goes in the end, when it is empty.
    """
    group, limit = _group()
    made = group / f"pystate-test-{os.getpid()}"
    try:
        made.mkdir()
        (made / limit).write_text(str(limit_bytes))
    except OSError as error:
        if made.exists():
            made.rmdir()
        pytest.skip(f"cannot make a control group of limited memory in {group}: {error.strerror}")

    def enter() -> None:
        (made / "cgroup.procs").write_text(str(os.getpid()))

    try:
        yield enter
    finally:
        made.rmdir()


def _group() -> tuple[Path, str]:
    """The memory group of this process, and the name of a group's limit."""
    root = Path("/sys/fs/cgroup")
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return root / "memory" / path.strip("/"), "memory.limit_in_bytes"
        if not controllers and (root / "cgroup.controllers").exists():
            return root / path.strip("/"), "memory.max"
    pytest.skip("this process is in no control group for memory")
