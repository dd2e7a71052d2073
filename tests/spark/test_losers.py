"""Attempts that do not count never become anyone's base, whenever they seal."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.checkpoint.storage import LocalStorage
from pystate.errors import EvaluationError
from pystate.spark import EpochProgress, ParquetSink

from .conftest import Source, rows_of, set_lock_timeout, state_of, wait_for
from .deadly import first_to
from .gate import Gate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]
OUT = "k string, n long, mark string"


class Marking(ps.KeyedProcessFunction):
    """Counts, and keeps which attempt it was: another result for every attempt."""

    n = ps.ValueState("long", default=0)
    mark = ps.ValueState("string")

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        mark = f"{context.taskAttemptId()}"
        self.n.update(self.n.value() + row.v)
        self.mark.update(mark)
        yield key, self.n.value(), mark


class Killed(Marking):
    """Kills its own worker, once, in the middle of the rows."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
        yield from super().process(key, row, ctx)
        if row.v == 7 and first_to(self.flag):
            os.kill(os.getpid(), signal.SIGKILL)


class Gated(Marking):
    """May be held up at its last row."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
        yield from super().process(key, row, ctx)
        if row.v == 7:
            # It does not notice that its evaluation is over.
            LocalStorage.touch_every_s = 1e9
            self.gate.pass_through("row")


def letters(spark: SparkSession, *rows: tuple[str, int]) -> DataFrame:
    return spark.createDataFrame(list(rows), "k string, v long").coalesce(1)


def keyed(job: Job, df: DataFrame, function: Any) -> DataFrame:
    return job.key_by(df, "k", uid="marks", order_by="v").process(function, OUT)


def check_state(job: Job, result: DataFrame, wanted: dict[str, int]) -> None:
    """The state is that of the attempts whose rows were published, and of no other."""
    state = state_of(job, "marks")
    assert {k: n for k, (n, _) in state.items()} == wanted
    latest: dict[str, tuple[int, str]] = {}
    for k, n, mark in rows_of(result):
        latest[k] = max(latest.get(k, (0, "")), (n, mark))
    for k, found in latest.items():
        assert state[k] == found


def files_of(folder: Path) -> set[str]:
    return {p.name for p in folder.glob("checkpoint/state/**/*.delta")}


def test_a_killed_worker_in_the_middle(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    job = make_job(parallelism=1)
    job.run_epoch(letters(spark, ("a", 1), ("b", 1)), lambda df: keyed(job, df, Marking()))
    data = letters(spark, *[(k, v) for v in range(1, 11) for k in "ab"])
    result = job.run_epoch(data, lambda df: keyed(job, df, Killed(tmp_path / "flag")))
    assert (tmp_path / "flag").exists()
    check_state(job, result.dataframe, {"a": 56, "b": 56})
    job.run_epoch(letters(spark, ("a", 1)), lambda df: keyed(job, df, Marking()))
    assert state_of(job, "marks")["a"][0] == 57


def fail_once(flag: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Passes everything on, then fails the task, which has sealed by then, once."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        if first_to(flag):
            raise OSError("a disk that fails once")

    return run


def test_the_loser_seals_before_the_winner(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    job = make_job(parallelism=1)
    data = letters(spark, ("a", 1), ("b", 1))
    job.run_epoch(data, lambda df: keyed(job, df, Marking()))
    before = files_of(tmp_path)
    progress: list[EpochProgress] = []
    result = job.run_epoch(
        data,
        lambda df: keyed(job, df, Marking()).mapInArrow(fail_once(tmp_path / "flag"), OUT),
        on_epoch=progress.append,
    )
    # Two attempts wrote a delta; one report counted, in one evaluation.
    assert len(files_of(tmp_path) - before) == 2
    assert progress[0].evaluations == 1
    check_state(job, result.dataframe, {"a": 2, "b": 2})
    result = job.run_epoch(data, lambda df: keyed(job, df, Marking()))
    check_state(job, result.dataframe, {"a": 3, "b": 3})


def test_the_loser_seals_after_the_winner(
    spark: SparkSession, make_job: MakeJob, source: Source, tmp_path: Path
) -> None:
    """A stopped query's worker seals after the next query has run its batch."""
    sink = ParquetSink(tmp_path / "out")
    job = make_job(parallelism=1)
    set_lock_timeout(job, 300)

    def start(function: Any) -> Any:
        return job.start(
            source.stream(),
            lambda df: keyed(job, df, function),
            sink=sink,
            trigger={"availableNow": True},
        )

    source.add("a,1", "b,1")
    start(Marking()).awaitTermination()
    source.add("a,7", "b,2")
    with Gate(tmp_path / "gate") as gate:
        gate.close("row")
        stuck = start(Gated(gate))
        gate.wait_until_reached("row")
        stuck.stop()
        assert len(files_of(tmp_path)) == 1
        # The worker holds the table's lock: this batch works on a replica.
        start(Marking()).awaitTermination()
        assert len(files_of(tmp_path)) == 2
    wait_for(lambda: len(files_of(tmp_path)) == 3, "the loser's delta")
    check_state(job, sink.read(spark, 2), {"a": 8, "b": 3})
    # The loser's seal stands in the shared table now; the next batch must not build on it.
    source.add("a,1")
    start(Marking()).awaitTermination()
    check_state(job, sink.read(spark, 3), {"a": 9, "b": 3})


def test_an_operator_that_nothing_reads(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    job = make_job(parallelism=2)
    data = letters(spark, *((k, v) for v in range(3) for k in "abcdefgh"))

    def pipeline(df: DataFrame) -> DataFrame:
        keyed(job, df, Marking())
        return df

    with pytest.raises(EvaluationError, match="no report from operator 'marks', range") as raised:
        job.run_epoch(data, pipeline)
    assert "nothing uses" in str(raised.value)
    assert list((tmp_path / "checkpoint/results/_staging").iterdir()) == []
    result = job.run_epoch(data, lambda df: keyed(job, df, Marking()))
    assert result.epoch == 1
    check_state(job, result.dataframe, dict.fromkeys("abcdefgh", 3))


def test_a_failed_job_is_evaluated_again(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    """Every attempt of a task dies in the first evaluation, none in the second."""
    job = make_job(parallelism=1)

    class Dying(Marking):
        def __init__(self, folder: Path) -> None:
            self.folder = folder

        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
            yield from super().process(key, row, ctx)
            if any(first_to(self.folder / str(i)) for i in range(4)):
                os.kill(os.getpid(), signal.SIGKILL)

    progress: list[EpochProgress] = []
    data = letters(spark, ("a", 1), ("b", 1))
    result = job.run_epoch(
        data, lambda df: keyed(job, df, Dying(tmp_path)), on_epoch=progress.append
    )
    assert progress[0].evaluations == 2
    check_state(job, result.dataframe, {"a": 1, "b": 1})
    assert not list((tmp_path / "checkpoint/results/_staging").iterdir())
