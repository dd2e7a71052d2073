"""The components of a graph, by a job that is killed at any moment: those that networkx finds.

``make test`` runs it in this process without kills, and kills the driver of another loop, in
test_driver_process.py. The kills are ``pytest -m slow tests/spark/test_loop_kills.py``, the long
form on two days of flights; their moments are drawn from a seed that is printed.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import networkx as nx
import pytest

from pystate.examples import _driver, components

from .conftest import python_path, wait_for
from .processes import newest_epoch, of_session, send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERIFIED = r"verified: [\d,]+ nodes in \d+ components, as networkx finds"


class Components:
    """Runs of the example on one checkpoint."""

    def __init__(self, folder: Path, options: list[str]) -> None:
        self._options = [*options, "--checkpoint", str(folder)]
        self._folder = folder

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[str]]:
        """Start the job; whatever is left of it at the end is killed."""
        process = subprocess.Popen(
            [sys.executable, "-m", "pystate.examples.components", *self._options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": python_path()},
            start_new_session=True,
        )
        try:
            yield process
        finally:
            for each in of_session(process.pid):
                send(each, signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    @property
    def epoch(self) -> int:
        """The newest epoch that is published."""
        return newest_epoch(self._folder)


def write_graph(path: Path, nodes: int, edges: int) -> Path:
    found = nx.gnm_random_graph(nodes, edges, seed=5).edges
    path.write_text("# a comment\n" + "".join(f"n{a} n{b}\n" for a, b in found))
    return path


def test_components_are_those_of_networkx(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(_driver, "quiet_session", lambda *_: nullcontext(spark))
    graph = write_graph(tmp_path / "graph", 12, 7)
    folder = tmp_path / "components"
    assert components.main([str(graph), "--parts", "1", "--checkpoint", str(folder)]) == 0
    assert re.search(VERIFIED, capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize(("days", "kills"), [(0, 1), (2, 20)], ids=["short", "long"])
def test_components_are_those_of_networkx_after_kills(
    tmp_path: Path, days: int, kills: int
) -> None:
    """The example itself compares them."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    if days:
        options, epochs = ["--days", str(days)], 50
    else:
        graph = write_graph(tmp_path / "graph", 30, 16)
        options, epochs = [str(graph), "--parts", "1"], 4
    job = Components(tmp_path / "killed", options)
    for moment in sorted(rng.randrange(epochs) for _ in range(kills)):
        # Starting takes longer than an epoch: most kills come after the first epoch of a start.
        least = max(moment, job.epoch + (rng.random() < 0.8))
        with job.running() as process:
            wait_for(
                lambda m=least, p=process: job.epoch >= m or p.poll() is not None,
                f"epoch {least}",
                300,
            )
            time.sleep(rng.uniform(0, 2.0))
            print(f"killed after epoch {job.epoch}, asked for {least}: {process.poll()}")
            if process.poll() is None and rng.random() < 0.5:
                # The driver alone: its JVM ends by itself, as after a real crash.
                process.kill()
                process.wait()
                time.sleep(rng.choice((0.0, 3.0)))
    with job.running() as process:
        printed, _ = process.communicate(timeout=600)
    assert process.returncode == 0, printed
    assert re.search(VERIFIED, printed)
