"""What an epoch reports: sums, and one line for a log."""

from __future__ import annotations

import dataclasses

import pytest

from pystate.checkpoint.epoch_log import OperatorRecord
from pystate.checkpoint.refs import FileRef, OperatorState, RangeState
from pystate.epochs.chronicle import TableSize
from pystate.epochs.coordinator import Coordinator
from pystate.epochs.epoch import Epoch
from pystate.epochs.range_report import InputSeen, RangeReport, SideFile
from pystate.epochs.watermarks import Input
from pystate.spark.epochs.progress import EpochProgress, OperatorProgress
from tests.conftest import KEY, STATE, FakeWork


@pytest.fixture
def progress(work: FakeWork) -> EpochProgress:
    coordinator: Coordinator = work.coordinator()
    position = {"query_id": "q", "offsets_hash": "h", "processing_time_ms": 77}
    with coordinator, coordinator.open_epoch(batch_id=0, **position) as epoch:  # type: ignore
        assert isinstance(epoch, Epoch)
        epoch.declare("op", key_schema=KEY, state_schema=STATE, inputs=(Input(event_time=True),))
        epoch.declare("plain", key_schema=KEY, state_schema=STATE)
        for index in range(2):
            for uid, late in (("op", {"late_rows": index + 1}), ("plain", {})):
                side = (SideFile("late", f"{uid}-{index}", 10, 2), SideFile("odd", "f", 10, 1))
                epoch.report(
                    RangeReport(
                        uid,
                        index,
                        epoch.evaluation_id,
                        "0" * 32,
                        "0" * 32,
                        None,
                        side_files=side if uid == "op" else (),
                        inputs=(InputSeen(rows=10, max_event_time_ms=1_700_000_000_123),),
                        metrics={"rows_in": 10, "rows_out": 5, **late},
                    )
                )
        after = epoch.collect()
        return EpochProgress.of(epoch, after, epoch.reports, {"op": {0: TableSize(4, 9)}}, 1234.0)


def test_sums(progress: EpochProgress) -> None:
    assert (progress.processing_time_ms, progress.watermark_ms) == (77, 1_700_000_000_123)
    marks = {operator.uid: operator.watermark_ms for operator in progress.operators}
    assert marks == {"op": 1_700_000_000_123, "plain": None}
    assert progress.late_rows == {"op": 3}
    assert progress.side_rows == {"late": 4, "odd": 2}
    assert (progress.rows_in, progress.rows_out) == (40, 20)
    assert (progress.merged_bytes, progress.most_files) == (0, 0)


def test_files_and_what_merges_wrote() -> None:
    """Of files that an earlier epoch has named nothing counts as written."""
    names = ("1-a.base", "1-b.delta", "2-t1-c.delta", "3-d.delta")
    refs = [
        FileRef(
            f"state/op/00000-00127/0000000{name}",
            name[-5:],
            "a",
            "b",
            1,
            0,
            127,
            10 * i,
            0,
            1,
            0,
            1,
        )
        for i, name in enumerate(names, 1)
    ]
    state = RangeState(0, 0, 127, "d", refs[0], tuple(refs[1:]))
    after = OperatorState("op", 1, KEY, STATE, (state,), watermark_ms=7)
    record = OperatorRecord("op", 1, checkpoint_bytes=40)
    one = OperatorProgress.of(record, after, frozenset(ref.path for ref in refs[:2]))
    assert (one.merged_bytes, one.most_files, one.watermark_ms) == (30, 4, 7)
    metrics = one.as_spark()["customMetrics"]
    assert (metrics["mergedBytes"], metrics["mostFiles"]) == (30, 4)
    assert (metrics["cacheHits"], metrics["cacheMisses"], metrics["readBytes"]) == (0, 0, 0)
    assert OperatorProgress.of(record, after, frozenset()).merged_bytes == 40
    assert OperatorProgress.of(record, None, frozenset()).merged_bytes == 0


def test_the_line(progress: EpochProgress) -> None:
    assert str(progress) == (
        "epoch 1 (batch 0): 40 rows in, 20 out, 3 late, 4 to 'late', 2 to 'odd', "
        "watermark 2023-11-14 22:13:20.123 UTC, 4 keys, 1.23 s"
    )
    run = dataclasses.replace(
        progress, batch_id=None, run_key="may", rows_late=None, side_rows={}, watermark_ms=1 << 60
    )
    assert str(run) == (
        f"epoch 1 (run 'may'): 40 rows in, 20 out, watermark {1 << 60} ms, 4 keys, 1.23 s"
    )
    assert "(a run)" in str(dataclasses.replace(run, run_key=None))
