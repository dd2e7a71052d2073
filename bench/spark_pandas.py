"""A count per key in functions that get pandas frames, compared with what one writes for pystate.

Spark's `applyInPandasWithState` and `transformWithStateInPandas`, the same functions unchanged in a
job of pystate, and two functions of pystate: one by row, and one by batch, which is what someone
writes who takes frames in Spark for their speed. Each yields, for each row, its key and how many
rows of the key came so far; all outputs are compared at the end.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import pystate as ps
from bench.measure import Row, Scale, Spread
from bench.spark_jobs import (
    MAX_PARALLELISM,
    PARALLELISM,
    same_rows,
    source,
    started,
    write_input,
)
from bench.spark_turns import Comparison, lead
from pystate.spark import Job, ParquetSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

OUTPUT = "key long, n long"
STATE = "n long"


def by_row() -> ps.KeyedProcessFunction:
    """What one would write; defined here so that it is pickled by value."""

    class Counts(ps.KeyedProcessFunction):
        n = ps.ValueState("long", default=0)

        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
            n = self.n.value() + 1
            self.n.update(n)
            yield key, n

    return Counts()


def by_batch() -> ps.VectorizedFunction:
    """The same for many rows of many keys at once."""
    numpy, arrow = np, pa

    class Counts(ps.VectorizedFunction):
        n = ps.ValueState("long", default=0)

        def process(self, keys: Any, batch: Any, ctx: ps.RuntimeContext) -> Any:
            before = self.n.values(keys)
            self.n.add(keys, 1)
            # The rows of each key together, in their order, and where those of each begin.
            first = keys.first_rows()
            order = numpy.argsort(first, kind="stable")
            begins = numpy.flatnonzero(numpy.diff(first[order], prepend=-1))
            lengths = numpy.diff(begins, append=len(order))
            counts = numpy.empty(len(order), numpy.int64)
            counts[order] = numpy.arange(1, len(order) + 1) - numpy.repeat(begins, lengths)
            counts += before
            return arrow.record_batch([keys.key_arrays()[0], counts], ["key", "n"])

    return Counts()


def group_function() -> Callable[[Any, Iterable[pd.DataFrame], Any], Iterator[pd.DataFrame]]:
    """For applyInPandasWithState."""
    pandas = pd

    def count(key: Any, frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        n = state.get[0] if state.exists else 0
        for frame in frames:
            more = len(frame)
            yield pandas.DataFrame({"key": key[0], "n": range(n + 1, n + more + 1)})
            n += more
        state.update((n,))

    return count


def frames_processor() -> StatefulProcessor:
    """For transformWithStateInPandas."""
    pandas = pd

    class Counts(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.n = handle.getValueState("n", "n long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
            found = self.n.get()
            n = 0 if found is None else found[0]
            for frame in rows:
                more = len(frame)
                yield pandas.DataFrame({"key": key[0], "n": range(n + 1, n + more + 1)})
                n += more
            self.n.update((n,))

        def close(self) -> None:
            pass

    return Counts()


def start_in_job(
    stream: DataFrame, folder: Path, *, with_operator: Callable[[Any], DataFrame]
) -> StreamingQuery:
    """A job of pystate."""
    job = Job(
        "bench",
        checkpoint=str(folder / "checkpoint"),
        max_parallelism=MAX_PARALLELISM,
        parallelism=PARALLELISM,
    )
    return job.start(
        stream,
        lambda frame: with_operator(job.key_by(frame, "key", uid="count")),
        sink=ParquetSink(str(folder / "out")),
    )


def start_in_spark(
    stream: DataFrame, folder: Path, *, with_operator: Callable[[Any], DataFrame]
) -> StreamingQuery:
    """A query of Spark's own."""

    def write(frame: DataFrame, batch_id: int) -> None:
        frame.write.parquet(str(folder / "out" / f"epoch={batch_id}"))

    counts = with_operator(stream.groupBy("key"))
    return started(counts.writeStream.outputMode("update").foreachBatch(write), folder)


def with_row_function(keyed: Any) -> Any:
    """Pystate's own."""
    return keyed.process(by_row(), OUTPUT)


def with_batch_function(keyed: Any) -> Any:
    """Pystate's own."""
    return keyed.process(by_batch(), OUTPUT)


def with_group_function(keyed: Any) -> Any:
    """The same text in both engines."""
    return keyed.applyInPandasWithState(group_function(), OUTPUT, STATE, "Update", "NoTimeout")


def with_processor(keyed: Any) -> Any:
    """The same text in both engines."""
    return keyed.transformWithStateInPandas(frames_processor(), OUTPUT, "Update", "None")


BY_ROW, BY_BATCH = "pystate, by row", "pystate, by batch"
GROUP, FRAMES = "applyInPandasWithState", "transformWithStateInPandas"
STARTS: dict[str, Callable[[DataFrame, Path], StreamingQuery]] = {
    BY_ROW: partial(start_in_job, with_operator=with_row_function),
    BY_BATCH: partial(start_in_job, with_operator=with_batch_function),
    f"{GROUP} in a job": partial(start_in_job, with_operator=with_group_function),
    f"{FRAMES} in a job": partial(start_in_job, with_operator=with_processor),
    GROUP: partial(start_in_spark, with_operator=with_group_function),
    FRAMES: partial(start_in_spark, with_operator=with_processor),
}
EXPECTED = {GROUP: ">= 150x", FRAMES: ">= 150x"}
"""Of the function by row."""


def jobs(scale: Scale) -> list[Row]:
    """All jobs, with batches of each size: several of the first, and one of each other."""
    found = []
    for i, rows in enumerate(scale.pandas_rows):
        keys = rows * scale.timed_keys // scale.timed_rows[0]
        found += sized(replace(scale, spark_rows=rows, spark_keys=keys), scale.pandas_batches, i)
    return found


def sized(scale: Scale, batches: int, place: int) -> list[Row]:
    """All jobs, with batches of one size."""

    def write(spark: SparkSession, rows: int, folder: Path) -> None:
        write_input(spark, replace(scale, spark_rows=rows), folder)

    comparison = Comparison(STARTS, source, write, compared)
    timed, written = comparison.run(scale.spark_rows, 1 if place else batches)
    # The larger batches are there to be compared: the goals are those of the first.
    goals = {} if place else EXPECTED
    found = [row_of(name, timed, written, scale, goals) for name in STARTS]
    return [*found, *(lead_by_batch(name, timed, scale) for name in (GROUP, FRAMES))]


def compared(spark: SparkSession, folders: dict[str, Path]) -> int:
    """Check that all outputs hold the same rows; return their number."""
    return same_rows(spark, folders, BY_ROW, "key", "n").count()


def rates(seconds: list[float], scale: Scale) -> Spread:
    """Thousands of rows a second."""
    return Spread.of([scale.spark_rows / one / 1e3 for one in seconds])


def row_of(
    name: str,
    seconds: dict[str, list[float]],
    written: int,
    scale: Scale,
    goals: dict[str, str],
) -> Row:
    """A job's rate, and the lead of the function by row, or of the same text in a job."""
    ratio, peer = None, ""
    own = name.removesuffix(" in a job")
    if own != name:
        ratio, peer = lead(seconds, name, own), f"in Spark: {own}"
    elif name in (GROUP, FRAMES):
        ratio, peer = lead(seconds, BY_ROW, name), f"{BY_ROW} / {name}"
    return Row(
        "spark-pandas",
        f"count by frames, {scale.spark_rows:,} rows a batch, {scale.spark_keys:,} keys: {name}",
        rates(seconds[name], scale),
        "k rows/s",
        peer=peer,
        ratio=ratio,
        expected=goals.get(name, ""),
        detail={"seconds": seconds[name], "written": written},
    )


def lead_by_batch(theirs: str, seconds: dict[str, list[float]], scale: Scale) -> Row:
    """How much faster the function by batch is than a function of frames in Spark."""
    return Row(
        "spark-pandas",
        f"by batch in pystate, by frames in Spark, {scale.spark_rows:,} rows a batch: {theirs}",
        rates(seconds[BY_BATCH], scale),
        "k rows/s",
        peer=theirs,
        ratio=lead(seconds, BY_BATCH, theirs),
    )
