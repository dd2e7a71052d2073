"""The scenarios that a keyed backend has to stand, by name.

Elsewhere under their names: ``test_backend::test_reader_beside_writer`` and
``test_backend::test_empty_checkpoint``; ``test_harness::test_uneven_scale_up_and_down`` of
functions; and of timers ``test_timers::test_rebalanced_restore``,
``test_timers::test_equal_timestamps`` and ``test_timers::test_re_registration_inside_a_callback``.
"""

from __future__ import annotations

import io
import operator
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.errors import ClosedError, SchemaError, WrongTypeError
from pystate.types.arrays import key_groups

HOUR = 3_600_000
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
    """What a key holds that was touched with these."""
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


def test_interleaved_keys_across_snapshot_and_restore(backend: ps.KeyedStateBackend) -> None:
    for key, n in ((1, 1), (2, 2), (1, 3)):
        touch(backend, key, n)
    files = [write(backend.seal())]
    for key, n in ((2, 4), (3, 5), (1, 6)):
        touch(backend, key, n)
    files.append(write(backend.seal()))
    wanted = {1: after(1, 3, 6), 2: after(2, 4), 3: after(5)}
    with restored(*files) as other:
        assert {key: seen(other, key) for key in wanted} == wanted
        for key in (3, 1, 2):
            touch(other, key, 10 + key)
        assert seen(other, 1) == after(1, 3, 6, 11)
        assert seen(other, 2) == after(2, 4, 12)
    assert {key: seen(backend, key) for key in wanted} == wanted


def test_null_handling(backend: ps.KeyedStateBackend) -> None:
    """None is a key like others, no value, and clears where it updates."""
    touch(backend, None, 1)
    for add in (
        backend["list"].add,
        backend["sum"].add,
        backend["mean"].add,
        lambda value: backend["list"].add_all(["x", value]),
        lambda value: backend["list"].update(["x", value]),
        lambda value: backend["map"].put(value, 1),
    ):
        with pytest.raises(WrongTypeError, match="None"):
            add(None)
    assert seen(backend, None) == after(1)
    keys = backend.keys([None, 0])
    with pytest.raises(WrongTypeError, match="row 1"):
        backend["list"].append(keys, ["x", None])
    with pytest.raises(WrongTypeError, match="row 0"):
        backend["map"].put_entries(keys, [None, "x"], [1, 2])
    backend["map"].put("x", None)
    assert (backend["map"].contains("x"), backend["map"].get("x")) == (True, None)
    backend["map"].remove("x")
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


def test_map_emptied_then_asked(backend: ps.KeyedStateBackend) -> None:
    backend.set_current_key(1)
    states = backend["map"]
    for empty in (lambda: states.remove("a"), states.clear):
        states.put("a", 1)
        files = [write(backend.seal())]
        backend.set_current_key(1)
        empty()
        assert states.is_empty() and states.get("a") is None and not states.contains("a")
        assert (states.keys(), states.values(), states.items(), len(states)) == ([], [], [], 0)
        assert states.maps(backend.keys([1])).to_pylist() == [[]]
        states.remove("a")
        files.append(write(backend.seal()))
        assert len(backend) == 0
        with restored(*files) as other:
            assert len(other) == 0
        backend.set_current_key(1)


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
    with ps.KeyedStateBackend("long", states=states) as backend:
        backend.set_current_key(1)
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


def test_state_never_accessed_survives_two_restores(backend: ps.KeyedStateBackend) -> None:
    for key in range(5):
        touch(backend, key, key)
    files = [write(backend.seal())]
    for _ in range(2):
        with restored(*files) as other:
            other.set_current_key(9)
            other["value"].update(9)
            delta = write(other.seal())
            base = io.BytesIO()
            ps.merge_files([*files, delta], base)
            files = [base]
    with restored(*files) as other:
        assert [seen(other, key) for key in range(5)] == [after(key) for key in range(5)]


@pytest.mark.parametrize(("before", "after_"), [(2, 7), (7, 2), (3, 2)])
def test_uneven_scale(before: int, after_: int) -> None:
    """Lists, maps and aggregates of every key arrive, once, in the range that owns it."""

    def ranges(parallelism: int) -> list[tuple[int, int]]:
        return [ps.range_bounds(i, 128, parallelism) for i in range(parallelism)]

    def owned(made: ps.KeyedStateBackend, key: int) -> bool:
        [group] = key_groups(ps.hash_keys([pa.array([key])]), 128)
        return made.key_group_range[0] <= group <= made.key_group_range[1]

    files = []
    for bounds in ranges(before):
        with ps.KeyedStateBackend("long", states=STATES, key_group_range=bounds) as part:
            for n in (1, 2):
                for key in range(100):
                    if owned(part, key):
                        touch(part, key, n * key)
            files.append(write(part.seal()))
    found: Counter[int] = Counter()
    for bounds in ranges(after_):
        with restored(*files, key_group_range=bounds) as part:
            found.update(part)
            assert all(seen(part, key) == after(key, 2 * key) for key in part if key)
    assert found == Counter(range(100))


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


def test_several_snapshots_in_flight(backend: ps.KeyedStateBackend) -> None:
    snapshots = []
    for n in range(1, 6):
        touch(backend, 1, n)
        snapshots.append(backend.seal())
    touch(backend, 1, 99)
    files = [write(snapshot) for snapshot in reversed(snapshots)][::-1]
    for n in range(1, 6):
        with restored(*files[:n]) as other:
            assert seen(other, 1) == after(*range(1, n + 1))


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
    """A file that has no room."""

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


# -- migration


def with_ttl(ttl: ps.StateTtl | None) -> dict[str, ps.State]:
    return {
        "value": ps.ValueState("long", ttl=ttl),
        "list": ps.ListState("string", ttl=ttl),
        "map": ps.MapState("string", "long", ttl=ttl),
        "sum": ps.ReducingState("long", operator.add, ttl=ttl),
        "mean": ps.AggregatingState(ps.Mean(), "long", ttl=ttl),
        "any": ps.ValueState(object, ttl=ttl),
    }


@pytest.mark.parametrize("clock_first", [True, False])
def test_ttl_on_and_off(clock_first: bool) -> None:
    """Off to on: all live from the restore, or from the first sweep. On to off: for ever."""
    hour = ps.StateTtl(hours=1)

    def opened(ttl: ps.StateTtl | None, now: int, *files: io.BytesIO) -> ps.KeyedStateBackend:
        made = ps.KeyedStateBackend("long", states=with_ttl(ttl))
        if clock_first:
            made.set_clock(processing_time=now)
        made.restore(files)
        made.set_clock(processing_time=now)
        return made

    with ps.KeyedStateBackend("long", states=with_ttl(None)) as backend:
        touch(backend, 1, 1)
        files = [write(backend.seal())]
    with opened(hour, 10 * HOUR, *files) as timed:
        assert seen(timed, 1) == after(1)
        timed.set_current_key(2)
        touch(timed, 2, 2)
        files.append(write(timed.seal()))
        timed.set_clock(processing_time=11 * HOUR - 1)
        assert (seen(timed, 1), seen(timed, 2)) == (after(1), after(2))
        timed.set_clock(processing_time=11 * HOUR)
        assert (seen(timed, 1), seen(timed, 2)) == (after(), after())
    with opened(None, 99 * HOUR, *files) as untimed:
        assert (seen(untimed, 1), seen(untimed, 2)) == (after(1), after(2))
        base = io.BytesIO()
        ps.merge_files([*files, write(untimed.seal())], base)
    with opened(None, 200 * HOUR, base) as merged:
        assert (seen(merged, 1), seen(merged, 2)) == (after(1), after(2))


def test_ttl_changed() -> None:
    """The times of the last write stay; the new duration counts from them."""
    with ps.KeyedStateBackend("long", states=with_ttl(ps.StateTtl(hours=1))) as backend:
        backend.set_clock(processing_time=10 * HOUR)
        touch(backend, 1, 1)
        files = [write(backend.seal())]
    with ps.KeyedStateBackend("long", states=with_ttl(ps.StateTtl(hours=5))) as longer:
        longer.restore(files)
        longer.set_clock(processing_time=15 * HOUR - 1)
        assert seen(longer, 1) == after(1)
        longer.set_clock(processing_time=15 * HOUR)
        assert seen(longer, 1) == after()
