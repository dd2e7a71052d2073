"""Spark's log: what it would say of work that was cancelled, or of an error that the job raises.

Spark reports an exception of a task five times, each time with traces of Python and Java: by the
executor, the scheduler and the query. The job raises it once. So these loggers are switched off
while a query runs, unless the user has configured the log, or has set its level. When a query is
stopped, more loggers are, whatever their level is.

Thread safety: all functions may be called from any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pystate.redaction import logger

if TYPE_CHECKING:
    from pyspark import SparkContext


_LOG = logger("pystate.spark.epochs.spark_log")
#: The loggers that report jobs and tasks cancelled with their query.
_STOP_LOGGERS = (
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
#: The loggers that report what made a query fail, beside the job itself.
_FAILURE_LOGGERS = (
    "org.apache.spark.api.python",
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources.FileFormatWriter",
    "org.apache.spark.sql.execution.python",
    "org.apache.spark.sql.execution.streaming.MicroBatchExecution",
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
    "org.apache.spark.sql.execution.streaming.runtime.ResolveWriteToStream",
    "org.apache.spark.util.Utils",
)
_DEFAULTS = "org/apache/spark/log4j2-defaults.properties"
_LOOK_S = 0.2
#: A task that hangs must not keep Spark's log silent.
_LONGEST_S = 60.0

#: How many callers keep a logger silent, and the level that it had.
_silenced: dict[str, tuple[int, Any]] = {}
_silencing = threading.Lock()


class QuietFailures:
    """Keeps the loggers of failures silent until `end`, if nobody has configured Spark's log."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self.is_on = _is_as_delivered(context) and _silence(context, _FAILURE_LOGGERS)

    def end(self, group: str) -> None:
        """Let them speak again once the last task of a group of jobs has ended."""
        if not self.is_on:
            return
        self.is_on = False
        try:
            stages = _stages(self._context, group)
        except Exception:
            stages = []  # Spark has ended, and so have they
        _restore_later(self._context, stages, _FAILURE_LOGGERS)


def _is_as_delivered(context: SparkContext) -> bool:
    """Whether Spark's log has neither a configuration nor a level of the user's.

    A Python program that starts Spark gets a threshold, which `SparkContext.setLogLevel` removes.
    """
    try:
        if context.getConf().contains("spark.log.level"):
            return False
        jvm: Any = context._jvm
        log4j = jvm.org.apache.logging.log4j
        config = log4j.LogManager.getContext(False).getConfiguration()
        source = str(config.getConfigurationSource().getLocation())
        spark = getattr(getattr(jvm.org.apache.spark.internal, "Logging$"), "MODULE$")
        return source.endswith(_DEFAULTS) and spark.sparkShellThresholdLevel() is not None
    except Exception as error:
        _LOG.debug("Spark's log stays as it is: %s", error)
        return False


@contextmanager
def quiet_stop(context: SparkContext, group: str) -> Iterator[None]:
    """Silence messages about cancelled work until the last task of a group of jobs has ended."""
    stages = _stages(context, group)
    silent = _silence(context, _STOP_LOGGERS)
    try:
        yield
    finally:
        if silent:
            # A killed task may live on for seconds, and the caller should not wait for it.
            arguments = (context, stages, _STOP_LOGGERS)
            threading.Thread(target=_restore_later, args=arguments, daemon=True).start()


def _stages(context: SparkContext, group: str) -> list[int]:
    """The active stages of a group's jobs."""
    tracker = context._jsc.sc().statusTracker()
    active = set(tracker.getActiveStageIds())
    running: list[int] = []
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        if info.isDefined():
            running += active.intersection(info.get().stageIds())
    return running


def _restore_later(context: SparkContext, stages: list[int], names: Sequence[str]) -> None:
    pause, until_s = threading.Event(), time.monotonic() + _LONGEST_S
    try:
        tracker = context._jsc.sc().statusTracker()
        for stage in stages:
            while (info := tracker.getStageInfo(stage)).isDefined():
                if not info.get().numActiveTasks() or time.monotonic() > until_s:
                    break
                pause.wait(_LOOK_S)
        _restore(context, names)
    except Exception as error:
        _LOG.debug("Spark has gone before its log could speak again: %s", error)


def _silence(context: SparkContext, names: Sequence[str]) -> bool:
    """Switch loggers off; return False if Spark does not log with Log4j."""
    with _silencing:
        try:
            log4j = context._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
            config = log4j.LogManager.getContext(False).getConfiguration()
            for name in names:
                count, before = _silenced.get(name, (0, None))
                if not count:
                    configured = config.getLoggerConfig(name)
                    before = configured.getLevel() if configured.getName() == name else None
                    log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)
                _silenced[name] = count + 1, before
        except Exception as error:
            _LOG.debug("Spark's log stays as it is: %s", error)
            return False
        return True


def _restore(context: SparkContext, names: Sequence[str]) -> None:
    """Switch loggers back on that all callers which switched them off have named to this."""
    with _silencing:
        log4j = context._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
        logging_context = log4j.LogManager.getContext(False)
        config = logging_context.getConfiguration()
        for name in names:
            count, level = _silenced.pop(name)
            if count > 1:
                _silenced[name] = count - 1, level
            elif level is None:
                config.removeLogger(name)
            else:
                config.getLoggerConfig(name).setLevel(level)
        logging_context.updateLoggers()
