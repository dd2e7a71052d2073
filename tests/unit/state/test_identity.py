"""The kind of a state and the function of its values are part of what a checkpoint knows of it."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pystate as ps
from pystate.checkpoint.manifest import Manifest
from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.storage import LocalStorage
from pystate.errors import SchemaError
from pystate.state.evolution import stored_change
from pystate.state.identity import class_name, function_name, of_unknown_kind, without_kind

GOLDEN = Path(__file__).parent.parent.parent / "compat"


def longest(a: str, b: str) -> str:
    return max(a, b, key=len)


def product(a: int, b: int) -> int:
    return a * b


class Own(ps.AggregateFunction[int, int, int]):
    def create(self) -> int:
        return 0

    def add(self, accumulator: int, value: int) -> int:
        return accumulator + value

    def merge(self, a: int, b: int) -> int:
        return a + b

    def result(self, accumulator: int) -> int:
        return accumulator


class Other(Own):
    pass


@dataclasses.dataclass
class Largest(Own):
    k: int = 3
    names: tuple[str, ...] = ("a",)
    cache: dict[str, int] = dataclasses.field(default_factory=dict, compare=False)


class Weighted(Own):
    def __init__(self, weight: float, function: Callable[..., Any] = abs) -> None:
        self._weight, self.function = weight, function


#: Of one column each, in which all of them keep a long or an object.
LONGS: dict[str, ps.State[Any]] = {
    "a value": ps.ValueState("long"),
    "max": ps.ReducingState("long", max),
    "min": ps.ReducingState("long", min),
    "sum": ps.ReducingState("long", sum),
    "product": ps.ReducingState("long", product),
    "a lambda": ps.ReducingState("long", lambda a, b: a ^ b),
    "Count": ps.AggregatingState(ps.Count(), "long"),
    "Sum": ps.AggregatingState(ps.Sum(), "long"),
    "Max": ps.AggregatingState(ps.Max(), "long"),
    "Min": ps.AggregatingState(ps.Min(), "long"),
}
OBJECTS: dict[str, ps.State[Any]] = {
    "an object": ps.ValueState(object),
    "a reduced object": ps.ReducingState(object, longest),
    "Own": ps.AggregatingState(Own()),
    "Other": ps.AggregatingState(Other()),
    "Largest": ps.AggregatingState(Largest()),
    "Largest(4)": ps.AggregatingState(Largest(4)),
}


def fill(store: ps.Store) -> None:
    store.set_current_key(1)
    give(store["x"], 7)


def give(handle: Any, value: Any) -> None:
    (handle.update if hasattr(handle, "update") else handle.add)(value)


def reopened(folder: Path, old: ps.State[Any], new: ps.State[Any]) -> None:
    with ps.open(folder, key="long", states={"x": old}) as store:
        fill(store)
        store.checkpoint()
    with ps.open(folder, key="long", states={"x": new}) as store:
        store.set_current_key(1)
        assert store["x"].value() if hasattr(store["x"], "value") else store["x"].get() is not None


@pytest.mark.parametrize("kinds", [LONGS, OBJECTS], ids=["longs", "objects"])
def test_no_kind_takes_the_values_of_another(kinds: dict[str, ps.State[Any]]) -> None:
    for before, after in itertools.product(kinds, repeat=2):
        refused = stored_change(kinds[before].stored_as(), kinds[after].stored_as()).types.refused
        # A lambda that gets a name is the same function, as far as anybody can know.
        lambdas = {before, after} == {"product", "a lambda"}
        assert bool(refused) == (before != after and not lambdas), (before, after)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("a value", "sum", r"ValueState\('long'\), declared as ReducingState\('long', 'sum'\)"),
        ("Sum", "Count", r"Sum\(\) of long, declared as Count\(\) of long"),
        ("max", "sum", r"ReducingState\('long', 'max'\), declared as ReducingState\('long', 'sum'"),
    ],
)
def test_a_store_names_both(tmp_path: Path, old: str, new: str, says: str) -> None:
    reopened(tmp_path, LONGS[old], LONGS[old])
    with pytest.raises(SchemaError, match=f"^operator 'embedded', state 'x': stored as {says}"):
        ps.open(tmp_path, key="long", states={"x": LONGS[new]})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (ps.ReducingState("int", max), ps.ReducingState("long", max)),
        (ps.ReducingState("int", sum), ps.ReducingState("long", operator.add)),
        (ps.AggregatingState(ps.Sum(), "int"), ps.AggregatingState(ps.Sum(), "long")),
        (ps.AggregatingState(ps.Max(), "int"), ps.AggregatingState(ps.Max(), "long")),
        (ps.AggregatingState(ps.Count(), "int"), ps.AggregatingState(ps.Count(), "string")),
        (ps.ReducingState("long", max), ps.ReducingState("long", max, ttl=ps.StateTtl(hours=1))),
    ],
)
def test_a_fold_widens_as_a_value_does(tmp_path: Path, old: Any, new: Any) -> None:
    reopened(tmp_path, old, old)
    with ps.open(tmp_path, key="long", states={"x": new}) as store:
        store.set_current_key(1)
        assert store["x"].get() in (7, 1, 2, 14)


def test_what_functions_are_called() -> None:
    def inner(a: int, b: int) -> int:
        return a

    assert [function_name(f) for f in (max, min, sum, operator.add)] == ["max", "min", "sum", "sum"]
    assert function_name(product) == f"{__name__}.product"
    assert function_name(inner) == f"{__name__}.inner"
    assert function_name(operator.mul) == "_operator.mul"
    assert function_name(np.fmax).endswith("fmax")
    assert function_name(lambda a, b: a) == "custom"
    assert function_name(functools.partial(product, 1)) == "custom"
    assert class_name(Largest()) == f"{__name__}.Largest(k=3, names=('a',))"
    assert class_name(Weighted(0.5)) == f"{__name__}.Weighted(weight=0.5)"


def test_a_function_may_move_to_another_module() -> None:
    here = ps.ReducingState("long", product).stored_as()
    there = here.replace(__name__, "somewhere.else")
    assert here != there and not stored_change(here, there).types.refused
    own = ps.AggregatingState(Largest()).stored_as()
    assert not stored_change(own, own.replace(__name__, "__main__")).types.refused


@pytest.mark.parametrize("name", [*LONGS, *OBJECTS])
def test_the_column_alone_is_what_older_versions_say(name: str) -> None:
    state = {**LONGS, **OBJECTS}[name]
    assert without_kind(state.stored_as()) == ("object" if name in OBJECTS else "long")
    unknown = of_unknown_kind(without_kind(state.stored_as()))
    assert not stored_change(unknown, state.stored_as()).types.refused
    assert stored_change(unknown, ps.ListState("long").stored_as()).types.refused


def head(folder: Path) -> Manifest:
    found = read_head(LocalStorage(folder))
    assert found is not None
    return found


@pytest.mark.parametrize("version", ["v1", "v2", "v3", "v4", "v5"])
def test_an_older_checkpoint_is_taken_once_and_then_knows(version: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / version / "store", tmp_path / "store")
    key = [("line", "string"), ("number", "int")]
    before = head(tmp_path / "store").operators[0].state_schema
    assert dict(before)["n"] == "State('long')"
    values = {name: stored[7:-2] for name, stored in before if name not in ("n", "anything")}

    def opened(n: ps.State[Any]) -> ps.Store:
        states = {"n": n, **{name: ps.ValueState(type_) for name, type_ in values.items()}}
        return ps.open(
            tmp_path / "store", key=key, states={**states, "anything": ps.ValueState(object)}
        )

    with opened(ps.ReducingState("long", max)) as store:
        assert store.checkpoint() == head(tmp_path / "store").epoch  # nothing has changed
        store.set_current_key(("new", 2))
        store["n"].add(5)
        store.checkpoint()
    assert dict(head(tmp_path / "store").operators[0].state_schema)["n"] == LONGS["max"].stored_as()
    with pytest.raises(SchemaError, match=r"state 'n': stored as ReducingState\('long', 'max'\)"):
        opened(ps.ReducingState("long", sum))
    with opened(ps.ReducingState("long", max)) as store:
        store.set_current_key(("new", 2))
        store["n"].add(4)
        assert store["n"].get() == 5


def test_a_harness_refuses_what_a_checkpoint_refuses() -> None:
    def function(state: ps.State[Any]) -> ps.KeyedProcessFunction:
        class Folds(ps.KeyedProcessFunction):
            x = state

            def process(self, key: Any, row: Any, ctx: Any) -> Any:
                give(self.x, row["v"])
                yield key

        return Folds()

    with ps.testing.Harness(function(LONGS["max"]), key="k") as harness:
        harness.process([{"k": 1, "v": 3}])
        snapshot = harness.snapshot()
    with pytest.raises(SchemaError, match=r"^operator 'harness', state 'x': stored as Reducing"):
        ps.testing.Harness.restore(snapshot, function(LONGS["sum"]))
    ps.testing.Harness.restore(snapshot, function(LONGS["max"])).close()


def test_it_is_read_and_written_with_its_function(tmp_path: Path) -> None:
    states: dict[str, Any] = {name.replace(" ", ""): state for name, state in LONGS.items()}
    states |= {"own": OBJECTS["Own"], "mean": ps.AggregatingState(ps.Mean(), "long")}
    with ps.open(tmp_path / "s", key=[("k", "long")], states=states) as store:
        for key in (1, 2):
            store.set_current_key(key)
            for name in states:
                give(store[name], key + 5)
        store.checkpoint()
    kinds = ps.state_metadata(tmp_path / "s").to_pylist()
    assert {row["state"]: row["kind"] for row in kinds} == {
        "avalue": "value",
        **dict.fromkeys(["max", "min", "sum", "product", "alambda"], "reducing"),
        **dict.fromkeys(["Count", "Sum", "Max", "Min", "own", "mean"], "aggregating"),
    }
    rows = ps.StateRows.read(tmp_path / "s")
    ps.write_state(tmp_path / "w", {"op": rows}, parallelism=2)
    assert dict(head(tmp_path / "w").operators[0].state_schema) == {
        name: state.stored_as() for name, state in states.items()
    }
    again = ps.read_state(tmp_path / "w", "op").sort_by("k")
    assert again.equals(ps.read_state(tmp_path / "s").sort_by("k"))
    assert again.column("Count").to_pylist() == [1, 1]
