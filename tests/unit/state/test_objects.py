"""Objects whose classes change: from version to version, from before they had one, and back."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest

import pystate as ps
from pystate.errors import DeclarationError, SchemaError
from tests.tables import keyed, sealed


class Visit(ps.Versioned):
    """What is stored; the tests replace it by what a program has later."""

    def __init__(self, page: str) -> None:
        self.page = page


class _Plain:
    def __init__(self, page: str) -> None:
        self.page = page


class _First(ps.Versioned):
    state_version = 1

    def __init__(self, page: str) -> None:
        self.page, self.seconds = page, 5

    @classmethod
    def migrate(cls, state: Any, from_version: int) -> Any:
        if from_version == 0:
            return {**state, "seconds": 5}
        raise AssertionError(from_version)


class _Third(_First):
    state_version = 3

    @classmethod
    def migrate(cls, state: Any, from_version: int) -> Any:
        if from_version == 1:
            return {"path": state["page"], "seconds": state["seconds"]}
        if from_version == 2:
            return {"path": state["path"], "ms": state["seconds"] * 1000}
        return super().migrate(state, from_version)


class _Slots(ps.Versioned):
    __slots__ = ("page", "seconds")
    state_version = 1

    @classmethod
    def migrate(cls, state: Any, from_version: int) -> Any:
        return {**state, "seconds": 7}


class _Items(ps.Versioned, list[int]):
    state_version = 2


@pytest.fixture
def program() -> Iterator[Any]:
    """Runs a class under the name by which it is pickled."""
    here, before = globals(), Visit
    named: list[tuple[type, str]] = []

    def run(cls: type) -> type:
        named.append((cls, cls.__qualname__))
        cls.__qualname__ = cls.__name__ = "Visit"
        here["Visit"] = cls
        return cls

    yield run
    here["Visit"] = before
    for cls, name in named:
        cls.__qualname__ = cls.__name__ = name


STATES = {
    "one": ps.ValueState(object),
    "many": ps.ListState(object),
    "map": ps.MapState("string", object),
}


def stored(value: Any) -> io.BytesIO:
    with keyed(STATES) as backend:
        backend["one"].update({"inner": [value]})
        backend["many"].add(value)
        backend["map"].put("a", value)
        out = sealed(backend)
    return out


def loaded(file: io.BytesIO) -> list[Any]:
    with keyed(STATES, file) as backend:
        one = backend["one"].value()["inner"][0]
        return [one, *backend["many"].get(), *dict(backend["map"].items()).values()]


def test_from_version_to_version(program: Any) -> None:
    """At any depth, in every kind of state, over several versions at once."""
    first = stored(program(_First)("home"))
    third = program(_Third)
    for found in loaded(first):
        assert type(found) is third
        assert vars(found) == {"path": "home", "ms": 5000}


def test_from_before_there_was_a_version(program: Any) -> None:
    plain = stored(program(_Plain)("home"))
    program(_Third)
    assert [vars(found) for found in loaded(plain)] == [{"path": "home", "ms": 5000}] * 3
    program(_Slots)
    assert [(found.page, found.seconds) for found in loaded(plain)] == [("home", 7)] * 3


def test_the_same_version_is_left_alone(program: Any) -> None:
    first = program(_First)("home")
    first.seconds = 9
    assert [vars(found) for found in loaded(stored(first))] == [vars(first)] * 3
    items = program(_Items)([1, 2])
    items.more = 3
    assert [(list(i), i.more) for i in loaded(stored(items))] == [([1, 2], 3)] * 3


def test_slots_go_there_and_back(program: Any) -> None:
    slots = program(_Slots)()
    slots.page, slots.seconds = "home", 1
    assert [(found.page, found.seconds) for found in loaded(stored(slots))] == [("home", 1)] * 3


def test_a_newer_object_in_an_older_class(program: Any) -> None:
    third = program(_Third).__new__(_Third)
    third.path = "home"
    file = stored(third)
    program(_First)
    with pytest.raises(
        SchemaError, match=r"state 'one'.*Visit was stored as version 3.*class is version 1.*later"
    ):
        loaded(file)


def test_a_class_that_cannot_migrate(program: Any) -> None:
    file = stored(program(_Plain)("home"))

    class Forgotten(ps.Versioned):
        state_version = 1

    program(Forgotten)
    with pytest.raises(SchemaError, match=r"'one'.*Visit has state_version=1 and no migrate from"):
        loaded(file)


@pytest.mark.parametrize("version", [-1, "1", 1.0, True])
def test_a_version_is_a_number(version: Any) -> None:
    with pytest.raises(DeclarationError, match="state_version is a number from 0 on"):
        type("Wrong", (ps.Versioned,), {"state_version": version})
