"""What Spark shows of a job: descriptions and groups, names in plans, progress and metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.listener import StreamingQueryListener

import pystate as ps

from .conftest import Source, wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]


def counting(df: DataFrame, job: Job) -> DataFrame:
    df.count()
    return job.key_by(df, "k", uid="the counts").aggregate(n=ps.count())


def jobs_of(spark: SparkSession) -> list[Any]:
    """The jobs that Spark remembers, oldest first; it forgets those before the last thousand."""
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)  # type: ignore[union-attr]
    return sorted((jobs.apply(i) for i in range(jobs.size())), key=lambda job: job.jobId())


def newest(spark: SparkSession) -> int:
    """The number of the newest job; -1 without one."""
    return max((job.jobId() for job in jobs_of(spark)), default=-1)


def shown(spark: SparkSession, after: int) -> list[tuple[str | None, str | None]]:
    """The descriptions and groups of all jobs after one that have any, oldest first.

    What reads a run's result has none.
    """
    found = []
    for job in jobs_of(spark):
        if job.jobId() > after:
            texts = job.description(), job.jobGroup()
            found.append(tuple(t.get() if t.isDefined() else None for t in texts))
    return [texts for texts in found if any(texts)]  # type: ignore[misc]


def test_a_runs_jobs_are_described(spark: SparkSession, make_job: MakeJob) -> None:
    context = spark.sparkContext
    frame = spark.createDataFrame([("a", 1)], "k string, v long")
    job, before = make_job("flights"), newest(spark)
    plans = []

    def pipeline(df: DataFrame, job: Job) -> DataFrame:
        out = counting(df, job)
        plans.append(out._jdf.queryExecution().toString())
        return out

    job.run_epoch(frame, pipeline, run_key="may")
    found = shown(spark, before)
    assert {group for _, group in found} == {"pystate flights, epoch 1"}
    assert found[0][0] == "flights: epoch 1, run 'may'"
    assert found[-1][0] == "flights: epoch 1, run 'may': the counts"
    assert "MapInArrow the_counts(" in plans[0]
    assert context.getLocalProperty("spark.jobGroup.id") is None
    assert context.getLocalProperty("spark.job.description") is None

    before = newest(spark)
    context.setJobGroup("mine", "my <i>words</i>", True)
    try:
        job.run_epoch(frame, counting)
        assert context.getLocalProperty("spark.jobGroup.id") == "mine"
        assert context.getLocalProperty("spark.job.description") == "my <i>words</i>"
    finally:
        for name in ("jobGroup.id", "job.description", "job.interruptOnCancel"):
            context.setLocalProperty(f"spark.{name}", None)  # type: ignore[arg-type]
    found = shown(spark, before)
    assert {group for _, group in found} == {"mine"}
    # Last comes what reads the result.
    assert found[-2][0] == "my <i>words</i> - flights: epoch 2: the counts"


class Listener(StreamingQueryListener):
    """Keeps what a dashboard would be told."""

    def __init__(self) -> None:
        self.metrics: list[Any] = []

    def onQueryStarted(self, event: Any) -> None: ...  # noqa: N802

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self.metrics.append(event.progress.observedMetrics)

    def onQueryTerminated(self, event: Any) -> None: ...  # noqa: N802


@pytest.mark.usefixtures("default_plans")
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_streams_jobs_and_progress_tell_of_state(
    spark: SparkSession, make_job: MakeJob, source: Source, shuffled: bool
) -> None:
    stream = source.stream()
    if shuffled:
        # Spark then plans its batches adaptively.
        stream = stream.repartition(3)
    source.add("a,1", "b,2")
    source.add("b,3")
    job, before, listener = make_job("flights"), newest(spark), Listener()
    spark.streams.addListener(listener)
    try:
        query = job.start(
            stream,
            counting,
            query_name="the query",
            trigger={"availableNow": True},
            observe="state",
        )
        query.awaitTermination()
        wait_for(lambda: len(listener.metrics) == 2, "the listener")
    finally:
        spark.streams.removeListener(listener)
    found = shown(spark, before)
    assert {group for _, group in found} == {str(query.runId)}
    description = str(found[-1][0])
    assert description.startswith("the query\n")
    assert description.endswith("\nflights: epoch 2: the counts")

    first, second = query.recentProgress
    assert [p.stateOperators[0].numRowsUpdated for p in (first, second)] == [2, 1]
    last = query.lastProgress
    assert last is not None and last.batchId == 1
    [state] = last.stateOperators
    progress = job.last_progress
    assert progress is not None and progress.state_bytes > 0
    assert (state.operatorName, state.numRowsTotal) == ("the counts", 2)
    assert state.memoryUsedBytes == progress.state_bytes

    told = [metrics["state"].asDict() for metrics in listener.metrics]
    assert [row["rows_in"] for row in told] == [2, 1]
    assert told[-1] == {
        "epoch": 2,
        "rows_in": 1,
        "rows_out": 1,
        "rows_changed": 1,
        "keys": 2,
        "state_bytes": progress.state_bytes,
        "checkpoint_bytes": progress.checkpoint_bytes,
        "watermark_ms": None,
        "total_ms": int(progress.total_ms),
    }
