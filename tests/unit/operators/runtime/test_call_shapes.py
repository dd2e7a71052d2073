"""Timers that callbacks register when they are due already: a loop without an end is an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pystate as ps
from pystate.errors import EvaluationError
from pystate.operators.runtime import call_shapes
from pystate.testing import BroadcastHarness, Harness, TwoInputHarness

Register = Callable[[Any, int], None]

_REGISTER: dict[str, Register] = {
    "event": lambda ctx, at: ctx.register_event_time_timer(at),
    "processing": lambda ctx, at: ctx.register_processing_time_timer(at),
}


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_shapes, "_MOST", 300)
    monkeypatch.setattr(call_shapes, "_MOST_STILL", 300)
    monkeypatch.setattr(call_shapes, "_MOST_EACH", 4)
    monkeypatch.setattr(call_shapes, "_SAMPLED", 1)


class Again(ps.KeyedProcessFunction):
    """For the key "x" registers the timer anew that fires; for others at most `chain` ones."""

    def __init__(self, domain: str, chain: int = 3) -> None:
        self.domain = domain
        self.chain = chain

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
        _REGISTER[self.domain](ctx, row["at"])

    def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> Iterator[Any]:
        if key == "x":
            _REGISTER[self.domain](ctx, timestamp)
        elif timestamp < self.chain:
            _REGISTER[self.domain](ctx, timestamp + 1)
        yield key, timestamp


class AgainInNamespaces(Again):
    namespace = "long"

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
        ctx.set_namespace(7)
        super().process(key, row, ctx)


class AgainByKey(ps.KeyedProcessFunction):
    def __init__(self, domain: str) -> None:
        self.domain = domain

    def process_rows(self, key: Any, batch: pa.RecordBatch, ctx: ps.RuntimeContext) -> None:
        _REGISTER[self.domain](ctx, 0)

    def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> None:
        if key == "x":
            _REGISTER[self.domain](ctx, timestamp)


class VectorAgain(ps.VectorizedFunction):
    def __init__(self, domain: str) -> None:
        self.domain = domain

    def process(self, keys: ps.KeyBatch, batch: pa.RecordBatch, ctx: ps.RuntimeContext) -> None:
        self.register(keys, batch["at"], ctx)

    def register(self, keys: ps.KeyBatch, times: Any, ctx: ps.RuntimeContext) -> None:
        if self.domain == "event":
            ctx.register_event_time_timers(keys, times)
        else:
            ctx.register_processing_time_timers(keys, times)

    def on_timers(self, keys: ps.KeyBatch, timestamps: Any, ctx: ps.RuntimeContext) -> None:
        other = np.array([key != "x" for key in keys.to_pylist()])
        self.register(keys, pa.array(timestamps, mask=other), ctx)


class PingPong(ps.KeyedProcessFunction):
    """Each clock registers a timer of the other."""

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
        ctx.register_event_time_timer(0)

    def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> None:
        _REGISTER["event" if ctx.time_domain == "processing" else "processing"](ctx, 0)


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("domain", ["event", "processing"])
@pytest.mark.parametrize("make", [Again, AgainInNamespaces, AgainByKey, VectorAgain])
def test_a_key_whose_timers_have_no_end_is_named(
    make: Callable[[str], Any], domain: str, parallelism: int
) -> None:
    rows = [{"k": key, "at": 0} for key in ["x", *"abcdefgh"]]
    with Harness(make(domain), key="k", event_time="at", parallelism=parallelism) as harness:
        harness.advance_watermark(0)
        space = ", namespace 7" if make is AgainInNamespaces else ""
        with pytest.raises(
            EvaluationError, match=rf"operator 'harness': the timers of key 'x'{space} have no end"
        ):
            harness.process(rows)
        # Nothing has changed.
        assert harness.keys() == []
        harness.process(rows[1:])


def test_two_clocks_that_register_each_other_have_no_end() -> None:
    with Harness(PingPong(), key="k", event_time="at") as harness:
        harness.advance_watermark(5)
        with pytest.raises(EvaluationError, match="timers of key 1 have no end"):
            harness.process([{"k": 1, "at": 9}])


class Back(Again):
    def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> Iterator[Any]:
        _REGISTER[self.domain](ctx, timestamp - 1)
        yield key, timestamp


@pytest.mark.parametrize("domain", ["event", "processing"])
@pytest.mark.parametrize("make", [Again, Back, VectorAgain])
def test_timers_that_do_not_get_on_are_noticed_earlier(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Any], domain: str
) -> None:
    monkeypatch.setattr(call_shapes, "_MOST", 10**6)
    monkeypatch.setattr(call_shapes, "_MOST_STILL", 100)
    with Harness(make(domain), key="k", event_time="at") as harness:
        harness.advance_watermark(0)
        with pytest.raises(EvaluationError, match="timers of key 'x' have no end"):
            harness.process([{"k": key, "at": 0} for key in "axb"])
    # A chain that gets on is as long as before, with many keys at each time.
    keys = [str(i) for i in range(20)]
    with Harness(Again(domain, chain=120), key="k", event_time="at") as harness:
        harness.process([{"k": key, "at": 0} for key in keys])
        harness.advance_processing_time(10_000)
        harness.advance_watermark(10_000)
        assert harness.process([{"k": "x", "at": 20_000}]) == []


def test_chains_of_many_keys_end() -> None:
    """Together they register more than the bound of a key."""
    with Harness(Again("event", chain=250), key="k", event_time="at") as harness:
        harness.process([{"k": str(i), "at": 0} for i in range(20)])
        assert len(harness.advance_watermark(1_000)) == 20 * 251
    # A key with many timers may have as many times more.
    with Harness(Again("event", chain=200), key="k", event_time="at") as harness:
        harness.process([{"k": "one", "at": -i} for i in range(150)])
        assert len(harness.advance_watermark(1_000)) == 350


def test_small_batches_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_shapes, "_SAMPLED", 16)
    with (
        Harness(Again("processing"), key="k") as harness,
        pytest.raises(EvaluationError, match="timers of key 'x' have no end"),
    ):
        harness.process([{"k": key, "at": 0} for key in "abxc"])


def again(base: Any, **members: Any) -> Any:
    """A function of another base that registers a timer that is due, again and again."""

    def register(self: Any, key: Any, row_or_time: Any, ctx: ps.RuntimeContext) -> None:
        ctx.register_processing_time_timer(0)

    rows = dict.fromkeys(members.pop("rows"), register)
    return type("Again", (base,), {**rows, "on_timer": register, **members})()


def test_so_it_is_with_other_inputs() -> None:
    both = again(ps.KeyedCoProcessFunction, rows=["process_left", "process_right"])
    rules = again(
        ps.KeyedBroadcastProcessFunction,
        rows=["process"],
        limits=ps.BroadcastState("string", "long"),
        process_broadcast=lambda self, row, ctx: self.limits.put("a", 1),
    )
    with (
        TwoInputHarness(both, "k", left="k string", right="k string") as harness,
        pytest.raises(EvaluationError, match="timers of key 'r' have no end"),
    ):
        harness.process(right=[{"k": "r"}])
    with (
        BroadcastHarness(rules, key="k") as harness,
        pytest.raises(EvaluationError, match="timers of key 'b' have no end"),
    ):
        harness.process([{"k": "b"}])
