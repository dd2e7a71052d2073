"""`verify`: each kind of damage is found and named, and nothing else is."""

from __future__ import annotations

import json
import os
import shutil
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

import pystate as ps
from pystate.checkpoint.manifest import manifest_path
from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.metadata import encode_document
from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.merge_policy import MergePolicy
from pystate.errors import InvalidArgumentError
from tests.work import Work, a_run_and_a_stream, batch, content, spark_files

POLICY = MergePolicy(min_deltas=2, max_deltas=3, keep_deltas=0)


@pytest.fixture
def work(tmp_path: Path) -> Work:
    """A job of two operators, whose retained epochs share files and have their own."""
    return Work(tmp_path / "checkpoint", uids=("a", "b")).some(5)


def files(work: Work, uid: str = "") -> list[str]:
    return sorted(name for name in content(work.root) if name.startswith(f"state/{uid}"))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


DAMAGE: dict[str, Callable[[Path], None]] = {
    "damaged": flip,
    "truncated": cut,
    "missing": os.unlink,
}


def test_nothing_is_wrong_with_what_a_job_has_written(work: Work, tmp_path: Path) -> None:
    a_run_and_a_stream(other := Work(tmp_path / "stream"))
    Work(tmp_path / "merged").some(9, retained=2, merge_policy=POLICY)
    with Work(tmp_path / "rescaled").coordinator(parallelism=3) as coordinator:
        Work(tmp_path / "rescaled").run(coordinator, {1: 1, 2: 2})
    Work(tmp_path / "rescaled").some(2, parallelism=1).some(2, parallelism=5)
    ps.savepoint(other.root, tmp_path / "savepoint")
    with ps.open(tmp_path / "store", key="long", states={"n": ps.ValueState("long")}) as store:
        store["n"].update_all(store.keys([1, 2]), [1, 2])
        store.checkpoint()
    names = ("checkpoint", "stream", "merged", "rescaled", "savepoint", "store")
    for name in names:
        found = ps.verify(tmp_path / name)
        assert not found.findings and found.ok, found
        assert found.kind == ("savepoint" if name == "savepoint" else "checkpoint")
        assert found.epochs == found.good_epochs and found.files > 0
    before = content(work.root)
    assert ps.verify(work.root).epochs == (3, 4, 5)
    assert content(work.root) == before


@pytest.mark.parametrize("kind", DAMAGE)
def test_each_damaged_state_file_is_named(work: Work, kind: str) -> None:
    for name in files(work):
        path = work.root / name
        data = path.read_bytes()
        DAMAGE[kind](path)
        found = ps.verify(work.root)
        [finding] = found.errors
        uid, bounds = name.split("/")[1:3]
        first = int(name.rpartition("/")[2][:8])
        assert (finding.path, finding.kind, finding.uid) == (name, kind, uid)
        assert name in finding.message
        assert finding.key_groups == tuple(map(int, bounds.split("-")))
        assert finding.ranges == ({"00000-00063": 0, "00064-00127": 1}[bounds],)
        assert finding.epochs == tuple(range(max(first, 3), 6))
        assert found.good_epochs == tuple(range(3, max(first, 3)))
        path.write_bytes(data)
    assert ps.verify(work.root).ok


def test_a_swapped_file_is_named(work: Work) -> None:
    one, two = files(work, "a")[0], files(work, "b")[3]
    data = (work.root / one).read_bytes(), (work.root / two).read_bytes()
    (work.root / one).write_bytes(data[1])
    (work.root / two).write_bytes(data[0])
    found = {finding.path: finding for finding in ps.verify(work.root).errors}
    assert {path: finding.kind for path, finding in found.items()} == {
        one: "swapped",
        two: "swapped",
    }
    assert two in found[one].message and one in found[two].message
    (work.root / one).write_bytes(data[0])
    (work.root / two).write_bytes((work.root / files(work, "b")[0]).read_bytes())
    [finding] = ps.verify(work.root).errors
    assert (finding.path, finding.kind) == (two, "swapped")


def test_a_file_that_nobody_names_is_no_error(work: Work) -> None:
    old, new, half = (
        "state/a/00000-00063/00000002-" + "0" * 32 + ".delta",
        "state/a/00000-00063/00000006-" + "0" * 32 + ".delta",
        "state/a/00000-00063/.00000002-" + "0" * 32 + ".delta." + "1" * 32 + ".tmp",
    )
    for name in (old, new, half):
        (work.root / name).write_bytes(b"1234")
    os.utime(work.root / old, (1, 1))
    found = ps.verify(work.root)
    assert found.ok and {f.path: f.kind for f in found.findings} == {
        old: "orphan",
        new: "orphan",
        half: "leftover",
    }
    said = {finding.path: finding.message for finding in found.findings}
    assert "pystate gc" in said[old] and "an epoch that a job computes now" in said[new]
    assert all(finding.size_bytes == 4 for finding in found.findings)


@pytest.mark.parametrize("kind", DAMAGE)
def test_each_damaged_small_file_is_named(tmp_path: Path, kind: str) -> None:
    """But for marks whose loss means nothing."""
    work = Work(tmp_path / "c")
    a_run_and_a_stream(work)
    harmless = {"manifests/latest", "manifests/committed", "spark/commits/0", "spark/commits/1"}
    ignored = ("state/", "spark/sources", "spark/.", "spark/offsets/0", "spark/offsets/.")
    for name, data in content(work.root).items():
        path = work.root / name
        if not data or name.startswith(ignored) or name.endswith((".closed", ".retired", ".crc")):
            continue
        if kind == "damaged" and name.startswith("spark/"):
            path.write_bytes(b"\xff" + data)  # they have no checksums
        else:
            DAMAGE[kind](path)
        found = ps.verify(work.root).errors
        unsynced = name in ("manifests/latest", "manifests/committed") or "history/" in name
        if kind == "truncated" and unsynced:
            # They are not synced, so that a machine that stops may leave them so.
            assert not found
            assert [(f.path, f.kind) for f in ps.verify(work.root).findings] == [(name, "leftover")]
        elif kind == "missing" and (
            name in harmless or name.startswith(("owners/", "runs/", "history/"))
        ):
            assert not [f for f in found if f.path != "runs/"], name
        elif kind == "truncated" and name.startswith("spark/") and name != "spark/metadata":
            assert len(found) <= 1, name  # what is cut may still be what Spark writes
        else:
            [finding] = found
            assert finding.path == name, (finding, name)
            assert finding.kind == ("missing" if kind == "missing" else "damaged")
        path.write_bytes(data)
    assert ps.verify(work.root).ok


def test_swapped_manifests_and_owners_are_named(work: Work) -> None:
    work.some(1)
    for one, two in (
        (manifest_path(4), manifest_path(5)),
        ("owners/00000001.owner", "owners/00000002.owner"),
    ):
        data = (work.root / one).read_bytes()
        (work.root / one).write_bytes((work.root / two).read_bytes())
        [finding] = ps.verify(work.root).errors
        assert (finding.path, finding.kind) == (one, "swapped")
        (work.root / one).write_bytes(data)
    (work.root / manifest_path(6)).write_bytes((work.root / manifest_path(5)).read_bytes())
    with pytest.raises(ps.errors.CorruptFileError, match="it holds the manifest of epoch 5"):
        read_head(work.storage)


def test_a_lost_manifest_is_named(work: Work) -> None:
    for epoch in (4, 5):
        data = (work.root / manifest_path(epoch)).read_bytes()
        os.unlink(work.root / manifest_path(epoch))
        found = ps.verify(work.root)
        [finding] = found.errors
        assert (finding.path, finding.kind) == (manifest_path(epoch), "missing")
        assert finding.epochs == (epoch,) and found.epochs == (3, 4, 5)
        assert epoch not in found.good_epochs
        (work.root / manifest_path(epoch)).write_bytes(data)


def test_a_checkpoint_of_another_number_of_key_groups(work: Work) -> None:
    data = json.loads((work.root / "job.json").read_bytes().splitlines()[0])
    fields = {k: v for k, v in data.items() if k not in ("kind", "format_version")}
    document = encode_document("job", 4, {**fields, "max_parallelism": 64})
    (work.root / "job.json").write_bytes(document)
    [finding] = ps.verify(work.root).errors
    assert (finding.path, finding.kind) == ("job.json", "swapped")


def test_a_stream_that_is_ahead_of_its_state(tmp_path: Path) -> None:
    work, query_id = Work(tmp_path / "c"), str(uuid.uuid4())
    with work.coordinator() as coordinator:
        for number in range(3):
            work.run(coordinator, {number: 1}, **batch(number, query_id))
    spark_files(work.root, query_id, 3)
    (work.root / "spark/offsets/3").write_text("v1\n{}")  # Spark plans a batch ahead
    assert ps.verify(work.root).ok
    (work.root / "spark/commits/3").write_text("v1\n{}")
    [finding] = ps.verify(work.root).errors
    assert finding.kind == "position" and "batch 3" in finding.message


def test_every_file_of_a_savepoint_is_checked(tmp_path: Path) -> None:
    a_run_and_a_stream(work := Work(tmp_path / "c"))
    ps.savepoint(work.root, root := tmp_path / "s", copy=True)
    for name, data in content(root).items():
        for kind, damage in DAMAGE.items():
            damage(root / name)
            if (kind, name) == ("missing", "savepoint.json"):
                assert ps.verify(root).kind == "checkpoint"  # of which nothing is missing
            else:
                found = ps.verify(root).errors
                assert [finding.path for finding in found] == [name], (kind, name)
            (root / name).write_bytes(data)
    assert ps.verify(root).ok


def test_a_running_job_is_no_damage(tmp_path: Path) -> None:
    """Epochs are retired, merged and collected while everything is read."""
    work = Work(tmp_path / "c").some(3)
    began, stop, errors = threading.Event(), threading.Event(), []

    def go_on() -> None:
        options = {"retained": 1, "orphan_grace_ms": 0, "merge_policy": POLICY}
        try:
            with work.coordinator(**options) as coordinator:
                while not stop.is_set():
                    work.run(coordinator, dict.fromkeys(range(40), 1))
                    began.set()
        except Exception as error:
            errors.append(error)
            began.set()

    job = threading.Thread(target=go_on)
    job.start()
    began.wait()
    try:
        checked = set()
        while len(checked) < 12 and not errors:
            found = ps.verify(work.root, jobs=2)
            assert found.ok, found.errors
            checked.update(found.epochs)
    finally:
        stop.set()
        job.join()
    assert not errors


class Moving(LocalStorage):
    """A checkpoint whose job goes on when its first state file is read."""

    go_on: Callable[[], None] | None = None

    def open_read(self, path: str):  # type: ignore[no-untyped-def]
        act, self.go_on = self.go_on, None
        if act is not None and path.startswith("state/"):
            act()
        elif act is not None:
            self.go_on = act
        return super().open_read(path)


def test_what_is_retired_meanwhile_is_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(tmp_path / "c").some(3)
    storage = Moving(work.root)
    monkeypatch.setattr("pystate.maintenance.verification.open_existing", lambda *_: storage)

    def go_on() -> None:
        options = {"retained": 1, "orphan_grace_ms": 0, "merge_policy": POLICY}
        with work.coordinator(**options) as coordinator:
            for _ in range(6):
                work.run(coordinator, dict.fromkeys(range(40), 1))
                coordinator.maintain()

    storage.go_on = go_on
    found = ps.verify(work.root)
    assert storage.go_on is None and found.ok, found.errors
    assert not found.epochs


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="holds no checkpoint"):
        ps.verify(tmp_path)
    Work(tmp_path / "c").some(1)
    with pytest.raises(InvalidArgumentError, match="jobs"):
        ps.verify(tmp_path / "c", jobs=0)
    with pytest.raises(InvalidArgumentError, match="progress"):
        ps.verify(tmp_path / "c", progress=1)  # type: ignore[arg-type]
    seen: list[tuple[int, int]] = []
    found = ps.verify(tmp_path / "c", progress=lambda *each: seen.append(each))
    assert seen[-1] == (found.size_bytes, found.size_bytes)


@pytest.mark.parametrize("name", ["v1", "v2", "v3", "v4"])
def test_checkpoints_of_all_versions(tmp_path: Path, name: str) -> None:
    for job in (Path(__file__).parents[2] / "compat" / name).rglob("job.json"):
        shutil.copytree(job.parent, tmp_path / name)
        assert ps.verify(tmp_path / name).ok, ps.verify(tmp_path / name).errors
        shutil.rmtree(tmp_path / name)
