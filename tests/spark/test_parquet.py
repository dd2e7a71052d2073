"""The commit of a Parquet sink, from the transaction alone."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.coordinator import Coordinator
from pystate.epochs.epoch import Epoch
from pystate.epochs.publication import OvertakenError
from pystate.errors import (
    CheckpointError,
    EvaluationError,
    FencedError,
    InvalidArgumentError,
)
from pystate.spark.sinks.commits import commit
from pystate.spark.sinks.outputs import Outputs, begin_outputs, relocatable
from pystate.spark.sinks.parquet import ParquetSink
from tests.conftest import FakeWork

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def staged(folder: Path, epoch: int = 3, evaluation: str = "abc") -> dict[str, Any]:
    staging = folder / "_staging" / f".{epoch}-{evaluation}" / "_rows"
    staging.mkdir(parents=True)
    (staging / "part-0.parquet").write_bytes(b"12345")
    (staging / "part-1.parquet").write_bytes(b"1")
    (staging / "_SUCCESS").touch()
    transaction = {
        "kind": "parquet",
        "path": str(folder),
        "staging": f"_staging/.{epoch}-{evaluation}/_rows",
        "final": f"epoch={epoch}",
        "files": [("part-0.parquet", 5), ("part-1.parquet", 1)],
    }
    return dict(json.loads(json.dumps(transaction)))


def stage(sink: ParquetSink, frame: DataFrame, epoch: int) -> dict[str, Any]:
    receipts = list(sink.stage_frame(frame, epoch, "abc"))
    transaction = json.loads(json.dumps(sink.prepare(epoch, "abc", receipts)))
    return dict(transaction)


def test_commit_is_one_rename_and_can_be_repeated(tmp_path: Path) -> None:
    transaction = staged(tmp_path)
    staged(tmp_path, evaluation="lost")
    staged(tmp_path, epoch=4, evaluation="later")
    for _ in range(2):
        commit(transaction)
        assert sorted(p.name for p in (tmp_path / "epoch=3").glob("part*")) == [
            "part-0.parquet",
            "part-1.parquet",
        ]
    # What lost is gone; what belongs to a later epoch is not.
    assert [p.name for p in (tmp_path / "_staging").iterdir()] == [".4-later"]
    assert ParquetSink(tmp_path).epochs() == [3]


def test_two_drivers_commit_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them, whole, before each look or change of the other."""
    calls = 0
    for turn in range(100):
        folder = tmp_path / str(turn)
        transaction = staged(folder)
        calls = 0

        def counted(real: Any, turn: int = turn, transaction: Any = transaction) -> Any:
            def call(*arguments: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == turn + 1:
                    commit(transaction)
                return real(*arguments)

            return call

        with monkeypatch.context() as patch:
            for name in ("listdir", "rename", "open"):
                patch.setattr(os, name, counted(getattr(os, name)))
            for name in ("getsize", "isdir"):
                patch.setattr(os.path, name, counted(getattr(os.path, name)))
            commit(transaction)
        assert len(list((folder / "epoch=3").glob("part*"))) == 2
        if calls <= turn:
            break
    assert 5 < turn < 99


def test_a_folder_that_an_older_version_staged_is_committed_and_swept(tmp_path: Path) -> None:
    transaction = staged(tmp_path)
    parent = tmp_path / "_staging"
    (parent / ".3-abc" / "_rows").rename(parent / "3-abc")
    (parent / "3-lost.tasks").mkdir()
    commit({**transaction, "staging": "_staging/3-abc"})
    assert (tmp_path / "epoch=3" / "part-0.parquet").exists()
    assert list(parent.iterdir()) == []


@pytest.mark.parametrize("where", ["_staging/.3-abc/_rows", "epoch=3"])
@pytest.mark.parametrize("damage", ["missing", "short", "more"])
def test_commit_of_other_files_is_loud(tmp_path: Path, where: str, damage: str) -> None:
    transaction = staged(tmp_path)
    if where == "epoch=3":
        commit(transaction)
    file = tmp_path / where / "part-0.parquet"
    if damage == "missing":
        file.unlink()
    elif damage == "short":
        file.write_bytes(b"1")
    else:
        (tmp_path / where / "part-9.parquet").write_bytes(b"1")
    with pytest.raises(CheckpointError, match="does not hold the 2 files") as raised:
        commit(transaction)
    assert str(tmp_path / where) in str(raised.value)


def test_commit_of_nothing_or_onto_something_is_loud(tmp_path: Path) -> None:
    transaction = staged(tmp_path)
    (tmp_path / "epoch=3").mkdir()
    with pytest.raises(CheckpointError, match="exists already"):
        commit(transaction)
    (tmp_path / "epoch=3").rmdir()
    commit(transaction)
    for file in (tmp_path / "epoch=3").iterdir():
        file.unlink()
    (tmp_path / "epoch=3").rmdir()
    with pytest.raises(CheckpointError, match=r"output is lost.*backup"):
        commit(transaction)


def test_folder_in_the_checkpoint_moves_with_it(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    transaction = relocatable(staged(before / "results"), str(before))
    assert transaction["path"] == "results" and str(tmp_path) not in str(transaction)
    before.rename(after)
    for _ in range(2):
        commit(transaction, str(after))
        assert (after / "results" / "epoch=3" / "part-0.parquet").exists()
    assert not before.exists()


@pytest.mark.parametrize("checkpoint", ["before/results/ck", "bef", None])
def test_folder_outside_the_checkpoint_stays_where_it_is(
    tmp_path: Path, checkpoint: str | None
) -> None:
    folder = None if checkpoint is None else str(tmp_path / checkpoint)
    transaction = relocatable(staged(tmp_path / "before" / "results"), folder)
    assert transaction["path"] == str(tmp_path / "before" / "results")
    commit(transaction, folder)
    assert (tmp_path / "before" / "results" / "epoch=3").exists()


def test_unknown_kind(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="kind 'kafka'"):
        commit({"kind": "kafka"})


def test_prepare_refuses_another_checkpoints_output(tmp_path: Path) -> None:
    commit(staged(tmp_path))
    ParquetSink(tmp_path).begin(4, "abc")
    with pytest.raises(CheckpointError, match="output of another checkpoint") as caught:
        ParquetSink(tmp_path).begin(3, "abc")
    # It may be what this very checkpoint published, before it was brought back from a copy.
    assert not re.search("remove|delete|move", str(caught.value))


@pytest.mark.parametrize("published", ["by a successor", "by a predecessor", "by another job"])
def test_output_in_the_way_is_another_drivers(tmp_path: Path, published: str) -> None:
    """Who finds its epoch's output there looks first whether it is still the owner."""
    work = FakeWork(LocalStorage(tmp_path / "checkpoint"))
    outputs = Outputs(ParquetSink(tmp_path / "out"))
    one, other = work.coordinator(), work.coordinator()

    def publish(epoch: Epoch) -> None:
        for report in work.reports(epoch):
            epoch.report(report)
        epoch.complete()
        commit(staged(tmp_path / "out", epoch.number))

    def opened(coordinator: Coordinator) -> Epoch:
        epoch = coordinator.open_epoch()
        assert isinstance(epoch, Epoch)
        return epoch

    epoch = opened(one)
    if published == "by another job":
        commit(staged(tmp_path / "out", 1))
        with pytest.raises(CheckpointError, match="output of another checkpoint"):
            begin_outputs(outputs, one, epoch)
    elif published == "by a successor":
        publish(opened(other))
        with pytest.raises(FencedError, match=f"another owner now: run {other.run_id}"):
            begin_outputs(outputs, one, epoch)
    else:
        check, checks = one._ownership.check, []
        later = opened(other)
        # Held up after its last check, until the owner is about to prepare its sinks.
        one._ownership.check = lambda: checks.append(1)  # type: ignore[method-assign]
        publish(epoch)
        one._ownership.check = check  # type: ignore[method-assign]
        with pytest.raises(OvertakenError, match=f"published by another driver.*{one.run_id}"):
            begin_outputs(outputs, other, later)
    one.close()
    other.close()


def test_zombie_that_passed_the_check_before(tmp_path: Path) -> None:
    """It was the owner then, and is not any more when it finds the output."""
    work = FakeWork(LocalStorage(tmp_path / "checkpoint"))
    one, other = work.coordinator(), work.coordinator()
    epoch = one.open_epoch()
    assert isinstance(epoch, Epoch)

    class Held(ParquetSink):
        def begin(self, epoch: int, evaluation_id: str) -> None:
            other.run(work.evaluate())
            commit(staged(tmp_path / "out", epoch))
            super().begin(epoch, evaluation_id)

    with pytest.raises(FencedError, match=f"another owner now: run {other.run_id}"):
        begin_outputs(Outputs(Held(tmp_path / "out")), one, epoch)
    one.close()
    other.close()


def test_only_file_systems(tmp_path: Path) -> None:
    assert ParquetSink(f"file://{tmp_path}/a%20b").path == f"{tmp_path}/a b"
    assert ParquetSink(f"{tmp_path}/a%20#?").path == f"{tmp_path}/a%20#?"
    for path, error in (
        ("s3a://bucket/x", "s3a://"),
        ("", "path is the path of a folder"),
        ("file:///a#b", "write # as %23"),
    ):
        with pytest.raises(InvalidArgumentError, match=error):
            ParquetSink(path)


def test_what_is_staged_is_what_the_tasks_have_counted(spark: SparkSession, tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    transaction = stage(sink, spark.range(0, 10, 1, 3), 3)
    assert (transaction["rows"], len(transaction["files"])) == (10, 3)
    commit(transaction)
    assert stage(sink, spark.range(0), 4)["rows"] == 0
    rows = spark.read.parquet(f"file://{tmp_path}/epoch=3").collect()
    assert sorted(row.id for row in rows) == list(range(10))


@pytest.mark.parametrize("counted", ["files", "rows"])
@pytest.mark.parametrize("damage", ["lost", "cut", "strange"])
def test_a_listing_that_is_not_complete_is_no_epoch(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    counted: str,
    damage: str,
) -> None:
    from pystate.spark.base import parquet_format

    write = parquet_format.write_parquet
    if counted == "rows":
        write = parquet_format._counted_write

    def write_and_damage(
        frame: DataFrame, uri: str, by: Sequence[str]
    ) -> parquet_format.WriteCounts:
        done = write(frame, uri, by)
        folder = Path(uri.removeprefix("file://"))
        first, *_ = sorted(folder.glob("part-*"))
        if damage == "lost":
            first.unlink()
        elif damage == "strange":
            shutil.copy(first, first.with_name("part-9.parquet"))
        elif counted == "files":
            first.write_bytes(first.read_bytes()[:-1])
        else:
            shutil.copy(tmp_path / "none.parquet", first)
        return done

    none = pa.table({"id": pa.array([], pa.int64())})
    pq.write_table(none, tmp_path / "none.parquet")
    monkeypatch.setattr("pystate.spark.sinks.parquet.write_parquet", write_and_damage)
    with pytest.raises(EvaluationError, match=r"the tasks wrote .* and the driver finds"):
        ParquetSink(tmp_path / "out").stage_frame(spark.range(0, 10, 1, 2), 3, "abc")


def test_readers_by_pattern_see_what_is_published_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    from glob import glob

    sink = ParquetSink(tmp_path)
    commit(stage(sink, spark.range(10), 3))
    stage(sink, spark.range(100), 4)
    task = Path(sink.task_folder(4, "abc"))
    task.mkdir(parents=True, exist_ok=True)
    shutil.copy(next((tmp_path / "epoch=3").glob("part-*")), task)
    for pattern in ("", "/*", "/*/*"):
        assert spark.read.parquet(f"file://{tmp_path}{pattern}").count() == 10, pattern
    found = glob(f"{tmp_path}/**/*.parquet", recursive=True)
    assert {Path(name).parent.name for name in found} == {"epoch=3"}
