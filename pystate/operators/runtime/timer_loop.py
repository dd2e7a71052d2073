"""Timers fire until none is due: how many due ones callbacks may register meanwhile.

A callback that always registers a timer which is due already would never end. What is legitimate
are chains: one timer each second through the hours for which a stream stood still, or to the end of
event time in a drain. So each key has a bound of its own, which no chain of use reaches. A chain
gets on: of timers that register others at the same time or before, the bound is lower, so that one
does not wait long for the error.

Thread safety: a `FiringLimit` belongs to its task.
"""

from __future__ import annotations

import random
from typing import Any, TypeAlias

import numpy as np

from pystate.errors import EvaluationError
from pystate.tables.timers import DueTimers, TimeDomain
from pystate.types.arrays import hash_keys

#: The most due timers that callbacks may register for a key in an epoch: this many in any case, and
#: this many for each of its timers that was there before.
_MOST, _MOST_EACH = 1_000_000, 1_000
#: The most that callbacks may register for keys in one place, while none of their timers fires at a
#: later time than those before.
_MOST_STILL = 100_000
#: Keys are counted by their hashes modulo this, so that the room does not grow with the keys: the
#: counts of keys that are in one place add up.
_PLACES = 1 << 16
#: Of batches with less than this many timers one in `_SAMPLED` is looked at, on average, and stands
#: for those since the last one: timers that are due again come one at a time.
_SMALL, _SAMPLED = 256, 16


_Times: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
_Counts: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


class FiringLimit:
    """Makes sure that an epoch's timers come to an end.

    Parameters
    ----------
    uid : str
        The operator.
    """

    def __init__(self, uid: str) -> None:
        self._uid = uid
        #: Of the keys in each place, how many timers have fired since the first one registered
        #: another, and how many due ones they have registered; empty before.
        self._fired = self._registered = np.zeros(0)
        #: The same of the batches that were not looked at.
        self._unseen_fired = self._unseen_registered = 0
        #: By domain, for the keys in each place: the latest time of a timer that has fired, and how
        #: many were registered since the first one of that time.
        self._latest: dict[TimeDomain, _Times] = {}
        self._still: dict[TimeDomain, _Counts] = {}
        self._random = random.Random(0)

    def check(self, due: DueTimers, fired: int, domain: TimeDomain) -> None:
        """After some of the timers that were due have fired, count what they have registered.

        Parameters
        ----------
        due : DueTimers
            The timers.
        fired : int
            How many of them, from the first one on, have fired or were deleted.
        domain : {"event", "processing"}
            Their clock.

        Raises
        ------
        EvaluationError
            A key keeps registering timers.
        """
        registered = due.missed
        if not fired or not (registered or len(self._fired)):
            return
        self._unseen_fired += fired
        self._unseen_registered += registered
        if fired < _SMALL and self._random.random() * _SAMPLED >= 1:
            return
        if not len(self._fired):
            self._fired, self._registered = np.zeros(_PLACES), np.zeros(_PLACES)
        columns = [column.slice(0, fired) for column in due.keys.key_arrays()]
        places = (hash_keys(columns) % _PLACES).astype(np.int64)
        # Which of them has registered is not known; over many calls it is those that go on.
        np.add.at(self._fired, places, self._unseen_fired / fired)
        each = self._unseen_registered / fired
        np.add.at(self._registered, places, each)
        self._unseen_fired = self._unseen_registered = 0
        self._compare(due, places, self._count_still(due.timestamps, places, each, domain))

    def _count_still(
        self, times: _Times, places: _Times, registered: float, domain: TimeDomain
    ) -> _Counts:
        """How many each place's keys have registered without getting on."""
        if domain not in self._latest:
            self._latest[domain] = np.full(_PLACES, np.iinfo(np.int64).min)
            self._still[domain] = np.zeros(_PLACES)
        latest, still, times = self._latest[domain], self._still[domain], times[: len(places)]
        still[places[times > latest[places]]] = 0
        np.add.at(still, places, registered)
        np.maximum.at(latest, places, times)
        return still[places]

    def _compare(self, due: DueTimers, places: _Times, still: _Counts) -> None:
        registered = self._registered[places]
        before = np.maximum(self._fired[places] - registered, 1)
        endless = np.flatnonzero(
            (registered > np.maximum(_MOST, _MOST_EACH * before))
            | (still > np.maximum(_MOST_STILL, _MOST_EACH * before))
        )
        if len(endless):
            self._refuse(due, int(endless[0]), int(registered[endless[0]]))

    def _refuse(self, due: DueTimers, i: int, registered: int) -> None:
        key = f"key {due.keys.key_at(i)!r:.80}"
        if due.keys.table.has_namespaces and due.keys.namespace_at(i) is not None:
            key += f", namespace {due.keys.namespace_at(i)!r:.80}"
        raise EvaluationError(
            f"operator {self._uid!r}: the timers of {key} have no end: when they fired they "
            f"registered about {registered} others in this epoch that were due at once, the last "
            f"at {int(due.timestamps[i])}: in the method for timers, do not each time register one "
            "at or below ctx.watermark or ctx.processing_time, and no next timer where "
            "ctx.watermark == ps.MAX_WATERMARK, which is a drain"
        )
