"""Chooses the parallelism of a job from how long its epochs take.

Thread safety: `AutoRescale` is immutable; a `Rescaler` belongs to the thread that runs epochs.

Invariants
----------
1. Only epochs since the last change count, and not the first of them with rows: it moves state, and
   after a start restores it, so that it says nothing about those after it.
2. A change that did not make epochs faster is taken back, and is not tried again for a while.
   Otherwise a job whose machine has no more cores would climb to `max` and stay there.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from pystate.base.arguments import integer, shown
from pystate.errors import InvalidArgumentError
from pystate.types.durations import Duration, milliseconds
from pystate.types.keys import MAX_PARALLELISM

#: How much faster rows must be handled after growth, for the growth to stay.
_GAIN = 1.1
#: For how many cooldowns a parallelism that was of no use is not tried again.
_PATIENCE = 20


@dataclass(frozen=True, init=False)
class AutoRescale:
    """A policy that changes a job's parallelism: ``Job(..., parallelism=AutoRescale(1, 8))``.

    If the epochs of the last while took longer than `target`, or if the source has more than
    `backlog` rows waiting, the parallelism grows, at most to twice what it was. If they would also
    be fast enough with fewer ranges, it shrinks, at most to half. Growth that brings nothing is
    taken back.

    Parameters
    ----------
    min, max : int
        Bounds of the parallelism; a job begins with `min`, and after a restart again.
    target : str, timedelta or int
        How long an epoch with rows should take at most: ``"10 seconds"``, a timedelta, or
        milliseconds.
    backlog : int, optional
        Grow also if the source is further behind than this number of rows (of Kafka: offsets, as
        in Spark's ``maxOffsetsBehindLatest``), whatever the epochs take. Needs a source that
        reports it.
    cooldown : int
        Number of epochs with rows between two changes; their median counts.
    hysteresis : float
        Grow only above ``target * (1 + hysteresis)``, and shrink only if the expected time is below
        ``target * (1 - hysteresis)``. At least 0, and less than 1.

    Examples
    --------
    >>> import pystate as ps
    >>> ps.AutoRescale(1, 8, target="5 seconds").target_ms
    5000
    """

    min: int
    max: int
    target_ms: int
    backlog: int | None
    cooldown: int
    hysteresis: float

    def __init__(
        self,
        min: int,
        max: int,
        *,
        target: Duration = "10 seconds",
        backlog: int | None = None,
        cooldown: int = 5,
        hysteresis: float = 0.2,
    ) -> None:
        least = integer(min, "AutoRescale: min", least=1, most=MAX_PARALLELISM)
        most = integer(max, "AutoRescale: max", least=1, most=MAX_PARALLELISM)
        if most < least:
            raise InvalidArgumentError(f"AutoRescale: max={most} is less than min={least}")
        if isinstance(hysteresis, bool) or not isinstance(hysteresis, (int, float)):
            raise InvalidArgumentError(
                f"AutoRescale: hysteresis is a number such as 0.2, not {shown(hysteresis)}"
            )
        if not 0 <= hysteresis < 1:
            raise InvalidArgumentError(
                f"AutoRescale: hysteresis={hysteresis} is not at least 0 and less than 1"
            )
        fields = {
            "min": least,
            "max": most,
            "target_ms": milliseconds(target, "AutoRescale: target", least=1),
            "backlog": None
            if backlog is None
            else integer(backlog, "AutoRescale: backlog", least=1),
            "cooldown": integer(cooldown, "AutoRescale: cooldown", least=1),
            "hysteresis": float(hysteresis),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class _Sample:
    """An epoch with rows."""

    took_ms: float
    rows: int
    behind: int | None


class Rescaler:
    """Applies a policy to the epochs of a job."""

    def __init__(self, policy: AutoRescale) -> None:
        self.policy = policy
        self._seen: deque[_Sample] = deque(maxlen=policy.cooldown)
        self._parallelism: int | None = None
        self._moves = True
        #: Before the last growth: the parallelism, and rows per millisecond.
        self._grown_from: tuple[int, float] | None = None
        self._useless: int | None = None
        self._patience = 0

    def observe(
        self,
        parallelism: int,
        took_ms: float,
        rows: int,
        behind: Callable[[], int | None] = lambda: None,
    ) -> int:
        """Take note of an epoch, and return the parallelism that the next ones should have.

        `behind` returns how many rows the source has waiting, or None if it does not say.
        """
        if parallelism != self._parallelism:
            self._parallelism, self._moves = parallelism, True
            self._seen.clear()
        if not rows:
            return parallelism
        if self._moves:
            self._moves = False
            return parallelism
        waiting = None if self.policy.backlog is None else behind()
        self._seen.append(_Sample(took_ms, rows, waiting))
        self._patience = max(0, self._patience - 1)
        if len(self._seen) < self.policy.cooldown:
            return parallelism
        wanted = self._target(parallelism)
        return min(self.policy.max, max(self.policy.min, wanted))

    def _target(self, parallelism: int) -> int:
        policy = self.policy
        took_ms = statistics.median(seen.took_ms for seen in self._seen)
        speed = statistics.median(seen.rows / max(seen.took_ms, 1e-3) for seen in self._seen)
        if self._grown_from is not None:
            before, speed_before = self._grown_from
            self._grown_from = None
            if parallelism > before and speed < _GAIN * speed_before:
                self._useless, self._patience = before + 1, _PATIENCE * policy.cooldown
                return before
        is_behind = policy.backlog is not None and all(
            seen.behind is not None and seen.behind > policy.backlog for seen in self._seen
        )
        if is_behind or took_ms > policy.target_ms * (1 + policy.hysteresis):
            wanted = max(parallelism + 1, math.ceil(parallelism * took_ms / policy.target_ms))
            return self._grow(parallelism, min(wanted, 2 * parallelism), speed)
        bound_ms = policy.target_ms * (1 - policy.hysteresis)
        enough = math.ceil(parallelism * took_ms / bound_ms)
        # A source that is behind a little is given the time to catch up.
        if enough < parallelism and not any(seen.behind for seen in self._seen):
            return max(enough, math.ceil(parallelism / 2))
        return parallelism

    def _grow(self, parallelism: int, wanted: int, speed: float) -> int:
        if self._useless is not None and wanted >= self._useless:
            if self._patience:
                return parallelism
            self._useless = None
        self._grown_from = parallelism, speed
        return wanted
