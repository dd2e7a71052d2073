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

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from pyspark.sql import functions as F
from pyspark.sql import types as st

from pystate.base.arguments import checked_uid, choice
from pystate.errors import InvalidArgumentError
from pystate.operators.functions.base import BroadcastFunction
from pystate.operators.functions.binding import broadcast_states, shape
from pystate.operators.runtime.function_operator import BROADCAST, FunctionOperator
from pystate.operators.runtime.function_spec import BroadcastInput
from pystate.operators.runtime.instance_state import instance_spec
from pystate.operators.runtime.late_rows import PROCESS_LATE
from pystate.spark.base.frame_columns import FrameColumns, column_named
from pystate.spark.base.routing import RANGE_COLUMN, marker_rows, range_of
from pystate.spark.base.schemas import output_columns, refuse_reserved
from pystate.spark.evaluation.initial_state import Given
from pystate.spark.operators.apply import apply
from pystate.spark.operators.functions import keyed_function
from pystate.spark.operators.inputs import InputFrame, InputOptions, KeyedInput
from pystate.spark.tasks.arrivals import BroadcastRows
from pystate.spark.tasks.range_task import OperatorPlan
from pystate.state.operator_state import INSTANCE_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from pystate.spark.evaluation.evaluation import Evaluation

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
    """One epoch's rows for all instances of an operator, made by `Job.broadcast`."""

    def __init__(
        self, evaluation: Evaluation, frame: DataFrame, uid: str, options: InputOptions
    ) -> None:
        owner = f"broadcast {uid!r}"
        refuse_reserved(frame.columns, owner)
        columns = FrameColumns(frame, owner)
        self._uid = uid
        self._rows = InputFrame.of(evaluation, columns, owner, options, follows=False)
        output_columns(self._rows.frame.schema, owner)


class BroadcastFrames:
    """A keyed input and a broadcast one, made by `KeyedFrame.connect`."""

    def __init__(self, rows: KeyedInput, rules: BroadcastFrame) -> None:
        checked_uid(rows.uid)
        if rows.options.initial_rows is not None:
            raise InvalidArgumentError(
                f"{rows.owner}: initial_rows would come without the broadcast rows before them: "
                "begin with states, connect(...).process(..., initial_state=frame)"
            )
        self._rows = rows
        self._rules = rules

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
        rows, rules, owner = self._rows, self._rules._rows, self._rows.owner
        if interleave is not None:
            choice(interleave, f"{owner}: interleave", ("event_time",))
            for call, column in (("key_by", rows.event_time), ("broadcast", rules.event_time)):
                if column is None:
                    raise InvalidArgumentError(
                        f"{owner}: interleave='event_time' puts the rows of both inputs in the "
                        f"order of their times: name the column, {call}(..., event_time='column')"
                    )
        columns = tuple(rules.frame.columns)
        spec, applied = keyed_function(
            rows,
            function,
            schema,
            side_outputs,
            late,
            BroadcastInput(columns, rules.event_time),
        )
        if interleave is not None and shape(function) == "process_rows":
            raise InvalidArgumentError(
                f"{owner}: {type(function).__name__} has process_rows, which gets all "
                "rows of a key at once: write process, or leave interleave out"
            )
        states = broadcast_states(function)
        beside = instance_spec(self._rules._uid, states)
        inputs = list(applied.inputs)
        if rules.event_time is not None:
            # Otherwise broadcast rows mean nothing for the watermark.
            inputs.append(replace(rules.input, name=BROADCAST))
        return apply(
            rows.evaluation,
            replace(
                applied,
                make=partial(FunctionOperator, spec, broadcast=states),
                route=partial(_routed, rows, rules, interleave is not None),
                inputs=inputs,
                state=initial_state,
                timers=initial_timers,
                counted=False,
                arrivals=BroadcastRows(len(rows.frame.columns), columns),
                beside=lambda: rules.evaluation.declare(beside, INSTANCE_SCHEMA),
            ),
        )


def _routed(
    keyed: KeyedInput,
    rules: InputFrame,
    interleaved: bool,
    frames: Sequence[DataFrame],
    plan: OperatorPlan,
) -> tuple[DataFrame, Sequence[str]]:
    """All rows in front of their tasks, in order."""
    [frame], parallelism = frames, plan.parallelism
    parts = range_of(frame, keyed.key_names, plan.operator.max_parallelism, parallelism)
    rows = frame.select(
        "*",
        F.lit(None).cast("int").alias(_TARGET),
        F.expr(f"{parts} AS {_PART}"),
        F.lit(_ROWS).alias(_ORDINAL),
        *_times(frame, keyed.event_time if interleaved else None),
    )
    columns = rules.frame.columns
    whole = F.to_json(F.struct(*map(column_named, columns)))
    one = rules.frame.repartition(1).sortWithinPartitions(*rules.order_by, whole)
    numbered = one.select(
        *(column_named(name).alias(f"{_RULE}{i}") for i, name in enumerate(columns)),
        F.monotonically_increasing_id().alias(_ORDINAL),
        *_times(rules.frame, rules.event_time if interleaved else None),
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
    if interleaved:
        by = [column_named(RANGE_COLUMN).asc_nulls_first(), column_named(_TIME), *by]
    names = [*frame.columns, _TARGET, *(f"{_RULE}{i}" for i in range(len(columns)))]
    return routed.sortWithinPartitions(*by, *keyed.order_by).drop(_PART, _ORDINAL, _TIME), names


def _times(frame: DataFrame, event_time: str | None) -> list[Column]:
    """The column to interleave by, in milliseconds, if there is one."""
    if event_time is None:
        return []
    column, data_type = column_named(event_time), frame.schema[event_time].dataType
    if isinstance(data_type, st.DateType):
        time = F.unix_date(column).cast("long") * F.lit(86_400_000).cast("long")
    elif isinstance(data_type, st.TimestampNTZType):
        # As elsewhere it is taken as UTC, whatever the session's time zone is.
        date = F.year(column), F.month(column), F.dayofmonth(column)
        seconds = F.extract(F.lit("SECOND"), column)
        time = F.unix_millis(
            F.make_timestamp(*date, F.hour(column), F.minute(column), seconds, F.lit("UTC"))
        )
    elif isinstance(data_type, st.TimestampType):
        time = F.unix_millis(column)
    else:
        time = column
    return [time.alias(_TIME)]
