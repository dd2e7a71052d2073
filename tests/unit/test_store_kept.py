"""What a store on disk keeps, what goes from it, and what memory that takes.

The contract is that of a store on the heap, so what can be said of both is asked of both.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pystate as ps
from pystate._core import core
from pystate.checkpoint.refs import FileRef
from pystate.errors import InvalidArgumentError, NoSpaceError
from pystate.store import Store
from pystate.tables import below
from pystate.types.arrays import hash_keys
from tests.unit.test_store import Trouble
from tests.unit.test_store_disk import LIMIT, STATES, TEXT, fill, opened, steps

#: Nothing becomes smaller by compression.
BYTES = [os.urandom(4000).hex() for _ in range(20)]
HOMES = pytest.mark.parametrize("home", ["heap", "disk"])


def rewritten(store: Store, checkpoints: int) -> None:
    """So many checkpoints of a few keys that have nothing to do with the others."""
    for at in range(checkpoints):
        keys = store.keys(range(-20, 0))
        store["n"].add(keys, at)
        store["text"].update_all(keys, BYTES)
        store.checkpoint()


# ---- times to live ------------------------------------------------------------------------------


def test_merges_leave_out_what_has_expired(tmp_path: Path) -> None:
    """It goes from the files, and not only from what is read; the last checkpoints keep theirs."""
    now = [1_000_000]
    ttl = ps.StateTtl(seconds=10)
    states = {"n": ps.ValueState("long", ttl=ttl), "text": ps.ValueState("string", ttl=ttl)}
    with opened(tmp_path, states=states, clock=lambda: now[0]) as store:
        fill(store, 0, 600)
        store.checkpoint()
        now[0] += 5_000
        rewritten(store, 5)
        assert store._range.base is not None and store._range.base.rows == 620
        now[0] += 5_000
        rewritten(store, 150)
        assert sum(ref.rows for ref in store._range.files if ref.kind == "base") == 20
        assert sum(ref.rows for ref in store._range.files) <= 20 * len(store._range.files)
        assert len(store) == 20


KINDS: dict[str, Any] = {
    "value": (ps.ValueState, lambda s, k: s.update_all(k, [7]), lambda s, k: s.values(k)),
    "list": (ps.ListState, lambda s, k: s.append(k, ["x"]), lambda s, k: s.lists(k)),
    "map": (
        lambda type_, **more: ps.MapState("long", type_, **more),
        lambda s, k: s.put_entries(k, [5], [7]),
        lambda s, k: s.maps(k),
    ),
}


@HOMES
@pytest.mark.parametrize("kind", KINDS)
def test_a_time_to_live_that_is_added_begins_when_the_store_is_opened(
    kind: str, home: str, tmp_path: Path
) -> None:
    make, write, read = KINDS[kind]
    now = [1_000_000]
    type_ = "string" if kind == "list" else "long"

    def at_home(ttl: ps.StateTtl | None) -> Store:
        limit = LIMIT if home == "disk" else 0
        state = {"s": make(type_, ttl=ttl)}
        return opened(tmp_path, states=state, home=home, limit_bytes=limit, clock=lambda: now[0])

    def there(store: Store) -> bool:
        [found] = read(store["s"], store.keys([1])).to_pylist()
        return bool(found)

    with at_home(None) as store:
        write(store["s"], store.keys([1]))
        store.checkpoint()
    now[0] += 20_000
    with at_home(ps.StateTtl(seconds=10)) as store:
        store.checkpoint()
        now[0] += 9_999
        store.checkpoint()
        assert there(store) and store.to_arrow().num_rows == 1
        now[0] += 1
        store.checkpoint()
        assert not there(store)


# ---- objects ------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_batch", [True, False])
def test_objects_that_wait_need_little_memory(by_batch: bool, tmp_path: Path) -> None:
    """Of one state of objects four times the limit is written in an epoch, and is read."""
    count = 520
    with opened(tmp_path, states={"thing": ps.ValueState(object)}) as store:
        most = 0
        for at in range(0, count, 20):
            if by_batch:
                store["thing"].update_all(store.keys(range(at, at + 20)), BYTES)
            else:
                for key in range(at, at + 20):
                    store.set_current_key(key)
                    store["thing"].update(BYTES[key % 20])
                    assert store["thing"].value() == BYTES[key % 20]
            most = max(most, len(store["thing"]._dirty))
            assert store._backend._table.stats()[8] <= LIMIT
        assert most <= 32 and steps(store) > 0
        store.checkpoint()
        for at in range(0, count, 20):
            assert store["thing"].values(store.keys(range(at, at + 20))) == BYTES
        assert len(store["thing"]._cache) < count / 2
        assert store.stats().committed_bytes <= LIMIT
    with opened(tmp_path, states={"thing": ps.ValueState(object)}) as store:
        assert store["thing"].values(store.keys(range(20))) == BYTES


def test_small_objects_wait_in_large_numbers(tmp_path: Path) -> None:
    with opened(tmp_path, states={"thing": ps.ValueState(object)}) as store:
        for key in range(1000):
            store.set_current_key(key)
            store["thing"].update([key])
        assert len(store["thing"]._dirty) > 100
        store.rollback()
        assert store["thing"].values(store.keys([1])) == [None]


def test_a_step_leaves_objects_waiting(tmp_path: Path) -> None:
    states = STATES | {"thing": ps.ValueState(object)}
    with opened(tmp_path, states=states) as store:
        store.set_current_key(3)
        store["thing"].update({"waits": 1})
        fill(store, 100, 900)
        assert steps(store) > 0 and store["thing"].dirty
        assert store["thing"].value() == {"waits": 1}
        store.rollback()
        assert len(store) == 0
        store.set_current_key(3)
        store["thing"].update({"waits": 2})
        fill(store, 100, 900)
        store.checkpoint()
    with opened(tmp_path, states=states) as store:
        assert store["thing"].values(store.keys([3])) == [{"waits": 2}]


# ---- full disks ---------------------------------------------------------------------------------


@pytest.fixture
def trouble(monkeypatch: pytest.MonkeyPatch) -> Trouble:
    return Trouble(monkeypatch)


def test_a_full_disk_needs_no_memory_beyond_the_limit(tmp_path: Path, trouble: Trouble) -> None:
    with opened(tmp_path) as store:
        store.checkpoint()
        trouble.suffix = ".delta"
        for at in range(0, 1200, 20):
            keys = store.keys(range(at, at + 20))
            try:
                store["text"].update_all(keys, BYTES)
                store.checkpoint()
            except NoSpaceError:
                pass
        held = sum(delta.held_bytes for delta in store._pending)
        assert 0 < held <= LIMIT, "what waits, and the epoch that was sealed last"
        for delta in store._pending:
            with pytest.raises(ps.errors.ClosedError):
                delta.snapshot._sealed.write(None, "the file in memory is enough", 0)
        found = store.to_arrow()
        assert set(found["text"].to_pylist()) <= set(BYTES)
        trouble.suffix = ""
        store.checkpoint()
        assert store.to_arrow().num_rows == found.num_rows
    with opened(tmp_path) as store:
        assert store.to_arrow().sort_by("key").equals(found.sort_by("key"))


# ---- steps --------------------------------------------------------------------------------------


def stepped(store: Store, count: int) -> int:
    """Make so many steps of equal size; returns the bytes of one."""
    for at in range(count):
        store["text"].update_all(store.keys(range(20 * at, 20 * at + 20)), BYTES)
        store._step()
    return len("".join(BYTES)) // 2


def test_steps_are_joined_by_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a byte is written again a few times, however many steps there are."""
    written = []

    def merged(*args: Any, **named: Any) -> FileRef:
        ref = whole(*args, **named)
        written.append(ref.file_bytes)
        return ref

    whole = ps.store.merge_range
    monkeypatch.setattr("pystate.store.merge_range", merged)
    with opened(tmp_path, limit_bytes=0) as store:
        size = stepped(store, 100)
        assert steps(store) < 16 and len(written) > 3
        assert sum(written) < 3 * 100 * size
        assert store["text"].values(store.keys([0, 39, 1999])).to_pylist() == [
            BYTES[0],
            BYTES[19],
            BYTES[19],
        ]
        store.checkpoint()
        assert len(store) == 2000


def test_steps_that_cannot_be_joined_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any, **__: Any) -> FileRef:
        raise NoSpaceError(28, "no space left")

    with opened(tmp_path, limit_bytes=0) as store, monkeypatch.context() as patch:
        patch.setattr("pystate.store.merge_range", full)
        with caplog.at_level(logging.WARNING):
            stepped(store, 17)
        assert steps(store) == 17 and "stay unmerged" in caplog.text
        patch.undo()
        stepped(store, 1)
        assert steps(store) < 5
        assert store.to_arrow().num_rows == 17 * 20


def test_a_function_that_needs_room_computes_a_value(tmp_path: Path) -> None:
    """A step in the middle of it leaves its key current."""

    def added(a: int, b: int) -> int:
        fill(store, 100, 900)
        return a + b

    states = STATES | {"sum": ps.ReducingState(object, added)}
    with opened(tmp_path, states=states) as store:
        store.set_current_key(1)
        store["sum"].add(1)
        store["sum"].add(2)
        assert steps(store) > 0
        assert store["sum"].get() == 3
        states = {"sum": ps.ReducingState("long", added)}
    with opened(tmp_path / "plain", states=STATES | states) as store:
        store.set_current_key(1)
        store["sum"].add(1)
        store["sum"].add(2)
        assert steps(store) > 0
        assert store["sum"].get() == 3


def test_changed_keys_are_refused_after_a_step(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 0, 20)
        assert sorted(next(store._backend.changed()).to_pylist()) == list(range(20))
        fill(store, 20, 800)
        assert steps(store) > 0
        with pytest.raises(InvalidArgumentError, match="had to leave memory"):
            store._backend.changed()
        store.checkpoint()
        store["n"].add(store.keys([5]), 1)
        assert next(store._backend.changed()).to_pylist() == [5]


# ---- memory -------------------------------------------------------------------------------------


def test_keys_are_gone_over_while_rows_leave(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store["n"].add(store.keys(range(400)), 1)
        seen = []
        for key in store:
            store.set_current_key(key)
            store["text"].update(TEXT)
            seen.append(key)
        assert steps(store) > 0
        assert sorted(seen) == list(range(400)) == sorted(store)
        batches = store._backend.to_batches()
        first = next(batches)
        fill(store, 0, 400)
        assert first.num_rows + sum(batch.num_rows for batch in batches) == 400


@pytest.mark.parametrize("groups", [1, 128])
def test_all_rows_are_read_some_at_a_time(
    groups: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(below, "SCAN_ROWS", 200)
    with opened(tmp_path, max_parallelism=groups) as store:
        for _ in range(2):
            for first in range(0, 8000, 1000):
                numbers = np.arange(first, first + 1000)
                store["n"].add(store.keys(numbers), numbers)
            store.checkpoint()
    with opened(tmp_path) as store:
        rows = store._backend.below
        sizes = [n for n, _ in rows.rows(None)]
        assert sum(sizes) == 8000 and max(sizes) < 500
        assert not any(parts for _, parts in rows.rows(None, counted=True))
        assert len(store) == 8000
        assert sorted(store) == list(range(8000))
        assert sorted(store.to_arrow()["n"].to_pylist()) == [2 * n for n in range(8000)]


def test_a_table_in_use_is_not_looked_through_at_each_checkpoint(tmp_path: Path) -> None:
    class Full:
        """A table in which no row more fits, whatever leaves."""

        def __init__(self, table: Any) -> None:
            self._table = table

        def __getattr__(self, name: str) -> Any:
            return getattr(self._table, name)

        def room(self, keys: int) -> tuple[int, int, int]:
            return 0, keys, 0

        def stats(self) -> tuple[int, ...]:
            keys, *others = self._table.stats()
            return keys + came, *others

    def leave(keys: int) -> bool:
        looks.append(keys)  # and none left
        return True

    came, looks = 0, []
    with opened(tmp_path) as store:
        fill(store, 0, 80)
        store.checkpoint()
        rows: Any = store._backend.below
        rows._table, rows._let_leave = Full(rows._table), leave
        for _ in range(10):
            store["n"].add(store.keys([1]), 1)
            store.checkpoint()
        assert looks == [10]
        came = 10
        store["n"].add(store.keys([1]), 1)
        store.checkpoint()
        assert len(looks) == 2
        rows._table = rows._table._table


def test_keys_are_counted_at_most(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 0, 800)
        store.checkpoint()
        assert store.stats().keys < 800
        assert "at most 800" in store._repr_html_()
        store.delete(range(10))
        store.checkpoint()
        assert len(store) <= store._most_keys() <= 800


# ---- parts of files -----------------------------------------------------------------------------


def test_files_count_for_their_key_groups_alone(tmp_path: Path) -> None:
    """A base that was made anew for some key groups lies below older files of the others."""
    states = {"n": ps.ValueState("long")}

    def written(value: int) -> FileRef:
        path = tmp_path / f"{value}.delta"
        with ps.KeyedStateBackend("long", states=states) as backend:
            backend["n"].update_all(backend.keys(range(100)), value)
            with backend.seal() as snapshot, open(path, "wb") as out:
                return FileRef.from_info(str(path), snapshot.write(out))

    old, new = written(1), written(2)
    refs = [
        FileRef(**{**vars(new), "last_key_group": 63}),
        FileRef(**{**vars(old), "first_key_group": 64}),
    ]
    with ps.KeyedStateBackend("long", states=states) as backend:
        backend.restore([ref.path for ref in refs], expected=refs)
        found = backend["n"].values(backend.keys(range(100))).to_pylist()
    groups = [core.key_group(int(h), 128) for h in hash_keys([pa.array(range(100))])]
    assert found == [2 if group < 64 else 1 for group in groups]
