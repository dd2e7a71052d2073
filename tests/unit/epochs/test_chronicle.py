"""The records of a driver's epochs: what they add up, and that they cost an epoch nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import pystate as ps
from pystate.checkpoint.epoch_log import HISTORY, read_records, written_per_byte
from pystate.checkpoint.refs import fingerprint
from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.chronicle import TableSize, operator_record
from pystate.epochs.coordinator import Coordinator
from pystate.epochs.epoch import Epoch
from pystate.epochs.interval import CheckpointOptions
from pystate.epochs.merge_policy import MergePolicy
from pystate.errors import FencedError, NoSpaceError
from tests.conftest import KEY, STATE, FakeWork
from tests.unit.epochs.test_coordinator import batch
from tests.unit.epochs.test_interval import StepWork

METRICS: dict[str, Any] = {
    "rows_in": 5,
    "rows_out": 4,
    "rows_changed": 3,
    "rows_restored": 2,
    "rows_copied": 1,
    "late_rows": 1,
    "keys": 10,
    "state_bytes": 100,
    "attach_ms": 1.0,
    "process_ms": 2.0,
    "seal_ms": 3.0,
    "write_ms": 4.0,
    "invalid_rows": 6,
    "rows_in_memory": 7,
    "cache_hits": 8,
    "cache_misses": 2,
    "files_asked": 3,
    "read_bytes": 4096,
    "rows_left": 9,
}


class Metered(StepWork):
    """Work whose tasks report numbers; those of the second range are twice as large."""

    def _report(self, epoch: Epoch, state: Any, text: str) -> Any:
        report = super()._report(epoch, state, text)
        metrics = {name: value * (state.index + 1) for name, value in METRICS.items()}
        return dataclasses.replace(report, metrics=metrics)


@pytest.fixture
def metered(tmp_path: Path) -> Metered:
    return Metered(LocalStorage(tmp_path / "checkpoint"))


def test_a_record_says_what_an_epoch_was(metered: Metered) -> None:
    with metered.coordinator(checkpoints=CheckpointOptions()) as coordinator:
        coordinator.run(metered.step("a"), **batch(0))
        manifest = coordinator.run(metered.step("b"), run_key="r").manifest
        last = coordinator.run(metered.step("c"), **batch(1)).manifest
    first, second, third = read_records(metered.storage).records
    assert manifest is not None and last is not None
    assert [r.epoch for r in (first, second, third)] == [1, 2, 3]
    assert (first.query_id, first.batch_id, first.run_key) == ("q", 0, None)
    assert (second.query_id, second.batch_id, second.run_key) == (None, None, "r")
    assert second.published_ms == manifest.created_ms
    assert second.processing_time_ms == manifest.processing_time_ms
    assert (second.term, second.host) == (1, manifest.host)
    assert (second.batches, second.evaluations, second.merged_bytes) == (1, 1, 0)
    assert second.total_ms >= second.publish_ms + second.commit_ms > 0
    [operator] = second.operators
    files = [ref for ref in manifest.operators[0].files if ref.epoch == 2]
    assert vars(operator) == {
        "uid": "op",
        "ranges": 2,
        **{name: 3 * METRICS[name] for name in METRICS if not name.endswith("_ms")},
        **{name: 2 * METRICS[name] for name in METRICS if name.endswith("_ms")},
        "checkpoint_bytes": sum(ref.file_bytes for ref in files),
        "watermark_ms": None,
        "fingerprint": fingerprint(manifest.operators[0]),
        "since": (),
        "merged_bytes": 0,
        "most_files": 2,
    }
    assert operator.checkpoint_bytes > 0 and operator.late_rows == 3


def test_the_steps_of_an_epoch_are_added_up(metered: Metered) -> None:
    with metered.coordinator() as coordinator:
        for number in range(5):
            coordinator.run(metered.step(f"b{number}"), **batch(number))
        assert len(read_records(metered.storage).records) == 2
        coordinator.flush(metered.flushed)
        for number in range(5, 7):
            coordinator.run(metered.step(f"b{number}"), **batch(number))
        # Steps that are given up are in no record.
        coordinator.interval.drop()
        coordinator.run(metered.step("b5"), **batch(5), closes=True)
    records = read_records(metered.storage).records
    assert [(r.epoch, r.batches, r.evaluations, r.batch_id) for r in records] == [
        (1, 1, 1, 0), (2, 3, 3, 3), (3, 1, 1, 4), (4, 1, 1, 5)
    ]  # fmt: skip
    assert [r.total("rows_in") for r in records] == [15, 45, 15, 15]
    assert [r.total("late_rows") for r in records] == [3, 9, 3, 3]
    assert [r.longest("seal_ms") for r in records] == [6, 18, 6, 6]
    assert [r.total("keys") for r in records] == [30] * 4
    assert all(r.total("checkpoint_bytes") > 0 for r in records)


def test_keys_of_ranges_that_did_not_report_stay_known(metered: Metered) -> None:
    with metered.coordinator(checkpoints=CheckpointOptions()) as coordinator:
        coordinator.run(metered.step("a"), run_key="1")

        def one(epoch: Epoch) -> Sequence[Any]:
            first, second = epoch.declare("op", key_schema=KEY, state_schema=STATE)
            epoch.report(metered._report(epoch, first, "x"))
            bare = metered._report(epoch, second, "x")
            epoch.report(dataclasses.replace(bare, metrics={"rows_in": 1}))
            return ()

        coordinator.run(one, run_key="2")
        coordinator.rescale(4)
        coordinator.run(metered.step("c"), run_key="3")
    records = read_records(metered.storage).records
    assert [r.total("keys") for r in records] == [30, 30, 100]
    assert [r.total("rows_in") for r in records] == [15, 6, 50]
    assert [r.operators[0].ranges for r in records] == [2, 2, 4]


class OfOne(dict[str, Any]):
    """Sizes of many operators, of which one may be asked for, and not all."""

    def __iter__(self) -> Any:
        raise AssertionError("all operators were looked at")

    items = keys = values = __iter__


def test_an_operator_is_added_up_without_a_look_at_others() -> None:
    record = operator_record(
        "a", [], OfOne(a={0: TableSize(3, 40, 2), 1: TableSize(1, 2)}, b={0: TableSize(7, 7)})
    )
    assert (record.keys, record.state_bytes, record.rows_in_memory) == (4, 42, 2)
    assert operator_record("c", [], OfOne()).keys == 0


def test_evaluations_are_counted(work: FakeWork) -> None:
    failures = [OSError("once"), ValueError("twice")]

    def evaluate(epoch: Epoch) -> Sequence[Any]:
        if failures:
            raise failures.pop()
        return work.evaluate()(epoch)

    with work.coordinator() as coordinator:
        coordinator.run(evaluate)
    [record] = read_records(work.storage).records
    assert (record.batches, record.evaluations) == (1, 3)


@pytest.mark.parametrize("kind", ["base", "delta"])
def test_merged_files_count_in_the_epoch_that_names_them(tmp_path: Path, kind: str) -> None:
    """And nowhere else: what an epoch has changed is in its own deltas."""
    from tests.work import Work

    work = Work(tmp_path / "c")
    policy = MergePolicy(2, 3, 0, base_part=0.5 if kind == "base" else 100)
    sizes: dict[str, int] = {}
    depths = []
    with work.coordinator(merge_policy=policy) as coordinator:
        for number in range(7):
            work.run(coordinator, {number: 1, number + 50: 1})
            assert coordinator.head is not None
            [operator] = coordinator.head.operators
            sizes.update((ref.path, ref.file_bytes) for ref in operator.files)
            depths.append(max(len(state.files) for state in operator.ranges))
            coordinator.maintain()
    merged = {path: size for path, size in sizes.items() if "-t1-" in path}
    kinds = {path.rpartition(".")[2] for path in merged}
    assert "base" in kinds and ("delta" in kinds) == (kind == "delta")
    records = read_records(work.storage).records
    assert sum(r.merged_bytes for r in records) == sum(merged.values()) > 0
    assert [r.merged_bytes for r in records] == [r.total("merged_bytes") for r in records]
    changed = sum(size for path, size in sizes.items() if path not in merged)
    assert sum(r.total("checkpoint_bytes") for r in records) == changed
    assert [r.operators[0].most_files for r in records] == depths
    written = written_per_byte(records, "op")
    assert written == (changed + sum(merged.values())) / changed


def test_an_epoch_whose_output_is_not_committed_has_a_record(work: FakeWork) -> None:
    def fails(manifest: Any) -> None:
        raise OSError("the sink is away")

    with (
        work.coordinator(commit_sinks=fails) as coordinator,
        pytest.raises(OSError, match="the sink is away"),
    ):
        coordinator.run(work.evaluate())
    assert [r.epoch for r in read_records(work.storage).records] == [1]


def test_an_epoch_that_is_not_published_has_none(work: FakeWork) -> None:
    zombie = work.coordinator()
    epoch = zombie.open_epoch()
    assert isinstance(epoch, Epoch)
    with work.coordinator() as successor:
        successor.run(work.evaluate())
    work.evaluate()(epoch)
    with pytest.raises(FencedError):
        epoch.complete(["out"])
    zombie.close()
    assert [(r.epoch, r.term) for r in read_records(work.storage).records] == [(1, 2)]


class Watched(LocalStorage):
    """Says what is written into the history, and can refuse it."""

    written: list[tuple[str, bool]]
    refuses: Callable[[], None]

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        if path.startswith(HISTORY):
            self.written.append(("replace", durable))
            self.refuses()
        super().replace(path, data, durable=durable)

    def publish(self, path: str, data: bytes) -> None:
        if path.startswith(HISTORY):
            self.written.append(("publish", True))
        super().publish(path, data)


def watched(folder: Path, refuses: Callable[[], None] = lambda: None) -> Watched:
    storage = Watched(folder)
    storage.written, storage.refuses = [], refuses
    return storage


def test_a_record_is_one_write_that_is_not_synced(tmp_path: Path) -> None:
    storage = watched(tmp_path / "c")
    work = FakeWork(storage)
    with work.coordinator() as coordinator:
        for _ in range(5):
            coordinator.run(work.evaluate())
            coordinator.maintain()
    assert storage.written == [("replace", False)] * 5


@pytest.mark.parametrize("error", [NoSpaceError("full"), OSError("away")])
def test_a_record_that_cannot_be_written_is_missing(
    tmp_path: Path, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    fails = [False, True, False]

    def refuse() -> None:
        if fails.pop(0):
            raise error

    work = FakeWork(watched(tmp_path / "c", refuse))
    with work.coordinator() as coordinator:
        assert [coordinator.run(work.evaluate()).epoch for _ in range(3)] == [1, 2, 3]
    assert "epoch 2 is published; its record is missing in the history" in caplog.text
    # The driver's file holds it, too, once it can be written again.
    assert [r.epoch for r in read_records(work.storage).records] == [1, 2, 3]


def test_a_driver_merges_the_files_of_those_before_it(work: FakeWork) -> None:
    for _ in range(30):
        with work.coordinator() as coordinator:
            coordinator.run(work.evaluate())
    assert len(work.storage.list(HISTORY)) <= 9
    assert [r.epoch for r in read_records(work.storage).records] == list(range(1, 31))
    assert [r.term for r in read_records(work.storage).records] == list(range(1, 31))


def test_a_coordinator_that_runs_nothing_writes_nothing(work: FakeWork) -> None:
    with work.coordinator() as coordinator:
        coordinator.take_over()
    assert work.storage.list(HISTORY) == []


def test_a_stores_epochs_are_recorded(tmp_path: Path) -> None:
    for opened in range(12):
        with ps.open(tmp_path / "s", key="long", states={"n": ps.ValueState("long")}) as store:
            for number in range(3):
                store["n"].update_all(store.keys([opened, number]), [opened, number + opened])
                store.checkpoint()
            store.checkpoint()  # nothing has changed
    found = ps.history(tmp_path / "s")
    assert [r.epoch for r in found.records] == list(range(1, 37)) and not found.missing
    last = found.records[-1]
    assert last.total("rows_changed") == 2 and last.total("keys") == 12
    assert last.total("checkpoint_bytes") > 0 and last.total_ms >= last.publish_ms > 0
    assert sum(r.merged_bytes for r in found.records) > 0
    assert len(list((tmp_path / "s" / HISTORY).iterdir())) <= 9


def test_a_coordinator_of_one_range_says_so(work: FakeWork) -> None:
    def nothing(epoch: Epoch) -> Sequence[Any]:
        return ()

    with Coordinator(work.storage, job="job", parallelism=1) as coordinator:
        coordinator.run(nothing)
    [record] = read_records(work.storage).records
    assert record.operators == () and record.total("keys") == 0
