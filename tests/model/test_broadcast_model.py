"""The broadcast pattern in the harness, compared with a simulation that has one copy of the rules.

Streams of rules and rows are cut into epochs at random. Between epochs the harness is restored with
another number of instances, and epochs fail and are computed again.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

import pystate as ps
from pystate.testing import BroadcastHarness
from tests.drawn import drawn

KEY = {"k": "string"}
ROWS = {"k": "string", "v": "long", "t": "long"}
RULES = {"op": "string", "name": "string", "n": "long", "t": "long"}


class Rules(ps.KeyedBroadcastProcessFunction):
    """Counts rows that a rule allows; commands read and change the counts of all keys."""

    rules = ps.BroadcastState("string", "long")
    order = ps.BroadcastState("long", "string")
    count = ps.ValueState("long", default=0)
    seen = ps.ListState("long")
    labels = ps.MapState("string", "long")

    def process_broadcast(self, row: Any, ctx: Any) -> Any:
        self.order.put(len(self.order), f"{row['op']} {row['name']} {row['n']}")
        if row["op"] == "put":
            self.rules.put(row["name"], row["n"])
        elif row["op"] == "remove":
            self.rules.remove(row["name"])
        elif row["op"] == "clear":
            self.rules.clear()
        elif row["op"] == "add":
            ctx.apply_to_keyed_state(self.count, lambda key, count: count.update(count.value() + 5))
        elif row["op"] == "forget":
            ctx.apply_to_keyed_state(self.seen, self.forget)
        else:
            found: list[Any] = []
            ctx.apply_to_keyed_state(self.labels, lambda k, m: found.append(("at", k, len(m))))
            yield from found

    def forget(self, key: Any, seen: Any) -> None:
        seen.clear()
        self.count.clear()
        self.labels.put("forgotten", self.labels.get("forgotten", 0) + 1)

    def process(self, key: Any, row: Any, ctx: Any) -> Any:
        most = self.rules.get(key)
        if most is None or row["v"] > most:
            return
        self.count.update(self.count.value() + 1)
        self.seen.add(row["v"])
        yield "row", key, row["v"], most, self.count.value(), len(self.seen), len(self.rules)


class Simulation:
    """The same with dicts."""

    def __init__(self) -> None:
        self.rules: dict[str, int] = {}
        self.order: dict[int, str] = {}
        self.count: dict[Any, int] = {}
        self.seen: dict[Any, list[int]] = {}
        self.labels: dict[Any, int] = {}

    def rule(self, op: str, name: str, n: int) -> list[Any]:
        self.order[len(self.order)] = f"{op} {name} {n}"
        if op == "put":
            self.rules[name] = n
        elif op == "remove":
            self.rules.pop(name, None)
        elif op == "clear":
            self.rules.clear()
        elif op == "add":
            self.count = {key: value + 5 for key, value in self.count.items()}
        elif op == "forget":
            for key in self.seen:
                self.count.pop(key, None)
                self.labels[key] = self.labels.get(key, 0) + 1
            self.seen.clear()
        else:
            return [("at", key, 1) for key in self.labels]
        return []

    def row(self, key: str, v: int) -> list[Any]:
        most = self.rules.get(key)
        if most is None or v > most:
            return []
        self.count[key] = self.count.get(key, 0) + 1
        self.seen.setdefault(key, []).append(v)
        return [("row", key, v, most, self.count[key], len(self.seen[key]), len(self.rules))]


keys = st.sampled_from("abcdefgh")
rules = st.tuples(
    st.sampled_from(["put", "put", "put", "remove", "clear", "add", "forget", "look"]),
    keys,
    st.integers(0, 9),
    st.integers(0, 20),
)
rows = st.tuples(keys, st.integers(0, 9), st.integers(0, 20))
epochs = st.tuples(
    st.lists(rules, max_size=6),
    st.lists(rows, max_size=12),
    st.sampled_from(["", "", "row", "seal", "publish"]),
    st.sampled_from([0, 0, 1, 2, 3, 7]),
)


def fail(harness: BroadcastHarness, how: str, count: int) -> None:
    if how == "row" and count:
        harness.fail_after(count // 2)
    elif how in ("seal", "publish"):
        harness.fail_at(how)  # type: ignore[arg-type]


@drawn(40)
@given(st.lists(epochs, max_size=6), st.booleans())
@example([([("put", "a", 1, 0)], [], "", 0), ([], [("a", 0, 1), ("a", 1, 0)], "", 0)], True)
def test_any_stream(stream: list[Any], interleave: bool) -> None:
    with ExitStack() as stack:
        check(stream, interleave, stack)


def check(stream: list[Any], interleave: bool, stack: ExitStack) -> None:
    simulation = Simulation()
    harness = BroadcastHarness(
        Rules(),
        KEY,
        columns=ROWS,
        broadcast_columns=RULES,
        event_time="t",
        broadcast_event_time="t",
        interleave="event_time" if interleave else None,
        parallelism=3,
    )
    stack.callback(harness.close)
    for its_rules, its_rows, how, parallelism in stream:
        fail(harness, how, len(its_rows))
        found = harness.process(its_rows, its_rules)
        order = [(rule[3] if interleave else 0, 0, i) for i, rule in enumerate(its_rules)]
        order += [(row[2] if interleave else 1, 1, i) for i, row in enumerate(its_rows)]
        expected: list[Any] = []
        for _, is_row, i in sorted(order):
            if is_row:
                expected += simulation.row(*its_rows[i][:2])
            else:
                expected += simulation.rule(*its_rules[i][:3])
        assert Counter(map(tuple, found)) == Counter(expected)
        assert harness.broadcast_state("rules") == simulation.rules
        assert harness.broadcast_state("order") == simulation.order
        if parallelism:
            snapshot = harness.snapshot()
            harness.close()
            harness = BroadcastHarness.restore(snapshot, Rules(), parallelism=parallelism)
            stack.callback(harness.close)
    for key in "abcdefgh":
        assert harness.state("count", key) == simulation.count.get(key, 0)
        assert harness.state("seen", key) == simulation.seen.get(key, [])
        labels = simulation.labels.get(key)
        assert harness.state("labels", key) == ({} if labels is None else {"forgotten": labels})
