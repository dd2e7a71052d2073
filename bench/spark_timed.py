"""A function of one row with a value, a map and timers, compared with Spark's transformWithState.

All run in one session over the same stream, shuffle by key into as many partitions, and write the
rows that they yield to Parquet in `foreachBatch`; these are compared at the end. Each counts the
rows of a key, and of each window of a key; a timer emits a window's count when the window has
ended. There are two processors for Spark: one that accesses its state row by row, as the function
does, and one that accesses it once for all rows of a key, which Spark passes together, because in
Spark every access is a message to the JVM. The first one also runs unchanged in a job of pystate.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row as SparkRow
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import pystate as ps
from bench.measure import Row, Scale, Spread
from bench.spark_jobs import (
    MAX_PARALLELISM,
    PARALLELISM,
    same_rows,
    started,
)
from bench.spark_turns import Comparison, lead
from pystate.spark import Job, ParquetSink

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SPAN_MS = 3_600_000
"""Event time of a batch; no row is late."""
WINDOW_MS = SPAN_MS // 4
COLUMNS = "key long, ms long, at timestamp"
OUTPUT = "key long, until long, n long"


def write_input(spark: SparkSession, rows: int, keys: int, folder: Path) -> None:
    """Write one batch: uniform keys, and times over the batch's span, with its last millisecond."""
    begin = (int(folder.name) + 1) * SPAN_MS
    drawn = F.pmod(F.xxhash64(F.col("id") + begin), F.lit(keys)).cast("long")
    ms = F.lit(begin + SPAN_MS - 1) - F.pmod(F.col("id") * 7_919, F.lit(SPAN_MS))
    spark.range(0, rows, 1, PARALLELISM).select(
        drawn.alias("key"), ms.alias("ms"), F.timestamp_millis(ms).alias("at")
    ).write.parquet(str(folder))


def source(spark: SparkSession, folder: Path) -> DataFrame:
    """A stream with a batch for each folder that appears below `folder`."""
    (folder / "in").mkdir(parents=True)
    return spark.readStream.schema(COLUMNS).parquet(str(folder / "in" / "*"))


def windows_function() -> ps.KeyedProcessFunction:
    """The function; defined here so that it is pickled by value."""
    window_ms = WINDOW_MS

    class Windows(ps.KeyedProcessFunction):
        n = ps.ValueState("long", default=0)
        windows = ps.MapState("long", "long")

        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
            n = self.n.value() + 1
            self.n.update(n)
            until = row["ms"] // window_ms * window_ms + window_ms
            count = self.windows.get(until)
            if count is None:
                count = 0
                ctx.register_event_time_timer(until)
            self.windows.put(until, count + 1)
            yield key, None, n

        def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> Any:
            yield key, timestamp, self.windows.get(timestamp)
            self.windows.remove(timestamp)

    return Windows()


def windows_processor(*, grouped: bool) -> StatefulProcessor:
    """The same for Spark."""
    window_ms = WINDOW_MS

    class Windows(StatefulProcessor):
        """Row by row."""

        def init(self, handle: Any) -> None:
            """Make the states."""
            self.handle = handle
            self.n = handle.getValueState("n", "n long")
            self.windows = handle.getMapState("windows", "until long", "n long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
            """Count each row."""
            for row in rows:
                found = self.n.get()
                n = 1 if found is None else found[0] + 1
                self.n.update((n,))
                until = row["ms"] // window_ms * window_ms + window_ms
                self.count(until, 1)
                yield SparkRow(key=key[0], until=None, n=n)

        def count(self, until: int, more: int) -> None:
            """Add rows to a window."""
            found = self.windows.getValue((until,))
            if found is None:
                self.handle.registerTimer(until)
            self.windows.updateValue((until,), ((0 if found is None else found[0]) + more,))

        def handleExpiredTimer(  # noqa: N802
            self,
            key: Any,
            timerValues: Any,  # noqa: N803
            expiredTimerInfo: Any,  # noqa: N803
        ) -> Any:
            """Emit a window's count."""
            until = expiredTimerInfo.getExpiryTimeInMs()
            yield SparkRow(key=key[0], until=until, n=self.windows.getValue((until,))[0])
            self.windows.removeKey((until,))

        def close(self) -> None:
            """Nothing is held."""

    class GroupedWindows(Windows):
        """One access to each state for all of a key's rows."""

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
            """Count each row, and store the counts at the end."""
            found = self.n.get()
            n = 0 if found is None else found[0]
            added: Counter[int] = Counter()
            for row in rows:
                n += 1
                added[row["ms"] // window_ms * window_ms + window_ms] += 1
                yield SparkRow(key=key[0], until=None, n=n)
            self.n.update((n,))
            for until, more in added.items():
                self.count(until, more)

    return GroupedWindows() if grouped else Windows()


def start_with_pystate(stream: DataFrame, folder: Path) -> StreamingQuery:
    """The product."""
    job = Job(
        "bench",
        checkpoint=str(folder / "checkpoint"),
        max_parallelism=MAX_PARALLELISM,
        parallelism=PARALLELISM,
    )

    def pipeline(frame: DataFrame) -> DataFrame:
        keyed = job.key_by(frame, "key", uid="windows", event_time="at", allowed_delay=0)
        return keyed.process(windows_function(), OUTPUT)

    return job.start(stream, pipeline, sink=ParquetSink(str(folder / "out")))


def start_ported(stream: DataFrame, folder: Path) -> StreamingQuery:
    """Spark's processor, unchanged, in a job."""
    job = Job(
        "ported",
        checkpoint=str(folder / "checkpoint"),
        max_parallelism=MAX_PARALLELISM,
        parallelism=PARALLELISM,
    )

    def pipeline(frame: DataFrame) -> DataFrame:
        keyed = job.key_by(frame, "key", uid="windows", event_time="at", allowed_delay=0)
        return keyed.transformWithState(
            windows_processor(grouped=False), OUTPUT, "Update", "EventTime"
        )

    return job.start(stream, pipeline, sink=ParquetSink(str(folder / "out")))


def start_native(stream: DataFrame, folder: Path, *, grouped: bool) -> StreamingQuery:
    """Spark's own."""

    def write(frame: DataFrame, batch_id: int) -> None:
        frame.write.parquet(str(folder / "out" / f"epoch={batch_id}"))

    rows = stream.withWatermark("at", "0 seconds").groupBy("key")
    windows = rows.transformWithState(
        windows_processor(grouped=grouped), OUTPUT, "Update", "EventTime"
    )
    return started(windows.writeStream.outputMode("update").foreachBatch(write), folder)


#: Spark's processor in a job of pystate.
PORTED = "pystate, transformWithState's processor"
STARTS: dict[str, Callable[[DataFrame, Path], StreamingQuery]] = {
    "pystate": start_with_pystate,
    PORTED: start_ported,
    "transformWithState": partial(start_native, grouped=False),
    "transformWithState, a key's rows at once": partial(start_native, grouped=True),
}


def jobs(scale: Scale) -> list[Row]:
    """All jobs with batches of the first size; with those of others, the ones that have a goal."""
    found = sized(scale.timed_rows[0], scale.timed_keys, scale.timed_batches, 1, STARTS, (50, 40))
    for rows in scale.timed_rows[1:]:
        starts = {name: start for name, start in STARTS.items() if "at once" not in name}
        keys = rows * scale.timed_keys // scale.timed_rows[0]
        found += sized(rows, keys, 1, scale.timed_batches, starts, (80, 100))
    return found


def sized(
    rows: int,
    keys: int,
    batches: int,
    in_a_row: int,
    starts: Mapping[str, Callable[[DataFrame, Path], StreamingQuery]],
    goals: tuple[int, int],
) -> list[Row]:
    """Jobs with batches of one size, so many turns of so many in a row.

    The goals are those of the function and of the processor.
    """

    def write(spark: SparkSession, rows: int, folder: Path) -> None:
        write_input(spark, rows, keys, folder)

    seconds, written = Comparison(starts, source, write, compared).run(rows, batches, in_a_row)

    def rates(name: str) -> Spread:
        return Spread.of([rows / one / 1e3 for one in seconds[name]])

    def row_of(name: str) -> Row:
        return Row(
            "spark-function",
            f"value, map and timer, {rows:,} rows a batch, {keys:,} keys: {name}",
            rates(name),
            "k rows/s",
            peer="" if name == "pystate" else f"pystate / {name}",
            ratio=None if name == "pystate" else lead(seconds, "pystate", name),
            expected=f">= {goals[0]}x" if name == "transformWithState" else "",
            detail={"seconds": seconds[name], "written": written},
        )

    return [
        *(row_of(name) for name in starts),
        Row(
            "spark-function",
            f"the same processor in a job and in Spark, {rows:,} rows a batch",
            rates(PORTED),
            "k rows/s",
            peer="transformWithState",
            ratio=lead(seconds, PORTED, "transformWithState"),
            expected=f">= {goals[1]}x",
        ),
    ]


def compared(spark: SparkSession, folders: dict[str, Path]) -> dict[str, int]:
    """Check that all outputs hold the same rows; return the number of rows and of timers."""
    ours = same_rows(spark, folders, "pystate", "key", "until", "n")
    fired = ours.where("until is not null").count()
    return {"rows": ours.count() - fired, "timers": fired}
