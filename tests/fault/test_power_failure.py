"""The power fails at any step of what changes a checkpoint: nothing that was promised is lost.

Each story is recorded once, file operation by file operation. Then the folders that a machine may
show after a failure are opened: the state is that of an epoch that was published, not older than
the last one that was acknowledged or whose output was committed; `verify` finds nothing wrong;
savepoints are whole; and the job goes on. `tests.power` says what a failure may leave.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import pystate as ps
from pystate.checkpoint import parts
from pystate.checkpoint.first_start import begin_with
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.savepoint import of_newest_epoch, take_savepoint, write_savepoint
from pystate.checkpoint.storage import CheckpointStorage, LocalStorage
from pystate.epochs.coordinator import Coordinator
from pystate.epochs.merge_policy import MergePolicy
from pystate.epochs.split_groups import split
from tests.drawn import THOROUGH
from tests.power import Disk, Image, Note
from tests.work import CutError, Work, read

#: Deltas become larger deltas, and now and then a base.
POLICY = MergePolicy(min_deltas=2, max_deltas=3, keep_deltas=1, base_part=2)
#: How many images of each story `make test` looks at, and every which of them goes on.
LOOKS, GOES_ON = 40 if THOROUGH else 15, 3


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Manifests have parts from a few files on."""
    monkeypatch.setattr(parts, "_LEAST_FILES", 5)


class Story:
    """Something that is done in a folder. Each epoch adds what its number says."""

    def __init__(self, root: Path, seed: int) -> None:
        self.world = root / "world"
        self.world.mkdir()
        self.rng = random.Random(seed)
        self.work = Work(self.world / "checkpoint")
        self.disk: Disk | None = None
        self._root = root
        self._stack = ExitStack()

    def record(self) -> Disk:
        """From now on the power may fail."""
        self.disk = Disk(self.world, self._root / "pool")
        self._stack.enter_context(self.disk.recording())
        return self.disk

    def ended(self) -> Disk:
        """The whole story."""
        self._stack.close()
        assert self.disk is not None
        return self.disk

    def note(self, text: str, number: int = 1) -> None:
        if self.disk is not None:
            self.disk.note(text, number)

    def coordinator(self, **options: Any) -> Coordinator:
        def commit(manifest: Manifest) -> None:
            self.note("epoch", manifest.epoch)

        options = {"retained": 2, "merge_policy": POLICY, "orphan_grace_ms": 0, **options}
        return self.work.coordinator(commit_sinks=commit, **options)

    def epochs(self, number: int, *, key: str | None = None, **options: Any) -> None:
        """Run epochs with one driver."""
        with self.coordinator(**options) as coordinator:
            for _ in range(number):
                self.epoch(coordinator, key)

    def epoch(self, coordinator: Coordinator, key: str | None = None) -> None:
        head = coordinator.take_over()
        epoch = 1 if head is None else head.epoch + 1
        self.note("begun", epoch)
        run_key = None if key is None else f"{key} {epoch}"
        assert self.work.run(coordinator, added(epoch), run_key=run_key) == epoch
        self.note("epoch", epoch)
        coordinator.maintain()

    def killed(self, act: Callable[[], object], most: int) -> None:
        """Try something again and again, in processes that are killed, until it is done."""
        assert self.disk is not None
        while True:
            self.disk.kill_after(self.rng.randrange(most))
            try:
                act()
                return
            except CutError:
                pass
            finally:
                self.disk.kill_after(None)


def added(epoch: int) -> dict[int, int]:
    """What an epoch adds."""
    return dict.fromkeys(range(epoch, epoch + 20), epoch)


def state_after(epoch: int) -> dict[int, int]:
    """What epochs add together."""
    state: dict[int, int] = {}
    for number in range(1, epoch + 1):
        for key, count in added(number).items():
            state[key] = state.get(key, 0) + count
    return state


class Apart(LocalStorage):
    """A folder on another file system than any that is not `Apart`."""

    def share(self, path: str, other: CheckpointStorage, other_path: str) -> bool:
        return isinstance(other, Apart) and super().share(path, other, other_path)


# ---- what holds afterwards -----------------------------------------------------------------------

#: Looks at an image that was built, and lets the job go on if it is told to.
Check = Callable[[Path, Image, bool], None]


def check_checkpoint(root: Path, image: Image, goes_on: bool) -> None:
    """It has an epoch that is not older than what was promised, and goes on."""
    promised = image.promised("epoch")
    head = read_head(LocalStorage(root))
    epoch = 0 if head is None else head.epoch
    assert promised <= epoch <= max(image.promised("begun"), promised)
    if epoch:
        check_folder(root, epoch)
    if goes_on:
        work = Work(root)
        work.counts = state_after(epoch)
        with work.coordinator(retained=2, merge_policy=POLICY, orphan_grace_ms=0) as coordinator:
            assert work.run(coordinator, {1: 7, 99: 3}) == epoch + 1
            coordinator.maintain()
        assert read(root) == work.counts
        found = ps.verify(root)
        assert found.ok, found.errors


def check_folder(root: Path, epoch: int) -> None:
    """A checkpoint or savepoint is intact and holds an epoch."""
    found = ps.verify(root)
    assert found.ok, found.errors
    assert read(root) == state_after(epoch)


def check_savepoint(root: Path, image: Image, epoch: int) -> None:
    """There is a whole savepoint, or if it was not promised maybe none at all."""
    if image.promised(root.name) or (root / "savepoint.json").exists():
        check_folder(root, epoch)


def job_alone(root: Path, image: Image, goes_on: bool) -> None:
    """There is nothing but a checkpoint."""
    check_checkpoint(root / "checkpoint", image, goes_on)


def with_promise(image: Image, epoch: int) -> Image:
    """Now an epoch is there, whatever was before."""
    return image._replace(notes=(*image.notes, Note("epoch", epoch)))


# ---- the stories ---------------------------------------------------------------------------------


def epochs(story: Story) -> Check:
    """Publish, merge, retire, collect; from the first epoch on."""
    story.record()
    story.epochs(7, key="run")
    return job_alone


def drivers(story: Story) -> Check:
    """Drivers that follow each other and retain less and less, and a savepoint between them."""
    story.epochs(5, retained=5)
    story.record()
    story.note("epoch", 5)
    story.epochs(1, retained=5)
    take_savepoint(story.work.storage, LocalStorage(story.world / "savepoint"))
    story.note("savepoint")
    story.epochs(2, retained=1)
    story.epochs(1, retained=2)

    def check(root: Path, image: Image, goes_on: bool) -> None:
        check_savepoint(root / "savepoint", image, 6)
        job_alone(root, image, goes_on)

    return check


def killed_drivers(story: Story) -> Check:
    """Drivers that are killed at any step; the next ones commit and remove what they have left."""
    story.epochs(2)
    story.record()
    story.note("epoch", 2)
    for _ in range(5):
        story.killed(lambda: story.epochs(2, retained=1), 320)
    return job_alone


def live_rescale(story: Story) -> Check:
    """The first epochs after a change of parallelism."""
    story.epochs(3)
    with story.coordinator(retained=1) as coordinator:
        story.record()
        story.note("epoch", 3)
        for parallelism in (3, 1, 2):
            coordinator.rescale(parallelism)
            story.epoch(coordinator)
            story.epoch(coordinator)
    return job_alone


def savepoints(story: Story) -> Check:
    """A savepoint by links, one by copies, and one that takes from an earlier one."""
    story.epochs(4, key="run")
    story.record()
    story.note("epoch", 4)
    origin, world = story.work.storage, story.world
    take_savepoint(origin, LocalStorage(world / "links"))
    story.note("links")
    take_savepoint(origin, LocalStorage(world / "copies"), copy=True)
    story.note("copies")
    take_savepoint(origin, Apart(world / "first"))
    story.note("first")
    story.epochs(1)
    take_savepoint(origin, Apart(world / "second"), previous=Apart(world / "first"))
    story.note("second")

    def check(root: Path, image: Image, goes_on: bool) -> None:
        for name, epoch in (("links", 4), ("copies", 4), ("first", 4), ("second", 5)):
            check_savepoint(root / name, image, epoch)
        job_alone(root, image, goes_on)

    return check


def running_savepoint(story: Story) -> Check:
    """A savepoint of an epoch that is retired and merged meanwhile."""
    story.epochs(3)
    with story.coordinator(retained=1) as coordinator:
        story.record()
        story.note("epoch", 3)
        with coordinator.held_head() as head:
            assert head is not None
            for _ in range(3):
                story.epoch(coordinator)
            write_savepoint(story.work.storage, head, LocalStorage(story.world / "savepoint"))
            story.note("savepoint")
        coordinator.maintain()
        story.epoch(coordinator)

    def check(root: Path, image: Image, goes_on: bool) -> None:
        check_savepoint(root / "savepoint", image, 3)
        job_alone(root, image, goes_on)

    return check


def claim(story: Story) -> Check:
    """A savepoint becomes a job's own, and is removed, by a process that is killed many times."""
    story.epochs(4, key="run")
    origin = LocalStorage(story.world / "savepoint")
    take_savepoint(story.work.storage, origin)
    shutil.rmtree(story.work.root)
    story.work = Work(story.world / "job")
    story.record()
    story.killed(lambda: begin_with(origin, story.work.storage, job="job", claim=True), 60)
    story.note("epoch", 4)
    story.epochs(2, retained=1)

    def check(root: Path, image: Image, goes_on: bool) -> None:
        if not (root / "job" / "job.json").exists():
            check_folder(root / "savepoint", 4)
        begin_with(
            LocalStorage(root / "savepoint"), LocalStorage(root / "job"), job="job", claim=True
        )
        check_checkpoint(root / "job", with_promise(image, 4), goes_on)

    return check


def no_claim(story: Story) -> Check:
    """A job begins with a savepoint, which stays as it is."""
    story.epochs(3)
    origin = LocalStorage(story.world / "savepoint")
    take_savepoint(story.work.storage, origin)
    shutil.rmtree(story.work.root)
    story.work = Work(story.world / "job")
    story.record()
    story.killed(lambda: begin_with(origin, story.work.storage, job="job"), 60)
    story.note("epoch", 3)
    story.epochs(2, retained=1)

    def check(root: Path, image: Image, goes_on: bool) -> None:
        begin_with(LocalStorage(root / "savepoint"), LocalStorage(root / "job"), job="job")
        check_checkpoint(root / "job", with_promise(image, 3), goes_on)
        check_folder(root / "savepoint", 3)

    return check


def offline_rescale(story: Story) -> Check:
    """More key groups, in a savepoint."""
    story.epochs(4)
    story.record()
    story.note("epoch", 4)
    storage, target = story.work.storage, LocalStorage(story.world / "more")
    of_newest_epoch(storage, lambda epoch: split(storage, epoch, target, 256))
    story.note("more")

    def check(root: Path, image: Image, goes_on: bool) -> None:
        check_savepoint(root / "more", image, 4)
        job_alone(root, image, goes_on)

    return check


def garbage(story: Story) -> Check:
    """A job leaves files that nothing names, which are collected by processes that are killed."""
    story.epochs(3)
    story.record()
    story.note("epoch", 3)
    with story.coordinator(retained=1, orphan_grace_ms=10**9) as coordinator:
        for _ in range(3):
            epoch = coordinator.open_epoch()
            with epoch:  # type: ignore[union-attr]
                story.work.evaluate({1: 1000})(epoch)  # type: ignore[arg-type]
            story.epoch(coordinator)
    root, found = story.work.root, []

    def collect() -> None:
        found.append(ps.collect(root, dry_run=True, older_than=0, owner_is_gone=True).files)
        ps.collect(root, older_than=0, owner_is_gone=True)

    story.killed(collect, 12)
    assert found[0] and not ps.collect(root, older_than=0, owner_is_gone=True).files
    story.epochs(1)
    return job_alone


def repaired(story: Story) -> Check:
    """A file of the newest epoch is damaged: the epoch before it becomes the newest."""
    story.epochs(5, retained=4, merge_policy=None, key="run")
    path = next((story.work.root / "state").rglob("00000005-*"))
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    return repair(story, 4)


def older_repaired(story: Story) -> Check:
    """The manifest of an older epoch is lost: those before it are given up."""
    story.epochs(6, retained=5, key="run")
    (story.work.root / "manifests/00000004.manifest").unlink()
    assert ps.repair(story.work.root, owner_is_gone=True, dry_run=True).unreadable == (2, 3, 4)
    return repair(story, 6)


def repair(story: Story, good: int) -> Check:
    """Repair, in processes that are killed, and again after the power has failed."""
    story.record()
    story.killed(lambda: ps.repair(story.work.root, owner_is_gone=True), 60)
    story.note("epoch", good)

    def check(root: Path, image: Image, goes_on: bool) -> None:
        if not image.promised("epoch"):
            ps.repair(root / "checkpoint", owner_is_gone=True)
        job_alone(root, with_promise(image, good), goes_on)

    return check


STORIES = (
    epochs,
    drivers,
    killed_drivers,
    live_rescale,
    savepoints,
    running_savepoint,
    claim,
    no_claim,
    offline_rescale,
    garbage,
    repaired,
    older_repaired,
)


def look_at(tmp_path: Path, told: Callable[[Story], Check], seed: int, most: int | None) -> None:
    """Record a story, and look at what failures of the power may leave of it."""
    story = Story(tmp_path, seed)
    try:
        check = told(story)
    finally:
        disk = story.ended()
    images: Sequence[Image] = disk.images(seed)
    chosen = images if most is None else story.rng.sample(images, min(most, len(images)))
    assert len(chosen) > 5
    for number, image in enumerate(chosen):
        root = tmp_path / "image"
        disk.build(image, root)
        try:
            check(root, image, number % GOES_ON == 0)
        except Exception as error:
            where = f"seed {seed}, after step {image.moment} ({image.last}): {image.how}"
            raise AssertionError(f"{where}: {error!r}") from error
        shutil.rmtree(root)


@pytest.mark.parametrize("told", STORIES)
def test_power_fails(tmp_path: Path, told: Callable[[Story], Check]) -> None:
    look_at(tmp_path, told, 1, LOOKS)


@pytest.mark.slow
@pytest.mark.parametrize("told", STORIES)
def test_power_fails_at_every_step(tmp_path: Path, told: Callable[[Story], Check]) -> None:
    look_at(tmp_path, told, random.randrange(1 << 32), None)


@pytest.mark.drawn
def test_a_store_keeps_its_checkpoints(tmp_path: Path) -> None:
    """The embedded form: each checkpoint that was made is there."""
    world = tmp_path / "world"
    world.mkdir()
    options: dict[str, Any] = {"key": "long", "states": {"n": ps.ValueState("long", default=0)}}
    disk = Disk(world, tmp_path / "pool")
    with disk.recording():
        for _ in range(3):
            with ps.open(world / "store", retained=1, **options) as store:
                for _ in range(3):
                    disk.note("begun", store.epoch + 1)
                    store["n"].add(store.keys(list(range(30))), 1)
                    disk.note("epoch", store.checkpoint())
    images = disk.images(1)
    for image in random.Random(1).sample(images, 3 * LOOKS):
        root = tmp_path / "image"
        disk.build(image, root)
        with ps.open(root / "store", retained=1, **options) as store:
            assert image.promised("epoch") <= store.epoch <= image.promised("begun")
            assert store.to_arrow()["n"].to_pylist() == [store.epoch] * (30 if store.epoch else 0)
            store["n"].add(store.keys(list(range(30))), 1)
            store.checkpoint()
        found = ps.verify(root / "store")
        assert found.ok, found.errors
        shutil.rmtree(root)
