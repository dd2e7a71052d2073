"""Nested types in their spellings; their values as bytes, one by one and as columns."""

from __future__ import annotations

import collections
import copy
import datetime as dt
import math
import pickle
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pystate.errors import (
    CorruptFileError,
    DeclarationError,
    PystateError,
    StateOverflowError,
    WrongTypeError,
)
from pystate.types.arrays import hash_keys
from pystate.types.keys import parse_key
from pystate.types.nested import NestedCodec
from pystate.types.state_type import StateType, inline_layout, parse_type
from tests.drawn import count

UTC = dt.timezone.utc

# -- types

SPELLINGS = [
    ("struct<a:int>", "STRUCT < a : INT >"),
    ("struct<a:int>", "struct<a int>"),
    ("struct<a:int,b:array<string>>", "struct<a:int NOT NULL,b:array<string> not null>"),
    ("struct<a:int,b:long>", "struct<a: int comment 'x>, \\' y', b bigint COMMENT \"z\">"),
    ("struct<`a b`:int,`c``d`:date>", "struct<`a b`:int, `c``d` : date>"),
    ("struct<Name:int,name:int>", "struct<`Name`:int,name:int>"),
    ("struct<not:int,null:string>", "struct<not:int, null string>"),
    ("array<array<decimal(12,2)>>", "array< Array<DEC( 12 , 2 )> >"),
    ("map<string,map<int,struct<x:double>>>", "map<string, map<int, struct<x: double>>>"),
    ("array<int>", pa.list_(pa.int32())),
    ("array<int>", pa.large_list(pa.int32())),
    ("array<int>", pa.list_(pa.int32(), 3)),
    ("map<string,array<byte>>", pa.map_(pa.large_string(), pa.list_(pa.int8()))),
    (
        "struct<a:int,`b c`:timestamp>",
        pa.struct({"a": pa.int32(), "b c": pa.timestamp("us", "UTC")}),
    ),
    ("struct<a:int>", pa.struct([pa.field("a", pa.int32(), nullable=False)])),
]


@pytest.mark.parametrize(("ddl", "spelling"), SPELLINGS)
def test_every_spelling_of_a_nested_type_is_read(ddl: str, spelling: Any) -> None:
    found = parse_type(spelling)
    assert found.ddl == ddl
    assert found.is_nested
    assert parse_type(found.ddl) == found
    assert parse_type(found.arrow) == found
    assert hash(parse_type(found.arrow)) == hash(found)


@pytest.mark.parametrize(
    ("spelling", "said"),
    [
        ("struct<>", "at least one field"),
        (pa.struct([]), "at least one field"),
        ("struct<a>", "expected a type at character 8"),
        ("struct<a:int b:int>", "expected '>' at character 13"),
        ("struct<a:int,>", "expected a field's name at character 13"),
        ("array<int", "expected '>' at character 9"),
        ("array<int>>", "expected the end at character 10"),
        ("array<>", "expected a type"),
        ("map<int>", "expected ','"),
        ("struct<a:int,a:long>", "two fields of the same name"),
        ("map<array<int>,int>", "a map's keys are scalars, not array<int>"),
        (pa.map_(pa.struct({"a": pa.int8()}), pa.int8()), "a map's keys are scalars"),
        ("array<object>", "no objects inside"),
        ("struct<a:varchar(3)>", "'varchar(3)' is not supported"),
        ("array<string collate UNICODE>", "collation"),
        ("array<decimal(39,1)>", "1 to 38"),
        ("array<" * 33 + "int" + ">" * 33, "32 levels"),
        ("array<" * 5000, "32 levels"),
    ],
)
def test_a_nested_type_that_makes_no_sense_is_refused(spelling: Any, said: str) -> None:
    with pytest.raises(DeclarationError, match="state 'x'") as caught:
        parse_type(spelling, "state 'x'")
    assert said in str(caught.value)


def test_32_levels_are_enough() -> None:
    deep = parse_type("array<" * 32 + "int" + ">" * 32)
    value: Any = 7
    for _ in range(32):
        value = [value]
    codec = NestedCodec(deep)
    assert codec.decode(codec.encode(value)) == value
    assert codec.decode_array(codec.encode_array(pa.array([value], deep.arrow))).to_pylist() == [
        value
    ]


@pytest.mark.parametrize(
    ("ddl", "size"),
    [
        ("struct<a:boolean>", 8),
        ("struct<a:long>", 16),
        ("struct<a:long,b:double,c:int>", 24),
        ("struct<a:byte,b:decimal(5,2),c:struct<d:short,e:struct<f:date>>>", 24),
        ("struct<" + ",".join(f"a{i}:long" for i in range(31)) + ">", 256),
        ("struct<" + ",".join(f"a{i}:long" for i in range(32)) + ">", 0),
        ("struct<a:string>", 0),
        ("struct<a:array<int>>", 0),
        ("array<int>", 0),
        ("map<int,int>", 0),
        ("long", 0),
    ],
)
def test_a_struct_of_fixed_width_is_inline_up_to_256_bytes(ddl: str, size: int) -> None:
    found = parse_type(ddl)
    assert found.inline_bytes == size
    assert found.is_inline == bool(size)
    if found.is_nested:
        assert found.code == (14 if size else 15)
        assert found.is_bytes == (not size)
        assert found.stored_arrow == (pa.binary(size) if size else pa.binary())


def test_fields_of_an_inline_struct_do_not_overlap() -> None:
    found = parse_type("struct<a:long,b:struct<c:byte,d:decimal(9,0)>,e:boolean,f:short,g:float>")
    layout = inline_layout(found)
    assert layout is not None
    size, places = layout
    widths = [8, 0, 1, 16, 1, 2, 4]
    used = [0] * size
    used[0] = 1
    for width, (bit, at) in zip(widths, places, strict=True):
        assert bit < 8
        assert (at == -1) == (width == 0)
        assert at % min(width or 1, 8) == 0 or at == -1
        for i in range(at, at + width):
            used[i] += 1
    assert max(used) == 1


def test_nested_types_are_refused_as_keys() -> None:
    with pytest.raises(DeclarationError, match=r"key column 'k'.*no type of a key"):
        parse_key({"k": "array<int>"})
    with pytest.raises(DeclarationError, match=r"key column 0.*no type of a key"):
        hash_keys([pa.array([{"a": 1}])])


def test_a_scalar_type_has_no_nested_codec() -> None:
    with pytest.raises(DeclarationError, match="no struct, array or map"):
        NestedCodec("long", "x")


# -- values, one by one

Row = collections.namedtuple("Row", ["b", "a"])


class SparkRow(tuple):  # type: ignore[type-arg]
    __fields__ = ("b", "a")


ROUND_TRIPS: list[tuple[str, Any, Any]] = [
    ("struct<a:int,b:string>", {"a": 1, "b": "x"}, None),
    ("struct<a:int,b:string>", {"b": "x"}, {"a": None, "b": "x"}),
    ("struct<a:int,b:string>", {}, {"a": None, "b": None}),
    ("struct<a:int,b:string>", (1, "x"), {"a": 1, "b": "x"}),
    ("struct<a:int,b:string>", Row("x", 1), {"a": 1, "b": "x"}),
    ("struct<a:int,b:string>", SparkRow(("x", 1)), {"a": 1, "b": "x"}),
    ("struct<a:int>", pa.scalar({"a": 1}), {"a": 1}),
    ("struct<a:int,b:long>", Row(2, 1), {"a": 1, "b": 2}),
    ("struct<a:int>", collections.UserDict(a=1), {"a": 1}),
    ("struct<a:int>", {"a": np.int16(5)}, {"a": 5}),
    ("struct<a:struct<b:struct<c:date>>>", {"a": {"b": None}}, None),
    ("struct<a:struct<b:struct<c:date>>>", {"a": {"b": {"c": dt.date(2024, 2, 29)}}}, None),
    ("struct<a:float,b:double>", {"a": 0.5, "b": -0.0}, None),
    ("struct<a:byte,b:short,c:boolean>", {"a": -128, "b": -2, "c": False}, None),
    ("struct<a:decimal(38,2)>", {"a": Decimal("-123456789012345678901234567890.12")}, None),
    (
        "struct<a:timestamp,b:timestamp_ntz>",
        {"a": dt.datetime(1969, 1, 1, tzinfo=UTC), "b": dt.datetime(9999, 12, 31)},
        None,
    ),
    ("array<int>", [], None),
    ("array<int>", [1, None, -3], None),
    ("array<int>", (1, 2), [1, 2]),
    ("array<int>", range(3), [0, 1, 2]),
    ("array<int>", np.arange(3), [0, 1, 2]),
    ("array<int>", pa.array([1, None]), [1, None]),
    ("array<int>", collections.deque([1]), [1]),
    ("array<boolean>", [True, None] * 20, None),
    ("array<binary>", [b"", b"\0" * 300, None], None),
    ("array<array<string>>", [["a"], None, [], [None]], None),
    ("array<struct<a:int,b:array<date>>>", [{"a": 1, "b": [dt.date(1, 1, 1)]}, None], None),
    ("map<string,int>", {"b": 1, "a": None}, {"a": None, "b": 1}),
    ("map<string,int>", [("b", 1), ("a", 2)], {"a": 2, "b": 1}),
    ("map<int,array<int>>", {5: [1], -5: None, 0: []}, {-5: None, 0: [], 5: [1]}),
    ("map<double,int>", {math.inf: 1, -1.5: 2, -math.inf: 3, 0.25: 4, -2.0: 5}, None),
    ("map<date,map<boolean,int>>", {dt.date(2024, 1, 1): {True: 1, False: 0}}, None),
    ("map<decimal(20,2),int>", {Decimal("-1.50"): 1, Decimal("7.00"): 2}, None),
    ("map<string,int>", pa.scalar([("a", 1)], pa.map_(pa.string(), pa.int32())), {"a": 1}),
]


@pytest.mark.parametrize(("ddl", "value", "wanted"), ROUND_TRIPS)
def test_values_come_back_as_they_went_in(ddl: str, value: Any, wanted: Any) -> None:
    wanted = value if wanted is None else wanted
    codec = NestedCodec(ddl, "x")
    data = codec.encode(value)
    assert type(data) is bytes
    assert codec.decode(data) == wanted
    assert codec.decode(bytearray(data)) == codec.decode(memoryview(data)) == wanted
    assert codec.encode(codec.decode(data)) == data
    assert codec.normalize(value) == wanted
    assert not codec.inline_bytes or len(data) == codec.inline_bytes
    # A column of it has the same bytes.
    column = pa.array([None, codec.decode(data)], codec.type.arrow)
    assert codec.encode_array(column).to_pylist() == [None, data]
    back = codec.decode_array(pa.array([data, None], codec.type.stored_arrow))
    back.validate(full=True)
    assert back.equals(column.take(pa.array([1, 0])))


def test_a_map_comes_back_in_the_order_of_its_keys() -> None:
    for ddl, keys in [
        ("map<string,int>", ["", "a", "aa", "b", "\u00e9"]),
        ("map<binary,int>", [b"", b"\0", b"\0\0", b"\x7f", b"\xff"]),
        ("map<long,int>", [-(2**63), -1, 0, 1, 2**63 - 1]),
        ("map<byte,int>", [-128, -1, 0, 127]),
        ("map<short,int>", [-300, -1, 0, 300]),
        ("map<boolean,int>", [False, True]),
        ("map<float,int>", [-math.inf, -1.5, -0.5, 0.0, 0.5, 2.0, math.inf]),
        ("map<double,int>", [-math.inf, -1.5, -0.5, 0.0, 0.5, 2.0, math.inf]),
        ("map<decimal(38,0),int>", [Decimal(-(10**37)), Decimal(-1), Decimal(0), Decimal(10**30)]),
    ]:
        codec = NestedCodec(ddl)
        found = codec.decode(codec.encode(dict.fromkeys(reversed(keys), 1)))
        assert list(found) == keys


def test_equal_values_have_equal_bytes() -> None:
    other = float(np.array([0xFFF8_0000_0000_0001], np.uint64).view(np.float64)[0])
    for ddl, one, two in [
        ("map<string,int>", {"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ("map<double,int>", {0.0: 1}, {-0.0: 1}),
        ("map<float,int>", {0.0: 1}, {-0.0: 1}),
        ("map<double,int>", {math.nan: 1}, {other: 1}),
        ("array<double>", [math.nan], [other]),
        ("struct<a:double,b:float>", {"a": math.nan, "b": math.nan}, {"a": other, "b": other}),
        ("struct<a:decimal(5,2)>", {"a": Decimal("1.5")}, {"a": Decimal("1.500")}),
        (
            "struct<a:timestamp>",
            {"a": dt.datetime(2024, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1)))},
            {"a": dt.datetime(2024, 1, 1, tzinfo=UTC)},
        ),
    ]:
        codec = NestedCodec(ddl)
        assert codec.encode(one) == codec.encode(two)
        columns = [pa.array([v], codec.type.arrow) for v in (one, two)]
        assert [codec.encode_array(c)[0].as_py() for c in columns] == [codec.encode(one)] * 2


REFUSED: list[tuple[str, Any, str]] = [
    ("struct<b:array<struct<c:int>>>", {"b": [{}] * 3 + [{"c": "x"}]}, "field b[3].c is int"),
    ("struct<a:int>", 5, "state 's' is struct<a:int>: it does not take 5 (int)"),
    ("struct<a:int>", None, "does not take None"),
    ("struct<a:int>", [1], "does not take [1] (list)"),
    ("struct<a:int>", (1, 2), "it has 1 fields"),
    ("struct<a:int>", Row(1, 2), "it has no field 'b'"),
    ("struct<a:int>", {"a": 1, "A": 2}, "it has no field 'A'"),
    ("struct<a:int>", {"a": True}, "field a is int: it does not take True (bool)"),
    ("struct<a:int>", {"a": [1]}, "field a is int: it does not take [1] (list)"),
    ("struct<a:struct<b:date>>", {"a": {"b": 5}}, "field a.b is date: it does not take 5 (int)"),
    ("struct<a:struct<b:date>>", {"a": {"x": 5}}, "field a is struct<b:date>"),
    ("struct<a:timestamp>", {"a": dt.datetime(2024, 1, 1)}, "no instant"),
    ("array<int>", "12", "is array<int>: it does not take '12' (str)"),
    ("array<int>", b"12", "(bytes)"),
    ("array<int>", {1, 2}, "(set)"),
    ("array<int>", {1: 2}, "(dict)"),
    ("array<int>", np.zeros((2, 2)), "(ndarray)"),
    ("array<int>", [[1]], "field [0] is int"),
    ("array<string>", ["a", b"b"], "field [1] is string: it does not take b'b' (bytes)"),
    ("array<string>", ["\ud800"], "not valid Unicode"),
    ("map<string,int>", {"k": "v"}, "field ['k'] is int: it does not take 'v' (str)"),
    ("map<string,int>", {1: 1}, "field [1] is string: it does not take 1 (int)"),
    ("map<string,int>", {None: 1}, "never None"),
    ("map<string,int>", [("a", 1), ("a", 1)], "a key is there twice"),
    ("map<double,int>", {math.nan: 1, -math.nan: 2}, "is there twice"),
    ("map<string,int>", [("a",)], "a list of (key, value)"),
    ("map<string,int>", [([], 1)], "cannot be hashed"),
    ("map<string,int>", 5, "it does not take 5 (int)"),
    ("map<string,int>", ["ab"], "a list of (key, value)"),
]


@pytest.mark.parametrize(("ddl", "value", "said"), REFUSED)
def test_a_wrong_value_is_refused_with_its_path(ddl: str, value: Any, said: str) -> None:
    codec = NestedCodec(ddl, "s")
    with pytest.raises(WrongTypeError, match="state 's'") as caught:
        codec.encode(value)
    assert said in str(caught.value)
    if value is not None:
        with pytest.raises(WrongTypeError, match="state 's'"):
            codec.encode_array([value])


def test_a_number_out_of_range_is_refused_with_its_path() -> None:
    codec = NestedCodec("array<struct<a:byte>>", "s")
    with pytest.raises(StateOverflowError, match=r"state 's': field \[1\]\.a: 128 is out"):
        codec.encode([{"a": 1}, {"a": 128}])
    with pytest.raises(StateOverflowError, match=r"state 's': field a: Decimal"):
        NestedCodec("struct<a:decimal(3,1)>", "s").encode({"a": Decimal(100)})


class Hostile(dict):  # type: ignore[type-arg]
    """A value that changes what it lies in while it is read."""

    def __init__(self, target: Any) -> None:
        super().__init__(a=1)
        self.target = target

    def items(self) -> Any:
        self.target.clear()
        return super().items()

    def __index__(self) -> int:
        self.target.clear()
        return 7


def test_values_that_change_while_they_are_read_do_no_harm() -> None:
    for ddl, make in [
        ("array<int>", lambda box: [box] * 50),
        ("struct<a:int,b:string>", lambda box: {"a": box, "b": "x"}),
        ("map<string,int>", lambda box: {"a": box, "b": 1}),
    ]:
        inner = Hostile({})
        value = make(inner)
        inner.target = value
        codec = NestedCodec(ddl, "s")
        try:
            data = codec.encode(value)
        except PystateError:
            continue
        codec.decode(data)


def test_a_date_that_python_cannot_hold_is_an_overflow_and_a_column() -> None:
    codec = NestedCodec("struct<a:date>", "s")
    column = pa.array([{"a": None}], codec.type.arrow)
    days = pa.StructArray.from_arrays([pa.array([2**31 - 1], pa.int32()).cast(pa.date32())], ["a"])
    [data] = codec.encode_array(days).to_pylist()
    with pytest.raises(StateOverflowError, match=r"state 's'.*no date that Python"):
        codec.decode(data)
    assert codec.decode_array(pa.array([data], codec.type.stored_arrow)).equals(days)
    assert not days.equals(column)


def test_bytes_are_those_of_the_documented_examples() -> None:
    inline = NestedCodec(
        "struct<at:timestamp,place:struct<row:short,ok:boolean>,price:decimal(9,2)>"
    )
    value: Any = {
        "at": dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        "place": {"row": 7, "ok": None},
        "price": Decimal("12.50"),
    }
    assert inline.encode(value).hex(" ") == (
        "17 00 07 00 00 00 00 00 40 42 0f 00 00 00 00 00 "
        "e2 04 00 00 00 00 00 00 00 00 00 00 00 00 00 00"
    )
    codec = NestedCodec("struct<id:int,tags:array<string>,seen:map<string,long>>")
    value = {"id": 258, "tags": ["ant", None], "seen": {"b": 2, "a": None}}
    assert codec.encode(value).hex(" ") == (
        "07 02 01 00 00 05 01 03 61 6e 74 05 02 01 61 01 62 02 00 00 00 00 00 00 00"
    )


def test_a_codec_can_be_pickled_and_copied() -> None:
    codec = NestedCodec("struct<a:int,`b c`:map<string,int>>", "s")
    for other in (pickle.loads(pickle.dumps(codec)), copy.copy(codec), copy.deepcopy(codec)):
        assert (other.type, other.name) == (codec.type, codec.name)
        assert other.encode({"a": 1}) == codec.encode({"a": 1})


# -- columns


def test_a_sliced_column_has_the_bytes_of_its_rows() -> None:
    for ddl, values in [
        ("struct<a:int,b:boolean>", [{"a": i, "b": i % 2 == 0} for i in range(40)] + [None] * 3),
        ("array<array<string>>", [[["x" * i, None]] * (i % 4) for i in range(40)] + [None]),
        ("map<int,struct<a:boolean>>", [{i: {"a": None}, i + 1: None} for i in range(40)]),
    ]:
        codec = NestedCodec(ddl)
        column = pa.array(values, codec.type.arrow)
        wanted = codec.encode_array(column)
        wanted.validate(full=True)
        for start in (0, 1, 7, 8, 39, len(values)):
            part = codec.encode_array(column.slice(start, 20))
            part.validate(full=True)
            assert part.to_pylist() == wanted.slice(start, 20).to_pylist()
            back = codec.decode_array(wanted.slice(start, 20))
            back.validate(full=True)
            assert back.equals(column.slice(start, 20))


def test_columns_of_other_types_are_cast_at_any_depth() -> None:
    codec = NestedCodec("struct<a:long,b:array<string>,c:map<string,double>,d:int>", "s")
    source = pa.struct(
        [
            pa.field("c", pa.map_(pa.large_string(), pa.float32())),
            pa.field("b", pa.large_list(pa.dictionary(pa.int8(), pa.string()))),
            pa.field("a", pa.int8(), nullable=False),
        ]
    )
    value = {"a": 1, "b": ["x", None], "c": [("k", 0.5)]}
    column = pa.array([value, None, value], source)
    wanted = {"a": 1, "b": ["x", None], "c": {"k": 0.5}, "d": None}
    found = codec.encode_array(column)
    assert [None if d is None else codec.decode(d) for d in found.to_pylist()] == [
        wanted,
        None,
        wanted,
    ]
    sized = pa.array([[1, 2], None, [3, None]], pa.list_(pa.int16(), 2))
    ints = NestedCodec("array<int>", "s")
    assert ints.decode_array(ints.encode_array(sized)).to_pylist() == sized.to_pylist()
    chunks = pa.chunked_array([pa.array([[1]]), pa.array([[2], None])])
    longs = NestedCodec("array<long>", "s")
    assert longs.decode_array(longs.encode_array(chunks)).to_pylist() == [[1], [2], None]
    nulls = longs.encode_array(pa.nulls(3))
    assert nulls.to_pylist() == [None] * 3


def test_what_lies_under_a_null_is_not_looked_at() -> None:
    codec = NestedCodec("struct<a:byte,b:string>", "s")
    inner = [pa.array([1, 300]), pa.array([b"x", b"\xff"]).view(pa.string())]
    hidden = pa.StructArray.from_arrays(inner, ["a", "b"], mask=pa.array([False, True]))
    assert codec.decode_array(codec.encode_array(hidden)).to_pylist() == [
        {"a": 1, "b": "x"},
        None,
    ]


@pytest.mark.parametrize(
    ("ddl", "column", "said"),
    [
        ("struct<a:int>", pa.array([1]), "state 's' is struct<a:int>: a column of int64"),
        ("struct<a:int>", pa.array([{"a": "x"}]), "field a is int: a column of string"),
        ("struct<a:int>", pa.array([{"a": 2**40}]), "field a is int"),
        ("struct<a:int>", pa.array([{"a": 1, "b": 2}]), "field 'b': it has no such field"),
        ("array<int>", pa.array([["x"]]), "field [] is int: a column of string"),
        ("struct<b:array<struct<c:int>>>", pa.array([{"b": [{"c": "x"}]}]), "field b[].c is int"),
        ("map<string,int>", pa.array([{"a": 1}]), "a column of struct<a: int64>"),
        (
            "map<string,int>",
            pa.array([[("a", 1)], [("b", 1), ("b", 2)]], pa.map_(pa.string(), pa.int32())),
            "row 1 is no map<string,int>: it has a map in which a key is there twice",
        ),
        ("array<string>", pa.array([[b"\xff"]]).cast(pa.list_(pa.binary())), "binary is not cast"),
        (
            "array<string>",
            pa.ListArray.from_arrays([0, 1], pa.array([b"\xff"]).view(pa.string())),
            "row 0 is no array<string>: it has a string that is not valid UTF-8",
        ),
        ("array<int>", "ab", "a column is a sequence"),
    ],
)
def test_a_column_of_another_type_is_refused(ddl: str, column: Any, said: str) -> None:
    with pytest.raises(WrongTypeError, match="state 's'") as caught:
        NestedCodec(ddl, "s").encode_array(column)
    assert said in str(caught.value)


def test_python_columns_are_taken() -> None:
    codec = NestedCodec("struct<a:int>", "s")
    wanted = [codec.encode({"a": 1}), None]
    objects = np.empty(2, object)
    objects[0] = {"a": 1}
    for column in ([{"a": 1}, None], ({"a": 1}, None), objects):
        found = codec.encode_array(column)
        assert found.type == pa.binary(8)
        assert found.to_pylist() == wanted
    assert codec.encode_array([]).to_pylist() == []


def test_stored_columns_of_other_binary_types_are_read() -> None:
    for ddl, value in (("struct<a:int>", {"a": 1}), ("array<int>", [1])):
        codec = NestedCodec(ddl, "s")
        data = codec.encode(value)
        for type_ in (pa.binary(), pa.large_binary(), pa.binary(len(data))):
            found = codec.decode_array(pa.array([data, None], type_))
            assert found.to_pylist() == [value, None]
        with pytest.raises(WrongTypeError, match="state 's'"):
            codec.decode_array(pa.array([1]))
    with pytest.raises(CorruptFileError, match="which takes 8"):
        NestedCodec("struct<a:int>", "s").decode_array(pa.array([b"x"]))


# -- damage

DAMAGED = [
    ("struct<a:int>", b"", "of another length"),
    ("struct<a:int>", b"\0" * 16, "of another length"),
    ("struct<a:int>", b"\x02" + b"\0" * 7, "set where no field is"),
    ("struct<a:int>", b"\x01\x01" + b"\0" * 6, "set where no field is"),
    ("struct<a:int>", b"\0\0\0\0\x01\0\0\0", "set where a null is"),
    ("struct<a:struct<b:byte>>", b"\x02\x01" + b"\0" * 6, "a field of a null struct"),
    ("struct<a:boolean>", b"\x01\x02" + b"\0" * 6, "neither 0 nor 1"),
    ("struct<a:float>", b"\x01\0\0\0\xff\xff\xff\xff", "not canonical"),
    ("struct<a:decimal(1,0)>", b"\x01" + b"\0" * 7 + b"\x0a" + b"\0" * 15, "too many digits"),
    ("array<int>", b"", "cut off"),
    ("array<int>", b"\x02\0\0\0", "cut off"),
    ("array<int>", b"\x00\x00", "longer than their value"),
    ("array<int>", b"\x80\x00", "longer form"),
    ("array<int>", b"\xff\xff\xff\xff\xff\xff\xff", "too large"),
    ("array<int>", b"\xfe\xff\xff\xff\x0f", "cut off"),
    ("array<int>", b"\x03\x01\0\0\0\0", "validity bits without a null"),
    ("array<int>", b"\x03\x02", "validity bits of no value"),
    ("array<int>", b"\x01", "validity bits without a null"),
    ("struct<a:string>", b"\x01\x02\xc0\x80", "no valid UTF-8"),
    ("struct<a:string>", b"\x01\x05ab", "cut off"),
    ("map<byte,byte>", b"\x04\x02\x01\0\0", "do not ascend"),
    ("map<byte,byte>", b"\x04\x01\x01\0\0", "do not ascend"),
    ("map<double,byte>", b"\x02\0\0\0\0\0\0\0\x80\0", "not canonical"),
]


@pytest.mark.parametrize(("ddl", "data", "said"), DAMAGED)
def test_damaged_bytes_are_named(ddl: str, data: bytes, said: str) -> None:
    codec = NestedCodec(ddl, "s")
    with pytest.raises(CorruptFileError, match="state 's'") as caught:
        codec.decode(data)
    assert said in str(caught.value)
    if not codec.inline_bytes or len(data) == codec.inline_bytes:
        with pytest.raises(CorruptFileError, match="state 's', row 1") as caught:
            codec.decode_array(pa.array([None, data], codec.type.stored_arrow))
        assert said in str(caught.value)


# -- any type, any value

SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "byte": st.integers(-128, 127),
    "short": st.integers(-(2**15), 2**15 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "timestamp_ntz": st.datetimes(),
    "decimal(7,2)": st.decimals(-99999, 99999, places=2),
    "decimal(38,10)": st.decimals(-(10**20), 10**20, places=10),
    "string": st.text(max_size=20),
    "binary": st.binary(max_size=20),
}

FIELD_NAMES = st.lists(
    st.text("abB_ `<,:", min_size=1, max_size=3), min_size=1, max_size=4, unique=True
)


def struct_of(children: st.SearchStrategy[StateType]) -> st.SearchStrategy[StateType]:
    return FIELD_NAMES.flatmap(
        lambda names: st.tuples(*[children] * len(names)).map(
            lambda types: StateType("struct", children=tuple(zip(names, types, strict=True)))
        )
    )


SCALAR_TYPES = st.sampled_from(sorted(SCALARS)).map(parse_type)
FIXED_TYPES = st.sampled_from(sorted(set(SCALARS) - {"string", "binary"})).map(parse_type)
ANY_TYPES = st.recursive(
    SCALAR_TYPES,
    lambda inner: st.one_of(
        struct_of(inner),
        inner.map(lambda t: StateType("array", children=(("element", t),))),
        st.tuples(SCALAR_TYPES, inner).map(
            lambda kv: StateType("map", children=(("key", kv[0]), ("value", kv[1])))
        ),
    ),
    max_leaves=6,
).filter(lambda t: t.is_nested)
INLINE_TYPES = st.recursive(FIXED_TYPES, struct_of, max_leaves=6).filter(lambda t: t.is_inline)


def values_of(type_: StateType) -> st.SearchStrategy[Any]:
    inner = [st.none() | values_of(child) for _, child in type_.children]
    if type_.name == "struct":
        return st.fixed_dictionaries(
            dict(zip([name for name, _ in type_.children], inner, strict=True))
        )
    if type_.name == "array":
        return st.lists(inner[0], max_size=4)
    if type_.name == "map":
        # -0.0 is equal to 0.0 as a key, and comes back as that.
        keys = values_of(type_.children[0][1]).map(
            lambda key: abs(key) if isinstance(key, float) and key == 0 else key
        )
        return st.dictionaries(keys, inner[1], max_size=4)
    return SCALARS[type_.ddl]


TYPED_COLUMNS = (ANY_TYPES | INLINE_TYPES).flatmap(
    lambda t: st.tuples(st.just(t), st.lists(st.none() | values_of(t), max_size=6))
)

RELAXED = settings(
    max_examples=count(300),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@RELAXED
@given(TYPED_COLUMNS)
def test_any_value_of_any_type_comes_back(case: tuple[StateType, list[Any]]) -> None:
    type_, values = case
    assert parse_type(type_.ddl) == type_
    codec = NestedCodec(type_, "s")
    encoded = [None if v is None else codec.encode(v) for v in values]
    assert [None if d is None else codec.decode(d) for d in encoded] == values
    column = pa.array(values, type_.arrow)
    stored = codec.encode_array(column)
    stored.validate(full=True)
    assert stored.to_pylist() == encoded
    back = codec.decode_array(stored)
    back.validate(full=True)
    assert back.type == type_.arrow
    plain = back.to_pylist()
    assert [None if v is None else codec.encode(v) for v in plain] == encoded
    for data in encoded:
        if data is not None:
            assert codec.encode(codec.decode(data)) == data


@RELAXED
@given(TYPED_COLUMNS, st.data())
def test_damaged_bytes_are_an_error_or_another_value(
    case: tuple[StateType, list[Any]], draw: st.DataObject
) -> None:
    type_, values = case
    codec = NestedCodec(type_, "s")
    data = bytearray(next((codec.encode(v) for v in values if v is not None), b""))
    for _ in range(draw.draw(st.integers(1, 3))):
        how = draw.draw(st.sampled_from(["flip", "cut", "insert"]))
        at = draw.draw(st.integers(0, max(len(data) - 1, 0)))
        if how == "flip" and data:
            data[at] ^= draw.draw(st.integers(1, 255))
        elif how == "cut":
            del data[at:]
        elif how == "insert":
            data[at:at] = draw.draw(st.binary(min_size=1, max_size=9))
    check_bytes(codec, bytes(data))


@RELAXED
@given(ANY_TYPES | INLINE_TYPES, st.binary(max_size=64))
def test_any_bytes_are_an_error_or_a_value(type_: StateType, data: bytes) -> None:
    codec = NestedCodec(type_, "s")
    check_bytes(codec, data)
    if codec.inline_bytes:
        check_bytes(codec, data[: codec.inline_bytes].ljust(codec.inline_bytes, b"\0"))


def check_bytes(codec: NestedCodec, data: bytes) -> None:
    """What is accepted is exactly what `encode` writes, and both readers agree."""
    accepted = overflow = False
    try:
        value = codec.decode(data)
        accepted = True
    except StateOverflowError:
        overflow = True
    except CorruptFileError:
        pass
    if accepted:
        assert codec.encode(value) == data
    try:
        column = codec.decode_array(pa.array([data], pa.binary()))
    except CorruptFileError:
        assert not accepted
        return
    assert accepted or overflow
    column.validate(full=True)
    assert codec.encode_array(column).to_pylist() == [data]
