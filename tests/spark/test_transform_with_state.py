"""Spark's own stateful processors, unchanged, in a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import pystate as ps
from pystate.errors import InvalidArgumentError, WrongTypeError
from pystate.spark import StatefulProcessorError

from .conftest import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]
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

    def refused(kind: type[Exception], text: str, *arguments: Any, **more: Any) -> None:
        def pipe(df: DataFrame) -> DataFrame:
            return job.key_by(df, "user", uid="visits").transform_with_state(*arguments, **more)

        with pytest.raises(kind, match=text):
            job.run_epoch(frame_of(spark, ("ann", "a", 1)), pipe)

    refused(StatefulProcessorError, "Complete", Visits(), OUTPUT, "Complete", "None")
    refused(StatefulProcessorError, "output mode", Visits(), OUTPUT, "all", "None")
    refused(StatefulProcessorError, "time mode", Visits(), OUTPUT, "Update", "none at all")
    refused(InvalidArgumentError, "no column", Visits(), OUTPUT, "Update", "None", event_time="x")
    refused(WrongTypeError, "timestamp", Visits(), OUTPUT, "Update", "None", event_time="n")
    refused(TypeError, "pass an instance", Visits, OUTPUT, "Update", "None")
    other = spark.createDataFrame([(1, 2)], "user long, count long")
    refused(WrongTypeError, "same names", Visits(), OUTPUT, "Update", "None", other.groupBy("user"))
