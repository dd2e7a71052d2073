"""The same count per key on Spark without state, with pystate, and with Spark's own state.

All run in one session over the same stream, shuffle by key into as many partitions, and write as
many output rows to Parquet in `foreachBatch`. The job without state sends its rows through a Python
worker (`mapInArrow`) that passes on as many rows as the other jobs have keys to update.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import pystate as ps
from bench.measure import Row, Scale, Spread
from bench.processes import ProcessorTime
from pystate.spark import Job, ParquetSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from pystate.spark.base.combining import Combine

    Starts = dict[str, tuple[Callable[[DataFrame, Scale, Path], StreamingQuery], str]]

PARALLELISM = 2
MAX_PARALLELISM = 128
WARM_UP = 3
"""Batches that are not timed: after them 99.7 % of the keys exist and the JVM is warm."""
SKEW = 1.1
"""The exponent of skewed keys."""
EXPECTED = {
    "without state": ">= 0.92x",
    "Spark, in memory": ">= 2.5x",
    "Spark, RocksDB": ">= 6.5x",
}
EXPECTED_SKEWED = {"without state": ">= 2x"}
PROVIDERS = {
    "HDFSBacked": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "RocksDB": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}


@contextlib.contextmanager
def session(folder: Path, cores: int = PARALLELISM) -> Iterator[SparkSession]:
    """Some cores of this machine, quiet."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .appName("pystate-bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "4g")
        # Jobs that wait for their turn rarely check for input.
        .config("spark.sql.streaming.pollingDelay", "500ms")
        .config("spark.sql.shuffle.partitions", str(PARALLELISM))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()


def write_input(spark: SparkSession, scale: Scale, folder: Path, skew: float = 0) -> None:
    """Write one batch, a file per core.

    Keys are uniform over `spark_keys`, or with a skew their ranks follow Zipf's law, rounded down
    from its continuous form.
    """
    seed = int(folder.name) * scale.spark_rows
    rows = spark.range(seed, seed + scale.spark_rows, 1, PARALLELISM)
    drawn = F.xxhash64(F.col("id") + 1_000_003)
    spread = F.pmod(drawn, F.lit(scale.spark_keys))
    if skew:
        share = F.pmod(drawn, F.lit(1 << 53)) / F.lit(float(1 << 53))
        tail = scale.spark_keys ** (1 - skew) - 1
        spread = F.floor(F.pow(1 + share * tail, F.lit(1 / (1 - skew))))
    rows.select(spread.cast("long").alias("key"), F.col("id").alias("value")).write.parquet(
        str(folder)
    )


def source(spark: SparkSession, folder: Path) -> DataFrame:
    """A stream with a batch for each folder that appears below `folder`."""
    (folder / "in").mkdir(parents=True)
    return spark.readStream.schema("key long, value long").parquet(str(folder / "in" / "*"))


def hand_over(batch: Path, folder: Path) -> None:
    """Make all files of a batch appear at once in a job's input."""
    coming = folder / "coming"
    shutil.copytree(batch, coming, copy_function=os.link)
    coming.rename(folder / "in" / batch.name)


def updated_share(scale: Scale, skew: float = 0) -> float:
    """The share of distinct keys among a batch's rows, drawn at random."""
    chances = np.full(scale.spark_keys, 1 / scale.spark_keys)
    if skew:
        ranks = np.arange(1, scale.spark_keys + 1, dtype=np.float64) ** (1 - skew)
        chances = np.diff(ranks) / (ranks[-1] - 1)
    return float(-np.expm1(-scale.spark_rows * chances).sum() / scale.spark_rows)


def start_without_state(
    stream: DataFrame, scale: Scale, folder: Path, skew: float = 0
) -> StreamingQuery:
    """The pass-through job."""
    share = updated_share(scale, skew)

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            part = batch.slice(0, round(batch.num_rows * share))
            yield pa.RecordBatch.from_arrays([part.column(0)] * 2, names=["key", "n"])

    group = F.pmod(F.xxhash64("key"), F.lit(MAX_PARALLELISM).cast("long"))
    owner = F.call_function("div", group * PARALLELISM, F.lit(MAX_PARALLELISM).cast("long"))

    def write(frame: DataFrame, batch_id: int) -> None:
        # A count needs no other column, and its output rows have two columns.
        routed = frame.select("key").repartitionById(PARALLELISM, owner.cast("int"))
        passed = routed.mapInArrow(pass_on, "key long, n long")
        passed.write.parquet(str(folder / "out" / f"epoch={batch_id}"))

    return started(stream.writeStream.foreachBatch(write), folder)


def start_with_pystate(
    stream: DataFrame, scale: Scale, folder: Path, combine: Combine = "auto"
) -> StreamingQuery:
    """The product."""
    job = Job(
        "bench",
        checkpoint=str(folder / "checkpoint"),
        max_parallelism=MAX_PARALLELISM,
        parallelism=PARALLELISM,
    )

    def pipeline(frame: DataFrame) -> DataFrame:
        return job.key_by(frame, "key", uid="count").aggregate(n=ps.count(), combine=combine)

    return job.start(stream, pipeline, sink=ParquetSink(str(folder / "out")))


def start_native(stream: DataFrame, scale: Scale, folder: Path) -> StreamingQuery:
    """Spark's own streaming aggregation, updated rows only."""

    def write(frame: DataFrame, batch_id: int) -> None:
        frame.write.parquet(str(folder / "out" / f"epoch={batch_id}"))

    counts = stream.groupBy("key").agg(F.count("*").alias("n"))
    return started(counts.writeStream.outputMode("update").foreachBatch(write), folder)


def started(writer: object, folder: Path) -> StreamingQuery:
    """Start a writer with its own checkpoint."""
    query: StreamingQuery = writer.option(  # type: ignore[attr-defined]
        "checkpointLocation", str(folder / "checkpoint")
    ).start()
    return query


def batch_seconds(query: StreamingQuery, turn: int) -> float:
    """Spark's time of the micro-batch just handed over, with source and commit."""
    query.processAllAvailable()
    # By its number: Spark keeps the last hundred reports only, and a query that waits for its turn
    # makes one every ten seconds.
    batches = [found for found in query.recentProgress if found.numInputRows]
    if not batches or batches[-1].batchId != turn:
        last = batches[-1].batchId if batches else "none"
        raise AssertionError(f"the last batch with rows was {last}, not {turn} as handed over")
    return float(batches[-1].durationMs["triggerExecution"]) / 1e3


def same_rows(spark: SparkSession, folders: dict[str, Path], ours: str, *columns: str) -> DataFrame:
    """Check that the outputs of all jobs hold the same rows as one of them, which is returned."""
    frames = {
        name: spark.read.parquet(str(folder / "out")).select(*columns)
        for name, folder in folders.items()
    }
    own = frames.pop(ours)
    for name, theirs in frames.items():
        missing, more = theirs.exceptAll(own).count(), own.exceptAll(theirs).count()
        if missing or more:
            raise AssertionError(f"{name}: {missing} rows missing, {more} too many")
    return own


def jobs(scale: Scale) -> list[Row]:
    """All jobs, with uniform keys."""
    return compared(scale, 0, {})


def skewed(scale: Scale) -> list[Row]:
    """All jobs, with skewed keys, whose rows pystate and Spark combine before the shuffle."""
    plain = partial(start_with_pystate, combine=False)
    return compared(scale, SKEW, {"pystate, not combined": (plain, "HDFSBacked")})


def compared(scale: Scale, skew: float, more: Starts) -> list[Row]:
    """All jobs run in one session; each batch goes through one job after the other."""
    starts: Starts = {
        "without state": (partial(start_without_state, skew=skew), "HDFSBacked"),
        "pystate": (start_with_pystate, "HDFSBacked"),
        **more,
        "Spark, in memory": (start_native, "HDFSBacked"),
        "Spark, RocksDB": (start_native, "RocksDB"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in starts}
    worked: dict[str, list[float]] = {name: [] for name in starts}
    root = Path(tempfile.mkdtemp(prefix="pystate-bench-"))
    try:
        with session(root) as spark:
            queries, folders = {}, {}
            for name, (start, provider) in starts.items():
                spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDERS[provider])
                folders[name] = folder = root / name.replace(" ", "-")
                queries[name] = start(source(spark, folder), scale, folder)
            for turn in range(WARM_UP + scale.spark_batches):
                write_input(spark, scale, root / str(turn), skew)
                for name, query in queries.items():
                    processors = ProcessorTime()
                    hand_over(root / str(turn), folders[name])
                    seconds[name].append(batch_seconds(query, turn))
                    worked[name].append(processors.seconds())
            for query in queries.values():
                query.stop()
            written = {name: last_output_rows(spark, folders[name]) for name in starts}
    finally:
        shutil.rmtree(root, ignore_errors=True)
    timed = {name: taken[WARM_UP:] for name, taken in seconds.items()}
    busy = {name: taken[WARM_UP:] for name, taken in worked.items()}
    return [row_of(name, timed, busy, written, scale, skew) for name in starts]


def last_output_rows(spark: SparkSession, folder: Path) -> int:
    """Rows of the last epoch: the jobs are comparable only if these are about equal."""
    epochs = sorted(
        (folder / "out").glob("epoch=*"), key=lambda path: int(path.name.removeprefix("epoch="))
    )
    return spark.read.parquet(str(epochs[-1])).count()


def row_of(
    name: str,
    seconds: dict[str, list[float]],
    worked: dict[str, list[float]],
    written: dict[str, int],
    scale: Scale,
    skew: float,
) -> Row:
    """A job's rate: pystate's relative to the job without state, and its lead over the others."""
    rates = {job: [scale.spark_rows / taken / 1e6 for taken in seconds[job]] for job in seconds}
    ratio, peer, expected = None, "", ""
    if name != "pystate":
        ratio = Spread.of(
            [ours / theirs for ours, theirs in zip(rates["pystate"], rates[name], strict=True)]
        )
        peer = f"pystate / {name}"
        expected = (EXPECTED_SKEWED if skew else EXPECTED).get(name, "")
    return Row(
        "spark-skewed" if skew else "spark-count",
        f"count, {scale.spark_rows:,} rows a batch, {scale.spark_keys:,} "
        f"{f'keys, zipf {skew}' if skew else 'keys'}: {name}",
        Spread.of(rates[name]),
        "M rows/s",
        peer=peer,
        ratio=ratio,
        expected=expected,
        detail={
            "seconds": seconds[name],
            "processor_seconds": worked[name],
            "output_rows": written[name],
        },
    )
