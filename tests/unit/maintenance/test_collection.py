"""`collect`: what nobody can name goes, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import pystate as ps
from pystate.checkpoint.storage import CheckpointStorage
from pystate.epochs import ownership
from pystate.epochs.merge_policy import MergePolicy
from pystate.errors import CheckpointError, InUseError, InvalidArgumentError, TableBusyError
from tests.work import Work, content, read

POLICY = MergePolicy(min_deltas=2, max_deltas=3, keep_deltas=1)
FOLDER = "state/op/00000-00063"
ID = "0" * 32
#: After five epochs of term 1: what may go, and what a driver that was delayed may come to name.
GO = (
    f"{FOLDER}/00000003-{ID}.delta",
    f"{FOLDER}/00000003-t1-{ID}.base",
    f"{FOLDER}/.00000002-{ID}.delta.{ID}.tmp",
    f"manifests/00000004-{ID}.part",
    f"runs/.00000001-00000001.keys.{ID}.tmp",
)
STAY = (
    f"{FOLDER}/00000006-{ID}.delta",
    f"{FOLDER}/00000003-t2-{ID}.base",
    f"manifests/00000006-{ID}.part",
)


def litter(work: Work, *names: str, age_s: float = 3600) -> None:
    for name in names:
        path = work.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")
        then = path.stat().st_mtime - age_s
        os.utime(path, (then, then))


def unknown(work: Work, term: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody know whether a driver has ended: it may only have been delayed."""
    running = ownership.is_running

    def is_running(storage: CheckpointStorage, owner: ownership.Owner) -> bool | None:
        return None if owner.term == term else running(storage, owner)

    monkeypatch.setattr(ownership, "is_running", is_running)


def test_what_nobody_can_name_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(tmp_path / "c").some(5, merge_policy=POLICY)
    before = content(work.root)
    litter(work, *GO, *STAY, f"evaluations/00000003-{ID}/driver")
    litter(work, f"{FOLDER}/00000003-{'1' * 32}.delta", age_s=0)
    with monkeypatch.context() as patched:
        unknown(work, 1, patched)
        said = ps.collect(work.root, dry_run=True)
        assert set(said.files) == set(GO) and said.removed == 0
        assert said.evaluations == (f"evaluations/00000003-{ID}",)
        assert set(content(work.root)) > set(GO)
        done = ps.collect(work.root)
        assert (done.files, done.size_bytes, done.removed) == (said.files, 5 * len(GO), len(GO))
        left = set(content(work.root)) - set(before)
        assert left == {*STAY, f"{FOLDER}/00000003-{'1' * 32}.delta"}
        assert ps.collect(work.root, older_than=0).removed == 1
        assert before.items() <= content(work.root).items()
        assert not ps.collect(work.root).files and ps.verify(work.root).ok
    # The driver is known to have ended, and what it has not published is nobody's.
    litter(work, f"evaluations/00000006-{ID}/driver")
    done = ps.collect(work.root)
    assert set(done.files) == set(STAY) and done.evaluations == (f"evaluations/00000006-{ID}",)
    assert set(content(work.root)) == set(before) and ps.verify(work.root).ok
    work.some(2)
    assert read(work.root) == work.counts


def test_bases_of_an_earlier_driver_wait_for_the_next_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If nobody knows whether that driver has ended."""
    work = Work(tmp_path / "c").some(5)
    litter(work, base := f"{FOLDER}/00000003-t1-{ID}.base")
    with work.coordinator() as coordinator, coordinator.held_head():
        pass
    with monkeypatch.context() as patched:
        unknown(work, 1, patched)
        assert not ps.collect(work.root).files
    assert ps.collect(work.root, dry_run=True).files == (base,)
    work.some(1)
    unknown(work, 1, monkeypatch)
    litter(work, base)
    assert ps.collect(work.root).files == (base,)


def test_who_uses_the_checkpoint_keeps_it(tmp_path: Path) -> None:
    work = Work(tmp_path / "c").some(2)
    litter(work, orphan := f"{FOLDER}/00000001-{ID}.delta")
    with work.coordinator() as coordinator:
        work.run(coordinator, {1: 1})
        coordinator.maintain()  # the search of its first epoch is over
        assert not (work.root / orphan).exists()
        litter(work, orphan)
        with pytest.raises(InUseError, match="belongs to a job that runs"):
            ps.collect(work.root)
        assert (work.root / orphan).exists()
    assert ps.collect(work.root).removed == 1
    options = {"key": "long", "states": {"n": ps.ValueState("long", default=0)}}
    with ps.open(tmp_path / "s", **options) as store:  # type: ignore[arg-type]
        store.checkpoint()
        with pytest.raises(TableBusyError):
            ps.collect(tmp_path / "s")
    assert not ps.collect(tmp_path / "s").files


def test_a_damaged_checkpoint_keeps_everything(tmp_path: Path) -> None:
    work = Work(tmp_path / "c").some(4)
    litter(work, f"{FOLDER}/00000001-{ID}.delta")
    path = work.root / "manifests/00000003.manifest"
    data = path.read_bytes()
    for damaged in (data[:-1], None):
        path.unlink() if damaged is None else path.write_bytes(damaged)
        before = content(work.root)
        with pytest.raises(CheckpointError):
            ps.collect(work.root)
        assert content(work.root) == before
    path.write_bytes(data)
    (work.root / "repair.json").write_bytes(b"")
    with pytest.raises(CheckpointError, match="a repair was interrupted"):
        ps.collect(work.root)
    ps.savepoint(work.root, tmp_path / "s")
    with pytest.raises(InvalidArgumentError, match="is a savepoint"):
        ps.collect(tmp_path / "s")
