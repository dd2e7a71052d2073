"""An operator's state, read from a checkpoint's files into one Arrow table.

Thread safety: functions without state.
"""

from __future__ import annotations

import pyarrow as pa

from pystate.backend import KeyedStateBackend
from pystate.declarations import declared_as
from pystate.errors import CheckpointError
from pystate.history import read_head
from pystate.manifest import Manifest
from pystate.storage import CheckpointStorage

__all__ = ["read_state"]


def read_state(storage: CheckpointStorage, uid: str) -> pa.Table:
    """Read the state of an operator as of the newest epoch.

    Returns
    -------
    pyarrow.Table
        A row per key: the key columns, then a column per state, null where absent. Objects are in
        their pickled form.

    Raises
    ------
    CheckpointError
        The checkpoint has no epoch, or no such operator.
    """
    manifest = read_head(storage)
    if manifest is None:
        raise CheckpointError(f"checkpoint {storage.uri} has no epoch yet")
    return _read(storage, manifest, uid)


def _read(storage: CheckpointStorage, manifest: Manifest, uid: str) -> pa.Table:
    operator = manifest.operator(uid)
    if operator is None:
        known = ", ".join(repr(found.uid) for found in manifest.operators) or "none"
        raise CheckpointError(
            f"checkpoint {storage.uri} has no operator {uid!r} in epoch {manifest.epoch}; it has "
            f"{known}"
        )
    tables = []
    for state in operator.ranges:
        declared = {name: declared_as(stored) for name, stored in operator.state_schema}
        with KeyedStateBackend(
            list(operator.key_schema),
            states=declared,
            max_parallelism=manifest.max_parallelism,
            key_group_range=(state.first_key_group, state.last_key_group),
            uid=uid,
        ) as backend:
            for ref in state.files:
                with storage.open_read(ref.path) as file:
                    backend.load(file, expected=ref)
            tables.append(backend.to_arrow())
    return pa.concat_tables(tables)
