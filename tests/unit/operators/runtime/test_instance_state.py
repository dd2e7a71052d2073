"""Operator state: an instance's row, its handles, and its division among other instances."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pystate as ps
from pystate.errors import (
    CheckpointError,
    DeclarationError,
    InvalidArgumentError,
    ReadOnlyStateError,
    WrongTypeError,
)
from pystate.operators.runtime.instance_state import InstanceState, instance_spec
from pystate.state.operator_state import Instance, KeylessState
from tests.drawn import drawn

GROUPS = 128
STATES: dict[str, KeylessState[Any]] = {
    "items": ps.OperatorListState("long"),
    "more": ps.OperatorListState("string"),
    "all": ps.OperatorListState("long", redistribute="union"),
    "objects": ps.OperatorListState(object),
    "rules": ps.BroadcastState("string", "double"),
    "streams": ps.RawState(),
    "groups": ps.RawState("key_group"),
}


def test_the_slots_of_stored_rows_never_change() -> None:
    found = [Instance(i, 3, 128).key for i in range(3)]
    assert found == [(0, 3, 1), (1, 3, 0), (2, 3, 3)]
    for parallelism in (1, 2, 5, 128):
        for index in range(parallelism):
            instance = Instance(index, parallelism, 128)
            parts = [pa.array([part], pa.int32()) for part in instance.key]
            group = int(ps.hash_keys(parts).view("int64")[0] % 128)
            assert ps.range_of(group, 128, parallelism) == index


class Instances:
    def __init__(
        self,
        parallelism: int,
        files: list[bytes] | None = None,
        states: Mapping[str, KeylessState[Any]] = STATES,
        groups: int = GROUPS,
    ) -> None:
        self.states = states
        self.spec = instance_spec("op", states, groups)
        self.instances = [Instance(i, parallelism, groups) for i in range(parallelism)]
        self.backends = [ps.KeyedStateBackend.of(self.spec, i.key_groups) for i in self.instances]
        for backend in self.backends:
            backend.open()
            if files:
                backend.restore([io.BytesIO(file) for file in files], allow_unclaimed_state=True)
        self.files = list(files or ())
        self.begin()
        if files:
            with ps.KeyedStateBackend.of(self.spec) as old:
                old.restore([io.BytesIO(file) for file in files], allow_unclaimed_state=True)
                for state in self.all:
                    state.redistribute(old)
        self.begin(opened=True)

    def begin(self, *, opened: bool = False) -> None:
        pairs = zip(self.backends, self.instances, strict=True)
        self.all = [InstanceState(backend, instance, self.states) for backend, instance in pairs]
        for state in self.all if opened else ():
            state.open()

    def seal(self) -> list[bytes]:
        for backend in self.backends:
            if backend.dirty:
                out = io.BytesIO()
                with backend.seal() as snapshot:
                    snapshot.write(out)
                self.files.append(out.getvalue())
        self.begin(opened=True)
        return self.files

    def get(self, name: str) -> list[Any]:
        return [state[name].get() for state in self.all]

    def __enter__(self) -> Instances:
        return self

    def __exit__(self, *_: object) -> None:
        for backend in self.backends:
            backend.close()


def test_lists_are_divided_evenly_and_the_rest_goes_round() -> None:
    with Instances(2) as two:
        two.all[0]["items"].add_all([1, 2, 3])
        two.all[1]["items"].add_all([4])
        two.all[1]["more"].add_all(["a", "b"])
        two.all[0]["all"].add(7)
        two.all[1]["all"].add(8)
        two.all[1]["objects"].add({"x": 1})
        files = two.seal()
    with Instances(3, files) as three:
        assert three.get("items") == [[1, 2], [3], [4]]
        assert three.get("more") == [[], ["a"], ["b"]]
        assert three.get("all") == [[7, 8]] * 3
        assert three.get("objects") == [[{"x": 1}], [], []]
        assert [len(backend) for backend in three.backends] == [1, 1, 1]
        files = three.seal()
    with Instances(3, files) as again:
        assert again.get("items") == [[1, 2], [3], [4]]
        assert again.get("all") == [[7, 8]] * 3
    with Instances(1, files) as one:
        assert one.get("items") == [[1, 2, 3, 4]]
        assert one.get("all") == [[7, 8] * 3]


def test_broadcast_state_is_copied_to_every_instance() -> None:
    with Instances(2) as two:
        for state in two.all:
            state["rules"].put_all({"a": 1.0, "b": 2.0})
        files = two.seal()
    with Instances(5, files) as five:
        assert [state["rules"].items() for state in five.all] == [[("a", 1.0), ("b", 2.0)]] * 5


def test_raw_streams_move_with_their_key_groups() -> None:
    with Instances(2) as two:
        two.all[0]["streams"].update([b"x", bytearray(b"y")])
        two.all[1]["streams"].add(memoryview(b"z"))
        two.all[0]["groups"].write(3, b"three")
        two.all[1]["groups"].write(127, b"last")
        with pytest.raises(InvalidArgumentError, match="key group 3 belongs to another instance"):
            two.all[1]["groups"].write(3, b"")
        with pytest.raises(WrongTypeError, match="a stream is bytes, not 'text'"):
            two.all[1]["streams"].add("text")
        with pytest.raises(WrongTypeError, match=r"write update\(\[stream\]\)"):
            two.all[1]["streams"].update(b"text")
        files = two.seal()
    with Instances(4, files) as four:
        assert [state["streams"].streams() for state in four.all] == [[b"x"], [b"y"], [b"z"], []]
        assert [state["groups"].key_groups() for state in four.all] == [[3], [], [], [127]]
        assert four.all[0]["groups"].read(3) == b"three" and four.all[0]["groups"].read(4) is None
        four.all[0]["groups"].remove(3)
        assert len(four.all[0]["groups"]) == 0


def test_one_instance_takes_over_rows_that_it_finds_without_being_told() -> None:
    with Instances(2) as two:
        two.all[0]["items"].add(1)
        two.all[1]["items"].add(2)
        files = two.seal()
    spec = instance_spec("op", STATES)
    with ps.KeyedStateBackend.of(spec) as backend:
        backend.restore([io.BytesIO(file) for file in files])
        state = InstanceState(backend, Instance(0, 1, GROUPS), STATES)
        state.open()
        assert state["items"].get() == [1, 2] and len(backend) == 1
    with ps.KeyedStateBackend.of(spec, Instance(1, 3, GROUPS).key_groups) as backend:
        backend.restore([io.BytesIO(file) for file in files])
        if len(backend):
            with pytest.raises(CheckpointError, match="instance 1 of 3: its table has state of"):
                InstanceState(backend, Instance(1, 3, GROUPS), STATES).open()


def test_a_list_of_an_instance_takes_columns_and_refuses_what_is_no_item() -> None:
    with Instances(1) as one:
        items = one.all[0]["items"]
        items.add_all(pa.array([1, 2], pa.int32()))
        items.add_all(pa.chunked_array([[3], [4]]))
        items.add_all(iter([5]))
        assert items.to_arrow().to_pylist() == list(items) == [1, 2, 3, 4, 5]
        assert len(items) == 5 and items[0] == 1 and 3 in items and items
        with pytest.raises(WrongTypeError, match="None is no item"):
            items.add_all(pa.array([6, None]))
        with pytest.raises(WrongTypeError, match="takes items, got '12'"):
            items.update("12")
        items.update(pa.array([9]))
        assert items.get() == [9]
        items.clear()
        assert items.is_empty() and not items
        one.all[0]["objects"].add_all([{1}, [2]])
        assert one.all[0]["objects"].get() == [{1}, [2]]
        with pytest.raises(InvalidArgumentError, match="objects are no Arrow array"):
            one.all[0]["objects"].to_arrow()


def test_a_broadcast_map_is_written_only_where_it_may_be() -> None:
    with Instances(1) as one:
        state = one.all[0]
        rules = state["rules"]
        rules["a"] = 1.0
        rules.put("b", 2.0)
        state.read_only = True
        assert rules.read_only
        for act in (
            lambda: rules.put("a", 3.0),
            lambda: rules.put_all({"a": 3.0}),
            lambda: rules.remove("a"),
            rules.clear,
            lambda: rules.__setitem__("a", 3.0),
            lambda: rules.__delitem__("a"),
        ):
            with pytest.raises(ReadOnlyStateError, match=r"state 'rules': .* not allowed here"):
                act()
        assert rules.items() == [("a", 1.0), ("b", 2.0)]
        assert (rules.keys(), rules.values()) == (["a", "b"], [1.0, 2.0])
        assert rules.get("c", 9) == 9 and rules.contains("a") and "b" in rules and rules["a"] == 1
        assert list(rules) == ["a", "b"] and len(rules) == 2 and not rules.is_empty()
        with pytest.raises(KeyError):
            rules["c"]
        state.read_only = False
        del rules["a"]
        rules.remove("b")
        assert rules.is_empty() and not rules


def test_declarations_are_checked_and_belong_to_instances() -> None:
    with pytest.raises(InvalidArgumentError, match="redistribute"):
        ps.OperatorListState("long", redistribute="evenly")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="scope"):
        ps.RawState("keygroup")  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match=r"^BroadcastState's key"):
        ps.BroadcastState("array<int>", "long")
    with pytest.raises(DeclarationError, match=r"state 'n': Operator.*take a ps.ListState"):
        ps.KeyedStateBackend("long", states={"n": ps.OperatorListState("long")})


def test_a_state_that_is_new_is_empty_and_one_that_evolves_is_widened() -> None:
    before = {"items": ps.OperatorListState("struct<a:int>")}
    after = {
        "items": ps.OperatorListState("struct<a:long,b:string>"),
        "new": ps.BroadcastState("int", "int"),
    }
    with Instances(1, states=before) as one:
        one.all[0]["items"].add_all([{"a": 1}, {"a": 2}])
        files = one.seal()
    with Instances(2, files, after) as two:
        assert two.get("items") == [[{"a": 1, "b": None}], [{"a": 2, "b": None}]]
        assert [len(state["new"]) for state in two.all] == [0, 0]


@drawn(15)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 9),
            st.dictionaries(st.text("abc", max_size=3), st.floats(allow_nan=False), max_size=4),
            st.sets(st.text("abc", max_size=3), max_size=2),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_broadcast_state_is_the_same_everywhere_over_any_changes_of_their_number(
    steps: list[Any],
) -> None:
    rules: dict[str, float] = {}
    files: list[bytes] = []
    for parallelism, put, removed in steps:
        with Instances(parallelism, files) as instances:
            for state in instances.all:
                assert dict(state["rules"].items()) == rules
                state["rules"].put_all(put)
                for key in removed:
                    state["rules"].remove(key)
            rules = {k: v for k, v in {**rules, **put}.items() if k not in removed}
            files = instances.seal()


def test_written_state_is_gathered_so_that_any_job_divides_it(tmp_path: Path) -> None:
    rows = {"instance": [0], "instances": [1], "slot": [0], "items": [[1, 2, 3]]}
    key = {"instance": "int", "instances": "int", "slot": "int"}
    states = {"items": ps.OperatorListState("long")}
    ps.write_state(tmp_path / "a", {"op": ps.StateRows(rows, key, states)}, parallelism=4)
    ps.rescale(tmp_path / "a", tmp_path / "b", max_parallelism=256)
    for folder in ("a", "b"):
        [described] = ps.state_metadata(tmp_path / folder).to_pylist()
        assert described["parallelism"] == 1
        assert ps.read_state(tmp_path / folder)["items"].to_pylist() == [[1, 2, 3]]
        assert ps.verify(tmp_path / folder).ok
