"""Tasks do not wait for late acknowledgements of the pieces in which Spark sends their input."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.spark import Sink, SinkTask

from .conftest import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]


def connections() -> dict[int, bool]:
    """This process's TCP connections: number of the socket to whether it sends at once."""
    found = {}
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        try:
            status = os.fstat(descriptor)
        except OSError:
            continue  # the one that lists them
        if stat.S_ISSOCK(status.st_mode):
            with socket.socket(fileno=os.dup(descriptor)) as end:
                if end.family == socket.AF_INET:
                    option = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                    found[status.st_ino] = bool(option)
    return found


class Looked(ps.KeyedProcessFunction):
    """Looks at its worker's connections."""

    n = ps.ValueState("long")

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
        self.n.update(1)
        yield (sorted(connections().values()),)


class LookedSink(Sink):
    """Receives what its tasks see of their connections, and keeps no rows."""

    def __init__(self) -> None:
        self.name = "looked"
        self.seen: list[Any] = []

    def stage(self, batches: Iterator[pa.RecordBatch], task: SinkTask) -> Any:
        assert sum(batch.num_rows for batch in batches) in (0, 1)
        return sorted(connections().values())

    def prepare(self, epoch: int, evaluation_id: str, receipts: list[Any]) -> Any:
        self.seen += receipts
        return None

    def commit(self, epoch: int, transaction: Any) -> None:
        pass


@pytest.mark.parametrize("form", ["DataFrame", "RDD"])
def test_the_executors_connection_is_found(
    spark: SparkSession, make_job: MakeJob, form: str
) -> None:
    columns = "sends_at_once array<boolean>"
    with make_job() as job:

        def over_rdd(rdd: Any) -> Any:
            routed = job.partition_by(rdd, key=lambda k: k, key_type="long", uid="looked")
            return routed.mapPartitions(job.partitions(Looked(), uid="looked", schema=columns))

        def over_frame(df: Any) -> Any:
            return job.key_by(df, "k", uid="looked").process(Looked(), columns)

        if form == "RDD":
            result = job.run_epoch(spark.sparkContext.parallelize([1]), over_rdd, schema=columns)
        else:
            result = job.run_epoch(spark.range(1).selectExpr("id AS k"), over_frame)
        assert [list(row[0]) for row in rows_of(result.dataframe)] == [[True]]


def test_the_executors_connection_is_found_by_sinks(spark: SparkSession, make_job: MakeJob) -> None:
    sink = LookedSink()
    with make_job() as job:
        job.run_epoch(spark.range(1), lambda df: df, sink=sink)
    assert sink.seen and all(seen == [True] for seen in sink.seen)
