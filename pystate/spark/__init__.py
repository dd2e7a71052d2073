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

import importlib
from typing import TYPE_CHECKING

from pystate.base.installation import require_own_package
from pystate.spark.base.environment import require_pyspark

require_own_package()
require_pyspark()

# A task's worker imports its own modules from this package, and none of a driver's: so a name is
# imported when it is used.
if TYPE_CHECKING:
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

_MODULES = {
    "StatefulProcessorError": "base.errors",
    "EpochProgress": "epochs.progress",
    "OperatorProgress": "epochs.progress",
    "EpochResult": "epochs.result",
    "Job": "job",
    "BroadcastFrame": "operators.broadcast",
    "BroadcastFrames": "operators.broadcast",
    "ConnectedFrames": "operators.connected_frames",
    "OperatorFrame": "operators.functions",
    "KeyedFrame": "operators.keyed_frame",
    "FeedbackLoop": "operators.loops",
    "adapt": "ported.harness_adapter",
    "Compaction": "sinks.compaction",
    "ForeachEpoch": "sinks.foreach",
    "foreach_epoch": "sinks.foreach",
    "ParquetSink": "sinks.parquet",
    "Sink": "sinks.sink",
    "SinkTask": "sinks.sink",
    "register_sink": "sinks.sink",
    "register_state_source": "state_source",
    "write_state": "state_writer",
}


if not TYPE_CHECKING:  # else checkers would take any name for one that is here

    def __getattr__(name: str) -> object:
        """Import a name of the interface."""
        if name not in _MODULES:
            raise AttributeError(f"module 'pystate.spark' has no attribute {name!r}", name=name)
        value = getattr(importlib.import_module(f"pystate.spark.{_MODULES[name]}"), name)
        globals()[name] = value
        return value


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
