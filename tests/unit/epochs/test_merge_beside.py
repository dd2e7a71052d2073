"""A merge in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from pystate.checkpoint.refs import FileRef
from pystate.epochs import merge_beside
from pystate.epochs.merge_beside import MergeBeside
from pystate.epochs.merge_policy import Run

RUN = Run((), "base", "0" * 32)


class Pacing:
    """Notes what a merge tells its pace, and lets it go on once somebody waits for it."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.waited_for = threading.Event()

    def begin(self) -> None:
        self.told.append("begin")

    def worked(self, size_bytes: int) -> None:
        self.told.append(f"{size_bytes} bytes")
        assert self.waited_for.wait(60)

    @contextmanager
    def hurried(self) -> Iterator[None]:
        self.waited_for.set()
        yield
        self.told.append("ended")


@pytest.mark.parametrize("ends", ["wait", "give_up"])
def test_it_leaves_time_to_its_owner_until_that_waits(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pacing = Pacing()
    monkeypatch.setattr(merge_beside, "Pace", lambda: pacing)

    def merge(*, given_up: threading.Event, note: Callable[[int], object]) -> FileRef:
        note(7)
        raise InterruptedError(given_up.is_set())

    beside = MergeBeside(RUN, merge)
    assert beside.is_running
    assert getattr(beside, ends)() is None and not beside.is_running
    assert pacing.told == ["begin", "7 bytes", "ended"]
