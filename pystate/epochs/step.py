"""The end of a step: held, or published as the epoch that it closes.

Thread safety: a `Closing` belongs to its coordinator's lock.

Invariants
----------
1. A step that is held has no effect but in memory: nothing of it is published, or seen by others.
2. Everything that an epoch's steps have held is in its manifest, and is forgotten only after that
   manifest is published.
3. A failure of a checkpoint that is tolerated leaves the step held, as if it had not been due.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.manifest_log import History
from pystate.checkpoint.refs import FileRef, OperatorState, RangeState
from pystate.epochs.chronicle import Chronicle
from pystate.epochs.epoch import Epoch
from pystate.epochs.housekeeping import Housekeeping
from pystate.epochs.interval import Interval, is_tolerable
from pystate.epochs.listeners import Notices
from pystate.epochs.merges import FileMerges
from pystate.epochs.publication import Publisher
from pystate.epochs.transactions import Settling
from pystate.errors import CheckpointError

__all__ = ["Closing", "JoinSinks", "RunOutcome", "WriteHeld", "joined"]

#: Makes the transactions of an epoch from those of its steps; gets the epoch's number, the id of
#: the evaluation that closes it, and the transactions of each step, oldest first.
JoinSinks = Callable[[int, str, Sequence[Sequence[Any]]], Sequence[Any]]

#: Writes the held deltas of a step's ranges; returns a delta by (uid, range).
WriteHeld = Callable[[Manifest], Mapping[tuple[str, int], FileRef]]


def joined(epoch: int, evaluation_id: str, steps: Sequence[Sequence[Any]]) -> Sequence[Any]:
    """All transactions of all steps."""
    return [transaction for step in steps for transaction in step]


class RunOutcome(NamedTuple):
    """How `Coordinator.run` ended."""

    epoch: int
    manifest: Manifest | None
    already_done: bool
    evaluations: int
    held: bool = False
    """Whether the result is a held step, which waits for its checkpoint."""


class Closing:
    """Ends the steps of one driver.

    Parameters
    ----------
    interval : Interval
        The held steps.
    publisher, history, settling, notices, merges, house, chronicle
        The parts of the coordinator.
    join_sinks : callable
        See `JoinSinks`; it may be called again with what it was called with.
    """

    def __init__(
        self,
        interval: Interval,
        publisher: Publisher,
        history: History,
        settling: Settling,
        notices: Notices,
        merges: FileMerges | None,
        house: Housekeeping,
        chronicle: Chronicle,
        join_sinks: JoinSinks,
    ) -> None:
        self._interval = interval
        self._publisher = publisher
        self._history = history
        self._settling = settling
        self._notices = notices
        self._merges = merges
        self._house = house
        self._chronicle = chronicle
        self._join_sinks = join_sinks
        self._has_published = False
        #: When the open step began.
        self.opened_s = 0.0

    def end(self, epoch: Epoch, sinks: Sequence[Any]) -> Manifest:
        """End a step: publish the epoch, or hold the step."""
        if not epoch.step.closes:
            return self._hold(epoch, sinks)
        began_s = time.monotonic()
        try:
            manifest = self._write(epoch, sinks)
        except Exception as error:
            if not epoch.step.holds or not self._may_be_held(epoch.number, error):
                raise
            return self._hold(epoch, sinks)
        try:
            first = self._interval.last is None
            self._chronicle.step(epoch, began_s - self.opened_s, first=first)
            self._published(manifest, epoch.head, began_s, epoch)
        finally:
            epoch.abort()  # ends the epoch; a published manifest stays
        return manifest

    def flush(self, write: WriteHeld) -> Manifest | None:
        """Publish the epoch of the held steps as it is, without another step.

        Parameters
        ----------
        write : callable
            Writes the held deltas.

        Returns
        -------
        Manifest or None
            The manifest; None if no step is held.
        """
        last = self._interval.last
        if last is None:
            return None
        began_s, head = time.monotonic(), self._history.head
        files = write(last)
        operators = tuple(
            replace(
                operator,
                ranges=tuple(
                    _closed(state, files.get((operator.uid, state.index)))
                    for state in operator.ranges
                ),
            )
            for operator in last.operators
        )
        sinks = self._join_sinks(last.epoch, last.evaluation_id, self._interval.waiting)
        manifest = self._publisher.publish(
            replace(last, sinks=tuple(sinks)), head, self._adopted(operators)
        )
        self._published(manifest, head, began_s)
        return manifest

    def _write(self, epoch: Epoch, sinks: Sequence[Any]) -> Manifest:
        if epoch.failures():
            raise CheckpointError(
                f"epoch {epoch.number}: its state was not written: {epoch.failures()[0]}"
            )
        operators = self._adopted(self._publisher.collect(epoch))
        steps = [*self._interval.waiting, sinks]
        transactions = self._join_sinks(epoch.number, epoch.evaluation_id, steps)
        manifest = self._publisher.manifest(epoch, operators, transactions)
        return self._publisher.publish(manifest, epoch.head, operators)

    def _adopted(self, operators: tuple[OperatorState, ...]) -> tuple[OperatorState, ...]:
        if self._merges is None:
            return operators
        # A driver's first epoch may be its only one. It may take up to twice as long, to wait for
        # the merge, since the next driver would have to start the merge again.
        first = not self._has_published
        patience_s = time.monotonic() - self.opened_s if first else 0.0
        self._merges.wait(operators, patience_s, first=first)
        return self._merges.adopt(operators)

    def _may_be_held(self, epoch: int, error: Exception) -> bool:
        """Whether a step is held although it should have closed its epoch."""
        # A manifest whose last sync failed may exist, and then counts.
        if not is_tolerable(error) or self._history.find_published(epoch) is not None:
            return False
        self._interval.failed(epoch, error)
        self._notices.aborted(epoch)
        return True

    def _hold(self, epoch: Epoch, sinks: Sequence[Any]) -> Manifest:
        manifest = self._publisher.manifest(epoch, epoch.collect(closed=False), ())
        first = self._interval.last is None
        self._chronicle.step(epoch, time.monotonic() - self.opened_s, first=first)
        self._interval.hold(manifest, sinks)
        self._notices.told(epoch.news)
        epoch.abort()  # ends the step, which is held
        return manifest

    def _published(
        self,
        manifest: Manifest,
        before: Manifest | None,
        began_s: float,
        epoch: Epoch | None = None,
    ) -> None:
        published_s = time.monotonic()
        self._has_published = True
        self._interval.published()
        if epoch is not None:
            self._notices.told(epoch.news)
            self._publisher.note_operators(epoch)
        try:
            self._settling.settle(manifest)
        finally:
            commit_s = time.monotonic() - published_s
            self._chronicle.published(manifest, before, published_s - began_s, commit_s)
        self._notices.complete(manifest.epoch)
        self._house.published(manifest)


def _closed(state: RangeState, file: FileRef | None) -> RangeState:
    if not state.held or file is None:
        return state
    return replace(state, deltas=(*state.deltas, file), held=())
