"""Reading state beside a job that goes on."""

from __future__ import annotations

from pathlib import Path
from threading import Barrier
from typing import Any, BinaryIO

import pytest

from pystate.errors import CheckpointError
from pystate.spark.inspection import read_state
from pystate.storage import LocalStorage
from tests.model.test_merges import Operator, run


def values(storage: LocalStorage) -> dict[int, int]:
    return {row["k"]: row["v"] for row in read_state(storage, "op").to_pylist()}


@pytest.mark.parametrize("often", [1, 3])
def test_epochs_that_are_retired_while_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, often: int
) -> None:
    storage = LocalStorage(tmp_path)
    operator = Operator(LocalStorage(tmp_path))
    real, moved = LocalStorage.open_read, []

    def open_read(self: LocalStorage, path: str) -> BinaryIO:
        if self is storage and path.startswith("state/") and len(moved) < often:
            moved.append(path)
            for number in range(4):
                run(coordinator, operator, [(1, "put", 10 * len(moved) + number)])
            assert not storage.exists(path)
        return real(self, path)

    with operator.coordinator(1) as coordinator:
        for number in range(2):
            run(coordinator, operator, [(1, "put", number)])
        monkeypatch.setattr(LocalStorage, "open_read", open_read)
        assert values(storage) == {1: 10 * often + 3}


def test_lost_file_is_named(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    operator = Operator(storage)
    with operator.coordinator(1) as coordinator:
        head = run(coordinator, operator, [(1, "put", 1)])
    [lost] = head.paths
    storage.delete(lost)
    with pytest.raises(CheckpointError, match=f"that {head.path} names is missing: .*{lost}"):
        values(storage)


def test_driver_that_is_always_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(tmp_path)
    operator = Operator(LocalStorage(tmp_path))

    def open_read(self: LocalStorage, path: str) -> Any:
        if self is storage and path.startswith("state/"):
            run(coordinator, operator, [(1, "put", 1)])
            raise FileNotFoundError(2, "gone", path)
        return real(self, path)

    real = LocalStorage.open_read
    with operator.coordinator(1) as coordinator:
        run(coordinator, operator, [(1, "put", 1)])
        monkeypatch.setattr(LocalStorage, "open_read", open_read)
        with pytest.raises(CheckpointError, match="each of 10 epochs was retired"):
            values(storage)


def test_ranges_are_read_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(tmp_path)
    operator = Operator(LocalStorage(tmp_path))
    together, real = Barrier(2, timeout=30), LocalStorage.open_read
    rows = [(key, "put", 2 * key) for key in range(20)]
    with operator.coordinator(2) as coordinator:
        [first, second] = [
            state.files[0].path for state in run(coordinator, operator, rows).operators[0].ranges
        ]
    opened: list[str] = []

    def open_read(self: LocalStorage, path: str) -> BinaryIO:
        # The first file is opened once before, for what it says of namespaces.
        if path.startswith("state/"):
            opened.append(path)
            if len(opened) > 1:
                together.wait()
        return real(self, path)

    monkeypatch.setattr(LocalStorage, "open_read", open_read)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert values(storage) == {key: 2 * key for key in range(20)}
    assert opened[0] == first and sorted(opened[1:]) == sorted([first, second])
