"""Files appear complete or not at all, and nothing is replaced."""

from __future__ import annotations

import errno
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pystate.checkpoint.storage import LocalStorage, open_storage
from pystate.errors import (
    AlreadyPublishedError,
    CheckpointError,
    CorruptFileError,
    InvalidArgumentError,
    NoSpaceError,
    PystateError,
)


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "root")


def all_files(storage: LocalStorage) -> list[str]:
    return [str(p.relative_to(storage.uri)) for p in Path(storage.uri).rglob("*") if p.is_file()]


def test_publish_then_read(storage: LocalStorage) -> None:
    storage.publish("a/b/c.bin", b"payload")
    assert storage.read_bytes("a/b/c.bin") == b"payload"
    assert storage.exists("a/b/c.bin") and not storage.exists("a/b")
    assert storage.size_bytes("a/b/c.bin") == 7
    assert storage.size_bytes("a/b/c.bin/d") is None
    assert all_files(storage) == ["a/b/c.bin"]


def test_publish_never_replaces(storage: LocalStorage) -> None:
    storage.publish("a", b"first")
    with pytest.raises(AlreadyPublishedError, match="somebody else published it first") as caught:
        storage.publish("a", b"second")
    assert isinstance(caught.value, FileExistsError) and isinstance(caught.value, CheckpointError)
    assert storage.read_bytes("a") == b"first"
    assert all_files(storage) == ["a"]


def test_of_many_publishers_one_wins(storage: LocalStorage) -> None:
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


def test_created_file_appears_at_the_end(storage: LocalStorage) -> None:
    with storage.create("state/x.delta") as out:
        out.write(b"12")
        assert not storage.exists("state/x.delta")
        assert storage.list("state") == []
        (temporary,) = storage.list("state", temporary=True)
        assert temporary.path.startswith("state/.x.delta.")
        out.write(b"34")
    assert storage.read_bytes("state/x.delta") == b"1234"
    assert storage.list("state", temporary=True) == []


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), CorruptFileError("c")])
def test_failure_inside_the_block_leaves_nothing(
    storage: LocalStorage, error: BaseException
) -> None:
    with pytest.raises(type(error)) as caught, storage.create("x") as out:
        out.write(b"half")
        raise error
    assert caught.value is error
    assert all_files(storage) == []


def test_full_disk_inside_the_block(storage: LocalStorage) -> None:
    with pytest.raises(NoSpaceError, match=r"full.*root/x") as caught, storage.create("x") as out:
        out.write(b"half")
        raise OSError(errno.ENOSPC, "no space")
    assert caught.value.errno == errno.ENOSPC
    assert all_files(storage) == []


def test_full_disk_at_a_system_call(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.publish("warm", b"")

    def full(descriptor: int) -> None:
        raise OSError(errno.EDQUOT, "quota")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NoSpaceError, match="root/x"):
        storage.publish("x", b"data")
    with pytest.raises(NoSpaceError, match="root/y"):
        storage.replace("y", b"data")
    assert all_files(storage) == ["warm"]


def test_what_appears_is_durable(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Content before name, name before return, new folders before anything in them."""
    calls: list[tuple[str, str]] = []

    def recorded(name: str, path_of: Callable[..., str]) -> None:
        real = getattr(os, name)

        def call(*arguments: Any) -> Any:
            calls.append((name, os.path.relpath(path_of(*arguments), storage.uri)))
            return real(*arguments)

        monkeypatch.setattr(os, name, call)

    recorded("fsync", lambda descriptor: os.readlink(f"/proc/self/fd/{descriptor}"))
    recorded("link", lambda source, target: target)
    storage.publish("a/b/x", b"data")
    temporary = calls[3][1]
    assert temporary.startswith("a/b/.x.")
    assert calls == [
        ("fsync", "a"),
        ("fsync", "."),
        ("fsync", ".."),
        ("fsync", temporary),
        ("link", "a/b/x"),
        ("fsync", "a/b"),
    ]
    calls.clear()
    storage.replace("a/b/y", b"data")
    assert [name for name, _ in calls] == ["fsync", "fsync"] and calls[1][1] == "a/b"


def test_no_hard_links_says_so(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str, target: str) -> None:
        raise PermissionError(errno.EPERM, "no links")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(CheckpointError, match="must support hard links"):
        storage.publish("x", b"data")
    assert all_files(storage) == []


def test_replace(storage: LocalStorage) -> None:
    storage.replace("job.json", b"one")
    storage.replace("job.json", b"two", durable=False)
    assert storage.read_bytes("job.json") == b"two"
    assert all_files(storage) == ["job.json"]


def test_root_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"could not create .*file"):
        LocalStorage(tmp_path / "file").publish("x", b"")


def test_list_is_sorted_and_recursive(storage: LocalStorage) -> None:
    for path in ("s/b/2", "s/a/1", "s/c", "t"):
        storage.publish(path, b"1")
    assert [entry.path for entry in storage.list("s")] == ["s/a/1", "s/b/2", "s/c"]
    assert [entry.path for entry in storage.list("")] == ["s/a/1", "s/b/2", "s/c", "t"]
    assert storage.list("none") == [] and storage.list("t/x") == []


def test_delete(storage: LocalStorage) -> None:
    storage.publish("a", b"")
    assert storage.delete("a") and not storage.delete("a")
    with pytest.raises(FileNotFoundError):
        storage.read_bytes("a")


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../b", "a//b", "./a", "a/", "a\0b"])
def test_names_outside_the_root(storage: LocalStorage, path: str) -> None:
    with pytest.raises(InvalidArgumentError, match="relative POSIX path"):
        storage.publish(path, b"")
    assert not Path(storage.uri).exists()


def test_pickle_and_equality(storage: LocalStorage) -> None:
    copy = pickle.loads(pickle.dumps(storage))
    assert copy == storage and hash(copy) == hash(storage)
    copy.publish("a", b"1")
    assert storage.read_bytes("a") == b"1"


@pytest.mark.parametrize(
    ("location", "root"),
    [
        ("/data/ck", "/data/ck"),
        ("file:///data/ck", "/data/ck"),
        ("file:/data/ck", "/data/ck"),
        ("file://localhost/data/a%20b", "/data/a b"),
        (Path("/data/ck"), "/data/ck"),
    ],
)
def test_locations(location: str | Path, root: str) -> None:
    assert open_storage(location).uri == root


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("s3://bucket/ck", "'s3' is not supported"),
        ("hdfs:///ck", "'hdfs' is not supported"),
        ("file://otherhost/ck", "no host"),
        ("file:///ck?x=1", "no host"),
        ("", "empty"),
    ],
)
def test_refused_locations(location: str, message: str) -> None:
    with pytest.raises(PystateError, match=message) as caught:
        open_storage(location)
    assert "\n" not in str(caught.value)
