"""Bytes per entry."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from bench.keyed import in_batches, long_backend, seal
from bench.measure import Row, Scale, Spread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pystate import KeyedStateBackend

STEP = 1.03
"""The ratio between successive key counts; small enough to include the worst of each growth."""


def key_counts(first: int, last: int) -> Iterator[int]:
    """Key counts from first to last, growing by `STEP`."""
    count = float(first)
    while count < last:
        yield int(count)
        count *= STEP
    yield last


def dict_entry_bytes(n_keys: int) -> float:
    """Bytes per key of a dict of tuples of two ints."""
    rows = {k: (k + 1_000, k + 1_000_000) for k in range(n_keys)}
    of_entries = sum(
        sys.getsizeof(k) + sys.getsizeof(v) + sum(map(sys.getsizeof, v)) for k, v in rows.items()
    )
    return (sys.getsizeof(rows) + of_entries) / n_keys


def per_entry(scale: Scale) -> list[Row]:
    """A long key and two longs, as the table grows; the figure is the worst of all sizes."""
    backend = long_backend("a", "b")
    first, last = scale.memory_keys
    entries, in_all = {}, {}
    there = 0
    for n_keys in key_counts(first, last):
        add(backend, there, n_keys)
        there = n_keys
        seal(backend)
        stats = backend.stats()
        entries[n_keys] = (stats.committed_bytes - stats.undo_bytes - stats.ring_bytes) / n_keys
        in_all[n_keys] = stats.committed_bytes / n_keys
    undo = []
    for _ in range(3):
        add(backend, 0, last)
        stats = backend.stats()
        undo.append((stats.undo_bytes + stats.ring_bytes) / last)
        snapshot = backend.seal()
        delta = snapshot.raw_bytes / last
        snapshot.close()
    worst = max(entries, key=entries.__getitem__)
    peer = dict_entry_bytes(first)
    return [
        Row(
            "memory",
            f"long key + two longs, worst of {first:,} to {last:,} keys ({worst:,})",
            Spread(entries[worst], min(entries.values()), entries[worst]),
            "bytes/entry",
            peer=f"dict of tuples ({peer:.0f} bytes)",
            ratio=Spread.of([entries[worst] / peer]),
            expected="<= 46 bytes",
            detail={"by_keys": {str(k): v for k, v in entries.items()}},
        ),
        Row(
            "memory",
            "the same and undo, epochs that add 3 %, median over the counts",
            Spread.of(list(in_all.values())),
            "bytes/entry",
            detail={"by_keys": {str(k): v for k, v in in_all.items()}},
        ),
        Row(
            "memory",
            "beside it at worst: undo, all rows changed in one epoch, two, three",
            Spread.of(undo),
            "bytes/entry",
        ),
        Row(
            "memory",
            "beside it while it is written: a snapshot, all rows changed",
            Spread.of([delta]),
            "bytes/entry",
        ),
    ]


def add(backend: KeyedStateBackend, first: int, last: int) -> None:
    """Count and sum over the keys first..last - 1."""
    for part in in_batches(pa.array(np.arange(first, last, dtype=np.int64))):
        batch = backend.keys(part)
        backend["a"].add(batch, 1)
        backend["b"].add(batch, 2)
