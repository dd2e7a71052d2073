"""Writes a frame to Parquet files, which the writing tasks count.

Spark's tasks count rows, files and bytes as they close each file, and report them to the driver
when they are committed, for one attempt per task. A listing of the folder shows which files exist,
not which should.

Thread safety: functions without state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from py4j.protocol import Py4JError
from pyspark.sql import Observation
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class WriteCounts(NamedTuple):
    """The counts of the tasks of a write."""

    rows: int
    files: int | None
    """None, as for the bytes, if this version of Spark does not provide it."""
    size_bytes: int | None
    plan: Any = None
    """The node that wrote, as it was executed."""


def write_parquet(frame: DataFrame, uri: str, partition_by: Sequence[str] = ()) -> WriteCounts:
    """Write a frame to a folder that does not exist yet, with subfolders by the columns' values."""
    session, jvm = frame.sparkSession, frame.sparkSession._jvm
    assert jvm is not None
    writer = frame.write.format("parquet").partitionBy(*partition_by)._jwrite
    try:
        # `DataFrameWriter.save` drops the execution, which holds the counts.
        command = writer.saveCommand(jvm.scala.Option.apply(uri))
    except Py4JError as error:
        if "does not exist" not in str(error):
            raise
        return _observed(frame, uri, partition_by)
    mode = jvm.org.apache.spark.sql.execution.CommandExecutionMode.ALL()
    execution = session._jsparkSession.sessionState().executePlan(command, mode)
    plan = _writing(execution.commandExecuted().commandPhysicalPlan())
    metrics = plan.metrics()
    return WriteCounts(
        metrics.apply("numOutputRows").value(),
        metrics.apply("numFiles").value(),
        metrics.apply("numOutputBytes").value(),
        plan,
    )


def _observed(frame: DataFrame, uri: str, partition_by: Sequence[str] = ()) -> WriteCounts:
    observation = Observation()
    counted = frame.observe(observation, F.count(F.lit(1)).alias("rows"))
    counted.write.partitionBy(*partition_by).parquet(uri)
    return WriteCounts(observation.get["rows"], None, None)


def _writing(plan: Any) -> Any:
    """Find the writing node, which adaptive execution wraps."""
    while not plan.metrics().contains("numFiles"):
        kind = plan.getClass().getSimpleName()
        if kind == "AdaptiveSparkPlanExec":
            plan = plan.executedPlan()
        elif kind.endswith("QueryStageExec"):
            plan = plan.plan()
        else:
            plan = plan.children().head()
    return plan
