"""Joins in a harness: what stands for a method of `KeyedFrame`, and its run over one range.

Thread safety: the joins are immutable; a run belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from pystate.arguments import choice
from pystate.joins.asof import AsofJoin as AsofRun
from pystate.joins.asof import AsofJoinSpec
from pystate.joins.inputs import JoinInput, result_names
from pystate.joins.interval import How, IntervalJoinSpec
from pystate.joins.interval import IntervalJoin as IntervalRun
from pystate.joins.windowed import WindowJoin as WindowRun
from pystate.joins.windowed import WindowJoinSpec, join_window, window_names, window_time_type
from pystate.operator.co_shapes import SIDES, InputName
from pystate.operator.invalid import InvalidRows
from pystate.operator.output import OutputColumns
from pystate.testing.operator_harness import Attempt
from pystate.testing.range_tables import RangeTable
from pystate.types.durations import Duration, milliseconds, signed_milliseconds

__all__ = ["AsofJoin", "HarnessJoin", "IntervalJoin", "JoinRun", "WindowJoin"]

JoinSpec: TypeAlias = IntervalJoinSpec | AsofJoinSpec | WindowJoinSpec

_OUTER = ("inner", "left", "right", "full")


class HarnessJoin:
    """Base of the joins of a harness."""

    def spec(self, left: JoinInput, right: JoinInput, owner: str) -> JoinSpec:
        """Check the join, and return what determines it."""
        raise NotImplementedError


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


class JoinRun:
    """A join's run over one range.

    Parameters
    ----------
    spec : IntervalJoinSpec, AsofJoinSpec or WindowJoinSpec
        The join.
    share : RangeTable
        The range.
    attempt : Attempt
        The attempt at an epoch.
    invalid : mapping of str to InvalidRows
        Takes the rows of each input with which the join cannot compute.
    """

    def __init__(
        self,
        spec: JoinSpec,
        share: RangeTable,
        attempt: Attempt,
        invalid: Mapping[InputName, InvalidRows],
    ) -> None:
        bound = None if attempt.time is None else attempt.time.late_bound_ms
        self._watermark = None if attempt.time is None else attempt.time.watermark_ms
        self._fault = attempt.fault
        self._join: IntervalRun | AsofRun | WindowRun
        if isinstance(spec, IntervalJoinSpec):
            self._join = IntervalRun(spec, share.backend, bound, None, invalid)
        elif isinstance(spec, AsofJoinSpec):
            self._join = AsofRun(spec, share.backend, bound, None, invalid)
        else:
            self._join = WindowRun(spec, share.backend, bound, None, invalid)

    @property
    def late_rows(self) -> int:
        """Number of rows that came late."""
        return self._join.late_rows

    @property
    def max_event_times(self) -> Mapping[str, int | None]:
        """The largest event time of each input."""
        return {name: self._join.max_event_times[name] for name in SIDES}

    def process(self, name: str, rows: pa.RecordBatch) -> Iterator[Any]:
        """Handle rows of an input."""
        if self._fault is not None:
            self._fault.count("rows", rows.num_rows)
        return self._join.process("left" if name == "left" else "right", rows)

    def finish(self) -> Iterator[Any]:
        """Handle the watermark."""
        return self._join.finish(self._watermark)

    def close(self) -> None:
        """Nothing is held."""


def _types(left: JoinInput, right: JoinInput) -> list[pa.DataType]:
    return [type_.arrow for _, type_ in (*left.key, *left.columns, *right.columns)]


def _output(names: Sequence[str], types: Sequence[pa.DataType], owner: str) -> OutputColumns:
    return OutputColumns(pa.schema(list(zip(names, types, strict=True))), owner)
