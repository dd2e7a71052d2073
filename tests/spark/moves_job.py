"""A job that moves amounts between accounts of two operators, until it is told to stop.

``python moves_job.py FOLDER SEED TABLES``. It is killed and started again; the file ``ranges`` says
its parallelism, and may change at any time, and ``stop`` ends it after the epoch that it computes.
Each epoch's number is that of its run, as an epoch that was published is not computed again.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import pystate as ps
from pystate.spark import EpochProgress, Job, ParquetSink
from tests.spark.moves_ledger import UIDS, Ledger
from tests.spark.processes import newest_epoch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: So often a savepoint is taken, of the first epochs and of later ones.
OFTEN, SELDOM = 3, 60


class Moving(ps.KeyedProcessFunction):
    """An account, which is removed when it is empty."""

    balance = ps.ValueState("long", default=0)
    stamp = ps.ValueState("long")
    parts = ps.MapState("long", "long")

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        """Take or give an amount."""
        balance = self.balance.value() + row["v"]
        if balance == 0:
            self.balance.clear()
            self.stamp.clear()
            self.parts.clear()
        else:
            part = (self.parts.get(row["coin"]) or 0) + row["v"]
            if part:
                self.parts.put(row["coin"], part)
            else:
                self.parts.remove(row["coin"])
            self.balance.update(balance)
            self.stamp.update(row["epoch"])
        yield key, balance


def pipeline(df: DataFrame, job: Job) -> DataFrame:
    """Both operators."""
    first, second = (
        job.key_by(df.where(f"uid = '{uid}'"), "k", uid=uid).process(
            Moving(), schema="k long, balance long"
        )
        for uid in UIDS
    )
    return first.unionByName(second)


def session_in(folder: Path) -> SparkSession:
    """A small Spark, which plans quickly."""
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.executorEnv.PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    return session


def note(folder: Path, ranges: int, progress: EpochProgress) -> None:
    """Write down how an epoch was: its ranges, and how much of its files was merged."""
    with open(folder / "noted", "a") as out:
        out.write(f"{progress.epoch} {ranges} {progress.merged_bytes}\n")


def main(folder: Path, seed: int, tables: str) -> None:
    """Go on where the driver before has ended."""
    session = session_in(folder)
    ledger, sink = Ledger(seed), ParquetSink(folder / "out")
    ranges = int((folder / "ranges").read_text())
    job = Job("moves", folder / "checkpoint", parallelism=ranges, table_home=tables)
    number = newest_epoch(folder)
    while not (folder / "stop").exists():
        number += 1
        wanted = int((folder / "ranges").read_text())
        if wanted != ranges:
            job.rescale(wanted)
            ranges = wanted
        rows = pa.Table.from_pylist([row._asdict() for row in ledger.rows(number)])
        result = job.run_epoch(
            session.createDataFrame(rows),
            lambda df: pipeline(df, job),
            run_key=str(number),
            sink=sink,
            on_epoch=partial(note, folder, ranges),
        )
        assert result.epoch == number, result
        if number % (OFTEN if number < SELDOM else SELDOM) == 0:
            job.savepoint(folder / "savepoints" / f"{number}-{os.getpid()}")
    job.close()
    session.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
