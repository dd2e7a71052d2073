"""A job that another program takes over, from a copy of a savepoint, as a stream goes on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.errors import UnclaimedStateError

from .conftest import Source, close_for_good, rows_of, wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]

START_MS = 1_700_000_000_000
SCHEMA = "operator string, k string, found string"
QUIET_MS = 3_000


def totals_of(struct: str, **more: str) -> type[ps.KeyedProcessFunction]:
    """Sums in one struct, which the later program widens and gives one field more."""

    class Totals(ps.KeyedProcessFunction):
        total = ps.ValueState(struct, default={"n": 0, "sum": 0, **more})

        def process(self, key: str, row: ps.functions.InputRow, ctx: ps.RuntimeContext) -> Any:
            before = self.total.value()
            now = {"n": before["n"] + 1, "sum": before["sum"] + row.v}
            self.total.update({**now, **dict.fromkeys(more, f"v{row.v}")})
            ctx.register_event_time_timer(START_MS + 1000 * row.v + QUIET_MS)
            yield "totals", key, f"{now}"

        def on_timer(self, key: str, timestamp: int, ctx: ps.RuntimeContext) -> Any:
            total = self.total.value()
            yield "totals", key, f"{total['n']} at {timestamp - START_MS}"

    return Totals


class Seen(ps.KeyedProcessFunction):
    """Keeps all that a key has had, in a list and in a map."""

    values = ps.ListState("long")
    times = ps.MapState("string", "struct<n:int>")

    def process(self, key: str, row: ps.functions.InputRow, ctx: ps.RuntimeContext) -> Any:
        """Add the row."""
        name = f"{row.v % 3}"
        self.values.add(row.v)
        self.times.put(name, {"n": (self.times.get(name) or {"n": 0})["n"] + 1})
        yield "seen", key, f"{list(self.values.get())} {sorted(self.times.items())}"


def with_time(df: DataFrame) -> DataFrame:
    return df.selectExpr("k", "v", "timestamp_seconds(1700000000 + v) AS at")


def before(df: DataFrame, job: Job) -> DataFrame:
    rows = with_time(df)
    totals = job.key_by(rows, "k", uid="totals", event_time="at", allowed_delay="0 seconds")
    made = totals.process(totals_of("struct<n:int,sum:int>")(), schema=SCHEMA)
    gone = job.key_by(df, "k", uid="gone").aggregate(n=ps.count())
    seen = job.key_by(df, "k", uid="seen").process(Seen(), schema=SCHEMA)
    return made.union(seen).union(gone.selectExpr("'gone'", "k", "string(n)"))


def after(df: DataFrame, job: Job) -> DataFrame:
    rows = with_time(df)
    seen = job.key_by(df, "k", uid="seen").process(Seen(), schema=SCHEMA)
    sums = job.key_by(rows, "k", uid="sums", event_time="at", allowed_delay="0 seconds")
    later = totals_of("struct<last:string,sum:long,n:int>", last="before")
    return seen.union(sums.process(later(), schema=SCHEMA))


def published(job: Job, spark: Any, since: int) -> list[tuple[Any, ...]]:
    frame = spark.read.parquet(f"{job.checkpoint}/results").where(f"epoch > {since}")
    return rows_of(frame.selectExpr("epoch", "operator", "k", "found"))


def totals(job: Job) -> dict[str, dict[str, Any]]:
    return {row["k"]: row["total"] for row in job.read_state("sums").to_pylist()}


def test_another_program_takes_over_from_a_copied_savepoint(
    source: Source, make_job: MakeJob, tmp_path: Path, spark: Any
) -> None:
    """Other parallelism, a struct widened and with a field more, one operator dropped, one renamed.

    What it publishes, timers that were set before it included, is what the new program publishes
    that has run from the beginning.
    """
    old = make_job("old", parallelism=2)
    for number in range(2):
        source.add(*(f"key {key},{number}" for key in range(20)), f"once {number},{number}")
    query = old.start(source.stream(), before, trigger={"processingTime": "0 seconds"})
    wait_for(lambda: old.latest_epoch() == 2, "two epochs")
    taken = old.savepoint(tmp_path / "taken")
    source.add(*(f"key {key},{2**31 - 4}" for key in range(0, 20, 2)), "new,4")
    wait_for(lambda: old.latest_epoch() == 3, "the epoch after the savepoint")
    query.stop()
    assert taken.epoch == 2
    close_for_good(old)
    moved = tmp_path / "elsewhere" / "moved"
    shutil.copytree(tmp_path / "taken", moved)
    shutil.rmtree(tmp_path / "taken")
    shutil.rmtree(old.checkpoint)
    source.add(*(f"key {key},6" for key in range(0, 20, 4)))

    def restored(**options: Any) -> Job:
        return make_job(
            "new",
            checkpoint=tmp_path / "new",
            restore=moved,
            parallelism=3,
            uid_map={"totals": "sums"},
            **options,
        )

    refused = restored()
    started = refused.start(source.stream(), after, trigger={"availableNow": True})
    wait_for(lambda: not started.isActive, "the refusal")
    assert isinstance(refused.failure, UnclaimedStateError)
    assert "'gone'" in str(refused.failure)
    refused.close()

    job = restored(allow_unclaimed_state=True)
    undisturbed = make_job("undisturbed", checkpoint=tmp_path / "undisturbed")
    for each in (job, undisturbed):
        each.start(source.stream(), after, trigger={"availableNow": True}).awaitTermination()
        assert each.latest_epoch() == 4 and each.failure is None
    rows = published(job, spark, since=0)
    assert {row[0] for row in rows} == {3, 4}  # it has nothing of the epochs before
    assert rows == published(undisturbed, spark, since=2)
    fired = [row[3] for row in rows if " at " in row[3]]
    assert len(fired) > 20 and "2 at 4000" in fired  # set by the old program

    def by_key(of: Job, uid: str) -> list[dict[str, Any]]:
        return of.read_state(uid).sort_by("k").to_pylist()

    assert by_key(job, "seen") == by_key(undisturbed, "seen")
    found, wanted = totals(job), totals(undisturbed)
    touched = {"new", *(f"key {key}" for key in range(0, 20, 2))}
    assert found == {k: v if k in touched else {**v, "last": "before"} for k, v in wanted.items()}
    assert found["key 0"]["sum"] > 2**31 - 1
    # What was dropped is carried along, as it was.
    assert {row["k"]: row["n"] for row in by_key(job, "gone")} == {
        **{f"key {key}": 2 for key in range(20)},
        **{f"once {number}": 1 for number in range(2)},
    }
    with pytest.raises(ps.errors.PystateError, match="no operator"):
        job.read_state("totals")
