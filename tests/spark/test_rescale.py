"""Another parallelism between two epochs: of a running query, of runs, and by a policy."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.errors import InvalidArgumentError

from .conftest import Source, close_for_good, wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pystate.spark import EpochProgress, Job

MakeJob = Callable[..., "Job"]


class Everything(ps.KeyedProcessFunction):
    """Keeps what it has seen in every kind of state, and tells it once a timer fires."""

    n = ps.ValueState("long", default=0)
    seen = ps.ListState("long")
    by = ps.MapState("string", "long")

    def process(self, key: str, row: ps.functions.InputRow, ctx: ps.RuntimeContext) -> Any:
        """Add the row."""
        self.n.update(self.n.value() + row.v)
        self.seen.add(row.v)
        self.by.put(f"{row.v % 3}", row.v)
        ctx.register_event_time_timer(1_700_000_000_000 + 1000 * row.v)

    def on_timer(self, key: str, timestamp: int, ctx: ps.RuntimeContext) -> Any:
        """Tell."""
        yield key, self.n.value(), self.seen.get(), dict(self.by.items())


def everything(job: Job) -> Callable[[DataFrame], DataFrame]:
    def pipeline(df: DataFrame) -> DataFrame:
        rows = df.selectExpr("k", "v", "timestamp_seconds(1700000000) AS at")
        keyed = job.key_by(rows, "k", uid="all", event_time="at", allowed_delay="1 hour")
        schema = "k string, n long, seen array<long>, by map<string, long>"
        return keyed.process(Everything(), schema=schema)

    return pipeline


class Model:
    """What the state must be."""

    def __init__(self) -> None:
        self.keys: dict[str, list[int]] = {}

    def epoch(self, values: dict[str, int]) -> list[str]:
        """Take an epoch's rows; returns them as lines."""
        for key, value in values.items():
            self.keys.setdefault(key, []).append(value)
        return [f"{key},{value}" for key, value in values.items()]

    def rows(self) -> list[dict[str, Any]]:
        """The state as `Job.read_state` gives it."""
        return [
            {
                "k": key,
                "n": sum(values),
                "seen": values,
                "by": sorted({f"{v % 3}": v for v in values}.items()),
            }
            for key, values in sorted(self.keys.items())
        ]


def state(job: Job) -> list[dict[str, Any]]:
    rows = job.read_state("all").sort_by("k").to_pylist()
    return [{**row, "by": sorted(row["by"])} for row in rows]


@pytest.mark.parametrize(
    ("groups", "steps"),
    [(16, (7, 3, 16)), pytest.param(128, (2, 7, 3, 128), marks=pytest.mark.slow)],
)
def test_a_running_query_is_rescaled(
    source: Source, make_job: MakeJob, tmp_path: Path, groups: int, steps: tuple[int, ...]
) -> None:
    """Up and down, with every kind of state; nothing is read that the host has in memory."""
    job = make_job(parallelism=1, max_parallelism=groups)
    model, draw = Model(), random.Random(1)
    epochs: list[EpochProgress] = []
    keys = [f"key {number}" for number in range(200)]

    def step(job: Job = job) -> EpochProgress:
        source.add(*model.epoch({key: draw.randrange(100) for key in keys}))
        wait_for(lambda: len(epochs) == len(model.keys["key 0"]), "the epoch", 120)
        assert state(job) == model.rows()
        return epochs[-1]

    query = job.start(
        source.stream(),
        everything(job),
        trigger={"processingTime": "0 seconds"},
        on_epoch=epochs.append,
    )
    step()
    for parallelism in steps:
        job.rescale(parallelism)
        moved, after = step(), step()
        assert moved.operators[0].ranges == after.operators[0].ranges == parallelism
        assert moved.rows_copied >= len(keys) and moved.rows_restored == 0
        assert (after.rows_copied, after.rows_restored) == (0, 0)
        assert moved.keys == after.keys == len(keys)
    with pytest.raises(InvalidArgumentError, match=f"more than the {groups} key groups"):
        job.rescale(groups + 1)
    query.stop()
    close_for_good(job)
    # The tables are gone, and files are read.
    other = make_job(parallelism=4, max_parallelism=groups)
    query = other.start(
        source.stream(),
        everything(other),
        trigger={"processingTime": "0 seconds"},
        on_epoch=epochs.append,
    )
    moved = step(other)
    assert (moved.rows_copied, moved.operators[0].ranges) == (0, 4)
    assert moved.rows_restored >= len(keys)
    # And with more key groups, as another job.
    other.stop_with_savepoint(f"{other.checkpoint}/savepoints/few")
    folder = f"{other.checkpoint}/savepoints/more"
    ps.rescale(f"{other.checkpoint}/savepoints/few", folder, max_parallelism=2 * groups)
    more = make_job(checkpoint=tmp_path / "more", restore=folder, parallelism=5)
    query = more.start(
        source.stream(),
        everything(more),
        trigger={"processingTime": "0 seconds"},
        on_epoch=epochs.append,
    )
    assert step(more).operators[0].ranges == 5
    # Timers went with their keys: those due fire, once.
    taken = more.stop_with_savepoint(tmp_path / "end", drain=True)
    assert taken.epoch == more.latest_epoch() == len(epochs)
    assert epochs[-1].rows_out == len({(k, v) for k, vs in model.keys.items() for v in vs})


def test_runs_are_rescaled(spark: Any, make_job: MakeJob) -> None:
    job, model = make_job(parallelism=3), Model()
    job.rescale(5)  # nothing has run yet
    for parallelism in (5, 2):
        job.rescale(parallelism)
        model.epoch({f"key {n}": parallelism for n in range(50)})
        data = spark.createDataFrame(
            [(f"key {n}", parallelism) for n in range(50)], "k string, v int"
        )
        job.run_epoch(data, everything(job))
        assert state(job) == model.rows()
        assert job.last_progress is not None
        assert job.last_progress.operators[0].ranges == parallelism


def test_a_policy_rescales(spark: Any, make_job: MakeJob) -> None:
    policy = ps.AutoRescale(2, 4, target="1 millisecond", cooldown=1)
    job = make_job(parallelism=policy)
    ranges = []
    data = spark.createDataFrame([(f"key {n}", 1) for n in range(50)], "k string, v int")
    for _ in range(3):
        job.run_epoch(data, everything(job))
        assert job.last_progress is not None
        ranges.append(job.last_progress.operators[0].ranges)
    assert ranges == [2, 2, 4]
    with pytest.raises(InvalidArgumentError, match="not within the bounds"):
        job.rescale(5)
