"""An epoch in which nothing goes on any more is computed again, and then fails with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pystate as ps
from pystate.errors import EvaluationError, InvalidArgumentError

from .conftest import rows_of, set_lock_timeout, state_of
from .gate import Gate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark import EpochResult, Job

MakeJob = Callable[..., "Job"]


class Hanging(ps.KeyedProcessFunction):
    """Counts; it may be held up at one key."""

    n = ps.ValueState("long", default=0)

    def __init__(self, gate: Gate, evaluation: int) -> None:
        self.gate = gate
        self.evaluation = evaluation

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Iterator[tuple[Any, ...]]:
        self.n.update(self.n.value() + 1)
        if key == 7:
            self.gate.pass_through(str(self.evaluation))
        yield key, self.n.value()


class Epoch:
    """Runs an epoch; an hour passes at each look at the clock while a function hangs."""

    def __init__(self, gate: Gate, job: Job) -> None:
        self.calls = 0
        self._gate = gate
        self._job = job
        self._hours = 0

    def monotonic(self) -> float:
        self._hours += self._gate.is_reached(str(self.calls))
        return self._hours * 3600.0

    def pipeline(self, df: DataFrame) -> DataFrame:
        self.calls += 1
        keyed = self._job.key_by(df, "k", uid="hanging")
        return keyed.process(Hanging(self._gate, self.calls), "k long, n long")


@pytest.fixture
def run(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[int], tuple[Job, EpochResult]]]:
    """Run an epoch whose function hangs in so many evaluations."""
    job = make_job(epoch_timeout="2 hours")
    set_lock_timeout(job, 300)
    with Gate(tmp_path / "gate") as gate:

        def run_epoch(hanging: int) -> tuple[Job, EpochResult]:
            epoch = Epoch(gate, job)
            gate.close(*(str(number) for number in range(1, hanging + 1)))
            monkeypatch.setattr("pystate.spark.evaluation.watch.time", epoch)
            monkeypatch.setattr("pystate.spark.evaluation.watch._MOST_S", 0.2)
            return job, job.run_epoch(spark.range(10).selectExpr("id AS k"), epoch.pipeline)

        yield run_epoch


def test_an_epoch_that_hangs_once_is_computed_again(
    run: Callable[[int], tuple[Job, EpochResult]],
) -> None:
    job, result = run(1)
    assert rows_of(result.dataframe) == [(key, 1) for key in range(10)]
    assert job.last_progress is not None and job.last_progress.evaluations == 2
    assert state_of(job, "hanging") == dict.fromkeys(range(10), 1)


def test_an_epoch_that_hangs_again_fails_and_says_where(
    run: Callable[[int], tuple[Job, EpochResult]], tmp_path: Path
) -> None:
    with pytest.raises(EvaluationError) as raised:
        run(9)
    text = str(raised.value)
    for part in ("no progress in 7200 s", "operator 'hanging', range", "process ", "epoch_timeout"):
        assert part in text
    assert "This happened in 2 evaluations" in text and "tasks done" in text
    assert not (tmp_path / "checkpoint" / "manifests").exists()
    assert list((tmp_path / "checkpoint/results/_staging").iterdir()) == []


def test_a_timeout_is_a_length_of_time(make_job: MakeJob) -> None:
    make_job(epoch_timeout=None)
    for wrong in (0, "soon"):
        with pytest.raises(InvalidArgumentError, match="epoch_timeout"):
            make_job(epoch_timeout=wrong)
