"""An operator's state as a DataFrame."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import pystate as ps
from pystate.errors import PystateError
from pystate.spark import Job, register_state_source
from pystate.spark.state_source import StateSource

from .conftest import rows_of

MakeJob = Callable[..., Job]


class Everything(ps.KeyedProcessFunction):
    """A state of each kind."""

    n = ps.ValueState("long", default=0)
    at = ps.ValueState("timestamp")
    place = ps.ValueState("struct<x: double, tags: array<string>>")
    seen = ps.ListState("int")
    by = ps.MapState("string", "decimal(9,2)")
    mean = ps.AggregatingState(ps.Mean(), "long")
    kept = ps.ValueState(object)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        self.n.update(self.n.value() + row.v)
        self.seen.add(row.v)
        self.mean.add(row.v)
        if row.v % 2:
            self.place.update({"x": row.v / 2, "tags": ["odd", None]})
            self.kept.update({row.v})
        yield key, self.n.value()


def counted(job: Job, frame: DataFrame) -> DataFrame:
    return job.key_by(frame, "k", uid="counts").aggregate(n=ps.count())


@pytest.fixture(scope="module")
def checkpoint(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of one epoch of one operator, to be read."""
    folder = str(tmp_path_factory.mktemp("read") / "checkpoint")
    with Job("read", checkpoint=folder, parallelism=2) as job:
        job.run_epoch(spark.range(3).selectExpr("id AS k"), lambda df: counted(job, df))
    return folder


def test_rows_are_those_of_the_arrow_table(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job(parallelism=3)
    frame = spark.range(500).selectExpr("id % 100 AS k", "CAST(id AS INT) AS v")
    job.run_epoch(
        frame,
        lambda df: job.key_by(df, "k", uid="all").process(Everything(), schema="k long, n long"),
    )
    folder = job.checkpoint
    read = spark.read.format("pystate").option("uid", "all").load(str(folder))
    assert read.rdd.getNumPartitions() == 3
    assert dict(read.dtypes) == {
        "k": "bigint",
        "n": "bigint",
        "at": "timestamp",
        "place": "struct<x:double,tags:array<string>>",
        "seen": "array<int>",
        "by": "map<string,decimal(9,2)>",
        "mean": "double",
        "kept": "binary",
    }
    table = ps.read_state(folder, "all")
    lazily = ps.scan_state(folder, "all")
    assert isinstance(lazily, pa.RecordBatchReader) and lazily.schema == table.schema
    assert lazily.read_all().equals(table) and job.read_state("all").equals(table)
    assert table.num_rows == 100
    found = {row.k: row for row in read.collect()}
    for row in table.to_pylist():
        spark_row = found.pop(row["k"])
        assert spark_row.n == row["n"] and spark_row.seen == row["seen"]
        assert spark_row["mean"] == row["mean"] and spark_row.kept == row["kept"]
        place = None if spark_row.place is None else spark_row.place.asDict()
        assert place == row["place"] and spark_row.at is None
    assert not found
    # An action like any other: columns are pruned, rows filtered.
    assert rows_of(read.where("k = 7").select("n", "k")) == [(sum(range(7, 500, 100)), 7)]


def test_the_newest_epoch_is_read_each_time(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job(parallelism=2)
    read = spark.read.format("pystate")  # the one operator
    for n in (1, 2):
        job.run_epoch(spark.range(2).selectExpr("id AS k"), lambda df: counted(job, df))
        assert rows_of(read.load(str(job.checkpoint))) == [(0, n), (1, n)]


def test_another_session_registers_it(spark: SparkSession, checkpoint: str) -> None:
    other = spark.newSession()
    register_state_source(other)
    register_state_source(other)
    read = other.read.format("pystate").option("uid", "counts")
    assert read.load(checkpoint).count() == 3


def test_elements_timers_and_epochs(spark: SparkSession, make_job: MakeJob) -> None:
    class Lists(ps.KeyedProcessFunction):
        items = ps.ListState("int")

        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
            self.items.add(row.v)
            ctx.register_processing_time_timer(1 << 50)

        def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> Any: ...

    job = make_job(parallelism=2, retained=3)
    for number in range(3):
        frame = spark.range(4).selectExpr("id AS k", f"CAST({number} AS INT) AS v")
        job.run_epoch(
            frame,
            lambda df: job.key_by(df, "k", uid="all").process(Lists(), schema="k long"),
        )
    read = spark.read.format("pystate")
    elements = read.options(state="items", explode=True).load(job.checkpoint)
    assert elements.columns == ["k", "items_index", "items"]
    assert rows_of(elements.where("k = 2")) == [(2, 0, 0), (2, 1, 1), (2, 2, 2)]
    timers = spark.read.format("pystate").option("timers", True).load(job.checkpoint)
    assert rows_of(timers.where("k < 2")) == [(k, "processing", 1 << 50) for k in (0, 1)]
    older = spark.read.format("pystate").option("epoch", 2).load(job.checkpoint)
    assert rows_of(older.select("k", "items")) == [(k, [0, 1]) for k in range(4)]
    whole = spark.read.format("pystate").options(epoch="all", metadata=True).load(job.checkpoint)
    assert whole.rdd.getNumPartitions() == 6 and whole.count() == 12
    some = whole.where("epoch >= 2 AND key_group IN (50, 74, 108)").select("epoch", "k", "items")
    expected = [
        (e, k, list(range(e))) for e in (2, 3) for k in range(4) if group_of(k) in (50, 108)
    ]
    assert rows_of(some) == expected and expected
    assert some.rdd.getNumPartitions() < 6


def group_of(key: int) -> int:
    return ps.key_group(int(ps.hash_keys([pa.array([key])])[0]), 128)


def test_filters_leave_partitions_out(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job(parallelism=8)
    frame = spark.range(1000).selectExpr("id AS k", "CAST(id % 3 AS STRING) AS s")
    job.run_epoch(frame, lambda df: job.key_by(df, "k", "s", uid="two").aggregate(n=ps.count()))
    read = spark.read.format("pystate").load(job.checkpoint)
    assert read.rdd.getNumPartitions() == 8
    for condition, partitions in (
        ("k = 7 AND s = '1'", 1),
        ("k IN (7, 8) AND s IN ('1', '2') AND n = 1", 4),
        ("k <=> 7 AND s <=> '1'", 1),
        ("k = 7 AND s = '0'", 1),  # no such key
        ("k = 7", 8),
        ("s = '1' OR k = 2", 8),
    ):
        found = read.where(condition)
        assert found.rdd.getNumPartitions() <= partitions
        assert rows_of(found) == rows_of(frame.selectExpr("*", "1L AS n").where(condition))


@pytest.mark.parametrize(
    ("options", "path", "message"),
    [
        ({"uid": ""}, "checkpoint", "needs a uid"),
        ({"uid": "other"}, "checkpoint", "no operator 'other' in epoch 1; it has 'counts'"),
        ({"uid": "counts"}, "elsewhere", "holds no checkpoint: give the folder"),
        ({"uid": "counts"}, None, "which checkpoint"),
        ({"uid": "counts", "epok": "1"}, "checkpoint", "no option 'epok'"),
        ({"epoch": "2"}, "checkpoint", "does not hold epoch 2; it has 1 to 1"),
        ({"epoch": "x"}, "checkpoint", "a retained epoch's number, or 'all', not 'x'"),
        ({"epoch": "all"}, "checkpoint", "option 'epoch' is 'all': add"),
        ({"explode": "yes"}, "checkpoint", "option 'explode' is 'true' or 'false'"),
        ({"state": "m"}, "checkpoint", "no state 'm'"),
    ],
)
def test_errors_say_what_is_missing(
    spark: SparkSession,
    checkpoint: str,
    tmp_path: Path,
    options: dict[str, str],
    path: str | None,
    message: str,
) -> None:
    where = {"checkpoint": checkpoint, "elsewhere": str(tmp_path / "no"), None: None}[path]
    given = {**options, **({} if where is None else {"path": where})}
    with pytest.raises(PystateError, match=message):
        StateSource(given).schema()
    if path is None:  # and through Spark
        with pytest.raises(PySparkException, match=message):
            spark.read.format("pystate").options(**options).load(where).collect()


def test_one_of_two_operators_is_named(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job()

    def pipeline(df: DataFrame) -> DataFrame:
        other = job.key_by(df, "k", uid="other").aggregate(n=ps.count())
        return counted(job, df).union(other)

    job.run_epoch(spark.range(3).selectExpr("id AS k"), pipeline)
    with pytest.raises(PySparkException, match=r"which operator\? It has 'counts', 'other'"):
        spark.read.format("pystate").load(job.checkpoint)
    assert ps.read_state(job.checkpoint, "other").num_rows == 3
