"""Every harness gives, epoch by epoch, what a job gives for the same epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import pystate as ps
from pystate import testing
from pystate.spark import adapt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pystate.spark import EpochProgress, Job
    from pystate.spark.operators.keyed_frame import KeyedFrame

DELAY = 2_000
COLUMNS = "k string, at long, v long"

Rows = list[tuple[str, int, int]]

#: The epochs' rows: on time, late by some and by much, none, and of a key that comes back. The
#: last epoch is a drain, and one comes after it.
EPOCHS: list[Rows] = [
    [("a", 1_000, 1), ("b", 4_000, 2), ("a", 1_500, 3)],
    [("a", 9_000, 4), ("c", 9_500, 5), ("b", 1_900, 6), ("a", 2_100, 7)],
    [],
    [("a", 6_000, 8), ("b", 12_000, 9), ("b", 3_000, 10), ("c", 12_000, 11), ("d", 13_000, 12)],
    [("a", 14_000, 15), ("b", 12_500, 16)],
]
DRAINED = 3


class Timed(ps.KeyedProcessFunction):
    """Says what it sees of the time, for rows and for timers, and what its state is."""

    seen = ps.ListState("long", ttl=ps.StateTtl(milliseconds=4_000, time="event"))

    def process(self, key: Any, row: Any, ctx: Any) -> Iterator[Any]:
        self.seen.add(row["v"])
        ctx.register_event_time_timer(row["at"] + 3_000)
        yield key, row["v"], ctx.watermark, len(list(self.seen.get()))

    def on_timer(self, key: Any, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield key, -timestamp, ctx.watermark, len(list(self.seen.get()))


class TimedBatches(ps.VectorizedFunction):
    """The same of all rows at once."""

    n = ps.ValueState("long", default=0)

    def process(self, keys: Any, batch: Any, ctx: Any) -> dict[str, Any]:
        self.n.add(keys, 1)
        ctx.register_event_time_timers(keys, batch.column("at"))
        return {**self._of(keys), "v": batch.column("v"), "wm": [ctx.watermark] * len(keys)}

    def on_timers(self, keys: Any, timestamps: Any, ctx: Any) -> dict[str, Any]:
        return {**self._of(keys), "v": timestamps, "wm": [ctx.watermark] * len(keys)}

    def _of(self, keys: Any) -> dict[str, Any]:
        return {"k": keys.key_arrays()[0], "n": self.n.values(keys)}


class TimedPairs(ps.KeyedCoProcessFunction):
    """Rows of two inputs, and what came of both when the time of one is over."""

    both = ps.ValueState("long", default=0)

    def process_left(self, key: Any, row: Any, ctx: Any) -> None:
        self.both.update(self.both.value() + row["v"])
        ctx.register_event_time_timer(row["at"])

    def process_right(self, key: Any, row: Any, ctx: Any) -> None:
        self.both.update(self.both.value() + 100 * row["v"])

    def on_timer(self, key: Any, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield key, timestamp, ctx.watermark, self.both.value()


class Ruled(ps.KeyedBroadcastProcessFunction):
    """Rows by the largest rule so far, and timers by the watermark of both inputs."""

    rules = ps.BroadcastState("string", "long")

    def process_broadcast(self, row: Any, ctx: Any) -> None:
        self.rules.put("v", max(row["v"], self.rules.get("v") or 0))

    def process(self, key: Any, row: Any, ctx: Any) -> Iterator[Any]:
        ctx.register_event_time_timer(row["at"])
        yield key, row["v"], ctx.watermark, self.rules.get("v")

    def on_timer(self, key: Any, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield key, -timestamp, ctx.watermark, self.rules.get("v")


class Held(ps.ProcessFunction):
    """Gives each row back an epoch later."""

    rows = ps.OperatorListState("long")

    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        if row["v"] >= 0:
            self.rows.add(row["v"])
        yield row["v"], ctx.watermark, None

    def on_epoch_end(self, ctx: Any) -> Iterator[Any]:
        for v in self.rows:
            yield v, ctx.watermark, ctx.epoch
        self.rows.clear()


class Ported(StatefulProcessor):
    """A processor of Spark: counts, timers at the watermark and after each row."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        n = (self.n.get() or (0,))[0]
        self.handle.registerTimer(timerValues.getCurrentWatermarkInMs())
        for row in rows:
            n += 1
            self.handle.registerTimer(row.at)
        self.n.update((n,))
        yield Row(k=key[0], n=n, wm=timerValues.getCurrentWatermarkInMs())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        wm = timerValues.getCurrentWatermarkInMs()
        yield Row(k=key[0], n=-expiredTimerInfo.getExpiryTimeInMs(), wm=wm)

    def close(self) -> None:
        pass


class PortedFrames(Ported):
    """The same of frames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        rows = (row for frame in rows for row in frame.itertuples())
        yield from map(_frame, super().handleInputRows(key, rows, timerValues))

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        yield from map(_frame, super().handleExpiredTimer(key, timerValues, expiredTimerInfo))


def _frame(row: Row) -> pd.DataFrame:
    return pd.DataFrame([row.asDict()])


def sums(key: Any, window: Any, batch: Any) -> Iterator[Any]:
    yield key, window.start, sum(batch.column("v").to_pylist())


def sides(rows: Rows) -> tuple[Rows, Rows]:
    """The rows of two inputs."""
    return [row for row in rows if row[2] % 3], [row for row in rows if not row[2] % 3]


@dataclass(frozen=True)
class Case:
    """An operator, in a harness and in a job."""

    harness: Callable[[], Any]
    job: Callable[[Job, str, DataFrame, DataFrame], DataFrame]
    """Called with the job, the operator's uid, and the rows of both inputs."""
    inputs: tuple[str, str] | None = None
    """What the harness calls its two inputs; None if all rows are of one."""


def keyed(job: Job, frame: DataFrame, uid: str | None, **more: Any) -> KeyedFrame:
    options = {"order_by": "v", "event_time": "at", "allowed_delay": DELAY, **more}
    return job.key_by(frame, "k", uid=uid, **options)


TIMED: dict[str, Any] = {"event_time": "at", "allowed_delay": DELAY}
ONE: dict[str, Any] = {"key": "k", "columns": COLUMNS, **TIMED}
TWO: dict[str, Any] = {"key": "k", "left": COLUMNS, "right": COLUMNS, **TIMED}
SEEN = "k string, v long, wm long, n long"
HELD = "v long, wm long, epoch long"
SUFFIXES = ("", "_r")


def function(function: type[Any], late: str, schema: str = SEEN) -> Case:
    return Case(
        lambda: testing.Harness(function(), schema=schema, late=late, **ONE),
        lambda job, uid, all_, _: keyed(job, all_, uid).process(function(), schema, late=late),
    )


def windowed(windows: Any, **options: Any) -> Case:
    aggregates = {"n": ps.count(), "total": ps.sum("v"), "most": ps.max("v")}
    return Case(
        lambda: testing.WindowHarness(windows, aggregates, **options, **ONE),
        lambda job, uid, all_, _: (
            keyed(job, all_, uid).window(windows, **options).aggregate(**aggregates)
        ),
    )


def joined(join: Any, made: Callable[[Any, Any], Any]) -> Case:
    return Case(
        lambda: testing.TwoInputHarness(join, **TWO),
        lambda job, uid, one, two: made(
            keyed(job, one, uid, order_by=None), keyed(job, two, None, order_by=None)
        ),
        ("left", "right"),
    )


def ported(processor: type[Any], *, frames: bool) -> Case:
    name = "transformWithStateInPandas" if frames else "transformWithState"
    return Case(
        lambda: testing.Harness(
            adapt(processor(), "k", time_mode="EventTime", frames=frames), late="drop", **ONE
        ),
        lambda job, uid, all_, _: getattr(keyed(job, all_, uid), name)(
            processor(), "k string, n long, wm long", "Update", "EventTime"
        ),
    )


INTERVAL: dict[str, Any] = {"lower": -3_000, "upper": 3_000, "how": "full", "suffixes": SUFFIXES}

CASES = {
    "process": function(Timed, "process"),
    "drop": function(Timed, "drop"),
    "vectorized": function(TimedBatches, "drop", "k string, n long, v long, wm long"),
    "tumbling": windowed(ps.Tumbling(5_000)),
    "sliding": windowed(ps.Sliding(6_000, 2_000), allowed_lateness=3_000),
    "sessions": windowed(ps.Session(2_500), emit="update"),
    "counted": windowed(ps.CountWindow(2)),
    "window_function": Case(
        lambda: testing.WindowHarness(
            ps.Tumbling(5_000), process=sums, schema="k string, at long, v long", **ONE
        ),
        lambda job, uid, all_, _: (
            keyed(job, all_, uid)
            .window(ps.Tumbling(5_000))
            .process(sums, "k string, at long, v long")
        ),
    ),
    "interval_join": joined(
        testing.IntervalJoin(**INTERVAL), lambda one, two: one.interval_join(two, **INTERVAL)
    ),
    "asof_join": joined(
        testing.AsofJoin("left", suffixes=SUFFIXES),
        lambda one, two: one.asof_join(two, how="left", suffixes=SUFFIXES),
    ),
    "window_join": joined(
        testing.WindowJoin(ps.Tumbling(5_000), "full", SUFFIXES),
        lambda one, two: one.join(two, window=ps.Tumbling(5_000), how="full", suffixes=SUFFIXES),
    ),
    "pairs": Case(
        lambda: testing.TwoInputHarness(TimedPairs(), schema=SEEN, late="drop", **TWO),
        lambda job, uid, one, two: (
            keyed(job, one, uid, order_by=None)
            .connect(keyed(job, two, None, order_by=None))
            .process(TimedPairs(), SEEN, late="drop")
        ),
        ("left", "right"),
    ),
    "deduplicate": Case(
        lambda: testing.RowHarness(testing.Deduplicate(3_000), **ONE),
        lambda job, uid, all_, _: keyed(job, all_, uid).deduplicate(3_000),
    ),
    "top": Case(
        lambda: testing.RowHarness(testing.Top(2, by="v"), **ONE),
        lambda job, uid, all_, _: keyed(job, all_, uid).top(2, by="v"),
    ),
    "broadcast": Case(
        lambda: testing.BroadcastHarness(
            Ruled(),
            {"k": "string"},
            schema=SEEN,
            columns=COLUMNS,
            broadcast_columns=COLUMNS,
            broadcast_event_time="at",
            broadcast_delay=DELAY,
            late="drop",
            **TIMED,
        ),
        lambda job, uid, one, two: (
            keyed(job, one, uid)
            .connect(job.broadcast(two, uid="rules", order_by="v", **TIMED))
            .process(Ruled(), SEEN, late="drop")
        ),
        ("rows", "broadcast"),
    ),
    "operator_state": Case(
        lambda: testing.ProcessHarness(Held(), schema=HELD, columns=COLUMNS, **TIMED),
        lambda job, uid, all_, _: job.operator(all_, uid=uid, **TIMED).process(Held(), HELD),
    ),
    "processor": ported(Ported, frames=False),
    "frames": ported(PortedFrames, frames=True),
}


@dataclass
class Epoch:
    """What an epoch gave."""

    rows: list[tuple[str | None, ...]]
    watermark: int | None
    late_rows: int


def plain(found: list[Any]) -> list[tuple[str | None, ...]]:
    """Rows to compare, as text; those of a frame are taken out of it."""
    rows: list[Any] = []
    for row in found:
        rows += row.itertuples(index=False) if isinstance(row, pd.DataFrame) else [row]
    as_text = [tuple(None if v is None else str(v) for v in row) for row in rows]
    return sorted(as_text, key=repr)


def of_a_harness(case: Case) -> list[Epoch]:
    found: list[Epoch] = []
    with case.harness() as harness:
        for number, rows in enumerate(EPOCHS):
            given: dict[str, Any] = {"rows": rows}
            if case.inputs:
                given = dict(zip(case.inputs, sides(rows), strict=True))
            before = harness.late_rows
            out = (harness.drain if number == DRAINED else harness.process)(**given)
            found.append(Epoch(plain(out), harness.watermark, harness.late_rows - before))
    return found


@pytest.fixture(scope="module")
def epochs(
    spark: SparkSession, one_task: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, list[Epoch]]]:
    """The same of one job of all operators, and what its loop had in flight."""
    from pystate.spark import Job

    found: dict[str, list[Epoch]] = {name: [] for name in (*CASES, "loop")}
    progress: list[EpochProgress] = []
    folder = tmp_path_factory.mktemp("harnesses")
    with Job("harnesses", checkpoint=folder / "checkpoint", parallelism=1) as job:

        def pipeline(df: DataFrame) -> DataFrame:
            one, two = df.where("v % 3 != 0"), df.where("v % 3 = 0")
            loop = job.feedback("loop", "k string, v long", uid="loop")
            around = loop.rows()
            loop.feed(
                around.where("v > 1").selectExpr("k", "v - 1 AS v").union(df.select("k", "v"))
            )
            parts = {"loop": around}
            for name, case in CASES.items():
                parts[name] = case.job(job, name, one if case.inputs else df, two)
            return reduce(DataFrame.union, (_as_text(name, out) for name, out in parts.items()))

        for number, rows in enumerate(EPOCHS):
            df = spark.createDataFrame(rows, COLUMNS).coalesce(1)
            drain = number == DRAINED
            made = job.run_epoch(df, pipeline, drain=drain, on_epoch=progress.append).dataframe
            out: dict[str, list[Any]] = {name: [] for name in found}
            for row in made.collect():
                out[row.name].append(row.row)
            seen = {operator.uid: operator for operator in progress[-1].operators}
            for name, given in out.items():
                late = seen[name].late_rows or 0
                found[name].append(Epoch(plain(given), seen[name].watermark_ms, late))
    yield found


def _as_text(name: str, frame: DataFrame) -> DataFrame:
    values = [F.col(f"`{column}`").cast("string") for column in frame.columns]
    return frame.select(F.lit(name).alias("name"), F.array(*values).alias("row"))


@pytest.mark.parametrize("name", CASES)
def test_a_harness_gives_what_a_job_gives(name: str, epochs: dict[str, list[Epoch]]) -> None:
    found = of_a_harness(CASES[name])
    for number, (here, there) in enumerate(zip(found, epochs[name], strict=True), 1):
        assert (number, here) == (number, there)
    assert any(epoch.rows for epoch in found)


def test_the_harness_of_a_loop_gives_what_a_job_gives(epochs: dict[str, list[Epoch]]) -> None:
    with testing.LoopHarness("k string, v long") as harness:
        for rows, there in zip(EPOCHS, epochs["loop"], strict=True):
            around = harness.rows()
            assert plain(around) == there.rows
            harness.feed([(k, v - 1) for k, v in around if v > 1] + [(k, v) for k, _, v in rows])


def test_all_harnesses_can_do_the_same() -> None:
    kinds = {type(case.harness()) for case in CASES.values()} | {testing.LoopHarness}
    assert len(kinds) == 7
    for kind in kinds:
        for name in ("snapshot", "restore", "fail_at", "drain", "late_rows"):
            assert hasattr(kind, name), (kind, name)
