"""The states of Spark's processors: how long what is stored lives, when the program changes."""

from __future__ import annotations

import io
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming import StatefulProcessor

import pystate as ps
from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.storage import LocalStorage
from pystate.operators.functions.binding import declarations
from pystate.spark import adapt
from pystate.spark.ported.states import checked_request
from pystate.state.declaration import stored_parts, stored_reference_ms
from pystate.state.kinds import declared_as
from pystate.state.operator_spec import in_files
from pystate.testing import Harness

SCHEMAS: dict[str, tuple[Any, ...]] = {
    "value": ("i long",),
    "items": ("i long",),
    "map": ("m long", "i long"),
}


class Kept(StatefulProcessor):
    """Stores what it is told to, and says what it has."""

    def __init__(self, ttl_ms: int | None) -> None:
        self.ttl_ms = ttl_ms

    def init(self, handle: Any) -> None:
        self.value = handle.getValueState("value", *SCHEMAS["value"], self.ttl_ms)
        self.items = handle.getListState("items", *SCHEMAS["items"], self.ttl_ms)
        self.map = handle.getMapState("map", *SCHEMAS["map"], self.ttl_ms)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for row in rows:
            if row.op == "value":
                self.value.update((row.i,))
            elif row.op == "item":
                self.items.appendValue((row.i,))
            elif row.op == "items":
                self.items.put([(row.i,), (row.i + 1,)])
            elif row.op == "entry":
                self.map.updateValue((row.i % 4,), (row.i,))
        yield self.value.get(), [i for (i,) in self.items.get()], self.entries()

    def entries(self) -> dict[int, int]:
        return {m: i for (m,), (i,) in self.map.iterator()}

    def close(self) -> None:
        pass


class PandasKept(Kept):
    """The same, with frames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        import pandas as pd

        for frame in rows:
            [(value, items, entries)] = super().handleInputRows(
                key, frame.itertuples(index=False), timerValues
            )
            yield pd.DataFrame({"got": [repr((value, items, entries))]})


def function(ttl_ms: int | None) -> Any:
    return adapt(Kept(ttl_ms), "k", time_mode="ProcessingTime")


def started(ttl_ms: int | None) -> Harness:
    return Harness(function(ttl_ms), key="k", parallelism=1)


def again(harness: Harness, ttl_ms: int | None) -> Harness:
    """The harness of the next program, which has another time to live."""
    with harness:
        return Harness.restore(harness.snapshot(), function(ttl_ms), parallelism=1)


def at(harness: Harness, now: int, *writes: tuple[str, int]) -> Any:
    """What there is after some writes."""
    harness.advance_processing_time(now)
    rows = [{"k": "a", "op": op, "i": i} for op, i in (*writes, ("look", 0))]
    return harness.process(rows)[0]


ALL = (("value", 1), ("item", 1), ("entry", 1))
FULL = ((1,), [1], {1: 1})
EMPTY = (None, [], {})


@pytest.mark.parametrize(("first", "then"), [(100, 10), (10, 1000), (2**62, 5), (5, 2**62)])
def test_what_is_stored_keeps_its_expiry(first: int, then: int) -> None:
    harness = started(first)
    assert at(harness, 1000, *ALL) == FULL
    harness = again(harness, then)
    last = 1000 + first - 1
    assert at(harness, 1001) == FULL
    if then < first:
        assert at(harness, min(last, 1000 + 4 * then)) == FULL
    if first < 2**60:
        assert at(harness, last) == FULL
        assert at(harness, last + 1) == EMPTY
    harness.close()


@pytest.mark.parametrize(("first", "then"), [(6_400, 640), (640, 6_400), (640, 2**63 - 1)])
def test_a_new_duration_counts_for_what_is_written_again(first: int, then: int) -> None:
    """Though the values stay the same, and whether they expire earlier or later by that."""
    harness = started(first)
    at(harness, 1000, ("value", 1), ("items", 1), ("entry", 1))
    harness = again(harness, then)
    assert at(harness, 1001, ("value", 1), ("items", 1), ("entry", 1)) == ((1,), [1, 2], {1: 1})
    # Back again, so that the times of before and after lie on both sides of the clock.
    harness = again(harness, first)
    assert at(harness, 1001 + min(then, 10_000) - 1) == ((1,), [1, 2], {1: 1})
    if then < 2**60:
        assert at(harness, 1001 + then) == EMPTY
    harness.close()


def test_items_of_several_durations_lie_in_one_list() -> None:
    harness = started(180_000)
    at(harness, 1000, ("item", 1), ("item", 2))
    harness = again(harness, 15_000)
    assert at(harness, 5000, ("item", 3), ("entry", 3))[1] == [1, 2, 3]
    harness = again(harness, 180_000)
    assert at(harness, 6000, ("item", 4), ("entry", 4))[1] == [1, 2, 3, 4]
    harness = again(harness, 1)
    assert at(harness, 20_000)[1:] == ([1, 2, 4], {0: 4})
    assert at(harness, 181_000)[1:] == ([4], {0: 4})
    assert at(harness, 186_000) == EMPTY
    assert harness.keys() == []
    harness.close()


@pytest.mark.parametrize("seed", range(6))
def test_random_durations_and_times(seed: int) -> None:
    """Durations below 64 milliseconds have no granularity, so that a model is exact."""
    random_ = random.Random(seed)
    ttl, now = random_.randrange(1, 64), 1000
    value: tuple[int, int] | None = None
    items: list[tuple[int, int]] = []
    entries: dict[int, tuple[int, int]] = {}
    harness = started(ttl)
    for _ in range(120):
        if random_.random() < 0.3:
            ttl = random_.randrange(1, 64)
            harness = again(harness, ttl)
        now += random_.randrange(12)
        until, writes = now + ttl, []
        for _ in range(random_.randrange(3)):
            # Of few values, so that many are written again.
            op, i = random_.choice(["value", "item", "items", "entry"]), random_.randrange(6)
            writes.append((op, i))
            if op == "value":
                value = i, until
            elif op == "item":
                items.append((i, until))
            elif op == "items":
                items = [(i, until), (i + 1, until)]
            else:
                entries[i % 4] = i, until
        items = [pair for pair in items if pair[1] > now]
        assert at(harness, now, *writes) == (
            (value[0],) if value is not None and value[1] > now else None,
            [i for i, _ in items],
            {m: i for m, (i, ends) in entries.items() if ends > now},
        )
    harness.close()


def test_frames_do_the_same() -> None:
    def made(ttl_ms: int) -> Any:
        return adapt(PandasKept(ttl_ms), "k", time_mode="ProcessingTime", frames=True)

    def got(harness: Harness, now: int, *ops: str) -> list[str]:
        harness.advance_processing_time(now)
        rows = [{"k": "a", "op": op, "i": 1} for op in ops]
        return [text for frame in harness.process(rows) for text in frame["got"]]

    with Harness(made(100), key="k") as harness:
        assert got(harness, 1000, "value", "item", "entry") == [repr(FULL)]
        snapshot = harness.snapshot()
    with Harness.restore(snapshot, made(5)) as harness:
        assert got(harness, 1099, "look") == [repr(FULL)]
        assert got(harness, 1100, "look") == [repr(EMPTY)]


def test_it_is_switched_on_and_off() -> None:
    """What was stored without one counts as written in the first epoch of a program that has one;
    without one nothing expires."""
    harness = started(None)
    at(harness, 1000, *ALL)
    harness = again(harness, 50)
    assert at(harness, 5000, ("entry", 2)) == ((1,), [1], {1: 1, 2: 2})
    assert at(harness, 5049) == ((1,), [1], {1: 1, 2: 2})
    harness = again(harness, None)
    assert at(harness, 20_000, ("item", 2)) == ((1,), [1, 2], {1: 1, 2: 2})
    harness = again(harness, 1000)
    assert at(harness, 20_001, ("entry", 3))[2][3] == 3
    assert at(harness, 21_000)[2][3] == 3
    assert at(harness, 21_001) == EMPTY
    harness.close()


# -- what a checkpoint knows


def test_states_of_a_checkpoint_from_before_go_on() -> None:
    """Its metadata has no duration: that of the next program counts for its times, for ever."""
    plain = {name: state.referring_to(None) for name, state in declarations(function(100)).items()}
    out = io.BytesIO()
    with ps.KeyedStateBackend("string", states=plain) as backend:
        backend.set_clock(processing_time=1000)
        backend.set_current_key("a")
        backend["value"].update((1,))
        with backend.seal() as snapshot:
            snapshot.write(out)
    stored = tuple((name, state.stored_as()) for name, state in plain.items())
    for ttl_ms in (100, 5, 300):
        own = in_files(declarations(function(ttl_ms)), stored, "it")
        stored = tuple((name, state.stored_as()) for name, state in own.items())
        assert stored[0] == ("value", "100 ms: struct<i:long>")
        with ps.KeyedStateBackend("string", states=own) as backend:
            backend.set_clock(processing_time=1099)
            backend.restore([out])
            backend.set_current_key("a")
            assert backend["value"].value() is not None
            backend.set_clock(processing_time=1100)
            assert backend["value"].value() is None


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("file_name", [None, "7 ms: x"])
def test_the_spelling(name: str, file_name: str | None) -> None:
    state = declarations(function(90)).get(name)
    assert state is not None and state.reference_ms == 90
    state = state.referring_to(7).in_files(file_name)
    stored = state.stored_as()
    assert stored.startswith("7 ms: " if file_name is None else '"7 ms: x": 7 ms: ')
    assert (stored_parts(stored)[0], stored_reference_ms(stored)) == (file_name, 7)
    assert declared_as(stored).stored_as() == stored
    copied = pickle.loads(pickle.dumps(state))
    assert copied.stored_as() == stored and copied.ttl == ps.StateTtl(90)
    # Without a time to live it is kept, and pystate's own states do not have it.
    [off] = in_files({name: declarations(function(None))[name]}, [(name, stored)], "it").values()
    assert off.reference_ms == 7 and off.ttl is None
    own = declared_as(stored).referring_to(None)
    assert stored_reference_ms(own.stored_as()) is None


def test_own_states_take_over_what_is_stored() -> None:
    own = ps.ValueState("struct<i:long>", ttl=ps.StateTtl(5))
    [found] = in_files({"value": own}, [("value", "100 ms: struct<i:long>")], "it").values()
    assert found.reference_ms is None and stored_reference_ms(found.stored_as()) is None


def test_only_a_time_to_live_has_it() -> None:
    assert checked_request("value", "v", "i long").declaration().reference_ms is None
    assert checked_request("value", "v", "i long", ttl_ms=3).declaration().reference_ms == 3


def test_a_checkpoint_of_a_store_keeps_it(tmp_path: Path) -> None:
    """As it does a first name: through checkpoints, savepoints, and reading."""
    for ttl_ms in (3_600_000, 60_000):
        states = {"value": declarations(function(ttl_ms))["value"]}
        with ps.open(tmp_path / "c", key="string", states=states) as store:
            store.set_current_key(str(ttl_ms))
            store["value"].update((1,))
            store.checkpoint()
    ps.savepoint(tmp_path / "c", tmp_path / "s")
    for folder in ("c", "s"):
        head = read_head(LocalStorage(tmp_path / folder))
        assert head is not None
        assert head.operators[0].state_schema == (("value", "3600000 ms: struct<i:long>"),)
        assert len(ps.read_state(tmp_path / folder)) == 2
        assert ps.verify(tmp_path / folder).ok
