"""Runs the programs of this folder by turns, each in a process of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from bench.measure import Row, Scale, Spread

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OURS = "pystate, a function by row"
FLINK = ("hashmap", "rocksdb")


def environment(name: str) -> str:
    """The Python of an environment that `make bench-peers` makes.

    Raises
    ------
    FileNotFoundError
        If it is not there.
    """
    python = ROOT / name / "bin" / "python"
    if not python.exists():
        raise FileNotFoundError(f"{name} is missing: run `make bench-peers`, which makes it")
    return str(python)


def run(python: str, program: str, *arguments: str) -> tuple[float, int, str]:
    """Seconds, rows counted and the version that a program prints."""
    done = subprocess.run(
        [python, str(HERE / program), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1_200,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{program} failed: {done.stderr[-2_000:]}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return found["seconds"], found["total"], found["version"]


def programs(scale: Scale) -> list[Row]:
    """Rows per second of a count per key, without the start of the process."""
    peers = environment(".venv-peers")
    given = {
        OURS: (sys.executable, "pystate_job.py"),
        "Bytewax, stateful_map": (peers, "bytewax_job.py"),
        "Pathway, groupby.reduce": (peers, "pathway_job.py"),
    }
    keys = np.random.default_rng(42).integers(0, scale.other_keys, scale.other_rows)
    seconds: dict[str, list[float]] = {name: [] for name in given}
    labels = {}
    with tempfile.TemporaryDirectory(prefix="pystate-bench-") as root:
        rows = Path(root) / "rows.npy"
        np.save(rows, keys)
        for _ in range(scale.other_rounds):
            for name, (python, program) in given.items():
                state = Path(root) / "state"
                taken, total, version = run(python, program, str(rows), str(state))
                shutil.rmtree(state, ignore_errors=True)
                if total != len(keys):
                    raise AssertionError(f"{name} counted {total} of {len(keys)} rows")
                seconds[name].append(taken)
                labels[name] = f"{name} ({version})"
    return rows_of("others", seconds, labels, scale.other_rows, scale.other_keys)


def flink(scale: Scale) -> list[Row]:
    """Rows per second of Flink's own count, with a checkpoint each second, and its start."""
    python = environment(".venv-flink")
    n_keys = scale.spark_keys
    seconds: dict[str, list[float]] = {name: [] for name in FLINK}
    labels = {}
    for _ in range(scale.other_rounds):
        for backend in FLINK:
            with tempfile.TemporaryDirectory(prefix="pystate-bench-") as folder:
                taken, _, version = run(
                    python, "flink_job.py", str(scale.flink_rows), str(n_keys), backend, folder
                )
            seconds[backend].append(taken)
            labels[backend] = f"Flink SQL {version}, {backend}"
    return rows_of("flink", seconds, labels, scale.flink_rows, n_keys)


def rows_of(
    question: str, seconds: dict[str, list[float]], labels: dict[str, str], rows: int, keys: int
) -> list[Row]:
    """Rates, and pystate's lead where it ran by turns with them."""
    ours = seconds.get(OURS)
    return [
        Row(
            question,
            f"count, {rows:,} rows, {keys:,} keys: {labels[name]}",
            Spread.of([rows / one / 1e3 for one in taken]),
            "k rows/s",
            peer="" if ours is None or name == OURS else f"pystate / {labels[name]}",
            ratio=None
            if ours is None or name == OURS
            else Spread.of([theirs / mine for mine, theirs in zip(ours, taken, strict=True)]),
            detail={"seconds": taken},
        )
        for name, taken in seconds.items()
    ]
