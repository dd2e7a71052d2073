"""Rows per second of joins by event time on one core, and of Spark's stream-stream join.

``python -m bench.joins`` runs the engines alone, without Spark: two inputs in batches, in epochs
that seal the table. ``python -m bench.joins --spark`` runs a stream through pystate's interval join
and through Spark's own, over the same files, by turns. About as many rows come out as go in: half
of what the JVM does for pystate's is to write them as Parquet, which Spark's own has to do as well.
"""

from __future__ import annotations

import argparse
import shutil
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.measure import Timings, spread
from pystate.epochs.watermarks import OperatorTime
from pystate.operators.joins.asof import AsofJoin, AsofJoinSpec
from pystate.operators.joins.inputs import JoinInput, result_names
from pystate.operators.joins.interval import IntervalJoin, IntervalJoinSpec
from pystate.operators.runtime.output import OutputColumns
from pystate.operators.runtime.task import TaskContext
from pystate.state.operator_spec import OperatorSpec
from pystate.tables.backend import KeyedStateBackend
from pystate.types.state_type import parse_type

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

LEFT = {"k": "long", "t": "timestamp", "price": "double", "name": "string"}
RIGHT = {"k": "long", "at": "timestamp", "amount": "double"}
BATCH = 10_000
#: Milliseconds of event time in an epoch; rows are this late at most.
EPOCH_MS, DELAY_MS = 60_000, 5_000
#: Spark's first watermark is 1970: rows before that would be late, and it would have fewer pairs.
FIRST_MS = 1_750_000_000_000


def rows(side: str, epoch: int, count: int, keys: int) -> pa.RecordBatch:
    """An epoch's rows of an input."""
    rng = np.random.default_rng([epoch, side == "left"])
    times = FIRST_MS + epoch * EPOCH_MS + rng.integers(-DELAY_MS, EPOCH_MS, count)
    at = pa.array(times * 1000).cast(pa.timestamp("us", "UTC"))
    columns = {"k": pa.array(rng.integers(0, keys, count))}
    if side == "left":
        names = pa.array([f"name {i % 1000}" for i in range(count)])
        return pa.record_batch({**columns, "t": at, "price": rng.random(count), "name": names})
    return pa.record_batch({**columns, "at": at, "amount": rng.random(count)})


def engine(spec: Any, make: Any, epochs: int, count: int, keys: int) -> str:
    """Run a join without Spark; returns what to print."""
    operator = OperatorSpec("j", spec.left.key, spec.states(), parse_type("long"), timers=True)
    backend = KeyedStateBackend.of(operator)
    took, out = 0.0, 0
    size = 0
    for epoch in range(epochs):
        inputs = {side: rows(side, epoch, count, keys) for side in ("left", "right")}
        began = time.perf_counter()
        bound = FIRST_MS + epoch * EPOCH_MS - DELAY_MS
        join = make(spec)
        join.open(TaskContext(backend, time=OperatorTime(bound, bound)))
        for begin in range(0, count, BATCH):
            for side in ("left", "right"):
                for batch in join.process(inputs[side].slice(begin, BATCH), side):
                    out += batch.num_rows
        for batch in join.finish():
            out += batch.num_rows
        with backend.seal():
            took += time.perf_counter() - began
        size = max(size, backend.stats().committed_bytes)
    backend.close()
    total = 2 * epochs * count
    return (
        f"{total / took / 1e3:8.0f} k rows/s in, {out / total:5.2f} out per row in, {size >> 20} MB"
    )


def engines(epochs: int, count: int, keys: int) -> None:
    """Run the joins without Spark."""
    left = JoinInput.of("left", ["k"], LEFT.items(), "t", "bench")
    right = JoinInput.of("right", ["k"], RIGHT.items(), "at", "bench")
    types = [type_.arrow for _, type_ in (*left.key, *left.columns, *right.columns)]
    schema = pa.schema(zip(result_names(left, right, None, "bench"), types, strict=True))
    output = OutputColumns(schema, "bench")
    for how in ("inner", "left", "full"):
        wanted: Any = how
        interval = IntervalJoinSpec(left, right, -30_000, 30_000, wanted, output)
        print(f"interval {how:5}  {engine(interval, IntervalJoin, epochs, count, keys)}")
    asof = AsofJoinSpec(left, right, "left", None, output)
    print(f"as-of    left   {engine(asof, AsofJoin, epochs, count, keys)}")


def on_spark(epochs: int, count: int, keys: int, rounds: int) -> None:
    """Run a stream through both interval joins."""
    from bench.spark_jobs import ProcessorTime, session

    jobs = {"pystate": _pystate, "Spark": _spark}
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    worked: dict[str, list[float]] = {name: [] for name in jobs}
    with session() as (spark, home):
        for side in ("left", "right"):
            (home / side).mkdir()
            for epoch in range(epochs):
                table = pa.Table.from_batches([rows(side, epoch, count, keys)])
                pq.write_table(table, home / side / f"{epoch:05d}.parquet")
        # The first round of a JVM takes two to three times as long: it compiles its own code.
        for turn in range(-1, rounds):
            for name, run in jobs.items():
                began, processors = time.perf_counter(), ProcessorTime()
                found = run(spark, home)
                took, work = time.perf_counter() - began, processors.seconds()
                shutil.rmtree(home / "checkpoint")
                shutil.rmtree(home / "out")
                rate = f"{2 * epochs * count / took / 1e3:7.0f} k rows/s"
                kind = "    not counted" if turn < 0 else rate
                print(f"{name:8} {took:7.2f} s, {work:7.2f} of processors, {kind}, {found} out")
                if turn >= 0:
                    seconds[name].append(took)
                    worked[name].append(work)
    for what, taken in (("time", seconds), ("processor time", worked)):
        print(f"Spark / pystate, {what}: {spread(Timings(taken).ratio('pystate', 'Spark'), 'x')}")


def _streams(spark: SparkSession, home: Path) -> dict[str, DataFrame]:
    found = {}
    for side in ("left", "right"):
        path = (home / side).as_uri()
        schema = spark.read.parquet(path).schema
        found[side] = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(path)
    return found


def _pystate(spark: SparkSession, home: Path) -> int:
    from pyspark.sql import functions as F

    from pystate.spark import Job, ParquetSink

    streams = _streams(spark, home)
    both = streams["left"].unionByName(streams["right"], allowMissingColumns=True)

    def pipeline(df: DataFrame, job: Job) -> DataFrame:
        left = df.where(F.col("t").isNotNull()).select(*LEFT)
        right = df.where(F.col("at").isNotNull()).select(*RIGHT)
        one = job.key_by(left, "k", uid="join", event_time="t", allowed_delay=DELAY_MS)
        two = job.key_by(right, "k", event_time="at", allowed_delay=DELAY_MS)
        return one.interval_join(two, "-30 seconds", "30 seconds")

    sink = ParquetSink(home / "out")
    with Job("joins", home / "checkpoint", parallelism=2) as job:
        job.start(both, pipeline, sink=sink, trigger={"availableNow": True}).awaitTermination()
    return int(sink.read(spark).count())


def _spark(spark: SparkSession, home: Path) -> int:
    from pyspark.sql import functions as F

    streams = _streams(spark, home)
    delay = f"{DELAY_MS} milliseconds"
    left = streams["left"].withWatermark("t", delay).alias("l")
    right = streams["right"].withWatermark("at", delay).alias("r")
    near = F.expr("at BETWEEN t - INTERVAL 30 SECONDS AND t + INTERVAL 30 SECONDS")
    joined = left.join(right, (F.col("l.k") == F.col("r.k")) & near)
    columns = ["l.k", *(name for name in (*LEFT, *RIGHT) if name != "k")]
    writer = joined.select(*columns).writeStream.format("parquet")
    writer = writer.option("checkpointLocation", (home / "checkpoint").as_uri())
    writer.trigger(availableNow=True).start((home / "out").as_uri()).awaitTermination()
    return int(spark.read.parquet((home / "out").as_uri()).count())


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--keys", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--spark", action="store_true")
    given = parser.parse_args()
    if given.spark:
        on_spark(given.epochs, given.rows, given.keys, given.rounds)
    else:
        engines(given.epochs, given.rows, given.keys)


if __name__ == "__main__":
    main()
