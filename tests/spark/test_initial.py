"""What operators begin with, on Spark: states, timers and earlier rows, in the first epoch only."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.epochs.retention import find_orphans
from pystate.errors import DeclarationError, InvalidArgumentError, WrongTypeError

from .conftest import Source, wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import EpochProgress, Job

MakeJob = Callable[..., "Job"]

HOUR = 3_600_000


class Balance(ps.KeyedProcessFunction):
    """Says the balance, and closes the account an hour after its last row."""

    balance = ps.ValueState("long", default=0)
    seen = ps.ListState("long")
    limits = ps.MapState("string", "long")
    kinds = ps.AggregatingState(ps.Mean(), "long")

    def process(self, key: Any, row: Any, ctx: Any) -> Any:
        self.balance.update(self.balance.value() + row.n)
        self.seen.add(row.n)
        self.kinds.add(row.n)
        ctx.register_event_time_timer(ctx.timestamp + HOUR)
        yield key, self.balance.value(), sum(self.seen.get()), self.limits.get("day")

    def on_timer(self, key: Any, timestamp: int, ctx: Any) -> Any:
        yield key, -1, timestamp, None


SCHEMA = "k string, balance long, seen long, day long"


def never() -> Any:
    raise AssertionError("the operator is in the checkpoint: nothing is read")


def orphans(job: Job) -> list[str]:
    """The state files that a collection would remove, were they old enough."""
    coordinator = job._epochs.coordinator
    assert coordinator is not None
    found = find_orphans(
        job._storage,
        term=coordinator.term,
        grace_ms=0,
        live=tuple,
        check_owner=lambda: None,
        now_ms=1 << 50,
    )
    return [entry.path for entry in found.files if entry.path.startswith("state/")]


def values(result: Any) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, result.dataframe.collect()), key=repr)


def test_states_and_timers(
    spark: SparkSession, make_job: MakeJob, caplog: pytest.LogCaptureFixture
) -> None:
    state = spark.createDataFrame(
        [("a", 100, [1, 2], {"day": 7}), ("b", 5, None, {}), (None, -1, [], None)],
        "k string, balance int, seen array<int>, limits map<string,long>",
    )
    timers = spark.sql("SELECT 'a' AS k, 'event' AS timer_domain, 5000L AS timer_ms")
    given: list[Any] = [state, timers]
    made = []

    def frame() -> DataFrame:
        made.append(1)
        return given[0]

    def pipeline(df: DataFrame, job: Job) -> DataFrame:
        keyed = job.key_by(df, "k", uid="balance", event_time="t")
        out = keyed.process(
            Balance(),
            SCHEMA,
            initial_state=frame if given[0] is not never else never,
            initial_timers=given[1],
        )
        # No collection removes what the epoch is to begin with.
        assert given[0] is never or not orphans(job)
        # The first epoch is computed again, with what the operator began with.
        out.count()
        return out

    rows = "k string, t long, n long"
    with make_job(parallelism=3) as job:
        first = spark.createDataFrame([("a", 1, 1), ("c", 10_000, 4)], rows)
        empty = job.run_epoch(first.limit(0), lambda df: df)
        assert empty.epoch == 1
        assert values(job.run_epoch(first, pipeline)) == [("a", 101, 4, 7), ("c", 4, 4, None)]
        given[:] = [never, never]
        # The timer of the beginning is due, and nothing is read again.
        second = spark.createDataFrame([(None, 10_001, 1)], rows)
        assert values(job.run_epoch(second, pipeline)) == [
            ("a", -1, 5000, None),
            (None, 0, 1, None),
        ]
        assert made == [1]
        assert job.read_state("balance").num_rows == 4
    no_effect = "'balance': initial_state, initial_rows or initial_items has no effect any more"
    assert no_effect not in caplog.text
    with make_job(parallelism=2) as job:
        third = spark.createDataFrame([("b", 10_001, 1)], rows)
        for balance in (6, 7):
            found = values(job.run_epoch(third, pipeline))
            assert found == [("b", balance, balance - 5, None)]
            assert caplog.text.count(no_effect) == 1


#: One of each road: rows in order, aggregates, windows and two inputs.
TELLING = ("process", "aggregate", "session", "interval")


def operators(job: Job, df: DataFrame, history: Any, names: Sequence[str]) -> DataFrame:
    """Operators over the same rows, with their results as text."""
    from pyspark.sql import functions as F

    def keyed(uid: str, **more: Any) -> Any:
        earlier = None if history is None else lambda: history(lambda rows: rows)
        rows = df.selectExpr("k", "t", "n")
        return job.key_by(
            rows,
            "k",
            uid=uid,
            event_time="t",
            allowed_delay=1000,
            initial_rows=earlier,
            **more,
        )

    def right() -> Any:
        def other(rows: DataFrame) -> DataFrame:
            return rows.where("n % 2 = 0").selectExpr("k AS key", "t AS at", "n AS other")

        earlier = None if history is None else lambda: history(other)
        return job.key_by(
            other(df), "key", event_time="at", allowed_delay=1000, initial_rows=earlier
        )

    kinds: dict[str, Callable[[Any], DataFrame]] = {
        "process": lambda rows: rows(order_by=["t", "n"]).process(Balance(), SCHEMA),
        "aggregate": lambda rows: rows().aggregate(n=ps.count(), m=ps.mean("n"), x=ps.max("n")),
        "tumbling": lambda rows: (
            rows()
            .window(ps.Tumbling(2000))
            .aggregate(n=ps.count(), m=(ps.Mean(), "n"), d=(ps.ApproxDistinct(), "n"))
        ),
        "session": lambda rows: (
            rows().window(ps.Session(700), allowed_lateness=500).aggregate(n=ps.count())
        ),
        "count": lambda rows: (
            rows(order_by=["t", "n"]).window(ps.CountWindow(3)).aggregate(s=ps.sum("n"))
        ),
        "once": lambda rows: rows(order_by=["t", "n"]).deduplicate(within=3000),
        "top": lambda rows: rows().top(2, by="n"),
        "interval": lambda rows: rows().interval_join(right(), -1000, 1000, how="full"),
        "asof": lambda rows: rows().asof_join(right(), how="left"),
        "co": lambda rows: rows().connect(right()).process(Both(), "k string, n long, other long"),
    }
    frames = [
        kinds[name](partial(keyed, name)).select(
            F.lit(name).alias("op"), F.to_json(F.struct("*")).alias("row")
        )
        for name in names or kinds
    ]
    out = frames[0]
    for frame in frames[1:]:
        out = out.unionAll(frame)
    return out


class Both(ps.KeyedCoProcessFunction):
    """Adds up both inputs."""

    left = ps.ValueState("long", default=0)
    right = ps.ValueState("long", default=0)

    def process_left(self, key: Any, row: Any, ctx: Any) -> Any:
        self.left.update(self.left.value() + row.n)

    def process_right(self, key: Any, row: Any, ctx: Any) -> Any:
        self.right.update(self.right.value() + row.other)
        ctx.register_event_time_timer(row.at // 500 * 500)

    def on_timer(self, key: Any, timestamp: int, ctx: Any) -> Any:
        yield key, self.left.value(), self.right.value()


@pytest.mark.parametrize(
    ("names", "inputs"),
    [
        pytest.param(TELLING, 5, id="some"),
        pytest.param((), 13, id="all", marks=pytest.mark.slow),
    ],
)
def test_earlier_rows_are_an_epoch_of_their_own(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, names: Sequence[str], inputs: int
) -> None:
    rng = random.Random(5)
    numbers = iter(range(10_000))
    epochs = [
        spark.createDataFrame(
            # Sums and means of whole numbers do not depend on the order of rows.
            [
                (rng.choice([None, "a", "b", "c"]), 3000 * e + rng.randint(-1500, 3000), n)
                for n in (next(numbers) for _ in range(40))
            ],
            "k string, t long, n long",
        ).orderBy("t")
        for e in range(2)
    ]
    earlier, *later = (epoch.localCheckpoint() for epoch in epochs)
    reads: list[int] = []

    def history(change: Callable[[DataFrame], DataFrame]) -> DataFrame:
        reads.append(1)
        return change(earlier)

    found = []
    for begins in (True, False):
        job = make_job(parallelism=2, checkpoint=tmp_path / f"begins-{begins}")
        given = [] if begins else [earlier, earlier.limit(0)]

        def pipeline(df: DataFrame, job: Job, begins: bool = begins) -> DataFrame:
            return operators(job, df, history if begins else None, names)

        with job:
            out = []
            for rows in (*given, *later):
                result = job.run_epoch(rows, pipeline, drain=rows is later[-1])
                out.append(Counter(map(tuple, result.dataframe.collect())))
        found.append(out[len(given) :])
    assert len(reads) == inputs
    for mine, wanted in zip(*found, strict=True):
        assert {op for op, _ in wanted} == {op for op, _ in mine}
        assert mine == wanted
    assert len({op for epoch in found[0] for op, _ in epoch}) == (len(names) or 10)


def test_held_epochs_begin_once_though_the_first_was_killed(
    spark: SparkSession, make_job: MakeJob, source: Source, tmp_path: Path
) -> None:
    state = spark.sql("SELECT 'a' AS k, 100L AS balance, array(1L) AS seen")
    items = spark.range(100).selectExpr("id AS left")
    fails = tmp_path / "fails"
    fails.touch()

    class Fails(Balance):
        def process(self, key: Any, row: Any, ctx: Any) -> Any:
            if fails.exists():
                raise RuntimeError("killed")
            yield from super().process(key, row, ctx)

    def pipeline(df: DataFrame, job: Job) -> DataFrame:
        rows = df.selectExpr("k", "0L AS t", "v AS n")
        keyed = job.key_by(rows, "k", uid="balance", event_time="t")
        numbers = job.operator(rows, uid="numbers").process(
            Numbers(), "instance int, first boolean, n long", initial_state=items
        )
        numbers = numbers.selectExpr(
            "'n' AS k", "n AS balance", "CAST(first AS long) AS seen", "0L AS day"
        )
        return keyed.process(Fails(), SCHEMA, initial_state=state).union(numbers)

    epochs: list[int] = []

    def note(progress: EpochProgress) -> None:
        epochs.append(progress.epoch)
        if len(epochs) == 1:
            source.add("a,1", "b,1")

    source.add("a,1", "b,1")
    for fail in (True, False):
        with make_job(parallelism=2, checkpoints=ps.CheckpointOptions(interval="1 hour")) as job:
            trigger = {"processingTime": "0 seconds"}
            query = job.start(source.stream(), pipeline, trigger=trigger, on_epoch=note)
            if fail:
                with pytest.raises(Exception, match="killed"):
                    query.awaitTermination()
                fails.unlink()
                assert job.latest_epoch() is None
            else:
                wait_for(lambda: len(epochs) == 2, "the epochs", 120)
                query.stop()
    assert epochs == [1, 2]
    got = spark.read.parquet(str(Path(job.checkpoint) / "results")).collect()
    assert sorted((row.k, row.balance, row.seen) for row in got if row.k != "n") == [
        *[("a", 101, 2), ("a", 102, 3)],
        *[("b", 1, 1), ("b", 2, 2)],
    ]
    numbers = [row for row in got if row.k == "n"]
    assert sum(row.seen for row in numbers) == 2 and {row.epoch for row in numbers if row.seen} == {
        1
    }
    assert len({row.balance for row in numbers} - {None}) == len(numbers) == 4
    with make_job(parallelism=2) as job:
        rows = job.read_state("numbers").to_pylist()
        assert sorted(n for row in rows for n in row["left"]) == sorted(
            {*range(100)} - {row.balance for row in numbers}
        )
        table = job.read_state("balance", state="balance")
        assert sorted(table["balance"].to_pylist()) == [2, 102]


def test_what_is_refused(spark: SparkSession, make_job: MakeJob) -> None:
    df = spark.sql("SELECT 'a' AS k, 1L AS t, 1L AS n")
    state = spark.sql("SELECT 'a' AS k, 100L AS balance")

    def run(match: str, kind: type[Exception], frame: Any = None, **given: Any) -> None:
        rows = given.pop("initial_rows", None)

        def pipeline(df: DataFrame, job: Job) -> DataFrame:
            keyed = job.key_by(df, "k", uid="balance", event_time="t", initial_rows=rows)
            return keyed.process(Balance(), SCHEMA, **given)

        with make_job(parallelism=2) as job, pytest.raises(kind, match=match):
            job.run_epoch(df, pipeline)
        assert job.latest_epoch() is None

    twice = state.union(state)
    run("a key stands in two rows", InvalidArgumentError, initial_state=twice)
    run("no column 'k'", InvalidArgumentError, initial_state=state.drop("k"))
    extra = state.selectExpr("*", "1 AS x")
    run("nothing declares the column 'x'", InvalidArgumentError, initial_state=extra)
    run("the key is", WrongTypeError, initial_state=state.selectExpr("1L AS k", "balance"))
    text = state.selectExpr("k", "'x' AS balance")
    run("'balance'", WrongTypeError, initial_state=text)
    kinds = state.selectExpr("k", "1.0D AS kinds")
    run("does not follow from its result", DeclarationError, initial_state=kinds)
    run("give one of them", InvalidArgumentError, initial_state=state, initial_rows=df)
    run("is a DataFrame of Spark", InvalidArgumentError, initial_state=lambda: 7)
    run("no column 'n'", InvalidArgumentError, initial_rows=df.drop("n"))
    run("cast it", WrongTypeError, initial_rows=df.withColumn("n", df.n.cast("int")))


class Numbers(ps.ProcessFunction):
    """Gives out the numbers that it began with; every instance knows all names."""

    left = ps.OperatorListState("long")
    names = ps.OperatorListState("string", redistribute="union")
    streams = ps.RawState()

    def open(self, ctx: ps.InstanceContext) -> None:
        """Keep the names once."""
        if ctx.redistributed and ctx.instance:
            self.names.clear()

    def process(self, row: Any, ctx: ps.InstanceContext) -> Any:
        """Give out a number."""
        numbers = self.left.get()
        self.left.update(numbers[1:])
        yield ctx.instance, ctx.redistributed, numbers[0] if numbers else None


def test_items_of_instances_begin_once(
    spark: SparkSession, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = spark.range(1000).selectExpr("CAST(id AS int) AS left", "NULL AS names")
    items = items.union(spark.sql("SELECT NULL, stack(2, 'ann', 'bob')"))
    given: list[Any] = [items]
    made: list[int] = []

    def frame() -> Any:
        made.append(1)
        return never() if given[0] is never else given[0]

    def pipeline(df: DataFrame, job: Job) -> DataFrame:
        numbers = job.operator(df, uid="numbers")
        return numbers.process(
            Numbers(), "instance int, first boolean, n long", initial_state=frame
        )

    def crash(*_: object) -> None:
        raise RuntimeError("the driver ends")

    rows = spark.range(8)
    with monkeypatch.context() as patch, make_job(parallelism=3) as job:
        patch.setattr("pystate.epochs.epoch.Epoch.complete", crash)
        with pytest.raises(RuntimeError, match="the driver ends"):
            job.run_epoch(rows, pipeline)
        assert job.latest_epoch() is None
    # Another number of instances begins with all of it; what was written before is removed.
    with make_job(parallelism=2) as job:
        got = values(job.run_epoch(rows, pipeline))
        assert made == [1, 1] and not orphans(job)
        assert len(got) == 8 and all(first for _, first, _ in got)
        given[0] = never
        kept = job.read_state("numbers").to_pylist()
        assert {(row["instance"], row["instances"]) for row in kept} == {(0, 2), (1, 2)}
        out = Counter(instance for instance, *_ in got)
        sizes = [len(row["left"]) + out[row["instance"]] for row in kept]
        assert sizes == [500, 500]
        assert sorted(name for row in kept for name in row["names"]) == ["ann", "bob"]
        assert not any(first for _, first, _ in values(job.run_epoch(rows, pipeline)))
    with make_job(parallelism=5) as job:
        job.run_epoch(rows.limit(0), pipeline)
        left = [n for row in job.read_state("numbers").to_pylist() for n in row["left"]]
        assert len(left) == len(set(left)) == 984
    assert made == [1, 1]

    given[:] = [items.withColumnRenamed("left", "streams")]
    other = make_job(checkpoint=Path(job.checkpoint) / "other")
    with pytest.raises(
        InvalidArgumentError, match="'numbers': initial_state: the column 'streams'"
    ):
        other.run_epoch(rows, pipeline)
    given[:] = [spark.sql("SELECT 'x' AS left")]
    with pytest.raises(WrongTypeError, match="'numbers': initial_state: state 'left'"):
        other.run_epoch(rows, pipeline)
    assert other.latest_epoch() is None
