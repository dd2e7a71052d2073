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
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import pystate as ps
from bench.measure import Row, Scale
from bench.spark_aggregates import write_timed
from bench.spark_jobs import by_turns, in_a_row, in_job, in_spark, same_rows, session

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from bench.spark_jobs import Start
    from pystate.spark import Job

WARM_UP = 3
"""Turns that are not timed: the first batches of a JVM are those of its compiler."""
SPAN_MS = 3_600_000
"""Event time of a batch; no row is late."""
WINDOW_MS = SPAN_MS // 4
COLUMNS = "key long, ms long, at timestamp"
OUTPUT = "key long, until long, n long"


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


def keyed(frame: DataFrame, job: Job) -> Any:
    """Rows by key, in event time."""
    return job.key_by(frame, "key", uid="windows", event_time="at", allowed_delay=0)


def with_function(frame: DataFrame, job: Job) -> DataFrame:
    """The product."""
    found: DataFrame = keyed(frame, job).process(windows_function(), OUTPUT)
    return found


def with_processor(grouped_rows: Any, *, grouped: bool = False) -> DataFrame:
    """The same text in both engines."""
    processor = windows_processor(grouped=grouped)
    found: DataFrame = grouped_rows.transformWithState(processor, OUTPUT, "Update", "EventTime")
    return found


def natively(*, grouped: bool) -> Start:
    """Spark's own."""

    def query(stream: DataFrame) -> DataFrame:
        rows = stream.withWatermark("at", "0 seconds").groupBy("key")
        return with_processor(rows, grouped=grouped)

    return in_spark(query)


OURS, THEIRS = "pystate", "transformWithState"
PORTED = "pystate, transformWithState's processor"
"""Spark's processor in a job of pystate."""
STARTS: dict[str, Start] = {
    OURS: in_job(with_function),
    PORTED: in_job(lambda frame, job: with_processor(keyed(frame, job))),
    THEIRS: natively(grouped=False),
    f"{THEIRS}, a key's rows at once": natively(grouped=True),
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
    turns: int,
    batches: int,
    starts: Mapping[str, Start],
    goals: tuple[int, int],
) -> list[Row]:
    """Jobs with batches of one size, so many turns of so many in a row.

    The goals are those of the function and of the processor.
    """
    write = partial(write_timed, keys=keys, span_ms=SPAN_MS)
    planned = in_a_row(rows, WARM_UP, turns, batches)
    with session() as (spark, root):
        timings, folders = by_turns(spark, root, starts, COLUMNS, write, planned)
        same_rows(spark, folders, OURS, "key", "until", "n")
    what = f"value, map and timer, {rows:,} rows a batch, {keys:,} keys"
    question, unit = "spark-function", "k rows/s"
    found = [
        timings.row(
            name,
            question,
            f"{what}: {name}",
            rows,
            unit,
            lead=None if name == OURS else (OURS, name),
            expected=f">= {goals[0]}x" if name == THEIRS else "",
        )
        for name in starts
    ]
    what = f"the same processor in a job and in Spark, {rows:,} rows a batch"
    lead, goal = (PORTED, THEIRS), f">= {goals[1]}x"
    ported = timings.row(PORTED, question, what, rows, unit, lead=lead, peer=THEIRS, expected=goal)
    return [*found, ported]
