"""Who owns a checkpoint, whether that driver still runs, and how its stream is taken over."""

from __future__ import annotations

import multiprocessing
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from pystate.checkpoint.storage import LocalStorage
from pystate.epochs import ownership
from pystate.epochs.ownership import (
    Owner,
    Ownership,
    await_streams,
    current_owner,
    forget_stream,
    is_running,
    note_stream,
)


def _own(root: str) -> None:
    Ownership(LocalStorage(root), "other").acquire()
    os._exit(0)


def test_a_driver_runs_until_it_closes_or_ends(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    own = Ownership(storage, "own")
    own.acquire()
    owner = current_owner(storage)
    assert owner is not None and is_running(storage, owner) is True
    assert is_running(storage, replace(owner, host="elsewhere")) is None
    # The process of that number began after the driver.
    assert is_running(storage, replace(owner, started_ms=1)) is False
    own.close()
    assert is_running(storage, owner) is False
    assert is_running(storage, replace(owner, host="elsewhere")) is False
    other = multiprocessing.get_context("fork").Process(target=_own, args=(str(tmp_path),))
    other.start()
    other.join()
    killed = current_owner(storage)
    assert killed is not None and killed.term == 2 and is_running(storage, killed) is False


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "ck")


def owner(storage: LocalStorage, name: str) -> Ownership:
    made = Ownership(storage, name)
    made.acquire()
    return made


def marks(storage: LocalStorage) -> list[str]:
    return [entry.path for entry in storage.list("owners") if entry.path.endswith(".stream")]


def test_a_stream_is_waited_for_until_it_says_that_it_stopped(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = owner(storage, "old")
    mark = note_stream(storage, old.term)
    new = owner(storage, "new")
    looked = threading.Event()

    def lives(*_: object) -> bool:
        looked.set()
        return True

    monkeypatch.setattr(ownership, "_lives", lives)
    waiting = threading.Thread(target=await_streams, args=(storage, new.term), daemon=True)
    waiting.start()
    assert looked.wait(60) and waiting.is_alive()
    forget_stream(storage, mark)
    waiting.join(60)
    assert not waiting.is_alive()


def test_own_streams_and_later_ones_are_not_waited_for(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "_lives", lambda *_: True)
    mine, later = owner(storage, "mine"), owner(storage, "later")
    left = sorted([note_stream(storage, mine.term), note_stream(storage, later.term)])
    await_streams(storage, mine.term)
    assert marks(storage) == left


@pytest.mark.parametrize("kind", ["killed", "this process", "no file"])
def test_a_driver_that_has_ended_is_not_waited_for(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    mine = os.getpid()
    with monkeypatch.context() as patch:
        if kind == "killed":
            patch.setattr(os, "getpid", lambda: 2**22 + 1)
        old = owner(storage, "old")
    note_stream(storage, old.term)
    assert os.getpid() == mine
    new = owner(storage, "new")
    if kind == "no file":
        (Path(storage.uri) / "owners" / f"{old.term:08d}.owner").unlink()
    await_streams(storage, new.term)
    assert marks(storage) == []


def test_a_job_that_was_closed_may_still_have_its_stream(storage: LocalStorage) -> None:
    """The process counts, not the mark that says that the job's tables may go."""
    old = owner(storage, "old")
    old.close()
    found = Owner(old.term, "old", old.host, os.getppid(), 1 << 60)
    assert ownership._lives(storage, found) is True


@pytest.mark.parametrize("running", [True, None])
def test_a_driver_that_is_not_heard_of_is_waited_for_only_so_long(
    storage: LocalStorage,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    running: bool | None,
) -> None:
    old = owner(storage, "old")
    note_stream(storage, old.term)
    monkeypatch.setattr(ownership, "_lives", lambda *_: running)
    monkeypatch.setattr(ownership, "_STOP_S", 0.0)
    monkeypatch.setattr(ownership, "_UNKNOWN_S", -3 * storage.touch_every_s)
    await_streams(storage, owner(storage, "new").term)
    assert marks(storage) == []
    assert "has not said within" in caplog.text
