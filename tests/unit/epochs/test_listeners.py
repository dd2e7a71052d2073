"""Who is told of checkpoints, when, and what an error in a listener does."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import pystate as ps
from pystate.checkpoint.manifest_log import read_head
from pystate.epochs.epoch import Epoch
from pystate.epochs.listeners import CheckpointNotice
from tests.conftest import FakeWork


class Told(ps.CheckpointListener):
    """Writes down what it is told, and what the storage holds then."""

    def __init__(self, work: FakeWork) -> None:
        self.work = work
        self.calls: list[Any] = []

    def on_checkpoint_complete(self, epoch: int) -> None:
        head = read_head(self.work.storage)
        assert head is not None and head.epoch == epoch and epoch in self.work.committed
        self.calls.append(epoch)

    def on_checkpoint_aborted(self, epoch: int) -> None:
        self.calls.append(("aborted", epoch))


class Counting(ps.CheckpointListener):
    """Writes down what was counted."""

    def __init__(self) -> None:
        self.told: list[ps.PublishedEpoch] = []

    def on_epoch_published(self, published: ps.PublishedEpoch) -> None:
        self.told.append(published)


class Broken(ps.CheckpointListener):
    def on_checkpoint_complete(self, epoch: int) -> None:
        raise RuntimeError("complete")

    def on_checkpoint_aborted(self, epoch: int) -> None:
        raise RuntimeError("aborted")

    def on_epoch_published(self, published: ps.PublishedEpoch) -> None:
        raise RuntimeError("published")


def notice_of(work: FakeWork, found: list[CheckpointNotice], fails: bool = False) -> Any:
    inner = work.evaluate()

    def evaluate(epoch: Epoch) -> Any:
        found.append(epoch.notice)
        if fails:
            raise ValueError("the work failed")
        return inner(epoch)

    return evaluate


def test_who_is_told_what(work: FakeWork, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    told, notices = Told(work), []
    with work.coordinator(listeners=[Broken(), told]) as coordinator:
        coordinator.run(notice_of(work, notices))
        coordinator.run(notice_of(work, notices))
        with pytest.raises(ValueError, match="the work failed"):
            coordinator.run(notice_of(work, notices, fails=True), retryable=lambda _: False)
        coordinator.run(notice_of(work, notices))
    assert told.calls == [1, 2, ("aborted", 3), 3]
    assert notices == [
        CheckpointNotice(),
        CheckpointNotice(1),
        CheckpointNotice(2),
        CheckpointNotice(2, 3),
    ]
    assert [r.levelno for r in caplog.records if "RuntimeError" in caplog.text] != []
    assert all(r.levelno >= logging.WARNING for r in caplog.records)
    with work.coordinator() as coordinator:
        coordinator.run(notice_of(work, notices))
    assert notices[-1] == CheckpointNotice(3)


def test_a_checkpoint_whose_output_waits_is_not_complete_yet(work: FakeWork) -> None:
    def fails(manifest: Any) -> None:
        raise OSError("the sink is away")

    told = Told(work)
    with (
        work.coordinator(listeners=[told], commit_sinks=fails) as coordinator,
        pytest.raises(OSError, match="away"),
    ):
        coordinator.run(work.evaluate())
    assert told.calls == []


def test_what_was_counted_is_told(work: FakeWork, caplog: pytest.LogCaptureFixture) -> None:
    counting = Counting()
    with work.coordinator(listeners=[Broken(), counting]) as coordinator:
        coordinator.run(work.evaluate())
        coordinator.run(work.evaluate())
    assert [(told.record.epoch, told.manifest.epoch) for told in counting.told] == [(1, 1), (2, 2)]
    told = counting.told[-1]
    assert (told.job, told.checkpoint) == ("job", work.storage.uri)
    assert told.record.operators[0].checkpoint_bytes == 2
    assert read_head(work.storage) == told.manifest
    failed = [r for r in caplog.records if "epoch 2 is published, but" in r.getMessage()]
    assert [str(r.exc_info[1]) for r in failed if r.exc_info] == ["published"]


def test_what_was_counted_is_told_although_its_output_waits(work: FakeWork) -> None:
    def fails(manifest: Any) -> None:
        raise OSError("the sink is away")

    counting = Counting()
    with (
        work.coordinator(listeners=[counting], commit_sinks=fails) as coordinator,
        pytest.raises(OSError, match="away"),
    ):
        coordinator.run(work.evaluate())
    assert [told.record.epoch for told in counting.told] == [1]
