"""Windows of many keys on Spark: with pystate, and with Spark's own windowed aggregation.

All run in one session over the same stream, shuffle by key into as many partitions, and write the
windows that are over to Parquet in `foreachBatch`; these are compared at the end. There are few
rows to each window, so that combining rows before the shuffle helps neither of them.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

import pystate as ps
from bench.measure import Row, Scale, Spread
from bench.spark_jobs import (
    MAX_PARALLELISM,
    PARALLELISM,
    PROVIDERS,
    batch_seconds,
    hand_over,
    same_rows,
    session,
    started,
)
from pystate.spark import Job, ParquetSink

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MINUTES = 10
"""Event time of a batch; no row is late."""
WARM_UP = 6
"""Batches that are not timed: the JVM becomes faster for so long."""


def write_input(spark: SparkSession, scale: Scale, folder: Path) -> None:
    """Write one batch: uniform keys, and times over the batch's span, with its last moment."""
    begin_ms = (int(folder.name) + 1) * MINUTES * 60_000
    drawn = F.pmod(F.xxhash64(F.col("id") + begin_ms), F.lit(keys(scale))).cast("long")
    ms = F.lit(begin_ms + MINUTES * 60_000 - 1) - F.pmod(F.col("id") * 7_919, MINUTES * 60_000)
    spark.range(0, scale.spark_rows, 1, PARALLELISM).select(
        drawn.alias("key"), F.timestamp_millis(ms).alias("at"), F.col("id").alias("value")
    ).write.parquet(str(folder))


def keys(scale: Scale) -> int:
    """So many that a window has two rows on average."""
    return scale.spark_rows // (2 * MINUTES)


def source(spark: SparkSession, folder: Path) -> DataFrame:
    """A stream with a batch for each folder that appears below `folder`."""
    (folder / "in").mkdir(parents=True)
    columns = "key long, at timestamp, value long"
    return spark.readStream.schema(columns).parquet(str(folder / "in" / "*"))


def start_with_pystate(stream: DataFrame, folder: Path) -> StreamingQuery:
    """The product."""
    job = Job(
        "bench",
        checkpoint=str(folder / "checkpoint"),
        max_parallelism=MAX_PARALLELISM,
        parallelism=PARALLELISM,
    )

    def pipeline(frame: DataFrame) -> DataFrame:
        keyed = job.key_by(frame, "key", uid="minutes", event_time="at", allowed_delay=0)
        windowed = keyed.window(ps.Tumbling("1 minute"))
        return windowed.aggregate(n=ps.count(), total=ps.sum("value"))

    return job.start(stream, pipeline, sink=ParquetSink(str(folder / "out")))


def start_native(stream: DataFrame, folder: Path) -> StreamingQuery:
    """Spark's own."""

    def write(frame: DataFrame, batch_id: int) -> None:
        frame.write.parquet(str(folder / "out" / f"epoch={batch_id}"))

    windows = (
        stream.withWatermark("at", "0 seconds")
        .groupBy("key", F.window("at", "1 minute").alias("of"))
        .agg(F.count("*").alias("n"), F.sum("value").alias("total"))
        .select("key", F.col("of.start").alias("window_start"), "n", "total")
    )
    return started(windows.writeStream.outputMode("append").foreachBatch(write), folder)


STARTS: dict[str, tuple[Callable[[DataFrame, Path], StreamingQuery], str]] = {
    "pystate": (start_with_pystate, "HDFSBacked"),
    "Spark, in memory": (start_native, "HDFSBacked"),
    "Spark, RocksDB": (start_native, "RocksDB"),
}
EXPECTED = {"Spark, in memory": ">= 1.5x", "Spark, RocksDB": ">= 3x"}


def jobs(scale: Scale) -> list[Row]:
    """Each batch goes through one job after the other."""
    seconds: dict[str, list[float]] = {name: [] for name in STARTS}
    root = Path(tempfile.mkdtemp(prefix="pystate-bench-"))
    try:
        with session(root) as spark:
            # A batch that only moves the watermark would be an extra batch for Spark.
            spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
            queries, folders = {}, {}
            for name, (start, provider) in STARTS.items():
                spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDERS[provider])
                folders[name] = folder = root / name.replace(" ", "-")
                queries[name] = start(source(spark, folder), folder)
            for turn in range(WARM_UP + scale.spark_batches):
                write_input(spark, scale, root / str(turn))
                for name, query in queries.items():
                    hand_over(root / str(turn), folders[name])
                    seconds[name].append(batch_seconds(query, turn))
            for query in queries.values():
                query.stop()
            windows = compared(spark, folders)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    timed = {name: taken[WARM_UP:] for name, taken in seconds.items()}
    return [row_of(name, timed, windows, scale) for name in STARTS]


def compared(spark: SparkSession, folders: dict[str, Path]) -> int:
    """Check that all outputs hold the same windows; return how many."""
    return same_rows(spark, folders, "pystate", "key", "window_start", "n", "total").count()


def row_of(name: str, seconds: dict[str, list[float]], windows: int, scale: Scale) -> Row:
    """A job's rate, and pystate's lead over it, batch by batch."""
    ratio = None
    if name != "pystate":
        pairs = zip(seconds["pystate"], seconds[name], strict=True)
        ratio = Spread.of([theirs / ours for ours, theirs in pairs])
    return Row(
        "spark-windows",
        f"count and sum by the minute, {scale.spark_rows:,} rows a batch, {keys(scale):,} keys: "
        + name,
        Spread.of([scale.spark_rows / one / 1e6 for one in seconds[name]]),
        "M rows/s",
        peer="" if ratio is None else f"pystate / {name}",
        ratio=ratio,
        expected=EXPECTED.get(name, ""),
        detail={"seconds": seconds[name], "windows": windows},
    )
