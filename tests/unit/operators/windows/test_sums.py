"""Rows with which a sum would leave its range: taken out as invalid ones, and as if never there."""

from __future__ import annotations

import decimal
import itertools
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pystate as ps
from pystate.errors import InvalidRowError
from pystate.testing import WindowHarness
from tests.drawn import drawn
from tests.unit.operators.windows.test_partial_slices import SCHEMA, SwitchingWorld

MOST = (1 << 63) - 1
LEAST = -(1 << 63)
COLUMNS = "k string, at long, v long"
Row = tuple[str, int, int | None]


def harness(windows: Any, **more: Any) -> WindowHarness:
    aggregates = {"n": ps.count(), "total": ps.sum("v"), "most": ps.max("v"), "mean": ps.mean("v")}
    options: dict[str, Any] = {"columns": COLUMNS, "event_time": "at", **more}
    return WindowHarness(windows, aggregates, "k", **options)


def folded(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """The rows of one sum that are taken, and the others."""
    total, taken, others = 0, [], []
    for row in rows:
        after = total + (row[2] or 0)
        (taken if LEAST <= after <= MOST else others).append(row)
        total = after if LEAST <= after <= MOST else total
    return taken, others


def result(rows: list[Row]) -> tuple[Any, ...]:
    values = [row[2] for row in rows if row[2] is not None]
    if not values:
        return len(rows), None, None, None
    return len(rows), sum(values), max(values), sum(values) / len(values)


VALUES = st.sampled_from([MOST, LEAST, 1 << 62, -(1 << 62), 1, -1, None])
ROWS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 19), VALUES), max_size=9)


@drawn(60)
@given(st.lists(ROWS, max_size=3), st.booleans())
def test_rows_that_are_too_much_for_a_window(batches: list[list[Row]], aside: bool) -> None:
    with harness(ps.Tumbling(10), **({"invalid": "odd"} if aside else {})) as windows:
        for rows in batches:
            windows.process(rows)
        got = {tuple(row)[:2]: tuple(row)[3:] for row in windows.drain()}
        expected, others = {}, 0
        for name in [(key, start) for key in "ab" for start in (0, 10)]:
            mine = [row for rows in batches for row in rows if (row[0], row[1] // 10 * 10) == name]
            taken, gone = folded(mine)
            others += len(gone)
            if taken:
                expected[name] = result(taken)
        assert got == expected
        assert windows.invalid_rows == others
        assert len(windows.side_output("odd") if aside else ()) == (others if aside else 0)


@drawn(40)
@given(st.lists(ROWS, max_size=3))
def test_rows_that_are_too_much_for_a_key(batches: list[list[Row]]) -> None:
    with harness(ps.Global(), emit="update") as windows:
        found = [tuple(row) for rows in batches for row in windows.process(rows)]
        got = {row[0]: row[3:] for row in found}
        parts = {
            key: folded([row for rows in batches for row in rows if row[0] == key]) for key in "ab"
        }
        assert got == {key: result(taken) for key, (taken, _) in parts.items() if taken}
        assert windows.invalid_rows == sum(len(others) for _, others in parts.values())


@drawn(40)
@given(st.lists(ROWS, max_size=3))
def test_rows_that_are_too_much_take_no_place_in_a_window_of_rows(batches: list[list[Row]]) -> None:
    with harness(ps.CountWindow(3)) as windows:
        got = [
            tuple(row)[0:1] + tuple(row)[3:] for rows in batches for row in windows.process(rows)
        ]
        expected, gone = [], 0
        for key in "ab":
            open_: list[Row] = []
            for row in [row for rows in batches for row in rows if row[0] == key]:
                if len(folded([*open_, row])[1]):
                    gone += 1
                    continue
                open_.append(row)
                if len(open_) == 3:
                    expected.append((key, *result(open_)))
                    open_ = []
        assert sorted(expected, key=str) == sorted(got, key=str)
        assert windows.invalid_rows == gone


def sessions(rows: list[Row], gap: int) -> tuple[dict[Any, list[Row]], int]:
    """Sessions that rows make one after the other, and how many rows are too much."""
    found: list[list[Row]] = []
    gone = 0
    for row in rows:
        near = [
            each
            for each in found
            if min(r[1] for r in each) - gap <= row[1] <= max(r[1] for r in each) + gap
        ]
        joined = [each for mine in near for each in mine]
        in_order = sorted(near, key=lambda each: min(r[1] for r in each))
        parts = [sum(r[2] or 0 for r in each) for each in [*in_order, [row]]]
        if all(LEAST <= total <= MOST for total in itertools.accumulate(parts)):
            found = [each for each in found if each not in near] + [[*joined, row]]
        else:
            gone += 1
    return {min(r[1] for r in each): each for each in found}, gone


@drawn(60)
@given(
    st.lists(st.tuples(st.just("a"), st.integers(0, 19), VALUES), max_size=9),
    st.lists(st.booleans(), min_size=9, max_size=9),
)
def test_rows_that_are_too_much_neither_prolong_nor_join_sessions(
    rows: list[Row], cuts: list[bool]
) -> None:
    with harness(ps.Session(3), allowed_delay=100) as windows:
        some: list[Row] = []
        for row, cut in zip(rows, cuts, strict=False):
            some.append(row)
            if cut:
                windows.process(some)
                some = []
        windows.process(some)
        expected, gone = sessions(rows, 3)
        got = {row[1]: tuple(row)[2:] for row in windows.drain()}
        assert got == {
            start: (max(r[1] for r in each) + 3, *result(each)) for start, each in expected.items()
        }
        assert windows.invalid_rows == gone


def test_two_sessions_that_are_too_much_together_stay_two() -> None:
    with harness(ps.Session(10), invalid="odd", allowed_delay=100) as windows:
        windows.process([("a", 0, MOST), ("a", 20, 5), ("b", 0, 1), ("b", 20, 2)])
        windows.process([("a", 10, 1), ("b", 10, 1), ("a", 25, 1)])
        assert windows.side_output("odd") == [("a", 10, 1)]
        got = sorted(tuple(row)[:5] for row in windows.drain())
        assert got == [("a", 0, 10, 1, MOST), ("a", 20, 35, 2, 6), ("b", 0, 30, 3, 4)]
        # In one batch as well.
    with harness(ps.Session(10), allowed_delay=100) as windows:
        windows.process([("a", 0, MOST), ("a", 20, 5), ("a", 10, 1), ("a", 25, 1)])
        got = sorted(tuple(row)[:5] for row in windows.drain())
        assert got == [("a", 0, 10, 1, MOST), ("a", 20, 35, 2, 6)]
        assert windows.invalid_rows == 1


def test_a_row_that_is_too_much_means_nothing_for_the_watermark() -> None:
    for windows in (ps.Tumbling(1 << 40), ps.Sliding(1 << 40, 1 << 39), ps.Session(1 << 40)):
        with harness(windows, allowed_delay=0) as made:
            made.process([("a", 1, MOST), ("a", 1_000, 1), ("a", 2, -1)])
            assert (made.watermark, made.invalid_rows) == (2, 1)


def test_a_gap_that_is_none_means_nothing_for_the_watermark() -> None:
    for gap in (0, MOST):
        with WindowHarness(
            ps.Session(column="gap"), {"n": ps.count()}, "k",
            columns="k string, at long, gap long", event_time="at", allowed_delay=0,
        ) as windows:  # fmt: skip
            windows.process([("a", 5, 3), ("b", 1 << 61, gap)])
            assert (windows.watermark, windows.invalid_rows) == (5, 1)
            windows.process([("c", 7, 3), ("b", 1, gap)])
            assert (windows.late_rows, windows.invalid_rows) == (0, 2)
            assert len(windows.drain()) == 2


@pytest.mark.parametrize("windows", [ps.Sliding(12, 4), ps.Cumulating(4, 12)], ids=repr)
@pytest.mark.parametrize("emit", ["final", "update"])
def test_slices_that_are_too_much_together(windows: Any, emit: Any) -> None:
    """Each holds its rows; a window does without the later one, and the next goes on."""
    rows: list[Row] = [("a", 0, MOST), ("a", 5, 1), ("a", 5, 1), ("b", 0, 1), ("b", 5, 2)]
    with harness(windows, emit=emit, allowed_delay=0) as made:
        found = [*made.process(rows), *made.process([("a", 13, 3), ("c", 40, 0)])]
        found += [*made.process([]), *made.drain()]
        got = {tuple(row)[:3]: tuple(row)[3:5] for row in found}
        assert got["a", 0, 12] == (1, MOST)
        assert got["b", 0, 12] == (2, 3)
        following = ("a", 12, 16) if isinstance(windows, ps.Cumulating) else ("a", 4, 16)
        assert got[following] == ((1, 3) if isinstance(windows, ps.Cumulating) else (3, 5))
        assert made.invalid_rows % 2 == 0 and made.invalid_rows >= 2
    with (
        harness(windows, emit=emit, allowed_delay=0, on_invalid="fail") as made,
        pytest.raises(InvalidRowError, match="key 'a' has a window that would take 'total' beyond"),
    ):
        made.process(rows)
        made.process([("c", 40, 0)])
        made.process([])


def test_a_job_may_fail_at_such_a_row() -> None:
    with harness(ps.Tumbling(10), on_invalid="fail") as windows:
        windows.process([("a", 1, MOST)])
        with pytest.raises(
            InvalidRowError,
            match=r"a row of key 'a' would take 'total' beyond the range of long: have such rows",
        ):
            windows.process([("b", 1, 1), ("a", 1, 1)])
        windows.process([("a", 1, -1)])
        assert [row.total for row in windows.drain()] == [MOST - 1]


@pytest.fixture
def exact() -> Iterator[None]:
    with decimal.localcontext(decimal.Context(prec=60)):
        yield


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(
    "windows", [ps.Tumbling(10), ps.Session(10), ps.CountWindow(3), ps.Sliding(20, 10)], ids=repr
)
@pytest.mark.parametrize("aggregate", ["sum", "mean"])
def test_long_decimals(windows: Any, aggregate: str) -> None:
    most = Decimal(10) ** 38 - 1
    one = {"sum": ps.sum("v"), "mean": ps.mean("v")}[aggregate]
    columns = pa.schema([("k", pa.string()), ("at", pa.int64()), ("v", pa.decimal128(38, 0))])
    with WindowHarness(
        windows, {"x": one, "n": ps.count()}, "k", columns=columns, event_time="at",
        allowed_delay=100, invalid="odd",
    ) as made:  # fmt: skip
        found = made.process([("a", 1, most), ("b", 1, most), ("a", 2, most), ("b", 2, Decimal(1))])
        found += made.process([("a", 3, -most), ("a", 4, Decimal(2)), ("b", 3, None)])
        found += made.drain()
        odd = [row[:2] for row in made.side_output("odd")]
        # The sum of a mean has 128 bits, which are 1.7 times as much.
        assert odd == ([("a", 2), ("b", 2)] if aggregate == "sum" else [("a", 2)])
        expected = {"a": 3, "b": 2 if aggregate == "sum" else 3}
        if isinstance(windows, ps.CountWindow):
            expected = {key: n for key, n in expected.items() if n == 3}
        assert {row.k: row.n for row in found} == expected


def test_what_was_combined_is_taken_out_as_a_whole() -> None:
    """It is not known any more which of its rows is too much."""
    for windows in (ps.Tumbling(10), ps.Session(50)):
        world = SwitchingWorld(lambda: True, windows, {"total": ps.sum("v")}, SCHEMA)
        world.epoch([(1.0, 1, 5, None, None, None)], 0)
        rows = [(1.0, 1, v, None, None, None) for v in (MOST, MOST, 7)]
        world.epoch([*rows, (2.0, 1, 4, None, None, None)], 0)
        assert sum(each.invalid_rows for each in world.tasks) == 3
        # Alone they would fit, and what is there already does not.
        world.epoch([(1.0, 1, MOST, None, None, None), (2.0, 1, -1, None, None, None)], 0)
        assert sum(each.invalid_rows for each in world.tasks) == 4
        found = world.epoch([], 1_000)
        assert sorted(row[3] for row in found) == [3, 5]
