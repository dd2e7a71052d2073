"""What users pass to a `Job`, checked and brought into one form.

Thread safety: functions without state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.core.rdd import RDD
from pyspark.sql import SparkSession

from pystate.errors import InvalidArgumentError
from pystate.spark.environment import require_classic
from pystate.spark.routing import column_named

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["as_columns", "checked_uid", "session_of"]


def checked_uid(uid: str | None) -> str:
    """Return the uid; without one, say why it matters."""
    if not isinstance(uid, str) or not uid:
        raise InvalidArgumentError(
            "a stateful operator needs a uid, e.g. uid='aircraft': the checkpoint keeps its state "
            "under that name, and without one a later version of the job, with an operator more "
            "or in another order, could not tell whose state is whose"
        )
    return uid


def as_columns(order_by: str | Column | Sequence[str | Column] | None) -> list[Column]:
    """Return what `order_by` may be as a list of columns."""
    if order_by is None:
        return []
    given = (
        [order_by] if isinstance(order_by, str) or not isinstance(order_by, Sequence) else order_by
    )
    return [column_named(item) if isinstance(item, str) else item for item in given]


def session_of(data: Any) -> SparkSession:
    """Return the session of a run's input: a DataFrame that is no stream, or an RDD."""
    if isinstance(data, RDD):
        session = SparkSession.getActiveSession()
        if session is None or session.sparkContext is not data.context:
            session = SparkSession(data.context)
        return session
    frame = require_classic(data, "data")
    if frame.isStreaming:
        raise InvalidArgumentError("data is a streaming DataFrame: use start for a stream")
    return frame.sparkSession
