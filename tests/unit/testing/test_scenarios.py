"""Scenarios that a keyed backend has to stand and its models, in tests/model, do not reach."""

from __future__ import annotations

import io
import operator
import random
from collections.abc import Iterator
from typing import Any

import pytest

import pystate as ps
from pystate.errors import ClosedError, SchemaError
from tests.tables import keyed

STATES: dict[str, ps.State] = {
    "value": ps.ValueState("long"),
    "list": ps.ListState("string"),
    "map": ps.MapState("string", "long"),
    "sum": ps.ReducingState("long", operator.add),
    "mean": ps.AggregatingState(ps.Mean(), "long"),
    "any": ps.ValueState(object),
}


@pytest.fixture
def backend() -> Iterator[ps.KeyedStateBackend]:
    with ps.KeyedStateBackend("long", states=STATES) as made:
        yield made


def write(snapshot: ps.Snapshot) -> io.BytesIO:
    out = io.BytesIO()
    with snapshot:
        snapshot.write(out)
    return out


def touch(backend: ps.KeyedStateBackend, key: Any, n: int) -> None:
    backend.set_current_key(key)
    backend["value"].update(n)
    backend["list"].add(f"item {n}")
    backend["map"].put(f"entry {n}", n)
    backend["sum"].add(n)
    backend["mean"].add(n)
    backend["any"].update([n])


def seen(backend: ps.KeyedStateBackend, key: Any) -> tuple[Any, ...]:
    backend.set_current_key(key)
    return (
        backend["value"].value(),
        backend["list"].get(),
        dict(backend["map"].items()),
        backend["sum"].get(),
        backend["mean"].get(),
        backend["any"].value(),
    )


def after(*numbers: int) -> tuple[Any, ...]:
    if not numbers:
        return None, [], {}, None, None, None
    return (
        numbers[-1],
        [f"item {n}" for n in numbers],
        {f"entry {n}": n for n in numbers},
        sum(numbers),
        sum(numbers) / len(numbers),
        [numbers[-1]],
    )


def restored(*files: io.BytesIO, **options: Any) -> ps.KeyedStateBackend:
    options.setdefault("states", STATES)
    made = ps.KeyedStateBackend("long", **options)
    made.restore(files)
    return made


def test_null_handling(backend: ps.KeyedStateBackend) -> None:
    """None is a key like others, no value, and clears where it updates."""
    touch(backend, None, 1)
    keys = backend.keys([None, 0])
    backend["list"].extend(keys, [None, None])
    backend["sum"].add_all(keys, [None, None])
    backend["mean"].add_all(keys, [None, None])
    assert (seen(backend, None), seen(backend, 0)) == (after(1), after())
    backend["value"].update(None)
    backend["list"].update(None)
    assert (backend["value"].value(), backend["list"].get()) == (None, [])


def test_merged_namespaces() -> None:
    states = {name: STATES[name] for name in ("list", "sum", "mean")}
    with ps.KeyedStateBackend("long", states=states, namespace="string") as backend:
        for key in (1, 2):
            for n, space in enumerate(("a", "b", "c"), 1):
                backend.set_current_key(key)
                backend.set_current_namespace(space)
                backend["list"].add(space)
                backend["sum"].add(n)
                backend["mean"].add(n)
        for state in backend.states.values():
            state.merge_namespaces("a", ["b", "missing", "c", "a"])
        assert backend.current_namespace == "c"
        files = [write(backend.seal())]
        with ps.KeyedStateBackend("long", states=states, namespace="string") as other:
            other.restore(files)
            keys = other.keys([2, 2, 2, 1], ["a", "b", "c", "c"])
            assert other["list"].lists(keys).to_pylist() == [["a", "b", "c"], [], [], ["c"]]
            assert other["sum"].values(keys).to_pylist() == [6, None, None, 3]
            assert other["mean"].results(keys).to_pylist() == [2.0, None, None, 3.0]


def test_map_changed_while_iterated(backend: ps.KeyedStateBackend) -> None:
    backend.set_current_key(1)
    states = backend["map"]
    states.put_all({f"{i:03d}": i for i in range(200)})
    for key in states:
        states.remove(key)
        states.put(f"new {key}", -1)
    for key, value in states.items():
        assert value == -1
        states.put(key, 1)
    for _ in states.values():
        states.clear()
    assert states.is_empty()


def test_list_changed_while_iterated(backend: ps.KeyedStateBackend) -> None:
    backend.set_current_key(1)
    items = backend["list"]
    items.add_all(["a", "b"])
    for item in items:
        items.add(item + item)
    assert items.get() == ["a", "b", "aa", "bb"]


def test_default_not_aliased() -> None:
    states = {
        "any": ps.ValueState(object, default={"n": []}),
        "array": ps.ValueState("array<int>", default=[]),
    }
    with keyed(states) as backend:
        backend["any"].value()["n"].append(1)
        backend["array"].value().append(1)
        assert (backend["any"].value(), backend["array"].value()) == ({"n": []}, [])
        changed = backend["any"].value()
        changed["n"].append(2)
        backend["any"].update(changed)
        a, b = backend["any"].values(backend.keys([2, 3]))
        assert a == b == {"n": []} and a is not b and a["n"] is not b["n"]
        backend.set_current_key(2)
        assert backend["any"].value() == {"n": []}
        assert backend.declarations["any"].default == {"n": []}  # type: ignore[attr-defined]


def test_wrong_key_type_at_restore(backend: ps.KeyedStateBackend) -> None:
    touch(backend, 1, 1)
    delta = write(backend.seal())
    with ps.KeyedStateBackend("string", states=STATES) as other:
        with pytest.raises(SchemaError, match=r"key is \(key long\).*key string"):
            other.restore([delta])
        assert len(other) == 0
    for name, declared in (
        ("list", ps.ListState("long")),
        ("map", ps.MapState("long", "long")),
        ("map", ps.ListState("long")),
        ("mean", ps.AggregatingState(ps.Variance(), "long")),
    ):
        with ps.KeyedStateBackend("long", states={**STATES, name: declared}) as other:
            with pytest.raises(SchemaError, match=f"state '{name}' is"):
                other.restore([delta])
            assert len(other) == 0


def test_snapshot_cancelled(backend: ps.KeyedStateBackend) -> None:
    """One that nobody writes costs nothing, and the next ones do not need it."""
    touch(backend, 1, 1)
    snapshot = backend.seal()
    snapshot.close()
    with pytest.raises(ClosedError):
        snapshot.write(io.BytesIO())
    backend.rollback(1)
    assert seen(backend, 1) == after()
    touch(backend, 1, 2)
    with restored(write(backend.seal())) as other:
        assert seen(other, 1) == after(2)


class Full(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        raise OSError(28, "no space")


def test_snapshot_whose_write_fails_releases_its_pins(backend: ps.KeyedStateBackend) -> None:
    """The table goes on, its memory is reused, and the snapshot can be written again."""
    keys = range(2000)

    def epoch() -> ps.Snapshot:
        batch = backend.keys(keys)
        backend["list"].clear_all(batch)
        backend["list"].append(batch, ["x" * 100] * len(keys))
        backend["map"].put_entries(batch, ["k"] * len(keys), 1)
        return backend.seal()

    for _ in range(4):
        epoch().close()
    before = backend.stats().block_bytes
    failed = []
    for _ in range(8):
        failed.append(epoch())
        with pytest.raises(OSError, match="No space left"):
            failed[-1].write(Full())
    assert backend.stats().block_bytes <= before * 1.05
    with restored(write(failed[-1])) as other:
        assert len(other) == len(keys)


def test_random_modifications_against_a_model_snapshots_isolated() -> None:
    """Snapshots that are written late hold what they were made of."""
    rng = random.Random(7)
    model: dict[int, list[int]] = {}
    kept: list[tuple[ps.Snapshot, dict[int, list[int]]]] = []
    with ps.KeyedStateBackend("long", states=STATES) as backend:
        for n in range(600):
            key = rng.randrange(20)
            if rng.random() < 0.1:
                backend.delete([key])
                model.pop(key, None)
            else:
                touch(backend, key, n)
                model.setdefault(key, []).append(n)
            if n % 60 == 59:
                kept.append((backend.seal(), {k: list(v) for k, v in model.items()}))
    files: list[io.BytesIO] = []
    for snapshot, wanted in kept:
        files.append(write(snapshot))
        with restored(*files) as other:
            assert set(other) == wanted.keys()
            for key, numbers in wanted.items():
                assert seen(other, key) == after(*numbers)


def test_growth_under_a_snapshot(backend: ps.KeyedStateBackend) -> None:
    """The index grows many times between the seal and the writing."""
    keys = range(500)
    backend["value"].update_all(backend.keys(keys), list(keys))
    backend["list"].append(backend.keys(keys), [str(key) for key in keys])
    snapshot = backend.seal()
    reader = backend.reader()
    many = backend.keys(range(100_000))
    backend["value"].update_all(many, -1)
    backend["list"].clear_all(many)
    assert {key: reader.get(key)["value"] for key in keys} == {key: key for key in keys}  # type: ignore[index]
    with restored(write(snapshot)) as other:
        batch = other.keys(keys)
        assert other["value"].values(batch).to_pylist() == list(keys)
        assert other["list"].lists(batch).to_pylist() == [[str(key)] for key in keys]
