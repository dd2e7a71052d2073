"""A harness for operators that pass rows on or rank them, such as `deduplicate` and `top`.

Thread safety: a `RowHarness` belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import pyarrow as pa

from pystate.base.arguments import nearest, text
from pystate.checkpoint.refs import INPUT
from pystate.errors import InvalidArgumentError
from pystate.operators.runtime.invalid_rows import harness_rule
from pystate.operators.runtime.late_rows import PROCESS_LATE, late_tag
from pystate.operators.runtime.output import SchemaLike
from pystate.operators.runtime.row_operator import RowInput, RowOperation, RowSpec
from pystate.operators.runtime.task import Operator, TaskContext
from pystate.state.operator_spec import OperatorSpec
from pystate.tables.options import checked_parallelism
from pystate.testing.clock import HarnessInput
from pystate.testing.epochs import Attempt, Watched
from pystate.testing.input_rows import InputRows, key_of
from pystate.testing.operator_harness import OperatorHarness, kept_arguments
from pystate.testing.range_tables import RangeTable
from pystate.types.durations import Duration, delay_milliseconds
from pystate.types.keys import KeyColumns, whole
from pystate.types.state_type import parse_type


class RowHarness(OperatorHarness):
    """Runs ``deduplicate`` or ``top`` over rows that a test feeds it, epoch by epoch.

    Parameters
    ----------
    operator : Deduplicate or Top
        The operator: ``ps.testing.Top(5, by="price")``.
    key : str or sequence of str
        The key columns.
    columns : str, mapping or pyarrow.Schema
        The input's columns.
    event_time : str, optional
        The column of the rows' times.
    allowed_delay : str, timedelta or int in milliseconds, optional
        Move the watermark after each epoch to the largest event time seen minus this, as a job
        does. Otherwise only `advance_watermark` moves it.
    late : {"process", "drop"} or str
        What happens to rows below the watermark; as in `KeyedFrame.deduplicate`.
    initial_rows : rows, optional
        Rows of the time before the first epoch, as for ``key_by(initial_rows=...)``.
    processing_time : int or datetime
        The first epoch's processing time.
    parallelism, max_parallelism : int
        Number of key-group ranges, and of key groups.
    batch_rows : int
        The most rows that the operator gets at once.
    uid : str
        The operator's name in errors.
    max_ahead, invalid : optional
        As in `Job.key_by`.
    on_invalid : {"drop", "fail"}
        What becomes of rows that cannot be processed, as in `Job`.
    table_home : {"heap", "disk"}
        Where the tables are, as in `Job`. On disk each epoch begins without a row in memory: all
        that the operator asks for comes from files.

    Notes
    -----
    Every call of `process`, `advance_watermark` and `advance_processing_time` is one epoch. The
    rows of an epoch come in the order in which they are given, as with ``key_by(order_by=...)``;
    ``keep="first"`` with an event time sorts them by it first, as a job does.

    Examples
    --------
    >>> import pystate as ps
    >>> with ps.testing.RowHarness(
    ...     ps.testing.Deduplicate(within="1 min"), "id", columns="id string, at long",
    ...     event_time="at",
    ... ) as harness:
    ...     [tuple(row) for row in harness.process([("a", 0), ("a", 59_999), ("a", 60_000)])]
    [('a', 0), ('a', 60000)]
    """

    def __init__(
        self,
        operator: RowOperation,
        key: str | Sequence[str],
        *,
        columns: SchemaLike,
        event_time: str | None = None,
        allowed_delay: Duration | None = None,
        late: Literal["process", "drop"] | str = PROCESS_LATE,
        initial_rows: Any = None,
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
        owner = self._owner = f"operator {text(uid, 'RowHarness: uid')!r}"
        checked_parallelism(max_parallelism)
        names = (key,) if isinstance(key, str) else tuple(key)
        rows = InputRows(names, columns)
        schema = rows.declared
        delay = (
            None if allowed_delay is None else delay_milliseconds(allowed_delay, "allowed_delay")
        )
        if event_time is None and (delay is not None or late != PROCESS_LATE):
            raise InvalidArgumentError(
                f"{owner}: allowed_delay and late are about how late rows are by their event time: "
                "also name its column, event_time='column'"
            )
        if event_time is not None and event_time not in schema.names:
            raise InvalidArgumentError(
                f"{owner}: event_time={event_time!r} is not a column; columns: "
                f"{', '.join(schema.names)}{nearest(event_time, schema.names)}"
            )
        stored_key = key_of(schema, names)
        key_names = tuple(name for name, _ in stored_key)
        self._keys = tuple((each, parse_type(schema.field(each).type, owner)) for each in names)
        if not isinstance(operator, RowOperation):
            raise InvalidArgumentError(
                f"{owner}: {operator!r:.80} is no ps.testing.Deduplicate or Top, and no other "
                "operation on rows"
            )
        self._spec = operator.spec(
            RowInput(
                owner,
                names,
                key_names,
                [(field.name, field.type) for field in schema],
                event_time,
                False,
                late,
                self._finder(schema),
            )
        )
        rule = harness_rule(owner, event_time, max_ahead, invalid, on_invalid)
        super().__init__(
            OperatorSpec(uid, stored_key, self._spec.states(), max_parallelism=max_parallelism),
            [HarnessInput(INPUT, key_names, rows, event_time, delay, rule)],
            parallelism=parallelism,
            batch_rows=batch_rows,
            processing_time=processing_time,
            arguments=arguments,
            table_home=table_home,
            tags=[tag for tag in dict.fromkeys([late_tag(late), rule.tag]) if tag is not None],
        )
        if initial_rows is not None:
            self._begin_with_rows({INPUT: initial_rows})

    def _finder(self, schema: pa.Schema) -> Callable[[Any, str], Sequence[str]]:
        def find(name: Any, what: str) -> Sequence[str]:
            if name not in schema.names:
                raise InvalidArgumentError(
                    f"{self._owner}: {what}: {name!r:.80} is not a column; columns: "
                    f"{', '.join(schema.names)}{nearest(name, schema.names)}"
                )
            return (name,)

        return find

    def _operator(self, table: RangeTable, attempt: Attempt) -> Operator:
        operator: Operator = self._spec.make()
        # A job, too, makes structs of the fields that come with what the operator adds.
        if self._spec.added is not None and len(self._keys) < len(self._spec.key):
            operator = _WithStructs(operator, self._spec, self._keys)
        return Watched(operator, attempt)

    def _batches(self, given: Mapping[str, Any]) -> dict[str, pa.RecordBatch]:
        batches = super()._batches(given)
        # Rows come in the order in which they are given only if no other is known.
        if self._spec.sorted_by is None:
            return batches
        return {name: rows.sort_by(self._spec.sorted_by) for name, rows in batches.items()}

    def process(self, rows: Any = ()) -> list[Any]:
        """Run one epoch over some rows; return those that it emits, as named tuples.

        Parameters
        ----------
        rows : iterable of mapping or tuple, mapping, RecordBatch, Table or DataFrame of pandas
            The rows. An epoch without rows is one, too.
        """
        return self._process({INPUT: rows})

    def advance_watermark(self, to: int | datetime) -> list[Any]:
        """Move the watermark, and run an epoch without rows; return what it emits.

        Parameters
        ----------
        to : int or datetime
            Milliseconds since 1970, or a datetime with a time zone.

        Raises
        ------
        InvalidArgumentError
            It would go back.
        """
        return self._epoch({}, self._clock.with_watermark(to))

    def drain(self, rows: Any = ()) -> list[Any]:
        """Run an epoch and end event time after its rows, as a job with ``drain=True`` does.

        Parameters
        ----------
        rows : iterable of mapping or tuple, mapping, RecordBatch, Table or DataFrame of pandas
            As for `process`; none by default.

        Raises
        ------
        NoEventTimeError
            The operator has no event time, and no watermark either.
        """
        return self._drain({INPUT: rows})

    def __repr__(self) -> str:
        return f"<RowHarness of {type(self._spec).__name__} after {self.epoch} epochs>"


class _WithStructs(Operator):
    """An operator that emits structs in place of their fields in the key."""

    def __init__(self, operator: Operator, spec: RowSpec, keys: KeyColumns) -> None:
        self._operator, self._spec, self._keys = operator, spec, keys

    def open(self, task: TaskContext) -> None:
        """See `Operator.open`."""
        self._operator.open(task)

    def process(self, rows: Any, input: str = INPUT) -> Iterator[Any]:
        """See `Operator.process`."""
        return map(self._with_structs, self._operator.process(rows, input))

    def finish(self) -> Iterator[Any]:
        """See `Operator.finish`."""
        return map(self._with_structs, self._operator.finish())

    def close(self) -> None:
        """See `Operator.close`."""
        self._operator.close()

    def _with_structs(self, piece: Any) -> Any:
        more = piece.schema.names[len(self._spec.key) :]
        arrays = [whole(piece, name, type_) for name, type_ in self._keys]
        names = [*(name for name, _ in self._keys), *more]
        return pa.RecordBatch.from_arrays([*arrays, *map(piece.column, more)], names)
