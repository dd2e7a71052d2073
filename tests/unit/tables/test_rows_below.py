"""What comes out of the files below a table, and what it becomes there."""

from __future__ import annotations

import gc
import os
import uuid
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.base.memory import process_budget
from pystate.errors import CheckpointError, LineageError
from pystate.state.operator_spec import OperatorSpec
from pystate.tables import backend as backend_module
from pystate.tables import rows_below
from pystate.tables.backend import KeyedStateBackend
from pystate.tables.below import FileBelow, FilesBelow
from pystate.tables.options import DISK, TableOptions
from pystate.tables.rows_below import RowsBelow
from pystate.types.arrays import hash_keys, key_groups
from pystate.types.keys import parse_key

NOW = 1_000_000
TTL = ps.StateTtl(40, update="read_and_write")


def on_disk(folder: Path, state: ps.State) -> ps.KeyedStateBackend:
    return ps.KeyedStateBackend("long", states={"s": state}, home="disk", path=folder)


def seal(backend: ps.KeyedStateBackend, folder: Path) -> Path:
    before = backend.lineage()
    assert before is not None
    lineage = ps.Lineage(uuid.uuid4().bytes, before.id, before.epoch + 1, 7)
    path = folder / f"{lineage.epoch}.delta"
    with backend.seal(lineage) as snapshot, open(path, "wb") as out:
        snapshot.write(out)
    return path


KINDS: dict[str, tuple[Callable[..., ps.State], Callable[..., Any], Callable[..., Any]]] = {
    "value": (ps.ValueState, lambda s, k: s.update_all(k, [7]), lambda s, k: s.values(k)),
    "list": (ps.ListState, lambda s, k: s.append(k, [7]), lambda s, k: s.lists(k)),
    "map": (
        lambda type_, **more: ps.MapState("long", type_, **more),
        lambda s, k: s.put_entries(k, [5], [7]),
        lambda s, k: s.maps(k),
    ),
}


@pytest.mark.parametrize("before", [TTL, None], ids=["timed", "untimed"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_time_that_a_row_gets_is_a_change_of_it(
    kind: str, before: ps.StateTtl | None, tmp_path: Path
) -> None:
    """What files have without a time lives from its first use on, not from each time it comes."""
    make, write, read = KINDS[kind]
    with on_disk(tmp_path, make("long", ttl=before)) as old:
        write(old["s"], old.keys([1]))
        first = seal(old, tmp_path)
    with on_disk(tmp_path, make("long", ttl=TTL)) as made:
        made.restore([first])
        made.set_clock(processing_time=NOW)
        assert read(made["s"], made.keys([1])).to_pylist()[0]
        assert made.dirty
        second = seal(made, tmp_path)
        groups = (0, made.max_parallelism - 1)
        made.below.set_files([*made.below.files, (str(second), *groups)])
        assert made.below._make_room(1000, True) and made.stats().keys == 0
        made.set_clock(processing_time=NOW + 40)
        assert not read(made["s"], made.keys([1])).to_pylist()[0]


# ---- which files lie below, and what fails on the way --------------------------------------------

STATES: dict[str, Any] = {
    "n": ps.ValueState("long", default=0),
    "text": ps.ValueState("string"),
}


class BrokenError(Exception):
    """What the tests have fail."""


class Refusal:
    """Has calls fail that go with making a table anew, from number `at` on; counts them."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int, *, once: bool) -> None:
        self.at, self.once, self.count = at, once, 0
        for owner, name in (
            (backend_module, "core_schema"),
            (FilesBelow, "open"),
            (FilesBelow, "stack"),
            (RowsBelow, "_set_stack"),
        ):
            patch.setattr(owner, name, self.counted(getattr(owner, name)))

    def step(self) -> None:
        self.count += 1
        if self.count - 1 == self.at or (self.count > self.at >= 0 and not self.once):
            raise BrokenError

    def counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **named: Any) -> Any:
            self.step()
            found = call(*args, **named)
            self.step()
            return found

        return wrapped


def filled(folder: Path, keys: int = 50, **options: Any) -> ps.KeyedStateBackend:
    """A backend with rows in a file and in memory, of which nothing has changed since."""
    backend = ps.KeyedStateBackend("long", states=STATES, home="disk", path=folder, **options)
    backend["n"].add(backend.keys(range(keys)), 5)
    backend["text"].update_all(backend.keys(range(keys)), "x")
    backend.below.set_files([(str(seal(backend, folder)), 0, 127)])
    return backend


def numbers(backend: ps.KeyedStateBackend, keys: int = 50) -> list[int]:
    found: list[int] = backend["n"].values(backend.keys(range(keys))).to_pylist()
    return found


def uses() -> dict[str, Callable[[ps.KeyedStateBackend], Any]]:
    def current(backend: ps.KeyedStateBackend) -> Any:
        backend.set_current_key(7)
        return backend["n"].value()

    def deleted(backend: ps.KeyedStateBackend) -> Any:
        backend.delete([1])
        return len(backend)

    return {
        "keys": lambda b: numbers(b),
        "current": current,
        "delete": deleted,
        "len": len,
        "iteration": lambda b: sorted(b),
        "scan": lambda b: sorted(b.to_arrow()["n"].to_pylist()),
        "existing": lambda b: sum(map(len, b.existing())),
        "room": lambda b: b.below._make_room(10, True),
    }


@pytest.mark.parametrize("once", [True, False], ids=["once", "for-long"])
@pytest.mark.parametrize("how", ["room", "reset"])
def test_a_table_that_cannot_be_made_anew_is_never_seen_empty(
    how: str, once: bool, tmp_path: Path
) -> None:
    """Wherever something is refused, a use raises, or says what the files have."""
    refused = 0
    for name, use in uses().items():
        folder = tmp_path / name
        folder.mkdir()
        with filled(folder) as backend:
            wanted, files, lineage = use(backend), backend.below.files, backend.lineage()
            backend.rollback()
            for at in range(100):
                with pytest.MonkeyPatch.context() as patch:
                    refusal = Refusal(patch, at, once=once)
                    try:
                        if how == "room":
                            assert backend.below._make_room(10, True)
                        else:
                            backend.below.reset(lineage, files)
                        assert use(backend) == wanted
                        assert refusal.count <= at, (name, at)
                    except BrokenError:
                        refused += 1
                    if not once and refusal.count > at:
                        # Also a return to the files is no way to an empty table.
                        backend.below.reset(lineage, files)
                        with pytest.raises(BrokenError):
                            numbers(backend)
                if refusal.count <= at:
                    break
                assert (backend.lineage(), backend.below.files) == (lineage, files)
                assert use(backend) == wanted, (name, at)
                backend.rollback()
    assert refused > 8 * 6


def test_one_row_here_does_not_hide_those_in_files(tmp_path: Path) -> None:
    with filled(tmp_path) as old:
        [file] = old.below.files
        lineage = old.lineage()
    with ps.KeyedStateBackend("long", states=STATES, home="disk") as backend:
        backend["n"].add(backend.keys([1000]), 1)
        backend.seal(lineage).close()
        backend.below.set_files([file])
        assert numbers(backend) == [5] * 50
        assert len(backend) == 50


def test_a_table_with_all_rows_stays_whole_if_that_is_said(tmp_path: Path) -> None:
    with filled(tmp_path) as backend:
        assert not backend._table.is_whole
    with ps.KeyedStateBackend("long", states=STATES, home="disk") as backend:
        backend["n"].add(backend.keys([1]), 1)
        backend.below.set_files([(str(seal(backend, tmp_path)), 0, 127)], all_known=True)
        assert backend._table.is_whole


def test_what_was_sealed_and_is_in_no_file_is_not_left_out(tmp_path: Path) -> None:
    with filled(tmp_path) as backend:
        backend["n"].add(backend.keys([1, 100]), 1)
        path = seal(backend, tmp_path)
        assert numbers(backend, 2) == [5, 6], "these are here"
        for use in ("len", "iteration", "scan", "existing"):
            with pytest.raises(CheckpointError, match="set_files"):
                uses()[use](backend)
        with pytest.raises(CheckpointError, match="set_files"):
            backend.set_current_key(200)
        assert not backend.below._make_room(10, True)
        backend.below.set_files([*backend.below.files, (str(path), 0, 127)])
        assert len(backend) == 51
        assert numbers(backend, 3) == [5, 6, 5]


def descriptors(folder: Path) -> int:
    """How many are open of files in a folder, and of files in memory."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            path = os.readlink(f"/proc/self/fd/{name}")
            found += path.startswith((str(folder), "/memfd:pystate"))
    return found


def test_a_file_is_open_once_for_stacks_scans_and_readers(tmp_path: Path) -> None:
    with filled(tmp_path) as backend:
        assert descriptors(tmp_path) == 1
        with backend.below.reader(backend.below.files, backend.lineage()) as reader:
            assert descriptors(tmp_path) == 1
            private = process_budget().stats()[0]
            for epoch in range(1, 4):
                backend["n"].add(backend.keys([epoch]), 1)
                new = (str(seal(backend, tmp_path)), 0, 127)
                backend.below.set_files([*backend.below.files, new])
                assert descriptors(tmp_path) == 1 + epoch
            for path in tmp_path.iterdir():
                path.unlink()
            assert sorted(backend) == sorted(reader) == list(range(50)), "they stay open"
            assert numbers(backend, 5) == [5, 6, 6, 6, 5]
            assert descriptors(tmp_path) == 4 and private > 0
        assert backend.below._make_room(10, True)
        assert numbers(backend, 5) == [5, 6, 6, 6, 5]


def test_another_file_at_the_path_of_an_open_one_is_opened(tmp_path: Path) -> None:
    with filled(tmp_path) as backend:
        [file] = backend.below.files
        backend["n"].add(backend.keys(range(50)), 1)
        os.replace(seal(backend, tmp_path), file.path)
        backend.below.set_files([file])
        assert backend.below._make_room(10, True)
        assert numbers(backend) == [6] * 50


def test_closing_lets_go_of_files(tmp_path: Path) -> None:
    gc.collect()
    gc.disable()
    try:
        for at in range(3):
            (tmp_path / str(at)).mkdir()
            with filled(tmp_path / str(at)) as backend:
                reader = backend.below.reader(backend.below.files, backend.lineage())
                assert backend.below._make_room(10, True) and numbers(backend) == [5] * 50
            assert descriptors(tmp_path) == 1
            assert reader.get(7) == {"n": 5, "text": "x"}, "a reader does not go with the table"
            assert len(list(reader)) == 50
            reader.close()
            assert descriptors(tmp_path) == 0
    finally:
        gc.enable()


def test_no_return_to_an_epoch_whose_files_are_not_below(tmp_path: Path) -> None:
    with filled(tmp_path) as backend:
        backend["n"].add(backend.keys([1]), 1)
        backend.below.set_files([*backend.below.files, (str(seal(backend, tmp_path)), 0, 127)])
        with pytest.raises(LineageError, match=r"below\.reset"):
            backend.rollback(1)
        assert numbers(backend, 2) == [5, 6]
        backend.rollback(0)
        assert numbers(backend, 2) == [5, 6]


def test_a_restore_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    with ps.KeyedStateBackend("long", states=STATES) as heap:
        heap["n"].add(heap.keys(range(50)), 5)
        with open(tmp_path / "plain.delta", "wb") as out, heap.seal() as snapshot:
            snapshot.write(out)
    with ps.KeyedStateBackend("long", states=STATES, home="disk", path=folder) as backend:
        for owner, name in ((rows_below, "merge_files"), (FilesBelow, "stack")):
            with pytest.MonkeyPatch.context() as patch:

                def fail(*args: Any, **named: Any) -> Any:
                    out = args[1] if len(args) > 1 else None
                    if hasattr(out, "write"):
                        out.write(b"half")
                        raise BrokenError
                    if args[0].named:
                        raise BrokenError
                    return None

                patch.setattr(owner, name, fail)
                with pytest.raises(BrokenError):
                    backend.restore([tmp_path / "plain.delta"])
            assert list(folder.iterdir()) == []
            assert (len(backend), backend.below.files) == (0, ())
        synced: list[str] = []
        sync = os.fsync
        monkeypatch.setattr(
            os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")) or sync(fd)
        )
        assert backend.restore([tmp_path / "plain.delta"]) == 50
        assert synced[-1] == str(folder) and synced[-2].startswith(str(folder / "")), synced
        assert numbers(backend) == [5] * 50


@pytest.mark.parametrize("limit_bytes", [4 << 20, 16 << 20])
def test_objects_of_an_operator_are_written_before_many_wait(limit_bytes: int) -> None:
    """A sixteenth of its memory, also where the limit comes with the operator's options."""
    spec = OperatorSpec("op", parse_key("long"), {"o": ps.ValueState(object)})
    with closing(KeyedStateBackend.of(spec, options=TableOptions(DISK, limit_bytes))) as backend:
        written = []
        for key in range(limit_bytes // 12_000):
            backend.set_current_key(key)
            backend["o"].update("x" * 4000)
            written.append(backend._table.stats()[0] if backend.is_open else 0)
    waiting = [key + 1 - rows for key, rows in enumerate(written)]
    assert max(waiting[100:]) * 4000 <= limit_bytes // 16 + 17 * 4000


# ---- maps that stay in files ---------------------------------------------------------------------

MAPS: dict[str, Any] = {"m": ps.MapState("long", "string"), "n": ps.ValueState("long", default=0)}


def group_of(key: int) -> int:
    return int(key_groups(hash_keys([pa.array([key], pa.int64())]), 128)[0])


def some_maps(backend: ps.KeyedStateBackend, keys: list[int], mark: str) -> None:
    """Entries by the thousand for each of few keys."""
    for key in keys:
        names = list(range(0, 6000, 2 if mark == "a" else 3))
        batch = backend.keys([key] * len(names))
        backend["m"].put_entries(batch, names, [f"{mark} {key} {name} " * 8 for name in names])
        if mark != "a":
            gone = list(range(0, 6000, 5))
            backend["m"].remove_entries(backend.keys([key] * len(gone)), gone)


def map_of(key: int, *, both: bool) -> dict[int, str]:
    model = {name: f"a {key} {name} " * 8 for name in range(0, 6000, 2)}
    if both:
        model |= {name: f"b {key} {name} " * 8 for name in range(0, 6000, 3)}
        for name in range(0, 6000, 5):
            model.pop(name, None)
    return model


def check_maps(backend: ps.KeyedStateBackend, keys: list[int], *, below: bool, both: bool) -> None:
    for key in keys:
        model = map_of(key, both=both)
        backend.set_current_key(key)
        assert backend["m"].below() == below
        assert dict(backend["m"].iter_items()) == model and len(backend["m"]) == len(model)
        for name in (0, 2, 3, 5, 9, 5999):
            assert backend["m"].get(name) == model.get(name)


def test_large_maps_follow_their_key_groups(tmp_path: Path) -> None:
    """Two ranges over the files of one, then one over the files of both, and a heap of all."""
    keys = [1, 2, 3, 4, 5, 6]
    options: dict[str, Any] = {"states": MAPS, "home": "disk", "limit_bytes": 8 << 20}
    with ps.KeyedStateBackend("long", path=tmp_path, **options) as one:
        some_maps(one, keys, "a")
        base = seal(one, tmp_path)
    files = [(str(base), 0, 127)]
    for first, last in ((0, 63), (64, 127)):
        folder = tmp_path / str(first)
        folder.mkdir()
        own = [k for k in keys if first <= group_of(k) <= last]
        assert own
        with ps.KeyedStateBackend(
            "long", path=folder, key_group_range=(first, last), **options
        ) as half:
            half.restore([base])
            check_maps(half, own, below=True, both=False)
            some_maps(half, own, "b")
            check_maps(half, own, below=True, both=True)
            files.append((str(seal(half, folder)), first, last))
            half.below.set_files([(str(base), first, last), files[-1]])
            half.below._make_room(1000, True)
            check_maps(half, own, below=True, both=True)
    with ps.KeyedStateBackend("long", path=tmp_path, **options) as whole:
        whole.restore([base])
        whole.below.set_files(files)
        check_maps(whole, keys, below=True, both=True)
    with ps.KeyedStateBackend("long", states=MAPS) as heap:
        heap.restore([name for name, _, _ in files])
        check_maps(heap, keys, below=False, both=True)


# ---- firing in little memory ---------------------------------------------------------------------


def stepping(folder: Path, made: list[FileBelow]) -> ps.KeyedStateBackend:
    """A backend with 1 MiB that takes steps by itself; `made` gets the files that it makes."""
    backend = ps.KeyedStateBackend(
        "long",
        states={"text": ps.ValueState("binary")},
        timers=True,
        limit_bytes=1 << 20,
        home="disk",
        path=folder / "table",
    )

    def step() -> None:
        before = backend.lineage()
        assert before is not None
        lineage = ps.Lineage(uuid.uuid4().bytes, before.id, before.epoch + 1, 7)
        path = folder / f"{lineage.epoch}.delta"
        with backend.below.seal_step(lineage) as snapshot, open(path, "wb") as out:
            snapshot.write(out)
        made.append((str(path), 0, backend.max_parallelism - 1))
        backend.below.set_files(made)

    backend.below.step_by(step, lambda: made)
    return backend


@pytest.mark.parametrize("how", ["all", "each", "stale"])
def test_timers_of_more_rows_than_fit_are_fired(how: str, tmp_path: Path) -> None:
    """Rows that grow while timers fire make steps; each timer fires once, whoever leaves."""
    keys, size, stale = 1000, 200, 0
    files: list[FileBelow] = []
    fired: list[int] = []
    with stepping(tmp_path, files) as backend:
        text = backend["text"]
        for at in range(0, keys, 500):
            batch = backend.keys(range(at, at + 500))
            text.update_all(batch, b"x" * size)
            backend.register_timers(batch, "event", [5] * 500)
        steps = len(files)
        assert steps
        while (due := backend.due_timers("event", 5)) is not None:
            names = due.keys.to_pylist()
            if how == "all":
                text.update_all(due.keys, b"y" * 2000)
                stale += due.stale
                due.fire_all()
                fired += names
                continue
            for i, key in enumerate(names):
                if due.fire(i):
                    fired.append(key)
                    text.update(b"y" * 2000)
                if due.stale:
                    stale += 1
                    if how == "each":
                        break
        assert sorted(fired) == list(range(keys))
        assert stale > 0 and len(files) > steps + 5
        assert backend.stats().committed_bytes <= 1.125 * (1 << 20)
        assert set(text.values(backend.keys(range(keys))).to_pylist()) == {b"y" * 2000}


def test_timers_are_fired_where_no_step_may_be_made(tmp_path: Path) -> None:
    files: list[FileBelow] = []
    with stepping(tmp_path, files) as backend:
        batch = backend.keys(range(200))
        backend["text"].update_all(batch, b"x" * 200)
        backend.register_timers(batch, "event", [5] * 200)
        due = backend.due_timers("event", 5)
        assert due is not None and len(due) == 200
        backend.below.step_by(None)
        due.fire_all()
        assert backend.due_timers("event", 5) is None and not files
