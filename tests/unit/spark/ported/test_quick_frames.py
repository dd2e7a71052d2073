"""Frames of pandas, made in fewer steps."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark import TaskContext

from pystate.spark.ported import quick_frames
from pystate.spark.ported.quick_frames import quicken, quicken_class


@pytest.fixture
def slow() -> Iterator[Any]:
    """How pandas initialises a frame, while its class is quick."""
    before = pd.DataFrame.__init__
    assert quicken_class(pd.DataFrame)
    yield before
    pd.DataFrame.__init__ = before  # type: ignore[method-assign]


def made(init: Any, data: Any) -> Any:
    """What a frame consists of, or why there is none."""
    frame = object.__new__(pd.DataFrame)
    try:
        init(frame, data)
    except Exception as error:
        return type(error), str(error)
    manager = frame._mgr
    values = frame.to_dict("list")
    kinds = {name: list(map(type, each)) for name, each in values.items()}
    orders = [getattr(block.values, "flags", None) for block in manager.blocks]
    known = manager._known_consolidated, manager._is_consolidated
    return quick_frames.shape(frame), repr(values), kinds, str(orders), known


PLAIN = [
    st.integers(-9, 9),
    st.integers(-(2**65), 2**65),
    st.floats(),
    st.booleans(),
    st.text(max_size=2),
    st.integers(0, 9).map(np.int64),
    st.floats().map(np.float64),
    st.booleans().map(np.bool_),
]
ODD = st.sampled_from(
    [
        None,
        "2024-01-01",
        datetime(2024, 1, 2),
        datetime(2024, 1, 2, tzinfo=timezone.utc),
        pd.Timestamp(0),
        pd.NA,
        pd.NaT,
        Decimal(1),
        1j,
        b"x",
        np.int8(1),
        np.str_("x"),
        np.datetime64("2024-01-01"),
        (1, 2),
        {"x": 1},
    ]
)
ARRAYS = ["int64", "float64", "bool", "int8", "float32", "object", "U2", "M8[ns]", ">i8"]


def columns(rows: int) -> st.SearchStrategy[Any]:
    """Columns, most of which have so many rows."""
    each = [*PLAIN, st.one_of(*PLAIN), ODD]
    size = st.sampled_from([rows, rows, rows, rows, rows, rows, rows + 1])
    lists = size.flatmap(lambda n: st.one_of(*[st.lists(e, min_size=n, max_size=n) for e in each]))
    ranges = st.builds(lambda n, a, b: range(a, a + n * b, b), size, st.integers(), st.just(2))
    kinds = st.sampled_from(ARRAYS)
    arrays = st.builds(lambda n, kind: np.arange(n).astype(kind), size, kinds)
    strided = st.builds(lambda n, kind: np.arange(2 * n).astype(kind)[::-2], size, kinds)
    plain = st.one_of(lists, ranges, arrays, strided, *PLAIN)
    others = st.one_of(
        ODD,
        arrays.map(pd.Series),
        arrays.map(lambda array: np.array([array])),
        lists.map(tuple),
        arrays.map(lambda array: pd.array(array.tolist())),
        st.just(np.array(1)),
        lists.map(iter).map(list),
    )
    return st.integers(0, 5).flatmap(lambda i: plain if i else others)


NAMES = st.one_of(st.text(max_size=2), st.text(max_size=2), st.text(max_size=2), st.just(1))
GIVEN = st.integers(0, 3).flatmap(lambda n: st.dictionaries(NAMES, columns(n), max_size=5))


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(GIVEN)
def test_frames_are_those_of_pandas(slow: Any, data: Any) -> None:
    assert made(pd.DataFrame.__init__, dict(data)) == made(slow, dict(data))


def test_a_frame_is_made_without_pandas_search(slow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick_frames, "_column", lambda *of: 1 / 0)
    assert len(pd.DataFrame()) == 0 and len(pd.DataFrame([[1]], columns=["a"])) == 1
    with pytest.raises(ZeroDivisionError):
        pd.DataFrame({"a": 1, "b": [2]})


def test_a_frame_shares_nothing_with_what_it_is_made_of(slow: Any) -> None:
    array, items = np.array([1, 2]), [3, 4]
    data = {"a": array, "b": items, "c": array.astype(float), "d": "x"}
    one, other = pd.DataFrame(data), pd.DataFrame(data)
    one.loc[:, "a"] = 9
    one.iloc[0, 2] = 9.0
    one.columns.values[0] = "hack"
    one.index.name = "mine"
    one["e"] = 1
    assert other.to_dict("list") == {"a": [1, 2], "b": [3, 4], "c": [1.0, 2.0], "d": ["x", "x"]}
    assert array.tolist() == [1, 2] and items == [3, 4] and other.index.name is None
    assert (one.copy()["b"] + other["b"]).tolist() == [6, 8]
    assert pd.concat([other, other], ignore_index=True).equals(
        pd.DataFrame({"a": [1, 2] * 2, "b": [3, 4] * 2, "c": [1.0, 2.0] * 2, "d": ["x"] * 4})
    )


def test_other_frames_are_made_as_before(slow: Any) -> None:
    seen = []

    class Sub(pd.DataFrame):
        def __init__(self, *args: Any, **named: Any) -> None:
            seen.append(len(args))
            super().__init__(*args, **named)

    assert type(Sub({"a": [1]})) is Sub and seen[0] == 1
    data = {"a": [1, 2], "b": 3}
    assert list(pd.DataFrame(data, index=[5, 6]).index) == [5, 6]
    assert list(pd.DataFrame(data, columns=["a"])) == ["a"]
    assert pd.DataFrame(data, dtype="float64").dtypes.tolist() == [np.dtype("float64")] * 2
    assert inspect.signature(pd.DataFrame.__init__) == inspect.signature(slow)
    with pd.option_context("future.infer_string", True):
        assert pd.DataFrame({"a": ["x"]})["a"].dtype != object


def test_a_class_that_makes_other_frames_is_left_alone() -> None:
    class Later(pd.DataFrame):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            self.columns.name = "later"

    before = Later.__init__
    assert not quicken_class(Later) and Later.__init__ is before


def test_the_class_is_quick_only_in_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    before = pd.DataFrame.__init__
    quicken()
    assert pd.DataFrame.__init__ is before
    monkeypatch.setattr(TaskContext, "get", lambda: object())
    try:
        quicken()
        quick = pd.DataFrame.__init__
        assert quick is not before
        quicken()
        assert pd.DataFrame.__init__ is quick
    finally:
        pd.DataFrame.__init__ = before  # type: ignore[method-assign]
