"""What operators compute, against the same thing computed without state."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pystate as ps
from pystate.base.notes import notes_of
from pystate.errors import (
    DeclarationError,
    FunctionError,
    InvalidArgumentError,
    InvalidRowError,
    SchemaError,
    WrongTypeError,
)
from pystate.spark import ParquetSink

from .conftest import rows_of, state_of

if TYPE_CHECKING:
    from pyspark.core.rdd import RDD
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import EpochResult, Job

MakeJob = Callable[..., "Job"]


class Running(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)
    last = ps.ValueState("string")

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
        before = self.last.value()
        self.n.update(self.n.value() + 1)
        self.last.update(row.s)
        yield key, row["v"], self.n.value(), before


def numbers(spark: SparkSession, first: int, end: int) -> DataFrame:
    return spark.range(first, end).selectExpr(
        "IF(id % 10 = 9, NULL, id % 7) AS k", "id AS v", "CAST(id AS STRING) AS s"
    )


def key_of(i: int) -> int | None:
    return None if i % 10 == 9 else i % 7


def running(first: int, end: int) -> list[tuple[Any, ...]]:
    """The rows that `Running` yields for the numbers of one epoch, after those before."""
    counts: dict[Any, int] = {}
    last: dict[Any, str] = {}
    out = []
    for i in range(end):
        key = key_of(i)
        counts[key] = counts.get(key, 0) + 1
        if i >= first:
            out.append((key, i, counts[key], last.get(key)))
        last[key] = str(i)
    return sorted(out, key=repr)


def test_order_by_descends(spark: SparkSession, make_job: MakeJob) -> None:
    from pyspark.sql import functions as F

    job = make_job()

    class Order(ps.KeyedProcessFunction):
        seen = ps.ValueState("string", default="")

        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
            self.seen.update(f"{self.seen.value()}{row.v} ")

    def pipeline(df: DataFrame) -> DataFrame:
        keyed = job.key_by(df, "k", uid="order", order_by=["s", F.col("v").desc()])
        return keyed.process(Order(), schema="k string")

    frame = spark.createDataFrame(
        [("a", 1, "x"), ("a", 3, "x"), ("a", 2, "x"), ("a", 9, "w")], "k string, v long, s string"
    )
    assert job.run_epoch(frame.repartition(4), pipeline).dataframe.count() == 0
    assert state_of(job, "order") == {"a": "9 3 2 1 "}


class Totals(ps.VectorizedFunction):
    n = ps.ValueState("long", default=0)
    top = ps.ValueState("long")

    def process(self, keys: ps.KeyBatch, batch: pa.RecordBatch, ctx: ps.RuntimeContext) -> Any:
        self.n.add(keys, 1)
        self.top.max(keys, batch.column("v"))
        yield {"k": batch.column("k"), "v": batch.column("v"), "n": self.n.values(keys)}


class Together(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process_rows(self, key: Any, batch: pa.RecordBatch, ctx: ps.RuntimeContext) -> Any:
        self.n.update(self.n.value() + batch.num_rows)
        yield *key, self.n.value(), pc.sum(batch.column("v")).as_py()


class Objects(ps.KeyedProcessFunction):
    seen = ps.ValueState(object)

    def open(self, ctx: ps.RuntimeContext) -> None:
        self.opened = (ctx.uid, ctx.epoch)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
        seen = self.seen.value() or []
        seen.append(row.v)
        self.seen.update(seen)
        first, last = ctx.key_group_range
        assert ctx.max_parallelism == 128 and 0 <= first <= last < 128
        yield key, len(seen), *self.opened, ctx.processing_time


def odd_of(i: int) -> float | None:
    return 0.0 if i % 2 else None


def together(first: int, end: int) -> list[tuple[Any, ...]]:
    """The rows that `Together` yields for the numbers of one epoch, after those before."""
    groups: dict[Any, list[int]] = {}
    for i in range(first, end):
        groups.setdefault((key_of(i), odd_of(i)), []).append(i)
    seen = {key: sum((key_of(i), odd_of(i)) == key for i in range(first)) for key in groups}
    return sorted(((*k, seen[k] + len(v), sum(v)) for k, v in groups.items()), key=repr)


def test_functions_over_epochs(spark: SparkSession, make_job: MakeJob) -> None:
    """Of rows one by one in order, of columns, of a key's rows together, and with objects."""
    job = make_job(parallelism=3)

    def pipeline(df: DataFrame) -> dict[str, DataFrame]:
        ordered = job.key_by(df, "k", uid="running", order_by="v")
        # Both zeros are one key.
        odd = df.selectExpr(
            "k", "v", "CASE WHEN v % 2 = 0 THEN NULL WHEN v % 4 = 1 THEN -0.0D ELSE 0.0D END AS odd"
        )
        of_two = job.key_by(odd, "k", "odd", uid="together", order_by="v")
        plain = df.select("k", "v")
        return {
            "running": ordered.process(Running(), "k long, v long, n long, before string"),
            "totals": job.key_by(df, "k", uid="totals").process(Totals(), "n long, v long, k long"),
            "together": of_two.process(Together(), "k long, odd double, n long, total long"),
            "objects": job.key_by(plain, "k", uid="objects").process(
                Objects(), "k long, n int, uid string, number long, time long"
            ),
        }

    for first, end in ((0, 50), (50, 200)):
        frame = numbers(spark, first, end).repartition(3)
        frames = job.run_epoch(frame, pipeline).dataframes
        found = {name: rows_of(each) for name, each in frames.items()}
        assert found["running"] == running(first, end)
        assert [(k, None if o is None else abs(o), n, t) for k, o, n, t in found["together"]] == (
            together(first, end)
        )
        assert sorted(v for _, v, _ in found["totals"]) == list(range(first, end))
    assert state_of(job, "running")[None] == (20, "199")
    assert {k: n for n, _, k in found["totals"]}[None] == 20
    assert state_of(job, "totals") == {
        key: (
            sum(key_of(i) == key for i in range(200)),
            max(i for i in range(200) if key_of(i) == key),
        )
        for key in {key_of(i) for i in range(200)}
    }
    objects = found["objects"]
    assert {(uid, epoch) for _, _, uid, epoch, _ in objects} == {("objects", 2)}
    assert len({time for *_, time in objects}) == 1
    assert max(n for k, n, *_ in objects if k == 0) == sum(key_of(i) == 0 for i in range(200))


def test_aggregates_equal_sql(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job(parallelism=3)

    def pipeline(df: DataFrame) -> DataFrame:
        return job.key_by(df, "k", "g", uid="sums").aggregate(
            n=ps.count(),
            known=ps.count("i"),
            total=ps.sum("i"),
            real=ps.sum("d"),
            exact=ps.sum("m"),
            low=ps.min("i"),
            high=ps.max("m"),
            first=ps.min("t"),
            mean=ps.mean("i"),
        )

    def epoch(number: int) -> DataFrame:
        return spark.range(500).selectExpr(
            f"IF(id % 11 = 0, NULL, (id + {number}) % 5) AS k",
            "CAST(id % 3 AS STRING) AS g",
            f"IF(id % 7 = 0, NULL, CAST(id * {number + 1} AS INT)) AS i",
            "CAST(id AS DOUBLE) / 4 AS d",
            "CAST(id AS DECIMAL(10,2)) / CAST(8 AS DECIMAL(3,0)) AS m",
            f"TIMESTAMP_SECONDS(id * {number + 1}) AS t",
        )

    # Of the keys some have no rows in the second epoch.
    epochs = [epoch(0), epoch(1).where("k IS NULL OR k > 1")]
    for frame in epochs:
        result = job.run_epoch(frame, pipeline)
    epochs[0].union(epochs[1]).where("k IS NULL OR k > 1").createOrReplaceTempView("everything")
    wanted = spark.sql(
        "SELECT k, g, count(*), count(i), sum(i), sum(d), sum(m), min(i), max(m), min(t), "
        "avg(i) FROM everything GROUP BY k, g"
    )
    assert rows_of(result.dataframe) == rows_of(wanted)
    assert job.read_state("sums").num_rows == 18
    kinds = dict(result.dataframe.dtypes)
    assert kinds["total"] == "bigint" and kinds["low"] == "int" and kinds["mean"] == "double"


def test_sums_of_floats_follow_the_order(spark: SparkSession, make_job: MakeJob) -> None:
    from pyspark.sql import functions as F

    job = make_job()
    rows = [("a", 0, 1.0), ("a", 1, 1e16), ("a", 2, -1e16)]
    frame = spark.createDataFrame(rows, "k string, at long, v double").repartition(3)

    def pipeline(df: DataFrame) -> DataFrame:
        up = job.key_by(df, "k", uid="up", order_by="at").aggregate(x=ps.sum("v"))
        down = job.key_by(df, "k", uid="down", order_by=F.col("at").desc()).aggregate(
            x=ps.sum("v"), n=ps.count()
        )
        # What is the same in any order is not sorted.
        count = job.key_by(df, "k", uid="n", order_by=df["at"]).aggregate(n=ps.count("at"))
        return up.join(down.select("k", F.col("x").alias("y")), "k").join(count, "k")

    assert rows_of(job.run_epoch(frame, pipeline).dataframe) == [("a", 0.0, 1.0, 3)]


def test_a_row_with_which_a_sum_overflows(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    job = make_job()

    def pipeline(df: DataFrame) -> DataFrame:
        return job.key_by(df, "k", uid="sums").aggregate(total=ps.sum("v"))

    most = 2**63 - 1
    more = spark.createDataFrame([("a", most), ("a", 1)], "k string, v long").coalesce(1)
    assert rows_of(job.run_epoch(more, pipeline).dataframe) == [("a", most)]
    assert job.last_progress is not None and job.last_progress.invalid_rows == {"sums": 1}
    exact = make_job(checkpoint=tmp_path / "exact", on_invalid="fail")
    huge = spark.sql("SELECT 'a' AS k, CAST(9e37BD AS DECIMAL(38,0)) AS v")
    with pytest.raises(
        InvalidRowError,
        match=r"operator 'sums': a row of key 'a' would take total=sum\(v\) .* column to double",
    ):
        exact.run_epoch(
            huge.union(huge),
            lambda df: exact.key_by(df, "k", uid="sums").aggregate(total=ps.sum("v")),
        )
    less = spark.createDataFrame([("a", -1), ("a", most)], "k string, v long").coalesce(1)
    sink = ParquetSink(tmp_path / "odd")
    aside = job.run_epoch(
        less,
        lambda df: job.key_by(df, "k", uid="sums", invalid="odd").aggregate(total=ps.sum("v")),
        side_outputs={"odd": sink},
    )
    assert rows_of(aside.dataframe) == [("a", most - 1)]
    assert [tuple(row)[:2] for row in sink.read(spark).collect()] == [("a", most)]


def test_every_key_type(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job(parallelism=2)
    kinds = {
        "boolean": [True, False],
        "byte": [1, -1],
        "short": [300, -300],
        "int": [70000, -1],
        "float": [0.5, float("inf")],
        "double": [1e300, -2.5],
        "date": [datetime.date(1969, 12, 31), datetime.date(2013, 1, 1)],
        "timestamp": [datetime.datetime(2013, 1, 1, 5, 0, 0, 7)],
        "timestamp_ntz": [datetime.datetime(2013, 1, 1, 5, 0, 0, 7)],
        "decimal(38,4)": [Decimal("12345678901234567890.5000")],
        "decimal(9,2)": [Decimal("-1.25")],
        "string": ["", "å" * 40],
        "binary": [b"", b"\x00\xff"],
    }

    columns = [f"c{i}" for i in range(len(kinds))]

    def pipeline(df: DataFrame) -> dict[str, DataFrame]:
        texts = job.key_by(df.where(f"{text} IS NOT NULL"), text, uid="texts")
        return {
            "all": job.key_by(df, *columns, uid="all").aggregate(n=ps.count()),
            "texts": texts.aggregate(n=ps.count()),
        }

    text = columns[list(kinds).index("string")]
    rows = [
        tuple(value if i == j else None for j in range(len(kinds)))
        for i, values in enumerate(kinds.values())
        for value in values
    ]
    schema = ", ".join(map(" ".join, zip(columns, kinds, strict=True)))
    frame = spark.createDataFrame(rows, schema)
    job.run_epoch(frame, pipeline)
    again = job.run_epoch(frame, pipeline).dataframes["all"]
    assert again.dtypes[:-1] == frame.dtypes
    assert rows_of(again) == sorted(((*row, 2) for row in map(tuple, frame.collect())), key=repr)
    assert state_of(job, "texts") == {"": 2, "å" * 40: 2}


def test_operators_in_a_row_commit_together(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job()

    def pipeline(df: DataFrame) -> DataFrame:
        per_key = job.key_by(df, "k", uid="first").aggregate(n=ps.count())
        sizes = per_key.selectExpr("n % 2 AS parity", "n")
        # Each count is an event here, of a parity that the next one changes.
        keyed = job.key_by(sizes, "parity", uid="second", as_rows=True)
        return keyed.aggregate(keys=ps.count())

    job.run_epoch(numbers(spark, 0, 100), pipeline)
    result = job.run_epoch(numbers(spark, 100, 150), pipeline)
    counts = state_of(job, "first")
    assert counts == {k: sum(key_of(i) == k for i in range(150)) for k in counts}
    assert result.manifest is not None
    assert {operator.uid for operator in result.manifest.operators} == {"first", "second"}
    assert sum(state_of(job, "second").values()) == 2 * 8


def test_an_error_in_a_worker_keeps_its_class(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job()

    class OneRow(ps.KeyedProcessFunction):
        n = ps.ValueState("long", default=0)

        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
            self.n.update("text" if row.v == 2 else row.v)
            return [(key, row.v)]

    def run(value: int) -> EpochResult:
        frame = spark.createDataFrame([("a", value)], "k string, v long")
        return job.run_epoch(
            frame,
            lambda df: job.key_by(df, "k", uid="one").process(OneRow(), "k string, n long"),
        )

    with pytest.raises(WrongTypeError, match="state 'n' is long") as no:
        run(2)
    assert "PythonException" in type(no.value.__cause__).__name__
    assert notes_of(no.value) == ["in OneRow.process of operator 'one': key 'a'"]
    # Nothing happened.
    assert run(1).epoch == 1


class Rate(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        yield key, 1 // (row.v - 3)


def test_a_run_raises_the_functions_own_error(spark: SparkSession, make_job: MakeJob) -> None:
    job, frame = make_job(), spark.createDataFrame([("a", 1), ("b", 3)], "k string, v long")
    line = Rate.process.__code__.co_firstlineno + 1

    def rate(df: DataFrame) -> DataFrame:
        return job.key_by(df, "k", uid="one").process(Rate(), "k string, n long")

    def rates(rdd: RDD[Any]) -> RDD[Any]:
        split = job.partition_by(rdd, lambda row: row.k, key_type="string", uid="one")
        return spark.sparkContext.parallelize(
            split.mapPartitions(job.partitions(Rate(), uid="one")).collect()
        )

    runs: list[Callable[[], Any]] = [
        lambda: job.run_epoch(frame, rate),
        lambda: job.run_until_empty(frame, rate),
        lambda: job.run_epoch(frame.rdd, rates, schema="k string, n long"),
    ]
    for run in runs:
        with pytest.raises(FunctionError) as raised:
            run()
        assert str(raised.value) == (
            "ZeroDivisionError: integer division or modulo by zero\n"
            f"in Rate.process of operator 'one': key 'b', line {line} of {__file__}"
        )
        assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert job.run_epoch(frame.limit(1), rate).epoch == 1


def test_state_of_another_type_is_refused(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job()
    frame = spark.createDataFrame([("a", 1)], "k string, v long")
    job.run_epoch(frame, lambda df: job.key_by(df, "k", uid="x").aggregate(n=ps.sum("v")))
    with pytest.raises(
        SchemaError, match=r"operator 'x', state 'n': stored as Sum\(\) of long.*double"
    ):
        job.run_epoch(
            frame.selectExpr("k", "CAST(v AS DOUBLE) AS v"),
            lambda df: job.key_by(df, "k", uid="x").aggregate(n=ps.sum("v")),
        )


def test_other_parallelism(spark: SparkSession, make_job: MakeJob) -> None:
    for parallelism, end in ((3, 100), (1, 150), (5, 200)):
        job = make_job(parallelism=parallelism)

        def pipeline(df: DataFrame, job: Job = job) -> DataFrame:
            return job.key_by(df, "k", uid="n").aggregate(n=ps.count())

        job.run_epoch(numbers(spark, end - 50 if end > 100 else 0, end), pipeline)
        counts = state_of(job, "n")
        assert counts == {k: sum(key_of(i) == k for i in range(end)) for k in counts}


def test_columns_of_any_name(spark: SparkSession, make_job: MakeJob) -> None:
    from pyspark.sql import functions as F

    job = make_job()
    names = ["a.b", "c`d", "é ü,;=", "st"]

    class Named(ps.KeyedProcessFunction):
        n = ps.ValueState("long", default=0)

        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
            self.n.update(self.n.value() + row["c`d"])
            yield key, self.n.value(), row["st"]["x.y"], "|".join(row._fields)

    def pipeline(df: DataFrame) -> DataFrame:
        keyed = job.key_by(df, "a.b", uid="rows", order_by=["c`d", F.col("`é ü,;=`").desc()])
        rows = keyed.process(Named(), "`a.b` string, `n.n` long, `é`` ` int, `names.` string")
        totals = job.key_by(rows, "a.b", "é` ", "names.", uid="sums", order_by="n.n")
        return totals.aggregate(**{"m.n": ps.max("n.n"), "mean`": ps.mean("n.n")})

    frame = spark.createDataFrame([("x", 1, 2), ("y", 3, 4), ("x", 5, 6)], names[:3])
    result = job.run_epoch(frame.withColumn("st", F.struct(F.lit(7).alias("x.y"))), pipeline)
    assert result.dataframe.columns == ["a.b", "é` ", "names.", "m.n", "mean`"]
    fields = "|".join(names)
    assert rows_of(result.dataframe) == [("x", 7, fields, 6, 3.5), ("y", 7, fields, 3, 3.0)]


def test_a_name_that_is_taken_fails_before_anything_runs(
    spark: SparkSession, make_job: MakeJob
) -> None:
    job = make_job()

    class Clash(ps.KeyedProcessFunction):
        k = ps.ValueState("long")

        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
            self.k.update(1)

    class Spaces(ps.KeyedProcessFunction):
        namespace = "long"
        n = ps.ValueState("long")

        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
            self.n.update(1)

    # Without rows no task would make a table.
    none = spark.createDataFrame([], "k long, namespace long")
    for function, key, error in (
        (Clash(), "k", "operator 'x': state 'k': a key column has that name"),
        (Spaces(), "namespace", "operator 'x': a key column is called 'namespace'"),
    ):

        def pipeline(df: DataFrame, function: Any = function, key: str = key) -> DataFrame:
            return job.key_by(df, key, uid="x").process(function, "k long")

        with pytest.raises(DeclarationError, match=error):
            job.run_epoch(none, pipeline)
    assert job.latest_epoch() is None


def test_input_that_does_not_travel(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job()
    frame = spark.range(1).selectExpr("id AS k", "INTERVAL '1' YEAR AS y")

    def pipeline(df: DataFrame) -> DataFrame:
        return job.key_by(df, "k", uid="x").process(Running(), "k long")

    with pytest.raises(WrongTypeError, match="operator 'x': its input: column 'y' is interval"):
        job.run_epoch(frame, pipeline)
    counted = job.run_epoch(
        frame, lambda df: job.key_by(df, "k", uid="x").aggregate(n=ps.count("y"))
    )
    assert rows_of(counted.dataframe) == [(0, 1)]


def test_columns_of_an_aggregate_that_clash(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job()
    frame = spark.createDataFrame([("a", 1, 2)], "k string, v long, __pystate_value_0 long")
    plain = frame.drop("__pystate_value_0")
    count = ps.count()
    for data, aggregates, error in (
        (plain, {"k": count}, "operator 'x': two columns of the result are called k:"),
        (plain, {"n": count, "K": count}, "operator 'x': two columns of the result are called k:"),
        (plain, {"n": count, "N": count}, "operator 'x': two columns of the result are called n:"),
        (plain, {"__PYSTATE_range": count}, "'__PYSTATE_range': names that begin with"),
        (frame, {"n": count}, "'__pystate_value_0': names that begin with"),
    ):

        def pipeline(df: DataFrame, aggregates: Any = aggregates) -> DataFrame:
            return job.key_by(df, "k", uid="x").aggregate(**aggregates)

        with pytest.raises(InvalidArgumentError, match=error):
            job.run_epoch(data, pipeline)
