"""What changed between two epochs, key by key.

How the keys are found whose states differ is said in `pystate.processor.change_scan`.

Thread safety: functions without state.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pystate.base.arguments import integer
from pystate.checkpoint.manifest import Manifest, manifest_path, read_manifest
from pystate.checkpoint.parts import Parts
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import InvalidArgumentError
from pystate.processor.change_scan import RECORDS, ChangeScan
from pystate.processor.epochs import epoch_of, storage_at
from pystate.processor.key_files import KeyFiles
from pystate.processor.scan import RANGES_AT_ONCE, StateScan, read_ahead
from pystate.processor.selection import Selection
from pystate.state.defaults import fill_defaults
from pystate.types.equality import present, same_rows

_BEGINNING = 0


def changes(
    location: str | os.PathLike[str],
    uid: str | None = None,
    *,
    from_epoch: int,
    to_epoch: int | None = None,
    state: str | None = None,
    keys: Any = None,
) -> pa.Table:
    """Find what changed between two retained epochs.

    Parameters
    ----------
    location : str or path
        The checkpoint of a job or store.
    uid : str, optional
        The operator. It may be left out if there is only one.
    from_epoch : int
        The older epoch; 0 for the empty state before the first.
    to_epoch : int, optional
        The newer epoch; by default the newest.
    state : str, optional
        Compare only this state.
    keys : array-like, list of array-like, RecordBatch or Table, optional
        Compare only these keys, given as for `read_state`. Only files and blocks of their key
        groups are read.

    Returns
    -------
    pyarrow.Table
        A row per key (and namespace) whose states differ: the key columns, the column ``namespace``
        if the operator has namespaces, ``change``, ``before`` and ``after``.

        ``change`` is ``delete`` if the key has no state in the newer epoch, else ``put``.
        ``before`` and ``after`` are structs with a field per state of the newer epoch, null where
        the key has no state; with `state` they are the state itself. A list or map is one value: it
        differs as a whole if an element does. Timers do not count.

    Raises
    ------
    CheckpointError
        An epoch is not retained, or has no such operator, or a file is lost.
    CorruptFileError, NewerFormatError
        A file cannot be read; it is named.
    SchemaError
        A state of the older epoch has a type that does not become that of the newer one.
    InvalidArgumentError
        There is no such state, or the epochs are in the wrong order.

    Notes
    -----
    Both sides have the newer epoch's types and defaults. A type that became wider, and fields that
    were removed, make no difference; nor does a field that was added, as long as it is null.

    That a value expires is no change: both sides have what is stored, as ``expired=True`` reads it.
    Where a delta removes it, as the job's own cleaning does, that is one, unless a merge of files
    has left it out before, which says nothing. A list may lose its items some at a time.

    The cost is in the order of the changes: the keys are read from the deltas between the two
    epochs, and looked up. All of the state is compared only if a state was dropped and declared
    anew in between, or a field was added with a default; and from the beginning, epoch 0, where all
    is a change. A bounded number of keys is in memory at a time, beside the table of changes;
    `scan_changes` does without the table.
    """
    request = _Request("changes", location, uid, from_epoch, to_epoch, state, keys)
    schema, batches = request.batches()
    return pa.Table.from_batches(batches, schema)


def scan_changes(
    location: str | os.PathLike[str],
    uid: str | None = None,
    *,
    from_epoch: int,
    to_epoch: int | None = None,
    state: str | None = None,
    keys: Any = None,
) -> pa.RecordBatchReader:
    """Find what changed between two retained epochs, lazily.

    Parameters
    ----------
    location, uid, from_epoch, to_epoch, state, keys
        As for `changes`.

    Returns
    -------
    pyarrow.RecordBatchReader
        The rows of `changes`, found as they are asked for: a part of the state of bounded size is
        in memory at a time. The reader can be used once.

    Raises
    ------
    CheckpointError, SchemaError, InvalidArgumentError
        As for `changes`. `CheckpointError` is also raised while batches are read, if a running job
        has removed an epoch's files.
    """
    request = _Request("scan_changes", location, uid, from_epoch, to_epoch, state, keys)
    return pa.RecordBatchReader.from_batches(*request.batches())


class _Request(NamedTuple):
    """Arguments of `changes`, and who has got them."""

    caller: str
    location: str | os.PathLike[str]
    uid: str | None
    from_epoch: int
    to_epoch: int | None
    state: str | None
    keys: Any

    def batches(self) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        storage = storage_at(self.location, self.caller)
        first = integer(self.from_epoch, f"{self.caller}: from_epoch", least=0)
        if self.to_epoch is not None:
            integer(self.to_epoch, f"{self.caller}: to_epoch", least=1)
        # What has expired is a change once a delta says so: see `changes`.
        selection = Selection(self.state, expired=True)
        new = StateScan.of(
            storage, self.uid, epoch=self.to_epoch, selection=selection, keys=self.keys
        )
        if first > new.epoch:
            raise InvalidArgumentError(
                f"{self.caller}: from_epoch is {first}, and to_epoch {new.epoch}: give the older "
                "one first"
            )
        older = None if first == _BEGINNING else epoch_of(storage, first)
        scan = ChangeScan.of(new, older, partial(manifests_between, storage, first, new.epoch))
        return change_batches(scan, KeyFiles(storage))


def manifests_between(storage: CheckpointStorage, older: int, newer: int) -> Iterator[Manifest]:
    """The manifests of the epochs between two, as far as they are retained."""
    parts = Parts(storage)
    with suppress(FileNotFoundError):
        for epoch in range(older + 1, newer):
            yield read_manifest(storage, manifest_path(epoch), parts)


def change_batches(
    scan: ChangeScan, looking: KeyFiles
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The rows of `changes`, found as they are asked for, and their columns."""
    new, schema = scan.new, changes_schema(scan.new)
    parts = scan.parts(looking)
    # In an object store each of them waits for requests; many records are not all in memory.
    several = looking.is_remote and all(part.records <= RECORDS for part in parts)
    sides = read_ahead([part.read for part in parts], RANGES_AT_ONCE if several else 1)
    found = (_change_rows(new, schema, *pair) for pair in sides)
    return schema, (rows for rows in found if rows.num_rows)


def changes_schema(new: StateScan) -> pa.Schema:
    """The columns of `changes` of an operator."""
    rows = new.schema
    taken = len(rows) - len(new.read)
    keys = [rows.field(i) for i in range(taken)]
    for field in keys:
        if field.name in ("change", "before", "after"):
            raise InvalidArgumentError(
                f"changes: operator {new.operator.uid!r} has a key column {field.name!r}, as the "
                "table of changes has: read both epochs by read_state, and compare them"
            )
    if new.selection.state is None:
        kept: pa.DataType = pa.struct([rows.field(i) for i in range(taken, len(rows))])
    else:
        kept = rows.field(taken).type
    return pa.schema(
        [*keys, pa.field("change", pa.string()), *(pa.field(n, kept) for n in ("before", "after"))]
    )


def _change_rows(
    new: StateScan, schema: pa.Schema, before: pa.RecordBatch, after: pa.RecordBatch
) -> pa.RecordBatch:
    """The rows that differ, with what happened to them."""
    taken = after.num_columns - len(new.read)
    before, after = _with_defaults(new, before, taken), _with_defaults(new, after, taken)
    differ = np.zeros(after.num_rows, np.bool_)
    for i in range(taken, after.num_columns):
        differ |= ~same_rows(before.column(i), after.column(i))
    rows = np.flatnonzero(differ)
    before, after = before.take(rows), after.take(rows)
    columns = after.columns[:taken]
    sides: list[pa.Array[Any]] = []
    exist = []
    for side in (before, after):
        states = side.columns[taken:]
        exists = np.zeros(len(rows), np.bool_)
        for state in states:
            exists |= present(state)
        exist.append(exists)
        if new.selection.state is None:
            fields = list(schema.field("after").type)
            sides.append(pa.StructArray.from_arrays(states, fields=fields, mask=pa.array(~exists)))
        else:
            sides.append(_or_null(states[0], exists))
    labels = np.where(exist[1], "put", "delete")
    return pa.RecordBatch.from_arrays(
        [*columns, pa.array(labels.tolist(), pa.string()), *sides], schema=schema
    )


def _with_defaults(new: StateScan, side: pa.RecordBatch, taken: int) -> pa.RecordBatch:
    """A side in which keys that exist have what a function sees of them."""
    if not new.defaults:
        return side
    exist = np.logical_or.reduce([present(column) for column in side.columns[taken:]])
    return fill_defaults(side, new.defaults, exist)


def _or_null(state: pa.Array[Any], exists: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.Array[Any]:
    """A state's column in which what a key does not have is null, and not an empty list or map."""
    places = np.where(exists, np.arange(len(exists)), -1)
    return state.take(pa.array(places, pa.int64(), mask=~exists))
