"""Handles of lists and maps: what they take and refuse, and what their errors say."""

from __future__ import annotations

import datetime as dt
import gc
import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pystate as ps
from pystate.errors import (
    DeclarationError,
    InvalidArgumentError,
    NoCurrentKeyError,
    StaleKeyBatchError,
    StateOverflowError,
    WrongTypeError,
)
from tests.tables import keyed, sealed

STATES: dict[str, ps.State] = {
    "l": ps.ListState("int"),
    "texts": ps.ListState("string"),
    "things": ps.ListState(object),
    "m": ps.MapState("string", "int"),
    "bag": ps.MapState("int", object),
}


@pytest.fixture
def backend() -> Iterator[ps.KeyedStateBackend]:
    with keyed(STATES, uid="orders") as made:
        yield made


def snapshot(backend: ps.KeyedStateBackend) -> list[Any]:
    backend.set_current_key(1)
    return [
        backend["l"].get(),
        [*backend["texts"].get(), *backend["things"].get()],
        backend["m"].items(),
    ]


WRONG: list[tuple[str, Callable[[Any], None], str]] = [
    ("l", lambda h: h.add("1"), "str"),
    ("l", lambda h: h.add(True), "bool"),
    ("l", lambda h: h.add(1.5), "float"),
    ("l", lambda h: h.add_all([1, "2"]), "str"),
    ("l", lambda h: h.add_all(5), "add_all takes items"),
    ("texts", lambda h: h.add_all("abc"), "add_all takes items"),
    ("l", lambda h: h.update([1, "2"]), "str"),
    ("texts", lambda h: h.add(b"x"), "bytes"),
    ("l", lambda h: h.add(None), "None is no item"),
    ("l", lambda h: h.add_all([1, None]), "None is no item"),
    ("l", lambda h: h.update([1, None]), "None is no item"),
    ("texts", lambda h: h.update("abc"), "update takes items"),
    ("texts", lambda h: h.update(b"abc"), "update takes items"),
    ("texts", lambda h: h.update(5), "update takes items"),
    ("things", lambda h: h.update([2, lambda: 0]), "cannot be pickled"),
    ("things", lambda h: h.add_all([2, lambda: 0]), "cannot be pickled"),
    ("m", lambda h: h.put(1, 1), "int"),
    ("m", lambda h: h.put("a", "b"), "str"),
    ("m", lambda h: h.put(None, 1), "None is no map key"),
    ("m", lambda h: h.get(None), "None is no map key"),
    ("m", lambda h: h.contains(None), "None is no map key"),
    ("m", lambda h: h.remove(None), "None is no map key"),
    ("m", lambda h: h.remove(1), "int"),
]


@pytest.mark.parametrize(("name", "use", "said"), WRONG)
def test_a_wrong_value_is_named_and_nothing_is_written(
    backend: ps.KeyedStateBackend, name: str, use: Callable[[Any], None], said: str
) -> None:
    backend["l"].add(7)
    backend["m"].put("k", 7)
    with pytest.raises(WrongTypeError, match=said) as caught:
        use(backend[name])
    assert f"state '{name}'" in str(caught.value)
    assert snapshot(backend) == [[7], [], [("k", 7)]]


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
def test_a_number_out_of_range_is_refused(backend: ps.KeyedStateBackend, value: int) -> None:
    for use in (backend["l"].add, lambda v: backend["m"].put("a", v)):
        with pytest.raises(StateOverflowError, match=r"'[lm]': .* is out of the range of int"):
            use(value)
    assert snapshot(backend) == [[], [], []]


def test_columns_of_other_types_are_refused(backend: ps.KeyedStateBackend) -> None:
    keys = backend.keys([1, 2])
    for use in (
        lambda: backend["l"].append(keys, ["a", "b"]),
        lambda: backend["l"].append(keys, pa.array([1.5, 2.0])),
        lambda: backend["l"].append(keys, np.array([2**40, 1])),
        lambda: backend["l"].extend(keys, [["a"], []]),
        lambda: backend["l"].extend(keys, "ab"),
        lambda: backend["texts"].extend(keys, ["ab", ["c"]]),
        lambda: backend["l"].extend(keys, [5, [1]]),
        lambda: backend["l"].extend(keys, pa.array([5, 6], pa.int32())),
        lambda: backend["m"].put_entries(keys, [1, 2], [1, 2]),
        lambda: backend["m"].put_entries(keys, ["a", "b"], ["a", "b"]),
        lambda: backend["m"].get_entries(keys, [1, 2]),
        lambda: backend["things"].append(keys, "ab"),
        lambda: backend["things"].append(keys, [None, 1]),
    ):
        with pytest.raises(WrongTypeError, match="state '"):
            use()
    assert snapshot(backend) == [[], [], []]


def test_nulls_in_columns_are_named_by_their_row(backend: ps.KeyedStateBackend) -> None:
    keys = backend.keys([1, 2])
    for use, row in (
        (lambda: backend["l"].append(keys, [1, None]), 1),
        (lambda: backend["l"].extend(keys, [[1, 2], [3, None]]), 3),
        (lambda: backend["m"].put_entries(keys, [None, "b"], [1, 2]), 0),
        (lambda: backend["m"].get_entries(keys, ["a", None]), 1),
        (lambda: backend["m"].remove_entries(keys, ["a", None]), 1),
    ):
        with pytest.raises(
            WrongTypeError, match=f"operator 'orders', state '[lm]', row {row}: null"
        ):
            use()
    assert snapshot(backend) == [[], [], []]


def test_wrong_lengths_are_counted(backend: ps.KeyedStateBackend) -> None:
    keys = backend.keys([1, 2])
    for use, said in (
        (lambda: backend["l"].append(keys, [1]), "1 values for 2 keys"),
        (lambda: backend["l"].extend(keys, [[1]]), "1 lists for 2 keys"),
        (lambda: backend["m"].put_entries(keys, ["a"], [1, 2]), "1 values for 2 keys"),
        (lambda: backend["m"].put_entries(keys, ["a", "b"], [1]), "1 values for 2 keys"),
    ):
        with pytest.raises(InvalidArgumentError, match=said):
            use()


def test_stale_and_foreign_batches_are_refused(backend: ps.KeyedStateBackend) -> None:
    keys = backend.keys([1])
    uses: list[Callable[[Any], Any]] = [
        lambda k: backend["l"].append(k, [1]),
        lambda k: backend["l"].extend(k, [[1]]),
        lambda k: backend["l"].lists(k),
        lambda k: backend["texts"].lists(k),
        lambda k: backend["l"].clear_all(k),
        lambda k: backend["m"].put_entries(k, ["a"], [1]),
        lambda k: backend["m"].get_entries(k, ["a"]),
        lambda k: backend["m"].remove_entries(k, ["a"]),
        lambda k: backend["m"].maps(k),
        lambda k: backend["bag"].maps(k),
    ]
    backend.seal()
    for use in uses:
        with pytest.raises(StaleKeyBatchError):
            use(keys)
        with pytest.raises(InvalidArgumentError, match="expected a KeyBatch, got list"):
            use([1])
    with ps.KeyedStateBackend("long", states=STATES) as other:
        for use in uses:
            with pytest.raises(InvalidArgumentError, match="another backend"):
                use(other.keys([1]))


def test_without_a_current_key_everything_refuses(backend: ps.KeyedStateBackend) -> None:
    backend.clear_current_key()
    uses: list[tuple[str, Callable[[Any], Any]]] = [
        ("l", lambda h: h.add(1)),
        ("l", lambda h: h.add_all([1])),
        ("l", lambda h: h.update([1])),
        ("l", lambda h: h.get()),
        ("l", len),
        ("l", lambda h: h.clear()),
        ("m", lambda h: h.put("a", 1)),
        ("m", lambda h: h.get("a")),
        ("m", lambda h: h.contains("a")),
        ("m", lambda h: h.remove("a")),
        ("m", lambda h: h.items()),
        ("m", lambda h: h.is_empty()),
    ]
    for name, use in uses:
        with pytest.raises(NoCurrentKeyError, match=f"'{name}'"):
            use(backend[name])


def test_columns_come_in_many_forms(backend: ps.KeyedStateBackend) -> None:
    keys = backend.keys([1, 2, 1])
    backend["l"].append(keys, np.array([1, 2, 3], np.int16))
    backend["l"].append(keys, pa.chunked_array([[4], [5, 6]]))
    backend["l"].extend(keys, pa.array([[7], None, [8, 9]]))
    backend["l"].extend(keys, pa.chunked_array([pa.array([[1]]), pa.array([[], [2]])]))
    assert backend["l"].lists(keys).to_pylist()[:2] == [[1, 3, 4, 6, 7, 8, 9, 1, 2], [2, 5]]
    sliced = pa.array([[0], [10], [11, 12], []])[1:]
    backend["l"].update([])
    backend["l"].clear_all(keys)
    backend["l"].extend(keys, sliced)
    pairs = pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2))
    backend["l"].extend(backend.keys([7, 8, 7]), pairs)
    assert backend["l"].lists(backend.keys([7, 8])).to_pylist() == [[1, 2, 3, 4], []]
    assert backend["l"].lists(backend.keys([2, 1, 9])).to_pylist() == [[11, 12], [10], []]


def test_a_value_for_all_entries(backend: ps.KeyedStateBackend) -> None:
    keys = backend.keys([1, 2, 1])
    backend["m"].put_entries(keys, ["a", "b", "c"], 5)
    assert backend["m"].maps(keys).to_pylist()[:2] == [[("a", 5), ("c", 5)], [("b", 5)]]
    assert backend["m"].get_entries(keys, ["c", "c", "a"]).to_pylist() == [5, None, 5]


def test_objects_are_pickled_and_those_that_cannot_be_are_named(
    backend: ps.KeyedStateBackend,
) -> None:
    backend["things"].add([1])
    backend["bag"].put(1, {"a": None})
    for use in (backend["things"].add, lambda v: backend["bag"].put(2, v)):
        with pytest.raises(WrongTypeError, match="cannot be pickled"):
            use(lambda: None)
    assert backend["things"].lists(backend.keys([1])) == [[[1]]]
    assert backend["bag"].maps(backend.keys([1])) == [{1: {"a": None}}]
    assert backend["bag"].get(1) == {"a": None} and backend["bag"].get(2, "none") == "none"
    out = io.BytesIO()
    backend.seal().write(out)
    with keyed(STATES, out) as other:
        assert (other["things"].get(), other["bag"].values()) == ([[1]], [{"a": None}])


@pytest.mark.parametrize("key", [object, "array<int>", "struct<a:int>", "map<int,int>"])
def test_keys_of_maps_are_scalars(key: Any) -> None:
    with pytest.raises(DeclarationError, match="MapState"):
        ps.MapState(key, "long")


def test_handles_cannot_be_pickled(backend: ps.KeyedStateBackend) -> None:
    for handle in backend.states.values():
        with pytest.raises((DeclarationError, WrongTypeError), match="cannot be pickled"):
            pickle.dumps(handle)


def test_a_key_with_many_elements_of_several_states() -> None:
    """In a file they lie side by side under one hash, in another order than the states."""
    n = 20_000
    names = ["a", "b", "c", "d"]
    states: dict[str, ps.State] = {name: ps.MapState("long", "long") for name in names}
    states |= {f"{name}-list": ps.ListState("string") for name in names}
    with (
        ps.KeyedStateBackend("long", states=states, timers=True) as made,
        ps.KeyedStateBackend("long", states=states, timers=True) as other,
    ):
        keys = made.keys(np.full(n, 7))
        numbers = np.random.default_rng(1).permutation(n)
        for name in names:
            made[name].put_entries(keys, numbers, numbers)
            made[f"{name}-list"].append(keys, pa.array(map(str, numbers)))
        made.register_timers(keys, "event", numbers)
        made.register_timers(keys, "processing", numbers)
        file = sealed(made)
        other.restore([file])
        other.set_current_key(7)
        for name in names:
            assert other[name].items() == [(i, i) for i in range(n)]
            assert other[f"{name}-list"].get() == list(map(str, numbers))
        for domain in ("event", "processing"):
            due = other.due_timers(domain, n, 2 * n)
            assert due is not None and due.timestamps.tolist() == list(range(n))


def test_a_range_is_a_column_of_values() -> None:
    states: dict[str, ps.State] = {
        "v": ps.ValueState("long"),
        "m": ps.MapState("long", "long"),
        "c": ps.AggregatingState(ps.Count(), "long"),
        "mean": ps.AggregatingState(ps.Mean(), "long"),
    }
    with ps.KeyedStateBackend("long", states=states, timers=True) as made:
        keys = made.keys(range(3))
        made["v"].update_all(keys, range(3))
        made["m"].put_entries(keys, range(3), range(3, 6))
        made["c"].add_all(keys, range(3))
        made["mean"].add_all(keys, range(3))
        made.register_timers(keys, "event", range(3))
        assert made["v"].values(keys).to_pylist() == [0, 1, 2]
        assert made["m"].get_entries(keys, range(3)).to_pylist() == [3, 4, 5]
        assert made["c"].results(keys).to_pylist() == [1, 1, 1]
        assert made["mean"].results(keys).to_pylist() == [0.0, 1.0, 2.0]
        assert made.next_timer("event") == 0


def test_two_names_that_files_cannot_tell_apart() -> None:
    # Found by trying: their hashes are equal.
    states = {name: ps.ListState("long") for name in ("state_39487", "state_210240")}
    with (
        ps.KeyedStateBackend("long", states=states, uid="orders") as backend,
        pytest.raises(DeclarationError, match="state 'state_210240': files know lists"),
    ):
        backend.set_current_key(1)


@pytest.mark.parametrize("kind", ["long", "double", "int"])
def test_a_list_of_numbers_of_any_length(kind: str) -> None:
    with ps.KeyedStateBackend("long", states={"l": ps.ListState(kind)}) as backend:
        items = backend["l"]
        made = float if kind == "double" else int
        model: list[Any] = []
        backend.set_current_key(1)
        assert items.get() == []
        for length in (1, 2, 3, 10, 100, 1000):
            model += [made(i) * -3 for i in range(length)]
            items.add_all(model[len(items) :])
            found = items.get()
            assert found == model
            assert {type(item) for item in found} == {made}
            backend.seal().close()
            backend.set_current_key(1)
            assert items.get() == model


@pytest.mark.parametrize("kind", ["long", "double"])
@pytest.mark.parametrize("later", [[], [7], list(range(500))])
def test_a_list_that_changes_while_the_collector_runs(kind: str, later: list[int]) -> None:
    """Making the list that `get` returns may run the garbage collector, and with it other code."""
    with keyed({"l": ps.ListState(kind)}) as backend:
        items = backend["l"]
        items.add_all(list(map(float, range(300))) if kind == "double" else range(300))
        changes = 0

        def change(phase: str, info: dict[str, int]) -> None:
            nonlocal changes
            if phase == "start" and not changes:
                changes += 1
                items.update(list(map(float, later)) if kind == "double" else later)

        thresholds = gc.get_threshold()
        # Else the list would be one of those that the interpreter keeps for reuse.
        _kept: list[list[int]] = [[] for _ in range(1000)]
        gc.callbacks.append(change)
        gc.set_threshold(1)
        try:
            found, seen = items.get(), changes
        finally:
            gc.set_threshold(*thresholds)
            gc.callbacks.remove(change)
        assert found == (later if seen else list(range(300)))
        assert items.get() == (later if changes else list(range(300)))


def write_and_restore(
    key: str, states: dict[str, ps.State], fill: Callable[[Any, Any, int], None], rows: int
) -> tuple[int, int, Any, Any]:
    """Committed bytes of a table and of its copy that was restored, and the rows of both."""
    names = np.arange(rows)
    out = io.BytesIO()
    with ps.KeyedStateBackend(key, states=states, max_parallelism=4) as backend:
        array = pa.array(names if key == "long" else [f"{name:08}" * 25 for name in names])
        fill(backend, backend.keys(array), rows)
        with backend.seal() as snapshot:
            snapshot.write(out)
        before, table = backend.stats().committed_bytes, backend.to_arrow()
    with ps.KeyedStateBackend(key, states=states, max_parallelism=4) as backend:
        backend.restore([out])
        return before, backend.stats().committed_bytes, table, backend.to_arrow()


def fill_lists(backend: Any, keys: Any, rows: int) -> None:
    for i in range(10):
        backend["s"].append(keys, pa.array([i] * rows, backend["s"].type.arrow))
    for name in ("v" + str(i) for i in range(40)):
        if name in backend.states:
            backend[name].update_all(keys, pa.array(np.arange(rows)))


def fill_maps(backend: Any, keys: Any, rows: int) -> None:
    for i in range(20):
        backend["s"].put_entries(keys, [i] * rows, pa.array([i] * rows, pa.int8()))


@pytest.mark.parametrize(
    ("key", "states", "fill", "rows"),
    [
        ("long", {"s": ps.ListState("long")}, fill_lists, 4_000),
        ("long", {"s": ps.ListState("byte")}, fill_lists, 4_000),
        ("long", {"s": ps.MapState("byte", "byte")}, fill_maps, 4_000),
        # Files repeat the key with each entry, and of wide rows they have more than of the lists.
        ("string", {"s": ps.MapState("byte", "byte")}, fill_maps, 4_000),
        (
            "long",
            {"s": ps.ListState("byte")} | {f"v{i}": ps.ValueState("long") for i in range(40)},
            fill_lists,
            20_000,
        ),
    ],
)
def test_a_restore_takes_no_more_memory_than_what_was_written(
    key: str, states: dict[str, ps.State], fill: Callable[[Any, Any, int], None], rows: int
) -> None:
    before, after, table, copy = write_and_restore(key, states, fill, rows)
    assert after <= before * 1.1
    order = [("key", "ascending")]
    assert copy.sort_by(order).equals(table.sort_by(order))


NUMBERS: dict[str, list[Any]] = {
    "boolean": [True, False, True],
    "byte": [-128, 127, 0],
    "short": [-(1 << 15), 300],
    "int": [-(1 << 31), 7],
    "long": [-(1 << 63), (1 << 63) - 1, 0],
    "float": [1.5, -2.0],
    "double": [0.1, float("inf")],
    "date": [dt.date(1969, 12, 31), dt.date(2024, 2, 29)],
    "timestamp_ntz": [dt.datetime(1969, 12, 31, 23), dt.datetime(2024, 2, 29, 1, 2, 3, 4)],
}


@pytest.mark.parametrize("ttl", [None, ps.StateTtl(days=1)])
@pytest.mark.parametrize("type_", NUMBERS)
@pytest.mark.parametrize("times", [0, 1, 700])
def test_the_items_as_an_array(type_: str, ttl: ps.StateTtl | None, times: int) -> None:
    states = {"l": ps.ListState(type_, ttl=ttl)}
    with ps.KeyedStateBackend("long", states=states) as backend:
        handle = backend["l"]
        backend.set_current_key(1)
        handle.add_all(NUMBERS[type_] * times)
        found = handle.to_numpy()
        assert found.tolist() == handle.get() == NUMBERS[type_] * times
        found[:] = found[::-1]  # it is the caller's own
        handle.add_all(NUMBERS[type_])
        assert len(found) == len(NUMBERS[type_]) * times
        assert handle.get() == NUMBERS[type_] * (times + 1)


def test_an_array_of_what_has_not_expired() -> None:
    states = {"l": ps.ListState("long", ttl=ps.StateTtl(seconds=1))}
    with keyed(states) as backend:
        backend.set_clock(processing_time=1_000)
        backend["l"].add(1)
        backend.set_clock(processing_time=1_900)
        backend["l"].add(2)
        backend.set_clock(processing_time=2_100)
        assert backend["l"].to_numpy().tolist() == [2]


def test_an_array_in_utc(backend: ps.KeyedStateBackend) -> None:
    with keyed({"l": ps.ListState("timestamp")}) as times:
        times["l"].add(dt.datetime(2024, 1, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=2))))
        assert times["l"].to_numpy().tolist() == [dt.datetime(2024, 1, 1)]


@pytest.mark.parametrize("name", ["texts", "things"])
def test_no_array_of_other_items(backend: ps.KeyedStateBackend, name: str) -> None:
    with pytest.raises(WrongTypeError, match=rf"{name}.* no NumPy array; get\(\)"):
        backend[name].to_numpy()
    backend.clear_current_key()
    with pytest.raises(NoCurrentKeyError):
        backend["l"].to_numpy()
