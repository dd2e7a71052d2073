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

from pystate import errors, testing
from pystate.aggregates import count, max, mean, min, sum
from pystate.backend import (
    FileInfo,
    KeyedStateBackend,
    Lineage,
    SealedReader,
    Snapshot,
    TableStats,
    hash_keys,
    key_group,
    merge_files,
    range_bounds,
    range_of,
    verify_file,
)
from pystate.declarations import ValueState
from pystate.embedded import Store, open
from pystate.errors import PystateError
from pystate.functions import KeyedProcessFunction, RuntimeContext, VectorizedFunction
from pystate.handles import KeyBatch, ValueHandle

__version__ = "0.1.0"

__all__ = [
    "FileInfo",
    "KeyBatch",
    "KeyedProcessFunction",
    "KeyedStateBackend",
    "Lineage",
    "PystateError",
    "RuntimeContext",
    "SealedReader",
    "Snapshot",
    "Store",
    "TableStats",
    "ValueHandle",
    "ValueState",
    "VectorizedFunction",
    "count",
    "errors",
    "hash_keys",
    "key_group",
    "max",
    "mean",
    "merge_files",
    "min",
    "open",
    "range_bounds",
    "range_of",
    "sum",
    "testing",
    "verify_file",
]
