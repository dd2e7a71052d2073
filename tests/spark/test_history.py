"""The history of a job on Spark: what its epochs have reported, whoever has computed them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pystate as ps
from pystate.spark import EpochProgress

from .conftest import Source
from .test_epochs import counting, letters

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pystate.spark import Job

MakeJob = Callable[..., "Job"]


def test_the_history_has_what_epochs_have_reported(spark: SparkSession, make_job: MakeJob) -> None:
    told: list[EpochProgress] = []
    job = make_job(retained=1)
    job.run_epoch(letters(spark, "aab"), counting(job), run_key="m", on_epoch=told.append)
    job.run_epoch(letters(spark, "cd"), counting(job), on_epoch=told.append)
    job.rescale(3)
    job.run_epoch(letters(spark, "a"), counting(job), on_epoch=told.append)
    job.close()
    job = make_job(retained=1)
    job.run_epoch(letters(spark, "e"), counting(job), on_epoch=told.append)
    found = ps.history(job.checkpoint)
    assert [r.epoch for r in found.records] == [1, 2, 3, 4] and not found.missing
    for record, progress in zip(found.records, told, strict=True):
        assert record.run_key == progress.run_key
        assert record.evaluations == progress.evaluations
        assert record.processing_time_ms == progress.processing_time_ms
        assert 0 < record.total_ms <= progress.total_ms
        [operator], [reported] = record.operators, progress.operators
        assert operator.fingerprint and operator.since is not None
        for name, value in vars(reported).items():
            if name in ("fingerprint", "since"):
                continue  # what tells the state of the epoch is for those who repair a checkpoint
            close = getattr(operator, name)
            assert close == (round(value, 3) if isinstance(value, float) else value), name
    assert [r.term for r in found.records] == [1, 1, 1, 2]
    assert found.records[0].total("keys") == 2 and found.records[0].operators[0].process_ms > 0


def test_a_stream_with_an_interval(make_job: MakeJob, source: Source) -> None:
    told: list[EpochProgress] = []
    job = make_job(checkpoints=ps.CheckpointOptions(interval=3))
    for number in range(5):
        source.add(f"a,{number}")
    query = job.start(
        source.stream(), counting(job), on_epoch=told.append, trigger={"availableNow": True}
    )
    query.awaitTermination()
    job.close()
    records = ps.history(job.checkpoint).records
    assert len(told) == 5 and sum(r.batches for r in records) == 5
    assert [r.batches for r in records][:2] == [1, 3]
    assert sum(r.total("rows_in") for r in records) == sum(p.rows_in for p in told) == 5
    assert all(r.total("checkpoint_bytes") > 0 for r in records)
    assert [r.epoch for r in records] == list(range(1, len(records) + 1))
