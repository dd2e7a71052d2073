"""Copies of objects on a local disk: what is fetched, what stays, what leaves."""

from __future__ import annotations

import errno
import os
import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from pystate._core import core
from pystate.checkpoint import object_cache
from pystate.checkpoint.object_cache import (
    EXTENT_BYTES,
    GROUP_BYTES,
    CachedObject,
    ObjectCache,
    _layout,
    _states_at,
    two_tiers,
)
from pystate.errors import AlreadyPublishedError, CheckpointError, CorruptFileError, NoSpaceError
from tests.folder_objects import FolderObjects

SIZE = 40 * GROUP_BYTES + 1234
HERE, USED = core.EXTENT_HERE, core.EXTENT_USED


@pytest.fixture
def objects(tmp_path: Path) -> FolderObjects:
    return FolderObjects(tmp_path / "store")


@pytest.fixture
def cache(objects: FolderObjects, tmp_path: Path) -> ObjectCache:
    return ObjectCache(objects, str(tmp_path / "copies"), 1 << 30)


def content(size: int = SIZE, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def stored(objects: FolderObjects, name: str, size: int = SIZE) -> bytes:
    data = content(size)
    objects.files.publish(name, data)
    return data


def here(copy: CachedObject) -> int:
    return sum(state & HERE for state in copy.states[:])


def local(copy: CachedObject, start: int, size: int) -> bytes:
    with open(copy.path, "rb") as file:
        return os.pread(file.fileno(), size, start)


def test_where_states_are() -> None:
    for size in (0, 1, EXTENT_BYTES, EXTENT_BYTES + 1, 65536, 65537, 1 << 20, SIZE, 5 << 30):
        at, extents = _layout(size)
        assert at >= size and at % 65536 == 0
        assert _states_at(at + extents) == at
    for extents in range(1, 5000):
        at, count = _layout(extents * EXTENT_BYTES)
        assert (count, _states_at(at + count)) == (extents, at)
    assert _states_at(0) == 0


def test_what_is_read_is_fetched_once(cache: ObjectCache, objects: FolderObjects) -> None:
    data = stored(objects, "a/b")
    copy = cache.open("a/b", SIZE)
    assert objects.ranges == [] and cache.used_bytes < EXTENT_BYTES
    copy.bring(5, 5)
    assert objects.ranges == [("a/b", 5 * EXTENT_BYTES, 6 * EXTENT_BYTES)]
    assert local(copy, 5 * EXTENT_BYTES, EXTENT_BYTES) == data[5 * EXTENT_BYTES : 6 * EXTENT_BYTES]
    copy.bring(3, 8, True)
    copy.bring(0, 15)
    assert len(objects.ranges) == 2
    assert local(copy, 0, GROUP_BYTES) == data[:GROUP_BYTES]
    last = len(copy.states) - 1
    copy.bring(last, last, True)
    assert (
        local(copy, last * EXTENT_BYTES, SIZE - last * EXTENT_BYTES)
        == (data[last * EXTENT_BYTES :])
    )
    # Other threads, and other processes, have the same copy.
    assert cache.open("a/b", SIZE) is copy
    other = ObjectCache(objects, cache.folder).open("a/b", SIZE)
    assert other.states[:] == copy.states[:]
    assert cache.local_path("a/b") != cache.local_path("a/c")


def test_threads_that_want_the_same(cache: ObjectCache, objects: FolderObjects) -> None:
    stored(objects, "a")
    objects.takes_s = 0.05
    copy = cache.open("a", SIZE)
    gate = threading.Barrier(8)

    def want() -> None:
        gate.wait()
        copy.bring(0, 31, True)

    threads = [threading.Thread(target=want) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(objects.ranges) == 1 and here(copy) == 32


def test_one_that_fails_is_tried_by_the_other(cache: ObjectCache, objects: FolderObjects) -> None:
    stored(objects, "a")
    copy = cache.open("a", SIZE)

    def fault(path: str) -> None:
        raise CheckpointError("SlowDown")

    objects.fault = fault
    with pytest.raises(CheckpointError, match="SlowDown"):
        copy.bring(0, 3)
    assert here(copy) == 0 and not copy._coming
    objects.fault = lambda path: None
    copy.bring(0, 3)
    assert here(copy) == 4


def test_of_another_size_or_missing(cache: ObjectCache, objects: FolderObjects) -> None:
    stored(objects, "a", SIZE - 5000)
    copy = cache.open("a", SIZE)
    last = len(copy.states) - 1
    copy.bring(0, 0)
    with pytest.raises(CorruptFileError, match=rf"^{objects.uri}/a: corrupt at byte {SIZE - 5000}"):
        copy.bring(last, last)
    with pytest.raises(CheckpointError, match=f"^{objects.uri}/b is missing.*bring it back"):
        cache.open("b", SIZE).bring(0, 0)
    assert local(copy, 0, 100) == content()[:100]


def test_what_is_written_is_here(cache: ObjectCache, objects: FolderObjects) -> None:
    storage = two_tiers(cache)
    data = content()
    with storage.create("a") as out:
        for at in range(0, SIZE, 100_000):
            out.write(data[at : at + 100_000])
        assert not objects.exists("a")
    assert objects.read_bytes("a") == data
    copy = cache.open("a", SIZE)
    copy.bring(0, len(copy.states) - 1)
    assert local(copy, 0, SIZE) == data and objects.ranges == []
    assert storage.exists("a") and storage.uri == objects.uri
    # The store says who is first, and what fails leaves nothing.
    with pytest.raises(AlreadyPublishedError), storage.create("a") as out:
        out.write(b"other")
    with pytest.raises(ZeroDivisionError), storage.create("b") as out:
        out.write(b"other")
        raise ZeroDivisionError
    assert not objects.exists("b")
    assert {name for name, _ in cache._files()} == {os.path.basename(copy.path), "lock"}
    with storage.create("empty"):
        pass
    assert len(cache.open("empty", 0).states) == 1


def test_a_disk_that_does_not_take_files(
    cache: ObjectCache, objects: FolderObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written is sent all the same; what is to be read cannot be."""
    stored(objects, "a")
    Path(cache.folder).write_text("a file")
    with two_tiers(cache).create("b") as out:
        out.write(b"abc")
    assert objects.read_bytes("b") == b"abc"
    with pytest.raises(CheckpointError, match=r"on the executor's disk, in .*copies.*local\.dir"):
        cache.open("a", SIZE)


def test_a_full_disk(
    cache: ObjectCache, objects: FolderObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(objects, "a")
    copy = cache.open("a", SIZE)
    copy.bring(0, 255)
    write = CachedObject._write_to
    full = [True]

    def writing(self: Any, data: memoryview, start: int) -> None:
        if full[0]:
            raise OSError(errno.ENOSPC, "full")
        write(self, data, start)

    def trim(wanted_bytes: int = 0) -> int:
        assert wanted_bytes
        full[0] = False
        return wanted_bytes

    monkeypatch.setattr(CachedObject, "_write_to", writing)
    monkeypatch.setattr(cache, "trim", trim)
    copy.bring(300, 300)
    full[0] = True
    monkeypatch.setattr(cache, "trim", lambda wanted_bytes=0: 0)
    with pytest.raises(CheckpointError, match="there is no room on the executor's disk") as raised:
        copy.bring(301, 301)
    # It is not taken for a table's, which would move.
    assert not isinstance(raised.value, NoSpaceError)
    monkeypatch.undo()
    # Of what is here some goes, although there is room for more of it.
    assert cache.trim(10 * EXTENT_BYTES) == 10 * EXTENT_BYTES
    assert here(copy) == 247


def test_a_disk_that_is_full_as_a_copy_is_made(
    cache: ObjectCache, objects: FolderObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States are written in mapped memory, so there is room for them beforehand."""

    def full(descriptor: int, at: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(CheckpointError, match="there is no room on the executor's disk"):
            cache.open("a", SIZE)
    copy = cache.open("a", SIZE)
    assert os.stat(copy.path).st_blocks * 512 >= len(copy.states)


def test_a_copy_that_was_removed_is_used_on(cache: ObjectCache, objects: FolderObjects) -> None:
    data = stored(objects, "a")
    copy = cache.open("a", SIZE)
    shutil.rmtree(cache.folder)
    copy.bring(0, 0)
    assert copy.here(0, 1) == data[:EXTENT_BYTES]
    other = cache.open("a", SIZE)
    assert other is not copy and not here(other)


def test_what_was_not_read_leaves(cache: ObjectCache, objects: FolderObjects) -> None:
    data = stored(objects, "a")
    stored(objects, "b")
    a, b = cache.open("a", SIZE), cache.open("b", SIZE)
    a.bring(0, 319)
    b.bring(0, 319)
    cache.most_bytes = 500 * EXTENT_BYTES
    used = cache.used_bytes
    assert used >= 640 * EXTENT_BYTES
    for copy in (a, b):
        for at in range(320):
            copy.states[at] &= ~USED
    hot = range(100, 140)
    for at in hot:
        a.states[at] |= USED
    cache.trim()
    assert cache.used_bytes <= 500 * EXTENT_BYTES
    # Not all at once: from where the hand was.
    assert here(a) + here(b) < 460
    assert all(a.states[at] & HERE for at in hot)
    # It is fetched again, and is another one then.
    copy = a if here(a) < 320 else b
    gone = next(at for at in range(320) if not copy.states[at] & HERE)
    assert copy.states[gone] != 0
    assert local(copy, gone * EXTENT_BYTES, EXTENT_BYTES) == bytes(EXTENT_BYTES)
    copy.bring(gone, gone)
    assert copy.states[gone] & ~(HERE | USED)
    assert (
        local(copy, gone * EXTENT_BYTES, EXTENT_BYTES)
        == (data[gone * EXTENT_BYTES : (gone + 1) * EXTENT_BYTES])
    )


def test_it_is_looked_at_as_it_grows(cache: ObjectCache, objects: FolderObjects) -> None:
    stored(objects, "a")
    cache.most_bytes = 16 * GROUP_BYTES
    copy = cache.open("a", SIZE)
    most = 0
    for at in range(0, len(copy.states), 16):
        copy.bring(at, at, True)
        most = max(most, cache.used_bytes)
    assert most <= 18 * GROUP_BYTES
    assert here(copy) > 100


def test_half_of_what_is_free(
    cache: ObjectCache, objects: FolderObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(objects, "a")
    cache.most_bytes = 0
    copy = cache.open("a", SIZE)
    copy.bring(0, 319)
    assert cache.trim() == 0
    real = os.statvfs(cache.folder)
    blocks = 160 * EXTENT_BYTES // real.f_frsize

    class Little:
        f_bavail, f_frsize = blocks, real.f_frsize

    monkeypatch.setattr(os, "statvfs", lambda path: Little)
    cache.trim()
    assert 120 * EXTENT_BYTES < cache.used_bytes <= 240 * EXTENT_BYTES + 65536


def test_files_that_are_empty_or_left_go(cache: ObjectCache, objects: FolderObjects) -> None:
    for name in "ab":
        stored(objects, name)
        cache.open(name, SIZE).bring(0, 99)
    kept = cache.open("a", SIZE)
    # A killed process has left one, and another one still writes.
    left = Path(cache.folder, ".0123.tmp")
    left.write_bytes(bytes(1000))
    with two_tiers(cache).create("c") as out:
        out.write(bytes(1000))
        cache.most_bytes = 1
        cache.trim()
        assert not left.exists()
        assert len(list(Path(cache.folder).glob(".*.tmp"))) == 1
    assert os.path.exists(kept.path) and here(kept) == 0
    assert not os.path.exists(cache.local_path("b"))
    assert kept.is_in_place()
    cache.most_bytes = 1 << 30
    kept.bring(0, 0)
    assert local(kept, 0, 10) == content()[:10]


def test_only_what_nobody_has_open_is_forgotten(cache: ObjectCache, objects: FolderObjects) -> None:
    stored(objects, "a")
    copy = cache.open("a", SIZE)
    other = ObjectCache(objects, cache.folder)
    other.forget(["a", "b"])
    assert copy.is_in_place()
    del copy
    other.forget(["a"])
    assert not os.path.exists(cache.local_path("a"))
    assert cache.open("a", SIZE).is_in_place()


def test_another_object_of_that_name(cache: ObjectCache, objects: FolderObjects) -> None:
    copy = cache.open("a", 5 * EXTENT_BYTES)
    assert not ObjectCache(objects, cache.folder).open("a", 99 * EXTENT_BYTES).states[0]
    assert not copy.is_in_place()


def test_file_systems_that_free_no_parts(
    cache: ObjectCache, objects: FolderObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, start: int, size: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "no")

    monkeypatch.setattr(object_cache, "_free_range", refuse)
    for name in "ab":
        stored(objects, name)
    kept = cache.open("a", SIZE)
    kept.bring(0, 99)
    cache.open("b", SIZE).bring(0, 99)
    cache.most_bytes = 120 * EXTENT_BYTES
    for _ in range(3):
        cache.trim()
    assert not os.path.exists(cache.local_path("b")) and kept.is_in_place()
    assert here(kept) >= 99


@contextmanager
def scan(copy: CachedObject) -> Iterator[BinaryIO]:
    with copy.scanned() as file:
        yield file


def test_read_from_end_to_end(cache: ObjectCache, objects: FolderObjects) -> None:
    data = stored(objects, "a")
    copy = cache.open("a", SIZE)
    copy.bring(100, 130)
    objects.ranges.clear()
    with scan(copy) as file:
        assert file.read() == data
        assert file.seek(0, os.SEEK_END) == SIZE
        assert file.read(10) == b""
        file.seek(SIZE - 7)
        assert file.read() == data[-7:]
        file.seek(3 * EXTENT_BYTES - 5)
        assert file.read(10) == data[3 * EXTENT_BYTES - 5 : 3 * EXTENT_BYTES + 5]
    # In few requests, and little of it is kept.
    assert len(objects.ranges) < 10 and here(copy) < 40
    with pytest.raises(CorruptFileError), scan(copy) as file:
        file.read()
        raise CorruptFileError("a block")
    assert here(copy) == 0


def test_what_leaves_while_it_is_read(cache: ObjectCache, objects: FolderObjects) -> None:
    data = stored(objects, "a")
    copy = cache.open("a", SIZE)
    ends = threading.Event()

    def leave() -> None:
        cache.most_bytes = 1
        while not ends.is_set():
            cache.trim()

    thread = threading.Thread(target=leave)
    thread.start()
    try:
        draw = random.Random(3)
        for _ in range(300):
            start = draw.randrange(SIZE)
            copy.bring(start // EXTENT_BYTES, start // EXTENT_BYTES, True)
            with scan(copy) as file:
                file.seek(start)
                assert file.read(20_000) == data[start : start + 20_000]
    finally:
        ends.set()
        thread.join()
