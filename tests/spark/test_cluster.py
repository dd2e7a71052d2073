"""An executor that is lost: what it had computed is computed again, and counts once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import python_path


@pytest.mark.slow
def test_a_stage_runs_again_after_a_lost_executor(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("cluster_job.py")), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": python_path()},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ran again after an executor was lost" in done.stderr
