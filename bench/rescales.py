"""The first epoch after a change of parallelism, beside an ordinary one: 4 -> 8 -> 3 ranges.

``python -m bench.rescales --keys 10000000 --rows 100000`` fills the state, lets some epochs pass,
and changes the parallelism of the running job twice. It prints each epoch's time, what was read
from files and copied between tables in memory, and the time of the slowest range's table. With
``--cold`` the tables are discarded with each change, as after a loss of the host, so that all that
moves is read from files.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pystate as ps
from bench.spark_jobs import session
from pystate.spark import EpochProgress, Job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FROM = 4
TO = (8, 3)


def pipeline(df: DataFrame, job: Job) -> DataFrame:
    """Count and add up."""
    return job.key_by(df, "k", uid="counts").aggregate(n=ps.count(), total=ps.sum("v"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--rows", type=int, default=100_000, help="rows of an epoch")
    parser.add_argument("--epochs", type=int, default=7, help="between two changes")
    parser.add_argument("--cold", action="store_true", help="without tables in memory")
    given = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="pystate-rescales-"))
    made: list[EpochProgress] = []

    def show(epoch: EpochProgress, what: str) -> None:
        print(
            f"{what:24} {epoch.total_ms:8.0f} ms, slowest table {epoch.attach_ms:7.0f} ms, "
            f"{epoch.rows_restored:10,} rows read, {epoch.rows_copied:10,} copied, "
            f"{epoch.rows_changed:10,} changed",
            flush=True,
        )

    try:
        with session(folder) as spark:
            parallelism, job = FROM, None
            for number, wanted in enumerate((FROM, *TO)):
                if job is None or given.cold:
                    if job is not None:
                        job.close()
                    job = Job("rescales", folder / "checkpoint", parallelism=wanted)
                elif wanted != parallelism:
                    job.rescale(wanted)
                parallelism = wanted
                times = []
                for epoch in range(given.epochs):
                    rows = given.keys if not made else given.rows
                    step = 1 if not made else 7919
                    first = len(made) * given.rows
                    frame = spark.range(rows).selectExpr(
                        f"(id * {step} + {first}) % {given.keys} AS k", "id AS v"
                    )
                    job.run_epoch(frame, pipeline, on_epoch=made.append)
                    what = "then" if epoch else f"first with {wanted} ranges" if number else "fill"
                    show(made[-1], what)
                    if epoch > 1:
                        times.append(made[-1].total_ms)
                print(
                    f"{wanted} ranges, then: median {statistics.median(times):.0f} ms", flush=True
                )
            assert job is not None
            job.close()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
