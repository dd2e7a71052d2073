"""The driver's half of the checkpoint protocol: opens epochs, and publishes them or not.

The coordinator never touches live state. Its caller runs the work, hands in one report per range,
and the coordinator decides whether they make an epoch. How epochs follow each other:

* Epochs are numbered by the checkpoint itself, one chain for everything that changes the state:
  batches of a streaming query and runs alike. Each is built on the newest one, which must be the
  one that the caller's position asks for; a gap is an error and never closed with something older.
* A query goes on where its own last batch is recorded, whatever runs have come in between. Every
  manifest carries the progress of all queries, so that a batch that was published is recognised
  although newer epochs exist.
* A query that the checkpoint does not know, in front of state that exists, is an error unless the
  caller says ``restore="latest"``. From then on the state belongs to that query: an older one that
  comes back would mix two inputs, and is refused.
* A run (`run_key`) may come between two batches. While a query runs in another process the run's
  driver takes the checkpoint over, and the query stops with `FencedError` before it publishes.
* Terms never fall along the chain: a driver that finds a newest manifest of a later term than its
  own has been overtaken, whatever it thinks of who owns the checkpoint, and builds nothing on it.
  What it may still publish once its successor has published is therefore of an epoch that is taken;
  orphan collection rests on that (`pystate.coordinator.retention`).
* At most one manifest has sink transactions that are not known to be committed: the newest. They
  are committed again, which is idempotent, before anything else happens. Once they are,
  ``manifests/committed`` says so, and what has become of the output since is its readers' affair.

Thread safety: any thread may open an epoch; while one is open, others wait.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from pystate.checkpoint.job_file import JobFile, open_job
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.manifest_log import History
from pystate.checkpoint.storage import CheckpointStorage
from pystate.coordinator.clock import MAX_STEP_MS, advance, warn
from pystate.coordinator.epoch import Epoch, RangeReport
from pystate.coordinator.merges import BaseMerges, Maintenance, MergePolicy
from pystate.coordinator.ownership import Ownership
from pystate.coordinator.position import AlreadyDone, Position, Restore, check_follows, find_done
from pystate.coordinator.publishing import Publisher
from pystate.coordinator.retention import collect_orphans, delete_files
from pystate.coordinator.retries import evaluate_epoch
from pystate.coordinator.rivals import OvertakenError, Rivals
from pystate.coordinator.transactions import Settling
from pystate.errors import (
    CheckpointError,
    FencedError,
    InvalidArgumentError,
    PystateError,
)

__all__ = ["AlreadyDone", "Coordinator", "OvertakenError", "Position", "RangeReport", "RunOutcome"]

Result = TypeVar("Result")

_LOG = logging.getLogger("pystate.coordinator.coordinator")
# Epochs between two searches for orphans; retired files go at once and do not need one.
_ORPHANS_EVERY = 64


class RunOutcome(NamedTuple):
    """How `Coordinator.run` ended."""

    epoch: int
    manifest: Manifest | None
    already_done: bool
    evaluations: int


class Coordinator:
    """Owns a checkpoint on behalf of one driver.

    Parameters
    ----------
    storage : CheckpointStorage
        The checkpoint.
    job : str
        The job's name; a checkpoint belongs to one.
    parallelism : int
        Number of key-group ranges of an operator.
    max_parallelism : int, optional
        Number of key groups; the stored one, or for a new checkpoint a default.
    retained : int
        Number of manifests to keep.
    commit_sinks : callable, optional
        Commits the transactions of a manifest's `sinks`. It is called again for a manifest whose
        transactions may have been committed before, and must then do nothing.
    allow_unclaimed_state : bool
        Let a pipeline leave out operators, which are carried along, and states or timers of an
        operator, which are dropped for good.
    orphan_grace_ms : int
        Age below which no unnamed file is removed.
    max_evaluations : int
        Number of times that `run` evaluates one epoch.
    merge_policy : MergePolicy or None
        When bases are merged; None for never.
    max_clock_step_ms : int
        Number of milliseconds by which processing time follows a clock that jumps.
    allow_time_back : bool
        Take processing time back to a clock that is behind it by more than that.
    epoch_wait_s : float
        How long `open_epoch` waits for another thread's epoch to end.

    Raises
    ------
    InvalidArgumentError
        The arguments contradict each other, or what the checkpoint was made with.
    CorruptFileError, NewerFormatError
        ``job.json`` cannot be understood.

    Notes
    -----
    The checkpoint is taken over at the first `open_epoch`, not before.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        *,
        job: str,
        parallelism: int,
        max_parallelism: int | None = None,
        retained: int = 3,
        commit_sinks: Callable[[Manifest], None] | None = None,
        allow_unclaimed_state: bool = False,
        orphan_grace_ms: int = 600_000,
        max_evaluations: int = 4,
        merge_policy: MergePolicy | None = MergePolicy(),  # noqa: B008
        max_clock_step_ms: int = MAX_STEP_MS,
        allow_time_back: bool = False,
        epoch_wait_s: float = 600.0,
    ) -> None:
        if retained < 1 or max_evaluations < 1 or orphan_grace_ms < 0:
            raise InvalidArgumentError(
                "retained and max_evaluations are at least 1, orphan_grace_ms is not negative"
            )
        self.storage = storage
        self.parallelism = parallelism
        identity = open_job(storage, job, parallelism, max_parallelism)
        self._retained = retained
        self._allow_unclaimed_state = allow_unclaimed_state
        self._orphan_grace_ms = orphan_grace_ms
        self._max_evaluations = max_evaluations
        self._max_clock_step_ms = max_clock_step_ms
        self._allow_time_back = allow_time_back
        self._has_opened = False
        self._epoch_wait_s = epoch_wait_s
        self._ownership = Ownership(storage, uuid.uuid4().hex)
        self._history = History(storage)
        self._rivals = Rivals(self._ownership, self._history)
        self._publisher = Publisher(storage, identity, self._ownership, self._history, self._rivals)
        self._settling = Settling(self._history, self._ownership, commit_sinks)
        self._maintenance = Maintenance()
        self._merges = (
            BaseMerges(storage, self._maintenance, merge_policy, lambda: self._ownership.term)
            if merge_policy
            else None
        )
        self._tidied = False
        self._opened_s = 0.0
        self._has_published = False
        self._slot = threading.Lock()
        self._holder: int | None = None
        self._epoch: Epoch | None = None
        self._closed = False

    @property
    def job(self) -> JobFile:
        """The checkpoint's identity."""
        return self._publisher.job

    @property
    def run_id(self) -> str:
        """Names this driver in manifests and owner files."""
        return self._ownership.run_id

    @property
    def term(self) -> int:
        """Of this driver; 0 before it has taken the checkpoint over."""
        return self._ownership.term

    @property
    def head(self) -> Manifest | None:
        """The newest epoch that this coordinator knows of."""
        return self._history.head

    def open_epoch(
        self,
        *,
        query_id: str | None = None,
        batch_id: int | None = None,
        offsets_hash: str | None = None,
        run_key: str | None = None,
        processing_time_ms: int | None = None,
        restore: Restore | None = None,
        drain: bool = False,
    ) -> Epoch | AlreadyDone:
        """Open the epoch that a position asks for.

        Parameters
        ----------
        query_id, batch_id, offsets_hash : optional
            A batch of a streaming query, and a hash of the source offsets that it covers.
        run_key : str, optional
            Makes a run idempotent: the same key again is `AlreadyDone`.
        processing_time_ms : int, optional
            What the clock says, which must be the same on every replay of a batch; now by default.
            The epoch's one processing time follows from it, see `pystate.coordinator.clock`.
        restore : {"latest"}, optional
            Lets a query that the checkpoint does not know begin with the state that is there.
            Means nothing for a query that it knows.
        drain : bool
            Whether event time ends after the epoch's rows. It is no part of the position.

        Returns
        -------
        Epoch or AlreadyDone
            An open epoch must be completed or aborted; it is a context manager that aborts.

        Raises
        ------
        CheckpointError
            The position does not follow what the checkpoint holds, a manifest is lost, or another
            thread's epoch did not end in time.
        FencedError
            Another driver owns the checkpoint.
        Exception
            Whatever `commit_sinks` raises for the newest manifest.
        """
        position = Position(query_id, batch_id, offsets_hash, run_key)
        if restore not in (None, "latest"):
            raise InvalidArgumentError(f"restore is None or 'latest', not {restore!r}")
        self._enter()
        try:
            self._prepare()
            done = find_done(self._history, position)
            if done is not None:
                self._leave()
                return done
            base = self._history.head
            check_follows(self.storage.uri, position, base, restore)
            self._opened_s = time.monotonic()
            now_ms = time.time_ns() // 1_000_000
            read_ms = now_ms if processing_time_ms is None else processing_time_ms
            time_ms, clock = advance(
                base, read_ms, self._max_clock_step_ms, allow_back=self._allow_time_back
            )
            warn(base, time_ms, clock, always=not self._has_opened)
            self._has_opened = True
            self._epoch = Epoch(
                number=1 if base is None else base.epoch + 1,
                base=base,
                position=position,
                processing_time_ms=time_ms,
                clock=clock,
                job=self.job,
                parallelism=self.parallelism,
                allow_unclaimed_state=self._allow_unclaimed_state,
                publish=self._publish,
                closed=self._ended,
                drain=drain,
            )
            return self._epoch
        except BaseException:
            self._leave()
            raise

    def run(
        self,
        evaluate: Callable[[Epoch], Sequence[Any] | None],
        *,
        query_id: str | None = None,
        batch_id: int | None = None,
        offsets_hash: str | None = None,
        run_key: str | None = None,
        processing_time_ms: int | None = None,
        restore: Restore | None = None,
        drain: bool = False,
        retryable: Callable[[Exception], bool] | None = None,
    ) -> RunOutcome:
        """Open an epoch, evaluate it as often as it takes, publish it.

        Parameters
        ----------
        evaluate : callable
            Runs the epoch's work once: declares the operators, runs the job, feeds the reports to
            the epoch, and returns the sink transactions. Each call sees a fresh `evaluation_id`.
        retryable : callable, optional
            Whether an exception of `evaluate` may be worth another evaluation. By default every
            one that is not a `PystateError`.

        Other parameters are those of `open_epoch`.

        Raises
        ------
        EvaluationError
            Reports are missing; or the same ranges reported twice, in two evaluations running.
        Exception
            An exception of `evaluate`, once it came twice in the same way, or is not retryable;
            and what `open_epoch` and `Epoch.complete` raise.
        """
        for _ in range(self._max_evaluations):
            opened = self.open_epoch(
                query_id=query_id,
                batch_id=batch_id,
                offsets_hash=offsets_hash,
                run_key=run_key,
                processing_time_ms=processing_time_ms,
                restore=restore,
                drain=drain,
            )
            if isinstance(opened, AlreadyDone):
                return RunOutcome(opened.epoch, opened.manifest, True, 0)
            with opened as epoch:
                try:
                    sinks = evaluate_epoch(epoch, evaluate, self._max_evaluations, retryable)
                    manifest = epoch.complete(sinks)
                except Exception as error:
                    overtaken = self._rivals.overtaken(epoch, error)
                    if overtaken is None:
                        raise
                    if not isinstance(overtaken, OvertakenError):
                        raise overtaken from error
                    _LOG.warning("%s; opening the next epoch", overtaken)
                    continue
                return RunOutcome(
                    manifest.epoch, manifest, False, len(epoch.discarded_evaluations) + 1
                )
        raise FencedError(
            f"checkpoint {self.storage.uri}: an older driver kept publishing before this one, "
            "which has taken the checkpoint over"
        )

    def check_current(self, epoch: Epoch) -> None:
        """Make sure that nobody else has published an open epoch, and that this driver may.

        Raises
        ------
        FencedError
            Another driver owns the checkpoint, or has published the epoch; `OvertakenError` where
            that was an older driver.
        """
        self._rivals.check_current(epoch)

    def check_owner(self) -> None:
        """Raise `FencedError` where another driver has taken the checkpoint over."""
        self._ownership.check()

    def give_up_output(self, epoch: int, act: Callable[[Manifest], Result]) -> Result:
        """Take the checkpoint over, and count the output of its newest epoch as committed.

        Parameters
        ----------
        epoch : int
            That one's number.
        act : callable
            Called with the manifest before that.

        Raises
        ------
        InvalidArgumentError
            It is not the newest epoch, or its output is committed.
        """
        self._enter()
        try:
            self._own()
            return self._settling.give_up(epoch, act)
        finally:
            self._leave()

    def maintain(self) -> None:
        """Search for orphans now, and wait until the maintenance thread has nothing to do."""
        if self._ownership.term:
            self._maintenance.submit(self._collect_orphans)
        self._maintenance.wait()

    def close(self) -> None:
        """Abort an open epoch and wait for the maintenance thread. Calling it twice is fine.

        Merges that no epoch has taken up are given up.
        """
        self._closed = True
        epoch = self._epoch
        if epoch is not None:
            epoch.abort()
        if self._merges is not None:
            self._merges.give_up()
        self._maintenance.close()
        if self._merges is not None:
            self._merges.discard_unused()
        self._ownership.close()

    def __enter__(self) -> Coordinator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- opening ---------------------------------------------------------------------------

    def _enter(self) -> None:
        if self._closed:
            raise CheckpointError("the coordinator is closed")
        if self._holder == threading.get_ident():
            raise CheckpointError("an epoch is open in this thread: complete or abort it first")
        if not self._slot.acquire(timeout=self._epoch_wait_s):
            raise CheckpointError(
                f"another epoch of this job was still running after {self._epoch_wait_s:g} s"
            )
        self._holder = threading.get_ident()

    def _leave(self) -> None:
        self._epoch = None
        self._holder = None
        self._slot.release()

    def _ended(self, epoch: Epoch) -> None:
        if epoch is self._epoch:
            self._leave()

    def _own(self) -> Manifest | None:
        """Own the checkpoint, and return its newest epoch."""
        if not self._ownership.term:
            self._ownership.acquire()
        else:
            self._ownership.check()
        self._history.refresh()
        head = self._history.head
        if head is not None and head.term > self._ownership.term:
            raise self._ownership.fenced(head.term)
        return head

    def _prepare(self) -> None:
        """Own the checkpoint, know its newest epoch, and have that one's sinks committed."""
        head = self._own()
        if head is not None:
            self._settling.settle(head)
        if not self._tidied:
            self._tidied = True
            if self._merges is not None and head is not None:
                # Beside the epoch's work, so that a driver of one epoch can still adopt them.
                self._merges.plan(head, self.parallelism)
            self._maintenance.submit(self._collect_orphans)

    # ---- publishing ------------------------------------------------------------------------

    def _publish(self, epoch: Epoch, sinks: Sequence[Any]) -> Manifest:
        operators = self._publisher.collect(epoch)
        if self._merges is not None:
            # A driver's first epoch may be its only one: it rather takes twice as long than leave
            # the merge beside it to the next driver, which would begin anew.
            first = not self._has_published
            patience_s = time.monotonic() - self._opened_s if first else 0.0
            self._merges.wait(operators, patience_s, first=first)
            operators = self._merges.adopt(operators)
        manifest = self._publisher.publish(epoch, operators, sinks)
        self._has_published = True
        try:
            self._publisher.note_operators(epoch)
            self._settling.settle(manifest)
            self._keep_house(manifest)
        finally:
            epoch.abort()  # ends it; what is published stays
        return manifest

    # ---- housekeeping ----------------------------------------------------------------------

    def _keep_house(self, manifest: Manifest) -> None:
        """Retire, collect and merge; what fails here is tried again after the next epoch."""
        if self._merges is not None:
            self._merges.published(manifest)
            self._merges.plan(manifest)
        try:
            doomed = self._history.retire(self._retained)
        except (PystateError, OSError) as error:
            _LOG.warning(
                "epoch %d is published; retiring older ones failed: %s", manifest.epoch, error
            )
            doomed = frozenset()
        if doomed:
            self._maintenance.submit(lambda: delete_files(self.storage, sorted(doomed)))
        if manifest.epoch % _ORPHANS_EVERY == 0:
            self._maintenance.submit(self._collect_orphans)

    def _collect_orphans(self) -> None:
        collect_orphans(
            self.storage,
            term=self._ownership.term,
            grace_ms=self._orphan_grace_ms,
            live=self._merges.live if self._merges is not None else frozenset,
            check_owner=self._ownership.check,
        )
