"""Jobs whose program changed: wider values and other fields, on any parallelism, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.errors import SchemaError, UnclaimedStateError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]
KEYS = 12


def program(
    struct: str, number: str, change: dict[str, Any], default: dict[str, Any] | None = None
) -> type[ps.KeyedProcessFunction]:
    """A function that shows what it finds, and then writes."""

    class Places(ps.KeyedProcessFunction):
        place = ps.ValueState(struct, default)
        seen = ps.ListState(struct)
        count = ps.MapState("string", number)

        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
            found = self.place.value(), list(self.seen.get()), dict(self.count.items())
            yield key, repr(found)
            if row.write:
                self.place.update(change)
                self.seen.add(change)
                self.count.put("n", (self.count.get("n") or 0) + 1)

    return Places


def run(
    spark: SparkSession, job: Job, function: type[ps.KeyedProcessFunction], writes: range
) -> dict[int, str]:
    frame = spark.range(KEYS).selectExpr(
        "id AS k", f"id >= {writes.start} AND id < {writes.stop} AS write"
    )

    def pipeline(df: DataFrame) -> DataFrame:
        return job.key_by(df, "k", uid="places").process(function(), "k long, found string")

    return {row["k"]: row["found"] for row in job.run_epoch(frame, pipeline).dataframe.collect()}


def test_a_program_changes(spark: SparkSession, make_job: MakeJob) -> None:
    """Over a chain whose files have five schemas, each in another parallelism."""
    first = {"a": 1, "b": "x"}
    old = program("struct<a:int,b:string>", "int", first)
    assert set(run(spark, make_job(parallelism=2), old, range(8)).values()) == {"(None, [], {})"}

    second = {"c": [1.5], "a": 2**40, "b": "y"}
    wide = program("struct<c:array<double>,a:long,b:string>", "long", second)
    found = run(spark, make_job(parallelism=3), wide, range(4, KEYS))
    was = {"c": None, "a": 1, "b": "x"}
    assert found == {
        k: repr((was, [was], {"n": 1}) if k < 8 else (None, [], {})) for k in range(KEYS)
    }

    with pytest.raises(SchemaError, match=r"operator 'places', state 'place': stored as .*a: int "):
        run(spark, make_job(), old, range(0))
    renamed = program("struct<c:array<double>,a:long,name:string>", "long", {})
    with pytest.raises(SchemaError, match=r"looks like a rename, 'b' to 'name'"):
        run(spark, make_job(), renamed, range(0))

    # Without the field b, and then with one of that name and another type: for no key, written or
    # not, is there anything left of the first.
    without = program("struct<a:long,c:array<double>>", "long", {"a": 3, "c": None})
    run(spark, make_job(parallelism=2), without, range(1))
    again = program("struct<a:long,b:int>", "long", {"a": 4, "b": 4})
    found = run(spark, make_job(parallelism=4), again, range(1, 2))
    assert {k: eval(text)[0] for k, text in found.items()} == {
        0: {"a": 3, "b": None},
        **{k: {"a": 1, "b": None} for k in range(1, 4)},
        **{k: {"a": 2**40, "b": None} for k in range(4, KEYS)},
    }
    job = make_job(parallelism=4)
    found = run(spark, job, again, range(0))
    assert eval(found[1])[0] == {"a": 4, "b": 4}
    assert eval(found[2])[0] == {"a": 1, "b": None}
    table = ps.read_state(job.checkpoint, uid="places")
    places = dict(zip(table["k"].to_pylist(), table["place"].to_pylist(), strict=True))
    assert places == {k: eval(text)[0] for k, text in found.items()}

    # A field with a default: of tables in memory, too, whose program declared none or another.
    for parallelism, word in ((4, "first"), (4, "other"), (3, "third")):
        more = program("struct<a:long,b:int,d:string>", "long", {"a": 5}, {"d": word})
        job = make_job(parallelism=parallelism)
        shown = {k: eval(text)[0] for k, text in run(spark, job, more, range(11, 12)).items()}
        assert shown[2] == {"a": 1, "b": None, "d": "first"}
        wanted = {"a": 2**40, "d": "first"} if word == "first" else {"a": 5, "d": None}
        assert shown[11] == {"b": None, **wanted}


def test_an_aggregate_does_not_become_another_one(spark: SparkSession, make_job: MakeJob) -> None:
    """Sum and maximum keep a long each, by the same name."""
    frame = spark.range(4).selectExpr("id % 2 AS k", "id AS v")

    def pipeline(job: Job, **aggregates: Any) -> Callable[[DataFrame], DataFrame]:
        return lambda df: job.key_by(df, "k", uid="totals").aggregate(**aggregates)

    job = make_job(parallelism=2)
    job.run_epoch(frame, pipeline(job, n=ps.sum("v")))
    job = make_job(parallelism=1)
    with pytest.raises(SchemaError, match=r"^operator 'totals', state 'n': stored as Sum\(\) of"):
        job.run_epoch(frame, pipeline(job, n=ps.max("v")))
    rows = job.run_epoch(frame, pipeline(job, n=ps.sum("v"))).dataframe.collect()
    assert {row["k"]: row["n"] for row in rows} == {0: 4, 1: 8}


def test_a_state_is_renamed(spark: SparkSession, make_job: MakeJob) -> None:
    """In tables in memory and in files, with others beside it, in another parallelism."""

    class Before(ps.KeyedProcessFunction):
        n = ps.ValueState("long", default=0)
        seen = ps.MapState("string", "long", ttl=ps.StateTtl(hours=1))

        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
            self.n.update(self.n.value() + 1)
            self.seen.put(f"x{self.n.value()}", key)
            yield key, f"{self.n.value()} {len(self.seen)}"

    class After(ps.KeyedProcessFunction):
        clicks = ps.ValueState("long", default=0, previously="n")
        places = ps.MapState("string", "long", ttl=ps.StateTtl(hours=1), previously="seen")

        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
            self.clicks.update(self.clicks.value() + 1)
            self.places.put(f"y{self.clicks.value()}", key)
            yield key, f"{self.clicks.value()} {len(self.places)}"

    job = make_job(parallelism=2)
    run(spark, job, Before, range(0))
    # The same tables in memory, then other ones from files of both names.
    assert set(run(spark, make_job(parallelism=2), After, range(0)).values()) == {"2 2"}
    assert set(run(spark, make_job(parallelism=3), After, range(0)).values()) == {"3 3"}
    table = ps.read_state(job.checkpoint, uid="places")
    assert table.column("clicks").to_pylist() == [3] * KEYS
    assert len(table.column("places")[0]) == 3
    with pytest.raises(UnclaimedStateError, match="a rename: clicks -> n, places -> seen"):
        run(spark, make_job(), Before, range(0))
