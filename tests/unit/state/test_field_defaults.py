"""Fields that are added to structs of value states have the declaration's default."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import pystate as ps
from pystate.epochs.merge_policy import MergePolicy
from pystate.testing import Harness
from tests.program import Program, state_in

EAGER = MergePolicy(min_deltas=2, max_deltas=2, keep_deltas=0)
OLD = "struct<a:int,p:struct<x:int>>"
NEW = "struct<tags:array<string>,a:long,b:string,p:struct<y:double,x:int>,on:boolean>"


def state(type_: str, **default: Any) -> dict[str, Any]:
    whole = default or None
    return {"s": ps.ValueState(type_, whole), "l": ps.ListState(type_)}


def store(folder: Path, type_: str, values: Mapping[int, Any]) -> None:
    """A store of which some keys have a value."""
    with ps.open(folder, key="long", states={"s": ps.ValueState(type_)}) as made:
        for key, value in values.items():
            made.set_current_key(key)
            made["s"].update(value)
        made.checkpoint()


def reopened(folder: Path, type_: str, keys: Iterable[int], **default: Any) -> list[Any]:
    """What a program sees of keys that has another type for it."""
    with ps.open(folder, key="long", states={"s": ps.ValueState(type_, default)}) as made:
        found = []
        for key in keys:
            made.set_current_key(key)
            found.append(made["s"].value())
        return found


def old_row(i: int) -> dict[str, Any]:
    item = {"a": i, "p": None if i == 3 else {"x": i}}
    return {"s": item, "l": item}


def expected(i: int, **fields: Any) -> dict[str, Any]:
    whole = {"tags": None, "a": i, "b": None, "p": {"y": None, "x": i}, "on": None, **fields}
    if i == 3:
        whole["p"] = None
    return whole


DEFAULT = {"tags": ["a", None], "b": "x", "p": {"y": 0.5}, "on": True}
FILLED: dict[str, Any] = {"tags": ["a", None], "b": "x", "on": True}


def filled(i: int) -> dict[str, Any]:
    return expected(i, **FILLED, p={"y": 0.5, "x": i})


@pytest.mark.parametrize("policy", [None, EAGER], ids=["deltas", "merged"])
def test_a_default_is_that_of_the_epoch_that_adds_the_field(
    tmp_path: Path, policy: MergePolicy | None
) -> None:
    """Whether files were merged before or after, whatever later programs declare."""
    Program(tmp_path, state(OLD), 2).run(0, {i: old_row(i) for i in range(5)}, {1: old_row(1)})
    later = Program(tmp_path, state(NEW, **DEFAULT), 3)
    own = {"tags": [], "a": 2**40, "b": None, "p": {"y": None, "x": 9}, "on": False}
    later.run(2, {4: {"s": own}}, merge_policy=policy, retained=9)
    wanted = {**{i: filled(i) for i in range(4)}, 4: own}

    def found(**options: Any) -> dict[int, Any]:
        return {key: row["s"] for key, row in state_in(tmp_path, **options).items()}

    assert found() == wanted
    # Another default changes nothing that has one; no default, neither.
    for number, (default, width) in enumerate((({"b": "other", "tags": ["z"]}, 1), ({}, 4)), 3):
        program = Program(tmp_path, state(NEW, **default), width)
        program.run(number, {7: {"s": own}}, merge_policy=policy, retained=9)
        assert found() == {**wanted, 7: own}
    # The epoch before knows nothing of it.
    assert found(epoch=2)[0] == {"a": 0, "p": {"x": 0}}
    # Items of lists have nulls: a list has no default.
    assert state_in(tmp_path)[0]["l"] == [expected(0)]
    # Wider, and without one of them.
    wide = "struct<b:string,p:struct<y:double,x:long>,c:date,a:long,tags:array<string>>"
    Program(tmp_path, state(wide), 2).run(5, {8: {}}, merge_policy=policy, retained=9)
    want = {"b": "x", "p": {"y": 0.5, "x": 1}, "c": None, "a": 1, "tags": ["a", None]}
    assert found()[1] == want
    # A field that was away begins with the default that it has then.
    back = Program(tmp_path, state(wide.replace("c:date", "on:boolean"), on=False), 2)
    back.run(6, {8: {}}, merge_policy=policy, retained=9)
    assert found()[1] == {key: value for key, value in want.items() if key != "c"} | {"on": False}
    assert found()[4]["on"] is False
    assert ps.verify(tmp_path).ok


def test_what_changed_with_a_default(tmp_path: Path) -> None:
    states = {"s": ps.ValueState("struct<a:int>")}
    Program(tmp_path, states, 1).run(0, {i: {"s": {"a": i}} for i in range(2)}, retained=9)
    states = {"s": ps.ValueState("struct<a:int,b:int>", {"b": 5})}
    Program(tmp_path, states, 1).run(1, {7: {"s": {"a": 7, "b": 7}}}, retained=9)
    table = ps.changes(tmp_path, from_epoch=1, state="s").sort_by("k")
    assert [(row["k"], row["before"], row["after"]) for row in table.to_pylist()] == [
        (0, {"a": 0, "b": None}, {"a": 0, "b": 5}),
        (1, {"a": 1, "b": None}, {"a": 1, "b": 5}),
        (7, None, {"a": 7, "b": 7}),
    ]


def test_a_store_fills_what_it_has(tmp_path: Path) -> None:
    """And keeps it with its next checkpoint, whatever is declared afterwards."""
    store(tmp_path, OLD, {i: old_row(i)["s"] for i in range(4)})
    assert reopened(tmp_path, NEW, [1], b="not kept")[0]["b"] == "not kept"
    wanted = [filled(i) for i in range(4)]
    new = {**DEFAULT, "a": None, "p": {"y": 0.5, "x": None}}
    assert reopened(tmp_path, NEW, [*range(4), 9], **DEFAULT) == [*wanted, new]
    with ps.open(tmp_path, key="long", states={"s": ps.ValueState(NEW, DEFAULT)}) as made:
        made.set_current_key(9)
        made["s"].update({"a": 9})
        made.checkpoint()
    new = {"tags": None, "a": 9, "b": None, "p": None, "on": None}
    assert reopened(tmp_path, NEW, [*range(4), 9], b="other") == [*wanted, new]


def test_many_rows_are_filled_at_once(tmp_path: Path) -> None:
    """More than a word of bits, with nulls among the values and in the default."""
    old, new = (
        "struct<a:int>",
        (
            "struct<on:boolean,a:int,tags:array<boolean>,m:map<int,string>,t:string,w:decimal(30,2),"
            "p:struct<off:boolean,n:int,l:array<struct<y:string>>>>"
        ),
    )
    default = {
        "on": True,
        "tags": [True, None, False],
        "m": {1: "one", 2: None},
        "t": "text",
        "w": Decimal("12345678901234567890.25"),
        "p": {"off": False, "n": None, "l": [{"y": "a"}, None, {"y": None}]},
    }
    none = {i for i in range(700) if i % 7 == 0}
    numbers = {i: None if i % 5 == 0 or i in none else i for i in range(700)}
    store(tmp_path, old, {i: None if i in none else {"a": a} for i, a in numbers.items()})
    found = reopened(tmp_path, new, numbers, **default)
    assert found == [{**default, "a": a} for a in numbers.values()]


def test_collections_of_collections_are_filled(tmp_path: Path) -> None:
    """In each of the rows, with bytes and numbers of several elements."""
    tags = [{"s": "ab", "xs": [1, 2]}, {"s": "c", "xs": []}, {"s": "", "xs": [3, None]}]
    store(tmp_path, "struct<a:int>", {i: {"a": i} for i in range(5)})
    new = "struct<a:int,tags:array<struct<s:string,xs:array<int>>>>"
    found = reopened(tmp_path, new, range(5), tags=tags)
    assert found == [{"a": i, "tags": tags} for i in range(5)]


def test_within_an_array_nothing_is_filled(tmp_path: Path) -> None:
    """Neither a field that elements gain nor what lies in it: an array's default is another one."""
    old = {i: {"x": [{"a": k} for k in range(i)]} for i in range(4)}
    store(tmp_path, "struct<x:array<struct<a:int>>>", old)
    new = "struct<x:array<struct<a:int,b:struct<c:int,d:string>>>,y:int>"
    found = reopened(tmp_path, new, range(4), x=[{"a": 1, "b": {"c": 2, "d": "no"}}], y=5)
    assert found == [{"x": [{"a": k, "b": None} for k in range(i)], "y": 5} for i in range(4)]


def test_a_harness_fills_what_it_restores() -> None:
    """As a job does: the next snapshot has it, whatever is declared afterwards."""

    def program(type_: str, **default: Any) -> ps.KeyedProcessFunction:
        class Shown(ps.KeyedProcessFunction):
            s = ps.ValueState(type_, default or None)

            def process(self, key: int, row: Any, ctx: Any) -> Any:
                yield self.s.value()
                self.s.update({"a": key})

        return Shown()

    def harness(type_: str, **default: Any) -> Harness:
        return Harness(program(type_, **default), key="k")

    wide = "struct<a:int,b:string>"
    with harness("struct<a:int>") as first:
        first.process([{"k": 1}, {"k": 2}])
        taken = first.snapshot()
    with Harness.restore(taken, program(wide, b="x")) as second:
        second.process([{"k": 3}])
        assert second.state("s", 1) == {"a": 1, "b": "x"}
        taken = second.snapshot()
    with Harness.restore(taken, program(wide, b="other")) as third:
        assert third.state("s", 1) == {"a": 1, "b": "x"}
        assert third.state("s", 3) == {"a": 3, "b": None}


def test_savepoints_and_more_key_groups_keep_the_defaults(tmp_path: Path) -> None:
    states = {"s": ps.ValueState("struct<a:int>")}
    root, taken, more = (tmp_path / name for name in ("root", "taken", "more"))
    Program(root, states, 1).run(0, {i: {"s": {"a": i}} for i in range(9)})
    states = {"s": ps.ValueState("struct<a:int,b:int>", {"b": 5})}
    Program(root, states, 2).run(1, {})
    ps.savepoint(root, taken)
    ps.rescale(taken, more, max_parallelism=256)
    for folder in (root, taken, more):
        assert state_in(folder) == {i: {"s": {"a": i, "b": 5}} for i in range(9)}
