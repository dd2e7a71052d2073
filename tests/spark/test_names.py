"""Rows, structs and columns by name: what Spark's own functions take, and what they give."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F

import pystate as ps
from pystate.errors import WrongTypeError

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
        yield {"city": key.city, "x": key.x, "n": self.n.value()}


def test_key_columns_are_found_as_spark_finds_them_and_may_be_structs(
    spark: SparkSession, make_job: MakeJob
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
        return job.key_by(df, "ST", uid="places", order_by="`a.b`").process(
            Places(), "city string, x long, n long"
        )

    result = rows_of(job.run_epoch(frame, pipeline).dataframe)
    assert result == [("a", 1, 1), ("a", 1, 2), ("a", 2, 1), ("b", 1, 1), (None, None, 1)]
    sums = make_job(checkpoint=job.checkpoint + "-sums")

    def summed(df: Any) -> Any:
        keyed = sums.key_by(df, "st", "tail", uid="sums")
        return keyed.aggregate(n=ps.count(), total=ps.sum("a.b"), most=ps.max("st.X"))

    found = sums.run_epoch(frame, summed).dataframe
    assert found.schema["st"].dataType == frame.schema["st"].dataType
    wanted = frame.groupBy("st", "tail").agg(
        F.count("*").alias("n"), F.sum("`a.b`").alias("total"), F.max("st.x").alias("most")
    )
    # A struct that is null is one of nulls.
    wanted = wanted.withColumn(
        "st", F.struct(F.col("st.city").alias("city"), F.col("st.x").alias("x"))
    )
    assert rows_of(found) == rows_of(wanted)
    fields = make_job(checkpoint=job.checkpoint + "-fields")

    def by_field(df: Any) -> Any:
        return fields.key_by(df, "st.city", uid="n").aggregate(n=ps.count())

    assert rows_of(fields.run_epoch(frame, by_field).dataframe) == [("a", 3), ("b", 1), (None, 1)]
