"""What only folders have to do; `test_storage_contract.py` has what every storage promises."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pystate.checkpoint.locations import open_storage
from pystate.checkpoint.storage import LocalStorage
from pystate.errors import CheckpointError, NoSpaceError, PystateError


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "root")


def all_files(storage: LocalStorage) -> list[str]:
    return [str(p.relative_to(storage.uri)) for p in Path(storage.uri).rglob("*") if p.is_file()]


def test_an_unfinished_file_is_listed_as_a_leftover(storage: LocalStorage) -> None:
    with storage.create("state/x.delta") as out:
        out.write(b"12")
        (temporary,) = storage.list("state", temporary=True)
        assert temporary.path.startswith("state/.x.delta.")
    assert storage.list("state", temporary=True) == []


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


def test_root_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"could not create .*file"):
        LocalStorage(tmp_path / "file").publish("x", b"")


@pytest.mark.parametrize(
    ("location", "root"),
    [
        ("/data/ck", "/data/ck"),
        ("file:///data/ck", "/data/ck"),
        ("file:/data/ck", "/data/ck"),
        ("file://localhost/data/a%20b", "/data/a b"),
        (Path("/data/ck"), "/data/ck"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/a%20b/c/", "s3://bucket/a%20b/c"),
        ("s3a://bucket/ck", "s3://bucket/ck"),
        ("gs://bucket/ck", "gs://bucket/ck"),
        ("abfss://c@a.dfs.core.windows.net/ck", "abfss://c@a.dfs.core.windows.net/ck"),
    ],
)
def test_locations(location: str | Path, root: str) -> None:
    assert open_storage(location).uri == root


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("hdfs:///ck", r"'hdfs' is not supported.*file://.*s3://, .*gs://"),
        ("https://user:secret@host/ck?sig=secret", "checkpoint https:...: the scheme 'https'"),
        ("s3:///ck", r"names no bucket: write s3://BUCKET/PREFIX"),
        ("s3://bucket/a/../b", r"or \. or \.\."),
        ("s3://bucket/a?versionId=secret", r"'s3://bucket/a': a URL here has no \?"),
        ("s3://key:secret@bucket/ck", "credentials are taken from the environment"),
        ("abfss://c:secret@a.dfs.core.windows.net/ck", r"environment \(AZURE_STORAGE_ACCOUNT_NAME"),
        ("file://otherhost/ck", "no host"),
        ("file:///ck?x=1", "no host"),
        ("", "empty"),
    ],
)
def test_refused_locations(location: str, message: str) -> None:
    with pytest.raises(PystateError, match=message) as caught:
        open_storage(location)
    assert "\n" not in str(caught.value) and "secret" not in str(caught.value)


def test_a_folder_is_removed_while_others_are_made(storage: LocalStorage) -> None:
    """The storage knows many folders, and a thread makes one more at any moment."""
    storage._synced.update(f"{storage.uri}/known/{i}" for i in range(200_000))
    end = threading.Event()

    def make() -> None:
        number = 0
        while not end.is_set():
            storage._synced.add(f"{storage.uri}/new/{number}")
            number += 1

    thread = threading.Thread(target=make)
    thread.start()
    try:
        for _ in range(5):
            storage.remove_folder("f")
    finally:
        end.set()
        thread.join()
    storage.replace("f/x", b"1")
    assert storage.read_bytes("f/x") == b"1"
