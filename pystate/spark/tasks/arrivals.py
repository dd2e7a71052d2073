"""How the rows of an operator's inputs come to its task, in one partition of Spark.

Thread safety: immutable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pystate.checkpoint.refs import INPUT
from pystate.errors import EvaluationError
from pystate.operators.runtime.function_operator import BROADCAST, Elements
from pystate.spark.base.routing import KeyRouter
from pystate.spark.tasks.range_task import OperatorPlan
from pystate.types.keys import leaf


class Arrivals:
    """The rows of one input, by key."""

    def key_names(self, plan: OperatorPlan, input: str) -> Sequence[str] | None:
        """The key's columns in the parts of an input; None where they are no batches by key."""
        return [name for name, _ in plan.router.schema]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return (INPUT,)

    def owner(self, plan: OperatorPlan, rows: Any) -> int:
        """The range of the first of some rows."""
        router, first = plan.router, rows.slice(0, 1)
        return router.owners([leaf(first, name) for name, _ in router.schema])[0]

    def parts(self, rows: Any, plan: OperatorPlan, index: int) -> Iterable[tuple[str, Any]]:
        """The rows of one input after the other, in their order, of those of a range."""
        return ((INPUT, rows),)


class InstanceRows(Arrivals):
    """Rows without keys, which `spread` has routed: the last column is the instance."""

    def key_names(self, plan: OperatorPlan, input: str) -> Sequence[str] | None:
        """See `Arrivals.key_names`."""
        return None

    def owner(self, plan: OperatorPlan, rows: Any) -> int:
        """See `Arrivals.owner`."""
        index: int = rows.column(rows.num_columns - 1)[0].as_py()
        return index

    def parts(self, rows: Any, plan: OperatorPlan, index: int) -> Iterable[tuple[str, Any]]:
        """See `Arrivals.parts`."""
        return ((INPUT, rows.remove_column(rows.num_columns - 1)),)


@dataclass(frozen=True)
class UnitedRows(Arrivals):
    """The rows of two inputs.

    They have the key's columns, the number of the input, the left input's other columns, and the
    right input's; null where they are not of a row's input.
    """

    names: Mapping[str, tuple[Sequence[str], Sequence[str]]]
    """The names of each input's key columns, and of its other ones."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return tuple(self.names)

    def key_names(self, plan: OperatorPlan, input: str) -> Sequence[str] | None:
        """See `Arrivals.key_names`."""
        return self.names[input][0]

    def parts(self, rows: Any, plan: OperatorPlan, index: int) -> Iterable[tuple[str, Any]]:
        """See `Arrivals.parts`."""
        count, begin = 0, 0
        for number, (name, (keys, others)) in enumerate(self.names.items()):
            count = len(keys)
            begin = begin or count + 1
            end = begin + len(others)
            part = _filtered(rows, rows.column(count), number)
            if part.num_rows:
                columns = [part.column(i) for i in (*range(count), *range(begin, end))]
                yield name, pa.RecordBatch.from_arrays(columns, names=[*keys, *others])
            begin = end


def _filtered(rows: pa.RecordBatch, side: pa.Array[Any], number: int) -> pa.RecordBatch:
    own = pc.call_function("equal", [side, pa.scalar(number, side.type)])
    return rows if own.true_count == len(rows) else rows.filter(own)


@dataclass(frozen=True)
class BroadcastRows(Arrivals):
    """Rows by key, and broadcast rows beside them.

    They have the keyed rows' columns, the range that a broadcast row is for, and the columns of
    broadcast rows; null where they are not of a row's input.
    """

    count: int
    """The number of the keyed rows' columns."""
    columns: tuple[str, ...]
    """The broadcast rows' columns."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return (INPUT, BROADCAST)

    def key_names(self, plan: OperatorPlan, input: str) -> Sequence[str] | None:
        """See `Arrivals.key_names`."""
        return super().key_names(plan, input) if input == INPUT else None

    def owner(self, plan: OperatorPlan, rows: Any) -> int:
        """See `Arrivals.owner`."""
        target = rows.column(self.count)[0].as_py()
        return super().owner(plan, rows) if target is None else int(target)

    def parts(self, rows: Any, plan: OperatorPlan, index: int) -> Iterable[tuple[str, Any]]:
        """See `Arrivals.parts`."""
        for target, part in self._runs(rows):
            if target is None:
                yield INPUT, part.select(range(self.count))
                continue
            if target != index:
                raise EvaluationError(
                    f"{plan.describe(index)}: the partition also holds broadcast "
                    f"rows of range {target}: rows were moved between the shuffle and the operator"
                )
            own = part.columns[self.count + 1 :]
            yield BROADCAST, pa.RecordBatch.from_arrays(own, names=list(self.columns))

    def _runs(self, rows: pa.RecordBatch) -> Iterator[tuple[int | None, pa.RecordBatch]]:
        """The rows of one input after the other, with the range that broadcast rows are for."""
        targets = rows.column(self.count)
        if targets.null_count == len(targets):
            yield None, rows
            return
        numbers = targets.fill_null(-1).to_numpy(zero_copy_only=False)
        starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        for begin, end in pairwise(starts):
            target = int(numbers[begin])
            yield None if target < 0 else target, rows.slice(begin, end - begin)


@dataclass(frozen=True)
class ElementRows(Arrivals):
    """The elements of an RDD, in lists of `Routed`."""

    router: KeyRouter

    def key_names(self, plan: OperatorPlan, input: str) -> Sequence[str] | None:
        """See `Arrivals.key_names`."""
        return None

    def owner(self, plan: OperatorPlan, rows: Any) -> int:
        """See `Arrivals.owner`."""
        return self.router.owners(self.router.arrays([rows[0].key]))[0]

    def parts(self, rows: Any, plan: OperatorPlan, index: int) -> Iterable[tuple[str, Any]]:
        """See `Arrivals.parts`."""
        keys = [routed.key for routed in rows]
        elements = [routed.row for routed in rows]
        return ((INPUT, Elements(self.router.arrays(keys), keys, elements)),)
