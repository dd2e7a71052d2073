"""The time of an epoch that changes as many rows, while the state grows.

Beside what grows there is another one that stays as small as both began, and their epochs are timed
by turns: a process that runs for a while becomes faster, which is not the size's doing.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

import pystate as ps
from bench.keyed import in_batches
from bench.measure import Row, Scale, Spread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pystate.store import Store

    Epoch = Callable[[int, int, int, int], float]
    """Milliseconds of an epoch that changes the keys ``(i * step + first) % n_keys`` of some rows.

    Its arguments are `n_keys`, `rows`, `first` and `step`.
    """

FILLED_AT_ONCE = 1_000_000
EPOCHS = 9
"""Timed epochs at each size, after some that are not."""
WARM_UP = 2
STEP = 7_919
"""Between two keys that an epoch changes; prime, so that none is met twice."""


def store(scale: Scale) -> list[Row]:
    """In one process: count, seal, write and publish, as `ps.open` does."""
    folder = Path(tempfile.mkdtemp(prefix="pystate-bench-"))
    states = {"n": ps.ValueState("long", default=0)}
    try:
        with ExitStack() as stack:
            given = {
                name: counting(
                    stack.enter_context(ps.open(folder / name, key="long", states=states))
                )
                for name in ("small", "grown")
            }
            return rows_of("state-size", "store", scale, compared(scale, given, WARM_UP))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def counting(opened: Store) -> Epoch:
    """Epochs of a store."""

    def epoch(n_keys: int, rows: int, first: int, step: int) -> float:
        keys = (np.arange(rows) * step + first) % n_keys
        batches = list(in_batches(pa.array(keys, pa.int64())))
        began = time.perf_counter()
        for batch in batches:
            opened["n"].add(opened.keys(batch), 1)
        opened.checkpoint()
        return (time.perf_counter() - began) * 1e3

    return epoch


def job(scale: Scale) -> list[Row]:
    """On Spark: the whole epoch of a job that counts, with its output."""
    from bench.spark_jobs import MAX_PARALLELISM, PARALLELISM, session
    from pystate.spark import Job, ParquetSink

    root = Path(tempfile.mkdtemp(prefix="pystate-bench-"))
    try:
        with session(root) as spark, ExitStack() as stack:

            def counting(name: str) -> Epoch:
                made = Job(
                    name,
                    checkpoint=str(root / name / "checkpoint"),
                    max_parallelism=MAX_PARALLELISM,
                    parallelism=PARALLELISM,
                )
                stack.callback(made.close)
                sink = ParquetSink(str(root / name / "out"))

                def epoch(n_keys: int, rows: int, first: int, step: int) -> float:
                    frame = spark.range(rows).selectExpr(
                        f"(id * {step} + {first}) % {n_keys} AS key"
                    )
                    took: list[float] = []
                    made.run_epoch(
                        frame,
                        lambda df: made.key_by(df, "key", uid="count").aggregate(n=ps.count()),
                        sink=sink,
                        on_epoch=lambda progress: took.append(progress.total_ms),
                    )
                    return took[0]

                return epoch

            given = {name: counting(name) for name in ("small", "grown")}
            found = compared(scale, given, 5 * WARM_UP)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return rows_of("spark-state-size", "job", scale, found)


def compared(
    scale: Scale, given: Mapping[str, Epoch], warm_up: int
) -> dict[int, dict[str, list[float]]]:
    """Milliseconds of the epochs at each size, by turns; the first ones warm up."""
    found: dict[int, dict[str, list[float]]] = {}
    sizes = dict.fromkeys(given, 0)
    number = 0
    for n_keys in scale.grown_keys:
        for name, epoch in given.items():
            wanted = scale.grown_keys[0] if name == "small" else n_keys
            for start in range(sizes[name], wanted, FILLED_AT_ONCE):
                epoch(wanted, min(FILLED_AT_ONCE, wanted - start), start, 1)
            sizes[name] = wanted
        taken: dict[str, list[float]] = {name: [] for name in given}
        for turn in range((WARM_UP if found else warm_up) + EPOCHS):
            for name, epoch in given.items():
                taken[name].append(epoch(sizes[name], scale.grown_rows, number + turn, STEP))
        number += turn + 1
        found[n_keys] = {name: ms[-EPOCHS:] for name, ms in taken.items()}
    return found


def rows_of(
    question: str, what: str, scale: Scale, found: Mapping[int, Mapping[str, list[float]]]
) -> list[Row]:
    """The time at each size, against that of the small one in the same turn."""
    smallest = scale.grown_keys[0]
    return [
        Row(
            question,
            f"{what}: an epoch that changes {scale.grown_rows:,} of {n_keys:,} keys",
            Spread.of(ms["grown"]),
            "ms",
            peer="" if n_keys == smallest else f"one of {smallest:,} keys, by turns",
            ratio=None
            if n_keys == smallest
            else Spread.of([a / b for a, b in zip(ms["grown"], ms["small"], strict=True)]),
            expected="" if n_keys == smallest else "<= 1.5x",
            detail={name: list(one) for name, one in ms.items()},
            series=what,
            size=n_keys,
        )
        for n_keys, ms in found.items()
    ]
