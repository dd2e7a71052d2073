"""The shapes of a stateful function, and how each is called for rows and for timers.

A function of two inputs is called for each of them as one of the other shapes is.

Thread safety: an object belongs to its task.
"""

from __future__ import annotations

import inspect
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import GeneratorType
from typing import Any, NoReturn, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at

from pystate._core import calls, core
from pystate.base.notes import add_note
from pystate.errors import EvaluationError, InvalidArgumentError, NoCurrentKeyError, WrongTypeError
from pystate.operators.functions.binding import instead_of_missing, takes_rows
from pystate.operators.functions.context import RuntimeContext
from pystate.operators.runtime.function_spec import FunctionSpec
from pystate.operators.runtime.grouping import grouped_columns, grouped_rows, take_rows
from pystate.operators.runtime.late_rows import SIDES, SideName
from pystate.operators.runtime.output import OUTPUT_ROWS, written_at
from pystate.operators.runtime.rows import RowFactory, key_maker, python_values
from pystate.tables.backend import KeyedStateBackend
from pystate.tables.timers import DueTimers, TimeDomain
from pystate.types.arrays import hash_keys, reference
from pystate.types.keys import leaf
from pystate.types.state_type import StateType

#: Timers that are read from the table at once.
_TIMERS = 8_192
#: The same if callbacks keep registering timers that are due, too.
_FEW_TIMERS = 16
_LONG = StateType("long")

_ROWS_KEYS = (
    "in a VectorizedFunction each row has its own: take a state's values(keys) or "
    "update_all(keys, values), or make row i's key current first with keys.select(i)"
)

#: Yields the function's output, and returns how many timers have fired.
Firing: TypeAlias = "Generator[Any, None, int]"
#: The most due timers that callbacks may register for a key in an epoch: this many in any case, and
#: this many for each of its timers that was there before.
_MOST, _MOST_EACH = 1_000_000, 1_000
#: The most that callbacks may register for keys in one place, while none of their timers fires at a
#: later time than those before.
_MOST_STILL = 100_000
#: Keys are counted by their hashes modulo this, so that the room does not grow with the keys: the
#: counts of keys that are in one place add up.
_PLACES = 1 << 16
#: Of batches with less than this many timers one in `_SAMPLED` is looked at, on average, and stands
#: for those since the last one: timers that are due again come one at a time.
_SMALL, _SAMPLED = 256, 16
_Times: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
_Counts: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(slots=True)
class Call:
    """A method of a function that is called for rows, keys or timers."""

    keyed: Any
    """Its `key` is that of the call; None for calls of many keys or of none."""
    place: Callable[[], str]
    """Says where the method is written."""


class Run(Protocol):
    """What the calls use of a function's run in a task."""

    spec: FunctionSpec
    backend: KeyedStateBackend
    context: RuntimeContext
    named: bool
    """Whether there are namespaces."""
    row_clock: Callable[[int | None], None] | None
    """Sets the backend's event time before each row or timer, if a state needs it."""
    drain: bool
    """Whether event time ends after the rows."""
    firing: FiringLimit
    """Makes sure that timers come to an end."""
    call: Call | None
    """Which method is called, for errors about what it emits aside."""

    @property
    def watermark_ms(self) -> int | None:
        """The watermark with which the epoch ends, as far as it is known before its rows are."""

    def leave_namespace(self) -> None:
        """Go back to the default namespace, after a call that may have left it."""


class Calls(ABC):
    """How a function of one shape is called for an input; the shapes below fill it in.

    Method, key columns and columns are given if they are not the shape's own and those of the
    specification.
    """

    #: Whether a call handles one key, which is the current one.
    one_key = True
    method = "process"

    def __init__(
        self,
        run: Run,
        method: str | None = None,
        key: tuple[str, ...] | None = None,
        columns: tuple[str, ...] | None = None,
    ) -> None:
        self.run = run
        self.method = method or type(self).method
        self.key = run.spec.key if key is None else key
        self.columns = run.spec.columns if columns is None else columns
        self.function: Any = run.spec.function
        self.context = run.context
        self.backend = run.backend
        self.output = run.spec.output

    @abstractmethod
    def process(self, rows: pa.RecordBatch, times: pa.Array[Any] | None) -> Iterator[Any]:
        """Handle rows; `times` are their event times."""

    def finish(self) -> Iterator[Any]:
        """Handle the end of the rows."""
        return iter(())

    def fire(self, domain: TimeDomain, until: int) -> Firing:
        """Call the function for every due timer, and for due timers that it registers meanwhile."""
        self.context.time_domain = domain
        most, fired = _TIMERS, 0
        while True:
            fits = self.backend.below.most_keys(_TIMERS)
            due = self.backend.due_timers(domain, until, min(most, fits))
            if due is None:
                break
            handled = yield from self.on_due(due, domain)
            fired += handled
            self.run.firing.check(due, handled, domain)
            # If a due timer was registered meanwhile, the rest of the batch is read again.
            most = max(_FEW_TIMERS, 2 * handled) if due.stale else 2 * most
            most = min(most, _TIMERS)
        self.context.time_domain = None
        return fired

    def on_due(self, due: DueTimers, domain: TimeDomain) -> Firing:
        """Call the function for some timers, which rows without keys do not have."""
        raise NotImplementedError

    def read(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The columns that the function gets as Python values."""
        return rows

    def key_columns(self, rows: pa.RecordBatch) -> list[pa.Array[Any]]:
        """The key columns of some rows."""
        return [leaf(rows, name) for name in self.key]

    def returns(self, method: str) -> bool:
        """Whether a method's return value must be checked; a generator need not be."""
        return not inspect.isgeneratorfunction(getattr(self.function, method))

    def refuse(self, method: str, returned: object, wanted: str) -> NoReturn:
        """Raise the error for a return value that is not rows."""
        name, shown = type(self.run.spec.function).__name__, " ".join(repr(returned).split())
        raise WrongTypeError(
            f"operator {self.context.uid!r}: {name}.{method} returned {shown:.80} of type "
            f"{type(returned).__qualname__}: {wanted}"
        )

    def batches(self, method: str, returned: Any) -> Iterable[Any]:
        """The batches that a method of a vectorised function has returned or will yield."""
        if returned is None:
            return ()
        if not are_batches(returned):
            self.refuse(
                method, returned, "yield or return RecordBatches, Tables or dicts of arrays"
            )
        batches: Iterable[Any] = [returned] if is_batch(returned) else returned
        return batches

    def note(self, error: Exception, method: str, what: str) -> None:
        """Add a note to a user's error that says where it happened."""
        function = self.run.spec.function
        where = f"{type(function).__name__}.{method} of operator {self.context.uid!r}"
        add_note(error, f"in {where}: {what}{instead_of_missing(error, function)}")

    def remember_call(self, method: str, keyed: Any = None) -> None:
        """Remember which method is called from now on, and what has the key."""
        self.run.call = Call(keyed, partial(self._place, method))

    @contextmanager
    def noting_errors(self, method: str, what: str) -> Iterator[None]:
        """Note where it happened on an error of a call for many keys, or for none."""
        try:
            yield
        except WrongTypeError:
            raise  # it names the operator, and the state or column
        except Exception as error:
            self.note(error, method, what)
            raise

    def _place(self, method: str) -> str:
        """Where a method of the function is written."""
        kind, name = type(self.run.spec.function), method or self.method
        return f"{kind.__name__}.{name}{written_at(getattr(kind, name, None))}"

    def keyless(self, error: NoCurrentKeyError, advice: str) -> None:
        """Add advice to the error for a missing current key."""
        where, missing, _ = str(error).partition("no key is current")
        if missing:
            error.args = (f"{where}{missing}: {advice}",)

    def key_values(self, columns: Sequence[pa.Array[Any]]) -> Iterable[Any]:
        """The keys as a function sees them: values, or tuples if there are several columns."""
        values = map(python_values, columns, self.key)
        if self.run.spec.key_types:
            return map(key_maker(self.run.spec.key_types, self.key), zip(*values, strict=True))
        return next(values) if len(columns) == 1 else zip(*values, strict=True)


class RowsOut(Calls):
    """Base of the shapes that yield rows, which are collected into batches."""

    #: So many rows are turned into a batch.
    most = OUTPUT_ROWS

    def __init__(self, run: Run, *of: Any) -> None:
        super().__init__(run, *of)
        self.emitted = self.output.collector()
        #: Values of these types can be iterated over.
        self.iterables: set[type] = {list, GeneratorType}

    def check(self, method: str, returned: object) -> None:
        """Refuse a value that cannot be rows: a single row, a batch, a number."""
        if not are_rows(returned):
            self.refuse(
                method,
                returned,
                "yield rows, each of them a tuple, Row or dict, or return a list of them"
                + ("; a VectorizedFunction emits batches" if is_arrow_batch(returned) else ""),
            )
        if not isinstance(returned, tuple):
            self.iterables.add(type(returned))

    def checked(self, method: str, *, returns: bool) -> tuple[set[type], Any]:
        """What a loop of the core checks return values with."""
        return self.iterables, partial(self.check, method) if returns else None

    def drain(self, method: str = "") -> Iterator[Any]:
        """Output the collected rows; errors about them say which method has yielded them."""
        if len(self.emitted):
            try:
                yield from self.output.pieces(self.emitted)
            except WrongTypeError as error:
                begin = "" if "; yielded for key " in str(error) else "; yielded"
                raise WrongTypeError(f"{error}{begin} by {self._place(method)}") from None


class KeyedCalls(RowsOut):
    """Base of `KeyedProcessFunction`'s shapes: `on_timer`, and rows that are held back."""

    def __init__(self, run: Run, *of: Any) -> None:
        super().__init__(run, *of)
        self._timers_return = self.returns("on_timer")

    def fire(self, domain: TimeDomain, until: int) -> Firing:
        """Call the function for every due timer."""
        fired = yield from super().fire(domain, until)
        yield from self.drain("on_timer")
        self.context.timestamp = None
        return fired

    def on_due(self, due: DueTimers, domain: TimeDomain) -> Firing:
        """Call the function for some timers."""
        run, context = self.run, self.context
        timed = domain == "event"
        if not timed:
            context.timestamp = None
        loop = calls.TimerLoop(
            due,
            list(self.key_values(due.keys.key_arrays())),
            timed,
            self.function.on_timer,
            context,
            self.emitted,
            self.checked("on_timer", returns=self._timers_return),
            run.row_clock,
            run.leave_namespace if run.named else None,
        )
        self.remember_call("on_timer", loop)
        while self.fired(loop, "on_timer"):
            yield from self.drain("on_timer")
        return loop.fired

    def fired(self, loop: calls.TimerLoop, method: str, *, to_end: bool = False) -> bool:
        """Call the function for more timers, until output is due or the loop ends."""
        try:
            return loop.run(self.most, to_end)
        except Exception as error:
            if loop.calling:
                self.note(error, method, f"key {loop.key!r:.80}, timer {loop.timestamp}")
            raise


class RowCalls(KeyedCalls):
    """`KeyedProcessFunction.process`: one call per row, keys looked up a batch at a time."""

    def __init__(self, run: Run, *of: Any) -> None:
        super().__init__(run, *of)
        self._factory = RowFactory(self.columns)

    def process(self, rows: pa.RecordBatch, times: pa.Array[Any] | None) -> Iterator[Any]:
        """Call the function for each row of a batch."""
        columns, names = self.key_columns(rows), rows.schema.names
        # A key that is a column is the same object as in the row.
        own = len(self.key) == 1 and self.key[0] in names and not self.run.spec.key_types
        return self._call_each(
            columns,
            names.index(self.key[0]) if own else list(self.key_values(columns)),
            self._factory.source(rows),
            None if times is None else reference(times, _LONG),
        )

    def process_elements(
        self,
        columns: Sequence[pa.Array[Any]],
        keys: Iterable[Any],
        rows: Iterable[Any],
        times: Sequence[int | None] | None = None,
    ) -> Iterator[Any]:
        """Call the function for each row with its key."""
        return self._call_each(
            columns, list(keys), list(rows), None if times is None else list(times)
        )

    def _call_each(
        self,
        columns: Sequence[pa.Array[Any]],
        key_of: int | list[Any],
        rows: calls.RowSource | list[Any],
        times: core.ArrayRef | list[Any] | None,
    ) -> Iterator[Any]:
        run, method = self.run, self.method
        loop = calls.RowLoop(
            self.backend.keys(columns),
            rows,
            key_of,
            None if times is None else calls.ColumnReader(times),
            getattr(self.function, method),
            self.context,
            self.emitted,
            self.checked(method, returns=self.returns(method)),
            run.row_clock,
            run.leave_namespace if run.named else None,
        )
        self.remember_call(method, loop)
        more = True
        while more:
            try:
                more = loop.run(self.most)
            except Exception as error:
                if loop.calling:
                    self.note(error, method, f"key {loop.key!r:.80}")
                raise
            yield from self.drain()
        self.context.timestamp = None


class KeyRowsCalls(KeyedCalls):
    """`KeyedProcessFunction.process_rows`: one call per key with all of its rows.

    The task's rows of the epoch are held until the input ends.
    """

    method = "process_rows"

    def __init__(self, run: Run, *of: Any) -> None:
        super().__init__(run, *of)
        self._batches: list[pa.RecordBatch] = []
        self._times: list[pa.Array[Any]] = []

    def process(self, rows: pa.RecordBatch, times: pa.Array[Any] | None) -> Iterator[Any]:
        """Hold rows, of which the keys can be Python values."""
        for column, name in zip(self.key_columns(rows), self.key, strict=True):
            if at.is_temporal(column.type):
                python_values(column, name)
        self._batches.append(rows)
        if times is not None:
            self._times.append(times)
        return iter(())

    def read(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The key columns."""
        return pa.RecordBatch.from_arrays(self.key_columns(rows), names=list(self.key))

    def finish(self) -> Iterator[Any]:
        """Call the function for each key, in order of its first row."""
        if not self._batches:
            return
        schema = self._batches[0].schema
        rows = one_batch(self._batches)
        self._batches = []
        narrow, columns = rows.schema.equals(schema), self.key_columns(rows)
        if narrow:
            keys = self.backend.keys(columns)
            order, first_rows, ends = grouped_rows(keys)
            rows = rows.take(pa.array(order))
            firsts = [column.take(pa.array(first_rows)) for column in columns]
            starts, places = [0, *ends[:-1]], first_rows
        else:
            # A key column may be too large for the type that keys have.
            order, starts = grouped_columns(columns)
            firsts = take_rows(columns, order[starts])
            keys = self.backend.keys(firsts)
            ends, places = [*starts[1:], len(order)], list(range(len(starts)))
        clock, named, method = self.run.row_clock, self.run.named, self.method
        process_rows = getattr(self.function, method)
        latest = None if clock is None else self._latest(order, starts)
        self.remember_call(method, self.emitted)
        for i, key in enumerate(self.key_values(firsts)):
            keys.select(places[i])
            if clock is not None:
                clock(latest[i] if latest is not None else None)
            first = starts[i]
            if narrow:
                batch = rows.slice(first, ends[i] - first)
            else:
                batch = _as_declared(rows.take(pa.array(order[first : ends[i]])), schema)
            self.emitted.key = key
            try:
                result = process_rows(key, batch, self.context)
                if result is not None:
                    self.check(method, result)
                    self.emitted.extend(result)
            except Exception as error:
                self.note(error, method, f"key {key!r:.80}")
                raise
            if len(self.emitted) >= OUTPUT_ROWS:
                yield from self.drain()
            if named:
                self.run.leave_namespace()
        yield from self.drain()

    def _latest(
        self, order: np.ndarray[Any, Any], starts: Sequence[int]
    ) -> list[int | None] | None:
        """The largest event time of each key's rows."""
        if not self._times:
            return None
        times = pa.chunked_array(self._times).combine_chunks()
        self._times = []
        unknown = np.iinfo(np.int64).min
        values = times.fill_null(int(unknown)).to_numpy(zero_copy_only=False)[order]
        latest = np.maximum.reduceat(values, starts)
        return [None if value == unknown else value for value in latest.tolist()]


class VectorCalls(Calls):
    """`VectorizedFunction.process`: one call per batch."""

    one_key = False

    def process(self, rows: pa.RecordBatch, times: pa.Array[Any] | None) -> Iterator[Any]:
        """Call the function for a batch."""
        keys = self.backend.keys(self.key_columns(rows))
        if self.run.row_clock is not None:
            self.run.row_clock(None if times is None else pc.max(times).as_py())
        yield from self._emit(self.method, keys, rows)

    def on_due(self, due: DueTimers, domain: TimeDomain) -> Firing:
        """Call the function for some timers."""
        timestamps = due.timestamps
        if self.run.row_clock is not None:
            self.run.row_clock(int(timestamps.max()) if domain == "event" else None)
        due.fire_all()
        yield from self._emit("on_timers", due.keys, timestamps)
        self.run.leave_namespace()
        return len(timestamps)

    def _output(self, method: str, value: object) -> list[Any]:
        try:
            return self.output.from_value(value)
        except WrongTypeError as error:
            raise WrongTypeError(f"{error}; yielded by {self._place(method)}") from None

    def _emit(self, method: str, keys: Any, rows: Any) -> Iterator[Any]:
        self.backend.clear_current_key()
        what = "timers" if method == "on_timers" else "rows"
        self.remember_call(method)
        try:
            with self.noting_errors(method, f"a batch of {len(rows)} {what}"):
                result = getattr(self.function, method)(keys, rows, self.context)
                for value in self.batches(method, result):
                    yield from self._output(method, value)
        except NoCurrentKeyError as error:
            self.keyless(error, _ROWS_KEYS)
            raise


def is_batch(value: object) -> bool:
    """Whether an output of a vectorised function is a batch."""
    return is_arrow_batch(value) or isinstance(value, dict)


def is_arrow_batch(value: object) -> bool:
    """Whether a value is a batch for any function; to other functions a dict is one row."""
    return isinstance(value, (pa.RecordBatch, pa.Table))


def are_rows(returned: object) -> bool:
    """Whether a function's return value can be iterated over row by row.

    A tuple cannot: it is one row, and each of its values would be taken for a row.
    """
    if isinstance(returned, tuple):
        return not returned
    return (
        isinstance(returned, Iterable)
        and not isinstance(returned, (str, bytes, bytearray, Mapping, pa.RecordBatch, pa.Table))
        and not _is_frame(returned)
    )


def are_batches(returned: object) -> bool:
    """Whether a vectorised function's return value is a batch, or an iterable of batches."""
    if is_batch(returned):
        return True
    return (
        isinstance(returned, Iterable)
        and not isinstance(returned, (str, bytes, bytearray))
        and not _is_frame(returned)
    )


def _is_frame(value: object) -> bool:
    return hasattr(value, "columns") and hasattr(value, "to_numpy")


def one_batch(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """All rows in one batch; columns have 64-bit offsets if 32 bits do not suffice."""
    table = pa.Table.from_batches(batches)
    combined = table.combine_chunks().to_batches()
    if len(combined) > 1:
        wide = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
        fields = [pa.field(f.name, wide.get(f.type, f.type)) for f in table.schema]
        combined = table.cast(pa.schema(fields)).combine_chunks().to_batches()
    if len(combined) > 1:
        raise InvalidArgumentError(
            "process_rows: one nested column of a task's rows in one epoch takes more than 2 GiB: "
            "take more partitions or smaller epochs, or write process, which takes them one by one"
        )
    return combined[0]


def _as_declared(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Some of those rows, with the input's column types."""
    try:
        columns = [c.cast(field.type) for c, field in zip(rows.columns, schema, strict=True)]
    except pa.ArrowInvalid as error:
        raise InvalidArgumentError(
            f"process_rows: the {rows.num_rows} rows of one key in one epoch take more than 2 GiB "
            f"in one column: write process, which takes them one by one ({error})"
        ) from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class TwoInputs(Calls):
    """Base of the shapes of two inputs."""

    _inputs: dict[SideName, Calls]

    def input(self, name: SideName) -> Calls:
        """How the function is called for rows of an input."""
        return self._inputs[name]

    def process(self, rows: pa.RecordBatch, times: pa.Array[Any] | None) -> Iterator[Any]:
        """Not of this shape: rows are those of an input."""
        raise NotImplementedError

    def finish(self) -> Iterator[Any]:
        """Handle the end of both inputs: rows that were held back, first those of the left one."""
        for name in SIDES:
            yield from self._inputs[name].finish()

    def _columns_of(self, run: Run, name: SideName) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The key columns and all columns of an input."""
        right = run.spec.right
        assert right is not None, "a function of two inputs"
        if name == "left":
            return run.spec.key, run.spec.columns
        return right.key, right.columns


class CoCalls(TwoInputs, KeyedCalls):
    """`KeyedCoProcessFunction`: a call per row, or one per key and input with all of its rows."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._inputs = {}
        for name in SIDES:
            kind: type[Calls] = RowCalls
            method = f"process_{name}"
            if takes_rows(run.spec.function, name):
                kind, method = KeyRowsCalls, f"process_{name}_rows"
            self._inputs[name] = kind(run, method, *self._columns_of(run, name))


class CoVectorCalls(TwoInputs):
    """`VectorizedCoFunction`: one call per batch of an input."""

    one_key = False

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._inputs = {
            name: VectorCalls(run, f"process_{name}", *self._columns_of(run, name))
            for name in SIDES
        }

    def on_due(self, due: DueTimers, domain: TimeDomain) -> Firing:
        """Call the function for some timers."""
        return self._inputs["left"].on_due(due, domain)


class FiringLimit:
    """Makes sure that an epoch's timers come to an end.

    A callback that always registers a timer which is due already would never end. What is
    legitimate are chains: one timer each second through the hours for which a stream stood still,
    or to the end of event time in a drain. So each key has a bound of its own, which no chain of
    use reaches. A chain gets on: of timers that register others at the same time or before, the
    bound is lower, so that one does not wait long for the error.
    """

    def __init__(self, uid: str) -> None:
        self._uid = uid
        #: Of the keys in each place, how many timers have fired since the first one registered
        #: another, and how many due ones they have registered; empty before.
        self._fired = self._registered = np.zeros(0)
        #: The same of the batches that were not looked at.
        self._unseen_fired = self._unseen_registered = 0
        #: By domain, for the keys in each place: the latest time of a timer that has fired, and how
        #: many were registered since the first one of that time.
        self._latest: dict[TimeDomain, _Times] = {}
        self._still: dict[TimeDomain, _Counts] = {}
        self._random = random.Random(0)

    def check(self, due: DueTimers, fired: int, domain: TimeDomain) -> None:
        """After the first `fired` of some due timers have fired, count what they have registered.

        A key that keeps registering timers is an EvaluationError.
        """
        registered = due.missed
        if not fired or not (registered or len(self._fired)):
            return
        self._unseen_fired += fired
        self._unseen_registered += registered
        if fired < _SMALL and self._random.random() * _SAMPLED >= 1:
            return
        if not len(self._fired):
            self._fired, self._registered = np.zeros(_PLACES), np.zeros(_PLACES)
        columns = [column.slice(0, fired) for column in due.keys.key_arrays()]
        places = (hash_keys(columns) % _PLACES).astype(np.int64)
        # Which of them has registered is not known; over many calls it is those that go on.
        np.add.at(self._fired, places, self._unseen_fired / fired)
        each = self._unseen_registered / fired
        np.add.at(self._registered, places, each)
        self._unseen_fired = self._unseen_registered = 0
        self._compare(due, places, self._count_still(due.timestamps, places, each, domain))

    def _count_still(
        self, times: _Times, places: _Times, registered: float, domain: TimeDomain
    ) -> _Counts:
        """How many each place's keys have registered without getting on."""
        if domain not in self._latest:
            self._latest[domain] = np.full(_PLACES, np.iinfo(np.int64).min)
            self._still[domain] = np.zeros(_PLACES)
        latest, still, times = self._latest[domain], self._still[domain], times[: len(places)]
        still[places[times > latest[places]]] = 0
        np.add.at(still, places, registered)
        np.maximum.at(latest, places, times)
        return still[places]

    def _compare(self, due: DueTimers, places: _Times, still: _Counts) -> None:
        registered = self._registered[places]
        before = np.maximum(self._fired[places] - registered, 1)
        endless = np.flatnonzero(
            (registered > np.maximum(_MOST, _MOST_EACH * before))
            | (still > np.maximum(_MOST_STILL, _MOST_EACH * before))
        )
        if len(endless):
            self._refuse(due, int(endless[0]), int(registered[endless[0]]))

    def _refuse(self, due: DueTimers, i: int, registered: int) -> None:
        key = f"key {due.keys.key_at(i)!r:.80}"
        if due.keys.table.has_namespaces and due.keys.namespace_at(i) is not None:
            key += f", namespace {due.keys.namespace_at(i)!r:.80}"
        raise EvaluationError(
            f"operator {self._uid!r}: the timers of {key} have no end: when they fired they "
            f"registered about {registered} others in this epoch that were due at once, the last "
            f"at {int(due.timestamps[i])}: in the method for timers, do not each time register one "
            "at or below ctx.watermark or ctx.processing_time, and no next timer where "
            "ctx.watermark == ps.MAX_WATERMARK, which is a drain"
        )
