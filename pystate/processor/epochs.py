"""Which epoch, and which operator: what a checkpoint or a savepoint holds.

Nothing here takes a checkpoint over, or writes to it: a job may run on it meanwhile.

Thread safety: functions without state.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO, TypeVar

import pyarrow as pa

from pystate.base.arguments import checked_uid, folder_path, integer, nearest
from pystate.checkpoint.job_file import JOB_FILE, refuse_spark
from pystate.checkpoint.locations import open_storage
from pystate.checkpoint.manifest import Manifest, manifest_path, read_manifest
from pystate.checkpoint.manifest_log import History, retained_epochs
from pystate.checkpoint.refs import FileRef, OperatorState
from pystate.checkpoint.state_files import file_schema, open_file
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import CheckpointError, DeclarationError, InvalidArgumentError
from pystate.state.identity import StoredFold
from pystate.state.kinds import declared_as
from pystate.types.ddl import quoted
from pystate.types.state_type import StateType, parse_type

Result = TypeVar("Result")

_TRIES = 10
_INSTANT: pa.DataType = pa.timestamp("ms", "UTC")
_COLUMNS: dict[str, pa.DataType] = {
    "epoch": pa.int64(),
    "uid": pa.string(),
    "key": pa.string(),
    "namespace": pa.string(),
    "state": pa.string(),
    "kind": pa.string(),
    "type": pa.string(),
    "ttl": pa.string(),
    "parallelism": pa.int32(),
    "max_parallelism": pa.int32(),
    "files": pa.int64(),
    "size_bytes": pa.int64(),
    "created": _INSTANT,
    "processing_time": _INSTANT,
    "watermark_ms": pa.int64(),
    "library": pa.string(),
}


class MissingFileError(CheckpointError):
    """A file that an epoch's manifest names does not exist, or no longer."""

    epoch = 0


class NotHeldError(CheckpointError, InvalidArgumentError):
    """A checkpoint that is as it should be does not hold the epoch or operator asked for."""


def missing_file(storage: CheckpointStorage, epoch: int, path: object) -> MissingFileError:
    """The error to raise for a file that an epoch's manifest names."""
    missing = MissingFileError(
        f"checkpoint {storage.uri}: a file that {manifest_path(epoch)} names is missing: {path}; a "
        "job that went on may have retired the epoch: read again, or retain more epochs; if not, "
        "bring it back from a copy"
    )
    missing.epoch = epoch
    return missing


def open_named(storage: CheckpointStorage, epoch: int, ref: FileRef) -> BinaryIO:
    """Open a file that an epoch's manifest names; `MissingFileError` if it does not exist."""
    try:
        return storage.open_read(ref.path)
    except FileNotFoundError as error:
        raise missing_file(storage, epoch, error.filename or ref.path) from error


def while_retained(
    storage: CheckpointStorage, read: Callable[[], Result], verb: str, *, again: bool = True
) -> Result:
    """Read an epoch, and start with the next one if a running job retires it meanwhile.

    It removes its files while they are read. Without `again` no other epoch is read.
    """
    lost = 0
    for _ in range(_TRIES):
        try:
            return read()
        except MissingFileError as error:
            if error.epoch == lost or not again:
                raise
            lost = error.epoch
    raise CheckpointError(
        f"checkpoint {storage.uri}: each of {_TRIES} epochs was retired while it was read: retain "
        f"more epochs, or {verb} while the job stands still"
    )


def storage_at(location: str | os.PathLike[str], caller: str) -> CheckpointStorage:
    """Open the storage of a checkpoint or savepoint."""
    return open_storage(folder_path(location, f"{caller}: a checkpoint's location"))


def epoch_of(
    storage: CheckpointStorage, epoch: int | None = None, history: History | None = None
) -> Manifest:
    """Read the manifest of an epoch, by default of the newest; an error if it is not retained.

    With a `history`, which is one thread's meanwhile, only what is new is read for the newest.
    """
    if epoch is None:
        history = History(storage) if history is None else history
        history.refresh()
        head = history.head
        if head is None:
            if not storage.exists(JOB_FILE):
                refuse_spark(storage)
            raise CheckpointError(
                f"checkpoint {storage.uri} has no epoch yet"
                if storage.exists(JOB_FILE)
                else f"{storage.uri} holds no checkpoint: give the folder that a Job, or "
                "pystate.open, has as its checkpoint"
            )
        return head
    number = integer(epoch, "epoch", least=1)
    epochs = retained_epochs(storage)
    if number in epochs:
        with suppress(FileNotFoundError):
            return read_manifest(storage, manifest_path(number))
    retained = f"{epochs[0]} to {epochs[-1]}" if epochs else "none"
    raise NotHeldError(
        f"checkpoint {storage.uri} does not hold epoch {number}; it has {retained}: choose one of "
        "them, or let the job retain more epochs"
    )


def operator_of(storage: CheckpointStorage, manifest: Manifest, uid: str | None) -> OperatorState:
    """Find an operator; without a uid the only one."""
    if uid is not None:
        checked_uid(uid)
    operators = [operator for operator in manifest.operators if uid in (None, operator.uid)]
    if len(operators) == 1:
        return operators[0]
    uids = sorted(operator.uid for operator in manifest.operators)
    known = ", ".join(map(repr, uids)) or "none"
    raise NotHeldError(
        f"checkpoint {storage.uri}, epoch {manifest.epoch}: which operator? It has {known}: give "
        "its uid (--uid)"
        if uid is None
        else f"checkpoint {storage.uri} has no operator {uid!r} in epoch {manifest.epoch}; "
        f"it has {known}{nearest(uid, uids)}"
    )


def namespace_of(
    storage: CheckpointStorage, epoch: int, operator: OperatorState
) -> StateType | None:
    """Return the type of an operator's namespaces, which each of its files says; None if none."""
    # The smallest one is read soonest where it has to be fetched.
    for ref in sorted(operator.files, key=lambda ref: ref.file_bytes):
        with open_named(storage, epoch, ref) as file, open_file(file) as opened:
            return file_schema(opened.reader).namespace
    return None


def state_metadata(location: str | os.PathLike[str], *, epoch: int | None = None) -> pa.Table:
    """List the operators and states of a checkpoint or savepoint.

    Parameters
    ----------
    location : str or path
        A checkpoint or a savepoint.
    epoch : int, optional
        Only this epoch; by default all retained ones.

    Returns
    -------
    pyarrow.Table
        A row per epoch, operator and state, oldest epoch first, with these columns.

        - ``epoch``, ``uid``, ``state``.
        - ``key`` and ``namespace``: the columns of the key, and the type of namespaces, in DDL.
        - ``kind``: ``value``, ``list``, ``map``, ``reducing``, ``aggregating``, or ``timers``,
          whose ``state`` is null. In epochs of older versions ``value`` may also be a reducing
          state, or a count, a sum or an extreme.
        - ``type``: of the column that `read_state` gives, in DDL; null for timers.
        - ``ttl``: its time to live, as `StateTtl` is written; null if it has none, and in epochs
          whose manifest has format 7 or less, which do not say.
        - ``parallelism``, ``max_parallelism``.
        - ``files``, ``size_bytes``, ``watermark_ms``: of the operator, in that epoch.
        - ``created``, ``processing_time`` and ``library``: of the epoch.

    Raises
    ------
    CheckpointError
        There is no epoch, or that one is not retained.
    """
    storage = storage_at(location, "state_metadata")
    newest = epoch_of(storage, epoch)
    rows = _rows(storage, newest)
    if epoch is None:
        for number in reversed(retained_epochs(storage)):
            if number < newest.epoch:
                # A running job retires the oldest epochs, whose rows are then left out.
                with suppress(FileNotFoundError, MissingFileError):
                    older = read_manifest(storage, manifest_path(number))
                    rows = _rows(storage, older) + rows
    return pa.Table.from_pylist(rows, pa.schema(_COLUMNS))


def _rows(storage: CheckpointStorage, manifest: Manifest) -> list[dict[str, Any]]:
    epoch = {
        "epoch": manifest.epoch,
        "max_parallelism": manifest.max_parallelism,
        "created": manifest.created_ms,
        "processing_time": manifest.processing_time_ms,
        "library": manifest.library,
    }
    rows = []
    for operator in manifest.operators:
        namespace = namespace_of(storage, manifest.epoch, operator)
        files = {ref.path: ref.file_bytes for ref in operator.files}
        common = {
            **epoch,
            "uid": operator.uid,
            "key": ", ".join(f"{quoted(name)} {ddl}" for name, ddl in operator.key_schema),
            "namespace": None if namespace is None else namespace.ddl,
            "parallelism": operator.parallelism,
            "watermark_ms": operator.watermark_ms,
            "files": len(files),
            "size_bytes": sum(files.values()),
        }
        ttls = {name: repr(ttl) for name, ttl in operator.ttls}
        for name, stored in operator.state_schema:
            kind, type_ = _kind_and_type(stored)
            described = {"state": name, "kind": kind, "type": type_, "ttl": ttls.get(name)}
            rows.append({**common, **described})
        if operator.timers:
            rows.append({**common, "state": None, "kind": "timers", "type": None, "ttl": None})
    return rows


def _kind_and_type(stored: str) -> tuple[str, str | None]:
    try:
        declaration = declared_as(stored)
        kind = type(declaration).__name__.removesuffix("State").lower()
        if isinstance(declaration, StoredFold):
            kind = declaration.kind
    except DeclarationError:  # of a later version
        return "unknown", stored
    return kind, parse_type(declaration.arrow_type).ddl
