"""Watermarks follow the plan: each operator's comes from what feeds it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.errors import InvalidArgumentError, NoEventTimeError
from pystate.spark import ParquetSink

from .conftest import Source, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import EpochResult, Job

MakeJob = Callable[..., "Job"]
ROWS = "k string, t long"
OUT = "k string, t long, mark long"


class Windows(ps.KeyedProcessFunction):
    """Emits the begin of a window of ten, for each key, once the watermark has passed its end."""

    n = ps.MapState("long", "long")

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
        begin = row.t // 10 * 10
        self.n.put(begin, self.n.get(begin, 0) + 1)
        ctx.register_event_time_timer(begin + 10)

    def on_timer(
        self, key: Any, timestamp: int, ctx: ps.RuntimeContext
    ) -> Iterator[tuple[Any, ...]]:
        self.n.remove(timestamp - 10)
        yield key, timestamp - 10, ctx.watermark


class Seen(ps.KeyedProcessFunction):
    """Yields each row with the watermark at which it came, and has a timer at its time."""

    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
        ctx.register_event_time_timer(row.t)
        yield f"{key} came", row.t, ctx.watermark

    def on_timer(
        self, key: Any, timestamp: int, ctx: ps.RuntimeContext
    ) -> Iterator[tuple[Any, ...]]:
        yield f"{key} fired", timestamp, ctx.watermark


def windows(job: Job, df: DataFrame, uid: str, **how: Any) -> DataFrame:
    return job.key_by(df, "k", uid=uid, **how).process(Windows(), OUT)


def seen(job: Job, df: DataFrame, uid: str = "seen", **how: Any) -> DataFrame:
    return job.key_by(df, "k", uid=uid, **how).process(Seen(), OUT)


def run(
    job: Job,
    spark: SparkSession,
    pipeline: Callable[[DataFrame], DataFrame],
    *rows: Any,
    **how: Any,
) -> EpochResult:
    return job.run_epoch(spark.createDataFrame(list(rows), ROWS), pipeline, **how)


def marks(job: Job) -> dict[str, int | None]:
    """The watermark of each operator in the checkpoint."""
    return {op.uid: op.watermark_ms for op in ps.describe(job.checkpoint).operators}


def test_operators_behind_timers_fire_in_the_same_epoch(
    spark: SparkSession, make_job: MakeJob
) -> None:
    """The second one has event time, and the third one only what it is fed with."""
    job = make_job()

    def pipeline(df: DataFrame) -> DataFrame:
        first = windows(job, df, "first", event_time="t")
        wide = first.selectExpr("'all' AS k", "t + 1 AS t")
        second = windows(job, wide, "second", event_time="t")
        third = seen(job, second.where("k = 'all'").selectExpr("upper(k) AS k", "t"), "third")
        return third.union(second)

    assert rows_of(run(job, spark, pipeline, ("a", 1), ("b", 2)).dataframe) == []
    assert rows_of(run(job, spark, pipeline, ("a", 35)).dataframe) == []
    assert marks(job) == {"first": 35, "second": 2, "third": 2}
    # The first one's timers for 10 fire at 35; so do the second one's, and the third one's.
    assert rows_of(run(job, spark, pipeline, ("b", 36)).dataframe) == [
        ("ALL came", 0, 2),
        ("ALL fired", 0, 35),
        ("all", 0, 35),
    ]
    assert marks(job) == {"first": 36, "second": 35, "third": 35}


def test_unrelated_operators_do_not_wait_for_each_other(
    spark: SparkSession, make_job: MakeJob
) -> None:
    job = make_job()

    def pipeline(df: DataFrame) -> DataFrame:
        fast = seen(job, df.where("k = 'fast'"), "fast", event_time="t")
        slow = seen(job, df.where("k = 'slow'"), "slow", event_time="t", allowed_delay=50)
        return fast.union(slow)

    run(job, spark, pipeline, ("fast", 100))
    assert marks(job) == {"fast": 100, "slow": None}
    assert rows_of(run(job, spark, pipeline, ("slow", 60)).dataframe) == [
        ("fast fired", 100, 100),
        ("slow came", 60, None),
    ]
    run(job, spark, pipeline, ("slow", 120))
    assert rows_of(run(job, spark, pipeline, ("fast", 99)).dataframe) == [
        ("fast came", 99, 100),
        ("fast fired", 99, 100),
        ("slow fired", 60, 70),
    ]
    assert marks(job) == {"fast": 100, "slow": 70}


def test_a_union_waits_for_its_slowest_part_unless_that_is_idle(
    spark: SparkSession, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    now_s = count(step=10)
    clock = SimpleNamespace(**{**vars(time), "time_ns": lambda: next(now_s) * 10**9})
    monkeypatch.setattr("pystate.epochs.coordinator.time", clock)

    def pipeline(df: DataFrame) -> DataFrame:
        left = windows(job, df.where("k = 'left'"), "left", event_time="t")
        right = windows(job, df.where("k = 'right'"), "right", event_time="t", idle_after="15 s")
        return seen(job, left.union(right).select("k", "t"))

    run(job, spark, pipeline, ("left", 1), ("right", 1))
    run(job, spark, pipeline, ("left", 25), ("right", 12))
    assert rows_of(run(job, spark, pipeline, ("left", 35)).dataframe) == [
        ("left came", 0, 1),
        ("left fired", 0, 12),
        ("right came", 0, 1),
        ("right fired", 0, 12),
    ]
    assert marks(job) == {"left": 35, "right": 12, "seen": 12}
    # At its end the right one has been idle for 20 seconds.
    run(job, spark, pipeline, ("left", 55))
    assert marks(job) == {"left": 55, "right": 12, "seen": 35}
    found = rows_of(run(job, spark, pipeline, ("right", 33)).dataframe)
    assert found == [("left came", 30, 35), ("left fired", 20, 55), ("left fired", 30, 55)]
    # A row has ended it: again all wait for the right one, but nothing goes back.
    run(job, spark, pipeline, ("left", 95))
    assert marks(job) == {"left": 95, "right": 33, "seen": 55}


def test_rows_of_a_source_among_those_of_an_operator(
    spark: SparkSession, make_job: MakeJob
) -> None:
    job = make_job()

    def pipeline(df: DataFrame, **how: Any) -> DataFrame:
        first = windows(job, df.where("k = 'a'"), "first", event_time="t")
        raw = df.where("k <> 'a'").select("k", "t")
        return seen(job, first.select("k", "t").unionByName(raw), **how)

    with pytest.raises(NoEventTimeError, match=r"^operator 'seen': .*operators that have event"):
        run(job, spark, pipeline, ("a", 1), ("raw", 5))

    def timed(df: DataFrame) -> DataFrame:
        return pipeline(df, event_time="t")

    run(job, spark, timed, ("a", 31), ("raw", 5))
    assert rows_of(run(job, spark, timed, ("a", 41)).dataframe) == [("raw fired", 5, 5)]
    assert marks(job) == {"first": 41, "seen": 5}
    assert rows_of(run(job, spark, timed, ("raw", 90)).dataframe) == [
        ("a came", 30, 5),
        ("raw came", 90, 5),
    ]
    assert marks(job) == {"first": 41, "seen": 41}
    assert rows_of(run(job, spark, timed, ("a", 42)).dataframe) == [("a fired", 30, 41)]


@pytest.mark.parametrize("form", ["persist", "localCheckpoint", "self-join", "view", "twice"])
def test_what_a_pipeline_does_between_operators(
    spark: SparkSession, make_job: MakeJob, form: str
) -> None:
    """However the output gets to the next operator, the watermark gets there, too."""
    job = make_job()

    def between(out: DataFrame) -> DataFrame:
        if form == "persist":
            return out.persist()
        if form == "localCheckpoint":
            return out.where("t >= 0").localCheckpoint()
        if form == "self-join":
            return out.alias("x").join(out.alias("y"), "k").selectExpr("k", "x.t AS t")
        if form == "view":
            out.createOrReplaceTempView("between")
            return spark.sql("WITH w AS (SELECT * FROM between) SELECT k, t FROM w")
        assert out.count() >= 0  # from then on it is materialised
        return out.withColumn("t", out.t + 0)

    def pipeline(df: DataFrame) -> DataFrame:
        out = windows(job, df, "first", event_time="t").select("k", "t")
        return seen(job, between(out))

    run(job, spark, pipeline, ("a", 1))
    run(job, spark, pipeline, ("a", 15))
    assert rows_of(run(job, spark, pipeline, ("a", 16)).dataframe) == [
        ("a came", 0, 1),
        ("a fired", 0, 15),
    ]
    assert marks(job) == {"first": 16, "seen": 15}


def test_what_is_emitted_later_holds_the_next_watermark_back(
    spark: SparkSession, make_job: MakeJob
) -> None:
    """By the column that is the event time there, also under another name."""
    job = make_job()

    def pipeline(df: DataFrame) -> DataFrame:
        sessions = job.key_by(df, "k", uid="sessions", event_time="t").window(ps.Session(5))
        found = sessions.aggregate(n=ps.count()).selectExpr(
            "k", "window_start AS begun", "window_end AS over", "window_start + 0 AS t", "n"
        )

        def counted(uid: str, time: str) -> DataFrame:
            windows = job.key_by(found, "k", uid=uid, event_time=time).window(ps.Tumbling(10))
            out = windows.aggregate(n=ps.sum("n"))
            return out.selectExpr(f"'{uid}' AS uid", "window_start AS t", "n")

        def joined() -> DataFrame:
            one = job.key_by(df, "k", uid="join", event_time="t")
            two = job.key_by(df.selectExpr("k", "t AS t2"), "k", event_time="t2")
            pairs = one.interval_join(two, 10, 10)
            windows = job.key_by(pairs, "k", uid="pairs", event_time="t").window(ps.Tumbling(10))
            return windows.aggregate(n=ps.count()).selectExpr("'pairs'", "window_start", "n")

        three = [counted("by begin", "begun"), counted("by end", "over"), counted("by both", "t")]
        return three[0].union(three[1]).union(three[2]).union(joined())

    found: list[tuple[Any, ...]] = []
    held = []
    times = [1, 6, 11, 16, 40, 41]
    for at in times:
        result = run(job, spark, pipeline, ("a", at), drain=at == times[-1])
        found += rows_of(result.dataframe)
        held.append({uid: mark for uid, mark in marks(job).items() if uid.startswith("by")})
        assert set(job.last_progress.late_rows.values()) == {0}
    assert held[3] == {"by begin": 1, "by end": 11, "by both": 1}
    assert sorted(found) == [
        ("by begin", 0, 4),
        ("by begin", 40, 2),
        ("by both", 0, 4),
        ("by both", 40, 2),
        ("by end", 20, 4),
        ("by end", 40, 2),
        ("pairs", 0, 2),
    ]


def chain(job: Job) -> Callable[[DataFrame], DataFrame]:
    def pipeline(df: DataFrame) -> DataFrame:
        first = windows(job, df.selectExpr("k", "v AS t"), "first", event_time="t")
        return seen(job, first.selectExpr("k", "t"), event_time="t", allowed_delay=5)

    return pipeline


WANTED = [
    ("a came", 0, -4),
    ("a came", 10, 7),
    ("a came", 20, 20),
    ("a fired", 0, 7),
    ("a fired", 10, 20),
    ("a fired", 20, 30),
]


class CrashError(Exception):
    """Stands for the end of the driver."""


@pytest.mark.parametrize("options", [{}, {"interval": 3}, {"crash": True}, {"savepoint": True}])
def test_a_stream_that_is_interrupted(
    spark: SparkSession,
    make_job: MakeJob,
    source: Source,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
) -> None:
    """A new driver for each batch; or some batches per checkpoint; or after a crash; and so on."""
    sink = ParquetSink(tmp_path / "out")
    lines = ["a,1", "a,12", "a,25", "a,35", "a,36"]
    given: dict[str, Any] = {}
    if "interval" in options:
        given["checkpoints"] = ps.CheckpointOptions(interval=options["interval"])

    def start(job: Job) -> None:
        how = {"sink": sink, "trigger": {"availableNow": True}}
        job.start(source.stream(), chain(job), **how).awaitTermination()  # type: ignore[arg-type]

    def crash(*_: object, **__: object) -> None:
        raise CrashError

    if "interval" in options:
        source.add(lines[0])
        start(make_job(**given))
        for line in lines[1:]:
            source.add(line)
        start(make_job(**given))
    else:
        job = make_job()
        for number, line in enumerate(lines):
            source.add(line)
            if number == 3 and "crash" in options:
                with monkeypatch.context() as patch:
                    patch.setattr("pystate.epochs.epoch.Epoch.complete", crash)
                    with pytest.raises(Exception, match="CrashError"):
                        start(make_job())
            job = make_job()
            if number == 3 and "savepoint" in options:
                ps.savepoint(job.checkpoint, tmp_path / "savepoint")
                found = ps.describe(tmp_path / "savepoint")
                assert [op.watermark_ms for op in found.operators] == [25, 7]
            start(job)
    assert rows_of(sink.read(spark).select("k", "t", "mark")) == WANTED
    assert marks(make_job()) == {"first": 36, "seen": 30}


def test_a_job_that_begins_with_a_savepoint(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    def pipeline(job: Job) -> Callable[[DataFrame], DataFrame]:
        return lambda df: chain(job)(df.selectExpr("k", "t AS v"))

    first = make_job()
    for rows in ([("a", 1)], [("a", 12)], [("a", 25)]):
        run(first, spark, pipeline(first), *rows)
    ps.savepoint(first.checkpoint, tmp_path / "savepoint")
    job = make_job(checkpoint=tmp_path / "other", restore=tmp_path / "savepoint", parallelism=3)
    found = rows_of(run(job, spark, pipeline(job), ("a", 35)).dataframe)
    assert found == [("a came", 10, 7), ("a fired", 10, 20)]
    assert marks(job) == {"first": 35, "seen": 20}


def test_a_delay_needs_something_to_be_behind(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job()

    def pipeline(df: DataFrame, **how: Any) -> DataFrame:
        return seen(job, windows(job, df, "first", **how).select("k", "t"), allowed_delay=5)

    with pytest.raises(InvalidArgumentError, match="'seen': allowed_delay is how late"):
        run(job, spark, pipeline, ("a", 1))
    run(job, spark, lambda df: pipeline(df, event_time="t"), ("a", 11))
    run(job, spark, lambda df: pipeline(df, event_time="t"), ("a", 11))
    assert marks(job) == {"first": 11, "seen": 6}


def test_an_rdd_counts_as_a_source(spark: SparkSession, make_job: MakeJob) -> None:
    """Its elements' own times count, whatever it was made from."""
    job = make_job()

    def pipeline(df: DataFrame) -> DataFrame:
        out = windows(job, df, "first", event_time="t").select("k", "t")
        split = job.partition_by(
            out.rdd,
            lambda row: row.k,
            key_type="string",
            uid="rdd",
            event_time=lambda row: row.t,
            idle_after="1 hour",
        )
        found = split.mapPartitions(job.partitions(Seen(), uid="rdd"))
        return spark.createDataFrame(found, OUT)

    for row in (("a", 1), ("a", 35), ("a", 45)):
        run(job, spark, pipeline, row)
    assert marks(job) == {"first": 45, "rdd": 0}
