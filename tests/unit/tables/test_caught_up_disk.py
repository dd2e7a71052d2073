"""Tables on disk whose tasks jump between hosts: what they missed comes from deltas."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.checkpoint.refs import FileRef, RangeState, empty_range
from pystate.epochs.merges import merge_range
from pystate.errors import CorruptFileError
from pystate.tables import range_files
from pystate.tables.host import choose_home
from tests.peer import Worker

EMPTY = empty_range(0, 8, 1)
MIB = 1 << 20
TTL = ps.StateTtl(100)
KEYS = 12_000
STATES: dict[str, Any] = {
    "n": ps.ValueState("long", default=0),
    "s": ps.ValueState("string"),
    "m": ps.MapState("long", "long"),
    "l": ps.ListState("long"),
}


class Hosts:
    """A few hosts, each with its own tables, above one checkpoint."""

    def __init__(self, folder: Path, count: int, states: Any = STATES, **options: Any) -> None:
        self.workers = []
        for i in range(count):
            memory, disk = folder / f"{i}" / "memory", folder / f"{i}" / "disk"
            memory.mkdir(parents=True)
            disk.mkdir()
            home = choose_home(b"a" * 32, shm=str(memory), least_bytes=0, fallback=str(disk))
            self.workers.append(
                Worker(
                    str(folder / "ck"),
                    home,
                    table_home="disk",
                    limit_bytes=2 * MIB,
                    groups=8,
                    states=states,
                    **options,
                )
            )

    def stop(self) -> None:
        for each in self.workers:
            each.stop()


def after(base: RangeState, delta: FileRef) -> RangeState:
    return dataclasses.replace(base, id=delta.id, deltas=(*base.deltas, delta))


def merged(one: Worker, base: RangeState, count: int) -> RangeState:
    """The oldest files as one base."""
    parts, rest = base.files[:count], base.files[count:]
    name = f"state/op/00000-00007/{parts[-1].epoch:08d}-{parts[-1].id}.base"
    made = merge_range(one.storage, parts, parts[-1].id, name, 0, 7, block_bytes=4096)
    return dataclasses.replace(base, base=made, deltas=rest)


class Model:
    """What the state is."""

    def __init__(self) -> None:
        self.n: dict[int, int] = {}
        self.m: dict[int, dict[int, int]] = {}
        self.l: dict[int, list[int]] = {}

    def copy(self) -> Model:
        made = Model()
        made.n = dict(self.n)
        made.m = {key: dict(entries) for key, entries in self.m.items()}
        made.l = {key: list(items) for key, items in self.l.items()}
        return made


def change(draw: random.Random, one: Worker, model: Model, epoch: int) -> None:
    """An epoch's work: hot and other keys, of which some are deleted or have a list less."""
    backend: Any = one.attachment.backend
    chosen = [draw.randrange(300) for _ in range(100)]
    chosen += [draw.randrange(KEYS) for _ in range(draw.choice((50, 1500)))]
    chosen = list(dict.fromkeys(chosen))
    batch = backend.keys(pa.array(chosen, pa.int64()))
    backend["n"].add(batch, pa.array([1] * len(chosen), pa.int64()))
    backend["s"].update_all(batch, pa.array(["x" * (k % 50) for k in chosen]))
    for key in chosen:
        model.n[key] = model.n.get(key, 0) + 1
    for key in chosen[:120]:
        backend.set_current_key(key)
        assert dict(backend["m"].items()) == model.m.get(key, {})
        assert list(backend["l"].get()) == model.l.get(key, [])
        what = draw.randrange(6)
        if what == 0:
            backend.delete([key])
            for each in (model.n, model.m, model.l):
                each.pop(key, None)
        elif what == 1:
            backend["l"].clear()
            model.l.pop(key, None)
        else:
            at = draw.randrange(4)
            backend["m"].put(at, epoch)
            backend["l"].add(epoch)
            model.m.setdefault(key, {})[at] = epoch
            model.l.setdefault(key, []).append(epoch)


def check(one: Worker, model: Model, keys: list[int]) -> None:
    backend: Any = one.attachment.backend
    batch = backend.keys(pa.array(keys, pa.int64()))
    assert backend["n"].values(batch).to_pylist() == [model.n.get(key, 0) for key in keys]
    maps = backend["m"].maps(batch).to_pylist()
    assert [dict(entries or ()) for entries in maps] == [model.m.get(key, {}) for key in keys]
    lists = backend["l"].lists(batch).to_pylist()
    assert [items or [] for items in lists] == [model.l.get(key, []) for key in keys]


@pytest.mark.parametrize("seed", range(3))
def test_tasks_that_jump_between_hosts(tmp_path: Path, seed: int) -> None:
    """Each epoch may be another host's; some fail, some are not published, old files are merged."""
    draw, model, base = random.Random(seed), Model(), EMPTY
    hosts = Hosts(tmp_path, 3)
    hows: dict[str, int] = {}
    kept = 0
    for epoch in range(1, 41):
        one = draw.choice(hosts.workers)
        how = one.attach(base)[0]
        hows[how] = hows.get(how, 0) + 1
        if how == "caught up":
            kept += one.stats().keys
            check(one, model, list(range(300)))
        after_it = model.copy()
        change(draw, one, after_it, epoch)
        lot = draw.randrange(8)
        if lot > 0:
            delta = one.seal(epoch)
        one.release()
        if lot > 1:
            model, base = after_it, after(base, delta)
        while len(base.files) > 8 or (len(base.files) > 3 and draw.randrange(4) == 0):
            base = merged(one, base, draw.randrange(2, len(base.files)))
    assert hows["caught up"] > 5
    assert kept > 1000
    for one in hosts.workers:
        one.attach(base)
        for first in range(0, KEYS, 2000):
            check(one, model, list(range(first, first + 2000)))
    hosts.stop()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Worker, Worker, RangeState]]:
    """Two hosts, of which the first one has rows in memory and is an epoch behind."""
    hosts = Hosts(tmp_path, 2)
    base = EMPTY
    for epoch in range(1, 5):
        base = after(base, first_epoch(hosts.workers[0], base, epoch))
    base = after(base, first_epoch(hosts.workers[1], base, 5))
    yield hosts.workers[0], hosts.workers[1], base
    hosts.stop()


def first_epoch(one: Worker, base: RangeState, epoch: int, many: int = 3000) -> FileRef:
    one.attach(base)
    keys = one.attachment.backend.keys(pa.array(range(epoch * 1000, epoch * 1000 + many)))
    one.attachment.backend["n"].add(keys, pa.array([epoch] * many, pa.int64()))
    delta = one.seal(epoch)
    one.release()
    return delta


def value(one: Worker, key: int) -> int:
    backend: Any = one.attachment.backend
    backend.set_current_key(key)
    found: int = backend["n"].value()
    return found


def test_many_records_are_not_read_for_few_rows(
    two: tuple[Worker, Worker, RangeState], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other, base = two
    monkeypatch.setattr(range_files, "_FEW_RECORDS", -8 * 100_000)
    assert one.attach(base)[0] == "opened"
    assert value(one, 5000) == 3 + 4 + 5
    one.release()
    monkeypatch.setattr(range_files, "_FEW_RECORDS", 0)
    base = after(base, first_epoch(other, base, 6))
    assert one.attach(base)[0] == "opened"
    assert value(one, 7000) == 5 + 6


def test_a_damaged_delta_is_an_error_and_the_next_attach_is_whole(
    two: tuple[Worker, Worker, RangeState], tmp_path: Path
) -> None:
    one, _, base = two
    path = tmp_path / "ck" / base.deltas[-1].path
    good = path.read_bytes()
    path.write_bytes(good[: len(good) // 2] + b"x" + good[len(good) // 2 + 1 :])
    with pytest.raises(CorruptFileError, match=base.deltas[-1].path):
        one.attach(base)
    path.write_bytes(good)
    assert one.attach(base)[0] == "caught up"
    assert value(one, 5000) == 3 + 4 + 5


def test_lists_that_expire_begin_anew(tmp_path: Path) -> None:
    """What merges leave out of them others begin at the first number once more."""
    hosts = Hosts(tmp_path, 2, {"l": ps.ListState("long", ttl=TTL), "n": STATES["n"]})
    one, other = hosts.workers
    base = after(EMPTY, first_epoch(one, EMPTY, 1))
    one.attach(base)
    one.release()
    base = after(base, first_epoch(other, base, 2))
    assert one.attach(base)[0] == "opened"
    assert value(one, 2500) == 3
    hosts.stop()


def test_a_table_that_has_all_rows_has_them_afterwards(tmp_path: Path) -> None:
    """It is given those of the others, too."""
    hosts = Hosts(tmp_path, 2)
    one, other = hosts.workers
    base = after(EMPTY, first_epoch(one, EMPTY, 1, 100))
    base = after(base, first_epoch(other, base, 2, 100))
    assert one.attach(base)[0] == "caught up"
    assert not one.attachment.backend.below.are_any
    assert one.stats().keys == 200
    assert value(one, 2050) == 2
    hosts.stop()
