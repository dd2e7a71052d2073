"""The time of an epoch that changes as many rows, while the state grows.

Beside what grows there is another one that stays as small as both began, and their epochs are timed
by turns: a process that runs for a while becomes faster, which is not the size's doing.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

import pystate as ps
from bench.keyed import in_batches
from bench.measure import Row, Scale, Spread, Timings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

    from pystate.spark import Job
    from pystate.store import Store

    Epoch = Callable[[int, int, int, int], float]
    """Seconds of an epoch that changes the keys ``(i * step + first) % n_keys`` of some rows.

    Its arguments are `n_keys`, `rows`, `first` and `step`.
    """

FILLED_AT_ONCE = 1_000_000
EPOCHS = 9
"""Timed epochs at each size, after some that are not."""
WARM_UP = 2
STEP = 7_919
"""Between two keys that an epoch changes; prime, so that none is met twice."""
SMALL, GROWN = "small", "grown"


def store(scale: Scale) -> list[Row]:
    """In one process: count, seal, write and publish, as `ps.open` does."""
    states = {"n": ps.ValueState("long", default=0)}
    with tempfile.TemporaryDirectory(prefix="pystate-bench-") as folder, ExitStack() as stack:
        given = {}
        for name in (SMALL, GROWN):
            opened = ps.open(Path(folder) / name, key="long", states=states)
            given[name] = in_store(stack.enter_context(opened))
        return rows_of("state-size", "store", scale, compared(scale, given, WARM_UP))


def in_store(opened: Store) -> Epoch:
    """Epochs of a store."""

    def epoch(n_keys: int, rows: int, first: int, step: int) -> float:
        keys = (np.arange(rows) * step + first) % n_keys
        batches = list(in_batches(pa.array(keys, pa.int64())))
        began = time.perf_counter()
        for batch in batches:
            opened["n"].add(opened.keys(batch), 1)
        opened.checkpoint()
        return time.perf_counter() - began

    return epoch


def job(scale: Scale) -> list[Row]:
    """On Spark: the whole epoch of a job that counts, with its output."""
    from bench.spark_jobs import new_job, session

    with session() as (spark, root), ExitStack() as stack:
        given = {}
        for name in (SMALL, GROWN):
            made = stack.enter_context(new_job(name, root / name))
            given[name] = in_job(spark, made, str(root / name / "out"))
        found = compared(scale, given, 5 * WARM_UP)
    return rows_of("spark-state-size", "job", scale, found)


def in_job(spark: SparkSession, made: Job, out: str) -> Epoch:
    """Epochs of a job."""
    from pystate.spark import ParquetSink

    def epoch(n_keys: int, rows: int, first: int, step: int) -> float:
        took: list[float] = []
        made.run_epoch(
            spark.range(rows).selectExpr(f"(id * {step} + {first}) % {n_keys} AS key"),
            lambda df: made.key_by(df, "key", uid="count").aggregate(n=ps.count()),
            sink=ParquetSink(out),
            on_epoch=lambda progress: took.append(progress.total_ms),
        )
        return took[0] / 1e3

    return epoch


def compared(scale: Scale, given: Mapping[str, Epoch], warm_up: int) -> dict[int, Timings]:
    """Seconds of the epochs at each size, by turns; the first ones warm up."""
    found: dict[int, Timings] = {}
    sizes = dict.fromkeys(given, 0)
    number = 0
    for n_keys in scale.grown_keys:
        for name, epoch in given.items():
            wanted = scale.grown_keys[0] if name == SMALL else n_keys
            for start in range(sizes[name], wanted, FILLED_AT_ONCE):
                epoch(wanted, min(FILLED_AT_ONCE, wanted - start), start, 1)
            sizes[name] = wanted
        taken: dict[str, list[float]] = {name: [] for name in given}
        for turn in range((WARM_UP if found else warm_up) + EPOCHS):
            for name, epoch in given.items():
                taken[name].append(epoch(sizes[name], scale.grown_rows, number + turn, STEP))
        number += turn + 1
        found[n_keys] = Timings({name: each[-EPOCHS:] for name, each in taken.items()})
    return found


def rows_of(question: str, what: str, scale: Scale, found: Mapping[int, Timings]) -> list[Row]:
    """The time at each size, against that of the small one in the same turn."""
    rows, smallest = [], scale.grown_keys[0]
    for n_keys, timings in found.items():
        text = f"{what}: an epoch that changes {scale.grown_rows:,} of {n_keys:,} keys"
        figure = Spread.of(1e3 * one for one in timings.seconds[GROWN])
        row = Row(question, text, figure, "ms", series=what, size=n_keys)
        if n_keys != smallest:
            peer = f"one of {smallest:,} keys, by turns"
            # Of times, and not of speeds.
            row = replace(row, peer=peer, ratio=timings.ratio(SMALL, GROWN), expected="<= 1.5x")
        rows.append(row)
    return rows
