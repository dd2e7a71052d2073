"""Rows, structs and columns by name: what Spark's own functions take, and what they give."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import Row

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
