"""Sliding windows put together ahead, of many keys and times at once."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

import pystate as ps
from pystate.operators.windows.assigners import Sliding
from pystate.operators.windows.running_sums import RunningSums
from tests.unit.operators.windows.windows_world import Model, World, as_dict, sliding

AGGREGATES: dict[str, Any] = {"total": ps.sum("v"), "n": ps.count(), "some": ps.count("v")}
LARGE = (1 << 62) - 1


def results(rows: list[Any]) -> tuple[Any, ...]:
    values = [row[2] for row in rows if row[2] is not None]
    return sum(values) if values else None, len(rows), len(values)


def check(world: World, model: Model, *epochs: tuple[list[Any], int]) -> None:
    """Run both over epochs, after which nothing is kept."""
    for rows, watermark in epochs:
        assert as_dict(world.epoch(rows, watermark)) == model.epoch(rows, watermark)
    assert world.kept() == 0


@pytest.mark.parametrize("key", [pa.int64(), pa.string()])
@pytest.mark.parametrize(
    ("windows", "lateness"),
    [
        ((60, 5), 0),
        ((60, 25), 17),
        ((90, 30), 17),
        pytest.param((60, 5), 17, marks=pytest.mark.slow),
        pytest.param((60, 25), 0, marks=pytest.mark.slow),
        pytest.param((90, 30), 0, marks=pytest.mark.slow),
    ],
)
def test_many_keys_and_times(windows: tuple[int, int], key: pa.DataType, lateness: int) -> None:
    schema = pa.schema([("k", key), ("t", pa.int64()), ("v", pa.int64())])
    options: dict[str, Any] = {"batch_rows": 700, "ahead": [(0, 1 << 17), (0, 3_000)], "few": [0]}
    world = World(Sliding(*windows), AGGREGATES, schema, allowed_lateness=lateness, **options)
    model = Model(sliding(*windows), results, lateness)
    random = np.random.default_rng(7)
    ahead = mock.patch.object(RunningSums, "ahead", autospec=True, side_effect=RunningSums.ahead)
    with ahead as called:
        for epoch in range(8):
            # Keys come and go, and some rows are late.
            numbers = (60 * epoch + random.integers(0, 400, 3_000)) % 500
            times = 40 * epoch + random.integers(-25, 40, 3_000)
            keys = numbers.tolist() if key == pa.int64() else [f"key {k}" for k in numbers]
            values = [None if v > 80 else v for v in random.integers(-90, 90, 3_000).tolist()]
            rows = list(zip(keys, times.tolist(), values, strict=True))
            watermark = 40 * epoch + 20
            emitted = world.epoch(rows, watermark, crash=epoch == 3)
            assert as_dict(emitted) == model.epoch(rows, watermark)
            ends = [row[2] for row in emitted]
            assert lateness or epoch > 4 or ends == sorted(ends)
            if epoch == 4:
                world.rescale(3)
        assert as_dict(world.epoch([], 10_000)) == model.epoch([], 10_000)
    assert called.call_count >= 8
    assert world.kept() == 0


@pytest.mark.parametrize("ahead", [True, False])
def test_sums_near_the_end_of_their_range(ahead: bool) -> None:
    world = World(Sliding(12, 4), AGGREGATES, ahead=[(0, 100 if ahead else 1)], few=[0])
    model = Model(sliding(12, 4), results)
    check(
        world,
        model,
        ([(1, 0, LARGE), (1, 5, LARGE), (2, 5, -LARGE)], 6),
        ([(1, 12, 5), (2, 9, -LARGE), (2, 9, -2)], 21),
        ([(1, 21, 3)], 200),
    )


def of_slices(rows: list[Any]) -> tuple[Any, ...]:
    """The results of a window that does without the slices with which its sum would overflow."""
    slices: dict[int, list[Any]] = {}
    for row in sorted(rows, key=lambda row: row[1]):
        slices.setdefault(row[1] // 4, []).append(row)
    kept: list[Any] = []
    for each in slices.values():
        total = sum(row[2] for row in [*kept, *each])
        kept += each if -(1 << 63) <= total < 1 << 63 else []
    return results(kept)


@pytest.mark.parametrize("most", [100, 1])
def test_a_sum_beyond_its_range_does_without_slices(most: int) -> None:
    world = World(Sliding(12, 4), AGGREGATES, ahead=[(0, most)], few=[0])
    model = Model(sliding(12, 4), of_slices)
    check(
        world,
        model,
        ([(1, 0, LARGE), (1, 5, LARGE), (1, 9, 2), (2, 5, 1), (2, 6, -1)], 5),
        ([(1, 13, -LARGE), (1, 15, -LARGE), (2, 17, LARGE), (1, 17, 1)], 14),
        ([(1, 21, LARGE), (1, 25, LARGE), (1, 30, LARGE), (3, 20, 1)], 22),
        ([(1, 60, 1), (2, 60, 1)], 30),
        ([], 300),
    )


def test_windows_of_small_steps_are_not_put_together_one_by_one() -> None:
    """An epoch whose watermark goes on by eight times sums up each key once."""
    world = World(Sliding(60, 1), AGGREGATES)
    ahead = mock.patch.object(RunningSums, "ahead", autospec=True, side_effect=RunningSums.ahead)
    with ahead as called:
        for epoch in range(4):
            rows = [(k, 8 * epoch + t, 1) for k in range(500) for t in range(8)]
            emitted = world.epoch(rows, 8 * epoch + 8)
            assert len(emitted) == 4_000
            assert {row[4] for row in emitted if row[2] == 8 * epoch + 8} == {8 * epoch + 8}
            assert called.call_count == epoch + 1


@pytest.mark.parametrize("most", [5, 1 << 17])
def test_keys_that_pause(most: int) -> None:
    """Timers that are kept back are not forgotten where a key's windows are empty in between."""
    world = World(Sliding(12, 4), AGGREGATES, ahead=[(0, most)], few=[0])
    model = Model(sliding(12, 4), results)
    rows = [(k, t, 1) for k in range(2) for t in (0, 60 + k, 61, 200, 400 + 9 * k)]
    check(world, model, (rows, 350), ([(0, 390, 1)], 700))


def test_ahead_of_windows_that_were_put_together_from_their_slices() -> None:
    """First the windows of few keys fire, of which nothing is kept, then those of many."""
    world = World(Sliding(12, 4), AGGREGATES, ahead=[(99, 100)], few=[9])
    model = Model(sliding(12, 4), results)
    rows = [(1, 0, 1), *((k, 8, 10) for k in range(9)), (1, 13, 100)]
    ahead = mock.patch.object(RunningSums, "ahead", autospec=True, side_effect=RunningSums.ahead)
    with ahead as called:
        check(world, model, (rows, 100))
    assert called.called
