"""What a checkpoint or savepoint is, and what it holds.

Thread safety: functions without state; descriptions are immutable. A job may run meanwhile.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from pystate.checkpoint.job_file import (
    JOB_FILE,
    SAVEPOINT_FILE,
    read_job,
)
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.manifest_log import History
from pystate.checkpoint.refs import OperatorState, RangeState
from pystate.checkpoint.savepoint import manifest_of, read_savepoint
from pystate.checkpoint.storage import CheckpointStorage
from pystate.epochs.ownership import current_owner, is_running
from pystate.errors import CheckpointError
from pystate.maintenance.access import open_existing
from pystate.state.identity import shown_as


@dataclass(frozen=True)
class RangeDescription:
    """One key-group range of an operator, as of the newest epoch.

    Attributes
    ----------
    index : int
        Its number.
    first_key_group, last_key_group : int
        Its key groups, both inclusive.
    deltas : int
        The length of its chain, without the base.
    has_base : bool
        Whether the chain begins with a base.
    size_bytes : int
        Size of its files. Ranges may share a file after a change of parallelism.
    rows : int
        Rows in its files. A key that several files hold is counted in each.
    next_event_timer_ms, next_processing_timer_ms : int or None
        The earliest timers, in milliseconds since 1970, or earlier times; None for none.
    """

    index: int
    first_key_group: int
    last_key_group: int
    deltas: int
    has_base: bool
    size_bytes: int
    rows: int
    next_event_timer_ms: int | None
    next_processing_timer_ms: int | None


@dataclass(frozen=True)
class OperatorDescription:
    """One operator, as of the newest epoch.

    Attributes
    ----------
    uid : str
        Its name.
    parallelism : int
        Its number of ranges.
    key, states : dict of str to str
        Columns of the key and declared states, with their types as they are stored.
    timers : bool
        Whether its function handles timers.
    max_event_time_ms : int or None
        The largest event time that it has seen.
    watermark_ms : int or None
        Its watermark; None without event time, or before the first one.
    files, size_bytes : int
        Its files, each counted once.
    rows : int
        Rows in these files. A key that several files hold is counted in each.
    longest_chain : int
        The largest number of deltas of a range.
    ranges : tuple of RangeDescription
        Its ranges.
    """

    uid: str
    parallelism: int
    key: dict[str, str]
    states: dict[str, str]
    timers: bool
    max_event_time_ms: int | None
    watermark_ms: int | None
    files: int
    size_bytes: int
    rows: int
    longest_chain: int
    ranges: tuple[RangeDescription, ...]


@dataclass(frozen=True)
class QueryDescription:
    """The last batch of a streaming query that the state contains."""

    query_id: str
    batch_id: int
    epoch: int


@dataclass(frozen=True)
class OwnerDescription:
    """The driver that opened the checkpoint last.

    `running` is None if that cannot be told from here, because it ran on another host.
    """

    term: int
    run_id: str
    host: str
    pid: int
    started_ms: int
    running: bool | None


@dataclass(frozen=True)
class Description:
    """A checkpoint or a savepoint.

    Attributes
    ----------
    location : str
        Its folder.
    kind : {"checkpoint", "savepoint"}
        What it is.
    job : str
        The name of its job.
    max_parallelism : int
        The number of key groups.
    created_ms : int
        When the checkpoint was made, or the savepoint was taken.
    library : str
        ``pystate <version>`` that wrote the newest epoch.
    format_version : int
        The format of the newest manifest.
    epochs : tuple of int
        The retained epochs, ascending; empty before the first one.
    published_ms : int or None
        When the newest epoch was published.
    processing_time_ms, watermark_ms : int or None
        The times of the newest epoch.
    output_committed : bool or None
        Whether the newest epoch's output is known to be committed; None if it has none.
    operators : tuple of OperatorDescription
        The operators in the newest epoch.
    queries : tuple of QueryDescription
        The streaming queries in the state.
    owner : OwnerDescription or None
        None for a savepoint, for a store, and before the first driver.
    files, size_bytes : int
        The state files of all retained epochs together, each counted once.
    """

    location: str
    kind: str
    job: str
    max_parallelism: int
    created_ms: int
    library: str
    format_version: int
    epochs: tuple[int, ...]
    published_ms: int | None
    processing_time_ms: int | None
    watermark_ms: int | None
    output_committed: bool | None
    operators: tuple[OperatorDescription, ...]
    queries: tuple[QueryDescription, ...]
    owner: OwnerDescription | None
    files: int
    size_bytes: int


def describe(location: str | os.PathLike[str]) -> Description:
    """Say what a checkpoint or savepoint is, and what its newest epoch holds.

    Only metadata is read, not the state. A job may run meanwhile.

    Parameters
    ----------
    location : str or path
        The folder.

    Returns
    -------
    Description

    Raises
    ------
    InvalidArgumentError
        Nothing there is a checkpoint or savepoint.
    CorruptFileError, NewerFormatError, CheckpointError
        A file that says what it is is damaged, later or lost; it is named.
    """
    storage = open_existing(location, "describe")
    job = read_job(storage)
    if job is None:
        raise CheckpointError(f"{storage.uri}: {JOB_FILE} is lost: bring it back from a copy")
    manifests: tuple[Manifest, ...] = ()
    if storage.exists(SAVEPOINT_FILE):
        savepoint = read_savepoint(storage)
        manifests = (manifest_of(storage, savepoint),)
        kind, created_ms, committed, owner = "savepoint", savepoint.created_ms, None, None
    else:
        history = History(storage)
        history.refresh()
        # Only the newest is asked for what it says; an older one may be retired meanwhile.
        newest = history.head
        manifests = _intact(history)
        kind, created_ms, owner = "checkpoint", job.created_ms, _owner(storage)
        committed = history.is_committed(newest) if newest is not None and newest.sinks else None
    head = manifests[-1] if manifests else None
    files = {ref.path: ref for m in manifests for o in m.operators for ref in o.files}
    return Description(
        location=storage.uri,
        kind=kind,
        job=job.name,
        max_parallelism=job.max_parallelism,
        created_ms=created_ms,
        library=job.library if head is None else head.library,
        format_version=1 if head is None else head.format_version,
        epochs=tuple(manifest.epoch for manifest in manifests),
        published_ms=None if head is None else head.created_ms,
        processing_time_ms=None if head is None else head.processing_time_ms,
        watermark_ms=None if head is None else head.watermark_ms,
        output_committed=committed,
        operators=() if head is None else tuple(map(_operator, head.operators)),
        queries=()
        if head is None
        else tuple(
            QueryDescription(q.query_id, q.batch_id, q.epoch)
            for q in head.queries
            if q.offsets_hash  # a store's epochs have none
        ),
        owner=owner,
        files=len(files),
        size_bytes=sum(ref.file_bytes for ref in files.values()),
    )


def _intact(history: History) -> tuple[Manifest, ...]:
    """The retained manifests that can be read; the newest can."""
    intact = []
    for epoch in history.epochs:
        try:
            intact.append(history.manifest(epoch))
        except CheckpointError:
            continue  # damaged, which `verify` reports; or retired meanwhile
    return tuple(intact)


def _owner(storage: CheckpointStorage) -> OwnerDescription | None:
    owner = current_owner(storage)
    if owner is None:
        return None
    running = is_running(storage, owner)
    return OwnerDescription(
        owner.term, owner.run_id, owner.host, owner.pid, owner.started_ms, running
    )


def _operator(operator: OperatorState) -> OperatorDescription:
    files = {ref.path: ref for ref in operator.files}.values()
    return OperatorDescription(
        uid=operator.uid,
        parallelism=operator.parallelism,
        key=dict(operator.key_schema),
        states={name: shown_as(stored) for name, stored in operator.state_schema},
        timers=operator.timers,
        max_event_time_ms=operator.max_event_time_ms,
        watermark_ms=operator.watermark_ms,
        files=len(files),
        size_bytes=sum(ref.file_bytes for ref in files),
        rows=sum(ref.rows for ref in files),
        longest_chain=max((len(state.deltas) for state in operator.ranges), default=0),
        ranges=tuple(map(_range, operator.ranges)),
    )


def _range(state: RangeState) -> RangeDescription:
    return RangeDescription(
        index=state.index,
        first_key_group=state.first_key_group,
        last_key_group=state.last_key_group,
        deltas=len(state.deltas),
        has_base=state.base is not None,
        size_bytes=sum(ref.file_bytes for ref in state.files),
        rows=sum(ref.rows for ref in state.files),
        next_event_timer_ms=state.next_event_timer_ms,
        next_processing_timer_ms=state.next_processing_timer_ms,
    )
