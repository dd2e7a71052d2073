"""Keys of a batch: their canonical form, and rows made current one after the other."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.errors import StaleKeyBatchError
from pystate.types.state_type import parse_type


def counts(**key: str) -> ps.KeyedStateBackend:
    return ps.KeyedStateBackend(key=key or "string", states={"n": ps.ValueState("long", default=0)})


def test_the_bytes_of_a_null_are_no_key() -> None:
    # Arrow lets a null have bytes of its own.
    offsets = pa.array([0, 5, 10, 15], pa.int32()).buffers()[1]
    data = pa.py_buffer(b"firstotherfirst")
    nulls = pa.array([False, False, True]).buffers()[1]
    keys = pa.StringArray.from_buffers(3, offsets, data, nulls)
    assert keys.to_pylist() == [None, None, "first"]
    with counts() as backend:
        backend["n"].add(backend.keys(keys), 1)
        assert sorted(backend, key=str) == [None, "first"]
        assert backend["n"].values(backend.keys([None, "first", "other"])).to_pylist() == [2, 1, 0]


@pytest.mark.parametrize("length", [0, 11, 12, 13, 40, 64, 65, 600])
def test_strings_of_any_length(length: int) -> None:
    # Of more than 12 bytes the rest lies in a block, which may span lines.
    keys = [f"{i:04}".ljust(length, "x")[:length] for i in range(300)]
    with counts() as backend:
        for _ in range(2):
            backend["n"].add(backend.keys(keys), 1)
            backend.seal().close()
        found = backend["n"].values(backend.keys(keys)).to_pylist()
        assert found == [2 * keys.count(key) for key in keys]
        assert (
            backend["n"].values(backend.keys([key + "y" for key in keys])).to_pylist() == [0] * 300
        )


def name_of(number: int, kind: str) -> Any:
    return number if kind == "long" else f"{number}-" + "k" * (number % 40)


@pytest.mark.parametrize("kind", ["long", "string"])
@pytest.mark.parametrize("seed", range(6))
def test_rows_selected_while_rows_come_and_go(kind: str, seed: int) -> None:
    """A batch finds rows ahead of the one at hand; what is written meanwhile counts too."""
    rng = random.Random(seed)
    states = {"n": ps.ValueState("long", default=0), "l": ps.ListState("long")}
    with ps.KeyedStateBackend(key=kind, states=states) as backend:
        n, items = backend["n"], backend["l"]
        model: dict[Any, tuple[int, list[int]]] = {}
        for _ in range(12):
            before = dict(model)
            names = [
                name_of(rng.randrange(300), kind) for _ in range(rng.choice([1, 15, 200, 700]))
            ]
            keys = backend.keys(names)
            if rng.random() < 0.5:
                # Looked up whole before the first is selected.
                assert n.values(keys).to_pylist() == [model.get(x, (0, []))[0] for x in names]
            order = list(range(len(names)))
            if rng.random() < 0.3:
                rng.shuffle(order)
            for i in order:
                keys.select(i)
                value, listed = model.get(names[i], (0, []))
                assert (n.value(), items.get()) == (value, listed)
                assert backend.current_key == names[i]
                match rng.randrange(6):
                    case 0:
                        n.update(value + 1)
                        items.add(i)
                        model[names[i]] = value + 1, [*listed, i]
                    case 1:
                        n.clear()
                        items.clear()
                        model.pop(names[i], None)
                    case 2:
                        # Another key, past the batch: maybe one that it has found absent, or alive.
                        other = name_of(rng.randrange(300), kind)
                        backend.set_current_key(other)
                        value, listed = model.get(other, (0, []))
                        n.update(value + 5)
                        model[other] = value + 5, listed
                    case 3 if rng.random() < 0.2:
                        gone = [name_of(rng.randrange(300), kind) for _ in range(40)]
                        backend.delete(gone)
                        for other in gone:
                            model.pop(other, None)
                    case 4 if rng.random() < 0.05:
                        # Enough to have the index grow.
                        many = [name_of(1000 + rng.randrange(20_000), kind) for _ in range(3000)]
                        n.update_all(backend.keys(many), 9)
                        model.update({x: (9, model.get(x, (0, []))[1]) for x in many})
            if rng.random() < 0.3:
                backend.rollback()
                model = before
            else:
                backend.seal().close()
            with pytest.raises(StaleKeyBatchError):
                keys.select(0)
            assert len(backend) == len(model)


def test_timers_that_fire_while_rows_come_and_go() -> None:
    states = {"n": ps.ValueState("long", default=0)}
    with ps.KeyedStateBackend(key="long", states=states, timers=True) as backend:
        n = backend["n"]
        keys = list(range(500))
        random.Random(3).shuffle(keys)
        backend.register_timers(backend.keys(keys), "event", list(range(500)))
        n.update_all(backend.keys(keys[::2]), 7)
        backend.seal().close()
        fired = []
        while (due := backend.due_timers("event", 1000, 200)) is not None:
            for i, (key, at) in enumerate(
                zip(due.keys.to_pylist(), due.timestamps.tolist(), strict=True)
            ):
                if i % 7 == 3:
                    # One that was handed out, and whose row may go with it.
                    backend.set_current_key(key)
                    backend.delete_timer("event", at)
                    n.clear()
                    assert not due.fire(i)
                    continue
                assert due.fire(i)
                assert backend.current_key == key
                assert n.value() == (7 if keys.index(key) % 2 == 0 else 0)
                n.update(8)
                fired.append(key)
        stored = n.values(backend.keys(keys)).to_pylist()
        assert stored == [8 if key in fired else 0 for key in keys]
        assert 400 < len(fired) < 500


KEYS: dict[str, tuple[dict[str, str], Any]] = {
    "long": ({"k": "long"}, lambda rng: rng.choice([None, *range(50)])),
    "double": ({"k": "double"}, lambda rng: rng.choice([None, 0.0, -0.0, float("nan"), 1.5])),
    "string": ({"k": "string"}, lambda rng: rng.choice([None, "", "a", "b" * 30, "b" * 31])),
    "two": (
        {"a": "long", "b": "string"},
        lambda rng: (rng.choice([None, 1, 2]), rng.choice([None, "", "x"])),
    ),
}


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 2000])
def test_first_rows(kind: str, rows: int) -> None:
    rng = random.Random(rows)
    key, make = KEYS[kind]
    names = [make(rng) for _ in range(rows)]
    seen: dict[Any, int] = {}
    with counts(**key) as backend:
        each = [name if isinstance(name, tuple) else (name,) for name in names]
        keys = backend.keys(
            [
                pa.array([name[i] for name in each], parse_type(kind).arrow)
                for i, kind in enumerate(key.values())
            ]
        )
        expected = [
            seen.setdefault(repr(0.0 if name == 0.0 else name), i) for i, name in enumerate(names)
        ]
        assert keys.first_rows().tolist() == expected
        # Of rows that exist, too.
        backend["n"].add(keys, 1)
        assert keys.first_rows().tolist() == expected
        for changed in backend.changed():
            assert changed.first_rows().tolist() == list(range(len(changed)))
        backend.rollback()
        with pytest.raises(StaleKeyBatchError):
            keys.first_rows()
