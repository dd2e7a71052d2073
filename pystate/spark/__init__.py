"""pystate on Spark: stateful operators in Structured Streaming, batch and RDD jobs.

Everything that imports pyspark is below this package, and nothing outside imports it. Without
pyspark, importing it raises `MissingPackageError`, which says what to install.
"""

from __future__ import annotations

from pystate.spark.requirements import require_pyspark

require_pyspark()

from pystate.spark.job import Job
from pystate.spark.keyed import KeyedFrame
from pystate.spark.progress import EpochProgress, OperatorProgress
from pystate.spark.result import EpochResult
from pystate.spark.sinks.compaction import Compaction
from pystate.spark.sinks.foreach import ForeachEpoch, foreach_epoch
from pystate.spark.sinks.parquet import ParquetSink
from pystate.spark.sinks.sink import Sink, SinkTask, register_sink
from pystate.spark.state_source import register_state_source

__all__ = [
    "Compaction",
    "EpochProgress",
    "EpochResult",
    "ForeachEpoch",
    "Job",
    "KeyedFrame",
    "OperatorProgress",
    "ParquetSink",
    "Sink",
    "SinkTask",
    "foreach_epoch",
    "register_sink",
    "register_state_source",
]
