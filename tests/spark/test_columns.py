"""Columns at the borders of an operator."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as st

from pystate.errors import InvalidArgumentError, WrongTypeError
from pystate.operators.runtime.output import OutputColumns
from pystate.spark.base.frame_columns import find
from pystate.spark.base.schemas import key_schema, output_columns, parse_schema

#: Spark parses DDL in its JVM.
pytestmark = pytest.mark.usefixtures("spark")


def output(schema: str) -> OutputColumns:
    return output_columns(parse_schema(schema, "operator 'one'"), "operator 'one'")


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        ([("a", 1), ("a", "b")], ["operator 'one'", "column 'n'", "long", "'b'", "str"]),
        ([("a", 1), ("a",)], ["operator 'one'", "1 values", "2 columns: k, n"]),
        ([("a", 1, 2)], ["operator 'one'", "3 values", "2 columns: k, n"]),
        (["ab"], ["operator 'one'", "'ab'", "yield a tuple"]),
        ([{"k": "a"}], ["operator 'one'", "has no 'n'", "of the schema, k, n"]),
        ([("a", 2**70)], ["column 'n'", "long", "1180591620717411303424"]),
        ([("a", 1.5)], ["column 'n'", "long", "1.5"]),
        ([(None, 1)], ["column 'k'", "declared not null"]),
        ([("a", True)], ["column 'n'", "long", "True"]),
        ([(1, 1)], ["column 'k'", "string", "int"]),
    ],
)
def test_wrong_rows_name_the_column(rows: list[Any], parts: list[str]) -> None:
    with pytest.raises(WrongTypeError) as raised:
        output("k string not null, n long").from_rows(rows)
    for part in parts:
        assert part in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("date", datetime.datetime(2013, 1, 1), "no date"),
        ("timestamp", datetime.datetime(2013, 1, 1), "a time without a time zone is no instant"),
        ("timestamp_ntz", datetime.datetime.now(datetime.timezone.utc), "drop the"),
        ("decimal(4,2)", 1.5, "1.5"),
        ("boolean", 1, "1"),
        ("tinyint", 200, "200"),
        ("double", 2**53 + 1, "9007199254740993"),
    ],
)
def test_values_that_would_change_are_refused(kind: str, value: Any, reason: str) -> None:
    with pytest.raises(WrongTypeError, match=f"column 'x' is declared .*{reason}"):
        output(f"x {kind}").from_rows([(value,)])


def test_rows_become_a_batch() -> None:
    moment = datetime.datetime(2013, 1, 1, tzinfo=datetime.timezone.utc)
    columns = output(
        "k string, n int, d double, t timestamp, a array<int>, s struct<x:int,y:string>"
    )
    batch = columns.from_rows([("a", 1, 2, moment, [1, None], (1, "y")), (None,) * 6])
    assert batch.to_pylist()[0] == {
        "k": "a",
        "n": 1,
        "d": 2.0,
        "t": moment,
        "a": [1, None],
        "s": {"x": 1, "y": "y"},
    }
    assert set(batch.to_pylist()[1].values()) == {None}
    assert columns.from_rows([]).num_rows == 0


@pytest.mark.parametrize(
    ("values", "schema", "wanted"),
    [
        (pa.array([1], pa.int8()), "x long", [1]),
        (pa.array([2.0]), "x int", [2]),
        (pa.array([None]), "x int", [None]),
        (pa.array(["a"]).dictionary_encode(), "x string", ["a"]),
        (pa.array(["a"], pa.large_string()), "x string", ["a"]),
        (
            pa.array([1], pa.timestamp("s", "Europe/Berlin")).cast(pa.timestamp("s", "UTC")),
            "x timestamp",
            [datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.timezone.utc)],
        ),
        (pa.array([[1]], pa.list_(pa.int8())), "x array<long>", [[1]]),
    ],
)
def test_arrays_are_cast(values: pa.Array[Any], schema: str, wanted: list[Any]) -> None:
    [batch] = output(schema).from_value({"x": values})
    assert batch.column("x").to_pylist() == wanted
    assert batch.schema == output(schema).schema


@pytest.mark.parametrize(
    ("values", "schema"),
    [
        (pa.array([2.5]), "x int"),
        (pa.array(["1"]), "x int"),
        (pa.array([1]), "x string"),
        (pa.array([2**40]), "x int"),
        (pa.array([True]), "x int"),
        (pa.array([b"a"]), "x string"),
    ],
)
def test_arrays_that_would_change_are_refused(values: pa.Array[Any], schema: str) -> None:
    with pytest.raises(WrongTypeError) as raised:
        output(schema).from_value(pa.record_batch({"x": values}))
    text = str(raised.value)
    assert "column 'x'" in text and schema[2:] in text and str(values.type) in text


def test_columns_are_matched_by_name() -> None:
    [batch] = output("x int, y int").from_value(pa.table({"y": [1], "x": [2]}))
    assert batch.to_pylist() == [{"x": 2, "y": 1}]
    with pytest.raises(WrongTypeError, match="yielded columns x, z; its schema has x, y"):
        output("x int, y int").from_value({"x": [1], "z": [1]})
    with pytest.raises(WrongTypeError, match="yield a pyarrow RecordBatch"):
        output("x int").from_value(3)


def test_schemas_that_do_not_parse() -> None:
    with pytest.raises(
        InvalidArgumentError, match="operator 'one': schema 'k strin' does not parse"
    ):
        output("k strin")
    with pytest.raises(InvalidArgumentError, match="names k more than once"):
        output("k string, K long")
    with pytest.raises(InvalidArgumentError, match="schema is DDL such as"):
        parse_schema(["k string"], "operator 'one'")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (st.ArrayType(st.LongType()), "key column 'k' is array<bigint>, which cannot be a key"),
        (st.StringType("UNICODE_CI"), "key column 'k' is string collate UNICODE_CI.*UTF8_BINARY"),
        (st.StructType([]), "cannot be a key: cast it"),
        (st.NullType(), "cannot be a key"),
    ],
)
def test_key_columns_that_are_refused(kind: st.DataType, error: str) -> None:
    schema = st.StructType([st.StructField("k", kind), st.StructField("v", st.LongType())])
    with pytest.raises(WrongTypeError, match=error):
        key_schema(schema, ["k"], "operator 'one'")


@pytest.mark.parametrize(
    ("kind", "instead"),
    [
        ("char(5)", "string"),
        ("varchar(3)", "string"),
        ("interval year to month", "long"),
        ("array<struct<x: varchar(3)>>", ""),
    ],
)
def test_types_that_do_not_travel(kind: str, instead: str) -> None:
    error = f"operator 'one': column 'y' is .*: cast it to another type, e.g. {instead}"
    with pytest.raises(WrongTypeError, match=error):
        output(f"x long, y {kind}")


def test_columns_that_are_not_there() -> None:
    from pyspark.sql import functions as F

    schema = parse_schema("a long, b struct<c:long, `d.e`:long>, Tail long, `f.g` long", "x")
    listed = "columns: a, b, Tail, f.g"
    for name, error in (
        (F.col("a"), "operator 'one': Column<'a'> is not the name .* withColumn first"),
        (["a", "b"], r"operator 'one': \['a', 'b'\] is not the name of a column"),
        (None, "operator 'one': None is not the name of a column"),
        ("a.c", f"'a.c' is not a column; {listed}$"),
        ("c", f"'c' is not a column; {listed}"),
        ("tial", f"'tial' is not a column; {listed}; did you mean 'Tail'"),
        ("b.d.e", "'b.d.e' is not a column"),
        ("", "'' is not a column"),
        ("`a", "'`a' is not a column"),
    ):
        with pytest.raises(InvalidArgumentError, match=error):
            find(schema, name, "operator 'one'")
    with pytest.raises(InvalidArgumentError, match="at least one column"):
        key_schema(schema, [], "operator 'one'")
    with pytest.raises(InvalidArgumentError, match="named twice"):
        key_schema(schema, ["a", "a"], "operator 'one'")


@pytest.mark.parametrize(
    ("name", "parts", "sensitive"),
    [
        ("a", ("a",), True),
        ("A", ("a",), False),
        ("`a`", ("a",), True),
        ("TAIL", ("Tail",), False),
        ("b.c", ("b", "c"), True),
        ("B.C", ("b", "c"), False),
        ("`b`.`d.e`", ("b", "d.e"), True),
        ("f.g", ("f.g",), True),
        ("`f.g`", ("f.g",), True),
        ("x`y", ("x`y",), True),
        ("`x``y`", ("x`y",), True),
    ],
)
def test_columns_are_found_as_spark_finds_them(
    name: str, parts: tuple[str, ...], sensitive: bool
) -> None:
    schema = parse_schema("a long, b struct<c:long, `d.e`:long>, Tail long, `f.g` long", "x")
    schema = schema.add("x`y", st.LongType())
    assert find(schema, name, "x", case_sensitive=sensitive) == (parts, st.LongType())


def test_names_that_only_case_tells_apart() -> None:
    schema = st.StructType().add("k", st.LongType()).add("K", st.LongType())
    assert find(schema, "K", "x", case_sensitive=True).parts == ("K",)
    with pytest.raises(InvalidArgumentError, match="'K' is the name of 2 columns: `k`, `K`"):
        find(schema, "K", "x")
    with pytest.raises(InvalidArgumentError, match="'a' is not a column"):
        find(st.StructType().add("A", st.LongType()), "a", "x", case_sensitive=True)
    both = st.StructType().add("a.b", st.LongType())
    both = both.add("a", st.StructType().add("b", st.LongType()))
    with pytest.raises(InvalidArgumentError, match=r"2 columns: `a.b`, `a`.`b`"):
        find(both, "a.b", "x")
    assert find(both, "`a.b`", "x").parts == ("a.b",)
    assert find(both, "`a`.b", "x").parts == ("a", "b")
