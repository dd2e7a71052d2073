"""foreach_epoch: each epoch's rows and number go to a function, again after every crash."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

import pystate as ps
from pystate.errors import CheckpointError, InvalidArgumentError, SinkError
from pystate.spark import Job, ParquetSink, foreach_epoch

from .conftest import Source, python_path, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MakeJob = Callable[..., Job]


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pystate.spark.sinks.sink._registry", {})


class Counts(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
        self.n.update(self.n.value() + 1)
        if self.n.value() == 2:
            ctx.output("second", (key,))
        yield key, self.n.value()


class Seen:
    """The function: collects, and fails where it is told to."""

    def __init__(self, *fails: int) -> None:
        self.calls: list[tuple[int, list[tuple[Any, ...]]]] = []
        self.fails = list(fails)

    def __call__(self, df: DataFrame, epoch: int) -> None:
        # Any number of actions are the caller's affair: the rows are files by now.
        self.calls.append((epoch, rows_of(df)))
        assert df.count() == len(self.calls[-1][1])
        if epoch in self.fails:
            self.fails.remove(epoch)
            raise OSError("the database is away\nsecond line")


def counting(job: Job, **options: Any) -> Callable[[DataFrame], DataFrame]:
    def pipeline(df: DataFrame) -> DataFrame:
        keyed = job.key_by(df, "k", uid="counts")
        return keyed.process(
            Counts(), "k string, n long", side_outputs={"second": "k string"}, **options
        )

    return pipeline


def waiting(tmp_path: Path) -> list[str]:
    """Staged files that are not handed over."""
    folder = tmp_path / "checkpoint" / "foreach"
    return [str(path) for path in folder.glob("**/*") if path.name.startswith("part-")]


def test_each_epoch_once(
    spark: SparkSession, make_job: MakeJob, source: Source, tmp_path: Path
) -> None:
    main, second = Seen(), Seen()
    source.add("a,1", "b,1", "a,1")
    source.add("zz,1")
    job = make_job()
    sides = {"second": foreach_epoch(second, name="second")}
    sink = foreach_epoch(main)

    def pipeline(df: DataFrame) -> DataFrame:
        return counting(job)(df).where("k <> 'zz'")

    options: Any = {"trigger": {"availableNow": True}, "side_outputs": sides}
    job.start(source.stream(), pipeline, sink=sink, **options).awaitTermination()
    assert main.calls == [(1, [("a", 1), ("a", 2), ("b", 1)]), (2, [])]
    # Not called for an epoch without rows of the tag.
    assert second.calls == [(1, [("a",)])]
    assert waiting(tmp_path) == []
    notes = (tmp_path / "checkpoint" / "foreach" / "name=foreach_epoch").glob("_done-*")
    assert [path.name.split("-")[1] for path in notes] == ["2"]
    assert repr(sink).startswith("foreach_epoch(<")


def test_what_it_raises_comes_again_with_the_same_rows(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    seen, second = Seen(1), Seen()
    side = {"second": ParquetSink(tmp_path / "second")}

    def run(text: str, function: Any = seen) -> None:
        job = make_job()
        frame = spark.createDataFrame([(c,) for c in text], "k string")
        sink = foreach_epoch(function, name="a/b é")
        job.run_epoch(frame, counting(job), sink=sink, side_outputs=side)

    with pytest.raises(SinkError, match=r"'a/b é': commit failed: OSError: the .* away; ep"):
        run("ab")
    run("aa")
    first = [("a", 1), ("b", 1)]
    assert seen.calls == [(1, first), (1, first), (2, [("a", 2), ("a", 3)])]
    assert ParquetSink(tmp_path / "second").epochs() == [2]
    # Another of the epoch's outputs fails: what has returned is not called again.
    job = make_job()
    sinks_of_two = {"second": foreach_epoch(Seen(3), name="two")}
    main = foreach_epoch(second)
    frame = spark.createDataFrame([("b",)], "k string")
    with pytest.raises(SinkError, match="the database is away"):
        job.run_epoch(frame, counting(job), sink=main, side_outputs=sinks_of_two)
    job.run_epoch(frame, counting(job), sink=main, side_outputs=sinks_of_two)
    assert second.calls == [(3, [("b", 2)]), (4, [("b", 3)])]
    assert waiting(tmp_path) == []


def test_columns_that_no_file_could_have(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    found: list[Any] = []
    job = make_job()

    def pipeline(df: DataFrame) -> DataFrame:
        counts = counting(job)(df)
        value = F.struct(F.col("n").alias("a.b"), F.lit(None).cast("int").alias("c"))
        again = counts.withColumn("epoch", value)
        return again.select("k", "epoch", F.col("n").alias("K"), F.col("n").alias("x y;=`.")).alias(
            "any"
        )

    def function(df: DataFrame, epoch: int) -> None:
        found.append((df.columns, [f.dataType.simpleString() for f in df.schema], rows_of(df)))

    job.run_epoch(
        spark.createDataFrame([("a",)], "k string"),
        pipeline,
        sink=foreach_epoch(function),
        side_outputs={"second": foreach_epoch(function, name="second")},
    )
    columns = ["k", "epoch", "K", "x y;=`."]
    types = ["string", "struct<a.b:bigint,c:int>", "bigint", "bigint"]
    assert found == [(columns, types, [("a", (1, None), 1, 1)])]


def test_rows_that_are_lost(spark: SparkSession, make_job: MakeJob, tmp_path: Path) -> None:
    seen = Seen(1)

    def run() -> None:
        job = make_job()
        side = {"second": ParquetSink(tmp_path / "second")}
        frame = spark.createDataFrame([("a",)], "k string")
        job.run_epoch(frame, counting(job), sink=foreach_epoch(seen), side_outputs=side)

    with pytest.raises(SinkError):
        run()
    os.unlink(waiting(tmp_path)[0])
    with pytest.raises(SinkError, match=r"rows are lost: .*backup.*job.abandon_output\(1\)$"):
        run()
    assert make_job().abandon_output(1) == ["foreach_epoch"]
    run()
    assert [epoch for epoch, _ in seen.calls] == [1, 2] and waiting(tmp_path) == []


def test_a_moved_checkpoint(spark: SparkSession, make_job: MakeJob, tmp_path: Path) -> None:
    seen = Seen(1)
    side = {"second": ParquetSink(tmp_path / "second")}

    def run(job: Job) -> None:
        frame = spark.createDataFrame([("a",)], "k string")
        job.run_epoch(frame, counting(job), sink=foreach_epoch(seen), side_outputs=side)

    with pytest.raises(SinkError), make_job() as job:
        run(job)
    (tmp_path / "checkpoint").rename(tmp_path / "moved")
    run(make_job(checkpoint=tmp_path / "moved"))
    assert seen.calls == [(1, [("a", 1)]), (1, [("a", 1)]), (2, [("a", 2)])]


def test_functions_whose_work_nobody_would_do(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    async def later(df: Any, epoch: int) -> None: ...

    def rows(df: Any, epoch: int) -> Iterator[Any]:
        yield df

    wrong: list[tuple[Any, str]] = [
        ("f", r"^foreach_epoch takes a function .*, def f\(df, epoch\), not 'f'"),
        (None, "^foreach_epoch takes a function"),
        (Seen, "^foreach_epoch takes a function"),
        (later, "is a coroutine or a generator"),
        (rows, "is a coroutine or a generator"),
        (lambda df: None, r"is called with an epoch's rows .* it is f\(df\)$"),
        (lambda df, epoch, batch: None, r"it is f\(df, epoch, batch\)$"),
    ]
    for function, message in wrong:
        with pytest.raises(InvalidArgumentError, match=message):
            foreach_epoch(function)
    names = [(3, "name is a string, not 3"), ("", "name is a string"), ("é" * 99, "too long")]
    for name, message in names:
        with pytest.raises(InvalidArgumentError, match=f"^foreach_epoch: .*{message}"):
            foreach_epoch(print, name=name)  # type: ignore[arg-type]
    with pytest.raises(SinkError, match="works in a job alone"):
        foreach_epoch(print).commit(1, {})
    job = make_job()
    side = {"second": ParquetSink(tmp_path / "second")}
    frame = spark.createDataFrame([("a",)], "k string")
    hidden = foreach_epoch(lambda df, epoch: later(df, epoch))
    with pytest.raises(SinkError, match="the function returned a coroutine, which nobody runs"):
        job.run_epoch(frame, counting(job), sink=hidden, side_outputs=side)
    # It may not begin an epoch of its own job either, which waits for it.
    again = make_job()

    def recursive(df: DataFrame, epoch: int) -> None:
        again.run_epoch(df, counting(again), side_outputs=side)

    with pytest.raises(CheckpointError, match="an epoch is open in this thread"):
        again.run_epoch(frame, counting(again), sink=foreach_epoch(recursive), side_outputs=side)


class CrashError(BaseException):
    """Stands for the end of the driver."""


def crash(*_: object, **__: object) -> None:
    raise CrashError


def test_drivers_that_end(
    spark: SparkSession, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the manifest and the commit, in the call, after it, and before it is noted."""
    log: list[tuple[str, int, list[Any]]] = []

    def counts(df: DataFrame, job: Job) -> DataFrame:
        return job.key_by(df, "k", uid="counts").aggregate(n=ps.count())

    def drive(text: str, write: Callable[[DataFrame, int], None], *, ends: bool = True) -> None:
        frame = spark.createDataFrame([(c,) for c in text], "k string")
        job = make_job()
        with pytest.raises(CrashError) if ends else nullcontext():
            job.run_epoch(frame, counts, sink=foreach_epoch(write))
        job.close()

    def begins(df: DataFrame, epoch: int) -> None:
        log.append(("begin", epoch, rows_of(df)))
        crash()

    def write(df: DataFrame, epoch: int) -> None:
        for what in ("begin", "end"):
            log.append((what, epoch, rows_of(df)))

    first = [("a", 1), ("b", 1)]
    drive("ab", begins)
    assert log == [("begin", 1, first)]
    # The state has moved on: these are the rows of then.
    with monkeypatch.context() as patch:
        patch.setattr("pystate.spark.sinks.foreach.sweep_staging", crash)
        drive("zz", write)
    assert log[1:] == [("begin", 1, first), ("end", 1, first)]
    # The note is durable: it is not called again, though nobody has noted the epoch's commit.
    with monkeypatch.context() as patch:
        patch.setattr("pystate.checkpoint.manifest_log.History.note_committed", crash)
        drive("zz", write)
    assert len(log) == 3
    drive("a", write, ends=False)
    assert log[3:] == [("begin", 2, [("a", 2)]), ("end", 2, [("a", 2)])]


DRIVER = """
import json, os, signal, sys
from pyspark.sql import SparkSession
import pystate as ps
from pystate.spark import Job, foreach_epoch

folder, text, die = sys.argv[1:]
spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
         .config("spark.driver.host", "127.0.0.1").getOrCreate())
spark.sparkContext.setLogLevel("OFF")

class Counts(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)
    def process(self, key, row, ctx):
        self.n.update(self.n.value() + 1)
        yield key, self.n.value()

def pipeline(df, job):
    return job.key_by(df, "k", uid="counts").process(Counts(), "k string, n long")

def write(df, epoch):
    def log(what):
        with open(f"{folder}/log", "a") as file:
            file.write(f"{what} {epoch} {json.dumps(sorted(map(list, df.collect())))}\\n")
    log("begin")
    if die == "within":
        os.kill(os.getpid(), signal.SIGKILL)
    log("end")

sink = foreach_epoch(write)
if die == "after":
    import pystate.spark.sinks.foreach as foreach
    def sweep(root, epoch):
        os.kill(os.getpid(), signal.SIGKILL)
    foreach.sweep_staging = sweep
if die == "noted":
    from pystate.checkpoint.manifest_log import History
    History.note_committed = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
job = Job("job", f"{folder}/checkpoint", parallelism=1)
job.run_epoch(spark.createDataFrame([(c,) for c in text], "k string"), pipeline, sink=sink)
"""


def drive(folder: Path, text: str, die: str) -> list[str]:
    """Run a driver, which kills itself; returns what its function has logged."""
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(folder), text, die],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": python_path()},
        start_new_session=True,
    )
    assert done.returncode == (-signal.SIGKILL if die else 0), done.stderr[-3000:]
    log = folder / "log"
    return log.read_text().splitlines()


@pytest.mark.slow
def test_killed_drivers(tmp_path: Path) -> None:
    """The same by SIGKILL."""
    first = json.dumps([["a", 1], ["b", 1]])
    begun, ended = f"begin 1 {first}", f"end 1 {first}"
    assert drive(tmp_path, "ab", "within") == [begun]
    # The state has moved on: these are the rows of then.
    assert drive(tmp_path, "zz", "after") == [begun, begun, ended]
    # The note is durable: it is not called again, though nobody has noted the epoch's commit.
    assert drive(tmp_path, "zz", "noted") == [begun, begun, ended]
    log = drive(tmp_path, "a", "")[3:]
    assert log == [f'{what} 2 [["a", 2]]' for what in ("begin", "end")]
    assert not list((tmp_path / "checkpoint" / "foreach").glob("**/part-*"))
    assert not re.search("zz", "".join(log))
