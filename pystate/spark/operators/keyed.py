"""A DataFrame with keys, to which a stateful operator is applied in a pipeline.

Thread safety: immutable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from pyspark import cloudpickle
from pyspark.sql import types as st

from pystate.base.arguments import checked_uid, choice, flag
from pystate.checkpoint.refs import INPUT
from pystate.errors import InvalidArgumentError
from pystate.operators.functions.aggregates import Aggregate
from pystate.operators.functions.base import StatefulFunction
from pystate.operators.functions.binding import for_tasks, operator_spec, require_state
from pystate.operators.runtime.aggregate import AggregateOperator
from pystate.operators.runtime.deduplicate import DeduplicateSpec
from pystate.operators.runtime.function_operator import FunctionOperator
from pystate.operators.runtime.function_spec import FunctionSpec
from pystate.operators.runtime.invalid_rows import InvalidRule
from pystate.operators.runtime.late_rows import (
    DROP_LATE,
    PROCESS_LATE,
    checked_late,
    late_tag,
)
from pystate.operators.runtime.task import Operator
from pystate.operators.runtime.top import TopSpec
from pystate.operators.windows.assigners import Assigner
from pystate.operators.windows.specification import window_options
from pystate.spark.base.arguments import OrderBy, late_schema, side_columns
from pystate.spark.base.partial_aggregation import NOT_INVALID, Combine, checked_combine
from pystate.spark.base.resolve import FrameColumns, column_named, column_text, whole_key
from pystate.spark.base.routing import RANGE_COLUMN, route
from pystate.spark.base.schemas import (
    KeySchema,
    key_leaves,
    key_schema,
    names_twice,
    output_columns,
    parse_schema,
    refuse_reserved,
)
from pystate.spark.evaluation.initial import Given, RowsOf, checked_given, like
from pystate.spark.evaluation.updates import Updates
from pystate.spark.operators.aggregated import TIMES, AggregatePlan
from pystate.spark.operators.apply import Application, apply
from pystate.spark.operators.broadcast import BroadcastApplied, BroadcastFrame, BroadcastFrames
from pystate.spark.operators.connected import Connectable
from pystate.spark.operators.inputs import input_of, invalid_schema
from pystate.spark.operators.joined import JoinedFrame
from pystate.spark.operators.ported import PortedOperators
from pystate.spark.operators.row_operators import RowOperators
from pystate.spark.operators.windowed import WindowedFrame, WindowInput
from pystate.spark.tasks.range_task import OperatorPlan
from pystate.state.declaration import State
from pystate.state.operator_spec import OperatorSpec
from pystate.types.durations import Duration
from pystate.types.keys import parse_key
from pystate.types.state_type import StateType, parse_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

    from pystate.spark.evaluation.evaluation import Evaluation

__all__ = ["KeyedFrame"]

#: Columns that are sent for what an update is of, in front of a number.
_IDENTITY = "__pystate_identity_"
_WAYS = {
    "top": "Name the columns that say which row replaces which, top(..., by_key='column')",
    "deduplicate": "keep='last' passes on the newest one of each key",
    "interval_join": "Join the rows before they are aggregated",
    "asof_join": "Join the rows before they are aggregated",
    "join": "Join the rows before they are aggregated",
}


class KeyedFrame(RowOperators, PortedOperators, Connectable):
    """One epoch's rows by key, made by `Job.key_by`; apply an operator to it.

    Parameters
    ----------
    evaluation : Evaluation
        The open epoch.
    frame : DataFrame
        The rows.
    keys : sequence of str
        The key columns.
    uid : str or None
        The operator's name in checkpoints, if it was given.
    order_by : str, Column or a sequence of them, optional
        The order of a key's rows.
    event_time : str, optional
        The column of the rows' event time.
    allowed_delay : str, timedelta or int, optional
        How late a row may be by its event time.
    idle_after : str, timedelta or int, optional
        After how long without rows the input is idle.
    initial_rows : DataFrame or callable, optional
        The rows before the operator's first epoch.
    max_ahead : str, timedelta or int, optional
        How far ahead of the processing time an event time may be.
    invalid : str, optional
        The tag of the side output for rows that cannot be processed.
    as_rows : bool
        Whether updates that an operator has emitted are taken for rows of their own.
    """

    def __init__(
        self,
        evaluation: Evaluation,
        frame: DataFrame,
        keys: Sequence[str],
        uid: str | None,
        order_by: OrderBy = None,
        event_time: str | None = None,
        allowed_delay: Duration | None = None,
        idle_after: Duration | None = None,
        initial_rows: Given | None = None,
        max_ahead: Duration | None = None,
        invalid: str | None = None,
        as_rows: bool = False,
    ) -> None:
        self._evaluation = evaluation
        self._given = order_by, allowed_delay, idle_after, initial_rows, max_ahead, invalid
        self._uid = uid
        self._owner = "key_by" if uid is None else f"operator {uid!r}"
        self._as_rows = flag(as_rows, f"{self._owner}: as_rows")
        refuse_reserved(frame.columns, self._owner)
        self._columns = columns = FrameColumns(frame, self._owner)
        names = [columns.take(key) for key in keys]
        frame, self._event_time, self._order_by, self._input, self._invalid = input_of(
            evaluation,
            columns,
            self._owner,
            event_time,
            allowed_delay,
            idle_after,
            order_by,
            max_ahead=max_ahead,
            invalid=invalid,
        )
        self._frame = frame
        self._names = names
        self._keys: KeySchema = key_schema(frame.schema, names, self._owner)
        #: Whether the key has marks of null structs; if not, an earlier version has begun it.
        self._marked = True
        plain = key_schema(frame.schema, names, self._owner, marked=False)
        marks = [name for name, _ in self._keys if name not in dict(plain)]
        if marks and uid is not None and evaluation.has_plain_key(uid, plain, marks):
            self._keys, self._marked = plain, False
        self._earlier = checked_given(initial_rows, f"{self._owner}: initial_rows")

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
        initial = initial_state, initial_timers
        return self._applied(function, schema, side_outputs, late, initial)

    def _applied(
        self,
        function: StatefulFunction,
        schema: str | st.StructType,
        side_outputs: Mapping[str, str | st.StructType] | None,
        late: str,
        initial: tuple[Given | None, Given | None],
        broadcast: BroadcastApplied | None = None,
    ) -> DataFrame:
        uid = checked_uid(self._uid)
        declared = parse_schema(schema, self._owner)
        output_columns(self._frame.schema, f"{self._owner}: its input")
        sides = side_columns(side_outputs, self._owner)
        written = {tag: columns.schema for tag, columns in sides.items()}
        checked_late(late, sides, self._owner)
        if late != PROCESS_LATE:
            self._require_event_time(late)
        tag = late_tag(late)
        if tag is not None:
            written[tag] = late_schema(tag, sides, self._frame, self._owner)
        spec = FunctionSpec(
            function,
            key=tuple(name for name, _ in self._keys),
            columns=tuple(self._frame.columns),
            output=output_columns(declared, self._owner),
            event_time=self._event_time,
            side_outputs=sides,
            late=late,
            key_types=self._key_types(),
            broadcast=None if broadcast is None else broadcast.spec,
        )
        require_state(function, self._owner)
        for_tasks(function, cloudpickle.dumps)
        states = None if broadcast is None else broadcast.states(spec)
        applied = Application(
            operator_spec(function, uid, parse_key(self._keys)),
            self._keys,
            partial(FunctionOperator, spec, broadcast=states),
            [self._frame],
            partial(self._ordered_by, self._order_by),
            declared,
            inputs=(self._input, *(() if broadcast is None else broadcast.inputs)),
            sides=written,
            invalid=self._invalid_rows(),
            earlier=self._earlier_rows(self._columns),
            state=initial[0],
            timers=initial[1],
        )
        if broadcast is not None:
            keys = [name for name, _ in self._keys]
            applied = broadcast.applied(applied, states or {}, keys, self._order_by)
        return apply(self._evaluation, applied)

    def _ordered_by(
        self, order_by: Sequence[Column], frames: Sequence[DataFrame], plan: OperatorPlan
    ) -> tuple[DataFrame, Sequence[str]]:
        """The rows in front of their tasks, in an order."""
        return self._routed(frames[0], plan, order_by), frames[0].columns

    def _invalid_rows(self) -> dict[str, tuple[InvalidRule, pa.Schema | None]]:
        """What becomes of invalid rows, and the columns of their side output."""
        return {INPUT: invalid_schema(self._invalid, self._frame, self._owner)}

    def _updates(self, method: str) -> Updates | None:
        """What is known of the rows if they are updates that can be taken as such.

        Raises
        ------
        InvalidArgumentError
            They are updates, and cannot.
        """
        if self._as_rows:
            return None
        found = self._evaluation.updates(self._frame)
        if found is None:
            return None
        problem = found.problem_by(self._names)
        if problem is None:
            types = [found.frame.schema[name].dataType for name in found.identity]
            if any(isinstance(each, st.StructType) for each in types):
                problem = "the updates are of a struct: name its fields in the first key_by"
        if problem is not None:
            self._refuse_updates(method, found.uid, problem)
        return found

    def _refuse_updates(self, method: str, uid: str, problem: str) -> NoReturn:
        raise InvalidArgumentError(
            f"{self._owner}: {method} gets updates that operator {uid!r} emits, each of which "
            f"replaces an earlier one, and cannot take them as such: {problem}. "
            + _WAYS.get(method, "Compute it from the rows themselves, not from the updates")
            + "; or take each update for a row of its own, key_by(..., as_rows=True)"
        )

    def _refuse_all_updates(self, method: str, problem: str) -> None:
        """Refuse updates in an operator that has no use for them."""
        found = None if self._as_rows else self._evaluation.updates(self._frame)
        if found is not None:
            self._refuse_updates(method, found.uid, problem)

    def _joined(self) -> JoinedFrame:
        return JoinedFrame(
            self._evaluation,
            self._frame,
            tuple(self._names),
            self._uid,
            self._event_time,
            self._input,
            bool(self._order_by),
            self._invalid,
            None if self._earlier is None else partial(self._rows_before, self._columns),
        )

    def _broadcast(self, rules: BroadcastFrame) -> BroadcastFrames:
        checked_uid(self._uid)
        if self._earlier is not None:
            raise InvalidArgumentError(
                f"{self._owner}: initial_rows would come without the broadcast rows before them: "
                "begin with states, connect(...).process(..., initial_state=frame)"
            )
        return BroadcastFrames(self._owner, self._event_time, rules, self._applied)

    def _rows_before(self, columns: FrameColumns) -> DataFrame:
        """The rows before the first epoch, with some columns."""
        return like(columns, self._earlier, self._owner)

    def _earlier_rows(self, columns: FrameColumns) -> list[RowsOf] | None:
        """The rows before the first epoch, if there are any."""
        if self._earlier is None:
            return None
        return [RowsOf(INPUT, partial(self._rows_before, columns), self._event_time)]

    def _key_types(self) -> tuple[StateType, ...]:
        """The types of the key's columns, if one of them is a struct."""
        types = [self._frame.schema[name].dataType for name in self._names]
        if not any(isinstance(each, st.StructType) for each in types):
            return ()
        return tuple(parse_type(each, f"{self._owner}: its key") for each in types)

    def _require_event_time(self, late: str) -> None:
        if self._event_time is None:
            raise InvalidArgumentError(
                f"{self._owner}: late={late!r} is for rows that come late by their event time: "
                "name its column, key_by(..., event_time='column')"
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
        uid = checked_uid(self._uid)
        checked_combine(combine, self._owner)
        updates = self._updates("aggregate")
        if updates is not None and updates.frame is not self._frame:
            # What the updates are of has been dropped, and is taken along.
            order_by, allowed_delay, idle_after, earlier, max_ahead, invalid = self._given
            names = [column_text(name) for name in self._names]
            keyed = KeyedFrame(
                self._evaluation,
                updates.frame,
                names,
                uid,
                order_by,
                None if self._event_time is None else column_text(self._event_time),
                allowed_delay,
                idle_after,
                earlier,
                max_ahead,
                invalid,
            )
            return keyed.aggregate(
                *unnamed, initial_state=initial_state, combine=combine, **aggregates
            )
        if updates is not None:
            self._check_over_updates(updates, initial_state, combine)
        columns = self._columns.copy()
        found = self._aggregates(unnamed, aggregates, columns)
        frame = columns.frame
        plan = AggregatePlan(self._owner, frame.schema)
        for name, aggregate in found.items():
            plan.add(name, aggregate)
        keys = [name for name, _ in self._keys]
        leaves = key_leaves(self._frame.schema, self._names, marked=self._marked)
        declared = st.StructType([*(st.StructField(*leaf) for leaf in leaves), *plan.fields])
        output = output_columns(declared, self._owner)
        selected = plan.selected(frame, keys, self._event_time)
        spec = plan.spec(keys, output, TIMES if self._event_time is not None else None)
        states: Mapping[str, State[Any]] = spec.states
        make: Callable[[], Operator] = partial(AggregateOperator, spec)
        if updates is not None:
            beside = [name for name in updates.identity if name not in self._names]
            taken = {f"{_IDENTITY}{i}": name for i, name in enumerate(beside)}
            selected |= {name: column_named(of).alias(name) for name, of in taken.items()}
            sent_columns = frame.select(*selected.values()).schema
            states, make = plan.over_updates(spec, sent_columns, [*taken])
        if self._invalid.tag is not None:
            selected |= {
                name: column_named(name) for name in self._invalid.columns if name not in selected
            }

        def route_rows(
            frames: Sequence[DataFrame], operator: OperatorPlan
        ) -> tuple[DataFrame, Sequence[str]]:
            [rows] = frames
            if not (plan.ordered and self._order_by):
                return self._routed(rows.select(*selected.values()), operator), [*selected]
            # The order may use any column: Spark prunes those that neither it nor an aggregate
            # needs.
            routed = self._routed(rows, operator, self._order_by)
            return routed.select(*selected.values(), *_marker(operator)), [*selected]

        def combined(operator: OperatorPlan) -> Any:
            if not self._combinable and combine is True:
                raise InvalidArgumentError(f"{self._owner}: combine=True: {NOT_INVALID}")
            if not (
                updates is None
                and self._combinable
                and plan.combines(combine, self._event_time, ordered=bool(self._order_by))
                and (combine is True or self._evaluation.combines(uid))
            ):
                return None
            rows, make = plan.combine(frame, keys, self._event_time, operator, spec)
            return self._routed(rows, operator), rows.columns, make

        out = apply(
            self._evaluation,
            Application(
                OperatorSpec(uid, parse_key(self._keys), states),
                self._keys,
                make,
                [frame],
                route_rows,
                declared,
                inputs=(self._input,),
                invalid=self._invalid_rows(),
                earlier=self._earlier_rows(columns),
                state=initial_state,
                combined=combined,
                finish=partial(self._with_structs, results=[*aggregates]),
            ),
        )
        return self._evaluation.emits_updates(uid, out, self._names)

    def _check_over_updates(
        self, updates: Updates, initial_state: Given | None, combine: Combine
    ) -> None:
        if initial_state is not None:
            self._refuse_updates(
                "aggregate", updates.uid, "initial_state has aggregates, and not what they are of"
            )
        if combine is True:
            self._refuse_updates(
                "aggregate", updates.uid, "combine=True combines rows, and these replace others"
            )

    @property
    def _combinable(self) -> bool:
        """Whether rows need not be looked at one by one."""
        return not self._invalid.of_each

    def _aggregates(
        self, unnamed: Sequence[Any], given: Mapping[str, Any], columns: FrameColumns
    ) -> dict[str, Aggregate]:
        """Check the aggregates that `aggregate` got."""
        if unnamed:
            raise InvalidArgumentError(
                f"{self._owner}: give {unnamed[0]!s:.80} the name of its result column, "
                "e.g. n=ps.count()"
            )
        if not given:
            raise InvalidArgumentError(
                f"{self._owner}: name at least one aggregate, e.g. n=ps.count()"
            )
        found = {name: self._aggregate(name, each, columns) for name, each in given.items()}
        self._check_results([*self._names, *given])
        return found

    def _with_structs(self, frame: DataFrame, results: Sequence[str]) -> DataFrame:
        """Make structs of the key's fields, which were sent on their own."""
        if [name for name, _ in self._keys] == self._names:
            return frame
        schema, marked = self._frame.schema, self._marked
        whole = [whole_key(schema[name], marked=marked) for name in self._names]
        return frame.select(*whole, *map(column_named, results))

    def _of_rows(
        self,
        spec: DeduplicateSpec | TopSpec,
        order_by: Sequence[Column],
        declared: st.StructType,
        result: Sequence[str],
    ) -> DataFrame:
        uid, frame = checked_uid(self._uid), self._frame
        output_columns(frame.schema, f"{self._owner}: its input")
        sides = {}
        if spec.late != PROCESS_LATE:
            self._require_event_time(spec.late)
        tag = late_tag(spec.late)
        if tag is not None:
            sides[tag] = late_schema(tag, {}, self._frame, self._owner)
        schema, marked = frame.schema, self._marked

        def selected(out: DataFrame) -> DataFrame:
            if declared.names == list(result):
                return out
            keys = {name: whole_key(schema[name], marked=marked) for name in self._names}
            return out.select(*(keys.get(name, column_named(name)) for name in result))

        return apply(
            self._evaluation,
            Application(
                OperatorSpec(uid, parse_key(self._keys), spec.states()),
                self._keys,
                spec.make,
                [frame],
                partial(self._ordered_by, order_by),
                declared,
                inputs=(self._input,),
                sides=sides,
                invalid=self._invalid_rows(),
                earlier=self._earlier_rows(self._columns),
                output=output_columns(declared, self._owner),
                finish=selected,
            ),
        )

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
        choice(time, f"{self._owner}: time", ("event", "processing"))
        options = window_options(
            windows,
            self._owner,
            event_time=self._event_time,
            processing_time=time == "processing",
            emit=emit,
            early=early,
            allowed_lateness=allowed_lateness,
        )
        if checked_late(late, (), self._owner) == PROCESS_LATE:
            raise InvalidArgumentError(
                f"{self._owner}: window: late is 'drop' or the tag of a side output: of rows that "
                "are too late there is no window; how long one is kept, allowed_lateness= says"
            )

        def routed(
            names: Sequence[str], frames: Sequence[DataFrame], plan: OperatorPlan
        ) -> tuple[DataFrame, Sequence[str]]:
            columns = [*map(column_text, names)]
            if not self._order_by:
                return self._routed(frames[0].selectExpr(*columns), plan), names
            # The order may use any column: Spark prunes those that neither it nor a window needs.
            rows = self._routed(frames[0], plan, self._order_by)
            return rows.select(*columns, *_marker(plan)), names

        given = WindowInput(
            self._evaluation,
            self._columns,
            checked_uid(self._uid),
            self._owner,
            self._names,
            self._keys,
            self._input,
            routed,
            self._earlier_rows,
            bool(self._order_by),
            self._invalid_rows(),
            partial(
                self._refuse_all_updates,
                "window(...).aggregate",
                "a window does not forget the row that an update replaces",
            ),
        )
        return WindowedFrame(given, options, late)

    def _aggregate(self, name: str, given: Any, columns: FrameColumns) -> Aggregate:
        """The aggregate, with its column under the name that the frame has for it."""
        if not isinstance(given, Aggregate):
            raise InvalidArgumentError(
                f"{self._owner}: {name}={given!r:.80} is no aggregate; write {name}=ps.count(), "
                f"or ps.sum, ps.min, ps.max or ps.mean with a column"
            )
        if given.column is None:
            return given
        return given._replace(column=columns.take(given.column, str(given)))

    def _check_results(self, names: Sequence[str]) -> None:
        refuse_reserved(names, self._owner)
        twice = names_twice(names)
        if twice:
            raise InvalidArgumentError(
                f"{self._owner}: two columns of the result are called {', '.join(twice)}: key "
                "columns and aggregates have names that differ in more than case"
            )

    def _routed(
        self, frame: DataFrame, plan: OperatorPlan, order_by: Sequence[Column] = ()
    ) -> DataFrame:
        keys = [name for name, _ in self._keys]
        groups, parallelism = plan.operator.max_parallelism, plan.parallelism
        return route(frame, keys, groups, parallelism, order_by, markers=plan.markers)


def _marker(plan: OperatorPlan) -> list[str]:
    """The column of the markers, if there are any."""
    return [RANGE_COLUMN] if plan.markers else []
