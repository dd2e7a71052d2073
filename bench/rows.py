"""Operators without Spark, on one core: duplicates, rankings, and windows.

The processor time of the process is measured. Windows are those of a stream in order, in epochs
that are sealed, from the first row to the last window; their peer is DuckDB with one thread, which
computes the same from all rows at once and keeps nothing.
"""

from __future__ import annotations

import importlib.util
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import pystate as ps
from bench.keyed import BATCH_ROWS
from bench.measure import Row, Scale, Work, by_turns
from pystate.epochs.watermarks import OperatorTime
from pystate.operators.runtime.deduplicate import DeduplicateSpec
from pystate.operators.runtime.task import TaskContext
from pystate.operators.runtime.top import By, TopSpec
from pystate.operators.windows.kinds import make_operator
from pystate.operators.windows.specification import WindowSpec, window_options
from pystate.types.keys import parse_key
from pystate.types.state_type import parse_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pystate import KeyedStateBackend
    from pystate.operators.windows.assigners import Assigner

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
        task = self.spec.make()
        task.open(TaskContext(self.backend, time=OperatorTime(0, 0)))
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
    works = {"set": Work(partial(passed_by_set, seen, pieces))}
    operators = {f"deduplicate {name}": Operator(spec) for name, spec in ONCE.items()}
    operators["top 5"] = Operator(BEST)
    for name, operator in operators.items():
        run = partial(operator.run, pieces)
        works[f"{name}, new keys"] = Work(run, before=operator.clear, after=operator.seal)
        works[f"{name}, known keys"] = Work(run, after=operator.seal)
    timings = by_turns(works, scale.rounds, clock=time.process_time)
    return [
        timings.row(
            name,
            "rows",
            f"{name}, {n_keys:,} keys",
            scale.rows,
            "rows/s",
            lead=(name, "set") if name.startswith("dedup") else None,
            peer="Python's set",
        )
        for name in works
        if name != "set"
    ]


MINUTE = 60_000
EPOCH_ROWS = 1_000_000
HAS_DUCKDB = importlib.util.find_spec("duckdb") is not None
SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("v", pa.int64())])


def stream(rows: int, keys: int, minutes: float) -> pa.Table:
    """Rows of uniform keys, in the order of their times."""
    random = np.random.default_rng(42)
    columns = [
        random.integers(0, keys, rows),
        np.sort(random.integers(0, int(minutes * MINUTE), rows)),
        random.integers(0, 1_000, rows),
    ]
    return pa.Table.from_arrays([pa.array(c) for c in columns], schema=SCHEMA)


def windowed(windows: Assigner, table: pa.Table) -> int:
    """Count and sum in windows; returns how many windows there were."""
    aggregates: dict[str, Any] = {"n": ps.count(), "total": ps.sum("v")}
    spec = WindowSpec.of(
        window_options(windows, "bench", event_time="t"), ["k"], aggregates, SCHEMA, "bench"
    )
    backend = ps.KeyedStateBackend.of(spec.operator("bench", parse_key([("k", "long")])))
    bound: int | None = None
    emitted = 0
    for begin in range(0, table.num_rows, EPOCH_ROWS):
        operator = make_operator(spec)
        task = TaskContext(backend, time=OperatorTime(bound, bound))
        operator.open(task)
        part = table.slice(begin, EPOCH_ROWS)
        for batch in part.to_batches(BATCH_ROWS):
            emitted += sum(piece.num_rows for piece in operator.process(batch))
        bound = task.latest["input"]
        if begin + EPOCH_ROWS >= table.num_rows:
            bound = 1 << 60
        task.time = OperatorTime(None, bound)
        emitted += sum(piece.num_rows for piece in operator.finish())
        operator.close()
        backend.seal().close()
    assert backend.stats().keys == 0
    backend.close()
    return emitted


def in_duckdb(query: str, table: pa.Table) -> int:
    """The number of rows of a query over the table `given`, on one thread."""
    import duckdb

    with duckdb.connect(config={"threads": 1}) as connection:
        connection.register("given", table)
        found: int = connection.sql(query).to_arrow_table().num_rows
        return found


TUMBLING = "SELECT k, t // 60000 AS w, count(*), sum(v) FROM given GROUP BY ALL"
SESSIONS = """
    WITH marked AS (
        SELECT *, coalesce(t - lag(t) OVER (PARTITION BY k ORDER BY t) > 30000, true) AS fresh
        FROM given),
    numbered AS (
        SELECT *, sum(fresh::INT) OVER (PARTITION BY k ORDER BY t ROWS UNBOUNDED PRECEDING) AS s
        FROM marked)
    SELECT k, s, min(t), max(t) + 30000, count(*), sum(v) FROM numbered GROUP BY ALL
"""


def windows(scale: Scale) -> list[Row]:
    """Tumbling ones of a million keys and windows, sliding ones, and sessions."""
    size, found = 5 * scale.rows, []
    few = stream(size, max(scale.elements // 10, 10), 10)
    dense = stream(size, max(scale.elements // 100, 10), 80)
    minute, hour = ps.Tumbling(MINUTE), ps.Tumbling(60 * MINUTE)
    duckdb = "DuckDB, all rows at once"
    # The last of the works is the peer; a window by the minute keeps the slices of the sliding one.
    kinds: dict[tuple[str, str], dict[str, Work]] = {
        ("a million windows of a key and a minute, ten rows each", ">= 10 M rows/s"): {
            "pystate": Work(partial(windowed, minute, few)),
            duckdb: Work(partial(in_duckdb, TUMBLING, few)),
        },
        ("an hour, sliding by a minute", ">= 0.7x"): {
            "pystate": Work(partial(windowed, ps.Sliding(60 * MINUTE, MINUTE), dense)),
            "tumbling by an hour": Work(partial(windowed, hour, dense)),
            "tumbling by a minute": Work(partial(windowed, minute, dense)),
        },
        ("sessions of some twenty rows", ">= 3 M rows/s"): {
            "pystate": Work(partial(windowed, ps.Session(MINUTE // 2), dense)),
            duckdb: Work(partial(in_duckdb, SESSIONS, dense)),
        },
    }
    for (what, goal), all_works in kinds.items():
        works = {n: w for n, w in all_works.items() if HAS_DUCKDB or n != duckdb}
        timings = by_turns(works, min(scale.rounds, 3), clock=time.process_time)
        *_, peer = works
        for name in works:
            lead = None if name == peer else (name, peer)
            expected = goal if name == "pystate" else ""
            row = timings.row(
                name, "windows", f"{what}: {name}", size, lead=lead, peer=peer, expected=expected
            )
            found.append(row)
    return found
