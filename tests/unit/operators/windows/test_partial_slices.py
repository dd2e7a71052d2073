"""Rows combined per key and slice before they come give what the rows themselves give."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pystate as ps
from pystate.operators.runtime.partial_rows import (
    FIRST,
    LATE,
    TIME,
    WEIGHT,
    mean_accumulators,
    whole_sums,
)
from pystate.operators.windows.assigners import (
    Assigner,
    CountWindow,
    Cumulating,
    Global,
    Session,
    Sliding,
    Tumbling,
)
from pystate.operators.windows.kinds import make_operator
from pystate.operators.windows.partial_slices import Part, parts, refusal, slice_rule
from pystate.operators.windows.specification import WindowSpec, window_options
from pystate.tables.backend import KeyedStateBackend
from tests.drawn import drawn
from tests.unit.operators.windows.windows_world import World, tuples

NAN = float("nan")
SCHEMA = pa.schema(
    [
        ("k", pa.float64()),
        ("t", pa.int64()),
        ("v", pa.int64()),
        ("i", pa.int32()),
        ("f", pa.float32()),
        ("d", pa.decimal128(9, 2)),
    ]
)
AGGREGATES: dict[str, Any] = {
    "n": ps.count(),
    "v_n": ps.count("v"),
    "v_sum": ps.sum("v"),
    "v_min": ps.min("v"),
    "v_mean": ps.mean("v"),
    "i_sum": ps.sum("i"),
    "i_mean": ps.mean("i"),
    "f_sum": ps.sum("f"),
    "f_max": ps.max("f"),
    "f_mean": (ps.Mean(), "f"),
    "d_sum": ps.sum("d"),
    "d_mean": ps.mean("d"),
}
WINDOWS: list[Assigner] = [
    Tumbling(10),
    Tumbling(7, offset=-3),
    Sliding(12, 4),
    Sliding(10, 4, offset=1),
    Cumulating(5, 20),
    Session(6),
]


def computed(part: Part, rows: Sequence[dict[str, Any]]) -> Any:
    """A column of a combined row, as Spark computes it."""
    values = [row[part.source] for row in rows if row[part.source] is not None]
    if part.function == "count":
        return len(values)
    if not values:
        return None
    if part.function in ("high", "low"):
        return sum(v >> 32 if part.function == "high" else v & 0xFFFFFFFF for v in values)
    if part.function == "sum":
        return sum(values[1:], values[0])
    order: Any = (lambda v: (v != v, v)) if isinstance(values[0], float) else None
    return (min if part.function == "min" else max)(values, key=order)


def type_of(part: Part, schema: pa.Schema) -> pa.DataType:
    source = schema.field(part.source).type
    if part.function in ("min", "max"):
        return source
    if part.function == "sum" and pa.types.is_floating(source):
        return pa.float64()
    if part.function == "sum" and pa.types.is_decimal(source):
        return pa.decimal128(source.precision + 10, source.scale)
    return pa.int64()


def combine(batch: pa.RecordBatch, spec: WindowSpec, bound: int | None) -> pa.RecordBatch:
    """The rows of a batch, combined per key and slice."""
    rule, timed = slice_rule(spec, bound), spec.options.event_time is not None
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in batch.to_pylist():
        key = tuple(_canonical(row[name]) for name in spec.key)
        time = row["t"] if rule is not None else None
        if rule is not None and time is not None and rule.first <= time <= rule.last:
            late = rule.split is not None and time <= rule.split
            time -= (time - rule.offset) % rule.step
            if rule.split is not None and not late:
                time = max(time, rule.split + 1)
        groups.setdefault((key, time), []).append(row)
    columns: dict[str, Any] = {name: [] for name in spec.key}
    types: dict[str, pa.DataType] = {name: batch.schema.field(name).type for name in spec.key}
    wanted = parts(spec)
    types |= {WEIGHT: pa.int64(), **{p.name: type_of(p, batch.schema) for p in wanted}}
    if timed:
        types |= {TIME: pa.int64(), LATE: pa.int64(), FIRST: pa.int64()}
    columns |= {name: [] for name in types if name not in columns}
    for (_, _), rows in groups.items():
        for name in spec.key:
            columns[name].append(rows[0][name])
        columns[WEIGHT].append(len(rows))
        times = [row["t"] for row in rows if row["t"] is not None]
        if timed:
            columns[TIME].append(max(times, default=None))
            columns[FIRST].append(min(times, default=None))
            columns[LATE].append(sum(bound is not None and time < bound for time in times))
        for part in wanted:
            columns[part.name].append(computed(part, rows))
    arrays = [pa.array(columns[name], kind) for name, kind in types.items()]
    return pa.RecordBatch.from_arrays(arrays, names=list(types))


def _canonical(value: Any) -> Any:
    return "nan" if value != value else value


class Combining:
    def __init__(self, spec: WindowSpec) -> None:
        self._spec = spec
        self.operator = make_operator(spec, combined=True)

    def process(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        return self.operator.process(combine(rows, self._spec, self.operator.task.late_bound))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.operator, name)


class SwitchingWorld(World):
    """A world in which each computation of an epoch, also of one that crashed, takes either road.

    `road` says which; `noted` has what the operators have counted.
    """

    def __init__(self, road: Callable[[], bool], *arguments: Any, **options: Any) -> None:
        self.road = road
        super().__init__(*arguments, **options)

    def _operator(self) -> Any:
        return Combining(self.spec) if self.road() else make_operator(self.spec, "late")

    def noted(self) -> Any:
        """Counts of the epoch, per range, and the next timers and the state of the tables."""
        found = [(t.late_rows, t.metrics["dropped_rows"], t.invalid_rows, t.latest.get("input"))
                 for t in self.tasks[-len(self.ranges):]]  # fmt: skip
        timers = [[b.next_timer("event"), b.next_timer("processing")] for _, b in self.ranges]
        if isinstance(self.spec.options.windows, Session):
            # When a session's timer moves depends on how its rows were divided into batches.
            timers = []
        tables = [backend.to_arrow() for _, backend in self.ranges]
        state = sorted(repr(row) for table in tables for row in table.to_pylist())
        return found, timers, state


def small(least: int, most: int) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), st.integers(least, most))


rows = st.lists(
    st.tuples(
        st.sampled_from([None, 0.0, -0.0, NAN, -NAN, 1.5]),
        small(-6, 40),
        st.one_of(st.none(), st.sampled_from([1 << 40, -(1 << 33), -1, 0, 3, (1 << 61) - 1])),
        small(-(1 << 31), (1 << 31) - 1),
        st.one_of(st.none(), st.sampled_from([NAN, 0.5, -2.0, 3.25, math.inf])),
        st.one_of(st.none(), st.decimals(-9999999, 9999999, places=2)),
    ),
    max_size=16,
)
epochs = st.lists(
    st.tuples(rows, st.integers(0, 15), st.booleans(), st.sampled_from([None, None, 1, 3])),
    max_size=6,
)


@pytest.mark.parametrize("emit", ["final", "update"])
@pytest.mark.parametrize("windows", WINDOWS, ids=lambda k: repr(k)[:30])
@given(
    epochs=epochs,
    lateness=st.sampled_from([0, 3, 25]),
    size=st.integers(1, 9),
    names=st.sets(st.sampled_from(sorted(AGGREGATES)), min_size=1),
    roads=st.randoms(use_true_random=False),
)
@drawn(25)
def test_both_roads_are_one(
    windows: Assigner, emit: str, epochs: Any, lateness: int, size: int, names: Any, roads: Any
) -> None:
    options: dict[str, Any] = {"allowed_lateness": lateness, "emit": emit, "batch_rows": size}
    aggregates = {name: AGGREGATES[name] for name in AGGREGATES if name in names}
    plain = SwitchingWorld(lambda: False, windows, aggregates, SCHEMA, **options)
    other = SwitchingWorld(lambda: roads.random() < 0.7, windows, aggregates, SCHEMA, **options)
    assert refusal(plain.spec) is None
    watermark = -10
    for given_, later, crash, parallelism in [*epochs, ([], 10_000, False, None)]:
        moved = [(k, t and t + watermark // 2, *values) for k, t, *values in given_]
        watermark += later
        for world in (plain, other):
            if parallelism is not None:
                world.rescale(parallelism)
        mine = plain.epoch(moved, watermark, crash=crash)
        assert _shown(other.epoch(moved, watermark, crash=crash)) == _shown(mine)
        assert other.noted() == plain.noted()


@given(
    epochs=st.lists(
        st.tuples(
            st.lists(st.tuples(st.sampled_from([0.0, 1.5]), st.integers(-13, 9)), max_size=24),
            st.integers(0, 9),
        ),
        max_size=5,
    ),
    lateness=st.sampled_from([0, 4]),
    gap=st.integers(2, 6),
)
@drawn(300)
def test_sessions_of_rows_that_lie_close(epochs: Any, lateness: int, gap: int) -> None:
    """Many rows in a slice, of which some are too late, and slices that just meet or do not."""
    options: dict[str, Any] = {"allowed_lateness": lateness, "emit": "update"}
    aggregates = {"n": ps.count(), "v_sum": ps.sum("v"), "v_min": ps.min("v")}
    plain, other = (
        SwitchingWorld(lambda c=c: c, Session(gap), aggregates, SCHEMA, **options)
        for c in (False, True)
    )
    watermark = 0
    for given_, later in [*epochs, ([], 1000)]:
        some = [(k, watermark + t, t, None, None, None) for k, t in given_]
        watermark += later
        found = [_shown(world.epoch(some, watermark)) for world in (plain, other)]
        assert found[0] == found[1]
        assert other.noted() == plain.noted()


def _shown(emitted: Sequence[Any]) -> list[str]:
    return sorted(map(repr, emitted))


@pytest.mark.parametrize("windows", [Tumbling(10), Global(), Session(3)])
@pytest.mark.parametrize("zone", [None, "Europe/Zurich"])
def test_windows_of_processing_time(windows: Assigner, zone: str | None) -> None:
    if zone is not None and isinstance(windows, Tumbling):
        windows = Tumbling("1 day", zone=zone)
    worlds = [
        SwitchingWorld(
            lambda combines=combines: combines,
            windows,
            AGGREGATES,
            SCHEMA,
            emit="update",
            processing_time=not isinstance(windows, Global),
            event_time=None,
        )
        for combines in (False, True)
    ]
    some: list[Any] = [(1.0, t, 5, 6, 0.5, decimal.Decimal("1.25")) for t in (1, None, 30)]
    some.append((2.0, 1, None, None, None, None))
    found = [[_shown(w.epoch(some, None, now)) for now in (5, 7, 12)] for w in worlds]
    assert found[0] == found[1] and all(found[0])
    assert worlds[0].noted() == worlds[1].noted()


@pytest.mark.parametrize("end", [(1 << 63) - 500, -(1 << 63) + 500])
@pytest.mark.parametrize("windows", [Tumbling(10), Sliding(12, 4, offset=1), Session(50)])
def test_times_near_an_end_of_64_bits_are_in_one_slice_on_both_roads(
    windows: Assigner, end: int
) -> None:
    worlds = [
        SwitchingWorld(lambda c=c: c, windows, {"n": ps.count()}, SCHEMA, emit="update")
        for c in (False, True)
    ]
    some = [(1.0, end + t, 1, 1, None, None) for t in (-400, -310, -295, 0, 400)]
    found = [_shown(world.epoch(some, None)) for world in worlds]
    assert found[0] == found[1] and found[0]
    assert worlds[0].timeless == worlds[1].timeless


def test_only_the_sum_of_combined_rows_counts() -> None:
    """Not what it would come to on the way there, in another order."""
    world = SwitchingWorld(lambda: True, Tumbling(10), {"total": ps.sum("v")}, SCHEMA)
    big = (1 << 63) - 1
    world.epoch([(1.0, 1, v, None, None, None) for v in (big, -big, big)], 0)
    assert [row[3] for row in world.epoch([], 100)] == [big]
    assert not any(each.invalid_rows for each in world.tasks)


def test_what_cannot_be_combined() -> None:
    def why(windows: Assigner, aggregate: Any, **options: Any) -> str | None:
        made = window_options(windows, "test", **{"event_time": "t", **options})
        return refusal(WindowSpec.of(made, ["k"], {"x": aggregate}, SCHEMA, "test"))

    assert why(Session(5), ps.count()) is None
    assert "how long" in str(why(Session(column="v"), ps.count()))
    assert "CountWindow" in str(why(CountWindow(5), ps.count()))
    assert "zone" in str(why(Tumbling("1 day", zone="UTC"), ps.count()))
    assert "x: only count" in str(why(Tumbling(5), (ps.TopK(2), "v")))
    assert "x: only count" in str(why(Tumbling(5), (ps.First(), "v")))
    assert why(Tumbling(5), (ps.Mean(), "v")) is None
    wide = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("d", pa.decimal128(29, 2))])
    options = window_options(Tumbling(5), "test", event_time="t")
    for aggregate, refused in ((ps.sum("d"), True), (ps.max("d"), False)):
        spec = WindowSpec.of(options, ["k"], {"x": aggregate}, wide, "test")
        assert (refusal(spec) is not None) == refused


longs = st.lists(st.one_of(st.none(), st.integers(-(1 << 63), (1 << 63) - 1)), max_size=9)


@given(values=longs)
def test_sums_in_halves(values: list[int | None]) -> None:
    given_ = [v for v in values if v is not None]
    high = pa.array([None, sum(v >> 32 for v in given_) if given_ else None], pa.int64())
    low = pa.array([None, sum(v & 0xFFFFFFFF for v in given_) if given_ else None], pa.int64())
    total = sum(given_)
    counts = pa.array([0, len(given_)], pa.int64())
    bound = ps.Mean().bind("long")
    expected = [None, total / len(given_) if given_ else None]
    means = mean_accumulators(counts, high, low)
    assert [bound.result_of(each) for each in means.to_pylist()] == expected
    found, beyond = whole_sums(high, low)
    if -(1 << 63) <= total < 1 << 63:
        assert found.to_pylist() == [None, total if given_ else None] and beyond is None
    else:
        assert beyond is not None and beyond.tolist() == [False, True]


def test_the_accumulators_of_means_are_those_of_the_core() -> None:
    for type_, values in (
        ("int", [5, -7]),
        ("long", [1 << 62, (1 << 62) + 5, 1 << 62]),
        ("double", [0.5, -1.25]),
        ("decimal(9,2)", [decimal.Decimal("-3.25"), decimal.Decimal("1.5")]),
    ):
        state = ps.AggregatingState(ps.Mean(), type_)
        backend = KeyedStateBackend("long")
        handle = backend.register("mean", state)
        handle.add_all(backend.keys(pa.array([1] * len(values))), values)
        stored = handle.accumulators(backend.keys(pa.array([1])))
        counts = pa.array([len(values)])
        if type_ == "long":
            high, low = (pa.array([sum(f(v) for v in values)]) for f in _HALVES)
            made = mean_accumulators(counts, high, low)
        else:
            kind = pa.decimal128(19, 2) if type_.startswith("decimal") else None
            made = mean_accumulators(counts, pa.array([sum(values)], kind))
        assert made.equals(stored), type_
        assert tuples(pa.record_batch([made], ["x"]))
        backend.close()


_HALVES: list[Any] = [lambda v: v >> 32, lambda v: v & 0xFFFFFFFF]
