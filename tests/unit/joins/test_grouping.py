"""Rows by key and bucket."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pystate.joins import grouping
from pystate.joins.grouping import expanded, group, key_codes


def same(codes: Any) -> list[list[int]]:
    """Which rows have equal numbers."""
    found: dict[int, list[int]] = {}
    for row, code in enumerate(codes.tolist()):
        found.setdefault(code, []).append(row)
    return list(found.values())


def test_equal_keys_have_equal_codes() -> None:
    assert same(key_codes([pa.array(["a", "b", None, "a", None])])) == [[0, 3], [1], [2, 4]]
    nan = float("nan")
    floats = pa.array([0.0, -0.0, nan, None, nan, 1.0])
    assert same(key_codes([floats])) == [[0, 1], [2, 4], [3], [5]]


@pytest.mark.parametrize("most", [1 << 62, 4])
def test_codes_of_several_columns(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Also if the product of the columns' codes is too large."""
    monkeypatch.setattr(grouping, "_MOST", most)
    columns = [pa.array([1, 1, 2, 2, 1]), pa.array(["x", "y", "x", "x", "x"]), pa.array([1] * 5)]
    assert same(key_codes(columns)) == [[0, 4], [1], [2, 3]]


@pytest.mark.parametrize("most", [1 << 62, 4])
def test_groups(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    codes, buckets = np.array([0, 1, 0, 0]), np.array([-5, 1 << 50, 7, -5])
    monkeypatch.setattr(grouping, "_MOST", most)
    groups = group(codes, buckets)
    assert groups.of_row.tolist() == [0, 1, 2, 0] and groups.first.tolist() == [0, 1, 2]
    order, starts = groups.order()
    assert order.tolist() == [0, 3, 1, 2] and starts.tolist() == [0, 2, 3, 4]


def test_nothing_is_no_group() -> None:
    none = np.empty(0, np.int64)
    assert group(none, none).order()[1].tolist() == [0]
    assert [part.tolist() for part in expanded(none, none)] == [[], []]


def test_ranges_without_places() -> None:
    numbers, places = expanded(np.array([3, 9, 5]), np.array([2, 0, 1]))
    assert numbers.tolist() == [0, 0, 2] and places.tolist() == [3, 4, 5]
