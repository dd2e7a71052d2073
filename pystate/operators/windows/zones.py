"""Boundaries of windows that begin at local times of a zone.

Thread safety: a `ZoneBoundaries` belongs to its owner.
"""

from __future__ import annotations

import datetime
import zoneinfo

import numpy as np
import numpy.typing as npt

_DAY_MS = 86_400_000
_EPOCH = datetime.date(1970, 1, 1)
_UTC = datetime.timezone.utc
_START = datetime.datetime(1970, 1, 1, tzinfo=_UTC)
#: Local days that Python's calendar has, with room for windows of several days and for offsets.
_FIRST_DAY = (datetime.date(2, 1, 1) - _EPOCH).days
_LAST_DAY = (datetime.date(9998, 12, 31) - _EPOCH).days
#: The same as instants: with two windows of room there are boundaries on both sides of each.
CALENDAR_MS = ((_FIRST_DAY + 2) * _DAY_MS, (_LAST_DAY - 2) * _DAY_MS)
#: Days that are computed at once, at least.
_BLOCK = 64


class ZoneBoundaries:
    """The instants at which windows of a zone begin.

    Parameters
    ----------
    zone : str
        The zone's name.
    size_ms : int
        The windows' local length: a divisor of a day, or whole days.
    offset_ms : int
        How far they begin from local midnight, or from the midnight of 1970-01-01.

    Notes
    -----
    A local time that clocks skip stands for the instant at which they do, and one that they show
    twice for the first of the two. So the windows of a day that has 23 or 25 hours lie side by
    side, and two boundaries that fall together are one.
    """

    def __init__(self, zone: str, size_ms: int, offset_ms: int) -> None:
        self._zone = zoneinfo.ZoneInfo(zone)
        self._size, self._offset = size_ms, offset_ms
        self._first = self._last = 0
        self._known: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def around(self, first_ms: int, last_ms: int) -> npt.NDArray[np.int64]:
        """Boundaries in order, from one at or before `first_ms` to one after `last_ms`.

        Times outside of the years 2 to 9998 have none: the first or last window takes them.
        """
        known = self._known
        if len(known) and known[0] <= first_ms and last_ms < known[-1]:
            return known
        days = max(1, -(-self._size // _DAY_MS)) + 2
        first = _bounded(first_ms // _DAY_MS - days)
        last = _bounded(last_ms // _DAY_MS + days)
        if len(known):
            if first >= self._first and last <= self._last:
                return known  # at the end of the calendar
            # Rows that are far apart in time must not fill the memory with what lies between.
            near = first <= self._last + 4 * _BLOCK and last >= self._first - 4 * _BLOCK
            first, last = (
                (min(first, self._first), max(last, self._last)) if near else (first, last)
            )
        self._first, self._last = first, _bounded(max(last, first + _BLOCK))
        self._known = self._between(self._first, self._last)
        return self._known

    def _between(self, first_day: int, last_day: int) -> npt.NDArray[np.int64]:
        first = (first_day * _DAY_MS - self._offset) // self._size
        last = (last_day * _DAY_MS - self._offset) // self._size + 1
        locals_ = [n * self._size + self._offset for n in range(first, last + 1)]
        return np.unique(np.array([self.instant(local) for local in locals_], np.int64))

    def instant(self, local_ms: int) -> int:
        """The instant of a local time."""
        naive = _START.replace(tzinfo=None) + datetime.timedelta(milliseconds=local_ms)
        at = naive.replace(tzinfo=self._zone)
        offset = at.utcoffset()
        assert offset is not None
        instant = naive - offset
        # A skipped time, read with the offset from before the change, lies behind the change by as
        # much as clocks had already gone on: the change itself is looked for.
        back = instant.replace(tzinfo=_UTC).astimezone(self._zone).replace(tzinfo=None)
        if back != naive:
            instant = self._change(instant)
        return (instant.replace(tzinfo=_UTC) - _START) // datetime.timedelta(milliseconds=1)

    def _change(self, near: datetime.datetime) -> datetime.datetime:
        """The last change of the clocks up to an instant."""
        high, low = near, near - datetime.timedelta(days=1)
        after = self._offset_at(high)
        while high - low > datetime.timedelta(seconds=1):
            middle = low + (high - low) // 2
            low, high = (low, middle) if self._offset_at(middle) == after else (middle, high)
        return high.replace(microsecond=0)

    def _offset_at(self, instant: datetime.datetime) -> datetime.timedelta | None:
        return instant.replace(tzinfo=_UTC).astimezone(self._zone).utcoffset()


def instants(zone: str, locals_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The instants of local times of a zone, with the rules of `ZoneBoundaries`.

    Times outside of the years 2 to 9998 stay as they are.
    """
    found, of = np.unique(locals_ms, return_inverse=True)
    boundaries = ZoneBoundaries(zone, _DAY_MS, 0)
    known = (found >= _FIRST_DAY * _DAY_MS) & (found < _LAST_DAY * _DAY_MS)
    for place in np.flatnonzero(known).tolist():
        found[place] = boundaries.instant(int(found[place]))
    return found[of]


def _bounded(day: int) -> int:
    return min(max(day, _FIRST_DAY), _LAST_DAY)
