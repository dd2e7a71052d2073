"""Watermarks follow the plan: each operator's comes from what feeds it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import reduce
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


pytestmark = pytest.mark.usefixtures("one_task")


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


def named(parts: dict[str, DataFrame]) -> DataFrame:
    """Their rows, each with the part's name."""
    frames = [out.selectExpr(f"'{name}' AS part", "k", "t", "mark") for name, out in parts.items()]
    return reduce(type(frames[0]).union, frames)


def by_name(result: EpochResult) -> dict[str, list[tuple[Any, ...]]]:
    """What each part has emitted."""
    found: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for name, *row in rows_of(result.dataframe):
        found[name].append(tuple(row))
    return found


def marks(job: Job) -> dict[str, int | None]:
    """The watermark of each operator in the checkpoint."""
    return {op.uid: op.watermark_ms for op in ps.describe(job.checkpoint).operators}


def test_what_a_pipeline_does_between_operators(spark: SparkSession, make_job: MakeJob) -> None:
    """However the output gets to the next operator, the watermark gets there, too."""
    job = make_job()

    def pipeline(df: DataFrame) -> DataFrame:
        windows(job, df, "one", event_time="t").createOrReplaceTempView("between")
        viewed = spark.sql("WITH w AS (SELECT * FROM between) SELECT k, t FROM w").persist()
        rows = windows(job, df, "two", event_time="t").select("k", "t").where("t >= 0")
        kept = seen(job, rows.localCheckpoint(), "kept", event_time="t", allowed_delay=5)
        return seen(job, viewed, "view").union(kept)

    def untimed(df: DataFrame) -> DataFrame:
        return seen(job, windows(job, df, "two").select("k", "t"), "kept", allowed_delay=5)

    with pytest.raises(InvalidArgumentError, match="'kept': allowed_delay is how late"):
        run(job, spark, untimed, ("a", 1))
    for row in (("a", 11), ("a", 25), ("a", 26)):
        result = run(job, spark, pipeline, row)
    assert rows_of(result.dataframe) == [
        ("a came", 10, 11),
        ("a came", 10, 6),
        ("a fired", 10, 20),
        ("a fired", 10, 25),
    ]
    assert marks(job) == {"one": 26, "two": 26, "view": 25, "kept": 20}


def test_operators_behind_timers_fire_in_the_same_epoch(
    spark: SparkSession, make_job: MakeJob
) -> None:
    """Of an output that is read more than once, and is thus materialised."""
    job = make_job()

    def pipeline(df: DataFrame) -> DataFrame:
        first = windows(job, df, "first", event_time="t")
        out = first.select("k", "t")
        wide = first.selectExpr("'all' AS k", "t + 1 AS t")
        second = windows(job, wide, "second", event_time="t")
        joined = out.alias("x").join(out.alias("y"), "k").selectExpr("k", "x.t AS t")
        split = job.partition_by(
            out.rdd,
            lambda row: row.k,
            key_type="string",
            uid="rdd",
            event_time=lambda row: row.t,
            idle_after="1 hour",
        )
        elements = split.mapPartitions(job.partitions(Seen(), uid="rdd"))
        assert out.count() >= 0
        return named(
            {
                "second": second,
                # It has no event time but that of what it is fed with.
                "third": seen(job, second.selectExpr("upper(k) AS k", "t"), "third"),
                "joined": seen(job, joined, "joined"),
                "rdd": spark.createDataFrame(elements, OUT),
                "counted": seen(job, out.withColumn("t", out.t + 0), "counted"),
            }
        )

    assert rows_of(run(job, spark, pipeline, ("a", 1), ("b", 2)).dataframe) == []
    assert rows_of(run(job, spark, pipeline, ("a", 35)).dataframe) == []
    assert marks(job)["second"] == marks(job)["third"] == 2
    # The first one's timers for 10 fire at 35; so do those of what it feeds.
    both = [("a came", 0, 2), ("a fired", 0, 35), ("b came", 0, 2), ("b fired", 0, 35)]
    assert by_name(run(job, spark, pipeline, ("b", 36))) == {
        "second": [("all", 0, 35)],
        "third": [("ALL came", 0, 2), ("ALL fired", 0, 35)],
        "joined": both,
        "counted": both,
        "rdd": [("a came", 0, None), ("b came", 0, None)],
    }
    # The elements of an RDD have times of their own.
    behind = dict.fromkeys(("second", "third", "joined", "counted"), 35)
    assert marks(job) == {"first": 36, "rdd": 0, **behind}


def test_a_union_waits_for_its_slowest_part_unless_that_is_idle(
    spark: SparkSession, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among the parts of another union are rows of a source."""
    job = make_job()
    now_s = count(step=10)
    clock = SimpleNamespace(**{**vars(time), "time_ns": lambda: next(now_s) * 10**9})
    monkeypatch.setattr("pystate.epochs.coordinator.time", clock)

    def pipeline(df: DataFrame, **how: Any) -> DataFrame:
        left = windows(job, df.where("k = 'left'"), "left", event_time="t")
        right = windows(job, df.where("k = 'right'"), "right", event_time="t", idle_after="15 s")
        first = windows(job, df.where("k = 'a'"), "first", event_time="t")
        raw = df.where("k = 'raw'").select("k", "t")
        both = seen(job, left.union(right).select("k", "t"), "both")
        mixed = seen(job, first.select("k", "t").unionByName(raw), "mixed", **how)
        return named({"both": both, "mixed": mixed})

    def timed(df: DataFrame) -> DataFrame:
        return pipeline(df, event_time="t")

    with pytest.raises(NoEventTimeError, match=r"^operator 'mixed': .*operators that have event"):
        run(job, spark, pipeline, ("a", 1), ("raw", 5))
    next(now_s)
    run(job, spark, timed, ("left", 1), ("right", 1), ("a", 31), ("raw", 5))
    found = by_name(run(job, spark, timed, ("left", 25), ("right", 12), ("a", 41)))
    assert found == {"mixed": [("raw fired", 5, 5)]}
    found = by_name(run(job, spark, timed, ("left", 35), ("raw", 90)))
    assert found == {
        "both": [
            ("left came", 0, 1),
            ("left fired", 0, 12),
            ("right came", 0, 1),
            ("right fired", 0, 12),
        ],
        "mixed": [("a came", 30, 5), ("raw came", 90, 5)],
    }
    assert marks(job) == {"left": 35, "right": 12, "both": 12, "first": 41, "mixed": 41}
    # At its end the right one has been idle for 20 seconds.
    found = by_name(run(job, spark, timed, ("left", 55), ("a", 42)))
    assert found["mixed"] == [("a fired", 30, 41)]
    assert marks(job) == {"left": 55, "right": 12, "both": 35, "first": 42, "mixed": 41}


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
    times = [(1, 6, 11), (16,), (40, 41)]
    for at in times:
        rows = [("a", t) for t in at]
        result = run(job, spark, pipeline, *rows, drain=at == times[-1])
        found += rows_of(result.dataframe)
        held.append({uid: mark for uid, mark in marks(job).items() if uid.startswith("by")})
        assert set(job.last_progress.late_rows.values()) == {0}
    assert held[1] == {"by begin": 1, "by end": 11, "by both": 1}
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


@pytest.mark.parametrize("interval", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_stream_that_is_interrupted(
    spark: SparkSession,
    make_job: MakeJob,
    source: Source,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    interval: int,
) -> None:
    """By drivers that end and one that dies, with a savepoint, and some batches per checkpoint."""
    sink = ParquetSink(tmp_path / "out")

    def start(*lines: str) -> None:
        for line in lines:
            source.add(line)
        job = make_job(checkpoints=ps.CheckpointOptions(interval=interval))
        how = {"sink": sink, "trigger": {"availableNow": True}}
        job.start(source.stream(), chain(job), **how).awaitTermination()  # type: ignore[arg-type]

    def crash(*_: object, **__: object) -> None:
        raise CrashError

    start("a,1")
    if interval > 1:
        start("a,12", "a,25", "a,35", "a,36")
    else:
        start("a,12", "a,25")
        savepoint = tmp_path / "savepoint"
        ps.savepoint(make_job().checkpoint, savepoint)
        assert [op.watermark_ms for op in ps.describe(savepoint).operators] == [25, 7]
        with monkeypatch.context() as patch:
            patch.setattr("pystate.epochs.epoch.Epoch.complete", crash)
            with pytest.raises(Exception, match="CrashError"):
                start("a,35")
        start("a,36")
        other = make_job(checkpoint=tmp_path / "other", restore=savepoint, parallelism=3)
        found = run(other, spark, lambda df: chain(other)(df.selectExpr("k", "t AS v")), ("a", 35))
        assert rows_of(found.dataframe) == [("a came", 10, 7), ("a fired", 10, 20)]
        assert marks(other) == {"first": 35, "seen": 20}
    assert rows_of(sink.read(spark).select("k", "t", "mark")) == WANTED
    assert marks(make_job()) == {"first": 36, "seen": 30}
