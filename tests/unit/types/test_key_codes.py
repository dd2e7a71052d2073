"""Numbers for keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pystate.types import key_codes as module
from pystate.types.key_codes import key_codes, ranks


def same(codes: Any) -> list[list[int]]:
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
    monkeypatch.setattr(module, "MOST_CODES", most)
    columns = [pa.array([1, 1, 2, 2, 1]), pa.array(["x", "y", "x", "x", "x"]), pa.array([1] * 5)]
    assert same(key_codes(columns)) == [[0, 4], [1], [2, 3]]


def test_ranks() -> None:
    assert ranks(np.array([3, 0, 3, 3, 0], np.int64)).tolist() == [0, 0, 1, 2, 1]
    assert ranks(np.array([], np.int64)).tolist() == []
