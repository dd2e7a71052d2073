"""Epochs that are followed, one after the other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.checkpoint.manifest import manifest_path
from pystate.checkpoint.storage import LocalStorage
from pystate.errors import (
    ClosedError,
    CorruptFileError,
    InvalidArgumentError,
    PystateError,
    RetiredEpochError,
    WrongTypeError,
)
from pystate.processor.changes import scan_changes
from pystate.query.follow import follow
from tests.folder_objects import FolderObjects
from tests.readers import Connect

UID = "embedded"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ps.Store]:
    states = {"n": ps.ValueState("long")}
    with ps.open(tmp_path / "store", key="string", states=states, retained=3) as store:
        put(store, a=1, b=1)
        yield store


def put(store: ps.Store, **values: int | None) -> int:
    for key, n in values.items():
        store.set_current_key(key)
        if n is None:
            store["n"].clear()
        else:
            store["n"].update(n)
    return store.checkpoint()


def told(changes: Any) -> list[tuple[str, Any, Any]]:
    rows = [row for _, batch in changes for row in batch.to_pylist()]
    return sorted(
        (r["key"], r["before"] and r["before"]["n"], r["after"] and r["after"]["n"]) for r in rows
    )


def test_each_epoch_is_given_once(store: ps.Store, connect: Connect) -> None:
    with connect(store.path) as reader, reader.follow() as follower:
        assert follower.next(0) is None and follower.epoch == 1
        put(store, a=2)
        put(store, a=3, c=1)
        first = follower.next(30)
        assert first is not None and (first.since, first.epoch) == (1, 2)
        assert follower.epoch == 1
        assert told(first) == [("a", 1, 2)] == told(first)
        second = follower.next(30)
        assert follower.epoch == 2
        assert told(second) == [("a", 2, 3), ("c", None, 1)]
        put(store, b=None)
        third = follower.next(30)
        assert third is not None and third.read(UID).to_pylist() == [
            {"key": "b", "change": "delete", "before": {"n": 1}, "after": None}
        ]
        assert follower.next(0) is None and follower.epoch == 4
        store.checkpoint()
    assert store.epoch == 4


def test_an_epoch_without_changes_has_no_rows(store: ps.Store, connect: Connect) -> None:
    with connect(store.path) as reader, reader.follow(since=0) as follower:
        changes = follower.next(30)
        assert changes is not None and (changes.uids, changes.since) == ((UID,), 0)
        assert told(changes) == [("a", None, 1), ("b", None, 1)]
        put(store, a=1)
        changes = follower.next(30)
        assert changes is not None and told(changes) == []
        assert changes.schema(UID).names == ["key", "change", "before", "after"]
        assert changes.read(UID).num_rows == 0


def test_who_waits_gets_the_epoch_as_it_is_published(store: ps.Store, connect: Connect) -> None:
    found: list[Any] = []
    with connect(store.path) as reader:
        follower = reader.follow(poll="20 ms")

        def consume() -> None:
            for changes in follower:
                found.append((changes.epoch, told(changes)))
                seen.release()

        seen = threading.Semaphore(0)
        thread = threading.Thread(target=consume)
        thread.start()
        for number in range(2, 5):
            put(store, a=number)
            assert seen.acquire(timeout=20)
        follower.stop()
        thread.join(20)
        assert not thread.is_alive()
    assert found == [(n, [("a", n - 1, n)]) for n in range(2, 5)]


def test_closing_the_reader_ends_what_waits(store: ps.Store, connect: Connect) -> None:
    reader = connect(store.path)
    pinned = reader.at(1)
    followers = [reader.follow(poll="1 minute"), pinned.follow(poll="1 minute")]
    threads = [threading.Thread(target=list, args=(each,)) for each in followers]
    for thread in threads:
        thread.start()
    pinned.close()
    threads[1].join(20)
    assert not threads[1].is_alive() and threads[0].is_alive()
    changes = reader.changes(since=0)
    reader.close()
    threads[0].join(20)
    assert not threads[0].is_alive()
    assert followers[0].next() is None
    with pytest.raises(ClosedError):
        list(changes)
    with pytest.raises(ClosedError):
        reader.follow()


def test_a_retired_epoch_says_where_to_begin_anew(store: ps.Store) -> None:
    with ps.connect(store.path) as reader:
        follower, again = reader.follow(), reader.follow()
        for number in range(2, 8):
            put(store, a=number)
        late = follower.next
        with pytest.raises(RetiredEpochError, match="read the state of epoch 7") as raised:
            late(30)
        assert (raised.value.epoch, raised.value.start_at) == (1, 7)
        assert "follow(since=7)" in str(raised.value) and "\n" not in str(raised.value)
        for since in (0, 1, 4):
            with pytest.raises(RetiredEpochError, match="it has epochs 5 to 7"):
                reader.follow(since=since)
        with pytest.raises(RetiredEpochError):
            again.next(30)
        with pytest.raises(InvalidArgumentError, match="no epoch 8 yet, the newest is 7"):
            reader.follow(since=8)
        reader.refresh()
        with reader.follow(since=5) as follower:
            first = follower.next(30)
        assert told(first) == [("a", 5, 6)]


def test_files_that_go_while_they_are_read(store: ps.Store) -> None:
    with ps.connect(store.path) as reader:
        follower = reader.follow()
        put(store, a=2)
        changes = follower.next(30)
        for number in range(3, 80):  # the deltas are merged meanwhile
            put(store, a=number)
        assert not LocalStorage(store.path).exists(manifest_path(2))
        with pytest.raises(RetiredEpochError, match="files of epoch 2 are gone"):
            list(changes)  # type: ignore[arg-type]


def test_an_older_epoch_may_be_retired_once_it_was_seen(store: ps.Store) -> None:
    """Files of the epoch before are not needed: those of the newer one say the same."""
    with ps.open(
        Path(store.path).parent / "one",
        key="string",
        retained=1,
        states={"n": ps.ValueState("long")},
    ) as other:
        put(other, a=1)
        follower = follow(LocalStorage(other.path), 1)
        for number in range(2, 100):
            put(other, a=number, b=None if number % 2 else number)
            [change, *_] = told(follower.next(30))
            assert change == ("a", number - 1, number)


def test_changes_of_several_epochs_at_once(store: ps.Store, connect: Connect) -> None:
    put(store, a=2, b=None)
    put(store, a=3)
    with connect(store.path) as reader:
        changes = reader.changes(since=1)
        assert (changes.since, changes.epoch, changes.dropped) == (1, 3, ())
        assert told(changes) == [("a", 1, 3), ("b", 1, None)]
        rows = reader[UID].changes(since=1).read_all()
        assert rows == ps.changes(store.path, from_epoch=1)
        assert told(reader.changes(since=3)) == []
        with pytest.raises(InvalidArgumentError, match="the reader's epoch 3"):
            reader.changes(since=4)


def test_what_cannot_be_followed(store: ps.Store, connect: Connect) -> None:
    with connect(store.path) as reader:
        for wrong in ("embedded", 3):
            with pytest.raises(WrongTypeError, match="list of operators' uids"):
                reader.follow(uids=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="follow: since"):
            reader.follow(since=-1)
        with pytest.raises(PystateError, match="follow: poll"):
            reader.follow(poll="1 ms")
        with reader.follow(uids=["other"]) as follower:
            put(store, a=5)
            changes = follower.next(30)
            assert changes is not None and changes.uids == () and list(changes) == []


def test_a_damaged_manifest_is_said(store: ps.Store) -> None:
    with ps.connect(store.path) as reader, reader.follow() as follower:
        put(store, a=2)
        path = Path(store.path) / manifest_path(2)
        data = path.read_bytes()
        path.write_bytes(data[:-9])
        with pytest.raises(CorruptFileError):
            follower.next(30)
        path.write_bytes(data)
        assert told(follower.next(30)) == [("a", 1, 2)]


def test_a_checkpoint_that_was_set_back(tmp_path: Path) -> None:
    """The epoch that comes next is another one's: what is known is not what it was built on."""
    states = {"n": ps.ValueState("long")}
    for name, more in (("one", 7), ("other", 8)):
        with ps.open(tmp_path / name, key="string", states=states, retained=9) as store:
            put(store, a=1)
            put(store, a=more)
            put(store, a=3)
    storage = LocalStorage(tmp_path / "one")
    follower = follow(storage, 2)
    (tmp_path / "one").rename(tmp_path / "gone")
    (tmp_path / "other").rename(tmp_path / "one")
    changes = follower.next(30)
    with pytest.raises(RetiredEpochError, match="set back by a repair"):
        list(changes)  # type: ignore[arg-type]


def test_polls_are_cheap(store: ps.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing comes one name is looked for, and nothing is listed or read."""
    asked: list[str] = []
    for name in ("exists", "list", "read_bytes", "open_read"):
        real = getattr(LocalStorage, name)

        def noted(self: Any, *args: Any, real: Any = real, name: str = name, **more: Any) -> Any:
            asked.append(name)
            return real(self, *args, **more)

        monkeypatch.setattr(LocalStorage, name, noted)
    follower = follow(LocalStorage(store.path), 1, poll="10 ms")
    del asked[:]
    assert follower.next(0.2) is None
    assert asked.count("list") == 1 and len(asked) == 1 + asked.count("exists")
    assert 5 < asked.count("exists") <= 21


def test_namespaces_and_large_deltas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pystate.processor.change_scan.RECORDS", 100)
    monkeypatch.setattr("pystate.processor.change_scan._OPEN_FILES", 2)
    states = {"n": ps.ValueState("long"), "m": ps.MapState("long", "long")}
    with ps.open(tmp_path, key={"a": "long", "b": "string"}, states=states, retained=9) as store:
        rows = [pa.array(range(1000)), pa.array([str(i % 7) for i in range(1000)])]
        for step in range(5):
            keys = store.keys([column.slice(step, 900) for column in rows])
            store["n"].update_all(keys, [step] * 900)
            store.checkpoint()
    for first in range(5):
        found = list(scan_changes(tmp_path, from_epoch=first))
        whole = pa.Table.from_batches(found)
        before = ps.read_state(tmp_path, epoch=first) if first else None
        after = ps.read_state(tmp_path)
        old = {r["a"]: r["n"] for r in before.to_pylist()} if before is not None else {}
        new = {r["a"]: r["n"] for r in after.to_pylist()}
        differ = {k: (old.get(k), new.get(k)) for k in {*old, *new} if old.get(k) != new.get(k)}
        rows_found = whole.to_pylist()
        assert len(rows_found) == len(differ)
        assert {
            r["a"]: (r["before"] and r["before"]["n"], r["after"] and r["after"]["n"])
            for r in rows_found
        } == differ


def test_a_checkpoint_in_an_object_store(store: ps.Store) -> None:
    objects = FolderObjects(Path(store.path))
    follower = follow(objects, 1, lease=True, poll="10 ms")
    for number in range(2, 40):
        put(store, a=number, c=None if number % 2 else number)
        changes = follower.next(30)
        assert told(changes)[0] == ("a", number - 1, number)
    assert follower.epoch == 38
    follower.close()
    assert objects.files.list("manifests/leases") == []


def test_changes_of_an_object_store_read_what_has_changed(tmp_path: Path) -> None:
    rows = 300_000  # an object of less than 1 MiB is read as a whole
    with ps.open(tmp_path, key="long", states={"n": ps.ValueState("long")}, retained=9) as store:
        store["n"].update_all(store.keys(range(rows)), pa.array(range(rows)))
        store.checkpoint()
        for number in (2, 3):
            store["n"].update_all(store.keys(range(number, number + 5)), [number] * 5)
            store.checkpoint()
    objects = FolderObjects(tmp_path)
    size = sum(entry.size_bytes for entry in objects.files.list("state"))
    changes = follow(objects, 2).next(0)
    assert changes is not None
    found = sorted(
        (r["key"], r["before"]["n"], r["after"]["n"]) for r in changes.read(UID).to_pylist()
    )
    assert found == [(3, 2, 3), (4, 2, 3), (5, 2, 3), (6, 2, 3), (7, 7, 3)]
    assert objects.bytes < size / 2


def test_a_store_on_disk(tmp_path: Path) -> None:
    """Its deltas have guides, and are looked into by their own code: what they delete counts."""
    states: dict[str, Any] = {"n": ps.ValueState("long"), "l": ps.ListState("long")}
    options: Any = {"home": "disk", "key": "long", "states": states, "retained": 9}
    with ps.open(tmp_path, **options) as store:
        store["n"].update_all(store.keys(range(3000)), pa.array(range(3000)))
        for key in range(3000):
            store.set_current_key(key)
            store["l"].add(key)
        store.checkpoint()
        for key in (1, 2):
            store.set_current_key(key)
            for name in states:
                store[name].clear()
        store.set_current_key(3)
        store["n"].clear()
        store["l"].clear()
        store["l"].add(7)
        store.checkpoint()
    changes = follow(LocalStorage(tmp_path), 1).next(0)
    assert changes is not None
    rows = {row.pop("key"): row for row in changes.read(UID).to_pylist()}
    assert rows == {
        1: {"change": "delete", "before": {"n": 1, "l": [1]}, "after": None},
        2: {"change": "delete", "before": {"n": 2, "l": [2]}, "after": None},
        3: {"change": "put", "before": {"n": 3, "l": [3]}, "after": {"n": None, "l": [7]}},
    }
