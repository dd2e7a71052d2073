"""The harness of functions without keys, and how their declarations are checked."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.errors import (
    DeclarationError,
    InvalidArgumentError,
    UnknownStateError,
    WrongTypeError,
)
from pystate.testing import Harness, ProcessHarness


class Batches(ps.ProcessFunction):
    """Emits two rows at a time, and late ones beside."""

    waiting = ps.OperatorListState("long")

    def process(self, row: Any, ctx: ps.InstanceContext) -> Any:
        self.waiting.add(row.v)
        ctx.output("seen", {"instance": ctx.instance, "at": ctx.timestamp})
        if len(self.waiting) == 2:
            yield tuple(self.waiting.get())
            self.waiting.clear()

    def on_epoch_end(self, ctx: ps.InstanceContext) -> Any:
        if ctx.watermark is not None and ctx.watermark >= 100 and self.waiting:
            yield self.waiting[0], None
            self.waiting.clear()


class Columns(ps.ProcessFunction):
    sums = ps.OperatorListState("long")

    def process_rows(self, batch: pa.RecordBatch, ctx: ps.InstanceContext) -> Any:
        total = sum(batch.column("v").to_pylist())
        self.sums.update([sum(self.sums) + total])
        ctx.output("seen", {"n": [batch.num_rows]})
        return pa.record_batch({"v": [total]})


def test_instances_have_rows_times_and_side_outputs_of_their_own() -> None:
    harness = ProcessHarness(
        Batches(),
        schema="a long, b long",
        columns="v long, at long",
        event_time="at",
        allowed_delay=10,
        late="late",
        side_outputs={"seen": "instance int, at long"},
        parallelism=2,
    )
    with harness:
        assert harness.process([(1, 50), (2, 51), (3, 52)]) == [(1, 3)]
        assert harness.side_output("seen") == [(0, 50), (0, 52), (1, 51)]
        assert harness.state("waiting", 1) == [2] and harness.watermark == 42
        assert harness.process([(4, 41)]) == [] and harness.side_output("late") == [(4, 41)]
        harness.fail_at("publish")
        assert harness.process([(5, 60)]) == [] and harness.failures == 1
        assert harness.advance_watermark(100) == [(5, None), (2, None)]
        assert harness.state("waiting", 0) == []


def test_batches_are_handled_whole() -> None:
    with ProcessHarness(Columns(), side_outputs={"seen": "n long"}, batch_rows=2) as harness:
        assert harness.process([{"v": 1}, {"v": 2}, {"v": 3}]) == [(3,), (3,)]
        assert harness.side_output("seen") == [(2,), (1,)]
        assert harness.states() == {"sums": [6]}


def test_a_snapshot_is_restored_with_other_code_and_another_number() -> None:
    class More(Batches):
        more = ps.OperatorListState("string")

    with ProcessHarness(Batches(), side_outputs=["seen"]) as harness:
        harness.process([{"v": 1}])
        snapshot = pickle.loads(pickle.dumps(harness.snapshot()))
    with ProcessHarness.restore(snapshot, More(), parallelism=3) as restored:
        assert [restored.state("waiting", i) for i in range(3)] == [[1], [], []]
        assert restored.states(2) == {"waiting": [], "more": []}
        assert restored.process([{"v": 2}]) == [(1, 2)]
        with pytest.raises(UnknownStateError, match="no state 'weight'"):
            restored.state("weight")
        with pytest.raises(InvalidArgumentError, match="the instance"):
            restored.state("waiting", 3)
        with pytest.raises(InvalidArgumentError, match="has no keys"):
            restored.keys()
        with pytest.raises(InvalidArgumentError, match="parallelism is 1 to"):
            restored.rescale(0)


def made(**content: Any) -> ps.ProcessFunction:
    def process(self: Any, row: Any, ctx: Any) -> None: ...

    content = {"process": process, "items": ps.OperatorListState("long"), **content}
    content = {name: value for name, value in content.items() if value is not None}
    return type("Made", (ps.ProcessFunction,), content)()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"items": None}, "Made declares no state: .* declare a ps.OperatorListState"),
        ({"items": ps.ValueState("long")}, "Made.items .* the state of a key, and a ProcessFunc"),
        ({"items": ps.BroadcastState("int", "int")}, "copies would not stay the same"),
        ({"process": None}, r"neither process\(self, row, ctx\) nor process_rows\(self, batch, "),
        ({"process_rows": lambda self, batch, ctx: None}, "both process and process_rows"),
        ({"on_timer": lambda self, key, timestamp, ctx: None}, "timers belong to keys"),
        ({"namespace": "long"}, "namespaces belong to keys"),
    ],
)
def test_a_wrong_function_is_refused(content: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        ProcessHarness(made(**content))


def test_what_belongs_to_keys_is_refused_while_a_function_runs() -> None:
    def timer(self: Any, row: Any, ctx: Any) -> None:
        ctx.register_processing_time_timer(1)

    def namespace(self: Any, row: Any, ctx: Any) -> None:
        ctx.set_namespace(1)

    def one_row(self: Any, row: Any, ctx: Any) -> Any:
        return (1, 2)

    def number(self: Any, ctx: Any) -> Any:
        return 5

    def refused(error: type[Exception], message: str, **content: Any) -> None:
        with ProcessHarness(made(**content)) as harness, pytest.raises(error, match=message):
            harness.process([{"v": 1}])

    refused(DeclarationError, "whose rows have no keys", process=timer)
    refused(DeclarationError, "whose rows have no keys", process=namespace)
    refused(WrongTypeError, r"Made\.process returned \(1, 2\)", process=one_row)
    refused(WrongTypeError, r"Made\.on_epoch_end returned 5", on_epoch_end=number)
    with pytest.raises(AttributeError, match="write instance"):
        _ = ps.InstanceContext.subtask  # type: ignore[attr-defined]


def test_operator_state_is_refused_in_a_function_of_keys() -> None:
    class Keyed(ps.KeyedProcessFunction):
        items = ps.OperatorListState("long")

        def process(self, key: Any, row: Any, ctx: Any) -> Any:
            return None

    with pytest.raises(DeclarationError, match=r"declare it in a ps\.ProcessFunction"):
        Harness(Keyed(), key={"k": "long"})


def test_a_function_without_keys_is_refused_where_rows_have_keys() -> None:
    with pytest.raises(DeclarationError, match=r"Columns is a ps\.ProcessFunction, for rows with"):
        Harness(Columns(), key={"k": "long"})


class Begins(ps.ProcessFunction):
    """Two lists that begin with items, and a raw state, which cannot."""

    own = ps.OperatorListState("long")
    every = ps.OperatorListState("string", redistribute="union")
    objects = ps.OperatorListState(object)
    streams = ps.RawState()

    def open(self, ctx: ps.InstanceContext) -> None:
        if ctx.redistributed:
            self.every.update(
                [one for one in self.every if ord(one) % ctx.parallelism == ctx.instance]
            )

    def process(self, row: Any, ctx: ps.InstanceContext) -> Any:
        yield ctx.instance, ctx.redistributed, ctx.epoch


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("fails", [None, "seal", "publish"])
def test_lists_begin_with_items(parallelism: int, fails: Any) -> None:
    items = pa.table(
        {
            "own": pa.array([*range(10), None], pa.int32()),
            "every": ["a", None, "b", "c", *"defghij"],
            "objects": pa.array([pickle.dumps({"n": 1})] + [None] * 10, pa.binary()),
        }
    )

    def all_of(name: str) -> list[Any]:
        return [harness.state(name, i) for i in range(parallelism)]

    with ProcessHarness(Begins(), parallelism=parallelism, initial_state=items) as harness:
        if fails is not None:
            harness.fail_at(fails)
        assert harness.process([{"v": i} for i in range(parallelism)]) == [
            (i, True, 1) for i in range(parallelism)
        ]
        assert harness.process([{"v": 1}]) == [(0, False, 2)]
        sizes = [len(own) for own in all_of("own")]
        assert max(sizes) - min(sizes) <= 1
        assert sorted(v for own in all_of("own") for v in own) == [*range(10)]
        assert sorted(v for every in all_of("every") for v in every) == [*"abcdefghij"]
        assert [v for each in all_of("objects") for v in each] == [{"n": 1}]
        harness.rescale(2)
        harness.process([])
        parallelism = 2
        assert sorted(v for own in all_of("own") for v in own) == [*range(10)]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (3, WrongTypeError, "initial_state is a pyarrow.Table"),
        ({"x": [1]}, InvalidArgumentError, "column 'x' is no state: .* lists are 'own', 'every'"),
        ({"streams": [b"x"]}, InvalidArgumentError, "column 'streams' is a RawState"),
        ({"own": ["x"]}, WrongTypeError, "initial_state: state 'own'"),
        ({"own": [1.5]}, WrongTypeError, "initial_state: state 'own'"),
        ({}, InvalidArgumentError, "no column"),
    ],
)
def test_what_lists_cannot_begin_with(given: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=f"^operator 'harness': .*{message}"):
        ProcessHarness(Begins(), initial_state=given)
