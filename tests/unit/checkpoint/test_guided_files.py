"""Files with a guide: who writes them, and that they say the same as all others."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest

import pystate as ps
from pystate.checkpoint.refs import FileRef, RangeState
from pystate.checkpoint.state_files import FileInfo, merge_files, verify_file
from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.merge_policy import DiskMergePolicy
from pystate.epochs.merges import FileMerges, Maintenance
from pystate.errors import InvalidArgumentError
from pystate.state.operator_spec import OperatorSpec
from pystate.tables.backend import KeyedStateBackend
from pystate.tables.options import DISK, TableOptions
from pystate.types.keys import parse_key
from tests.work import Work

KEYS = 5000


def written(home: str, value: int, block_bytes: int = 4096) -> tuple[bytes, FileInfo]:
    """The delta of a table with that home."""
    operator = OperatorSpec("op", parse_key((("k", "bigint"),)), {"n": ps.ValueState("long")})
    options = TableOptions(home, block_bytes=block_bytes)
    with KeyedStateBackend.of(operator, (0, 127), options) as backend:
        backend.open()
        backend["n"].update_all(backend.keys(range(KEYS)), [value] * KEYS)
        out = io.BytesIO()
        with backend.seal() as snapshot:
            info = snapshot.write(out)
    return out.getvalue(), info


def rows(data: bytes) -> dict[int, int]:
    with ps.KeyedStateBackend("long", states={"n": ps.ValueState("long")}) as backend:
        backend.load(io.BytesIO(data))
        found = backend["n"].values(backend.keys(range(KEYS))).to_pylist()
    return dict(enumerate(found))


@pytest.mark.parametrize("block_bytes", [4096, 65536])
def test_a_table_on_disk_writes_them(block_bytes: int) -> None:
    plain, info = written("heap", 7)
    assert info.block_bytes == 0
    data, info = written(DISK, 7, block_bytes)
    assert info.block_bytes == verify_file(io.BytesIO(data)).block_bytes == block_bytes
    assert rows(data) == rows(plain) == dict.fromkeys(range(KEYS), 7)


@pytest.mark.parametrize(
    ("homes", "asked", "becomes"),
    [
        (("heap", "heap"), None, 0),
        (("heap", DISK), None, 4096),
        ((DISK, "heap"), None, 0),
        (("heap", "heap"), 8192, 8192),
        ((DISK, DISK), 0, 0),
    ],
)
def test_a_merge_makes_what_it_is_told_or_what_the_newest_is(
    homes: tuple[str, str], asked: int | None, becomes: int
) -> None:
    sources = [io.BytesIO(written(home, value)[0]) for value, home in enumerate(homes)]
    out = io.BytesIO()
    info = merge_files(sources, out, block_bytes=asked)
    assert info.block_bytes == verify_file(io.BytesIO(out.getvalue())).block_bytes == becomes
    assert rows(out.getvalue()) == dict.fromkeys(range(KEYS), 1)


@pytest.mark.parametrize("size", [1, 4095, 65537, -1])
def test_blocks_that_no_file_can_have(size: int) -> None:
    source = io.BytesIO(written("heap", 1)[0])
    with pytest.raises(InvalidArgumentError, match="merge_files: block_bytes"):
        merge_files([source], io.BytesIO(), block_bytes=size)


def test_a_manifest_says_nothing_of_it() -> None:
    """What a file is says the file, so that manifests are as they were."""
    _, info = written(DISK, 1)
    assert FileRef.from_info("p", info) == FileRef.from_info("p", info._replace(block_bytes=0))


def test_only_files_of_earlier_drivers_are_looked_at(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of this driver's tasks have guides; what cannot be read is left to its merge."""
    work = Work(tmp_path / "c").some(3, parallelism=1)
    policy = DiskMergePolicy(min_deltas=100)
    maintenance = Maintenance()
    merges = FileMerges(work.storage, maintenance, policy, lambda: 9)
    with work.coordinator() as driver:
        head = driver.take_over()
    assert head is not None
    [state] = head.operators[0].ranges
    merges.plan(head)
    maintenance.wait()
    assert merges._guided == {ref.path: False for ref in state.files}
    [operator] = merges.adopt(head.operators)
    [merged] = operator.ranges[0].files
    assert merged.kind == "base" and not operator.ranges[0].deltas
    assert verify_file(tmp_path / "c" / merged.path).block_bytes == 4096
    new = dataclasses.replace(merged, path="state/new.delta", kind="delta", epoch=head.epoch + 1)
    after = dataclasses.replace(operator.ranges[0], deltas=(new,))
    assert merges._plain(after) == [] and set(merges._guided) == {
        *(ref.path for ref in state.files),
        merged.path,
    }
    lost = dataclasses.replace(new, path="state/lost.delta", epoch=1)
    assert merges._plain(RangeState(0, 0, 127, "a", deltas=(lost,))) == []
    assert "state/lost.delta: it cannot be seen whether it has a guide" in caplog.text


def test_a_store_keeps_its_files_as_they_are(tmp_path: Path) -> None:
    with ps.open(tmp_path, key="long", states={"n": ps.ValueState("long")}) as store:
        for number in range(6):
            store["n"].update_all(store.keys([number]), [number])
            store.checkpoint()
    storage = LocalStorage(tmp_path)
    infos = [verify_file(tmp_path / entry.path) for entry in storage.list("state")]
    assert {info.kind for info in infos} == {"base", "delta"}
    assert {info.block_bytes for info in infos} == {0}
