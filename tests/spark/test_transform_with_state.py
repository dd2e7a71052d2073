"""Spark's own stateful processors, unchanged, in a job."""

from __future__ import annotations

import sys
import zoneinfo
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import pystate as ps
from pystate.errors import InvalidArgumentError, UnclaimedStateError, WrongTypeError
from pystate.spark import StatefulProcessorError

from .conftest import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]


pytestmark = pytest.mark.usefixtures("one_task")


OUTPUT = "user string, n long, at timestamp, note string"


class Visits(StatefulProcessor):
    """Counts, keeps names and a list, and rings a second after each row."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.n = handle.getValueState("n", "n long")
        self.pages = handle.getMapState("user", "page string", "n long, last timestamp")
        self.seen = handle.getListState("seen", "page string")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.n.update((initialState["count"],))
        self.handle.registerTimer(initialState["ring"])

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        found = self.n.get()
        n = 0 if found is None else found[0]
        for row in rows:
            n += 1
            before = self.pages.getValue((row.page,))
            self.pages.updateValue((row.page,), (1 if before is None else before[0] + 1, row.at))
            self.seen.appendValue((row["page"],))
            self.handle.registerTimer(int(row.at.timestamp() * 1000) + 1000)
            last = row.at
        self.n.update((n,))
        yield Row(note=",".join(page for (page,) in self.seen.get()), user=key[0], n=n, at=last)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield Row(
            user=key.user,
            n=expiredTimerInfo.getExpiryTimeInMs(),
            note=f"rang at {timerValues.getCurrentWatermarkInMs()}",
        )

    def close(self) -> None:
        pass


def frame_of(spark: SparkSession, *rows: tuple[str, str, int]) -> DataFrame:
    frame = spark.createDataFrame(list(rows), "user string, page string, s long")
    return frame.select("user", "page", F.timestamp_seconds("s").alias("at"))


def pipeline(job: Job, initial: DataFrame | None = None) -> Callable[[DataFrame], DataFrame]:
    def pipe(df: DataFrame) -> DataFrame:
        keyed = job.key_by(df, "user", uid="visits", event_time="at", order_by="at")
        out = keyed.transform_with_state(
            Visits(),
            OUTPUT,
            "Append",
            "EventTime",
            None if initial is None else initial.groupBy("user"),
        )
        return out.select("user", "n", "note")

    return pipe


def test_a_processor_runs_unchanged(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job()
    initial = spark.createDataFrame(
        [("ann", 100, 1), ("eve", 5, 2)], "user string, count long, ring long"
    )
    rows = frame_of(spark, ("ann", "a", 1), ("bob", "a", 2), ("ann", "b", 3))
    first = job.run_epoch(rows, pipeline(job, initial))
    assert rows_of(first.dataframe) == [("ann", 102, "a,b"), ("bob", 1, "a")]
    # The watermark is 3: a row at it is late, as in Spark, and the timers up to it fire.
    second = job.run_epoch(
        frame_of(spark, ("bob", "c", 3), ("bob", "d", 4)), pipeline(job, initial)
    )
    assert rows_of(second.dataframe) == [
        ("ann", 1, "rang at 3000"),
        ("ann", 2000, "rang at 3000"),
        ("bob", 2, "a,d"),
        ("bob", 3000, "rang at 3000"),
        ("eve", 2, "rang at 3000"),
    ]
    state = {row["user"]: row for row in ps.read_state(job.checkpoint, "visits").to_pylist()}
    assert state["ann"]["n"] == {"n": 102}
    # A key column has the name `user`: the state that Spark knows by it is kept under another.
    assert [page for page, _ in state["ann"]["user_"]] == ["a", "b"]
    assert state["bob"]["seen"] == [{"page": "a"}, {"page": "d"}]


def test_what_cannot_be_says_so(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job()
    other = spark.createDataFrame([(1, 2)], "user long, count long").groupBy("user")

    def pipe(df: DataFrame) -> DataFrame:
        uids = (f"visits-{number}" for number in count())

        def refused(kind: type[Exception], text: str, *arguments: Any, **more: Any) -> None:
            with pytest.raises(kind, match=text):
                keyed = job.key_by(df, "user", uid=next(uids))
                keyed.transform_with_state(*arguments, **more)

        refused(StatefulProcessorError, "Complete", Visits(), OUTPUT, "Complete", "None")
        refused(StatefulProcessorError, "output mode", Visits(), OUTPUT, "all", "None")
        refused(StatefulProcessorError, "time mode", Visits(), OUTPUT, "Update", "none at all")
        mode = OUTPUT, "Update", "None"
        refused(InvalidArgumentError, "no column", Visits(), *mode, event_time="x")
        refused(WrongTypeError, "timestamp", Visits(), *mode, event_time="n")
        refused(TypeError, "pass an instance", Visits, *mode)
        refused(WrongTypeError, "same names", Visits(), *mode, other)
        return df

    job.run_epoch(frame_of(spark, ("ann", "a", 1)), pipe)


class Second(StatefulProcessor):
    """Passes on its rows once the watermark has reached them."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.notes = handle.getMapState("notes", "at long", "note string")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            ms = int(row.at.timestamp() * 1000)
            self.notes.updateValue((ms,), (row.note,))
            self.handle.registerTimer(ms)
        yield from ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        at = expiredTimerInfo.getExpiryTimeInMs()
        yield Row(user=key.user, at=at, note=self.notes.getValue((at,))[0])

    def close(self) -> None:
        pass


class First(Second):
    """Emits a row at the event time of each timer, or too late."""

    def __init__(self, late_ms: int = 0) -> None:
        self.late_ms = late_ms

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        at = max(expiredTimerInfo.getExpiryTimeInMs(), timerValues.getCurrentWatermarkInMs())
        moment = datetime.fromtimestamp((at - self.late_ms) / 1000, timezone.utc)
        yield Row(user=key.user, at=moment, note=f"first {expiredTimerInfo.getExpiryTimeInMs()}")


def test_processors_stand_in_a_row(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job()

    def run(first: First, *rows: tuple[str, str, int]) -> list[tuple[Any, ...]]:
        def pipe(df: DataFrame) -> DataFrame:
            keyed = job.key_by(
                df.withColumnRenamed("page", "note"), "user", uid="1", event_time="at"
            )
            rows = keyed.transformWithState(
                first, "user string, at timestamp, note string", "Append", "EventTime", None, "at"
            )
            again = job.key_by(rows, "user", uid="2", event_time="at")
            return again.transformWithState(
                Second(), "user string, at long, note string", "Append", "EventTime"
            )

        return rows_of(job.run_epoch(frame_of(spark, *rows), pipe).dataframe)

    assert run(First(), ("ann", "a", 1), ("bob", "a", 5)) == []
    # The watermark is 5: what the first yields at 5 comes through the second in the same epoch.
    assert run(First(), ("eve", "a", 6)) == [
        ("ann", 5000, "first 1000"),
        ("bob", 5000, "first 5000"),
    ]
    with pytest.raises(StatefulProcessorError, match="below the watermark 6000"):
        run(First(late_ms=1), ("eve", "a", 7))


class Keyed(StatefulProcessor):
    """Says what it gets."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.kept = handle.getValueState("kept", "at timestamp", 1_000_000)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.kept.update((row.at,))
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs())
            yield Row(text=repr((key, row.k, row.m, str(row.at), self.kept.get())))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield Row(text=repr((key, self.kept.get())))

    def close(self) -> None:
        pass


def test_keys_and_rows_are_as_in_spark(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job()
    frame = frame_of(spark, ("ann", "a", 1)).select(
        F.struct("user", "at").alias("k"), "at", F.create_map("user", F.lit(1)).alias("m")
    )
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:

        def pipe(df: DataFrame) -> DataFrame:
            keyed = job.key_by(df, "k", "at", uid="keyed")
            return keyed.transformWithState(Keyed(), "text string", "update", "processingtime")

        found = rows_of(job.run_epoch(frame, pipe).dataframe)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    # What fires begins with the key, a row; the other with a tuple.
    [fired] = [text for (text,) in found if text.startswith("(Row")]
    [row] = [text for (text,) in found if text.startswith("((")]
    local = datetime.fromtimestamp(1)
    struct = eval(row, {"datetime": sys.modules["datetime"], "zoneinfo": zoneinfo})
    tokyo = datetime.fromtimestamp(1, zoneinfo.ZoneInfo("Asia/Tokyo"))
    assert struct == (
        ({"user": "ann", "at": tokyo}, tokyo),
        {"user": "ann", "at": tokyo},
        [("ann", 1)],
        "1970-01-01 09:00:01+09:00",
        (local,),
    )
    assert fired == repr((Row(k=Row(user="ann", at=local), at=local), (local,)))


class Changing(StatefulProcessor):
    """Has two states, or deletes one of them."""

    def __init__(self, *, delete: bool) -> None:
        self.delete = delete

    def init(self, handle: Any) -> None:
        self.kept = handle.getValueState("kept", "n long")
        if self.delete:
            handle.deleteIfExists("gone")
        else:
            self.gone = handle.getValueState("gone", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self.kept.update(((self.kept.get() or (0,))[0] + len(list(rows)),))
        if not self.delete:
            self.gone.update((1,))
        yield Row(n=self.kept.get()[0])

    def close(self) -> None:
        pass


def test_a_state_is_dropped_only_if_init_deletes_it(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job()

    def run(processor: StatefulProcessor) -> list[tuple[Any, ...]]:
        def pipe(df: DataFrame) -> DataFrame:
            keyed = job.key_by(df, "user", uid="changing")
            return keyed.transform_with_state(processor, "n long")

        return rows_of(job.run_epoch(frame_of(spark, ("ann", "a", 1)), pipe).dataframe)

    def states() -> set[str]:
        return set(ps.read_state(job.checkpoint, "changing").column_names)

    assert run(Changing(delete=False)) == [(1,)]
    assert states() == {"user", "kept", "gone"}
    assert run(Changing(delete=True)) == [(2,)]
    assert states() == {"user", "kept"}

    class Less(Changing):
        def init(self, handle: Any) -> None:
            self.other = handle.getValueState("other", "n long")

    with pytest.raises(UnclaimedStateError, match="kept"):
        run(Less(delete=True))
