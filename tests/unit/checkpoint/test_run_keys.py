"""Run keys that are found for ever, in few files, whoever stops where."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from pystate.checkpoint.metadata import encode_document
from pystate.checkpoint.run_keys import RunKeys
from pystate.checkpoint.storage import LocalStorage
from pystate.errors import CheckpointError
from tests.conftest import FakeWork
from tests.drivers import CrashError, MemoryStorage, World


def keys_in(world: World) -> RunKeys:
    return RunKeys(MemoryStorage(world, lambda kind, path: None))


def check(world: World, count: int) -> None:
    """All keys up to an epoch are found, and no other."""
    runs = keys_in(world)
    for epoch in range(1, count + 1):
        assert runs.find(f"key {epoch}") == (epoch if epoch % 3 else None)
    assert runs.find("another") is None


def add_all(runs: RunKeys, first: int, last: int) -> None:
    """Every third epoch has no key."""
    for epoch in range(first, last + 1):
        if epoch % 3:
            runs.add(f"key {epoch}", epoch)


def test_many_keys_in_few_files() -> None:
    world = World()
    runs = keys_in(world)
    most = written = 0
    for epoch in range(1, 1001):
        before = dict(world.files)
        add_all(runs, epoch, epoch)
        most = max(most, len(world.files))
        written += sum(len(data) for path, data in world.files.items() if path not in before)
    check(world, 1000)
    assert most < 32
    # Each key was written alone, and then once for each size of file that it went through.
    assert written < 8 * sum(map(len, world.files.values()))
    # Adding one again changes nothing.
    before = dict(world.files)
    runs.add("key 1", 1)
    keys_in(world).add("key 1000", 1000)
    assert world.files == before


def world_of(count: int) -> World:
    world = World()
    add_all(keys_in(world), 1, count)
    return world


def interrupted(world: World, after: int, then: Callable[[], None]) -> RunKeys:
    """Run keys whose step after so many is preceded by something else."""
    left = [after]

    def step(kind: str, path: str) -> None:
        if left[0] == 0:
            left[0] = -1
            then()
        left[0] -= 1

    return RunKeys(MemoryStorage(world, step))


def crash() -> None:
    raise CrashError


@pytest.mark.parametrize("before", [5, 10, 11, 94, 95])
def test_crash_at_every_step(before: int) -> None:
    begun = world_of(before)
    for step in range(100):
        world = begun.copy()
        runs = interrupted(world, step, crash)
        try:
            add_all(runs, before + 1, before + 2)
        except CrashError:
            check(world, before)
            add_all(keys_in(world), before + 1, before + 2)
            check(world, before + 2)
            continue
        break
    assert 5 < step < 99


@pytest.mark.parametrize("before", [8, 10, 94])
@pytest.mark.parametrize("both", [False, True])
def test_another_driver_between_any_two_steps(before: int, both: bool) -> None:
    """It adds the same epochs, or goes on far beyond, merging what the first one has listed."""
    begun = world_of(before)
    for step in range(60):
        world = begun.copy()
        last = before + (2 if both else 30)
        runs = interrupted(world, step, lambda w=world, n=last: add_all(keys_in(w), before + 1, n))  # type: ignore[misc]
        for epoch in (before + 1, before + 2):
            add_all(runs, epoch, epoch)
            assert runs.find("another") is None
            assert runs.find(f"key {epoch}") == (epoch if epoch % 3 else None)
        add_all(keys_in(world), before + 1, last)
        check(world, last)
        add_all(keys_in(world), last + 1, last + 2)
        check(world, last + 2)
        assert len(world.files) < 24


def test_lookups_beside_a_driver_that_merges() -> None:
    begun = world_of(10)
    for step in range(60):
        world = begun.copy()
        runs = interrupted(world, step, lambda w=world: add_all(keys_in(w), 11, 14))  # type: ignore[misc]
        for epoch in (1, 2, 5, 10):
            assert runs.find(f"key {epoch}") == epoch


def test_lost_file() -> None:
    world = World()
    add_all(keys_in(world), 1, 20)
    for path in list(world.files)[:-1]:
        data = world.files.pop(path)
        with pytest.raises(CheckpointError, match=r"a file of runs/ is lost.*from epoch"):
            keys_in(world).find("key 20")
        world.files[path] = data
    check(world, 20)


def test_files_of_an_earlier_version(work: FakeWork, tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "checkpoint")
    for epoch in range(1, 41):
        digest = hashlib.sha256(f"old {epoch}".encode()).hexdigest()
        record = encode_document("run", 1, {"run_key": f"old {epoch}", "epoch": epoch})
        storage.publish(f"runs/{digest}.run", record)
    assert RunKeys(storage).find("old 7") == 7
    assert len(storage.list("runs")) == 40
    runs = RunKeys(storage)
    runs.add("new", 44)
    assert [e.path for e in storage.list("runs")] == [
        "runs/00000001-00000040.keys",
        "runs/00000041-00000044.keys",
    ]
    for reader in (runs, RunKeys(storage)):
        assert [reader.find(f"old {epoch}") for epoch in range(1, 41)] == list(range(1, 41))
        assert reader.find("new") == 44 and reader.find("none") is None


def test_a_checkpoint_of_many_runs(work: FakeWork) -> None:
    with work.coordinator(retained=1, parallelism=1) as coordinator:
        for number in range(40):
            coordinator.run(work.evaluate(), run_key=f"k{number}")
    assert len(work.storage.list("runs")) < 16
    with work.coordinator(retained=1) as coordinator:
        for number in range(40):
            result = coordinator.run(work.evaluate(), run_key=f"k{number}")
            assert result.already_done and result.epoch == number + 1
