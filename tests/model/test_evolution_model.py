"""Schemas that change under stored values, against a conversion in plain Python.

Random pairs of types, the second one reached by changes that lose nothing, and random values. What
a restore gives must equal what the conversion gives, whether values were stored singly, in lists or
in maps, restored from a chain whose files have both schemas, or from a base merged of them.
"""

from __future__ import annotations

import datetime
import io
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pystate as ps
from pystate.checkpoint.state_files import merge_files
from pystate.state.operator_spec import declared_fills
from pystate.types.state_type import StateType, parse_type

UTC = datetime.timezone.utc
#: Each scalar type, and those that hold all of its values.
WIDER = {
    "boolean": [],
    "byte": ["short", "int", "long", "float", "double", "decimal(5,2)"],
    "short": ["int", "long", "float", "double", "decimal(5,0)"],
    "int": ["long", "double", "decimal(14,4)"],
    "long": ["decimal(19,0)", "decimal(38,19)"],
    "float": ["double"],
    "double": [],
    "date": ["timestamp", "timestamp_ntz"],
    "timestamp": [],
    "decimal(5,2)": ["decimal(6,2)", "decimal(8,4)", "decimal(38,10)"],
    "decimal(28,3)": ["decimal(29,3)", "decimal(38,13)"],
    "string": [],
    "binary": [],
}
BOUNDS = {"byte": 7, "short": 15, "int": 31, "long": 63}
INTEGERS = ("byte", "short", "int", "long")

scalars = st.sampled_from(sorted(WIDER)).map(parse_type)
keys = st.sampled_from(["byte", "int", "long", "string", "decimal(5,2)", "date"]).map(parse_type)


def structs(fields: st.SearchStrategy[StateType]) -> st.SearchStrategy[StateType]:
    named = st.dictionaries(st.sampled_from("abcdef"), fields, min_size=1, max_size=4)
    return named.map(lambda d: StateType("struct", children=tuple(d.items())))


def nests(inner: st.SearchStrategy[StateType]) -> st.SearchStrategy[StateType]:
    arrays = inner.map(lambda t: StateType("array", children=(("element", t),)))
    maps = st.tuples(keys, inner).map(
        lambda kv: StateType("map", children=(("key", kv[0]), ("value", kv[1])))
    )
    return structs(inner) | arrays | maps


types = st.recursive(scalars, nests, max_leaves=6)


@st.composite
def later(draw: st.DrawFn, old: StateType, *, key: bool = False) -> StateType:
    """A type that holds every value of another one."""
    if not old.is_nested:
        wider = [parse_type(name) for name in WIDER[old.ddl]]
        if key:
            wider = [t for t in wider if {old.name, t.name} <= set(INTEGERS)]
        return draw(st.sampled_from([old, *wider]))
    if old.name == "struct":
        kept = [(n, draw(later(t))) for n, t in old.children if draw(st.integers(0, 3))]
        new = draw(st.dictionaries(st.sampled_from("uvw"), types, max_size=2))
        fields = [*kept, *new.items()] or [("z", parse_type("int"))]
        return StateType("struct", children=tuple(draw(st.permutations(fields))))
    children = [(n, draw(later(t, key=n == "key"))) for n, t in old.children]
    return StateType(old.name, children=tuple(children))


def values(type: StateType) -> st.SearchStrategy[Any]:
    name = type.name
    if name in BOUNDS:
        return st.integers(-(2 ** BOUNDS[name]), 2 ** BOUNDS[name] - 1)
    if name == "struct":
        return st.fixed_dictionaries({n: st.none() | values(t) for n, t in type.children})
    if name == "array":
        return st.lists(st.none() | values(type.children[0][1]), max_size=3)
    if name == "map":
        key, value = (child for _, child in type.children)
        return st.dictionaries(values(key), st.none() | values(value), max_size=3)
    if name == "decimal":
        limit = 10**type.precision - 1
        whole = st.integers(-limit, limit)
        return whole.map(lambda n: Decimal(f"{n}e{-type.scale}"))
    made: dict[str, st.SearchStrategy[Any]] = {
        "boolean": st.booleans(),
        "float": st.floats(width=32),
        "double": st.floats(),
        "date": st.dates(),
        "timestamp": st.datetimes(timezones=st.just(UTC)),
        "timestamp_ntz": st.datetimes(),
        "string": st.text(max_size=4),
        "binary": st.binary(max_size=4),
    }
    return made[name]


def converted(value: Any, old: StateType, new: StateType, default: Any = None) -> Any:
    """What a stored value is as the later type, with the default of that; the model."""
    if value is None:
        return None
    if new.name == "struct":
        stored, default = dict(old.children), default or {}
        return {
            n: converted(value[n], stored[n], t, default.get(n)) if n in stored else default.get(n)
            for n, t in new.children
        }
    if new.name == "array":
        return [converted(item, old.children[0][1], new.children[0][1]) for item in value]
    if new.name == "map":
        (_, was_key), (_, was) = old.children
        (_, now_key), (_, now) = new.children
        return {converted(k, was_key, now_key): converted(v, was, now) for k, v in value.items()}
    if old.name == "date" and new.name != "date":
        zone = UTC if new.name == "timestamp" else None
        return datetime.datetime(value.year, value.month, value.day, tzinfo=zone)
    if new.name in ("float", "double"):
        return float(value)
    if new.name == "decimal":
        return Decimal(value)
    return value


def same(a: Any, b: Any) -> bool:
    """Equality in which a NaN equals a NaN, and 0.0 does not equal -0.0."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        if math.isnan(a) or math.isnan(b):
            return math.isnan(a) and math.isnan(b)
        return a == b and math.copysign(1, a) == math.copysign(1, b)
    return type(a) is type(b) and bool(a == b)


def declared(type: StateType, ttl: ps.StateTtl | None, default: Any = None) -> dict[str, Any]:
    spelled = type.ddl
    return {
        "v": ps.ValueState(spelled, default, ttl=ttl),
        "l": ps.ListState(spelled, ttl=ttl),
        "m": ps.MapState("string", spelled, ttl=ttl),
        "n": ps.ValueState("long"),
    }


def put(backend: ps.KeyedStateBackend, key: int, stored: list[Any]) -> None:
    backend.set_current_key(key)
    backend["n"].update(key)
    for i, value in enumerate(stored):
        backend["v"].update(value)
        backend["l"].add(value)
        backend["m"].put(f"key {i}", value)


def expect(
    backend: ps.KeyedStateBackend, key: int, wanted: list[Any], value: Any, default: Any
) -> None:
    backend.set_current_key(key)
    found = backend["v"].value()
    assert same(found, default if value is None else value)
    assert same(list(backend["l"].get()), wanted)
    assert same(dict(backend["m"].items()), {f"key {i}": v for i, v in enumerate(wanted)})
    assert backend["n"].value() == key


def write(snapshot: ps.Snapshot) -> io.BytesIO:
    out = io.BytesIO()
    with snapshot:
        snapshot.write(out)
    return out


@settings(deadline=None)
@given(data=st.data())
def test_values_are_converted_as_by_the_model(data: st.DataObject) -> None:
    old = data.draw(types)
    new = data.draw(later(old))
    ttls = st.sampled_from([None, ps.StateTtl(hours=1)])
    stored = {k: data.draw(st.lists(values(old), max_size=4)) for k in range(3)}
    newer = data.draw(st.lists(values(new), max_size=2))
    with ps.KeyedStateBackend("long", states=declared(old, data.draw(ttls))) as backend:
        backend.set_clock(processing_time=1000)
        for key, items in stored.items():
            put(backend, key, items)
        files = [write(backend.seal())]
    default = data.draw(values(new)) if new.name == "struct" and data.draw(st.booleans()) else None
    wanted = {k: [converted(v, old, new) for v in items] for k, items in stored.items()}
    last = {k: converted(v[-1], old, new, default) if v else None for k, v in stored.items()}
    ttl = data.draw(ttls)
    states = declared(new, ttl, default)
    with ps.KeyedStateBackend("long", states=states) as backend:
        backend.set_clock(processing_time=2000)
        backend.restore(files, allow_unclaimed_state=True)
        for key, items in wanted.items():
            expect(backend, key, items, last[key], default)
        put(backend, 3, newer)
        wanted[3], last[3] = newer, newer[-1] if newer else None
        files.append(write(backend.seal()))
    base = io.BytesIO()
    merge_files(files, base, since=declared_fills(states))
    for chain in (files, [base]):
        with ps.KeyedStateBackend("long", states=states) as backend:
            backend.set_clock(processing_time=3000)
            backend.restore(chain, allow_unclaimed_state=True)
            for key, items in wanted.items():
                expect(backend, key, items, last[key], default)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("long", "int"),
        ("long", "double"),
        ("int", "float"),
        ("double", "float"),
        ("timestamp", "date"),
        ("timestamp", "long"),
        ("decimal(6,2)", "decimal(6,3)"),
        ("decimal(6,2)", "decimal(5,2)"),
        ("int", "decimal(11,2)"),
        ("string", "binary"),
        ("int", "boolean"),
        ("int", "string"),
        ("struct<a:int>", "array<int>"),
        ("struct<a:long>", "struct<a:int>"),
        ("array<struct<a:long>>", "array<struct<a:int>>"),
        ("map<date,int>", "map<timestamp,int>"),
        ("map<int,int>", "map<double,int>"),
    ],
)
def test_what_would_lose_something_is_refused(old: str, new: str) -> None:
    with ps.KeyedStateBackend("long", states={"v": ps.ValueState(old)}) as backend:
        backend.open()
        files = [write(backend.seal())]
    with ps.KeyedStateBackend("long", states={"v": ps.ValueState(new)}) as backend:
        with pytest.raises(ps.errors.SchemaError) as refused:
            backend.restore(files)
        said = str(refused.value)
        assert parse_type(old).ddl in said
        assert parse_type(new).ddl in said
        assert "'v'" in said


#: The ends of each type that may become wider, and values between.
EXTREMES: dict[str, list[Any]] = {
    **{name: [-(2**n), 2**n - 1, -1, 0, 77] for name, n in BOUNDS.items()},
    "float": [-0.0, 0.5, math.inf, -3.4028234663852886e38, 1.401298464324817e-45],
    "date": [datetime.date(1, 1, 1), datetime.date(9999, 12, 31), datetime.date(1969, 12, 31)],
    "decimal(5,2)": [Decimal("-999.99"), Decimal("999.99"), Decimal("0.01"), Decimal(0)],
    "decimal(28,3)": [
        Decimal(f"{sign}{number}e-3")
        for sign in ("", "-")
        for number in (10**28 - 1, 2**64, 2**64 - 1, 2**63, 1)
    ],
}


@pytest.mark.parametrize(("old", "new"), [(a, b) for a in EXTREMES for b in WIDER[a]])
def test_each_pair_of_types_with_its_ends(old: str, new: str) -> None:
    """Many rows of a column, nulls between them, as values, in lists, maps and structs."""
    items = [*EXTREMES[old], None, *EXTREMES[old][::-1]]
    wanted = [converted(item, parse_type(old), parse_type(new)) for item in items]

    def states(type_: str) -> dict[str, Any]:
        return {
            "v": ps.ValueState(type_),
            "l": ps.ListState(type_),
            "m": ps.MapState("int", type_),
            "s": ps.ValueState(f"struct<x:{type_},y:array<{type_}>>"),
        }

    with ps.KeyedStateBackend("long", states=states(old)) as backend:
        for i, item in enumerate(items):
            backend.set_current_key(i)
            backend["v"].update(item)
            backend["s"].update({"x": item, "y": items[:i]})
            if item is not None:
                backend["l"].add_all([x for x in items[: i + 1] if x is not None])
                backend["m"].put(i, item)
        files = [write(backend.seal())]
        # Lists that begin anew, that go, and that get more, in a delta beside other rows.
        last = EXTREMES[old][0]
        for i in range(len(items)):
            backend.set_current_key(i)
            if i % 4 < 2:
                backend["l"].clear()
            if i % 2:
                backend["l"].add_all([last] * i)
            if i % 3 == 0:
                backend["m"].clear()
                backend["m"].put(i, last)
        files.append(write(backend.seal()))
    last = converted(last, parse_type(old), parse_type(new))
    with ps.KeyedStateBackend("long", states=states(new)) as backend:
        backend.restore(files)
        for i, item in enumerate(wanted):
            backend.set_current_key(i)
            assert same(backend["v"].value(), item)
            assert same(backend["s"].value(), {"x": item, "y": wanted[:i]})
            given = [x for x in wanted[: i + 1] if x is not None] if item is not None else []
            given = ([] if i % 4 < 2 else given) + ([last] * i if i % 2 else [])
            item = last if i % 3 == 0 else item
            assert same(list(backend["l"].get()), given)
            assert same(dict(backend["m"].items()), {} if item is None else {i: item})
