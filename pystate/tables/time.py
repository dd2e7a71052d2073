"""Time in a backend: its clock, expiry, and the timers of its keys.

Thread safety: as the backend.
"""

from __future__ import annotations

from typing import Any

from pystate.base.arguments import integer
from pystate.state.key_batch import KeyBatch
from pystate.tables.table import BackendTable
from pystate.tables.timers import DueTimers, TimeDomain

__all__ = ["BackendTime"]

#: Each seal scans this part of the keys for expired values, but at least this many keys.
_LEAST_EXPIRED, _EXPIRED_PART = 4096, 64


class BackendTime(BackendTable):
    """The part of `KeyedStateBackend` for clock and timers."""

    def set_clock(
        self,
        *,
        processing_time: int | None = None,
        watermark: int | None = None,
        event_time: int | None = None,
    ) -> None:
        """Set the time, the only clock of times to live.

        Parameters
        ----------
        processing_time, watermark : int, optional
            The epoch's times, in milliseconds since 1970; None if not known.
        event_time : int, optional
            The event time of the current row, at which event-time states count as written.
        """
        for name, time in (
            ("processing_time", processing_time),
            ("watermark", watermark),
            ("event_time", event_time),
        ):
            if time is not None and type(time) is not int:
                integer(time, f"set_clock: {name}, in milliseconds since 1970,")
        self.open()
        clock: dict[str, tuple[int | None, ...]] = {
            "processing": (processing_time,),
            "event": (watermark, event_time),
        }
        if clock != self._clock:
            for handle in self._states.timed_objects:
                assert handle.ttl is not None
                if clock[handle.ttl.time] != self._clock.get(handle.ttl.time):
                    # Pending objects were written, and kept ones were read, at the old time.
                    handle.flush(self._batch_of)
                    handle.discard()
            self._clock = clock
        self._table.set_clock(processing_time, watermark, event_time)

    def expire(self) -> int:
        """Remove expired values of some keys, once per epoch; `seal` does it, too.

        Returns
        -------
        int
            Number of removed values and elements.

        Notes
        -----
        Scans 4096 keys and map entries, or a 64th of the keys if that is more, and four for each
        key made since the last scan; later epochs scan the next ones.
        """
        if self._swept or not self._states.expires:
            return 0
        self.open()
        self._flush()
        for handle in self._states.timed_objects:
            handle.discard()
        gone = self._table.expire(max(_LEAST_EXPIRED, self._table.stats()[1] // _EXPIRED_PART))
        # A table that is not dirty is not sealed: the next epoch of an idle table scans on.
        self._swept = self.dirty
        return gone

    def register_timer(self, domain: TimeDomain, timestamp: int) -> None:
        """Register a timer of the current key and namespace, in milliseconds since 1970."""
        self._timers.register(domain, timestamp)

    def delete_timer(self, domain: TimeDomain, timestamp: int) -> None:
        """Delete a timer of the current key and namespace, if there is one."""
        self._timers.delete(domain, timestamp)

    def register_timers(self, keys: KeyBatch, domain: TimeDomain, timestamps: Any) -> None:
        """Register a timer per key; a null registers none."""
        self._timers.register_all(keys, domain, timestamps)

    def delete_timers(self, keys: KeyBatch, domain: TimeDomain, timestamps: Any) -> None:
        """Delete a timer per key; absent timers are ignored."""
        self._timers.delete_all(keys, domain, timestamps)

    def next_timer(self, domain: TimeDomain) -> int | None:
        """The time of the earliest timer; None if there is none."""
        self.open()
        return self._timers.next(domain) if self._states.has_timers else None

    def due_timers(self, domain: TimeDomain, until: int, most: int = 4096) -> DueTimers | None:
        """Find timers that are due.

        Parameters
        ----------
        domain : {"event", "processing"}
            The clock.
        until : int
            The clock's time, in milliseconds since 1970.
        most : int
            The most timers to return.

        Returns
        -------
        DueTimers or None
            ``keys`` (a `KeyBatch`), ``timestamps``, ``fire(i)``, ``fire_all()``, ``stale``. Those
            of one key are in order. None if no timer is due.
        """
        self.open()
        return self._timers.due(domain, until, most, self._key_types())
