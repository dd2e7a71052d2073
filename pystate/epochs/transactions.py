"""Commits the transactions of an epoch's output, or gives them up.

An epoch exists once its manifest does, and its output once its sink transactions are committed.
Each next driver tries the commit again until it is known to have succeeded.

Thread safety: a `Settling` has one user at a time (its coordinator's lock).

Invariants
----------
1. No epoch is opened before the newest epoch's transactions are committed or given up: at most one
   manifest has unsettled transactions.
2. Output is given up only by its epoch's number, and durably: it is never committed later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.manifest_log import History
from pystate.epochs.ownership import Ownership
from pystate.errors import CheckpointError, FencedError, InvalidArgumentError

Result = TypeVar("Result")


class Settling:
    """Commits the transactions of manifests, once."""

    def __init__(
        self,
        history: History,
        ownership: Ownership,
        commit_sinks: Callable[[Manifest], None] | None,
    ) -> None:
        self._history = history
        self._ownership = ownership
        self._commit_sinks = commit_sinks
        self._settled: int | None = None

    def settle(self, manifest: Manifest) -> None:
        """Commit the newest manifest's transactions, unless they are known to be."""
        if self._settled == manifest.epoch:
            return
        if manifest.sinks and not self._history.is_committed(manifest):
            if self._commit_sinks is None:
                raise CheckpointError(
                    f"{manifest.path} holds {len(manifest.sinks)} sink transactions, and the job "
                    "has no sink to commit them: start it with the sink that wrote them, or their "
                    "output is lost"
                )
            try:
                self._commit_sinks(manifest)
            except Exception as error:
                # The new owner commits it, too, so what it has done meanwhile is not a failure.
                try:
                    self._ownership.check()
                except FencedError as fenced:
                    raise fenced from error
                raise
            self._history.note_committed(manifest)
        self._settled = manifest.epoch

    def give_up(self, epoch: int, act: Callable[[Manifest], Result]) -> Result:
        """Mark the newest epoch's output as committed, after a last call of `act`."""
        head = self._history.head
        newest = None if head is None else head.epoch
        if head is None or newest != epoch:
            raise InvalidArgumentError(
                f"the output of epoch {epoch} is not waiting for anything: the newest epoch is "
                f"{newest}, and only its output may not be committed yet"
            )
        if not head.sinks or self._history.is_committed(head):
            raise InvalidArgumentError(
                f"the output of epoch {epoch} is committed: there is nothing to give up"
            )
        result = act(head)
        self._history.note_committed(head, durable=True)
        self._settled = head.epoch
        return result
