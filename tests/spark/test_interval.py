"""Several batches per checkpoint: what is written when, and what a loss costs."""

from __future__ import annotations

import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import pystate as ps
from pystate.checkpoint.locations import open_storage
from pystate.checkpoint.manifest_log import read_head
from pystate.errors import InvalidArgumentError
from pystate.spark import EpochProgress, ParquetSink, Sink, foreach_epoch

from .conftest import Source, rows_of, wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]
EVERY_3 = ps.CheckpointOptions(interval=3)
AVAILABLE = {"availableNow": True}
NOTHING = slice(0)


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

    def start_and_hold(self, job: Job, **options: Any) -> Any:
        """Start a query that goes on, and return it when it holds all that there is."""
        query = self.start(job, trigger={"processingTime": "0 seconds"}, **options)
        self.wait_for_rows()
        return query

    def wait_for_rows(self) -> None:
        last = len(list(self.source.folder.glob("*.csv"))) - 1
        wait_for(lambda: self.steps and self.steps[-1].batch_id == last, "the batch", 120)

    def epochs(self) -> list[int]:
        return [step.epoch for step in self.steps]

    def check(self, job: Job, *, output: bool = True, twice: slice = NOTHING) -> None:
        """State and output are those of an undisturbed run, but for rows that come twice."""
        expected: dict[str, list[int]] = {}
        for k, v in self.rows:
            expected.setdefault(k, []).append(v)
        state = {row["k"]: row for row in job.read_state("c").to_pylist()}
        assert {k: row["n"] for k, row in state.items()} == {k: len(v) for k, v in expected.items()}
        assert {k: row["values"] for k, row in state.items()} == expected
        assert {k: dict(row["by"]) for k, row in state.items()} == {
            k: dict(Counter(v)) for k, v in expected.items()
        }
        numbered = [(k, v, expected[k].index(v) + 1) for k, v in self.rows]
        if output:
            assert published(self.folder / "out") == sorted(numbered + numbered[twice])
        assert published(self.folder / "side") == sorted(self.rows + self.rows[twice])


def published(folder: Path) -> list[tuple[Any, ...]]:
    """The rows of a folder's epochs: a query of Spark's would take longer."""
    table = pq.read_table(folder).drop_columns("epoch")
    return sorted(tuple(row.values()) for row in table.to_pylist())


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
    run.add(6)
    job, calls = run.job(), []
    files: list[dict[str, int]] = []
    held: list[int] = []

    def fails() -> None:
        calls.append(1)
        if len(calls) == 6:
            raise ValueError("a mistake in the pipeline")

    def look(_: EpochProgress) -> None:
        files.append(checkpoint_files(run.folder))
        held.append(held_files(run.folder))

    query = run.start(job, on_epoch=look, fails=fails)
    with pytest.raises(Exception, match="a mistake in the pipeline"):
        query.awaitTermination()
    assert run.epochs() == [1, 2, 2, 2, 3] and job.latest_epoch() == 2
    assert files[0] == files[1] == files[2] != files[3] == files[4]
    assert held[0] == 0 < held[1] < held[2]
    assert [step.rows_restored for step in run.steps] == [0] * 5
    assert [step.checkpoint_bytes > 0 for step in run.steps] == [True, False, False, True, False]
    job.close()
    run.add(1)
    again = run.job()
    run.start(again).awaitTermination()
    # Spark puts the files that it has planned before into one batch.
    assert again.latest_epoch() == 3
    run.check(again)
    again.close()
    # The next run takes every batch, and then there is nothing to set back to.
    run.add(1)
    every = run.job(checkpoints=ps.CheckpointOptions())
    run.start(every).awaitTermination()
    assert every.latest_epoch() == 4
    run.check(every)
    assert not (run.folder / "checkpoint" / "spark-rewinds").exists()


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


def test_a_table_that_is_lost_between_checkpoints(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """Before and after it, a sink of a user gets an epoch's rows at once."""
    run.add(5)
    job = run.job(checkpoints=ps.CheckpointOptions(interval=2))

    def lose(progress: EpochProgress) -> None:
        if progress.batch_id == 3:
            for application in (run.folder / "home").glob("pystate-*/*/*/"):
                shutil.rmtree(application)

    journal = run.folder / "journal"
    run.start(job, sink=Journal(journal), on_epoch=lose).awaitTermination()
    # Batch 3 was held, and is a checkpoint now, like 4.
    batches = [(step.batch_id, step.epoch) for step in run.steps]
    assert batches == [(0, 1), (1, 2), (2, 2), (3, 3), (3, 3), (4, 4)]
    assert "the 1 batches since then are computed again" in caplog.text
    found = {path.name: eval(path.read_text()) for path in journal.iterdir()}
    assert {epoch: len(rows) for epoch, rows in found.items()} == {"1": 4, "2": 8, "3": 4, "4": 4}
    assert sorted(row[1] for rows in found.values() for row in rows) == [v for _, v in run.rows]
    run.check(job, output=False)
    waiting = run.folder / "checkpoint" / "waiting"
    assert not [path for path in waiting.rglob("*") if path.is_file() and path.name != "_lock"]


def test_runs_savepoints_and_stops_between_checkpoints(run: Run, tmp_path: Path) -> None:
    run.add(2)
    job = run.job(checkpoints=ps.CheckpointOptions(interval=500))
    query = run.start_and_hold(job)
    assert job.latest_epoch() == 1
    # Spark keeps the position of the last checkpoint, and its option is as before.
    assert query._jsq.streamingQuery().minLogEntriesToMaintain() == 516
    assert run.spark.conf.get("spark.sql.streaming.minBatchesToRetain") == "100"
    head = read_head(open_storage(run.folder / "checkpoint"))
    assert head is not None and head.batch_id == 0
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
    assert rows_of(result.dataframe) == [("a", 1000, 3)]
    run.add(1)
    run.wait_for_rows()
    assert job.latest_epoch() == 3
    query.stop()
    assert job.latest_epoch() == 4 and not query.isActive
    run.add(1)
    run.start_and_hold(job)
    assert job.stop_with_savepoint(tmp_path / "stopped").epoch == 5
    assert run.epochs() == [1, 2, 4, 5]
    run.check(job)


def test_a_checkpoint_is_removed_with_its_query(run: Run) -> None:
    run.add(2)
    job = run.job(checkpoints=ps.CheckpointOptions(interval=100, on_cancel="delete"))
    run.start_and_hold(job, sink=None).stop()
    assert sorted(path.name for path in (run.folder / "checkpoint").iterdir()) == ["results"]
    found = published(run.folder / "checkpoint" / "results")
    assert sorted(v for _, v, _ in found) == [v for _, v in run.rows]


def test_output_at_least_once(run: Run, tmp_path: Path) -> None:
    run.add(4)
    options = ps.CheckpointOptions(interval=3, mode="at_least_once")
    with pytest.raises(InvalidArgumentError, match="several commits with the number of one epoch"):
        run.start(run.job(checkpoints=options), sink=Journal(tmp_path / "journal"))
    job, shown = run.job(checkpoints=options), []

    def look(progress: EpochProgress) -> None:
        shown.append((progress.epoch, len(published(run.folder / "out"))))
        if progress.batch_id == 1:
            raise ValueError("of a listener, which is only logged")

    fails = iter([False] * 3 + [True])

    def mistake() -> None:
        if next(fails, False):
            raise ValueError("a mistake in the pipeline")

    query = run.start(job, on_epoch=look, fails=mistake)
    with pytest.raises(Exception, match="a mistake in the pipeline"):
        query.awaitTermination()
    # Every batch is seen at once; the second and third ones are computed again.
    assert shown == [(1, 4), (2, 8), (2, 12)]
    run.start(job).awaitTermination()
    run.check(job, twice=slice(4, 12))
    functions: list[tuple[int, int]] = []
    sink = foreach_epoch(
        lambda df, epoch: functions.append((epoch, df.count())), at_least_once=True
    )
    run.add(2)
    run.start(run.job(checkpoints=options), sink=sink).awaitTermination()
    assert functions == [(3, 4), (3, 4)]


def test_state_that_cannot_be_written_for_a_while(run: Run) -> None:
    run.add(5)
    calls: list[Any] = []

    class Listener(ps.CheckpointListener):
        def on_checkpoint_complete(self, epoch: int) -> None:
            calls.append(epoch)

        def on_checkpoint_aborted(self, epoch: int) -> None:
            calls.append(("aborted", epoch))

    state, away = run.folder / "checkpoint" / "state", run.folder / "checkpoint" / "away"

    def breaks(progress: EpochProgress) -> None:
        if progress.batch_id in (0, 2):
            state.rename(away)
            state.write_text("this is no folder")
        elif progress.batch_id == 1:
            state.unlink()
            away.rename(state)

    job = run.job(checkpoints=ps.CheckpointOptions(tolerable_failures=1), listeners=[Listener()])
    query = run.start(job, on_epoch=breaks)
    with pytest.raises(Exception, match="its state was not written"):
        query.awaitTermination()
    # One more is not tolerated, and one that was written begins anew.
    assert run.epochs() == [1, 2, 2, 3]
    assert calls == [1, ("aborted", 2), 2, ("aborted", 3), ("aborted", 3)]
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


def test_a_rescale_and_a_lost_table_between_checkpoints(run: Run) -> None:
    run.add(5)
    job = run.job(parallelism=2, checkpoints=ps.CheckpointOptions(interval=2))

    def act(progress: EpochProgress) -> None:
        if progress.batch_id == 1:
            job.rescale(3)
        if progress.batch_id == 3:
            for table in (run.folder / "home").rglob("*.table"):
                table.unlink()

    run.start(job, on_epoch=act).awaitTermination()
    # The epoch ends with the ranges that it began with.
    ranges = [(step.epoch, step.operators[0].ranges) for step in run.steps]
    assert ranges == [(1, 2), (2, 2), (2, 2), (3, 3), (3, 3)]
    # Of the held deltas nothing is lost: the table is restored with them.
    assert [step.rows_restored > 0 for step in run.steps[1:]] == [False, False, False, True]
    run.check(job)
