"""Functions with a broadcast input: what they can use where, and how they reach all keys."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

import pystate as ps
from pystate.errors import (
    DeclarationError,
    InvalidArgumentError,
    NoCurrentKeyError,
    ReadOnlyStateError,
    ReplayError,
    WrongTypeError,
)
from pystate.testing import BroadcastHarness, Harness

KEY = {"k": "long"}


class Base(ps.KeyedBroadcastProcessFunction):
    rules = ps.BroadcastState("string", "long")
    n = ps.ValueState("long", default=0)

    def process_broadcast(self, row: Any, ctx: Any) -> Any:
        self.rules.put(row["name"], row["n"])

    def process(self, key: Any, row: Any, ctx: Any) -> Any:
        self.n.update(self.n.value() + 1)
        yield key, self.rules.get("a")


def base(parent: Any = Base, **members: Any) -> Any:
    """Such a function with other members."""
    return type("Odd", (parent,), members)()


def rule(name: str = "a", n: int = 1) -> dict[str, Any]:
    return {"name": name, "n": n}


def run(function: Any, *epochs: tuple[Any, Any], **options: Any) -> list[list[Any]]:
    with BroadcastHarness(function, KEY, **options) as harness:
        return [harness.process(rows, rules) for rows, rules in epochs]


def test_rules_come_before_rows_and_stay() -> None:
    rows = [{"k": 1}, {"k": 2}]
    found = run(Base(), (rows, [rule(n=1), rule(n=2)]), (rows, []), (rows, [rule(n=3)]))
    assert [sorted(each) for each in found] == [
        [(1, 2), (2, 2)],
        [(1, 2), (2, 2)],
        [(1, 3), (2, 3)],
    ]


def test_each_instance_emits_what_a_rule_yields() -> None:
    loud = base(process_broadcast=lambda self, row, ctx: [ctx.key_group_range])
    [found] = run(loud, ([], [rule()]), parallelism=3)
    assert found == [(0, 42), (43, 85), (86, 127)]


@pytest.mark.parametrize("write", ["put", "put_all", "remove", "clear"])
@pytest.mark.parametrize("where", ["process", "on_timer", "open"])
def test_the_keyed_side_only_reads(write: str, where: str) -> None:
    def attempt(state: Any) -> None:
        arguments = {"put": ("b", 2), "put_all": ({"b": 2},), "remove": ("a",), "clear": ()}
        getattr(state, write)(*arguments[write])

    class Writes(Base):
        def open(self, ctx: Any) -> None:
            if where == "open" and ctx.epoch > 1:
                attempt(self.rules)

        def process(self, key: Any, row: Any, ctx: Any) -> Any:
            if where == "process":
                attempt(self.rules)
            ctx.register_processing_time_timer(0)

        def on_timer(self, key: Any, timestamp: int, ctx: Any) -> Any:
            if where == "on_timer":
                attempt(self.rules)

    with BroadcastHarness(Writes(), KEY) as harness:
        harness.process(broadcast=[rule()])
        with pytest.raises(ReadOnlyStateError, match=f"'rules': {write} is not allowed"):
            harness.process([{"k": 1}], [rule(n=2)])
        assert harness.broadcast_state("rules") == {"a": 1}


@pytest.mark.parametrize(
    "use",
    [
        lambda self, row, ctx: self.n.value(),
        lambda self, row, ctx: ctx.register_processing_time_timer(5),
    ],
)
def test_a_rule_has_no_key(use: Any) -> None:
    function = base(process_broadcast=use, on_timer=lambda self, key, timestamp, ctx: None)
    times = {"event_time": "at", "broadcast_event_time": "at", "interleave": "event_time"}
    with pytest.raises(NoCurrentKeyError, match="apply_to_keyed_state"):
        # The key of the row before must not be current either.
        run(function, ([{"k": 1, "at": 1}], [{**rule(), "at": 2}]), parallelism=1, **times)


@pytest.mark.parametrize("instances", [1, 3])
def test_all_keys_are_visited_once_while_they_change(instances: int) -> None:
    count = 30_000

    class Visits(ps.KeyedBroadcastProcessFunction):
        rules = ps.BroadcastState("string", "long")
        n = ps.ValueState("long")
        odd = ps.ValueState("boolean")
        texts = ps.MapState("long", "string")

        def process(self, key: Any, row: Any, ctx: Any) -> Any:
            self.n.update(key)
            if key % 2:
                self.odd.update(True)

        def process_broadcast(self, row: Any, ctx: Any) -> Any:
            visited = []

            def visit(key: Any, state: Any) -> None:
                visited.append(key)
                # Some rows vanish, and others grow, while the table is gone over.
                if key % 3:
                    self.n.clear()
                    self.odd.clear()
                else:
                    self.texts.put_all(dict.fromkeys(range(3), "x" * 40))

            ctx.apply_to_keyed_state(getattr(self, row["name"]), visit)
            self.rules.put(row["name"], 1)
            for key in visited:
                yield row["name"], key

    rows = pa.record_batch({"k": pa.array(range(count))})
    with BroadcastHarness(Visits(), KEY, parallelism=instances) as harness:
        harness.process(rows)
        found = harness.process(broadcast=[rule("odd"), rule("n"), rule("texts")])
        expected = Counter(("odd", key) for key in range(count) if key % 2)
        expected.update(
            ("n", key) for key in range(count) if key % 2 == 0 or (key % 2 and key % 3 == 0)
        )
        expected.update(("texts", key) for key in range(count) if key % 3 == 0)
        assert Counter(found) == expected
        assert harness.state("texts", 3) == dict.fromkeys(range(3), "x" * 40)
        assert harness.state("n", 4) is None


def test_every_kind_of_state_is_visited_where_it_has_something() -> None:
    class Kinds(ps.KeyedBroadcastProcessFunction):
        rules = ps.BroadcastState("string", "long")
        value = ps.ValueState("long", default=7)
        text = ps.ValueState("string")
        thing = ps.ValueState(object)
        things = ps.ListState(object)
        items = ps.ListState("long")
        entries = ps.MapState("string", "long")
        total = ps.AggregatingState(ps.Count())
        largest = ps.ReducingState("long", max)

        def process(self, key: Any, row: Any, ctx: Any) -> Any:
            for name in row["states"]:
                state = getattr(self, name)
                if name in ("value", "text", "thing"):
                    state.update({"value": 1, "text": "t", "thing": {"a": 1}}[name])
                elif name == "entries":
                    state.put("e", 1)
                else:
                    state.add(1)

        def process_broadcast(self, row: Any, ctx: Any) -> Any:
            found: list[Any] = []
            ctx.apply_to_keyed_state(
                getattr(self, row["name"]), lambda key, state: found.append(key)
            )
            yield from ((row["name"], key) for key in found)

    names = ["value", "text", "thing", "things", "items", "entries", "total", "largest"]
    rows = [{"k": i, "states": [name, names[i - 1]]} for i, name in enumerate(names)]
    rows.append({"k": 100, "states": ["largest"]})
    with BroadcastHarness(Kinds(), KEY, parallelism=1) as harness:
        harness.process(rows)
        # Objects of an open epoch are visited, too.
        found = harness.process([], [rule(name) for name in names])
        expected = Counter((name, row["k"]) for row in rows for name in row["states"])
        assert Counter(found) == expected


def test_namespaces_and_expired_values() -> None:
    class Spaces(ps.KeyedBroadcastProcessFunction):
        namespace = "long"
        rules = ps.BroadcastState("string", "long")
        n = ps.ValueState("long")
        brief = ps.ValueState("long", ttl=ps.StateTtl("10 seconds", time="processing"))

        def process(self, key: Any, row: Any, ctx: Any) -> Any:
            ctx.set_namespace(row["space"])
            self.n.update(1)
            self.brief.update(1)

        def process_broadcast(self, row: Any, ctx: Any) -> Any:
            found: list[Any] = []

            def visit(key: Any, state: Any) -> None:
                found.append((row["name"], key))
                state.update(state.value() + 1)

            ctx.apply_to_keyed_state(getattr(self, row["name"]), visit)
            yield from found

    with BroadcastHarness(Spaces(), KEY, parallelism=1) as harness:
        harness.process([{"k": 1, "space": None}, {"k": 1, "space": 5}, {"k": 2, "space": 6}])
        found = harness.process(broadcast=[rule("n")])
        assert Counter(found) == Counter({("n", 1): 2, ("n", 2): 1})
        assert harness.state("n", 1, 5) == harness.state("n", 1) == 2
        assert harness.state("n", 2) is None
        assert len(harness.process(broadcast=[rule("brief")])) == 3
        harness.advance_processing_time(3_600_000)
        assert harness.process(broadcast=[rule("brief")]) == []


def test_timers_of_all_keys() -> None:
    sweeps = base(
        process_broadcast=lambda self, row, ctx: ctx.apply_to_keyed_state(
            self.n, lambda key, n: ctx.register_processing_time_timer(row["n"] + key)
        ),
        on_timer=lambda self, key, timestamp, ctx: [(key, timestamp, self.n.value())],
    )
    with BroadcastHarness(sweeps, KEY) as harness:
        harness.process([{"k": 1}, {"k": 2}, {"k": 2}])
        assert harness.process(broadcast=[rule(n=1000)]) == []
        assert harness.advance_processing_time(1001) == [(1, 1001, 1)]
        assert harness.advance_processing_time(1002) == [(2, 1002, 2)]


@pytest.mark.parametrize(
    ("attempt", "error", "match"),
    [
        (lambda f, c: c.apply_to_keyed_state(f.rules, print), InvalidArgumentError, "self.n, not"),
        (lambda f, c: c.apply_to_keyed_state("n", print), InvalidArgumentError, "self.n, not 'n'"),
        (lambda f, c: c.apply_to_keyed_state(f.n, None), InvalidArgumentError, "takes a function"),
        (
            lambda f, c: c.apply_to_keyed_state(f.n, lambda k, n: n.value()),
            WrongTypeError,
            "returned 1",
        ),
        (
            lambda f, c: c.apply_to_keyed_state(
                f.n, lambda k, n: c.apply_to_keyed_state(f.n, print)
            ),
            InvalidArgumentError,
            "within the function of another call",
        ),
        (lambda f, c: 5, WrongTypeError, "process_broadcast returned 5"),
    ],
)
def test_mistakes_in_process_broadcast(attempt: Any, error: Any, match: str) -> None:
    wrong = base(process_broadcast=lambda self, row, ctx: attempt(self, ctx))
    with pytest.raises(error, match=match):
        run(wrong, ([{"k": 1}], []), ([], [rule()]), parallelism=1)


def test_only_process_broadcast_visits_all_keys() -> None:
    def process(self: Any, key: Any, row: Any, ctx: Any) -> Any:
        ctx.apply_to_keyed_state(self.n, print)

    with pytest.raises(InvalidArgumentError, match="is for process_broadcast: elsewhere the key"):
        run(base(process=process), ([{"k": 1}], [rule()]))
    plain = base(ps.KeyedProcessFunction, n=ps.ValueState("long"), process=process)
    with (
        pytest.raises(InvalidArgumentError, match="of a KeyedBroadcastProcessFunction"),
        Harness(plain, KEY) as harness,
    ):
        harness.process([{"k": 1}])


def test_all_rows_of_a_key_at_once() -> None:
    class Rows(Base):
        process = ps.KeyedBroadcastProcessFunction.process

        def process_rows(self, key: Any, batch: Any, ctx: Any) -> Any:
            yield key, batch.num_rows, dict(self.rules.items())

    rows = [{"k": 1}, {"k": 2}, {"k": 1}]
    [found] = run(Rows(), (rows, [rule(), rule("b")]))
    assert sorted(found) == [(1, 2, {"a": 1, "b": 1}), (2, 1, {"a": 1, "b": 1})]
    with pytest.raises(InvalidArgumentError, match="has process_rows"):
        BroadcastHarness(
            Rows(), KEY, event_time="t", broadcast_event_time="t", interleave="event_time"
        )


def test_batches() -> None:
    class Batches(ps.VectorizedBroadcastFunction):
        rules = ps.BroadcastState("string", "long")
        n = ps.ValueState("long", default=0)
        entries = ps.MapState("long", "long")

        def process_broadcast(self, row: Any, ctx: Any) -> Any:
            self.rules.put(row["name"], row["n"])
            keys: list[Any] = []

            def visit(batch: Any, state: Any) -> None:
                keys.extend(batch.to_pylist())
                if row["name"] == "n":
                    state.add(batch, 10)

            ctx.apply_to_keyed_state(getattr(self, row["name"]), visit)
            return {"k": sorted(keys), "n": [row["n"]] * len(keys)}

        def process(self, keys: Any, batch: Any, ctx: Any) -> Any:
            self.n.add(keys, self.rules.get("n", 1))
            odd = [i for i, key in enumerate(keys.to_pylist()) if key % 2]
            for i in odd:
                keys.select(i)
                self.entries.put(1, 1)

    with BroadcastHarness(Batches(), KEY, schema="k long, n long", parallelism=1) as harness:
        assert harness.process([{"k": 1}, {"k": 2}]) == []
        assert harness.process([{"k": 3}], [rule("n", 5)]) == [(1, 5), (2, 5)]
        assert harness.process([], [rule("entries", 6)]) == [(1, 6), (3, 6)]
        assert [harness.state("n", key) for key in (1, 2, 3)] == [11, 11, 5]


def test_rows_in_the_order_of_their_times() -> None:
    class Traced(Base):
        def process_broadcast(self, row: Any, ctx: Any) -> Any:
            self.rules.put("a", row["n"])
            yield "rule", ctx.timestamp, ctx.watermark

        def process(self, key: Any, row: Any, ctx: Any) -> Any:
            yield self.rules.get("a"), ctx.timestamp, ctx.watermark

    rows = [{"k": 1, "at": at} for at in (30, 10, None, 20)]
    rules = [{"n": n, "at": at} for n, at in ((1, 20), (2, None), (3, 25))]
    with BroadcastHarness(
        Traced(),
        KEY,
        parallelism=1,
        event_time="at",
        broadcast_event_time="at",
        allowed_delay=5,
        broadcast_delay=1,
        interleave="event_time",
    ) as harness:
        assert harness.process(rows, rules) == [
            ("rule", None, None),
            (2, None, None),
            (2, 10, None),
            ("rule", 20, None),
            (1, 20, None),
            ("rule", 25, None),
            (3, 30, None),
        ]
        # The smaller one of both inputs.
        assert harness.watermark == 24
        harness.process([{"k": 1, "at": 100}])
        assert harness.watermark == 24
        harness.process([], [{"n": 4, "at": 200}])
        assert harness.watermark == 95


def test_a_broadcast_without_times_holds_no_watermark_back() -> None:
    with BroadcastHarness(Base(), KEY, event_time="at", allowed_delay=5) as harness:
        harness.process([{"k": 1, "at": 100}], [rule()])
        assert harness.watermark == 95


def test_copies_that_differ_are_noticed() -> None:
    differs = base(
        process_broadcast=lambda self, row, ctx: self.rules.put("first", ctx.key_group_range[0])
    )
    with BroadcastHarness(differs, KEY) as harness:
        with pytest.raises(ReplayError, match=r"on instance 0 and .* on instance 1"):
            harness.process(broadcast=[rule()])
        assert harness.broadcast_state("rules") == {}


def test_any_number_of_instances_continues_with_the_same_copy() -> None:
    harness = BroadcastHarness(Base(), KEY, parallelism=2)
    rules = [rule(f"r{i}", i) for i in range(40)]
    harness.process([{"k": i} for i in range(20)], rules)
    for parallelism in (3, 1, 5, 2):
        with harness:
            snapshot = harness.snapshot()
        harness = BroadcastHarness.restore(snapshot, Base(), parallelism=parallelism)
        assert harness.broadcast_state("rules") == {f"r{i}": i for i in range(40)}
        harness.process([{"k": i} for i in range(20)])
    with harness:
        assert [harness.state("n", i) for i in range(20)] == [5] * 20


def test_declarations() -> None:
    rules, process = ps.BroadcastState("string", "long"), Base.process
    of_rules = ps.KeyedBroadcastProcessFunction
    told = {"process_broadcast": Base.process_broadcast, "process": process}
    for function, match in (
        (base(of_rules, rules=rules, process=process), "no process_broadcast"),
        (base(of_rules, n=ps.ValueState("long"), **told), r"declares no ps\.BroadcastState"),
        (base(all=ps.OperatorListState("long")), r"has ps\.BroadcastState alone"),
    ):
        with pytest.raises(DeclarationError, match=match):
            BroadcastHarness(function, KEY)
    plain = base(ps.KeyedProcessFunction, rules=rules, process=process)
    with pytest.raises(InvalidArgumentError, match="has no broadcast input"):
        BroadcastHarness(plain, KEY)
    with pytest.raises(InvalidArgumentError, match="has a broadcast input: connect it"):
        Harness(Base(), KEY)
    with pytest.raises(DeclarationError, match=r"declare it in a ps\.KeyedBroad"):
        Harness(plain, KEY)
    with pytest.raises(DeclarationError, match=r"write process_broadcast\(self, row, ctx\)"):
        base(processBroadcastElement=lambda self, row, ctx: None)


def test_the_harness_says_what_it_needs() -> None:
    with (
        BroadcastHarness(Base(), "k") as harness,
        pytest.raises(InvalidArgumentError, match="key's type is not known"),
    ):
        harness.process(broadcast=[rule()])
    with BroadcastHarness(Base(), "k") as harness:
        assert harness.broadcast_state("rules") == {}
        with pytest.raises(InvalidArgumentError, match="there are rules"):
            harness.broadcast_state("rule")
        harness.process([{"k": 1}], [rule()])
        with pytest.raises(InvalidArgumentError, match=r"broadcast_state\('rules'\)"):
            harness.state("rules", 1)
        assert harness.states(1) == {"n": 1}
    with pytest.raises(InvalidArgumentError, match="give event_time= and broadcast_event_time="):
        BroadcastHarness(Base(), KEY, interleave="event_time")


def test_a_namespace_of_a_rule_ends_with_it() -> None:
    class Spaces(Base):
        namespace = "long"

        def process_broadcast(self, row: Any, ctx: Any) -> Any:
            ctx.set_namespace(5)
            ctx.apply_to_keyed_state(self.n, lambda key, n: ctx.set_namespace(6))
            ctx.set_namespace(7)

    with BroadcastHarness(Spaces(), KEY, parallelism=1) as harness:
        harness.process([{"k": 1}], [rule()])
        harness.process([{"k": 1}], [rule()])
        assert harness.state("n", 1) == 2
        assert [harness.state("n", 1, space) for space in (5, 6, 7)] == [0, 0, 0]
