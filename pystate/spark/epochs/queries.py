"""A job's streaming query: why it ended, a stop without error traces in the log, and which run.

Spark stops a query by interrupting its work. To the code inside the query that looks like a
failure, and Spark logs traces of it, from the driver and, seconds later, from the killed tasks.
This module distinguishes both from real failures.

Thread safety: any thread may stop or ask a query; the thread of its epochs notes a failure. What
follows a query's last batch runs in a thread of its own.

Invariants
----------
1. Only a query that ended by itself is followed by a drain or a checkpoint, not one that failed.
2. A query counts as active until these have ended.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from pystate.base.notes import hide_in_causes
from pystate.errors import FencedError, FunctionError, InUseError, PystateError
from pystate.redaction import logger
from pystate.spark.base.failures import (
    QueryStopped,
    as_function_error,
    called_by_user,
    is_stop,
    stopped_its_query,
)
from pystate.spark.epochs.progress import EpochProgress, progress_panel
from pystate.spark.epochs.progress_line import NoLine, ProgressLine
from pystate.spark.epochs.spark_log import quiet_stop
from pystate.spark.epochs.spark_progress import with_state
from pystate.spark.operators.pipeline import PipelineContext

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql.streaming.listener import StreamingQueryProgress


_LOG = logger("pystate.spark.epochs.queries")
_EPOCHS = 100
_LOOK_S = 0.2


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
        #: Why the query was stopped, if another driver has taken the checkpoint over.
        self.fenced: FencedError | None = None
        #: Explains an error that Spark raised outside of the batches.
        self.explain: Callable[[BaseException], BaseException] = lambda error: error
        self._explained: BaseException | None = None
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
        self._error = as_function_error(error)
        if isinstance(self._error, PystateError):
            hide_in_causes(self._error)
        return not stopped_its_query(error)

    @property
    def failure(self) -> BaseException | None:
        """The error of the query; None if it runs, has ended, or was stopped."""
        error, query = self._error, self.query
        if self.fenced is not None:
            return self.fenced
        if query is None:
            return error
        if error is None:
            return None if self.stopping else self._of_spark(query)
        try:
            # The order matters: once a query has ended, Spark has its exception, or none after a
            # stop.
            ending = query.isActive
            spoken_of = query.exception() is not None
        except Exception:
            # Spark has ended, and so have its queries.
            spoken_of = ending = False
        return error if spoken_of or (ending and not is_stop(error)) else None

    def _of_spark(self, query: StreamingQuery) -> BaseException | None:
        """The error of a query that failed outside of its batches, as in a source."""
        if self._explained is None:
            try:
                error = query.exception()
            except Exception:
                return None  # Spark has ended, and so have its queries
            self._explained = None if error is None else self.explain(error)
        return self._explained


class JobQuery(StreamingQuery):
    """Spark's handle of a job's query, whose `stop` prints no traces."""

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
        except StreamingQueryException:
            self._outcome.line.close()
            failure = self._failure()
            if failure is None:
                raise
            raise failure from failure.__cause__
        finally:
            if timeout is None or ended:
                self._outcome.line.close()
        if self._outcome.fenced is not None and ended is not False:
            raise self._outcome.fenced
        return ended

    def _failure(self) -> Exception | None:
        """The job's error, without the reports of Spark that are made of it; None for Spark's."""
        failure = self._outcome.failure
        if isinstance(failure, StreamingQueryException) or not isinstance(failure, Exception):
            return None
        return self._callers_error(failure)

    def _callers_error(self, failure: Exception) -> Exception:
        """An epoch's error as a caller of `awaitTermination` sees it."""
        if not isinstance(failure, PystateError):
            error = called_by_user(failure, f"a batch of job {self._outcome.job!r}")
            hide_in_causes(error)
            return error
        # The trace of one is that of the callback, and says less than the error itself.
        return failure.with_traceback(None) if isinstance(failure, FunctionError) else failure

    def exception(self) -> StreamingQueryException | None:
        """The error of the query, as Spark's own handle has it."""
        error, fenced = super().exception(), self._outcome.fenced
        if error is None and fenced is not None:
            error = StreamingQueryException(f"the query was stopped: {fenced}")
            error.__cause__ = fenced
        return error

    def fence(self, error: FencedError) -> None:
        """Stop the query because another driver has taken the checkpoint over."""
        if not self._outcome.stopping:
            self._outcome.fenced = error
            self._outcome.stopping = True
            with quiet_stop(self._context, self.runId):
                super().stop()
            self._outcome.line.close()

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:  # noqa: N802 (Spark's name)
        """Spark's progress of the last batch, with pystate's operators among the stateful ones."""
        progress = super().lastProgress
        return None if progress is None else with_state(progress, self._outcome.epochs)

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:  # noqa: N802 (Spark's name)
        """The same for the last batches."""
        return [with_state(progress, self._outcome.epochs) for progress in super().recentProgress]

    def stop(self) -> None:
        """Stop the query, even during an epoch, which the next start then computes again.

        What Spark logs about the cancelled jobs and tasks is kept out of the driver's log.
        """
        try:
            if not self._jsq.isActive():
                return super().stop()
            self._outcome.stopping = True
            with quiet_stop(self._context, self.runId):
                super().stop()
            if self._outcome.at_stop is not None:
                self._outcome.at_stop()
        finally:
            self._outcome.line.close()


class EndingQuery(JobQuery):
    """A job's query with work of pystate after its last batch: a drain, or its last checkpoint.

    It counts as active until `follow` has returned, which is called in a thread of its own, and
    only if the query ended by itself: not if it failed. With a `tag`, which the Spark jobs of
    `follow` then have, `stop` cancels these; without one it waits for them.
    """

    def __init__(
        self,
        query: StreamingQuery,
        outcome: QueryOutcome,
        context: SparkContext,
        follow: Callable[[JobQuery], None],
        tag: str | None = None,
    ) -> None:
        super().__init__(query, outcome, context)
        self._follow = follow
        self._tag = tag
        self._error: BaseException | None = None
        self._ended = threading.Event()
        # A daemon like Spark's own thread of a query: a driver that ends without waiting ends both.
        threading.Thread(target=self._end, name="pystate-ending", daemon=True).start()

    @property
    def isActive(self) -> bool:  # noqa: N802 (Spark's name)
        """Whether the query, or what follows it, runs."""
        return not self._ended.is_set()

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802
        """Wait until the query, and what follows it, has ended."""
        began_s = time.monotonic()
        try:
            ended = super().awaitTermination(timeout)
        except Exception:
            self._ended.wait()
            raise
        if timeout is not None:
            left_s = max(0.0, timeout - (time.monotonic() - began_s))
            if not ended or not self._ended.wait(left_s):
                return False
        self._ended.wait()
        self._outcome.line.close()
        error = self._error
        if isinstance(error, Exception):
            error = self._callers_error(error)
        if error is not None:
            raise error from error.__cause__
        return ended

    def exception(self) -> StreamingQueryException | None:
        """The error of the query, or of what follows it."""
        error = super().exception()
        if error is None and self._error is not None:
            error = StreamingQueryException(f"the stream is not drained: {self._error}")
            error.__cause__ = self._error
        return error

    def stop(self) -> None:
        """Stop the query, and cancel what follows it or wait for that."""
        if self._tag is None:
            super().stop()
            self._ended.wait()
            return
        self._outcome.stopping = True
        super().stop()
        # Repeated at every check, since the pipeline may start another job.
        while not self._ended.wait(_LOOK_S):
            self._context.cancelJobsWithTag(self._tag)

    def _end(self) -> None:
        try:
            self._jsq.awaitTermination()
        except Exception as error:
            # Spark reports the failure, or is gone.
            _LOG.debug("the query has failed, and nothing follows it: %s", error)
            self._ended.set()
            return
        try:
            if self._outcome.stopping:
                return
            if self._tag is not None:
                self._context.addJobTag(self._tag)
            self._follow(self)
        except BaseException as error:
            if not self._outcome.stopping:
                self._error = as_function_error(error)
                self._outcome.note(error)
        finally:
            self._ended.set()


def _is_no_stop(record: logging.LogRecord) -> bool:
    """Whether a line of py4j's log tells more than that a query was stopped during a batch."""
    return not (record.exc_info and isinstance(record.exc_info[1], QueryStopped))


# py4j logs whatever a batch function raises before it hands that to Spark.
for _name in ("py4j.clientserver", "py4j.java_gateway"):
    logging.getLogger(_name).addFilter(_is_no_stop)


#: The queries that this process runs, by checkpoint: in a notebook a `Job` may be made again while
#: a query of the previous one still runs.
_queries: dict[str, tuple[PipelineContext, JobQuery]] = {}


def note_query(job: PipelineContext, query: JobQuery) -> None:
    """Remember which query runs on a job's checkpoint."""
    _queries[job.checkpoint] = job, query


def stop_query(checkpoint: str) -> None:
    """Stop the query that this process runs on a checkpoint, if there is one."""
    running = _running_query(checkpoint)
    if running is not None:
        running[1].stop()


def require_unused(job: PipelineContext, *, but_for_own: bool) -> None:
    """Raise `InUseError` if this process runs a query on a job's checkpoint, perhaps its own."""
    running = _running_query(job.checkpoint)
    if running is None or (but_for_own and running[0] is job):
        return
    other, query = running
    whose = "this job" if other is job else f"another Job({other.name!r}) of this process"
    called = f" {query.name!r}" if query.name else ""
    raise InUseError(
        f"job {job.name!r}: checkpoint {job.checkpoint} is in use: the query{called} that {whose} "
        "has started on it is running. Stop it first, with query.stop() on what start returned, or "
        "make the job by Job(..., replace=True), which does that"
    )


def _running_query(checkpoint: str) -> tuple[PipelineContext, JobQuery] | None:
    entry = _queries.get(checkpoint)
    if entry is None:
        return None
    try:
        active = entry[1].isActive
    except Exception:
        # Its Spark has ended, and so has the query.
        active = False
    if not active:
        _queries.pop(checkpoint, None)
    return entry if active else None
