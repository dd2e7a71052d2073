"""Tasks that kill their own worker, once at each of some points: workers import this module."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from pystate.spark.operators.apply import arrow_map
from pystate.spark.tasks.delta import Written
from pystate.spark.tasks.range_task import RangeTask
from pystate.spark.tasks.worker import ArrowOperator

__all__ = ["POINTS", "deadly_map", "first_to"]

#: Where a worker may die: with some rows in the table, once its files are complete, and after its
#: report, which then nobody gets.
POINTS = ("rows", "files", "reported")


def first_to(flag: Path) -> bool:
    """True for exactly one caller of all processes."""
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class DeadlyTask(RangeTask):
    """A range's task that dies at a point, if it is the first to be there."""

    flags: Mapping[str, Path]

    def _die(self, where: str) -> None:
        if where in self.flags and first_to(self.flags[where]):
            os.kill(os.getpid(), signal.SIGKILL)

    def go_on(self) -> None:
        """Between two pieces of the input."""
        super().go_on()
        if any(self.rows.values()):
            self._die("rows")

    def report(self, written: Written) -> None:
        """Report, between two points."""
        self._die("files")
        super().report(written)
        self._die("reported")


class DeadlyOperator(ArrowOperator):
    """Makes tasks that die."""

    flags: Mapping[str, Path]

    def task(self) -> RangeTask:
        """Make one."""
        task = DeadlyTask(self._plan)
        task.flags = self.flags
        return task


def deadly_map(flags: Mapping[str, Path]) -> Callable[..., Any]:
    """Return `arrow_map` with tasks of which one dies at each point."""

    def operator(*given: Any) -> DeadlyOperator:
        made = DeadlyOperator(*given)
        made.flags = flags
        return made

    def mapped(*given: Any) -> Any:
        with mock.patch("pystate.spark.operators.apply.ArrowOperator", operator):
            return arrow_map(*given)

    return mapped
