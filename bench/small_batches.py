"""What an epoch adds to a small micro-batch of the same job without state.

Both run in one session, batch by batch in turn, over new keys and known ones, as in
`bench.spark_jobs`. The figure is the difference of Spark's own times of the same batch.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from bench.measure import Row, Scale, Spread
from bench.spark_jobs import (
    batch_seconds,
    hand_over,
    session,
    source,
    start_with_pystate,
    start_without_state,
    write_input,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WARM_UP = 8
"""Batches that are not timed."""
STARTS = {"without state": start_without_state, "pystate": start_with_pystate}


def jobs(scale: Scale) -> list[Row]:
    """At each number of rows."""
    root = Path(tempfile.mkdtemp(prefix="pystate-bench-"))
    rows = []
    try:
        with session(root) as spark:
            for n in scale.small_rows:
                small = dataclasses.replace(scale, spark_rows=n, spark_keys=n)
                rows += rows_of(n, measured(spark, small, root / f"rows{n}"))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return rows


def measured(spark: SparkSession, scale: Scale, root: Path) -> dict[str, list[float]]:
    """Milliseconds of each batch."""
    folders = {name: root / name.replace(" ", "-") for name in STARTS}
    queries = {
        name: start(source(spark, folders[name]), scale, folders[name])
        for name, start in STARTS.items()
    }
    ms: dict[str, list[float]] = {name: [] for name in STARTS}
    for turn in range(WARM_UP + scale.small_batches):
        write_input(spark, scale, root / str(turn))
        for name, query in queries.items():
            hand_over(root / str(turn), folders[name])
            ms[name].append(batch_seconds(query, turn) * 1e3)
    for query in queries.values():
        query.stop()
    return {name: taken[WARM_UP:] for name, taken in ms.items()}


def rows_of(n: int, ms: dict[str, list[float]]) -> list[Row]:
    """The time of both, and the difference."""
    added = [a - b for a, b in zip(ms["pystate"], ms["without state"], strict=True)]
    rows = [
        Row(
            "small-batches",
            f"a batch of {n:,} rows: {name}",
            Spread.of(taken),
            "ms",
            detail={"ms": taken},
            series=name,
            size=n,
        )
        for name, taken in ms.items()
    ]
    rows.append(
        Row(
            "small-batches",
            f"a batch of {n:,} rows: added by pystate",
            Spread.of(added),
            "ms",
            expected="<= 30 ms" if n <= 1_000 else "",
            detail={"ms": added},
            series="added by pystate",
            size=n,
        )
    )
    return rows
