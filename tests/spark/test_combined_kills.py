"""Rows combined before the shuffle, while workers and drivers are killed: exactly once.

Everything is compared with a recomputation from all rows, which are drawn from a seed that is
printed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pystate.operators.runtime.partial_rows import COMBINED_ROWS
from pystate.spark import ParquetSink
from pystate.spark.evaluation import operator_traits

from .combined_job import CRASHES, KINDS, PARALLELISM, Recomputed, frame, pipeline, rows_of_epoch
from .conftest import python_path
from .deadly import POINTS, deadly_map

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pystate.spark import EpochResult, Job

MakeJob = Callable[..., "Job"]


class CrashError(Exception):
    """Stands for the end of the driver."""


def crash(*_: object) -> None:
    raise CrashError


def emitted(result: EpochResult) -> set[tuple[Any, ...]]:
    rows = [tuple(row) for row in result.dataframe.collect()]
    assert len(rows) == len(set(rows))
    return set(rows)


def kept(job: Job, kind: str) -> set[tuple[Any, ...]]:
    key = ("k",) if kind == "keys" else ("k", "namespace")
    names = (*key, "n", "some", "total", "most")
    rows = job.read_state("a").to_pylist()
    # A count that no row of a window has raised is not stored.
    for row in rows:
        row["some"] = row["some"] or 0
    found = {tuple(row[name] for name in names) for row in rows}
    assert len(found) == len(rows)
    return found


def all_rows(spark: SparkSession, sink: ParquetSink) -> list[tuple[Any, ...]]:
    """What readers of the whole folder see, however they name it."""
    found = sorted(map(tuple, sink.read(spark).drop("epoch").collect()), key=repr)
    for pattern in (sink.path, f"{sink.path}/*", f"{sink.path}/*/*"):
        other = spark.read.parquet(pattern).select(*sink.read(spark).drop("epoch").columns)
        assert sorted(map(tuple, other.collect()), key=repr) == found
    return found


@pytest.mark.parametrize("kind", [pytest.param("keys", marks=pytest.mark.slow), "windows"])
def test_equals_a_recomputation(
    kind: str,
    spark: SparkSession,
    make_job: MakeJob,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    # The first epoch shows that combining pays.
    monkeypatch.setattr(operator_traits, "_LEAST_ROWS", 10)
    monkeypatch.setattr(operator_traits, "_BEGINS", 2)
    monkeypatch.setattr(operator_traits, "_GOES_ON", 1)
    came: list[bool] = []
    note = operator_traits.CombinePolicy.note

    def noted(self: Any, reports: Any) -> None:
        came.append(any(COMBINED_ROWS in report.metrics for report in reports))
        note(self, reports)

    monkeypatch.setattr(operator_traits.CombinePolicy, "note", noted)
    # A task gets its rows in several pieces.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    request.addfinalizer(lambda: spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch"))
    sink = ParquetSink(tmp_path / "out")
    model, every = Recomputed(kind), []
    job = make_job(parallelism=PARALLELISM)

    def run(number: int) -> EpochResult:
        df = frame(spark, rows_of_epoch(seed, number))
        name = str(number)
        return job.run_epoch(
            df, lambda df: pipeline(df, job, kind, "auto"), run_key=name, sink=sink
        )

    flags = {point: tmp_path / point for point in POINTS}
    for number, where in enumerate(("", "workers", *CRASHES)):
        if where in CRASHES:
            with monkeypatch.context() as patch, pytest.raises(CrashError):
                patch.setattr(CRASHES[where], crash)
                run(number)
            # A new driver knows nothing of earlier epochs, and combines no rows.
            job.close()
            job = make_job(parallelism=PARALLELISM)
        with monkeypatch.context() as patch:
            if where == "workers":
                mapped = deadly_map(flags)
                patch.setattr("pystate.spark.operators.apply.arrow_map", mapped)
            result = run(number)
        assert where != "workers" or all(flag.exists() for flag in flags.values())
        found = emitted(result)
        assert found == model.epoch(rows_of_epoch(seed, number)), where
        assert kept(job, kind) == model.state(), where
        every += found
    assert came[:3] == [False, True, False], came
    assert all_rows(spark, sink) == sorted(every, key=repr)
    assert not any((tmp_path / "out" / "_staging").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "where"), [*zip(KINDS, CRASHES, strict=True)])
def test_a_killed_driver(
    kind: str, where: str, spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    epochs = 3
    job_file = Path(__file__).with_name("combined_job.py")
    done = subprocess.run(
        [sys.executable, str(job_file), str(tmp_path), kind, str(epochs), where],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": python_path()},
        timeout=300,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    sink = ParquetSink(tmp_path / "out")
    assert len(sink.epochs()) == epochs - 1
    job = make_job(parallelism=PARALLELISM)
    model, every = Recomputed(kind), []
    for number in range(epochs + 1):
        rows = rows_of_epoch(0, number)
        # The driver before it has combined the rows of each epoch, and this one combines none.
        result = job.run_epoch(
            frame(spark, rows),
            lambda df: pipeline(df, job, kind, False),
            run_key=str(number),
            sink=sink,
        )
        assert result.already_done == (number < epochs - (where == "complete"))
        found = emitted(result)
        assert found == model.epoch(rows), number
        every += found
    assert kept(job, kind) == model.state()
    assert all_rows(spark, sink) == sorted(every, key=repr)
