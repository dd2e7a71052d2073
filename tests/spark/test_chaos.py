"""Jobs drawn and disturbed at random: a short round always, and an hour.

``pytest -m slow tests/spark/test_chaos.py``; ``PYSTATE_CHAOS_SECONDS`` and ``PYSTATE_CHAOS_SEED``
choose how long and where to begin. The program is `tests.spark.chaos`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from tests.spark import chaos

from .conftest import ROOT


def seed() -> int:
    if os.environ.get("CI"):
        return 1
    return int(os.environ.get("PYSTATE_CHAOS_SEED") or time.time_ns() % 2**32)


def test_short() -> None:
    done = chaos.run(f"{seed()}/short", batches=5, disturbances=3)
    assert done["epochs"] == 5


@pytest.mark.slow
def test_hour() -> None:
    seconds = os.environ.get("PYSTATE_CHAOS_SECONDS", "3600")
    command = [sys.executable, "-m", "tests.spark.chaos", "--seed", str(seed())]
    subprocess.run([*command, "--seconds", seconds], cwd=ROOT, check=True)
