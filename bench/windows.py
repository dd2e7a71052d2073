"""Windows: a stream in order, in epochs that are sealed, from the first row to the last window.

The peer is DuckDB with one thread, which computes the same from all rows at once and keeps nothing.
The processor time of the process is measured: the question is about one core.
"""

from __future__ import annotations

import importlib.util
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import pystate as ps
from bench.measure import Row, Scale, Work, by_turns
from pystate.types.keys import parse_key
from pystate.windows.making import make_operator
from pystate.windows.operator import EpochTimes
from pystate.windows.specification import WindowSpec, window_options

if TYPE_CHECKING:
    from pystate.windows.assigners import Assigner

MINUTE = 60_000
BATCH_ROWS = 65_536
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
        operator = make_operator(spec, backend, EpochTimes(0, bound))
        part = table.slice(begin, EPOCH_ROWS)
        for batch in part.to_batches(BATCH_ROWS):
            emitted += sum(piece.num_rows for piece in operator.process(batch))
        bound = operator.max_event_time
        if begin + EPOCH_ROWS >= table.num_rows:
            bound = 1 << 60
        emitted += sum(piece.num_rows for piece in operator.finish(bound))
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
    rounds = min(scale.rounds, 3)
    few = stream(size, max(scale.elements // 10, 10), 10)
    dense = stream(size, max(scale.elements // 100, 10), 80)
    minute, hour = ps.Tumbling(MINUTE), ps.Tumbling(60 * MINUTE)
    slides, session = ps.Sliding(60 * MINUTE, MINUTE), ps.Session(MINUTE // 2)
    kinds: list[tuple[str, str, dict[str, Work]]] = [
        (
            "a million windows of a key and a minute, ten rows each",
            ">= 10 M rows/s",
            {
                "pystate": Work(lambda: windowed(minute, few)),
                "DuckDB, all rows at once": Work(lambda: in_duckdb(TUMBLING, few)),
            },
        ),
        (
            "an hour, sliding by a minute",
            ">= 0.7x",
            {
                "pystate": Work(lambda: windowed(slides, dense)),
                "tumbling by an hour": Work(lambda: windowed(hour, dense)),
                # The peer: it keeps the same slices.
                "tumbling by a minute": Work(lambda: windowed(minute, dense)),
            },
        ),
        (
            "sessions of some twenty rows",
            ">= 3 M rows/s",
            {
                "pystate": Work(lambda: windowed(session, dense)),
                "DuckDB, all rows at once": Work(lambda: in_duckdb(SESSIONS, dense)),
            },
        ),
    ]
    for what, expected, all_works in kinds:
        works = {n: w for n, w in all_works.items() if HAS_DUCKDB or "DuckDB" not in n}
        timings = by_turns(works, rounds, clock=time.process_time)
        *_, peer = works
        found += [
            Row(
                "windows",
                f"{what}: {name}",
                timings.rate(name, size / 1e6),
                "M rows/s",
                peer="" if name == peer else peer,
                ratio=None if name == peer else timings.ratio(name, peer),
                expected=expected if name == "pystate" else "",
                detail={"seconds": timings.seconds[name], "rows": size},
            )
            for name in works
        ]
    return found
