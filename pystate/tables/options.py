"""The options of a table, and its statistics.

Values and functions, safe from any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pystate.base.arguments import choice, integer
from pystate.checkpoint.state_files import LEAST_BLOCK_BYTES, MOST_BLOCK_BYTES
from pystate.errors import InvalidArgumentError
from pystate.types.keys import MAX_PARALLELISM

#: Number of sealed epochs that can be undone.
UNDO_EPOCHS = 2
#: The home of tables whose rows are in files, and in memory as far as there is room.
DISK: Final = "disk"
#: The least `limit_bytes` of one: for a batch of keys and what goes with it.
LEAST_ON_DISK = 1 << 20
#: The least `disk_bytes`: for what is fetched at a time.
LEAST_COPIES = 64 << 20
_MOST = (1 << 63) - 1


@dataclass(frozen=True)
class TableOptions:
    """How workers keep an operator's tables; it is pickled and sent to them."""

    home: str = "shm"
    """Where a host's shared tables are: ``"shm"``, ``"local"`` or a folder; ``"heap"``: each
    process has its own; ``"disk"``: in files, and some of their rows in shared memory."""
    limit_bytes: int = 0
    """The most memory of one table; with 0 all tables share the limit of the process."""
    lock_timeout_ms: int = 6000
    """How long to wait for a shared table that another process has."""
    allow_unclaimed_state: bool = False
    """Whether stored states that the operator does not declare are dropped, and not refused."""
    allow_pickle: bool = True
    """Whether states may be pickled."""
    block_bytes: int = LEAST_BLOCK_BYTES
    """How large the blocks of state files are, before compression, if tables are on disk: what is
    read for one row."""
    disk_bytes: int = 0
    """How much of a host's disk copies of objects may take, if tables are on disk and the
    checkpoint in an object store; 0: half of what would be free without them."""

    def __post_init__(self) -> None:
        integer(self.block_bytes, "block_bytes", least=LEAST_BLOCK_BYTES, most=MOST_BLOCK_BYTES)

    @property
    def on_disk(self) -> bool:
        """Whether rows leave memory, and are found again in the files of the checkpoint."""
        return self.home == DISK

    @property
    def guided_block_bytes(self) -> int:
        """The size of blocks of the files that are written; 0 for files that are read as a whole.

        All that writes a state file of such a table is told this number: a file with these blocks
        has a guide to them.
        """
        return self.block_bytes if self.on_disk else 0


def check_home(home: str, path: str | None) -> None:
    """Refuse a place for rows that there is not."""
    choice(home, "home", ("heap", "shared", DISK))
    if home != DISK and (home == "shared") != (path is not None):
        raise InvalidArgumentError("a shared table needs a path, and none on the heap has one")


def backend_options(home: str, limit_bytes: int, lock_timeout_ms: int, owner: str) -> TableOptions:
    """The options of a backend, of what its user says."""
    integer(limit_bytes, f"{owner}: limit_bytes", least=0, most=_MOST)
    integer(lock_timeout_ms, f"{owner}: lock_timeout_ms", least=0, most=_MOST)
    if home != DISK:
        return TableOptions(limit_bytes=limit_bytes, lock_timeout_ms=lock_timeout_ms)
    if 0 < limit_bytes < LEAST_ON_DISK:
        raise InvalidArgumentError(
            f"{owner}: limit_bytes of a table on disk is 0, or {LEAST_ON_DISK} at least: "
            "less is not enough for a batch of keys and what goes with it"
        )
    return TableOptions(DISK, limit_bytes, lock_timeout_ms)


class TableStats(NamedTuple):
    """A table's size. Bytes are memory, not files."""

    keys: int
    """Live keys."""
    slots: int
    """Rows that were ever allocated, whether they are live, dead or reusable."""
    row_bytes: int
    """Memory that is committed for rows."""
    index_bytes: int
    """Memory that the index uses."""
    block_bytes: int
    """Memory of blocks, in use or reusable: values of variable width, pages of the index."""
    undo_bytes: int
    """Memory that is committed for undo logs."""
    ring_bytes: int
    """Memory that is committed for rings of reusable memory."""
    meta_bytes: int
    """Memory of the table's own description."""
    committed_bytes: int
    """All memory that was taken from the system."""
    changed_rows: int
    """Rows touched in the open epoch."""
    recovered_records: int
    """Undo records that the last open or attach had to replay."""
    recovery_ns: int
    """How long that took, in nanoseconds."""
    row_size: int
    """Bytes of a row."""


class DiskStats(NamedTuple):
    """What a table on disk has in memory, and what it looked up in files.

    Counted is since the table was opened, or since a task of a job got it. In brackets is what
    Flink and RocksDB call it.
    """

    rows_in_memory: int
    """Rows that are in memory now."""
    estimated_keys: int
    """About how many keys there are: what the files put, less what they delete, and the rows in
    memory where these are more (``estimate-num-keys``). A key that several files put counts in
    each, and entries of maps count as well: it is too many until files are merged."""
    cache_hits: int
    """Keys that were asked for, and whose rows were in memory (``block-cache-hit``)."""
    cache_misses: int
    """Keys that had to be looked up in files (``block-cache-miss``), new ones among them; a key
    that a batch has several times counts once."""
    absent_keys: int
    """How many of these no file had: they were new, or are deleted."""
    files_asked: int
    """Files in which a key was looked up, added up over all keys. Filters spare the others."""
    filter_lies: int
    """How many of these had nothing, though their filter said so
    (``bloom.filter.full.positive`` less ``full.true.positive``)."""
    reads: int
    """Reads of files."""
    read_bytes: int
    """What they wanted (``bytes-read``)."""
    guide_bytes: int
    """Memory of the guides and filters of the files."""
    rows_left: int
    """Rows that have left memory (``block-cache-evict``)."""

    @property
    def hit_rate(self) -> float | None:
        """The share of hits among the keys that were asked for; None if none was."""
        asked = self.cache_hits + self.cache_misses
        return self.cache_hits / asked if asked else None

    @property
    def files_per_lookup(self) -> float | None:
        """In how many files a key was looked up on average; None if none was."""
        return self.files_asked / self.cache_misses if self.cache_misses else None


def checked_parallelism(max_parallelism: int) -> int:
    """Return a valid number of key groups; refuse any other."""
    return integer(max_parallelism, "max_parallelism", least=1, most=MAX_PARALLELISM)


def checked_range(bounds: tuple[int, int] | None, max_parallelism: int) -> tuple[int, int]:
    """The first and last key group; all if none are given."""
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
