"""The queries over the events of an auction house, as streams of several epochs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("duckdb", reason="needs the package duckdb: pip install duckdb")

from bench.nexmark.generate import Plan
from bench.nexmark.pystate_jobs import JOBS
from bench.nexmark.reference import QUERIES, Parameters
from bench.nexmark.run import Input, in_pystate, write_input

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

#: A minute and a half of event time, so that windows, sessions and auctions end.
PLAN = Plan(9_000, events_per_second=100)


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Input:
    return write_input(PLAN, tmp_path_factory.mktemp("nexmark"), PLAN.events // 2)


@pytest.fixture
def settings(spark: SparkSession, one_task: None) -> Iterator[None]:
    """Those of a query are taken back."""
    yield
    for name in ("numRecentProgressUpdates", "minBatchesToRetain"):
        spark.conf.unset(f"spark.sql.streaming.{name}")


#: A join, windows that slide, windows by the clock, the last rows and the best ones.
QUICK = ("q3", "q5", "q12", "q18", "q19")


def test_every_query_is_there() -> None:
    assert sorted(JOBS) == sorted(QUERIES)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in QUERIES]
)
def test_equals_the_reference(
    spark: SparkSession, settings: None, events: Input, tmp_path: Path, name: str
) -> None:
    found = in_pystate(spark, name, events, tmp_path / "run", Parameters())
    assert found.result.num_rows > 0
    assert found.right
