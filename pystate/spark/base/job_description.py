"""Descriptions and groups of an epoch's Spark jobs, as Spark's UI shows them.

Spark names a job after the line of code that ran it, which is the same line for all epochs. The
description names the job, the epoch and its operators. A streaming query's jobs keep the group that
Spark gave them, since Spark stops a query by it; for the same reason a run's jobs keep the user's
group. Both are local properties of the thread, and are restored afterwards.

This takes five of an epoch's hundreds of calls to the JVM, or seven if the group is set; each takes
about 0.1 ms.

Thread safety: a `JobDescription` belongs to the thread that runs the epoch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from pystate.base.arguments import shortened

if TYPE_CHECKING:
    from pyspark import SparkContext

    from pystate.epochs.epoch import Epoch


_DESCRIPTION, _GROUP = "spark.job.description", "spark.jobGroup.id"
_NEXT = "\n"


class JobDescription:
    """A context manager that describes the Spark jobs that its block runs."""

    def __init__(self, context: SparkContext, epoch: Epoch) -> None:
        self._context = context
        position, name = epoch.position, epoch.job.name
        self._text = f"{name}: epoch {epoch.number}"
        if position.run_key is not None:
            self._text += f", run {shortened(position.run_key)!r}"
        self._group = f"pystate {name}, epoch {epoch.number}"
        self._description: str | None = None
        self._sets_group = False

    def __enter__(self) -> JobDescription:
        context = self._context
        self._description = context.getLocalProperty(_DESCRIPTION)
        self._sets_group = context.getLocalProperty(_GROUP) is None
        if self._sets_group:
            context.setLocalProperty(_GROUP, self._group)
        self._show(self._text)
        return self

    def __exit__(self, *_: object) -> None:
        context = self._context
        context.setLocalProperty(_DESCRIPTION, self._description)  # type: ignore[arg-type]
        if self._sets_group:
            context.setLocalProperty(_GROUP, None)  # type: ignore[arg-type]

    def operators(self, uids: Iterable[str]) -> None:
        """Name the operators, once the pipeline has declared them."""
        self._show(f"{self._text}: {', '.join(uids)}")

    def _show(self, text: str) -> None:
        # The UI shows a description as HTML if it can be parsed as such.
        text = escape(text, quote=False)
        before = self._description
        if before:
            # A query's description has several lines.
            text = f"{before}{_NEXT if _NEXT in before else ' - '}{text}"
        self._context.setLocalProperty(_DESCRIPTION, text)


def plan_name(uid: str) -> str:
    """An operator's uid as the name of a function in a plan, which must be one word."""
    return re.sub(r"\W", "_", uid, flags=re.ASCII)
