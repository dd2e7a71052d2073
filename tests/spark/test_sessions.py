"""The sessions job, cut into random epochs, its driver killed at any moment: the same sessions.

The log is made up; ``PYSTATE_ACCESS_LOG`` may name a real one. The moments are drawn from a seed
that is printed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from pystate.checkpoint.storage import LocalStorage
from pystate.examples._driver import published
from pystate.examples.sessions import parse, read_lines, recompute
from pystate.processor.state_reader import read_all
from pystate.spark import ParquetSink

from .conftest import python_path, wait_for
from .processes import newest_epoch


def made_up_log(lines: int) -> str:
    """Two days of requests, each written a few seconds after it began."""
    rng = random.Random(7)
    start = datetime(2015, 5, 17, tzinfo=timezone.utc)
    requests = []
    for _ in range(lines):
        at = start + timedelta(seconds=rng.randrange(172_800))
        requests.append((at + timedelta(seconds=rng.randrange(60)), at, rng.randrange(lines // 20)))
    return "".join(
        f"10.0.{visitor // 256}.{visitor % 256} - - [{at:%d/%b/%Y:%H:%M:%S +0000}] "
        f'"GET /{visitor} HTTP/1.1" 200 {visitor}\n'
        for _, at, visitor in sorted(requests)
    )


def start(path: str, folder: Path, epochs: int) -> subprocess.Popen[str]:
    options = [path, "--epochs", str(epochs), "--checkpoint", str(folder)]
    return subprocess.Popen(
        [sys.executable, "-m", "pystate.examples.sessions", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": python_path()},
        start_new_session=True,
    )


def sessions_in(folder: Path) -> list[tuple[Any, ...]]:
    """All sessions, those that have not ended included."""
    closed = [tuple(row.values()) for row in published(ParquetSink(folder / "sessions"))]
    state = read_all(LocalStorage(folder / "checkpoint"), "visitors").to_pylist()
    return closed + [
        (row["visitor"], first, *session.values())
        for row in state
        for first, session in row["open_sessions"]
    ]


@pytest.mark.slow
def test_the_same_sessions_through_kills(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    path = os.environ.get("PYSTATE_ACCESS_LOG")
    if path is None:
        path = str(tmp_path / "access.log")
        Path(path).write_text(made_up_log(5000))
    wanted = recompute([request for line in read_lines(path) if (request := parse(line))])
    folder, epochs = tmp_path / "killed", rng.randrange(8, 25)
    for moment in sorted(rng.randrange(epochs) for _ in range(4)):
        process = start(path, folder, epochs)
        try:
            wait_for(
                lambda m=moment, p=process: newest_epoch(folder) >= m or p.poll() is not None,
                f"epoch {moment} of {epochs}",
                300,
            )
            time.sleep(rng.uniform(0, 1.5))
            # The driver alone: its JVM ends by itself, as after a real crash.
            process.kill()
            process.wait()
            print(f"killed after epoch {newest_epoch(folder)} of {epochs}, asked for {moment}")
            time.sleep(rng.choice((0.0, 3.0)))
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
    process = start(path, folder, epochs)
    printed, _ = process.communicate(timeout=600)
    assert process.returncode == 0, printed
    assert "verified: " in printed and " 0 requests came too late" in printed, printed
    assert sorted(sessions_in(folder)) == sorted(wanted)
