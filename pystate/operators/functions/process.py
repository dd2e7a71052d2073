"""Functions of an operator's instances: their rows have no keys, and their state is their own.

Thread safety: as `pystate.operators.functions.base`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pystate.errors import DeclarationError
from pystate.operators.functions.base import StatefulFunction
from pystate.operators.functions.context import RuntimeContext
from pystate.state.method_hints import Elsewhere


@dataclass(slots=True)
class InstanceContext(RuntimeContext):
    """The context of an instance and of the row that its function works on.

    It has what `RuntimeContext` has, except for timers and namespaces, which belong to keys.

    Attributes
    ----------
    instance : int
        The number of the instance, from 0; there are `parallelism` of them.
    redistributed : bool
        Whether the number of instances has changed since the last epoch: the states were divided
        anew, right before `open`.
    """

    instance: int = 0
    redistributed: bool = False


for _name in ("subtask", "index", "subtask_index", "getIndexOfThisSubtask", "partition_id"):
    setattr(InstanceContext, _name, Elsewhere(_name, "instance"))


class ProcessFunction(StatefulFunction):
    """A function over rows without keys: each of its instances has state of its own.

    Write either `process`, for one row at a time, or `process_rows`, for whole batches. There are
    as many instances as the job has ranges. Which of them gets a row is not specified.

    Its states are `pystate.OperatorListState` and `pystate.RawState`. They can also be used in
    `open`.

    Examples
    --------
    >>> import pystate as ps
    >>> class Numbered(ps.ProcessFunction):
    ...     last = ps.OperatorListState("long", redistribute="union")
    ...
    ...     def open(self, ctx: ps.RuntimeContext):
    ...         # After a change of the number of instances each has the last numbers of all.
    ...         self.n = max(self.last, default=0) // ctx.parallelism
    ...
    ...     def process(self, row, ctx: ps.InstanceContext):
    ...         self.n += 1
    ...         number = self.n * ctx.parallelism + ctx.instance
    ...         self.last.update([number])
    ...         yield row["name"], number
    >>> with ps.testing.ProcessHarness(Numbered()) as harness:
    ...     harness.process([{"name": "a"}, {"name": "b"}])
    ...     harness.rescale(2)
    ...     harness.process([{"name": "c"}, {"name": "d"}])
    [('a', 1), ('b', 2)]
    [('c', 4), ('d', 5)]
    """

    def process(self, row: Any, ctx: InstanceContext) -> Any:
        """Handle one row.

        Parameters
        ----------
        row : Row
            As in `KeyedProcessFunction.process`.
        ctx : InstanceContext
            The context of the instance and the row.

        Returns
        -------
        iterable of tuple, Row or dict, or None
            The rows that the operator emits, as in `KeyedProcessFunction.process`.
        """
        raise DeclarationError(f"{type(self).__name__} has no process(self, row, ctx)")

    def process_rows(self, batch: pa.RecordBatch, ctx: InstanceContext) -> Any:
        """Handle some rows at once; written instead of `process`.

        Parameters
        ----------
        batch : pyarrow.RecordBatch
            Some of the instance's rows in the epoch, with all columns of the input.
        ctx : InstanceContext
            The context of the instance; `timestamp` is None.

        Returns
        -------
        RecordBatch, iterable of RecordBatch or None
            What the operator emits; a Table, or a dict with an array for each column, is a batch,
            too.
        """
        raise DeclarationError(f"{type(self).__name__} has no process_rows(self, batch, ctx)")

    def on_epoch_end(self, ctx: InstanceContext) -> Any:
        """Handle the end of an epoch, after its last row.

        An instance whose class has this method is called in every epoch. Without it, an instance
        does nothing in an epoch that brings it no rows.

        Parameters
        ----------
        ctx : InstanceContext
            `watermark` is the one that the epoch ends with.

        Returns
        -------
        object
            As from `process` or `process_rows`, whichever the class has.
        """
