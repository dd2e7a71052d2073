"""Rules for which epoch may follow another.

* The checkpoint numbers epochs in one chain for everything that changes the state: batches of a
  streaming query and runs alike. Each is built on the newest epoch, which must be the one that the
  caller's position requires. A gap is an error and is never filled with an older epoch.
* A query continues after its own last batch, even if runs have come in between. Every manifest has
  the progress of all queries, so that a published batch is recognised although newer epochs exist.
* If there is state, a query that the checkpoint does not know is an error, unless the caller says
  ``restore="latest"``. From then on the state belongs to that query: an older query that comes back
  would mix two inputs, and is refused.
* A run (`run_key`) may come between two batches. If a query runs in another process, the run's
  driver takes over the checkpoint, and the query stops with `FencedError` before it publishes.
* Terms never decrease along the chain. If the newest manifest has a later term than a driver's own,
  that driver has been overtaken, even if it takes itself for the owner, and builds nothing on it.
  So once its successor has published, it can only publish an epoch whose name is taken; orphan
  collection relies on that (`pystate.epochs.retention`).
* Only the newest manifest may have sink transactions that are not known to be committed. They are
  committed again, which is idempotent, before anything else happens. After that
  ``manifests/committed`` says so, and readers may do with the output what they like.

Thread safety: functions without state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.manifest_log import History
from pystate.errors import CheckpointError, InvalidArgumentError, WrongTypeError

Restore = Literal["latest"]


@dataclass(frozen=True)
class Position:
    """The source of an epoch's input.

    Either a batch of a streaming query (`query_id`, `batch_id`, `offsets_hash`), or a run, which
    may have a key (`run_key`).
    """

    query_id: str | None = None
    batch_id: int | None = None
    offsets_hash: str | None = None
    run_key: str | None = None

    def __post_init__(self) -> None:
        if self.run_key is not None and not isinstance(self.run_key, str):
            raise WrongTypeError(
                f"run_key {self.run_key!r:.80} is of type {type(self.run_key).__name__}: a run key "
                "is a string, kept as it is for as long as the checkpoint"
            )
        streaming = (self.query_id, self.batch_id, self.offsets_hash)
        if self.query_id is None:
            if streaming != (None, None, None):
                raise InvalidArgumentError("batch_id and offsets_hash belong to a query_id")
        elif None in streaming or self.run_key is not None:
            raise InvalidArgumentError(
                "a streaming epoch has query_id, batch_id and offsets_hash, and no run_key"
            )
        elif self.batch_id is not None and self.batch_id < 0:
            raise InvalidArgumentError(f"batch_id {self.batch_id} is negative")

    def __str__(self) -> str:
        if self.query_id is not None:
            return f"batch {self.batch_id} of query {self.query_id}"
        return "a run" if self.run_key is None else f"run {self.run_key!r}"


class AlreadyDone(NamedTuple):
    """The checkpoint already holds this position, and its sink transactions are committed."""

    epoch: int
    manifest: Manifest | None
    """None if it is no longer retained."""


def find_done(history: History, position: Position) -> AlreadyDone | None:
    """Find the epoch that already holds a position.

    It raises `CheckpointError` if the batch is recorded with other offsets, or is too old to tell.
    """
    if position.run_key is not None:
        run = history.find_run(position.run_key)
        return None if run is None else AlreadyDone(*run)
    head = history.head
    if head is None or position.query_id is None or position.batch_id is None:
        return None
    progress = head.progress(position.query_id)
    if progress is None or position.batch_id > progress.batch_id:
        return None
    epoch, offsets_hash = progress.epoch, progress.offsets_hash
    recorded: Manifest | None = None
    if position.batch_id < progress.batch_id or epoch in history.epochs:
        recorded = history.find_batch(position.query_id, position.batch_id)
    if position.batch_id < progress.batch_id:
        if recorded is None or recorded.offsets_hash is None:
            raise CheckpointError(
                f"{position} is older than batch {progress.batch_id}, which epoch {epoch} "
                "recorded, and its own manifest is not retained any more: the query's "
                "checkpoint was set back further than the state's"
            )
        epoch, offsets_hash = recorded.epoch, recorded.offsets_hash
    if offsets_hash != position.offsets_hash:
        raise CheckpointError(
            f"{position} is recorded in epoch {epoch} with other source offsets "
            f"({offsets_hash}, now {position.offsets_hash}): it is not the same batch; the "
            "query's offset log was changed or replaced"
        )
    return AlreadyDone(epoch, recorded)


def check_follows(
    location: str, position: Position, base: Manifest | None, restore: Restore | None
) -> None:
    """Raise `CheckpointError` unless a position may be built on the newest epoch."""
    query_id, batch_id = position.query_id, position.batch_id
    if query_id is None or batch_id is None:
        return
    progress = None if base is None else base.progress(query_id)
    if base is None or progress is None:
        if batch_id != 0:
            raise CheckpointError(
                f"checkpoint {location} knows nothing of query {query_id}, whose "
                f"batch {batch_id} is not its first: the batches before it are missing here. "
                "Were the manifests removed, or was the query started without pystate?"
            )
        if base is not None and restore is None:
            raise CheckpointError(
                f"checkpoint {location} holds the state of epoch {base.epoch}, and "
                f"query {query_id} is new to it: its input would be mixed into that state. "
                'To go on from it on purpose, pass restore="latest"; to begin anew, use '
                "another checkpoint folder"
            )
        return
    if batch_id != progress.batch_id + 1:
        raise CheckpointError(
            f"{position} does not follow batch {progress.batch_id}, the last that the "
            f"checkpoint holds (epoch {progress.epoch}; the newest is {base.epoch}): the "
            f"manifest of batch {batch_id - 1} is missing"
        )
    for other in base.queries:
        if other.query_id != query_id and other.epoch > progress.epoch:
            raise CheckpointError(
                f"query {query_id} stands at epoch {progress.epoch}; since then query "
                f"{other.query_id} has taken the state over (epoch {other.epoch}), and going "
                "on would mix their inputs"
            )
