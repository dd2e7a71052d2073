"""Operators that run code written for Spark's own stateful operators.

Thread safety: functions without state.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark import cloudpickle
from pyspark.sql import types as st
from pyspark.sql.group import GroupedData

from pystate.base.arguments import checked_uid, shown
from pystate.checkpoint.refs import INPUT
from pystate.errors import InvalidArgumentError, WrongTypeError
from pystate.operators.functions.binding import for_tasks, operator_spec, require_state
from pystate.operators.runtime.function_operator import FunctionOperator
from pystate.operators.runtime.function_spec import FunctionSpec
from pystate.operators.runtime.late_rows import DROP_LATE, PROCESS_LATE
from pystate.operators.runtime.output import OutputColumns
from pystate.spark.base.environment import require_classic
from pystate.spark.base.errors import StatefulProcessorError
from pystate.spark.base.frame_columns import FrameColumns
from pystate.spark.base.schemas import key_schema, output_columns, parse_schema
from pystate.spark.evaluation.initial_state import InitialRows, RowsOf
from pystate.spark.operators.apply import apply
from pystate.spark.operators.inputs import KeyedInput
from pystate.spark.ported.function import Options, PortedFunction, ported_function
from pystate.spark.ported.group_state import GroupStateProcessor, checked_timeout, mode_of
from pystate.spark.ported.handle import checked_output_mode, time_mode_of
from pystate.spark.ported.rows import Form, RowForm, RowOutput
from pystate.spark.tasks.arrivals import Arrivals
from pystate.types.keys import describe, parse_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Spark's options for frames of pandas.
_MOST_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_INTS_TO_DECIMALS = "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled"
_EXTENSION_INTS = "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype"
_BY_NAME = "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName"
_NO_LIMIT = 2**31 - 1

#: A frame with the rows before the first epoch, also as Spark takes it: grouped by the key.
InitialFrame: TypeAlias = Any
#: Makes the columns of what is yielded, of the declared ones and the operator's name in errors.
MakeOutput: TypeAlias = Callable[[st.StructType, str], OutputColumns]
#: How a processor gets its rows, and what it yields.
RowsForm: TypeAlias = tuple[Form, MakeOutput]
ROW_FORM: RowsForm = (RowForm(), RowOutput.of)

#: What Spark calls the parameters of its operators.
_IN_SPARK = {
    "processor": "statefulProcessor",
    "function": "func",
    "schema": "outputStructType",
    "output_schema": "outputStructType",
    "state_schema": "stateStructType",
    "output_mode": "outputMode",
    "time_mode": "timeMode",
    "timeout": "timeoutConf",
    "initial_state": "initialState",
    "event_time": "eventTimeColumnName",
}
#: Those without a default there.
_REQUIRED = ("output_mode", "time_mode", "timeout")


def as_in_spark(name: str, method: Callable[..., DataFrame]) -> Callable[..., DataFrame]:
    """A method under the name that it has in Spark, with the names of its parameters there."""
    ours = inspect.signature(method)
    theirs = ours.replace(
        parameters=[
            each.replace(
                name=_IN_SPARK.get(each.name, each.name),
                default=each.empty if each.name in _REQUIRED else each.default,
            )
            for each in ours.parameters.values()
        ]
    )

    def call(*arguments: Any, **named: Any) -> DataFrame:
        try:
            bound = theirs.bind(*arguments, **named)
        except TypeError as error:
            raise TypeError(f"{name}(): {error}") from None
        bound.apply_defaults()
        return method(*bound.args)

    call.__name__ = name
    call.__qualname__ = f"{method.__qualname__.rpartition('.')[0]}.{name}"
    call.__doc__ = f"`{method.__name__}` under Spark's names."
    call.__signature__ = theirs  # type: ignore[attr-defined]
    return call


def apply_in_pandas_with_state(
    rows: KeyedInput,
    function: Any,
    output_schema: str | st.StructType,
    state_schema: str | st.StructType,
    output_mode: str,
    timeout: str,
) -> DataFrame:
    """See `KeyedFrame.apply_in_pandas_with_state`."""
    owner = rows.owner
    if not callable(function):
        raise WrongTypeError(f"{owner}: {shown(function)} is no function")
    given = checked_timeout(timeout, owner)
    # By its own event time, or by what feeds it.
    timed = rows.event_time is not None or rows.evaluation.epoch.has_watermark(rows.input)
    if given == "EventTimeTimeout" and not timed:
        raise StatefulProcessorError(
            f"{owner}: EventTimeTimeout needs a watermark: name the column of the event "
            "time, key_by(..., event_time='column', allowed_delay='10 minutes')"
        )
    columns = rows.frame.columns
    processor = GroupStateProcessor(function, state_schema, given, columns, timed, owner)
    modes, form = (output_mode, mode_of(given)), frame_form(rows, cut_by_bytes=False)
    return transform(rows, processor, output_schema, modes, form, None, "")


def frame_form(rows: KeyedInput, *, cut_by_bytes: bool) -> RowsForm:
    """How frames are made of rows, and rows of frames, as the session's options say."""
    session = rows.frame.sparkSession
    conf = session.conf
    zone = str(conf.get("spark.sql.session.timeZone"))
    most = int(str(conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")))
    ints, extension_ints, by_name = (
        str(conf.get(option, default)).lower() == "true"
        for option, default in (
            (_INTS_TO_DECIMALS, "false"),
            (_EXTENSION_INTS, "false"),
            (_BY_NAME, "true"),
        )
    )
    most_bytes = _size(session, _MOST_BYTES) if cut_by_bytes else None
    # pandas is imported where frames are used.
    from pystate.spark.ported.frame_output import FrameOutput
    from pystate.spark.ported.frames import FrameForm

    form = FrameForm(zone, most if most > 0 else 2**31 - 1, most_bytes, extension_ints)
    return form, partial(FrameOutput.of, zone=zone, ints_to_decimals=ints, by_name=by_name)


def transform(
    rows: KeyedInput,
    processor: Any,
    schema: str | st.StructType,
    modes: tuple[str, str],
    form: RowsForm,
    initial_state: InitialFrame,
    event_time: str,
) -> DataFrame:
    """Run a processor; `modes` are those of the output and of the time."""
    uid, owner, frame = checked_uid(rows.uid), rows.owner, rows.frame
    checked_output_mode(modes[0], owner)
    mode = time_mode_of(modes[1], owner)
    declared = parse_schema(schema, owner)
    _check_event_time(event_time, declared, owner)
    options = Options(uid, mode, tuple(rows.names), form[0], event_time or None)
    function = ported_function(processor, options, _sent_and_back)
    first = None if initial_state is None else _initial_state(rows, function, initial_state)
    rows.schema()
    # In the other modes Spark's operators see late rows, even if the input has a watermark.
    drops = rows.event_time is not None and mode == "EventTime"
    late = DROP_LATE if drops else PROCESS_LATE
    spec = _spec(rows, function, frame.columns, form[1](declared, owner))
    spec = replace(spec, event_time=rows.event_time, late=late)
    require_state(function, owner)
    for_tasks(function, cloudpickle.dumps)
    if first is not None and rows.options.initial_rows is not None:
        raise InvalidArgumentError(
            f"{owner}: initial_state and key_by(initial_rows=...) both say what the "
            "operator begins with: give one of them"
        )
    operator = replace(operator_spec(function, uid, parse_key(rows.keys)), dropped=function.dropped)
    applied = rows.application(operator, partial(FunctionOperator, spec), declared)
    return apply(rows.evaluation, replace(applied, initial=first, counted=False))


def _spec(
    rows: KeyedInput, function: PortedFunction, columns: Sequence[str], output: OutputColumns
) -> FunctionSpec:
    return FunctionSpec(
        function,
        key=rows.key_names,
        columns=tuple(columns),
        output=output,
        key_types=rows.key_types(),
    )


def _initial_state(rows: KeyedInput, function: PortedFunction, given: InitialFrame) -> InitialRows:
    """The rows for `handleInitialState`, brought to the tasks as those of the input are."""
    what = f"{rows.owner}: initial_state"
    frame = given._df if isinstance(given, GroupedData) else given
    frame = require_classic(frame, what)
    if frame.isStreaming:
        raise InvalidArgumentError(f"{what} is a stream: it is read once, as a batch")
    columns = FrameColumns(frame, what)
    names = [columns.take(name) for name in rows.names]
    frame = columns.frame
    keys = key_schema(frame.schema, names, what, marked=rows.marked)
    if keys != rows.keys or names != rows.names:
        raise WrongTypeError(
            f"{what}: the key is ({describe(parse_key(keys))}) there, and "
            f"({describe(parse_key(rows.keys))}) in the input: it has the same names and "
            "types; rename or cast the columns"
        )
    output = output_columns(frame.schema, what)
    spec = _spec(rows, function.for_initial(), frame.columns, output)
    first, make = [RowsOf(INPUT, lambda: frame, None)], partial(FunctionOperator, spec)
    return InitialRows(first, rows.in_order(()), make, Arrivals())


def _size(session: SparkSession, option: str) -> int | None:
    """An option that is a number of bytes, such as ``64m``; None if there is no limit."""
    given = session.conf.get(option, None)
    if given is None:
        return None
    utilities: Any = session._jvm.org.apache.spark.network.util.JavaUtils  # type: ignore[union-attr]
    size = int(utilities.byteStringAsBytes(str(given)))
    return None if size >= _NO_LIMIT else size


def _sent_and_back(processor: Any) -> Any:
    """A copy as a task gets it."""
    return cloudpickle.loads(for_tasks(processor, cloudpickle.dumps, "init(self, handle)"))


def _check_event_time(name: Any, schema: st.StructType, owner: str) -> None:
    if name in ("", None):
        return
    if name not in schema.names:
        raise InvalidArgumentError(
            f"{owner}: event_time={shown(name)} is no column of the schema, which has "
            f"{', '.join(schema.names)}: it names the event time of the rows that are yielded; "
            "that of the input is named in key_by(..., event_time=...)"
        )
    if not isinstance(schema[name].dataType, st.TimestampType):
        raise WrongTypeError(
            f"{owner}: event_time={name!r} is {schema[name].dataType.simpleString()}, and must be "
            "a timestamp"
        )
