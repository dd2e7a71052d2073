"""Timers on Spark: in ranges without rows, through rescaling, replays and idle streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.errors import NoEventTimeError
from pystate.spark import EpochProgress, ParquetSink

from .conftest import Source, rows_of, state_of, wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]
SCHEMA = "k string, at long, n long, mark long"


class Alarms(ps.KeyedProcessFunction):
    """Rings 10 ms of event time after a key's last row; says how many rows there were."""

    n = ps.ValueState("long", default=0)
    alarm = ps.ValueState("long")

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
        self.n.update(self.n.value() + 1)
        before = self.alarm.value()
        if before is not None:
            ctx.delete_event_time_timer(before)
        self.alarm.update(ctx.timestamp + 10)
        ctx.register_event_time_timer(ctx.timestamp + 10)

    def on_timer(
        self, key: Any, timestamp: int, ctx: ps.RuntimeContext
    ) -> Iterator[tuple[Any, ...]]:
        yield key, timestamp, self.n.value(), ctx.watermark
        self.alarm.clear()


def ringing(job: Job) -> Callable[[DataFrame], DataFrame]:
    def pipeline(df: DataFrame) -> DataFrame:
        keyed = job.key_by(df, "k", uid="alarms", event_time="v", order_by="v")
        return keyed.process(Alarms(), SCHEMA)

    return pipeline


def run(spark: SparkSession, job: Job, *rows: tuple[str, int]) -> list[tuple[Any, ...]]:
    frame = spark.createDataFrame(list(rows), "k string, v long")
    return rows_of(job.run_epoch(frame, ringing(job)).dataframe)


def next_timers(job: Job) -> list[int | None]:
    assert job._epochs.coordinator is not None and job._epochs.coordinator.head is not None
    operator = job._epochs.coordinator.head.operator("alarms")
    assert operator is not None
    return [state.next_event_timer_ms for state in operator.ranges]


def test_timers_fire_in_ranges_without_rows(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job(parallelism=8)
    keys = "abcdefgh"
    assert run(spark, job, *((key, i) for i, key in enumerate(keys))) == []
    timers = next_timers(job)
    assert min(t for t in timers if t is not None) == 10
    assert run(spark, job, ("z", 14)) == []  # the watermark is still 7
    # Now it is 14; the only row goes to one range.
    assert run(spark, job, ("z", 14)) == [(k, 10 + i, 1, 14) for i, k in enumerate("abcde")]
    assert run(spark, job, ("z", 30)) == []
    assert run(spark, job, ("z", 31)) == [("f", 15, 1, 30), ("g", 16, 1, 30), ("h", 17, 1, 30)]
    assert [t for t in next_timers(job) if t is not None] == [41]


@pytest.mark.parametrize("parallelism", [1, 3, 7])
def test_timers_survive_another_parallelism(
    spark: SparkSession, make_job: MakeJob, parallelism: int
) -> None:
    job = make_job(parallelism=2)
    run(spark, job, *((key, i) for i, key in enumerate("abcdefgh")), ("a", 5))
    job.close()
    again = make_job(parallelism=parallelism)
    assert run(spark, again, ("z", 100)) == []
    found = run(spark, again, ("z", 100))
    times = {"a": 15, **{key: 11 + i for i, key in enumerate("bcdefgh")}}
    assert found == [(k, at, 2 if k == "a" else 1, 100) for k, at in times.items()]
    assert [t for t in next_timers(again) if t is not None] == [110]


class TimersAlone(ps.KeyedProcessFunction):
    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
        ctx.register_event_time_timer(ctx.timestamp + 10)

    def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> Any:
        yield key, timestamp


@pytest.mark.parametrize("parallelism", [1, 3])
def test_timers_alone_are_state(spark: SparkSession, make_job: MakeJob, parallelism: int) -> None:
    def epoch(job: Job, *rows: tuple[str, int]) -> list[tuple[Any, ...]]:
        def pipeline(df: DataFrame) -> DataFrame:
            keyed = job.key_by(df, "k", uid="alone", event_time="v")
            return keyed.process(TimersAlone(), "k string, at long")

        frame = spark.createDataFrame(list(rows), "k string, v long")
        return rows_of(job.run_epoch(frame, pipeline).dataframe)

    job = make_job(parallelism=2)
    assert epoch(job, *((key, i) for i, key in enumerate("abcdefgh"))) == []
    job.close()
    again = make_job(parallelism=parallelism)
    assert epoch(again, ("z", 100)) == []
    assert sorted(epoch(again, ("z", 100))) == [(k, 10 + i) for i, k in enumerate("abcdefgh")]


class Rooms(ps.KeyedProcessFunction):
    """Counts per key and room, and closes a room when its timer fires."""

    namespace = "string"
    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
        ctx.set_namespace(f"room {row.v % 2}")
        self.n.update(self.n.value() + 1)
        ctx.register_event_time_timer(row.v)

    def on_timer(
        self, key: Any, timestamp: int, ctx: ps.RuntimeContext
    ) -> Iterator[tuple[Any, ...]]:
        yield key, timestamp, self.n.value(), ctx.watermark


def test_state_with_namespaces_and_timers_is_read_after_rescaling(
    spark: SparkSession, make_job: MakeJob
) -> None:
    wanted: dict[tuple[str, str], int] = {}
    for parallelism, values in ((1, range(40)), (2, range(100, 110)), (1, ())):
        job = make_job(parallelism=parallelism)

        def pipeline(df: DataFrame, job: Job = job) -> DataFrame:
            keyed = job.key_by(df, "k", uid="rooms", event_time="v", allowed_delay="1 day")
            return keyed.process(Rooms(), SCHEMA)

        rows = [(f"key {i % 13}", i) for i in values]
        for key, value in rows:
            place = key, f"room {value % 2}"
            wanted[place] = wanted.get(place, 0) + 1
        job.run_epoch(spark.createDataFrame(rows, "k string, v long"), pipeline)
        columns = job.read_state("rooms").to_pydict().values()
        found = {(key, room): n for key, room, n in zip(*columns, strict=True)}
        assert found == wanted
        job.close()


class CrashError(Exception):
    """Stands for the end of the driver."""


def crash(*_: object) -> None:
    raise CrashError


@pytest.mark.parametrize(
    "where", ["pystate.epochs.epoch.Epoch.complete", "pystate.spark.sinks.commits.commit"]
)
def test_timers_fire_once_through_a_crash(
    spark: SparkSession,
    make_job: MakeJob,
    source: Source,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    sink = ParquetSink(tmp_path / "out")
    once = {"availableNow": True}

    def start(job: Job) -> None:
        query = job.start(source.stream(), ringing(job), sink=sink, trigger=once)
        query.awaitTermination()

    for lines in (["a,1", "b,2"], ["z,20"]):
        source.add(*lines)
    start(make_job())
    source.add("z,21")
    with monkeypatch.context() as patch:
        patch.setattr(where, crash)
        with pytest.raises(Exception, match="CrashError"):
            start(make_job())
    start(make_job())
    source.add("z,22")
    start(make_job())
    assert rows_of(sink.read(spark)) == [("a", 11, 1, 20, 3), ("b", 12, 1, 20, 3)]


class Timeouts(ps.KeyedProcessFunction):
    """Tells of keys that were silent for 100 ms of processing time."""

    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
        self.n.update(row.v)
        ctx.register_processing_time_timer(ctx.processing_time + 100)

    def on_timer(
        self, key: Any, timestamp: int, ctx: ps.RuntimeContext
    ) -> Iterator[tuple[Any, ...]]:
        assert timestamp <= ctx.processing_time
        yield key, self.n.value()
        self.n.clear()


def test_a_heartbeat_lets_timers_fire_on_an_idle_stream(
    spark: SparkSession, make_job: MakeJob, source: Source, tmp_path: Path
) -> None:
    job = make_job()
    sink = ParquetSink(tmp_path / "out")
    progress: list[EpochProgress] = []

    def pipeline(df: DataFrame) -> DataFrame:
        return job.key_by(df, "k", uid="timeouts").process(Timeouts(), "k string, v long")

    source.add("a,1", "b,2")
    query = job.start(
        source.stream(), pipeline, sink=sink, heartbeat="1 second", on_epoch=progress.append
    )
    try:
        wait_for(lambda: sum(p.rows_out for p in progress) == 2, "the timers")
    finally:
        query.stop()
    assert progress[0].rows_in == 2 and progress[0].rows_out == 0
    assert rows_of(sink.read(spark).select("k", "v")) == [("a", 1), ("b", 2)]
    assert state_of(job, "timeouts") == {}


class Early(ps.KeyedProcessFunction):
    """Waits for a watermark, and has no event time of its own."""

    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
        ctx.register_event_time_timer(row["v"] + 10)

    def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> Any:
        yield key, timestamp


class Passing(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        self.n.update(self.n.value() + 1)
        yield key, row["v"]


def test_event_time_timers_need_event_time_of_the_operator(
    spark: SparkSession, make_job: MakeJob
) -> None:
    job = make_job()
    first = spark.createDataFrame([("a", 5)], "k string, v long")
    schema = "k string, v long"

    def early(df: Any) -> Any:
        return job.key_by(df, "k", uid="early").process(Early(), schema)

    with pytest.raises(NoEventTimeError, match=r"^operator 'early': an event-time timer"):
        job.run_epoch(first, early)
    assert job.latest_epoch() is None

    def passing(df: Any) -> Any:
        return job.key_by(df, "k", uid="passing", event_time="v").process(Passing(), schema)

    # That another operator has it does not help, unless it feeds this one.
    with pytest.raises(NoEventTimeError, match=r"^operator 'early': an event-time timer"):
        job.run_epoch(first, lambda df: passing(df).union(early(df)))
    assert job.latest_epoch() is None
    assert rows_of(job.run_epoch(first, lambda df: early(passing(df))).dataframe) == []
    second = spark.createDataFrame([("a", 100)], schema)
    job.run_epoch(second, lambda df: early(passing(df)))
    third = spark.createDataFrame([("b", 100)], schema)
    result = job.run_epoch(third, lambda df: early(passing(df)))
    assert rows_of(result.dataframe) == [("a", 15)]
