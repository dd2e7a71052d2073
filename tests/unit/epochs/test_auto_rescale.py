"""The policy that chooses a job's parallelism, on simulated jobs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pystate as ps
from pystate.epochs.auto_rescale import Rescaler
from pystate.errors import InvalidArgumentError, PystateError


def simulate(
    policy: ps.AutoRescale,
    epochs: int,
    cores: int,
    rows: Callable[[int], int] = lambda _: 1000,
    behind: Callable[[int], int | None] = lambda _: None,
    ms_per_row: float = 1.0,
    fixed_ms: float = 20.0,
) -> list[int]:
    """The parallelism of each epoch, on a machine with some cores."""
    rescaler, at, found = Rescaler(policy), policy.min, []
    for epoch in range(epochs):
        found.append(at)
        came = rows(epoch)
        moved = len(found) < 2 or found[-2] != at
        took_ms = fixed_ms + came * ms_per_row / min(at, cores) + 5000 * moved

        def waiting(epoch: int = epoch) -> int | None:
            return behind(epoch)

        at = rescaler.observe(at, took_ms, came, waiting)
        assert policy.min <= at <= policy.max
    return found


def test_it_grows_until_epochs_are_fast_enough() -> None:
    policy = ps.AutoRescale(1, 64, target="100 milliseconds", cooldown=3)
    found = simulate(policy, 40, cores=64)
    assert found[0] == 1 and found == sorted(found)
    assert found[-1] == 12  # 103 ms; with 8 it is 145, above 120
    assert all(later <= 2 * before for before, later in itertools.pairwise(found))
    assert found.count(2) == found.count(4) == 4  # the one that moves, and three that count


def test_growth_that_brings_nothing_is_taken_back() -> None:
    policy = ps.AutoRescale(1, 64, target="100 milliseconds", cooldown=3)
    found = simulate(policy, 200, cores=4)
    assert found[-1] == 4 and max(found) == 8
    assert found.count(8) <= 4 * 4  # tried again now and then, as machines change


def test_it_shrinks_when_little_comes() -> None:
    policy = ps.AutoRescale(2, 64, target="100 milliseconds", cooldown=3)
    found = simulate(policy, 80, cores=64, rows=lambda epoch: 1000 if epoch < 40 else 50)
    assert found[39] == 12 and found[-1] == 2


def test_a_load_around_the_target_changes_nothing() -> None:
    policy = ps.AutoRescale(1, 64, target="100 milliseconds", cooldown=3)
    found = simulate(policy, 100, cores=64, rows=lambda epoch: 330 + 40 * (epoch % 2))
    assert len(set(found[20:])) == 1


def test_epochs_without_rows_do_not_count() -> None:
    policy = ps.AutoRescale(1, 64, target="100 milliseconds", cooldown=3)
    found = simulate(policy, 80, cores=64, rows=lambda epoch: 1000 if epoch < 40 else 0)
    assert found[40:] == [12] * 40


def test_a_backlog_makes_it_grow_although_epochs_are_fast() -> None:
    policy = ps.AutoRescale(1, 4, target="1 minute", backlog=5000, cooldown=2)
    found = simulate(policy, 20, cores=4, behind=lambda epoch: 9000)
    assert found[-1] == 4
    shrinking = simulate(policy, 60, cores=4, behind=lambda epoch: 9000 if epoch < 20 else 10)
    assert shrinking[-1] == 4  # not as long as there is any
    idle = simulate(policy, 60, cores=4, behind=lambda epoch: 9000 if epoch < 20 else 0)
    assert idle[-1] == 1
    assert simulate(policy, 20, cores=4)[-1] == 1  # the source does not say


@given(
    st.integers(1, 9),
    st.integers(0, 9),
    st.integers(1, 4),
    st.integers(1, 8),
    st.lists(st.integers(0, 5000), min_size=40, max_size=40),
)
def test_it_stays_within_its_bounds_and_waits(
    least: int, more: int, cooldown: int, cores: int, rows: list[int]
) -> None:
    policy = ps.AutoRescale(least, least + more, target="50 milliseconds", cooldown=cooldown)
    found = simulate(policy, len(rows), cores, rows=rows.__getitem__)
    changes = [i for i in range(1, len(found)) if found[i] != found[i - 1]]
    for before, later in zip([0, *changes], changes, strict=False):
        counted = [r for r in rows[before:later] if r]
        assert len(counted) >= cooldown + 1  # the first moves state


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((0, 4), {}, "min"),
        ((1, "4"), {}, "max"),
        ((5, 4), {}, "max=4 is less than min=5"),
        ((1, 40000), {}, "max"),
        ((1, 4), {"target": "10 bananas"}, "target"),
        ((1, 4), {"target": 0}, "target"),
        ((1, 4), {"backlog": 0}, "backlog"),
        ((1, 4), {"cooldown": 0}, "cooldown"),
        ((1, 4), {"hysteresis": 1}, "hysteresis=1 is not at least 0 and less than 1"),
        ((1, 4), {"hysteresis": "much"}, "hysteresis is a number"),
        ((1, 4), {"hysteresis": True}, "hysteresis is a number"),
    ],
)
def test_what_it_takes(arguments: Any, options: Any, words: str) -> None:
    with pytest.raises(PystateError, match=f"AutoRescale: {words}") as info:
        ps.AutoRescale(*arguments, **options)
    assert isinstance(info.value, (InvalidArgumentError, TypeError))
