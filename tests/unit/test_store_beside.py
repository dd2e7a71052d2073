"""Merges of a store on disk that run beside its batches."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import pystate as ps
from pystate.checkpoint.refs import FileRef
from pystate.epochs.merge_beside import MergeBeside
from pystate.epochs.merges import merge_range
from pystate.errors import CheckpointError
from pystate.store import Store
from tests.unit.test_store import names

STATES = {"n": ps.ValueState("long", default=0)}


class Merges:
    """Merges that begin and wait; `go_on` lets them end."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.go_on = threading.Event()
        self.begun: list[str] = []
        self.error: Exception | None = None
        self._whole = merge_range
        patch.setattr("pystate.store.merge_range", self._merge)
        patch.setattr("pystate.store._BESIDE_BYTES", 0)

    def _merge(self, *args: Any, given_up: threading.Event | None = None, **named: Any) -> FileRef:
        self.begun.append(named["kind"] if given_up is None else f"{named['kind']} beside")
        if given_up is not None:
            while not self.go_on.wait(0.01) and not given_up.is_set():
                pass
            if self.error is not None:
                raise self.error
        return self._whole(*args, given_up=given_up, **named)


@pytest.fixture
def merges(monkeypatch: pytest.MonkeyPatch) -> Merges:
    return Merges(monkeypatch)


def opened(folder: Path) -> Store:
    return ps.open(folder, key="long", states=STATES, home="disk", limit_bytes=1 << 20, retained=1)


def change(store: Store, first: int, count: int = 100) -> None:
    store["n"].add(store.keys(range(first, first + count)), 1)
    store.checkpoint()


def beside(store: Store) -> MergeBeside | None:
    return store._beside


def ended(store: Store) -> FileRef | None:
    """What a merge beside has made, once it has ended."""
    running = beside(store)
    assert running is not None
    return running.wait()


def begin(store: Store, merges: Merges) -> int:
    """Make a base, and deltas until a merge of them runs; returns how often keys were changed."""
    change(store, 0, 4000)
    times = 1
    while "base beside" not in merges.begun:
        change(store, 0, 400)
        times += 1
    return times


def test_batches_go_on_beside_a_merge(tmp_path: Path, merges: Merges) -> None:
    with opened(tmp_path) as store:
        times = begin(store, merges)
        files = store._range.files
        for _ in range(3):
            change(store, 0, 10)
        assert store._range.files[: len(files)] == files and len(store._range.files) > len(files)
        assert store["n"].values(store.keys([0, 399, 3999])).to_pylist() == [times + 3, times, 1]
        merges.go_on.set()
        merged = ended(store)
        assert merged is not None
        change(store, 0, 10)
        assert beside(store) is None
        assert store._range.files[0].path == merged.path and len(store._range.files) == 5
        change(store, 0, 10)  # what was merged is retired with the manifest before, and goes
        assert names(tmp_path, "state") >= {merged.path}
        assert not names(tmp_path, "state") & {ref.path for ref in files}
        [*_, adopting, _] = ps.history(tmp_path).records
        assert adopting.merged_bytes == merged.file_bytes
    assert ps.verify(tmp_path).ok
    with opened(tmp_path) as store:
        assert store["n"].values(store.keys([0, 399, 3999])).to_pylist() == [times + 5, times, 1]


def test_many_deltas_become_one_meanwhile(tmp_path: Path, merges: Merges) -> None:
    with opened(tmp_path) as store:
        begin(store, merges)
        for at in range(12):
            change(store, at, 1)
        assert merges.begun[-1] == "delta" and merges.begun.count("base beside") == 1
        merges.go_on.set()
        assert ended(store) is not None
        change(store, 0, 1)
        assert beside(store) is None and store._range.depth < 8
        assert len(store) == 4000


def test_who_would_get_too_far_ahead_waits(tmp_path: Path, merges: Merges) -> None:
    with opened(tmp_path) as store:
        begin(store, merges)
        timer = threading.Timer(0.2, merges.go_on.set)
        timer.start()
        change(store, 0, 4000)
        assert merges.go_on.is_set() and beside(store) is None
        assert [ref.kind for ref in store._range.files] == ["base", "delta"]
        timer.join()


def test_the_first_merge_is_awaited(tmp_path: Path, merges: Merges) -> None:
    """A store may be opened for one checkpoint each time."""
    for at in range(9):
        with opened(tmp_path) as store:
            change(store, at, 100)
    assert merges.begun and not any("beside" in kind for kind in merges.begun)


def test_a_merge_that_runs_is_given_up_at_the_end(tmp_path: Path, merges: Merges) -> None:
    with opened(tmp_path) as store:
        begin(store, merges)
        named = {ref.path for ref in store._range.files}
    assert names(tmp_path, "state") <= named | set(store._retired.paths)
    with opened(tmp_path) as store:
        assert beside(store) is None and len(store) == 4000


def test_a_merged_file_that_nothing_names_goes(tmp_path: Path, merges: Merges) -> None:
    with opened(tmp_path) as store:
        begin(store, merges)
        merges.go_on.set()
        merged = ended(store)
        assert merged is not None and merged.path in names(tmp_path, "state")
    assert merged.path not in names(tmp_path, "state")


def test_a_manifest_that_may_be_there_keeps_its_files(
    tmp_path: Path, merges: Merges, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise CheckpointError("the storage is gone")

    with opened(tmp_path) as store:
        times = begin(store, merges)
        merges.go_on.set()
        merged = ended(store)
        assert merged is not None
        with monkeypatch.context() as patch:
            patch.setattr(store._storage, "publish", fails)
            with pytest.raises(CheckpointError):
                change(store, 0, 10)
        assert store._range.files[0].path != merged.path
    assert merged.path in names(tmp_path, "state")
    with opened(tmp_path) as store:
        assert merged.path not in names(tmp_path, "state")
        assert store["n"].values(store.keys([0])).to_pylist() == [times]


def test_a_merge_that_fails_is_made_by_a_checkpoint(tmp_path: Path, merges: Merges) -> None:
    with opened(tmp_path) as store:
        begin(store, merges)
        merges.error = CheckpointError("a file is lost")
        merges.go_on.set()
        assert ended(store) is None
        change(store, 0, 10)
        assert merges.begun[-1] == "base" and beside(store) is None
        assert [ref.kind for ref in store._range.files] == ["base"]
        assert len(store) == 4000


def test_the_first_merge_of_a_large_store_is_beside_until_many_wait(
    tmp_path: Path, merges: Merges, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as store:
        change(store, 0, 400)
    monkeypatch.setattr("pystate.store._FIRST_BESIDE_BYTES", 1)
    times = 1
    while not merges.begun or merges.begun[-1].endswith("beside"):
        assert times < 200
        with opened(tmp_path) as store:
            change(store, 0, 10)  # closed, it gives the merge up
        times += 1
    assert any(kind.endswith("beside") for kind in merges.begun)
    with opened(tmp_path) as store:
        assert store["n"].values(store.keys([0, 399])).to_pylist() == [times, 1]
