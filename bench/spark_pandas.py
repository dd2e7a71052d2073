"""A count per key in functions that get pandas frames, compared with a function by row.

Spark's `applyInPandasWithState` and `transformWithStateInPandas`, the same functions unchanged in a
job of pystate, and what one would write for pystate. Each yields, for each row, its key and how
many rows of the key came so far; all outputs are compared at the end.
"""

from __future__ import annotations

import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import pystate as ps
from bench.measure import Row, Scale, Spread
from bench.spark_jobs import (
    MAX_PARALLELISM,
    PARALLELISM,
    PROVIDERS,
    batch_seconds,
    hand_over,
    same_rows,
    session,
    source,
    started,
    write_input,
)
from pystate.spark import Job, ParquetSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

OUTPUT = "key long, n long"
STATE = "n long"
WARM_UP = 1
"""Turns that are not timed."""
SHARE = 10
"""The batches that are not timed have one of so many rows."""


def by_row() -> ps.KeyedProcessFunction:
    """What one would write; defined here so that it is pickled by value."""

    class Counts(ps.KeyedProcessFunction):
        n = ps.ValueState("long", default=0)

        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
            n = self.n.value() + 1
            self.n.update(n)
            yield key, n

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


def with_group_function(keyed: Any) -> Any:
    """The same text in both engines."""
    return keyed.applyInPandasWithState(group_function(), OUTPUT, STATE, "Update", "NoTimeout")


def with_processor(keyed: Any) -> Any:
    """The same text in both engines."""
    return keyed.transformWithStateInPandas(frames_processor(), OUTPUT, "Update", "None")


OURS = "pystate, by row"
GROUP, FRAMES = "applyInPandasWithState", "transformWithStateInPandas"
STARTS: dict[str, Callable[[DataFrame, Path], StreamingQuery]] = {
    OURS: partial(start_in_job, with_operator=with_row_function),
    f"{GROUP} in a job": partial(start_in_job, with_operator=with_group_function),
    f"{FRAMES} in a job": partial(start_in_job, with_operator=with_processor),
    GROUP: partial(start_in_spark, with_operator=with_group_function),
    FRAMES: partial(start_in_spark, with_operator=with_processor),
}
EXPECTED = {GROUP: ">= 150x", FRAMES: ">= 150x"}


def jobs(scale: Scale) -> list[Row]:
    """Each batch goes through one job after the other."""
    seconds: dict[str, list[float]] = {name: [] for name in STARTS}
    root = Path(tempfile.mkdtemp(prefix="pystate-bench-"))
    small, large = inputs(scale)
    try:
        with session(root) as spark:
            spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDERS["RocksDB"])
            spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
            folders = {name: root / f"job{i}" for i, name in enumerate(STARTS)}
            queries = {
                name: start(source(spark, folders[name]), folders[name])
                for name, start in STARTS.items()
            }
            for turn in range(WARM_UP + scale.pandas_batches):
                # Spark ends workers that were idle for a minute: a small batch starts them again.
                rows = large if turn >= WARM_UP else small
                write_input(spark, small, root / str(2 * turn))
                write_input(spark, rows, root / str(2 * turn + 1))
                for name, query in queries.items():
                    for number in (2 * turn, 2 * turn + 1):
                        hand_over(root / str(number), folders[name])
                        took = batch_seconds(query, number)
                    seconds[name].append(took)
            for query in queries.values():
                query.stop()
            written = compared(spark, folders)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    timed = {name: taken[WARM_UP:] for name, taken in seconds.items()}
    return [row_of(name, timed, written, scale) for name in STARTS]


def inputs(scale: Scale) -> tuple[Any, Any]:
    """What to write for a batch that is not timed, and for one that is."""
    from dataclasses import replace

    large = replace(scale, spark_rows=scale.timed_rows, spark_keys=scale.timed_keys)
    return replace(large, spark_rows=scale.timed_rows // SHARE), large


def compared(spark: SparkSession, folders: dict[str, Path]) -> int:
    """Check that all outputs hold the same rows; return their number."""
    return same_rows(spark, folders, OURS, "key", "n").count()


def row_of(name: str, seconds: dict[str, list[float]], written: int, scale: Scale) -> Row:
    """A job's rate, and the lead of the function by row, or of the same text in a job."""
    ratio, peer = None, ""
    own = name.removesuffix(" in a job")
    if name != OURS:
        fast, slow = (name, own) if own != name else (OURS, name)
        pairs = zip(seconds[fast], seconds[slow], strict=True)
        ratio = Spread.of([theirs / ours for ours, theirs in pairs])
        peer = f"in Spark: {own}" if own != name else f"{OURS} / {name}"
    return Row(
        "spark-pandas",
        f"count by frames, {scale.timed_rows:,} rows a batch, {scale.timed_keys:,} keys: {name}",
        Spread.of([scale.timed_rows / one / 1e3 for one in seconds[name]]),
        "k rows/s",
        peer=peer,
        ratio=ratio,
        expected=EXPECTED.get(name, ""),
        detail={"seconds": seconds[name], "written": written},
    )
