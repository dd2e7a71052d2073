"""Operators over tables on disk whose rows come and go at any moment, against recomputations.

These are the models of each operator, with few examples: those in memory draw more.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pystate.operators.joins.asof import AsofJoin, AsofJoinSpec
from pystate.operators.joins.interval import IntervalJoin, IntervalJoinSpec
from pystate.operators.windows.assigners import Cumulating, Session, Sliding, Tumbling
from tests.drawn import drawn
from tests.model.joined import Driver, batch, inputs
from tests.model.test_joins import all_pairs, newest, run, shown, streams
from tests.range_backends import DiskRanges, on_disk
from tests.unit.operators.windows.test_aligned import ALL, SUMS
from tests.unit.operators.windows.test_aligned import ahead as aheads
from tests.unit.operators.windows.test_aligned import compare as compare_aligned
from tests.unit.operators.windows.test_aligned import epochs as aligned_epochs
from tests.unit.operators.windows.test_aligned import few as fews
from tests.unit.operators.windows.test_sessions import GAPS, Sessions
from tests.unit.operators.windows.test_sessions import compare as compare_sessions
from tests.unit.operators.windows.test_sessions import epochs as session_epochs
from tests.unit.operators.windows.windows_world import (
    Model,
    RowsWorld,
    World,
    cumulating,
    numbers,
    sliding,
    tumbling,
)

ALIGNED: list[tuple[Any, Any]] = [
    (Tumbling(10), tumbling(10)),
    (Sliding(12, 4), sliding(12, 4)),
    (Cumulating(5, 20), cumulating(5, 20)),
]
seeds = st.integers(0, 1 << 30)


@pytest.mark.parametrize("emit", ["final", "update"])
@pytest.mark.parametrize(("windows", "of"), ALIGNED, ids=lambda k: repr(k)[:10])
def test_aligned_windows(windows: Any, of: Any, emit: str) -> None:
    steps = left = emptied = 0

    @drawn(60)
    @given(
        seeds, aligned_epochs, st.sampled_from([0, 0, 3, 25]), st.sampled_from("asr"), fews, aheads
    )
    def check(seed: int, epochs: Any, lateness: int, kind: str, few: Any, ahead: Any) -> None:
        nonlocal steps, left, emptied
        with on_disk(seed) as ranges:
            world = (RowsWorld if kind == "r" else World)(
                windows,
                SUMS if kind == "s" else ALL,
                allowed_lateness=lateness,
                emit=emit,
                batch_rows=5,
                few=few,
                ahead=ahead,
                backends=ranges,
            )
            results: Any = numbers
            if kind == "s":
                results = lambda found: (numbers(found)[1], len(found))  # noqa: E731
            compare_aligned(world, Model(of, results, lateness, emit), epochs)
            steps, left = steps + ranges.taken, left + ranges.left
            emptied += ranges.emptied

    check()
    assert min(steps, left, emptied) > 2


@pytest.mark.parametrize("emit", ["final", "update"])
def test_sessions(emit: str) -> None:
    @drawn(60)
    @given(seeds, session_epochs, st.sampled_from([0, 0, 3, 25]), st.booleans(), st.booleans())
    def check(seed: int, epochs: Any, lateness: int, column: bool, rows: bool) -> None:
        with on_disk(seed) as ranges:
            world = (RowsWorld if rows else World)(
                Session(column="gap") if column else Session(4),
                ALL,
                GAPS,
                allowed_lateness=lateness,
                emit=emit,
                batch_rows=5,
                backends=ranges,
            )
            compare_sessions(world, Sessions(lateness, emit), epochs, column, numbers)

    check()


NAMES: Any = {"left": ["k", "z"], "right": ["k2", "z2"]}


@pytest.mark.parametrize("how", ["inner", "full"])
def test_interval_joins(how: Any) -> None:
    left, right, output = inputs()

    @drawn(60)
    @given(seeds, streams(), st.integers(-5000, 4000), st.sampled_from([0, 1023, 2000, 6000]))
    def check(seed: int, stream: list[Any], lower: int, width: int) -> None:
        with on_disk(seed) as ranges:
            spec = IntervalJoinSpec(left, right, lower, lower + width, how, output)
            driver = Driver(spec.states(), left.key, partial(IntervalJoin, spec), ranges=ranges)
            kept, out = run(driver, stream)
            assert shown(out) == all_pairs(kept, lower, lower + width, how)

    check()


@pytest.mark.parametrize("how", ["inner", "left"])
def test_asof_joins(how: Any) -> None:
    left, right, output = inputs()

    @drawn(60)
    @given(seeds, streams(), st.sampled_from([None, 0, 700, 5000]))
    def check(seed: int, stream: list[Any], tolerance: int | None) -> None:
        with on_disk(seed) as ranges:
            spec = AsofJoinSpec(left, right, how, tolerance, output)
            driver = Driver(spec.states(), left.key, partial(AsofJoin, spec), ranges=ranges)
            kept, out = run(driver, stream, tolerance is None)
            assert shown(out) == newest(kept, tolerance, how)

    check()


def many_rows(epoch: int) -> list[tuple[int, int, int]]:
    """Keys, times and values: some keys are those of the epoch before."""
    return [(k, epoch * 1000 + k % 700, k % 11) for k in range(epoch * 2000, epoch * 2000 + 3000)]


@pytest.mark.parametrize("kind", [World, RowsWorld])
@pytest.mark.parametrize(
    ("windows", "of"),
    [
        (Tumbling(1000), tumbling(1000)),
        (Sliding(2000, 1000), sliding(2000, 1000)),
        (Cumulating(1000, 2000), cumulating(1000, 2000)),
        (Session(900), None),
    ],
    ids=lambda k: repr(k)[:10],
)
def test_windows_of_several_times_the_memory(
    windows: Any, of: Any, kind: type[World], tmp_path: Path
) -> None:
    ranges = DiskRanges(tmp_path, shaken=False)
    world = kind(windows, ALL, backends=ranges, batch_rows=1000)
    found: Counter[Any] = Counter()
    expected: dict[Any, list[Any]] = defaultdict(list)
    for epoch in range(4):
        rows = many_rows(epoch)
        for row in rows:
            spans = [(row[1], row[1] + 900)] if of is None else of(row[1])
            for span in spans:
                expected[(row[0], *span)].append(row)
        found.update(world.epoch(rows, epoch * 1000 - 1100))
    found.update(world.epoch([], 10**6))
    if of is not None:
        assert found == Counter((*name, *numbers(rows)) for name, rows in expected.items())
    assert sum(row[3] for row in found) == sum(map(len, expected.values()))
    assert world.kept() == 0 and ranges.taken > 2 and ranges.left > 1000
    ranges.close()


def many_of_both(epoch: int) -> list[tuple[Any, Any]]:
    """Left rows, and right ones of the keys of the epoch before, in pieces."""
    keys = range(epoch * 4000, epoch * 4000 + 4000)
    left: list[Any] = [(k, "z" * 40, epoch * 3000 + k % 900, k) for k in keys]
    right: list[Any] = [(k - 4000, "z" * 40, epoch * 3000 + k % 900, k) for k in keys]
    sides: list[tuple[Any, list[Any]]] = [("left", left), ("right", right)]
    return [(s, rows[at : at + 1500]) for s, rows in sides for at in range(0, 4000, 1500)]


@pytest.mark.parametrize("how", ["inner", "full"])
def test_joins_of_several_times_the_memory(how: Any, tmp_path: Path) -> None:
    left, right, output = inputs()
    ranges = DiskRanges(tmp_path, shaken=False, limit_bytes=2 << 20)
    spec = IntervalJoinSpec(left, right, 2500, 3500, how, output)
    driver = Driver(spec.states(), left.key, partial(IntervalJoin, spec), ranges=ranges)
    found: Counter[Any] = Counter()
    for epoch in range(4):
        pieces = [(side, batch(side, rows)) for side, rows in many_of_both(epoch)]
        found += shown(driver.epoch(pieces, epoch * 3000 - 1, NAMES))
    found += shown(driver.epoch([], 1 << 40, NAMES))
    pairs = {(k, "z" * 40, k, k + 4000) for k in range(12_000)}
    if how == "full":
        pairs |= {(k, "z" * 40, k, None) for k in range(12_000, 16_000)}
        pairs |= {(k, "z" * 40, None, k + 4000) for k in range(-4000, 0)}
    assert found == Counter(pairs)
    assert driver.keys() == 0 and ranges.taken > 2 and ranges.left > 5000
    ranges.close()
