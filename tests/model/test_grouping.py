"""Which keys are one: in every operator those that SQL's GROUP BY holds equal, and no others.

Nulls leave a key's hash as it is, so that ``(1, null)`` and ``(null, 1)`` are in one place of a
table: they are told apart by what they are.
"""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pystate as ps
from pystate.operators.runtime.grouping import grouped_columns
from pystate.testing import Deduplicate, Harness, RowHarness, TwoInputHarness, WindowHarness
from pystate.types.key_codes import key_codes
from tests.drawn import drawn

NUMBERS = st.sampled_from([None, 0, 1, 42, -1])
FLOATS = st.sampled_from([None, 0.0, -0.0, math.nan, -math.nan, 1.0, math.inf])
TEXTS = st.sampled_from([None, "", "a", "\0"])
ROWS = st.lists(st.tuples(NUMBERS, NUMBERS, FLOATS, FLOATS, TEXTS), min_size=1, max_size=30)
SCHEMA = pa.schema(
    [
        ("a", pa.int64()),
        ("b", pa.int64()),
        ("x", pa.float64()),
        ("y", pa.float32()),
        ("t", pa.string()),
        ("at", pa.int64()),
    ]
)


def same(value: Any) -> Any:
    """A value in a form that is equal where SQL holds it equal."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


class Numbered(ps.KeyedProcessFunction):
    """Says how many rows of the key there have been."""

    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        self.n.update(self.n.value() + 1)
        yield row["at"], self.n.value()


@drawn(25)
@given(ROWS, st.sets(st.sampled_from("abxyt"), min_size=1))
def test_keys_are_those_of_sql(rows: list[tuple[Any, ...]], chosen: set[str]) -> None:
    names = sorted(chosen)
    columns = [*zip(*rows, strict=True), range(len(rows))]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
    places = [SCHEMA.names.index(name) for name in names]
    seen: dict[Any, list[int]] = {}
    for at, row in enumerate(rows):
        seen.setdefault(tuple(same(row[i]) for i in places), []).append(at)
    numbers = {at: i + 1 for own in seen.values() for i, at in enumerate(own)}
    firsts = sorted(own[0] for own in seen.values())

    with Harness(Numbered(), key=names) as harness:
        assert dict(harness.process(batch)) == numbers
    with RowHarness(Deduplicate(), names, columns=SCHEMA) as harness:
        assert sorted(row.at for row in harness.process(batch)) == firsts
    with RowHarness(ps.testing.Top(1, "at", False), names, columns=SCHEMA) as harness:
        assert sorted(row.at for row in harness.process(batch)) == firsts
    windows = ps.Tumbling(1_000), ps.Session(1_000), ps.Sliding(1_000, 500)
    for each in windows:
        counts = {"n": ps.count()}
        with WindowHarness(each, counts, names, columns=SCHEMA, event_time="at") as harness:
            harness.process(batch)
            found = harness.advance_watermark(ps.MAX_WATERMARK)
            times = 2 if each is windows[2] else 1
            wanted = sorted(len(own) for own in seen.values() for _ in range(times))
            assert sorted(row.n for row in found) == wanted
    codes = key_codes([batch.column(i) for i in places]).tolist()
    assert len(set(codes)) == len(seen)
    _, starts = grouped_columns([batch.column(i) for i in places])
    assert len(starts) == len(seen)

    # In a join a null equals nothing; zeros are equal, and so are NaNs.
    right = SCHEMA.append(pa.field("v", pa.int64()))
    more = pa.RecordBatch.from_arrays([*arrays, pa.array(range(len(rows)))], schema=right)
    with TwoInputHarness(
        ps.testing.IntervalJoin("-1 s", "1 s", suffixes=("", "_2")),
        names,
        left=SCHEMA,
        right=right,
        event_time="at",
    ) as join:
        pairs = sum(len(own) ** 2 for key, own in seen.items() if None not in key)
        assert len(join.process(batch, more)) == pairs


#: A struct of structs, each of which may be null, as all fields may be.
PLACES = st.none() | st.fixed_dictionaries(
    {
        "a": NUMBERS,
        "in": st.none()
        | st.fixed_dictionaries(
            {"x": FLOATS, "to": st.none() | st.fixed_dictionaries({"t": TEXTS, "u": NUMBERS})}
        ),
    }
)
PLACE = pa.struct(
    [
        ("a", pa.int64()),
        (
            "in",
            pa.struct(
                [
                    ("x", pa.float64()),
                    ("to", pa.struct([("t", pa.string()), ("u", pa.int64())])),
                ]
            ),
        ),
    ]
)
NAMES = st.sampled_from([["k"], ["k", "m"], ["m", "k", "j"]])


@drawn(25)
@given(st.lists(st.tuples(PLACES, NUMBERS, PLACES), min_size=1, max_size=20), NAMES)
def test_keys_of_structs_are_those_of_sql(rows: list[tuple[Any, ...]], names: list[str]) -> None:
    duckdb = pytest.importorskip("duckdb", reason="needs the package duckdb: pip install duckdb")
    columns = [*zip(*rows, strict=True), range(len(rows))]
    types = PLACE, pa.int64(), PLACE, pa.int64()
    arrays = [pa.array(column, type_) for column, type_ in zip(columns, types, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, names=["k", "m", "j", "at"])
    with duckdb.connect() as connection:
        given = pa.table(batch).rename_columns([*"kmji"])
        connection.register("given", given)
        groups = f"SELECT list(i) FROM given GROUP BY {', '.join(names)}"
        seen = [sorted(own) for (own,) in connection.sql(groups).fetchall()]
    numbers = {at: i + 1 for own in seen for i, at in enumerate(own)}
    firsts = sorted(own[0] for own in seen)

    for parallelism in (1, 3):
        with Harness(Numbered(), key=names, parallelism=parallelism) as harness:
            assert dict(harness.process(batch)) == numbers
    with RowHarness(Deduplicate(), names, columns=batch.schema) as harness:
        assert sorted(row.at for row in harness.process(batch)) == firsts
    with RowHarness(Deduplicate(keep="last"), names, columns=batch.schema) as harness:
        assert sorted(row.at for row in harness.process(batch)) == sorted(own[-1] for own in seen)
    latest = ps.testing.Top(1, "at", by_key="at")
    with RowHarness(latest, names, columns=batch.schema) as harness:
        assert sorted(row.at for row in harness.process(batch)) == sorted(own[-1] for own in seen)
    with RowHarness(ps.testing.Top(1, "at", False), names, columns=batch.schema) as harness:
        best = harness.process(batch)
        assert sorted(row.at for row in best) == firsts
        # The structs are whole again, null or not.
        keys = batch.select(names).to_pylist()
        for row in best:
            for name in names:
                assert repr(as_dict(getattr(row, name))) == repr(as_same(keys[row.at][name]))


def as_dict(value: Any) -> Any:
    """A key's column as a dict."""
    row = value.asDict(recursive=True) if hasattr(value, "asDict") else value
    return as_same(row)


def as_same(value: Any) -> Any:
    """A value, with one zero and one NaN."""
    return {n: as_same(v) for n, v in value.items()} if isinstance(value, dict) else same(value)
