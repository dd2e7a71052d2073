"""Epochs from the outside: run keys, streams, replays, and what is refused."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.errors import (
    CheckpointError,
    DeclarationError,
    InvalidArgumentError,
    WrongTypeError,
)
from pystate.spark import EpochProgress, ParquetSink
from pystate.spark.base.routing import KeyRouter

from .conftest import Source, rows_of, state_of

if TYPE_CHECKING:
    from pyspark.core.rdd import RDD
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pystate.spark import EpochResult, Job

MakeJob = Callable[..., "Job"]
COUNTS = "k string, n long"


def counting(job: Job) -> Callable[[DataFrame], DataFrame]:
    return lambda df: job.key_by(df, "k", uid="counts").aggregate(n=ps.count(), total=ps.sum("v"))


def letters(spark: SparkSession, text: str) -> DataFrame:
    return spark.createDataFrame([(letter, 1) for letter in text], "k string, v long")


def test_a_run_key_counts_once(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job()
    progress: list[EpochProgress] = []
    first = job.run_epoch(
        letters(spark, "aab"), counting(job), run_key="m", on_epoch=progress.append
    )
    assert (first.epoch, first.already_done, first.run_key) == (1, False, "m")
    assert repr(first) == (
        "EpochResult(epoch=1, run_key='m', already_done=False, operators=['counts'], state_files=1)"
    )
    assert rows_of(first.dataframe) == [("a", 2, 2), ("b", 1, 1)]
    for _ in range(2):
        # Other data under the same key: the first run's result. The second time by a new driver.
        again = job.run_epoch(letters(spark, "zzz"), counting(job), run_key="m")
        assert (again.epoch, again.already_done) == (1, True)
        assert rows_of(again.dataframe) == rows_of(first.dataframe)
        job = make_job()
    second = job.run_epoch(letters(spark, "ac"), counting(job), run_key="n")
    assert rows_of(second.dataframe) == [("a", 3, 3), ("c", 1, 1)]
    assert state_of(job, "counts") == {"a": (3, 3), "b": (1, 1), "c": (1, 1)}
    [one] = progress
    assert (one.epoch, one.run_key, one.evaluations) == (1, "m", 1)
    assert (one.rows_in, one.rows_out, one.keys, one.rows_changed) == (3, 2, 2, 2)
    assert one.checkpoint_bytes > 0 and one.state_bytes > 0 and one.total_ms > one.write_ms > 0
    assert job.last_progress is not None and job.last_progress.rows_changed == 2


def test_a_run_key_goes_with_its_sink(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    """And outlives its manifest."""
    job, other = make_job(retained=1), make_job(checkpoint=tmp_path / "other")
    first, second = ParquetSink(tmp_path / "first"), ParquetSink(tmp_path / "second")

    def run(sink: ParquetSink | None) -> EpochResult:
        return job.run_epoch(letters(spark, "ab"), counting(job), run_key="m", sink=sink)

    run(first)
    # An epoch of that number, but of another checkpoint.
    other.run_epoch(letters(spark, "z"), counting(other), sink=second)
    for sink in (None, second):
        with pytest.raises(InvalidArgumentError, match=r"run 'm', epoch 1, .* pass sink=.*/first'"):
            run(sink)
    assert rows_of(run(first).dataframe) == [("a", 1, 1), ("b", 1, 1)]
    job.run_epoch(letters(spark, "a"), counting(job))
    again = run(first)
    assert again.already_done and rows_of(again.dataframe) == [("a", 1, 1), ("b", 1, 1)]
    with pytest.raises(InvalidArgumentError, match="pass the sink that epoch 1 was written to"):
        run(None)


def test_partitions_of_an_rdd(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job(parallelism=3)

    class Words(ps.KeyedProcessFunction):
        n = ps.ValueState("long", default=0)

        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
            self.n.update(self.n.value() + 1)
            yield *key, self.n.value(), row["place"]

    def pipeline(rdd: RDD[Any]) -> RDD[Any]:
        routed = job.partition_by(
            rdd, lambda row: (row["word"], row["len"]), key_type=["string", "int"], uid="words"
        )
        assert routed.getNumPartitions() == 3
        schema = "word string, len int, n long, place int"
        return routed.mapPartitions(job.partitions(Words(), uid="words", schema=schema))

    def words(text: str) -> RDD[Any]:
        rows = [{"word": w, "len": len(w), "place": i} for i, w in enumerate(text.split())]
        return spark.sparkContext.parallelize(rows, 4)

    schema = "word string, len int, n long, place int"
    job.run_epoch(words("a b a"), pipeline, schema=schema)
    result = job.run_epoch(words("b ccc a"), pipeline, schema=schema)
    assert rows_of(result.dataframe) == [("a", 1, 3, 2), ("b", 1, 2, 0), ("ccc", 3, 1, 1)]
    state = job.read_state("words")
    assert state.schema.names == ["key0", "key1", "n"] and state.num_rows == 3


def test_an_rdd_needs_columns_and_a_split(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job()
    rdd = spark.sparkContext.parallelize(["a"])

    class Count(ps.KeyedProcessFunction):
        n = ps.ValueState("long", default=0)

        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
            self.n.update(self.n.value() + 1)
            yield (key,)

    def split(data: RDD[Any], key: Callable[[Any], Any] = str) -> RDD[Any]:
        routed = job.partition_by(data, key, key_type="string", uid="n")
        return routed.mapPartitions(job.partitions(Count(), uid="n"))

    with pytest.raises(InvalidArgumentError, match="pass schema="):
        job.run_epoch(rdd, split)
    with pytest.raises(InvalidArgumentError, match=r"split the RDD with job.partition_by"):
        job.run_epoch(rdd, lambda data: data.mapPartitions(job.partitions(Count(), uid="n")))
    with pytest.raises(WrongTypeError, match=r"operator 'n': key is string: .* of int64"):
        job.run_epoch(rdd, lambda data: split(data, len), schema="k string")
    assert rows_of(job.run_epoch(rdd, split, schema="k string").dataframe) == [("a",)]


@pytest.mark.parametrize(
    ("kinds", "keys"),
    [
        (["long"], [1, 1.5]),
        (["long"], [1, True]),
        (["date"], [datetime.date(2024, 1, 1), datetime.datetime(2024, 1, 1, 5)]),
        (["binary"], [b"a", "a"]),
        (["string"], ["a", b"a"]),
        (["float"], [1.0, 1e300]),
        (["decimal(5,2)"], [Decimal("1.5"), Decimal("1.501")]),
        (["string", "int"], [("a", 1), ("a", 1.5)]),
        (["string", "string"], [("a", "b"), "ab"]),
        (["string", "string"], [("a", "b"), ("a", "b", "c")]),
    ],
)
def test_a_key_of_another_type_is_never_made_to_fit(kinds: list[str], keys: list[Any]) -> None:
    columns = tuple((f"key{i}", kind) for i, kind in enumerate(kinds))
    router = KeyRouter("words", columns, 128, 2)
    assert [len(column) for column in router.arrays(keys[:1])] == [1] * len(kinds)
    with pytest.raises(WrongTypeError, match="operator 'words': key"):
        router.arrays(keys)


def test_a_column_that_readers_would_not_see_is_refused(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    job = make_job()
    out = {"sink": ParquetSink(tmp_path / "out")}
    late = {"side_outputs": {"late": ParquetSink(tmp_path / "late")}}

    class Late(ps.KeyedProcessFunction):
        n = ps.ValueState("long")

        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
            raise AssertionError("nothing is computed")

    def renamed(df: DataFrame) -> DataFrame:
        return counting(job)(df).withColumnRenamed("n", "Epoch")

    def aside(df: DataFrame) -> DataFrame:
        keyed = job.key_by(df.selectExpr("k", "v AS EPOCH"), "k", uid="x", event_time="EPOCH")
        return keyed.process(Late(), "k string", late="late")

    for pipeline, options, folder in ((renamed, out, "out"), (aside, late, "late")):
        with pytest.raises(InvalidArgumentError, match=f"{folder}'.*'(Epoch|EPOCH)' would be lost"):
            job.run_epoch(letters(spark, "a"), pipeline, **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint"]


def start(
    job: Job, source: Source, sink: ParquetSink | None = None, **options: Any
) -> StreamingQuery:
    options.setdefault("trigger", {"availableNow": True})
    return job.start(source.stream(), counting(job), sink=sink, **options)


def test_folders_of_any_name_on_a_local_file_system_that_is_not_the_default(
    spark: SparkSession, source: Source, tmp_path: Path
) -> None:
    from pystate.spark import Job

    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    default = hadoop.get("fs.defaultFS")
    hadoop.set("fs.defaultFS", "hdfs://127.0.0.1:9")
    # The pattern that it would be fits another folder, too.
    name = r"50%25 [12]{a,b}*?#ü\x"
    (tmp_path / "50%25 1aa#ü").mkdir()
    source.add("a,1", "b,2")
    try:
        with Job("test", tmp_path / name, parallelism=2) as job:
            sink = ParquetSink(tmp_path / name / "out [*]")
            start(job, source, sink).awaitTermination(120)
            result = job.run_epoch(letters(spark, "a"), counting(job))
            assert rows_of(result.dataframe) == [("a", 2, 2)]
            assert rows_of(sink.read(spark)) == [("a", 1, 1, 1), ("b", 1, 2, 1)]
    finally:
        hadoop.set("fs.defaultFS", default)


def test_a_stream_goes_on_where_it_stopped(
    spark: SparkSession,
    make_job: MakeJob,
    source: Source,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also after a listener that fails, and behind a run between its batches."""
    sink = ParquetSink(tmp_path / "out")
    source.add("a,1", "b,2", "a,3")
    source.add("a,4")
    progress: list[EpochProgress] = []

    def listen(step: EpochProgress) -> None:
        progress.append(step)
        if step.epoch == 1:
            raise OSError("no metrics today")

    job = make_job()
    start(job, source, sink, on_epoch=listen).awaitTermination()
    assert (job.latest_epoch(), job.failure) == (2, None)
    [record] = [r for r in caplog.records if r.name == "pystate.spark.epochs.progress"]
    assert "epoch 1 is published" in record.message and "no metrics today" in caplog.text
    job = make_job()
    job.run_epoch(letters(spark, "d"), counting(job), run_key="backfill", sink=sink)
    source.add("c,5", "b,6")
    start(job, source, sink, on_epoch=listen).awaitTermination()
    start(job, source, sink, on_epoch=listen).awaitTermination()
    assert [(p.epoch, p.batch_id, p.rows_in) for p in progress] == [(1, 0, 3), (2, 1, 1), (4, 2, 2)]
    found = rows_of(sink.read(spark).select("epoch", "k", "n", "total"))
    wanted = [(1, "a", 2, 4), (1, "b", 1, 2), (2, "a", 3, 8), (3, "d", 1, 1)]
    assert found == [*wanted, (4, "b", 2, 8), (4, "c", 1, 5)]
    assert state_of(job, "counts") == {"a": (3, 8), "b": (2, 8), "c": (1, 5), "d": (1, 1)}
    assert not list((tmp_path / "out" / "_staging").iterdir())


class CrashError(Exception):
    """Stands for the end of the driver."""


def crash(*_: object) -> None:
    raise CrashError


def test_a_batch_that_was_published_is_not_computed_again(
    make_job: MakeJob, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is another one in its place."""
    source.add("a,1")
    job = make_job()
    # The epoch is published and its output committed, but Spark never hears of it.
    with monkeypatch.context() as patch:
        patch.setattr("pystate.spark.epochs.epochs.notify", crash)
        with pytest.raises(Exception, match="CrashError"):
            start(job, source).awaitTermination()
    assert isinstance(job.failure, CrashError)
    offsets = tmp_path / "checkpoint" / "spark" / "offsets"
    (offsets / ".0.crc").unlink()
    text = (offsets / "0").read_text()
    (offsets / "0").write_text(text.replace('{"logOffset":0}', '{"logOffset": 0}'))
    job = make_job()
    with pytest.raises(Exception, match="offsets"):
        start(job, source).awaitTermination()
    assert isinstance(job.failure, CheckpointError)
    (offsets / "0").write_text(text)
    source.add("a,2")
    progress: list[EpochProgress] = []
    again = make_job()
    start(again, source, on_epoch=progress.append).awaitTermination()
    assert [(p.epoch, p.batch_id) for p in progress] == [(2, 1)]
    assert state_of(again, "counts") == {"a": (2, 3)}
    assert again.failure is None


def test_output_is_committed_after_a_crash_in_between(
    spark: SparkSession,
    make_job: MakeJob,
    source: Source,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source.add("a,1")
    sink = ParquetSink(tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr("pystate.spark.sinks.commits.commit", crash)
        with pytest.raises(Exception, match="CrashError"):
            start(make_job(), source, sink).awaitTermination()
    assert sink.epochs() == []
    job = make_job()
    start(job, source, sink).awaitTermination()
    assert rows_of(sink.read(spark)) == [("a", 1, 1, 1)]
    assert state_of(job, "counts") == {"a": (1, 1)}


def test_state_without_its_query_is_an_explicit_restore(
    spark: SparkSession, make_job: MakeJob, source: Source, tmp_path: Path
) -> None:
    import shutil

    source.add("a,1")
    start(make_job(), source).awaitTermination()
    shutil.rmtree(tmp_path / "checkpoint" / "spark")
    job = make_job()
    with pytest.raises(Exception, match="restore"):
        start(job, source).awaitTermination()
    assert isinstance(job.failure, CheckpointError)
    shutil.rmtree(tmp_path / "checkpoint" / "spark")
    start(job, source, restore="latest").awaitTermination()
    assert state_of(job, "counts") == {"a": (2, 2)}


def test_threads_take_turns(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job()
    errors: list[BaseException] = []

    def run(key: str) -> None:
        try:
            job.run_epoch(letters(spark, "a"), counting(job), run_key=key)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(str(i),)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert state_of(job, "counts") == {"a": (2, 2)}


def test_what_a_pipeline_may_not_do(spark: SparkSession, make_job: MakeJob, source: Source) -> None:
    job = make_job()
    frame = letters(spark, "a")

    class Nothing(ps.KeyedProcessFunction):
        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None: ...

    with pytest.raises(CheckpointError, match="key_by works inside a pipeline only"):
        job.key_by(frame, "k", uid="x")
    for pipeline, kind, error in (
        (
            lambda df: job.key_by(df, "k").aggregate(n=ps.count()),
            InvalidArgumentError,
            "needs a uid.*whose state is whose",
        ),
        (lambda df: job.key_by(df, "z", uid="x"), InvalidArgumentError, "'z' is not a column"),
        (lambda df: None, InvalidArgumentError, "returned None"),
        (lambda df: 3, InvalidArgumentError, "result is a DataFrame of Spark, not 3 of type int"),
        (
            lambda df: job.key_by(df, "k", uid="x").window(ps.Global(), emit="update"),
            InvalidArgumentError,
            r"not .*WindowedFrame; call its process or aggregate\(\.\.\.\), which gives one",
        ),
        (
            lambda df: job.key_by(df, "k", uid="x").aggregate(n=3),
            InvalidArgumentError,
            "n=3 is no aggregate",
        ),
        (
            lambda df: job.key_by(df, "k", uid="x").aggregate(k=ps.count()),
            InvalidArgumentError,
            "two columns of the result are called k",
        ),
        (
            lambda df: job.key_by(df, "v", uid="x").aggregate(n=ps.sum("k")),
            ps.errors.WrongTypeError,
            r"sum\(k\): column 'k' is string, not a number: cast it before key_by",
        ),
        (
            lambda df: job.key_by(df, "k", uid="x").process(Nothing(), "k string"),
            DeclarationError,
            "declares no state",
        ),
        (
            lambda df: job.key_by(df, "k", uid="x").process(print, "k string"),
            DeclarationError,
            "is no KeyedProcessFunction",
        ),
        (
            lambda df: counting(job)(df).union(counting(job)(df)),
            DeclarationError,
            "uid 'counts' is used twice",
        ),
    ):
        with pytest.raises(kind, match=error):
            job.run_epoch(frame, pipeline)
    with pytest.raises(InvalidArgumentError, match="use start for a stream"):
        job.run_epoch(source.stream(), counting(job))
    with pytest.raises(InvalidArgumentError, match="not a streaming DataFrame"):
        job.start(frame, counting(job))
    # None of it left a trace.
    assert job.run_epoch(frame, counting(job)).epoch == 1
    with pytest.raises(InvalidArgumentError, match="max_parallelism=128, not 64"):
        make_job(max_parallelism=64).run_epoch(frame, counting(job))
