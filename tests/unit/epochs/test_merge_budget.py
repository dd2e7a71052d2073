"""Merges leave half of the disk to tasks, and what they write is counted."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

import pystate.epochs.merges
from pystate.checkpoint.refs import FileRef
from pystate.epochs.merge_budget import Pace, Written
from pystate.epochs.merge_policy import MergePolicy
from tests.conftest import FakeWork
from tests.unit.epochs.test_merges import fake_merge


def work_for(pace: Pace, seconds: float) -> float:
    """Work in pieces of some milliseconds; returns how long all took."""
    began_s = time.monotonic()
    worked_s = 0.0
    pace.begin()
    while worked_s < seconds:
        time.sleep(0.005)
        worked_s += 0.005
        pace.worked(1)
    return time.monotonic() - began_s


def test_it_pauses_as_long_as_it_works() -> None:
    pace = Pace()
    took_s = work_for(pace, 0.2)
    assert 0.4 * took_s < pace.paused_s < 0.55 * took_s


def test_it_does_not_pause_without_tasks() -> None:
    runs = [False]
    pace = Pace(lambda: runs[0])
    work_for(pace, 0.1)
    assert pace.paused_s < 0.005
    runs[0] = True
    work_for(pace, 0.1)
    assert pace.paused_s > 0.03


def test_whoever_waits_for_it_does_not_wait_longer() -> None:
    pace = Pace()
    with pace.hurried():
        with pace.hurried():
            pass
        work_for(pace, 0.1)
        assert pace.paused_s < 0.005
    work_for(pace, 0.1)
    paused_s = pace.paused_s
    assert paused_s > 0.03
    pace.end()
    work_for(pace, 0.1)
    assert pace.paused_s < paused_s + 0.005


def test_a_pause_ends_when_somebody_waits() -> None:
    pace = Pace()
    pace.begin()
    time.sleep(0.5)
    waiting = threading.Timer(0.05, pace.end)
    waiting.start()
    began_s = time.monotonic()
    pace.worked(1)
    assert time.monotonic() - began_s < 0.4
    waiting.join()


def test_what_is_written_for_a_byte() -> None:
    assert Written().amplification == 1.0
    assert Written(100, 350).amplification == 4.5


def test_a_driver_counts_what_epochs_and_merges_write(
    work: FakeWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    paces: list[Any] = []

    def merge(*arguments: Any, **options: Any) -> FileRef:
        options["note"](10)
        paces.append(options["note"])
        return fake_merge(*arguments, **options)

    monkeypatch.setattr(pystate.epochs.merges, "merge_range", merge)
    policy = MergePolicy(min_deltas=3, max_deltas=4, keep_deltas=1)
    with work.coordinator(merge_policy=policy) as coordinator:
        assert coordinator.written == Written()
        for text in ("aa", "bb", "cc", "dd", "ee", "ff"):
            coordinator.run(work.evaluate(text))
            coordinator._maintenance.wait()
        written = coordinator.written
    # Each of two ranges.
    assert written.changed_bytes == 24
    assert written.merged_bytes > 4
    assert written.amplification == (24 + written.merged_bytes) / 24
    assert paces
