"""Runs the programs of this folder by turns, each in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.measure import Row, Scale, Timings
from bench.results import NotInstalledError

if TYPE_CHECKING:
    from collections.abc import Mapping

    Program = tuple[str, str, tuple[str, ...]]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PEERS = ROOT / ".venv-peers"
FLINK = ROOT / ".venv-flink"
FILES = 8
AT_ONCE = "4"
"""Files of an epoch of pystate's; Flink reads on and on."""
FLINK_ROUNDS = 2
"""At most: each takes a minute."""
LIMIT_SECONDS = 1_200


def python_of(environment: Path) -> str:
    """The Python of an environment that `make bench-peers` makes, if it has."""
    python = environment / "bin" / "python"
    if not python.exists():
        raise NotInstalledError(f"{environment.name} is missing: `make bench-peers` makes it")
    return str(python)


def run(program: Program, *given: str) -> dict[str, Any]:
    """What a program prints."""
    python, file, more = program
    # Ours measure this checkout, and the others' environments do not know it.
    here = {"PYTHONPATH": str(ROOT)} if python == sys.executable else {}
    done = subprocess.run(
        [python, str(HERE / file), *given, *more],
        cwd=ROOT,
        env={**os.environ, **here},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{file} failed: {done.stderr[-2_000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def due(keys: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, int]:
    """What the counts must be, in short."""
    counts = np.bincount(keys)
    return {
        "keys": int(np.count_nonzero(counts)),
        "rows": len(keys),
        "squares": int((counts * counts).sum()),
    }


def compared(
    question: str, programs: Mapping[str, Program], rounds: int, keys: Any, given: Path
) -> list[Row]:
    """Run all by turns over the same rows, and check what they counted."""
    right = due(keys)
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    versions = {}
    for turn in range(rounds):
        for name, (python, file, more) in programs.items():
            state = given.parent / "state"
            first = ("check",) if "flink" in file and turn == 0 else ()
            found = run((python, file, (*more, *first)), str(given), str(state))
            shutil.rmtree(state, ignore_errors=True)
            counted = {what: found[what] for what in right if what in found}
            if counted and counted != right:
                raise AssertionError(f"{name} counted {counted}, and not {right}")
            seconds[name].append(found["seconds"])
            versions[name] = found["version"]
    return rows_of(question, seconds, versions, keys)


def programs(scale: Scale) -> list[Row]:
    """One process each: pystate, Bytewax and Pathway."""
    peers = python_of(PEERS)
    named: dict[str, Program] = {
        "pystate, a function by row": (sys.executable, "pystate_job.py", ("row",)),
        "pystate, a store by batches": (sys.executable, "pystate_job.py", ("batch",)),
        "Bytewax, stateful_map": (peers, "bytewax_job.py", ()),
        "Pathway, groupby.reduce": (peers, "pathway_job.py", ()),
    }
    keys = np.random.default_rng(42).integers(0, scale.other_keys, scale.other_rows)
    with tempfile.TemporaryDirectory(prefix="pystate-bench-") as root:
        given = Path(root) / "rows.npy"
        np.save(given, keys)
        return compared("others", named, scale.other_rounds, keys, given)


def flink(scale: Scale) -> list[Row]:
    """Streams on two cores, from files: pystate on Spark and Flink SQL, cold as they start."""
    python = python_of(FLINK)
    named: dict[str, Program] = {
        "pystate, aggregate on Spark": (sys.executable, "pystate_spark_job.py", (AT_ONCE,)),
        "Flink SQL, hashmap": (python, "flink_job.py", ("hashmap",)),
        "Flink SQL, RocksDB": (python, "flink_job.py", ("rocksdb",)),
    }
    keys = np.random.default_rng(43).integers(0, scale.spark_keys, scale.flink_rows)
    with tempfile.TemporaryDirectory(prefix="pystate-bench-") as root:
        given = Path(root) / "rows"
        given.mkdir()
        for i, part in enumerate(np.array_split(keys, FILES)):
            np.savetxt(given / f"{i:02}.csv", part, fmt="%d")
        return compared("flink", named, min(scale.other_rounds, FLINK_ROUNDS), keys, given)


def rows_of(
    question: str,
    seconds: Mapping[str, list[float]],
    versions: Mapping[str, str],
    keys: np.ndarray[Any, np.dtype[np.int64]],
) -> list[Row]:
    """Rates, and the lead of the first one over the others."""
    ours = next(iter(seconds))
    what = f"count, {len(keys):,} rows, {len(np.unique(keys)):,} keys"
    timings, rows = Timings(seconds), []
    for name in seconds:
        text, lead = f"{what}: {name} {versions[name]}", None if name == ours else (ours, name)
        rows.append(timings.row(name, question, text, len(keys), "k rows/s", lead=lead))
    return rows
