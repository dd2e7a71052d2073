"""Reading state beside a job that goes on."""

from __future__ import annotations

from pathlib import Path
from threading import Barrier
from typing import Any, BinaryIO

import pytest

import pystate as ps
from pystate.checkpoint.storage import LocalStorage
from pystate.errors import CheckpointError
from pystate.inspection import StateScan, read_all, read_state, scan_state
from tests.model.test_merges import KEYS, Operator, run


def values(storage: LocalStorage) -> dict[int, int]:
    return {row["k"]: row["v"] for row in read_all(storage, "op").to_pylist()}


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


def test_scan_of_an_epoch_that_is_retired_meanwhile(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    operator = Operator(storage)
    with operator.coordinator(4) as coordinator:
        head = run(coordinator, operator, [(key, "put", key) for key in range(KEYS)])
        last = head.operators[0].ranges[-1]
        reader = scan_state(tmp_path, "op")
        assert reader.schema.names[:2] == ["k", "v"]
        for ref in last.files:
            storage.delete(ref.path)
        # Rows that are gone to the caller cannot be taken back.
        with pytest.raises(CheckpointError, match=r"is missing: .* read again, or retain more"):
            list(reader)


def test_scan_that_is_dropped_reads_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = Operator(LocalStorage(tmp_path))
    with operator.coordinator(16) as coordinator:
        run(coordinator, operator, [(key, "put", key) for key in range(KEYS)])
    opened: list[str] = []
    real = LocalStorage.open_read

    def open_read(self: LocalStorage, path: str) -> BinaryIO:
        opened.append(path)
        return real(self, path)

    scan = StateScan.newest(LocalStorage(tmp_path), "op")
    monkeypatch.setattr(LocalStorage, "open_read", open_read)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    batches = scan.batches()
    first = next(batches)
    assert first.num_rows
    batches.close()
    assert len(opened) <= 4


def test_the_only_operator_needs_no_name(tmp_path: Path) -> None:
    with ps.open(tmp_path, key="long", states={"v": ps.ValueState("long")}) as store:
        store["v"].update_all(store.keys([1, 2]), [10, 20])
        store.checkpoint()
        store["v"].update_all(store.keys([1]), [0])  # not in the checkpoint
        assert sorted(ps.read_state(tmp_path)["v"].to_pylist()) == [10, 20]
        assert ps.scan_state(tmp_path).read_all().equals(ps.read_state(tmp_path))


def test_scan_after_a_change_of_parallelism(tmp_path: Path) -> None:
    rows = [(key, "put", 3 * key) for key in range(KEYS)]
    operator = Operator(LocalStorage(tmp_path))
    with operator.coordinator(3) as coordinator:
        run(coordinator, operator, rows)
    with operator.coordinator(5) as coordinator:
        run(coordinator, operator, [(1, "put", 0)])
    table = read_state(tmp_path, "op")
    assert table.equals(scan_state(tmp_path, "op").read_all())
    assert {r["k"]: r["v"] for r in table.to_pylist()} == {k: 3 * k * (k != 1) for k in range(KEYS)}
