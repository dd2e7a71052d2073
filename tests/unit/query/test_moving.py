"""What becomes of a reader whose checkpoint changes under it, or is not as it should be."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pystate as ps
from pystate.checkpoint.job_file import REPAIR_FILE
from pystate.checkpoint.manifest import FORMAT_VERSION, manifest_path, read_manifest
from pystate.checkpoint.manifest_log import set_back
from pystate.checkpoint.metadata import encode_document
from pystate.checkpoint.storage import LocalStorage
from pystate.errors import (
    CheckpointError,
    CorruptFileError,
    InUseError,
    InvalidArgumentError,
    NewerFormatError,
    NotReachedError,
)
from pystate.processor.epochs import missing_file
from pystate.query import connection
from tests.readers import Connect

UID = "embedded"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ps.Store]:
    states = {"n": ps.ValueState("long")}
    with ps.open(tmp_path / "store", key="long", states=states, retained=1) as store:
        change(store, 1)
        yield store


def change(store: ps.Store, n: int) -> int:
    store["n"].update_all(store.keys(range(200)), n)
    return store.checkpoint()


def change_until_files_are_gone(store: ps.Store) -> int:
    """Change all keys until a merge has replaced the first files."""
    first = {path.name for path in Path(store.path).rglob("*.delta")}
    epoch = 0
    while first & {path.name for path in Path(store.path).rglob("*.delta")}:
        epoch = change(store, store.epoch + 1)
    return epoch


def storage_of(store: ps.Store) -> LocalStorage:
    return LocalStorage(store.path)


def test_a_reader_moves_by_itself_where_its_files_are_gone(
    store: ps.Store, caplog: pytest.LogCaptureFixture, connect: Connect
) -> None:
    with connect(store.path) as reader, caplog.at_level(logging.WARNING, "pystate"):
        operator = reader[UID]
        assert reader.epoch == 1  # and none of its files is open
        epoch = change_until_files_are_gone(store)
        assert reader.epoch == 1
        assert operator.get([7])["n"].to_pylist() == [epoch]
        assert reader.epoch == epoch
        assert f"epoch 1 was retired while it was read: epoch {epoch} is read from now on" in (
            caplog.text
        )
        after = change_until_files_are_gone(store)
        assert set(operator.scan().read_all()["n"].to_pylist()) == {after} == {reader.epoch}


def test_a_pinned_reader_says_that_its_epoch_is_gone(store: ps.Store, connect: Connect) -> None:
    with connect(store.path) as reader, connect(store.path, epoch=1) as pinned:
        first = reader.at(1)
        epoch = change_until_files_are_gone(store)
        for gone in (first, pinned):
            message = f"does not hold epoch 1; it has {epoch} to {epoch}.*pinned to epoch 1"
            with pytest.raises(CheckpointError, match=message):
                gone[UID].get([7])
        assert reader.refresh() == epoch
        with pytest.raises(InvalidArgumentError, match="does not hold epoch 1; it has"):
            reader.at(1)


def test_a_reader_moves_once_in_a_call(store: ps.Store) -> None:
    with ps.connect(store.path) as reader:

        def lost(view: Any) -> Any:
            change(store, 1)
            raise missing_file(storage_of(store), view.epoch, "x")

        with pytest.raises(
            CheckpointError, match="epoch 1 was retired while it was read, and so was epoch 2"
        ):
            reader._place.read(lost)


def test_a_file_that_is_lost_for_good_is_named(store: ps.Store, connect: Connect) -> None:
    with connect(store.path) as reader:
        [file] = Path(store.path).rglob("*.delta")
        file.unlink()
        with pytest.raises(CheckpointError, match=rf"names is missing.*{file.name}"):
            reader[UID].get([7])


def test_a_scan_that_has_given_rows_says_that_the_rest_is_gone(
    store: ps.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PART_BYTES", 1)
    with ps.connect(store.path) as reader:
        rows = reader[UID].scan()
        rows.read_next_batch()
        change_until_files_are_gone(store)
        with pytest.raises(CheckpointError, match="epoch 1 was retired while its rows were read"):
            rows.read_all()


def test_a_manifest_of_a_later_version(store: ps.Store, connect: Connect) -> None:
    storage = storage_of(store)
    with connect(store.path) as reader:
        storage.publish(manifest_path(2), encode_document("manifest", FORMAT_VERSION + 1, {}))
        for act in (reader.refresh, lambda: connect(store.path), lambda: reader.at(2)):
            with pytest.raises(NewerFormatError, match=r"00000002.manifest.*upgrade pystate"):
                act()
        assert reader[UID].get([7])["n"].to_pylist() == [1]


def test_a_damaged_manifest(store: ps.Store, connect: Connect) -> None:
    path = Path(store.path) / manifest_path(1)
    path.write_bytes(path.read_bytes()[:-9] + b"123456789")
    with pytest.raises(CorruptFileError, match=r"00000001.manifest"):
        connect(store.path)


def test_a_checkpoint_that_is_being_repaired(store: ps.Store, connect: Connect) -> None:
    storage = storage_of(store)
    with connect(store.path) as reader:
        storage.publish(REPAIR_FILE, encode_document("repairing", 1, {"folder": "x"}))
        for act in (reader.refresh, lambda: connect(store.path)):
            with pytest.raises(InUseError, match=r"is being repaired \(repair.json is there\)"):
                act()
        assert reader[UID].get([7])["n"].to_pylist() == [1]
        other = replace(read_manifest(storage, manifest_path(1)), created_ms=5)
        storage.replace(other.path, other.encode())
        storage.delete(REPAIR_FILE)
        assert reader.refresh() == 1
        [published] = reader.epochs()["published"].to_pylist()
        assert published is not None and published.timestamp() == 0.005


def test_a_repair_takes_the_reader_back(tmp_path: Path, connect: Connect) -> None:
    with ps.open(tmp_path, key="long", states={"n": ps.ValueState("long")}) as store:
        for n in (1, 2, 3):
            change(store, n)
    storage = LocalStorage(tmp_path)
    with connect(tmp_path) as reader:
        assert reader[UID].get([7])["n"].to_pylist() == [3]
        set_back(storage, read_manifest(storage, manifest_path(2)))
        storage.delete(manifest_path(3))
        storage.remove_folder("history")
        assert reader.refresh() == 2
        assert reader[UID].get([7])["n"].to_pylist() == [2]


def test_places_that_are_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no checkpoint: give the folder"):
        ps.connect(tmp_path)
    with pytest.raises(CheckpointError, match="does not hold epoch 4; it has none"):
        ps.connect(tmp_path, epoch=4)
    with pytest.raises(InvalidArgumentError, match="a token is for a server"):
        ps.connect(tmp_path, token="x")


def test_what_somebody_wrote_is_waited_for(store: ps.Store, connect: Connect) -> None:
    with connect(store.path) as reader:
        assert reader.wait_for(epoch=1) == 1
        epoch = change(store, 5)
        assert reader.wait_for(epoch=epoch) == epoch == reader.epoch
        assert reader.wait_for(position=("embedded", epoch)) == epoch
        with pytest.raises(NotReachedError, match=f"epoch {epoch + 1} was not published within 20"):
            reader.wait_for(epoch=epoch + 1, timeout=20)
        with pytest.raises(InvalidArgumentError, match="pinned to epoch"):
            reader.at(epoch).wait_for(epoch=epoch + 1)
