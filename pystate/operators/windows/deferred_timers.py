"""Timers of slices that began in the epoch, kept back until it is known which of them are needed.

Where all windows of a key up to the watermark are put together at once, the key needs one timer, at
the end of the first of them. Which these are is known when the epoch finishes.

Thread safety: as the backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pystate.operators.windows.grid import Mask, Times
from pystate.operators.windows.operator import take
from pystate.tables.backend import KeyedStateBackend
from pystate.tables.timers import DueTimers

#: Timers that are kept back, at most.
_MOST = 262_144
#: Fewer are registered one and all: of few keys, windows are put together in another way.
_LEAST = 1_024


class HeldTimers:
    """Timers in the default namespace, some of which may never be registered.

    Parameters
    ----------
    backend : KeyedStateBackend
        Where they are registered.
    domain : {"event", "processing"}
        Their clock.
    """

    def __init__(self, backend: KeyedStateBackend, domain: Any) -> None:
        self._backend = backend
        self._domain = domain
        self._columns: list[Sequence[pa.Array[Any]]] = []
        self._times: list[Times] = []
        self._rows = 0

    def __bool__(self) -> bool:
        return self._rows > 0

    def add(self, columns: Sequence[pa.Array[Any]], times: Times) -> None:
        """Keep timers of some keys back."""
        self._columns.append(columns)
        self._times.append(times)
        self._rows += len(times)
        if self._rows > _MOST:
            self.register()

    def register(self, after: int | None = None) -> None:
        """Register what is kept back; `after`: only later timers, and forget the others."""
        if self._rows:
            columns, times = self._take()
            if after is not None:
                columns, times = _some(columns, times, times > after)
            self._register(columns, times)

    def settle(self, until: int) -> None:
        """Register timers that are not due, and the earliest one of each key; keep the rest back.

        As long as there is a rest, all windows of a key must be looked for once its timer is due.
        """
        if self._rows < max(_LEAST, 1):
            self.register()
            return
        columns, times = self._take()
        due = times <= until
        self._register(*_some(columns, times, ~due))
        columns, times = _some(columns, times, due)
        if not len(times):
            return
        if (np.diff(times) < 0).any():
            order = np.argsort(times, kind="stable")
            columns, times = [take(c, order) for c in columns], times[order]
        first = self._backend.keys(columns).first_rows()
        once = first == np.arange(len(first))
        self._register(*_some(columns, times, once))
        rest = times > times[first]
        if rest.any():
            self.add(*_some(columns, times, rest))

    def _take(self) -> tuple[Sequence[pa.Array[Any]], Times]:
        parts = zip(*self._columns, strict=True)
        columns = [pa.concat_arrays(list(column)) for column in parts]
        times = np.concatenate(self._times)
        self._columns, self._times, self._rows = [], [], 0
        return columns, times

    def _register(self, columns: Sequence[pa.Array[Any]], times: Times) -> None:
        if len(times):
            self._backend.register_timers(self._backend.keys(columns), self._domain, times)


def first_timers(
    backend: KeyedStateBackend, due: DueTimers
) -> tuple[Sequence[pa.Array[Any]], Times]:
    """The keys with timers in the default namespace, each once, and their earliest ones."""
    keys, spaces = due.keys, due.keys.namespaces()
    columns: Sequence[pa.Array[Any]] = keys.key_arrays()
    times = due.timestamps
    if spaces.null_count < len(keys):
        columns, times = _some(columns, times, np.asarray(spaces.is_null()))
        keys = backend.keys(columns)
    first = keys.first_rows()
    once = first == np.arange(len(first))
    if once.all():
        return columns, times
    earliest = times.copy()
    np.minimum.at(earliest, first, times)
    return _some(columns, earliest, once)


def _some(
    columns: Sequence[pa.Array[Any]], times: Times, which: Mask
) -> tuple[Sequence[pa.Array[Any]], Times]:
    if which.all():
        return columns, times
    mask = pa.array(which)
    return [column.filter(mask) for column in columns], times[which]
