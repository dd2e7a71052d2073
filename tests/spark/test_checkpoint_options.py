"""The options of checkpoints, from the outside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.errors import WrongTypeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]


class Noting(ps.KeyedProcessFunction):
    """Writes what it is told of checkpoints into a file."""

    n = ps.ValueState("long", default=0)

    def __init__(self, path: str) -> None:
        self.path = path

    def process(self, key: Any, row: Any, ctx: Any) -> Any:
        self.n.update(self.n.value() + 1)
        yield key, self.n.value()

    def on_checkpoint_complete(self, epoch: int) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(f"{epoch}\n")
        raise ValueError("which undoes nothing")


class Listener(ps.CheckpointListener):
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def on_checkpoint_complete(self, epoch: int) -> None:
        self.calls.append(epoch)

    def on_checkpoint_aborted(self, epoch: int) -> None:
        self.calls.append(("aborted", epoch))


def test_functions_and_listeners_learn_of_checkpoints(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    listener, notes = Listener(), tmp_path / "notes"
    job = make_job(listeners=[listener], parallelism=1)
    rows = spark.createDataFrame([(1,), (1,)], "k long")

    def pipeline(df: Any) -> Any:
        return job.key_by(df, "k", uid="n").process(Noting(str(notes)), schema="k long, n long")

    for _ in range(3):
        job.run_epoch(rows, pipeline)
    with pytest.raises(ps.errors.DeclarationError):
        job.run_epoch(rows, lambda df: pipeline(df).union(pipeline(df)))
    assert listener.calls == [1, 2, 3, ("aborted", 4)]
    assert notes.read_text().split() == ["1", "2"]
    assert job.read_state("n").to_pylist() == [{"k": 1, "n": 6}]
    with pytest.raises(WrongTypeError, match="listeners is a list of objects of classes"):
        make_job(listeners=[print])
