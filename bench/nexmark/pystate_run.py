"""Runs a query as a pystate job over generated files, and compares the result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.nexmark.pystate_jobs import JOBS
from bench.nexmark.reference import canonical, expected, stored
from bench.nexmark.spark_run import (
    WARM_UP,
    Measured,
    keep_progress,
    last_rows,
    processed,
    rows_read,
)
from bench.nexmark.spark_sql import streams
from bench.processes import ProcessorTime
from bench.spark_jobs import MAX_PARALLELISM, PARALLELISM
from pystate.spark import EpochProgress, Job, ParquetSink

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from bench.nexmark.reference import Parameters
    from bench.nexmark.spark_run import Input


def run(
    spark: SparkSession, name: str, given: Input, folder: Path, parameters: Parameters
) -> Measured:
    """Run one query over all events; the arguments are those of `spark_run.run`.

    The epoch in which the end of the input makes the last rows due is timed, too, as are the
    batches without input at the end of Spark's own streams.
    """
    keep_progress(spark, given)
    query = JOBS[name]
    made = streams(spark, given.folder / "open", given.plan, PARALLELISM, watermark=False)
    epochs: list[EpochProgress] = []
    began: list[ProcessorTime] = []

    def note(epoch: EpochProgress) -> None:
        epochs.append(epoch)
        if len(epochs) == WARM_UP:
            began.append(ProcessorTime())

    checkpoint = folder / "checkpoint"
    with Job(
        f"nexmark-{name}",
        checkpoint=str(checkpoint),
        max_parallelism=MAX_PARALLELISM,
        parallelism=PARALLELISM,
    ) as job:
        running = job.start(
            query.stream(made),
            query.pipeline(parameters, given.plan),
            sink=ParquetSink(str(folder / "out")),
            trigger={"availableNow": True},
            drain=query.drain,
            on_epoch=note,
        )
        running.awaitTermination()
        worked = began[0].seconds()
        batches = [batch for batch in running.recentProgress if batch.numInputRows]
    if len(batches) != given.chunks:
        raise AssertionError(f"{len(batches)} batches were run of {given.chunks} chunks")
    found = canonical(name, last_rows(folder / "out", query.key))
    events: dict[str, Any] = dict(stored(given.folder / "open" / "events"))
    if name == "q12":
        events["bid"] = processed(given, checkpoint / "spark")
    taken = [float(batch.durationMs["triggerExecution"]) for batch in batches[WARM_UP:]]
    taken += [epoch.total_ms for epoch in epochs if epoch.batch_id is None]
    return Measured(
        rows_read(name, given),
        sum(taken) / 1e3,
        worked,
        found,
        bool(found.equals(expected(name, events, parameters))),
    )
