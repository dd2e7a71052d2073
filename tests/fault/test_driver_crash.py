"""Drivers killed at every step and at random moments, and drivers that race."""

from __future__ import annotations

import builtins
import os
import random
import shutil
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.refs import FileRef
from pystate.checkpoint.storage import CheckpointStorage, LocalStorage
from pystate.epochs.coordinator import Coordinator
from pystate.epochs.epoch import Epoch
from pystate.epochs.merge_policy import MergePolicy
from pystate.epochs.ownership import Ownership
from pystate.errors import CheckpointError, FencedError
from tests.conftest import FakeWork
from tests.drawn import stride

CRASHED = 77


class Driver:
    """A driver with a transactional sink, on a checkpoint folder, restartable."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.work = FakeWork(LocalStorage(root / "ck"))
        for folder in ("staging", "out", "commits"):
            (root / folder).mkdir(parents=True, exist_ok=True)

    def coordinator(self, orphan_grace_ms: int = 0) -> Coordinator:
        return self.work.coordinator(
            commit_sinks=self.commit,
            retained=2,
            merge_policy=None,
            orphan_grace_ms=orphan_grace_ms,
        )

    def commit(self, manifest: Manifest) -> None:
        """One rename; source gone and destination there is done."""
        for transaction in manifest.sinks:
            final = self.root / "out" / str(manifest.epoch)
            try:
                os.rename(self.root / "staging" / transaction, final)
            except FileNotFoundError:
                if not final.exists():
                    raise

    def evaluate(self, text: str) -> Callable[[Epoch], Sequence[Any]]:
        def evaluate(epoch: Epoch) -> Sequence[Any]:
            for report in self.work.reports(epoch, text):
                epoch.report(report)
            name = f"{epoch.number}-{epoch.evaluation_id}"
            (self.root / "staging" / name).write_text(text)
            return [name]

        return evaluate

    def run_batch(self, coordinator: Coordinator, number: int) -> None:
        """What Spark does with a batch: run it, then write its own commit."""
        coordinator.run(
            self.evaluate(f"b{number}"),
            query_id="q",
            batch_id=number,
            offsets_hash=f"offsets-{number}",
            processing_time_ms=number,
        )
        (self.root / "commits" / str(number)).touch()

    def next_batch(self) -> int:
        return len(os.listdir(self.root / "commits"))

    def check(self, batches: int) -> None:
        """Every batch is in the state and in the output exactly once."""
        head = read_head(self.work.storage)
        expected = [f"b{n}" for n in range(batches)]
        assert head is not None
        for index in range(2):
            assert self.work.text(head, index=index) == expected
        out = sorted(os.listdir(self.root / "out"), key=int)
        assert [(self.root / "out" / name).read_text() for name in out] == expected
        assert out == [str(epoch) for epoch in range(1, batches + 1)] and head.epoch == batches


def forked(function: Callable[[], object]) -> int:
    """Run a function in a process of its own; returns the pid."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        function()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def crash_at(step: int) -> None:
    """Let this process end before the step-th call that changes the file system."""
    left = [step]

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if left[0] == 0:
                os._exit(CRASHED)
            left[0] -= 1
            return real(*arguments, **options)

        return call

    for name in ("link", "unlink", "replace", "rename", "fsync", "makedirs"):
        setattr(os, name, counted(getattr(os, name)))
    real_open = builtins.open

    def opened(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        call = real_open if "r" in mode else counted(real_open)
        return call(path, mode, *arguments, **options)

    builtins.open = opened  # type: ignore[assignment]


@pytest.mark.drawn
def test_crash_at_every_step_of_an_epoch(tmp_path: Path) -> None:
    prepared = Driver(tmp_path / "prepared")
    with prepared.coordinator() as coordinator:
        for number in range(3):
            prepared.run_batch(coordinator, number)
    step = 0
    while True:
        root = tmp_path / str(step)
        shutil.copytree(prepared.root, root)
        driver = Driver(root)

        def killed(driver: Driver = driver, step: int = step) -> None:
            coordinator = driver.coordinator()
            # Not beside the epoch, where its steps would come in another order each time.
            coordinator._maintenance.submit = lambda task: task()  # type: ignore[method-assign,assignment]
            crash_at(step)
            driver.run_batch(coordinator, 3)

        code = exit_code(forked(killed))
        assert code in (0, CRASHED)
        with driver.coordinator() as coordinator:
            for number in range(driver.next_batch(), 6):
                driver.run_batch(coordinator, number)
            coordinator.maintain()
        driver.check(6)
        head = read_head(driver.work.storage)
        assert head is not None
        stored = {entry.path for entry in driver.work.storage.list("state")}
        named = head.paths | {p for p in stored if p.rpartition("/")[2] > f"{head.epoch + 1:08d}"}
        assert stored == named
        shutil.rmtree(root)
        if code == 0:
            break
        step += stride(3)
    # Owner, two deltas, job file or manifest, hint, sink, retention: each has several steps.
    assert step > 25


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_random_moments(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    driver = Driver(tmp_path)
    batches, kills = 0, 0

    def go_on() -> None:
        with driver.coordinator() as coordinator:
            for number in range(driver.next_batch(), 10_000):
                driver.run_batch(coordinator, number)

    for _ in range(12):
        pid = forked(go_on)
        time.sleep(rng.uniform(0.0, 0.12))
        os.kill(pid, signal.SIGKILL)
        kills += exit_code(pid) == -signal.SIGKILL
        batches = driver.next_batch()
    with driver.coordinator() as coordinator:
        for number in range(batches, batches + 2):
            driver.run_batch(coordinator, number)
    assert kills == 12
    driver.check(batches + 2)


def test_killed_while_a_base_is_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge dies with its driver; what it left is collected, and the next driver merges anew."""
    import pystate.epochs.merges

    def merge(
        storage: CheckpointStorage,
        sources: tuple[FileRef, ...],
        merged_id: str,
        output: str,
        first: int,
        last: int,
        kind: str = "base",
        **_: Any,
    ) -> FileRef:
        text = b",".join(storage.read_bytes(source.path) for source in sources)
        with storage.create(output) as out:
            out.write(text)
            if (tmp_path / "die").exists():
                os._exit(CRASHED)
        epoch = sources[-1].epoch
        return FileRef(
            output, kind, merged_id, "0" * 32, epoch, first, last, len(text), 0, 1, 0, len(text)
        )

    monkeypatch.setattr(pystate.epochs.merges, "merge_range", merge)
    driver = Driver(tmp_path)
    policy = MergePolicy(min_deltas=2, max_deltas=3, keep_deltas=0)

    def coordinator() -> Coordinator:
        return driver.work.coordinator(
            commit_sinks=driver.commit, merge_policy=policy, retained=1, orphan_grace_ms=0
        )

    def killed() -> None:
        with coordinator() as dying:
            for number in range(5):
                driver.run_batch(dying, number)
                dying.maintain()

    (tmp_path / "die").touch()
    assert exit_code(forked(killed)) == CRASHED
    assert driver.work.storage.list("state", temporary=True)
    (tmp_path / "die").unlink()
    with coordinator() as living:
        for number in range(driver.next_batch(), 7):
            driver.run_batch(living, number)
            living.maintain()
        head = living.head
    assert head is not None and head.operators[0].ranges[0].base is not None
    assert ",".join(driver.work.text(head)) == ",".join(f"b{n}" for n in range(7))
    assert not driver.work.storage.list("state", temporary=True)


@pytest.mark.parametrize("checked", [True, False])
def test_two_drivers_race(tmp_path: Path, checked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes over from the other again and again; no batch is lost or counted twice.

    Put-if-absent alone must be enough: the early check of the owner is left out in one case.
    """
    batches = 30
    if not checked:
        monkeypatch.setattr(Ownership, "check", lambda self: None)

    def drive() -> None:
        driver = Driver(tmp_path)
        while True:
            # Files of the other one's epoch are no orphans yet.
            coordinator = driver.coordinator(orphan_grace_ms=60_000)
            try:
                with coordinator:
                    while True:
                        head = read_head(driver.work.storage)
                        progress = None if head is None else head.progress("q")
                        number = 0 if progress is None else progress.batch_id + 1
                        if number >= batches:
                            return
                        driver.run_batch(coordinator, number)
            except FencedError:
                continue
            except CheckpointError as error:
                # It read the newest epoch, was overtaken, and asked for a batch that is history.
                if "older than batch" not in str(error):
                    raise

    pids = [forked(drive) for _ in range(2)]
    assert [exit_code(pid) for pid in pids] == [0, 0]
    driver = Driver(tmp_path)
    with driver.coordinator() as coordinator:
        driver.run_batch(coordinator, batches)
    driver.check(batches + 1)
