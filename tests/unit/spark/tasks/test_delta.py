"""What a task writes: a delta, held deltas, and one delta of several steps."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import pystate as ps
from pystate.checkpoint import held_deltas
from pystate.checkpoint.held_deltas import HeldFiles
from pystate.checkpoint.refs import EMPTY_ID, RangeState
from pystate.checkpoint.state_files import Lineage
from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.range_report import RangeReport, advance_range, check_report
from pystate.errors import CheckpointError, NoSpaceError, StateLostError
from pystate.spark.tasks.delta import DeltaWriter, HeldPlan, Target, Written
from pystate.state.operator_spec import OperatorSpec
from pystate.tables.backend import KeyedStateBackend
from pystate.types.keys import parse_key

STATES: dict[str, Any] = {
    "n": ps.ValueState("long", default=0),
    "items": ps.ListState("long"),
    "by": ps.MapState("long", "long"),
}


class Range:
    """A range of all key groups: its table, its steps, and what must come of them."""

    def __init__(self, folder: Path, *, shared: bool = False) -> None:
        self.storage = LocalStorage(folder / "checkpoint")
        self.home = folder / "home"
        self.home.mkdir()
        self.files = HeldFiles.of(self.storage, None if shared else str(self.home), "op", 0, 127)
        self.operator = OperatorSpec("op", parse_key("long"), STATES)
        self.backend = KeyedStateBackend.of(self.operator)
        self.handles: Any = {name: self.backend.register(name, d) for name, d in STATES.items()}
        self.state = RangeState(0, 0, 127, EMPTY_ID)
        self.serial = 0
        self.expected: dict[int, tuple[int, list[int], dict[int, int]]] = {}

    def change(self, keys: range) -> None:
        for key in keys:
            n, items, by = self.expected.get(key, (0, [], {}))
            self.backend.set_current_key(key)
            self.handles["n"].update(n + 1)
            self.handles["items"].add(self.serial)
            self.handles["by"].put(self.serial % 3, n)
            self.expected[key] = n + 1, [*items, self.serial], {**by, self.serial % 3: n}
        if len(keys) > 2:
            self.backend.set_current_key(keys[0])
            for handle in self.handles.values():
                handle.clear()
            del self.expected[keys[0]]

    def step(
        self, keys: range, *, closes: bool, tolerant: bool = False, timeout_ms: int = 60_000
    ) -> Written:
        self.serial += 1
        self.change(keys)
        snapshot = None
        sealed = self.state.id
        if keys:
            attempt = uuid.uuid4()
            name = Lineage(attempt.bytes, bytes.fromhex(self.state.id), 1, 0)
            snapshot, sealed = self.backend.seal(name), attempt.hex
        plan = HeldPlan(self.serial, closes, tolerant, self.files.local is None, timeout_ms)
        target = Target(self.storage, "op", self.state, 1, plan, self.files)
        written = Written()
        if snapshot is not None or (closes and self.state.held):
            writer = DeltaWriter(target, snapshot)
            writer.start()
            written = writer.result()
        more = {"held": written.held, "merged": written.merged, "failure": written.failure}
        report = RangeReport("op", 0, "e", sealed, self.state.id, written.file, **more)
        check_report(report, self.state, "here", 1, (0, 127), closes=closes)
        self.state = advance_range(self.state, report, closed=closes and not written.failure)
        self.files.remove_older(self.serial, {ref.path for ref in self.state.held})
        return written

    def check(self) -> None:
        backend = KeyedStateBackend.of(self.operator)
        handles: Any = {name: backend.register(name, d) for name, d in STATES.items()}
        with backend, ExitStack() as stack:
            refs = (*self.state.deltas, *self.state.held)
            backend.restore([stack.enter_context(self.files.opened(ref)) for ref in refs])
            assert len(backend) == len(self.expected)
            for key, (n, items, by) in self.expected.items():
                backend.set_current_key(key)
                assert handles["n"].value() == n
                assert list(handles["items"].get()) == items
                assert dict(handles["by"].items()) == by


@pytest.fixture
def task(tmp_path: Path) -> Iterator[Range]:
    made = Range(tmp_path)
    yield made
    made.backend.close()


def test_steps_become_one_delta(task: Range) -> None:
    task.step(range(50), closes=True)
    for number in range(20):
        written = task.step(range(number, 10 + 3 * number), closes=False)
        assert written.file is None and written.held is not None
        task.check()
    assert len(task.state.deltas) == 1 and 1 < len(task.state.held) < 10
    assert len(list(task.home.rglob("*.delta"))) == len(task.state.held)
    assert not task.storage.list("held")
    closed = task.step(range(100, 103), closes=True).file
    assert closed is not None and closed.parent == task.state.deltas[0].id
    assert len(task.state.deltas) == 2 and task.state.held == ()
    task.check()


def test_a_step_without_changes_closes_the_epoch(task: Range) -> None:
    task.step(range(5), closes=False)
    sealed = task.state.id
    assert task.step(range(0), closes=False) == Written()
    closed = task.step(range(0), closes=True).file
    assert closed is not None and (closed.id, closed.parent) == (sealed, EMPTY_ID)
    task.check()
    assert task.step(range(0), closes=True) == Written()


def test_a_failed_write_is_held(task: Range, monkeypatch: pytest.MonkeyPatch) -> None:
    create = task.storage.create

    def full(path: str) -> Any:
        raise NoSpaceError(f"no room for {path}")

    task.step(range(5), closes=True)
    monkeypatch.setattr(task.storage, "create", full)
    for number in range(3):
        written = task.step(range(number, 8), closes=True, tolerant=True)
        assert written.file is None and "NoSpaceError: no room for state/op" in written.failure
    # Without a change nothing new is held.
    written = task.step(range(0), closes=True, tolerant=True)
    assert written.held is None and written.failure
    with pytest.raises(NoSpaceError):
        task.step(range(0), closes=True)
    monkeypatch.setattr(task.storage, "create", create)
    task.step(range(0), closes=True)
    assert task.state.held == () and len(task.state.deltas) == 2
    task.check()


def test_a_write_that_takes_too_long(task: Range, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]

    def later() -> float:
        now_s[0] += 1
        return now_s[0]

    monkeypatch.setattr("pystate.spark.tasks.delta.time.monotonic", later)
    written = task.step(range(5), closes=True, tolerant=True, timeout_ms=500)
    assert "not written within 0.5 s, the timeout of the job's CheckpointOptions" in written.failure
    with pytest.raises(CheckpointError, match="not written within"):
        task.step(range(5), closes=True, timeout_ms=500)
    assert not task.storage.list("state") and not task.storage.list("state", temporary=True)


def test_no_room_beside_the_tables(task: Range, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_deltas, "LocalStorage", FullStorage)
    for number in range(3):
        task.step(range(number, 8), closes=False)
    assert len(task.storage.list("held")) == 3
    task.check()
    task.step(range(0), closes=True)
    task.check()


class FullStorage(LocalStorage):
    def __init__(self, folder: str) -> None:
        super().__init__("/nowhere")

    def create(self, path: str) -> Any:
        raise NoSpaceError("no room beside the tables")


def test_held_deltas_that_are_lost(task: Range) -> None:
    task.step(range(5), closes=True)
    task.step(range(5), closes=False)
    task.step(range(3), closes=False)
    [ref, *_] = task.state.held
    (task.home / ref.path).unlink()
    with pytest.raises(StateLostError, match="the changes of epoch 1 in held/op/00000-00127/"):
        task.check()
    with pytest.raises(StateLostError):
        task.step(range(1), closes=True, tolerant=True)
    with pytest.raises(StateLostError):
        task.step(range(0), closes=True, tolerant=True)


def test_held_deltas_for_tasks_anywhere(tmp_path: Path) -> None:
    task = Range(tmp_path, shared=True)
    task.step(range(9), closes=False)
    task.step(range(3, 9), closes=False)
    assert len(task.storage.list("held")) == 2 and not list(task.home.rglob("*.delta"))
    task.check()
    task.step(range(0), closes=True)
    task.check()
    task.backend.close()
