"""A checkpoint knows for ever what kind of states it has, what made them, and their first names.

``tests/compat/identities1`` was written once by ``python tests/compat/test_golden_identities.py
identities1`` and is never written again: a change of the form gets a folder of its own.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import pystate as ps
from pystate.checkpoint.manifest_log import read_head
from pystate.checkpoint.storage import LocalStorage
from pystate.errors import SchemaError

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("identities*"))


def longest(a: str, b: str) -> str:
    return max(a, b, key=len)


class Words(ps.AggregateFunction[str, int, int]):
    def __init__(self, most: int) -> None:
        self.most = most

    def create(self) -> int:
        return 0

    def add(self, accumulator: int, value: str) -> int:
        return min(accumulator + len(value.split()), self.most)

    def merge(self, a: int, b: int) -> int:
        return min(a + b, self.most)

    def result(self, accumulator: int) -> int:
        return accumulator


def folds() -> dict[str, ps.State[Any]]:
    return {
        "worst": ps.ReducingState("double", max),
        "sum": ps.ReducingState("long", sum),
        "longest": ps.ReducingState("string", longest),
        "count": ps.AggregatingState(ps.Count(), "string"),
        "total": ps.AggregatingState(ps.Sum(), "decimal(10,2)"),
        "words": ps.AggregatingState(Words(5)),
        "mean": ps.AggregatingState(ps.Mean(), "long"),
    }


def before() -> dict[str, ps.State[Any]]:
    return {"n": ps.ValueState("long"), "l": ps.ListState("string"), **folds()}


def after() -> dict[str, ps.State[Any]]:
    return {
        "clicks": ps.ValueState("long", previously="n"),
        "items": ps.ListState("string", previously=["list", "l"]),
        **folds(),
    }


def now() -> dict[str, ps.State[Any]]:
    """With a new state under a former name."""
    states = {name: state.in_files(None) for name, state in after().items()}
    states["clicks"], states["items"] = ps.ValueState("long"), ps.ListState("string")
    return {**states, "n": ps.MapState("string", "int")}


def make(folder: Path) -> None:
    with ps.open(folder, key="long", states=before()) as store:
        for key in (1, 2):
            store.set_current_key(key)
            store["n"].update(key)
            store["l"].add("a")
            store["worst"].add(key / 2)
            store["sum"].add(key)
            store["longest"].add("ab" * key)
            store["count"].add("x")
            store["total"].add(key)
            store["words"].add("some words")
            store["mean"].add(key)
        store.checkpoint()
    with ps.open(folder, key="long", states=after()) as store:
        store.set_current_key(2)
        store["clicks"].update(7)
        store["items"].add("b")
        store.checkpoint()
    with ps.open(folder, key="long", states=now()) as store:
        store.set_current_key(2)
        store["n"].put("k", 3)
        store.checkpoint()


def content(store: ps.Store, key: int) -> dict[str, Any]:
    store.set_current_key(key)
    return {
        name: handle.value()
        if isinstance(handle, ps.ValueHandle)
        else dict(handle.items())
        if isinstance(handle, ps.MapHandle)
        else list(handle.get())
        if isinstance(handle, ps.ListHandle)
        else handle.get()
        for name, handle in store.states.items()
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_it_opens_with_its_content(version: str, tmp_path: Path) -> None:
    shutil.copytree(HERE / version, tmp_path / "store")
    with ps.open(tmp_path / "store", key="long", states=now()) as store:
        assert content(store, 1) == {
            "clicks": 1,
            "items": ["a"],
            "worst": 0.5,
            "sum": 1,
            "longest": "ab",
            "count": 1,
            "total": 1,
            "words": 2,
            "mean": 1.0,
            "n": {},
        }
        found = content(store, 2)
        assert (found["clicks"], found["items"], found["n"]) == (7, ["a", "b"], {"k": 3})
    rows = {row["key"]: row for row in ps.read_state(tmp_path / "store").to_pylist()}
    assert (rows[2]["clicks"], rows[2]["n"], rows[1]["worst"]) == (7, [("k", 3)], 0.5)
    assert ps.verify(tmp_path / "store").ok


@pytest.mark.parametrize("version", VERSIONS)
def test_changes_follow_a_state_under_its_new_name(version: str) -> None:
    found = ps.changes(HERE / version, from_epoch=1, state="clicks").to_pylist()
    assert [(row["key"], row["before"], row["after"]) for row in found] == [(2, 2, 7)]
    found = ps.changes(HERE / version, from_epoch=1, state="n").to_pylist()
    assert [(row["key"], row["before"], row["after"]) for row in found] == [(2, None, [("k", 3)])]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("worst", ps.ReducingState("double", min)),
        ("sum", ps.ValueState("long")),
        ("longest", ps.ReducingState("string", max)),
        ("count", ps.AggregatingState(ps.Sum(), "long")),
        ("total", ps.AggregatingState(ps.Max(), "decimal(20,2)")),
        ("words", ps.AggregatingState(Words(6))),
        ("mean", ps.AggregatingState(ps.Variance(), "long")),
        ("clicks", ps.ReducingState("long", sum)),
    ],
)
def test_it_takes_no_other_state(version: str, name: str, other: Any, tmp_path: Path) -> None:
    shutil.copytree(HERE / version, tmp_path / "store")
    with pytest.raises(SchemaError, match=f"state '{name}': stored as "):
        ps.open(tmp_path / "store", key="long", states={**now(), name: other})


def test_there_is_a_version() -> None:
    assert VERSIONS == ["identities1"]
    head = read_head(LocalStorage(HERE / VERSIONS[0]))
    assert head is not None
    assert dict(head.operators[0].state_schema) == {
        "clicks": '"n": long',
        "items": "\"l\": ListState('string')",
        "worst": "ReducingState('double', 'max')",
        "sum": "ReducingState('long', 'sum')",
        "longest": "ReducingState('string', '__main__.longest')",
        "count": "#Count() of string",
        "total": "#Sum() of decimal(10,2)",
        "words": "AggregatingState(object, '__main__.Words(most=5)')",
        "mean": "#Mean() of long",
        "n": "\"n~2\": MapState('string', 'int')",
    }


if __name__ == "__main__":
    make(HERE / sys.argv[1])
