"""pystate: managed state for PySpark jobs, and a durable keyed store for any Python process.

Importing the package loads no pyspark and starts no thread; the Spark jobs are in
`pystate.spark`.

Examples
--------
>>> import tempfile
>>> import pystate as ps
>>> folder = tempfile.mkdtemp()
>>> with ps.open(folder, key="string", states={"n": ps.ValueState("long", default=0)}) as store:
...     store["n"].add(store.keys(["a", "b", "a"]), 1)
...     store.checkpoint()
1
>>> with ps.open(folder, key="string", states={"n": ps.ValueState("long", default=0)}) as store:
...     store.set_current_key("a")
...     store["n"].value()
2
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING

from pystate import errors
from pystate.base.installation import warn_of_namesake

warn_of_namesake()
try:
    importlib.import_module("pystate._core.core")
except ImportError as error:
    _folder = os.path.dirname(__file__)
    _reason = (
        "the wheel is for another version of Python or another kind of machine"
        if os.path.isdir(_folder)
        else "Python imports no extension out of an archive, such as a wheel given to --py-files"
    )
    raise errors.MissingPackageError(
        f"Python {sys.version.split()[0]} cannot import pystate's extension from {_folder}: "
        f"{_reason} ({error}). Install pystate-spark for this Python, on each host; "
        "docs/deployment.md says how that is done on a cluster"
    ) from error

from pystate._core.core import key_group, range_bounds, range_of
from pystate.checkpoint.savepoint import Savepoint, savepoint
from pystate.checkpoint.state_files import FileInfo, Lineage, merge_files, verify_file
from pystate.epochs.auto_rescale import AutoRescale
from pystate.epochs.interval import CheckpointOptions
from pystate.epochs.listeners import CheckpointListener
from pystate.epochs.split_groups import rescale
from pystate.errors import PystateError
from pystate.maintenance.collection import collect
from pystate.maintenance.description import describe
from pystate.maintenance.history import CheckpointHistory, history
from pystate.maintenance.repair import repair
from pystate.maintenance.repair_plan import RepairPlan
from pystate.maintenance.verification import Finding, Verification, verify
from pystate.operators.functions.aggregates import count, max, mean, min, sum
from pystate.operators.functions.base import (
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ProcessFunction,
    VectorizedBroadcastFunction,
    VectorizedCoFunction,
    VectorizedFunction,
)
from pystate.operators.functions.context import InstanceContext, RuntimeContext
from pystate.operators.functions.windows import TimeWindow, WindowContext, WindowFunction
from pystate.operators.runtime.event_time import MAX_WATERMARK
from pystate.operators.windows.assigners import (
    CountWindow,
    Cumulating,
    Global,
    Session,
    Sliding,
    Tumbling,
)
from pystate.processor.changes import changes, scan_changes
from pystate.processor.epochs import state_metadata
from pystate.processor.parquet_export import Export, export_state
from pystate.processor.state_reader import read_state, scan_state
from pystate.processor.state_writer import StateRows, write_state
from pystate.query.connect import connect
from pystate.query.operator_reader import OperatorReader
from pystate.query.reader import StateReader
from pystate.state.aggregating import AggregatingHandle, AggregatingState
from pystate.state.aggregators import (
    AggregateFunction,
    ApproxDistinct,
    Count,
    First,
    Last,
    Max,
    Mean,
    Min,
    Sum,
    TopK,
    Variance,
)
from pystate.state.broadcast import BroadcastHandle, BroadcastState
from pystate.state.key_batch import KeyBatch
from pystate.state.list import ListHandle, ListState
from pystate.state.map import MapHandle, MapState
from pystate.state.objects import Versioned
from pystate.state.operator_state import (
    OperatorListHandle,
    OperatorListState,
    RawHandle,
    RawKeyGroupHandle,
    RawState,
)
from pystate.state.reducing import ReducingHandle, ReducingState
from pystate.state.ttl import StateTtl
from pystate.state.value import ValueHandle, ValueState
from pystate.store import Store, open
from pystate.tables.backend import KeyedStateBackend
from pystate.tables.options import DiskStats, TableStats
from pystate.tables.snapshots import SealedReader, Snapshot
from pystate.types.arrays import hash_keys

__version__ = "0.1.0"

#: Names that users look for here, and where they are or what replaces them.
_ELSEWHERE = {
    **dict.fromkeys(
        ["Job", "ParquetSink", "Sink", "foreach_epoch", "KeyedFrame", "register_sink"],
        "from pystate.spark import {}",
    ),
    "Harness": "pystate.testing.Harness",
    "TTLConfig": "StateTtl",
    "StatefulProcessor": "KeyedProcessFunction",
    "ProcessWindowFunction": "WindowFunction",
}


if TYPE_CHECKING:
    from pystate import testing
else:  # checkers would take any name for one that is here

    def __getattr__(name: str) -> object:
        """Import what few programs need, or say where a name that is not here can be found."""
        if name == "testing":
            return importlib.import_module("pystate.testing")
        hint_format = _ELSEWHERE.get(name)
        hint = "" if hint_format is None else f": write {hint_format.format(name)}"
        raise AttributeError(f"module 'pystate' has no attribute {name!r}{hint}", name=name)

    def __dir__() -> list[str]:
        """The interface: modules that are only loaded are not part of it."""
        return [*__all__, *(name for name in globals() if name.startswith("__"))]


__all__ = [
    "MAX_WATERMARK",
    "AggregateFunction",
    "AggregatingHandle",
    "AggregatingState",
    "ApproxDistinct",
    "AutoRescale",
    "BroadcastHandle",
    "BroadcastState",
    "CheckpointHistory",
    "CheckpointListener",
    "CheckpointOptions",
    "Count",
    "CountWindow",
    "Cumulating",
    "DiskStats",
    "Export",
    "FileInfo",
    "Finding",
    "First",
    "Global",
    "InstanceContext",
    "KeyBatch",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStateBackend",
    "Last",
    "Lineage",
    "ListHandle",
    "ListState",
    "MapHandle",
    "MapState",
    "Max",
    "Mean",
    "Min",
    "OperatorListHandle",
    "OperatorListState",
    "OperatorReader",
    "ProcessFunction",
    "PystateError",
    "RawHandle",
    "RawKeyGroupHandle",
    "RawState",
    "ReducingHandle",
    "ReducingState",
    "RepairPlan",
    "RuntimeContext",
    "Savepoint",
    "SealedReader",
    "Session",
    "Sliding",
    "Snapshot",
    "StateReader",
    "StateRows",
    "StateTtl",
    "Store",
    "Sum",
    "TableStats",
    "TimeWindow",
    "TopK",
    "Tumbling",
    "ValueHandle",
    "ValueState",
    "Variance",
    "VectorizedBroadcastFunction",
    "VectorizedCoFunction",
    "VectorizedFunction",
    "Verification",
    "Versioned",
    "WindowContext",
    "WindowFunction",
    "changes",
    "collect",
    "connect",
    "count",
    "describe",
    "errors",
    "export_state",
    "hash_keys",
    "history",
    "key_group",
    "max",
    "mean",
    "merge_files",
    "min",
    "open",
    "range_bounds",
    "range_of",
    "read_state",
    "repair",
    "rescale",
    "savepoint",
    "scan_changes",
    "scan_state",
    "state_metadata",
    "sum",
    "testing",
    "verify",
    "verify_file",
    "write_state",
]
