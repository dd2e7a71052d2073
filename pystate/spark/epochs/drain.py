"""The end of a bounded stream: an epoch without rows that drains, after a query's last batch.

Spark ends a query with ``availableNow`` after its last batch, but no batch knows that it is the
last. So the epoch that drains (`runtime.drain`) comes after the query, as a run. Its run
key names the epoch before it, so that it is computed only once, even if the query is started again
without new input. If a driver dies in between, the next one runs a query without new input, and
then this epoch.

Thread safety: any thread may stop or ask a query; it is drained in a thread of its own.

Invariants
----------
1. Only a query that ended by itself is drained, not one that failed or was stopped.
2. A query counts as active until it is drained.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException

from pystate.checkpoint.storage import CheckpointStorage
from pystate.redaction import logger
from pystate.spark.base.failures import as_function_error
from pystate.spark.base.offsets import is_complete
from pystate.spark.epochs.queries import JobQuery, QueryOutcome
from pystate.spark.epochs.spark_log import QuietFailures

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType


_LOG = logger("pystate.spark.epochs.drain")
_LOOK_S = 0.2


def no_rows(session: SparkSession, schema: StructType) -> DataFrame:
    """A frame without rows that Spark does not know to be empty.

    Spark removes a frame that it knows to be empty from a plan, with the operators above it.
    """
    return session.createDataFrame(session.sparkContext.emptyRDD(), schema)


class DrainingQuery(JobQuery):
    """A job's query that is drained after its last batch."""

    def __init__(
        self,
        query: StreamingQuery,
        outcome: QueryOutcome,
        context: SparkContext,
        storage: CheckpointStorage,
        drain: Callable[[], None],
    ) -> None:
        super().__init__(query, outcome, context)
        self._storage = storage
        self._drain = drain
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._tag = f"pystate-drain-{uuid.uuid4().hex}"
        # A daemon like Spark's own thread of a query: a driver that ends without waiting ends both.
        threading.Thread(target=self._end, name="pystate-drain", daemon=True).start()

    @property
    def isActive(self) -> bool:  # noqa: N802 (Spark's name)
        """Whether the query runs or is being drained."""
        return not self._ended.is_set()

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802
        """Wait until the query has ended and is drained."""
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
            error = self._raised(error)
        if error is not None:
            raise error from error.__cause__
        return ended

    def exception(self) -> StreamingQueryException | None:
        """The error of the query, or of the epoch that drains."""
        found = super().exception()
        if found is None and self._error is not None:
            found = StreamingQueryException(f"the stream is not drained: {self._error}")
            found.__cause__ = self._error
        return found

    def stop(self) -> None:
        """Stop the query or its drain; the next start with ``drain=True`` drains it."""
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
            _LOG.debug("the query has failed, and is not drained: %s", error)
            self._ended.set()
            return
        try:
            if self._outcome.stopping:
                return
            if not self._jsq.recentProgress() or not is_complete(self._storage):
                _LOG.warning("the query was stopped before its input ended, and is not drained")
                return
            self._context.addJobTag(self._tag)
            quiet = QuietFailures(self._context)
            try:
                self._drain()
            finally:
                quiet.end("")
        except BaseException as error:
            if not self._outcome.stopping:
                self._error = as_function_error(error)
                self._outcome.note(error)
        finally:
            self._ended.set()
