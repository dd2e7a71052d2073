"""From the aggregates of `KeyedFrame.aggregate` to states, updates and columns.

Thread safety: an `AggregatePlan` belongs to the thread that makes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import types as st

from pystate.errors import InvalidArgumentError, WrongTypeError
from pystate.functions.aggregates import Aggregate
from pystate.spark.base.resolve import column_named
from pystate.spark.base.schemas import ddl_of
from pystate.spark.tasks.bodies import Operation, StateUpdate
from pystate.state.declaration import State
from pystate.state.value import ValueState

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["VALUE", "AggregatePlan"]

_INTEGERS = (st.ByteType, st.ShortType, st.IntegerType, st.LongType)
_FLOATS = (st.FloatType, st.DoubleType)
_ORDERED = (
    *_INTEGERS,
    *_FLOATS,
    st.DecimalType,
    st.DateType,
    st.TimestampType,
    st.TimestampNTZType,
)
#: How the columns are called that tasks get for aggregates, in front of a number.
VALUE = "__pystate_value_"


class AggregatePlan:
    """Turns aggregates into states, updates, input columns and result columns."""

    def __init__(self, owner: str, schema: st.StructType) -> None:
        self._owner = owner
        self._schema = schema
        self.states: dict[str, State[Any]] = {}
        self.updates: list[StateUpdate] = []
        self.inputs: dict[str, Column] = {}
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
            self._state(f"{name}.sum", "double", None)
            self._count(f"{name}.count", column, shown)
            self._update(f"{name}.sum", "add", column, st.DoubleType(), shown)
            self._result(name, st.DoubleType(), f"{name}.sum", f"{name}.count")
            return
        operation: Operation = "add" if kind == "sum" else kind
        if kind == "sum":
            result = self._sum_type(aggregate)
        else:
            result = self._ordered_type(aggregate)
        ddl = ddl_of(result)
        assert ddl is not None
        self._state(name, ddl, None)
        self._update(name, operation, column, result, shown)
        self._result(name, result, name, None)

    def _count(self, state: str, column: str | None, shown: str) -> None:
        self._state(state, "long", 0)
        if column is None:
            self.updates.append(StateUpdate(state, "add", None, shown))
            return
        source = f"{VALUE}{len(self.inputs)}"
        self.inputs[source] = column_named(column).isNotNull().cast("long").alias(source)
        self.updates.append(StateUpdate(state, "add", source, shown))

    def _update(
        self, state: str, operation: Operation, column: str, as_type: st.DataType, shown: str
    ) -> None:
        source = f"{VALUE}{len(self.inputs)}"
        self.inputs[source] = column_named(column).cast(as_type).alias(source)
        self.updates.append(StateUpdate(state, operation, source, shown))

    def _state(self, name: str, ddl: str, default: int | None) -> None:
        if name in self.states:
            raise InvalidArgumentError(f"{self._owner}: two aggregates would keep {name!r}")
        self.states[name] = ValueState(ddl, default)
        self.ordered = self.ordered or ddl in ("float", "double")

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
