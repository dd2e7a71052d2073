"""What ends a streaming query, and what is said of it.

What is printed is in test_driver_process.py.
"""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.ownership import Ownership
from pystate.errors import FencedError, FunctionError, InvalidArgumentError

from .conftest import Source, state_of, wait_for
from .gate import Gate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]


class Waiting(ps.KeyedProcessFunction):
    """Counts, if it may."""

    n = ps.ValueState("long", default=0)

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def process(self, key: str, row: ps.functions.InputRow, ctx: ps.RuntimeContext) -> Any:
        """Count the row."""
        self.gate.pass_through("row")
        self.n.update(self.n.value() + 1)
        yield key, self.n.value()


def counting(job: Job) -> Callable[[DataFrame], DataFrame]:
    return lambda df: job.key_by(df, "k", uid="counts").aggregate(n=ps.count())


def waiting(job: Job, gate: Gate) -> Callable[[DataFrame], DataFrame]:
    def pipeline(df: DataFrame) -> DataFrame:
        return job.key_by(df, "k", uid="counts").process(Waiting(gate), schema="k string, n long")

    return pipeline


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    with Gate(tmp_path / "gate") as made:
        yield made


def stop_by_handle(query: Any, spark: SparkSession) -> None:
    began = time.monotonic()
    query.stop()
    # The function waits for longer.
    assert time.monotonic() - began < 30


def stop_by_session(query: Any, spark: SparkSession) -> None:
    [found] = spark.streams.active
    assert found.id == query.id
    found.stop()


def test_to_stop_is_no_failure(
    spark: SparkSession, make_job: MakeJob, source: Source, gate: Gate, tmp_path: Path
) -> None:
    job = make_job()
    source.add("a,1")
    for stop in (stop_by_handle, stop_by_session):
        gate.close("row")
        query = job.start(source.stream(), waiting(job, gate))
        gate.wait_until_reached("row")
        assert query.isActive and job.failure is None
        stop(query, spark)
        assert not query.isActive
        assert (job.failure, query.exception()) == (None, None)
        query.awaitTermination()  # raises nothing either
        gate.open()
        assert not (tmp_path / "checkpoint" / "manifests").exists()
    # What was interrupted is computed by the next start.
    job.start(
        source.stream(), waiting(job, gate), trigger={"availableNow": True}
    ).awaitTermination()
    assert state_of(job, "counts") == {"a": 1} and job.failure is None


def test_the_failure_is_that_of_the_newest_query(make_job: MakeJob, source: Source) -> None:
    job = make_job()
    source.add("a,1")

    def fails(df: DataFrame) -> DataFrame:
        raise InvalidArgumentError("not today")

    query = job.start(source.stream(), fails, trigger={"availableNow": True})
    with pytest.raises(Exception, match="not today"):
        query.awaitTermination()
    assert isinstance(job.failure, InvalidArgumentError)
    query.stop()
    assert str(job.failure) == "not today"  # to stop what has failed changes nothing
    again = job.start(source.stream(), counting(job), trigger={"availableNow": True})
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
        query = job.start(source.stream(), counting(job), trigger={"availableNow": True})
        query.awaitTermination()
    outcomes[-2].note(ValueError("too late"))
    assert job.failure is None
    assert repr(query) == f"<query of job {job.name!r}: ended>"  # its batch had been published
    assert f"Query of job {job.name!r}" in html.unescape(query._repr_html_())


class Divides(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: ps.functions.InputRow, ctx: ps.RuntimeContext) -> Any:
        """Fail for one of the keys."""
        yield key, 1 // (row.v - 2)


def test_an_error_of_a_function_is_what_the_query_raises(
    make_job: MakeJob, source: Source, tmp_path: Path
) -> None:
    """The pipeline is called once: an epoch is not repeated for a mistake of the user's."""
    job, calls = make_job(), []
    source.add("a,1", "b,2")

    def pipeline(df: DataFrame) -> DataFrame:
        calls.append(df)
        return job.key_by(df, "k", uid="u").process(Divides(), "k string, n long")

    query = job.start(source.stream(), pipeline, trigger={"availableNow": True})
    with pytest.raises(FunctionError) as raised:
        query.awaitTermination()
    line = Divides.process.__code__.co_firstlineno + 2
    assert str(raised.value).startswith("ZeroDivisionError: ")
    assert str(raised.value).endswith(
        f"in Divides.process of operator 'u': key 'b', line {line} of {__file__}"
    )
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert raised.value is job.failure and query.exception() is not None
    assert len(calls) == 1 and not [*tmp_path.glob("checkpoint/state/**/*.delta")]


def test_a_stream_that_another_driver_takes_over(make_job: MakeJob, source: Source) -> None:
    job = make_job()
    source.add("a,1")
    query = job.start(source.stream(), counting(job))
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
    query = again.start(source.stream(), counting(again), trigger={"availableNow": True})
    query.awaitTermination()
    assert state_of(again, "counts") == {"a": 2}
