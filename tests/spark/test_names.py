"""Rows, structs and columns by name: what Spark's own functions take, and what they give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F

import pystate as ps
from pystate.errors import WrongTypeError
from pystate.spark import ParquetSink, register_state_source, write_state

from .conftest import rows_of

if TYPE_CHECKING:
    from pyspark.core.rdd import RDD
    from pyspark.sql import SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]


class Named(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        yield Row(second=key, first=row.v)
        yield {"second": key, "first": row["v"]}
        yield row.v, key


def test_rows_with_names_go_by_them_over_frames_and_rdds(
    spark: SparkSession, make_job: MakeJob
) -> None:
    job = make_job()
    schema = "first long, second string"
    frame = spark.createDataFrame([("a", 1)], "k string, v long")

    def of_rdd(rdd: RDD[Any]) -> RDD[Any]:
        split = job.partition_by(rdd, lambda row: row.k, key_type="string", uid="rdd")
        return split.mapPartitions(job.partitions(Named(), uid="rdd", schema=schema))

    result = job.run_epoch(frame, lambda df: job.key_by(df, "k", uid="n").process(Named(), schema))
    assert rows_of(result.dataframe) == [(1, "a")] * 3
    job = make_job(checkpoint=job.checkpoint + "-rdd")
    result = job.run_epoch(frame.rdd, of_rdd, schema=schema)
    assert rows_of(result.dataframe) == [(1, "a")] * 3
    with pytest.raises(WrongTypeError, match=r"^run_epoch: the pipeline yielded .* no 'x'"):
        job.run_epoch(frame.rdd, of_rdd, schema="x long, second string")


class Places(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        self.n.update(self.n.value() + 1)
        yield {"city": key and key.city, "x": key and key.x, "n": self.n.value()}


def test_key_columns_are_found_as_spark_finds_them_and_may_be_structs(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    schema = "st struct<city:string,x:long>, `a.b` long, Tail string"
    frame = spark.createDataFrame(
        [
            (("a", 1), 5, "t"),
            (("b", 1), 6, "t"),
            (("a", 1), 7, "u"),
            (("a", 2), 8, "u"),
            (None, 9, "v"),
        ],
        schema,
    )
    job = make_job()

    def pipeline(df: Any) -> Any:
        places = job.key_by(df, "ST", uid="places", order_by="`a.b`")
        keyed = job.key_by(df, "st", "tail", uid="sums")
        return {
            "places": places.process(Places(), "city string, x long, n long"),
            "sums": keyed.aggregate(n=ps.count(), total=ps.sum("a.b"), most=ps.max("st.X")),
            "fields": job.key_by(df, "st.city", uid="n").aggregate(n=ps.count()),
        }

    sinks = {name: ParquetSink(tmp_path / name) for name in ("places", "sums", "fields")}
    results = job.run_epoch(frame, pipeline, sink=sinks).dataframes
    places = [("a", 1, 1), ("a", 1, 2), ("a", 2, 1), ("b", 1, 1), (None, None, 1)]
    assert rows_of(results["places"]) == places
    found = results["sums"]
    assert found.schema["st"].dataType == frame.schema["st"].dataType
    wanted = frame.groupBy("st", "tail").agg(
        F.count("*").alias("n"), F.sum("`a.b`").alias("total"), F.max("st.x").alias("most")
    )
    assert rows_of(found) == rows_of(wanted)
    assert rows_of(results["fields"]) == [("a", 3), ("b", 1), (None, 1)]


def test_structs_are_one_key_where_sql_says_so(spark: SparkSession, make_job: MakeJob) -> None:
    states = [None, (None, None), (None, (None,)), (None, (1,)), ("a", None), ("a", (None,))]
    rows = [(st, at) for at, st in enumerate([*states, *states[:4]])]
    frame = spark.createDataFrame(rows, "st struct<city:string,`at.`:struct<x:long>>, at long")
    groups = frame.groupBy("st").agg(F.count("*").alias("n"), F.min("at").alias("at"))
    wanted = rows_of(groups.select("st", "at", "n"))
    assert len(wanted) == 6
    sums = {"at": ps.min("at"), "n": ps.count()}
    job = make_job()

    def pipeline(df: Any) -> Any:
        def keyed(uid: str) -> Any:
            return job.key_by(df, "st", uid=uid, order_by="at")

        counted = [
            keyed(uid)
            .aggregate(**sums, combine=way)
            .select("st", "at", "n", F.lit(uid).alias("of"))
            for uid, way in (("one", False), ("two", True))
        ]
        firsts = keyed("first").deduplicate().selectExpr("st", "at", "1L AS n", "'first' AS of")
        best = keyed("best").top(1, by="at", descending=False)
        best = best.selectExpr("st", "at", "CAST(rank AS long) AS n", "'best' AS of")
        return counted[0].union(counted[1]).union(firsts).union(best)

    found = job.run_epoch(frame, pipeline).dataframe.select("st", "at", "n", "of")
    ones = [(st, at, 1) for st, at, _ in wanted]
    each = {"one": wanted, "two": wanted, "first": ones, "best": ones}
    assert rows_of(found) == sorted(
        ((*row, uid) for uid, rows in each.items() for row in rows), key=repr
    )
    # Readers have the fields, and what says whether a struct is null; an operator begins with them.
    read = job.read_state("one")
    names = ["st.city", "st.`at.`.x", "st.`at.` is null", "st is null"]
    assert read.column_names[:4] == names
    assert read.filter(read["st is null"])["n"].to_pylist() == [2]
    register_state_source(spark)
    given = spark.read.format("pystate").option("uid", "one").load(job.checkpoint)
    again = make_job(checkpoint=job.checkpoint + "-again")

    def go_on(df: Any) -> Any:
        return again.key_by(df, "st", uid="one").aggregate(initial_state=given, **sums)

    found = again.run_epoch(frame, go_on).dataframe
    assert rows_of(found) == sorted(((st, at, 2 * n) for st, at, n in wanted), key=repr)


def test_keys_without_marks_of_null_structs_go_on(
    spark: SparkSession,
    make_job: MakeJob,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    rows = [(None, 1), ((None, None), 2), (("a", 1), 3)]
    frame = spark.createDataFrame(rows, "st struct<city:string,x:long>, at long")
    # As versions without the marks have written it.
    key = {"st.city": "string", "st.x": "long"}
    old = spark.createDataFrame(
        [(None, None, 40), ("a", 1, 50)], "`st.city` string, `st.x` long, n long"
    )
    count = {"n": ps.ValueState("long", default=0)}
    made = write_state(tmp_path / "s", {"places": ps.StateRows(old, key, count)})
    job = make_job(restore=made.location)

    def pipeline(df: Any) -> Any:
        keyed = job.key_by(df, "st", uid="places", order_by="at")
        return keyed.process(Places(), "city string, x long, n long")

    for n in (0, 1):
        found = job.run_epoch(frame, pipeline).dataframe
        counts = [("a", 1, 51 + n), (None, None, 41 + 2 * n), (None, None, 42 + 2 * n)]
        assert rows_of(found) == counts
    assert caplog.text.count("an earlier version has begun its state") == 1
    assert "the key columns 'st is null'" in caplog.text
    # The way out that the warning tells.
    read = spark.read.format("pystate").option("uid", "places").load(job.checkpoint)
    marked = read.withColumn("st is null", F.lit(None).cast("boolean"))
    states = ps.StateRows(marked.drop("key_group"), {**key, "st is null": "boolean"}, count)
    made = write_state(tmp_path / "t", {"places": states})
    job = make_job(checkpoint=job.checkpoint + "-marked", restore=made.location)
    found = job.run_epoch(frame, pipeline).dataframe
    assert rows_of(found) == [("a", 1, 53), (None, None, 1), (None, None, 45)]
