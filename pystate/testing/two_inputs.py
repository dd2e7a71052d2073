"""A harness for operators of two inputs, in a unit test: functions and joins. No Spark, no Java.

Thread safety: a `TwoInputHarness` belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import pyarrow as pa

from pystate.base.arguments import choice, text
from pystate.errors import InvalidArgumentError, WrongTypeError
from pystate.operators.functions.base import KeyedCoProcessFunction, VectorizedCoFunction
from pystate.operators.functions.binding import declarations, operator_spec, require_state
from pystate.operators.joins.inputs import JoinInput
from pystate.operators.joins.kinds import Join
from pystate.operators.runtime.function_operator import FunctionOperator
from pystate.operators.runtime.function_spec import FunctionSpec, RightInput
from pystate.operators.runtime.invalid_rows import harness_rule
from pystate.operators.runtime.late_rows import DROP_LATE, PROCESS_LATE, SIDES, checked_late
from pystate.operators.runtime.output import (
    OutputColumns,
    RowsAsYielded,
    SchemaLike,
    parse_columns,
    parse_sides,
)
from pystate.operators.runtime.task import Operator
from pystate.state.operator_spec import OperatorSpec
from pystate.tables.options import checked_parallelism
from pystate.tables.registry import unknown_state_error
from pystate.testing.clock import HarnessInput
from pystate.testing.epochs import Attempt, Watched
from pystate.testing.input_rows import InputRows, key_of
from pystate.testing.operator_harness import OperatorHarness, kept_arguments
from pystate.testing.range_tables import RangeTable
from pystate.types.durations import Duration, delay_milliseconds
from pystate.types.state_type import parse_type

_CoFunction = KeyedCoProcessFunction | VectorizedCoFunction


class TwoInputHarness(OperatorHarness):
    """Runs a function of two inputs or a join over rows that a test feeds it, epoch by epoch.

    Parameters
    ----------
    operator : KeyedCoProcessFunction, VectorizedCoFunction, IntervalJoin, AsofJoin or WindowJoin
        An instance of the function, or a join: ``ps.testing.IntervalJoin("-5 minutes", 0)``.
    key : str or sequence of str
        The key columns.
    left, right : str, mapping or pyarrow.Schema
        The inputs' columns: ``"user string, at timestamp, n long"``.
    right_key : str or sequence of str, optional
        The right input's key columns, if they have other names.
    event_time, right_event_time : str, optional
        The columns of the rows' event times; the right input's is called as the left one's unless
        it is given, or does not have that column.
    allowed_delay : str, timedelta or int in milliseconds, or a pair of them, optional
        Move each input's watermark after each epoch to the largest event time that it has seen
        minus this, as a job does. Otherwise only `advance_watermark` moves it.
    schema : str, mapping or pyarrow.Schema, optional
        The columns that a function yields; its output is then checked as on Spark.
    side_outputs : sequence of str, or mapping of str to schema
        The tags that a function may give to ``ctx.output``.
    late : {"process", "drop"}
        What a function does with rows below the watermark. A join drops them.
    initial_rows : pair, optional
        Rows of the left and of the right input of the time before the first epoch, as for
        ``key_by(initial_rows=...)``.
    initial_state, initial_timers : Table, or what `pyarrow.table` takes, optional
        As for `ConnectedFrames.process`.
    processing_time : int or datetime
        The first epoch's processing time.
    parallelism, max_parallelism : int
        Number of key-group ranges, and of key groups.
    batch_rows : int
        The most rows that the operator gets at once.
    uid : str
        The operator's name in errors and in `ctx`.
    max_ahead, invalid : optional
        As in `Job.key_by`.
    on_invalid : {"drop", "fail"}
        What becomes of rows that cannot be processed, as in `Job`.
    table_home : {"heap", "disk"}
        Where the tables are, as in `Job`. On disk each epoch begins without a row in memory: all
        that the operator asks for comes from files.

    Notes
    -----
    Every call of `process`, `push_left`, `push_right`, `advance_watermark` and
    `advance_processing_time` is one epoch. In an epoch the left rows come first, which on Spark
    nothing promises: a test of a function should try both orders, in two epochs.

    Examples
    --------
    >>> import pystate as ps
    >>> with ps.testing.TwoInputHarness(
    ...     ps.testing.IntervalJoin(0, "1 min", how="left", suffixes=("", "_right")),
    ...     key="id",
    ...     left="id string, at long, seen string",
    ...     right="id string, at long, bought string",
    ...     event_time="at",
    ... ) as harness:
    ...     harness.push_left([("a", 1_000, "cup"), ("b", 2_000, "pen")])
    ...     [tuple(row) for row in harness.push_right([("a", 31_000, "cup")])]
    ...     [tuple(row) for row in harness.advance_watermark(300_000)]
    []
    [('a', 1000, 'cup', 31000, 'cup')]
    [('b', 2000, 'pen', None, None)]
    """

    _counts_timers = True

    def __init__(
        self,
        operator: _CoFunction | Join,
        key: str | Sequence[str],
        *,
        left: SchemaLike,
        right: SchemaLike,
        right_key: str | Sequence[str] | None = None,
        event_time: str | None = None,
        right_event_time: str | None = None,
        allowed_delay: Duration | tuple[Duration, Duration] | None = None,
        schema: SchemaLike | None = None,
        side_outputs: Sequence[str] | Mapping[str, SchemaLike] = (),
        late: Literal["process", "drop"] = "process",
        initial_rows: tuple[Any, Any] | None = None,
        initial_state: Any = None,
        initial_timers: Any = None,
        processing_time: int | datetime = 0,
        parallelism: int = 1,
        max_parallelism: int = 128,
        batch_rows: int = 10_000,
        uid: str = "harness",
        max_ahead: Duration | None = None,
        invalid: str | None = None,
        on_invalid: Literal["drop", "fail"] = "drop",
        table_home: Literal["heap", "disk"] = "heap",
    ) -> None:
        arguments = kept_arguments(locals())
        owner = self._owner = f"operator {text(uid, 'TwoInputHarness: uid')!r}"
        checked_parallelism(max_parallelism)
        keys = [_names(key), _names(key if right_key is None else right_key)]
        delays = allowed_delay if isinstance(allowed_delay, tuple) else (allowed_delay,) * 2
        rows = [InputRows(*each) for each in zip(keys, (left, right), strict=True)]
        times = [event_time, right_event_time]
        if right_event_time is None and event_time in rows[1].declared.names:
            times[1] = event_time
        self._given = [
            HarnessInput(
                side,
                names,
                each,
                time,
                None if delay is None else delay_milliseconds(delay, f"{owner}: allowed_delay"),
                harness_rule(f"{owner}, input {side!r}", time, max_ahead, invalid, on_invalid),
            )
            for side, names, each, time, delay in zip(SIDES, keys, rows, times, delays, strict=True)
        ]
        for each in self._given:
            if each.allowed_delay_ms is not None and each.event_time is None:
                raise InvalidArgumentError(
                    f"{owner}: allowed_delay is about how late rows are by their event time: also "
                    f"name its column in the {each.name} input, event_time='column'"
                )
        self._function = operator if isinstance(operator, _CoFunction) else None
        sides = parse_sides(side_outputs, owner)
        if self._function is not None:
            columns = RowsAsYielded(owner=owner) if schema is None else parse_columns(schema, owner)
            spec = self._of_function(self._function, columns, sides, late, uid, max_parallelism)
        else:
            for name, given in (
                ("schema", schema is not None),
                ("side_outputs", bool(sides)),
                ("late", late != PROCESS_LATE),
                ("initial_state", initial_state is not None or initial_timers is not None),
            ):
                if given:
                    raise InvalidArgumentError(
                        f"{owner}: {name} is of a function; a join has none: leave it out"
                    )
            spec = self._of_join(operator, uid, max_parallelism)
        super().__init__(
            spec,
            self._given,
            parallelism=parallelism,
            batch_rows=batch_rows,
            processing_time=processing_time,
            arguments=arguments,
            table_home=table_home,
            tags=[*sides, *([] if invalid is None else [invalid])],
        )
        self._counts_timers = self._function is not None
        if initial_state is not None or initial_timers is not None:
            self._ranges.begin_with_state(initial_state, initial_timers)
        if initial_rows is not None:
            one, two = initial_rows
            self._begin_with_rows({"left": one, "right": two})

    # -- what is run

    def _of_function(
        self,
        function: _CoFunction,
        output: Any,
        sides: Mapping[str, Any],
        late: str,
        uid: str,
        max_parallelism: int,
    ) -> OperatorSpec:
        left, right = self._given
        if checked_late(late, sides, self._owner) not in (PROCESS_LATE, DROP_LATE):
            raise InvalidArgumentError(
                f"{self._owner}: late={late!r}: of two inputs late rows are handled, 'process', or "
                "dropped, 'drop'"
            )
        require_state(function, self._owner)
        keys = [key_of(each.rows.declared, each.key) for each in (left, right)]
        for each, stored in zip((left, right), keys, strict=True):
            if len(stored) != len(each.key):
                raise WrongTypeError(
                    f"{self._owner}: a key of two inputs is no struct: make columns of its fields"
                )
        if [type_.ddl for _, type_ in keys[0]] != [type_.ddl for _, type_ in keys[1]]:
            raise WrongTypeError(f"{self._owner}: the keys of the inputs have different types")

        def spec(function: _CoFunction) -> FunctionSpec:
            return FunctionSpec(
                function,
                key=left.key,
                columns=tuple(left.rows.declared.names),
                output=output,
                event_time=left.event_time,
                side_outputs=sides,
                late=late,
                right=RightInput(
                    right.key, tuple(right.rows.declared.names), right.event_time, late
                ),
            )

        spec(function)
        self._function_spec = spec
        return operator_spec(function, uid, keys[0], max_parallelism)

    def _of_join(
        self,
        operator: Any,
        uid: str,
        max_parallelism: int,
    ) -> OperatorSpec:
        owner = self._owner
        if not isinstance(operator, Join):
            raise InvalidArgumentError(
                f"{owner}: {operator!r:.80} is no function of two inputs, and no "
                "ps.testing.IntervalJoin, AsofJoin or WindowJoin"
            )
        left, right = (
            JoinInput.of(
                each.name,  # type: ignore[arg-type]
                each.key,
                [(field.name, field.type) for field in each.rows.declared],
                each.event_time,
                owner,
            )
            for each in self._given
        )
        names = operator.names(left, right, owner)
        types = [
            *(type_.arrow for _, type_ in left.key),
            *operator.added(left),
            *(type_.arrow for _, type_ in (*left.columns, *right.columns)),
        ]
        output = OutputColumns(pa.schema(list(zip(names, types, strict=True))), owner)
        self._join = operator.spec(left, right, output, owner)
        states = self._join.states()
        return OperatorSpec(uid, left.key, states, parse_type("long"), True, max_parallelism)

    def _operator(self, table: RangeTable, attempt: Attempt) -> Operator:
        if self._function is None:
            return Watched(self._join.make(), attempt)
        return FunctionOperator(self._function_spec(attempt.copied(self._function)))

    # -- epochs

    def process(self, left: Any = (), right: Any = ()) -> list[Any]:
        """Run one epoch over rows of both inputs; the left ones come first.

        Parameters
        ----------
        left, right : iterable of mapping or tuple, mapping, RecordBatch, Table or pandas frame
            The rows. Without any it is an epoch, too.

        Returns
        -------
        list
            What the operator has emitted: named tuples, or without a schema what a function yields.

        Raises
        ------
        WrongTypeError, InvalidArgumentError
            The rows, or those that a function yields, do not match the declared columns.
        ReplayError
            An injected failure made the epoch run twice, with different results.
        """
        return self._process({"left": left, "right": right})

    def push_left(self, rows: Any) -> list[Any]:
        """Run one epoch over rows of the left input; see `process`."""
        return self.process(left=rows)

    def push_right(self, rows: Any) -> list[Any]:
        """Run one epoch over rows of the right input; see `process`."""
        return self.process(right=rows)

    def advance_watermark(
        self, to: int | datetime, input: Literal["left", "right"] | None = None
    ) -> list[Any]:
        """Move the watermark of one input or of both, and run an epoch without rows.

        Parameters
        ----------
        to : int or datetime
            Milliseconds since 1970, or a datetime with a time zone.
        input : {"left", "right"}, optional
            Only this input; the operator's watermark is the smaller one of both.

        Returns
        -------
        list
            What the operator has emitted.

        Raises
        ------
        InvalidArgumentError
            It would go back.
        """
        if input is not None:
            choice(input, "advance_watermark: input", SIDES)
        inputs = SIDES if input is None else [input]
        return self._epoch({}, self._clock.with_watermark(to, inputs))

    def drain(self, left: Any = (), right: Any = ()) -> list[Any]:
        """Run an epoch and end event time after its rows, as a job with ``drain=True`` does.

        Raises
        ------
        NoEventTimeError
            An input has no event time, and there is no watermark either.
        """
        return self._drain({"left": left, "right": right})

    def state(self, name: str, key: Any, namespace: Any = None) -> Any:
        """One state of one key, of a function; see `Harness.state`."""
        known = {} if self._function is None else declarations(self._function)
        if name not in known:
            raise unknown_state_error(name, known)
        return self._ranges.look(name, key, namespace)

    def set_state(self, name: str, key: Any, value: Any, namespace: Any = None) -> None:
        """Set one state of one key, of a function; see `Harness.set_state`."""
        known = {} if self._function is None else declarations(self._function)
        if name not in known:
            raise unknown_state_error(name, known)
        self._ranges.put(name, key, namespace, value, self.processing_time)

    def __repr__(self) -> str:
        what = type(self._join if self._function is None else self._function).__name__
        return f"<TwoInputHarness of {what} after {self.epoch} epochs>"


def _names(key: str | Sequence[str]) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)
