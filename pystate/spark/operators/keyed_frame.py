"""A DataFrame with keys, to which a stateful operator is applied in a pipeline.

Thread safety: immutable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from pyspark.sql import types as st

from pystate.base.arguments import choice, shown
from pystate.errors import InvalidArgumentError
from pystate.operators.functions.aggregates import Aggregate
from pystate.operators.functions.base import StatefulFunction
from pystate.operators.joins.kinds import AsofJoin, IntervalJoin, Join, WindowJoin
from pystate.operators.runtime.deduplicate import Deduplicate
from pystate.operators.runtime.late_rows import (
    DROP_LATE,
    PROCESS_LATE,
    LateLike,
    late_tag_of_windows,
)
from pystate.operators.runtime.top import Top
from pystate.operators.windows.assigners import Assigner
from pystate.operators.windows.specification import window_options
from pystate.spark.base.partial_aggregation import Combine
from pystate.spark.evaluation.initial_state import Given
from pystate.spark.operators import functions, processors
from pystate.spark.operators.aggregates import aggregate
from pystate.spark.operators.broadcast import BroadcastFrame, BroadcastFrames
from pystate.spark.operators.connected_frames import ConnectedFrames
from pystate.spark.operators.inputs import KeyedInput
from pystate.spark.operators.joins import joined
from pystate.spark.operators.processors import InitialFrame
from pystate.spark.operators.row_operators import operate
from pystate.spark.operators.windowed_frame import WindowedFrame
from pystate.types.durations import Duration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class KeyedFrame:
    """One epoch's rows by key, made by `Job.key_by`; apply an operator to it."""

    def __init__(self, rows: KeyedInput) -> None:
        self._rows = rows

    def process(
        self,
        function: StatefulFunction,
        schema: str | st.StructType,
        *,
        side_outputs: Mapping[str, str | st.StructType] | None = None,
        late: Literal["process", "drop"] | str = PROCESS_LATE,
        initial_state: Given | None = None,
        initial_timers: Given | None = None,
    ) -> DataFrame:
        """Run a stateful function over the rows.

        Parameters
        ----------
        function : KeyedProcessFunction or VectorizedFunction
            An instance; it is pickled to the workers.
        schema : str or StructType
            The columns that it yields, as DDL (``"tailnum string, legs long"``).
        side_outputs : mapping from tag to str or StructType, optional
            The columns of what it emits with ``ctx.output(tag, row)``. Each tag needs a sink:
            ``start(..., side_outputs={tag: ParquetSink(path)})``.
        late : {"process", "drop"} or str
            What happens to rows whose event time is below the watermark. ``"process"``: the
            function handles them like all others. ``"drop"``: they are dropped. Any other word is
            the tag of the side output that they go to, with the columns of the input;
            `side_outputs` may give these in another order or with other types. Late rows are always
            counted.
        initial_state : DataFrame or callable, optional
            What the states of keys are before the operator's first epoch: a row per key, with the
            key columns, the column ``namespace`` if the function has namespaces, and a column for
            each state or some of them, as `pystate.read_state` gives them. Once the checkpoint has
            the operator, it is not read. A function without arguments makes the frame only when it
            is needed.
        initial_timers : DataFrame or callable, optional
            The timers before the first epoch, as ``read_state(..., timers=True)`` gives them.

        Returns
        -------
        DataFrame
            What the function yields.

        Raises
        ------
        DeclarationError
            The function's shape or states are not valid.
        SchemaError
            The checkpoint holds the operator's state in other types.
        """
        return functions.process(
            self._rows, function, schema, side_outputs, late, initial_state, initial_timers
        )

    def aggregate(
        self,
        *unnamed: Any,
        initial_state: Given | None = None,
        combine: Combine = "auto",
        **aggregates: Aggregate,
    ) -> DataFrame:
        """Keep aggregates of each key over all epochs, in the core.

        Parameters
        ----------
        initial_state : DataFrame or callable, optional
            As in `process`: the aggregates before the operator's first epoch, under the names of
            the result columns; of a mean the two columns ``<name>.sum`` and ``<name>.count``.
        combine : {"auto", True, False}
            Whether Spark combines the rows of a key, in each of the input's partitions, before the
            shuffle, so that fewer rows come. ``"auto"``: if the epoch before shows that it pays.
            The results and the state are the same, but for the last digits of sums and means of
            floats, which depend on the order of rows.
        **aggregates
            Result columns: ``n=ps.count(), total=ps.sum("delay")``.

        Returns
        -------
        DataFrame
            The key columns and the results of each key that had rows in this epoch, once per key.
            Null inputs are skipped, as in SQL: a sum of nothing but nulls is null.

        Raises
        ------
        WrongTypeError
            A column's type has no such aggregate.
        InvalidArgumentError
            ``combine=True``, and the rows cannot be combined.
        """
        return aggregate(self._rows, unnamed, initial_state, combine, aggregates)

    def window(
        self,
        windows: Assigner,
        *,
        time: Literal["event", "processing"] = "event",
        emit: Literal["final", "update"] = "final",
        early: Duration | None = None,
        allowed_lateness: Duration = 0,
        late: str = DROP_LATE,
    ) -> WindowedFrame:
        """Put a key's rows into windows; ``.aggregate(...)`` or ``.process(...)`` follows.

        Parameters
        ----------
        windows : Tumbling, Sliding, Cumulating, Session, CountWindow or Global
            The windows.
        time : {"event", "processing"}
            The rows' event time, or the epoch's processing time for all of its rows.
        emit : {"final", "update"}
            Once, when the watermark has reached a window's end; or after each epoch that changed
            it.
        early : str, timedelta or int in milliseconds, optional
            The interval of processing time at which changed windows are also emitted before they
            end.
        allowed_lateness : str, timedelta or int in milliseconds
            For how long after its end a window is kept; a late row that changes it has it emitted
            again.
        late : "drop" or str
            What happens to rows that are too late for all of their windows: they are dropped, or
            are written to the side output of this tag, with the columns of the input.

        Returns
        -------
        WindowedFrame
            The rows by key and window.

        Raises
        ------
        InvalidArgumentError
            An argument is not valid, or contradicts another.
        """
        rows, owner = self._rows, self._rows.owner
        choice(time, f"{owner}: time", ("event", "processing"))
        options = window_options(
            windows,
            owner,
            event_time=rows.event_time,
            processing_time=time == "processing",
            emit=emit,
            early=early,
            allowed_lateness=allowed_lateness,
        )
        late_tag_of_windows(late, (), owner)
        return WindowedFrame(rows, options, late)

    def deduplicate(
        self,
        within: Duration | None = None,
        *,
        keep: Literal["first", "last"] = "first",
        late: Literal["process", "drop"] | str = PROCESS_LATE,
    ) -> DataFrame:
        """Pass on one of the rows that have an equal key, and drop the others.

        Parameters
        ----------
        within : str, timedelta or int, optional
            How long a row is remembered: ``"1 day"``, a timedelta, or milliseconds; for ever by
            default. With an event time a row is a duplicate if a row of its key was passed on whose
            event time is less than this away, before or after. Without one, if it was passed on in
            an epoch whose processing time is less than this ago.
        keep : {"first", "last"}
            ``"first"``: the first row of each key, in the order of ``key_by(order_by=...)``, else
            of the event time. ``"last"``: at the end of each epoch the last of its rows, which
            replaces the one of earlier epochs. With an event time it is left out if its time is
            before that of a row that was passed on earlier.
        late : {"process", "drop"} or str
            What happens to rows whose event time is below the watermark, as in `process`.

        Returns
        -------
        DataFrame
            Rows of the input, with its columns.

        Raises
        ------
        InvalidArgumentError
            An argument is not one of its choices, or `within` is not positive.

        Notes
        -----
        The duration in event time is exact for rows that are not late. What is remembered is
        dropped once the watermark has passed it by `within`, so a row that is late by more than the
        rest of that time cannot be recognised; ``late="drop"`` passes no duplicate on.

        Examples
        --------
        ``job.key_by(df, "id", uid="once", event_time="at").deduplicate(within="1 day")``
        """
        return operate(self._rows, Deduplicate(within, keep), late)

    def top(
        self,
        k: int,
        by: str | Sequence[str],
        *,
        descending: bool | Sequence[bool] = True,
        rank: str = "rank",
        late: Literal["process", "drop"] | str = PROCESS_LATE,
        by_key: str | Sequence[str] | None = None,
    ) -> DataFrame:
        """Keep the `k` best rows of each key over all epochs, and number them.

        Parameters
        ----------
        k : int
            The most rows of a key.
        by : str or sequence of str
            The columns that order them. Nulls come last, and NaN is larger than any number. Of
            equal rows the one that came first is better; within an epoch that is decided by
            ``key_by(order_by=...)``.
        descending : bool or sequence of bool
            Whether the largest values are the best, for all columns or for each.
        rank : str
            The name of the column with a row's place, from 1.
        late : {"process", "drop"} or str
            What happens to rows whose event time is below the watermark, as in `process`.
        by_key : str or sequence of str, optional
            The columns that, with the key, say which thing a row tells of. A later row of the same
            thing replaces the earlier one, whether it is better or worse. By default each row is a
            thing of its own; but updates that an operator before this one has emitted, such as the
            counts of `aggregate`, replace each other by that operator's key.

        Returns
        -------
        DataFrame
            The columns of the input, then the rank: all best rows of each key where they changed in
            the epoch. A row replaces the earlier one of its key and rank.

        Raises
        ------
        InvalidArgumentError
            `k` is less than 1; a column of `by` does not exist or is a column of the key; the
            input has a column with the name of the rank.
        WrongTypeError
            A column of `by` has a type without an order, or state cannot hold some column.

        Notes
        -----
        Ranks are only ever added: once a key has a row of some rank, there is always one. The state
        is `k` rows per key, for ever. Where rows replace others it is all newest rows of a key,
        since one that is not among the best may become so when a better one becomes worse; each
        epoch that changes a key reads and writes all of them.

        Examples
        --------
        ``job.key_by(offers, "item", uid="best").top(5, by="price", descending=False)``
        """
        return operate(self._rows, Top(k, by, descending, rank, by_key), late)

    @overload
    def connect(self, right: KeyedFrame) -> ConnectedFrames: ...
    @overload
    def connect(self, right: BroadcastFrame) -> BroadcastFrames: ...
    def connect(self, right: KeyedFrame | BroadcastFrame) -> ConnectedFrames | BroadcastFrames:
        """Give a function this input and another one.

        Parameters
        ----------
        right : KeyedFrame or BroadcastFrame
            The other input: one with a key of the same types, whose `key_by` may leave out the uid;
            or what `Job.broadcast` returns.

        Returns
        -------
        ConnectedFrames or BroadcastFrames
            Call `process` on it, with a `KeyedCoProcessFunction` or a `VectorizedCoFunction`; or
            with a `KeyedBroadcastProcessFunction` if `right` is a broadcast.

        Raises
        ------
        WrongTypeError
            The keys have different types.
        """
        if isinstance(right, BroadcastFrame):
            return BroadcastFrames(self._rows, right)
        other = "job.key_by(...) or job.broadcast(...)"
        return ConnectedFrames(self._rows, _other(right, "connect", other)._rows)

    def interval_join(
        self,
        right: KeyedFrame,
        lower: Duration,
        upper: Duration,
        *,
        how: Literal["inner", "left", "right", "full"] = "inner",
        suffixes: tuple[str, str] | None = None,
        late: LateLike = "drop",
    ) -> DataFrame:
        """Join rows of two inputs with equal keys whose times are close to each other.

        Parameters
        ----------
        right : KeyedFrame
            The other input; its key columns have the same types. Both have an event time.
        lower, upper : str, timedelta or int
            A pair of rows matches if the right one's time minus the left one's is between these,
            both included: ``"-5 minutes"``, ``"10 minutes"``; a timedelta; or milliseconds.
        how : {"inner", "left", "right", "full"}
            The inputs whose rows are emitted even if they match none, with nulls; once the
            watermark says that none can come any more.
        suffixes : tuple of str, optional
            Added to the names of columns that both inputs have, besides the key.
        late : "drop", str or mapping
            What happens to late rows: they are dropped, or go to the side output of a tag, with the
            columns of their input. ``{"left": "late_orders", "right": "late_clicks"}`` names one
            for each input or for one of them; a tag for both has the columns of both, and nulls.

        Returns
        -------
        DataFrame
            The key under its left names, then the left input's other columns, then the right
            input's.

        Raises
        ------
        InvalidArgumentError
            An input has no event time, two columns would have the same name, or the bounds are no
            interval.
        WrongTypeError
            The keys have different types.

        Notes
        -----
        As in SQL, a null in a key equals nothing, and neither does a row without a time match any;
        an outer join emits such rows at once. Late rows are counted. A pair is emitted in the epoch
        in which the second of its rows comes. A row without a partner is emitted up to a quarter of
        the interval's width, or an eighth of a second, after that would be possible, and rows leave
        the state up to twice its width after it, since they leave together.
        """
        return self._joined(right, IntervalJoin(lower, upper, how, suffixes), late)

    def asof_join(
        self,
        right: KeyedFrame,
        *,
        how: Literal["inner", "left"] = "inner",
        tolerance: Duration | None = None,
        suffixes: tuple[str, str] | None = None,
        late: LateLike = "drop",
    ) -> DataFrame:
        """Join each row with the newest row of a slowly changing table that is not after it.

        Parameters
        ----------
        right : KeyedFrame
            The table's versions: a row holds from its event time until the next one of its key. Of
            rows of the same time the last that came holds.
        how : {"inner", "left"}
            ``"left"`` also emits rows for which there is no version, with nulls.
        tolerance : str, timedelta or int, optional
            How much older than a row its version may be; older versions then leave the state.
        suffixes : tuple of str, optional
            Added to the names of columns that both inputs have, besides the key.
        late : "drop", str or mapping
            As in `interval_join`.

        Returns
        -------
        DataFrame
            As for `interval_join`; each left row at most once.

        Raises
        ------
        InvalidArgumentError, WrongTypeError
            As for `interval_join`.

        Notes
        -----
        A row is emitted once the watermark has passed it: until then an earlier version could come.
        Nulls and late rows are treated as in `interval_join`.
        """
        return self._joined(right, AsofJoin(how, tolerance, suffixes), late)

    def join(
        self,
        right: KeyedFrame,
        *,
        window: Assigner,
        how: Literal["inner", "left", "right", "full"] = "inner",
        suffixes: tuple[str, str] | None = None,
        late: LateLike = "drop",
    ) -> DataFrame:
        """Join rows of two inputs with equal keys that are in the same window.

        Parameters
        ----------
        right : KeyedFrame
            The other input; its key columns have the same types. Both have an event time.
        window : Tumbling, Sliding, Cumulating or Session
            The windows. A session is one of both inputs together: their rows prolong it alike.
        how : {"inner", "left", "right", "full"}
            The inputs whose rows are emitted even if their window has no partner for them, with
            nulls.
        suffixes : tuple of str, optional
            Added to the names of columns that both inputs have, besides the key.
        late : "drop", str or mapping
            As in `interval_join`; of rows for which all of their windows are over.

        Returns
        -------
        DataFrame
            The key under its left names, ``window_start`` and ``window_end``, then the left input's
            other columns, then the right input's. Start and end are of the type of the left
            input's event time.

        Raises
        ------
        InvalidArgumentError
            An input has no event time, two columns would have the same name, or the windows do not
            go by time.
        WrongTypeError
            The keys have different types.

        Notes
        -----
        A window is joined once, when the watermark, the smaller one of both inputs, has reached its
        end. In windows that overlap a pair is emitted for each window that it is in. A null in a
        key equals nothing: an outer join emits such a row with its window. A row without a time is
        in no window.
        """
        return self._joined(right, WindowJoin(window, how, suffixes), late)

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
        modes, form = (output_mode, time_mode), processors.ROW_FORM
        return processors.transform(
            self._rows, processor, schema, modes, form, initial_state, event_time
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
        modes, form = (output_mode, time_mode), processors.frame_form(self._rows, cut_by_bytes=True)
        return processors.transform(
            self._rows, processor, schema, modes, form, initial_state, event_time
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
        return processors.apply_in_pandas_with_state(
            self._rows, function, output_schema, state_schema, output_mode, timeout
        )

    # What Spark calls them.
    transformWithState = processors.as_in_spark(  # noqa: N815
        "transformWithState", transform_with_state
    )
    transformWithStateInPandas = processors.as_in_spark(  # noqa: N815
        "transformWithStateInPandas", transform_with_state_in_pandas
    )
    applyInPandasWithState = processors.as_in_spark(  # noqa: N815
        "applyInPandasWithState", apply_in_pandas_with_state
    )

    def _joined(self, right: Any, join: Join, late: LateLike) -> DataFrame:
        """Join with another input; a join has no use for updates."""
        taken = "what was joined with an earlier row cannot be taken back"
        instead = "Join the rows before they are aggregated"
        self._rows.refuse_all_updates(join.method, taken, instead)
        other = _other(right, join.method)._rows
        other.refuse_all_updates(join.method, taken, instead)
        return joined(self._rows, other, join, late)


def _other(right: Any, method: str, takes: str = "job.key_by(...)") -> KeyedFrame:
    """The other input of a method."""
    if not isinstance(right, KeyedFrame):
        raise InvalidArgumentError(f"{method} takes another input, {takes}, not {shown(right)}")
    return right
