"""The time of an epoch that changes as many rows, while the state grows."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

import pystate as ps
from bench.keyed import in_batches
from bench.measure import Row, Scale, Spread

if TYPE_CHECKING:
    from pystate.store import Store

FILLED_AT_ONCE = 1_000_000
EPOCHS = 9
"""Timed epochs at each size, after two that are not."""
WARM_UP = 2


def store(scale: Scale) -> list[Row]:
    """In one process: count, seal, write and publish, as `ps.open` does."""
    folder = Path(tempfile.mkdtemp(prefix="pystate-bench-"))
    found: dict[int, list[float]] = {}
    rng = np.random.default_rng(47)
    states = {"n": ps.ValueState("long", default=0)}
    try:
        with ps.open(folder / "store", key="long", states=states) as opened:
            there = 0
            for n_keys in scale.grown_keys:
                for start in range(there, n_keys, FILLED_AT_ONCE):
                    count(opened, np.arange(start, min(start + FILLED_AT_ONCE, n_keys)))
                there = n_keys
                taken = [
                    count(opened, rng.choice(n_keys, scale.grown_rows, replace=False))
                    for _ in range(WARM_UP + EPOCHS)
                ]
                found[n_keys] = taken[WARM_UP:]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return rows_of("state-size", "store", found, scale)


def count(opened: Store, keys: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float:
    """Milliseconds of an epoch."""
    batches = list(in_batches(pa.array(keys, pa.int64())))
    began = time.perf_counter()
    for batch in batches:
        opened["n"].add(opened.keys(batch), 1)
    opened.checkpoint()
    return (time.perf_counter() - began) * 1e3


def job(scale: Scale) -> list[Row]:
    """On Spark: the whole epoch of a job that counts, with its output."""
    from bench.spark_jobs import MAX_PARALLELISM, PARALLELISM, session
    from pystate.spark import Job, ParquetSink

    root = Path(tempfile.mkdtemp(prefix="pystate-bench-"))
    found: dict[int, list[float]] = {}
    try:
        with session(root) as spark:
            counting = Job(
                "bench",
                checkpoint=str(root / "checkpoint"),
                max_parallelism=MAX_PARALLELISM,
                parallelism=PARALLELISM,
            )
            sink = ParquetSink(str(root / "out"))

            def epoch(first: int, rows: int, n_keys: int, step: int) -> float:
                frame = spark.range(rows).selectExpr(f"(id * {step} + {first}) % {n_keys} AS key")
                made: list[float] = []
                counting.run_epoch(
                    frame,
                    lambda df: counting.key_by(df, "key", uid="count").aggregate(n=ps.count()),
                    sink=sink,
                    on_epoch=lambda progress: made.append(progress.total_ms),
                )
                return made[0]

            there = 0
            for n_keys in scale.grown_keys:
                for start in range(there, n_keys, FILLED_AT_ONCE):
                    epoch(start, min(FILLED_AT_ONCE, n_keys - start), n_keys, 1)
                there = n_keys
                taken = [
                    epoch(turn, scale.grown_rows, n_keys, 7919) for turn in range(WARM_UP + EPOCHS)
                ]
                found[n_keys] = taken[WARM_UP:]
            counting.close()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return rows_of("spark-state-size", "job", found, scale)


def rows_of(question: str, what: str, found: dict[int, list[float]], scale: Scale) -> list[Row]:
    """The time at each size, against that at the smallest."""
    smallest = Spread.of(found[scale.grown_keys[0]]).median
    rows = []
    for n_keys, ms in found.items():
        first = n_keys == scale.grown_keys[0]
        rows.append(
            Row(
                question,
                f"{what}: an epoch that changes {scale.grown_rows:,} of {n_keys:,} keys",
                Spread.of(ms),
                "ms",
                peer="" if first else f"at {scale.grown_keys[0]:,} keys",
                ratio=None if first else Spread.of([one / smallest for one in ms]),
                expected="" if first else "<= 1.5x",
                detail={"ms": ms},
                series=what,
                size=n_keys,
            )
        )
    return rows
