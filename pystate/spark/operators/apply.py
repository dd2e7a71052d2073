"""How an operator is applied to frames of a pipeline: the same steps for each of them.

Thread safety: an `Application` is immutable; `apply` belongs to the thread that builds the
pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from pystate.epochs.watermarks import Holds, Input
from pystate.operators.runtime.invalid_rows import InvalidRule
from pystate.operators.runtime.output import OutputColumns
from pystate.operators.runtime.task import Operator
from pystate.spark.base.schemas import KeySchema
from pystate.spark.evaluation.initial import Given, Initial, InitialRows, Route, RowsOf, initial_of
from pystate.spark.operators.arrow_map import arrow_map
from pystate.spark.tasks.arrivals import Arrivals
from pystate.spark.tasks.range_task import OperatorPlan
from pystate.state.operator_spec import OperatorSpec

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql import types as st

    from pystate.spark.evaluation.evaluation import Evaluation

__all__ = ["Application", "Combined", "apply", "declare"]

#: Combines the rows of an operator before the shuffle: the rows, routed, and what makes the
#: operator of them; None where they are not combined.
Combined: TypeAlias = (
    "Callable[[OperatorPlan], tuple[DataFrame, Sequence[str], Callable[[], Operator]] | None]"
)


@dataclass(frozen=True)
class Application:
    """An operator, its inputs and its result.

    Attributes
    ----------
    operator : OperatorSpec
        What determines its tables.
    keys : KeySchema
        Its key in the spelling of checkpoints.
    make : callable
        Makes the operator of a task; it is pickled.
    frames : sequence of DataFrame
        The rows of its inputs.
    route : callable
        Brings these, or others like them, to the tasks; also says the names of the columns there.
    result : StructType
        The columns that it emits.
    inputs : sequence of Input
        What its rows mean for its watermark.
    sides : mapping of str to pyarrow.Schema
        The columns of its side outputs by tag.
    invalid : mapping of str to (InvalidRule, schema)
        What becomes of each input's invalid rows, and the columns of their side output.
    earlier : sequence of RowsOf, optional
        The rows of the time before the operator's first epoch.
    state, timers : DataFrame or callable, optional
        What it begins with in place of these.
    initial : Initial, optional
        What else it may begin with.
    counted : bool
        Whether it may go without marker rows.
    every_epoch : bool
        Whether its ranges have work in every epoch.
    arrivals : Arrivals
        How the rows of its inputs come to a task.
    output : OutputColumns, optional
        The result's columns, if the operator does not bring its output into them itself.
    beside : callable, optional
        Declares an operator that runs in the same tasks.
    combined : callable, optional
        Combines rows before the shuffle.
    finish : callable, optional
        Makes the frame for the pipeline of the tasks' output.
    holds : Holds, optional
        How its rows may be behind its watermark.
    """

    operator: OperatorSpec
    keys: KeySchema
    make: Callable[[], Operator]
    frames: Sequence[DataFrame]
    route: Route
    result: st.StructType
    inputs: Sequence[Input] = ()
    sides: Mapping[str, pa.Schema] = field(default_factory=dict)
    invalid: Mapping[str, tuple[InvalidRule, pa.Schema | None]] = field(default_factory=dict)
    earlier: Sequence[RowsOf] | None = None
    state: Given | None = None
    timers: Given | None = None
    initial: Initial | None = None
    counted: bool = True
    every_epoch: bool = False
    arrivals: Arrivals = Arrivals()  # noqa: RUF009
    output: OutputColumns | None = None
    beside: Callable[[], OperatorPlan] | None = None
    combined: Combined | None = None
    finish: Callable[[DataFrame], DataFrame] | None = None
    holds: Holds | None = None


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
    return replace(plan, every_epoch=True) if applied.every_epoch else plan


def apply(evaluation: Evaluation, applied: Application) -> DataFrame:
    """Declare an operator and run it over its frames; return its result."""
    plan = declare(evaluation, applied)
    beside = None if applied.beside is None else applied.beside()
    combined = None if applied.combined is None else applied.combined(plan)
    if combined is None:
        rows, names = applied.route(applied.frames, plan)
        make = applied.make
    else:
        rows, names, make = combined
    out = arrow_map(
        rows,
        plan,
        names,
        make,
        applied.result,
        applied.arrivals,
        applied.output,
        beside,
    )
    result = out if applied.finish is None else applied.finish(out)
    others = [] if beside is None else [beside.operator.uid]
    return evaluation.output(applied.operator.uid, out, result, others, applied.holds)
