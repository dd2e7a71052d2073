"""The best rows of keys against sorted lists, over random streams cut at random places."""

from __future__ import annotations

import decimal
import math
from collections.abc import Sequence
from functools import cmp_to_key
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pystate.operators.runtime.top import By, TopLatest, TopRows, TopSpec
from pystate.types.state_type import parse_type
from tests.drawn import drawn
from tests.model.ranges import Ranges, Row
from tests.range_backends import on_disk

DDL = {
    "n": "long",
    "i": "int",
    "x": "double",
    "f": "float",
    "s": "string",
    "b": "binary",
    "d": "decimal(9,2)",
    "t": "timestamp",
    "day": "date",
    "yes": "boolean",
    "tags": "array<string>",
}
COLUMNS = tuple((name, parse_type(ddl)) for name, ddl in DDL.items())
SCHEMA = pa.schema(
    [("k", pa.int64()), ("v", pa.string()), *((name, t.arrow) for name, t in COLUMNS)]
)
LIMITS = np.iinfo(np.int64)


def random_row(rng: np.random.Generator, keys: int, number: int) -> Row:
    def some(values: Sequence[Any]) -> Any:
        return None if rng.random() < 0.15 else values[rng.integers(len(values))]

    return {
        "k": some(range(keys)),
        "v": some(["x", "y"]),
        "n": some([LIMITS.min, -1, 0, 1, 2, LIMITS.max]),
        "i": number,
        "x": some([-math.inf, -1.5, -0.0, 0.0, 1e-300, 2.5, math.inf, math.nan]),
        "f": some([-1.5, 0.0, 2.5, math.nan]),
        "s": some(["", "a", "aa", "Z", "\u00e9", "\U0001f600", "\uffff"]),
        "b": some([b"", b"\x00", b"\xff", b"a"]),
        "d": some([decimal.Decimal("-1.50"), decimal.Decimal("0.00"), decimal.Decimal("12.25")]),
        "t": some([0, -1, 10**15]),
        "day": some([0, -1, 100]),
        "yes": some([False, True]),
        "tags": some([[], ["a", None], ["b"]]),
    }


def compared(a: Any, b: Any) -> int:
    """As Spark orders values that are not null: NaN is the largest, 0.0 and -0.0 are equal."""
    if isinstance(a, float):
        a, b = (
            (math.isnan(a), 0.0 if math.isnan(a) else a),
            (math.isnan(b), 0.0 if math.isnan(b) else b),
        )
    if isinstance(a, str):
        a, b = a.encode(), b.encode()
    return (a > b) - (a < b)


def better(by: Sequence[By]) -> Any:
    def order(one: Row, other: Row) -> int:
        for name, descending in by:
            a, b = one[name], other[name]
            if a is None or b is None:
                found = (a is None) - (b is None)
            else:
                found = -compared(a, b) if descending else compared(a, b)
            if found:
                return found
        return 0

    return cmp_to_key(order)


def shown(rows: Sequence[Row]) -> list[str]:
    return sorted(repr(sorted(row.items(), key=lambda item: item[0])) for row in rows)


names = st.lists(
    st.sampled_from([n for n in DDL if n != "tags"]), min_size=1, max_size=3, unique=True
)


@drawn(150)
@given(st.data(), names, st.integers(1, 4))
def test_random_streams(data: st.DataObject, columns: list[str], k: int) -> None:
    compare(data, columns, k, Ranges({"k": "long", "v": "string"}, SCHEMA))


@drawn(40)
@given(st.integers(0, 1 << 30), st.data(), names, st.integers(1, 4))
def test_on_disk(seed: int, data: st.DataObject, columns: list[str], k: int) -> None:
    with on_disk(seed) as ranges:
        compare(data, columns, k, Ranges({"k": "long", "v": "string"}, SCHEMA, ranges))


@pytest.mark.parametrize("seed", range(3))
def test_the_best_of_the_latest_on_disk(seed: int) -> None:
    """What comes of few keys at a time is what comes of all."""
    spec = TopSpec(("k", "v"), 2, (By("n", True), By("i", False)), COLUMNS, by_key=("s",))
    rng = np.random.default_rng(seed)
    with on_disk(seed) as ranges:
        both = [Ranges({"k": "long", "v": "string"}, SCHEMA, disk) for disk in (None, ranges)]
        for epoch in range(4):
            rows = [random_row(rng, 6, epoch * 100 + i) for i in range(60)]
            one, other = (
                operator.epoch(spec, TopLatest, [rows[:25], rows[25:]], 1 + epoch % 3)[1]
                for operator in both
            )
            found = [[row for piece in out for row in piece.to_pylist()] for out in (one, other)]
            assert shown(found[0]) == shown(found[1])


def compare(data: st.DataObject, columns: list[str], k: int, operator: Ranges) -> None:
    by = tuple(By(name, data.draw(st.booleans())) for name in columns)
    spec = TopSpec(("k", "v"), k, by, COLUMNS)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    keys = data.draw(st.sampled_from([1, 2, 8]))
    best: dict[Any, list[Row]] = {}
    number = 0
    for _ in range(data.draw(st.integers(1, 5))):
        rows = []
        for _ in range(int(rng.integers(0, 30))):
            number += 1
            rows.append(random_row(rng, keys, number))
        before = {key: list(top) for key, top in best.items()}
        # As Arrow gives them back, with datetimes and floats of their width.
        for row in pa.RecordBatch.from_pylist(rows, schema=SCHEMA).to_pylist():
            key = row["k"], row["v"]
            best[key] = sorted([*best.get(key, []), row], key=better(by))[:k]
        cuts = sorted(int(c) for c in rng.integers(0, len(rows) + 1, int(rng.integers(0, 3))))
        batches = [rows[a:b] for a, b in pairwise([0, *cuts, len(rows)])]
        early, pieces = operator.epoch(spec, TopRows, batches, int(rng.integers(1, 4)))
        assert not early
        found = [row for piece in pieces for row in piece.to_pylist()]
        wanted = [
            {**row, "rank": rank}
            for key, top in best.items()
            if repr(before.get(key)) != repr(top)
            for rank, row in enumerate(top, 1)
        ]
        assert shown(found) == shown(wanted)
