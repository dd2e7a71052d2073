"""Event time on Spark: watermarks, late rows, side outputs, and what a replay may not change."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from functools import reduce
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.epochs.watermarks import OperatorTime
from pystate.errors import DeclarationError, InvalidArgumentError, WrongTypeError
from pystate.spark import EpochProgress, ParquetSink

from .conftest import Source, rows_of, state_of
from .plans import ONE_TASK, configured

if TYPE_CHECKING:
    from pyspark.core.rdd import RDD
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]
SCHEMA = "k string, v long, time long, mark long, now long"


class Times(ps.KeyedProcessFunction):
    """Yields what it is told about time; odd values go to a side output, too."""

    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
        self.n.update(self.n.value() + 1)
        if row.v is not None and row.v % 2:
            ctx.output("odd", (key, row.v))
        yield key, row.v, ctx.timestamp, ctx.watermark, ctx.processing_time


def timing(job: Job, delay: Any = 5, late: str = "process") -> Callable[[DataFrame], DataFrame]:
    def pipeline(df: DataFrame) -> DataFrame:
        keyed = job.key_by(df, "k", uid="times", event_time="v", allowed_delay=delay)
        sides = {"odd": "k string, v long"}
        return keyed.process(Times(), SCHEMA, side_outputs=sides, late=late)

    return pipeline


def sinks(tmp_path: Path, *tags: str) -> dict[str, ParquetSink]:
    return {tag: ParquetSink(tmp_path / f"side-{tag}") for tag in tags}


def start(job: Job, source: Source, pipeline: Any = None, **options: Any) -> StreamingQuery:
    options.setdefault("trigger", {"availableNow": True})
    return job.start(source.stream(), pipeline or timing(job), **options)


def test_watermarks_late_rows_and_side_outputs(
    spark: SparkSession, make_job: MakeJob, source: Source, tmp_path: Path
) -> None:
    sink, sides = ParquetSink(tmp_path / "out"), sinks(tmp_path, "odd", "late")
    progress: list[EpochProgress] = []
    for lines in (["a,100", "b,90"], ["a,94", "b,95", "a,120"], ["b,7", "a,114", "b,200"], ["b,8"]):
        source.add(*lines)
    job = make_job()
    start(
        job,
        source,
        timing(job, late="late"),
        sink=sink,
        side_outputs=sides,
        on_epoch=progress.append,
    ).awaitTermination()
    found = rows_of(sink.read(spark).select("epoch", "k", "v", "time", "mark"))
    assert found == [
        (1, "a", 100, 100, None),
        (1, "b", 90, 90, None),
        (2, "a", 120, 120, 95),
        (2, "b", 95, 95, 95),
        (3, "b", 200, 200, 115),
    ]
    assert [(p.watermark_ms, p.late_rows, p.side_rows) for p in progress] == [
        (95, {"times": 0}, {}),
        (115, {"times": 1}, {"late": 1, "odd": 1}),
        (195, {"times": 2}, {"late": 2}),
        (195, {"times": 1}, {"late": 1}),
    ]
    assert rows_of(sides["odd"].read(spark)) == [("b", 95, 2)]
    assert rows_of(sides["late"].read(spark)) == [
        ("a", 114, 3),
        ("a", 94, 2),
        ("b", 7, 3),
        ("b", 8, 4),
    ]
    # Late rows never reached the function.
    assert state_of(job, "times") == {"a": 2, "b": 3}
    assert "1 late, 1 to 'late', 1 to 'odd'" in str(progress[1])
    assert not [p for s in sides.values() for p in (Path(s.path) / "_staging").iterdir()]


class CrashError(Exception):
    """Stands for the end of the driver."""


def crash(*_: object, **__: object) -> None:
    raise CrashError


def test_a_replayed_epoch_has_the_same_times_and_outputs(
    spark: SparkSession,
    make_job: MakeJob,
    source: Source,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A driver dies before its manifest, the next one before its commit, and one after it."""
    sink, sides = ParquetSink(tmp_path / "out"), sinks(tmp_path, "odd", "late")
    seen: list[tuple[int, OperatorTime | None]] = []

    def run() -> Job:
        job = make_job()

        def pipeline(df: DataFrame) -> DataFrame:
            assert job._evaluation is not None
            epoch = job._evaluation.epoch
            out = timing(job, late="late")(df)
            seen.append((epoch.processing_time_ms, epoch.time("times")))
            return out

        start(job, source, pipeline, sink=sink, side_outputs=sides).awaitTermination()
        return job

    def fail(place: str) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(place, crash)
            with pytest.raises(Exception, match="CrashError"):
                run()

    source.add("a,100", "b,31")
    run()
    source.add("a,3", "b,201")
    for place in ("pystate.epochs.epoch.Epoch.complete", "pystate.spark.sinks.commits.commit"):
        fail(place)
        assert not list(Path(sides["late"].path).glob("epoch=2"))
    source.add("c,2")
    fail("pystate.spark.epochs.epochs.notify")
    job = run()
    assert len(seen) == 4 and seen[1] == seen[2]
    assert [time for _, time in seen[2:]] == [OperatorTime(95, 95), OperatorTime(196, 196)]
    # The clock may have gone back: a later epoch's time does not.
    assert seen[3][0] >= seen[2][0]
    assert rows_of(sink.read(spark).select("v", "mark", "epoch")) == [
        (100, None, 1),
        (201, 95, 2),
        (31, None, 1),
    ]
    assert rows_of(sides["odd"].read(spark)) == [("b", 201, 2), ("b", 31, 1)]
    assert rows_of(sides["late"].read(spark)) == [("a", 3, 2), ("c", 2, 3)]
    [times] = ps.describe(job.checkpoint).operators
    assert times.watermark_ms == 196


class Fragile(Times):
    """Fails in the first evaluation, once some of the side output was written."""

    def __init__(self, flag: str) -> None:
        self.flag = flag

    def close(self) -> None:
        import os

        try:
            os.close(os.open(self.flag, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        raise OSError("once")


def test_side_outputs_of_failed_attempts_never_appear(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    job, sides = make_job(parallelism=1), sinks(tmp_path, "odd")
    frame = spark.range(1000).selectExpr("CAST(id % 7 AS STRING) AS k", "id AS v")

    def pipeline(df: DataFrame) -> DataFrame:
        keyed = job.key_by(df, "k", uid="times")
        function = Fragile(str(tmp_path / "flag"))
        return keyed.process(function, SCHEMA, side_outputs={"odd": "k string, v long"})

    job.run_epoch(frame, pipeline, side_outputs=sides)
    assert (tmp_path / "flag").exists()
    found = [row[1] for row in rows_of(sides["odd"].read(spark, 1))]
    assert sorted(found) == list(range(1, 1000, 2))
    assert not list((Path(sides["odd"].path) / "_staging").iterdir())


def test_operators_have_watermarks_of_their_own(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    job = make_job()
    progress: list[EpochProgress] = []

    def pipeline(df: DataFrame) -> DataFrame:
        left = job.key_by(
            df.where("k = 'left'"),
            "k",
            uid="left",
            event_time="t",
            allowed_delay=datetime.timedelta(seconds=1),
        ).aggregate(n=ps.count())
        right = job.key_by(
            df.where("k = 'right'"), "k", uid="right", event_time="t", allowed_delay="2 seconds"
        ).aggregate(n=ps.count())
        return left.union(right)

    for rows in (
        [("left", 100)],
        [("right", 90)],
        [("left", 120), ("left", 98), ("left", 99), ("right", 10), (None, 1000)],
    ):
        frame = spark.createDataFrame(rows, "k string, s long")
        frame = frame.selectExpr("k", "timestamp_seconds(s) AS t")
        job.run_epoch(frame, pipeline, on_epoch=progress.append)
    marks = [p.watermark_ms for p in progress]
    assert marks == [99_000, 88_000, 88_000]
    assert [[o.watermark_ms for o in p.operators] for p in progress] == [
        [99_000, None],
        [99_000, 88_000],
        [119_000, 88_000],
    ]
    late = [p.late_rows for p in progress]
    assert late == [{"left": 0, "right": 0}] * 2 + [{"left": 1, "right": 1}]


#: Event times by how they are written in SQL.
INSTANTS = {
    "timestamp'2026-01-02 03:04:05.678901Z'": 1767323045678,
    "timestamp_ntz'2026-01-02 03:04:05.678901'": 1767323045678,
    "date'2026-01-02'": 1767312000000,
    "date'1969-12-31'": -86_400_000,
    "1767323045678L": 1767323045678,
    "CAST(NULL AS TIMESTAMP)": None,
}


def test_types_of_event_time(spark: SparkSession, make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job(parallelism=1)

    def pipeline(df: DataFrame) -> DataFrame:
        parts = []
        for number, sql in enumerate(INSTANTS):
            rows = df.selectExpr("'a' AS k", "1L AS v", f"{sql} AS t")
            keyed = job.key_by(rows, "k", uid=f"times-{number}", event_time="t")
            out = keyed.process(Times(), SCHEMA, side_outputs={"odd": "k string, v long"})
            parts.append(out.selectExpr(f"{number} AS number", "time"))
        return reduce(type(df).union, parts)

    with configured(spark, {**ONE_TASK, "spark.sql.session.timeZone": "Asia/Tokyo"}):
        result = job.run_epoch(spark.range(1), pipeline, side_outputs=sinks(tmp_path, "odd"))
        assert rows_of(result.dataframe) == list(enumerate(INSTANTS.values()))
    assert result.manifest is not None
    found = {each.uid: each.watermark_ms for each in ps.describe(job.checkpoint).operators}
    assert list(found.values()) == list(INSTANTS.values())


def test_what_is_refused(spark: SparkSession, make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job()
    frame = spark.createDataFrame([("a", 1, 0.5)], "k string, v long, x double")
    odd = {"odd": "k string, v long"}
    every = sinks(tmp_path, "odd", "late")
    uids = (f"times-{number}" for number in count())

    def times(df: DataFrame, keys: dict[str, Any], **options: Any) -> DataFrame:
        return job.key_by(df, "k", uid=next(uids), **keys).process(Times(), SCHEMA, **options)

    def twice(df: DataFrame) -> DataFrame:
        other = {"odd": "k string, v int"}
        return times(df, {}, side_outputs=odd).union(times(df, {}, side_outputs=other))

    one = {"odd": every["odd"]}
    for pipeline, sides, kind, text in (
        (lambda df: times(df, {}, side_outputs=odd), None, InvalidArgumentError, "has the side"),
        (
            lambda df: times(df, {}, side_outputs=odd),
            every,
            InvalidArgumentError,
            "names 'late', which no operator",
        ),
        (
            lambda df: times(df, {}, side_outputs=odd),
            {"odd": "x"},
            InvalidArgumentError,
            "ParquetSink",
        ),
        (twice, one, DeclarationError, r"'times-\d' and 'times-\d' share the side output 'odd'"),
    ):
        with pytest.raises(kind, match=text):
            job.run_epoch(frame, pipeline, side_outputs=sides)

    by_v = {"event_time": "v"}

    def refused(df: DataFrame) -> DataFrame:
        for keys, options, kind, text in (
            ({}, {"late": "odd"}, InvalidArgumentError, "event_time='column'"),
            (
                by_v,
                {"side_outputs": odd, "late": "odd"},
                InvalidArgumentError,
                "with the columns k, v, x; side_outputs names other ones for it: k, v",
            ),
            ({"event_time": "z"}, {}, InvalidArgumentError, "event_time: 'z' is not a column"),
            ({"event_time": "x"}, {}, WrongTypeError, "event-time column 'x' is double"),
            ({"allowed_delay": 5}, {}, InvalidArgumentError, "name the column of the event time"),
            ({"idle_after": 5}, {}, InvalidArgumentError, "name the column of the event time"),
            ({**by_v, "idle_after": 0}, {}, InvalidArgumentError, "between 1 and"),
            ({**by_v, "allowed_delay": "soon"}, {}, InvalidArgumentError, "'soon'"),
            ({}, {"side_outputs": {"": "k string"}}, InvalidArgumentError, "which is no name"),
            ({}, {"side_outputs": {"odd": "k strin g"}}, InvalidArgumentError, "does not parse"),
        ):
            with pytest.raises(kind, match=text):
                times(df, keys, **options)
        return times(df, {}, side_outputs=odd)

    with pytest.raises(WrongTypeError, match=r", side output 'odd'.*'v' is declared int"):
        job.run_epoch(
            frame,
            lambda df: times(df, {}, side_outputs={"odd": "v int, k string"}),
            side_outputs=one,
        )
    assert not list(tmp_path.glob("side-*/_staging/*"))
    job.run_epoch(frame, refused, side_outputs=one)
    assert job.latest_epoch() == 1


# ---- RDDs


class Rung(Times):
    """The same, with a timer ten milliseconds after each row."""

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
        if ctx.timestamp is not None:
            ctx.register_event_time_timer(ctx.timestamp + 10)
        return super().process(key, row, ctx)

    def on_timer(
        self, key: Any, timestamp: int, ctx: ps.RuntimeContext
    ) -> Iterator[tuple[Any, ...]]:
        ctx.output("odd", (key, timestamp))
        yield key, -timestamp, ctx.timestamp, ctx.watermark, ctx.processing_time


def utc(ms: int | None) -> datetime.datetime | None:
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    return None if ms is None else epoch + datetime.timedelta(milliseconds=ms)


#: What is done with late rows, and how an element says its time.
LATE: dict[str, Callable[[Any], object]] = {
    "process": lambda row: row.v,
    "drop": lambda row: utc(row.v),
    "late": lambda row: row.v,
}


def test_an_rdd_has_the_times_that_a_frame_has(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    job, odd = make_job(), "k string, v long"
    sides = sinks(tmp_path, "odd", "late")

    def pipeline(df: DataFrame) -> DataFrame:
        parts = []
        for late, event_time in LATE.items():
            # Keys say of which operator a row is.
            rows = df.selectExpr(f"concat('{late} frame ', k) AS k", "v")
            keyed = job.key_by(rows, "k", uid=f"{late}-frame", event_time="v", allowed_delay=5)
            tags = {"odd": odd}
            parts.append(keyed.process(Rung(), SCHEMA, side_outputs=tags, late=late))
            split = job.partition_by(
                df.selectExpr(f"concat('{late} rdd ', k) AS k", "v").rdd,
                lambda row: row.k,
                key_type="string",
                uid=f"{late}-rdd",
                event_time=event_time,
                allowed_delay=5,
            )
            if late == "late":
                tags = {"odd": odd, "late": odd}
            found = split.mapPartitions(
                job.partitions(Rung(), uid=f"{late}-rdd", side_outputs=tags, late=late)
            )
            parts.append(spark.createDataFrame(found, SCHEMA))
        return reduce(type(df).union, parts)

    progress: list[EpochProgress] = []
    epochs = []
    with configured(spark, ONE_TASK):
        for batch in (
            [("a", 100), ("b", 90), ("c", None)],
            [("a", 94), ("b", 95), ("a", 120)],
            [("b", 7), ("a", 114), ("b", 200)],
        ):
            rows = spark.createDataFrame(batch, odd).coalesce(1)
            result = job.run_epoch(rows, pipeline, side_outputs=sides, on_epoch=progress.append)
            epochs.append([row[:4] for row in rows_of(result.dataframe)])
        given = [*epochs, *(rows_of(sides[tag].read(spark)) for tag in sides)]
    for late in LATE:
        frame, rdd = (
            [
                [(row[0].removeprefix(of), *row[1:]) for row in rows if row[0].startswith(of)]
                for rows in given
            ]
            for of in (f"{late} frame ", f"{late} rdd ")
        )
        assert frame == rdd and all(frame[:4])
        assert bool(frame[4]) == (late == "late")
        states = [state_of(job, f"{late}-{kind}") for kind in ("frame", "rdd")]
        n = {"a": 4, "b": 4, "c": 1} if late == "process" else {"a": 2, "b": 3, "c": 1}
        assert [{key[-1]: value for key, value in state.items()} for state in states] == [n, n]
    assert [p.watermark_ms for p in progress] == [95, 115, 195]
    assert [set(p.late_rows.values()) for p in progress] == [{0}, {1}, {2}]
    assert all(len(p.late_rows) == 2 * len(LATE) for p in progress)


def test_what_is_refused_of_an_rdd(spark: SparkSession, make_job: MakeJob, tmp_path: Path) -> None:
    job, every = make_job(), sinks(tmp_path, "odd", "late")
    rdd = spark.createDataFrame([("a", 100)], "k string, v long").rdd
    odd, one = {"odd": "k string, v long"}, {"odd": every["odd"]}
    by_v = {"event_time": lambda row: row.v}
    uids = (f"times-{number}" for number in count())

    def times(data: RDD[Any], split: dict[str, Any], **options: Any) -> RDD[Any]:
        uid = next(uids)
        routed = job.partition_by(data, lambda row: row.k, key_type="string", uid=uid, **split)
        return routed.mapPartitions(job.partitions(Times(), uid=uid, **options))

    def refused(data: RDD[Any]) -> RDD[Any]:
        for split, options, text in (
            ({"allowed_delay": 5}, {}, "allowed_delay .*event_time=lambda"),
            ({"event_time": "v"}, {}, "a function from an element .*not 'v'"),
            ({**by_v, "allowed_delay": "soon"}, {}, "'soon'"),
            ({}, {"side_outputs": odd, "late": "odd"}, "pass partition_by a function that says it"),
            (by_v, {"late": "late"}, "name their columns"),
        ):
            with pytest.raises(InvalidArgumentError, match=text):
                times(data, split, **options)
        return times(data, {**by_v, "allowed_delay": "1 second"}, side_outputs=odd)

    def run(pipeline: Callable[[RDD[Any]], RDD[Any]], sides: Any = one) -> None:
        job.run_epoch(rdd, pipeline, schema=SCHEMA, side_outputs=sides)

    with pytest.raises(InvalidArgumentError, match="names 'late', which no operator"):
        run(lambda data: times(data, by_v, side_outputs=odd), every)
    with pytest.raises(WrongTypeError, match=r"'times-1': the event time of an .* not 'noon'"):
        run(lambda data: times(data, {"event_time": lambda row: "noon"}, side_outputs=odd))
    assert job.latest_epoch() is None
    run(refused)
    assert job.latest_epoch() == 1
