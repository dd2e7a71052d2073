"""Waiting for an epoch that has what somebody wrote: to read one's own writes.

A position is a run's key, a batch of a stream, or offsets of the stream's sources. Manifests name
runs and batches. What a batch has read up to stands in the log that the stream keeps beside them,
as each source writes its offsets: numbers that grow, in JSON.

Thread safety: functions without state; a `Position` is immutable.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pystate.base.arguments import integer, shown, text
from pystate.checkpoint.manifest import Manifest, manifest_path
from pystate.checkpoint.object_storage import ObjectStorage
from pystate.checkpoint.source_position import SPARK_FOLDER, query_of
from pystate.checkpoint.storage import CheckpointStorage, find_bytes
from pystate.errors import CheckpointError, CorruptFileError, InvalidArgumentError, NotReachedError
from pystate.query.connection import Connection, Place
from pystate.types.durations import Duration, milliseconds

#: How long to wait from one look at a checkpoint to the next, at first and at most.
_LOCAL_S, _REMOTE_S = (0.002, 0.02), (0.05, 1.0)
#: A look lists the manifests each so many times; else only the next one is looked for.
_LISTED = 16
_FORMS = (
    "a run's key, such as 'load-7'; a batch, such as ('<id of the query>', 12) or the progress of "
    "a query; or how far a source has been read, as its endOffset says: {'topic': {'0': 1234}}"
)


class Position(ABC):
    """What an epoch has to contain."""

    @abstractmethod
    def is_in(self, connection: Connection, manifest: Manifest, after: int) -> bool:
        """Whether an epoch contains it, of which that is known up to the epoch `after`."""


@dataclass(frozen=True)
class EpochPosition(Position):
    """An epoch, or a later one."""

    epoch: int

    def is_in(self, connection: Connection, manifest: Manifest, after: int) -> bool:
        """Whether an epoch is that one, or a later one."""
        return manifest.epoch >= self.epoch

    def __str__(self) -> str:
        return f"epoch {self.epoch}"


@dataclass(frozen=True)
class _Run(Position):
    """A run, by its key."""

    run_key: str

    def is_in(self, connection: Connection, manifest: Manifest, after: int) -> bool:
        return connection.has_run(self.run_key, manifest, after)

    def __str__(self) -> str:
        return f"run {self.run_key!r}"


@dataclass(frozen=True)
class _Batch(Position):
    """A batch of a stream, or a later one."""

    query_id: str
    batch_id: int

    def is_in(self, connection: Connection, manifest: Manifest, after: int) -> bool:
        progress = manifest.progress(self.query_id)
        return progress is not None and progress.batch_id >= self.batch_id

    def __str__(self) -> str:
        return f"batch {self.batch_id} of query {self.query_id}"


@dataclass(frozen=True)
class _Offsets(Position):
    """How far the sources of the stream have been read at least, in their order."""

    sources: tuple[Any, ...]

    def is_in(self, connection: Connection, manifest: Manifest, after: int) -> bool:
        reached = offsets_of(connection.storage, manifest)
        if reached is None:
            return False
        if len(reached) != len(self.sources):
            raise InvalidArgumentError(
                f"wait_for: position has {len(self.sources)} sources, and the stream "
                f"{len(reached)}: give a list of as many, with None for those that do not matter"
            )
        pairs = zip(self.sources, reached, strict=True)
        return all(wanted is None or _is_reached(wanted, at, manifest) for wanted, at in pairs)

    def __str__(self) -> str:
        return f"the offsets {json.dumps(self.sources, default=str):.200}"


def offsets_of(storage: CheckpointStorage, manifest: Manifest) -> list[Any] | None:
    """Up to where an epoch has read the sources of the checkpoint's stream; None if it has none."""
    progress = query_of(storage, manifest)
    if progress is None:
        return None
    path = f"{SPARK_FOLDER}/offsets/{progress.batch_id}"
    data = find_bytes(storage, path)
    if data is None:
        raise CheckpointError(
            f"checkpoint {storage.uri}: {path} is gone, which says how far epoch {manifest.epoch} "
            "has read its sources: wait for a batch in place of offsets"
        )
    try:
        _, _, *lines = data.decode("utf-8").splitlines()
        return [None if line == "-" else json.loads(line) for line in lines]
    except ValueError as error:
        raise CorruptFileError(f"{path}: not an offset log that Spark writes: {error}") from None


def _is_reached(wanted: Any, at: Any, manifest: Manifest) -> bool:
    """Whether a source has been read as far as is wanted: each number is as large, at least."""
    if isinstance(wanted, Mapping):
        if at is None:
            return False
        if not isinstance(at, Mapping):
            raise _other_form(wanted, at, manifest)
        return all(
            name in at and _is_reached(inner, at[name], manifest) for name, inner in wanted.items()
        )
    if at is None:
        return False
    if not _is_number(wanted) or not _is_number(at):
        raise _other_form(wanted, at, manifest)
    return bool(at >= wanted)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _other_form(wanted: Any, at: Any, manifest: Manifest) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"wait_for: the offset {json.dumps(wanted, default=str):.80} cannot be compared with "
        f"{json.dumps(at):.80}, which epoch {manifest.epoch} has: write it as the source does, "
        "with numbers that grow"
    )


def parse_position(epoch: Any, position: Any) -> Position:
    """What `StateReader.wait_for` was asked for."""
    if (epoch is None) == (position is None):
        raise InvalidArgumentError("wait_for takes an epoch, or a position, and only one of them")
    if epoch is not None:
        return EpochPosition(integer(epoch, "wait_for: epoch", least=1))
    if isinstance(position, str) and position:
        return _Run(text(position, "wait_for: position"))
    if isinstance(position, tuple) and len(position) == 2 and isinstance(position[0], str):
        return _Batch(position[0], integer(position[1], "wait_for: position: batch", least=0))
    if isinstance(position, Mapping) and {"id", "batchId"} <= set(position):
        batch = integer(position["batchId"], "wait_for: position: batchId", least=0)
        return _Batch(str(position["id"]), batch)
    sources = position if isinstance(position, list) else [position]
    if sources and all(isinstance(s, Mapping) or s is None or _is_number(s) for s in sources):
        return _Offsets(tuple(sources))
    raise InvalidArgumentError(f"wait_for: position is {_FORMS}; not {shown(position)}")


def form_of(position: Any) -> str:
    """A position that `parse_position` takes, in JSON, of which it makes the same."""
    if isinstance(position, tuple):
        position = {"id": position[0], "batchId": position[1]}
    elif isinstance(position, Mapping) and {"id", "batchId"} <= set(position):
        position = {"id": str(position["id"]), "batchId": position["batchId"]}
    try:
        return json.dumps(position)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"wait_for: position is {_FORMS}; a server takes what JSON has: {error}"
        ) from None


def pinned_error(epoch: int, wanted: Position) -> InvalidArgumentError:
    """The error where a reader stays at an epoch that does not have a position."""
    return InvalidArgumentError(
        f"wait_for: the reader is pinned to epoch {epoch}, which does not have {wanted}: wait "
        "with the one that at(...) was called on"
    )


def not_reached_error(
    where: str, wanted: Position, timeout: Duration, newest: int
) -> NotReachedError:
    """The error where no epoch had a position in time."""
    so_long = timeout if isinstance(timeout, (str, timedelta)) else f"{timeout} ms"
    return NotReachedError(
        f"{where}: {wanted} was not published within {so_long}; the newest epoch is {newest}: wait "
        "longer, or see whether the job runs"
    )


def wait(place: Place, wanted: Position, timeout: Duration) -> int:
    """Move a reader to the first newest epoch that contains a position; returns its number.

    `NotReachedError` if none does in time.
    """
    ends = time.monotonic() + milliseconds(timeout, "wait_for: timeout") / 1000
    connection = place.connection
    pause, longest = _REMOTE_S if isinstance(connection.storage, ObjectStorage) else _LOCAL_S
    looks = after = 0
    while True:
        view = place.view
        if looks % _LISTED == 0 or connection.storage.exists(manifest_path(view.epoch + 1)):
            view = place.refresh()
        if view.epoch > after or looks == 0:
            if wanted.is_in(connection, view.manifest, after):
                return view.epoch
            after = view.epoch
        if place.pinned:
            raise pinned_error(view.epoch, wanted)
        left = ends - time.monotonic()
        if left <= 0:
            where = f"checkpoint {connection.storage.uri}"
            raise not_reached_error(where, wanted, timeout, view.epoch)
        connection.closed.wait(min(pause, left))
        place.check()
        pause, looks = min(pause * 1.5, longest), looks + 1
