"""Rows by their keys: looked up in the core, or told apart by their values alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import pystate as ps
from pystate.operators.runtime import grouping
from pystate.operators.runtime.grouping import expand, group, grouped_columns, grouped_rows
from tests.drawn import drawn

FLOATS = st.sampled_from([0.0, -0.0, 1.5, math.nan, -math.nan, math.inf, None])
NAMES = st.sampled_from(["", "a", "b", "long enough to lie outside of the row", None])


def same(value: Any) -> Any:
    """Equal for the values that are one key; 0.0 is -0.0 in Python, too."""
    return "nan" if isinstance(value, float) and math.isnan(value) else value


@drawn(60)
@given(st.lists(st.tuples(FLOATS, NAMES), max_size=30))
@example([(0.0, "a"), (-0.0, "a"), (math.nan, None), (None, None), (-math.nan, None)])
def test_rows_are_grouped_by_key(rows: list[tuple[Any, Any]]) -> None:
    expected: dict[Any, list[int]] = {}
    for i, row in enumerate(rows):
        expected.setdefault(tuple(map(same, row)), []).append(i)
    columns: list[Any] = [
        pa.array([row[0] for row in rows], pa.float64()),
        pa.array([row[1] for row in rows], pa.string()),
    ]
    states = {"n": ps.ValueState("long")}
    with ps.KeyedStateBackend({"x": "double", "s": "string"}, states=states) as backend:
        order, firsts, ends = grouped_rows(backend.keys(columns))
    assert firsts == [group[0] for group in expected.values()]
    found = [order[a:b].tolist() for a, b in zip([0, *ends], ends, strict=False)]
    assert found == list(expected.values())
    if rows:
        wide, starts = grouped_columns(columns)
        assert wide.tolist() == order.tolist() and starts == [0, *ends[:-1]]


@pytest.mark.parametrize("most", [1 << 62, 4])
def test_groups(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    codes, buckets = np.array([0, 1, 0, 0]), np.array([-5, 1 << 50, 7, -5])
    monkeypatch.setattr(grouping, "MOST_CODES", most)
    groups = group(codes, buckets)
    assert groups.of_row.tolist() == [0, 1, 2, 0] and groups.first.tolist() == [0, 1, 2]
    order, starts = groups.order()
    assert order.tolist() == [0, 3, 1, 2] and starts.tolist() == [0, 2, 3, 4]


def test_nothing_is_no_group() -> None:
    none = np.empty(0, np.int64)
    assert group(none, none).order()[1].tolist() == [0]
    assert [part.tolist() for part in expand(none, none)] == [[], []]


def test_ranges_without_places() -> None:
    numbers, places = expand(np.array([3, 9, 5]), np.array([2, 0, 1]))
    assert numbers.tolist() == [0, 0, 2] and places.tolist() == [3, 4, 5]
