"""What determines an operator's tables, what has no room in them, and states with other names.

A state gets another name: what is stored under the former one stays its own, everywhere.
"""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

import pystate as ps
from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.storage import LocalStorage
from pystate.epochs.merge_policy import MergePolicy
from pystate.errors import DeclarationError, SchemaError, UnclaimedStateError
from pystate.state.declaration import State, stored_parts
from pystate.state.operator_spec import OperatorSpec, in_files
from pystate.testing import Harness, WindowHarness
from pystate.types.keys import parse_key
from pystate.types.state_type import parse_type
from tests.program import Program, state_in

MOST = 16


def spec(columns: int, state: Any, **more: Any) -> OperatorSpec:
    key = parse_key([(f"k{i}", "int") for i in range(columns)])
    return OperatorSpec("o", key, {"s": state}, **more)


def test_a_key_leaves_room_for_what_files_put_behind_it() -> None:
    """It is refused where it is declared, and not by the first checkpoint."""
    value, items, entries = ps.ValueState("int"), ps.ListState("int"), ps.MapState("int", "int")
    long = parse_type("long")
    for state, more, room in [
        (value, {}, MOST),
        (items, {}, MOST - 1),
        (entries, {}, MOST - 1),
        (value, {"timers": True}, MOST - 1),
        (value, {"namespace": long}, MOST - 1),
        (value, {"namespace": long, "timers": True}, MOST - 2),
    ]:  # fmt: skip
        assert spec(room, state, **more)
        if room < MOST:
            with pytest.raises(DeclarationError, match=f"'o'.* at most {room} columns.*{room + 1}"):
                spec(room + 1, state, **more)


class Listed(ps.KeyedProcessFunction):
    items = ps.ListState("int")

    def process(self, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        self.items.add(1)
        yield len(self.items)


@pytest.mark.parametrize("columns", [14, 15, 16])
def test_harnesses_refuse_it_as_well(columns: int) -> None:
    names = [f"k{i}" for i in range(columns)]
    schema = ", ".join(f"{name} int" for name in names)
    row = tuple(range(columns))

    def listed() -> list[Any]:
        with Harness(Listed(), key=names, columns=schema) as harness:
            return harness.process([row])

    def windows() -> list[Any]:
        made = WindowHarness(
            ps.Tumbling(10), {"n": ps.count()}, names, columns=f"{schema}, at long", event_time="at"
        )
        with made as harness:
            harness.process([(*row, 1)])
            return [found.n for found in harness.drain()]

    for run, most in ((listed, MOST - 1), (windows, MOST - 2)):
        if columns <= most:
            assert run() == [1]
        else:
            with pytest.raises(DeclarationError, match=f"at most {most} columns"):
                run()


HOUR = ps.StateTtl(hours=1)


def kinds(**more: Any) -> dict[str, State[Any]]:
    return {
        "value": ps.ValueState("long", **more),
        "text": ps.ValueState("string", **more),
        "struct": ps.ValueState("struct<a:long,b:string>", **more),
        "object": ps.ValueState(object, **more),
        "list": ps.ListState("string", **more),
        "map": ps.MapState("string", "long", **more),
        "sum": ps.ReducingState("long", sum, **more),
        "mean": ps.AggregatingState(ps.Mean(), "double", **more),
        "distinct": ps.AggregatingState(ps.ApproxDistinct(), "string", **more),
    }


GIVEN: dict[str, Any] = {
    "value": 1,
    "text": "x" * 50,
    "struct": {"a": 1, "b": "y"},
    "object": ("some", "thing"),
    "list": "item",
    "map": ("k", 1),
    "sum": 2,
    "mean": 3.0,
    "distinct": "word",
}
OPERATOR_STATES: list[Any] = [
    ps.OperatorListState("long", "union", previously="a"),
    ps.BroadcastState("string", "long", previously="a"),
    ps.RawState("key_group", previously="a"),
]


def give(handle: Any, value: Any) -> None:
    if hasattr(handle, "put"):
        handle.put(*value)
    else:
        by_item = isinstance(handle, ps.ListHandle) or not hasattr(handle, "update")
        (handle.add if by_item else handle.update)(value)


def content(store: ps.Store) -> dict[int, dict[str, Any]]:
    return {row.pop("key"): row for row in store.to_arrow().to_pylist()}


@pytest.mark.parametrize("ttl", [None, HOUR], ids=["", "ttl"])
def test_a_store_continues_every_kind(tmp_path: Path, ttl: ps.StateTtl | None) -> None:
    old = kinds(ttl=ttl)
    with ps.open(tmp_path, key="long", states=old) as store:
        for key in (1, 2, 3):
            store.set_current_key(key)
            for name, value in GIVEN.items():
                give(store[name], value)
        store.checkpoint()
        before = content(store)
    # A kind after the other, so that some have the former name and some the new one.
    new = dict(old)
    for name in old:
        del new[name]
        new[f"{name}2"] = kinds(ttl=ttl, previously=name)[name]
        with ps.open(tmp_path, key="long", states=new) as store:
            assert content(store) == {
                key: {n: row[n.removesuffix("2")] for n in new} for key, row in before.items()
            }
            store.set_current_key(1)
            store[f"{name}2"].clear()
            give(store[f"{name}2"], GIVEN[name])
            store.checkpoint()
    # It is idempotent, and the former names are needed no longer.
    for states in (new, {f"{name}2": kinds(ttl=ttl)[name] for name in old}):
        with ps.open(tmp_path, key="long", states=states) as store:
            assert [row["value2"] for row in content(store).values()] == [1, 1, 1]
            assert content(store)[2]["list2"] == ["item"]
            store.set_current_key(2)
            store["value2"].update(1)
            store.checkpoint()
    read = {row.pop("key"): row for row in ps.read_state(tmp_path).to_pylist()}
    with ps.open(tmp_path, key="long", states=new) as store:
        assert content(store) == {key: {n: row[n] for n in new} for key, row in read.items()}
    assert ps.verify(tmp_path).ok


def test_a_job_goes_on_in_other_ranges_and_merges(tmp_path: Path) -> None:
    """Files of before and after it in one chain, read, compared, copied and merged."""
    root = tmp_path / "job"
    policy = {"merge_policy": MergePolicy(min_deltas=2, max_deltas=4, keep_deltas=0)}
    old = {"n": ps.ValueState("long"), "l": ps.ListState("long"), "s": ps.ValueState("string")}
    new: dict[str, Any] = {
        "clicks": ps.ValueState("long", previously=["counts", "n"]),
        "s": ps.ValueState("string"),
        "items": ps.ListState("long", previously="l"),
    }
    Program(root, old, 2).run(0, {k: {"n": k, "l": k, "s": "a"} for k in range(9)}, **policy)
    Program(root, new, 3).run(1, {k: {"clicks": -k, "items": 9} for k in range(3)}, **policy)

    def wanted(k: int) -> dict[str, Any]:
        items = [k, 9] if k < 3 else [k]
        return {"clicks": -k if k < 3 else k, "s": "a", "items": items}

    assert state_in(root) == {k: wanted(k) for k in range(9)}
    changed = ps.changes(root, "op", from_epoch=1).to_pylist()
    assert sorted(row["k"] for row in changed) == [0, 1, 2]
    ps.savepoint(root, tmp_path / "saved")
    ps.rescale(root, tmp_path / "wider", max_parallelism=256)
    for folder in ("saved", "wider"):
        assert state_in(tmp_path / folder) == {k: wanted(k) for k in range(9)}
    for number in range(2, 8):
        Program(root, new, 1 + number % 3).run(number, {8: {"clicks": 8, "s": "b"}}, **policy)
    assert state_in(root) == {k: {**wanted(k), "s": "b" if k == 8 else "a"} for k in range(9)}
    # It is written under the name that it has now.
    rows = ps.StateRows.read(root)
    ps.write_state(tmp_path / "written", {"op": rows})
    assert state_in(tmp_path / "written") == state_in(root)
    assert all(stored_parts(text)[0] is None for _, text in schema(tmp_path / "written"))
    assert ps.verify(root).ok


def schema(folder: Path) -> tuple[tuple[str, str], ...]:
    head = read_head(LocalStorage(folder))
    assert head is not None
    return head.operators[0].state_schema


def test_a_former_name_may_be_used_again(tmp_path: Path) -> None:
    """By a state of its own, of the same kind or another one."""
    root = tmp_path
    count, words = ps.ValueState("long"), ps.ListState("string")
    Program(root, {"n": count}, 1).run(0, {1: {"n": 1}, 2: {"n": 2}})
    renamed = {"clicks": ps.ValueState("long", previously="n")}
    Program(root, renamed, 1).run(1, {2: {"clicks": 3}})
    Program(root, {"clicks": count, "n": words}, 1).run(2, {2: {"n": "a"}, 3: {"n": "b"}})
    assert dict(schema(root)) == {"clicks": '"n": long', "n": "\"n~2\": ListState('string')"}
    wanted = {
        1: {"clicks": 1, "n": []},
        2: {"clicks": 3, "n": ["a"]},
        3: {"clicks": None, "n": ["b"]},
    }
    assert state_in(root) == wanted
    # Dropped, and there once more: nothing of either former state comes back.
    Program(root, {"clicks": count}, 2).run(3, {1: {"clicks": 1}})
    Program(root, {"clicks": count, "n": words}, 1).run(4, {1: {"n": "c"}})
    assert state_in(root)[1] == {"clicks": 1, "n": ["c"]}
    assert state_in(root)[2] == {"clicks": 3, "n": []}
    # As is a new state under the name of one that is dropped in the same run.
    Program(root, {"n": words}, 1).run(5, {1: {"n": "d"}})
    assert state_in(root)[1] == {"n": ["c", "d"]}
    assert ps.verify(root).ok


def test_fields_evolve_beside_a_rename(tmp_path: Path) -> None:
    root = tmp_path
    Program(root, {"p": ps.ValueState("struct<a:int,b:string>")}, 1).run(
        0, {1: {"p": {"a": 1, "b": "x"}}, 2: {"p": {"a": 2, "b": "y"}}}
    )
    first = {"q": ps.ValueState("struct<a:long>", previously="p")}
    Program(root, first, 2).run(1, {1: {"q": {"a": 2**40}}})
    default = {"a": None, "b": "none"}
    again = {"q": ps.ValueState("struct<a:long,b:string>", default)}
    Program(root, again, 1).run(2, {3: {"q": {"a": 3, "b": "z"}}}, retained=1)
    assert state_in(root) == {
        1: {"q": {"a": 2**40, "b": "none"}},
        2: {"q": {"a": 2, "b": "none"}},
        3: {"q": {"a": 3, "b": "z"}},
    }


def counting(name: str, previously: Any = ()) -> ps.KeyedProcessFunction:
    """A function that counts in a state of that name."""

    def process(self: Any, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        state = getattr(self, name)
        state.update(state.value() + 1)
        yield key, state.value()

    members = {name: ps.ValueState("long", default=0, previously=previously), "process": process}
    return type("Counts", (ps.KeyedProcessFunction,), members)()  # type: ignore[no-any-return]


def test_a_harness_continues_it() -> None:
    with ps.testing.Harness(counting("n"), key="k", parallelism=2) as harness:
        harness.process([{"k": 1}] * 5 + [{"k": 2}])
        snapshot = pickle.loads(pickle.dumps(harness.snapshot()))
    with pytest.raises(
        UnclaimedStateError, match=r"^operator 'harness': .* a rename: n -> clicks \(same kind and"
    ):
        ps.testing.Harness.restore(snapshot, counting("clicks"))
    with ps.testing.Harness.restore(
        snapshot, counting("clicks", ["m", "n"]), parallelism=3
    ) as harness:
        assert harness.process([{"k": 1}]) == [(1, 6)]
        assert harness.state("clicks", 2) == 1
        again = harness.snapshot()
    for previously in (["m", "n"], ()):
        with ps.testing.Harness.restore(again, counting("clicks", previously)) as harness:
            assert harness.process([{"k": 1}]) == [(1, 7)]


def test_the_error_of_an_unclaimed_state_says_how(tmp_path: Path) -> None:
    with ps.open(tmp_path, key="long", states={"n": ps.ValueState("long")}) as store:
        store.set_current_key(1)
        store["n"].update(1)
        store.checkpoint()
    with pytest.raises(UnclaimedStateError, match=r"'clicks' with previously='n', and it keeps"):
        ps.open(tmp_path, key="long", states={"clicks": ps.ValueState("long")})
    # Of another kind it is none.
    with pytest.raises(UnclaimedStateError, match=r"claims: n; declare it, with previously="):
        ps.open(tmp_path, key="long", states={"clicks": ps.ReducingState("long", sum)})
    with pytest.raises(SchemaError, match=r"state 'clicks', previously 'n': stored as ValueState"):
        ps.open(
            tmp_path,
            key="long",
            states={"clicks": ps.ReducingState("long", sum, previously="n")},
        )


def test_contradictions_are_errors() -> None:
    value = ps.ValueState("long")
    once = ps.ValueState("long", previously="n")
    with pytest.raises(DeclarationError, match="there is a state 'n', which keeps"):
        in_files({"n": value, "clicks": once}, (), "operator 'x'")
    with pytest.raises(DeclarationError, match="'a' and 'b' both have previously='n'"):
        in_files({"a": once, "b": once}, (), "operator 'x'")
    with pytest.raises(DeclarationError, match="is the name that it has now"):
        in_files({"n": once}, (), "operator 'x'")
    stored = (("n", "long"), ("clicks", "long"))
    with pytest.raises(SchemaError, match="the checkpoint has 'clicks' and 'n', which cannot"):
        in_files({"clicks": once}, stored, "operator 'x'")
    for wrong in (7, "", ["a", None], "a#b"):
        with pytest.raises(DeclarationError, match="previously is the name"):
            ps.ValueState("long", previously=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("state", [*kinds(ttl=HOUR, previously="a").values(), *OPERATOR_STATES])
def test_it_is_part_of_the_declaration(state: State[Any]) -> None:
    assert "previously='a'" in repr(state) and state.previously == ("a",)
    named = state.in_files("a")
    for each in (copy.copy(named), pickle.loads(pickle.dumps(named))):
        assert each == state and each.previously == ("a",)
        assert each.file_name("n") == "a" and each.stored_as().startswith('"a": ')


def waiting(state: State[Any], name: str) -> ps.ProcessFunction:
    def process(self: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        handle = getattr(self, name)
        handle.add(row["v"])
        yield (len(handle.get()),)

    return type("Waiting", (ps.ProcessFunction,), {name: state, "process": process})()  # type: ignore[no-any-return]


def test_instances_continue_it_when_they_are_divided_anew() -> None:
    first = waiting(ps.OperatorListState("long"), "rows")
    with ps.testing.ProcessHarness(first, columns="v long", parallelism=2) as harness:
        harness.process([{"v": v} for v in range(6)])
        snapshot = harness.snapshot()
    restore = ps.testing.ProcessHarness.restore
    with pytest.raises(UnclaimedStateError, match="a rename: rows -> kept"):
        restore(snapshot, waiting(ps.OperatorListState("long"), "kept"))
    later = waiting(ps.OperatorListState("long", previously="rows"), "kept")
    with restore(snapshot, later, parallelism=3) as harness:
        assert harness.process([{"v": 7}]) == [(3,)]
        snapshot = harness.snapshot()
    with restore(snapshot, waiting(ps.OperatorListState("long"), "kept"), parallelism=1) as harness:
        assert harness.process([{"v": 8}]) == [(8,)]


def flagged(state: State[Any], name: str) -> ps.KeyedBroadcastProcessFunction:
    def process_broadcast(self: Any, row: Any, ctx: ps.RuntimeContext) -> None:
        getattr(self, name).put(row["word"], row["n"])

    def process(self: Any, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        yield key, dict(getattr(self, name).items())

    members = {name: state, "process_broadcast": process_broadcast, "process": process}
    return type("Flagged", (ps.KeyedBroadcastProcessFunction,), members)()  # type: ignore[no-any-return]


def test_instances_copies_continue_it() -> None:
    first, key = flagged(ps.BroadcastState("string", "long"), "words"), {"k": "long"}
    with ps.testing.BroadcastHarness(first, key=key) as harness:
        harness.process(broadcast=[{"word": "spam", "n": 1}])
        snapshot = harness.snapshot()
    restore = ps.testing.BroadcastHarness.restore
    with pytest.raises(UnclaimedStateError, match="a rename: words -> rules"):
        restore(snapshot, flagged(ps.BroadcastState("string", "long"), "rules"))
    later = flagged(ps.BroadcastState("string", "long", previously="words"), "rules")
    with restore(snapshot, later, parallelism=3) as harness:
        found = harness.process([{"k": 1}], broadcast=[{"word": "eggs", "n": 2}])
        assert found == [(1, {"spam": 1, "eggs": 2})]
        snapshot = harness.snapshot()
    with restore(snapshot, later, parallelism=1) as harness:
        assert harness.process([{"k": 1}]) == [(1, {"spam": 1, "eggs": 2})]
