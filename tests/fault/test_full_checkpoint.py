"""File systems that are full: a clear error, nothing lost, and work goes on once there is space."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from pystate.checkpoint.manifest_log import read_head, retained_epochs
from pystate.checkpoint.refs import FileRef, RangeState, empty_range
from pystate.checkpoint.storage import LocalStorage
from pystate.errors import NoSpaceError
from pystate.tables.host import TableHome, choose_home
from tests.conftest import FakeWork
from tests.peer import Worker

EMPTY = empty_range(0, 128, 1)
MEGABYTE = 1 << 20


def fill(folder: Path) -> Path:
    """Leave not a page free."""
    ballast = folder / "ballast"
    with open(ballast, "wb", buffering=0) as out:
        for size in (MEGABYTE, 4096, 1):
            while True:
                try:
                    out.write(b"x" * size)
                except OSError:
                    break
    return ballast


def test_publish_and_create(small: Path) -> None:
    storage = LocalStorage(small / "ck")
    storage.publish("state/first", b"1")
    ballast = fill(small)
    with pytest.raises(NoSpaceError, match=r"full.*state/second"):
        storage.publish("state/second", b"2" * 10_000)
    with (
        pytest.raises(NoSpaceError, match=r"full.*state/third"),
        storage.create("state/third") as out,
    ):
        for _ in range(100):
            out.write(b"3" * 100_000)
    with pytest.raises(NoSpaceError, match="new/folder"):
        storage.publish("new/folder/x", b"4" * 10_000)
    assert [e.path for e in storage.list("")] == ["state/first"]
    assert storage.list("", temporary=True) == []
    ballast.unlink()
    storage.publish("state/second", b"2" * 10_000)


def test_epoch(small: Path) -> None:
    work = FakeWork(LocalStorage(small / "ck"))
    with work.coordinator(retained=1) as coordinator:
        coordinator.run(work.evaluate("a"))
        with coordinator.open_epoch() as epoch:  # type: ignore[union-attr]
            for report in work.reports(epoch, "b"):  # type: ignore[arg-type]
                epoch.report(report)  # type: ignore[union-attr]
            ballast = fill(small)
            with pytest.raises(NoSpaceError, match=r"manifests/00000002\.manifest"):
                epoch.complete(("out" * 10_000,))  # type: ignore[union-attr]
        assert retained_epochs(work.storage) == (1,) and work.committed == [1]
        with pytest.raises(NoSpaceError):
            coordinator.run(work.evaluate("b" * 10_000))
        ballast.unlink()
        coordinator.run(work.evaluate("b"))
        head = read_head(work.storage)
        assert head is not None and work.text(head) == ["a", "b"]
        assert work.committed == [1, 2]


def after(base: RangeState, delta: FileRef) -> RangeState:
    return dataclasses.replace(base, id=delta.id, deltas=(*base.deltas, delta))


def test_snapshot_is_written_once_there_is_space(small: Path) -> None:
    worker = Worker(str(small / "ck"), TableHome(None, None))
    base = after(EMPTY, worker.epoch(EMPTY, {1: 1}, 1))
    ballast = fill(small)
    worker.attach(base)
    worker.add(dict.fromkeys(range(10000), 1))
    with pytest.raises(NoSpaceError, match=r"\.delta"):
        worker.seal(2)
    worker.release()
    assert worker.storage.list("", temporary=True) == []
    # The attempt failed: the next one begins at the base again.
    assert worker.attach(base)[0] == "undone"
    assert worker.read() == {1: 1}
    worker.add({1: 1})
    ballast.unlink()
    second = after(base, worker.seal(2))
    worker.release()
    assert worker.attach(second)[0] == "current"
    assert worker.read() == {1: 2}
    worker.stop()


def test_table_grows(small: Path, tmp_path: Path) -> None:
    home = choose_home(bytes(32), shm=str(small), least_bytes=0)
    assert home.folder is not None and home.folder.startswith(str(small))
    worker = Worker(str(tmp_path / "ck"), home)
    base = after(EMPTY, worker.epoch(EMPTY, {1: 1}, 1))
    worker.attach(base)
    assert worker.attachment.how == "current"
    with pytest.raises(NoSpaceError):
        for start in range(0, 1_000_000, 1000):
            worker.add(dict.fromkeys(range(start, start + 1000), 1))
    worker.release()
    # What was there is as it was.
    assert worker.attach(base)[0] == "current"
    assert worker.read() == {1: 1}
    worker.add({2: 2})
    second = after(base, worker.seal(2))
    worker.release()
    worker.attach(second)
    assert worker.read() == {1: 1, 2: 2}
    worker.stop()


def test_table_that_cannot_be_made_or_restored(small: Path, tmp_path: Path) -> None:
    """Then the task works on a replica in its own memory."""
    home = choose_home(bytes(32), shm=str(small), least_bytes=0)
    heap = Worker(str(tmp_path / "ck"), TableHome(None, None))
    counts = {k: k for k in range(150_000)}
    base = after(EMPTY, heap.epoch(EMPTY, counts, 1))
    worker = Worker(str(tmp_path / "ck"), home)
    how, reason, _ = worker.attach(base)
    assert how == "replica" and reason
    assert worker.read() == counts
    worker.release()
    ballast = fill(small)
    assert worker.attach(EMPTY)[0] == "replica"
    worker.release()
    ballast.unlink()
    assert worker.attach(EMPTY)[0] == "current"
    worker.stop()
    heap.stop()


def grow(worker: Worker, most: int = 1_000_000) -> None:
    for start in range(0, most, 1000):
        worker.add(dict.fromkeys(range(start, start + 1000), 1))


def test_table_that_outgrew_its_place_goes_to_the_next(small: Path, tmp_path: Path) -> None:
    home = choose_home(bytes(32), shm=str(small), least_bytes=0, fallback=str(tmp_path / "local"))
    worker = Worker(str(tmp_path / "ck"), home)
    base = after(EMPTY, worker.epoch(EMPTY, {1: 1}, 1))
    for place, how in ((str(small), "current"), (str(tmp_path / "local"), "restored")):
        assert worker.attach(base)[0] == how
        path = worker.attachment.path
        assert path is not None and path.startswith(place) and worker.read() == {1: 1}
        if how == "current":
            with pytest.raises(NoSpaceError):
                grow(worker)
        worker.attachment.move(home)
        worker.release()
        assert not os.path.exists(path)
        assert not list(Path(place).rglob("*.table"))
    # The memory of the process is the last place, and stays it.
    for _ in range(2):
        worker.attach(base)
        assert worker.attachment.path is None and worker.read() == {1: 1}
        worker.release()
    other = Worker(str(tmp_path / "ck"), home)
    assert other.attach(base)[0] == "restored" and other.attachment.path is None
    other.release()
    for stopped in (worker, other):
        stopped.stop()


def test_table_that_cannot_be_restored_goes_to_the_next_place(small: Path, tmp_path: Path) -> None:
    heap = Worker(str(tmp_path / "ck"), TableHome(None, None))
    counts = {k: k for k in range(150_000)}
    base = after(EMPTY, heap.epoch(EMPTY, counts, 1))
    home = choose_home(bytes(32), shm=str(small), least_bytes=0, fallback=str(tmp_path / "local"))
    worker = Worker(str(tmp_path / "ck"), home)
    for how in ("restored", "current"):
        assert worker.attach(base)[0] == how
        assert worker.read() == counts
        worker.release()
    assert not list(small.rglob("*.table"))
    for stopped in (worker, heap):
        stopped.stop()
