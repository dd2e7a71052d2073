"""Multiplies the key groups of a job's state, offline, so that it can be split further.

A key is in group ``hash mod n``. With ``factor * n`` groups, group g is split into the groups g,
n + g, 2 n + g, and so on. Within each of those the keys keep their order, so that every range is
merged into `factor` new files, one for each multiple of n, in as many passes over its files.

Thread safety: functions without state.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Callable
from dataclasses import replace

from pystate.base.arguments import check_callback, folder_path, integer
from pystate.checkpoint.copies import for_all
from pystate.checkpoint.locations import open_storage
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.refs import EMPTY_ID, OperatorState, RangeState, state_path
from pystate.checkpoint.savepoint import (
    RetiredError,
    Savepoint,
    finish_savepoint,
    new_folder,
    of_newest_epoch,
)
from pystate.checkpoint.storage import CheckpointStorage
from pystate.epochs.merges import merge_range
from pystate.epochs.rescale import gather_instances
from pystate.errors import InvalidArgumentError
from pystate.types.keys import MAX_PARALLELISM


def rescale(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    max_parallelism: int,
    progress: Callable[[int, int], None] | None = None,
) -> Savepoint:
    """Write a savepoint that has a multiple of the key groups of a checkpoint or savepoint.

    `max_parallelism` is how many ranges a job's state can be split into at most, and a checkpoint
    keeps it for good. A job that begins with the new savepoint, ``Job(..., restore=...)``, goes on
    with the larger number, and its parallelism may be as large.

    Parameters
    ----------
    source : str or path
        A savepoint, or the checkpoint of a job, of which the newest epoch is taken. It is not
        changed.
    destination : str or path
        A folder that is empty, or is not there yet.
    max_parallelism : int
        The new number of key groups: a multiple of the old one, at most 32768.
    progress : callable, optional
        Called with the bytes of state that were read, and those to read in all.

    Returns
    -------
    Savepoint

    Raises
    ------
    InvalidArgumentError
        It is not a multiple, or the destination is not empty.
    CheckpointError
        There is no epoch, the output of the newest one is not committed, or a file cannot be
        written.
    CorruptFileError
        A file of the epoch is damaged; it is named.

    Notes
    -----
    All state is read and written once per multiple, on several threads, with one block of each file
    in memory.
    """
    origin = open_storage(folder_path(source, "rescale: source"))
    target = open_storage(folder_path(destination, "rescale: destination"))
    groups = integer(max_parallelism, "rescale: max_parallelism", least=1, most=MAX_PARALLELISM)
    check_callback(progress, "rescale: progress")

    def write(epoch: Manifest) -> Savepoint:
        return split(origin, epoch, target, groups, progress)

    return of_newest_epoch(origin, write)


def split(
    source: CheckpointStorage,
    manifest: Manifest,
    destination: CheckpointStorage,
    groups: int,
    progress: Callable[[int, int], None] | None = None,
) -> Savepoint:
    """Write an epoch with more key groups into an empty folder; see `rescale`."""
    before = manifest.max_parallelism
    if groups % before or groups == before:
        raise InvalidArgumentError(
            f"rescale: {source.uri} has max_parallelism={before}, and {groups} is not a multiple "
            f"of that: each key group is split into equally many; take {2 * before}, {4 * before}, "
            f"or another multiple up to {MAX_PARALLELISM}"
        )
    with new_folder(source, destination):
        return _split(source, manifest, destination, groups, progress)


def _split(
    source: CheckpointStorage,
    manifest: Manifest,
    destination: CheckpointStorage,
    groups: int,
    progress: Callable[[int, int], None] | None,
) -> Savepoint:
    before = manifest.max_parallelism
    parts = [
        (operator, state, multiple)
        for operator in manifest.operators
        for multiple in range(groups // before)
        for state in operator.ranges
    ]
    ranges: dict[tuple[str, int], RangeState] = {}

    def write(part: tuple[OperatorState, RangeState, int]) -> None:
        operator, state, multiple = part
        new_range = _split_range(source, manifest, destination, operator, state, multiple, groups)
        ranges[operator.uid, new_range.index] = new_range

    for_all(write, parts, size=_bytes_of, progress=progress)
    operators = tuple(
        _with_ranges(op, ranges, groups // before, groups) for op in manifest.operators
    )
    return finish_savepoint(
        source, replace(manifest, max_parallelism=groups, operators=operators), destination
    )


def _with_ranges(
    operator: OperatorState, ranges: dict[tuple[str, int], RangeState], factor: int, groups: int
) -> OperatorState:
    parallelism = operator.parallelism * factor
    own = tuple(ranges[operator.uid, index] for index in range(parallelism))
    return gather_instances(replace(operator, parallelism=parallelism, ranges=own), groups)


def _bytes_of(part: tuple[OperatorState, RangeState, int]) -> int:
    return sum(ref.file_bytes for ref in part[1].files)


def _split_range(
    source: CheckpointStorage,
    manifest: Manifest,
    destination: CheckpointStorage,
    operator: OperatorState,
    state: RangeState,
    multiple: int,
    groups: int,
) -> RangeState:
    """Merge the files of a range into one that has its keys of one multiple."""
    shift = multiple * manifest.max_parallelism
    first, last = state.first_key_group + shift, state.last_key_group + shift
    index = multiple * operator.parallelism + state.index
    if state.id == EMPTY_ID or not state.files:
        return RangeState(index, first, last, EMPTY_ID, since=state.since)
    text = f"{state.id} {first}-{last} of {groups}"
    new_id = hashlib.sha256(text.encode()).hexdigest()[:32]
    path = state_path(operator.uid, first, last, manifest.epoch, uuid.uuid4().hex, "base")
    try:
        base = merge_range(
            source,
            state.files,
            new_id,
            path,
            state.first_key_group,
            state.last_key_group,
            states=operator.states,
            since=dict(state.since),
            destination=destination,
            shift=shift,
            max_parallelism=groups,
        )
    except FileNotFoundError as error:
        raise RetiredError(
            f"{source.uri}: a file of epoch {manifest.epoch} is gone: {error.filename}"
        ) from error
    return replace(
        state,
        index=index,
        first_key_group=first,
        last_key_group=last,
        id=new_id,
        base=base,
        deltas=(),
    )
