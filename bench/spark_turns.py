"""Jobs of one session that get the same batches, one job after the other.

Spark ends Python workers that were idle for a minute, as during the others' turn: before each batch
there is a small one, which is not timed and starts them again. Turns before the timed ones have a
small batch in its place, too.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from bench.measure import Spread
from bench.spark_jobs import PROVIDERS, batch_seconds, hand_over, session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Checked = TypeVar("Checked")

WARM_UP = 3
"""Turns that are not timed: the first batches of a JVM are those of its compiler."""
SHARE = 10
"""A small batch has one of so many rows."""


@dataclass(frozen=True)
class Comparison(Generic[Checked]):
    """Jobs, what they read, and how what they have written is compared."""

    starts: Mapping[str, Callable[[DataFrame, Path], StreamingQuery]]
    source: Callable[[SparkSession, Path], DataFrame]
    """The stream over a job's folder."""
    write: Callable[[SparkSession, int, Path], None]
    """Writes a batch of so many rows to a folder, whose name is its number."""
    compared: Callable[[SparkSession, dict[str, Path]], Checked]
    """Checks the outputs in the jobs' folders, and returns what is noted of them."""

    def run(self, rows: int, batches: int) -> tuple[dict[str, list[float]], Checked]:
        """The seconds of each job's timed batches, and what comparing the outputs gave."""
        seconds: dict[str, list[float]] = {name: [] for name in self.starts}
        root = Path(tempfile.mkdtemp(prefix="pystate-bench-"))
        try:
            with session(root) as spark:
                spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDERS["RocksDB"])
                # A batch that only moves the watermark would be an extra batch for Spark, but not
                # for pystate.
                spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
                folders = {name: root / f"job{i}" for i, name in enumerate(self.starts)}
                queries = {
                    name: start(self.source(spark, folders[name]), folders[name])
                    for name, start in self.starts.items()
                }
                for turn in range(WARM_UP + batches):
                    small, large = 2 * turn, 2 * turn + 1
                    self.write(spark, rows // SHARE, root / str(small))
                    self.write(spark, rows // (1 if turn >= WARM_UP else SHARE), root / str(large))
                    for name, query in queries.items():
                        for number in (small, large):
                            hand_over(root / str(number), folders[name])
                            took = batch_seconds(query, number)
                        seconds[name].append(took)
                for query in queries.values():
                    query.stop()
                checked = self.compared(spark, folders)
        finally:
            shutil.rmtree(root, ignore_errors=True)
        return {name: taken[WARM_UP:] for name, taken in seconds.items()}, checked


def lead(seconds: Mapping[str, list[float]], ours: str, theirs: str) -> Spread:
    """How many times as fast one job is as another, batch by batch."""
    pairs = zip(seconds[ours], seconds[theirs], strict=True)
    return Spread.of([slow / fast for fast, slow in pairs])
