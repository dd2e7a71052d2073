"""From the aggregates of `KeyedFrame.aggregate` to states, updates and columns.

Thread safety: an `AggregatePlan` belongs to the thread that makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as st

from pystate.errors import InvalidArgumentError, WrongTypeError
from pystate.operators.functions.aggregates import Aggregate
from pystate.operators.runtime.aggregate import (
    AggregateOperator,
    Aggregates,
    Operation,
    StateUpdate,
    UpdatesOperator,
)
from pystate.operators.runtime.output import OutputColumns
from pystate.operators.runtime.partial_rows import LOW, TIME
from pystate.operators.runtime.row_operator import LATEST, RowLists
from pystate.operators.runtime.task import Operator
from pystate.spark.base.partial_aggregation import (
    ORDERED,
    WITHOUT_ZONE,
    Combine,
    CombinedColumn,
    Function,
    combined_rows,
    decided,
    event_ms,
)
from pystate.spark.base.resolve import column_named, column_text, key_column, key_text
from pystate.spark.base.schemas import ddl_of
from pystate.spark.tasks.range_task import OperatorPlan
from pystate.state.aggregators import Aggregator, Count, Max, Min, Sum
from pystate.state.declaration import State
from pystate.state.identity import StoredFold, stored_aggregate
from pystate.types.state_type import parse_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["TIMES", "AggregatePlan"]

_INTEGERS = (st.ByteType, st.ShortType, st.IntegerType, st.LongType)
#: Of decimals whose sums are computed by Spark.
_MOST_DIGITS = 28
_FLOATS = (st.FloatType, st.DoubleType)
_ORDERED = (
    *_INTEGERS,
    *_FLOATS,
    st.DecimalType,
    st.DateType,
    st.TimestampType,
    st.TimestampNTZType,
)
_AGGREGATORS: dict[str, Aggregator] = {"sum": Sum(), "min": Min(), "max": Max()}
#: How the columns are called that tasks get for aggregates, in front of a number,
_VALUE = "__pystate_value_"
#: and the one with event times.
TIMES = f"{_VALUE}time"


class AggregatePlan:
    """Turns aggregates into states, updates, input columns and result columns."""

    def __init__(self, owner: str, schema: st.StructType) -> None:
        self._owner = owner
        self._schema = schema
        self.states: dict[str, State[Any]] = {}
        self.updates: list[StateUpdate] = []
        self.inputs: dict[str, Column] = {}
        #: What the inputs' rows come to if they are combined before the shuffle.
        self.combined: list[CombinedColumn] = []
        #: Why they cannot be.
        self.uncombined: str | None = None
        self.results: list[tuple[str, str | None]] = []
        self.fields: list[st.StructField] = []
        #: Whether results depend on the order of the rows: sums of floats are not associative, and
        #: of values that are equal but not identical, such as 0.0 and -0.0, the first is kept.
        self.ordered = False

    def add(self, name: str, aggregate: Aggregate) -> None:
        """Add one result column."""
        kind, column = aggregate
        shown = f"{name}={aggregate}"
        if kind == "count":
            self._count(name, column, shown)
            self._result(name, st.LongType(), name, None)
            return
        assert column is not None
        if kind == "mean":
            self._number(aggregate)
            self._state(f"{name}.sum", Sum(), "double")
            self._count(f"{name}.count", column, shown)
            self._update(f"{name}.sum", "add", column, st.DoubleType(), shown)
            self._result(name, st.DoubleType(), f"{name}.sum", f"{name}.count")
            return
        operation: Operation = "add" if kind == "sum" else kind
        if kind == "sum":
            result = self._sum_type(aggregate)
        else:
            result = self._ordered_type(aggregate)
        self._state(name, _AGGREGATORS[kind], ddl_of(self._schema[column].dataType))
        self._update(name, operation, column, result, shown)
        self._result(name, result, name, None)

    def selected(
        self, frame: DataFrame, keys: Sequence[str], event_time: str | None
    ) -> dict[str, Column]:
        """What is sent of a frame, by name: only what is aggregated, cast if the state is wider."""
        found = {name: key_column(frame, name).alias(name) for name in keys}
        found |= self.inputs
        if event_time is not None:
            found[TIMES] = column_named(event_time).alias(TIMES)
        return found

    def spec(
        self, keys: Sequence[str], output: OutputColumns, event_time: str | None
    ) -> Aggregates:
        """What the tasks aggregate."""
        updates, results = tuple(self.updates), tuple(self.results)
        return Aggregates(tuple(keys), self.states, updates, results, output, event_time)

    def over_updates(
        self, spec: Aggregates, selected: st.StructType, identity: Sequence[str]
    ) -> tuple[Mapping[str, State[Any]], Callable[[], Operator]]:
        """The state over updates, and what makes the operator of a task.

        Parameters
        ----------
        spec : Aggregates
            What is aggregated.
        selected : StructType
            The columns that are sent.
        identity : sequence of str
            The columns among them of what an update is of, beside the key.
        """
        columns = tuple(
            (field.name, parse_type(field.dataType, f"{self._owner}: column {field.name!r}"))
            for field in selected
            if field.name not in spec.key and field.name != TIMES
        )
        make = partial(UpdatesOperator, spec, tuple(identity), columns)
        return {LATEST: RowLists.declared(columns)}, make

    def combines(self, combine: Combine, event_time: str | None, *, ordered: bool) -> bool:
        """Whether rows may be combined before the shuffle.

        Raises
        ------
        InvalidArgumentError
            The user asks for it, and it cannot be done.
        """
        why = self.uncombined
        if self.ordered and ordered:
            why = ORDERED
        elif event_time is not None and self._event_ms(event_time) is None:
            why = WITHOUT_ZONE
        return decided(combine, why, self._owner)

    def combine(
        self,
        frame: DataFrame,
        keys: Sequence[str],
        event_time: str | None,
        plan: OperatorPlan,
        spec: Aggregates,
    ) -> tuple[DataFrame, Callable[[], Operator]]:
        """Combine the rows of a frame; returns these, and what makes the operator of a task."""
        groups = [(name, key_text(frame.columns, name)) for name in keys]
        bound = None if plan.time is None else plan.time.late_bound_ms
        time = None if event_time is None else self._event_ms(event_time)
        rows = combined_rows(frame, groups, self.combined, time, bound)
        spec = replace(spec, event_time=None if time is None else TIME)
        return rows, partial(AggregateOperator, spec, combined=True)

    def _event_ms(self, event_time: str) -> str | None:
        return event_ms(column_text(event_time), self._schema[event_time].dataType)

    def _count(self, state: str, column: str | None, shown: str) -> None:
        self._state(state, Count(), "long")
        if column is None:
            self.updates.append(StateUpdate(state, "add", None, shown))
            return
        source = f"{_VALUE}{len(self.inputs)}"
        self.inputs[source] = column_named(column).isNotNull().cast("long").alias(source)
        self.combined.append(CombinedColumn(source, "count", column))
        self.updates.append(StateUpdate(state, "add", source, shown))

    def _update(
        self, state: str, operation: Operation, column: str, as_type: st.DataType, shown: str
    ) -> None:
        source = f"{_VALUE}{len(self.inputs)}"
        self.inputs[source] = column_named(column).cast(as_type).alias(source)
        given = self._schema[column].dataType
        if operation == "add" and isinstance(given, st.LongType) and as_type == st.LongType():
            self.combined.append(CombinedColumn(source, "high", column))
            self.combined.append(CombinedColumn(source + LOW, "low", column))
        elif operation == "add" and isinstance(as_type, st.DecimalType):
            self._combine_decimals(source, column, given, shown)
        else:
            function: Function = "sum" if operation == "add" else operation
            cast = None if given == as_type else ddl_of(as_type)
            self.combined.append(CombinedColumn(source, function, column, cast))
        self.updates.append(StateUpdate(state, operation, source, shown))

    def _combine_decimals(self, source: str, column: str, given: st.DataType, shown: str) -> None:
        # Spark's sum has ten more digits, too; no number of rows makes one of these overflow.
        if isinstance(given, st.DecimalType) and given.precision <= _MOST_DIGITS:
            self.combined.append(CombinedColumn(source, "sum", column))
        else:
            self.uncombined = f"{shown}: a sum of more than {_MOST_DIGITS} digits may overflow"

    def _state(self, name: str, aggregator: Aggregator, of: str | None) -> None:
        if name in self.states:
            raise InvalidArgumentError(f"{self._owner}: two aggregates would keep {name!r}")
        assert of is not None
        state = StoredFold(
            stored_aggregate(aggregator, of), 0 if isinstance(aggregator, Count) else None
        )
        self.states[name] = state
        self.ordered = self.ordered or state.type.name in ("float", "double")

    def _result(self, name: str, data_type: st.DataType, state: str, divisor: str | None) -> None:
        self.fields.append(st.StructField(name, data_type))
        self.results.append((state, divisor))

    def _number(self, aggregate: Aggregate) -> st.DataType:
        data_type = self._schema[str(aggregate.column)].dataType
        if isinstance(data_type, (*_INTEGERS, *_FLOATS, st.DecimalType)):
            return data_type
        raise self._refused(aggregate, data_type, "a number")

    def _sum_type(self, aggregate: Aggregate) -> st.DataType:
        data_type = self._number(aggregate)
        if isinstance(data_type, _INTEGERS):
            return st.LongType()
        if isinstance(data_type, st.DecimalType):
            return st.DecimalType(min(38, data_type.precision + 10), data_type.scale)
        return st.DoubleType()

    def _ordered_type(self, aggregate: Aggregate) -> st.DataType:
        data_type = self._schema[str(aggregate.column)].dataType
        if isinstance(data_type, _ORDERED):
            return data_type
        raise self._refused(aggregate, data_type, "a number, a date or a timestamp")

    def _refused(self, aggregate: Aggregate, data_type: st.DataType, wanted: str) -> WrongTypeError:
        return WrongTypeError(
            f"{self._owner}: {aggregate}: column {aggregate.column!r} is "
            f"{data_type.simpleString()}, not {wanted}"
        )
