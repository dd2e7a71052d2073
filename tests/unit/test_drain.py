"""Drains: event time ends after the rows of an epoch, and goes on after it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.epochs.coordinator import Coordinator
from pystate.epochs.epoch import Epoch
from pystate.epochs.watermarks import Input
from pystate.errors import EvaluationError, NoEventTimeError
from pystate.operators.runtime import call_shapes
from pystate.testing import Harness
from tests.conftest import KEY, STATE, FakeWork


class Rings(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> Any:
        yield key, timestamp, self.n.value(), ctx.watermark


class Alarms(Rings):
    """Rings 10 ms after each row, and tells what it sees."""

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
        assert ctx.watermark != ps.MAX_WATERMARK
        self.n.update(self.n.value() + 1)
        ctx.register_event_time_timer(row.at + 10)


class KeyAlarms(Rings):
    """The same, a key's rows at a time: they are held back until the rows have ended."""

    def process_rows(self, key: Any, batch: pa.RecordBatch, ctx: ps.RuntimeContext) -> None:
        assert ctx.watermark != ps.MAX_WATERMARK
        self.n.update(self.n.value() + batch.num_rows)
        for at in batch["at"].to_pylist():
            ctx.register_event_time_timer(at + 10)


class VectorAlarms(ps.VectorizedFunction):
    """The same, a batch at a time."""

    n = ps.ValueState("long", default=0)

    def process(self, keys: ps.KeyBatch, batch: pa.RecordBatch, ctx: ps.RuntimeContext) -> None:
        assert ctx.watermark != ps.MAX_WATERMARK
        self.n.add(keys, 1)
        ctx.register_event_time_timers(keys, batch["at"].to_numpy() + 10)

    def on_timers(self, keys: ps.KeyBatch, timestamps: Any, ctx: ps.RuntimeContext) -> Any:
        found = {"k": keys.key_arrays()[0], "at": timestamps, "n": self.n.values(keys)}
        yield {**found, "mark": pa.array([ctx.watermark] * len(timestamps))}


def row(key: str, at: int) -> dict[str, Any]:
    return {"k": key, "at": at}


END = ps.MAX_WATERMARK


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("function", [Alarms(), KeyAlarms(), VectorAlarms()])
def test_all_timers_fire_and_more_input_goes_on(function: Any, parallelism: int) -> None:
    with Harness(
        function, key="k", event_time="at", allowed_delay=5, late="late", parallelism=parallelism
    ) as harness:
        assert harness.process([row("a", 1), row("b", 100)]) == []
        assert harness.watermark == 95
        # The rows of an epoch that drains are late by its watermark, not by the end of time.
        drained = harness.drain([row("c", 110), row("d", 3)])
        assert sorted(map(tuple, drained)) == [
            ("a", 11, 1, END),
            ("b", 110, 1, END),
            ("c", 120, 1, END),
        ]
        assert harness.side_output("late") == [("d", 3)]
        assert (harness.watermark, harness.next_timer("event")) == (105, None)
        assert harness.drain() == []

        # What comes later is late by the watermark alone, and opens anew what had ended.
        assert harness.process([row("a", 2), row("b", 106)]) == []
        assert harness.side_output("late")[1:] == [("a", 2)]
        assert list(map(tuple, harness.process([row("z", 121)]))) == []
        assert list(map(tuple, harness.process([]))) == [("b", 116, 2, 116)]


class Rechecking(ps.KeyedProcessFunction):
    """Has a follow-up for each timer, until it has rung three times, or for ever."""

    last = ps.ValueState("long", ttl=ps.StateTtl(hours=1, time="event"))

    def __init__(self, times: int = 3) -> None:
        self.times = times

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
        self.last.update(row.at)
        ctx.register_event_time_timer(row.at + 10)
        ctx.register_processing_time_timer(50)

    def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> Any:
        yield key, timestamp, self.last.value(), ctx.time_domain
        if self.last.value() + 10 * self.times > timestamp and ctx.time_domain == "event":
            ctx.register_event_time_timer(timestamp + 10)


def test_follow_ups_fire_time_to_live_and_processing_time_stand_still() -> None:
    with Harness(Rechecking(), key="k", event_time="at", allowed_delay=0) as harness:
        harness.process([row("a", 0)])
        assert harness.drain() == [("a", t, 0, "event") for t in (10, 20, 30)]
        assert harness.state("last", "a") == 0
        assert harness.next_timer("processing") == 50
        assert harness.advance_processing_time(50) == [("a", 50, 0, "processing")]


def test_a_drain_without_an_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_shapes, "_MOST", 100)
    monkeypatch.setattr(call_shapes, "_MOST_EACH", 20)
    with Harness(Rechecking(1_000), key="k", event_time="at") as harness:
        harness.process([row(key, 0) for key in "abc"])
        with pytest.raises(EvaluationError, match=r"^operator 'harness': .* have no end.* a drain"):
            harness.drain()
        assert harness.next_timer("event") == 10
    with Harness(Rechecking(15), key="k", event_time="at") as harness:
        harness.process([row(str(i), 0) for i in range(30)])
        assert len(harness.drain()) == 30 * 15


def test_a_drain_that_fails_half_way_is_repeated() -> None:
    with Harness(Alarms(), key="k", event_time="at", parallelism=2) as harness:
        harness.process([row(key, 1) for key in "abcdef"])
        harness.fail_after(timers=3)
        assert sorted(harness.drain()) == [(key, 11, 1, END) for key in "abcdef"]
        harness.process([row("a", 20)])
        harness.fail_at("publish")
        assert harness.drain() == [("a", 30, 2, END)]
        assert harness.failures == 2


def test_without_event_time_there_is_nothing_to_end(work: FakeWork) -> None:
    with (
        Harness(Alarms(), key="k") as harness,
        pytest.raises(NoEventTimeError, match=r"^operator 'harness': drain .* event_time='column'"),
    ):
        harness.drain()
    coordinator: Coordinator = work.coordinator()
    with coordinator, coordinator.open_epoch(drain=True) as epoch:
        assert isinstance(epoch, Epoch) and epoch.drain
        epoch.declare("op", key_schema=KEY, state_schema=STATE)
        with pytest.raises(NoEventTimeError, match=r"^drain=True takes .* event_time='column'"):
            epoch.check_declared()
        epoch.restart()
        epoch.declare("op", key_schema=KEY, state_schema=STATE, inputs=(Input(event_time=True),))
        epoch.check_declared()
