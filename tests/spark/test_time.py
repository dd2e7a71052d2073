"""Event time on Spark: watermarks, late rows, side outputs, and what a replay may not change."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.epochs.watermarks import OperatorTime
from pystate.errors import DeclarationError, InvalidArgumentError, WrongTypeError
from pystate.spark import EpochProgress, ParquetSink

from .conftest import Source, rows_of, state_of

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


def test_late_rows_are_handled_and_counted_without_an_output(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    job, sides = make_job(), sinks(tmp_path, "odd")
    progress: list[EpochProgress] = []
    for values in ([100, 2], [1, 200], [199]):
        frame = spark.createDataFrame([("a", v) for v in values], "k string, v long")
        result = job.run_epoch(frame, timing(job, 0), side_outputs=sides, on_epoch=progress.append)
    assert [p.late_rows["times"] for p in progress] == [0, 1, 1]
    assert result.manifest is not None and result.manifest.watermark_ms == 200
    assert state_of(job, "times") == {"a": 5}
    assert rows_of(sides["odd"].read(spark)) == [("a", 1, 2), ("a", 199, 3)]


class CrashError(Exception):
    """Stands for the end of the driver."""


def crash(*_: object, **__: object) -> None:
    raise CrashError


@pytest.mark.parametrize("where", ["before the manifest", "before the commit", "after it"])
def test_a_replayed_epoch_has_the_same_times_and_outputs(
    spark: SparkSession,
    make_job: MakeJob,
    source: Source,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    sink, sides = ParquetSink(tmp_path / "out"), sinks(tmp_path, "odd", "late")
    options: dict[str, Any] = {"sink": sink, "side_outputs": sides}
    first = make_job()
    source.add("a,100", "b,31")
    start(first, source, timing(first, late="late"), **options).awaitTermination()
    source.add("a,3", "b,201")
    second = make_job()
    seen: list[tuple[int, OperatorTime | None]] = []

    def watched(job: Job) -> Callable[[DataFrame], DataFrame]:
        def pipeline(df: DataFrame) -> DataFrame:
            assert job._evaluation is not None
            epoch = job._evaluation.epoch
            out = timing(job, late="late")(df)
            seen.append((epoch.processing_time_ms, epoch.time("times")))
            return out

        return pipeline

    with monkeypatch.context() as patch:
        if where == "before the manifest":
            patch.setattr("pystate.epochs.epoch.Epoch.complete", crash)
        elif where == "before the commit":
            patch.setattr("pystate.spark.sinks.commits.commit", crash)
        else:
            patch.setattr("pystate.spark.epochs.epochs.notify", crash)
        with pytest.raises(Exception, match="CrashError"):
            start(second, source, watched(second), **options).awaitTermination()
    if where != "after it":
        assert not list(Path(sides["late"].path).glob("epoch=2"))
    third = make_job()
    start(third, source, watched(third), **options).awaitTermination()
    assert len(set(seen)) == 1 and seen[0][1] == OperatorTime(95, 95)
    assert len(seen) == (2 if where == "before the manifest" else 1)
    assert rows_of(sink.read(spark).select("v", "mark", "epoch")) == [
        (100, None, 1),
        (201, 95, 2),
        (31, None, 1),
    ]
    assert rows_of(sides["odd"].read(spark)) == [("b", 201, 2), ("b", 31, 1)]
    assert rows_of(sides["late"].read(spark)) == [("a", 3, 2)]
    # The clock may have gone back: a later epoch's time does not.
    source.add("c,2")
    progress: list[EpochProgress] = []
    start(third, source, watched(third), **options, on_epoch=progress.append).awaitTermination()
    assert progress[0].processing_time_ms >= seen[0][0]
    assert progress[0].watermark_ms == 196 and seen[-1][1] == OperatorTime(196, 196)


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
        [("right", 121)],
    ):
        frame = spark.createDataFrame(rows, "k string, s long")
        frame = frame.selectExpr("k", "timestamp_seconds(s) AS t")
        job.run_epoch(frame, pipeline, on_epoch=progress.append)
    marks = [p.watermark_ms for p in progress]
    assert marks == [99_000, 88_000, 88_000, 119_000]
    assert [[o.watermark_ms for o in p.operators] for p in progress] == [
        [99_000, None],
        [99_000, 88_000],
        [119_000, 88_000],
        [119_000, 119_000],
    ]
    late = [p.late_rows for p in progress]
    assert late == [{"left": 0, "right": 0}] * 2 + [
        {"left": 1, "right": 1},
        {"left": 0, "right": 0},
    ]


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("timestamp'2026-01-02 03:04:05.678901'", 1767323045678),
        ("timestamp_ntz'2026-01-02 03:04:05.678901'", 1767323045678),
        ("date'2026-01-02'", 1767312000000),
        ("date'1969-12-31'", -86_400_000),
        ("1767323045678L", 1767323045678),
        ("CAST(NULL AS TIMESTAMP)", None),
    ],
)
def test_types_of_event_time(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, sql: str, wanted: int | None
) -> None:
    job = make_job(parallelism=1)
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        if "timestamp'" in sql:
            sql = sql.replace("901'", "901Z'")
        frame = spark.sql(f"SELECT 'a' AS k, 1L AS v, {sql} AS t")

        def pipeline(df: DataFrame) -> DataFrame:
            keyed = job.key_by(df, "k", uid="times", event_time="t")
            return keyed.process(Times(), SCHEMA, side_outputs={"odd": "k string, v long"})

        result = job.run_epoch(frame, pipeline, side_outputs=sinks(tmp_path, "odd"))
        assert rows_of(result.dataframe.select("time")) == [(wanted,)]
        assert result.manifest is not None and result.manifest.watermark_ms == wanted
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_what_is_refused(spark: SparkSession, make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job()
    frame = spark.createDataFrame([("a", 1, 0.5)], "k string, v long, x double")
    odd = {"odd": "k string, v long"}
    every = sinks(tmp_path, "odd", "late")

    def run(sides: Any, keys: dict[str, Any], **options: Any) -> None:
        def pipeline(df: DataFrame) -> DataFrame:
            keyed = job.key_by(df, "k", uid="times", **keys)
            return keyed.process(Times(), SCHEMA, **options)

        job.run_epoch(frame, pipeline, side_outputs=sides)

    one = {"odd": every["odd"]}
    for sides, keys, options, kind, text in (
        (
            None,
            {},
            {"side_outputs": odd},
            InvalidArgumentError,
            "'times' has the side output 'odd'",
        ),
        (every, {}, {"side_outputs": odd}, InvalidArgumentError, "names 'late', which no operator"),
        ({"odd": "x"}, {}, {"side_outputs": odd}, InvalidArgumentError, "ParquetSink"),
        (one, {}, {"late": "odd"}, InvalidArgumentError, "event_time='column'"),
        (
            one,
            {"event_time": "v"},
            {"side_outputs": odd, "late": "odd"},
            InvalidArgumentError,
            "with the columns k, v, x; side_outputs names other ones for it: k, v",
        ),
        (one, {"event_time": "z"}, {}, InvalidArgumentError, "event_time: 'z' is not a column"),
        (one, {"event_time": "x"}, {}, WrongTypeError, "event-time column 'x' is double"),
        (one, {"allowed_delay": 5}, {}, InvalidArgumentError, "name the column of the event time"),
        (one, {"idle_after": 5}, {}, InvalidArgumentError, "name the column of the event time"),
        (one, {"event_time": "v", "idle_after": 0}, {}, InvalidArgumentError, "between 1 and"),
        (one, {"event_time": "v", "allowed_delay": "soon"}, {}, InvalidArgumentError, "'soon'"),
        (one, {}, {"side_outputs": {"": "k string"}}, InvalidArgumentError, "which is no name"),
        (one, {}, {"side_outputs": {"odd": "k strin g"}}, InvalidArgumentError, "does not parse"),
    ):
        with pytest.raises(kind, match=text):
            run(sides, keys, **options)

    def twice(df: DataFrame) -> DataFrame:
        one = job.key_by(df, "k", uid="a").process(Times(), SCHEMA, side_outputs=odd)
        other = {"odd": "k string, v int"}
        return one.union(job.key_by(df, "k", uid="b").process(Times(), SCHEMA, side_outputs=other))

    with pytest.raises(DeclarationError, match="'a' and 'b' share the side output 'odd'"):
        job.run_epoch(frame, twice, side_outputs=one)
    with pytest.raises(WrongTypeError, match=r"'times', side output 'odd'.*'v' is declared int"):
        run(one, {}, side_outputs={"odd": "v int, k string"})
    assert not list(tmp_path.glob("side-*/_staging/*"))
    run(one, {}, side_outputs=odd)
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


@pytest.mark.parametrize("late", ["process", "drop", "late"])
@pytest.mark.parametrize("event_time", [lambda row: row.v, lambda row: utc(row.v)])
def test_an_rdd_has_the_times_that_a_frame_has(
    spark: SparkSession,
    make_job: MakeJob,
    tmp_path: Path,
    event_time: Callable[[Any], object],
    late: str,
) -> None:
    odd = "k string, v long"
    frames, rdds = (make_job(checkpoint=tmp_path / name) for name in ("frames", "rdds"))

    def of_frame(df: DataFrame) -> DataFrame:
        keyed = frames.key_by(df, "k", uid="times", event_time="v", allowed_delay=5)
        sides = {"odd": odd}
        return keyed.process(Rung(), SCHEMA, side_outputs=sides, late=late)

    def of_rdd(rdd: RDD[Any]) -> RDD[Any]:
        split = rdds.partition_by(
            rdd,
            lambda row: row.k,
            key_type="string",
            uid="times",
            event_time=event_time,
            allowed_delay=5,
        )
        sides = {"odd": odd, "late": odd} if late == "late" else {"odd": odd}
        return split.mapPartitions(
            rdds.partitions(Rung(), uid="times", side_outputs=sides, late=late)
        )

    batches: list[list[tuple[str, int | None]]] = [
        [("a", 100), ("b", 90), ("c", None)],
        [("a", 94), ("b", 95), ("a", 120)],
        [("b", 7), ("a", 114), ("b", 200)],
        [("b", 8)],
    ]
    found: list[list[Any]] = []
    for job, pipeline in ((frames, of_frame), (rdds, of_rdd)):
        tags = ("odd", "late") if late == "late" else ("odd",)
        sides = sinks(tmp_path / job.checkpoint.rsplit("/")[-1], *tags)
        progress: list[EpochProgress] = []
        epochs = []
        for batch in batches:
            rows = spark.createDataFrame(batch, odd).coalesce(1)
            result = job.run_epoch(
                rows if job is frames else rows.rdd,
                pipeline,
                schema=None if job is frames else SCHEMA,
                side_outputs=sides,
                on_epoch=progress.append,
            )
            epochs.append([row[:4] for row in rows_of(result.dataframe)])
        found.append(
            [
                epochs,
                [(p.watermark_ms, p.late_rows, p.side_rows) for p in progress],
                {tag: rows_of(sides[tag].read(spark)) for tag in tags},
                state_of(job, "times"),
            ]
        )
    assert found[0] == found[1]
    assert found[1][1][-1][:2] == (195, {"times": 1})


def test_what_is_refused_of_an_rdd(spark: SparkSession, make_job: MakeJob, tmp_path: Path) -> None:
    job, every = make_job(), sinks(tmp_path, "odd", "late")
    rdd = spark.createDataFrame([("a", 100)], "k string, v long").rdd
    odd = {"odd": "k string, v long"}

    def run(split: dict[str, Any], sides: Any = every, **options: Any) -> None:
        def pipeline(data: RDD[Any]) -> RDD[Any]:
            routed = job.partition_by(
                data, lambda row: row.k, key_type="string", uid="times", **split
            )
            return routed.mapPartitions(job.partitions(Times(), uid="times", **options))

        job.run_epoch(rdd, pipeline, schema=SCHEMA, side_outputs=sides)

    by_v = {"event_time": lambda row: row.v}
    for split, options, kind, text in (
        ({"allowed_delay": 5}, {}, InvalidArgumentError, "allowed_delay .*event_time=lambda"),
        ({"event_time": "v"}, {}, InvalidArgumentError, "a function from an element .*not 'v'"),
        ({**by_v, "allowed_delay": "soon"}, {}, InvalidArgumentError, "'soon'"),
        (
            {},
            {"side_outputs": odd, "late": "odd"},
            InvalidArgumentError,
            "pass partition_by a function that says it",
        ),
        (by_v, {"late": "late"}, InvalidArgumentError, "name their columns"),
        (by_v, {"side_outputs": odd}, InvalidArgumentError, "names 'late', which no operator"),
    ):
        with pytest.raises(kind, match=text):
            run(split, **options)
    one = {"odd": every["odd"]}
    for wrong, text in (
        (lambda row: "noon", "'times': the event time of an element .* not 'noon'"),
        (lambda row: 1 << 70, "the event time of an element does not fit"),
    ):
        with pytest.raises(WrongTypeError, match=text):
            run({"event_time": wrong}, one, side_outputs=odd)
    assert job.latest_epoch() is None
    run({**by_v, "allowed_delay": "1 second"}, one, side_outputs=odd)
    assert job.latest_epoch() == 1
