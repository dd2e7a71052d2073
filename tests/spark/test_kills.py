"""The flights job, killed with SIGKILL at any moment: the same output and state in the end.

``make test`` kills workers of a short run in this process, and a driver in test_driver_process.py.
The others are ``pytest -m slow tests/spark/test_kills.py``. The moments are drawn from a seed that
is printed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest

from pystate.checkpoint.storage import LocalStorage
from pystate.examples import _driver
from pystate.examples import flights as example
from pystate.processor.state_reader import read_all
from pystate.tables.host import process_start

from .conftest import wait_for
from .processes import newest_epoch, running_driver, workers_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHORT = ("--rows", "12000", "--epochs", "12")
LONG = ("--epochs", "16")


class Flights:
    """Runs of the example on one checkpoint."""

    def __init__(self, folder: Path, options: tuple[str, ...]) -> None:
        self.folder = folder
        self.arguments = [*options, "--checkpoint", str(folder)]

    def running(self) -> AbstractContextManager[subprocess.Popen[str]]:
        """Start the job; whatever is left of it at the end is killed."""
        return running_driver("-m", "pystate.examples.flights", *self.arguments)

    def finish(self) -> str:
        """Run to the end; returns what it printed."""
        with self.running() as process:
            printed, _ = process.communicate(timeout=600)
            assert process.returncode == 0, printed
        return printed

    @property
    def epoch(self) -> int:
        """The newest epoch that is published."""
        return newest_epoch(self.folder)

    def result(self) -> tuple[list[dict[str, Any]], dict[Any, Any]]:
        """All alerts, and the state of each aircraft."""
        files = sorted(map(str, (self.folder / "alerts").glob("epoch=*/*.parquet")))
        # Not the epochs: a stream that is killed before it has logged a batch may read two files
        # in the next one.
        alerts = ds.dataset(files, format="parquet").to_table().to_pylist()
        state = read_all(LocalStorage(self.folder / "checkpoint"), "aircraft").to_pylist()
        return sorted(alerts, key=lambda a: a["number"]), {row["tailnum"]: row for row in state}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], Flights]:
    """The result of a run that nobody disturbs, made once per set of options."""
    return {}


def compare(
    flights: Flights,
    undisturbed: dict[tuple[str, ...], Flights],
    options: tuple[str, ...],
    factory: pytest.TempPathFactory,
) -> None:
    """The run's alerts and state are the undisturbed run's, in the long form.

    The short one is content with the example's own comparison.
    """
    if options == SHORT:
        return
    if options not in undisturbed:
        undisturbed[options] = Flights(factory.mktemp("undisturbed"), options)
        assert "verified: " in undisturbed[options].finish()
    alerts, state = flights.result()
    wanted_alerts, wanted_state = undisturbed[options].result()
    for found, wanted in zip(alerts, wanted_alerts, strict=False):
        assert found == wanted
    assert len(alerts) == len(wanted_alerts)
    assert state.keys() == wanted_state.keys()
    for tailnum, row in state.items():
        assert row == wanted_state[tailnum]


@pytest.mark.slow
@pytest.mark.parametrize(("options", "kills"), [(SHORT, 1), (LONG, 10)])
def test_driver(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    undisturbed: dict[tuple[str, ...], Flights],
    options: tuple[str, ...],
    kills: int,
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    epochs = int(options[-1])
    # The first kill may come before anything is published, the others anywhere.
    moments = sorted(rng.randrange(epochs) for _ in range(kills))
    flights = Flights(tmp_path / "killed", options)
    for moment in moments:
        with flights.running() as process:
            wait_for(
                lambda m=moment, p=process: flights.epoch >= m or p.poll() is not None,
                f"epoch {moment}",
                300,
            )
            time.sleep(rng.uniform(0, 1.5))
            if process.poll() is None:
                # The driver alone: its JVM ends by itself, as after a real crash.
                process.kill()
                print(f"killed after epoch {flights.epoch}, asked for {moment}")
            process.wait()
            time.sleep(rng.choice((0.0, 3.0)))
    printed = flights.finish()
    assert "verified: " in printed
    compare(flights, undisturbed, options, tmp_path_factory)


def kill_workers(
    root: int, flights: Flights, most: int, going_on: Callable[[], bool], rng: random.Random
) -> int:
    """Kill workers below a process at any moment; returns how many."""
    killed = 0
    in_epoch: list[int] = []
    while going_on() and killed < most:
        workers = workers_of(root)
        # Four attempts of one task that die twice over are the job's failure, and rightly so.
        if workers and in_epoch.count(flights.epoch) < 2:
            in_epoch.append(flights.epoch)
            victim = rng.choice(workers)
            started = process_start(victim)
            time.sleep(rng.uniform(0, 0.3))
            if started is not None and process_start(victim) == started:
                os.kill(victim, signal.SIGKILL)
                killed += 1
        time.sleep(rng.uniform(0, 1.0))
    return killed


def test_workers_of_a_short_run(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    monkeypatch.setattr(_driver, "quiet_session", lambda *_: nullcontext(spark))
    flights = Flights(tmp_path / "killed", ("--rows", "4000", "--epochs", "4"))
    ended = threading.Event()

    def kill() -> int:
        root, rng = os.getpid(), random.Random(seed)
        return kill_workers(root, flights, 3, lambda: not ended.is_set(), rng)

    with ThreadPoolExecutor(1) as killer:
        killing = killer.submit(kill)
        try:
            assert example.main(flights.arguments) == 0
        finally:
            ended.set()
    assert killing.result() and flights.epoch == 4
    assert "verified: " in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(("options", "kills"), [(SHORT, 3), (LONG, 20)])
def test_workers(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    undisturbed: dict[tuple[str, ...], Flights],
    options: tuple[str, ...],
    kills: int,
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    flights = Flights(tmp_path / "killed", options)
    with flights.running() as process, ThreadPoolExecutor(1) as killer:
        killing = killer.submit(
            kill_workers,
            process.pid,
            flights,
            kills,
            lambda: process.poll() is None,
            random.Random(seed),
        )
        printed, _ = process.communicate(timeout=600)
    assert process.returncode == 0, printed
    assert killing.result()
    assert "verified: " in printed and "Traceback" not in printed and "\tat " not in printed
    compare(flights, undisturbed, options, tmp_path_factory)
