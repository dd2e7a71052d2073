"""Metrics of a job on Spark: from the driver, and from its checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.samples import Sample

import pystate as ps
from pystate.maintenance.figures import BY_NAME, METRICS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pystate.spark import Job


class Broken(ps.CheckpointListener):
    def on_epoch_published(self, published: ps.PublishedEpoch) -> None:
        raise RuntimeError("it cannot count")


def of(collected: Any) -> dict[tuple[str, ...], float]:
    samples: list[Sample] = [sample for family in collected for sample in family.samples]
    found = {
        (each.name, *(each.labels[name] for name in BY_NAME[each.name].labels)): each.value
        for each in samples
    }
    assert len(found) == len(samples)
    return found


def test_the_driver_and_the_checkpoint_say_the_same(
    spark: SparkSession,
    make_job: Callable[..., Job],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = CollectorRegistry()
    job = make_job("shop", metrics=registry, listeners=[Broken()])

    def pipeline(df: Any) -> Any:
        keyed = job.key_by(df, "k", uid="n", event_time="at", allowed_delay="10 seconds")
        return keyed.aggregate(total=ps.count())

    caplog.set_level("INFO", "pystate.epoch")
    for hour in ("01:00:00", "02:00:00", "00:30:00"):
        data = [(number, f"2026-11-20 {hour}") for number in range(5)]
        frame = spark.createDataFrame(data, "k long, at string")
        job.run_epoch(frame.selectExpr("k", "cast(at as timestamp) at"), pipeline)
    failures = [str(r.exc_info[1]) for r in caplog.records if r.exc_info]
    assert failures == ["it cannot count"] * 3
    lines = [vars(r) for r in caplog.records if r.name == "pystate.epoch"]
    assert [(line["epoch"], line["rows_in"], line["late_rows"]) for line in lines] == [
        *[(1, 5, 0), (2, 5, 0)],
        (3, 5, 5),
    ]
    mine = of(registry.collect())
    with ps.CheckpointMetrics({"shop": tmp_path / "checkpoint"}) as metrics:
        read = of(metrics.collect())
    assert (
        read["pystate_checkpoint_readable", "shop"] == read["pystate_driver_running", "shop"] == 1
    )
    assert mine["pystate_epoch", "shop"] == mine["pystate_epochs_total", "shop"] == 3
    assert mine["pystate_rows_in_total", "shop"] == 15
    assert mine["pystate_rows_late_total", "shop"] == 5
    assert mine["pystate_operator_rows_in_total", "shop", "n"] == 15
    assert mine["pystate_operator_keys", "shop", "n"] == 5
    assert mine["pystate_watermark_timestamp_seconds", "shop"] > 0
    for part in ("total", "attach", "process", "seal", "write", "publish"):
        assert mine["pystate_epoch_time_seconds_total", "shop", part] > 0, part
    assert {name for name, *_ in mine} == {m.name for m in METRICS if m.only != "checkpoint"}
    assert {name for name, *_ in mine} - {name for name, *_ in read} == {
        "pystate_checkpoints_aborted_total"
    }
    changing = ("pystate_checkpoint_age_seconds", "pystate_collect_duration_seconds")
    for key in read.keys() & mine.keys():
        if key[0] not in changing:
            assert mine[key] == pytest.approx(read[key], abs=1e-5), key  # records have microseconds

    # A driver that begins anew goes on with the counters of the checkpoint.
    job = make_job("shop", metrics=CollectorRegistry())
    frame = spark.createDataFrame([(1, "2026-11-20 03:00:00")], "k long, at string")
    job.run_epoch(frame.selectExpr("k", "cast(at as timestamp) at"), pipeline)
    with ps.CheckpointMetrics({"shop": tmp_path / "checkpoint"}) as metrics:
        read = of(metrics.collect())
    assert read["pystate_rows_in_total", "shop"] == 16
    assert read["pystate_driver_starts_total", "shop"] == 2
