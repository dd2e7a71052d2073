"""Checkpoints that are moved, and output that is taken away."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.spark import ParquetSink

from .conftest import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]


class Count(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        self.n.update(self.n.value() + 1)
        yield key, self.n.value()


def test_moved_checkpoint_goes_on_without_its_old_output(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    frame = spark.createDataFrame([(1,), (2,)], "k long")

    def run(folder: Path, sink: ParquetSink | None = None) -> list[tuple[Any, ...]]:
        with make_job(checkpoint=folder) as job:
            result = job.run_epoch(
                frame,
                lambda df: job.key_by(df, "k", uid="op").process(Count(), "k long, n long"),
                sink=sink,
            )
            return rows_of(result.dataframe)

    here, there = tmp_path / "here", tmp_path / "there"
    assert run(here) == [(1, 1), (2, 1)]
    # As if the driver had died before it published the output.
    (here / "manifests" / "committed").unlink()
    manifest = (here / "manifests" / "00000001.manifest").read_bytes()
    [transaction] = json.loads(manifest.splitlines()[0])["sinks"]
    staging = here / "results" / transaction["staging"]
    staging.parent.mkdir(parents=True)
    (here / "results" / "epoch=1").rename(staging)
    here.rename(there)
    assert run(there) == [(1, 2), (2, 2)]
    assert not here.exists() and (there / "results" / "epoch=1").is_dir()
    shutil.rmtree(there / "results" / "epoch=2")
    assert run(there, ParquetSink(tmp_path / "elsewhere")) == [(1, 3), (2, 3)]
    assert ParquetSink(tmp_path / "elsewhere").epochs() == [3]


@pytest.mark.parametrize("path", ["checkpoint", "elsewhere"])
def test_manifest_names_a_folder_outside_in_full(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, path: str
) -> None:
    job = make_job()
    frame = spark.createDataFrame([(1,)], "k long")
    sink = ParquetSink(tmp_path / path / "out")
    result = job.run_epoch(frame, lambda df: df, sink=sink)
    assert result.manifest is not None
    [transaction] = result.manifest.sinks
    assert transaction["path"] == ("out" if path == "checkpoint" else sink.path)
