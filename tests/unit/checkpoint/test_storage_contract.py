"""What every storage promises, of a folder and of an object store."""

from __future__ import annotations

import errno
import multiprocessing
import pickle
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pystate.checkpoint.locations import open_storage
from pystate.checkpoint.object_storage import ObjectStorage
from pystate.checkpoint.storage import CheckpointStorage, LocalStorage
from pystate.errors import (
    AlreadyPublishedError,
    CheckpointError,
    CorruptFileError,
    InvalidArgumentError,
    NoSpaceError,
)
from tests.forks import FORKS

KINDS = ["local", "s3"]


@pytest.fixture(params=KINDS)
def location(request: pytest.FixtureRequest) -> str:
    if request.param == "local":
        return str(request.getfixturevalue("tmp_path") / "root")
    return str(request.getfixturevalue("s3_url"))


@pytest.fixture
def storage(location: str) -> CheckpointStorage:
    return open_storage(location)


def all_files(storage: CheckpointStorage) -> list[str]:
    found = storage.list("") + storage.list("", temporary=True)
    return sorted(entry.path for entry in found)


def test_publish_then_read(storage: CheckpointStorage) -> None:
    storage.publish("a/b/c.bin", b"payload")
    assert storage.read_bytes("a/b/c.bin") == b"payload"
    assert storage.exists("a/b/c.bin") and not storage.exists("a/b")
    assert storage.size_bytes("a/b/c.bin") == 7
    assert storage.size_bytes("a/b/c.bin/d") is None
    assert all_files(storage) == ["a/b/c.bin"]


def test_publish_never_replaces(storage: CheckpointStorage) -> None:
    storage.publish("a", b"first")
    with pytest.raises(AlreadyPublishedError, match="somebody else published it first") as caught:
        storage.publish("a", b"second")
    assert isinstance(caught.value, FileExistsError) and isinstance(caught.value, CheckpointError)
    assert storage.read_bytes("a") == b"first"
    assert all_files(storage) == ["a"]


def test_of_many_publishers_one_wins(storage: CheckpointStorage) -> None:
    barrier = threading.Barrier(8)
    won: list[int] = []

    def publish(number: int) -> None:
        barrier.wait()
        try:
            storage.publish("manifests/1", str(number).encode())
            won.append(number)
        except AlreadyPublishedError:
            pass

    threads = [threading.Thread(target=publish, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert storage.read_bytes("manifests/1") == str(won[0]).encode()
    assert all_files(storage) == ["manifests/1"]


def context_of(storage: CheckpointStorage) -> Any:
    """Processes may be forked that have a folder, which is quicker, and none that have a client."""
    local = isinstance(storage, LocalStorage)
    return multiprocessing.get_context("fork" if local else "spawn")


def publish_all(storage: CheckpointStorage, number: int, gate: Any, won: Any) -> None:
    gate.wait()
    for name in range(20):
        try:
            storage.publish(f"manifests/{name}", str(number).encode())
            won.put((name, number))
        except AlreadyPublishedError:
            pass
    won.put(None)


@FORKS
def test_of_two_processes_one_wins_each_name(storage: CheckpointStorage) -> None:
    context = context_of(storage)
    gate, won = context.Barrier(2), context.Queue()
    workers = [context.Process(target=publish_all, args=(storage, n, gate, won)) for n in range(2)]
    for worker in workers:
        worker.start()
    found, ended = [], 0
    while ended < 2:
        item = won.get(timeout=60)
        ended += item is None
        found += [] if item is None else [item]
    for worker in workers:
        worker.join()
    assert sorted(name for name, _ in found) == list(range(20))
    for name, number in found:
        assert storage.read_bytes(f"manifests/{name}") == str(number).encode()


def test_created_file_appears_at_the_end(storage: CheckpointStorage) -> None:
    with storage.create("state/x.delta") as out:
        out.write(b"12")
        assert not storage.exists("state/x.delta")
        assert storage.list("state") == []
        out.write(memoryview(b"34"))
    assert storage.read_bytes("state/x.delta") == b"1234"
    assert all_files(storage) == ["state/x.delta"]


def test_create_never_replaces(storage: CheckpointStorage) -> None:
    storage.publish("x", b"first")
    with pytest.raises(AlreadyPublishedError), storage.create("x") as out:
        out.write(b"second")
    assert storage.read_bytes("x") == b"first"
    assert all_files(storage) == ["x"]


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), CorruptFileError("c")])
def test_failure_inside_the_block_leaves_nothing(
    storage: CheckpointStorage, error: BaseException
) -> None:
    with pytest.raises(type(error)) as caught, storage.create("x") as out:
        out.write(b"half")
        raise error
    assert caught.value is error
    assert all_files(storage) == []


def test_full_disk_inside_the_block(storage: CheckpointStorage) -> None:
    with pytest.raises(NoSpaceError, match=r"full.*/x") as caught, storage.create("x") as out:
        out.write(b"half")
        raise OSError(errno.ENOSPC, "no space")
    assert caught.value.errno == errno.ENOSPC
    assert all_files(storage) == []


def killed_within_create(storage: CheckpointStorage, begun: Any) -> None:
    with storage.create("x") as out:
        out.write(b"half" * (8 << 20))
        begun.set()
        time.sleep(600)


@FORKS
def test_a_kill_within_create_leaves_nothing_visible(storage: CheckpointStorage) -> None:
    context = context_of(storage)
    begun = context.Event()
    worker = context.Process(target=killed_within_create, args=(storage, begun))
    worker.start()
    assert begun.wait(60)
    worker.kill()
    worker.join()
    assert storage.list("") == [] and not storage.exists("x")


def test_replace(storage: CheckpointStorage) -> None:
    storage.replace("job.json", b"one")
    storage.replace("job.json", b"two", durable=False)
    assert storage.read_bytes("job.json") == b"two"
    assert all_files(storage) == ["job.json"]
    storage.sync_folder("")
    storage.sync_folder("none")


def test_list_is_sorted_and_recursive(storage: CheckpointStorage) -> None:
    before_ms = time.time_ns() // 1_000_000
    for path in ("s/b/2", "s/a/1", "s/c", "sx", "t"):
        storage.publish(path, b"1")
    assert [entry.path for entry in storage.list("s")] == ["s/a/1", "s/b/2", "s/c"]
    assert [entry.path for entry in storage.list("")] == ["s/a/1", "s/b/2", "s/c", "sx", "t"]
    assert storage.list("none") == [] and storage.list("t/x") == [] and storage.list("t") == []
    [entry] = [entry for entry in storage.list("") if entry.path == "t"]
    assert entry.size_bytes == 1
    assert abs(entry.modified_ms - before_ms) < 60_000


@pytest.mark.parametrize("name", ["a b", "a%20b", "x~y", "é", "a#b?c", "q=1&r", "a*b+c", "%2F"])
def test_names_are_taken_literally(storage: CheckpointStorage, name: str) -> None:
    storage.publish(f"d/{name}/f", b"1")
    assert [entry.path for entry in storage.list("d")] == [f"d/{name}/f"]
    assert storage.read_bytes(f"d/{name}/f") == b"1"
    assert storage.delete(f"d/{name}/f") and storage.list("") == []


def test_delete(storage: CheckpointStorage) -> None:
    storage.publish("a", b"")
    assert storage.delete("a") and not storage.delete("a")
    for read in (storage.read_bytes, storage.open_read):
        with pytest.raises(FileNotFoundError) as caught:
            read("a")
        assert str(caught.value.filename).endswith("/a")


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../b", "a//b", "./a", "a/", "a\0b"])
def test_names_outside_the_root(storage: CheckpointStorage, path: str) -> None:
    with pytest.raises(InvalidArgumentError, match="relative POSIX path"):
        storage.publish(path, b"")
    assert storage.list("") == []


def test_pickle_and_equality(storage: CheckpointStorage, location: str) -> None:
    copy = pickle.loads(pickle.dumps(storage))
    assert copy == storage and hash(copy) == hash(storage)
    assert copy == open_storage(f"{location}/") and copy != open_storage(f"{location}/x")
    assert storage.uri == location == open_storage(storage.uri).uri
    copy.publish("a", b"1")
    assert storage.read_bytes("a") == b"1"


@pytest.mark.parametrize("size", [0, 1, 100_000, (5 << 20) + 17])
def test_reading_from_anywhere(storage: CheckpointStorage, size: int) -> None:
    data = bytes(range(251)) * (size // 251 + 1)
    data = data[:size]
    storage.publish("x", data)
    with storage.open_read("x") as file:
        assert file.seekable() and file.readable()
        assert file.seek(0, 2) == size and file.read(4) == b""
        for offset in (0, size // 3, size // 2, max(0, size - 5), 7, size + 3):
            file.seek(offset)
            assert file.read(10) == data[offset : offset + 10]
            assert file.tell() == offset + len(data[offset : offset + 10])
        file.seek(0)
        buffer = bytearray(size + 1)
        got = 0
        while n := file.readinto(memoryview(buffer)[got:]):  # type: ignore[attr-defined]
            got += n
        assert got == size and buffer[:size] == data
        file.seek(3)
        assert file.read() == data[3:]


def test_what_is_large_is_written_once_too(
    storage: CheckpointStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pystate.checkpoint.object_storage._ONE_PUT", 1 << 20)
    data = bytes(range(256)) * (12 << 12)
    with storage.create("f/x") as out:
        out.write(data)
    assert storage.read_bytes("f/x") == data
    with pytest.raises(AlreadyPublishedError), storage.create("f/x") as out:
        out.write(bytes(2 << 20))
    assert storage.read_bytes("f/x") == data
    assert all_files(storage) == ["f/x"]
    with storage.open_read("f/x") as source, storage.create("f/y") as out:
        shutil.copyfileobj(source, out, 1 << 20)
    assert storage.read_bytes("f/y") == data


def test_sharing(storage: CheckpointStorage, location: str) -> None:
    other = open_storage(f"{location}/savepoints/s")
    storage.publish("a", b"content")
    assert other.share("b/c", storage, "a")
    storage.delete("a")
    assert other.read_bytes("b/c") == b"content"
    storage.publish("a", b"again")
    with pytest.raises(AlreadyPublishedError):
        other.share("b/c", storage, "a")
    with pytest.raises(FileNotFoundError):
        other.share("d", storage, "none")


def test_nothing_is_shared_between_kinds(s3_url: str, tmp_path: Path) -> None:
    here, there = LocalStorage(tmp_path), ObjectStorage(s3_url)
    here.publish("a", b"1")
    there.publish("a", b"1")
    assert not here.share("b", there, "a") and not there.share("b", here, "a")
    assert there.local_path("a") is None


# ---- marks ---------------------------------------------------------------------------------------


def test_marks(storage: CheckpointStorage) -> None:
    with pytest.raises(FileNotFoundError):
        storage.mark("f/m", b"early")
    storage.make_folder("f")
    storage.make_folder("f")
    assert storage.list("f") == []
    assert storage.mark("f/m", b"first") is None
    assert storage.mark("f/m", b"second") == b"first"
    assert [entry.path for entry in storage.list("f")] == ["f/m"]
    storage.remove_folder("f")
    storage.remove_folder("f")
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            storage.mark("f/m", b"late")
    assert all_files(storage) == []


def test_a_mark_that_races_with_the_removal(storage: CheckpointStorage) -> None:
    """It is there when `mark` returns, or `mark` fails; nothing stays behind."""
    for number in range(10):
        folder = f"e/{number}"
        storage.make_folder(folder)
        gate = threading.Barrier(5)

        def mark(name: int, gate: threading.Barrier = gate, folder: str = folder) -> None:
            gate.wait()
            with suppress(FileNotFoundError):
                storage.mark(f"{folder}/{name}", b"")

        threads = [threading.Thread(target=mark, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        gate.wait()
        if isinstance(storage, LocalStorage):
            for thread in threads:  # a folder into which tasks write is left for later
                thread.join()
        storage.remove_folder(folder)
        for thread in threads:
            thread.join()
    assert all_files(storage) == []


def test_touch(storage: CheckpointStorage) -> None:
    assert not storage.touch("f/m")
    storage.make_folder("f")
    storage.mark("f/m", b"content")
    [before] = storage.list("f")
    deadline = time.monotonic() + 30
    while storage.list("f")[0].modified_ms == before.modified_ms:
        assert time.monotonic() < deadline and storage.touch("f/m")
    assert storage.read_bytes("f/m") == b"content"
    storage.remove_folder("f")
    assert not storage.touch("f/m")
    assert all_files(storage) == []


def between(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], object]) -> None:
    """Do something just before the package's next call of a name."""
    import obstore

    real = getattr(obstore, name)

    def call(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(obstore, name, real)
        act()
        return real(*arguments, **options)

    monkeypatch.setattr(obstore, name, call)


def test_a_touch_does_not_bring_a_mark_back(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = ObjectStorage(s3_url)
    storage.make_folder("f")
    storage.mark("f/m", b"content")
    between(monkeypatch, "put", lambda: storage.remove_folder("f"))
    assert not storage.touch("f/m")
    assert all_files(storage) == []


def test_a_mark_takes_itself_back(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = ObjectStorage(s3_url)
    storage.make_folder("f")
    between(monkeypatch, "put", lambda: storage.remove_folder("f"))
    with pytest.raises(FileNotFoundError):
        storage.mark("f/m", b"content")
    assert all_files(storage) == []
