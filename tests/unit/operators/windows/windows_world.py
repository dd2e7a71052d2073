"""Windowed operators over epochs, with failures and rescales, and the same recomputed."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

from pystate._core.core import range_bounds
from pystate.epochs.watermarks import OperatorTime
from pystate.operators.functions.windows import TimeWindow, WindowFunction
from pystate.operators.runtime.output import OutputColumns
from pystate.operators.runtime.task import TaskContext
from pystate.operators.windows import slices
from pystate.operators.windows.assigners import Assigner
from pystate.operators.windows.kinds import make_operator
from pystate.operators.windows.process import WindowProcess, WindowProcessSpec
from pystate.operators.windows.row_windows import WindowRowsSpec
from pystate.operators.windows.specification import WindowOptions, WindowSpec, window_options
from pystate.tables.backend import KeyedStateBackend
from pystate.types.arrays import hash_keys, key_groups
from pystate.types.keys import parse_key
from tests.range_backends import HeapRanges

GROUPS = 16
SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("v", pa.int64())])

Row = tuple[Any, ...]
Emitted = dict[tuple[Any, Any, Any], tuple[Any, ...]]


class World:
    """A windowed operator; epochs, crashes, restarts at another parallelism.

    Its tables are freed with it.
    """

    def __init__(
        self,
        windows: Assigner,
        aggregates: dict[str, Any],
        schema: pa.Schema = SCHEMA,
        key: Sequence[str] = ("k",),
        parallelism: int = 1,
        batch_rows: int = 1 << 20,
        few: Sequence[int] = (),
        ahead: Sequence[tuple[int, int]] = (),
        backends: HeapRanges | None = None,
        **options: Any,
    ) -> None:
        more = {"event_time": "t", **options}
        if more.get("processing_time"):
            more["event_time"] = None
        self.schema = schema
        self.spec = self._spec(window_options(windows, "test", **more), key, aggregates)
        self.key = parse_key([(name, schema.field(name).type) for name in key])
        self.operator = self.spec.operator("windows", self.key, GROUPS)
        self.batch_rows = batch_rows
        #: By turns, up to how many slices of a time the windows of many times fire together.
        self.few = itertools.cycle(few or [slices._FEW])
        #: By turns, how many timers are kept back at least, and windows put together ahead at most.
        self.ahead = itertools.cycle(ahead or [(slices._LEAST_HELD, slices._AHEAD)])
        self.bound: int | None = None
        #: Whether rows are late by the watermark up to which windows fire in the same epoch.
        self.one_watermark = False
        self.late: list[Row] = []
        self.dropped = self.timeless = 0
        self.most_rows = 0
        #: What the operators got, in the order in which they ran.
        self.tasks: list[TaskContext] = []
        self.backends = HeapRanges() if backends is None else backends
        self._open(parallelism)

    def _spec(self, options: WindowOptions, key: Sequence[str], aggregates: Any) -> WindowSpec:
        return WindowSpec.of(options, key, aggregates, self.schema, "test")

    def _operator(self) -> Any:
        return make_operator(self.spec, "late")

    def _open(self, parallelism: int) -> None:
        bounds = [range_bounds(index, GROUPS, parallelism) for index in range(parallelism)]
        self.backends.open(self.operator, bounds)

    @property
    def ranges(self) -> list[tuple[tuple[int, int], KeyedStateBackend]]:
        return [(backend.key_group_range, backend) for backend in self.backends]

    def rescale(self, parallelism: int) -> None:
        """Restart from the files of all epochs."""
        self._open(parallelism)

    def close(self) -> None:
        self.backends.close()

    def batch(self, rows: Iterable[Row]) -> pa.RecordBatch:
        columns = list(zip(*rows, strict=True)) or [[] for _ in self.schema]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def epoch(
        self, rows: Iterable[Row], watermark: int | None, now: int = 0, crash: bool = False
    ) -> list[Row]:
        """One epoch; if it is to crash, it is computed once more."""
        batch = self.batch(rows)
        if self.one_watermark and watermark is not None:
            self.bound = watermark
        if crash:
            self._compute(batch, watermark, now)
            self.backends.undo()
        emitted, late, dropped, timeless = self._compute(batch, watermark, now)
        self.backends.seal()
        self.late += late
        self.dropped += dropped
        self.timeless += timeless
        if watermark is not None:
            self.bound = watermark
        return emitted

    def _compute(
        self, batch: pa.RecordBatch, watermark: int | None, now: int
    ) -> tuple[list[Row], list[Row], int, int]:
        held, ahead = next(self.ahead)
        with (
            mock.patch.object(slices, "_FEW", next(self.few)),
            mock.patch.object(slices, "_AHEAD", ahead),
            mock.patch.object(slices, "_LEAST_HELD", held),
            mock.patch.object(slices, "_MOST_HELD", 4 * ahead),
        ):
            return self._compute_ranges(batch, watermark, now)

    def _compute_ranges(
        self, batch: pa.RecordBatch, watermark: int | None, now: int
    ) -> tuple[list[Row], list[Row], int, int]:
        emitted: list[Row] = []
        late: list[Row] = []
        dropped = timeless = 0
        self.backends.begin(self._operator().asks_for_changed)
        groups = key_groups(hash_keys([batch.column(n) for n, _ in self.key]), GROUPS)
        for (first, last), backend in self.ranges:
            mine = batch.filter(pa.array((groups >= first) & (groups <= last)))
            task = TaskContext(
                backend,
                processing_time=now,
                time=OperatorTime(self.bound, watermark),
                side=lambda tag, r: late.extend(tuples(r)),
            )
            operator = self._operator()
            operator.open(task)
            self.tasks.append(task)
            for at in range(0, mine.num_rows, self.batch_rows):
                for piece in operator.process(mine.slice(at, self.batch_rows)):
                    emitted += tuples(piece)
            for piece in operator.finish():
                self.most_rows = max(self.most_rows, piece.num_rows)
                emitted += tuples(piece)
            dropped += int(task.metrics["dropped_rows"])
            timeless += task.invalid_rows
            operator.close()
        return emitted, late, dropped, timeless

    def kept(self) -> int:
        return sum(len(backend) for backend in self.backends)


class RowsWorld(World):
    """The same with a function over the rows of each window, in place of aggregates.

    Its result is `numbers`; `many` says whether it gets many windows at once.
    """

    many = False

    def _spec(self, options: WindowOptions, key: Sequence[str], aggregates: Any) -> WindowSpec:
        return WindowRowsSpec.of_rows(options, key, self.schema, "test")

    def _operator(self) -> Any:
        assert isinstance(self.spec, WindowRowsSpec)
        schema = self.spec.schema(self.key)
        output = pa.schema([*schema, ("rows", pa.list_(pa.struct(list(self.schema))))])
        spec = WindowProcessSpec(
            Whole() if self.many else whole,
            self.spec,
            self.schema,
            RowsAsRead(output, "test"),
        )
        return Process(spec, "late")


class ManyWorld(RowsWorld):
    many = True


def whole(key: Any, window: TimeWindow, batch: pa.RecordBatch) -> Any:
    """A window with all its rows."""
    keys = key if isinstance(key, tuple) else (key,)
    yield (*keys, *window, batch.to_pylist())


class Whole(WindowFunction):
    def process_windows(self, windows: Any, offsets: Any, batch: Any, ctx: Any) -> Any:
        assert (np.diff(offsets) > 0).all() and offsets[0] == 0 and offsets[-1] == len(batch)
        rows = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), batch.to_struct_array())
        yield windows.append_column("rows", rows)


class RowsAsRead(OutputColumns):
    """Rows of windows, with `numbers` of their rows in place of these."""

    def from_rows(self, rows: Sequence[Any]) -> Any:
        return Pieces([(*row[:-1], *self._numbers(row)) for row in rows])

    def from_value(self, value: Any) -> Any:
        return [self.from_rows(tuples(value))]

    def _numbers(self, row: Row) -> Row:
        kept = [tuple(each.values()) for each in row[-1]]
        keys = len(self.names) - 3
        for each in row[-1]:
            assert tuple(each[name] for name in self.names[:keys]) == row[:keys]
        return numbers(kept)


class Pieces(list):  # type: ignore[type-arg]
    """Rows that have the look of a batch."""

    @property
    def num_rows(self) -> int:
        return len(self)


class Process(WindowProcess):
    """With the counts of its operator."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.operator, name)


def tuples(batch: pa.RecordBatch) -> list[Row]:
    if isinstance(batch, Pieces):
        return list(batch)
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


@dataclass
class Model:
    """Windows recomputed from all their rows, in the plainest way."""

    windows: Callable[[int], list[tuple[int, int]]]
    results: Callable[[list[Row]], tuple[Any, ...]]
    lateness: int = 0
    emit: str = "final"
    bound: int | None = None
    late: list[Row] = field(default_factory=list)
    rows: dict[tuple[Any, int, int], list[Row]] = field(default_factory=lambda: defaultdict(list))
    over: set[tuple[Any, int, int]] = field(default_factory=set)

    def alive(self, end: int) -> bool:
        return self.bound is None or end + self.lateness > self.bound

    def epoch(self, rows: Iterable[Row], watermark: int | None) -> Emitted:
        changed = set()
        for row in rows:
            if row[1] is None:
                continue
            found = [(s, e) for s, e in self.windows(row[1]) if self.alive(e)]
            if not found:
                self.late.append(row)
            for start, end in found:
                self.rows[row[0], start, end].append(row)
                changed.add((row[0], start, end))
        if watermark is not None:
            self.bound = watermark
        emitted = {}
        for name, kept in self.rows.items():
            over = self.bound is not None and name[2] <= self.bound
            if self.emit == "update" and name in changed:
                emitted[name] = self.results(kept)
            if self.emit == "final" and over and (name not in self.over or name in changed):
                emitted[name] = self.results(kept)
            if over:
                self.over.add(name)
        for name in [n for n in self.rows if not self.alive(n[2])]:
            del self.rows[name]
        return emitted


def tumbling(size: int, offset: int = 0) -> Callable[[int], list[tuple[int, int]]]:
    """The windows of a time."""
    return sliding(size, size, offset)


def sliding(size: int, slide: int, offset: int = 0) -> Callable[[int], list[tuple[int, int]]]:
    def windows(time: int) -> list[tuple[int, int]]:
        last = time - (time - offset) % slide
        starts = range(last, time - size, -slide)
        return [(start, start + size) for start in starts]

    return windows


def cumulating(step: int, size: int, offset: int = 0) -> Callable[[int], list[tuple[int, int]]]:
    def windows(time: int) -> list[tuple[int, int]]:
        start = time - (time - offset) % size
        first = start + ((time - start) // step + 1) * step
        return [(start, end) for end in range(first, start + size + 1, step)]

    return windows


def as_dict(emitted: list[Row]) -> Emitted:
    """Emitted rows by key and window; each may occur once."""
    found = {row[:3]: row[3:] for row in emitted}
    assert len(found) == len(emitted), sorted(emitted)
    return found


def numbers(rows: list[Row]) -> tuple[Any, ...]:
    """The results of `AGGREGATES` over rows."""
    values = [row[2] for row in rows if row[2] is not None]
    return (
        len(rows),
        sum(values) if values else None,
        min(values, default=None),
        max(values, default=None),
        float(np.float64(sum(values)) / len(values)) if values else None,
    )
