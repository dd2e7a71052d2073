"""Which epochs leases keep, and for how long."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from pystate.checkpoint.leases import LEASES, MOST_EPOCHS, LeaseBook, LeaseName, ended_leases
from pystate.checkpoint.storage import FileEntry, LocalStorage

ID = "ab" * 16
NOW_MS = time.time_ns() // 1_000_000


class Epochs:
    """Retained epochs, each published so long before the next."""

    def __init__(self, *epochs: int, age_ms: int = 0) -> None:
        self.epochs, self.age_ms = epochs, age_ms

    def published_ms(self, epoch: int) -> int | None:
        now_ms = time.time_ns() // 1_000_000
        return now_ms - self.age_ms if epoch in self.epochs else None


class Clock:
    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


def entry(epoch: int, seconds: int = 60, modified_ms: int = 1, id: str = ID) -> FileEntry:
    return FileEntry(LeaseName(epoch, seconds, id).path, 1, modified_ms)


TEN = Epochs(*range(1, 11))


def test_names_go_both_ways(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    lease = LeaseName(42, 120, ID)
    lease.write(storage, {"host": "h", "pid": 3})
    [found] = storage.list(LEASES)
    assert LeaseName.parse(found.path) == lease
    for other in ("x.lease", "00000042-120-ab.lease", f"00000042-120-{ID}.lease2"):
        assert LeaseName.parse(f"{LEASES}/{other}") is None


def test_the_oldest_lease_counts() -> None:
    book = LeaseBook(most_ms=1000_000)
    assert book.keep([], TEN, 3) == 3
    assert book.keep([entry(9)], TEN, 3) == 3
    assert book.keep([entry(4), entry(6, id="cd" * 16)], TEN, 3) == 7
    assert book.keep([entry(1)], TEN, 3) == 10
    # Of what is gone it keeps what is left, and of what never was nothing.
    assert book.keep([entry(5)], Epochs(6, 7, 8, 9), 2) == 4
    assert book.keep([entry(11), entry(10**9)], TEN, 3) == 3
    assert book.keep([entry(1)], Epochs(), 3) == 3


def test_a_lease_ends_by_its_time_unless_it_is_renewed() -> None:
    clock = Clock()
    book = LeaseBook(1000_000, clock)
    assert book.keep([entry(4)], TEN, 3) == 7
    clock.s += 59
    assert book.keep([entry(4)], TEN, 3) == 7
    assert book.keep([entry(4, modified_ms=2)], TEN, 3) == 7
    clock.s += 59
    assert book.keep([entry(4, modified_ms=2)], TEN, 3) == 7
    clock.s += 1
    assert book.keep([entry(4, modified_ms=2)], TEN, 3) == 3
    assert book.ended() == ()
    clock.s += 60
    assert book.keep([entry(4, modified_ms=2)], TEN, 3) == 3
    assert book.ended() == (entry(4).path,)


def test_the_job_has_the_last_word(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    assert LeaseBook(0, clock).keep([entry(4)], TEN, 3) == 3
    # It goes on for less than it asks for.
    book = LeaseBook(100_000, clock)
    assert book.keep([entry(4, seconds=600)], TEN, 3) == 7
    clock.s += 100
    assert book.keep([entry(4, seconds=600)], TEN, 3) == 3
    # And the epoch was the newest one too long ago.
    with caplog.at_level(logging.WARNING):
        for modified_ms in (1, 2):
            old = Epochs(*TEN.epochs, age_ms=10_000)
            assert LeaseBook(10_000, clock).keep([entry(4, 5, modified_ms)], old, 3) == 3
    assert "held for longer than the job keeps epochs for readers" in caplog.text
    many = Epochs(*range(1, MOST_EPOCHS + 10))
    book = LeaseBook(10_000_000, clock)
    assert book.keep([entry(1)], many, 3) == MOST_EPOCHS + 3
    assert book.keep([entry(9)], many, 3) == MOST_EPOCHS + 1


def test_epochs_go_one_after_the_other_where_a_lease_is_held_for_too_long() -> None:
    class Aged(Epochs):
        def published_ms(self, epoch: int) -> int | None:
            now_ms = time.time_ns() // 1_000_000
            return now_ms - 60_000 * (10 - epoch) if epoch in self.epochs else None

    # Of the epochs whose next one is four minutes old or younger, the first is the fifth.
    assert LeaseBook(270_000).keep([entry(2)], Aged(*TEN.epochs), 2) == 6


def test_what_is_no_lease_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    book, strange = LeaseBook(), FileEntry(f"{LEASES}/00000001-{ID}.lease7", 1, 1)
    for _ in range(3):
        assert book.keep([strange, entry(8)], TEN, 2) == 3
    assert [r.getMessage() for r in caplog.records] == [
        f"{strange.path} is no lease that this version knows: it keeps no epoch"
    ]
    assert book.ended() == ()


def test_a_lost_or_damaged_next_manifest_keeps_nothing() -> None:
    class Damaged(Epochs):
        def published_ms(self, epoch: int) -> int | None:
            return None

    assert LeaseBook().keep([entry(4)], Damaged(*TEN.epochs), 3) == 3


def test_gc_removes_those_of_dead_readers() -> None:
    young, dead = entry(1, 60, NOW_MS - 119_000), entry(2, 60, NOW_MS - 121_000)
    strange = FileEntry(f"{LEASES}/x", 1, NOW_MS - 80_000_000)
    stale = FileEntry(f"{LEASES}/y", 1, NOW_MS - 90_000_000)
    assert ended_leases([young, dead, strange, stale], NOW_MS) == [dead, stale]
