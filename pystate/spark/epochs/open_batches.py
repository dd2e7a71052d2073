"""The batches of a stream since its last checkpoint, and how a query with held steps ends.

Thread safety: batches come from the query's thread; the thread that takes checkpoints by time, and
whoever stops the query, come beside it.

Invariants
----------
1. A batch's DataFrame is kept until a checkpoint holds the batch. If state since the last one
   is lost, the batches since then are computed again from these, in order, and each of them is a
   checkpoint, so that the same loss cannot come again.
2. A query that ends, or is stopped, takes a checkpoint of what it holds. If that fails, the next
   start sets the positions back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pystate.epochs.coordinator import RunOutcome
from pystate.errors import StateLostError
from pystate.redaction import logger
from pystate.spark.epochs.epochs import EpochRunner
from pystate.spark.epochs.queries import JobQuery, QueryOutcome

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


_LOG = logger("pystate.spark.epochs.open_batches")
#: How often the thread looks whether a checkpoint is due by time.
_LOOK_S = 0.5

_Position = dict[str, Any]


class HeldBatches:
    """The batches of one query that no checkpoint holds yet."""

    def __init__(
        self, epochs: EpochRunner, session: SparkSession, run: Callable[..., RunOutcome]
    ) -> None:
        self._epochs = epochs
        self._session = session
        self._run = run
        self._since: list[tuple[DataFrame, _Position]] = []
        # A callback of an epoch may stop its own query.
        self._lock = threading.RLock()
        self._ended = threading.Event()

    def compute(self, frame: DataFrame, **position: Any) -> None:
        """Run the step of a batch."""
        with self._lock:
            self._forget()
            try:
                outcome = self._run(frame, frame.sparkSession, **position)
            except StateLostError as error:
                self._compute_again(error)
                outcome = self._run(frame, frame.sparkSession, **position, closes=True)
            if outcome.held:
                self._since.append((frame, position))

    def flush(self) -> None:
        """Take a checkpoint of the held steps."""
        with self._lock:
            try:
                self._epochs.flush(self._session)
            except StateLostError as error:
                self._compute_again(error)

    def _compute_again(self, error: StateLostError) -> None:
        # A checkpoint by time may have come between.
        self._forget()
        _LOG.warning("%s; the %d batches since then are computed again", error, len(self._since))
        self._epochs.drop_steps()
        for frame, position in self._since:
            self._run(frame, frame.sparkSession, **position, closes=True)
        self._since = []

    def _forget(self) -> None:
        coordinator = self._epochs.coordinator
        head = None if coordinator is None else coordinator.head
        if head is None or not self._since:
            return
        progress = head.progress(self._since[0][1]["query_id"])
        if progress is not None:
            last = progress.batch_id
            self._since = [each for each in self._since if each[1]["batch_id"] > last]

    def watch(self, active: Callable[[], bool]) -> None:
        """Take checkpoints that are due while the input is idle, as long as the query runs."""
        threading.Thread(
            target=self._watch, args=(active,), name="pystate-checkpoints", daemon=True
        ).start()

    def end(self) -> None:
        """End the thread of `watch`."""
        self._ended.set()

    def _watch(self, active: Callable[[], bool]) -> None:
        while not self._ended.wait(_LOOK_S) and active():
            coordinator = self._epochs.coordinator
            left_s = None if coordinator is None else coordinator.interval.wait_s()
            if left_s is None or left_s > 0:
                continue
            try:
                self.flush()
            except Exception as error:
                _LOG.warning("the checkpoint between two batches failed: %s", error)


class HoldingQuery(JobQuery):
    """A job's query that takes a checkpoint when it has ended by itself."""

    def __init__(
        self,
        query: StreamingQuery,
        outcome: QueryOutcome,
        context: SparkContext,
        finish: Callable[[], None],
    ) -> None:
        super().__init__(query, outcome, context)
        self._finish = finish
        self._finished = threading.Event()
        threading.Thread(target=self._end, name="pystate-finish", daemon=True).start()

    @property
    def isActive(self) -> bool:  # noqa: N802 (Spark's name)
        """Whether the query runs, or its last checkpoint is being taken."""
        return not self._finished.is_set()

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802
        """Wait until the query has ended, and has taken its last checkpoint."""
        began_s = time.monotonic()
        ended: bool | None = None
        try:
            ended = super().awaitTermination(timeout)
        finally:
            if timeout is None:
                self._finished.wait()
        if timeout is not None:
            left_s = max(0.0, timeout - (time.monotonic() - began_s))
            return bool(ended) and self._finished.wait(left_s)
        return ended

    def stop(self) -> None:
        """Stop the query, and take a checkpoint of the batches that it has completed."""
        super().stop()
        self._finished.wait()

    def _end(self) -> None:
        try:
            self._jsq.awaitTermination()
        except Exception as error:
            # Spark reports the failure, or is gone.
            _LOG.debug("the query has failed, and takes no last checkpoint: %s", error)
        else:
            if not self._outcome.stopping:
                self._finish()
        finally:
            self._finished.set()
