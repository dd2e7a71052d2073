"""Rows of keys straight out of an epoch's files: as a table has them, in the order of the keys."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pystate as ps
from pystate._core.core import range_bounds
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.refs import FileRef, OperatorState, RangeState, state_path
from pystate.checkpoint.state_files import Lineage
from pystate.checkpoint.storage import LocalStorage
from pystate.errors import CheckpointError, CorruptFileError, InvalidArgumentError, WrongTypeError
from pystate.processor.key_files import BlockCache, KeyFiles
from pystate.processor.key_rows import KeyRows
from pystate.processor.lookup import StateLookup
from pystate.processor.selection import Selection
from pystate.state.ttl import StateTtl
from tests.forks import FORKS
from tests.unit.processor.changes import change, keyed
from tests.unit.processor.test_expired import Clock, checkpoint

STATES: dict[str, Any] = {
    "v": ps.ValueState("long", default=5),
    "text": ps.ValueState("string"),
    "flag": ps.ValueState("boolean"),
    "price": ps.ValueState("decimal(20,2)"),
    "pair": ps.ValueState("struct<a: long, b: array<string>>"),
    "list": ps.ListState("string"),
    "longs": ps.ListState("long"),
    "map": ps.MapState("long", "double"),
    "names": ps.MapState("string", "string"),
    "count": ps.AggregatingState(ps.Count()),
    "most": ps.ReducingState("long", max),
    "thing": ps.ValueState(object),
}
KEYS, RANGES, GROUPS = 90, 3, 128
BOUNDS = [range_bounds(index, GROUPS, RANGES) for index in range(RANGES)]
#: What jobs write whose tables are in memory, and on disk.
BLOCKS = pytest.mark.parametrize("block_bytes", [0, 4096])


def fill(
    folder: Path,
    seed: int,
    namespace: str | None = None,
    states: Any = None,
    epochs: int = 5,
    block_bytes: int = 4096,
) -> None:
    """Write epochs of an operator with several ranges; without blocks' size no file has a guide."""
    draw, storage = random.Random(seed), LocalStorage(folder)
    states = STATES if states is None else states
    groups = ps.key_group
    hashes = ps.hash_keys([pa.array([keyed(k) for k in range(KEYS)])])
    ranges = []
    for index, bounds in enumerate(BOUNDS):
        own = [k for k in range(KEYS) if bounds[0] <= groups(int(hashes[k]), GROUPS) <= bounds[1]]
        refs: list[FileRef] = []
        parent = bytes(16)
        with ps.KeyedStateBackend(
            {"k": "string"}, states=states, namespace=namespace, key_group_range=bounds
        ) as backend:
            for epoch in range(1, epochs + 1):
                if epoch < epochs or index == 0:
                    change(backend, draw, own)
                else:
                    backend.set_current_key(keyed(own[0]))
                    backend["v"].update(1)
                lineage = Lineage(bytes([epoch, index]) * 8, parent, epoch)
                path = state_path("op", *bounds, epoch, lineage.id.hex(), "delta")
                with backend.seal(lineage) as snapshot, storage.create(path) as out:
                    snapshot._block_bytes = block_bytes
                    info = snapshot.write(out)
                refs.append(FileRef.from_info(path, info))
                parent = lineage.id
            key = tuple((name, type_.ddl) for name, type_ in backend.key)
            stored = tuple((name, d.stored_as()) for name, d in backend.declarations.items())
        ranges.append(RangeState(index, *bounds, refs[-1].id, deltas=tuple(refs)))
    operator = OperatorState("op", RANGES, key, stored, tuple(ranges))
    manifest = Manifest(epochs, 0, "e", "r", 0, "h", GROUPS, 0, 0, "pystate test", (operator,))
    storage.publish(manifest.path, manifest.encode())


def by_key(rows: pa.Table) -> dict[Any, list[str]]:
    """What is said of each key, in an order of its own."""
    said: dict[Any, list[str]] = {}
    for row in rows.to_pylist():
        for name in ("map", "names"):
            if row.get(name) is not None:
                row[name] = sorted(row[name])
        said.setdefault(row["k"], []).append(str(row))
    return {key: sorted(some) for key, some in said.items()}


@pytest.fixture(params=["by the core", "by a table"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways in which rows come; the second is that of objects in a store."""
    if request.param == "by a table":
        monkeypatch.setattr(KeyRows, "of", lambda *given: None)
    return str(request.param)


def is_fast(lookup: StateLookup) -> bool:
    return lookup._read.key_rows(lookup._selection) is not None


@pytest.mark.parametrize("cache_bytes", [0, 20_000, 64 << 20])
@pytest.mark.parametrize("namespace", [None, "long"])
@pytest.mark.parametrize("seed", range(3))
@BLOCKS
def test_looked_up_is_as_read(
    tmp_path: Path, block_bytes: int, seed: int, namespace: str | None, cache_bytes: int
) -> None:
    fill(tmp_path, seed, namespace, block_bytes=block_bytes)
    draw = random.Random(seed)
    whole = ps.read_state(tmp_path)
    said = by_key(whole)
    lookup = StateLookup(tmp_path, cache_bytes=cache_bytes)
    assert lookup.schema == whole.schema
    for n in (0, 1, 1, 1, 40, 3 * KEYS):
        keys = [keyed(k) for k in draw.choices(range(2 * KEYS), k=n)]
        assert by_key(lookup.rows(keys)) == {key: said[key] for key in keys if key in said}
        got = lookup.get(keys)
        assert got.schema == whole.schema
        if namespace is not None:
            again = [key for key in keys for _ in said.get(key, ())]
            assert got["k"].to_pylist() == again
            assert {k: sorted(set(s)) for k, s in by_key(got).items()} == by_key(lookup.rows(keys))
            continue
        assert got["k"].to_pylist() == keys
        states = got.drop_columns(["k"]).to_pylist()
        for key, row, full in zip(keys, states, got.to_pylist(), strict=True):
            if key not in said:
                assert set(row.values()) == {None}
                continue
            found = pa.Table.from_pylist([full], whole.schema)
            assert by_key(found) == {key: said[key]}
    assert is_fast(lookup)


@pytest.mark.parametrize("state", sorted(STATES))
@BLOCKS
def test_one_state_alone(tmp_path: Path, state: str, block_bytes: int) -> None:
    fill(tmp_path, 4, block_bytes=block_bytes)
    whole = ps.read_state(tmp_path, state=state)
    lookup = StateLookup(tmp_path, selection=Selection(state))
    keys = [keyed(k) for k in range(KEYS)]
    assert len(whole) > 0 and by_key(lookup.rows(keys)) == by_key(whole)
    assert is_fast(lookup)


def test_namespaces_that_are_named(tmp_path: Path, way: str) -> None:
    fill(tmp_path, 3, "long")
    whole = {(row["k"], row["namespace"]): row for row in ps.read_state(tmp_path).to_pylist()}
    keys = [keyed(k) for k in range(KEYS)] * 3
    spaces = [1] * KEYS + [None] * KEYS + [1] * KEYS
    lookup = StateLookup(tmp_path)
    got = lookup.get(keys, spaces)
    assert list(zip(got["k"].to_pylist(), got["namespace"].to_pylist(), strict=True)) == list(
        zip(keys, spaces, strict=True)
    )
    found = 0
    for row in got.to_pylist():
        pair = row["k"], row["namespace"]
        if pair in whole:
            assert row == whole[pair]
            found += 1
        else:
            assert {row[name] for name in STATES} == {None}
    assert 0 < found < len(keys)
    with pytest.raises(InvalidArgumentError, match="each key has one"):
        lookup.get(keys, [1])


def test_keys_of_several_columns(tmp_path: Path, way: str) -> None:
    states = {"v": ps.ValueState("long")}
    with ps.open(
        tmp_path,
        key={"a": "double", "b": "long"},
        states=states,
        home="disk",
        limit_bytes=64 << 20,
    ) as store:
        for key, v in (((1.0, None), 1), ((None, 1), 2), ((float("nan"), 2), 3), ((0.0, 2), 4)):
            store.set_current_key(key)
            store["v"].update(v)
        store.checkpoint()
    lookup = StateLookup(tmp_path)
    a = pa.array([None, 1.0, -0.0, np.nan, None, 7.0], from_pandas=False)
    b = [1, None, 2, 2, None, 7]
    got = lookup.get([a, b])
    assert got["v"].to_pylist() == [2, 1, 4, 3, None, None]
    assert got["b"].to_pylist() == b
    rows: Any = lookup.rows([a, b])
    assert sorted(rows["v"].to_pylist()) == [1, 2, 3, 4]
    with pytest.raises(WrongTypeError, match="the key has 2 columns"):
        lookup.get([1])
    with pytest.raises(InvalidArgumentError, match="'b' has 1 values, and 'a' 6"):
        lookup.get([a, [1]])


def test_what_has_expired_is_hidden(tmp_path: Path, way: str) -> None:
    states = {
        "v": ps.ValueState("long", ttl=StateTtl(seconds=1)),
        "l": ps.ListState("long", ttl=StateTtl(seconds=1)),
        "n": ps.ValueState("long"),
    }
    given: Any = {"home": "disk", "limit_bytes": 64 << 20, "retained": 9}
    clock = Clock()
    with ps.open(tmp_path, key="long", states=states, clock=clock, **given) as store:
        for key, next_ms in ((1, 1900), (2, 2500), (4, 9000)):
            store.set_current_key(key)
            store["v"].update(key)
            store["l"].add(key)
            store["n"].update(key)
            checkpoint(store, clock, next_ms)
    early = StateLookup(tmp_path, epoch=2).get([2, 3, 1]).to_pylist()
    assert early[2] == {"key": 1, "v": 1, "l": [1], "n": 1}
    lookup = StateLookup(tmp_path)
    late = lookup.get([2, 3, 1]).to_pylist()
    assert late[0] == {"key": 2, "v": 2, "l": [2], "n": 2}
    assert late[1] == {"key": 3, "v": None, "l": None, "n": None}
    assert late[2] == {"key": 1, "v": None, "l": [], "n": 1}
    assert is_fast(lookup) == (way == "by the core")


def test_what_a_table_has_to_make_comes_in_order_too(tmp_path: Path) -> None:
    states = {"v": ps.ValueState("long"), "mean": ps.AggregatingState(ps.Mean())}
    with ps.open(tmp_path, key="long", states=states, home="disk", limit_bytes=64 << 20) as store:
        for key in range(50):
            store.set_current_key(key)
            store["mean"].add(key)
        store.checkpoint()
    lookup = StateLookup(tmp_path)
    assert lookup.get([3, 99, 4, 3])["mean"].to_pylist() == [3.0, None, 4.0, 3.0]
    assert not is_fast(lookup)
    # States that need no table do not wait for one that does.
    assert is_fast(StateLookup(tmp_path, selection=Selection("v")))


def test_get_is_of_keys(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    with pytest.raises(InvalidArgumentError, match="a row for each key"):
        StateLookup(tmp_path, selection=Selection("list", explode=True)).get(["key 1"])
    with pytest.raises(InvalidArgumentError, match="has no namespaces"):
        StateLookup(tmp_path).get(["key 1"], [1])
    with pytest.raises(WrongTypeError, match="key column 'k'"):
        StateLookup(tmp_path).get([1])
    with pytest.raises(InvalidArgumentError, match="cache_bytes"):
        StateLookup(tmp_path, cache_bytes=-1)


# -- files


@BLOCKS
def test_files_stay_open_and_blocks_in_memory(
    tmp_path: Path, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, 2, block_bytes=block_bytes)
    cache = BlockCache(4 << 20)
    lookup = StateLookup(tmp_path, cache_bytes=cache)
    keys = [keyed(k) for k in range(KEYS)]
    rows = lookup.get(keys)

    def refused(*_: Any) -> Any:
        raise AssertionError("a file was opened")

    monkeypatch.setattr(LocalStorage, "open_read", refused)
    asked, found, blocks, size, left = cache.blocks.stats()
    assert lookup.get(keys).equals(rows)
    after = cache.blocks.stats()
    assert after[1] - found == after[0] - asked > 0  # all of them were here
    assert after[2:] == (blocks, size, left) and size <= 4 << 20
    # Whoever shares them reads none of them either.
    monkeypatch.undo()
    other = StateLookup(tmp_path, cache_bytes=cache)
    assert other.get(keys).equals(rows)
    assert cache.blocks.stats()[2:] == (blocks, size, left)


@pytest.mark.parametrize("namespace", [None, "long"])
def test_what_is_at_hand_is_what_get_gives(tmp_path: Path, namespace: str | None) -> None:
    fill(tmp_path, 1, namespace)
    lookup = StateLookup(tmp_path)
    assert lookup.get_at_hand([keyed(1)]) is None  # no file is open
    for number in range(2 * KEYS):
        rows = lookup.get([keyed(number)])
        found = lookup.get_at_hand([keyed(number)])
        assert found is not None and found.equals(rows)


def test_what_is_large_is_not_at_hand(tmp_path: Path, way: str) -> None:
    with ps.open(tmp_path, home="disk", key="long", states={"s": ps.ValueState("string")}) as store:
        store["s"].update_all(store.keys(range(3)), ["small", "l" * 100_000, "m" * 50_000])
        store.checkpoint()
    lookup = StateLookup(tmp_path)
    sizes = {}
    for key in range(3):
        lookup.get([key])
        found = lookup.get_at_hand([key])
        sizes[key] = None if found is None else len(found["s"][0].as_py())
    assert sizes == (
        {0: None, 1: None, 2: None} if way == "by a table" else {0: 5, 1: None, 2: 50_000}
    )


@pytest.mark.parametrize("home", ["heap", "disk"])
def test_a_damaged_block_is_named(tmp_path: Path, home: Any) -> None:
    states = {"v": ps.ValueState("long")}
    with ps.open(tmp_path, key="long", states=states, home=home, limit_bytes=64 << 20) as store:
        keys = np.arange(1000)
        store["v"].update_all(store.keys(keys), keys)
        store.checkpoint()
    [path] = [p for p in tmp_path.rglob("*delta*") if p.is_file()]
    intact = path.read_bytes()
    warm = StateLookup(tmp_path)
    assert warm.get(keys)["v"].to_pylist() == keys.tolist()
    path.write_bytes(intact[:400] + bytes([intact[400] ^ 1]) + intact[401:])
    with pytest.raises(CorruptFileError, match=rf"{path.name}: corrupt.* byte \d+"):
        StateLookup(tmp_path).get(keys)
    # What was read before is right.
    assert warm.get(keys)["v"].to_pylist() == keys.tolist()
    path.write_bytes(intact[: len(intact) // 2])
    with pytest.raises(CorruptFileError, match=path.name):
        StateLookup(tmp_path).get(keys)


@FORKS
def test_a_forked_child_has_files_and_blocks_of_its_own(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    lookup = StateLookup(tmp_path)
    keys = [keyed(k) for k in range(KEYS)]
    rows = lookup.get(keys)
    child = os.fork()
    if child == 0:
        try:
            os._exit(not lookup.get(keys).equals(rows))
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert lookup.get(keys).equals(rows)


def test_a_lost_file_is_named(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    lookup = StateLookup(tmp_path)
    lost = max(p for p in tmp_path.rglob("*delta*") if p.is_file())
    lost.unlink()
    with pytest.raises(CheckpointError, match=f"names is missing: .*{lost.name}"):
        lookup.get(["key 1"])


# -- beside a writer


@pytest.fixture
def accounts(tmp_path: Path) -> Iterator[ps.Store]:
    """Amounts that are moved between accounts; their sum is always the same."""
    with ps.open(
        tmp_path / "s",
        key="long",
        states={"v": ps.ValueState("long")},
        home="disk",
        limit_bytes=64 << 20,
    ) as store:
        keys = np.arange(500)
        store["v"].update_all(store.keys(keys), np.full(500, 100))
        store.checkpoint()
        yield store


def test_a_look_up_reads_one_epoch(accounts: ps.Store, tmp_path: Path) -> None:
    lookup, ended = StateLookup(tmp_path / "s", cache_bytes=1 << 20), threading.Event()
    keys = list(range(500))

    def look(seed: int) -> int:
        draw, looks = random.Random(seed), 0
        while not ended.is_set() or not looks:
            some = keys[:]
            draw.shuffle(some)
            found: Any = lookup.get(some)
            assert sum(found["v"].to_pylist()) == 50_000
            assert lookup.get([some[0]])["key"].to_pylist() == [some[0]]
            looks += 1
        return looks

    with ThreadPoolExecutor(3) as threads:
        looking = [threads.submit(look, seed) for seed in range(3)]
        draw = random.Random(9)
        for _ in range(25):
            for _ in range(40):
                source, target = draw.sample(keys, 2)
                for key, change in ((source, -7), (target, 7)):
                    accounts.set_current_key(key)
                    accounts["v"].update(accounts["v"].value() + change)
            epoch = accounts.checkpoint()
            assert lookup.refresh() == epoch
        ended.set()
        assert all(each.result() for each in looking)


def test_a_refresh_opens_what_is_new_and_nothing_else(
    accounts: ps.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookup = StateLookup(tmp_path / "s")
    lookup.get([1])
    accounts.set_current_key(3)
    accounts["v"].update(-1)
    accounts.checkpoint()
    opened: list[str] = []
    real = LocalStorage.open_read

    def noted(self: LocalStorage, path: str) -> Any:
        opened.append(path)
        return real(self, path)

    monkeypatch.setattr(LocalStorage, "open_read", noted)
    lookup.refresh()
    files = [path for path in opened if path.startswith("state/")]
    assert len(files) == 1 and "/00000002-" in files[0]
    opened.clear()
    assert lookup.get([3, 4])["v"].to_pylist() == [-1, 100]
    assert not opened


def test_one_that_was_not_asked_for_keys_opens_no_file(
    accounts: ps.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookup = StateLookup(tmp_path / "s")
    made: list[Any] = []
    monkeypatch.setattr(KeyFiles, "finder", lambda *given: made.append(given))
    lookup.refresh()
    assert not made
