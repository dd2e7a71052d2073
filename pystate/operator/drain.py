"""The end of event time: what a drain takes the watermark to.

A bounded input has an end, and what waits for the watermark would wait for ever: the last windows,
and every timer of an event time that no later row passes. An epoch that drains handles its rows as
any other, and then, operator by operator, takes the watermark to the end of event time, so that all
event-time timers fire. What that emits reaches the operators below as rows of the same epoch, and
they end theirs after it. All of it is one epoch: it is published with its rows, or not at all.

The watermark that the epoch leaves behind is the one that its rows have made, as if there had been
no drain, so that the checkpoint can go on with more input. Time to live does not end with event
time, and processing-time timers keep waiting for theirs.

Thread safety: an `EndingTimers` belongs to its task.
"""

from __future__ import annotations

from typing import Any

from pystate.errors import EvaluationError
from pystate.functions.context import TimeDomain, Timers
from pystate.state.key_batch import KeyBatch

__all__ = ["MAX_WATERMARK", "EndingTimers"]

#: The end of event time: what a function sees as the watermark when a drain fires its timers.
MAX_WATERMARK = (1 << 63) - 1

#: Timers that callbacks register while event time ends: so many in any case, and so many for each
#: timer that was there before. A callback that always registers the next one would never end.
_MOST, _MOST_EACH = 1_000_000, 1_000


class EndingTimers:
    """Where timers are registered while event time ends: each is due at once.

    Parameters
    ----------
    timers : Timers
        Where they go.
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
        """Make sure that there is an end, after some more event-time timers have fired.

        Raises
        ------
        EvaluationError
            Callbacks register one timer after the other.
        """
        self._fired += fired
        before = max(self._fired - self._registered, 1)
        if self._registered > max(_MOST, _MOST_EACH * before):
            raise EvaluationError(
                f"operator {self._uid!r}: a drain has fired {self._fired} event-time timers, of "
                f"which {self._registered} were registered by on_timer meanwhile, and there is no "
                "end: register no next timer where ctx.watermark == ps.MAX_WATERMARK"
            )
