"""A full file system, while a snapshot is written and while a shared table grows.

Runs on a small tmpfs where this process may mount one; else on a limit of the size of files, which
fails writes in the same places.
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pystate as ps
from pystate.errors import MemoryLimitError, NoSpaceError

SIZE = 4 << 20
STATES = {"n": ps.ValueState("long", default=0), "text": ps.ValueState("string")}


@contextmanager
def small_tmpfs(folder: Path, size_bytes: int) -> Iterator[Path]:
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"size={size_bytes},mode=700".encode()
    if libc.mount(b"pystate-test", str(folder).encode(), b"tmpfs", 0, options):
        pytest.skip(f"cannot mount a tmpfs: {os.strerror(ctypes.get_errno())}")
    try:
        yield folder
    finally:
        libc.umount2(str(folder).encode(), 2)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    with small_tmpfs(folder, SIZE) as mounted:
        yield mounted


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def rows(table: Any) -> dict[Any, Any]:
    columns = table.to_arrow().to_pydict()
    return dict(zip(columns["key"], zip(columns["n"], columns["text"], strict=True), strict=True))


def noise(count: int, width: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [bytes(row).hex() for row in rng.integers(0, 256, (count, width // 2), np.uint8)]


def check_checkpoints(folder: Path, fill: Callable[[], None], free: Callable[[], None]) -> None:
    with ps.open(folder, key="long", states=STATES) as store:
        store["n"].add(store.keys(range(100)), 1)
        assert store.checkpoint() == 1
        durable = rows(store)
        fill()
        store["text"].update_all(store.keys(range(5000)), noise(5000, 600, 1))
        for step in range(2):
            store["n"].add(store.keys(range(50)), step + 1)
            with pytest.raises(NoSpaceError) as caught:
                store.checkpoint()
            assert str(folder) in str(caught.value)
            assert store.epoch == 1
        assert not list(folder.rglob("*.tmp"))
        wanted = rows(store)
    free()
    with ps.open(folder, key="long", states=STATES) as store:
        assert rows(store) == durable, "the last checkpoint is not intact"
    with ps.open(folder, key="long", states=STATES) as store:
        fill()
        store["text"].update_all(store.keys(range(5000)), noise(5000, 600, 1))
        with pytest.raises(NoSpaceError):
            store.checkpoint()
        store["n"].add(store.keys(range(50)), 1)
        free()
        store["n"].add(store.keys(range(50)), 2)
        assert store.checkpoint() == 2, "work does not go on once there is space"
        assert rows(store) == wanted
    with ps.open(folder, key="long", states=STATES) as store:
        assert rows(store) == wanted


def test_a_snapshot_on_a_full_tmpfs(small: Path) -> None:
    ballast = small / "ballast"

    def fill() -> None:
        left = os.statvfs(small).f_bavail * os.statvfs(small).f_frsize
        ballast.write_bytes(bytes(max(0, left - (64 << 10))))

    check_checkpoints(small / "store", fill, lambda: ballast.unlink(missing_ok=True))


def test_a_snapshot_under_a_file_size_limit(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        check_checkpoints(
            tmp_path / "store",
            lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, hard)),
            lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard)),
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def check_growth(path: Path, limited: Callable[[], Any]) -> None:
    options: dict[str, Any] = {"states": STATES, "home": "shared", "path": path}
    with ps.KeyedStateBackend("long", **options) as table:
        table["n"].add(table.keys(range(1000)), 1)
        table.seal(snapshot=False)
        with limited():
            for _ in range(2):
                with pytest.raises((NoSpaceError, MemoryLimitError)) as caught:
                    for start in range(0, 1 << 24, 1 << 12):
                        keys = table.keys(np.arange(start, start + (1 << 12)))
                        table["text"].update_all(keys, "x" * 200)
                assert isinstance(caught.value, NoSpaceError), caught.value
                table.rollback()
                assert rows(table) == dict.fromkeys(range(1000), (1, None))
        table["text"].update_all(table.keys(np.arange(1 << 15)), "y" * 200)
        table.seal(snapshot=False)
    with ps.KeyedStateBackend("long", create=False, **options) as table:
        assert len(table) == 1 << 15
        assert table["text"].values(table.keys([0, 32767])).to_pylist() == ["y" * 200] * 2


@pytest.fixture
def medium(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "medium"
    folder.mkdir()
    with small_tmpfs(folder, 96 << 20) as mounted:
        yield mounted


def test_a_shared_table_grows_on_a_full_tmpfs(medium: Path) -> None:
    @contextmanager
    def limited() -> Iterator[None]:
        left = os.statvfs(medium).f_bavail * os.statvfs(medium).f_frsize
        (medium / "ballast").write_bytes(bytes(left - min(left, 16 << 20)))
        try:
            yield
        finally:
            (medium / "ballast").unlink()

    check_growth(medium / "t.table", limited)


def test_a_shared_table_grows_under_a_file_size_limit(tmp_path: Path) -> None:
    path = tmp_path / "t.table"
    # The file is sparse: what is limited is how far in it a segment may lie.
    check_growth(path, lambda: file_size_limit(os.path.getsize(path) + (1 << 20)))
