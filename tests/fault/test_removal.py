"""Files are removed in an order in which no manifest is ever there without its part."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import pystate as ps
from pystate.checkpoint.manifest import manifest_epoch, read_manifest
from pystate.checkpoint.manifest_log import History, retained_manifests
from pystate.checkpoint.parts import MANIFESTS, part_epoch
from pystate.checkpoint.storage import CheckpointStorage, LocalStorage
from pystate.epochs.housekeeping import Housekeeping
from pystate.epochs.retention import delete_files, delete_orphans, find_orphans
from pystate.errors import CheckpointError, FencedError
from tests.work import Cut, Work, cuts, read


def retired(root: Path, monkeypatch: pytest.MonkeyPatch) -> Work:
    """A checkpoint whose driver has retired epochs, and ended before it removed anything.

    Its only retained epoch has another part than those.
    """
    work = Work(root)
    with monkeypatch.context() as patched:
        patched.setattr(Housekeeping, "remove", lambda self, paths: None)
        patched.setattr(Housekeeping, "finish", lambda self: None)
        for parallelism in (48, 40):
            work.some(3, parallelism=parallelism, retained=1)
    assert len(retained_manifests(work.storage).leftovers) == 5
    return work


def collect(storage: CheckpointStorage) -> int:
    later = max(entry.modified_ms for entry in storage.list("")) + 1_000_000
    orphans = find_orphans(
        storage,
        term=2,
        grace_ms=0,
        live=frozenset,
        check_owner=lambda: None,
        now_ms=later,
    )
    return delete_orphans(storage, orphans)


def check(storage: CheckpointStorage) -> int:
    """Every manifest that is there has its part; returns their number."""
    manifests = [e.path for e in storage.list(MANIFESTS) if manifest_epoch(e.path) is not None]
    for path in manifests:
        assert read_manifest(storage, path).path == path
    return len(manifests)


def test_a_search_that_is_killed_leaves_no_manifest_without_its_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = retired(tmp_path / "ck", monkeypatch)
    parts = [e.path for e in work.storage.list(MANIFESTS) if part_epoch(e.path) is not None]
    assert len(parts) == 2 and check(work.storage) == 6

    def act(storage: Cut) -> None:
        shutil.copytree(work.root, storage.uri, copy_function=os.link)
        collect(storage)

    left = set()
    for number, cut in enumerate(cuts(tmp_path / "cuts", act)):
        storage = LocalStorage(tmp_path / "cuts" / str(number))
        left.add(check(storage))
        if not cut:
            assert read(Path(storage.uri)) == work.counts
            kept = {e.path for e in storage.list(MANIFESTS) if part_epoch(e.path) is not None}
            assert len(kept) == 1 and ps.verify(storage.uri).ok
    assert left == {6, 5, 4, 3, 2, 1}


def test_a_manifest_that_cannot_be_removed_keeps_its_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = retired(tmp_path / "ck", monkeypatch)
    delete = LocalStorage.delete

    def refused(self: LocalStorage, path: str) -> bool:
        if path.endswith("00000003.manifest"):
            raise CheckpointError(f"{path}: the store is down")
        return delete(self, path)

    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "delete", refused)
        collect(work.storage)
        assert check(work.storage) == 4
        with work.coordinator(parallelism=40, retained=1) as driver:
            work.run(driver, {1: 1})
            work.run(driver, {1: 1})
            driver.maintain()
        check(work.storage)
    assert collect(work.storage) > 0
    assert check(work.storage) == 1


def test_a_reader_that_is_overtaken_is_told_that_the_epoch_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read a manifest, which then goes with its part."""
    work = Work(tmp_path / "ck").some(3, parallelism=48)
    real = LocalStorage.read_bytes
    gone: list[Any] = []

    def read_bytes(self: LocalStorage, path: str) -> bytes:
        data = real(self, path)
        if path.endswith("00000003.manifest"):
            parts = [e.path for e in self.list(MANIFESTS) if part_epoch(e.path) is not None]
            gone.append(delete_files(self, [path, *parts]))
        return data

    monkeypatch.setattr(LocalStorage, "read_bytes", read_bytes)
    history = History(work.storage)
    with pytest.raises(FencedError, match="retired by another driver"):
        history.manifest(3)
    assert gone
