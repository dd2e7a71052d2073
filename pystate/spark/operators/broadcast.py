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

Thread safety: immutable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pyspark.sql import functions as F
from pyspark.sql import types as st

from pystate.base.arguments import choice
from pystate.epochs.watermarks import Input
from pystate.errors import InvalidArgumentError
from pystate.operators.functions.base import BroadcastFunction
from pystate.operators.functions.binding import broadcast_states, shape
from pystate.operators.runtime.function_operator import BROADCAST
from pystate.operators.runtime.function_spec import BroadcastInput, FunctionSpec
from pystate.operators.runtime.instance_state import instance_spec
from pystate.operators.runtime.late_rows import PROCESS_LATE
from pystate.spark.base.arguments import OrderBy
from pystate.spark.base.resolve import FrameColumns, column_named
from pystate.spark.base.routing import RANGE_COLUMN, marker_rows, range_of
from pystate.spark.base.schemas import output_columns, refuse_reserved
from pystate.spark.evaluation.initial import Given
from pystate.spark.operators.apply import Application
from pystate.spark.operators.inputs import input_of
from pystate.spark.tasks.arrivals import BroadcastRows
from pystate.spark.tasks.range_task import OperatorPlan
from pystate.state.operator_state import INSTANCE_SCHEMA, KeylessState
from pystate.types.durations import Duration

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from pystate.spark.evaluation.evaluation import Evaluation

__all__ = ["BroadcastApplied", "BroadcastFrame", "BroadcastFrames"]

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

    def states(self, spec: FunctionSpec) -> Mapping[str, KeylessState[Any]]:
        """The broadcast states of the function.

        Raises
        ------
        InvalidArgumentError
            The function's shape cannot have its inputs interleaved.
        """
        if self.interleave is not None and shape(spec.function) == "process_rows":
            raise InvalidArgumentError(
                f"{self.owner}: {type(spec.function).__name__} has process_rows, which gets all "
                "rows of a key at once: write process, or leave interleave out"
            )
        return broadcast_states(spec.function)

    def applied(
        self,
        keyed: Application,
        states: Mapping[str, KeylessState[Any]],
        keys: Sequence[str],
        order_by: Sequence[Column],
    ) -> Application:
        """The operator with both inputs; the broadcast states are declared beside it.

        Parameters
        ----------
        keyed : Application
            The operator and its keyed rows.
        states : mapping of str to KeylessState
            The broadcast states.
        keys : sequence of str
            The key columns.
        order_by : sequence of Column
            The order of keyed rows.
        """
        rules, frame = self.rules, keyed.frames[0]
        columns = tuple(rules.frame.columns)
        return replace(
            keyed,
            route=partial(self._routed, keys, order_by),
            counted=False,
            arrivals=BroadcastRows(len(frame.columns), columns),
            beside=lambda: rules.evaluation.declare(
                instance_spec(rules.uid, states), INSTANCE_SCHEMA
            ),
        )

    def _routed(
        self,
        keys: Sequence[str],
        order_by: Sequence[Column],
        frames: Sequence[DataFrame],
        plan: OperatorPlan,
    ) -> tuple[DataFrame, Sequence[str]]:
        """All rows in front of their tasks, in order."""
        [frame], parallelism = frames, plan.parallelism
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
        numbers = (f"{_RULE}{i}" for i in range(len(rules.columns)))
        names = [*frame.columns, _TARGET, *numbers]
        return routed.sortWithinPartitions(*by, *order_by).drop(_PART, _ORDINAL, _TIME), names


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
