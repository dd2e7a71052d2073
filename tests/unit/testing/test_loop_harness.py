"""Loops in the harness: cycles of plain Python, with failures and another parallelism between."""

from __future__ import annotations

from typing import Any, Literal

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as hs

import pystate as ps
from pystate.errors import InvalidArgumentError, LoopNotEmptyError, SchemaError, WrongTypeError
from pystate.testing import Harness, LoopHarness
from tests.drawn import drawn

MESSAGE = "node long, label long, neighbour long"


class Label(ps.KeyedProcessFunction):
    """The smallest label that a node has heard of; news goes to its neighbours."""

    label = ps.ValueState("long")
    neighbours = ps.MapState("long", "boolean")

    def process(self, key: int, row: Any, ctx: ps.RuntimeContext) -> Any:
        label = self.label.value()
        if row["neighbour"] is not None and row["neighbour"] not in self.neighbours:
            self.neighbours.put(row["neighbour"], True)
            if label is not None:
                yield row["neighbour"], label, None
        if label is None or row["label"] < label:
            self.label.update(row["label"])
            for neighbour in self.neighbours.keys():  # noqa: SIM118 (a state, not a dict)
                yield neighbour, row["label"], None


EDGES = hs.lists(hs.tuples(hs.integers(0, 12), hs.integers(0, 12)), max_size=14)
POINTS: tuple[Literal["seal", "publish"] | None, ...] = (None, "seal", "publish")


@drawn(40)
@given(EDGES, hs.lists(hs.tuples(hs.sampled_from(POINTS), hs.integers(1, 4)), min_size=1))
def test_components_are_those_of_networkx(
    edges: list[tuple[int, int]], disturbances: list[tuple[Any, int]]
) -> None:
    """Whatever epoch fails, and however many ranges there are in each."""
    rows = [(a, a, b) for a, b in edges] + [(b, b, a) for a, b in edges]
    with (
        Harness(Label(), key=["node"], columns=MESSAGE, schema=MESSAGE) as nodes,
        LoopHarness(MESSAGE) as loop,
    ):
        for epoch in range(30):
            point, parallelism = disturbances[epoch % len(disturbances)]
            fed = nodes.process([*(rows if epoch == 0 else []), *loop.rows()])
            loop.feed(fed, fail_at=point)
            assert loop.in_flight == len(fed)
            loop.rescale(parallelism)
            if not fed:
                break
        assert not loop.rows()
        found = {node: nodes.state("label", node) for node in nodes.keys()}  # noqa: SIM118
    components = nx.connected_components(nx.Graph(edges))
    assert found == {node: min(nodes) for nodes in components for node in nodes}


def test_a_loop_forgets_what_is_not_fed_again() -> None:
    with LoopHarness("n long, s string", parallelism=3, name="l") as loop:
        assert loop.rows() == []
        loop.feed([(1, "a"), {"n": 2}])
        assert sorted(map(tuple, loop.rows())) == [(1, "a"), (2, None)]
        with pytest.raises(WrongTypeError):
            loop.feed([("x", "a")])
        assert loop.in_flight == 2
        loop.feed()
        assert loop.rows() == []
        assert repr(loop) == "<LoopHarness of n, s>"
        with pytest.raises(InvalidArgumentError, match=r"^loop 'l': fail_at"):
            loop.feed(fail_at="x")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match=r"^loop 'l': parallelism"):
            loop.rescale(0)


def test_rows_in_flight_go_on_from_a_snapshot() -> None:
    with LoopHarness("n long", parallelism=2) as loop:
        loop.fail_at("publish")
        loop.feed([(1,), (2,)])
        snapshot = loop.snapshot()
        assert (loop.epoch, loop.failures, loop.late_rows) == (1, 1, 0)
        loop.drain([(3,)])
        assert loop.rows() == [(3,)] and loop.failures == 1
    with LoopHarness.restore(snapshot, "n long", parallelism=3) as loop:
        assert sorted(loop.rows()) == [(1,), (2,)] and loop.epoch == 1
    with pytest.raises(SchemaError, match="n: string"):
        LoopHarness.restore(snapshot, "n string")
    with pytest.raises(InvalidArgumentError, match="restore takes what snapshot"):
        LoopHarness.restore("rows", "n long")  # type: ignore[arg-type]


def test_rounds_are_bounded() -> None:
    def again(rows: list[Any], fed: list[Any]) -> tuple[int, list[Any]]:
        return len(rows), [*rows, *fed]

    with LoopHarness("n long") as loop:
        with pytest.raises(LoopNotEmptyError, match="2 rows are in flight after 3 epochs"):
            loop.run_until_empty([(1,), (2,)], again, max_rounds=3)
        assert loop.run_until_empty([], lambda rows, fed: (fed, [])) == [[(1,), (2,)]]
