"""`history`: what a checkpoint knows of its epochs, and what a repair leaves of it."""

from __future__ import annotations

import os
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

import pystate as ps
from pystate.checkpoint.epoch_log import HISTORY, EpochLog, read_records
from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.merge_policy import MergePolicy
from pystate.errors import CheckpointError, InvalidArgumentError
from pystate.maintenance.repair import repair_storage
from tests.unit.maintenance.test_verification import flip
from tests.work import Cut, CutError, Work, content


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path / "c").some(6)


def epochs(work: Work) -> list[int]:
    return [record.epoch for record in ps.history(work.root).records]


def file_of(work: Work) -> Path:
    [path] = (work.root / HISTORY).iterdir()
    return path


def test_retired_epochs_are_remembered(work: Work) -> None:
    assert ps.describe(work.root).epochs == (4, 5, 6)
    found = ps.history(work.root)
    assert found.location == str(work.root) and not found.missing and not found.problems
    assert [record.epoch for record in found.records] == [1, 2, 3, 4, 5, 6]
    assert [r.epoch for r in ps.history(work.root, last=2).records] == [5, 6]
    moment = datetime.fromtimestamp(found.records[3].published_ms / 1000, timezone.utc)
    assert [r.epoch for r in ps.history(work.root, since=moment).records] == [4, 5, 6]
    assert [r.epoch for r in ps.history(work.root, since=moment, last=1).records] == [6]
    assert ps.verify(work.root).findings == ()
    assert not any(name.startswith(HISTORY) for name in ps.collect(work.root).files)
    assert epochs(work) == [1, 2, 3, 4, 5, 6]


def test_what_is_written_per_byte_that_has_changed(work: Work) -> None:
    found = ps.history(work.root)
    assert found.written_per_byte() == found.written_per_byte("op") == 1.0  # nothing was merged
    assert found.written_per_byte("other") is None
    with work.coordinator(merge_policy=MergePolicy(min_deltas=2, keep_deltas=0)) as coordinator:
        for number in range(2):
            work.run(coordinator, {number: 1})
            coordinator.maintain()
    found = ps.history(work.root)
    assert [record.merged_bytes > 0 for record in found.records[-2:]] == [True, False]
    assert all(0 < record.operators[0].most_files < 8 for record in found.records)
    written = found.written_per_byte()
    assert written is not None and written > 1
    changed = sum(record.total("checkpoint_bytes") for record in found.records)
    merged = sum(record.merged_bytes for record in found.records)
    assert written == (changed + merged) / changed


def test_what_is_missing_is_said(work: Work) -> None:
    path = file_of(work)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[1], lines[4]]))
    assert ps.history(work.root).missing == ((3, 4), (6, 6))
    path.unlink()
    found = ps.history(work.root)
    assert (found.records, found.missing, found.problems) == ((), (), ())
    assert ps.verify(work.root).ok  # it cannot be told from a checkpoint of an earlier version


def test_damage_is_said_and_skipped_verified_and_repaired(work: Work) -> None:
    path = file_of(work)
    before = path.read_bytes()
    path.write_bytes(before.replace(b"[6,3,", b"[6,8,"))
    name = f"{HISTORY}/{path.name}"
    found = ps.history(work.root)
    assert len(found.records) == 5 and found.missing == ((3, 3),)
    [problem] = found.problems
    assert problem.startswith(f"{name}: a record is damaged")
    [finding] = ps.verify(work.root).errors
    assert (finding.path, finding.kind, finding.epochs) == (name, "damaged", ())
    assert ps.verify(work.root).good_epochs == (4, 5, 6)
    # The job goes on.
    with work.coordinator() as coordinator:
        work.run(coordinator, {1: 1})
    plan = ps.repair(work.root)
    assert plan.marks == (name,) and not plan.lost and not plan.remaining
    assert (work.root / str(plan.folder) / name).read_bytes() != before
    assert ps.verify(work.root).ok
    after = ps.history(work.root)
    assert not after.problems and after.missing == found.missing
    assert after.records[:5] == found.records


def lose_two(work: Work) -> None:
    for epoch in (5, 6):
        flip(next((work.root / "state").rglob(f"{epoch:08d}-*.delta")))


def test_epochs_that_a_repair_gives_up_are_forgotten(work: Work) -> None:
    lose_two(work)
    assert ps.repair(work.root).good_epoch == 4
    assert epochs(work) == [1, 2, 3, 4]
    # They would come back where the record of a later epoch 6 is lost.
    assert [r.epoch for r in read_records(work.storage).records] == [1, 2, 3, 4]
    with work.coordinator() as coordinator:
        work.run(coordinator, {1: 1}, run_key="again")
    records = ps.history(work.root).records
    assert [r.epoch for r in records] == [1, 2, 3, 4, 5]
    assert records[-1].run_key == "again" and records[-1].term == 3


def test_a_repair_that_is_killed_forgets_them_too(tmp_path: Path) -> None:
    for left in range(0, 1000, 3):
        work = Work(tmp_path / str(left)).some(6)
        lose_two(work)
        storage = Cut(work.root)
        storage.left = left
        try:
            repair_storage(storage, owner_is_gone=True)
        except CutError:
            assert [r.epoch for r in read_records(work.storage).records][:4] == [1, 2, 3, 4]
            repair_storage(LocalStorage(work.root), owner_is_gone=True)
            assert epochs(work) == [1, 2, 3, 4], left
            assert ps.verify(work.root).ok
        else:
            break
    assert left > 20


def test_records_of_epochs_whose_manifests_are_lost_are_shown(work: Work) -> None:
    """As where the manifests were brought back from an older copy: it says what is missing."""
    last = ps.history(work.root).records[-1]
    EpochLog(work.storage).add(type(last)(**{**vars(last), "epoch": 7}))
    assert epochs(work) == [1, 2, 3, 4, 5, 6, 7]
    assert ps.verify(work.root).errors[0].path == "manifests/00000007.manifest"
    ps.repair(work.root, owner_is_gone=True)
    assert epochs(work) == [1, 2, 3, 4, 5, 6] and ps.verify(work.root).ok


def test_a_savepoint_has_no_history(work: Work, tmp_path: Path) -> None:
    ps.savepoint(work.root, tmp_path / "s")
    assert not any(name.startswith(HISTORY) for name in content(tmp_path / "s"))
    with pytest.raises(InvalidArgumentError, match=r"is a savepoint, which is one epoch: ask"):
        ps.history(tmp_path / "s")
    other = work.go_on(tmp_path / "s", tmp_path / "other")
    with other.coordinator() as coordinator:
        other.run(coordinator, {1: 1})
    assert epochs(other) == [7]


def test_a_claimed_checkpoint_begins_anew_too(work: Work, tmp_path: Path) -> None:
    ps.savepoint(work.root, tmp_path / "s")
    other = work.go_on(tmp_path / "s", tmp_path / "other", claim=True)
    with other.coordinator() as coordinator:
        other.run(coordinator, {1: 1})
    assert epochs(other) == [7] and epochs(work) == [1, 2, 3, 4, 5, 6]


def test_leftovers_of_interrupted_writes_go(work: Work) -> None:
    name = f"{HISTORY}/.00000001-123456789abc.epochs.{'0' * 32}.tmp"
    (work.root / name).write_bytes(b"x")
    [finding] = ps.verify(work.root).findings
    assert (finding.path, finding.kind) == (name, "leftover")
    old = time.time() - 10_000
    os.utime(work.root / name, (old, old))
    assert ps.collect(work.root).files == (name,)
    assert ps.verify(work.root).findings == () and epochs(work) == [1, 2, 3, 4, 5, 6]


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="holds no checkpoint"):
        ps.history(tmp_path)
    with Work(tmp_path / "c").coordinator():
        assert ps.history(tmp_path / "c").records == ()


def test_a_folder_that_cannot_be_read_is_an_error(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: LocalStorage, path: str) -> bytes:
        raise CheckpointError(f"could not read {path}: Permission denied")

    monkeypatch.setattr(LocalStorage, "read_bytes", refused)
    with pytest.raises(CheckpointError, match="Permission denied"):
        ps.history(work.root)
