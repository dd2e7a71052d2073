"""A start that published nothing is no start: the next one takes all options anew."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pystate as ps
from pystate.checkpoint.first_start import begin_with, claim_savepoint, require_restore
from pystate.checkpoint.job_file import read_job
from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.ownership import Ownership, fence_start
from pystate.errors import (
    CheckpointError,
    FencedError,
    InUseError,
    InvalidArgumentError,
    UnclaimedStateError,
)
from tests.work import Cut, Work, a_run_and_a_stream, content, cuts, read, spark_files


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path / "ck", uids=("old",)).some(3)


@pytest.fixture
def origin(work: Work, tmp_path: Path) -> LocalStorage:
    ps.savepoint(work.root, tmp_path / "savepoint")
    return LocalStorage(tmp_path / "savepoint")


def fails(job: Work, **options: Any) -> None:
    """A start that reaches its first epoch, and publishes nothing."""
    with job.coordinator(**options) as coordinator, pytest.raises(ZeroDivisionError):
        coordinator.run(lambda epoch: 1 // 0, retryable=lambda error: False)


#: The option by which a second start differs from the first: its arguments of each.
FIRST_TIME_OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "uid_map": ({}, {"uid_map": {"old": "new"}}),
    "another uid_map": ({"uid_map": {"old": "x"}}, {"uid_map": {"old": "new"}}),
    "no uid_map": ({"uid_map": {"old": "x"}}, {}),
    "name": ({"job": "a"}, {"job": "b"}),
    "restore": ({"restore": None}, {}),
    "another restore": ({"restore": "other"}, {}),
    "claim": ({"claim": True}, {"claim": True, "uid_map": {"old": "new"}}),
    "restore of more key groups": ({}, {"restore": "more"}),
}


@pytest.mark.parametrize("option", FIRST_TIME_OPTIONS)
def test_a_start_after_one_that_published_nothing(
    work: Work, origin: LocalStorage, tmp_path: Path, option: str
) -> None:
    ps.savepoint(work.some(2).root, tmp_path / "other")
    ps.rescale(origin.uri, tmp_path / "more", max_parallelism=256)
    first, second = FIRST_TIME_OPTIONS[option]
    job = Work(tmp_path / "job")

    def begin(**options: Any) -> None:
        folder = options.pop("restore", "savepoint")
        job.name = options.pop("job", "job")
        job.uids = (options.get("uid_map", {}).get("old", "old"),)
        if folder is not None:
            savepoint = LocalStorage(tmp_path / folder)
            begin_with(savepoint, job.storage, job=job.name, **options)

    begin(**first)
    fails(job)
    begin(**second)
    job.groups = 256 if option.endswith("groups") else 128
    job.counts = dict(read(Path(origin.uri), "old"))
    job.some(2)
    assert read(job.root, job.uids[0]) == job.counts
    identity = read_job(job.storage)
    assert identity is not None and identity.name == job.name
    assert [entry.uid for entry in identity.operators] == list(job.uids)
    named = {ref.path for ref in _files(job)}
    assert {entry.path for entry in job.storage.list("state")} == named
    begin(**second)  # it is started again
    assert read(job.some(1).root, job.uids[0]) == job.counts
    assert (tmp_path / "savepoint").exists() != bool(second.get("claim"))


def _files(job: Work) -> list[Any]:
    head = read_head(job.storage)
    assert head is not None
    return [ref for operator in head.operators for ref in operator.files]


def test_the_same_start_again_keeps_what_is_there(work: Work, tmp_path: Path) -> None:
    a_run_and_a_stream(work)
    ps.savepoint(work.root, tmp_path / "savepoint")
    origin, checkpoint = LocalStorage(tmp_path / "savepoint"), LocalStorage(tmp_path / "job")
    assert begin_with(origin, checkpoint, job="job")
    before = content(tmp_path / "job")
    assert not begin_with(origin, checkpoint, job="job")
    assert content(tmp_path / "job") == before
    # Other names: the position of the stream is the savepoint's again, of a new query.
    (tmp_path / "job" / "spark" / "offsets" / "7").write_text("planned, and never run")
    assert begin_with(origin, checkpoint, job="job", uid_map={"old": "new"})
    after = content(tmp_path / "job")
    assert "spark/offsets/7" not in after
    assert after["spark/metadata"] != before["spark/metadata"]


def test_without_the_savepoint_nothing_begins_empty(
    work: Work, origin: LocalStorage, tmp_path: Path
) -> None:
    job = work.go_on(Path(origin.uri), tmp_path / "job")
    with pytest.raises(InvalidArgumentError, match=r"savepoint of epoch 3.*pass restore again"):
        require_restore(job.storage)
    require_restore(job.some(1).storage)
    require_restore(LocalStorage(tmp_path / "new"))


def test_options_that_have_no_effect_any_more(
    work: Work, origin: LocalStorage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = work.go_on(
        Path(origin.uri), tmp_path / "job", uid_map={"old": "new"}, uids=("new",)
    ).some(1)

    def begin(savepoint: LocalStorage = origin, **options: Any) -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert not begin_with(savepoint, job.storage, job=job.name, **options)
        return [record.getMessage() for record in caplog.records]

    assert begin(uid_map={"old": "new"}) == begin() == []  # what is in force
    with pytest.raises(InvalidArgumentError, match=r"not renamed to 'other'.*'new'.*in another"):
        begin(uid_map={"old": "other"})
    job.uids = ("new", "old")
    job.some(1)
    assert "has no effect" in begin(uid_map={"old": "new"})[0]
    shutil.rmtree(origin.uri)
    assert "began with a savepoint of epoch 3" in begin()[0]
    assert begin(claim=True) == []
    with pytest.raises(InvalidArgumentError, match="max_parallelism=128, not 64"):
        job.coordinator(max_parallelism=64)
    with pytest.raises(InvalidArgumentError, match="belongs to the job 'job'"):
        Work(job.root, "b").coordinator()


def test_a_start_that_is_forgotten_may_be_killed(
    work: Work, origin: LocalStorage, tmp_path: Path
) -> None:
    ps.savepoint(work.some(2).root, tmp_path / "other")

    def act(storage: LocalStorage) -> None:
        begin_with(origin, storage, job="job", uid_map={"old": "new"})

    def after_another(storage: LocalStorage) -> None:
        begin_with(LocalStorage(tmp_path / "other"), LocalStorage(storage.uri), job="job")
        spark_files(Path(storage.uri), "d1", 2)
        act(storage)

    wanted = dict(read(Path(origin.uri), "old"))
    steps = 0
    for step, cut in enumerate(cuts(tmp_path / "cuts", after_another)):
        root, steps = tmp_path / "cuts" / str(step), steps + cut
        act(LocalStorage(root))
        assert read(root, "new") == wanted
        assert not (root / "spark").exists()
    assert 10 < steps < 100


def test_a_start_of_which_only_a_position_is_left(origin: LocalStorage, tmp_path: Path) -> None:
    """It began without a savepoint; the one that forgot it was killed after job.json had gone."""
    spark_files(tmp_path / "job", "d1", 2)
    assert begin_with(origin, LocalStorage(tmp_path / "job"), job="job")
    assert not (tmp_path / "job" / "spark").exists()


def test_a_claim_waits_for_the_first_epoch(
    work: Work, origin: LocalStorage, tmp_path: Path
) -> None:
    job = work.go_on(Path(origin.uri), tmp_path / "job", claim=True)
    claim_savepoint(origin, job.storage)
    assert origin.exists("savepoint.json")
    job.uids = ("old",)
    job.some(1)
    (Path(origin.uri) / "note.txt").write_text("the user's own")
    claim_savepoint(origin, job.storage)
    assert list(content(Path(origin.uri))) == ["note.txt"]
    claim_savepoint(origin, job.storage)


def test_another_process_that_is_at_its_first_epoch(
    work: Work, origin: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = work.go_on(Path(origin.uri), tmp_path / "job")
    Ownership(job.storage, "r").acquire()
    fence_start(job.storage)  # by this very process
    Ownership(job.storage, "r").acquire()
    monkeypatch.setattr("os.getpid", lambda: 1)
    with pytest.raises(InUseError, match="has published nothing yet: stop it first"):
        begin_with(
            origin,
            job.storage,
            job="job",
            uid_map={"old": "new"},
            fence=lambda: fence_start(job.storage),
        )
    assert not begin_with(origin, job.storage, job="job")


def test_a_driver_that_was_fenced_in_its_first_epoch(tmp_path: Path) -> None:
    job = Work(tmp_path / "job")
    with job.coordinator() as old:

        def late(epoch: Any) -> Any:
            with job.coordinator(max_parallelism=64), pytest.raises(FencedError):
                old.check_owner()
            return job.evaluate({1: 1})(epoch)

        with pytest.raises(FencedError):
            old.run(late)
    assert read(job.some(1).root) == job.counts


def test_a_driver_that_published_as_it_was_fenced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its epoch counts, with its own number of key groups."""
    job = Work(tmp_path / "job")
    with job.coordinator() as old, job.coordinator(max_parallelism=64) as new:
        monkeypatch.setattr(Ownership, "check", lambda self: None)
        job.run(old, {1: 1})
        with pytest.raises(FencedError, match=r"max_parallelism=128: start the job again"):
            new.run(job.evaluate({1: 1}))
    monkeypatch.undo()
    with pytest.raises(InvalidArgumentError, match="max_parallelism=128, not 64"):
        job.coordinator(max_parallelism=64)
    assert read(job.some(1).root) == job.counts


def test_a_rename_is_advised_before_state_is_left_behind(
    work: Work, origin: LocalStorage, tmp_path: Path
) -> None:
    job = work.go_on(Path(origin.uri), tmp_path / "job", uids=("new",))
    with pytest.raises(UnclaimedStateError) as raised:
        job.some(1)
    text = str(raised.value)
    assert text.index("uid_map={'old': 'new'}") < text.index("allow_unclaimed_state")
    work.uids = ("new",)
    with pytest.raises(UnclaimedStateError, match=r"take a savepoint.*uid_map=\{'old': 'new'\}"):
        work.some(1)
    work.uids = ("old", "another")
    work.some(1)
    work.uids = ("old",)
    with pytest.raises(UnclaimedStateError) as raised:
        work.some(1)
    assert "uid_map" not in str(raised.value)


def test_each_renamed_operator_is_advised_another_name(tmp_path: Path) -> None:
    job = Work(tmp_path / "job")
    job.uids = ("a", "b", "c")
    job.some(1)
    job.uids = ("c", "x", "y")
    with pytest.raises(UnclaimedStateError, match=r"uid_map=\{'a': 'x', 'b': 'y'\}"):
        job.some(1)


@pytest.mark.parametrize("groups", [None, 64])
def test_a_store_that_has_no_checkpoint_yet(tmp_path: Path, groups: int | None) -> None:
    states = {"n": ps.ValueState("long")}
    ps.open(tmp_path / "s", key="long", states=states, max_parallelism=32).close()
    with ps.open(tmp_path / "s", key="string", states=states, max_parallelism=groups) as store:
        store.set_current_key("a")
        store["n"].update(1)
        store.checkpoint()
    assert ps.describe(tmp_path / "s").max_parallelism == (groups or 128)
    with pytest.raises(InvalidArgumentError, match="was made with"):
        ps.open(tmp_path / "s", key="string", states=states, max_parallelism=16)


def test_a_store_that_is_open_is_no_jobs(tmp_path: Path) -> None:
    states = {"n": ps.ValueState("long")}
    job = Work(tmp_path / "s")
    act: Callable[[], Any] = job.coordinator
    with (
        ps.open(tmp_path / "s", key="long", states=states),
        pytest.raises(ps.errors.TableBusyError),
    ):
        act()
    act().close()
    with pytest.raises(InvalidArgumentError, match="is no store"):
        ps.open(tmp_path / "s", key="long", states=states)


def test_two_drivers_that_begin_at_once(
    work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one has begun at any point of the other's beginning; both begin with the same."""
    a_run_and_a_stream(work)
    ps.savepoint(work.root, tmp_path / "savepoint")
    origin = LocalStorage(tmp_path / "savepoint")
    for step in range(100):
        root = tmp_path / f"job{step}"

        class Slow(Cut):
            def _step(self) -> None:
                self.left -= 1
                if self.left == 0:
                    begin_with(origin, LocalStorage(self.uri), job="job")

        slow = Slow(root)
        slow.left = step
        begin_with(origin, slow, job="job")
        query_id = json.loads((root / "spark" / "metadata").read_text())["id"]
        head = read_head(slow)
        assert head is not None and head.query_id == query_id
        assert head.progress(query_id) is not None and read(root, "old") == work.counts
        if slow.left > 0:
            break
    assert 10 < step < 90


def test_epochs_whose_job_is_lost(work: Work, origin: LocalStorage) -> None:
    (work.root / "job.json").unlink()
    before = content(work.root)
    with pytest.raises(CheckpointError, match=r"has epochs, but job\.json"):
        begin_with(origin, work.storage, job="job")
    assert content(work.root) == before
