"""State of an operator's instances on Spark: live, restarted, killed, restored and split."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.errors import (
    DeclarationError,
    InvalidArgumentError,
    SchemaError,
    UnclaimedStateError,
    WrongTypeError,
)
from pystate.spark import ParquetSink

from .conftest import Source, rows_of, wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import EpochProgress, Job

MakeJob = Callable[..., "Job"]
GROUPS = 128


class Kept(ps.ProcessFunction):
    """Keeps its rows in every kind of state."""

    rows = ps.OperatorListState("long")
    last = ps.OperatorListState("struct<instance:int,of:int>", redistribute="union")
    streams = ps.RawState()
    groups = ps.RawState("key_group")

    def __init__(self, killed: Path | None = None) -> None:
        self._killed = killed

    def open(self, ctx: ps.InstanceContext) -> None:
        """Tell apart instances; die once, half way through a redistribution."""
        if ctx.redistributed and self._killed is not None and ctx.instance == 1:
            try:
                self._killed.touch(exist_ok=False)
            except FileExistsError:
                return
            os.kill(os.getpid(), signal.SIGKILL)

    def process(self, row: Any, ctx: ps.InstanceContext) -> Any:
        """Keep a row."""
        self.rows.add(row.v)
        self.streams.add(str(row.v).encode())
        first, last = ctx.key_group_range
        self.groups.write(first + row.v % (last - first + 1), b"%d" % row.v)
        self.last.update([{"instance": ctx.instance, "of": ctx.parallelism}])
        ctx.output("seen", (row.v,))
        yield row.v, ctx.instance, ctx.parallelism


def pipeline_of(job: Job, killed: Path | None = None) -> Any:
    def pipeline(df: DataFrame) -> DataFrame:
        return job.operator(df, uid="kept").process(
            Kept(killed),
            schema="v long, instance int, of int",
            side_outputs={"seen": "v long"},
        )

    return pipeline


def values(spark: SparkSession, *numbers: int) -> DataFrame:
    return spark.createDataFrame([(n, {"n": n}) for n in numbers], "v long, m map<string, long>")


def run(job: Job, frame: DataFrame, killed: Path | None = None) -> list[Any]:
    sides = {"seen": ParquetSink(f"{job.checkpoint}-seen")}
    result = job.run_epoch(frame, pipeline_of(job, killed), side_outputs=sides)
    return rows_of(result.dataframe)


def check(job: Job, expected: set[int], parallelism: int, *, balanced: bool = False) -> None:
    """What all instances have is what was put in, once, and in their own rows."""
    rows = job.read_state("kept").sort_by("instance").to_pylist()
    assert {row["instances"] for row in rows} == {parallelism}
    assert len({row["instance"] for row in rows}) == len(rows)
    assert sorted(v for row in rows for v in row["rows"]) == sorted(expected)
    assert sorted(int(v) for row in rows for v in row["streams"]) == sorted(expected)
    for row in rows:
        low, high = ps.range_bounds(row["instance"], GROUPS, parallelism)
        assert all(low <= group <= high for group, _ in row["groups"])
    if balanced:
        for name in ("rows", "streams"):
            sizes = [len(row[name]) for row in rows] + [0] * (parallelism - len(rows))
            assert max(sizes) - min(sizes) <= 1
        # Over all states together, too.
        both = [len(row["rows"]) + len(row["streams"]) for row in rows]
        assert max(both) - min(both + [both[0]] * (len(rows) < parallelism)) <= 1
        assert len({tuple(map(str, row["last"])) for row in rows}) == 1


def test_instances_keep_their_state_over_runs_restarts_kills_and_savepoints(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    job = make_job(parallelism=3)
    rows = run(job, values(spark, *range(30)))
    assert sorted((v, of) for v, _, of in rows) == [(v, 3) for v in range(30)]
    assert len({instance for _, instance, _ in rows}) == 3
    seen = rows_of(spark.read.parquet(f"{job.checkpoint}-seen").select("v"))
    assert sorted(seen) == [(v,) for v in range(30)]
    assert run(job, values(spark)) == []
    check(job, set(range(30)), 3)

    # Another parallelism, and the epoch that redistributes has no rows; a worker dies in it.
    job = make_job(parallelism=4)
    killed = tmp_path / "killed"
    assert run(job, values(spark), killed) == [] and killed.exists()
    check(job, set(range(30)), 4, balanced=True)
    groups = {g: s for row in job.read_state("kept").to_pylist() for g, s in row["groups"]}
    assert len(groups) >= 10 and all(stream["key_groups"] == GROUPS for stream in groups.values())

    # The pipeline does without the operator for some epochs, and then has it again.
    other = make_job(parallelism=2, allow_unclaimed_state=True)
    other.run_epoch(values(spark), lambda df: df.drop("m"))
    run(other, values(spark, 30))
    check(other, set(range(31)), 2)
    with pytest.raises(UnclaimedStateError):
        make_job(parallelism=2).run_epoch(values(spark), lambda df: df.drop("m"))

    ps.savepoint(other.checkpoint, tmp_path / "savepoint")
    restored = make_job(
        parallelism=5, checkpoint=tmp_path / "other", restore=tmp_path / "savepoint"
    )
    run(restored, values(spark))
    check(restored, set(range(31)), 5, balanced=True)
    assert ps.verify(restored.checkpoint).ok


def test_key_groups_may_be_split_below_instances(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    job = make_job(parallelism=2)
    run(job, values(spark, *range(20)))
    before = {row["instance"]: row["rows"] for row in job.read_state("kept").to_pylist()}
    ps.savepoint(job.checkpoint, tmp_path / "128")
    ps.rescale(tmp_path / "128", tmp_path / "256", max_parallelism=256)
    for parallelism in (2, 4):
        checkpoint = tmp_path / f"split{parallelism}"
        split = make_job(parallelism=parallelism, checkpoint=checkpoint, restore=tmp_path / "256")
        run(split, values(spark))
        rows = split.read_state("kept").to_pylist()
        assert sorted(v for row in rows for v in row["rows"]) == list(range(20))
        if parallelism == 2:
            assert {row["instance"]: row["rows"] for row in rows} == before
        streams = {g: s for row in rows for g, s in row["groups"]}
        assert all(streams[g] == streams[(g + 128) % 256] for g in streams)
        assert all(stream["key_groups"] == 256 for stream in streams.values())


def test_a_running_query_is_rescaled(
    spark: SparkSession, source: Source, make_job: MakeJob, tmp_path: Path
) -> None:
    """Several steps per checkpoint: a step after the change does not redistribute again."""
    job = make_job(parallelism=2, checkpoints=ps.CheckpointOptions(interval=2))
    epochs: list[EpochProgress] = []
    expected: set[int] = set()

    def step() -> None:
        count = len(epochs)
        new = set(range(len(expected), len(expected) + 5))
        expected.update(new)
        source.add(*(f"k,{v}" for v in new))
        wait_for(lambda: len(epochs) > count, "the epoch", 120)

    query = job.start(
        source.stream(),
        pipeline_of(job),
        side_outputs={"seen": ParquetSink(tmp_path / "seen")},
        trigger={"processingTime": "0 seconds"},
        on_epoch=epochs.append,
    )
    step()
    for parallelism in (3, 1):
        job.rescale(parallelism)
        for _ in range(2):
            step()
    query.stop()
    check(job, expected, 1)
    source.add("k,1000")
    expected.add(1000)
    other = make_job(parallelism=2)
    query = other.start(
        source.stream(),
        pipeline_of(other),
        side_outputs={"seen": ParquetSink(tmp_path / "seen")},
        trigger={"availableNow": True},
    )
    query.awaitTermination()
    check(other, expected, 2)
    seen = rows_of(spark.read.parquet(str(tmp_path / "seen")).select("v"))
    assert sorted(seen) == [(v,) for v in sorted(expected)]


class Ends(ps.ProcessFunction):
    """Whole batches, and the end of each epoch."""

    seen = ps.OperatorListState("long")

    def process_rows(self, batch: Any, ctx: ps.InstanceContext) -> Any:
        """Keep a batch."""
        self.seen.add_all(batch.column("v"))

    def on_epoch_end(self, ctx: ps.InstanceContext) -> Any:
        """Emit what was kept."""
        yield {"instance": [ctx.instance] * len(self.seen), "v": self.seen.get()}
        if not len(self.seen):
            yield {"instance": [ctx.instance], "v": [None]}
        self.seen.clear()


def test_the_end_of_an_epoch_is_told_to_every_instance(
    spark: SparkSession, make_job: MakeJob
) -> None:
    job = make_job(parallelism=2)

    def pipeline(df: DataFrame) -> DataFrame:
        return job.operator(df, uid="ends").process(Ends(), schema="instance int, v long")

    rows = rows_of(job.run_epoch(values(spark, 1, 2, 3, 4, 5, 6), pipeline).dataframe)
    assert sorted(v for _, v in rows if v is not None) == [1, 2, 3, 4, 5, 6]
    rows = rows_of(job.run_epoch(values(spark), pipeline).dataframe)
    assert rows == [(0, None), (1, None)]


class Keyed(ps.KeyedProcessFunction):
    """A function of keys."""

    n = ps.ValueState("long")

    def process(self, key: Any, row: Any, ctx: Any) -> Any:
        """Nothing."""


class Broadcasting(Ends):
    """State that a plain function cannot keep the same everywhere."""

    rules = ps.BroadcastState("string", "long")


def test_functions_are_refused_where_the_others_belong(
    spark: SparkSession, make_job: MakeJob
) -> None:
    job = make_job()
    for function, error, message in (
        (Keyed(), WrongTypeError, "is no ps.ProcessFunction: functions of keys are for rows by"),
        (Ends, WrongTypeError, "is no ps.ProcessFunction; pass an instance"),
        (Broadcasting(), DeclarationError, "its copies would not stay the same"),
    ):
        with pytest.raises(error, match=message):
            job.run_epoch(
                values(spark),
                lambda df, function=function: job.operator(df, uid="x").process(function, "v long"),
            )
    with pytest.raises(DeclarationError, match=r"Ends is a ps[.]ProcessFunction, for rows"):
        job.run_epoch(
            values(spark), lambda df: job.key_by(df, "v", uid="x").process(Ends(), "v long")
        )
    with pytest.raises(InvalidArgumentError, match="uid"):
        job.run_epoch(values(spark), lambda df: job.operator(df).process(Ends(), "v long"))


class Times(ps.ProcessFunction):
    """Tells the times of its rows and of its epochs."""

    n = ps.OperatorListState("long")

    def process(self, row: Any, ctx: ps.InstanceContext) -> Any:
        """Tell a row's time."""
        self.n.update([sum(self.n) + 1])
        yield ctx.timestamp, ctx.watermark

    def on_epoch_end(self, ctx: ps.InstanceContext) -> Any:
        """Tell the watermark that the epoch ends with."""
        if ctx.instance == 0:
            yield None, ctx.watermark


def test_rows_have_event_times_and_may_be_late(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    job = make_job(parallelism=2)

    def pipeline(df: DataFrame) -> DataFrame:
        timed = job.operator(df.drop("m"), uid="times", event_time="v", allowed_delay=10)
        return timed.process(Times(), schema="at long, mark long", late="late")

    def epoch(*times: int, **options: Any) -> set[Any]:
        sides = {"late": ParquetSink(tmp_path / "late")}
        result = job.run_epoch(values(spark, *times), pipeline, side_outputs=sides, **options)
        return {tuple(row) for row in result.dataframe.collect()}

    assert epoch(100, 200) == {(100, None), (200, None), (None, None)}
    assert epoch(189, 190, 300) == {(190, 190), (300, 190), (None, 190)}
    assert epoch(drain=True) == {(None, ps.MAX_WATERMARK)}
    assert [row.v for row in spark.read.parquet(str(tmp_path / "late")).collect()] == [189]
    assert sum(sum(row["n"]) for row in job.read_state("times").to_pylist()) == 4


def test_rows_that_are_far_ahead_are_invalid(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    job = make_job()
    far = 253_402_300_000_000
    frame = spark.createDataFrame([(1_000, 1), (far, 2), (2_000, 3)], "t long, v long")

    def pipeline(df: DataFrame) -> DataFrame:
        operator = job.operator(df, uid="o", event_time="t", max_ahead="1 day", invalid="odd")
        return operator.process(Times(), "t long, watermark long")

    sink = ParquetSink(tmp_path / "odd")
    result = job.run_epoch(frame, pipeline, side_outputs={"odd": sink})
    assert {row.t for row in result.dataframe.collect()} == {1_000, 2_000, None}
    assert [tuple(row) for row in sink.read(spark, 1).collect()] == [(far, 2)]
    progress = job.last_progress
    assert progress is not None and progress.invalid_rows == {"o": 1}
    assert progress.by_operator["o"].watermark_ms == 2_000


class Divided(ps.ProcessFunction):
    """Keeps numbers."""

    numbers = ps.OperatorListState("long")

    def process(self, row: Any, ctx: ps.InstanceContext) -> Any:
        """Keep one."""
        self.numbers.add(row.v)


class United(ps.ProcessFunction):
    """The same as a union."""

    numbers = ps.OperatorListState("long", redistribute="union")

    def process(self, row: Any, ctx: ps.InstanceContext) -> Any:
        """Keep one."""
        self.numbers.add(row.v)


def test_a_list_becomes_a_union_and_not_the_other_way_round(
    spark: SparkSession, make_job: MakeJob
) -> None:
    def kept(function: ps.ProcessFunction, parallelism: int, *numbers: int) -> list[list[int]]:
        with make_job(parallelism=parallelism) as job:
            job.run_epoch(
                values(spark, *numbers),
                lambda df: job.operator(df, uid="kept").process(function, "v long"),
            )
            rows = job.read_state("kept").sort_by("instance").to_pylist()
            return [sorted(row["numbers"]) for row in rows]

    assert sorted(chain(*kept(Divided(), 2, *range(10)))) == [*range(10)]
    # As long as their number is the same, each instance keeps its own.
    assert sorted(chain(*kept(United(), 2, 10))) == [*range(11)]
    assert kept(United(), 3) == [[*range(11)]] * 3
    with pytest.raises(SchemaError, match=r"operator 'kept', state 'numbers': .* was a union"):
        kept(Divided(), 2)
    assert kept(United(), 3) == [[*range(11)]] * 3
