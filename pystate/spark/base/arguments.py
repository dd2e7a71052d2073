"""The arguments that users pass to a `Job`, checked and converted to one form.

Thread safety: functions without state.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.core.rdd import RDD
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import types as st

from pystate.base.arguments import choice, integer, mapping, nearest, shown, text
from pystate.epochs.watermarks import Input
from pystate.errors import InvalidArgumentError, WrongTypeError
from pystate.operators.runtime.output import OutputColumns
from pystate.spark.base.environment import require_classic, require_pandas
from pystate.spark.base.frame_columns import FrameColumns
from pystate.spark.base.schemas import output_columns, parse_schema
from pystate.tables.options import DISK
from pystate.types.durations import Duration, delay_milliseconds, milliseconds
from pystate.types.keys import MAX_PARALLELISM

#: How the rows of a key are to be sorted.
OrderBy: TypeAlias = "str | Column | Sequence[str | Column] | None"

_BOUNDED_TRIGGERS = ("availableNow", "once")
_HOMES = ("shm", "local", "heap", DISK)
_EVENT_TIMES = (st.TimestampType, st.TimestampNTZType, st.DateType, st.LongType)


def checked_count(number: int | None, what: str) -> int | None:
    """Return a number of ranges or key groups; None stands for the default."""
    if number is None:
        return None
    try:
        return integer(number, what, least=1, most=MAX_PARALLELISM)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{error}; leave it out for the default") from None


def checked_name(name: str | None, what: str) -> str | None:
    """Return a name that may be left out."""
    return None if name is None else text(name, what)


def checked_restore(restore: object) -> None:
    """Refuse an invalid `restore`."""
    if restore is not None:
        choice(restore, "restore", ["latest"])


def checked_pipeline(pipeline: Any) -> None:
    """Refuse a pipeline that cannot be called with an epoch's rows."""
    if not callable(pipeline):
        hint = "; pass the function itself, not what it returns" if _is_frame(pipeline) else ""
        raise InvalidArgumentError(
            f"pipeline is a function from an epoch's DataFrame to the rows to write, not "
            f"{shown(pipeline)}{hint}"
        )


def _is_frame(value: object) -> bool:
    return hasattr(value, "columns") or isinstance(value, RDD)


def checked_callback(function: object, what: str) -> None:
    """Refuse a callback that is neither callable nor None."""
    if function is not None and not callable(function):
        raise InvalidArgumentError(f"{what} is a function, such as print, not {shown(function)}")


def checked_trigger(trigger: Any) -> None:
    """Refuse a trigger that is not a dict of arguments for `writeStream.trigger`."""
    if trigger is not None:
        known = ("processingTime", "once", "availableNow", "continuous", "realTime")
        if trigger in ("once", "availableNow"):
            raise InvalidArgumentError(
                f"trigger is a dict, not {shown(trigger)}: write trigger={{{trigger!r}: True}}"
            )
        for name in mapping(trigger, "trigger", "trigger={'processingTime': '10 seconds'}"):
            if name not in known:
                raise InvalidArgumentError(
                    f"trigger has {name!r}, which Spark does not know: it takes "
                    f"{', '.join(known)}{nearest(name, known)}"
                )


def checked_drain(drain: bool, trigger: Mapping[str, Any] | None) -> bool:
    """Refuse to drain a stream that has no end."""
    if drain and not any((trigger or {}).get(name) for name in _BOUNDED_TRIGGERS):
        raise InvalidArgumentError(
            "drain=True takes the watermark to its end once the input has ended, and with "
            f"trigger={trigger!r:.80} it never ends: pass trigger={{'availableNow': True}}"
        )
    return drain


def checked_home(home: Any, shared: bool, owner: str = "job") -> str:
    """Return where the workers keep their tables."""
    place = os.fspath(home) if isinstance(home, (str, os.PathLike)) else None
    if place not in _HOMES and not (place is not None and os.path.isabs(place)):
        raise InvalidArgumentError(
            f"{owner}: table_home is 'shm', 'local', 'heap', 'disk' or the absolute path of a "
            f"folder, not {shown(home)}{nearest(place, _HOMES)}"
        )
    assert place is not None
    if not shared and place not in ("shm", "heap"):
        raise InvalidArgumentError(
            f"{owner}: shared_tables=False keeps tables in each worker's heap, not in {place}: "
            "leave it out"
        )
    return place if shared else "heap"


def as_columns(order_by: OrderBy, columns: FrameColumns, owner: str) -> list[Column]:
    """Return `order_by` as a list of columns."""
    if order_by is None:
        return []
    given = (
        [order_by] if isinstance(order_by, str) or not isinstance(order_by, Sequence) else order_by
    )
    order: list[Column] = []
    for item in given:
        if isinstance(item, str):
            order.append(columns.find(item, "order_by").column)
        elif isinstance(item, Column):
            order.append(item)
        else:
            raise InvalidArgumentError(
                f"{owner}: order_by is the name of a column, a Column such as F.col('at').desc(), "
                f"or a list of them, not {shown(item)}"
            )
    if any(isinstance(item, Column) for item in given):
        try:
            _ = columns.frame.sortWithinPartitions(*order).schema
        except AnalysisException as error:
            reason = str(error).strip().splitlines()[0]
            raise InvalidArgumentError(
                f"{owner}: order_by={shown(order_by)} does not fit the columns "
                f"{', '.join(columns.frame.columns)}: {reason}"
            ) from None
    return order


def frame_input(
    frame: DataFrame,
    fed: Input,
    follows: bool,
    event_time: str | None,
    allowed_delay: Duration | None,
    idle_after: Duration | None,
    owner: str,
) -> Input:
    """Check what is said of a frame's event time, and return the operator's input.

    With `follows` it has a watermark in any case, because of the operators that feed it.
    """
    if event_time is not None:
        data_type = frame.schema[event_time].dataType
        if not isinstance(data_type, _EVENT_TIMES):
            raise WrongTypeError(
                f"{owner}: the event-time column {event_time!r} is {data_type.simpleString()}: it "
                "must be timestamp, timestamp_ntz, date, or a long with milliseconds since 1970"
            )
    elif not follows:
        _refuse_without_event_time(
            allowed_delay,
            idle_after,
            owner,
            "name the column of the event time, event_time='column'",
        )
    given = _input(event_time is not None, allowed_delay, idle_after, owner)
    return replace(
        given, upstream=fed.upstream, source=fed.source, loops=fed.loops, origin=fed.origin
    )


def element_input(
    event_time: object, allowed_delay: Duration | None, idle_after: Duration | None, owner: str
) -> Input:
    """The same for an RDD, where a function gives an element's event time."""
    if event_time is None:
        _refuse_without_event_time(
            allowed_delay,
            idle_after,
            owner,
            "pass a function that returns the event time, event_time=lambda element: ...",
        )
    elif not callable(event_time):
        raise InvalidArgumentError(
            f"{owner}: over an RDD event_time is a function from an element to a datetime, a date "
            f"or milliseconds since 1970, not {event_time!r:.80}"
        )
    return _input(event_time is not None, allowed_delay, idle_after, owner)


def _refuse_without_event_time(
    allowed_delay: Duration | None, idle_after: Duration | None, owner: str, instead: str
) -> None:
    for name, value, what in (
        ("allowed_delay", allowed_delay, "how late a row may be by its event time"),
        ("idle_after", idle_after, "when an input without rows holds no watermark back"),
    ):
        if value is not None:
            raise InvalidArgumentError(f"{owner}: {name} is {what}: also {instead}")


def _input(
    event_time: bool, allowed_delay: Duration | None, idle_after: Duration | None, owner: str
) -> Input:
    delay, idle = 0 if allowed_delay is None else allowed_delay, f"{owner}: idle_after"
    return Input(
        event_time=event_time,
        allowed_delay_ms=delay_milliseconds(delay, f"{owner}: allowed_delay"),
        idle_after_ms=None if idle_after is None else milliseconds(idle_after, idle, least=1),
    )


def late_schema(
    tag: str, sides: Mapping[str, OutputColumns], frame: DataFrame, owner: str
) -> pa.Schema:
    """The columns of late rows in a side output: those of the input, as `sides` gives them."""
    if tag not in sides:
        return output_columns(frame.schema, owner).schema
    if sorted(sides[tag].names) != sorted(frame.columns):
        raise InvalidArgumentError(
            f"{owner}: late={tag!r} takes rows of the input, with the columns "
            f"{', '.join(frame.columns)}; side_outputs names other ones for it: "
            f"{', '.join(sides[tag].names)}"
        )
    return sides[tag].schema


def side_columns(
    side_outputs: Mapping[str, str | st.StructType] | None, owner: str
) -> dict[str, OutputColumns]:
    """The columns of an operator's side outputs, by tag."""
    columns = {}
    given = {} if side_outputs is None else side_outputs
    example = "side_outputs={'late': 'key string, n long'}"
    for tag, schema in mapping(given, f"{owner}: side_outputs", example).items():
        name = f"{owner}, side output {tag!r}"
        columns[tag] = output_columns(parse_schema(schema, name), name)
    return columns


def session_of(data: Any) -> SparkSession:
    """Return the session of a run's input, which is an RDD or a DataFrame that is not a stream."""
    if isinstance(data, RDD):
        session = SparkSession.getActiveSession()
        if session is None or session.sparkContext is not data.context:
            session = SparkSession(data.context)
        return session
    frame = require_classic(data, "data")
    if frame.isStreaming:
        raise InvalidArgumentError("data is a streaming DataFrame: use start for a stream")
    require_pandas("run_epoch")
    session = frame.sparkSession
    if session.sparkContext._jsc is None:
        raise InvalidArgumentError("data belongs to a session that was stopped: make it again")
    return session
