"""Joins of two inputs on Spark: streams that start again with other ranges, and what is refused."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.errors import InvalidArgumentError, WrongTypeError
from pystate.spark import EpochProgress, ParquetSink

from .conftest import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]
DELAY = 1500
#: (key, id, time)
Row = tuple[Any, int, Any]


def inputs(job: Job, df: DataFrame, uid: str) -> tuple[Any, Any]:
    left = df.where("side = 'l'").selectExpr("t", "k", "id AS lid")
    right = df.where("side = 'r'").selectExpr("id AS rid", "k AS key", "timestamp_millis(t) AS at")
    return (
        job.key_by(left, "k", uid=uid, event_time="t", allowed_delay=DELAY),
        job.key_by(right, "key", event_time="at", allowed_delay=DELAY),
    )


def epochs(seed: int, count: int, rows: int = 60) -> list[dict[str, list[Row]]]:
    """Rows of both inputs for some epochs; some are late, some have no key or time."""
    rng = random.Random(seed)
    found = []
    for number in range(count):
        sides: dict[str, list[Row]] = {"l": [], "r": []}
        for i in range(rows):
            key = rng.choice([None, "a", "b", "c", "d"])
            time = rng.choice([None, *(rng.randint(-3000, 3000) + 3000 * number for _ in range(9))])
            sides[rng.choice("lr")].append((key, number * rows + i, time))
        found.append(sides)
    return found


def lines(sides: dict[str, list[Row]]) -> list[str]:
    def text(value: Any) -> str:
        return "" if value is None else str(value)

    return [f"{s},{text(k)},{i},{text(t)}" for s, rows in sides.items() for k, i, t in rows]


def on_time(stream: list[dict[str, list[Row]]]) -> tuple[dict[str, list[Row]], int]:
    """The rows that are not below the watermark of their epoch, and how many are."""
    latest: dict[str, int | None] = {"l": None, "r": None}
    kept: dict[str, list[Row]] = {"l": [], "r": []}
    late = 0
    for sides in stream:
        seen = [each - DELAY for each in latest.values() if each is not None]
        bound = min(seen) if len(seen) == 2 else None
        for side, rows in sides.items():
            for row in rows:
                if row[2] is not None and bound is not None and row[2] < bound:
                    late += 1
                else:
                    kept[side].append(row)
                if row[2] is not None:
                    latest[side] = max(row[2], latest[side] if latest[side] is not None else row[2])
    return kept, late


def test_joins_by_time(make_job: MakeJob, spark: SparkSession, tmp_path: Path) -> None:
    """A stream in two runs with different numbers of ranges, which is drained."""

    def pipeline(df: DataFrame, job: Job) -> dict[str, DataFrame]:
        left, right = inputs(job, df, "full")
        full = left.interval_join(right, "-1 second", 2000, how="full")
        assert full.columns == ["k", "t", "lid", "rid", "at"]
        left, right = inputs(job, df, "asof")
        return {"full": full, "asof": left.asof_join(right, how="left")}

    source = Source(spark, tmp_path / "rows", "side string, k string, id long, t long")
    sinks = {name: ParquetSink(tmp_path / name) for name in ("full", "asof")}
    stream = epochs(7, 3)
    progress: list[EpochProgress] = []
    for part, ranges in ((stream[:2], 3), (stream[2:], 2)):
        for sides in part:
            source.add(*lines(sides))
        job = make_job(parallelism=ranges)
        job.start(
            source.stream(),
            pipeline,
            sink=sinks,
            trigger={"availableNow": True},
            drain=ranges == 2,
            on_epoch=progress.append,
        ).awaitTermination()
        job.close()
    kept, late = on_time(stream)
    assert late > 0
    assert all(sum(p.late_rows[name] for p in progress) == late for name in sinks)
    assert sum(p.rows_in for p in progress) == sum(len(r) for s in stream for r in s.values())
    pairs = [
        (k, lid, rid)
        for k, lid, t in kept["l"]
        for key, rid, at in kept["r"]
        if None not in (k, t, at) and k == key and -1000 <= at - t <= 2000
    ]
    matched = {i for _, lid, rid in pairs for i in (lid, rid)}
    pairs += [(k, i, None) for k, i, _ in kept["l"] if i not in matched]
    pairs += [(k, None, i) for k, i, _ in kept["r"] if i not in matched]
    asof = []
    for k, lid, t in kept["l"]:
        versions = [
            (at, rid)
            for key, rid, at in kept["r"]
            if None not in (k, t, at) and k == key and at <= t
        ]
        asof.append((k, lid, max(versions)[1] if versions else None))
    for name, expected in (("full", pairs), ("asof", asof)):
        found = sinks[name].read(spark).select("k", "lid", "rid").collect()
        assert Counter(map(tuple, found)) == Counter(expected), name


LEFT, RIGHT = "k string, v long, t timestamp", "k string, w long, t timestamp"


@pytest.mark.parametrize(
    ("left", "right", "changed", "error", "message"),
    [
        ({}, {"uid": "b"}, {}, InvalidArgumentError, "one operator, .* 'a' and 'b': give"),
        ({"uid": None}, {}, {}, InvalidArgumentError, "needs a uid"),
        ({}, {}, {"schema": "k int, w long, at timestamp"}, WrongTypeError, "k string.* k int"),
        ({}, {}, {"schema": RIGHT, "time": "t"}, InvalidArgumentError, "would be called t: re"),
        ({}, {"event_time": None}, {}, InvalidArgumentError, "input 'right': .* by event time"),
        ({"order_by": "v"}, {}, {}, InvalidArgumentError, "leave order_by out"),
        ({}, {}, {"upper": "-2 minutes"}, InvalidArgumentError, "lower bound, -60000 ms, is above"),
        ({}, {}, {"lower": "ten"}, InvalidArgumentError, "lower='ten': write a length of time"),
        ({}, {}, {"how": "outer"}, InvalidArgumentError, "how"),
        ({}, {}, {"suffixes": "_r"}, InvalidArgumentError, "suffixes are two strings"),
    ],
)
def test_what_is_refused(
    make_job: MakeJob,
    spark: SparkSession,
    left: Any,
    right: Any,
    changed: Any,
    error: Any,
    message: str,
) -> None:
    job = make_job()
    rows: Any = spark.createDataFrame([], changed.get("schema", "k string, w long, at timestamp"))
    time = changed.get("time", "at")
    options = {k: v for k, v in changed.items() if k not in ("schema", "time")}

    def pipeline(df: DataFrame) -> DataFrame:
        one = job.key_by(df, "k", **{"uid": "a", "event_time": "t", **left})
        two = job.key_by(rows, "k", **{"event_time": time, **right})
        joined: DataFrame = one.interval_join(
            two, **{"lower": "-1 minute", "upper": "1 minute", **options}
        )
        return joined

    with pytest.raises(error, match=message):
        job.run_epoch(spark.createDataFrame([], LEFT), pipeline)


def test_suffixes(make_job: MakeJob, spark: SparkSession) -> None:
    job = make_job()
    frame = spark.createDataFrame([("a", 1, 5), ("a", 2, 6)], "k string, v long, t long")

    def pipeline(df: DataFrame) -> DataFrame:
        left = job.key_by(df, "k", uid="self", event_time="t")
        return left.interval_join(
            job.key_by(df, "k", event_time="t"), 1, 10, suffixes=("", "_right")
        )

    result = job.run_epoch(frame, pipeline)
    assert [tuple(row) for row in result.dataframe.collect()] == [("a", 1, 5, 2, 6)]


class Priced(ps.KeyedCoProcessFunction):
    """Keeps the last price, and the amounts that waited for one."""

    price = ps.ValueState("long")
    waiting = ps.ListState("long")

    def process_left(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        assert row.k == key and ctx.timestamp == row.t
        if self.price.value() is None:
            self.waiting.add(row["lid"])
            ctx.register_event_time_timer(row.t + 5000)
        else:
            yield key, row.lid, self.price.value()

    def process_right(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        self.price.update(row.rid)
        for lid in self.waiting.get():
            yield row["key"], lid, row.rid
        self.waiting.clear()

    def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> Any:
        for lid in self.waiting.get():
            yield key, lid, None
        self.waiting.clear()


@pytest.mark.slow
def test_a_function_of_two_inputs(
    make_job: MakeJob, spark: SparkSession, source: Source, tmp_path: Path
) -> None:
    source = Source(spark, tmp_path / "rows", "side string, k string, id long, t long")
    source.add("l,a,1,1000", "l,b,2,1000", "r,c,10,1000")
    source.add("r,a,11,2000", "l,c,3,9500", "l,c,4,-9000")
    source.add("l,a,5,9000", "r,d,12,9500")
    source.add("r,d,13,9500")
    sink, job = ParquetSink(tmp_path / "out"), make_job(parallelism=2)
    progress: list[EpochProgress] = []

    def pipeline(df: DataFrame) -> DataFrame:
        left, right = inputs(job, df, "j")
        joined: DataFrame = left.connect(right).process(
            Priced(), "k string, lid long, price long", late="drop"
        )
        return joined

    job.start(
        source.stream(),
        pipeline,
        sink=sink,
        trigger={"availableNow": True},
        on_epoch=progress.append,
    ).awaitTermination()
    found = sorted(
        tuple(row) for row in sink.read(spark).select("epoch", "k", "lid", "price").collect()
    )
    # 4 is late; the timer of 2 fires once both inputs are beyond it.
    assert found == [(2, "a", 1, 11), (2, "c", 3, 10), (3, "a", 5, 11), (4, "b", 2, None)]
    assert [p.late_rows["j"] for p in progress] == [0, 1, 0, 0]
    assert progress[-1].watermark_ms == 9500 - DELAY


def test_a_function_of_two_inputs_is_connected(make_job: MakeJob, spark: SparkSession) -> None:
    job = make_job()
    frame = spark.createDataFrame([], "k string, v long")
    with pytest.raises(InvalidArgumentError, match="Priced has two inputs: connect them"):
        job.run_epoch(frame, lambda df: job.key_by(df, "k", uid="j").process(Priced(), "k string"))


def test_window_join(make_job: MakeJob, spark: SparkSession, tmp_path: Path) -> None:
    """Also where the late rows go, of all kinds of joins and of a function of two inputs."""

    class Both(ps.KeyedCoProcessFunction):
        seen = ps.ValueState("long")

        def process_left(self, key: Any, row: Any, ctx: Any) -> Any:
            yield "function", row["lid"]

        def process_right(self, key: Any, row: Any, ctx: Any) -> Any:
            yield "function", row["rid"]

    def pipeline(df: DataFrame, job: Job) -> DataFrame:
        left, right = inputs(job, df, "windowed")
        late = {"left": "late_left", "right": "late_right"}
        windowed = left.join(right, window=ps.Tumbling(700), how="full", late=late)
        assert windowed.columns == ["k", "window_start", "window_end", "t", "lid", "rid", "at"]
        left, right = inputs(job, df, "interval")
        interval = left.interval_join(right, 0, 1, late="late_both")
        left, right = inputs(job, df, "asof")
        asof = left.asof_join(right, late={"right": "late_versions"})
        left, right = inputs(job, df, "function")
        with pytest.raises(InvalidArgumentError, match="late by their event time"):
            timeless = job.key_by(df, "k")
            left.connect(timeless).process(Both(), "kind string", late={"right": "late_function"})
        function = left.connect(right).process(
            Both(), "kind string, id long", late={"left": "drop", "right": "late_function"}
        )
        parts = [
            windowed.selectExpr("'windowed' AS kind", "k", "window_start AS s", "lid", "rid"),
            interval.selectExpr("'interval' AS kind", "k", "0L AS s", "lid", "rid"),
            asof.selectExpr("'asof' AS kind", "k", "0L AS s", "lid", "rid"),
            function.selectExpr("kind", "'' AS k", "0L AS s", "id AS lid", "0L AS rid"),
        ]
        return parts[0].union(parts[1]).union(parts[2]).union(parts[3])

    tags = ("late_left", "late_right", "late_both", "late_versions", "late_function")
    sinks = {tag: ParquetSink(tmp_path / tag) for tag in tags}
    stream, out, kept = epochs(11, 3, 40), [], {"l": [], "r": []}  # type: ignore[var-annotated]
    late: dict[str, list[Any]] = {"l": [], "r": []}
    below: dict[str, list[Any]] = {"l": [], "r": []}
    job = make_job(parallelism=3)
    latest: dict[str, int | None] = {"l": None, "r": None}
    for number, sides in enumerate(stream):
        if number == 1:
            job.close()
            job = make_job(parallelism=2)
        seen = [each - DELAY for each in latest.values() if each is not None]
        bound = min(seen) if len(seen) == 2 else None
        for side, rows in sides.items():
            for key, i, t in rows:
                if t is None:
                    continue
                over = bound is not None and t // 700 * 700 + 700 <= bound
                (late if over else kept)[side].append((key, i, t))
                if bound is not None and t < bound:
                    below[side].append(i)
                latest[side] = max(t, latest[side] if latest[side] is not None else t)
        rows = [(s, k, i, t) for s, each in sides.items() for k, i, t in each]
        df = spark.createDataFrame(rows, "side string, k string, id long, t long")
        last = number == len(stream) - 1
        result = job.run_epoch(df, pipeline, side_outputs=sinks, drain=last)
        out += [tuple(row) for row in result.dataframe.collect()]
    pairs = []
    for k, i, t in kept["l"]:
        start = t // 700 * 700
        met = [j for key, j, at in kept["r"] if key == k and k and at // 700 * 700 == start]
        pairs += [(k, start, i, j) for j in met or [None]]
    matched = {j for *_, j in pairs}
    pairs += [(k, t // 700 * 700, None, j) for k, j, t in kept["r"] if j not in matched]
    assert Counter(row[1:] for row in out if row[0] == "windowed") == Counter(pairs)
    assert late["l"] and late["r"]

    def ids(tag: str, column: str) -> list[Any]:
        found = spark.read.parquet(str(tmp_path / tag))
        return sorted(row[column] for row in found.collect() if row[column] is not None)

    assert ids("late_left", "lid") == sorted(i for _, i, _ in late["l"])
    assert ids("late_right", "rid") == sorted(i for _, i, _ in late["r"])
    assert ids("late_both", "lid") == sorted(below["l"])
    assert ids("late_both", "rid") == sorted(below["r"])
    assert ids("late_versions", "rid") == sorted(below["r"])
    assert ids("late_function", "rid") == sorted(below["r"])
    assert spark.read.parquet(str(tmp_path / "late_right")).columns[:-1] == ["rid", "key", "at"]
    assert spark.read.parquet(str(tmp_path / "late_both")).columns[:-1] == [
        "t",
        "k",
        "lid",
        "rid",
        "key",
        "at",
    ]
    handled = {row[3] for row in out if row[0] == "function"}
    assert not handled & {*below["l"], *below["r"]} and len(handled) > 40


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("interval_join", {"lower": "-1 minute", "upper": "1 minute"}),
        ("asof_join", {}),
        ("join", {"window": ps.Tumbling("1 minute")}),
        ("connect", {}),
    ],
)
def test_the_other_input_has_a_key(
    make_job: MakeJob, spark: SparkSession, method: str, given: dict[str, Any]
) -> None:
    rows = spark.createDataFrame([], LEFT)
    job = make_job()
    with pytest.raises(InvalidArgumentError, match=rf"^{method} takes .*key_by.*, not DataFrame"):
        job.run_epoch(
            rows,
            lambda df: getattr(job.key_by(df, "k", uid="a", event_time="t"), method)(df, **given),
        )
