"""The broadcast pattern on Spark: rules that change, kills, other numbers of instances."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.errors import InvalidArgumentError, ReadOnlyStateError
from pystate.spark import EpochProgress, ParquetSink

from .conftest import Source, rows_of, wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]
COLUMNS = "side string, k string, v long, n long"
Row = tuple[str, str, int, int]


def killed_once(what: int) -> None:
    """Kill the worker if this is the first attempt of its task, and the time has come."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if what == 13 and context is not None and context.attemptNumber() == 0:
        os.kill(os.getpid(), signal.SIGKILL)


class Alerts(ps.KeyedBroadcastProcessFunction):
    """Alerts for values above the limit of their kind; commands look at all keys."""

    limits = ps.BroadcastState("string", "long")
    history = ps.BroadcastState("long", "string")
    alerts = ps.ValueState("long", default=0)

    def process_broadcast(self, row: Any, ctx: Any) -> Any:
        killed_once(row.v)
        self.history.put(len(self.history), f"{row.k}={row.v}")
        if row.k == "count":
            found: list[int] = []
            ctx.apply_to_keyed_state(self.alerts, lambda key, n: found.append(n.value()))
            yield "count", sum(found), len(found)
        elif row.k == "reset":
            ctx.apply_to_keyed_state(self.alerts, lambda key, n: n.clear())
        elif row.v < 0:
            self.limits.remove(row.k)
        else:
            self.limits.put(row.k, row.v)

    def process(self, key: Any, row: Any, ctx: Any) -> Any:
        killed_once(row.n)
        limit = self.limits.get(key[0])
        if limit is not None and row.v > limit:
            self.alerts.update(self.alerts.value() + 1)
            yield key, row.v, self.alerts.value()


def alerts(df: DataFrame, job: Job, function: Any = None, **options: Any) -> DataFrame:
    rules = job.broadcast(df.where("side = 'rule'"), uid="limits", order_by="n")
    keyed = job.key_by(df.where("side = 'row'"), "k", uid="alerts", order_by="n")
    connected = keyed.connect(rules)
    schema = "k string, v long, n long"
    return connected.process(function or Alerts(), schema=schema, **options)


class Model:
    """The same with dicts, and one copy of the rules."""

    def __init__(self) -> None:
        self.limits: dict[str, int] = {}
        self.history: list[str] = []
        self.alerts: dict[str, int] = {}

    def epoch(self, rows: list[Row]) -> tuple[list[Any], list[int]]:
        """Return the alerts, and what each command has counted on all instances."""
        found: list[Any] = []
        counts: list[int] = []
        for side, k, v, _ in sorted(rows, key=lambda row: (row[0] == "row", row[3])):
            if side == "row":
                if k[0] in self.limits and v > self.limits[k[0]]:
                    self.alerts[k] = self.alerts.get(k, 0) + 1
                    found.append((k, v, self.alerts[k]))
                continue
            self.history.append(f"{k}={v}")
            if k == "count":
                counts.append(sum(self.alerts.values()))
            elif k == "reset":
                self.alerts.clear()
            elif v < 0:
                self.limits.pop(k, None)
            else:
                self.limits[k] = v
        return found, counts


def drawn(draw: random.Random, rules: int, rows: int) -> list[Row]:
    """An epoch's rows, in no order; `n` gives the order."""
    found: list[Row] = []
    for n in range(rules):
        command = draw.choice(["a", "b", "c", "c", "count", "reset"])
        found.append(("rule", command, draw.randrange(-5, 12), 20 + n))
    for n in range(rows):
        found.append(("row", f"{draw.choice('abcd')}{draw.randrange(30)}", draw.randrange(20), n))
    draw.shuffle(found)
    return found


def copies(job: Job) -> list[tuple[dict[str, int], list[str]]]:
    """The broadcast states of each instance, as the checkpoint has them."""
    rows = job.read_state("limits").to_pylist()
    return [
        (dict(row["limits"]), [text for _, text in sorted(dict(row["history"]).items())])
        for row in rows
    ]


def test_rules_survive_kills_and_another_number_of_instances(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    source = Source(spark, tmp_path / "rows", COLUMNS)
    sink, draw, model = ParquetSink(tmp_path / "out"), random.Random(5), Model()
    job = make_job(parallelism=2, checkpoints=ps.CheckpointOptions(interval=2))
    progress: list[EpochProgress] = []
    query = job.start(
        source.stream(),
        alerts,
        sink=sink,
        trigger={"processingTime": "0 seconds"},
        on_epoch=progress.append,
    )
    expected: list[Any] = []
    counted: list[int] = []
    kill: Row = ("row", "d1", 0, 13)
    kill_rule: Row = ("rule", "b", 13, 13)
    # Of the batches the second one is held, and so is the last.
    steps: list[tuple[int, list[Row]]] = [
        (2, [*drawn(draw, 8, 60), kill]),
        # Most instances get no row, and still their copy.
        (3, [("row", "d2", 0, 0), ("rule", "count", 0, 0)]),
        (3, [*drawn(draw, 8, 60), kill_rule]),
        (1, drawn(draw, 5, 20)),
    ]
    for number, (parallelism, rows) in enumerate(steps, 1):
        job.rescale(parallelism)
        found, counts = model.epoch(rows)
        expected += found
        counted += counts
        source.add(*(",".join(map(str, row)) for row in rows))
        wait_for(lambda number=number: len(progress) == number, f"batch {number}", 120)
        if number in (1, 3):
            assert copies(job) == [(model.limits, model.history)] * parallelism
        keyed, rules = progress[-1].operators
        of_rules = sum(row[0] == "rule" for row in rows)
        assert (keyed.uid, keyed.rows_in) == ("alerts", len(rows) - of_rules)
        assert (rules.uid, rules.rows_in) == ("limits", of_rules * parallelism)
    query.stop()
    assert [step.epoch for step in progress] == [1, 2, 2, 3]
    assert copies(job) == [(model.limits, model.history)]
    found_rows = [tuple(row)[:3] for row in sink.read(spark).select("k", "v", "n").collect()]
    commands = [row for row in found_rows if row[0] == "count"]
    assert sorted(row for row in found_rows if row[0] != "count") == sorted(expected)
    # Each instance has emitted what it has counted.
    assert sum(row[1] for row in commands) == sum(counted) > 0
    state = {row["k"]: row["alerts"] for row in job.read_state("alerts").to_pylist()}
    assert state == model.alerts


def frame(spark: SparkSession, rows: list[Row]) -> DataFrame:
    return spark.createDataFrame(rows, COLUMNS).repartition(3)


class Writes(Alerts):
    def process(self, key: Any, row: Any, ctx: Any) -> Any:
        self.limits.put("a", 5)


def test_output_that_is_read_twice_and_a_write_that_is_refused(
    spark: SparkSession, make_job: MakeJob
) -> None:
    job, draw, model = make_job(), random.Random(3), Model()

    def pipeline(df: DataFrame, job: Job) -> DataFrame:
        out = alerts(df, job)
        out.limit(1).count()
        return out

    for evaluations in (2, 1):
        rows = drawn(draw, 4, 40)
        found = rows_of(job.run_epoch(frame(spark, rows), pipeline).dataframe)
        expected, _ = model.epoch(rows)
        assert [row for row in found if row[0] != "count"] == sorted(expected, key=repr)
        assert job.last_progress is not None
        assert job.last_progress.evaluations == evaluations
        assert copies(job) == [(model.limits, model.history)] * 2
    with pytest.raises(ReadOnlyStateError, match="'limits': put is not allowed here"):
        job.run_epoch(
            frame(spark, [("rule", "a", 2, 0), ("row", "a1", 1, 0)]),
            lambda df, job: alerts(df, job, Writes()),
        )
    assert copies(job) == [(model.limits, model.history)] * 2


class Traced(ps.KeyedBroadcastProcessFunction):
    last = ps.BroadcastState("string", "long")
    n = ps.ValueState("long", default=0)

    def process_broadcast(self, row: Any, ctx: Any) -> Any:
        self.last.put("last", row.n)

    def process(self, key: Any, row: Any, ctx: Any) -> Any:
        self.n.update(self.n.value() + 1)
        ctx.register_event_time_timer(1000)
        yield f"{key} row", row.n, self.last.get("last")

    def on_timer(self, key: Any, timestamp: int, ctx: Any) -> Any:
        yield f"{key} timer", ctx.watermark, self.last.get("last")


def test_rows_in_the_order_of_their_times(spark: SparkSession, make_job: MakeJob) -> None:
    ntz = "to_timestamp_ntz(date_format(timestamp_millis(t), 'yyyy-MM-dd HH:mm:ss.SSS'))"
    kinds = [("t", "timestamp_millis(t)"), (ntz, "t")]
    job = make_job()

    def pipeline(df: DataFrame, job: Job) -> dict[str, DataFrame]:
        found = {}
        for i, (of_rows, of_rules) in enumerate(kinds):
            rules = df.where("side = 'rule'").selectExpr("n", f"{of_rules} AS at")
            rows = df.where("side = 'row'").selectExpr("k", "n", f"{of_rows} AS at")
            keyed = job.key_by(rows, "k", uid=f"traced{i}", event_time="at")
            broadcast = job.broadcast(rules, uid=f"last{i}", event_time="at", order_by="n")
            schema = "what string, at long, last long"
            connected = keyed.connect(broadcast)
            found[f"kind{i}"] = connected.process(Traced(), schema, interleave="event_time")
        return found

    def run(*rows: tuple[str, str, int | None, int]) -> list[Any]:
        given = spark.createDataFrame(rows, "side string, k string, t long, n long")
        frames = job.run_epoch(given.repartition(4), pipeline).dataframes
        one, other = map(rows_of, frames.values())
        assert one == other
        return one

    assert run(
        ("rule", "", 500, 3),
        ("rule", "", 200, 2),
        ("rule", "", None, 1),
        ("row", "a", 600, 4),
        ("row", "a", 200, 2),
        ("row", "b", 199, 1),
        ("row", "b", 499, 3),
        ("row", "b", None, 0),
    ) == [
        ("a row", 2, 2),
        ("a row", 4, 3),
        ("b row", 0, 1),
        ("b row", 1, 1),
        ("b row", 3, 2),
    ]
    assert run(("row", "a", 2000, 5), ("rule", "", 1500, 4)) == [("a row", 5, 4)]
    # The watermark is that of the slower input.
    assert run() == [("a timer", 1500, 4), ("b timer", 1500, 4)]
    assert job.last_progress is not None and job.last_progress.watermark_ms == 1500


@pytest.mark.slow
def test_a_broadcast_without_times_or_rows_holds_nothing_back(
    spark: SparkSession, make_job: MakeJob
) -> None:
    class Strict(Traced):
        pass

    job = make_job()

    def pipeline(df: DataFrame, job: Job) -> dict[str, DataFrame]:
        found = {}
        for uid, times in (("timeless", {}), ("idle", {"event_time": "t", "idle_after": 1})):
            none = spark.range(0).selectExpr("id AS n", "id AS t")
            rules = job.broadcast(none, uid=f"rules {uid}", **times)
            keyed = job.key_by(df, "k", uid=uid, event_time="t")
            found[uid] = keyed.connect(rules).process(Strict(), "what string, at long, last long")
        return found

    found: dict[str, list[Any]] = {"timeless": [], "idle": []}
    for rows in ("(0L)", "(3000L)", "(4000L)"):
        given = spark.sql(f"SELECT 'a' AS k, 1 AS n, t FROM VALUES {rows} AS v(t)")
        for uid, out in job.run_epoch(given, pipeline).dataframes.items():
            found[uid] += rows_of(out)
    assert all(("a timer", 3000, None) in out for out in found.values())


def test_what_is_refused(spark: SparkSession, make_job: MakeJob) -> None:
    rows: list[Row] = [("rule", "a", 1, 0)]
    job = make_job()

    def refused(pipeline: Any, match: str) -> None:
        with pytest.raises(InvalidArgumentError, match=match):
            job.run_epoch(frame(spark, rows), pipeline)

    refused(
        lambda df, job: alerts(df, job, interleave="event_time"), r"key_by\(\.\.\., event_time="
    )
    refused(lambda df, job: alerts(df, job, interleave="time"), "interleave")
    refused(
        lambda df, job: job.key_by(df, "k", uid="a").process(Alerts(), "k string"),
        "has a broadcast input: connect it",
    )
    refused(lambda df, job: job.key_by(df, "k", uid="a").connect(df), "job.broadcast")
    refused(
        lambda df, job: job.broadcast(df, uid="r", idle_after="1 minute"), "event_time='column'"
    )
