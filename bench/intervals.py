"""Time per batch of a stream that takes a checkpoint after every 1, 10 or 100 batches.

``python -m bench.intervals --batches 110 --rounds 3 --ranges 8`` runs the three jobs by turns, and
prints for each the mean time per batch, with its checkpoints, and the median of the batches between
them. Small batches, so that it is the cost of the epoch that is seen, and not that of the rows.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pystate as ps
from bench.spark_jobs import session
from pystate.spark import Job, ParquetSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERVALS = (1, 10, 100)
KEYS = 2000
ROWS = 1000
WARM_UP = 5


def times_ms(
    spark: SparkSession, folder: Path, interval: int, batches: int, ranges: int
) -> list[float]:
    """Run one job; returns each batch's time."""
    ended = threading.Event()
    found: list[float] = []

    def note(progress: Any) -> None:
        found.append(time.perf_counter())
        if len(found) > batches + WARM_UP:
            ended.set()

    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
    options = ps.CheckpointOptions(interval=interval)
    with Job("intervals", folder / "checkpoint", parallelism=ranges, checkpoints=options) as job:
        query = job.start(
            stream.selectExpr(f"value % {KEYS} AS k", "value AS v"),
            lambda df: job.key_by(df, "k", uid="counts").aggregate(n=ps.count(), total=ps.sum("v")),
            sink=ParquetSink(folder / "out"),
            trigger={"processingTime": "0 seconds"},
            on_epoch=note,
        )
        ended.wait()
        query.stop()
    pairs = itertools.pairwise(found[WARM_UP : WARM_UP + batches + 1])
    return [(after - before) * 1000 for before, after in pairs]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=110)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranges", type=int, default=8)
    given = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="pystate-intervals-"))
    means: dict[int, list[float]] = {interval: [] for interval in INTERVALS}
    medians: dict[int, list[float]] = {interval: [] for interval in INTERVALS}
    try:
        with session(folder) as spark:
            for number in range(given.rounds):
                for interval in INTERVALS:
                    place = folder / f"{number}-{interval}"
                    times = times_ms(spark, place, interval, given.batches, given.ranges)
                    means[interval].append(statistics.fmean(times))
                    medians[interval].append(statistics.median(times))
                    print(
                        f"round {number + 1}, a checkpoint every {interval:3} batches: "
                        f"{means[interval][-1]:6.1f} ms per batch, median "
                        f"{medians[interval][-1]:6.1f} ms",
                        flush=True,
                    )
    finally:
        shutil.rmtree(folder)
    for interval in INTERVALS:
        print(
            f"every {interval:3}: mean {statistics.median(means[interval]):6.1f} ms, median "
            f"{statistics.median(medians[interval]):6.1f} ms"
        )


if __name__ == "__main__":
    main()
