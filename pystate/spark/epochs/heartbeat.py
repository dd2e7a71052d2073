"""A stream source without rows, so that time advances while the input is idle.

Spark runs no micro-batch without new input, and its own ``rate`` source makes at least one per
second. This source has a new position once per interval, and never a row: a stream united with it
has a batch at least once per interval. If rows arrive, their batches include the new positions.

Thread safety: a reader belongs to Spark's planner process.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import LongType, StructField, StructType

from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.source_position import SPARK_FOLDER, query_of
from pystate.checkpoint.storage import CheckpointStorage
from pystate.errors import InvalidArgumentError
from pystate.redaction import logger
from pystate.spark.base.offsets import newest_sources
from pystate.types.durations import Duration, milliseconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # no Python source can before PySpark 4.2
    SupportsTriggerAvailableNow = object  # type: ignore[assignment, misc]

_LOG = logger("pystate.spark.epochs.heartbeat")
_FORMAT = "pystate_heartbeat"
_POSITION = "pystate_heartbeat_ms"
_OPTION = "interval_ms"


class HeartbeatReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Positions are times, rounded down to the interval; there is nothing between them."""

    def __init__(self, interval_ms: int) -> None:
        self._interval_ms = interval_ms
        self._last_ms = 0
        self._ended = False

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 (Spark's name)
        """The position at which a new query begins."""
        return {_POSITION: 0}

    def latestOffset(  # noqa: N802 (Spark's name)
        self, start: dict[str, int] | None = None, limit: Any = None
    ) -> dict[str, int]:
        """The last beat; it never goes back, whatever the host's clock does."""
        if not self._ended:
            now_ms = time.time_ns() // 1_000_000
            self._last_ms = max(self._last_ms, now_ms - now_ms % self._interval_ms)
        before_ms = 0 if start is None else start[_POSITION]
        return {_POSITION: max(self._last_ms, before_ms)}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
        """Make this beat the last one.

        If a single source does not support this, the trigger takes all input of all sources in one
        batch.
        """
        self.latestOffset()
        self._ended = True

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return one partition, the fewest that Spark accepts."""
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        """No rows."""
        return iter(())


class HeartbeatSource(DataSource):
    """The data source from which Spark makes readers."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return _FORMAT

    def schema(self) -> StructType:
        """One column, the fewest that Spark accepts."""
        return StructType([StructField("beat", LongType())])

    def streamReader(self, schema: StructType) -> HeartbeatReader:  # noqa: N802 (Spark's name)
        """A reader with the interval that the options name."""
        return HeartbeatReader(int(self.options[_OPTION]))


def with_heartbeat(
    stream: DataFrame, heartbeat: Duration | None, storage: CheckpointStorage
) -> DataFrame:
    """Unite a stream with a source that makes a batch per interval and adds no row.

    Its columns become nullable. With None the stream is returned unchanged. A query may not change
    from one to the other.
    """
    interval_ms = None
    if heartbeat is not None:
        interval_ms = milliseconds(heartbeat, "heartbeat", least=1)
    _check_sources(storage, interval_ms is not None)
    if interval_ms is None:
        return stream
    session = stream.sparkSession
    session.dataSource.register(HeartbeatSource)
    beats = session.readStream.format(_FORMAT).option(_OPTION, str(interval_ms)).load()
    columns = [F.lit(None).cast(field.dataType).alias(field.name) for field in stream.schema]
    return stream.union(beats.select(*columns))


def _has_published_nothing(storage: CheckpointStorage) -> bool:
    """Whether no epoch holds a batch of the checkpoint's query."""
    head = read_head(storage)
    return head is None or query_of(storage, head) is None


def drop_other_sources(storage: CheckpointStorage, wanted: bool) -> None:
    """Let a query begin anew if one that has published nothing had other sources.

    The caller owns the checkpoint, and no query runs on it.
    """
    if _had_heartbeat(storage) not in (None, wanted) and _has_published_nothing(storage):
        _LOG.warning(
            "checkpoint %s: a query before this one, %s a heartbeat, has published nothing: this "
            "one begins anew, at the start of its sources",
            storage.uri,
            "without" if wanted else "with",
        )
        storage.remove_folder(SPARK_FOLDER)


def _had_heartbeat(storage: CheckpointStorage) -> bool | None:
    """Whether the query that has run has a heartbeat; None if none has run."""
    sources = newest_sources(storage)
    return None if sources is None else any(_POSITION in source for source in sources)


def _check_sources(storage: CheckpointStorage, wanted: bool) -> None:
    """Refuse to add or remove the heartbeat of a query that has run: it would be another query."""
    has = _had_heartbeat(storage)
    if has not in (None, wanted) and not _has_published_nothing(storage):
        raise InvalidArgumentError(
            f"checkpoint {storage.uri}: the query has run {'with' if has else 'without'} a "
            "heartbeat, and Spark keeps a query's sources for its whole life: "
            + ("pass heartbeat= again" if has else "leave heartbeat= away")
            + ", or remove the checkpoint's folder 'spark' and pass restore=\"latest\", which "
            "begins a new query on the same state, at the start of its sources"
        )
