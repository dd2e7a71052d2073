"""What a table is made with, and what it tells about itself.

Pure values and functions, safe from any thread.
"""

from __future__ import annotations

import os
from typing import NamedTuple, Protocol

from pystate import _core
from pystate.errors import InvalidArgumentError

__all__ = [
    "MAX_PARALLELISM",
    "UNDO_EPOCHS",
    "Identity",
    "TableStats",
    "checked_parallelism",
    "checked_range",
    "memory_limit_bytes",
]

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


def checked_parallelism(max_parallelism: int) -> int:
    """The number of key groups, if it is one."""
    if not 1 <= max_parallelism <= MAX_PARALLELISM:
        raise InvalidArgumentError(
            f"max_parallelism is 1 to {MAX_PARALLELISM}, got {max_parallelism}"
        )
    return max_parallelism


def checked_range(bounds: tuple[int, int] | None, max_parallelism: int) -> tuple[int, int]:
    """The first and last key group; all where none are given."""
    if bounds is None:
        return 0, max_parallelism - 1
    first, last = bounds
    if not 0 <= first <= last < max_parallelism:
        raise InvalidArgumentError(
            f"key_group_range {bounds}: first and last, inclusive, within 0 to "
            f"{max_parallelism - 1}"
        )
    return first, last


def memory_limit_bytes(*, proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> int:
    """Return the memory that this process may use: the machine's, or its control group's if less.

    Both versions of control groups are read, with all ancestors of the group. Tables without a
    limit of their own take theirs from the same number.

    Parameters
    ----------
    proc, cgroups : str
        Where the kernel's files are.
    """
    return _core.memory_bytes(os.fsencode(proc), os.fsencode(cgroups))
