"""Files of later versions: each kind that there is gives one clear line, and nothing is lost.

A later version writes numbers that this one does not know. Every file that pystate writes is given
such a number in turn, and is intact otherwise.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pystate as ps
from pystate._core import core
from pystate.checkpoint.epoch_log import Totals, add_up
from pystate.checkpoint.first_start import begin_with
from pystate.checkpoint.held_deltas import HeldFiles, merge_held
from pystate.checkpoint.job_file import REPAIR_FILE, SAVEPOINT_FILE
from pystate.checkpoint.manifest_log import mark_retired
from pystate.checkpoint.metadata import encode_document
from pystate.checkpoint.run_keys import RunKeys
from pystate.checkpoint.state_files import Lineage
from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.merge_policy import MergePolicy
from pystate.errors import CheckpointError, FencedError, NewerFormatError
from tests.work import Work, batch, content, spark_files

SOURCES = Path(ps.__file__).parent
QUERY = str(uuid.UUID(int=7))
HEADER_BYTES, VERSION, CHECKSUM = 128, slice(8, 10), slice(120, 128)


def bumped(data: bytes) -> bytes:
    """The file as a later version would write it."""
    if data[:1] == b"{":
        fields = json.loads(data[: data.index(b"\n")])
        kind, version = fields.pop("kind"), fields.pop("format_version")
        return encode_document(kind, version + 1, fields)
    header = bytearray(data[:HEADER_BYTES])
    header[VERSION] = (int.from_bytes(header[VERSION], "little") + 1).to_bytes(2, "little")
    head = io.BytesIO(header[: CHECKSUM.start])
    header[CHECKSUM] = core.file_checksum("header", CHECKSUM.start, -1, head).to_bytes(8, "little")
    return bytes(header) + data[HEADER_BYTES:]


# ---- folders with all kinds of files -------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with everything, a savepoint of it, and one that begins with that; and more."""
    root = tmp_path_factory.mktemp("newer")
    work = Work(root / "checkpoint")
    policy = MergePolicy(min_deltas=2, max_deltas=3, keep_deltas=1)
    with work.coordinator(retained=2, merge_policy=policy) as coordinator:
        for number in range(6):
            work.run(coordinator, {number: 1, 50: 1}, run_key=f"run {number}")
            coordinator.maintain()
        work.run(coordinator, {1: 1}, **batch(0, QUERY), restore="latest")
        work.run(coordinator, {1: 1}, run_key="last")
    mark_retired(work.storage, RunKeys(work.storage), 1, None)
    (work.root / "runs" / "00000001.other").touch()  # a user says that epoch 1 was no other run
    spark_files(work.root, QUERY, 1)
    ps.savepoint(work.root, root / "savepoint")
    work.go_on(root / "savepoint", root / "begun")
    Work(root / "parts").some(3, parallelism=48)
    Work(root / "repaired").some(2)
    counting = Work(root / "counting").some(2)
    counting.storage.publish("history/00000001-0123456789ab.totals", Totals(1).encode())
    text = encode_document("repairing", 1, {"folder": "repaired-x"})
    (root / "repaired" / REPAIR_FILE).write_bytes(text)
    return root


@pytest.fixture
def copy(folders: Path, tmp_path: Path) -> Path:
    shutil.copytree(folders, tmp_path / "copy")
    return tmp_path / "copy"


# ---- what reads them -----------------------------------------------------------------------------


def run(root: Path) -> None:
    """A driver that starts, and computes an epoch."""
    with Work(root).coordinator() as coordinator:
        Work(root).run(coordinator, {1: 1}, run_key="a new one")


def read_all(root: Path) -> None:
    ps.read_state(root, "op")


def savepoint(root: Path) -> None:
    ps.savepoint(root, root.parent / f"new savepoint {uuid.uuid4()}")


def begin(root: Path) -> None:
    """A job that begins with the savepoint, or goes on although it is told to begin."""
    if root.name == "savepoint":
        begin_with(LocalStorage(root), LocalStorage(root.parent / "new"), job="job")
    else:
        begin_with(LocalStorage(root.parent / "savepoint"), LocalStorage(root), job="job")


def count(root: Path) -> None:
    """Who adds up all epochs, also those whose records are gone."""
    add_up(LocalStorage(root), ())


Act = Callable[[Path], Any]
#: Of each kind: the folder that has it, the names of its files, and what reads it.
KINDS: dict[str, tuple[str, str, tuple[Act, ...]]] = {
    "job": ("checkpoint", r"job\.json", (run, savepoint, ps.repair)),
    "manifest": (
        "checkpoint",
        r"manifests/\d+\.manifest",
        (run, read_all, savepoint, ps.repair, ps.collect),
    ),
    "part": ("parts", r"manifests/.*\.part", (run, read_all, savepoint, ps.repair, ps.collect)),
    "latest": ("checkpoint", "manifests/latest", (run, ps.repair, ps.collect)),
    "committed": ("checkpoint", "manifests/committed", (run, ps.repair, savepoint)),
    "retired": ("checkpoint", r"manifests/\d+\.retired", (run, savepoint)),
    "owner": ("checkpoint", r"owners/.*\.owner", (run, ps.repair, ps.collect)),
    "run keys": ("checkpoint", r"runs/.*\.keys", (run, savepoint)),
    "unknown runs": ("checkpoint", "runs/unknown", (run,)),
    "restored": ("begun", r"restored\.json", (begin,)),
    "savepoint": ("savepoint", r"savepoint\.json", (begin,)),
    "the savepoint's job": ("savepoint", r"job\.json", (begin,)),
    "the savepoint's manifest": ("savepoint", r"manifests/.*\.manifest", (begin, read_all)),
    "the savepoint's run keys": ("savepoint", r"runs/.*\.keys", (begin,)),
    "totals": ("counting", r"history/.*\.totals", (count,)),
    "repairing": ("repaired", r"repair\.json", (ps.repair,)),
    "delta": ("checkpoint", r"state/.*\.delta", (run, read_all, ps.repair)),
    "base": ("checkpoint", r"state/.*\.base", (run, read_all, ps.repair)),
}
#: Files that have no content of pystate's, or that nothing reads; and records of epochs, each of
#: which has a version of its own (`tests/unit/checkpoint/test_epoch_log.py`).
OTHERS = (
    r"history/.*\.epochs|owners/\d+\.closed|runs/\d+\.other|spark/.*|"
    r"\.lock|lock"
)
#: Documents that say what a repair has done, and who has a lease: its name says all that counts.
NEVER_READ = {"repair", "lease"}


def test_no_kind_of_file_is_forgotten(folders: Path) -> None:
    text = "\n".join(path.read_text() for path in SOURCES.rglob("*.py"))
    written = set(re.findall(r'encode_document\(\s*"([^"]+)"', text))
    assert written - NEVER_READ <= KINDS.keys()
    for name in {folder for folder, _, _ in KINDS.values()}:
        names = [pattern for folder, pattern, _ in KINDS.values() if folder == name]
        known = "|".join(pattern for _, pattern, _ in KINDS.values())
        found = content(folders / name)
        assert [path for path in found if not re.fullmatch(f"{known}|{OTHERS}", path)] == []
        for pattern in names:
            assert any(re.fullmatch(pattern, path) for path in found), pattern


def bump(root: Path, pattern: str) -> str:
    """Let the newest file of a kind be of a later version; returns its path."""
    path = max(name for name in content(root) if re.fullmatch(pattern, name))
    data = bumped((root / path).read_bytes())
    (root / path).unlink()  # the same bytes have other names
    (root / path).write_bytes(data)
    if path.startswith("runs/") and root.name == "savepoint":
        fields = json.loads((root / SAVEPOINT_FILE).read_bytes().partition(b"\n")[0])
        fields["digests"][path] = hashlib.sha256(data).hexdigest()
        del fields["kind"], fields["format_version"]
        (root / SAVEPOINT_FILE).write_bytes(encode_document("savepoint", 1, fields))
    return path


CASES = [(kind, act) for kind, (_, _, acts) in KINDS.items() for act in acts]


@pytest.mark.parametrize(
    ("kind", "act"), CASES, ids=[f"{kind}-{act.__name__}" for kind, act in CASES]
)
def test_a_later_version_is_one_line_and_nothing_changes(kind: str, act: Act, copy: Path) -> None:
    folder, pattern, _ = KINDS[kind]
    root = copy / folder
    whole = content(root)
    path = bump(root, pattern)
    before = content(root)
    with pytest.raises(NewerFormatError) as refused:
        act(root)
    said = str(refused.value)
    assert path in said and "later version of pystate" in said and "upgrade pystate" in said
    assert "\n" not in said and len(said) < 600
    after = content(root)
    assert {name: after.get(name) for name in before} == before
    # The later version goes on from there; here the file becomes what it was.
    (root / path).write_bytes(whole[path])
    if kind == "the savepoint's run keys":
        (root / SAVEPOINT_FILE).write_bytes(whole[SAVEPOINT_FILE])
    act(root)


@pytest.mark.parametrize("kind", KINDS)
def test_verify_says_which_file_is_of_a_later_version(kind: str, copy: Path) -> None:
    folder, pattern, _ = KINDS[kind]
    path = bump(copy / folder, pattern)
    found = [f.message for f in ps.verify(copy / folder).errors if f.kind == "newer"]
    assert found and all(path in message for message in found)
    assert "later version of pystate" in found[0]


def test_a_driver_says_that_a_later_version_took_over(copy: Path) -> None:
    """It has the owner's file open to it only when it is too late."""
    work = Work(copy / "checkpoint")
    with work.coordinator() as coordinator:
        work.run(coordinator, {1: 1}, run_key="a new one")
        owners = copy / "checkpoint" / "owners"
        newest = max(owners.glob("*.owner"))
        later = owners / f"{int(newest.stem) + 1:08d}.owner"
        later.write_bytes(bumped(newest.read_bytes()))
        with pytest.raises(FencedError, match="a driver of a later version of pystate"):
            work.run(coordinator, {1: 1}, run_key="another one")


def test_an_older_run_key(copy: Path) -> None:
    """Those of the first versions, a file for each."""
    work = Work(copy / "parts")
    digest = hashlib.sha256(b"old").hexdigest()
    path = copy / "parts" / "runs" / f"{digest}.run"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(encode_document("run", 2, {"run_key": "old", "epoch": 1}))
    with work.coordinator() as coordinator, pytest.raises(NewerFormatError, match=path.name):
        work.run(coordinator, {1: 1}, run_key="old")


def test_a_held_delta(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    files = HeldFiles.of(storage, None, "op", 0, 127)
    with ps.KeyedStateBackend("long", states={"n": ps.ValueState("long")}) as backend:
        backend.set_current_key(1)
        backend["n"].update(1)
        with backend.seal(Lineage(b"1" * 16, b"0" * 16, 1)) as snapshot:
            ref = files.write(1, snapshot.write)
    (tmp_path / ref.path).write_bytes(bumped((tmp_path / ref.path).read_bytes()))
    with pytest.raises(NewerFormatError, match=rf"{ref.path}.*later version of pystate"):
        merge_held(files, [ref], io.BytesIO(), 1, (0, 127))


def test_what_parquet_sinks_keep(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from pystate.spark.sinks.compaction import CompactedEpochs, read_compacted
    from pystate.spark.sinks.partitioning import read_layout, save_layout

    save_layout(str(tmp_path), (("day", "date"),))
    (tmp_path / "_compacted.json").write_text(CompactedEpochs({3: [1, 2, 3]}).encode())
    for name, reads in (("_layout.json", read_layout), ("_compacted.json", read_compacted)):
        path = tmp_path / name
        fields = json.loads(path.read_text())
        assert fields.pop("format_version") == 1
        path.write_text(json.dumps(fields))  # the first version did not say so
        assert reads(str(tmp_path))
        path.write_text(json.dumps({"format_version": 2, "other": 1}))
        with pytest.raises(NewerFormatError, match=f"{name}: format version 2 .*: upgrade pystate"):
            reads(str(tmp_path))
        for damaged in ("[]", "{", "{}"):
            path.write_text(damaged)
            with pytest.raises(CheckpointError, match=name):
                reads(str(tmp_path))
