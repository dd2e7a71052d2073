"""Yielded rows and batches, without Spark; what Spark's schemas add is in tests/spark."""

from __future__ import annotations

import datetime
import enum
import pickle
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
from pystate.operators.runtime.output import OutputColumns, castable, parse_columns
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


def of(process: Any) -> ps.KeyedProcessFunction:
    members = {"n": ps.ValueState("long"), "process": process}
    return type("Of", (ps.KeyedProcessFunction,), members)()  # type: ignore[no-any-return]


@pytest.mark.parametrize("row", ROWS, ids=repr)
def test_a_function_yields_rows_with_names(row: Any) -> None:
    def process(self: Any, key: Any, given: Any, ctx: ps.RuntimeContext) -> Any:
        ctx.output("side", row)
        yield row

    columns = "first long, second long"
    with ps.testing.Harness(
        of(process), key="k", schema=columns, side_outputs={"side": columns}
    ) as harness:
        assert harness.process([{"k": 1}]) == [(1, 2)]
        assert harness.side_output("side") == [(1, 2)]


def test_a_harness_is_fed_rows_of_spark_by_name() -> None:
    copies = of(lambda self, key, row, ctx: [(row.first, row.second)])
    for columns in ("first long, second long", None):
        with ps.testing.Harness(copies, key="first", columns=columns) as harness:
            assert harness.process([Row(second=2, first=1)]) == [(1, 2)]


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
