"""A job that is made again while a query of the one before runs, as cells of a notebook do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.errors import CheckpointError, InUseError
from pystate.spark.operators.pipeline import for_job

from .conftest import Source, state_of, wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]
job: Job


def by_name(df: DataFrame) -> DataFrame:
    """The pipeline of a cell, which knows its job by a name of the notebook."""
    return job.key_by(df, "k", uid="counts").aggregate(n=ps.count())


def given(df: DataFrame, job: Job) -> DataFrame:
    """The pipeline that does not care."""
    return job.key_by(df, "k", uid="counts").aggregate(n=ps.count())


def epochs(job: Job) -> int:
    return job.latest_epoch() or 0


@pytest.mark.parametrize("pipeline", [by_name, pytest.param(given, marks=pytest.mark.slow)])
def test_the_old_query_goes_on_until_it_is_replaced(
    spark: SparkSession, make_job: MakeJob, source: Source, pipeline: Any
) -> None:
    global job
    first = job = make_job()
    source.add("a,1")
    query = first.start(source.stream(), pipeline, query_name="old")
    wait_for(lambda: epochs(first) == 1, "the first epoch")

    second = job = make_job()  # the cell runs again
    assert query.isActive
    source.add("a,2")
    wait_for(lambda: epochs(second) == 2 or not query.isActive, "the second epoch")
    assert query.isActive and first.failure is None

    for use in (
        lambda: second.start(source.stream(), pipeline),
        lambda: second.run_epoch(spark.createDataFrame([("b", 1)], "k string, v long"), pipeline),
    ):
        with pytest.raises(
            InUseError, match=r"in use: the query 'old'.*another Job\('test'\)"
        ) as e:
            use()
        assert "replace=True" in str(e.value) and second.checkpoint in str(e.value)
    with pytest.raises(InUseError, match="that this job has started on it"):
        first.start(source.stream(), pipeline)
    assert query.isActive

    third = job = make_job(replace=True)
    assert not query.isActive and (query.exception(), first.failure) == (None, None)
    source.add("a,3")
    newer = third.start(source.stream(), pipeline)
    wait_for(lambda: epochs(third) == 3, "the third epoch")
    newest = third.start(source.stream(), pipeline)  # the cell that starts it runs again
    assert not newer.isActive and newest.isActive
    source.add("a,4")
    newest.processAllAvailable()
    newest.stop()
    assert state_of(third, "counts") == {"a": 4}
    # What has ended is in nobody's way.
    last = make_job()
    last.start(source.stream(), given, trigger={"availableNow": True}).awaitTermination()


def test_a_job_of_another_checkpoint_is_refused_in_an_epoch(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    other = make_job("other", checkpoint=tmp_path / "other")
    frame = spark.createDataFrame([("b", 1)], "k string, v long")
    with pytest.raises(CheckpointError, match=r"'other'.*in an epoch of job 'test'.*df, job"):
        make_job().run_epoch(frame, lambda df: given(df, other))
    with pytest.raises(CheckpointError, match="inside a pipeline only"):
        given(frame, other)


def test_who_is_given_the_job() -> None:
    class Pipelines:
        def method(self, df: Any, job: Any) -> Any:
            return df, job

        def __call__(self, df: Any) -> Any:
            return df

    def keyword(df: Any, *, scale: int = 2, job: Any = None) -> Any:
        return df, job

    def options(df: Any, scale: int = 2) -> Any:
        return df, scale

    def anything(*arguments: Any) -> Any:
        return arguments

    def second(df: Any, job_: Any, /) -> Any:
        return df, job_

    def before(job: Any, df: Any) -> Any:
        return df, job

    def alone(job: Any) -> Any:
        return job

    the_job: Any = "the job"
    for pipeline in (Pipelines().method, keyword, second):
        assert for_job(pipeline, the_job)("rows") == ("rows", the_job)
    assert for_job(alone, the_job)("rows") == "rows"
    assert for_job(options, the_job)("rows") == ("rows", 2)
    assert for_job(anything, the_job)("rows") == ("rows",)
    assert for_job(Pipelines(), the_job)("rows") == "rows"
    assert for_job(partial(before, "bound"), the_job)("rows") == ("rows", "bound")
    assert for_job(str, the_job)("rows") == "rows"
