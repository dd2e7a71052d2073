"""Lengths of time as users write them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pystate.errors import InvalidArgumentError
from pystate.types.durations import delay_milliseconds, milliseconds


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("10 minutes", 600_000),
        ("10 Minutes", 600_000),
        ("1 hour 30 min", 5_400_000),
        ("1h30m", 5_400_000),
        ("1 day, 2 hours", 93_600_000),
        ("250 ms", 250),
        ("1.5 s", 1500),
        ("1 millisecond", 1),
        ("2 weeks", 1_209_600_000),
        (" 5 secs ", 5000),
        ("0 seconds", 0),
        (timedelta(minutes=1), 60_000),
        (timedelta(days=100_000), 8_640_000_000_000),
        (7, 7),
        (0, 0),
    ],
)
def test_what_is_a_duration(value: Any, wanted: int) -> None:
    assert milliseconds(value, "allowed_delay") == wanted


@pytest.mark.parametrize(
    "value",
    [
        "",
        "ten minutes",
        "10",
        "10 months",
        "-1 second",
        "10 minutes ago",
        "1 s s",
        "ms",
        0.5,
        True,
        None,
        b"1 s",
        timedelta(microseconds=1),
        "0.5 ms",
    ],
)
def test_what_is_none(value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"allowed_delay=.*such as '10 minutes'"):
        milliseconds(value, "allowed_delay")


@pytest.mark.parametrize("value", [timedelta(seconds=-1), -1, 1 << 62, "99999999999999 weeks"])
def test_what_is_too_short_or_long(value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="must be between 0 and"):
        milliseconds(value, "x")
    with pytest.raises(InvalidArgumentError, match="must be between 1 and"):
        milliseconds(0, "heartbeat", least=1)


def test_a_delay_has_months_of_31_days() -> None:
    """As Spark's ``withWatermark`` takes them."""
    day = 86_400_000
    assert delay_milliseconds("2 years 5 months", "allowed_delay") == 29 * 31 * day
    assert delay_milliseconds("1 month 2 days", "allowed_delay") == 33 * day
    assert delay_milliseconds(timedelta(days=3), "allowed_delay") == 3 * day
    with pytest.raises(InvalidArgumentError, match="allowed_delay='a month'"):
        delay_milliseconds("a month", "allowed_delay")
