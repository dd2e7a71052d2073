"""Types in their spellings, Python values in and out, and columns cast without loss."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import types as st

import pystate as ps
from pystate._core import core
from pystate.errors import DeclarationError, StateOverflowError, WrongTypeError
from pystate.operators.runtime.output import parse_columns
from pystate.types.arrays import as_array, from_parts, hash_keys, key_groups
from pystate.types.nested import codec_of
from pystate.types.state_type import from_code, parse_type

UTC = dt.timezone.utc

SPELLINGS = {
    "boolean": ["boolean", "BOOLEAN", pa.bool_()],
    "byte": ["byte", "tinyint", pa.int8()],
    "short": ["short", "smallint", pa.int16()],
    "int": ["int", "integer", " Int ", pa.int32()],
    "long": ["long", "bigint", pa.int64()],
    "float": ["float", "real", pa.float32()],
    "double": ["double", pa.float64()],
    "date": ["date", pa.date32()],
    "timestamp": ["timestamp", "timestamp_ltz", pa.timestamp("us", tz="Europe/Berlin")],
    "timestamp_ntz": ["timestamp_ntz", pa.timestamp("us")],
    "decimal(10,0)": ["decimal", "numeric", "decimal(10)", pa.decimal128(10)],
    "decimal(38,18)": ["decimal(38,18)", "DEC( 38 , 18 )", pa.decimal128(38, 18)],
    "string": ["string", pa.string(), pa.large_string()],
    "binary": ["binary", pa.binary(), pa.large_binary()],
    "object": [object],
}


@pytest.mark.parametrize(
    ("ddl", "spelling"), [(ddl, s) for ddl, found in SPELLINGS.items() for s in found]
)
def test_every_spelling_is_read(ddl: str, spelling: object) -> None:
    assert parse_type(spelling).ddl == ddl
    assert parse_type(parse_type(spelling)).ddl == ddl


@pytest.mark.parametrize(
    ("spelling", "said"),
    [
        ("lnog", "for states; did you mean 'long'?"),
        ("array<uint8>", "'uint8' is not supported"),
        ("array", "'array' is not supported"),
        ("variant", "not supported yet"),
        (pa.list_(pa.uint64()), "'uint64' is not supported"),
        (pa.uint64(), "'uint64' is not supported"),
        (pa.timestamp("ns"), "microseconds"),
        (pa.decimal256(50), "not supported"),
        ("varchar(10)", "not supported"),
        ("string collate UNICODE_CI", "collation"),
        ("decimal(39,0)", "1 to 38"),
        ("decimal(5,6)", "1 to 38"),
        ("bool", "not supported"),
        (int, "for int write 'long'"),
        (dt.datetime, "for datetime write 'timestamp'"),
        (7, "is no type"),
    ],
)
def test_an_unknown_type_is_refused_by_name(spelling: object, said: str) -> None:
    with pytest.raises(DeclarationError, match="state 'x'") as caught:
        parse_type(spelling, "state 'x'")  # type: ignore[arg-type]
    assert said in str(caught.value)
    assert (
        "boolean, byte" in str(caught.value)
        or "1 to 38" in str(caught.value)
        or ("collation" in str(caught.value) or "microseconds" in str(caught.value))
    )


@pytest.mark.parametrize("ddl", [d for d in SPELLINGS if d not in ("timestamp_ntz",)])
def test_a_files_type_code_leads_back_to_the_type(ddl: str) -> None:
    type_ = parse_type(object if ddl == "object" else ddl)
    assert from_code(type_.code, type_.precision, type_.scale) == type_


class Index:
    def __index__(self) -> int:
        return 7


ROUND_TRIPS = [
    ("boolean", True, True),
    ("boolean", np.bool_(False), False),
    ("byte", -128, -128),
    ("short", 32767, 32767),
    ("int", np.int64(-5), -5),
    ("int", Index(), 7),
    ("long", 2**63 - 1, 2**63 - 1),
    ("long", -(2**63), -(2**63)),
    ("long", pa.scalar(3), 3),
    ("float", 0.5, 0.5),
    ("float", 0.1, float(np.float32(0.1))),
    ("float", float("inf"), float("inf")),
    ("double", 0.1, 0.1),
    ("double", 3, 3.0),
    ("double", np.float32(0.5), 0.5),
    ("double", -0.0, -0.0),
    ("date", dt.date(1, 1, 1), dt.date(1, 1, 1)),
    ("date", dt.date(9999, 12, 31), dt.date(9999, 12, 31)),
    ("timestamp", dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), None),
    (
        "timestamp",
        dt.datetime(2024, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))),
        dt.datetime(2024, 1, 1, tzinfo=UTC),
    ),
    ("timestamp_ntz", dt.datetime(2024, 2, 29, 1, 2, 3, 4), None),
    ("decimal(5,2)", Decimal("-123.45"), None),
    ("decimal(5,2)", Decimal("1.2"), Decimal("1.20")),
    ("decimal(5,2)", 7, Decimal("7.00")),
    ("decimal(5,2)", Decimal("1.2000"), Decimal("1.20")),
    ("decimal(38,0)", Decimal("-99999999999999999999999999999999999999"), None),
    ("decimal(38,38)", Decimal("0.99999999999999999999999999999999999999"), None),
    ("decimal(5,2)", Decimal("0E+500"), Decimal("0.00")),
    ("string", "", ""),
    ("string", "żółw \U0001f422 \0", None),
    ("string", np.str_("x"), "x"),
    ("binary", b"\0\xff", None),
    ("binary", bytearray(b"ab"), b"ab"),
    ("binary", memoryview(b"ab"), b"ab"),
]


@pytest.mark.parametrize(("ddl", "value", "wanted"), ROUND_TRIPS)
def test_values_come_back_as_they_went_in(ddl: str, value: object, wanted: object) -> None:
    wanted = value if wanted is None else wanted
    found = codec_of(parse_type(ddl), "x").normalize(value)
    assert found == wanted
    assert type(found) in (bool, int, float, str, bytes, dt.date, dt.datetime, Decimal)
    if isinstance(found, float):
        assert math.copysign(1, found) == math.copysign(1, float(wanted))  # type: ignore[arg-type]
    if isinstance(found, Decimal):
        assert found.as_tuple().exponent == -parse_type(ddl).scale


REFUSED = [
    ("boolean", 1, WrongTypeError),
    ("boolean", "true", WrongTypeError),
    ("int", True, WrongTypeError),
    ("int", np.bool_(True), WrongTypeError),
    ("int", 1.0, WrongTypeError),
    ("int", "1", WrongTypeError),
    ("int", None, WrongTypeError),
    ("byte", 128, StateOverflowError),
    ("short", -32769, StateOverflowError),
    ("int", 2**31, StateOverflowError),
    ("long", 2**63, StateOverflowError),
    ("long", 10**30, StateOverflowError),
    ("long", np.zeros((2, 2), np.int64), WrongTypeError),
    ("float", 1e39, StateOverflowError),
    ("float", "1", WrongTypeError),
    ("float", 2**24 + 1, WrongTypeError),
    ("double", True, WrongTypeError),
    ("double", 2**53 + 1, WrongTypeError),
    ("double", 10**400, StateOverflowError),
    ("double", Decimal(1), WrongTypeError),
    ("date", dt.datetime(2024, 1, 1), WrongTypeError),
    ("date", 5, WrongTypeError),
    ("timestamp", dt.datetime(2024, 1, 1), WrongTypeError),
    ("timestamp", dt.date(2024, 1, 1), WrongTypeError),
    ("timestamp", 5, WrongTypeError),
    ("timestamp_ntz", dt.datetime(2024, 1, 1, tzinfo=UTC), WrongTypeError),
    ("timestamp", pd.Timestamp("2024-01-01T00:00:00.123456789Z"), WrongTypeError),
    ("timestamp_ntz", pd.Timestamp("2024-01-01T00:00:00.000000001"), WrongTypeError),
    ("timestamp", pd.NaT, WrongTypeError),
    ("timestamp_ntz", pd.NaT, WrongTypeError),
    ("date", pd.NaT, WrongTypeError),
    ("decimal(5,2)", Decimal("1.234"), WrongTypeError),
    ("decimal(5,2)", Decimal("1000"), StateOverflowError),
    ("decimal(5,2)", Decimal("1E+500"), StateOverflowError),
    ("decimal(5,2)", Decimal("NaN"), WrongTypeError),
    ("decimal(5,2)", 1.5, WrongTypeError),
    ("string", b"x", WrongTypeError),
    ("string", "\ud800", WrongTypeError),
    ("binary", "x", WrongTypeError),
]


@pytest.mark.parametrize(("ddl", "value", "error"), REFUSED)
def test_a_value_of_another_type_is_refused(
    ddl: str, value: object, error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"^state 'legs'") as caught:
        codec_of(parse_type(ddl), "legs").normalize(value)
    assert ddl in str(caught.value)


def test_nan_has_one_normal_form() -> None:
    codec = codec_of(parse_type("double"), "x")
    other = float(np.array([0x7FF8_0000_0000_0001], np.uint64).view(np.float64)[0])
    assert codec.normalize(other) is codec.normalize(float("nan"))


COLUMNS = [
    ("long", pa.array([1, None], pa.int8()), [1, None]),
    ("byte", pa.array([127, -128], pa.int64()), [127, -128]),
    ("long", pa.array([5], pa.uint64()), [5]),
    ("double", pa.array([1, 2**53], pa.int64()), [1.0, 2.0**53]),
    ("double", pa.array([0.5], pa.float32()), [0.5]),
    ("float", [0.5, None], [0.5, None]),
    ("float", [0.5, 2, float("inf")], [0.5, 2.0, float("inf")]),
    ("float", [0.1], [float(np.float32(0.1))]),
    ("double", [1, 2.5], [1.0, 2.5]),
    ("string", pa.array(["a", None], pa.large_string()), ["a", None]),
    ("string", pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
    ("binary", pa.array([b"ab"], pa.binary(2)), [b"ab"]),
    ("decimal(7,3)", pa.array([Decimal("1.50")], pa.decimal128(5, 2)), [Decimal("1.500")]),
    ("decimal(7,3)", [Decimal("1.5"), 2], [Decimal("1.500"), Decimal("2.000")]),
    (
        "timestamp",
        pa.array([1], pa.timestamp("ms", "UTC")),
        [dt.datetime(1970, 1, 1, 0, 0, 0, 1000, UTC)],
    ),
    ("timestamp_ntz", np.array(["2024-01-01"], "M8[s]"), [dt.datetime(2024, 1, 1)]),
    ("date", [dt.date(2024, 1, 1)], [dt.date(2024, 1, 1)]),
    ("boolean", np.array([True, False]), [True, False]),
    ("long", np.array([3, 4], np.int16), [3, 4]),
    ("long", pa.chunked_array([[1], [2, 3]]), [1, 2, 3]),
    ("long", pa.chunked_array([], pa.int64()), []),
    ("long", [], []),
    ("string", [None], [None]),
    ("long", range(3), [0, 1, 2]),
    ("string", np.array(["a", "bc"]), ["a", "bc"]),
]


@pytest.mark.parametrize(("ddl", "column", "wanted"), COLUMNS)
def test_columns_are_cast_where_nothing_is_lost(ddl: str, column: object, wanted: object) -> None:
    array = as_array(column, parse_type(ddl), "column")
    assert array.type == parse_type(ddl).arrow
    assert array.to_pylist() == wanted


REFUSED_COLUMNS = [
    ("long", pa.array(["1"])),
    ("string", pa.array([1])),
    ("long", pa.array([1.0])),
    ("long", [1.5]),
    ("long", [True]),
    ("int", [1, "a"]),
    ("byte", pa.array([300])),
    ("long", pa.array([2**63], pa.uint64())),
    ("float", pa.array([0.1], pa.float64())),
    ("float", [1e300, None]),
    ("float", [-1e39, float("inf")]),
    ("float", [0.5, 2**24 + 1]),
    ("float", [True, False]),
    ("timestamp", [dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1, tzinfo=UTC)]),
    ("timestamp_ntz", [dt.datetime(2024, 1, 1, tzinfo=UTC), dt.datetime(2024, 1, 1)]),
    ("double", pa.array([2**53 + 1])),
    ("double", pa.array([Decimal("1.5")])),
    ("decimal(5,2)", pa.array([Decimal("1.234")])),
    ("decimal(3,2)", pa.array([Decimal("10.00")])),
    ("decimal(5,2)", pa.array([1.5])),
    ("timestamp", pa.array([0], pa.timestamp("us"))),
    ("timestamp", [dt.datetime(2024, 1, 1)]),
    ("timestamp_ntz", pa.array([0], pa.timestamp("us", "UTC"))),
    ("timestamp", pa.array([1], pa.timestamp("ns", "UTC"))),
    ("date", pa.array([5], pa.int32())),
    ("date", [dt.datetime(2024, 1, 1)]),
    ("date", [dt.date(2024, 1, 1), dt.datetime(2024, 1, 1, 5)]),
    ("boolean", pa.array([1])),
    ("binary", pa.array(["a"])),
    ("binary", [b"a", "a"]),
    ("string", pa.array([b"a"])),
    ("long", "12"),
]


@pytest.mark.parametrize(("ddl", "column"), REFUSED_COLUMNS)
def test_columns_are_refused_where_something_would_be_lost(ddl: str, column: object) -> None:
    with pytest.raises(WrongTypeError, match="key column 'k'") as caught:
        as_array(column, parse_type(ddl), "key column 'k'")
    source = str(column.type) if isinstance(column, pa.Array) else ""
    assert source in str(caught.value)
    if source:
        assert ddl in str(caught.value)


def test_arrays_of_the_declared_type_are_not_copied() -> None:
    array = pa.array([1, 2, 3], pa.int64())
    assert as_array(array, parse_type("long"), "x") is array
    numbers = np.arange(3)
    found = as_array(numbers, parse_type("long"), "x")
    assert found.buffers()[1].address == numbers.ctypes.data


def test_parts_become_arrays() -> None:
    valid = bytes([1, 0, 1])
    flags = from_parts(parse_type("boolean"), 3, valid, bytes([1, 0, 0]))
    assert flags.to_pylist() == [True, None, False]
    offsets = np.array([0, 2, 2, 3], np.int32)
    texts = from_parts(parse_type("string"), 3, valid, b"abc", offsets)
    assert texts.to_pylist() == ["ab", None, "c"]
    texts.validate(full=True)
    assert from_parts(parse_type("long"), 0, b"", b"").to_pylist() == []


def test_hash_chains_columns_and_skips_nulls() -> None:
    one = hash_keys([pa.array([1, None, 1], pa.int64())])
    assert one[1] == 42
    two = hash_keys([pa.array([1, None, 1], pa.int64()), pa.array(["a", "a", None])])
    assert two[2] == one[0]
    assert two[0] != one[0]
    assert two[1] == hash_keys([pa.array(["a"])])[0]


def test_hash_of_a_slice_is_the_slice_of_the_hash() -> None:
    column = pa.array([None, "a", "bb", None, "", "x" * 40])
    flags = pa.array([True, None, False, True, False, True])
    whole = hash_keys([column, flags])
    for start in range(6):
        part = hash_keys([column.slice(start), flags.slice(start)])
        assert part.tolist() == whole[start:].tolist()


def test_zeros_and_nans_hash_alike() -> None:
    for type_, width in ((pa.float64(), np.float64), (pa.float32(), np.float32)):
        hashes = hash_keys([pa.array(np.array([0.0, -0.0], width), type_)])
        assert hashes[0] == hashes[1]


def test_key_groups_take_the_hash_as_signed() -> None:
    hashes = np.array([0, 1, 2**64 - 1, 2**63], np.uint64)
    for parallelism in (1, 3, 128, 32768):
        wanted = [int(h.astype(np.int64)) % parallelism for h in hashes]
        assert key_groups(hashes, parallelism).tolist() == wanted
        assert [core.key_group(int(h), parallelism) for h in hashes] == wanted


def test_ranges_are_flinks() -> None:
    assert [core.range_bounds(i, 128, 3) for i in range(3)] == [(0, 42), (43, 85), (86, 127)]
    for total, parts in ((128, 3), (7, 7), (32768, 11), (10, 4)):
        for i in range(parts):
            first, last = core.range_bounds(i, total, parts)
            assert {core.range_of(g, total, parts) for g in range(first, last + 1)} == {i}


# -- types of PySpark


@pytest.mark.parametrize(
    ("spark_type", "ddl"),
    [
        (st.LongType(), "long"),
        (st.ShortType(), "short"),
        (st.StringType(), "string"),
        (st.BooleanType(), "boolean"),
        (st.TimestampNTZType(), "timestamp_ntz"),
        (st.DecimalType(12, 2), "decimal(12,2)"),
        (st.ArrayType(st.StringType()), "array<string>"),
        (st.MapType(st.StringType(), st.DoubleType()), "map<string,double>"),
        (
            st.StructType()
            .add("a b", st.IntegerType())
            .add("x", st.ArrayType(st.StructType().add("y", st.DateType()))),
            "struct<`a b`:int,x:array<struct<y:date>>>",
        ),
    ],
    ids=str,
)
def test_types_of_pyspark_are_taken_wherever_ddl_is(spark_type: Any, ddl: str) -> None:
    assert parse_type(spark_type) == parse_type(ddl)
    assert ps.ValueState(spark_type) == ps.ValueState(ddl)
    assert ps.ListState(spark_type) == ps.ListState(ddl)
    assert ps.MapState(st.StringType(), spark_type) == ps.MapState("string", ddl)
    columns = parse_columns(st.StructType().add("v", spark_type, nullable=False), "x")
    assert columns.schema == parse_columns({"v": ddl}, "x").schema
    assert columns.required == (True,) and columns.ddl == (ddl,)


def test_keys_namespaces_and_aggregates_take_types_of_pyspark() -> None:
    with ps.KeyedStateBackend({"k": st.LongType()}, namespace=st.StringType()) as backend:
        assert backend.key == (("k", parse_type("long")),)
        assert backend.namespace == parse_type("string")
    assert ps.AggregatingState(ps.Sum(), st.LongType()) == ps.AggregatingState(ps.Sum(), "long")
    assert ps.ReducingState(st.LongType(), max) == ps.ReducingState("long", max)


@pytest.mark.parametrize(
    ("spark_type", "said"),
    [
        (st.LongType, r"pass an object of it, LongType\(\)"),
        (st.NullType(), "'void' is not supported yet"),
        (st.StringType("UNICODE_CI"), "strings with a collation are refused"),
        (st.VarcharType(3), r"'varchar\(3\)' is not supported"),
        (st.StructType(), "a struct has at least one field"),
        (st.MapType(st.ArrayType(st.LongType()), st.LongType()), "a map's keys are scalars"),
    ],
    ids=str,
)
def test_types_of_pyspark_that_are_refused(spark_type: Any, said: str) -> None:
    with pytest.raises(DeclarationError, match=rf"^state 'n': .*{said}"):
        parse_type(spark_type, "state 'n'")
