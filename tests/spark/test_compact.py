"""Compacting what jobs have written; test_compaction.py below `unit` goes through the steps."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.errors import CheckpointError, InUseError, InvalidArgumentError
from pystate.spark import Compaction, EpochProgress, Job, ParquetSink
from pystate.spark.sinks.commits import commit

from .conftest import Source, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MakeJob = Callable[..., Job]


def publish(sink: ParquetSink, frame: DataFrame, epoch: int) -> Any:
    sink.begin(epoch, "e")
    receipts = list(sink.stage_frame(frame, epoch, "e"))
    transaction = json.loads(json.dumps(sink.prepare(epoch, "e", receipts)))
    commit(transaction)
    return transaction


def files(sink: ParquetSink) -> int:
    return len(list(Path(sink.path).glob("epoch=*/**/part-*")))


def test_files_become_few_and_rows_stay(spark: SparkSession, tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "o [1]")
    schema = "n long, m map<string,array<int>>, `odd;name` decimal(38,10)"
    # From before the calendar's reform, too.
    times = "timestamp'1500-02-28 12:30:00.000001' AS at", "date'0001-01-01' AS day"

    def frame(n: int) -> DataFrame:
        rows = spark.createDataFrame([(n, {"a": [n, None]}, None)] * 2, schema)
        return rows.selectExpr("*", *times)

    newest = {epoch: publish(sink, frame(epoch).repartition(2), epoch) for epoch in range(1, 6)}[5]
    columns = ["n", "CAST(at AS string)", "CAST(day AS string)", "m", "`odd;name`"]
    before = [tuple(row) for row in sink.read(spark).selectExpr(*columns).sort("n").collect()]
    types = sink.read(spark).schema
    assert files(sink) == 10
    assert sink.compact(spark, before=4) == Compaction(3, 6, 1)
    assert sink.compact(spark) == Compaction(2, 3, 1)
    assert files(sink) == 3
    assert [tuple(r) for r in sink.read(spark).selectExpr(*columns).sort("n").collect()] == before
    assert sink.read(spark).schema == types
    # The newest may be committed again, the others are known.
    commit(newest)
    assert sink.epochs() == [1, 2, 3, 4, 5] and sink.read(spark, 5).count() == 2
    for epoch in (2, 4):
        with pytest.raises(InvalidArgumentError, match=f"epoch {epoch} cannot be told from those"):
            sink.read(spark, epoch)
        with pytest.raises(CheckpointError, match="output of another checkpoint"):
            sink.begin(epoch, "e")
    labels = {row.n: row.epoch for row in spark.read.parquet(f"file://{tmp_path}/o*").collect()}
    assert labels == {1: 4, 2: 4, 3: 4, 4: 4, 5: 5}
    assert [path.name for path in tmp_path.iterdir()] == ["o [1]"]


def test_a_layout_by_values(spark: SparkSession, tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "out", partition_by=["word", "day"])
    day = datetime.date(2026, 1, 1)
    rows = [(n, word, d) for n, word in enumerate(["007", "a/b", None, "50%"]) for d in (day, None)]
    for epoch, some in enumerate((rows, rows, [], rows[:1]), 1):
        frame = spark.createDataFrame(some, "n long, word string, day date").coalesce(1)
        publish(sink, frame, epoch)
    assert sink.compact(spark).files_after == 8
    found = sink.read(spark)
    assert rows_of(found.select("n", "word", "day")) == sorted([*rows * 2, rows[0]], key=repr)
    assert dict(found.dtypes)["word"] == "string" and files(sink) == 9


def test_columns_that_came_later(spark: SparkSession, tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "out")
    for epoch, columns in enumerate(["id", "id", "id, id AS b", "id, id AS b", "id"], 1):
        publish(sink, spark.range(2).selectExpr(*columns.split(", ")).coalesce(1), epoch)
    assert sink.compact(spark) == Compaction(4, 4, 2)
    found = spark.read.option("mergeSchema", "true").parquet(f"file://{tmp_path}/out")
    assert rows_of(found.select("epoch", "id", "b")) == sorted(
        [(2, i, None) for i in (0, 1)] * 2
        + [(4, i, i) for i in (0, 1)] * 2
        + [(5, i, None) for i in (0, 1)],
        key=repr,
    )


def test_rows_that_a_reader_leaves_out(spark: SparkSession, tmp_path: Path) -> None:
    """A setting that lets Spark leave rows out must not make them disappear."""
    sink = ParquetSink(tmp_path / "out")
    for epoch in (1, 2, 3):
        publish(sink, spark.range(10).coalesce(1), epoch)
    [file] = (tmp_path / "out" / "epoch=1").glob("part-*")
    data = bytearray(file.read_bytes())
    data[4:40] = b"\xff" * 36
    file.write_bytes(bytes(data))
    for crc in (tmp_path / "out" / "epoch=1").glob(".*.crc"):
        crc.unlink()
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        with pytest.raises(
            CheckpointError, match=r"hold \d+ rows, .*nothing was changed; look for"
        ):
            sink.compact(spark)
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")
    assert files(sink) == 3 and len(list(tmp_path.iterdir())) == 1


class Counts(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
        self.n.update(self.n.value() + 1)
        yield key, self.n.value()


def test_beside_a_job(
    spark: SparkSession, make_job: MakeJob, source: Source, tmp_path: Path
) -> None:
    sink, job, refused, done = ParquetSink(tmp_path / "out"), make_job(), [], []

    def pipeline(df: DataFrame) -> DataFrame:
        try:
            sink.compact(spark, wait=0)
        except InUseError as error:
            refused.append((job.latest_epoch(), str(error)))
        return job.key_by(df, "k", uid="counts").process(Counts(), "k string, n long")

    def on_epoch(progress: EpochProgress) -> None:
        if progress.epoch == 4:
            done.append(sink.compact(spark, wait=0))

    for _ in range(4):
        source.add("a,1", "b,1", "e,1")  # a file of each range
    job.start(
        source.stream(), pipeline, sink=sink, on_epoch=on_epoch, trigger={"availableNow": True}
    ).awaitTermination()
    # Before there were none to be merged.
    assert [epoch for epoch, _ in refused] == [2, 3]
    assert "by a job that has an epoch open: compact between epochs" in refused[0][1]
    assert done == [Compaction(3, 6, 1)]
    rows = sorted((k, n) for n in range(1, 5) for k in "abe")
    assert rows_of(sink.read(spark).select("k", "n")) == rows
    names = sorted(path.name for path in (tmp_path / "out").glob("epoch=*"))
    assert names == ["epoch=3", "epoch=4"]


def test_a_run_that_was_compacted(spark: SparkSession, make_job: MakeJob, tmp_path: Path) -> None:
    sink, job = ParquetSink(tmp_path / "out"), make_job()

    def run(key: str) -> Any:
        def pipeline(df: DataFrame) -> DataFrame:
            return job.key_by(df, "k", uid="counts").process(Counts(), "k string, n long")

        frame = spark.createDataFrame([("a",), ("b",)], "k string")
        return job.run_epoch(frame, pipeline, sink=sink, run_key=key)

    for key in ("one", "two", "three"):
        run(key)
    assert sink.compact(spark).epochs == 2
    again = run("two")
    assert again.already_done and again.epoch == 2
    with pytest.raises(InvalidArgumentError, match=r"rows of epoch 2 .*compacted them with other"):
        _ = again.dataframe
    assert rows_of(run("three").dataframe) == [("a", 3), ("b", 3)]
    # A job goes on, and the folder of another one is still another's.
    assert run("four").epoch == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"before": "3"}, "before is a whole number, not '3'"),
        ({"before": -1}, "before is -1, and must be at least 0"),
        ({"target_bytes": 0}, "target_bytes is 0, and must be at least 1"),
        ({"target_bytes": "128m"}, "target_bytes is a whole number"),
        ({"wait": "soon"}, "wait='soon': write a length of time"),
        ({"session": "spark"}, "session is a SparkSession, not 'spark'"),
        ({"session": None}, "session is a SparkSession, not None"),
    ],
)
def test_arguments(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    given = {"session": spark, **options}
    with pytest.raises(InvalidArgumentError, match=rf"^ParquetSink\('.*'\): compact: {message}"):
        ParquetSink(tmp_path / "out").compact(given.pop("session"), **given)
    assert ParquetSink(tmp_path / "out").compact(spark) == Compaction(0, 0, 0)
    assert not (tmp_path / "out").exists()
