"""A job, its query and its results in a notebook, and its line of progress in a console."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

import pystate as ps

from .conftest import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]


def counting(df: DataFrame, job: Job) -> DataFrame:
    return job.key_by(df, "k", uid="<counts>").aggregate(n=ps.count())


def test_jobs_queries_and_results(
    spark: SparkSession, make_job: MakeJob, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setitem(sys.modules, "rich.live", None)
    job = make_job("<job>")
    source.add("a,1", "b,2")
    once = {"availableNow": True}
    query = job.start(source.stream(), counting, query_name="<query>", trigger=once, progress=True)
    query.awaitTermination()
    shown = query._repr_html_()  # type: ignore[operator]
    assert "job &#x27;&lt;job&gt;" in shown and "<td>&lt;query&gt;</td>" in shown
    assert "<td>&lt;counts&gt;</td><td>2</td>" in shown
    assert "state</th><td>ended" in shown
    assert "<job>: epoch 1 (batch 0): 2 rows in, 2 out" in stream.getvalue()
    assert stream.getvalue().endswith("\n")

    frame = spark.createDataFrame([("a", 1)], "k string, v long")
    stream.truncate(0)
    result = job.run_epoch(frame, counting, run_key="<may>", progress=True)
    assert "<job>: epoch 2 (run '<may>'): 1 rows in, 1 out" in stream.getvalue()
    assert stream.getvalue().endswith("\n")
    shown = result._repr_html_()
    assert (
        "run key</th><td>&lt;may&gt;</td>" in shown and "struct&lt;k:string,n:bigint&gt;" in shown
    )
    shown = job._repr_html_()
    assert "Job &lt;job&gt;" in shown and "newest epoch</th><td>2</td>" in shown
    assert "<counts>" not in shown

    # Nobody asked, or nobody would see it.
    stream.truncate(0)
    job.run_epoch(frame, counting)
    monkeypatch.setattr(sys, "stderr", plain := io.StringIO())
    job.run_epoch(frame, counting, progress=True)
    assert (stream.getvalue().strip("\0"), plain.getvalue()) == ("", "")
    job.run_epoch(frame, counting, progress="always")
    assert plain.getvalue().startswith("<job>: epoch 5 (a run): 1 rows in")
    # Where an epoch fails the line ends with it.
    monkeypatch.setattr(sys, "stderr", stream)
    with pytest.raises(ValueError, match="no rows"):
        job.run_epoch(frame, fail, progress=True)
    assert "epoch 6" in stream.getvalue() and stream.getvalue().endswith("\n")


def fail(df: DataFrame, job: Job) -> DataFrame:
    df.count()
    raise ValueError("no rows")
