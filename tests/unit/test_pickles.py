"""What is pickled can be refused, and nothing else of a checkpoint is ever unpickled."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pystate as ps
from pystate.errors import DeclarationError


class Set(ps.AggregateFunction[Any, Any, Any]):
    def create(self) -> Any:
        return set()

    def add(self, accumulator: Any, value: Any) -> Any:
        return accumulator | {value}

    def merge(self, a: Any, b: Any) -> Any:
        return a | b

    def result(self, accumulator: Any) -> Any:
        return len(accumulator)


PICKLED: dict[str, ps.State] = {
    "value": ps.ValueState(object),
    "timed": ps.ValueState(object, ttl=ps.StateTtl(hours=1)),
    "list": ps.ListState(object),
    "map": ps.MapState("long", object),
    "reducing": ps.ReducingState(object, max),
    "aggregating": ps.AggregatingState(Set()),
}
PLAIN: dict[str, ps.State] = {
    "value": ps.ValueState("struct<a:int,b:array<string>>"),
    "list": ps.ListState("string"),
    "map": ps.MapState("string", "binary"),
    "reducing": ps.ReducingState("double", max),
    "mean": ps.AggregatingState(ps.Mean()),
    "top": ps.AggregatingState(ps.TopK(3), "long"),
}


class Code:
    """Unpickling it makes a file."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.flag,)


def operator(states: dict[str, ps.State]) -> ps.KeyedProcessFunction:
    def process(self: Any, key: Any, row: Any, ctx: ps.RuntimeContext) -> Any:
        yield key

    return type("Function", (ps.KeyedProcessFunction,), {**states, "process": process})()


def in_store(folder: Path, states: dict[str, ps.State], allow: bool) -> None:
    ps.open(folder / "store", key="long", states=states, allow_pickle=allow).close()


def in_harness(folder: Path, states: dict[str, ps.State], allow: bool) -> None:
    ps.testing.Harness(operator(states), key={"k": "long"}, allow_pickle=allow).close()


@pytest.mark.parametrize("use", [in_store, in_harness])
@pytest.mark.parametrize("kind", PICKLED)
def test_what_is_pickled_is_refused(
    tmp_path: Path, use: Callable[[Path, dict[str, ps.State], bool], None], kind: str
) -> None:
    states = {"fine": ps.ValueState("long"), "hidden": PICKLED[kind]}
    with pytest.raises(DeclarationError, match="'hidden' would be pickled, and allow_pickle=False"):
        use(tmp_path, states, False)
    assert not list(tmp_path.iterdir())
    use(tmp_path, states, True)


@pytest.mark.parametrize("use", [in_store, in_harness])
def test_what_is_not_is_not(
    tmp_path: Path, use: Callable[[Path, dict[str, ps.State], bool], None]
) -> None:
    use(tmp_path, PLAIN, False)


def test_a_restored_harness_keeps_to_it() -> None:
    with ps.testing.Harness(operator(PLAIN), key={"k": "long"}, allow_pickle=False) as harness:
        snapshot = harness.snapshot()
    with pytest.raises(DeclarationError, match="allow_pickle=False"):
        ps.testing.Harness.restore(snapshot, operator(PICKLED))


def test_code_in_a_store_does_not_run(tmp_path: Path) -> None:
    flag, states = tmp_path / "ran", {"hidden": PICKLED["value"]}
    with ps.open(tmp_path / "store", key="long", states=states) as store:
        store.set_current_key(1)
        store["hidden"].update(Code(flag))
        store.checkpoint()
    with pytest.raises(DeclarationError):
        ps.open(tmp_path / "store", key="long", states=states, allow_pickle=False)
    # Neither does it under another declaration, nor where it is passed on as it is.
    for read in ("long", "binary"):
        with pytest.raises(ps.errors.SchemaError):
            ps.open(
                tmp_path / "store",
                key="long",
                states={"hidden": ps.ValueState(read)},
                allow_pickle=False,
            )
    with ps.open(tmp_path / "store", key="long", states=states) as store:
        assert isinstance(store.to_arrow()["hidden"][0].as_py(), bytes)
        assert not flag.exists()
        store.set_current_key(1)
        store["hidden"].value()
    assert flag.exists()


def test_nothing_is_unpickled_but_objects() -> None:
    """In handles and readers of declared objects alone; and a copy of what was pickled just before.

    That is Spark's processor, of which `init` is called on the driver.
    """
    folder = Path(ps.__file__).parent
    found = {
        str(path.relative_to(folder))
        for pattern in ("**/*.py", "**/*.py?", "**/*.pxi")
        for path in folder.glob(pattern)
        if path.suffix != ".pyc"
        and re.search(r"pickle\.(loads?|Unpickler)|marshal|\beval\(|\bexec\(", path.read_text())
    }
    assert found == {"state/objects.py", "spark/operators/processors.py"}
