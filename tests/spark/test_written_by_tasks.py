"""Results that the tasks of the last operator write, against those that Spark writes."""

from __future__ import annotations

import datetime
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import pystate as ps
from pystate.spark import ParquetSink

from .conftest import rows_of, state_of
from .deadly import deadly_map

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import EpochResult, Job

MakeJob = Callable[..., "Job"]
KEYS = 300
UTC = datetime.timezone.utc
#: The name that Spark's own tasks give to a file.
SPARKS = re.compile(r"part-\d{5}-[-0-9a-f]{36}-c000\..*parquet")
OURS = re.compile(r"part-\d{5}-[0-9a-f]{32}\.parquet")
TYPES = (
    "k long, b boolean, i8 byte, i16 short, i32 int, f float, d double, s string, bin binary, "
    "day date, at timestamp, de decimal(5,2), de2 decimal(18,3), de3 decimal(38,10), "
    "l array<struct<a:int,b:string>>, m map<string,array<timestamp>>, "
    "st struct<x:int,y:struct<z:timestamp>>"
)


class AllTypes(ps.KeyedProcessFunction):
    """Yields a row of all types for each key; of nulls for every third one."""

    n = ps.ValueState("long", default=0)

    def process(self, key: int, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
        self.n.update(self.n.value() + 1)
        at = datetime.datetime(1, 1, 1, tzinfo=UTC) + datetime.timedelta(2900 * key, key, key)
        if key % 3 == 0:
            yield (key, *[None] * 16)
        else:
            yield (
                *(key, key % 2 == 0, -1, 2, 3, 1.5, -2.5, f"ü{key}", b"x\0", at.date(), at),
                *(Decimal("1.25"), Decimal("-123456.789"), Decimal("-1234567890123456789.5")),
                *([{"a": 1, "b": None}, None], {"q": [at, None]}, {"x": None, "y": {"z": at}}),
            )


class Counts(ps.KeyedProcessFunction):
    """Yields each key's count, and nothing for keys below `first`."""

    n = ps.ValueState("long", default=0)

    def __init__(self, first: int = 0) -> None:
        self.first = first

    def process(self, key: int, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[int, int]]:
        self.n.update(self.n.value() + 1)
        if key >= self.first:
            yield key, self.n.value()


def keys(spark: SparkSession, count: int = KEYS) -> DataFrame:
    return spark.range(count).selectExpr("id AS k")


def counted(job: Job, df: DataFrame, first: int = 0) -> DataFrame:
    return job.key_by(df, "k", uid="counts").process(Counts(first), "k long, n long")


def files(result: EpochResult) -> list[Path]:
    assert isinstance(result.sink, ParquetSink)
    return sorted(Path(result.sink.path).glob(f"epoch={result.epoch}/**/part-*"))


def by_tasks(result: EpochResult) -> bool:
    """Whether the tasks of the operator wrote the files, and not Spark."""
    names = [path.name for path in files(result)]
    ours, sparks = map(OURS.fullmatch, names), map(SPARKS.fullmatch, names)
    found = {bool(one) for one in ours}
    assert found != {bool(one) for one in sparks} and len(found) == 1
    return found == {True}


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.unset(name)


def layout(path: Path) -> list[tuple[Any, ...]]:
    """The physical columns of a file; whether one may be null is not compared."""
    parquet = pq.ParquetFile(path)
    columns = (parquet.schema.column(i) for i in range(len(parquet.schema)))
    group = parquet.metadata.row_group(0)
    return [
        (one.path, one.physical_type, str(one.logical_type), group.column(i).compression)
        for i, one in enumerate(columns)
    ]


def notes_of(path: Path) -> dict[bytes, Any]:
    """A file's metadata: Spark's version and schema."""
    notes = dict(pq.read_metadata(path).metadata)
    schema = json.loads(notes.pop(b"org.apache.spark.sql.parquet.row.metadata"))
    assert notes.keys() == {b"org.apache.spark.version"}
    return {**notes, b"schema": schema}


@pytest.mark.parametrize(
    ("codec", "kind"),
    [
        ("snappy", "INT96"),
        ("zstd", "TIMESTAMP_MICROS"),
        pytest.param("none", "INT96", marks=pytest.mark.slow),
    ],
)
def test_files_are_as_spark_would_write_them(
    spark: SparkSession, tmp_path: Path, make_job: MakeJob, codec: str, kind: str
) -> None:
    def pipeline(frame: DataFrame, job: Job) -> DataFrame:
        return job.key_by(frame, "k", uid="all").process(AllTypes(), TYPES)

    results = []
    with (
        setting(spark, "spark.sql.parquet.outputTimestampType", kind),
        setting(spark, "spark.sql.parquet.compression.codec", codec),
    ):
        for who in (lambda out: out, lambda out: out.where("k >= 0")):
            job = make_job(checkpoint=tmp_path / f"checkpoint-{len(results)}")
            results.append(
                job.run_epoch(keys(spark), lambda df, job=job, who=who: who(pipeline(df, job)))
            )
    ours, sparks = results
    assert by_tasks(ours) and not by_tasks(sparks)
    assert ours.dataframe.schema == sparks.dataframe.schema
    assert rows_of(ours.dataframe) == rows_of(sparks.dataframe)
    assert layout(files(ours)[0]) == layout(files(sparks)[0])
    assert notes_of(files(ours)[0]) == notes_of(files(sparks)[0])
    # Statistics are as good for skipping.
    where = "at < '1900-01-01' AND de = 1.25 AND day > '0100-01-01' AND i8 = -1"
    found = ours.dataframe.where(where)
    assert found.count() == sparks.dataframe.where(where).count() > 0


def kept_and_counted(out: DataFrame) -> DataFrame:
    assert out.persist().count() == KEYS
    return out


SELECTED: dict[str, tuple[Callable[[DataFrame], DataFrame], bool]] = {
    "all": (lambda out: out, True),
    "order": (lambda out: out.select("n", "k"), True),
    "fewer": (lambda out: out.drop("k"), True),
    "names": (lambda out: out.withColumnRenamed("n", "count").select("count", "k"), True),
    "twice": (lambda out: out.selectExpr("n AS a", "k", "n AS b"), True),
    "computed": (lambda out: out.selectExpr("k", "n + 1 AS n"), False),
    "constant": (lambda out: out.selectExpr("k", "n", "'x' AS x"), False),
    "filter": (lambda out: out.where("k < 10"), False),
    "filter below": (lambda out: out.where("k < 10").select("n"), False),
    "limit": (lambda out: out.limit(1000), False),
    "sort": (lambda out: out.sortWithinPartitions("n"), False),
    "sample": (lambda out: out.sample(0.5, seed=1), False),
    "hint": (lambda out: out.coalesce(1), False),
    "odd name": (lambda out: out.withColumnRenamed("n", "n, k#1 AS `x`"), False),
    "union": (lambda out: out.union(out.sparkSession.range(1).selectExpr("id", "id")), False),
    "counted before": (kept_and_counted, False),
    "persisted": (lambda out: out.persist(), True),
    "materialised": (lambda out: out.localCheckpoint(), False),
}


def test_columns_are_selected(spark: SparkSession, make_job: MakeJob) -> None:
    """Each form is the whole result of an epoch."""
    job = make_job()
    for epoch, (form, (select, directly)) in enumerate(SELECTED.items(), 1):
        sink = ParquetSink(f"{job.checkpoint}-{epoch}")
        result = job.run_epoch(keys(spark), lambda df, s=select: s(counted(job, df)), sink=sink)
        assert by_tasks(result) == directly, form
        assert job.last_progress is not None and job.last_progress.evaluations == 1, form
        wanted = select(keys(spark).selectExpr("k", f"{epoch}L AS n"))
        assert result.dataframe.columns == wanted.columns, form
        if form != "sample":
            assert rows_of(result.dataframe) == rows_of(wanted), form
        assert not any(Path(sink.path, "_staging").iterdir()), form


SETTINGS = {
    "spark.sql.files.maxRecordsPerFile": "10",
    "spark.sql.parquet.writeLegacyFormat": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS",
    "spark.sql.parquet.compression.codec": "lz4_raw",
    "parquet.block.size": "1048576",
}


def test_what_only_spark_does_it_does(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job()
    schema = "k long, at timestamp"

    def pipeline(df: DataFrame) -> DataFrame:
        return job.key_by(df, "k", uid="keys").process(Stamps(), schema)

    for name, value in SETTINGS.items():
        with setting(spark, name, value):
            assert not by_tasks(job.run_epoch(keys(spark, 20), pipeline)), name
    assert by_tasks(job.run_epoch(keys(spark, 20), pipeline))


class Stamps(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process(self, key: int, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
        self.n.update(1)
        yield key, datetime.datetime(2026, 1, 1, tzinfo=UTC)


def test_types_that_only_spark_writes(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job()
    for number, (schema, directly) in enumerate(
        [
            ("k long, at timestamp_ntz", True),
            ("at timestamp, plain timestamp_ntz", False),
            ("k long, d interval day to second", False),
            ("k long, l struct<a:long not null>", False),
        ]
    ):
        result = job.run_epoch(
            keys(spark, 20),
            lambda df, to=schema: job.key_by(df, "k", uid="keys").process(Nothing(), to),
            sink=ParquetSink(f"{job.checkpoint}-{number}"),
        )
        assert by_tasks(result) == directly, schema
        assert result.dataframe.count() == 20


class Nothing(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process(self, key: int, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
        self.n.update(1)
        yield None, None


def test_an_epoch_without_rows_has_its_columns(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job()
    for frame, first in ((keys(spark, 0), 0), (keys(spark), KEYS)):
        result = job.run_epoch(frame, lambda df, first=first: counted(job, df, first))
        assert by_tasks(result) and len(files(result)) == 1
        assert result.dataframe.dtypes == [("k", "bigint"), ("n", "bigint")]
        assert result.dataframe.count() == 0
    assert state_of(job, "counts") == dict.fromkeys(range(KEYS), 1)


class KilledOnce(Counts):
    """Kills its worker in the middle of the output, the first time."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        self.mark = mark

    def process(self, key: int, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[int, int]]:
        if key == KEYS // 2 and not os.path.exists(self.mark):
            Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield from super().process(key, row, ctx)


def test_files_of_a_killed_worker_do_not_count(
    spark: SparkSession, tmp_path: Path, make_job: MakeJob
) -> None:
    job = make_job()
    function = KilledOnce(str(tmp_path / "killed"))

    def pipeline(df: DataFrame) -> DataFrame:
        return job.key_by(df, "k", uid="counts", order_by="k").process(function, "k long, n long")

    result = job.run_epoch(keys(spark), pipeline)
    assert Path(function.mark).exists() and by_tasks(result)
    assert sorted(map(tuple, result.dataframe.collect())) == [(key, 1) for key in range(KEYS)]
    assert state_of(job, "counts") == dict.fromkeys(range(KEYS), 1)
    assert result.manifest is not None
    [transaction] = result.manifest.sinks
    assert transaction["rows"] == KEYS
    assert [path.name for path in files(result)] == [name for name, _ in transaction["files"]]


@pytest.mark.parametrize("where", ["files", pytest.param("reported", marks=pytest.mark.slow)])
def test_a_complete_file_without_a_report_does_not_count(
    where: str,
    spark: SparkSession,
    tmp_path: Path,
    make_job: MakeJob,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job, sink = make_job(), ParquetSink(tmp_path / "out")
    patterns = [sink.path, f"{sink.path}/*", f"{sink.path}/*/*"]
    written: list[int] = []
    seen: list[int] = []
    stage = ParquetSink.stage_files

    def staged(self: ParquetSink, files: Any, epoch: int, evaluation_id: str) -> Any:
        folder = Path(self.task_folder(epoch, evaluation_id))
        written.extend(pq.read_metadata(path).num_rows for path in folder.iterdir())
        seen.extend(spark.read.parquet(pattern).count() for pattern in patterns)
        return stage(self, files, epoch, evaluation_id)

    job.run_epoch(keys(spark), lambda df: counted(job, df), sink=sink)
    with monkeypatch.context() as patch:
        patch.setattr(ParquetSink, "stage_files", staged)
        mapped = deadly_map({where: tmp_path / "killed"})
        patch.setattr("pystate.spark.operators.apply.arrow_map", mapped)
        result = job.run_epoch(keys(spark), lambda df: counted(job, df), sink=sink)
    # The file of the worker that was killed was there, complete, beside those that count.
    assert len(written) == 3 and sum(written) > KEYS and by_tasks(result)
    assert seen == [KEYS] * len(patterns)
    assert sorted(map(tuple, result.dataframe.select("k", "n").collect())) == [
        (key, 2) for key in range(KEYS)
    ]
    assert len(files(result)) == 2
    assert [spark.read.parquet(pattern).count() for pattern in patterns] == [2 * KEYS] * 3
    assert state_of(job, "counts") == dict.fromkeys(range(KEYS), 2)
    assert not any((tmp_path / "out" / "_staging").iterdir())
