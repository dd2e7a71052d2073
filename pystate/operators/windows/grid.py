"""Where aligned windows and their slices lie: whole columns of times at once.

Times are numpy arrays of int64, in milliseconds since 1970. A slice or window contains its start,
but not its end. Windows may begin at local times of a zone. Immutable but for caches of a zone's
boundaries, which belong to their owner.
"""

from __future__ import annotations

import datetime
import zoneinfo
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pystate.operators.runtime.grouping import expand
from pystate.operators.windows.assigners import DAY_MS, Aligned

Times: TypeAlias = "npt.NDArray[np.int64]"
Mask: TypeAlias = "npt.NDArray[np.bool_]"

_INT64 = np.iinfo(np.int64)
#: Times of a zone that are further apart, five years, are looked up separately.
_FAR = 1826 * 86_400_000
_EPOCH = datetime.date(1970, 1, 1)
_UTC = datetime.timezone.utc
_START = datetime.datetime(1970, 1, 1, tzinfo=_UTC)
#: Local days that Python's calendar has, with room for windows of several days and for offsets.
_FIRST_DAY = (datetime.date(2, 1, 1) - _EPOCH).days
_LAST_DAY = (datetime.date(9998, 12, 31) - _EPOCH).days
#: The same as instants: with two windows of room there are boundaries on both sides of each.
CALENDAR_MS = ((_FIRST_DAY + 2) * DAY_MS, (_LAST_DAY - 2) * DAY_MS)
#: Days that are computed at once, at least.
_BLOCK = 64


class Grid:
    """The slices and windows of aligned windows.

    A slice is what all windows that overlap it contain whole. It is named by its start, and a
    window by its end. `room_ms` is how much is ever added to a window's end; times so near the ends
    of 64 bits that this would overflow count as the last time that does not.
    """

    def __init__(self, windows: Aligned, room_ms: int = 0) -> None:
        self.size, self.slide, self.slice = windows.size_ms, windows.slide_ms, windows.slice_ms
        self.offset = windows.offset_ms
        self.grows = windows.grows
        self._end_offset = self.offset if self.grows else self.offset + self.size
        self.first, self.last = reach(self.size, room_ms)

    def slices(self, times: Times) -> Times:
        """The slice of each time."""
        if len(times):
            low, high = int(times.min()), int(times.max())
            if low < self.first or high > self.last:
                times = np.clip(times, self.first, self.last)
                low, high = int(times.min()), int(times.max())
            start = _floor_one(low, self.slice, self.offset)
            # Rows of one batch are mostly of one time: a comparison is cheaper than a division.
            if high < start + self.slice:
                return np.full(len(times), start, np.int64)
        return _floor(times, self.slice, self.offset)

    def first_end(self, slices: Times) -> Times:
        """The end of the first window that contains each slice."""
        if self.slice == self.slide:
            return slices + self.slice
        return _floor(slices + (self.slice + self.slide - 1), self.slide, self._end_offset)

    def last_end(self, slices: Times) -> Times:
        """The end of the last window that contains each slice."""
        if self.grows:
            return _floor(slices, self.size, self.offset) + self.size
        if self.slice == self.slide:
            return slices + self.size
        return _floor(slices + self.size, self.slide, self._end_offset)

    def end_after(self, time: int) -> int:
        """The first end of a window after a time."""
        time = min(max(time, self.first), self.last)
        return _floor_one(time, self.slide, self._end_offset) + self.slide

    def start_of(self, ends: Times) -> Times:
        """The start of the window that ends there."""
        if self.grows:
            return _floor(ends - 1, self.size, self.offset)
        return ends - self.size

    def last_end_of(self, ends: Times) -> Times:
        """The end of the last window that shares a slice with each window."""
        if self.grows:
            return self.start_of(ends) + self.size
        return ends + (self.size - self.slice) // self.slide * self.slide

    def ends_period(self, ends: Times) -> Mask:
        """Whether the window after each one has none of its slices."""
        if not self.grows:
            return np.zeros(len(ends), np.bool_)
        longest: Mask = ends == self.start_of(ends) + self.size
        return longest

    def leaving(self, ends: Times) -> tuple[Times, Times]:
        """The slices whose last window ends there: whose they are, by place, and their starts."""
        starts = self.start_of(ends)
        if self.grows:
            counts = np.where(self.ends_period(ends), self.size // self.slice, 0)
        else:
            counts = np.full(len(ends), self.slide // self.slice)
        return expand(starts, counts, self.slice)


class _ZoneGrid(Grid):
    """Tumbling windows whose boundaries are local times of a zone."""

    def __init__(self, windows: Aligned, room_ms: int) -> None:
        super().__init__(windows, room_ms)
        assert windows.zone is not None
        self._boundaries = ZoneBoundaries(windows.zone, windows.size_ms, windows.offset_ms)

    def slices(self, times: Times) -> Times:
        return self._look_up(times, 0)

    def first_end(self, slices: Times) -> Times:
        return self._look_up(slices, 1)

    def _look_up(self, times: Times, further: int) -> Times:
        """The boundary at or before each time, or the one `further` on."""
        if not len(times):
            return times
        low, high = int(times.min()), int(times.max())
        if high - low > _FAR:
            # What lies between times that are far apart is not computed.
            boundaries_of = np.empty(len(times), np.int64)
            parts = times // _FAR
            for part in np.unique(parts).tolist():
                mine = parts == part
                boundaries_of[mine] = self._look_up(times[mine], further)
            return boundaries_of
        boundaries = self._boundaries.around(low, high)
        at = np.searchsorted(boundaries, times, "right") - 1
        return boundaries[np.clip(at, 0, len(boundaries) - 2) + further]

    def last_end(self, slices: Times) -> Times:
        return self.first_end(slices)

    def start_of(self, ends: Times) -> Times:
        return self.slices(ends - 1)


def reach(length_ms: int, room_ms: int) -> tuple[int, int]:
    """The first and the last time that windows of a length have: others count as these.

    So ends of windows, and times that are as late as is allowed, are no numbers beyond 64 bits.
    """
    room = 4 * length_ms + room_ms
    return int(_INT64.min) + room, int(_INT64.max) - room


def grid_of(windows: Aligned, room_ms: int = 0) -> Grid:
    """Return the grid of aligned windows; the parameters are those of `Grid`."""
    kind: Any = Grid if windows.zone is None else _ZoneGrid
    grid: Grid = kind(windows, room_ms)
    return grid


def _floor(times: Times, step: int, offset: int) -> Times:
    """The largest number of the form ``n * step + offset`` that is not above each time."""
    return times - np.mod(times - offset % step, step)


def _floor_one(time: int, step: int, offset: int) -> int:
    return time - (time - offset) % step


class ZoneBoundaries:
    """The instants at which windows of a zone begin.

    Their local length is a divisor of a day, or whole days; they begin `offset_ms` from local
    midnight, or from the midnight of 1970-01-01.

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
        days = max(1, -(-self._size // DAY_MS)) + 2
        first = _bounded(first_ms // DAY_MS - days)
        last = _bounded(last_ms // DAY_MS + days)
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
        first = (first_day * DAY_MS - self._offset) // self._size
        last = (last_day * DAY_MS - self._offset) // self._size + 1
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
    times, of = np.unique(locals_ms, return_inverse=True)
    boundaries = ZoneBoundaries(zone, DAY_MS, 0)
    known = (times >= _FIRST_DAY * DAY_MS) & (times < _LAST_DAY * DAY_MS)
    for place in np.flatnonzero(known).tolist():
        times[place] = boundaries.instant(int(times[place]))
    return times[of]


def _bounded(day: int) -> int:
    return min(max(day, _FIRST_DAY), _LAST_DAY)
