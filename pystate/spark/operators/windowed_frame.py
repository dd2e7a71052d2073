"""Windows over a keyed DataFrame: what `KeyedFrame.window` returns.

Thread safety: immutable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import types as st

from pystate.base.arguments import checked_uid
from pystate.epochs.watermarks import Holds
from pystate.errors import InvalidArgumentError
from pystate.operators.functions.binding import for_tasks
from pystate.operators.functions.windows import WindowFunctionLike
from pystate.operators.runtime.late_rows import late_tag, late_tag_of_windows
from pystate.operators.windows.assigners import Session
from pystate.operators.windows.columns import AggregateLike
from pystate.operators.windows.kinds import make_operator
from pystate.operators.windows.partial_slices import parts, refusal, slice_rule
from pystate.operators.windows.process import WindowProcess, WindowProcessSpec
from pystate.operators.windows.row_windows import WindowRowsSpec
from pystate.operators.windows.specification import END, START, WindowOptions, WindowSpec
from pystate.spark.base.arguments import side_columns
from pystate.spark.base.frame_columns import FrameColumns, column_text
from pystate.spark.base.partial_aggregation import (
    NOT_INVALID,
    ORDERED,
    WITHOUT_ZONE,
    Combine,
    CombinedColumn,
    checked_combine,
    combined_rows,
    epoch_constant,
    event_ms,
    may_combine,
)
from pystate.spark.base.schemas import names_twice, output_columns, parse_schema
from pystate.spark.evaluation.initial_state import Route
from pystate.spark.operators.apply import apply
from pystate.spark.operators.inputs import KeyedInput
from pystate.spark.tasks.range_task import OperatorPlan
from pystate.types.keys import parse_key
from pystate.types.state_type import parse_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SESSIONS = (
    "a session grows, and its update has another end than what it replaces: emit sessions once, "
    "window(..., emit='final') without early= and allowed_lateness="
)


class WindowedFrame:
    """One epoch's rows by key and window, made by `KeyedFrame.window`."""

    def __init__(self, rows: KeyedInput, options: WindowOptions, late: str) -> None:
        self._rows = rows
        self._uid = checked_uid(rows.uid)
        self._options = options
        self._late = late

    def aggregate(self, *, combine: Combine = "auto", **aggregates: AggregateLike) -> DataFrame:
        """Compute aggregates of each window, in the core.

        Parameters
        ----------
        combine : {"auto", True, False}
            Whether Spark combines the rows of a key and window, or of the slices that windows
            share, before the shuffle; see `KeyedFrame.aggregate`. Only counts, sums, extremes and
            means, of windows that are the same for all keys or of sessions with one gap; not with
            a side output of late rows.
        **aggregates
            Result columns: ``n=ps.count()``, ``total=ps.sum("delay")``; any aggregator with its
            column, ``top=(ps.TopK(3), "delay")``; an `AggregateFunction` with its column and its
            result's type, ``longest=(Longest(), "word", "long")``.

        Returns
        -------
        DataFrame
            The key columns, ``window_start``, ``window_end`` and the results, a row for each window
            that is emitted in this epoch. A window that is emitted again replaces the row with the
            same key, start and end.

        Raises
        ------
        InvalidArgumentError
            An aggregate is none, or names no column.
            Or ``combine=True``, and the rows cannot be combined.
        WrongTypeError
            A column's type has no such aggregate.
        """
        rows, options, uid, owner = self._rows, self._options, self._uid, self._rows.owner
        checked_combine(combine, owner)
        rows.refuse_all_updates(
            "window(...).aggregate", "a window does not forget the row that an update replaces"
        )
        columns = rows.columns.copy()
        resolved = {name: _resolved(columns, each) for name, each in aggregates.items()}
        frame = columns.frame
        schema = self._schema(frame)
        spec = WindowSpec.of(options, rows.names, resolved, schema, owner)
        key = parse_key(rows.keys)
        declared = _declared(frame.schema, rows.names, spec.schema(key))
        twice = names_twice(declared.names)
        if twice:
            raise InvalidArgumentError(
                f"{owner}: two columns of the result are called {', '.join(twice)}: key "
                "columns and aggregates have names that differ in more than case"
            )
        tag = late_tag(self._late)
        whole = tag is not None or rows.invalid.tag is not None

        def combined(plan: OperatorPlan) -> Any:
            if not (
                may_combine(combine, self._uncombined(spec, frame.schema), owner)
                and (combine is True or rows.evaluation.combines(uid))
            ):
                return None
            partials = _combined(frame, spec, plan)
            make = partial(make_operator, spec, tag, combined=True)
            return rows.routed(partials, plan), partials.columns, make

        out = apply(
            rows.evaluation,
            replace(
                rows.application(
                    spec.operator(uid, key), partial(make_operator, spec, tag), declared
                ),
                frames=[frame],
                route=_selecting(rows, frame.columns if whole else _needed(spec, frame.columns)),
                sides={} if tag is None else {tag: schema},
                earlier=rows.earlier_rows(columns),
                output=output_columns(declared, owner),
                combined=combined,
                holds=spec.options.holds(),
            ),
        )
        if options.emit == "update" or options.early_ms is not None or options.lateness_ms:
            moves = isinstance(options.windows, Session)
            identity = [*rows.names, START, END]
            out = rows.evaluation.emits_updates(uid, out, identity, _SESSIONS if moves else None)
        return out

    def _uncombined(self, spec: WindowSpec, schema: st.StructType) -> str | None:
        """Why rows cannot be combined before the shuffle; None if they can."""
        time = spec.options.event_time
        if late_tag(self._late) is not None:
            return "rows that are too late go to a side output"
        if self._rows.invalid.of_each:
            return NOT_INVALID
        if self._rows.order_by:
            return ORDERED
        if time is not None and event_ms(column_text(time), schema[time].dataType) is None:
            return WITHOUT_ZONE
        return refusal(spec)

    def process(
        self,
        function: WindowFunctionLike,
        schema: str | st.StructType,
        *,
        side_outputs: Mapping[str, str | st.StructType] | None = None,
    ) -> DataFrame:
        """Run a function over the rows of each window.

        Parameters
        ----------
        function : WindowFunction or callable
            An instance, or a function of (key, window, batch) or (key, window, batch, ctx); it is
            pickled to the workers. `batch` has all columns of the input.
        schema : str or StructType
            The columns that it yields, as DDL.
        side_outputs : mapping from tag to str or StructType, optional
            The columns of what it emits with ``ctx.output(tag, row)``. Each tag needs a sink.

        Returns
        -------
        DataFrame
            What the function yields, for each window that is emitted in this epoch.

        Raises
        ------
        DeclarationError
            The function is none over windows, or a column of the input cannot be kept.
        InvalidArgumentError
            A tag is also that of late rows.

        Notes
        -----
        A row is kept once, however many windows it is in, with all columns of the input: select
        those that the function needs before `key_by`. Rows of a window come in the order in which
        they arrived; of windows that overlap, and of sessions that were joined, piece by piece.
        """
        rows, owner = self._rows, self._rows.owner
        frame = rows.frame
        input_schema = self._schema(frame)
        declared = parse_schema(schema, owner)
        sides = side_columns(side_outputs, owner)
        tag = late_tag_of_windows(self._late, sides, owner)
        kept = WindowRowsSpec.of_rows(self._options, rows.names, input_schema, owner)
        output = output_columns(declared, owner)
        spec = WindowProcessSpec(function, kept, input_schema, output, sides, owner)
        for_tasks(function, cloudpickle.dumps)
        written = {name: columns.schema for name, columns in sides.items()}
        if tag is not None:
            written[tag] = input_schema
        operator = kept.operator(self._uid, parse_key(rows.keys))
        return apply(
            rows.evaluation,
            replace(
                rows.application(operator, partial(WindowProcess, spec, tag), declared),
                route=_selecting(rows, frame.columns),
                sides=written,
                # Which of the function's columns is the window's end nobody knows.
                holds=Holds(others=kept.options.holds().others),
            ),
        )

    def _schema(self, frame: DataFrame) -> pa.Schema:
        """The input's columns."""
        rows = self._rows
        schema = output_columns(frame.schema, f"{rows.owner}: its input").schema
        if [*rows.key_names] != rows.names:
            raise InvalidArgumentError(
                f"{rows.owner}: a key that is a struct has no windows yet: name its fields as "
                "columns, and these in key_by"
            )
        return schema


def _selecting(rows: KeyedInput, names: Sequence[str]) -> Route:
    """The route of some columns."""
    columns = [*map(column_text, names)]
    return rows.selecting(lambda frame, more: frame.selectExpr(*columns, *more), names)


def _resolved(columns: FrameColumns, given: Any) -> Any:
    """The aggregate, with its column under the name that the frame has for it."""
    if isinstance(given, tuple) and len(given) > 1 and isinstance(given[1], str):
        name = columns.take(given[1], str(given[0]))
        if hasattr(given, "_replace"):
            return given._replace(column=name)
        return (given[0], name, *given[2:])
    return given


def _needed(spec: WindowSpec, names: Sequence[str]) -> list[str]:
    """The columns that the tasks need, in the frame's order."""
    windows = spec.options.windows
    gap = windows.gap_column if isinstance(windows, Session) else None
    wanted = {*spec.key, spec.options.event_time, gap, *(c.source for c in spec.columns)}
    return [name for name in names if name in wanted]


def _combined(frame: DataFrame, spec: WindowSpec, plan: OperatorPlan) -> DataFrame:
    """The rows of a frame, combined per key and slice."""
    name, time, within = spec.options.event_time, None, None
    bound = None if plan.time is None else plan.time.late_bound_ms
    if name is not None:
        time = event_ms(column_text(name), frame.schema[name].dataType)
        assert time is not None
        rule = slice_rule(spec, bound)
        if rule is not None:
            bounded = f"greatest(least({time}, {rule.last}L), {rule.first}L)"
            within = f"{bounded} - pmod({bounded} - {rule.offset}L, {rule.step}L)"
            if rule.split is not None:
                split = epoch_constant(rule.split, time)
                later = f"greatest({within}, {split} + 1L)"
                within = f"CASE WHEN {time} > {split} THEN {later} ELSE {within} END"
            inside = f"{time} BETWEEN {rule.first}L AND {rule.last}L"
            within = f"CASE WHEN {inside} THEN {within} ELSE {time} END"
    columns = [CombinedColumn(p.name, p.function, p.source) for p in parts(spec)]
    keys = [(key, column_text(key)) for key in spec.key]
    stretches = isinstance(spec.options.windows, Session)
    return combined_rows(frame, keys, columns, time, bound, within, stretches=stretches)


def _declared(schema: st.StructType, key: Sequence[str], result: pa.Schema) -> st.StructType:
    """The result's columns as Spark's: those of the key are as they were."""
    given = list(result)[len(key) :]
    kinds = [parse_type(field.type, f"column {field.name!r}").ddl for field in given]
    # Spark parses them all at once: that is a call to the JVM.
    parsed = parse_schema(", ".join(f"x{i} {ddl}" for i, ddl in enumerate(kinds)), "the result")
    fields = [st.StructField(name, schema[name].dataType) for name in key]
    for field, one in zip(given, parsed, strict=True):
        fields.append(st.StructField(field.name, one.dataType))
    return st.StructType(fields)
