"""Compacting an output: killed at every step, and read at every step. Files only, no Spark."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pystate.errors import CheckpointError, InUseError
from pystate.spark.sinks import compaction, folders
from pystate.spark.sinks.compaction import (
    CompactedEpochs,
    Compaction,
    compact_folder,
    read_compacted,
)
from pystate.spark.sinks.parquet import ParquetSink, commit_parquet
from tests.drawn import stride

#: What changes names: every state of the folders is between two of these.
STEPS = [(os, "mkdir"), (os, "link"), (os, "rmdir"), (os, "unlink"), (compaction, "exchange")]


def write(root: Path, epoch: int, *files: list[int], name: str = "v", partition: str = "") -> None:
    folder = root / f"epoch={epoch}" / partition
    folder.mkdir(parents=True)
    (root / f"epoch={epoch}" / "_SUCCESS").touch()
    for i, values in enumerate(files):
        pq.write_table(pa.table({name: pa.array(values, pa.int64())}), folder / f"part-{i}.parquet")


def merge_without_spark(
    root: str, new: str, group: Any, layout: Any, session: Any, target_bytes: int
) -> int:
    tables = [
        pq.read_table(os.path.join(root, f"epoch={epoch}", name), partitioning=None)
        for epoch, files in group.files.items()
        for name, _ in files
    ]
    folder = Path(new, f"epoch={group.into}")
    folder.mkdir()
    pq.write_table(pa.concat_tables(tables), folder / "merged.parquet")
    return 1


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "_merge", merge_without_spark)


def compact(root: Path, epochs: list[int], target_bytes: int = 1 << 20) -> Compaction:
    return compact_folder(str(root), epochs, None, target_bytes=target_bytes, wait_s=0)  # type: ignore[arg-type]


def visible(root: Path) -> list[Path]:
    return [*root.glob("epoch=*/part-*"), *root.glob("epoch=*/merged*")]


def values(paths: list[Path]) -> list[int]:
    found = (pq.read_table(path, partitioning=None)["v"].to_pylist() for path in paths)
    return sorted(value for part in found for value in part)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Epochs 1 to 5, staged rows of a sixth that a manifest names, and what else may lie there."""
    root = tmp_path / "parent" / "out"
    for epoch in range(1, 6):
        write(root, epoch, [10 * epoch], [10 * epoch + 1])
    staging = root / "_staging" / ".6-e" / "_rows"
    staging.mkdir(parents=True)
    pq.write_table(pa.table({"v": [60]}), staging / "part-0.parquet")
    (root / "note.txt").write_text("mine")
    (root / "link").symlink_to("note.txt")
    root.chmod(0o2750)
    return root


ALL = [10 * epoch + i for epoch in range(1, 6) for i in (0, 1)]


def check_whole(root: Path, merged: bool) -> None:
    assert values(visible(root)) == ALL
    assert ParquetSink(root).epochs() == [1, 2, 3, 4, 5]
    names = sorted(path.name for path in root.glob("epoch=*"))
    assert names == [f"epoch={epoch}" for epoch in ((4, 5) if merged else (1, 2, 3, 4, 5))]
    assert (root / "note.txt").read_text() == "mine" and (root / "link").is_symlink()
    assert stat.S_IMODE(root.stat().st_mode) == 0o2750
    # What a manifest names and nobody has committed yet can be committed.
    staged = root / "_staging" / ".6-e" / "_rows" / "part-0.parquet"
    copy = root.parent / "copy"
    shutil.copytree(root, copy, symlinks=True)
    files = [["part-0.parquet", staged.stat().st_size]]
    transaction = {"staging": "_staging/.6-e/_rows", "final": "epoch=6", "files": files}
    commit_parquet(transaction, str(copy))
    assert values(visible(copy)) == [*ALL, 60]
    shutil.rmtree(copy)


def test_older_epochs_become_one(out: Path) -> None:
    assert compact(out, [1, 2, 3, 4]) == Compaction(4, 8, 1)
    check_whole(out, merged=True)
    assert [path.name for path in (out / "epoch=4").iterdir()] == ["merged.parquet"]
    assert os.listdir(out.parent) == ["out"]
    assert compact(out, [4]) == Compaction(0, 0, 0)
    write(out, 6, [60])
    (out / "_staging" / ".6-e" / "_rows" / "part-0.parquet").unlink()
    assert compact(out, [4, 5]) == Compaction(2, 3, 1)
    sink = ParquetSink(out)
    assert sink.epochs() == [1, 2, 3, 4, 5, 6] and values(visible(out)) == [*ALL, 60]
    assert json.loads((out / "_compacted.json").read_text()) == {
        "format_version": 1,
        "epochs": {"5": [[1, 5]]},
    }
    assert sink.is_compacted(3) and sink.is_compacted(5) and not sink.is_compacted(6)
    with pytest.raises(CheckpointError, match="holds the output of another checkpoint"):
        sink.begin(3, "e")


def test_what_does_not_become_less_is_left(tmp_path: Path) -> None:
    write(tmp_path / "out", 1, [1])
    write(tmp_path / "out", 2)
    write(tmp_path / "out", 3, [3], name="w")
    write(tmp_path / "out", 4, [4], name="w")
    write(tmp_path / "out", 5, [5], name="v")
    write(tmp_path / "out", 6, [6])
    write(tmp_path / "out", 9, [9])
    write(tmp_path / "out", 10)
    root = tmp_path / "out"
    before = sorted(map(str, root.glob("epoch*/*")))
    # Nothing fits into so little, and no target is smaller than a file.
    assert compact(root, [1, 2, 3, 4, 5, 6, 9, 10], target_bytes=1) == Compaction(0, 0, 0)
    assert sorted(map(str, root.glob("epoch*/*"))) == before
    # Of one schema each; an epoch without files hinders nobody, and gives no name.
    assert compact(root, [1, 2, 3, 4, 5, 6, 9, 10]) == Compaction(6, 5, 2)
    names = sorted(path.name for path in root.glob("epoch*"))
    assert names == ["epoch=1", "epoch=2", "epoch=4", "epoch=9"]
    assert read_compacted(str(root)).groups == {4: [3, 4], 9: [5, 6, 9, 10]}
    assert pq.read_table(root / "epoch=4", partitioning=None).column_names == ["w"]


def around(real: Any, act: Callable[[], None]) -> Any:
    """A function that has something done before and after it."""

    def call(*arguments: Any, **options: Any) -> Any:
        act()
        result = real(*arguments, **options)
        act()
        return result

    return call


@pytest.mark.drawn
def test_killed_at_every_step(out: Path, tmp_path: Path) -> None:
    original = tmp_path / "original"
    shutil.copytree(out, original, symlinks=True)
    merged, every = 0, stride(5)
    for last in itertools.count(step=every):
        status = killed_at(out, last)
        done = (out / "epoch=4" / "merged.parquet").exists()
        check_whole(out, merged=done)
        merged += done
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0 and done
            break
        # Whoever comes next finds it done, or does it, and removes what is left.
        compact(out, [4] if done else [1, 2, 3, 4])
        check_whole(out, merged=True)
        assert os.listdir(out.parent) == ["out"]
        shutil.rmtree(out)
        shutil.copytree(original, out, symlinks=True)
    # There were kills on both sides of the exchange.
    assert last > 40 and 5 // every < merged < last // every


def killed_at(out: Path, last: int) -> int:
    """Compact in a process that is killed at that step; returns its status."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    count = itertools.count()

    def step() -> None:
        if next(count) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        with pytest.MonkeyPatch.context() as patch:
            for module, name in STEPS:
                patch.setattr(module, name, around(getattr(module, name), step))
            compact(out, [1, 2, 3, 4])
        os._exit(0)
    except BaseException:
        os._exit(1)


def test_readers_at_every_step(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever one lists the folder, its subfolders, and opens the files: all rows, or an error."""
    roots: set[tuple[str, ...]] = set()
    listed: set[tuple[tuple[str, ...], tuple[str, ...]]] = set()
    opened: dict[str, list[int]] = {}
    outcomes: set[str] = set()

    def list_folders(names: tuple[str, ...]) -> Iterator[str]:
        for name in names:
            # As a forgiving reader: that a folder has gone is no error to it.
            with contextlib.suppress(FileNotFoundError):
                for file in os.listdir(out / name):
                    if not folders.is_hidden(file):
                        yield f"{name}/{file}"

    def read() -> None:
        roots.add(tuple(sorted(path.name for path in out.glob("epoch=*"))))
        for names in roots:
            listed.add((names, tuple(list_folders(names))))
        # Half of the folders before, the others now.
        for names in list(roots):
            for _, files in list(listed):
                for cut in range(len(names)):
                    early = [f for f in files if f.partition("/")[0] in names[:cut]]
                    listed.add((names, (*early, *list_folders(names[cut:]))))
        for _, files in listed:
            try:
                found = []
                for file in files:
                    with open(out / file, "rb"):
                        pass
                    if file not in opened:
                        opened[file] = values([out / file])
                    found += opened[file]
            except FileNotFoundError:
                outcomes.add("not found")
                continue
            outcomes.add("whole")
            assert sorted(found) == ALL, files

    with monkeypatch.context() as patch:
        patch.setattr(compaction, "exchange", around(compaction.exchange, read))
        patch.setattr(shutil, "rmtree", around(shutil.rmtree, read))
        patch.setattr(compaction, "_complete", around(compaction._complete, read))
        assert compact(out, [1, 2, 3, 4]).files_after == 1
    assert len(roots) == 2 and outcomes == {"whole", "not found"}


def test_one_at_a_time_and_not_within_an_epoch(out: Path) -> None:
    with folders.shared_locks([str(out), str(out / "none")]), folders.shared_locks([str(out)]):
        with pytest.raises(InUseError, match="in use for 0 s, by a job that has an epoch open"):
            compact(out, [1, 2, 3, 4])
        check_whole(out, merged=False)
    with (
        folders.exclusive_lock(str(out), "_compacting", 0, "x"),
        pytest.raises(InUseError, match="is being compacted already"),
    ):
        compact(out, [1, 2, 3, 4])
    assert os.listdir(out.parent) == ["out"]
    compact(out, [1, 2, 3, 4])


def test_the_locks_outlive_the_exchange(out: Path) -> None:
    """Who has opened one before holds off the next compaction all the same."""
    for name in (folders.LOCK, "_compacting"):
        (out / name).touch()
    before = [(out / name).stat().st_ino for name in (folders.LOCK, "_compacting")]
    compact(out, [1, 2, 3, 4])
    assert [(out / name).stat().st_ino for name in (folders.LOCK, "_compacting")] == before


def test_what_changes_meanwhile_changes_nothing(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def merge_and_disturb(root: str, *arguments: Any) -> int:
        shutil.copy(out / "epoch=2" / "part-0.parquet", out / "epoch=2" / "part-7.parquet")
        return merge_without_spark(root, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(compaction, "_merge", merge_and_disturb)
        with pytest.raises(CheckpointError, match="epoch=2 has changed while it was compacted"):
            compact(out, [1, 2, 3, 4])
    (out / "epoch=2" / "part-7.parquet").unlink()
    check_whole(out, merged=False)


@pytest.mark.parametrize("failing", ["probe", "mount", "link", "exchange"])
def test_file_systems_that_cannot(out: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(22, "Invalid argument", "somewhere")

    with monkeypatch.context() as patch:
        if failing == "mount":
            patch.setattr(os.path, "ismount", lambda path: True)
        elif failing == "link":
            patch.setattr(os, "link", refuse)
        else:
            patch.setattr(compaction, "exchange", refuse)
            if failing == "exchange":
                # The probe goes well: a folder of an image's lower layer, or one that is mounted.
                patch.setattr(compaction, "_check_exchange", lambda *_: None)
        with pytest.raises(CheckpointError, match=r"cannot be (compacted|exchanged)"):
            compact(out, [1, 2, 3, 4])
    assert os.listdir(out.parent) == ["out"]
    check_whole(out, merged=False)


def test_two_folders_change_places(tmp_path: Path) -> None:
    (tmp_path / "a" / "one").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    folders.exchange(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (tmp_path / "b" / "one").exists() and not (tmp_path / "a" / "one").exists()
    with pytest.raises(FileNotFoundError):
        folders.exchange(str(tmp_path / "a"), str(tmp_path / "none"))


def test_spans(tmp_path: Path) -> None:
    groups = {9: [1, 2, 3, 7, 9], 12: [11, 12]}
    assert json.loads(CompactedEpochs(groups).encode()) == {
        "format_version": 1,
        "epochs": {"9": [[1, 3], [7, 7], [9, 9]], "12": [[11, 12]]},
    }
    (tmp_path / "_compacted.json").write_text(CompactedEpochs(groups).encode())
    read = read_compacted(str(tmp_path))
    assert read.groups == groups and read.into(7) == 9 and read.into(8) is None
    assert read.members(12) == [11, 12] and read.members(8) == [8]
