"""An operator's state, read from a checkpoint's files into one Arrow table.

Thread safety: functions without state.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from pystate.backend import KeyedStateBackend
from pystate.errors import CheckpointError
from pystate.files import file_schema, open_file
from pystate.history import read_head
from pystate.manifest import Manifest, OperatorState, RangeState
from pystate.storage import CheckpointStorage
from pystate.stored import declared_as
from pystate.types import StateType

__all__ = ["read_state"]

_TRIES = 10


def read_state(storage: CheckpointStorage, uid: str) -> pa.Table:
    """Read the state of an operator as of the newest epoch.

    Returns
    -------
    pyarrow.Table
        A row per key: the key columns, the namespace if there are any, then a column per state,
        null where absent. Objects are in their pickled form. Timers are left out.

    Raises
    ------
    CheckpointError
        The checkpoint has no epoch, or no such operator, or a file of it is lost.
    """
    epoch = 0
    for _ in range(_TRIES):
        manifest = read_head(storage)
        if manifest is None:
            raise CheckpointError(f"checkpoint {storage.uri} has no epoch yet")
        try:
            return _read(storage, manifest, uid)
        except FileNotFoundError as error:
            # A driver that goes on retires epochs, and removes their files, while they are read.
            if manifest.epoch == epoch:
                raise CheckpointError(
                    f"checkpoint {storage.uri}: a file that {manifest.path} names is missing: "
                    f"{error.filename}; bring it back from a copy"
                ) from error
            epoch = manifest.epoch
    raise CheckpointError(
        f"checkpoint {storage.uri}: each of {_TRIES} epochs was retired while it was read: retain "
        "more epochs, or read while the job stands still"
    )


def _read(storage: CheckpointStorage, manifest: Manifest, uid: str) -> pa.Table:
    operator = manifest.operator(uid)
    if operator is None:
        known = ", ".join(repr(found.uid) for found in manifest.operators) or "none"
        raise CheckpointError(
            f"checkpoint {storage.uri} has no operator {uid!r} in epoch {manifest.epoch}; it has "
            f"{known}"
        )
    space = _namespace(storage, operator)

    def read_range(state: RangeState) -> pa.Table:
        return _read_range(storage, manifest, operator, state, space)

    # Loading and reading out leave the interpreter to others.
    with ThreadPoolExecutor(min(len(operator.ranges), os.cpu_count() or 1)) as threads:
        return pa.concat_tables(threads.map(read_range, operator.ranges))


def _read_range(
    storage: CheckpointStorage,
    manifest: Manifest,
    operator: OperatorState,
    state: RangeState,
    space: StateType | None,
) -> pa.Table:
    declared = {name: declared_as(stored) for name, stored in operator.state_schema}
    with KeyedStateBackend(
        list(operator.key_schema),
        states=declared,
        max_parallelism=manifest.max_parallelism,
        key_group_range=(state.first_key_group, state.last_key_group),
        uid=operator.uid,
        namespace=space,
    ) as backend:
        for ref in state.files:
            with storage.open_read(ref.path) as file:
                backend.load(
                    file,
                    # After a change of parallelism a file counts for a part of what it holds.
                    first_key_group=max(ref.first_key_group, state.first_key_group),
                    last_key_group=min(ref.last_key_group, state.last_key_group),
                    expected=ref,
                    allow_unclaimed_state=True,  # timers, and what was dropped
                    since=dict(state.since),
                )
        return backend.to_arrow()


def _namespace(storage: CheckpointStorage, operator: OperatorState) -> StateType | None:
    """The type of an operator's namespaces, which its files tell."""
    for ref in operator.files:
        with storage.open_read(ref.path) as source, open_file(source) as opened:
            return file_schema(opened.reader).namespace
    return None
