"""Aggregates over all epochs: from those of `KeyedFrame.aggregate` to states and columns.

Thread safety: an `AggregatePlan` belongs to the thread that makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as st

from pystate.base.arguments import checked_uid
from pystate.errors import InvalidArgumentError, WrongTypeError
from pystate.operators.functions.aggregates import Aggregate
from pystate.operators.runtime.aggregate import (
    AggregateOperator,
    Aggregates,
    Operation,
    StateUpdate,
    UpdatesOperator,
)
from pystate.operators.runtime.partial_rows import LOW, TIME
from pystate.operators.runtime.row_operator import LATEST, RowLists
from pystate.operators.runtime.task import Operator
from pystate.spark.base.frame_columns import (
    FrameColumns,
    column_named,
    column_text,
    key_column,
    key_text,
    whole_key,
)
from pystate.spark.base.partial_aggregation import (
    NOT_INVALID,
    ORDERED,
    WITHOUT_ZONE,
    Combine,
    CombinedColumn,
    Function,
    checked_combine,
    combined_rows,
    event_ms,
    may_combine,
)
from pystate.spark.base.schemas import (
    ddl_of,
    key_leaves,
    names_twice,
    output_columns,
    refuse_reserved,
)
from pystate.spark.evaluation.initial_state import Given
from pystate.spark.evaluation.updates import Updates
from pystate.spark.operators.apply import apply
from pystate.spark.operators.inputs import KeyedInput
from pystate.spark.tasks.range_task import OperatorPlan
from pystate.state.aggregators import Aggregator, Count, Max, Min, Sum
from pystate.state.declaration import State
from pystate.state.identity import StoredFold, stored_aggregate
from pystate.state.operator_spec import OperatorSpec
from pystate.types.keys import parse_key
from pystate.types.state_type import parse_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Columns that are sent for what an update is of, in front of a number.
_IDENTITY = "__pystate_identity_"
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
_TIMES = f"{_VALUE}time"


def aggregate(
    rows: KeyedInput,
    unnamed: Sequence[Any],
    initial_state: Given | None,
    combine: Combine,
    aggregates: Mapping[str, Any],
) -> DataFrame:
    """See `KeyedFrame.aggregate`."""
    uid, owner = checked_uid(rows.uid), rows.owner
    checked_combine(combine, owner)
    updates = rows.updates("aggregate")
    if updates is not None and updates.frame is not rows.frame:
        # What the updates are of has been dropped, and is taken along.
        keys, time = [column_text(name) for name in rows.names], rows.event_time
        options = replace(rows.options, event_time=None if time is None else column_text(time))
        rows = KeyedInput.by(rows.evaluation, updates.frame, keys, uid, options)
        return aggregate(rows, unnamed, initial_state, combine, aggregates)
    if updates is not None:
        _check_over_updates(rows, updates, initial_state, combine)
    columns = rows.columns.copy()
    plan = AggregatePlan.of(rows, columns, unnamed, aggregates)
    selected, spec = plan.selected(), plan.spec()
    states: Mapping[str, State[Any]] = spec.states
    make: Callable[[], Operator] = partial(AggregateOperator, spec)
    if updates is not None:
        beside = [name for name in updates.identity if name not in rows.names]
        identity = {f"{_IDENTITY}{i}": name for i, name in enumerate(beside)}
        selected |= {name: column_named(of).alias(name) for name, of in identity.items()}
        sent = columns.frame.select(*selected.values()).schema
        states, make = plan.over_updates(spec, sent, [*identity])
    if rows.invalid.tag is not None:
        selected |= {
            name: column_named(name) for name in rows.invalid.columns if name not in selected
        }
    application = rows.application(
        OperatorSpec(uid, parse_key(rows.keys), states), make, plan.declared
    )
    out = apply(
        rows.evaluation,
        replace(
            application,
            frames=[columns.frame],
            route=rows.selecting(
                lambda frame, more: frame.select(*selected.values(), *more),
                [*selected],
                ordered=plan.ordered,
            ),
            earlier=rows.earlier_rows(columns),
            state=initial_state,
            combined=partial(plan.combine, combine, spec) if updates is None else None,
            finish=partial(_with_structs, rows, [*aggregates]),
        ),
    )
    return rows.evaluation.emits_updates(uid, out, rows.names)


def _check_over_updates(
    rows: KeyedInput, updates: Updates, initial_state: Given | None, combine: Combine
) -> None:
    if initial_state is not None:
        rows.refuse_updates(
            "aggregate", updates.uid, "initial_state has aggregates, and not what they are of"
        )
    if combine is True:
        rows.refuse_updates(
            "aggregate", updates.uid, "combine=True combines rows, and these replace others"
        )


def _with_structs(rows: KeyedInput, results: Sequence[str], frame: DataFrame) -> DataFrame:
    """Make structs of the key's fields, which were sent on their own."""
    if [*rows.key_names] == rows.names:
        return frame
    schema = rows.frame.schema
    keys = [whole_key(schema[name], marked=rows.marked) for name in rows.names]
    return frame.select(*keys, *map(column_named, results))


class AggregatePlan:
    """Turns aggregates into states, updates, input columns and result columns."""

    def __init__(self, rows: KeyedInput, frame: DataFrame) -> None:
        self._rows = rows
        self._owner = rows.owner
        self._frame = frame
        self._schema = frame.schema
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

    @classmethod
    def of(
        cls,
        rows: KeyedInput,
        columns: FrameColumns,
        unnamed: Sequence[Any],
        aggregates: Mapping[str, Any],
    ) -> AggregatePlan:
        """Check the aggregates that a user gave; fields of structs are added to the columns."""
        owner = rows.owner
        if unnamed:
            raise InvalidArgumentError(
                f"{owner}: give {unnamed[0]!s:.80} the name of its result column, e.g. n=ps.count()"
            )
        if not aggregates:
            raise InvalidArgumentError(f"{owner}: name at least one aggregate, e.g. n=ps.count()")
        resolved = {
            name: _with_column(name, each, columns, owner) for name, each in aggregates.items()
        }
        names = [*rows.names, *aggregates]
        refuse_reserved(names, owner)
        twice = names_twice(names)
        if twice:
            raise InvalidArgumentError(
                f"{owner}: two columns of the result are called {', '.join(twice)}: key "
                "columns and aggregates have names that differ in more than case"
            )
        plan = cls(rows, columns.frame)
        for name, each in resolved.items():
            plan.add(name, each)
        return plan

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

    @property
    def declared(self) -> st.StructType:
        """The columns that the tasks emit."""
        rows = self._rows
        leaves = key_leaves(rows.frame.schema, rows.names, marked=rows.marked)
        return st.StructType([*(st.StructField(*leaf) for leaf in leaves), *self.fields])

    def selected(self) -> dict[str, Column]:
        """What is sent, by name: only what is aggregated, cast if the state is wider."""
        rows = self._rows
        selected = {name: key_column(self._frame, name).alias(name) for name in rows.key_names}
        selected |= self.inputs
        if rows.event_time is not None:
            selected[_TIMES] = column_named(rows.event_time).alias(_TIMES)
        return selected

    def spec(self) -> Aggregates:
        """What the tasks aggregate."""
        updates, results = tuple(self.updates), tuple(self.results)
        times = None if self._rows.event_time is None else _TIMES
        output = output_columns(self.declared, self._owner)
        return Aggregates(self._rows.key_names, self.states, updates, results, output, times)

    def over_updates(
        self, spec: Aggregates, selected: st.StructType, identity: Sequence[str]
    ) -> tuple[Mapping[str, State[Any]], Callable[[], Operator]]:
        """The state over updates, and what makes the operator of a task.

        `identity` are the columns that are sent for what an update is of, beside the key.
        """
        columns = tuple(
            (field.name, parse_type(field.dataType, f"{self._owner}: column {field.name!r}"))
            for field in selected
            if field.name not in spec.key and field.name != _TIMES
        )
        make = partial(UpdatesOperator, spec, tuple(identity), columns)
        return {LATEST: RowLists.declared(columns)}, make

    def combine(
        self, wanted: Combine, spec: Aggregates, plan: OperatorPlan
    ) -> tuple[DataFrame, Sequence[str], Callable[[], Operator]] | None:
        """Combine the rows before the shuffle, unless that cannot be done or does not pay."""
        rows, frame, time = self._rows, self._frame, None
        if rows.invalid.of_each:
            if wanted is True:
                raise InvalidArgumentError(f"{self._owner}: combine=True: {NOT_INVALID}")
            return None
        if rows.event_time is not None:
            data_type = self._schema[rows.event_time].dataType
            time = event_ms(column_text(rows.event_time), data_type)
        why = self.uncombined
        if self.ordered and rows.order_by:
            why = ORDERED
        elif rows.event_time is not None and time is None:
            why = WITHOUT_ZONE
        if not may_combine(wanted, why, self._owner):
            return None
        if wanted is not True and not rows.evaluation.combines(plan.operator.uid):
            return None
        groups = [(name, key_text(frame.columns, name)) for name in rows.key_names]
        bound = None if plan.time is None else plan.time.late_bound_ms
        partials = combined_rows(frame, groups, self.combined, time, bound)
        spec = replace(spec, event_time=None if time is None else TIME)
        make = partial(AggregateOperator, spec, combined=True)
        return rows.routed(partials, plan), partials.columns, make

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
            f"{data_type.simpleString()}, not {wanted}: cast it before key_by, or name another one"
        )


def _with_column(name: str, given: Any, columns: FrameColumns, owner: str) -> Aggregate:
    """The aggregate, with its column under the name that the frame has for it."""
    if not isinstance(given, Aggregate):
        raise InvalidArgumentError(
            f"{owner}: {name}={given!r:.80} is no aggregate; write {name}=ps.count(), "
            f"or ps.sum, ps.min, ps.max or ps.mean with a column"
        )
    if given.column is None:
        return given
    return given._replace(column=columns.take(given.column, str(given)))
