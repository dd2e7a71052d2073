"""Spark's processors, unchanged: the same rows in each batch and the same state in the end."""

from __future__ import annotations

import datetime as dt
import shutil
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from pystate.spark import Job, foreach_epoch

from . import timed
from .cases import CLOCKS, EVENTS, FRAMES, ODD, PLAIN
from .running import (
    BASE,
    COLUMNS,
    DELAY,
    Case,
    as_text,
    differences,
    made_batches,
    on_pystate,
    on_spark,
    output_differences,
    settings,
    spark_branch,
    stream_of,
    united,
    united_branches,
    write_batches,
)

SIZE = 24


ALL = {**PLAIN, **ODD, **FRAMES, **EVENTS, **CLOCKS}


@pytest.mark.parametrize(
    ("names", "no_data"),
    [
        pytest.param(PLAIN, False, id="plain", marks=pytest.mark.slow),
        pytest.param(ODD, False, id="odd", marks=pytest.mark.slow),
        pytest.param(FRAMES, False, id="frames", marks=pytest.mark.slow),
        pytest.param(EVENTS, True, id="event time", marks=pytest.mark.slow),
        pytest.param(CLOCKS, False, id="processing time", marks=pytest.mark.slow),
        # What `test_random_programs` has not: keys of several columns, states to begin with,
        # frames, functions with a timeout, and the clock.
        pytest.param(("by_two", "reminded", "frame_timers", "closed"), True, id="some with timers"),
        pytest.param(("clocks", "brief", "frame_types", "frame_begun"), False, id="some others"),
    ],
)
def test_rows_and_state_are_the_same(
    spark: SparkSession, tmp_path: Path, names: Collection[str], no_data: bool
) -> None:
    cases = {name: ALL[name] for name in names}
    # Without time, two batches show what is kept from one to the next.
    n = 3 if no_data or names is CLOCKS else 2
    found = differences(spark, cases, tmp_path, made_batches(1, n, SIZE), no_data=no_data)
    assert not found, "\n".join(found[:20])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
@pytest.mark.parametrize("no_data", [False, True])
def test_over_more_batches(spark: SparkSession, tmp_path: Path, seed: int, no_data: bool) -> None:
    cases = EVENTS if no_data else {**PLAIN, **ODD, **FRAMES}
    found = differences(spark, cases, tmp_path, made_batches(seed, 6, 60), no_data=no_data)
    assert not found, "\n".join(found[:20])


@pytest.mark.slow
def test_what_is_stored_keeps_its_expiry(spark: SparkSession, tmp_path: Path) -> None:
    """Each start asks for another time to live."""
    paths = write_batches(tmp_path / "batches", made_batches(6, 3, 8))
    (tmp_path / "input").mkdir()
    for number, ttl_ms in enumerate((timed.HOUR, 1, timed.HOUR)):
        cases = {"brief": replace(CLOCKS["brief"], processor=partial(timed.Brief, ttl_ms))}
        path = Path(shutil.copy2(paths[number], tmp_path / "input"))
        theirs = on_spark(spark, cases, [path], tmp_path / "spark", first=number)
        ours = on_pystate(spark, cases, [path], tmp_path / "pystate")
        assert any(theirs.outputs)
        assert not output_differences(theirs, ours)


@pytest.mark.slow
def test_late_rows_are_dropped_an_epoch_earlier(spark: SparkSession, tmp_path: Path) -> None:
    """Spark drops by the watermark of the batch before, pystate by the epoch's own."""
    start = int(BASE.timestamp() * 1000)
    times = [[10_000], [7_000, 10_500], [8_000, 8_001, 8_400, 8_500, 8_501]]
    batches = [
        [
            {
                "k": "a",
                "i": i,
                "op": "add",
                "ms": start + ms,
                "t": BASE + dt.timedelta(milliseconds=ms),
            }
            for i, ms in enumerate(batch)
        ]
        for batch in times
    ]
    cases = {"watermarks": EVENTS["watermarks"]}
    paths = write_batches(tmp_path / "input", batches)
    theirs = on_spark(spark, cases, paths, tmp_path / "spark")
    ours = on_pystate(spark, cases, paths, tmp_path / "pystate")
    # A row at the watermark itself is late in both. The watermarks are 8.0 and 8.5 seconds.
    assert [sum(each.values()) for each in theirs.outputs] == [1, 2, 4]
    assert [sum(each.values()) for each in ours.outputs] == [1, 1, 1]


def chain_of_spark(case: Case, rows: DataFrame, mode: str) -> DataFrame:
    first = rows.groupBy("k").transformWithState(
        timed.Tens(), timed.TENS, "Append", "EventTime", eventTimeColumnName="at"
    )
    return first.groupBy("k").transformWithState(
        case.processor(), case.output, "Append", "EventTime"
    )


def chain_of_pystate(case: Case, name: str, rows: DataFrame, job: Job) -> DataFrame:
    keyed = job.key_by(rows, "k", uid="first", event_time="t", allowed_delay=DELAY)
    first = keyed.transform_with_state(
        timed.Tens(), timed.TENS, "Append", "EventTime", event_time="at"
    )
    second = job.key_by(first, "k", uid=name, event_time="at")
    return second.transform_with_state(case.processor(), case.output, "Append", "EventTime")


@pytest.mark.slow
def test_processors_in_a_chain(spark: SparkSession, tmp_path: Path) -> None:
    cases = {"totals": Case(timed.Totals, "k string, i long, total long")}
    paths = write_batches(tmp_path / "input", made_batches(3, 3, 24))
    theirs = on_spark(spark, cases, paths, tmp_path / "spark", mode="Append", branch=chain_of_spark)
    ours = on_pystate(spark, cases, paths, tmp_path / "pystate", branch=chain_of_pystate)
    assert any(theirs.outputs)
    assert not output_differences(theirs, ours)


def test_a_batch_query(spark: SparkSession, tmp_path: Path) -> None:
    cases = {name: {**PLAIN, **ODD}[name] for name in ("counting", "lists", "maps", "begun")}
    [path] = write_batches(tmp_path / "input", made_batches(4, 1, 60))
    rows = spark.read.schema(COLUMNS).parquet(str(path))
    branches = [as_text(name, spark_branch(c, rows, "Update")) for name, c in cases.items()]
    with settings(spark):
        theirs = Counter((row.case, row.row) for row in united(branches).collect())
    ours = on_pystate(spark, cases, [path], tmp_path / "pystate")
    assert sum(theirs.values()) > 100
    assert ours.outputs == [theirs]


@pytest.mark.slow
def test_a_stream_of_a_job(spark: SparkSession, tmp_path: Path) -> None:
    """The same stream, started with Spark's and with pystate's query."""
    cases = {name: {**PLAIN, **EVENTS}[name] for name in ("several", "alarms")}
    paths = write_batches(tmp_path / "input", made_batches(5, 2, 20))
    theirs = on_spark(spark, cases, paths, tmp_path / "spark")
    outputs: dict[int, Counter[tuple[str, str]]] = {}

    def collect(rows: DataFrame, epoch: int) -> None:
        outputs[epoch] = Counter((row.case, row.row) for row in rows.collect())

    job = Job("stream", checkpoint=tmp_path / "pystate", parallelism=2)
    try:
        query = job.start(
            stream_of(spark, paths),
            lambda df, job: united_branches(cases, df, job),
            sink=foreach_epoch(collect),
            trigger={"availableNow": True},
        )
        query.awaitTermination()
    finally:
        job.close()
    assert [outputs[epoch] for epoch in sorted(outputs)] == theirs.outputs
