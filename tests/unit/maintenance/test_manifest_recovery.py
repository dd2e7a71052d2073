"""`repair` of a checkpoint without manifests: it goes back to what the other files show.

What it makes is compared with what the state was: it is that of the epoch that it names, or there
is none.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import pystate as ps
from pystate.checkpoint.epoch_log import HISTORY
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.source_position import offsets_hash
from pystate.checkpoint.storage import LocalStorage
from pystate.cli.app import app
from pystate.epochs.epoch import Epoch
from pystate.epochs.merge_policy import MergePolicy
from pystate.epochs.position import AlreadyDone
from pystate.epochs.range_report import RangeReport
from pystate.errors import CheckpointError
from pystate.tables.host import TableHome
from tests.peer import Worker
from tests.unit.maintenance.test_repair import POLICY, UIDS, Streaming, damage
from tests.work import HASHES, KEY, Work, content, read

STATES = {"n": ps.ValueState("long", default=0)}


def copy(origin: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(origin, target, copy_function=os.link)
    return target


def without_manifests(origin: Path, target: Path, keep: Callable[[str], bool]) -> Path:
    copy(origin, target)
    for path in (target / "manifests").iterdir():
        if path.suffix == ".manifest" or not keep(path.name):
            path.unlink()
    return target


KEPT: dict[str, Callable[[str], bool]] = {
    "nothing": lambda name: False,
    "marks": lambda name: name.endswith(".retired"),
    "latest": lambda name: name in ("latest", "committed"),
    "all": lambda name: True,
}


def same_ranges(made: Manifest, before: Manifest) -> None:
    """All that can be known is as it was; a chain may have been merged further."""
    for name in ("epoch", "max_parallelism", "processing_time_ms", "watermark_ms", "created_ms"):
        assert getattr(made, name) == getattr(before, name)
    assert made.run_key == before.run_key
    for ours, theirs in zip(
        made.operators, sorted(before.operators, key=lambda o: o.uid), strict=True
    ):
        for name in ("uid", "parallelism", "key_schema", "state_schema", "watermark_ms", "timers"):
            assert getattr(ours, name) == getattr(theirs, name)
        for mine, range_ in zip(ours.ranges, theirs.ranges, strict=True):
            assert (mine.id, mine.since) == (range_.id, range_.since)
            assert mine.files[-1:] == range_.files[-1:]


@pytest.mark.parametrize("epochs", [1, 2, 7, 40])
def test_a_store(tmp_path: Path, epochs: int) -> None:
    origin = tmp_path / "origin"
    with ps.open(origin, key="long", states=STATES) as store:
        for number in range(epochs):
            store["n"].add(store.keys(np.arange(10 * number, 10 * number + 100)), 1)
            store.checkpoint()
        before = sorted(map(str, store.to_arrow().to_pylist()))
    for name, keep in KEPT.items():
        root = without_manifests(origin, tmp_path / name, keep)
        said = ps.repair(root, dry_run=True)
        assert (said.remade, said.good_epoch, said.lost, said.remaining) == (epochs, epochs, (), ())
        assert not said.unknown and not list((root / "manifests").glob("*.manifest"))
        done = ps.repair(root)
        assert done.remade == epochs and ps.verify(root).ok
        with ps.open(root, key="long", states=STATES) as store:
            assert sorted(map(str, store.to_arrow().to_pylist())) == before
            assert store.epoch == epochs
            store["n"].add(store.keys([5]), 1)
            assert store.checkpoint() == epochs + 1
        assert ps.verify(root).ok and not ps.repair(root).is_needed


@pytest.mark.parametrize("policy", [None, POLICY])
def test_a_stream_goes_on_where_it_stood(tmp_path: Path, policy: MergePolicy | None) -> None:
    whole = Streaming(tmp_path / "whole", 9, merge_policy=policy)
    before = read_head(whole.work.storage)
    assert before is not None
    for name, keep in KEPT.items():
        root = without_manifests(whole.root, tmp_path / name, keep)
        plan = ps.repair(root)
        assert (plan.remade, plan.good_epoch, plan.lost) == (9, 9, ())
        head = read_head(LocalStorage(root))
        assert head is not None
        same_ranges(head, before)
        progress, path = head.progress(whole.query_id), root / "spark/offsets/8"
        assert progress is not None and (progress.batch_id, progress.epoch) == (8, 9)
        assert progress.offsets_hash == offsets_hash(path.read_bytes(), str(path))
        whole.at(root).go_on(9, 11)


def runs(root: Path, epochs: int = 6) -> Work:
    """A job of which every other epoch is a run with a key, and of which a range rests at times."""
    work = Work(root)
    with work.coordinator(retained=2) as driver:
        for number in range(epochs):
            key = {} if number % 2 else {"run_key": f"run {number}"}
            work.run(driver, {1: 1, number: 1}, **key)
    return work


def test_no_run_is_done_twice(tmp_path: Path) -> None:
    origin = runs(tmp_path / "origin")
    for name, keep in KEPT.items():
        root = without_manifests(origin.root, tmp_path / name, keep)
        assert ps.repair(root).remade == 6
        assert read(root) == origin.counts and ps.verify(root).ok
        with Work(root).coordinator(retained=2) as driver:
            for number in (0, 2, 4):
                done = driver.open_epoch(run_key=f"run {number}")
                assert isinstance(done, AlreadyDone) and done.epoch == number + 1
            opened = driver.open_epoch(run_key="another")
            assert isinstance(opened, Epoch) and opened.number == 7
            opened.abort()


def test_an_epoch_without_a_record_may_have_been_any_run(tmp_path: Path) -> None:
    """A killed driver has not written its last record, and the next one went on."""
    work, root = Work(tmp_path / "c"), tmp_path / "c"
    with work.coordinator() as driver:
        for number in range(3):
            work.run(driver, {1: 1}, run_key=f"run {number}")
    [newest] = (root / HISTORY).iterdir()
    newest.write_bytes(b"".join(newest.read_bytes().splitlines(keepends=True)[:2]))
    with work.coordinator() as driver:
        work.run(driver, {1: 1}, run_key="run 3")
    shutil.rmtree(root / "manifests")
    plan = ps.repair(root)
    assert plan.remade == 4 and plan.unknown == ("of which runs the epochs 3 were",)
    with work.coordinator() as driver:
        assert isinstance(driver.open_epoch(run_key="run 1"), AlreadyDone)
        with pytest.raises(CheckpointError, match="may be epoch 3"):
            driver.open_epoch(run_key="run 2")


def attempt(work: Work, epoch: int) -> dict[str, bytes]:
    """What an evaluation of the next epoch has written that lost: its files have other content."""
    rival = Work(copy(work.root, work.root.parent / "rival"))
    rival.counts = {}
    with rival.coordinator(retained=100) as driver:
        rival.run(driver, dict.fromkeys(range(50, 60 + epoch), 7))
    found = sorted((rival.root / "state").rglob(f"{epoch:08d}-*"))
    return {str(path.relative_to(rival.root)): path.read_bytes() for path in found}


@pytest.mark.parametrize("policy", [None, POLICY])
def test_what_lost_is_never_taken_for_the_state(tmp_path: Path, policy: MergePolicy | None) -> None:
    """Nor is an epoch whose files are lost: each state file in turn."""
    work, then = Work(tmp_path / "c"), dict[int, dict[int, int]]()
    losers: dict[str, bytes] = {}
    for number in range(1, 7):
        with work.coordinator(retained=3, merge_policy=policy) as driver:
            work.run(driver, {number: 1, 1: 1} if number % 2 else dict.fromkeys(range(40), 1))
            then[number] = dict(work.counts)
            driver.maintain()
        losers |= attempt(work, number + 1)
    last = max(then)
    for path, data in losers.items():
        (work.root / path).write_bytes(data)
    shutil.rmtree(work.root / "manifests")
    assert ps.repair(copy(work.root, tmp_path / "all")).remade == last
    assert read(tmp_path / "all") == then[last]
    ends = []
    for name in sorted(name for name in content(work.root) if name.startswith("state/")):
        root = copy(work.root, tmp_path / "one")
        damage(root / name)
        try:
            plan = ps.repair(root)
        except CheckpointError as error:
            assert "cannot be made anew" in str(error)
            assert name not in losers
            ends.append(0)
            continue
        assert plan.remade == plan.good_epoch and read(root) == then[plan.good_epoch], name
        assert ps.verify(root).ok
        assert plan.good_epoch == last or name not in losers
        ends.append(plan.good_epoch)
    assert last in ends and {*ends} - {0, last} and (0 in ends) == (policy is None)


@pytest.mark.parametrize("policy", [None, POLICY])
def test_another_parallelism(tmp_path: Path, policy: MergePolicy | None) -> None:
    """What former ranges have left only a manifest can tell, until merges have replaced it."""
    work, then = Work(tmp_path / "c"), dict[int, dict[int, int]]()
    for step, parallelism in enumerate((2, 3, 3, 1, 4)):
        with work.coordinator(parallelism=parallelism, merge_policy=policy) as driver:
            for number in range(1 + step % 3 * 3):
                epoch = work.run(driver, {number: 1, 50 + step: 1})
                then[epoch] = dict(work.counts)
                driver.maintain()
                root = copy(work.root, tmp_path / "lost")
                shutil.rmtree(root / "manifests")
                for mark in (root / "owners").iterdir():
                    mark.unlink()
                plan = ps.repair(root)
                assert plan.newest_epoch == epoch
                # The first parallelism has one epoch.
                assert plan.remade == plan.good_epoch == (1 if policy is None else epoch)
                assert read(root) == then[plan.good_epoch]


def test_what_cannot_be_known(tmp_path: Path) -> None:
    whole = Streaming(tmp_path / "whole", 4)
    for path, said in {
        "history": "the history, which knows what epochs were published, is lost, too",
        "job.json": "job.json, which names the operators, is lost, too",
        "spark/offsets": "where the stream stood is not known: spark/offsets/3 is lost or damaged",
        # A range's id may begin like that of an empty one.
        "state/a/00000-00063": "operator 'a'(, range 0: state files are lost"
        "|: its files, or its states in job.json, are not those of the epoch)",
    }.items():
        root = without_manifests(whole.root, tmp_path / "lost", KEPT["all"])
        shutil.rmtree(root / path) if (root / path).is_dir() else (root / path).unlink()
        before = content(root)
        with pytest.raises(CheckpointError, match=said):
            ps.repair(root)
        assert content(root) == before


def test_states_that_were_dropped_and_declared_anew(tmp_path: Path) -> None:
    """Which of their files count is recorded, too: older files hold what was dropped."""
    work = Work(tmp_path / "c")
    both = {"n": ps.ValueState("long", default=0), "s": ps.ValueState("string")}
    for step, names in enumerate((("n", "s"), ("n",), ("n", "s"), ("n", "s"))):
        states = {name: both[name] for name in names}
        schema = tuple((name, state.stored_as()) for name, state in states.items())
        with work.coordinator(allow_unclaimed_state=True, retained=9) as driver:

            def evaluate(
                epoch: Epoch, states: Any = states, schema: Any = schema, step: int = step
            ) -> tuple[str]:
                for state in epoch.declare("op", key_schema=KEY, state_schema=schema):
                    worker = Worker(
                        str(work.root),
                        TableHome(None, None),
                        states=states,
                        allow_unclaimed_state=True,
                    )
                    worker.attach(state)
                    groups = range(state.first_key_group, state.last_key_group + 1)
                    mine = [k for k in range(9) if ps.key_group(HASHES[k], 128) in groups]
                    # Keys of the first epoch are not written again.
                    worker.put({k: {"n": step} for k in mine if k > step})
                    if step == 0:
                        worker.put({k: {"s": "dropped"} for k in mine})
                    ref = worker.seal(epoch.number)
                    worker.stop()
                    assert epoch.report(
                        RangeReport("op", state.index, epoch.evaluation_id, ref.id, state.id, ref)
                    )
                return ("out",)

            driver.run(evaluate)
        before, head = ps.read_state(work.root, "op").to_pylist(), read_head(work.storage)
        assert head is not None
        assert bool(head.operators[0].ranges[0].since) == (step > 1)
        root = copy(work.root, tmp_path / "lost")
        shutil.rmtree(root / "manifests")
        assert ps.repair(root).remade == step + 1
        after = read_head(LocalStorage(root))
        assert after is not None
        same_ranges(after, head)
        assert sorted(map(str, ps.read_state(root, "op").to_pylist())) == sorted(map(str, before))
    # An epoch before a change is not gone back to: merges may have dropped what it had.
    damage(next((work.root / "state").rglob("00000003-*")))
    shutil.rmtree(work.root / "manifests")
    with pytest.raises(CheckpointError, match="epoch 4 cannot be made anew"):
        ps.repair(work.root)


def test_an_operator_that_rested_since_an_epoch_without_a_record(tmp_path: Path) -> None:
    """What it was then is not known: an older record of it proves nothing."""
    work = Work(tmp_path / "c", uids=("a", "b"))
    for number, uids in enumerate((("a", "b"), ("a", "b"), ("b",))):
        work.uids = uids
        with work.coordinator(allow_unclaimed_state=True) as driver:
            work.run(driver, {number: 1, 1: 1})
    then = read(work.root, "a")
    shutil.rmtree(work.root / "manifests")
    root = copy(work.root, tmp_path / "lost")
    assert ps.repair(root).remade == 3 and read(root, "a") == then
    for path in (work.root / HISTORY).iterdir():
        if path.name.startswith("00000002-"):
            path.unlink()
    plan = ps.repair(work.root, dry_run=True)
    assert plan.remade == 1 and plan.good_epoch == 1 and len(plan.lost) == 2


def test_where_the_stream_stood_is_known_or_the_epoch_is_not_gone_back_to(tmp_path: Path) -> None:
    """A run does not move the stream; an epoch without a record may have."""
    whole = Streaming(tmp_path / "c", 2)
    whole.work.uids = UIDS
    with whole.work.coordinator() as driver:
        whole.work.run(driver, {1: 1}, run_key="r")
    shutil.rmtree(whole.root / "manifests")
    root = copy(whole.root, tmp_path / "lost")
    assert ps.repair(root).remade == 3
    head = read_head(LocalStorage(root))
    assert head is not None and head.query_id is None and head.run_key == "r"
    assert [(query.batch_id, query.epoch) for query in head.queries] == [(1, 2)]
    [first] = (path for path in (whole.root / HISTORY).iterdir() if path.name[:8] == "00000001")
    first.write_bytes(first.read_bytes().splitlines(keepends=True)[0])
    plan = ps.repair(whole.root, dry_run=True)
    assert plan.remade == 1 and 1 in plan.stream_batches


def test_timers_are_looked_for(tmp_path: Path) -> None:
    """The first one of a range is not known: it counts as due until a task has seen it."""
    work = Work(tmp_path / "c")

    def evaluate(epoch: Epoch) -> tuple[str]:
        for state in epoch.declare("op", key_schema=KEY, state_schema=(), timers=True):
            worker = Worker(str(work.root), TableHome(None, None), states={}, timers=True)
            worker.attach(state)
            backend = worker.attachment.backend
            groups = range(state.first_key_group, state.last_key_group + 1)
            mine = [k for k in range(9) if ps.key_group(HASHES[k], 128) in groups]
            keys = backend.keys(pa.array(mine, pa.int64()))
            backend.register_timers(keys, "event", pa.array([500 + k for k in mine], pa.int64()))
            first = backend.next_timer("event")
            ref = worker.seal(epoch.number)
            worker.stop()
            at = epoch.evaluation_id, ref.id, state.id, ref
            report = RangeReport("op", state.index, *at, next_event_timer_ms=first)
            assert epoch.report(report)
        return ("out",)

    with work.coordinator() as driver:
        driver.run(evaluate)
    before = read_head(work.storage)
    shutil.rmtree(work.root / "manifests")
    assert ps.repair(work.root).remade == 1 and ps.verify(work.root).ok
    after = read_head(work.storage)
    assert before is not None and after is not None
    same_ranges(after, before)
    for ours, theirs in zip(after.operators[0].ranges, before.operators[0].ranges, strict=True):
        assert ours.next_event_timer_ms is not None and theirs.next_event_timer_ms is not None
        assert ours.next_event_timer_ms <= theirs.next_event_timer_ms
    with work.coordinator() as driver:
        driver.run(evaluate)
    again = read_head(work.storage)
    assert again is not None
    assert [r.next_event_timer_ms for r in again.operators[0].ranges] == [
        r.next_event_timer_ms for r in before.operators[0].ranges
    ]


def test_the_command_says_what_is_not_known(tmp_path: Path) -> None:
    whole = Streaming(tmp_path / "whole", 4)
    shutil.rmtree(whole.root / "manifests")
    done = CliRunner().invoke(app, ["repair", str(whole.root), "--yes"])
    assert done.exit_code == 0, done.output
    assert "The manifest of epoch 4 is made anew, from the state files and the history" in " ".join(
        done.output.split()
    )
    assert read(whole.root, "a") == whole.then[4]


@pytest.mark.parametrize("damaged", [False, True])
def test_a_stores_newest_epoch_although_older_manifests_are_left(
    tmp_path: Path, damaged: bool
) -> None:
    """Nothing computes a store's changes again, as a job does."""
    root = tmp_path / "store"
    with ps.open(root, key="long", states=STATES) as store:
        for number in range(5):
            store["n"].add(store.keys(np.arange(10 * number, 10 * number + 100)), 1)
            store.checkpoint()
        before = sorted(map(str, store.to_arrow().to_pylist()))
    newest = root / "manifests" / "00000005.manifest"
    if damaged:
        newest.write_bytes(newest.read_bytes()[1:])
    else:
        newest.unlink()
        (root / "manifests" / "00000004.manifest").unlink()
    done = ps.repair(root)
    assert (done.good_epoch, done.remade, done.lost, done.unknown) == (5, 5, (), ())
    with ps.open(root, key="long", states=STATES) as store:
        assert sorted(map(str, store.to_arrow().to_pylist())) == before
        store["n"].add(store.keys([5]), 1)
        assert store.checkpoint() == 6
    assert ps.verify(root).ok and not ps.repair(root).is_needed


def test_a_stores_older_manifest_where_the_newest_epoch_cannot_be_made_anew(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with ps.open(root, key="long", states=STATES) as store:
        for number in range(3):
            store["n"].add(store.keys([number]), 1)
            store.checkpoint()
    (root / "manifests" / "00000003.manifest").unlink()
    shutil.rmtree(root / "history")
    done = ps.repair(root)
    assert (done.good_epoch, done.remade) == (2, None)
    assert ps.verify(root).ok


def test_a_job_goes_back_to_the_manifest_that_is_left(tmp_path: Path) -> None:
    """Also where a newer one could be made anew: it computes the rest once more."""
    work = Streaming(tmp_path / "c", 4)
    (work.root / "manifests" / "00000004.manifest").unlink()
    plan = ps.repair(work.root, dry_run=True)
    assert (plan.good_epoch, plan.remade, plan.stream_batches) == (3, None, (3, 4))
