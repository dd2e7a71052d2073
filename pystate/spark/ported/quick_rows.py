"""Spark's `Row(name=value, ...)` in one step of the core, in the workers that run a processor.

A processor makes a row for each row that it yields, and Spark's class does so in Python: two calls,
two lists and a check of each attribute that is set, which takes longer than all the rest that the
operator does for a row. The rows are the same.

Thread safety: `quicken` is called by the worker's one thread that runs tasks.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import Row

from pystate._core import core


def quicken() -> None:
    """Quicken Spark's class in this process, unless that was done; only in a task.

    Elsewhere, as in tests, the class is the caller's own.
    """
    from pyspark import TaskContext

    if TaskContext.get() is not None:
        quicken_class(Row)


def quicken_class(kind: Any) -> bool:
    """Quicken a class of rows; return False, and change nothing, if it is none of those known."""
    slow = kind.__dict__.get("__new__")
    if not isinstance(slow, staticmethod) or not core.set_quick_rows(kind, True):
        return False
    if not _same(kind, slow.__func__):
        core.set_quick_rows(kind, False)
        return False
    return True


def _same(kind: Any, slow: Any) -> bool:
    """Whether both make the same: also of a later version of Spark, whose rows may be others."""
    given = {"b": 1, "a": None}
    rows = [kind(**given), slow(kind, **given)]
    found = [(type(row), tuple(row), vars(row), type(row.__fields__)) for row in rows]
    return found[0] == found[1] == (kind, (1, None), {"__fields__": ["b", "a"]}, list)
