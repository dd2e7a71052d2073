"""The result of a join: pairs of rows, and rows without a partner, in batches of bounded size.

Thread safety: an object belongs to its task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from pystate.operators.joins.grouping import taken
from pystate.operators.joins.inputs import JoinInput, other_side
from pystate.operators.runtime.late_rows import SideName
from pystate.operators.runtime.output import OutputColumns
from pystate.types.key_codes import Ints, longs

#: The most rows of an output batch.
OUTPUT_ROWS = 1 << 16

Columns: TypeAlias = "Sequence[pa.Array[Any]]"


class JoinResult:
    """Makes a join's output batches.

    Parameters
    ----------
    output : OutputColumns
        The key columns, then the other columns of the left input, then those of the right one.
    left, right : JoinInput
        The inputs.
    """

    def __init__(self, output: OutputColumns, left: JoinInput, right: JoinInput) -> None:
        self._output = output
        self._nulls: dict[SideName, list[Any]] = {
            each.side: [pa.scalar(None, type_.arrow) for _, type_ in each.columns]
            for each in (left, right)
        }

    def pairs(
        self, side: SideName, keys: Columns, values: Columns, rows: Ints, others: Columns, at: Ints
    ) -> Iterator[pa.RecordBatch]:
        """Pairs of rows.

        Parameters
        ----------
        side : {"left", "right"}
            The input of `keys`, `values` and `rows`.
        keys, values : sequence of pyarrow.Array
            Columns of that input.
        rows : numpy.ndarray of int64
            The row of each pair in them.
        others : sequence of pyarrow.Array
            Columns of the other input, without its key.
        at : numpy.ndarray of int64
            The row of each pair in them; if it is negative, there is none.
        """
        missing = bool(len(at)) and int(at.min()) < 0
        for begin in range(0, len(rows), OUTPUT_ROWS):
            mine = rows[begin : begin + OUTPUT_ROWS]
            there = at[begin : begin + OUTPUT_ROWS]
            index = pa.array(there, pa.int64(), mask=there < 0) if missing else longs(there)
            both = [taken(values, mine), [column.take(index) for column in others]]
            yield from self._batch(side, taken(keys, mine), *both)

    def alone(
        self, side: SideName, keys: Columns, values: Columns, rows: Ints
    ) -> Iterator[pa.RecordBatch]:
        """Rows without a partner; the other input's columns are null."""
        other = other_side(side)
        for begin in range(0, len(rows), OUTPUT_ROWS):
            mine = rows[begin : begin + OUTPUT_ROWS]
            nulls: list[Any] = [pa.repeat(each, len(mine)) for each in self._nulls[other]]
            yield from self._batch(side, taken(keys, mine), taken(values, mine), nulls)

    def _batch(
        self, side: SideName, keys: Columns, mine: Columns, others: Columns
    ) -> list[pa.RecordBatch]:
        both = [*mine, *others] if side == "left" else [*others, *mine]
        batch = pa.RecordBatch.from_arrays([*keys, *both], names=list(self._output.names))
        return self._output.from_value(batch)
