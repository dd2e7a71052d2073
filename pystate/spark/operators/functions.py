"""A user's function over one input: rows by key, or rows for the instances of an operator.

Thread safety: immutable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from pyspark import cloudpickle
from pyspark.sql import types as st

from pystate.base.arguments import checked_uid
from pystate.checkpoint.refs import INPUT
from pystate.errors import WrongTypeError
from pystate.operators.functions.base import ProcessFunction, StatefulFunction
from pystate.operators.functions.binding import (
    for_tasks,
    instance_states,
    operator_spec,
    require_state,
    way_to_function,
)
from pystate.operators.runtime.function_operator import FunctionOperator
from pystate.operators.runtime.function_spec import BroadcastInput, FunctionSpec
from pystate.operators.runtime.instance_operator import InstanceOperator, works_in_every_epoch
from pystate.operators.runtime.instance_state import instance_spec
from pystate.operators.runtime.late_rows import PROCESS_LATE, checked_late
from pystate.spark.base.arguments import side_columns
from pystate.spark.base.frame_columns import FrameColumns
from pystate.spark.base.routing import INSTANCE_COLUMN, spread
from pystate.spark.base.schemas import output_columns, parse_schema, refuse_reserved
from pystate.spark.evaluation.initial_state import Given, InitialItems, checked_given
from pystate.spark.operators.apply import Application, apply
from pystate.spark.operators.inputs import InputFrame, InputOptions, KeyedInput
from pystate.spark.tasks.arrivals import InstanceRows
from pystate.spark.tasks.range_task import OperatorPlan
from pystate.state.operator_state import INSTANCE_SCHEMA
from pystate.types.keys import parse_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pystate.spark.evaluation.evaluation import Evaluation


def process(
    rows: KeyedInput,
    function: StatefulFunction,
    schema: str | st.StructType,
    side_outputs: Mapping[str, str | st.StructType] | None,
    late: str,
    initial_state: Given | None,
    initial_timers: Given | None,
) -> DataFrame:
    """See `KeyedFrame.process`."""
    _, applied = keyed_function(rows, function, schema, side_outputs, late)
    applied = replace(applied, state=initial_state, timers=initial_timers)
    return apply(rows.evaluation, applied)


def keyed_function(
    rows: KeyedInput,
    function: StatefulFunction,
    schema: str | st.StructType,
    side_outputs: Mapping[str, str | st.StructType] | None,
    late: str,
    broadcast: BroadcastInput | None = None,
) -> tuple[FunctionSpec, Application]:
    """Check a function and what it emits; `broadcast` is its other input, if it has one."""
    uid, owner = checked_uid(rows.uid), rows.owner
    declared = parse_schema(schema, owner)
    rows.schema()
    sides = side_columns(side_outputs, owner)
    checked_late(late, sides, owner)
    if late != PROCESS_LATE:
        rows.require_event_time(late)
    written = rows.side_schemas(late, sides)
    spec = FunctionSpec(
        function,
        key=rows.key_names,
        columns=tuple(rows.frame.columns),
        output=output_columns(declared, owner),
        event_time=rows.event_time,
        side_outputs=sides,
        late=late,
        key_types=rows.key_types(),
        broadcast=broadcast,
    )
    require_state(function, owner)
    for_tasks(function, cloudpickle.dumps)
    operator = operator_spec(function, uid, parse_key(rows.keys))
    applied = rows.application(operator, partial(FunctionOperator, spec), declared)
    return spec, replace(applied, sides=written)


class OperatorFrame:
    """One epoch's rows, made by `Job.operator`; apply a `ProcessFunction` to it."""

    def __init__(
        self, evaluation: Evaluation, frame: DataFrame, uid: str, options: InputOptions
    ) -> None:
        owner = f"operator {uid!r}"
        refuse_reserved(frame.columns, owner)
        self._uid = uid
        self._rows = InputFrame.of(evaluation, FrameColumns(frame, owner), owner, options)

    def process(
        self,
        function: ProcessFunction,
        schema: str | st.StructType,
        *,
        side_outputs: Mapping[str, str | st.StructType] | None = None,
        late: Literal["process", "drop"] | str = PROCESS_LATE,
        initial_state: Given | None = None,
    ) -> DataFrame:
        """Run a function with operator state over the rows.

        Parameters
        ----------
        function : ProcessFunction
            An instance of its class; it is pickled to the workers.
        schema : str or StructType
            The columns that it yields, as DDL.
        side_outputs : mapping from tag to str or StructType, optional
            As in `KeyedFrame.process`.
        late : {"process", "drop"} or str
            As in `KeyedFrame.process`.
        initial_state : DataFrame or callable, optional
            What lists have before the operator's first epoch: a column for each list or some of
            them, with an item in each row; null is no item. They are given to the instances as
            after a change of their number, so that `ctx.redistributed` is true in that epoch. Once
            the checkpoint has the operator, it is not read. A function without arguments makes the
            frame only when it is needed.

        Returns
        -------
        DataFrame
            What the function yields.

        Raises
        ------
        DeclarationError
            The function's shape or states are not valid.
        SchemaError
            The checkpoint holds the operator's state in other types.

        Notes
        -----
        There are as many instances of the operator as ranges of the job, each with a part of the
        rows of about the same size. When the job's parallelism changes, the first epoch after that
        redistributes the states; each instance then reads the state of all.
        """
        rows, owner, frame = self._rows, self._rows.owner, self._rows.frame
        given: object = function
        if not isinstance(given, ProcessFunction):
            if isinstance(given, StatefulFunction):
                hint = ": functions of keys are for rows by key, job.key_by(df, ...).process(...)"
            else:
                hint = way_to_function(given, "ProcessFunction", "row, ctx")
            raise WrongTypeError(f"{owner}: {given!r:.80} is no ps.ProcessFunction{hint}")
        declared = parse_schema(schema, owner)
        rows.schema()
        sides = side_columns(side_outputs, owner)
        checked_late(late, sides, owner)
        written = rows.side_schemas(late, sides)
        spec = FunctionSpec(
            function,
            key=(),
            columns=tuple(frame.columns),
            output=output_columns(declared, owner),
            event_time=rows.event_time,
            side_outputs=sides,
            late=late,
        )
        states = instance_states(function, owner)
        for_tasks(function, cloudpickle.dumps)
        given_items = checked_given(initial_state, f"{owner}: initial_state")
        return apply(
            rows.evaluation,
            Application(
                instance_spec(self._uid, states),
                INSTANCE_SCHEMA,
                partial(InstanceOperator, spec, states),
                [frame],
                _spread,
                declared,
                inputs=(rows.input,),
                sides=written,
                invalid={INPUT: rows.invalid_rows()},
                initial=None if given_items is None else InitialItems(given_items, states),
                counted=False,
                every_epoch=works_in_every_epoch(function),
                arrivals=InstanceRows(),
            ),
        )


def _spread(frames: Sequence[DataFrame], plan: OperatorPlan) -> tuple[DataFrame, Sequence[str]]:
    """The rows in front of the instances' tasks."""
    [frame] = frames
    return spread(frame, plan.parallelism), [*frame.columns, INSTANCE_COLUMN]
