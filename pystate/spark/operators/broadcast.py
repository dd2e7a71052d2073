"""The broadcast pattern: a keyed input, and rules that each instance of its operator sees.

Two operators run in the same tasks. The keyed one has the function's keyed states, under its own
uid; the other one has the broadcast states, a copy per instance, under the broadcast's uid.

Order
-----
The rules are numbered where they are together, in one partition, sorted by what the user says and
then by the whole row. Only then each is copied to all ranges. So all instances see one order, and
one evaluation of the rules supplies all copies. In front of the tasks the number is all that is
sorted by: keyed rows and the marker have numbers above those of all rules. Spark sorts by a single
number with a radix sort, which costs a fifth of the shuffle. A union of frames that are shuffled
alike would need no sort, but Spark keeps their partitions apart.

Thread safety: frames are immutable; a body belongs to its task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql import types as st

from pystate.arguments import choice
from pystate.checkpoint.refs import INPUT
from pystate.coordinator.range_report import InputSeen
from pystate.coordinator.watermarks import Input
from pystate.errors import EvaluationError, InvalidArgumentError
from pystate.functions.binding import broadcast_states, shape
from pystate.functions.broadcast import BroadcastFunction
from pystate.functions.context import RuntimeContext
from pystate.operator.function_spec import PROCESS_LATE, BroadcastInput, FunctionSpec
from pystate.operator.instance_state import InstanceState, instance_spec
from pystate.operator.runtime import FunctionRuntime
from pystate.spark.base.arguments import OrderBy
from pystate.spark.base.resolve import FrameColumns, column_named
from pystate.spark.base.routing import RANGE_COLUMN, marker_rows, range_of
from pystate.spark.base.schemas import output_columns, refuse_reserved
from pystate.spark.evaluation.initial import Given
from pystate.spark.operators.arrow_map import arrow_map
from pystate.spark.operators.inputs import input_of
from pystate.spark.tasks.bodies import FunctionBody
from pystate.spark.tasks.instances import instance_of
from pystate.spark.tasks.paired_task import PairedTask
from pystate.spark.tasks.range_task import OperatorPlan, RangeTask
from pystate.spark.tasks.worker import ArrowOperator, Body
from pystate.state.operator_state import INSTANCE_SCHEMA, KeylessState
from pystate.types.durations import Duration

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from pystate.spark.evaluation.evaluation import Evaluation

__all__ = ["BroadcastApplied", "BroadcastFrame", "BroadcastFrames"]

#: The name of the broadcast input in checkpoints.
BROADCAST = "broadcast"
#: The range of a rule's copy; null in keyed rows.
_TARGET = "__pystate_target"
#: The range of any row.
_PART = "__pystate_part"
_ORDINAL = "__pystate_ordinal"
_TIME = "__pystate_time"
_RULE = "__pystate_rule_"
#: Above the numbers of all rules.
_ROWS, _MARKERS = 1 << 62, (1 << 63) - 1

Interleave = Literal["event_time"] | None


class BroadcastFrame:
    """One epoch's rows for all instances of an operator, made by `Job.broadcast`.

    Parameters
    ----------
    evaluation : Evaluation
        The open epoch.
    frame : DataFrame
        The rows.
    uid : str
        Names the broadcast states in checkpoints.
    order_by : str, Column or a sequence of them, optional
        The order of the rows.
    event_time : str, optional
        The column of the rows' event time.
    allowed_delay : str, timedelta or int, optional
        How late a row may be by its event time.
    idle_after : str, timedelta or int, optional
        After how long without rows the input is idle.
    """

    def __init__(
        self,
        evaluation: Evaluation,
        frame: DataFrame,
        uid: str,
        order_by: OrderBy = None,
        event_time: str | None = None,
        allowed_delay: Duration | None = None,
        idle_after: Duration | None = None,
    ) -> None:
        owner = f"broadcast {uid!r}"
        refuse_reserved(frame.columns, owner)
        columns = FrameColumns(frame, owner)
        self.evaluation = evaluation
        self.uid = uid
        self.frame, self.event_time, self.order_by, given, _ = input_of(
            evaluation,
            columns,
            owner,
            event_time,
            allowed_delay,
            idle_after,
            order_by,
            follows=False,
        )
        output_columns(self.frame.schema, owner)
        #: What it means for the operator's watermark; without event time nothing.
        self.inputs: tuple[Input, ...] = ()
        if event_time is not None:
            self.inputs = (replace(given, name=BROADCAST),)


class BroadcastFrames:
    """A keyed input and a broadcast one, made by `KeyedFrame.connect`.

    Parameters
    ----------
    owner : str
        Names the operator in errors.
    event_time : str or None
        The column of the keyed rows' event time.
    rules : BroadcastFrame
        The broadcast input.
    apply : callable
        Applies a function to both.
    """

    def __init__(
        self,
        owner: str,
        event_time: str | None,
        rules: BroadcastFrame,
        apply: Callable[..., DataFrame],
    ) -> None:
        self._owner = owner
        self._event_time = event_time
        self._rules = rules
        self._apply = apply

    def process(
        self,
        function: BroadcastFunction,
        schema: str | st.StructType,
        *,
        side_outputs: Mapping[str, str | st.StructType] | None = None,
        late: Literal["process", "drop"] | str = PROCESS_LATE,
        interleave: Interleave = None,
        initial_state: Given | None = None,
        initial_timers: Given | None = None,
    ) -> DataFrame:
        """Run a function over the keyed rows and, on each instance, over all broadcast rows.

        Parameters
        ----------
        function : KeyedBroadcastProcessFunction or VectorizedBroadcastFunction
            An instance; it is pickled to the workers.
        schema : str or StructType
            The columns that it yields, as DDL.
        side_outputs : mapping from tag to str or StructType, optional
            As in `KeyedFrame.process`.
        late : {"process", "drop"} or str
            What happens to keyed rows below the watermark, as in `KeyedFrame.process`. Broadcast
            rows are never dropped.
        interleave : "event_time", optional
            Handle the rows of both inputs in the order of their event times, broadcast rows first
            where they are equal, and rows without a time before all others. By default an epoch's
            broadcast rows come before its keyed rows.
        initial_state, initial_timers : DataFrame or callable, optional
            The keyed states before the operator's first epoch, as in `KeyedFrame.process`.

        Returns
        -------
        DataFrame
            What the function yields. What it yields for a broadcast row is there once for each
            instance.

        Raises
        ------
        DeclarationError
            The function's shape or states are not valid.
        InvalidArgumentError
            `interleave` is asked for, and an input has no event time, or the function has
            ``process_rows``, which gets all rows of a key at once.
        SchemaError
            The checkpoint holds the operator's state in other types.
        """
        if interleave is not None:
            choice(interleave, f"{self._owner}: interleave", ("event_time",))
            missing = [
                call
                for call, column in (
                    ("key_by", self._event_time),
                    ("broadcast", self._rules.event_time),
                )
                if column is None
            ]
            if missing:
                raise InvalidArgumentError(
                    f"{self._owner}: interleave='event_time' puts the rows of both inputs in the "
                    f"order of their times: name the column, {missing[0]}(..., event_time='column')"
                )
        applied = BroadcastApplied(
            self._rules, None if interleave is None else self._event_time, self._owner
        )
        initial = initial_state, initial_timers
        return self._apply(function, schema, side_outputs, late, initial, applied)


class BroadcastApplied(NamedTuple):
    """How a broadcast input is applied to an operator."""

    rules: BroadcastFrame
    interleave: str | None
    """The column of the keyed rows' event time, if that is the order of all rows."""
    owner: str

    @property
    def inputs(self) -> tuple[Input, ...]:
        """What it means for the operator's watermark."""
        return self.rules.inputs

    @property
    def spec(self) -> BroadcastInput:
        """The input as the function sees it."""
        return BroadcastInput(tuple(self.rules.frame.columns), self.rules.event_time)

    def run(
        self,
        spec: FunctionSpec,
        frame: DataFrame,
        keys: Sequence[str],
        order_by: Sequence[Column],
        plan: OperatorPlan,
        declared: st.StructType,
    ) -> DataFrame:
        """Declare the broadcast states, and run the function over both inputs.

        Parameters
        ----------
        spec : FunctionSpec
            The function.
        frame : DataFrame
            The keyed rows.
        keys : sequence of str
            The key columns.
        order_by : sequence of Column
            The order of keyed rows.
        plan : OperatorPlan
            The keyed operator.
        declared : StructType
            The columns of the result.
        """
        if self.interleave is not None and shape(spec.function) == "process_rows":
            raise InvalidArgumentError(
                f"{self.owner}: {type(spec.function).__name__} has process_rows, which gets all "
                "rows of a key at once: write process, or leave interleave out"
            )
        states = broadcast_states(spec.function)
        beside = self.rules.evaluation.declare(
            instance_spec(self.rules.uid, states), INSTANCE_SCHEMA
        )
        routed = self._routed(frame, keys, order_by, plan)
        names = [
            *frame.columns,
            _TARGET,
            *(f"{_RULE}{i}" for i in range(len(self.rules.frame.columns))),
        ]
        body = partial(_body, spec, states, len(frame.columns))
        make = partial(BroadcastOperator, beside=beside)
        out = arrow_map(routed, plan, names, body, declared, make)
        return self.rules.evaluation.output(plan.operator.uid, out, beside=[self.rules.uid])

    def _routed(
        self, frame: DataFrame, keys: Sequence[str], order_by: Sequence[Column], plan: OperatorPlan
    ) -> DataFrame:
        """All rows in front of their tasks, in order."""
        parallelism = plan.parallelism
        rules = self.rules.frame
        parts = range_of(frame, keys, plan.operator.max_parallelism, parallelism)
        rows = frame.select(
            "*",
            F.lit(None).cast("int").alias(_TARGET),
            F.expr(f"{parts} AS {_PART}"),
            F.lit(_ROWS).alias(_ORDINAL),
            *_times(frame, self.interleave),
        )
        whole = F.to_json(F.struct(*map(column_named, rules.columns)))
        one = rules.repartition(1).sortWithinPartitions(*self.rules.order_by, whole)
        numbered = one.select(
            *(column_named(name).alias(f"{_RULE}{i}") for i, name in enumerate(rules.columns)),
            F.monotonically_increasing_id().alias(_ORDINAL),
            *_times(rules, None if self.interleave is None else self.rules.event_time),
        )
        copies = numbered.select(
            "*", F.explode(F.sequence(F.lit(0), F.lit(parallelism - 1))).alias(_TARGET)
        ).withColumn(_PART, column_named(_TARGET))
        markers = marker_rows(frame.sparkSession, parallelism).select(
            "*", column_named(RANGE_COLUMN).alias(_PART), F.lit(_MARKERS).alias(_ORDINAL)
        )
        united = rows.unionByName(copies, allowMissingColumns=True).unionByName(
            markers, allowMissingColumns=True
        )
        # A plain repartition could be coalesced by adaptive execution; this one keeps its count.
        routed = united.repartitionById(parallelism, column_named(_PART))
        by = [column_named(_ORDINAL)]
        if self.interleave is not None:
            by = [column_named(RANGE_COLUMN).asc_nulls_first(), column_named(_TIME), *by]
        return routed.sortWithinPartitions(*by, *order_by).drop(_PART, _ORDINAL, _TIME)


class BroadcastOperator(ArrowOperator):
    """The tasks of a keyed operator and of its broadcast states.

    Parameters
    ----------
    plan : OperatorPlan
        The keyed operator.
    body : callable
        Makes the task's own body.
    names : sequence of str
        The names of the arriving columns, except the last one.
    beside : OperatorPlan
        The operator that has the broadcast states.
    """

    def __init__(
        self,
        plan: OperatorPlan,
        body: Callable[[RangeTask], Body],
        names: Sequence[str],
        beside: OperatorPlan,
    ) -> None:
        super().__init__(plan, body, names)
        self._beside = beside

    def task(self) -> RangeTask:
        """Make the task's ranges, one of each operator."""
        return PairedTask(self._plan, self._beside)

    def owner(self) -> Callable[[pa.RecordBatch], int]:
        """Return a function that gives the range of the first of some rows."""
        of_key = super().owner()

        def owner(rows: pa.RecordBatch) -> int:
            target = rows.column(_TARGET)[0].as_py()
            return of_key(rows) if target is None else int(target)

        return owner


class BroadcastBody(FunctionBody):
    """A user's function over the range's keyed rows and the rules.

    Parameters
    ----------
    spec : FunctionSpec
        The function.
    states : mapping of str to KeylessState
        Its broadcast states.
    count : int
        The number of the keyed rows' columns.
    task : PairedTask
        The range.
    """

    def __init__(
        self,
        spec: FunctionSpec,
        states: Mapping[str, KeylessState[Any]],
        count: int,
        task: PairedTask,
    ) -> None:
        super().__init__(spec, task)
        assert spec.broadcast is not None, "a function with a broadcast input"
        self._pair = task
        self._states = states
        self._count = count
        self._columns = spec.broadcast.columns

    def _made(self, context: RuntimeContext, **options: Any) -> FunctionRuntime:
        beside = self._pair.beside
        states = InstanceState(beside.backend, instance_of(beside), self._states)
        if beside.redistributes:
            with closing(beside.whole_state()) as old:
                states.redistribute(old)
        states.open()
        return super()._made(context, broadcast=states, **options)

    def process(self, rows: pa.RecordBatch) -> Iterator[Any]:
        """Call the function for rows of both inputs, in their order."""
        task, count = self._pair, self._count
        for target, part in _runs(rows, count):
            if target is None:
                yield from self._runtime.process(part.select(range(count)))
                continue
            if target != task.state.index:
                raise EvaluationError(
                    f"{task.plan.describe(task.state.index)}: the partition also holds broadcast "
                    f"rows of range {target}: rows were moved between the shuffle and the operator"
                )
            # The worker has counted them as rows of the keyed operator.
            task.rows_in -= part.num_rows
            task.beside.rows_in += part.num_rows
            columns = part.columns[count + 1 :]
            yield from self._runtime.process_broadcast(
                pa.RecordBatch.from_arrays(columns, names=list(self._columns))
            )

    def finish(self) -> Iterator[Any]:
        """Call the function for rows that were held back and for timers that are due."""
        yield from super().finish()
        task, runtime = self._pair, self._runtime
        task.note_inputs(
            [
                InputSeen(INPUT, task.rows_in, runtime.max_event_time),
                InputSeen(BROADCAST, task.beside.rows_in, runtime.max_event_times.get(BROADCAST)),
            ]
        )


def _body(
    spec: FunctionSpec,
    states: Mapping[str, KeylessState[Any]],
    count: int,
    task: RangeTask,
) -> Body:
    assert isinstance(task, PairedTask)
    return BroadcastBody(spec, states, count, task)


def _runs(rows: pa.RecordBatch, column: int) -> Iterator[tuple[int | None, pa.RecordBatch]]:
    """The rows of one input after the other, with the range that broadcast rows are for."""
    targets = rows.column(column)
    if targets.null_count == len(targets):
        yield None, rows
        return
    found = targets.fill_null(-1).to_numpy(zero_copy_only=False)
    starts = [0, *(np.flatnonzero(np.diff(found)) + 1).tolist(), len(found)]
    for begin, end in pairwise(starts):
        target = int(found[begin])
        yield None if target < 0 else target, rows.slice(begin, end - begin)


def _times(frame: DataFrame, event_time: str | None) -> list[Column]:
    """The column to interleave by, in milliseconds, if there is one."""
    if event_time is None:
        return []
    column, data_type = column_named(event_time), frame.schema[event_time].dataType
    if isinstance(data_type, st.DateType):
        found = F.unix_date(column).cast("long") * F.lit(86_400_000).cast("long")
    elif isinstance(data_type, st.TimestampNTZType):
        # As elsewhere it is taken as UTC, whatever the session's time zone is.
        date = F.year(column), F.month(column), F.dayofmonth(column)
        seconds = F.extract(F.lit("SECOND"), column)
        found = F.unix_millis(
            F.make_timestamp(*date, F.hour(column), F.minute(column), seconds, F.lit("UTC"))
        )
    elif isinstance(data_type, st.TimestampType):
        found = F.unix_millis(column)
    else:
        found = column
    return [found.alias(_TIME)]
