"""What ends a streaming query, and what is said of it."""

from __future__ import annotations

import html
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.ownership import Ownership
from pystate.errors import FencedError, FunctionError, InvalidArgumentError

from .conftest import ROOT, Source, state_of, wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]


class Waiting(ps.KeyedProcessFunction):
    """Says that it is at work, and waits until it may go on."""

    n = ps.ValueState("long", default=0)

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def process(self, key: str, row: ps.functions.InputRow, ctx: ps.RuntimeContext) -> Any:
        """Count the row."""
        from tests.spark.conftest import wait_for

        (self.folder / f"began-{row.v}").touch()
        wait_for(lambda: not (self.folder / "held").exists(), "leave to go on", 300)
        self.n.update(self.n.value() + 1)
        yield key, self.n.value()


def waiting(job: Job, folder: Path) -> Callable[[DataFrame], DataFrame]:
    def pipeline(df: DataFrame) -> DataFrame:
        return job.key_by(df, "k", uid="counts").process(Waiting(folder), schema="k string, n long")

    return pipeline


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where the tasks say that they have begun; lets them end."""
    path = tmp_path / "signs"
    path.mkdir()
    (path / "held").touch()
    yield path
    (path / "held").unlink(missing_ok=True)


def stop_by_handle(query: Any, spark: SparkSession) -> None:
    query.stop()


def stop_by_session(query: Any, spark: SparkSession) -> None:
    [found] = spark.streams.active
    assert found.id == query.id
    found.stop()


@pytest.mark.parametrize("stop", [stop_by_handle, stop_by_session])
def test_to_stop_is_no_failure(
    spark: SparkSession,
    make_job: MakeJob,
    source: Source,
    folder: Path,
    stop: Callable[[Any, SparkSession], None],
) -> None:
    job = make_job()
    source.add("a,1")
    query = job.start(source.stream(), waiting(job, folder))
    wait_for((folder / "began-1").exists, "the row")
    assert query.isActive and job.failure is None
    stop(query, spark)
    assert not query.isActive
    assert (job.failure, query.exception()) == (None, None)
    query.awaitTermination()  # raises nothing either
    (folder / "held").unlink()
    # What was interrupted is computed by the next start.
    job.start(
        source.stream(), waiting(job, folder), trigger={"availableNow": True}
    ).awaitTermination()
    assert state_of(job, "counts") == {"a": 1} and job.failure is None


def test_the_failure_is_that_of_the_newest_query(
    make_job: MakeJob, source: Source, folder: Path
) -> None:
    job = make_job()
    source.add("a,1")
    (folder / "held").unlink()

    def fails(df: DataFrame) -> DataFrame:
        raise InvalidArgumentError("not today")

    query = job.start(source.stream(), fails, trigger={"availableNow": True})
    with pytest.raises(Exception, match="not today"):
        query.awaitTermination()
    assert isinstance(job.failure, InvalidArgumentError)
    query.stop()
    assert str(job.failure) == "not today"  # to stop what has failed changes nothing
    again = job.start(source.stream(), waiting(job, folder), trigger={"availableNow": True})
    again.awaitTermination()
    assert job.failure is None and query.exception() is not None


def test_a_late_word_of_an_old_query_is_not_the_new_ones(
    make_job: MakeJob, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pystate.spark.epochs.queries import QueryOutcome

    outcomes: list[Any] = []

    class Outcome(QueryOutcome):
        def __init__(self, job: str) -> None:
            super().__init__(job)
            outcomes.append(self)

    monkeypatch.setattr("pystate.spark.job.QueryOutcome", Outcome)
    job = make_job()
    source.add("a,1")
    for _ in range(2):
        query = job.start(
            source.stream(),
            lambda df: job.key_by(df, "k", uid="counts").aggregate(n=ps.count()),
            trigger={"availableNow": True},
        )
        query.awaitTermination()
    outcomes[-2].note(ValueError("too late"))
    assert job.failure is None
    assert repr(query) == f"<query of job {job.name!r}: ended>"  # its batch had been published
    assert f"Query of job {job.name!r}" in html.unescape(query._repr_html_())


PROGRAM = """
import logging, os, sys
from pathlib import Path

from pyspark.sql import SparkSession

import pystate as ps
from pystate.spark import Job
from tests.spark.conftest import wait_for

class Waiting(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process(self, key, row, ctx):
        import os
        from pathlib import Path
        from threading import Event
        Path("began.tmp").write_text(str(os.getpid()))
        Path("began.tmp").rename("began")
        Event().wait()

logging.basicConfig(level=logging.WARNING)
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false").getOrCreate()
)
level = "org.apache.spark.scheduler"
log4j = spark._jvm.org.apache.logging.log4j
before = str(log4j.LogManager.getLogger(level).getLevel())
job = Job("waits", "checkpoint", parallelism=2)
Path("input").mkdir()
Path("input/1.csv").write_text("a,1")
query = job.start(
    spark.readStream.schema("k string, v long").csv("input"),
    lambda df: job.key_by(df, "k", uid="u").process(Waiting(), schema="k string"))
wait_for(Path("began").exists, "the row")
worker = Path("/proc") / Path("began").read_text()
print("stopping", file=sys.stderr, flush=True)
query.stop()
wait_for(lambda: not worker.exists(), "the end of the worker")
wait_for(lambda: str(log4j.LogManager.getLogger(level).getLevel()) == before, "the log")
print("stopped", file=sys.stderr, flush=True)
assert log4j.LogManager.getContext(False).getConfiguration().getLoggerConfig(level).getName() == ""
assert before != "OFF"
print(before, job.failure, query.exception())
"""


def test_to_stop_prints_nothing(tmp_path: Path) -> None:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.endswith(" None None\n")
    lines = done.stderr.splitlines()
    assert lines[lines.index("stopping") + 1 : lines.index("stopped")] == []


DRAINED = """
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import pystate as ps
from pystate.spark import Job

class Fails(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process(self, key, row, ctx):
        ctx.register_event_time_timer(row["v"] + 1)

    def on_timer(self, key, timestamp, ctx):
        yield key, 1 // 0

spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false").getOrCreate()
)
job = Job("drained", "checkpoint", parallelism=1)
Path("input").mkdir()
Path("input/1.csv").write_text("a,1")
query = job.start(
    spark.readStream.schema("k string, v long").csv("input"),
    lambda df: job.key_by(df, "k", uid="u", event_time="v").process(Fails(), "k string, n long"),
    trigger={"availableNow": True}, drain=True)
print("waiting", file=sys.stderr, flush=True)
query.awaitTermination()
"""


def test_an_error_of_the_drain_is_printed_once(tmp_path: Path) -> None:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", DRAINED],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert done.returncode == 1, done.stderr[-4000:]
    lines = done.stderr.splitlines()
    printed = lines[lines.index("waiting") + 1 :]
    assert [line for line in printed if "Executor" in line or "\tat " in line] == []
    assert len([line for line in printed if line.startswith("Traceback")]) == 1
    place = "in Fails.on_timer of operator 'u': key 'a', timer 2, line 17 of <string>"
    assert printed[-1] == place
    assert "FunctionError: ZeroDivisionError" in printed[-2]


class Divides(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: ps.functions.InputRow, ctx: ps.RuntimeContext) -> Any:
        """Fail for one of the keys."""
        yield key, 1 // (row.v - 2)


def test_an_error_of_a_function_is_what_the_query_raises(make_job: MakeJob, source: Source) -> None:
    job = make_job()
    source.add("a,1", "b,2")
    query = job.start(
        source.stream(),
        lambda df: job.key_by(df, "k", uid="u").process(Divides(), "k string, n long"),
        trigger={"availableNow": True},
    )
    with pytest.raises(FunctionError) as raised:
        query.awaitTermination()
    line = Divides.process.__code__.co_firstlineno + 2
    assert str(raised.value).startswith("ZeroDivisionError: ")
    assert str(raised.value).endswith(
        f"in Divides.process of operator 'u': key 'b', line {line} of {__file__}"
    )
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert raised.value is job.failure and query.exception() is not None


def test_a_stream_that_another_driver_takes_over(make_job: MakeJob, source: Source) -> None:
    job = make_job()
    source.add("a,1")
    query = job.start(
        source.stream(), lambda df: job.key_by(df, "k", uid="u").aggregate(n=ps.count())
    )
    wait_for(lambda: job.latest_epoch() == 1, "the first epoch")
    storage = LocalStorage(job.checkpoint)
    owners = Path(job.checkpoint, "owners")
    assert len(list(owners.glob("*.stream"))) == 1
    new = Ownership(storage, "new")
    new.acquire()
    # The query has no batch by which it could notice that.
    with pytest.raises(FencedError, match="another owner"):
        query.awaitTermination()
    assert isinstance(job.failure, FencedError) and not query.isActive
    assert "another owner" in str(query.exception()) and job.latest_epoch() == 1
    wait_for(lambda: not list(owners.glob("*.stream")), "what tells the other driver so")
    with pytest.raises(FencedError):
        job.start(source.stream(), lambda df: df)
    source.add("a,1")
    again = make_job()
    again.start(
        source.stream(),
        lambda df: again.key_by(df, "k", uid="u").aggregate(n=ps.count()),
        trigger={"availableNow": True},
    ).awaitTermination()
    assert state_of(again, "u") == {"a": 2}
