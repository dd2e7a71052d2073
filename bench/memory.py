"""P8: bytes per entry."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from bench.keyed import in_batches, long_backend, seal
from bench.measure import Row, Scale, Spread

if TYPE_CHECKING:
    from collections.abc import Iterator

STEP = 1.03
"""The sweep's ratio of one key count to the next: fine enough to meet the worst of each growth."""


def key_counts(first: int, last: int) -> Iterator[int]:
    """From first to last by `STEP`."""
    count = float(first)
    while count < last:
        yield int(count)
        count *= STEP
    yield last


def dict_entry_bytes(n_keys: int) -> float:
    """What a dict of tuples of two ints takes per key."""
    rows = {k: (k + 1_000, k + 1_000_000) for k in range(n_keys)}
    of_entries = sum(
        sys.getsizeof(k) + sys.getsizeof(v) + sum(map(sys.getsizeof, v)) for k, v in rows.items()
    )
    return (sys.getsizeof(rows) + of_entries) / n_keys


def per_entry(scale: Scale) -> list[Row]:
    """A long key and two longs, as the table grows; the worst count is the figure."""
    backend = long_backend("a", "b")
    sizes, undo, logical = {}, {}, {}
    there = 0
    for n_keys in key_counts(*scale.memory_keys):
        for part in in_batches(pa.array(np.arange(there, n_keys, dtype=np.int64))):
            batch = backend.keys(part)
            backend["a"].add(batch, 1)
            backend["b"].add(batch, 2)
        there = n_keys
        seal(backend)
        stats = backend.stats()
        undo[n_keys] = (stats.undo_bytes + stats.ring_bytes) / n_keys
        sizes[n_keys] = (stats.committed_bytes - stats.undo_bytes - stats.ring_bytes) / n_keys
        logical[n_keys] = stats.committed_bytes / n_keys
    worst = max(sizes, key=sizes.__getitem__)
    first, last = scale.memory_keys
    ours = Spread(sizes[worst], min(sizes.values()), sizes[worst])
    peer = dict_entry_bytes(first)
    return [
        Row(
            "P8",
            f"long key + two longs, worst of {first:,} to {last:,} keys ({worst:,})",
            ours,
            "bytes/entry",
            peer=f"dict of tuples ({peer:.0f} bytes)",
            ratio=Spread.of([sizes[worst] / peer]),
            expected="<= 52 (goal 46)",
            detail={"by_keys": {str(k): v for k, v in sizes.items()}},
        ),
        Row(
            "P8",
            "beside it: undo and rings of reusable memory, after a 3 % insert",
            Spread.of(list(undo.values())),
            "bytes/entry",
            detail={"by_keys": {str(k): v for k, v in undo.items()}},
        ),
        Row("P8", "all committed memory", Spread.of(list(logical.values())), "bytes/entry"),
    ]
