"""A harness for the rows in flight on a loop, in a unit test: no Spark, no Java.

Thread safety: a `LoopHarness` belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from pystate.base.arguments import choice, integer, text
from pystate.checkpoint.refs import BUCKET, INPUT
from pystate.errors import LoopNotEmptyError
from pystate.operators.runtime.loop import LoopOperator, LoopSpec, LoopTable, buckets
from pystate.operators.runtime.output import SchemaLike
from pystate.operators.runtime.task import Operator, TaskContext
from pystate.testing.clock import Clock
from pystate.testing.epochs import Attempt, Pieces, compute
from pystate.testing.faults import Fault, rows_of
from pystate.testing.input_rows import InputRows
from pystate.testing.range_tables import RangeTable, RangeTables
from pystate.testing.snapshot import OperatorSnapshot, check_snapshot

if TYPE_CHECKING:
    from typing_extensions import Self


class LoopHarness:
    """Keeps the rows of a loop as a job does, epoch by epoch: see `Job.feedback`.

    Parameters
    ----------
    schema : str, mapping or pyarrow.Schema
        The columns of the loop's rows.
    parallelism : int
        Number of key-group ranges.
    max_parallelism : int
        Number of key groups.
    name : str
        The loop's name in errors.

    Attributes
    ----------
    epoch : int
        How many epochs there were.
    failures : int
        Injected failures that have happened.

    Notes
    -----
    Rows of a loop have no event time of their own: none of them is late, and a drain is an epoch as
    any other. What happens to their times is the business of the operators that read them.

    Examples
    --------
    >>> import pystate as ps
    >>> def halve(numbers, fed):
    ...     halves = [row.n // 2 for row in fed] + numbers
    ...     return [n for n in halves if n < 2], [(n,) for n in halves if n >= 2]
    >>> with ps.testing.LoopHarness("n long") as loop:
    ...     loop.run_until_empty([5, 1, 8], halve)
    [[1], [1], [1]]
    """

    def __init__(
        self,
        schema: SchemaLike,
        *,
        parallelism: int = 1,
        max_parallelism: int = 128,
        name: str = "harness",
    ) -> None:
        self._owner = f"loop {text(name, 'LoopHarness: name')!r}"
        self._arguments = {"max_parallelism": max_parallelism, "name": name}
        self._fail_at: Literal["seal", "publish"] | None = None
        self.epoch = self.failures = 0
        self._input = InputRows((), schema)
        columns = self._input.declared
        self._spec = LoopSpec.of([(field.name, field.type) for field in columns], self._owner)
        self._max_parallelism = integer(max_parallelism, f"{self._owner}: max_parallelism", least=1)
        self._ranges = self._new_tables(parallelism)

    def _new_tables(self, parallelism: int) -> RangeTables:
        most = self._max_parallelism
        integer(parallelism, f"{self._owner}: parallelism", least=1, most=most)
        return RangeTables(self._spec.operator("loop", most), parallelism)

    def rows(self) -> list[Any]:
        """Return the rows that the last epoch has fed, as named tuples, in no particular order."""
        return [
            row
            for table in self._ranges
            for batch in LoopTable(self._spec, table.backend).rows()
            for row in rows_of(batch)
        ]

    @property
    def in_flight(self) -> int:
        """How many rows the last epoch has fed."""
        return len(self.rows())

    def feed(self, rows: Any = (), *, fail_at: Literal["seal", "publish"] | None = None) -> None:
        """Run one epoch that feeds some rows, which replace those of the epoch before.

        Parameters
        ----------
        rows : iterable of mapping or tuple, mapping, RecordBatch, Table or DataFrame of pandas
            The rows.
        fail_at : {"seal", "publish"}, optional
            Fail once, before the tables are sealed, or after that and before the epoch is
            published; the epoch is then computed again.
        """
        if fail_at is not None:
            self.fail_at(fail_at)
        batch = self._input.batch(rows)
        point, self._fail_at = self._fail_at, None
        attempt = Attempt(Clock(0, self.epoch + 1), fault=Fault(at=point))
        compute(self._ranges, self._pieces(batch), self._start, attempt)
        self.failures += attempt.fault is not None and attempt.fault.happened
        self.epoch += 1

    def fail_at(self, point: Literal["seal", "publish"]) -> None:
        """Make the next epoch fail at a point of its commit; it is then computed again.

        Parameters
        ----------
        point : {"seal", "publish"}
            As for `feed`.
        """
        choice(point, f"{self._owner}: fail_at", ("seal", "publish"))
        self._fail_at = point

    def drain(self, rows: Any = ()) -> None:
        """Run one epoch that feeds some rows, as an epoch of a job with ``drain=True`` does.

        Parameters
        ----------
        rows : iterable of mapping or tuple, mapping, RecordBatch, Table or DataFrame of pandas
            The rows.
        """
        self.feed(rows)

    @property
    def late_rows(self) -> int:
        """Always 0: no row is late for a loop."""
        return 0

    def _pieces(self, batch: pa.RecordBatch | None) -> Pieces:
        """The rows that each range's task gets."""
        if batch is None:
            return [[] for _ in self._ranges]
        number = np.arange(batch.num_rows, dtype=np.int64) % buckets(len(self._ranges))
        columns = [pa.array(number), *batch.columns]
        routed = pa.RecordBatch.from_arrays(columns, names=[BUCKET, *batch.schema.names])
        parts = self._ranges.parts(routed)
        return [[] if part is None else [(INPUT, part)] for part in parts]

    def _start(self, table: RangeTable, attempt: Attempt) -> tuple[Operator, TaskContext]:
        return LoopOperator(self._spec), TaskContext(table.backend, attempt.clock.epoch)

    def run_until_empty(
        self,
        rows: Iterable[Any],
        epoch: Callable[[list[Any], list[Any]], tuple[Any, Any]],
        *,
        max_rounds: int = 1000,
    ) -> list[Any]:
        """Run epochs until no row is in flight, as `Job.run_until_empty` does.

        Parameters
        ----------
        rows : iterable
            The input of the first epoch.
        epoch : callable
            Called with an epoch's input, which is empty after the first one, and the rows that the
            epoch before has fed; returns the epoch's output, and the rows to feed.
        max_rounds : int
            The most epochs.

        Returns
        -------
        list
            The output of each epoch.

        Raises
        ------
        LoopNotEmptyError
            Rows are in flight after so many epochs.
        """
        outputs: list[Any] = []
        for number in range(integer(max_rounds, f"{self._owner}: max_rounds", least=1)):
            output, fed = epoch(list(rows) if number == 0 else [], self.rows())
            self.feed(fed)
            outputs.append(output)
            if not self.in_flight:
                return outputs
        raise LoopNotEmptyError(
            f"{self._owner}: {self.in_flight} rows are in flight after {max_rounds} epochs: pass a "
            "larger max_rounds, or look for rows that are fed for ever"
        )

    def snapshot(self) -> OperatorSnapshot:
        """The rows in flight as of the last epoch. It stays valid whatever the harness does."""
        clock = Clock(0, self.epoch)
        return OperatorSnapshot(self.epoch, self._ranges.files(), clock, self._arguments)

    @classmethod
    def restore(
        cls, snapshot: OperatorSnapshot, schema: SchemaLike, *, parallelism: int = 1
    ) -> Self:
        """Make a harness that continues from a snapshot.

        Parameters
        ----------
        snapshot : OperatorSnapshot
            A snapshot of a `LoopHarness`.
        schema : str, mapping or pyarrow.Schema
            The columns of the loop's rows.
        parallelism : int
            Number of key-group ranges; it may differ from before.

        Returns
        -------
        LoopHarness
            With the rows that were in flight.

        Raises
        ------
        SchemaError
            The snapshot holds rows of other columns.
        """
        check_snapshot(snapshot, OperatorSnapshot, "harness")
        harness = cls(schema, parallelism=parallelism, **snapshot._given)
        try:
            harness._ranges.restore(snapshot._files, allow_unclaimed_state=False)
        except BaseException:
            harness.close()
            raise
        harness.epoch = snapshot.epoch
        return harness

    def rescale(self, parallelism: int) -> None:
        """Go on with another number of ranges, from files alone, as a savepoint does."""
        ranges = self._new_tables(parallelism)
        try:
            ranges.restore(self._ranges.files(), allow_unclaimed_state=False)
        except BaseException:
            ranges.close()
            raise
        self._ranges.close()
        self._ranges = ranges

    def close(self) -> None:
        """Free the tables. Does nothing the second time."""
        self._ranges.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<LoopHarness of {', '.join(self._spec.names)}>"
