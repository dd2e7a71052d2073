"""Lengths of time as users write them, in milliseconds.

Thread safety: a function without state.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import TypeAlias

from pystate.errors import InvalidArgumentError

#: ``"10 minutes"``, a timedelta, or a whole number of milliseconds.
Duration: TypeAlias = "str | datetime.timedelta | int"

_UNITS = {
    "ms": 1,
    "millisecond": 1,
    "s": 1000,
    "sec": 1000,
    "second": 1000,
    "m": 60_000,
    "min": 60_000,
    "minute": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
    "w": 604_800_000,
    "week": 604_800_000,
}
#: As Spark's ``withWatermark`` counts them.
_MONTHS = {"month": 31 * _UNITS["day"], "year": 12 * 31 * _UNITS["day"]}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)[\s,]*")
#: A sum with a time is checked where it is computed; only the duration itself must not overflow.
_MOST = (1 << 62) - 1


def milliseconds(value: Duration, what: str, *, least: int = 0, most: int = _MOST) -> int:
    """A length of time in whole milliseconds; `what` names the argument in errors.

    ``"10 minutes"``, ``"1 hour 30 min"``, ``"250 ms"``; a timedelta; or milliseconds. Months and
    years are refused, since they have no fixed length; see `delay_milliseconds`.
    """
    exact: Fraction | None = None
    if isinstance(value, datetime.timedelta):
        exact = Fraction(value // datetime.timedelta(microseconds=1), 1000)
    elif type(value) is int:
        exact = Fraction(value)
    elif isinstance(value, str):
        exact = _parse_fraction(value, _UNITS)
    return _checked_ms(exact, value, what, least, most)


def delay_milliseconds(value: Duration, what: str) -> int:
    """How late rows may be; here a month has 31 days and a year 12 months, as in Spark."""
    if isinstance(value, str):
        return _checked_ms(_parse_fraction(value, _UNITS | _MONTHS), value, what, 0, _MOST)
    return milliseconds(value, what)


def _checked_ms(exact: Fraction | None, value: Duration, what: str, least: int, most: int) -> int:
    if exact is None or exact.denominator != 1:
        raise InvalidArgumentError(
            f"{what}={value!r}: write a length of time such as '10 minutes', '1 hour 30 min' or "
            "'250 ms', or give a timedelta or a whole number of milliseconds"
        )
    if not least <= exact <= most:
        raise InvalidArgumentError(
            f"{what}={value!r} is {int(exact)} ms: it must be between {least} and {most} ms"
        )
    return int(exact)


def signed_milliseconds(value: Duration, what: str) -> int:
    """A length of time that may be negative, such as ``"-5 minutes"``, in whole milliseconds."""
    if isinstance(value, str) and value.strip()[:1] in ("-", "+"):
        length = milliseconds(value.strip()[1:], what)
        return -length if value.strip()[0] == "-" else length
    return milliseconds(value, what, least=-_MOST)


def _parse_fraction(text: str, units: Mapping[str, int]) -> Fraction | None:
    rest = text.strip().lower()
    total = Fraction(0)
    if not rest:
        return None
    while rest:
        part = _PART.match(rest)
        if part is None:
            return None
        number, unit = part.groups()
        factor = units.get(unit) or units.get(unit.removesuffix("s"))
        if factor is None:
            return None
        total += Fraction(number) * factor
        rest = rest[part.end() :]
    return total
