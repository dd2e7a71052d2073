"""Times to live: declarations, and when each kind of state expires. No test waits: time is told."""

from __future__ import annotations

import datetime
import io
import operator
import pickle
from pathlib import Path
from typing import Any

import pytest

import pystate as ps
from pystate.errors import DeclarationError
from tests.tables import sealed

NOW = 1_000_000
HOUR = 3_600_000


def backend(**states: ps.State) -> ps.KeyedStateBackend:
    made = ps.KeyedStateBackend("long", states=states)
    made.set_clock(processing_time=NOW)
    made.set_current_key(1)
    return made


# -- declarations


def test_durations_in_every_spelling() -> None:
    for spelled in ("48 hours", datetime.timedelta(hours=48), 48 * HOUR):
        assert ps.StateTtl(spelled) == ps.StateTtl(hours=48)
    assert ps.StateTtl(days=1, minutes=1, milliseconds=1).duration_ms == 24 * HOUR + 60_001
    assert ps.StateTtl(hours=0.1, seconds=0.25).duration_ms == 360_250
    assert ps.StateTtl(milliseconds=2**63 - 1) == ps.StateTtl(2**63 - 1)
    assert pickle.loads(pickle.dumps(ps.StateTtl(5, time="event"))) == ps.StateTtl(5, time="event")


@pytest.mark.parametrize(
    "make",
    [
        lambda: ps.StateTtl(),
        lambda: ps.StateTtl(0),
        lambda: ps.StateTtl(-1),
        lambda: ps.StateTtl(hours=-1),
        lambda: ps.StateTtl(hours=float("nan")),
        lambda: ps.StateTtl(days=float("inf")),
        lambda: ps.StateTtl(hours=1e30),
        lambda: ps.StateTtl(hours=10**400),
        lambda: ps.StateTtl(milliseconds=2**63),
        lambda: ps.StateTtl(milliseconds=0.2),
        lambda: ps.StateTtl(hours="1"),  # type: ignore[arg-type]
        lambda: ps.StateTtl("1 hour", hours=1),
        lambda: ps.StateTtl("soon"),
        lambda: ps.StateTtl(1, update="on_read"),  # type: ignore[arg-type]
        lambda: ps.StateTtl(1, visibility="always"),  # type: ignore[arg-type]
        lambda: ps.StateTtl(1, time="wall"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_declaration_is_refused(make: Any) -> None:
    with pytest.raises(DeclarationError, match="StateTtl"):
        make()


def test_a_declaration_takes_nothing_else_and_never_changes() -> None:
    with pytest.raises(DeclarationError, match="ttl is a StateTtl"):
        ps.ValueState("long", ttl=48)  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="cannot be changed"):
        ps.StateTtl(1).time = "event"


# -- when


def test_a_value_expires_when_its_duration_is_over() -> None:
    with backend(v=ps.ValueState("long", 7, ttl=ps.StateTtl(100))) as made:
        made["v"].update(1)
        made.set_clock(processing_time=NOW + 99)
        assert made["v"].value() == 1
        made.set_clock(processing_time=NOW + 100)
        assert made["v"].value() == 7
        assert made["v"].values(made.keys([1])).to_pylist() == [7]


@pytest.mark.parametrize("update", ["create_and_write", "read_and_write"])
def test_reading_counts_as_use_where_it_is_declared(update: Any) -> None:
    ttl = ps.StateTtl(6400, update=update)
    states = {
        "v": ps.ValueState("long", ttl=ttl),
        "o": ps.ValueState(object, ttl=ttl),
        "m": ps.MapState("long", "string", ttl=ttl),
    }
    for vectorised in (False, True):
        with backend(**states) as made:
            made["v"].update(1)
            made["o"].update([1])
            made["m"].put(1, "x" * 20)
            sealed(made)
            for now in (NOW + 5000, NOW + 10000):
                made.set_clock(processing_time=now)
                if vectorised:
                    keys = made.keys([1])
                    found = [
                        made["v"].values(keys)[0].as_py(),
                        made["o"].values(keys)[0],
                        made["m"].get_entries(keys, [1])[0].as_py(),
                    ]
                else:
                    found = [made["v"].value(), made["o"].value(), made["m"].get(1)]
                there = now == NOW + 5000 or update == "read_and_write"
                assert found == ([1, [1], "x" * 20] if there else [None, None, None])


def test_elements_expire_each_for_itself() -> None:
    ttl = ps.StateTtl(100)
    with backend(l=ps.ListState("long", ttl=ttl), m=ps.MapState("string", "long", ttl=ttl)) as made:
        made["l"].add(1)
        made["m"].put("a", 1)
        made.set_clock(processing_time=NOW + 60)
        made["l"].add(2)
        made["m"].put("b", 2)
        made.set_clock(processing_time=NOW + 100)
        assert (made["l"].get(), made["m"].items()) == ([2], [("b", 2)])
        assert (len(made["l"]), len(made["m"]), made["m"].contains("a")) == (1, 1, False)
        made.set_clock(processing_time=NOW + 160)
        assert made["l"].get() == [] and made["m"].is_empty()


def test_merged_items_keep_their_times() -> None:
    states = {"l": ps.ListState("string", ttl=ps.StateTtl(100))}
    with ps.KeyedStateBackend("long", states=states, namespace="long") as made:
        made.set_clock(processing_time=NOW)
        made.set_current_key(1)
        for at, space in ((0, 5), (60, 6), (80, None)):
            made.set_clock(processing_time=NOW + at)
            made.set_current_namespace(space)
            made["l"].add(str(at))
        made["l"].merge_namespaces(None, [5, 6])
        assert made["l"].get() == ["80", "0", "60"]
        file = sealed(made)
        assert len(made) == 1
        for at, left in ((99, ["80", "0", "60"]), (100, ["80", "60"]), (160, ["80"]), (180, [])):
            made.set_clock(processing_time=NOW + at)
            made.set_current_key(1)
            assert made["l"].get() == left
    with ps.KeyedStateBackend("long", states=states, namespace="long") as restored:
        restored.restore([file])
        restored.set_clock(processing_time=NOW + 100)
        restored.set_current_key(1)
        assert restored["l"].get() == ["80", "60"]


def test_event_time_counts_from_the_row_to_the_watermark() -> None:
    with backend(v=ps.ValueState("long", ttl=ps.StateTtl(100, time="event"))) as made:
        made.set_clock(processing_time=NOW, watermark=50, event_time=80)
        made["v"].update(1)
        made.set_clock(processing_time=NOW + HOUR, watermark=179)
        assert made["v"].value() == 1
        made.set_clock(processing_time=NOW + HOUR, watermark=180)
        assert made["v"].value() is None


def test_objects_expire_by_their_own_rows_event_time() -> None:
    """They wait to be pickled, but were written when they were written."""
    ttl = ps.StateTtl(100, time="event")
    with backend(v=ps.ValueState(object, ttl=ttl)) as made:
        made.set_clock(watermark=0, event_time=10)
        made["v"].update([1])
        made.set_current_key(2)
        made.set_clock(watermark=0, event_time=90)
        made["v"].update([2])
        made.set_clock(watermark=110)
        assert made["v"].value() == [2]
        made.set_current_key(1)
        assert made["v"].value() is None


def test_an_object_that_was_read_expires_in_the_same_epoch() -> None:
    with backend(v=ps.ValueState(object, [], ttl=ps.StateTtl(100))) as made:
        made["v"].update([1])
        assert made["v"].value() == [1]
        made.set_clock(processing_time=NOW + 100)
        assert made["v"].value() == []
        assert made["v"].values(made.keys([1])) == [[]]


@pytest.mark.parametrize("update", ["create_and_write", "read_and_write"])
def test_adding_nothing_to_many_objects_moves_no_time(update: Any) -> None:
    """Rows without a value do not keep alive what they were not added to."""
    pile = ps.ReducingState(object, operator.add, ttl=ps.StateTtl(40, update=update))
    with backend(pile=pile) as made:
        made["pile"].add_all(made.keys([1, 2]), [[1], [2]])
        made.set_clock(processing_time=NOW + 39)
        made["pile"].add_all(made.keys([1, 2, 1]), [None, [3], None])
        made.set_clock(processing_time=NOW + 40)
        assert made["pile"].values(made.keys([1, 2])) == [None, [2, 3]]


@pytest.mark.parametrize("aggregate", [ps.Min(), ps.Max()])
def test_adding_what_changes_nothing_counts_as_use(aggregate: Any) -> None:
    ttl = ps.StateTtl(100)
    states = {"a": ps.AggregatingState(aggregate, "long", ttl=ttl)}
    for vectorised in (False, True):
        with backend(**states) as made:
            for _ in range(3):
                made["a"].add(5)
            made.set_clock(processing_time=NOW + 60)
            other = 9 if aggregate == ps.Min() else 1
            if vectorised:
                made["a"].add_all(made.keys([1]), [other])
            else:
                made["a"].add(other)
            made.set_clock(processing_time=NOW + 120)
            assert made["a"].get() == 5


@pytest.mark.parametrize("vectorised", [False, True])
def test_what_is_seen_is_what_is_added_to(vectorised: bool) -> None:
    """An expired value that may still be seen counts, in every form and kind."""
    ttl = ps.StateTtl(100, visibility="return_if_not_cleaned_up")
    states: dict[str, ps.State] = {
        "r": ps.ReducingState("long", max, ttl=ttl),
        "c": ps.AggregatingState(ps.Count(), "long", ttl=ttl),
        "m": ps.AggregatingState(ps.Mean(), "long", ttl=ttl),
        "t": ps.AggregatingState(ps.TopK(2), "long", ttl=ttl),
    }
    with backend(**states) as made:
        for state in made.states.values():
            state.add(4)
        made.set_clock(processing_time=NOW + 500)
        for state in made.states.values():
            if vectorised:
                state.add_all(made.keys([1]), [2])
            else:
                state.add(2)
        assert [s.get() for s in made.states.values()] == [4, 2, 3.0, [4, 2]]


class Largest(ps.AggregateFunction[Any, Any, Any]):
    def create(self) -> list[int]:
        return []

    def add(self, accumulator: list[int], value: int) -> list[int]:
        return [max([*accumulator, value])]

    def merge(self, a: list[int], b: list[int]) -> list[int]:
        return [max([*a, *b])]

    def result(self, accumulator: list[int]) -> tuple[int, ...]:
        return tuple(accumulator)


def lenient_states(update: Any) -> dict[str, ps.State]:
    ttl = ps.StateTtl(100, update=update, visibility="return_if_not_cleaned_up")
    return {
        "long": ps.ValueState("long", ttl=ttl),
        "text": ps.ValueState("string", ttl=ttl),
        "nested": ps.ValueState("struct<a:long>", ttl=ttl),
        "object": ps.ValueState("object", ttl=ttl),
        "items": ps.ListState("long", ttl=ttl),
        "texts": ps.ListState("string", ttl=ttl),
        "map": ps.MapState("long", "long", ttl=ttl),
        "names": ps.MapState("string", "string", ttl=ttl),
        "most": ps.ReducingState("long", max, ttl=ttl),
        "joined": ps.ReducingState("string", operator.add, ttl=ttl),
        "pile": ps.ReducingState(object, operator.or_, ttl=ttl),
        "mean": ps.AggregatingState(ps.Mean(), "long", ttl=ttl),
        "count": ps.AggregatingState(ps.Count(), "long", ttl=ttl),
        "top": ps.AggregatingState(ps.TopK(2), "long", ttl=ttl),
        "own": ps.AggregatingState(Largest(), "long", ttl=ttl),
    }


FILLED: dict[str, Any] = {
    "long": 7,
    "text": "t" * 40,
    "nested": {"a": 1},
    "object": {1, 2},
    "items": [1, 2],
    "texts": ["a", "b" * 40],
    "map": [(1, 2), (3, 4)],
    "names": [("k", "v" * 40)],
    "most": 4,
    "joined": "j" * 40,
    "pile": {1, 2},
    "mean": 4.0,
    "count": 1,
    "top": [4],
    "own": (4,),
}
EMPTY = {name: [] if isinstance(value, list) else None for name, value in FILLED.items()}
EMPTY["count"] = 0


def fill(made: ps.KeyedStateBackend) -> None:
    for name, value in FILLED.items():
        state = made[name]
        if name in ("map", "names"):
            state.put_all(value)
        elif name in ("mean", "count", "top", "own"):
            state.add(4)
        elif hasattr(state, "add") and not hasattr(state, "update"):
            state.add(value)
        else:
            state.update(value)


def one_by_one(made: ps.KeyedStateBackend) -> dict[str, Any]:
    found = {}
    for name in FILLED:
        state = made[name]
        if name in ("map", "names"):
            found[name] = list(state.items())
        else:
            found[name] = state.value() if hasattr(state, "value") else state.get()
    return found


def many(made: ps.KeyedStateBackend) -> dict[str, Any]:
    """What a batch sees that has the key twice, and another one in between."""
    keys, found = made.keys([1, 2, 1]), {}
    for name in FILLED:
        state = made[name]
        ways = ("results", "maps", "lists", "values")
        got = next(getattr(state, way) for way in ways if hasattr(state, way))(keys)
        one, other, again = got if isinstance(got, list) else got.to_pylist()
        assert (one, other) == (again, EMPTY[name]), name
        found[name] = one
    return found


@pytest.mark.parametrize("read", [one_by_one, many])
@pytest.mark.parametrize("update", ["create_and_write", "read_and_write"])
def test_what_has_expired_is_seen_once(read: Any, update: Any) -> None:
    with backend(**lenient_states(update)) as made:
        fill(made)
        sealed(made)
        made.set_clock(processing_time=NOW + 120)
        made.set_current_key(1)
        assert read(made) == FILLED
        assert read(made) == EMPTY
        # An epoch that is computed again sees it again.
        made.rollback()
        made.set_current_key(1)
        assert read(made) == FILLED
        sealed(made)
        made.set_current_key(1)
        assert read(made) == EMPTY
        fill(made)
        assert read(made) == FILLED and read(made) == FILLED


@pytest.mark.parametrize("vectorised", [False, True])
def test_entries_and_items_that_have_expired_are_seen_once(vectorised: bool) -> None:
    states = lenient_states("create_and_write")
    with backend(**{name: states[name] for name in ("items", "map", "names")}) as made:
        made["items"].add(1)
        made["map"].put(1, 10)
        made["names"].put("old", "a" * 40)
        made.set_clock(processing_time=NOW + 60)
        made["items"].add(2)
        made["map"].put(2, 20)
        made["names"].put("young", "b")
        made.set_clock(processing_time=NOW + 120)
        for turn in range(2):
            old = turn == 0
            if vectorised:
                keys = made.keys([1, 1])
                assert made["items"].lists(keys).to_pylist() == [[1, 2] if old else [2]] * 2
                for name, places, value in (("map", [1, 1], 10), ("names", ["old"] * 2, "a" * 40)):
                    found = made[name].get_entries(keys, places).to_pylist()
                    assert found == [value if old else None] * 2
            else:
                assert made["items"].get() == ([1, 2] if old else [2])
                assert made["map"].get(1) == (10 if old else None)
                assert made["names"].contains("old") is old
        assert made["map"].items() == [(2, 20)] and list(made["names"].keys()) == ["young"]


@pytest.mark.parametrize("update", ["create_and_write", "read_and_write"])
def test_an_index_or_a_slice_reads_all_of_a_list(update: Any) -> None:
    ttl = ps.StateTtl(100, update=update, visibility="return_if_not_cleaned_up")
    ways: list[tuple[Any, Any]] = [
        (lambda state: state[0], "a"),
        (lambda state: state[-1], "young"),
        (lambda state: state[:2], ["a", "b"]),
        (lambda state: state[::-2], ["young", "a"]),
        (lambda state: "b" in state, True),
    ]
    for read, wanted in ways:
        with backend(items=ps.ListState("string", ttl=ttl)) as made:
            made["items"].add_all(["a", "b"])
            made.set_clock(processing_time=NOW + 60)
            made["items"].add("young")
            made.set_clock(processing_time=NOW + 120)
            assert len(made["items"]) == 3
            assert read(made["items"]) == wanted
            assert made["items"].get() == ["young"] and len(made["items"]) == 1


# -- before the clock is known


def test_what_was_seen_for_the_last_time_stays_hidden_before_the_clock_is_known() -> None:
    """A table that is restored, and does not know the time yet, does not show it again."""
    for update in ("create_and_write", "read_and_write"):
        states = lenient_states(update)
        with backend(**states) as made:
            fill(made)
            files = [sealed(made)]
            # The epoch's sweep comes before there is anything for it.
            made.set_current_key(2)
            made["long"].update(1)
            assert made.expire() == 0
            made["long"].clear()
            made.set_current_key(1)
            made.set_clock(processing_time=NOW + 120)
            assert one_by_one(made) == FILLED
            files.append(sealed(made))
            merged = io.BytesIO()
            ps.merge_files(files, merged, kind="base")
        for restored in (files, [merged]):
            for read in (one_by_one, many):
                with ps.KeyedStateBackend("long", states=states) as other:
                    for file in restored:
                        file.seek(0)
                    other.restore(restored)
                    other.set_current_key(1)
                    assert read(other) == EMPTY
                    # Writing what was there brings it back.
                    fill(other)
                    other.set_clock(processing_time=NOW + 120)
                    other.set_current_key(1)
                    assert read(other) == FILLED and read(other) == FILLED


def test_what_was_written_before_the_clock_was_known_lives_from_the_first_sweep() -> None:
    ttl = ps.StateTtl(100, time="event")
    states: dict[str, ps.State] = {
        "v": ps.ValueState("long", ttl=ttl),
        "l": ps.ListState("string", ttl=ttl),
        "m": ps.MapState("string", "string", ttl=ttl),
    }

    def there(made: ps.KeyedStateBackend) -> list[bool]:
        made.set_current_key(1)
        return [made["v"].value() == 1, made["l"].get() == long, made["m"].get("a") == "b" * 20]

    long = [f"item {i} is long" for i in range(100)]
    with backend(**states) as made:
        made["v"].update(1)
        made["l"].add_all(long)
        made["m"].put("a", "b" * 20)
        made["m"].put("c" * 20, "d")
        made.set_clock(watermark=NOW)
        assert there(made) == [True] * 3
        files = [sealed(made)]
        made.set_clock(watermark=NOW + 99)
        assert there(made) == [True] * 3
        with ps.KeyedStateBackend("long", states=states) as other:
            other.restore(files)
            other.set_clock(watermark=NOW + 99)
            assert there(other) == [True] * 3
            other.set_clock(watermark=NOW + 100)
            assert there(other) == [False] * 3
        made.set_clock(watermark=NOW + 100)
        assert there(made) == [False] * 3


def test_an_append_keeps_items_from_before_the_clock_was_known() -> None:
    with backend(l=ps.ListState("long", ttl=ps.StateTtl(100, time="event"))) as made:
        made["l"].add_all([1, 2])
        made.set_clock(watermark=NOW)
        made["l"].add(3)
        assert made["l"].get() == [1, 2, 3]


# -- leaving


def test_idle_values_leave_memory_and_snapshots_without_being_touched() -> None:
    ttl = ps.StateTtl(100)
    states: dict[str, ps.State] = {
        "v": ps.ValueState("long", ttl=ttl),
        "l": ps.ListState("long", ttl=ttl),
        "m": ps.MapState("long", "long", ttl=ttl),
    }
    with backend(**states) as made:
        keys = made.keys(range(500))
        made["v"].update_all(keys, 1)
        made["l"].append(keys, [1] * 500)
        made["m"].put_entries(keys, [1] * 500, [2] * 500)
        files = [sealed(made)]
        made.set_clock(processing_time=NOW + 100)
        assert made.expire() == 1500 and made.expire() == 0
        files.append(sealed(made))
        assert len(made) == 0
        base = io.BytesIO()
        assert ps.merge_files(files, base).rows == 0


def test_a_large_map_leaves_a_part_at_a_time() -> None:
    entries, looked_at = 20_000, 4096
    with backend(m=ps.MapState("string", "long", ttl=ps.StateTtl(100))) as made:
        names = [f"https://example.org/{i}" for i in range(entries)]
        made["m"].put_entries(made.keys([1] * entries), names, range(entries))
        files = [sealed(made)]
        made.set_clock(processing_time=NOW + 100)
        gone = []
        while len(made):
            gone.append(made.expire())
            files.append(sealed(made))
        assert sum(gone) == entries
        assert max(gone) <= looked_at and len(gone) == 5
        assert ps.merge_files(files, io.BytesIO()).rows == 0


def test_equal_writes_and_reads_within_the_granularity_change_nothing() -> None:
    ttl = ps.StateTtl(6400, update="read_and_write")
    with backend(v=ps.ValueState("long", ttl=ttl), m=ps.MapState("long", "long", ttl=ttl)) as made:
        made["v"].update(1)
        made["m"].put(1, 1)
        sealed(made)
        made.set_clock(processing_time=NOW + 99)
        made["v"].update(made["v"].value())
        made["m"].put(1, made["m"].get(1))
        made["m"].get_entries(made.keys([1]), [1])
        with made.seal() as snapshot:
            assert snapshot.rows == 0


@pytest.mark.parametrize("now", [-(2**63) + 1, 2**63 - 1])
def test_timestamps_near_the_ends_of_the_type_do_not_overflow(now: int) -> None:
    ttl = ps.StateTtl(2**63 - 1)
    with backend(v=ps.ValueState("long", ttl=ttl), l=ps.ListState("long", ttl=ttl)) as made:
        made.set_clock(processing_time=now)
        made["v"].update(1)
        made["l"].add(1)
        sealed(made)
        assert (made["v"].value(), made["l"].get()) == (1, [1])
        made.set_clock(processing_time=2**63 - 1)
        there = now > 0
        assert (made["v"].value() == 1, made["l"].get() == [1]) == (there, there)


def test_reading_an_empty_string_in_a_batch_counts_as_use() -> None:
    ttl = ps.StateTtl(100, update="read_and_write")
    with backend(v=ps.ValueState("string", ttl=ttl)) as made:
        made["v"].update("")
        for now in (NOW + 60, NOW + 120):
            made.set_clock(processing_time=now)
            assert made["v"].values(made.keys([1])).to_pylist() == [""]


@pytest.mark.parametrize("type", ["long", "string", "object"])
@pytest.mark.parametrize("batch", [False, True])
def test_going_through_a_list_or_a_map_counts_as_use_of_all_of_it(type: Any, batch: bool) -> None:
    ttl = ps.StateTtl(640, update="read_and_write")
    value: Any = {"long": 7, "string": "seven", "object": {"seven": 7}}[type]
    states = {"l": ps.ListState(type, ttl=ttl), "m": ps.MapState("long", type, ttl=ttl)}
    with backend(**states) as made:

        def read() -> tuple[list[Any], list[Any]]:
            if not batch:
                made.set_current_key(1)
                return made["l"].get(), made["m"].items()
            keys = made.keys([1])
            lists, maps = made["l"].lists(keys), made["m"].maps(keys)
            if type == "object":
                return lists[0], list(maps[0].items())
            return lists[0].as_py(), maps[0].as_py()

        now = NOW
        for i in range(100):  # enough for several chunks, and for a tree
            made.set_clock(processing_time=now + i)
            made["l"].add(value)
            made["m"].put(i, value)
        now += 99
        everything = [value] * 100, [(i, value) for i in range(100)]
        for _ in range(3):
            sealed(made)
            now += 500
            made.set_clock(processing_time=now)
            assert read() == everything
        sealed(made)
        made.set_clock(processing_time=now + 9)
        assert read() == everything
        with made.seal() as snapshot:
            assert snapshot.rows == 0  # within the granularity
        made.set_clock(processing_time=now + 640)
        assert read() == ([], [])


def test_reading_does_not_revive_what_has_expired() -> None:
    ttl = ps.StateTtl(640, update="read_and_write")
    with backend(l=ps.ListState("long", ttl=ttl), m=ps.MapState("long", "long", ttl=ttl)) as made:
        for i in range(2):
            made.set_clock(processing_time=NOW + 600 * i)
            made["l"].add(i)
            made["m"].put(i, i)
        for now in (700, 1300):
            made.set_clock(processing_time=NOW + now)
            assert (made["l"].get(), made["m"].keys()) == ([1], [1])


@pytest.mark.parametrize("merged", [False, True])
def test_a_value_updated_within_the_same_instant_keeps_its_time_in_files(merged: bool) -> None:
    states = {"v": ps.ValueState("string", ttl=ps.StateTtl(40))}
    with backend(**states) as made, backend(**states) as other:
        files = []
        for value in ("a", "b"):
            made.set_current_key(1)
            made["v"].update(value)  # the second delta holds the value alone: its time is the same
            files.append(sealed(made))
        if merged:
            whole = io.BytesIO()
            ps.merge_files(files, whole)
            files = [whole]
        other.restore(files)
        for now, found in ((NOW + 39, "b"), (NOW + 40, None)):
            other.set_clock(processing_time=now)
            assert other["v"].values(other.keys([1])).to_pylist() == [found]


def test_an_idle_table_is_swept_further_in_every_epoch(tmp_path: Path) -> None:
    ttl, idle, looked_at = ps.StateTtl(100), 6_000, 4096
    states: dict[str, ps.State] = {"v": ps.ValueState("long"), "t": ps.ValueState("long", ttl=ttl)}
    clock = iter(range(NOW, NOW + 100_000, 1_000))
    with ps.open(tmp_path / "store", key="long", states=states, clock=lambda: next(clock)) as store:
        store["v"].update_all(store.keys(range(idle)), 1)
        store["t"].update_all(store.keys(range(idle, 2 * idle)), 1)
        store.checkpoint()
        kept = [len(store)]
        while kept[-1] > idle and len(kept) < 20:
            store.checkpoint()
            kept.append(len(store))
    assert kept[-1] == idle
    assert len(kept) <= 2 * 2 * idle // looked_at + 2
