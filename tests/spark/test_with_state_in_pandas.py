"""Spark's own processors and functions over frames of pandas, unchanged, in a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import pystate as ps
from pystate.errors import WrongTypeError
from pystate.spark import StatefulProcessorError

from .conftest import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]


pytestmark = pytest.mark.usefixtures("one_task")


class Totals(StatefulProcessor):
    """The sum of each key's values, and when its timer fired."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "total long")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.total.update((int(initialState["v"].sum()),))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        total = (self.total.get() or (0,))[0]
        sizes = []
        for frame in rows:
            total += frame["v"].sum()
            sizes.append(len(frame))
            # The session's time, without a time zone.
            assert frame["at"].dt.tz is None
        self.total.update((total,))
        self.handle.registerTimer(int(total))
        yield pd.DataFrame({"sizes": [sizes], "k": [key[0]], "total": [total], "more": [1]})
        yield pd.DataFrame(columns=["k", "total", "sizes"])

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame([[key.k, -expiredTimerInfo.getExpiryTimeInMs(), None]])

    def close(self) -> None:
        pass


def frame_of(spark: SparkSession, *rows: tuple[str, int]) -> DataFrame:
    frame = spark.createDataFrame(list(rows), "k string, v int")
    return frame.withColumn("at", F.timestamp_seconds("v"))


def test_a_processor_of_frames_runs_unchanged(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job()
    initial = spark.createDataFrame([("a", 40), ("a", 2)], "k string, v int").groupBy("k")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "2")
    try:

        def pipeline(df: DataFrame) -> DataFrame:
            keyed = job.key_by(df, "k", uid="totals", event_time="at")
            return keyed.transform_with_state_in_pandas(
                Totals(), "k string, total long, sizes array<int>", "Update", "EventTime", initial
            )

        result = job.run_epoch(frame_of(spark, ("a", 1), ("b", 2), ("a", 3), ("a", 4)), pipeline)
        assert rows_of(result.dataframe) == [("a", 50, [2, 1]), ("b", 2, [1])]
        result = job.run_epoch(frame_of(spark, ("b", 5)), pipeline)
        assert rows_of(result.dataframe) == [
            ("a", -50, None),
            ("b", -2, None),
            ("b", -7, None),
            ("b", 7, [1]),
        ]
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


class Chunks(StatefulProcessor):
    """How many frames a key's rows were, as a decimal."""

    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"k": [key[0]], "n": [sum(1 for _ in rows)]})

    def close(self) -> None:
        pass


def test_the_sessions_options_for_frames_hold(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job()
    options = {
        "spark.sql.execution.arrow.maxBytesPerBatch": "2b",
        "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled": "true",
    }
    for name, value in options.items():
        spark.conf.set(name, value)
    try:

        def pipeline(df: DataFrame) -> DataFrame:
            keyed = job.key_by(df, "k", uid="chunks")
            return keyed.transform_with_state_in_pandas(Chunks(), "k string, n decimal(10,2)")

        result = job.run_epoch(frame_of(spark, ("a", 1), ("a", 2), ("b", 3), ("a", 4)), pipeline)
        assert rows_of(result.dataframe) == [("a", Decimal(3)), ("b", Decimal(1))]
    finally:
        for name in options:
            spark.conf.unset(name)


def quiet(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
    """Counts rows; says when a key has been quiet for three seconds."""
    if state.hasTimedOut:
        assert all(frame.empty and list(frame.columns) == ["k", "v", "at"] for frame in frames)
        state.remove()
        yield pd.DataFrame({"k": [key[0]], "n": [-1]})
        return
    n = sum(map(len, frames)) + (state.getOption or (0,))[0]
    state.update((n,))
    state.setTimeoutTimestamp(max(0, state.getCurrentWatermarkMs()) + 3000)
    yield pd.DataFrame({"n": [n], "k": [key[0]]})


def test_a_function_with_group_state_runs_unchanged(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job()

    def run(*rows: tuple[str, int]) -> list[tuple[Any, ...]]:
        def pipeline(df: DataFrame) -> DataFrame:
            keyed = job.key_by(df, "k", uid="quiet", event_time="at", allowed_delay=0)
            return keyed.apply_in_pandas_with_state(
                quiet, "k string, n long", "n long", "Update", "EventTimeTimeout"
            )

        return rows_of(job.run_epoch(frame_of(spark, *rows), pipeline).dataframe)

    assert run(("a", 1), ("a", 2), ("b", 4)) == [("a", 2), ("b", 1)]
    # The watermark is 4, the timeouts are at 3.
    assert run(("a", 5)) == [("a", 3), ("b", -1)]
    states = {row["k"]: row["state"] for row in ps.read_state(job.checkpoint, "quiet").to_pylist()}
    assert states == {"a": {"n": 3}}


def test_what_cannot_be_says_so(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job()

    def pipeline(df: DataFrame) -> DataFrame:
        for uid, kind, text, function, timeout in (
            ("a", StatefulProcessorError, "'NoTimeout'", quiet, "never"),
            ("b", StatefulProcessorError, "watermark", quiet, "EventTimeTimeout"),
            ("c", WrongTypeError, "no function", 5, "NoTimeout"),
        ):
            with pytest.raises(kind, match=text):
                job.key_by(df, "k", uid=uid).applyInPandasWithState(
                    function, "k string, n long", "n long", "Update", timeout
                )
        wrong = pd.DataFrame({"k": ["a"]})
        return job.key_by(df, "k", uid="d").applyInPandasWithState(
            lambda *_: [wrong], "k string, n long", "n long", "Update", "NoTimeout"
        )

    with pytest.raises(WrongTypeError, match="column 'n'"):
        job.run_epoch(frame_of(spark, ("a", 1)), pipeline)
