"""Detects what other drivers of a checkpoint have done to an epoch that this driver has open.

Thread safety: a `Rivals` belongs to its coordinator's lock.
"""

from __future__ import annotations

from pystate.checkpoint.manifest import Manifest, manifest_path
from pystate.checkpoint.manifest_log import History
from pystate.epochs.epoch import Epoch
from pystate.epochs.ownership import Ownership
from pystate.errors import AlreadyPublishedError, FencedError, PystateError


class OvertakenError(FencedError):
    """An older driver published the epoch before it noticed that it is no longer the owner.

    `Coordinator.run` opens the next epoch by itself.
    """


class Rivals:
    """Checks whether an epoch still belongs to this driver."""

    def __init__(self, ownership: Ownership, history: History) -> None:
        self._ownership = ownership
        self._history = history

    def check_current(self, epoch: Epoch) -> None:
        """Make sure that this driver owns the checkpoint, and no driver has published the epoch."""
        self._ownership.check()
        winner = self._history.find_published(epoch.number)
        if winner is not None and winner.evaluation_id != epoch.evaluation_id:
            raise self._lost(epoch.number, winner)

    def check_winner(self, manifest: Manifest, error: AlreadyPublishedError) -> None:
        """Distinguish an earlier attempt of this driver from another driver's manifest."""
        winner = self._history.find_published(manifest.epoch)
        if winner is None:
            raise error  # the name was reported as taken, but no manifest has it
        if winner.evaluation_id != manifest.evaluation_id:
            raise self._lost(manifest.epoch, winner) from error

    def overtaken(self, epoch: Epoch, error: Exception) -> FencedError | None:
        """The error to raise if another driver ended the epoch, whatever error this driver got."""
        if isinstance(error, FencedError):
            return error
        if not epoch.is_open:
            return None
        try:
            self.check_current(epoch)
        except FencedError as fenced:
            return fenced
        except (PystateError, OSError):
            pass
        return None

    def _lost(self, epoch: int, winner: Manifest) -> FencedError:
        kind = OvertakenError if winner.term < self._ownership.term else FencedError
        return kind(
            f"{manifest_path(epoch)} was published by another driver (run {winner.run_id} on "
            f"{winner.host}); this one (run {self._ownership.run_id}) has changed nothing"
        )
