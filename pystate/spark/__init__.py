"""pystate on Spark: stateful operators in Structured Streaming, batch and RDD jobs.

Everything that imports pyspark is below this package, and nothing outside imports it. Without
pyspark, importing it raises `MissingPackageError`, which says what to install.

Its folders are layers. A module imports only from those that are listed above its own, or from its
own, where there are no import cycles either:

* `base`: what Spark is and requires, schemas, arguments, options, and how rows are routed;
* `tasks`: what runs in Spark's tasks, an operator over its range's table, and its files;
* `sinks`: the output of an epoch's rows; `sinks.sink` is the protocol, `sinks.parquet` and
  `sinks.foreach` are sinks, `sinks.outputs` and `sinks.commits` call them;
* `evaluation`: one attempt at an epoch, in which every operator is computed once, and what it
  begins with;
* `ported`: what is written for Spark's own stateful operators, as functions of pystate;
* `operators`: the operators of a pipeline;
* `state_source`, `state_writer`: state as DataFrames;
* `epochs`: epochs run and published, of a batch, a stream or a loop, and the reports about them;
* `job`: the class for users.
"""

from __future__ import annotations

from pystate.base.installation import require_own_package
from pystate.spark.base.environment import require_pyspark

require_own_package()
require_pyspark()

from pystate.spark.base.errors import StatefulProcessorError
from pystate.spark.epochs.progress import EpochProgress, OperatorProgress
from pystate.spark.epochs.result import EpochResult
from pystate.spark.job import Job
from pystate.spark.operators.broadcast import BroadcastFrame, BroadcastFrames
from pystate.spark.operators.connected_frames import ConnectedFrames
from pystate.spark.operators.functions import OperatorFrame
from pystate.spark.operators.keyed_frame import KeyedFrame
from pystate.spark.operators.loops import FeedbackLoop
from pystate.spark.ported.harness_adapter import adapt
from pystate.spark.sinks.compaction import Compaction
from pystate.spark.sinks.foreach import ForeachEpoch, foreach_epoch
from pystate.spark.sinks.parquet import ParquetSink
from pystate.spark.sinks.sink import Sink, SinkTask, register_sink
from pystate.spark.state_source import register_state_source
from pystate.spark.state_writer import write_state


def __dir__() -> list[str]:
    """The interface: modules that are only loaded are not part of it."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


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
    "StatefulProcessorError",
    "adapt",
    "foreach_epoch",
    "register_sink",
    "register_state_source",
    "write_state",
]
