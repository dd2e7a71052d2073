"""The same count on one core, and on twice as many until all of them.

In one process threads have a table each for their part of the keys, as the tasks of a job do;
Python's lock is free within a batch. A job on Spark, and the same job without state, run in
processes that may use so many cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bench.keyed import count, in_batches, long_backend, random_keys, seal
from bench.measure import SCALES, Row, Scale, Spread, Work, by_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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
        timings.row(
            str(n),
            "scaling",
            f"count and seal, {n_keys:,} keys, threads: {n}",
            scale.rows,
            lead=None if n == 1 else (str(n), "1"),
            peer="one thread",
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
        count(backend, in_batches(pa.array(np.arange(part, n_keys, parts))), 0)
        seal(backend)
        shares.append((backend, list(in_batches(pa.array(keys[keys % parts == part])))))

    def count_and_seal(share: tuple[KeyedStateBackend, list[pa.Array[Any]]]) -> None:
        count(*share)
        seal(share[0])

    return lambda: list(pool.map(count_and_seal, shares))


def jobs(scale: Scale) -> list[Row]:
    """On Spark; a job's rate on so many cores, against the median of that on one."""
    counts = core_counts()
    seconds: dict[int, dict[str, list[float]]] = {n: {} for n in counts}
    for _ in range(JOB_ROUNDS):
        for n in counts:
            command = [sys.executable, "-m", "bench.scaling", str(n), scale.name]
            done = subprocess.run(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True
            )
            if done.returncode:
                raise RuntimeError(f"the job on {n} cores failed: {done.stderr[-2_000:]}")
            for name, taken in json.loads(done.stdout.splitlines()[-1]).items():
                seconds[n].setdefault(name, []).extend(taken)
    found = []
    rows, keys = scale.spark_rows, scale.spark_keys
    for n in counts:
        for name, taken in seconds[n].items():
            what = f"count, {rows:,} rows a batch, {keys:,} keys: {name}, cores: {n}"
            rate = Spread.of(rows / one / 1e6 for one in taken)
            alone = Spread.of(seconds[1][name]).median
            ratio = None if n == 1 else Spread.of(alone / one for one in taken)
            peer, series = "" if n == 1 else "one core", f"on Spark: {name}"
            question, unit = "spark-scaling", "M rows/s"
            found.append(Row(question, what, rate, unit, peer, ratio, "", series, n))
    return found


def on_cores(n: int, scale: Scale) -> Mapping[str, Sequence[float]]:
    """Seconds of each batch, with and without state, on the first `n` cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:n])
    from bench import spark_aggregates as jobs
    from bench.spark_jobs import by_turns, plain, session

    rows, keys = scale.spark_rows, scale.spark_keys
    starts = {"without state": jobs.without_state(rows, keys), "pystate": jobs.counting()}
    write = partial(jobs.write_input, keys=keys)
    turns = plain(rows, jobs.WARM_UP, min(scale.spark_batches, JOB_BATCHES))
    with session(cores=n) as (spark, root):
        timings, _ = by_turns(spark, root, starts, jobs.COUNTED, write, turns)
    return timings.seconds


if __name__ == "__main__":
    print(json.dumps(on_cores(int(sys.argv[1]), SCALES[sys.argv[2]])))
