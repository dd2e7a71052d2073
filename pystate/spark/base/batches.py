"""The size of the Arrow batches between the JVM and the workers.

Thread safety: belongs to the thread that runs the epoch, since it sets the session's configuration.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_SPARK_BATCH_ROWS = "10000"
#: Rows per Arrow batch between the JVM and the workers if the user kept Spark's default: with so
#: many rows the fixed cost of a batch, some 100 µs, does not matter.
_OUR_BATCH_ROWS = "65536"


@contextmanager
def large_batches(session: SparkSession) -> Iterator[None]:
    """Make Spark pass larger Arrow batches, unless the user has set their size."""
    if session.conf.get(_BATCH_ROWS, _SPARK_BATCH_ROWS) != _SPARK_BATCH_ROWS:
        yield
        return
    session.conf.set(_BATCH_ROWS, _OUR_BATCH_ROWS)
    try:
        yield
    finally:
        session.conf.unset(_BATCH_ROWS)
