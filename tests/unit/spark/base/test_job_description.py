"""What Spark's UI is told of an epoch, and what its progress is told of state: without a Spark."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from pyspark.sql.streaming.listener import StreamingQueryProgress

from pystate.epochs.chronicle import TableSize
from pystate.epochs.coordinator import Coordinator
from pystate.epochs.epoch import Epoch
from pystate.epochs.range_report import RangeReport
from pystate.errors import InvalidArgumentError
from pystate.spark.base.job_description import JobDescription, plan_name
from pystate.spark.epochs.progress import EpochProgress
from pystate.spark.epochs.spark_progress import checked_observe, long_row, with_state
from tests.conftest import KEY, STATE, FakeWork

DESCRIPTION, GROUP = "spark.job.description", "spark.jobGroup.id"


class Properties:
    """A context's local properties; counts how often Spark is asked or told."""

    def __init__(self, **before: str) -> None:
        self.found: dict[str, str | None] = dict(before)
        self.trips = 0

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802
        self.trips += 1
        return self.found.get(name)

    def setLocalProperty(self, name: str, value: str | None) -> None:  # noqa: N802
        self.trips += 1
        self.found[name] = value

    @property
    def shown(self) -> tuple[str | None, str | None]:
        return self.found.get(DESCRIPTION), self.found.get(GROUP)


@pytest.mark.parametrize(
    ("before", "wanted", "trips"),
    [
        ((None, None), ("job: epoch 1, run 'a &lt;b&gt;'", "pystate job, epoch 1"), 7),
        (("mine", "group"), ("mine - job: epoch 1, run 'a &lt;b&gt;'", "group"), 5),
        (
            ("name\nbatch = 3", "the query's"),
            ("name\nbatch = 3\njob: epoch 1, run 'a &lt;b&gt;'", "the query's"),
            5,
        ),
    ],
)
def test_an_epoch_is_described_and_all_is_put_back(
    work: FakeWork, before: Any, wanted: Any, trips: int
) -> None:
    context: Any = Properties(**{DESCRIPTION: before[0], GROUP: before[1]})
    coordinator: Coordinator = work.coordinator()
    with coordinator, coordinator.open_epoch(run_key="a <b>") as epoch:
        assert isinstance(epoch, Epoch)
        with pytest.raises(KeyError), JobDescription(context, epoch) as description:
            assert context.shown == wanted
            description.operators(["one", "two"])
            assert context.shown == (f"{wanted[0]}: one, two", wanted[1])
            raise KeyError
    assert context.shown == before
    assert context.trips == trips


def test_names_in_plans_are_words() -> None:
    assert plan_name("aircraft") == "aircraft"
    assert plan_name("a b)#12 ü") == "a_b__12__"


def test_a_row_of_longs() -> None:
    row = long_row([None, -2, 3.7])
    assert row == struct.pack("<Qqqq", 1, 0, -2, 3)
    assert len(long_row([1] * 65)) == 8 * (2 + 65)


@pytest.mark.parametrize("name", [3, "", ["x"]])
def test_what_is_no_name_of_a_metric(name: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^observe is the name of a metric .*'pystate'"):
        checked_observe(name)


SPARKS = {
    "id": "4fd2bcd6-2c40-44a5-bc1e-4b4cd1ab4c5c",
    "runId": "4fd2bcd6-2c40-44a5-bc1e-4b4cd1ab4c5d",
    "name": None,
    "timestamp": "2026-01-01T00:00:00.000Z",
    "batchId": 7,
    "batchDuration": 12,
    "stateOperators": [],
    "sources": [],
    "sink": {"description": "ForeachBatchSink", "numOutputRows": -1},
}


def test_sparks_progress_counts_the_operators(work: FakeWork) -> None:
    coordinator: Coordinator = work.coordinator()
    with coordinator, coordinator.open_epoch() as epoch:
        assert isinstance(epoch, Epoch)
        epoch.declare("op", key_schema=KEY, state_schema=STATE)
        for index in range(2):
            metrics = {"rows_in": 3, "rows_changed": 2, "seal_ms": 1.5, "write_ms": index}
            report = RangeReport(
                "op", index, epoch.evaluation_id, "0" * 32, "0" * 32, None, metrics=metrics
            )
            epoch.report(report)
        sizes = {
            "op": {0: TableSize(5, 100), 1: TableSize(6, 200)},
            "other": {0: TableSize(9, 900)},
        }
        progress = EpochProgress.of(epoch, (), epoch.reports, sizes, 10.0)
    [operator] = progress.operators
    assert (operator.ranges, operator.rows_in, operator.keys) == (2, 6, 11)

    sparks = StreamingQueryProgress.fromJson(SPARKS)
    assert with_state(sparks, {}) is sparks
    found = with_state(sparks, {7: progress})
    [state] = found.stateOperators
    assert (state.operatorName, state.numRowsTotal, state.memoryUsedBytes) == ("op", 11, 300)
    assert (state.numRowsUpdated, state.commitTimeMs) == (4, 2)
    assert json.loads(found.json)["stateOperators"][0]["customMetrics"]["rowsIn"] == 6
    assert json.loads(sparks.json)["stateOperators"] == []
