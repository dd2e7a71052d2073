"""Merges in a Spark job."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
import pystate.spark.epochs.file_jobs
from pystate.checkpoint.refs import FileRef
from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.merge_policy import Run
from pystate.epochs.merges import PlannedMerge
from pystate.errors import CheckpointError
from pystate.spark.epochs.file_jobs import SpreadMerges, _distribute, _MergeAll

from .conftest import python_path
from .gate import Gate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def planned(storage: LocalStorage, number: int) -> PlannedMerge:
    """A merge of one file, in a folder of its own."""
    path = f"state/op{number}/00000-00127/00000001-0.delta"
    with ps.KeyedStateBackend("long", states={"n": ps.ValueState("long")}) as backend:
        backend["n"].update_all(backend.keys(range(number + 1)), range(number + 1))
        with storage.create(path) as out:
            ref = FileRef.from_info(path, backend.seal().write(out))
    output = path.replace("-0.delta", "-t1-ab.base")
    return PlannedMerge(
        f"op{number}", 0, 127, Run((ref,), "base", ref.id), output, frozenset({"n"}), ()
    )


def runner(spark: SparkSession, folder: Path) -> tuple[SpreadMerges, LocalStorage]:
    storage = LocalStorage(folder)
    merges = SpreadMerges(storage, "test")
    merges.context = spark.sparkContext
    return merges, storage


def test_local_mode_leaves_merges_to_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    merges, _ = runner(spark, tmp_path)
    assert merges.tasks() == 0
    merges.context = None
    assert merges.tasks() == 0


def test_each_merge_has_its_file_or_its_error(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merges, storage = runner(spark, tmp_path)
    monkeypatch.setattr(SpreadMerges, "tasks", lambda self: 2)
    plans = [planned(storage, number) for number in range(5)]
    storage.delete(plans[3].run.sources[0].path)
    before = spark.sparkContext.getLocalProperty("spark.jobGroup.id")
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(merges.run(plans)))
    thread.start()
    thread.join()
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") == before
    assert "op3" in found.pop(3)
    assert [(ref.path, ref.rows) for ref in found] == [
        (plan.output, number + 1) for number, plan in enumerate(plans) if number != 3
    ]
    assert {entry.path for entry in storage.list("state")} >= {ref.path for ref in found}


class Failing(_MergeAll):
    def __call__(self, lists: Iterator[Any]) -> Iterator[Any]:
        raise ValueError("no such luck")


class Slow(_MergeAll):
    """Runs until the test lets it end: a cancelled task's process is not killed here."""

    def __call__(self, lists: Iterator[Any]) -> Iterator[Any]:
        Gate(Path(self.storage.uri)).pass_through("merge")
        yield from super().__call__(lists)


def test_job_that_fails(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merges, storage = runner(spark, tmp_path)
    monkeypatch.setattr(pystate.spark.epochs.file_jobs, "_MergeAll", Failing)
    with (
        ThreadPoolExecutor(1) as thread,  # its jobs have a group, which stays that of the thread
        pytest.raises(CheckpointError, match="failed: ValueError: no such luck") as caught,
    ):
        thread.submit(merges.run, [planned(storage, 0)]).result()
    assert "\n" not in str(caught.value)
    merges.give_up()  # nothing runs
    with pytest.raises(CheckpointError, match="given up"):
        merges.run([planned(storage, 1)])


def test_giving_up_cancels_the_job(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merges, storage = runner(spark, tmp_path)
    monkeypatch.setattr(pystate.spark.epochs.file_jobs, "_MergeAll", Slow)
    errors: list[Exception] = []

    def run() -> None:
        try:
            merges.run([planned(storage, 0)])
        except CheckpointError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    with Gate(tmp_path) as gate:
        gate.close("merge")
        thread.start()
        gate.wait_until_reached("merge")
        merges.give_up()
        thread.join(60)
        assert not thread.is_alive() and "cancel" in str(errors[0])
        assert spark.range(3).count() == 3


def test_session_that_has_ended(tmp_path: Path) -> None:
    class Gone:
        _gateway = _jsc = None

    merges = SpreadMerges(LocalStorage(tmp_path), "test")
    merges.context = Gone()  # type: ignore[assignment]
    assert merges.tasks() == 0
    with pytest.raises(CheckpointError, match="tried again"):
        merges.run([planned(LocalStorage(tmp_path), 0)])
    merges.give_up()


def test_tasks_get_about_as_many_bytes(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    plans = [planned(storage, number) for number in (0, 2000, 1, 1000, 2, 1001)]
    lists = _distribute(plans, 2)
    assert sorted(place for merges in lists for place, _ in merges) == list(range(6))
    assert [place for place, _ in lists[0]][:1] == [1]
    assert {3, 5} <= {place for place, _ in lists[1]}
    assert len(_distribute(plans[:1], 4)) == 1


@pytest.mark.slow
def test_executors_merge_and_one_is_lost(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("merging_job.py")), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": python_path()},
    )
    assert done.returncode == 0, done.stdout + done.stderr
