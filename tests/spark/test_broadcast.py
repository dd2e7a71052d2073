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
    job = make_job(parallelism=2)
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
    steps: list[tuple[int, list[Row]]] = [
        (2, drawn(draw, 6, 60)),
        (2, [*drawn(draw, 6, 60), kill]),
        (3, drawn(draw, 0, 60)),
        (3, [*drawn(draw, 4, 60), kill_rule]),
        (1, drawn(draw, 0, 0)),
        (1, drawn(draw, 5, 60)),
        (2, [*drawn(draw, 5, 60), kill]),
        (2, drawn(draw, 3, 0)),
    ]
    for number, (parallelism, rows) in enumerate(steps, 1):
        job.rescale(parallelism)
        rows = rows or [("row", "d2", 0, 0)]
        found, counts = model.epoch(rows)
        expected += found
        counted += counts
        source.add(*(",".join(map(str, row)) for row in rows))
        wait_for(lambda number=number: len(progress) == number, f"epoch {number}", 120)
        assert copies(job) == [(model.limits, model.history)] * parallelism
        keyed, rules = progress[-1].operators
        of_rules = sum(row[0] == "rule" for row in rows)
        assert (keyed.uid, keyed.rows_in) == ("alerts", len(rows) - of_rules)
        assert (rules.uid, rules.rows_in) == ("limits", of_rules * parallelism)
    query.stop()
    found_rows = [tuple(row)[:3] for row in sink.read(spark).select("k", "v", "n").collect()]
    commands = [row for row in found_rows if row[0] == "count"]
    assert sorted(row for row in found_rows if row[0] != "count") == sorted(expected)
    # Each instance has emitted what it has counted.
    assert sum(row[1] for row in commands) == sum(counted) > 0
    state = {row["k"]: row["alerts"] for row in job.read_state("alerts").to_pylist()}
    assert state == model.alerts
