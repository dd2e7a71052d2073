"""Tells listeners on the driver, and functions on the workers, which checkpoints are complete.

Thread safety: a `Notifier` belongs to its coordinator's lock; a listener is called by whatever
thread ends an epoch, by one at a time.

Invariants
----------
1. Nobody is told that a checkpoint is complete before its manifest is published and its output
   committed. What was counted is told once the manifest is published, whatever its output does.
2. An error of a listener is only logged: it undoes nothing, and keeps nobody else from being told.
3. Telling is best effort: who was not told of an epoch, because a driver ended, a range had no
   work, or a checkpoint was overtaken, is told of a later one, which includes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pystate.checkpoint.epoch_log import EpochRecord, log_epoch
from pystate.checkpoint.manifest import Manifest
from pystate.redaction import logger

_LOG = logger("pystate.epochs.listeners")


class PublishedEpoch(NamedTuple):
    """An epoch that was just published, for who counts."""

    job: str
    """The job's name."""
    checkpoint: str
    """Where its checkpoint is."""
    record: EpochRecord
    """Its numbers: rows, bytes and times, of the whole pipeline and of each operator."""
    manifest: Manifest
    """Its files. What a manifest has may change from version to version."""


class CheckpointListener:
    """Learns on the driver which checkpoints are complete; derive from it, and pass it to a job.

    All methods are best effort: a call may be missing, and one for a later epoch includes all
    earlier ones. An error that they raise is only logged. The next epoch waits for them.

    Examples
    --------
    >>> class Announce(CheckpointListener):
    ...     def on_checkpoint_complete(self, epoch):
    ...         print("complete:", epoch)
    >>> Announce().on_checkpoint_complete(7)
    complete: 7
    """

    def on_checkpoint_complete(self, epoch: int) -> None:
        """Learn that an epoch's state, source position and output are complete.

        Parameters
        ----------
        epoch : int
            The number of the epoch.
        """

    def on_checkpoint_aborted(self, epoch: int) -> None:
        """Learn that an epoch's checkpoint was given up; nothing of it is published.

        Parameters
        ----------
        epoch : int
            The number of the epoch, which a later checkpoint takes over.
        """

    def on_epoch_published(self, published: PublishedEpoch) -> None:
        """Learn what a published epoch has counted and how long it took.

        It is called before `on_checkpoint_complete`, and also if the output could not be committed
        yet. An epoch whose call is missing is not counted by a later one.

        Parameters
        ----------
        published : PublishedEpoch
            The job, the epoch's record, and its manifest.
        """


class CheckpointNotice(NamedTuple):
    """What the functions of the next epoch are to learn."""

    complete: int | None = None
    """The newest complete epoch."""
    aborted: int | None = None
    """The last epoch whose checkpoint was given up after that."""


class Notifier:
    """The notices of one driver."""

    def __init__(self, listeners: Sequence[CheckpointListener] = ()) -> None:
        self._listeners = tuple(listeners)
        #: What functions have not been told yet.
        self.notice = CheckpointNotice()

    def complete(self, epoch: int) -> None:
        """Tell that an epoch is complete."""
        self.notice = CheckpointNotice(complete=epoch)
        for listener in self._listeners:
            try:
                listener.on_checkpoint_complete(epoch)
            except Exception:
                _LOG.exception("epoch %d is complete, but %r failed", epoch, listener)

    def published(self, epoch: PublishedEpoch) -> None:
        """Log a published epoch, and tell who counts."""
        log_epoch(epoch.record, epoch.job, epoch.checkpoint)
        for listener in self._listeners:
            try:
                listener.on_epoch_published(epoch)
            except Exception:
                _LOG.exception("epoch %d is published, but %r failed", epoch.record.epoch, listener)

    def notify_aborted(self, epoch: int) -> None:
        """Tell that an epoch's checkpoint was given up."""
        self.notice = self.notice._replace(aborted=epoch)
        for listener in self._listeners:
            try:
                listener.on_checkpoint_aborted(epoch)
            except Exception:
                _LOG.exception("checkpoint of epoch %d given up; %r failed", epoch, listener)

    def note_delivery(self, notice: CheckpointNotice) -> None:
        """Note what the functions of an epoch that counts were told."""
        if notice == self.notice:
            self.notice = CheckpointNotice()
