"""The input of an operator: its rows, their order and their event time.

Thread safety: immutable; the function belongs to the thread that builds the pipeline.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pystate.epochs.watermarks import Input
from pystate.operators.runtime.invalid_rows import InvalidRule, invalid_rule
from pystate.spark.base.arguments import OrderBy, as_columns, frame_input
from pystate.spark.base.resolve import FrameColumns, column_named
from pystate.spark.base.schemas import output_columns
from pystate.types.durations import Duration

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

    from pystate.spark.evaluation.evaluation import Evaluation

__all__ = ["InputFrame", "input_of", "invalid_schema"]


class InputFrame(NamedTuple):
    """An operator's rows."""

    frame: DataFrame
    """The rows; fields that the arguments name have columns of their own."""
    event_time: str | None
    """The column of the rows' event time."""
    order_by: tuple[Column, ...]
    """The order of the rows."""
    input: Input
    """What they mean for the operator's watermark."""
    invalid: InvalidRule
    """What becomes of rows that the operator cannot process."""


def input_of(
    evaluation: Evaluation,
    columns: FrameColumns,
    owner: str,
    event_time: str | None,
    allowed_delay: Duration | None,
    idle_after: Duration | None,
    order_by: OrderBy = None,
    *,
    max_ahead: Duration | None = None,
    invalid: str | None = None,
    follows: bool = True,
) -> InputFrame:
    """Check what is said of an operator's rows.

    Parameters
    ----------
    evaluation : Evaluation
        The open epoch.
    columns : FrameColumns
        The frame, in which the columns are found.
    owner : str
        Names the operator in errors.
    event_time, allowed_delay, idle_after, order_by, max_ahead, invalid
        As given to `key_by`.
    follows : bool
        Whether the rows have the watermark of operators that feed them.
    """
    if event_time is not None:
        event_time = columns.take(event_time, "event_time")
    order = tuple(as_columns(order_by, columns, owner))
    frame = columns.frame
    fed = evaluation.fed(frame)
    timed = follows and evaluation.epoch.has_watermark(fed)
    given = frame_input(frame, fed, timed, event_time, allowed_delay, idle_after, owner)
    if follows:
        given = replace(given, holds=evaluation.holds(fed, frame, event_time))
    rule = invalid_rule(owner, event_time, max_ahead, invalid, frame.columns, evaluation.on_invalid)
    return InputFrame(frame, event_time, order, given, rule)


def invalid_schema(
    rule: InvalidRule, frame: DataFrame, owner: str
) -> tuple[InvalidRule, pa.Schema | None]:
    """The rule for an input's invalid rows, with the columns of their side output."""
    if rule.tag is None:
        return rule, None
    return rule, output_columns(frame.select(*map(column_named, rule.columns)).schema, owner).schema
