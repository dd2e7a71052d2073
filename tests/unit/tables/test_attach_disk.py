"""Tasks attach tables on disk, whose rows lie in the checkpoint's files, at exactly the base."""

from __future__ import annotations

import dataclasses
import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pystate._core.core import key_group
from pystate.base import memory
from pystate.checkpoint.refs import FileRef, OperatorState, RangeState, empty_range
from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.merge_policy import DiskMergePolicy
from pystate.epochs.merges import merge_range
from pystate.epochs.rescale import plan_rescale
from pystate.errors import (
    CheckpointError,
    EvaluationError,
    MemoryLimitError,
    NoSpaceError,
    SwappedFileError,
)
from pystate.state.value import ValueState
from pystate.tables import attach, below, host, range_files, upkeep
from pystate.tables.host import TableHome, choose_home
from pystate.tables.recovery import target_bytes
from pystate.tables.rows_below import RowsBelow
from pystate.tables.upkeep import remove_outdated
from pystate.types.arrays import hash_keys, key_groups
from tests.peer import STATES, Peer, Worker
from tests.work import HASHES

EMPTY = empty_range(0, 128, 1)
APPLICATION = bytes(range(32))
MIB = 1 << 20
MakeWorker = Callable[..., Worker]


@pytest.fixture
def home(tmp_path: Path) -> TableHome:
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    memory.mkdir()
    disk.mkdir()
    found = choose_home(APPLICATION, shm=str(memory), least_bytes=0, fallback=str(disk))
    assert found.folder is not None
    return found


@pytest.fixture(params=["shared", "private"])
def worker(request: pytest.FixtureRequest, tmp_path: Path, home: TableHome) -> Iterator[MakeWorker]:
    made: list[Worker] = []
    place = home if request.param == "shared" else TableHome(None, None)

    def make(on: str = "disk", **options: Any) -> Worker:
        options.setdefault("limit_bytes", MIB if on == "disk" else 0)
        at = options.pop("at", place)
        made.append(Worker(str(tmp_path / "ck"), at, table_home=on, **options))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def after(base: RangeState, *deltas: FileRef) -> RangeState:
    return dataclasses.replace(base, id=deltas[-1].id, deltas=(*base.deltas, *deltas))


def epochs(one: Worker, count: int, rows: int = 2000) -> tuple[RangeState, dict[int, int]]:
    """So many epochs of rows that overlap; returns the base and what it has."""
    base, model = EMPTY, dict[int, int]()
    for epoch in range(1, count + 1):
        added = dict.fromkeys(range((epoch - 1) * rows // 2, (epoch - 1) * rows // 2 + rows), epoch)
        base = after(base, one.epoch(base, added, epoch))
        for key, value in added.items():
            model[key] = model.get(key, 0) + value
    return base, model


def stored(root: Path, base: RangeState) -> dict[int, int]:
    """What the files of a base have."""
    with Worker(str(root / "ck"), TableHome(None, None)).cache.attach(
        Worker(str(root / "ck"), TableHome(None, None)).spec, base
    ) as attachment:
        table = attachment.backend.to_arrow()
    return dict(zip(table["k"].to_pylist(), table["n"].to_pylist(), strict=True))


def test_rows_leave_and_come(worker: MakeWorker, tmp_path: Path) -> None:
    """State of several times the table's memory, of which each epoch changes a part."""
    one = worker()
    base, model = epochs(one, 12)
    assert one.attach(base)[0] == "current"
    below = one.attachment.backend.below
    # Many are in memory, and more are not.
    assert below.left > 1000
    assert one.stats().keys < len(model) // 2
    assert one.read() == model
    keys = one.attachment.backend.prefetch(pa.array(range(500), pa.int64()))
    assert one.attachment.backend["n"].values(keys).to_pylist() == [model[k] for k in range(500)]
    assert below.looked_up >= 400
    one.release()
    assert stored(tmp_path, base) == model


@pytest.mark.parametrize(("first", "second"), [("shm", "disk"), ("disk", "shm")])
def test_a_process_uses_no_table_of_a_job_with_another_home(
    worker: MakeWorker, first: str, second: str
) -> None:
    """Where the one job ends and the other begins before its tables are removed."""
    one, two = worker(first), worker(second)
    two.cache = one.cache
    base, model = epochs(one, 2)
    two.attach(base)
    assert two.attachment.backend.below.on_disk == (second == "disk")
    assert two.read() == model
    two.release()
    base = after(base, two.epoch(base, {7: 1}, 3))
    two.attach(base)
    assert two.read() == {**model, 7: model[7] + 1}


def test_a_table_begins_at_a_base_without_reading_rows(worker: MakeWorker) -> None:
    one, two = worker(), worker(at=TableHome(None, None))
    base, model = epochs(one, 5)
    assert two.attach(base) == ("opened", "", 5)
    assert two.stats().keys == 0
    assert two.read() == model
    two.add({0: 5, 99_999: 1})
    ref = two.seal(6)
    two.release()
    # The other one is behind. What it has in memory stays.
    base = after(base, ref)
    assert one.attach(base) == ("caught up", "", 1)
    assert one.stats().keys > 0
    assert one.read() == {**model, 0: model[0] + 5, 99_999: 1}


def copies(one: Worker) -> set[str]:
    """The ids of the files whose guides lie beside the table."""
    prefix = one.attachment.backend.below.guides
    assert prefix is not None
    folder, begin = os.path.split(prefix)
    return {
        name.removeprefix(begin).removesuffix(".guide")
        for name in os.listdir(folder)
        if name.startswith(begin) and name.endswith(".guide")
    }


def test_guides_are_shared_by_the_workers_of_a_host(
    worker: MakeWorker, request: pytest.FixtureRequest
) -> None:
    """They are made once, count as tables do, and go with what is merged."""
    one, two = worker(), worker()
    base, model = epochs(one, 4)
    one.attach(base)
    if request.node.callspec.params["worker"] == "private":
        assert one.attachment.backend.below.guides is None
        return
    assert copies(one) == {ref.id for ref in base.files}
    absent = list(range(10**6, 10**6 + 500))
    one.look_up(absent, 500)
    one.release()
    assert two.attach(base)[0] in ("current", "opened")
    stats = two.attachment.backend._table.stack_stats()
    assert stats is not None and stats[8] == 0
    two.look_up(absent, 500)
    stats = two.attachment.backend._table.stack_stats()
    assert stats is not None
    guide_bytes, _, made = stats[8:11]
    assert made == 0 and guide_bytes > 4096
    assert two.read() == model
    two.release()
    # Those of files that were merged go when a task sees that, whoever made them.
    merged = merge_range(
        one.storage, base.files, base.id, "state/op/m.base", 0, 127, block_bytes=4096
    )
    base = dataclasses.replace(base, base=merged, deltas=())
    one.attach(base)
    assert copies(one) == {merged.id}
    assert one.read() == model
    one.release()
    # So do those of ranges that are no more.
    table = one.spec.home.table_path("op", 0, 127, "f" * 16)
    assert table is not None
    stale = Path(table).with_name(f"00000-00063-{'a' * 32}.guide")
    stale.write_bytes(b"")
    remove_outdated(one.spec, base, 1)
    assert [path.name[12:-6] for path in stale.parent.glob("*.guide")] == [merged.id]


def test_what_failed_is_undone(worker: MakeWorker) -> None:
    one = worker()
    base, model = epochs(one, 3)
    with pytest.raises(RuntimeError, match="user code"):
        one.attach(base)
        with one.attachment:
            one.add({1: 7, 99_999: 7})
            raise RuntimeError("user code")
    assert one.attach(base)[0] == "current"
    assert one.read() == model
    one.add({1: 70, 99_999: 7})
    one.seal(4)
    one.release()
    assert one.attach(base)[0] == "undone"
    assert one.read() == model
    one.add({1: 1})
    won = one.seal(4)
    one.release()
    assert one.attach(after(base, won))[0] == "current"
    assert one.read() == {**model, 1: model[1] + 1}


def test_rows_that_were_only_read_stay(worker: MakeWorker) -> None:
    one = worker(limit_bytes=16 * MIB)
    two = worker(at=TableHome(None, None))
    base, _ = epochs(two, 2)
    for came in (0, 300):
        one.attach(base)
        assert one.stats().keys == came
        one.attachment.backend.prefetch(pa.array(range(300), pa.int64()))
        one.release()
    one.attach(base)
    one.attachment.backend.prefetch(pa.array(range(300), pa.int64()))
    assert one.attachment.backend.below.looked_up == 0


def test_a_batch_that_does_not_fit_says_how_much_does(worker: MakeWorker) -> None:
    one = worker()
    base, model = epochs(one, 2)
    one.attach(base)
    with pytest.raises(MemoryLimitError) as caught:
        one.add(dict.fromkeys(range(100_000), 1))
    assert 0 < (caught.value.keys or 0) < 100_000
    # The table was made anew for it, which whoever has it next does not notice.
    assert one.read() == model
    made = one.attachment.backend
    one.release()
    assert one.attach(base)[0] == "current"
    assert one.attachment.backend is made
    one.release()
    other = worker()
    for each in (one, other, one):
        assert each.attach(base)[0] in ("current", "opened")
        assert each.read() == model
        each.release()


@pytest.fixture
def host_limit(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """All tables and buffers of this process together may take so many bytes."""
    limit = 48 * MIB
    monkeypatch.setenv("PYSTATE_MEMORY_LIMIT_BYTES", str(limit))
    memory._process.reset()
    yield limit
    memory._process.reset()


def test_files_of_a_job_in_memory_are_merged_in_little_memory(
    home: TableHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that count for parts of the range, of a state for which there is no memory."""
    root = str(tmp_path / "ck")
    one = Worker(root, TableHome(None, None), table_home="heap")
    base, model = epochs(one, 3, rows=100_000)
    assert one.cache is not None and len(model) == 200_000
    one.stop()
    halves = [
        dataclasses.replace(ref, first_key_group=first, last_key_group=first + 63)
        for first in (0, 64)
        for ref in base.files
    ]
    base = dataclasses.replace(base, deltas=tuple(halves))
    limit = 16 * MIB
    monkeypatch.setenv("PYSTATE_MEMORY_LIMIT_BYTES", str(limit))
    memory._process.reset()
    try:
        with pytest.raises(MemoryLimitError):
            Worker(root, TableHome(None, None), table_home="heap").attach(base)
        two = Worker(root, home, table_home="disk", limit_bytes=2 * MIB)
        assert two.attach(base)[0] == "opened"
        keys = sorted(model)[::100]
        found = two.attachment.backend["n"].values(
            two.attachment.backend.prefetch(pa.array(keys, pa.int64()))
        )
        assert found.to_pylist() == [model[k] for k in keys]
        two.stop()
    finally:
        memory._process.reset()


def test_targets(host_limit: int) -> None:
    assert target_bytes(0) == target_bytes(1) == host_limit // 2
    assert target_bytes(6) == host_limit // 12
    assert target_bytes(1 << 40) == MIB


def test_tables_of_a_host_share_its_memory(worker: MakeWorker, host_limit: int) -> None:
    """Each attach divides it anew; a table that has far more than its share is made anew."""
    one = worker(limit_bytes=0)
    base, taken = EMPTY, [0]
    for epoch, (tables, batches) in enumerate(((12, 2), (3, 20), (12, 20)), 1):
        one.spec = dataclasses.replace(one.spec, tables_of_host=tables)
        assert one.attach(base)[0] == ("opened" if epoch == 3 else "current")
        assert one.attachment.backend.below.room_bytes == target_bytes(tables)
        for first in range(epoch * 100_000, epoch * 100_000 + batches * 2000, 2000):
            try:
                one.add(dict.fromkeys(range(first, first + 2000), epoch))
            except MemoryLimitError:
                assert epoch == 3
                break
        taken.append(one.stats().committed_bytes)
        base = after(base, one.seal(epoch))
        one.release()
    assert taken[1] <= target_bytes(12) < taken[2] <= target_bytes(3)
    assert taken[2] > 2 * target_bytes(12) >= 2 * taken[3]


def test_only_tables_on_disk_have_a_target(worker: MakeWorker, host_limit: int) -> None:
    """A table in memory has none; and whoever sets a limit has that."""
    other = worker("heap")
    other.spec = dataclasses.replace(other.spec, tables_of_host=4)
    other.attach(EMPTY)
    assert other.attachment.backend.below.room_bytes == 0
    other.release()
    own = worker(limit_bytes=3 * MIB)
    own.attach(EMPTY)
    assert own.attachment.backend.below.room_bytes == 3 * MIB


def test_many_tables_stay_within_the_limit(worker: MakeWorker, host_limit: int) -> None:
    """Six of them, each with a state of several times its share."""
    workers = [worker(limit_bytes=0, uid=f"op{i}") for i in range(6)]
    bases = [EMPTY] * len(workers)
    models: list[dict[int, int]] = [{} for _ in workers]
    for epoch in range(1, 13):
        for at, one in enumerate(workers):
            one.spec = dataclasses.replace(one.spec, tables_of_host=len(workers))
            one.attach(bases[at])
            added = dict.fromkeys(range(epoch * 6000, epoch * 6000 + 7000), epoch)
            backend = one.attachment.backend
            for first in range(0, len(added), 2000):
                one.add(dict(list(added.items())[first : first + 2000]))
            # Tables with limits of their own would be bound by nothing else.
            use = memory.memory_use()
            assert use.private_bytes + use.shared_bytes <= host_limit
            assert backend.below.room_bytes == target_bytes(len(workers))
            for key, value in added.items():
                models[at][key] = models[at].get(key, 0) + value
            bases[at] = after(bases[at], one.seal(epoch))
            one.release()
    one = workers[0]
    one.attach(bases[0])
    assert one.read() == models[0]


def test_files_that_are_read_as_a_whole_are_merged_first(
    worker: MakeWorker, home: TableHome
) -> None:
    """A job may change its home from run to run, both ways."""
    heap, disk = worker("shm", at=TableHome(None, None)), worker()
    base, model = epochs(heap, 3)
    assert disk.attach(base) == ("opened", "", 1)
    assert disk.read() == model
    disk.add({0: 10, 77_777: 7})
    base = after(base, disk.seal(4))
    disk.release()
    model |= {0: model[0] + 10, 77_777: 7}
    again = worker()
    for each in (disk, again):
        how, _, _ = each.attach(base)
        assert how in ("current", "opened")
        assert each.read() == model
        each.release()
    assert heap.attach(base)[0] == "caught up"
    assert heap.read() == model
    if disk.spec.home is home:
        # One file for both, which goes when the manifest names another base.
        (made,) = Path(home.folders[-1]).rglob("*.base")
        merged = merge_range(
            disk.storage, base.files, base.id, "state/op/m.base", 0, 127, block_bytes=4096
        )
        base = dataclasses.replace(base, base=merged, deltas=())
        assert disk.attach(base)[0] == "current"
        assert disk.read() == model
        assert not made.exists()


def test_a_file_is_opened_once(worker: MakeWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is checked before a table looks into it is what it looks into."""
    one, two = worker(), worker(at=TableHome(None, None))
    base, model = epochs(one, 3, rows=200)
    opened: list[str] = []
    guided_file, plain_open = below.core.GuidedFile, os.open

    def opens(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path).endswith(".delta"):
            opened.append(str(path))
        return plain_open(path, *arguments, **options)

    monkeypatch.setattr(below.core, "GuidedFile", lambda *a: opened.append(a[2]) or guided_file(*a))
    monkeypatch.setattr(os, "open", opens)
    two.attach(base)
    assert len(opened) == len(set(opened)) == 3
    monkeypatch.undo()
    assert two.read() == model


def lose(one: Worker, path: Path) -> None:
    """Have all descriptors of a file be of no use for reading."""
    with open("/dev/null", "wb") as useless:
        for name in os.listdir("/proc/self/fd"):
            try:
                target = os.readlink(f"/proc/self/fd/{name}")
            except OSError:
                continue
            if target == str(path):
                os.dup2(useless.fileno(), int(name))


@pytest.mark.parametrize("way", ["batch", "key"])
def test_a_file_that_was_replaced_on_its_server_is_opened_again(
    worker: MakeWorker, tmp_path: Path, way: str
) -> None:
    """Once; then an error says what to do, and nothing is lost."""
    one, two = worker(), worker(at=TableHome(None, None))
    base, model = epochs(one, 3, rows=200)
    path = tmp_path / "ck" / base.deltas[0].path
    two.attach(base)
    backend: Any = two.attachment.backend

    def look(key: int) -> int:
        if way == "batch":
            found = backend["n"].values(backend.keys(pa.array([key], pa.int64()))).to_pylist()[0]
        else:
            backend.set_current_key(key)
            found = backend["n"].value()
        return int(found)

    assert look(0) == model[0]
    lose(two, path)
    assert look(1) == model[1]
    # Another one in its place is not taken for it.
    good = path.read_bytes()
    lose(two, path)
    path.unlink()
    path.write_bytes((tmp_path / "ck" / base.deltas[1].path).read_bytes())
    with pytest.raises(SwappedFileError, match=path.name):
        look(2)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"bring it back"):
        look(2)
    path.write_bytes(good)
    assert look(2) == model[2]
    assert two.read() == model


def test_a_file_that_is_lost_again_is_an_error(
    worker: MakeWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = worker(), worker(at=TableHome(None, None))
    base, model = epochs(one, 1, rows=200)
    path = tmp_path / "ck" / base.deltas[0].path
    two.attach(base)
    place = RowsBelow.place

    def lost(self: RowsBelow) -> None:
        place(self)
        lose(two, path)

    lose(two, path)
    with monkeypatch.context() as patch:
        patch.setattr(RowsBelow, "place", lost)
        with pytest.raises(CheckpointError, match=r"was replaced, or removed, where it lies"):
            two.attachment.backend.prefetch(pa.array([1], pa.int64()))
    two.attachment.backend.prefetch(pa.array([1], pa.int64()))
    assert two.read() == model


def test_a_merge_at_an_attach_gives_signs_of_life(worker: MakeWorker) -> None:
    """It may take long; and it ends when nobody needs the table any more."""
    base, model = epochs(worker("shm", at=TableHome(None, None)), 2, rows=20_000)
    disk, beats = worker(), list[int]()

    def beat() -> None:
        beats.append(1)
        if len(beats) == 5:
            raise EvaluationError("this evaluation has ended")

    disk.spec = dataclasses.replace(disk.spec, heartbeat=beat)
    with pytest.raises(EvaluationError):
        disk.attach(base)
    assert disk.attach(base)[0] == "opened"
    assert len(beats) > 20
    assert disk.read() == model


def test_a_full_local_disk_is_not_a_full_table(
    worker: MakeWorker, home: TableHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, model = epochs(worker("shm", at=TableHome(None, None)), 2, rows=100)
    disk = worker()

    def full(*_: Any) -> Any:
        raise NoSpaceError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(RowsBelow, "merge", full)
        with pytest.raises(CheckpointError, match=r"no room on the executor's disk, in /.*/below/"):
            disk.attach(base)
    assert not [*Path(home.folders[0]).rglob("*.outgrown")]
    assert disk.attach(base)[0] == "opened"
    assert disk.read() == model


def test_parts_of_files_are_made_where_the_merged_one_is(
    worker: MakeWorker, home: TableHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other folders may be in memory, or full."""
    base, model = epochs(worker("shm", at=TableHome(None, None)), 2, rows=200)
    schema = (("k", "bigint"),), (("n", "bigint"),)
    ranges = plan_rescale(OperatorState("op", 1, *schema, (base,)), 3, 128)
    ranges = plan_rescale(OperatorState("op", 3, *schema, tuple(ranges)), 2, 128)
    disk, found = worker(), dict[int, int]()
    if disk.spec.home is home:
        monkeypatch.setattr(tempfile, "tempdir", "/nonexistent")
    for state in ranges:
        assert disk.attach(state)[0] == "opened"
        found |= disk.read()
        disk.release()
    assert found == model
    steps = disk.spec.home.local_folder("steps", "op")
    assert os.path.exists(steps) and not os.listdir(steps)


def test_other_columns_are_merged_first(worker: MakeWorker) -> None:
    """A state is added, one is dropped, and one comes back without what it had."""
    base, model = epochs(worker(), 3)
    more = worker(states={**STATES, "more": ValueState("long", default=5)})
    assert more.attach(base)[0] == "opened"
    assert more.read() == model
    backend = more.attachment.backend
    keys = backend.keys(pa.array([0, 1], pa.int64()))
    backend["more"].add(keys, 1)
    assert backend["more"].values(keys).to_pylist() == [6, 6]
    base = after(base, more.seal(4))
    more.release()
    less = worker(states=STATES, allow_unclaimed_state=True)
    less.attach(base)
    assert less.read() == model
    less.add({5: 1})
    base = after(base, less.seal(5))
    less.release()
    assert less.attach(base)[0] == "current"
    assert less.read() == {**model, 5: model[5] + 1}


def test_a_state_that_was_dropped_does_not_come_back(worker: MakeWorker) -> None:
    """Its name and type are those of a new one."""
    more = worker(states={**STATES, "more": ValueState("long", default=5)})
    more.attach(EMPTY)
    more.add({0: 3, 1: 4})
    backend = more.attachment.backend
    backend["more"].update_all(backend.keys(pa.array([0, 1], pa.int64())), 9)
    base = after(EMPTY, more.seal(1))
    more.release()
    more.attach(dataclasses.replace(base, since=(("more", 2),)))
    assert more.read() == {0: 3, 1: 4}
    keys = more.attachment.backend.keys(pa.array([0, 1], pa.int64()))
    assert more.attachment.backend["more"].values(keys).to_pylist() == [5, 5]


def test_rescaled_ranges_share_files(worker: MakeWorker, tmp_path: Path) -> None:
    """Each counts for the key groups that a range took over, and nothing is copied."""
    one = worker()
    base, model = epochs(one, 3, rows=200)
    schema = (("k", "bigint"),), (("n", "bigint"),)
    ranges: tuple[RangeState, ...] = (base,)
    for parallelism in (3, 2):
        operator = OperatorState("op", len(ranges), *schema, ranges)
        ranges = plan_rescale(operator, parallelism, 128)
        found: dict[int, int] = {}
        changed = []
        for state in ranges:
            assert one.attach(state)[0] == "opened"
            part = one.read()
            assert not found.keys() & part.keys()
            found |= part
            groups = key_groups(hash_keys([pa.array(list(part), pa.int64())]), 128)
            assert state.first_key_group <= min(groups) <= max(groups) <= state.last_key_group
            chosen = sorted(part)[:20]
            one.add(dict.fromkeys(chosen, 1000))
            changed.append(after(state, one.seal(4 + parallelism)))
            one.release()
            for key in chosen:
                model[key] += 1000
            found |= {key: model[key] for key in chosen}
        assert found == model
        ranges = tuple(changed)


@pytest.mark.parametrize("empty", [0, 1])
def test_rescaled_with_a_range_that_never_had_a_row(worker: MakeWorker, empty: int) -> None:
    one = worker()
    keys = list(range(200))
    groups = key_groups(hash_keys([pa.array(keys, pa.int64())]), 128)
    chosen = [k for k, group in zip(keys, groups, strict=True) if (group >= 64) == (empty == 0)]
    bounds = ((0, 63), (64, 127))
    ranges = [dataclasses.replace(EMPTY, first_key_group=a, last_key_group=b) for a, b in bounds]
    ranges[1 - empty] = after(
        ranges[1 - empty], one.epoch(ranges[1 - empty], dict.fromkeys(chosen, 1), 1)
    )
    schema = (("k", "bigint"),), (("n", "bigint"),)
    (state,) = plan_rescale(OperatorState("op", 2, *schema, tuple(ranges)), 1, 128)
    assert one.attach(state)[0] == "opened"
    assert one.read() == dict.fromkeys(chosen, 1)
    one.add(dict.fromkeys(keys, 1))
    state = after(state, one.seal(2))
    one.release()
    other = worker(at=TableHome(None, None))
    for each in (one, other):
        each.attach(state)
        assert each.read() == {k: 2 if k in chosen else 1 for k in keys}
        each.release()


def test_merges_by_the_policy(worker: MakeWorker, tmp_path: Path) -> None:
    """The table stays as it is, and looks in other files from then on."""
    one, storage = worker(), LocalStorage(tmp_path / "ck")
    policy = DiskMergePolicy(min_deltas=2, keep_deltas=1)
    base, model = EMPTY, dict[int, int]()
    for epoch in range(1, 13):
        added = dict.fromkeys(range(epoch * 50, epoch * 50 + 400), epoch)
        base = after(base, one.epoch(base, added, epoch))
        for key, value in added.items():
            model[key] = model.get(key, 0) + value
        run = policy.choose(base)
        if run is not None:
            path = f"state/op/{epoch:08d}-m.{run.kind}"
            merged = merge_range(
                storage, run.sources, run.id, path, 0, 127, kind=run.kind, block_bytes=4096
            )
            replaced = run.replaced(base, merged)
            assert replaced is not None
            base = replaced
    assert base.base is not None
    assert one.attach(base)[0] == "current"
    assert one.read() == model


def test_a_file_that_is_gone_or_another_is_named(worker: MakeWorker) -> None:
    one, two = worker(), worker(at=TableHome(None, None))
    base, _ = epochs(one, 3, rows=100)
    path = Path(two.storage.local_path(base.deltas[1].path))
    kept = path.read_bytes()
    path.write_bytes(Path(two.storage.local_path(base.deltas[0].path)).read_bytes())
    with pytest.raises((CheckpointError, SwappedFileError), match=path.name):
        two.attach(base)
    path.unlink()
    with pytest.raises(CheckpointError, match=path.name):
        two.attach(base)
    path.write_bytes(kept)
    assert two.attach(base)[0] == "opened"


def test_nobody_has_a_table_that_is_made_anew(
    tmp_path: Path, home: TableHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another attempt waits for it, and has its own changes and names."""
    peer = Peer()
    options: dict[str, Any] = {"table_home": "disk", "limit_bytes": MIB}
    peer.call("configure", str(tmp_path / "ck"), home, {**options, "lock_timeout_ms": 50})
    one = Worker(str(tmp_path / "ck"), home, **options)
    base, model = epochs(one, 2)
    one.attach(base)
    reopen, hows = RowsBelow._reopen, []

    def then_another(below: RowsBelow, goes_on: bool = False) -> None:
        reopen(below, goes_on)
        hows.append(peer.call("attach", base)[0])
        peer.call("add", {5: 1000, 99_999: 1})
        peer.call("seal", 3)
        peer.call("release")

    with monkeypatch.context() as patched:
        patched.setattr(RowsBelow, "_reopen", then_another)
        with pytest.raises(MemoryLimitError):
            one.add(dict.fromkeys(range(100_000), 1))
    assert hows and set(hows) == {"replica"}
    keys = one.attachment.backend.prefetch(pa.array([5, 99_999], pa.int64()))
    assert one.attachment.backend["n"].values(keys).to_pylist() == [model[5], 0]
    assert one.read() == model
    one.stop()
    peer.stop()


def test_a_table_that_was_left_without_a_name_is_made_anew(worker: MakeWorker) -> None:
    """As one is whose task was killed before its first step had one."""
    one = worker()
    one.attach(EMPTY)
    one.attachment.backend._table.set_whole(False)
    one.release()
    assert one.attach(EMPTY)[0] == "opened"
    one.add({1: 1})
    base = after(EMPTY, one.seal(1))
    one.release()
    one.attach(base)
    assert one.read() == {1: 1}


def open_below(root: Path) -> tuple[int, int]:
    """How many descriptors of this process are of the state's files, and of removed ones."""
    found = removed = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        found += path.startswith(str(root / "ck"))
        removed += path.startswith(str(root / "ck")) and path.endswith("(deleted)")
    return found, removed


def merged_below(root: Path) -> set[str]:
    """The files that were merged for tables of this process, on its local disk."""
    places = {str(root), host._process_folder()}
    return {str(path) for place in places for path in Path(place).rglob("*below/*/*.base")}


def open_merged() -> int:
    """How many descriptors are of such files, removed or not."""
    links = [Path(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    return sum("/below/" in str(link.readlink()) for link in links if link.is_symlink())


def test_of_ranges_that_are_gone_nothing_stays(worker: MakeWorker, tmp_path: Path) -> None:
    """Neither what was merged for them nor an open file, once their key groups are others'."""
    before, already = merged_below(tmp_path), open_merged()
    base, model = epochs(worker("shm", at=TableHome(None, None)), 2, rows=200)
    schema = (("k", "bigint"),), (("n", "bigint"),)
    disk = worker()
    ranges = (base,)
    for parallelism in (2, 3):
        planned = plan_rescale(OperatorState("op", len(ranges), *schema, ranges), parallelism, 128)
        ranges = tuple(planned)
        found = dict[int, int]()
        for state in ranges:
            assert disk.attach(state)[0] == "opened"
            found |= disk.read()
            disk.release()
        assert found == model
    assert len(merged_below(tmp_path) - before) == 5
    assert open_merged() - already == 5
    for state in ranges:
        disk.attach(state)
        upkeep.remove_outdated(disk.spec, state, 3)
        disk.cache.keep_ranges(disk.spec, 3)
        disk.release()
    assert len(merged_below(tmp_path) - before) == 3
    assert open_merged() - already == 3
    assert len(disk.cache._entries) == 3


def test_what_was_merged_for_a_range_that_is_elsewhere_goes(
    worker: MakeWorker, tmp_path: Path
) -> None:
    """It is not asked for any more; one that is asked for stays."""
    before, already = merged_below(tmp_path), open_merged()
    base, _ = epochs(worker("shm", at=TableHome(None, None)), 2, rows=200)
    schema = (("k", "bigint"),), (("n", "bigint"),)
    here, moved = plan_rescale(OperatorState("op", 1, *schema, (base,)), 2, 128)
    one = worker()
    for state in (here, moved):
        one.attach(state)
        one.release()
    assert len(merged_below(tmp_path) - before) == 2
    for path in merged_below(tmp_path) - before:
        os.utime(path, (1, 1))
    mine, _ = sorted(merged_below(tmp_path) - before)
    for _ in range(2):
        one.attach(here)
        assert merged_below(tmp_path) - before == {mine}
        # It is asked for, so it does not go when others look.
        assert os.stat(mine).st_mtime > 1
        one.release()
        os.utime(mine, (1, 1))
    one.attach(here)
    assert open_merged() - already == 1


def test_tables_that_no_task_uses_keep_few_files_open(
    worker: MakeWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attach, "_MOST_IDLE_FILES", 10)
    one, ranges, models = worker(groups=8), list[RangeState](), list[dict[int, int]]()
    for index in range(8):
        base = empty_range(index, 8, 8)
        keys = [key for key in range(100) if key_group(HASHES[key], 8) == index]
        for epoch in range(1, 5):
            base = after(base, one.epoch(base, dict.fromkeys(keys, epoch), epoch))
        ranges.append(base)
        models.append(dict.fromkeys(keys, 10))
    for base, model in zip(ranges * 2, models * 2, strict=True):
        assert one.attach(base)[0] == "current"
        assert one.read() == model
        # Those of the task, and of those that had one last.
        assert 4 <= open_below(tmp_path)[0] <= 10 + 4
        one.release()
    assert len(one.cache._with_files) <= 4
    # What a task needs, it has at hand in the next epoch.
    opened: list[str] = []
    guided_file = below.core.GuidedFile
    monkeypatch.setattr(below.core, "GuidedFile", lambda *a: opened.append(a[2]) or guided_file(*a))
    one.attach(ranges[-1])
    one.release()
    assert not opened
    # What merges remove is not kept on the disk by a table that waits for a task.
    for ref in ranges[-1].deltas:
        os.unlink(tmp_path / "ck" / ref.path)
    one.attach(ranges[0])
    assert open_below(tmp_path)[1] == 0
    one.release()


def test_files_that_are_open_are_not_looked_at_again(
    worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look is a round trip, where they are on another host."""
    one = worker()
    base, model = epochs(one, 3)
    looked: list[str] = []
    find = range_files._located
    monkeypatch.setattr(range_files, "_located", lambda s, r: looked.append(r.path) or find(s, r))
    for looks in (3, 0):
        assert one.attach(base)[0] == "current"
        assert one.read() == model
        one.release()
        assert len(looked) == looks
        looked.clear()
    # Undone to the same files; with another one all are looked at.
    changed = after(base, one.epoch(base, {1: 10}, 4))
    assert one.attach(base)[0] == "undone"
    assert one.read() == model
    one.release()
    assert not looked
    changed = after(base, one.epoch(base, {1: 10}, 4))
    assert one.attach(changed)[0] == "current"
    assert one.read() == {**model, 1: model[1] + 10}
    one.release()
    assert len(looked) == 4
    # Those that were closed meanwhile are looked at, too.
    monkeypatch.setattr(attach, "_MOST_IDLE_FILES", 0)
    one.cache._close_files()
    assert one.attach(changed)[0] == "current"
    assert len(looked) == 8
    assert one.read() == {**model, 1: model[1] + 10}


@pytest.mark.parametrize("rows", [4000, 20_000, 60_000])
def test_a_table_that_has_more_than_it_may_have_now(worker: MakeWorker, rows: int) -> None:
    """As a job had that was closed just now, with its tables in memory, or another limit."""
    heap, disk = worker("shm"), worker()
    base, model = epochs(heap, 2, rows)
    for epoch in (3, 4):
        assert disk.attach(base)[0] in ("current", "opened")
        disk.add({0: 10, 777_777: 7})
        model[0] += 10
        model[777_777] = model.get(777_777, 0) + 7
        assert disk.read() == model
        base = after(base, disk.seal(epoch))
        disk.release()


def test_a_worker_is_killed(tmp_path: Path, home: TableHome) -> None:
    """Where the next one finds its table, with the rows that are in memory, at the base."""
    peer = Peer()
    options: dict[str, Any] = {"table_home": "disk", "limit_bytes": MIB}
    peer.call("configure", str(tmp_path / "ck"), home, options)
    one = Worker(str(tmp_path / "ck"), home, **options)
    base, model = epochs(one, 8)
    peer.call("attach", base)
    peer.call("add", {1: 5, 99_999: 3})
    peer.kill()
    assert one.attach(base)[0] == "current"
    assert one.stats().keys > 0
    assert one.read() == model
    one.stop()


def test_timers_are_those_of_the_base(worker: MakeWorker) -> None:
    """Whoever begins at a base looks up no timer that fired before, and misses none."""
    one = worker(timers=True, limit_bytes=2 * MIB)
    base, waiting = EMPTY, set[int]()
    for epoch in range(1, 5):
        one.attach(base)
        backend = one.attachment.backend
        for begin in range(epoch * 2000, epoch * 2000 + 2000, 1000):
            keys = backend.keys(pa.array(range(begin, begin + 1000), pa.int64()))
            backend["n"].add(keys, 1)
            backend.register_timers(keys, "event", pa.array(range(begin, begin + 1000)))
        waiting |= {*range(epoch * 2000, epoch * 2000 + 2000)}
        if epoch == 3:  # what fails has fired nothing
            assert fired(backend, 5_000) == {time for time in waiting if time <= 5_000}
            one.release()
            one.attach(base)
            backend = one.attachment.backend
            waiting -= {*range(epoch * 2000, epoch * 2000 + 2000)}
        until = epoch * 1500
        found = fired(backend, until)
        assert found == {time for time in waiting if time <= until}
        waiting -= found
        next_timer = backend.next_timer("event")
        base = dataclasses.replace(after(base, one.seal(epoch)), next_event_timer_ms=next_timer)
        one.release()
    other = worker(timers=True, limit_bytes=2 * MIB, at=TableHome(None, None))
    assert other.attach(base)[0] == "opened"
    backend = other.attachment.backend
    assert backend.next_timer("event") == min(waiting)
    assert backend.below.looked_up == 0
    assert fired(backend, max(waiting)) == waiting
    # Once by the hash that a file names, and once by the key that has it.
    assert backend.below.looked_up <= len(waiting) * 2.1
    other.release()


def fired(backend: Any, until: int) -> set[int]:
    """The times of event-time timers that are due, which are those of their keys."""
    found: set[int] = set()
    while (due := backend.due_timers("event", until)) is not None:
        assert due.keys.to_pylist() == due.timestamps.tolist()
        found.update(due.timestamps.tolist())
        due.fire_all()
        if due.are_all:
            assert backend.due_timers("event", until) is None
    return found


def test_memory_that_an_undone_epoch_took_is_free(worker: MakeWorker) -> None:
    """Of a first epoch that has failed nothing is in files, and next come other rows."""
    one = worker()
    one.attach(EMPTY)
    with pytest.raises(MemoryLimitError):
        for key in range(1000):
            one.put({key: {"s": "x" * 6000}})
    one.release()
    one.attach(EMPTY)
    keys = one.attachment.backend.prefetch(pa.array(range(3000), pa.int64()))
    one.attachment.backend["n"].add(keys, 1)
    assert one.attachment.backend.stats().keys == 3000
    one.release()
