"""A job with many ranges on two executors, which merge its files; one dies. Run as a program.

``python merging_job.py FOLDER``: exits with 0 if executors have merged in tasks of their own group,
one of them was killed within a merge, manifests name what they have merged, and no state is lost.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext, cloudpickle

import pystate as ps
import pystate.epochs.merges
import pystate.spark.epochs.file_jobs
from pystate.spark import EpochProgress, Job
from pystate.spark.epochs.file_jobs import POOL, _MergeAll
from pystate.tables.host import ancestor_named
from tests.spark.cluster import cluster_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARALLELISM = 12
KEYS = 600
GROUP, POOL_NAME = "spark.jobGroup.id", "spark.scheduler.pool"


class Deadly(_MergeAll):
    """Notes each merge; the first executor that has done one dies before anybody learns of it."""

    def __call__(self, lists: Iterator[Any]) -> Iterator[Any]:
        folder = Path(self.storage.uri).parent
        task = TaskContext.get()
        assert task is not None
        assert task.getLocalProperty(POOL_NAME) == POOL
        assert ", merges " in str(task.getLocalProperty(GROUP))
        executor = ancestor_named("java")
        assert executor is not None
        for place, result in super().__call__(lists):
            try:
                os.close(os.open(folder / "killed", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                name = result if isinstance(result, str) else result.path
                with open(folder / "merged", "a") as out:
                    out.write(f"{executor} {name}\n")
                yield place, result
            else:
                os.kill(executor, signal.SIGKILL)


def main(folder: Path) -> int:
    """Run epochs until ranges have a base, some beside merges, and check the state."""
    pystate.spark.epochs.file_jobs._MergeAll = Deadly  # type: ignore[misc]
    pystate.epochs.merges._MANY = 4
    pystate.epochs.merges._PER_TASK = 4
    session = cluster_session(folder, cores=4)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    progress: list[EpochProgress] = []
    job = Job("merging", checkpoint=folder / "checkpoint", parallelism=PARALLELISM)

    def pipeline(df: DataFrame) -> DataFrame:
        return job.key_by(df, "k", uid="counts").aggregate(n=ps.count())

    frame = session.range(KEYS).selectExpr("id AS k")
    epochs = 6
    for number in range(1, epochs + 1):
        job.run_epoch(frame, pipeline, on_epoch=progress.append)
        coordinator = job._epochs.coordinator
        assert coordinator is not None and coordinator.head is not None
        if number == 5:
            # Epoch 4 has planned the merges, and epoch 5 ran beside them.
            coordinator.maintain()
    lines = (folder / "merged").read_text().split("\n")[:-1]
    executors, paths = zip(*(line.split(" ", 1) for line in lines), strict=True)
    print([p.evaluations for p in progress], len(lines), set(executors))
    assert (folder / "killed").exists()
    assert set(map(int, executors)).isdisjoint({os.getpid(), ancestor_named("java")})
    # A task that runs again finds what was finished: it notes those files once more.
    assert len(set(paths)) >= 4 and set(paths) <= coordinator.head.paths, paths
    state = job.read_state("counts").to_pylist()
    assert sorted((row["k"], row["n"]) for row in state) == [(k, epochs) for k in range(KEYS)]
    job.close()
    session.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
