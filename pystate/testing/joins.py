"""Joins in a harness: what stands for a method of `KeyedFrame`.

Thread safety: immutable.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from pystate.base.arguments import choice
from pystate.operators.joins.asof import AsofJoin as AsofRun
from pystate.operators.joins.asof import AsofJoinSpec
from pystate.operators.joins.inputs import JoinInput, result_names
from pystate.operators.joins.interval import IntervalJoin as IntervalRun
from pystate.operators.joins.interval import IntervalJoinSpec
from pystate.operators.joins.operator import How, JoinOperator
from pystate.operators.joins.windowed import WindowJoin as WindowRun
from pystate.operators.joins.windowed import (
    WindowJoinSpec,
    join_window,
    window_names,
    window_time_type,
)
from pystate.operators.runtime.output import OutputColumns
from pystate.types.durations import Duration, milliseconds, signed_milliseconds

JoinSpec: TypeAlias = IntervalJoinSpec | AsofJoinSpec | WindowJoinSpec

_OUTER = ("inner", "left", "right", "full")


class HarnessJoin(ABC):
    """Base of the joins of a harness."""

    @abstractmethod
    def spec(self, left: JoinInput, right: JoinInput, owner: str) -> JoinSpec:
        """Check the join, and return what determines it."""


@dataclass(frozen=True)
class IntervalJoin(HarnessJoin):
    """``left.interval_join(right, lower, upper, how=..., suffixes=...)``, for a harness."""

    lower: Duration
    upper: Duration
    how: How = "inner"
    suffixes: tuple[str, str] | None = None

    def spec(self, left: JoinInput, right: JoinInput, owner: str) -> IntervalJoinSpec:
        """See `HarnessJoin.spec`."""
        choice(self.how, f"{owner}: how", _OUTER)
        lower = signed_milliseconds(self.lower, f"{owner}: lower")
        upper = signed_milliseconds(self.upper, f"{owner}: upper")
        names = result_names(left, right, self.suffixes, owner)
        output = _output(names, _types(left, right), owner)
        return IntervalJoinSpec(left, right, lower, upper, self.how, output)


@dataclass(frozen=True)
class AsofJoin(HarnessJoin):
    """``left.asof_join(right, how=..., tolerance=..., suffixes=...)``, for a harness."""

    how: Literal["inner", "left"] = "inner"
    tolerance: Duration | None = None
    suffixes: tuple[str, str] | None = None

    def spec(self, left: JoinInput, right: JoinInput, owner: str) -> AsofJoinSpec:
        """See `HarnessJoin.spec`."""
        choice(self.how, f"{owner}: how", ("inner", "left"))
        oldest = None
        if self.tolerance is not None:
            oldest = milliseconds(self.tolerance, f"{owner}: tolerance")
        names = result_names(left, right, self.suffixes, owner)
        output = _output(names, _types(left, right), owner)
        return AsofJoinSpec(left, right, self.how, oldest, output)


@dataclass(frozen=True)
class WindowJoin(HarnessJoin):
    """``left.join(right, window=..., how=..., suffixes=...)``, for a harness."""

    window: Any
    how: How = "inner"
    suffixes: tuple[str, str] | None = None

    def spec(self, left: JoinInput, right: JoinInput, owner: str) -> WindowJoinSpec:
        """See `HarnessJoin.spec`."""
        choice(self.how, f"{owner}: how", _OUTER)
        options = join_window(self.window, owner)
        keys = len(left.key)
        names = window_names(result_names(left, right, self.suffixes, owner), keys, owner)
        types = _types(left, right)
        types[keys:keys] = [window_time_type(left)] * 2
        return WindowJoinSpec(left, right, options, self.how, _output(names, types, owner))


def make_join(spec: JoinSpec) -> JoinOperator:
    """The operator of a join."""
    if isinstance(spec, IntervalJoinSpec):
        return IntervalRun(spec)
    return AsofRun(spec) if isinstance(spec, AsofJoinSpec) else WindowRun(spec)


def _types(left: JoinInput, right: JoinInput) -> list[pa.DataType]:
    return [type_.arrow for _, type_ in (*left.key, *left.columns, *right.columns)]


def _output(names: Sequence[str], types: Sequence[pa.DataType], owner: str) -> OutputColumns:
    return OutputColumns(pa.schema(list(zip(names, types, strict=True))), owner)
