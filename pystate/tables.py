"""What a table is made with, and what it tells about itself.

Values and functions, safe from any thread.
"""

from __future__ import annotations

import os
import threading
from typing import Any, NamedTuple, Protocol

from pystate import _core
from pystate.arguments import integer
from pystate.errors import InvalidArgumentError

__all__ = [
    "MAX_PARALLELISM",
    "UNDO_EPOCHS",
    "Identity",
    "MemoryUse",
    "TableStats",
    "checked_parallelism",
    "checked_range",
    "memory_limit_bytes",
    "memory_use",
    "process_budget",
]

_LIMIT_VARIABLE = "PYSTATE_MEMORY_LIMIT_BYTES"

MAX_PARALLELISM = 32768
#: Sealed epochs that can be undone.
UNDO_EPOCHS = 2


class Identity(Protocol):
    """Who may use a shared table; others find a `TableMismatchError`."""

    @property
    def boot_id(self) -> bytes: ...  # noqa: D102
    @property
    def pid_namespace(self) -> int: ...  # noqa: D102
    @property
    def owner_pid(self) -> int: ...  # noqa: D102
    @property
    def owner_start(self) -> int: ...  # noqa: D102
    @property
    def application(self) -> bytes: ...  # noqa: D102


class TableStats(NamedTuple):
    """A table's size. Bytes are memory, not files."""

    keys: int
    """Live keys."""
    slots: int
    """Rows ever taken: live, dead and reusable."""
    row_bytes: int
    index_bytes: int
    block_bytes: int
    undo_bytes: int
    ring_bytes: int
    meta_bytes: int
    committed_bytes: int
    """All of it as taken from the system."""
    changed_rows: int
    """Rows touched in the open epoch."""
    recovered_records: int
    """Undo records that the last open or attach had to replay."""
    recovery_ns: int
    row_size: int


class MemoryUse(NamedTuple):
    """What counts for the memory limit of this process."""

    limit_bytes: int
    private_bytes: int
    """Heap tables, and buffers of key batches, snapshots, files and merges."""
    shared_bytes: int
    """Shared tables of all processes of the host, in the folders that this one uses."""


def checked_parallelism(max_parallelism: int) -> int:
    """The number of key groups, if it is one."""
    return integer(max_parallelism, "max_parallelism", least=1, most=MAX_PARALLELISM)


def checked_range(bounds: tuple[int, int] | None, max_parallelism: int) -> tuple[int, int]:
    """The first and last key group; all where none are given."""
    if bounds is None:
        return 0, max_parallelism - 1
    given: Any = bounds
    whole = isinstance(given, (tuple, list)) and len(given) == 2
    first, last = given if whole and all(type(b) is int for b in given) else (0, -1)
    if not 0 <= first <= last < max_parallelism:
        raise InvalidArgumentError(
            f"key_group_range {bounds!r:.80}: first and last, inclusive, within 0 to "
            f"{max_parallelism - 1}"
        )
    return first, last


def memory_limit_bytes(*, proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> int:
    """Return the memory that this process may use: the machine's, or its control group's if less.

    Both versions of control groups are read, with all ancestors of the group. Three quarters of it
    are what all tables without a limit of their own may take together.

    Parameters
    ----------
    proc, cgroups : str
        Where the kernel's files are.
    """
    return _core.memory_bytes(os.fsencode(proc), os.fsencode(cgroups))


class _Process:
    """The budget of this process, made when it is first needed."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._budget: _core.Budget | None = None

    def budget(self) -> _core.Budget:
        with self._lock:
            if self._budget is None:
                self._budget = _core.Budget(_chosen_limit())
            return self._budget


def _chosen_limit() -> int:
    """The environment's limit; 0 where there is none."""
    text = os.environ.get(_LIMIT_VARIABLE, "0")
    if not text.strip().isdecimal():
        raise InvalidArgumentError(f"{_LIMIT_VARIABLE} is a number of bytes, got {text!r}")
    return int(text)


_process = _Process()
# A child's tables are its own; so is the lock that another thread may have held.
os.register_at_fork(after_in_child=_process.reset)


def process_budget() -> _core.Budget:
    """Return what tables, snapshots, files and merges of this process are charged to.

    Its limit is that of the environment variable ``PYSTATE_MEMORY_LIMIT_BYTES``, or three quarters
    of `memory_limit_bytes`.

    Raises
    ------
    InvalidArgumentError
        The variable is no number.
    """
    return _process.budget()


def memory_use() -> MemoryUse:
    """Return what counts for the memory limit of this process, and the limit.

    Notes
    -----
    All tables without a limit of their own share it: heap tables of the process, shared tables of
    all processes of the host, and what is needed for a time to gather, sort, write, read and merge.
    """
    return MemoryUse(*process_budget().stats())
