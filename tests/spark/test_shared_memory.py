"""Tables end with their job, their parallelism, their checkpoint and their executor."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pystate as ps

from .conftest import ROOT, wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]


def count(job: Job, spark: SparkSession) -> None:
    df = spark.range(1000).selectExpr("id AS k")
    job.run_epoch(df, lambda df: job.key_by(df, "k", uid="counts").aggregate(n=ps.count()))


def tables_in(folder: Path) -> set[str]:
    # Unlike `rglob`, it takes a folder that is removed meanwhile for an empty one.
    names = (name for _, _, files in os.walk(folder) for name in files)
    return {name[:11] for name in names if name.endswith(".table")}


def test_tables_end_with_their_parallelism_and_their_job(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    one = make_job(parallelism=2, table_home=home)
    count(one, spark)
    assert tables_in(home) == {"00000-00063", "00064-00127"}
    two = make_job(parallelism=3, table_home=home)
    count(two, spark)
    # All rows come from the tables that were there, which stay until the next epoch.
    progress = two.last_progress
    assert progress is not None and (progress.rows_copied, progress.rows_restored) == (1000, 0)
    assert [operator.rows_copied for operator in progress.operators] == [1000]
    assert "1000 rows of state moved" in str(progress)
    assert len(tables_in(home)) == 5
    count(two, spark)
    assert tables_in(home) == {"00000-00042", "00043-00085", "00086-00127"}
    assert two.last_progress is not None and "of state" not in str(two.last_progress)
    # The first job does not have them any more; what it leaves is not what the second one has.
    one.close()
    count(two, spark)
    assert len(tables_in(home)) == 3
    two.close()
    wait_for(lambda: not tables_in(home), "the janitor")
    # It can be used again. All rows are read from the files of four epochs.
    count(two, spark)
    assert len(tables_in(home)) == 3
    progress = two.last_progress
    assert progress is not None and (progress.rows_copied, progress.rows_restored) == (0, 4000)
    assert [operator.rows_restored for operator in progress.operators] == [4000]
    assert "4000 rows of state read in " in str(progress)


def test_tables_end_with_their_checkpoint(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    count(make_job(table_home=home), spark)
    assert tables_in(home)
    shutil.rmtree(tmp_path / "checkpoint")
    wait_for(lambda: not tables_in(home), "the janitor")


def test_tables_end_with_their_session(tmp_path: Path) -> None:
    """One that stops, and the next one in the same process, which is killed."""
    home = tmp_path / "home"
    program = Path(__file__).with_name("stopping_job.py")
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [sys.executable, str(program), str(tmp_path / "checkpoint"), str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": paths, "PYSPARK_PYTHON": sys.executable},
        text=True,
    )
    with process:
        assert process.stdin is not None and process.stdout is not None
        try:
            assert process.stdout.readline() == "computed\n"
            assert tables_in(home) == {"00000-00127"}
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "stopped\n"
            wait_for(lambda: not tables_in(home), "the janitor")
            assert process.poll() is None
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "computed\n"
            assert tables_in(home) == {"00000-00127"}
        finally:
            process.kill()
    wait_for(lambda: not tables_in(home), "the janitor")
