"""Operator state in the harness, compared with plain lists over random rescales and failures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import pystate as ps
from pystate.testing import ProcessHarness
from tests.drawn import drawn

GROUPS = 16
LISTS = ("first", "second", "objects", "union")
DIVIDED = ("first", "second", "objects", "streams")


class Follows(ps.ProcessFunction):
    """Does to its states what its rows say, and emits what it then has."""

    first = ps.OperatorListState("long")
    second = ps.OperatorListState("string")
    objects = ps.OperatorListState(object)
    union = ps.OperatorListState("long", redistribute="union")
    streams = ps.RawState()
    groups = ps.RawState("key_group")

    def open(self, ctx: ps.InstanceContext) -> None:
        """Remember what was there."""
        self.opened = self.content(ctx)

    def content(self, ctx: ps.InstanceContext) -> dict[str, Any]:
        """All states as Python values."""
        found: dict[str, Any] = {name: getattr(self, name).get() for name in LISTS}
        found["streams"] = self.streams.streams()
        found["groups"] = {g: self.groups.read(g) for g in self.groups.key_groups()}
        return {**found, "instance": ctx.instance, "redistributed": ctx.redistributed}

    def process(self, row: Any, ctx: ps.InstanceContext) -> Any:
        """Follow a row."""
        apply(row.act, row.state, row.value, ctx.key_group_range, self)

    def on_epoch_end(self, ctx: ps.InstanceContext) -> Any:
        """Tell."""
        yield self.opened, self.content(ctx)


def apply(act: str, name: str, value: int, groups: tuple[int, int], function: Follows) -> None:
    """Carry out a row."""
    state: Any = getattr(function, name)
    if name == "groups":
        group = groups[0] + value % (groups[1] - groups[0] + 1)
        if act == "clear":
            state.remove(group)
        else:
            state.write(group, b"%d" % value)
    elif act == "clear":
        state.clear()
    elif act == "update":
        state.update([item(name, value), item(name, value + 1)])
    else:
        state.add(item(name, value))


def item(name: str, value: int) -> Any:
    """An item for a state."""
    kinds = {"second": str, "objects": lambda n: (n, {n}), "streams": lambda n: b"%d" % n}
    return kinds.get(name, int)(value)


class Model:
    """What the instances must have."""

    def __init__(self, parallelism: int) -> None:
        self.moved = False
        self.instances = [self.empty() for _ in range(parallelism)]

    @staticmethod
    def empty() -> dict[str, Any]:
        return {**{name: [] for name in (*LISTS, "streams")}, "groups": {}}

    def take_over(self, parallelism: int, found: list[dict[str, Any]]) -> None:
        """Check what a redistribution gave, and go on from it."""
        assert len(found) == parallelism
        for name in DIVIDED:
            before = [i for instance in self.instances for i in instance[name]]
            after = [i for instance in found for i in instance[name]]
            assert sorted(before, key=repr) == sorted(after, key=repr), name
            balanced(len(instance[name]) for instance in found)
        balanced(sum(len(instance[name]) for name in DIVIDED) for instance in found)
        union = [i for instance in self.instances for i in instance["union"]]
        assert all(instance["union"] == union for instance in found)
        streams = {g: s for instance in self.instances for g, s in instance["groups"].items()}
        for index, instance in enumerate(found):
            low, high = ps.range_bounds(index, GROUPS, parallelism)
            own = {g: s for g, s in streams.items() if low <= g <= high}
            assert instance["groups"] == own
        self.instances = [{name: i[name] for name in self.empty()} for i in found]

    def follow(self, index: int, act: str, name: str, value: int) -> None:
        """Carry out a row."""
        state = self.instances[index][name]
        if name == "groups":
            low, high = ps.range_bounds(index, GROUPS, len(self.instances))
            group = low + value % (high - low + 1)
            if act == "clear":
                state.pop(group, None)
            else:
                state[group] = b"%d" % value
            return
        if act != "add":
            state.clear()
        if act == "update":
            state += [item(name, value), item(name, value + 1)]
        elif act == "add":
            state.append(item(name, value))


def balanced(sizes: Iterable[int]) -> None:
    found = list(sizes)
    assert max(found) - min(found) <= 1, found


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "update", "clear"]),
        st.sampled_from([*LISTS, "streams", "groups"]),
        st.integers(0, 99),
    ),
    max_size=24,
)
WIDTHS = st.integers(1, 6)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), ROWS),
        st.tuples(st.sampled_from(["rescale", "restore"]), WIDTHS),
        st.tuples(st.sampled_from(["seal", "publish", "row"]), ROWS),
    ),
    max_size=8,
)


@drawn(60)
@given(WIDTHS, ROWS, STEPS)
def test_instances_keep_what_plain_lists_keep(
    parallelism: int, rows: list[Any], steps: list[Any]
) -> None:
    harness = ProcessHarness(
        Follows(),
        columns="act string, state string, value long",
        parallelism=parallelism,
        max_parallelism=GROUPS,
    )
    model = Model(parallelism)
    for act, given_ in [("rows", rows), *steps, ("rows", [])]:
        if act in ("rescale", "restore"):
            if act == "rescale":
                harness.rescale(given_)
            else:
                snapshot = harness.snapshot()
                harness.close()
                harness = ProcessHarness.restore(snapshot, Follows(), parallelism=given_)
            parallelism = given_
            continue
        if act != "rows":
            harness.fail_after(len(given_) // 2) if act == "row" else harness.fail_at(act)
        told = harness.process(given_)
        assert act == "rows" or harness.failures
        opened = [before for before, _ in told]
        assert [before["instance"] for before in opened] == list(range(parallelism))
        changed = parallelism != len(model.instances)
        kept = any(any(instance.values()) for instance in model.instances)
        assert {b["redistributed"] for b in opened} == {changed and kept}
        if changed:
            model.take_over(parallelism, opened)
        for number, row in enumerate(given_):
            model.follow(number % parallelism, *row)
        for index, (_, after) in enumerate(told):
            assert {name: after[name] for name in Model.empty()} == model.instances[index]
            assert harness.state("first", index) == model.instances[index]["first"]
            assert harness.state("groups", index) == model.instances[index]["groups"]
    harness.close()
