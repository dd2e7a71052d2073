"""A watch over an evaluation, which cancels it if it makes no more progress.

A user's function that hangs, or a task that was lost, would block the epoch for ever. Progress
counts, not time, since an epoch with many rows may take long. Progress means that a task of the
evaluation's Spark jobs has ended, or that an operator's task has shown a sign of life, which it
does between two batches of rows. Time in which no Spark job runs is not counted: the user's own
code on the driver runs then, which cannot be interrupted.

Thread safety: an `EvaluationWatch` is used by the thread that runs the epoch; it starts another,
which ends with it.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from pystate.redaction import logger
from pystate.spark.base.jvm import stages

if TYPE_CHECKING:
    from pyspark import SparkContext

    from pystate.checkpoint.begin_marks import BeginMarks


_LOG = logger("pystate.spark.evaluation.watch")
_MOST_S = 10.0
_LOOKS = 8


class EvaluationWatch:
    """A context manager that watches the Spark jobs that its block starts."""

    def __init__(
        self, context: SparkContext, marks: BeginMarks, tag: str, timeout_ms: int | None
    ) -> None:
        self.stages: list[str] = []
        self._context = context
        self._marks = marks
        self._tag = tag
        self._timeout_s = None if timeout_ms is None else timeout_ms / 1000
        self._ended = threading.Event()
        #: Whether the jobs were cancelled.
        self.expired = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> EvaluationWatch:
        self._context.addJobTag(self._tag)
        if self._timeout_s is not None:
            self._thread = threading.Thread(target=self._watch, name="pystate-watch", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self._context.removeJobTag(self._tag)

    def _watch(self) -> None:
        assert self._timeout_s is not None
        last: object = None
        since_s = time.monotonic()
        while not self._ended.wait(min(self._timeout_s / _LOOKS, _MOST_S)):
            try:
                running = self._active_stages()
                sign = (self._marks.last_sign_ms(), [numbers for numbers, _ in running])
            except Exception as error:
                # Spark may be shutting down, or the storage be slow: check again soon.
                _LOG.info("the epoch's progress is not known: %s", error)
                continue
            if sign != last or not running:
                last, since_s = sign, time.monotonic()
            elif time.monotonic() - since_s >= self._timeout_s:
                if not self.expired:
                    self.stages = [text for _, text in running]
                self.expired = True
                # Repeated at every check, since the pipeline may start another job.
                self._context.cancelJobsWithTag(self._tag)

    def _active_stages(self) -> list[tuple[tuple[int, int], str]]:
        """The active stages: (number, tasks that have ended), and a name for messages."""
        tracker = self._context._jsc.sc().statusTracker()
        active = set(tracker.getActiveStageIds())
        running = []
        for number, stage in stages(self._context, tracker.getJobIdsForTag(self._tag)):
            if number in active:
                done, tasks = stage.numCompletedTasks(), stage.numTasks()
                text = f"stage {number} ({stage.name()}), {done} of {tasks} tasks done"
                running.append(((number, done), text))
        return sorted(running)
