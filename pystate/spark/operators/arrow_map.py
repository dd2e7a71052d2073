"""An operator's tasks as a map over routed rows.

Thread safety: a function without state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import types as st

from pystate.operators.runtime.output import OutputColumns
from pystate.operators.runtime.task import Operator
from pystate.spark.base.routing import RANGE_COLUMN
from pystate.spark.tasks.arrivals import Arrivals
from pystate.spark.tasks.range_task import OperatorPlan
from pystate.spark.tasks.worker import ArrowOperator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["arrow_map"]


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
    """Run an operator over routed rows.

    Parameters
    ----------
    routed : DataFrame
        What `route` returns.
    plan : OperatorPlan
        The operator.
    names : sequence of str
        The names of its columns in the tasks, without `RANGE_COLUMN`.
    make, arrivals, output, beside
        As for `ArrowOperator`.
    declared : StructType
        The columns of the result.
    """
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
