"""Deduplication and the best rows per key, as a pipeline uses them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

import pystate as ps
from pystate.errors import InvalidArgumentError, WrongTypeError
from pystate.spark.operators.row_operators import operate
from tests.lag import Lag

from .conftest import rows_of, state_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]
Rows = list[tuple[Any, ...]]

EVENTS = "id long, at long, v string"


def epochs(
    spark: SparkSession,
    make_job: MakeJob,
    schema: str,
    pipeline: Any,
    *epochs: Rows,
    **options: Any,
) -> list[Rows]:
    """What each epoch emits; each is computed by a new driver, with another parallelism."""
    found = []
    for number, rows in enumerate(epochs):
        job = make_job(parallelism=2 + number % 2)
        frame = spark.createDataFrame(rows, schema).repartition(3)
        found.append(rows_of(job.run_epoch(frame, pipeline, **options).dataframe))
        job.close()
    return found


def test_the_first_row_for_ever(spark: SparkSession, make_job: MakeJob) -> None:
    def pipeline(df: DataFrame, job: Job) -> DataFrame:
        return job.key_by(df, "id", uid="once", order_by="at").deduplicate()

    found = epochs(
        spark,
        make_job,
        EVENTS,
        pipeline,
        [(1, 3, "c"), (1, 2, "b"), (None, 1, "n"), (2, 5, None)],
        [(1, 1, "a"), (3, 9, "x"), (None, None, "m"), (3, 8, "y")],
        [(1, 1, "a")],
    )
    assert found == [[(1, 2, "b"), (2, 5, None), (None, 1, "n")], [(3, 8, "y")], []]


def test_within_a_time_of_events(spark: SparkSession, make_job: MakeJob, tmp_path: Path) -> None:
    from pystate.spark import ParquetSink

    def pipeline(df: DataFrame, job: Job) -> DataFrame:
        keyed = job.key_by(df, "id", uid="once", event_time="at", allowed_delay=100)
        return keyed.deduplicate(within=10, late="late")

    late = ParquetSink(str(tmp_path / "late"))
    found = epochs(
        spark,
        make_job,
        EVENTS,
        pipeline,
        # By their times: 5 is the first one, 15 is ten after it.
        [(1, 15, "c"), (1, 14, "b"), (1, 5, "a"), (2, 200, "z")],
        # The watermark is 100: 99 is late. 185 and 195 have nothing near; 191 comes after 185.
        [(1, 99, "late"), (2, 191, "y"), (2, 185, "x"), (2, 209, "w"), (1, 110, "d")],
        [(1, 119, "e"), (1, 120, "f"), (2, 185, "x")],
        side_outputs={"late": late},
    )
    assert found == [
        [(1, 15, "c"), (1, 5, "a"), (2, 200, "z")],
        [(1, 110, "d"), (2, 185, "x")],
        [(1, 120, "f")],
    ]
    assert rows_of(late.read(spark).select("id", "at", "v")) == [(1, 99, "late")]


def test_the_last_row_of_an_epoch(spark: SparkSession, make_job: MakeJob) -> None:
    def pipeline(df: DataFrame, job: Job) -> DataFrame:
        keyed = job.key_by(df, "id", uid="newest", event_time="at", allowed_delay="1 hour")
        return keyed.deduplicate(keep="last")

    found = epochs(
        spark,
        make_job,
        EVENTS,
        pipeline,
        [(1, 3, "c"), (1, 2, "b"), (2, 7, "z")],
        [(1, 2, "older"), (2, 8, "y"), (2, 6, "x")],
    )
    assert found == [[(1, 3, "c"), (2, 7, "z")], [(2, 8, "y")]]


def test_columns_of_all_kinds_pass(spark: SparkSession, make_job: MakeJob) -> None:
    def pipeline(df: DataFrame, job: Job) -> DataFrame:
        return job.key_by(df, "user", "`a.b`", uid="once").deduplicate("1 day")

    frame = spark.sql(
        "SELECT struct(id % 2 AS id, 'x' AS name) AS user, id AS v, array(struct(id AS e)) AS items"
        ", map('m', id) AS m, timestamp_millis(id) AS t, CAST(id AS DECIMAL(12, 3)) AS d,"
        " 1 AS `a.b` FROM range(2)"
    )
    first = make_job()
    assert rows_of(first.run_epoch(frame, pipeline).dataframe) == rows_of(frame)
    assert first.run_epoch(frame, pipeline).dataframe.dtypes == frame.dtypes
    assert rows_of(first.run_epoch(frame, pipeline).dataframe) == []


def test_the_best_rows(spark: SparkSession, make_job: MakeJob) -> None:
    def pipeline(df: DataFrame, job: Job) -> DataFrame:
        keyed = job.key_by(df, "item", uid="best", order_by="n")
        return keyed.top(2, by="price")

    schema = "price double, item string, n long"
    found = epochs(
        spark,
        make_job,
        schema,
        pipeline,
        [(5.0, "a", 1), (7.0, "a", 2), (6.0, "a", 3), (None, None, 4)],
        [(6.0, "a", 5), (1.0, "b", 6)],  # as good as one that came before
        [(9.0, "a", 7), (None, "b", 8), (1.0, None, 9)],
        [],
    )
    assert found == [
        [(6.0, "a", 3, 2), (7.0, "a", 2, 1), (None, None, 4, 1)],
        [(1.0, "b", 6, 1)],
        [
            (1.0, "b", 6, 1),
            (1.0, None, 9, 1),
            (7.0, "a", 2, 2),
            (9.0, "a", 7, 1),
            (None, "b", 8, 2),
            (None, None, 4, 2),
        ],
        [],
    ]
    job = make_job()
    tops = state_of(job, "best")
    assert [row["price"] for row in tops["a"][0]] == [9.0, 7.0]


def test_the_best_rows_by_several_columns(spark: SparkSession, make_job: MakeJob) -> None:
    def pipeline(df: DataFrame, job: Job) -> DataFrame:
        keyed = job.key_by(df, "who", uid="best")
        return keyed.top(3, ["name", "v"], descending=[False, True], rank="Place")

    frame = spark.sql(
        "SELECT IF(id % 3 = 0, 'b', 'a') AS name, id AS v, array(id) AS items, map('m', id) AS m,"
        " struct(id % 2 AS id) AS who, timestamp_millis(id) AS t FROM range(10)"
    )
    job = make_job()
    result = job.run_epoch(frame, pipeline).dataframe
    assert result.columns == [*frame.columns, "Place"]
    expected = frame.withColumn(
        "Place", F.expr("row_number() OVER (PARTITION BY who ORDER BY name, v DESC)")
    ).where("Place <= 3")
    assert rows_of(result) == rows_of(expected)


def refused(spark: SparkSession, make_job: MakeJob, apply: Any, **key: Any) -> str:
    job = make_job()
    frame = spark.createDataFrame(
        [], "id long, at long, v string, rank int, tags array<int>, s struct<x: int>"
    )
    with pytest.raises((InvalidArgumentError, WrongTypeError)) as error:
        job.run_epoch(frame, lambda df: apply(job.key_by(df, "id", uid="op", **key)))
    return str(error.value)


@pytest.mark.parametrize(
    ("apply", "words"),
    [
        (lambda k: k.deduplicate(0), "deduplicate: within=0 is 0 ms: it must be between 1"),
        (lambda k: k.deduplicate("-1 day"), "write a length of time"),
        (lambda k: k.deduplicate("1 month"), "write a length of time"),
        (lambda k: k.deduplicate(keep="frist"), "keep is 'first' or 'last', not 'frist'"),
        (lambda k: k.deduplicate(late="drop"), "late='drop' is for rows that come late"),
        (lambda k: k.deduplicate(late=3), "late is a string"),
        (lambda k: k.top(0, "at", rank="r"), "top: k is 0, and must be 1"),
        (lambda k: k.top(True, "at", rank="r"), "top: k is a whole number"),
        (lambda k: k.top(1, "price", rank="r"), "'price'"),
        (lambda k: k.top(1, [], rank="r"), "by is the name of a column, or a list of names"),
        (lambda k: k.top(1, F.col("at"), rank="r"), "by is the name of a column, or a list"),
        (lambda k: k.top(1, "id", rank="r"), "by='id' is a column of the key"),
        (lambda k: k.top(1, "tags", rank="r"), "by='tags' is array<int>, which has no order"),
        (lambda k: k.top(1, "s.x", rank="r"), "by='s.x' is a field of a struct"),
        (lambda k: k.top(1, ["at", "AT"], rank="r"), "by names 'at' twice"),
        (lambda k: k.top(1, "at", descending=[True, False], rank="r"), "2 values for 1 columns"),
        (lambda k: k.top(1, "at", descending="no", rank="r"), "descending is True or False"),
        (lambda k: k.top(1, "at"), "the input has a column 'rank'"),
        (lambda k: k.top(1, "at", rank="Tags"), "the input has a column 'Tags'"),
        (lambda k: k.top(1, "at", rank=""), "rank is a string"),
    ],
)
def test_arguments(spark: SparkSession, make_job: MakeJob, apply: Any, words: str) -> None:
    assert words in refused(spark, make_job, apply)


def test_an_operation_that_no_method_is_for(spark: SparkSession, make_job: MakeJob) -> None:
    def pipeline(df: DataFrame, job: Job) -> DataFrame:
        return operate(job.key_by(df, "id", uid="lag", order_by="at")._rows, Lag("at"), "process")

    rows = [(1, 3, "c"), (1, 2, "b"), (2, 5, None)], [(1, 9, "x")]
    assert epochs(spark, make_job, EVENTS, pipeline, *rows) == [
        [(1, 2, "b", None), (1, 3, "c", 2), (2, 5, None, None)],
        [(1, 9, "x", 3)],
    ]


def test_an_operation_that_says_nothing_of_updates_refuses_them(
    spark: SparkSession, make_job: MakeJob
) -> None:
    def pipeline(df: DataFrame, job: Job) -> DataFrame:
        sums = job.key_by(df, "id", uid="sums").aggregate(total=ps.sum("at"))
        return operate(job.key_by(sums, "id", uid="lag")._rows, Lag("total"), "process")

    frame = spark.createDataFrame([(1, 3, "c")], EVENTS)
    with pytest.raises(InvalidArgumentError, match=r"lag gets updates .*'sums'.* of its own\. Com"):
        make_job().run_epoch(frame, pipeline)
