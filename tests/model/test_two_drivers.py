"""Two drivers of one checkpoint, every step of the one against every step of the other."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

import pystate.checkpoint.parts
import pystate.epochs.merges
from pystate.epochs.ownership import Ownership
from pystate.errors import FencedError
from tests.drawn import THOROUGH
from tests.drivers import READS, Driver, World, check, fake_merge, run_whole

BEFORE, AFTER = 3, 6
# Every pause of the one against every so many pauses of the other, at another one each time.
STRIDE = 3 if THOROUGH else 11


@pytest.fixture(autouse=True)
def merging() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pystate.epochs.merges, "merge_range", fake_merge)
        patch.setattr(pystate.checkpoint.parts, "_LEAST_FILES", 0)
        yield


@pytest.fixture(scope="module")
def before() -> World:
    """A checkpoint with a few epochs, that has seen merges."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pystate.epochs.merges, "merge_range", fake_merge)
        patch.setattr(pystate.checkpoint.parts, "_LEAST_FILES", 0)
        world = World()
        run_whole(world, BEFORE)
    return world


def pauses(steps: list[tuple[str, str]]) -> list[int]:
    """The steps that change something: being held up before another one is no different."""
    found = [n for n, (kind, _) in enumerate(steps) if kind not in READS]
    return [*found, len(steps)]


def settle(world: World) -> None:
    """Whoever comes last finds everything as it should be."""
    run_whole(world, AFTER)
    run_whole(world, AFTER + 1)
    check(world, AFTER + 1)


def test_one_driver_that_ends_at_any_step(before: World) -> None:
    for first in pauses(run_whole(before.copy(), AFTER).steps):
        world = before.copy()
        driver = Driver(world, AFTER)
        driver.run(first)
        driver.crash()
        settle(world)


def interleave(before: World, first: int, second: int, crash: bool) -> None:
    """One stops before a step, the other before one of its own; then the one, then the other."""
    world = before.copy()
    one, other = Driver(world, AFTER - 1), Driver(world, AFTER)
    one.run(first)
    other.run(second)
    if crash:
        other.crash()
    one.run()
    other.run()
    for driver in (one, other):
        assert driver.error is None or isinstance(driver.error, FencedError), driver.error
    settle(world)


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("crash", "checked"),
    [
        (True, True),
        (False, False),
        pytest.param(True, False, marks=pytest.mark.slow),
        pytest.param(False, True, marks=pytest.mark.slow),
    ],
)
def test_two_drivers(
    before: World, monkeypatch: pytest.MonkeyPatch, crash: bool, checked: bool
) -> None:
    """Also where the early check of the owner sees nothing: a listing may be out of date."""
    if not checked:
        monkeypatch.setattr(Ownership, "check", lambda self: None)
    count = 0
    for first in pauses(run_whole(before.copy(), AFTER - 1).steps):
        world = before.copy()
        held, other = Driver(world, AFTER - 1), Driver(world, AFTER)
        held.run(first)
        other.run()
        held.crash()
        for second in pauses(other.steps)[first % STRIDE :: STRIDE]:
            interleave(before, first, second, crash)
            count += 1
    assert count > 750 // STRIDE


@pytest.mark.slow
@pytest.mark.parametrize("crash", [False, True])
def test_two_drivers_at_every_step(before: World, crash: bool) -> None:
    for first in range(len(run_whole(before.copy(), AFTER - 1).steps) + 1):
        for second in range(len(run_whole(before.copy(), AFTER).steps) * 3 // 2):
            interleave(before, first, second, crash)


def drawn(before: World, seed: int) -> None:
    """Three drivers that take turns at random, of which some end on the way."""
    rng = random.Random(seed)
    world = before.copy()
    drivers = [Driver(world, rng.randrange(BEFORE + 1, AFTER + 1)) for _ in range(3)]
    while any(not driver.ended for driver in drivers):
        driver = rng.choice(drivers)
        if rng.random() < 0.02:
            driver.crash()
        driver.run(rng.choice((1, 2, 5, 20, 80)))
    for driver in drivers:
        assert driver.error is None or isinstance(driver.error, FencedError), driver.error
    settle(world)


@pytest.mark.drawn
@pytest.mark.parametrize("checked", [False, True])
def test_three_drivers(before: World, monkeypatch: pytest.MonkeyPatch, checked: bool) -> None:
    if not checked:
        monkeypatch.setattr(Ownership, "check", lambda self: None)
    for seed in range(100 if THOROUGH else 20):
        drawn(before, seed)


@pytest.mark.slow
def test_three_drivers_for_long(before: World) -> None:
    for seed in range(10_000, 30_000):
        drawn(before, seed)
