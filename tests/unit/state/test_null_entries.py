"""Maps with entries that have no value: such an entry is there wherever any other is."""

from __future__ import annotations

import io
import pickle
from datetime import date
from pathlib import Path
from typing import Any

import pytest

import pystate as ps
from pystate.processor.state_writer import StateRows

POINT = "struct<x:int,y:string>"
#: Of each form that values and keys have in the core: a map's type, its keys and a value.
KINDS: dict[str, tuple[ps.MapState, list[Any], Any]] = {
    "names": (ps.MapState("int", "string"), [1, -2], "a name that lies in a block of its own"),
    "empty": (ps.MapState("string", "binary"), ["", "b" * 40], b""),
    "zero": (ps.MapState("string", "long"), ["a", "b"], 0),
    "flags": (ps.MapState("date", "boolean"), [date(1969, 12, 31), date(2026, 1, 1)], False),
    "sums": (ps.MapState("long", "decimal(20,2)"), [7, 8], 0),
    "pairs": (ps.MapState("decimal(20,2)", "struct<a:int,b:double>"), [1, 2], {"a": 0, "b": 0.0}),
    "points": (ps.MapState("double", POINT), [0.0, 0.5], {"x": None, "y": None}),
    "lists": (ps.MapState("boolean", "array<int>"), [True, False], []),
    "things": (ps.MapState("short", object), [1, 2], ("an", "object")),
    "timed": (ps.MapState("int", "double", ttl=ps.StateTtl(hours=1)), [1, 2], 0.0),
}
STATES: dict[str, ps.State] = {name: kind[0] for name, kind in KINDS.items()}
NULLS = 24, 32  # where a file's header has the features that a reader must know
NULL_ENTRIES = 4


def backend(**options: Any) -> ps.KeyedStateBackend:
    made = ps.KeyedStateBackend("long", states=STATES, max_parallelism=8, **options)
    made.set_clock(processing_time=0)
    return made


def sealed(b: ps.KeyedStateBackend) -> io.BytesIO:
    out = io.BytesIO()
    b.seal().write(out)
    b.set_current_key(1)
    return out


def merged(files: list[io.BytesIO], kind: str) -> io.BytesIO:
    out = io.BytesIO()
    ps.merge_files(files, out, kind=kind)  # type: ignore[arg-type]
    return out


def has_nulls(file: io.BytesIO) -> bool:
    return bool(int.from_bytes(file.getvalue()[slice(*NULLS)], "little") & NULL_ENTRIES)


def content(b: ps.KeyedStateBackend, key: int = 1) -> dict[str, list[Any]]:
    b.set_current_key(key)
    return {name: b[name].items() for name in STATES}


@pytest.mark.parametrize("name", KINDS)
def test_an_entry_without_a_value_is_an_entry(name: str) -> None:
    _, (key, other), value = KINDS[name]
    with backend() as b:
        b.set_current_key(1)
        state = b[name]
        state.put(key, None)
        assert state.contains(key) and key in state and not state.contains(other)
        assert state.get(key) is None and state.get(key, value) is None and state[key] is None
        assert state.get(other, value) == value
        assert [*state.values()] == [None] and len(state) == 1 and not state.is_empty()
        assert [*state] == state.keys() and state.items() == [(state.keys()[0], None)]
        state.put_all({key: value, other: None})
        assert state.get(key) == value and state.get(other, value) is None and len(state) == 2
        state.put_all({key: None, other: value})
        assert state.get(key, value) is None and state.get(other) == value
        state.remove(key)
        assert not state.contains(key) and state.get(key, value) == value and len(state) == 1
        del state[other]
        assert state.is_empty() and b.to_arrow().num_rows == 0


@pytest.mark.parametrize("name", KINDS)
def test_many_keys_have_entries_without_a_value(name: str) -> None:
    declaration, (key, other), value = KINDS[name]
    with backend() as b:
        keys, state = b.keys([1, 2, 3]), b[name]
        state.put_entries(keys, [key, key, other], [value, None, None])
        found = state.get_entries(keys, [key, key, other])
        found = found if isinstance(found, list) else found.to_pylist()
        assert found[1:] == [None, None] and found[0] == state_of(b, name, 1)[0][1]
        maps = state.maps(keys)
        maps = maps if isinstance(maps, list) else [dict(m) for m in maps.to_pylist()]
        assert [list(m.values()) for m in maps] == [[found[0]], [None], [None]]
        column = b.to_arrow().sort_by("key")[name].to_pylist()
        assert [entries[0][1] for entries in column][1:] == [None, None]
        if not declaration.type.is_object:
            state.put_entries(keys, [other] * 3, None)
        else:
            state.put_entries(keys, [other] * 3, [None] * 3)
        assert [len(state_of(b, name, k)) for k in (1, 2, 3)] == [2, 2, 1]
        state.remove_entries(keys, [other] * 3)
        assert [len(state_of(b, name, k)) for k in (1, 2, 3)] == [1, 1, 0]


def state_of(b: ps.KeyedStateBackend, name: str, key: int) -> list[Any]:
    b.set_current_key(key)
    found: list[Any] = b[name].items()
    return found


def test_it_is_in_files_and_only_files_with_it_say_so() -> None:
    with backend() as b:
        b.set_current_key(1)
        for name, (_, (key, other), value) in KINDS.items():
            b[name].put_all({key: value, other: value})
        files = [sealed(b)]
        for name, (_, (key, _), _) in KINDS.items():
            b[name].put(key, None)
        files.append(sealed(b))
        before = content(b)
        for name, (_, (key, other), _) in KINDS.items():
            b[name].put(key, None)  # it is so already
            b[name].remove(other)
        files.append(sealed(b))
        wanted = content(b)
        for name, (_, (key, _), _) in KINDS.items():
            b[name].remove(key)
        b.rollback()
        assert content(b) == wanted
        b.rollback(1)
        assert content(b) == before
    assert [has_nulls(file) for file in files] == [False, True, False]
    assert has_nulls(merged(files, "base")) and not has_nulls(merged([files[0]], "base"))
    for source in (
        files,
        [merged(files, "base")],
        [files[0], merged(files[1:], "delta")],
        [merged(files[:2], "base"), files[2]],
    ):
        with backend() as again:
            again.restore(source)
            assert content(again) == wanted


@pytest.mark.parametrize("name", ["names", "zero", "timed", "pairs"])
def test_large_maps(name: str) -> None:
    """More entries than a node has, with and without a value, in each order."""
    declaration, _, value = KINDS[name]
    make = str if declaration.key_type.name == "string" else int
    model: dict[Any, Any] = {}
    files = []
    with backend() as b:
        b.set_current_key(1)
        for step, stride in ((1, 1), (7, 3), (501, 2)):
            for i in range(0, 3000, stride):
                key = make(i * step % 3001)
                model[key] = None if i * step % 5 < 2 else value
                b[name].put(key, model[key])
            for i in range(0, 3000, 11 * stride):
                b[name].remove(make(i))
                model.pop(make(i), None)
            assert dict(b[name].items()) == model
            files.append(sealed(b))
    for source in (files, [merged(files, "base")]):
        with backend() as again:
            again.restore(source)
            assert dict(content(again)[name]) == model


def test_each_entry_lives_its_own_time() -> None:
    with backend() as b:
        b.set_current_key(1)
        b["timed"].put(1, None)
        b.set_clock(processing_time=1_800_000)
        b["timed"].put(2, None)
        file = sealed(b)
        b.set_clock(processing_time=3_600_000)
        assert b["timed"].items() == [(2, None)] and not b["timed"].contains(1)
    with backend() as again:
        again.restore([file])
        again.set_current_key(1)
        again.set_clock(processing_time=3_600_000)
        assert again["timed"].items() == [(2, None)]
        again.set_clock(processing_time=5_400_000)
        assert again["timed"].is_empty()


def test_it_is_wherever_a_checkpoint_is_read_and_written(tmp_path: Path) -> None:
    states = {"m": ps.MapState("int", "string"), "o": ps.MapState("int", object)}
    wanted = [{"key": k, "m": [(1, None), (2, "x")], "o": [(1, None)]} for k in range(8)]
    with ps.open(tmp_path / "a", key="int", states=states) as store:
        for k in range(8):
            store.set_current_key(k)
            store["m"].put_all({1: "y", 2: "x"})
        store.checkpoint()
        for k in range(8):
            store.set_current_key(k)
            store["m"].put(1, None)
            store["o"].put(1, None)
        store.checkpoint()
    uid = ps.describe(tmp_path / "a").operators[0].uid
    ps.savepoint(tmp_path / "a", tmp_path / "b")
    ps.rescale(tmp_path / "a", tmp_path / "c", max_parallelism=1024)
    for folder in "abc":
        found = ps.read_state(tmp_path / folder, uid).sort_by("key").to_pylist()
        for row in found:
            row["o"] = [(k, None if v is None else pickle.loads(v)) for k, v in row["o"]]
        assert found == wanted, folder
        assert ps.verify(tmp_path / folder).ok
    rows = StateRows.read(tmp_path / "a", uid)
    ps.write_state(tmp_path / "d", {uid: rows})
    assert ps.read_state(tmp_path / "d", uid).sort_by("key").to_pylist() == (
        ps.read_state(tmp_path / "a", uid).sort_by("key").to_pylist()
    )
    changed = ps.changes(tmp_path / "a", uid, from_epoch=1, to_epoch=2)
    assert [row["key"] for row in changed.sort_by("key").to_pylist()] == list(range(8))
    with ps.open(tmp_path / "a", key="int", states=states) as store:
        store.set_current_key(3)
        assert store["m"].items() == [(1, None), (2, "x")] and store["o"].items() == [(1, None)]


class Marks(ps.KeyedProcessFunction):
    seen = ps.MapState("string", "long")

    def process(self, key: Any, row: Any, ctx: Any) -> Any:
        self.seen.put(row.what, row.n)


def test_in_a_harness() -> None:
    harness = ps.testing.Harness(Marks(), key="k")
    harness.process([{"k": "a", "what": "x", "n": None}, {"k": "a", "what": "y", "n": 2}])
    assert harness.state("seen", "a") == {"x": None, "y": 2}
    harness.set_state("seen", "a", {"z": None})
    snapshot = harness.snapshot()
    harness = ps.testing.Harness.restore(snapshot, Marks())
    assert harness.state("seen", "a") == {"z": None}
