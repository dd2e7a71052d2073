"""When the values of a state expire.

Immutable values, safe from any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Literal, NoReturn, TypeAlias

from pystate.base.arguments import nearest
from pystate.errors import DeclarationError, InvalidArgumentError
from pystate.types.durations import Duration, milliseconds

_Update: TypeAlias = Literal["create_and_write", "read_and_write"]
_Visibility: TypeAlias = Literal["never_return_expired", "return_if_not_cleaned_up"]
_Time: TypeAlias = Literal["processing", "event"]

_CHOICES: dict[str, tuple[str, ...]] = {
    "update": ("create_and_write", "read_and_write"),
    "visibility": ("never_return_expired", "return_if_not_cleaned_up"),
    "time": ("processing", "event"),
}
#: What is stored of a time to live, in the order of `_restored`.
_STORED = ("duration_ms", "update", "visibility", "time")
_UNITS_US = {
    "days": 86_400_000_000,
    "hours": 3_600_000_000,
    "minutes": 60_000_000,
    "seconds": 1_000_000,
    "milliseconds": 1_000,
}
#: While a value stays the same, its time is updated only once it moved by this part of the
#: duration.
_GRANULARITY = 64
#: The longest duration: the core compares without adding it to a time.
_MOST_MS = (1 << 63) - 1


class StateTtl:
    """How long a value is kept after its last use; elements of lists and maps expire one by one.

    Parameters
    ----------
    duration : timedelta, str or int, optional
        ``timedelta(hours=48)``, ``"48 hours"``, or milliseconds; more than 0.
    days, hours, minutes, seconds, milliseconds : float
        In place of `duration`, added up.
    update : {"create_and_write", "read_and_write"}
        What counts as use: writing, or reading as well. Reading a value, an aggregate or one entry
        of a map counts as use of just that; iterating over a list or map counts as use of all its
        elements, and so does an index or a slice of a list.
    visibility : {"never_return_expired", "return_if_not_cleaned_up"}
        Whether an expired value that was not cleaned up yet is returned, once: the access that
        returns it clears it, and items of a list and entries of a map one by one.
    time : {"processing", "event"}
        The clock. ``"processing"``: the epoch's processing time. ``"event"``: a value counts as
        written at the event time of its row, and expires by the watermark. A row that comes late
        does not make it expire before a newer one promised. It is refused if the operator has no
        watermark.

    Raises
    ------
    DeclarationError
        There is no duration, or more than one, or it is not positive, not finite or longer than
        2**63 - 1 milliseconds, which is for ever; or a choice is unknown.

    Notes
    -----
    Expired values are also removed from memory and snapshots if nobody reads them. At the end of
    each epoch a part of the state is scanned: 4096 keys and entries, or a 64th of the keys if that
    is more, and four for each key that the epoch made. A large map is scanned in pieces.

    If each read, and each write of the same value, stored a new time, snapshots would be full of
    them. A time is therefore updated only once it has moved by a 64th of the duration, so that a
    value may expire too early by that much. If reading counts as use, a list is rewritten when the
    time of one of its items has moved that far.

    A value that was written before its clock was known (in event time, without a watermark or a
    timestamp) counts as written when a scan first finds it after that.

    Examples
    --------
    >>> import pystate as ps
    >>> ps.StateTtl(hours=48)
    StateTtl(hours=48)
    >>> ps.StateTtl("30 minutes", time="event").duration_ms
    1800000
    """

    __slots__ = ("duration_ms", "time", "update", "visibility")

    duration_ms: int
    update: _Update
    visibility: _Visibility
    time: _Time

    def __init__(
        self,
        duration: Duration | None = None,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
        update: _Update = "create_and_write",
        visibility: _Visibility = "never_return_expired",
        time: _Time = "processing",
    ) -> None:
        numbers = (days, hours, minutes, seconds, milliseconds)
        parts = dict(zip(_UNITS_US, numbers, strict=True))
        for unit, number in parts.items():
            if isinstance(number, bool) or not isinstance(number, (int, float)):
                raise DeclarationError(f"StateTtl: {unit}={number!r:.80} is no number of {unit}")
        if (duration is None) == (not any(parts.values())):
            raise DeclarationError(
                "StateTtl: give a duration, e.g. StateTtl(hours=48) or StateTtl('48 hours')"
            )
        if duration is None:
            duration = _sum(parts)
        set_ = object.__setattr__
        set_(self, "duration_ms", _positive(duration))
        for name, value in (("update", update), ("visibility", visibility), ("time", time)):
            if value not in _CHOICES[name]:
                raise DeclarationError(
                    f"StateTtl: {name} is {' or '.join(map(repr, _CHOICES[name]))}, got {value!r}"
                    f"{nearest(value, _CHOICES[name])}"
                )
            set_(self, name, value)

    def stored_as(self) -> dict[str, Any]:
        """The form that a checkpoint's metadata has, a JSON object; `from_stored` reads it."""
        return dict(zip(_STORED, self._fields(), strict=True))

    @classmethod
    def from_stored(cls, stored: Any) -> StateTtl:
        """Parse what `stored_as` returned; `DeclarationError` if it is anything else."""
        if not isinstance(stored, dict) or sorted(stored) != sorted(_STORED):
            raise DeclarationError(f"{stored!r:.120} is no time to live")
        if type(stored["duration_ms"]) is not int:
            raise DeclarationError(f"{stored['duration_ms']!r:.60} is no duration in milliseconds")
        return _restored(*(stored[name] for name in _STORED))

    @property
    def granularity_ms(self) -> int:
        """How far a time must move before it is stored again."""
        return self.duration_ms // _GRANULARITY

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise DeclarationError(f"a StateTtl cannot be changed ({name})")

    def _fields(self) -> tuple[object, ...]:
        return self.duration_ms, self.update, self.visibility, self.time

    def __eq__(self, other: object) -> bool:
        return self._fields() == other._fields() if isinstance(other, StateTtl) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._fields())

    def __repr__(self) -> str:
        for unit, size in (("hours", 3_600_000), ("minutes", 60_000), ("seconds", 1000)):
            if self.duration_ms % size == 0:
                shown = f"{unit}={self.duration_ms // size}"
                break
        else:
            shown = f"milliseconds={self.duration_ms}"
        for name, choices in _CHOICES.items():
            if getattr(self, name) != choices[0]:
                shown += f", {name}={getattr(self, name)!r}"
        return f"StateTtl({shown})"

    def __reduce__(self) -> tuple[object, ...]:
        return _restored, self._fields()


def _restored(duration: int, update: _Update, visibility: _Visibility, time: _Time) -> StateTtl:
    return StateTtl(duration, update=update, visibility=visibility, time=time)


def _sum(parts: Mapping[str, Any]) -> int:
    """Milliseconds, rounded to microseconds as in a timedelta, whose range is much smaller."""
    total = Fraction(0)
    for name, number in parts.items():
        if number - number != 0:
            raise DeclarationError(f"StateTtl: {name}={number!r:.80} is no number of {name}")
        total += Fraction(number) * _UNITS_US[name]
    whole, rest = divmod(round(total), 1000)
    if rest:
        given = ", ".join(f"{name}={number!r}" for name, number in parts.items() if number)
        raise DeclarationError(f"StateTtl: {given} is no whole number of milliseconds")
    return whole


def _positive(duration: Duration) -> int:
    try:
        return milliseconds(duration, "StateTtl", least=1, most=_MOST_MS)
    except InvalidArgumentError as error:
        raise DeclarationError(str(error)) from error
