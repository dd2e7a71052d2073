"""A stream whose checkpoint is damaged and repaired ends with the results of an undisturbed one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.errors import CheckpointError, PystateError

from .conftest import Source, close_for_good, rows_of, state_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]


def pystate(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "pystate", *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


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

    for number in range(5):
        source.add(f"a,{number}", f"b,{number}", f"key {number},{number}")
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
    whole = make_job(checkpoint=tmp_path / "whole")
    run(whole)
    # Spark may compute in one batch what it has planned in several before.
    assert whole.latest_epoch() == 6 and 4 <= (repaired.latest_epoch() or 0) <= 6
    for uid in ("sums", "sums of sums"):
        assert state_of(repaired, uid) == state_of(whole, uid)
    assert results(repaired, spark) == results(whole, spark)
    repaired.close()
    code, said = pystate("verify", root)
    assert code == 0, said
