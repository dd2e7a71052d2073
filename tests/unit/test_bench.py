"""The benchmarks run, at sizes that say nothing about speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYSTATE_BENCH_SCALE": "smoke"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def questions(folder: Path) -> set[str]:
    [file] = folder.glob("*.json")
    rows = json.loads(file.read_text())["rows"]
    for row in rows:
        assert row["figure"]["low"] <= row["figure"]["median"] <= row["figure"]["high"], row
    return {row["question"] for row in rows}


def test_every_question_is_answered(tmp_path: Path) -> None:
    table = run("bench", "--output", str(tmp_path))
    assert questions(tmp_path) == {
        "count",
        "one-key",
        "writes",
        "snapshot-pause",
        "delta-size",
        "files",
        "attach",
        "memory",
        "collections",
        "growth",
        "rows",
        "windows",
    }
    for question in questions(tmp_path):
        assert f"\n{question}  " in table


def test_the_workloads_run_under_pytest_benchmark() -> None:
    pytest.importorskip("pytest_benchmark")
    assert "passed" in run("pytest", "bench", "-q", "--benchmark-disable", "-p", "no:cacheprovider")


@pytest.mark.slow
def test_the_jobs_on_spark(tmp_path: Path) -> None:
    run("bench", "--spark", "--output", str(tmp_path))
    assert questions(tmp_path) == {"spark-count", "spark-function", "nexmark"}


def test_an_unknown_question_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--only", "counts"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2
    assert b"no such question: counts" in done.stderr
