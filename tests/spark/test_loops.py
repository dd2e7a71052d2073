"""Loops on a real Spark: rows that go round, whatever happens between two rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import networkx as nx
import pytest

import pystate as ps
from pystate.errors import (
    CheckpointError,
    DeclarationError,
    InvalidArgumentError,
    LoopNotEmptyError,
    UnclaimedStateError,
    WrongTypeError,
)

from .conftest import Source, close_for_good, rows_of, state_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import EpochProgress, Job

MakeJob = Callable[..., "Job"]
ROW = "k string, v long, tries int"


def counting(job: Job) -> Callable[[DataFrame], DataFrame]:
    """A row goes round `v` times; then it comes out."""

    def pipeline(df: DataFrame) -> DataFrame:
        loop = job.feedback("retries", ROW, uid="loop")
        rows = df.selectExpr("k", "v", "0 AS tries").unionByName(loop.rows())
        loop.feed(rows.where("tries < v").selectExpr("tries + 1 AS tries", "k", "v"))
        return rows.where("tries >= v")

    return pipeline


def rounds_of(values: list[int]) -> list[list[tuple[str, int, int]]]:
    """What comes out in each round, if the values come in the first one."""
    most = max(values, default=0)
    return [[(f"{i}", v, v) for i, v in enumerate(values) if v == n] for n in range(most + 1)]


def rows_with(spark: SparkSession, values: list[int]) -> DataFrame:
    return spark.createDataFrame([(f"{i}", v) for i, v in enumerate(values)], "k string, v long")


VALUES = [2, 0, 1, 2, 1, 2]


def test_rounds_with_everything_in_between(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    """A bound, other drivers, another parallelism, and a savepoint while rows are in flight."""
    job, data = make_job(), rows_with(spark, VALUES)
    wanted = rounds_of(VALUES)
    seen: list[EpochProgress] = []
    with pytest.raises(LoopNotEmptyError, match="after 1 rounds 5 rows are in flight: 5 on 'loop'"):
        job.run_until_empty(data, counting(job), run_key="a", max_rounds=1, on_epoch=seen.append)
    assert [step.in_flight for step in seen] == [{"loop": 5}]
    assert "5 in flight" in str(seen[0]) and job.in_flight() == {"loop": 5}
    job.savepoint(tmp_path / "savepoint")
    close_for_good(job)  # the next one reads files

    def rescale(step: EpochProgress) -> None:
        seen.append(step)
        job.rescale(1 + step.epoch % 3)

    job = make_job(parallelism=5)
    results = job.run_until_empty(data, counting(job), run_key="a", on_epoch=rescale)
    assert [rows_of(r.dataframe.drop("epoch")) for r in results] == [sorted(r) for r in wanted]
    assert [r.already_done for r in results] == [True, False, False]
    assert [step.operators[0].ranges for step in seen[1:]] == [5, 3]
    assert job.in_flight() == {"loop": 0} and job.latest_epoch() == 3
    # Once more changes nothing.
    again = job.run_until_empty(data, counting(job), run_key="a", on_epoch=seen.append)
    assert [r.epoch for r in again] == [r.epoch for r in results] and len(seen) == 3

    other = make_job(checkpoint=tmp_path / "other", restore=tmp_path / "savepoint", parallelism=3)
    results = other.run_until_empty(data, counting(other), run_key="a")
    assert [r.already_done for r in results] == [True, False, False]
    found = [rows_of(r.dataframe.drop("epoch")) for r in results[1:]]
    assert found == [sorted(r) for r in wanted[1:]]


def test_a_stream_with_several_batches_per_checkpoint(
    source: Source, make_job: MakeJob, spark: SparkSession, tmp_path: Path
) -> None:
    """Rows in flight are held with the steps; what is left at the end goes round without input."""
    values = [[2, 1], [0, 2], [1]]
    rows = [(f"{i}.{j}", v) for i, batch in enumerate(values) for j, v in enumerate(batch)]
    for i, batch in enumerate(values):
        source.add(*(f"{i}.{j},{v}" for j, v in enumerate(batch)))
    steps: list[EpochProgress] = []
    job = make_job(checkpoints=ps.CheckpointOptions(interval=2))
    query = job.start(
        source.stream(), counting(job), trigger={"availableNow": True}, on_epoch=steps.append
    )
    query.awaitTermination()
    assert [step.epoch for step in steps] == [1, 2, 2]
    # A row that came in batch i with v is in flight for v batches.
    wanted = [
        sum(i <= n < i + v for i, batch in enumerate(values) for v in batch) for n in range(3)
    ]
    assert [step.in_flight["loop"] for step in steps] == wanted
    assert [step.rows_restored for step in steps] == [0] * 3
    job.close()
    job = make_job(parallelism=3)
    job.run_until_empty(spark.createDataFrame([], "k string, v long"), counting(job))
    found = spark.read.parquet(f"{job.checkpoint}/results")
    assert rows_of(found.select("k", "v", "tries")) == sorted((k, v, v) for k, v in rows)
    assert max(row.epoch for row in found.collect()) == job.latest_epoch() == 2 + 1


class Smallest(ps.KeyedProcessFunction):
    """The smallest label that a node has heard of; news goes to its neighbours."""

    label = ps.ValueState("long")
    neighbours = ps.MapState("long", "boolean")

    def process(self, key: int, row: Any, ctx: ps.RuntimeContext) -> Any:
        label = self.label.value()
        if row.neighbour is not None and row.neighbour not in self.neighbours:
            self.neighbours.put(row.neighbour, True)
            if label is not None:
                yield row.neighbour, label
        if label is None or row.label < label:
            self.label.update(row.label)
            for neighbour in self.neighbours.keys():  # noqa: SIM118 (a state, not a dict)
                yield neighbour, row.label


def components(job: Job) -> Callable[[DataFrame], DataFrame]:
    """Read twice: by an action in the pipeline, and by what is fed."""

    def pipeline(edges: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        loop = job.feedback("messages", "node long, label long")
        both = edges.union(edges.select("b", "a"))
        rows = both.selectExpr("a AS node", "a AS label", "b AS neighbour").unionByName(
            loop.rows(), allowMissingColumns=True
        )
        keyed = job.key_by(rows, "node", uid="nodes", order_by="label")
        messages = keyed.process(Smallest(), schema="node long, label long")
        sent = messages.groupBy("node").agg(F.min("label").alias("label"))
        loop.feed(sent)
        return messages.groupBy().count()

    return pipeline


def test_an_epoch_that_is_computed_twice(spark: SparkSession, make_job: MakeJob) -> None:
    """The first evaluation reads the operator twice: the loop is fed once all the same."""
    graph = nx.Graph([(0, 1), (3, 2), (5, 4)])
    edges = spark.createDataFrame(list(graph.edges), "a long, b long").repartition(3)
    job, steps = make_job(), []
    job.run_until_empty(edges, components(job), on_epoch=steps.append)
    assert steps[0].evaluations == 2 and {step.evaluations for step in steps[1:]} == {1}
    found = {k: label for k, (label, _) in state_of(job, "nodes").items()}
    assert found == {node: min(n) for n in nx.connected_components(graph) for node in n}


def test_rows_that_are_read_late_or_twice(spark: SparkSession, make_job: MakeJob) -> None:
    """After the loop's own task has sealed the table, they are those of the epoch before."""
    job, read = make_job(), []

    def pipeline(df: DataFrame) -> DataFrame:
        loop = job.feedback("l", "n long")
        read.append(loop.rows())
        assert loop.rows() is read[-1]
        # It is not sent whole to every task of a join because its few ranges look small.
        plan: Any = read[-1]._jdf.queryExecution().optimizedPlan()
        assert int(plan.stats().sizeInBytes()) > 1 << 40
        at = read[-1].selectExpr("n + 1 AS n")
        loop.feed(df.union(at))
        # In one stage with the loop's tasks, and in one behind it.
        return read[-1].union(at.repartition(3)).union(read[-1].orderBy("n"))

    data = spark.createDataFrame([(1,), (10,)], "n long")
    wanted: list[int] = []
    for epoch in range(1, 3):
        result = job.run_epoch(data, pipeline)
        twice = Counter(wanted) + Counter(n + 1 for n in wanted) + Counter(wanted)
        assert Counter(row.n for row in result.dataframe.collect()) == twice
        assert Counter(row.n for row in read[-1].collect()) == Counter(wanted)
        wanted = [1, 10, *(n + 1 for n in wanted)]
        assert job.last_progress is not None
        assert job.last_progress.in_flight == {"l": len(wanted)} == {"l": 2 * epoch}
        assert job.last_progress.rows_restored == 0


class Fires(ps.KeyedProcessFunction):
    n = ps.ValueState("long")

    def process(self, key: str, row: Any, ctx: ps.RuntimeContext) -> Any:
        ctx.register_event_time_timer(row.at + 10)

    def on_timer(self, key: str, timestamp: int, ctx: ps.RuntimeContext) -> Any:
        yield key, timestamp


def test_watermarks_do_not_wait_for_a_loop(spark: SparkSession, make_job: MakeJob) -> None:
    job, schema = make_job(), "k string, at long"

    def firing(df: DataFrame, uid: str, **options: Any) -> DataFrame:
        return job.key_by(df, "k", uid=uid, **options).process(Fires(), schema=schema)

    def pipeline(df: DataFrame) -> DataFrame:
        loop = job.feedback("l", schema)
        fed = loop.rows()
        alone = firing(fed, "alone", event_time="at")
        first = firing(df.unionByName(fed), "first", event_time="at")
        loop.feed(first)
        # Behind an operator, and beside a loop with and without an operator.
        return firing(first.union(fed.localCheckpoint()).union(alone), "second")

    def marks() -> list[int | None]:
        assert job.last_progress is not None
        return [operator.watermark_ms for operator in job.last_progress.operators]

    for at in (100, 200, 300):
        data = spark.createDataFrame([("a", at), ("b", at)], schema)
        result = job.run_epoch(data, pipeline)
    # alone, first, l, second
    assert marks() == [None, 300, None, 200]
    assert rows_of(result.dataframe.select("k", "at")) == [("a", 120), ("b", 120)]


def test_watermarks_wait_for_a_loop_that_has_event_time(
    spark: SparkSession, make_job: MakeJob
) -> None:
    """A row that has gone round is not late in a window behind."""
    job = make_job()

    def pipeline(df: DataFrame) -> DataFrame:
        loop = job.feedback("l", "k string, at long, tries int", event_time="at")
        rows = df.unionByName(loop.rows())
        loop.feed(rows.where("tries > 0").selectExpr("k", "at", "tries - 1 AS tries"))
        windows = job.key_by(rows.where("tries = 0"), "k", uid="w", event_time="at")
        return windows.window(ps.Tumbling(10)).aggregate(n=ps.count())

    found = []
    for at, tries in ((0, 2), (100, 0), (200, 0)):
        data = spark.createDataFrame([("a", at, tries)], "k string, at long, tries int")
        found += rows_of(job.run_epoch(data, pipeline, drain=at == 200).dataframe)
        assert job.last_progress is not None
        assert set(job.last_progress.late_rows.values()) == {0}
    assert sorted(found) == [("a", at, at + 10, 1) for at in (0, 100, 200)]
    with pytest.raises(InvalidArgumentError, match="event_time='when' is not a column"):
        job.run_epoch(data, lambda df: job.feedback("l", ROW, event_time="when").rows())


TYPES = {
    "all": (
        "a int, b string, c timestamp, d array<struct<x: double>>, e map<string, date>, "
        "f decimal(20,3), g binary, h boolean, `i.j` struct<s: string, m: map<int, int>>",
        "IF(id = 0, null, 7) AS a, IF(id = 0, null, 'ä') AS b, "
        "timestamp'2020-01-01 10:00:00.123456' AS c, array(named_struct('x', 1.5D), null) AS d,"
        "map('k', date'2020-02-02') AS e, 1.125BD AS f, X'00FF' AS g, true AS h,"
        "named_struct('s', null, 'm', map(1, id)) AS `i.j`",
    ),
    "a map": ("m map<string, int>", "map('a', CAST(id AS int)) AS m"),
}


def test_columns_of_every_type(spark: SparkSession, make_job: MakeJob) -> None:
    job, frames = make_job(), {}
    for name, (schema, values) in TYPES.items():
        frames[name] = spark.createDataFrame(
            spark.sql(f"SELECT {values} FROM range(3)").rdd, schema
        )

    def pipeline(df: DataFrame) -> dict[str, DataFrame]:
        results = {}
        for name, (schema, _) in TYPES.items():
            loop = job.feedback(name, schema)
            fed = frames[name]
            loop.feed(fed.select(*(f"`{column}`" for column in reversed(fed.columns))))
            results[name] = loop.rows()
        return results

    for _ in range(2):
        result = job.run_epoch(spark.range(1), pipeline)
    for name, fed in frames.items():
        found = result.dataframes[name].drop("epoch")
        assert found.columns == fed.columns
        assert sorted(map(repr, map(tuple, found.collect()))) == sorted(
            map(repr, map(tuple, fed.collect()))
        )


def test_an_rdd_may_come_out(spark: SparkSession, make_job: MakeJob) -> None:
    job = make_job()

    def pipeline(df: DataFrame) -> Any:
        return counting(job)(df).rdd.map(lambda row: (row.k,))

    data = rows_with(spark, [1, 0])
    found = [
        rows_of(job.run_epoch(rows, pipeline, schema="k string").dataframe.select("k"))
        for rows in (data, data.where("false"))
    ]
    assert found == [[("1",)], [("0",)]]


WRONG: dict[str, tuple[Callable[[Any, Any], Any], type[Exception], str]] = {
    "twice": (
        lambda loop, df: [loop.rows(), loop.feed(df), loop.feed(df)],
        DeclarationError,
        r"^loop 'retries' is fed twice .*unionByName",
    ),
    "not read": (
        lambda loop, df: loop.feed(df),
        DeclarationError,
        r"^loop 'retries': the pipeline does not read its rows",
    ),
    "missing": (
        lambda loop, df: loop.feed(df.drop("v")),
        InvalidArgumentError,
        r"^loop 'retries': feed: 'v' is not a column",
    ),
    "too many": (
        lambda loop, df: loop.feed(df.selectExpr("*", "1 AS w")),
        InvalidArgumentError,
        r"^loop 'retries': feed: the loop has no column 'w': it has k, v",
    ),
    "type": (
        lambda loop, df: loop.feed(df.selectExpr("k", "CAST(v AS string) AS v")),
        WrongTypeError,
        r"^loop 'retries': feed: column 'v' is string, and the loop's is bigint: cast it",
    ),
    "no frame": (lambda loop, df: loop.feed([1]), InvalidArgumentError, "feed: df"),
}


@pytest.mark.parametrize("case", WRONG)
def test_mistakes_in_a_pipeline(spark: SparkSession, make_job: MakeJob, case: str) -> None:
    job, (act, kind, message) = make_job(), WRONG[case]

    def pipeline(df: DataFrame) -> DataFrame:
        act(job.feedback("retries", "k string, v long", uid="loop"), df)
        return df

    with pytest.raises(kind, match=message):
        job.run_epoch(rows_with(spark, [1]), pipeline)
    assert job.latest_epoch() is None


def feedback_twice(job: Job) -> DataFrame:
    job.feedback("l", "n long")
    return job.feedback("l", "n long").rows()


def test_mistakes_in_declarations(spark: SparkSession, make_job: MakeJob) -> None:
    job, data = make_job(), rows_with(spark, [1])
    with pytest.raises(CheckpointError, match="feedback works inside a pipeline only"):
        job.feedback("l", "n long")
    for schema, kind in (
        ("n nothing", InvalidArgumentError),
        ("__pystate_bucket long", InvalidArgumentError),
        ("", DeclarationError),
        ("v variant", Exception),
    ):
        with pytest.raises(kind, match="loop 'l'"):
            job.run_epoch(data, lambda df, s=schema: job.feedback("l", s).rows())
    with pytest.raises(DeclarationError, match="'l' is used twice"):
        job.run_epoch(data, lambda df: feedback_twice(job))
    # Whole numbers are widened, and nulls taken.
    widened = "n long, x double, s string"

    def pipeline(df: DataFrame) -> DataFrame:
        loop = job.feedback("l", widened)
        loop.feed(df.selectExpr("1S AS n", "2 AS x", "null AS s"))
        return loop.rows()

    job.run_epoch(data, pipeline)
    result = job.run_epoch(data, pipeline)
    assert rows_of(result.dataframe.drop("epoch")) == [(1, 2.0, None)]
    with pytest.raises(UnclaimedStateError, match="'l'"):
        job.run_epoch(data, lambda df: df)
    for rounds in (0, "3"):
        with pytest.raises(InvalidArgumentError, match="run_until_empty: max_rounds"):
            job.run_until_empty(data, pipeline, max_rounds=rounds)  # type: ignore[arg-type]
