"""One range in one task, without Spark: markers, the seal, the report."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.epoch import RangeReport
from pystate.errors import EvaluationError, WrongKeyGroupError
from pystate.manifest import empty_range
from pystate.output import OutputColumns
from pystate.runtime import FunctionSpec
from pystate.spark.bodies import FunctionBody
from pystate.spark.worker import ArrowOperator, OperatorPlan
from pystate.storage import LocalStorage

PARALLELISM = 2


class Count(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        self.n.update(self.n.value() + 1)
        yield key, self.n.value()


class Reports:
    """The driver's end of the accumulator."""

    def __init__(self) -> None:
        self.reports: list[RangeReport] = []
        self.threads: list[str] = []

    def add(self, reports: list[RangeReport]) -> None:
        self.reports += reports
        self.threads += [thread.name for thread in threading.enumerate()]


@pytest.fixture
def reports() -> Reports:
    return Reports()


@pytest.fixture
def operator(tmp_path: Path, reports: Reports) -> ArrowOperator:
    plan = OperatorPlan(
        uid="counts",
        key_schema=(("k", "long"),),
        states={"n": ps.ValueState("long", default=0)},
        ranges=tuple(empty_range(i, 128, PARALLELISM) for i in range(PARALLELISM)),
        storage=LocalStorage(tmp_path),
        application=bytes(32),
        epoch=1,
        evaluation_id="e" * 32,
        query=7,
        max_parallelism=128,
        processing_time_ms=0,
        watermark_ms=None,
        event_time=False,
        side_folders={},
        shared_tables=False,
        allow_unclaimed_state=False,
        limit_bytes=0,
        lock_timeout_ms=100,
        reports=reports,  # type: ignore[arg-type]
    )
    columns = pa.schema([("k", pa.int64()), ("n", pa.int64())])
    output = OutputColumns(columns, "operator 'counts'")
    spec = FunctionSpec(Count(), key=("k",), columns=("k",), output=output)
    return ArrowOperator(plan, partial(FunctionBody, spec))


def keys_of(index: int, count: int) -> list[int]:
    """Keys that belong to a range."""
    hashes = ps.hash_keys([pa.array(range(1000), pa.int64())])
    owners = [ps.range_of(ps.key_group(int(h), 128), 128, PARALLELISM) for h in hashes]
    return [key for key, owner in enumerate(owners) if owner == index][:count]


def batch(keys: list[int | None], markers: list[int | None]) -> pa.RecordBatch:
    """Routed rows: each is a key or a marker."""
    columns = [pa.array(keys, pa.int64()), pa.array(markers, pa.int32())]
    return pa.record_batch(columns, names=["k", "__pystate_range"])


def rows(keys: list[int]) -> pa.RecordBatch:
    return batch([*keys], [None] * len(keys))


MARKER = partial(batch, [None])


def deltas(folder: Path) -> list[Path]:
    return list(folder.glob("state/**/*.delta"))


@pytest.mark.parametrize("marker_first", [True, False])
def test_a_range_reports_once_it_is_durable(
    operator: ArrowOperator, reports: Reports, tmp_path: Path, marker_first: bool
) -> None:
    keys = keys_of(1, 5)
    batches = [rows(keys), rows(keys[:2])]
    batches.insert(0 if marker_first else 2, MARKER([1]))
    out = [row for b in operator(iter(batches)) for row in b.to_pylist()]
    assert [row["n"] for row in out] == [1, 1, 1, 1, 1, 2, 2]
    [report] = reports.reports
    assert (report.uid, report.index, report.evaluation_id) == ("counts", 1, "e" * 32)
    assert report.parent == "0" * 32 and report.file is not None
    assert [str(p.relative_to(tmp_path)) for p in deltas(tmp_path)] == [report.file.path]
    assert (report.file.rows, report.file.epoch, report.id) == (5, 1, report.file.id)
    assert report.metrics["rows_in"] == 7 and report.metrics["keys"] == 5
    # The writer had ended by then.
    assert not [name for name in reports.threads if name.startswith("pystate-delta")]


def test_a_range_without_rows_reports_its_base(
    operator: ArrowOperator, reports: Reports, tmp_path: Path
) -> None:
    assert list(operator(iter([MARKER([0])]))) == []
    [report] = reports.reports
    assert (report.index, report.id, report.file) == (0, "0" * 32, None)
    assert not deltas(tmp_path)


@pytest.mark.parametrize(
    ("batches", "error", "text"),
    [
        (lambda: [rows(keys_of(0, 2))], EvaluationError, "range 0 .* has no marker row"),
        (list, EvaluationError, "has no marker row"),
        (lambda: [MARKER([0]), MARKER([0])], EvaluationError, "markers of ranges 0 and 0"),
        (lambda: [MARKER([0]), MARKER([1])], EvaluationError, "markers of ranges 0 and 1"),
        (
            lambda: [rows(keys_of(0, 2)), MARKER([1])],
            EvaluationError,
            "range 0 .*also holds rows or the marker of range 1",
        ),
        (
            lambda: [MARKER([0]), rows(keys_of(1, 2))],
            EvaluationError,
            "range 0 .*also holds rows or the marker of range 1",
        ),
        (
            lambda: [MARKER([0]), rows(keys_of(0, 2)), rows(keys_of(1, 1))],
            WrongKeyGroupError,
            "counts",
        ),
    ],
)
def test_a_wrong_placement_is_an_error(
    operator: ArrowOperator,
    reports: Reports,
    tmp_path: Path,
    batches: Any,
    error: type[Exception],
    text: str,
) -> None:
    with pytest.raises(error, match=text):
        list(operator(iter(batches())))
    assert not reports.reports and not deltas(tmp_path)


def test_a_reader_that_stops_early_seals_nothing(
    operator: ArrowOperator, reports: Reports, tmp_path: Path
) -> None:
    keys = keys_of(0, 3)
    running = operator(iter([MARKER([0]), rows(keys), rows(keys)]))
    next(running)  # type: ignore[call-overload]
    running.close()  # type: ignore[attr-defined]
    assert not reports.reports and not deltas(tmp_path)


def test_a_delta_that_cannot_be_written_fails_the_task(
    operator: ArrowOperator, reports: Reports, tmp_path: Path
) -> None:
    (tmp_path / "state").write_text("in the way of the folder")
    with pytest.raises((OSError, ps.PystateError)):
        list(operator(iter([MARKER([0]), rows(keys_of(0, 3))])))
    assert not reports.reports
