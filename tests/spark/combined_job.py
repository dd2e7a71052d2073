"""A job whose rows are combined before the shuffle; run as a program, its driver is killed.

``python combined_job.py FOLDER KIND EPOCHS WHERE``: runs epochs, and in the last one kills its own
process before that is published (WHERE is ``complete``), or before it is committed (``commit``).
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pystate as ps
from pystate.spark import Job, ParquetSink
from pystate.spark.base.partial_aggregation import Combine
from tests.unit.operators.windows.windows_world import Model, tumbling

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["CRASHES", "KINDS", "PARALLELISM", "Recomputed", "frame", "pipeline", "rows_of_epoch"]

PARALLELISM = 2
KINDS = ("keys", "windows")
#: What the driver calls last where it is killed.
CRASHES = {
    "complete": "pystate.epochs.epoch.Epoch.complete",
    "commit": "pystate.spark.sinks.commits.commit",
}
#: How late a row may be, and for how long a window is kept.
DELAY, LATENESS = 5, 7

Row = tuple[int, int | None, int | None]


def rows_of_epoch(seed: int, number: int) -> list[Row]:
    """Rows (key, time, value), many of a key; some have no time or no value, and some are late."""
    rng = random.Random(f"{seed} {number}")
    return [
        (
            rng.randrange(40),
            None if rng.random() < 0.02 else number * 10 + rng.randrange(-25, 10),
            None if rng.random() < 0.1 else rng.randrange(-(1 << 60), 1 << 60) >> rng.randrange(60),
        )
        for _ in range(600)
    ]


def frame(session: SparkSession, rows: list[Row]) -> DataFrame:
    """The rows in three partitions, so that a key comes from several of them."""
    return session.createDataFrame(
        session.sparkContext.parallelize(rows, 3), "k int, t long, v long"
    )


def pipeline(df: DataFrame, job: Job, kind: str, combine: Combine) -> DataFrame:
    """Aggregates of keys, or of their windows."""
    keyed = job.key_by(df, "k", uid="a", event_time="t", allowed_delay=DELAY)
    if kind == "windows":
        windows = keyed.window(ps.Tumbling(10), emit="update", allowed_lateness=LATENESS)
        return windows.aggregate(
            n=ps.count(), some=ps.count("v"), total=ps.sum("v"), most=ps.max("v"), combine=combine
        )
    return keyed.aggregate(
        n=ps.count(), some=ps.count("v"), total=ps.sum("v"), most=ps.max("v"), combine=combine
    )


def results(rows: list[Any]) -> tuple[Any, ...]:
    """What aggregates of some rows are."""
    values = [row[2] for row in rows if row[2] is not None]
    return len(rows), len(values), sum(values) if values else None, max(values, default=None)


class Recomputed:
    """What the job emits and keeps, from all rows."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._model = Model(tumbling(10), results, LATENESS, "update")
        self._rows: list[Row] = []
        self._latest: int | None = None

    def epoch(self, rows: list[Row]) -> set[tuple[Any, ...]]:
        """The rows that an epoch emits."""
        bound = None if self._latest is None else self._latest - DELAY
        times = [row[1] for row in rows if row[1] is not None]
        self._rows += rows
        self._latest = max([*times, *filter(None, [self._latest])])
        if self._kind == "windows":
            self._model.bound = bound
            emitted = self._model.epoch(rows, bound)
            return {(*name, *found) for name, found in emitted.items()}
        return {one for one in self.state() if one[0] in {row[0] for row in rows}}

    def state(self) -> set[tuple[Any, ...]]:
        """The state after the last epoch."""
        if self._kind == "windows":
            rows = self._model.rows.items()
            return {(key, start, *results(kept)) for (key, start, _), kept in rows}
        return {
            (key, *results([row for row in self._rows if row[0] == key]))
            for key in {row[0] for row in self._rows}
        }


def main(folder: Path, kind: str, epochs: int, where: str) -> None:
    """Run epochs, and die in the last one."""
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.executorEnv.PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        .getOrCreate()
    )
    sink = ParquetSink(folder / "out")
    job = Job("test", folder / "checkpoint", parallelism=PARALLELISM)

    def run(number: int) -> None:
        df = frame(session, rows_of_epoch(0, number))
        job.run_epoch(df, lambda df: pipeline(df, job, kind, True), run_key=str(number), sink=sink)

    for number in range(epochs - 1):
        run(number)
    with mock.patch(CRASHES[where], lambda *_: os.kill(os.getpid(), signal.SIGKILL)):
        run(epochs - 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])
