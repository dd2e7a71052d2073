"""Epochs of several steps: when they are closed, what is published, and what a driver may lose."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.refs import FileRef, RangeState, state_path
from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.coordinator import Coordinator
from pystate.epochs.epoch import Epoch
from pystate.epochs.interval import CheckpointOptions, Interval
from pystate.epochs.position import Position
from pystate.epochs.range_report import RangeReport
from pystate.errors import (
    CheckpointError,
    FencedError,
    InvalidArgumentError,
    LineageError,
    NoSpaceError,
)
from tests.conftest import KEY, STATE, FakeWork
from tests.unit.epochs.test_coordinator import batch, opened


class StepWork(FakeWork):
    """Work of several steps: a range's held deltas are lines of text in this process."""

    def __init__(self, storage: LocalStorage) -> None:
        super().__init__(storage)
        self.held: dict[str, str] = {}
        self.fails: Callable[[Epoch], bool] = lambda epoch: False
        self.outputs: list[tuple[int, tuple[Any, ...]]] = []

    def commit(self, manifest: Manifest) -> None:
        self.outputs.append((manifest.epoch, manifest.sinks))
        super().commit(manifest)

    def coordinator(self, **options: Any) -> Coordinator:
        options.setdefault("checkpoints", CheckpointOptions(interval=3))
        return super().coordinator(**options)

    def _ref(self, path: str, state: RangeState, epoch: int, id: str, parent: str) -> FileRef:
        first, last = state.first_key_group, state.last_key_group
        return FileRef(path, "delta", id, parent, epoch, first, last, 1, 0, 1, 0, 1)

    def step(self, text: str, sinks: Sequence[Any] = ()) -> Callable[[Epoch], Sequence[Any]]:
        def evaluate(epoch: Epoch) -> Sequence[Any]:
            for state in epoch.declare("op", key_schema=KEY, state_schema=STATE):
                epoch.report(self._report(epoch, state, text))
            return sinks or (text,)

        return evaluate

    def _report(self, epoch: Epoch, state: RangeState, text: str) -> RangeReport:
        attempt = uuid.uuid4().hex
        report = RangeReport("op", state.index, epoch.evaluation_id, attempt, state.id, None)
        fails = epoch.step.closes and self.fails(epoch)
        if epoch.step.closes and not fails:
            parent = state.held[0].parent if state.held else state.id
            first, last = state.first_key_group, state.last_key_group
            path = state_path("op", first, last, epoch.number, uuid.uuid4().hex, "delta")
            data = ",".join([*(self.held[ref.path] for ref in state.held), text]).encode()
            with self.storage.create(path) as out:
                out.write(data)
            ref = self._ref(path, state, epoch.number, attempt, parent)
            return dataclasses.replace(report, file=dataclasses.replace(ref, file_bytes=len(data)))
        path = f"held/op/{state.index}/{attempt}.delta"
        self.held[path] = text
        held = self._ref(path, state, epoch.number, attempt, state.id)
        return dataclasses.replace(report, held=held, failure="no room" if fails else "")

    def flushed(self, last: Manifest) -> dict[tuple[str, int], FileRef]:
        found = {}
        for state in last.operators[0].ranges:
            first, final = state.first_key_group, state.last_key_group
            path = state_path("op", first, final, last.epoch, uuid.uuid4().hex, "delta")
            data = ",".join(self.held[ref.path] for ref in state.held).encode()
            with self.storage.create(path) as out:
                out.write(data)
            ref = self._ref(path, state, last.epoch, state.id, state.held[0].parent)
            found["op", state.index] = dataclasses.replace(ref, file_bytes=len(data))
        return found

    def content(self) -> list[str]:
        head = read_head(self.storage)
        if head is None:
            return []
        texts = [",".join(self.text(head, index=i)).split(",") for i in range(2)]
        assert texts[0] == texts[1]
        return texts[0]


@pytest.fixture
def steps(tmp_path: Path) -> StepWork:
    return StepWork(LocalStorage(tmp_path / "checkpoint"))


def names(storage: LocalStorage) -> list[str]:
    return [entry.path for entry in storage.list("")]


def test_the_last_step_closes_the_epoch(steps: StepWork) -> None:
    with steps.coordinator() as coordinator:
        found = []
        for number in range(8):
            before = names(steps.storage)
            result = coordinator.run(steps.step(f"b{number}"), **batch(number))
            found.append((result.epoch, result.held))
            assert result.manifest is not None and result.manifest.batch_id == number
            assert (names(steps.storage) == before) == result.held
    assert found == [
        (1, False), (2, True), (2, True), (2, False), (3, True), (3, True), (3, False), (4, True)
    ]  # fmt: skip
    # What was held in the end is gone, with its output.
    assert steps.content() == [f"b{n}" for n in range(7)]
    assert steps.outputs == [(1, ("b0",)), (2, ("b1", "b2", "b3")), (3, ("b4", "b5", "b6"))]
    head = read_head(steps.storage)
    assert head is not None and (head.batch_id, head.predecessor) == (6, 2)
    with (
        steps.coordinator() as coordinator,
        pytest.raises(CheckpointError, match="does not follow"),
    ):
        coordinator.run(steps.step("b8"), **batch(8))


def test_a_flush_closes_the_epoch_without_a_step(steps: StepWork) -> None:
    with steps.coordinator() as coordinator:
        assert coordinator.flush(steps.flushed) is None
        for number in range(3):
            coordinator.run(steps.step(f"b{number}"), **batch(number))
        manifest = coordinator.flush(steps.flushed)
        assert manifest is not None and (manifest.epoch, manifest.batch_id) == (2, 2)
        assert coordinator.flush(steps.flushed) is None
        assert coordinator.run(steps.step("r"), run_key="r").epoch == 3
        assert coordinator.run(steps.step("b3"), **batch(3)).held
    assert steps.content() == ["b0", "b1", "b2", "r"]


def test_a_step_that_fails_leaves_those_before_it(steps: StepWork) -> None:
    with steps.coordinator() as coordinator:
        for number in range(2):
            coordinator.run(steps.step(f"b{number}"), **batch(number))
        for _ in range(2):
            with pytest.raises(InvalidArgumentError):
                coordinator.run(lambda epoch: (_ for _ in ()).throw(InvalidArgumentError()),
                                **batch(2))  # fmt: skip
        for number in range(2, 4):
            coordinator.run(steps.step(f"b{number}"), **batch(number))
    assert steps.content() == ["b0", "b1", "b2", "b3"]


def test_an_overtaken_driver_has_published_nothing(steps: StepWork) -> None:
    zombie = steps.coordinator()
    for number in range(2):
        zombie.run(steps.step(f"z{number}"), **batch(number))
    with steps.coordinator() as successor:
        for number in range(1, 4):
            successor.run(steps.step(f"b{number}"), **batch(number))
        with pytest.raises(FencedError):
            zombie.run(steps.step("z2"), **batch(2))
        with pytest.raises(FencedError):
            zombie.flush(steps.flushed)
    zombie.close()
    assert steps.content() == ["z0", "b1", "b2", "b3"]


def test_a_manifest_from_elsewhere_ends_held_steps() -> None:
    interval = Interval(CheckpointOptions(interval=3))
    head = Manifest(1, 0, "e", "r", 1, "h", 128, 0, 0, "pystate", (), queries=(), query_id=None)
    interval.hold(dataclasses.replace(head, epoch=2, predecessor=1), ())
    assert interval.base(head) is interval.last
    with pytest.raises(FencedError, match="epoch 2 was published by another driver"):
        interval.base(dataclasses.replace(head, epoch=2))


def test_failures_are_tolerated_in_a_row(steps: StepWork) -> None:
    fails = [False, True, True, False, True, False, True, True, True]
    steps.fails = lambda epoch: fails[epoch.position.batch_id or 0]
    options = CheckpointOptions(tolerable_failures=2)
    with steps.coordinator(checkpoints=options) as coordinator:
        found = [coordinator.run(steps.step(f"b{n}"), **batch(n)).held for n in range(6)]
        assert found == [False, True, True, False, True, False]
        assert steps.content() == [f"b{n}" for n in range(6)]
        for number in (6, 7):
            assert coordinator.run(steps.step(f"b{number}"), **batch(number)).held
        with pytest.raises(CheckpointError, match="epoch 4: its state was not written: no room"):
            coordinator.run(steps.step("b8"), **batch(8))
    assert steps.outputs[-1] == (3, ("b4", "b5"))


def test_a_failed_checkpoint_is_tried_after_the_next_batch(steps: StepWork) -> None:
    steps.fails = lambda epoch: epoch.position.batch_id == 5
    options = CheckpointOptions(interval=5, tolerable_failures=1)
    with steps.coordinator(checkpoints=options) as coordinator:
        found = [coordinator.run(steps.step(f"b{n}"), **batch(n)).held for n in range(9)]
        assert found == [False, True, True, True, True, True, False, True, True]
        # A change of the parallelism, too, ends the epoch with the next batch.
        coordinator.rescale(4)
        assert not coordinator.run(steps.step("b9"), **batch(9)).held
        epoch = opened(coordinator, **batch(10))
        assert len(epoch.declare("op", key_schema=KEY, state_schema=STATE)) == 4
        epoch.abort()
    assert steps.content() == [f"b{n}" for n in range(10)]


def test_an_operator_that_the_last_batch_does_not_have(steps: StepWork) -> None:
    with steps.coordinator(allow_unclaimed_state=True) as coordinator:
        for number in range(3):
            coordinator.run(steps.step(f"b{number}"), **batch(number))
        with pytest.raises(InvalidArgumentError, match="does not have the operators 'op'"):
            coordinator.run(lambda epoch: (), **batch(3))


def test_a_manifest_that_cannot_be_published(
    steps: StepWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, full = steps.storage.publish, [False]

    def fails(path: str, data: bytes) -> None:
        if full[0] and path.startswith("manifests"):
            raise NoSpaceError(f"no room for {path}")
        publish(path, data)

    monkeypatch.setattr(steps.storage, "publish", fails)
    options = CheckpointOptions(interval=2, tolerable_failures=1)
    with steps.coordinator(checkpoints=options) as coordinator:
        for number in range(2):
            coordinator.run(steps.step(f"b{number}"), **batch(number))
        full[0] = True
        assert coordinator.run(steps.step("b2"), **batch(2)).held
        full[0] = False
        # Files that were written for the failed checkpoint are held like others.
        steps.held.update(
            {e.path: steps.storage.read_bytes(e.path).decode() for e in steps.storage.list("state")}
        )
        assert not coordinator.run(steps.step("b3"), **batch(3)).held
    assert steps.content() == ["b0", "b1", "b2", "b3"]


def test_a_report_of_the_wrong_step(steps: StepWork) -> None:
    with steps.coordinator() as coordinator:
        for number in range(2):
            coordinator.run(steps.step(f"b{number}"), **batch(number))
        epoch: Any = coordinator.open_epoch(**batch(2))
        state = epoch.declare("op", key_schema=KEY, state_schema=STATE)[0]
        good = steps._report(epoch, state, "x")
        assert good.held is not None
        bad = dataclasses.replace(good.held, parent="f" * 32)
        epoch.report(dataclasses.replace(good, held=bad))
        with pytest.raises(LineageError):
            epoch._check_known({("op", 0): epoch.reports[0]})
        epoch.abort()


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def closes(interval: Interval, clock: Clock, seconds: float) -> bool:
    """Whether a step after some seconds closes the epoch; it is then held, or published."""
    clock.now_s += seconds
    head = dataclasses.replace(HEAD)
    step = interval.step(head, Position("q", 1, "o"), closes=False)
    if step.closes:
        interval.published()
    else:
        interval.hold(dataclasses.replace(HEAD, epoch=2, predecessor=1), ())
    return step.closes


HEAD = Manifest(1, 0, "e", "r", 1, "h", 128, 0, 0, "pystate", (), queries=())


@pytest.mark.parametrize(
    ("options", "most", "seconds", "wanted"),
    [
        (CheckpointOptions(), None, [1, 1], [True, True]),
        (CheckpointOptions(interval=2), None, [1, 1, 1, 1], [False, True, False, True]),
        (CheckpointOptions(interval="9 s"), None, [4, 4, 4, 10], [False, False, True, True]),
        (CheckpointOptions(minimum_pause="5 s"), None, [2, 2, 2, 6], [False, False, True, True]),
        (CheckpointOptions(2, minimum_pause=5000), None, [2, 2, 2], [False, False, True]),
        (CheckpointOptions(interval="1 h"), 3, [1, 1, 1, 1], [False, False, True, False]),
        (CheckpointOptions(tolerable_failures=1), None, [1, 1], [True, True]),
    ],
)  # fmt: skip
def test_when_a_checkpoint_is_due(
    options: CheckpointOptions,
    most: int | None,
    seconds: list[float],
    wanted: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    interval = Interval(options, clock)
    interval.most_steps = most
    monkeypatch.setattr(Manifest, "progress", lambda self, query_id: True)
    assert [closes(interval, clock, each) for each in seconds] == wanted


def test_options_are_checked() -> None:
    for wrong in (
        {"interval": 0},
        {"interval": True},
        {"interval": "often"},
        {"mode": "exactly once"},
        {"minimum_pause": -1},
        {"timeout": 0},
        {"tolerable_failures": -1},
        {"on_cancel": "remove"},
        {"rewindable": 1},
    ):
        with pytest.raises((InvalidArgumentError, TypeError), match="CheckpointOptions: "):
            CheckpointOptions(**wrong)  # type: ignore[arg-type]
    assert not CheckpointOptions().holds
    assert CheckpointOptions(interval=2).holds and CheckpointOptions(interval="1 ms").holds


def once_in_vain(work: Any, fails: bool) -> Callable[[Epoch], Any]:
    """Work whose first evaluation is discarded after its reports."""

    def evaluate(epoch: Epoch) -> Any:
        result = work(epoch)
        if fails and not epoch.discarded_evaluations:
            raise OSError("a lost executor")
        return result

    return evaluate


ACTIONS = st.lists(
    st.sampled_from(["step", "step", "step", "flush", "run", "discard", "fail", "crash", "lose"]),
    max_size=25,
)


@given(actions=ACTIONS, every=st.integers(1, 4), tolerable=st.integers(0, 2))
def test_any_order_of_steps_and_losses(
    tmp_path_factory: pytest.TempPathFactory, actions: list[str], every: int, tolerable: int
) -> None:
    """State and output are those of the batches and runs up to the newest manifest, each once."""
    steps = StepWork(LocalStorage(tmp_path_factory.mktemp("model") / "checkpoint"))
    options = CheckpointOptions(interval=every, tolerable_failures=tolerable)
    coordinator = steps.coordinator(checkpoints=options)
    failing = [False]
    steps.fails = lambda epoch: failing[0]
    done: list[str] = []  # since the beginning, as far as it is not lost
    position, runs = 0, 0
    for action in actions:
        failing[0] = action == "fail"
        if action in ("step", "fail", "discard"):
            evaluate = once_in_vain(steps.step(f"b{position}"), action == "discard")
            try:
                coordinator.run(evaluate, restore="latest", **batch(position))
            except (CheckpointError, LineageError):
                assert action == "fail"
                action = "crash"
            else:
                done.append(f"b{position}")
                position += 1
        elif action == "flush":
            coordinator.flush(steps.flushed)
        elif action == "run":
            runs += 1
            coordinator.flush(steps.flushed)
            coordinator.run(steps.step(f"r{runs}"), run_key=f"r{runs}")
            done.append(f"r{runs}")
        if action == "crash":
            coordinator.close()
            coordinator = steps.coordinator(checkpoints=options)
        if action in ("crash", "lose"):
            coordinator.interval.drop()
            head = coordinator.take_over()
            progress = None if head is None else head.progress("q")
            position = 0 if progress is None else progress.batch_id + 1
            kept = steps.content()
            assert done[: len(kept)] == kept
            done = kept
    failing[0] = False
    coordinator.flush(steps.flushed)
    coordinator.close()
    assert steps.content() == done
    assert [text for _, sinks in steps.outputs for text in sinks] == done
