"""The watermarks of an epoch's operators: they follow the plan, from each input to what it feeds.

::

    source --> [A] --> [B] --+
                             +--> [C]     C's watermark is the smaller of B's and that of its own
    source ------------------+            rows

An operator has two watermarks in an epoch. Below its *late bound* a row is late; up to its
*watermark* its timers fire, after its rows. What an operator emits when timers fire is for the
next operator in the same epoch: it judges these rows by its late bound, which its last epoch has
left, and then fires its own timers up to the watermark of the operator before it. So a pipeline of
any length is done with a time in one epoch.

What an operator emits may be older than its watermark: a pair of rows of which one has waited, the
start of a window. So those that it feeds stay behind it by a `Hold`, which says how old a row may
still be that it emits later.

Invariants
----------
1. The late bound is never above the watermark, and neither goes back from one epoch to the next.
2. The watermark of an epoch is known before its rows are: it follows from the base, from the
   operators that are declared earlier, and from how the inputs are declared. An epoch that is
   computed again has the same one.
3. An input that is idle holds nothing back. Whether it is, is decided at the end of each epoch,
   when its rows are known. So an input that begins again is judged by what held before.
4. No row that an operator emits is below the late bound of one that it feeds, unless it emits such
   rows by the will of a user's function.
5. A source input stands at the largest event time that it has ever seen, before this epoch, minus
   the allowed delay.

Thread safety: a `Watermarks` belongs to its epoch's thread; all else is immutable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Protocol

from pystate.checkpoint.refs import INPUT, KEPT, InputState, OperatorState
from pystate.epochs.range_report import InputSeen

#: The smallest watermark, since times have 64 bits: that of an input without a bound on lateness.
_LEAST_TIME_MS = -(1 << 63)


class Hold(Protocol):
    """How old a row may be that an operator emits after it has reached a watermark."""

    @property
    def kept(self) -> bool:
        """Whether that depends on what it keeps, too: its tasks then say how old that is."""
        ...

    def after(self, watermark_ms: int) -> int:
        """The time below which no row is emitted any more; it never falls as watermarks rise."""
        ...


@dataclass(frozen=True)
class Lag:
    """Rows are behind the watermark by so much at most."""

    ms: int
    kept: bool = False

    def after(self, watermark_ms: int) -> int:
        """See `Hold`."""
        return max(watermark_ms - self.ms, _LEAST_TIME_MS)


@dataclass(frozen=True)
class Holds:
    """How an operator's output holds back the watermark of what it feeds.

    It depends on the column that is the event time there: the end of a window is ahead of the
    watermark, and its start is behind it.
    """

    columns: Mapping[str, Hold | None] = field(default_factory=lambda: MappingProxyType({}))
    """By column of the output; None if its times are never behind the watermark."""
    others: Hold | None = None
    """For all other columns, and for times that are computed from several."""

    def of(self, column: str | None) -> Hold | None:
        """The hold for a column; None for one that is not known."""
        return self.others if column is None else self.columns.get(column, self.others)


@dataclass(frozen=True)
class Input:
    """An input of an operator, as it is declared."""

    name: str = INPUT
    event_time: bool = False
    """Whether its rows have event times."""
    allowed_delay_ms: int = 0
    """How far it is behind the newest row, or behind the operators that feed it."""
    idle_after_ms: int | None = None
    """Without rows for so long it is idle; None for never."""
    upstream: tuple[str, ...] = ()
    """The operators of the same pipeline that feed it."""
    source: bool = True
    """Whether it gets other rows, too."""
    holds: Mapping[str, Hold] = field(default_factory=lambda: MappingProxyType({}))
    """By operator that feeds it, how its rows may be behind that one's watermark."""
    loops: tuple[str, ...] = ()
    """The loops of whose rows it waits for the oldest in flight."""
    origin: int = field(default=-1, compare=False)
    """The number that the evaluation has given to the frame; -1 if it is none."""


@dataclass(frozen=True)
class OperatorTime:
    """The event time of an operator in an epoch."""

    late_bound_ms: int | None = None
    """Rows below are late; None if there is no such bound yet."""
    watermark_ms: int | None = None
    """Event-time timers fire up to it, after the rows; None if there is no watermark yet."""


@dataclass(frozen=True)
class _Mark:
    """How far an operator or an input is, for those that it feeds."""

    watermark_ms: int | None
    idle: bool = False
    settled_ms: int | None = None
    """Rows below this have all come; as they come, that is the operator's late bound."""
    kept: InputState | None = None
    """What its tasks have last said of what it keeps."""


_IDLE = _Mark(None, idle=True)


class Watermarks:
    """The watermarks of one evaluation of an epoch."""

    def __init__(self, before_ms: int | None, now_ms: int) -> None:
        self._before_ms = before_ms
        self._now_ms = now_ms
        self._inputs: dict[str, tuple[Input, ...]] = {}
        self._times: dict[str, OperatorTime] = {}
        self._marks: dict[str, _Mark] = {}

    @property
    def any(self) -> bool:
        """Whether any operator that is declared so far has event time."""
        return bool(self._times)

    def time(self, uid: str) -> OperatorTime | None:
        """Return the event time of a declared operator; None if it has none."""
        return self._times.get(uid)

    def declare(self, uid: str, inputs: Sequence[Input], stored: OperatorState | None) -> None:
        """Declare an operator, after all that feed it; `stored` is that of the base."""
        self._inputs[uid] = tuple(inputs)
        states = _by_name(() if stored is None else stored.inputs)
        if not inputs or not all(self.is_timed(given) for given in inputs):
            self._marks[uid] = _Mark(None, kept=states.get(KEPT))
            return
        before = None if stored is None else stored.watermark_ms
        mark = self._smallest_mark(inputs, states, self._marks, self._before_ms)
        watermark_ms = _latest(before, mark.watermark_ms)
        chained = any(self._fed_by(given) for given in inputs)
        late_bound_ms = before if chained else watermark_ms
        self._marks[uid] = _Mark(watermark_ms, mark.idle, late_bound_ms, states.get(KEPT))
        self._times[uid] = OperatorTime(late_bound_ms, watermark_ms)

    def after(
        self, operators: Iterable[OperatorState], seen: Mapping[str, Sequence[InputSeen]]
    ) -> tuple[OperatorState, ...]:
        """Return the operators with their inputs and watermarks as they are after the epoch.

        They are all that are declared, in the order of their declaration.
        """
        marks: dict[str, _Mark] = {}
        return tuple(self._after(op, seen.get(op.uid, ()), marks) for op in operators)

    def _after(
        self, operator: OperatorState, seen: Sequence[InputSeen], marks: dict[str, _Mark]
    ) -> OperatorState:
        uid = operator.uid
        inputs, known = self._inputs[uid], _by_name(operator.inputs)
        states = {
            given.name: self._advance_input(
                known[given.name], (s for s in seen if s.name == given.name)
            )
            for given in inputs
        }
        kept = self._kept_input(part for part in seen if part.name == KEPT)
        watermark_ms = None
        marks[uid] = _Mark(None, kept=kept)
        if uid in self._times:
            # The operators before it stay where they were while its rows came from them.
            mark = self._smallest_mark(inputs, states, marks, self._now_ms)
            reached_ms = self._times[uid].watermark_ms
            watermark_ms = _latest(reached_ms, mark.watermark_ms)
            marks[uid] = _Mark(reached_ms, mark.idle, reached_ms, kept)
        known_inputs = (*states.values(), *(() if kept is None else (kept,)))
        return replace(operator, inputs=known_inputs, watermark_ms=watermark_ms)

    def _kept_input(self, seen: Iterable[InputSeen]) -> InputState | None:
        """What the tasks have said of what they keep, if they were asked to."""
        seen = tuple(seen)
        if not seen:
            return None
        times = (part.max_event_time_ms for part in seen)
        oldest = min((time for time in times if time is not None), default=None)
        return InputState(KEPT, oldest, self._now_ms)

    def _advance_input(self, state: InputState, seen: Iterable[InputSeen]) -> InputState:
        seen = tuple(seen)
        latest = state.max_event_time_ms
        for part in seen:
            latest = _latest(latest, part.max_event_time_ms)
        active_ms = state.active_ms
        if active_ms is None or any(part.rows for part in seen):
            active_ms = self._now_ms
        return InputState(state.name, latest, active_ms)

    def _fed_by(self, given: Input) -> tuple[str, ...]:
        """The operators with event time that feed an input."""
        return tuple(uid for uid in given.upstream if uid in self._times)

    def _is_source(self, given: Input) -> bool:
        """Whether an input gets rows that follow no operator's watermark."""
        return given.source or len(self._fed_by(given)) < len(given.upstream)

    def is_timed(self, given: Input) -> bool:
        """Whether an input has a watermark, after the operators that feed it are declared."""
        return given.event_time or (bool(self._fed_by(given)) and not self._is_source(given))

    def _smallest_mark(
        self,
        inputs: Sequence[Input],
        states: Mapping[str, InputState],
        marks: Mapping[str, _Mark],
        now_ms: int | None,
    ) -> _Mark:
        """The smallest watermark of the inputs that are not idle."""
        return _smallest(
            self._of_input(given, states[given.name], marks, now_ms) for given in inputs
        )

    def _of_input(
        self, given: Input, state: InputState, marks: Mapping[str, _Mark], now_ms: int | None
    ) -> _Mark:
        idle_after_ms, active_ms = given.idle_after_ms, state.active_ms
        if (
            idle_after_ms is not None
            and active_ms is not None
            and now_ms is not None
            and now_ms - active_ms >= idle_after_ms
        ):
            return _IDLE
        parts = [_hold_back(marks[uid], given.holds.get(uid)) for uid in self._fed_by(given)]
        if self._is_source(given):
            parts.append(_Mark(state.max_event_time_ms))
        mark = _smallest(parts)
        if mark.watermark_ms is None:
            return mark
        kept = [marks[uid].kept for uid in given.loops if uid in marks]
        times = [each.max_event_time_ms for each in kept if each is not None]
        reached = max(mark.watermark_ms - given.allowed_delay_ms, _LEAST_TIME_MS)
        return _Mark(min([reached, *(time for time in times if time is not None)]))


def _hold_back(mark: _Mark, hold: Hold | None) -> _Mark:
    """How far an operator is for one that gets its rows."""
    if hold is None or mark.idle:
        return mark
    at = mark.settled_ms if hold.kept else mark.watermark_ms
    if at is None or (hold.kept and mark.kept is None):
        return _Mark(None)
    reached = hold.after(at)
    oldest = mark.kept.max_event_time_ms if hold.kept and mark.kept is not None else None
    return _Mark(reached if oldest is None else min(reached, oldest))


def smallest(operators: Iterable[OperatorState]) -> int | None:
    """The smallest watermark of those operators that have one."""
    marks = (operator.watermark_ms for operator in operators)
    return min((mark for mark in marks if mark is not None), default=None)


def _smallest(marks: Iterable[_Mark]) -> _Mark:
    active = [mark.watermark_ms for mark in marks if not mark.idle]
    if not active:
        return _IDLE
    known = [mark for mark in active if mark is not None]
    return _Mark(min(known) if len(known) == len(active) else None)


def _latest(one: int | None, other: int | None) -> int | None:
    return max((time for time in (one, other) if time is not None), default=None)


class _States(dict[str, InputState]):
    def __missing__(self, name: str) -> InputState:
        return InputState(name)


def _by_name(states: Iterable[InputState]) -> Mapping[str, InputState]:
    """Inputs by name; one that is not known has seen nothing."""
    return _States({state.name: state for state in states})
