"""`repair`: it loses what must be lost and nothing else, and may be killed at any step."""

from __future__ import annotations

import copy
import json
import os
import shutil
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pystate as ps
from pystate.checkpoint.manifest import manifest_path, read_manifest
from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.storage import FileEntry, LocalStorage
from pystate.epochs.merge_policy import MergePolicy
from pystate.epochs.position import AlreadyDone
from pystate.errors import (
    CheckpointError,
    FencedError,
    InUseError,
    InvalidArgumentError,
    TableBusyError,
)
from pystate.maintenance.repair import repair_storage
from pystate.maintenance.repair_plan import salvage
from tests.drawn import stride
from tests.work import Cut, CutError, Work, batch, content, read, spark_files

UIDS = ("a", "b")
POLICY = MergePolicy(min_deltas=2, max_deltas=3, keep_deltas=1)


class Streaming:
    """A job over a stream, and what its state was after each epoch."""

    def __init__(self, root: Path, epochs: int, **options: Any) -> None:
        self.work = Work(root, uids=UIDS)
        self.root, self.query_id = root, str(uuid.uuid4())
        self.then: dict[int, dict[int, int]] = {}
        with self.work.coordinator(**options) as coordinator:
            for number in range(epochs):
                self.step(coordinator, number)
                coordinator.maintain()
        spark_files(root, self.query_id, epochs)
        (root / "spark/offsets" / str(epochs)).write_text("v1\n{}")

    def at(self, root: Path) -> Streaming:
        """The same job over a copy of its checkpoint."""
        other = copy.copy(self)
        other.root, other.work, other.then = root, Work(root, uids=UIDS), dict(self.then)
        return other

    def step(self, coordinator: Any, number: int) -> int:
        counts = dict.fromkeys(range(number, number + 40), number + 1)
        position = {**batch(number, self.query_id), "processing_time_ms": 10**12 + number}
        epoch = self.work.run(coordinator, counts, **position)
        self.then[epoch] = dict(self.work.counts)
        return epoch

    def go_on(self, after: int, until: int = 12) -> None:
        """Compute the batches after an epoch once more; the state must be as it would have been."""
        self.work.counts = dict(self.then[after])
        with self.work.coordinator() as coordinator:
            # Spark computes the batch after the newest that it finds in `commits`.
            done = [
                int(p.name) for p in (self.root / "spark/commits").iterdir() if p.name.isdigit()
            ]
            assert max(done, default=-1) == after - 1
            for number in range(after, until):
                assert self.step(coordinator, number) == number + 1
                (self.root / f"spark/commits/{number}").write_text("v1\n{}")
                (self.root / f"spark/offsets/{number}").write_text("v1\n{}")
        for uid in UIDS:
            assert read(self.root, uid) == self.then[until]
        assert ps.verify(self.root).ok


@pytest.fixture
def streaming(tmp_path: Path) -> Streaming:
    return Streaming(tmp_path / "checkpoint", 6)


def delta(root: Path, epoch: int, uid: str = "b", index: int = 1) -> Path:
    [path] = sorted((root / "state" / uid).rglob(f"{epoch:08d}-*.delta"))[index : index + 1]
    return path


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()  # the same bytes may have another name
    path.write_bytes(data)


def test_nothing_is_done_where_nothing_is_wrong(streaming: Streaming) -> None:
    before = content(streaming.root)
    plan = ps.repair(streaming.root)
    assert not plan.is_needed and plan.folder is None and not plan.findings
    assert content(streaming.root) == before


def test_the_newest_epoch_is_given_up_with_the_streams_position(streaming: Streaming) -> None:
    root = streaming.root
    broken = delta(root, 6)
    damage(broken)
    before = content(root)
    said = ps.repair(root, dry_run=True)
    assert content(root) == before and said.folder is None and said.is_needed
    assert (said.newest_epoch, said.good_epoch, said.unreadable, said.rebuilt) == (6, 5, (), ())
    [lost] = said.lost
    # 40 rows in each operator
    assert (lost.epoch, lost.batch_id, lost.rows_changed, lost.run_key) == (6, 5, 80, None)
    assert said.stream_batches == (5, 6) and not said.remaining
    done = ps.repair(root)
    assert done == ps.RepairPlan(**{**vars(said), "folder": done.folder})
    assert ps.verify(root).ok
    head = read_head(streaming.work.storage)
    assert head is not None and head.epoch == 5
    # Nothing was deleted.
    after, prefix = content(root), f"{done.folder}/"
    for name, data in before.items():
        if name not in ("manifests/latest", "manifests/committed"):
            assert data in (after.get(name), after.get(prefix + name)), name
    assert broken.relative_to(root).as_posix() in {n.removeprefix(prefix) for n in after}
    streaming.go_on(5)


def test_all_newer_epochs_go_with_a_file_that_they_share(streaming: Streaming) -> None:
    damage(delta(streaming.root, 5, "a", 0))
    plan = ps.repair(streaming.root)
    assert plan.good_epoch == 4 and [lost.epoch for lost in plan.lost] == [5, 6]
    assert plan.stream_batches == (4, 5, 6)
    streaming.go_on(4)


@pytest.mark.parametrize("how", ["damaged", "lost"])
def test_a_manifest_that_cannot_be_read(streaming: Streaming, how: str) -> None:
    path = streaming.root / manifest_path(6)
    damage(path) if how == "damaged" else path.unlink()
    plan = ps.repair(streaming.root)
    assert (plan.good_epoch, plan.lost[0].rows_changed) == (5, None)
    streaming.go_on(5)


@pytest.mark.parametrize("how", ["damaged", "lost"])
def test_an_older_manifest_costs_no_newer_epoch(streaming: Streaming, how: str) -> None:
    path = streaming.root / manifest_path(5)
    damage(path) if how == "damaged" else path.unlink()
    plan = ps.repair(streaming.root)
    assert (plan.good_epoch, plan.lost, plan.unreadable) == (6, (), (4, 5))
    assert plan.stream_batches == ()
    assert (streaming.root / "spark/offsets/6").exists()
    streaming.go_on(6)


def test_no_epoch_is_left(streaming: Streaming) -> None:
    damage(delta(streaming.root, 2))
    before = content(streaming.root)
    with pytest.raises(CheckpointError, match="none of its 3 retained epochs can be restored"):
        ps.repair(streaming.root)
    assert content(streaming.root) == before


def merged(root: Path) -> Streaming:
    """Retained epochs before and after a merge, which share the older state in two forms."""
    found = Streaming(root, 6, retained=6, merge_policy=POLICY)
    assert any(".base" in name for name in content(root))
    return found


@pytest.mark.drawn
def test_files_that_others_make_superfluous_cost_nothing(tmp_path: Path) -> None:
    """Each state file in turn: what is lost is what a recomputation of all chains says."""
    whole = merged(tmp_path / "whole")
    costless, every = 0, stride(3)
    names = sorted(n for n in content(whole.root) if n[:6] == "state/")
    for number, name in enumerate(names[::every]):
        root = tmp_path / str(number)
        shutil.copytree(whole.root, root, copy_function=os.link)
        damage(root / name)
        epochs = [e for f in ps.verify(root).errors for e in f.epochs]
        plan = ps.repair(root)
        assert ps.verify(root).ok
        for uid in UIDS:
            assert read(root, uid) == whole.then[plan.good_epoch], name
        if 6 in epochs and plan.good_epoch == 6:
            costless += 1
            assert plan.rebuilt and not plan.lost
        elif not plan.lost:
            assert plan.good_epoch == 6
        (root / "spark/offsets/6").unlink(missing_ok=True)
        if number % 5 == 0:
            whole.at(root).go_on(plan.good_epoch, 8)
    assert costless > 2 // every


def test_a_base_and_what_it_was_made_from_do_not_replace_each_other_across_a_dropped_state(
    tmp_path: Path,
) -> None:
    whole = merged(tmp_path / "c")
    manifests = {
        epoch: read_manifest(whole.work.storage, manifest_path(epoch))
        for epoch in ps.describe(whole.root).epochs
    }
    head = manifests[6]
    [base] = [r.base for o in head.operators for r in o.ranges if r.base is not None][:1]
    assert salvage(head, manifests, {base.path}) is not None
    other = {
        epoch: replace(
            m, operators=tuple(replace(o, state_schema=(("n", "bigint"),)) for o in m.operators)
        )
        for epoch, m in manifests.items()
    }
    assert salvage(head, other, {base.path}) is None


def test_marks_are_made_anew(streaming: Streaming) -> None:
    for name in ("manifests/latest", "manifests/committed"):
        damage(streaming.root / name)
    plan = ps.repair(streaming.root)
    assert set(plan.marks) == {"manifests/latest", "manifests/committed"} and not plan.lost
    streaming.go_on(6)


def test_a_lost_job_file_is_made_anew(streaming: Streaming) -> None:
    (streaming.root / "job.json").unlink()
    plan = ps.repair(streaming.root)
    assert not plan.is_needed and [f.path for f in plan.remaining] == ["job.json"]
    plan = ps.repair(streaming.root, job="job")
    assert plan.marks == ("job.json",) and not plan.remaining
    streaming.go_on(6)


def test_runs_that_are_lost_may_be_run_again(tmp_path: Path) -> None:
    work = Work(tmp_path / "c")
    with work.coordinator(retained=2) as coordinator:
        for number in range(5):
            work.run(coordinator, {number: 1}, run_key=f"day {number}")
    damage(delta(work.root, 5, "op", 0))
    plan = ps.repair(work.root)
    assert [lost.run_key for lost in plan.lost] == ["day 4"] and not plan.stream_batches
    with work.coordinator() as coordinator:
        for number in range(4):
            assert isinstance(coordinator.open_epoch(run_key=f"day {number}"), AlreadyDone)
        assert work.run(coordinator, {4: 1}, run_key="day 4") == 5


def test_output_of_lost_epochs_is_set_aside(tmp_path: Path) -> None:
    work = Work(tmp_path / "c")
    out = tmp_path / "out"

    def evaluate(epoch: Any) -> Any:
        work.evaluate({1: 1})(epoch)
        folder = out / f"epoch={epoch.number}"
        folder.mkdir(parents=True)
        (folder / "rows").write_text(str(epoch.number))
        return ({"kind": "parquet", "path": str(out)}, {"kind": "own", "name": "kafka"})

    with work.coordinator() as coordinator:
        for _ in range(4):
            coordinator.run(evaluate)
    (work.root / manifest_path(4)).unlink()
    damage(delta(work.root, 3, "op", 0))
    plan = ps.repair(work.root)
    assert plan.good_epoch == 2
    assert [(o.epoch, o.where, o.set_aside) for o in plan.outputs] == [
        (3, str(out / "epoch=3"), True),
        (3, "kafka", False),
        (4, str(out / "epoch=4"), True),
    ]
    assert sorted(os.listdir(out)) == ["epoch=1", "epoch=2"]
    kept = (work.root / str(plan.folder)).rglob("rows")
    assert sorted(path.read_text() for path in kept) == ["3", "4"]
    with work.coordinator() as coordinator:
        coordinator.run(evaluate)
    (out / "_compacted.json").write_text(json.dumps({"epochs": {"3": [[1, 3]]}}))
    shutil.rmtree(out / "epoch=3")
    damage(delta(work.root, 3, "op", 0))
    assert (3, str(out / "epoch=3"), False) in [
        (o.epoch, o.where, o.set_aside) for o in ps.repair(work.root).outputs
    ]


# ---- who else is there ---------------------------------------------------------------------------


def test_a_running_job_keeps_its_checkpoint(streaming: Streaming) -> None:
    damage(delta(streaming.root, 6))
    with streaming.work.coordinator() as coordinator:
        coordinator.check_owner() if coordinator.term else None
        with coordinator.open_epoch(run_key="x"):  # type: ignore[union-attr]
            before = content(streaming.root)
            with pytest.raises(InUseError, match="belongs to a job that runs"):
                ps.repair(streaming.root, confirm=lambda plan: pytest.fail("it is asked first"))
            assert content(streaming.root) == before
            # Who insists takes it over.
            assert ps.repair(streaming.root, owner_is_gone=True).good_epoch == 5
            with pytest.raises(FencedError):
                coordinator.check_owner()


def test_an_owner_elsewhere_must_be_known_to_be_gone(
    streaming: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(delta(streaming.root, 6))
    for mark in (streaming.root / "owners").glob("*.closed"):
        mark.unlink()
    monkeypatch.setattr("platform.node", lambda: "here")
    with pytest.raises(InUseError, match=r"cannot be seen from this host.*--owner-is-gone"):
        ps.repair(streaming.root)
    assert ps.repair(streaming.root, owner_is_gone=True).good_epoch == 5


def test_a_store_that_is_open_keeps_its_folder(tmp_path: Path) -> None:
    options: dict[str, Any] = {"key": "long", "states": {"n": ps.ValueState("long", default=0)}}
    with ps.open(tmp_path / "s", **options) as store:
        for number in range(3):
            store["n"].add(store.keys(list(range(50))), number)
            store.checkpoint()
        with pytest.raises(TableBusyError, match="is open in process"):
            ps.repair(tmp_path / "s")
    damage(next((tmp_path / "s" / "state").rglob("00000003-*")))
    assert ps.repair(tmp_path / "s").good_epoch == 2
    with ps.open(tmp_path / "s", **options) as store:
        assert store.epoch == 2 and store.to_arrow()["n"].to_pylist() == [1] * 50


def test_what_is_confirmed_and_what_is_not(streaming: Streaming, tmp_path: Path) -> None:
    damage(delta(streaming.root, 6))
    before = content(streaming.root)
    assert ps.repair(streaming.root, confirm=lambda plan: plan.good_epoch != 5).folder is None
    assert content(streaming.root) == before
    with pytest.raises(InvalidArgumentError, match="confirm is a function"):
        ps.repair(streaming.root, confirm=True)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="is no checkpoint"):
        ps.repair(tmp_path / "nothing")
    ps.savepoint(Work(tmp_path / "c").some(1).root, tmp_path / "s")
    with pytest.raises(InvalidArgumentError, match="is a savepoint"):
        ps.repair(tmp_path / "s")


# ---- interrupted ---------------------------------------------------------------------------------


class Killed(Cut):
    """A storage that ends the process before the n-th change of a file."""

    def list(self, prefix: str, *, temporary: bool = False) -> list[FileEntry]:
        return LocalStorage.list(self, prefix, temporary=temporary)

    def read_bytes(self, path: str) -> bytes:
        return LocalStorage.read_bytes(self, path)


#: Every so many changes are looked at.
STRIDES = {"superfluous": 3, "newest": 5, "manifests": 16}


@pytest.mark.drawn
@pytest.mark.parametrize("case", ["newest", "older", "shared", "superfluous", "manifests"])
def test_a_repair_that_was_killed_is_run_again(tmp_path: Path, case: str) -> None:
    """Before each change of a file, or some; the next repair comes to the same end."""
    whole = merged(tmp_path / "whole")
    if case == "newest":
        damage(delta(whole.root, 6))
    elif case == "older":
        damage(whole.root / manifest_path(4))
    elif case == "shared":
        damage(delta(whole.root, 5))
        (whole.root / manifest_path(2)).unlink()
    elif case == "manifests":
        for path in (whole.root / "manifests").iterdir():
            path.unlink()
        damage(delta(whole.root, 6))
    else:
        head = read_head(whole.work.storage)
        assert head is not None
        base = next(r.base for o in head.operators for r in o.ranges if r.base is not None)
        damage(whole.root / base.path)
    wanted = ps.repair(whole.root, dry_run=True)
    steps = interrupted = 0
    every = stride(STRIDES.get(case, 8))
    while True:
        root = tmp_path / str(steps)
        shutil.copytree(whole.root, root, copy_function=os.link)
        storage = Killed(root)
        storage.left = steps
        steps += every
        try:
            repair_storage(storage, threads=1)
            break
        except CutError:
            pass
        if (root / "repair.json").exists():
            interrupted += 1
            assert "interrupted" in {finding.kind for finding in ps.verify(root).errors}
            with pytest.raises(CheckpointError, match="its repair was interrupted"):
                Work(root).coordinator()
        again = ps.repair(root)
        assert again.good_epoch == wanted.good_epoch
        assert ps.verify(root).ok and not (root / "repair.json").exists()
        for uid in UIDS:
            assert read(root, uid) == whole.then[wanted.good_epoch]
        # One folder has everything.
        folders = list(root.glob("repaired-*"))
        assert len(folders) == 1
        kept = {name.split("/", 1)[1] for name in content(root) if name.startswith("repaired-")}
        there = set(content(root)) | kept
        assert set(content(whole.root)) <= there | {"manifests/latest", "manifests/committed"}
        if interrupted % 7 == 1:
            whole.at(root).go_on(wanted.good_epoch, 8)
    assert interrupted > (5 if every == 1 else 1), (steps, interrupted)


def test_the_names_are_those_of_a_checkpoint(streaming: Streaming) -> None:
    """What a repair has left is no obstacle to what a job does later."""
    damage(delta(streaming.root, 6))
    ps.repair(streaming.root)
    streaming.go_on(5, 9)
    ps.savepoint(streaming.root, streaming.root.parent / "s")
    assert LocalStorage(streaming.root).list("state")
    assert read(streaming.root.parent / "s", "b") == streaming.then[9]
