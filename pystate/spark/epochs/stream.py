"""A job's run over a stream: its batches as epochs, and the drain after the last one.

Thread safety: Spark calls a batch function from one thread at a time; the drain comes after the
last call. Any thread may stop the run between two batches. A thread of the run takes checkpoints by
time.

Invariants
----------
1. A batch's DataFrame is kept until a checkpoint holds the batch. If state since the last one
   is lost, the batches since then are computed again from these, in order, and each of them is a
   checkpoint, so that the same loss cannot come again.
2. A query that ends, or is stopped, takes a checkpoint of what it holds. If that fails, the next
   start sets the positions back.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pystate.checkpoint.held_deltas import HELD
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.source_position import query_of
from pystate.epochs.coordinator import RunOutcome
from pystate.epochs.epoch import NO_END
from pystate.epochs.ownership import await_streams, forget_stream, note_stream
from pystate.errors import (
    CheckpointError,
    FencedError,
    FunctionError,
    NoEventTimeError,
    PystateError,
    StateLostError,
)
from pystate.redaction import logger
from pystate.spark.base.failures import QueryStopped
from pystate.spark.base.offsets import is_complete, read_offsets, spark_folder
from pystate.spark.epochs.epochs import EpochRunner
from pystate.spark.epochs.heartbeat import drop_other_sources
from pystate.spark.epochs.progress import EpochProgress
from pystate.spark.epochs.queries import EndingQuery, JobQuery, QueryOutcome
from pystate.spark.epochs.rewind import (
    MARK,
    allow_rewinds,
    check_rewindable,
    retain_positions,
    rewind,
)
from pystate.spark.epochs.runs import drain_key, no_rows
from pystate.spark.epochs.spark_log import QuietFailures
from pystate.spark.epochs.spark_progress import ObservedMetric
from pystate.spark.operators.pipeline import Pipeline
from pystate.spark.sinks.outputs import Outputs
from pystate.spark.sinks.pending_output import WAITING, check_at_least_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


_LOG = logger("pystate.spark.epochs.stream")
_LOOK_S = 0.1
#: How often the thread looks whether a checkpoint is due by time.
_CHECKPOINT_LOOK_S = 0.5
#: What Spark says of two queries that write the same positions.
_CONCURRENT = ("CONCURRENT_STREAM_LOG_UPDATE", "Concurrent update to the")
#: What sources such as Kafka's call the number of rows that they have waiting.
_BEHIND = "maxOffsetsBehindLatest"

Result = TypeVar("Result")


class _OpenBatches:
    """The batches of one query that no checkpoint holds yet."""

    def __init__(
        self, epochs: EpochRunner, session: SparkSession, run: Callable[..., RunOutcome]
    ) -> None:
        self._epochs = epochs
        self._session = session
        self._run = run
        self._since: list[tuple[DataFrame, dict[str, Any]]] = []
        # A callback of an epoch may stop its own query.
        self._lock = threading.RLock()
        self._ended = threading.Event()

    def compute(self, frame: DataFrame, **position: Any) -> None:
        """Run the step of a batch."""
        with self._lock:
            self._forget()
            try:
                outcome = self._run(frame, frame.sparkSession, **position)
            except StateLostError as error:
                self._compute_again(error)
                outcome = self._run(frame, frame.sparkSession, **position, closes=True)
            if outcome.held:
                self._since.append((frame, position))

    def flush(self) -> None:
        """Take a checkpoint of the held steps."""
        with self._lock:
            try:
                self._epochs.flush(self._session)
            except StateLostError as error:
                self._compute_again(error)

    def _compute_again(self, error: StateLostError) -> None:
        # A checkpoint by time may have come between.
        self._forget()
        _LOG.warning("%s; the %d batches since then are computed again", error, len(self._since))
        self._epochs.drop_steps()
        for frame, position in self._since:
            self._run(frame, frame.sparkSession, **position, closes=True)
        self._since = []

    def _forget(self) -> None:
        coordinator = self._epochs.coordinator
        head = None if coordinator is None else coordinator.head
        if head is None or not self._since:
            return
        progress = head.progress(self._since[0][1]["query_id"])
        if progress is not None:
            last = progress.batch_id
            self._since = [each for each in self._since if each[1]["batch_id"] > last]

    def watch(self, active: Callable[[], bool]) -> None:
        """Take checkpoints that are due while the input is idle, as long as the query runs."""
        threading.Thread(
            target=self._watch, args=(active,), name="pystate-checkpoints", daemon=True
        ).start()

    def end(self) -> None:
        """End the thread of `watch`."""
        self._ended.set()

    def _watch(self, active: Callable[[], bool]) -> None:
        while not self._ended.wait(_CHECKPOINT_LOOK_S) and active():
            coordinator = self._epochs.coordinator
            left_s = None if coordinator is None else coordinator.interval.wait_s()
            if left_s is None or left_s > 0:
                continue
            try:
                self.flush()
            except Exception as error:
                _LOG.warning("the checkpoint between two batches failed: %s", error)


class StreamRun:
    """The run that `Job.start` starts."""

    def __init__(
        self,
        epochs: EpochRunner,
        stream: DataFrame,
        pipeline: Pipeline,
        outputs: Outputs,
        on_epoch: Callable[[EpochProgress], None] | None,
        restore: Literal["latest"] | None,
        outcome: QueryOutcome,
    ) -> None:
        self._storage = epochs.storage
        self._stream = stream
        self._session = stream.sparkSession
        self._outputs = outputs
        self._restore = restore
        self._outcome = outcome
        self._on_epoch = on_epoch
        self._observation: ObservedMetric | None = None
        self._drains = self._has_no_end = False
        self._quiet: QuietFailures | None = None
        self._between = threading.Lock()
        epochs.backlog = self._backlog
        self._epochs = epochs
        self._options = epochs.options.checkpoints
        self._run = partial(
            epochs.run, pipeline=pipeline, outputs=outputs, on_epoch=self._note, line=outcome.line
        )
        self._batches = _OpenBatches(epochs, self._session, self._run)

    def start(
        self,
        name: str | None,
        trigger: Mapping[str, Any] | None,
        *,
        drain: bool,
        observe: str | None,
        heartbeat: bool = False,
    ) -> JobQuery:
        """Start the query, whose stream may have a heartbeat."""
        self._drains = drain
        stream = self._stream
        if self._options.mode == "at_least_once":
            check_at_least_once(self._outputs)
        if self._options.holds:
            check_rewindable(self._stream, self._options)
        context, storage = self._session.sparkContext, self._storage
        folder = spark_folder(storage, context)
        coordinator = self._epochs.prepare(self._session)
        # From here on the stream of another driver, if there is one, notices that and stops.
        coordinator.take_over()
        await_streams(storage, coordinator.term)
        mark = note_stream(storage, coordinator.term)
        self._quiet = quiet = QuietFailures(context)

        def make(query: StreamingQuery) -> JobQuery:
            if drain:
                tag = f"pystate-drain-{uuid.uuid4().hex}"
                return EndingQuery(query, self._outcome, context, self._drain_ended, tag)
            if self._options.holds:
                return EndingQuery(query, self._outcome, context, lambda query: self._finish())
            return JobQuery(query, self._outcome, context)

        self._outcome.at_stop = self._stopped
        self._outcome.explain = self._jobs_error
        try:
            # A driver that follows from now on finds the mark, and waits. One that has followed
            # before may run its stream already, and what is changed here would be its own.
            coordinator.check_owner()
            drop_other_sources(storage, heartbeat)
            self._warn_known(coordinator.head)
            self._rewind()
            if observe is not None:
                self._observation = ObservedMetric(observe, self._session)
                stream = self._observation.of(stream)
            writer = stream.writeStream.foreachBatch(self._on_batch)
            writer = writer.option("checkpointLocation", folder)
            if name is not None:
                writer = writer.queryName(name)
            if trigger is not None:
                writer = writer.trigger(**trigger)
            query = self._start_query(writer, make)
        except BaseException:
            forget_stream(storage, mark)
            quiet.end("")
            raise
        watch = threading.Thread(
            target=self._watch, args=(query, mark, quiet), name="pystate-stream", daemon=True
        )
        watch.start()
        return query

    def _start_query(
        self, writer: DataStreamWriter, make: Callable[[StreamingQuery], JobQuery]
    ) -> JobQuery:
        if not self._options.holds:
            return make(writer.start())
        coordinator = self._epochs.prepare(self._session)
        with retain_positions(self._session, self._options) as coordinator.interval.most_steps:
            query = make(writer.start())
        if self._options.every_ms is not None:
            self._batches.watch(lambda: bool(query._jsq.isActive()))
        return query

    def _warn_known(self, head: Manifest | None) -> None:
        """Say that restore="latest" has no effect on a query that the checkpoint knows."""
        known = None if head is None else query_of(self._storage, head)
        if self._restore is not None and known is not None:
            _LOG.warning(
                'restore="latest" has no effect: the query goes on after its batch %d, which epoch '
                "%d of checkpoint %s holds",
                known.batch_id,
                known.epoch,
                self._storage.uri,
            )

    def _watch(self, query: JobQuery, mark: str, quiet: QuietFailures) -> None:
        """Stop the query once another driver owns the checkpoint; wait for its end."""
        every_ms = int(self._storage.touch_every_s * 1000)
        try:
            while not query._jsq.awaitTermination(every_ms):
                coordinator = self._epochs.coordinator
                if coordinator is None or not coordinator.term:
                    continue  # the job was closed, and opens its checkpoint with the next batch
                try:
                    coordinator.check_owner()
                except FencedError as error:
                    _LOG.warning("the query stops: %s", error)
                    query.fence(error)
                    return
                except (PystateError, OSError) as error:
                    _LOG.debug("whether this driver is fenced is seen later: %s", error)
        except Exception as error:
            _LOG.debug("the query has failed, or Spark has ended: %s", error)
        finally:
            forget_stream(self._storage, mark)
            quiet.end(query.runId)

    def _jobs_error(self, error: BaseException) -> BaseException:
        """The job's error for one that Spark raised outside of a batch."""
        coordinator = self._epochs.coordinator
        explained: BaseException = error
        try:
            if coordinator is not None and coordinator.term:
                coordinator.check_owner()
            if any(sign in str(error) for sign in _CONCURRENT):
                explained = CheckpointError(
                    f"checkpoint {self._storage.uri}: the query of an earlier driver, which does "
                    "not own the checkpoint any more, was at the same batch, and Spark has ended "
                    "this query for it. The other one publishes nothing: start the job again"
                )
        except FencedError as fenced:
            explained = fenced
        except (PystateError, OSError):
            return error
        if explained is not error:
            explained.__cause__ = error
        return explained

    def _rewind(self) -> None:
        """Set Spark's positions back to the last checkpoint, if batches after it are lost."""
        holds, storage = self._options.holds, self._storage
        if not holds and not storage.exists(MARK):
            return
        self._epochs.drop_steps()
        batches = rewind(storage, self._epochs.prepare(self._session).take_over())
        for lost in (HELD, WAITING):
            storage.remove_folder(lost)
        if batches:
            _LOG.warning("%d batches since the last checkpoint are computed again", batches)
        allow_rewinds(storage, allowed=holds)

    def _finish(self) -> None:
        """Take a checkpoint of what a query that has ended still holds."""
        self._batches.end()
        try:
            self._batches.flush()
        except Exception as error:
            _LOG.warning(
                "the query's last batches are not in a checkpoint, and the next start computes "
                "them again: %s",
                error,
            )

    def _stopped(self) -> None:
        self._finish()
        if self._options.on_cancel == "delete":
            self._epochs.delete()

    def stop_after(self, act: Callable[[], Result], *, drain: bool) -> Result:
        """Stop the query after a batch, once `act` has returned.

        Between the batch and the stop nothing is computed but, if wanted, an epoch that drains. If
        `act` raises an exception, the query goes on.
        """
        with self._between:
            failure = self._outcome.failure
            if failure is not None:
                raise CheckpointError(
                    f"the query has failed ({type(failure).__name__}: {failure!s:.200}), so that "
                    "it cannot be stopped in order: savepoint takes a savepoint of its newest epoch"
                ) from failure
            # What `act` sees is a checkpoint of all batches.
            self._batches.flush()
            if drain:
                self._drain_now()
            result = act()
            query = self._outcome.query
            if query is not None:
                query.stop()
            return result

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait while the run is held between two batches; nothing runs once it was stopped."""
        while not self._between.acquire(timeout=_LOOK_S):
            query = self._outcome.query
            # Spark takes a failure for a stop only once it regards the query as stopped.
            if query is not None and not query._jsq.isActive():
                raise QueryStopped
        try:
            yield
        finally:
            self._between.release()

    def _on_batch(self, frame: DataFrame, batch_id: int) -> None:
        try:
            with self._turn():
                self._run_batch(frame, batch_id)
        except BaseException as error:
            if not self._outcome.note(error):
                raise QueryStopped from None
            failure = self._outcome.failure or error
            if self._quiet is not None and self._quiet.is_on:
                _LOG.error(
                    "the query has failed, and awaitTermination raises why: %s",
                    str(failure).partition("\n")[0] or type(failure).__name__,
                )
            if isinstance(failure, FunctionError):
                raise failure from failure.__cause__
            raise

    def _run_batch(self, frame: DataFrame, batch_id: int) -> None:
        context = self._session.sparkContext
        offsets = read_offsets(self._storage, batch_id)
        self._batches.compute(
            frame,
            query_id=context.getLocalProperty("sql.streaming.queryId"),
            batch_id=batch_id,
            offsets_hash=offsets.offsets_hash,
            processing_time_ms=offsets.processing_time_ms,
            restore=self._restore,
        )
        if self._has_no_end:
            # Fail now rather than after the last batch. This batch is published.
            raise NoEventTimeError(NO_END)

    def _note(self, progress: EpochProgress) -> None:
        timed = any(operator.late_rows is not None for operator in progress.operators)
        self._has_no_end = self._drains and not timed
        if progress.batch_id is not None:
            self._outcome.note_epoch(progress.batch_id, progress)
            if self._observation is not None:
                context = self._session.sparkContext
                query_id = context.getLocalProperty("sql.streaming.queryId")
                self._observation.note(str(query_id), progress)
        if self._on_epoch is not None:
            self._on_epoch(progress)

    def _backlog(self) -> int | None:
        """How far the sources were behind at the end of the last batch, if they say so."""
        query = self._outcome.query
        progress = None if query is None else query.lastProgress
        if progress is None:
            return None
        metrics = (source.metrics.get(_BEHIND) for source in progress.sources)
        behind = [int(float(value)) for value in metrics if value is not None]
        return sum(behind) if behind else None

    def _drain_ended(self, query: JobQuery) -> None:
        """Drain after the last batch of a query, which Spark ends without saying it was the last.

        The run key of the epoch names the epoch before it: if this driver dies first, the next one
        runs a query without new input, and then this epoch.
        """
        if not query._jsq.recentProgress() or not is_complete(self._storage):
            _LOG.warning("the query was stopped before its input ended, and is not drained")
            return
        quiet = QuietFailures(self._session.sparkContext)
        try:
            with self._between:
                self._drain_now()
        finally:
            quiet.end("")

    def _drain_now(self) -> None:
        self._batches.end()
        self._batches.flush()
        run_key = drain_key(self._storage)
        if run_key is not None:
            frame = no_rows(self._stream)
            self._run(frame, self._session, run_key=run_key, drain=True)
