"""Operators over tables on disk whose rows come and go at any moment, against recomputations.

These are the models of each operator, with few examples: those in memory draw more.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pystate as ps
from pystate.epochs.watermarks import OperatorTime
from pystate.operators.functions.binding import operator_spec
from pystate.operators.joins.asof import AsofJoin, AsofJoinSpec
from pystate.operators.joins.interval import IntervalJoin, IntervalJoinSpec
from pystate.operators.runtime.function_operator import FunctionOperator
from pystate.operators.runtime.function_spec import FunctionSpec
from pystate.operators.runtime.output import OutputColumns
from pystate.operators.runtime.task import TaskContext
from pystate.operators.windows.assigners import Cumulating, Session, Sliding, Tumbling
from pystate.types.keys import parse_key
from tests.drawn import drawn
from tests.model.joined import Driver, batch, inputs
from tests.model.test_joins import all_pairs, newest, run, shown, streams
from tests.range_backends import DiskRanges, HeapRanges, on_disk
from tests.unit.operators.windows.test_aligned import ALL, SUMS
from tests.unit.operators.windows.test_aligned import ahead as aheads
from tests.unit.operators.windows.test_aligned import compare as compare_aligned
from tests.unit.operators.windows.test_aligned import epochs as aligned_epochs
from tests.unit.operators.windows.test_aligned import few as fews
from tests.unit.operators.windows.test_sessions import GAPS, Sessions
from tests.unit.operators.windows.test_sessions import compare as compare_sessions
from tests.unit.operators.windows.test_sessions import epochs as session_epochs
from tests.unit.operators.windows.windows_world import (
    Model,
    RowsWorld,
    World,
    cumulating,
    numbers,
    sliding,
    tumbling,
)

ALIGNED: list[tuple[Any, Any]] = [
    (Tumbling(10), tumbling(10)),
    (Sliding(12, 4), sliding(12, 4)),
    (Cumulating(5, 20), cumulating(5, 20)),
]
seeds = st.integers(0, 1 << 30)


@pytest.mark.parametrize("emit", ["final", "update"])
@pytest.mark.parametrize(("windows", "of"), ALIGNED, ids=lambda k: repr(k)[:10])
def test_aligned_windows(windows: Any, of: Any, emit: str) -> None:
    steps = left = emptied = 0

    @drawn(60)
    @given(
        seeds, aligned_epochs, st.sampled_from([0, 0, 3, 25]), st.sampled_from("asr"), fews, aheads
    )
    def check(seed: int, epochs: Any, lateness: int, kind: str, few: Any, ahead: Any) -> None:
        nonlocal steps, left, emptied
        with on_disk(seed) as ranges:
            world = (RowsWorld if kind == "r" else World)(
                windows,
                SUMS if kind == "s" else ALL,
                allowed_lateness=lateness,
                emit=emit,
                batch_rows=5,
                few=few,
                ahead=ahead,
                backends=ranges,
            )
            results: Any = numbers
            if kind == "s":
                results = lambda found: (numbers(found)[1], len(found))  # noqa: E731
            compare_aligned(world, Model(of, results, lateness, emit), epochs)
            steps, left = steps + ranges.taken, left + ranges.left
            emptied += ranges.emptied

    check()
    assert min(steps, left, emptied) > 2


@pytest.mark.parametrize("emit", ["final", "update"])
def test_sessions(emit: str) -> None:
    @drawn(60)
    @given(seeds, session_epochs, st.sampled_from([0, 0, 3, 25]), st.booleans(), st.booleans())
    def check(seed: int, epochs: Any, lateness: int, column: bool, rows: bool) -> None:
        with on_disk(seed) as ranges:
            world = (RowsWorld if rows else World)(
                Session(column="gap") if column else Session(4),
                ALL,
                GAPS,
                allowed_lateness=lateness,
                emit=emit,
                batch_rows=5,
                backends=ranges,
            )
            compare_sessions(world, Sessions(lateness, emit), epochs, column, numbers)

    check()


NAMES: Any = {"left": ["k", "z"], "right": ["k2", "z2"]}


@pytest.mark.parametrize("how", ["inner", "full"])
def test_interval_joins(how: Any) -> None:
    left, right, output = inputs()

    @drawn(60)
    @given(seeds, streams(), st.integers(-5000, 4000), st.sampled_from([0, 1023, 2000, 6000]))
    def check(seed: int, stream: list[Any], lower: int, width: int) -> None:
        with on_disk(seed) as ranges:
            spec = IntervalJoinSpec(left, right, lower, lower + width, how, output)
            driver = Driver(spec.states(), left.key, partial(IntervalJoin, spec), ranges=ranges)
            kept, out = run(driver, stream)
            assert shown(out) == all_pairs(kept, lower, lower + width, how)

    check()


@pytest.mark.parametrize("how", ["inner", "left"])
def test_asof_joins(how: Any) -> None:
    left, right, output = inputs()

    @drawn(60)
    @given(seeds, streams(), st.sampled_from([None, 0, 700, 5000]))
    def check(seed: int, stream: list[Any], tolerance: int | None) -> None:
        with on_disk(seed) as ranges:
            spec = AsofJoinSpec(left, right, how, tolerance, output)
            driver = Driver(spec.states(), left.key, partial(AsofJoin, spec), ranges=ranges)
            kept, out = run(driver, stream, tolerance is None)
            assert shown(out) == newest(kept, tolerance, how)

    check()


def many_rows(epoch: int) -> list[tuple[int, int, int]]:
    """Keys, times and values: some keys are those of the epoch before."""
    return [(k, epoch * 1000 + k % 700, k % 11) for k in range(epoch * 2000, epoch * 2000 + 3000)]


@pytest.mark.parametrize(
    ("windows", "of", "kind"),
    [
        (Tumbling(1000), tumbling(1000), RowsWorld),
        (Sliding(2000, 1000), sliding(2000, 1000), World),
        (Session(900), None, RowsWorld),
    ],
    ids=["tumbling", "sliding", "session"],
)
def test_windows_of_several_times_the_memory(
    windows: Any, of: Any, kind: type[World], tmp_path: Path
) -> None:
    ranges = DiskRanges(tmp_path, shaken=False)
    world = kind(windows, ALL, backends=ranges, batch_rows=1000)
    found: Counter[Any] = Counter()
    expected: dict[Any, list[Any]] = defaultdict(list)
    for epoch in range(4):
        rows = many_rows(epoch)
        for row in rows:
            spans = [(row[1], row[1] + 900)] if of is None else of(row[1])
            for span in spans:
                expected[(row[0], *span)].append(row)
        found.update(world.epoch(rows, epoch * 1000 - 1100))
    found.update(world.epoch([], 10**6))
    if of is not None:
        assert found == Counter((*name, *numbers(rows)) for name, rows in expected.items())
    assert sum(row[3] for row in found) == sum(map(len, expected.values()))
    assert world.kept() == 0 and ranges.taken > 2 and ranges.left > 1000
    ranges.close()


def many_of_both(epoch: int) -> list[tuple[Any, Any]]:
    """Left rows, and right ones of the keys of the epoch before, in pieces."""
    keys = range(epoch * 4000, epoch * 4000 + 4000)
    left: list[Any] = [(k, "z" * 40, epoch * 3000 + k % 900, k) for k in keys]
    right: list[Any] = [(k - 4000, "z" * 40, epoch * 3000 + k % 900, k) for k in keys]
    sides: list[tuple[Any, list[Any]]] = [("left", left), ("right", right)]
    return [(s, rows[at : at + 1500]) for s, rows in sides for at in range(0, 4000, 1500)]


@pytest.mark.parametrize("how", ["inner", "full"])
def test_joins_of_several_times_the_memory(how: Any, tmp_path: Path) -> None:
    left, right, output = inputs()
    ranges = DiskRanges(tmp_path, shaken=False, limit_bytes=2 << 20)
    spec = IntervalJoinSpec(left, right, 2500, 3500, how, output)
    driver = Driver(spec.states(), left.key, partial(IntervalJoin, spec), ranges=ranges)
    found: Counter[Any] = Counter()
    for epoch in range(4):
        pieces = [(side, batch(side, rows)) for side, rows in many_of_both(epoch)]
        found += shown(driver.epoch(pieces, epoch * 3000 - 1, NAMES))
    found += shown(driver.epoch([], 1 << 40, NAMES))
    pairs = {(k, "z" * 40, k, k + 4000) for k in range(12_000)}
    if how == "full":
        pairs |= {(k, "z" * 40, k, None) for k in range(12_000, 16_000)}
        pairs |= {(k, "z" * 40, None, k + 4000) for k in range(-4000, 0)}
    assert found == Counter(pairs)
    assert driver.keys() == 0 and ranges.taken > 2 and ranges.left > 5000
    ranges.close()


class Chained(ps.KeyedProcessFunction):
    """Timers that register others, by key and in namespaces."""

    namespace = "long"
    n = ps.ValueState("long", default=0)
    seen = ps.ListState("long")

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        ctx.set_namespace(row.v % 3)
        self.n.update(self.n.value() + 1)
        self.seen.add(row.v)
        ctx.register_event_time_timer(row.t + 5)
        ctx.set_namespace(None)
        self.n.update(self.n.value() + 1)

    def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> Any:
        yield key, timestamp, self.n.value(), sum(self.seen.get())
        if self.n.value() > 1:
            self.n.update(self.n.value() - 1)
            ctx.register_event_time_timer(timestamp + 3)
        else:
            self.seen.clear()


class ChainedBatches(ps.VectorizedFunction):
    """The same for many keys at once."""

    n = ps.ValueState("long", default=0)

    def process(self, keys: ps.KeyBatch, batch: Any, ctx: ps.RuntimeContext) -> Any:
        self.n.add(keys, 1)
        ctx.register_event_time_timers(keys, pc.add(batch.column("t"), 5))

    def on_timers(self, keys: ps.KeyBatch, timestamps: Any, ctx: ps.RuntimeContext) -> Any:
        ctx.register_event_time_timers(keys, pa.array(timestamps + 40, mask=timestamps % 3 > 0))
        n = self.n.values(keys)
        return {"k": keys.key_arrays()[0], "t": timestamps, "n": n, "sum": n}


@pytest.mark.parametrize("kind", [Chained, ChainedBatches])
def test_functions_with_timers(kind: Any) -> None:
    schema = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("v", pa.int64())])
    columns = [("k", pa.int64()), ("t", pa.int64()), ("n", pa.int64()), ("sum", pa.int64())]
    output = OutputColumns(pa.schema(columns), "test")

    def run(ranges: HeapRanges, epochs: Any) -> list[list[Any]]:
        found = []
        operator = operator_spec(kind(), "op", parse_key({"k": "long"}), 16)
        ranges.open(operator, [(0, 15)])
        for number, (rows, crash, restart) in enumerate(epochs):
            data = [(k, t + 10 * number, v) for k, t, v in rows]
            arrays = list(zip(*data, strict=True)) or [[], [], []]
            batch = pa.record_batch([pa.array(a, pa.int64()) for a in arrays], schema=schema)
            for attempt in range(1 + crash):
                ranges.begin(False)
                spec = FunctionSpec(kind(), ("k",), ("k", "t", "v"), output, event_time="t")
                made = FunctionOperator(spec)
                time = OperatorTime(10 * number - 20, 10 * number - 10)
                made.open(TaskContext(ranges.backends[0], time=time))
                out = [*made.process(batch), *made.finish()]
                made.close()
                if attempt < crash:
                    ranges.undo()
            ranges.seal()
            found.append(sorted(tuple(r.values()) for each in out for r in each.to_pylist()))
            if restart:
                ranges.open(operator, [(0, 15)])
        return found

    rows = st.tuples(st.integers(0, 5), st.integers(0, 30), st.integers(0, 9))

    @drawn(60)
    @given(
        seeds,
        st.lists(st.tuples(st.lists(rows, max_size=12), st.booleans(), st.booleans()), max_size=7),
    )
    def check(seed: int, epochs: Any) -> None:
        with on_disk(seed) as ranges:
            heap = HeapRanges()
            assert run(ranges, epochs) == run(heap, epochs)
            heap.close()

    check()
