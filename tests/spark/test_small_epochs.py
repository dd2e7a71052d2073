"""Nothing grows with the number of epochs: thousands of small ones in 64 ranges.

``pytest -s -m slow tests/spark/test_small_epochs.py``; ``PYSTATE_SMALL_EPOCHS`` chooses how many.
The program is `tests.spark.small_epochs`.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from .conftest import ROOT


@pytest.mark.slow
def test_thousands() -> None:
    epochs = os.environ.get("PYSTATE_SMALL_EPOCHS", "3000")
    command = [sys.executable, "-m", "tests.spark.small_epochs", "--epochs", epochs]
    subprocess.run(command, cwd=ROOT, check=True)
