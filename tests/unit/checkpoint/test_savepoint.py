"""Savepoints: taken of real state, moved, begun with, interrupted, damaged."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

import pystate as ps
from pystate.checkpoint.first_start import begin_with
from pystate.checkpoint.job_file import read_job
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.metadata import encode_document
from pystate.checkpoint.savepoint import read_savepoint, take_savepoint, write_savepoint
from pystate.checkpoint.storage import CheckpointStorage, LocalStorage
from pystate.epochs.merge_policy import MergePolicy
from pystate.epochs.position import AlreadyDone
from pystate.errors import (
    CheckpointError,
    CorruptFileError,
    InvalidArgumentError,
    NewerFormatError,
    UnclaimedStateError,
)
from tests.work import (
    Cut,
    CutError,
    Work,
    a_run_and_a_stream,
    batch,
    content,
    cuts,
    read,
    spark_files,
)


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path / "checkpoint")


# ---- taking --------------------------------------------------------------------------------------


def test_a_savepoint_holds_the_newest_epoch_and_needs_nothing_else(
    work: Work, tmp_path: Path
) -> None:
    work.some(5)
    taken = ps.savepoint(work.root, tmp_path / "savepoint")
    assert (taken.epoch, taken.job, taken.files) == (5, "job", 10)
    assert taken.size_bytes == sum(p.stat().st_size for p in (work.root / "state").rglob("*.delta"))
    assert taken.library == f"pystate {ps.__version__}"
    assert taken == read_savepoint(LocalStorage(tmp_path / "savepoint"))
    then = dict(work.counts)
    work.some(3)
    shutil.rmtree(work.root)
    shutil.move(tmp_path / "savepoint", tmp_path / "elsewhere")
    shutil.copytree(tmp_path / "elsewhere", tmp_path / "copied")
    assert read(tmp_path / "elsewhere") == read(tmp_path / "copied") == then != work.counts


@pytest.mark.parametrize("copy", [False, True])
def test_files_are_shared_or_copied(work: Work, tmp_path: Path, copy: bool) -> None:
    work.some(2)
    ps.savepoint(work.root, tmp_path / "savepoint", copy=copy)
    for path in (work.root / "state").rglob("*.delta"):
        other = tmp_path / "savepoint" / path.relative_to(work.root)
        assert path.samefile(other) != copy
        assert path.read_bytes() == other.read_bytes()


class Apart(LocalStorage):
    """A folder on another file system than any that is not `Apart`."""

    def share(self, path: str, other: CheckpointStorage, other_path: str) -> bool:
        return isinstance(other, Apart) and super().share(path, other, other_path)


def test_an_earlier_savepoint_saves_what_it_has(work: Work, tmp_path: Path) -> None:
    work.some(3)
    first, second = Apart(tmp_path / "first"), Apart(tmp_path / "second")
    take_savepoint(work.storage, first)
    work.some(2)
    take_savepoint(work.storage, second, previous=first)
    shared = [
        path.samefile(tmp_path / "first" / path.relative_to(tmp_path / "second"))
        for path in (tmp_path / "second" / "state").rglob("*.delta")
        if (tmp_path / "first" / path.relative_to(tmp_path / "second")).exists()
    ]
    assert shared == [True] * 6
    assert read(tmp_path / "second") == work.counts


def test_a_store_has_savepoints(tmp_path: Path) -> None:
    with ps.open(tmp_path / "store", key="string", states={"n": ps.ValueState("long")}) as store:
        store["n"].update_all(store.keys(["a", "b"]), [1, 2])
        store.checkpoint()
    ps.savepoint(tmp_path / "store", tmp_path / "savepoint")
    assert ps.read_state(tmp_path / "savepoint").to_pydict() == {"key": ["a", "b"], "n": [1, 2]}


def test_the_epoch_stays_while_it_is_copied(work: Work, tmp_path: Path) -> None:
    """Epochs go on, are retired and merged; what is held goes when it is released."""
    policy = MergePolicy(min_deltas=2, max_deltas=3, keep_deltas=0)
    with work.coordinator(retained=1, orphan_grace_ms=0, merge_policy=policy) as coordinator:
        for number in range(3):
            work.run(coordinator, {number: 1, 99: 1})
        then = dict(work.counts)
        with coordinator.held_head() as head:
            assert head is not None and head.epoch == 3
            for number in range(8):
                work.run(coordinator, {number: 1, 99: 1})
                coordinator.maintain()
            assert read_head(work.storage).epoch == 11  # type: ignore[union-attr]
            write_savepoint(work.storage, head, LocalStorage(tmp_path / "savepoint"))
        coordinator.maintain()
        coordinator.maintain()
        named = read_head(work.storage)
        assert named is not None and not head.paths & named.paths
        assert not [path for path in head.paths if work.storage.exists(path)]
    assert read(tmp_path / "savepoint") == then
    assert read(work.root) == work.counts


class Moving(LocalStorage):
    """A checkpoint whose job goes on whenever somebody looks at a state file."""

    go_on: Callable[[], None] | None = None

    def local_path(self, path: str) -> str:
        act, self.go_on = self.go_on, None
        if act is not None and path.startswith("state/"):
            act()
        elif act is not None:
            self.go_on = act
        return super().local_path(path)


def test_an_epoch_that_is_retired_meanwhile_gives_way_to_the_next(
    work: Work, tmp_path: Path
) -> None:
    policy = MergePolicy(min_deltas=2, max_deltas=3, keep_deltas=0)
    work.some(3)

    def go_on() -> None:
        with work.coordinator(retained=1, orphan_grace_ms=0, merge_policy=policy) as coordinator:
            for number in range(8):
                work.run(coordinator, {number: 1})
                coordinator.maintain()

    source = Moving(work.root)
    source.go_on = go_on
    taken = take_savepoint(source, LocalStorage(tmp_path / "savepoint"))
    assert taken.epoch == 11 and source.go_on is None
    assert read(tmp_path / "savepoint") == work.counts


def test_what_no_savepoint_can_be_taken_of(work: Work, tmp_path: Path) -> None:
    target = tmp_path / "savepoint"
    with pytest.raises(CheckpointError, match="no epoch to take a savepoint of"):
        ps.savepoint(tmp_path / "nothing", target)
    work.some(2)
    with pytest.raises(InvalidArgumentError, match=r"within the checkpoint.*savepoints/"):
        ps.savepoint(work.root, work.root / "state" / "mine")
    ps.savepoint(work.root, work.root / "savepoints" / "mine")
    assert read(work.root / "savepoints" / "mine") == work.counts
    ps.savepoint(work.root, target)
    with pytest.raises(InvalidArgumentError, match="holds a savepoint already"):
        ps.savepoint(work.root, target)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    with pytest.raises(InvalidArgumentError, match=r"is not empty \(it holds mine.txt\)"):
        ps.savepoint(work.root, tmp_path / "full")
    with pytest.raises(InvalidArgumentError, match="is not a savepoint"):
        ps.savepoint(work.root, tmp_path / "new", previous=work.root)
    assert not (tmp_path / "new").exists()


def test_output_that_is_not_committed_is_not_left_behind(
    work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(manifest: Manifest) -> None:
        raise OSError("the sink is gone")

    with work.coordinator(commit_sinks=fail) as coordinator, pytest.raises(OSError, match="gone"):
        work.run(coordinator, {1: 1})
    monkeypatch.setattr("pystate.checkpoint.savepoint._COMMIT_WAIT_S", 0.0)
    with pytest.raises(CheckpointError, match=r"output of its newest epoch, 1, is not committed"):
        ps.savepoint(work.root, tmp_path / "savepoint")


@pytest.mark.parametrize("copy", [False, True])
def test_a_damaged_file_is_found_out(work: Work, tmp_path: Path, copy: bool) -> None:
    work.some(3)
    path = sorted((work.root / "state").rglob("*.delta"))[2]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptFileError, match=path.name):
        ps.savepoint(work.root, tmp_path / "savepoint", copy=copy)
    assert not content(tmp_path / "savepoint")
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    ps.savepoint(work.root, tmp_path / "savepoint", copy=copy)
    assert read(tmp_path / "savepoint") == work.counts
    # What is there already is not touched by an attempt that fails.
    before = content(tmp_path / "savepoint")
    with pytest.raises(InvalidArgumentError, match="holds a savepoint already"):
        ps.savepoint(work.root, tmp_path / "savepoint", copy=copy)
    assert content(tmp_path / "savepoint") == before


# ---- beginning -----------------------------------------------------------------------------------


@pytest.mark.parametrize("parallelism", [1, 2, 7])
def test_a_job_goes_on_where_the_savepoint_stood(
    work: Work, tmp_path: Path, parallelism: int
) -> None:
    ps.savepoint(work.some(2).some(1).some(1).root, tmp_path / "savepoint")  # three drivers
    before = content(tmp_path / "savepoint")
    jobs = [
        work.go_on(tmp_path / "savepoint", tmp_path / f"job{i}", name=f"j{i}") for i in range(2)
    ]
    policy = MergePolicy(min_deltas=2, max_deltas=3, keep_deltas=0)
    for number, job in enumerate(jobs):
        options = {"retained": 1, "orphan_grace_ms": 0, "merge_policy": policy}
        with job.coordinator(parallelism=parallelism, **options) as coordinator:
            for epoch in range(5, 12):
                assert job.run(coordinator, {epoch: number, 3: 1}) == epoch
                coordinator.maintain()
        assert read(job.root) == job.counts
        assert job.committed == list(range(5, 12))  # the epoch before is committed by its own job
    # No claim: whatever the jobs removed of theirs, the savepoint is what it was.
    assert content(tmp_path / "savepoint") == before
    work.some(3)
    assert read(work.root) == work.counts
    ids = {read_job(x.storage).checkpoint_id for x in (work, *jobs)}  # type: ignore[union-attr]
    assert len(ids) == 3


def test_a_claimed_savepoint_is_gone(work: Work, tmp_path: Path) -> None:
    ps.savepoint(work.some(3).root, tmp_path / "savepoint", copy=True)
    job = work.go_on(tmp_path / "savepoint", tmp_path / "job", claim=True)
    # Until the job has published an epoch it may have to begin again.
    before = content(tmp_path / "savepoint")
    assert before and not begin_with(
        LocalStorage(tmp_path / "savepoint"), job.storage, job=job.name, claim=True
    )
    assert content(tmp_path / "savepoint") == before
    assert read(job.some(2).root) == job.counts
    # The program that asks for it is started again.
    for _ in range(2):
        assert not begin_with(
            LocalStorage(tmp_path / "savepoint"), job.storage, job=job.name, claim=True
        )
        assert not (tmp_path / "savepoint").exists()
    assert read(job.root) == job.counts


def test_a_job_begins_once(work: Work, tmp_path: Path) -> None:
    origin = tmp_path / "savepoint"
    ps.savepoint(work.some(2).root, origin)
    job = work.go_on(origin, tmp_path / "job").some(3)
    assert not begin_with(LocalStorage(origin), job.storage, job=job.name)
    assert read(job.root) == job.counts
    ps.savepoint(work.root, tmp_path / "other")
    for folder in (job, work):
        with pytest.raises(InvalidArgumentError, match=r"did not begin with the savepoint.*leave"):
            begin_with(LocalStorage(tmp_path / "other"), folder.storage, job="job")
    shutil.rmtree(origin)
    assert not begin_with(LocalStorage(origin), job.storage, job=job.name)


def test_operators_are_renamed_or_refused(work: Work, tmp_path: Path) -> None:
    origin = tmp_path / "savepoint"
    work.uids = ("a", "b")
    ps.savepoint(work.some(3).root, origin)
    job = work.go_on(origin, tmp_path / "job", uids=("a", "new"), uid_map={"b": "new"}).some(2)
    assert read(job.root, "new") == read(job.root, "a") == job.counts
    third = work.go_on(origin, tmp_path / "third", uids=("a",))
    with pytest.raises(UnclaimedStateError, match="b"):
        third.some(1)
    assert third.some(1, allow_unclaimed_state=True).counts == read(third.root, "a")
    assert read(third.root, "b") == work.counts
    for names, error in (
        ({"c": "x"}, r"has no operator 'c'; it has 'a', 'b'"),
        ({"a": "b"}, r"two operators would have the uid 'b'"),
    ):
        with pytest.raises(InvalidArgumentError, match=error):
            work.go_on(origin, tmp_path / "fourth", uid_map=names)
    assert not (tmp_path / "fourth").exists()


def test_key_groups_are_the_savepoints(work: Work, tmp_path: Path) -> None:
    ps.savepoint(work.some(2).root, tmp_path / "savepoint")
    with pytest.raises(InvalidArgumentError, match="max_parallelism=128, not 64"):
        work.go_on(tmp_path / "savepoint", tmp_path / "job", max_parallelism=64)


def test_run_keys_are_known_for_ever(work: Work, tmp_path: Path) -> None:
    with work.coordinator(retained=2) as coordinator:
        for number in range(6):
            work.run(coordinator, {number: 1}, run_key=f"day {number}" if number != 3 else None)
    ps.savepoint(work.root, tmp_path / "savepoint")
    job = work.go_on(tmp_path / "savepoint", tmp_path / "job")
    with job.coordinator() as coordinator:
        for number in (0, 1, 2, 4, 5):
            assert job.run(coordinator, {1: 1000}, run_key=f"day {number}") == number + 1
        assert job.run(coordinator, {1: 1}, run_key="day 6") == 7
    assert read(job.root) == job.counts


def test_the_streams_position_becomes_a_new_querys(work: Work, tmp_path: Path) -> None:
    before = str(uuid.uuid4())
    with work.coordinator() as coordinator:
        for number in range(5):
            work.run(coordinator, {number: 1}, **batch(number, before))
    spark_files(work.root, before, 7)
    ps.savepoint(work.root, tmp_path / "savepoint")
    spark = sorted(name for name in content(tmp_path / "savepoint") if name.startswith("spark/"))
    assert spark == [
        *(f"spark/{folder}/{n}" for folder in ("commits",) for n in (3, 4)),
        "spark/metadata",
        *(f"spark/offsets/{n}" for n in (3, 4)),
        *(f"spark/sources/0/{n}" for n in range(7)),
    ]
    ids = set()
    for name in ("one", "two"):
        job = work.go_on(tmp_path / "savepoint", tmp_path / name)
        now = json.loads((job.root / "spark" / "metadata").read_text())["id"]
        ids.add(now)
        with job.coordinator() as coordinator:
            assert isinstance(coordinator.open_epoch(**batch(4, now)), AlreadyDone)
            assert job.run(coordinator, {7: 1}, **batch(5, now)) == 6
            with pytest.raises(CheckpointError, match="knows nothing of query"):
                coordinator.open_epoch(**batch(6, before))
        assert read(job.root) == job.counts
    assert len(ids | {before}) == 3


# ---- interrupted ---------------------------------------------------------------------------------


@pytest.mark.parametrize("copy", [False, True])
def test_an_attempt_that_was_killed_is_no_savepoint(work: Work, tmp_path: Path, copy: bool) -> None:
    a_run_and_a_stream(work)
    before = content(work.root)
    done = 0
    for cut in cuts(tmp_path, lambda storage: take_savepoint(work.storage, storage, copy=copy)):
        folder = tmp_path / str(done)
        done += 1
        if cut:
            assert not (folder / "savepoint.json").exists()
            with pytest.raises(InvalidArgumentError, match="is not a savepoint"):
                begin_with(LocalStorage(folder), LocalStorage(tmp_path / "x"), job="job")
        else:
            assert read(folder) == work.counts
    assert done > 15 and not (tmp_path / "x").exists()
    assert content(work.root) == before


@pytest.mark.parametrize("claim", [False, True])
def test_a_beginning_that_was_killed_is_repeated(work: Work, tmp_path: Path, claim: bool) -> None:
    a_run_and_a_stream(work)
    steps = 0
    while True:
        origin, root = Cut(tmp_path / f"origin{steps}"), tmp_path / f"job{steps}"
        take_savepoint(work.storage, origin)
        checkpoint = Cut(root)
        checkpoint.left = origin.left = steps
        steps += 1
        try:
            begin_with(origin, checkpoint, job="job", claim=claim)
            break
        except CutError:
            pass
        plain = LocalStorage(origin.uri)
        if (root / "restored.json").exists() and not (root / "job.json").exists():
            with pytest.raises(CheckpointError, match="again with the same restore"):
                Work(root).coordinator()
        begin_with(plain, LocalStorage(root), job="job", claim=claim)
        assert read(root) == work.counts
        job = Work(root)
        now = json.loads((root / "spark" / "metadata").read_text())["id"]
        with job.coordinator() as coordinator:
            assert job.run(coordinator, {1: 1}, run_key="r") == 1
            assert isinstance(coordinator.open_epoch(**batch(1, now)), AlreadyDone)
            assert job.run(coordinator, {5: 1}, **batch(2, now)) == 4
        begin_with(plain, LocalStorage(root), job="job", claim=claim)
        assert bool(content(Path(origin.uri))) != claim
    assert steps > 15


def test_a_checkpoint_is_durable_before_a_claimed_savepoint_goes(
    work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt that made it may have ended before it synced the folder."""
    origin, root = LocalStorage(tmp_path / "savepoint"), tmp_path / "job"
    take_savepoint(work.some(1).storage, origin)
    begin_with(origin, LocalStorage(root), job="job")
    Work(root).some(1)
    steps: list[str] = []
    remove = LocalStorage.remove_folder
    monkeypatch.setattr(
        LocalStorage, "sync_folder", lambda self, path: steps.append(f"{self.uri}/{path}")
    )
    monkeypatch.setattr(
        LocalStorage, "remove_folder", lambda self, path: (steps.append(path), remove(self, path))
    )
    begin_with(origin, LocalStorage(root), job="job", claim=True)
    assert steps[:2] == [f"{root}/", "state"]


# ---- damaged -------------------------------------------------------------------------------------


def test_each_lost_or_changed_file_is_named(work: Work, tmp_path: Path) -> None:
    a_run_and_a_stream(work)
    origin = tmp_path / "savepoint"
    ps.savepoint(work.root, origin, copy=True)
    for number, name in enumerate(sorted(content(origin))):
        path = origin / name
        data = path.read_bytes()
        for damage in ("lost", "flipped", "cut"):
            if damage == "lost":
                path.unlink()
            elif damage == "flipped":
                middle = len(data) // 2
                path.write_bytes(bytes([*data[:middle], data[middle] ^ 4, *data[middle + 1 :]]))
            else:
                path.write_bytes(data[: len(data) // 2])
            target = tmp_path / f"job{number}{damage}"
            with pytest.raises((CorruptFileError, InvalidArgumentError)) as raised:
                begin_with(LocalStorage(origin), LocalStorage(target), job="job")
            assert os.path.basename(name) in str(raised.value), (name, damage)
            assert not (target / "job.json").exists()
            path.write_bytes(data)
    begin_with(LocalStorage(origin), LocalStorage(tmp_path / "last"), job="job")
    assert read(tmp_path / "last") == work.counts


def test_a_later_version_is_told(work: Work, tmp_path: Path) -> None:
    ps.savepoint(work.some(1).root, tmp_path / "savepoint")
    path = tmp_path / "savepoint" / "savepoint.json"
    path.write_bytes(encode_document("savepoint", 2, {"more": 1}))
    with pytest.raises(NewerFormatError, match=r"savepoint.json: format version 2.*upgrade"):
        begin_with(LocalStorage(tmp_path / "savepoint"), LocalStorage(tmp_path / "j"), job="job")


def test_a_savepoint_is_no_checkpoint(work: Work, tmp_path: Path) -> None:
    ps.savepoint(work.some(1).root, tmp_path / "savepoint")
    before = content(tmp_path / "savepoint")
    with pytest.raises(InvalidArgumentError, match=r"is a savepoint.*restore="):
        Work(tmp_path / "savepoint").coordinator()
    assert content(tmp_path / "savepoint") == before
