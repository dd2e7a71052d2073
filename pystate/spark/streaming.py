"""A job's run over a stream: its batches as epochs, and the drain after the last one.

Thread safety: Spark calls a batch function from one thread at a time; the drain comes after the
last call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pystate.coordinator.epoch import NO_END
from pystate.errors import NoEventTimeError
from pystate.spark.drain_keys import drain_key
from pystate.spark.draining import DrainingQuery, no_rows
from pystate.spark.epochs import EpochRunner
from pystate.spark.failures import QueryStopped
from pystate.spark.observed import ObservedMetric
from pystate.spark.offsets import read_offsets, spark_folder
from pystate.spark.pipeline import Pipeline
from pystate.spark.progress import EpochProgress
from pystate.spark.queries import JobQuery, QueryOutcome
from pystate.spark.sinks.outputs import Outputs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


__all__ = ["StreamRun"]


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
        self._restore = restore
        self._outcome = outcome
        self._on_epoch = on_epoch
        self._observation: ObservedMetric | None = None
        self._drains = self._has_no_end = False
        self._run = partial(
            epochs.run,
            pipeline=pipeline,
            outputs=outputs,
            on_epoch=self._note,
            line=outcome.line,
        )

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
        if observe is not None:
            self._observation = ObservedMetric(observe, self._session)
            stream = self._observation.of(stream)
        context, storage = self._session.sparkContext, self._storage

        def make(query: StreamingQuery) -> JobQuery:
            if drain:
                return DrainingQuery(query, self._outcome, context, storage, self._drain)
            return JobQuery(query, self._outcome, context)

        return _start_query(stream, self._on_batch, spark_folder(storage), name, trigger, make)

    def _on_batch(self, frame: DataFrame, batch_id: int) -> None:
        context = self._session.sparkContext
        try:
            offsets = read_offsets(self._storage, batch_id)
            self._run(
                frame,
                frame.sparkSession,
                query_id=context.getLocalProperty("sql.streaming.queryId"),
                batch_id=batch_id,
                offsets_hash=offsets.offsets_hash,
                processing_time_ms=offsets.processing_time_ms,
                restore=self._restore,
            )
            if self._has_no_end:
                # Fail now rather than after the last batch. This batch is published.
                raise NoEventTimeError(NO_END)
        except BaseException as error:
            if self._outcome.note(error):
                raise
            raise QueryStopped from None

    def _note(self, progress: EpochProgress) -> None:
        timed = any(operator.late_rows is not None for operator in progress.operators)
        self._has_no_end = self._drains and not timed and progress.watermark_ms is None
        if progress.batch_id is not None:
            self._outcome.note_epoch(progress.batch_id, progress)
            if self._observation is not None:
                context = self._session.sparkContext
                query_id = context.getLocalProperty("sql.streaming.queryId")
                self._observation.note(str(query_id), progress)
        if self._on_epoch is not None:
            self._on_epoch(progress)

    def _drain(self) -> None:
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
