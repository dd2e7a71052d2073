"""Some keys, looked up in the objects of a store: few requests, many at a time, and what fails."""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pystate as ps
from pystate.checkpoint import object_cache
from pystate.checkpoint.locations import open_storage
from pystate.checkpoint.object_cache import REQUESTS, ObjectCache
from pystate.errors import CheckpointError, CorruptFileError
from pystate.processor import changes, key_files
from pystate.processor.key_files import KeyFiles
from pystate.processor.lookup import StateLookup
from tests import object_server
from tests.folder_objects import FolderObjects
from tests.unit.processor.changes import keyed
from tests.unit.processor.test_key_files import KEYS, fill, sorted_rows

ROWS = 300_000


@pytest.fixture(autouse=True)
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the copies of objects are."""
    folder = tmp_path / "local"
    monkeypatch.setattr(key_files, "own_folder", lambda kind: str(folder / kind))
    key_files._copies_of.cache_clear()
    yield folder
    key_files._copies_of.cache_clear()


def write_rows(folder: Path, home: Any, rows: int = ROWS) -> None:
    """A store with a large file, and a small one."""
    more = {"limit_bytes": 128 << 20} if home == "disk" else {}
    with ps.open(
        folder, key="long", states={"v": ps.ValueState("long")}, home=home, **more
    ) as store:
        for keys in (np.arange(rows), np.arange(0, rows, 1000)):
            store["v"].update_all(store.keys(keys), 3 * keys)
            store.checkpoint()


@pytest.fixture(scope="module", params=["disk", "heap"])
def large(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large") / request.param
    write_rows(folder, request.param)
    return folder


def check(found: Any, keys: Any) -> None:
    rows = dict(zip(found["key"].to_pylist(), found["v"].to_pylist(), strict=True))
    assert rows == {int(key): 3 * int(key) for key in keys if key < ROWS}


@pytest.mark.parametrize("namespace", [None, "long"])
@pytest.mark.parametrize("seed", range(4))
def test_looked_up_is_as_read(
    tmp_path: Path, seed: int, namespace: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without reading guides, and with copies that leave at once."""
    fill(tmp_path / "ck", seed, namespace)
    if seed % 2:
        monkeypatch.setattr(key_files, "KEYS", 5)
        monkeypatch.setattr(key_files, "REQUEST_BYTES", 100)
        monkeypatch.setattr(key_files, "_GAP_BYTES", 10)
    if seed == 3:
        monkeypatch.setattr(key_files, "COPIED_BYTES", 1 << 18)
    objects, draw = FolderObjects(tmp_path / "ck"), random.Random(seed)
    lookup, whole = StateLookup(objects), ps.read_state(tmp_path / "ck").to_pylist()
    for n in (1, 3, 0, 30, 2 * KEYS):
        keys = [keyed(k) for k in draw.choices(range(2 * KEYS), k=n)]
        wanted = sorted(str(row) for row in whole if row["k"] in keys)
        assert sorted_rows(lookup.rows(keys)) == wanted
        assert sorted_rows(StateLookup(objects).rows(keys)) == wanted


def test_changes_of_some_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path / "s", "disk", 5000)
    keys, objects = [3, 4, 1000, 9999], FolderObjects(tmp_path / "s")
    whole = ps.changes(tmp_path / "s", from_epoch=0, keys=keys)
    monkeypatch.setattr(changes, "storage_at", lambda *_: objects)
    assert sorted_rows(ps.changes("s3://any", from_epoch=0, keys=keys)) == sorted_rows(whole)
    assert whole.num_rows == 3 and objects.ranges


# -- requests


def test_many_keys_take_few_requests(large: Path) -> None:
    objects, draw = FolderObjects(large), np.random.default_rng(1)
    objects.takes_s = 0.005
    size = sum(file.stat().st_size for file in (large / "state").rglob("*") if file.is_file())
    one = StateLookup(objects)
    check(one.rows([17]), [17])
    # Header, tail, what leads to the block, and the block, of one file; the other one is small.
    assert len(objects.ranges) <= 6 and objects.bytes < 1 << 20
    keys = draw.integers(0, 2 * ROWS, 1000)
    lookup, objects.ranges[:] = StateLookup(objects), []
    check(lookup.rows(keys), keys)
    assert len(objects.ranges) <= 16 + size // key_files.REQUEST_BYTES * 2
    assert 2 <= objects.most_at_once <= REQUESTS
    # It is here now: also what was not asked for, but for blocks that nobody wanted.
    objects.ranges.clear()
    check(lookup.rows(keys), keys)
    check(StateLookup(objects).rows(keys), keys)
    assert objects.ranges == []


def test_far_keys_take_a_request_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path / "s", "disk")
    monkeypatch.setattr(key_files, "_GAP_BYTES", 0)
    objects = FolderObjects(tmp_path / "s")
    lookup = StateLookup(objects)
    keys = np.arange(0, ROWS, 60)
    check(lookup.rows(keys), keys)
    opened, read = len(objects.ranges), objects.bytes
    others = np.arange(7, ROWS, 30_000)
    check(lookup.rows(others), others)
    assert len(objects.ranges) - opened <= len(others)
    assert objects.bytes - read <= 2 * len(others) * object_cache.EXTENT_BYTES


def test_a_guide_is_read_once_it_pays(
    large: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if large.name == "heap":
        pytest.skip("such files have none")
    objects = FolderObjects(large)
    lookup = StateLookup(objects)
    for key in range(20):
        check(lookup.rows([key]), [key])
        files = list(lookup._files._known.values())
        big = max(files, key=lambda file: file.info.file_bytes)
        assert (big.guided is not None) == (key + 1 >= big.segments)
    assert 1 < big.segments < 20


# -- threads


def test_look_ups_wait_for_the_store_at_the_same_time(large: Path) -> None:
    objects, draw = FolderObjects(large), np.random.default_rng(3)
    lookup = StateLookup(objects)
    keys = np.arange(0, ROWS, 10_000)
    check(lookup.rows(keys), keys)
    objects.takes_s, objects.most_at_once = 0.05, 0
    parts = [draw.integers(0, ROWS, 1) for _ in range(24)]

    def look_up(some: Any) -> None:
        check(lookup.rows(some), some)
        lookup.refresh()

    began_s = time.monotonic()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(look_up, parts))
    assert objects.most_at_once >= 3
    assert time.monotonic() - began_s < 0.75 * 0.05 * len(objects.ranges)


# -- faults


def test_requests_that_fail(large: Path) -> None:
    """An error names the object; the next look-up goes on, with what has come."""
    objects, count = FolderObjects(large), itertools.count()
    keys = np.arange(0, ROWS, 500)
    lookup, failed = StateLookup(objects), 0

    def fault(path: str) -> None:
        if next(count) % 3 == 0:
            raise CheckpointError(f"could not read s3://folder/{path}: SlowDown")

    objects.fault = fault
    for _ in range(200):
        try:
            check(lookup.rows(keys), keys)
            break
        except CheckpointError as error:
            assert "SlowDown" in str(error) and "state/" in str(error)
            failed += 1
    assert failed > 0
    objects.fault = lambda path: None
    check(lookup.rows(keys), keys)


def test_an_object_that_is_gone(tmp_path: Path) -> None:
    write_rows(tmp_path / "s", "disk", 100_000)
    objects = FolderObjects(tmp_path / "s")
    lookup = StateLookup(objects)
    for file in (tmp_path / "s" / "state").rglob("*delta*"):
        file.unlink()
    with pytest.raises(CheckpointError, match=r"a file that .* names is missing: .*delta"):
        lookup.rows([1])


def test_what_is_damaged_here_is_fetched_again(large: Path, copies: Path) -> None:
    objects = FolderObjects(large)
    lookup, keys = StateLookup(objects), np.arange(0, ROWS, 500)
    check(lookup.rows(keys), keys)
    for file in (copies / "objects").glob("*.object"):
        data = bytearray(file.read_bytes())
        for at in range(1000, len(data) - (1 << 16), 10_000):
            data[at] ^= 1
        with open(file, "r+b") as out:
            out.write(data[: len(data) - (1 << 16)])
    before = len(objects.ranges)
    check(lookup.rows(keys), keys)
    check(StateLookup(objects).rows(keys), keys)
    assert len(objects.ranges) > before


def test_what_is_damaged_in_the_store(tmp_path: Path) -> None:
    write_rows(tmp_path / "s", "disk", 100_000)
    for file in (tmp_path / "s" / "state").rglob("*delta*"):
        data = bytearray(file.read_bytes())
        data[len(data) // 3] ^= 1
        file.write_bytes(data)
    with pytest.raises(CorruptFileError, match=r"delta: corrupt at byte"):
        StateLookup(FolderObjects(tmp_path / "s")).rows(np.arange(0, 100_000, 3))


def test_copies_that_are_removed_meanwhile(large: Path, copies: Path) -> None:
    lookup, draw = StateLookup(FolderObjects(large)), np.random.default_rng(1)
    ends = threading.Event()

    def remove() -> None:
        while not ends.wait(0.01):
            shutil.rmtree(copies, ignore_errors=True)

    thread = threading.Thread(target=remove)
    thread.start()
    try:
        for _ in range(30):
            keys = draw.integers(0, ROWS, 50)
            check(lookup.rows(keys), keys)
    finally:
        ends.set()
        thread.join()
    check(lookup.rows([5]), [5])
    # Those that are open are the ones that have names, so that their room is counted.
    assert all(file.copy.is_in_place() for file in lookup._files._known.values() if file.copy)


def test_a_full_disk(
    large: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What finds no room is read without it."""

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "full")

    lookup, keys = StateLookup(FolderObjects(large)), np.arange(0, ROWS, 3000)
    check(lookup.rows(keys[:3]), keys[:3])
    monkeypatch.setattr(os, "pwrite", full)
    check(lookup.rows(keys), keys)
    assert "no room on the local disk" in caplog.text and "TMPDIR" in caplog.text
    monkeypatch.undo()
    check(lookup.rows(keys), keys)


def test_a_folder_that_cannot_be_made(large: Path, copies: Path) -> None:
    copies.write_text("a file")
    check(StateLookup(FolderObjects(large)).rows([1, 2]), [1, 2])


def test_copies_leave_half_of_what_is_free(
    large: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = os.statvfs

    def little(path: Any) -> Any:
        found = list(real(path))
        found[1], found[4] = 4096, 256  # f_frsize, f_bavail
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "statvfs", little)
    assert key_files._copies_of(FolderObjects(large)).most_bytes == 4096 * 128


def test_copies_take_no_more_than_they_may(
    large: Path, monkeypatch: pytest.MonkeyPatch, copies: Path
) -> None:
    monkeypatch.setattr(key_files, "COPIED_BYTES", 1 << 20)
    objects, keys = FolderObjects(large), np.arange(0, ROWS, 50)
    check(StateLookup(objects).rows(keys), keys)
    cache = key_files._copies_of(objects)
    cache.trim()
    assert cache.used_bytes <= (1 << 20) + (1 << 17)


_KILLED = """
import os, sys
from pathlib import Path
from pystate.processor.lookup import StateLookup
from tests.folder_objects import FolderObjects
lookup = StateLookup(FolderObjects(Path(sys.argv[1])))
print(lookup.rows([1])["v"].to_pylist(), flush=True)
sys.stdin.read()
"""


def test_what_killed_processes_leave(large: Path, tmp_path: Path) -> None:
    """The next one removes it, and one that ends removes its own."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}

    def begin() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", _KILLED, str(large)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "[3]\n"
        return process

    killed = begin()
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    [left] = temporary.rglob("objects")
    other = begin()
    [here] = temporary.rglob("objects")
    assert here != left
    other.communicate()
    assert other.returncode == 0 and not list(temporary.rglob("objects"))


# -- a server


def put_into(url: str, folder: Path) -> None:
    """Put a folder's files into an object store."""
    storage = open_storage(url)
    for file in folder.rglob("*"):
        if file.is_file():
            storage.replace(str(file.relative_to(folder)), file.read_bytes())


def test_a_server_of_objects(
    large: Path, s3_url: str, object_store: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put_into(s3_url, large)
    keys = np.random.default_rng(1).integers(0, 2 * ROWS, 1000)
    with object_server.faults(object_store["AWS_ENDPOINT_URL"]) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        check(ps.read_state(s3_url, keys=[5]), [5])
        # Of these, some read the manifest.
        few = proxy.counts.total()
        assert few <= 20
        check(ps.read_state(s3_url, keys=keys), keys)
        assert proxy.counts.total() - few <= 40
        key_files._copies_of.cache_clear()
        for fault in ("reset before", "reset after", "cut"):
            shutil.rmtree(key_files.own_folder("objects"))
            proxy.next("GET", fault, 6)
            check(ps.read_state(s3_url, keys=keys), keys)
            assert proxy.reached()


def test_a_refresh_reads_what_is_new(
    tmp_path: Path, s3_url: str, object_store: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the files that the epoch before had."""
    storage = open_storage(s3_url)

    def send() -> None:
        for file in sorted((tmp_path / "s").rglob("*"), key=lambda file: "manifest" in file.name):
            if file.is_file():
                storage.replace(str(file.relative_to(tmp_path / "s")), file.read_bytes())

    write_rows(tmp_path / "s", "disk", 100_000)
    send()
    with object_server.faults(object_store["AWS_ENDPOINT_URL"]) as proxy:
        with monkeypatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", proxy.url)
            lookup = StateLookup(s3_url)
            check(lookup.rows([1, 7]), [1, 7])
        states, keys = {"v": ps.ValueState("long")}, np.arange(3)
        with ps.open(
            tmp_path / "s", key="long", states=states, home="disk", limit_bytes=128 << 20
        ) as store:
            store["v"].update_all(store.keys(keys), 5 * keys)
            store.checkpoint()
        send()
        with monkeypatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", proxy.url)
            before, epoch = proxy.counts.total(), lookup.epoch
            assert lookup.refresh() == epoch + 1
            refreshed = proxy.counts.total() - before
            assert lookup.rows([2])["v"].to_pylist() == [10]
            assert refreshed <= 3 and proxy.counts.total() - before - refreshed <= 4


def test_credentials_that_end(
    large: Path, s3_url: str, object_store: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put_into(s3_url, large)
    lookup = StateLookup(s3_url)
    check(lookup.rows([5]), [5])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "denied")
    keys = np.arange(0, ROWS, 700)
    with pytest.raises(CheckpointError, match=r"could not read s3://.*access is denied") as raised:
        lookup.rows(keys)
    assert "not-so-secret" not in str(raised.value)
    monkeypatch.undo()
    for name, value in object_store.items():
        monkeypatch.setenv(name, value)
    check(lookup.rows(keys), keys)


def test_all_of_a_process_share_copies(large: Path) -> None:
    objects = FolderObjects(large)
    one, two = KeyFiles(objects), KeyFiles(FolderObjects(large))
    assert one.is_remote and isinstance(key_files._copies_of(objects), ObjectCache)
    assert key_files._copies_of(one._storage) is key_files._copies_of(two._storage)
