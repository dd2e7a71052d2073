"""A job with its state on disk, several times its memory: a program that is killed and goes on.

``python disk_job.py FOLDER EPOCHS ROWS TEXT`` runs the epochs that are not done yet. Each key has a
text that says TEXT times who wrote it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import pystate as ps
from pystate.spark import Job, ParquetSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["PARALLELISM", "Notes", "counts", "frame", "made", "note_of", "pipeline"]

PARALLELISM, MEMORY = 2, 4 << 20
#: Of all keys before an epoch's own each one of these comes again.
OLD = 13


class Notes(ps.VectorizedFunction):
    """A sum and a text for each key."""

    n = ps.ValueState("long", default=0)
    note = ps.ValueState("string")

    def process(self, keys: ps.KeyBatch, batch: Any, ctx: ps.RuntimeContext) -> Any:
        """Add, and replace the text."""
        self.n.add(keys, batch.column("v"))
        self.note.update_all(keys, batch.column("note"))
        return {"k": batch.column("k"), "n": self.n.values(keys)}


def note_of(key: int, epoch: int, text: int) -> str:
    """The text of a key that an epoch has changed."""
    return f"<{key} {epoch}>" * text


def bounds(epoch: int, rows: int) -> tuple[int, int]:
    """The keys of an epoch, from 1, of which a third is that of the epoch before."""
    first = (epoch - 1) * rows * 2 // 3
    return first, first + rows


def counts(epochs: int, rows: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Each key's sum, and the epoch that changed it last."""
    last = bounds(epochs, rows)[1]
    sums, changed = np.zeros(last, np.int64), np.zeros(last, np.int64)
    for epoch in range(1, epochs + 1):
        first, after = bounds(epoch, rows)
        for some in (slice(first, after), slice(epoch % OLD, first, OLD)):
            sums[some] += epoch
            changed[some] = epoch
    return sums, changed


def frame(session: SparkSession, epoch: int, rows: int, text: int) -> DataFrame:
    """The rows of an epoch; none of its keys comes twice."""
    first, after = bounds(epoch, rows)
    old = session.range(min(epoch % OLD, first), first, OLD)
    note = f"repeat(concat('<', id, ' ', {epoch}, '>'), {text}) AS note"
    return session.range(first, after).union(old).selectExpr("id AS k", f"{epoch}L AS v", note)


def made(folder: Path) -> tuple[Job, ParquetSink]:
    """The job and its sink."""
    job = Job(
        "killed",
        folder / "checkpoint",
        parallelism=PARALLELISM,
        table_home="disk",
        memory_limit_bytes=MEMORY,
    )
    return job, ParquetSink(folder / "out")


def pipeline(df: DataFrame, job: Job) -> DataFrame:
    """The function by key."""
    return job.key_by(df, "k", uid="notes").process(Notes(), schema="k long, n long")


def main(folder: Path, epochs: int, rows: int, text: int) -> None:
    """Run all epochs; those that are done are not run again."""
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", str(PARALLELISM))
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.executorEnv.PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    job, sink = made(folder)
    for epoch in range(1, epochs + 1):
        job.run_epoch(
            frame(session, epoch, rows, text),
            lambda df: pipeline(df, job),
            run_key=str(epoch),
            sink=sink,
        )
    job.close()
    session.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
