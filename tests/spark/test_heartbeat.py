"""Epochs without new rows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.errors import FunctionError, InvalidArgumentError
from pystate.spark import EpochProgress
from pystate.spark.epochs.heartbeat import HeartbeatReader

from .conftest import Source, rows_of, state_of, wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]


def test_positions_never_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = HeartbeatReader(500)
    now = [1_000_700]
    monkeypatch.setattr(time, "time_ns", lambda: now[0] * 1_000_000)
    found = []
    for moment in (1_000_700, 1_000_999, 1_001_000, 900_000, 1_001_499, 1_001_500):
        now[0] = moment
        found.append(reader.latestOffset()["pystate_heartbeat_ms"])
    assert found == [1_000_500, 1_000_500, 1_001_000, 1_001_000, 1_001_000, 1_001_500]
    # Another interval goes on from there, in the same unit.
    assert HeartbeatReader(400).latestOffset() == {"pystate_heartbeat_ms": 1_001_200}
    # Nor where the clock was set back between two runs, nor once the last beat is fixed.
    assert reader.latestOffset({"pystate_heartbeat_ms": 1_003_000}, None) == {
        "pystate_heartbeat_ms": 1_003_000
    }
    now[0] = 1_002_100
    reader.prepareForTriggerAvailableNow()
    now[0] = 1_009_000
    assert reader.latestOffset() == {"pystate_heartbeat_ms": 1_002_000}
    assert list(reader.read(reader.partitions({}, {})[0])) == []


class Timeouts(ps.KeyedProcessFunction):
    """Counts a key's rows, and tells how many when it was silent for 100 ms."""

    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
        self.n.update(self.n.value() + 1)
        ctx.register_processing_time_timer(ctx.processing_time + 100)

    def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> Any:
        assert timestamp <= ctx.processing_time
        yield key, self.n.value()


def pipeline(df: DataFrame, job: Job) -> DataFrame:
    """Timers, and rows that go round `v` times."""
    loop = job.feedback("again", "k string, v long")
    rows = df.unionByName(loop.rows())
    loop.feed(rows.where("v > 0").selectExpr("k", "v - 1 AS v"))
    silent = job.key_by(df, "k", uid="counts").process(Timeouts(), "k string, n long")
    return silent.union(rows.where("v = 0").selectExpr("k", "-v"))


def position(folder: Path, batch: int) -> int:
    """The heartbeat's own position in Spark's log of a batch."""
    lines = (folder / "checkpoint" / "spark" / "offsets" / str(batch)).read_text().splitlines()
    return int(json.loads(lines[-1])["pystate_heartbeat_ms"])


def test_epochs_without_rows(
    spark: SparkSession, make_job: MakeJob, source: Source, tmp_path: Path
) -> None:
    """Their timers fire, and rows of a loop go round; then the query goes on with other beats."""
    job = make_job()
    progress: list[EpochProgress] = []

    def start(job: Job, **options: Any) -> Any:
        return job.start(source.stream(), pipeline, on_epoch=progress.append, **options)

    query = start(job, heartbeat="500 ms")
    try:
        wait_for(lambda: len(progress) >= 2, "two beats")
        assert [p.rows_in for p in progress[:2]] == [0, 0]
        beats = [position(tmp_path, batch) for batch in range(2)]
        assert all(beat % 500 == 0 for beat in beats) and len(set(beats)) == 2, beats
        source.add("a,1", "b,2")
        wait_for(lambda: sum(p.rows_out for p in progress) == 4, "timers, and rows that come out")
    finally:
        query.stop()
    assert job.failure is None
    assert next(p.rows_in for p in progress if p.rows_in) == 2
    assert [n for n in dict.fromkeys(p.in_flight["again"] for p in progress) if n] == [2, 1]
    found = rows_of(spark.read.parquet(f"{job.checkpoint}/results").select("k", "n"))
    assert found == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    job.close()
    again = make_job()
    with pytest.raises(InvalidArgumentError, match=r"has run with a heartbeat.*pass heartbeat="):
        start(again)
    with pytest.raises(InvalidArgumentError, match="heartbeat='often'"):
        start(again, heartbeat="often")
    with pytest.raises(InvalidArgumentError, match="between 1 and"):
        start(again, heartbeat=0)
    # One file at a time, also where the trigger takes all that there is now.
    for line in ("a,0", "c,0"):
        source.add(line)
    seen = len(progress)
    start(again, heartbeat="1 hour", trigger={"availableNow": True}).awaitTermination()
    # The stop may have come before a beat's epoch was published: that is done first.
    assert [p.rows_in for p in progress[seen:]] in ([1, 1], [0, 1, 1])
    assert progress[seen].epoch == progress[seen - 1].epoch + 1
    assert state_of(again, "counts") == {"a": 2, "b": 1, "c": 1}


def test_only_a_query_that_published_nothing_may_get_or_lose_a_heartbeat(
    make_job: MakeJob, source: Source
) -> None:
    def fails(df: Any) -> Any:
        raise ValueError("not yet")

    source.add("a,0")
    once = {"availableNow": True}
    job = make_job()
    with pytest.raises(FunctionError, match="ValueError: not yet"):
        job.start(source.stream(), fails, trigger=once, heartbeat="1 hour").awaitTermination()
    job.start(source.stream(), pipeline, trigger=once).awaitTermination()
    assert state_of(job, "counts") == {"a": 1}
    with pytest.raises(InvalidArgumentError, match=r"has run without a heartbeat.*folder 'spark'"):
        job.start(source.stream(), pipeline, heartbeat="1 second")
