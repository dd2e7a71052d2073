"""Equality of rows, for nested types too."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pystate.types.equality import same_rows

NAN = float("nan")


@pytest.mark.parametrize(
    ("type_", "one", "other", "same"),
    [
        (pa.int64(), [1, None, None, 2], [1, None, 3, 3], [1, 1, 0, 0]),
        (pa.float64(), [NAN, 0.0, 1.5], [NAN, -0.0, 1.5], [1, 0, 1]),
        (pa.list_(pa.int32()), [[1, 2], [], [1], [3]], [[1, 2], [], [1, 1], [4]], [1, 1, 0, 0]),
        (pa.list_(pa.string()), [["a", None], ["b"]], [["a", None], [None]], [1, 0]),
        (
            pa.struct([("x", pa.int8())]),
            [{"x": 1}, None, {"x": None}],
            [{"x": 2}, None, None],
            [0, 1, 0],
        ),
        (
            pa.map_(pa.int64(), pa.string()),
            [[(1, "a"), (2, "b")], [(1, "a")], []],
            [[(2, "b"), (1, "a")], [(1, "b")], []],
            [1, 0, 1],
        ),
    ],
)
def test_types(type_: pa.DataType, one: list[Any], other: list[Any], same: list[int]) -> None:
    assert same_rows(pa.array(one, type_), pa.array(other, type_)).tolist() == [*map(bool, same)]


ROW = st.none() | st.lists(
    st.none() | st.lists(st.none() | st.integers(0, 2), max_size=2), max_size=3
)


@given(st.lists(st.tuples(ROW, ROW), max_size=9), st.integers(0, 3))
def test_lists_of_lists(rows: list[tuple[Any, Any]], skipped: int) -> None:
    type_ = pa.list_(pa.list_(pa.int32()))
    one, other = (pa.array([row[i] for row in rows], type_).slice(skipped) for i in (0, 1))
    assert same_rows(one, other).tolist() == [a == b for a, b in rows[skipped:]]
