"""Jobs that begin with a savepoint, on a real Spark: of runs, and of streams that go on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.errors import CheckpointError, InvalidArgumentError, NoEventTimeError, WrongTypeError

from .conftest import Source, rows_of, state_of, wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]


class Quiet(ps.KeyedProcessFunction):
    """Counts; says what it has once a key was quiet for ten minutes of event time."""

    n = ps.ValueState("long", default=0)

    def process(self, key: str, row: ps.functions.InputRow, ctx: ps.RuntimeContext) -> Any:
        """Count the row."""
        self.n.update(self.n.value() + row.v)
        ctx.register_event_time_timer(1_700_000_000_000 + 300_000 * row.v + 600_000)
        yield key, self.n.value(), False

    def on_timer(self, key: str, timestamp: int, ctx: ps.RuntimeContext) -> Any:
        """Tell."""
        yield key, self.n.value(), True


def quiet(job: Job, uid: str = "quiet") -> Callable[[DataFrame], DataFrame]:
    def pipeline(df: DataFrame) -> DataFrame:
        rows = df.selectExpr("k", "v", "timestamp_seconds(1700000000 + 300 * v) AS at")
        keyed = job.key_by(rows, "k", uid=uid, event_time="at", allowed_delay="0 seconds")
        return keyed.process(Quiet(), schema="k string, n long, late boolean")

    return pipeline


def results(job: Job, spark: Any, after: int = 0) -> list[tuple[Any, ...]]:
    """All rows that a job has published since an epoch."""
    frame = spark.read.parquet(f"{job.checkpoint}/results").where(f"epoch > {after}")
    return rows_of(frame.select("k", "n", "late"))


def test_a_stream_goes_on_from_a_savepoint_of_a_running_job(
    source: Source, make_job: MakeJob, tmp_path: Path, spark: Any
) -> None:
    """State, timers, watermark and position; the job that it was taken of runs all the while."""
    job = make_job(retained=1)
    for number in range(2):
        source.add(f"a,{number}", f"b,{number}", f"key {number},{number}")
    query = job.start(source.stream(), quiet(job), trigger={"processingTime": "0 seconds"})
    wait_for(lambda: job.latest_epoch() == 2, "two epochs")
    first = job.savepoint(tmp_path / "first")
    source.add("a,3", "c,3")
    wait_for(lambda: job.latest_epoch() == 3, "the third epoch")
    second = job.savepoint(tmp_path / "second", previous=tmp_path / "first")
    assert (first.epoch, second.epoch) == (2, 3)
    moved = tmp_path / "moved"
    shutil.copytree(tmp_path / "first", moved)
    others = [
        make_job("other", checkpoint=tmp_path / "c1", restore=moved, parallelism=3),
        make_job(
            checkpoint=tmp_path / "c2",
            restore=tmp_path / "second",
            uid_map={"quiet": "renamed"},
            claim=True,
        ),
    ]
    source.add("a,9", "d,9")
    source.add("b,20")
    wait_for(lambda: job.latest_epoch() == 5, "all epochs")
    uids = ("quiet", "renamed")
    for other, uid in zip(others, uids, strict=True):
        # Beside the first query, and with a restart: the second start begins with nothing.
        for trigger in ({"availableNow": True}, {"availableNow": True}):
            started = other.start(source.stream(), quiet(other, uid), trigger=trigger)
            started.awaitTermination()
            assert str(started.id) != str(query.id)
        assert other.latest_epoch() == 5
        assert state_of(other, uid) == state_of(job, "quiet")
    query.stop()
    for other, begun in zip(others, (2, 3), strict=True):
        assert results(other, spark) == results(job, spark, after=begun)
    fired = [row for row in results(job, spark) if row[2]]
    assert len(fired) >= 5
    assert (moved / "savepoint.json").exists() and not (tmp_path / "second" / "state").exists()


def test_runs_go_on_from_a_savepoint(spark: Any, make_job: MakeJob, tmp_path: Path) -> None:
    def counting(job: Job) -> Callable[[DataFrame], DataFrame]:
        return lambda df: job.key_by(df, "k", uid="counts").aggregate(n=ps.count())

    data = spark.createDataFrame([("a",), ("b",), ("a",)], "k string")
    job = make_job()
    job.run_epoch(data, counting(job), run_key="monday")
    job.close()
    ps.savepoint(job.checkpoint, tmp_path / "savepoint")
    job.run_epoch(data, counting(job), run_key="tuesday")
    other = make_job(checkpoint=tmp_path / "other", restore=tmp_path / "savepoint", parallelism=5)
    before = other.run_epoch(data, counting(other), run_key="monday")
    assert (before.epoch, before.already_done) == (1, True)
    with pytest.raises(InvalidArgumentError, match="whose savepoint this job began with"):
        before.dataframe.collect()
    other.run_epoch(data, counting(other), run_key="tuesday")
    assert state_of(other, "counts") == state_of(job, "counts") == {"a": 4, "b": 2}


def test_a_stream_stops_with_a_savepoint(
    source: Source, make_job: MakeJob, tmp_path: Path, spark: Any
) -> None:
    """Whoever goes on computes what comes after it."""
    job = make_job()
    source.add("a,0", "b,1")
    query = job.start(source.stream(), quiet(job), trigger={"processingTime": "0 seconds"})
    wait_for(lambda: job.latest_epoch() == 1, "the first epoch")
    taken = job.stop_with_savepoint(tmp_path / "stopped")
    assert not query.isActive and query.exception() is None and job.failure is None
    assert taken.epoch == job.latest_epoch() == 1
    source.add("a,2", "c,2")
    other = make_job("other", checkpoint=tmp_path / "other", restore=tmp_path / "stopped")
    for again in (job, other):
        again.start(
            source.stream(), quiet(again), trigger={"availableNow": True}
        ).awaitTermination()
    assert other.latest_epoch() == job.latest_epoch() == 2
    assert state_of(other, "quiet") == state_of(job, "quiet") == {"a": 2, "b": 1, "c": 2}
    assert results(other, spark) == results(job, spark, after=1)


def test_a_stream_is_drained_before_the_savepoint_that_ends_it(
    source: Source, make_job: MakeJob, tmp_path: Path, spark: Any
) -> None:
    """Rows that arrive during the drain are for whoever goes on."""
    job = make_job()
    evaluated: list[DataFrame] = []

    def pipeline(df: DataFrame) -> DataFrame:
        evaluated.append(df)
        if len(evaluated) == 2:
            source.add("a,3")
            offsets = Path(job.checkpoint, "spark", "offsets", "1")
            wait_for(offsets.exists, "Spark to begin the next batch")
        return quiet(job)(df)

    source.add("a,0", "b,1")
    query = job.start(source.stream(), pipeline, trigger={"processingTime": "0 seconds"})
    wait_for(lambda: job.latest_epoch() == 1, "the first epoch")
    taken = job.stop_with_savepoint(tmp_path / "drained", drain=True)
    assert not query.isActive and taken.epoch == job.latest_epoch() == len(evaluated) == 2
    assert [row for row in results(job, spark) if row[2]] == [("a", 0, True), ("b", 1, True)]
    # Whoever goes on has the timers behind him.
    other = make_job("other", checkpoint=tmp_path / "other", restore=tmp_path / "drained")
    started = other.start(source.stream(), quiet(other), trigger={"availableNow": True})
    started.awaitTermination()
    assert results(other, spark) == [("a", 3, False)]


def test_a_stream_goes_on_where_its_last_savepoint_fails(
    source: Source, make_job: MakeJob, tmp_path: Path
) -> None:
    job = make_job()
    with pytest.raises(InvalidArgumentError, match="has started no query"):
        job.stop_with_savepoint(tmp_path / "none")

    def counting(df: DataFrame) -> DataFrame:
        return job.key_by(df, "k", uid="counts").aggregate(n=ps.count())

    source.add("a,0")
    query = job.start(source.stream(), counting, trigger={"processingTime": "0 seconds"})
    wait_for(lambda: job.latest_epoch() == 1, "the first epoch")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    for destination, options, error, words in (
        ("full", {}, InvalidArgumentError, "is not empty"),
        ("here", {"previous": tmp_path / "full"}, InvalidArgumentError, "is not a savepoint"),
        ("there", {"drain": True}, NoEventTimeError, "no operator of the pipeline has event time"),
    ):
        with pytest.raises(error, match=words):
            job.stop_with_savepoint(tmp_path / destination, **options)
        assert query.isActive
    source.add("a,1")
    wait_for(lambda: job.latest_epoch() == 2, "the next epoch")
    assert job.stop_with_savepoint(tmp_path / "last").epoch == 2
    assert job.stop_with_savepoint(tmp_path / "later", drain=False).epoch == 2  # stopped already


def test_a_failed_stream_is_not_stopped_with_a_savepoint(
    source: Source, make_job: MakeJob, tmp_path: Path
) -> None:
    job = make_job()

    def failing(df: DataFrame) -> DataFrame:
        raise KeyError("a mistake")

    source.add("a,0")
    query = job.start(source.stream(), failing, trigger={"processingTime": "0 seconds"})
    wait_for(lambda: not query.isActive, "the failure")
    with pytest.raises(CheckpointError, match="the query has failed"):
        job.stop_with_savepoint(tmp_path / "none")


def test_what_restore_takes(make_job: MakeJob, tmp_path: Path) -> None:
    for options, error in (
        ({"claim": True}, "pass its folder as restore"),
        ({"uid_map": {"a": "b"}}, "pass its folder as restore"),
        ({"restore": "latest"}, r"belongs to start"),
        ({"restore": 5}, "restore is the path of a folder"),
        ({"restore": tmp_path, "claim": "yes"}, "claim"),
    ):
        with pytest.raises((InvalidArgumentError, WrongTypeError), match=error):
            make_job(**options)
    with pytest.raises(WrongTypeError, match="uid_map is a mapping"):
        make_job(restore=tmp_path, uid_map=["a"])
