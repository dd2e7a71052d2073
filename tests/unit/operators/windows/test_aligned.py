"""Tumbling, sliding and cumulating windows against a plain recomputation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pystate as ps
from pystate.operators.windows.assigners import Assigner, Cumulating, Session, Sliding, Tumbling
from tests.drawn import drawn
from tests.unit.operators.windows.windows_world import (
    Model,
    World,
    as_dict,
    cumulating,
    numbers,
    sliding,
    tumbling,
)

ALL: dict[str, Any] = {
    "n": ps.count(),
    "total": ps.sum("v"),
    "least": ps.min("v"),
    "most": ps.max("v"),
    "mean": ps.mean("v"),
}
SUMS: dict[str, Any] = {"total": ps.sum("v"), "n": ps.count()}
KINDS: list[tuple[Assigner, Any]] = [
    (Tumbling(10), tumbling(10)),
    (Tumbling(7, offset=-3), tumbling(7, -3)),
    (Sliding(12, 4), sliding(12, 4)),
    (Sliding(10, 4, offset=1), sliding(10, 4, 1)),
    (Sliding(6, 6), sliding(6, 6)),
    (Cumulating(5, 20), cumulating(5, 20)),
    (Cumulating(4, 12, offset=-5), cumulating(4, 12, -5)),
]

rows = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.one_of(st.none(), st.integers(-6, 40)),
        st.one_of(st.none(), st.integers(-9, 9)),
    ),
    max_size=12,
)
epochs = st.lists(
    st.tuples(rows, st.integers(0, 15), st.booleans(), st.sampled_from([None, None, 1, 3, 5])),
    max_size=8,
)

#: Windows of one time, of many, and now one now the other.
few = st.sampled_from([(0,), (1 << 20,), (0, 1 << 20), (9,)])
#: Timers registered at once, or kept back; windows put together time by time, or ahead.
ahead = st.sampled_from([(), ((0, 1 << 17),), ((0, 7), (2, 40)), ((3, 1), (0, 20)), ((9, 90),)])


@pytest.mark.parametrize("emit", ["final", "update"])
@pytest.mark.parametrize(("windows", "expected"), KINDS, ids=lambda k: repr(k)[:30])
@given(
    epochs=epochs,
    lateness=st.sampled_from([0, 0, 3, 25]),
    all_=st.booleans(),
    size=st.integers(1, 9),
    few=few,
    ahead=ahead,
)
@drawn(25)
def test_equals_a_recomputation(
    windows: Assigner,
    expected: Any,
    emit: str,
    epochs: Any,
    lateness: int,
    all_: bool,
    size: int,
    few: tuple[int, ...],
    ahead: tuple[tuple[int, int], ...],
) -> None:
    aggregates = ALL if all_ else SUMS
    world = World(
        windows,
        aggregates,
        allowed_lateness=lateness,
        emit=emit,
        batch_rows=size,
        few=few,
        ahead=ahead,
    )
    results = numbers if all_ else lambda found: (numbers(found)[1], len(found))
    model = Model(expected, results, lateness, emit)
    compare(world, model, epochs)


def compare(world: World, model: Model, epochs: Any) -> None:
    """Run both over epochs, with crashes and rescales, and to the end."""
    watermark = None
    for given_, later, crash, parallelism in epochs:
        moved = [(k, None if t is None else t + (watermark or 0) // 2, v) for k, t, v in given_]
        watermark = (-10 if watermark is None else watermark) + later
        if parallelism is not None:
            world.rescale(parallelism)
        emitted = world.epoch(moved, watermark, crash=crash)
        found = as_dict(emitted) if model.emit == "final" else {r[:3]: r[3:] for r in emitted}
        assert found == model.epoch(moved, watermark)
    assert sorted(world.late, key=repr) == sorted(model.late, key=repr)
    assert world.dropped == len(model.late)
    assert as_dict(world.epoch([], 10_000)) == model.epoch([], 10_000)
    assert world.kept() == 0


@pytest.mark.parametrize(("windows", "expected"), KINDS, ids=lambda k: repr(k)[:30])
@given(epochs=epochs, all_=st.booleans(), few=few, ahead=ahead)
@drawn(25)
def test_one_watermark_per_epoch(
    windows: Assigner,
    expected: Any,
    epochs: Any,
    all_: bool,
    few: tuple[int, ...],
    ahead: tuple[tuple[int, int], ...],
) -> None:
    world = World(windows, ALL if all_ else SUMS, few=few, ahead=ahead)
    world.one_watermark = True
    model = Model(expected, numbers if all_ else lambda found: (numbers(found)[1], len(found)))
    watermark = -10
    for given_, later, crash, _ in epochs:
        moved = [(k, None if t is None else t + watermark // 2, v) for k, t, v in given_]
        watermark += later
        emitted = as_dict(world.epoch(moved, watermark, crash=crash))
        over = model.epoch([], watermark)
        assert emitted == {**over, **model.epoch(moved, watermark)}
    assert as_dict(world.epoch([], 10_000)) == model.epoch([], 10_000)
    assert world.kept() == 0


@pytest.mark.parametrize("windows", [Tumbling(10), Sliding(10, 10), Session(6)])
def test_a_late_row_at_the_very_end_of_its_window(windows: Assigner) -> None:
    world = World(windows, SUMS, allowed_lateness=5)
    assert [row[3:] for row in world.epoch([(1, 3, 1)], 10)] == [(1, 1)]
    assert [row[3:] for row in world.epoch([(1, 3, 2)], 10)] == [(3, 2)]
    assert world.epoch([], 14) == []
    assert [row[3:] for row in world.epoch([(1, 3, 4)], 14)] == [(7, 3)]
    assert world.epoch([], 16) == []
    assert world.epoch([(1, 3, 8)], 20) == [] and world.dropped == 1
    assert world.kept() == 0
