"""A job on two executors, one of which dies after the operator's stage; run as a program.

``python cluster_job.py FOLDER``: exits with 0 if the epoch was evaluated twice and counted once,
and later changes of the parallelism kept all state.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import cloudpickle

import pystate as ps
from pystate.spark import EpochProgress, Job
from pystate.tables.host import ancestor_named
from tests.spark.cluster import cluster_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARALLELISM = 4


def kill_executor_once(flag: Path) -> object:
    """The stage after the operator's kills the executor that it runs on, once."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            yield from batches
            return
        executor = ancestor_named("java")
        assert executor is not None
        os.kill(executor, signal.SIGKILL)

    return run


def main(folder: Path) -> int:
    """Run two epochs; the first executor that begins the last stage of the second one dies."""
    session = cluster_session(folder, cores=1)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    progress: list[EpochProgress] = []
    job = Job("cluster", checkpoint=folder / "checkpoint", parallelism=PARALLELISM)
    kill = kill_executor_once(folder / "flag")

    def pipeline(df: DataFrame) -> DataFrame:
        counts = job.key_by(df, "k", uid="counts").aggregate(n=ps.count())
        if job.latest_epoch() is None:
            return counts
        # Behind another shuffle: the operator's output is gone with its executor.
        return counts.repartition(2).mapInArrow(kill, "k long, n long")  # type: ignore[arg-type]

    frame = session.range(10_000).selectExpr("id % 100 AS k")
    for _ in range(2):
        result = job.run_epoch(frame, pipeline, on_epoch=progress.append)
    rows = sorted(tuple(row) for row in result.dataframe.collect())
    state = job.read_state("counts").to_pylist()
    print([p.evaluations for p in progress], rows[:3], len(rows))
    assert (folder / "flag").exists()
    assert [p.evaluations for p in progress] == [1, 2]
    assert rows == [(k, 200) for k in range(100)]
    assert sorted((row["k"], row["n"]) for row in state) == rows
    # Ranges take what their executor has from its memory, and the rest from files.
    for epochs, parallelism in ((3, 8), (4, 8), (5, 3)):
        job.rescale(parallelism)
        job.run_epoch(frame, pipeline, on_epoch=progress.append)
        moved = progress[-1]
        print(parallelism, moved.rows_copied, moved.rows_restored)
        assert moved.operators[0].ranges == parallelism
        assert moved.rows_copied + moved.rows_restored >= 100 or epochs == 4
        state = job.read_state("counts").to_pylist()
        assert sorted((row["k"], row["n"]) for row in state) == [
            (k, 100 * epochs) for k in range(100)
        ]
    job.close()
    session.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
