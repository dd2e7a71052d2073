"""A store on disk whose state is several times its memory: steps, batches, readers and refusals.

That it is a store like any other is said by `test_store`, all of which runs on disk, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pystate as ps
from pystate._core import core
from pystate.errors import (
    CheckpointError,
    ClosedError,
    CorruptFileError,
    InvalidArgumentError,
    MemoryLimitError,
    NoCurrentKeyError,
    NoSpaceError,
    PoisonedError,
    SystemCallError,
)
from pystate.store import Store
from pystate.tables.below import FilesBelow
from tests.forks import FORKS, forked
from tests.unit.test_store import Trouble, names

__all__ = ["FORKS"]

LIMIT = 1 << 20
#: A thousand of them are four times the limit.
TEXT = "abcdefgh" * 512
STATES = {"n": ps.ValueState("long", default=0), "text": ps.ValueState("string")}


def opened(folder: Path, **options: Any) -> Store:
    given: dict[str, Any] = {"home": "disk", "limit_bytes": LIMIT, "states": STATES} | options
    return ps.open(folder, key="long", **given)


def fill(store: Store, first: int, last: int) -> None:
    for at in range(first, last, 20):
        keys = store.keys(range(at, min(at + 20, last)))
        store["n"].add(keys, np.arange(at, min(at + 20, last)))
        store["text"].update_all(keys, TEXT)


def scanned(store: Store) -> list[int]:
    found: list[Any] = store.to_arrow()["n"].to_pylist()
    return sorted(found)


def numbers(store: Store, last: int) -> list[int]:
    found: list[int] = []
    for at in range(0, last, 20):
        keys = store.keys(range(at, min(at + 20, last)))
        found += store["n"].values(keys).to_pylist()
        assert set(store["text"].values(keys).to_pylist()) <= {TEXT, None}
    return found


def steps(store: Store) -> int:
    return sum(delta.is_step for delta in store._pending)


LISTS = {"l": ps.ListState("long"), "s": ps.ListState("string"), "t": ps.ListState("long")}
SOME = 32768
LISTS_LIMIT = 4 << 20


def fill_lists(store: Store, batches: int, keys: tuple[int, ...] = (7,)) -> int:
    """Append that many batches of `SOME` numbers, each in an epoch of its own."""
    for at in range(0, batches * SOME, SOME):
        for key in keys:
            store["l"].extend(store.keys([key]), [np.arange(at, at + SOME)])
            store["s"].extend(store.keys([key]), [[f"item {at + i}" for i in range(50)]])
        store.checkpoint()
        assert store._backend.below._let_leave(1)
        assert store.stats().committed_bytes <= LISTS_LIMIT
    return batches * SOME


@pytest.fixture
def trouble(monkeypatch: pytest.MonkeyPatch) -> Trouble:
    return Trouble(monkeypatch)


def test_state_is_larger_than_memory(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 0, 1000)
        assert steps(store) > 0 and store.stats().committed_bytes <= LIMIT
        assert store.checkpoint() == 1
        assert steps(store) == 0 and store.stats().keys < 500
        assert numbers(store, 1010) == [*range(1000), *[0] * 10]
        store["n"].add(store.keys([3, 999]), 1)
        store.delete([5])
        assert store.checkpoint() == 2
    with opened(tmp_path) as store:
        assert (store.stats().keys, len(store), len(set(store))) == (0, 999, 999)
        found = store.to_arrow().sort_by("key")
        wanted = [i + (i in (3, 999)) for i in range(1000) if i != 5]
        assert found["n"].to_pylist() == wanted
        assert store.stats().keys == 0, "a scan brings no row into memory"
        store.set_current_key(999)
        assert (store["n"].value(), store["text"].value()) == (1000, TEXT)
        assert store.stats().committed_bytes <= LIMIT


def test_a_rollback_undoes_steps(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 0, 100)
        store.checkpoint()
        before = names(tmp_path)
        fill(store, 50, 800)
        assert steps(store) > 0 and names(tmp_path) > before
        old = store.keys([60])
        store.rollback()
        assert names(tmp_path) == before
        with pytest.raises(ps.errors.StaleKeyBatchError):
            store["n"].values(old)
        assert numbers(store, 110) == [*range(100), *[0] * 10]
        fill(store, 100, 800)
        store.checkpoint()
        assert numbers(store, 800) == list(range(800))
        store.rollback()
        assert numbers(store, 800) == list(range(800))


def test_steps_without_a_checkpoint_are_gone(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 0, 800)
        assert steps(store) > 0
        store.rollback()
        assert (len(store), names(tmp_path, "state")) == (0, set())
        fill(store, 0, 800)
    assert names(tmp_path, "state") == set()
    with opened(tmp_path) as store:
        assert (store.epoch, len(store)) == (0, 0)


def test_many_steps_become_one_delta(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for _ in range(4):
            fill(store, 0, 1000)
        # About fifty rows fit at a time, and each step is of as many.
        made = store._backend.below._steps
        assert 80 < made < 120 and 0 < 4 * steps(store) < made
        assert len(names(tmp_path, "state")) == len(store._pending)
        store.checkpoint()
    with opened(tmp_path) as store:
        assert numbers(store, 1000) == [4 * i for i in range(1000)]


def test_batches_and_the_current_key_outlive_steps(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        first = store.keys([1, 2, 3])
        store["n"].add(first, 1)
        store.set_current_key(2)
        fill(store, 100, 900)
        assert steps(store) > 0
        assert store["n"].value() == 1
        store["n"].add(first, 1)
        assert store["n"].values(first).to_pylist() == [2, 2, 2]
        assert len(first) == 3
        store.checkpoint()
        with pytest.raises(ps.errors.StaleKeyBatchError):
            store["n"].values(first)


def test_a_batch_that_does_not_fit_says_how_much_would(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 0, 1000)
        store.checkpoint()
        with pytest.raises(MemoryLimitError, match="pass fewer keys at a time") as caught:
            store._backend.prefetch(range(1000))
        fits = caught.value.keys
        assert fits is not None and 0 < fits < 1000
        assert store["n"].values(store.keys(range(fits // 2))).to_pylist() == [*range(fits // 2)]
        store["n"].add(store.keys([1]), 1)
        assert store.checkpoint() == 2


def test_errors_say_which_store_it_is(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"the store {tmp_path}: limit_bytes"):
        opened(tmp_path, limit_bytes=5)
    store = opened(tmp_path)
    store.close()
    for use in (len, Store.stats, lambda store: store.keys([1])):
        with pytest.raises(ClosedError, match=rf"the store {tmp_path}: the table"):
            use(store)


def test_keys_are_brought_before_they_are_used(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 0, 1000)
        store.checkpoint()
    with opened(tmp_path) as store:
        found = store.prefetch(range(990, 1010))
        looked_up = store._backend.below.looked_up
        assert (store.stats().keys, looked_up) == (10, 20)
        for keys in (range(995), range(1000, 1010)):
            store["n"].values(store.keys(keys[-5:]))
        store.set_current_key(999)
        assert store["n"].value() == 999
        assert store["n"].values(found).to_pylist() == [*range(990, 1000), *[0] * 10]
        # Which keys do not exist is known to the batch alone.
        assert store._backend.below.looked_up == looked_up + 5
        with pytest.raises(MemoryLimitError) as error:
            store.prefetch(range(1000))
        assert error.value.keys is not None and 0 < error.value.keys < 1000
    with opened(tmp_path / "heap", home="heap", limit_bytes=0) as store:
        assert len(store.prefetch([1, 2])) == 2 and len(store) == 0


def test_a_batch_that_does_not_fit_is_done_in_parts(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store["text"].update_all(store.keys(range(1000)), TEXT)
        store["n"].add(store.keys(range(1000)), [*range(1000)])
        made = steps(store)
        assert made > 0
        keys = store.keys(range(1000))
        assert store["n"].values(keys).to_pylist() == [*range(1000)]
        assert set(store["text"].values(keys).to_pylist()) == {TEXT}
        store["text"].clear_all(keys)
        store.rollback()
        assert len(store) == 0
        assert store["n"].values(store.keys([1])).to_pylist() == [0]


KINDS: dict[str, tuple[Any, Any, Any]] = {
    "value": (
        ps.ValueState("binary"),
        lambda s, keys, values: s.update_all(keys, values),
        lambda s, keys: s.values(keys).to_pylist(),
    ),
    "list": (
        ps.ListState("binary"),
        lambda s, keys, values: s.extend(keys, [[v, v[:9]] for v in values]),
        lambda s, keys: [items[-2] for items in s.lists(keys).to_pylist()],
    ),
    "map": (
        ps.MapState("string", "binary"),
        lambda s, keys, values: s.put_entries(keys, ["m" * 20] * len(values), values),
        lambda s, keys: [dict(entries)["m" * 20] for entries in s.maps(keys).to_pylist()],
    ),
    "entry": (
        ps.MapState("string", "binary"),
        lambda s, keys, values: s.put_entries(keys, ["m"] * len(values), values),
        lambda s, keys: s.get_entries(keys, ["m"] * len(keys)).to_pylist(),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_all_sizes(kind: str, tmp_path: Path) -> None:
    """In batches of several times the limit, which takes no more memory than that."""
    limit_bytes = 2 << 20
    state, write, read = KINDS[kind]
    sizes = [1, 40, 700, 5000, 30_000, 90_000]
    with ps.open(
        tmp_path / "s", key="long", states={"s": state}, limit_bytes=limit_bytes, home="disk"
    ) as store:
        most = 0
        for epoch in range(2):
            values = [bytes([i, epoch]) * (sizes[(i + epoch) % 6] // 2 + 1) for i in range(180)]
            write(store["s"], store.keys(range(180)), values)
            most = max(most, store.stats().committed_bytes)
            assert read(store["s"], store.keys(range(180))) == values
            most = max(most, store.stats().committed_bytes)
            store.checkpoint()
            for at in (0, 50, 170):
                write(store["s"], store.keys([at]), values[at : at + 1])
        assert read(store["s"], store.keys(range(180))) == values
        assert most < limit_bytes * 1.05


def test_one_value_that_cannot_fit_is_said(tmp_path: Path) -> None:
    states = {"s": ps.ValueState("binary"), "l": ps.ListState("binary")}
    with ps.open(
        tmp_path / "s", key="long", states=states, limit_bytes=1 << 20, home="disk"
    ) as store:
        store["s"].update_all(store.keys([1, 2]), b"x" * 100)
        words = r"state 's': 2\.0 MiB for a key.*the table may have 1\.0 MiB.*raise limit_bytes"
        with pytest.raises(MemoryLimitError, match=words):
            store["s"].update_all(store.keys([3]), b"x" * (2 << 20))
        store.set_current_key(1)
        with pytest.raises(MemoryLimitError, match=r"state 'l': 2\.0 MiB"):
            store["l"].add(b"y" * (2 << 20))
        # Nothing has changed, and the epoch goes on.
        store["l"].add(b"y")
        assert store["s"].values(store.keys([1, 2, 3])).to_pylist() == [b"x" * 100] * 2 + [None]
        # What was done in part can be repeated, or is undone.
        with pytest.raises(MemoryLimitError, match="state 's'"):
            store["s"].update_all(store.keys([4, 5]), [b"z", b"x" * (2 << 20)])
        store["s"].update_all(store.keys([4, 5]), [b"z", b"x"])
        with pytest.raises(MemoryLimitError, match="state 'l'"):
            store["l"].append(store.keys([4, 5]), [b"z", b"x" * (2 << 20)])
        with pytest.raises(PoisonedError):
            store["s"].values(store.keys([4]))
        store.rollback()
        assert len(store) == 0


def test_reading_absent_keys_makes_no_step(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 0, 600)
        store.checkpoint()
        store["n"].add(store.keys([3]), 1)
        before, here = steps(store), store.stats().keys
        absent = store.keys(range(10_000, 60_000))
        assert not any(store["n"].values(absent).to_pylist())
        assert steps(store) == before and store.stats().keys >= here


def test_a_small_store_stays_in_memory(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for step in range(5):
            fill(store, 0, 20)
            store.checkpoint()
            assert store.stats().keys == 20 and step + 1 == store.epoch
        assert store._backend._table.is_whole


def test_readers_see_the_last_checkpoint(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        assert store.reader().get(1) is None
        fill(store, 0, 600)
        with store.reader() as reader:
            assert (reader.get(1), list(reader)) == (None, [])
        store.checkpoint()
        with store.reader() as reader:
            fill(store, 0, 600)
            assert reader.get(7) == {"n": 7, "text": TEXT}
            for _ in range(5):
                fill(store, 600, 620)
                store.checkpoint()
            assert reader.to_arrow().sort_by("key")["n"].to_pylist() == list(range(600))
            assert reader.get(600) is None
        with pytest.raises(ps.errors.ClosedError):
            reader.get(7)


def test_homes_change(tmp_path: Path) -> None:
    options: dict[str, Any] = {"limit_bytes": 0}
    with opened(tmp_path, home="heap", **options) as store:
        fill(store, 0, 300)
        store.checkpoint()
        fill(store, 300, 600)
        store.checkpoint()
    with opened(tmp_path) as store:
        assert numbers(store, 600) == list(range(600))
        assert store.checkpoint() == 3, "the files with guides"
        assert store.checkpoint() == 3
    with opened(tmp_path) as store:
        fill(store, 600, 700)
        assert store.checkpoint() == 4
    with opened(tmp_path, home="heap", **options) as store:
        assert numbers(store, 700) == list(range(700))
        for _ in range(5):
            store["n"].add(store.keys(range(700)), 1)
            store.checkpoint()
    with opened(tmp_path, states=STATES | {"words": ps.ListState("string")}) as store:
        assert numbers(store, 700) == [i + 5 for i in range(700)]
        store["words"].append(store.keys([3]), ["x"])
        store.checkpoint()
        assert store["words"].lists(store.keys([3, 4])).to_pylist() == [["x"], []]


def test_state_that_was_dropped_stays_dropped(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 0, 100)
        store.checkpoint()
    few = {"n": STATES["n"]}
    with pytest.raises(ps.errors.UnclaimedStateError, match="text"):
        opened(tmp_path, states=few)
    with opened(tmp_path, states=few, allow_unclaimed_state=True) as store:
        assert store.checkpoint() == 2
    with opened(tmp_path) as store:
        assert store["text"].values(store.keys([1])).to_pylist() == [None]
        assert numbers(store, 100) == list(range(100))


def test_all_kinds_come_back(tmp_path: Path) -> None:
    states: dict[str, Any] = STATES | {
        "words": ps.ListState("string"),
        "visits": ps.MapState("string", "long"),
        "thing": ps.ValueState(object),
        "mean": ps.AggregatingState(ps.Mean()),
    }
    with opened(tmp_path, states=states) as store:
        for key in range(600):
            store.set_current_key(key)
            store["text"].update(TEXT)
            store["words"].add_all(["a", str(key)])
            store["visits"].put("x", key)
            store["thing"].update({"key": key})
            store["mean"].add(float(key))
            store["mean"].add(0.0)
        assert steps(store) > 0
        store.checkpoint()
        for key in (0, 599, 300):
            store.set_current_key(key)
            assert store["words"].get() == ["a", str(key)]
            assert store["visits"].get("x") == key
            assert store["thing"].value() == {"key": key}
            assert store["mean"].get() == key / 2
        rows = store.to_arrow().select(["key", "words", "visits", "mean"]).to_pylist()
        assert sorted(rows, key=lambda row: int(row["key"])) == [
            {"key": k, "words": ["a", str(k)], "visits": [("x", k)], "mean": k / 2}
            for k in range(600)
        ]


def test_time_goes_on(tmp_path: Path) -> None:
    now = [1_000_000]
    states: dict[str, Any] = {"text": ps.ValueState("string", ttl=ps.StateTtl(seconds=10))}
    with opened(tmp_path, states=states, clock=lambda: now[0]) as store:
        for at in range(0, 600, 20):
            store["text"].update_all(store.keys(range(at, at + 20)), TEXT)
        store.checkpoint()
        now[0] += 5_000
        store.checkpoint()
        store["text"].update_all(store.keys([1]), TEXT)
        store.checkpoint()
        now[0] += 5_000
        store["text"].update_all(store.keys([2]), TEXT)
        store.checkpoint()
        assert store["text"].values(store.keys([1, 2, 3, 599])).to_pylist() == [
            TEXT,
            TEXT,
            None,
            None,
        ]
        found: Any = store.to_arrow()["key"].to_pylist()
        assert sorted(store) == sorted(found) == [1, 2]
        assert len(store) == 2


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_a_damaged_file_is_named_and_the_store_unharmed(tmp_path: Path, damage: str) -> None:
    with opened(tmp_path) as store:
        fill(store, 0, 800)
        store.checkpoint()
    with opened(tmp_path) as store:
        store["n"].add(store.keys([10_000]), 1)
        files = sorted((tmp_path / "state").rglob("*.*"), key=lambda path: path.stat().st_size)
        whole = files[-1].read_bytes()
        damaged = bytearray(whole)
        for at in range(4096, len(whole) - 4096, 512):
            damaged[at] ^= 1
        files[-1].write_bytes(damaged if damage == "flip" else damaged[:4096])
        with pytest.raises(CorruptFileError, match=files[-1].name):
            numbers(store, 800)
        assert store["n"].values(store.keys([10_000])).to_pylist() == [1]
        files[-1].write_bytes(whole)
        assert numbers(store, 800) == list(range(800))
        assert store.checkpoint() == 2


def test_a_file_that_is_removed_is_named_when_it_is_opened(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 0, 800)
        store.checkpoint()
        for path in (tmp_path / "state").rglob("*.*"):
            path.unlink()
        assert numbers(store, 800) == list(range(800)), "it has its files open"
    with pytest.raises(CheckpointError, match=r"\.(delta|base)"):
        opened(tmp_path)


def test_a_full_disk_loses_nothing(tmp_path: Path, trouble: Trouble) -> None:
    """Neither in a step nor in a checkpoint; rows in no file of the folder are read, too."""
    with opened(tmp_path) as store:
        fill(store, 0, 600)
        store.checkpoint()
        fill(store, 600, 640)
        store.delete([1])
        trouble.suffix = ".delta"
        with pytest.raises(NoSpaceError):
            store.checkpoint()
        assert numbers(store, 640) == [0, 0, *range(2, 640)]
        with pytest.raises(NoSpaceError):
            fill(store, 640, 1000)
        assert numbers(store, 640) == [0, 0, *range(2, 640)]
        store.rollback()
        assert numbers(store, 660) == [0, 0, *range(2, 640), *[0] * 20]
        trouble.suffix = ""
        assert store.checkpoint() == 2
        fill(store, 640, 1000)
        assert store.checkpoint() == 3
    with opened(tmp_path) as store:
        assert numbers(store, 1000) == [0, 0, *range(2, 1000)]


class NoFiles:
    """Has files below a table fail to open, while `are` says so."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.are, self.failed, call = False, 0, FilesBelow.open

        def opened(files: FilesBelow, *args: Any) -> None:
            if self.are:
                self.failed += 1
                raise SystemCallError(24, f"{files.named[-1].path}: Too many open files")
            call(files, *args)

        patch.setattr(FilesBelow, "open", opened)


USES: dict[str, Callable[[Store], Any]] = {
    "scan": lambda store: store.to_arrow(),
    "len": len,
    "iteration": list,
    "current": lambda store: store.set_current_key(3),
    "delete": lambda store: store.delete([10_000]),
    "keys": lambda store: store["n"].values(store.keys(range(0, 600, 100))),
}


@pytest.mark.parametrize("use", USES)
def test_files_that_cannot_be_opened_for_a_while_leave_nothing_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: str
) -> None:
    """What needs the files raises as long as that is so; then it has all of them.

    It is so behind a checkpoint, behind a step, and when steps are undone.
    """
    no_files = NoFiles(monkeypatch)
    with opened(tmp_path) as store:
        fill(store, 0, 640)
        no_files.are = True
        assert store.checkpoint() == 1, "it is durable"
        with pytest.raises(SystemCallError, match="Too many open files"):
            USES[use](store)
        no_files.are = False
        assert scanned(store) == list(range(640))
        USES[use](store)
        store.checkpoint()
        no_files.are = True
        with pytest.raises(SystemCallError, match="Too many open files"):
            fill(store, 640, 1000)
        assert steps(store) == 1
        no_files.are = False
        USES[use](store)
        there = len(store)
        assert there > 640
        assert scanned(store) == list(range(there))
        assert numbers(store, there) == list(range(there))
        fill(store, 1000, 2000)
        assert steps(store) > 0
        store.rollback()
        no_files.are = True
        with pytest.raises(SystemCallError, match="Too many open files"):
            USES[use](store)
        no_files.are = False
        USES[use](store)
        assert (len(store), numbers(store, 640)) == (640, list(range(640)))
    assert no_files.failed > 3


def test_what_is_in_no_file_and_cannot_be_put_into_memory_as_one_is_not_left_out(
    tmp_path: Path, trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as store:
        fill(store, 0, 600)
        store.checkpoint()
        fill(store, 600, 640)
        trouble.suffix = ".delta"
        make = os.memfd_create

        def refused(name: str) -> int:
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(os, "memfd_create", refused)
        with pytest.raises(NoSpaceError):
            store.checkpoint()
        for use in (USES["scan"], USES["len"], USES["keys"], USES["current"]):
            with pytest.raises(CheckpointError, match="in no file yet"):
                use(store)

        def limited(name: str) -> int:
            # No byte can be written; that is noticed when what was buffered is.
            descriptor = make(name)
            reading = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
            os.dup2(reading, descriptor)
            os.close(reading)
            return descriptor

        monkeypatch.setattr(os, "memfd_create", limited)
        for use in (USES["scan"], USES["len"], USES["keys"], USES["current"]):
            with pytest.raises(CheckpointError, match="in no file yet"):
                use(store)
        monkeypatch.setattr(os, "memfd_create", make)
        assert (len(store), numbers(store, 640)) == (640, list(range(640)))
        trouble.suffix = ""
        assert store.checkpoint() == 2


def test_a_checkpoint_opens_only_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    guided = core.GuidedFile

    def opening(*args: Any) -> core.GuidedFile:
        made.append(args[2])
        return guided(*args)

    monkeypatch.setattr(core, "GuidedFile", opening)
    with opened(tmp_path) as store:
        for at in range(3):
            fill(store, 200 * at, 200 * at + 200)
            store.checkpoint()
        first = len(made)
        for at in range(30):
            store["n"].add(store.keys([at]), 0)
            store.checkpoint()
        new = [path for path in made[first:] if path.endswith(".delta")]
        assert len(new) == 30
        assert len(made) == len(set(made)), "no file is opened twice"
        with store.reader() as reader:
            assert len(list(reader)) == 600
        assert len(made) == len(set(made))


def test_scans_go_on_when_the_files_are_removed(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 0, 600)
        store.checkpoint()
        fill(store, 600, 620)
        for path in (tmp_path / "state").rglob("*.*"):
            path.unlink()
        assert scanned(store) == list(range(620))
        assert (len(store), sorted(store)) == (620, list(range(620)))


def test_a_store_that_was_converted_and_not_written_leaves_nothing(tmp_path: Path) -> None:
    with opened(tmp_path, home="heap", limit_bytes=0) as store:
        fill(store, 0, 100)
        store.checkpoint()
    before = names(tmp_path)
    for _ in range(2):
        with opened(tmp_path) as store:
            assert numbers(store, 100) == list(range(100))
            assert names(tmp_path) > before
        assert names(tmp_path) == before
    with opened(tmp_path) as store:
        assert store.checkpoint() == 2
    with opened(tmp_path) as store:
        assert numbers(store, 100) == list(range(100))


@FORKS
@pytest.mark.parametrize("converted", [False, True])
def test_a_forked_child_that_closes_leaves_its_parents_files(
    tmp_path: Path, converted: bool
) -> None:
    """As a child does that leaves the block of the store's `with`."""
    if converted:
        with opened(tmp_path, home="heap", limit_bytes=0) as store:
            fill(store, 0, 20)
            store.checkpoint()
    with opened(tmp_path) as store:
        if not converted:
            fill(store, 0, 500)
            assert steps(store) > 0
        before = names(tmp_path)

        def leave() -> None:
            for refused in (store.checkpoint, store.rollback):
                with pytest.raises(ClosedError, match="does not survive a fork"):
                    refused()
            store.close()

        _, status = os.waitpid(forked((0, 1, 2), leave), 0)
        assert status == 0
        assert names(tmp_path) == before
        store.checkpoint()
    with opened(tmp_path) as store:
        assert len(store) == 20 if converted else 500


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="limit_bytes of a table on disk"):
        opened(tmp_path / "a", limit_bytes=1000)
    with pytest.raises(InvalidArgumentError, match="home is 'heap' or 'disk'"):
        opened(tmp_path / "a", home="shared")
    assert not (tmp_path / "a").exists()


def test_a_backend_alone_is_like_one_on_the_heap(tmp_path: Path) -> None:
    with ps.KeyedStateBackend("long", states=STATES, home="disk", limit_bytes=LIMIT) as backend:
        with pytest.raises(MemoryLimitError):
            for at in range(0, 1_000_000, 1000):
                backend["n"].add(backend.keys(range(at, at + 1000)), 1)
        rows = backend.stats().keys
        assert rows > 1000
        with open(tmp_path / "1.delta", "wb") as out, backend.seal() as snapshot:
            snapshot.write(out)
        backend.below.set_files([(str(tmp_path / "1.delta"), 0, 127)])
        for at in range(0, rows, 1000):
            backend["n"].add(backend.keys(range(rows + at, rows + at + 500)), 1)
            if at % 2000 == 0:
                path = tmp_path / f"{at}-2.delta"
                with open(path, "wb") as out, backend.seal() as snapshot:
                    snapshot.write(out)
                backend.below.set_files([*backend.below.files, (str(path), 0, 127)])
        assert backend.stats().committed_bytes <= LIMIT
        assert (
            backend["n"].values(backend.keys(range(0, rows, rows // 50))).to_pylist()[:50]
            == [1] * 50
        )


def test_a_backend_is_restored_without_reading_rows(tmp_path: Path) -> None:
    with ps.KeyedStateBackend("long", states=STATES) as backend:
        backend["n"].add(backend.keys(range(100)), 1)
        with open(tmp_path / "plain.delta", "wb") as out, backend.seal() as snapshot:
            snapshot.write(out)
        lineage = backend.lineage()
    with (
        ps.KeyedStateBackend("long", states=STATES, home="disk") as backend,
        pytest.raises(InvalidArgumentError, match="path="),
    ):
        backend.restore([tmp_path / "plain.delta"])
    with ps.KeyedStateBackend("long", states=STATES, home="disk", path=tmp_path) as backend:
        assert backend.restore([tmp_path / "plain.delta"]) == 100
        assert (backend.stats().keys, len(backend), backend.lineage()) == (0, 100, lineage)
        assert backend["n"].values(backend.keys([5, 500])).to_pylist() == [1, 0]
        assert pa.table(backend.to_arrow()).num_rows == 100
        [base] = backend.below.files
    with ps.KeyedStateBackend("long", states=STATES, home="disk") as backend:
        backend.restore([base.path])
        assert backend["n"].values(backend.keys([5, 500])).to_pylist() == [1, 0]


def test_figures_of_the_cache(tmp_path: Path) -> None:
    """What is in memory, what was looked up, and what the history says of it."""
    states = {"n": ps.ValueState("long", default=0)}
    with ps.open(tmp_path, key="long", states=states, home="disk", limit_bytes=64 << 20) as store:
        store["n"].add(store.keys(range(1000)), 1)
        store.checkpoint()
    with ps.open(tmp_path, key="long", states=states, home="disk", limit_bytes=64 << 20) as store:
        begin = store.disk_stats()
        assert (begin.rows_in_memory, begin.estimated_keys, begin.cache_misses) == (0, 1000, 0)
        assert begin.hit_rate is None and begin.files_per_lookup is None
        store["n"].add(store.keys([1, 2, 3, 3, 5000]), 1)  # a key twice, and a new one
        stats = store.disk_stats()
        assert (stats.cache_misses, stats.absent_keys, stats.rows_in_memory) == (4, 1, 4)
        assert stats.files_asked >= 3 and stats.reads >= 1 and stats.read_bytes > 0
        assert stats.guide_bytes > 0 and stats.cache_hits == 1 and stats.hit_rate == 0.2
        store["n"].values(store.keys([1, 2, 3]))
        assert store.disk_stats().cache_hits == 4
        store.checkpoint()
        store["n"].values(store.keys([1, 9]))  # by another stack of files
        after = store.disk_stats()
        assert (after.cache_hits, after.cache_misses) == (5, 5)
        assert after.files_asked > stats.files_asked and after.read_bytes > stats.read_bytes
        store["n"].add(store.keys([1]), 1)
        store.checkpoint()
    [first, second, third] = ps.history(tmp_path).records
    [one], [two], [three] = first.operators, second.operators, third.operators
    assert (one.hit_rate, one.rows_in_memory) == (None, 0)
    assert (two.cache_hits, two.cache_misses, two.rows_in_memory) == (4, 4, 4)
    assert (three.cache_hits, three.cache_misses) == (2, 1)
    assert two.keys >= 1001 and two.files_per_lookup is not None
    with pytest.raises(ClosedError):
        store.disk_stats()
    with (
        ps.open(tmp_path / "heap", key="long", states=states) as heap,
        pytest.raises(InvalidArgumentError, match="all rows in memory"),
    ):
        heap.disk_stats()


def test_a_list_is_longer_than_memory(tmp_path: Path) -> None:
    with opened(tmp_path, states=LISTS, limit_bytes=LISTS_LIMIT) as store:
        n = fill_lists(store, 48)
        assert n * 8 > 2 * LISTS_LIMIT
        store.set_current_key(7)
        listed = store["l"]
        assert len(listed) == listed.below() == n and len(store["s"]) == 48 * 50
        looked_up = store._backend.below.looked_up
        total = 0
        for item in listed:
            total += item
        assert total == n * (n - 1) // 2
        assert listed[n // 2 : n // 2 + 3] == [n // 2, n // 2 + 1, n // 2 + 2]
        assert (
            listed[-1] == n - 1 and listed[0] == 0 and store["s"][2399] == f"item {47 * SOME + 49}"
        )
        assert (listed.to_numpy() == np.arange(n)).all() and not store["t"].get()
        many = listed.lists(store.keys([7, 8, 7]))
        assert many.offsets.to_pylist() == [0, n, n, 2 * n]
        assert many.values.to_numpy()[n - 1 : n + 2].tolist() == [n - 1, 0, 1]
        assert [len(x) for x in store["s"].lists(store.keys([7, 8])).to_pylist()] == [2400, 0]
        assert store._backend.below.looked_up == looked_up + 2, "key 8, twice"
        # What is appended is read behind what lies in files, also in the epochs after.
        store.set_current_key(7)
        listed.add_all([-1, -2])
        assert listed[-3:] == [n - 1, -1, -2] and listed.below() == n
        store.checkpoint()
        store.set_current_key(7)
        assert listed[-3:] == [n - 1, -1, -2] and len(listed) == n + 2
        listed.update([5])
        assert listed.get() == [5] and listed.below() == 0
        store.rollback()
        store.set_current_key(7)
        assert len(listed) == n + 2 and listed[:2] == [0, 1]
    # With all rows in memory the same files say the same.
    with ps.open(tmp_path, key="long", states=LISTS) as store:
        store.set_current_key(7)
        assert store["l"].get() == [*range(n), -1, -2] and store["l"].below() == 0


@pytest.mark.parametrize("update", ["create_and_write", "read_and_write"])
def test_the_items_of_a_long_list_expire(tmp_path: Path, update: Any) -> None:
    """As on the heap, over jumps of time, merges, roll backs and restarts."""
    now = [0]
    states: dict[str, Any] = {"l": ps.ListState("long", ttl=ps.StateTtl(6400, update=update))}
    given: dict[str, Any] = {"states": states, "clock": lambda: now[0]}
    below = 0
    # Where reading counts as use what it moves has to fit in memory twice.
    many = SOME if update == "create_and_write" else SOME // 8
    for restart in range(3):
        with (
            opened(tmp_path / "disk", limit_bytes=LISTS_LIMIT, **given) as disk,
            ps.open(tmp_path / "heap", key="long", **given) as heap,
        ):
            for step in range(8):
                at = (restart * 8 + step) * many
                for store in (disk, heap):
                    store["l"].extend(store.keys([7]), [np.arange(at, at + many)])
                    if step == 5:
                        store.rollback()
                    store.checkpoint()
                now[0] += [1500, 40, 700, 3000, 0, 2500, 9, 1200][step]
                disk._backend.below._let_leave(1)
                for store in (disk, heap):
                    store.checkpoint()
                    store.set_current_key(7)
                below += disk["l"].below() > 0
                assert len(disk["l"]) == len(heap["l"])
                read = [s["l"].to_numpy() for s in (disk, heap)]
                assert (read[0] == read[1]).all() and len(read[0])
                if step % 3 == 0:
                    assert disk["l"][-1] == heap["l"][-1] == read[0][-1]
                    assert len(disk) == len(heap) == 1
        now[0] += 1000
    assert below


def test_iteration_over_a_long_list_belongs_to_its_key(tmp_path: Path) -> None:
    with opened(tmp_path, states=LISTS, limit_bytes=LISTS_LIMIT) as store:
        n = fill_lists(store, 20)
        store.set_current_key(7)
        items = iter(store["l"])
        assert next(items) == 0
        store.set_current_key(8)
        with pytest.raises(NoCurrentKeyError, match="'l'"):
            sum(items)
        store.set_current_key(7)
        assert sum(store["l"]) == n * (n - 1) // 2


def test_a_damaged_file_is_found_when_its_items_are_read(tmp_path: Path) -> None:
    with opened(tmp_path, states=LISTS, limit_bytes=LISTS_LIMIT) as store:
        n = fill_lists(store, 20)
        store.set_current_key(7)
        damaged = []
        for file in tmp_path.rglob("*"):
            if file.suffix in (".base", ".delta") and file.stat().st_size > 40000:
                with open(file, "r+b") as out:
                    out.seek(20000)
                    byte = out.read(1)
                    out.seek(20000)
                    out.write(bytes([byte[0] ^ 1]))
                damaged.append(file)
        assert damaged
        for read in (store["l"].get, store["l"].to_numpy, lambda: sum(store["l"])):
            with pytest.raises(CorruptFileError, match=r"\.(base|delta)"):
                read()
        with pytest.raises(CorruptFileError):
            store["l"].lists(store.keys([7]))
        # Nothing that needs no items fails, and the epoch goes on.
        store.set_current_key(7)
        store["l"].add(3)
        assert len(store["l"]) == n + 1 and store["l"][-1] == 3


_CONVERTED = """
import sys
import pystate as ps
store = ps.open(
    sys.argv[1], key="long", states={"n": ps.ValueState("long", default=0)},
    home="disk", limit_bytes=2 << 20, allow_unclaimed_state=True,
)
print(len(store.keys(range(10))), store["n"].values(store.keys([0, 7, 199_999])).to_pylist())
store.checkpoint()
"""


def test_files_are_converted_in_little_memory(tmp_path: Path) -> None:
    """The last list was dropped, of a state that a process with that limit cannot hold."""
    states = {"n": STATES["n"], "words": ps.ListState("string")}
    with opened(tmp_path, states=states, home="heap", limit_bytes=0) as store:
        for first in range(0, 200_000, 50_000):
            keys = store.keys(range(first, first + 50_000))
            store["n"].add(keys, list(range(first, first + 50_000)))
            store["words"].append(keys, [f"{k} and more" for k in range(first, first + 50_000)])
        assert store.stats().committed_bytes > 20 << 20
        store.checkpoint()
    environment = {**os.environ, "PYSTATE_MEMORY_LIMIT_BYTES": str(12 << 20)}
    ran = subprocess.run(
        [sys.executable, "-c", _CONVERTED, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["10", "[0,", "7,", "199999]"]
    with opened(tmp_path, states={"n": STATES["n"]}, home="heap", limit_bytes=0) as store:
        rows = store.to_arrow()
        assert rows.column_names == ["key", "n"] and rows["n"].equals(rows["key"])
        assert rows.num_rows == 200_000


def test_a_map_is_larger_than_memory(tmp_path: Path) -> None:
    states = {"m": ps.MapState("long", "string")}
    model: dict[int, str] = {}
    with opened(tmp_path, states=states, limit_bytes=1 << 20) as store:
        for at in range(0, 12_000, 600):
            names = [i * 7 % 12_000 for i in range(at, at + 600)]
            model |= {name: f"{name}" * 20 for name in names}
            values = [model[name] for name in names]
            store["m"].put_entries(store.keys([1] * 600), names, values)
            store.checkpoint()
            store._backend.below._let_leave(1)
        store.set_current_key(1)
        assert store["m"].below() and not store["m"].is_empty()
        store["m"].remove(70)
        store["m"].put(80, "new")
        del model[70]
        model[80] = "new"
        assert (store["m"].get(70), store["m"].get(80), 77 in store["m"]) == (None, "new", True)
        assert dict(store["m"].iter_items()) == model and len(store["m"]) == len(model)
        assert list(store["m"]) == sorted(model)
        got = store["m"].get_entries(store.keys([1] * 3), [70, 80, 90])
        assert got.to_pylist() == [None, "new", model[90]]
        store.checkpoint()
    with opened(tmp_path, states=states, limit_bytes=1 << 20) as store:
        store.set_current_key(1)
        assert dict(store["m"].iter_items()) == model


def test_large_maps_change_homes(tmp_path: Path) -> None:
    """From the heap to the disk and back, with what was put, removed and cleared in each."""
    states = {"m": ps.MapState("long", "string")}
    model: dict[int, dict[int, str]] = {1: {}, 2: {}}

    def change(store: Store, first: int) -> None:
        for key, entries in model.items():
            names = list(range(first, first + 4000, key))
            for at in range(0, len(names), 500):
                some = names[at : at + 500]
                texts = [f"{key} {first} {name} " * 6 for name in some]
                store["m"].put_entries(store.keys([key] * len(some)), some, texts)
                entries |= dict(zip(some, texts, strict=True))
            gone = list(range(first // 2, first + 4000, 7))
            store["m"].remove_entries(store.keys([key] * len(gone)), gone)
            for name in gone:
                entries.pop(name, None)

    def check(store: Store, home: str) -> None:
        for key, entries in model.items():
            store.set_current_key(key)
            assert home == "disk" or not store["m"].below()
            assert dict(store["m"].iter_items()) == entries and len(store["m"]) == len(entries)

    for first, home in enumerate(("heap", "disk", "disk", "heap", "disk", "heap")):
        limit = 0 if home == "heap" else 4 << 20
        with opened(tmp_path, states=states, home=home, limit_bytes=limit) as store:
            if first:
                check(store, home)
                assert store["m"].below() == (home == "disk")
            if first == 2:
                store.set_current_key(2)
                store["m"].clear()
                model[2].clear()
            change(store, first * 1500)
            if first == 3:
                before = {key: dict(entries) for key, entries in model.items()}
                store.checkpoint()
                change(store, 100)
                store.rollback()
                model |= before
            store.checkpoint()
            check(store, home)
