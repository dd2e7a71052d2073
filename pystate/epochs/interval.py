"""Several batches per checkpoint: which batch ends with one, and what waits for it.

With an interval, an epoch has several *steps*, one per micro-batch of a streaming query. The last
step *closes* the epoch: its manifest is published. The other steps are *held*: they exist only in
this driver's memory, in the tables, and in held deltas beside the tables.

What may be lost, and when
--------------------------
1. A held step writes no file of the checkpoint. Its tasks seal their tables and write the changes
   as held deltas: in the memory of their host, or, if the job has several executors, unpublished in
   the checkpoint's storage, since Spark may run a range's next task on any of them. A begin mark is
   made and removed by every evaluation, and never synced.
2. The base of a step is the one before it, by its lineage ids. So a failed or repeated attempt at a
   step is undone to the sealed step before it, and a table that is behind catches up, as always.
   The task of a range that closes the epoch merges its held deltas and its own changes into one
   delta file, with the id of the last and the parent of the first. Whoever reads the checkpoint
   cannot tell how many steps an epoch had.
3. All steps of an epoch have the epoch's number: that of the newest manifest plus one. So the names
   of manifests stay without gaps, and of two drivers on one base exactly one publishes the next
   name. A driver that was overtaken between checkpoints has published nothing, and it finds out at
   its next step, or at the publish.
4. Held steps are lost if the driver, or a table with its held deltas, is lost. If the driver lives,
   it computes the batches since the last manifest again, from their DataFrames, and each of these
   is a checkpoint. If it does not, the next driver takes the ownership, sets Spark's positions back
   to the batch of the newest manifest, and Spark computes the batches again, with other borders if
   it likes: nobody has seen the first ones.
5. Setting back removes Spark's commits, then its offsets, the newest first. Killed at any point it
   is done again by the next start, since a query starts only after it. It is done only if
   ``spark-rewinds`` says that steps may have been held; without that mark a query ahead of the
   manifests is an error, as ever.
6. Exactly once: the rows of all steps are staged, and are committed by the manifest that closes the
   epoch, as one transaction per output. Staged rows of lost steps are removed by that commit, or by
   this driver when it drops the steps.
7. Replayed batches get other processing times than the lost ones had. As nothing of those was
   published, nobody can tell. Event time comes from the rows.
8. A query's first batch, a run, and a batch that replaces lost ones are always checkpoints. So are
   batches that come when Spark would soon forget the position of the last checkpoint, or when held
   deltas take more than `MOST_HELD_BYTES`.

Thread safety: `CheckpointOptions` is immutable; an `Interval` belongs to its coordinator's lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from pystate.base.arguments import choice, flag, integer
from pystate.checkpoint.manifest import Manifest
from pystate.epochs.position import Position
from pystate.errors import AlreadyPublishedError, CheckpointError, FencedError, NoSpaceError
from pystate.redaction import logger
from pystate.types.durations import Duration, milliseconds

_LOG = logger("pystate.epochs.interval")
#: Held deltas of all ranges together; beyond it the next batch is a checkpoint.
MOST_HELD_BYTES = 256 << 20


Mode = Literal["exactly_once", "at_least_once"]
OnCancel = Literal["keep", "delete"]


@dataclass(frozen=True)
class CheckpointOptions:
    """When a job takes checkpoints, and what it does if one fails.

    Parameters
    ----------
    interval : int, str or timedelta
        How often a streaming query takes a checkpoint: after so many micro-batches, or once so much
        time has passed (``"10 seconds"``, a timedelta). With 1 each batch is a checkpoint. Between
        two checkpoints nothing is written to the checkpoint, and a driver or an executor that is
        lost costs the batches since the last one, which are computed again. This takes sources that
        can be read again from an earlier position. A `run_epoch` is always a checkpoint.
    mode : {"exactly_once", "at_least_once"}
        With ``"exactly_once"`` output is published with its checkpoint. With ``"at_least_once"`` it
        is published at the end of each batch, and published again if the batch is computed again.
        State is exactly once in both.
    minimum_pause : str, timedelta or int
        The least time between the end of a checkpoint and the next one, in milliseconds if it is a
        number. A checkpoint that is due earlier waits for the next batch after the pause.
    timeout : str, timedelta or int
        How long it may take to write the state of a range. What takes longer has failed.
    tolerable_failures : int
        How many checkpoints in a row may fail, because their state could not be written: the disk
        is full, or too slow. The batches of such a checkpoint become a part of the next one, which
        is due after the next batch. One more failure fails the query.
    on_cancel : {"keep", "delete"}
        What ``query.stop()`` does with the checkpoint: with ``"delete"`` it is removed, with
        state, positions, and output that is still in it. A query that fails, or ends, keeps it.
    rewindable : bool
        Your word that all sources of the stream can be read again from an earlier position, for
        sources that pystate does not know. See `interval`.

    Examples
    --------
    >>> CheckpointOptions(interval="10 seconds", tolerable_failures=2).interval
    '10 seconds'
    """

    interval: int | str | timedelta = 1
    mode: Mode = "exactly_once"
    minimum_pause: Duration = 0
    timeout: Duration = "10 minutes"
    tolerable_failures: int = 0
    on_cancel: OnCancel = "keep"
    rewindable: bool = False
    every_batches: int | None = field(init=False, repr=False, compare=False)
    every_ms: int | None = field(init=False, repr=False, compare=False)
    pause_ms: int = field(init=False, repr=False, compare=False)
    timeout_ms: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        owner = "CheckpointOptions"
        batches = every_ms = None
        if isinstance(self.interval, (str, timedelta)):
            every_ms = milliseconds(self.interval, f"{owner}: interval", least=1)
        else:
            batches = integer(self.interval, f"{owner}: interval", least=1)
        choice(self.mode, f"{owner}: mode", ("exactly_once", "at_least_once"))
        choice(self.on_cancel, f"{owner}: on_cancel", ("keep", "delete"))
        integer(self.tolerable_failures, f"{owner}: tolerable_failures", least=0)
        flag(self.rewindable, f"{owner}: rewindable")
        for name, value in (
            ("every_batches", batches),
            ("every_ms", every_ms),
            ("pause_ms", milliseconds(self.minimum_pause, f"{owner}: minimum_pause")),
            ("timeout_ms", milliseconds(self.timeout, f"{owner}: timeout", least=1)),
        ):
            object.__setattr__(self, name, value)

    @property
    def holds(self) -> bool:
        """Whether a batch may end without a checkpoint."""
        return self.every_batches != 1 or self.pause_ms > 0 or self.tolerable_failures > 0


@dataclass(frozen=True)
class Step:
    """One step of an epoch."""

    serial: int = 0
    """Grows from step to step of a driver."""
    closes: bool = True
    """Whether the epoch ends with it."""
    holds: bool = False
    """Whether its changes can be held, for another step or because a write has failed."""


class Interval:
    """The steps of a driver's open epoch."""

    def __init__(
        self, options: CheckpointOptions, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.options = options
        #: The most steps that Spark's retention allows.
        self.most_steps: int | None = None
        #: The last held step, as a manifest that nobody has published.
        self.last: Manifest | None = None
        #: The transactions of each held step.
        self.waiting: list[Sequence[Any]] = []
        self.failures = 0
        self._now_s = now_s
        self._steps = 0
        self._serial = 0
        self._since_s = now_s()
        self._due = False
        self._parallelism = 0

    @property
    def held_bytes(self) -> int:
        """Size of all held deltas."""
        operators = () if self.last is None else self.last.operators
        return sum(ref.file_bytes for op in operators for state in op.ranges for ref in state.held)

    def base(self, head: Manifest | None) -> Manifest | None:
        """Return what the next step is built on; an error if another driver has built on it."""
        if self.last is None:
            return head
        newest = 0 if head is None else head.epoch
        if self.last.predecessor != newest:
            raise FencedError(
                f"epoch {newest} was published by another driver while this one held steps of "
                f"epoch {self.last.epoch}, of which it has published nothing: start the job again"
            )
        return self.last

    def step(self, head: Manifest | None, position: Position, *, closes: bool) -> Step:
        """Decide whether the step of a position closes the epoch."""
        self._serial += 1
        holds = self.options.holds and position.query_id is not None
        known = head is not None and head.progress(str(position.query_id)) is not None
        if not closes and holds and known and not self.is_due():
            return Step(self._serial, closes=False, holds=True)
        return Step(self._serial, holds=holds)

    def is_due(self) -> bool:
        """Whether the next step closes the epoch."""
        options = self.options
        if self._due or self.held_bytes > MOST_HELD_BYTES:
            return True
        if self.most_steps is not None and self._steps + 1 >= self.most_steps:
            return True
        past_ms = (self._now_s() - self._since_s) * 1000
        if past_ms < options.pause_ms:
            return False
        if options.every_ms is not None:
            return past_ms >= options.every_ms
        return self._steps + 1 >= (options.every_batches or 1)

    def end_soon(self) -> None:
        """Make the next step close the epoch, if steps are held."""
        self._due = self._due or self.last is not None

    def parallelism(self, wanted: int) -> int:
        """Return the parallelism of the next step: that of the epoch's first step."""
        if self.last is None:
            self._parallelism = wanted
        return self._parallelism

    def hold(self, manifest: Manifest, sinks: Sequence[Any]) -> None:
        """Keep a step until its epoch is closed."""
        self.last = manifest
        self.waiting.append(sinks)
        self._steps += 1

    def note_failure(self, epoch: int, error: Exception) -> None:
        """Note that the state of an epoch could not be written; raises `error` once too often."""
        self.failures += 1
        most = self.options.tolerable_failures
        over = self.most_steps is not None and self._steps + 1 >= self.most_steps
        if self.failures > most or over:
            raise error
        self._due = True
        _LOG.warning(
            "the checkpoint of epoch %d has failed (%d of %d tolerable failures in a row); the "
            "next batch tries again: %s",
            epoch,
            self.failures,
            most,
            error,
        )

    def published(self) -> None:
        """Begin the next epoch."""
        self.failures = 0
        self.drop()
        self._since_s = self._now_s()
        self._due = False

    def drop(self) -> list[Sequence[Any]]:
        """Forget the held steps; returns their transactions."""
        self.last, self._steps = None, 0
        dropped, self.waiting = self.waiting, []
        return dropped

    def wait_s(self) -> float | None:
        """How long until held steps are due by time; None if there are none, or no such time."""
        every_ms = self.options.every_ms
        if self.last is None or every_ms is None:
            return None
        wanted_ms = max(every_ms, self.options.pause_ms)
        return max(0.0, wanted_ms / 1000 - (self._now_s() - self._since_s))


def is_tolerable(error: Exception) -> bool:
    """Whether an error only says that something could not be written."""
    if isinstance(error, (FencedError, AlreadyPublishedError)):
        return False
    return isinstance(error, (NoSpaceError, OSError)) or type(error) is CheckpointError
