"""The figures of a checkpoint, read beside its job.

A look costs a few small files as long as there is no new epoch. A new epoch costs its manifest and
the end of the history's newest file. All of the history is read at the first look, and after a look
that came so late, or after so many changes of drivers, that this end does not reach back to the
look before.

Thread safety: a `CheckpointFigures` looks in one thread at a time; its figures may be asked for by
any.

Invariants
----------
1. Nothing is written, and no lock of the job's is taken.
2. A checkpoint that cannot be read keeps the figures that it had, and is said to be unreadable.
3. Counters begin again, from what the history has, only if the checkpoint was set back to an epoch
   before the last one that was counted.
"""

from __future__ import annotations

import os

from pystate.checkpoint.epoch_log import EpochRecord, add_up, newest_records, read_records
from pystate.checkpoint.job_file import SAVEPOINT_FILE
from pystate.checkpoint.manifest_log import History
from pystate.checkpoint.savepoint import manifest_of, read_savepoint
from pystate.checkpoint.storage import CheckpointStorage
from pystate.checkpoint.traces import LATEST, marked_epoch
from pystate.epochs.ownership import current_owner, is_running
from pystate.errors import PystateError
from pystate.maintenance.access import open_existing
from pystate.maintenance.figures import JobFigures
from pystate.redaction import logger

_LOG = logger("pystate.maintenance.checkpoint_figures")


class CheckpointFigures:
    """Follows one checkpoint, which need not be there yet."""

    def __init__(self, job: str, location: str | os.PathLike[str]) -> None:
        self.figures = JobFigures(job)
        self._location = location
        self._storage: CheckpointStorage | None = None
        self._history: History | None = None
        #: The newest epoch that the figures have whole: its record is there, its output committed.
        self._settled = 0
        self._problem = ""

    def look(self) -> None:
        """Bring the figures up to date."""
        try:
            self._look()
        except (PystateError, OSError) as error:
            problem = str(error)
            if problem != self._problem:  # once, and not at each look
                _LOG.warning("the metrics of %r stay as they are: %s", self.figures.job, error)
            self._problem = problem
            self.figures.note(checkpoint_readable=0)
        else:
            self._problem = ""
            self.figures.note(checkpoint_readable=1)

    def _look(self) -> None:
        if self._storage is None:
            self._storage = open_existing(self._location, "metrics")
        storage = self._storage
        if storage.exists(SAVEPOINT_FILE):
            self._look_at_savepoint(storage)
            return
        self._look_at_owner(storage)
        latest = marked_epoch(storage, LATEST, "latest")
        if self._settled and latest == self._settled:
            return
        if latest is not None and latest < self.figures.counted:
            self._history = None  # it was set back, and the epochs known are no longer there
        if self._history is None:
            self._history = History(storage)
        history = self._history
        history.refresh()
        self.figures.note(retained_epochs=len(history.epochs))
        head = history.head
        if head is None:
            return
        committed = history.is_committed(head) if head.sinks else None
        records = self._new_records(storage, head.epoch)
        self.figures.update(head, records)
        self.figures.note(output_committed=None if committed is None else int(committed))
        # The record comes after the manifest, and the output after both.
        settled = self.figures.counted == head.epoch and committed is not False
        self._settled = head.epoch if settled else 0

    def _look_at_savepoint(self, storage: CheckpointStorage) -> None:
        """A savepoint is one epoch, which never changes."""
        if not self._settled:
            savepoint = read_savepoint(storage)
            self.figures.update(manifest_of(storage, savepoint))
            self._settled = savepoint.epoch

    def _look_at_owner(self, storage: CheckpointStorage) -> None:
        owner = current_owner(storage)
        if owner is not None:  # a store has none
            running = is_running(storage, owner)
            self.figures.note(
                driver_starts_total=owner.term,
                driver_running=None if running is None else int(running),
            )

    def _new_records(self, storage: CheckpointStorage, head: int) -> list[EpochRecord]:
        """The records up to an epoch that are not counted yet."""
        counted = self.figures.counted
        records = newest_records(storage) if 0 < counted <= head else []
        if records and records[0].epoch <= counted + 1:
            return [record for record in records if counted < record.epoch <= head]
        if head == counted:
            return []
        everything = [r for r in read_records(storage).records if r.epoch <= head]
        if not counted or head < counted:
            totals = add_up(storage, everything)
            if head < counted:
                _LOG.warning(
                    "the counters of %r begin again: its checkpoint was set back to epoch %d",
                    self.figures.job,
                    head,
                )
            self.figures.begin_anew(totals)
            return everything[-1:]
        return [record for record in everything if record.epoch > counted]
