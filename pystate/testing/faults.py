"""Injected failures: an epoch fails half way, and its replay is checked to yield the same.

Thread safety: all objects belong to one harness.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NoReturn

import numpy as np
import pyarrow as pa

from pystate.errors import ReplayError
from pystate.operators.functions.base import StatefulFunction
from pystate.operators.functions.binding import in_batches, shape, takes_rows
from pystate.operators.runtime.call_shapes import are_batches, are_rows, is_batch
from pystate.operators.runtime.late_rows import SIDES
from pystate.operators.runtime.rows import RowFactory, unreadable


class InjectedFailureError(Exception):
    """The failure that a test requested. It never leaves the harness."""


class Fault:
    """The point where an epoch is to fail: after a number of rows or timers, or at its seal.

    These are counted across epochs until then. ``"publish"`` is after the tables are sealed, and
    before the epoch is published.
    """

    def __init__(
        self,
        rows: int | None = None,
        timers: int | None = None,
        at: Literal["seal", "publish"] | None = None,
    ) -> None:
        self.left = {"rows": rows, "timers": timers}
        self.at = at
        self.happened = False

    def count(self, what: str, number: int) -> None:
        """Count rows or timers that are about to be handled; raise if the failure is due."""
        left = self.left[what]
        if left is not None:
            if left <= 0:
                self._happen()
            self.left[what] = left - number

    def reach(self, point: Literal["seal", "publish"]) -> None:
        """Reach a point of the epoch; raise if the failure is due there."""
        used_up = any(left is not None and left <= 0 for left in self.left.values())
        if self.at == point or (point == "seal" and used_up):
            self._happen()

    def _happen(self) -> NoReturn:
        self.happened = True
        raise InjectedFailureError

    def __str__(self) -> str:
        if self.at is not None:
            return f"fail_at({self.at!r})"
        counts = [f"{name}={left}" for name, left in self.left.items() if left is not None]
        return f"fail_after (left: {', '.join(counts)})"


class Observer:
    """Sees the calls of a task's function: counts them against a fault, and keeps what they yield.

    `seen` has it row by row.
    """

    def __init__(self, function: StatefulFunction, fault: Fault | None) -> None:
        self.seen: list[Any] = []
        self._fault = fault
        # A function of another shape yields rows, which may be dicts.
        kind, vectorized = shape(function), in_batches(function)
        self._in_batches = vectorized or kind == "instance_rows"
        for name in _methods(function):
            whole = vectorized or name.endswith("_rows")
            self._watch(function, name, "rows", _rows if whole else (lambda _: 1))
        if kind in ("instance", "instance_rows"):
            self._watch(function, "on_epoch_end", "rows", lambda _: 0)
        elif vectorized:
            self._watch(function, "on_timers", "timers", len)
        else:
            self._watch(function, "on_timer", "timers", lambda _: 1)

    def _watch(self, function: Any, name: str, what: str, size: Callable[[Any], int]) -> None:
        original = getattr(function, name)
        returned = are_batches if self._in_batches else are_rows

        def call(*arguments: Any) -> Any:
            if self._fault is not None:
                # The rows or timers come before the context, which is last.
                self._fault.count(what, size(arguments[-2]) if len(arguments) > 1 else 0)
            result = original(*arguments)
            if result is None or not returned(result):
                # The caller refuses the second.
                return result
            if is_batch(result):
                self.seen += rows_of(result)
                return result
            return self._passed(result)

        setattr(function, name, call)

    def _passed(self, results: Any) -> Iterator[Any]:
        for result in results:
            self.seen += rows_of(result) if self._in_batches and is_batch(result) else [result]
            yield result


def _methods(function: StatefulFunction) -> list[str]:
    """The methods that are called for rows."""
    kind = shape(function)
    if kind == "co":
        takes = [(side, takes_rows(function, side)) for side in SIDES]
        return [f"process_{side}_rows" if rows else f"process_{side}" for side, rows in takes]
    if kind == "co_vectorized":
        return [f"process_{side}" for side in SIDES]
    if kind == "instance_rows":
        return ["process_rows"]
    return ["process" if kind in ("vectorized", "instance") else kind]


def _rows(batch: pa.RecordBatch) -> int:
    rows: int = batch.num_rows
    return rows


def aside_rows(piece: Any) -> list[Any]:
    """The rows of a piece that went aside; a value that Python cannot hold is None."""
    if isinstance(piece, pa.RecordBatch):
        for i, name in enumerate(piece.schema.names):
            bad = unreadable(piece.select([name]))
            if bad.any():
                places: Any = pa.array(np.arange(len(bad)), mask=bad)
                piece = piece.set_column(i, name, piece.column(i).take(places))
    return rows_of(piece)


def rows_of(piece: Any) -> list[Any]:
    """The rows of a piece of output, as tuples; named tuples if it has names."""
    if isinstance(piece, dict):
        piece = pa.table(piece)
    if isinstance(piece, pa.Table):
        return [row for batch in piece.to_batches() for row in rows_of(batch)]
    if isinstance(piece, pa.RecordBatch):
        return list(RowFactory(piece.schema.names).rows(piece))
    return list(piece)


def check_replay(
    epoch: int, failed: Sequence[Any], replayed: Sequence[Any], *, in_order: bool
) -> None:
    """Compare what a failed attempt yielded with the beginning of its replay's output.

    Where rows are on disk, which of them are in memory decides which key's timers fire first, so
    that a replay may have the same rows in another order.
    """
    if not in_order:
        replayed = _in_order_of(failed, replayed)
    for i, before in enumerate(failed):
        if i >= len(replayed) or not _same(before, replayed[i]):
            now = repr(replayed[i])[:200] if i < len(replayed) else "nothing"
            raise ReplayError(
                f"epoch {epoch} was computed twice: before the injected failure its row {i} was "
                f"{before!r:.200}, in the replay it is {now}. What a function yields may depend "
                "on its rows, its declared states and ctx alone: not on other variables, which a "
                "failure does not roll back, nor on a clock or random numbers"
            )


def _in_order_of(rows: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """Those of other rows that are like the rows, in their order, up to the first one without."""
    left: defaultdict[str, deque[Any]] = defaultdict(deque)
    for other in others:
        left[repr(other)].append(other)
    found = []
    for row in rows:
        like = left[repr(row)]
        if not like:
            break
        found.append(like.popleft())
    return found


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, (tuple, list)) and isinstance(two, (tuple, list)):
        return len(one) == len(two) and all(map(_same, one, two))
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(_same(one[name], two[name]) for name in one)
    if isinstance(one, np.ndarray) and isinstance(two, np.ndarray):
        return one.shape == two.shape and _same(one.tolist(), two.tolist())
    return bool(one == two or (one != one and two != two))
