"""DataFrames that become state; also the state of Spark's own stateful operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import pystate as ps
from pystate.errors import PystateError
from pystate.spark import Job, register_state_source, write_state

from .conftest import Source, rows_of, state_of

MakeJob = Callable[..., Job]
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Visits(ps.KeyedProcessFunction):
    """A value, a list and a map, and a timer that tells."""

    n = ps.ValueState("long", default=0)
    seen = ps.ListState("long")
    by = ps.MapState("string", "long")

    def process(self, key: str, row: Any, ctx: ps.RuntimeContext) -> Any:
        self.n.update(self.n.value() + 1)
        self.seen.add(row.v)
        self.by.put(str(row.v), self.n.value())
        yield key, self.n.value()

    def on_timer(self, key: str, timestamp: int, ctx: ps.RuntimeContext) -> Any:
        yield key, -timestamp


def visits(job: Job, uid: str = "visits") -> Callable[[DataFrame], DataFrame]:
    return lambda df: job.key_by(df, "k", uid=uid).process(Visits(), schema="k string, n long")


def counts(job: Job) -> Callable[[DataFrame], DataFrame]:
    totals = {"n": ps.count(), "total": ps.sum("v")}
    return lambda df: job.key_by(df, "k", uid="counts").aggregate(**totals)


def test_reading_and_writing_stores_no_default(spark: SparkSession, tmp_path: Path) -> None:
    key, states = {"k": "string"}, {"n": Visits.n, "seen": Visits.seen}
    rows = spark.createDataFrame(
        [("a", None, [1]), ("b", 7, None)], "k string, n long, seen array<long>"
    )
    write_state(tmp_path / "one", {"op": ps.StateRows(rows, key, states)}, parallelism=2)
    register_state_source(spark)
    source = spark.read.format("pystate")
    read = source.load(str(tmp_path / "one"))
    assert rows_of(read) == [("a", 0, [1]), ("b", 7, [])]
    stored = source.option("defaults", False).load(str(tmp_path / "one"))
    assert rows_of(stored.select("k", "n")) == [("a", None), ("b", 7)]
    upper = read.selectExpr("upper(k) AS k", "n", "seen")
    write_state(tmp_path / "two", {"op": ps.StateRows(upper, key, states)}, parallelism=2)
    found = ps.read_state(tmp_path / "two", defaults=False).sort_by("k")
    assert found.to_pylist() == [
        {"k": "A", "n": None, "seen": [1]},
        {"k": "B", "n": 7, "seen": []},
    ]


def test_a_job_goes_on_from_frames(spark: SparkSession, make_job: MakeJob, tmp_path: Path) -> None:
    history = spark.range(60).selectExpr("CAST(id % 9 AS STRING) AS k", "id AS v")
    rows = history.groupBy("k").agg(
        F.count("*").alias("n"),
        F.array_sort(F.collect_list("v")).alias("seen"),
        F.map_from_entries(
            F.collect_list(F.struct(F.col("v").cast("string"), F.lit(1).cast("long")))
        ).alias("by"),
    )
    timers = spark.createDataFrame(
        [("1", "processing", 5), ("new", "processing", 7)],
        "k string, timer_domain string, timer_ms long",
    )
    key = {"k": "string"}
    operators = {
        "visits": ps.StateRows(rows, key, Visits, timers=timers),
        "other": ps.StateRows(rows.select("k", "n"), key, {"n": ps.ValueState("long")}),
    }
    made = write_state(tmp_path / "s", operators, parallelism=3)
    register_state_source(spark)
    read = spark.read.format("pystate").option("uid", "visits")
    job = make_job(restore=made.location, parallelism=2, allow_unclaimed_state=True)
    assert rows_of(read.load(made.location).selectExpr("k", "n", "seen")) == rows_of(
        rows.selectExpr("k", "n", "seen")
    )
    more = spark.createDataFrame([("1", 100)], "k string, v long")
    out = job.run_epoch(more, visits(job)).dataframe
    assert set(rows_of(out)) == {("1", 8), ("1", -5), ("new", -7)}
    found = state_of(job, "visits")
    assert len(found) == 9 and found["1"][0] == 8 and found["1"][1][-1] == 100
    assert sorted(dict(found["1"][2])) == sorted(str(v) for v in [*range(1, 60, 9), 100])
    # One of its operators anew, of the rows of another: its keys are rewritten.
    table = spark.read.format("pystate").option("uid", "visits").load(made.location)
    renamed = table.selectExpr("CAST(k AS LONG) AS k", "n")
    other = {"other": ps.StateRows(renamed, {"k": "long"}, {"n": ps.ValueState("long")})}
    second = write_state(tmp_path / "t", other, base=made.location)
    assert sorted(ps.read_state(second.location, "other")["k"].to_pylist()) == list(range(9))
    same = [ps.read_state(where.location, "visits").sort_by("k") for where in (made, second)]
    assert same[0].equals(same[1])


def test_what_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame([("a", 1), ("a", 2)], "k string, n long")
    states = {"n": ps.ValueState("long")}
    for rows, error, message in (
        (ps.StateRows(frame, {"k": "long"}, states), PystateError, "the key is .k string. there"),
        (ps.StateRows([], {"k": "string"}, states), PystateError, "DataFrame"),
        (ps.StateRows(frame, {"k": "string"}, states), PySparkException, "stands in two rows"),
    ):
        with pytest.raises(error, match=message):
            write_state(tmp_path / "s", {"c": rows})
        assert not [path for path in (tmp_path / "s").rglob("*") if path.is_file()]


def run_to_end(frame: DataFrame, checkpoint: Path) -> None:
    """Run a query over what its source has, and stop it."""
    query = (
        frame.writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    try:
        query.processAllAvailable()
    finally:
        query.stop()


def test_state_of_a_streaming_aggregation(
    spark: SparkSession, source: Source, make_job: MakeJob, tmp_path: Path
) -> None:
    source.add("a,1", "b,2", "a,3", "c,4", "a,5")
    totals = source.stream().groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("total"))
    run_to_end(totals, tmp_path / "spark")
    store = spark.read.format("statestore").load(str(tmp_path / "spark"))
    rows = store.select("key.k", F.col("value.count").alias("n"), F.col("value.sum").alias("total"))
    states = {
        "n": ps.AggregatingState(ps.Count(), type="long"),
        "total": ps.AggregatingState(ps.Sum(), type="long"),
    }
    made = write_state(tmp_path / "s", {"counts": ps.StateRows(rows, {"k": "string"}, states)})
    job = make_job(restore=made.location)
    more = spark.createDataFrame([("a", 10), ("d", 20)], "k string, v long")
    out = job.run_epoch(more, counts(job)).dataframe
    assert rows_of(out) == [("a", 4, 19), ("d", 1, 20)]
    assert state_of(job, "counts") == {"a": (4, 19), "b": (1, 2), "c": (1, 4), "d": (1, 20)}


class SparkVisits(StatefulProcessor):
    """What `Visits` does, for Spark."""

    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n long")
        self.seen = handle.getListState("seen", "v long")
        self.by = handle.getMapState("by", "v string", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Any:  # noqa: N802
        for row in rows:
            n = (self.n.get()[0] if self.n.exists() else 0) + 1
            self.n.update((n,))
            self.seen.appendValue((row.v,))
            self.by.updateValue((str(row.v),), (n,))
        return iter([])

    def close(self) -> None: ...


def test_state_of_transform_with_state(
    spark: SparkSession, source: Source, make_job: MakeJob, tmp_path: Path
) -> None:
    source.add("a,1", "b,2", "c,4", "a,5")
    checkpoint = tmp_path / "spark"
    before = spark.conf.get(_PROVIDER)
    spark.conf.set(_PROVIDER, _ROCKSDB)
    try:
        grouped = source.stream().groupBy("k")
        frame = grouped.transformWithState(SparkVisits(), "k string, n long", "Update", "None")
        run_to_end(frame, checkpoint)

        def variable(name: str) -> DataFrame:
            read = spark.read.format("statestore").option("stateVarName", name)
            return read.option("flattenCollectionTypes", False).load(str(checkpoint))

        n = variable("n").select("key.k", F.col("value.n").alias("n"))
        seen = variable("seen").selectExpr("key.k", "transform(list_value, x -> x.v) AS seen")
        entries = "transform_values(transform_keys(map_value, (k, v) -> k.v), (k, v) -> v.n) AS by"
        by = variable("by").selectExpr("key.k", entries)
        rows = n.join(seen, "k").join(by, "k")
        made = write_state(tmp_path / "s", {"visits": ps.StateRows(rows, {"k": "string"}, Visits)})
    finally:
        spark.conf.set(_PROVIDER, before)
    job = make_job(restore=made.location)
    more = spark.createDataFrame([("a", 10), ("d", 20)], "k string, v long")
    out = job.run_epoch(more, visits(job)).dataframe
    assert rows_of(out) == [("a", 3), ("d", 1)]
    found = {k: (n, seen, dict(by)) for k, (n, seen, by) in state_of(job, "visits").items()}
    assert found == {
        "a": (3, [1, 5, 10], {"1": 1, "5": 2, "10": 3}),
        "b": (1, [2], {"2": 1}),
        "c": (1, [4], {"4": 1}),
        "d": (1, [20], {"20": 1}),
    }


def test_windows_and_joins_go_on_from_what_was_read(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    def pipeline(df: DataFrame, job: Job) -> DataFrame:
        def keyed(uid: str | None, name: str) -> Any:
            rows = df.selectExpr("k", "t", f"n AS {name}")
            return job.key_by(rows, "k", uid=uid, event_time="t")

        windows = keyed("windows", "n").window(ps.Sliding(40, 10))
        means = windows.aggregate(m=ps.mean("n"), n=ps.count())
        left, right = keyed("join", "a"), keyed(None, "b")
        joined = left.interval_join(right, 0, 25, how="left", suffixes=("", "_right"))
        return means.selectExpr("to_json(struct(*)) AS row").unionAll(
            joined.selectExpr("to_json(struct(*)) AS row")
        )

    epochs = [
        spark.createDataFrame(
            [(key, 50 * e + 7 * i, i) for i in range(6) for key in ("a", "b")],
            "k string, t long, n long",
        )
        for e in range(2)
    ]
    first = make_job(checkpoint=tmp_path / "first")
    first.run_epoch(epochs[0], pipeline)
    register_state_source(spark)

    operators = {
        uid: replace(
            ps.StateRows.read(first.checkpoint, uid),
            rows=frame_of(first, spark, uid, accumulators=True),
            timers=frame_of(first, spark, uid, timers=True),
        )
        for uid in ("windows", "join")
    }
    made = write_state(tmp_path / "s", operators, parallelism=3)
    assert operators["join"].max_event_time_ms == {"left": 35, "right": 35}
    second = make_job(checkpoint=tmp_path / "second", restore=made.location, parallelism=3)
    results = [rows_of(job.run_epoch(epochs[1], pipeline).dataframe) for job in (first, second)]
    assert results[0] == results[1] and len(results[0]) > 5


def frame_of(job: Job, spark: SparkSession, uid: str, **options: Any) -> DataFrame:
    return spark.read.format("pystate").option("uid", uid).options(**options).load(job.checkpoint)
