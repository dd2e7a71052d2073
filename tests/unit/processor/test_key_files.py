"""Some keys, looked up in files: as a read of all keys has them."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pystate as ps
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.refs import FileRef, OperatorState, RangeState, state_path
from pystate.checkpoint.state_files import FileInfo, Lineage, open_file
from pystate.checkpoint.storage import LocalStorage
from pystate.errors import CheckpointError, CorruptFileError, InvalidArgumentError
from pystate.processor import key_files
from pystate.processor.lookup import StateLookup
from pystate.processor.selection import Selection
from tests.unit.processor.changes import change, keyed

STATES: dict[str, Any] = {
    "v": ps.ValueState("long", default=0),
    "text": ps.ValueState("string"),
    "pair": ps.ValueState("struct<a: long, b: array<string>>"),
    "list": ps.ListState("string"),
    "map": ps.MapState("long", "double"),
    "mean": ps.AggregatingState(ps.Mean()),
    "most": ps.ReducingState("long", max),
    "thing": ps.ValueState(object),
}
KEYS = 80


def published(folder: Path, backend: ps.KeyedStateBackend, files: list[str]) -> None:
    """Publish the files of one range, which are in order, as the only epoch of a checkpoint."""
    storage, refs = LocalStorage(folder), []
    for path in files:
        with open_file(str(folder / path)) as opened:
            info = FileInfo(*opened.reader.info())._replace(checksum=opened.checksum())
        refs.append(FileRef.from_info(path, info))
    key = tuple((name, type_.ddl) for name, type_ in backend.key)
    stored = tuple((name, d.stored_as()) for name, d in backend.declarations.items())
    state = RangeState(0, 0, 127, refs[-1].id, deltas=tuple(refs))
    operator = OperatorState("op", 1, key, stored, (state,), timers=True)
    manifest = Manifest(len(files), 0, "e", "r", 0, "h", 128, 0, 0, "pystate test", (operator,))
    storage.publish(manifest.path, manifest.encode())


def fill(folder: Path, seed: int, namespace: str | None) -> None:
    """Write epochs of one operator, some of whose files have guides."""
    draw, storage = random.Random(seed), LocalStorage(folder)
    files, parent = [], bytes(16)
    with ps.KeyedStateBackend(
        {"k": "string"}, states=STATES, namespace=namespace, timers=True
    ) as backend:
        for epoch in range(1, 7):
            change(backend, draw, range(KEYS), timers=True)
            lineage = Lineage(bytes([epoch]) * 16, parent, epoch)
            path, parent = state_path("op", 0, 127, epoch, lineage.id.hex(), "delta"), lineage.id
            with backend.seal(lineage) as snapshot, storage.create(path) as out:
                snapshot._block_bytes = draw.choice([0, 4096, 4096, 4096])
                snapshot.write(out)
            files.append(path)
        published(folder, backend, files)


def sorted_rows(table: pa.Table) -> list[str]:
    return sorted(map(str, table.to_pylist()))


@pytest.mark.parametrize("namespace", [None, "long"])
@pytest.mark.parametrize("seed", range(6))
def test_looked_up_is_as_read(
    tmp_path: Path, seed: int, namespace: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, seed, namespace)
    if seed % 2:
        monkeypatch.setattr(key_files, "KEYS", 5)
        monkeypatch.setattr(key_files, "MOST_BYTES", 3000)
    draw = random.Random(seed)
    lookup = StateLookup(tmp_path)
    for asked in ({}, {"state": "list"}, {"state": "v"}, {"timers": True}, {"accumulators": True}):
        whole = ps.read_state(tmp_path, **asked)
        for n in (0, 1, 30, 2 * KEYS):
            keys = [keyed(k) for k in draw.choices(range(2 * KEYS), k=n)]
            wanted = [row for row in whole.to_pylist() if row["k"] in keys]
            found = ps.read_state(tmp_path, keys=keys, **asked)
            assert found.schema == whole.schema
            assert sorted_rows(found) == sorted(map(str, wanted))
            if not asked:
                assert sorted_rows(lookup.rows(keys)) == sorted(map(str, wanted))
    assert lookup.epoch == 6 and lookup.schema == ps.read_state(tmp_path).schema


def test_namespaces_that_are_named(tmp_path: Path) -> None:
    fill(tmp_path, 3, "long")
    whole = ps.read_state(tmp_path).to_pylist()
    keys = [f"key {k}" for k in range(KEYS)] * 2
    spaces = [1] * KEYS + [None] * KEYS
    pairs = set(zip(keys, spaces, strict=True))
    wanted = [row for row in whole if (row["k"], row["namespace"]) in pairs]
    lookup = StateLookup(tmp_path, selection=Selection())
    assert 0 < len(wanted) < len(whole)
    assert sorted_rows(lookup.rows(keys, spaces)) == sorted(map(str, wanted))
    with pytest.raises(InvalidArgumentError, match="each key has one"):
        lookup.rows(keys, [1])


@pytest.mark.parametrize("namespace", [None, "long"])
@pytest.mark.parametrize("block_bytes", [0, 4096])
def test_keys_with_the_same_hash_are_told_apart(
    tmp_path: Path, namespace: str | None, block_bytes: int
) -> None:
    """As a null leaves a hash as it is, it does not matter which of two columns is null."""
    path = state_path("op", 0, 127, 1, "0" * 32, "delta")
    states = {"v": ps.ValueState("long"), "l": ps.ListState("long")}
    with ps.KeyedStateBackend(
        {"a": "long", "b": "long"}, states=states, namespace=namespace, timers=True
    ) as backend:
        for key in ((1, None), (None, 1), (2, 2), (None, None)):
            backend.set_current_key(key)
            for space in (None, 5) if namespace else (None,):
                if namespace:
                    backend.set_current_namespace(space)
                backend["v"].update(len(str(key)))
                backend["l"].add_all([1, 2])
        with backend.seal() as snapshot, LocalStorage(tmp_path).create(path) as out:
            snapshot._block_bytes = block_bytes
            snapshot.write(out)
        published(tmp_path, backend, [path])
    for column in ([1, 2], [None, None]), ([None], [1]), ([1, None, 7], [None, 1, 7]):
        found = ps.read_state(tmp_path, keys=list(column)).to_pylist()
        pairs = {pair for pair in zip(*column, strict=True) if pair not in ((2, None), (7, 7))}
        assert {(row["a"], row["b"]) for row in found} == pairs
        assert len(found) == len(pairs) * (2 if namespace else 1)
        assert all(row["l"] == [1, 2] for row in found)


@pytest.mark.parametrize("seed", range(3))
def test_changes_of_some_keys_are_those_of_all(tmp_path: Path, seed: int) -> None:
    draw, states = (
        random.Random(seed),
        {"n": ps.ValueState("long"), "m": ps.MapState("long", "int")},
    )
    with ps.open(
        tmp_path, key="long", states=states, retained=50, home="disk", limit_bytes=64 << 20
    ) as store:
        for _ in range(6):
            for key in draw.choices(range(40), k=15):
                store.set_current_key(key)
                if draw.random() < 0.3:
                    store.delete(store.keys([key]))
                    continue
                store["n"].update(draw.randrange(3))
                store["m"].put(draw.randrange(3), draw.randrange(3))
            store.checkpoint()
    keys = draw.sample(range(60), 20)
    for first, last in ((0, 3), (1, 6), (2, 4), (5, 6)):
        whole = ps.changes(tmp_path, from_epoch=first, to_epoch=last).to_pylist()
        some = ps.changes(tmp_path, from_epoch=first, to_epoch=last, keys=keys)
        assert sorted_rows(some) == sorted(str(row) for row in whole if row["key"] in keys)


# -- beside a job


@pytest.fixture(params=["heap", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    more = {"limit_bytes": 64 << 20} if request.param == "disk" else {}
    with ps.open(
        tmp_path / "s", key="long", states={"v": ps.ValueState("long")}, home=request.param, **more
    ) as opened:
        yield opened


def put(store: Any, number: int) -> None:
    keys = np.arange(1000)
    store["v"].update_all(store.keys(keys), keys + number)
    store.checkpoint()


def test_files_that_are_removed_meanwhile(store: Any, tmp_path: Path) -> None:
    put(store, 0)
    folder = tmp_path / "s"
    lookup, late, fixed = StateLookup(folder), StateLookup(folder), StateLookup(folder, epoch=1)
    assert lookup.rows([3, 5000])["v"].to_pylist() == [3]
    for number in range(1, 40):
        put(store, number)
    # What was not open any more is looked up in the newest epoch, unless another one was asked for.
    assert late.epoch == 1 and late.rows([4])["v"].to_pylist() == [43] and late.epoch > 1
    with pytest.raises(CheckpointError, match="names is missing"):
        fixed.rows([3])
    # Files that are open read on.
    assert lookup.rows([4])["v"].to_pylist() == [4]
    lookup.refresh()
    assert sorted(lookup.rows([4, 5])["v"].to_pylist()) == [43, 44]


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    fill(tmp_path, 1, None)
    lookup = StateLookup(tmp_path)
    lost = max(p for p in tmp_path.rglob("*delta*") if p.is_file())
    lost.unlink()
    with pytest.raises(CheckpointError, match=f"names is missing: .*{lost.name}"):
        lookup.rows(["key 1"])


def test_open_files_are_shared_by_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, 2, None)
    opened: list[str] = []
    real = LocalStorage.open_read

    def noted(self: LocalStorage, path: str) -> Any:
        opened.append(path)
        return real(self, path)

    lookup = StateLookup(tmp_path)
    files = lookup._files
    lookup.rows(["key 1"])
    monkeypatch.setattr(LocalStorage, "open_read", noted)
    lookup.rows(["key 2"])
    assert not opened and all(known.guided is not None for known in files._known.values())
    lookup.refresh()
    assert len(files._known) == 6
    files.forget()
    assert not files._known


def test_a_forked_child_opens_files_of_its_own(tmp_path: Path) -> None:
    fill(tmp_path, 2, None)
    lookup = StateLookup(tmp_path)
    keys = [f"key {k}" for k in range(KEYS)]
    rows = sorted_rows(lookup.rows(keys))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of processes with threads
        child = os.fork()
    if child == 0:
        try:
            os._exit(sorted_rows(lookup.rows(keys)) != rows)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert sorted_rows(lookup.rows(keys)) == rows


@pytest.mark.parametrize("home", ["heap", "disk"])
def test_a_damaged_block_is_named(tmp_path: Path, home: Any) -> None:
    with ps.open(
        tmp_path, key="long", states={"v": ps.ValueState("long")}, home=home, limit_bytes=64 << 20
    ) as store:
        put(store, 0)
    [path] = [p for p in tmp_path.rglob("*delta*") if p.is_file()]
    data = bytearray(path.read_bytes())
    data[400] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptFileError, match=rf"{path.name}: corrupt.* byte \d+"):
        ps.read_state(tmp_path, keys=range(1000))


# -- memory

_LOOK_UP = """
import contextlib, json, sys, numpy as np
from pathlib import Path
from pystate.processor.lookup import StateLookup
with contextlib.suppress(ImportError):
    import pandas  # which pyarrow imports when it converts

def peak():
    [line] = [l for l in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in l]
    return int(line.split()[1]) << 10

folder, rows, batches, cache_bytes = sys.argv[1], *map(int, sys.argv[2:])
base, draw, wrong = peak(), np.random.default_rng(7), 0
lookup = StateLookup(folder, cache_bytes=cache_bytes)
for n in [1000] * batches + [100_000]:
    keys = np.unique(draw.integers(0, 2 * rows, n))
    found = lookup.rows(keys)
    there = keys[keys < rows]
    order = np.argsort(found["key"].to_numpy())
    wrong += not np.array_equal(found["key"].to_numpy()[order], there)
    wrong += not np.array_equal(found["v"].to_numpy()[order], 3 * there)
print(json.dumps([wrong, peak() - base]))
"""


@pytest.mark.parametrize(
    ("rows", "batches"), [(300_000, 3), pytest.param(10_000_000, 100, marks=pytest.mark.slow)]
)
def test_random_keys_in_little_memory(tmp_path: Path, rows: int, batches: int) -> None:
    """However many rows there are, it takes less than 64 MB beside the blocks that are kept."""
    cache_bytes = rows * 2
    with ps.open(
        tmp_path / "s",
        key="long",
        states={"v": ps.ValueState("long")},
        home="disk",
        limit_bytes=128 << 20,
    ) as store:
        for first in range(0, rows, 250_000):
            keys = np.arange(first, min(rows, first + 250_000))
            store["v"].update_all(store.keys(keys), 3 * keys)
            if first % 1_000_000 == 0:
                store.checkpoint()
        store.checkpoint()
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            _LOOK_UP,
            str(tmp_path / "s"),
            *map(str, (rows, batches, cache_bytes)),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    wrong, grown = json.loads(done.stdout)
    assert wrong == 0
    assert grown < cache_bytes + (64 << 20)
