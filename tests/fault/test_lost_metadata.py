"""Any subset of a checkpoint's small files is lost: it opens at its newest epoch, or with an error.

It never opens empty or older, nothing is removed while its files disagree, and `verify` finds it.
What a crash leaves, a repair, a retirement or an earlier version, is no loss.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import pystate as ps
from pystate.checkpoint.storage import FileEntry, LocalStorage
from pystate.epochs.epoch import Epoch
from pystate.epochs.position import AlreadyDone
from pystate.errors import CheckpointError, FencedError, PystateError
from tests.drawn import THOROUGH
from tests.work import Work, content, read

STATES = {"n": ps.ValueState("long", default=0)}


def store(root: Path, epochs: int) -> Path:
    with ps.open(root, key="long", states=STATES) as opened:
        for _ in range(epochs):
            opened["n"].add(opened.keys([1, 2, 3]), 1)
            opened.checkpoint()
    return root


def lossy(newest: int) -> dict[str, Callable[[str], bool]]:
    """What may be lost together, by its names."""
    return {
        "the newest manifest": lambda f: f == f"manifests/{newest:08d}.manifest",
        "all manifests": lambda f: f.endswith(".manifest"),
        "latest": lambda f: f == "manifests/latest",
        "marks": lambda f: f.endswith(".retired"),
        "history": lambda f: f.startswith("history/"),
        "job.json": lambda f: f == "job.json",
        "runs": lambda f: f.startswith("runs/"),
        "owners": lambda f: f.startswith("owners/") or f == "manifests/committed",
    }


def subsets(kinds: dict[str, Callable[[str], bool]], *names: str) -> Iterator[tuple[str, ...]]:
    assert set(names) <= set(kinds)
    for size in range(1, len(names) + 1):
        yield from itertools.combinations(names, size)


def lose(origin: Path, target: Path, *kinds: Callable[[str], bool]) -> set[str]:
    """Copy a checkpoint without some files; returns the state files that it has."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(origin, target, copy_function=os.link)
    for path in content(target):
        if any(is_lost(path) for is_lost in kinds):
            (target / path).unlink()
    return state_files(target)


def state_files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in (root / "state").rglob("*.*")}


def opened_epoch(root: Path) -> int | None:
    """The epoch that a store opens at; None if it does not open."""
    try:
        with ps.open(root, key="long", states=STATES) as opened:
            return opened.epoch
    except PystateError:
        return None


@pytest.mark.parametrize("epochs", [1, 2, 6])
def test_a_store_never_opens_empty_or_older(tmp_path: Path, epochs: int) -> None:
    origin, kinds = store(tmp_path / "origin", epochs), lossy(epochs)
    names = ("the newest manifest", "all manifests", "latest", "marks", "history", "job.json")
    for lost in subsets(kinds, *names):
        root = tmp_path / "lost"
        before = lose(origin, root, *(kinds[name] for name in lost))
        with suppress(PystateError):
            assert ps.read_state(root)["n"].to_pylist() == [epochs] * 3, lost
        epoch = opened_epoch(root)
        assert (epoch is None) == bool({*lost} & {*names[:2], "job.json"}), lost
        if epoch is not None:
            assert epoch == epochs, lost
            continue
        assert not ps.verify(root).ok, lost
        with suppress(PystateError):
            ps.collect(root, older_than=0, owner_is_gone=True)
        assert state_files(root) == before, lost


def job(root: Path) -> Work:
    """A job of which every other epoch is a run with a key."""
    work = Work(root)
    with work.coordinator(retained=2) as driver:
        for number in range(6):
            key = {} if number % 2 else {"run_key": f"run {number}"}
            work.run(driver, {1: 1, number: 1}, **key)
    return work


@pytest.mark.drawn
def test_a_job_never_opens_empty_or_older(tmp_path: Path) -> None:
    """Nor does it take a run for a new one that was applied."""
    origin, kinds = job(tmp_path / "origin"), lossy(6)
    needed = {"the newest manifest", "all manifests", "job.json", "runs"}
    for lost in subsets(kinds, *kinds):
        if 2 < len(lost) < len(kinds) - 1 and not THOROUGH:
            continue
        if {"the newest manifest", "all manifests"} <= {*lost}:
            continue
        root = tmp_path / "lost"
        before = lose(origin.root, root, *(kinds[name] for name in lost))
        with suppress(PystateError):
            assert read(root) == origin.counts, lost
        is_well = ps.verify(root).ok
        assert is_well == needed.isdisjoint(lost), lost
        try:
            with Work(root).coordinator(retained=2) as driver:
                done = driver.open_epoch(run_key="run 0")
                assert isinstance(done, AlreadyDone) and done.epoch == 1, lost
                opened = driver.open_epoch(run_key="another")
                assert isinstance(opened, Epoch) and opened.number == 7, lost
                opened.abort()
                driver.maintain()
            assert is_well, lost
        except FencedError:
            assert "owners" in lost
        except PystateError:
            assert not is_well, lost
            with suppress(PystateError):
                ps.collect(root, older_than=0, owner_is_gone=True)
        assert state_files(root) >= before, lost


def test_a_checkpoint_that_lost_its_newest_epochs_is_set_back_when_told(tmp_path: Path) -> None:
    kinds = lossy(6)
    for lost in subsets(kinds, "latest", "history", "marks"):
        root = tmp_path / "lost"
        lose(
            store(tmp_path / str(lost), 6),
            root,
            kinds["the newest manifest"],
            *(kinds[k] for k in lost),
        )
        asked = ps.repair(root, dry_run=True)
        good = 5 if "history" in lost else 6  # with the history the newest epoch is made anew
        assert (asked.good_epoch, [e.epoch for e in asked.lost]) == (good, [6][: 6 - good]), lost
        assert opened_epoch(root) is None
        ps.repair(root)
        assert ps.verify(root).ok and opened_epoch(root) == good, lost
        assert ps.read_state(root)["n"].to_pylist() == [good] * 3
        assert store(root, 2) and ps.read_state(root)["n"].to_pylist() == [good + 2] * 3


def test_state_of_a_later_epoch_is_never_collected(tmp_path: Path) -> None:
    """Where all the small files agree on an older epoch, the names of the state's still do not."""
    root = store(tmp_path / "store", 6)
    older = store(tmp_path / "older", 4)
    for folder in ("manifests", "history"):
        shutil.rmtree(root / folder)
        shutil.copytree(older / folder, root / folder)
    before = state_files(root)
    assert opened_epoch(root) is None
    with pytest.raises(CheckpointError, match=r"no file is removed"):
        ps.collect(root, older_than=0)
    assert state_files(root) == before and not ps.verify(root).ok


@pytest.mark.parametrize("kind", ["latest", "history", "marks"])
def test_what_a_crash_leaves_is_no_loss(tmp_path: Path, kind: str) -> None:
    """Files of an epoch that was never published, beside a loss that does no harm."""
    for epochs in (1, 2, 6):
        root = tmp_path / "lost"
        lose(store(tmp_path / str(epochs), epochs), root, lossy(epochs)[kind])
        folder = next((root / "state" / "embedded").iterdir())
        (folder / f"{epochs + 1:08d}-{'ab' * 16}.delta").write_bytes(b"never published")
        assert opened_epoch(root) == epochs
        assert ps.verify(root).ok


def test_a_first_epoch_that_was_never_published_is_no_loss(tmp_path: Path) -> None:
    root = store(tmp_path / "store", 0)
    folder = root / "state" / "embedded" / "00000-00127"
    folder.mkdir(parents=True)
    (folder / f"{1:08d}-{'ab' * 16}.delta").write_bytes(b"never published")
    assert opened_epoch(root) == 0 and not state_files(root)


def test_a_checkpoint_that_began_with_a_savepoint(tmp_path: Path) -> None:
    origin = job(tmp_path / "origin")
    ps.savepoint(origin.root, tmp_path / "savepoint")
    for lost in ((), ("latest",)):  # earlier versions did not write it
        other = origin.go_on(tmp_path / "savepoint", tmp_path / f"other{len(lost)}")
        for path in lost:
            (other.root / "manifests" / path).unlink()
        folder = next((other.root / "state" / "op").iterdir())
        (folder / f"{7:08d}-{'ab' * 16}.delta").write_bytes(b"never published")
        with other.coordinator() as driver:
            assert isinstance(driver.open_epoch(run_key="run 0"), AlreadyDone)
            other.run(driver, {1: 1})
        assert read(other.root) == other.counts
    kinds = lossy(7)
    for names in subsets(kinds, "the newest manifest", "latest", "history", "owners"):
        root = tmp_path / "lost"
        lose(other.root, root, *(kinds[name] for name in names))
        if "the newest manifest" not in names:
            assert read(root) == other.counts
        elif len(names) < 4:
            with pytest.raises(CheckpointError, match=r"00000007\.manifest is lost"):
                ps.read_state(root)


def test_opening_costs_the_same_for_any_number_of_state_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is listed only where the small files do not agree, as after a crash."""
    work, listed = job(tmp_path / "job"), list[str]()
    real = LocalStorage.list

    def listing(self: LocalStorage, prefix: str, **options: bool) -> list[FileEntry]:
        listed.append(prefix)
        return real(self, prefix, **options)

    monkeypatch.setattr(LocalStorage, "list", listing)
    assert ps.read_state(work.root).num_rows and "state" not in listed
    with work.coordinator(merge_policy=None) as driver:
        assert driver.take_over() and "state" not in listed
    (work.root / "manifests" / "latest").unlink()
    assert ps.read_state(work.root).num_rows and "state" in listed
