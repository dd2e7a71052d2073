"""State in Parquet files: whole, or not there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystate as ps
from pystate.errors import (
    CheckpointError,
    CorruptFileError,
    InvalidArgumentError,
    NoSpaceError,
    PystateError,
)
from pystate.processor.epochs import missing_file
from pystate.processor.parquet_export import _ExportWriter
from tests.forks import FORKS, copied
from tests.work import Work, read


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path / "c", uids=("a", "b")).some(4, parallelism=3)


def parquet(folder: Path) -> pa.Table:
    return pq.read_table(folder)


def sums(folder: Path) -> dict[int, int]:
    table = parquet(folder)
    return dict(zip(table["k"].to_pylist(), table["n"].to_pylist(), strict=True))


def beside(folder: Path) -> set[str]:
    return {path.name for path in folder.parent.iterdir()}


def test_an_export_holds_the_state(work: Work, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    made = ps.export_state(
        work.root, tmp_path / "out", "a", progress=lambda done, total: seen.append((done, total))
    )
    assert sums(tmp_path / "out") == read(work.root, "a") == work.counts
    files = sorted((tmp_path / "out").glob("*.parquet"))
    assert [path.name for path in files] == [f"part-0000{i}.parquet" for i in range(3)]
    assert len(seen) == 3 and seen[-1][0] == seen[-1][1] > 0
    assert vars(made) == {
        "location": str(tmp_path / "out"),
        "checkpoint": str(work.root),
        "uid": "a",
        "epoch": 4,
        "rows": len(work.counts),
        "files": 3,
        "size_bytes": sum(path.stat().st_size for path in files),
    }
    assert json.loads((tmp_path / "out" / "_export.json").read_text()) == vars(made)
    assert beside(tmp_path / "out") == {"c", "out"}
    assert parquet(tmp_path / "out").schema.equals(ps.read_state(work.root, "a").schema)


def test_what_can_be_asked_for(tmp_path: Path) -> None:
    states = {
        "l": ps.ListState("long"),
        "m": ps.MapState("string", "double"),
        "o": ps.ValueState(object),
    }
    with ps.open(tmp_path / "c", key={"a": "string", "b": "date"}, states=states) as store:
        store.set_current_key(("x", date(1970, 1, 4)))
        store["l"].add_all([1, 2])
        store["m"].put("y", 0.5)
        store["o"].update({1, 2})
        store.checkpoint()
        store.set_current_key(("x", date(1970, 1, 4)))
        store["l"].add(3)
        store.checkpoint()
    for number, asked in enumerate[dict[str, Any]](
        [{}, {"state": "l"}, {"state": "l", "explode": True}, {"epoch": 1}, {"state": "m"}]
    ):
        made = ps.export_state(tmp_path / "c", tmp_path / f"out{number}", **asked)
        whole = ps.read_state(tmp_path / "c", **asked)
        assert parquet(tmp_path / f"out{number}").to_pylist() == whole.to_pylist()
        assert made.epoch == asked.get("epoch", 2)
    with pytest.raises(PystateError, match="has no timers"):
        ps.export_state(tmp_path / "c", tmp_path / "out", timers=True)
    assert not (tmp_path / "out").exists()


def test_an_empty_state_has_its_columns(tmp_path: Path) -> None:
    with ps.open(tmp_path / "c", key="long", states={"n": ps.ValueState("long")}) as store:
        store.checkpoint()
    assert ps.export_state(tmp_path / "c", tmp_path / "out").rows == 0
    assert parquet(tmp_path / "out").schema.names == ["key", "n"]


def test_what_is_there_is_not_replaced(work: Work, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ps.export_state(work.root, out, "a", epoch=3)
    before = sums(out)
    with pytest.raises(InvalidArgumentError, match=r"holds an export already: .*--overwrite"):
        ps.export_state(work.root, out, "a")
    assert sums(out) == before
    ps.export_state(work.root, out, "a", overwrite=True)
    assert sums(out) == work.counts != before
    assert beside(out) == {"c", "out"}


@pytest.mark.parametrize("kind", ["folder", "empty", "file", "link"])
def test_other_things_are_never_replaced(work: Work, tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out"
    if kind == "file":
        out.write_text("mine")
    elif kind == "link":
        ps.export_state(work.root, tmp_path / "other", "a")
        out.symlink_to(tmp_path / "other")
    else:
        out.mkdir()
    if kind == "folder":
        (out / "part-00000.parquet").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(InvalidArgumentError, match="exists, and is no export"):
            ps.export_state(work.root, out, "a", overwrite=overwrite)
    if kind == "file":
        assert out.read_text() == "mine"
    elif kind == "folder":
        assert (out / "part-00000.parquet").read_text() == "mine"


def test_not_within_the_checkpoint(work: Work) -> None:
    for place in (work.root, work.root / "out"):
        with pytest.raises(InvalidArgumentError, match="is within the checkpoint"):
            ps.export_state(work.root, place, "a", overwrite=True)
    assert not (work.root / "out").exists()


def test_a_damaged_file_leaves_nothing(work: Work, tmp_path: Path) -> None:
    ps.export_state(work.root, tmp_path / "out", "a", epoch=3)
    path = next((work.root / "state" / "a").rglob("00000004-*.delta"))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptFileError, match=path.name):
        ps.export_state(work.root, tmp_path / "new", "a")
    with pytest.raises(CorruptFileError, match=path.name):
        ps.export_state(work.root, tmp_path / "out", "a", overwrite=True)
    assert beside(tmp_path / "out") == {"c", "out"}
    assert ps.read_state(work.root, "a", epoch=3).num_rows == len(sums(tmp_path / "out"))


def test_a_full_disk_leaves_nothing(small: Path, tmp_path: Path) -> None:
    with ps.open(tmp_path / "c", key="long", states={"n": ps.ValueState("binary")}) as store:
        keys = store.keys(list(range(400)))
        store["n"].update_all(keys, [os.urandom(50_000) for _ in range(400)])
        store.checkpoint()
    with pytest.raises(NoSpaceError, match=r"could not write .*out.*No space.*nothing was left"):
        ps.export_state(tmp_path / "c", small / "out")
    assert list(small.iterdir()) == []


def test_no_permission_is_said(work: Work, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"could not write .*Not a directory"):
        ps.export_state(work.root, tmp_path / "file" / "out", "a")


def test_an_epoch_that_is_retired_meanwhile(
    work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one is exported; one that was asked for is said to be gone."""
    real, fails = _ExportWriter.carry_out, [True, False, True]

    def carry_out(self: _ExportWriter, *arguments: Any) -> Any:
        if fails.pop(0):
            with work.coordinator(parallelism=3) as coordinator:
                work.run(coordinator, {1: 1})
            raise missing_file(self._scan.storage, self._scan.epoch, "state/x")
        return real(self, *arguments)

    monkeypatch.setattr(_ExportWriter, "carry_out", carry_out)
    assert ps.export_state(work.root, tmp_path / "out", "a").epoch == 5
    assert sums(tmp_path / "out") == work.counts
    with pytest.raises(CheckpointError, match=r"a file that .*5\.manifest names is missing"):
        ps.export_state(work.root, tmp_path / "new", "a", epoch=5)


def killed_at(step: int, root: Path, out: Path) -> None:
    """Export over what is there; before so many changes of files the process is killed."""
    left = step

    def hook(event: str, arguments: Any) -> None:
        nonlocal left
        changes = ("open", "os.rename", "os.mkdir", "os.rmdir", "shutil.rmtree", "os.remove")
        if event in changes and str(arguments[0]).startswith(str(out.parent)):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    ps.export_state(root, out, "a", overwrite=True)


@FORKS
def test_a_kill_at_each_step_leaves_nothing_half_written(work: Work, tmp_path: Path) -> None:
    ps.export_state(work.root, tmp_path / "old", "a", epoch=3)
    before = sums(tmp_path / "old")
    for step in range(60):
        out = tmp_path / str(step) / "out"
        shutil.copytree(tmp_path / "old", out)
        code, _, wrong = copied(partial(killed_at, step, work.root, out))
        if out.exists():
            assert sums(out) in (before, work.counts), step
        else:
            [old] = (p for p in out.parent.iterdir() if p.name.endswith(".old"))
            assert sums(old) == before, step
        if code == 0:
            assert sums(out) == work.counts and beside(out) == {"out"}
            break
        assert code == -signal.SIGKILL, wrong
        shutil.rmtree(out.parent)
    assert 6 < step < 59
