"""A sink of one's own: its part in an epoch, its errors, and who commits after a restart."""

from __future__ import annotations

import json
import os
import shutil
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.errors import (
    CheckpointError,
    DeclarationError,
    InvalidArgumentError,
    PystateError,
    SinkError,
)
from pystate.spark import EpochResult, Job, ParquetSink, Sink, SinkTask, register_sink
from pystate.spark.sinks.sink import registered_names, registered_sink

from .conftest import Source, state_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MakeJob = Callable[..., Job]

ADDRESS = "postgresql://me:wJal/K7MDENG@host/db"


class Lines(Sink):
    """A file of lines for each epoch, and a log of what the driver called."""

    name = "lines"

    def __init__(self, folder: Path, fails: str = "", name: str = "lines") -> None:
        self.folder = str(folder)
        self.fails = fails
        self.name = name

    def called(self, what: str) -> None:
        os.makedirs(self.folder, exist_ok=True)
        with open(f"{self.folder}/calls", "a") as calls:
            calls.write(f"{what}\n")
        if what.split()[0] == self.fails:
            raise OSError(f"no {what.split()[0]} today\nat {ADDRESS}")

    def begin(self, epoch: int, evaluation_id: str) -> None:
        self.called(f"begin {epoch}")

    def stage(self, batches: Iterator[pa.RecordBatch], task: SinkTask) -> Any:
        if self.fails == "stage":
            raise OSError(f"no stage today\nat {ADDRESS}")
        if self.fails == "first attempt":
            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            if context.attemptNumber() == 0:
                raise OSError("once")
        rows = [row for batch in batches for row in batch.to_pylist()]
        folder = f"{self.folder}/.{task.epoch}-{task.evaluation_id}"
        os.makedirs(folder, exist_ok=True)
        name = f"{task.partition}-{task.attempt_id}"
        with open(f"{folder}/{name}", "w") as file:
            file.writelines(f"{json.dumps(row)}\n" for row in rows)
        return name, len(rows)

    def prepare(self, epoch: int, evaluation_id: str, receipts: list[Any]) -> Any:
        self.called(f"prepare {epoch} {sum(rows for _, rows in receipts)}")
        return {"folder": f".{epoch}-{evaluation_id}", "names": tuple(n for n, _ in receipts)}

    def commit(self, epoch: int, transaction: Any) -> None:
        self.called(f"commit {epoch}")
        # As from a manifest, also where it comes from this very process.
        assert isinstance(transaction["names"], list)
        staged, final = f"{self.folder}/{transaction['folder']}", f"{self.folder}/{epoch}"
        if os.path.exists(final):
            return
        with open(f"{staged}/all", "w") as file:
            for name in transaction["names"]:
                file.write(Path(staged, name).read_text())
        os.rename(f"{staged}/all", final)
        shutil.rmtree(staged)

    def abort(self, epoch: int, evaluation_id: str) -> None:
        self.called(f"abort {epoch}")
        shutil.rmtree(f"{self.folder}/.{epoch}-{evaluation_id}", ignore_errors=True)

    @property
    def calls(self) -> list[str]:
        return Path(self.folder, "calls").read_text().splitlines()

    def rows(self, epoch: int) -> list[tuple[Any, ...]]:
        lines = Path(self.folder, str(epoch)).read_text().splitlines()
        return sorted(tuple(json.loads(line).values()) for line in lines)

    def left(self) -> list[str]:
        return [name for name in os.listdir(self.folder) if name.startswith(".")]


class Counts(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
        self.n.update(self.n.value() + 1)
        yield key, self.n.value()


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pystate.spark.sinks.sink._registry", {})


def run(job: Job, spark: SparkSession, text: str, sink: Sink, **options: Any) -> EpochResult:
    def pipeline(df: DataFrame) -> DataFrame:
        return job.key_by(df, "k", uid="counts").process(Counts(), "k string, n long")

    frame = spark.createDataFrame([(c,) for c in text], "k string")
    return job.run_epoch(frame, pipeline, sink=sink, **options)


def test_the_part_of_a_sink_in_an_epoch(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    job, sink = make_job(), Lines(tmp_path / "lines", "first attempt")
    first = run(job, spark, "aab", sink, run_key="one")
    assert sink.rows(1) == [("a", 1), ("a", 2), ("b", 1)]
    assert sink.calls == ["begin 1", "prepare 1 3", "commit 1"] and sink.left() == []
    with pytest.raises(InvalidArgumentError, match=r"rows of epoch 1 went to .*Lines"):
        _ = first.dataframe
    run(job, spark, "", sink)
    assert sink.rows(2) == [] and sink.calls[3:] == ["begin 2", "prepare 2 0", "commit 2"]
    # The run is known, and so is where its rows are.
    assert run(job, spark, "zz", sink, run_key="one").already_done
    for other in (ParquetSink(tmp_path / "out"), Lines(tmp_path / "other", name="other")):
        with pytest.raises(InvalidArgumentError, match=r"run 'one', epoch 1, .*'lines': pass"):
            run(job, spark, "zz", other, run_key="one")
    # The folder of a sink of ours that is not one of theirs.
    run(job, spark, "c", ParquetSink(tmp_path / "out"), run_key="two")
    with pytest.raises(InvalidArgumentError, match=r"run 'two'.*pass sink=ParquetSink\("):
        run(job, spark, "c", sink, run_key="two")


def test_what_fails_before_the_manifest_publishes_nothing(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    job, sink = make_job(), Lines(tmp_path / "lines")
    for fails in ("begin", "stage", "prepare"):
        sink.fails = fails
        message = rf"^sink 'lines', epoch 1.*: {fails} failed: OSError: no {fails} today; nothing"
        with pytest.raises(SinkError, match=message) as raised:
            run(job, spark, "ab", sink)
        assert "\n" not in str(raised.value)
        printed = "".join(traceback.format_exception(raised.value))
        assert "K7MDENG" not in printed
        # Of what tasks raise, Spark reports the last exception only.
        assert ("***@host" in printed) == (fails != "stage")
        assert sink.calls[-1] == "abort 1" and sink.left() == [] and job.latest_epoch() is None
    sink.fails = ""
    run(job, spark, "ab", sink)
    assert sink.rows(1) == [("a", 1), ("b", 1)]


def test_an_abort_that_fails_hides_nothing(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Both(Lines):
        def prepare(self, epoch: int, evaluation_id: str, receipts: list[Any]) -> Any:
            raise KeyError("the reason")

    with pytest.raises(SinkError, match="prepare failed: KeyError: 'the reason'"):
        run(make_job(), spark, "ab", Both(tmp_path / "lines", "abort"))
    assert "sink 'lines', epoch 1: abort failed: OSError" in caplog.text


def test_a_commit_that_fails_waits_for_the_next_start(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    job, sink = make_job(), Lines(tmp_path / "lines", "commit")
    with pytest.raises(SinkError) as raised:
        run(job, spark, "ab", sink, run_key="one")
    for part in (
        "^sink 'lines': commit failed: OSError: no commit today; epoch 1 is published and its",
        "start the job again, which commits them",
        r"job.abandon_output\(1\)$",
    ):
        assert raised.match(part)
    job.close()

    # Another driver, which has a sink of another name, or of none.
    job = make_job()
    others: list[tuple[Sink, str]] = [
        (Lines(tmp_path / "other", name="line"), "it has 'line'; did you mean 'line'"),
        (ParquetSink(tmp_path / "out"), "it has none of a name"),
    ]
    for other, has in others:
        with pytest.raises(SinkError) as raised:
            run(make_job(), spark, "c", other)
        assert raised.match(rf"epoch 1 .* sink 'lines', of class .*Lines, .*\({has}.*register_sink")
        assert raised.match(r"job.abandon_output\(1\)")
    assert sink.calls[-1] == "commit 1" and not Path(sink.folder, "1").exists()

    # One that was registered commits, whatever the job's own sink is.
    again = Lines(tmp_path / "lines")
    assert register_sink(again) is again
    run(job, spark, "a", ParquetSink(tmp_path / "out"))
    assert again.rows(1) == [("a", 1), ("b", 1)] and again.calls[-1] == "commit 1"
    assert state_of(job, "counts") == {"a": 2, "b": 1}


def test_a_sink_that_is_another_one_now(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    class Changed(Sink):
        name = "lines"

        def stage(self, batches: Iterator[pa.RecordBatch], task: SinkTask) -> Any: ...

        def commit(self, epoch: int, transaction: Any) -> None:
            raise KeyError("file")

    with pytest.raises(SinkError):
        run(make_job(), spark, "ab", Lines(tmp_path / "lines", "commit"))
    message = r"sink 'lines' \(staged by .*Lines, which is .*Changed now\): commit failed: KeyError"
    with pytest.raises(SinkError, match=message):
        run(make_job(), spark, "ab", Changed())


def test_output_that_nobody_can_commit_is_given_up(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    job, sink = make_job(), Lines(tmp_path / "lines", "commit")
    for epoch in (0, "1", None):
        with pytest.raises(InvalidArgumentError, match=r"^abandon_output: epoch is"):
            job.abandon_output(epoch)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="has no epoch"):
        job.abandon_output(1)
    assert not (tmp_path / "checkpoint" / "job.json").exists()
    with pytest.raises(SinkError):
        run(job, spark, "ab", sink)
    job.close()

    job = make_job()
    with pytest.raises(InvalidArgumentError, match=r"epoch 2 is not waiting .* newest epoch is 1"):
        job.abandon_output(2)
    assert job.abandon_output(1) == ["lines"]
    with pytest.raises(InvalidArgumentError, match="epoch 1 is committed"):
        job.abandon_output(1)
    new = Lines(tmp_path / "new", name="new")
    run(job, spark, "a", new)
    assert new.rows(2) == [("a", 2)] and not Path(sink.folder, "1").exists()
    # Who has the sink tries once more, and it may tidy up.
    new.fails = "commit"
    with pytest.raises(SinkError):
        run(job, spark, "a", new)
    assert job.abandon_output(3) == ["new"]
    assert new.calls[-2:] == ["commit 3", "abort 3"] and new.left() == []


def test_parquet_files_that_are_lost_name_the_way_out(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = ParquetSink(tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr("pystate.spark.sinks.commits.commit_parquet", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(make_job(), spark, "ab", sink)
    shutil.rmtree(tmp_path / "out" / "_staging")
    job = make_job()
    with pytest.raises(CheckpointError, match=r"output is lost.*backup.*abandon_output\(1\)$"):
        run(job, spark, "ab", sink)
    assert job.abandon_output(1) == [sink.path]
    run(job, spark, "ab", sink)
    assert sink.epochs() == [2]


def test_a_stream(spark: SparkSession, make_job: MakeJob, source: Source, tmp_path: Path) -> None:
    sink, options = Lines(tmp_path / "lines", "commit"), {"trigger": {"availableNow": True}}

    def start(job: Job, sink: Sink) -> None:
        def pipeline(df: DataFrame) -> DataFrame:
            return job.key_by(df, "k", uid="counts").process(Counts(), "k string, n long")

        job.start(source.stream(), pipeline, sink=sink, **options).awaitTermination()

    source.add("a,1", "b,1")
    source.add("a,2")
    failing = make_job()
    with pytest.raises(Exception, match="no commit today"):
        start(failing, sink)
    assert isinstance(failing.failure, SinkError)
    assert failing.latest_epoch() == 1
    failing.close()
    sink.fails = ""
    start(make_job(), sink)
    assert sink.rows(1) == [("a", 1), ("b", 1)] and sink.rows(2) == [("a", 2)]
    assert [call for call in sink.calls if call.startswith("begin")] == ["begin 1", "begin 2"]


class Tells(ParquetSink):
    name = "tells"

    def commit(self, epoch: int, transaction: Any) -> None:
        super().commit(epoch, transaction)
        Path(self.path, "_told").write_text(str(epoch))
        if epoch == 2 and not self.epochs()[2:]:
            raise OSError("nobody to tell")


def test_a_folder_that_tells_of_its_commits(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    """A class that does more than its base is called, and not only the base's."""
    job, sink = make_job(), Tells(tmp_path / "out")
    result = run(job, spark, "ab", sink)
    assert (tmp_path / "out" / "_told").read_text() == "1" and result.dataframe.count() == 2
    with pytest.raises(SinkError, match="sink 'tells': commit failed: OSError: nobody to tell"):
        run(job, spark, "a", sink)
    assert sink.epochs() == [1, 2]
    assert job.abandon_output(2) == ["tells"]
    run(job, spark, "a", sink)
    assert sink.epochs() == [1, 2, 3]


class Reads(Lines):
    def stage(self, batches: Iterator[pa.RecordBatch], task: SinkTask) -> Any:
        for _ in batches:
            break


class Odd(Lines):
    def stage(self, batches: Iterator[pa.RecordBatch], task: SinkTask) -> Any:
        for _ in batches:
            pass
        return {1, 2}


class Yields(Lines):
    def stage(self, batches: Iterator[pa.RecordBatch], task: SinkTask) -> Any:
        yield from batches


class NotANumber(Lines):
    def prepare(self, epoch: int, evaluation_id: str, receipts: list[Any]) -> Any:
        return {"size": float("nan")}


class Renamed(Lines):
    def prepare(self, epoch: int, evaluation_id: str, receipts: list[Any]) -> Any:
        self.name = "other"


class Frames(Lines):
    def stage_frame(self, frame: DataFrame, epoch: int, evaluation_id: str) -> Any:
        frame.write.parquet(f"file://{self.folder}/frames")


def test_what_nobody_could_commit_is_never_published(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong: list[tuple[type[Lines], str]] = [
        (Reads, "partition . returned|: stage returned before it had read all its rows"),
        (Odd, r"stage returned .* of type set, and must return plain JSON"),
        (Yields, "stage returned .* of type generator, and must return plain JSON"),
        (NotANumber, "epoch 1: prepare returned {'size': nan} .*, and must return plain JSON"),
        (Renamed, "staged in a sink 'other', and no known sink .*must keep its name; nothing"),
        (Frames, "stage_frame failed: TypeError: 'NoneType'"),
    ]
    job = make_job(parallelism=1)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "2")
    try:
        for kind, message in wrong:
            monkeypatch.setattr("pystate.spark.sinks.sink._registry", {})
            with pytest.raises(SinkError, match=message):
                run(job, spark, "aaaaaa", kind(tmp_path / kind.__name__))
            assert job.latest_epoch() is None
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    run(job, spark, "a", Lines(tmp_path / "lines"))


def test_a_kind_of_its_own_is_never_published(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ParquetSink.prepare

    def prepare(self: ParquetSink, *arguments: Any) -> Any:
        return {**real(self, *arguments), "kind": "kafka"}

    job, sink = make_job(), ParquetSink(tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(ParquetSink, "prepare", prepare)
        with pytest.raises(SinkError, match="kind 'kafka', which nobody could commit; nothing"):
            run(job, spark, "ab", sink)
    assert job.latest_epoch() is None and not list((tmp_path / "out" / "_staging").iterdir())
    run(job, spark, "ab", sink)


class Nameless(Lines):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.name = ""


class Locked(Lines):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lock = threading.Lock()


class Half(Sink):
    name = "half"


class Alike:
    def commit(self) -> None: ...


def test_sinks_that_are_none(spark: SparkSession, make_job: MakeJob, tmp_path: Path) -> None:
    job, folder = make_job(), tmp_path / "lines"
    wrong: list[tuple[Any, str]] = [
        (Nameless(folder), r"^sink: Nameless.name is '' of type str: give the sink a name, such"),
        (Locked(folder), r"^sink: Locked.lock = <unlocked .* cannot go to the tasks, .*in stage"),
        (Half(), "^sink: Half lacks stage and commit$"),
        (Alike(), "not .*Alike.*; derive its class from pystate.spark.Sink$"),
        (print, r"for a function of an epoch's rows write foreach_epoch\(function\)$"),
    ]
    for sink, message in wrong:
        with pytest.raises((InvalidArgumentError, DeclarationError), match=message):
            run(job, spark, "ab", sink)
        with pytest.raises(PystateError, match=r"^side_outputs\['s'\]"):
            run(job, spark, "ab", ParquetSink(folder), side_outputs={"s": sink})
        with pytest.raises(PystateError, match=r"^register_sink"):
            register_sink(sink)
    one = Lines(folder)
    with pytest.raises(InvalidArgumentError, match=r"'s'\] and the job's sink .*each .*name"):
        run(job, spark, "ab", one, side_outputs={"s": Lines(folder)})
    register_sink(one)
    register_sink(one)
    with pytest.raises(
        InvalidArgumentError, match=r"there is another sink 'lines', .*replace=True"
    ):
        register_sink(Lines(folder))
    with pytest.raises(InvalidArgumentError, match="replace is True or False, not 1"):
        register_sink(Lines(folder), replace=1)  # type: ignore[arg-type]
    other = register_sink(Lines(folder), replace=True)
    assert registered_sink("lines") is other and registered_names() == ["lines"]
    assert not folder.exists() and job.latest_epoch() is None


class Odds(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
        self.n.update(self.n.value() + 1)
        if self.n.value() % 2:
            ctx.output("odd", (key, self.n.value()))
        yield key, self.n.value()


def test_side_outputs(spark: SparkSession, make_job: MakeJob, tmp_path: Path) -> None:
    job, odd = make_job(), Lines(tmp_path / "odd")

    def epoch(text: str, sink: Sink) -> None:
        def pipeline(df: DataFrame) -> DataFrame:
            return job.key_by(df, "k", uid="counts").process(
                Odds(), "k string, n long", side_outputs={"odd": "k string, n long"}
            )

        frame = spark.createDataFrame([(c,) for c in text], "k string")
        main = ParquetSink(tmp_path / "out")
        job.run_epoch(frame, pipeline, sink=main, side_outputs={"odd": sink})

    epoch("aab", odd)
    assert odd.rows(1) == [("a", 1), ("b", 1)]
    # No rows for the tag: what was begun ends.
    epoch("b", odd)
    assert odd.calls[3:] == ["begin 2", "abort 2"] and not Path(odd.folder, "2").exists()
    laid = ParquetSink(tmp_path / "laid", partition_by="k")
    epoch("ab", laid)
    rows = [tuple(row) for row in laid.read(spark).collect()]
    assert sorted(rows) == [(3, 3, "a"), (3, 3, "b")]
    side = tmp_path / "checkpoint" / "side" / "tag=odd" / "_staging"
    assert list(side.iterdir()) == []
