"""A task that changes more rows than fit in memory: its delta holds the whole epoch."""

from __future__ import annotations

import dataclasses
import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pystate.checkpoint.refs import FileRef, RangeState, empty_range
from pystate.checkpoint.state_files import Lineage
from pystate.errors import (
    CheckpointError,
    InvalidArgumentError,
    MemoryLimitError,
    NoSpaceError,
)
from pystate.spark.tasks.range_task import RangeTask
from pystate.spark.tasks.steps import TaskSteps
from pystate.state.aggregating import AggregatingState
from pystate.state.aggregators import AggregateFunction
from pystate.state.list import ListState
from pystate.state.map import MapState
from pystate.state.value import ValueState
from pystate.tables.host import TableHome, choose_home, remove_left
from tests.peer import Worker

EMPTY = empty_range(0, 128, 1)
STATES = {
    "n": ValueState("long", default=0),
    "s": ValueState("string"),
    "items": ListState("long"),
    "entries": MapState("long", "string"),
}
Model = dict[int, tuple[int, str | None, list[int], dict[int, str]]]


@pytest.fixture(params=["shared", "private"])
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Worker]:
    home = TableHome(None, None)
    if request.param == "shared":
        (tmp_path / "disk").mkdir()
        folders = {"shm": str(tmp_path), "fallback": str(tmp_path / "disk")}
        home = choose_home(bytes(32), least_bytes=0, **folders)
    options: dict[str, Any] = {"table_home": "disk", "limit_bytes": 1 << 20}
    one = Worker(str(tmp_path / "ck"), home, states=STATES, **options)
    yield one
    one.stop()


class Task:
    """A task of one epoch, with steps."""

    def __init__(self, worker: Worker, base: RangeState, model: Model, folder: Path) -> None:
        worker.attach(base)
        self.worker, self.base, self.model = worker, base, dict(model)
        self.backend = worker.attachment.backend
        parent = bytes.fromhex(base.id)
        self.steps = TaskSteps(self.backend, str(folder), Lineage(bytes(16), parent, 1))

    def change(self, keys: list[int], rng: random.Random) -> None:
        """Something of each key, a few at a time."""
        for begin in range(0, len(keys), 500):
            some = keys[begin : begin + 500]
            batch = self.backend.prefetch(pa.array(some, pa.int64()))
            self.backend["n"].add(batch, 1)
            texts = [f"<{key}>" * rng.randrange(1, 40) for key in some]
            self.backend["s"].update_all(batch, pa.array(texts))
            for i, (key, text) in enumerate(zip(some, texts, strict=True)):
                n, _, items, entries = self.model.get(key, (0, None, [], {}))
                batch.select(i)
                if key % 5 == 0:
                    self.backend["items"].add(n)
                    items = [*items, n]
                if key % 7 == 0:
                    self.backend["entries"].put(n, text[:5])
                    entries = {**entries, n: text[:5]}
                self.model[key] = (n + 1, text, items, entries)
            gone = [key for key in some if key % 11 == n % 11]
            self.backend.delete(pa.array(gone, pa.int64()))
            for key in gone:
                del self.model[key]

    def end(self) -> RangeState:
        """Seal, write and release; return the next base."""
        snapshot = None
        if self.backend.dirty:
            name = Lineage(os.urandom(16), self.steps.last, 1)
            snapshot = self.backend.seal(name)
        changes = self.steps.changes(snapshot)
        path = f"state/op/{changes.lineage.id.hex()}.delta"
        with self.worker.storage.create(path) as out:
            changes.write(out)
        with self.worker.storage.create(f"{path}-again") as out:
            ref = FileRef.from_info(path, changes.write(out))
        changes.close()
        assert ref.parent == self.base.id
        self.release()
        return dataclasses.replace(self.base, id=ref.id, deltas=(*self.base.deltas, ref))

    def release(self) -> None:
        self.steps.close()
        self.worker.release()


def check(worker: Worker, base: RangeState, model: Model) -> str:
    how, _, _ = worker.attach(base)
    rows = worker.attachment.backend.to_arrow().to_pylist()
    found = {row["k"]: (row["n"], row["s"], row["items"], dict(row["entries"])) for row in rows}
    assert found == model
    worker.release()
    return how


def test_an_epoch_of_several_times_the_memory(worker: Worker, tmp_path: Path) -> None:
    rng = random.Random(5)
    base, model, folder = EMPTY, Model(), tmp_path / "steps"
    for epoch in range(2):
        task = Task(worker, base, model, folder)
        for _ in range(3):
            task.change(rng.sample(range(epoch * 1000, epoch * 1000 + 4000), 2000), rng)
        assert task.steps.rows > 3000
        assert 0 < len(os.listdir(next(folder.iterdir()))) < 16
        with pytest.raises(InvalidArgumentError, match="since some have left memory"):
            next(task.backend.changed())
        base, model = task.end(), task.model
        assert not [*folder.iterdir()]
        assert check(worker, base, model) == "current"
    # Whoever reads the files as a whole finds the same.
    reader = Worker(str(tmp_path / "ck"), TableHome(None, None), states=STATES)
    assert check(reader, base, model) in ("restored", "caught up")
    reader.stop()


def test_the_keys_that_changed_are_known(worker: Worker, tmp_path: Path) -> None:
    base = EMPTY
    for epoch, keys in enumerate(([*range(12_000)], [*range(5000, 18_000), 1])):
        worker.attach(base)
        backend = worker.attachment.backend
        name = Lineage(bytes(16), bytes.fromhex(base.id), 1)
        steps = TaskSteps(backend, str(tmp_path / "steps"), name, notes_changed=True)
        for times in range(2):
            random.Random(times).shuffle(keys)
            for begin in range(0, len(keys), 1000):
                batch = backend.keys(pa.array(keys[begin : begin + 1000], pa.int64()))
                # Whether what is stored changes does not matter.
                backend["n"].max(batch, 1)
        assert steps.taken > 1
        found = []
        for batch in backend.changed(700):
            assert backend["n"].values(batch).to_pylist() == [1] * len(batch)
            found += batch.key_arrays()[0].to_pylist()
        assert sorted(found) == sorted(keys), epoch
        changes = steps.changes(
            backend.seal(Lineage(os.urandom(16), steps.last, 1)) if backend.dirty else None
        )
        path = f"state/op/{changes.lineage.id.hex()}.delta"
        with worker.storage.create(path) as out:
            ref = FileRef.from_info(path, changes.write(out))
        changes.close()
        steps.close()
        assert not [*(tmp_path / "steps").iterdir()]
        worker.release()
        base = dataclasses.replace(base, id=ref.id, deltas=(*base.deltas, ref))


def test_a_task_fails_after_a_step(worker: Worker, tmp_path: Path) -> None:
    rng = random.Random(6)
    task = Task(worker, EMPTY, {}, tmp_path / "steps")
    task.change([*range(1000)], rng)
    base, model = task.end(), task.model
    for steps in (1, 20):
        task = Task(worker, base, model, tmp_path / "steps")
        while len(task.steps._steps) == 0 or task.steps.rows < steps * 500:
            task.change(rng.sample(range(3000), 1000), rng)
        task.release()
        assert check(worker, base, model) in ("undone", "opened")
    # All that a task has changed may be in its steps.
    task = Task(worker, base, model, tmp_path / "steps")
    task.change([*range(500)], rng)
    task.steps.take()
    base, model = task.end(), task.model
    assert check(worker, base, model) == "current"


def test_a_step_that_cannot_be_written(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task(worker, EMPTY, {}, tmp_path / "steps")
    task.change([*range(1000)], random.Random(7))
    base, model = task.end(), task.model
    task = Task(worker, base, model, tmp_path / "steps")

    def full(*_: Any) -> Any:
        raise NoSpaceError(28, "No space left on device")

    with (
        monkeypatch.context() as patch,
        pytest.raises(CheckpointError, match=f"no room on the executor's disk, in {tmp_path}"),
    ):
        patch.setattr(task.steps, "_written", full)
        task.change([*range(20_000)], random.Random(8))
    # A user's function may have gone on.
    for use in (task.steps.take, lambda: task.steps.changes(None)):
        with pytest.raises(CheckpointError, match=r"is lost, so that the task cannot end: .* room"):
            use()
    with pytest.raises(CheckpointError, match="is lost"):
        next(task.backend.changed())
    task.release()
    assert check(worker, base, model) in ("undone", "opened")


def test_steps_are_joined_if_there_is_room(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, rng = tmp_path / "steps", random.Random(12)
    task = Task(worker, EMPTY, {}, folder)

    def full(_: Any, out: Any, __: Any) -> Any:
        out.write(b"begun")
        out.flush()
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    with monkeypatch.context() as patch:
        patch.setattr(task.steps, "merged", full)
        for step in range(20):
            task.change([*range(step * 20, step * 20 + 60)], rng)
            task.steps.take()
    assert len(os.listdir(next(folder.iterdir()))) == 20
    for step in range(10):
        task.change([*range(step * 20, step * 20 + 60)], rng)
        task.steps.take()
        assert len(os.listdir(next(folder.iterdir()))) < 16
    base, model = task.end(), task.model
    assert check(worker, base, model) == "current"


class Texts(AggregateFunction[list[str], str, int]):
    """Keeps all that comes."""

    def create(self) -> list[str]:
        return []

    def add(self, accumulator: list[str], value: str) -> list[str]:
        return [*accumulator, value]

    def merge(self, a: list[str], b: list[str]) -> list[str]:
        return a + b

    def result(self, accumulator: list[str]) -> int:
        return len(accumulator)


@pytest.mark.parametrize("count", [24_000, 300])
def test_keys_of_objects_that_wait_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """A step makes room for objects, and does not write them itself; any of them may be first."""
    options: dict[str, Any] = {"table_home": "disk", "limit_bytes": 4 << 20}
    states = {"texts": AggregatingState(Texts(), "string")}
    worker = Worker(str(tmp_path / "ck"), TableHome(None, None), states=states, **options)
    worker.attach(EMPTY)
    backend = worker.attachment.backend
    lineage = Lineage(bytes(16), bytes(16), 1)
    steps = TaskSteps(backend, str(tmp_path / "steps"), lineage, notes_changed=True)
    flush = backend._flush

    def flush_after_step() -> None:
        if not steps.taken:
            steps.take()
        flush()

    for key in range(count):
        backend.set_current_key(key)
        backend["texts"].add(f"<{key}>" * (50 if count > 1000 else 1))
        if key == 100:
            flush()
    if count < 1000:
        assert not steps.taken
        monkeypatch.setattr(backend, "_flush", flush_after_step)
    found = [key for batch in backend.changed(700) for key in batch.key_arrays()[0].to_pylist()]
    assert steps.taken and sorted(found) == [*range(count)]
    steps.close()
    worker.stop()


def test_a_first_epoch_fails_after_a_step(worker: Worker, tmp_path: Path) -> None:
    """There is no file yet, and some rows are in none."""
    task = Task(worker, EMPTY, {}, tmp_path / "steps")
    task.change([*range(8000)], random.Random(10))
    task.release()
    assert check(worker, EMPTY, {}) in ("current", "undone", "opened")
    task = Task(worker, EMPTY, {}, tmp_path / "steps")
    task.change([*range(100)], random.Random(11))
    task.backend.delete(pa.array([*range(100)], pa.int64()))
    task.steps.take()
    task.release()
    task = Task(worker, EMPTY, {}, tmp_path / "steps")
    task.change([*range(100)], random.Random(11))
    base, model = task.end(), task.model
    assert check(worker, base, model) == "current"


def test_what_killed_processes_left_goes(worker: Worker, tmp_path: Path) -> None:
    folder = tmp_path / "steps"
    left = folder / f"{os.getpid()}-1-{'0' * 32}"
    left.mkdir(parents=True)
    (left / "x.delta").write_bytes(b"x")
    task = Task(worker, EMPTY, {}, folder)
    task.change([*range(100)], random.Random(9))
    task.steps.take()
    remove_left(str(folder))
    assert not left.exists() and len([*folder.iterdir()]) == 1
    task.release()
    remove_left(str(tmp_path / "none"))


def test_a_task_begins_without_what_killed_ones_left(worker: Worker) -> None:
    """Those of any range; and it cannot end after a step that is lost."""
    operator = worker.spec.operator
    folder = Path(worker.spec.home.local_folder("steps", operator.uid))
    left = folder / f"{os.getpid()}-1-{'0' * 32}"
    left.mkdir(parents=True)
    plan: Any = SimpleNamespace(
        operator=operator,
        epoch=1,
        query=7,
        ranges=[EMPTY],
        parallelism=1,
        marks=SimpleNamespace(begin=lambda mark: None),
        table=lambda state, go_on: worker.spec,
        context=lambda *_: SimpleNamespace(),
        redistributes_in=lambda state: False,
    )
    task = RangeTask(plan)
    task.attach(0)
    assert not left.exists()
    task.backend["n"].add(task.backend.keys(pa.array(range(500), pa.int64())), 1)
    steps = task._steps
    assert steps is not None
    with pytest.raises(CheckpointError, match="no room on the executor's disk"):
        steps._written = lambda write: full_disk()  # type: ignore[method-assign]
        steps.take()
    with pytest.raises(CheckpointError, match="is lost"):
        task._seal_table()
    task.release()


def full_disk() -> Any:
    raise NoSpaceError(errno.ENOSPC, "No space left on device")


def test_pieces_that_fit() -> None:
    """Each piece is looked up when its turn comes, however many there are."""
    fits = 2

    def prefetch(columns: list[Any]) -> None:
        if len(columns[0]) > fits:
            error = MemoryLimitError("full")
            error.keys = fits
            raise error

    below = SimpleNamespace(are_any=True)
    backend = SimpleNamespace(below=below, namespace=None, prefetch=prefetch)
    task: Any = SimpleNamespace(backend=backend, looks_up_keys=True)
    rows = pa.record_batch({"k": pa.array(range(3000))})
    pieces = [*RangeTask.fitting(task, rows, ["k"])]
    assert pa.Table.from_batches(pieces)["k"].to_pylist() == [*range(3000)]
    assert max(map(len, pieces)) <= fits
