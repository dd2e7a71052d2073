"""Values in JSON and back, without loss."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pystate.errors import InvalidArgumentError, WrongTypeError
from pystate.query.json_form import column_of, document, keys_of, parsed, rows_of, values_of

NAN = float("nan")
VALUES: list[tuple[pa.DataType, list[Any], list[Any]]] = [
    (pa.bool_(), [True, False], [True, False]),
    (pa.int32(), [-7, 2**31 - 1], [-7, 2**31 - 1]),
    (
        pa.int64(),
        [2**53 - 1, 2**53, -(2**53), 2**63 - 1, -(2**63)],
        [2**53 - 1, str(2**53), str(-(2**53)), str(2**63 - 1), str(-(2**63))],
    ),
    (pa.float64(), [0.1, float("inf"), float("-inf"), -0.0], [0.1, "Infinity", "-Infinity", -0.0]),
    (pa.float32(), [0.1, 1e30], [0.1, 1e30]),
    (
        pa.decimal128(38, 10),
        [Decimal("1e-10"), Decimal("-12345678901234567890.5")],
        ["0.0000000001", "-12345678901234567890.5000000000"],
    ),
    (pa.string(), ["", 'ü\n"', "5"], ["", 'ü\n"', "5"]),
    (pa.binary(), [b"", b"\x00\xff"], ["", "AP8="]),
    (pa.date32(), [0, -800_000, 3_000_000], ["1970-01-01", "-0221-09-04", "10183-09-21"]),
    (
        pa.timestamp("us", "UTC"),
        [0, 1, -1, 1_700_000_000_250_000, 2**62],
        [
            "1970-01-01T00:00:00Z",
            "1970-01-01T00:00:00.000001Z",
            "1969-12-31T23:59:59.999999Z",
            "2023-11-14T22:13:20.250000Z",
            "148108-07-06T14:00:27.387904Z",
        ],
    ),
    (pa.timestamp("us"), [1_000_000], ["1970-01-01T00:00:01"]),
    (pa.list_(pa.int64()), [[], [1, None, 2**60]], [[], [1, None, str(2**60)]]),
    (
        pa.struct([("a", pa.binary()), ("b", pa.list_(pa.float64()))]),
        [{"a": b"x", "b": [1.5]}, {"a": None, "b": None}],
        [{"a": "eA==", "b": [1.5]}, {"a": None, "b": None}],
    ),
    (
        pa.map_(pa.int64(), pa.string()),
        [[(2**60, "x"), (1, None)], []],
        [[[str(2**60), "x"], [1, None]], []],
    ),
]


@pytest.mark.parametrize(("type_", "values", "form"), VALUES, ids=lambda v: str(v)[:20])
def test_each_value_has_one_form_and_comes_back(
    type_: pa.DataType, values: list[Any], form: list[Any]
) -> None:
    column = pa.array([*values, None], type_)
    assert values_of(column) == [*form, None]
    assert values_of(column.slice(1)) == [*form[1:], None]
    assert values_of(pa.chunked_array([column, column])) == [*form, None, *form, None]
    sent = json.loads(document(values_of(column)))
    assert column_of(sent, type_, "x").equals(column)


def test_what_is_no_number_is_a_string() -> None:
    assert values_of(pa.array([NAN])) == ["NaN"]
    [back] = column_of(["NaN"], pa.float64(), "x").to_pylist()
    assert back != back


def test_what_is_no_type_of_states_is_text() -> None:
    rows = pa.table(
        {
            "a": pa.array([1, None], pa.uint64()),
            "b": pa.array(["x", "y"]).dictionary_encode(),
            "c": pa.array([5, None], pa.duration("s")),
            "d": pa.array([5, None], pa.timestamp("s")),
            "e": pa.nulls(2),
            "f": pa.array([[1], None], pa.list_(pa.int8(), 1)),
        }
    )
    first, second = rows_of(rows)
    assert first == {
        "a": 1, "b": "x", "c": "0:00:05", "d": "1970-01-01T00:00:05", "e": None, "f": [1]
    }  # fmt: skip
    assert set(second.values()) == {None, "y"}
    assert rows_of(pa.table({})) == []


@pytest.mark.parametrize(
    ("value", "type_"),
    [
        ("x", pa.int64()),
        (1.5, pa.int64()),
        (True, pa.int64()),
        (2**63, pa.int64()),
        ("9" * 41, pa.int64()),
        (300, pa.int8()),
        (1, pa.bool_()),
        (1, pa.string()),
        ("\ud800", pa.string()),
        ("nan", pa.decimal128(5, 2)),
        ("1e99999", pa.decimal128(5, 2)),
        ("1.234", pa.decimal128(5, 2)),
        ("=", pa.binary()),
        ("2026-13-01", pa.date32()),
        ("now", pa.timestamp("us", "UTC")),
        ("2026-01-01T00:00:00", pa.timestamp("us", "UTC")),
        ("2026-01-01T00:00:00Z", pa.timestamp("us")),
        ("2026-01-01T25:00:00", pa.timestamp("us")),
        (10**400, pa.float64()),
        ({}, pa.list_(pa.int64())),
        ([[None, 1]], pa.map_(pa.int64(), pa.int64())),
        ({"b": 1}, pa.struct([("a", pa.int64())])),
    ],
)
def test_what_is_of_another_type_is_refused(value: Any, type_: pa.DataType) -> None:
    with pytest.raises(WrongTypeError, match=r"^key column 'x'") as caught:
        column_of([value], type_, "key column 'x'")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_other_zones_and_spellings_are_taken() -> None:
    utc = pa.timestamp("us", "UTC")
    forms = ["1970-01-01T01:00:00+01:00", "1969-12-31 19:00:00-0500", "1970-01-01T00:00Z"]
    assert column_of(forms, utc, "x").cast(pa.int64()).to_pylist() == [0, 0, 0]
    assert column_of(["7", 7.0, 7], pa.int64(), "x").to_pylist() == [7, 7, 7]
    assert column_of(["AP8"], pa.binary(), "x").to_pylist() == [b"\x00\xff"]


def test_keys_of_several_columns() -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.int32())])
    keys = keys_of([["x", 1], {"b": 2, "a": None}], schema)
    assert [key.to_pylist() for key in keys] == [["x", None], [1, 2]]
    for wrong in ("x", ["x"], {"a": "x"}, {"a": "x", "b": 1, "c": 1}, None):
        with pytest.raises(WrongTypeError, match="a key has the columns a string, b int32"):
            keys_of([wrong], schema)
    # A column that tells a null struct from others may be left out.
    marked = pa.schema([("k.a", pa.int64()), ("k is null", pa.bool_())])
    assert [c.to_pylist() for c in keys_of([[5], [5, True]], marked)] == [[5, 5], [None, True]]


def test_documents_that_are_none() -> None:
    for text in ("", "{", "NaN", "[1,]", "[" * 100_000):
        with pytest.raises(InvalidArgumentError, match=r"^the body is not JSON"):
            parsed(text, "the body")
