"""What an operator begins with, in its first epoch: states and timers, items, or earlier rows.

Spark brings the rows to their ranges, as it does in front of an operator. Each task fills a table
of its own and writes the state file of its range. The tasks of the epoch then begin with these
files, as with those of an earlier epoch.

Thread safety: an object belongs to the thread that builds the pipeline, or to its task.

Invariants
----------
1. Nothing is read unless the operator is not in the epoch's base.
2. No manifest names the files before the epoch is published; they have its number, so that no
   collection removes them before. After a kill the epoch writes others, and these are orphans. An
   evaluation that is repeated in the same epoch takes the same files.
3. Rows go through the operator itself, as an epoch of their own that comes before the first
   one: no row is late, then everything up to the first epoch's late bound is done. What is emitted
   is dropped.
4. An item of a list is in one file, whichever task reads it a second time: `spread` goes by a row's
   content. Its key is no instance's, and the tasks of the epoch redistribute the items, as
   after a change of the number of instances.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from pystate.checkpoint.refs import InputState, RangeState
from pystate.epochs.listeners import CheckpointNotice
from pystate.epochs.watermarks import OperatorTime
from pystate.errors import DeclarationError, EvaluationError, InvalidArgumentError, WrongTypeError
from pystate.operators.runtime.event_time import event_times
from pystate.operators.runtime.instance_state import begin_with_items, checked_items
from pystate.operators.runtime.task import Operator
from pystate.spark.base.connection import at_once
from pystate.spark.base.environment import require_classic
from pystate.spark.base.frame_columns import FrameColumns, column_named, key_column
from pystate.spark.base.job_description import plan_name
from pystate.spark.base.routing import INSTANCE_COLUMN, RANGE_COLUMN, route, split_markers, spread
from pystate.spark.base.schemas import key_schema
from pystate.spark.tasks.arrivals import Arrivals
from pystate.spark.tasks.range_task import OperatorPlan
from pystate.state.columns import NAMESPACE
from pystate.state.kinds import declared_as
from pystate.state.operator_spec import OperatorSpec
from pystate.state.operator_state import Instance, KeylessState
from pystate.tables.backend import KeyedStateBackend
from pystate.tables.range_rows import NOT_ITS_RESULT, put_rows, put_timers, sealed_range
from pystate.tables.timers import TIMER_DOMAIN, TIMER_MS
from pystate.types.ddl import path_parts
from pystate.types.equality import present
from pystate.types.keys import describe, leaf, marked_struct

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


#: A frame, or a function that makes it once it is needed.
Given: TypeAlias = "DataFrame | Callable[[], DataFrame]"

#: Routes the frames of an operator's inputs, and names the columns that the tasks get.
Route: TypeAlias = "Callable[[Sequence[DataFrame], OperatorPlan], tuple[DataFrame, Sequence[str]]]"

#: Which rows are timers.
IS_TIMER = "__pystate_timer"


class Initial(Protocol):
    """What an operator begins with."""

    def inputs_seen(self) -> tuple[InputState, ...]:
        """What the operator has seen of its inputs."""

    def begin(self, plan: OperatorPlan) -> tuple[RangeState, ...]:
        """Write the files of all ranges; return the ranges, by index."""


def checked_given(given: Any, what: str) -> Any:
    """Return a frame, a function that makes one, or None; refuse anything else."""
    if given is not None and not callable(given):
        _frame_of(given, what)
    return given


def _frame_of(given: Any, what: str) -> DataFrame:
    """The frame that a user gave."""
    frame = require_classic(given() if callable(given) else given, what)
    if frame.isStreaming:
        raise InvalidArgumentError(
            f"{what} is a stream: what an operator begins with is read once, as a batch; read it "
            "with spark.read"
        )
    return frame


def like(columns: FrameColumns, given: Given, owner: str) -> DataFrame:
    """Earlier rows with the columns of an operator's input, in the same order."""
    what = f"{owner}: initial_rows"
    rows = _frame_of(given, what)
    types = {field.name: field.dataType for field in rows.schema}
    for field in columns.given.schema:
        if field.name not in types:
            raise InvalidArgumentError(
                f"{what} has no column {field.name!r}, and the input has one; it has "
                f"{', '.join(types)}"
            )
        mine, wanted = types[field.name].simpleString(), field.dataType.simpleString()
        if mine != wanted:
            raise WrongTypeError(
                f"{what}: column {field.name!r} is {mine}, and {wanted} in the input: cast it"
            )
    return columns.with_fields(rows).select(*map(column_named, columns.frame.columns))


class RowsOf(NamedTuple):
    """The earlier rows of one input."""

    name: str
    """The input."""
    frame: Callable[[], DataFrame]
    """Makes the frame."""
    event_time: str | None
    """The column of the rows' event time."""


class InitialRows:
    """Earlier rows of an operator's inputs."""

    def __init__(
        self,
        inputs: Sequence[RowsOf],
        routed: Route,
        make: Callable[[], Operator],
        arrivals: Arrivals,
    ) -> None:
        self._inputs = inputs
        self._routed = routed
        self._make = make
        self._arrivals = arrivals
        self._frames: list[DataFrame] = []

    def inputs_seen(self) -> tuple[InputState, ...]:
        """The largest event time of each input's rows: a query over that column alone."""
        self._frames = [given.frame() for given in self._inputs]
        latest_times = []
        for given, frame in zip(self._inputs, self._frames, strict=True):
            if given.event_time is not None:
                latest = frame.agg(F.max(column_named(given.event_time))).toArrow().column(0)
                times = event_times(latest.combine_chunks(), "the largest event time")
                latest_times.append(InputState(given.name, pc.max(times).as_py()))
        return tuple(latest_times)

    def begin(self, plan: OperatorPlan) -> tuple[RangeState, ...]:
        """Run the operator over the rows, without its output."""
        frame, names = self._routed(self._frames, plan)
        time = plan.time
        if time is not None:
            time = OperatorTime(None, time.late_bound_ms)
        before = replace(
            plan, time=time, drain=False, side_folders={}, notice=CheckpointNotice(), held=None
        )
        table = partial(_RowsTable, before, make=self._make, arrivals=self._arrivals)
        return _written_ranges(frame, _Filler(before, names, table))


@dataclass
class InitialState:
    """States and timers by key."""

    state: Given | None
    timers: Given | None

    def inputs_seen(self) -> tuple[InputState, ...]:
        """Nothing."""
        return ()

    def begin(self, plan: OperatorPlan) -> tuple[RangeState, ...]:
        """Put the states and timers into tables."""
        operator = plan.operator
        frame: DataFrame | None = None
        states: list[str] = []
        more: list[str] = []
        if self.state is not None:
            frame, states = _select(plan, self.state, timers=False)
            frame = frame.withColumn(IS_TIMER, F.lit(False))
        if self.timers is not None:
            if not operator.timers:
                raise DeclarationError(
                    f"operator {operator.uid!r}: initial_timers: the function has no on_timer"
                )
            timers, more = _select(plan, self.timers, timers=True)
            timers = timers.withColumn(IS_TIMER, F.lit(True))
            frame = timers if frame is None else frame.unionByName(timers, True)
        assert frame is not None, "a state or timers"
        keys = [name for name, _ in operator.key]
        routed = route(frame, keys, operator.max_parallelism, plan.parallelism)
        table = partial(_StateTable, plan, states=states, timers=bool(more))
        return _written_ranges(routed, _Filler(plan, frame.columns, table))


@dataclass
class InitialItems:
    """Items of an operator's lists."""

    given: Given
    states: Mapping[str, KeylessState[Any]]

    def inputs_seen(self) -> tuple[InputState, ...]:
        """Nothing."""
        return ()

    def begin(self, plan: OperatorPlan) -> tuple[RangeState, ...]:
        """Put the items into tables."""
        what = f"operator {plan.operator.uid!r}: initial_state"
        frame = _frame_of(self.given, what)
        names = checked_items(frame.columns, self.states, what)
        routed = spread(frame.select(*map(column_named, names)), plan.parallelism)
        task = _Filler(
            plan, [*names, INSTANCE_COLUMN], partial(_ItemsTable, plan, what), _instance_of
        )
        return _written_ranges(routed, task)


def initial_of(
    rows: InitialRows | None, state: Given | None, timers: Given | None, owner: str
) -> Initial | None:
    """What a user has given of an operator's beginning; None if nothing."""
    given = [("initial_state", state), ("initial_timers", timers)]
    several = [name for name, each in given if checked_given(each, f"{owner}: {name}") is not None]
    if not several:
        return rows
    if rows is not None:
        raise InvalidArgumentError(
            f"{owner}: {several[0]} and key_by(initial_rows=...) both say what the operator begins "
            "with: give one of them"
        )
    return InitialState(state, timers)


def _lacks_mark(frame: DataFrame, name: str) -> bool:
    """Whether a key column is a mark of null structs, and a frame has neither it nor the struct."""
    struct = None if name in frame.columns else marked_struct(name)
    return struct is not None and path_parts(struct)[0] not in frame.columns


def _select(plan: OperatorPlan, given: Given, *, timers: bool) -> tuple[DataFrame, list[str]]:
    """The columns of states or timers, and which of them are no key or namespace."""
    operator = plan.operator
    what = f"operator {operator.uid!r}: {'initial_timers' if timers else 'initial_state'}"
    frame = _frame_of(given, what)
    keys = [name for name, _ in operator.key]
    spaces = [] if operator.namespace is None else [NAMESPACE]
    known = [TIMER_DOMAIN, TIMER_MS] if timers else list(operator.states)
    # Marks of null structs may be left out: then there are none.
    unmarked = {name for name in keys if _lacks_mark(frame, name)}
    outer = {
        name if name in frame.columns else path_parts(marked_struct(name) or name)[0]
        for name in keys
        if name not in unmarked
    }
    needed = [*outer, *spaces, *(known if timers else ())]
    counts, declared = Counter(frame.columns), {*needed, *known}
    for name in needed:
        if counts[name] != 1:
            raise InvalidArgumentError(
                f"{what}: there is no column {name!r}, or several; the columns are "
                f"{', '.join(map(repr, frame.columns))}, and should be "
                f"{', '.join(map(repr, [*keys, *spaces, *known]))}"
            )
    for name in frame.columns:
        if name not in declared:
            raise InvalidArgumentError(
                f"{what}: nothing declares the column {name!r}; the operator has the key "
                f"{', '.join(map(repr, keys))} and the states {', '.join(map(repr, known))}"
            )
    own = [name for name in known if name in frame.columns]
    for name in () if timers else own:
        state, data_type = operator.states[name], frame.schema[name].dataType
        if state.columns(name)[0].is_accumulator and data_type.simpleString() != "binary":
            raise DeclarationError(
                f"{what}: state {name!r}: {NOT_ITS_RESULT.format(state)}, or leave it out, or give "
                "earlier rows, key_by(initial_rows=...)"
            )
    selected = frame.select(
        *(
            (F.lit(None).cast("boolean") if name in unmarked else key_column(frame, name)).alias(
                name
            )
            for name in keys
        ),
        *map(column_named, [*spaces, *own]),
    )
    key = tuple(key_schema(selected.schema, keys, what))
    if key != tuple((name, type_.ddl) for name, type_ in operator.key):
        raise WrongTypeError(
            f"{what}: the key is ({', '.join(f'{name} {ddl}' for name, ddl in key)}) there, and "
            f"({describe(operator.key)}) in the input: the type decides where a key belongs; cast "
            "it"
        )
    return selected, own


def range_report(state: RangeState) -> pa.RecordBatch:
    """What a task that writes the file of a range returns, for `reported_ranges`."""
    return pa.RecordBatch.from_pydict({"written": [json.dumps(state.encode())]})


def reported_ranges(routed: DataFrame, task: Any) -> dict[int, RangeState]:
    """Run tasks that write the files of ranges; return the ranges, by index."""
    # `mapInArrow` takes names for paths, and those of a struct's fields have dots.
    numbered = [f"c{i}" for i in range(len(routed.columns) - 1)]
    rows = routed.toDF(*numbered, RANGE_COLUMN).mapInArrow(task, "written string").collect()
    states = [RangeState.decode(json.loads(row.written), "a report", version=3) for row in rows]
    return {state.index: state for state in states}


def _written_ranges(routed: DataFrame, task: _Filler) -> tuple[RangeState, ...]:
    """Fill the tables of all ranges."""
    plan, ranges = task.plan, reported_ranges(routed, task)
    if len(ranges) != plan.parallelism:
        raise EvaluationError(
            f"{plan.describe()}: {len(ranges)} of {plan.parallelism} ranges were filled with what "
            "it begins with; this is a defect of pystate: please report it"
        )
    return tuple(ranges[index] for index in range(plan.parallelism))


class _RangeTable:
    """A range's table that is being filled, in a task."""

    def __init__(
        self, plan: OperatorPlan, index: int, operator: OperatorSpec | None = None
    ) -> None:
        self._plan = plan
        self._state = state = plan.ranges[index]
        self._backend = KeyedStateBackend.of(operator or plan.operator, state.bounds, plan.options)

    def add(self, rows: pa.RecordBatch) -> None:
        """Handle rows."""
        raise NotImplementedError

    def finish(self) -> RangeState:
        """Write the file."""
        # With the number of its epoch nobody takes the file for an orphan before that is published.
        plan = self._plan
        return sealed_range(plan.storage, self._backend, self._state, plan.operator.uid, plan.epoch)

    def close(self) -> None:
        """Free the table."""
        self._backend.close()


class _Filler:
    """The function that `mapInArrow` runs to fill the tables."""

    def __init__(
        self,
        plan: OperatorPlan,
        names: Sequence[str],
        table: Callable[[int], _RangeTable],
        owner: Callable[[pa.RecordBatch], int] | None = None,
    ) -> None:
        self.plan = plan
        self._names = list(names)
        self._table = table
        self._owner = owner
        self.__name__ = plan_name(plan.operator.uid)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Fill a range's table; yield the range."""
        plan, table = self.plan, None
        owner = _owner_of(plan) if self._owner is None else self._owner
        indices: set[int] = set()
        try:
            for batch in at_once(batches):
                rows, markers = split_markers(batch)
                indices.update(markers)
                if not rows.num_rows:
                    continue
                rows = rows.rename_columns(self._names)
                if table is None:
                    index = owner(rows)
                    indices.add(index)
                    table = self._table(index)
                table.add(rows)
            if len(indices) != 1:
                raise EvaluationError(
                    f"{plan.describe()}: a task has rows or markers of the ranges "
                    f"{sorted(indices)} instead of one; this is a defect of pystate: please "
                    "report it"
                )
            state = plan.ranges[indices.pop()] if table is None else table.finish()
            yield range_report(state)
        finally:
            if table is not None:
                table.close()


def _owner_of(plan: OperatorPlan) -> Callable[[pa.RecordBatch], int]:
    """A function that gives the range of some rows' keys."""
    router = plan.router
    keys = [name for name, _ in router.schema]

    def owner(rows: pa.RecordBatch) -> int:
        first = rows.slice(0, 1)
        [index] = router.owners([leaf(first, name) for name in keys])
        return int(index)

    return owner


class _StateTable(_RangeTable):
    """A table that states and timers are put into."""

    def __init__(self, plan: OperatorPlan, index: int, states: Sequence[str], timers: bool) -> None:
        # As files know them: without defaults and times to live.
        kept = {
            name: declared_as(state.stored_as()) for name, state in plan.operator.states.items()
        }
        super().__init__(plan, index, replace(plan.operator, states=kept))
        self._states = list(states)
        # A key's timers would make its state look as if it was there already.
        self._timers: list[pa.RecordBatch] | None = [] if timers else None

    def add(self, rows: pa.RecordBatch) -> None:
        """Handle rows."""
        mask: Any = rows.column(IS_TIMER)
        if self._timers is not None and mask.true_count:
            own = rows.filter(mask)
            self._timers.append(own.select([n for n in own.schema.names if self._is_timer(n)]))
            rows = rows.filter(pc.call_function("invert", [mask]))
        if not rows.num_rows:
            return
        backend = self._backend
        before = backend.stats().keys
        put_rows(backend, pa.Table.from_batches([rows]), self._states)
        some = pa.array([False] * rows.num_rows)
        for name in self._states:
            some = pc.call_function("or", [some, pa.array(present(rows.column(name)))])
        if backend.stats().keys - before != some.true_count:
            names = ", ".join(map(repr, (name for name, _ in backend.key)))
            spaces = "" if backend.namespace is None else f", {NAMESPACE!r}"
            raise InvalidArgumentError(
                f"{self._plan.describe(self._state.index)}: initial_state: a key stands in two "
                f"rows, and one row has all states of a key: find it with df.groupBy({names}"
                f"{spaces}).count().where('count > 1')"
            )

    def _is_timer(self, name: str) -> bool:
        return name != IS_TIMER and name not in self._states

    def finish(self) -> RangeState:
        """Write the file."""
        if self._timers:
            put_timers(self._backend, pa.Table.from_batches(self._timers))
        return super().finish()


class _RowsTable(_RangeTable):
    """A table over which an operator runs before its first epoch."""

    def __init__(
        self, plan: OperatorPlan, index: int, make: Callable[[], Operator], arrivals: Arrivals
    ) -> None:
        super().__init__(plan, index)
        self._arrivals = arrivals
        self._operator = make()
        # Nobody hears of this task: it has no side outputs, and its counts are dropped.
        self._operator.open(plan.context(self._state, self._backend, lambda tag, piece: None))
        self._is_open = True

    def add(self, rows: pa.RecordBatch) -> None:
        """Handle rows; what is emitted is dropped."""
        for input, part in self._arrivals.parts(rows, self._plan, self._state.index):
            for _ in self._operator.process(part, input):
                pass

    def finish(self) -> RangeState:
        """Do what is due, and write the file."""
        for _ in self._operator.finish():
            pass
        self._close_operator()
        return super().finish()

    def _close_operator(self) -> None:
        if self._is_open:
            self._is_open = False
            self._operator.close()

    def close(self) -> None:
        """Free the table."""
        try:
            self._close_operator()
        finally:
            super().close()


def _instance_of(rows: pa.RecordBatch) -> int:
    index: int = rows.column(INSTANCE_COLUMN)[0].as_py()
    return index


class _ItemsTable(_RangeTable):
    """A table that items are put into."""

    def __init__(self, plan: OperatorPlan, what: str, index: int) -> None:
        super().__init__(plan, index)
        self._what = what
        self._instance = Instance(index, plan.parallelism, plan.operator.max_parallelism)

    def add(self, rows: pa.RecordBatch) -> None:
        """Handle rows."""
        items = rows.drop_columns([INSTANCE_COLUMN])
        begin_with_items(self._backend, self._instance, items, self._what)
