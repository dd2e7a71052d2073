"""A harness that runs a `ProcessFunction` in a unit test: no Spark, no Java.

Thread safety: all objects belong to one thread.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np
import pyarrow as pa

from pystate.base.arguments import integer, text
from pystate.errors import InvalidArgumentError
from pystate.operators.functions.base import StatefulFunction
from pystate.operators.functions.binding import instance_states
from pystate.operators.runtime.instance_operator import InstanceOperator
from pystate.operators.runtime.instance_state import (
    InstanceState,
    begin_with_items,
    checked_items,
    instance_spec,
)
from pystate.operators.runtime.late_rows import PROCESS_LATE
from pystate.operators.runtime.output import SchemaLike
from pystate.operators.runtime.task import Operator, TaskContext
from pystate.state.operator_state import Instance, KeylessState
from pystate.tables.backend import KeyedStateBackend
from pystate.tables.registry import unknown_state_error
from pystate.testing.epochs import Attempt
from pystate.testing.harness import Harness
from pystate.testing.input_rows import as_table
from pystate.testing.options import OperatorOptions
from pystate.testing.range_tables import RangeTable, RangeTables, TableFiles
from pystate.types.durations import Duration
from pystate.types.keys import KeyColumns

if TYPE_CHECKING:
    from pystate.operators.functions.base import ProcessFunction


class ProcessHarness(Harness):
    """Runs a `ProcessFunction` over rows that a test feeds it, an epoch at a time.

    Parameters
    ----------
    function : ProcessFunction
        An instance. As on Spark, every epoch works on a copy of it.
    schema, columns, event_time, allowed_delay, side_outputs, late, processing_time
        As for `Harness`.
    parallelism : int
        Number of instances.
    max_parallelism, batch_rows, uid, allow_pickle, max_ahead, invalid, on_invalid
        As for `Harness`.
    initial_state : Table, or what `pyarrow.table` takes, optional
        Items of lists before the first epoch, as in `OperatorFrame.process`.

    Notes
    -----
    Rows are dealt to the instances in turn: the first one of an epoch goes to instance 0.

    Examples
    --------
    >>> import pystate as ps
    >>> class Pairs(ps.ProcessFunction):
    ...     waiting = ps.OperatorListState("string")
    ...
    ...     def process(self, row, ctx: ps.InstanceContext):
    ...         self.waiting.add(row["name"])
    ...         if len(self.waiting) == 2:
    ...             yield tuple(self.waiting)
    ...             self.waiting.clear()
    >>> with ps.testing.ProcessHarness(Pairs(), parallelism=2) as harness:
    ...     harness.process([{"name": "a"}, {"name": "b"}, {"name": "c"}])
    ...     harness.rescale(1)
    ...     harness.state("waiting")
    [('a', 'c')]
    ['b']
    """

    def __init__(
        self,
        function: ProcessFunction,
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
        uid: str = "harness",
        allow_pickle: bool = True,
        max_ahead: Duration | None = None,
        invalid: str | None = None,
        on_invalid: Literal["drop", "fail"] = "drop",
    ) -> None:
        text(uid, "ProcessHarness: uid")
        super().__init__(
            function,
            (),
            schema=schema,
            columns=columns,
            event_time=event_time,
            allowed_delay=allowed_delay,
            side_outputs=side_outputs,
            late=late,
            processing_time=processing_time,
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            batch_rows=batch_rows,
            initial_state=initial_state,
            uid=uid,
            allow_pickle=allow_pickle,
            max_ahead=max_ahead,
            invalid=invalid,
            on_invalid=on_invalid,
        )

    def _options_of(self, key: Any, **given: Any) -> OperatorOptions:
        return _InstanceOptions.of(key, **given)

    def _begin_with_state(self, state: Any, timers: Any) -> None:
        what = f"operator {self._options.uid!r}: initial_state"
        try:
            self._ranges.begin_with(as_table(state, what))
        except BaseException:
            self.close()
            raise

    def rescale(self, parallelism: int) -> None:
        """Change the number of instances, as a job does between two epochs.

        The states are redistributed at the beginning of the next epoch.

        Parameters
        ----------
        parallelism : int
            The new number of instances.
        """
        self._options.check(self._function, self._rows.schema, parallelism)
        before = self._ranges
        files = before.files()
        self._parallelism = parallelism
        self._make_ranges(()).restore(files, True)
        before.close()

    def state(self, name: str, key: Any = 0, namespace: Any = None) -> Any:
        """One state of an instance, as of the last epoch.

        Parameters
        ----------
        name : str
            The state's name.
        key : int
            The number of the instance; 0 by default.
        namespace : None
            There are none.

        Returns
        -------
        list or dict
            The items of a list, the streams of a raw state (by key group if it has one per key
            group).
        """
        ranges = self._ranges
        index = integer(key, "state: the instance", least=0, most=len(ranges) - 1)
        return ranges.look(name, index, namespace)

    def states(self, key: Any = 0, namespace: Any = None) -> dict[str, Any]:
        """All states of an instance by name; parameters and values are those of `state`."""
        return super().states(key, namespace)

    def set_state(self, name: str, key: Any, value: Any, namespace: Any = None) -> NoReturn:
        """Refuse: what instances have belongs to no key."""
        raise InvalidArgumentError(
            f"state {name!r:.80} of a ProcessFunction belongs to no key: begin with "
            "initial_state=, or send the rows that fill it"
        )

    def keys(self) -> NoReturn:
        """Refuse: there are no keys."""
        raise InvalidArgumentError("a ProcessFunction has no keys: state(name, instance) has all")

    @property
    def _ranges(self) -> _InstanceTables:
        assert isinstance(self._tables, _InstanceTables)
        return self._tables

    def _make_ranges(self, key: KeyColumns) -> _InstanceTables:
        options = self._options
        self._tables = tables = _InstanceTables(
            self._function, options.max_parallelism, self._parallelism, options.uid
        )
        return tables

    def _dealt(
        self, name: str, rows: pa.RecordBatch, ranges: RangeTables
    ) -> Iterator[pa.RecordBatch | None]:
        for index in range(len(ranges)):
            yield rows.take(np.arange(index, rows.num_rows, len(ranges)))

    def _operator(self, table: RangeTable, attempt: Attempt) -> Operator:
        spec = self._options.spec(attempt.copied(self._function), (), self._rows.schema)
        return InstanceOperator(spec, self._ranges.states)

    def _context(self, table: RangeTable, attempt: Attempt) -> TaskContext:
        context, old = super()._context(table, attempt), self._ranges.old
        if old is not None:
            context.old = lambda: nullcontext(old)
        return context


@dataclass(frozen=True)
class _InstanceOptions(OperatorOptions):
    """The options of an operator without a key."""

    @property
    def known_key(self) -> KeyColumns:
        return ()

    def require_state(self, function: StatefulFunction, owner: str) -> None:
        instance_states(function, owner)


class _InstanceTables(RangeTables):
    """The tables of all instances."""

    def __init__(
        self, function: StatefulFunction, max_parallelism: int, parallelism: int, uid: str
    ) -> None:
        states = instance_states(function, f"operator {uid!r}")
        self.states: Mapping[str, KeylessState[Any]] = states
        #: The rows of the instances before a change of their number, until the next epoch is over.
        self.old: KeyedStateBackend | None = None
        super().__init__(instance_spec(uid, states, max_parallelism), parallelism)

    def instance(self, table: RangeTable) -> Instance:
        """The instance that a table belongs to."""
        return Instance(self.index(table), len(self._ranges), self._max_parallelism)

    def state(self, table: RangeTable) -> InstanceState:
        """The state of an instance, in an open epoch."""
        return InstanceState(table.backend, self.instance(table), self.states)

    def look(self, name: str, key: Any, namespace: Any) -> Any:
        if name not in self.states:
            raise unknown_state_error(name, self.states)
        table = self._ranges[key]
        try:
            state = self.state(table)
            if self.old is not None:
                state.redistribute(self.old)
            state.open()
            handle = state[name]
            if hasattr(handle, "read"):
                return {group: handle.read(group) for group in handle.key_groups()}
            return handle.streams() if hasattr(handle, "streams") else handle.get()
        finally:
            table.backend.rollback()

    @contextmanager
    def epoch(self, sealed: Callable[[], None]) -> Iterator[None]:
        with super().epoch(sealed):
            yield
        self._forget()

    def restore(self, files: Iterable[bytes], allow_unclaimed_state: bool) -> None:
        super().restore(files, allow_unclaimed_state)
        self.old = KeyedStateBackend.of(self.operator)
        self.old.restore(
            [io.BytesIO(data) for data in files],
            allow_unclaimed_state=allow_unclaimed_state or isinstance(files, TableFiles),
        )

    def begin_with(self, items: pa.Table) -> None:
        """Fill the tables, which are empty, with items of lists that the next epoch divides."""
        what = f"operator {self.operator.uid!r}: initial_state"
        checked_items(items.column_names, self.states, what)
        most = self.operator.max_parallelism
        with KeyedStateBackend.of(self.operator) as backend:
            for rows in items.to_batches():
                begin_with_items(backend, Instance(0, 1, most), rows, what)
            if backend.dirty:
                out = io.BytesIO()
                with backend.seal() as snapshot:
                    snapshot.write(out)
                self.restore([out.getvalue()], False)

    def close(self) -> None:
        self._forget()
        super().close()

    def _forget(self) -> None:
        old, self.old = self.old, None
        if old is not None:
            old.close()
