"""How the states of an operator expire, for whoever reads or merges their files without a table.

Thread safety: immutable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from pystate._core import core
from pystate.state.columns import TIME, Column
from pystate.state.declaration import State


class Expiring(NamedTuple):
    """How states expire, by the names of their columns, and what time it is."""

    settings: tuple[tuple[str, tuple[int, bool, bool, int]], ...]
    """Each one's duration, whether by event time, whether lenient, and `pst_ttl.ahead_ms`."""
    processing_ms: int | None
    watermark_ms: int | None
    event_ms: int | None = None
    """Of the newest row: in merges what has no time gets the later one of it and the watermark."""

    @classmethod
    def of(
        cls,
        states: Mapping[str, State[Any]],
        processing_ms: int | None,
        watermark_ms: int | None,
        event_ms: int | None = None,
    ) -> Expiring:
        """Of all states of a table."""
        settings = []
        for name, declaration in states.items():
            ttl, reference_ms = declaration.ttl, declaration.reference_ms
            if ttl is None:
                continue
            kept_ms = ttl.duration_ms if reference_ms is None else reference_ms
            lenient = ttl.visibility == "return_if_not_cleaned_up"
            ahead_ms = ttl.duration_ms - kept_ms
            setting = kept_ms, ttl.time == "event", lenient, ahead_ms
            settings.append((declaration.columns(name)[0].name, setting))
        return cls(tuple(settings), processing_ms, watermark_ms, event_ms)

    def among(self, columns: Sequence[Column]) -> core.Expiry:
        """The same for the core, of a table or a file with these columns."""
        ttls = dict(self.settings)
        timed = [
            (at, *ttls[column.name])
            for at, (column, after) in enumerate(pairwise(columns))
            if column.name in ttls and after.kind == TIME
        ]
        return core.Expiry(timed, self.processing_ms, self.watermark_ms, self.event_ms)
