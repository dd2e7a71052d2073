"""Kinds of windows, as users declare them.

They are immutable, comparable and picklable, and only say what the windows are. All times are
milliseconds since 1970; a window contains its start, but not its end.
"""

from __future__ import annotations

import datetime
import zoneinfo
from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import gcd
from typing import Any, ClassVar

from pystate.base.arguments import integer, shown
from pystate.errors import InvalidArgumentError
from pystate.types.durations import Duration, milliseconds

DAY_MS = 86_400_000
#: Longer windows would make sums of times overflow.
LONGEST_MS = 1 << 59
#: A window of more slices than this would fire too slowly to be of use.
_MOST_SLICES = 100_000


class Assigner:
    """Base of all kinds of windows."""

    #: Whether the windows depend on a row's time.
    timed: ClassVar[bool] = True


@dataclass(frozen=True)
class Aligned(Assigner, ABC):
    """Windows that are the same for all keys; the base of those that are made of slices."""

    size_ms: int
    """The length of the longest window."""
    slide_ms: int
    """The distance of two windows' ends."""
    slice_ms: int
    """The length of the pieces whose aggregates the windows share."""
    offset_ms: int
    """Where the ends lie."""
    zone: str | None = None

    #: Whether all windows of a period start together, and grow.
    grows: ClassVar[bool] = False

    @abstractmethod
    def __init__(self) -> None: ...

    def _set(
        self, size_ms: int, slide_ms: int, slice_ms: int, offset: Any, zone: str | None = None
    ) -> None:
        kind = type(self).__name__
        if size_ms > LONGEST_MS:
            raise InvalidArgumentError(f"{kind}: a window of {size_ms} ms is too long")
        if size_ms // slice_ms > _MOST_SLICES:
            raise InvalidArgumentError(
                f"{kind}: a window of {size_ms} ms would be made of {size_ms // slice_ms} pieces "
                f"of {slice_ms} ms; at most {_MOST_SLICES} are possible: let it slide further"
            )
        period = size_ms if self.grows else slide_ms
        set_field = object.__setattr__
        set_field(self, "size_ms", size_ms)
        set_field(self, "slide_ms", slide_ms)
        set_field(self, "slice_ms", slice_ms)
        # Where the period is a whole day, offsets that differ by whole days are one offset.
        set_field(self, "offset_ms", _offset_ms(offset, f"{kind}: offset") % period)
        set_field(self, "zone", zone)

    @property
    def slices(self) -> int:
        """How many slices the longest window has."""
        return self.size_ms // self.slice_ms


class Tumbling(Aligned):
    """Windows of one length that follow each other without gaps.

    Parameters
    ----------
    size : str, timedelta or int in milliseconds
        Their length: ``"1 hour"``.
    offset : str, timedelta or int in milliseconds
        How far their boundaries are from 1970, or in a zone from local midnight. It may be
        negative: ``timedelta(minutes=-15)``.
    zone : str, optional
        A time zone: ``"Europe/Zurich"``. The boundaries are then local times, so that a day has 23
        or 25 hours where clocks change. The size divides a day, or is a number of days; days are
        counted from 1970-01-01.

    Examples
    --------
    >>> Tumbling("1 hour", offset="15 min")
    Tumbling('3600000 ms', offset='900000 ms')
    """

    def __init__(self, size: Duration, offset: Any = 0, zone: str | None = None) -> None:
        size_ms = milliseconds(size, "Tumbling: size", least=1)
        if zone is not None:
            _check_zone(zone, "Tumbling")
            if size_ms % DAY_MS and DAY_MS % size_ms:
                raise InvalidArgumentError(
                    f"Tumbling: size={size!r} in a zone must divide a day or be whole days, so "
                    "that its windows begin at the same local time each day"
                )
        self._set(size_ms, size_ms, size_ms, offset, zone)

    def __repr__(self) -> str:
        zone = "" if self.zone is None else f", zone={self.zone!r}"
        return f"Tumbling('{self.size_ms} ms'{_shown_offset(self.offset_ms)}{zone})"


class Sliding(Aligned):
    """Windows of one length that overlap: one ends at every step.

    Parameters
    ----------
    size : str, timedelta or int in milliseconds
        Their length.
    slide : str, timedelta or int in milliseconds
        The distance from one window to the next, at most `size`.
    offset : str, timedelta or int in milliseconds
        How far their boundaries are from 1970.

    Examples
    --------
    >>> Sliding("1 hour", "1 min").slices
    60
    """

    def __init__(self, size: Duration, slide: Duration, offset: Any = 0) -> None:
        size_ms = milliseconds(size, "Sliding: size", least=1)
        slide_ms = milliseconds(slide, "Sliding: slide", least=1)
        if slide_ms > size_ms:
            raise InvalidArgumentError(
                f"Sliding: slide={slide!r} is longer than size={size!r}: rows between two windows "
                "would be in none; filter them out and use Tumbling"
            )
        self._set(size_ms, slide_ms, gcd(size_ms, slide_ms), offset)

    def __repr__(self) -> str:
        offset = _shown_offset(self.offset_ms)
        return f"Sliding('{self.size_ms} ms', '{self.slide_ms} ms'{offset})"


class Cumulating(Aligned):
    """Windows that grow by steps up to their size, and then start again.

    Parameters
    ----------
    step : str, timedelta or int in milliseconds
        How much longer each window is than the one before.
    size : str, timedelta or int in milliseconds
        The length of the longest; a multiple of `step`.
    offset : str, timedelta or int in milliseconds
        How far their starts are from 1970.

    Examples
    --------
    >>> Cumulating("1 hour", "1 day").slices
    24
    """

    grows: ClassVar[bool] = True

    def __init__(self, step: Duration, size: Duration, offset: Any = 0) -> None:
        step_ms = milliseconds(step, "Cumulating: step", least=1)
        size_ms = milliseconds(size, "Cumulating: size", least=1)
        if size_ms % step_ms:
            raise InvalidArgumentError(
                f"Cumulating: size={size!r} is no multiple of step={step!r}; the step comes first"
            )
        self._set(size_ms, step_ms, step_ms, offset)

    def __repr__(self) -> str:
        offset = _shown_offset(self.offset_ms)
        return f"Cumulating('{self.slide_ms} ms', '{self.size_ms} ms'{offset})"


@dataclass(frozen=True)
class Session(Assigner):
    """Windows of activity: rows of a key belong together until there is none for a while.

    Parameters
    ----------
    gap : str, timedelta or int in milliseconds; or column
        How long nothing happens between two sessions. Two rows at exactly this distance are in one
        session. ``column="name"`` names a column instead, whose value is each row's own gap, in
        milliseconds.

    Examples
    --------
    >>> Session("30 min").gap_ms
    1800000
    """

    gap_ms: int | None
    gap_column: str | None

    def __init__(self, gap: Duration | None = None, *, column: str | None = None) -> None:
        if (gap is None) == (column is None):
            raise InvalidArgumentError(
                "Session takes a gap such as '30 min', or column='name' for a column with each "
                "row's gap in milliseconds"
            )
        if column is not None and (type(column) is not str or not column):
            raise InvalidArgumentError(f"Session: column is a column's name, not {shown(column)}")
        length = None if gap is None else milliseconds(gap, "Session: gap", least=1)
        if length is not None and length > LONGEST_MS:
            raise InvalidArgumentError(f"Session: a gap of {length} ms is too long")
        object.__setattr__(self, "gap_ms", length)
        object.__setattr__(self, "gap_column", column)


@dataclass(frozen=True)
class CountWindow(Assigner):
    """Windows of `n` rows of a key, in the order in which they arrive.

    Flink's count windows; `pystate.Count` is the aggregate.

    Parameters
    ----------
    n : int
        How many rows a window has.
    """

    n: int

    timed: ClassVar[bool] = False

    def __post_init__(self) -> None:
        integer(self.n, "CountWindow: n", least=1, most=1 << 40)


@dataclass(frozen=True)
class Global(Assigner):
    """One window per key, which never ends; `emit` or `early` says when it is emitted."""

    timed: ClassVar[bool] = False


def checked_assigner(value: object, owner: str) -> Assigner:
    """Return the windows, or say what windows are."""
    if isinstance(value, Assigner):
        return value
    hint = ", called with its lengths" if isinstance(value, type) else ""
    raise InvalidArgumentError(
        f"{owner}: window() takes ps.Tumbling('1 hour'), Sliding, Cumulating, Session, CountWindow "
        f"or Global{hint}, not {shown(value)}"
    )


def _offset_ms(value: Any, what: str) -> int:
    """An offset, which unlike a length may be negative."""
    negative = isinstance(value, str) and value.strip().startswith("-")
    if negative:
        return -milliseconds(value.strip()[1:], what)
    if type(value) is int and value < 0:
        return -milliseconds(-value, what)
    if isinstance(value, datetime.timedelta) and value < datetime.timedelta(0):
        return -milliseconds(-value, what)
    return milliseconds(value, what)


def _shown_offset(offset_ms: int) -> str:
    return f", offset='{offset_ms} ms'" if offset_ms else ""


def _check_zone(zone: object, kind: str) -> None:
    try:
        zoneinfo.ZoneInfo(zone)  # type: ignore[arg-type]
    except (ValueError, TypeError, OSError, zoneinfo.ZoneInfoNotFoundError) as error:
        raise InvalidArgumentError(
            f"{kind}: zone={zone!r} is no time zone of this host; write one like 'Europe/Zurich' "
            f"or 'UTC' ({error})"
        ) from None
