"""Operators over tables on disk whose rows come and go at any moment, against recomputations.

These are the models of each operator, with few examples: those in memory draw more.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pystate.operators.joins.asof import AsofJoin, AsofJoinSpec
from pystate.operators.joins.interval import IntervalJoin, IntervalJoinSpec
from pystate.operators.windows.assigners import Cumulating, Session, Sliding, Tumbling
from tests.drawn import drawn
from tests.model.joined import Driver, inputs
from tests.model.test_joins import all_pairs, newest, run, shown, streams
from tests.range_backends import on_disk
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
