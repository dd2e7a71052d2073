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

from .conftest import Source, state_of, wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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


def counting(job: Job, rows: list[int]) -> Callable[[DataFrame], DataFrame]:
    def pipeline(df: DataFrame) -> DataFrame:
        rows.append(df.count())
        return job.key_by(df, "k", uid="counts").aggregate(n=ps.count())

    return pipeline


def position(folder: Path, batch: int) -> int:
    """The heartbeat's own position in Spark's log of a batch."""
    lines = (folder / "checkpoint" / "spark" / "offsets" / str(batch)).read_text().splitlines()
    return int(json.loads(lines[-1])["pystate_heartbeat_ms"])


def test_epochs_without_rows(make_job: MakeJob, source: Source, tmp_path: Path) -> None:
    job = make_job()
    progress: list[EpochProgress] = []
    rows: list[int] = []

    def start(job: Job, **options: Any) -> Any:
        stream = source.stream()
        return job.start(stream, counting(job, rows), on_epoch=progress.append, **options)

    query = start(job, heartbeat="1500 ms")
    try:
        wait_for(lambda: len(progress) >= 3, "three beats")
        assert rows[:3] == [0, 0, 0]
        beats = [position(tmp_path, batch) for batch in range(3)]
        assert all(beat % 1500 == 0 for beat in beats) and len(set(beats)) == 3, beats
        source.add("a,1", "b,2")
        wait_for(lambda: sum(p.rows_in for p in progress) == 2, "the rows")
        before = len(progress)
        wait_for(lambda: len(progress) >= before + 2, "beats after the rows")
    finally:
        query.stop()
    assert job.failure is None
    assert set(rows) == {0, 2} and rows.count(2) == 1
    job.close()
    # The query goes on, with another interval too, but not without a heartbeat.
    again = make_job()
    with pytest.raises(InvalidArgumentError, match=r"has run with a heartbeat.*pass heartbeat="):
        start(again)
    with pytest.raises(InvalidArgumentError, match="heartbeat='often'"):
        start(again, heartbeat="often")
    with pytest.raises(InvalidArgumentError, match="between 1 and"):
        start(again, heartbeat=0)
    source.add("a,3")
    seen = len(progress)
    start(again, heartbeat="1 hour", trigger={"availableNow": True}).awaitTermination()
    assert sum(p.rows_in for p in progress[seen:]) == 1
    assert progress[seen].epoch == progress[seen - 1].epoch + 1
    assert state_of(again, "counts") == {"a": 2, "b": 1}


def test_available_now_still_takes_one_file_at_a_time(make_job: MakeJob, source: Source) -> None:
    job = make_job()
    progress: list[EpochProgress] = []
    options: dict[str, Any] = {"heartbeat": "1 hour", "trigger": {"availableNow": True}}
    for _ in range(2):
        for line in ("a,1", "b,2", "c,3"):
            source.add(line)
        query = job.start(source.stream(), counting(job, []), on_epoch=progress.append, **options)
        query.awaitTermination()
    assert [p.rows_in for p in progress] == [1] * 6


def test_a_query_that_published_nothing_may_get_a_heartbeat(
    make_job: MakeJob, source: Source
) -> None:
    def fails(df: Any) -> Any:
        raise ValueError("not yet")

    source.add("a,1")
    once = {"availableNow": True}
    job = make_job()
    for heartbeat in ("1 hour", None):
        with pytest.raises(FunctionError, match="ValueError: not yet"):
            job.start(source.stream(), fails, trigger=once, heartbeat=heartbeat).awaitTermination()
    query = job.start(source.stream(), counting(job, []), trigger=once, heartbeat="1 hour")
    query.awaitTermination()
    assert state_of(job, "counts") == {"a": 1}


def test_no_heartbeat_for_a_query_that_has_run_without(make_job: MakeJob, source: Source) -> None:
    job = make_job()
    source.add("a,1")
    once = {"availableNow": True}
    job.start(source.stream(), counting(job, []), trigger=once).awaitTermination()
    with pytest.raises(InvalidArgumentError, match=r"has run without a heartbeat.*folder 'spark'"):
        job.start(source.stream(), counting(job, []), heartbeat="1 second")
