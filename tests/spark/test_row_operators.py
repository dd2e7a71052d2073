"""Deduplication and the best rows per key, as a pipeline uses them."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

import pystate as ps
from pystate.errors import InvalidArgumentError, WrongTypeError
from pystate.spark import ParquetSink
from pystate.spark.operators.row_operators import operate
from tests.lag import Lag

from .conftest import rows_of, state_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import Job
    from pystate.spark.operators.keyed_frame import KeyedFrame

MakeJob = Callable[..., "Job"]
Rows = list[tuple[Any, ...]]

EVENTS = "id long, at long, v string"


pytestmark = pytest.mark.usefixtures("one_task")


def test_rows_by_a_new_driver_for_each_epoch(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    """Each with another parallelism than the one before."""
    late = ParquetSink(str(tmp_path / "late"))
    given: list[dict[str, Rows]] = [
        {
            "ever": [(1, 3, "c"), (1, 2, "b"), (None, 1, "n"), (2, 5, None)],
            # By their times: 5 is the first one, 15 is ten after it.
            "within": [(1, 15, "c"), (1, 14, "b"), (1, 5, "a"), (2, 200, "z")],
            "last": [(1, 3, "c"), (1, 2, "b"), (2, 7, "z")],
            "best": [(1, 5, "a"), (2, 7, "a"), (3, 6, "a"), (4, None, None)],
            "lag": [(1, 3, "c"), (1, 2, "b"), (2, 5, None)],
        },
        {
            "ever": [(1, 1, "a"), (3, 9, "x"), (None, None, "m"), (3, 8, "y")],
            # The watermark is 100: 99 is late. 185 and 195 have nothing near; 191 comes after 185.
            "within": [(1, 99, "late"), (2, 191, "y"), (2, 185, "x"), (2, 209, "w"), (1, 110, "d")],
            "last": [(1, 2, "older"), (2, 8, "y"), (2, 6, "x")],
            "best": [(5, 6, "a"), (6, 1, "b")],  # as good as one that came before
            "lag": [(1, 9, "x")],
        },
        {
            "ever": [(1, 1, "a")],
            "within": [(1, 119, "e"), (1, 120, "f"), (2, 185, "x")],
            "best": [(7, 9, "a"), (8, None, "b"), (9, 1, None)],
        },
    ]
    wanted: list[dict[str, Rows]] = [
        {
            "ever": [(1, 2, "b"), (2, 5, None), (None, 1, "n")],
            "within": [(1, 15, "c"), (1, 5, "a"), (2, 200, "z")],
            "last": [(1, 3, "c"), (2, 7, "z")],
            "best": [(2, 7, "a", 1), (3, 6, "a", 2), (4, None, None, 1)],
            "lag": [(1, 2, "b", None), (1, 3, "c", 2), (2, 5, None, None)],
        },
        {
            "ever": [(3, 8, "y")],
            "within": [(1, 110, "d"), (2, 185, "x")],
            "last": [(2, 8, "y")],
            "best": [(6, 1, "b", 1)],
            "lag": [(1, 9, "x", 3)],
        },
        {
            "ever": [],
            "within": [(1, 120, "f")],
            "last": [],
            "best": [
                (2, 7, "a", 2),
                (4, None, None, 2),
                (6, 1, "b", 1),
                (7, 9, "a", 1),
                (8, None, "b", 2),
                (9, 1, None, 1),
            ],
            "lag": [],
        },
    ]

    def pipeline(df: DataFrame, job: Job) -> DataFrame:
        def keyed(name: str, key: str = "id", **how: Any) -> KeyedFrame:
            rows = df.where(f"name = '{name}'").select("id", "at", "v")
            return job.key_by(rows, key, uid=name, **how)

        timed = keyed("within", event_time="at", allowed_delay=100)
        hourly = keyed("last", event_time="at", allowed_delay="1 hour")
        lag = operate(keyed("lag", order_by="at")._rows, Lag("at"), "process")
        parts = {
            "ever": keyed("ever", order_by="at").deduplicate(),
            "within": timed.deduplicate(within=10, late="late"),
            "last": hourly.deduplicate(keep="last"),
            "best": keyed("best", "v", order_by="id").top(2, by="at"),
            # An operation that no method is for.
            "lag": lag.withColumnRenamed("before", "rank"),
        }
        shown = [
            out.select(F.lit(name).alias("name"), "id", "at", "v", F.expr(rank))
            for name, out in parts.items()
            for rank in ["CAST(rank AS LONG)" if "rank" in out.columns else "-1L"]
        ]
        return reduce(type(df).union, shown)

    for number, (rows, expected) in enumerate(zip(given, wanted, strict=True)):
        job = make_job(parallelism=2 + number % 2)
        all_rows = [(name, *row) for name, each in rows.items() for row in each]
        frame = spark.createDataFrame(all_rows, f"name string, {EVENTS}").repartition(3)
        result = job.run_epoch(frame, pipeline, side_outputs={"late": late})
        found: dict[str, Rows] = {name: [] for name in expected}
        for name, *row in rows_of(result.dataframe):
            found[name].append(tuple(row if name in ("best", "lag") else row[:-1]))
        assert found == expected
        job.close()
    assert rows_of(late.read(spark).select("id", "at", "v")) == [(1, 99, "late")]
    assert [row["at"] for row in state_of(make_job(), "best")["a"][0]] == [9, 7]


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
    again = first.run_epoch(frame, pipeline).dataframe
    assert again.dtypes == frame.dtypes and rows_of(again) == []


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


REFUSED: list[tuple[Callable[[KeyedFrame], object], str]] = [
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
]


def test_arguments(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job()
    frame = spark.createDataFrame(
        [], "id long, at long, v string, rank int, tags array<int>, s struct<x: int>"
    )

    def pipeline(df: DataFrame) -> DataFrame:
        for number, (apply, words) in enumerate(REFUSED):
            with pytest.raises((InvalidArgumentError, WrongTypeError)) as error:
                apply(job.key_by(df, "id", uid=f"op-{number}"))
            assert words in str(error.value)
        return df

    job.run_epoch(frame, pipeline)


def test_an_operation_that_says_nothing_of_updates_refuses_them(
    spark: SparkSession, make_job: MakeJob
) -> None:
    def pipeline(df: DataFrame, job: Job) -> DataFrame:
        sums = job.key_by(df, "id", uid="sums").aggregate(total=ps.sum("at"))
        return operate(job.key_by(sums, "id", uid="lag")._rows, Lag("total"), "process")

    frame = spark.createDataFrame([(1, 3, "c")], EVENTS)
    with pytest.raises(InvalidArgumentError, match=r"lag gets updates .*'sums'.* of its own\. Com"):
        make_job().run_epoch(frame, pipeline)
