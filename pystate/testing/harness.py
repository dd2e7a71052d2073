"""A harness that runs a stateful function in a unit test: no Spark, no Java.

Thread safety: a `Harness` belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from pystate.base.arguments import choice, text
from pystate.checkpoint.refs import INPUT
from pystate.epochs.watermarks import OperatorTime
from pystate.errors import InvalidArgumentError, NoEventTimeError
from pystate.operators.functions.base import StatefulFunction
from pystate.operators.functions.binding import declarations, operator_spec
from pystate.operators.runtime.event_time import milliseconds
from pystate.operators.runtime.function_operator import FunctionOperator
from pystate.operators.runtime.late_rows import PROCESS_LATE
from pystate.operators.runtime.output import SchemaLike
from pystate.operators.runtime.rows import key_maker, key_parts
from pystate.operators.runtime.task import Operator, TaskContext
from pystate.tables.registry import unknown_state_error
from pystate.tables.timers import TimeDomain
from pystate.testing.base import HarnessBase
from pystate.testing.clock import Clock, HarnessInput
from pystate.testing.epochs import Attempt, compute
from pystate.testing.input_rows import InputRows, as_table, key_of
from pystate.testing.options import OperatorOptions
from pystate.testing.range_tables import RangeTable, RangeTables
from pystate.testing.snapshot import HarnessSnapshot, check_snapshot
from pystate.types.durations import Duration
from pystate.types.keys import KeyColumns, KeyLike

if TYPE_CHECKING:
    from typing_extensions import Self


class Harness(HarnessBase):
    """Runs a stateful function over rows that a test feeds it, an epoch at a time.

    Parameters
    ----------
    function : KeyedProcessFunction or VectorizedFunction
        An instance. As on Spark, every epoch works on a copy of it.
    key : str, list of str, or mapping of str to type
        The key columns. A mapping gives their types; otherwise the first rows determine them. A
        struct stands for its fields, which `state` takes as a tuple.
    schema : str, mapping or pyarrow.Schema, optional
        The columns that the function yields (``"user string, clicks long"``); the output is then
        checked as on Spark. Otherwise rows are not checked.
    columns : str, mapping or pyarrow.Schema, optional
        The input's columns; by default the first rows determine them.
    event_time : str, optional
        The column with the time at which a row happened. Without it event-time timers are refused,
        unless `advance_watermark` has set a watermark, as another operator of a job would.
    allowed_delay : str, timedelta or int in milliseconds, optional
        Move the watermark after each epoch to the largest event time seen minus this, as a job
        does. Otherwise only `advance_watermark` moves it.
    side_outputs : sequence of str, or mapping of str to schema
        The tags that the function may give to ``ctx.output``.
    late : {"process", "drop"} or str
        What happens to rows below the watermark, as in `KeyedFrame.process`: the function sees
        them, they are dropped, or they go to the side output of this tag.
    processing_time : int or datetime
        The first epoch's processing time; only `advance_processing_time` changes it.
    parallelism : int
        Number of key-group ranges; each has its own table and its own copy of the function.
    max_parallelism : int
        Number of key groups.
    batch_rows : int
        The most rows that a `VectorizedFunction` gets in one call.
    initial_state, initial_timers, initial_rows : Table, or what `pyarrow.table` takes, optional
        What the operator begins with, as in `KeyedFrame.process` and ``key_by(initial_rows=...)``.
    uid : str
        The operator's name in errors and in `ctx`.
    allow_pickle : bool
        Whether states may be pickled, as in `Job`; a restored harness keeps this option.
    max_ahead, invalid : optional
        As in `Job.key_by`.
    on_invalid : {"drop", "fail"}
        What becomes of rows that cannot be processed, as in `Job`.
    table_home : {"heap", "disk"}
        Where the tables are, as in `Job`. On disk each epoch begins without a row in memory: all
        that the operator asks for comes from files.

    Attributes
    ----------
    output : list
        The rows that all epochs so far have yielded.
    failures : int
        Injected failures that have happened.

    Notes
    -----
    Every call of `process`, `advance_watermark` and `advance_processing_time` is one epoch: its
    rows are handled, then timers fire, then the tables are sealed, by the same code and in the same
    tables that Spark's workers use. An epoch that raises changes nothing.

    Examples
    --------
    >>> import pystate as ps
    >>> class Clicks(ps.KeyedProcessFunction):
    ...     n = ps.ValueState("long", default=0)
    ...
    ...     def process(self, key, row, ctx: ps.RuntimeContext):
    ...         self.n.update(self.n.value() + 1)
    ...         yield key, self.n.value()
    >>> with ps.testing.Harness(Clicks(), key="user") as harness:
    ...     harness.process([{"user": "ada"}, {"user": "bob"}, {"user": "ada"}])
    ...     harness.state("n", "ada")
    ...     harness.fail_after(1)
    ...     harness.process([{"user": "ada"}, {"user": "bob"}])
    [('ada', 1), ('bob', 1), ('ada', 2)]
    2
    [('ada', 3), ('bob', 2)]
    """

    def __init__(
        self,
        function: StatefulFunction,
        key: str | Sequence[str] | KeyLike,
        *,
        schema: SchemaLike | None = None,
        columns: SchemaLike | None = None,
        event_time: str | None = None,
        allowed_delay: Duration | None = None,
        side_outputs: Sequence[str] | Mapping[str, SchemaLike] = (),
        late: Literal["process", "drop"] | str = PROCESS_LATE,
        processing_time: int | datetime = 0,
        parallelism: int = 1,
        max_parallelism: int = 128,
        batch_rows: int = 10_000,
        initial_state: Any = None,
        initial_timers: Any = None,
        initial_rows: Any = None,
        uid: str = "harness",
        allow_pickle: bool = True,
        max_ahead: Duration | None = None,
        invalid: str | None = None,
        on_invalid: Literal["drop", "fail"] = "drop",
        table_home: Literal["heap", "disk"] = "heap",
    ) -> None:
        text(uid, "Harness: uid")
        options = self._options_of(
            (key,) if isinstance(key, str) else key,
            schema=schema,
            event_time=event_time,
            allowed_delay=allowed_delay,
            side_outputs=side_outputs,
            late=late,
            max_parallelism=max_parallelism,
            batch_rows=batch_rows,
            uid=uid,
            allow_pickle=allow_pickle,
            max_ahead=max_ahead,
            invalid=invalid,
            on_invalid=on_invalid,
            table_home=table_home,
        )
        clock = Clock(milliseconds(processing_time, "processing_time"))
        self._begin(function, options, clock, InputRows(options.key_names, columns), parallelism)
        known = options.known_key
        if known is not None:
            self._make_ranges(known)
        if initial_state is not None or initial_timers is not None:
            self._begin_with_state(initial_state, initial_timers)
        if function._beginning is not None:
            self._begin_with_function(*function._beginning)
        if initial_rows is not None:
            self._begin_with_rows(initial_rows)

    def _options_of(self, key: Any, **given: Any) -> OperatorOptions:
        """The options of the harness, of what its user has given."""
        return OperatorOptions.of(key, **given)

    def _begin(
        self,
        function: StatefulFunction,
        options: OperatorOptions,
        clock: Clock,
        rows: InputRows,
        parallelism: int,
    ) -> None:
        options.check(function, rows.schema, parallelism)
        self._function = function
        self._options = options
        self._rows = rows
        self._parallelism = parallelism
        self._begin_epochs(clock, self._given_inputs(), options.batch_rows, options.tags)

    def _given_inputs(self) -> list[HarnessInput]:
        options = self._options
        delay, rule = options.allowed_delay_ms, options.invalid
        names = options.key_names
        return [HarnessInput(INPUT, names, self._rows, options.event_time, delay, rule)]

    def _dealt(
        self, name: str, rows: pa.RecordBatch, ranges: RangeTables
    ) -> Iterator[pa.RecordBatch | None]:
        return ranges.parts(rows)

    def _operator(self, table: RangeTable, attempt: Attempt) -> Operator:
        key = tuple(name for name, _ in self._ranges.key)
        function = attempt.copied(self._function)
        return FunctionOperator(self._options.spec(function, key, self._rows.schema))

    # -- epochs

    def process(self, rows: Any) -> list[Any]:
        """Run one epoch over some rows.

        Parameters
        ----------
        rows : iterable of mapping or tuple, mapping, RecordBatch, Table or DataFrame of pandas
            In the order in which the function is to see them. Without rows it is an epoch, too.

        Returns
        -------
        list
            What the function has yielded, for timers too: named tuples of the schema, or without a
            schema whatever it yielded.

        Raises
        ------
        WrongTypeError, InvalidArgumentError
            The rows, or those that the function yields, do not match the declared columns.
        ReplayError
            An injected failure made the epoch run twice, with different results.
        """
        return self._process(rows)

    def _process(self, rows: Any, *, drain: bool = False) -> list[Any]:
        known, tables = self._rows.columns, self._tables
        try:
            batch = self._rows.batch(rows)
            if batch is not None and self._tables is None:
                self._make_ranges(key_of(batch.schema, self._options.key))
            batches = {} if batch is None else {INPUT: batch}
            return self._epoch(batches, self._clock.copy(), drain=drain)
        except BaseException:
            # An epoch that failed must not determine the columns or the key either.
            self._rows.columns = known
            if tables is None:
                self.close()
                self._tables = None
            raise

    def drain(self, rows: Any = ()) -> list[Any]:
        """Run an epoch and end event time after its rows, as a job with ``drain=True`` does.

        All event-time timers fire, with `ctx.watermark` at ``ps.MAX_WATERMARK``. After the epoch
        the watermark is again the one that its rows give, and the next epoch continues from there.

        Parameters
        ----------
        rows : iterable of mapping or tuple, mapping, RecordBatch, Table or DataFrame of pandas
            As for `process`; none by default.

        Returns
        -------
        list
            What the function has yielded.

        Raises
        ------
        NoEventTimeError
            The operator has no event time, and no watermark either.
        """
        if self._options.event_time is None and self.watermark is None:
            raise NoEventTimeError(
                f"operator {self._options.uid!r}: drain takes the watermark to its end, and there "
                "is none: name the column that has the event time, event_time='column'"
            )
        return self._process(rows, drain=True)

    def advance_watermark(self, to: int | datetime) -> list[Any]:
        """Move the watermark, and run an epoch without rows: event-time timers fire.

        Parameters
        ----------
        to : int or datetime
            Milliseconds since 1970, or a datetime with a time zone.

        Returns
        -------
        list
            What the function has yielded.

        Raises
        ------
        InvalidArgumentError
            It would go back.
        """
        return self._epoch({}, self._clock.with_watermark(to))

    def advance_processing_time(self, to: int | datetime | timedelta) -> list[Any]:
        """Move the processing time, and run an epoch without rows: its timers fire.

        Parameters
        ----------
        to : int, datetime or timedelta
            As for `advance_watermark`; a timedelta is added to the current processing time.

        Returns
        -------
        list
            What the function has yielded.

        Raises
        ------
        InvalidArgumentError
            It would go back.
        """
        return self._epoch({}, self._clock.with_processing_time(to))

    # -- results

    def keys(self) -> list[Any]:
        """All keys that have state, in no particular order."""
        keys = [key for table in self._tables or () for key in table.backend]
        types = self._options.key_types(self._rows.schema)
        if not types or self._tables is None:
            return keys
        maker = key_maker(types, [name for name, _ in self._ranges.key])
        return [maker(key if isinstance(key, tuple) else (key,)) for key in keys]

    def state(self, name: str, key: Any, namespace: Any = None) -> Any:
        """One state of one key.

        Parameters
        ----------
        name : str
            The state.
        key : object
            The key as the function sees it; a tuple if it has several columns.
        namespace : object, optional
            The namespace; by default the default one.

        Returns
        -------
        object
            What the handle returns: a value, a list, an aggregate's result; for a map a dict.
        """
        ranges = self._known_ranges(name)
        return ranges.look(name, self._stored(key, ranges), namespace)

    def states(self, key: Any, namespace: Any = None) -> dict[str, Any]:
        """All states of one key by name; parameters and values are those of `state`."""
        return {n: self.state(n, key, namespace) for n in declarations(self._function)}

    def set_state(self, name: str, key: Any, value: Any, namespace: Any = None) -> None:
        """Set one state of one key, between two epochs.

        Parameters
        ----------
        name : str
            The state.
        key : object
            The key as the function sees it; a tuple if it has several columns.
        value : object
            What `state` would return; of an aggregating state the values that it is to have
            aggregated. None clears it.
        namespace : object, optional
            The namespace; by default the default one.

        Raises
        ------
        InvalidArgumentError
            There is no such state, or the key's type is not known yet.
        WrongTypeError
            The value is not of the state's type.
        """
        ranges, now = self._known_ranges(name), self._clock.processing_time
        ranges.put(name, self._stored(key, ranges), namespace, value, now)

    def _stored(self, key: Any, ranges: RangeTables) -> Any:
        """A key as the tables have it: of structs their fields."""
        types = self._options.key_types(self._rows.schema)
        if not types:
            return key
        parts = key_parts(key, types, [name for name, _ in ranges.key])
        return parts if len(parts) > 1 else parts[0]

    def _known_ranges(self, name: str) -> RangeTables:
        """The tables, which have this state."""
        if name not in declarations(self._function):
            raise unknown_state_error(name, declarations(self._function))
        if self._tables is None:
            raise InvalidArgumentError(
                "no row has come yet, and the key's type is not known; say it: "
                "key={'user': 'string'}"
            )
        return self._ranges

    def next_timer(self, domain: TimeDomain) -> int | None:
        """When the earliest timer is due, in milliseconds since 1970; None if there is none.

        Parameters
        ----------
        domain : {"event", "processing"}
            The clock that the timer waits for.
        """
        choice(domain, "next_timer: domain", ("event", "processing"))
        return None if self._tables is None else self._tables.next_timer(domain)

    # -- snapshots

    def snapshot(self) -> HarnessSnapshot:
        """All state as of the last epoch. It stays valid whatever the harness does next."""
        return HarnessSnapshot(*self._stored_state())

    def _stored_state(self) -> tuple[int, tuple[bytes, ...], Clock, dict[str, Any]]:
        """What a snapshot has."""
        tables = self._tables
        given = {
            "key": None if tables is None else tables.key,
            "columns": self._rows.schema,
            "options": self._options,
        }
        files = () if tables is None else tables.files()
        return self._clock.epoch, files, self._clock.copy(), given

    @classmethod
    def restore(
        cls,
        snapshot: HarnessSnapshot,
        function: StatefulFunction,
        *,
        parallelism: int = 1,
        allow_unclaimed_state: bool = False,
    ) -> Self:
        """Make a harness that continues from a snapshot, with its times and options.

        Parameters
        ----------
        snapshot : HarnessSnapshot
            A snapshot of any harness.
        function : KeyedProcessFunction or VectorizedFunction
            It may be another function than before, as after a change of the code.
        parallelism : int
            Number of key-group ranges; it may differ from before.
        allow_unclaimed_state : bool
            Drop states that `function` does not declare.

        Returns
        -------
        Harness
            Its outputs are empty.

        Raises
        ------
        SchemaError, UnclaimedStateError
            The snapshot holds states in other types, or states that `function` does not declare.
        """
        check_snapshot(snapshot, HarnessSnapshot, "harness")
        harness, given = cls.__new__(cls), snapshot._given
        rows = InputRows(given["options"].key_names, given["columns"])
        harness._begin(function, given["options"], snapshot._clock.copy(), rows, parallelism)
        if given["key"] is not None:
            ranges = harness._make_ranges(given["key"])
            try:
                ranges.restore(snapshot._files, allow_unclaimed_state)
            except BaseException:
                ranges.close()
                raise
        return harness

    # -- life

    def close(self) -> None:
        """Free the tables. Does nothing the second time."""
        if self._tables is not None:
            self._tables.close()

    def __repr__(self) -> str:
        return f"<Harness of {type(self._function).__name__} after {self.epoch} epochs>"

    def _make_ranges(self, key: KeyColumns) -> RangeTables:
        options = self._options
        spec = operator_spec(self._function, options.uid, key, options.max_parallelism)
        self._tables = RangeTables(spec, self._parallelism, options.table_home)
        return self._tables

    def _begin_with_state(self, state: Any, timers: Any) -> None:
        options = self._options
        ranges = self._tables
        if ranges is None:
            name, given = ("timers", timers) if state is None else ("state", state)
            table = as_table(given, f"operator {options.uid!r}: initial_{name}")
            schema, known = table.schema, self._rows.schema
            if known is not None and not {*options.key} <= {*schema.names}:
                schema = known  # states come with the fields of structs, as read_state gives them
            ranges = self._make_ranges(key_of(schema, options.key))
        ranges.begin_with_state(state, timers)

    def _begin_with_function(self, rows: Any, function: StatefulFunction) -> None:
        """Have another function of the same states handle rows before the first epoch."""
        given = InputRows(self._options.key_names)
        batch = given.batch(rows)
        if batch is None:
            return
        ranges = self._tables
        if ranges is None:
            ranges = self._make_ranges(key_of(batch.schema, self._options.key))
        options = replace(self._options, event_time=None, allowed_delay_ms=None, late=PROCESS_LATE)
        key, columns = tuple(name for name, _ in ranges.key), given.schema

        def start(table: RangeTable, attempt: Attempt) -> tuple[Operator, TaskContext]:
            spec = options.spec(attempt.copied(function), key, columns)
            return FunctionOperator(spec), self._context(table, attempt)

        attempt = Attempt(replace(self._clock.copy(), epoch=1))
        least = function._least_watermark_ms
        if self._options.event_time is not None and least is not None:
            attempt.time = OperatorTime(least, least)
        try:
            compute(ranges, self._pieces({INPUT: batch}), start, attempt)
        except BaseException:
            self.close()
            raise
