"""Runs a query over generated files, as a job of pystate or as a stream of Spark, and checks it."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from bench.nexmark import generate
from bench.nexmark.generate import KINDS, SCHEMAS, Plan
from bench.nexmark.pystate_jobs import JOBS
from bench.nexmark.reference import QUERIES, Parameters, canonical, expected, stored
from bench.nexmark.spark_sql import STREAMS, streams
from bench.spark_jobs import PARALLELISM, ProcessorTime, new_job, started, writing
from pystate.spark import EpochProgress, ParquetSink

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

WARM_UP = 2
"""Batches that are not timed."""
DAY_MS = 86_400_000


@dataclass(frozen=True)
class Input:
    """Generated files.

    ``open/events`` in `folder` has the events, a chunk per batch; ``closed`` also has a last row of
    each kind, a day later, after which the watermark has passed all others.
    """

    folder: Path
    plan: Plan
    chunks: int

    def files(self, kind: str) -> list[Path]:
        """The files of a kind, in the order of their events."""
        return sorted((self.folder / "open" / "events" / kind).iterdir())


@dataclass(frozen=True)
class Measured:
    """A query that has run.

    `rows` are those that it read in the batches that were timed, of the kinds that it needs. The
    times are those of these batches and of what the end of the input makes due, elapsed and of all
    processors. The result is in canonical order.
    """

    rows: int
    seconds: float
    processor_seconds: float
    result: pa.Table
    right: bool

    @property
    def rows_per_core(self) -> float:
        """Rows per second of each core that Spark had."""
        return self.rows / self.seconds / PARALLELISM


def write_input(plan: Plan, folder: Path, size: int) -> Input:
    """Generate the files, as many per batch as Spark has cores."""
    events = folder / "open" / "events"
    chunks = len(generate.write(plan, events, size, parts=PARALLELISM))
    closed = folder / "closed"
    shutil.copytree(events, closed / "events", copy_function=shutil.copy2)
    last_us = (plan.first_ms + plan.events * 1_000 // plan.events_per_second + DAY_MS) * 1_000
    for number, kind in enumerate(KINDS):
        last = {generate.TIME: last_us, pa.string(): "", pa.int64(): -1 - number}
        columns = {field.name: pa.array([last[field.type]], field.type) for field in SCHEMAS[kind]}
        (closed / "last" / kind).mkdir(parents=True)
        pq.write_table(pa.table(columns), closed / "last" / kind / "last.parquet")
    return Input(folder, plan, chunks)


def in_pystate(
    spark: SparkSession, name: str, given: Input, folder: Path, parameters: Parameters
) -> Measured:
    """Run one query over all events as a job, in a folder that does not exist.

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

    with new_job(f"nexmark-{name}", folder) as job:
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
    taken_ms = [float(batch.durationMs["triggerExecution"]) for batch in batches[WARM_UP:]]
    taken_ms += [epoch.total_ms for epoch in epochs if epoch.batch_id is None]
    log = folder / "checkpoint" / "spark"
    return measured(name, given, folder, log, query.key, parameters, taken_ms, worked)


def in_spark(
    spark: SparkSession, name: str, given: Input, folder: Path, parameters: Parameters
) -> Measured:
    """Run one query over all events as a stream, in a folder that does not exist."""
    keep_progress(spark, given)
    query = STREAMS[name]
    source = given.folder / ("closed" if query.watermark else "open")
    made = streams(spark, source, given.plan, PARALLELISM, watermark=query.watermark)
    began: list[ProcessorTime] = []

    def write(frame: DataFrame, batch_id: int) -> None:
        if batch_id == WARM_UP:
            began.append(ProcessorTime())
        writing(folder)(frame, batch_id)

    result = query.build(made, parameters, given.plan)
    running = started(result.writeStream.outputMode(query.mode).foreachBatch(write), folder)
    try:
        running.processAllAvailable()
        worked = began[0].seconds()
        batches = running.recentProgress
    finally:
        running.stop()
    # The batch after the last chunk is the rows that let the watermark pass.
    last = given.chunks if query.watermark else -1
    taken_ms = [
        float(batch.durationMs["triggerExecution"])
        for batch in batches[WARM_UP:]
        if batch.batchId != last or not batch.numInputRows
    ]
    log = folder / "checkpoint"
    return measured(name, given, folder, log, query.key, parameters, taken_ms, worked)


def measured(
    name: str,
    given: Input,
    folder: Path,
    log: Path,
    key: tuple[str, ...],
    parameters: Parameters,
    taken_ms: Iterable[float],
    processor_seconds: float,
) -> Measured:
    """What a query has read and written; `log` is Spark's checkpoint."""
    result = canonical(name, last_rows(folder / "out", key))
    events: dict[str, Any] = dict(stored(given.folder / "open" / "events"))
    if name == "q12":
        events["bid"] = processed(given, log)
    rows = sum(
        pq.read_metadata(path).num_rows
        for kind in QUERIES[name].reads
        for path in given.files(kind)[WARM_UP * PARALLELISM :]
    )
    right = bool(result.equals(expected(name, events, parameters)))
    return Measured(rows, sum(taken_ms) / 1e3, processor_seconds, result, right)


def keep_progress(spark: SparkSession, given: Input) -> None:
    """Let queries keep what is needed of each batch at the end: its times and its offsets."""
    for name in ("numRecentProgressUpdates", "minBatchesToRetain"):
        spark.conf.set(f"spark.sql.streaming.{name}", str(2 * given.chunks + 100))


def last_rows(folder: Path, key: tuple[str, ...]) -> pa.Table:
    """What an output says in the end: all rows, or those of each key's last epoch.

    The bounds of windows become milliseconds, which the reference has.
    """
    rows = f"read_parquet('{folder}/epoch=*/*.parquet', hive_partitioning = true)"
    last = ""
    if key:
        last = f"QUALIFY epoch::BIGINT = max(epoch::BIGINT) OVER (PARTITION BY {', '.join(key)})"
    with duckdb.connect() as connection:
        given = connection.sql(f"SELECT * FROM {rows}")
        bounds = {"window_start": "start_ms", "window_end": "end_ms"}
        columns = [
            f"epoch_ms({name}) AS {bounds[name]}" if name in bounds else f'"{name}"'
            for name in given.columns
        ]
        named = f"SELECT {', '.join(columns)} FROM {rows}"
        found: pa.Table = connection.sql(f"SELECT * FROM ({named}) {last}").to_arrow_table()
    return found


def processed(given: Input, log: Path) -> pa.Table:
    """The bids with the processing time of their batches, which Spark's log of offsets has."""
    files = given.files("bid")
    parts = []
    for batch in range(given.chunks):
        _, about, offset = (log / "offsets" / str(batch)).read_text().splitlines()[:3]
        if json.loads(offset)["logOffset"] != batch:
            raise AssertionError(f"batch {batch} did not read a chunk: {offset}")
        own = files[batch * PARALLELISM : (batch + 1) * PARALLELISM]
        chunk = pa.concat_tables([pq.read_table(path) for path in own])
        at = pa.array([json.loads(about)["batchTimestampMs"]] * chunk.num_rows, pa.int64())
        parts.append(chunk.append_column("processed_ms", at))
    return pa.concat_tables(parts)
