"""Operators of a `KeyedFrame` that run code written for Spark's own stateful operators.

Thread safety: immutable.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql import types as st
from pyspark.sql.group import GroupedData

from pystate.base.arguments import checked_uid, shown
from pystate.checkpoint.refs import INPUT
from pystate.epochs.watermarks import Input
from pystate.errors import InvalidArgumentError, WrongTypeError
from pystate.operators.functions.binding import for_tasks, operator_spec, require_state
from pystate.operators.runtime.function_operator import FunctionOperator
from pystate.operators.runtime.function_spec import FunctionSpec
from pystate.operators.runtime.invalid_rows import InvalidRule
from pystate.operators.runtime.late_rows import DROP_LATE, PROCESS_LATE
from pystate.operators.runtime.output import OutputColumns
from pystate.spark.base.environment import require_classic
from pystate.spark.base.errors import StatefulProcessorError
from pystate.spark.base.resolve import FrameColumns
from pystate.spark.base.schemas import KeySchema, key_schema, output_columns, parse_schema
from pystate.spark.evaluation.initial import InitialRows, RowsOf
from pystate.spark.operators.apply import Application, apply
from pystate.spark.ported.function import Options, PortedFunction, ported
from pystate.spark.ported.group_state import GroupStateProcessor, checked_timeout, mode_of
from pystate.spark.ported.handle import checked_output_mode, time_mode_of
from pystate.spark.ported.rows import Form, RowForm, RowOutput
from pystate.spark.tasks.arrivals import Arrivals
from pystate.spark.tasks.range_task import OperatorPlan
from pystate.types.keys import describe, parse_key
from pystate.types.state_type import StateType

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from pystate.spark.evaluation.evaluation import Evaluation

__all__ = ["PortedOperators"]

#: Spark's options for frames of pandas.
_MOST_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_INTS_TO_DECIMALS = "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled"
_EXTENSION_INTS = "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype"
_BY_NAME = "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName"
_NO_LIMIT = 2**31 - 1

#: A frame with the rows before the first epoch, also as Spark takes it: grouped by the key.
InitialFrame = Any


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


def _as_in_spark(name: str, method: Callable[..., DataFrame]) -> Callable[..., DataFrame]:
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


class PortedOperators:
    """The part of `KeyedFrame` for such operators."""

    _evaluation: Evaluation
    _uid: str | None
    _owner: str
    _columns: FrameColumns
    _frame: DataFrame
    _names: list[str]
    _keys: KeySchema
    _marked: bool
    _order_by: tuple[Column, ...]
    _event_time: str | None
    _input: Input

    def _invalid_rows(self) -> dict[str, tuple[InvalidRule, pa.Schema | None]]:
        raise NotImplementedError

    def _key_types(self) -> tuple[StateType, ...]:
        raise NotImplementedError

    def _earlier_rows(self, columns: FrameColumns) -> list[RowsOf] | None:
        raise NotImplementedError

    def _ordered_by(
        self, order_by: Sequence[Column], frames: Sequence[DataFrame], plan: OperatorPlan
    ) -> tuple[DataFrame, Sequence[str]]:
        raise NotImplementedError

    def transform_with_state(
        self,
        processor: Any,
        schema: str | st.StructType,
        output_mode: str = "Append",
        time_mode: str = "None",
        initial_state: InitialFrame = None,
        event_time: str = "",
    ) -> DataFrame:
        """Run an unchanged `StatefulProcessor` of Spark over the rows, as `transformWithState`.

        Parameters
        ----------
        processor : StatefulProcessor
            An instance; it is pickled to the workers.
        schema : str or StructType
            The columns of the rows that it yields.
        output_mode : {"Append", "Update"}
            Spark's output mode; both mean that a sink gets what the processor yields.
        time_mode : {"None", "ProcessingTime", "EventTime"}
            Spark's time mode. With event time, `key_by` names the column,
            ``event_time="at", allowed_delay="10 minutes"``, in place of ``withWatermark``.
        initial_state : GroupedData or DataFrame, optional
            The rows that `handleInitialState` gets in the operator's first epoch. They have the key
            columns under the same names.
        event_time : str, optional
            Spark's `eventTimeColumnName`: the column of `schema` with the event time of the rows
            that are yielded. An operator behind this one names it in its own `key_by`.

        Returns
        -------
        DataFrame
            What the processor yields.

        Raises
        ------
        StatefulProcessorError
            The processor asks for what it cannot have, or a mode is not known.
        SchemaError
            The checkpoint holds the operator's state in other types.

        Notes
        -----
        `docs/from-spark.md` lists what differs from Spark.

        Examples
        --------
        ``job.key_by(df, "user", uid="visits").transform_with_state(Visits(), "user string, n long",
        "Append", "None")``
        """
        return self._ported(
            processor,
            schema,
            output_mode,
            time_mode,
            initial_state,
            event_time,
            RowForm(),
            RowOutput.of,
        )

    def transform_with_state_in_pandas(
        self,
        processor: Any,
        schema: str | st.StructType,
        output_mode: str = "Append",
        time_mode: str = "None",
        initial_state: InitialFrame = None,
        event_time: str = "",
    ) -> DataFrame:
        """Run an unchanged `StatefulProcessor` that takes and yields frames of pandas.

        It is Spark's `transformWithStateInPandas`; all else is as in `transform_with_state`.

        Parameters
        ----------
        processor, schema, output_mode, time_mode, initial_state, event_time
            As for `transform_with_state`.

        Returns
        -------
        DataFrame
            What the processor yields.

        Raises
        ------
        StatefulProcessorError
            The processor asks for what it cannot have, or a mode is not known.
        """
        form, output = self._in_frames(cut_by_bytes=True)
        return self._ported(
            processor, schema, output_mode, time_mode, initial_state, event_time, form, output
        )

    def apply_in_pandas_with_state(
        self,
        function: Any,
        output_schema: str | st.StructType,
        state_schema: str | st.StructType,
        output_mode: str = "Append",
        timeout: str = "NoTimeout",
    ) -> DataFrame:
        """Run an unchanged function of Spark's `applyInPandasWithState` over the rows.

        Parameters
        ----------
        function : callable
            ``function(key, frames, state)``, which yields frames of pandas.
        output_schema : str or StructType
            The columns that it yields.
        state_schema : str or StructType
            The fields of the state.
        output_mode : {"Append", "Update"}
            Spark's output mode; both mean that a sink gets what the function yields.
        timeout : {"NoTimeout", "ProcessingTimeTimeout", "EventTimeTimeout"}
            Spark's timeout configuration. With event time, `key_by` names its column.

        Returns
        -------
        DataFrame
            What the function yields.

        Raises
        ------
        StatefulProcessorError
            A mode is not known, or the state's schema is not valid.
        """
        if not callable(function):
            raise WrongTypeError(f"{self._owner}: {shown(function)} is no function")
        given = checked_timeout(timeout, self._owner)
        event_time = given == "EventTimeTimeout"
        if event_time and not self._is_timed():
            raise StatefulProcessorError(
                f"{self._owner}: EventTimeTimeout needs a watermark: name the column of the event "
                "time, key_by(..., event_time='column', allowed_delay='10 minutes')"
            )
        processor = GroupStateProcessor(
            function,
            state_schema,
            given,
            self._frame.columns,
            self._is_timed(),
            self._owner,
        )
        form, output = self._in_frames(cut_by_bytes=False)
        mode = mode_of(given)
        return self._ported(processor, output_schema, output_mode, mode, None, "", form, output)

    def _is_timed(self) -> bool:
        """Whether the input has a watermark: by its own event time, or by what feeds it."""
        return self._event_time is not None or self._evaluation.epoch.has_watermark(self._input)

    def _in_frames(self, *, cut_by_bytes: bool) -> tuple[Form, Any]:
        """How frames are made of rows, and rows of frames, as the session's options say."""
        conf = self._frame.sparkSession.conf
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
        most_bytes = _size(self._frame.sparkSession, _MOST_BYTES) if cut_by_bytes else None
        # pandas is imported where frames are used.
        from pystate.spark.ported.frame_output import FrameOutput
        from pystate.spark.ported.frames import FrameForm

        form = FrameForm(zone, most if most > 0 else 2**31 - 1, most_bytes, extension_ints)
        made = partial(FrameOutput.of, zone=zone, ints_to_decimals=ints, by_name=by_name)
        return form, made

    transformWithStateInPandas = _as_in_spark(  # noqa: N815 - Spark's name
        "transformWithStateInPandas", transform_with_state_in_pandas
    )
    applyInPandasWithState = _as_in_spark(  # noqa: N815 - Spark's name
        "applyInPandasWithState", apply_in_pandas_with_state
    )
    transformWithState = _as_in_spark(  # noqa: N815 - Spark's name
        "transformWithState", transform_with_state
    )

    def _ported(
        self,
        processor: Any,
        schema: str | st.StructType,
        output_mode: str,
        time_mode: str,
        initial_state: InitialFrame,
        event_time: str,
        form: Form,
        output: Any,
    ) -> DataFrame:
        uid = checked_uid(self._uid)
        checked_output_mode(output_mode, self._owner)
        mode = time_mode_of(time_mode, self._owner)
        declared = parse_schema(schema, self._owner)
        _check_event_time(event_time, declared, self._owner)
        options = Options(uid, mode, tuple(self._names), form, event_time or None)
        function = ported(processor, options, _sent_and_back)
        first = None
        if initial_state is not None:
            first = self._initial_state(function, initial_state)
        return self._run_ported(function, declared, output, first)

    def _run_ported(
        self,
        function: PortedFunction,
        declared: st.StructType,
        output: Any,
        first: InitialRows | None,
    ) -> DataFrame:
        uid, frame = checked_uid(self._uid), self._frame
        output_columns(frame.schema, f"{self._owner}: its input")
        # In the other modes Spark's operators see late rows, even if the input has a watermark.
        drops = self._event_time is not None and function.options.time_mode == "EventTime"
        late = DROP_LATE if drops else PROCESS_LATE
        spec = self._ported_spec(function, frame.columns, output(declared, self._owner))
        spec = replace(spec, event_time=self._event_time, late=late)
        require_state(function, self._owner)
        for_tasks(function, cloudpickle.dumps)
        earlier = self._earlier_rows(self._columns)
        if first is not None and earlier is not None:
            raise InvalidArgumentError(
                f"{self._owner}: initial_state and key_by(initial_rows=...) both say what the "
                "operator begins with: give one of them"
            )
        operator = operator_spec(function, uid, parse_key(self._keys))
        return apply(
            self._evaluation,
            Application(
                replace(operator, dropped=function.dropped),
                self._keys,
                partial(FunctionOperator, spec),
                [frame],
                partial(self._ordered_by, self._order_by),
                declared,
                inputs=(self._input,),
                invalid=self._invalid_rows(),
                earlier=earlier,
                initial=first,
                counted=False,
            ),
        )

    def _ported_spec(
        self, function: PortedFunction, columns: Sequence[str], output: OutputColumns
    ) -> FunctionSpec:
        return FunctionSpec(
            function,
            key=tuple(name for name, _ in self._keys),
            columns=tuple(columns),
            output=output,
            key_types=self._key_types(),
        )

    def _initial_state(self, function: PortedFunction, given: InitialFrame) -> InitialRows:
        """The rows for `handleInitialState`, brought to the tasks as those of the input are."""
        what = f"{self._owner}: initial_state"
        frame = given._df if isinstance(given, GroupedData) else given
        frame = require_classic(frame, what)
        if frame.isStreaming:
            raise InvalidArgumentError(f"{what} is a stream: it is read once, as a batch")
        columns = FrameColumns(frame, what)
        names = [columns.take(name) for name in self._names]
        frame = columns.frame
        found = key_schema(frame.schema, names, what, marked=self._marked)
        if found != self._keys or names != self._names:
            raise WrongTypeError(
                f"{what}: the key is ({describe(parse_key(found))}) there, and "
                f"({describe(parse_key(self._keys))}) in the input: it has the same names and "
                "types; rename or cast the columns"
            )
        output = output_columns(frame.schema, what)
        spec = self._ported_spec(function.for_initial(), frame.columns, output)
        rows, make = [RowsOf(INPUT, lambda: frame, None)], partial(FunctionOperator, spec)
        return InitialRows(rows, partial(self._ordered_by, ()), make, Arrivals())


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
