"""Queries that get or lose a heartbeat, as far as that needs no Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from pystate.spark.epochs.heartbeat import drop_other_sources
from tests.work import Work, a_run_and_a_stream, spark_files


@pytest.mark.parametrize("published", [False, True])
def test_runs_are_no_batches_of_the_query(tmp_path: Path, published: bool) -> None:
    """A query whose checkpoint has epochs of runs alone has published nothing."""
    job = Work(tmp_path / "job")
    if published:
        a_run_and_a_stream(job)
    else:
        spark_files(job.some(1).root, "q", 1)
    drop_other_sources(job.storage, True)
    assert (job.root / "spark").exists() == published
