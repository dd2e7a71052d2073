"""Jobs whose program changed: wider values and other fields, on any parallelism, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.errors import SchemaError

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
