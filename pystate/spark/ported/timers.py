"""The timers of a processor, by Spark's rules.

Spark fires the timers that are due once the rows are handled, in one pass. One that is registered
in that pass fires in the next batch, even if it is due already, and one that is deleted in it fires
all the same. The timer that fires is deleted after its call, whatever the call did with it.

Thread safety: an object belongs to its task.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from pystate._core import calls
from pystate.operators.functions.context import RuntimeContext
from pystate.operators.runtime.event_time import MAX_WATERMARK
from pystate.tables.backend import KeyedStateBackend
from pystate.tables.timers import DueTimers, TimeDomain

#: Timers that are read at once for the list of a key's.
_READ_AHEAD = 65_536


class _ByKey:
    """Timers by key, of which a key costs only when it is looked up."""

    def __init__(self, due: DueTimers | None) -> None:
        self._rows: dict[Any, int] = {}
        if due is None:
            return
        first = due.keys.first_rows()
        self._order = np.argsort(first, kind="stable")
        self._sorted, self._times = first[self._order], due.timestamps
        rows = np.flatnonzero(first == np.arange(len(first)))
        # Column by column: calls for each timer would be most of the cost.
        columns = [array.take(rows).to_pylist() for array in due.keys.key_arrays()]
        keys = columns[0] if len(columns) == 1 else zip(*columns, strict=True)
        normal = map(due.keys.table.normal_key, keys)
        self._rows = dict(zip(normal, rows.tolist(), strict=True))

    def of(self, key: Any) -> set[int]:
        """The times of the timers of a key in normal form."""
        row = self._rows.get(key)
        if row is None:
            return set()
        begin, end = np.searchsorted(self._sorted, [row, row + 1])
        times: list[int] = self._times[self._order[begin:end]].tolist()
        return set(times)


class KeyTimers:
    """Timers of the current key."""

    def __init__(
        self, domain: TimeDomain, backend: KeyedStateBackend, context: RuntimeContext
    ) -> None:
        self._domain: TimeDomain = domain
        self._backend = backend
        self._context = context
        #: Up to when timers fire in the pass that runs; None outside of it.
        self._until: int | None = None
        #: The timer that fires; watched once the calls below have something to do.
        self.firing = calls.Firing()
        #: Timers that are due already and wait for the next pass; the order is that of the calls.
        self._later: dict[tuple[Any, int], None] = {}
        #: Timers that fire in this pass, although they were deleted.
        self._deleted: set[tuple[Any, int]] = set()
        #: The timers of all keys as they were when a key first asked for its own.
        self._snapshot: _ByKey | None = None
        #: What they are now, of keys that have asked or have changed them since.
        self._known: dict[Any, set[int]] = {}

    def register(self, timestamp: int) -> None:
        """Register a timer."""
        if self._until is not None and timestamp <= self._until:
            timer = self._backend.current_key, timestamp
            self._later[timer] = None
            self._deleted.discard(timer)
            self.firing.watched = True
            return
        self._context._timers.register_timer(self._domain, timestamp)
        if self._snapshot is not None:
            self._of(self._backend.current_key).add(timestamp)

    def delete(self, timestamp: int) -> None:
        """Delete a timer, if there is one."""
        if self._until is not None and timestamp <= self._until:
            timer = self._backend.current_key, timestamp
            self._later.pop(timer, None)
            self._deleted.add(timer)
            return
        self._context._timers.delete_timer(self._domain, timestamp)
        if self._snapshot is not None:
            self._of(self._backend.current_key).discard(timestamp)

    def times_in_order(self) -> Iterator[int]:
        """The times of the key's timers, in order."""
        if self._snapshot is None:
            self._snapshot = self._all()
            self.firing.watched = True
        key = self._backend.current_key
        times = set(self._of(key))
        times.update(time for other, time in self._later if other == key)
        if self.firing.timestamp is not None:
            times.add(self.firing.timestamp)
        times.difference_update(time for other, time in self._deleted if other == key)
        return iter(sorted(times))

    def _of(self, key: Any) -> set[int]:
        """The timers of a key, once timers were asked for."""
        times = self._known.get(key)
        if times is None:
            assert self._snapshot is not None
            times = self._known[key] = self._snapshot.of(key)
        return times

    def _all(self) -> _ByKey:
        most = _READ_AHEAD
        while True:
            due = self._backend.due_timers(self._domain, MAX_WATERMARK, most)
            if due is None or len(due) < most:
                return _ByKey(due)
            most *= 4

    # -- the pass

    def begin(self, until: int) -> None:
        """Begin to fire what is due."""
        self._until = until

    def before_call(self, timestamp: int) -> None:
        """A timer of the current key fires; it was taken away."""
        if self._snapshot is not None:
            self._of(self._backend.current_key).discard(timestamp)

    def after_call(self) -> None:
        """Its call has returned."""
        if self._later:
            timer: Any = self._backend.current_key, self.firing.timestamp
            self._later.pop(timer, None)

    def end(self) -> None:
        """Register what waits for the next pass."""
        later, self._later, self._until = self._later, {}, None
        self._deleted.clear()
        self.firing.watched = self._snapshot is not None
        for key, timestamp in later:
            self._backend.set_current_key(key)
            self.register(timestamp)
