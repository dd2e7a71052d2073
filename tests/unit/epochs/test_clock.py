"""Clocks that jump, and processing time that does not follow them everywhere."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Iterable, Iterator

import pytest

from pystate.checkpoint.manifest import ClockReading, Manifest
from pystate.epochs.clock import advance
from tests.conftest import FakeWork

SECOND, HOUR, DAY = 1000, 3_600_000, 86_400_000
YEARS = 3650 * DAY
START = 1_700_000_000_000


def base_of(time_ms: int, clock: ClockReading | None) -> Manifest:
    return Manifest(1, 0, "e", "r", 1, "h", 128, time_ms, 0, "", (), read_clock=clock)


def follow(
    readings: Iterable[int], *, max_step_ms: int = HOUR, allow_back: bool = False
) -> Iterator[int]:
    """The processing times of epochs for which the clock said this."""
    base = None
    for reading in readings:
        time_ms, clock = advance(base, reading, max_step_ms, allow_back=allow_back)
        base = base_of(time_ms, clock)
        yield time_ms


def test_an_ordinary_clock_is_followed_to_the_millisecond() -> None:
    rng = random.Random(1)
    steps = [rng.randrange(HOUR) for _ in range(500)]
    readings = list(itertools.accumulate(steps, initial=START))
    assert list(follow(readings)) == readings


@pytest.mark.parametrize("epochs", [1, 2, 50, 3599])
@pytest.mark.parametrize("ahead", [2 * HOUR, YEARS])
def test_jump_for_a_while(epochs: int, ahead: int) -> None:
    """Processing time is ahead by the bound and what passed; soon the clock has caught up."""
    true = [START + n * SECOND for n in range(20_000)]
    readings = [t + ahead if 100 <= n < 100 + epochs else t for n, t in enumerate(true)]
    times = list(follow(readings))
    assert times[:100] == true[:100] and times == sorted(times)
    assert max(t - r for t, r in zip(times, true, strict=True)) <= HOUR + SECOND
    assert times[12_000:] == true[12_000:]


def test_clock_that_goes_on_is_believed() -> None:
    """As after a job that stood still for longer than it ever did."""
    readings = [START, *(START + 30 * DAY + n * 60 * SECOND for n in range(100))]
    times = list(follow(readings))
    assert times[1] == START + HOUR and times == sorted(times)
    assert [b - a for a, b in itertools.pairwise(times[1:61])] == [60 * SECOND] * 59
    assert times[61:] == readings[61:]


@pytest.mark.parametrize("pause", [12 * HOUR, DAY, 7 * DAY])
def test_regular_pauses_are_no_jumps(pause: int) -> None:
    """Runs by cron, and streams that are idle at night."""
    runs = [START + n * pause + n % 5 * SECOND for n in range(20)]
    assert list(follow(runs))[2:] == runs[2:]
    busy = [START + n * pause + s * SECOND * 60 for n in range(10) for s in range(120)]
    assert list(follow(busy))[300:] == busy[300:]


def test_jump_between_runs_far_apart() -> None:
    runs = [START + n * DAY for n in range(20)]
    readings = [*runs[:10], runs[10] + YEARS, *runs[11:]]
    times = list(follow(readings))
    assert times[10] == runs[9] + 2 * DAY
    assert times[11:] == [runs[9] + 2 * DAY, *runs[12:]]


def test_clock_that_falls_back() -> None:
    readings = [START, START + 10, START - YEARS, START + 9, START + 30]
    assert list(follow(readings)) == [START, START + 10, START + 10, START + 10, START + 30]


def test_way_back_after_a_clock_that_was_wrong_for_long() -> None:
    wrong = [START + YEARS + n * SECOND for n in range(5000)]
    right = [START + n * SECOND for n in range(5000, 6000)]
    times = list(follow([START, *wrong, *right]))
    assert times[5000] == wrong[-1] and times[-1] == wrong[-1]
    base = base_of(times[-1], ClockReading(right[-1]))
    assert advance(base, right[-1], HOUR, allow_back=True)[0] == right[-1]
    # What clocks differ by is no reason.
    near = base_of(START, ClockReading(START))
    assert advance(near, START - HOUR, HOUR, allow_back=True)[0] == START


def test_what_an_older_version_left_is_where_it_goes_on() -> None:
    assert advance(base_of(START, None), START + 5, HOUR, allow_back=False)[0] == START + 5
    far = advance(base_of(START, None), START + YEARS, HOUR, allow_back=False)
    assert far == (START + HOUR, ClockReading(START + YEARS, 0, START + YEARS))


def test_times_at_the_end_of_64_bits() -> None:
    least, most = -(1 << 63), (1 << 63) - 1
    for readings in itertools.product((least, 0, most), repeat=4):
        for allow_back in (False, True):
            for time_ms in follow(readings, allow_back=allow_back):
                assert least <= time_ms <= most


def test_a_checkpoint_remembers_the_doubt(work: FakeWork, caplog: pytest.LogCaptureFixture) -> None:
    """Each epoch by another driver; and one that is computed again has the same time."""
    true = [START + n * SECOND for n in range(8)]
    readings = [t + YEARS if n in (3, 4) else t for n, t in enumerate(true)]
    times = []
    with caplog.at_level(logging.WARNING, "pystate.epochs.clock"):
        for number, reading in enumerate(readings):
            for _ in range(2):
                with work.coordinator() as coordinator:
                    epoch = coordinator.open_epoch(processing_time_ms=reading)
                    seen = epoch.processing_time_ms  # type: ignore[union-attr]
                    epoch.abort()  # type: ignore[union-attr]
            with work.coordinator() as coordinator:
                result = coordinator.run(work.evaluate(), processing_time_ms=reading)
            assert result.manifest is not None and result.epoch == number + 1
            assert result.manifest.processing_time_ms == seen
            times.append(seen)
    ahead = true[2] + HOUR
    assert times == [*true[:3], ahead, *[ahead + SECOND] * 4]
    told = {record.getMessage().partition(" ")[0] for record in caplog.records}
    assert told == {"the", "processing"}
    assert "allow_time_back=True" in caplog.text and "max_clock_step" in caplog.text
    with work.coordinator(allow_time_back=True, max_clock_step_ms=1000) as coordinator:
        result = coordinator.run(work.evaluate(), processing_time_ms=true[-1])
        assert result.manifest is not None and result.manifest.processing_time_ms == true[-1]


def test_one_driver_says_it_once(work: FakeWork, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with work.coordinator() as coordinator:
        for n in range(10):
            late = YEARS if 3 <= n < 6 else 0
            coordinator.run(work.evaluate(), processing_time_ms=START + n * SECOND + late)
    told = [record.getMessage()[:15] for record in caplog.records]
    assert told == ["the clock says ", "processing time"]
