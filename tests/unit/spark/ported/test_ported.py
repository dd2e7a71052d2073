"""Spark's processors over the harness: states, timers and errors by Spark's rules, no session."""

from __future__ import annotations

import copy
import pickle
import random
import threading
from collections.abc import Callable, Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as hs
from pyspark import cloudpickle
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql import types as st
from pyspark.sql.streaming import StatefulProcessor

import pystate as ps
from pystate.errors import DeclarationError, InvalidArgumentError, WrongTypeError
from pystate.spark import StatefulProcessorError, adapt
from pystate.testing import Harness
from tests.drawn import drawn


class Scripted(StatefulProcessor):
    """Runs a script: a function for the rows, and one for timers."""

    def __init__(
        self,
        init: Callable[[Any, Any], None],
        rows: Callable[..., Any] = lambda self, key, rows, times: [],
        timer: Callable[..., Any] = lambda self, key, times, info: [],
    ) -> None:
        self.scripts = init, rows, timer

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.scripts[0](self, handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        return self.scripts[1](self, key, rows, timerValues)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        return self.scripts[2](self, key, timerValues, expiredTimerInfo)

    def close(self) -> None:
        pass


def asking(*states: tuple[Any, ...]) -> Callable[[Any, Any], None]:
    """An `init` that asks for states, each said by its kind, name and schemas."""

    def init(self: Any, handle: Any) -> None:
        for kind, name, *more in states:
            setattr(self, name, getattr(handle, f"get{kind}State")(name, *more))

    return init


def seen(rows: Callable[..., Any], init: Callable[..., Any], mode: str = "None") -> list[Any]:
    """What a script for one key's rows has yielded."""
    with Harness(adapt(Scripted(init, rows), "k", time_mode=mode), key="k") as harness:
        return harness.process([{"k": 1, "v": 10}, {"k": 1, "v": 20}])


# -- states


EVERY = (
    "ts timestamp, tn timestamp_ntz, d date, dc decimal(10,2), a array<int>, "
    "m map<string,struct<x:int,y:string>>, s struct<x:int,t:timestamp>, b binary, f float"
)


def test_values_of_every_type_come_back_as_spark_gives_them() -> None:
    noon = datetime(2024, 1, 1, 12)

    init = asking(("Value", "v", EVERY))

    def rows(self: Any, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        assert not self.v.exists()
        assert self.v.get() is None
        # Structs are taken by position, whatever their names, or as dicts by name.
        self.v.update(
            (
                noon,
                noon,
                date(2024, 1, 2),
                Decimal("1.5"),
                [1, None],
                {"k": Row(1, "q")},
                {"t": noon, "x": 2},
                b"ab",
                1.5,
            )
        )
        yield self.v.exists(), self.v.get()
        self.v.update(Row(**dict.fromkeys("abcdefghi")))
        yield self.v.exists(), self.v.get()
        self.v.clear()
        yield self.v.exists(), self.v.get()

    found = seen(rows, init)
    assert found[0] == (
        True,
        (
            noon,
            noon,
            date(2024, 1, 2),
            Decimal("1.50"),
            [1, None],
            {"k": Row(x=1, y="q")},
            Row(x=2, t=noon),
            b"ab",
            1.5,
        ),
    )
    inner = found[0][1][6]
    assert isinstance(inner, Row) and inner.t == noon and inner["x"] == 2
    # All fields null is a value, other than none.
    assert found[1:] == [(True, (None,) * 9), (False, None)]


def test_an_instant_with_a_time_zone_is_taken_and_given_back_as_local_time() -> None:
    init = asking(("Map", "m", "at timestamp", "at timestamp"))

    def rows(self: Any, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        at = datetime(2024, 1, 1, 12, tzinfo=timezone.utc)
        self.m.updateValue((at,), (at,))
        local = at.astimezone().replace(tzinfo=None)
        yield self.m.getValue((local,)) == (local,), list(self.m.iterator()) == [((local,),) * 2]

    assert seen(rows, init) == [(True, True)]


def test_map_keys_of_several_fields_may_hold_nulls() -> None:
    init = asking(("Map", "m", "a int, b string", "n long"))

    def rows(self: Any, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        m = self.m
        m.updateValue((1, None), (5,))
        m.updateValue(Row(a=1, b="x"), [6])
        assert m.containsKey((1, None))
        assert m.getValue((1, "y")) is None
        yield sorted(m.keys(), key=str), sorted(m.values()), sorted(m.iterator(), key=str)
        m.removeKey((1, None))
        yield list(m.keys()), m.exists()
        m.clear()
        yield m.exists()

    pairs = [((1, "x"), (6,)), ((1, None), (5,))]
    assert seen(rows, init) == [
        ([(1, "x"), (1, None)], [(5,), (6,)], pairs),
        ([(1, "x")], True),
        False,
    ]


def test_null_structs_are_grouping_keys_of_their_own() -> None:
    init = asking(("Value", "n", "n long"))

    def rows(self: Any, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        n = (self.n.get() or (0,))[0] + sum(len(each) for each in rows)
        self.n.update((n,))
        self.handle.registerTimer(times.getCurrentProcessingTimeInMs() + 5)
        yield key, n

    def timer(self: Any, key: Any, times: Any, info: Any) -> Iterator[Any]:
        yield key, -self.n.get()[0]

    function = adapt(Scripted(init, rows, timer), "k", time_mode="ProcessingTime")
    keys = [None, {"a": None, "b": None}, {"a": None, "b": {"x": None}}, {"a": None, "b": {"x": 1}}]
    columns = "k struct<a:string,b:struct<x:long>>"
    with Harness(function, key="k", columns=columns) as harness:
        found = harness.process([{"k": key} for key in (*keys, *keys[:2])])
        assert found == [((key,), n) for key, n in zip(keys, (2, 2, 1, 1), strict=True)]
        fired = harness.advance_processing_time(5)
        structs = [None, Row(a=None, b=None), Row(a=None, b=Row(x=None)), Row(a=None, b=Row(x=1))]
        assert sorted(fired, key=repr) == sorted(
            ((Row(k=key), -n) for key, n in zip(structs, (2, 2, 1, 1), strict=True)), key=repr
        )


def test_map_keys_of_structs_are_one_where_sql_says_so() -> None:
    init = asking(("Map", "m", "a double, b struct<x:float,c:struct<y:int>>", "n long"))

    def rows(self: Any, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        nan = float("nan")
        inner = [None, (None, None), (None, (None,)), (0.0, None), (nan, None)]
        keys = [(a, each) for a in (None, 0.0, nan) for each in inner]
        for n, each in enumerate(keys):
            self.m.updateValue(each, (n,))
        values = [self.m.getValue(each) for each in keys]
        yield values, len(list(self.m.keys()))
        other = [(-0.0, (-0.0, None)), (-nan, (-nan, None)), (-0.0, None)]
        yield [self.m.getValue(each) for each in other], self.m.containsKey((-0.0, (nan, None)))

    assert seen(rows, init) == [
        ([(n,) for n in range(15)], 15),
        ([(8,), (14,), (5,)], True),
    ]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("0", ("0",)),
        (["ab"], ("ab",)),
        ({"x": "ab"}, ("ab",)),
        ({"ab"}, ("ab",)),
        (iter(["ab"]), ("ab",)),
        (np.array(["ab"], object), ("ab",)),
        (Row(other="ab"), ("ab",)),
    ],
)
def test_any_iterable_of_the_fields_is_taken_as_spark_takes_it(
    given: Any, found: tuple[Any, ...]
) -> None:
    given = list(given) if isinstance(given, Iterator) else given

    init = asking(
        ("Value", "v", "x string"), ("List", "l", "x string"), ("Map", "m", "x string", "x string")
    )

    def rows(self: Any, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        self.v.update(given)
        self.l.appendValue(given)
        self.l.appendList([given, given])
        self.m.updateValue(given, given)
        assert self.m.containsKey(given)
        yield self.v.get(), list(self.l.get()), list(self.m.iterator()), self.m.getValue(given)
        self.m.removeKey(given)
        yield self.m.exists()

    assert seen(rows, init) == [(found, [found] * 3, [(found, found)], found), False]


def test_a_string_is_as_many_values_as_it_has_characters() -> None:
    init = asking(("Value", "v", "a string, b string"), ("Map", "m", "a string, b string", "n int"))

    def rows(self: Any, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        self.v.update("ab")
        self.m.updateValue("cd", range(7, 8))
        yield self.v.get(), list(self.m.iterator())

    assert seen(rows, init) == [(("a", "b"), [(("c", "d"), (7,))])]


#: Structs whose field may be null, and has parts that may not.
STRICT_WITHIN: list[st.DataType] = [
    st.StructType([st.StructField("y", st.IntegerType(), False)]),
    st.ArrayType(st.IntegerType(), containsNull=False),
    st.MapType(st.StringType(), st.IntegerType(), valueContainsNull=False),
    st.ArrayType(st.StructType([st.StructField("y", st.IntegerType(), False)])),
]


@pytest.mark.parametrize("kind", ["value", "list", "map"])
def test_fields_of_a_state_may_be_null_as_spark_wants_it(kind: str) -> None:
    def asked(schema: Any) -> Any:
        def init(self: Any, handle: Any) -> None:
            if kind == "map":
                # Those of a map's key need not.
                self.s = handle.getMapState("s", "k int not null", schema)
            else:
                self.s = getattr(handle, f"get{kind.title()}State")("s", schema)

        return adapt(Scripted(init), "k")

    strict = st.StructType([st.StructField("id", st.IntegerType(), False)])
    for schema in (strict, "n int, id int not null"):
        with pytest.raises(StatefulProcessorError, match=r"MUST_BE_NULLABLE.*'s': id cannot be"):
            asked(schema)
    for part in STRICT_WITHIN:
        asked(st.StructType([st.StructField("x", part)]))


def test_a_state_may_have_the_name_of_a_key_column_or_of_a_method() -> None:
    def init(self: Any, handle: Any) -> None:
        names = ("k", "k_", "process", "__x", "open", "unused")
        self.states = [handle.getValueState(name, "n long") for name in names]

    def rows(self: Any, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        for i, state in enumerate(self.states):
            state.update((i,))
        yield [state.get() for state in self.states]

    function = adapt(Scripted(init, rows), "k")
    with Harness(function, key="k") as harness:
        assert harness.process([{"k": 1}]) == [[(i,) for i in range(6)]]
        assert harness.state("k_", 1) == (0,)
        assert harness.state("k__", 1) == (1,)


def test_a_state_may_be_deleted_in_init() -> None:
    def init(self: Any, handle: Any) -> None:
        gone = handle.getListState("old", "n long")
        handle.deleteIfExists("old")
        with pytest.raises(StatefulProcessorError, match="get cannot be called"):
            gone.get()
        with pytest.raises(StatefulProcessorError, match=r"^Error checking value state exists: "):
            gone.exists()
        handle.deleteIfExists("never there")
        self.new = handle.getValueState("old", "s string")

    def rows(self: Any, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        self.new.update(("a",))
        yield self.new.get()

    assert seen(rows, init) == [("a",)]


def test_items_and_entries_expire_one_by_one() -> None:
    init = asking(
        ("Value", "v", "n long", 100),
        ("List", "l", "n long", 100),
        ("Map", "m", "k long", "n long", 100),
        ("Value", "kept", "n long", 0),
    )

    def rows(self: Any, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        now = times.getCurrentProcessingTimeInMs()
        yield self.v.get(), list(self.l.get()), list(self.m.keys()), self.kept.get()
        self.l.appendValue((now,))
        self.m.updateValue((now,), (1,))
        if now == 0:
            self.v.update((1,))
            self.kept.update((1,))

    function = adapt(Scripted(init, rows), "k", time_mode="processingtime")
    with Harness(function, key="k") as harness:
        harness.process([{"k": 1}])
        harness.advance_processing_time(60)
        assert harness.process([{"k": 1}]) == [((1,), [(0,)], [(0,)], (1,))]
        harness.advance_processing_time(120)
        assert harness.process([{"k": 1}]) == [(None, [(60,)], [(60,)], (1,))]


# -- random operations, against plain Python

KEYS, WORDS = hs.integers(0, 3), hs.sampled_from(["a", "b", None])
OPERATIONS = hs.one_of(
    hs.tuples(hs.just("value"), hs.just("update"), hs.tuples(KEYS, WORDS)),
    hs.tuples(hs.just("value"), hs.just("clear")),
    hs.tuples(hs.just("list"), hs.just("appendValue"), hs.tuples(KEYS, WORDS)),
    hs.tuples(hs.just("list"), hs.just("appendList"), hs.lists(hs.tuples(KEYS, WORDS), min_size=1)),
    hs.tuples(hs.just("list"), hs.just("put"), hs.lists(hs.tuples(KEYS, WORDS), min_size=1)),
    hs.tuples(hs.just("list"), hs.just("clear")),
    hs.tuples(hs.just("map"), hs.just("updateValue"), hs.tuples(KEYS), hs.tuples(KEYS, WORDS)),
    hs.tuples(hs.just("map"), hs.just("removeKey"), hs.tuples(KEYS)),
    hs.tuples(hs.just("map"), hs.just("clear")),
)


class Operated(StatefulProcessor):
    def __init__(self, scripts: dict[int, list[Any]]) -> None:
        self.scripts = scripts

    def init(self, handle: Any) -> None:
        self.states = {
            "value": handle.getValueState("v", "n long, s string"),
            "list": handle.getListState("l", "n long, s string"),
            "map": handle.getMapState("m", "k long", "n long, s string"),
        }

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        value, items, entries = self.states.values()
        for row in rows:
            kind, method, *arguments = self.scripts[row.id]
            getattr(self.states[kind], method)(*copy.deepcopy(arguments))
            yield (
                key,
                (value.exists(), value.get()),
                (items.exists(), list(items.get())),
                (entries.exists(), sorted(entries.iterator()), sorted(entries.keys())),
                [entries.getValue((k,)) for k in range(4)],
                [entries.containsKey((k,)) for k in range(4)],
                len(list(entries.values())),
            )

    def close(self) -> None:
        pass


def modelled(state: dict[str, Any], kind: str, method: str, *arguments: Any) -> None:
    if method == "clear":
        state[kind] = {"value": None, "list": [], "map": {}}[kind]
    elif method == "update":
        state["value"] = arguments[0]
    elif method == "appendValue":
        state["list"].append(arguments[0])
    elif method in ("appendList", "put"):
        state["list"] = (state["list"] if method == "appendList" else []) + arguments[0]
    elif method == "updateValue":
        state["map"][arguments[0]] = arguments[1]
    else:
        state["map"].pop(arguments[0], None)


@drawn(40)
@given(hs.lists(hs.lists(hs.tuples(hs.integers(0, 2), OPERATIONS), max_size=6), max_size=4))
def test_states_do_what_plain_python_does(epochs: list[list[tuple[int, Any]]]) -> None:
    scripts = dict(enumerate(operation for epoch in epochs for _, operation in epoch))
    states: dict[int, dict[str, Any]] = {}
    numbers = iter(scripts)
    with Harness(adapt(Operated(scripts), "k"), key={"k": "long"}, parallelism=2) as harness:
        for epoch in epochs:
            rows = [{"k": key, "id": next(numbers)} for key, _ in epoch]
            wanted = []
            for row in rows:
                state = states.setdefault(row["k"], {"value": None, "list": [], "map": {}})
                modelled(state, *copy.deepcopy(scripts[row["id"]]))
                entries = state["map"]
                wanted.append(
                    (
                        (row["k"],),
                        (state["value"] is not None, state["value"]),
                        (bool(state["list"]), list(state["list"])),
                        (bool(entries), sorted(entries.items()), sorted(entries)),
                        [entries.get((k,)) for k in range(4)],
                        [(k,) in entries for k in range(4)],
                        len(entries),
                    )
                )
            found = harness.process(rows) if rows else []
            by_key = lambda row: row[0]  # noqa: E731
            assert sorted(found, key=by_key) == sorted(wanted, key=by_key)


# -- timers


def registering(self: Any, key: Any, rows: Any, times: Any) -> list[Any]:
    for row in rows:
        self.handle.registerTimer(row.v)
    return []


def no_state(self: Any, handle: Any) -> None:
    pass


def test_timers_fire_in_one_pass_by_sparks_rules() -> None:
    def timer(self: Any, key: Any, times: Any, info: Any) -> Iterator[Any]:
        time = info.getExpiryTimeInMs()
        if time == 10:
            self.handle.deleteTimer(20)  # it fires all the same
            self.handle.registerTimer(10)  # it is deleted after the call
            self.handle.registerTimer(15)  # it is due, and fires in the next pass
            self.handle.registerTimer(90)
        if time == 15:
            self.handle.deleteTimer(90)
        yield key.k, time, times.getCurrentProcessingTimeInMs()

    processor = Scripted(no_state, registering, timer)
    with Harness(adapt(processor, "k", time_mode="ProcessingTime"), key="k") as harness:
        harness.process([{"k": 1, "v": v} for v in (20, 10, 40, 10)])
        assert harness.advance_processing_time(30) == [(1, 10, 30), (1, 20, 30)]
        assert harness.advance_processing_time(39) == [(1, 15, 39)]
        assert harness.advance_processing_time(100) == [(1, 40, 100)]
        assert harness.advance_processing_time(200) == []


#: What is done when a timer fires: timers so much later are registered and deleted, or all listed.
_ACTS = hs.lists(
    hs.tuples(hs.sampled_from(["register", "delete", "list"]), hs.integers(-1, 2)), max_size=4
)


@given(
    first=hs.lists(hs.tuples(hs.integers(0, 1), hs.integers(1, 3)), min_size=1, max_size=4),
    acts=hs.tuples(_ACTS, _ACTS, _ACTS),
    passes=hs.lists(hs.integers(1, 3), max_size=2),
)
@drawn(400)
def test_timers_of_a_pass_are_those_of_sparks_store(
    first: list[tuple[int, int]],
    acts: tuple[list[tuple[str, int]], ...],
    passes: list[int],
) -> None:
    """A pass is over what is due as it begins; all else is what the store has."""

    def timer(self: Any, key: Any, times: Any, info: Any) -> Iterator[Any]:
        time = info.getExpiryTimeInMs()
        for act, more in acts[time % 3]:
            if act == "list":
                yield key.k, time, list(self.handle.listTimers())
            else:
                getattr(self.handle, f"{act}Timer")(time + more)
        yield key.k, time, None

    store: dict[int, set[int]] = {0: set(), 1: set()}
    now = 0
    function = adapt(Scripted(no_state, registering, timer), "k", time_mode="ProcessingTime")
    with Harness(function, key="k") as harness:
        harness.process([{"k": k, "v": v} for k, v in first])
        for k, v in first:
            store[k].add(v)
        for step in (*passes, 3, 1, 1):
            now += step
            found = harness.advance_processing_time(now)
            for k in store:
                expected: list[Any] = []
                for time in sorted(t for t in store[k] if t <= now):
                    for act, more in acts[time % 3]:
                        if act == "list":
                            expected.append((k, time, sorted(store[k])))
                        elif act == "register":
                            store[k].add(time + more)
                        else:
                            store[k].discard(time + more)
                    expected.append((k, time, None))
                    store[k].discard(time)
                assert [row for row in found if row[0] == k] == expected


@pytest.mark.parametrize("names", [["k"], ["k", "j"]])
@pytest.mark.parametrize("keys", [(1.5, float("nan"), 0.0), (1, None, -(1 << 62))])
def test_timers_of_any_key_are_listed(keys: tuple[Any, ...], names: list[str]) -> None:
    def rows(self: Any, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        for row in rows:
            self.handle.registerTimer(row.v)
        yield key[0], list(self.handle.listTimers())

    function = adapt(Scripted(no_state, rows), names, time_mode="ProcessingTime")
    with Harness(function, key=names) as harness:
        for v, listed in ((70, [70]), (50, [50, 70])):
            columns = {"k": pa.array(keys), "j": pa.array(map(str, keys))}
            found = harness.process(pa.table({**columns, "v": pa.array([v] * len(keys))}))
            assert [times for _, times in found] == [listed] * len(keys)
            # The same key by its other zero.
            keys = tuple(-key if key == 0 else key for key in keys) if names == ["k"] else keys


def test_a_due_timer_that_is_deleted_and_registered_again_is_listed() -> None:
    def timer(self: Any, key: Any, times: Any, info: Any) -> Iterator[Any]:
        if info.getExpiryTimeInMs() == 1:
            self.handle.deleteTimer(2)
            self.handle.registerTimer(2)
            yield sorted(self.handle.listTimers())

    function = adapt(Scripted(no_state, registering, timer), "k", time_mode="ProcessingTime")
    with Harness(function, key="k") as harness:
        harness.process([{"k": 1, "v": v} for v in (1, 2, 9)])
        assert harness.advance_processing_time(3) == [[1, 2, 9]]


def test_timers_of_a_key_are_listed() -> None:
    def rows(self: Any, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        for row in rows:
            self.handle.registerTimer(row.v) if row.v > 0 else self.handle.deleteTimer(-row.v)
        yield key[0], list(self.handle.listTimers())
        self.handle.registerTimer(7)
        self.handle.deleteTimer(6)
        yield key[0], list(self.handle.listTimers())

    function = adapt(Scripted(no_state, rows), "k", time_mode="ProcessingTime")
    with Harness(function, key="k", parallelism=3) as harness:
        for key in range(20):
            harness.process([{"k": key, "v": v} for v in (100 + key, 6, 50)])
        found = sorted(harness.process([{"k": 3, "v": -50}, {"k": 4, "v": 60}]))
        assert found == [(3, [7, 103])] * 2 + [(4, [7, 50, 60, 104])] * 2


def test_a_timer_at_the_first_watermark_fires_in_the_first_epoch() -> None:
    init = asking(("Value", "n", "n int"))

    def rows(self: Any, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        list(rows)
        for timer in (times.getCurrentWatermarkInMs(), 1, 10_000, 10_001):
            self.handle.registerTimer(timer)
        yield key[0], times.getCurrentWatermarkInMs()

    def timer(self: Any, key: Any, times: Any, info: Any) -> Iterator[Any]:
        yield "fired", info.getExpiryTimeInMs(), times.getCurrentWatermarkInMs()

    function = adapt(Scripted(init, rows, timer), "k", time_mode="EventTime")
    with Harness(function, key="k", event_time="at", allowed_delay=10_000) as harness:
        found = harness.process([{"k": "a", "at": 20_000}])
        assert found == [("a", 0), ("fired", 0, 0)]
        assert harness.process([]) == [("fired", 1, 10_000), ("fired", 10_000, 10_000)]


def test_late_rows_are_dropped_at_the_watermark_and_timers_see_it() -> None:
    def rows(self: Any, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        found = [row.v for row in rows]
        self.handle.registerTimer(max(found))
        yield key, found, times.getCurrentWatermarkInMs()

    def timer(self: Any, key: Any, times: Any, info: Any) -> Iterator[Any]:
        yield key, info.getExpiryTimeInMs(), times.getCurrentWatermarkInMs()

    function = adapt(Scripted(no_state, rows, timer), "k", time_mode="EventTime")
    with Harness(function, key="k", event_time="v", allowed_delay=5, late="drop") as harness:
        # Before there is a watermark it is 0, as in Spark's streams.
        assert harness.process([{"k": 1, "v": 10}]) == [((1,), [10], 0)]
        # The watermark is 5: a row at it is late.
        assert harness.process([{"k": 1, "v": v} for v in (5, 6, 30)]) == [((1,), [6, 30], 5)]
        assert harness.process([]) == [((1,), 10, 25)]


def test_a_drain_fires_all_timers_and_ends() -> None:
    def timer(self: Any, key: Any, times: Any, info: Any) -> Iterator[Any]:
        time = info.getExpiryTimeInMs()
        yield time, list(self.handle.listTimers())
        if time < 40:
            self.handle.registerTimer(time + 10)

    function = adapt(Scripted(no_state, registering, timer), "k", time_mode="EventTime")
    with Harness(function, key="k", event_time="v", allowed_delay=0) as harness:
        harness.process([{"k": 1, "v": 20}, {"k": 1, "v": 95}])
        assert harness.drain([]) == [(20, [20, 95]), (95, [30, 95]), (30, [30]), (40, [40])]


def test_a_replay_after_a_failure_does_the_same() -> None:
    init = asking(("Value", "n", "n long"))

    def rows(self: Any, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        self.n.update(((self.n.get() or (0,))[0] + sum(row.v for row in rows),))
        yield key, self.n.get()

    with Harness(adapt(Scripted(init, rows), "k"), key="k", parallelism=2) as harness:
        harness.process([{"k": key, "v": 1} for key in range(10)])
        harness.fail_after(7)
        found = harness.process([{"k": key, "v": 10} for key in range(10)])
        assert sorted(found) == [((key,), (11,)) for key in range(10)]
        assert harness.failures == 1


# -- what may not be


@pytest.mark.parametrize(
    ("init", "mode", "text"),
    [
        (lambda self, h: h.getValueState("", "n long"), "None", "name is a string"),
        (lambda self, h: h.getValueState("$a", "n long"), "None", "reserved"),
        (lambda self, h: h.getValueState("a", st.LongType()), "None", "StructType or DDL"),
        (lambda self, h: h.getValueState("a", "n nothing"), "None", "nothing"),
        (lambda self, h: h.getValueState("a", "n long", 5), "None", "must be 'ProcessingTime'"),
        (lambda self, h: h.getValueState("a", "n long", 5), "EventTime", "'EventTime'"),
        (lambda self, h: h.getListState("a", "n long", -5), "ProcessingTime", "positive"),
        (lambda self, h: [h.getValueState("a", "n long") for _ in "12"], "None", "already exists"),
        (lambda self, h: h.registerTimer(5), "None", "time mode is 'None'"),
        (lambda self, h: h.registerTimer(5), "EventTime", "in init"),
        (lambda self, h: h.listTimers(), "EventTime", "in init"),
        (lambda self, h: h.getValueState("a", "n long").get(), "None", "get cannot be called"),
        (
            lambda self, h: h.getMapState("a", "k int", "n int").containsKey((1,)),
            "None",
            r"^Error checking if map state contains key: .*'a': containsKey cannot be called",
        ),
        (
            lambda self, h: h.getListState("a", "n int").appendValue((1,)),
            "None",
            r"^Error updating value state: .*'a': appendValue cannot be called",
        ),
    ],
)
def test_init_may_not(init: Any, mode: str, text: str) -> None:
    with pytest.raises(StatefulProcessorError, match=text) as raised:
        adapt(Scripted(init), "k", time_mode=mode)
    assert "operator 'harness'" in str(raised.value)
    assert isinstance(raised.value, PySparkRuntimeError)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


@pytest.mark.parametrize(
    ("act", "kind", "text"),
    [
        (lambda s: s.v.update(None), StatefulProcessorError, "tuple of 2 values"),
        (lambda s: s.v.update((1,)), StatefulProcessorError, "tuple of 2 values"),
        (lambda s: s.v.update("abc"), StatefulProcessorError, "tuple of 2 values"),
        (lambda s: s.v.update((1.5, "a")), WrongTypeError, "'v'.*field n"),
        (lambda s: s.l.put([]), StatefulProcessorError, "not empty"),
        (lambda s: s.l.appendList([]), StatefulProcessorError, "not empty"),
        (lambda s: s.l.appendValue(None), StatefulProcessorError, "tuple of 1 values"),
        (lambda s: s.m.updateValue((None,), (1,)), StatefulProcessorError, "never null"),
        (lambda s: s.m.getValue(5), StatefulProcessorError, "tuple of 1 values"),
        (lambda s: s.handle.getValueState("b", "n long"), StatefulProcessorError, "only .* init"),
        (lambda s: s.handle.deleteIfExists("b"), StatefulProcessorError, "only .* init"),
        (lambda s: s.handle.registerTimer(5), StatefulProcessorError, "time mode is 'None'"),
    ],
)
def test_a_call_may_not(act: Any, kind: type[Exception], text: str) -> None:
    init = asking(
        ("Value", "v", "n long, s string"),
        ("List", "l", "n long"),
        ("Map", "m", "k long", "n long"),
    )

    def rows(self: Any, key: Any, rows: Any, times: Any) -> list[Any]:
        act(self)
        return []

    with pytest.raises(kind, match=text):
        seen(rows, init)


def test_init_must_ask_for_the_same_everywhere() -> None:
    calls = iter(range(10))

    def init(self: Any, handle: Any) -> None:
        handle.getValueState(f"v{next(calls)}", "n long")

    with pytest.raises(StatefulProcessorError, match="another state in a task"):
        seen(lambda *_: [], init)


def test_only_processors_are_taken() -> None:
    with pytest.raises(DeclarationError, match="pass an instance"):
        adapt(Scripted, "k")
    with pytest.raises(StatefulProcessorError, match="time mode is"):
        adapt(Scripted(no_state), "k", time_mode="never")
    with pytest.raises(InvalidArgumentError, match="key is the name"):
        adapt(Scripted(no_state), [])


@pytest.mark.parametrize("returned", [5, (1, 2), "rows"])
def test_what_a_processor_returns_is_checked(returned: Any) -> None:
    with pytest.raises(WrongTypeError, match=r"handleInputRows returned .*yield rows"):
        seen(lambda *_: returned, no_state)


def test_a_processor_need_not_read_its_rows() -> None:
    def rows(self: Any, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        yield key, next(rows).v

    with Harness(adapt(Scripted(no_state, rows), "k"), key="k") as harness:
        found = harness.process([{"k": i % 3, "v": i} for i in range(30)])
    assert found == [((0,), 0), ((1,), 1), ((2,), 2)]


def test_a_function_is_pickled_with_its_states() -> None:
    init = asking(("Value", "n", "n long"))
    function = adapt(Scripted(init), "k")
    again = pickle.loads(cloudpickle.dumps(function))
    assert type(again).n == type(function).n == ps.ValueState("struct<n:long>")


def test_the_order_of_many_rows_is_kept_for_each_key() -> None:
    chosen = random.Random(1)
    values = [(chosen.randrange(700), i) for i in range(40_000)]

    def rows(self: Any, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        yield key[0], [row.v for row in rows]

    with Harness(adapt(Scripted(no_state, rows), "k"), key="k") as harness:
        found = dict(harness.process([{"k": k, "v": v} for k, v in values]))
    wanted: dict[int, list[int]] = {}
    for k, v in values:
        wanted.setdefault(k, []).append(v)
    assert found == wanted


def test_what_cannot_go_to_the_tasks_is_made_in_init() -> None:
    processor = Scripted(no_state)
    processor.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(DeclarationError, match=r"lock = .*make it in init\(self, handle\)"):
        adapt(processor, "k")


# -- in the harness


class Begun(Scripted):
    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        now = timerValues.getCurrentProcessingTimeInMs()
        self.n.update((initialState["start"],))
        self.handle.registerTimer(now + 1_000)
        self.handle.registerTimer(now)


def begun(rows: Any) -> Any:
    init = asking(("Value", "n", "n long"))

    def added(self: Any, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        n = (self.n.get() or (0,))[0] + sum(row.v for row in rows)
        self.n.update((n,))
        yield key[0], n

    def timer(self: Any, key: Any, times: Any, info: Any) -> Iterator[Any]:
        yield key[0], -info.getExpiryTimeInMs(), self.n.get()

    processor = Begun(init, added, timer)
    return adapt(processor, "k", time_mode="ProcessingTime", initial_state=rows)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_processor_begins_with_its_initial_state(parallelism: int) -> None:
    rows = [{"k": "a", "start": 40}, {"k": "b", "start": 7}]
    for initial in (rows, pa.Table.from_pylist(rows)):
        with Harness(
            begun(initial), key="k", processing_time=5_000, parallelism=parallelism
        ) as harness:
            assert (harness.epoch, harness.output) == (0, [])
            assert harness.state("n", "b") == (7,)
            # Timers that are due fire in the first epoch, after its rows.
            found = sorted(harness.process([{"k": "a", "v": 2}]))
            assert found == [("a", -5_000, (42,)), ("a", 42), ("b", -5_000, (7,))]
            found = sorted(harness.advance_processing_time(6_000))
            assert found == [("a", -6_000, (42,)), ("b", -6_000, (7,))]
            snapshot = harness.snapshot()
        # What begins anew begins with it again, and what goes on does not.
        with Harness.restore(snapshot, begun(initial)) as harness:
            assert harness.process([{"k": "b", "v": 1}]) == [("b", 8)]
    with Harness(begun([]), key="k") as harness:
        assert harness.process([{"k": "b", "v": 1}]) == [("b", 1)]
    with pytest.raises(InvalidArgumentError, match="key column"):
        Harness(begun([{"start": 1}]), key="k")


class BegunAtTimes(Scripted):
    """Registers timers in event time where the initial state says so."""

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        assert timerValues.getCurrentWatermarkInMs() == 0
        self.n.update((initialState["start"],))
        self.handle.registerTimer(initialState["start"])


@pytest.mark.parametrize("parallelism", [1, 8])
def test_the_watermark_of_a_processor_is_never_below_1970(parallelism: int) -> None:
    """As in Spark: timers up to there fire in the first epoch, and rows up to there are late."""

    init = asking(("Value", "n", "n long"))

    def seen(self: Any, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        yield key[0], [row.at for row in rows], times.getCurrentWatermarkInMs()

    def timer(self: Any, key: Any, times: Any, info: Any) -> Iterator[Any]:
        yield key[0], info.getExpiryTimeInMs(), self.n.get()

    begin = [{"k": name, "start": at} for name, at in (("a", 0), ("b", -5), ("c", 1), ("d", 40))]
    processor = adapt(
        BegunAtTimes(init, seen, timer), "k", time_mode="EventTime", initial_state=begin
    )
    with Harness(
        processor, key="k", columns="k string, at long", event_time="at", allowed_delay=10,
        late="drop", parallelism=parallelism,
    ) as harness:  # fmt: skip
        found = harness.process([("z", -7), ("z", 0), ("z", 1), ("z", None)])
        # The ranges of these keys have no row.
        assert sorted(found) == [("a", 0, (0,)), ("b", -5, (-5,)), ("z", [1, None], 0)]
        assert harness.late_rows == 2
        # The watermark would be -9.
        assert harness.process([("z", -8), ("z", 2)]) == [("z", [2], 0)]
        assert harness.process([("z", 12)]) == [("z", [12], 0)]
        assert sorted(harness.process([("z", 13)])) == [("c", 1, (1,)), ("z", [13], 2)]


def test_states_are_set_between_epochs() -> None:
    init = asking(
        ("Value", "v", "n long"), ("List", "l", "n long"), ("Map", "m", "k string", "n long")
    )

    def rows(self: Any, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        yield self.v.get(), list(self.l.get()), dict(self.m.iterator())

    with Harness(adapt(Scripted(init, rows), "k"), key={"k": "long"}) as harness:
        harness.set_state("v", 1, (5,))
        harness.set_state("l", 1, [(1,), (2,)])
        harness.set_state("m", 1, {"x": (3,)})
        assert harness.process([{"k": 1}]) == [((5,), [(1,), (2,)], {("x",): (3,)})]
        harness.set_state("m", 1, None)
        assert harness.process([{"k": 1}]) == [((5,), [(1,), (2,)], {})]


def quiet(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    if state.hasTimedOut:
        assert all(frame.empty and list(frame.columns) == ["k", "at"] for frame in frames)
        if key[0] != "again":
            state.remove()
        yield pd.DataFrame({"k": [key[0]], "n": [-1]})
        return
    n = sum(map(len, frames)) + (state.getOption or (0,))[0]
    state.update((n,))
    if state._timeout_conf == "EventTimeTimeout":
        state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 3_000)
    else:
        state.setTimeoutDuration(3_000)
    yield pd.DataFrame({"k": [key[0]], "n": [n]})


def test_a_function_with_group_state_runs_in_the_harness() -> None:
    def found(frames: list[Any]) -> list[Any]:
        return [tuple(row) for frame in frames for row in frame.itertuples(index=False)]

    function = adapt(quiet, "k", state_schema="n long", timeout="EventTimeTimeout")
    with Harness(function, key="k", event_time="at", allowed_delay=0, late="drop") as harness:
        at = [{"k": "a", "at": time} for time in (1_000, 2_000)]
        assert found(harness.process(at)) == [("a", 2)]
        assert found(harness.process([{"k": "b", "at": 3_000}])) == [("b", 1)]
        harness.set_state("state", "b", (10,))
        assert found(harness.process([{"k": "b", "at": 3_001}])) == [("b", 11)]
        # A timeout is due once the watermark is after it.
        assert found(harness.process([])) == [("a", -1)]
        assert harness.state("state", "a") is None and harness.state("state", "b") == (11,)
        snapshot = harness.snapshot()
    with Harness.restore(snapshot, function) as harness:
        assert found(harness.advance_watermark(7_000)) == [("b", -1)]

    function = adapt(quiet, "k", state_schema="n long", timeout="ProcessingTimeTimeout")
    with Harness(function, key="k", columns="k string, at long") as harness:
        assert found(harness.process([("a", 1)])) == [("a", 1)]
        assert found(harness.advance_processing_time(3_000)) == []
        assert found(harness.advance_processing_time(3_001)) == [("a", -1)]


def test_a_timeout_that_is_neither_removed_nor_set_anew_stays() -> None:
    function = adapt(quiet, "k", state_schema="n long", timeout="EventTimeTimeout")
    with Harness(function, key="k", event_time="at", allowed_delay=0) as harness:
        harness.process([{"k": "again", "at": 1_000}])
        for at in (5_000, 6_000):
            [frame] = harness.advance_watermark(at)
            assert frame.to_dict("records") == [{"k": "again", "n": -1}]
            assert harness.state("state", "again") == (1,)


def test_a_timeout_is_kept_without_a_change_of_state() -> None:
    def later(key: Any, frames: Any, state: Any) -> Iterator[Any]:
        if not state.hasTimedOut:
            state.setTimeoutTimestamp(3_000)
        yield pd.DataFrame({"out": [state.hasTimedOut]})

    function = adapt(later, "k", state_schema="n long", timeout="EventTimeTimeout")
    with Harness(function, key="k", event_time="at", allowed_delay=0) as harness:
        harness.process([{"k": "a", "at": 1_000}])
        [frame] = harness.advance_watermark(3_001)
        assert frame["out"].tolist() == [True]


def test_a_function_with_group_state_gives_frames() -> None:
    for wrong in (lambda *_: pd.DataFrame(), lambda *_: None):
        function = adapt(wrong, "k", state_schema="n long", timeout="NoTimeout")
        with (
            Harness(function, key="k", columns="k string") as harness,
            pytest.raises(WrongTypeError, match=r"the function returned .*yield DataFrames"),
        ):
            harness.process([("a",)])


def test_what_adapt_does_not_take() -> None:
    processor = Scripted(lambda self, handle: None)
    for what, options, text in (
        (processor, {"state_schema": "n long"}, "of a function of applyInPandasWithState"),
        (quiet, {"timeout": "NoTimeout"}, "state_schema='n long'"),
        (quiet, {"state_schema": "n long", "initial_state": []}, "Harness.set_state"),
    ):
        with pytest.raises(InvalidArgumentError, match=text):
            adapt(what, "k", **options)  # type: ignore[arg-type]
    with pytest.raises(StatefulProcessorError, match="the timeout is"):
        adapt(quiet, "k", state_schema="n long", timeout="Never")
