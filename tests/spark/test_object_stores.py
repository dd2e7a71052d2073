"""A job whose checkpoint is in an object store, on a real Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.errors import InvalidArgumentError, MissingRequirementError

from .conftest import Source, rows_of, state_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]


@pytest.fixture
def url(spark: SparkSession, object_store: dict[str, str], s3_url: str) -> Iterator[str]:
    """A prefix that Spark's workers can use, too, as ``spark.executorEnv`` would let them."""
    environment = spark.sparkContext.environment
    environment.update(object_store)
    yield s3_url
    for name in object_store:
        del environment[name]


def counting(job: Job) -> Callable[[DataFrame], DataFrame]:
    return lambda df: job.key_by(df, "k", uid="counts").aggregate(n=ps.count())


def test_epochs_a_restart_and_a_savepoint(
    spark: SparkSession, make_job: MakeJob, url: str, tmp_path: Path
) -> None:
    from pystate.spark import ParquetSink

    sink = ParquetSink(tmp_path / "out")
    data = spark.createDataFrame([("a",), ("b",), ("a",)], "k string").coalesce(1)
    job = make_job(checkpoint=url)
    job.run_epoch(data, counting(job), run_key="monday", sink=sink)
    job.close()
    assert job.checkpoint == url

    # In tables of its own: the state comes from the files.
    again = make_job(checkpoint=f"{url}/", table_home="heap")
    assert again.run_epoch(data, counting(again), run_key="monday", sink=sink).already_done
    assert again.run_epoch(data, counting(again), run_key="friday", sink=sink).epoch == 2
    assert state_of(again, "counts") == {"a": 4, "b": 2}
    again.savepoint(f"{url}/savepoints/friday")
    again.close()
    assert ps.verify(url).ok and ps.verify(f"{url}/savepoints/friday").ok
    assert rows_of(spark.read.parquet(str(sink.path)).select("epoch", "k", "n"))[-2:] == [
        (2, "a", 4),
        (2, "b", 2),
    ]

    other = make_job(checkpoint=f"{url}-b", restore=f"{url}/savepoints/friday", parallelism=3)
    other.run_epoch(data, counting(other), run_key="saturday", sink=ParquetSink(tmp_path / "b"))
    assert state_of(other, "counts") == {"a": 6, "b": 3}


def test_what_needs_a_folder_says_so(
    source: Source, make_job: MakeJob, url: str, tmp_path: Path
) -> None:
    from pystate.spark import ParquetSink, foreach_epoch

    job = make_job(checkpoint=url)
    data: Any = source.stream()
    with pytest.raises(InvalidArgumentError, match=r"is no local folder.*pass a sink"):
        job.start(data, counting(job))
    with pytest.raises(InvalidArgumentError, match="this one is no local folder"):
        job.start(data, counting(job), sink=foreach_epoch(print))
    with pytest.raises(MissingRequirementError, match=r"no file system for s3a://.*hadoop-aws"):
        job.start(data, counting(job), sink=ParquetSink(tmp_path / "out"))
