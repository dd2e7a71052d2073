"""The pause that a snapshot causes, and its size in bytes."""

from __future__ import annotations

import io
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from bench.keyed import fill, in_batches, long_backend, seal
from bench.measure import Row, Scale, Spread

if TYPE_CHECKING:
    from pystate import KeyedStateBackend

PAUSES = 15
"""Snapshots per point; the first three are warm-up."""


class Pauses(NamedTuple):
    """Pauses in microseconds."""

    snapshot: Spread
    step_after: Spread


def pauses(backend: KeyedStateBackend, n_keys: int, changed: int) -> Pauses:
    """Repeatedly change `changed` random rows, seal, and touch one row."""
    rng = np.random.default_rng(44)
    taken, after = [], []
    for _ in range(PAUSES):
        keys = pa.array(rng.choice(n_keys, changed, replace=False))
        for part in in_batches(keys):
            backend["n"].add(backend.keys(part), 1)
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
    return Pauses(Spread.of(taken[3:]), Spread.of(after[3:]))


def pause(scale: Scale) -> list[Row]:
    """The pause by state size, with fixed changes, and by number of changes, with a fixed size."""
    rows = []
    by_size = {}
    backend = long_backend("n")
    for n_keys in scale.state_sizes:
        fill_to(backend, n_keys)
        changed = min(scale.changed_rows[0], n_keys)
        by_size[n_keys] = measured = pauses(backend, n_keys, changed)
        rows.append(
            Row(
                "snapshot-pause",
                f"snapshot() of {changed:,} changed rows, {n_keys:,} keys",
                measured.snapshot,
                "µs",
                peer=f"at {scale.state_sizes[0]:,} keys",
                ratio=against(measured.snapshot, by_size[scale.state_sizes[0]].snapshot),
                expected=f"<= {100 + changed * 10 // 1_000} µs, flat",
                detail={"step_after_us": measured.step_after},
                series=f"{changed:,} rows changed",
                size=n_keys,
            )
        )
    n_keys = scale.state_sizes[-1]
    by_changes = {
        changed: pauses(backend, n_keys, changed)
        for changed in scale.changed_rows
        if changed <= n_keys
    }
    for changed, measured in by_changes.items():
        rows.append(
            Row(
                "snapshot-pause",
                f"snapshot(), by rows changed: {changed:,}, {n_keys:,} keys",
                measured.snapshot,
                "µs",
                series=f"{n_keys:,} keys, by rows changed",
                size=changed,
            )
        )
    changes = np.array(list(by_changes))
    medians = np.array([measured.snapshot.median for measured in by_changes.values()])
    slopes = np.diff(medians) / np.diff(changes) * 1e3
    rows.append(
        Row(
            "snapshot-pause",
            f"snapshot(), per row of {changes[0]:,} to {changes[-1]:,} changed, {n_keys:,} keys",
            Spread.of(slopes.tolist()),
            "ns/row",
            expected="<= 10 ns/row",
            detail={"pause_us": {str(k): v.snapshot for k, v in by_changes.items()}},
        )
    )
    steps = [measured.step_after for measured in (*by_size.values(), *by_changes.values())]
    rows.append(
        Row(
            "snapshot-pause",
            "the step after it, over all of the above",
            Spread.of([step.median for step in steps]),
            "µs",
            expected="<= 100 µs",
        )
    )
    return rows


def against(ours: Spread, theirs: Spread) -> Spread:
    """A ratio of medians, with the smallest and largest ratio that the two spreads allow."""
    return Spread(ours.median / theirs.median, ours.low / theirs.high, ours.high / theirs.low)


def fill_to(backend: KeyedStateBackend, n_keys: int) -> None:
    """Grow a table with the keys 0..m to `n_keys` keys."""
    there = backend.stats().keys
    for start in range(there, n_keys, 1_000_000):
        keys = pa.array(np.arange(start, min(start + 1_000_000, n_keys), dtype=np.int64))
        for part in in_batches(keys):
            backend["n"].add(backend.keys(part), 0)
        seal(backend)


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
        rows.append(
            Row(
                "delta-size",
                f"delta of {changed:,} of {n_keys:,} rows, {columns} of 6 long columns changed",
                Spread.of([info.raw_bytes / changed]),
                "bytes/row",
                peer=f"key + changed columns ({8 + 8 * columns})",
                ratio=Spread.of([info.raw_bytes / logical]),
                expected="<= 1.3x",
                detail={
                    "sealed_bytes": snapshot.raw_bytes,
                    "file_bytes": info.file_bytes,
                    "raw_bytes": info.raw_bytes,
                    "logical_bytes": logical,
                },
            )
        )
        snapshot.close()
    return rows
