"""Rows that an operator cannot process: dropped, failed or written aside, and always counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.errors import InvalidArgumentError, InvalidRowError
from pystate.operators.runtime.rows import unreadable
from pystate.testing import (
    Deduplicate,
    Harness,
    ProcessHarness,
    RowHarness,
    TwoInputHarness,
    WindowHarness,
)

YEAR_9999_MS = 253_402_214_400_000
NOW_MS = 1_700_000_000_000
#: Event times that no window, and no join, can compute with.
FAR = [(1 << 63) - 1, (1 << 63) - 5_000, -(1 << 63)]
DAY = 86_400_000


class Seen(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        self.n.update(self.n.value() + 1)
        yield key, row["at"]


class SeenAtOnce(ps.VectorizedFunction):
    n = ps.ValueState("long", default=0)

    def process(self, keys: ps.KeyBatch, batch: pa.RecordBatch, ctx: ps.RuntimeContext) -> Any:
        self.n.add(keys, 1)
        yield {"k": batch["k"], "at": batch["at"]}


class SeenOfTwo(ps.KeyedCoProcessFunction):
    n = ps.ValueState("long", default=0)

    def process_left(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        self.n.update(self.n.value() + 1)
        yield key, row["at"]

    def process_right(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        return self.process_left(key, row, ctx)


class Instance(ps.ProcessFunction):
    n = ps.OperatorListState("long")

    def process(self, row: Any, ctx: ps.RuntimeContext) -> Any:
        yield row["k"], row["at"]


Make = Callable[..., Any]

COLUMNS = "k string, at long"


def two(operator: Any) -> Make:
    return lambda **more: TwoInputHarness(
        operator, "k", left=COLUMNS, right="k string, at long, v long", event_time="at", **more
    )


HARNESSES: dict[str, Make] = {
    "process": lambda **more: Harness(Seen(), key="k", event_time="at", **more),
    "vectorized": lambda **more: Harness(SeenAtOnce(), key="k", event_time="at", **more),
    "instances": lambda **more: ps.testing.ProcessHarness(Instance(), event_time="at", **more),
    "deduplicate": lambda **more: RowHarness(
        Deduplicate(), "k", columns=COLUMNS, event_time="at", **more
    ),
    "top": lambda **more: RowHarness(
        ps.testing.Top(3, "at"), "k", columns=COLUMNS, event_time="at", **more
    ),
    "connect": two(SeenOfTwo()),
    "interval": two(ps.testing.IntervalJoin(0, 1_000, how="full", suffixes=("", "_2"))),
    "asof": two(ps.testing.AsofJoin(how="left", suffixes=("", "_2"))),
    "join": two(ps.testing.WindowJoin(ps.Tumbling(1_000), how="full", suffixes=("", "_2"))),
}


@pytest.mark.parametrize("name", HARNESSES)
def test_a_row_of_the_year_9999_makes_no_other_late(name: str) -> None:
    """With a bound on how far ahead of the clock an event time may be."""
    options: dict[str, Any] = {
        "max_ahead": "1 day",
        "allowed_delay": 0,
        "processing_time": NOW_MS,
        "late": "drop",
    }
    if name in ("interval", "asof", "join"):
        del options["late"]
    rows = [{"k": "a", "at": NOW_MS}, {"k": "b", "at": YEAR_9999_MS}]
    with HARNESSES[name](**options) as harness:
        harness.process(rows)
        assert harness.invalid_rows == 1
        if isinstance(harness, TwoInputHarness):
            harness.push_right([("x", NOW_MS + DAY, 1), ("x", NOW_MS + DAY + 1, 1)])
            assert harness.invalid_rows == 2
        assert harness.watermark == NOW_MS
        harness.process([{"k": "c", "at": NOW_MS + 1}])
        assert harness.late_rows == 0
    # It is invalid, and not late.
    with HARNESSES[name](**options, invalid="odd") as harness:
        harness.process(rows)
        assert harness.side_output("odd") == [("b", YEAR_9999_MS)]
        assert harness.invalid_rows == 1
    with HARNESSES[name](**options, on_invalid="fail") as harness:
        key = "" if name == "instances" else "key 'b'"
        with pytest.raises(
            InvalidRowError, match=rf"operator 'harness'.*{key}.*further ahead .*max_ahead=86400000"
        ):
            harness.process(rows)
        assert (harness.watermark, harness.invalid_rows) == (None, 0)
        harness.process(rows[:1])
    # Without a bound there is none.
    del options["max_ahead"]
    with HARNESSES[name](**options) as harness:
        harness.process(rows)
        assert harness.invalid_rows == 0


@pytest.mark.parametrize("name", ["interval", "asof", "join"])
@pytest.mark.parametrize("at", FAR)
def test_a_join_leaves_out_times_with_which_it_cannot_compute(name: str, at: int) -> None:
    if name == "join":
        at = FAR[0] if at > 0 else FAR[2]
    with HARNESSES[name](allowed_delay=0) as harness:
        assert harness.process([("a", at), ("b", 5)], [("a", at, 1), ("b", 5, 2)]) is not None
        assert (harness.invalid_rows, harness.watermark) == (2, 5)
        harness.push_right([("c", 60_000, 3)])
        harness.push_left([("c", 60_000)])
        found = {next(iter(row)) for row in [*harness.output, *harness.drain()]}
        assert found == ({"b", "c"})


def test_deduplicate_leaves_out_times_with_which_it_cannot_compute() -> None:
    make = Deduplicate(within="1 min")
    with RowHarness(make, "k", columns=COLUMNS, event_time="at", invalid="odd") as harness:
        assert harness.process([("a", FAR[0]), ("a", FAR[2]), ("a", 1)]) == [("a", 1)]
        assert harness.side_output("odd") == [("a", FAR[2]), ("a", FAR[0])]


WINDOWS = [
    ps.Tumbling("1 hour"),
    ps.Tumbling("1 day", zone="Europe/Zurich"),
    ps.Sliding("1 hour", "10 min"),
    ps.Cumulating("10 min", "1 hour"),
    ps.Session("1 hour"),
    ps.Session(column="gap"),
]


@pytest.mark.parametrize("kind", ["long", "timestamp"])
@pytest.mark.parametrize("windows", WINDOWS, ids=repr)
def test_a_row_near_the_end_of_time_is_in_no_other_window(windows: Any, kind: str) -> None:
    """No window that contains its time ends at a time that there is."""
    schema = pa.schema(
        [
            ("k", pa.string()),
            ("at", pa.int64() if kind == "long" else pa.timestamp("us", "UTC")),
            ("gap", pa.int64()),
        ]
    )
    scale = 1 if kind == "long" else 1_000
    last = (1 << 63) - 1 - 5_000 * scale
    rows = pa.table([["a", "b", "c"], [last, 0, -last], [3_600_000] * 3], schema=schema)
    options: dict[str, Any] = {"columns": schema, "event_time": "at"}
    with WindowHarness(windows, {"n": ps.count()}, "k", invalid="odd", **options) as harness:
        harness.process(rows)
        assert [row[0] for row in harness.side_output("odd")] == ["a", "c"]
        assert (harness.invalid_rows, harness.watermark) == (2, None)
        found = harness.advance_watermark(ps.MAX_WATERMARK)
        assert {row.k for row in found} == {"b"}
    with (
        WindowHarness(
            windows, {"n": ps.count()}, "k", columns=schema, event_time="at", on_invalid="fail"
        ) as harness,
        pytest.raises(
            InvalidRowError, match=r"operator 'harness': a row of key 'a' is of .* (far|bey)"
        ),
    ):
        harness.process(rows)


GAPS = [0, -1, -(1 << 63), None, (1 << 59) + 1, (1 << 63) - 1]


@pytest.mark.parametrize("gap", GAPS)
def test_a_gap_that_is_none(gap: int | None) -> None:
    columns = "k string, at long, gap long"
    rows = [("a", 1_000, 5_000), ("b", 1_000, gap), ("a", 2_000, 5_000)]
    options: dict[str, Any] = {"columns": columns, "event_time": "at"}
    session = ps.Session(column="gap")
    with WindowHarness(session, {"n": ps.count()}, "k", invalid="odd", **options) as harness:
        harness.process(rows)
        assert harness.side_output("odd") == [("b", 1_000, gap)]
        assert harness.advance_watermark(10_000) == [("a", 1_000, 7_000, 2)]
    with (
        WindowHarness(session, {"n": ps.count()}, "k", on_invalid="fail", **options) as harness,
        pytest.raises(InvalidRowError, match=r"key 'b' has a gap of .* in column 'gap'"),
    ):
        harness.process(rows)


DATES: list[Any] = [
    (pa.timestamp("us", "UTC"), 1 << 62),
    (pa.timestamp("us"), -(1 << 62)),
    (pa.date32(), (1 << 31) - 1),
    (pa.list_(pa.timestamp("us", "UTC")), [1 << 62]),
    (pa.struct([("x", pa.date32())]), {"x": 1 << 30}),
]


@pytest.mark.parametrize(("kind", "value"), DATES)
@pytest.mark.parametrize("key", ["k", "v", None])
def test_a_date_that_python_cannot_hold(kind: Any, value: Any, key: str | None) -> None:
    good = {"x": 1} if pa.types.is_struct(kind) else [1] if pa.types.is_list(kind) else 1
    rows = pa.record_batch(
        {"k": ["a", "b", "c"], "at": [1, 2, 3], "v": pa.array([good, value, good], kind)}
    )
    key = "k" if key is not None and pa.types.is_nested(kind) else key

    def harness(**more: Any) -> Harness | ProcessHarness:
        return ProcessHarness(Instance(), **more) if key is None else Harness(Seen(), key, **more)

    with harness(event_time="at", invalid="odd") as made:
        assert [row[1] for row in made.process(rows)] == [1, 3]
        assert (made.invalid_rows, len(made.side_output("odd"))) == (1, 1)
    with (
        harness(on_invalid="fail") as made,
        pytest.raises(InvalidRowError, match="Python's years 1 to 9999"),
    ):
        made.process(rows)


def test_which_rows_python_cannot_hold() -> None:
    bad = [(1 << 31) - 1, 1 << 30]
    given = [1, bad[0], None, 2, *bad, *range(3_000), bad[0]]
    rows = pa.record_batch({"n": [*range(len(given))], "v": pa.array(given, pa.date32())})
    assert unreadable(rows).nonzero()[0].tolist() == [1, 4, 5, len(given) - 1]
    assert unreadable(rows.slice(4)).nonzero()[0].tolist() == [0, 1, len(given) - 5]
    assert not unreadable(rows.slice(0, 0)).any()


class SeenByKey(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process_rows(self, key: Any, batch: pa.RecordBatch, ctx: ps.RuntimeContext) -> Any:
        self.n.update(batch.num_rows)
        yield from batch["at"].to_pylist()


def test_a_key_that_python_cannot_hold_where_rows_are_columns() -> None:
    dates = pa.array([1, (1 << 31) - 1, 1], pa.date32())
    rows = pa.record_batch({"v": dates, "w": dates, "at": [1, 2, 3]})
    with Harness(SeenByKey(), key="v", event_time="at") as harness:
        assert harness.process(rows) == [1, 3]
        assert harness.invalid_rows == 1
    with Harness(SeenByKey(), key="at", event_time="at") as harness:
        assert harness.process(rows) == [1, 2, 3]
        assert harness.invalid_rows == 0


def test_options_that_make_no_sense() -> None:
    with pytest.raises(InvalidArgumentError, match=r"max_ahead is about .* event_time='column'"):
        Harness(Seen(), key="k", max_ahead="1 day")
    with pytest.raises(InvalidArgumentError, match="invalid='drop' is the tag of a side output"):
        Harness(Seen(), key="k", invalid="drop")
    with pytest.raises(InvalidArgumentError, match="on_invalid"):
        Harness(Seen(), key="k", on_invalid="ignore")  # type: ignore[arg-type]
