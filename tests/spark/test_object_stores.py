"""A job whose checkpoint is in an object store, on a real Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.errors import InvalidArgumentError, MissingRequirementError

from .conftest import Source, rows_of, state_of
from .deadly import POINTS, deadly_map
from .test_disk import Notes, check, keys_of, reports  # noqa: F401

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]


@pytest.fixture
def url(spark: SparkSession, object_store: dict[str, str], s3_url: str) -> Iterator[str]:
    """A prefix that Spark's workers can use, too, as ``spark.executorEnv`` would let them."""
    environment = spark.sparkContext.environment
    environment.update(object_store)
    yield s3_url
    for name in object_store:
        del environment[name]


def counting(job: Job) -> Callable[[DataFrame], DataFrame]:
    return lambda df: job.key_by(df, "k", uid="counts").aggregate(n=ps.count())


def test_epochs_a_restart_and_a_savepoint(
    spark: SparkSession, make_job: MakeJob, url: str, tmp_path: Path
) -> None:
    from pystate.spark import ParquetSink

    sink = ParquetSink(tmp_path / "out")
    data = spark.createDataFrame([("a",), ("b",), ("a",)], "k string").coalesce(1)
    job = make_job(checkpoint=url)
    job.run_epoch(data, counting(job), run_key="monday", sink=sink)
    job.close()
    assert job.checkpoint == url

    # In tables of its own: the state comes from the files.
    again = make_job(checkpoint=f"{url}/", table_home="heap")
    assert again.run_epoch(data, counting(again), run_key="monday", sink=sink).already_done
    assert again.run_epoch(data, counting(again), run_key="friday", sink=sink).epoch == 2
    assert state_of(again, "counts") == {"a": 4, "b": 2}
    again.savepoint(f"{url}/savepoints/friday")
    again.close()
    assert ps.verify(url).ok and ps.verify(f"{url}/savepoints/friday").ok
    assert rows_of(spark.read.parquet(str(sink.path)).select("epoch", "k", "n"))[-2:] == [
        (2, "a", 4),
        (2, "b", 2),
    ]

    other = make_job(checkpoint=f"{url}-b", restore=f"{url}/savepoints/friday", parallelism=3)
    other.run_epoch(data, counting(other), run_key="saturday", sink=ParquetSink(tmp_path / "b"))
    assert state_of(other, "counts") == {"a": 6, "b": 3}


def test_what_needs_a_folder_says_so(
    source: Source, make_job: MakeJob, url: str, tmp_path: Path
) -> None:
    from pystate.spark import ParquetSink, foreach_epoch

    job = make_job(checkpoint=url)
    data: Any = source.stream()
    with pytest.raises(InvalidArgumentError, match=r"is no local folder.*pass a sink"):
        job.start(data, counting(job))
    with pytest.raises(InvalidArgumentError, match="this one is no local folder"):
        job.start(data, counting(job), sink=foreach_epoch(print))
    with pytest.raises(MissingRequirementError, match=r"no file system for s3a://.*hadoop-aws"):
        job.start(data, counting(job), sink=ParquetSink(tmp_path / "out"))


def test_tables_on_disk(
    spark: SparkSession,
    make_job: MakeJob,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reports: list[dict[str, Any]],  # noqa: F811
) -> None:
    """State of several times the memory, whose rows lie in objects; workers die."""
    from pystate.spark import ParquetSink

    sink = ParquetSink(tmp_path / "out")
    flags = {point: tmp_path / point for point in POINTS}

    def run(job: Job, epoch: int) -> None:
        keys = keys_of(epoch)
        df = spark.range(keys.start, keys.stop).union(spark.range(0, 500 if epoch > 1 else 0))
        df = df.selectExpr("id AS k", f"{epoch}L AS v", "repeat(concat('<', id, '>'), 9) AS note")

        def pipeline(df: DataFrame) -> DataFrame:
            return job.key_by(df, "k", uid="notes").process(Notes(), schema="k long, n long")

        job.run_epoch(df, pipeline, run_key=f"day {epoch}", sink=sink)

    options = {"checkpoint": url, "table_home": "disk", "memory_limit_bytes": 1 << 20}
    job = make_job(disk_bytes=64 << 20, **options)
    for epoch in range(1, 5):
        with monkeypatch.context() as patch:
            if epoch == 3:
                patch.setattr("pystate.spark.operators.apply.arrow_map", deadly_map(flags))
            run(job, epoch)
    check(job, 4)
    assert all(flag.exists() for flag in flags.values())
    assert sum(report["rows_left"] for report in reports) > 5000
    assert sum(report["rows_looked_up"] for report in reports) > 5000
    assert all(report["rows_restored"] == 0 for report in reports)
    assert ps.verify(url).ok

    # An executor that has none of it, and ranges that are cut anew.
    copies = list(Path(spark.conf.get("spark.local.dir") or "").rglob("*.object"))
    assert copies
    for copy in copies:
        copy.unlink()
    job.close()
    again = make_job(parallelism=3, **options)
    run(again, 5)
    check(again, 5)
