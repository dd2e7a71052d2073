"""Timers of a backend's keys.

Thread safety: as the backend.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np

from pystate._core import core
from pystate.state.key_batch import KeyBatch, checked_batch
from pystate.types.arrays import as_array, check_rows, is_many, reference
from pystate.types.state_type import StateType

TimeDomain: TypeAlias = Literal["event", "processing"]
#: The columns of timers in tables of state.
TIMER_DOMAIN, TIMER_MS = "timer_domain", "timer_ms"

DOMAINS: tuple[TimeDomain, ...] = ("event", "processing")
#: For each domain a time, and among its timers a key group and a hash.
Places: TypeAlias = tuple[tuple[int, int, int], ...]

_LONG = StateType("long")


class DueTimers(core.DueTimers):
    """Timers that are due, in order for each key; they stay registered until they are fired.

    Attributes
    ----------
    keys : KeyBatch
        Their keys and namespaces.
    timestamps : numpy.ndarray of int64
        Their times, in milliseconds since 1970.
    stale : bool
        Whether another due timer was registered meanwhile, so that the order no longer holds: stop,
        and call `due_timers` again. Also where rows of a table on disk had to leave meanwhile.
    are_all : bool
        Whether no other timers were due. Of a table on disk it may be False though there were none.
    """

    keys: KeyBatch
    are_all: bool = False


class Timers:
    """Registers, deletes and returns the timers of a table's keys.

    A timer is a key, a namespace, a domain and a time; registering it twice makes one timer.
    """

    def __init__(self, table: core.Table, on_disk: bool = False) -> None:
        self._table = table
        self._on_disk = on_disk
        self._core = core.TimerService(table)
        #: For the current key: ``register(domain, timestamp)``, ``delete(domain, timestamp)``.
        self.register = self._core.register
        self.delete = self._core.delete

    def register_all(self, keys: KeyBatch, domain: TimeDomain, timestamps: Any) -> None:
        """Register a timer per key; a null registers none."""
        self._core.register_all(*self._batch(keys, domain, timestamps))

    def delete_all(self, keys: KeyBatch, domain: TimeDomain, timestamps: Any) -> None:
        """Delete a timer per key; absent timers are ignored."""
        self._core.delete_all(*self._batch(keys, domain, timestamps))

    def _batch(
        self, keys: KeyBatch, domain: TimeDomain, timestamps: Any
    ) -> tuple[KeyBatch, TimeDomain, core.ArrayRef]:
        checked_batch(keys, self._table, "timers")
        alone = not is_many(timestamps)
        given = [core.timer_time(timestamps)] if alone else timestamps
        array = as_array(given, _LONG, "timers: timestamps")
        if not alone:
            check_rows(array, len(keys), "timers: timestamps")
        return keys, domain, reference(array, _LONG)

    def next(self, domain: TimeDomain) -> int | None:
        """The time of the earliest timer; None if there is none."""
        return self._core.next(domain)

    def due(
        self, domain: TimeDomain, until_ms: int, most: int, types: list[StateType]
    ) -> DueTimers | None:
        """Up to `most` timers that are due; see `KeyedStateBackend.due_timers`."""
        batch = KeyBatch(self._table, None, types)
        times: Any = self._core.take_due(batch, domain, until_ms, most)
        if times is None:
            return None
        due = DueTimers(batch, times, np.frombuffer(times, np.int64).copy(), domain)
        due.are_all = len(batch) < most and self._core.knows(domain, until_ms)
        if self._on_disk:
            batch.keep()
        return due

    def passed(self) -> Places:
        """For each domain a place before which no key has a timer, in memory or in files."""
        return tuple(map(self._core.passed, DOMAINS))

    def set_passed(self, places: Places) -> None:
        """Say the same of a table that looks for rows in files."""
        for domain, place in zip(DOMAINS, places, strict=True):
            self._core.set_passed(domain, *place)
