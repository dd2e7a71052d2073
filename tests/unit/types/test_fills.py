"""Defaults of fields that are added: as JSON, and as values of a type."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any

import pytest

import pystate as ps
from pystate.state.operator_spec import declared_fills
from pystate.types.fills import fill_of, fills_of, pin, unpin
from pystate.types.nested import NestedCodec
from pystate.types.state_type import parse_type

UTC = datetime.timezone.utc


def value(type_: str, added: list[str], since: dict[str, int]) -> Any:
    parsed = parse_type(type_)
    data = fill_of(parsed, added, "s", since)
    return None if data is None else NestedCodec(parsed, "s").decode(data)


@pytest.mark.parametrize(
    ("type_", "default"),
    [
        ("boolean", False),
        ("byte", -128),
        ("long", 2**63 - 1),
        ("float", 0.5),
        ("double", math.inf),
        ("decimal(38,10)", Decimal("-12345678901234567890.0123456789")),
        ("string", 'a "text" é'),
        ("binary", b"\x00\xff"),
        ("date", datetime.date(1969, 1, 2)),
        ("timestamp", datetime.datetime(2026, 1, 2, 3, 4, 5, 6, UTC)),
        ("timestamp_ntz", datetime.datetime(1, 1, 1)),
        ("array<struct<a:int>>", [{"a": 1}, None, {"a": None}]),
        ("map<date,array<string>>", {datetime.date(2026, 1, 2): ["a", None]}),
        ("struct<a:int,b:struct<c:string>>", {"a": None, "b": {"c": "x"}}),
    ],
)
def test_a_default_survives_the_metadata(type_: str, default: Any) -> None:
    whole = f"struct<x:{type_},y:int>"
    fills = fills_of(parse_type(whole), {"x": default, "y": None})
    assert "y" not in fills
    since = {f"s#{pin(path, v)}": 1 for path, v in fills.items()}
    assert value(whole, ["x"], since) == {"x": default, "y": None}
    assert value(whole, ["y"], since) is None
    assert value(whole, ["x"], {key.replace("s#", "t#"): 1 for key in since}) is None


@pytest.mark.parametrize(
    ("old", "default", "new", "later"),
    [
        ("int", 7, "long", 7),
        ("int", 7, "double", 7.0),
        ("long", 7, "decimal(20,1)", Decimal(7)),
        ("decimal(3,1)", Decimal("1.5"), "decimal(5,2)", Decimal("1.5")),
        ("float", 0.1, "double", 0.10000000149011612),
        ("date", datetime.date(1960, 1, 2), "timestamp", datetime.datetime(1960, 1, 2, tzinfo=UTC)),
        ("date", datetime.date(1960, 1, 2), "timestamp_ntz", datetime.datetime(1960, 1, 2)),
        ("struct<a:int,b:int>", {"a": 1, "b": 2}, "struct<c:int,a:long>", {"c": None, "a": 1}),
    ],
)
def test_a_default_becomes_wider_with_its_field(
    old: str, default: Any, new: str, later: Any
) -> None:
    declared = ps.ValueState(f"struct<x:{old}>", {"x": default})
    since = declared_fills({"s": declared})
    assert value(f"struct<x:{new}>", ["x"], since) == {"x": later}


def test_a_field_that_was_added_later_has_its_own_default() -> None:
    type_ = "struct<`p.q`:struct<x:int,y:int>,z:struct<u:int,v:struct<w:int>>>"
    since = {
        "s#`p.q`": 5,
        f"s#{pin('`p.q`', {'x': 1})}": 5,
        "s#`p.q`.y": 9,
        f"s#{pin('`p.q`.y', 3)}": 9,
        "s#z.v.w": 7,
        f"s#{pin('z.v.w', 4)}": 7,
    }
    assert value(type_, ["`p.q`"], since) == {"`p.q`".strip("`"): {"x": 1, "y": 3}, "z": None}
    assert value(type_, ["`p.q`.y"], since) == {"p.q": {"x": None, "y": 3}, "z": None}
    assert value(type_, ["z.v.w"], since) == {"p.q": None, "z": {"u": None, "v": {"w": 4}}}
    # It was dropped in between, and has come back without a default.
    assert value(type_, ["`p.q`"], {**since, "s#`p.q`.x": 8})["p.q"] == {"x": None, "y": 3}


def test_what_is_no_default() -> None:
    assert unpin("path") is None and unpin(pin("`=`", [1])) == ("`=`", [1])
    for declared in (
        ps.ValueState("long", 3),
        ps.ValueState("struct<a:int>"),
        ps.ValueState("array<struct<a:int>>", [{"a": 1}]),
        ps.ValueState(object, {"a": 1}),
        ps.ListState("struct<a:int>"),
    ):
        assert declared.fills() == {}
