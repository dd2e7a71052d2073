"""Yielded rows and batches, without Spark; what Spark's schemas add is in tests/spark."""

from __future__ import annotations

import datetime
import enum
from collections import namedtuple
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Row

import pystate as ps
from pystate.errors import WrongTypeError
from pystate.operators.runtime.output import parse_columns
from pystate.operators.runtime.rows import RowFactory

AWARE = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
NAIVE = datetime.datetime(2020, 1, 1)


@pytest.mark.parametrize(
    ("kind", "values", "reason"),
    [
        ("long", [1, None, "x", 2.5], "'x' of type str: str is not cast to int64"),
        ("long", [1, 2.5, "x"], "2.5 of type float: it is no whole number"),
        ("string", ["a", b"b", 3], "b'b' of type bytes: bytes is not taken for string"),
        ("string", ["a", 3, b"b"], "3 of type int: Expected bytes, got a 'int' object"),
        ("timestamp", [AWARE, 5, NAIVE], "5 of type int: a number is no instant"),
        ("timestamp", [AWARE, NAIVE, 5], "datetime.*of type datetime: a time without"),
        ("array<long>", [[1], ["x"], 5], r"\['x'\] of type list: field \[0\] is long"),
    ],
)
def test_the_first_value_that_does_not_fit_is_named_with_its_own_reason(
    kind: str, values: list[Any], reason: str
) -> None:
    columns = parse_columns({"v": kind}, "operator 'one'")
    with pytest.raises(WrongTypeError, match=f"column 'v' is declared {kind} and got {reason}"):
        columns.from_rows([(value,) for value in values])


class Colour(enum.IntEnum):
    RED = 3


THREES = [3, np.int8(3), np.uint64(3), Colour.RED, 3.0, np.float32(3), np.float16(3), np.float64(3)]
THREES += [Decimal(3), Decimal("3.00"), pa.scalar(3), pa.scalar(3.0)]
NO_SHORTS = [
    True,
    np.True_,
    3.5,
    np.float32(0.1),
    Decimal("0.5"),
    1 << 15,
    -40000.0,
    np.int64(1 << 40),
]
NO_SHORTS += [float("nan"), float("-inf"), Decimal("NaN"), Decimal("Infinity"), Decimal("1e30")]
NO_SHORTS += ["3", b"3", 3j, Fraction(3), np.timedelta64(3, "s"), datetime.timedelta(3), AWARE, [3]]
OTHERS: list[list[Any]] = [[], [None], [1], [None, -1, 2.0], [np.int16(1)], [Decimal(1)], [1 << 14]]


@pytest.mark.parametrize("others", OTHERS, ids=repr)
def test_an_integer_is_taken_or_refused_whatever_else_its_column_has(others: list[Any]) -> None:
    columns = parse_columns("v short", "operator 'one'")
    for value in THREES:
        for rows in ([value, *others], [*others, value]):
            found = columns.from_rows([(each,) for each in rows]).column(0)
            assert found.type == pa.int16() and found.to_pylist() == [
                3 if each is value else each for each in rows
            ]
    for value in NO_SHORTS:
        for rows in ([value, *others], [*others, value]):
            with pytest.raises(WrongTypeError, match=r"'v' is declared short and got .* of type"):
                columns.from_rows([(each,) for each in rows])


def test_a_batch_in_place_of_a_row_is_shown_in_one_line() -> None:
    columns = parse_columns("v long", "operator 'one'")
    with pytest.raises(WrongTypeError, match=r"^operator 'one' yielded pyarrow.*: yield a tuple"):
        columns.from_rows([pa.record_batch({"v": [1]})])


# -- rows with names


class Pair(NamedTuple):
    second: int
    first: int


ROWS = [
    Row(second=2, first=1),
    Row("second", "first")(2, 1),
    {"second": 2, "first": 1},
    Pair(second=2, first=1),
    namedtuple("Same", ["first", "second"])(1, 2),
    next(RowFactory(["second", "first"]).rows(pa.record_batch({"second": [2], "first": [1]}))),
    (1, 2),
    [1, 2],
    Row(1, 2),
]


@pytest.mark.parametrize("row", ROWS, ids=repr)
def test_what_has_names_goes_by_them_and_what_has_none_by_position(row: Any) -> None:
    columns = parse_columns("first long, second long", "operator 'one'")
    assert columns.from_rows([row]).to_pylist() == [{"first": 1, "second": 2}]


def test_rows_of_all_kinds_in_one_batch() -> None:
    columns = parse_columns("first long, second long", "operator 'one'")
    assert columns.from_rows(ROWS).to_pylist() == [{"first": 1, "second": 2}] * len(ROWS)


@pytest.mark.parametrize(
    ("row", "error"),
    [
        (Row(secnd=2, first=1), "has no 'second' and has an unknown 'secnd'"),
        ({"first": 1}, "has no 'second'"),
        ({"First": 1, "second": 2}, "has no 'first' and has an unknown 'First'"),
        ({"first": 1, "second": 2, 3: 3}, "has an unknown 3"),
        ({}, "has no 'first', 'second'"),
        (Row("first", "second", "first")(1, 2, 3), "has twice 'first'"),
        (namedtuple("Other", ["a", "b"])(1, 2), "has no 'first', 'second' and .* 'a', 'b'"),
    ],
    ids=repr,
)
def test_names_that_are_not_exactly_the_schemas_are_refused(row: Any, error: str) -> None:
    columns = parse_columns("first long, second long", "operator 'one'")
    with pytest.raises(
        WrongTypeError, match=rf"^operator 'one' yielded .*, which {error}: .*, first, second; a"
    ):
        columns.from_rows([(1, 2), row])


@pytest.mark.parametrize("row", ROWS, ids=repr)
def test_a_function_yields_rows_with_names(row: Any) -> None:
    class Yields(ps.KeyedProcessFunction):
        n = ps.ValueState("long")

        def process(self, key: Any, given: Any, ctx: ps.RuntimeContext) -> Any:
            ctx.output("side", row)
            yield row

    with ps.testing.Harness(
        Yields(),
        key="k",
        schema="first long, second long",
        side_outputs={"side": "first long, second long"},
    ) as harness:
        assert harness.process([{"k": 1}]) == [(1, 2)]
        assert harness.side_output("side") == [(1, 2)]


def test_a_harness_is_fed_rows_of_spark_by_name() -> None:
    class Copies(ps.KeyedProcessFunction):
        n = ps.ValueState("long")

        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
            yield row.first, row.second

    with ps.testing.Harness(Copies(), key="first", columns="first long, second long") as harness:
        assert harness.process([Row(second=2, first=1)]) == [(1, 2)]
    with ps.testing.Harness(Copies(), key="first") as harness:
        assert harness.process([Row(second=2, first=1)]) == [(1, 2)]
