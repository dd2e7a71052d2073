"""Tables end with their job, their parallelism, their checkpoint and their executor.

The end of a session, and of a driver that is killed, is in test_driver_process.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pystate as ps

from .conftest import wait_for
from .processes import tables_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]


def count(job: Job, spark: SparkSession) -> None:
    df = spark.range(1000).selectExpr("id AS k")
    job.run_epoch(df, lambda df: job.key_by(df, "k", uid="counts").aggregate(n=ps.count()))


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
