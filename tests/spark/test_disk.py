"""A job's tables on disk: with much less memory than state, killed workers, another home."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.spark.epochs.progress import EpochProgress

from .conftest import state_of
from .deadly import POINTS, deadly_map

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.epochs.range_report import RangeReport
    from pystate.spark import Job

MakeJob = Callable[..., "Job"]
MIB = 1 << 20
ROWS, STEP = 8000, 5000
#: Of a table's memory the state is several times as much.
EPOCHS = 4


class Notes(ps.VectorizedFunction):
    n = ps.ValueState("long", default=0)
    note = ps.ValueState("string")

    def process(self, keys: ps.KeyBatch, batch: Any, ctx: ps.RuntimeContext) -> Any:
        self.n.add(keys, batch.column("v"))
        self.note.update_all(keys, batch.column("note"))
        return {"k": batch.column("k"), "n": self.n.values(keys)}


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
        seen.extend({"epoch": epoch.number, **report.metrics} for report in given)
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
