"""What attempts at an epoch leave that was never published: little, and not for long."""

from __future__ import annotations

import platform
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import pystate as ps
from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.storage import LocalStorage
from pystate.epochs import housekeeping
from pystate.epochs.coordinator import Coordinator
from pystate.epochs.epoch import Epoch, RepeatableError
from pystate.epochs.ownership import OWNERS, Ownership, have_ended
from pystate.epochs.retention import Orphans
from pystate.errors import FencedError, InUseError
from tests.work import Work, read


class DownError(Exception):
    """The database is down."""


def failing(job: Work, times: int) -> Callable[[Epoch], Any]:
    """An epoch whose state is written, and which then fails so many times."""
    left = [times]

    def evaluate(epoch: Epoch) -> Any:
        done = job.evaluate({1: 1, 2: 1})(epoch)
        left[0] -= 1
        if left[0] >= 0:
            raise RepeatableError(f"down {left[0]}", "wait", is_progress=True)
        return done

    return evaluate


def fail(job: Work, coordinator: Coordinator) -> None:
    def evaluate(epoch: Epoch) -> Any:
        job.evaluate({1: 1, 2: 1})(epoch)
        raise DownError

    with pytest.raises(DownError):
        coordinator.run(evaluate, retryable=lambda error: False)


def files(job: Work) -> list[str]:
    return [entry.path for entry in job.storage.list("state")]


def named(job: Work) -> list[str]:
    head = read_head(job.storage)
    return [] if head is None else sorted(path for path in head.paths)


@pytest.fixture
def job(tmp_path: Path) -> Work:
    return Work(tmp_path / "ck")


def killed(coordinator: Coordinator) -> None:
    """Its process ends without closing anything."""
    coordinator._maintenance.wait()


@pytest.mark.parametrize("epochs", [0, 2])
def test_an_attempt_that_fails_removes_what_it_wrote(job: Work, epochs: int) -> None:
    job.some(epochs, retained=1)
    before = files(job)
    with job.coordinator() as coordinator:
        for _ in range(3):
            fail(job, coordinator)
            coordinator.maintain()
            assert files(job) == before
    assert job.storage.list("evaluations") == []


def test_evaluations_that_do_not_count_leave_nothing(job: Work) -> None:
    with job.coordinator(max_evaluations=5) as coordinator:
        coordinator.run(failing(job, 3))
        coordinator.maintain()
        assert files(job) == named(job) and len(files(job)) == 2


@pytest.mark.parametrize("epochs", [0, 2])
def test_drivers_that_are_killed_one_after_the_other(
    job: Work, epochs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them removes anything itself."""
    job.some(epochs, retained=1)
    before = files(job)
    monkeypatch.setattr("pystate.epochs.housekeeping.Housekeeping.discard", lambda *_: None)
    ended = "pystate.epochs.ownership.is_running"
    for _ in range(5):
        monkeypatch.setattr(ended, lambda storage, owner: False)
        coordinator = job.coordinator()
        fail(job, coordinator)
        (job.root / "evaluations" / f"{epochs + 1:08d}-{coordinator.run_id}").mkdir(parents=True)
        (job.root / "evaluations" / f"{epochs + 1:08d}-{coordinator.run_id}" / "driver").touch()
        killed(coordinator)
        assert len(files(job)) <= len(before) + 4  # those of two attempts
        assert len(job.storage.list("evaluations")) <= 2
    # A driver that may only have been delayed could still publish what names them.
    for running in (True, None):
        monkeypatch.setattr(ended, lambda storage, owner, running=running: running)
        left = files(job)
        coordinator = job.coordinator()
        killed(coordinator)
        with coordinator.open_epoch():  # type: ignore[union-attr]
            pass
        killed(coordinator)
        assert files(job) == left
    monkeypatch.setattr(ended, lambda storage, owner: False)
    with job.coordinator(retained=1) as coordinator:
        job.run(coordinator, {1: 1})
        job.run(coordinator, {1: 1})
        coordinator.maintain()
    assert read(job.root) == job.counts
    assert files(job) == named(job)


def test_gc_cleans_what_attempts_left(job: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("pystate.epochs.housekeeping.Housekeeping.discard", lambda *_: None)
        for _ in range(3):
            with job.coordinator() as coordinator:
                fail(job, coordinator)
    assert files(job)
    dry = ps.collect(job.root, dry_run=True, older_than=0)
    assert set(dry.files) == set(files(job))
    assert ps.collect(job.root).files == ()  # tasks may outlive their driver
    assert ps.collect(job.root, older_than=0).removed == len(dry.files)
    assert files(job) == []
    assert read(job.some(2).root) == job.counts
    before = files(job)
    with monkeypatch.context() as patched:
        patched.setattr("pystate.epochs.housekeeping.Housekeeping.discard", lambda *_: None)
        with job.coordinator() as coordinator:
            fail(job, coordinator)
    assert len(files(job)) == len(before) + 2
    ps.collect(job.root, older_than=0)
    assert files(job) == before and read(job.root) == job.counts


def test_gc_keeps_what_a_driver_may_come_to_name(
    job: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.some(1)
    monkeypatch.setattr("pystate.epochs.housekeeping.Housekeeping.discard", lambda *_: None)
    with monkeypatch.context() as patched:
        patched.setattr(platform, "node", lambda: "another-host")
        fail(job, job.coordinator())
    left = files(job)
    with pytest.raises(InUseError, match="cannot be seen from this host"):
        ps.collect(job.root, older_than=0)
    # The last one has ended, but not the one before it, which may only have been delayed.
    with job.coordinator() as coordinator, coordinator.open_epoch():  # type: ignore[union-attr]
        pass
    assert ps.collect(job.root, older_than=0).files == () and files(job) == left
    assert ps.collect(job.root, older_than=0, owner_is_gone=True).removed == 2
    assert files(job) == named(job)


def test_gc_keeps_state_whose_epochs_are_lost(job: Work) -> None:
    job.some(2)
    for path in (job.root / "manifests").iterdir():
        path.unlink()
    before = files(job)
    with suppress(ps.errors.CheckpointError):
        ps.collect(job.root, older_than=0)
    assert files(job) == before


def test_a_driver_that_was_followed_removes_nothing(
    job: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its list may have files of the driver that owns the checkpoint now."""
    monkeypatch.setattr("pystate.epochs.housekeeping.Housekeeping.discard", lambda *_: None)
    with job.coordinator() as coordinator:
        fail(job, coordinator)
    left = files(job)
    find = housekeeping.find_abandoned

    def slow(*args: Any) -> Orphans:
        monkeypatch.setattr(housekeeping, "find_abandoned", find)
        job.some(1)
        return Orphans(tuple(job.storage.list("state")), ())

    monkeypatch.setattr(housekeeping, "find_abandoned", slow)
    with job.coordinator() as coordinator:
        with pytest.raises(FencedError):
            coordinator.run(job.evaluate({1: 1}))
        coordinator._maintenance.wait()
    assert set(named(job)) <= set(files(job)) and left and read(job.root) == job.counts


def test_who_has_ended(job: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Ownership(job.storage, "a"), Ownership(job.storage, "b")
    first.acquire()
    second.acquire()
    second.close()
    assert have_ended(job.storage, 2, 3) and not have_ended(job.storage, 0, 3)
    assert have_ended(job.storage, 0, 1)
    monkeypatch.setattr("pystate.epochs.ownership.is_running", lambda storage, owner: False)
    assert have_ended(job.storage, 0, 3)
    owners = job.storage.list(OWNERS)
    # What it has sent to an object store may still arrive.
    local = LocalStorage.local_path
    monkeypatch.setattr(
        LocalStorage, "local_path", lambda self, path: None if path == OWNERS else local(self, path)
    )
    monkeypatch.setattr(LocalStorage, "list", lambda *_, **__: owners)
    assert not have_ended(job.storage, 0, 3)
    first.close()
    assert have_ended(job.storage, 0, 3)
    (job.root / "owners" / "00000001.owner").write_bytes(b"damaged")
    assert not have_ended(job.storage, 0, 3)
