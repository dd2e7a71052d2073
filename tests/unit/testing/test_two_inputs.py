"""The harness for two inputs: functions in all their shapes, joins, times, failures, beginnings."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pystate as ps
from pystate.errors import (
    DeclarationError,
    InvalidArgumentError,
    NoEventTimeError,
    UnknownStateError,
    WrongTypeError,
)
from pystate.operators.functions.binding import shape
from pystate.operators.joins.interval import IntervalJoin as IntervalOperator
from pystate.operators.joins.interval import IntervalJoinSpec
from tests.drawn import drawn
from tests.unit.testing.disturbed import disturbed

pytestmark = pytest.mark.usefixtures("table_home")

LEFT, RIGHT = "k string, t long, n long", "t long, key string, m long"


class ByRow(ps.KeyedCoProcessFunction):
    """Adds up both inputs, and says the sums at each time that a row had."""

    a = ps.ValueState("long", default=0)
    b = ps.ValueState("long", default=0)

    def process_left(self, key: Any, row: Any, ctx: Any) -> Any:
        self.a.update(self.a.value() + row.n)
        ctx.register_event_time_timer(row.t)

    def process_right(self, key: Any, row: Any, ctx: Any) -> Any:
        self.b.update(self.b.value() + row.m)
        ctx.register_event_time_timer(row.t)

    def on_timer(self, key: Any, timestamp: int, ctx: Any) -> Any:
        yield key, timestamp, self.a.value(), self.b.value()


class ByKey(ps.KeyedCoProcessFunction):
    a = ps.ValueState("long", default=0)
    b = ps.ValueState("long", default=0)

    def process_left_rows(self, key: Any, batch: pa.RecordBatch, ctx: Any) -> Any:
        self.a.update(self.a.value() + sum(batch.column("n").to_pylist()))
        for time in batch.column("t").to_pylist():
            ctx.register_event_time_timer(time)

    def process_right_rows(self, key: Any, batch: pa.RecordBatch, ctx: Any) -> Any:
        self.b.update(self.b.value() + sum(batch.column("m").to_pylist()))
        for time in batch.column("t").to_pylist():
            ctx.register_event_time_timer(time)

    on_timer = ByRow.on_timer


class Mixed(ByRow):
    process_right = ps.KeyedCoProcessFunction.process_right
    process_right_rows = ByKey.process_right_rows


class Vector(ps.VectorizedCoFunction):
    a = ps.ValueState("long", default=0)
    b = ps.ValueState("long", default=0)

    def process_left(self, keys: ps.KeyBatch, batch: pa.RecordBatch, ctx: Any) -> Any:
        self.a.add(keys, batch.column("n"))
        ctx.register_event_time_timers(keys, batch.column("t"))

    def process_right(self, keys: ps.KeyBatch, batch: pa.RecordBatch, ctx: Any) -> Any:
        self.b.add(keys, batch.column("m"))
        ctx.register_event_time_timers(keys, batch.column("t"))

    def on_timers(self, keys: ps.KeyBatch, timestamps: np.ndarray[Any, Any], ctx: Any) -> Any:
        yield {
            "k": keys.key_arrays()[0],
            "t": timestamps,
            "a": self.a.values(keys),
            "b": self.b.values(keys),
        }


FUNCTIONS = {"row": ByRow, "key": ByKey, "mixed": Mixed, "vector": Vector}


def harness_of(function: Any, **more: Any) -> ps.testing.TwoInputHarness:
    options = {"left": LEFT, "right": RIGHT, "right_key": "key", "event_time": "t", **more}
    return ps.testing.TwoInputHarness(function, "k", **options)


class Model:
    def __init__(self, delay: int) -> None:
        self.delay = delay
        self.sums: dict[Any, list[int]] = {}
        self.timers: set[tuple[Any, int]] = set()
        self.latest: list[int | None] = [None, None]
        self.watermark: int | None = None
        self.late = 0

    def epoch(self, left: list[Any], right: list[Any]) -> list[Any]:
        mark = self.watermark
        for side, rows in enumerate((left, right)):
            for key, time, n in rows:
                latest = self.latest[side]
                self.latest[side] = time if latest is None else max(time, latest)
                if mark is not None and time < mark:
                    self.late += 1
                    continue
                self.sums.setdefault(key, [0, 0])[side] += n
                self.timers.add((key, time))
        due = {timer for timer in self.timers if mark is not None and timer[1] <= mark}
        self.timers -= due
        known = [latest for latest in self.latest if latest is not None]
        if len(known) == 2:
            new = min(known) - self.delay
            self.watermark = new if mark is None else max(mark, new)
        return sorted(((k, t, *self.sums[k]) for k, t in due), key=repr)


rows = st.lists(
    st.tuples(st.sampled_from([None, "a", "b", "c"]), st.integers(0, 60), st.integers(-5, 5)),
    max_size=8,
)
acts = st.sampled_from(["", "", "rows", "timers", "seal", "publish", "restore 1", "restore 3"])


def right_of(given: list[Any]) -> list[Any]:
    return [(time, key, n) for key, time, n in given]


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_functions_of_all_shapes(kind: str) -> None:
    make = FUNCTIONS[kind]

    @drawn(40)
    @given(st.lists(st.tuples(rows, rows, acts), max_size=6), st.sampled_from([0, 7]))
    def check(epochs: list[Any], delay: int) -> None:
        model = Model(delay)
        harness = harness_of(
            make(), allowed_delay=delay, late="drop", schema="k string, t long, a long, b long",
            batch_rows=3,
        )  # fmt: skip
        try:
            for number, (left, right, act) in enumerate(epochs):
                moved = [(k, t + 10 * number, n) for k, t, n in left]
                other = [(k, t + 10 * number, n) for k, t, n in right]
                harness = disturbed(harness, act, make(), rows=1, timers=1)
                found = harness.process(moved, right_of(other))
                assert sorted(map(tuple, found), key=repr) == model.epoch(moved, other)
                assert harness.watermark == model.watermark
            assert harness.late_rows == model.late
            for key, (a, b) in model.sums.items():
                assert (harness.state("a", key), harness.state("b", key)) == (a, b)
        finally:
            harness.close()

    check()


def test_watermarks_of_inputs_and_side_outputs() -> None:
    class Sides(ByRow):
        def on_timer(self, key: Any, timestamp: int, ctx: Any) -> Any:
            ctx.output("due", (key, timestamp))
            assert ctx.watermark is not None and ctx.time_domain == "event"

    with ps.testing.TwoInputHarness(
        Sides(), "k", left=LEFT, right="k string, m long", event_time="t", side_outputs=["due"]
    ) as harness:
        with pytest.raises(NoEventTimeError, match="drain"):
            harness.drain()
        harness.push_left([("a", 10, 1)])
        assert harness.next_timer("event") == 10 and harness.keys() == ["a"]
        harness.advance_watermark(20, "left")
        assert harness.watermark is None and harness.side_output("due") == []
        harness.advance_watermark(10, "right")
        assert harness.watermark == 10 and harness.side_output("due") == [("a", 10)]
        with pytest.raises(InvalidArgumentError, match="never goes back"):
            harness.advance_watermark(15)
        harness.advance_watermark(dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc))
        harness.advance_processing_time(dt.timedelta(seconds=1))
        assert harness.processing_time == 1000 and harness.epoch == 5


# -- joins


@pytest.mark.parametrize("act", ["", "rows", "seal", "restore 1", "restore 3"])
def test_joins_that_are_disturbed(act: str) -> None:
    """Random rows are those of tests/model."""
    columns = "k string, t long, n long"

    def made(operator: Any, **more: Any) -> Any:
        return ps.testing.TwoInputHarness(
            operator, "k", left=columns, right=columns, event_time="t", **more
        )

    operator: Any = ps.testing.IntervalJoin(-5, 10, how="full", suffixes=("", "_right"))
    harness = made(operator, initial_rows=([("a", 10, 1), ("b", 10, 2)], [("a", 12, 3)]))
    assert harness.epoch == 0 and harness.output == []
    with disturbed(harness, act, operator) as harness:
        found = harness.process([("a", 14, 4), ("c", 30, 5)], [("b", 15, 6), (None, 15, 7)])
        # The pair of earlier rows was emitted before, and a row without a key is at once.
        assert sorted(map(tuple, found), key=repr) == [
            *(("a", 14, 4, 12, 3), ("b", 10, 2, 15, 6), (None, None, None, 15, 7))
        ]
        assert harness.drain() == [("c", 30, 5, None, None)]
        assert harness.late_rows == 0 and harness.kept == 0
    operator = ps.testing.WindowJoin(ps.Tumbling(10), how="full", suffixes=("", "_right"))
    harness = made(operator)
    assert harness.process([("a", 1, 1), ("b", 5, 2)], [("a", 9, 3)]) == []
    with disturbed(harness, act, operator) as harness:
        assert harness.process([("a", 11, 4)], [("a", 2, 5)]) == []
        assert sorted(map(tuple, harness.drain()), key=repr) == [
            ("a", 0, 10, 1, 1, 2, 5),
            ("a", 0, 10, 1, 1, 9, 3),
            ("a", 10, 20, 11, 4, None, None),
            ("b", 0, 10, 5, 2, None, None),
        ]
        assert harness.late_rows == 0 and harness.kept == 0


def test_an_asof_join() -> None:
    with ps.testing.TwoInputHarness(
        ps.testing.AsofJoin(how="left", tolerance="1 s"),
        ["k"],
        left="k string, at long",
        right="k string, since timestamp, rate double",
        event_time="at",
        right_event_time="since",
        initial_rows=([], [("a", dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc), 0.5)]),
        parallelism=3,
    ) as harness:
        assert harness.process([("a", 900), ("a", 1001), ("b", 3)]) == []
        found = harness.advance_watermark(10_000)
        assert sorted((k, at, rate) for k, at, _, rate in found) == [
            ("a", 900, 0.5),
            ("a", 1001, None),
            ("b", 3, None),
        ]
        assert repr(harness) == "<TwoInputHarness of AsofJoinSpec after 2 epochs>"
        with pytest.raises(UnknownStateError):
            harness.state("versions", "a")


# -- beginnings


def test_a_function_begins_with_state_and_timers() -> None:
    state = {"k": ["a", "b"], "b": pa.array([7, 8], pa.int32())}
    timers = {"k": ["a"], "timer_domain": ["event"], "timer_ms": [5]}
    with harness_of(ByKey(), initial_state=state, initial_timers=timers, parallelism=2) as harness:
        assert harness.state("b", "b") == 8 and harness.next_timer("event") == 5
        harness.push_left([("a", 9, 1)])
        assert harness.advance_watermark(9) == [("a", 5, 1, 7), ("a", 9, 1, 7)]
        snapshot = harness.snapshot()
    with ps.testing.TwoInputHarness.restore(snapshot, ByKey()) as harness:
        assert harness.state("a", "a") == 1


def test_the_harness_of_one_input_begins_with_state_and_rows() -> None:
    class Sum(ps.KeyedProcessFunction):
        n = ps.ValueState("long", default=0)
        tags = ps.ListState("string")

        def process(self, key: Any, row: Any, ctx: Any) -> Any:
            self.n.update(self.n.value() + row.n)
            ctx.register_event_time_timer(row.t)
            yield key, self.n.value(), list(self.tags.get())

        def on_timer(self, key: Any, timestamp: int, ctx: Any) -> Any:
            yield key, timestamp

    state = {"k": ["a"], "n": [7], "tags": [["x"]]}
    timers = {"k": ["b"], "timer_domain": ["event"], "timer_ms": [3]}
    with ps.testing.Harness(
        Sum(), "k", event_time="t", initial_state=state, initial_timers=timers
    ) as harness:
        assert harness.process([{"k": "a", "n": 1, "t": 4}]) == [("a", 8, ["x"])]
        assert harness.advance_watermark(3) == [("b", 3)]
    earlier = [{"k": "a", "n": 5, "t": 10}, {"k": "a", "n": 6, "t": 20}]
    with ps.testing.Harness(
        Sum(), "k", event_time="t", allowed_delay=5, late="drop", initial_rows=earlier
    ) as harness:
        # The timer at 10 has fired by the watermark of the earlier rows, which is 15.
        assert (harness.epoch, harness.output, harness.watermark) == (0, [], 15)
        assert harness.next_timer("event") == 20
        rows = [{"k": "a", "n": 1, "t": 14}, {"k": "a", "n": 1, "t": 15}]
        assert harness.process(rows) == [("a", 12, []), ("a", 15)]
        assert harness.late_rows == 1


# -- what is refused


@pytest.mark.parametrize(
    ("base", "methods", "match"),
    [
        (ps.KeyedCoProcessFunction, ["process_left"], "neither process_right"),
        (ByRow, ["process_left_rows"], "both process_left"),
        (ps.VectorizedCoFunction, ["process_left"], "no process_right"),
        (ps.KeyedCoProcessFunction, ["processElement1"], "process_left"),
    ],
)
def test_shapes_and_what_they_lack(base: Any, methods: list[str], match: str) -> None:
    assert shape(Vector()) == "co_vectorized" and shape(Mixed()) == "co"

    def method(self: Any, key: Any, row: Any, ctx: Any) -> Any: ...

    with pytest.raises(DeclarationError, match=match):
        shape(type("Odd", (base,), dict.fromkeys(methods, method))())


INTERVAL = ps.testing.IntervalJoin(0, 1)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"function": ps.testing.Top(1, "n")}, InvalidArgumentError, "no function of two inputs"),
        ({"function": INTERVAL, "schema": "k string"}, InvalidArgumentError, "schema is of a func"),
        ({"function": INTERVAL}, InvalidArgumentError, "two columns of the result"),
        ({"function": INTERVAL, "event_time": None}, InvalidArgumentError, "by event time"),
        ({"right": "key long, t long, m long"}, WrongTypeError, "different types"),
        ({"late": "side"}, InvalidArgumentError, "'side'"),
        ({"event_time": None, "allowed_delay": 1}, InvalidArgumentError, "allowed_delay"),
        (
            {"initial_state": {"k": ["a"], "x": [1]}},
            InvalidArgumentError,
            "nothing declares the column 'x'",
        ),
        ({"initial_state": 7}, WrongTypeError, "initial_state"),
    ],
)
def test_bad_arguments(options: dict[str, Any], error: Any, match: str) -> None:
    harness_of(ByRow()).close()
    function = options.get("function", ByRow())
    with pytest.raises(error, match=match):
        harness_of(function, **{k: v for k, v in options.items() if k != "function"})
    with pytest.raises(InvalidArgumentError, match="what snapshot"):
        ps.testing.TwoInputHarness.restore(7, ByRow())  # type: ignore[arg-type]


def test_a_join_in_days_of_a_zone() -> None:
    """Local times of both inputs are in the days that they name; they do not meet instants."""
    windows = ps.Tumbling("1 day", zone="America/New_York")
    operator = ps.testing.WindowJoin(windows, suffixes=("", "_right"))

    def harness(left: str, right: str) -> ps.testing.TwoInputHarness:
        columns = f"k int, at {left}", f"k int, at {right}"
        return ps.testing.TwoInputHarness(
            operator, "k", left=columns[0], right=columns[1], event_time="at"
        )

    with harness("date", "timestamp_ntz") as one:
        one.process([(1, dt.date(2024, 3, 10))], [(1, dt.datetime(2024, 3, 10, 23, 30))])
        [row] = one.drain()
        zone = zoneinfo.ZoneInfo("America/New_York")
        assert row.window_start.astimezone(zone) == dt.datetime(2024, 3, 10, tzinfo=zone)
    with pytest.raises(InvalidArgumentError, match=r"timestamp.*local times.*cast one of them"):
        harness("timestamp_ntz", "timestamp")


class OfLeft(IntervalOperator):
    """An interval join that emits only what right rows complete."""

    def meet(self, side: Any, rows: Any) -> Any:
        found = list(super().meet(side, rows))
        return iter(found if side == "right" else ())


class OfLeftSpec(IntervalJoinSpec):
    def make(self, late: Any = None) -> OfLeft:
        return OfLeft(self, late)


class LeftFirst(ps.testing.IntervalJoin):
    """A join that nothing but this file knows."""

    ways = ("inner",)

    def _spec(self, left: Any, right: Any, output: Any, owner: str) -> OfLeftSpec:
        return OfLeftSpec(left, right, 0, 5, self.how, output)


def test_a_join_that_the_harness_does_not_know() -> None:
    columns: Any = {"left": "k string, t long, n long", "right": "k string, u long, m long"}
    columns |= {"event_time": "t", "right_event_time": "u"}
    with ps.testing.TwoInputHarness(LeftFirst(0, 5), "k", **columns) as harness:
        assert harness.push_left([("a", 1, 7)]) == []
        assert harness.push_right([("a", 3, 8), ("b", 3, 9)]) == [("a", 1, 7, 3, 8)]
        assert harness.push_left([("b", 2, 6)]) == []
    with pytest.raises(InvalidArgumentError, match="how is 'inner'"):
        ps.testing.TwoInputHarness(LeftFirst(0, 5, "full"), "k", **columns)
