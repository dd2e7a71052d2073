"""What a job's options refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.errors import DeclarationError

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

        if job._tables.allow_pickle:
            assert job.run_epoch(df, frames).epoch == 1
            continue
        for data, pipeline in ((df, frames), (spark.sparkContext.range(3), elements)):
            with pytest.raises(DeclarationError, match="operator 'objects': 'seen' would be pick"):
                job.run_epoch(data, pipeline, schema=schema)
        assert len(list((tmp_path / "checkpoint" / "manifests").glob("0*.manifest"))) == 1
