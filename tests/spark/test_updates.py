"""Operators behind operators that emit updates: what comes out equals a recomputation."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.errors import InvalidArgumentError
from pystate.spark import Job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MakeJob = Callable[..., Job]

HITS = "hour long, url string, ms long"


def counts(df: DataFrame, job: Job) -> DataFrame:
    return job.key_by(df, "hour", "url", uid="counts").aggregate(n=ps.count(), ms=ps.max("ms"))


def test_top_and_aggregates_over_updates_equal_a_recomputation(
    spark: SparkSession, make_job: MakeJob
) -> None:
    """In one pipeline: the best, their sum, and aggregates of aggregates, by derived keys too."""
    from pyspark.sql import functions as F

    def pipeline(df: DataFrame, job: Job) -> dict[str, DataFrame]:
        updates = counts(df, job)
        top = job.key_by(updates, "hour", uid="top").top(2, by=["n", "url"])
        renamed = updates.select(
            # A name of several lines is one, too.
            F.col("n").alias("count\nof #1"),
            (F.col("hour") % 2).alias("odd"),
            "url",
        ).where("url <> '/c'")
        return {
            "top": top,
            "best": job.key_by(top, "hour", uid="best").aggregate(n=ps.sum("n"), urls=ps.count()),
            # `hour` is dropped here, and each update still replaces the one of its hour and url.
            "odd": job.key_by(renamed, "odd", uid="odd").aggregate(
                total=ps.sum("count\nof #1"), least=ps.min("count\nof #1"), rows=ps.count()
            ),
            "all": job.key_by(updates.selectExpr("1 AS one", "n"), "one", uid="all").aggregate(
                total=ps.sum("n"), mean=ps.mean("n")
            ),
            "last": job.key_by(updates, "hour", "url", uid="last").deduplicate(keep="last"),
        }

    job, generator = make_job(), random.Random(5)
    seen: Counter[tuple[int, str]] = Counter()
    tables: dict[str, dict[Any, tuple[Any, ...]]] = {}
    for size in (16, 5):
        rows = [
            (generator.randrange(3), generator.choice(["/a", "/b", "/c", "/d"]), 1)
            for _ in range(size)
        ]
        seen.update((hour, url) for hour, url, _ in rows)
        frames = job.run_epoch(spark.createDataFrame(rows, HITS), pipeline).dataframes
        for name, keys in (
            ("top", ("hour", "rank")),
            ("best", ("hour",)),
            ("odd", ("odd",)),
            ("all", ("one",)),
            ("last", ("hour", "url")),
        ):
            table = tables.setdefault(name, {})
            for row in frames[name].collect():
                table[tuple(row[key] for key in keys)] = row
    best = {
        (hour, rank): (url, n)
        for hour in range(3)
        for rank, (n, url) in enumerate(
            sorted(((n, url) for (h, url), n in seen.items() if h == hour), reverse=True)[:2], 1
        )
    }
    assert {at: (row.url, row.n) for at, row in tables["top"].items()} == best
    assert {at[0]: (row.n, row.urls) for at, row in tables["best"].items()} == {
        hour: (
            sum(n for (h, _), (_, n) in best.items() if h == hour),
            sum(h == hour for h, _ in best),
        )
        for hour in {h for h, _ in best}
    }
    of_odd = {
        odd: [n for (hour, url), n in seen.items() if hour % 2 == odd and url != "/c"]
        for odd in {hour % 2 for hour, url in seen if url != "/c"}
    }
    assert {at[0]: (row.total, row.least, row.rows) for at, row in tables["odd"].items()} == {
        odd: (sum(ns), min(ns), len(ns)) for odd, ns in of_odd.items()
    }
    [total] = tables["all"].values()
    assert (total.total, total.mean) == (sum(seen.values()), sum(seen.values()) / len(seen))
    assert {at: row.n for at, row in tables["last"].items()} == dict(seen)


def test_what_cannot_take_updates_refuses_them_with_the_way_out(
    spark: SparkSession, make_job: MakeJob
) -> None:
    from pyspark.sql import functions as F

    job = make_job()
    data = spark.createDataFrame([(10, "/a", 1), (10, "/b", 2)], HITS)

    def keyed(frame: DataFrame, job: Job, *keys: str, **options: Any) -> Any:
        return job.key_by(frame, *keys, uid="second", **options)

    def total(frame: DataFrame, job: Job, **options: Any) -> DataFrame:
        found: DataFrame = keyed(frame, job, "hour", **options).aggregate(t=ps.sum("n"))
        return found

    refused: list[tuple[str, Callable[[DataFrame, Job], DataFrame]]] = [
        ("a filter by what an update changes", lambda u, j: total(u.where("n > 1"), j)),
        (
            "a filter by what an update changes",
            lambda u, j: total(u.where("n > 1").select(*u.columns), j),
        ),
        ("a union stands between", lambda u, j: total(u.union(u), j)),
        (
            "an aggregation of Spark's",
            lambda u, j: total(u.groupBy("hour").agg(F.sum("n").alias("n")), j),
        ),
        ("a join of Spark's", lambda u, j: total(u.join(data.select("url"), "url"), j)),
        ("the key 'n' does not follow", lambda u, j: keyed(u, j, "n").aggregate(c=ps.count())),
        (
            "the key 'x' does not follow",
            lambda u, j: keyed(u.withColumn("x", F.floor(F.rand() * 2)), j, "x").aggregate(
                c=ps.count()
            ),
        ),
        (
            "were dropped. Name the columns .*by_key=",
            lambda u, j: keyed(u.drop("url"), j, "hour").top(1, by="n"),
        ),
        ("passed on first is replaced later", lambda u, j: keyed(u, j, "hour").deduplicate()),
        (
            "a window does not forget",
            lambda u, j: (
                keyed(u, j, "hour", event_time="ms")
                .window(ps.Tumbling("1 s"))
                .aggregate(c=ps.count())
            ),
        ),
        (
            "cannot be taken back. Join the rows before",
            lambda u, j: keyed(u, j, "hour", event_time="ms").interval_join(
                j.key_by(data, "hour", event_time="ms"), "-1 s", "1 s"
            ),
        ),
        (
            "cannot be taken back. Join the rows before",
            lambda u, j: j.key_by(data, "hour", uid="second", event_time="ms").asof_join(
                j.key_by(u, "hour", event_time="ms")
            ),
        ),
        (
            "combine=True combines rows",
            lambda u, j: keyed(u, j, "hour").aggregate(combine=True, t=ps.sum("n")),
        ),
    ]
    for match, build in refused:
        with pytest.raises(InvalidArgumentError, match=match) as caught:
            job.run_epoch(data, lambda df, job, build=build: build(counts(df, job), job))
        assert "as_rows=True" in str(caught.value) and "'counts'" in str(caught.value)
    assert job.latest_epoch() is None
    # The ways out: rows of their own, and the columns that say which row replaces which.
    for _ in range(2):
        result = job.run_epoch(
            data,
            lambda df, job: {
                "rows": total(counts(df, job).where("n > 0"), job, as_rows=True),
                "top": job.key_by(counts_again(df, job).drop("ms"), "hour", uid="top").top(
                    1, by="n", by_key="url"
                ),
            },
        )
    frames = result.dataframes
    assert [row.t for row in frames["rows"].collect()] == [6]
    assert [(row.rank, row.n) for row in frames["top"].collect()] == [(1, 2)]


def counts_again(df: DataFrame, job: Job) -> DataFrame:
    return job.key_by(df, "hour", "url", uid="again").aggregate(n=ps.count(), ms=ps.max("ms"))
