"""An epoch's numbers in Spark's own progress.

Spark reports only its own stateful operators as stateful, and not pystate's. The handle that
`Job.start` returns adds these to its progress, which costs nothing until it is read. Listeners of
the session see only Spark's own events. For them, `observe` adds a metric, which the events
contain, to the query's plan.

Spark computes metrics from the rows that pass, but these numbers are known to the driver, once the
epoch is published. So the metric ignores the rows, and the driver sets its value before Spark reads
it. Its operator still visits each input row, which takes some 60 ns, so it is optional.

Thread safety: the thread of a query's batches uses it; any thread may ask for the progress.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryProgress

from pystate.errors import InvalidArgumentError
from pystate.redaction import logger
from pystate.spark.base.jvm import below

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pystate.spark.epochs.progress import EpochProgress


_LOG = logger("pystate.spark.epochs.spark_progress")
#: The metric's fields: long numbers, each an attribute of `EpochProgress`.
FIELDS = (
    "epoch",
    "rows_in",
    "rows_out",
    "rows_changed",
    "keys",
    "state_bytes",
    "checkpoint_bytes",
    "watermark_ms",
    "total_ms",
)
_COLUMN = "__pystate_observed_"


class ObservedMetric:
    """A metric that the progress of a query carries."""

    def __init__(self, name: str, session: SparkSession) -> None:
        self.name = name
        self._session = session
        self._failed = False

    def of(self, stream: DataFrame) -> DataFrame:
        """Return the stream with the metric, which its query then has."""
        columns = {f"{_COLUMN}{field}": F.lit(None).cast("long") for field in FIELDS}
        metrics = [F.max(f"{_COLUMN}{field}").alias(field) for field in FIELDS]
        return stream.withColumns(columns).observe(self.name, *metrics).drop(*columns)

    def note(self, query_id: str, progress: EpochProgress) -> None:
        """Set the metric of the query's current batch."""
        try:
            self._add(query_id, [getattr(progress, field) for field in FIELDS])
        except Exception as error:
            # In that case the metric in Spark's progress has no numbers.
            log = _LOG.debug if self._failed else _LOG.warning
            log("the metric %r cannot be set in this version of Spark: %s", self.name, error)
            self._failed = True

    def _add(self, query_id: str, values: Sequence[float | None]) -> None:
        jvm = self._session.sparkContext._jvm
        assert jvm is not None
        query = self._session._jsparkSession.streams().get(query_id)
        plan = query.streamingQuery().lastExecution().executedPlan()
        while (node := plan.nodeName()) != "CollectMetrics" or plan.name() != self.name:
            [plan, *_] = below(plan, node)
        row = jvm.org.apache.spark.sql.catalyst.expressions.UnsafeRow
        accumulators = jvm.org.apache.spark.util.AccumulatorContext
        before = plan.child().output().size() - len(values)
        data = long_row([*[None] * before, *values])
        unsafe = row(before + len(values))
        unsafe.pointTo(bytearray(data), len(data))
        accumulators.get(plan.accumulatorId()).get().add(unsafe)


def long_row(values: Sequence[float | None]) -> bytes:
    """A row of long columns in Spark's layout: a bit per null in whole words, then the words."""
    words = -(-len(values) // 64)
    nulls = sum(1 << i for i, value in enumerate(values) if value is None)
    numbers = [0 if value is None else int(value) for value in values]
    return nulls.to_bytes(8 * words, "little") + struct.pack(f"<{len(values)}q", *numbers)


def checked_observe(name: Any) -> str | None:
    """Refuse a value that cannot name a metric."""
    if name is None or (isinstance(name, str) and name):
        return name
    raise InvalidArgumentError(
        f"observe is the name of a metric for the listeners of the session, such as 'pystate', "
        f"not {name!r:.80}"
    )


def with_state(
    progress: StreamingQueryProgress, epochs: Mapping[int, EpochProgress]
) -> StreamingQueryProgress:
    """Spark's progress of a batch, with pystate's operators among the stateful ones."""
    epoch = epochs.get(progress.batchId)
    if epoch is None:
        return progress
    content = json.loads(progress.json)
    content["stateOperators"] = [
        *content.get("stateOperators", ()),
        *(operator.as_spark() for operator in epoch.operators),
    ]
    return StreamingQueryProgress.fromJson(content)
