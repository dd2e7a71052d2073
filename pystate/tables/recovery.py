"""Filling a table from the files of a checkpoint, as a manifest names them.

Thread safety: functions of the thread that holds the table's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pystate.base.memory import budget_bytes
from pystate.checkpoint.held_deltas import HeldFiles, is_held
from pystate.checkpoint.refs import EMPTY_ID, FileRef, RangeState
from pystate.checkpoint.state_files import Lineage, Source
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import CheckpointError
from pystate.state.operator_spec import OperatorSpec
from pystate.tables.backend import KeyedStateBackend
from pystate.tables.host import TableHome
from pystate.tables.options import LEAST_ON_DISK, TableOptions


@dataclass(frozen=True)
class TableSpec:
    """Which table a task needs, and how it may be obtained."""

    storage: CheckpointStorage
    home: TableHome
    operator: OperatorSpec
    options: TableOptions = TableOptions()  # noqa: RUF009
    query: int = 0
    """Fingerprint of (query id, operator uid, range), for lineages."""
    held: HeldFiles | None = None
    heartbeat: Callable[[], None] | None = None
    """Called between two files: gives a sign of life, or raises if nobody needs the table."""
    tables_of_host: int = 1
    """Among how many tables of a host its memory is divided, if they are on disk."""


def new_backend(spec: TableSpec, base: RangeState, path: str | None) -> KeyedStateBackend:
    """Return a table of a range, not yet open: shared at a path, or private without one."""
    backend = KeyedStateBackend.of(
        spec.operator,
        base.bounds,
        spec.options,
        path=path,
        identity=None if path is None else spec.home.identity,
    )
    if backend.below.on_disk:
        backend.below.set_target(target_bytes(spec.tables_of_host))
    return backend


def target_bytes(tables: int) -> int:
    """From how much memory on rows leave a table on disk, if its user sets no limit.

    All of a host's tables on disk divide half of what its tables and buffers may take among them.
    The other half is for tables that have all of their rows in memory, for batches, guides to
    files, reads, and whatever is written and merged.
    """
    return max(budget_bytes() // 2 // max(tables, 1), LEAST_ON_DISK)


def apply_files(
    backend: KeyedStateBackend, spec: TableSpec, base: RangeState, files: tuple[FileRef, ...]
) -> int:
    """Apply files in one ordinary epoch, which is sealed under the base's id; count records."""
    if not files:
        return 0
    rows = load_files(backend, spec, base, files)
    seal_as_base(backend, spec, base)
    return rows


def load_files(
    backend: KeyedStateBackend, spec: TableSpec, base: RangeState, files: tuple[FileRef, ...]
) -> int:
    """Read what files hold of a range into its table, oldest first; count records.

    `CorruptFileError`, `NewerFormatError` or `CheckpointError`: a file that the manifest names
    cannot be read, or is not the one that was written. `SchemaError` or `UnclaimedStateError`: the
    files' schema is not the declared one. `MemoryLimitError`: the state does not fit.
    """
    rows = 0
    for ref in files:
        counting = ref.overlap(base.bounds)
        if counting is None:
            continue
        if spec.heartbeat is not None:
            spec.heartbeat()
        with _source(spec, ref) as source:
            rows += backend.load(
                source,
                first_key_group=counting[0],
                last_key_group=counting[1],
                expected=ref,
                allow_unclaimed_state=spec.options.allow_unclaimed_state,
                since=dict(base.since),
            )
    return rows


def seal_as_base(backend: KeyedStateBackend, spec: TableSpec, base: RangeState) -> None:
    """Seal a table, filled from the base's files, under the base's id."""
    newest = base.files[-1]
    parent = newest.parent if newest.id == base.id else EMPTY_ID
    name = Lineage(bytes.fromhex(base.id), bytes.fromhex(parent), newest.epoch, spec.query)
    backend.seal(name, snapshot=False)


@contextmanager
def _source(spec: TableSpec, ref: FileRef) -> Iterator[Source]:
    """Open a file: by path if there is one, since that is read without the GIL."""
    if spec.held is not None and is_held(ref.path):
        with spec.held.opened(ref) as source:
            yield source
        return
    path = spec.storage.local_path(ref.path)
    if path is not None and spec.storage.exists(ref.path):
        yield path
        return
    try:
        file = spec.storage.open_read(ref.path)
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{ref.path} is missing in {spec.storage.uri}, and a manifest names it: bring it back"
        ) from error
    with file:
        yield file
