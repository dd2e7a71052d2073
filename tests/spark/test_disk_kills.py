"""A job on disk that is killed five times, workers and drivers, is exact.

``pytest -m slow tests/spark/test_disk_kills.py``; ``PYSTATE_DISK_ROWS`` is how many rows an epoch
has, and ``PYSTATE_DISK_TEXT`` how long their texts are, in tens of bytes. The moments are drawn
from a seed that is printed; ``PYSTATE_DISK_SEED`` chooses it.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pyarrow.dataset as ds
import pytest

from pystate.checkpoint.storage import LocalStorage
from pystate.processor.state_reader import read_all
from pystate.tables.host import process_start

from . import disk_job
from .conftest import wait_for
from .processes import newest_epoch, running_driver, workers_of

EPOCHS, KILLS = 12, ("worker", "driver", "worker", "driver", "driver")


def running(folder: Path, rows: int, text: int) -> AbstractContextManager[subprocess.Popen[str]]:
    return running_driver(disk_job.__file__, *map(str, (folder, EPOCHS, rows, text)))


def kill_worker(process: subprocess.Popen[str], rng: random.Random) -> None:
    """Kill a worker that is there, at any moment of its life."""
    ended = time.monotonic() + 60
    while time.monotonic() < ended and process.poll() is None:
        for victim in workers_of(process.pid):
            started = process_start(victim)
            time.sleep(rng.uniform(0, 0.3))
            if started is not None and process_start(victim) == started:
                os.kill(victim, signal.SIGKILL)
                return
        time.sleep(0.01)
    raise AssertionError("there was no worker to kill")


@pytest.fixture
def folder() -> Iterator[Path]:
    """On a disk: files in memory would be no state on disk."""
    with tempfile.TemporaryDirectory(
        prefix="pystate-disk-", dir="/var/tmp", ignore_cleanup_errors=True
    ) as made:
        yield Path(made)


@pytest.mark.slow
def test_killed_five_times(folder: Path) -> None:
    rows = int(os.environ.get("PYSTATE_DISK_ROWS", "40000"))
    text = int(os.environ.get("PYSTATE_DISK_TEXT", "0"))
    seed = int(os.environ.get("PYSTATE_DISK_SEED") or time.time_ns() % 2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    moments = sorted(rng.sample(range(EPOCHS - 1), len(KILLS)))
    left = [*zip(KILLS, moments, strict=True)]
    while left:
        with running(folder, rows, text) as process:
            is_alive = True
            while left and is_alive:
                victim, moment = left.pop(0)
                wait_for(reached(folder, process, moment), f"epoch {moment}", 300)
                time.sleep(rng.uniform(0, 1.0))
                assert process.poll() is None, process.communicate()[0]
                if victim == "worker":
                    kill_worker(process, rng)
                else:
                    # The driver alone: its JVM ends by itself, as after a real crash.
                    process.kill()
                    is_alive = False
                print(f"{victim} killed after epoch {newest_epoch(folder)}")
            if is_alive:
                check_ended(process)
    with running(folder, rows, text) as process:
        check_ended(process)
    check(folder, rows, text)


def reached(folder: Path, process: subprocess.Popen[str], moment: int) -> Callable[[], bool]:
    return lambda: newest_epoch(folder) >= moment or process.poll() is not None


def check_ended(process: subprocess.Popen[str]) -> None:
    printed, _ = process.communicate(timeout=600)
    assert process.returncode == 0, printed


def check(folder: Path, rows: int, text: int) -> None:
    """What was kept and what was written are what a recomputation gives."""
    for epoch in range(1, EPOCHS + 1):
        sums, changed = disk_job.counts(epoch, rows)
        files = [*map(str, (folder / "out" / f"epoch={epoch}").glob("*.parquet"))]
        found = ds.dataset(files, format="parquet").to_table().sort_by("k")
        keys = np.flatnonzero(changed == epoch)
        assert np.array_equal(found["k"], keys), epoch
        assert np.array_equal(found["n"], sums[keys]), epoch
    table = read_all(LocalStorage(folder / "checkpoint"), "notes").sort_by("k")
    keys = np.flatnonzero(changed)
    assert np.array_equal(table["k"], keys)
    assert np.array_equal(table["n"], sums[keys])
    for key, note in zip(keys.tolist(), table["note"].to_pylist(), strict=True):
        assert note == disk_job.note_of(key, int(changed[key]), text)
