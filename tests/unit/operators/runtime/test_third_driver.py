"""A driver of fifty lines runs operators of every kind, without Spark and the test harness."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate._core.core import range_bounds
from pystate.epochs.watermarks import OperatorTime
from pystate.operators.functions.binding import broadcast_states, instance_states, operator_spec
from pystate.operators.joins.asof import AsofJoin, AsofJoinSpec
from pystate.operators.joins.inputs import JoinInput
from pystate.operators.joins.interval import IntervalJoin, IntervalJoinSpec
from pystate.operators.joins.operator import ContinuousJoin
from pystate.operators.joins.windowed import WindowJoin, WindowJoinSpec, join_window
from pystate.operators.runtime.aggregate import AggregateOperator, Aggregates, StateUpdate
from pystate.operators.runtime.deduplicate import DeduplicateSpec
from pystate.operators.runtime.function_operator import BROADCAST, FunctionOperator
from pystate.operators.runtime.function_spec import BroadcastInput, FunctionSpec, RightInput
from pystate.operators.runtime.instance_operator import InstanceOperator
from pystate.operators.runtime.instance_state import instance_spec
from pystate.operators.runtime.loop import LoopOperator, LoopSpec, LoopTable
from pystate.operators.runtime.output import OutputColumns
from pystate.operators.runtime.task import Operator, TaskContext
from pystate.operators.runtime.top import By, TopSpec
from pystate.operators.windows.kinds import make_operator
from pystate.operators.windows.process import WindowProcess, WindowProcessSpec
from pystate.operators.windows.row_windows import WindowRowsSpec
from pystate.operators.windows.specification import WindowSpec, window_options
from pystate.state.operator_spec import OperatorSpec
from pystate.tables.backend import KeyedStateBackend
from pystate.types.arrays import hash_keys, key_groups
from pystate.types.keys import parse_key
from pystate.types.state_type import parse_type

RANGES = 2

# -- the driver


class Driver:
    """Runs an operator over two ranges of keys; between epochs its state is in files alone."""

    def __init__(self, make: Callable[[], Operator], *specs: OperatorSpec) -> None:
        self.make, self.specs = make, specs
        self.files: dict[tuple[int, str], list[bytes]] = {}
        self.sides: list[Any] = []
        self.number, self.bound = 0, None

    def epoch(self, watermark: Any, *rows: tuple[str, pa.RecordBatch]) -> list[Any]:
        """Compute an epoch over rows of some inputs; return what it emits, sorted."""
        self.number += 1
        out: list[Any] = []
        for index in range(RANGES):
            with ExitStack() as stack:
                tasks = [self.task(stack.enter_context(t), index) for t in self.tables(index)]
                # The late bound is known before the rows, the watermark after them.
                tasks[0].time = OperatorTime(self.bound, None)
                tasks[0].beside = tasks[-1]
                operator = self.make()
                operator.open(tasks[0])
                for input, batch in rows:
                    out += operator.process(self.share(input, batch, index), input)
                tasks[0].time = OperatorTime(self.bound, watermark)
                out += operator.finish()
                operator.close()
                for task in tasks:
                    self.seal(task)
        self.bound = watermark
        return sorted((tuple(r.values()) for piece in out for r in piece.to_pylist()), key=repr)

    def tables(self, index: int) -> Iterator[KeyedStateBackend]:
        for spec in self.specs:
            backend = KeyedStateBackend.of(spec, range_bounds(index, 128, RANGES))
            backend.restore([io.BytesIO(each) for each in self.files.get((index, spec.uid), ())])
            yield backend

    def task(self, backend: KeyedStateBackend, index: int) -> TaskContext:
        aside = partial(lambda tag, piece: self.sides.extend((tag, r) for r in piece.to_pylist()))
        return TaskContext(backend, self.number, index, RANGES, side=aside)

    def share(self, input: str, batch: pa.RecordBatch, index: int) -> pa.RecordBatch:
        if input == BROADCAST:
            return batch
        mine = key_groups(hash_keys([batch.column(0)]), 128).astype(int) * RANGES // 128 == index
        return batch.filter(pa.array(mine))

    def seal(self, task: TaskContext) -> None:
        if task.backend.dirty:
            data = io.BytesIO()
            with task.backend.seal() as snapshot:
                snapshot.write(data)
            self.files.setdefault((task.index, task.uid), []).append(data.getvalue())


# -- operators

KEY = parse_key({"k": "long"})
LONG = parse_type("long")
SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("v", pa.int64())])
RIGHT = pa.schema([("k", pa.int64()), ("u", pa.int64()), ("w", pa.int64())])


def batch(*rows: Sequence[int], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.record_batch([pa.array(c, pa.int64()) for c in columns], schema=schema)


def output(*names: str) -> OutputColumns:
    return OutputColumns(pa.schema([(name, pa.int64()) for name in names]), "third")


class Later(ps.KeyedProcessFunction):
    total = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: Any) -> Any:
        self.total.update(self.total.value() + row.v)
        ctx.register_event_time_timer(row.t + 10)
        yield key, self.total.value()

    def on_timer(self, key: Any, timestamp: int, ctx: Any) -> Any:
        ctx.output("odd", (key, timestamp))
        yield key, -self.total.value()


class Both(ps.KeyedCoProcessFunction):
    left = ps.ListState("long")

    def process_left(self, key: Any, row: Any, ctx: Any) -> None:
        self.left.add(row.v)

    def process_right(self, key: Any, row: Any, ctx: Any) -> Any:
        for v in self.left.get():
            yield key, v * row.w


class Scaled(ps.KeyedBroadcastProcessFunction):
    steps = ps.BroadcastState("long", "long")
    n = ps.ValueState("long", default=0)

    def process_broadcast(self, row: Any, ctx: Any) -> None:
        self.steps.put(0, row.w)

    def process(self, key: Any, row: Any, ctx: Any) -> Any:
        self.n.update(self.n.value() + self.steps.get(0, 1))
        yield key, self.n.value()


class Seen(ps.ProcessFunction):
    rows = ps.OperatorListState("long")

    def process(self, row: Any, ctx: Any) -> Any:
        self.rows.add(row.v)
        yield ctx.instance, len(self.rows.get())


def function(kind: Any, **options: Any) -> tuple[Any, Any]:
    columns = ("k", "t", "v")
    spec = FunctionSpec(kind(), ("k",), columns, output("k", "n"), event_time="t", **options)
    return spec, operator_spec(kind(), "third", KEY)


def of_two(spec: Any, make: Any) -> Driver:
    states = OperatorSpec("third", KEY, spec.states(), LONG, timers=True)
    return Driver(partial(make, spec), states)


def sides() -> tuple[JoinInput, JoinInput]:
    left = [(field.name, field.type) for field in SCHEMA]
    right = [(field.name, field.type) for field in RIGHT]
    return (
        JoinInput.of("left", ["k"], left, "t", "third"),
        JoinInput.of("right", ["k"], right, "u", "third"),
    )


ROWS = "input", batch((1, 0, 5), (2, 3, 7), (1, 4, 6), (3, 25, 1))
LEFT, OTHER = ("left", ROWS[1]), ("right", batch((1, 2, 10), (3, 26, 20), schema=RIGHT))


def test_a_function_by_key_and_its_timers() -> None:
    spec, states = function(Later, side_outputs={"odd": output("k", "at")})
    driver = Driver(partial(FunctionOperator, spec), states)
    assert driver.epoch(12, ROWS) == [(1, -11), (1, 11), (1, 5), (2, 7), (3, 1)]
    assert driver.epoch(40) == [(1, -11), (2, -7), (3, -1)]
    assert sorted(r["at"] for _, r in driver.sides) == [10, 13, 14, 35]


def test_a_function_of_two_inputs() -> None:
    right = RightInput(("k",), ("k", "u", "w"), "u")
    spec, states = function(Both, right=right)
    driver = Driver(partial(FunctionOperator, spec), states)
    assert driver.epoch(None, LEFT) == []
    assert driver.epoch(None, OTHER) == [(1, 50), (1, 60), (3, 20)]


def test_a_function_with_broadcast_rows() -> None:
    spec, states = function(Scaled, broadcast=BroadcastInput(("k", "u", "w")))
    told = broadcast_states(Scaled())
    make = partial(FunctionOperator, spec, broadcast=told)
    driver = Driver(make, states, instance_spec("told", told))
    assert driver.epoch(None, ROWS) == [(1, 1), (1, 2), (2, 1), (3, 1)]
    rule = BROADCAST, batch((0, 0, 10), schema=RIGHT)
    assert driver.epoch(None, rule, ROWS) == [(1, 12), (1, 22), (2, 11), (3, 11)]
    assert driver.epoch(None, ROWS)[0] == (1, 32)


def test_a_function_of_instances() -> None:
    states = instance_states(Seen(), "third")
    spec = FunctionSpec(Seen(), (), ("k", "t", "v"), output("instance", "n"))
    driver = Driver(partial(InstanceOperator, spec, states), instance_spec("third", states))
    first, second = driver.epoch(None, ROWS), driver.epoch(None, ROWS)
    assert len(first) == len(second) == 4
    assert sum(max(n for i, n in second if i == index) for index in {i for i, _ in second}) == 8


def test_aggregates() -> None:
    states = {"n": ps.ValueState("long")}
    updates = (StateUpdate("n", "add", "v", "n=sum(v)"),)
    spec = Aggregates(("k",), states, updates, (("n", None),), output("k", "n"), "t")
    driver = Driver(partial(AggregateOperator, spec), OperatorSpec("third", KEY, states))
    assert driver.epoch(None, ROWS) == [(1, 11), (2, 7), (3, 1)]
    assert driver.epoch(None, ("input", batch((2, 50, 3)))) == [(2, 10)]


def test_rows_are_passed_on_or_ranked() -> None:
    once = DeduplicateSpec(("k",), keep="last", event_time="t", late="late")
    driver = Driver(once.make, OperatorSpec("third", KEY, once.states()))
    assert driver.epoch(30, ROWS) == [(1, 4, 6), (2, 3, 7), (3, 25, 1)]
    assert driver.epoch(30, ("input", batch((1, 29, 0)))) == []
    assert driver.sides == [("late", {"k": 1, "t": 29, "v": 0})]
    top = TopSpec(("k",), 1, (By("v", True),), (("t", LONG), ("v", LONG)))
    driver = Driver(top.make, OperatorSpec("third", KEY, top.states()))
    assert driver.epoch(None, ROWS) == [(1, 4, 6, 1), (2, 3, 7, 1), (3, 25, 1, 1)]
    assert driver.epoch(None, ROWS) == []


@pytest.mark.parametrize("windows", [ps.Tumbling(10), ps.Sliding(10, 5), ps.Session(10)])
def test_windows(windows: Any) -> None:
    options = window_options(windows, "third", event_time="t")
    sums = WindowSpec.of(options, ["k"], {"n": ps.sum("v")}, SCHEMA, "third")
    rows = WindowRowsSpec.of_rows(options, ["k"], SCHEMA, "third")

    def total(key: Any, window: Any, batch: pa.RecordBatch) -> Any:
        yield key, *window, sum(batch.column("v").to_pylist())

    names = output("k", "window_start", "window_end", "n")
    called = WindowProcessSpec(total, rows, SCHEMA, names)
    drivers = (
        Driver(partial(make_operator, sums), sums.operator("third", KEY)),
        Driver(partial(WindowProcess, called), rows.operator("third", KEY)),
    )
    one, two = ([d.epoch(20, ROWS), d.epoch(60)] for d in drivers)
    assert one == two and all(one)


def test_joins() -> None:
    left, right = sides()
    names = output("k", "t", "v", "u", "w")
    pairs = [(1, 0, 5, 2, 10), (1, 4, 6, 2, 10), (3, 25, 1, 26, 20)]
    driver = of_two(IntervalJoinSpec(left, right, -5, 5, "inner", names), IntervalJoin)
    assert driver.epoch(None, LEFT) == []
    assert driver.epoch(None, OTHER) == pairs
    driver = of_two(AsofJoinSpec(left, right, "left", None, names), AsofJoin)
    assert driver.epoch(None, LEFT, OTHER) == []
    assert driver.epoch(90)[1] == (1, 4, 6, 2, 10)
    names = output("k", "window_start", "window_end", "t", "v", "u", "w")
    spec = WindowJoinSpec(left, right, join_window(ps.Tumbling(10), "third"), "inner", names)
    driver = of_two(spec, WindowJoin)
    assert driver.epoch(10, LEFT, OTHER) == [(1, 0, 10, 0, 5, 2, 10), (1, 0, 10, 4, 6, 2, 10)]
    assert driver.epoch(90) == [(3, 20, 30, 25, 1, 26, 20)]


def test_a_loop() -> None:
    spec = LoopSpec.of([("v", "long")], "the loop")
    driver = Driver(partial(LoopOperator, spec), spec.operator("third"))
    [bucket], names = [name for name, _ in driver.specs[0].key], ["bucket", "v"]
    for fed in ([1, 2, 3], [4]):
        numbers = pa.array(range(len(fed)), pa.int64())
        rows = pa.RecordBatch.from_arrays([numbers, pa.array(fed)], names=[bucket, names[1]])
        assert driver.epoch(None, ("input", rows)) == []
    kept = []
    for backend in driver.tables(0), driver.tables(1):
        for table in backend:
            kept += [v for rows in LoopTable(spec, table).rows() for v in rows["v"].to_pylist()]
            table.close()
    assert kept == [4]


@pytest.mark.parametrize(
    ("base", "missing"), [(Operator, "open, process"), (ContinuousJoin, "advance, meet")]
)
def test_an_operator_that_lacks_a_method_cannot_be_made(base: Any, missing: str) -> None:
    names = missing.split(", ")
    with pytest.raises(TypeError, match=r"(?s)abstract.*" + ".*".join(names)):
        type("Half", (base,), {})()
