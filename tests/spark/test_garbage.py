"""What a worker keeps from the garbage collector, and what it does not."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

import pystate as ps
from pystate.spark.tasks import garbage

from .conftest import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]


class Looked(ps.KeyedProcessFunction):
    """Counts the objects of its worker: those that a collection looks at, and all others."""

    n = ps.ValueState("long")

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
        self.n.update(1)
        yield len(gc.get_objects()), gc.get_freeze_count()


def test_a_collection_between_tasks_looks_at_little(spark: SparkSession, make_job: MakeJob) -> None:
    frame = spark.range(100).selectExpr("id AS k")
    with make_job(parallelism=4) as job:
        for _ in range(4):
            result = job.run_epoch(
                frame,
                lambda df: job.key_by(df, "k", uid="op").process(Looked(), "seen int, aside int"),
            )
    found = rows_of(result.dataframe)
    assert len(found) == 100
    assert all(aside > 10 * seen for seen, aside in found), found


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that runs a task, and has set no module aside yet."""
    monkeypatch.setattr(pyspark.TaskContext, "_taskContext", object())
    monkeypatch.setattr(garbage, "_done", [])
    yield
    gc.unfreeze()


def count(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    calls: list[None] = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(None))
    return calls


class Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.mark.usefixtures("worker")
def test_cycles_that_a_task_makes_are_collected() -> None:
    garbage.set_modules_aside()
    assert gc.get_freeze_count() > 1000
    cycle = Cycle()
    gone = weakref.ref(cycle)
    garbage.set_modules_aside()
    del cycle
    gc.collect()
    assert gone() is None


@pytest.mark.usefixtures("worker")
def test_it_is_done_again_for_new_modules_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = count(monkeypatch)
    garbage.set_modules_aside()
    garbage.set_modules_aside()
    assert len(calls) == 1
    for number in range(100):
        monkeypatch.setitem(sys.modules, f"loaded_{number}", ModuleType(f"loaded_{number}"))
        garbage.set_modules_aside()
    assert len(calls) == garbage._MOST_TIMES


def test_a_process_without_a_task_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark.TaskContext, "_taskContext", None)
    monkeypatch.setattr(garbage, "_done", [])
    calls = count(monkeypatch)
    garbage.set_modules_aside()
    assert not calls
