"""Joins by event time, against all pairs of all rows: late, killed, restored, rescaled."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pystate.operators.joins import interval, operator, stored
from pystate.operators.joins.asof import AsofJoin, AsofJoinSpec
from pystate.operators.joins.interval import IntervalJoin, IntervalJoinSpec
from pystate.operators.runtime.event_time import MAX_WATERMARK
from pystate.operators.runtime.late_rows import SideName
from tests.drawn import drawn
from tests.model.joined import Driver, Row, batch, inputs

NAMES: dict[SideName, list[str]] = {"left": ["k", "z"], "right": ["k2", "z2"]}

keys = st.sampled_from([None, 1, 1, 1, 2, 3])
others = st.sampled_from(["", "", "a", None])


@st.composite
def streams(draw: st.DrawFn) -> list[Any]:
    """Epochs of pieces of rows, a delay that some rows exceed, and what happens after each."""
    delay = draw(st.sampled_from([0, 500, 3000]))
    epochs = []
    count = 0
    for number in range(draw(st.integers(1, 5))):
        times = st.none() | st.integers(number * 2500 - 3500, number * 2500 + 3500)
        pieces = []
        for side in draw(st.lists(st.sampled_from(["left", "right"]), max_size=4)):
            found = draw(st.lists(st.tuples(keys, others, times), max_size=12))
            pieces.append((side, [(*row, count + i) for i, row in enumerate(found)]))
            count += len(found)
        act = draw(st.sampled_from(["", "", "fail", "restart", "rescale 1", "rescale 3"]))
        epochs.append((pieces, act))
    return [delay, epochs]


def run(
    driver: Driver, stream: list[Any], versions: bool = False
) -> tuple[dict[str, list[Row]], list[dict[str, Any]]]:
    """Run a stream and drain it; returns the rows that were not late, and the output.

    Nothing is left at the end, but with `versions` the newest row on the right of each key.
    """
    delay, epochs = stream
    kept: dict[str, list[Row]] = {"left": [], "right": []}
    out: list[dict[str, Any]] = []
    latest = None
    late = 0
    for pieces, act in epochs:
        for side, rows in pieces:
            for row in rows:
                if row[2] is not None and driver.bound is not None and row[2] < driver.bound:
                    late += 1
                else:
                    kept[side].append(row)
        times = [row[2] for _, rows in pieces for row in rows if row[2] is not None]
        latest = max([*times, *([] if latest is None else [latest])], default=None)
        watermark = None if latest is None else latest - delay
        batches = [(side, batch(side, rows)) for side, rows in pieces]
        out += driver.epoch(batches, watermark, NAMES, fails=act == "fail")
        if act == "restart":
            driver.restart(len(driver.backends))
        elif act.startswith("rescale"):
            driver.restart(int(act.split()[1]))
    assert driver.late == late
    usable = {row[:2] for row in kept["right"] if None not in row}
    left_keys = len(usable) if versions else 0
    out += driver.epoch([], MAX_WATERMARK, NAMES)
    assert driver.keys() == left_keys
    driver.close()
    return kept, out


def shown(rows: list[dict[str, Any]]) -> Counter[Any]:
    """Output rows as (key, other key, left id, right id); other columns must go with the ids."""
    found = []
    for row in rows:
        assert row["word"] == (None if row["lid"] is None else f"w{row['lid']}")
        found.append((row["k"], row["z"], row["lid"], row["rid"]))
    return Counter(found)


def all_pairs(kept: dict[str, list[Row]], lower: int, upper: int, how: str) -> Counter[Any]:
    """The join of all rows, by definition."""
    found = []
    matched: set[int] = set()
    for k, z, t, lid in kept["left"]:
        for k2, z2, t2, rid in kept["right"]:
            if None in (k, z, t, t2) or (k, z) != (k2, z2) or not lower <= t2 - t <= upper:
                continue
            found.append((k, z, lid, rid))
            matched |= {lid, rid}
    if how in ("left", "full"):
        found += [(k, z, i, None) for k, z, _, i in kept["left"] if i not in matched]
    if how in ("right", "full"):
        found += [(k, z, None, i) for k, z, _, i in kept["right"] if i not in matched]
    return Counter(found)


@pytest.fixture(params=["whole", "pieces"])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything at once, or a few rows at a time."""
    if request.param == "pieces":
        monkeypatch.setattr(operator, "_ROWS", 5)
        monkeypatch.setattr(interval, "_CANDIDATES", 3)
        monkeypatch.setattr(stored, "_TIMERS", 2)
        monkeypatch.setattr(operator, "OUTPUT_ROWS", 2)
        monkeypatch.setattr(stored, "_LOADED_ROWS", 2)
        monkeypatch.setattr(stored, "_FIRST_LISTS", 2)


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
def test_interval_join(how: Any) -> None:
    left, right, output = inputs()

    @drawn(60)
    @given(streams(), st.integers(-5000, 4000), st.sampled_from([0, 1, 1023, 1024, 2000, 6000]))
    def check(stream: list[Any], lower: int, width: int) -> None:
        spec = IntervalJoinSpec(left, right, lower, lower + width, how, output)
        driver = Driver(spec.states(), left.key, partial(IntervalJoin, spec))
        kept, out = run(driver, stream)
        assert shown(out) == all_pairs(kept, lower, lower + width, how)

    check()


def newest(kept: dict[str, list[Row]], tolerance: int | None, how: str) -> Counter[Any]:
    """The as-of join of all rows, by definition."""
    found = []
    for k, z, t, lid in kept["left"]:
        best: tuple[int, int] | None = None
        for k2, z2, t2, rid in kept["right"]:
            if None in (k, z, t, t2) or (k, z) != (k2, z2) or t2 > t:
                continue
            if (tolerance is None or t - t2 <= tolerance) and (best is None or t2 >= best[0]):
                best = t2, rid
        if best is not None or how == "left":
            found.append((k, z, lid, None if best is None else best[1]))
    return Counter(found)


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("how", ["inner", "left"])
def test_asof_join(how: Any) -> None:
    left, right, output = inputs()

    @drawn(60)
    @given(streams(), st.sampled_from([None, 0, 700, 5000]))
    def check(stream: list[Any], tolerance: int | None) -> None:
        spec = AsofJoinSpec(left, right, how, tolerance, output)
        driver = Driver(spec.states(), left.key, partial(AsofJoin, spec))
        kept, out = run(driver, stream, tolerance is None)
        assert shown(out) == newest(kept, tolerance, how)

    check()


def test_versions_that_are_ahead_are_not_rewritten_each_time() -> None:
    left, right, output = inputs()
    spec = AsofJoinSpec(left, right, "inner", None, output)
    driver = Driver(spec.states(), left.key, partial(AsofJoin, spec))
    # Each batch has a timer at its newest version; the second key's are all far ahead.
    pieces: list[Any] = [
        ("right", batch("right", [(1, "", t, t) for t in range(begin, begin + 20)]))
        for begin in range(1, 2001, 20)
    ]
    quiet: list[Row] = [(2, "", t, 9000 + t) for t in range(3000, 3500)]
    driver.epoch([*pieces, ("right", batch("right", quiet))], 0, NAMES)
    whole = len(driver.files[0])
    for watermark in range(20, 2001, 20):
        rows: list[Row] = [(1, "", watermark, watermark)]
        out = driver.epoch([("left", batch("left", rows))], watermark + 1, NAMES)
        assert [(row["lid"], row["rid"]) for row in out] == [(watermark, watermark)]
    assert sum(map(len, driver.files[1:])) < 5 * whole
    driver.epoch([], MAX_WATERMARK, NAMES)
    driver.close()


def test_rows_without_a_partner_do_not_wait_for_their_bucket() -> None:
    left, right, output = inputs()
    spec = IntervalJoinSpec(left, right, 0, 4000, "left", output)
    driver = Driver(spec.states(), left.key, partial(IntervalJoin, spec))
    rows: list[Row] = [(1, "", 100 * i, i) for i in range(40)]
    some: list[Row] = [(1, "", 100 * i + 4000, 100 + i) for i in (5, 20)]
    met = {i for i in range(40) if any(0 <= 100 * (j - i) + 4000 <= 4000 for j in (5, 20))}
    driver.epoch([("left", batch("left", rows)), ("right", batch("right", some))], 0, NAMES)
    found: dict[int, int] = {}
    for watermark in range(4000, 9000, 50):
        for row in driver.epoch([], watermark, NAMES, fails=watermark == 4500):
            assert row["rid"] is None and row["lid"] not in found
            found[row["lid"]] = watermark
        if watermark % 800 == 0:
            driver.restart(1 + watermark // 800 % 3)
    assert met and set(found) == set(range(40)) - met
    assert all(0 < at - (100 * i + 4000) <= 512 + 50 for i, at in found.items())
    driver.close()
