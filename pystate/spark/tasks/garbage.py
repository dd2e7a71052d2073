"""Excludes objects that live as long as a worker from the garbage collection after every task.

PySpark's daemon collects garbage after each task of a worker. A full collection visits every object
that may be in a cycle. The modules that a worker has loaded hold some hundred thousand of them, so
that it takes ten times as long as a small task, and finds nothing. Objects that `gc.freeze` has set
aside are not visited again; they are still freed once nothing refers to them, unless they are in a
cycle.

Thread safety: `set_modules_aside` is called by the worker's one thread that runs tasks.

Invariants
----------
1. Objects that a task makes are collected as usual: objects are set aside before a task does
   anything, and after the collection that followed the last task.
2. Only cycles within the closures of the tasks that set objects aside are never freed. They are
   bounded: a worker sets objects aside again only if it has loaded modules since, and stops at some
   time.
"""

from __future__ import annotations

import gc
import sys

#: A worker's first tasks load most modules; user code may load modules at any time.
_MOST_TIMES = 16

_done: list[int] = []


def set_modules_aside() -> None:
    """Set aside the objects of modules that were loaded since the last call; O(1).

    It does nothing if no Spark task runs, as in tests: the caller's process must decide there.
    """
    from pyspark import TaskContext

    if TaskContext.get() is None:
        return
    loaded = len(sys.modules)
    if len(_done) < _MOST_TIMES and (not _done or loaded > _done[-1]):
        _done.append(loaded)
        gc.freeze()
