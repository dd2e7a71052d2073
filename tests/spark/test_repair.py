"""A stream whose checkpoint is damaged and repaired ends as if it had not been."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

import pystate as ps
from pystate.cli.app import app
from pystate.errors import CheckpointError, PystateError

from .conftest import Source, close_for_good, rows_of, state_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]


def pystate(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, arguments)
    return done.exit_code, done.output


class Sums(ps.KeyedProcessFunction):
    """Adds up, and says each sum."""

    n = ps.ValueState("long", default=0)

    def process(self, key: str, row: ps.functions.InputRow, ctx: ps.RuntimeContext) -> Any:
        """Add the row."""
        self.n.update(self.n.value() + row.v)
        yield key, self.n.value()


def sums(job: Job) -> Callable[[DataFrame], DataFrame]:
    """Sums of sums, in an order that does not depend on the borders of batches."""

    def pipeline(df: DataFrame) -> DataFrame:
        rows = job.key_by(df, "k", uid="sums", order_by="v")
        first = rows.process(Sums(), schema="k string, v long")
        again = job.key_by(first, "k", uid="sums of sums", order_by="v")
        return again.process(Sums(), schema="k string, n long")

    return pipeline


def results(job: Job, spark: Any) -> list[tuple[Any, ...]]:
    return rows_of(spark.read.parquet(f"{job.checkpoint}/results").select("k", "n"))


def test_a_stream_goes_on_after_a_repair(
    source: Source, make_job: MakeJob, tmp_path: Path, spark: Any
) -> None:
    def run(job: Job) -> None:
        started = job.start(source.stream(), sums(job), trigger={"availableNow": True})
        started.awaitTermination()

    rows = [[(k, number) for k in ("a", "b", f"key {number}")] for number in range(5)]
    for each in rows:
        source.add(*(f"{k},{v}" for k, v in each))
    job = make_job(checkpoint=tmp_path / "damaged")
    run(job)
    close_for_good(job)
    root = str(tmp_path / "damaged")
    code, said = pystate("verify", root)
    assert code == 0 and "Nothing is wrong: 3 epochs" in said, said

    wanted = sorted((tmp_path / "damaged/state/sums").rglob("00000004-*.delta"))[0]
    data = bytearray(wanted.read_bytes())
    data[len(data) // 2] ^= 1
    wanted.write_bytes(data)
    source.add("a,7", "c,8")
    rows.append([("a", 7), ("c", 8)])
    again = make_job(checkpoint=root)
    with pytest.raises(Exception, match=r"(?s)corrupt"):
        run(again)
    with pytest.raises(PystateError):
        raise again.failure or CheckpointError("no failure")
    again.close()
    code, said = pystate("repair", root, "--yes")
    assert code == 0, said
    told = " ".join(said.split())
    assert "The state goes back from epoch 5 to 3. Lost:" in told
    assert "computes again: batch 3, 4" in told
    assert f"Output of epoch 5 in {root}/results/epoch=5 is set aside" in told
    assert pystate("verify", root)[0] == 0

    repaired = make_job(checkpoint=root)
    run(repaired)
    # Spark may compute in one batch what it has planned in several before.
    assert 4 <= (repaired.latest_epoch() or 0) <= 6
    first: Counter[str] = Counter()
    second: Counter[str] = Counter()
    wanted_rows = []
    for k, v in (row for each in rows for row in each):
        first[k] += v
        second[k] += first[k]
        wanted_rows.append((k, second[k]))
    assert state_of(repaired, "sums") == first
    assert state_of(repaired, "sums of sums") == second
    assert results(repaired, spark) == sorted(wanted_rows, key=repr)
    repaired.close()
    code, said = pystate("verify", root)
    assert code == 0, said
