"""The same count on one core, and on twice as many until all of them.

In one process threads have a table each for their part of the keys, as the tasks of a job do;
Python's lock is free within a batch. A job on Spark, and the same job without state, run in
processes that may use so many cores.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bench.keyed import in_batches, long_backend, random_keys, seal
from bench.measure import SCALES, Row, Scale, Spread, Work, by_turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from pystate import KeyedStateBackend

ROOT = Path(__file__).parents[1]
JOB_ROUNDS = 2
"""Sessions for each number of cores, by turns."""
JOB_BATCHES = 3
"""Timed batches of a session, at most."""


def core_counts() -> list[int]:
    """One, and then twice as many."""
    cores = len(os.sched_getaffinity(0))
    return [1 << i for i in range(max(cores.bit_length(), 2)) if 1 << i <= max(cores, 2)]


def threads(scale: Scale) -> list[Row]:
    """In one process."""
    counts = core_counts()
    n_keys = scale.key_counts[0]
    pools = {n: ThreadPoolExecutor(n) for n in counts}
    works = {str(n): Work(counting(scale, n_keys, n, pools[n])) for n in counts}
    timings = by_turns(works, scale.rounds)
    for pool in pools.values():
        pool.shutdown()
    return [
        Row(
            "scaling",
            f"count and seal, {n_keys:,} keys, threads: {n}",
            timings.rate(str(n), scale.rows / 1e6),
            "M rows/s",
            peer="" if n == 1 else "one thread",
            ratio=None if n == 1 else timings.ratio(str(n), "1"),
            detail={"seconds": timings.seconds[str(n)]},
            series="in one process: count and seal",
            size=n,
        )
        for n in counts
    ]


def counting(
    scale: Scale, n_keys: int, parts: int, pool: ThreadPoolExecutor
) -> Callable[[], object]:
    """A count by `parts` threads at once."""
    keys = random_keys(n_keys, scale.rows)
    shares: list[tuple[KeyedStateBackend, list[pa.Array[Any]]]] = []
    for part in range(parts):
        backend = long_backend("n")
        own = pa.array(np.arange(part, n_keys, parts))
        for batch in in_batches(own):
            backend["n"].add(backend.keys(batch), 0)
        seal(backend)
        shares.append((backend, list(in_batches(pa.array(keys[keys % parts == part])))))

    def count(share: tuple[KeyedStateBackend, list[pa.Array[Any]]]) -> None:
        backend, batches = share
        for batch in batches:
            backend["n"].add(backend.keys(batch), 1)
        seal(backend)

    return lambda: list(pool.map(count, shares))


def jobs(scale: Scale) -> list[Row]:
    """On Spark."""
    counts = core_counts()
    seconds: dict[int, dict[str, list[float]]] = {n: {} for n in counts}
    for _ in range(JOB_ROUNDS):
        for n in counts:
            done = subprocess.run(
                [sys.executable, "-m", "bench.scaling", str(n), scale.name],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise RuntimeError(f"the job on {n} cores failed: {done.stderr[-2_000:]}")
            for name, taken in json.loads(done.stdout.splitlines()[-1]).items():
                seconds[n].setdefault(name, []).extend(taken)
    return [job_row(name, n, seconds, scale) for n in counts for name in seconds[n]]


def job_row(name: str, n: int, seconds: dict[int, dict[str, list[float]]], scale: Scale) -> Row:
    """A job's rate on so many cores, against that on one."""
    taken, alone = seconds[n][name], Spread.of(seconds[1][name]).median
    return Row(
        "spark-scaling",
        f"count, {scale.spark_rows:,} rows a batch, {scale.spark_keys:,} keys: {name}, cores: {n}",
        Spread.of([scale.spark_rows / one / 1e6 for one in taken]),
        "M rows/s",
        peer="" if n == 1 else "one core",
        ratio=None if n == 1 else Spread.of([alone / one for one in taken]),
        detail={"seconds": taken},
        series=f"on Spark: {name}",
        size=n,
    )


def on_cores(n: int, scale: Scale) -> dict[str, list[float]]:
    """Seconds of each batch, with and without state, on the first `n` cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:n])
    from bench import spark_jobs

    starts = {"without state": spark_jobs.start_without_state,
              "pystate": spark_jobs.start_with_pystate}  # fmt: skip
    seconds: dict[str, list[float]] = {name: [] for name in starts}
    root = Path(tempfile.mkdtemp(prefix="pystate-bench-"))
    try:
        with spark_jobs.session(root, cores=n) as spark:
            folders = {name: root / name.replace(" ", "-") for name in starts}
            queries = {
                name: start(spark_jobs.source(spark, folders[name]), scale, folders[name])
                for name, start in starts.items()
            }
            for turn in range(spark_jobs.WARM_UP + min(scale.spark_batches, JOB_BATCHES)):
                spark_jobs.write_input(spark, scale, root / str(turn))
                for name, query in queries.items():
                    spark_jobs.hand_over(root / str(turn), folders[name])
                    seconds[name].append(spark_jobs.batch_seconds(query, turn))
            for query in queries.values():
                query.stop()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return {name: taken[spark_jobs.WARM_UP :] for name, taken in seconds.items()}


if __name__ == "__main__":
    print(json.dumps(on_cores(int(sys.argv[1]), SCALES[sys.argv[2]])))
