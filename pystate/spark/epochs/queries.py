"""A job's streaming query: why it ended, and a stop without error traces in the log.

Spark stops a query by interrupting its work. To the code inside the query that looks like a
failure, and Spark logs traces of it, from the driver and, seconds later, from the killed tasks.
This module distinguishes both from real failures.

Thread safety: any thread may stop or ask a query; the thread of its epochs notes a failure.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.query import StreamingQuery

from pystate.redaction import logger
from pystate.spark.base.failures import QueryStopped, is_stop, stopped_its_query
from pystate.spark.epochs.live import NoLine, ProgressLine
from pystate.spark.epochs.observed import with_state
from pystate.spark.epochs.progress import EpochProgress, progress_panel

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql.streaming.listener import StreamingQueryProgress

__all__ = ["JobQuery", "QueryOutcome"]

_LOG = logger("pystate.spark.epochs.queries")
#: The loggers that report jobs and tasks cancelled with their query.
_LOGGERS = (
    "org.apache.hadoop.mapreduce.lib.output.FileOutputCommitter",
    "org.apache.spark.api.python",
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler",
    "org.apache.spark.sql.execution.datasources",
    "org.apache.spark.sql.execution.python",
    "org.apache.spark.sql.execution.streaming",
    "org.apache.spark.storage.BlockManager",
    "org.apache.spark.util.Utils",
)
_LOOK_S = 0.2
_EPOCHS = 100
#: A task that hangs must not keep Spark's log silent.
_LONGEST_S = 60.0


class QueryOutcome:
    """Why a query ended, as far as the code inside it can tell.

    It exists before the query, which may fail before its handle is returned.
    """

    def __init__(self, job: str) -> None:
        self.job = job
        self.query: StreamingQuery | None = None
        #: Progress by batch, for as many batches as Spark keeps by default.
        self.epochs: dict[int, EpochProgress] = {}
        #: The line that shows the query's progress, if one was requested.
        self.line: ProgressLine | NoLine = NoLine()
        self.stopping = False
        #: Called once the query was stopped.
        self.at_stop: Callable[[], None] | None = None
        self._error: BaseException | None = None

    def note_epoch(self, batch_id: int, progress: EpochProgress) -> None:
        """Remember the progress of a batch."""
        epochs = {**self.epochs, batch_id: progress}
        # A new dict, since other threads may be reading the old one.
        self.epochs = {batch: epochs[batch] for batch in sorted(epochs)[-_EPOCHS:]}

    @property
    def newest(self) -> EpochProgress | None:
        """The progress of the last batch that was computed."""
        epochs = self.epochs
        return epochs[max(epochs)] if epochs else None

    def note(self, error: BaseException) -> bool:
        """Note an epoch's error; return False if it only means that the query was stopped."""
        if self.stopping:
            return False
        self._error = error
        return not stopped_its_query(error)

    @property
    def failure(self) -> BaseException | None:
        """The error of the query; None if it runs, has ended, or was stopped."""
        error, query = self._error, self.query
        if error is None or query is None:
            return error
        try:
            # The order matters: once a query has ended, Spark has its exception, or none after a
            # stop.
            ending = query.isActive
            spoken_of = query.exception() is not None
        except Exception:
            # Spark has ended, and so have its queries.
            spoken_of = ending = False
        return error if spoken_of or (ending and not is_stop(error)) else None


class JobQuery(StreamingQuery):
    """Spark's handle of a job's query, whose `stop` prints no traces.

    Parameters
    ----------
    query : StreamingQuery
        What Spark returned.
    outcome : QueryOutcome
        The outcome of the query.
    context : SparkContext
        The query's context.
    """

    def __init__(self, query: StreamingQuery, outcome: QueryOutcome, context: SparkContext) -> None:
        super().__init__(query._jsq)
        self._outcome = outcome
        self._context = context
        outcome.query = self

    @property
    def _state(self) -> str:
        return "active" if self.isActive else "ended"

    def __repr__(self) -> str:
        progress = self._outcome.newest
        last = f", last epoch {progress.epoch}" if progress else ""
        return f"<query of job {self._outcome.job!r}: {self._state}{last}>"

    def _repr_html_(self) -> str:
        progress = self._outcome.newest
        facts = {
            "name": self.name or "none",
            "state": self._state,
            "id": self.id,
            "run": self.runId,
            "last epoch": progress,
        }
        return progress_panel(f"Query of job {self._outcome.job!r}", facts, progress)

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802
        """Wait until the query has ended, as Spark's own handle does."""
        ended: bool | None = None
        try:
            ended = super().awaitTermination(timeout)
        finally:
            if timeout is None or ended:
                self._outcome.line.close()
        return ended

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:  # noqa: N802 (Spark's name)
        """Spark's progress of the last batch, with pystate's operators among the stateful ones."""
        progress = super().lastProgress
        return None if progress is None else with_state(progress, self._outcome.epochs)

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:  # noqa: N802 (Spark's name)
        """The same for the last batches."""
        return [with_state(found, self._outcome.epochs) for found in super().recentProgress]

    def stop(self) -> None:
        """Stop the query, even during an epoch, which the next start then computes again.

        What Spark logs about the cancelled jobs and tasks is kept out of the driver's log.
        """
        try:
            if not self._jsq.isActive():
                return super().stop()
            self._outcome.stopping = True
            with _quiet(self._context, self.runId):
                super().stop()
            if self._outcome.at_stop is not None:
                self._outcome.at_stop()
        finally:
            self._outcome.line.close()


_silenced = 0
_before: dict[str, Any] = {}
_silencing = threading.Lock()


def _is_no_stop(record: logging.LogRecord) -> bool:
    """Whether a line of py4j's log tells more than that a query was stopped during a batch."""
    return not (record.exc_info and isinstance(record.exc_info[1], QueryStopped))


# py4j logs whatever a batch function raises before it hands that to Spark.
for _name in ("py4j.clientserver", "py4j.java_gateway"):
    logging.getLogger(_name).addFilter(_is_no_stop)


@contextmanager
def _quiet(context: SparkContext, group: str) -> Iterator[None]:
    """Silence messages about cancelled work until the last task of a group of jobs has ended."""
    stages = _stages(context, group)
    silent = _silence(context)
    try:
        yield
    finally:
        if silent:
            # A killed task may live on for seconds, and the caller should not wait for it.
            arguments = (context, stages)
            threading.Thread(target=_speak_later, args=arguments, daemon=True).start()


def _stages(context: SparkContext, group: str) -> list[int]:
    """The active stages of a group's jobs."""
    tracker = context._jsc.sc().statusTracker()
    active = set(tracker.getActiveStageIds())
    found: list[int] = []
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        if info.isDefined():
            found += active.intersection(info.get().stageIds())
    return found


def _speak_later(context: SparkContext, stages: list[int]) -> None:
    pause, until_s = threading.Event(), time.monotonic() + _LONGEST_S
    try:
        tracker = context._jsc.sc().statusTracker()
        for stage in stages:
            while (info := tracker.getStageInfo(stage)).isDefined():
                if not info.get().numActiveTasks() or time.monotonic() > until_s:
                    break
                pause.wait(_LOOK_S)
        _speak(context)
    except Exception as error:
        _LOG.debug("Spark has gone before its log could speak again: %s", error)


def _silence(context: SparkContext) -> bool:
    """Switch the loggers off; return False if Spark does not log with Log4j."""
    global _silenced
    with _silencing:
        try:
            log4j = context._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
            config = log4j.LogManager.getContext(False).getConfiguration()
            if not _silenced:
                for name in _LOGGERS:
                    found = config.getLoggerConfig(name)
                    _before[name] = found.getLevel() if found.getName() == name else None
            for name in _LOGGERS:
                log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)
        except Exception as error:
            _LOG.debug("Spark's log stays as it is: %s", error)
            return False
        _silenced += 1
        return True


def _speak(context: SparkContext) -> None:
    """Switch the loggers back on, once all callers that switched them off have called this."""
    global _silenced
    with _silencing:
        _silenced -= 1
        if _silenced:
            return
        log4j = context._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
        logging_context = log4j.LogManager.getContext(False)
        config = logging_context.getConfiguration()
        for name, level in _before.items():
            if level is None:
                config.removeLogger(name)
            else:
                config.getLoggerConfig(name).setLevel(level)
        logging_context.updateLoggers()
