"""A table stands at exactly the base that was asked for, whoever had it before."""

from __future__ import annotations

import dataclasses
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pystate._core.core import key_group
from pystate.checkpoint.refs import (
    EMPTY_ID,
    FileRef,
    OperatorState,
    RangeSource,
    RangeState,
    empty_range,
)
from pystate.epochs.merges import merge_range
from pystate.epochs.rescale import plan_rescale, sources_of
from pystate.errors import (
    CheckpointError,
    CorruptFileError,
    MemoryLimitError,
    NoSpaceError,
    UnclaimedStateError,
)
from pystate.state.value import ValueState
from pystate.tables import attach as shared_tables
from pystate.tables.attach import TableCache
from pystate.tables.backend import KeyedStateBackend
from pystate.tables.host import TableHome, choose_home
from tests.peer import STATES, Peer, Worker
from tests.work import HASHES

EMPTY = empty_range(0, 128, 1)
APPLICATION = bytes(range(32))
GROUPS = [key_group(hash_, 128) for hash_ in HASHES]
MakeWorker = Callable[..., Worker]
MakePeer = Callable[..., Peer]


def _belongs(backend: KeyedStateBackend, key: int) -> bool:
    first, last = backend.key_group_range
    return first <= GROUPS[key] <= last


@pytest.fixture
def home(tmp_path: Path) -> TableHome:
    found = choose_home(APPLICATION, shm=str(tmp_path), least_bytes=0)
    assert found.folder is not None
    return found


@pytest.fixture
def worker(tmp_path: Path, home: TableHome) -> Iterator[MakeWorker]:
    made: list[Worker] = []

    def make(**options: Any) -> Worker:
        made.append(Worker(str(tmp_path / "ck"), options.pop("home", home), **options))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture(scope="module")
def idle_peers() -> Iterator[list[Peer]]:
    """Processes that outlive a test, since one takes a while to start."""
    peers: list[Peer] = []
    yield peers
    for each in peers:
        each.stop()


@pytest.fixture
def peer(tmp_path: Path, home: TableHome, idle_peers: list[Peer]) -> Iterator[MakePeer]:
    made: list[Peer] = []

    def make(**options: Any) -> Peer:
        made.append(idle_peers.pop() if idle_peers else Peer())
        made[-1].call("configure", str(tmp_path / "ck"), home, options)
        return made[-1]

    yield make
    idle_peers += [each for each in made if each.is_alive]


def after(base: RangeState, *deltas: FileRef) -> RangeState:
    return dataclasses.replace(base, id=deltas[-1].id, deltas=(*base.deltas, *deltas))


def the_table(home: TableHome) -> Path:
    assert home.folder is not None
    (found,) = Path(home.folder).rglob("*.table")
    return found


# ---- one process --------------------------------------------------------------------------------


def test_first_epoch_and_the_next(worker: MakeWorker) -> None:
    one = worker()
    assert one.attach(EMPTY) == ("current", "", 0)
    one.add({1: 1, 2: 2})
    base = after(EMPTY, one.seal(1))
    one.release()
    assert one.attach(base) == ("current", "", 0)
    assert one.read() == {1: 1, 2: 2}
    one.release()
    one.release()


def test_a_batch_that_runs_again_undoes_the_sealed_one(worker: MakeWorker) -> None:
    one = worker()
    base = after(EMPTY, one.epoch(EMPTY, {1: 1}, 1))
    lost = one.epoch(base, {1: 100, 2: 1}, 2)
    assert one.attach(base) == ("undone", "", 0)
    assert one.read() == {1: 1}
    one.add({1: 5})
    won = one.seal(2)
    one.release()
    assert one.attach(after(base, won))[0] == "current"
    assert one.read() == {1: 6}
    one.release()
    # The loser's chain is nobody's base, but its file would restore it.
    assert one.attach(after(base, lost))[0] == "caught up"
    assert one.read() == {1: 101, 2: 1}


def test_failed_task_leaves_nothing(worker: MakeWorker) -> None:
    one = worker()
    base = after(EMPTY, one.epoch(EMPTY, {1: 1}, 1))
    with pytest.raises(RuntimeError, match="user code"):
        one.attach(base)
        with one.attachment:
            one.add({1: 7, 3: 7})
            raise RuntimeError("user code")
    assert one.attach(base)[0] == "current"
    assert one.read() == {1: 1}


def test_two_sealed_epochs_back(worker: MakeWorker) -> None:
    one = worker()
    base = after(EMPTY, one.epoch(EMPTY, {1: 1}, 1))
    second = after(base, one.epoch(base, {1: 1}, 2))
    third = after(second, one.epoch(second, {1: 1}, 3))
    assert one.attach(base)[0] == "undone"
    assert one.read() == {1: 1}
    one.release()
    assert one.attach(third) == ("caught up", "", 2)
    assert one.read() == {1: 3}


def test_no_place_for_shared_tables(worker: MakeWorker) -> None:
    """Then the heap is used, by the same rules."""
    one, two = worker(home=TableHome(None, None)), worker(home=TableHome(None, None))
    base = after(EMPTY, one.epoch(EMPTY, {1: 1}, 1))
    second = after(base, one.epoch(base, {1: 1}, 2))
    assert one.attach(second)[0] == "current"
    one.release()
    assert two.attach(base)[0] == "restored"
    two.release()
    assert two.attach(second)[0] == "caught up"
    assert two.read() == {1: 2}
    two.release()
    assert two.attach(base)[0] == "undone"
    assert two.read() == {1: 1}


def test_second_task_of_one_process_gets_a_replica(worker: MakeWorker) -> None:
    one = worker(lock_timeout_ms=60_000)
    base = after(EMPTY, one.epoch(EMPTY, {1: 1}, 1))
    one.attach(base)
    one.add({1: 1})
    how: list[Any] = []

    def attach() -> None:
        with one.cache.attach(one.spec, base) as other:
            how.append((other.how, other.reason, other.backend.to_arrow()["n"].to_pylist()))

    thread = threading.Thread(target=attach)
    thread.start()
    thread.join()
    assert how == [("replica", "another task of this process uses the table", [1])]
    assert one.read() == {1: 2}


def test_task_that_vanishes_gives_the_lock_back(worker: MakeWorker) -> None:
    one, two = worker(), worker(lock_timeout_ms=0)
    one.attach(EMPTY)
    one.add({1: 1})
    one.held = None
    assert two.attach(EMPTY)[0] == "current"
    assert two.read() == {}


def test_unknown_table_is_thrown_away(worker: MakeWorker, home: TableHome) -> None:
    one, two = worker(), worker()
    base = after(EMPTY, one.epoch(EMPTY, {1: 1}, 1))
    stranger = base
    for epoch in range(2, 6):
        stranger = after(stranger, one.epoch(stranger, {9: 9}, epoch))
    inode = the_table(home).stat().st_ino
    assert two.attach(base)[0] == "restored"
    assert the_table(home).stat().st_ino != inode
    assert two.read() == {1: 1}
    two.release()
    # The first one maps a file that is gone, and must notice.
    assert one.attach(base)[0] == "current"
    assert one.read() == {1: 1}


@pytest.mark.parametrize("damage", ["other bytes", "nothing", "a folder"])
def test_file_that_is_no_table(worker: MakeWorker, home: TableHome, damage: str) -> None:
    one = worker()
    base = after(EMPTY, one.epoch(EMPTY, {1: 1}, 1))
    one.stop()
    path = the_table(home)
    path.unlink()
    if damage == "a folder":
        path.mkdir()
    else:
        path.write_bytes(b"garbage " * 4096 if damage == "other bytes" else b"")
    how, reason, _ = one.attach(base)
    if damage == "a folder":
        assert how == "replica" and str(path) in reason
    else:
        assert (how, reason) == ("restored" if damage == "nothing" else how, "")
    assert one.read() == {1: 1}


def test_table_of_another_schema_is_another_file(worker: MakeWorker, home: TableHome) -> None:
    one = worker()
    base = after(EMPTY, one.epoch(EMPTY, {1: 1}, 1))
    two = worker(
        states={
            "n": ValueState("long", default=0),
            "s": ValueState("string"),
            "more": ValueState("double"),
        }
    )
    assert two.attach(base)[0] == "restored"
    two.release()
    assert home.folder is not None and len(list(Path(home.folder).rglob("*.table"))) == 2
    three = worker(states={"n": ValueState("long", default=0)})
    with pytest.raises(UnclaimedStateError, match="'s'"):
        three.attach(base)
    four = worker(states={"n": ValueState("long", default=0)}, allow_unclaimed_state=True)
    four.attach(base)
    assert four.attachment.backend.to_arrow()["n"].to_pylist() == [1]


def test_damaged_file_is_an_error_and_not_a_replica(worker: MakeWorker, home: TableHome) -> None:
    one, two = worker(), worker()
    base = after(EMPTY, one.epoch(EMPTY, {1: 1}, 1))
    second = after(base, one.epoch(base, {1: 1}, 2))
    one.attach(base)
    one.release()
    path = Path(one.storage.local_path(second.deltas[1].path))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptFileError, match=path.name):
        two.attach(second)
    path.unlink()
    with pytest.raises(CheckpointError, match=path.name):
        two.attach(second)
    assert two.attach(base)[0] == "current"
    assert two.read() == {1: 1}


def test_file_that_is_another_than_the_manifest_names(worker: MakeWorker) -> None:
    one = worker()
    base = after(EMPTY, one.epoch(EMPTY, {1: 1}, 1))
    second = after(base, one.epoch(base, {1: 1}, 2))
    swapped = dataclasses.replace(base.deltas[0], path=second.deltas[1].path)
    forged = dataclasses.replace(base, deltas=(swapped,))
    with pytest.raises(CorruptFileError, match=r"another file|was written with"):
        worker(home=TableHome(None, None)).attach(forged)


def test_full_file_system_of_tables(worker: MakeWorker, home: TableHome, tmp_path: Path) -> None:
    """A table that cannot grow is no reason to fail while the heap has room."""
    one = worker()
    base = after(EMPTY, one.epoch(EMPTY, {1: 1}, 1))
    blocked = tmp_path / "blocked"
    blocked.mkdir(mode=0o700)
    (blocked / "x").write_text("")
    nowhere = TableHome(str(blocked), home.identity)
    two = worker(home=nowhere)
    path = nowhere.table_path("op", 0, 127, two.spec.operator.fingerprint())
    assert path is not None
    os.symlink(tmp_path / "missing" / "target", path)
    how, reason, _ = two.attach(base)
    assert how == "replica" and reason
    assert two.read() == {1: 1}


def test_rescaled_range(worker: MakeWorker) -> None:
    """Files of two ranges make one; each is read for the key groups of its own."""
    halves = [empty_range(i, 128, 2) for i in range(2)]
    whole = worker()
    counts = {k: k for k in range(100)}
    files = []
    one = worker()
    for half in halves:
        one.attach(half)
        batch = one.attachment.backend
        mine = {k: v for k, v in counts.items() if _belongs(batch, k)}
        one.add(mine)
        files.append(one.seal(1))
        one.release()
    base = RangeState(0, 0, 127, "d" * 32, None, tuple(files))
    assert whole.attach(base)[:2] == ("restored", "")
    assert whole.read() == counts
    whole.add({1: 1})
    second = after(base, whole.seal(2))
    whole.release()
    assert whole.attach(second)[0] == "current"
    whole.release()
    # And back: each half reads its key groups from the files of the whole.
    back = dataclasses.replace(second, first_key_group=64, last_key_group=127, id="e" * 32)
    other = worker()
    other.attach(back)
    assert other.read() == {
        k: v + (k == 1) for k, v in counts.items() if _belongs(other.attachment.backend, k)
    }


@pytest.mark.parametrize("merged", [False, True])
def test_rescaled_there_and_back(worker: MakeWorker, merged: bool) -> None:
    """A file of a former range says nothing about key groups that were another's since."""
    heap = worker(home=TableHome(None, None))
    ranges = tuple(empty_range(i, 128, 2) for i in range(2))
    model: dict[int, int] = {}
    for epoch, parallelism in enumerate((2, 3, 2, 5, 1, 2), 1):
        operator = OperatorState("op", len(ranges), (), (), ranges)
        advanced = []
        for state in plan_rescale(operator, parallelism, 128):
            if merged and len(state.files) > 1:
                path = f"state/op/x/{epoch:08d}-{uuid.uuid4().hex}.base"
                bounds = (state.first_key_group, state.last_key_group)
                base = merge_range(heap.storage, state.files, state.id, path, *bounds)
                state = dataclasses.replace(state, base=base, deltas=())
            heap.attach(state)
            mine = [k for k in range(40) if _belongs(heap.attachment.backend, k)]
            assert heap.read() == {k: model[k] for k in mine if k in model}
            for key in mine:
                model[key] = model.get(key, 0) + epoch
            heap.add(dict.fromkeys(mine, epoch))
            advanced.append(after(state, heap.seal(epoch)))
            heap.release()
        ranges = tuple(advanced)
    assert model == dict.fromkeys(range(40), 21)


@dataclasses.dataclass(frozen=True)
class Rescaled(RangeState):
    """A range in the epoch that changes the parallelism."""

    taken: tuple[RangeSource, ...] = ()

    @property
    def changes_parallelism(self) -> bool:
        return True

    @property
    def sources(self) -> tuple[RangeSource, ...]:
        return self.taken


def rescale(ranges: tuple[RangeState, ...], parallelism: int) -> list[Rescaled]:
    operator = OperatorState("op", len(ranges), (), (), ranges)
    found = []
    for state in plan_rescale(operator, parallelism, 128):
        taken = sources_of(operator, state.bounds)
        fields = {f.name: getattr(state, f.name) for f in dataclasses.fields(RangeState)}
        found.append(Rescaled(**fields, taken=taken))
    return found


def halves_of(worker: MakeWorker) -> tuple[tuple[RangeState, ...], dict[int, int]]:
    """Two ranges, each with a table after two epochs; and what they hold."""
    ranges, model = [], {}
    for half in (empty_range(i, 128, 2) for i in range(2)):
        one = worker()
        for epoch in (1, 2):
            one.attach(half)
            mine = {k: k for k in range(50 * epoch) if _belongs(one.attachment.backend, k)}
            one.add(mine)
            half = after(half, one.seal(epoch))
            one.release()
            model.update({k: model.get(k, 0) + v for k, v in mine.items()})
        ranges.append(half)
    return tuple(ranges), model


def read_all(worker: Worker, states: list[Rescaled], hows: set[str]) -> dict[int, int]:
    found: dict[int, int] = {}
    for state in states:
        assert worker.attach(state)[0] in hows
        attached = worker.attachment
        content = worker.read()
        assert attached.rows + attached.copied >= len(content)
        assert (attached.files == 0) == (attached.how == "copied")
        found |= content
        # It is a table like any other from here on.
        worker.add(dict.fromkeys(content, 1))
        following = after(state, worker.seal(3))
        worker.release()
        worker.attach(following)
        assert worker.read() == {k: n + 1 for k, n in content.items()}
        worker.release()
    return found


@pytest.mark.parametrize("parallelism", [1, 3, 4, 7, 128])
def test_rescaled_range_is_copied_from_tables(worker: MakeWorker, parallelism: int) -> None:
    ranges, model = halves_of(worker)
    assert read_all(worker(), rescale(ranges, parallelism), {"copied"}) == model


@pytest.mark.parametrize("state", ["behind", "ahead", "gone", "busy", "unsealed", "another"])
def test_old_tables_that_are_not_at_the_base(
    worker: MakeWorker, peer: MakePeer, state: str, home: TableHome
) -> None:
    ranges, model = halves_of(worker)
    first, two = ranges[0], worker(lock_timeout_ms=50)
    path = home.table_path("op", 0, 63, two.spec.operator.fingerprint())
    assert path is not None
    hows = {"copied"}
    if state == "behind":  # a later epoch was computed on another host
        heap = worker(home=TableHome(None, None))
        heap.attach(first)
        heap.add(dict.fromkeys((k for k in model if _belongs(heap.attachment.backend, k)), 5))
        ranges = (after(first, heap.seal(3)), ranges[1])
        model = {k: n + 5 * _belongs(heap.attachment.backend, k) for k, n in model.items()}
    elif state in ("ahead", "unsealed", "busy"):
        other = peer()
        other.call("attach", first)
        mine = next(k for k in model if k and GROUPS[k] < 64)
        other.call("add", {mine: 100})
        if state == "ahead":
            other.call("seal", 3)
            other.call("release")
        elif state == "unsealed":
            other.kill()
        else:
            hows = {"restored"}
    elif state == "gone":
        os.unlink(path)
        hows = {"restored"}
    else:
        Path(path).write_bytes(b"no table" * 999)
        hows = {"restored"}
    assert read_all(two, rescale(ranges, 1), hows) == model


@pytest.mark.parametrize(
    "error", [NoSpaceError(28, "full"), MemoryLimitError("limit"), CorruptFileError("damaged")]
)
def test_tables_that_cannot_be_copied_make_room(
    worker: MakeWorker, home: TableHome, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    ranges, model = halves_of(worker)

    def refuse(*_: Any) -> int:
        raise error

    monkeypatch.setattr(KeyedStateBackend, "copy_from", refuse)
    two = worker()
    assert read_all(two, rescale(ranges, 1), {"restored"}) == model
    for bounds in ((0, 63), (64, 127)):
        path = home.table_path("op", *bounds, two.spec.operator.fingerprint())
        assert path is not None and not os.path.exists(path)


def test_merged_base(worker: MakeWorker) -> None:
    one = worker()
    base = EMPTY
    for epoch in range(1, 6):
        base = after(base, one.epoch(base, {epoch: epoch, 7: 1}, epoch))
    merged_id = base.deltas[3].parent
    output = f"state/op/00000-00127/00000003-{'b' * 32}.base"
    ref = merge_range(one.storage, base.deltas[:3], merged_id, output, 0, 127)
    rebased = dataclasses.replace(base, base=ref, deltas=base.deltas[3:])
    assert ref.id == merged_id and ref.kind == "base"
    heap = worker(home=TableHome(None, None))
    assert heap.attach(rebased) == ("restored", "", 3)
    assert heap.read() == {1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 7: 5}
    assert one.attach(rebased)[0] == "current"


def test_cache_follows_the_home(worker: MakeWorker, tmp_path: Path) -> None:
    """A new executor on the host has tables of its own."""
    one = worker()
    one.epoch(EMPTY, {1: 1}, 1)
    other = choose_home(APPLICATION, shm=str(tmp_path), least_bytes=0, owner_pid=os.getppid())
    spec = dataclasses.replace(one.spec, home=other)
    with one.cache.attach(spec, EMPTY) as attachment:
        assert attachment.how == "current" and len(attachment.backend) == 0


def test_a_task_seldom_looks_at_all_tables(
    worker: MakeWorker, home: TableHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task of one range takes as long however many ranges its process has had."""
    now = [1000.0]
    monkeypatch.setattr(shared_tables.time, "monotonic", lambda: now[0])
    one = worker()
    ranges = [empty_range(index, 128, 64) for index in range(64)]
    for base in ranges:
        one.attach(base)
        one.release()
    looked: list[object] = []
    file_id = shared_tables._file_id
    monkeypatch.setattr(shared_tables, "_file_id", lambda p: looked.append(p) or file_id(p))
    one.attach(ranges[0])
    one.release()
    assert len(looked) <= 1
    # Yet at times it looks at all: those that others discarded are given back.
    assert home.folder is not None
    for path in Path(home.folder).rglob("*.table"):
        path.unlink()
    now[0] += shared_tables._STALE_PERIOD_S
    one.attach(ranges[0])
    one.release()
    assert [entry.backend is None for entry in one.cache._entries.values()].count(False) == 1


def test_forked_child_starts_afresh() -> None:
    cache = TableCache()
    cache._lock.acquire()
    cache.forget()
    assert cache._lock.acquire(blocking=False)


# ---- two processes ------------------------------------------------------------------------------


def test_nobody_fills_a_table_that_is_made_anew(
    worker: MakeWorker, peer: MakePeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one, of another attempt, that waits for it as it goes."""
    here, there = worker(), peer(lock_timeout_ms=50)
    old = EMPTY
    for epoch in range(1, 5):
        old = after(old, here.epoch(old, {1: 1}, epoch))
    base = after(EMPTY, worker(home=TableHome(None, None)).epoch(EMPTY, {2: 2}, 1))
    discard = shared_tables._Entry.discard

    def then_another(entry: Any, **options: Any) -> None:
        discard(entry, **options)
        there.call("epoch", EMPTY, {7: 7, 2: 50}, 1)

    with monkeypatch.context() as patched:
        patched.setattr(shared_tables._Entry, "discard", then_another)
        assert here.attach(base) == ("restored", "", 1)
    assert here.read() == {2: 2}
    here.release()
    assert there.call("attach", base)[0] == "current"
    assert there.call("read") == {2: 2}
    there.call("release")


def test_two_processes_take_turns(worker: MakeWorker, peer: MakePeer) -> None:
    here, there = worker(), peer()
    base, expected = EMPTY, {}
    for epoch in range(1, 7):
        counts = {epoch: 1, 100: epoch}
        expected = {k: expected.get(k, 0) + counts.get(k, 0) for k in expected | counts}
        if epoch % 2:
            assert here.attach(base)[0] == "current"
            here.add(counts)
            base = after(base, here.seal(epoch))
            here.release()
        else:
            assert there.call("attach", base)[0] == "current"
            there.call("add", counts)
            base = after(base, there.call("seal", epoch))
            there.call("release")
    here.attach(base)
    assert here.read() == expected


def test_loser_that_seals_before_the_winner(worker: MakeWorker, peer: MakePeer) -> None:
    winner, loser = worker(), peer()
    base = after(EMPTY, winner.epoch(EMPTY, {1: 1}, 1))
    loser.call("epoch", base, {1: 1000, 5: 5}, 2)
    assert winner.attach(base)[0] == "undone"
    winner.add({1: 1})
    won = after(base, winner.seal(2))
    winner.release()
    assert loser.call("attach", won)[0] == "current"
    assert loser.call("read") == {1: 2}


def test_loser_that_seals_after_the_winner(worker: MakeWorker, peer: MakePeer) -> None:
    winner, loser = worker(), peer()
    base = after(EMPTY, winner.epoch(EMPTY, {1: 1}, 1))
    won = after(base, winner.epoch(base, {1: 1}, 2))
    loser.call("epoch", base, {1: 1000, 5: 5}, 2)
    assert winner.attach(won) == ("caught up", "", 1)
    assert winner.read() == {1: 2}
    winner.release()
    assert loser.call("attach", won)[0] == "current"
    assert loser.call("read") == {1: 2}


def test_loser_that_still_works_when_the_winner_begins(worker: MakeWorker, peer: MakePeer) -> None:
    """The lock is not stolen: the winner works on a replica, its delta counts all the same."""
    winner, loser = worker(lock_timeout_ms=50), peer()
    base = after(EMPTY, winner.epoch(EMPTY, {1: 1}, 1))
    loser.call("attach", base)
    loser.call("add", {1: 1000})
    how, reason, files = winner.attach(base)
    assert (how, files) == ("replica", 1) and reason
    winner.add({1: 1})
    won = after(base, winner.seal(2))
    winner.release()
    loser.call("seal", 2)
    loser.call("release")
    assert winner.attach(won) == ("caught up", "", 1)
    assert winner.read() == {1: 2}


def test_lock_is_waited_for(worker: MakeWorker, peer: MakePeer) -> None:
    here, there = worker(), peer(lock_timeout_ms=60_000)
    here.attach(EMPTY)
    here.add({1: 1})
    there.send("attach", EMPTY)
    base = after(EMPTY, here.seal(1))
    here.release()
    assert there.receive()[0] in ("current", "undone")
    assert there.call("read") == {}
    there.call("release")
    # By then the other one may have undone the very first epoch.
    assert here.attach(base)[0] in ("current", "restored")
    assert here.read() == {1: 1}


def test_a_reader_leaves_a_table_that_is_ahead(worker: MakeWorker, peer: MakePeer) -> None:
    """The range's own task has sealed this epoch, or others since: nothing of it is undone."""
    writer, reader = worker(), peer()
    assert reader.call("attach_to_read", EMPTY) == ("current", "", 0)
    reader.call("release")
    base = after(EMPTY, writer.epoch(EMPTY, {1: 1}, 1))
    assert reader.call("attach_to_read", base) == ("current", "", 0)
    assert reader.call("read") == {1: 1}
    reader.call("release")
    newest = base
    for epoch in range(2, 6):
        newest = after(newest, writer.epoch(newest, {1: 1, epoch: 1}, epoch))
        how, reason, files = reader.call("attach_to_read", base)
        assert (how, files) == ("replica", 1) and "has left the state" in reason
        assert reader.call("read") == {1: 1}
        reader.call("release")
        how, _, files = reader.call("attach_to_read", EMPTY)
        assert (how, files) == ("replica", 0) and reader.call("read") == {}
        reader.call("release")
        assert writer.attach(newest) == ("current", "", 0)
        assert writer.read() == {1: epoch, **dict.fromkeys(range(2, epoch + 1), 1)}
        writer.release()


def test_a_reader_brings_a_table_that_is_behind_to_the_base(
    worker: MakeWorker, home: TableHome
) -> None:
    writer, reader = worker(), worker()
    base = after(EMPTY, writer.epoch(EMPTY, {1: 1}, 1))
    for missing in (False, True):
        if missing:
            the_table(home).unlink()
        assert reader.attach_to_read(base)[::2] == (("restored", 1) if missing else ("current", 0))
        assert reader.read() == {1: 1}
        reader.release()
        # What it restored is there for the next task.
        assert writer.attach(base) == ("current", "", 0)
        writer.release()


@pytest.mark.parametrize("sealed", [False, True])
def test_holder_killed_in_the_middle_of_an_epoch(
    worker: MakeWorker, peer: MakePeer, sealed: bool
) -> None:
    here, there = worker(), peer()
    base = after(EMPTY, here.epoch(EMPTY, dict.fromkeys(range(1000), 1), 1))
    there.call("attach", base)
    there.call("add", dict.fromkeys(range(500, 5000), 7))
    if sealed:
        there.call("seal", 2)
    there.kill()
    how, reason, files = here.attach(base)
    assert (how, reason, files) == ("undone" if sealed else "current", "", 0)
    assert here.read() == dict.fromkeys(range(1000), 1)
    if not sealed:
        assert here.stats().recovered_records > 0


def test_killed_while_restoring(worker: MakeWorker, peer: MakePeer, home: TableHome) -> None:
    here, there = worker(home=TableHome(None, None)), peer()
    base = after(EMPTY, here.epoch(EMPTY, dict.fromkeys(range(100), 1), 1))
    there.call("attach", EMPTY)
    there.call("add", dict.fromkeys(range(50), 7))
    there.kill()
    other = worker()
    assert other.attach(base)[:2] == ("restored", "")
    assert other.read() == dict.fromkeys(range(100), 1)


def test_peer_far_behind(worker: MakeWorker, peer: MakePeer) -> None:
    """A table that was left ten epochs ago, on a host that the range comes back to."""
    here = worker(home=TableHome(None, None))
    there = peer()
    base = after(EMPTY, here.epoch(EMPTY, {1: 1}, 1))
    there.call("attach", base)
    there.call("release")
    for epoch in range(2, 12):
        base = after(base, here.epoch(base, {1: 1}, epoch))
    assert there.call("attach", base) == ("caught up", "", 10)
    assert there.call("read") == {1: 11}


def test_empty_id_is_no_files() -> None:
    assert EMPTY.id == EMPTY_ID and EMPTY.files == () and "n" in STATES
