"""Yielded rows and batches, without Spark; what Spark's schemas add is in tests/spark."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest

from pystate.errors import WrongTypeError
from pystate.output import parse_columns

AWARE = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
NAIVE = datetime.datetime(2020, 1, 1)


@pytest.mark.parametrize(
    ("kind", "values", "reason"),
    [
        ("long", [1, None, "x", 2.5], "'x' of type str: string is not cast to int64"),
        ("long", [1, 2.5, "x"], "2.5 of type float: Float value 2.5"),
        ("string", ["a", b"b", 3], "b'b' of type bytes: bytes is not taken for string"),
        ("string", ["a", 3, b"b"], "3 of type int: Expected bytes, got a 'int' object"),
        ("timestamp", [AWARE, 5, NAIVE], "5 of type int: a number is no instant"),
        ("timestamp", [AWARE, NAIVE, 5], "datetime.*of type datetime: a timestamp needs"),
        ("array<long>", [[1], ["x"], 5], r"\['x'\] of type list: field \[0\] is long"),
    ],
)
def test_the_first_value_that_does_not_fit_is_named_with_its_own_reason(
    kind: str, values: list[Any], reason: str
) -> None:
    columns = parse_columns({"v": kind}, "operator 'one'")
    with pytest.raises(WrongTypeError, match=f"column 'v' is declared {kind} and got {reason}"):
        columns.from_rows([(value,) for value in values])


def test_a_batch_in_place_of_a_row_is_shown_in_one_line() -> None:
    columns = parse_columns("v long", "operator 'one'")
    with pytest.raises(WrongTypeError, match=r"^operator 'one' yielded pyarrow.*: yield a tuple"):
        columns.from_rows([pa.record_batch({"v": [1]})])
