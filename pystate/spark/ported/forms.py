"""How rows are given to a processor: as `Row` objects here, as frames in the module of these.

Thread safety: immutable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from pystate.spark.ported.rows import RowMaker, arrow_values


class Form(Protocol):
    """How rows are given to a processor, and how its output is collected."""

    collected: int
    """So many of what the processor yields are turned into a batch."""
    wanted: str
    """What the processor is to yield, for errors."""

    def keys(self, rows: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
        """The keys of some rows, of which these are the key columns."""

    def groups(
        self, rows: pa.RecordBatch, order: np.ndarray[Any, Any], ends: Sequence[int]
    ) -> Iterator[Iterator[Any]]:
        """For each key what its processor gets, with its `num_rows`.

        The next key's is asked for after its call.
        """


class RowForm:
    """Rows as `Row` objects, as in `transformWithState`."""

    # Rows of Spark's class that are not taken apart are four objects each: many of them keep the
    # garbage collector busy.
    collected = 4096
    wanted = "yield rows, each of them a Row with names, or return a list of them"

    def keys(self, rows: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
        """The keys of some rows, of which these are the key columns."""
        return zip(*map(arrow_values, rows.columns), strict=True)

    def groups(
        self, rows: pa.RecordBatch, order: np.ndarray[Any, Any], ends: Sequence[int]
    ) -> Iterator[Iterator[Any]]:
        """An iterator of rows for each key."""
        source = RowMaker(rows.schema.names).source(rows, order)
        begin = 0
        for end in ends:
            own = source.rows(begin, end)
            yield own
            # A processor that has kept it gets no more of it.
            own.stop()
            begin = end
