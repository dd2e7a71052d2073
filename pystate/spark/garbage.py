"""Keeps the garbage collector from looking, after every task, at what stays as long as a worker.

PySpark's daemon collects garbage after each task of a worker. A full collection looks at every
object that may be in a cycle, and the modules that a worker has loaded hold some hundred thousand
of them: that takes ten times as long as a small task does, and finds nothing. What `gc.freeze` has
set aside is not looked at again; it is freed all the same once nothing refers to it, unless it is
in a cycle.

Thread safety: `set_modules_aside` is called by the worker's one thread that runs tasks.

Invariants
----------
1. What a task makes is collected as ever: objects are set aside before a task does anything, and
   after the collection that followed the last one.
2. What is lost for ever, cycles within the closures of the tasks that set objects aside, is
   bounded: only a worker that has loaded modules since does it again, and not for ever.
"""

from __future__ import annotations

import gc
import sys

__all__ = ["set_modules_aside"]

#: Modules are loaded by a worker's first task, and some by the next few; user code may go on.
_MOST_TIMES = 16

_done: list[int] = []


def set_modules_aside() -> None:
    """Set aside what the modules hold that were loaded since the last time; O(1).

    Nothing where no Spark task runs, as in tests: there it is for the caller's process to decide.
    """
    from pyspark import TaskContext

    if TaskContext.get() is None:
        return
    loaded = len(sys.modules)
    if len(_done) < _MOST_TIMES and (not _done or loaded > _done[-1]):
        _done.append(loaded)
        gc.freeze()
