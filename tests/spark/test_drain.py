"""Drains on Spark: the last timers of bounded input, once, through crashes and stops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.query import StreamingQuery

import pystate as ps
from pystate.errors import FunctionError, NoEventTimeError
from pystate.spark import EpochProgress, ParquetSink

from .conftest import Source, rows_of
from .gate import Gate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]
ONCE = {"availableNow": True}
END = ps.MAX_WATERMARK
SCHEMA = "k string, at long, n long, mark long"


class Alarms(ps.KeyedProcessFunction):
    """Rings 10 ms of event time after each row; it may be held up at a row or at a timer."""

    n = ps.ValueState("long", default=0)

    def __init__(self, gate: Gate | None = None) -> None:
        self.gate = gate

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
        self.n.update(self.n.value() + 1)
        ctx.register_event_time_timer(row["v"] + 10)
        if self.gate is not None:
            self.gate.pass_through("row")

    def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> Any:
        if self.gate is not None:
            self.gate.pass_through("timer")
        yield key, timestamp, self.n.value(), ctx.watermark


def ringing(df: DataFrame, job: Job, gate: Gate | None = None) -> DataFrame:
    keyed = job.key_by(df, "k", uid="alarms", event_time="v", allowed_delay=5, order_by="v")
    return keyed.process(Alarms(gate), SCHEMA, late="drop")


def run(job: Job, source: Source, sink: ParquetSink, **options: Any) -> list[EpochProgress]:
    progress: list[EpochProgress] = []
    query = job.start(
        source.stream(), ringing, sink=sink, trigger=ONCE, on_epoch=progress.append, **options
    )
    assert query.awaitTermination() is None and not query.isActive
    return progress


def test_the_last_timers_of_a_stream_fire_and_it_goes_on(
    spark: SparkSession, make_job: MakeJob, source: Source, tmp_path: Path
) -> None:
    sink = ParquetSink(tmp_path / "out")
    source.add("a,1", "b,2")
    source.add("b,100")
    first = run(make_job(), source, sink, drain=True)
    assert [(p.drained, p.rows_in, p.rows_out, p.watermark_ms) for p in first] == [
        (False, 2, 0, -3),
        (False, 1, 0, 95),
        (True, 0, 3, 95),
    ]
    assert str(first[-1]).startswith("epoch 3 (the end of the stream): 0 rows in, 3 out")
    assert ", drained, " in str(first[-1])
    published = [("a", 11, 1, END, 3), ("b", 110, 2, END, 3), ("b", 12, 2, END, 3)]
    assert rows_of(sink.read(spark)) == published

    # Nothing new: nothing is computed. It was drained, and says so again.
    job = make_job()
    assert run(job, source, sink, drain=True) == [] and job.latest_epoch() == 3
    # More input goes on from the rows' own watermark: what is below it is late, as ever.
    source.add("a,94", "a,96")
    more = run(make_job(), source, sink, drain=True)
    assert [(p.late_rows, p.drained) for p in more] == [
        ({"alarms": 1}, False),
        ({"alarms": 0}, True),
    ]
    assert rows_of(sink.read(spark)) == sorted([*published, ("a", 106, 2, END, 5)], key=repr)


class CrashError(Exception):
    """Stands for the end of the driver."""


def crash(*_: object) -> None:
    raise CrashError("in the drain")


@pytest.mark.parametrize(
    "where",
    [
        pytest.param("pystate.epochs.epoch.Epoch.complete", marks=pytest.mark.slow),
        "pystate.spark.sinks.commits.commit",
    ],
)
def test_a_drain_that_is_killed_is_done_once(
    spark: SparkSession,
    make_job: MakeJob,
    source: Source,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    sink = ParquetSink(tmp_path / "out")
    source.add("a,1", "b,2")
    run(make_job(), source, sink)
    with monkeypatch.context() as patch:
        patch.setattr(where, crash)
        job = make_job()
        query = job.start(source.stream(), ringing, sink=sink, trigger=ONCE, drain=True)
        with pytest.raises(FunctionError, match=r"^CrashError: in the drain"):
            query.awaitTermination()
        assert "CrashError" in repr(job.failure)
        assert query.exception() is not None and "in the drain" in str(query.exception())
    job = make_job()
    run(job, source, sink, drain=True)
    assert job.latest_epoch() == 2 and job.failure is None
    assert rows_of(sink.read(spark)) == [("a", 11, 1, END, 2), ("b", 12, 1, END, 2)]


def test_a_stop_leaves_the_drain_to_the_next_start(
    spark: SparkSession, make_job: MakeJob, source: Source, tmp_path: Path
) -> None:
    sink = ParquetSink(tmp_path / "out")
    source.add("a,1")
    # Somebody stops the query behind the job's back, then the drain itself is stopped.
    with Gate(tmp_path / "gate") as gate:
        for what, stop in (("row", StreamingQuery.stop), ("timer", None)):
            gate.close(what)
            job = make_job()
            query = job.start(
                source.stream(),
                lambda df, job: ringing(df, job, gate),
                sink=sink,
                trigger=ONCE,
                drain=True,
            )
            gate.wait_until_reached(what)
            assert query.isActive and query.awaitTermination(1) is False  # type: ignore[func-returns-value]
            if stop is None:
                query.stop()
            else:
                stop(StreamingQuery(query._jsq))
            query.awaitTermination()
            assert not query.isActive and job.failure is None
            gate.open()
    assert make_job().latest_epoch() == 1
    run(make_job(), source, sink, drain=True)
    assert rows_of(sink.read(spark)) == [("a", 11, 1, END, 2)]


class Waiting(ps.KeyedProcessFunction):
    """Below another operator's timers, without event time of its own."""

    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        self.n.update(self.n.value() + 1)
        ctx.register_event_time_timer(row["at"] + 1_000)
        yield key, row["at"], 0

    def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> Any:
        yield key, timestamp, self.n.value()


def chained(df: DataFrame, job: Job) -> DataFrame:
    keyed = job.key_by(ringing(df, job), "k", uid="waiting", order_by="at")
    return keyed.process(Waiting(), "k string, at long, n long")


def test_a_run_drains_all_operators_in_its_own_epoch(
    spark: SparkSession, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = spark.createDataFrame([("a", 1), ("b", 50)], "k string, v long")
    with monkeypatch.context() as patch:
        patch.setattr("pystate.spark.sinks.commits.commit", crash)
        with pytest.raises(CrashError):
            make_job().run_epoch(frame, chained, run_key="may", drain=True)
    wanted = [("a", 1011, 1), ("a", 11, 0), ("b", 1060, 1), ("b", 60, 0)]
    for _ in range(2):
        result = make_job().run_epoch(frame, chained, run_key="may", drain=True)
        assert (result.epoch, result.already_done) == (1, True)
        assert rows_of(result.dataframe) == wanted
    # The next run goes on from the watermark of the rows, which is 45.
    later = spark.createDataFrame([("a", 44), ("a", 46)], "k string, v long")
    job = make_job(parallelism=3)
    assert rows_of(job.run_epoch(later, chained).dataframe) == []
    assert job.last_progress is not None and job.last_progress.late_rows["alarms"] == 1
    result = job.run_epoch(later.limit(0), chained, drain=True)
    assert rows_of(result.dataframe) == [("a", 1056, 2), ("a", 56, 0)]


def test_without_event_time_there_is_nothing_to_end(
    spark: SparkSession, make_job: MakeJob, source: Source
) -> None:
    frame = spark.createDataFrame([("a", 1)], "k string, v long")
    job = make_job()

    def counting(df: DataFrame) -> DataFrame:
        return job.key_by(df, "k", uid="n").aggregate(n=ps.count())

    with pytest.raises(NoEventTimeError, match=r"^drain=True takes"):
        job.run_epoch(frame, counting, drain=True)
    assert job.latest_epoch() is None
    # A stream says it after its first batch.
    for line in ("a,1", "b,2"):
        source.add(line)
    query = job.start(source.stream(), counting, trigger=ONCE, drain=True)
    with pytest.raises(Exception, match="drain=True takes"):
        query.awaitTermination()
    assert isinstance(job.failure, NoEventTimeError) and job.latest_epoch() == 1
