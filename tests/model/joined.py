"""A join's operator driven as a job does: ranges, epochs, kills, restores, rescales."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from pystate._core.core import range_bounds
from pystate.epochs.watermarks import OperatorTime
from pystate.operators.joins.inputs import JoinInput, result_names
from pystate.operators.runtime.late_rows import SideName
from pystate.operators.runtime.output import OutputColumns, Side
from pystate.operators.runtime.task import Operator, TaskContext
from pystate.state.operator_spec import OperatorSpec
from pystate.tables.backend import KeyedStateBackend
from pystate.types.arrays import hash_keys, key_groups
from pystate.types.state_type import parse_type
from tests.range_backends import HeapRanges

GROUPS = 16
LEFT = {"k": "int", "z": "string", "lid": "long", "t": "long", "word": "string"}
RIGHT = {"z2": "string", "rid": "long", "k2": "int", "at": "timestamp"}

#: (key, other key, time in ms, id)
Row = tuple[Any, Any, Any, int]


def inputs() -> tuple[JoinInput, JoinInput, OutputColumns]:
    """Two inputs with other names, orders and types of columns."""
    left = JoinInput.of("left", ["k", "z"], LEFT.items(), "t", "operator 'j'")
    right = JoinInput.of("right", ["k2", "z2"], RIGHT.items(), "at", "operator 'j'")
    names = result_names(left, right, None, "operator 'j'")
    types = [type_.arrow for _, type_ in (*left.key, *left.columns, *right.columns)]
    return left, right, OutputColumns(pa.schema(zip(names, types, strict=True)), "operator 'j'")


def batch(side: SideName, rows: list[Row]) -> pa.RecordBatch:
    """Rows as a batch of an input."""
    k, z, t, ids = (list(column) for column in zip(*rows, strict=True)) if rows else ([],) * 4
    if side == "left":
        columns = {"k": k, "z": z, "lid": ids, "t": t, "word": [f"w{i}" for i in ids]}
        types = LEFT
    else:
        at = [None if each is None else each * 1000 + 7 for each in t]
        columns = {"z2": z, "rid": ids, "k2": k, "at": at}
        types = RIGHT
    schema = pa.schema([(n, parse_type(d).arrow) for n, d in types.items()])
    return pa.RecordBatch.from_arrays(
        [pa.array(v, schema.field(n).type) for n, v in columns.items()], schema=schema
    )


class Driver:
    """Runs a join over epochs.

    Parameters
    ----------
    operator : OperatorSpec
        Its tables.
    make : callable
        Makes the operator of a task.
    """

    def __init__(
        self,
        states: Any,
        key: Any,
        make: Callable[[], Operator],
        side: Side | None = None,
        parallelism: int = 1,
        ranges: HeapRanges | None = None,
    ) -> None:
        self.ranges = HeapRanges() if ranges is None else ranges
        self.operator = OperatorSpec("j", key, states, parse_type("long"), True, GROUPS)
        self.make, self.side = make, side
        self.bound: int | None = None
        self.out: Counter[Any] = Counter()
        self.late = 0
        self.open(parallelism)

    def open(self, parallelism: int) -> None:
        """Make the ranges' tables anew, from the files."""
        bounds = [range_bounds(index, GROUPS, parallelism) for index in range(parallelism)]
        self.ranges.open(self.operator, bounds)

    @property
    def files(self) -> list[bytes]:
        """What the epochs have written."""
        return self.ranges.files

    @property
    def backends(self) -> list[KeyedStateBackend]:
        """The ranges' tables."""
        return self.ranges.backends

    def restart(self, parallelism: int) -> None:
        """Lose the tables, and make them anew."""
        self.open(parallelism)

    def owners(self, rows: pa.RecordBatch, names: list[str]) -> Any:
        hashes = hash_keys([rows.column(name) for name in names])
        return key_groups(hashes, GROUPS).astype(np.int64) * len(self.backends) // GROUPS

    def epoch(
        self,
        pieces: list[tuple[SideName, pa.RecordBatch]],
        watermark: int | None,
        names: dict[SideName, list[str]],
        *,
        fails: bool = False,
    ) -> list[dict[str, Any]]:
        """Compute an epoch; with `fails` once in vain before."""
        rows: list[dict[str, Any]] = []
        late = 0
        for attempt in range(1 + fails):
            rows, late = [], 0
            self.ranges.begin(False)
            for index, backend in enumerate(self.backends):
                time = OperatorTime(self.bound, watermark)
                task, operator = TaskContext(backend, time=time, side=self.side), self.make()
                operator.open(task)
                for side, piece in pieces:
                    own = np.flatnonzero(self.owners(piece, names[side]) == index)
                    part = piece.take(pa.array(own, pa.int64()))
                    for out in operator.process(part, side):
                        rows += out.to_pylist()
                for out in operator.finish():
                    rows += out.to_pylist()
                late += task.late_rows
            if attempt < fails:
                self.ranges.undo()
        self.ranges.seal()
        if watermark is not None and (self.bound is None or watermark > self.bound):
            self.bound = watermark
        self.late += late
        return rows

    def keys(self) -> int:
        return sum(len(backend) for backend in self.backends)

    def close(self) -> None:
        self.ranges.close()
