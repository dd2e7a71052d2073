"""More key groups than a job began with: every key is found again, in its new group."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.checkpoint.first_start import begin_with
from pystate.checkpoint.job_file import read_job
from pystate.checkpoint.savepoint import manifest_of, of_newest_epoch, read_savepoint
from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.merge_policy import MergePolicy
from pystate.epochs.split_groups import split
from pystate.errors import CheckpointError, CorruptFileError, InvalidArgumentError
from tests.work import Work, content, cuts, read

KINDS: dict[str, Any] = {
    "n": ps.ValueState("long", default=0),
    "words": ps.ListState("string"),
    "by": ps.MapState("string", "long"),
    "most": ps.ReducingState("long", max),
    "mean": ps.AggregatingState(ps.Mean()),
    "at": ps.ValueState("string", ttl=ps.StateTtl(hours=1)),
}


@pytest.mark.parametrize("groups", [256, 384, 1280])
@pytest.mark.parametrize("merged", [False, True])
def test_all_keys_are_kept(tmp_path: Path, groups: int, merged: bool) -> None:
    """After changes of parallelism, whose files count for parts of ranges only; and once more."""
    work = Work(tmp_path / "checkpoint", uids=("a", "b"))
    policy = MergePolicy(min_deltas=2) if merged else None
    for parallelism in (2, 3, 1, 5):
        work.some(3, parallelism=parallelism, merge_policy=policy)
    before = content(work.root)
    taken = ps.rescale(work.root, tmp_path / "more", max_parallelism=groups)
    storage = LocalStorage(tmp_path / "more")
    assert taken == read_savepoint(storage)
    assert content(work.root) == before
    manifest = manifest_of(storage, taken)
    job = read_job(storage)
    assert job is not None and job.max_parallelism == manifest.max_parallelism == groups
    for operator in manifest.operators:
        assert operator.parallelism == 5 * groups // 128
        assert all(len(state.files) <= 1 for state in operator.ranges)
    again = ps.rescale(tmp_path / "more", tmp_path / "again", max_parallelism=2 * groups)
    for folder in ("more", "again"):
        for uid in ("a", "b"):
            assert read(tmp_path / folder, uid) == work.counts
    assert again.epoch == taken.epoch == 12


def test_a_store_of_every_kind(tmp_path: Path) -> None:
    with ps.open(tmp_path / "store", key={"k": "string"}, states=KINDS, max_parallelism=6) as store:
        for number in range(200):
            store.set_current_key(f"key {number}")
            store["n"].update(number)
            store["words"].add_all([f"{i}" for i in range(number % 5)])
            store["by"].put_all({f"{i}": i for i in range(number % 7)})
            store["most"].add(number)
            store["mean"].add(float(number))
            store["at"].update(f"at {number}")
            if number % 50 == 0:
                store.checkpoint()
        for number in range(0, 200, 3):
            store.set_current_key(f"key {number}")
            store["by"].remove("1")
            store["words"].clear()
        store.delete(pa.array(["key 7", "key 8"]))
        store.checkpoint()
    ps.rescale(tmp_path / "store", tmp_path / "more", max_parallelism=18)
    states = [ps.read_state(tmp_path / folder).sort_by("k") for folder in ("store", "more")]
    assert states[0].num_rows == 198 and states[0].equals(states[1])


def test_a_job_goes_on_with_more_key_groups(tmp_path: Path) -> None:
    work = Work(tmp_path / "checkpoint").some(4)
    ps.rescale(work.root, tmp_path / "more", max_parallelism=512)
    other = Work(tmp_path / "other", groups=512)
    assert begin_with(LocalStorage(tmp_path / "more"), other.storage, job=other.name)
    other.counts = dict(work.counts)
    for parallelism in (200, 3):
        other.some(2, parallelism=parallelism)
        assert read(other.root) == other.counts
    with pytest.raises(InvalidArgumentError, match="parallelism 600 is more than the 512"):
        other.coordinator(parallelism=600)


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (128, "128 is not a multiple"),
        (192, "has max_parallelism=128, and 192 is not a multiple .* take 256, 512"),
        (64, "64 is not a multiple"),
        (0, "max_parallelism"),
        (65536, "max_parallelism"),
        ("256", "max_parallelism"),
    ],
)
def test_what_it_takes(tmp_path: Path, groups: Any, words: str) -> None:
    work = Work(tmp_path / "checkpoint").some(1)
    with pytest.raises((InvalidArgumentError, TypeError), match=words):
        ps.rescale(work.root, tmp_path / "more", max_parallelism=groups)
    assert not (tmp_path / "more").exists()


def test_nowhere_and_nothing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has no epoch"):
        ps.rescale(tmp_path / "nothing", tmp_path / "more", max_parallelism=256)
    work = Work(tmp_path / "checkpoint").some(1)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(InvalidArgumentError, match="is not empty"):
        ps.rescale(work.root, tmp_path / "full", max_parallelism=256)


def test_damage_is_named(tmp_path: Path) -> None:
    work = Work(tmp_path / "checkpoint").some(2)
    path = next((work.root / "state").rglob("*.delta"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptFileError, match=path.name):
        ps.rescale(work.root, tmp_path / "more", max_parallelism=256)
    with pytest.raises(InvalidArgumentError, match="is not a savepoint"):
        begin_with(LocalStorage(tmp_path / "more"), LocalStorage(tmp_path / "x"), job="job")
    path.unlink()
    with pytest.raises(CheckpointError, match=path.name):
        ps.rescale(work.root, tmp_path / "more", max_parallelism=256)
    assert not content(tmp_path / "more")


def test_an_attempt_that_was_killed_is_no_savepoint(tmp_path: Path) -> None:
    work = Work(tmp_path / "checkpoint").some(2)

    def act(storage: Any) -> None:
        of_newest_epoch(work.storage, lambda e: split(work.storage, e, storage, 256))

    done = 0
    for cut in cuts(tmp_path, act):
        folder, done = tmp_path / str(done), done + 1
        assert (folder / "savepoint.json").exists() != cut
        assert cut or read(folder) == work.counts
    assert done > 8


def test_files_are_split_only_into_multiples(tmp_path: Path) -> None:
    with ps.KeyedStateBackend("long", max_parallelism=4) as backend:
        n = backend.register("n", ps.ValueState("long", default=0))
        n.add(backend.keys(list(range(100))), 1)
        file = io.BytesIO()
        backend.snapshot().write(file)
    found = 0
    for part in range(3):
        out = io.BytesIO()
        ps.merge_files(
            [file], out, max_parallelism=12, first_key_group=4 * part, last_key_group=4 * part + 3
        )
        found += ps.verify_file(out).rows
    assert found == 100
    for groups, first, last in ((6, 0, 3), (2, 0, 1), (12, 3, 4), (12, 0, 11)):
        with pytest.raises(InvalidArgumentError, match="4 key groups cannot be split"):
            ps.merge_files(
                [file],
                io.BytesIO(),
                max_parallelism=groups,
                first_key_group=first,
                last_key_group=last,
            )
