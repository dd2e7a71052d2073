"""Parquet output laid out by the values of columns."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

import pystate as ps
from pystate.errors import CheckpointError, InvalidArgumentError, PystateError, WrongTypeError
from pystate.spark import Job, ParquetSink
from pystate.spark.sinks.commits import commit

from .conftest import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MakeJob = Callable[..., Job]

#: What Hive escapes, what only looks like something else, and what a path could stumble over.
WORDS = [
    "007", "a/b", "..", ".", "a=b", "50%", "%41", "sp ace ", " ", "é\u4e2d\U0001f600",
    "x:y*?[z]{,}", "q\"'\\", "2026-01-01", "true", "null", "new\nline\ttab\x7f\x01", "_hidden",
    ".dot", "a" * 100, None,
]  # fmt: skip
DAY = datetime.date(2026, 1, 2)


def stage(sink: ParquetSink, frame: DataFrame, epoch: int, evaluation: str = "e") -> Any:
    sink.begin(epoch, evaluation)
    sink.check_columns(frame.columns)
    receipts = list(sink.stage_frame(frame, epoch, evaluation))
    return json.loads(json.dumps(sink.prepare(epoch, evaluation, receipts)))


def uri(path: Path) -> str:
    return f"file://{path}"


def test_values_come_back(spark: SparkSession, tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "o [1]", partition_by=["word", "day"])
    assert repr(sink).endswith("o [1]', partition_by=['word', 'day'])")
    rows = [(i, word, DAY if i % 2 else None) for i, word in enumerate(WORDS)]
    frame = spark.createDataFrame(rows, "n long, word string, day date").repartition(2)
    transaction = stage(sink, frame, 3)
    assert transaction["rows"] == len(rows) <= len(transaction["files"]) + 1
    for _ in range(2):
        commit(transaction)
    wanted = sorted((n, word, day, 3) for n, word, day in rows)
    found = sink.read(spark)
    assert found.dtypes == [
        ("n", "bigint"), ("epoch", "int"), ("word", "string"), ("day", "date")
    ]  # fmt: skip
    assert sorted(map(tuple, found.select("n", "word", "day", "epoch").collect())) == wanted
    one = sink.read(spark, 3)
    assert one.columns == ["n", "word", "day"] and one.count() == len(rows)
    # Without a sink, who says the types gets the same.
    folder = glob(f"{tmp_path}/o*")[0].replace("[", "\\[").replace("]", "\\]")
    plain = spark.read.schema("n long, word string, day date, epoch int").parquet(
        f"file://{folder}"
    )
    assert sorted(map(tuple, plain.select("n", "word", "day", "epoch").collect())) == wanted
    assert plain.where("word = 'a/b' AND day IS NULL").count() == 0
    assert plain.where("word = 'a/b' AND day = '2026-01-02'").count() == 1


def test_all_types(spark: SparkSession, tmp_path: Path) -> None:
    types = {
        "b": ("boolean", [True, False]),
        "t": ("tinyint", [-128, 7]),
        "s": ("smallint", [-1, 7]),
        "i": ("int", [-(2**31), 7]),
        "l": ("bigint", [2**63 - 1, 7]),
        "d": ("date", [datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
        "p": ("decimal(20,2)", [Decimal("-1.50"), Decimal("0.00")]),
    }
    sink = ParquetSink(tmp_path, partition_by=list(types))
    values = [found for _, found in types.values()]
    rows = [(0, *(one for one, _ in values)), (1, *(other for _, other in values))]
    rows.append((2, *(None for _ in values)))
    schema = ", ".join(["x int", *(f"{name} {ddl}" for name, (ddl, _) in types.items())])
    commit(stage(sink, spark.createDataFrame(rows, schema), 1))
    read = sink.read(spark, 1)
    assert dict(read.dtypes) == {"x": "int", **{name: ddl for name, (ddl, _) in types.items()}}
    assert sorted(map(tuple, read.select("x", *types).collect())) == rows


@pytest.mark.parametrize("deep", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3))])
def test_staged_rows_are_hidden_at_every_depth(
    spark: SparkSession, tmp_path: Path, deep: int
) -> None:
    sink = ParquetSink(tmp_path, partition_by=["a", "b", "c"][:deep])
    frame = spark.range(4).selectExpr("id", "id % 2 AS a", "1 AS b", "1 AS c")
    commit(stage(sink, frame, 3, "published"))
    stage(sink, spark.range(100).selectExpr("id", "7L AS a", "1 AS b", "1 AS c"), 4, "staged")
    reader = spark.read.option("basePath", uri(tmp_path))
    for depth in range(deep + 3):
        assert reader.parquet(uri(tmp_path) + "/*" * depth).count() == 4, depth
    files = glob(f"{tmp_path}/**/*.parquet", recursive=True)
    assert files and all("/epoch=3/" in name for name in files)


def test_what_a_folder_cannot_say_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    for word in ("", "__HIVE_DEFAULT_PARTITION__"):
        sink = ParquetSink(tmp_path, partition_by="word")
        frame = spark.createDataFrame([(1, "a"), (2, word)], "n long, word string")
        with pytest.raises(InvalidArgumentError, match=r"'word': a row has ''.*would find null"):
            sink.stage_frame(frame, 3, "e")
        sink.abort(3, "e")
    fixed = frame.withColumn("word", F.nullif("word", F.lit(word)))
    stage(sink, fixed, 3, "other")
    sink.abort(3, "other")
    assert sink.epochs() == []


@pytest.mark.parametrize(
    ("by", "error", "message"),
    [
        ("wrod", InvalidArgumentError, "partition_by: 'wrod' is not a column; .*mean 'word'"),
        ("s.x", InvalidArgumentError, "partition_by='s.x' is a field of a struct: make it"),
        (["word", "day", "at", "x", "s"], WrongTypeError, "partition_by='at' is timestamp: the"),
        ("x", WrongTypeError, "partition_by='x' is double"),
        ("s", WrongTypeError, "partition_by='s' is struct<x:int>"),
    ],
)
def test_columns_that_do_not_fit(
    spark: SparkSession, tmp_path: Path, by: Any, error: type[PystateError], message: str
) -> None:
    schema = "word string, day date, at timestamp, x double, s struct<x:int>"
    frame = spark.createDataFrame([], schema)
    with pytest.raises(error, match=rf"^ParquetSink\(.*\): {message}"):
        ParquetSink(tmp_path / "out", partition_by=by).stage_frame(frame, 3, "e")
    with pytest.raises(InvalidArgumentError, match="names all columns"):
        sink = ParquetSink(tmp_path / "out", partition_by=["day", "word"])
        sink.stage_frame(frame.select("word", "day"), 3, "e")
    assert not (tmp_path / "out").exists()


def test_one_layout_in_a_folder(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame([(1, "a", 2)], "n long, Word string, `odd=name 1` int")
    named = ParquetSink(tmp_path / "out", partition_by=["word", "odd=name 1"])
    commit(stage(named, frame, 1))
    assert rows_of(named.read(spark)) == [(1, 1, "a", 2)]
    for by in ("word", ["odd=name 1", "word"], ()):
        with pytest.raises(InvalidArgumentError, match=r"partition_by=.'Word', 'odd=name 1'., and"):
            ParquetSink(tmp_path / "out", partition_by=by).begin(2, "e")
    changed = frame.withColumn("Word", F.lit(7))
    with pytest.raises(InvalidArgumentError, match="epochs with Word string, odd=name 1 int, and"):
        stage(named, changed, 2)
    commit(stage(named, frame, 2, "again"))
    # A flat one.
    flat, laid = ParquetSink(tmp_path / "flat"), ParquetSink(tmp_path / "flat", partition_by="word")
    laid.begin(1, "e")
    commit(stage(flat, frame, 1))
    with pytest.raises(InvalidArgumentError, match=r"holds epochs with partition_by=\[\], and"):
        laid.begin(2, "e")


@pytest.mark.parametrize("damage", ["missing", "short", "more"])
def test_a_commit_of_other_files_is_loud(spark: SparkSession, tmp_path: Path, damage: str) -> None:
    sink = ParquetSink(tmp_path, partition_by="a")
    transaction = stage(sink, spark.range(4).selectExpr("id", "id % 2 AS a"), 3)
    file = next(iter((tmp_path / transaction["staging"]).glob("a=1/part-*")))
    if damage == "missing":
        file.unlink()
    elif damage == "short":
        file.write_bytes(b"1")
    else:
        (file.parent / "part-9.parquet").write_bytes(b"1")
    with pytest.raises(CheckpointError, match="does not hold the"):
        commit(transaction)
    assert sink.epochs() == []


class Counts(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
        self.n.update(self.n.value() + 1)
        yield key, self.n.value()


def test_of_a_job(spark: SparkSession, make_job: MakeJob, tmp_path: Path) -> None:
    job, sink = make_job(), ParquetSink(tmp_path / "out", partition_by="k")

    def run(text: str, key: str) -> Any:
        def pipeline(df: DataFrame) -> DataFrame:
            return job.key_by(df, "k", uid="counts").process(Counts(), "k string, n long")

        frame = spark.createDataFrame([(c,) for c in text], "k string")
        return job.run_epoch(frame, pipeline, sink=sink, run_key=key)

    empty = run("", "none").dataframe
    assert empty.columns == ["k", "n"] and empty.collect() == []
    assert rows_of(run("1a1", "one").dataframe) == [(1, "1"), (1, "a"), (2, "1")]
    again = run("zz", "one")
    assert again.already_done and rows_of(again.dataframe) == [(1, "1"), (1, "a"), (2, "1")]
    assert rows_of(spark.read.parquet(uri(tmp_path / "out")).select("n", "k")) == [
        (1, "1"), (1, "a"), (2, "1")
    ]  # fmt: skip
