"""Timers on Spark: in ranges without rows, through rescaling and replays.

Those of idle streams are in test_heartbeat.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.errors import NoEventTimeError
from pystate.spark import ParquetSink

from .conftest import Source, rows_of

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
    assert min(t for t in next_timers(job) if t is not None) == 10
    assert run(spark, job, ("z", 14)) == []  # the watermark is still 7
    # Now it is 14; the only row goes to one range.
    assert run(spark, job, ("z", 31)) == [(k, 10 + i, 1, 14) for i, k in enumerate("abcde")]
    assert min(t for t in next_timers(job) if t is not None) == 15


class TimersAlone(ps.KeyedProcessFunction):
    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
        ctx.register_event_time_timer(ctx.timestamp + 10)

    def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> Any:
        yield key, timestamp, None, None


class Rooms(ps.KeyedProcessFunction):
    """Counts per key and room, and tells of a room when its timer fires."""

    namespace = "string"
    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
        ctx.set_namespace(f"room {row.v % 2}")
        self.n.update(self.n.value() + 1)
        ctx.register_event_time_timer(row.v + 10)

    def on_timer(
        self, key: Any, timestamp: int, ctx: ps.RuntimeContext
    ) -> Iterator[tuple[Any, ...]]:
        yield key, timestamp, self.n.value(), ctx.watermark


@pytest.mark.parametrize(
    "parallelism",
    [pytest.param(1, marks=pytest.mark.slow), 3, pytest.param(7, marks=pytest.mark.slow)],
)
def test_timers_survive_another_parallelism(
    spark: SparkSession, make_job: MakeJob, parallelism: int
) -> None:
    """With state, alone, and in namespaces; so does the state."""

    def epoch(job: Job, *rows: tuple[str, int]) -> dict[str, list[tuple[Any, ...]]]:
        def pipeline(df: DataFrame) -> dict[str, DataFrame]:
            rooms = job.key_by(df, "k", uid="rooms", event_time="v", order_by="v")
            alone = job.key_by(df, "k", uid="alone", event_time="v")
            return {
                "alarms": ringing(job)(df),
                "alone": alone.process(TimersAlone(), SCHEMA),
                "rooms": rooms.process(Rooms(), SCHEMA),
            }

        frames = job.run_epoch(spark.createDataFrame(list(rows), "k string, v long"), pipeline)
        return {name: rows_of(f.drop("epoch")) for name, f in frames.dataframes.items()}

    none: dict[str, list[Any]] = {"alarms": [], "alone": [], "rooms": []}
    rows = [*((key, i) for i, key in enumerate("abcdefgh")), ("a", 5)]
    job = make_job(parallelism=2)
    assert epoch(job, *rows) == none
    job.close()
    again = make_job(parallelism=parallelism)
    assert epoch(again, ("z", 100)) == none
    found = epoch(again, ("z", 101))
    assert found == {
        "alarms": sorted((k, 10 + v, 2 if k == "a" else 1, 100) for k, v in dict(rows).items()),
        "alone": sorted((k, 10 + v, None, None) for k, v in rows),
        "rooms": sorted((k, 10 + v, 1, 100) for k, v in rows),
    }
    assert [t for t in next_timers(again) if t is not None] == [111]
    again.close()
    # A third one, which takes the state together.
    job = make_job(parallelism=1)
    epoch(job)
    columns = job.read_state("rooms").to_pydict().values()
    rooms = Counter((k, f"room {v % 2}") for k, v in [*rows, ("z", 100), ("z", 101)])
    assert {(key, room): n for key, room, n in zip(*columns, strict=True)} == rooms


class CrashError(Exception):
    """Stands for the end of the driver."""


def crash(*_: object) -> None:
    raise CrashError


@pytest.mark.parametrize(
    "where",
    [
        "pystate.epochs.epoch.Epoch.complete",
        pytest.param("pystate.spark.sinks.commits.commit", marks=pytest.mark.slow),
    ],
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

    def passing(df: Any) -> Any:
        return job.key_by(df, "k", uid="passing", event_time="v").process(Passing(), schema)

    # That another operator has it does not help, unless it feeds this one.
    with pytest.raises(NoEventTimeError, match=r"^operator 'early': an event-time timer"):
        job.run_epoch(first, lambda df: passing(df).union(early(df)))
    assert job.latest_epoch() is None
    result = job.run_epoch(first, lambda df: early(passing(df)), drain=True)
    assert rows_of(result.dataframe) == [("a", 15)]
