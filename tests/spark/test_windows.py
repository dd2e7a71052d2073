"""Windows on Spark: emitted when they are over, updated, late rows, restarts at another size."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

import pystate as ps
from pystate.errors import DeclarationError, InvalidArgumentError
from pystate.spark import ParquetSink

from .conftest import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]
START = datetime.datetime(2026, 1, 1, 10, 0)
UTC = START.replace(tzinfo=datetime.timezone.utc).timestamp()
SCHEMA = "k string, at timestamp_ntz, v int"


def frame(spark: SparkSession, *rows: tuple[str, int | None, int | None]) -> DataFrame:
    """Rows of a key, a minute after ten and a value."""
    data = [
        (k, None if m is None else START + datetime.timedelta(minutes=m), v) for k, m, v in rows
    ]
    return spark.createDataFrame(data, SCHEMA)


def minutes(rows: list[Any]) -> list[tuple[Any, ...]]:
    """Emitted rows, with windows as minutes after ten."""
    minute = datetime.timedelta(minutes=1)
    return sorted((r[0], (r[1] - START) / minute, (r[2] - START) / minute, *r[3:]) for r in rows)


def test_windows_are_emitted_when_they_are_over(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    windows = [ps.Tumbling("10 min"), ps.Session("5 min")]
    found: list[Any] = [[], []]

    def pipeline(df: DataFrame, job: Job) -> DataFrame:
        parts = []
        for i, each in enumerate(windows):
            keyed = job.key_by(df, "k", uid=f"w{i}", event_time="at", allowed_delay="2 min")
            part = keyed.window(each, late=f"late{i}").aggregate(
                n=ps.count(), total=ps.sum("v"), top=(ps.TopK(2), "v")
            )
            parts.append(part.selectExpr(f"{i} AS kind", "*"))
        return parts[0].union(parts[1])

    epochs = [
        [("a", 1, 1), ("a", 4, 2), ("b", 3, None), ("a", None, 9), ("a", 8, 4), ("b", 17, 5)],
        [("a", 6, 7), ("a", 31, 1)],
        [],
    ]
    sinks = {f"late{i}": ParquetSink(tmp_path / f"late{i}") for i in range(2)}
    job = make_job()
    for number, rows in enumerate(epochs):
        if number == 1:
            job.close()
            job = make_job(parallelism=3)
        result = job.run_epoch(frame(spark, *rows), pipeline, side_outputs=sinks)
        for row in result.dataframe.collect():
            found[row[0]].append(tuple(row)[1:])
    assert minutes(found[0]) == [
        ("a", 0, 10, 3, 7, [4, 2]),
        ("b", 0, 10, 1, None, []),
        ("b", 10, 20, 1, 5, [5]),
    ]
    assert minutes(found[1]) == [
        ("a", 1, 13, 3, 7, [4, 2]),
        ("b", 3, 8, 1, None, []),
        ("b", 17, 22, 1, 5, [5]),
    ]
    for i in range(2):
        late = rows_of(spark.read.parquet(str(tmp_path / f"late{i}")))
        assert [(row[0], row[2]) for row in late] == [("a", 7)]


def test_updates_and_count_windows(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job()

    def pipeline(df: DataFrame) -> DataFrame:
        keyed = job.key_by(df, "k", uid="updated", event_time="at")
        updated = keyed.window(ps.Cumulating("5 min", "10 min"), emit="update")
        counted = job.key_by(df, "k", uid="counted").window(ps.CountWindow(2))
        aggregates = {"n": ps.count(), "most": ps.max("v")}
        return updated.aggregate(**aggregates).union(counted.aggregate(**aggregates))

    rows = job.run_epoch(frame(spark, ("a", 1, 1), ("a", 7, 2), ("a", 8, 3)), pipeline)
    whole = rows_of(rows.dataframe.filter("window_start IS NOT NULL"))
    assert minutes(whole) == [("a", 0, 5, 1, 1), ("a", 0, 10, 3, 3)]
    [counted] = rows_of(rows.dataframe.filter("window_start IS NULL"))
    assert counted[:4] == ("a", None, None, 2)
    assert job.read_state("counted").num_rows == 1


def test_a_drain_ends_all_windows(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job()

    def pipeline(df: DataFrame) -> DataFrame:
        keyed = job.key_by(df, "k", uid="drained", event_time="at")
        return keyed.window(ps.Sliding("10 min", "5 min")).aggregate(n=ps.count())

    result = job.run_epoch(frame(spark, ("a", 1, 1)), pipeline, drain=True)
    assert minutes(rows_of(result.dataframe)) == [("a", -5, 5, 1), ("a", 0, 10, 1)]
    assert job.read_state("drained").num_rows == 0


def test_an_order_by_a_column_that_no_window_needs(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job()

    def pipeline(df: DataFrame) -> DataFrame:
        ranked = df.withColumn("nested", F.struct((-F.col("v")).alias("rank")))
        keyed = job.key_by(ranked, "k", uid="w", event_time="at", order_by="nested.rank")
        ends = {"first": (ps.First(), "v"), "last": (ps.Last(), "v")}
        return keyed.window(ps.Tumbling("10 min")).aggregate(**ends)

    rows = frame(spark, *(("a", 1, v) for v in (3, 1, 4, 5, 2)))
    result = job.run_epoch(rows, pipeline, drain=True)
    assert minutes(rows_of(result.dataframe)) == [("a", 0, 10, 5, 1)]


def test_bad_arguments(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job()
    messages = []

    def pipeline(df: DataFrame) -> DataFrame:
        keyed = job.key_by(df, "k", uid="bad", event_time="at")
        for call in (
            lambda: keyed.window("1 hour"),  # type: ignore[arg-type]
            lambda: keyed.window(ps.Tumbling(1), late="process"),
            lambda: keyed.window(ps.Tumbling(1), time="now"),  # type: ignore[arg-type]
            lambda: keyed.window(ps.Tumbling(1)).aggregate(n=ps.sum("w")),
            lambda: keyed.window(ps.Tumbling(1)).aggregate(k=ps.count()),
            lambda: job.key_by(df, "k", uid="x").window(ps.Tumbling(1)),
        ):
            with pytest.raises(InvalidArgumentError) as caught:
                call()
            messages.append(str(caught.value))
        return keyed.window(ps.Tumbling(1)).aggregate(n=ps.count())

    job.run_epoch(frame(spark, ("a", 1, 1)), pipeline)
    for message, words in zip(
        messages,
        ("takes ps.Tumbling", "'drop' or the tag", "time", "'w'", "cannot be called", "event time"),
        strict=True,
    ):
        assert words in message


class Spread(ps.WindowFunction):
    """The spread of a window's values, and its size aside."""

    def process(self, key: Any, window: Any, batch: Any, ctx: Any) -> Any:
        values = [v for v in batch.column("v").to_pylist() if v is not None]
        yield key, window.start_time, len(batch), max(values) - min(values) if values else None
        ctx.output("sizes", (key, batch.num_rows))


def test_functions_over_windows(spark: SparkSession, make_job: MakeJob, tmp_path: Path) -> None:
    windows = [ps.Sliding("10 min", "5 min"), ps.Session("5 min")]
    columns = "k string, start timestamp, n int, spread int"

    def pipeline(df: DataFrame, job: Job) -> DataFrame:
        parts = []
        for i, each in enumerate(windows):
            keyed = job.key_by(df, "k", uid=f"p{i}", event_time="at", allowed_delay="2 min")
            part = keyed.window(each, late="late").process(
                Spread(), columns, side_outputs={"sizes": "k string, n int"}
            )
            parts.append(part.selectExpr(f"{i} AS kind", "*"))
        counted = job.key_by(df, "k", uid="counted").window(ps.CountWindow(2))
        part = counted.process(lambda key, window, rows: [(key, None, len(rows), 0)], columns)
        parts.append(part.selectExpr("2 AS kind", "*"))
        return parts[0].union(parts[1]).union(parts[2])

    epochs = [
        [("a", 1, 1), ("a", 4, 2), ("b", 3, None), ("a", None, 9), ("a", 8, 4), ("b", 17, 5)],
        [("a", 6, 7), ("a", 31, 1)],
        [],
    ]
    sinks = {tag: ParquetSink(tmp_path / tag) for tag in ("late", "sizes")}
    found: list[Any] = []
    job = make_job()
    for number, rows in enumerate(epochs):
        if number == 1:
            job.close()
            job = make_job(parallelism=3)
        result = job.run_epoch(frame(spark, *rows), pipeline, side_outputs=sinks)
        for kind, key, start, *rest in map(tuple, result.dataframe.collect()):
            at = None if start is None else round((start.timestamp() - UTC) / 60)
            found.append((kind, key, at, *rest))
    assert sorted(each for each in found if each[0] < 2) == [
        (0, "a", -5, 2, 1),
        (0, "a", 0, 3, 3),
        (0, "a", 5, 1, 0),
        (0, "b", -5, 1, None),
        (0, "b", 0, 1, None),
        (0, "b", 10, 1, 0),
        (0, "b", 15, 1, 0),
        (1, "a", 1, 3, 3),
        (1, "b", 3, 1, None),
        (1, "b", 17, 1, 0),
    ]
    assert sorted(each[1:4] for each in found if each[0] == 2) == [
        ("a", None, 2),
        ("a", None, 2),
        ("a", None, 2),
        ("b", None, 2),
    ]
    sizes = spark.read.parquet(str(tmp_path / "sizes"))
    assert sizes.count() == 10 and {type(row.n) for row in sizes.collect()} == {int}
    late = rows_of(spark.read.parquet(str(tmp_path / "late")).select("k", "at", "v"))
    assert [(row[0], row[2]) for row in late] == [("a", 7)] * 2


def test_what_a_function_over_windows_cannot_be(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job()

    def pipeline(df: DataFrame) -> DataFrame:
        windows = job.key_by(df, "k", uid="bad", event_time="at").window(ps.Tumbling(1), late="l")
        with pytest.raises(DeclarationError, match="WindowFunction, or a"):
            windows.process(7, "k string")  # type: ignore[arg-type]
        function = Spread()
        function.lock = threading.Lock()  # type: ignore[attr-defined]
        with pytest.raises(DeclarationError, match=r"Spread\.lock = .* cannot go to the tasks"):
            windows.process(function, "k string")
        with pytest.raises(DeclarationError, match="process cannot go to the tasks"):
            lock = threading.Lock()

            def process(key: Any, window: Any, batch: Any) -> Any:
                with lock:
                    return []

            windows.process(process, "k string")
        with pytest.raises(InvalidArgumentError, match="another one"):
            windows.process(Spread(), "k string", side_outputs={"l": "k string"})
        return df

    job.run_epoch(frame(spark, ("a", 1, 1)), pipeline)


def test_rows_that_cannot_be_processed(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    """In windows, sums and a join, whose other rows are as ever."""
    year_9999 = 253_402_214_400_000
    rows = [("a", 1_000, 5_000, 1), ("b", 1_000, 0, 2), ("a", 2_000, 5_000, 3)]
    rows.append(("c", year_9999, 5_000, 4))
    df = spark.createDataFrame(rows, "k string, at long, gap long, v long")

    def pipeline(df: DataFrame, job: Job) -> DataFrame:
        def keyed(uid: str | None, **more: Any) -> Any:
            return job.key_by(df, "k", uid=uid, event_time="at", max_ahead="1 day", **more)

        sessions = keyed("w", invalid="odd").window(ps.Session(column="gap"))
        totals = keyed("s", invalid="odd_sums").aggregate(n=ps.sum("v"))
        both = keyed("j").interval_join(keyed(None), 0, 0, suffixes=("", "_2"))
        parts = [sessions.aggregate(n=ps.sum("v")), totals]
        found = [part.select(F.lit(i).alias("i"), "k", "n") for i, part in enumerate(parts)]
        return found[0].union(found[1]).union(both.selectExpr("2", "k", "v + v_2"))

    odd = {tag: ParquetSink(tmp_path / tag) for tag in ("odd", "odd_sums")}
    job = make_job()
    result = job.run_epoch(df, pipeline, side_outputs=odd, drain=True)
    assert sorted(map(tuple, result.dataframe.collect())) == [
        *[(0, "a", 4)],
        *[(1, "a", 4), (1, "b", 2)],
        *[(2, "a", 2), (2, "a", 6), (2, "b", 4)],
    ]
    progress = job.last_progress
    assert progress is not None
    assert progress.invalid_rows == {"w": 2, "s": 1, "j": 2}
    assert ", 5 invalid, " in str(progress)
    found = {
        tag: sorted(tuple(row)[:4] for row in sink.read(spark).collect())
        for tag, sink in odd.items()
    }
    assert found == {"odd": sorted([rows[1], rows[3]]), "odd_sums": [rows[3]]}

    def of_gaps(df: DataFrame, job: Job) -> DataFrame:
        keyed = job.key_by(df, "k", uid="w", event_time="at")
        return keyed.window(ps.Session(column="gap")).aggregate(n=ps.sum("v"))

    strict = make_job(checkpoint=tmp_path / "strict", on_invalid="fail", max_evaluations=1)
    with pytest.raises(Exception, match=r"operator 'w': a row of key 'b' has a gap of 0 in column"):
        strict.run_epoch(df, of_gaps)
