"""Namespaces: states and timers by (key, namespace), in functions and of a backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pystate as ps
from pystate.errors import (
    DeclarationError,
    InvalidArgumentError,
    StaleKeyBatchError,
    WrongTypeError,
)
from pystate.testing import Harness

COLUMNS = "k string, at long"


class Windows(ps.KeyedProcessFunction):
    """Counts rows per ten milliseconds."""

    namespace = "long"
    n = ps.ValueState("long", default=0)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        assert self.n.value() == 0, "a call begins in the default namespace"
        begin = row.at // 10 * 10
        ctx.set_namespace(begin)
        self.n.update(self.n.value() + 1)
        ctx.register_event_time_timer(begin + 9)

    def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> Any:
        yield key, timestamp - 9, self.n.value()
        self.n.clear()


def rows(*pairs: tuple[str, int]) -> list[Any]:
    return list(pairs)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_states_and_timers_by_namespace(parallelism: int) -> None:
    with Harness(
        Windows(), {"k": "string"}, columns=COLUMNS, event_time="at", parallelism=parallelism
    ) as harness:
        harness.process(rows(("a", 1), ("b", 11), ("a", 5), ("a", 12)))
        assert harness.state("n", "a") == 0
        assert harness.state("n", "a", namespace=0) == 2
        assert harness.state("n", "a", namespace=10) == 1
        assert harness.state("n", "b", namespace=0) == 0
        assert harness.advance_watermark(9) == [("a", 0, 2)]
        assert sorted(harness.advance_watermark(30)) == [("a", 10, 1), ("b", 10, 1)]
        assert harness.keys() == []


def test_timers_of_two_namespaces_at_one_time() -> None:
    class Both(ps.KeyedProcessFunction):
        namespace = "string"
        n = ps.ValueState("long", default=0)

        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
            for name in ("x", "y", None):
                ctx.set_namespace(name)
                self.n.update(len(name or "default"))
                ctx.register_event_time_timer(10)

        def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> Any:
            yield key, timestamp, self.n.value()

    with Harness(Both(), {"k": "string"}, columns=COLUMNS, event_time="at") as harness:
        harness.process(rows(("a", 1)))
        assert sorted(harness.advance_watermark(10)) == [("a", 10, 1), ("a", 10, 1), ("a", 10, 7)]


def test_namespaces_survive_a_restore_and_a_failure() -> None:
    with Harness(
        Windows(), {"k": "string"}, columns=COLUMNS, event_time="at", parallelism=2
    ) as harness:
        harness.fail_after(2)
        harness.process(rows(("a", 1), ("b", 11), ("a", 5), ("a", 12)))
        snapshot = harness.snapshot()
    with Harness.restore(snapshot, Windows(), parallelism=3) as restored:
        restored.fail_after(timers=1)
        found = restored.advance_watermark(30)
        assert sorted(found) == [("a", 0, 2), ("a", 10, 1), ("b", 10, 1)]


def test_a_namespace_of_another_type() -> None:
    class Wrong(Windows):
        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
            ctx.set_namespace("ten")

    with (
        Harness(Wrong(), {"k": "string"}, columns=COLUMNS, event_time="at") as harness,
        pytest.raises(WrongTypeError),
    ):
        harness.process(rows(("a", 1)))


class Spaced(ps.KeyedProcessFunction):
    """A value and an object in two namespaces, written from a timer too."""

    namespace = "long"
    v = ps.ValueState("string")
    o = ps.ValueState(object)

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
        self.v.update("default")
        self.o.update(["default"])
        ctx.set_namespace(5)
        self.v.update("five")
        self.o.update(["five"])
        ctx.register_event_time_timer(row.at)

    def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> None:
        self.o.update(["rung"])


def test_a_look_is_at_the_namespace_that_it_names() -> None:
    with Harness(Spaced(), key="k", columns=COLUMNS, event_time="at") as harness:
        harness.process([("a", 1)])
        for _ in range(2):
            assert [harness.state(n, "a") for n in ("v", "o")] == ["default", ["default"]]
            assert [harness.state(n, "a", 5) for n in ("v", "o")] == ["five", ["five"]]
        harness.advance_watermark(50)
        assert harness.state("o", "a") == ["default"]
        assert harness.state("o", "a", 5) == ["rung"]


STATES: dict[str, ps.State] = {
    "n": ps.ValueState("long", default=0),
    "o": ps.ValueState(object),
    "l": ps.ListState("long"),
    "r": ps.ReducingState("long", max),
}


def spaced(type: str) -> ps.KeyedStateBackend:
    return ps.KeyedStateBackend("string", states=STATES, namespace=type, uid="orders")


@pytest.mark.parametrize(
    ("type", "given", "same"),
    [
        ("float", 0.1, float(np.float32(0.1))),
        ("double", float("nan"), -float("nan")),
        ("double", 0.0, -0.0),
        ("double", 3, 3.0),
        ("binary", b"x", bytearray(b"x")),
        ("long", 7, np.int32(7)),
    ],
)
def test_equal_namespaces_are_one(type: str, given: Any, same: Any) -> None:
    with spaced(type) as backend:
        for epoch in range(2):
            for name in (given, same):
                backend.set_current_key("a")
                backend.set_current_namespace(name)
                backend["n"].update(backend["n"].value() + 1)
                backend["o"].update([*(backend["o"].value() or []), epoch])
                keys = backend.keys(["a"], [same])
                assert backend["o"].values(keys) == [backend["o"].value()]
            backend.seal()
        backend.set_current_key("a")
        backend.set_current_namespace(same)
        assert backend["n"].value() == 4
        assert backend["o"].value() == [0, 0, 1, 1]


@pytest.mark.parametrize("name", ["l", "r"])
def test_a_namespace_is_not_merged_into_itself(name: str) -> None:
    nan = float("nan")
    with spaced("double") as backend:
        backend.set_current_key("a")
        backend.set_current_namespace(nan)
        handle = backend[name]
        handle.add(5)
        handle.merge_namespaces(-nan, [nan, -nan])
        assert handle.get() in (5, [5])
        handle.merge_namespaces(None, [nan, nan])
        backend.set_current_namespace(None)
        assert handle.get() in (5, [5])


def test_a_namespace_of_another_type_leaves_the_current_one() -> None:
    with spaced("long") as backend:
        backend.set_current_namespace(1)
        for _ in range(2):
            with pytest.raises(WrongTypeError, match="the namespace is long"):
                backend.set_current_namespace("one")
            assert backend.current_namespace == 1
            with pytest.raises(WrongTypeError, match="the namespace"):
                backend["l"].merge_namespaces(1, ["one"])
            with pytest.raises(WrongTypeError, match="takes a list of sources, got 2"):
                backend["l"].merge_namespaces(1, 2)
            backend.set_current_key("a")
        backend["n"].update(3)
        assert backend["n"].values(backend.keys(["a"], [1])).to_pylist() == [3]


def test_a_row_that_is_selected_makes_its_namespace_current() -> None:
    with spaced("long") as backend:
        backend.set_current_namespace(1)
        keys = backend.keys(["a", "b", "c"], [5, None, 6])
        keys.select(0)
        backend.set_current_key("z")
        assert backend.current_namespace == 5
        backend["n"].update(1)
        keys.select(1)
        assert backend.current_namespace is None
        keys.select(2)
        backend.seal()
        assert backend.current_namespace == 6
        assert backend["n"].values(backend.keys(["z", "z"], [5, 1])).to_pylist() == [1, 0]


def test_keys_of_a_batch_in_other_namespaces() -> None:
    with spaced("long") as backend:
        keys = backend.keys(["a", "b", "a"])
        backend["n"].add(keys, 1)
        backend["n"].add(keys.in_namespaces(5), 10)
        backend["n"].add(keys.in_namespaces([5, 6, None]), 100)
        found = {
            space: backend["n"].values(keys.in_namespaces(space)).to_pylist()
            for space in (None, 5, 6)
        }
        assert found == {None: [102, 1, 102], 5: [120, 10, 120], 6: [0, 100, 0]}
        assert keys.in_namespaces(5).in_namespaces(None).namespaces().to_pylist() == [None] * 3
        assert keys.in_namespaces(5).to_pylist() == ["a", "b", "a"]
        with pytest.raises(WrongTypeError, match="the namespaces"):
            keys.in_namespaces("five")
        with pytest.raises(InvalidArgumentError, match="the namespaces: 1 values for 3 keys"):
            keys.in_namespaces([5])
        backend.seal()
        with pytest.raises(StaleKeyBatchError):
            keys.in_namespaces(5)
    with (
        ps.KeyedStateBackend("string", states=STATES) as plain,
        pytest.raises(DeclarationError, match="without namespaces"),
    ):
        plain.keys(["a"]).in_namespaces(5)


def test_a_vectorised_function_in_namespaces() -> None:
    class Vector(ps.VectorizedFunction):
        namespace = "long"
        n = ps.ValueState("long", default=0)

        def process(self, keys: ps.KeyBatch, batch: Any, ctx: ps.RuntimeContext) -> None:
            windows = keys.in_namespaces([at // 10 * 10 for at in batch.column("at").to_pylist()])
            self.n.add(windows, 1)
            ctx.register_event_time_timers(windows, 9)

        def on_timers(self, keys: ps.KeyBatch, timestamps: Any, ctx: ps.RuntimeContext) -> Any:
            yield {"k": keys.key_arrays()[0], "at": keys.namespaces(), "n": self.n.values(keys)}

    with Harness(Vector(), {"k": "string"}, columns=COLUMNS, event_time="at") as harness:
        harness.process(rows(("a", 1), ("b", 11), ("a", 5), ("a", 12)))
        assert harness.state("n", "a", namespace=0) == 2
        assert harness.state("n", "a") == 0
        fired = harness.advance_watermark(30)
        assert sorted(fired) == [("a", 0, 2), ("a", 10, 1), ("b", 10, 1)]


@pytest.mark.parametrize("value", ["ten", None])
def test_a_vectorised_function_takes_the_batchs_namespaces(value: Any) -> None:
    class Vector(ps.VectorizedFunction):
        namespace = "string"
        n = ps.ValueState("long", default=0)

        def process(self, keys: Any, batch: Any, ctx: Any) -> None:
            ctx.set_namespace(value)
            self.n.add(keys, 1)

    with (
        Harness(Vector(), key="k", uid="one") as harness,
        pytest.raises(InvalidArgumentError, match=r"'one': set_namespace .* keys.in_namespaces\("),
    ):
        harness.process([{"k": 1}])
