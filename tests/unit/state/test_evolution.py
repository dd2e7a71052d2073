"""States whose declaration changed: stores, accumulators, times to live, fields that come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.errors import SchemaError, StateOverflowError
from pystate.state.evolution import stored_change
from pystate.types.conversion import change_of, field_paths
from pystate.types.state_type import parse_type
from tests.tables import keyed, sealed


def opened(folder: Path, type_: str, **options: Any) -> ps.Store:
    states = {"s": ps.ValueState(type_), "n": ps.ValueState("long")}
    return ps.open(folder, key="long", states=states, **options)


def set_value(store: ps.Store, key: int, value: Any) -> None:
    store.set_current_key(key)
    store["s"].update(value)
    store["n"].update(key)


def value(store: ps.Store, key: int) -> Any:
    store.set_current_key(key)
    return store["s"].value()


def test_a_store_is_reopened_with_a_wider_schema(tmp_path: Path) -> None:
    """Deltas before and after the change in one chain, and what is written later."""
    with opened(tmp_path, "struct<a:int,b:string>") as store:
        for key in range(3):
            set_value(store, key, {"a": key, "b": "x"})
        store.checkpoint()
        set_value(store, 1, {"a": 10, "b": "y"})
        store.checkpoint()
    later = "struct<c:array<int>,b:string,a:long>"
    with opened(tmp_path, later) as store:
        assert value(store, 0) == {"c": None, "b": "x", "a": 0}
        assert value(store, 1) == {"c": None, "b": "y", "a": 10}
        set_value(store, 2, {"c": [1], "b": "z", "a": 2**40})
        store.checkpoint()
    with opened(tmp_path, later) as store:
        assert [value(store, key)["a"] for key in range(3)] == [0, 10, 2**40]
    with pytest.raises(
        SchemaError,
        match=r"stored as struct<c:.*a:long>, declared as .*: a: int does not hold every long",
    ):
        opened(tmp_path, "struct<a:int,b:string>")


def test_a_value_may_not_fit_the_wider_type(tmp_path: Path) -> None:
    """No timestamp is as late as the latest dates; what is stored stays readable."""
    days = pa.array([1, 200_000_000], pa.int32()).cast(pa.date32())
    with opened(tmp_path, "date") as store:
        store["s"].update_all(store.keys([1, 2]), days)
        store.checkpoint()
    with pytest.raises(StateOverflowError, match=r"\.delta: it has a value that does not fit"):
        opened(tmp_path, "timestamp")
    with opened(tmp_path, "date") as store:
        assert store["s"].values(store.keys([1, 2])).cast(pa.int32()).to_pylist() == [
            1,
            200_000_000,
        ]


def test_a_removed_field_does_not_come_back(tmp_path: Path) -> None:
    """Not even where the key was not written without it, and whatever type it has then."""
    with opened(tmp_path, "struct<a:int,b:string>") as store:
        set_value(store, 1, {"a": 1, "b": "x"})
        store.checkpoint()
    with opened(tmp_path, "struct<a:int>") as store:
        set_value(store, 2, {"a": 2})
    with opened(tmp_path, "struct<a:int,b:string>") as store:
        assert value(store, 1) == {"a": 1, "b": "x"}  # nothing was saved without the field
    with opened(tmp_path, "struct<a:int>") as store:
        set_value(store, 2, {"a": 2})
        store.checkpoint()
    with opened(tmp_path, "struct<a:int,b:date>") as store:
        assert value(store, 1) == {"a": 1, "b": None}


def test_a_probable_rename_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path, "struct<a:int,b:string>") as store:
        set_value(store, 1, {"a": 1, "b": "x"})
        store.checkpoint()
    renamed = "struct<a:int,c:string>"
    with pytest.raises(
        SchemaError,
        match=r"'s': stored as struct<a:int,b:string>, declared as struct<a:int,c:string>: this "
        r"looks like a rename, 'b' to 'c'.*allow_unclaimed_state=True",
    ):
        opened(tmp_path, renamed)
    with opened(tmp_path, "struct<a:int,c:date>") as store:  # no rename: another type
        assert value(store, 1) == {"a": 1, "c": None}
    with opened(tmp_path, renamed, allow_unclaimed_state=True) as store:
        assert value(store, 1) == {"a": 1, "c": None}


def test_a_rename_is_refused_without_a_manifest_too() -> None:
    with keyed({"l": ps.ListState("struct<a:int>")}) as backend:
        backend["l"].add({"a": 1})
        out = sealed(backend)
    states = {"l": ps.ListState("struct<b:int>")}
    with pytest.raises(SchemaError, match=r"state 'l' is .*rename, 'a' to 'b'"):
        keyed(states, out)
    with keyed(states, out, allow_unclaimed_state=True) as backend:
        assert list(backend["l"].get()) == [{"b": None}]


@pytest.mark.parametrize(
    ("old", "new", "allowed"),
    [
        (ps.AggregatingState(ps.Mean(), "int"), ps.AggregatingState(ps.Mean(), "long"), True),
        (ps.AggregatingState(ps.Mean(), "float"), ps.AggregatingState(ps.Mean(), "double"), True),
        (ps.AggregatingState(ps.Last(), "byte"), ps.AggregatingState(ps.Last(), "long"), True),
        (ps.AggregatingState(ps.TopK(3), "int"), ps.AggregatingState(ps.TopK(3), "long"), True),
        (ps.AggregatingState(ps.Min(), "int"), ps.AggregatingState(ps.Min(), "double"), True),
        (ps.ReducingState("int", max), ps.ReducingState("long", max), True),
        (ps.AggregatingState(ps.Mean(), "int"), ps.AggregatingState(ps.Mean(), "double"), False),
        (ps.AggregatingState(ps.Last(), "float"), ps.AggregatingState(ps.Last(), "double"), False),
        (ps.AggregatingState(ps.TopK(3), "int"), ps.AggregatingState(ps.TopK(4), "int"), False),
        (
            ps.AggregatingState(ps.ApproxDistinct(), "int"),
            ps.AggregatingState(ps.ApproxDistinct(), "long"),
            False,
        ),
    ],
    ids=repr,
)
def test_accumulators(old: Any, new: Any, allowed: bool) -> None:
    with keyed({"a": old}) as backend:
        for n in (3, -1, 2):
            backend["a"].add(n)
        before = backend["a"].get()
        out = sealed(backend)
    if not allowed:
        with pytest.raises(SchemaError, match="state 'a' is"):
            keyed({"a": new}, out)
        return
    with keyed({"a": new}, out) as backend:
        assert backend["a"].get() == before
        backend["a"].add(2**40 if "long" in repr(new) else 3)
        assert backend["a"].get() is not None


UNION = ps.OperatorListState("long", redistribute="union")


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (ps.ValueState("long"), ps.ListState("long"), "does not change its kind"),
        (ps.ListState("long"), ps.MapState("long", "long"), "does not change its kind"),
        (ps.MapState("date", "int"), ps.MapState("timestamp", "int"), "keep their identity"),
        (ps.MapState("float", "int"), ps.MapState("double", "int"), "keep their identity"),
        (ps.MapState("long", "int"), ps.MapState("int", "int"), "keep their identity"),
        (ps.ValueState("timestamp"), ps.ValueState("timestamp_ntz"), "is no timestamp_ntz"),
        (ps.ValueState(object), ps.ValueState("binary"), "does not hold"),
        (UNION, ps.OperatorListState("long"), "the list was a union"),
    ],
    ids=repr,
)
def test_what_is_refused(old: Any, new: Any, why: str) -> None:
    change = stored_change(old.stored_as(), new.stored_as())
    assert why in change.types.refused[0]


def test_a_list_that_was_divided_becomes_a_union() -> None:
    for old, new in ((ps.OperatorListState("long"), UNION), (UNION, UNION)):
        change = stored_change(old.stored_as(), new.stored_as())
        assert change.is_none and not change.types.refused


def test_paths_of_fields() -> None:
    type_ = parse_type("struct<a:array<struct<b:int>>,`c.d`:map<string,struct<e:int>>>")
    paths = ["a", "a[].b", "`c.d`", "`c.d`[value].e"]
    assert list(field_paths(type_)) == paths
    assert list(change_of(parse_type("struct<z:int>"), type_).added) == ["a", "`c.d`"]
    dropped = change_of(type_, type_, lambda path: path == "a[].b")
    assert dropped.added.keys() == {"a[].b"}
    assert dropped.sources == [0, 1, 2, -1, 4, 5, 6, 7]


HOUR_MS = 3_600_000
DAY = ps.StateTtl(hours=24)
HOUR = ps.StateTtl(hours=1)


def timed(ttl: ps.StateTtl | None) -> dict[str, Any]:
    return {
        "v": ps.ValueState("long", ttl=ttl),
        "l": ps.ListState("int", ttl=ttl),
        "m": ps.MapState("string", "struct<a:int>", ttl=ttl),
        "sum": ps.ReducingState("long", sum, ttl=ttl),
        "mean": ps.AggregatingState(ps.Mean(), "long", ttl=ttl),
        "any": ps.ValueState(object, ttl=ttl),
    }


def seen(backend: ps.KeyedStateBackend) -> tuple[Any, ...]:
    backend.set_current_key(1)
    return (
        backend["v"].value(),
        list(backend["l"].get()),
        {k: v["a"] for k, v in backend["m"].items()},
        *(backend["sum"].get(), backend["mean"].get(), backend["any"].value()),
    )


@pytest.mark.parametrize("clock_first", [True, False])
@pytest.mark.parametrize("start", [1000, 2**63 - 1 - HOUR_MS])
@pytest.mark.parametrize(
    ("before", "after", "lives"),
    [
        (None, HOUR, HOUR_MS),  # counts from the first run that has it
        (HOUR, None, None),
        (HOUR, DAY, 24 * HOUR_MS - HOUR_MS // 2),  # counts from the last write
        (DAY, HOUR, HOUR_MS // 2),
    ],
    ids=["on", "off", "longer", "shorter"],
)
def test_a_time_to_live_changes(
    start: int, before: Any, after: Any, lives: int | None, clock_first: bool
) -> None:
    """The values were written half an hour before the program changed; types change with it."""
    with ps.KeyedStateBackend("long", states=timed(before)) as backend:
        backend.set_clock(processing_time=start)
        backend.set_current_key(1)
        backend["v"].update(1)
        backend["l"].add_all([1, 2])
        backend["m"].put("a", {"a": 3})
        for name, value in (("sum", 4), ("mean", 5)):
            backend[name].add(value)
        backend["any"].update([6])
        out = sealed(backend)
    states = timed(after) | {"l": ps.ListState("long", ttl=after)}
    now = start + HOUR_MS // 2
    full = (1, [1, 2], {"a": 3}, 4, 5.0, [6])
    with ps.KeyedStateBackend("long", states=states) as backend:
        if clock_first:
            backend.set_clock(processing_time=now)
        backend.restore([out], allow_unclaimed_state=True)
        if not clock_first:  # it counts from the first sweep
            backend.set_clock(processing_time=now)
            backend.expire()
        assert seen(backend) == full
        last = now + (lives or 0) - 1
        if last + 1 < 2**63:
            backend.set_clock(processing_time=last)
            assert seen(backend) == full
            backend.set_clock(processing_time=last + 1)
            assert seen(backend) == (full if lives is None else (None, [], {}, *[None] * 3))


@pytest.mark.parametrize("old", ["byte", "short", "int"])
def test_keys_of_maps_become_wider_integers(old: str) -> None:
    with keyed({"m": ps.MapState(old, "int")}) as backend:
        backend["m"].put_all({-128: 1, 127: 2})
        out = sealed(backend)
    with keyed({"m": ps.MapState("long", "int")}, out) as backend:
        assert dict(backend["m"].items()) == {-128: 1, 127: 2}
