"""The same count by one thread and by several, each with a table of its own for its part of the keys.

So do the tasks of a job share the keys among themselves. Python's lock is free within a batch.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bench.keyed import in_batches, long_backend, random_keys, seal
from bench.measure import Row, Scale, Work, by_turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from pystate import KeyedStateBackend


def threads(scale: Scale) -> list[Row]:
    """One core, and then twice as many until all of them."""
    cores = len(os.sched_getaffinity(0))
    counts = [1 << i for i in range(max(cores.bit_length(), 2)) if 1 << i <= max(cores, 2)]
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
            expected="",
            detail={"seconds": timings.seconds[str(n)], "cores": cores},
            series="count and seal",
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
