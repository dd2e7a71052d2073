"""How rows are given to a processor: as `Row` objects here, as frames in the module of these.

Thread safety: immutable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from pystate.spark.ported.rows import RowMaker, arrow_values

__all__ = ["Form", "RowForm"]


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
        """For each key what its processor gets; the next key's is asked for after its call."""


class RowForm:
    """Rows as `Row` objects, as in `transformWithState`."""

    # Rows of Spark's class are four objects each: many of them keep the garbage collector busy.
    collected = 4096
    wanted = "yield rows, each of them a Row with names, or return a list of them"

    def keys(self, rows: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
        """The keys of some rows, of which these are the key columns."""
        return zip(*map(arrow_values, rows.columns), strict=True)

    def groups(
        self, rows: pa.RecordBatch, order: np.ndarray[Any, Any], ends: Sequence[int]
    ) -> Iterator[Iterator[Any]]:
        """An iterator of rows for each key."""
        stream = RowMaker(rows.schema.names).stream(rows, order)
        begin = 0
        for end in ends:
            own = islice(stream, end - begin)
            yield own
            # A processor need not read all of its rows.
            deque(own, maxlen=0)
            begin = end
