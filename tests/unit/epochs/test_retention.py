"""Collecting orphans, and retiring manifests."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest

import pystate.epochs.merges
from pystate.checkpoint.manifest import manifest_path
from pystate.checkpoint.manifest_log import History, retained_epochs
from pystate.checkpoint.parts import MANIFESTS
from pystate.checkpoint.storage import CheckpointStorage, LocalStorage, final_name
from pystate.epochs.merge_policy import MergePolicy
from pystate.epochs.retention import delete_files, delete_orphans, find_orphans, merged_name
from pystate.errors import CheckpointError, CorruptFileError, FencedError
from tests.conftest import FakeWork

from .test_merges import fake_merge, run

# ---- orphans ------------------------------------------------------------------------------------


def orphan(storage: CheckpointStorage, epoch: int, kind: str = "delta") -> str:
    path = f"state/op/00000-00127/{epoch:08d}-{uuid.uuid4().hex}.{kind}"
    storage.publish(path, b"orphan")
    return path


def collect(storage: CheckpointStorage, **options: Any) -> int:
    options = {"term": 1, "grace_ms": 0, "live": frozenset, "check_owner": lambda: None, **options}
    orphans = find_orphans(storage, **options)
    return delete_orphans(storage, orphans)


def test_orphans_and_only_orphans(work: FakeWork) -> None:
    with work.coordinator() as coordinator:
        run(coordinator, work, "a", "b")
    named = {entry.path for entry in work.storage.list("state")}
    losers = [orphan(work.storage, 1), orphan(work.storage, 2), orphan(work.storage, 2, "base")]
    running = orphan(work.storage, 3)
    merging = orphan(work.storage, 2, "base")
    foreign = "state/op/00000-00127/notes.txt"
    work.storage.publish(foreign, b"")
    assert collect(work.storage, live=lambda: {merging}) == len(losers)
    left = {entry.path for entry in work.storage.list("state")}
    assert left == named | {running, merging, foreign}


@pytest.mark.parametrize(
    ("newest", "own", "gone"),
    [
        # The driver has not published: what the term of the newest manifest merged may still come.
        (1, 3, {"t0", "t3"}),
        (2, 3, {"t0", "t1", "t3"}),
        # It has: nothing that an earlier one merged can come any more, nor what it has given up.
        (3, 3, {"t0", "t1", "t2", "t3", "other"}),
        # It is itself overtaken.
        (4, 3, {"t0", "t1", "t2", "t3"}),
    ],
)
def test_merged_bases_go_by_their_term(
    work: FakeWork, newest: int, own: int, gone: set[str]
) -> None:
    for _ in range(newest):
        with work.coordinator() as coordinator:
            run(coordinator, work, "a")
    assert coordinator.head is not None and coordinator.head.term == newest
    folder = "state/op/00000-00127"
    paths = {f"t{term}": f"{folder}/00000001-{merged_name(term, 'ab')}.base" for term in range(6)}
    paths["other"] = orphan(work.storage, 1, "base")
    for term in range(6):
        work.storage.publish(paths[f"t{term}"], b"")
    collect(work.storage, term=own)
    assert {name for name, path in paths.items() if not work.storage.exists(path)} == gone


def test_grace(work: FakeWork) -> None:
    with work.coordinator() as coordinator:
        run(coordinator, work, "a")
    path = orphan(work.storage, 1)
    (entry,) = [e for e in work.storage.list("state") if e.path == path]
    assert collect(work.storage, grace_ms=1000, now_ms=entry.modified_ms + 999) == 0
    assert collect(work.storage, grace_ms=1000, now_ms=entry.modified_ms + 1000) == 1


def test_nothing_without_a_manifest(work: FakeWork) -> None:
    work.coordinator()
    orphan(work.storage, 1)
    assert collect(work.storage) == 0


def test_leftovers_of_killed_writers(work: FakeWork) -> None:
    with work.coordinator() as coordinator:
        run(coordinator, work, "a")

    def leftover(final: str) -> str:
        folder, _, name = final.rpartition("/")
        work.storage.publish(f"{folder}/.{name}.{uuid.uuid4().hex}.tmp", b"")
        return final

    state = "state/op/00000-00127"
    leftover(f"{state}/00000001-{'a' * 32}.delta")
    running = leftover(f"{state}/00000002-{'b' * 32}.delta")
    merging = leftover(f"{state}/00000001-{'c' * 32}.base")
    small = [leftover("manifests/00000002.manifest"), leftover("owners/00000009.owner")]
    assert collect(work.storage, grace_ms=10**9, live=lambda: {merging}) == 0
    assert collect(work.storage, live=lambda: {merging}) == 1
    later = time.time_ns() // 1_000_000 + 60_001
    assert collect(work.storage, live=lambda: {merging}, now_ms=later) == len(small)
    left = {final_name(e.path) for e in work.storage.list("", temporary=True)}
    assert left == {running, merging}


def test_no_owner_no_collection(work: FakeWork) -> None:
    with work.coordinator(orphan_grace_ms=0) as coordinator:
        run(coordinator, work, "a")
        path = orphan(work.storage, 1)
        run(work.coordinator(), work, "b")

        def collecting() -> None:
            collect(work.storage, check_owner=coordinator._ownership.check)

        with pytest.raises(FencedError):
            collecting()
        assert work.storage.exists(path)


def test_unreadable_manifest_stops_the_collection(work: FakeWork) -> None:
    with work.coordinator() as coordinator:
        run(coordinator, work, "a", "b")
    path = orphan(work.storage, 1)
    work.storage.replace(manifest_path(1), b"damaged")
    with pytest.raises(CorruptFileError):
        collect(work.storage)
    assert work.storage.exists(path)


def test_first_epoch_collects_what_an_earlier_driver_left(work: FakeWork) -> None:
    with work.coordinator() as coordinator:
        run(coordinator, work, "a")
    path = orphan(work.storage, 1)
    with work.coordinator(orphan_grace_ms=0) as coordinator:
        with coordinator.open_epoch():  # type: ignore[union-attr]
            coordinator._maintenance.wait()
        assert not work.storage.exists(path)


def test_deleting_goes_on_past_an_error(caplog: pytest.LogCaptureFixture, tmp_path: Any) -> None:
    storage = LocalStorage(tmp_path)
    storage.publish("a/b", b"")
    storage.publish("c", b"")
    assert delete_files(storage, ["a", "missing", "c"]) == 1
    assert "could not delete" in caplog.text and not storage.exists("c")


# ---- retention ----------------------------------------------------------------------------------


def test_retained_epochs_can_be_read_to_the_last_file(work: FakeWork) -> None:
    policy = MergePolicy(min_deltas=2, max_deltas=4, keep_deltas=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pystate.epochs.merges, "merge_range", fake_merge)
        with work.coordinator(merge_policy=policy, retained=2, orphan_grace_ms=0) as coordinator:
            for number in range(12):
                run(coordinator, work, str(number))
                coordinator.maintain()
                history = History(work.storage)
                history.refresh()
                for epoch in history.epochs:
                    texts = ",".join(work.text(history.manifest(epoch)))
                    assert texts == ",".join(map(str, range(epoch)))
    assert retained_epochs(work.storage) == (11, 12)
    stored = {entry.path for entry in work.storage.list("state")}
    named = {p for e in (11, 12) for p in history.manifest(e).paths}
    assert named <= stored
    assert all(path.endswith(".base") for path in stored - named)


def test_failing_retention_does_not_fail_the_epoch(
    work: FakeWork, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with work.coordinator(retained=1) as coordinator:
        run(coordinator, work, "a")

        def refuse(self: LocalStorage, path: str, data: bytes, *, durable: bool = True) -> None:
            raise CheckpointError("read-only")

        with monkeypatch.context() as patch:
            patch.setattr(LocalStorage, "replace", refuse)
            run(coordinator, work, "b")
        assert "retiring older ones failed" in caplog.text
        assert work.storage.exists(manifest_path(1))
        run(coordinator, work, "c")
        assert retained_epochs(work.storage) == (3,)
        coordinator.maintain()
        assert not work.storage.exists(manifest_path(1))


def test_listing_beside_a_driver_that_retires(
    work: FakeWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hole that the next listing does not show is none."""
    with work.coordinator(retained=5) as coordinator:
        run(coordinator, work, *"abcde")
    listings = iter([(1, 3, 4, 5), (3, 4, 5)])
    real = LocalStorage.list

    def racing(self: LocalStorage, prefix: str, **options: Any) -> Any:
        if prefix != MANIFESTS:
            return real(self, prefix, **options)
        shown = {manifest_path(epoch) for epoch in next(listings)}
        return [e for e in real(self, prefix, **options) if e.path in shown]

    monkeypatch.setattr(LocalStorage, "list", racing)
    assert retained_epochs(work.storage) == (3, 4, 5)
