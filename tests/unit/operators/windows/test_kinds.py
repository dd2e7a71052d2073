"""Count windows, zones, types of times, and arguments."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pystate as ps
from pystate.epochs.watermarks import OperatorTime
from pystate.errors import InvalidArgumentError, PystateError, WrongTypeError
from pystate.operators.runtime.task import TaskContext
from pystate.operators.windows.assigners import (
    CountWindow,
    Cumulating,
    Global,
    Session,
    Sliding,
    Tumbling,
)
from pystate.operators.windows.grid import grid_of
from pystate.operators.windows.specification import WindowSpec, window_options
from tests.unit.operators.windows.windows_world import SCHEMA, World

SUMS: dict[str, Any] = {"total": ps.sum("v"), "n": ps.count()}
HOUR = 3_600_000


def test_nothing_is_kept_of_a_complete_count_window() -> None:
    world = World(CountWindow(2), SUMS, event_time=None)
    world.epoch([(1, None, 1), (1, None, 2), (1, None, 3), (1, None, 4)], None)
    assert world.kept() == 0


def test_a_million_windows_fire_in_bounded_batches() -> None:
    world = World(Tumbling(10), {"n": ps.count()})
    keys = np.arange(300_000)
    batch = pa.RecordBatch.from_arrays(
        [pa.array(keys), pa.array(keys % 7), pa.array(keys)], schema=SCHEMA
    )
    _, backend = world.ranges[0]
    from pystate.operators.windows.kinds import make_operator

    operator = make_operator(world.spec)
    operator.open(TaskContext(backend, time=OperatorTime(None, 100)))
    assert list(operator.process(batch)) == []
    sizes = [piece.num_rows for piece in operator.finish()]
    assert sum(sizes) == 300_000 and max(sizes) <= 32_768


@pytest.mark.parametrize("zone", ["Europe/Zurich", "America/Havana", "Asia/Kathmandu", "UTC"])
@pytest.mark.parametrize(
    ("size", "offset"),
    [("1 day", 0), ("1 h", 0), ("6 h", "2 h"), ("1 week", "4 days"), ("1 day", "-3 h")],
)
def test_zones(zone: str, size: str, offset: Any) -> None:
    windows = Tumbling(size, offset=offset, zone=zone)
    grid = grid_of(windows)
    info = zoneinfo.ZoneInfo(zone)
    start = dt.datetime(2025, 1, 1, tzinfo=dt.timezone.utc)
    times = np.array(
        [int((start + dt.timedelta(minutes=37 * i)).timestamp() * 1000) for i in range(15_000)]
    )
    starts = grid.slices(times)
    ends = grid.first_end(starts)
    assert (starts <= times).all() and (times < ends).all()
    assert (grid.start_of(ends) == starts).all()
    naive = dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=windows.offset_ms)
    usual = 0
    for first, last in {(int(a), int(b)) for a, b in zip(starts, ends, strict=True)}:
        local = dt.datetime.fromtimestamp(first / 1000, info)
        wall = local.replace(tzinfo=None)
        skipped = (wall - naive) % dt.timedelta(milliseconds=windows.size_ms)
        assert skipped <= dt.timedelta(hours=1), (local, skipped)
        usual += last - first == windows.size_ms
        assert abs(last - first - windows.size_ms) <= HOUR or last - first <= 2 * HOUR
    assert usual > 100 or windows.size_ms > 86_400_000


def test_a_day_of_23_and_of_25_hours() -> None:
    grid = grid_of(Tumbling("1 day", zone="Europe/Zurich"))
    info = zoneinfo.ZoneInfo("Europe/Zurich")
    for day, hours in ((dt.datetime(2025, 3, 30), 23), (dt.datetime(2025, 10, 26), 25)):
        noon = np.array([int(day.replace(hour=12, tzinfo=info).timestamp() * 1000)])
        start = grid.slices(noon)
        assert start[0] == day.replace(tzinfo=info).timestamp() * 1000
        assert (grid.first_end(start) - start)[0] == hours * HOUR


def test_times_outside_of_the_calendar() -> None:
    grid = grid_of(Tumbling("1 day", zone="Europe/Zurich"))
    times = np.array([-(2**63), 0, 2**63 - 1])
    starts = grid.slices(times)
    assert (np.diff(starts) > 0).all() and (grid.first_end(starts) > starts).all()


ZONES = ["America/New_York", "Europe/Zurich", "Pacific/Apia", "UTC"]


def days_of(kind: str, *values: Any, **how: Any) -> list[tuple[Any, Any, int]]:
    """The windows of a day, or another size, in which some values are."""
    size = how.pop("size", "1 day")
    with ps.testing.WindowHarness(
        Tumbling(size, **how), {"n": ps.count()}, "k", columns=f"k int, at {kind}", event_time="at"
    ) as harness:
        harness.process([(1, value) for value in values])
        found = harness.advance_watermark(10**14)
    return sorted((row.window_start, row.window_end, row.n) for row in found)


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("offset", [0, "6 hours"])
def test_local_times_are_in_their_own_day_of_a_zone(zone: str, offset: Any) -> None:
    """A timestamp without a zone is a local time already; so is a date."""
    info, midnight = zoneinfo.ZoneInfo(zone), dt.time(6 if offset else 0)
    for day in (dt.date(2024, 3, 10), dt.date(2025, 10, 26), dt.date(2011, 12, 29)):
        before = day - dt.timedelta(days=1) if offset else day
        start = dt.datetime.combine(before, midnight)
        times = [start, start + dt.timedelta(hours=2.5), start + dt.timedelta(hours=23.5)]
        end = start + dt.timedelta(days=1)
        found = days_of("timestamp_ntz", *times, zone=zone, offset=offset)
        assert found == [(start, end, 3)]
        found = days_of("date", day, day, zone=zone, offset=offset)
        instants = [each.replace(tzinfo=info) for each in (start, end)]
        assert [(a.timestamp(), b.timestamp(), n) for a, b, n in found] == [
            (instants[0].timestamp(), instants[1].timestamp(), 2)
        ]
        # Instants are as they were.
        found = days_of("timestamp", *instants, zone=zone, offset=offset)
        assert [a.timestamp() for a, _, _ in found] == [each.timestamp() for each in instants]


def test_hours_of_local_times() -> None:
    """An hour is what clocks show, even if they show it twice or leave it out."""
    zone = "Europe/Zurich"
    times = [dt.datetime(2025, 10, 26, 2, 30), dt.datetime(2025, 10, 26, 3, 30)]
    times.append(dt.datetime(2025, 3, 30, 2, 30))
    found = days_of("timestamp_ntz", *times, zone=zone, size="1 hour")
    assert [(row[0], row[2]) for row in found] == [
        (time.replace(minute=0), 1) for time in sorted(times)
    ]


def test_a_function_over_days_of_dates_sees_the_instants_of_their_zone() -> None:
    def process(key: Any, window: Any, rows: Any) -> Any:
        yield key, window.start, window.end, rows.num_rows

    with ps.testing.WindowHarness(
        Tumbling("1 day", zone="America/New_York"),
        process=process,
        schema="k int, a long, b long, n long",
        key="k",
        columns="k int, at date",
        event_time="at",
    ) as harness:
        harness.process([(1, dt.date(2024, 3, 10))])
        [row] = harness.advance_watermark(10**14)
    start = dt.datetime(2024, 3, 10, 5, tzinfo=dt.timezone.utc).timestamp() * 1000
    assert tuple(row) == (1, start, start + 23 * HOUR, 1)


@pytest.mark.parametrize("zone", ZONES)
def test_days_of_dates_behind_days_of_dates(zone: str) -> None:
    """The start of a day is an instant, and the watermark is a local time."""
    options = window_options(Tumbling("1 day", zone=zone), "test", event_time="t")
    schema = pa.schema([("k", pa.int64()), ("t", pa.date32())])
    spec = WindowSpec.of(options, ["k"], {"n": ps.count()}, schema, "test")
    holds, info = spec.options.holds(), zoneinfo.ZoneInfo(zone)
    for day in (dt.date(2024, 3, 10), dt.date(2025, 10, 26)):
        local = int(dt.datetime.combine(day, dt.time(), dt.timezone.utc).timestamp() * 1000)
        begin = dt.datetime.combine(day, dt.time(), info).timestamp() * 1000
        start, end = holds.of("window_start"), holds.of("window_end")
        assert start is not None and end is not None
        for watermark in (local, local + 5 * HOUR, local + 24 * HOUR - 1):
            assert start.after(watermark) == min(begin, local)
            assert end.after(watermark) <= begin + 25 * HOUR


def test_the_time_s_own_type() -> None:
    for kind, expected in [
        (pa.timestamp("ns"), pa.timestamp("us")),
        (pa.timestamp("ms", "Europe/Zurich"), pa.timestamp("us", "Europe/Zurich")),
        (pa.date32(), pa.timestamp("us", "UTC")),
        (pa.int32(), pa.int64()),
    ]:
        schema = pa.schema([("k", pa.int64()), ("t", kind), ("v", pa.int64())])
        world = World(Tumbling("1 day"), SUMS, schema)
        assert world.spec.time_type == expected
        assert world.epoch([(1, None, 1), (1, 5, 2)] if kind == pa.int32() else [], 10**9)[:1] == (
            [(1, 0, 86_400_000, 2, 1)] if kind == pa.int32() else []
        )


@pytest.mark.parametrize("windows", [Tumbling(10), Sliding(10, 5), Cumulating(5, 10)])
def test_times_at_the_ends_of_the_type(windows: Any) -> None:
    world = World(windows, SUMS)
    world.epoch([(1, -(2**63), 1), (1, 2**63 - 1, 1), (1, -(2**63) + 1, 1), (2, -7, 1)], None)
    found = world.epoch([], 2**63 - 1)
    # The others would be in windows that end beyond 64 bits, and are in none.
    assert {row[0] for row in found} == {2}
    assert (world.kept(), world.timeless) == (0, 3)


def test_keys_may_be_null_or_several() -> None:
    schema = pa.schema(
        [("a", pa.string()), ("b", pa.float64()), ("t", pa.int64()), ("v", pa.int64())]
    )
    world = World(Sliding(10, 5), SUMS, schema, key=("a", "b"))
    world.epoch([(None, 0.0, 1, 1), (None, -0.0, 2, 2), ("x", None, 3, 3)], None)
    found = {row[:2] + row[4:] for row in world.epoch([], 5)}
    assert found == {(None, 0.0, 3, 2), ("x", None, 3, 1)}


BAD: list[tuple[Any, str]] = [
    (lambda: Tumbling("1 hour", zone="Mars/Olympus"), "no time zone of this host"),
    (lambda: Tumbling("7 hours", zone="UTC"), "must divide a day"),
    (lambda: Tumbling(0), "between 1 and"),
    (lambda: Sliding("1 min", "2 min"), "longer than size"),
    (lambda: Sliding("1 day", 1), "at most 100000"),
    (lambda: Cumulating("7 min", "1 hour"), "no multiple of step"),
    (lambda: Session(), "takes a gap"),
    (lambda: Session("1 s", column="x"), "takes a gap"),
    (lambda: CountWindow(0), "CountWindow: n"),
    (lambda: window_options("1 hour", "op", event_time="t"), r"ps\.Tumbling\('1 hour'\)"),
    (lambda: window_options(Tumbling, "op", event_time="t"), "called with its lengths"),
    (lambda: window_options(Tumbling(1), "op", event_time=None), "windows in event time"),
    (lambda: window_options(Global(), "op", event_time=None), "never ends"),
    (
        lambda: window_options(Tumbling(1), "op", event_time="t", emit="update", early=1),
        "leave one of them out",
    ),
    (
        lambda: window_options(CountWindow(1), "op", event_time="t", allowed_lateness=1),
        "do not depend on it",
    ),
]


@pytest.mark.parametrize(("make", "message"), BAD)
def test_bad_arguments(make: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        make()


@pytest.mark.parametrize(
    ("aggregates", "message"),
    [
        ({}, "at least one"),
        ({"n": 3}, "no aggregate of a window"),
        ({"n": ("x", "v")}, "no aggregate of a window"),
        ({"n": ps.sum("w")}, "no column 'w'"),
        ({"k": ps.count()}, "cannot be called 'k'"),
        ({"window_end": ps.count()}, "cannot be called"),
        ({"n": ps.sum("s")}, r"n=sum\(s\): .*numbers, not string: cast column 's' before key_by"),
        ({"n": ps.sum("valeu")}, r"n=sum\(valeu\): there is no column 'valeu'"),
    ],
)
def test_bad_aggregates(aggregates: Any, message: str) -> None:
    schema = pa.schema([*SCHEMA, ("s", pa.string())])
    options = window_options(Tumbling(1), "op", event_time="t")
    with pytest.raises((InvalidArgumentError, WrongTypeError), match=message):
        WindowSpec.of(options, ["k"], aggregates, schema, "op")
    assert issubclass(InvalidArgumentError, PystateError)
