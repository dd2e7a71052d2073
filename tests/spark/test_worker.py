"""One range in one task, without Spark: markers, the seal, the report."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pystate as ps
from pystate.checkpoint.begin_marks import BeginMarks, RefusedError
from pystate.checkpoint.refs import empty_range
from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.range_report import InputSeen, RangeReport
from pystate.epochs.watermarks import OperatorTime
from pystate.errors import EvaluationError, WrongKeyGroupError
from pystate.operators.runtime.function_operator import FunctionOperator
from pystate.operators.runtime.function_spec import FunctionSpec
from pystate.operators.runtime.output import OutputColumns
from pystate.spark.tasks.range_task import OperatorPlan, RangeTask
from pystate.spark.tasks.worker import ArrowOperator
from pystate.state.operator_spec import OperatorSpec
from pystate.tables.backend import KeyedStateBackend
from pystate.tables.options import TableOptions
from pystate.types.keys import parse_key

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
def marks(tmp_path: Path) -> BeginMarks:
    marks = BeginMarks(LocalStorage(tmp_path), 1, "e" * 32)
    marks.open()
    return marks


@pytest.fixture
def plan(tmp_path: Path, reports: Reports, marks: BeginMarks) -> OperatorPlan:
    return OperatorPlan(
        operator=OperatorSpec("counts", parse_key("long"), {"n": ps.ValueState("long", default=0)}),
        options=TableOptions(home="heap", lock_timeout_ms=100),
        key_schema=(("k", "long"),),
        ranges=tuple(empty_range(i, 128, PARALLELISM) for i in range(PARALLELISM)),
        storage=LocalStorage(tmp_path),
        application=bytes(32),
        epoch=1,
        evaluation_id="e" * 32,
        query=7,
        processing_time_ms=0,
        time=None,
        event_time=False,
        drain=False,
        side_folders={},
        term=1,
        reports=reports,  # type: ignore[arg-type]
        marks=marks,
    )


@pytest.fixture
def operator(plan: OperatorPlan) -> ArrowOperator:
    return ArrowOperator(plan, partial(FunctionOperator, spec_of(Count())), ["k"])


def spec_of(function: ps.KeyedProcessFunction, **options: Any) -> FunctionSpec:
    columns = pa.schema([("k", pa.int64()), ("n", pa.int64())])
    output = OutputColumns(columns, "operator 'counts'")
    return FunctionSpec(function, key=("k",), columns=("k",), output=output, **options)


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


class Sides(Count):
    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        yield from super().process(key, row, ctx)
        if key == self.stop:
            raise ValueError("stop")
        ctx.output("keys", (key, ctx.timestamp))

    stop = -1


def with_sides(plan: OperatorPlan, folder: Path, function: Sides, watermark: int) -> ArrowOperator:
    """An operator whose event time is its key."""
    plan = dataclasses.replace(
        plan,
        side_folders={"keys": str(folder), "late": str(folder)},
        event_time=True,
        # What is late does not follow from what fires.
        time=OperatorTime(watermark, watermark + 1),
    )
    columns = pa.schema([("k", pa.int64()), ("t", pa.int64())])
    spec = spec_of(
        function,
        event_time="k",
        side_outputs={"keys": OutputColumns(columns, "side output 'keys'")},
        late="late",
    )
    return ArrowOperator(plan, partial(FunctionOperator, spec), ["k"])


def test_a_range_reports_its_event_times_and_side_files(
    plan: OperatorPlan, reports: Reports, tmp_path: Path
) -> None:
    folder = tmp_path / "side"
    keys = keys_of(1, 9)
    operator = with_sides(plan, folder, Sides(), watermark=keys[4])
    out = list(operator(iter([rows(keys), MARKER([1]), rows(keys[6:])])))
    assert sum(b.num_rows for b in out) == 8
    [report] = reports.reports
    assert report.inputs == (InputSeen("input", 12, keys[8]),)
    assert report.metrics["late_rows"] == 4
    files = {file.tag: file for file in report.side_files}
    assert {tag: file.rows for tag, file in files.items()} == {"keys": 8, "late": 4}
    assert pq.read_table(folder / files["late"].name)["k"].to_pylist() == keys[:4]
    found = pq.read_table(folder / files["keys"].name)
    assert found["k"].to_pylist() == found["t"].to_pylist() == keys[4:] + keys[6:]
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("how", ["the function fails", "the delta fails", "the reader stops"])
def test_a_task_that_does_not_report_leaves_no_side_files(
    plan: OperatorPlan, reports: Reports, tmp_path: Path, how: str
) -> None:
    folder = tmp_path / "side"
    keys = keys_of(1, 9)
    function = Sides()
    if how == "the delta fails":
        (tmp_path / "state").write_text("in the way of the folder")
    if how == "the function fails":
        function.stop = keys[8]
    running = with_sides(plan, folder, function, watermark=keys[4])(
        iter([MARKER([1]), rows(keys[:8]), rows(keys[8:])])
    )
    if how == "the reader stops":
        next(running)  # type: ignore[call-overload]
        assert len(list(folder.iterdir())) == 1
        running.close()  # type: ignore[attr-defined]
    else:
        with pytest.raises((OSError, ps.PystateError, ValueError)):
            list(running)
    assert not list(folder.iterdir()) and not reports.reports


class Timed(Count):
    def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> Any:
        raise AssertionError("no timer is in the table")


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> dict[str, int | None]:
    """The next timers of any table; asking which are due is noted in ``asked``."""
    times: dict[str, int | None] = {"event": None, "processing": None, "asked": 0}

    def due_timers(self: Any, domain: str, until: int, most: int) -> None:
        times["asked"] = (times["asked"] or 0) + 1

    monkeypatch.setattr(
        KeyedStateBackend, "next_timer", lambda self, domain: times[domain], raising=False
    )
    monkeypatch.setattr(KeyedStateBackend, "due_timers", due_timers, raising=False)
    return times


@pytest.mark.parametrize(
    ("event", "processing", "handles", "attached"),
    [
        (None, None, True, False),
        (101, 201, True, False),
        (100, None, True, True),
        (None, 200, True, True),
        (-5, 300, True, True),
        (1, 1, False, False),
    ],
)
def test_a_range_without_rows_runs_for_its_timers(
    plan: OperatorPlan,
    reports: Reports,
    timers: dict[str, int | None],
    event: int | None,
    processing: int | None,
    handles: bool,
    attached: bool,
) -> None:
    empty = dataclasses.replace(
        plan.ranges[1], next_event_timer_ms=event, next_processing_timer_ms=processing
    )
    plan = dataclasses.replace(
        plan,
        ranges=(plan.ranges[0], empty),
        operator=dataclasses.replace(plan.operator, timers=handles),
        time=OperatorTime(50, 100),
        processing_time_ms=200,
    )
    timers["event"] = 777
    function = Timed() if handles else Count()
    operator = ArrowOperator(plan, partial(FunctionOperator, spec_of(function)), ["k"])
    assert list(operator(iter([MARKER([1])]))) == []
    [report] = reports.reports
    assert ("attached" in report.metrics) == attached == bool(timers["asked"])
    found = report.next_event_timer_ms, report.next_processing_timer_ms
    # What a table was not asked for, or an operator does not handle, stays as it was.
    assert found == ((777, None) if attached else (event, processing))
    assert (report.id, report.file) == (report.parent, None)


@pytest.mark.parametrize("drain", [False, True])
def test_without_a_watermark_no_event_timer_is_due_unless_event_time_ends(
    plan: OperatorPlan, reports: Reports, timers: dict[str, int | None], drain: bool
) -> None:
    ranges = tuple(dataclasses.replace(r, next_event_timer_ms=-(1 << 63)) for r in plan.ranges)
    operator = dataclasses.replace(plan.operator, timers=True)
    plan = dataclasses.replace(
        plan, operator=operator, ranges=ranges, time=OperatorTime(), drain=drain
    )
    operator = ArrowOperator(plan, partial(FunctionOperator, spec_of(Timed())), ["k"])
    assert list(operator(iter([MARKER([0])]))) == []
    assert ("attached" in reports.reports[0].metrics) == drain


class Fading(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0, ttl=ps.StateTtl(seconds=10))

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        self.n.update(1)


def test_values_expire_in_a_range_without_rows(plan: OperatorPlan, reports: Reports) -> None:
    operator = dataclasses.replace(plan.operator, states={"n": Fading.n})
    plan = dataclasses.replace(plan, operator=operator)
    keys = keys_of(1, 20)
    found = []
    for epoch, now, batches in (
        (1, 0, [MARKER([1])]),  # nothing to expire in an empty range
        (2, 1_000, [rows(keys), MARKER([1])]),
        (3, 9_000, [rows(keys[:5]), MARKER([1])]),
        (4, 10_999, [MARKER([1])]),
        (5, 11_000, [MARKER([1])]),
        (6, 19_000, [MARKER([1])]),
    ):
        plan = dataclasses.replace(plan, epoch=epoch, processing_time_ms=now)
        plan.marks.close()
        plan.marks.open()
        operator = ArrowOperator(plan, partial(FunctionOperator, spec_of(Fading())), ["k"])
        assert list(operator(iter(batches))) == []
        report = reports.reports[-1]
        file = report.file
        found.append((report.metrics.get("keys"), file.tombstones if file else None))
        state = plan.ranges[1]
        deltas = (*state.deltas, file) if file else state.deltas
        state = dataclasses.replace(state, id=report.id, deltas=deltas)
        plan = dataclasses.replace(plan, ranges=(plan.ranges[0], state))
    assert found == [(None, None), (20, 0), (20, 0), (20, None), (5, 15), (0, 5)]


@pytest.mark.parametrize("read", [1, 100])
def test_a_range_is_begun_once_however_far_it_is_read(
    operator: ArrowOperator, reports: Reports, plan: OperatorPlan, tmp_path: Path, read: int
) -> None:
    first = operator(iter([rows(keys_of(1, 5)), MARKER([1])]))
    out = list(itertools.islice(first, read))
    assert out and list(plan.marks.begun()) == [("counts", 1)]
    before = (len(reports.reports), deltas(tmp_path))
    # Another partition, before it has a table or hands out a row; also one without rows.
    for batches in ([rows(keys_of(1, 5)), MARKER([1])], [MARKER([1])]):
        with pytest.raises(RefusedError, match="'counts', epoch 1, range 1 was begun in"):
            next(operator(iter(batches)))
    assert (len(reports.reports), deltas(tmp_path)) == before
    assert len(plan.marks.refused()) == 1
    first.close()  # type: ignore[attr-defined]


def test_a_refused_task_of_the_staging_ends_without_rows(
    operator: ArrowOperator, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RangeTask, "only_stages", True)
    assert len(list(operator(iter([rows(keys_of(1, 5)), MARKER([1])])))) == 1
    rest = iter([rows(keys_of(1, 5)), MARKER([1]), rows(keys_of(1, 3))])
    assert list(operator(rest)) == [] and next(rest, None) is None
    assert len(reports.reports) == 1
