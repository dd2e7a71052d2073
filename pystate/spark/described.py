"""What Spark's UI shows of an epoch: whose jobs they are, in their description and group.

Spark names a job after the line of code that ran it, which for an epoch is always the same one.
The description names the job, the epoch and its operators. A streaming query's jobs keep the group
that Spark gave them, since that is how a query is stopped, and a run's keep their user's, for the
same reason. Both are local properties of the thread, and are put back as they were.

Of an epoch's hundreds of calls to the JVM five are for this, and seven where the group is set: some
0.1 ms each.

Thread safety: a `JobDescription` belongs to the thread that runs the epoch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from pystate.arguments import shortened

if TYPE_CHECKING:
    from pyspark import SparkContext

    from pystate.coordinator.epoch import Epoch

__all__ = ["JobDescription", "plan_name"]

_DESCRIPTION, _GROUP = "spark.job.description", "spark.jobGroup.id"
_NEXT = "\n"


class JobDescription:
    """A context manager: the Spark jobs that its block runs are described.

    Parameters
    ----------
    context : SparkContext
        Where they run.
    epoch : Epoch
        Whose they are.
    """

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
            # A query's has several lines.
            text = f"{before}{_NEXT if _NEXT in before else ' - '}{text}"
        self._context.setLocalProperty(_DESCRIPTION, text)


def plan_name(uid: str) -> str:
    """An operator's uid as the name of a function in a plan, which is one word."""
    return re.sub(r"\W", "_", uid, flags=re.ASCII)
