"""What is published comes from the evaluation whose state is kept, however the output is read.

The function draws another stamp in each evaluation and keeps it: every published stamp must be in
the state.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import pystate as ps
from pystate.errors import EvaluationError, FencedError
from pystate.spark import ParquetSink
from pystate.spark.tasks.parquet_file import part_name

from .conftest import state_of, wait_for

if TYPE_CHECKING:
    from pyspark.core.rdd import RDD
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]
KEYS = 60


class Stamp(ps.KeyedProcessFunction):
    stamp = ps.ValueState("string")

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
        stamp = uuid.uuid4().hex
        self.stamp.update(stamp)
        yield key, stamp


def stamped(job: Job, df: DataFrame, uid: str = "stamps") -> DataFrame:
    return job.key_by(df, "k", uid=uid).process(Stamp(), "k long, stamp string")


def keys(spark: SparkSession) -> DataFrame:
    return spark.range(KEYS).selectExpr("id AS k")


def check(job: Job, spark: SparkSession, read: Callable[[DataFrame], DataFrame]) -> int:
    """Run an epoch; returns the number of its evaluations."""
    return check_all(job, spark, {"stamps": read})


def check_all(
    job: Job, spark: SparkSession, forms: Mapping[str, Callable[[DataFrame], DataFrame]]
) -> int:
    """Run an epoch in which each form reads an operator of its own, for an output of its own."""

    def pipeline(df: DataFrame) -> dict[str, DataFrame]:
        return {form: read(stamped(job, df, form)) for form, read in forms.items()}

    result = job.run_epoch(keys(spark), pipeline)
    for form in forms:
        state = state_of(job, form)
        assert len(state) == KEYS
        rows = result.dataframes[form].collect()
        assert rows and all(state[row.k] == row.stamp for row in rows), form
    checkpoint = Path(job.checkpoint)
    assert list((checkpoint / "evaluations").iterdir()) == []
    assert not list((checkpoint / "outputs").rglob("_staging/*"))
    assert job.last_progress is not None
    return job.last_progress.evaluations


@contextmanager
def nothing_held(spark: SparkSession) -> Iterator[None]:
    """An epoch keeps nothing in Spark's memory, and leaves there what is somebody else's."""
    context = spark.sparkContext._jsc
    before = set(context.getPersistentRDDs().keySet())
    mine = keys(spark).persist()
    assert mine.count() == KEYS
    own = set(context.getPersistentRDDs().keySet()) - before
    yield
    assert set(context.getPersistentRDDs().keySet()) - before == own
    assert not spark._jsparkSession.sharedState().cacheManager().isEmpty()
    mine.unpersist()


def count_and_limit(out: DataFrame) -> DataFrame:
    assert out.count() == KEYS
    return out.limit(5)


def show_and_all(out: DataFrame) -> DataFrame:
    out.show(1)
    return out


def look_and_all(out: DataFrame) -> DataFrame:
    assert not out.isEmpty() and out.first() is not None and len(out.take(3)) == 3
    return out


def persisted(out: DataFrame) -> DataFrame:
    assert out.persist().count() == KEYS
    return out.where("k % 2 = 0").union(out.limit(3))


def checkpointed(out: DataFrame) -> DataFrame:
    out = out.localCheckpoint()
    assert not out.isEmpty()
    return out.union(out)


def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


REPEATED = {
    "look": look_and_all,
    "count and limit": count_and_limit,
    "limit": lambda out: out.limit(5),
    "show": show_and_all,
    "union with a part": lambda out: out.union(out.limit(3)),
    "sort": lambda out: out.orderBy("k"),
    "ranges": lambda out: out.repartitionByRange(3, "k"),
    "broadcast": lambda out: out.join(F.broadcast(out.select("k")), "k"),
    "cross join": lambda out: out.crossJoin(out.selectExpr("k AS other")).where("other < 2"),
    "two filters": lambda out: out.where("k % 2 = 0").union(out.where("k % 2 = 1")),
}
AT_ONCE = {
    "all": lambda out: out,
    "persisted": persisted,
    "coalesced": lambda out: out.coalesce(1),
    "sampled": lambda out: out.sample(0.9, seed=1),
    "distinct": lambda out: out.distinct(),
    "window": lambda out: out.selectExpr(
        "k", "stamp", "row_number() OVER (PARTITION BY k ORDER BY stamp) AS n"
    ),
    "barrier": lambda out: out.mapInArrow(pass_on, out.schema, barrier=True),
    "anti-join": lambda out: out.join(keys(out.sparkSession).where("k < 9"), "k", "left_anti"),
    "semi-join": lambda out: out.join(keys(out.sparkSession).where("k < 9"), "k", "left_semi"),
}


#: By what is noticed and materialised: a part, a sample, two branches, a join with itself.
TELLING = ("limit", "sort", "two filters", "broadcast")


@pytest.mark.parametrize(
    "form",
    [form if form in TELLING else pytest.param(form, marks=pytest.mark.slow) for form in REPEATED],
)
def test_what_is_read_twice_or_in_part_is_materialised(
    spark: SparkSession, make_job: MakeJob, form: str
) -> None:
    job = make_job()
    with nothing_held(spark):
        # The first epoch finds out; the second one knows.
        assert [check(job, spark, REPEATED[form]) for _ in range(2)] == [2, 1]


def test_what_is_read_once_is_evaluated_once(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    outs = []

    def kept(out: DataFrame) -> DataFrame:
        outs.append(out)
        return out

    job = make_job()
    with nothing_held(spark):
        assert check_all(job, spark, {**AT_ONCE, "all": kept}) == 1
    # The user's own checkpoint is held as long as the user has it.
    other = make_job(checkpoint=tmp_path / "other")
    assert check(other, spark, checkpointed) == 1
    # What an operator has returned cannot be used after its epoch.
    before = state_of(job, "all")
    with pytest.raises(Exception, match="this evaluation has ended"):
        outs[0].collect()
    assert state_of(job, "all") == before


@pytest.mark.usefixtures("default_plans")
def test_a_join_with_a_side_that_is_empty_today(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job()

    def read(out: DataFrame) -> DataFrame:
        return out.join(spark.range(0).selectExpr("id AS k").localCheckpoint(), "k")

    result = job.run_epoch(keys(spark), lambda df: read(stamped(job, df)))
    assert result.dataframe.count() == 0 and len(state_of(job, "stamps")) == KEYS
    assert job.last_progress is not None and job.last_progress.evaluations == 2


def test_a_second_action_of_the_pipeline_fails_rather_than_to_see_other_rows(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    job = make_job()
    seen: list[Any] = []

    def read(out: DataFrame) -> DataFrame:
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        out.write.parquet(f"file://{tmp_path}/copy")
        try:
            seen.append({row.k: row.stamp for row in out.collect()})
        except Exception as error:
            seen.append(str(error))
        return out.sparkSession.read.parquet(f"file://{tmp_path}/copy")

    assert check(job, spark, read) == 2
    assert "was begun in stage" in seen[0]
    assert seen[1] == state_of(job, "stamps")


def test_a_barrier_stage_that_fails_runs_again_from_the_base(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    """All its tasks do, under the same stage and as first attempts."""
    job, flag = make_job(), tmp_path / "failed"

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        if not flag.exists():
            flag.touch()
            raise OSError("a disk that fails once")

    def read(out: DataFrame) -> DataFrame:
        return out.mapInArrow(fail_once, out.schema, barrier=True)

    assert check(job, spark, read) == 2


def test_two_drivers_at_once(spark: SparkSession, make_job: MakeJob, tmp_path: Path) -> None:
    """Each takes the checkpoint over again and again: every run counts once, or is refused."""
    sink = ParquetSink(tmp_path / "out")
    going_on = {"a", "b"}

    def drive(run_keys: Sequence[str]) -> None:
        driver = run_keys[0][0]
        for run_key in run_keys:
            before = sink.epochs()
            while not ran(make_job(), spark, run_key, sink):
                # The one that took over publishes; but it is refused too where this one's manifest
                # came first, and then both would wait for each other.
                going_on.discard(driver)
                wait_for(
                    lambda before=before: sink.epochs() != before or not going_on,
                    "the other driver",
                )
                going_on.add(driver)
                before = sink.epochs()
        going_on.discard(driver)

    names = [[f"{driver}-{run}" for run in range(2)] for driver in "ab"]
    with ThreadPoolExecutor() as threads:
        list(threads.map(drive, names))
    assert state_of(make_job(), "counts") == dict.fromkeys(range(KEYS), 4)
    rows = sink.read(spark).collect()
    wanted = [(n, n) for n in range(1, 5) for _ in range(KEYS)]
    assert sorted((row.epoch, row.n) for row in rows) == wanted


def ran(job: Job, spark: SparkSession, run_key: str, sink: ParquetSink) -> bool:
    """Run an epoch; False where another driver took over."""
    with job:
        try:
            job.run_epoch(
                keys(spark),
                lambda df: job.key_by(df, "k", uid="counts").aggregate(n=ps.count()),
                run_key=run_key,
                sink=sink,
            )
        except FencedError:
            return False
    return True


def test_operators_that_follow_each_other(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job()

    def read(out: DataFrame) -> DataFrame:
        return look_and_all(stamped(job, out.select("k"), "second")).select("k", "stamp")

    result = job.run_epoch(keys(spark), lambda df: read(stamped(job, df)))
    state = state_of(job, "second")
    rows = result.dataframe.collect()
    assert len(rows) == KEYS and all(state[row.k] == row.stamp for row in rows)
    assert job.last_progress is not None and job.last_progress.evaluations == 2


def test_of_operators_in_one_spark_job_the_last_writes_the_result(
    spark: SparkSession, make_job: MakeJob
) -> None:
    job = make_job()

    def chained(df: DataFrame) -> DataFrame:
        first = stamped(job, df)
        return stamped(job, first.select("k"), "second").select("stamp", "k")

    result = job.run_epoch(keys(spark), chained)
    rows = result.dataframe.collect()
    assert {row.k: row.stamp for row in rows} == state_of(job, "second") and len(rows) == KEYS
    assert job.last_progress is not None and job.last_progress.evaluations == 1
    # Files that Spark writes have other names.
    files = [path.name for path in (Path(job.checkpoint) / "results").rglob("*.parquet")]
    assert sorted(name[:10] for name in files) == [part_name(i)[:10] for i in (0, 1)]
    assert {len(name) for name in files} == {len(part_name(0))}


def test_an_rdd_that_is_read_twice_is_an_error_that_says_how(
    spark: SparkSession, make_job: MakeJob
) -> None:
    job = make_job()
    calls = []

    def pipeline(rdd: RDD[Any], keep: bool = False) -> RDD[Any]:
        calls.append(keep)
        out = job.partition_by(rdd, int, key_type="long", uid="stamps").mapPartitions(
            job.partitions(Stamp(), uid="stamps")
        )
        if keep:
            out.persist().localCheckpoint()
        assert out.count() == KEYS
        return out

    rdd = spark.sparkContext.parallelize(range(KEYS), 2)
    schema = "k long, stamp string"
    with pytest.raises(EvaluationError, match=r"'stamps', range.*evaluated twice.*persist\(\)"):
        job.run_epoch(rdd, pipeline, schema=schema)
    assert calls == [False]
    result = job.run_epoch(rdd, lambda rdd: pipeline(rdd, keep=True), schema=schema)
    state = state_of(job, "stamps")
    assert {row.k: row.stamp for row in result.dataframe.collect()} == state
