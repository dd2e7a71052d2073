"""A count over more keys than memory has room for: tables on disk, and RocksDB with as much memory.

The tables of pystate and the caches and write buffers of Spark's RocksDB have the same limit. All
keys are there before anything is timed, and then the keys of a batch are drawn uniformly. RocksDB
writes its changes to a log at each commit, and a snapshot in the background: without such a log a
commit would upload each file that changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pystate as ps
from bench.spark_aggregates import COUNTED, ROCKSDB, count_natively, rows_of, write_input
from bench.spark_jobs import (
    PARALLELISM,
    by_turns,
    in_spark,
    new_job,
    session,
)
from pystate.spark import ParquetSink

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from bench.measure import Row, Scale
    from bench.spark_jobs import Start

WARM_UP = 2
"""Batches of drawn keys that are not timed."""
CONFIG = "spark.sql.streaming.stateStore.rocksdb."


def bounded(spark: SparkSession, memory_bytes: int) -> None:
    """Let RocksDB have so much memory in all, in queries that start from now on."""
    for name, value in {
        "boundedMemoryUsage": "true",
        "maxMemoryUsageMB": str(max(memory_bytes >> 20, 1)),
        "changelogCheckpointing.enabled": "true",
    }.items():
        spark.conf.set(CONFIG + name, value)


def on_disk(memory_bytes: int) -> Start:
    """The product, whose tables have so much memory together."""

    def start(stream: DataFrame, folder: Path) -> StreamingQuery:
        each = memory_bytes // PARALLELISM
        job = new_job("bench", folder, table_home="disk", memory_limit_bytes=each)

        def pipeline(frame: DataFrame) -> DataFrame:
            return job.key_by(frame, "key", uid="count").aggregate(n=ps.count())

        return job.start(stream, pipeline, sink=ParquetSink(str(folder / "out")))

    return start


def count(scale: Scale) -> list[Row]:
    """Both jobs in one session; each batch goes through one after the other."""
    rows, keys, memory = scale.spark_disk_rows, scale.spark_disk_keys, scale.spark_disk_memory
    fills = -(-keys // rows)

    def write(spark: SparkSession, n: int, folder: Path) -> None:
        number = int(folder.name)
        if number >= fills:
            write_input(spark, n, folder, keys)
            return
        every = spark.range(number * rows, min((number + 1) * rows, keys), 1, PARALLELISM)
        every.selectExpr("id AS key", "id AS value").write.parquet(str(folder))

    timed = [False] * (fills + WARM_UP) + [True] * scale.spark_batches
    turns = [[(rows, is_timed)] for is_timed in timed]
    # On a disk: what is temporary may be in memory.
    with session(within=scale.disk_folder) as (spark, root):
        bounded(spark, memory)
        starts = {"pystate": on_disk(memory), ROCKSDB: in_spark(count_natively)}
        timings, folders = by_turns(spark, root, starts, COUNTED, write, turns)
        same_last(spark, folders)
    what = f"count, {rows:,} rows a batch, {keys:,} keys, {memory >> 20:,} MiB"
    return rows_of("spark-disk", what, timings, rows, {})


def same_last(spark: SparkSession, folders: dict[str, Path]) -> None:
    """Check that the last batch gave the same counts in both jobs."""
    ours, theirs = (
        spark.read.parquet(str(max((folder / "out").glob("epoch=*"), key=_number))).select(
            "key", "n"
        )
        for folder in folders.values()
    )
    missing, more = theirs.exceptAll(ours).count(), ours.exceptAll(theirs).count()
    if missing or more:
        raise AssertionError(f"pystate: {missing} counts missing, {more} too many")


def _number(path: Path) -> int:
    return int(path.name.removeprefix("epoch="))
