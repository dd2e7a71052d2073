"""A job's run over a stream: its batches as epochs, and the drain after the last one.

Thread safety: Spark calls a batch function from one thread at a time; the drain comes after the
last call. Any thread may stop the run between two batches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pystate.checkpoint.held import HELD
from pystate.coordinator.epoch import NO_END
from pystate.errors import CheckpointError, NoEventTimeError
from pystate.redaction import logger
from pystate.spark.base.drain_keys import drain_key
from pystate.spark.base.failures import QueryStopped
from pystate.spark.base.offsets import read_offsets, spark_folder
from pystate.spark.epochs.draining import DrainingQuery, no_rows
from pystate.spark.epochs.epochs import EpochRunner
from pystate.spark.epochs.held_batches import HeldBatches, HoldingQuery
from pystate.spark.epochs.observed import ObservedMetric
from pystate.spark.epochs.progress import EpochProgress
from pystate.spark.epochs.queries import JobQuery, QueryOutcome
from pystate.spark.epochs.rewinding import MARK, allow_rewinds, check_rewindable, retaining, rewind
from pystate.spark.operators.pipeline import Pipeline
from pystate.spark.sinks.outputs import Outputs
from pystate.spark.sinks.waiting import WAITING, check_at_least_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


__all__ = ["StreamRun"]

_LOG = logger("pystate.spark.epochs.streaming")
_LOOK_S = 0.1
#: What sources such as Kafka's call the number of rows that they have waiting.
_BEHIND = "maxOffsetsBehindLatest"

Result = TypeVar("Result")


class StreamRun:
    """The run that `Job.start` starts.

    Parameters
    ----------
    epochs : EpochRunner
        Runs the epochs.
    stream : DataFrame
        The streaming DataFrame.
    pipeline, on_epoch, restore
        As in `Job.start`.
    outputs : Outputs
        Where the rows go.
    outcome : QueryOutcome
        The outcome of the query.
    """

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
        self._between = threading.Lock()
        epochs.backlog = self._backlog
        self._epochs = epochs
        self._options = epochs.options.checkpoints
        self._run = partial(
            epochs.run,
            pipeline=pipeline,
            outputs=outputs,
            on_epoch=self._note,
            line=outcome.line,
        )
        self._batches = HeldBatches(epochs, self._session, self._run)

    def start(
        self,
        name: str | None,
        trigger: Mapping[str, Any] | None,
        *,
        drain: bool,
        observe: str | None,
    ) -> JobQuery:
        """Start the query."""
        self._drains = drain
        stream = self._stream
        if self._options.mode == "at_least_once":
            check_at_least_once(self._outputs)
        self._rewind()
        if observe is not None:
            self._observation = ObservedMetric(observe, self._session)
            stream = self._observation.of(stream)
        context, storage = self._session.sparkContext, self._storage
        folder = spark_folder(storage, context)

        def make(query: StreamingQuery) -> JobQuery:
            if drain:
                return DrainingQuery(query, self._outcome, context, storage, self._drain)
            if self._options.holds:
                return HoldingQuery(query, self._outcome, context, self._finish)
            return JobQuery(query, self._outcome, context)

        self._outcome.at_stop = self._stopped
        start = partial(_start_query, stream, self._on_batch, folder, name, trigger, make)
        if not self._options.holds:
            return start()
        coordinator = self._epochs.prepare(self._session)
        with retaining(self._session, self._options) as coordinator.interval.most_steps:
            query = start()
        if self._options.every_ms is not None:
            self._batches.watch(lambda: bool(query._jsq.isActive()))
        return query

    def _rewind(self) -> None:
        """Set Spark's positions back to the last checkpoint, if batches after it are lost."""
        holds, storage = self._options.holds, self._storage
        if holds:
            check_rewindable(self._stream, self._options)
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

        Raises
        ------
        CheckpointError
            The query has failed.
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
            if self._outcome.note(error):
                raise
            raise QueryStopped from None

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

    def _drain(self) -> None:
        with self._between:
            self._drain_now()

    def _drain_now(self) -> None:
        self._batches.end()
        self._batches.flush()
        run_key = drain_key(self._storage)
        if run_key is not None:
            frame = no_rows(self._session, self._stream.schema)
            self._run(frame, self._session, run_key=run_key, drain=True)


def _start_query(
    stream: DataFrame,
    on_batch: Callable[[DataFrame, int], None],
    folder: str,
    name: str | None,
    trigger: Mapping[str, Any] | None,
    make: Callable[[StreamingQuery], JobQuery],
) -> JobQuery:
    """Start a query over `foreachBatch` that keeps its positions in `folder`."""
    writer = stream.writeStream.foreachBatch(on_batch).option("checkpointLocation", folder)
    if name is not None:
        writer = writer.queryName(name)
    if trigger is not None:
        writer = writer.trigger(**trigger)
    return make(writer.start())
