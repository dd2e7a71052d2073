"""A count per key on Spark: ``python pystate_spark_job.py rows-folder state-folder n``.

The session is started before the time, as Flink's is; workers and JVM are cold, as Flink's are.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from counting import tell
from pyspark.sql import functions as F

import pystate as ps
from bench.spark_jobs import new_job, session
from pystate.spark import ParquetSink


def main() -> None:
    """Time it, `n` files an epoch."""
    rows, folder, at_once = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    with session() as (spark, _):
        job = new_job("count", folder)
        given = spark.readStream.schema("k long").option("maxFilesPerTrigger", at_once).csv(rows)
        began = time.perf_counter()
        job.start(
            given,
            lambda df: job.key_by(df, "k", uid="count").aggregate(n=ps.count()),
            sink=ParquetSink(str(folder / "out")),
            trigger={"availableNow": True},
        ).awaitTermination()
        seconds = time.perf_counter() - began
        counts = spark.read.parquet(str(folder / "out")).groupBy("k").agg(F.max("n").alias("n"))
        tell(seconds, counts.toArrow()["n"].to_pylist(), "pystate-spark")


if __name__ == "__main__":
    main()
