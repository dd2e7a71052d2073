"""Yielded structs, arrays and maps."""

from __future__ import annotations

import datetime
import pickle
from collections import namedtuple
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pystate.errors import WrongTypeError
from pystate.operators.runtime.output import OutputColumns, castable, parse_columns

UTC = datetime.timezone.utc
OWNER = "operator 'one'"


def column(kind: str | pa.DataType, *values: Any) -> list[Any]:
    schema: Any = {"v": kind} if isinstance(kind, str) else pa.schema([("v", kind)])
    columns = parse_columns(schema, OWNER)
    columns = pickle.loads(pickle.dumps(columns))
    batch = columns.from_rows([(value,) for value in values])
    assert batch.schema == columns.schema
    batch.validate(full=True)
    found: list[Any] = batch.column("v").to_pylist()
    return found


def test_names_count_where_a_value_has_them() -> None:
    named = namedtuple("named", "b a")
    given = (named(1, 2), {"b": 1, "a": 2}, (2, 1), {"a": 3}, None)
    assert column("struct<a:int,b:int>", *given) == [
        {"a": 2, "b": 1},
        {"a": 2, "b": 1},
        {"a": 2, "b": 1},
        {"a": 3, "b": None},
        None,
    ]


def test_values_that_keep_their_meaning() -> None:
    moment = datetime.datetime(2020, 1, 1, tzinfo=UTC)
    assert column("array<double>", [1, 0.5, None], (np.float64(2.0),), np.array([3.0])) == [
        [1.0, 0.5, None],
        [2.0],
        [3.0],
    ]
    assert column("map<string,array<timestamp>>", {"b": [moment], "a": None}, [("c", [])]) == [
        [("a", None), ("b", [moment])],
        [("c", [])],
    ]


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("array<int>", [1, 2.5], r"field \[1\] is int: it does not take 2.5 \(float\)"),
        ("array<int>", [2.0], r"field \[0\] is int: it does not take 2.0"),
        ("array<int>", [2**40], r"field \[0\]: 1099511627776 is out of the range of int$"),
        ("array<float>", [1e300], r"field \[0\]: 1e\+300 is out of the range of float$"),
        ("struct<at:timestamp>", {"at": datetime.datetime(2020, 1, 1)}, "field at is timestamp"),
        ("struct<at:timestamp>", {"at": 5}, "field at is timestamp: it does not take 5"),
        ("struct<at:date>", (datetime.datetime(2020, 1, 1),), "field at is date"),
        ("struct<a:struct<b:string>>", {"a": {"b": b"x"}}, "field a.b is string"),
        ("struct<a:int>", {"a": 1, "z": 2}, "it has no field 'z'"),
        ("struct<a:int>", 5, r"it does not take 5 \(int\)$"),
        ("map<string,int>", {"a": "x"}, r"field \['a'\] is int: it does not take 'x'"),
        ("map<string,int>", {None: 1}, "a map's key is never None"),
        ("array<string>", "ab", r"it does not take 'ab' \(str\)$"),
    ],
)
def test_what_states_refuse_is_refused(kind: str, value: Any, reason: str) -> None:
    good: Any = [] if kind.startswith("array") else {}
    with pytest.raises(WrongTypeError, match=reason) as raised:
        column(kind, None, good, value)
    text = str(raised.value)
    assert text.startswith(f"{OWNER}: column 'v' is declared {kind} and got {value!r} of type ")
    assert "state" not in text


NOT_NULL = pa.field("x", pa.int32(), nullable=False)


@pytest.mark.parametrize(
    ("kind", "good", "bad", "path"),
    [
        (pa.struct([NOT_NULL]), [{"x": 1}, None], {"x": None}, "x"),
        (pa.list_(NOT_NULL), [[1], [], None], [None], r"\[\]"),
        (pa.map_(pa.string(), NOT_NULL), [[("a", 1)], None], {"a": None}, "value"),
        (
            pa.list_(pa.struct([("s", pa.struct([NOT_NULL]))])),
            [[{"s": {"x": 1}}, {"s": None}, None]],
            [{"s": {}}],
            r"\[\].s.x",
        ),
    ],
    ids=str,
)
def test_fields_that_are_declared_not_null(kind: Any, good: list[Any], bad: Any, path: str) -> None:
    assert column(kind, *good) == good
    with pytest.raises(WrongTypeError, match=f"field {path} is declared not null and got a null"):
        column(kind, bad)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.large_list(pa.large_string()), ["a", None]),
        (pa.list_(pa.int64(), 2), [1, 2]),
        (pa.struct([("s", pa.large_string()), ("t", pa.timestamp("us", "Europe/Oslo"))]), None),
        # Types that states have not keep Arrow's rules.
        (pa.list_(pa.duration("us")), [datetime.timedelta(1)]),
        (pa.list_(pa.null()), [None]),
        (pa.map_(pa.list_(pa.int64()), pa.int64()), [([1], 2)]),
    ],
    ids=str,
)
def test_other_arrow_types(kind: Any, value: Any) -> None:
    assert column(kind, value, None) == [value, None]


def test_no_rows() -> None:
    assert OutputColumns(pa.schema([("v", pa.list_(NOT_NULL))]), OWNER).from_rows([]).num_rows == 0


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (pa.list_(pa.int8()), pa.list_(pa.int64()), True),
        (pa.list_(pa.int64()), pa.list_(pa.timestamp("us", "UTC")), False),
        (pa.list_(pa.int64()), pa.int64(), False),
        (pa.struct([("a", pa.int8())]), pa.struct([("b", pa.date32()), ("a", pa.int16())]), True),
        (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.string())]), False),
        (pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int16()), True),
        (pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.string()), False),
        (pa.map_(pa.int8(), pa.int8()), pa.map_(pa.string(), pa.int8()), False),
    ],
    ids=str,
)
def test_columns_are_cast_where_all_inside_keeps_its_meaning(
    source: pa.DataType, target: pa.DataType, expected: bool
) -> None:
    assert castable(source, target) is expected
