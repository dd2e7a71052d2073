"""Rows made of columns, one at a time."""

from __future__ import annotations

import gc
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pystate._core import calls, core
from pystate.errors import InvalidArgumentError
from pystate.operators.runtime.rows import READABLE, RowFactory, python_values, readable
from pystate.types.arrays import reference
from tests.drawn import drawn

VALUES: dict[Any, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int16(): st.integers(-(1 << 15), (1 << 15) - 1),
    pa.int32(): st.integers(-(1 << 31), (1 << 31) - 1),
    pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text(max_size=4),
}


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    """A part of an array of any type that is read in the core."""
    kind = draw(st.sampled_from(list(VALUES)))
    array = pa.array(draw(st.lists(st.none() | VALUES[kind], max_size=20)), kind)
    begin = draw(st.integers(0, len(array)))
    return array.slice(begin, draw(st.integers(0, len(array) - begin)))


@given(arrays())
def test_values_are_those_of_arrow(array: pa.Array[Any]) -> None:
    found = calls.ColumnReader(reference(array, READABLE[array.type])).to_list()
    assert found == array.to_pylist() == python_values(array, "x")
    assert [type(value) for value in found] == [type(value) for value in array.to_pylist()]


def test_a_row_hashes_as_its_tuple() -> None:
    batch = pa.record_batch({"a": [1, 2], "b": ["x", None]})
    for row in RowFactory(batch.schema.names).rows(batch):
        assert {tuple(row): 1}[row] == 1 and hash(row) == hash(tuple(row))


def test_a_type_that_is_not_read_in_the_core() -> None:
    assert readable(pa.array([1.5], pa.float32()), "x") == [1.5]
    with pytest.raises(InvalidArgumentError, match="read from a list"):
        code = core.TYPE_CODES["decimal"]
        calls.ColumnReader(core.ArrayRef(code, 1, 0, 0, 0, 0, 0, None))


def test_rows_stay_when_their_batch_is_gone() -> None:
    batch = pa.record_batch({"s": [f"text {i}" for i in range(100)], "n": list(range(100))})
    stream = RowFactory(["s", "n"]).rows(batch)
    kept = [next(stream)]
    del batch
    gc.collect()
    kept += stream
    del stream
    gc.collect()
    assert kept == [(f"text {i}", i) for i in range(100)]
    assert kept[7]["s"] == "text 7" and kept[7].n == 7


def test_rows_are_found_in_windows() -> None:
    asked = []

    def refill(i: int) -> None:
        asked.append(i)
        begin = i - i % 10
        source.fill(begin, [list(range(begin, begin + 10)), [None] * 10])

    source = calls.RowSource(tuple, 2, refill)
    assert [row[0] for row in source.rows(3, 25)] == list(range(3, 25)) and asked == [3, 10, 20]
    rows = source.rows(25, 40)
    assert rows.num_rows == 15 and next(rows) == (25, None)
    rows.stop()
    assert list(rows) == []


def test_a_window_that_has_not_the_row() -> None:
    source = calls.RowSource(tuple, 1, lambda i: source.fill(0, [[1]]))
    rows = source.rows(0, 5)
    assert next(rows) == (1,)
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match="there is no row 1"):
            next(rows)
    for columns in ([], [[1], [2]]):
        with pytest.raises(InvalidArgumentError, match="for 1 fields"):
            source.fill(0, columns)
    with pytest.raises(InvalidArgumentError, match="differ in length"):
        calls.RowSource(tuple, 2).fill(0, [[1], [1, 2]])
    with pytest.raises(InvalidArgumentError, match="rows are tuples"):
        calls.RowSource(list, 1)  # type: ignore[arg-type]


@drawn(50)
@given(st.lists(st.integers(0, 6), max_size=40))
def test_rows_are_grouped_by_their_first(keys: list[int]) -> None:
    first = np.array([keys.index(key) for key in keys], np.int32)
    order = np.empty(len(keys), np.int64)
    firsts, ends = calls.grouped(first.ctypes.data, len(keys), order.ctypes.data)
    expected = {key: [i for i, other in enumerate(keys) if other == key] for key in keys}
    assert [order[a:b].tolist() for a, b in zip([0, *ends], ends, strict=False)] == [
        *expected.values()
    ]
    assert firsts == [rows[0] for rows in expected.values()]


def test_groups_that_begin_behind_their_rows() -> None:
    first, order = np.array([1, 1], np.int32), np.empty(2, np.int64)
    with pytest.raises(InvalidArgumentError, match="comes after it"):
        calls.grouped(first.ctypes.data, 2, order.ctypes.data)


def test_names_of_rows() -> None:
    class Pair(calls.named_tuple()):  # type: ignore[misc]
        __slots__ = ()
        __positions__: ClassVar[dict[str, Any]] = {"a": 0, "b": 1, "far": 2, "odd": "x"}

        def __other_item__(self, item: Any) -> Any:
            return "other", item

    pair = Pair((1, 2))
    assert (pair["a"], pair["b"], pair[0], pair[-1], pair == (1, 2)) == (1, 2, 1, 2, True)
    for item in ("c", "far", "odd", True, 1.5, slice(1), None, np.int64(0)):
        assert pair[item] == ("other", item)
    with pytest.raises(IndexError):
        pair[2]
    with pytest.raises(InvalidArgumentError, match="rows are tuples"):
        calls.named_tuple(list)  # type: ignore[arg-type]
