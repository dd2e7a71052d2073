"""Keys out of the expressions that engines hand to tables."""

from __future__ import annotations

import operator
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pystate.query.sql import filters
from pystate.query.sql.filters import compared_columns, wanted_keys

KEY = pa.schema({"k": pa.string(), "d": pa.int64()})
K, D, N = pc.field("k"), pc.field("d"), pc.field("n")


def keys(expression: Any, key: pa.Schema = KEY) -> Any:
    found = wanted_keys(expression, key)
    if found is None:
        return None
    assert [column.type for column in found] == key.types
    return sorted(zip(*(column.to_pylist() for column in found), strict=True))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ((K == "a") & (D == 1), [("a", 1)]),
        ((K == "a") & (pa.scalar(1) == D) & (N > 3), [("a", 1)]),
        ((K == "a\"') or") & (D == -(1 << 63)), [("a\"') or", -(1 << 63))]),
        ((K == "ü\0\n") & (D == 1), [("ü\0\n", 1)]),
        (K.isin(["a", "b"]) & D.isin([1, 2, 2]), [("a", 1), ("a", 2), ("b", 1), ("b", 2)]),
        (((K == "a") & (D == 1)) | ((K == "b") & (D == 2)), [("a", 1), ("b", 2)]),
        (((K == "a") | (K == "b") | (K == "a")) & (D == 1), [("a", 1), ("b", 1)]),
        ((K == "a") & (D == 1) & D.isin([1, 2]), [("a", 1)]),
        ((K == "a") & (D == 1) & (D == 2), []),
        ((K == "a") & D.isin(pa.array([], pa.int64())), []),
        (K.is_null() & (D == 1), [(None, 1)]),
        (K.is_null() & (K == "a") & (D == 1), []),
        (K.isin(["a", None]) & K.is_null() & (D == 1), [(None, 1)]),
        ((K == "a") & (D == 1) & (pa.scalar(1.5) == D), [("a", 1)]),
        ((K == "a") & (pa.scalar(1, pa.int8()) == D), [("a", 1)]),
        (pc.if_else(K.is_valid(), K == "a", pa.scalar(None, pa.bool_())) & (D == 1), [("a", 1)]),
        (pc.if_else(K.is_valid(), K == "a", True) & (D == 1), None),
        (pc.scalar(False), []),
        (pc.scalar(True), None),
        ((K == "a") & (D > 1), None),
        ((K == "a") & (D != 1), None),
        (K == "a", None),
        (~((K == "a") & (D == 1)), None),
        (((K == "a") & (D == 1)) | (N == 1), None),
        ((K == "a") & (pc.field("n") == D), None),
        ((K == "a") & (pc.field("d", "x") == 1), None),
        ((pc.utf8_upper(K) == "A") & (D == 1), None),
        (K.isin(["a"]) & D.isin(list(range(filters.MOST_KEYS + 1))), None),
        ((K == "a") & (pa.scalar("x") == D), None),
    ],
)
def test_keys_that_a_filter_leaves(expression: Any, expected: Any) -> None:
    assert keys(expression) == expected


def test_keys_whose_equality_is_the_engines_own() -> None:
    assert keys(pc.field("x") == 0.0, pa.schema({"x": pa.float64()})) is None


def test_a_long_disjunction() -> None:
    some = reduce(operator.or_, [(str(i) == K) & (i == D) for i in range(300)])
    assert len(keys(some)) == 300
    # With too many ways to pass, one side of a conjunction restricts the keys alone.
    assert keys(some & (D < 4)) is not None and len(keys(some & some)) == 300


@given(st.data())
def test_no_key_is_missed(data: Any) -> None:
    """Rows that pass have keys that were found, whatever the filter is."""
    leaf = st.sampled_from(
        [K == "a", K == "b", D == 1, D == 2, K.isin(["a", "c"]), D.isin([2, 3]), N > 0, D > 1,
         K.is_null(), D.is_null()]
    )  # fmt: skip
    trees = st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.builds(operator.and_, inner, inner),
            st.builds(operator.or_, inner, inner),
            st.builds(operator.invert, inner),
        ),
    )
    expression = data.draw(trees)
    values = [(k, d, n) for k in ("a", "b", "c", None) for d in (1, 2, 3, None) for n in (0, 1)]
    columns = zip(*values, strict=True)
    rows = pa.table({name: list(c) for name, c in zip(("k", "d", "n"), columns, strict=True)})
    passed = rows.filter(expression)
    found = keys_or_all(expression)
    for k, d in zip(passed["k"].to_pylist(), passed["d"].to_pylist(), strict=True):
        assert found is None or (k, d) in found


def keys_or_all(expression: Any) -> Any:
    found = wanted_keys(expression, KEY)
    if found is None:
        return None
    return set(zip(*(column.to_pylist() for column in found), strict=True))


def test_columns_that_a_filter_compares() -> None:
    assert compared_columns((K == "a") & (N > D), ["k", "d", "n", "m"]) == {"k", "d", "n"}
    assert compared_columns(pc.field("st", "a") == 1, ["st", "m"]) >= {"st"}


def test_what_another_pyarrow_writes_restricts_nothing() -> None:
    class Other:
        def __reduce__(self) -> Any:
            return print, (b"something else",)

    assert wanted_keys(Other(), KEY) is None
    assert compared_columns(Other(), ["k", "n"]) == {"k", "n"}
