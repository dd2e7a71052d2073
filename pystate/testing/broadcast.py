"""A harness for a function with a broadcast input, over several instances: no Spark, no Java.

Thread safety: all objects belong to one thread.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from pystate.base.arguments import choice, text
from pystate.checkpoint.refs import INPUT
from pystate.errors import InvalidArgumentError, ReplayError
from pystate.operators.functions.base import BroadcastFunction, StatefulFunction
from pystate.operators.functions.binding import broadcast_states, keyed_states, operator_spec, shape
from pystate.operators.runtime.event_time import event_times
from pystate.operators.runtime.function_operator import BROADCAST, FunctionOperator
from pystate.operators.runtime.function_spec import BroadcastInput
from pystate.operators.runtime.instance_state import InstanceState, instance_spec
from pystate.operators.runtime.output import SchemaLike
from pystate.operators.runtime.task import Operator, TaskContext
from pystate.state.operator_spec import OperatorSpec
from pystate.state.operator_state import Instance, KeylessState
from pystate.tables.backend import KeyedStateBackend
from pystate.testing.clock import Clock, HarnessInput
from pystate.testing.epochs import Attempt, Pieces
from pystate.testing.harness import Harness
from pystate.testing.input_rows import InputRows
from pystate.testing.options import OperatorOptions
from pystate.testing.range_tables import RangeTable, RangeTables, TableFiles, continued
from pystate.testing.snapshot import BroadcastSnapshot, HarnessSnapshot, check_snapshot
from pystate.types.durations import Duration, delay_milliseconds
from pystate.types.keys import KeyColumns

if TYPE_CHECKING:
    from typing_extensions import Self

#: Before all times.
_NO_TIME = -(1 << 63)


class BroadcastHarness(Harness):
    """Runs a `KeyedBroadcastProcessFunction` on several instances, as a job does.

    Parameters
    ----------
    function : KeyedBroadcastProcessFunction or VectorizedBroadcastFunction
        An instance. Every epoch works on a copy of it per instance.
    key : str, list of str, or mapping of str to type
        As for `Harness`. If broadcast rows come before the first keyed one, its types must be
        given: ``key={"user": "string"}``.
    broadcast_columns : str, mapping or pyarrow.Schema, optional
        The columns of broadcast rows; by default the first rows determine them.
    broadcast_event_time : str, optional
        The column with the time of a broadcast row. The watermark then follows both inputs.
    broadcast_delay : str, timedelta or int in milliseconds
        The allowed delay of the broadcast input; `allowed_delay` is that of the keyed one.
    interleave : "event_time", optional
        As in `BroadcastFrames.process`. By default an epoch's broadcast rows come first.
    parallelism : int
        Number of instances.
    **options
        Other parameters of `Harness`.

    Examples
    --------
    >>> import pystate as ps
    >>> class Flagged(ps.KeyedBroadcastProcessFunction):
    ...     words = ps.BroadcastState("string", "boolean")
    ...
    ...     def process_broadcast(self, row, ctx: ps.RuntimeContext):
    ...         self.words.put(row["word"], True)
    ...
    ...     def process(self, key, row, ctx: ps.RuntimeContext):
    ...         if self.words.contains(row["said"]):
    ...             yield key, row["said"]
    >>> with ps.testing.BroadcastHarness(Flagged(), key={"user": "string"}) as harness:
    ...     harness.process(broadcast=[{"word": "spam"}])
    ...     harness.process([{"user": "ada", "said": "hello"}, {"user": "bob", "said": "spam"}])
    ...     harness.broadcast_state("words")
    []
    [('bob', 'spam')]
    {'spam': True}
    """

    #: The broadcast rows of the epoch that is run.
    _given: pa.RecordBatch | None = None

    def __init__(
        self,
        function: BroadcastFunction,
        key: Any,
        *,
        broadcast_columns: SchemaLike | None = None,
        broadcast_event_time: str | None = None,
        broadcast_delay: Duration = 0,
        interleave: Literal["event_time"] | None = None,
        parallelism: int = 2,
        **options: Any,
    ) -> None:
        owner = f"operator {options.get('uid', 'harness')!r}"
        if interleave is not None:
            choice(interleave, f"{owner}: interleave", ("event_time",))
        if broadcast_event_time is not None:
            text(broadcast_event_time, f"{owner}: broadcast_event_time, the name of a column,")
        self._more_options: dict[str, Any] = {
            "broadcast_event_time": broadcast_event_time,
            "broadcast_delay_ms": delay_milliseconds(broadcast_delay, f"{owner}: broadcast_delay"),
            "interleave": interleave is not None,
        }
        self._rules = InputRows((), broadcast_columns)
        super().__init__(function, key, parallelism=parallelism, **options)

    def _given_inputs(self) -> list[HarnessInput]:
        inputs, options = super()._given_inputs(), self._own_options
        if options.broadcast_event_time is not None:
            # Without event time it holds no watermark back.
            time, delay = options.broadcast_event_time, options.broadcast_delay_ms
            inputs.append(HarnessInput(BROADCAST, (), InputRows(()), time, delay))
        return inputs

    @property
    def _own_options(self) -> BroadcastOptions:
        assert isinstance(self._options, BroadcastOptions)
        return self._options

    def process(self, rows: Any = (), broadcast: Any = ()) -> list[Any]:
        """Run one epoch over some rows of both inputs.

        Parameters
        ----------
        rows : iterable of mapping or tuple, mapping, RecordBatch, Table or DataFrame of pandas
            The keyed rows, in the order in which the function is to see them.
        broadcast : the same
            The rows that every instance sees, in this order.

        Returns
        -------
        list
            What all instances have yielded, as `Harness.process` gives it.

        Raises
        ------
        WrongTypeError, InvalidArgumentError
            As for `Harness.process`.
        ReplayError
            The instances' broadcast states are not equal after the epoch; or as for
            `Harness.process`.
        """
        with self._with_rules(broadcast):
            return super().process(rows)

    def drain(self, rows: Any = (), broadcast: Any = ()) -> list[Any]:
        """Run an epoch and end event time after its rows; see `Harness.drain`.

        Parameters
        ----------
        rows, broadcast
            As for `process`; none by default.
        """
        with self._with_rules(broadcast):
            return super().drain(rows)

    @contextmanager
    def _with_rules(self, broadcast: Any) -> Iterator[None]:
        """An epoch with these broadcast rows; if it fails they determine no columns."""
        known = self._rules.columns
        try:
            self._given = self._rules.batch(broadcast)
            yield
        except BaseException:
            self._rules.columns = known
            raise
        finally:
            self._given = None

    def _epoch(
        self, batches: Mapping[str, pa.RecordBatch], clock: Clock, *, drain: bool = False
    ) -> list[Any]:
        if self._given is not None:
            if self._tables is None:
                raise InvalidArgumentError(
                    "broadcast rows come before the first keyed row, and the key's type is not "
                    "known; say it: key={'user': 'string'}"
                )
            batches = {**batches, BROADCAST: self._given}
        return super()._epoch(batches, clock, drain=drain)

    def _pieces(self, batches: Mapping[str, pa.RecordBatch]) -> Pieces:
        """The rows that each instance gets: the broadcast ones first, or all in their order."""
        keyed = {name: rows for name, rows in batches.items() if name == INPUT}
        rules = batches.get(BROADCAST)
        if not self._own_options.interleave:
            first = [] if rules is None else [(BROADCAST, rules)]
            return [[*first, *own] for own in super()._pieces(keyed)]
        ranges = self._ranges
        parts: Iterable[pa.RecordBatch | None] = [None] * len(ranges)
        if keyed:
            parts = self._dealt(INPUT, keyed[INPUT], ranges)
        return [[*self._interleaved(rules, part)] for part in parts]

    def _interleaved(
        self, rules: pa.RecordBatch | None, rows: pa.RecordBatch | None
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Rows of one input after the other, in the order of their times."""
        options = self._own_options
        both = [(rules, options.broadcast_event_time), (rows, options.event_time)]
        order = []
        for is_row, (batch, column) in enumerate(both):
            if batch is None:
                continue
            assert column is not None, "both have times"
            times = event_times(batch.column(column), f"event-time column {column!r}").to_pylist()
            order += [
                (_NO_TIME if time is None else time, bool(is_row), i)
                for i, time in enumerate(times)
            ]
        for is_row, part in groupby(sorted(order), key=lambda place: place[1]):
            batch, _ = both[is_row]
            assert batch is not None
            some = batch.take(pa.array([i for _, _, i in part], pa.int64()))
            if is_row:
                yield from ((INPUT, piece) for piece in self._cut(some))
            else:
                yield BROADCAST, some

    def _operator(self, table: RangeTable, attempt: Attempt) -> Operator:
        key = tuple(name for name, _ in self._ranges.key)
        spec = self._options.spec(attempt.copied(self._function), key, self._rows.schema)
        rules = self._rules.schema
        if rules is not None:
            time = self._own_options.broadcast_event_time
            spec = replace(spec, broadcast=BroadcastInput(tuple(rules.names), time))
        return FunctionOperator(spec, broadcast=broadcast_states(self._function))

    def _context(self, table: RangeTable, attempt: Attempt) -> TaskContext:
        context = super()._context(table, attempt)
        context.beside = self._ranges.beside(table)
        return context

    # -- results

    def broadcast_state(self, name: str) -> dict[Any, Any]:
        """A broadcast state; all instances have the same.

        Parameters
        ----------
        name : str
            The state.
        """
        states = broadcast_states(self._function)
        if name not in states:
            raise InvalidArgumentError(
                f"there is no broadcast state {name!r:.80}; there are {', '.join(states)}"
            )
        return {} if self._tables is None else self._ranges.copies(name)[0]

    def state(self, name: str, key: Any, namespace: Any = None) -> Any:
        """One keyed state of one key; see `Harness.state`."""
        if name in broadcast_states(self._function):
            raise InvalidArgumentError(
                f"state {name!r} belongs to no key: look at broadcast_state({name!r})"
            )
        return super().state(name, key, namespace)

    def set_state(self, name: str, key: Any, value: Any, namespace: Any = None) -> None:
        """Set one keyed state of one key; see `Harness.set_state`."""
        if name in broadcast_states(self._function):
            raise InvalidArgumentError(
                f"state {name!r} belongs to no key: send the broadcast rows that set it"
            )
        super().set_state(name, key, value, namespace)

    def states(self, key: Any, namespace: Any = None) -> dict[str, Any]:
        """All keyed states of one key by name."""
        return {name: self.state(name, key, namespace) for name in keyed_states(self._function)}

    # -- snapshots

    def snapshot(self) -> BroadcastSnapshot:
        """All state as of the last epoch. It stays valid whatever the harness does next."""
        epoch, files, clock, given = self._stored_state()
        instances = () if self._tables is None else self._ranges.instance_files()
        given |= {"instances": instances, "rules": self._rules.schema}
        return BroadcastSnapshot(epoch, files, clock, given)

    @classmethod
    def restore(
        cls,
        snapshot: HarnessSnapshot,
        function: StatefulFunction,
        *,
        parallelism: int = 2,
        allow_unclaimed_state: bool = False,
    ) -> Self:
        """Make a harness that continues from a snapshot, with its times and options.

        Parameters
        ----------
        snapshot : BroadcastSnapshot
            A snapshot of any `BroadcastHarness`.
        function : KeyedBroadcastProcessFunction or VectorizedBroadcastFunction
            It may be another function than before, as after a change of the code.
        parallelism : int
            Number of instances; it may differ from before.
        allow_unclaimed_state : bool
            Drop states that `function` does not declare.

        Returns
        -------
        BroadcastHarness
            Its outputs are empty.
        """
        check_snapshot(snapshot, BroadcastSnapshot, "BroadcastHarness")
        harness = super().restore(
            snapshot,
            function,
            parallelism=parallelism,
            allow_unclaimed_state=allow_unclaimed_state,
        )
        harness._rules = InputRows((), snapshot._given["rules"])
        if harness._tables is not None:
            files = snapshot._given["instances"]
            try:
                harness._ranges.restore_instances(files, allow_unclaimed_state)
            except BaseException:
                harness.close()
                raise
        return harness

    def __repr__(self) -> str:
        return f"<BroadcastHarness of {type(self._function).__name__} after {self.epoch} epochs>"

    def _options_of(self, key: Any, **given: Any) -> OperatorOptions:
        return BroadcastOptions.of(key, **given, **self._more_options)

    @property
    def _ranges(self) -> BroadcastTables:
        assert isinstance(self._tables, BroadcastTables)
        return self._tables

    def _make_ranges(self, key: KeyColumns) -> RangeTables:
        options = self._options
        spec = operator_spec(self._function, options.uid, key, options.max_parallelism)
        states = broadcast_states(self._function)
        self._tables = tables = BroadcastTables(spec, self._parallelism, states)
        return tables


@dataclass(frozen=True, kw_only=True)
class BroadcastOptions(OperatorOptions):
    """The options of such an operator."""

    broadcast_event_time: str | None
    broadcast_delay_ms: int
    interleave: bool

    @property
    def broadcast(self) -> BroadcastInput | None:
        """The broadcast input, before anything is known of its columns."""
        return BroadcastInput(())

    def check(
        self, function: StatefulFunction, columns: pa.Schema | None, parallelism: int
    ) -> None:
        """Refuse options that contradict each other; see `OperatorOptions.check`."""
        owner = f"operator {self.uid!r}"
        self.spec(function, self.key_names, None)
        broadcast_states(function)
        if self.interleave:
            if None in (self.event_time, self.broadcast_event_time):
                raise InvalidArgumentError(
                    f"{owner}: interleave='event_time' puts the rows of both inputs in the order "
                    "of their times: give event_time= and broadcast_event_time="
                )
            if shape(function) == "process_rows":
                raise InvalidArgumentError(
                    f"{owner}: {type(function).__name__} has process_rows, which gets all rows of "
                    "a key at once: write process, or leave interleave out"
                )
        super().check(function, columns, parallelism)


class BroadcastTables(RangeTables):
    """The tables of an operator, and those of its instances' broadcast states."""

    def __init__(
        self, operator: OperatorSpec, parallelism: int, states: Mapping[str, KeylessState[Any]]
    ) -> None:
        super().__init__(operator, parallelism)
        self._states = states
        spec = instance_spec(f"{operator.uid}, broadcast", states, operator.max_parallelism)
        self._instance_spec = spec
        self._instances = []
        for index in range(parallelism):
            instance = Instance(index, parallelism, operator.max_parallelism)
            backend = KeyedStateBackend.of(spec, instance.key_groups)
            self._instances.append((instance, RangeTable(*instance.key_groups, backend)))

    def _tables(self) -> list[RangeTable]:
        return [*super()._tables(), *(table for _, table in self._instances)]

    def beside(self, table: RangeTable) -> TaskContext:
        """The task of the broadcast states of a range's instance."""
        index = self.index(table)
        _, own = self._instances[index]
        return TaskContext(own.backend, index=index, parallelism=len(self._instances))

    def _opened(self, instance: Instance, table: RangeTable) -> InstanceState:
        states = InstanceState(table.backend, instance, self._states)
        states.open()
        return states

    def copies(self, name: str) -> list[dict[Any, Any]]:
        """A state as each instance has it; nothing is changed."""
        copies = []
        for instance, table in self._instances:
            try:
                copies.append(dict(self._opened(instance, table)[name].items()))
            finally:
                table.backend.rollback()
        return copies

    @contextmanager
    def epoch(self, sealed: Callable[[], None]) -> Iterator[None]:
        """Seal all tables, if the instances' copies are equal; see `RangeTables.epoch`."""

        def checked() -> None:
            self._check_equal()
            sealed()

        with super().epoch(checked):
            yield

    def _check_equal(self) -> None:
        for name in self._states:
            first, *others = self.copies(name)
            for number, other in enumerate(others, 1):
                if repr(sorted(other.items(), key=repr)) != repr(sorted(first.items(), key=repr)):
                    raise ReplayError(
                        f"broadcast state {name!r} is {first!r:.200} on instance 0 and "
                        f"{other!r:.200} on instance {number}: what process_broadcast writes may "
                        "depend on its row, broadcast states, ctx.epoch and the times of ctx alone"
                    )

    def instance_files(self) -> TableFiles:
        """The broadcast states as of the last epoch."""
        files = self._merged([table for _, table in self._instances])
        return TableFiles.of(files, self._instance_spec, False)

    def restore_instances(self, files: Iterable[bytes], allow_unclaimed_state: bool) -> None:
        """Give each instance its copy of what was on any number of instances."""
        spec = self._instance_spec
        if isinstance(files, TableFiles):
            spec = continued(spec, files, allow_unclaimed_state)
            allow_unclaimed_state = True  # the rest was compared
        files = list(files)
        if not files:
            return
        old = KeyedStateBackend.of(spec)
        try:
            old.restore(
                [io.BytesIO(data) for data in files], allow_unclaimed_state=allow_unclaimed_state
            )
            for instance, table in self._instances:
                InstanceState(table.backend, instance, self._states).redistribute(old)
                out = io.BytesIO()
                with table.backend.seal() as snapshot:
                    snapshot.write(out)
                table.files = [out.getvalue()]
        finally:
            old.close()
