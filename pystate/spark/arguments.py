"""What users pass to a `Job`, checked and brought into one form.

Thread safety: functions without state.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.core.rdd import RDD
from pyspark.sql import SparkSession
from pyspark.sql import types as st

from pystate.durations import Duration, milliseconds
from pystate.errors import InvalidArgumentError, WrongTypeError
from pystate.output import OutputColumns
from pystate.spark.columns import output_columns, parse_schema, require_columns
from pystate.spark.environment import require_classic
from pystate.spark.queries import JobQuery, Outcome
from pystate.spark.requirements import require_pandas
from pystate.spark.routing import column_named

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "allowed_delay_ms",
    "as_columns",
    "checked_home",
    "checked_uid",
    "element_delay_ms",
    "session_of",
    "side_columns",
    "start_query",
]

_EVENT_TIMES = (st.TimestampType, st.TimestampNTZType, st.DateType, st.LongType)


def checked_uid(uid: str | None) -> str:
    """Return the uid; without one, say why it matters."""
    if not isinstance(uid, str) or not uid:
        raise InvalidArgumentError(
            "a stateful operator needs a uid, e.g. uid='aircraft': the checkpoint keeps its state "
            "under that name, and without one a later version of the job, with an operator more "
            "or in another order, could not tell whose state is whose"
        )
    return uid


def checked_home(home: str | os.PathLike[str], shared: bool) -> str:
    """Return where the workers keep their tables."""
    text = os.fspath(home)
    if text not in ("shm", "local", "heap") and not os.path.isabs(text):
        raise InvalidArgumentError(
            f"table_home is 'shm', 'local', 'heap' or the absolute path of a folder, not {home!r}"
        )
    if not shared and text not in ("shm", "heap"):
        raise InvalidArgumentError(
            f"shared_tables=False keeps tables in each worker's heap, not in {text}: leave it out"
        )
    return text if shared else "heap"


def as_columns(order_by: str | Column | Sequence[str | Column] | None) -> list[Column]:
    """Return what `order_by` may be as a list of columns."""
    if order_by is None:
        return []
    given = (
        [order_by] if isinstance(order_by, str) or not isinstance(order_by, Sequence) else order_by
    )
    return [column_named(item) if isinstance(item, str) else item for item in given]


def allowed_delay_ms(
    schema: st.StructType, event_time: str | None, allowed_delay: Duration | None, owner: str
) -> int | None:
    """Check a frame's event-time column; returns the allowed delay, None without event time."""
    if event_time is None:
        if allowed_delay is not None:
            raise InvalidArgumentError(
                f"{owner}: allowed_delay is how late a row may be by its event time: name the "
                "column of that, event_time='column', too"
            )
        return None
    require_columns(schema, [event_time], f"{owner}: event_time")
    data_type = schema[event_time].dataType
    if not isinstance(data_type, _EVENT_TIMES):
        raise WrongTypeError(
            f"{owner}: the event-time column {event_time!r} is {data_type.simpleString()}: it must "
            "be timestamp, timestamp_ntz, date, or a long with milliseconds since 1970"
        )
    return milliseconds(0 if allowed_delay is None else allowed_delay, f"{owner}: allowed_delay")


def element_delay_ms(event_time: object, allowed_delay: Duration | None, owner: str) -> int | None:
    """The same for an RDD, where a function says what an element's event time is."""
    if event_time is None:
        if allowed_delay is not None:
            raise InvalidArgumentError(
                f"{owner}: allowed_delay is how late an element may be by its event time: pass "
                "the function that says it, event_time=lambda element: ..., too"
            )
        return None
    if not callable(event_time):
        raise InvalidArgumentError(
            f"{owner}: over an RDD event_time is a function from an element to a datetime, a date "
            f"or milliseconds since 1970, not {event_time!r:.80}"
        )
    return milliseconds(0 if allowed_delay is None else allowed_delay, f"{owner}: allowed_delay")


def side_columns(
    side_outputs: Mapping[str, str | st.StructType] | None, owner: str
) -> dict[str, OutputColumns]:
    """The columns of an operator's side outputs, by tag."""
    columns = {}
    for tag, schema in (side_outputs or {}).items():
        if not tag:
            raise InvalidArgumentError(f"{owner}: a side output's tag is a string, not {tag!r}")
        name = f"{owner}, side output {tag!r}"
        columns[tag] = output_columns(parse_schema(schema, name), name)
    return columns


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
    require_pandas("run_epoch")
    return frame.sparkSession


def start_query(
    stream: DataFrame,
    on_batch: Callable[[DataFrame, int], None],
    folder: str,
    name: str | None,
    trigger: Mapping[str, Any] | None,
    outcome: Outcome,
) -> JobQuery:
    """Start a query over `foreachBatch` that keeps its positions in `folder`."""
    writer = stream.writeStream.foreachBatch(on_batch).option("checkpointLocation", folder)
    if name is not None:
        writer = writer.queryName(name)
    if trigger is not None:
        writer = writer.trigger(**trigger)
    return JobQuery(writer.start(), outcome, stream.sparkSession.sparkContext)
