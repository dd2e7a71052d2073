"""How much memory this process may use, and uses: one budget for its tables and buffers.

Thread safety: all of it is safe from any thread.
"""

from __future__ import annotations

import os
import threading
from typing import NamedTuple

from pystate._core import core
from pystate.errors import InvalidArgumentError

_LIMIT_VARIABLE = "PYSTATE_MEMORY_LIMIT_BYTES"


class MemoryUse(NamedTuple):
    """Memory that counts towards the limit of this process."""

    limit_bytes: int
    private_bytes: int
    """Heap tables, and buffers of key batches, snapshots, files and merges."""
    shared_bytes: int
    """Shared tables of all processes of the host, in the folders that this one uses."""


def memory_limit_bytes(*, proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> int:
    """Return the memory that this process may use: the machine's, or its control group's if less.

    Both versions of control groups are read, with all ancestors of the group. All tables without a
    limit of their own may together take three quarters of this memory.
    """
    return core.memory_bytes(os.fsencode(proc), os.fsencode(cgroups))


class _Process:
    """The budget of this process, made when it is first needed."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._budget: core.Budget | None = None
        self._limit_bytes = 0

    def limit_bytes(self) -> int:
        if not self._limit_bytes:
            self._limit_bytes = self.budget().stats()[0]
        return self._limit_bytes

    def budget(self) -> core.Budget:
        with self._lock:
            if self._budget is None:
                self._budget = core.Budget(_chosen_limit())
            return self._budget


def _chosen_limit() -> int:
    """The environment's limit; 0 if there is none."""
    text = os.environ.get(_LIMIT_VARIABLE, "0")
    if not text.strip().isdecimal():
        raise InvalidArgumentError(f"{_LIMIT_VARIABLE} is a number of bytes, got {text!r}")
    return int(text)


_process = _Process()
# A forked child has its own tables, and a new lock, since another thread may have held the old one.
os.register_at_fork(after_in_child=_process.reset)


def process_budget() -> core.Budget:
    """Return the budget that this process's tables, snapshots, files and merges are charged to.

    Its limit is the environment variable ``PYSTATE_MEMORY_LIMIT_BYTES``, or three quarters of
    `memory_limit_bytes`.
    """
    return _process.budget()


def budget_bytes() -> int:
    """Return the limit of `process_budget`; its files are not counted for it."""
    return _process.limit_bytes()


def memory_use() -> MemoryUse:
    """Return what counts for the memory limit of this process, and the limit.

    All tables without a limit of their own share it: heap tables of the process and shared tables
    of all processes of the host. The buffers for gathering, sorting, writing, reading and merging
    count, too.
    """
    return MemoryUse(*process_budget().stats())
