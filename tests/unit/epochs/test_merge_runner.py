"""Merges that are carried out elsewhere: which, in what order, and what becomes of failures."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import pystate as ps
import pystate.epochs.merges
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.refs import FileRef
from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.coordinator import Coordinator
from pystate.epochs.merge_policy import MergePolicy, Run
from pystate.epochs.merges import PlannedMerge, merge_again
from pystate.errors import CheckpointError
from tests.conftest import FakeWork

from .test_merges import EAGER, bases, fake_merge
from .test_retention import collect

UIDS = ("big", "small")


def merged(storage: LocalStorage, plan: PlannedMerge) -> FileRef:
    bounds = plan.first_key_group, plan.last_key_group
    run = plan.run
    return fake_merge(storage, run.sources, run.id, plan.output, *bounds, kind=run.kind)


class Runner:
    """Merges in threads of its own; notes what it is asked for."""

    def __init__(self, storage: LocalStorage, tasks: int = 2) -> None:
        self.storage = storage
        self.count = tasks
        self.batches: list[list[PlannedMerge]] = []
        self.given_up = threading.Event()
        self.merge: Callable[[PlannedMerge], FileRef | str] = lambda plan: merged(storage, plan)

    def tasks(self) -> int:
        return self.count

    def run(self, merges: Sequence[PlannedMerge]) -> list[FileRef | str]:
        self.batches.append(list(merges))
        with ThreadPoolExecutor(self.count) as pool:
            return list(pool.map(self.merge, merges))

    def give_up(self) -> None:
        self.given_up.set()


@pytest.fixture
def runner(work: FakeWork, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """It is asked from 6 merges on, and gets at most 3 per task."""
    assert isinstance(work.storage, LocalStorage)
    monkeypatch.setattr(pystate.epochs.merges, "_MANY", 6)
    monkeypatch.setattr(pystate.epochs.merges, "_PER_TASK", 3)
    return Runner(work.storage)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of files that the driver's thread has merged."""
    found: list[str] = []

    def noted(*arguments: Any, **options: Any) -> FileRef:
        found.append(arguments[3])
        return fake_merge(*arguments, **options)

    monkeypatch.setattr(pystate.epochs.merges, "merge_range", noted)
    return found


def run(coordinator: Coordinator, work: FakeWork, *texts: str, uids: Sequence[str] = UIDS) -> None:
    """Run epochs; merges begin after the last of them has planned its own."""
    go_on = threading.Event()
    coordinator._maintenance.submit(lambda: go_on.wait(60))
    for text in texts:
        coordinator.run(work.evaluate(text, uids=uids))
    go_on.set()
    coordinator._maintenance.wait()


def driver(work: FakeWork, runner: Runner, parallelism: int, **options: Any) -> Coordinator:
    options = {"merge_policy": EAGER, **options}
    return work.coordinator(merge_runner=runner, parallelism=parallelism, **options)


def head(coordinator: Coordinator) -> Manifest:
    assert coordinator.head is not None
    return coordinator.head


def texts(work: FakeWork, coordinator: Coordinator) -> set[str]:
    """What the ranges say, each as one text."""
    manifest = head(coordinator)
    return {
        ",".join(work.text(manifest, operator.uid, state.index))
        for operator in manifest.operators
        for state in operator.ranges
    }


def test_many_merges_go_to_the_runner(work: FakeWork, runner: Runner, here: list[str]) -> None:
    with driver(work, runner, 8) as coordinator:
        run(coordinator, work, "a", "b", "c")
        # The last ones are too few for it.
        assert [len(batch) for batch in runner.batches] == [6, 6] and len(here) == 4
        # Operators take turns, and no merge is done twice.
        uids = [plan.uid for batch in runner.batches for plan in batch]
        assert uids == ["big", "small"] * 6
        outputs = {plan.output for batch in runner.batches for plan in batch} | set(here)
        assert len(outputs) == 16
        assert {entry.path for entry in bases(work)} == outputs
        run(coordinator, work, "d")
        assert outputs < head(coordinator).paths
        assert texts(work, coordinator) == {"a,b,c,d"}
    assert runner.given_up.is_set()


def test_driver_merges_if_the_runner_has_no_tasks(
    work: FakeWork, runner: Runner, here: list[str]
) -> None:
    runner.count = 0
    with driver(work, runner, 8) as coordinator:
        run(coordinator, work, "a", "b", "c", "d")
        assert not runner.batches and len(here) == 16


def test_few_large_merges_go_to_the_runner(
    work: FakeWork, runner: Runner, here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their bytes; and then a batch is not longer than it has tasks."""
    monkeypatch.setattr(pystate.epochs.merges, "_MANY_BYTES", 100)
    monkeypatch.setattr(pystate.epochs.merges, "_PER_TASK_BYTES", 10)
    with driver(work, runner, 5) as coordinator:
        run(coordinator, work, "a" * 14, "b" * 14, "c", uids=("op",))
        # A merge reads 28 bytes. The third one leaves 56 bytes waiting.
        assert [len(batch) for batch in runner.batches] == [2] and len(here) == 3
        run(coordinator, work, "d", uids=("op",))
        assert len(bases(work)) == 5


def test_failed_merges_wait_while_others_are_adopted(
    work: FakeWork, runner: Runner, here: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    def broken(plan: PlannedMerge) -> FileRef | str:
        if plan.uid == "big":
            work.storage.publish(plan.output, b"half of an attempt")
            return "state/x is damaged"
        return merged(runner.storage, plan)

    runner.merge = broken
    with driver(work, runner, 3) as coordinator:
        run(coordinator, work, "a", "b", "c")
        assert len(bases(work)) == 3 and not here
        assert caplog.text.count("state/x is damaged") == 1
        assert "3 of 6 merges" in caplog.text
        runner.merge = lambda plan: merged(runner.storage, plan)
        for number in range(15):
            run(coordinator, work, str(number))
        assert not [path for path in here if "/big/" in path]
        run(coordinator, work, "x")
        assert len(head(coordinator).operator("big").ranges[0].deltas) == 19  # type: ignore[union-attr]
        run(coordinator, work, "y")
        assert len(head(coordinator).operator("big").ranges[0].deltas) < 6  # type: ignore[union-attr]
        assert len(texts(work, coordinator)) == 1


def test_runner_that_fails_loses_nothing(
    work: FakeWork, runner: Runner, here: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Its processes may have finished some files, and may finish others later."""
    late: list[PlannedMerge] = []

    def lost(plan: PlannedMerge) -> FileRef | str:
        if len(late) % 2:
            merged(runner.storage, plan)
        late.append(plan)
        raise CheckpointError("the executors are gone")

    runner.merge, runner.count = lost, 1
    with driver(work, runner, 3, orphan_grace_ms=0) as coordinator:
        coordinator._merges._runner.count = 2  # type: ignore[union-attr]
        run(coordinator, work, "a", "b", "c")
        assert len(late) >= 2 and not bases(work) and not here
        assert caplog.text.count("the executors are gone") == 1
        run(coordinator, work, "d")
        assert texts(work, coordinator) == {"a,b,c,d"}
        # What a process writes that has outlived its job.
        merged(runner.storage, late[0])
        coordinator.maintain()
        assert not bases(work)


def test_search_for_orphans_leaves_what_runs(work: FakeWork, runner: Runner) -> None:
    def searched(plan: PlannedMerge) -> FileRef | str:
        ref = merged(runner.storage, plan)
        assert coordinator._merges is not None
        collect(work.storage, term=coordinator.term, live=coordinator._merges.live)
        return ref

    runner.merge = searched
    with driver(work, runner, 3) as coordinator:
        run(coordinator, work, "a", "b", "c")
        assert len(bases(work)) == 6


def test_epochs_do_not_wait_for_the_runner(work: FakeWork, runner: Runner) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(plan: PlannedMerge) -> FileRef | str:
        begun.set()
        assert go_on.wait(60)
        return merged(runner.storage, plan)

    runner.merge = slow
    with driver(work, runner, 3) as coordinator:
        for text in "abc":
            coordinator.run(work.evaluate(text, uids=UIDS))
        coordinator._maintenance.submit(lambda: None)
        if not begun.wait(1):  # the thread was quicker than the plan
            assert not runner.batches
        for text in "de":
            coordinator.run(work.evaluate(text, uids=UIDS))
        go_on.set()
        coordinator.maintain()
        coordinator.run(work.evaluate("f", uids=UIDS))
        assert texts(work, coordinator) == {"a,b,c,d,e,f"}


@pytest.mark.parametrize("fails", [False, True])
def test_merges_that_are_given_up_leave_nothing(
    work: FakeWork, runner: Runner, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    begun = threading.Event()

    def ended(plan: PlannedMerge) -> FileRef | str:
        begun.set()
        assert runner.given_up.wait(60)
        ref = merged(runner.storage, plan)
        if fails:
            raise CheckpointError("cancelled")
        return ref

    runner.merge = ended
    coordinator = driver(work, runner, 8)
    go_on = threading.Event()
    coordinator._maintenance.submit(lambda: go_on.wait(60))
    for text in "abc":
        coordinator.run(work.evaluate(text, uids=UIDS))
    go_on.set()
    assert begun.wait(60)
    coordinator.close()
    assert len(runner.batches) == 1 and not bases(work)
    assert "cancelled" not in caplog.text


def test_a_merge_that_another_attempt_has_finished(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    paths = [f"state/op/00000-00127/0000000{epoch}-0.delta" for epoch in (1, 2)]
    with ps.KeyedStateBackend("long", states={"n": ps.ValueState("long")}) as backend:
        refs = []
        for path in paths:
            backend["n"].update_all(backend.keys(range(9)), range(9))
            with storage.create(path) as out:
                refs.append(FileRef.from_info(path, backend.seal().write(out)))
    output = "state/op/00000-00127/00000002-t1-ab.base"
    run = Run(tuple(refs), "base", refs[-1].id)
    plan = PlannedMerge("op", 0, 127, run, output, frozenset({"n"}), ())
    first = merge_again(storage, plan)
    assert (first.path, first.kind, first.id, first.rows) == (output, "base", refs[-1].id, 9)
    written = storage.list("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pystate.epochs.merges, "merge_range", None)
        assert merge_again(storage, plan) == first
    # Both have begun before either has ended.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStorage, "exists", lambda self, path: False)
        assert merge_again(storage, plan) == first
    assert storage.list("state") == written and not storage.list("", temporary=True)


def test_merging_is_in_proportion_to_epochs(
    work: FakeWork, runner: Runner, here: list[str]
) -> None:
    """Many ranges with changes of random sizes; wherever they are merged."""
    rng = random.Random(0)
    policy = MergePolicy(max_deltas=12)
    written, found = 0, Counter[str]()
    with driver(work, runner, 3, merge_policy=policy, retained=1) as coordinator:
        for number in range(90):
            text = "x" * int(20 * rng.paretovariate(1.2))
            written += 6 * len(text)
            run(coordinator, work, text[: 1 << 14])
            for operator in head(coordinator).operators:
                for state in operator.ranges:
                    assert len(state.deltas) <= 13
                    for ref in state.files:
                        if "-t" in ref.path:
                            found[ref.path] = ref.file_bytes
            if number == 45:
                runner.count = 0
    assert runner.batches and here
    # State that only grows is the worst case: a new base has three times the bytes of its deltas.
    based = sum(size for path, size in found.items() if path.endswith(".base"))
    assert based <= 3 * written, based / written
    assert found.total() <= 3.5 * written, found.total() / written
