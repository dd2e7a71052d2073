"""The stateful operator of the RDD API: a function for `mapPartitions`.

Thread safety: immutable; each call makes a task of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.core.rdd import RDD

from pystate.base.arguments import shown
from pystate.errors import DeclarationError, InvalidArgumentError
from pystate.operators.functions.base import KeyedProcessFunction
from pystate.operators.functions.binding import for_tasks, operator_spec, shape
from pystate.operators.runtime.function_operator import FunctionOperator
from pystate.operators.runtime.function_spec import FunctionSpec
from pystate.operators.runtime.late_rows import PROCESS_LATE, checked_late, late_tag
from pystate.operators.runtime.output import RowsAsYielded
from pystate.spark.base.arguments import element_input, side_columns
from pystate.spark.base.connection import at_once
from pystate.spark.base.routing import KeyRouter, Routed, route_rdd
from pystate.spark.base.schemas import output_columns, parse_schema
from pystate.spark.evaluation.initial_state import Given, initial_of
from pystate.spark.tasks.arrivals import ElementRows
from pystate.spark.tasks.range_task import OperatorPlan, RangeTask
from pystate.spark.tasks.worker import Arrived, run_task
from pystate.types.durations import Duration
from pystate.types.keys import parse_key
from pystate.types.state_type import TypeLike, is_spark_type

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pystate.spark.evaluation.evaluation import Evaluation

_CHUNK = 4096


def split_rdd(
    evaluation: Evaluation,
    rdd: Any,
    key: Callable[[Any], Any],
    key_type: TypeLike | Sequence[TypeLike],
    uid: str,
    event_time: Callable[[Any], object] | None,
    allowed_delay: Duration | None,
    idle_after: Duration | None,
) -> RDD[Routed]:
    """The implementation of ``Job.partition_by``."""
    owner = f"operator {uid!r}"
    if not isinstance(rdd, RDD):
        hint = "; a DataFrame has key_by" if hasattr(rdd, "columns") else ""
        raise InvalidArgumentError(f"{owner}: rdd is an RDD, not {shown(rdd)}{hint}")
    if not callable(key):
        raise InvalidArgumentError(
            f"{owner}: key is a function from an element to its key, such as lambda row: row.user, "
            f"not {shown(key)}"
        )
    if not _is_type(key_type) and not _is_several(key_type):
        raise InvalidArgumentError(
            f"{owner}: key_type is the key's type, such as 'long', or a list of one for each part, "
            f"not {shown(key_type)}"
        )
    given = element_input(event_time, allowed_delay, idle_after, owner)
    types: list[Any] = list(key_type) if isinstance(key_type, (list, tuple)) else [key_type]
    names = ["key"] if len(types) == 1 else [f"key{i}" for i in range(len(types))]
    columns = tuple(zip(names, types, strict=True))
    split = evaluation.note_split(uid, columns, event_time, given)
    groups = evaluation.epoch.max_parallelism
    return route_rdd(rdd, key, KeyRouter(uid, split.keys, groups, evaluation.parallelism))


def _is_type(key_type: object) -> bool:
    return isinstance(key_type, (str, pa.DataType)) or is_spark_type(key_type)


def _is_several(key_type: object) -> bool:
    return isinstance(key_type, (list, tuple)) and len(key_type) > 0


def rdd_operator(
    evaluation: Evaluation,
    function: KeyedProcessFunction,
    uid: str,
    schema: str | StructType | None,
    side_outputs: Mapping[str, str | StructType] | None,
    late: str,
    initial_state: Given | None = None,
    initial_timers: Given | None = None,
) -> RoutedOperator:
    """The implementation of ``Job.partitions``."""
    if shape(function) != "process":
        raise DeclarationError(
            f"operator {uid!r}: over an RDD a function needs process(self, key, row, ctx); "
            "the batch shapes need a DataFrame and key_by"
        )
    owner = f"operator {uid!r}"
    split = evaluation.noted_split(uid)
    sides = side_columns(side_outputs, owner)
    checked_late(late, sides, owner)
    if late != PROCESS_LATE and split.event_time is None:
        raise InvalidArgumentError(
            f"{owner}: late={late!r} is for elements that come late by their event time: pass "
            "partition_by a function that says it, event_time=lambda element: ..."
        )
    tag = late_tag(late)
    if tag is not None and tag not in sides:
        raise InvalidArgumentError(
            f"{owner}: late={tag!r} takes elements of the RDD: name their columns, "
            f"side_outputs={{{tag!r}: 'k string, v long'}}"
        )
    for_tasks(function, cloudpickle.dumps)
    check = None if schema is None else output_columns(parse_schema(schema, owner), owner)
    spec = FunctionSpec(
        function,
        key=tuple(column for column, _ in split.keys),
        columns=(),
        output=RowsAsYielded(check),
        event_time=split.event_time,
        side_outputs=sides,
        late=late,
    )
    plan = evaluation.declare(
        operator_spec(function, uid, parse_key(split.keys)),
        split.keys,
        inputs=(split.input,),
        sides={tag: columns.schema for tag, columns in sides.items()},
        initial=initial_of(None, initial_state, initial_timers, owner),
    )
    return RoutedOperator(plan, spec)


class RoutedOperator:
    """The function that ``Job.partitions`` returns; `spec` calls the user's per element."""

    def __init__(self, plan: OperatorPlan, spec: FunctionSpec) -> None:
        self._plan = plan
        self._spec = spec

    def __call__(self, elements: Iterator[Routed]) -> Iterator[Any]:
        """Run the task."""
        task, operator = RangeTask(self._plan), FunctionOperator(self._spec)
        arrived, arrivals = at_once(_chunks(elements)), ElementRows(self._plan.router)
        for emitted in run_task(task, operator, arrived, arrivals, len):
            yield from emitted


def _chunks(elements: Iterator[Routed]) -> Iterator[Arrived]:
    while chunk := list(islice(elements, _CHUNK)):
        markers = [routed.marker for routed in chunk if routed.marker is not None]
        rows = [routed for routed in chunk if routed.marker is None]
        yield rows or None, markers
