"""Counts and windows on Spark: without state, with pystate, and with Spark's own state.

The job without state sends its rows through a Python worker (`mapInArrow`) that passes on as many
rows as the other jobs have keys to update. There are few rows to each window, so that combining
rows before the shuffle helps neither engine. `small` asks what an epoch adds to a small batch.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

import pystate as ps
from bench.measure import Row, Scale, Spread, Timings
from bench.spark_jobs import (
    MAX_PARALLELISM,
    PARALLELISM,
    by_turns,
    in_job,
    in_spark,
    plain,
    same_rows,
    session,
    started,
    writing,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from bench.spark_jobs import Start
    from pystate.spark import Job
    from pystate.spark.base.partial_aggregation import Combine

WARM_UP, WINDOWS_WARM_UP, SMALL_WARM_UP = 3, 6, 8
"""Batches that are not timed: after them 99.7 % of the keys exist and the JVM is warm."""
SKEW = 1.1
"""The exponent of skewed keys."""
MINUTES = 10
"""Event time of a batch for windows; no row is late."""
COUNTED, WINDOWED = "key long, value long", "key long, at timestamp, value long"
MEMORY, ROCKSDB = "Spark, in memory", "Spark, RocksDB"
GOALS = {"without state": ">= 0.92x", MEMORY: ">= 2.5x", ROCKSDB: ">= 6.5x"}
GOALS_SKEWED = {"without state": ">= 2x"}
GOALS_WINDOWS = {MEMORY: ">= 1.5x", ROCKSDB: ">= 3x"}


def write_input(spark: SparkSession, rows: int, folder: Path, keys: int, skew: float = 0) -> None:
    """Write one batch, a file per core.

    Keys are uniform, or with a skew their ranks follow Zipf's law, rounded down from its continuous
    form.
    """
    seed = int(folder.name) * rows
    drawn = F.xxhash64(F.col("id") + 1_000_003)
    spread = F.pmod(drawn, F.lit(keys))
    if skew:
        share = F.pmod(drawn, F.lit(1 << 53)) / F.lit(float(1 << 53))
        tail = keys ** (1 - skew) - 1
        spread = F.floor(F.pow(1 + share * tail, F.lit(1 / (1 - skew))))
    columns = spread.cast("long").alias("key"), F.col("id").alias("value")
    spark.range(seed, seed + rows, 1, PARALLELISM).select(*columns).write.parquet(str(folder))


def write_timed(spark: SparkSession, rows: int, folder: Path, keys: int, span_ms: int) -> None:
    """Write one batch: uniform keys, and times over the batch's span, with its last millisecond."""
    begin_ms = (int(folder.name) + 1) * span_ms
    drawn = F.pmod(F.xxhash64(F.col("id") + begin_ms), F.lit(keys)).cast("long")
    ms = F.lit(begin_ms + span_ms - 1) - F.pmod(F.col("id") * 7_919, F.lit(span_ms))
    columns = {"key": drawn, "ms": ms, "at": F.timestamp_millis(ms), "value": F.col("id")}
    rows_of = spark.range(0, rows, 1, PARALLELISM)
    rows_of.select(*(of.alias(name) for name, of in columns.items())).write.parquet(str(folder))


def updated_share(rows: int, keys: int, skew: float) -> float:
    """The share of distinct keys among a batch's rows, drawn at random."""
    chances = np.full(keys, 1 / keys)
    if skew:
        ranks = np.arange(1, keys + 1, dtype=np.float64) ** (1 - skew)
        chances = np.diff(ranks) / (ranks[-1] - 1)
    return float(-np.expm1(-rows * chances).sum() / rows)


def without_state(rows: int, keys: int, skew: float = 0) -> Start:
    """The job that passes rows on."""
    share = updated_share(rows, keys, skew)

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            part = batch.slice(0, round(batch.num_rows * share))
            yield pa.RecordBatch.from_arrays([part.column(0)] * 2, names=["key", "n"])

    def start(stream: DataFrame, folder: Path) -> StreamingQuery:
        group = F.pmod(F.xxhash64("key"), F.lit(MAX_PARALLELISM).cast("long"))
        owner = F.call_function("div", group * PARALLELISM, F.lit(MAX_PARALLELISM).cast("long"))

        def write(frame: DataFrame, batch_id: int) -> None:
            # A count needs no other column, and its output rows have two columns.
            routed = frame.select("key").repartitionById(PARALLELISM, owner.cast("int"))
            writing(folder)(routed.mapInArrow(pass_on, "key long, n long"), batch_id)

        return started(stream.writeStream.foreachBatch(write), folder)

    return start


def counting(combine: Combine = "auto") -> Start:
    """The product."""

    def pipeline(frame: DataFrame, job: Job) -> DataFrame:
        return job.key_by(frame, "key", uid="count").aggregate(n=ps.count(), combine=combine)

    return in_job(pipeline)


def count_natively(stream: DataFrame) -> DataFrame:
    """Spark's own streaming aggregation, updated rows only."""
    return stream.groupBy("key").agg(F.count("*").alias("n"))


def rows_of(
    question: str, what: str, timings: Timings, rows: int, expected: Mapping[str, str]
) -> list[Row]:
    """Each job's rate, and pystate's relative to it."""
    return [
        timings.row(
            name,
            question,
            f"{what}: {name}",
            rows,
            lead=None if name == "pystate" else ("pystate", name),
            expected=expected.get(name, ""),
        )
        for name in timings.seconds
    ]


def uniform(scale: Scale) -> list[Row]:
    """All jobs, with uniform keys."""
    return counts(scale, "spark-count", 0, {}, GOALS)


def skewed(scale: Scale) -> list[Row]:
    """All jobs, with skewed keys, whose rows pystate and Spark combine before the shuffle."""
    plainly = {"pystate, not combined": counting(combine=False)}
    return counts(scale, "spark-skewed", SKEW, plainly, GOALS_SKEWED)


def counts(
    scale: Scale, question: str, skew: float, more: dict[str, Start], expected: dict[str, str]
) -> list[Row]:
    """All jobs run in one session; each batch goes through one job after the other."""
    rows, keys = scale.spark_rows, scale.spark_keys
    starts = {
        "without state": without_state(rows, keys, skew),
        "pystate": counting(),
        **more,
        MEMORY: in_spark(count_natively, provider="HDFSBacked"),
        ROCKSDB: in_spark(count_natively),
    }
    write = partial(write_input, keys=keys, skew=skew)
    turns = plain(rows, WARM_UP, scale.spark_batches)
    with session() as (spark, root):
        timings, folders = by_turns(spark, root, starts, COUNTED, write, turns)
        check_written(spark, folders)
    what = f"count, {rows:,} rows a batch, {keys:,} keys" + (f", zipf {skew}" if skew else "")
    return rows_of(question, what, timings, rows, expected)


def check_written(spark: SparkSession, folders: dict[str, Path]) -> None:
    """Make sure that the last outputs are about as large: else the jobs are not comparable."""
    written = {}
    for name, folder in folders.items():
        last = max((folder / "out").glob("epoch=*"), key=lambda path: int(path.name[6:]))
        written[name] = spark.read.parquet(str(last)).count()
    if max(written.values()) > 1.1 * min(written.values()):
        raise AssertionError(f"the jobs wrote too different numbers of rows: {written}")


def small(scale: Scale) -> list[Row]:
    """A small batch without state and with pystate, and the difference of the same batch."""
    found = []
    with session() as (spark, root):
        for n in scale.small_rows:
            starts = {"without state": without_state(n, n), "pystate": counting()}
            write = partial(write_input, keys=n)
            turns = plain(n, SMALL_WARM_UP, scale.small_batches)
            timings, _ = by_turns(spark, root / f"rows{n}", starts, COUNTED, write, turns)
            ms = {name: [1e3 * one for one in each] for name, each in timings.seconds.items()}
            pairs = zip(ms["pystate"], ms["without state"], strict=True)
            added = "added by pystate"
            ms[added] = [ours - theirs for ours, theirs in pairs]
            for name, each in ms.items():
                goal = "<= 30 ms" if name == added and n <= 1_000 else ""
                what = f"a batch of {n:,} rows: {name}"
                figure = Spread.of(each)
                found.append(Row("small-batches", what, figure, "ms", "", None, goal, name, n))
    return found


def windows(scale: Scale) -> list[Row]:
    """Windows of a minute with pystate, and with Spark's own windowed aggregation."""
    # So many that a window has two rows on average.
    rows, keys = scale.spark_rows, scale.spark_rows // (2 * MINUTES)

    def pipeline(frame: DataFrame, job: Job) -> DataFrame:
        keyed = job.key_by(frame, "key", uid="minutes", event_time="at", allowed_delay=0)
        windowed = keyed.window(ps.Tumbling("1 minute"))
        return windowed.aggregate(n=ps.count(), total=ps.sum("value"))

    def natively(stream: DataFrame) -> DataFrame:
        timed = stream.withWatermark("at", "0 seconds")
        grouped = timed.groupBy("key", F.window("at", "1 minute").alias("of"))
        found = grouped.agg(F.count("*").alias("n"), F.sum("value").alias("total"))
        return found.select("key", F.col("of.start").alias("window_start"), "n", "total")

    starts = {
        "pystate": in_job(pipeline),
        MEMORY: in_spark(natively, "append", "HDFSBacked"),
        ROCKSDB: in_spark(natively, "append"),
    }
    write = partial(write_timed, keys=keys, span_ms=MINUTES * 60_000)
    turns = plain(rows, WINDOWS_WARM_UP, scale.spark_batches)
    with session() as (spark, root):
        timings, folders = by_turns(spark, root, starts, WINDOWED, write, turns)
        same_rows(spark, folders, "pystate", "key", "window_start", "n", "total")
    what = f"count and sum by the minute, {rows:,} rows a batch, {keys:,} keys"
    return rows_of("spark-windows", what, timings, rows, GOALS_WINDOWS)
