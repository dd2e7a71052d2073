"""State that is read as rows and written again goes on as if nothing had happened, of every kind.

Each operator runs twice over the same random epochs. In the second run its state is read as tables
at some point, written into new files, and restored from them.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pystate as ps
from pystate.checkpoint.refs import FileRef, OperatorState, RangeState
from pystate.checkpoint.state_files import merge_files
from pystate.checkpoint.storage import LocalStorage
from pystate.processor.scan import StateScan
from pystate.processor.selection import Selection
from pystate.state.kinds import declared_as
from pystate.state.operator_spec import OperatorSpec
from pystate.tables.range_rows import write_range
from tests.drawn import drawn
from tests.unit.operators.windows.windows_world import World


def rewritten(files: Sequence[bytes], operator: OperatorSpec) -> tuple[bytes, ...]:
    """Files with the same state, by way of the tables that users read and write."""
    if not files:
        return ()
    groups = operator.max_parallelism
    with tempfile.TemporaryDirectory() as folder:
        storage = LocalStorage(folder)
        with storage.create("state/one") as out:
            bounds = {"first_key_group": 0, "last_key_group": groups - 1}
            info = merge_files([io.BytesIO(data) for data in files], out, **bounds)
        ref = FileRef.from_info("state/one", info)
        stored = OperatorState(
            operator.uid,
            1,
            tuple((name, type_.ddl) for name, type_ in operator.key),
            operator.stored_states(),
            (RangeState(0, 0, groups - 1, ref.id, base=ref),),
            operator.timers,
        )
        scan = StateScan(storage, 1, groups, stored, operator.namespace)
        tables = [
            pa.Table.from_batches(each.batches(), each.schema)
            for each in (
                replace(scan, selection=Selection(accumulators=True)),
                replace(scan, selection=Selection(timers=True)),
            )[: 1 + operator.timers]
        ]
        again = replace(
            operator, states={n: declared_as(s.stored_as()) for n, s in operator.states.items()}
        )
        timers = tables[1] if operator.timers else None
        state = write_range(storage, again, 0, 1, 1, tables[0], timers)
        return tuple((Path(folder) / ref.path).read_bytes() for ref in state.files)


keys = st.sampled_from([None, "a", "b", "c"])
rows = st.lists(st.tuples(keys, st.integers(-30, 60), st.integers(-5, 5)), max_size=10)
streams = st.lists(rows, min_size=1, max_size=5)


def moved(epochs: list[Any]) -> list[Any]:
    """Epochs whose times follow each other."""
    return [[(k, t + 40 * i, n) for k, t, n in rows] for i, rows in enumerate(epochs)]


# -- windows

WINDOWS = {
    "tumbling": (ps.Tumbling(20), {"allowed_lateness": 15}),
    "sliding": (ps.Sliding(40, 10), {}),
    "sliding late": (ps.Sliding(40, 10), {"allowed_lateness": 15}),
    "cumulating": (ps.Cumulating(10, 40), {}),
    "session": (ps.Session(12), {"allowed_lateness": 15}),
    "count": (ps.CountWindow(3), {}),
    "update": (ps.Tumbling(20), {"emit": "update"}),
    "global": (ps.Global(), {"emit": "update"}),
}


class Longest(ps.AggregateFunction[list[int], int, int]):
    def create(self) -> list[int]:
        return []

    def add(self, accumulator: list[int], value: int) -> list[int]:
        return [*accumulator, value]

    def merge(self, one: list[int], other: list[int]) -> list[int]:
        return one + other

    def result(self, accumulator: list[int]) -> int:
        return len(accumulator)


AGGREGATES: dict[str, Any] = {
    "n": ps.count(),
    "s": ps.sum("v"),
    "m": ps.mean("v"),
    "lo": ps.min("v"),
    "var": (ps.Variance(), "v"),
    "top": (ps.TopK(2), "v"),
    "d": (ps.ApproxDistinct(), "v"),
    "words": (ps.Last(), "k"),
    "own": (Longest(), "v", "long"),
}
SCHEMA = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64())])


@pytest.mark.parametrize("kind", WINDOWS)
def test_windows(kind: str) -> None:
    windows, options = WINDOWS[kind]

    @drawn(15)
    @given(streams, st.integers(0, 4))
    def check(stream: list[Any], at: int) -> None:
        found = []
        for rewrites in (False, True):
            world = World(windows, AGGREGATES, SCHEMA, **options)
            out = []
            for number, rows in enumerate(moved(stream)):
                if number == at:
                    if rewrites:
                        world.backends.files = list(rewritten(world.backends.files, world.operator))
                    world.rescale(2)
                emitted = world.epoch(rows, 40 * number)
                out.append(sorted(map(repr, emitted)))
            out.append(sorted(map(repr, world.epoch([], 10_000))))
            found.append((out, world.kept()))
            world.close()
        assert found[0] == found[1]

    check()


# -- operators that have a harness


class Everything(ps.KeyedProcessFunction):
    """States of all kinds, in namespaces, and timers of both domains."""

    namespace = "long"
    value = ps.ValueState("struct<x: long, y: array<string>>")
    items = ps.ListState("decimal(9,2)")
    entries = ps.MapState("string", "long")
    pickled = ps.ValueState(object)
    mean = ps.AggregatingState(ps.Mean(), "long")
    last = ps.AggregatingState(ps.Last(), "string")
    least = ps.ReducingState("long", min)

    def process(self, key: Any, row: Any, ctx: Any) -> Any:
        import decimal

        ctx.set_namespace(row.n if row.n else None)
        self.value.update({"x": row.n, "y": [str(key)]})
        self.items.add(decimal.Decimal(row.n))
        self.entries.put(str(key), row.t)
        self.pickled.update({row.n})
        self.mean.add(row.n)
        self.last.add(str(row.t))
        self.least.add(row.t)
        ctx.register_event_time_timer(row.t + 5)
        ctx.register_processing_time_timer(10 * row.n + 100)

    def on_timer(self, key: Any, timestamp: int, ctx: Any) -> Any:
        yield (
            key,
            timestamp,
            ctx.time_domain,
            self.value.value(),
            list(self.items.get()),
            sorted(self.entries.items()),
            self.pickled.value(),
            self.mean.get(),
            self.last.get(),
            self.least.get(),
        )


class Both(ps.KeyedCoProcessFunction):
    n = ps.AggregatingState(ps.Variance(), "long")

    def process_left(self, key: Any, row: Any, ctx: Any) -> Any:
        self.n.add(row.n)
        ctx.register_event_time_timer(row.t)

    def process_right(self, key: Any, row: Any, ctx: Any) -> Any:
        self.n.add(-row.n)

    def on_timer(self, key: Any, timestamp: int, ctx: Any) -> Any:
        yield key, timestamp, self.n.get()


COLUMNS = "k string, t long, n long"


def one(operator: Any) -> Callable[[], Any]:
    if isinstance(operator, ps.KeyedProcessFunction):
        return lambda: ps.testing.Harness(
            operator, {"k": "string"}, event_time="t", allowed_delay=3, columns=COLUMNS
        )
    return lambda: ps.testing.RowHarness(
        operator, "k", columns=COLUMNS, event_time="t", allowed_delay=3
    )


def two(operator: Any) -> Callable[[], Any]:
    return lambda: ps.testing.TwoInputHarness(
        operator, "k", left=COLUMNS, right=COLUMNS, event_time="t", allowed_delay=3
    )


SUFFIXES = ("", "_right")
OPERATORS: dict[str, tuple[Any, Callable[[Any], Callable[[], Any]]]] = {
    "function": (Everything(), one),
    "co": (Both(), two),
    "once": (ps.testing.Deduplicate(25), one),
    "last": (ps.testing.Deduplicate(keep="last"), one),
    "top": (ps.testing.Top(2, "n"), one),
    **{
        how: (ps.testing.IntervalJoin(-20, 30, how, SUFFIXES), two)  # type: ignore[arg-type]
        for how in ("inner", "left", "full")
    },
    "asof": (ps.testing.AsofJoin("left", suffixes=SUFFIXES), two),
    "asof old": (ps.testing.AsofJoin("inner", 50, SUFFIXES), two),
}


@pytest.mark.parametrize("kind", OPERATORS)
def test_operators(kind: str) -> None:
    operator, of = OPERATORS[kind]

    @drawn(15)
    @given(streams, streams, st.integers(0, 4))
    def check(stream: list[Any], other: list[Any], at: int) -> None:
        found = []
        for rewrites in (False, True):
            harness = of(operator)()
            spec = harness._ranges.operator
            right = moved(other) + [[]] * len(stream)
            out = []
            for number, rows in enumerate(moved(stream)):
                if number == at:
                    snapshot = harness.snapshot()
                    if rewrites:
                        snapshot = replace(snapshot, _files=rewritten(snapshot._files, spec))
                    harness.close()
                    harness = type(harness).restore(snapshot, operator, parallelism=2)
                emitted = (
                    harness.process(rows, right[number]) if of is two else harness.process(rows)
                )
                out.append(sorted(map(repr, emitted)))
            out.append(sorted(map(repr, harness.advance_watermark(10_000))))
            out.append(sorted(map(repr, harness.advance_processing_time(10_000))))
            found.append(out)
            harness.close()
        assert found[0] == found[1]

    check()
