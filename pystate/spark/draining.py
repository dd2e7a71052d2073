"""The end of a bounded stream: an epoch without rows, after a query's last batch, that drains.

Spark ends a query with ``availableNow`` after its last batch, and no batch knows that it is the
last. So the epoch that drains (`pystate.operator.drain`) comes after the query, as a run: its run
key says what it ends, so that it is computed once, however often the query is started again
without new input. A driver that dies in between has a query without anything new to do, and then
this epoch.

Thread safety: a query is ended and asked by any thread; a thread of its own drains.

Invariants
----------
1. Only a query that has come to its own end is drained: not one that failed or was stopped.
2. A query counts as active until it is drained.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException

from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import InvalidArgumentError
from pystate.spark.arguments import checked_name
from pystate.spark.offsets import is_complete
from pystate.spark.queries import JobQuery, Outcome

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

__all__ = ["DRAIN_KEY", "DrainingQuery", "checked_drain", "checked_run_key", "drain_key", "no_rows"]

_LOG = logging.getLogger("pystate.spark.draining")
#: What the run keys of epochs begin with that drain a stream.
DRAIN_KEY = "pystate drain after epoch "
_BOUNDED = ("availableNow", "once")
_LOOK_S = 0.2


def checked_drain(drain: bool, trigger: Mapping[str, Any] | None) -> bool:
    """Refuse to drain a stream that has no end."""
    if drain and not any((trigger or {}).get(name) for name in _BOUNDED):
        raise InvalidArgumentError(
            "drain=True takes the watermark to its end once the input has ended, which with "
            f"trigger={trigger!r:.80} never is: pass trigger={{'availableNow': True}}"
        )
    return drain


def checked_run_key(run_key: str | None) -> str | None:
    """Return a run key that may be left out, and is not one of the keys made here."""
    found = checked_name(run_key, "run_key")
    if found is not None and found.startswith(DRAIN_KEY):
        raise InvalidArgumentError(
            f"run_key={found!r:.80}: run keys that begin like this are those of epochs that drain "
            "a stream: take another one, with drain=True if it is to drain"
        )
    return found


def drain_key(storage: CheckpointStorage) -> str | None:
    """The run key of the epoch that drains what the checkpoint holds; None where that is nothing.

    It is the newest epoch's where that one is such an epoch.
    """
    head = read_head(storage)
    if head is None:
        return None
    if head.run_key is not None and head.run_key.startswith(DRAIN_KEY):
        return head.run_key
    return f"{DRAIN_KEY}{head.epoch}"


def no_rows(session: SparkSession, schema: StructType) -> DataFrame:
    """A frame without rows, of which Spark does not know that it has none.

    What it knows to be empty it takes out of a plan, and the operators above go with it.
    """
    return session.createDataFrame(session.sparkContext.emptyRDD(), schema)


class DrainingQuery(JobQuery):
    """A job's query that is drained after its last batch.

    Parameters
    ----------
    query, outcome, context
        See `JobQuery`.
    storage : CheckpointStorage
        The job's checkpoint.
    drain : callable
        Runs the epoch that drains.
    """

    def __init__(
        self,
        query: StreamingQuery,
        outcome: Outcome,
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
        # As Spark's own thread of a query: a driver that ends without waiting for it kills both.
        threading.Thread(target=self._end, name="pystate-drain", daemon=True).start()

    @property
    def isActive(self) -> bool:  # noqa: N802 (Spark's name)
        """Whether it runs, or is being drained."""
        return not self._ended.is_set()

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802
        """Wait until it has ended and is drained.

        Raises
        ------
        StreamingQueryException
            It failed.
        Exception
            What the epoch raised that drains.
        """
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
        if self._error is not None:
            raise self._error
        return ended

    def exception(self) -> StreamingQueryException | None:
        """What made it fail, or the epoch that drains."""
        found = super().exception()
        if found is None and self._error is not None:
            found = StreamingQueryException(f"the stream is not drained: {self._error}")
            found.__cause__ = self._error
        return found

    def stop(self) -> None:
        """End the query, also while it is drained; the next start with ``drain=True`` drains it."""
        self._outcome.stopping = True
        super().stop()
        # Again at every look: the pipeline may start another job.
        while not self._ended.wait(_LOOK_S):
            self._context.cancelJobsWithTag(self._tag)

    def _end(self) -> None:
        try:
            self._jsq.awaitTermination()
        except Exception as error:
            # Spark tells of it, or is gone.
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
            self._drain()
        except BaseException as error:
            if not self._outcome.stopping:
                self._error = error
                self._outcome.note(error)
        finally:
            self._ended.set()
