"""Several outputs of one pipeline, and the columns and the folders of an output over its epochs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.errors import CheckpointError, InvalidArgumentError, SinkError
from pystate.spark import Job, ParquetSink, Sink, SinkTask, foreach_epoch

from .conftest import Source, python_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MakeJob = Callable[..., Job]

VISITS = [("ann", "home"), ("ann", "news"), ("bob", "home")]


def visits(spark: SparkSession, rows: list[tuple[str, str]]) -> DataFrame:
    return spark.createDataFrame(rows, "user string, page string")


def counts(df: DataFrame, job: Job) -> dict[str, DataFrame]:
    users = job.key_by(df, "user", uid="users").aggregate(n=ps.count())
    pages = job.key_by(df, "page", uid="pages").aggregate(n=ps.count())
    return {"users": users, "pages": pages}


def content(frame: DataFrame | None) -> list[tuple[Any, ...]]:
    assert frame is not None
    return sorted(tuple(row) for row in frame.collect())


class Broken(Sink):
    """A sink whose method of some name fails, as often as is said."""

    name = "broken"

    def __init__(self, folder: Path, fails: str) -> None:
        self.folder, self.fails = str(folder), fails

    def _maybe(self, what: str) -> None:
        mark = f"{self.folder}/failed"
        if what == self.fails and not os.path.exists(mark):
            os.makedirs(self.folder, exist_ok=True)
            with open(mark, "w"):
                raise OSError(f"no {what} today")

    def stage(self, batches: Iterator[pa.RecordBatch], task: SinkTask) -> Any:
        return [row for batch in batches for row in batch.to_pylist()]

    def prepare(self, epoch: int, evaluation_id: str, receipts: list[Any]) -> Any:
        self._maybe("prepare")
        return [row for rows in receipts for row in rows]

    def commit(self, epoch: int, transaction: Any) -> None:
        self._maybe("commit")
        os.makedirs(self.folder, exist_ok=True)
        with open(f"{self.folder}/epoch-{epoch}", "w") as file:
            file.write(repr(sorted(row["page"] for row in transaction)))


def test_an_epoch_has_several_outputs_exactly_once(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    job = make_job()
    seen: list[tuple[int, list[Any]]] = []
    sinks = {
        "pages": foreach_epoch(lambda df, epoch: seen.append((epoch, content(df)))),
        "users": ParquetSink(tmp_path / "users"),
    }
    result = job.run_epoch(visits(spark, VISITS), counts, run_key="a", sink=sinks)
    assert content(sinks["users"].read(spark, 1)) == [("ann", 2), ("bob", 1)]
    assert seen == [(1, [("home", 2), ("news", 1)])]
    progress = job.last_progress
    assert progress is not None
    # Both operators read the same three rows.
    assert (progress.rows_in, progress.rows_out) == (3, 4)
    assert progress.outputs == {"users": 2, "pages": 2}
    assert progress.by_operator["users"].rows_in == 3
    assert "3 rows in, 4 out (2 to 'users', 2 to 'pages')" in str(progress)
    assert result.manifest is not None and len(result.manifest.sinks) == 2
    again = job.run_epoch(visits(spark, VISITS), counts, run_key="a", sink=sinks)
    assert again.already_done and len(seen) == 1
    with pytest.raises(InvalidArgumentError, match="has the outputs 'users', 'pages': pass sink="):
        job.run_epoch(visits(spark, VISITS), counts, run_key="a", sink=sinks["users"])


def test_without_sinks_the_result_has_the_frames_by_name(
    spark: SparkSession, make_job: MakeJob
) -> None:
    """Also where one operator feeds several of them, which is computed once."""

    def pipeline(df: DataFrame, job: Job) -> dict[str, DataFrame]:
        frames = counts(df, job)
        return {**frames, "many": frames["users"].where("n > 1"), "again": frames["users"]}

    job = make_job()
    for turn in (1, 2):
        frames = job.run_epoch(visits(spark, VISITS), pipeline, run_key=str(turn)).dataframes
        assert content(frames["users"]) == [("ann", 2 * turn), ("bob", turn)]
        assert content(frames["again"]) == content(frames["users"])
        assert content(frames["many"])[0] == ("ann", 2 * turn)
        assert content(frames["pages"]) == [("home", 2 * turn), ("news", turn)]
    again = job.run_epoch(visits(spark, VISITS), pipeline, run_key="1")
    assert again.already_done and content(again.dataframes["users"]) == [("ann", 2), ("bob", 1)]
    with pytest.raises(InvalidArgumentError, match=r"has the outputs .* result.dataframes\['users"):
        _ = again.dataframe


@pytest.mark.parametrize("fails", ["prepare", "commit"])
def test_one_sink_that_fails_keeps_the_others_from_more_or_less(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, fails: str
) -> None:
    sinks = {
        "users": ParquetSink(tmp_path / "users"),
        "pages": Broken(tmp_path / "pages", fails),
    }
    with pytest.raises(SinkError, match=f"no {fails} today"):
        make_job().run_epoch(visits(spark, VISITS), counts, run_key="a", sink=sinks)
    published = fails == "commit"
    assert (make_job().latest_epoch() == 1) == published
    assert (sinks["users"].epochs() == [1]) == published
    # Another driver commits what waits, or computes it again.
    result = make_job().run_epoch(visits(spark, VISITS), counts, run_key="a", sink=sinks)
    assert result.already_done == published and result.epoch == 1
    assert sinks["users"].epochs() == [1]
    assert content(sinks["users"].read(spark, 1)) == [("ann", 2), ("bob", 1)]
    assert (tmp_path / "pages" / "epoch-1").read_text() == "['home', 'news']"


DRIVER = """
import os, signal, sys
from pathlib import Path
from pyspark.sql import SparkSession
from pystate.spark import Job, ParquetSink
from tests.spark.test_outputs import VISITS, Broken, counts, visits

folder = Path(sys.argv[1])
Broken.commit = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
         .config("spark.driver.host", "127.0.0.1").getOrCreate())
sinks = {"users": ParquetSink(folder / "users"), "pages": Broken(folder / "pages", "never")}
Job("test", checkpoint=folder / "checkpoint", parallelism=2).run_epoch(
    visits(spark, VISITS), counts, run_key="a", sink=sinks
)
"""


@pytest.mark.slow
def test_a_driver_killed_between_the_commits_of_two_outputs(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": python_path()},
        start_new_session=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    sinks = {
        "users": ParquetSink(tmp_path / "users"),
        "pages": Broken(tmp_path / "pages", "never"),
    }
    # One is committed, and the other one is not.
    assert sinks["users"].epochs() == [1] and not (tmp_path / "pages").exists()
    published = sorted((tmp_path / "users").rglob("*.parquet"))
    job = make_job()
    assert job.run_epoch(visits(spark, VISITS), counts, run_key="a", sink=sinks).already_done
    assert sorted((tmp_path / "users").rglob("*.parquet")) == published
    assert (tmp_path / "pages" / "epoch-1").read_text() == "['home', 'news']"
    result = job.run_epoch(visits(spark, VISITS[:1]), counts, run_key="b", sink=sinks)
    assert result.epoch == 2 and sinks["users"].epochs() == [1, 2]
    # The last column is the epoch.
    assert content(sinks["users"].read(spark)) == [("ann", 2, 1), ("ann", 3, 2), ("bob", 1, 1)]
    assert (tmp_path / "pages" / "epoch-2").read_text() == "['home']"


def test_a_stream_has_several_outputs_and_holds_them(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    """Three batches make two checkpoints: rows of the outputs wait for theirs."""
    source = Source(spark, tmp_path / "in", "user string, page string")
    for user, page in VISITS:
        source.add(f"{user},{page}")
    job = make_job(checkpoints=ps.CheckpointOptions(interval=2))
    seen: list[tuple[int, list[Any]]] = []
    sinks = {
        "users": ParquetSink(tmp_path / "users"),
        "pages": foreach_epoch(lambda df, epoch: seen.append((epoch, content(df)))),
    }
    query = job.start(source.stream(), counts, sink=sinks, trigger={"availableNow": True})
    query.awaitTermination()
    assert job.failure is None
    rows = [
        row
        for epoch in sinks["users"].epochs()
        for row in content(sinks["users"].read(spark, epoch))
    ]
    assert sorted(rows) == [("ann", 1), ("ann", 2), ("bob", 1)]
    assert sorted(row for _, part in seen for row in part) == [
        ("home", 1),
        ("home", 2),
        ("news", 1),
    ]


def test_what_a_pipeline_returns_and_its_sinks_must_fit(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    job, data = make_job(), visits(spark, VISITS)
    one, two = ParquetSink(tmp_path / "one"), ParquetSink(tmp_path / "two")

    def refused(match: str, result: Any = counts, **sinks: Any) -> None:
        pipeline = result if callable(result) else lambda df: result
        with pytest.raises(InvalidArgumentError, match=match):
            job.run_epoch(data, pipeline, **sinks)

    refused("sink= is one sink: pass a sink for each, sink={'users'", sink=one)
    refused("and sink= is one sink", sink=one, side_outputs={"pages": two})
    refused("no sink for 'pages' and a sink for 'page'", sink={"users": one, "page": two})
    refused("no sink for 'pages'", sink={"users": one})
    refused("sink is an empty dict", sink={})
    refused(r"sink\['users'\] is None", sink={"users": None, "pages": two})
    refused(r"both write to", sink={"users": one, "pages": ParquetSink(one.path)})
    refused(r"sink\['users'\] is a sink, for example", sink={"users": "/out", "pages": two})
    refused("returned one DataFrame, and sink= has sinks for", data, sink={"a": one})
    refused("returned an empty dict: it must return a DataFrame.*a dict of DataFrames", {})
    refused("returned None: it must return a DataFrame.*a dict of DataFrames", lambda df: None)
    refused("result is a DataFrame of Spark, not .*: it must return a DataFrame", [data, data])
    refused("output 'users' is a DataFrame of Spark, not None.*: it must", {"users": None})
    refused("the name of an output", {7: data})
    assert job.latest_epoch() is None


# ---- columns over the epochs -------------------------------------------------------------------


def test_columns_may_be_added_and_left_out_and_are_all_read(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    from pyspark.sql import functions as F

    job, sink = make_job(), ParquetSink(tmp_path / "out")
    changes: list[Callable[[DataFrame], DataFrame]] = [
        lambda df: df,
        lambda df: df.withColumn("extra", F.lit("x")),
        lambda df: df.select(F.col("n"), F.lit(1.5).alias("more")),
    ]
    for change in changes:
        job.run_epoch(
            visits(spark, [("ann", "home")]),
            lambda df, job, change=change: change(
                job.key_by(df, "user", uid="u").aggregate(n=ps.count())
            ),
            sink=sink,
        )
    for _ in range(2):
        found = sink.read(spark)
        assert found.columns == ["user", "n", "extra", "more", "epoch"]
        rows = sorted(
            (
                tuple(row[name] for name in ("user", "n", "extra", "more"))
                for row in found.collect()
            ),
            key=lambda row: row[1],
        )
        assert rows == [
            ("ann", 1, None, None),
            ("ann", 2, "x", None),
            (None, 3, None, 1.5),
        ]
        merged = spark.read.option("mergeSchema", "true").parquet(sink.path)
        assert set(merged.columns) == set(found.columns)
        (Path(sink.path) / "_columns.json").unlink(missing_ok=True)  # a folder of before
    sink.compact(spark)
    assert sink.read(spark).count() == 3


@pytest.mark.parametrize("by", [(), ("user",)], ids=["flat", "laid out"])
def test_columns_that_do_not_fit_are_refused_before_anything_is_published(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, by: tuple[str, ...]
) -> None:
    job, sink = make_job(), ParquetSink(tmp_path / "out", partition_by=by)

    def run(change: str) -> None:
        job.run_epoch(
            visits(spark, [("ann", "home")]),
            lambda df, job: (
                job.key_by(df, "user", uid="u")
                .aggregate(n=ps.count())
                .selectExpr("user", *split(change))
            ),
            sink=sink,
        )

    struct = "named_struct('a', 1, 'b', array('x')) s"
    run(f"n, {struct}")
    for expression, match in (
        ("cast(n as string) n", "column 'n' is string, and in earlier epochs it was bigint"),
        ("cast(n as int) n", "column 'n' is int, and in earlier epochs it was bigint"),
        ("n as N", "column 'N' was called 'n' in earlier epochs"),
        ("n, named_struct('a', 1L, 'b', array('x')) s", "column 's' is struct<a:bigint"),
    ):
        with pytest.raises(InvalidArgumentError, match=match):
            run(expression)
        assert job.latest_epoch() == 1 and sink.epochs() == [1]
    run(f"n, 1L as N2, {struct}")
    assert sorted(row.n for row in sink.read(spark).collect()) == [1, 2]


def split(expressions: str) -> list[str]:
    """The parts at the commas outside of brackets."""
    parts, depth = [""], 0
    for char in expressions:
        depth += (char == "(") - (char == ")")
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def test_a_folder_that_was_removed_between_epochs_is_noticed(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    job, sink = make_job(), ParquetSink(tmp_path / "out")

    def run() -> None:
        job.run_epoch(
            visits(spark, VISITS),
            lambda df, job: job.key_by(df, "user", uid="u").aggregate(n=ps.count()),
            sink=sink,
        )

    run()
    shutil.rmtree(sink.path)
    with pytest.raises(CheckpointError, match=r"out is gone, and with it the output of epochs up"):
        run()
    assert job.latest_epoch() == 1
    os.mkdir(sink.path)
    run()
    assert sink.epochs() == [2]
