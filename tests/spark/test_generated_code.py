"""Once a pipeline has run, its next epochs need no new code of Spark's.

Such code is compiled in each epoch, and runs slowly at first, which may take longer than its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

import pystate as ps

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]


def keyed(df: DataFrame, job: Job, uid: str) -> Any:
    return job.key_by(df, "k", uid=uid, event_time="at", allowed_delay="1 second")


class Counted(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: Any) -> Any:
        self.n.update(self.n.value() + 1)
        ctx.register_event_time_timer(5_000)
        yield key, self.n.value()

    def on_timer(self, key: Any, timestamp: int, ctx: Any) -> Any:
        yield key, -1


class Both(ps.KeyedCoProcessFunction):
    n = ps.ValueState("long", default=0)

    def process_left(self, key: Any, row: Any, ctx: Any) -> Any:
        yield key, self.n.value()

    def process_right(self, key: Any, row: Any, ctx: Any) -> Any:
        self.n.update(row["v"])
        yield key, 0


PIPELINES: dict[str, Callable[[DataFrame, Job, str], DataFrame]] = {
    "process": lambda df, job, uid: keyed(df, job, uid).process(Counted(), "k long, n long"),
    "connect": lambda df, job, uid: (
        keyed(df, job, uid).connect(keyed(df, job, uid)).process(Both(), "k long, n long")
    ),
    "aggregate": lambda df, job, uid: keyed(df, job, uid).aggregate(
        total=ps.sum("v"), combine=True
    ),
    "tumbling": lambda df, job, uid: (
        keyed(df, job, uid).window(ps.Tumbling("2 s")).aggregate(n=ps.count(), combine=True)
    ),
    "session": lambda df, job, uid: (
        keyed(df, job, uid).window(ps.Session("2 s")).aggregate(n=ps.count(), combine=True)
    ),
    "windows of windows": lambda df, job, uid: job.key_by(
        keyed(df, job, uid).window(ps.Tumbling("2 s")).aggregate(n=ps.count()), "k", uid="b"
    ).aggregate(total=ps.sum("n")),
    "interval join": lambda df, job, uid: keyed(df, job, uid).interval_join(
        keyed(df.withColumnRenamed("v", "w"), job, uid),
        "-1 second",
        "1 second",
        suffixes=("", "_right"),
    ),
    "deduplicate": lambda df, job, uid: keyed(df, job, uid).deduplicate(within="2 s"),
    "top": lambda df, job, uid: keyed(df, job, uid).top(2, by="v"),
}


#: One of each road, in one job.
TELLING = ("process", "aggregate", "session", "interval join")


@pytest.mark.parametrize(
    "names",
    [TELLING, *(pytest.param((name,), marks=pytest.mark.slow) for name in PIPELINES)],
    ids=", ".join,
)
@pytest.mark.usefixtures("default_plans")
def test_later_epochs_compile_nothing(
    names: Sequence[str], spark: SparkSession, make_job: MakeJob
) -> None:
    metrics: Any = spark._jvm.org.apache.spark.metrics.source.CodegenMetrics  # type: ignore[union-attr]

    def count() -> int:
        return int(metrics.METRIC_COMPILATION_TIME().getCount())

    def pipeline(df: DataFrame, job: Job) -> dict[str, DataFrame]:
        return {name: PIPELINES[name](df, job, name) for name in names}

    compiled: list[int] = []
    with make_job() as job:
        for number in range(4):
            frame = spark.createDataFrame(
                [(n % 5, n, 3_000 * number + n * 37) for n in range(100)], "k long, v long, ms long"
            ).select("k", "v", F.timestamp_millis("ms").alias("at"))
            for out in job.run_epoch(frame, pipeline).dataframes.values():
                out.collect()
            compiled.append(count())
        assert job.last_progress is not None and job.last_progress.watermark_ms
    assert 0 < compiled[-1] == compiled[-2], compiled
