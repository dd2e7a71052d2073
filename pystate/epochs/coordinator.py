"""The driver's half of the checkpoint protocol: opens epochs, and publishes them or not.

The coordinator never touches live state. Its caller runs the work and passes in one report per
range, and the coordinator decides whether they make an epoch. `pystate.epochs.position` says
which epoch may follow another, and `pystate.epochs.interval` when an epoch has several steps: a
step ends with the manifest of the epoch that it closes, or is held.

Thread safety: any thread may open an epoch; while one is open, others wait.

Invariants
----------
1. A step that is held has no effect but in memory: nothing of it is published, or seen by others.
2. Everything that an epoch's steps have held is in its manifest, and is forgotten only after that
   manifest is published.
3. A failure of a checkpoint that is tolerated leaves the step held, as if it had not been due.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar

from pystate.base.notes import add_note
from pystate.checkpoint.job_file import JobFile, check_parallelism, open_job
from pystate.checkpoint.leases import MOST_MS as MOST_LEASE_MS
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.manifest_log import History
from pystate.checkpoint.refs import FileRef, OperatorState, RangeState
from pystate.checkpoint.storage import CheckpointStorage
from pystate.epochs.chronicle import Chronicle, Sizes
from pystate.epochs.clock import MAX_STEP_MS, advance, warn
from pystate.epochs.epoch import Epoch, RepeatableError
from pystate.epochs.housekeeping import Housekeeping
from pystate.epochs.interval import CheckpointOptions, Interval, is_tolerable
from pystate.epochs.listeners import CheckpointListener, CheckpointNotice, Notifier
from pystate.epochs.merge_budget import Written
from pystate.epochs.merge_policy import MergePolicy
from pystate.epochs.merges import FileMerges, Maintenance, MergeRunner
from pystate.epochs.ownership import Ownership, fence_start
from pystate.epochs.position import AlreadyDone, Position, Restore, check_follows, find_done
from pystate.epochs.publication import OvertakenError, Publisher
from pystate.errors import (
    CheckpointError,
    EvaluationError,
    FencedError,
    InvalidArgumentError,
    PystateError,
)
from pystate.redaction import logger

if TYPE_CHECKING:
    from typing_extensions import Unpack

Result = TypeVar("Result")

_LOG = logger("pystate.epochs.coordinator")
_NUMBER = re.compile(r"[0-9a-f-]*[0-9][0-9a-f-]*")

#: Makes the transactions of an epoch from those of its steps; gets the epoch's number, the id of
#: the evaluation that closes it, and the transactions of each step, oldest first.
JoinSinks = Callable[[int, str, Sequence[Sequence[Any]]], Sequence[Any]]

#: Writes the held deltas of a step's ranges; returns a delta by (uid, range).
WriteHeld = Callable[[Manifest], Mapping[tuple[str, int], FileRef]]


def join_transactions(
    epoch: int, evaluation_id: str, steps: Sequence[Sequence[Any]]
) -> Sequence[Any]:
    """All transactions of all steps."""
    return [transaction for step in steps for transaction in step]


@dataclass(frozen=True, kw_only=True)
class CoordinatorOptions:
    """How a coordinator keeps its checkpoint."""

    retained: int = 3
    """Number of manifests to keep."""
    max_lease_ms: int = MOST_LEASE_MS
    """How long an epoch is kept at most for readers that hold a lease; 0: not at all."""
    allow_unclaimed_state: bool = False
    """Let a pipeline leave out operators, whose state is kept; and let operators leave out states
    or timers, which are dropped for good."""
    max_evaluations: int = 4
    """Number of times that `Coordinator.run` evaluates one epoch."""
    max_clock_step_ms: int = MAX_STEP_MS
    """Bound of one step of processing time after a jump of the clock."""
    allow_time_back: bool = False
    """Set processing time back to a clock that is behind it by more than that bound."""
    checkpoints: CheckpointOptions = CheckpointOptions()  # noqa: RUF009
    listeners: Sequence[CheckpointListener] = ()
    orphan_grace_ms: int = 600_000
    """Files that no manifest names are removed only from this age on."""
    merge_policy: MergePolicy | None = MergePolicy()  # noqa: RUF009
    """None if files are never merged."""
    epoch_wait_s: float = 600.0
    """How long `Coordinator.open_epoch` waits for another thread's epoch to end."""

    def __post_init__(self) -> None:
        if self.retained < 1 or self.max_evaluations < 1 or self.orphan_grace_ms < 0:
            raise InvalidArgumentError(
                "retained and max_evaluations are at least 1, orphan_grace_ms is not negative"
            )


class Opening(TypedDict, total=False):
    """The arguments of `Coordinator.open_epoch`."""

    query_id: str | None
    batch_id: int | None
    offsets_hash: str | None
    run_key: str | None
    processing_time_ms: int | None
    restore: Restore | None
    drain: bool
    closes: bool


class RunOutcome(NamedTuple):
    """How `Coordinator.run` ended."""

    epoch: int
    manifest: Manifest | None
    already_done: bool
    evaluations: int
    held: bool = False
    """Whether the result is a held step, which waits for its checkpoint."""


class Coordinator:
    """Owns a checkpoint on behalf of one driver, which takes it over with its first epoch."""

    def __init__(
        self,
        storage: CheckpointStorage,
        options: CoordinatorOptions = CoordinatorOptions(),
        *,
        job: str,
        parallelism: int,
        #: Number of key groups; the stored one, or for a new checkpoint a default.
        max_parallelism: int | None = None,
        #: Commits the transactions of a manifest, maybe again: then it must do nothing.
        commit_sinks: Callable[[Manifest], None] | None = None,
        #: Carries out merges when there are many; else the maintenance thread does.
        merge_runner: MergeRunner | None = None,
        join_sinks: JoinSinks = join_transactions,
    ) -> None:
        self.storage = storage
        self._options = options
        self.parallelism = parallelism
        fence = partial(fence_start, storage)
        identity = open_job(storage, job, parallelism, max_parallelism, fence)
        self._join_sinks = join_sinks
        self._ownership = Ownership(storage, uuid.uuid4().hex)
        self._history = History(storage)
        self._publisher = Publisher(storage, identity, self._ownership, self._history, commit_sinks)
        self._maintenance = Maintenance()
        self._notifier = Notifier(options.listeners)
        #: The held steps of the open epoch.
        self.interval = Interval(options.checkpoints)
        self._merges: FileMerges | None = None
        policy = options.merge_policy
        if policy is not None:
            self._merges = FileMerges(
                storage,
                self._maintenance,
                policy,
                lambda: self._ownership.term,
                merge_runner,
                tasks_run=lambda: self._epoch is not None,
            )
        self._house = Housekeeping(
            storage,
            self._history,
            self._ownership,
            self._maintenance,
            self._merges,
            retained=options.retained,
            grace_ms=options.orphan_grace_ms,
            lease_ms=options.max_lease_ms,
        )
        self._chronicle = Chronicle(storage, self._ownership, self._maintenance)
        self._has_opened = self._has_published = self._has_tidied = False
        #: When the open step began.
        self._opened_s = 0.0
        self._slot = threading.Lock()
        self._holder: int | None = None
        self._epoch: Epoch | None = None
        self._closed = False

    @property
    def job(self) -> JobFile:
        """The checkpoint's identity."""
        return self._publisher.job

    @property
    def written(self) -> Written:
        """What epochs and merges have written since this driver began."""
        return Written() if self._merges is None else self._merges.written

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

    @property
    def sizes(self) -> Sizes:
        """Keys and bytes of tables, as far as this driver has seen them."""
        return self._chronicle.sizes

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
        """Open the epoch of a position, which must be completed or aborted.

        It is a batch of a streaming query with a hash of its source offsets, or a run, maybe with a
        key: for what was published before the result is `AlreadyDone`. `processing_time_ms` is the
        clock's reading, now by default, and the same on every replay of a batch. With ``"latest"``
        a query that the checkpoint does not know starts from the existing state. With `drain` event
        time ends after the epoch's rows; with `closes` there is a checkpoint at its end in any
        case.

        It raises `CheckpointError` if the position does not follow the checkpoint's last one, a
        manifest is lost, or another thread's epoch did not end in time; `FencedError` if another
        driver is the owner; and what `commit_sinks` raises for the newest manifest.
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
            head = self._history.head
            base = self.interval.base(head)
            check_follows(self.storage.uri, position, base, restore)
            self._opened_s = time.monotonic()
            now_ms = time.time_ns() // 1_000_000
            read_ms = now_ms if processing_time_ms is None else processing_time_ms
            step_ms, back = self._options.max_clock_step_ms, self._options.allow_time_back
            time_ms, clock = advance(base, read_ms, step_ms, allow_back=back)
            warn(base, time_ms, clock, always=not self._has_opened)
            if not self._has_opened and base is not None:
                self._notifier.notice = CheckpointNotice(complete=base.epoch)
            self._has_opened = True
            self._epoch = Epoch(
                number=1 if head is None else head.epoch + 1,
                base=base,
                position=position,
                processing_time_ms=time_ms,
                clock=clock,
                job=self.job,
                parallelism=self.interval.parallelism(self.parallelism),
                allow_unclaimed_state=self._options.allow_unclaimed_state,
                publish=self._end_step,
                closed=self._on_epoch_end,
                drain=drain,
                notice=self._notifier.notice,
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
        retryable: Callable[[Exception], bool] | None = None,
        **opening: Unpack[Opening],
    ) -> RunOutcome:
        """Open an epoch, evaluate it until an evaluation counts, and publish it.

        `evaluate` runs the work once: it declares the operators, passes the reports to the epoch,
        and returns the sink transactions. `retryable` says whether one of its exceptions is worth
        another evaluation; by default each is that is not a `PystateError`.
        """
        for _ in range(self._options.max_evaluations):
            opened = self.open_epoch(**opening)
            if isinstance(opened, AlreadyDone):
                return RunOutcome(opened.epoch, opened.manifest, True, 0)
            may_be_named = False
            with opened as epoch:
                try:
                    sinks = _evaluate(epoch, evaluate, self._options.max_evaluations, retryable)
                    may_be_named = True
                    manifest = epoch.complete(sinks)
                except BaseException as error:
                    try:
                        self._settle_failure(epoch, error)
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

    def _settle_failure(self, epoch: Epoch, error: BaseException) -> None:
        """Raise an epoch's error, unless an older driver has only published the epoch first."""
        if epoch.is_open:
            self._notifier.notify_aborted(epoch.number)
        if not isinstance(error, Exception):
            raise error
        overtaken = self._publisher.overtaken_error(epoch, error)
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
        """See `Publisher.check_current`."""
        self._publisher.check_current(epoch)

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
            if self.interval.base(self._own()) is None or self.interval.last is None:
                return None
            return self._publish_held(self.interval.last, write)
        finally:
            self._leave()

    def check_owner(self) -> None:
        """Raise `FencedError` if another driver has taken over the checkpoint."""
        self._ownership.check()

    def give_up_output(self, epoch: int, act: Callable[[Manifest], Result]) -> Result:
        """Take over the checkpoint, and mark the output of its newest epoch as committed.

        `epoch` must be the newest one, whose output is not committed; `act` is called with its
        manifest before that.
        """
        self._enter()
        try:
            self._own()
            return self._publisher.give_up_output(epoch, act)
        finally:
            self._leave()

    @contextmanager
    def held_head(self) -> Iterator[Manifest | None]:
        """Keep the files of the newest epoch within the block, whatever is retired meanwhile.

        Waits for an epoch that is open to end. Epochs may be run within the block. It yields the
        newest epoch, whose output is committed; None for an empty checkpoint.
        """
        self._enter()
        try:
            head = self._own()
            if head is not None:
                self._publisher.commit(head)
                self._house.held.hold(head)
        finally:
            self._leave()
        try:
            yield head
        finally:
            freed = frozenset() if head is None else self._house.held.release(head)
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
        wait_s = self._options.epoch_wait_s
        if not self._slot.acquire(timeout=wait_s):
            raise CheckpointError(f"another epoch of this job was still running after {wait_s:g} s")
        self._holder = threading.get_ident()

    def _leave(self) -> None:
        self._epoch = None
        self._holder = None
        self._slot.release()

    def _on_epoch_end(self, epoch: Epoch) -> None:
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
            raise self._ownership.fenced_error(head.term)
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
            self._publisher.commit(head)
        if not self._has_tidied:
            self._has_tidied = True
            self._ownership.log_start(self.job.name, head)
            self._house.abandon(head)
            if self._merges is not None and head is not None:
                # They run during the epoch's work: a driver of only one epoch can adopt them, too.
                self._merges.plan(head, self.parallelism)
            self._house.search()

    # ---- ending ----------------------------------------------------------------------------

    def _end_step(self, epoch: Epoch, sinks: Sequence[Any]) -> Manifest:
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
            first = self.interval.last is None
            self._chronicle.step(epoch, began_s - self._opened_s, first=first)
            self._on_published(manifest, epoch.head, began_s, epoch)
        finally:
            epoch.abort()  # ends the epoch; a published manifest stays
        return manifest

    def _publish_held(self, last: Manifest, write: WriteHeld) -> Manifest:
        """Publish the epoch of the held steps as it is."""
        began_s, head = time.monotonic(), self._history.head
        files = write(last)
        operators = tuple(
            replace(
                operator,
                ranges=tuple(
                    _close_range(state, files.get((operator.uid, state.index)))
                    for state in operator.ranges
                ),
            )
            for operator in last.operators
        )
        sinks = self._join_sinks(last.epoch, last.evaluation_id, self.interval.waiting)
        manifest = self._publisher.publish(
            replace(last, sinks=tuple(sinks)), head, self._adopt_merges(operators)
        )
        self._on_published(manifest, head, began_s)
        return manifest

    def _write(self, epoch: Epoch, sinks: Sequence[Any]) -> Manifest:
        if epoch.failures():
            raise CheckpointError(
                f"epoch {epoch.number}: its state was not written: {epoch.failures()[0]}"
            )
        if self._merges is not None:
            self._merges.expiring.update(epoch.expiring)
        operators = self._adopt_merges(self._publisher.collect(epoch))
        steps = [*self.interval.waiting, sinks]
        transactions = self._join_sinks(epoch.number, epoch.evaluation_id, steps)
        manifest = self._publisher.manifest(epoch, operators, transactions)
        return self._publisher.publish(manifest, epoch.head, operators)

    def _adopt_merges(self, operators: tuple[OperatorState, ...]) -> tuple[OperatorState, ...]:
        if self._merges is None:
            return operators
        # A driver's first epoch may be its only one. It may take up to twice as long, to wait for
        # the merge, since the next driver would have to start the merge again.
        first = not self._has_published
        patience_s = time.monotonic() - self._opened_s if first else 0.0
        self._merges.wait(operators, patience_s, first=first)
        return self._merges.adopt(operators)

    def _may_be_held(self, epoch: int, error: Exception) -> bool:
        """Whether a step is held although it should have closed its epoch."""
        # A manifest whose last sync failed may exist, and then counts.
        if not is_tolerable(error) or self._history.find_published(epoch) is not None:
            return False
        self.interval.note_failure(epoch, error)
        self._notifier.notify_aborted(epoch)
        return True

    def _hold(self, epoch: Epoch, sinks: Sequence[Any]) -> Manifest:
        manifest = self._publisher.manifest(epoch, epoch.collect(closed=False), ())
        first = self.interval.last is None
        self._chronicle.step(epoch, time.monotonic() - self._opened_s, first=first)
        self.interval.hold(manifest, sinks)
        self._notifier.note_delivery(epoch.notice)
        epoch.abort()  # ends the step, which is held
        return manifest

    def _on_published(
        self,
        manifest: Manifest,
        before: Manifest | None,
        began_s: float,
        epoch: Epoch | None = None,
    ) -> None:
        published_s = time.monotonic()
        self._has_published = True
        self.interval.published()
        if epoch is not None:
            self._notifier.note_delivery(epoch.notice)
            self._publisher.note_operators(epoch)
        try:
            self._publisher.commit(manifest)
        finally:
            commit_s = time.monotonic() - published_s
            self._chronicle.published(manifest, before, published_s - began_s, commit_s)
        self._notifier.complete(manifest.epoch)
        self._house.published(manifest)


def _close_range(state: RangeState, file: FileRef | None) -> RangeState:
    if not state.held or file is None:
        return state
    return replace(state, deltas=(*state.deltas, file), held=())


def _evaluate(
    epoch: Epoch,
    evaluate: Callable[[Epoch], Sequence[Any] | None],
    max_evaluations: int,
    retryable: Callable[[Exception], bool] | None = None,
) -> Sequence[Any]:
    """Evaluate an epoch until its reports are complete, each time anew from its base.

    Evaluations that fixed their cause (`is_progress`) do not count towards the most. What came
    twice in succession, or last, is raised. The epoch is neither completed nor aborted here.
    """
    previous: str | None = None
    discarded: str | None = None
    failed = 0
    put_right: set[str] = set()
    while True:
        try:
            sinks = evaluate(epoch) or ()
            epoch.collect()
            return sinks
        except Exception as error:
            repeated = isinstance(error, RepeatableError)
            if not repeated and not (retryable or _is_retryable)(error):
                if discarded is not None:
                    add_note(error, f"the epoch's evaluation before was discarded: {discarded}")
                raise
            signature = _signature(error)
            again = signature == previous
            if isinstance(error, RepeatableError) and error.is_progress and not again:
                failed += signature in put_right
                put_right.add(signature)
            else:
                failed += 1
            if again or failed >= max_evaluations:
                if not isinstance(error, RepeatableError):
                    raise
                raise EvaluationError(
                    f"{error}. This happened in "
                    f"{len(epoch.discarded_evaluations) + 1} evaluations: "
                    f"{error.hint}"
                ) from error
            previous, discarded = signature, _brief(error)
            _LOG.warning(
                "epoch %d: evaluation %s is discarded and runs again: %s",
                epoch.number,
                epoch.evaluation_id,
                discarded,
            )
        epoch.restart()


def _is_retryable(error: Exception) -> bool:
    return not isinstance(error, PystateError)


def _brief(error: Exception) -> str:
    """The first line of an error and its continuation, without Java's trace, which comes after."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Py4J names the Java exception in its second line, which begins with a colon.
    first = " ".join(lines[: 2 if len(lines) > 1 and lines[1].startswith(":") else 1])
    return f"{type(error).__qualname__}: {first}"


def _signature(error: Exception) -> str:
    """The part of an error that is the same if it happens again: no task numbers, ids or traces."""
    if isinstance(error, RepeatableError):
        return error.kind
    first_line = str(error).partition("\n")[0]
    return f"{type(error).__qualname__}: {_NUMBER.sub('#', first_line)}"
