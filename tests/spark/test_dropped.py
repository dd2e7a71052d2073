"""State that a job drops, and declares again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.errors import UnclaimedStateError

from .conftest import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]


class Both(ps.KeyedProcessFunction):
    """A state that stays, one that goes, and timers."""

    kept = ps.ValueState("long")
    gone = ps.ListState("long")

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
        yield key, self.kept.value(), str(list(self.gone.get()))
        self.kept.update(row["v"])
        self.gone.add(row["v"])
        ctx.register_event_time_timer(row["v"] + 1000)

    def on_timer(
        self, key: Any, timestamp: int, ctx: ps.RuntimeContext
    ) -> Iterator[tuple[Any, ...]]:
        yield key, timestamp, "timer"


class One(ps.KeyedProcessFunction):
    kept = ps.ValueState("long")

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
        yield key, self.kept.value(), ""
        self.kept.update(row["v"])


class Text(ps.KeyedProcessFunction):
    """The name stands for something else."""

    kept = ps.ValueState("long")
    gone = ps.ValueState("string")

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
        yield key, self.kept.value(), str(self.gone.value())
        self.gone.update("text")


@pytest.mark.parametrize(
    "shared",
    [
        "first",
        pytest.param("all", marks=pytest.mark.slow),
        pytest.param("none", marks=pytest.mark.slow),
    ],
)
def test_dropped_state_stays_dropped(spark: SparkSession, make_job: MakeJob, shared: str) -> None:
    """In tables that the epochs share, and in files."""
    runs = 0

    def run(function: type[Any], *rows: tuple[int, int], **options: Any) -> list[tuple[Any, ...]]:
        nonlocal runs
        runs += 1
        in_tables = shared == "all" or (shared == "first" and runs <= 4)
        with make_job(shared_tables=in_tables, **options) as job:
            frame = spark.createDataFrame(list(rows), "k long, v long")
            result = job.run_epoch(
                frame,
                lambda df: job.key_by(df, "k", uid="op", event_time="v").process(
                    function(), "k long, kept long, gone string"
                ),
            )
            return rows_of(result.dataframe)

    assert run(Both, (1, 11), (2, 12)) == [(1, None, "[]"), (2, None, "[]")]
    with pytest.raises(UnclaimedStateError, match="gone"):
        run(One, (1, 21))
    assert run(One, (2, 22), allow_unclaimed_state=True) == [(2, 12, "")]
    # It is gone for good: nobody has to allow that again, and the name is free for something else.
    assert run(Text, (1, 31), (2, 32)) == [(1, 11, "None"), (2, 22, "None")]
    assert run(One, (1, 41), allow_unclaimed_state=True) == [(1, 11, "")]
    # From here on the timers of the first epoch would be due.
    assert run(Both, (1, 2000)) == [(1, 41, "[]")]
    assert run(Both, (2, 42)) == [(2, 1042, "timer"), (2, 22, "[]")]


def test_waiting_timers_must_be_claimed(spark: SparkSession, make_job: MakeJob) -> None:
    class NoTimers(ps.KeyedProcessFunction):
        kept = ps.ValueState("long")
        gone = ps.ListState("long")

        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
            pass

    job = make_job()
    frame = spark.createDataFrame([(1, 1)], "k long, v long")

    def pipeline(function: Any) -> Any:
        return lambda df: job.key_by(df, "k", uid="op", event_time="v").process(
            function, "k long, kept long, gone string"
        )

    job.run_epoch(frame, pipeline(Both()))
    with pytest.raises(UnclaimedStateError, match="holds timers"):
        job.run_epoch(frame, pipeline(NoTimers()))
