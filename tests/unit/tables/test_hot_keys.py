"""Keys that are used most are kept beside a range's files, for a table that begins anew."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.checkpoint.refs import FileRef, RangeState, empty_range, hot_epoch, hot_path
from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.merges import merge_range
from pystate.epochs.retention import may_be_named
from pystate.errors import NoSpaceError
from pystate.tables import hot_keys
from pystate.tables.host import TableHome
from pystate.types.state_type import parse_type
from tests.peer import Worker

MIB = 1 << 20
ROWS, HOT = 20_000, 500
STATES: dict[str, ps.State[Any]] = {"n": ps.ValueState("long", default=0)}
MakeWorker = Callable[..., Worker]
EMPTY = empty_range(0, 8, 1)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of few keys."""
    monkeypatch.setattr(hot_keys, "MOST_KEYS", 2000)
    monkeypatch.setattr(hot_keys, "_LEAST_USED", 1000)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[MakeWorker]:
    made: list[Worker] = []

    def make(limit_bytes: int = 4 * MIB, **options: Any) -> Worker:
        options.setdefault("states", STATES)
        made.append(
            Worker(
                str(tmp_path / "ck"),
                TableHome(None, None),
                table_home="disk",
                limit_bytes=limit_bytes,
                groups=8,
                **options,
            )
        )
        return made[-1]

    yield make
    for each in made:
        each.stop()


def after(base: RangeState, delta: FileRef) -> RangeState:
    return dataclasses.replace(base, id=delta.id, deltas=(*base.deltas, delta))


def epoch(one: Worker, base: RangeState, number: int, keys: Any, namespaces: Any = None) -> Any:
    """Adds one to each key; returns the base after it."""
    one.attach(base)
    backend: Any = one.attachment.backend
    batch = backend.prefetch(pa.array(keys, pa.int64()), namespaces)
    backend["n"].add(batch, pa.array([1] * len(batch), pa.int64()))
    base = after(base, one.seal(number))
    one.attachment.used(len(batch))
    one.release()
    return base


def used(one: Worker) -> RangeState:
    """A few epochs in which some keys are used more often than others."""
    base = EMPTY
    for number in range(1, 5):
        base = epoch(one, base, number, range((number - 1) * ROWS // 4, number * ROWS // 4))
    for number in range(5, 9):
        base = epoch(one, base, number, list(range(HOT)) * 40)
    return base


def lists(folder: Path) -> list[Path]:
    return sorted((folder / "ck").rglob("*.hot"))


def looked_up(one: Worker, keys: Any) -> int:
    """How many of some keys are not in memory."""
    below = one.attachment.backend.below
    before = below.looked_up
    one.attachment.backend.prefetch(pa.array(keys, pa.int64()))
    return below.looked_up - before


def test_rows_come_that_were_used_most(worker: MakeWorker, tmp_path: Path) -> None:
    base = used(worker())
    # Each takes the place of the one before it.
    (path,) = lists(tmp_path)
    assert hot_epoch(str(path)) in range(6, 9)
    assert path.stat().st_size < hot_keys.MOST_KEYS * 8 + 4096
    two = worker()
    assert two.attach(base)[0] == "opened"
    # In the way of nothing: it is done when it is asked for.
    assert two.stats().keys == 0
    assert two.attachment.warm(60) > HOT
    assert two.attachment.warm(60) == 0
    rows = two.stats().keys
    assert HOT < rows < ROWS
    assert looked_up(two, range(HOT)) == 0
    two.release()
    # They stay, although the epoch has changed nothing.
    two.attach(base)
    assert two.stats().keys == rows


def test_it_goes_on_where_it_was(worker: MakeWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    base = used(worker())
    monkeypatch.setattr(hot_keys, "_SLICE", 100)
    two, cold = worker(), worker()
    for one in (two, cold):
        one.attach(base)
    ticks = itertools.count()
    monkeypatch.setattr(hot_keys, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    assert two.attachment.warm(0.5) == 0
    assert two.attachment.warm(1.5) == 100
    # The hottest ones are the first.
    assert looked_up(two, range(HOT)) == HOT - 100
    assert looked_up(cold, range(HOT)) == HOT
    two.release()
    base = epoch(two, base, 9, [5])
    two.attach(base)
    assert two.attachment.warm(2.5) == 200


def test_it_ends_where_memory_is_needed(worker: MakeWorker) -> None:
    base = used(worker())
    two = worker(MIB)
    two.attach(base)
    fit = two.stats().keys
    brought = two.attachment.warm(60)
    assert 0 < brought < ROWS
    below = two.attachment.backend.below
    assert below.left == 0
    # Room for what is asked for next is left.
    assert looked_up(two, range(ROWS - 300, ROWS)) > 0
    assert below.left == 0
    assert fit == 0
    assert two.attachment.warm(60) == 0


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "type", "other"])
def test_a_list_that_is_wrong_is_none(
    worker: MakeWorker, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    base = used(worker())
    (path,) = lists(tmp_path)
    data = path.read_bytes()
    if damage == "flipped":
        data = (
            data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
        )
    elif damage == "cut":
        data = data[:-1]
    elif damage == "empty":
        data = b""
    elif damage == "other":
        data = hot_keys._MAGIC + b"0" * 32
    else:
        data = hot_keys.encoded([pa.array(["a", "b"])])
    path.write_bytes(data)
    two = worker()
    two.attach(base)
    with caplog.at_level(logging.INFO, "pystate.tables.hot_keys"):
        assert two.attachment.warm(60) == 0
    assert "hot keys in state/op/00000-00007/0000000" in caplog.text
    assert two.stats().keys == 0
    assert looked_up(two, range(HOT)) == HOT


def test_a_list_that_cannot_be_written_is_none(
    worker: MakeWorker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    create = LocalStorage.create

    def full(self: LocalStorage, path: str) -> Any:
        if path.endswith(".hot"):
            raise NoSpaceError(errno.ENOSPC, "No space left on device")
        return create(self, path)

    monkeypatch.setattr(LocalStorage, "create", full)
    with caplog.at_level(logging.INFO, "pystate.tables.hot_keys"):
        base = used(worker())
    assert "hot keys are not written: " in caplog.text
    assert not lists(tmp_path)
    two = worker()
    two.attach(base)
    assert two.attachment.warm(60) == 0


def test_files_that_cannot_be_read_are_noted(
    worker: MakeWorker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    base = used(worker())
    two = worker()
    two.attach(base)

    def lost(*_: Any) -> Any:
        raise OSError(errno.EIO, "lost")

    monkeypatch.setattr(type(two.attachment.backend.below), "bring", lost)
    with caplog.at_level(logging.INFO, "pystate.tables.hot_keys"):
        assert two.attachment.warm(60) == 0
    assert "hot keys are not brought into memory: " in caplog.text


def test_parts_of_a_range_have_their_part(worker: MakeWorker, tmp_path: Path) -> None:
    """After a change of parallelism the lists are those of the old ranges' folders."""
    one = worker()
    base = used(one)
    name = "state/op/00000-00007/00000008-" + base.id + ".base"
    made = merge_range(one.storage, base.files, base.id, name, 0, 7, block_bytes=4096)
    found = 0
    for first, last in ((0, 3), (4, 7)):
        part = dataclasses.replace(made, first_key_group=first, last_key_group=last)
        two = worker()
        two.attach(RangeState(0, first, last, base.id, base=part))
        brought = two.attachment.warm(60)
        assert brought > 500
        assert two.stats().keys == brought
        found += brought
    assert found == 2000


def test_keys_with_namespaces(worker: MakeWorker) -> None:
    """Each of a key's namespaces is a row of its own."""
    spaces = pa.array(["a", None] * (HOT // 2))
    one, two = (worker(namespace=parse_type("string")) for _ in range(2))
    base = EMPTY
    for number in range(1, 5):
        base = epoch(one, base, number, range(HOT), spaces)
    two.attach(base)
    assert two.attachment.warm(60) == HOT
    assert two.stats().keys == HOT
    before = two.attachment.backend.below.looked_up
    two.attachment.backend.prefetch(pa.array(range(HOT), pa.int64()), spaces)
    assert two.attachment.backend.below.looked_up == before


def test_small_tables_have_no_list(
    worker: MakeWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hot_keys, "_LEAST_USED", 10_000)
    one, base = worker(), EMPTY
    for number in range(1, 5):
        base = epoch(one, base, number, range(2000))
    assert not lists(tmp_path)
    base = epoch(one, base, 5, range(2000))
    assert len(lists(tmp_path)) == 1


def test_a_store_keeps_and_brings_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its checkpoints, where these are not so many that they would take long."""
    monkeypatch.setattr("pystate.store._LEAST_SINCE_S", 0.0)
    options: Any = {"home": "disk", "limit_bytes": 4 * MIB}
    with ps.open(tmp_path / "ck", key="long", states=STATES, **options) as store:
        for first in range(0, 8000, 2000):
            keys = store.keys(pa.array(range(first, first + 2000), pa.int64()))
            store["n"].add(keys, pa.array([1] * 2000, pa.int64()))
            store.checkpoint()
    assert len(lists(tmp_path)) == 1
    with ps.open(tmp_path / "ck", key="long", states=STATES, **options) as store:
        backend = store._backend
        assert backend.stats().keys == 0
        monkeypatch.setattr("pystate.store.warming_s", lambda spent_s: spent_s / 8)
        store._checkpointed_s -= 1000
        store.set_current_key(9999)
        store["n"].update(1)
        store.checkpoint()
        assert backend.stats().keys == 2001
        found = store["n"].values(store.keys(pa.array([0, 5999, 9999, 8888], pa.int64())))
        assert found.to_pylist() == [1, 1, 1, 0]
    assert len(lists(tmp_path)) == 1


def test_what_a_store_used_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint of few rows writes no list because many were looked up long before."""
    options: Any = {"home": "disk", "limit_bytes": 4 * MIB}
    with ps.open(tmp_path / "ck", key="long", states=STATES, **options) as store:
        keys = pa.array(range(8000), pa.int64())
        store["n"].add(store.keys(keys), pa.array([1] * 8000, pa.int64()))
        store.checkpoint()
    used: list[int] = []
    monkeypatch.setattr(hot_keys.HotKeys, "used", lambda _, rows: used.append(rows))
    with ps.open(tmp_path / "ck", key="long", states=STATES, **options) as store:
        for first, n in ((0, 4000), (4000, 10), (4010, 10)):
            store["n"].add(store.keys(keys[first : first + n]), 1)
            store.checkpoint()
    assert used == [8000, 20, 20]


def test_keys_of_many_bytes_are_fewer() -> None:
    few = hot_keys._limited([pa.array(["x" * 1000] * 5000), pa.array(range(5000))])
    assert sum(column.nbytes for column in few) <= hot_keys.MOST_BYTES
    assert few[1].to_pylist() == list(range(0, 5000, 5))


def test_lists_of_which_nobody_hears_go() -> None:
    """No manifest names them, so they are known by their age."""
    path = hot_path("op", (0, 7), 100, "ab" * 16)
    assert path == "state/op/00000-00007/00000100-" + "ab" * 16 + ".hot"
    assert hot_epoch(path) == 100
    assert hot_epoch(path.replace(".hot", ".delta")) is None

    class Newest:
        def __init__(self, epoch: int) -> None:
            self.epoch, self.term = epoch, 1

    assert may_be_named(path, Newest(1123), 1)  # type: ignore[arg-type]
    assert not may_be_named(path, Newest(1124), 1)  # type: ignore[arg-type]
