"""What only a driver in a process of its own shows: what it prints, and what it leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from . import driver_program
from .conftest import python_path, rows_of, state_of, wait_for
from .driver_program import HOME, INPUT, SCHEMA, Fails, counting
from .processes import tables_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the program ran, to its end; what it printed is in a file."""
    path = tmp_path_factory.mktemp("driver")
    with (path / "printed").open("wb") as printed:
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.driver_program"],
            cwd=path,
            stdout=printed,
            stderr=printed,
            env={**os.environ, "PYTHONPATH": python_path(), "PYSPARK_PYTHON": sys.executable},
            timeout=300,
        )
    assert done.returncode == -signal.SIGKILL, (path / "printed").read_text()[-4000:]
    return path


def printed_between(folder: Path, begin: str, end: str) -> list[str]:
    lines = (folder / "printed").read_text().splitlines()
    return lines[lines.index(begin) + 1 : lines.index(end)]


def test_to_stop_a_query_prints_nothing(folder: Path) -> None:
    assert printed_between(folder, "stopping", "stopped") == []


def test_an_error_of_the_drain_is_printed_once(folder: Path) -> None:
    printed = printed_between(folder, "failing", "failed")
    assert [line for line in printed if "Executor" in line or "\tat " in line] == []
    assert len([line for line in printed if line.startswith("Traceback")]) == 1
    line = Fails.on_timer.__code__.co_firstlineno + 2
    assert printed[-1] == (
        f"in Fails.on_timer of operator 'u': key 'a', timer 2, line {line} of "
        f"{driver_program.__file__}"
    )
    assert "FunctionError: ZeroDivisionError" in printed[-2]


def test_what_a_killed_driver_leaves(folder: Path, spark: SparkSession, make_job: MakeJob) -> None:
    """No tables; and the next driver goes on with the rounds of the loop, each of them once."""
    wait_for(lambda: not tables_in(folder / HOME), "the janitor")
    job = make_job(checkpoint=folder / "killed", parallelism=3)
    data = spark.createDataFrame([*INPUT.items()], SCHEMA)
    results = job.run_until_empty(data, counting(job), run_key="a")
    assert [result.already_done for result in results[:2]] == [True, True]
    assert [rows_of(result.dataframe.select("k", "n")) for result in results] == [
        [(k, n) for k, v in INPUT.items() if n <= v + 1] for n in range(1, 5)
    ]
    assert state_of(job, "counts") == {k: v + 1 for k, v in INPUT.items()}
    assert job.in_flight() == {"again": 0}
