"""Several batches per checkpoint: what is written when, and what a loss costs."""

from __future__ import annotations

import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.checkpoint.locations import open_storage
from pystate.checkpoint.manifest_log import read_head
from pystate.errors import InvalidArgumentError
from pystate.spark import EpochProgress, ParquetSink, Sink, foreach_epoch

from .conftest import Source, rows_of, state_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]
EVERY_3 = ps.CheckpointOptions(interval=3)
AVAILABLE = {"availableNow": True}


class Counting(ps.KeyedProcessFunction):
    """Counts, in every kind of state, and emits each row once."""

    n = ps.ValueState("long", default=0)
    values = ps.ListState("long")
    by = ps.MapState("long", "long")

    def process(self, key: Any, row: Any, ctx: Any) -> Any:
        self.n.update(self.n.value() + 1)
        self.values.add(row["v"])
        self.by.put(row["v"], (self.by.get(row["v"]) or 0) + 1)
        ctx.output("seen", (key, row["v"]))
        yield key, row["v"], self.n.value()


def pipeline_of(job: Job, fails: Callable[[], None] = lambda: None) -> Any:
    def pipeline(df: DataFrame) -> DataFrame:
        fails()
        keyed = job.key_by(df, "k", uid="c", order_by="v")
        return keyed.process(
            Counting(), schema="k string, v long, n long", side_outputs={"seen": "k string, v long"}
        )

    return pipeline


class Run:
    """One job over a stream of files, and what must come of it."""

    def __init__(self, spark: SparkSession, make_job: MakeJob, folder: Path) -> None:
        self.spark = spark
        self.make_job = make_job
        self.folder = folder
        self.source = Source(spark, folder / "input", "k string, v long")
        self.rows: list[tuple[str, int]] = []
        self.steps: list[EpochProgress] = []

    def add(self, batches: int) -> None:
        for _ in range(batches):
            at = len(self.rows)
            rows = [("abcdefg"[(at + i) % 7], at + i) for i in range(4)]
            self.source.add(*(f"{k},{v}" for k, v in rows))
            self.rows += rows

    def job(self, **options: Any) -> Job:
        options.setdefault("checkpoints", EVERY_3)
        return self.make_job(table_home=self.folder / "home", **options)

    def start(self, job: Job, **options: Any) -> Any:
        options.setdefault("sink", ParquetSink(self.folder / "out"))
        sides = {"seen": ParquetSink(self.folder / "side")}
        fails = options.pop("fails", lambda: None)
        seen = options.pop("on_epoch", lambda _: None)

        def note(progress: EpochProgress) -> None:
            self.steps.append(progress)
            seen(progress)

        options.setdefault("trigger", AVAILABLE)
        return job.start(
            self.source.stream(),
            pipeline_of(job, fails),
            side_outputs=sides,
            on_epoch=note,
            **options,
        )

    def epochs(self) -> list[int]:
        return [step.epoch for step in self.steps]

    def check(self, job: Job, *, output: bool = True) -> None:
        """State and output are those of an undisturbed run."""
        expected: dict[str, list[int]] = {}
        for k, v in self.rows:
            expected.setdefault(k, []).append(v)
        found = {row["k"]: row for row in job.read_state("c").to_pylist()}
        assert {k: row["n"] for k, row in found.items()} == {k: len(v) for k, v in expected.items()}
        assert {k: row["values"] for k, row in found.items()} == expected
        assert {k: dict(row["by"]) for k, row in found.items()} == {
            k: dict(Counter(v)) for k, v in expected.items()
        }
        numbered = [(k, v, expected[k].index(v) + 1) for k, v in self.rows]
        if output:
            read = self.spark.read.parquet(str(self.folder / "out"))
            assert sorted(tuple(r) for r in read.drop("epoch").collect()) == sorted(numbered)
        side = self.spark.read.parquet(str(self.folder / "side"))
        assert sorted(tuple(r) for r in side.drop("epoch").collect()) == sorted(self.rows)


@pytest.fixture
def run(spark: SparkSession, make_job: MakeJob, tmp_path: Path) -> Run:
    return Run(spark, make_job, tmp_path)


def checkpoint_files(folder: Path) -> dict[str, int]:
    """All files of a checkpoint but Spark's, by size."""
    root = folder / "checkpoint"
    files = {
        os.path.relpath(os.path.join(parent, name), root): os.path.getsize(
            os.path.join(parent, name)
        )
        for parent, _, names in os.walk(root)
        for name in names
    }
    return {name: size for name, size in files.items() if not name.startswith("spark/")}


def held_files(folder: Path) -> int:
    return sum("held" in str(path) for path in (folder / "home").rglob("*.delta"))


def test_batches_between_checkpoints_write_nothing(run: Run) -> None:
    run.add(8)
    job = run.job()
    files: list[dict[str, int]] = []
    held: list[int] = []

    def look(_: EpochProgress) -> None:
        files.append(checkpoint_files(run.folder))
        held.append(held_files(run.folder))

    run.start(job, on_epoch=look).awaitTermination()
    assert run.epochs() == [1, 2, 2, 2, 3, 3, 3, 4]
    assert files[0] == files[1] == files[2] != files[3]
    assert held[0] == 0 < held[1] < held[2]
    assert [step.rows_restored for step in run.steps] == [0] * 8
    assert [step.checkpoint_bytes > 0 for step in run.steps[:4]] == [True, False, False, True]
    assert job.latest_epoch() == 4  # what was held at the end
    run.check(job)
    # The next run takes every batch, and then there is nothing to set back to.
    run.add(1)
    again = run.job(checkpoints=ps.CheckpointOptions())
    run.start(again).awaitTermination()
    assert again.latest_epoch() == 5
    run.check(again)
    assert not (run.folder / "checkpoint" / "spark-rewinds").exists()


def test_a_driver_that_fails_between_checkpoints(run: Run) -> None:
    run.add(7)
    job = run.job()
    calls = []

    def fails() -> None:
        calls.append(1)
        if len(calls) == 7:
            raise ValueError("a mistake in the pipeline")

    query = run.start(job, fails=fails)
    with pytest.raises(Exception, match="a mistake in the pipeline"):
        query.awaitTermination()
    assert run.epochs() == [1, 2, 2, 2, 3, 3] and job.latest_epoch() == 2
    job.close()
    run.add(2)
    again = run.job()
    run.start(again).awaitTermination()
    # Spark puts the files that it has planned before into one batch.
    assert job.latest_epoch() == 3
    run.check(again)


def test_a_table_that_is_lost_between_checkpoints(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    run.add(8)
    job = run.job()

    def lose(progress: EpochProgress) -> None:
        if progress.batch_id == 5:
            for application in (run.folder / "home").glob("pystate-*/*/*/"):
                shutil.rmtree(application)

    query = run.start(job, on_epoch=lose)
    query.awaitTermination()
    # Batches 4 and 5 were held, and are checkpoints now, like 6.
    batches = [(step.batch_id, step.epoch) for step in run.steps]
    assert batches == [
        (0, 1), (1, 2), (2, 2), (3, 2), (4, 3), (5, 3), (4, 3), (5, 4), (6, 5), (7, 6)
    ]  # fmt: skip
    assert "the 2 batches since then are computed again" in caplog.text
    run.check(job)


def test_a_query_that_is_stopped_takes_a_checkpoint(run: Run) -> None:
    run.add(3)
    job, held = run.job(checkpoints=ps.CheckpointOptions(interval=100)), threading.Event()

    def look(progress: EpochProgress) -> None:
        if progress.batch_id == 2:
            held.set()

    query = run.start(job, on_epoch=look, trigger={"processingTime": "0 seconds"})
    assert held.wait(120)
    assert job.latest_epoch() == 1
    query.stop()
    assert job.latest_epoch() == 2 and not query.isActive
    run.check(job)
    run.add(1)
    run.start(job).awaitTermination()
    assert run.epochs() == [1, 2, 2, 3]
    run.check(job)


def test_a_checkpoint_is_removed_with_its_query(run: Run) -> None:
    run.add(3)
    options = ps.CheckpointOptions(interval=100, on_cancel="delete")
    job, held = run.job(checkpoints=options), threading.Event()
    query = run.start(
        job,
        sink=None,
        on_epoch=lambda progress: held.set() if progress.batch_id == 2 else None,
        trigger={"processingTime": "0 seconds"},
    )
    assert held.wait(120)
    query.stop()
    assert sorted(path.name for path in (run.folder / "checkpoint").iterdir()) == ["results"]
    read = run.spark.read.parquet(str(run.folder / "checkpoint" / "results"))
    assert sorted(r.v for r in read.collect()) == [v for _, v in run.rows]


def test_runs_and_savepoints_between_checkpoints(run: Run, tmp_path: Path) -> None:
    run.add(3)
    job, at = run.job(checkpoints=ps.CheckpointOptions(interval=100)), threading.Event()

    def look(progress: EpochProgress) -> None:
        if progress.batch_id == 2:
            at.set()

    query = run.start(job, on_epoch=look, trigger={"processingTime": "0 seconds"})
    assert at.wait(120)
    # A savepoint holds the last checkpoint.
    assert job.savepoint(tmp_path / "savepoint").epoch == 1
    rows = run.spark.createDataFrame([("a", 1000)], "k string, v long")
    result = job.run_epoch(
        rows,
        pipeline_of(job),
        run_key="r",
        sink=ParquetSink(tmp_path / "out"),
        side_outputs={"seen": ParquetSink(tmp_path / "side")},
    )
    assert result.epoch == 3
    run.rows.append(("a", 1000))
    assert [row[:2] for row in rows_of(result.dataframe)] == [("a", 1000)]
    query.stop()
    run.check(job)


class Journal(Sink):
    """Keeps what it commits, by epoch; a second commit of one does nothing."""

    name = "journal"

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        os.makedirs(self.folder, exist_ok=True)

    def stage(self, batches: Any, task: Any) -> Any:
        return [[*row.values()] for batch in batches for row in batch.to_pylist()]

    def commit(self, epoch: int, transaction: Any) -> None:
        path = Path(self.folder, str(epoch))
        if not path.exists():
            path.write_text(repr([row for rows in transaction for row in rows]))


def test_sinks_of_users_get_an_epoch_at_once(run: Run, tmp_path: Path) -> None:
    run.add(5)
    job = run.job()
    journal = Journal(tmp_path / "journal")
    run.start(job, sink=journal).awaitTermination()
    found = {path.name: eval(path.read_text()) for path in (tmp_path / "journal").iterdir()}
    assert {epoch: len(rows) for epoch, rows in found.items()} == {"1": 4, "2": 12, "3": 4}
    assert sorted(row[1] for rows in found.values() for row in rows) == [v for _, v in run.rows]
    run.check(job, output=False)
    waiting = run.folder / "checkpoint" / "waiting"
    assert not [path for path in waiting.rglob("*") if path.is_file() and path.name != "_lock"]


def test_output_at_least_once(run: Run, tmp_path: Path) -> None:
    run.add(5)
    options = ps.CheckpointOptions(interval=3, mode="at_least_once")
    with pytest.raises(InvalidArgumentError, match="several commits with the number of one epoch"):
        run.start(run.job(checkpoints=options), sink=Journal(tmp_path / "journal"))
    job, shown = run.job(checkpoints=options), []

    def look(progress: EpochProgress) -> None:
        read = run.spark.read.parquet(str(run.folder / "out"))
        shown.append((progress.epoch, read.count()))
        if progress.batch_id == 2:
            raise ValueError("of a listener, which is only logged")

    fails = iter([False] * 4 + [True])

    def mistake() -> None:
        if next(fails, False):
            raise ValueError("a mistake in the pipeline")

    query = run.start(job, on_epoch=look, fails=mistake)
    with pytest.raises(Exception, match="a mistake in the pipeline"):
        query.awaitTermination()
    # Every batch is seen at once; the third and fourth ones are computed again.
    assert shown == [(1, 4), (2, 8), (2, 12), (2, 16)]
    run.start(job).awaitTermination()
    run.check(job)
    functions: list[tuple[int, int]] = []
    sink = foreach_epoch(
        lambda df, epoch: functions.append((epoch, df.count())), at_least_once=True
    )
    run.add(3)
    run.start(run.job(checkpoints=options), sink=sink).awaitTermination()
    assert functions == [(4, 4), (4, 4), (4, 4)]


def test_state_that_cannot_be_written_for_a_while(run: Run) -> None:
    run.add(6)
    calls: list[Any] = []

    class Listener(ps.CheckpointListener):
        def on_checkpoint_complete(self, epoch: int) -> None:
            calls.append(epoch)

        def on_checkpoint_aborted(self, epoch: int) -> None:
            calls.append(("aborted", epoch))

    state, away = run.folder / "checkpoint" / "state", run.folder / "checkpoint" / "away"

    def breaks(progress: EpochProgress) -> None:
        if progress.batch_id == 0:
            state.rename(away)
            state.write_text("this is no folder")
        elif progress.batch_id == 2:
            state.unlink()
            away.rename(state)

    options = ps.CheckpointOptions(tolerable_failures=2)
    job = run.job(checkpoints=options, listeners=[Listener()])
    run.start(job, on_epoch=breaks).awaitTermination()
    assert run.epochs() == [1, 2, 2, 2, 3, 4]
    assert calls == [1, ("aborted", 2), ("aborted", 2), 2, 3, 4]
    run.check(job)
    run.add(3)
    strict = run.job(checkpoints=ps.CheckpointOptions(tolerable_failures=1))

    def breaks_again(progress: EpochProgress) -> None:
        if progress.batch_id == 6:
            state.rename(away)
            state.write_text("this is no folder")

    query = run.start(strict, on_epoch=breaks_again)
    with pytest.raises(Exception, match="its state was not written"):
        query.awaitTermination()
    state.unlink()
    away.rename(state)
    run.start(run.job()).awaitTermination()
    run.check(job)


def test_a_checkpoint_by_time_while_the_input_is_idle(run: Run) -> None:
    run.add(1)
    complete = threading.Semaphore(0)

    class Listener(ps.CheckpointListener):
        def on_checkpoint_complete(self, epoch: int) -> None:
            complete.release()

    job = run.job(
        checkpoints=ps.CheckpointOptions(interval="100 ms", minimum_pause="1 second"),
        listeners=[Listener()],
    )
    query = run.start(job, trigger={"processingTime": "0 seconds"})
    assert complete.acquire(timeout=120)
    run.add(1)
    assert complete.acquire(timeout=120)
    assert job.latest_epoch() == 2
    query.stop()
    run.check(job)


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (
            lambda spark, path: (
                spark.readStream.format("socket").option("host", "localhost").option("port", 1)
            ).load(),
            "the source 'socket' is not known",
        ),
        (
            lambda spark, path: spark.readStream.option("cleanSource", "delete").text(path),
            "removes or moves the files",
        ),
        (
            lambda spark, path: spark.readStream.text(path).dropDuplicates(),
            r"state of Spark's own \(Deduplicate\)",
        ),
    ],
)
def test_streams_that_cannot_be_set_back(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, stream: Any, message: str
) -> None:
    job = make_job(checkpoints=EVERY_3)
    with pytest.raises(InvalidArgumentError, match=message):
        job.start(stream(spark, str(tmp_path)), lambda df: df)
    assert not (tmp_path / "checkpoint" / "spark").exists()


def test_spark_keeps_the_position_of_the_last_checkpoint(run: Run) -> None:
    run.add(1)
    job = run.job(checkpoints=ps.CheckpointOptions(interval=500))
    query = run.start(job)
    assert query._jsq.streamingQuery().minLogEntriesToMaintain() == 516
    query.awaitTermination()
    assert run.spark.conf.get("spark.sql.streaming.minBatchesToRetain") == "100"
    head = read_head(open_storage(run.folder / "checkpoint"))
    assert head is not None and head.batch_id == 0
    assert state_of(job, "c").keys() == {"a", "b", "c", "d"}


def test_a_rescale_between_checkpoints(run: Run) -> None:
    run.add(7)
    job = run.job(parallelism=2)

    def change(progress: EpochProgress) -> None:
        if progress.batch_id == 1:
            job.rescale(3)

    run.start(job, on_epoch=change).awaitTermination()
    # The epoch ends with the ranges that it began with.
    ranges = [(step.epoch, step.operators[0].ranges) for step in run.steps]
    assert ranges == [(1, 2), (2, 2), (2, 2), (3, 3), (3, 3), (3, 3), (4, 3)]
    run.check(job)


def test_a_table_that_is_lost_after_a_rescale(run: Run) -> None:
    """Of the held deltas nothing is lost: the table is restored with them."""
    run.add(6)
    job = run.job(parallelism=2)

    def act(progress: EpochProgress) -> None:
        if progress.batch_id == 0:
            job.rescale(3)
        if progress.batch_id == 2:
            for table in (run.folder / "home").rglob("*.table"):
                table.unlink()

    run.start(job, on_epoch=act).awaitTermination()
    assert run.epochs() == [1, 2, 2, 2, 3, 3]
    assert run.steps[3].rows_restored > 0
    run.check(job)


def test_a_stop_with_savepoint_between_checkpoints(run: Run, tmp_path: Path) -> None:
    run.add(3)
    job, at = run.job(checkpoints=ps.CheckpointOptions(interval=100)), threading.Event()

    def look(progress: EpochProgress) -> None:
        if progress.batch_id == 2:
            at.set()

    run.start(job, on_epoch=look, trigger={"processingTime": "0 seconds"})
    assert at.wait(120)
    assert job.stop_with_savepoint(tmp_path / "savepoint").epoch == 2
    run.check(job)
