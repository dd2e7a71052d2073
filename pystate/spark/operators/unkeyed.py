"""Rows without keys, to which a function with operator state is applied in a pipeline.

Thread safety: immutable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from pyspark import cloudpickle
from pyspark.sql import types as st

from pystate.checkpoint.refs import INPUT
from pystate.errors import WrongTypeError
from pystate.operators.functions.base import ProcessFunction, StatefulFunction
from pystate.operators.functions.binding import for_tasks, instance_states, way_to_function
from pystate.operators.runtime.function_spec import FunctionSpec
from pystate.operators.runtime.instance_operator import InstanceOperator, works_in_every_epoch
from pystate.operators.runtime.instance_state import instance_spec
from pystate.operators.runtime.late_rows import PROCESS_LATE, checked_late, late_tag
from pystate.spark.base.arguments import late_schema, side_columns
from pystate.spark.base.resolve import FrameColumns
from pystate.spark.base.routing import INSTANCE_COLUMN, spread
from pystate.spark.base.schemas import output_columns, parse_schema, refuse_reserved
from pystate.spark.evaluation.initial import Given, InitialItems, checked_given
from pystate.spark.operators.apply import Application, apply
from pystate.spark.operators.inputs import input_of, invalid_schema
from pystate.spark.tasks.arrivals import InstanceRows
from pystate.spark.tasks.range_task import OperatorPlan
from pystate.state.operator_state import INSTANCE_SCHEMA
from pystate.types.durations import Duration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pystate.spark.evaluation.evaluation import Evaluation

__all__ = ["OperatorFrame"]


class OperatorFrame:
    """One epoch's rows, made by `Job.operator`; apply a `ProcessFunction` to it.

    Parameters
    ----------
    evaluation : Evaluation
        The open epoch.
    frame : DataFrame
        The rows.
    uid : str
        The operator's name in checkpoints.
    event_time : str, optional
        The column of the rows' event time.
    allowed_delay : str, timedelta or int, optional
        How late a row may be by its event time.
    idle_after : str, timedelta or int, optional
        After how long without rows the input is idle.
    max_ahead : str, timedelta or int, optional
        How far a row's event time may be ahead of the processing time.
    invalid : str, optional
        The side output for rows that cannot be processed.
    """

    def __init__(
        self,
        evaluation: Evaluation,
        frame: DataFrame,
        uid: str,
        event_time: str | None = None,
        allowed_delay: Duration | None = None,
        idle_after: Duration | None = None,
        max_ahead: Duration | None = None,
        invalid: str | None = None,
    ) -> None:
        self._evaluation = evaluation
        self._uid = uid
        self._owner = f"operator {uid!r}"
        refuse_reserved(frame.columns, self._owner)
        columns = FrameColumns(frame, self._owner)
        self._frame, self._event_time, _, self._input, self._invalid = input_of(
            evaluation,
            columns,
            self._owner,
            event_time,
            allowed_delay,
            idle_after,
            max_ahead=max_ahead,
            invalid=invalid,
        )

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
        owner, frame = self._owner, self._frame
        given: object = function
        if not isinstance(given, ProcessFunction):
            if isinstance(given, StatefulFunction):
                hint = ": functions of keys are for rows by key, job.key_by(df, ...).process(...)"
            else:
                hint = way_to_function(given, "ProcessFunction", "row, ctx")
            raise WrongTypeError(f"{owner}: {given!r:.80} is no ps.ProcessFunction{hint}")
        declared = parse_schema(schema, owner)
        output_columns(frame.schema, f"{owner}: its input")
        sides = side_columns(side_outputs, owner)
        written = {tag: columns.schema for tag, columns in sides.items()}
        checked_late(late, sides, owner)
        tag = late_tag(late)
        if tag is not None:
            written[tag] = late_schema(tag, sides, frame, owner)
        spec = FunctionSpec(
            function,
            key=(),
            columns=tuple(frame.columns),
            output=output_columns(declared, owner),
            event_time=self._event_time,
            side_outputs=sides,
            late=late,
        )
        states = instance_states(function, owner)
        for_tasks(function, cloudpickle.dumps)
        given_items = checked_given(initial_state, f"{owner}: initial_state")
        return apply(
            self._evaluation,
            Application(
                instance_spec(self._uid, states),
                INSTANCE_SCHEMA,
                partial(InstanceOperator, spec, states),
                [frame],
                _spread,
                declared,
                inputs=(self._input,),
                sides=written,
                invalid={INPUT: invalid_schema(self._invalid, frame, owner)},
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
