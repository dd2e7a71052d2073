"""Rows by key and bucket."""

from __future__ import annotations

import numpy as np
import pytest

from pystate.operators.joins import grouping
from pystate.operators.joins.grouping import expanded, group


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
    assert [part.tolist() for part in expanded(none, none)] == [[], []]


def test_ranges_without_places() -> None:
    numbers, places = expanded(np.array([3, 9, 5]), np.array([2, 0, 1]))
    assert numbers.tolist() == [0, 0, 2] and places.tolist() == [3, 4, 5]
