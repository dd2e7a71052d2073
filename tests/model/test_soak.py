"""Churn beside a model: a short run always, and an hour under a control group's memory limit.

``pytest -m slow tests/model/test_soak.py``; ``PYSTATE_SOAK_SECONDS`` and ``PYSTATE_SOAK_SEED``
choose how long and where to begin. The program is `tests.model.soak`, which can be run by hand too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.control_groups import memory_limited
from tests.model import soak

ROOT = Path(__file__).parents[2]
GROUP_BYTES = 1200 * soak.MIB


def seed() -> int:
    return int(os.environ.get("PYSTATE_SOAK_SEED") or time.time_ns() % 2**32)


@pytest.mark.parametrize(
    ("home", "limit_mib"),
    [
        ("heap", 3),
        ("shared", 0),
        pytest.param("heap", 0, marks=pytest.mark.slow),
        pytest.param("shared", 3, marks=pytest.mark.slow),
    ],
)
def test_short(home: str, limit_mib: int) -> None:
    number = 1 if os.environ.get("CI") else seed()
    print(f"seed {number}")
    counts = soak.run(0.0, number, [home], limit_mib * soak.MIB, 1, moods=3)
    assert counts["epochs"] and counts["memory checks"] == 3
    if limit_mib:
        assert counts["limit reached"]


@pytest.mark.slow
def test_hour() -> None:
    seconds = float(os.environ.get("PYSTATE_SOAK_SECONDS", "3600"))
    command = [sys.executable, "-m", "tests.model.soak", "--seed", str(seed())]
    command += ["--seconds", str(seconds)]
    # Files in memory would count as the group's.
    environment = {**os.environ, "TMPDIR": "/var/tmp"}
    with memory_limited(GROUP_BYTES) as enter:
        subprocess.run(command, cwd=ROOT, preexec_fn=enter, env=environment, check=True)
