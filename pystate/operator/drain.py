"""The end of event time, to which a drain advances the watermark.

When a bounded input ends, some timers would wait for the watermark for ever: those of the last
windows, and all others for which no later row comes. An epoch that drains first handles its rows
like any other. Then, operator by operator, it advances the watermark to the end of event time, so
that all event-time timers fire. Their output reaches later operators as rows of the same epoch, and
event time ends there after these rows. All of it is one epoch: it is published as a whole, or not
at all.

The next epoch's watermark is computed from the rows, as if there had been no drain, so that the
checkpoint can continue with more input. A drain expires no time to live, and fires no
processing-time timers.

Thread safety: an `EndingTimers` belongs to its task.
"""

from __future__ import annotations

from typing import Any

from pystate.errors import EvaluationError
from pystate.functions.context import TimeDomain, Timers
from pystate.state.key_batch import KeyBatch

__all__ = ["MAX_WATERMARK", "EndingTimers"]

#: The end of event time, which is the watermark for a function while a drain fires its timers.
MAX_WATERMARK = (1 << 63) - 1

#: The most timers that callbacks may register while event time ends: this many in any case, and
#: this many for each timer that was there before. Otherwise a callback that always registers the
#: next one would never end.
_MOST, _MOST_EACH = 1_000_000, 1_000


class EndingTimers:
    """Registers timers while event time ends: each of them is due at once.

    Parameters
    ----------
    timers : Timers
        The timers to register with.
    uid : str
        The operator.
    """

    def __init__(self, timers: Timers, uid: str) -> None:
        self._timers = timers
        self._uid = uid
        self._registered = self._fired = 0

    def register_timer(self, domain: TimeDomain, timestamp: int) -> None:
        """Register a timer of the current key."""
        self._registered += domain == "event"
        self._timers.register_timer(domain, timestamp)

    def register_timers(self, keys: KeyBatch, domain: TimeDomain, timestamps: Any) -> None:
        """Register a timer per key."""
        if domain == "event":
            self._registered += len(keys)
        self._timers.register_timers(keys, domain, timestamps)

    def delete_timer(self, domain: TimeDomain, timestamp: int) -> None:
        """Delete a timer of the current key."""
        self._timers.delete_timer(domain, timestamp)

    def delete_timers(self, keys: KeyBatch, domain: TimeDomain, timestamps: Any) -> None:
        """Delete a timer per key."""
        self._timers.delete_timers(keys, domain, timestamps)

    def check(self, fired: int) -> None:
        """After some more event-time timers have fired, make sure that the drain will end.

        Raises
        ------
        EvaluationError
            Callbacks keep registering timers.
        """
        self._fired += fired
        before = max(self._fired - self._registered, 1)
        if self._registered > max(_MOST, _MOST_EACH * before):
            raise EvaluationError(
                f"operator {self._uid!r}: a drain has fired {self._fired} event-time timers, of "
                f"which {self._registered} were registered by on_timer meanwhile, and there is no "
                "end: register no next timer where ctx.watermark == ps.MAX_WATERMARK"
            )
