"""The rows of an operator, and what a user says of them: their key, order and event time.

Thread safety: immutable; the functions belong to the thread that builds the pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from pyspark.sql import types as st

from pystate.base.arguments import flag
from pystate.checkpoint.refs import INPUT
from pystate.epochs.watermarks import Input
from pystate.errors import InvalidArgumentError
from pystate.operators.runtime.invalid_rows import InvalidRule, invalid_rule
from pystate.operators.runtime.late_rows import late_tag
from pystate.operators.runtime.output import OutputColumns
from pystate.operators.runtime.row_operator import RowOperation
from pystate.operators.runtime.task import Operator
from pystate.spark.base.arguments import OrderBy, as_columns, frame_input, late_schema
from pystate.spark.base.frame_columns import FrameColumns, column_named
from pystate.spark.base.routing import RANGE_COLUMN, route
from pystate.spark.base.schemas import KeySchema, key_schema, output_columns, refuse_reserved
from pystate.spark.evaluation.initial_state import Given, Route, RowsOf, checked_given, like
from pystate.spark.evaluation.updates import Updates
from pystate.spark.operators.apply import Application
from pystate.spark.tasks.range_task import OperatorPlan
from pystate.state.operator_spec import OperatorSpec
from pystate.types.durations import Duration
from pystate.types.state_type import StateType, parse_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

    from pystate.spark.evaluation.evaluation import Evaluation


@dataclass(frozen=True)
class InputOptions:
    """What is said of rows; see `Job.key_by`."""

    event_time: str | None = None
    allowed_delay: Duration | None = None
    idle_after: Duration | None = None
    order_by: OrderBy = None
    max_ahead: Duration | None = None
    invalid: str | None = None
    initial_rows: Given | None = None
    as_rows: bool = False


@dataclass(frozen=True)
class InputFrame:
    """An operator's rows."""

    evaluation: Evaluation
    owner: str
    """Names the operator in errors."""
    columns: FrameColumns
    """The frame; fields that the arguments name have columns of their own."""
    event_time: str | None
    """The column of the rows' event time."""
    order_by: tuple[Column, ...]
    input: Input
    """What they mean for the operator's watermark."""
    invalid: InvalidRule
    """What becomes of rows that the operator cannot process."""

    @staticmethod
    def of(
        evaluation: Evaluation,
        columns: FrameColumns,
        owner: str,
        options: InputOptions,
        *,
        follows: bool = True,
    ) -> InputFrame:
        """Check what is said of rows.

        With `follows` they have the watermark of operators that feed them.
        """
        event_time = options.event_time
        if event_time is not None:
            event_time = columns.take(event_time, "event_time")
        order = tuple(as_columns(options.order_by, columns, owner))
        frame = columns.frame
        fed = evaluation.input_of(frame)
        timed = follows and evaluation.epoch.has_watermark(fed)
        delay, idle = options.allowed_delay, options.idle_after
        given = frame_input(frame, fed, timed, event_time, delay, idle, owner)
        if follows:
            given = replace(given, holds=evaluation.holds(fed, frame, event_time))
        names, on_invalid = frame.columns, evaluation.on_invalid
        rule = invalid_rule(
            owner, event_time, options.max_ahead, options.invalid, names, on_invalid
        )
        return InputFrame(evaluation, owner, columns, event_time, order, given, rule)

    @property
    def frame(self) -> DataFrame:
        """The rows as a frame."""
        return self.columns.frame

    def schema(self, owner: str | None = None) -> pa.Schema:
        """The columns, all of which an operator can take; `owner` is another name for errors."""
        return output_columns(self.frame.schema, f"{owner or self.owner}: its input").schema

    def invalid_rows(self, owner: str | None = None) -> tuple[InvalidRule, pa.Schema | None]:
        """What becomes of invalid rows, and the columns of their side output."""
        rule = self.invalid
        if rule.tag is None:
            return rule, None
        selected = self.frame.select(*map(column_named, rule.columns))
        return rule, output_columns(selected.schema, owner or self.owner).schema

    def side_schemas(self, late: str, sides: Mapping[str, OutputColumns]) -> dict[str, pa.Schema]:
        """The columns of all side outputs: `sides`, and what late rows go to."""
        schemas = {tag: columns.schema for tag, columns in sides.items()}
        tag = late_tag(late)
        if tag is not None:
            schemas[tag] = late_schema(tag, sides, self.frame, self.owner)
        return schemas


@dataclass(frozen=True)
class KeyedInput(InputFrame):
    """An operator's rows by key, as `Job.key_by` takes them."""

    uid: str | None
    """The operator's name in checkpoints, if it was given."""
    options: InputOptions
    names: list[str]
    """The key columns."""
    keys: KeySchema
    """The key's columns in the spelling of checkpoints: of structs, their fields."""
    marked: bool
    """Whether the key has marks of null structs; if not, an earlier version has begun it."""

    @classmethod
    def by(
        cls,
        evaluation: Evaluation,
        frame: DataFrame,
        keys: Sequence[str],
        uid: str | None,
        options: InputOptions,
    ) -> KeyedInput:
        """Check the rows and what is said of them."""
        owner = "key_by" if uid is None else f"operator {uid!r}"
        flag(options.as_rows, f"{owner}: as_rows")
        refuse_reserved(frame.columns, owner)
        columns = FrameColumns(frame, owner)
        names = [columns.take(key) for key in keys]
        rows = InputFrame.of(evaluation, columns, owner, options)
        schema = rows.frame.schema
        key, marked = key_schema(schema, names, owner), True
        plain = key_schema(schema, names, owner, marked=False)
        marks = [name for name, _ in key if name not in dict(plain)]
        if marks and uid is not None and evaluation.has_plain_key(uid, plain, marks):
            key, marked = plain, False
        checked_given(options.initial_rows, f"{owner}: initial_rows")
        return cls(**vars(rows), uid=uid, options=options, names=names, keys=key, marked=marked)

    @property
    def key_names(self) -> tuple[str, ...]:
        """The key's columns in the tasks."""
        return tuple(name for name, _ in self.keys)

    def key_types(self) -> tuple[StateType, ...]:
        """The types of the key's columns, if one of them is a struct."""
        types = [self.frame.schema[name].dataType for name in self.names]
        if not any(isinstance(each, st.StructType) for each in types):
            return ()
        return tuple(parse_type(each, f"{self.owner}: its key") for each in types)

    def require_event_time(self, late: str) -> None:
        """Refuse a choice for late rows where no row can be late."""
        if self.event_time is None:
            raise InvalidArgumentError(
                f"{self.owner}: late={late!r} is for rows that come late by their event time: "
                "name its column, key_by(..., event_time='column')"
            )

    # -- to the tasks

    def application(
        self, operator: OperatorSpec, make: Callable[[], Operator], result: st.StructType
    ) -> Application:
        """An operator over all columns, in the order of the rows."""
        return Application(
            operator,
            self.keys,
            make,
            [self.frame],
            self.in_order(self.order_by),
            result,
            inputs=(self.input,),
            invalid={INPUT: self.invalid_rows()},
            earlier=self.earlier_rows(self.columns),
        )

    def routed(
        self, frame: DataFrame, plan: OperatorPlan, order_by: Sequence[Column] = ()
    ) -> DataFrame:
        """Rows in front of their tasks, in an order."""
        groups, parallelism = plan.operator.max_parallelism, plan.parallelism
        return route(frame, self.key_names, groups, parallelism, order_by, markers=plan.markers)

    def in_order(self, order_by: Sequence[Column]) -> Route:
        """The route of all columns, in an order of the rows."""

        def routed(
            frames: Sequence[DataFrame], plan: OperatorPlan
        ) -> tuple[DataFrame, Sequence[str]]:
            return self.routed(frames[0], plan, order_by), frames[0].columns

        return routed

    def selecting(
        self,
        select: Callable[[DataFrame, Sequence[str]], DataFrame],
        names: Sequence[str],
        *,
        ordered: bool = True,
    ) -> Route:
        """The route of some columns, which `select` takes out of a frame, with others behind."""

        def routed(
            frames: Sequence[DataFrame], plan: OperatorPlan
        ) -> tuple[DataFrame, Sequence[str]]:
            if not (ordered and self.order_by):
                return self.routed(select(frames[0], ()), plan), names
            # The order may use any column: Spark prunes those that neither it nor the operator
            # needs.
            rows = self.routed(frames[0], plan, self.order_by)
            return select(rows, [RANGE_COLUMN] if plan.markers else []), names

        return routed

    def earlier_rows(self, columns: FrameColumns) -> list[RowsOf] | None:
        """The rows before the first epoch, with some columns; None if there are none."""
        given = self.options.initial_rows
        if given is None:
            return None
        return [RowsOf(INPUT, partial(like, columns, given, self.owner), self.event_time)]

    # -- rows that replace earlier ones

    def updates(self, method: str, instead: str = RowOperation.instead) -> Updates | None:
        """What is known of the rows if they are updates; refuses those that cannot be such."""
        updates = self._emitted()
        if updates is None:
            return None
        problem = updates.problem_by(self.names)
        if problem is None:
            types = [updates.frame.schema[name].dataType for name in updates.identity]
            if any(isinstance(each, st.StructType) for each in types):
                problem = "the updates are of a struct: name its fields in the first key_by"
        if problem is not None:
            self.refuse_updates(method, updates.uid, problem, instead)
        return updates

    def refuse_updates(
        self, method: str, uid: str, problem: str, instead: str = RowOperation.instead
    ) -> NoReturn:
        """Say why a method cannot take the updates of an operator, and what to do instead."""
        raise InvalidArgumentError(
            f"{self.owner}: {method} gets updates that operator {uid!r} emits, each of which "
            f"replaces an earlier one, and cannot take them as such: {problem}. {instead}; or take "
            "each update for a row of its own, key_by(..., as_rows=True)"
        )

    def refuse_all_updates(
        self, method: str, problem: str, instead: str = RowOperation.instead
    ) -> None:
        """Refuse updates in an operator that has no use for them."""
        updates = self._emitted()
        if updates is not None:
            self.refuse_updates(method, updates.uid, problem, instead)

    def _emitted(self) -> Updates | None:
        return None if self.options.as_rows else self.evaluation.updates(self.frame)
