"""Operators that pass rows on or rank them: rows per second of one core, without Spark."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import pystate as ps
from bench.keyed import BATCH_ROWS
from bench.measure import Row, Scale, Work, by_turns
from pystate.operator.deduplicate import DeduplicateSpec
from pystate.operator.top import By, TopSpec
from pystate.types.state_type import parse_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pystate import KeyedStateBackend

WITHIN = 1_000_000_000
ONCE = {
    "for ever": DeduplicateSpec(("id",)),
    "within processing time": DeduplicateSpec(("id",), within_ms=WITHIN),
    "within event time": DeduplicateSpec(("id",), within_ms=WITHIN, event_time="at"),
}
BEST = TopSpec(
    ("id",),
    5,
    (By("price", True),),
    tuple((name, parse_type(ddl)) for name, ddl in [("at", "long"), ("price", "double")]),
)


def batches(n_keys: int, rows: int, seed: int) -> list[pa.RecordBatch]:
    """Rows of random keys in the order of their times."""
    rng = np.random.default_rng(seed)
    whole = pa.record_batch(
        {
            "id": pa.array(rng.integers(0, n_keys, rows)),
            "at": pa.array(np.arange(rows)),
            "price": pa.array(rng.random(rows)),
        }
    )
    return [whole.slice(start, BATCH_ROWS) for start in range(0, rows, BATCH_ROWS)]


class Operator:
    """An operator with its state, which lasts until `clear`."""

    def __init__(self, spec: DeduplicateSpec | TopSpec) -> None:
        self.spec = spec
        self.backend: KeyedStateBackend | None = None

    def clear(self) -> None:
        """Begin without state."""
        if self.backend is not None:
            self.backend.close()
        self.backend = ps.KeyedStateBackend({"id": "long"}, states=self.spec.states())

    def run(self, pieces: Sequence[pa.RecordBatch]) -> None:
        """Compute an epoch."""
        assert self.backend is not None
        task = self.spec.start(self.backend, processing_time=0, watermark=0)
        task.open()
        for piece in pieces:
            for _ in task.process(piece):
                pass
        for _ in task.finish():
            pass

    def seal(self) -> None:
        """End the epoch."""
        assert self.backend is not None
        self.backend.seal(snapshot=False)


def passed_by_set(seen: set[Any], pieces: Sequence[pa.RecordBatch]) -> None:
    """What a function would do, row by row, without any state that lasts."""
    for piece in pieces:
        out = []
        for i, key in enumerate(piece["id"].to_pylist()):
            if key not in seen:
                seen.add(key)
                out.append(i)
        piece.take(pa.array(out, pa.int64()))


def rows(scale: Scale) -> list[Row]:
    """Rows whose keys are new, and rows whose keys are there."""
    n_keys = scale.key_counts[0]
    pieces = batches(n_keys, scale.rows, 48)
    seen: set[Any] = set()
    works = {"set": Work(lambda: passed_by_set(seen, pieces))}
    operators = {f"deduplicate {name}": Operator(spec) for name, spec in ONCE.items()}
    operators["top 5"] = Operator(BEST)
    for name, operator in operators.items():
        run = partial(operator.run, pieces)
        works[f"{name}, new keys"] = Work(run, before=operator.clear, after=operator.seal)
        works[f"{name}, known keys"] = Work(run, after=operator.seal)
    timings = by_turns(works, scale.rounds, clock=time.process_time)
    return [
        Row(
            "rows",
            f"{name}, {n_keys:,} keys",
            timings.rate(name, scale.rows),
            "rows/s",
            peer="Python's set" if name.startswith("dedup") else "",
            ratio=timings.ratio(name, "set") if name.startswith("dedup") else None,
            detail={"seconds": timings.seconds[name]},
        )
        for name in works
        if name != "set"
    ]
