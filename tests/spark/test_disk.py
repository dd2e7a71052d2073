"""A job's tables on disk: with much less memory than state, killed workers, another home."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import pystate as ps
from pystate.spark import ParquetSink
from pystate.spark.epochs.progress import EpochProgress

from .conftest import Source, state_of
from .deadly import POINTS, deadly_map
from .disk_job import Notes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.epochs.range_report import RangeReport
    from pystate.spark import Job

MakeJob = Callable[..., "Job"]
MIB = 1 << 20
ROWS, STEP = 8000, 5000
#: Of a table's memory the state is several times as much.
EPOCHS = 4


def keys_of(epoch: int) -> range:
    """Half of an epoch's keys are those of the epoch before, and some are as old as can be."""
    return range((epoch - 1) * STEP, (epoch - 1) * STEP + ROWS)


def add(spark: SparkSession, job: Job, epoch: int, old: int = 500) -> list[tuple[int, int]]:
    """Run an epoch; return what it emitted."""
    keys = keys_of(epoch)
    df = spark.range(keys.start, keys.stop).union(spark.range(0, old if epoch > 1 else 0))
    df = df.selectExpr("id AS k", f"{epoch}L AS v", "repeat(concat('<', id, '>'), 9) AS note")

    def pipeline(df: DataFrame) -> DataFrame:
        return job.key_by(df, "k", uid="notes").process(Notes(), schema="k long, n long")

    result = job.run_epoch(df, pipeline)
    return sorted((row.k, row.n) for row in result.dataframe.collect())


def model_after(epochs: int, old: int = 500) -> dict[int, int]:
    model: dict[int, int] = {}
    for epoch in range(1, epochs + 1):
        for key in [*keys_of(epoch), *range(old if epoch > 1 else 0)]:
            model[key] = model.get(key, 0) + epoch
    return model


def check(job: Job, epochs: int) -> None:
    found = state_of(job, "notes")
    assert found == {k: (n, f"<{k}>" * 9) for k, n in model_after(epochs).items()}


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the tasks of each epoch say of their ranges."""
    seen: list[dict[str, Any]] = []
    of = EpochProgress.of

    def noted(epoch: Any, operators: Any, given: list[RangeReport], *more: Any) -> EpochProgress:
        seen.extend(
            {"uid": report.uid, "epoch": epoch.number, **report.metrics} for report in given
        )
        return of(epoch, operators, given, *more)

    monkeypatch.setattr(EpochProgress, "of", noted)
    return seen


def test_state_is_several_times_the_memory(
    spark: SparkSession,
    make_job: MakeJob,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reports: list[dict[str, Any]],
) -> None:
    """Rows leave and come back, within epochs, too, workers die, and nothing differs from a
    recomputation.
    """
    job = make_job(table_home="disk", memory_limit_bytes=MIB)
    flags = {point: tmp_path / point for point in POINTS}
    for epoch in range(1, EPOCHS + 1):
        with monkeypatch.context() as patch:
            if epoch == EPOCHS - 1:
                patch.setattr("pystate.spark.operators.apply.arrow_map", deadly_map(flags))
            emitted = add(spark, job, epoch)
        model = model_after(epoch)
        touched = {*keys_of(epoch), *range(500 if epoch > 1 else 0)}
        assert dict(emitted) == {k: model[k] for k in touched}
    check(job, EPOCHS)
    assert all(flag.exists() for flag in flags.values())
    assert sum(report["rows_left"] for report in reports) > 5000
    assert sum(report["steps"] for report in reports) > 2
    assert sum(report["rows_looked_up"] for report in reports) > 5000
    last = [report for report in reports if report["epoch"] == EPOCHS]
    here = sum(report["rows_in_memory"] for report in last)
    assert 0 < here < len(model_after(EPOCHS)) * 3 // 4
    # A key that several files put counts in each.
    assert len(model_after(EPOCHS - 1)) <= sum(report["keys"] for report in last)
    progress = job.last_progress
    assert progress is not None and progress.hit_rate is not None
    [notes] = [each for each in progress.operators if each.uid == "notes"]
    assert notes.rows_in_memory == here and notes.cache_misses > 0 and notes.files_asked > 0
    assert notes.cache_hits + notes.cache_misses > 0 and notes.read_bytes == progress.read_bytes > 0
    assert "hits in memory" in str(progress)
    assert all(report["rows_restored"] == 0 for report in reports)


def test_another_home_and_parallelism(
    spark: SparkSession, make_job: MakeJob, reports: list[dict[str, Any]]
) -> None:
    """Files of tables in memory are merged first, and tables in memory read those of a disk.

    An aggregation emits what the epoch has touched, whether it was in memory at the end or not.
    """
    homes: list[dict[str, Any]] = [
        {"table_home": "shm"},
        {"table_home": "disk", "memory_limit_bytes": MIB},
        {"table_home": "disk", "memory_limit_bytes": MIB, "parallelism": 3},
        {"table_home": "heap"},
    ]
    counts: dict[int, int] = {}
    for epoch, options in enumerate(homes, 1):
        job = make_job(**options)
        begin, end = epoch * 20_000, epoch * 20_000 + 60_000
        counts |= {key: counts.get(key, 0) + 1 for key in range(begin, end)}
        df = spark.range(begin, end).selectExpr("id AS k")

        def pipeline(df: DataFrame, job: Job) -> DataFrame:
            keyed = job.key_by(df, "k", uid="counts")
            return keyed.aggregate(n=ps.count(), most=ps.max("k"))

        result = job.run_epoch(df, pipeline)
        table = result.dataframe.toArrow()
        assert table["most"].equals(table["k"])
        found = dict(zip(table["k"].to_pylist(), table["n"].to_pylist(), strict=True))
        assert found == {key: counts[key] for key in range(begin, end)}
        assert len(table) == len(found)
        assert {k: n for k, (n, _) in state_of(job, "counts").items()} == counts
        job.close()
    on_disk = [report for report in reports if report["epoch"] in (2, 3)]
    # The table of the job before may be there yet, which is removed soon after its job was closed.
    assert {report["attached"] for report in on_disk} <= {"opened", "current"}
    assert all(report.get("steps", 0) > 0 for report in on_disk), on_disk


class Later(ps.VectorizedFunction):
    """Emits each row's key when its timer fires, with the number of rows until then."""

    n = ps.ValueState("long", default=0)
    note = ps.ValueState("string")

    def process(self, keys: ps.KeyBatch, batch: Any, ctx: ps.RuntimeContext) -> Any:
        self.n.add(keys, 1)
        self.note.update_all(keys, batch.column("note"))
        ctx.register_event_time_timers(keys, pc.add(batch.column("t"), WAIT))

    def on_timers(self, keys: ps.KeyBatch, timestamps: Any, ctx: ps.RuntimeContext) -> Any:
        return {"k": keys.key_arrays()[0], "at": timestamps, "n": self.n.values(keys)}


#: Of event time, how long an epoch is, and after what time rows are emitted: two epochs later.
SPAN, WAIT = 100_000, 50_000
TIMED_EPOCHS, TIMED_STEP, TIMED_ROWS = 4, 6000, 10_000
#: The only rows of the last epochs, by which all before is over.
LAST = {5: 10**8, 6: 2 * 10**8}


def timed_pipeline(df: DataFrame, job: Job) -> DataFrame:
    """A function with timers, windows that slide, and a join with the epoch before."""
    timed = job.key_by(df, "k", uid="later", event_time="t")
    later = timed.process(Later(), schema="k long, at long, n long")
    windows = job.key_by(df, "k", uid="windows", event_time="t").window(ps.Sliding(2 * SPAN, SPAN))
    counted = windows.aggregate(n=ps.count(), last=ps.max("t"), sum=ps.sum("k"))
    left = job.key_by(df.select("k", "t", "note"), "k", uid="joined", event_time="t")
    right = job.key_by(df.selectExpr("k AS key", "t AS later"), "key", event_time="later")
    joined = left.interval_join(right, SPAN, SPAN)
    return (
        later.selectExpr("'later' AS op", "k", "at", "n")
        .union(counted.selectExpr("'windows'", "k", "window_end", "n"))
        .union(joined.selectExpr("'joined'", "k", "t", "later - t"))
    )


def timed_rows(epoch: int) -> list[tuple[int, int]]:
    """The rows of an epoch, as keys and times."""
    if epoch in LAST:
        return [(-1, LAST[epoch])]
    begin = (epoch - 1) * TIMED_STEP
    return [(k, epoch * SPAN + k % 1000) for k in range(begin, begin + TIMED_ROWS)]


def timed_model() -> Counter[tuple[str, int, int, int]]:
    found: Counter[tuple[str, int, int, int]] = Counter()
    counts: Counter[int] = Counter()
    seen: set[tuple[int, int]] = set()
    windows: Counter[tuple[int, int]] = Counter()
    waiting: set[tuple[int, int]] = set()
    watermark = -1
    for epoch in range(1, max(LAST) + 1):
        rows = timed_rows(epoch)
        for k, t in rows:
            counts[k] += 1
            waiting.add((k, t + WAIT))
            windows[k, t // SPAN * SPAN + SPAN] += 1
            windows[k, t // SPAN * SPAN + 2 * SPAN] += 1
            if (k, t - SPAN) in seen:
                found["joined", k, t - SPAN, SPAN] += 1
            seen.add((k, t))
        due = {timer for timer in waiting if timer[1] <= watermark}
        found.update(("later", k, at, counts[k]) for k, at in due)
        waiting -= due
        for (k, end), n in list(windows.items()):
            if end <= watermark:
                found["windows", k, end, n] += 1
                del windows[k, end]
        watermark = max(watermark, *(t for _, t in rows))
    return found


def test_timers_windows_and_joins(
    spark: SparkSession,
    make_job: MakeJob,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reports: list[dict[str, Any]],
) -> None:
    """Operators whose state has times: of each it is several times the memory; workers die."""
    job = make_job(table_home="disk", memory_limit_bytes=2 * MIB)
    flags = {point: tmp_path / point for point in POINTS}
    found: Counter[tuple[str, int, int, int]] = Counter()
    for epoch in range(1, max(LAST) + 1):
        if epoch == TIMED_EPOCHS:
            job.close()
            job = make_job(table_home="disk", memory_limit_bytes=2 * MIB, parallelism=3)
        rows = pa.table(dict(zip(("k", "t"), zip(*timed_rows(epoch), strict=True), strict=True)))
        df = spark.createDataFrame(rows).selectExpr("*", "repeat(concat('<', k, '>'), 9) AS note")
        with monkeypatch.context() as patch:
            if epoch == TIMED_EPOCHS - 1:
                patch.setattr("pystate.spark.operators.apply.arrow_map", deadly_map(flags))
            result = job.run_epoch(df, lambda df, job=job: timed_pipeline(df, job))
        found.update(map(tuple, result.dataframe.collect()))
    assert found == timed_model()
    assert all(flag.exists() for flag in flags.values())
    for uid in ("later", "windows", "joined"):
        mine = [report for report in reports if report["uid"] == uid]
        assert sum(report["steps"] for report in mine) > 2, uid
        assert sum(report["rows_left"] for report in mine) > 2000, uid
        assert sum(report["rows_looked_up"] for report in mine) > 2000, uid


def test_held_epochs_with_timers_are_replayed(
    spark: SparkSession,
    make_job: MakeJob,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reports: list[dict[str, Any]],
) -> None:
    """Batches between two checkpoints take several steps each, and have timers due in them; a
    worker dies, and then all of them are lost.
    """
    source = Source(spark, tmp_path / "input", "k long, t long")
    for epoch in [*range(1, TIMED_EPOCHS + 1), *LAST]:
        source.add(*(f"{k},{t}" for k, t in timed_rows(epoch)))
    alive = tmp_path / "rows"
    alive.touch()
    options: dict[str, Any] = {"table_home": "disk", "memory_limit_bytes": 2 * MIB}

    def started(job: Job, last: int) -> Any:
        batches: list[int] = []

        def pipeline(df: DataFrame) -> DataFrame:
            batches.append(1)
            if len(batches) == last - 1:
                alive.unlink()
            if len(batches) == last:
                raise ValueError("a mistake in the pipeline")
            df = df.selectExpr("*", "repeat(concat('<', k, '>'), 9) AS note")
            keyed = job.key_by(df, "k", uid="later", event_time="t")
            return keyed.process(Later(), schema="k long, at long, n long").select("k", "at")

        sink = ParquetSink(tmp_path / "out")
        return job.start(source.stream(), pipeline, sink=sink, trigger={"availableNow": True})

    job = make_job(checkpoints=ps.CheckpointOptions(interval=3), **options)
    query = started(job, 4)
    with monkeypatch.context() as patch, pytest.raises(Exception, match="a mistake"):
        patch.setattr(
            "pystate.spark.operators.apply.arrow_map", deadly_map(dict.fromkeys(POINTS, alive))
        )
        query.awaitTermination()
    assert job.latest_epoch() == 1 and alive.exists()
    job.close()
    held = [report for report in reports if report["epoch"] == 2]
    assert sum(report.get("steps", 0) for report in held) > 2
    job = make_job(checkpoints=ps.CheckpointOptions(interval=3), **options)
    started(job, 0).awaitTermination()
    # By now all rows are in; a last one has the timers of the others fire.
    source.add(f"-1,{3 * LAST[max(LAST)]}")
    started(job, 0).awaitTermination()
    rows = [row for epoch in range(1, max(LAST) + 1) for row in timed_rows(epoch)]
    table = pq.read_table(tmp_path / "out", columns=["k", "at"])
    found = Counter(zip(table["k"].to_pylist(), table["at"].to_pylist(), strict=True))
    # The last row but the one added is by its time the newest that the watermark knew of.
    assert found == Counter({(k, t + WAIT) for k, t in rows if t < max(LAST.values())})
    counts = Counter(k for k, _ in rows)
    counts[-1] += 1
    assert {k: n for k, (n, _) in state_of(job, "later").items()} == counts
    again = [report for report in reports[len(held) :] if report["epoch"] >= 2]
    assert sum(report.get("steps", 0) for report in again) > 2
