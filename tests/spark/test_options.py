"""What a job's options refuse and choose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.errors import DeclarationError, InvalidArgumentError, TableMovedError

from .conftest import rows_of, state_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]


class Remembering(ps.KeyedProcessFunction):
    seen = ps.ValueState(object)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
        before = self.seen.value()
        self.seen.update(complex(len(str(before)), 1))
        yield key, str(before)


def test_pickled_states_are_refused_where_the_job_says_so(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    schema = "k long, before string"
    df = spark.range(3).selectExpr("id AS k")
    for job in (make_job(), make_job(allow_pickle=False)):

        def frames(frame: Any, job: Job = job) -> Any:
            return job.key_by(frame, "k", uid="objects").process(Remembering(), schema)

        def elements(rdd: Any, job: Job = job) -> Any:
            split = job.partition_by(rdd, int, key_type="long", uid="objects")
            return split.mapPartitions(job.partitions(Remembering(), uid="objects"))

        if job._epochs.options.tables.allow_pickle:
            assert job.run_epoch(df, frames).epoch == 1
            continue
        for data, pipeline in ((df, frames), (spark.sparkContext.range(3), elements)):
            with pytest.raises(DeclarationError, match="operator 'objects': 'seen' would be pick"):
                job.run_epoch(data, pipeline, schema=schema)
        assert len(list((tmp_path / "checkpoint" / "manifests").glob("0*.manifest"))) == 1


class Growing(ps.KeyedProcessFunction):
    """Keeps as many characters as it is told."""

    text = ps.ValueState("string")

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
        self.text.update((self.text.value() or "") + "x" * row["size"])
        yield key, len(self.text.value())


def grown(job: Job, spark: SparkSession, size: int) -> dict[int, int]:
    df = spark.range(200).selectExpr("id AS k", f"{size} AS size")
    result = job.run_epoch(
        df, lambda df: job.key_by(df, "k", uid="texts").process(Growing(), "k long, size long")
    )
    return dict(rows_of(result.dataframe))


def tables_in(folder: Path) -> list[Path]:
    return list(folder.rglob("*.table"))


def test_tables_that_outgrow_their_place_within_an_epoch(
    spark: SparkSession, make_job: MakeJob, small: Path
) -> None:
    job, local = make_job(table_home=small), Path(spark.conf.get("spark.local.dir"))
    before = set(tables_in(local))
    assert grown(job, spark, 100) == dict.fromkeys(range(200), 100)
    assert len(tables_in(small)) == 2 and set(tables_in(local)) == before
    assert grown(job, spark, 100_000) == dict.fromkeys(range(200), 100_100)
    moved = set(tables_in(local)) - before
    assert moved and len(moved) + len(tables_in(small)) == 2
    assert grown(job, spark, 1) == dict.fromkeys(range(200), 100_101)
    assert {k: len(text) for k, text in state_of(job, "texts").items()} == dict.fromkeys(
        range(200), 100_101
    )
    assert job.last_progress is not None and job.last_progress.evaluations == 1


def test_an_epoch_whose_table_has_moved_is_computed_again(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    """Also where every attempt of its task has met one."""
    job = make_job(parallelism=1)

    class Moving(Growing):
        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
            yield from super().process(key, row, ctx)
            for attempt in range(4):
                flag = tmp_path / f"attempt-{attempt}"
                if not flag.exists():
                    flag.touch()
                    raise TableMovedError(28, "operator 'texts': its table moved")

    df = spark.range(3).selectExpr("id AS k", "5 AS size")
    result = job.run_epoch(
        df, lambda df: job.key_by(df, "k", uid="texts").process(Moving(), "k long, size long")
    )
    assert rows_of(result.dataframe) == [(0, 5), (1, 5), (2, 5)]
    assert job.last_progress is not None and job.last_progress.evaluations == 2


def test_where_tables_are(spark: SparkSession, make_job: MakeJob, tmp_path: Path) -> None:
    local = Path(spark.conf.get("spark.local.dir"))
    before = set(tables_in(local))
    for home, folder in (("local", local), (tmp_path / "mine", tmp_path / "mine"), ("heap", None)):
        assert len(grown(make_job(table_home=home), spark, 10)) == 200
        found = set(tables_in(local)) - before if folder == local else set(tables_in(tmp_path))
        # The heap adds none to those that are there.
        assert len(found) == 2, home
    with pytest.raises(InvalidArgumentError, match="table_home is 'shm'"):
        make_job(table_home="relative/folder")
    with pytest.raises(InvalidArgumentError, match="shared_tables=False"):
        make_job(table_home="local", shared_tables=False)
