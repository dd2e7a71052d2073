"""Benchmarks on Spark: the time of a batch is the one that was handed over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.spark_jobs import batch_seconds, hand_over, source

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

KEPT = "spark.sql.streaming.numRecentProgressUpdates"


def test_a_batch_is_timed_though_spark_has_dropped_the_reports_before_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "job"
    for number in range(3):
        rows = spark.range(10).selectExpr("id key", "id value")
        rows.write.parquet(str(tmp_path / str(number)))
    spark.conf.set(KEPT, "1")
    try:
        writer = source(spark, folder, "key long, value long").writeStream.format("noop")
        query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    finally:
        spark.conf.unset(KEPT)
    try:
        with pytest.raises(AssertionError, match="the last batch with rows was none, not 0"):
            batch_seconds(query, 0)
        for number in range(3):
            hand_over(tmp_path / str(number), folder)
            assert batch_seconds(query, number) > 0
        with pytest.raises(AssertionError, match="the last batch with rows was 2, not 3"):
            batch_seconds(query, 3)
    finally:
        query.stop()
