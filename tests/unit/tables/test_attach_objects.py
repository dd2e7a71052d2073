"""Tasks attach tables on disk whose rows lie in the objects of a store."""

from __future__ import annotations

import dataclasses
import errno
import faulthandler
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pystate.checkpoint.object_cache import (
    GROUP_BYTES,
    CachedObject,
    ObjectCache,
    ObjectFile,
    two_tiers,
)
from pystate.checkpoint.object_storage import ObjectReader
from pystate.checkpoint.refs import FileRef, RangeState
from pystate.checkpoint.state_files import EMPTY_LINEAGE
from pystate.epochs import merges
from pystate.epochs.merge_policy import Run
from pystate.epochs.merges import PlannedMerge, merge_again, merge_range
from pystate.errors import CheckpointError, CorruptFileError
from pystate.spark.epochs import file_jobs
from pystate.tables import attach, range_files
from pystate.tables.backend import KeyedStateBackend
from pystate.tables.below import FileBelow
from pystate.tables.host import TableHome, choose_home
from tests.folder_objects import FolderObjects
from tests.peer import STATES, Peer, Worker
from tests.unit.tables.test_attach_disk import APPLICATION, MIB, after, epochs

MakeWorker = Callable[..., Worker]


def home_in(folder: Path) -> TableHome:
    memory, disk = folder / "memory", folder / "disk"
    memory.mkdir(parents=True)
    disk.mkdir()
    return choose_home(APPLICATION, shm=str(memory), least_bytes=0, fallback=str(disk))


@pytest.fixture
def objects(tmp_path: Path) -> FolderObjects:
    return FolderObjects(tmp_path / "ck")


@pytest.fixture
def worker(tmp_path: Path, objects: FolderObjects) -> Iterator[MakeWorker]:
    """Workers of hosts by name; those of one host share its tables, and its copies of objects."""
    made: list[Worker] = []
    homes: dict[str, TableHome] = {}

    def make(host: str = "a", **options: Any) -> Worker:
        if host not in homes:
            homes[host] = home_in(tmp_path / host)
        options.setdefault("limit_bytes", MIB)
        made.append(Worker(objects, homes[host], table_home="disk", **options))
        return made[-1]

    yield make
    for each in made:
        each.stop()
    range_files._cache_of.cache_clear()
    range_files._known.clear()


def cache_of(one: Worker) -> ObjectCache:
    found = range_files.cache_of(one.spec)
    assert found is not None
    return found


def merged(one: Worker, base: RangeState, name: str = "m") -> RangeState:
    """The base after its files were merged into one."""
    ref = merge_range(
        one.storage,
        base.files,
        os.urandom(16).hex(),
        f"state/{name}.base",
        0,
        127,
        block_bytes=4096,
    )
    return dataclasses.replace(base, id=ref.id, base=ref, deltas=())


def looked_up(one: Worker, keys: list[int]) -> list[int]:
    backend = one.attachment.backend
    return backend["n"].values(backend.prefetch(pa.array(keys, pa.int64()))).to_pylist()


def test_rows_leave_and_come(worker: MakeWorker, objects: FolderObjects) -> None:
    """What a host has written is on its disk: nothing is fetched."""
    one = worker()
    base, model = epochs(one, 12)
    assert one.attach(base)[0] == "current"
    assert one.attachment.backend.below.left > 1000
    assert one.read() == model
    assert looked_up(one, list(range(500))) == [model[k] for k in range(500)]
    assert one.attachment.backend.below.looked_up >= 400
    assert objects.ranges == []
    one.release()


def test_another_host_fetches_what_it_reads(worker: MakeWorker, objects: FolderObjects) -> None:
    one, two = worker(limit_bytes=64 * MIB), worker("b", limit_bytes=8 * MIB)
    base, model = epochs(one, 8, rows=40_000)
    base = merged(one, base)
    size = base.files[0].file_bytes
    assert size > 8 * GROUP_BYTES
    assert two.attach(base) == ("opened", "", 1)
    # Header, tail and guide, not the rows.
    assert objects.bytes < size / 8
    before = objects.bytes
    assert looked_up(two, [77]) == [model[77]]
    assert objects.bytes - before <= 2 * GROUP_BYTES
    before = objects.bytes
    assert looked_up(two, [77]) == [model[77]]
    assert objects.bytes == before
    keys = sorted(model)[:4000]
    assert looked_up(two, keys) == [model[k] for k in keys]
    # Each part once.
    assert len(set(objects.ranges)) == len(objects.ranges)
    assert objects.bytes <= size + GROUP_BYTES
    two.add({0: 5})
    base, model = after(base, two.seal(99)), {**model, 0: model[0] + 5}
    two.release()
    before = objects.bytes
    two.attach(base)
    assert two.read() == model
    two.release()


def test_requests_run_side_by_side(worker: MakeWorker, objects: FolderObjects) -> None:
    one, two = worker(limit_bytes=64 * MIB), worker("b", limit_bytes=16 * MIB)
    base, model = epochs(one, 4, rows=40_000)
    base = merged(one, base)
    two.attach(base)
    objects.takes_s, objects.most_at_once = 0.05, 0
    keys = sorted(model)[::50]
    assert looked_up(two, keys) == [model[k] for k in keys]
    assert objects.most_at_once >= 6


def table_path(one: Worker, base: RangeState) -> str:
    found = attach._path_of(one.spec, base)
    assert found is not None
    return found


def damage(one: Worker, ref: FileRef, at: int, size: int) -> None:
    with open(cache_of(one).local_path(ref.path), "r+b") as file:
        file.seek(at)
        was = file.read(size)
        file.seek(at)
        file.write(bytes(b ^ 0xFF for b in was))


def test_what_is_damaged_is_fetched_again(worker: MakeWorker, objects: FolderObjects) -> None:
    """As files are opened: headers, tails and guides."""
    one = worker(limit_bytes=8 * MIB)
    base, model = epochs(one, 4)
    for ref in base.files:
        damage(one, ref, 0, ref.file_bytes)
    one.cache.close()
    range_files._known.clear()
    shutil.rmtree(os.path.dirname(table_path(one, base)))
    two = worker(limit_bytes=8 * MIB)
    assert two.attach(base)[0] == "opened"
    assert looked_up(two, sorted(model)) == [model[k] for k in sorted(model)]
    assert objects.bytes >= sum(ref.file_bytes for ref in base.files)
    two.release()


def test_blocks_that_are_damaged_are_fetched_again(
    worker: MakeWorker, objects: FolderObjects
) -> None:
    one, two = worker(limit_bytes=64 * MIB), worker(limit_bytes=8 * MIB)
    base, model = epochs(one, 3, rows=40_000)
    base = merged(one, base)
    ref = base.files[0]
    one.cache.close()
    two.attach(base)
    keys = sorted(model)[::40]
    assert looked_up(two, keys) == [model[k] for k in keys]
    before = objects.bytes
    damage(two, ref, 0, ref.file_bytes)
    keys = sorted(model)[1::40]
    assert looked_up(two, keys) == [model[k] for k in keys]
    assert objects.bytes > before
    damage(two, ref, 0, ref.file_bytes)
    with pytest.raises(CorruptFileError, match=objects.uri):
        two.read()
    assert two.read() == model
    two.release()


def test_what_is_damaged_in_the_store_is_said(worker: MakeWorker, objects: FolderObjects) -> None:
    one, two = worker(), worker("b")
    base, model = epochs(one, 1)
    path = Path(objects.files.local_path(base.files[0].path))
    data = bytearray(path.read_bytes())
    data[2000] ^= 0xFF
    path.write_bytes(data)
    two.attach(base)
    with pytest.raises(CorruptFileError, match=f"{objects.uri}/state.*corrupt"):
        looked_up(two, sorted(model))
    two.release()


def test_an_object_that_is_missing_or_too_short(
    worker: MakeWorker, objects: FolderObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = worker(limit_bytes=64 * MIB), worker("b", limit_bytes=8 * MIB)
    base, model = epochs(one, 3, rows=40_000)
    base = merged(one, base)
    two.attach(base)
    path = Path(objects.files.local_path(base.files[0].path))
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(CorruptFileError, match=rf"corrupt at byte {len(data) // 2}: it has"):
        looked_up(two, sorted(model)[:2000])
    path.unlink()
    with pytest.raises(CheckpointError, match="is missing, and a manifest names it"):
        looked_up(two, sorted(model)[:2000])
    path.write_bytes(data)
    keys = sorted(model)[:2000]
    assert looked_up(two, keys) == [model[k] for k in keys]
    two.release()


def test_a_store_that_does_not_answer_and_a_full_disk(
    worker: MakeWorker, objects: FolderObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = worker(limit_bytes=64 * MIB), worker("b", limit_bytes=8 * MIB)
    base, model = epochs(one, 3, rows=40_000)
    base = merged(one, base)
    two.attach(base)
    two.add({10**9: 1})

    def fault(path: str) -> None:
        raise CheckpointError("could not read it: SlowDown")

    objects.fault = fault
    with pytest.raises(CheckpointError, match="SlowDown"):
        looked_up(two, sorted(model)[:2000])
    objects.fault = lambda path: None

    def full(self: CachedObject, data: memoryview, start: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(CachedObject, "_write_to", full)
        with pytest.raises(CheckpointError, match=r"no room on the executor's disk, in .*objects"):
            looked_up(two, sorted(model)[:2000])
    assert two.attachment.backend.dirty
    base = after(base, two.seal(9))
    two.release()
    two.attach(base)
    assert two.read() == {**model, 10**9: 1}
    two.release()


def test_little_of_the_disk(worker: MakeWorker, objects: FolderObjects) -> None:
    """Parts come and go while rows do."""
    most = 8 * GROUP_BYTES
    one, two = worker(limit_bytes=64 * MIB), worker("b", disk_bytes=most)
    base, model = epochs(one, 3, rows=80_000)
    base = merged(one, base)
    assert base.files[0].file_bytes > most + MIB
    two.attach(base)
    seen = 0
    keys = sorted(model)
    for begin in range(0, len(keys), 4000):
        part = keys[begin : begin + 4000 : 10]
        assert looked_up(two, part) == [model[k] for k in part]
        seen = max(seen, cache_of(two).used_bytes)
    assert seen <= most + 64 * GROUP_BYTES
    cache_of(two).trim()
    assert cache_of(two).used_bytes <= most
    assert two.read() == model
    two.release()


def test_copies_of_files_that_a_range_does_not_have_any_more_go(worker: MakeWorker) -> None:
    one = worker()
    base, model = epochs(one, 3)
    one.attach(base)
    one.release()
    copies = {cache_of(one).local_path(ref.path) for ref in base.files}
    assert all(map(os.path.exists, copies))
    now = dataclasses.replace(merged(one, base), id=base.id)
    assert one.attach(now)[0] == "current"
    assert one.read() == model
    one.release()
    assert not any(map(os.path.exists, copies))


def test_files_are_merged_first(worker: MakeWorker, objects: FolderObjects) -> None:
    """Files of a job whose tables were in memory, which have no guide."""
    heap = Worker(objects, TableHome(None, None), table_home="heap")
    base, model = epochs(heap, 3)
    heap.stop()
    two = worker("b")
    assert two.attach(base)[0] == "opened"
    assert len(two.attachment.backend.below.files) == 1
    assert two.read() == model
    two.add({5: 5})
    base = after(base, two.seal(9))
    two.release()
    two.attach(base)
    assert two.read() == {**model, 5: model[5] + 5}
    two.release()


def test_an_object_store_that_is_one(s3_url: str, tmp_path: Path) -> None:
    one = Worker(s3_url, home_in(tmp_path / "a"), table_home="disk", limit_bytes=MIB)
    two = Worker(s3_url, home_in(tmp_path / "b"), table_home="disk", limit_bytes=MIB)
    base, model = epochs(one, 8)
    assert two.attach(base) == ("opened", "", 8)
    assert two.read() == model
    two.add({0: 5})
    base = after(base, two.seal(99))
    two.release()
    assert one.attach(base)[0] == "caught up"
    assert one.read() == {**model, 0: model[0] + 5}
    for each in (one, two):
        each.stop()


def test_what_is_merged_is_on_the_disk_that_merged_it(
    worker: MakeWorker, objects: FolderObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = worker(limit_bytes=64 * MIB), worker("b", limit_bytes=8 * MIB)
    base, model = epochs(one, 3, rows=40_000)
    home = two.spec.home
    monkeypatch.setattr(file_jobs, "executor_home", lambda application, where: home)
    plan = PlannedMerge(
        "op",
        0,
        127,
        Run(base.files, "base", base.id),
        "state/op/m.base",
        frozenset({"n", "s"}),
        (),
        4096,
    )
    merge_all = file_jobs._MergeAll(objects, file_jobs.Copies(APPLICATION, two.spec.options))
    ((_, ref),) = list(merge_all(iter([[(0, plan)]])))
    assert isinstance(ref, FileRef), ref
    objects.ranges.clear()
    assert two.attach(dataclasses.replace(base, base=ref, deltas=()))[0] == "opened"
    keys = sorted(model)[::40]
    assert looked_up(two, keys) == [model[k] for k in keys]
    assert objects.ranges == []
    two.release()


class Ranged(FolderObjects):
    """One whose files are read by requests, too."""

    def open_read(self, path: str) -> Any:
        size = self.size_bytes(path)
        assert size is not None
        return ObjectReader(f"{self.uri}/{path}", size, partial(self.read_range, path))

    def __reduce__(self) -> Any:
        return Ranged, (Path(self.files.uri),)


def planned(base: RangeState, output: str) -> PlannedMerge:
    run = Run(base.files, "base", base.id)
    return PlannedMerge("op", 0, 127, run, output, frozenset({"n", "s"}), (), 4096)


@pytest.mark.parametrize("here", ["all", "some", "none"])
def test_merges_read_what_is_here(tmp_path: Path, here: str) -> None:
    """The rest they fetch in large parts, of which they keep nothing."""
    objects = Ranged(tmp_path / "ck")
    one = Worker(objects, home_in(tmp_path / "a"), table_home="disk", limit_bytes=64 * MIB)
    base, _ = epochs(one, 3, rows=40_000)
    cache = cache_of(one)
    if here == "none":
        cache.forget([ref.path for ref in base.files])
        one.stop()
        for ref in base.files:
            Path(cache.local_path(ref.path)).unlink(missing_ok=True)
    elif here == "some":
        for ref in base.files:
            copy = cache.open(ref.path, ref.file_bytes)
            copy.drop(2, len(copy.states) // 2)
    missing = {"all": 0.0, "some": 0.6, "none": 1.01}[here]
    objects.ranges.clear()
    objects.bytes, used = 0, cache.used_bytes
    made = [merge_again(two_tiers(cache), planned(base, "state/op/m.base"))]
    size = sum(ref.file_bytes for ref in base.files)
    assert (objects.bytes > 0) == (here != "all") and objects.bytes <= missing * size + (4 << 20)
    assert len(objects.ranges) <= 8 * len(base.files)
    # What was written is here now, and nothing besides.
    assert cache.used_bytes - used <= made[0].file_bytes + 65536
    made.append(merge_again(objects, planned(base, "state/op/n.base")))
    assert made[0].checksum == made[1].checksum
    one.stop()
    range_files._cache_of.cache_clear()


def test_merges_have_little_of_large_files_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = Ranged(tmp_path / "ck")
    one = Worker(objects, home_in(tmp_path / "a"), table_home="disk", limit_bytes=64 * MIB)
    base, _ = epochs(one, 4, rows=40_000)
    one.stop()
    cache = ObjectCache(objects, str(tmp_path / "other"))
    whole = merge_range(objects, base.files, base.id, "state/w.base", 0, 127, block_bytes=4096)
    for storage in (objects, two_tiers(cache)):
        for least, most in ((1 << 14, 1 << 16), (1 << 12, 1 << 18)):
            monkeypatch.setattr(merges, "_LEAST_WINDOW_BYTES", least)
            monkeypatch.setattr(merges, "_WINDOWS_BYTES", most)
            objects.ranges.clear()
            name = f"state/{uuid.uuid4().hex}.base"
            ref = merge_range(storage, base.files, base.id, name, 0, 127, block_bytes=4096)
            assert ref.checksum == whole.checksum
            sizes = [end - start for _, start, end in objects.ranges]
            assert sizes and max(sizes) <= max(least, most // len(base.files))
    range_files._cache_of.cache_clear()


def test_a_merge_that_reads_damage_is_right_the_next_time(tmp_path: Path) -> None:
    objects = Ranged(tmp_path / "ck")
    one = Worker(objects, home_in(tmp_path / "a"), table_home="disk", limit_bytes=64 * MIB)
    base, _ = epochs(one, 3, rows=20_000)
    cache = cache_of(one)
    with open(cache.local_path(base.files[1].path), "r+b") as copy:
        copy.seek(base.files[1].file_bytes // 3)
        copy.write(b"damage")
    plan = planned(base, "state/op/m.base")
    with pytest.raises(CorruptFileError, match=base.files[1].path):
        merge_again(two_tiers(cache), plan)
    right = merge_again(objects, planned(base, "state/op/n.base"))
    assert merge_again(two_tiers(cache), plan).checksum == right.checksum
    one.stop()
    range_files._cache_of.cache_clear()


def test_a_worker_is_killed_while_it_fetches(worker: MakeWorker, objects: FolderObjects) -> None:
    """What it leaves is what others go on with; nothing of it is half there."""
    one = worker(limit_bytes=64 * MIB)
    base, model = epochs(one, 3, rows=40_000)
    base = merged(one, base)
    two = worker("b", limit_bytes=8 * MIB, disk_bytes=4 * MIB)
    keys = sorted(model)
    options = {"table_home": "disk", "limit_bytes": 8 * MIB, "disk_bytes": 4 * MIB}
    for wait_s in (0.0, 0.05, 0.1, 0.2, 0.3):
        peer = Peer()
        peer.call("configure", objects, two.spec.home, options)
        peer.send("attach", base)
        peer.receive()
        peer.send("look_up", keys[::7], 300)
        time.sleep(wait_s)
        peer.kill()
    assert two.attach(base)[0] in ("opened", "current")
    for begin in range(0, len(keys), 8000):
        part = keys[begin : begin + 8000 : 4]
        assert looked_up(two, part) == [model[k] for k in part]
    assert two.read() == model
    two.release()
    cache_of(two).trim()
    assert cache_of(two).used_bytes <= 4 * MIB + 65536


def test_calls_that_wait_for_what_is_fetched(objects: FolderObjects, tmp_path: Path) -> None:
    """They let go of Python's lock, also those that are made with it, and in several threads."""
    made = KeyedStateBackend("long", states={"n": STATES["n"]}, timers=True, home="disk")
    cache = ObjectCache(objects, str(tmp_path / "copies"))
    files, lineage = [], EMPTY_LINEAGE
    for epoch in range(4):
        keys = made.keys(range(epoch * 3000, epoch * 3000 + 5000))
        made["n"].add(keys, pa.array([1] * 5000, pa.int64()))
        made.register_timers(keys, "event", pa.array([7 + epoch] * 5000, pa.int64()))
        with made.seal() as snapshot, objects.create(f"{epoch}.delta") as out:
            lineage, info = snapshot.lineage, snapshot.write(out)
        copy = ObjectFile(cache, f"{epoch}.delta", info.file_bytes)
        files.append(FileBelow(copy.local_path, 0, 127, copy))
    objects.takes_s = 0.01
    faulthandler.dump_traceback_later(120, exit=True)
    try:
        tables = []
        for _ in range(3):
            other = KeyedStateBackend("long", states={"n": STATES["n"]}, timers=True, home="disk")
            other.below.reset(lineage, files)
            tables.append(other)
        assert tables[0].next_timer("event") == 7

        def look(table: KeyedStateBackend) -> list[int]:
            found = []
            for key in range(0, 14_000, 700):
                table.set_current_key(key)
                found.append(table["n"].value())
            return found

        with ThreadPoolExecutor(3) as threads:
            looks = list(threads.map(look, tables))
        assert looks == [look(made)] * 3
        assert tables[2].next_timer("event") == 7
    finally:
        faulthandler.cancel_dump_traceback_later()
    for each in (made, *tables):
        each.close()
