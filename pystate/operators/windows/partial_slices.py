"""Windows over rows that were combined per key and slice before they came.

Which windows and aggregates this can be done for, and how the aggregates of combined rows become
accumulators. A combined row is in the slice of its `TIME`, the largest of its rows' event times. Of
sessions the slices are as long as the gap: rows of one are always in one session, which the
combined row joins as the stretch from its `FIRST` to its `TIME`.

Thread safety: functions without state.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pystate.operators.runtime.partial_rows import COUNT, LOW, WEIGHT, mean_accumulators, whole_sums
from pystate.operators.windows.assigners import Aligned, Global, Session
from pystate.operators.windows.columns import MOST_DIGITS, WindowColumn
from pystate.operators.windows.grid import Mask, grid_of
from pystate.operators.windows.specification import WindowSpec
from pystate.state.aggregators import Count, Max, Mean, Min, Sum

#: How the columns of aggregates are called, in front of a number.
_PART = "__pystate_value_"

#: What is computed of an input column: the last two are the halves of a sum of longs.
Function = Literal["count", "sum", "min", "max", "high", "low"]


class Part(NamedTuple):
    """One column of combined rows."""

    name: str
    function: Function
    source: str


class SliceRule(NamedTuple):
    """The slice of a time: the last ``n * step + offset`` that is not above it.

    Times below `first` or above `last` have no window: they are on their own. Rows up to `split`
    are in other slices than later ones: of these it differs whether they are too late.
    """

    step: int
    offset: int
    first: int
    last: int
    split: int | None = None


def refusal(spec: WindowSpec) -> str | None:
    """Why rows of these windows cannot be combined; None if they can."""
    windows, timed = spec.options.windows, spec.options.event_time is not None
    if isinstance(windows, Session):
        if windows.gap_column is not None:
            return "each row says how long its session lasts"
    elif not isinstance(windows, (Aligned, Global)):
        return f"of {type(windows).__name__} windows it is only known row by row what is in which"
    if isinstance(windows, Aligned) and windows.zone is not None and timed:
        return "the windows are local times of a zone"
    for column in spec.columns:
        why = _refused(column)
        if why is not None:
            return f"{column.name}: {why}"
    return None


def _refused(column: WindowColumn) -> str | None:
    aggregate, bound = column.state.aggregate, column.state.bound
    if column.source is None:
        return None
    if bound is None or not isinstance(aggregate, (Count, Sum, Min, Max, Mean)):
        return "only count, sum, min, max and mean can be combined"
    digits = bound.input.precision if bound.input.name == "decimal" else 0
    if digits > MOST_DIGITS and isinstance(aggregate, (Sum, Mean)):
        return f"sums of decimals of more than {MOST_DIGITS} digits may overflow"
    return None


def slice_rule(spec: WindowSpec, late_bound: int | None = None) -> SliceRule | None:
    """How slices lie, if rows below a bound are late; None if all rows of a key are in one."""
    windows, options = spec.options.windows, spec.options
    if options.event_time is None:
        return None
    if isinstance(windows, Session):
        gap = windows.gap_ms
        assert gap is not None
        first, last = spec.reach()
        split = None if late_bound is None else late_bound - options.lateness_ms - gap - 1
        inside = split is not None and first <= split < last
        return SliceRule(gap, 0, first, last, split if inside else None)
    if not isinstance(windows, Aligned):
        return None
    grid = grid_of(windows)
    return SliceRule(grid.slice, grid.offset % grid.slice, *spec.reach())


def parts(spec: WindowSpec) -> list[Part]:
    """The columns that combined rows have for the aggregates."""
    columns = []
    for number, column in enumerate(spec.columns):
        name, source = f"{_PART}{number}", column.source
        if source is not None:
            columns += [Part(name + suffix, f, source) for suffix, f in _functions(column).items()]
    return columns


def _functions(column: WindowColumn) -> dict[str, Function]:
    """What is computed for an aggregate, by the suffix of its column's name."""
    aggregate, bound = column.state.aggregate, column.state.bound
    assert bound is not None
    if isinstance(aggregate, Count):
        return {"": "count"}
    if isinstance(aggregate, (Min, Max)):
        return {"": "min" if isinstance(aggregate, Min) else "max"}
    sums: dict[str, Function] = {"": "sum"}
    if bound.input.name == "long":
        sums = {"": "high", LOW: "low"}
    if isinstance(aggregate, Mean):
        sums[COUNT] = "count"
    return sums


def accumulators(
    spec: WindowSpec, rows: pa.RecordBatch
) -> tuple[list[pa.Array[Any]], dict[int, Mask]]:
    """The accumulators of combined rows, one array per aggregate.

    Also, by aggregate, which sums are beyond their range, if there are such.
    """
    arrays, beyond = [], {}
    for number, column in enumerate(spec.columns):
        each, bad = _accumulators(column, f"{_PART}{number}", rows)
        arrays.append(each)
        if bad is not None:
            beyond[number] = bad
    return arrays, beyond


def _accumulators(
    column: WindowColumn, name: str, rows: pa.RecordBatch
) -> tuple[pa.Array[Any], Mask | None]:
    if column.source is None:
        return rows.column(WEIGHT), None
    aggregate = column.state.aggregate
    values = rows.column(name)
    low = rows.column(name + LOW) if name + LOW in rows.schema.names else None
    if isinstance(aggregate, Mean):
        return mean_accumulators(rows.column(name + COUNT), values, low), None
    if low is not None:
        return whole_sums(values, low)
    if isinstance(aggregate, Count):
        # Nulls are skipped: a state without a value stays without one.
        some = pc.greater(values, pa.scalar(0, pa.int64()))
        counts: pa.Array[Any] = pc.if_else(some, values, pa.scalar(None, pa.int64()))
        return counts, None
    return values, None
