"""Operators without marker rows: ranges that had no rows are told by counting rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

import pystate as ps
from pystate.spark.evaluation import empty_ranges
from pystate.spark.tasks.range_task import OperatorPlan

from .conftest import state_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]
#: Plans are what these are about.
pytestmark = pytest.mark.usefixtures("default_plans")
RANGES = 4


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[OperatorPlan]:
    """The plans without marker rows, of all evaluations."""
    found: list[OperatorPlan] = []
    add = empty_ranges.CountedOperators.add

    def noted(self: empty_ranges.CountedOperators, plan: OperatorPlan) -> OperatorPlan:
        plan = add(self, plan)
        if not plan.markers:
            found.append(plan)
        return plan

    monkeypatch.setattr(empty_ranges.CountedOperators, "add", noted)
    return found


def count(job: Job, df: DataFrame, *, combine: bool = False) -> DataFrame:
    return job.key_by(df, "k", uid="n").aggregate(combine=combine, n=ps.count())


def keys(spark: SparkSession, number: int, times: int = 1) -> DataFrame:
    return spark.range(times).crossJoin(spark.range(number).selectExpr("id AS k")).select("k")


def run(
    job: Job, df: DataFrame, read: Callable[[DataFrame], DataFrame] = lambda out: out
) -> tuple[int, list[Any]]:
    """Run an epoch; returns the number of evaluations, and the rows."""
    result = job.run_epoch(df, lambda df: read(count(job, df)))
    assert job.last_progress is not None
    return job.last_progress.evaluations, sorted(map(tuple, result.dataframe.collect()))


def test_ranges_without_rows_are_as_they_were(
    spark: SparkSession, make_job: MakeJob, plans: list[OperatorPlan]
) -> None:
    job = make_job(parallelism=RANGES)
    assert run(job, keys(spark, 100)) == (1, [(k, 1) for k in range(100)])
    before = state_of(job, "n")
    for epoch, (number, times) in enumerate([(1, 7), (0, 0), (100, 1)]):
        evaluations, rows = run(job, keys(spark, number, times))
        assert evaluations == 1, epoch
        for k in range(number):
            before[k] += times
        assert rows == [(k, before[k]) for k in range(number)]
        assert state_of(job, "n") == before
        assert job.last_progress is not None
        [operator] = job.last_progress.operators
        assert operator.rows_in == number * times
    assert len(plans) == 4


def test_empty_after_a_filter_and_at_another_parallelism(
    spark: SparkSession, make_job: MakeJob, plans: list[OperatorPlan]
) -> None:
    job = make_job(parallelism=RANGES)
    run(job, keys(spark, 50))
    none = keys(spark, 50).where(F.rand(1) > 2)
    for parallelism in (2, 7):
        job.rescale(parallelism)
        assert run(job, none) == (1, [])
        assert state_of(job, "n") == dict.fromkeys(range(50), 1)
    assert run(job, keys(spark, 1)) == (1, [(0, 2)])
    assert len(plans) == 4


@pytest.mark.parametrize("more", [1, pytest.param(-1, marks=pytest.mark.slow)])
def test_another_number_of_rows_does_not_count(
    spark: SparkSession,
    make_job: MakeJob,
    monkeypatch: pytest.MonkeyPatch,
    plans: list[OperatorPlan],
    more: int,
) -> None:
    job = make_job(parallelism=RANGES)
    into = empty_ranges._into

    def other(node: Any) -> int | None:
        sent = into(node)
        return None if sent is None else sent + more

    monkeypatch.setattr(empty_ranges, "_into", other)
    assert run(job, keys(spark, 1)) == (2, [(0, 1)])
    assert len(plans) == 1, "the second evaluation has markers"
    assert run(job, keys(spark, 1)) == (1, [(0, 2)])


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(lambda out: out.persist(), marks=pytest.mark.slow),
        lambda out: out.localCheckpoint(),
        lambda out: out.distinct(),
    ],
    ids=["persisted", "checkpointed", "distinct"],
)
def test_computed_by_something_else_than_the_write(
    spark: SparkSession, make_job: MakeJob, form: Callable[[DataFrame], DataFrame]
) -> None:
    job = make_job(parallelism=RANGES)
    for times in (1, 2):
        evaluations, rows = run(job, keys(spark, 1), form)
        assert rows == [(0, times)]
        assert evaluations <= (2 if times == 1 else 1)


def test_rows_that_were_combined_are_counted(
    spark: SparkSession, make_job: MakeJob, plans: list[OperatorPlan]
) -> None:
    """One row came, for seven."""
    job = make_job(parallelism=RANGES)
    for total in (7, 14):
        frame = keys(spark, 1, 7).coalesce(1)
        result = job.run_epoch(frame, lambda df: count(job, df, combine=True))
        assert [tuple(row) for row in result.dataframe.collect()] == [(0, total)]
        assert job.last_progress is not None and job.last_progress.evaluations == 1
        [operator] = job.last_progress.operators
        assert operator.rows_in == 7
    assert len(plans) == 2


def test_two_operators_over_one_shuffle(
    spark: SparkSession, make_job: MakeJob, plans: list[OperatorPlan]
) -> None:
    """Spark may compute the shuffle once for both."""
    job = make_job(parallelism=RANGES)

    def both(df: DataFrame) -> DataFrame:
        counts = count(job, df)
        more = job.key_by(df, "k", uid="other").aggregate(n=ps.count())
        return counts.union(more)

    for times in (1, 2):
        result = job.run_epoch(keys(spark, 1), both)
        assert [tuple(row) for row in result.dataframe.collect()] == [(0, times)] * 2
        assert job.last_progress is not None and job.last_progress.evaluations == 1
    assert len(plans) == 4


def test_a_join_of_which_ranges_and_sides_have_no_rows(
    spark: SparkSession, make_job: MakeJob, plans: list[OperatorPlan]
) -> None:
    job = make_job(parallelism=RANGES)

    def pipeline(df: DataFrame) -> DataFrame:
        left = job.key_by(df.where("left"), "k", uid="pairs", event_time="t")
        right = job.key_by(df.where("not left"), "k", event_time="t")
        joined = left.interval_join(right, "-10 ms", "10 ms", suffixes=("", "_right"))
        return joined.select("k")

    def epoch(*rows: tuple[int, int, bool]) -> list[Any]:
        frame = spark.createDataFrame(list(rows), "k long, t long, left boolean")
        result = job.run_epoch(frame, pipeline)
        assert job.last_progress is not None and job.last_progress.evaluations == 1
        return sorted(map(tuple, result.dataframe.collect()))

    assert epoch((1, 100, True), (2, 100, True)) == []
    assert epoch((1, 105, False)) == [(1,)]
    assert epoch((2, 101, False), (1, 109, True)) == [(1,), (2,)]
    assert len(plans) == 3


class Alarm(ps.KeyedProcessFunction):
    last = ps.ValueState("long")

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Iterator[Any]:
        ctx.register_event_time_timer(row["t"] + 10)
        yield from ()

    def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> Iterator[Any]:
        yield key, timestamp


def test_a_range_with_a_due_timer_is_announced(
    spark: SparkSession, make_job: MakeJob, plans: list[OperatorPlan]
) -> None:
    job = make_job(parallelism=RANGES)

    def pipeline(df: DataFrame) -> DataFrame:
        keyed = job.key_by(df, "k", uid="alarms", event_time="t")
        return keyed.process(Alarm(), "k long, t long")

    def epoch(*rows: tuple[int, int]) -> list[Any]:
        frame = spark.createDataFrame(list(rows), "k long, t long")
        result = job.run_epoch(frame, pipeline)
        assert job.last_progress is not None and job.last_progress.evaluations == 1
        return sorted(map(tuple, result.dataframe.collect()))

    assert epoch(*((k, 0) for k in range(50))) == []
    assert epoch((99, 100)) == []
    assert len(plans) == 2
    assert epoch((99, 101)) == [(k, 10) for k in range(50)]
    assert len(plans) == 2, "now timers are due, also of ranges without rows"
