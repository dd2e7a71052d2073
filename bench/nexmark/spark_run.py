"""Runs the queries as streams of Spark over generated files, and compares the results.

``python -m bench.nexmark.spark_run --events 1000000 --only q3,q5`` prints for each query how many
rows per second of one core it took in. All run in one session, one after the other.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from bench.nexmark import generate
from bench.nexmark.generate import KINDS, SCHEMAS, Plan
from bench.nexmark.reference import QUERIES, Parameters, canonical, expected, stored
from bench.nexmark.spark_sql import STREAMS, streams
from bench.processes import ProcessorTime
from bench.spark_jobs import PARALLELISM, PROVIDERS, session, started

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WARM_UP = 2
"""Batches that are not timed."""
DAY_MS = 86_400_000


@dataclass(frozen=True)
class Input:
    """Generated files.

    Attributes
    ----------
    folder : Path
        ``open/events`` has the events, a chunk per batch; ``closed`` also has a last row of each
        kind, a day later, after which the watermark has passed all others.
    plan : Plan
        What was generated.
    chunks : int
        Number of chunks.
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

    Attributes
    ----------
    rows : int
        Rows that it read in the batches that were timed, of the kinds that it needs.
    seconds : float
        Time of these batches, and of what the end of the input makes due.
    processor_seconds : float
        Processor time of all processes meanwhile.
    result : pyarrow.Table
        In canonical order.
    right : bool
        Whether it equals the reference.
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

    @property
    def rows_per_processor_second(self) -> float:
        """Rows per second of processor time."""
        return self.rows / self.processor_seconds


def write_input(plan: Plan, folder: Path, size: int) -> Input:
    """Generate the files, as many per batch as Spark has cores."""
    events = folder / "open" / "events"
    chunks = len(generate.write(plan, events, size, parts=PARALLELISM))
    closed = folder / "closed"
    shutil.copytree(events, closed / "events", copy_function=shutil.copy2)
    last_us = (plan.first_ms + plan.events * 1_000 // plan.events_per_second + DAY_MS) * 1_000
    for number, kind in enumerate(KINDS):
        values = {
            field.name: last_us
            if pa.types.is_timestamp(field.type)
            else ("" if field.type == pa.string() else -1 - number)
            for field in SCHEMAS[kind]
        }
        columns = {name: pa.array([value], SCHEMAS[kind].field(name).type)
                   for name, value in values.items()}  # fmt: skip
        (closed / "last" / kind).mkdir(parents=True)
        pq.write_table(pa.table(columns), closed / "last" / kind / "last.parquet")
    return Input(folder, plan, chunks)


def run(
    spark: SparkSession, name: str, given: Input, folder: Path, parameters: Parameters
) -> Measured:
    """Run one query over all events.

    Parameters
    ----------
    spark : SparkSession
        Its time zone says nothing.
    name : str
        A query of `STREAMS`.
    given : Input
        The events.
    folder : Path
        For the checkpoint and the output; it must not exist.
    parameters : Parameters
        The constants of the queries.
    """
    keep_progress(spark, given)
    query = STREAMS[name]
    source = given.folder / ("closed" if query.watermark else "open")
    made = streams(spark, source, given.plan, PARALLELISM, watermark=query.watermark)

    began: list[ProcessorTime] = []

    def write(frame: DataFrame, batch_id: int) -> None:
        if batch_id == WARM_UP:
            began.append(ProcessorTime())
        frame.write.parquet(str(folder / "out" / f"epoch={batch_id}"))

    result = query.build(made, parameters, given.plan)
    running = started(result.writeStream.outputMode(query.mode).foreachBatch(write), folder)
    try:
        running.processAllAvailable()
        worked = began[0].seconds()
        batches = running.recentProgress
    finally:
        running.stop()
    found = canonical(name, last_rows(folder / "out", query.key))
    events: dict[str, Any] = dict(stored(given.folder / "open" / "events"))
    if name == "q12":
        events["bid"] = processed(given, folder / "checkpoint")
    right = bool(found.equals(expected(name, events, parameters)))
    # The batch after the last chunk is the rows that let the watermark pass.
    last = given.chunks if query.watermark else -1
    taken = [
        float(batch.durationMs["triggerExecution"])
        for batch in batches[WARM_UP:]
        if batch.batchId != last or not batch.numInputRows
    ]
    return Measured(rows_read(name, given), sum(taken) / 1e3, worked, found, right)


def keep_progress(spark: SparkSession, given: Input) -> None:
    """Let queries keep what is needed of each batch at the end: its times and its offsets."""
    for name in ("numRecentProgressUpdates", "minBatchesToRetain"):
        spark.conf.set(f"spark.sql.streaming.{name}", str(2 * given.chunks + 100))


def rows_read(name: str, given: Input) -> int:
    """Rows of a query's kinds in the chunks that are timed."""
    return sum(
        pq.read_metadata(path).num_rows
        for kind in QUERIES[name].reads
        for path in given.files(kind)[WARM_UP * PARALLELISM :]
    )


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


def processed(given: Input, checkpoint: Path) -> pa.Table:
    """The bids with the processing time of their batches, which Spark's log of offsets has."""
    files = given.files("bid")
    parts = []
    for batch in range(given.chunks):
        _, about, offset = (checkpoint / "offsets" / str(batch)).read_text().splitlines()[:3]
        if json.loads(offset)["logOffset"] != batch:
            raise AssertionError(f"batch {batch} did not read a chunk: {offset}")
        chunk = pa.concat_tables(
            [pq.read_table(path) for path in files[batch * PARALLELISM : (batch + 1) * PARALLELISM]]
        )
        at = pa.array([json.loads(about)["batchTimestampMs"]] * chunk.num_rows, pa.int64())
        parts.append(chunk.append_column("processed_ms", at))
    return pa.concat_tables(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--chunk", type=int, default=200_000)
    parser.add_argument("--only", help="queries, separated by commas: q3,q5")
    parser.add_argument("--store", choices=PROVIDERS, default="RocksDB", help="Spark's state store")
    given = parser.parse_args(arguments)
    names = given.only.split(",") if given.only else list(STREAMS)
    if unknown := [name for name in names if name not in STREAMS]:
        parser.error(f"no such query: {', '.join(unknown)} (there are {', '.join(STREAMS)})")
    if given.events <= given.chunk * WARM_UP:
        parser.error(f"--events must be more than {WARM_UP} chunks: the first ones are not timed")
    folder = Path(tempfile.mkdtemp(prefix="pystate-nexmark-"))
    wrong = 0
    try:
        made = write_input(Plan(given.events), folder / "input", given.chunk)
        with session(folder) as spark:
            spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDERS[given.store])
            for name in names:
                measured = run(spark, name, made, folder / name, Parameters())
                wrong += not measured.right
                print(
                    f"{name:4} {QUERIES[name].title:40} {measured.rows:11,} rows in "
                    f"{measured.seconds:6.1f} s: {measured.rows_per_core / 1e3:7.1f} k rows/s per "
                    f"core, {measured.result.num_rows:9,} rows of result, "
                    f"{'right' if measured.right else 'WRONG'}",
                    flush=True,
                )
                shutil.rmtree(folder / name)
    finally:
        shutil.rmtree(folder)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
