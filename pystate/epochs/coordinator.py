"""The driver's half of the checkpoint protocol: opens epochs, and publishes them or not.

The coordinator never touches live state. Its caller runs the work and passes in one report per
range, and the coordinator decides whether they make an epoch. `pystate.epochs.position` says
which epoch may follow another, and `pystate.epochs.interval` when an epoch has several steps.

Thread safety: any thread may open an epoch; while one is open, others wait.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from pystate.checkpoint.job_file import JobFile, check_parallelism, open_job
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.manifest_log import History
from pystate.checkpoint.storage import CheckpointStorage
from pystate.epochs.chronicle import Chronicle
from pystate.epochs.clock import MAX_STEP_MS, advance, warn
from pystate.epochs.epoch import Epoch
from pystate.epochs.holds import Holds
from pystate.epochs.housekeeping import Housekeeping
from pystate.epochs.interval import Interval
from pystate.epochs.listeners import CheckpointListener, News, Notices
from pystate.epochs.merge_policy import MergePolicy
from pystate.epochs.merge_runner import MergeRunner
from pystate.epochs.merges import FileMerges, Maintenance
from pystate.epochs.options import CheckpointOptions
from pystate.epochs.ownership import Ownership, fence_start
from pystate.epochs.position import AlreadyDone, Position, Restore, check_follows, find_done
from pystate.epochs.publication import Publisher
from pystate.epochs.retries import evaluate_epoch
from pystate.epochs.rivals import OvertakenError, Rivals
from pystate.epochs.step import Closing, JoinSinks, RunOutcome, WriteHeld, joined
from pystate.epochs.transactions import Settling
from pystate.errors import CheckpointError, FencedError, InvalidArgumentError
from pystate.redaction import logger

Result = TypeVar("Result")

_LOG = logger("pystate.epochs.coordinator")


class Coordinator:
    """Owns a checkpoint on behalf of one driver.

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
        merge_runner: MergeRunner | None = None,
        max_clock_step_ms: int = MAX_STEP_MS,
        allow_time_back: bool = False,
        epoch_wait_s: float = 600.0,
        listeners: Sequence[CheckpointListener] = (),
        options: CheckpointOptions = CheckpointOptions(),  # noqa: B008
        join_sinks: JoinSinks = joined,
    ) -> None:
        if retained < 1 or max_evaluations < 1 or orphan_grace_ms < 0:
            raise InvalidArgumentError(
                "retained and max_evaluations are at least 1, orphan_grace_ms is not negative"
            )
        self.storage = storage
        self.parallelism = parallelism
        fence = partial(fence_start, storage)
        identity = open_job(storage, job, parallelism, max_parallelism, fence)
        self._allow_unclaimed_state = allow_unclaimed_state
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
        self._holds = Holds()
        self._notices = Notices(listeners)
        #: The held steps of the open epoch.
        self.interval = Interval(options)
        self._merges: FileMerges | None = None
        if merge_policy is not None:
            self._merges = FileMerges(
                storage, self._maintenance, merge_policy, lambda: self._ownership.term, merge_runner
            )
        self._house = Housekeeping(
            storage,
            self._history,
            self._ownership,
            self._maintenance,
            self._merges,
            self._holds,
            retained=retained,
            grace_ms=orphan_grace_ms,
        )
        self._closing = Closing(
            self.interval,
            self._publisher,
            self._history,
            self._settling,
            self._notices,
            self._merges,
            self._house,
            Chronicle(storage, self._ownership, self._maintenance),
            join_sinks,
        )
        self._tidied = False
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
        """The name of this driver in manifests and owner files."""
        return self._ownership.run_id

    @property
    def term(self) -> int:
        """The driver's term; 0 before it has taken over the checkpoint."""
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
        closes: bool = False,
    ) -> Epoch | AlreadyDone:
        """Open the epoch of a position."""
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
            head = self._history.head
            base = self.interval.base(head)
            check_follows(self.storage.uri, position, base, restore)
            self._closing.opened_s = time.monotonic()
            now_ms = time.time_ns() // 1_000_000
            read_ms = now_ms if processing_time_ms is None else processing_time_ms
            time_ms, clock = advance(
                base, read_ms, self._max_clock_step_ms, allow_back=self._allow_time_back
            )
            warn(base, time_ms, clock, always=not self._has_opened)
            if not self._has_opened and base is not None:
                self._notices.news = News(complete=base.epoch)
            self._has_opened = True
            self._epoch = Epoch(
                number=1 if head is None else head.epoch + 1,
                base=base,
                position=position,
                processing_time_ms=time_ms,
                clock=clock,
                job=self.job,
                parallelism=self.interval.parallelism(self.parallelism),
                allow_unclaimed_state=self._allow_unclaimed_state,
                publish=self._closing.end,
                closed=self._ended,
                drain=drain,
                news=self._notices.news,
                head=head,
                step=self.interval.step(head, position, closes=closes),
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
        closes: bool = False,
        retryable: Callable[[Exception], bool] | None = None,
    ) -> RunOutcome:
        """Open an epoch, evaluate it until an evaluation counts, and publish it."""
        for _ in range(self._max_evaluations):
            opened = self.open_epoch(
                query_id=query_id,
                batch_id=batch_id,
                offsets_hash=offsets_hash,
                run_key=run_key,
                processing_time_ms=processing_time_ms,
                restore=restore,
                drain=drain,
                closes=closes,
            )
            if isinstance(opened, AlreadyDone):
                return RunOutcome(opened.epoch, opened.manifest, True, 0)
            may_be_named = False
            with opened as epoch:
                try:
                    sinks = evaluate_epoch(epoch, evaluate, self._max_evaluations, retryable)
                    may_be_named = True
                    manifest = epoch.complete(sinks)
                except BaseException as error:
                    try:
                        self._failed(epoch, error)
                    finally:
                        if not may_be_named:
                            self._discard(epoch)
                    continue
                if manifest is self._history.head:
                    self._house.discard(epoch.dropped_reports)
                return RunOutcome(
                    manifest.epoch,
                    manifest,
                    False,
                    len(epoch.discarded_evaluations) + 1,
                    manifest is self.interval.last,
                )
        raise FencedError(
            f"checkpoint {self.storage.uri}: an older driver kept publishing before this one, "
            "which has taken the checkpoint over"
        )

    def _failed(self, epoch: Epoch, error: BaseException) -> None:
        """Raise an epoch's error, unless an older driver has only published the epoch first."""
        if epoch.is_open:
            self._notices.aborted(epoch.number)
        if not isinstance(error, Exception):
            raise error
        overtaken = self._rivals.overtaken(epoch, error)
        if overtaken is None:
            raise error
        if not isinstance(overtaken, OvertakenError):
            raise overtaken from error
        _LOG.warning("%s; opening the next epoch", overtaken)

    def _discard(self, epoch: Epoch) -> None:
        """Remove what the attempts at an epoch have written that was not published."""
        begun = [state for _, ranges in epoch.begun.values() for state in ranges]
        epoch.abort()
        self._house.discard(epoch.dropped_reports, begun)

    def rescale(self, parallelism: int) -> None:
        """Change the number of ranges of each operator, from the next epoch on."""
        check_parallelism(self.storage, parallelism, self.job.max_parallelism)
        self.parallelism = parallelism
        # The steps of an epoch have the same ranges, and the new ones begin with the next epoch.
        self.interval.end_soon()

    def check_current(self, epoch: Epoch) -> None:
        """Make sure that no other driver has published an open epoch, and that this one may."""
        self._rivals.check_current(epoch)

    def take_over(self) -> Manifest | None:
        """Become the owner of the checkpoint, and return its newest epoch."""
        self._enter()
        try:
            return self._own()
        finally:
            self._leave()

    def flush(self, write: WriteHeld) -> Manifest | None:
        """Publish the epoch of the held steps, if there are any, without another step.

        Waits for a step that is open to end.
        """
        self._enter()
        try:
            if self.interval.base(self._own()) is None:
                return None
            return self._closing.flush(write)
        finally:
            self._leave()

    def check_owner(self) -> None:
        """Raise `FencedError` if another driver has taken over the checkpoint."""
        self._ownership.check()

    def give_up_output(self, epoch: int, act: Callable[[Manifest], Result]) -> Result:
        """Take over the checkpoint, and mark the output of its newest epoch as committed."""
        self._enter()
        try:
            self._own()
            return self._settling.give_up(epoch, act)
        finally:
            self._leave()

    @contextmanager
    def held_head(self) -> Iterator[Manifest | None]:
        """Keep the files of the newest epoch within the block, whatever is retired meanwhile.

        Waits for an epoch that is open to end. Epochs may be run within the block.
        """
        self._enter()
        try:
            head = self._own()
            if head is not None:
                self._settling.settle(head)
                self._holds.hold(head)
        finally:
            self._leave()
        try:
            yield head
        finally:
            freed = frozenset() if head is None else self._holds.release(head)
            if not self._closed:
                self._house.remove(freed)

    def maintain(self) -> None:
        """Search for orphans now, and wait until the maintenance thread has nothing to do."""
        if self._ownership.term:
            self._house.finish()
            self._house.search()
        self._maintenance.wait()

    def close(self) -> None:
        """Abort an open epoch and wait for the maintenance thread. Does nothing the second time.

        Merges that no epoch has adopted are given up.
        """
        self._closed = True
        epoch = self._epoch
        if epoch is not None:
            epoch.abort()
        self._house.close()
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
        """Take ownership of the checkpoint, and return its newest epoch."""
        if not self._ownership.term:
            self._ownership.acquire()
        else:
            self._ownership.check()
        self._history.refresh()
        head = self._history.head
        if head is not None and head.term > self._ownership.term:
            raise self._ownership.fenced(head.term)
        if head is not None and head.max_parallelism != self.job.max_parallelism:
            # A driver that had started with other options published just after this one fenced it.
            replace(self.job, max_parallelism=head.max_parallelism).save(self.storage)
            raise FencedError(
                f"checkpoint {self.storage.uri}: another driver has published its first epoch "
                f"meanwhile, with max_parallelism={head.max_parallelism}: start the job again"
            )
        if head is not None and head.run_id != self.run_id:
            self._history.make_durable()  # what follows from it, as output, must not outlive it
        return head

    def _prepare(self) -> None:
        """Take ownership of the checkpoint, and commit the sinks of its newest epoch."""
        head = self._own()
        if head is not None:
            self._settling.settle(head)
        if not self._tidied:
            self._tidied = True
            self._ownership.log_start(self.job.name, head)
            self._house.abandon(head)
            if self._merges is not None and head is not None:
                # They run during the epoch's work: a driver of only one epoch can adopt them, too.
                self._merges.plan(head, self.parallelism)
            self._house.search()
