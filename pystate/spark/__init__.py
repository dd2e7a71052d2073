"""pystate on Spark: stateful operators in Structured Streaming, batch and RDD jobs.

Everything that imports pyspark is below this package, and nothing outside imports it. Without
pyspark, importing it raises `MissingPackageError`, which says what to install.

A module imports only modules that are listed above its own line, or on the same line:

* what Spark is and requires: `requirements`, `environment`, `failures`, `connection`, `offsets`,
  `schemas`, `resolve`, `arguments`, `options`, `routing`;
* `sinks`, a folder for the output of an epoch's rows: `sinks.sink` is the protocol, `sinks.parquet`
  and `sinks.foreach` are sinks, `sinks.outputs` and `sinks.commits` call them;
* what runs in tasks: `range_task`, `paired_task`, `worker`, and the operators there, `bodies`,
  `row_bodies`, `processed` and `instances`;
* `initial`, what operators begin with;
* `evaluation`, one attempt at an epoch, and the operators in a pipeline: `arrow_map`, `loops`,
  `joined`, `broadcast`, `connected`, `windowed`, `row_operators`, `aggregated`, `keyed`, `unkeyed`,
  `rdd`, `pipeline`;
* reports about epochs: `progress`, `result`, `live`, `observed`;
* `spread_merges`, which merges files on executors;
* `epochs`, which runs and publishes them, `queries` and `streaming`, which do so for a stream;
* `rounds`, epochs until a loop is empty, and `job`, the class for users;
* `state_source` and `state_writer`: state as DataFrames.
"""

from __future__ import annotations

from pystate.spark.requirements import require_pyspark

require_pyspark()

from pystate.spark.broadcast import BroadcastFrame, BroadcastFrames
from pystate.spark.connected import ConnectedFrames
from pystate.spark.job import Job
from pystate.spark.keyed import KeyedFrame
from pystate.spark.loops import FeedbackLoop
from pystate.spark.progress import EpochProgress, OperatorProgress
from pystate.spark.result import EpochResult
from pystate.spark.sinks.compaction import Compaction
from pystate.spark.sinks.foreach import ForeachEpoch, foreach_epoch
from pystate.spark.sinks.parquet import ParquetSink
from pystate.spark.sinks.sink import Sink, SinkTask, register_sink
from pystate.spark.state_source import register_state_source
from pystate.spark.state_writer import write_state
from pystate.spark.unkeyed import OperatorFrame

__all__ = [
    "BroadcastFrame",
    "BroadcastFrames",
    "Compaction",
    "ConnectedFrames",
    "EpochProgress",
    "EpochResult",
    "FeedbackLoop",
    "ForeachEpoch",
    "Job",
    "KeyedFrame",
    "OperatorFrame",
    "OperatorProgress",
    "ParquetSink",
    "Sink",
    "SinkTask",
    "foreach_epoch",
    "register_sink",
    "register_state_source",
    "write_state",
]
