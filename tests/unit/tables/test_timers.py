"""Timers: when they fire, in what order, with what state, and that they are state themselves."""

from __future__ import annotations

import io
import resource
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pystate as ps
from pystate.errors import (
    DeclarationError,
    InvalidArgumentError,
    NoCurrentKeyError,
    NoEventTimeError,
)
from pystate.operators.runtime import call_shapes
from pystate.tables.timers import TimeDomain
from pystate.testing import Harness


class Rings(ps.KeyedProcessFunction):
    rung = ps.ValueState("long", default=0)

    def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> Any:
        self.rung.update(self.rung.value() + 1)
        yield key, timestamp, ctx.time_domain, ctx.timestamp, self.rung.value()


class Alarm(Rings):
    """Does what each row says: register or delete a timer."""

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
        getattr(ctx, f"{row.do}_{row.domain}_time_timer")(row.at)


class KeyAlarm(Rings):
    """The same, a key's rows at a time."""

    def process_rows(self, key: Any, batch: pa.RecordBatch, ctx: ps.RuntimeContext) -> None:
        for row in batch.to_pylist():
            getattr(ctx, f"{row['do']}_{row['domain']}_time_timer")(row["at"])


class VectorAlarm(ps.VectorizedFunction):
    """The same, a batch at a time; only registers event-time timers."""

    rung = ps.ValueState("long", default=0)

    def process(self, keys: ps.KeyBatch, batch: pa.RecordBatch, ctx: ps.RuntimeContext) -> None:
        ctx.register_event_time_timers(keys, batch.column("at"))

    def on_timers(
        self, keys: ps.KeyBatch, timestamps: np.ndarray[Any, Any], ctx: ps.RuntimeContext
    ) -> Any:
        assert ctx.timestamp is None
        self.rung.add(keys, 1)
        domains = [ctx.time_domain] * len(keys)
        return {"k": keys.key_arrays()[0], "at": timestamps, "domain": domains}


COLUMNS = "k string, at long, do string, domain string"


def timers(*pairs: tuple[Any, int], do: str = "register", domain: str = "event") -> list[Any]:
    return [(k, at, do, domain) for k, at in pairs]


def alarm(function: Any = None, **options: Any) -> Harness:
    options.setdefault("event_time", "at")
    return Harness(function or Alarm(), key={"k": "string"}, columns=COLUMNS, **options)


def fired(rows: list[Any]) -> list[tuple[Any, int]]:
    return [(row[0], row[1]) for row in rows]


# -- when


@pytest.mark.parametrize("function", [Alarm(), KeyAlarm(), VectorAlarm()])
def test_event_time_timers_fire_when_the_watermark_reaches_them(function: Any) -> None:
    with alarm(function) as harness:
        assert harness.process(timers(("a", 20), ("b", 10), ("a", 10))) == []
        assert harness.advance_watermark(9) == []
        assert sorted(fired(harness.advance_watermark(10))) == [("a", 10), ("b", 10)]
        assert harness.next_timer("event") == 20
        assert fired(harness.advance_watermark(30)) == [("a", 20)]
        assert harness.advance_watermark(40) == []
        assert (harness.next_timer("event"), harness.state("rung", "a")) == (None, 2)


def test_processing_time_timers_fire_when_the_epochs_time_reaches_them() -> None:
    with alarm(processing_time=100) as harness:
        harness.process(timers(("a", 150), domain="processing"))
        assert harness.advance_watermark(1000) == []
        assert harness.advance_processing_time(149) == []
        assert harness.advance_processing_time(150) == [("a", 150, "processing", None, 1)]
        assert harness.next_timer("processing") is None


def test_a_timer_that_is_due_already_fires_at_the_end_of_the_epoch() -> None:
    with alarm() as harness:
        harness.advance_watermark(50)
        rows = timers(("a", 10), ("b", 60))
        assert harness.process(rows) == [("a", 10, "event", 10, 1)]
        assert harness.process(timers(("a", 0), domain="processing")) == [
            ("a", 0, "processing", None, 2)
        ]


def test_event_time_comes_before_processing_time() -> None:
    with alarm() as harness:
        harness.advance_watermark(10)
        rows = [*timers(("a", 0), domain="processing"), *timers(("a", 10))]
        assert [row[2] for row in harness.process(rows)] == ["event", "processing"]


@pytest.mark.parametrize("at", [-(2**63), -1, 0, 2**63 - 1])
def test_timestamps_at_the_ends_of_the_type(at: int) -> None:
    with alarm() as harness:
        harness.process(timers(("a", at)))
        if at > -(2**63):
            assert harness.advance_watermark(at - 1) == []
        assert fired(harness.advance_watermark(at)) == [("a", at)]


# -- which


def test_a_timer_registered_twice_is_one() -> None:
    with alarm() as harness:
        harness.process(timers(("a", 10), ("a", 10)))
        harness.process(timers(("a", 10)))
        assert fired(harness.advance_watermark(10)) == [("a", 10)]


def test_equal_timestamps() -> None:
    keys = [f"key {i}" for i in range(100)]
    with alarm(parallelism=3) as harness:
        harness.process(timers(*((key, 10) for key in keys)))
        harness.process(timers(*((key, 10) for key in keys), domain="processing"))
        assert {row[2] for row in harness.take_output()} == set()
        assert sorted(fired(harness.advance_watermark(10))) == sorted((key, 10) for key in keys)
        assert len(harness.advance_processing_time(10)) == 100


def test_the_domains_do_not_meet() -> None:
    with alarm() as harness:
        harness.process(timers(("a", 10)))
        harness.process(timers(("a", 10), do="delete", domain="processing"))
        assert harness.advance_processing_time(10) == []
        assert len(harness.advance_watermark(10)) == 1


def test_deleted_timers_do_not_fire() -> None:
    with alarm() as harness:
        harness.process(timers(("a", 10), ("a", 20), ("b", 10)))
        harness.process(timers(("a", 10), ("c", 10), ("a", 11), do="delete"))
        assert sorted(fired(harness.advance_watermark(30))) == [("a", 20), ("b", 10)]
        assert harness.process(timers(("a", 20), do="delete")) == []


def test_a_key_without_any_other_state_keeps_its_timers() -> None:
    class Silent(ps.KeyedProcessFunction):
        n = ps.ValueState("long")

        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
            ctx.register_event_time_timer(row.at)

        def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> Any:
            assert self.n.value() is None
            yield key, timestamp

    with alarm(Silent()) as harness:
        harness.process(timers(("a", 10)))
        with Harness.restore(harness.snapshot(), Silent()) as restored:
            assert restored.advance_watermark(10) == [("a", 10)]
            assert restored.keys() == []


# -- inside a callback


class Chain(ps.KeyedProcessFunction):
    """Each timer registers the next one, some steps ahead, until 100."""

    steps = ps.ValueState("long", default=0)

    def __init__(self, step: int, domain: str = "event") -> None:
        self.step = step
        self.domain = domain

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
        ctx.register_event_time_timer(row.at)

    def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> Any:
        self.steps.update(self.steps.value() + 1)
        if timestamp + self.step <= 100:
            getattr(ctx, f"register_{self.domain}_time_timer")(timestamp + self.step)
        yield key, timestamp


def test_re_registration_inside_a_callback() -> None:
    with alarm(Chain(10), parallelism=2) as harness:
        harness.process(timers(("a", 0), ("b", 5)))
        assert sorted(harness.advance_watermark(35)) == sorted(
            [("a", t) for t in range(0, 31, 10)] + [("b", t) for t in range(5, 36, 10)]
        )
        assert harness.next_timer("event") == 40
        by_key: dict[str, list[int]] = defaultdict(list)
        for key, timestamp in harness.advance_watermark(1000):
            by_key[key].append(timestamp)
        assert by_key == {"a": list(range(40, 101, 10)), "b": list(range(45, 101, 10))}
        assert harness.next_timer("event") is None
        assert harness.state("steps", "a") == 11


def test_a_timer_made_due_meanwhile_keeps_the_order_of_its_key() -> None:
    with alarm(Chain(7)) as harness:
        harness.process(timers(*((key, t) for key in "abc" for t in (0, 10, 20))))
        by_key: dict[str, list[int]] = defaultdict(list)
        for key, timestamp in harness.advance_watermark(100):
            by_key[key].append(timestamp)
        for found in by_key.values():
            assert found == sorted(found)
        wanted = sorted({t for begin in (0, 10, 20) for t in range(begin, 101, 7)})
        assert by_key == dict.fromkeys("abc", wanted)


def test_a_callback_reaches_the_other_domain() -> None:
    with alarm(Chain(1, "processing"), processing_time=50) as harness:
        harness.process(timers(("a", 0)))
        assert harness.advance_watermark(0) == [("a", t) for t in range(51)]
        assert harness.next_timer("processing") == 51

    class Back(Chain):
        def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> Any:
            yield timestamp, ctx.time_domain
            if ctx.time_domain == "event" and timestamp < 3:
                ctx.register_processing_time_timer(timestamp)
            elif ctx.time_domain == "processing":
                ctx.register_event_time_timer(timestamp + 1)

    with alarm(Back(1), processing_time=50) as harness:
        harness.process(timers(("a", 0)))
        wanted = [(at, domain) for at in range(3) for domain in ("event", "processing")]
        assert harness.advance_watermark(10) == [*wanted, (3, "event")]


def test_a_callback_deletes_a_timer_that_is_due() -> None:
    class Once(Alarm):
        def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> Any:
            for other in range(timestamp + 1, 40):
                ctx.delete_event_time_timer(other)
            yield key, timestamp

    with alarm(Once()) as harness:
        harness.process(timers(("a", 10), ("b", 11), ("a", 20), ("b", 50)))
        assert sorted(harness.advance_watermark(100)) == [("a", 10), ("b", 11), ("b", 50)]


def test_a_callback_that_registers_itself_again_does_not_come_twice() -> None:
    class Again(Alarm):
        def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> Any:
            ctx.register_event_time_timer(timestamp)
            ctx.delete_event_time_timer(timestamp)
            yield key, timestamp

    with alarm(Again()) as harness:
        harness.process(timers(("a", 10)))
        assert harness.advance_watermark(100) == [("a", 10)]


def test_vectorised_callbacks_register_timers_too() -> None:
    class VectorChain(VectorAlarm):
        def on_timers(
            self, keys: ps.KeyBatch, timestamps: np.ndarray[Any, Any], ctx: ps.RuntimeContext
        ) -> Any:
            following = timestamps + 10
            wanted = pa.array(following, mask=following > 40)
            ctx.register_event_time_timers(keys, wanted)
            return {"k": keys.key_arrays()[0], "at": timestamps}

    with alarm(VectorChain()) as harness:
        harness.process(timers(("a", 0), ("b", 5), ("a", 3)))
        wanted = [("a", t) for t in (0, 3, 10, 13, 20, 23)] + [("b", t) for t in (5, 15, 25)]
        assert sorted(fired(harness.advance_watermark(25))) == wanted
        wanted = [("a", t) for t in (30, 33, 40)] + [("b", 35)]
        assert sorted(fired(harness.advance_watermark(99))) == wanted


def test_vectorised_deletes() -> None:
    class Deletes(VectorAlarm):
        def process(self, keys: ps.KeyBatch, batch: pa.RecordBatch, ctx: ps.RuntimeContext) -> None:
            do = batch.column("do").to_pylist()[0]
            getattr(ctx, f"{do}_event_time_timers")(keys, batch.column("at"))
            getattr(ctx, f"{do}_processing_time_timers")(keys, 77)

    with alarm(Deletes()) as harness:
        harness.process(timers(("a", 10), ("b", 10), ("c", 10)))
        harness.process(timers(("a", 10), ("b", 11), ("d", 10), do="delete"))
        assert sorted(fired(harness.advance_watermark(100))) == [("b", 10), ("c", 10)]
        assert fired(harness.advance_processing_time(100)) == [("c", 77)]


# -- what is refused


def test_a_list_of_one_time_is_no_time_for_all() -> None:
    class Wrong(VectorAlarm):
        def process(self, keys: ps.KeyBatch, batch: pa.RecordBatch, ctx: ps.RuntimeContext) -> None:
            ctx.register_event_time_timers(keys, [77])

    with (
        alarm(Wrong()) as harness,
        pytest.raises(InvalidArgumentError, match="timestamps: 1 values for 2 keys"),
    ):
        harness.process(timers(("a", 10), ("b", 10)))


def test_a_timer_needs_a_key() -> None:
    class Opens(Alarm):
        def open(self, ctx: ps.RuntimeContext) -> None:
            ctx.register_event_time_timer(10)

    with alarm(Opens()) as harness, pytest.raises(NoCurrentKeyError):
        harness.process(timers(("a", 10)))


@pytest.mark.parametrize("at", [1.5, "10", None, 2**63])
def test_a_timestamp_is_a_long(at: Any) -> None:
    class Wrong(Alarm):
        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
            ctx.register_event_time_timer(at)

    with alarm(Wrong()) as harness, pytest.raises((TypeError, ValueError, OverflowError)):
        harness.process(timers(("a", 10)))


def test_on_timer_has_to_be_written() -> None:
    class Forgot(ps.KeyedProcessFunction):
        n = ps.ValueState("long")

        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
            ctx.delete_event_time_timer(1)

    with alarm(Forgot()) as harness, pytest.raises(DeclarationError, match="Forgot uses timers"):
        harness.process(timers(("a", 10)))


# -- as state


@pytest.mark.parametrize(("before", "after"), [(2, 7), (7, 2), (3, 2), (1, 1)])
def test_rebalanced_restore(before: int, after: int) -> None:
    pairs = [(f"key {i}", i % 50 + 1) for i in range(300)]
    with alarm(parallelism=before) as harness:
        harness.process(timers(*pairs))
        harness.process(timers(*pairs, domain="processing"))
        harness.process(timers(*pairs[:100], do="delete"))
        harness.advance_watermark(20)
        snapshot = harness.snapshot()
        wanted = sorted(fired(harness.advance_watermark(60)))
    with Harness.restore(snapshot, Alarm(), parallelism=after) as restored:
        assert restored.next_timer("event") == 21
        assert sorted(fired(restored.advance_watermark(60))) == wanted
        assert len(restored.advance_processing_time(60)) == 300
        with Harness.restore(restored.snapshot(), Alarm()) as again:
            assert again.next_timer("event") is None and again.next_timer("processing") is None


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("n_timers", [0, 1, 5, 9])
def test_a_failure_among_timers_leaves_no_trace(n_timers: int, parallelism: int) -> None:
    pairs = [(key, at) for key in "abc" for at in (10, 20, 30)]
    with alarm(parallelism=parallelism) as harness, alarm(parallelism=parallelism) as wanted:
        for h in (harness, wanted):
            h.process(timers(*pairs))
        harness.fail_after(timers=n_timers)
        assert harness.advance_watermark(50) == wanted.advance_watermark(50)
        assert (harness.failures, harness.next_timer("event")) == (1, None)
        assert harness.states("b") == {"rung": 3}
        harness.fail_at("publish")
        harness.process(timers(("a", 60)))
        assert fired(harness.advance_watermark(70)) == [("a", 60)]


@pytest.mark.parametrize("kind", ["delta", "base"])
def test_a_merged_file_remembers_timers_that_fired_before_their_key_ended(kind: str) -> None:
    """The key's end says nothing of its timers: each has a tombstone of its own."""
    with ps.KeyedStateBackend("long", timers=True) as made:
        made.register_timers(made.keys([1, 1, 2]), "event", [10, 20, 30])
        files = []
        for until in (0, 10, 20):
            due = made.due_timers("event", until)
            if due is not None:
                due.fire_all()
            files.append(io.BytesIO())
            with made.seal() as snapshot:
                snapshot.write(files[-1])
    merged = io.BytesIO()
    ps.merge_files(files if kind == "base" else files[1:], merged, kind=kind)
    with ps.KeyedStateBackend("long", timers=True) as other:
        other.restore([merged] if kind == "base" else [files[0], merged])
        due = other.due_timers("event", 100)
        assert due is not None
        assert (due.keys.to_pylist(), due.timestamps.tolist()) == ([2], [30])


_steps = st.lists(
    st.tuples(
        st.lists(
            st.tuples(
                st.sampled_from("abcd"),
                st.integers(-5, 40),
                st.sampled_from(["register", "delete"]),
                st.sampled_from(["event", "processing"]),
            ),
            max_size=12,
        ),
        st.sampled_from(["event", "processing"]),
        st.integers(0, 12),
        st.sampled_from(["go on", "fail", "restore"]),
    ),
    max_size=8,
)


@given(_steps, st.integers(1, 4))
@settings(deadline=None)
def test_against_a_model(steps: Any, parallelism: int) -> None:
    model: dict[str, set[tuple[int, str]]] = {"event": set(), "processing": set()}
    now: dict[str, int | None] = {"event": None, "processing": 0}

    def due() -> list[tuple[str, int, str]]:
        found = []
        for domain, waiting in model.items():
            until = now[domain]
            ready = {t for t in waiting if until is not None and t[0] <= until}
            model[domain] = waiting - ready
            found += [(key, at, domain) for at, key in ready]
        return sorted(found)

    harness = alarm(parallelism=parallelism)
    for rows, domain, step, then in steps:
        if then == "fail":
            harness.fail_after(timers=1)
        for key, at, do, where in rows:
            (model[where].add if do == "register" else model[where].discard)((at, key))
        assert sorted(row[:3] for row in harness.process(rows)) == due()
        now[domain] = (now[domain] or 0) + step
        until = now[domain]
        assert until is not None
        move = harness.advance_watermark if domain == "event" else harness.advance_processing_time
        assert sorted(row[:3] for row in move(until)) == due()
        if then == "restore":
            snapshot = harness.snapshot()
            harness.close()
            harness = Harness.restore(snapshot, Alarm(), parallelism=parallelism % 4 + 1)
        domains: tuple[TimeDomain, ...] = ("event", "processing")
        for where in domains:
            wanted = min((at for at, _ in model[where]), default=None)
            assert harness.next_timer(where) == wanted
    harness.close()


# -- many


def test_chunks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    class Sizes(VectorAlarm):
        def on_timers(self, keys: Any, timestamps: Any, ctx: ps.RuntimeContext) -> None:
            sizes.append(len(keys))

    monkeypatch.setattr(call_shapes, "_TIMERS", 100)
    with alarm(Sizes()) as harness:
        harness.process(timers(*((f"key {i}", 1) for i in range(1050))))
        harness.advance_watermark(1)
    assert sum(sizes) == 1050 and max(sizes) <= 100


class Million(ps.VectorizedFunction):
    n = ps.ValueState("long", default=0)

    def process(self, keys: ps.KeyBatch, batch: pa.RecordBatch, ctx: ps.RuntimeContext) -> None:
        ctx.register_event_time_timers(keys, batch.column("k"))

    def on_timers(self, keys: Any, timestamps: Any, ctx: ps.RuntimeContext) -> None:
        self.n.add(keys, 1)


class MillionRows(ps.KeyedProcessFunction):
    n = ps.ValueState("long", default=0)

    def process_rows(self, key: Any, batch: pa.RecordBatch, ctx: ps.RuntimeContext) -> None:
        ctx.register_event_time_timer(key)

    def on_timer(self, key: int, timestamp: int, ctx: ps.RuntimeContext) -> None:
        self.n.update(self.n.value() + 1)


@pytest.mark.slow
@pytest.mark.parametrize("function", [Million(), MillionRows()])
def test_a_million_due_timers_fire_in_bounded_memory(function: Any) -> None:
    rows = pa.table({"k": np.arange(1_000_000)})
    with Harness(function, key="k", event_time="k", batch_rows=100_000) as harness:
        harness.process(rows)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        harness.advance_watermark(2_000_000)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert harness.next_timer("event") is None
        assert harness.state("n", 999_999) == 1
    # The tables grow by the undo log of what changes; the timers themselves come in chunks.
    assert grown < 400 * 1024


# -- without event time


class LateAlarm(Alarm):
    """Registers its event-time timers where a processing-time one fires."""

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
        ctx.register_processing_time_timer(0)

    def on_timer(self, key: Any, timestamp: int, ctx: ps.RuntimeContext) -> Any:
        if ctx.time_domain == "processing":
            ctx.register_event_time_timer(timestamp + 10)
        yield key, timestamp


@pytest.mark.parametrize("function", [Alarm(), KeyAlarm(), VectorAlarm(), LateAlarm()])
def test_an_event_time_timer_needs_event_time(function: Any) -> None:
    with alarm(function, event_time=None, uid="one") as harness:
        with pytest.raises(NoEventTimeError, match=r"'one': .* never fire: .*event_time='column'"):
            harness.process(timers(("a", 10)))
        assert harness.keys() == []
    # Downstream of an operator that has event time, there is a watermark.
    with alarm(function, event_time=None) as harness:
        harness.advance_watermark(5)
        harness.process(timers(("a", 10)))
        assert fired(harness.advance_watermark(10)) == [("a", 10)]


def test_timers_that_need_no_event_time() -> None:
    class Both(VectorAlarm):
        def process(self, keys: ps.KeyBatch, batch: pa.RecordBatch, ctx: ps.RuntimeContext) -> None:
            ctx.delete_event_time_timers(keys, 1)
            ctx.register_processing_time_timers(keys, 20)
            ctx.delete_processing_time_timers(keys, batch.column("at"))

    for function in (Alarm(), Both()):
        with alarm(function, event_time=None) as harness:
            harness.process(timers(("a", 20), domain="processing"))
            harness.process(timers(("a", 10), do="delete"))
            harness.process(timers(("a", 20), do="delete", domain="processing"))
            assert harness.advance_processing_time(30) == []


def test_a_time_to_live_by_event_time_needs_event_time() -> None:
    class Keeps(ps.KeyedProcessFunction):
        n = ps.ValueState("long")
        seen = ps.ListState("long", ttl=ps.StateTtl(10, time="event"))

        def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> None:
            self.seen.add(row.at)

    with (
        alarm(Keeps(), event_time=None, uid="one") as harness,
        pytest.raises(NoEventTimeError, match=r"'one': 'seen' would never expire: .*processing"),
    ):
        harness.process(timers(("a", 10)))
    with alarm(Keeps()) as harness:
        harness.process(timers(("a", 10)))
        assert harness.state("seen", "a") == [10]
