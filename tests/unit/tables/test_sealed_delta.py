"""A sealed epoch is written once, and looked up in memory until it is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import pystate as ps
from pystate.checkpoint.state_files import Lineage, open_file
from pystate.checkpoint.storage import LocalStorage
from pystate.errors import ClosedError, NoSpaceError
from pystate.tables.sealed_delta import SealedDelta

PATH = "state/embedded/0-127/00000001-00.delta"


@pytest.fixture
def delta() -> Iterator[SealedDelta]:
    with ps.KeyedStateBackend("long", states={"n": ps.ValueState("long")}) as backend:
        backend.set_current_key(1)
        backend["n"].update(7)
        sealed = SealedDelta(backend.seal(Lineage(bytes([1] * 16), bytes(16), 1)), 1)
        yield sealed
        sealed.close()


def checked_bytes(path: str) -> int:
    """The size of a state file, which has one row."""
    with open_file(path) as file:
        assert sum(file.reader.count()) == 1
    return os.stat(path).st_size


def test_its_file_is_written_once(tmp_path: Path, delta: SealedDelta) -> None:
    storage = LocalStorage(tmp_path)
    ref = delta.write(storage, PATH)
    assert delta.local_path(storage) == str(tmp_path / PATH)
    assert checked_bytes(delta.local_path(storage)) == ref.file_bytes
    os.unlink(tmp_path / PATH)
    assert delta.write(storage, PATH) is ref and not (tmp_path / PATH).exists()
    with pytest.raises(ClosedError):
        delta.snapshot.write(None)  # type: ignore[arg-type]


def test_it_is_in_memory_until_there_is_room(
    tmp_path: Path, delta: SealedDelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage(tmp_path)

    def full(*_: object) -> object:
        raise NoSpaceError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(storage, "create", full)
        with pytest.raises(NoSpaceError):
            delta.write(storage, PATH)
        assert delta.held_bytes == 0
        held = delta.local_path(storage)
        assert delta.held_bytes == checked_bytes(held)
        assert delta.local_path(storage) == held
        with pytest.raises(NoSpaceError):
            delta.write(storage, PATH)
        data = Path(held).read_bytes()
    ref = delta.write(storage, PATH)
    assert (tmp_path / PATH).read_bytes() == data and ref.file_bytes == len(data)
    assert delta.held_bytes == 0 and not os.path.exists(held)
