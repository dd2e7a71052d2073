"""Jobs of one session that get the same batches, one job after the other.

Spark ends Python workers that were idle for a minute, as during the others' turn: before a job's
batches there is a small one, which is not timed and starts them again. Turns before the timed ones
have small batches only.
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

    def run(
        self, rows: int, batches: int, in_a_row: int = 1
    ) -> tuple[dict[str, list[float]], Checked]:
        """The seconds of each job's timed batches, and what comparing the outputs gave.

        Parameters
        ----------
        rows : int
            Rows of a batch.
        batches : int
            Turns that are timed.
        in_a_row : int
            Batches of a turn. In a stream that goes on, a batch follows the one before it; the
            first one after a pause takes longer.
        """
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
                first = 0
                for turn in range(WARM_UP + batches):
                    timed = turn >= WARM_UP
                    numbers = range(first, first + 1 + (in_a_row if timed else 1))
                    first = numbers.stop
                    for number in numbers:
                        small = not timed or number == numbers.start
                        self.write(spark, rows // (SHARE if small else 1), root / str(number))
                    for name, query in queries.items():
                        took = []
                        for number in numbers:
                            hand_over(root / str(number), folders[name])
                            took.append(batch_seconds(query, number))
                        if timed:
                            seconds[name] += took[1:]
                for query in queries.values():
                    query.stop()
                checked = self.compared(spark, folders)
        finally:
            shutil.rmtree(root, ignore_errors=True)
        return seconds, checked


def lead(seconds: Mapping[str, list[float]], ours: str, theirs: str) -> Spread:
    """How many times as fast one job is as another, batch by batch."""
    pairs = zip(seconds[ours], seconds[theirs], strict=True)
    return Spread.of([slow / fast for fast, slow in pairs])
