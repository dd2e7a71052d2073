"""A user's function as its operator sees it: how it is called for rows, and what it yields.

Thread safety: a `FunctionSpec` is immutable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from pystate.base.arguments import nearest
from pystate.errors import InvalidArgumentError
from pystate.operators.functions.base import StatefulFunction
from pystate.operators.functions.binding import has_broadcast, namespace_type, shape
from pystate.operators.runtime.late_rows import PROCESS_LATE, late_tag
from pystate.operators.runtime.output import Output
from pystate.operators.runtime.rows import RowFactory
from pystate.types.state_type import StateType


@dataclass(frozen=True)
class RightInput:
    """The right input of a function of two inputs."""

    key: tuple[str, ...]
    """The key columns, under its own names."""
    columns: tuple[str, ...]
    """All its columns, in order."""
    event_time: str | None = None
    """The column with the time at which a row happened."""
    late: str = PROCESS_LATE
    """Whether its late rows are handled, or dropped."""


@dataclass(frozen=True)
class BroadcastInput:
    """The broadcast input of a function that has one."""

    columns: tuple[str, ...]
    """All its columns, in order."""
    event_time: str | None = None
    """The column with the time at which a row happened."""


@dataclass(frozen=True)
class FunctionSpec:
    """A function and how it is called for an operator's rows; pickled for the workers.

    Of a function with a right or a broadcast input, all else is about the left or the keyed one.
    """

    function: StatefulFunction
    key: tuple[str, ...]
    columns: tuple[str, ...]
    """All columns of the input, in order."""
    output: Output
    event_time: str | Callable[[Any], object] | None = None
    """The column with the time at which a row happened. For elements that are not rows, a function
    from an element to a datetime, a date or milliseconds since 1970.
    """
    side_outputs: Mapping[str, Output] = field(default_factory=dict)
    """By tag, the rows that `RuntimeContext.output` takes."""
    late: str = PROCESS_LATE
    """What happens to late rows: a word, or the tag of the side output to which they go instead. If
    `side_outputs` has the tag, too, they are cast to its columns; otherwise they have those of
    the input.
    """
    key_types: tuple[StateType, ...] = ()
    """The types of the key's columns, if one of them is a struct; `key` then names the struct's
    fields.
    """
    right: RightInput | None = None
    broadcast: BroadcastInput | None = None

    def __post_init__(self) -> None:
        kind = shape(self.function)
        of_two = kind in ("co", "co_vectorized")
        if of_two != (self.right is not None):
            name = type(self.function).__name__
            raise InvalidArgumentError(
                f"{name} has two inputs: connect them, left.connect(right).process(function, ...)"
                if of_two
                else f"{name} has one input: a function of two is a KeyedCoProcessFunction or a "
                "VectorizedCoFunction"
            )
        if has_broadcast(self.function) != (self.broadcast is not None):
            self._refuse_inputs()
        if kind in ("process", "co", "instance"):
            RowFactory(self.columns)
        namespace_type(self.function)
        if self.broadcast is not None:
            RowFactory(self.broadcast.columns)
        if isinstance(self.event_time, str) and self.event_time not in self.columns:
            raise InvalidArgumentError(
                f"event_time={self.event_time!r} is not a column; columns: "
                f"{', '.join(self.columns)}{nearest(self.event_time, self.columns)}"
            )
        if self.late != PROCESS_LATE and self.event_time is None:
            raise InvalidArgumentError(
                f"late={self.late!r}: rows are late by their event time; name its "
                "column with event_time"
            )

    def _refuse_inputs(self) -> NoReturn:
        name = type(self.function).__name__
        raise InvalidArgumentError(
            f"{name} has a broadcast input: connect it, "
            "keyed.connect(job.broadcast(rules, uid=...)).process(function, ...)"
            if self.broadcast is None
            else f"{name} has no broadcast input: a function of one is a "
            "KeyedBroadcastProcessFunction or a VectorizedBroadcastFunction"
        )

    @property
    def late_tag(self) -> str | None:
        """The side output that takes late rows, if one does."""
        return late_tag(self.late)
