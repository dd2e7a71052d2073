"""The pause that a snapshot causes, its size in bytes, and that of an entry in memory."""

from __future__ import annotations

import io
import sys
import time
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from bench.keyed import count, fill, in_batches, long_backend, seal
from bench.measure import Row, Scale, Spread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pystate import KeyedStateBackend

QUESTION = "snapshot-pause"
STEP = 1.03
"""The ratio between successive key counts; small enough to include the worst of each growth."""
PAUSES = 15
"""Snapshots per point; the first three are warm-up."""


def pauses(backend: KeyedStateBackend, n_keys: int, changed: int) -> tuple[Spread, Spread]:
    """Repeatedly change `changed` random rows, seal, and touch one row: microseconds of these."""
    rng = np.random.default_rng(44)
    taken, after = [], []
    for _ in range(PAUSES):
        keys = pa.array(rng.choice(n_keys, changed, replace=False))
        count(backend, in_batches(keys))
        start = time.perf_counter()
        snapshot = backend.seal()
        sealed = time.perf_counter()
        backend.set_current_key(0)
        backend["n"].update(backend["n"].value() + 1)
        stepped = time.perf_counter()
        if snapshot.rows < changed:
            raise AssertionError(f"{snapshot.rows} rows in a snapshot of {changed} changed ones")
        snapshot.close()
        taken.append((sealed - start) * 1e6)
        after.append((stepped - sealed) * 1e6)
    return Spread.of(taken[3:]), Spread.of(after[3:])


def pause(scale: Scale) -> list[Row]:
    """The pause by state size, with fixed changes, and by number of changes, with a fixed size."""
    rows, steps = [], []
    backend = long_backend("n")
    smallest = None
    for n_keys in scale.state_sizes:
        fill(backend, n_keys, "n", there=backend.stats().keys)
        changed = min(scale.changed_rows[0], n_keys)
        taken, after = pauses(backend, n_keys, changed)
        smallest = smallest or taken
        what = f"snapshot() of {changed:,} changed rows, {n_keys:,} keys"
        peer, ratio = f"at {scale.state_sizes[0]:,} keys", against(taken, smallest)
        goal, series = f"<= {100 + changed * 10 // 1_000} µs, flat", f"{changed:,} rows changed"
        rows.append(Row(QUESTION, what, taken, "µs", peer, ratio, goal, series, n_keys))
        steps.append(after.median)
    n_keys = scale.state_sizes[-1]
    by_changes = {}
    for changed in scale.changed_rows:
        if changed <= n_keys:
            by_changes[changed], after = pauses(backend, n_keys, changed)
            what = f"snapshot(), by rows changed: {changed:,}, {n_keys:,} keys"
            series = f"{n_keys:,} keys, by rows changed"
            row = Row(QUESTION, what, by_changes[changed], "µs", series=series, size=changed)
            rows.append(row)
            steps.append(after.median)
    changes = list(by_changes)
    medians = [taken.median for taken in by_changes.values()]
    slopes = Spread.of((np.diff(medians) / np.diff(changes) * 1e3).tolist())
    what = f"snapshot(), per row of {changes[0]:,} to {changes[-1]:,} changed, {n_keys:,} keys"
    after_all = "the step after it, over all of the above"
    return [
        *rows,
        Row(QUESTION, what, slopes, "ns/row", expected="<= 10 ns/row"),
        Row(QUESTION, after_all, Spread.of(steps), "µs", expected="<= 100 µs"),
    ]


def against(ours: Spread, theirs: Spread) -> Spread:
    """A ratio of medians, with the smallest and largest ratio that the two spreads allow."""
    return Spread(ours.median / theirs.median, ours.low / theirs.high, ours.high / theirs.low)


def bytes_written(scale: Scale) -> list[Row]:
    """The size: of six long columns all or one are changed, in a sparse part of the rows."""
    n_keys = scale.state_sizes[-2]
    names = [f"c{i}" for i in range(6)]
    backend = long_backend(*names)
    fill(backend, n_keys, *names)
    changed = n_keys // 20
    rng = np.random.default_rng(45)
    rows = []
    for columns in (6, 1):
        keys = pa.array(rng.choice(n_keys, changed, replace=False))
        values = pa.array(rng.integers(0, 1 << 40, changed))
        batch = backend.keys(keys)
        for name in names[:columns]:
            backend[name].update_all(batch, values)
        snapshot = backend.seal()
        out = io.BytesIO()
        info = snapshot.write(out)
        logical = changed * (8 + 8 * columns)
        what = f"delta of {changed:,} of {n_keys:,} rows, {columns} of 6 long columns changed"
        figure, ratio = Spread.of([info.raw_bytes / changed]), Spread.of([info.raw_bytes / logical])
        peer = f"key + changed columns ({8 + 8 * columns})"
        rows.append(Row("delta-size", what, figure, "bytes/row", peer, ratio, "<= 1.3x"))
        snapshot.close()
    return rows


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
    entries: dict[int, float] = {}
    in_all, undo, there = [], [], 0
    for n_keys in key_counts(first, last):
        add(backend, there, n_keys)
        there = n_keys
        seal(backend)
        stats = backend.stats()
        entries[n_keys] = (stats.committed_bytes - stats.undo_bytes - stats.ring_bytes) / n_keys
        in_all.append(stats.committed_bytes / n_keys)
    for _ in range(3):
        add(backend, 0, last)
        stats = backend.stats()
        undo.append((stats.undo_bytes + stats.ring_bytes) / last)
        snapshot = backend.seal()
        delta = snapshot.raw_bytes / last
        snapshot.close()
    worst = max(entries, key=entries.__getitem__)
    peer = dict_entry_bytes(first)
    what = f"long key + two longs, worst of {first:,} to {last:,} keys ({worst:,})"
    size = Spread(entries[worst], min(entries.values()), entries[worst])
    than = f"dict of tuples ({peer:.0f} bytes)", Spread.of([entries[worst] / peer]), "<= 46 bytes"
    others = {
        "the same and undo, epochs that add 3 %, median over the counts": in_all,
        "beside it at worst: undo, all rows changed in one epoch, two, three": undo,
        "beside it while it is written: a snapshot, all rows changed": [delta],
    }
    rows = [Row("memory", text, Spread.of(found), "bytes/entry") for text, found in others.items()]
    return [Row("memory", what, size, "bytes/entry", *than), *rows]


def add(backend: KeyedStateBackend, first: int, last: int) -> None:
    """Count and sum over the keys first..last - 1."""
    for part in in_batches(pa.array(np.arange(first, last, dtype=np.int64))):
        batch = backend.keys(part)
        backend["a"].add(batch, 1)
        backend["b"].add(batch, 2)
