"""The joins there are, as users ask for them: methods of `KeyedFrame`, and operators of a harness.

Thread safety: immutable.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pyarrow as pa

from pystate.base.arguments import choice
from pystate.operators.joins.asof import AsofJoinSpec
from pystate.operators.joins.inputs import JoinInput, check_keys, result_names
from pystate.operators.joins.interval import IntervalJoinSpec
from pystate.operators.joins.operator import How, JoinSpec
from pystate.operators.joins.windowed import (
    WindowJoinSpec,
    join_window,
    window_names,
    window_time_type,
)
from pystate.operators.runtime.output import OutputColumns
from pystate.types.durations import Duration, milliseconds, signed_milliseconds


class Join(ABC):
    """What a user asks for; whoever runs it knows it by no more than this."""

    #: The method of `KeyedFrame`.
    method: ClassVar[str]
    #: What `how` may be.
    ways: ClassVar[tuple[str, ...]] = ("inner", "left", "right", "full")

    how: Any
    suffixes: tuple[str, str] | None

    def names(self, left: JoinInput, right: JoinInput, owner: str) -> tuple[str, ...]:
        """Check the inputs, and return the columns of the result."""
        check_keys(left, right, owner)
        return result_names(left, right, self.suffixes, owner)

    def added(self, left: JoinInput) -> Sequence[pa.DataType]:
        """The types of the columns that the join adds behind the key's."""
        return ()

    def spec(
        self, left: JoinInput, right: JoinInput, output: OutputColumns, owner: str
    ) -> JoinSpec:
        """Check what is asked for, and return what determines the operator."""
        choice(self.how, f"{owner}: how", self.ways)
        return self._spec(left, right, output, owner)

    @abstractmethod
    def _spec(
        self, left: JoinInput, right: JoinInput, output: OutputColumns, owner: str
    ) -> JoinSpec:
        """See `spec`; `how` has been checked."""


@dataclass(frozen=True)
class IntervalJoin(Join):
    """``left.interval_join(right, lower, upper, how=..., suffixes=...)``, for a harness."""

    lower: Duration
    upper: Duration
    how: How = "inner"
    suffixes: tuple[str, str] | None = None

    method = "interval_join"

    def _spec(
        self, left: JoinInput, right: JoinInput, output: OutputColumns, owner: str
    ) -> IntervalJoinSpec:
        lower = signed_milliseconds(self.lower, f"{owner}: lower")
        upper = signed_milliseconds(self.upper, f"{owner}: upper")
        return IntervalJoinSpec(left, right, lower, upper, self.how, output)


@dataclass(frozen=True)
class AsofJoin(Join):
    """``left.asof_join(right, how=..., tolerance=..., suffixes=...)``, for a harness."""

    how: Literal["inner", "left"] = "inner"
    tolerance: Duration | None = None
    suffixes: tuple[str, str] | None = None

    method = "asof_join"
    ways = ("inner", "left")

    def _spec(
        self, left: JoinInput, right: JoinInput, output: OutputColumns, owner: str
    ) -> AsofJoinSpec:
        oldest = None
        if self.tolerance is not None:
            oldest = milliseconds(self.tolerance, f"{owner}: tolerance")
        return AsofJoinSpec(left, right, self.how, oldest, output)


@dataclass(frozen=True)
class WindowJoin(Join):
    """``left.join(right, window=..., how=..., suffixes=...)``, for a harness."""

    window: Any
    how: How = "inner"
    suffixes: tuple[str, str] | None = None

    method = "join"

    def names(self, left: JoinInput, right: JoinInput, owner: str) -> tuple[str, ...]:
        """The columns of the result, those of the window after the key."""
        return window_names(super().names(left, right, owner), len(left.key), owner)

    def added(self, left: JoinInput) -> Sequence[pa.DataType]:
        """The start and the end of the window."""
        return [window_time_type(left)] * 2

    def _spec(
        self, left: JoinInput, right: JoinInput, output: OutputColumns, owner: str
    ) -> WindowJoinSpec:
        return WindowJoinSpec(left, right, join_window(self.window, owner), self.how, output)
