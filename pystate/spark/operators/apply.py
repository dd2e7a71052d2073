"""How an operator is applied to frames of a pipeline: the same steps for each of them.

Thread safety: an `Application` is immutable; `apply` belongs to the thread that builds the
pipeline.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql import types as st

from pystate.epochs.watermarks import Holds, Input
from pystate.operators.runtime.invalid_rows import InvalidRule
from pystate.operators.runtime.output import OutputColumns
from pystate.operators.runtime.task import Operator
from pystate.spark.base.routing import RANGE_COLUMN
from pystate.spark.base.schemas import KeySchema
from pystate.spark.evaluation.initial_state import (
    Given,
    Initial,
    InitialRows,
    Route,
    RowsOf,
    initial_of,
)
from pystate.spark.tasks.arrivals import Arrivals
from pystate.spark.tasks.range_task import OperatorPlan
from pystate.spark.tasks.worker import ArrowOperator
from pystate.state.operator_spec import OperatorSpec

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from pystate.spark.evaluation.evaluation import Evaluation


#: Combines the rows of an operator before the shuffle: the rows, routed, and what makes the
#: operator of them; None where they are not combined.
Combined: TypeAlias = (
    "Callable[[OperatorPlan], tuple[DataFrame, Sequence[str], Callable[[], Operator]] | None]"
)


@dataclass(frozen=True)
class Application:
    """An operator, its inputs and its result."""

    operator: OperatorSpec
    """What determines its tables."""
    keys: KeySchema
    """Its key in the spelling of checkpoints."""
    make: Callable[[], Operator]
    """Makes the operator of a task; it is pickled."""
    frames: Sequence[DataFrame]
    """The rows of its inputs."""
    route: Route
    """Brings these, or others like them, to the tasks; also says the names of the columns there."""
    result: st.StructType
    """The columns that it emits."""
    inputs: Sequence[Input] = ()
    """What its rows mean for its watermark."""
    sides: Mapping[str, pa.Schema] = field(default_factory=dict)
    """The columns of its side outputs by tag."""
    invalid: Mapping[str, tuple[InvalidRule, pa.Schema | None]] = field(default_factory=dict)
    """What becomes of each input's invalid rows, and the columns of their side output."""
    earlier: Sequence[RowsOf] | None = None
    """The rows of the time before the operator's first epoch."""
    state: Given | None = None
    """The states that it begins with, in place of such rows."""
    timers: Given | None = None
    """The timers that it begins with, in place of such rows."""
    initial: Initial | None = None
    """What else it may begin with."""
    counted: bool = True
    """Whether it may go without marker rows."""
    every_epoch: bool = False
    """Whether its ranges have work in every epoch."""
    replaces: bool = False
    """Whether each epoch replaces the state."""
    arrivals: Arrivals = Arrivals()  # noqa: RUF009
    """How the rows of its inputs come to a task."""
    output: OutputColumns | None = None
    """The result's columns, if the operator does not bring its output into them itself."""
    beside: Callable[[], OperatorPlan] | None = None
    """Declares an operator that runs in the same tasks."""
    combined: Combined | None = None
    finish: Callable[[DataFrame], DataFrame] | None = None
    """Makes the frame for the pipeline of the tasks' output."""
    holds: Holds | None = None
    """How its rows may be behind its watermark."""


def declare(evaluation: Evaluation, applied: Application) -> OperatorPlan:
    """Declare an operator to the epoch; return what its tasks must know."""
    rows = None
    if applied.earlier is not None:
        rows = InitialRows(applied.earlier, applied.route, applied.make, applied.arrivals)
    owner = f"operator {applied.operator.uid!r}"
    initial = initial_of(rows, applied.state, applied.timers, owner)
    plan = evaluation.declare(
        applied.operator,
        applied.keys,
        inputs=applied.inputs,
        sides=applied.sides,
        initial=applied.initial or initial,
        counted=applied.counted,
        invalid=applied.invalid,
    )
    if applied.every_epoch or applied.replaces:
        return replace(plan, every_epoch=applied.every_epoch, replaces=applied.replaces)
    return plan


def run(applied: Application, plan: OperatorPlan, beside: OperatorPlan | None = None) -> DataFrame:
    """Run an operator that was declared over its frames; return what the tasks emit."""
    combined = None if applied.combined is None else applied.combined(plan)
    if combined is None:
        rows, names = applied.route(applied.frames, plan)
        make = applied.make
    else:
        rows, names, make = combined
    return arrow_map(
        rows, plan, names, make, applied.result, applied.arrivals, applied.output, beside
    )


def apply(evaluation: Evaluation, applied: Application) -> DataFrame:
    """Declare an operator and run it over its frames; return its result."""
    plan = declare(evaluation, applied)
    beside = None if applied.beside is None else applied.beside()
    out = run(applied, plan, beside)
    result = out if applied.finish is None else applied.finish(out)
    others = [] if beside is None else [beside.operator.uid]
    return evaluation.output(applied.operator.uid, out, result, others, applied.holds)


def arrow_map(
    routed: DataFrame,
    plan: OperatorPlan,
    names: Sequence[str],
    make: Callable[[], Operator],
    declared: st.StructType,
    arrivals: Arrivals,
    output: OutputColumns | None = None,
    beside: OperatorPlan | None = None,
) -> DataFrame:
    """Map routed rows to what the tasks emit; `names` are those of their columns in the tasks."""
    # Spark parses the column names of a map function as SQL and fails on dots and backticks. Such
    # columns come and go under numbers, and are matched by position. Each renaming is a frame that
    # Spark analyses, which takes milliseconds.
    if not _are_words(routed.columns):
        marker = [RANGE_COLUMN] if plan.markers else []
        routed = routed.toDF(*_numbered(len(names)), *marker)

    function = ArrowOperator(plan, make, names, arrivals, output, beside)
    if _are_words(declared.names):
        return routed.mapInArrow(function, declared)
    fields = zip(_numbered(len(declared)), declared, strict=True)
    outputs = st.StructType(
        [st.StructField(name, field.dataType, field.nullable) for name, field in fields]
    )
    return routed.mapInArrow(function, outputs).toDF(*declared.names)


def _are_words(names: Sequence[str]) -> bool:
    """Whether Spark finds columns by these names, whatever its configuration."""
    words = all(re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name) for name in names)
    return words and len({name.lower() for name in names}) == len(names)


def _numbered(count: int) -> list[str]:
    return [f"c{i}" for i in range(count)]
